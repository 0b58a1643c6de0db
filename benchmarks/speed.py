"""Local steps per second on W1 to W4, beside plain JAX, DrJAX and a PyTorch loop in one run.

    python -m benchmarks.speed                       # everything, a few minutes
    python -m benchmarks.speed --workloads W1 W4 --candidates ours ours-2dev jax-vmap

Every candidate runs in a process of its own, one at a time; the whole list is gone through
``--repeats`` times so that a disturbed stretch of the machine hits all alike.  A row is the median
of the repeats' medians, the first calls (compilation) left out.  Ratios within one run are what
counts.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

from benchmarks.workloads import WORKLOADS

# name -> (candidate, its argument, host devices)
CANDIDATES = {
    "ours": ("ours", "auto", 1),
    "ours-2dev": ("ours", "sharded", 2),
    "jax-vmap": ("jax_vmap", None, 1),
    "jax-map": ("jax_map", None, 1),
    "drjax-mesh": ("drjax_mesh", None, 2),
    "torch-loop-1": ("torch_loop", 1, 1),
    "torch-loop-2": ("torch_loop", 2, 1),
}


def measure(name: str, workload: str, seconds: float) -> dict:
    """Runs in the candidate's own process."""
    from benchmarks import candidates

    w = WORKLOADS[workload]
    kind, argument, _ = resolve(name)
    if kind == "ours":
        # About a second of work a dispatch, as a run with few evaluations has.
        rounds = 200 if w.model == "logistic" else 20 if w.model == "softmax" else 2
        one_call = candidates.ours(w, argument, rounds)
    elif kind == "torch_loop":
        one_call = candidates.torch_loop(w, argument)
    else:
        one_call = getattr(candidates, kind)(w)
    began = time.perf_counter()
    one_call()
    first = time.perf_counter() - began
    if first < seconds:
        one_call()
    times, start = [], time.perf_counter()
    while not times or (time.perf_counter() - start < seconds and len(times) < 50):
        began = time.perf_counter()
        done = one_call()
        times.append((time.perf_counter() - began) / done)
    return {"seconds": statistics.median(times), "first_call": first, "calls": len(times)}


def resolve(name: str) -> tuple:
    """A named candidate, or ``ours=STRATEGY[:N][@DEVICES]`` for any strategy of ours."""
    if name in CANDIDATES:
        return CANDIDATES[name]
    strategy, _, devices = name.removeprefix("ours=").partition("@")
    return "ours", strategy, int(devices or 1)


def in_process(name: str, workload: str, seconds: float) -> dict:
    devices = resolve(name)[2]
    env = dict(os.environ, JAX_PLATFORMS=os.environ.get("JAX_PLATFORMS", "cpu"))
    if devices > 1:
        flag = f" --xla_force_host_platform_device_count={devices}"
        env["XLA_FLAGS"] = env.get("XLA_FLAGS", "") + flag
    command = [sys.executable, "-m", "benchmarks.speed", "--measure", name]
    command += ["--workloads", workload, "--seconds", str(seconds)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{name} on {workload} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--candidates", nargs="+", default=None)
    parser.add_argument("--seconds", type=float, default=8.0, help="per candidate and repeat")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path, default=None, help="JSON file")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure, args.workloads[0], args.seconds)))
        return
    available = {"torch_loop": "torch", "drjax_mesh": "drjax"}
    names = args.candidates or [
        n
        for n, (kind, *_) in CANDIDATES.items()
        if kind not in available or importlib.util.find_spec(available[kind])
    ]
    results: dict = {w: {n: [] for n in names} for w in args.workloads}
    for _ in range(args.repeats):
        for workload in args.workloads:
            for name in names:
                results[workload][name].append(in_process(name, workload, args.seconds))
    table = {w: {n: summarize(w, runs) for n, runs in rows.items()} for w, rows in results.items()}
    for workload, rows in table.items():
        print(f"\n{workload}  {WORKLOADS[workload].flops_per_round / 1e9:.3g} GFLOP a round")
        for name, row in sorted(rows.items(), key=lambda item: item[1]["ms_per_round"]):
            print(
                f"  {name:22s} {row['ms_per_round']:10.2f} ms a round (best {row['best_ms']:.2f})"
                f" {row['local_steps_per_second']:12.0f} local steps/s {row['gflops']:8.1f} GFLOP/s"
            )
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(table, indent=1) + "\n")


def summarize(workload: str, runs: list[dict]) -> dict:
    w = WORKLOADS[workload]
    seconds = statistics.median(r["seconds"] for r in runs)
    return {
        "ms_per_round": round(1e3 * seconds, 3),
        "best_ms": round(1e3 * min(r["seconds"] for r in runs), 3),
        "local_steps_per_second": round(w.steps_per_round / seconds),
        "gflops": round(w.flops_per_round / seconds / 1e9, 2),
        "first_call_seconds": round(statistics.median(r["first_call"] for r in runs), 2),
    }


if __name__ == "__main__":
    main()
