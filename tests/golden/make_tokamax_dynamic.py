# Makes tokamax_dynamic.h5: masks in the arrays of Tokamax's process_dynamic_mask, by its own code. Needs h5py, numpy, jax and
# the unpacked wheel of tokamax 0.0.12, whose folder is the argument. The tests do not run this.
import json
import sys

import h5py
import jax
import numpy as np
from tokamax_splash import mask_modules

_, infos = mask_modules(sys.argv[1])
rng = np.random.default_rng(11)


def masks():
    q, k = np.arange(24)[:, None], np.arange(24)[None, :]
    yield "causal", q >= k, (4, 8)
    yield "window", (q >= k) & (q - k < 7), (4, 4)
    yield "full", np.ones((8, 16), bool), (4, 4)
    yield "empty", np.zeros((8, 8), bool), (4, 4)
    yield "empty_columns", (q >= k) & (k >= 8), (4, 4)
    yield "many_blocks", rng.random((24, 24)) < 0.5, (2, 2)
    for n in range(6):
        block = tuple(int(b) for b in rng.integers(1, 9, 2))
        states = np.kron(rng.integers(0, 3, (4, 4)), np.ones(block, int))
        yield f"random_{n}", (states == 2) | ((states == 1) & (rng.random(states.shape) < 0.5)), block


with h5py.File("tokamax_dynamic.h5", "w", libver=("v110", "v110")) as f:
    f.attrs["provenance"] = json.dumps(
        {"function": "tokamax_dynamic", "tokamax": "0.0.12", "jax": jax.__version__, "numpy": np.__version__})
    for name, mask, block in masks():
        for dkv in (False, True):
            for downcast in (False, True):
                process = infos.process_dynamic_mask_dkv if dkv else infos.process_dynamic_mask
                info = process(jax.numpy.asarray(mask), block, downcast_smem_data=downcast)
                group = f.create_group(f"{name}_{dkv:d}{downcast:d}")
                group.attrs["params"] = json.dumps(
                    {"layout": "tokamax", "block": block, "dkv": dkv, "downcast": downcast})
                group["in/mask"] = mask[None]
                for array, values in info._asdict().items():
                    if values is not None:
                        group.create_dataset("out/" + array, data=np.asarray(values), compression="gzip")
