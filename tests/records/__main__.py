"""Records of results that a change of the code must not move.

    python -m tests.records record FOLDER [--only TEXT]
    python -m tests.records compare OLD NEW [--float32 0] [--float64 0]

``record`` writes one file per record: the final states of every algorithm of the catalogue in both
precisions, under every execution, sweeps, and the histories of the commands in ``commands.txt``.
It skips records that exist, so it can be stopped and started again.  ``compare`` expects equal
bytes, or a largest difference relative to the largest entry of each array.

The bits of a compiled program depend on the processor and on the version of JAX.  Both folders must
come from one machine: make the old one in a work tree of the older commit.
"""

import argparse
import contextlib
import functools
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

_HERE = pathlib.Path(__file__).resolve().parent
_TESTS = _HERE.parent
sys.path[:0] = [str(_TESTS / "algorithms"), str(_TESTS / "helpers")]
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Threads for eight devices to wait for each other in, also on a machine of two cores.
os.environ.setdefault("NPROC", "16")

# ruff: noqa: E402
import catalogue
import jax
import jax.numpy as jnp
import numpy as np
import small_problems
from call_records import records, sweep_on

import fedjax_sim as fs

Record = Callable[[], Any]  # returns a tree of arrays
_KEYS = functools.partial(jax.random.split, jax.random.key(7))
# One algorithm of each kind that keeps client states or not, and what the server does with means.
_KINDS = sorted(catalogue.REPRESENTATIVES - {"favano_realised"})
_EXECUTIONS = {
    "vmapped": fs.execution.vmapped,
    "sequential": fs.execution.sequential,
    "chunked": lambda: fs.execution.chunked(2),
    "sharded": lambda: fs.execution.sharded(jax.make_mesh((2,), ("clients",))),
}


def _numbers(name: str) -> dict[str, float]:
    return catalogue.ALGORITHMS[name][1]


def _setup(name: str, task: fs.Task | None = None, timeline: fs.Timeline | None = None) -> fs.Setup:
    return fs.Setup(
        catalogue.task() if task is None else task,
        catalogue.timeline_of(name) if timeline is None else timeline,
        small_problems.logistic_params(),
        eval_fn=lambda params: params,
        eval_every=2,
    )


def _traced(name: str) -> Any:
    """The state after a run whose hyper-parameters are arguments of its program."""
    return catalogue.trained(name)


def _simulated(name: str, setup: Callable[[str], fs.Setup] = _setup, **options: Any) -> Any:
    """State and history of ``simulate`` with hyper-parameters that are Python numbers."""
    algorithm = catalogue.algorithm(name, _numbers(name))
    result = fs.simulate(algorithm, setup(name), jax.random.key(2), **records(**options))
    return result.state, result.history


def _swept(name: str) -> Any:
    factory, values = catalogue.ALGORITHMS[name]
    first = next(iter(values))
    fixed = {key: value for key, value in values.items() if key != first}
    setup = _setup(name, timeline=catalogue.current(name))
    params = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), setup.params)
    result = sweep_on(
        jax.devices()[:1],
        functools.partial(factory, **fixed),
        fs.Setup(setup.task, setup.timeline, params, eval_fn=lambda params: params, eval_every=2),
        {first: [values[first], 0.7 * values[first]]},
        _KEYS(2),
    )
    return [run.history for run in result.runs]


def _placed(where: Any, num_strata: int | None = None) -> Callable[[str], fs.Setup]:
    """A setup whose clients are placed on devices or on the host, on a timeline of 5 rounds."""

    def setup(name: str) -> fs.Setup:
        batches = fs.with_replacement(2, num_steps=3)
        data = small_problems.logistic_data()
        task = fs.empirical_task(small_problems.logistic_losses, data, batches, placement=where())
        key, clients = jax.random.key(3), small_problems.NUM_CLIENTS
        timeline = (
            fs.timelines.uniform(key, 5, clients, 3, task.num_steps)
            if num_strata is None
            else fs.timelines.stratified(
                key, 5, clients, num_strata, task.num_steps, num_strata=num_strata
            )
        )
        return _setup(name, task, fs.timelines.dropout(jax.random.key(4), timeline, 0.3))

    return setup


def _on_devices() -> Any:
    mesh = jax.make_mesh((8,), ("clients",))
    return fs.execution.by_client(small_problems.NUM_CLIENTS, mesh, num_strata=8)


def _records() -> Iterator[tuple[str, str, Record]]:
    """Yields group, name and function of every record of the library."""
    for name in catalogue.ALGORITHMS:
        yield "traced", name, functools.partial(_traced, name)
        yield "simulated", name, functools.partial(_simulated, name)
    for name in _KINDS:
        yield "swept", name, functools.partial(_swept, name)
        for execution, strategy in _EXECUTIONS.items():
            options = {"execution": strategy()}
            yield execution, name, functools.partial(_simulated, name, **options)
        on_host = _placed(lambda: fs.execution.on_host(memory=2 * 16 * 40, states=True))
        yield "on_host", name, functools.partial(_simulated, name, on_host)
        by_client = _placed(_on_devices, num_strata=8)
        yield "eight_devices", name, functools.partial(_simulated, name, by_client)


def _arrays(tree: Any) -> dict[str, np.ndarray]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    result = {}
    for path, leaf in leaves:
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        result[jax.tree_util.keystr(path)] = np.asarray(leaf)
    return result


def _write(path: pathlib.Path, record: Record) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        arrays = _arrays(record())
    except ValueError as error:  # an algorithm refuses some setups, and must go on doing so
        arrays = {"ValueError": np.array(str(error))}
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        np.savez(file, **arrays)
    partial.rename(path)


def _write_command(path: pathlib.Path, command: str) -> None:
    """Runs a command in a folder of its own, and keeps its table of results."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        words = [*shlex.split(command), "--output", "out"]
        # Eight devices would give the runs other places than a user's machine does.
        flags = os.environ["XLA_FLAGS"].replace("--xla_force_host_platform_device_count=8", "")
        environment = os.environ | {"PYTHONPATH": str(_TESTS.parent)}
        # XLA takes a text of blanks for the name of a file.
        environment.pop("XLA_FLAGS")
        environment |= {"XLA_FLAGS": flags} if flags.strip() else {}
        done = subprocess.run(
            [sys.executable, "-m", "fedjax_sim.cli", *words],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        tables = sorted((pathlib.Path(folder) / "out").glob("*.csv"))
        kept = [table for table in tables if table.name in ("history.csv", "runs.csv")]
        if done.returncode or not kept:
            raise SystemExit(f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        shutil.copy(kept[0], path)


def record(folder: pathlib.Path, only: str) -> None:
    """Writes all records whose names contain ``only``."""
    for precision in ("float32", "float64"):
        for group, name, function in _records():
            path = folder / precision / group / f"{name}.npz"
            if path.exists() or only not in str(path.relative_to(folder)):
                continue
            with jax.enable_x64(precision == "float64"):
                # Cached data and programs of the other precision must not be met.
                _clear(precision)
                _write(path, function)
            print(path.relative_to(folder), flush=True)
    lines = (_HERE / "commands.txt").read_text().splitlines()
    for number, command in enumerate(line for line in lines if not line.startswith("#")):
        path = folder / "commands" / f"{number:02}.csv"
        if path.exists() or only not in str(path.relative_to(folder)):
            continue
        _write_command(path, command)
        print(f"{path.relative_to(folder)}: {command}", flush=True)


@functools.lru_cache(maxsize=1)
def _clear(precision: str) -> None:
    """Forgets what the catalogue has cached, whenever the precision changes."""
    del precision
    jax.clear_caches()
    for module in (catalogue, small_problems):
        for value in vars(module).values():
            with contextlib.suppress(AttributeError):
                value.cache_clear()


def _difference(old: pathlib.Path, new: pathlib.Path) -> float:
    """Largest difference relative to the largest entry of its array; inf if the form differs."""
    if old.suffix == ".csv":
        return 0.0 if old.read_bytes() == new.read_bytes() else float("inf")
    largest = 0.0
    with np.load(old) as before, np.load(new) as after:
        # Names of leaves may move with the types that hold them; their order may not.
        if len(before.files) != len(after.files):
            return float("inf")
        for x, y in zip(before.values(), after.values(), strict=True):
            if (x.dtype, x.shape) != (y.dtype, y.shape):
                return float("inf")
            if x.tobytes() == y.tobytes():
                continue
            if not np.issubdtype(x.dtype, np.floating):
                return float("inf")
            x, y = x.astype(np.float64), y.astype(np.float64)
            largest = max(largest, float(np.max(np.abs(x - y)) / np.max(np.abs(x))))
    return largest


def compare(old: pathlib.Path, new: pathlib.Path, tolerances: dict[str, float]) -> int:
    """Prints what differs, and returns the number of records beyond the tolerances."""
    names = [path.relative_to(old) for path in sorted(old.rglob("*.*")) if path.is_file()]
    beyond = 0
    for name in names:
        difference = _difference(old / name, new / name) if (new / name).exists() else np.inf
        if not difference <= tolerances.get(name.parts[0], 0.0):
            beyond += 1
        if difference:
            print(f"{name}: {difference:.3g}")
    print(f"{len(names)} records, {beyond} beyond the tolerance")
    return beyond


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.records")
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("record")
    writing.add_argument("folder", type=pathlib.Path)
    writing.add_argument("--only", default="")
    comparing = commands.add_parser("compare")
    comparing.add_argument("old", type=pathlib.Path)
    comparing.add_argument("new", type=pathlib.Path)
    comparing.add_argument("--float32", type=float, default=0.0)
    comparing.add_argument("--float64", type=float, default=0.0)
    arguments = parser.parse_args()
    if arguments.command == "record":
        record(arguments.folder, arguments.only)
        return 0
    tolerances = {"float32": arguments.float32, "float64": arguments.float64}
    return min(1, compare(arguments.old, arguments.new, tolerances))


if __name__ == "__main__":
    sys.exit(main())
