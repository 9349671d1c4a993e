# Makes cp_order.h5 and cp_order_ptrr.h5: orders of context parallelism as torch's load balancers have them. Needs h5py, numpy and torch.
# The tests do not run this. README.md describes the layout. The indices of torch 2.13 for several documents are one
# document after the other; here those of each document are put rank after rank, as from 2.14.
import json

import h5py
import numpy as np
import torch
from torch.nn.attention.flex_attention import create_block_mask
from torch.distributed.tensor.experimental._context_parallel import _load_balancer as lb


def head_tail(lengths, ranks):
    balancer = lb._HeadTailLoadBalancer(sum(lengths), ranks, "cpu")
    return balancer._generate_indices()[0].numpy(), balancer._generate_indices(restore=True)[0].numpy()


def per_document(lengths, ranks):
    begin, parts = 0, []
    for length in lengths:
        one = lb._PerDocumentHeadTailLoadBalancer([[length]], ranks, "cpu")._generate_indices()[0].numpy()
        parts.append(one.reshape(ranks, -1) + begin)
        begin += length
    order = np.concatenate(parts, axis=1).reshape(-1)
    return order, torch.argsort(torch.from_numpy(order)).numpy()


# The example of TransformerEngine's thd_sequence_order_to_cp_rank_order, whose padded sequences are these.
CASES = [([8, 8, 8, 16], 4), ([32], 4), ([48], 3), ([16, 32, 64, 16], 8), ([4, 0, 12, 8], 2), ([6, 2, 4], 1)]

with h5py.File("cp_order.h5", "w", libver=("v110", "v110")) as f:
    f.attrs["provenance"] = json.dumps(
        {"function": "cp_order", "torch": torch.__version__, "numpy": np.__version__})
    for lengths, ranks in CASES:
        for name, make in [("head-tail", head_tail), ("per-document", per_document)]:
            if name == "head-tail" and sum(lengths) % (2 * ranks) != 0:
                continue
            group = f.create_group(f"{name}_{'_'.join(map(str, lengths))}_of_{ranks}")
            group.attrs["params"] = json.dumps({"order": name, "ranks": ranks})
            group["in/cu_seqlens"] = np.cumsum([0] + lengths).astype(np.int32)
            order, inverse = make([n for n in lengths if n], ranks)
            group["out/order"], group["out/inverse"] = order.astype(np.int32), inverse.astype(np.int32)


# PTRR, of a BlockMask: causal masks, documents, random ones whose rows often have equally many blocks, and one of holes.
def ptrr(mask, block, ranks):
    dense = torch.from_numpy(mask)
    block_mask = create_block_mask(lambda b, h, q, k: dense[q, k], None, None, *mask.shape, device="cpu", BLOCK_SIZE=block)
    balancer = lb._PTRRLoadBalancer(block_mask, ranks)
    return balancer._generate_indices()[0].numpy(), balancer._generate_indices(restore=True)[0].numpy()


def masks(tokens, random):
    q, k = np.ogrid[:tokens, :tokens]
    documents = np.sort(random.integers(0, 4, tokens))
    yield "causal", q >= k
    yield "documents", (q >= k) & (documents[:, None] == documents[None, :])
    yield "random", random.random((tokens, tokens)) < random.random((tokens, 1)) ** 4 / 8
    yield "stripes", (q - k) % 48 < 5


random = np.random.default_rng(37)
with h5py.File("cp_order_ptrr.h5", "w", libver=("v110", "v110")) as f:
    f.attrs["provenance"] = json.dumps(
        {"function": "cp_order", "torch": torch.__version__, "numpy": np.__version__})
    for tokens, block, ranks in [(128, 8, 4), (96, 16, 3), (160, 16, 2)]:
        for name, mask in masks(tokens, random):
            group = f.create_group(f"{name}_{tokens}_in_{block}_of_{ranks}")
            group.attrs["params"] = json.dumps({"order": "ptrr", "ranks": ranks, "block": block})
            group.create_dataset("in/mask", data=mask, compression="gzip")
            order, inverse = ptrr(np.ascontiguousarray(mask), block, ranks)
            group["out/order"], group["out/inverse"] = order.astype(np.int32), inverse.astype(np.int32)
