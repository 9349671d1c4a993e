# Makes quantize_others.h5: blocks encoded by microxcaling, ModelOpt and compressed-tensors. Needs h5py, numpy, torch,
# nvidia-modelopt, compressed-tensors, and a checkout of github.com/microsoft/microxcaling on PYTHONPATH. The tests do
# not run this. README.md describes the layout.
#
# Blocks are those on which the libraries agree with ejk. Elsewhere
# - microxcaling computes exponents by log2() in float32: amax just below a power of two counts as the power;
# - ModelOpt does the same, for amax / 6 and amax / 448, gives +0 the code of -0 in MXFP4, and gives blocks of zeros the
#   scale 1, small ones at least 2^-9, in NVFP4;
# - compressed-tensors rounds amax of MXFP8 to one bit of mantissa, not three, gives -0 the code of 0, and gives small
#   blocks the scale 0.125 in NVFP4;
# - in NVFP4 elements at ties differ where products of factors are rounded in another order: with 8 bits of mantissa, as
#   weights in bfloat16 have, one in 250.
import importlib.metadata
import json

import h5py
import numpy as np
import torch
from compressed_tensors.compressors.mx_utils import compress_mx_scale
from compressed_tensors.compressors.mxfp6.helpers import pack_fp6_to_uint8
from compressed_tensors.compressors.nvfp4.helpers import pack_fp4_to_uint8
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import quantize
from compressed_tensors.quantization.utils.helpers import calculate_qparams, generate_gparam
from modelopt.torch.quantization.qtensor.mxfp4_tensor import MXFP4QTensor
from modelopt.torch.quantization.qtensor.mxfp8_tensor import MXFP8QTensor
from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor
from mx.mx_ops import _quantize_mx

torch.manual_seed(0)
TIES = torch.tensor([6, .1, -.2, .25, .75, -.75, 1.25, 1.75, 2.5, 3.5, 5, 5.0001, -.1, .1, 4.9, -6] * 2)
# Rows of many magnitudes, subnormal amax among them; ties of each element; amax at the bounds of the rules.
x = torch.randn(6, 64) * torch.exp2(torch.tensor([[-130], [-20], [0], [17], [0], [0]]).float())
x[2, :32] = TIES
x[3] = torch.randint(1, 512, (64,)) / 16
x[4] = x[4].clamp(-1.4, 1.4)
x[4, ::32] = torch.tensor([1.5, 1.75])
x[5, ::32] = torch.tensor([448, -458]).float()
NORMAL = torch.randn(6, 64)

versions = {name: importlib.metadata.version(name)
            for name in ("torch", "numpy", "nvidia-modelopt", "compressed-tensors")}
versions["microxcaling"] = "7bc41952de394f5cc5e782baf132e7c7542eb4e4"


def codes(t):
    return t.contiguous().view(torch.uint8).numpy()


with h5py.File("quantize_others.h5", "w") as f:
    f.attrs["provenance"] = json.dumps({"function": "quantize"} | versions)

    def case(name, x, params, arrays):
        group = f.create_group(name)
        group.attrs["params"] = json.dumps(params)
        group["in/x"] = x.numpy()
        for key, value in arrays.items():
            group["out/" + key] = value

    for element, kind in {"e4m3": "fp8_e4m3", "e5m2": "fp8_e5m2", "e2m3": "fp6_e2m3", "e3m2": "fp6_e3m2",
                          "e2m1": "fp4_e2m1"}.items():
        for rounding, theirs in {"even": "even", "away": "nearest"}.items():
            decoded = _quantize_mx(x.clone(), 8, kind, axes=[-1], block_size=32, round=theirs)
            case(f"microxcaling_{element}_{rounding}", x,
                 {"scheme": "mx", "element": element, "rule": "floor", "rounding": rounding}, {"decoded": decoded.numpy()})

    values, scales = MXFP4QTensor.quantize(x.clone(), 32)
    case("modelopt_mxfp4", x, {"scheme": "mx", "element": "e2m1", "rule": "rceil", "rounding": "down"},
         {"values": codes(values._quantized_data), "scales": codes(scales.view(6, 2))})
    values, scales = MXFP8QTensor.quantize(x.clone())
    case("modelopt_mxfp8", x, {"scheme": "mx", "element": "e4m3", "rule": "rceil"},
         {"values": codes(values._quantized_data), "scales": codes(scales.view(6, 2))})
    values, scales, total = NVFP4QTensor.quantize(NORMAL.clone(), 16)
    case("modelopt_nvfp4", NORMAL, {"scheme": "nvfp4"},
         {"values": codes(values._quantized_data), "scales": codes(scales), "global": total.numpy()})

    for element, bits, pack in (("e2m3", 6, pack_fp6_to_uint8), ("e2m1", 4, pack_fp4_to_uint8)):
        args = QuantizationArgs(num_bits=bits, type="float", strategy="group", group_size=32, scale_dtype=torch.uint8)
        blocks = x[1:].reshape(5, 2, 32)
        scales, _ = calculate_qparams(blocks.amin(-1), blocks.amax(-1), args)
        case(f"compressed_tensors_{element}", x[1:], {"scheme": "mx", "element": element, "rule": "even"},
             {"values": codes(pack(quantize(x[1:].clone(), scales, None, args))),
              "scales": codes(compress_mx_scale(scales, torch.uint8))})
    args = QuantizationArgs(num_bits=4, type="float", strategy="tensor_group", group_size=16,
                            scale_dtype=torch.float8_e4m3fn)
    blocks = NORMAL.reshape(6, 4, 16)
    total = generate_gparam(NORMAL.amin(), NORMAL.amax())
    scales, _ = calculate_qparams(blocks.amin(-1), blocks.amax(-1), args, global_scale=total)
    case("compressed_tensors_nvfp4", NORMAL, {"scheme": "nvfp4"},
         {"values": codes(pack_fp4_to_uint8(quantize(NORMAL.clone(), scales, None, args, global_scale=total))),
          "scales": codes(scales.to(torch.float8_e4m3fn)), "global_divides": total.numpy()})
