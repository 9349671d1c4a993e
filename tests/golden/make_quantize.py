# Makes quantize.h5: blocks encoded by torchao and by ml_dtypes. Needs h5py, ml_dtypes, numpy, torch and torchao. The
# tests do not run this. README.md describes the layout.
import json

import h5py
import ml_dtypes
import numpy as np
import torch
import torchao
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.mx_tensor import to_mx
from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale
from torchao.prototype.mx_formats.utils import to_blocked

torch.manual_seed(0)
# Rows of many magnitudes; a block of zeros; ties of e2m1 at the scale 1.
x = torch.randn(10, 96) * torch.exp2(torch.randint(-20, 20, (10, 1)).float())
x[3, 32:64] = 0
x[4, :32] = torch.tensor([6, 0, -0.0, .25, .75, -.75, 1.25, 1.75, 2.5, 3.5, 5, 5.0001, -.1, .1, 4.9, -6] * 2)

ELEMENTS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "e2m1": torch.float4_e2m1fn_x2}


def codes(t):
    return t.contiguous().view(torch.uint8).numpy()


with h5py.File("quantize.h5", "w") as f:
    f.attrs["provenance"] = json.dumps({"function": "quantize", "torch": torch.__version__, "torchao": torchao.__version__,
                                        "ml_dtypes": ml_dtypes.__version__, "numpy": np.__version__})

    def case(name, params, arrays):
        group = f.create_group(name)
        group.attrs["params"] = json.dumps(params)
        group["in/x"] = x.numpy()
        for key, value in arrays.items():
            group["out/" + key] = value

    for element, dtype in ELEMENTS.items():
        for rule in ScaleCalculationMode:
            scales, values = to_mx(x, dtype, 32, rule)
            case(f"mx_{element}_{rule.value}", {"scheme": "mx", "element": element, "rule": rule.value},
                 {"values": codes(values), "scales": codes(scales), "blocked": codes(to_blocked(scales.view(torch.uint8)))})
    # torchao has no block scale below 2^-6: rows of similar magnitudes have none.
    x = torch.randn(10, 96) * torch.exp2(torch.randint(-2, 2, (10, 1)).float())
    total = per_tensor_amax_to_scale(x.abs().max())
    scales, values = nvfp4_quantize(x, 16, total)
    case("nvfp4", {"scheme": "nvfp4"}, {"values": codes(values), "scales": codes(scales), "global": total.numpy(),
                                        "blocked": codes(to_blocked(scales.view(torch.uint8)))})

    # Codes of all finite bfloat16 numbers, of one byte each.
    numbers = (np.arange(65536, dtype=np.uint32) << 16).view(np.float32)
    numbers = numbers[np.isfinite(numbers)]
    for element, dtype in {"e2m1": ml_dtypes.float4_e2m1fn, "e2m3": ml_dtypes.float6_e2m3fn,
                           "e3m2": ml_dtypes.float6_e3m2fn}.items():
        group = f.create_group(f"codes_{element}")
        group.attrs["params"] = json.dumps({"element": element})
        for key, value in {"in/x": numbers, "out/codes": numbers.astype(dtype).view(np.uint8)}.items():
            group.create_dataset(key, data=value, chunks=value.shape, shuffle=True, compression="gzip", compression_opts=9)
