# Makes variable_blocks.h5: masks of blocks of any sizes, by the function inside the planner of FlashInfer's
# VariableBlockSparseAttentionWrapper that lists the tokens of each row of blocks. Needs h5py, numpy, torch and the unpacked
# wheel of flashinfer-python 0.7.2, whose folder is the argument. The tests do not run this.
import ast
import json
import sys
from typing import Tuple

import h5py
import numpy as np
import torch

source = ast.parse(open(sys.argv[1] + "/flashinfer/sparse.py").read())
[function] = [f for f in ast.walk(source) if getattr(f, "name", "") == "_block_mask_map_to_expanded_indices"]
scope = {"torch": torch, "Tuple": Tuple}
exec(compile(ast.Module([function], []), "sparse.py", "exec"), scope)


def mask_of(cells, q_sizes, kv_sizes):
    """What a kernel computes: the queries of a row of blocks (qo_indptr) and its tokens, one a page."""
    indptr, indices = (t.numpy() for t in scope[function.name](*map(torch.from_numpy, (cells, kv_sizes))))
    heads, rows, _ = cells.shape
    queries, keys = q_sizes[0].sum(), kv_sizes[0].sum()
    qo_indptr = np.concatenate([[0], np.cumsum(q_sizes.reshape(-1))])
    mask = np.zeros((heads * queries, heads * keys), bool)
    for row in range(heads * rows):
        mask[qo_indptr[row]:qo_indptr[row + 1], indices[indptr[row]:indptr[row + 1]]] = True
    blocks = mask.reshape(heads, queries, heads, keys)
    assert mask.sum() == sum(blocks[h, :, h].sum() for h in range(heads))  # no token of another head
    return np.stack([blocks[h, :, h] for h in range(heads)])


rng = np.random.default_rng(7)


def sizes(heads, blocks, length):
    """Of each head blocks that add up to the length; some are empty."""
    return np.stack([np.diff([0, *np.sort(rng.integers(0, length + 1, blocks - 1)), length])
                     for _ in range(heads)]).astype(np.int32)


with h5py.File("variable_blocks.h5", "w", libver=("v110", "v110")) as f:
    f.attrs["provenance"] = json.dumps(
        {"function": "variable_blocks", "flashinfer": "0.7.2.post1", "torch": torch.__version__, "numpy": np.__version__})
    for n in range(24):
        heads, rows, columns = (int(x) for x in rng.integers(1, (4, 7, 7)))
        queries, keys = (int(x) for x in rng.integers(1, 90, 2))
        if n == 0:  # the example of its documentation
            cells = np.array([[[0, 0, 1], [1, 0, 1], [0, 1, 1]]], bool)
            q_sizes, kv_sizes = np.array([[1, 2, 3]], np.int32), np.array([[3, 1, 2]], np.int32)
        else:
            cells = rng.random((heads, rows, columns)) < 0.5
            cells[0, 0, 0] = True
            q_sizes, kv_sizes = sizes(heads, rows, queries), sizes(heads, columns, keys)
            if n % 2:  # all heads alike, which is written as well
                q_sizes[:], kv_sizes[:] = q_sizes[0], kv_sizes[0]
        group = f.create_group(f"case_{n}")
        group.attrs["params"] = json.dumps({"heads_alike": n == 0 or bool(n % 2)})
        for name, array in (("block_mask_map", cells), ("block_row_sz", q_sizes), ("block_col_sz", kv_sizes)):
            group["in/" + name] = array
        group.create_dataset("out/mask", data=mask_of(cells, q_sizes, kv_sizes), compression="gzip")
