"""A run and a sweep of a second, with equal bits whenever they end."""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from call_records import SINGLE, records, sweep_on

import fedjax_sim as fs

NUM_ROUNDS = 8


def _setup(num_seeds: int) -> fs.Setup:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 2)).astype(np.float32)
    data = fs.FederatedData({"x": x, "y": x.sum(1)}, np.arange(0, 13, 4))

    def losses(w, batch, key):
        noise = jax.random.normal(key, batch["y"].shape)
        return (batch["x"] @ w - batch["y"] + noise) ** 2

    task = fs.empirical_task(losses, data, fs.with_replacement(2, num_steps=2))
    timeline = fs.timelines.uniform(jax.random.key(0), NUM_ROUNDS, 3, 2, task.num_steps)
    params = jnp.zeros((num_seeds, 2))
    return fs.Setup(task, timeline, params, lambda w: {"norm": jnp.sum(w**2), "w": w}, 2)


_SETUP = _setup(2)
_KEYS = jax.random.split(jax.random.key(1), 2)
_ALGORITHM = fs.scaffold(0.05)
GRID = {"lr": [0.05, 0.1]}


def run(directory: pathlib.Path | None, **options: Any) -> fs.Simulation:
    """Runs or resumes segments of one evaluation, each with a checkpoint."""
    options = {"checkpoint_seconds": 0} | options
    settings = records(folder=directory, more_callbacks=[SINGLE], **options)
    return fs.simulate(_ALGORITHM, _SETUP, _KEYS, **settings)


def compare(directory: pathlib.Path | None, **options: Any) -> fs.Comparison:
    """Compares two algorithms, each like :func:`run`."""
    algorithms = {"scaffold": _ALGORITHM, "fedavg": fs.fedavg(0.05)}
    return fs.compare(
        algorithms, _SETUP, _KEYS, **records(folder=directory, checkpoint_seconds=0, **options)
    )


def sweep(directory: pathlib.Path | None, grid: Any = GRID, **options: Any) -> fs.Sweep:
    """Runs or resumes two slices, one per seed."""
    return sweep_on(
        jax.devices()[:1],
        fs.scaffold,
        _SETUP,
        grid,
        _KEYS,
        **records(folder=directory, **options),
    )


def run_bits(result: fs.Simulation, directory: pathlib.Path) -> list[bytes]:
    """Returns everything that must be equal after any fault: the state and the history."""
    leaves = [
        jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        for x in map(jnp.asarray, jax.tree.leaves(result.state))
    ]
    return [*(np.asarray(x).tobytes() for x in leaves), (directory / "history.csv").read_bytes()]


def sweep_bits(result: fs.Sweep) -> list[bytes]:
    """Returns the histories of all runs."""
    return [
        np.asarray(x).tobytes() for run in result.runs for x in jax.tree.leaves(run.history)
    ] + [str([(run.configuration, run.seed) for run in result.runs]).encode()]
