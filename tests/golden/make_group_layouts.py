# Makes group_layouts.h5: group metadata as vLLM 0.11.0 and MegaBlocks 0.10.0 have it. Needs h5py, numpy and torch, and as
# arguments vLLM's tests/kernels/moe/test_moe_align_block_size.py and MegaBlocks' megablocks/layers/dmoe.py, of their
# source packages. The tests do not run this. Of vLLM the golden torch_moe_align_block_size is run. Of MegaBlocks the methods
# of ParallelDroplessMLP are; its CUDA primitives (sort, histogram, cumulative sum, round_up, the columns of a topology) are
# torch's here, and blocks have 8 rows instead of 128.
import ast
import json
import sys
from types import SimpleNamespace
from typing import Optional

import h5py
import numpy as np
import torch


def functions_of(path, names, scope):
    for node in ast.walk(ast.parse(open(path).read())):
        if isinstance(node, ast.FunctionDef) and node.name in names:
            node.decorator_list = []
            exec(compile(ast.Module([node], []), path, "exec"), scope)
    return scope


def round_up(x, to):
    return (x + to - 1) // to * to


vllm = functions_of(sys.argv[1], {"torch_moe_align_block_size"}, {"torch": torch, "Optional": Optional, "round_up": round_up})


def topology(padded_bins, blocking, block_rows, blocks_per_row):
    experts = torch.bucketize(torch.arange(block_rows) * blocking, padded_bins, right=True)
    return (experts[:, None] * blocks_per_row + torch.arange(blocks_per_row)).flatten().short()


def sort(x, end_bit):
    return torch.sort(x, stable=True)


ops = SimpleNamespace(
    sort=sort, histogram=lambda x, n: torch.bincount(x.long(), minlength=n).int(), topology=topology,
    inclusive_cumsum=lambda x, dim: torch.cumsum(x, dim, dtype=torch.int32), round_up=round_up)
row_indices = lambda shape, data, offsets, columns: torch.repeat_interleave(
    torch.arange(len(offsets) - 1), offsets.diff().long()).short()
stk = SimpleNamespace(ops=SimpleNamespace(row_indices=row_indices), Matrix=lambda *fields: fields)
dmoe = functions_of(
    sys.argv[2], {"promote_scalar", "sparse_transpose", "topology", "indices_and_padded_bins"},
    {"torch": torch, "ops": ops, "stk": stk, "common": SimpleNamespace(dtype=lambda args: torch.bfloat16),
     "mpu": SimpleNamespace(experts_per_rank=lambda args: args)})


def megablocks(ids, experts, ffn_blocks, blocking):
    layer = SimpleNamespace(sort_end_bit=32, transpose_sort_end_bit=32, num_experts=experts, blocking=blocking,
                            ffn_hidden_size=ffn_blocks * blocking, args=experts)
    layer.sparse_transpose = lambda *fields: dmoe["sparse_transpose"](layer, *fields)
    indices, bin_ids, bins, padded_bins, tokens = dmoe["indices_and_padded_bins"](layer, ids.flatten())
    x = torch.empty(int(padded_bins[-1]), 1)
    _, _, rows, columns, offsets, columns_t, offsets_t, block_offsets_t = dmoe["topology"](layer, x, padded_bins)
    return {"tokens_per_expert": tokens, "bins": bins, "padded_bins": padded_bins, "indices": indices.int(), "bin_ids": bin_ids,
            "row_indices": rows, "column_indices": columns, "offsets": offsets, "column_indices_t": columns_t,
            "offsets_t": offsets_t, "block_offsets_t": block_offsets_t}


torch.manual_seed(37)
with h5py.File("group_layouts.h5", "w", libver=("v110", "v110")) as f:
    f.attrs["provenance"] = json.dumps({"function": "group_layouts", "vllm": "0.11.0", "megablocks": "0.10.0",
                                        "torch": torch.__version__})
    for tokens, k, experts, block, ffn_blocks in [(1, 1, 4, 8, 1), (40, 2, 6, 8, 3), (33, 4, 16, 16, 2), (7, 2, 40, 4, 2),
                                                  (64, 1, 1, 8, 4), (100, 3, 5, 32, 1)]:
        ids = torch.stack([torch.randperm(experts)[:k] for _ in range(tokens)]).int()
        sorted_ids, expert_ids, total = vllm["torch_moe_align_block_size"](ids, block, experts)
        made = {"vllm": {"sorted_token_ids": sorted_ids[:total], "expert_ids": expert_ids[:total // block],
                         "num_tokens_post_padded": total},
                "megablocks": megablocks(ids, experts, ffn_blocks, block)}
        for layout, arrays in made.items():
            group = f.create_group(f"{layout}_{tokens}x{k}_of_{experts}_by_{block}")
            group.attrs["params"] = json.dumps({"layout": layout, "experts": experts, "align": block, "ffn_blocks": ffn_blocks})
            group["in/topk_ids"] = ids.numpy()
            for name, array in arrays.items():
                group[f"out/{name}"] = array.numpy()
