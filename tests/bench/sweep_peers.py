#!/usr/bin/env python3
"""The drawn cases of ejk_sweep beside PyTorch and NumPy, one thread each.

    cmake -S . -B build -G Ninja -DEJK_TESTS=ON && cmake --build build --target ejk_sweep
    pip install numpy torch
    python tests/bench/sweep_peers.py [--count 300] [--seed 1] [--ejk build/tests/ejk_sweep] [--over 1.5]

Each case runs in ejk_sweep, then in the libraries that have it, then in ejk_sweep again with the next: processor time,
the least of several turns. Peers: torch.mm and NumPy's matmul for each group, scaled_dot_product_attention with its
backward pass, and the same as two products with a softmax between. float16 products are timed in float32, which
is faster there and leaves out the conversion. Printed are the cases above 50 us that take --over times the best peer, the
worst first.
"""
import argparse
import json
import os
import subprocess
import time

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import numpy as np  # noqa: E402
import torch  # noqa: E402

SHORT = 50e-6


def laid(shape, dtype, order="rows"):
    """Normal numbers; columns: the last two axes are a transpose in memory."""
    if order == "columns":
        shape = (*shape[:-2], shape[-1], shape[-2])
    made = torch.randn(*shape).mul_(0.1).to(dtype)
    return made.transpose(-1, -2) if order == "columns" else made


def products(c):
    dtype = torch.float32 if c["dtype"] == "float16" else getattr(torch, c["dtype"])
    groups, rows, k, n, dw = c["groups"], c["rows"], c["k"], c["n"], c["op"] == "dw"
    lhs = laid((k, groups * rows) if dw else (groups * rows, k), dtype, c["lhs"])
    rhs = laid((groups * rows, n) if dw else (groups, k, n), dtype, c["rhs"])
    out = torch.empty((groups, k, n) if dw else (groups * rows, n), dtype=dtype)
    every = [slice(g * rows, (g + 1) * rows) for g in range(groups)]
    parts = [(lhs[:, s], rhs[s], out[g]) if dw else (lhs[s], rhs[g], out[s]) for g, s in enumerate(every)]
    peers = {"torch.mm": lambda: [torch.mm(a, b, out=o) for a, b, o in parts]}
    if dtype in (torch.float32, torch.float64):
        arrays = [tuple(x.numpy() for x in part) for part in parts]
        peers["numpy"] = lambda: [np.matmul(a, b, out=o) for a, b, o in arrays]
    return peers


def attention(c):
    dtype, gradients = getattr(torch, c["dtype"]), c["op"] == "gradients"
    q = laid((c["entries"], c["heads"], c["queries"], c["size"]), dtype)
    k, v = (laid((c["entries"], c["kv_heads"], c["keys"], c["size"]), dtype, c[x]) for x in "kv")
    for x in (q, k, v):
        x.requires_grad_(gradients)
    dout, group = torch.randn_like(q), c["heads"] // c["kv_heads"]

    def fused():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=group > 1)

    def plain():
        keys, values = (x.repeat_interleave(group, 1) if group > 1 else x for x in (k, v))
        return torch.matmul(torch.softmax(torch.matmul(q, keys.transpose(-1, -2)) * c["size"] ** -0.5, -1), values)

    def run(forward):
        out = forward()
        if gradients:
            torch.autograd.grad(out, (q, k, v), dout)

    return {"sdpa": lambda: run(fused), "softmax": lambda: run(plain)}


def least_seconds(run, turns=6):
    """The least mean of as many runs as fill a millisecond."""
    run()
    least = float("inf")
    for _ in range(turns):
        begin, runs = time.process_time(), 0
        while True:
            run()
            runs += 1
            taken = time.process_time() - begin
            if taken >= 1e-3:
                break
        least = min(least, taken / runs)
    return least


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--count", type=int, default=300)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--ejk", default="build/tests/ejk_sweep", help="the program ejk_sweep")
    options.add_argument("--over", type=float, default=1.5)
    o = options.parse_args()
    torch.set_num_threads(1)
    sweep = subprocess.Popen([o.ejk, "cases", str(o.count), str(o.seed)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             text=True)
    ratios = []
    for _ in range(o.count):
        print(file=sweep.stdin, flush=True)
        line = sweep.stdout.readline()
        if not line:
            break
        case = json.loads(line)
        peers = (products if case["op"] in ("product", "dw") else attention)(case)
        times = {name: least_seconds(run) for name, run in peers.items()}
        best = min(times, key=times.get)
        ratios.append((case["seconds"] / times[best], case["seconds"], best, case["name"]))
    long = sorted((r for r in ratios if r[1] > SHORT), reverse=True)
    print(f"{len(ratios)} shapes, {len(long)} of 50 us and more: "
          f"{sum(r[0] > o.over for r in long)} above {o.over} x the best peer, {sum(r[0] < 1 for r in long)} ahead")
    print(f"{'ms':>9} {'ratio':>6}")
    for ratio, seconds, peer, name in long:
        if ratio > o.over:
            print(f"{1e3 * seconds:9.4f} {ratio:6.2f} {peer}: {name}")


if __name__ == "__main__":
    main()
