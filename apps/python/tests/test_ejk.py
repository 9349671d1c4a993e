"""The package on a kernel's results: right and wrong ones, every array library that is installed, and what is left behind."""

import glob
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
    ({"is_causal": True, "scale": 0.1}, "the scale is 0.1, not 0.125"),
])
def test_a_wrong_kernel_fails_with_the_cause(options, why):
    torch = pytest.importorskip("torch")
    with pytest.raises(AssertionError, match=why):
        ejk.assert_attention(*attention(torch, **options), mask="causal")


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
