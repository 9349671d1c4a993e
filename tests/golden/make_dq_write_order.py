# Makes dq_write_order.h5: orders of writes to dQ as torch 2.13's BlockMask and flash-attn-4 4.0.0b36 have them. Needs h5py,
# numpy, torch and the unpacked wheel of flash-attn-4, whose folder is the argument. The tests do not run this. Of
# FlashAttention-4 the lists are those of its backward pass: torch's without entries behind the counts.
import json
import sys

import h5py
import numpy as np
import torch
from flash_attn_4 import block_sparsity
from torch.nn.attention.flex_attention import create_block_mask

sparsity = block_sparsity(sys.argv[1])


def masks(random):
    q, k = np.ogrid[:96, :80]
    yield "causal", q >= k
    yield "window", (q - k < 40) & (k - q < 9)
    yield "random", random.random((96, 80)) < 0.01
    yield "stripes", ((q // 16 + k // 16) % 3 == 0) & (q % 5 != k % 7)


def cut(index, count):
    behind = torch.arange(index.shape[-1]) >= count[..., None]
    return torch.where(behind, 0, index).contiguous()


with h5py.File("dq_write_order.h5", "w", libver=("v110", "v110")) as f:
    f.attrs["provenance"] = json.dumps(
        {"function": "dq_write_order", "torch": torch.__version__, "flash-attn-4": "4.0.0b36"})
    for name, mask in masks(np.random.default_rng(37)):
        dense = torch.from_numpy(np.ascontiguousarray(mask))
        for descending in (False, True):
            block_mask = create_block_mask(lambda b, h, i, j: dense[i, j], None, None, *mask.shape, device="cpu", BLOCK_SIZE=16,
                                           compute_dq_write_order=True, dq_kv_order=descending)
            q_indices = cut(block_mask.q_indices, block_mask.q_num_blocks)
            full_q_indices = cut(block_mask.full_q_indices, block_mask.full_q_num_blocks)
            fa4 = sparsity.compute_dq_write_order(
                block_mask.kv_num_blocks, block_mask.kv_indices, block_mask.full_kv_num_blocks, block_mask.full_kv_indices,
                block_mask.q_num_blocks, q_indices, block_mask.full_q_num_blocks, full_q_indices, spt=descending)
            flex = (block_mask.dq_write_order, block_mask.dq_write_order_full)
            for layout, orders in (("flex", flex), ("fa4", fa4)):
                group = f.create_group(f"{layout}_{name}_{'descending' if descending else 'ascending'}")
                group.attrs["params"] = json.dumps({"layout": layout, "descending": descending})
                group.create_dataset("in/mask", data=mask, compression="gzip")
                group["out/dq_write_order"] = orders[0].numpy()
                group["out/dq_write_order_full"] = orders[1].numpy()
