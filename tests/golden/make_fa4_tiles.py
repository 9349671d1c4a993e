# Makes fa4_tiles.h5: which block sizes FlashAttention-4's forward takes, and its tiles. Needs h5py, numpy, torch and the
# unpacked wheel of flash-attn-4 4.0.0b36, whose folder is the argument. The tests do not run this. Of its interface only
# the functions of tile sizes are run, and of its checks those before the tensors have to be on a GPU.
import ast
import json
import sys
import types
from dataclasses import dataclass
from typing import Optional, Tuple

import h5py
import numpy as np
import torch
from flash_attn_4 import block_sparsity

folder = sys.argv[1]
sparsity = block_sparsity(folder)

scope = dict(vars(sparsity), dataclass=dataclass, Optional=Optional, Tuple=Tuple, torch=torch)
scope["__name__"] = "interface"
sys.modules["interface"] = types.ModuleType("interface")
for node in ast.parse(open(f"{folder}/flash_attn/cute/interface.py").read()).body:
    returns_config = isinstance(node, ast.FunctionDef) and getattr(node.returns, "id", "") == "FwdConfig"
    if getattr(node, "name", "") in ("FwdConfig", "_tile_size_fwd_sm90", "_fit_sm90_fwd_tile_to_block_sparsity"):
        exec(compile(ast.Module([node], []), "interface.py", "exec"), scope)
    elif returns_config:
        exec(compile(ast.Module([node], []), "interface.py", "exec"), scope)
        config_of = scope[node.name]


def run(arch, head_dim, head_dim_v, block, queries):
    keys = 4 * block[1]
    tensors = sparsity.BlockSparseTensorsTorch(
        torch.zeros(1, 1, -(-queries // block[0]), dtype=torch.int32),
        torch.zeros(1, 1, -(-queries // block[0]), 4, dtype=torch.int32), block_size=block)
    config = config_of(
        arch=arch, head_dim=head_dim, head_dim_v=head_dim_v, max_seqlen_q=queries, max_seqlen_k=keys, num_head_kv=1,
        qhead_per_kvhead=1, pack_gqa=False, batch_size=1, causal=False, local=False, window_size_left=None,
        window_size_right=None, num_splits=1, device=None, seqlen_q=queries, block_sparse_tensors=tensors)
    tile = (config.q_stage * config.m_block_size, config.n_block_size)
    try:
        sparsity.normalize_block_sparse_config(
            tensors, batch_size=1, num_head=1, seqlen_q=queries, seqlen_k=keys,
            block_size=(config.m_block_size, config.n_block_size), q_stage=config.q_stage,
            allow_kv_subtile=arch // 10 in (10, 11))
    except ValueError as error:
        return tile, "CUDA" in str(error)  # all sizes have passed
    return tile, True


cases, tiles, taken = [], [], []
for arch in (90, 100):
    for dims in ((32, 32), (64, 64), (80, 80), (96, 96), (128, 128), (192, 128), (192, 192), (256, 256)):
        for q in (32, 64, 80, 128, 192, 256, 384, 512):
            for kv in (16, 48, 64, 80, 96, 100, 112, 128, 144, 192, 256):
                for queries in (100, 4096):
                    tile, runs = run(arch, *dims, (q, kv), queries)
                    cases.append((arch, *dims, q, kv, queries))
                    tiles.append(tile)
                    taken.append(runs)

with h5py.File("fa4_tiles.h5", "w", libver=("v110", "v110")) as f:
    f.attrs["provenance"] = json.dumps({"function": "fa4_tiles", "flash-attn-4": "4.0.0b36", "torch": torch.__version__})
    group = f.create_group("forward")
    group.attrs["params"] = json.dumps({})
    group.create_dataset("in/cases", data=np.array(cases, np.int32), compression="gzip")  # arch, head size of keys and of values, block, queries
    group.create_dataset("out/tiles", data=np.array(tiles, np.int32), compression="gzip")
    group.create_dataset("out/runs", data=np.array(taken), compression="gzip")
