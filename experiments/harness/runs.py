"""Runs that are kept on disk: the same command continues after a kill and repeats nothing."""

import concurrent.futures
import json
import multiprocessing
import pathlib
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pandas as pd
from rich.console import Console

import fedjax_sim as fs
from fedjax_sim.cli import report
from fedjax_sim.cli.console import sweep_progress
from fedjax_sim.runs import digest, replacing, write_text

__all__ = [
    "KeptFrames", "check_finished", "in_own_process", "kept_json", "print_progress",
    "seed_keys", "split_keys", "sweep", "swept"
]  # fmt: skip


def seed_keys(num_seeds: int, root: int = 0) -> jax.Array:
    """A key per seed, ``[num_seeds]``; more seeds leave the first ones as they were."""
    key = jax.random.key(root)
    return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(num_seeds))


def split_keys(keys: jax.Array, count: int) -> jax.Array:
    """``count`` keys of every seed, ``[count, num_seeds]``: one row per use."""
    return jax.vmap(lambda key: jax.random.split(key, count), out_axes=1)(keys)


def swept(
    factory: Callable[..., fs.FedAlgorithm],
    setup: Any,
    grid: Any,
    keys: jax.Array,
    directory: pathlib.Path,
    *,
    config: Mapping[str, Any] | None = None,
    only_finished: bool = False,  # the runs that the folder has; none is started
) -> pd.DataFrame:
    """The tidy history of a sweep, see :meth:`fedjax_sim.Sweep.to_frame`.

    Finished slices are kept in the directory and not repeated, also by a larger grid.  An
    interrupted sweep ends the program.
    """
    if only_finished:
        storage = fs.Storage(directory, config=config)
        return fs.finished_runs(factory, setup, grid, keys, storage=storage).to_frame()
    return sweep(factory, setup, grid, keys, directory, config=config).to_frame()


def sweep(
    factory: Callable[..., fs.FedAlgorithm],
    setup: Any,
    grid: Any,
    keys: jax.Array,
    directory: pathlib.Path,
    *,
    config: Mapping[str, Any] | None = None,
) -> Any:
    """The sweep with the metrics of its runs as arrays; otherwise as :func:`swept`."""
    storage = fs.Storage(directory, config=config)
    with sweep_progress(Console(stderr=True)) as bar:
        result = fs.sweep(factory, setup, grid, keys, callbacks=[bar], storage=storage)
    check_finished(result, directory)
    took = f"compiling {result.compile_seconds:.1f} s, running {result.run_seconds:.1f} s"
    print(f"{directory}: {len(result.runs)} runs, {result.resumed} found; {took}", flush=True)
    return result


def check_finished(result: Any, directory: pathlib.Path) -> None:
    """Raises SystemExit for an interrupted sweep or simulation."""
    if result.interrupted or getattr(result, "interrupt_requested", False):
        raise SystemExit(f"interrupted; the same command continues from {directory}")


def print_progress(label: str, metric: str) -> fs.callbacks.Callback:
    """A callback for ``fs.simulate`` that prints a line per segment."""

    def on_progress(progress: Any) -> None:
        if metric in progress.metrics:  # segments before the first evaluation have none
            value = progress.metrics[metric]
            print(f"{label}: round {progress.round}, {metric} {value:.4f}", flush=True)

    return types.SimpleNamespace(progress=on_progress)


class KeptFrames:
    """A folder with one CSV file per seed, named after everything that its runs depend on.

    The folder is the start of the SHA-256 of the identity's JSON text, which ``run.json`` holds.  A
    file that a kill or a copy cut short does not count as finished.
    """

    def __init__(self, work: pathlib.Path, identity: Mapping[str, Any]):
        # A field of the settings that is renamed needs new names of the kept folders.
        text = json.dumps(identity, sort_keys=True)
        self.folder = work / digest(dict(identity))
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self.folder / "run.json", text + "\n")

    def missing(self, seeds: Iterable[int]) -> list[int]:
        """The seeds without a whole file."""
        return [seed for seed in seeds if not _is_whole(self._path(seed))]

    def save(self, seed: int, frame: pd.DataFrame) -> None:
        """Writes a seed's frame, whose first column is ``round``; a kill leaves all or nothing."""
        with replacing(self._path(seed)) as partial:
            frame.to_csv(partial, index=False)

    def load(self, seeds: Sequence[int]) -> pd.DataFrame:
        """The frames of all seeds with a column ``seed``."""
        parts = [pd.read_csv(self._path(seed)).assign(seed=seed) for seed in seeds]
        return pd.concat(parts, ignore_index=True)

    def _path(self, seed: int) -> pathlib.Path:
        return self.folder / f"{seed}.csv"


def _is_whole(path: pathlib.Path) -> bool:
    text = path.read_bytes() if path.exists() else b""
    return text.startswith(b"round,") and text.endswith(b"\n") and text.count(b"\n") > 1


def kept_json(path: pathlib.Path, compute: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """The values in the file; computes and writes them if there is none."""
    if not path.exists():
        values = dict(compute())
        path.parent.mkdir(parents=True, exist_ok=True)
        report.write_json(path, values)
    return json.loads(path.read_text())


def in_own_process(function: Callable[..., Any], **arguments: Any) -> Any:
    """Calls the function in a fresh process, whose peak of memory is the call's alone."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, **arguments).result()
