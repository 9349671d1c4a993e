# Makes the .safetensors and .pt files of this folder with the packages whose formats they are. Needs numpy, torch
# and safetensors. The tests do not run this. README.md describes what the tensors contain.
import collections

import numpy as np
import safetensors.torch
import torch


def tensor(dtype, *shape):
    """Byte i is (37 i + 11) mod 251; bool element i is True where i is a multiple of 3."""
    elements = int(np.prod(shape))
    if dtype == torch.bool:
        return (torch.arange(elements) % 3 == 0).reshape(shape)
    size = torch.empty((), dtype=dtype).element_size()
    octets = (np.arange(elements * size) * 37 + 11) % 251
    if elements == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(octets.astype(np.uint8)).view(dtype).reshape(shape)


TYPES = [torch.bool, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32,
         torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
         torch.float8_e8m0fnu, torch.float16, torch.bfloat16, torch.float32, torch.float64]

# types.safetensors: every type, with odd lengths, and names whose order is not that of the types.
types = {str(dtype)[6:]: tensor(dtype, 3, 5) for dtype in TYPES}
types |= {"scalar": tensor(torch.float32), "empty": tensor(torch.int64, 0, 4), "a.empty": tensor(torch.uint8, 2, 0)}
safetensors.torch.save_file(types, "types.safetensors")

# names.safetensors: what names may be, and metadata.
NAMES = ["model.layers.0.w", "a/b", "c:d", "x[1]", 'quote"back\\slash', "tab\tand\x01", "größe", "模型", "😀", "del\x7f"]
safetensors.torch.save_file({name: tensor(torch.int16, i + 1) for i, name in enumerate(NAMES)}, "names.safetensors",
                            {"format": "pt"})

# packed.safetensors: types that ejk lists, and opens as bytes or not at all.
safetensors.torch.save_file(
    {"f4": torch.arange(6, dtype=torch.uint8).reshape(2, 3).view(torch.float4_e2m1fn_x2),
     "c64": torch.ones(2, dtype=torch.complex64), "u8": torch.arange(3, dtype=torch.uint8)}, "packed.safetensors")

# types.pt, nested.pt: as types.safetensors; and paths, views of one storage, and what is no tensor.
torch.save(types, "types.pt", pickle_protocol=4)
base = tensor(torch.int32, 4, 6)
model = torch.nn.Linear(3, 2)
with torch.no_grad():
    model.weight.copy_(torch.arange(6.0).reshape(2, 3))
    model.bias.copy_(torch.tensor([0.5, -1.0]))
nested = collections.OrderedDict(
    base=base, column=base[:, 1], transposed=base.t(), part=base[1:3, ::2], expanded=base[0, 0].expand(3, 2),
    flipped=base.flip(0), model=model.state_dict(), parameter=torch.nn.Parameter(tensor(torch.bfloat16, 3)),
    optimizer={"state": {0: {"step": torch.tensor(3.0), "beta": 0.9}, 1: {"exp": tensor(torch.float16, 2)}},
               "groups": [{"lr": 1e-3, "params": [0, 1], "name": "all"}]},
    pair=(tensor(torch.int8, 2), [tensor(torch.uint8, 3), None, True]), epoch=7, big=2**80, text="no tensor",
    empty=[], none=None, complex=torch.ones(2, dtype=torch.complex64), size=base.shape)
torch.save(nested, "nested.pt")

torch.save(tensor(torch.float32, 2, 3), "one.pt", pickle_protocol=5)
torch.save(tensor(torch.float32, 2, 3), "old.pt", _use_new_zipfile_serialization=False)
