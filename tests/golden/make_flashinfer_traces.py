# Makes flashinfer_traces.h5: flashinfer's trace definitions of attention, each with the result of its `reference`.
# Needs h5py, numpy, torch on a CPU, and flashinfer-python unpacked beside (PYTHONPATH); its kernels are not loaded. The
# tests do not run this. README.md describes the layout.
#
# Arguments are those of a definition's own `init`, at small sizes; a definition without one gets arguments drawn here
# ("own": true in params). Where a reference honours tables and lengths, "shuffled" cases have pages out of order and
# sequences that end within a page. Latent queries and caches, given as two arrays, are put side by side; 8-bit floats
# are stored as bfloat16. The attribute `definitions` counts all: compared here, and by reason those that are not.
import collections
import importlib
import importlib.metadata
import json
import os
import pkgutil
import sys
import types

import h5py
import numpy as np
import torch

root = next(path for path in (os.path.join(p, "flashinfer") for p in sys.path) if os.path.isdir(path))
package = types.ModuleType("flashinfer")  # without its __init__, which loads kernels
package.__path__ = [root]
sys.modules["flashinfer"] = package
from flashinfer.trace import templates
from flashinfer.trace.template import TraceTemplate

# Definitions of attention that are not compared.
WRONG = {
    "block_sparse_attention_run": "its reference attends to all keys: it has no argument for the block mask",
    "variable_block_sparse_attention_run": "its reference attends to all keys: it has no argument for the block mask",
    "trtllm_ragged_attention_deepseek": "its own init (window_left -1, no window) masks every key and gives NaN; init lacks "
    "enable_pdl, and out has the size of a query where values are smaller",
}
# Compared, within limits: outside of these the reference contradicts its description.
LIMITS = {
    "gqa_paged_decode": "all slots of the last page are tokens: there is no last_page_len",
    "gqa_paged_prefill": "as gqa_paged_decode",
    "mla_paged_decode": "as gqa_paged_decode",
    "mla_paged_prefill": "as gqa_paged_decode",
    "single_prefill_with_kv_cache": "causal from the top left where there are more queries than keys; custom_mask is ignored",
    "trtllm_batch_context": "causal from the top left where there are more queries than keys",
    "trtllm_fmha_v2_prefill": "as trtllm_batch_context; init gives one array as queries, keys and values",
    "cudnn_batch_prefill": "as trtllm_batch_context",
    "trtllm_batch_decode": "several queries of a request see each other's keys (the block-sparse one is causal); "
    "kv_cache_dim 1 mixes the heads of neighbouring tokens",
    "xqa_batch_decode": "as trtllm_batch_decode; a (k, v) tuple is NHD, but read as HND without kv_layout",
    "trtllm_batch_decode_mla_dense": "several queries of a request see each other's keys",
    "trtllm_batch_decode_mla_ragged": "as trtllm_batch_decode_mla_dense",
    "trtllm_batch_decode_mla_sparse": "one query of a request; init lists pages many times where fewer exist than are "
    "chosen, as by default, and the reference counts each",
    "xqa_batch_decode_mla": "as trtllm_batch_decode_mla_dense",
    "cute_dsl_batch_mla_run": "as trtllm_batch_decode_mla_dense",
    "cute_dsl_batch_prefill_run": "one sequence, and as many key heads as query heads",
    "xqa": "one beam",
    "xqa_mla": "one beam",
    "batch_attention_run": "one request without a mask: it has no argument for lengths and indices",
    "pod_with_paged_kv_cache_run": "one decoding request",
    "batch_pod_with_paged_kv_cache_run": "one request of each kind; its prefill has no mask",
    "multi_level_cascade_run": "one request, one level",
    "merge_state": "two parts without keys give NaN; out is float32 instead of the type of v_a",
    "merge_state_in_place": "as merge_state, but of the type of v",
    "merge_states": "only parts without keys give NaN",
}

definitions = {}  # name: (module, definition)
for module in sorted(m.name for m in pkgutil.iter_modules(templates.__path__)):
    for name, value in vars(importlib.import_module(f"flashinfer.trace.templates.{module}")).items():
        if isinstance(value, TraceTemplate) and all(value is not d for _, d in definitions.values()):
            definitions[name.removesuffix("_trace")] = (module, value)

file = h5py.File("flashinfer_traces.h5", "w", libver=("v110", "v110"))
compared = set()
EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)


def put(group, name, tensor):
    tensor = torch.as_tensor(tensor)
    if tensor.dtype in EIGHT_BITS:
        tensor = tensor.to(torch.bfloat16)
    if tensor.dtype == torch.bfloat16:
        bits = tensor.contiguous().view(torch.int16).numpy().view(np.uint16)
        group.create_dataset(name, data=bits).attrs["dtype"] = "bfloat16"
    else:
        group.create_dataset(name, data=tensor.numpy())


def case(name, inputs, out, lse=None, suffix="", **params):
    compared.add(name)
    group = file.create_group(name + suffix)
    rounding = {torch.float32: (0, 0), torch.bfloat16: (2**-8, 0), torch.float16: (2**-11, 2**-25)}
    relative, absolute = rounding.get(out.dtype, (2**-4, 2**-10))
    params |= {"definition": name, "rounding": relative, "least": absolute}
    group.attrs["params"] = json.dumps(params)
    for key, tensor in inputs.items():
        put(group, "in/" + key, tensor)
    put(group, "out/out", out)
    if lse is not None:
        put(group, "out/lse", lse)


def arguments(name, **sizes):
    """Of init; those of plan() and run() together."""
    made = definitions[name][1].init(device="cpu", **sizes)
    return made["plan"] | made["run"] if "run" in made else made


def run(name, **a):
    return definitions[name][1].reference(**a)


def normal(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape).to(dtype)


def cu_of(lens):
    return torch.tensor(np.concatenate([[0], np.cumsum(lens)]), dtype=torch.int32)


GQA = {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim": 16}
PAGES = {"page_size": 4, "num_pages_per_seq": 3}
LATENT = {"num_qo_heads": 4, "head_dim_ckv": 32, "head_dim_kpe": 8}


def indptr_cases():
    def shuffled(a, prefix):
        indices = a[prefix + "indices"]
        a[prefix + "indices"] = indices[torch.randperm(len(indices))]

    for suffix in ["", "_shuffled"]:
        for name, sizes, prefix in [("gqa_paged_decode", {"batch_size": 3}, ""),
                                    ("gqa_paged_prefill", {"total_q": 11, "batch_size": 3}, "paged_kv_")]:
            a = arguments(name, **sizes, **GQA, **PAGES)
            if suffix:
                shuffled(a, prefix)
            k, v = a["paged_kv_cache"]
            tables = {"kv_indptr": a[prefix + "indptr"], "kv_indices": a[prefix + "indices"]}
            more = {"qo_indptr": a["qo_indptr"]} if "qo_indptr" in a else {}
            out, lse = run(name, q=a["q"], k_cache=k, v_cache=v, sm_scale=0.25, **tables, **more)
            case(name, {"q": a["q"], "k_cache": k, "v_cache": v, "last_page_len": a[prefix + "last_page_len"]} | tables | more,
                 out, lse, suffix, scale=0.25, causal=bool(more))
        for name, sizes in [("mla_paged_decode", {"batch_size": 3}), ("mla_paged_prefill", {"total_q": 11, "batch_size": 3})]:
            a = arguments(name, **sizes, **LATENT, **PAGES)
            if suffix:
                shuffled(a, "kv_")
            parts = {key: a[key] for key in ["q_nope", "q_pe", "ckv_cache", "kpe_cache"]}
            tables = {"kv_indptr": a["kv_indptr"], "kv_indices": a["kv_indices"]}
            more = {"qo_indptr": a["qo_indptr"]} if "prefill" in name else {}
            out, lse = run(name, sm_scale=a["sm_scale"], **parts, **tables, **more)
            latent = {"q": torch.cat([a["q_nope"], a["q_pe"]], -1),
                      "k_cache": torch.cat([a["ckv_cache"], a["kpe_cache"]], -1).unsqueeze(2)}
            case(name, latent | {"last_page_len": torch.full((3,), 4)} | tables | more, out, lse, suffix,
                 scale=a["sm_scale"], causal=bool(more), v_columns=32)


def contiguous_cases():
    a = arguments("gqa_ragged_prefill", total_q=9, total_kv=23, batch_size=3, **GQA)
    tensors = {key: a[key] for key in ["q", "k", "v", "qo_indptr", "kv_indptr"]}
    case("gqa_ragged_prefill", tensors, *run("gqa_ragged_prefill", sm_scale=0.25, **tensors), scale=0.25, causal=True)
    a = arguments("single_decode_with_kv_cache", kv_len=19, **GQA)
    case("single_decode_with_kv_cache", a | {"q": a["q"][None]}, run("single_decode_with_kv_cache", **a)[None], causal=False)
    a = arguments("single_prefill_with_kv_cache", qo_len=7, kv_len=19, **GQA)
    case("single_prefill_with_kv_cache", {key: a[key] for key in "qkv"}, run("single_prefill_with_kv_cache", **a), causal=True)
    a = arguments("trtllm_fmha_v2_prefill", num_tokens=11, num_heads=4, head_dim=16)
    case("trtllm_fmha_v2_prefill", {"q": a["qkv"], "k": a["qkv"], "v": a["qkv"], "qo_indptr": a["cum_seq_lens_q"],
                                    "kv_indptr": a["cum_seq_lens_kv"]},
         run("trtllm_fmha_v2_prefill", **a), scale=a["bmm1_scale"], causal=True)
    a = {"q": normal(5, 4, 16), "k": normal(9, 4, 16), "v": normal(9, 4, 16)}
    case("cute_dsl_batch_prefill_run", a, run("cute_dsl_batch_prefill_run", **a), causal=True, own=True)

    for name in ["fmha_v2_prefill_deepseek", "fmha_v2_prefill_sm120"]:
        a = arguments(name, batch_size=2, seq_len=5, num_heads=3, head_dim=16)
        out = run(name, **a)
        factor = a.get("scale_bmm2") or 1
        case(name, {"q": a["query"].flatten(0, 1), "k": a["key"].flatten(0, 1), "v": a["value"].flatten(0, 1).float() * factor,
                    "qo_indptr": cu_of([5, 5]), "kv_indptr": cu_of([5, 5])}, out.flatten(0, 1),
             scale=a.get("scale_bmm1") or a["scale_softmax"], causal=True)

    whole = lambda cache: {"k": cache[0].flatten(0, 1), "v": cache[1].flatten(0, 1)}
    small = GQA | {"num_pages": 3, "page_size": 4}
    a = arguments("batch_attention_run", num_qo_tokens=5, **small)
    case("batch_attention_run", {"q": a["q"]} | whole(a["kv_cache"]),
         *run("batch_attention_run", q=a["q"], kv_cache=a["kv_cache"]), causal=False)
    a = arguments("pod_with_paged_kv_cache_run", prefill_len=6, **small)
    prefill, decode = run("pod_with_paged_kv_cache_run", **{k: a[k] for k in ["q_p", "k_p", "v_p", "q_d", "paged_kv_cache_d"]})
    case("pod_with_paged_kv_cache_run", {"q": a["q_p"], "k": a["k_p"], "v": a["v_p"]}, prefill, suffix="_prefill", causal=True)
    case("pod_with_paged_kv_cache_run", {"q": a["q_d"]} | whole(a["paged_kv_cache_d"]), decode, suffix="_decode", causal=False)
    name = "batch_pod_with_paged_kv_cache_run"
    a = arguments(name, prefill_len=6, **small)
    caches = {key: a[key] for key in ["q_p", "paged_kv_cache_p", "q_d", "paged_kv_cache_d"]}
    for part, out in zip("pd", run(name, **caches)):
        case(name, {"q": a["q_" + part]} | whole(a["paged_kv_cache_" + part]), out, suffix="_" + part, causal=False)
    a = arguments("multi_level_cascade_run", **small)
    kv = a["paged_kv_cache"]
    case("multi_level_cascade_run", {"q": a["q"]} | whole((kv[:, 0], kv[:, 1])),
         run("multi_level_cascade_run", q=a["q"], paged_kv_cache=kv), causal=False)


def table_cases():
    def shuffled(tables, lens):
        order = torch.randperm(int(tables.max()) + 1).to(tables.dtype)
        shorter = torch.arange(1, len(lens) + 1).reshape(-1, *[1] * (lens.dim() - 1))
        return order[tables.long()], (lens.long() - shorter).to(lens.dtype)

    for suffix in ["", "_shuffled"]:
        change = shuffled if suffix else lambda tables, lens: (tables, lens)
        paged = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "page_size": 4, "batch_size": 3, "max_pages_per_seq": 3}
        for name, tokens in [("trtllm_batch_decode", 3), ("trtllm_batch_context", 6)]:
            a = arguments(name, num_tokens=tokens, **paged)
            a["block_tables"], a["seq_lens"] = change(a["block_tables"], a["seq_lens"])
            inputs = {"q": a["query"], "k_cache": a["kv_cache"][:, 0], "v_cache": a["kv_cache"][:, 1],
                      "block_table": a["block_tables"], "seq_lens": a["seq_lens"]}
            is_causal = name == "trtllm_batch_context"
            if is_causal:
                inputs["qo_indptr"] = a["cum_seq_lens_q"]
                del a["kv_layout"]
            case(name, inputs, run(name, **a), suffix=suffix, scale=a["bmm1_scale"], causal=is_causal, cache="hnd")
            if is_causal:
                continue
            case("xqa_batch_decode", inputs, run("xqa_batch_decode", **a), suffix=suffix, scale=a["bmm1_scale"],
                 causal=False, cache="hnd", own=True)
        name = "trtllm_batch_decode_block_sparse"
        a = arguments(name, num_tokens=6, **paged)
        if suffix:
            a["block_tables"], a["seq_lens"] = shuffled(a["block_tables"], a["seq_lens"])
        out = run(name, **a)
        for g in range(2):  # a table of each key head
            case(name, {"q": a["query"][:, 2 * g:2 * g + 2], "k_cache": a["kv_cache"][:, 0, g:g + 1],
                        "v_cache": a["kv_cache"][:, 1, g:g + 1], "block_table": a["block_tables"][g],
                        "seq_lens": a["seq_lens"][g], "qo_indptr": cu_of([2, 2, 2])},
                 out[:, 2 * g:2 * g + 2], suffix=f"{suffix}_head{g}", scale=a["bmm1_scale"], causal=True, cache="hnd")

        latent = {"num_heads": 4, "head_dim_qk": 40, "kv_lora_rank": 32, "qk_rope_head_dim": 8, "page_size": 4,
                  "batch_size": 3, "max_pages_per_seq": 3}
        for name, sizes in [("trtllm_batch_decode_mla_dense", {"q_len_per_request": 1}),
                            ("trtllm_batch_decode_mla_ragged", {"num_tokens": 3, "batch_size_plus_1": 4})]:
            a = arguments(name, **sizes, **latent)
            a["block_tables"], a["seq_lens"] = change(a["block_tables"], a["seq_lens"])
            inputs = {"q": a["query"].reshape(3, 4, 40), "k_cache": a["kv_cache"].transpose(1, 2),
                      "block_table": a["block_tables"], "seq_lens": a["seq_lens"]}
            case(name, inputs, run(name, **a).reshape(3, 4, 32), suffix=suffix, scale=a["bmm1_scale"], causal=False, v_columns=32)
            if "dense" in name:
                a["query"] = a["query"].to(torch.bfloat16)
                case("xqa_batch_decode_mla", inputs, run("xqa_batch_decode_mla", **a).reshape(3, 4, 32), suffix=suffix,
                     scale=a["bmm1_scale"], causal=False, v_columns=32, own=True)
        q, cache = normal(3, 1, 4, 80), normal(9, 4, 80)
        tables, lens = change(torch.arange(9, dtype=torch.int32).reshape(3, 3), torch.full((3,), 12, dtype=torch.int32))
        out = run("cute_dsl_batch_mla_run", q=q, kv_cache=cache, block_tables=tables, seq_lens=lens, max_seq_len=12,
                  softmax_scale=0.125)
        case("cute_dsl_batch_mla_run", {"q": q[:, 0], "k_cache": cache.unsqueeze(2), "block_table": tables, "seq_lens": lens},
             out[:, 0], suffix=suffix, scale=0.125, causal=False, v_columns=16, own=True)

        for name, sizes in [("xqa", {"num_kv_heads": 2, "head_dim": 16}), ("xqa_mla", {"head_dim_ckv": 32, "head_dim_qk": 40})]:
            a = arguments(name, batch_size=3, max_pages_per_seq=3, num_heads_qo=4, page_size=4, **sizes)
            a["page_table"], a["seq_lens"] = change(a["page_table"], a["seq_lens"])
            inputs = {"q": a["q"][:, 0], "k_cache": a["k_cache"], "block_table": a["page_table"],
                      "v_cache": a["v_cache"][..., :32], "seq_lens": a["seq_lens"][:, 0].to(torch.int64)}
            case(name, inputs, run(name, **a)[:, 0], suffix=suffix, scale=1 if name == "xqa_mla" else 0.25, causal=False)

    k, v = normal(9, 2, 4, 16), normal(9, 2, 4, 16)
    tables = torch.randperm(9).to(torch.int32).reshape(3, 3)
    lens = torch.tensor([12, 9, 7], dtype=torch.int32)
    pages = {"k_cache": k, "v_cache": v, "block_table": tables, "seq_lens": lens}
    for q_len, window, has_sinks in [(1, None, False), (2, None, True), (2, 3, True)]:
        q, sinks = normal(3 * q_len, 4, 16), torch.randn(4) * 2 if has_sinks else None
        out = run("cudnn_batch_decode", q=q, k_cache=k, v_cache=v, scale=0.25, workspace_buffer=None, max_sequence_kv=12,
                  block_tables=tables, actual_seq_lens_kv=lens, q_len_per_req=q_len, window_left=window, sinks=sinks)
        case("cudnn_batch_decode", {"q": q, "qo_indptr": cu_of([q_len] * 3)} | pages | ({"sinks": sinks} if has_sinks else {}),
             out, suffix=f"_{q_len}_{window}", scale=0.25, causal=True, window=window, cache="hnd", own=True)
    q_lens = torch.tensor([4, 1, 3], dtype=torch.int32)
    q = normal(8, 4, 16)
    for is_causal in [False, True]:
        out, lse = run("cudnn_batch_prefill", q=q, k_cache=k, v_cache=v, scale=0.25, workspace_buffer=None,
                       max_token_per_sequence=4, max_sequence_kv=12, actual_seq_lens_q=q_lens, actual_seq_lens_kv=lens,
                       causal=is_causal, return_lse=True, block_tables=tables)
        case("cudnn_batch_prefill", {"q": q, "qo_indptr": cu_of(q_lens)} | pages, out, lse, suffix="_causal" * is_causal,
             scale=0.25, causal=is_causal, cache="hnd", own=True)


def sparse_cases():
    a = {"q_nope": normal(6, 4, 32), "q_pe": normal(6, 4, 8), "ckv_cache": normal(5, 4, 32), "kpe_cache": normal(5, 4, 8)}
    chosen = torch.stack([torch.randperm(20)[:7].sort()[0] for _ in range(6)]).to(torch.int32)
    chosen[2, 4:], chosen[4] = -1, -1
    out, lse = run("dsa_paged", sparse_indices=chosen, sm_scale=0.2, **a)
    flat = torch.cat([a["ckv_cache"], a["kpe_cache"]], -1).reshape(20, 1, 40)
    case("dsa_paged", {"q": torch.cat([a["q_nope"], a["q_pe"]], -1), "k": flat, "v": flat[..., :32], "keys": chosen},
         out, lse, scale=0.2, causal=False, own=True)
    name = "trtllm_batch_decode_mla_sparse"
    a = arguments(name, batch_size=3, q_len_per_request=1, num_heads=4, head_dim_qk=40, kv_lora_rank=32, qk_rope_head_dim=8,
                  num_pages=5, page_size=4, sparse_mla_top_k=3)
    for suffix in ["", "_shuffled"]:
        if suffix:
            a["block_tables"] = torch.stack([torch.randperm(5)[:3] for _ in range(3)]).to(torch.int32).unsqueeze(1)
        case(name, {"q": a["query"][:, 0], "k_cache": a["kv_cache"].transpose(1, 2), "block_table": a["block_tables"][:, 0],
                    "seq_lens": a["seq_lens"]},
             run(name, **a)[:, 0], suffix=suffix, scale=a["bmm1_scale"], causal=False, v_columns=32)
    for name, sizes in [("msa_sparse_attention", {"total_q": 4, "topk": 2}),
                        ("msa_sparse_decode_attention", {"total_q": 2, "topk": 2})]:
        a = arguments(name, total_k=600, num_qo_heads=4, num_kv_heads=2, head_dim=4, **sizes)
        for suffix in ["", "_shuffled"]:
            if suffix:  # other blocks for each head and query
                a["q2k_indices"][1, :, 0], a["q2k_indices"][0, -1, 1] = 2, -1
            cu_q = a.get("cu_seqlens_q", cu_of([1] * (len(a["q"]))))
            case(name, {"q": a["q"], "k": a["k"], "v": a["v"], "blocks": a["q2k_indices"], "qo_indptr": cu_q,
                        "kv_indptr": a["cu_seqlens_k"]}, run(name, **a), suffix=suffix, causal=bool(a["causal"]))


def merge_cases():
    small = {"seq_len": 5, "num_heads": 3, "head_dim": 8}
    a = arguments("merge_state", **small)
    case("merge_state", {"out0": a["v_a"], "lse0": a["s_a"], "out1": a["v_b"], "lse1": a["s_b"]}, *run("merge_state", **a))
    a["s_a"][1], a["s_b"][2, 1] = -torch.inf, -torch.inf
    case("merge_state", {"out0": a["v_a"], "lse0": a["s_a"], "out1": a["v_b"], "lse1": a["s_b"]}, *run("merge_state", **a),
         suffix="_empty")
    a = arguments("merge_state_in_place", **small)
    case("merge_state_in_place", {"out0": a["v"], "lse0": a["s"], "out1": a["v_other"], "lse1": a["s_other"]},
         *run("merge_state_in_place", **a))
    a = arguments("merge_states", num_states=4, **small)
    case("merge_states", {"out": a["v"], "lse": a["s"]}, *run("merge_states", **a))


def check_wrong():
    name = "trtllm_ragged_attention_deepseek"
    assert run(name, enable_pdl=False, **arguments(name, num_q_tokens=8, num_kv_tokens=16, num_heads=2, head_dim=8)).isnan().all()
    try:
        run(name, enable_pdl=False, **arguments(name, num_q_tokens=8, num_kv_tokens=16, num_heads=2))
        raise AssertionError
    except RuntimeError:  # shapes
        pass


torch.manual_seed(38)
check_wrong()
for cases in [indptr_cases, contiguous_cases, table_cases, sparse_cases, merge_cases]:
    cases()

KINDS = {"gqa_paged", "gqa_paged_plan", "gqa_ragged", "mla_paged", "dsa_paged", "sparse_mla_paged_sm120", "single_decode",
         "single_prefill", "trtllm_paged", "trtllm_paged_dcp_spec", "block_sparse", "block_sparse_plan", "cudnn_paged", "pod",
         "cascade_attention", "cascade_merge", "xqa", "msa_sparse", "attention"}
MOVES = {"concat_mla_k", "concat_mla_kv_quant_fp8"}  # copies
listed = {"compared": sorted(compared), "limits": LIMITS, "wrong": WRONG, "without_reference": [], "of_other_kinds": {}}
others = collections.Counter()
for name, (module, definition) in definitions.items():
    if definition.op_type not in KINDS or name in MOVES:
        others[definition.op_type] += 1
    elif name not in compared and name not in WRONG:
        assert definition.reference is None, name
        listed["without_reference"].append(name)
listed["of_other_kinds"] = dict(others)
listed["all"] = len(definitions)
assert compared | set(WRONG) <= set(definitions) and not compared & set(WRONG)
file.attrs["definitions"] = json.dumps(listed)
version = next(d.version for d in importlib.metadata.distributions(path=[os.path.dirname(root)]) if d.name == "flashinfer-python")
file.attrs["provenance"] = json.dumps({"function": "attention, merge_states", "flashinfer": version, "torch": torch.__version__,
                                       "numpy": np.__version__, "h5py": h5py.__version__})
print(f"{len(definitions)} definitions, {len(compared)} compared in {len(file)} cases, {len(WRONG)} wrong, "
      f"{len(listed['without_reference'])} of attention without a reference, {sum(others.values())} of other kinds")
