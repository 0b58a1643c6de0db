"""Digits on clients, models in l1 balls, composite methods and measures of their last models."""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import fedjax_sim as fs

CLIENTS, EXAMPLES, VALIDATION, BATCH_SIZE = 20, 40, 400, 8
FEATURES, CLASSES = 64, 10
MODELS = {"softmax": (), "network": (16,)}  # hidden layers
AVERAGED = "FedDualAvg, averaged"
STARTS = ("projected", "outside", "scaled", "near 0")
CUTOFF = 1e-4  # entries below count as 0, as in the thesis's figures of scans
NEAR = 0.01  # times the initial kernels of the last start


class Cell(NamedTuple):
    """One point of the study."""

    model: str
    radius: float  # of every kernel's l1 ball
    num_steps: int  # K
    alpha: float  # of the clients' labels; infinite: IID
    start: str = STARTS[0]


def _averaged(lr: Any, composite: Any, server_lr: Any, *, project_start: bool) -> Any:
    del server_lr  # 1, as in the theorems
    return fs.averaged_feddualavg(lr, composite, project_start=project_start)


METHODS: dict[str, Callable[..., fs.FedAlgorithm]] = {
    "FedDualAvg": fs.feddualavg,
    "FedDualAvg-OSP": fs.feddualavg_osp,
    "FedMiD": fs.fedmid,
    "FedMiD-OSP": fs.fedmid_osp,
    AVERAGED: _averaged,
}


@functools.cache
def network(name: str) -> fs.models.Model:
    """A model whose kernels start as in the thesis, uniform by Glorot's rule."""
    glorot = jax.nn.initializers.glorot_uniform()
    return fs.models.mlp(FEATURES, MODELS[name], CLASSES, initializer=glorot)


def split(seed: int) -> dict[str, dict[str, np.ndarray]]:
    """Digits for training, for the choice of rates and for the scores, by a seed's permutation."""
    parts = fs.datasets.load("digits")
    x, y = (np.concatenate([parts.train[key], parts.test[key]]) for key in ("x", "y"))
    examples = {"x": x.reshape(-1, FEATURES) / np.float32(255), "y": y}
    order, train = np.random.default_rng(seed).permutation(len(y)), CLIENTS * EXAMPLES
    rows = np.split(order, [train, train + VALIDATION])
    names = ("train", "validation", "test")
    return {
        name: {key: leaf[own] for key, leaf in examples.items()}
        for name, own in zip(names, rows, strict=True)
    }


def make_setup(cell: Cell, seed: int, rounds: int) -> tuple[fs.Setup, Any]:
    """A seed's setup, all clients in every round, and its digits."""
    parts, model = split(seed), network(cell.model)
    rng = np.random.default_rng([seed, 1])
    rows = fs.data.partition.dirichlet(
        parts["train"]["y"], CLIENTS, cell.alpha, rng, prior="uniform"
    )
    data = fs.from_assignment(parts["train"], rows, disjoint=False)
    losses = fs.objectives.cross_entropy(model.apply)
    task = fs.empirical_task(losses, data, fs.with_replacement(BATCH_SIZE, cell.num_steps))
    timeline = fs.timelines.full(rounds, CLIENTS, cell.num_steps)
    params = started(model.init(jax.random.key(seed)), cell)
    # The clients' objective, on the digits that they have, some of them twice.
    parts["train"] = {key: leaf[np.concatenate(rows)] for key, leaf in parts["train"].items()}
    return fs.Setup(task, timeline, params), parts


def started(params: Any, cell: Cell) -> Any:
    """The initial model of a start; "projected" and "outside" are left to the algorithm."""

    def one(leaf: Array) -> Array:
        if leaf.ndim < 2 or cell.start in ("projected", "outside"):
            return leaf
        if cell.start == "near 0":
            return NEAR * leaf
        return leaf * jnp.minimum(1, cell.radius / jnp.abs(leaf).sum())

    return jax.tree.map(one, params)


def ball(radius: Any) -> fs.prox.Composite:
    """The constraint: every kernel in an l1 ball of its own."""
    return fs.prox.composite(fs.prox.L1Ball(radius), where=fs.prox.kernels)


def density(params: Any) -> Array:
    """Share of the entries of all kernels above ``CUTOFF``."""
    kernels = jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(params) if leaf.ndim > 1])
    return fs.diagnostics.recovery.density(kernels, CUTOFF)


def sizes(params: Any, radius: Any) -> Array:
    """Mean over the kernels of their l1 norms, as shares of the radius."""
    kernels = [leaf for leaf in jax.tree.leaves(params) if leaf.ndim > 1]
    return jnp.stack([jnp.abs(kernel).sum() / radius for kernel in kernels]).mean()


def live_units(params: Any) -> Array:
    """Share of the hidden units with weights both in and out; 1 without a hidden layer."""
    kernels = [params[name]["kernel"] for name in sorted(params)]  # [outputs, inputs]
    live = [(x != 0).any(1) & (y != 0).any(0) for x, y in itertools.pairwise(kernels)]
    return jnp.concatenate(live).mean() if live else jnp.ones(())


def probes(method: str, composite: fs.prox.Composite) -> fs.Probes:
    """The density of clients' last models; for averages the relative distance to the last model."""

    def of_client(visit: Any) -> Array:
        if not method.startswith("FedDualAvg"):
            return density(fs.tree.sub(visit.message, visit.upload.descent))
        dual, elapsed = visit.message
        end = fs.tree.sub(dual, visit.upload.descent)
        return density(composite.argmin(end, elapsed + visit.upload.elapsed))

    def of_average(update: Any) -> Array:
        state = update.new_state
        last = composite.argmin(state.dual, state.elapsed)
        return fs.tree.norm(fs.tree.sub(state.average, last)) / fs.tree.norm(last)

    if method == AVERAGED:
        return fs.Probes(server={"distance": of_average})
    return fs.Probes(client={"client density": of_client})
