# Makes mask_layouts.h5: masks in the arrays of Tokamax, FlexAttention, SciPy and FlashInfer, by their own code. Needs h5py,
# numpy, scipy, torch and jax, and two folders: the sources of tokamax and of flashinfer-python, unpacked from their wheels
# (their packages import what a CPU does not have; the modules used here need jax and torch alone).
#     python make_mask_layouts.py TOKAMAX_FOLDER FLASHINFER_FOLDER
# The tests do not run this. README.md describes the layout.
import ast
import json
import sys

import h5py
import jax
import numpy as np
import scipy
import torch
from tokamax_splash import mask_modules
from torch.nn.attention.flex_attention import create_block_mask

tokamax_folder, flashinfer_folder = sys.argv[1:]
masks, infos = mask_modules(tokamax_folder)

source = ast.parse(open(flashinfer_folder + "/flashinfer/sparse.py").read())
[function] = [f for f in source.body if isinstance(f, ast.FunctionDef) and f.name == "convert_bsr_mask_layout"]
scope = {"torch": torch}
exec(compile(ast.Module([function], []), "sparse.py", "exec"), scope)
convert_bsr_mask_layout = scope["convert_bsr_mask_layout"]


def tokamax(mask, block, settings):
    rule = settings.pop("rule", None)
    if rule == "causal":
        wanted = masks.CausalMask(mask.shape)
    elif rule == "local":
        wanted = masks.LocalMask(mask.shape, (3, 1), 0)
    else:
        wanted = masks.NumpyMask(mask)
    process = infos.process_mask_dkv if settings["dkv"] else infos.process_mask
    how = {name: value for name, value in settings.items() if name not in ("dkv", "shrink_grid", "downcast")}
    info, _ = process(wanted, block, downcast_smem_data=settings["downcast"],
                      return_dynamic_grid=settings["shrink_grid"], **how)
    return {name: np.asarray(value) for name, value in info._asdict().items() if value is not None}


def flex(mask, block):
    m = torch.from_numpy(mask)
    made = create_block_mask(lambda b, h, q, k: m[h, q, k], 1, mask.shape[0], mask.shape[1], mask.shape[2],
                             device="cpu", BLOCK_SIZE=block)
    names = ["kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices",
             "q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices"]
    return {name: getattr(made, name).numpy() for name in names}


def padded(mask, block):
    q, kv = (-(-n // b) * b for n, b in zip(mask.shape, block))
    whole = np.zeros((q, kv), bool)
    whole[: mask.shape[0], : mask.shape[1]] = mask
    return whole


def bsr(mask, block):
    made = scipy.sparse.bsr_array(padded(mask, block), blocksize=block)
    made.sort_indices()
    return {"indptr": made.indptr.astype(np.int32), "indices": made.indices.astype(np.int32), "data": made.data}


def flashinfer(mask, block):
    made = bsr(mask, block)
    indptr, data = made["indptr"], made["data"]
    if data.all():
        return {"indptr": indptr, "indices": made["indices"]}
    flat = convert_bsr_mask_layout(torch.from_numpy(data), torch.from_numpy(indptr)).numpy()
    packed = []
    for i in range(len(indptr) - 1):  # segment_packbits; the last row of blocks has fewer queries
        bits = flat[indptr[i] * block[0] * block[1]: indptr[i + 1] * block[0] * block[1]]
        rows = min(block[0], mask.shape[0] - i * block[0])
        packed.append(np.packbits(bits[: rows * (indptr[i + 1] - indptr[i]) * block[1]], bitorder="little"))
    return {"indptr": indptr, "indices": made["indices"], "packed_mask": np.concatenate(packed)}


rng = np.random.default_rng(3)


def random_mask(heads, q, kv, block):
    """Empty, full and few distinct partial blocks."""
    whole = np.zeros((heads, -(-q // block[0]) * block[0], -(-kv // block[1]) * block[1]), bool)
    patterns = rng.random((3, *block)) < 0.5
    for h in range(heads):
        for i in range(0, whole.shape[1], block[0]):
            for j in range(0, whole.shape[2], block[1]):
                state = rng.integers(0, 4)
                whole[h, i: i + block[0], j: j + block[1]] = (
                    False if state == 0 else True if state == 1 else patterns[rng.integers(0, 3)])
    return whole[:, :q, :kv]


def plain_masks():
    q, k = np.arange(24)[:, None], np.arange(24)[None, :]
    yield "causal", (q >= k)[None], (4, 4)
    yield "window", ((q >= k) & (q - k < 7))[None], (4, 8)
    yield "full", np.ones((1, 8, 16), bool), (4, 4)
    yield "no_partial", np.kron(rng.random((4, 3)) < 0.5, np.ones((4, 4), bool))[None], (4, 4)
    yield "empty", np.zeros((1, 8, 8), bool), (4, 4)
    yield "empty_rows", np.pad(np.ones((1, 8, 8), bool), ((0, 0), (4, 0), (0, 4))), (4, 4)
    for n in range(6):
        block = tuple(int(b) for b in rng.integers(1, 9, 2))
        yield f"random_{n}", random_mask(1, block[0] * 4, block[1] * 4, block), block


with h5py.File("mask_layouts.h5", "w", libver=("v110", "v110")) as f:
    f.attrs["provenance"] = json.dumps({
        "function": "mask_layouts", "tokamax": "0.0.12", "flashinfer": "0.7.2.post1", "torch": torch.__version__,
        "scipy": scipy.__version__, "jax": jax.__version__, "numpy": np.__version__})

    def add(name, layout, mask, block, made, **settings):
        group = f.create_group(name)
        group.attrs["params"] = json.dumps({"layout": layout, "block": list(block), **settings})
        group["in/mask"] = mask
        for array, values in made.items():
            group["out/" + array] = values

    for name, mask, block in plain_masks():
        for dkv in (False, True):
            for q_shards, kv_shards in ((1, 1), (2, 1), (2, 2)):
                grid = (mask.shape[1] // block[0], mask.shape[2] // block[1])
                if grid[0] % q_shards or grid[1] % kv_shards:
                    continue
                for shrink in (True, False) if q_shards == 1 else (True,):
                    settings = {"dkv": dkv, "q_seq_shards": q_shards, "kv_seq_shards": kv_shards,
                                "shrink_grid": shrink, "downcast": not (q_shards == 2 and shrink)}
                    made = tokamax(mask[0], block, dict(settings))
                    add(f"tokamax_{name}_{dkv:d}{q_shards}{kv_shards}{shrink:d}", "tokamax", mask, block, made,
                        **settings)
        add("bsr_" + name, "bsr", mask, block, bsr(mask[0], block))
        add("flashinfer_" + name, "flashinfer", mask, block, flashinfer(mask[0], block))
        add("flex_" + name, "flex", mask, block, flex(mask, block))
    for rule, expression in (("causal", "causal"), ("local", "local(left=3, right=1)")):
        q, k = np.arange(24)[:, None], np.arange(24)[None, :]
        mask = (q >= k) if rule == "causal" else (q - k <= 3) & (k - q <= 1)
        for dkv in (False, True):
            settings = {"dkv": dkv, "q_seq_shards": 1, "kv_seq_shards": 1, "shrink_grid": True, "downcast": True}
            made = tokamax(mask, (4, 8), {**settings, "rule": rule})
            add(f"tokamax_rule_{rule}_{dkv:d}", "tokamax", mask[None], (4, 8), made, expression=expression, **settings)
    for n in range(8):  # lengths that blocks do not divide, and heads
        block = tuple(int(b) for b in rng.integers(2, 7, 2))
        q, kv = int(block[0] * 3 - rng.integers(1, block[0])), int(block[1] * 3 - rng.integers(1, block[1]))
        mask = random_mask(1 if n == 0 else 2, q, kv, block)
        if n == 0:
            mask[:] = True
        add(f"flex_ragged_{n}", "flex", mask, block, flex(mask, block))
        add(f"bsr_ragged_{n}", "bsr", mask[:1], block, bsr(mask[0], block))
        add(f"flashinfer_ragged_{n}", "flashinfer", mask[:1], block, flashinfer(mask[0], block))
