"""A failed assertion is a file: the plug-in writes it, and `ejk replay` gives the same verdict anywhere."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import ejk

np = pytest.importorskip("numpy")
PACKAGE = Path(ejk.__file__).resolve().parents[1]

FAILING = '''
import numpy as np, ejk, pytest
rng = np.random.default_rng(0)
def normal(*shape): return rng.standard_normal(shape, dtype=np.float32)
q, k, v = (normal(2, 40, heads, 16) for heads in (4, 2, 2))
cu = np.array([0, 3, 17, 40])

@pytest.mark.parametrize("name", ["a/b (c)"])
def test_attention(name):
    right = ejk.run("attention", q, k, v, mask="causal", scale=1.0)
    ejk.assert_attention({"out": right["out"]}, q, k, v, mask="causal & documents(cu)", cu=cu)

def test_attention_grad():
    ejk.assert_attention_grad(q, k, v, q, k, v, q, mask=np.tri(40, dtype=bool))

def test_grouped_matmul():
    lhs, rhs, sizes = normal(24, 16), normal(3, 16, 8), np.array([5, 0, 16])
    right = ejk.run("grouped-matmul", lhs, rhs, sizes)["out"]
    ejk.assert_grouped_matmul(right[::-1].copy(), lhs, rhs, sizes)

def test_close():
    codes = ejk.fp8(np.arange(8, dtype=np.uint8).reshape(2, 4), np.ones((2, 1), np.float32))
    try:
        ejk.assert_close({"a": q, "b": k}, {"a": q, "b": k + 1})
    finally:
        ejk.assert_close({"a": q, "b": k}, {"a": q + 1, "b": k})

class TestCheck:
    def test_check(self):
        ejk.check("cu-seqlens", np.array([0, 5, 3]), tokens=7)
'''


def run_pytest(folder, *options, **environment):
    plugins = [] if any(e.name == "ejk" for e in entry_points()) else ["-p", "_ejk_pytest"]
    paths = os.pathsep.join([str(PACKAGE), os.environ.get("PYTHONPATH", "")])
    return subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugins, "test_kernels.py", *options],
                          cwd=folder, env={**os.environ, "PYTHONPATH": paths, **environment}, capture_output=True, text=True)


def entry_points():
    from importlib.metadata import entry_points as found
    return found(group="pytest11") if sys.version_info >= (3, 10) else found().get("pytest11", ())


def replay(path, *options, folder="/"):
    return subprocess.run([ejk.program(), "replay", str(path), *options], cwd=folder, capture_output=True, text=True)


def write(path, metadata, **arrays):
    ejk._write(path, arrays or {"q": np.zeros((2, 3), np.float32), "r": np.ones((2, 3), np.float32)}, metadata)
    return path


@pytest.fixture(scope="module")
def failed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("failed")
    (folder / "test_kernels.py").write_text(FAILING)
    return folder, run_pytest(folder, "--ejk-replay", "replays")


def test_each_failed_assertion_is_a_file_that_the_message_and_the_summary_name(failed):
    folder, done = failed
    names = sorted(path.name for path in (folder / "replays").iterdir())
    assert names == [f"test_kernels.py__{test}.safetensors" for test in
                     ("TestCheck__test_check", "test_attention_a_b__c__", "test_attention_grad", "test_close",
                      "test_grouped_matmul")], done.stdout
    for name in names:
        assert f"replay: ejk replay {folder}/replays/{name}" in done.stdout
        assert done.stdout.count(name) >= 2


def test_a_file_has_the_same_verdict_in_another_place(failed, tmp_path):
    for path in sorted((failed[0] / "replays").iterdir()):
        data = path.read_bytes()
        metadata = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        moved = tmp_path / path.name
        moved.write_bytes(data)
        one, two = (replay(moved, "--json", "--threads", n, folder=tmp_path) for n in "12")
        assert (one.returncode, one.stdout) == (1, two.stdout)
        text = replay(moved, folder=tmp_path)
        assert text.returncode == 1 and str(tmp_path) not in text.stdout + text.stderr
        verdict = metadata["message"].splitlines()[0]
        assert text.stdout.startswith(verdict), text.stdout
        assert metadata["ejk_replay"] == "1" and metadata["exit"] == "1"
        assert metadata["test"].startswith("test_kernels.py::")
        assert {"python", "numpy", "device"} <= json.loads(metadata["versions"]).keys()


def test_without_pytest_the_file_is_script(tmp_path):
    code = "import ejk\nejk.assert_close(memoryview(b'abc'), memoryview(b'abd'))"
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          env={**environment, "PYTHONPATH": str(PACKAGE), "EJK_REPLAY": str(tmp_path)})
    assert done.stderr.rstrip().endswith(f"replay: ejk replay {tmp_path}/script.safetensors")
    assert replay(tmp_path / "script.safetensors", "-q").returncode == 1


def test_the_plug_in_without_its_option_writes_nothing_and_imports_nothing_else(failed, tmp_path):
    (tmp_path / "test_kernels.py").write_text("def test():\n    import sys\n    assert 'ejk' not in sys.modules\n")
    done = run_pytest(tmp_path)
    assert done.returncode == 0 and "replay" not in done.stdout
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".safetensors"] == []
    code = "import os, sys; before = {*sys.modules}; import _ejk_pytest; print(*{*sys.modules} - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(PACKAGE)})
    assert done.stdout.split() == ["_ejk_pytest"]


HOSTILE = [
    ["compare", "@q", "@r", "-o", "out.npy"], ["compare", "@q", "@r", "--html=x.html"],
    ["compare", "@q", "@r", "--picture", "x.png"], ["attention", "@q", "@q", "@q", "-oout.npz"],
    ["compare", "@q", "@r", "--allow-external"], ["compare", "@q", "other.npy"], ["compare", "@q", "-"],
    ["compare", "/etc/passwd", "@q"], ["attention", "@q", "@q", "@q", "--mask", "documents(other.npy)"],
    ["attention", "@q", "@q", "@q", "--mask", "documents(@nothing)"], ["convert", "@q"], ["mask", "@q"],
    ["compare", "@q", "@r", "--help"], ["compare", "@q", "@r", "--no-such"], ["compare", "--", "@q", "@r"],
    ["check", "checkpoint", "/"], ["check"], ["grouped-matmul", "@q", "@q", "@q", "--tiling-table", "/etc/passwd"],
    ["compare", "fp8(other.npy,@q)", "@q"], [], [1], ["replay", "@q"],
]


@pytest.mark.parametrize("words", HOSTILE, ids=str)
def test_a_command_that_writes_or_reads_elsewhere_is_refused(words, tmp_path):
    np.save(tmp_path / "other.npy", np.zeros((2, 3), np.float32))
    path = write(tmp_path / "x.safetensors", {"ejk_replay": "1", "command": json.dumps(words)})
    before = sorted(tmp_path.iterdir())
    done = replay(path, folder=tmp_path)
    assert done.returncode == 3 and done.stdout == "", (done.stdout, done.stderr)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("metadata", [{}, {"ejk_replay": "2", "command": '["compare", "@q", "@r"]'}, {"ejk_replay": "1"},
                                      {"ejk_replay": "1", "command": '"compare"'}, {"ejk_replay": "1", "command": "["}], ids=str)
def test_a_file_of_another_form_is_refused(metadata, tmp_path):
    done = replay(write(tmp_path / "x.safetensors", metadata))
    assert done.returncode == 3 and done.stdout == ""


def test_options_are_added_and_may_name_other_files(tmp_path):
    np.save(tmp_path / "cu.npy", np.array([0, 1, 2]))
    metadata = {"ejk_replay": "1", "command": '["attention", "@q", "@q", "@q", "--against=@r"]', "ejk_version": "0.0.1"}
    path = write(tmp_path / "x.safetensors", metadata, q=np.ones((1, 2, 1, 4), np.float32), r=np.zeros((1, 2, 1, 4), np.float32))
    done = replay("x.safetensors", "--explain", "--mask", "documents(cu.npy)", "--html", "page.html", folder=tmp_path)
    assert done.returncode == 1 and "written by ejk 0.0.1" in done.stderr
    assert (tmp_path / "page.html").exists()


def test_a_verdict_in_the_formats_of_others_is_read_by_them(failed):
    command = re.compile(r"::(error|warning) file=[^,:]+,title=[^,:]+::.+")
    for path in sorted((failed[0] / "replays").iterdir()):
        done = replay(path, "--format", "github")
        assert done.returncode == 1 and done.stdout and all(map(command.fullmatch, done.stdout.splitlines()))
        suite = ElementTree.fromstring(replay(path, "--format", "junit").stdout.encode())[0]
        assert suite.get("failures") == str(len(suite.findall("testcase/failure"))) != "0"
        assert suite.get("tests") == str(len(suite))
        heading, empty, *rows = replay(path, "--format=md").stdout.splitlines()
        assert heading.startswith("### ejk ") and not empty and len(rows) > 2
        assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {4}


def quantised():
    pytest.importorskip("ml_dtypes")
    w = np.arange(1, 257, dtype=np.float32).reshape(4, 64)
    q = ejk.run("quantize", w, scheme="mx", element="e4m3")
    ejk.assert_close(ejk.mx(q["values"], q["scales"]), w * 3, rtol=2**-4, atol=1e-3)


def layer_of_experts():
    x, gate, down = (np.ones(shape, np.float32) for shape in ((4, 8), (2, 8, 12), (2, 6, 8)))
    ejk.assert_moe(x, x, gate, down, [[0], [1], [0], [1]], np.ones((4, 1), np.float32))


def block_lists():
    x = np.ones((1, 8, 1, 4), np.float32)
    blocks = ejk.run("mask-info", mask="causal", shape=(1, 8, 8), block=(4, 4), layout="jax", computable=False)
    ejk.assert_attention(x * 2, x, x, x, mask="visited(m)", m=blocks.arrays)


def audited():
    ejk.audit("attention", *np.ones((3, 1, 8, 1, 4), np.float32), mask="causal", tolerance="kernelbench")


def printed():
    ejk.run("compare", "[1,2]", "[1,3]")


@pytest.mark.parametrize("fails", [quantised, layer_of_experts, block_lists, audited, printed], ids=lambda f: f.__name__)
def test_other_arguments_are_replayed(fails, tmp_path, monkeypatch):
    monkeypatch.setenv("EJK_REPLAY", str(tmp_path))
    with pytest.raises(AssertionError) as failed:
        fails()
    message = str(failed.value).splitlines()
    path = Path(message[-1].removeprefix("replay: ejk replay "))
    assert path.parent == tmp_path
    done = replay(path)
    assert (done.returncode, done.stdout.splitlines()[0]) == (1, message[0]), done.stderr
