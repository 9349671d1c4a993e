# Makes attention_conventions.h5: attention as JAX's splash attention, its ragged paged attention and torch have it.
# Needs h5py, jax, ml_dtypes, numpy and torch, on a CPU. The tests do not run this. README.md describes the layout.
import json

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ref_ragged_paged_attention
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax_arrays import put
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

rng = np.random.default_rng(20)


def case(file, name, params, inputs, outputs):
    group = file.create_group(name)
    group.attrs["params"] = json.dumps(params)
    for key, array in inputs.items():
        put(group, "in/" + key, array)
    for key, array in outputs.items():
        put(group, "out/" + key, array)


def normal(shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def splash_cases(file):
    heads, queries, keys, size = 2, 12, 17, 8
    for dtype in [np.float32, jnp.bfloat16, np.float16]:
        for offset in [0, -3]:  # the first three queries have no key
            for cap in [None, 5.0]:
                for has_sinks in [False, True]:
                    if dtype != np.float32 and (cap is None or offset == 0):
                        continue
                    q, dout = normal((heads, queries, size), dtype), normal((heads, queries, size))
                    k, v = normal((heads, keys, size), dtype), normal((heads, keys, size), dtype)
                    sinks = normal(heads) * 2
                    mask = np.arange(queries)[:, None] + offset >= np.arange(keys)[None, :]
                    function = splash.make_attention_reference(np.stack([mask] * heads), is_mqa=False)
                    out, residuals = function(*map(jnp.asarray, (q, k, v)), None, jnp.asarray(sinks) if has_sinks else None,
                                              attn_logits_soft_cap=cap, save_residuals=True)
                    outputs = {"out": out, "lse": residuals[0]}
                    if dtype == np.float32 and (offset == 0 or has_sinks):
                        arguments = (q, k, v, sinks) if has_sinks else (q, k, v)
                        run = lambda q, k, v, s=None: function(q, k, v, None, s, attn_logits_soft_cap=cap)
                        gradients = jax.vjp(run, *map(jnp.asarray, arguments))[1](jnp.asarray(dout))
                        outputs |= dict(zip(["dq", "dk", "dv", "dsinks"], gradients))
                    name = f"splash_{np.dtype(dtype).name}_{-offset}_{'cap' if cap else 'plain'}"
                    case(file, name + ("_sinks" if has_sinks else ""),
                         {"as": "jax-splash", "softcap": cap, "offset": offset},
                         {"q": q, "k": k, "v": v, "dout": dout} | ({"sinks": sinks} if has_sinks else {}), outputs)


def paged_cases(file):
    page, pages, heads, kv_heads, size = 4, 12, 4, 2, 8
    lens, q_lens = np.array([9, 4, 15, 1], np.int32), np.array([3, 1, 15, 1], np.int32)
    used = [-(-n // page) for n in lens]
    order = rng.permutation(pages)
    table = np.full((len(lens), 5), pages - 1, np.int32)
    poisoned = np.full((len(lens), 5), 2**31 - 1, np.int32)
    kv = np.full((pages, page, 2 * kv_heads, size), np.nan, np.float32)
    for n, count in enumerate(used):
        table[n, :count] = poisoned[n, :count] = order[sum(used[:n]):sum(used[:n]) + count]
        for t in range(lens[n]):
            kv[table[n, t // page], t % page] = normal((2 * kv_heads, size))
    q = normal((int(q_lens.sum()), heads, size))
    cu = np.cumsum(np.concatenate([[0], q_lens])).astype(np.int32)
    for window, cap in [(None, None), (5, None), (None, 3.0), (5, 3.0)]:
        out = ref_ragged_paged_attention(
            jnp.asarray(q), jnp.asarray(np.nan_to_num(kv)), jnp.asarray(lens), jnp.asarray(table), jnp.asarray(cu),
            jnp.asarray([len(lens)]), sm_scale=0.25, sliding_window=window, soft_cap=cap)
        case(file, f"paged_{window or 'causal'}_{'cap' if cap else 'plain'}",
             {"window": window, "softcap": cap, "scale": 0.25},
             {"q": q, "kv": kv, "block_table": poisoned, "seq_lens": lens, "cu_seqlens": cu}, {"out": out})


def torch_cases(file):
    heads, queries, keys, size = 4, 7, 11, 8
    q, k, v = (torch.from_numpy(normal((2, h, n, size))) for h, n in [(heads, queries), (2, keys), (2, keys)])
    slopes = torch.tensor([0.25, 0.0625, 0.5, 0.125])
    blocks = create_block_mask(lambda b, h, i, j: i - 2 >= j, 2, heads, queries, keys, device="cpu")
    for form in ["absolute", "signed"]:
        for cap, order in [(None, None), (2.0, "before-bias"), (2.0, "after-bias")]:

            def score(s, b, h, i, j):
                distance = -abs(i + keys - queries - j) if form == "absolute" else j - i
                if cap is None:
                    return s + slopes[h] * distance
                if order == "before-bias":
                    return cap * torch.tanh(s / cap) + slopes[h] * distance
                return cap * torch.tanh((s + slopes[h] * distance) / cap)

            out, lse = flex_attention(q, k, v, score_mod=score, block_mask=blocks, enable_gqa=True, return_lse=True)
            case(file, f"flex_{form}_{order or 'plain'}",
                 {"as": "torch", "softcap": cap, "softcap_order": order, "alibi_form": form, "offset": -2},
                 {"q": q, "k": k, "v": v, "slopes": slopes}, {"out": out, "lse": lse})
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    mask = torch.arange(queries)[:, None] - 2 >= torch.arange(keys)[None]
    bias = torch.zeros(queries, keys).masked_fill(~mask, -torch.inf)
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=bias)
    case(file, "sdpa_cpu", {"as": "torch-sdpa", "softcap": None, "offset": -2}, {"q": q, "k": k, "v": v},
         {"out": out, "lse": lse})


with h5py.File("attention_conventions.h5", "w", libver="latest") as f:
    f.attrs["provenance"] = json.dumps({
        "function": "attention", "jax": jax.__version__, "torch": torch.__version__, "numpy": np.__version__})
    splash_cases(f)
    paged_cases(f)
    torch_cases(f)
