#!/usr/bin/env python3
"""Makes the arrays in this folder from a text: python3 make.py Isaac.Newton-Opticks.txt

README.md says where the text comes from and what the arrays are. Needs NumPy and h5py; the arrays are checked
in, so nothing in the build needs this script.
"""

import hashlib
import itertools
import json
import pathlib
import re
import sys
import zipfile
import zlib

import h5py
import numpy as np

TEXT_SHA256 = "d4a9ac22462b35e7821a4f2706c211093da678620a8f9997989ee7cf8d507bbd"
HERE = pathlib.Path(__file__).resolve().parent


def tokens_of_paragraphs(text):
    """The tokens of each paragraph, in the order of the text."""
    body = text[text.index("OPTICKS:") :].replace("_", "")
    paragraphs = (p for p in re.split(r"\n\s*\n", body) if p.strip())
    return [re.findall(r"\w+|[^\w\s]", p) for p in paragraphs]


def packed(lengths, tokens):
    """Lengths of the paragraphs that fill one sequence; the last is cut where the sequence ends."""
    row = []
    for n in lengths:
        row.append(min(n, tokens - sum(row)))
        if sum(row) == tokens:
            return row
    raise ValueError("the text is too short")


def packed_segment_ids(lengths, rows, tokens):
    """(rows, tokens): whole paragraphs, numbered from 1 in each row; 0 where the next one did not fit."""
    ids = np.zeros((rows, tokens), np.int32)
    row, column, segment = 0, 0, 0
    for n in lengths:
        if column + n > tokens:
            row, column, segment = row + 1, 0, 0
            if row == rows:
                return ids
        segment += 1
        ids[row, column : column + n] = segment
        column += n
    raise ValueError("the text is too short")


def padding_mask(lengths, rows, tokens, shortest):
    """(rows, tokens): a tokenizer's attention mask of one paragraph a row, cut or padded on the right."""
    chosen = [n for n in lengths if n >= shortest][:rows]
    return (np.arange(tokens) < np.array(chosen)[:, None]).astype(np.int64)


def documents(lengths, tokens):
    """(tokens, tokens): both tokens are of the same paragraph."""
    row = packed(lengths, tokens)
    ids = np.repeat(np.arange(len(row)), row)
    return ids[:, None] == ids[None, :]


def group_sizes(tokens, experts):
    """How many tokens each expert gets, where a hash of a token's text chooses its expert."""
    chosen = [zlib.crc32(token.encode()) % experts for token in tokens]
    return np.bincount(chosen, minlength=experts).astype(np.int32)


def eighths(*shape):
    """Multiples of 1/8 from -1 to 1, from a formula."""
    n = np.arange(np.prod(shape), dtype=np.int64)
    return ((n * 37 % 101 % 17 - 8) / 8).astype(np.float32).reshape(shape)


def experts():
    """A layer of four experts, the second of which has no token, and a gradient."""
    tokens, grad = eighths(32, 16), eighths(32, 8)[::-1].copy()
    return {
        "tokens": tokens,
        "tokens_t": tokens.T.copy(),
        "experts": eighths(4, 16, 8),
        "group_sizes": np.array([9, 0, 17, 6], np.int32),
        "grad": grad,
    }


def attention():
    """Two rows of 32 tokens, four query heads and two of keys and values, and a gradient."""
    ids = np.repeat([[1, 2, 3, 0], [1, 2, 0, 0]], [9, 13, 4, 6], axis=1)
    return {
        "q": eighths(2, 32, 4, 8),
        "k": eighths(2, 32, 2, 8)[:, ::-1].copy(),
        "v": eighths(2, 32, 2, 8)[::-1].copy(),
        "dout": eighths(2, 32, 4, 8)[::-1, ::-1].copy(),
        "segment_ids": ids.astype(np.int32),
        "cu_seqlens": np.array([0, 9, 22, 26, 32], np.int32),
    }


def e2m1(x):
    """Codes of e2m1, to the nearest."""
    levels = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    codes = np.abs(np.abs(x)[..., None] - levels).argmin(-1) + 8 * np.signbit(x)
    return codes.astype(np.uint8)


E4M3 = np.array(
    [(8 * (c > 7) + c % 8) * 2.0 ** (max(c // 8, 1) - 10) for c in range(127)], np.float32
)  # by code, positive


def as_bfloat16(x):
    """The bits of the upper half, rounded to nearest even."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def model():
    """A layer with two experts in bfloat16, and in NVFP4 as ModelOpt names it; (dtype, array) by name.

    The scales of one tensor are in the layout of cuBLAS (128x4), which the shapes do not tell from the linear one.
    """
    random = np.random.RandomState(16)
    original, quantised = {}, {}
    for expert, part in itertools.product(range(2), ("gate_proj", "up_proj")):
        # Channels of different size, as weights have them.
        sizes = 0.02 * np.exp(0.5 * random.standard_normal((128, 1)))
        bits = as_bfloat16(sizes * random.standard_normal((128, 64)))
        name = f"model.layers.0.mlp.experts.{expert}.{part}.weight"
        original[name] = ("BF16", bits)
        w = (bits.astype(np.uint32) << 16).view(np.float32)
        factor = np.float32(0.25 / (448 * 6))  # of all: a fused kernel takes one for gate and up
        blocks = w.reshape(128, 4, 16)
        scale_codes = np.abs(np.abs(blocks).max(-1)[..., None] / (6 * factor) - E4M3).argmin(-1).astype(np.uint8)
        codes = e2m1(blocks / np.maximum(E4M3[scale_codes] * factor, 1e-30)[..., None]).reshape(128, 64)
        if (expert, part) == (1, "up_proj"):
            scale_codes = scale_codes.reshape(4, 32, 4).transpose(1, 0, 2).reshape(128, 4)
        quantised[name] = ("U8", codes[:, ::2] | codes[:, 1::2] << 4)
        quantised[f"{name}_scale"] = ("F8_E4M3", scale_codes)
        quantised[f"{name}_scale_2"] = ("F32", np.array(factor))
        quantised[name.replace("weight", "input_scale")] = ("F32", np.array(0.01, np.float32))
    return original, quantised


def write_safetensors(path, tensors):
    header, end = {}, 0
    for name, (dtype, array) in tensors.items():
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(np.ascontiguousarray(array).tobytes() for _, array in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def write_npz(path, arrays):
    """np.savez_compressed without the time of day, so that the same arrays give the same bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            info = zipfile.ZipInfo(f"{name}.npy")
            info.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(info, "w") as member:
                np.lib.format.write_array(member, array)


def main():
    raw = pathlib.Path(sys.argv[1]).read_bytes()
    if hashlib.sha256(raw).hexdigest() != TEXT_SHA256:
        sys.exit(f"{sys.argv[1]}: not the text that README.md names")
    paragraphs = tokens_of_paragraphs(raw.decode("utf-8"))
    lengths = [len(p) for p in paragraphs]

    lens = np.array(packed(lengths, 16384), np.int32)
    arrays = {
        "lens": lens,
        "cu_seqlens": np.concatenate([[0], np.cumsum(lens)]).astype(np.int32),
        "segment_ids": packed_segment_ids(lengths, 4, 4096),
        "padding_mask": padding_mask(lengths, 32, 128, 32),
    }
    for name, array in arrays.items():
        np.save(HERE / f"{name}.npy", array)

    first = list(itertools.chain.from_iterable(paragraphs))[: sum(lens)]
    np.save(HERE / "group_sizes.npy", group_sizes(first, 16))

    q, k = np.ogrid[:1024, :1024]
    same = documents(lengths, 1024)
    causal = q >= k
    write_npz(
        HERE / "masks.npz",
        {"causal_document": same & causal, "prefix": causal | (k < 256), "window": causal & (q - k < 128) & same},
    )

    with h5py.File(HERE / "text.h5", "w") as file:
        file["paragraph_lengths"] = np.array(lengths, np.int32)
        for name, array in arrays.items():
            small = array.ndim == 1
            file.create_dataset(name, data=array, **({} if small else {"compression": "gzip", "shuffle": True}))
        file.create_dataset("attention_mask", data=(same & causal)[None], chunks=(1, 128, 256), compression="gzip")

    for made in (experts, attention):
        with h5py.File(HERE / f"{made.__name__}.h5", "w") as file:
            for name, array in made().items():
                file[name] = array

    original, quantised = model()
    write_safetensors(HERE / "model-bf16.safetensors", original)
    write_safetensors(HERE / "model-nvfp4.safetensors", quantised)

    print(f"{len(lengths)} paragraphs, {sum(lengths)} tokens; {len(lens)} paragraphs in the packed sequence")


if __name__ == "__main__":
    main()
