# Makes float8.h5: the 8-bit float types as torch and ml_dtypes convert them. Needs h5py, ml_dtypes, numpy and torch.
# The tests do not run this. README.md describes the layout; `codes` has the code of each of the 65,536 bfloat16 bit
# patterns, `values` the number of each of the 256 codes.
import json

import h5py
import ml_dtypes
import numpy as np
import torch

FLOATS = (np.arange(65536, dtype=np.uint32) << 16).view(np.float32)
CODES = np.arange(256, dtype=np.uint8)


def by_torch(name):
    return torch.from_numpy(FLOATS.copy()).to(getattr(torch, name)).view(torch.uint8).numpy()


def by_ml_dtypes(name):
    with np.errstate(all="ignore"):
        return FLOATS.astype(getattr(ml_dtypes, name)).view(np.uint8)


def equal_except(codes, others, where, name):
    assert not np.any((codes != others) & ~where), name


# What overflow becomes, and in whose conversion.
CASES = [
    ("float8_e4m3fn", "saturate", by_torch),
    ("float8_e4m3fn", "nan", by_ml_dtypes),
    ("float8_e5m2", "infinity", by_torch),
    ("float8_e4m3fnuz", "nan", by_torch),
    ("float8_e5m2fnuz", "nan", by_torch),
    ("float8_e8m0fnu", "nan", by_torch),
]

with h5py.File("float8.h5", "w") as f:
    f.attrs["provenance"] = json.dumps(
        {"function": "float8", "torch": torch.__version__, "ml_dtypes": ml_dtypes.__version__, "numpy": np.__version__})
    for name, overflow, convert in CASES:
        group = f.create_group(f"{name}_{overflow}")
        group.attrs["params"] = json.dumps(
            {"dtype": name, "overflow": overflow, "source": "torch" if convert is by_torch else "ml_dtypes"})
        codes = convert(name)
        group.create_dataset("out/codes", data=codes, chunks=codes.shape, shuffle=True, compression="gzip",
                             compression_opts=9)
        values = torch.from_numpy(CODES).view(getattr(torch, name)).float().numpy()
        assert np.array_equal(values, CODES.view(getattr(ml_dtypes, name)).astype(np.float32), equal_nan=True)
        group["out/values"] = values

# Where both libraries have the same rules, they agree.
finite = np.isfinite(FLOATS)
for name in ("float8_e4m3fnuz", "float8_e5m2fnuz"):
    equal_except(by_torch(name), by_ml_dtypes(name), np.zeros(65536, bool), name)
equal_except(by_torch("float8_e5m2"), by_ml_dtypes("float8_e5m2"), np.isnan(FLOATS), "NaN is 0x7F and 0x7E")
equal_except(by_torch("float8_e4m3fn"), by_ml_dtypes("float8_e4m3fn"), ~finite | (abs(FLOATS) > 464), "overflow")
equal_except(by_torch("float8_e8m0fnu"), by_ml_dtypes("float8_e8m0fnu"), ~(FLOATS > 0), "0 and the sign")
