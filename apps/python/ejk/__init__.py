"""Run `ejk` on arrays in memory, and assert that a kernel's result is right.

    import ejk
    ejk.assert_attention(out, q, k, v, mask="causal & documents(cu)", cu=cu)
    ejk.assert_grouped_matmul(out, tokens, experts, group_sizes)
    info = ejk.run("mask-info", mask="causal", shape=(1, 4096, 4096), block=(128, 128), computable=False)
    info["block_mask"], info.report["result"]

Arrays are NumPy arrays, torch tensors on any device, JAX arrays, or objects with a buffer. They are written to a
temporary folder in memory (/dev/shm), the program runs on them, and the folder is removed. Only the standard library is
imported; results are torch tensors if an input was one, else NumPy arrays, else memoryviews.

Cost of a call: one process (milliseconds), and one copy of each array.
"""

from __future__ import annotations

import ast
import ctypes
import json
import math
import mmap
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any, Iterator, Mapping

__all__ = ["Error", "Result", "assert_attention", "assert_attention_grad", "assert_close", "assert_grouped_matmul",
           "check", "program", "run"]

_DESCR = {"bool": "|b1", "int8": "|i1", "uint8": "|u1", "int16": "<i2", "uint16": "<u2", "int32": "<i4", "uint32": "<u4",
          "int64": "<i8", "uint64": "<u8", "float16": "<f2", "bfloat16": "<V2", "float32": "<f4", "float64": "<f8"}
_NAME = {descr: name for name, descr in _DESCR.items()}
_FORMAT = {"?": "bool", "b": "int8", "B": "uint8", "h": "int16", "H": "uint16", "i": "int32", "I": "uint32", "l": "int64",
           "L": "uint64", "q": "int64", "Q": "uint64", "e": "float16", "f": "float32", "d": "float64"}
_EXPRESSIONS = {"mask", "try", "within", "covers", "equals"}  # options whose values are mask expressions
_NO_ARRAYS = {"check", "compare", "fingerprint", "hash", "info", "params", "seq-info", "sharding", "sparsity"}
_AGAINST = {"explain": True, "brief": True}


class Error(Exception):
    """Invalid use, input or output: exit status 2 to 5 of the program. `str()` is its message with the hint."""

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = status


class Result(Mapping[str, Any]):
    """The arrays that a command wrote, by name, and its JSON report.

    `report` is the object that `--json` prints: keys `result`, `warnings`, ...; `ejk help json COMMAND` lists them.
    """

    def __init__(self, arrays: dict[str, Any], report: dict[str, Any]):
        self.arrays, self.report = arrays, report

    def __getitem__(self, name: str) -> Any:
        return self.arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)

    def __repr__(self) -> str:
        return f"<ejk {self.report.get('command', '')}: {', '.join(self.arrays) or 'no arrays'}>"


def program() -> str:
    """The path of the program: $EJK_PROGRAM, that of this package's wheel, or the first on PATH."""
    here = Path(__file__).resolve().parent
    found = [os.environ.get("EJK_PROGRAM"), here.parent / "bin" / "ejk",  # pip install --target
             Path(sysconfig.get_path("scripts")) / "ejk", Path(sys.executable).parent / "ejk",
             Path(sysconfig.get_path("scripts", os.name + "_user")) / "ejk", shutil.which("ejk")]
    for path in found:
        if path and os.access(path, os.X_OK):
            return os.fspath(path)
    raise FileNotFoundError("the program ejk is not installed; set EJK_PROGRAM to its path")


def _is_torch(value: Any) -> bool:
    return type(value).__module__.split(".")[0] == "torch" and hasattr(value, "data_ptr")


def _is_array(value: Any) -> bool:
    return not isinstance(value, (str, bytes)) and (
        _is_torch(value) or hasattr(value, "__array__") or hasattr(value, "__dlpack__") or _has_buffer(value))


def _has_buffer(value: Any) -> bool:
    try:
        memoryview(value)
    except TypeError:
        return False
    return True


def _elements(value: Any) -> tuple[str, tuple[int, ...], Any]:
    """Type name, shape and bytes in C order of an array."""
    if _is_torch(value):
        tensor = value.detach().cpu().contiguous()
        size = tensor.numel() * tensor.element_size()
        data = (ctypes.c_char * size).from_address(tensor.data_ptr()) if size else b""
        if size:
            data._tensor = tensor  # keeps the memory alive
        return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), data
    if hasattr(value, "__array__") or hasattr(value, "__dlpack__"):
        import numpy

        array = value if hasattr(value, "__array__") else numpy.from_dlpack(value)
        array = numpy.ascontiguousarray(numpy.asarray(array)).reshape(numpy.shape(array))
        native = array.astype(array.dtype.newbyteorder("=")) if not array.dtype.isnative else array
        return native.dtype.name, native.shape, native.reshape(-1).view("u1").data
    view = memoryview(value)
    if view.format not in _FORMAT:
        raise TypeError(f"elements of format {view.format!r} are not supported")
    return _FORMAT[view.format], tuple(view.shape), view.tobytes()


def _write(path: Path, value: Any) -> None:
    """An .npy file; bfloat16 as ml_dtypes writes it."""
    dtype, shape, data = _elements(value)
    if dtype not in _DESCR:
        raise TypeError(f"{path.stem}: arrays of {dtype} are not supported; convert it to one of {', '.join(_DESCR)}")
    header = repr({"descr": _DESCR[dtype], "fortran_order": False, "shape": shape})
    header += " " * (-(len(header) + 11) % 64) + "\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode())
        file.write(data)


def _read(path: Path, as_torch: bool) -> Any:
    """A private mapping of an .npy file, which outlives the file."""
    with open(path, "rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    start = 10 + int.from_bytes(data[8:10], "little")
    fields = ast.literal_eval(data[10:start].decode())
    dtype, shape = _NAME[fields["descr"]], fields["shape"]
    count = math.prod(shape)
    if as_torch:
        import torch

        kind = getattr(torch, dtype)
        return (torch.frombuffer(data, dtype=kind, count=count, offset=start) if count else torch.empty(0, dtype=kind)).reshape(shape)
    try:
        import numpy
    except ImportError:
        code = next((c for c, name in _FORMAT.items() if name == dtype), "H")
        return memoryview(data)[start:].cast(code, shape) if count else memoryview(b"")
    kind = "uint16" if dtype == "bfloat16" else dtype
    array = numpy.frombuffer(data, dtype=kind, count=count, offset=start).reshape(shape)
    if dtype == "bfloat16":
        try:
            import ml_dtypes
        except ImportError:
            return array  # its bits
        return array.view(ml_dtypes.bfloat16)
    return array


class _Call:
    """A command line whose arrays are files of a temporary folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.as_torch = False

    def file_of(self, name: str, value: Any) -> str:
        self.as_torch = self.as_torch or _is_torch(value)
        path = self.folder / f"{name}.npy"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            _write(path, value)
        return os.fspath(path)

    def word(self, name: str, value: Any) -> str:
        if isinstance(value, Mapping):  # a folder of arrays
            return os.path.dirname([self.file_of(f"{name}/{key}", array) for key, array in value.items()][0]) + "/"
        if isinstance(value, (tuple, list)):
            sizes = all(isinstance(item, int) for item in value)
            return "x".join(map(str, value)) if sizes else ",".join(
                self.word(f"{name}{i}", item) for i, item in enumerate(value))
        if not _is_array(value):
            return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
        file = self.file_of(name, value)
        return f'file("{file}")' if name in _EXPRESSIONS else file

    def words(self, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> list[str]:
        texts = {key: [*value] if isinstance(value, list) else [value] for key, value in options.items() if value is not None}
        named = set()  # arrays that an expression names
        for key in _EXPRESSIONS & texts.keys():
            for i, text in enumerate(texts[key]):
                for name, value in options.items() if isinstance(text, str) else ():
                    pattern = rf'(?<![\w./:"-]){re.escape(name)}(?![\w./:"(=-])'
                    if name != key and _is_array(value) and re.search(pattern, text):
                        named.add(name)
                        text = re.sub(pattern, lambda _, word=f'"{self.file_of(name, value)}"': word, text)
                texts[key][i] = text
        words = [self.word(name, value) for name, value in inputs.items()]
        for key, values in texts.items():
            option = "--" + key.rstrip("_").replace("_", "-")
            for value in values if key not in named else ():
                if isinstance(value, bool):
                    words.append(option if value else "--no-" + option[2:])
                else:
                    words.append(f"{option}={self.word('actual' if key == 'against' else key, value)}")
        return words

    def run(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([program(), *words], stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8",
                              errors="replace")
        path = re.compile(re.escape(os.fspath(self.folder)) + r"/([\w/]+?)(\.npy|/(?!\w))")
        done.stdout, done.stderr = path.sub(r"\1", done.stdout), path.sub(r"\1", done.stderr)
        if done.returncode < 0 or done.returncode > 1:
            raise Error(done.stderr.strip() or f"ejk {words[0]}: ended by signal {-done.returncode}", done.returncode)
        return done


def _run(command: str, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Result:
    __tracebackhide__ = True  # pytest shows the caller
    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(
            prefix="ejk-", dir=memory if os.access(memory, os.W_OK | os.X_OK) else None) as place:
        call = _Call(Path(place))
        words = [command, *call.words(inputs, options)]
        results = call.folder / "results"
        to_results = [] if command in _NO_ARRAYS or {"o", "output", "against"} & options.keys() else ["-o", f"{results}/"]
        done = call.run([*words, "--json", *to_results])
        if done.returncode == 1:
            # The report as text: --brief prints it beside the JSON.
            raise AssertionError((done.stderr if options.get("brief") else call.run(words).stdout).rstrip())
        arrays = {path.stem: _read(path, call.as_torch) for path in sorted(results.glob("*.npy"))}
        return Result(arrays, json.loads(done.stdout))


def run(command: str, *inputs: Any, **options: Any) -> Result:
    """Runs a command: `inputs` are its arguments, `options` its options, with `_` for `-`.

    A value is what the command line takes, as a string or path; a number; True (`--flag`) or False (`--no-flag`); an
    array; a tuple of integers, (128, 128) for 128x128; a dict of arrays, for a file of several; a list, to repeat the
    option. An array whose keyword occurs in a mask expression has that name there: `mask="documents(cu)", cu=cu`.

    Raises AssertionError with the report if the answer is no (exit status 1), else Error if the program fails.

    >>> run("mask", mask="causal & segments(ids)", ids=bytearray([1, 1, 2]), shape=(3, 3))["mask"].tolist()
    [[True, False, False], [True, True, False], [False, False, True]]
    """
    __tracebackhide__ = True
    return _run(command, {f"input{i}": value for i, value in enumerate(inputs)}, options)


def assert_attention(out: Any, q: Any, k: Any, v: Any, *, lse: Any = None, **options: Any) -> Result:
    """Asserts that `out`, and `lse` if given, are attention's results for q, k, v: every element within the error bound
    of a kernel that rounds softmax weights to the type of v. `options` are those of `ejk attention`: mask, scale,
    softcap, bias, layout, segment_ids, cu_seqlens, weights, ...

    The AssertionError has the verdict, where the result is wrong, and the fault that explains it.
    """
    __tracebackhide__ = True
    actual = {"out": out} if lse is None else {"out": out, "lse": lse}
    return _run("attention", {"q": q, "k": k, "v": v}, _AGAINST | options | {"against": actual})


def assert_attention_grad(dq: Any, dk: Any, dv: Any, q: Any, k: Any, v: Any, dout: Any, *, dbias: Any = None,
                          **options: Any) -> Result:
    """The same for gradients; None for a gradient that is not compared. Options of `ejk attention-grad`."""
    __tracebackhide__ = True
    actual = {"dq": dq, "dk": dk, "dv": dv, "dbias": dbias}
    actual = {name: array for name, array in actual.items() if array is not None}
    return _run("attention-grad", {"q": q, "k": k, "v": v, "dout": dout}, _AGAINST | options | {"against": actual})


def assert_grouped_matmul(out: Any, lhs: Any, rhs: Any, group_sizes: Any, **options: Any) -> Result:
    """Asserts that rows of `out` (m, n) are those of lhs (m, k) times their group's matrix of rhs (groups, k, n)."""
    __tracebackhide__ = True
    inputs = {"lhs": lhs, "rhs": rhs, "group_sizes": group_sizes}
    return _run("grouped-matmul", inputs, _AGAINST | options | {"against": out})


def assert_close(actual: Any, expected: Any, **options: Any) -> Result:
    """Asserts that two arrays, or two dicts of arrays, are close, with the tolerance of the coarser dtype unless `rtol`
    and `atol` are given. The AssertionError explains the difference. Options of `ejk compare`.

    >>> assert_close(memoryview(b"abc"), memoryview(b"abc")).report["result"]["close"]
    True
    """
    __tracebackhide__ = True
    return _run("compare", {"actual": actual, "expected": expected}, {"explain": True} | options)


def check(kind: str, *inputs: Any, **options: Any) -> Result:
    """Asserts that arrays are a valid artefact of this kind: "cu-seqlens", "mask-info", "block-table", ...; see `ejk help
    check`. The AssertionError lists the findings.

    >>> check("cu-seqlens", memoryview(b"\\x00\\x03\\x07").cast("b"), tokens=7).report["result"]["errors"]
    0
    """
    __tracebackhide__ = True
    return run("check", kind, *inputs, **options)
