#!/usr/bin/env python3
"""Times grouped products of other libraries beside ejk's, in one run: NumPy, PyTorch, oneDNN, JAX.

    cmake -S . -B build -G Ninja -DEJK_BENCH=ON && cmake --build build --target ejk_peer
    pip install numpy ml_dtypes torch jax        # what is missing of the last two is left out and named
    python tests/bench/peers.py                  # all of --list
    python tests/bench/peers.py --case fwd-moe8,dw-tiny3-f32 --rounds 9

Every library has a process of its own, which answers the requests at the top of ejk_peer.cpp. In each round all
run the case, in shuffled order; short work as often as fills 20 ms. One that takes over ten times as long as
the fastest runs once after a run to warm up ("~"). A line is a case: medians in milliseconds, and ejk's time as
a multiple of the best peer's. Before, a sample of each peer's result is compared with float64.
OMP_NUM_THREADS sets everybody's threads (default: all cores).
"""
import argparse
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import time

ITEM = {"f32": "float32", "f64": "float64", "bf16": "bfloat16", "f16": "float16"}
TOLERANCE = {"f32": 1e-4, "f64": 1e-12, "bf16": 2e-2, "f16": 5e-3}
THREADS = os.environ.get("OMP_NUM_THREADS") or str(len(os.sched_getaffinity(0)))


def parts(m, weights):
    sizes = [int(m * w / sum(weights)) for w in weights]
    sizes[weights.index(max(weights))] += m - sum(sizes)
    return sizes


def all_cases():
    rng = random.Random(7)
    zipf = rng.sample([1 / rank for rank in range(1, 65)], 64)
    half = rng.sample([0.0] * 64 + [rng.uniform(0.1, 1) for _ in range(64)], 128)
    uneven = [rng.uniform(0.5, 1.5) for _ in range(8)]
    work = [("moe8", 4096, 1024, 1024, [512] * 8, "f32 bf16 f64"),  # as in bench_grouped_matmul.cpp
            ("zipf64", 8192, 2048, 1408, parts(8192, zipf), "f32 bf16"),
            ("few32", 1024, 2048, 1408, [32] * 32, "f32 bf16"),
            ("big8", 2048, 4096, 4096, parts(2048, uneven), "f32 bf16"),
            ("empty128", 512, 512, 512, parts(512, half), "f32 bf16"),
            ("tiny3", 300, 64, 32, [100, 150, 50], "f32 bf16"),
            ("mid4", 512, 512, 512, parts(512, uneven[:4]), "f16")]
    for op in ("fwd", "dw"):
        for name, m, k, n, sizes, dtypes in work:
            for dtype in dtypes.split():
                yield dict(family="gmm", name=f"{op}-{name}-{dtype}", op=op, m=m, k=k, n=n, g=len(sizes),
                           sizes=sizes, dtype=dtype)


# --- Peers: (run, result as an array of NumPy). A library is imported where it is used, in its own process. ---
def inputs(c):
    import numpy as np

    table = np.random.default_rng(1).normal(0, 0.1, 65537)
    if c["dtype"] == "bf16":
        import ml_dtypes  # it gives NumPy the type
    table = table.astype(ml_dtypes.bfloat16 if c["dtype"] == "bf16" else ITEM[c["dtype"]])
    m, k, n, g = c["m"], c["k"], c["n"], c["g"]
    shapes = ((m, k), (g, k, n), (m, n)) if c["op"] == "fwd" else ((k, m), (m, n), (g, k, n))
    return np.resize(table, shapes[0]), np.resize(table, shapes[1]), np.zeros(shapes[2], table.dtype)


def groups(c):
    ends = [sum(c["sizes"][: g + 1]) for g in range(c["g"])]
    return [(g, end - size, end) for g, (size, end) in enumerate(zip(c["sizes"], ends))]


def loop(c, left, right, out, multiply):
    """multiply(left, right, out, group) for each group with rows; the others' transposed product is 0."""
    def run(every=groups(c)):
        for g, s, e in every:
            if e > s and c["op"] == "fwd":
                multiply(left[s:e], right[g], out[s:e], g)
            elif e > s:
                multiply(left[:, s:e], right[s:e], out[g], g)
            elif c["op"] == "dw":
                out[g] = 0
        return out

    return run


def with_numpy(c):
    import numpy as np

    if c["dtype"] not in ("f32", "f64"):
        raise ValueError("no BLAS for " + c["dtype"])
    return loop(c, *inputs(c), lambda a, b, out, g: np.matmul(a, b, out=out)), lambda out: out


def torch_inputs(c):
    import torch

    kind = getattr(torch, ITEM[c["dtype"]])
    arrays = [torch.from_numpy(x.astype("float64")).to(kind) for x in inputs(c)]
    return torch, arrays, lambda out: out.to(torch.float64).numpy()


def with_torch(c):
    torch, arrays, read = torch_inputs(c)
    return loop(c, *arrays, lambda a, b, out, g: torch.mm(a, b, out=out)), read


def with_torch_grouped(c):
    torch, (left, right, _), read = torch_inputs(c)
    grouped = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
    ends = torch.tensor(c["sizes"]).cumsum(0).to(torch.int32)
    return lambda: grouped(left, right, offs=ends), read


def with_onednn(c):
    """Linear layers without a bias. Weights of the forward product are packed before, as for inference."""
    torch, arrays, read = torch_inputs(c)
    pack = torch.ops.mkldnn._reorder_linear_weight
    weights = [pack(b.t().contiguous()) for b in arrays[1]] if c["op"] == "fwd" else []

    def multiply(a, b, out, g):
        out.copy_(torch.ops.mkldnn._linear_pointwise(a, weights[g] if weights else b.t(), None, "none", [], ""))

    return loop(c, *arrays, multiply), read


def with_jax(c):
    import jax
    import numpy as np

    if 2 * c["m"] * c["k"] * c["n"] * c["g"] > 2e11:
        raise ValueError(f"multiplies every row with all {c['g']} groups")
    jax.config.update("jax_enable_x64", c["dtype"] == "f64")
    sizes, product = jax.numpy.asarray(c["sizes"], "int32"), jax.lax.ragged_dot
    if c["op"] == "dw":
        numbers = jax.lax.RaggedDotDimensionNumbers((((1,), (0,)), ((), ())), [1], [])
        product = lambda a, b, sizes: jax.lax.ragged_dot_general(a, b, sizes, numbers)  # noqa: E731
    compiled, (left, right) = jax.jit(product), map(jax.numpy.asarray, inputs(c)[:2])
    return lambda: jax.block_until_ready(compiled(left, right, sizes)), np.asarray


def check(c, out):
    import numpy as np

    (left, right, _), worst, live = inputs(c), 0.0, [group for group in groups(c) if group[2] > group[1]]
    for g, s, e in (live[0], live[len(live) // 2], live[-1]):  # one row of each
        row = (s + e) // 2 if c["op"] == "fwd" else c["k"] // 2
        a, b = (left[row], right[g]) if c["op"] == "fwd" else (left[row, s:e], right[s:e])
        got = out[row] if c["op"] == "fwd" else out[g, row]
        exact = a.astype(np.float64) @ b.astype(np.float64)
        worst = max(worst, np.abs(got.astype(np.float64) - exact).max() / np.abs(exact).max())
    empty = c["op"] == "fwd" or not any(out[g].any() for g, s, e in groups(c) if s == e)
    if not (worst < TOLERANCE[c["dtype"]] and empty):
        raise ValueError(f"wrong by {worst:.1e}" if empty else "wrong: an empty group is not 0")


def avx512_on_amd():
    # Unless it is told otherwise, OpenBLAS takes its AVX2 kernels on AMD's CPUs that have AVX-512.
    cpu = open("/proc/cpuinfo").read()
    return {"OPENBLAS_CORETYPE": "SkylakeX"} if "AuthenticAMD" in cpu and "avx512bw" in cpu else {}


PEERS = {"numpy": ("numpy", with_numpy), "torch.mm": ("torch", with_torch), "ragged_dot": ("jax", with_jax),
         "grouped_mm": ("torch", with_torch_grouped), "oneDNN": ("torch", with_onednn)}


# --- A process each, and the rounds. ---
def worker(name):
    def timed():
        begin = time.perf_counter()
        run()
        return time.perf_counter() - begin

    answers, sys.stdout = sys.stdout, sys.stderr  # what a library prints is no answer
    for request in map(json.loads, sys.stdin):
        try:
            if request["op"] == "setup":
                run = read = None  # gives back the memory of the case before
                run, read = PEERS[name][1](request["case"])
                check(request["case"], read(run()))
                answer = {"ok": True, "warm": timed()}
            else:
                times = [timed()]
                while sum(times) < 0.02:
                    times.append(timed())
                answer = {"ok": True, "seconds": sum(times) / len(times)}
        except Exception as error:  # of any library
            answer = {"ok": False, "why": (str(error) or type(error).__name__).split("\n")[0][:80]}
        print(json.dumps(answer), file=answers, flush=True)


def start(*command):
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                            text=True, env={**os.environ, "OMP_NUM_THREADS": THREADS, **avx512_on_amd()})


def ask(process, **request):
    try:
        print(json.dumps(request), file=process.stdin, flush=True)
        return json.loads(process.stdout.readline())
    except (OSError, ValueError):
        return {"ok": False, "why": "its process ended"}


def time_case(c, processes, rounds):
    answers = {name: ask(process, op="setup", case=c) for name, process in processes.items()}
    warm = {name: answer["warm"] for name, answer in answers.items() if answer["ok"]}
    once = {name for name in warm if warm[name] > max(0.2, 10 * min(warm.values()))}
    times = {name: [warm[name]] if name in once else [] for name in warm}
    for _ in range(rounds):
        for name in random.sample(sorted(warm.keys() - once), len(warm) - len(once)):
            time.sleep(0.3)  # threads of the one before look for more work, OpenBLAS' for over 0.05 s
            times[name].append(ask(processes[name], op="run").get("seconds", float("nan")))
    took = {name: 1e3 * statistics.median(t) for name, t in times.items()}
    line = f"{c['name']:18}" + "".join(f"  {name} {'~' * (name in once)}{ms:.3g}" for name, ms in took.items())
    ejk, best = took.pop("ejk", None), min(took.keys() - {"ejk"}, key=took.get, default=None)
    line += f"  => {ejk / took[best]:.2f} of {best}" if ejk and best else ""
    left_out = {name: answer["why"] for name, answer in answers.items() if not answer["ok"]}
    print(line, *(f"\n    {name}: {why}" for name, why in left_out.items()), sep="", flush=True)
    raw = {name: [float(f"{1e3 * seconds:.4g}") for seconds in taken] for name, taken in times.items()}
    return {"case": c["name"], "ms": raw, "left out": left_out}


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--case", default="", help="only names that contain one of these, separated by commas")
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--ejk", default="build/tests/bench/ejk_peer", help="the program ejk_peer")
    options.add_argument("--raw", help="a JSON file for every time that was taken, not only the medians")
    options.add_argument("--list", action="store_true", help="the cases")
    options.add_argument("--worker", help=argparse.SUPPRESS)
    o = options.parse_args()
    if o.worker:
        return worker(o.worker)
    cases = [c for c in all_cases() if any(word in c["name"] for word in o.case.split(","))]
    if o.list or not cases:
        return print(*(c["name"] for c in cases or all_cases()), sep="\n")
    processes = {"ejk": start(o.ejk)} if os.path.exists(o.ejk) else print(f"ejk: no {o.ejk}") or {}
    for name in PEERS:
        if importlib.util.find_spec(PEERS[name][0]) is None:
            print(f"{name}: {PEERS[name][0]} is not installed")
        else:
            processes[name] = start(sys.executable, __file__, "--worker", name)
    print(f"milliseconds, {THREADS} threads")
    taken = [json.dumps(time_case(c, processes, o.rounds)) for c in cases]
    if o.raw:
        with open(o.raw, "w") as file:
            file.write("[\n" + ",\n".join(taken) + "\n]\n")
    for process in processes.values():
        process.communicate()


if __name__ == "__main__":
    main()
