"""Run `ejk` on arrays in memory, and assert that a kernel's result is right.

    import ejk
    ejk.assert_attention(out, q, k, v, mask="causal & documents(cu)", cu=cu)
    ejk.assert_grouped_matmul(out, tokens, experts, group_sizes)
    ejk.assert_linear_attention((out, state), q, k, v, delta=True, decay=g, beta=beta, cu_seqlens=cu)
    info = ejk.run("mask-info", mask="causal", shape=(1, 4096, 4096), block=(128, 128), computable=False)
    info["block_mask"], info.report["result"]

Arrays are NumPy arrays, torch tensors on any device, JAX arrays, objects with a buffer, or lists of numbers; of 8-bit
floats, too. They are written to a temporary folder in memory (/dev/shm), the program runs on them, and the folder is
removed; that of a killed process (SIGKILL, SIGTERM) by the next call of the same user. Only the standard library is
imported; results are torch tensors if an input was one, else NumPy arrays, else memoryviews.
Elements that the library does not have, such as bfloat16 without ml_dtypes, are unsigned integers with the same bits.

Quantised values and their scales are one array: fp8(), mx(), nvfp4() and gptoss(). A test of a kernel that quantises,
and of one that multiplies by quantised weights:

    def test_quantised_kernels():
        codes, scales = quantize_mxfp8(w)  # float8_e4m3fn, a scale of 32 elements as float8_e8m0fnu or uint8
        ejk.assert_close(ejk.mx(codes, scales), w, rtol=2**-4, atol=1e-3)
        right = ejk.run("quantize", w, scheme="mx", element="e4m3")
        assert torch.equal(codes.view(torch.uint8), right["values"].view(torch.uint8))
        ejk.assert_grouped_matmul(kernel(x, codes, scales, sizes), x, ejk.mx(codes, scales), sizes)

Options of a command are keyword arguments: ejk.options("attention") lists them, with their types.

With `pytest --ejk-replay DIR`, or EJK_REPLAY=DIR, each failed assertion is a file in DIR: `ejk replay FILE` has its verdict on
any machine.

The pairs that a kernel uses, and the tokens that a model depends on, found by calling them:

    pairs = ejk.probe(lambda q, k, v: kernel(q, k, v, window=(127, 0)), q, k)
    expected = ejk.run("mask", mask="causal & local(127, 0)", shape=(n, n))["mask"]
    assert torch.equal(pairs, expected.expand_as(pairs))
    depends = ejk.probe_tokens(lambda ids: model(ids, position_ids=positions).logits, ids)

ejk.testing has Hypothesis strategies: problems of attention, grouped products and paged caches that shrink.

Cost of a call: one process (milliseconds), and one copy of each array. The probes start no process; they need NumPy
or torch.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import json
import keyword
import math
import mmap
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zlib
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, Mapping, NamedTuple

__all__ = ["Error", "Option", "Quantized", "Result", "assert_attention", "assert_attention_grad", "assert_close",
           "assert_conv1d", "assert_grouped_matmul", "assert_linear_attention", "assert_moe", "audit", "check", "fp8",
           "gptoss", "mx", "nvfp4", "options", "probe", "probe_tokens", "program", "run"]

# Names of types in safetensors files; large elements first, the order of aligned arrays in a file.
_TYPES = {"uint64": "U64", "int64": "I64", "float64": "F64", "float32": "F32", "uint32": "U32", "int32": "I32",
          "bfloat16": "BF16", "float16": "F16", "uint16": "U16", "int16": "I16", "float8_e5m2fnuz": "F8_E5M2FNUZ",
          "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e8m0fnu": "F8_E8M0", "float8_e4m3fn": "F8_E4M3",
          "float8_e5m2": "F8_E5M2", "int8": "I8", "uint8": "U8", "bool": "BOOL"}
_NAMES = {code: name for name, code in _TYPES.items()}
_FORMAT = {"?": "bool", "b": "int8", "B": "uint8", "h": "int16", "H": "uint16", "i": "int32", "I": "uint32", "l": "int64",
           "L": "uint64", "q": "int64", "Q": "uint64", "e": "float16", "f": "float32", "d": "float64"}
_BITS = {"bfloat16": "uint16"} | {name: "uint8" for name in _TYPES if name.startswith("float8")}
_EXPRESSIONS = {"mask", "try", "within", "covers", "equals"}  # options whose values are mask expressions
_TUPLES = {"axes", "block", "blocks", "shape", "tiles", "tiling"}  # options whose lists are one value and no array
_FOLDER = re.compile(r"ejk-[0-9]+-")
_FILE = re.compile(r"^(\w+)\.safetensors(:\1(?!\w))?")
# Options and command lines in messages. A value of an option is quoted, a file, a number or a placeholder, or a word
# that has a digit or a hyphen, ends a clause, or is one of these.
_CHOICES = "additive|bhsd|bshd|causal|cos|count|drop|ends|hn|inf|keep|kv|lens|linear|ln|mask|nan|nh|rel|saturate|sizes|split|thd|truncate|vk"
_VALUE = (r"'[^']*'|[\w/-]+\.[\w/:.-]*\w|-?[A-Z0-9.][^\s;)']*(?<![.,:])|"
          r"(?:[a-z]+[\d-][\w-]*|" + _CHOICES + r")(?![\w-])|[a-z]\w*(?=[;:,.)']|$)")
_OPTION = re.compile(rf"(?<![\w-])--([a-z][a-z0-9-]*)(?:[ =]({_VALUE}))?(?: (?=--))?", re.M)
_ARGUMENT = rf"(?:-o|--[a-z][a-z0-9-]*)(?:[ =](?:{_VALUE}))?|'[^']*'|\.\.\.|[A-Z][A-Z_]*\b|[\w/-]+\.[\w/:.-]*\w"
_COMMAND = re.compile(rf"\bejk ((?:audit |check |generate )?[a-z][a-z-]*)((?: (?:{_ARGUMENT}))+)", re.M)
_NO_ARRAYS = {"check", "compare", "fingerprint", "hash", "info", "params", "replay", "seq-info", "sharding",
              "sparsity"}
_REPLAYED = {"attention", "attention-grad", "audit", "check", "compare", "conv1d", "grouped-matmul",
             "linear-attention", "moe", "transposed-grouped-matmul"}
_AGAINST = {"explain": True, "brief": True}


class Error(Exception):
    """Invalid use, input or output: exit status 2 to 5 of the program. `str()` is its message with the hint."""

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = status


class Option(NamedTuple):
    """An option of a command: what its value is, its choices if they are few, and its purpose."""

    value: str
    choices: tuple[str, ...]
    text: str


class _Options(Dict[str, Option]):
    def __repr__(self) -> str:
        return "\n".join(f"{name}={option.value}: {option.text}" for name, option in self.items())


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


class Quantized:
    """Quantised values and their scales, an array wherever the program reads one; see fp8(), mx(), nvfp4(), gptoss()."""

    def __init__(self, scheme: str, arrays: Mapping[str, Any], options: Mapping[str, Any]):
        self.scheme, self.arrays, self.options = scheme, arrays, options

    def __repr__(self) -> str:
        return f"<ejk {self.scheme}({', '.join(self.arrays)})>"


def fp8(values: Any, scales: Any, **options: Any) -> Quantized:
    """8-bit floats times their scales: one, also a number, or one of a row, column or block. Options: block=(128, 128),
    needed where the shapes do not tell blocks of a power of two; layout. Arrays may also be references to files, as
    text."""
    return Quantized("fp8", {"values": values, "scales": scales}, options)


def mx(values: Any, scales: Any, **options: Any) -> Quantized:
    """Blocks of 32 along the last axis, with scales float8_e8m0fnu or uint8. Options: element ("e4m3", "e5m2", "e2m3",
    "e3m2", "e2m1"; by default the type of the values, and e2m1 for bytes), axis, layout ("linear", "128x4", "8x4",
    "deepgemm"), nibbles ("low", "high": where the even element is; "split": elements j and j + 16 of a block, as GGML).
    Two e2m1 are a byte, four 6-bit floats three.

    >>> codes = memoryview(bytes([0x21] * 16)).cast("B", (1, 16))
    >>> run("convert", mx(codes, memoryview(bytes([128])).cast("B", (1, 1))))["values"].tolist()[0][:4]
    [1.0, 2.0, 1.0, 2.0]
    """
    return Quantized("mx", {"values": values, "scales": scales}, options)


def nvfp4(values: Any, scales: Any, global_scale: Any = 1, **options: Any) -> Quantized:
    """Blocks of 16 e2m1, two in a byte, with scales float8_e4m3fn and a global scale, a number or an array. Options:
    global_ ("multiply", "divide"), axis, layout, nibbles."""
    return Quantized("nvfp4", {"values": values, "scales": scales, "global_scale": global_scale}, options)


def gptoss(blocks: Any, scales: Any, **options: Any) -> Quantized:
    """Blocks (..., n, 16) of 32 e2m1 with scales (..., n). Options: layout, nibbles."""
    return Quantized("gptoss", {"blocks": blocks, "scales": scales}, options)


def program() -> str:
    """The path of the program: $EJK_PROGRAM, that of this package's wheel, or the first on PATH."""
    for path in _programs():
        if path and os.access(path, os.X_OK):
            return path
    raise FileNotFoundError("the program ejk is not installed; set EJK_PROGRAM to its path")


def _programs() -> Iterator[str | None]:
    join = os.path.join
    yield os.environ.get("EJK_PROGRAM")
    yield join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "bin", "ejk")  # pip install --target
    yield join(sysconfig.get_path("scripts"), "ejk")
    yield join(os.path.dirname(sys.executable), "ejk")
    yield join(sysconfig.get_path("scripts", os.name + "_user"), "ejk")
    yield shutil.which("ejk")


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_array(value: Any) -> bool:
    return not isinstance(value, (str, bytes)) and (
        isinstance(value, list) and _is_number_list(value) or _is_torch(value) or hasattr(value, "__array__")
        or hasattr(value, "__dlpack__") or _has_buffer(value))


def _has_buffer(value: Any) -> bool:
    try:
        memoryview(value)
    except TypeError:
        return False
    return True


def _is_block_mask(value: Any) -> bool:
    """Whether a value is a BlockMask of torch's FlexAttention."""
    return type(value).__name__ == "BlockMask" and type(value).__module__.startswith("torch.")


_BLOCK_LISTS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices", "q_num_blocks", "q_indices",
                "full_q_num_blocks", "full_q_indices")


def _block_lists(mask: Any) -> dict[str, Any]:
    """The arrays of a BlockMask, those of batch entries as further heads: the layout flex of `ejk mask-info`."""
    lists = {name: getattr(mask, name) for name in _BLOCK_LISTS}
    lists = {name: array.flatten(0, 1)[None] for name, array in lists.items() if array is not None}
    return lists | {"seq_lengths": [*mask.seq_lengths], "BLOCK_SIZE": [*mask.BLOCK_SIZE]}


def _mask_mod_pairs(mask: Any) -> Any:
    """The mask_mod of a BlockMask on all positions, a bool tensor (B, H, Q, K)."""
    from torch.nn.attention.flex_attention import create_mask

    (entries, heads), lists = mask.kv_indices.shape[:2], mask.kv_indices
    return create_mask(mask.mask_mod, entries, heads, *mask.seq_lengths, device=lists.device).expand(entries, heads, -1, -1)


def _block_mask_pairs(mask: Any) -> Any:
    """The pairs that a kernel computes of a BlockMask: full blocks whole, mask_mod in partial ones. A bool tensor
    (B, H, Q, K), whose copies take 4 bytes an element at most."""
    import torch

    def listed(number: Any, indices: Any) -> Any:
        (q_block, kv_block), (queries, keys) = mask.BLOCK_SIZE, mask.seq_lengths
        columns = -(-keys // kv_block)
        unused = torch.arange(indices.shape[-1], device=indices.device) >= number[..., None]
        grid = torch.zeros(*indices.shape[:-1], columns + 1, dtype=torch.bool, device=indices.device)
        grid = grid.scatter(-1, indices.masked_fill(unused, columns).long(), True)[..., :columns]
        return grid.repeat_interleave(q_block, -2)[..., :queries, :].repeat_interleave(kv_block, -1)[..., :keys]

    pairs = _mask_mod_pairs(mask) & listed(mask.kv_num_blocks, mask.kv_indices)
    if mask.full_kv_indices is not None:
        pairs |= listed(mask.full_kv_num_blocks, mask.full_kv_indices)
    return pairs


def _as_check_takes(inputs: dict[str, Any], options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A BlockMask as its arrays, to be checked against its own mask_mod unless a mask is given, or it has none."""
    masks = [value for value in inputs.values() if _is_block_mask(value)]
    if len(masks) != 1:
        return inputs, options
    inputs = {name: _block_lists(value) if _is_block_mask(value) else value for name, value in inputs.items()}
    if len(inputs) == 2 and "mask" not in options and getattr(masks[0].mask_mod, "__name__", "") != "noop_mask":
        options = options | {"mask": _mask_mod_pairs(masks[0]).flatten(0, 1)}
    return inputs, options


def _number(value: Any) -> Any:
    """A Python number for a scalar of NumPy or torch; other values as they are."""
    is_scalar = getattr(value, "shape", None) == () and hasattr(value, "item")
    return value.item() if is_scalar else value


def _is_number_list(value: list[Any]) -> bool:
    """Whether a list, nested or not, has numbers alone, as an array has."""
    return all(_is_number_list(item) if isinstance(item, list) else isinstance(_number(item), (int, float))
               for item in value)


def _elements_of_list(value: list[Any]) -> tuple[str, tuple[int, ...], Any]:
    shape, row = [], value
    while isinstance(row, list):
        shape.append(len(row))
        row = row[0] if row else None
    flat = value
    for length in shape[1:]:
        if any(not isinstance(row, list) or len(row) != length for row in flat):
            raise TypeError("rows of a list have different lengths")
        flat = [item for row in flat for item in row]
    numbers = [_number(item) for item in flat]
    if any(isinstance(number, list) for number in numbers):
        raise TypeError("rows of a list have different lengths")
    kinds = {type(number) for number in numbers}
    if kinds == {bool}:
        return "bool", tuple(shape), bytes(numbers)
    dtype, code = ("float64", "d") if float in kinds else ("int64", "q")
    return dtype, tuple(shape), array.array(code, numbers).tobytes()


def _type_name(value: Any) -> Any:
    """The name of an element type of torch, NumPy, JAX or Python; other values as they are."""
    if type(value).__module__ == "torch" and type(value).__name__ == "dtype":
        return str(value).removeprefix("torch.")
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (type, numpy.dtype)):
        return numpy.dtype(value).name
    return {bool: "bool", int: "int64", float: "float64"}.get(value, value) if isinstance(value, type) else value


def _elements(value: Any) -> tuple[str, tuple[int, ...], Any]:
    """Type name, shape and bytes in C order of an array."""
    if isinstance(value, list):
        return _elements_of_list(value)
    if _is_torch(value):
        tensor = value.detach().resolve_conj().resolve_neg().cpu()  # views whose bytes have other signs
        if str(tensor.dtype) == "torch.float4_e2m1fn_x2":
            tensor = tensor.view(sys.modules["torch"].uint8)
        tensor = tensor.contiguous()
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


def _write(path: Path, arrays: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> None:
    """A safetensors file."""
    elements = {name: _elements(value) for name, value in arrays.items()}
    for name, (dtype, _, _) in elements.items():
        if dtype not in _TYPES:
            raise TypeError(f"{name}: arrays of {dtype} are not supported; convert it to one of {', '.join(_TYPES)}")
    order = [*_TYPES]
    sorted_elements = sorted(elements.items(), key=lambda item: order.index(item[1][0]))
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    end = 0
    for name, (dtype, shape, data) in sorted_elements:
        begin, end = end, end + memoryview(data).nbytes
        header[name] = {"dtype": _TYPES[dtype], "shape": shape, "data_offsets": (begin, end)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, (_, _, data) in sorted_elements:
            file.write(data)


def _read(path: Path, as_torch: bool) -> dict[str, Any]:
    """The arrays of a safetensors file, in a private mapping that outlives it."""
    with open(path, "rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    return {name: _array(memoryview(data)[start + entry["data_offsets"][0]:start + entry["data_offsets"][1]],
                         _NAMES[entry["dtype"]], entry["shape"], as_torch) for name, entry in sorted(header.items())}


def _array(data: memoryview, dtype: str, shape: list[int], as_torch: bool) -> Any:
    bits = _BITS.get(dtype, dtype)
    if as_torch:
        import torch

        kind = getattr(torch, dtype, None) or getattr(torch, bits)
        return (torch.frombuffer(data, dtype=kind) if data.nbytes else torch.empty(0, dtype=kind)).reshape(shape)
    try:
        import numpy
    except ImportError:
        code = next(c for c, name in _FORMAT.items() if name == bits)
        return data.cast(code, shape) if data.nbytes else memoryview(b"")
    array = numpy.frombuffer(data, dtype=bits).reshape(shape)
    if bits == dtype:
        return array
    try:
        import ml_dtypes
    except ImportError:
        return array
    return array.view(getattr(ml_dtypes, dtype, bits))


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A new folder, in memory where there is /dev/shm. Its lock ends with this process, however that ends."""
    memory = "/dev/shm"
    parent = memory if os.access(memory, os.W_OK | os.X_OK) else tempfile.gettempdir()
    _remove_abandoned(parent)
    lock = None
    while lock is None:
        place = tempfile.mkdtemp(prefix=f"ejk-{os.getpid()}-", dir=parent)
        lock = _lock_new(place)
    try:
        yield Path(place)
    finally:
        shutil.rmtree(place, ignore_errors=True)
        os.close(lock)


def _lock_new(place: str) -> int | None:
    """Locks a new folder. None if another process has removed it, which found it before it was locked."""
    try:
        lock = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return None
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(lock, fcntl.LOCK_EX)
    if os.path.exists(place):
        return lock
    os.close(lock)
    return None


def _remove_abandoned(parent: str) -> None:
    """Removes the folders of this user that no process has locked: those of killed ones."""
    with contextlib.suppress(OSError):
        for name in filter(_FOLDER.match, os.listdir(parent)):
            with contextlib.suppress(OSError):  # gone, or in use
                place = os.path.join(parent, name)
                folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    if os.fstat(folder).st_uid == os.geteuid():
                        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        shutil.rmtree(place, ignore_errors=True)
                finally:
                    os.close(folder)


def _value_in_python(word: str) -> str:
    if re.fullmatch(r"\d+(x\d+)+", word):
        return f"({word.replace('x', ', ')})"
    is_placeholder = re.search("[A-Z]", word) and "." not in word
    return word if word[0] == "'" or is_placeholder or re.fullmatch(r"-?[\d.]+(e-?\d+)?|\.\.\.", word) else f'"{word}"'


def _described(command: list[str]) -> list[dict[str, Any]] | None:
    """What the program declares of the options and arguments of a command. None if it has no such command."""
    done = subprocess.run([program(), "help", *command, "--json"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        return None
    declared: list[dict[str, Any]] = json.loads(done.stdout)["options"]
    return [option for option in declared if option["name"].startswith("-")]


def _flags(words: list[str]) -> set[str]:
    """The flags of the command, or of its action, of a command line."""
    declared = _described(words[:1]) or _described(words[:2]) or []
    return {option["name"][2:] for option in declared if not option["type"]}


def options(command: str) -> Mapping[str, Option]:
    """The options of a command, by the names that they have as keyword arguments: "attention", "check mask-info".

    >>> options("cdiv")["by"]
    Option(value='B', choices=(), text='what to divide by, at least 1')
    """
    declared = _described(command.split())
    if declared is None:
        raise ValueError(f"'{command}' is no command: see ejk help, and of check, generate and params name the action")
    found = _Options()
    for option in declared:
        name, _, flag = _option_in_python(option["name"][2:], None, "=True").partition("=")
        value = re.sub(r"[A-Z]\w*?(?:x[A-Z]\w*?)+\b", lambda sizes: f"({sizes[0].replace('x', ', ')})", option["type"])
        value = re.sub(r"REF\[,REF\]|READ\[,WRITE\]", "array or (array, array)", value).replace("REF", "array")
        found[name] = Option(value or flag, tuple(option["choices"]), _in_python(option["summary"]))
    return found


def _option_in_python(option: str, value: str | None, flag: str = "") -> str:
    """`--by 2` as `by=2`; a flag as `by`, or with `flag`, `by=True`."""
    is_off = option.startswith("no-") and value is None
    name = option.removeprefix("no-" if is_off else "").replace("-", "_")
    name += "_" if keyword.iskeyword(name) else ""
    return name + ("=False" if is_off else f"={_value_in_python(value)}" if value else flag)


def _call_in_python(command: str, words: str) -> str:
    arguments = [f'"{word}"' for word in command.split()]
    for word in re.findall(_ARGUMENT, words, re.M):
        option = _OPTION.match(word)
        if option:
            arguments.append(_option_in_python(option[1], option[2], "=True"))
        elif not word.startswith("-o"):
            arguments.append(_value_in_python(word))
    return f"ejk.run({', '.join(arguments)})"


def _in_python(text: str, flags: Iterable[str] = ()) -> str:
    """The words of a message in those of this module: `--dtype int32` is dtype="int32", commands are calls, and `flags`
    are true."""

    def option(found: re.Match[str]) -> str:
        is_name = found[1] not in flags or found.string[found.end():].startswith(":")  # "--pad: ..."
        return _option_in_python(found[1], found[2], "" if is_name else "=True") + (", " if found[0][-1] == " " else "")

    text = re.sub(r"'ejk ([a-z -]+) -h'", r'ejk.options("\1")', text)
    return _OPTION.sub(option, _COMMAND.sub(lambda found: _call_in_python(found[1], found[2]), text))


def _option(name: str, value: Any) -> Any:
    """The value of an option, of types that other libraries have for it."""
    if isinstance(value, list) and name in _TUPLES:
        return tuple(value)
    if name == "dt_limit" and isinstance(value, (list, tuple)):  # no sizes
        return ",".join(str(_number(limit)) for limit in value)
    value = _type_name(_number(value))
    is_no_cap = name == "softcap" and isinstance(value, (int, float)) and value == 0  # flash attention's default
    return None if is_no_cap else value


class _Call:
    """A command line whose arrays are files of a temporary folder."""

    def __init__(self, folder: Path, command: str):
        self.folder, self.command = folder, command
        self.as_torch = False
        self.files: dict[str, Mapping[str, Any]] = {}

    def file_of(self, name: str, arrays: Mapping[str, Any]) -> str:
        self.as_torch = self.as_torch or any(map(_is_torch, arrays.values()))
        path = self.folder / f"{name}.safetensors"
        if not path.exists():
            _write(path, arrays)
            self.files[name] = arrays
        return os.fspath(path)

    def word(self, name: str, value: Any) -> str:
        if isinstance(value, Quantized):
            return self.quantized_word(name, value)
        if isinstance(value, Mapping):
            return self.file_of(name, value)
        if _is_block_mask(value):
            value = _block_mask_pairs(value)
            if value.shape[0] == 1 and not self.command.startswith("attention"):
                value = value[0]  # commands without a batch take (H, Q, K)
        if isinstance(value, tuple) or isinstance(value, list) and not _is_array(value):
            sizes = [_number(item) for item in value]
            if all(isinstance(size, int) for size in sizes):
                return "x".join(map(str, sizes))
            return ",".join(self.word(f"{name}{i}", item) for i, item in enumerate(value))
        if not _is_array(value):
            return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
        file = f"{self.file_of(name, {name: value})}:{name}"
        return f'file("{file}")' if name.rstrip("0123456789") in _EXPRESSIONS else file

    def quantized_word(self, name: str, value: Quantized) -> str:
        arrays = {part: array for part, array in value.arrays.items() if _is_array(array)}
        file = self.file_of(name, arrays) if arrays else ""
        words = []
        for part, array in value.arrays.items():
            word = f"{file}:{part}" if part in arrays else self.word(f"{name}_{part}", array)
            words.append(word if isinstance(array, (int, float, Quantized)) else f'"{word}"')
        words += [f"{key.rstrip('_')}={self.word(key, option)}" for key, option in value.options.items()
                  if option is not None]
        return f"{value.scheme}({','.join(words)})"

    def words(self, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> list[str]:
        options = {key.rstrip("_"): _option(key, value) for key, value in options.items()}
        texts = {key: [*value] if isinstance(value, list) and not _is_array(value) else [value]
                 for key, value in options.items() if value is not None}
        named = set()  # arrays that an expression names
        for key in _EXPRESSIONS & texts.keys():
            for i, text in enumerate(texts[key]):
                for name, value in options.items() if isinstance(text, str) else ():
                    pattern = rf'(?<![\w./:"-]){re.escape(name)}(?![\w./:"(=-])'
                    is_file = _is_block_mask(value) or isinstance(value, Mapping)
                    if name != key and (is_file or _is_array(value)) and re.search(pattern, text):
                        named.add(name)
                        arrays = value if isinstance(value, Mapping) else {name: value}
                        arrays = _block_lists(value) if _is_block_mask(value) else arrays
                        word = f'"{self.file_of(name, arrays)}{"" if is_file else ":" + name}"'
                        text = re.sub(pattern, lambda _, word=word: word, text)
                texts[key][i] = text
        words = [self.word(name, value) for name, value in inputs.items()]
        for key, values in texts.items():
            option = "--" + key.replace("_", "-")
            for i, value in enumerate(values) if key not in named else ():
                name = ("actual" if key == "against" else key) + (str(i) if i else "")
                if isinstance(value, bool):
                    words.append(option if value else "--no-" + option[2:])
                else:
                    words.append(f"{option}={self.word(name, value)}")
        return words

    def without_paths(self, text: str, mark: str = "") -> str:
        """Arrays have the names of their files, after `mark`."""
        quote = r'\\"' if text.startswith("{") else '"'  # those of an expression, in JSON escaped
        text = re.sub(rf"{quote}{re.escape(str(self.folder))}/(\w+)\.safetensors:\1{quote}", rf"{mark}\1", text)
        text = text.replace(f"{self.folder}/results.safetensors:", "")
        before, *parts = text.split(f"{self.folder}/")
        return before + "".join(_FILE.sub(rf"{mark}\1", part, count=1) for part in parts)

    def run(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([program(), *words], stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8",
                              errors="replace")
        done.stdout, done.stderr = self.without_paths(done.stdout), self.without_paths(done.stderr)
        if done.returncode < 0 or done.returncode > 1:
            raise Error(_in_python(done.stderr.strip(), _flags(words)) or f"ejk {words[0]}: ended by signal {-done.returncode}", done.returncode)
        return done


def _device_of(arrays: Iterable[Any]) -> str:
    torch = sys.modules.get("torch")
    for array in arrays:
        if torch is not None and _is_torch(array) and array.is_cuda:
            return str(torch.cuda.get_device_name(array.device))
    return "cpu"


def _write_replay(call: _Call, words: list[str], message: str, version: str) -> str:
    """Writes a failed assertion to a file of $EJK_REPLAY, for `ejk replay`. Returns the line about it."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "script").rpartition(" (")[0] or "script"
    name = re.sub(r"[^\w.-]", "_", test, flags=re.A)
    if len(name) > 200:  # parameters may be longer than names of files
        name = f"{name[:190]}-{zlib.crc32(test.encode()):08x}"
    arrays = {file if [file] == [*parts] else f"{file}:{part}": array
              for file, parts in call.files.items() for part, array in parts.items()}
    versions = {"python": platform.python_version(), "device": _device_of(arrays.values())}
    versions |= {module: str(sys.modules[module].__version__) for module in ("torch", "numpy") if module in sys.modules}
    command = [call.without_paths(word, "@") for word in words
               if not word.startswith(("--output=", "--html=", "--picture="))]  # a replayed command writes nothing
    metadata = {"ejk_replay": "1", "command": json.dumps(command),
                "ejk_version": version, "test": test, "versions": json.dumps(versions), "exit": "1",
                "message": message}
    path = os.path.join(os.environ["EJK_REPLAY"], f"{name}.safetensors")
    try:
        os.makedirs(os.environ["EJK_REPLAY"], exist_ok=True)
        _write(Path(f"{path}.{os.getpid()}"), arrays, metadata)
        os.replace(f"{path}.{os.getpid()}", path)
    except OSError as error:
        return f"\nreplay: not written: {error}"
    return f"\nreplay: ejk replay {shlex.quote(path)}"


def _run(command: str, inputs: Mapping[str, Any], options: Mapping[str, Any], raises: bool = True) -> Result:
    __tracebackhide__ = True  # pytest shows the caller
    if command == "check":
        inputs, options = _as_check_takes({**inputs}, {**options})
    with _folder() as place:
        call = _Call(place, command)
        words = [command, *call.words(inputs, options)]
        results = call.folder / "results.safetensors"
        to_results = [] if command in _NO_ARRAYS or {"o", "output", "against"} & options.keys() else ["-o", str(results)]
        done = call.run([*words, "--json", *to_results])
        if done.returncode == 1 and raises:
            # The report as text: --brief prints the verdict beside the JSON.
            is_printed = options.get("brief") and not options.get("verbose")
            text = done.stderr if is_printed else call.run(words).stdout
            message = _in_python(text, _flags(words)).rstrip()
            if os.environ.get("EJK_REPLAY") and command in _REPLAYED:
                message += _write_replay(call, words, message, json.loads(done.stdout)["ejk_version"])
            raise AssertionError(message)
        return Result(_read(results, call.as_torch) if results.exists() else {}, json.loads(done.stdout))


def run(command: str, *inputs: Any, **options: Any) -> Result:
    """Runs a command, with its action if it has some ("check mask-info"): `inputs` are its arguments, `options` its
    options, with `_` for `-`; ejk.options(command) lists them.

    A value is what the command line takes, as a string or path; a number; True (`--flag`) or False (`--no-flag`); an
    array, also as a list of numbers, or mx(values, scales) and the like; a tuple of integers, (128, 128) for 128x128; a
    dtype of torch, NumPy or JAX; a dict of arrays, for a file of several; a list, to repeat the option. None is no option.
    An array whose keyword occurs in a mask expression has that name there: `mask="documents(cu)", cu=cu`. A BlockMask of
    FlexAttention is a mask: the pairs that a kernel computes of it. In `mask="visited(m)", m=block_mask` it is its blocks.

    Raises AssertionError with the report if the answer is no (exit status 1), else Error if the program fails.

    >>> run("mask", mask="causal & segments(ids)", ids=bytearray([1, 1, 2]), shape=(3, 3))["mask"].tolist()
    [[True, False, False], [True, True, False], [False, False, True]]
    """
    __tracebackhide__ = True
    name, *action = command.split() or [""]
    return _run(name, {f"input{i}": value for i, value in enumerate([*action, *inputs])}, options)


def _results_of(out: Any, second: Any, name: str = "lse", command: str = "attention") -> Mapping[str, Any]:
    """The arrays that a kernel returned: out, (out, second), or a dict of several; `name` is that of the second."""
    if isinstance(out, Mapping):
        return {**out} if second is None else {**out, name: second}
    if isinstance(out, (tuple, list)) and not _is_array(out):
        results = list(out)
        while len(results) > 1 and results[-1] is None:
            results.pop()
        if len(results) > 2 or (len(results) == 2 and second is not None):
            raise TypeError(f"out is a tuple of {len(out)} results; give out, {name} and others that ejk {command} has "
                            f"by name: {{'out': ..., '{name}': ...}}")
        out, second = results if len(results) == 2 else (results[0], second)
    return {"out": out} if second is None else {"out": out, name: second}


def assert_attention(out: Any, q: Any, k: Any, v: Any, *, lse: Any = None, **options: Any) -> Result:
    """Asserts that `out`, and `lse` if given, are attention's results for q, k, v: every element within the error bound
    of a kernel that rounds softmax weights to the type of v. `out` may be what a kernel returns: (out, lse), or a dict
    of results by name. `options` are those that ejk.options("attention") lists: mask, scale,
    softcap, bias, sinks, alibi, layout, segment_ids, cu_seqlens, weights, scores, ...

    The AssertionError begins with the verdict: which array is wrong, in which share of its elements, and why.
    verbose=True adds where, by how much, and what was compared.
    """
    __tracebackhide__ = True
    return _run("attention", {"q": q, "k": k, "v": v}, _AGAINST | options | {"against": _results_of(out, lse)})


def assert_attention_grad(dq: Any, dk: Any, dv: Any, q: Any, k: Any, v: Any, dout: Any, *, dbias: Any = None,
                          dsinks: Any = None, **options: Any) -> Result:
    """The same for gradients; None for a gradient that is not compared. Options: ejk.options("attention-grad")."""
    __tracebackhide__ = True
    actual = {"dq": dq, "dk": dk, "dv": dv, "dbias": dbias, "dsinks": dsinks}
    actual = {name: array for name, array in actual.items() if array is not None}
    return _run("attention-grad", {"q": q, "k": k, "v": v, "dout": dout}, _AGAINST | options | {"against": actual})


def assert_grouped_matmul(out: Any, lhs: Any, rhs: Any, group_sizes: Any, **options: Any) -> Result:
    """Asserts that rows of `out` (m, n) are those of lhs (m, k) times their group's matrix of rhs (groups, k, n). Options:
    ejk.options("grouped-matmul")."""
    __tracebackhide__ = True
    inputs = {"lhs": lhs, "rhs": rhs, "group_sizes": group_sizes}
    return _run("grouped-matmul", inputs, _AGAINST | options | {"against": out})


def assert_moe(out: Any, x: Any, gate_up: Any, down: Any, topk_ids: Any = None, weights: Any = None,
               **options: Any) -> Result:
    """Asserts that `out` (tokens, hidden) is the layer of experts of x (tokens, hidden), gate_up (experts, hidden,
    2 inter), down (experts, inter, hidden) and the choices and weights (tokens, k) of a router, or its logits:
    `logits=..., top_k=...`. Other options, ejk.options("moe"): transpose_weights=True for matrices (experts, out, in), up,
    activation, score, renormalize, bias, ...
    """
    __tracebackhide__ = True
    inputs = {"x": x, "gate": gate_up, "down": down} | ({} if topk_ids is None else {"topk_ids": topk_ids})
    return _run("moe", inputs, _AGAINST | {"weights": weights} | options | {"against": out})


def assert_linear_attention(out: Any, q: Any, k: Any, v: Any, *, final_state: Any = None, **options: Any) -> Result:
    """Asserts that `out`, and `final_state` if given, are those of linear attention, Gated DeltaNet, KDA, Mamba-2 or a
    relative: every element within the error bound of a kernel that computes in chunks and rounds factors of products to
    the type of q, k and v. `out` may be what a kernel returns: (out, final_state), or a dict of results by name.

    The recurrence is what `options` say, those of ejk.options("linear-attention"). Arrays: decay, beta, dt, a_log,
    dt_bias, skip, cu_seqlens, initial_state, has_initial_state, and state_indices, one or (READ, WRITE). Others:
    delta=True, l2norm=True, beta_sigmoid=2, lower_bound=-5, decay_space="linear", layout="bhsd", state_layout="vk",
    as_="mamba", weights="tf32", ...

        ejk.assert_linear_attention(chunk_gated_delta_rule(q, k, v, g, beta), q, k, v, decay=g, beta=beta, delta=True)
        ejk.assert_linear_attention(y, C, B, x, as_="mamba", dt=dt, a_log=A_log, dt_bias=bias, dt_softplus=True, skip=D)

    The AssertionError begins with the verdict: which array is wrong, in which share of its elements, and why.
    """
    __tracebackhide__ = True
    actual = _results_of(out, final_state, "final_state", "linear-attention")
    return _run("linear-attention", {"q": q, "k": k, "v": v}, _AGAINST | options | {"against": actual})


def assert_conv1d(out: Any, x: Any, weight: Any, *, final_state: Any = None, **options: Any) -> Result:
    """The same for a short causal convolution of x (batch, sequence, channels) with weight (channels, width). Options,
    those of ejk.options("conv1d"): bias, activation="silu", layout="bds", cu_seqlens, initial_state, ..."""
    __tracebackhide__ = True
    actual = _results_of(out, final_state, "final_state", "conv1d")
    return _run("conv1d", {"x": x, "weight": weight}, _AGAINST | options | {"against": actual})


def assert_close(actual: Any, expected: Any, **options: Any) -> Result:
    """Asserts that two arrays, or two dicts of arrays, are close, with the tolerance of the coarser dtype unless `rtol`
    and `atol` are given. The AssertionError explains the difference. Options: ejk.options("compare").

    >>> assert_close(memoryview(b"abc"), memoryview(b"abc")).report["result"]["close"]
    True
    """
    __tracebackhide__ = True
    return _run("compare", {"actual": actual, "expected": expected}, {"explain": True} | options)


def check(kind: str, *inputs: Any, **options: Any) -> Result:
    """Asserts that arrays are a valid artefact of this kind: "cu-seqlens", "mask-info", "block-table", ...; see `ejk help
    check`, and for options ejk.options("check cu-seqlens"). The AssertionError lists the findings. check("mask-info", block_mask) holds the lists of FlexAttention's
    BlockMask against its own mask_mod, or against `mask=...`.

    >>> check("cu-seqlens", memoryview(b"\\x00\\x03\\x07").cast("b"), tokens=7).report["result"]["errors"]
    0
    """
    __tracebackhide__ = True
    return run("check", kind, *inputs, **options)


def audit(kind: str, *inputs: Any, test: Callable[[Any, Any], Any] | None = None, **options: Any) -> Result:
    """Asserts that a test would catch every known fault that a kernel of this kind may have with these inputs: "attention"
    (q, k, v), "attention-grad" (q, k, v, dout) or "grouped-matmul" (lhs, rhs, group_sizes). Options, those of
    ejk.options("audit attention"): mask, scale, ..., and when the test passes: tolerance="torch.testing", rtol, atol, ...;
    ignore=["inputs-tf32"] for faults that it may miss.

    `test(actual, expected)` is the test itself in place of a tolerance: it catches what it raises AssertionError for, or
    returns False. Of gradients it gets tuples (dq, dk, dv). The result has the mutants: result["causal-late"].

    The AssertionError lists the faults that are missed, and what would show them.
    """
    __tracebackhide__ = True
    arrays = {"kind": kind, **{f"input{i}": value for i, value in enumerate(inputs)}}
    if test is None:
        return _run("audit", arrays, options)
    result = _run("audit", arrays, options, raises=False)
    parts = [".dq", ".dk", ".dv"] if kind == "attention-grad" else [""]

    def is_caught(name: str) -> bool:
        taken = [tuple(result[of + part] for part in parts) for of in (name, "expected")]
        try:
            return test(*(taken if len(parts) > 1 else (one[0] for one in taken))) is False
        except AssertionError:
            return True

    content = result.report["result"]
    names = {name.removesuffix(parts[0]) for name in result if name.endswith(parts[0])}
    for fault in content["faults"]:
        variants = [name for name in names if name.partition(".")[0] == fault["fault"]]
        fault["caught"], fault["largest"] = all(map(is_caught, variants)), None
    content["caught"] = sum(fault["caught"] for fault in content["faults"])
    missed = [fault for fault in content["faults"] if not (fault["caught"] or fault["ignored"])]
    content["missed"] = [fault["fault"] for fault in missed]
    if missed:
        rows = [f"  {fault['fault']}: {fault['text']}{'. ' + fault['remedy'] if fault['why'] == 'inert' else ''}"
                for fault in missed]
        raise AssertionError("\n".join([f"{getattr(test, '__name__', 'the test')} would not catch {len(rows)} of "
                                        f"{len(content['faults'])} faults", *rows]))
    return result


def _library_of(x: Any) -> tuple[Any, Callable[[Any], Any]]:
    """torch or NumPy, and a function that gives its arrays the library, type, device and strides of `x`."""
    if _is_torch(x):
        import torch

        return torch, lambda array: torch.empty_like(x).copy_(array)
    import numpy

    namespace = getattr(x, "__array_namespace__", lambda: numpy)()  # jax.numpy of a JAX array
    return numpy, lambda array: namespace.asarray(array.astype(x.dtype))


def _first_result(result: Any) -> Any:
    """A copy of a function's only or first result, in main memory: a torch tensor or a NumPy array."""
    while isinstance(result, (tuple, list)):
        result = result[0]
    if _is_torch(result):
        return result.detach().to("cpu", copy=True)
    import numpy

    return numpy.array(result)


def probe(kernel: Callable[[Any, Any, Any], Any], q: Any, k: Any, v: Any = None, *, weights: bool = False,
          layout: str = "bshd") -> Any:
    """The pairs of query and key that kernel(q, k, v) uses, bool (batch, heads, queries, keys); with `weights` its
    softmax weights, float32. `layout` is "bshd" or "bhsd"; packed inputs, without a batch, are one entry.

    The kernel is called with values that are one-hot columns, of the shape and type of `v`, or else of `k`:
    keys / (size of a value) calls, rounded up. A pair is used where its weight is NaN or not 0, so no weight should
    underflow: scores are small, or q is 0. Of a tuple the first result is taken. The result is a torch tensor if q
    is one, else a NumPy array.
    """
    if layout not in ("bshd", "bhsd"):
        raise ValueError(f'layout is "bshd" or "bhsd", not {layout!r}')
    v = k if v is None else v
    library, like = _library_of(v)
    axis = -3 if layout == "bshd" else -2
    (keys, size), parts = (v.shape[axis], v.shape[-1]), []
    for first in range(0, max(keys, 1), size):
        values = library.zeros(v.shape, dtype=library.float32)
        column = library.arange(min(size, keys - first))
        library.moveaxis(values, axis, -2)[..., first + column, column] = 1
        out = _first_result(kernel(q, k, like(values)))
        if out.shape != (*q.shape[:-1], size):
            raise ValueError(f"the kernel's result is {(*out.shape,)}, not {(*q.shape[:-1], size)}: the shape of q with "
                             "the size of v")
        part = library.moveaxis(out, axis, -2)[..., :len(column)]
        parts.append(library.asarray(part, dtype=library.float32) if weights else part != 0)
    result = library.concatenate(parts, -1)
    return result if result.ndim == 4 else result[None]


def _other_elements(library: Any, x: Any, is_float: bool) -> Any:
    """Another element for each, within the range of `x`; those of a token do not all change by the same."""
    if not is_float:
        low, high = x.min(), x.max()
        return library.where(x == high, low if low != high else high ^ 1, high)
    fractions = library.arange(math.prod(x.shape), dtype=library.float64).reshape(x.shape) * ((5**0.5 - 1) / 2) % 1
    largest = float(abs(x).max())
    steps = (fractions + 1) / 2 * (largest if 0 < largest < math.inf else 1)
    return library.where(x < 0, x + steps, x - steps)


def probe_tokens(function: Callable[[Any], Any], x: Any, axis: int = 1) -> Any:
    """Which tokens of function(x) change with which token of `x`, bool (tokens of the result, tokens of `x`): of
    attention, a convolution, a recurrence, a layer, or a model of token ids.

    Tokens are along `axis` of both; of a tuple the first result is taken. The function is called twice with `x`, and
    once for each token, with other elements within the range of `x` in its place. Any difference counts: results must
    not depend on the order of parallel sums. Raises ValueError where the two equal calls differ. The result is a
    torch tensor if x is one, else a NumPy array.
    """
    library, like = _library_of(x)
    is_float = "float" in str(x.dtype)
    plain = _first_result(x)
    plain = library.asarray(plain, dtype=library.float64) if is_float else plain

    def call(given: Any) -> Any:
        out = library.moveaxis(_first_result(function(like(given))), axis, 0)
        return out.reshape(len(out), math.prod(out.shape[1:]))

    def differs(out: Any) -> Any:
        return ((out != expected) & ((out == out) | (expected == expected))).any(1)

    expected = call(plain)
    if differs(call(plain)).any():
        raise ValueError("two equal calls differ: the function has dropout, a state, or sums in any order")
    tokens = x.shape[axis]
    depends = library.zeros((len(expected), tokens)) != 0
    if math.prod(x.shape):
        others = _other_elements(library, plain, is_float)
        at = library.arange(tokens).reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])
        for token in range(tokens):
            depends[:, token] = differs(call(library.where(at == token, others, plain)))
    return depends
