# Makes fa4_varlen.h5: lists of blocks of packed sequences. Shapes, dtypes and offsets are those of flash-attn-4's
# compute_block_sparsity, which is run with a loop of ours in place of its kernel for a GPU. Needs h5py, numpy, torch and the
# unpacked wheel of flash-attn-4 4.0.0b36, whose folder is the argument. The tests do not run this.
import ast
import json
import sys
import types
from typing import Callable, Optional

import h5py
import numpy as np
import torch
from flash_attn_4 import block_sparsity

folder = sys.argv[1]
sparsity = block_sparsity(folder)


def kernel(mask_mod, tile):
    """As BlockSparsityKernel: each row of blocks of each sequence, without positions beyond its lengths."""
    def run(tensors, seqlen_q, seqlen_k, cu_q, cu_k, *_):
        mask_cnt, mask_idx, full_cnt, full_idx, cu_m, offsets, *_ = tensors
        for s in range(len(cu_q) - 1):
            q_len = int(cu_q[s + 1] - cu_q[s])
            k_len = int(cu_k[s + 1] - cu_k[s]) if cu_k is not None else seqlen_k
            n_blocks = -(-k_len // tile[1])
            first = int(offsets[s]) if offsets is not None else int(cu_m[s]) * n_blocks
            for head in range(mask_cnt.shape[0]):
                for m in range(-(-q_len // tile[0])):
                    counts = {"mask": 0, "full": 0}
                    for n in range(n_blocks):
                        seen = np.array([mask_mod(s, head, q, k)
                                         for q in range(m * tile[0], min((m + 1) * tile[0], q_len))
                                         for k in range(n * tile[1], min((n + 1) * tile[1], k_len))])
                        if not seen.any():
                            continue
                        kind, idx = ("full", full_idx) if seen.all() else ("mask", mask_idx)
                        idx[head, first + m * n_blocks + counts[kind]] = n
                        counts[kind] += 1
                    mask_cnt[head, int(cu_m[s]) + m], full_cnt[head, int(cu_m[s]) + m] = counts["mask"], counts["full"]
    return run


scope = {
    "torch": torch, "Callable": Callable, "Optional": Optional, "is_fake_mode": lambda: False, "hash_callable": id,
    "BlockSparseTensorsTorch": sparsity.BlockSparseTensorsTorch, "AuxData": lambda *_: None,
    "to_cute_tensor": lambda *_, **__: None, "to_cute_block_sparse_tensors": lambda *_, **__: None,
    "BlockSparsityKernel": lambda mask_mod, tile_mn, **_: (mask_mod, tile_mn),
    "cute": types.SimpleNamespace(compile=lambda made, *_, **__: kernel(*made))}
tree = ast.parse(open(f"{folder}/flash_attn/cute/compute_block_sparsity.py").read())
[function] = [f for f in tree.body if getattr(f, "name", "") == "compute_block_sparsity"]
exec(compile(ast.Module([function], []), "compute_block_sparsity.py", "exec"), scope)
compute = scope["compute_block_sparsity"]
compute.compile_cache = {}

rng = np.random.default_rng(19)
with h5py.File("fa4_varlen.h5", "w", libver=("v110", "v110")) as f:
    f.attrs["provenance"] = json.dumps({"function": "fa4_varlen", "flash-attn-4": "4.0.0b36", "torch": torch.__version__})
    for case in range(16):
        count, heads = int(rng.integers(1, 6)), int(rng.integers(1, 3))
        tile = tuple(int(n) for n in rng.integers(2, 9, 2))
        q_lens = rng.integers(0, 30, count)
        q_lens[0] += 1
        k_lens = q_lens if case % 3 == 0 else rng.integers(0, 30, count) if case % 3 == 1 else np.full(count, 17)
        k_lens = np.maximum(k_lens, np.arange(count) == 0)
        cu_q, cu_k = (np.concatenate([[0], np.cumsum(lens)]).astype(np.int32) for lens in (q_lens, k_lens))
        states = rng.integers(0, 4, (heads, cu_q[-1] // 4 + 1, cu_k[-1] // 4 + 1))
        elements = rng.random((heads, cu_q[-1], cu_k[-1])) < 0.5

        def in_mask(head, q, k):  # of packed positions
            state = states[head, q // 4, k // 4] if case % 2 else 3
            return q - k >= -3 and q - k < 20 if state == 3 else state == 1 or (state == 2 and elements[head, q, k])

        cu_m = torch.tensor(np.concatenate([[0], np.cumsum(-(-q_lens // tile[0]))]), dtype=torch.int32)
        made = compute(
            *tile, count, heads, int(q_lens.max()), int(k_lens.max()),
            lambda s, head, q, k: in_mask(head, cu_q[s] + q, cu_k[s] + k), None, "cpu", cu_seqlens_q=torch.from_numpy(cu_q),
            cu_seqlens_k=None if case % 3 == 2 else torch.from_numpy(cu_k), cu_total_m_blocks=cu_m)
        sequence = [np.repeat(np.arange(count), lens) for lens in (q_lens, k_lens)]
        mask = np.array([[[in_mask(h, q, k) for k in range(cu_k[-1])] for q in range(cu_q[-1])] for h in range(heads)])
        group = f.create_group(f"case_{case}")
        group.attrs["params"] = json.dumps({"block": tile})
        group.create_dataset("in/mask", data=mask & (sequence[0][:, None] == sequence[1][None]), compression="gzip")
        group["in/cu_seqlens_q"], group["in/cu_seqlens_k"] = cu_q, cu_k
        for name in ("mask_block_cnt", "mask_block_idx", "full_block_cnt", "full_block_idx", "cu_total_m_blocks",
                     "cu_block_idx_offsets"):
            if getattr(made, name) is not None:
                group["out/" + name] = getattr(made, name).numpy()
