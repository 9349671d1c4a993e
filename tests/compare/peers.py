#!/usr/bin/env python3
"""Compares the verdicts of `ejk compare` with those of NumPy and PyTorch, on random pairs of arrays.

    pip install numpy torch
    python tests/compare/peers.py build/apps/ejk             # 400 pairs; exit status 1 if any verdict is another
    python tests/compare/peers.py build/apps/ejk 2000 --seed 7

numpy.testing.assert_allclose and torch.testing.assert_close judge with explicit tolerances; torch also with its own
where they are ejk's: 16-bit floats, integers and bool. Pairs are equal, nearly equal or far apart, some with NaN and
infinities on one side or both.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

import numpy
import torch

DTYPES = ["float16", "bfloat16", "float32", "float64", "bool", "uint8", "int32", "int64"]
OWN_DEFAULTS = set(DTYPES) - {"float32", "float64"}


def save(path, tensor):
    if tensor.dtype != torch.bfloat16:
        return numpy.save(path, tensor.numpy())
    header = f"{{'descr': '<V2', 'fortran_order': False, 'shape': {tuple(tensor.shape)}, }}".ljust(117) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\x00\x76\x00" + header.encode() + tensor.view(torch.int16).numpy().tobytes())


def random_pair(random, dtype):
    shape = tuple(random.integers(1, 6, size=random.integers(1, 4)))
    x = torch.from_numpy(random.standard_normal(shape) * 10.0 ** random.integers(-3, 4))
    y = x * (1 + 10.0 ** random.uniform(-9, 0) * torch.from_numpy(random.standard_normal(shape)))
    if random.random() < 0.3:
        y = x.clone()
    for side in (x, y):
        if random.random() < 0.15:
            side.view(-1)[0] = float(random.choice([numpy.nan, numpy.inf, -numpy.inf]))
    if not dtype.is_floating_point:
        x, y = (torch.nan_to_num(side, 0, 100, -100).abs().clamp(max=100) for side in (x, y))
        if random.random() < 0.5:
            y = x.clone()
    return x.to(dtype), y.to(dtype)


def is_close(judge, *arguments, **options):
    try:
        judge(*arguments, **options)
    except AssertionError:
        return False
    return True


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("ejk", type=pathlib.Path)
    options.add_argument("pairs", type=int, nargs="?", default=400)
    options.add_argument("--seed", type=int, default=0)
    o = options.parse_args()
    random = numpy.random.default_rng(o.seed)
    verdicts = {True: 0, False: 0}
    wrong = 0

    with tempfile.TemporaryDirectory() as folder:
        a, e = pathlib.Path(folder, "a.npy"), pathlib.Path(folder, "e.npy")

        def ours(*words):
            return subprocess.run([o.ejk.resolve(), "compare", a, e, "-q", *words], capture_output=True).returncode == 0

        def check(who, theirs, words, actual, expected):
            nonlocal wrong
            verdicts[theirs] += 1
            if ours(*words) != theirs:
                wrong += 1
                print(f"{who} says {theirs} with {words or 'its own tolerance'}:\n{actual}\n{expected}")

        for pair in range(o.pairs):
            name = DTYPES[pair % len(DTYPES)]
            actual, expected = random_pair(random, getattr(torch, name))
            save(a, actual)
            save(e, expected)
            close = torch.testing.assert_close
            if name in OWN_DEFAULTS:
                check("torch", is_close(close, actual, expected, equal_nan=True), [], actual, expected)
            rtol, atol = 10.0 ** random.uniform(-7, -1), float(random.choice([0, 1e-8, 1e-3]))
            for equal_nan in (True, False):
                words = ["--rtol", repr(rtol), "--atol", repr(atol)] + ([] if equal_nan else ["--no-equal-nan"])
                how = {"rtol": rtol, "atol": atol, "equal_nan": equal_nan}
                if name != "bool":  # which has no tolerance there
                    check("torch", is_close(close, actual, expected, **how), words, actual, expected)
                if name not in ("bool", "bfloat16"):
                    theirs = is_close(numpy.testing.assert_allclose, actual.numpy(), expected.numpy(), **how)
                    check("numpy", theirs, words, actual, expected)

    print(f"{verdicts[True]} verdicts close, {verdicts[False]} not, {wrong} of them others than ours")
    return wrong > 0


sys.exit(main())
