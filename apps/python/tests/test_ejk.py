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
