# Makes fa4_tiles.h5: which block sizes FlashAttention-4's kernels take, and their tiles. Needs h5py, numpy, torch and the
# unpacked wheel of flash-attn-4 4.0.0b36, whose folder is the argument. The tests do not run this. Of its interface only
# the functions of tile sizes are run, of its backward pass the statements that choose tiles, and of its checks those before
# the tensors have to be on a GPU.
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
interface = ast.parse(open(f"{folder}/flash_attn/cute/interface.py").read()).body
for node in interface:
    returns_config = isinstance(node, ast.FunctionDef) and getattr(node.returns, "id", "") == "FwdConfig"
    if getattr(node, "name", "") in (
            "FwdConfig", "_tile_size_fwd_sm90", "_fit_sm90_fwd_tile_to_block_sparsity", "BwdConfig", "_tile_size_bwd_sm90"):
        exec(compile(ast.Module([node], []), "interface.py", "exec"), scope)
    elif returns_config:
        exec(compile(ast.Module([node], []), "interface.py", "exec"), scope)
        config_of = scope[node.name]


def taken_by(check):
    try:
        check()
    except ValueError as error:
        return "CUDA" in str(error)  # all sizes have passed
    return True


def forward(arch, head_dim, head_dim_v, block, queries, varlen=False):
    keys = 4 * block[1]
    rows = -(-queries // block[0])
    tensors = sparsity.BlockSparseTensorsTorch(
        torch.zeros(1, *(() if varlen else (1,)), rows, dtype=torch.int32),
        torch.zeros(1, *((4 * rows,) if varlen else (1, rows, 4)), dtype=torch.int32), block_size=block,
        cu_total_m_blocks=torch.tensor([0, rows]) if varlen else None)
    config = config_of(
        arch=arch, head_dim=head_dim, head_dim_v=head_dim_v, max_seqlen_q=queries, max_seqlen_k=keys, num_head_kv=1,
        qhead_per_kvhead=1, pack_gqa=False, batch_size=1, causal=False, local=False, window_size_left=None,
        window_size_right=None, num_splits=1, device=None, seqlen_q=queries, block_sparse_tensors=tensors)
    tile = (config.q_stage * config.m_block_size, config.n_block_size)
    return tile, taken_by(lambda: sparsity.normalize_block_sparse_config(
        tensors, batch_size=1, num_head=1, seqlen_q=queries, seqlen_k=keys,
        block_size=(config.m_block_size, config.n_block_size), q_stage=config.q_stage,
        allow_kv_subtile=arch // 10 in (10, 11)))


def varlen(*case):
    return forward(*case, varlen=True)


# The statements that choose tiles: by architecture, whether heads of 256 have kernels of their own, and the tiles of a block.
names = ("sparse_q", "kv_subtile_factor", "use_dedicated_hd256_kernel", "q_subtile_factor")
statements = [
    node for node in [f for f in interface if getattr(f, "name", "") == "_flash_attn_bwd"][0].body
    if (isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in names)
    or (isinstance(node, ast.If) and any(
        ast.unparse(node.test).startswith(test) for test in ("arch // 10 == 12", "sparse_q is not None")))]
statements = [n for n in statements if not ast.unparse(n).startswith("sparse_q = ")]
assert len(statements) == 5, [ast.unparse(n)[:60] for n in statements]
chosen = compile(ast.Module(statements, []), "interface.py", "exec")
utils = types.SimpleNamespace(_get_disable_2cta_default=lambda: False, _get_hd256_generic_bwd=lambda: False,
                              _get_bwd_tile_n_override=lambda: None)
orders = types.SimpleNamespace(accum_tile_orders=lambda *_: (None, None))


def backward(arch, head_dim, head_dim_v, block, queries):
    keys = 4 * block[1]
    columns = -(-keys // block[1])
    tensors = sparsity.BlockSparseTensorsTorch(
        torch.zeros(1, 1, columns, dtype=torch.int32),
        torch.zeros(1, 1, columns, -(-queries // block[0]), dtype=torch.int32), block_size=block)
    found = dict(scope, arch=arch, head_dim=head_dim, head_dim_v=head_dim_v, causal=False, local=False, utils=utils,
                 FlashAttentionBackwardSm100=orders, block_sparse_tensors=tensors, sparse_q=block[0],
                 score_mod=None, score_mod_bwd=None, mask_mod=None, deterministic=False)

    def check():
        exec(chosen, found)
        if found["use_dedicated_hd256_kernel"]:
            raise ValueError("SM100 backward with head_dim=256 does not support block sparsity")
        sparsity.normalize_block_sparse_config_bwd(
            tensors, batch_size=1, num_head=1, seqlen_q=queries, seqlen_k=keys,
            block_size=(found["m_block_size"], found["n_block_size"]), q_subtile_factor=found["q_subtile_factor"],
            kv_subtile_factor=found["kv_subtile_factor"])
    runs = taken_by(check)
    return (found["m_block_size"], found["n_block_size"]), runs


with h5py.File("fa4_tiles.h5", "w", libver=("v110", "v110")) as f:
    f.attrs["provenance"] = json.dumps({"function": "fa4_tiles", "flash-attn-4": "4.0.0b36", "torch": torch.__version__})
    for run in (forward, backward, varlen):
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
        group = f.create_group(run.__name__)
        group.attrs["params"] = json.dumps({})
        group.create_dataset("in/cases", data=np.array(cases, np.int32), compression="gzip")  # arch, head size of keys and of values, block, queries
        group.create_dataset("out/tiles", data=np.array(tiles, np.int32), compression="gzip")
        group.create_dataset("out/runs", data=np.array(taken), compression="gzip")
