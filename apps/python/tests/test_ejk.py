"""The package on a kernel's results: right and wrong ones, every array library that is installed, and what is left behind."""

import glob
import importlib
import os
import signal
import subprocess
import sys
import time

import pytest

import ejk


@pytest.fixture(autouse=True)
def nothing_left_behind():
    before = set(glob.glob("/dev/shm/ejk-*"))
    yield
    assert set(glob.glob("/dev/shm/ejk-*")) <= before


def attention(torch, **options):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 128, 4, 64, dtype=torch.bfloat16) for _ in range(3))
    sdpa = torch.nn.functional.scaled_dot_product_attention
    return sdpa(*(x.transpose(1, 2) for x in (q, k, v)), **options).transpose(1, 2), q, k, v


def test_a_right_kernel_passes():
    torch = pytest.importorskip("torch")
    report = ejk.assert_attention(*attention(torch, is_causal=True), mask="causal").report
    assert report["command"] == "attention"


@pytest.mark.parametrize("options, why", [
    ({}, "the mask is ignored"),
    ({"is_causal": True, "scale": 1 / 64}, "the scale is applied twice"),
])
def test_a_wrong_kernel_fails_with_the_cause(options, why):
    torch = pytest.importorskip("torch")
    with pytest.raises(AssertionError, match=why):
        ejk.assert_attention(*attention(torch, **options), mask="causal")


def test_tensors_with_heads_before_sequences_and_no_layout_are_named():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    attend = torch.nn.functional.scaled_dot_product_attention
    for shape in ((1, 4, 96, 32), (2, 4, 96, 32), (1, 16, 8, 32)):
        for dtype in (torch.float32, torch.bfloat16):
            q, k, v, dout = (torch.randn(shape, dtype=dtype).requires_grad_() for _ in range(4))
            out = attend(q, k, v, is_causal=True)
            part = ", in batch entry 0" if shape[0] > 1 else ""
            with pytest.raises(AssertionError, match=f'^out is wrong in .*: it agrees with layout="bhsd"{part};'):
                ejk.assert_attention(out, q, k, v, mask="causal")
            with pytest.raises(AssertionError) as failed:
                ejk.assert_attention(out * 2, q, k, v, mask="causal")
            assert "agrees with" not in str(failed.value)
            gradients = torch.autograd.grad(out, (q, k, v), dout)
            with pytest.raises(AssertionError, match='it agrees with +layout="bhsd"'):
                ejk.assert_attention_grad(*gradients, q, k, v, dout, mask="causal")
    with pytest.raises(AssertionError) as failed:
        ejk.assert_attention(out, q, k, v, mask="causal", layout="bshd")
    assert "agrees with" not in str(failed.value)


def test_gradients_of_autograd_pass_and_exchanged_ones_fail():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 4, 96, 32, requires_grad=True) for _ in range(3))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    dout = torch.randn_like(out)
    dq, dk, dv = torch.autograd.grad(out, (q, k, v), dout)
    ejk.assert_attention_grad(dq, dk, dv, q, k, v, dout, mask="causal", layout="bhsd")
    with pytest.raises(AssertionError):
        ejk.assert_attention_grad(dk, dq, dv, q, k, v, dout, mask="causal", layout="bhsd")


def test_grouped_products():
    np = pytest.importorskip("numpy")
    rng = np.random.default_rng(0)
    lhs, rhs = rng.standard_normal((12, 8), np.float32), rng.standard_normal((3, 8, 4), np.float32)
    sizes = np.array([5, 0, 7], np.int32)
    out = np.concatenate([lhs[:5] @ rhs[0], lhs[5:] @ rhs[2]])
    ejk.assert_grouped_matmul(out, lhs, rhs, sizes)
    with pytest.raises(AssertionError):
        ejk.assert_grouped_matmul(np.concatenate([lhs[:5] @ rhs[1], lhs[5:] @ rhs[2]]), lhs, rhs, sizes)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_layers_of_experts(dtype):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    dtype = getattr(torch, dtype)
    x, logits = torch.randn(48, 32).to(dtype), torch.randn(48, 6)
    gate_up, down = (torch.randn(6, 40, 32) / 6).to(dtype), (torch.randn(6, 32, 20) / 5).to(dtype)
    weights, ids = torch.topk(torch.softmax(logits, 1), 2)

    def layer(weights):
        out = torch.zeros_like(x)
        for e in range(6):
            token, choice = torch.where(ids == e)
            gate, up = (x[token] @ gate_up[e].T).chunk(2, 1)
            rows = (torch.nn.functional.silu(gate) * up) @ down[e].T
            out.index_add_(0, token, rows * weights[token, choice, None].to(dtype))
        return out

    ejk.assert_moe(layer(weights), x, gate_up, down, ids, weights, transpose_weights=True)
    router = {"logits": logits, "top_k": 2, "transpose_weights": True}
    ejk.assert_moe(layer(weights), x, gate_up, down, **router)
    with pytest.raises(AssertionError, match="the weights of a token are renormalised"):
        ejk.assert_moe(layer(weights / weights.sum(1, keepdim=True)), x, gate_up, down, **router)
    with pytest.raises(AssertionError, match="the weights are applied twice"):
        ejk.assert_moe(layer(weights**2), x, gate_up, down, ids, weights, transpose_weights=True)


def gated_delta_rule(torch, q, k, v, g, beta, cu, state, *, boundaries=True):
    """Gated DeltaNet by its formula, in float64: out in the type of q, and the final states."""
    out, finals = torch.zeros(v.shape, dtype=torch.float64), []
    heads = [h * k.shape[1] // v.shape[1] for h in range(v.shape[1])]
    q, k, v, g, beta, s = (x.double() for x in (q[:, heads] * q.shape[2]**-0.5, k[:, heads], v, g, beta, state[0]))
    for n, (begin, end) in enumerate(zip(cu[:-1], cu[1:])):
        s = state[n].double() if boundaries or n == 0 else s
        for t in range(begin, end):
            s = s * g[t].exp()[:, None, None]
            u = beta[t][:, None] * (v[t] - torch.einsum("hkv,hk->hv", s, k[t]))
            s = s + k[t][:, :, None] * u[:, None]
            out[t] = torch.einsum("hkv,hk->hv", s, q[t])
        finals.append(s)
    return out, torch.stack(finals).float()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_linear_attention(dtype):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    dtype, cu = getattr(torch, dtype), [0, 37, 37, 96]
    q, v = torch.randn(96, 2, 16).to(dtype), torch.randn(96, 4, 16).to(dtype)
    k = torch.nn.functional.normalize(torch.randn(96, 2, 16), dim=-1).to(dtype)
    g, beta = -torch.rand(96, 4) / 4, torch.rand(96, 4)
    state = torch.randn(3, 4, 16, 16)
    out, final = gated_delta_rule(torch, q, k, v, g, beta, cu, state)
    out = out.to(dtype)
    options = {"delta": True, "decay": g, "beta": beta, "cu_seqlens": torch.tensor(cu), "initial_state": state}
    report = ejk.assert_linear_attention(out, q, k, v, final_state=final, **options).report["result"]
    assert [row["array"] for row in report["against"]["arrays"]] == ["out", "final_state"]
    for results in ((out, final), (out, None), {"out": out}):  # as fla's functions return them
        ejk.assert_linear_attention(results, q, k, v, **options)

    # With a batch axis of 1, as fla has it, and logits of beta.
    ejk.assert_linear_attention(out[None], q[None], k[None], v[None], final_state=final, **options | {
        "decay": g[None], "beta": beta.logit()[None], "beta_sigmoid": True})

    def first_line(out, final, **others):
        with pytest.raises(AssertionError) as failure:
            ejk.assert_linear_attention(out, q, k, v, final_state=final, **options | others)
        return str(failure.value).splitlines()[0]

    assert first_line(out, final.mT).endswith("the final state is transposed; out is right")
    carried, last = gated_delta_rule(torch, q, k, v, g, beta, cu, state, boundaries=False)
    assert "cu_seqlens is ignored" in first_line(carried.to(dtype), last)
    assert "the initial state is dropped" in first_line(
        gated_delta_rule(torch, q, k, v, g, beta, cu, 0 * state)[0].to(dtype), None)
    plain, last = gated_delta_rule(torch, q, k, v, 0 * g, beta, cu, state)
    assert first_line(plain.to(dtype), last).endswith(": decays are missing")
    assert first_line(out * 4, final).endswith(": the scale of the output is missing; final_state is right")
    with pytest.raises(TypeError, match="give out, final_state and others that ejk linear-attention has"):
        ejk.assert_linear_attention((out, final, final), q, k, v)


def test_linear_attention_in_slots():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    cu, slots = [0, 20, 50], torch.tensor([3, 1])
    q, k, v = (torch.randn(50, 4, 8) / 4 for _ in range(3))
    g, beta, pool = -torch.rand(50, 4), torch.rand(50, 4), torch.randn(5, 4, 8, 8)
    options = {"delta": True, "decay": g, "beta": beta, "cu_seqlens": cu, "initial_state": pool}
    fresh = torch.tensor([True, False])
    out, final = gated_delta_rule(torch, q, k, v, g, beta, cu, pool[slots] * fresh[:, None, None, None])
    written = pool.index_copy(0, slots, final)
    ejk.assert_linear_attention(out.float(), q, k, v, final_state=written, state_indices=slots, has_initial_state=fresh,
                                **options)
    apart = pool.index_copy(0, torch.tensor([0, 4]), final)
    ejk.assert_linear_attention((out.float(), apart), q, k, v, state_indices=(slots, [0, 4]), has_initial_state=[1, 0],
                                **options)
    stale, final = gated_delta_rule(torch, q, k, v, g, beta, cu, pool[slots])
    with pytest.raises(AssertionError, match="^out and final_state are wrong in .*: a stale slot is read"):
        ejk.assert_linear_attention((stale.float(), pool.index_copy(0, slots, final)), q, k, v, state_indices=slots,
                                    has_initial_state=fresh, **options)
    with pytest.raises(ejk.Error, match=r"^ejk linear-attention: state_indices.*"):
        ejk.assert_linear_attention(out, q, k, v, state_indices=[3, 9], **options)


def test_mamba2_and_short_convolutions():
    np = pytest.importorskip("numpy")
    rng = np.random.default_rng(0)
    x, b, c = (rng.standard_normal((1, 70, heads, 8), np.float32) for heads in (4, 1, 1))
    dt, a_log, bias, skip = (rng.standard_normal(shape, np.float32) for shape in ((1, 70, 4), 4, 4, 4))
    step = np.clip(np.logaddexp(0, dt + bias), 0, 1)
    out, s = np.zeros_like(x), np.zeros((4, 8, 8))
    for t in range(70):
        s = s * np.exp(-np.exp(a_log) * step[0, t])[:, None, None] + step[0, t][:, None, None] * x[0, t][:, :, None] * b[0, t]
        out[0, t] = s @ c[0, t, 0] + skip[:, None] * x[0, t]
    options = {"as_": "mamba", "dt": dt, "a_log": a_log, "dt_bias": bias, "dt_softplus": True, "skip": skip}
    ejk.assert_linear_attention((out, s[None].astype(np.float32)), c, b, x, dt_limit=(0, 1), **options)
    with pytest.raises(AssertionError, match="the skip is missing; not compared: final_state"):
        ejk.assert_linear_attention(out - skip[:, None] * x, c, b, x, dt_limit=[0.0, 1], **options)
    with pytest.raises(ejk.Error, match='hint: state_layout="vk"'):
        ejk.assert_linear_attention(out, c, b, x[..., :5], initial_state=np.zeros((1, 4, 5, 8)), dt=dt, a_log=a_log)

    x, weight = rng.standard_normal((2, 30, 6), np.float32), rng.standard_normal((6, 4), np.float32)
    padded = np.concatenate([np.zeros((2, 3, 6), np.float32), x], 1)
    out = sum(padded[:, j:j + 30] * weight[:, j] for j in range(4))
    ejk.assert_conv1d((out, x[:, -3:].swapaxes(1, 2)), x, weight)
    ejk.assert_conv1d(out / (1 + np.exp(-out)), x, weight[:, None], activation="silu")
    with pytest.raises(AssertionError, match="^out is wrong in .*: the activation of sums is left out"):
        ejk.assert_conv1d(out, x, weight, activation="silu")


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
                                   "float16", "float32", "float64", "bfloat16"])
@pytest.mark.parametrize("shape", [(), (0, 3), (5, 4)])
def test_elements_are_the_same_after_both_ways(dtype, shape):
    np = pytest.importorskip("numpy")
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    x = (np.random.default_rng(0).standard_normal(shape) * 9).astype(dtype)
    for given in (x, np.array(x, order="F")):
        back = ejk.run("convert", given)["input0"]
        assert back.dtype == x.dtype and back.shape == x.shape and (back == x).all()


def test_block_mask_of_flex_attention_is_a_mask():
    torch = pytest.importorskip("torch")
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    documents = torch.tensor([0] * 20 + [1] * 30 + [2] * 50)

    def mask_mod(b, h, q, k):
        return (q >= k + h - b) & (documents[q] == documents[k])

    queries = torch.arange(100)[:, None]
    for entries, heads in ((1, 1), (1, 2), (2, 2)):
        mask = flex.create_block_mask(mask_mod, entries, heads, 100, 100, device="cpu", BLOCK_SIZE=(16, 32))
        pairs = torch.stack([torch.stack([mask_mod(b, h, queries, queries.t()) for h in range(heads)])
                             for b in range(entries)])
        if entries == 1:
            assert torch.equal(ejk.run("mask", mask=mask)["mask"].expand(1, heads, -1, -1), pairs)
        assert ejk.check("mask-info", mask).report["result"]["wrong_blocks"] == 0
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            q, k, v = (torch.randn(2, 2, 100, 32, dtype=dtype) for _ in range(3))
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=pairs).nan_to_num()
            ejk.assert_attention(out, q, k, v, mask=mask, layout="bhsd")

    lists = mask.kv_num_blocks, mask.kv_indices, mask.full_kv_num_blocks, mask.full_kv_indices
    short = flex.BlockMask.from_kv_blocks(lists[0] - 1, *lists[1:], (16, 32), mask_mod, seq_lengths=(100, 100))
    with pytest.raises(AssertionError, match="each pair of the mask is computed"):
        ejk.check("mask-info", short)
    with pytest.raises(AssertionError, match="^out is wrong in "):
        ejk.assert_attention(out, q, k, v, mask=short, layout="bhsd")

    # Without a mask_mod a BlockMask is its blocks: here the first two of each row.
    two = torch.full((1, 1, 7), 2, dtype=torch.int32)
    blocks = flex.BlockMask.from_kv_blocks(two, torch.arange(4, dtype=torch.int32).repeat(1, 1, 7, 1), BLOCK_SIZE=(16, 32),
                                           seq_lengths=(100, 100))
    expected = (torch.arange(100) < 64).expand(100, 100)
    assert torch.equal(ejk.run("mask", mask=blocks)["mask"].squeeze(), expected)
    assert torch.equal(ejk.run("mask", mask="visited(m)", m=blocks)["mask"].squeeze(), expected)
    ejk.check("mask-info", blocks)


def test_torch_tensors_come_back_as_tensors():
    torch = pytest.importorskip("torch")
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.int64, torch.bool):
        x = torch.arange(12).reshape(3, 4).to(dtype).t()
        assert torch.equal(ejk.run("convert", x)["input0"], x)


def test_jax_arrays():
    jnp = pytest.importorskip("jax.numpy")
    x = jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3)
    ejk.assert_close(x, x)
    with pytest.raises(AssertionError):
        ejk.assert_close({"a": x, "b": x}, {"a": x, "b": x + 1})
    key, g = jnp.eye(16, dtype=jnp.bfloat16).reshape(1, 16, 1, 16), jnp.full((1, 16, 1), -0.5)
    out = jnp.ones((1, 16, 1, 16), jnp.bfloat16)  # of each key once
    ejk.assert_linear_attention(out, key, key, out, decay=g, scale=1)


def test_arrays_are_named_in_expressions_and_messages():
    cu = memoryview(bytearray([0, 3, 8])).cast("b")
    info = ejk.run("mask-info", mask=["causal & documents(cu)"], cu=cu, shape=(1, 8, 8), block=(2, 2))
    assert {"data_next", "block_mask"} <= set(info)
    with pytest.raises(ejk.Error, match="cu") as failure:
        ejk.run("mask", mask="documents(cu)", cu=memoryview(bytearray([0, 9, 8])).cast("b"), shape=(1, 8, 8))
    assert "/dev/shm" not in str(failure.value) and failure.value.status == 3


def test_a_check_lists_its_findings():
    with pytest.raises(AssertionError, match="tokens|end"):
        ejk.check("cu-seqlens", memoryview(bytearray([0, 3, 7])).cast("b"), tokens=8)


def test_unknown_options_and_types_are_errors():
    with pytest.raises(ejk.Error, match="did you mean"):
        ejk.run("cdiv", memoryview(b"abc"), bye=2)
    with pytest.raises(TypeError, match="complex64"):
        np = pytest.importorskip("numpy")
        ejk.assert_close(np.ones(3, np.complex64), np.ones(3, np.complex64))


def test_an_action_is_a_second_word_or_the_first_input():
    cu = memoryview(bytearray([0, 3, 7])).cast("b")
    assert ejk.run("check cu-seqlens", cu).report == ejk.run("check", "cu-seqlens", cu).report
    with pytest.raises(ejk.Error, match="unknown command ''"):
        ejk.run(" ")


def test_an_interrupt_ends_the_child(tmp_path):
    fifo = tmp_path / "never-written.npy"
    os.mkfifo(fifo)
    process = subprocess.Popen([sys.executable, "-c", f"import ejk; ejk.run('cdiv', {str(fifo)!r}, by=2)"],
                               stderr=subprocess.PIPE)
    time.sleep(1)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, text = process.communicate(timeout=20)
    assert b"KeyboardInterrupt" in text
    assert subprocess.run(["pgrep", "-f", f"cdiv {fifo}"], capture_output=True, text=True).stdout == ""


def test_the_program_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "ejk", "--version"], capture_output=True, text=True)
    assert done.stdout.startswith("ejk ")


FLOAT8 = ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]


@pytest.mark.parametrize("dtype", FLOAT8)
@pytest.mark.parametrize("shape", [(), (0, 3), (4, 64)])
def test_8_bit_floats_are_the_same_after_both_ways(dtype, shape):
    np, ml_dtypes = pytest.importorskip("numpy"), pytest.importorskip("ml_dtypes")
    codes = np.resize(np.arange(256, dtype=np.uint8), shape)
    x = codes.view(getattr(ml_dtypes, dtype))
    back = ejk.run("convert", x)["input0"]
    assert back.dtype == x.dtype and back.shape == x.shape and (back.view(np.uint8) == codes).all()
    widened = ejk.run("convert", x, dtype="float32")["input0"]
    assert np.array_equal(widened, x.astype(np.float32), equal_nan=True)


@pytest.mark.parametrize("dtype", FLOAT8)
def test_8_bit_tensors_come_back_as_tensors(dtype):
    torch = pytest.importorskip("torch")
    if not hasattr(torch, dtype):
        pytest.skip(f"this torch has no {dtype}")
    codes = torch.arange(256, dtype=torch.uint8).reshape(16, 16).t()
    x = codes.view(getattr(torch, dtype))
    back = ejk.run("convert", x)["input0"]
    assert back.dtype == x.dtype and torch.equal(back.view(torch.uint8), codes)
    widened = ejk.run("convert", x, dtype="float32")["input0"]
    assert torch.equal(widened.nan_to_num(1e9), x.float().nan_to_num(1e9))


def test_4_bit_tensors_are_bytes():
    torch = pytest.importorskip("torch")
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this torch has no float4_e2m1fn_x2")
    codes = torch.arange(256, dtype=torch.uint8).reshape(4, 64)
    assert torch.equal(ejk.run("convert", codes.view(torch.float4_e2m1fn_x2))["input0"], codes)


def test_types_that_files_do_not_name_are_errors():
    ml_dtypes, np = pytest.importorskip("ml_dtypes"), pytest.importorskip("numpy")
    with pytest.raises(TypeError, match="input0: arrays of float8_e3m4 are not supported"):
        ejk.run("convert", np.zeros(3, ml_dtypes.float8_e3m4))


@pytest.mark.parametrize("scheme, options", [
    ("fp8", {}), ("fp8", {"element": "e5m2", "block": (2, 32)}), ("mx", {"element": "e4m3"}), ("mx", {"element": "e2m1"}),
    ("nvfp4", {}),
])
def test_quantised_arrays_are_decoded(scheme, options):
    np = pytest.importorskip("numpy")
    pytest.importorskip("ml_dtypes")
    x = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    quantised = ejk.run("quantize", x, scheme=scheme, **options)
    parts = [quantised[name] for name in ("values", "scales", "global_scale") if name in quantised]
    options = {name: value for name, value in options.items() if name != "element"}
    decoded = getattr(ejk, scheme)(*parts, **options)
    ejk.assert_close(decoded, x, rtol=0.3, atol=0.3)
    numbers = ejk.run("convert", decoded)["values"]
    assert numbers.shape == x.shape and numbers.dtype == np.float32
    ejk.assert_close(decoded, numbers, rtol=0, atol=0)
    with pytest.raises(AssertionError):
        ejk.assert_close(decoded, 2 * x)


def test_quantised_tensors_multiply():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    x, w = torch.randn(12, 64), torch.randn(2, 64, 32)
    sizes = torch.tensor([5, 7], dtype=torch.int32)
    quantised = ejk.run("quantize", w, scheme="mx", element="e4m3")
    codes, scales = quantised["values"], quantised["scales"]
    assert codes.dtype == torch.float8_e4m3fn
    decoded = codes.float().reshape(2, 64, 1, 32) * torch.exp2(scales.view(torch.uint8).float() - 127).unsqueeze(-1)
    decoded = decoded.reshape(w.shape)
    out = torch.cat([x[:5] @ decoded[0], x[5:] @ decoded[1]])
    ejk.assert_grouped_matmul(out, x, ejk.mx(codes, scales), sizes)
    with pytest.raises(AssertionError):
        ejk.assert_grouped_matmul(out, x, ejk.mx(codes, scales.view(torch.uint8) + 1), sizes)


def test_parts_of_quantised_arrays_are_arrays_numbers_or_files(tmp_path):
    np = pytest.importorskip("numpy")
    codes, scales = np.full((1, 8), 0x21, np.uint8), np.full((1, 1), 0x38, np.uint8)
    np.save(tmp_path / "a, scale.npy", scales)
    for given in (str(tmp_path / "a, scale.npy"), tmp_path / "a, scale.npy"):
        numbers = ejk.run("convert", ejk.nvfp4(codes, given, 0.5, nibbles="high"))["values"]
        assert numbers.tolist() == [[0.5, 0.25] * 8]
    numbers = ejk.run("convert", ejk.gptoss(codes.repeat(2, 1).reshape(1, 1, 16), np.full((1, 1), 127, np.uint8)))
    assert numbers["blocks"].tolist() == [[0.5, 1.0] * 16]


def test_faults_of_quantised_arrays_name_the_part():
    np = pytest.importorskip("numpy")
    with pytest.raises(ejk.Error, match="input0:scales") as failure:
        ejk.run("convert", ejk.mx(np.zeros((2, 16), np.uint8), np.zeros((2, 2), np.uint8)))
    assert "/dev/shm" not in str(failure.value)
    with pytest.raises(ejk.Error, match="there is no option 'blocks'"):
        ejk.run("convert", ejk.fp8(np.zeros((2, 16), np.uint8), np.float32(1), blocks=(2, 2)))


def test_arrays_of_a_repeated_option_are_different():
    np = pytest.importorskip("numpy")
    masks = [np.eye(4, dtype=bool), np.ones((4, 4), bool)]
    info = ejk.run("mask-info", mask=masks, block=(2, 2))
    assert (info["block_mask"][0] == 0).any() and not (info["block_mask"][1] == 0).any()


def test_tensors_with_a_pending_sign_go_in_with_it():
    torch = pytest.importorskip("torch")
    x = torch.tensor([1 + 2j, -3 + 4j, 5 - 6j])
    negative = x.conj().imag
    assert negative.is_neg()
    for given in (negative, negative.contiguous(), negative[::2], torch._neg_view(torch.arange(4.0))):
        assert torch.equal(ejk.run("convert", given)["input0"], given.clone().resolve_neg())
    real = torch.arange(6.0).reshape(3, 2)
    imaginary = torch.view_as_real(torch.view_as_complex(real).conj().resolve_conj())
    assert torch.equal(ejk.run("convert", imaginary)["input0"], real * torch.tensor([1.0, -1.0]))
    with pytest.raises(TypeError, match="complex64"):
        ejk.run("convert", x.conj())


def test_subclasses_of_tensors_are_tensors():
    torch = pytest.importorskip("torch")

    class Weight(torch.Tensor):
        pass

    x = torch.arange(4.0, dtype=torch.bfloat16).as_subclass(Weight).requires_grad_()
    assert torch.equal(ejk.run("convert", x)["input0"], x.detach().as_subclass(torch.Tensor))


def child(code, **options):
    return subprocess.Popen([sys.executable, "-c", "import ejk, os, signal, sys\n" + code], text=True, **options)


def folders():
    return set(glob.glob("/dev/shm/ejk-*"))


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no memory file system")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_folder_of_a_killed_process_is_removed_by_the_next_call(number):
    before = folders()
    process = child(f"ejk._Call.run = lambda *_: os.kill(os.getpid(), {int(number)})\nejk.run('cdiv', [1], by=2)")
    assert process.wait() == -number
    assert len(folders() - before) == 1
    ejk.run("cdiv", [1], by=2)
    assert folders() <= before


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no memory file system")
def test_the_folder_of_a_running_process_stays():
    before = folders()
    code = "ejk._Call.run = lambda *_: (print('in', flush=True), sys.stdin.read())\nejk.run('cdiv', [1], by=2)"
    process = child(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout.readline() == "in\n"
    (folder,) = folders() - before
    ejk.run("cdiv", [1], by=2)
    assert os.listdir(folder) == ["input0.safetensors"]
    process.communicate("")
    assert not os.path.exists(folder)


def test_a_folder_removed_before_it_is_locked_is_made_again(monkeypatch):
    make, made = ejk.tempfile.mkdtemp, []

    def found_unlocked(**options):
        made.append(make(**options))
        if len(made) < 3:
            ejk._remove_abandoned(options["dir"])
        return made[-1]

    monkeypatch.setattr(ejk.tempfile, "mkdtemp", found_unlocked)
    assert ejk.run("cdiv", [7], by=2)["cdiv"][0] == 4 and len(made) == 3


def test_lists_of_numbers_are_arrays():
    np = pytest.importorskip("numpy")
    for given, dtype in (([0, 3, 8], np.int64), ([[1, 2], [3, 4], [5, 6]], np.int64), ([[0.5], [2]], np.float64),
                         ([[True, False]], np.bool_), ([np.int32(4), 2], np.int64)):
        back = ejk.run("convert", given)["input0"]
        assert back.dtype == dtype and np.array_equal(back, np.array(given))
    for ragged in ([[1, 2], [3]], [[1], 2], [1, [2]]):
        with pytest.raises(TypeError, match="different lengths"):
            ejk.run("convert", ragged)
    ejk.check("cu-seqlens", [0, 3, 8], tokens=8)
    q = np.random.default_rng(0).standard_normal((8, 2, 16)).astype(np.float32)
    packed = ejk.run("attention", q, q, q, cu_seqlens=[0, 3, 8], mask="causal")
    named = ejk.run("attention", q[None], q[None], q[None], mask="causal & documents(cu)", cu=[0, 3, 8])
    assert np.allclose(packed["out"], named["out"][0], atol=1e-6)
    sizes = ejk.run("sparsity", mask="causal", shape=[64, 64], blocks=[(16, 16), (32, 32)]).report["result"]["sizes"]
    assert len(sizes) == 2
    shape = ejk.run("mask", mask="causal", shape=[2, 2])["mask"]
    assert np.array_equal(shape, np.tril(np.ones((2, 2), bool)))


def test_a_mask_is_identified_with_the_arrays_that_its_expression_names():
    np = pytest.importorskip("numpy")
    mask = ejk.run("mask", mask="causal & documents(cu)", cu=[0, 20, 41, 64])["mask"].copy()
    found = ejk.run("mask", mask, identify=True)
    assert found.report["result"]["expression"] == "causal & documents(cu)"
    assert np.array_equal(ejk.run("mask", mask="causal & documents(cu)", cu=found["cu"])["mask"], mask)
    mask[3, 40] = True
    with pytest.raises(AssertionError, match=r"^causal & documents\(cu\)(.|\n)*3 +40 +yes"):
        ejk.run("mask", mask, identify=True)


def test_sizes_and_numbers_may_be_scalars_of_numpy():
    np = pytest.importorskip("numpy")
    mask = ejk.run("mask", mask="causal", shape=(np.int64(2), 3))["mask"]
    assert mask.shape == (2, 3)
    assert ejk.run("cdiv", [7], by=np.int64(2))["cdiv"][0] == 4


def dtypes_of_bfloat16():
    for module, name in (("torch", "bfloat16"), ("ml_dtypes", "bfloat16"), ("jax.numpy", "bfloat16")):
        try:
            yield getattr(importlib.import_module(module), name)
        except ImportError:
            pass


def test_an_element_type_is_one_of_any_library():
    np = pytest.importorskip("numpy")
    for dtype in ("bfloat16", *dtypes_of_bfloat16()):
        report = ejk.run("attention", *[np.ones((1, 4, 1, 8), np.float32)] * 3, dtype=dtype).report
        assert report["result"]["out_dtype"] == "bfloat16"
    for dtype, name in ((np.float64, "float64"), (np.dtype("int8"), "int8"), (bool, "bool"), (int, "int64")):
        assert ejk.run("convert", [[1, 0]], dtype=dtype)["input0"].dtype == name


def wrong_attention(np):
    q = np.random.default_rng(0).standard_normal((1, 64, 2, 16)).astype(np.float32)
    cu = np.array([0, 24, 64], np.int32)
    documents = ejk.run("attention", q, q, q, mask="causal & documents(cu)", cu=cu)
    return q, cu, documents["out"], documents["lse"]


def test_a_mask_that_is_tried_names_arrays_of_keywords():
    np = pytest.importorskip("numpy")
    q, cu, out, _ = wrong_attention(np)
    with pytest.raises(AssertionError, match=r"documents\(cu\)"):
        ejk.assert_attention(out, q, q, q, mask="causal", try_="causal & documents(cu)", cu=cu)
    with pytest.raises(AssertionError, match=r"documents\(cu\)"):
        ejk.assert_attention(out, q, q, q, mask="causal", try_=["full", "causal & documents(cu)"], cu=[0, 24, 64])


def test_a_kernel_may_return_its_lse_too():
    np = pytest.importorskip("numpy")
    q, cu, out, lse = wrong_attention(np)
    options = {"mask": "causal & documents(cu)", "cu": cu}
    for result in ((out, lse), [out, lse], (out, lse, None), (out,), {"out": out, "lse": lse}):
        ejk.assert_attention(result, q, q, q, **options)
    with pytest.raises(AssertionError):
        ejk.assert_attention((out, lse + 1), q, q, q, **options)
    with pytest.raises(TypeError, match="3 results"):
        ejk.assert_attention((out, lse, lse), q, q, q, **options)
    with pytest.raises(TypeError, match="2 results"):
        ejk.assert_attention((out, lse), q, q, q, lse=lse, **options)


def test_no_cap_is_a_cap_of_0():
    np = pytest.importorskip("numpy")
    q, cu, out, _ = wrong_attention(np)
    for cap in (0, 0.0, np.float32(0)):
        ejk.assert_attention(out, q, q, q, mask="causal & documents(cu)", cu=cu, softcap=cap)
    with pytest.raises(ejk.Error, match="softcap"):
        ejk.run("attention", q, q, q, softcap=-1)


def test_messages_have_the_words_of_python():
    in_python = ejk._in_python
    for words, expected in (
            ("--dtype int32", 'dtype="int32"'), ("--layout bhsd is for", 'layout="bhsd" is for'), ("--no-computable writes it", "computable=False writes it"),
            ("--transpose-rhs takes weights", "transpose_rhs takes weights"), ("--by: 0 is", "by: 0 is"),
            ("for example --shape 8x16x16 for 8 heads", "for example shape=(8, 16, 16) for 8 heads"),
            ("--from position-ids takes them", 'from_="position-ids" takes them'),
            ("--mask 'causal & local(left=1, right=0)'", "mask='causal & local(left=1, right=0)'"),
            ("--cu-seqlens REF --top-k 2.", "cu_seqlens=REF, top_k=2."),
            ("'ejk compare MINE RESULT --explain' looks", "'ejk.run(\"compare\", MINE, RESULT, explain=True)' looks"),
            ("ejk convert IN -o OUT --dtype bool; added", 'ejk.run("convert", IN, dtype="bool"); added'),
            ("ejk mask-info: a.npy: no", "ejk mask-info: a.npy: no"), ("'ejk check mask -h' lists", 'ejk.options("check mask") lists')):
        assert in_python(words) == expected
    with pytest.raises(ejk.Error) as failure:
        ejk.run("cdiv", [1], bye=2)
    assert str(failure.value) == "ejk cdiv: unknown option 'bye'\nhint: did you mean 'by'?"
    with pytest.raises(ejk.Error, match='dtype="int32"'):
        ejk.run("position-ids", [0.0, 1.0])


def test_flags_of_the_command_are_true_in_messages():
    assert ejk._in_python("--pad fills it up; --pad: no", {"pad"}) == "pad=True fills it up; pad: no"
    with pytest.raises(ejk.Error, match="pad=True fills the mask up"):
        ejk.run("mask-info", mask="causal", shape=(10, 10), block=(4, 4))


def test_options_of_a_command_are_listed_as_keyword_arguments():
    options = ejk.options("attention")
    assert options["scale"] == ejk.Option("S", (), "factor of q k; 1/sqrt(size) by default")
    assert options["layout"].choices == ("bshd", "bhsd", "thd")
    assert (options["block"].value, options["sinks"].value, options["explain"].value) == ("(Q, K)", "array", "True")
    assert "as_" in options and options["cu_seqlens"].value == "array or (array, array)"
    assert "\nsoftcap=C: scores s become C tanh(s / C)\n" in repr(options)
    assert ejk.options("mask-info")["computable"].value == "False"
    assert "tokens" in ejk.options("check cu-seqlens")
    linear = ejk.options("linear-attention")
    assert {"decay", "a_log", "cu_seqlens", "as_", "weights", "tiles"} <= set(linear) and linear["delta"].value == "True"
    assert linear["state_indices"].value == "array or (array, array)"
    for function in (ejk.assert_attention, ejk.assert_attention_grad, ejk.assert_grouped_matmul, ejk.assert_moe,
                     ejk.assert_linear_attention, ejk.assert_conv1d, ejk.assert_close, ejk.check):
        assert "ejk.options(" in function.__doc__
    for wrong in ("check", "nothing", ""):
        with pytest.raises(ValueError, match="is no command"):
            ejk.options(wrong)
    with pytest.raises(ejk.Error, match=r'unknown option .nothing.\nhint: ejk.options\("attention"\) lists the options'):
        ejk.run("attention", [1.0], [1.0], [1.0], nothing=1)


def test_flags_may_be_false_and_defaults_true():
    np = pytest.importorskip("numpy")
    q, cu, out, _ = wrong_attention(np)
    with pytest.raises(AssertionError, match="instruction set"):  # the whole report
        ejk.assert_attention(out, q, q, q, mask="causal", verbose=True, explain=False)
    nan = np.full(3, np.nan)
    ejk.assert_close(nan, nan, equal_nan=True)
    with pytest.raises(AssertionError):
        ejk.assert_close(nan, nan, equal_nan=False)


def test_words_of_torch_get_those_of_ejk():
    np = pytest.importorskip("numpy")
    q = np.ones((1, 4, 1, 8), np.float32)
    for options, hint in (({"is_causal": True}, 'mask="causal"'), ({"softmax_scale": 1.0}, "did you mean 'scale'"),
                          ({"window_size": (3, 0)}, r"mask='local\(left=3, right=0\)'"),
                          ({"enable_gqa": True}, "no option is needed"), ({"dtype": "bf16"}, "bfloat16")):
        with pytest.raises(ejk.Error, match=hint):
            ejk.run("attention", q, q, q, **options)


def test_arrays_of_one_name_in_two_files_are_apart():
    torch = pytest.importorskip("torch")
    report = ejk.run("info", {"w": torch.ones(2)}, {"w": torch.ones(3)}).report["result"]
    assert [row["pattern"] for row in report["patterns"]] == ["input0:w", "input1:w"]
    assert [row["shape"] for row in report["patterns"]] == [[2], [3]]


def test_nan_of_an_input_is_the_cause():
    np = pytest.importorskip("numpy")
    q, _, _, _ = wrong_attention(np)
    k = q.copy()
    k[0, 30] = np.nan
    with pytest.raises(AssertionError, match="NaN of k reaches results that it is masked from"):
        ejk.assert_attention(np.full_like(q, np.nan), q, k, q, mask="causal")
