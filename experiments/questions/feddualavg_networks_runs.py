"""Runs of the study of networks in l1 balls: seeds and rates side by side, rates chosen by them."""

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import fedjax_sim as fs
from experiments.harness import seed_keys
from experiments.questions import feddualavg_networks_problem as problem
from experiments.questions.feddualavg_networks_problem import Cell

Numbers = dict[str, np.ndarray]  # by metric
CHOSEN_BY = "validation loss"
METRICS = (
    "train loss", "test loss", "test accuracy", "density", "client density", "size", "live units",
    "distance",
)  # fmt: skip


@functools.cache
def _program(model: str, method: str, project_start: bool) -> Any:
    """A function of stacked setups to the metrics of all seeds and pairs of rates, ``[n, c]``."""
    apply = problem.network(model).apply

    def scores(params: Any, examples: Mapping[str, Any]) -> tuple[Array, Array]:
        logits = apply(params, examples["x"])
        each = -jnp.take_along_axis(jax.nn.log_softmax(logits), examples["y"][:, None], axis=1)
        return each.mean(), (logits.argmax(1) == examples["y"]).mean()

    def one(pair: Array, radius: Array, setup: fs.Setup, parts: Any, key: Array) -> Any:
        composite = problem.ball(radius)
        algorithm = problem.METHODS[method](
            pair[0], composite, pair[1], project_start=project_start
        )
        final, history = fs.run(
            algorithm, setup, key, execution=fs.execution.vmapped(),
            probes=problem.probes(method, composite),
        )  # fmt: skip
        params = final.server.params
        found = {name: values[-1].mean() for name, values in history.probes.items()}
        for name, part in parts.items():
            found[f"{name} loss"], found[f"{name} accuracy"] = scores(params, part)
        found["density"], found["size"] = problem.density(params), problem.sizes(params, radius)
        return found | {"live units": problem.live_units(params)}

    over_rates = jax.vmap(one, (0, None, None, None, None))
    return jax.jit(jax.vmap(over_rates, (None, None, 0, 0, 0)))


def measured(
    cell: Cell, method: str, pairs: np.ndarray, seeds: Sequence[int], rounds: int
) -> Numbers:
    """Metrics after all rounds, ``[seeds, pairs]``; pairs ``[c, 2]`` of rates."""
    setups, parts = _stacked(cell, tuple(seeds), rounds)
    keys = seed_keys(max(seeds) + 1)[jnp.asarray(seeds)]
    program = _program(cell.model, method, cell.start != "outside")
    radius = jnp.float32(cell.radius)
    found = program(jnp.asarray(pairs, jnp.float32), radius, setups, parts, keys)
    return {name: np.asarray(values, np.float64) for name, values in found.items()}


@functools.lru_cache(8)
def _stacked(cell: Cell, seeds: tuple[int, ...], rounds: int) -> Any:
    """The setups and digits of several seeds with a leading axis."""
    each = [problem.make_setup(cell, seed, rounds) for seed in seeds]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)


def tuned(
    cell: Cell,
    method: str,
    lrs: Sequence[float],
    server_lrs: Sequence[float],
    rounds: int,
    seeds: int,
) -> dict[str, Any]:
    """A row: the pair of rates with the least mean validation loss, and its scores by seed."""
    pairs = np.array(
        list(itertools.product(lrs, (1.0,) if method == problem.AVERAGED else server_lrs))
    )
    found = measured(cell, method, pairs, range(seeds), rounds)
    losses = found[CHOSEN_BY].mean(axis=0)
    best = int(np.where(np.isfinite(losses), losses, np.inf).argmin())
    lr, server_lr = pairs[best].tolist()
    row: dict[str, Any] = {"lr": lr, "server_lr": server_lr}
    row["at edge"] = lr in (min(lrs), max(lrs))
    for name in METRICS:
        for seed, value in enumerate(found[name][:, best] if name in found else ()):
            row[f"{name} {seed}"] = float(f"{value:.4g}")
    return {**cell._asdict(), "method": method} | row
