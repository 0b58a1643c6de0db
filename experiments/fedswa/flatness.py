"""Flatness of trained models: sharpness, loss surfaces, and the plane of the clients' models.

The rise along one SAM step and the largest Hessian eigenvalue are those of the global and of every
client's training loss.  Surfaces are values of a loss over two random filter-normalised directions
(Li et al., 2018), the same Gaussians for all methods, and over the plane of the first two principal
components of the clients' models.
"""

import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim as fs
from experiments.fedswa.problem import build_model, clients
from experiments.fedswa.settings import Scale, Setting
from experiments.harness import subsample

RADIUS = 0.05
SURFACES = ("train", "test", "clients")


class Instruments(NamedTuple):
    """Losses for measurements of flatness, without the augmentation of the training loss."""

    task: fs.Task  # the clients' training losses
    losses: dict[str, Callable[[Any], jax.Array]]  # of a part of the examples, for surfaces
    gaps: Callable[[Any], Mapping[str, Any]]  # losses, their gap and the test accuracy


def instruments(
    setting: Setting, scale: Scale, dataset: fs.datasets.Dataset, examples: int
) -> Instruments:
    """Losses and gaps of a column's model; surfaces are of ``examples`` images each."""
    model = build_model(setting, scale, dataset.num_classes)
    data = clients(setting, scale, dataset)
    metrics = fs.objectives.classification_metrics(model.apply)
    test = {key: dataset.test[key] for key in ("x", "y")}
    losses = {
        name: fs.diagnostics.generalization.metric(
            fs.evaluation.evaluator(metrics, subsample(part, examples), 250), "loss"
        )
        for name, part in (("train", data.examples), ("test", dataset.test))
    }
    task = fs.empirical_task(fs.objectives.cross_entropy(model.apply), data, fs.full_batch(1))
    return Instruments(
        task,
        losses,
        jax.jit(fs.diagnostics.generalization.generalization_gap(metrics, data.examples, test)),
    )


def local_models(
    algorithm: fs.FedAlgorithm, state: fs.RunState, task: fs.Task, clients: np.ndarray
) -> Any:
    """The models at the end of the clients' next visits, ``[k, ...]``."""
    steps = int(np.max(task.num_steps))

    def one(client: jax.Array, state: fs.RunState, task: fs.Task) -> Any:
        key = jax.random.fold_in(jax.random.key(1), client)
        zero = jnp.zeros((), jnp.int32)
        round = fs.Round(state.round, zero + len(clients), task.num_clients, key)
        message = algorithm.broadcast(state.server, round)
        work = fs.Work(
            state.round, client, jnp.asarray(task.num_steps)[client], zero, zero, key, steps
        )
        client_state = jax.tree.map(lambda x: x[client], state.clients)
        upload, _ = algorithm.local(message, client_state, task.oracle(client, key, steps), work)
        x = state.server.params
        same = jax.tree.structure(upload) == jax.tree.structure(x)
        return jax.tree.map(jnp.subtract, x, upload if same else upload[0])

    over = jax.jit(lambda clients, *rest: jax.lax.map(lambda c: one(c, *rest), clients))
    return over(jnp.asarray(clients, jnp.int32), state, task)


def flatness(
    task: fs.Task, values: Mapping[str, Any], params: Any, iterations: int
) -> dict[str, float]:
    """A row of the table of flatness; ``values`` are losses, their gap and the test accuracy."""
    sharpness = fs.diagnostics.sharpness.client_sharpness(
        task, params, jax.random.key(2), radius=RADIUS, iterations=iterations
    )
    largest = np.asarray(sharpness.clients.eigenvalues[:, 0])
    return {
        "train loss": float(values["train/loss"]),
        "test loss": float(values["test/loss"]),
        "gap": float(values["gap/loss"]),
        "test accuracy": 100 * float(values["test/accuracy"]),
        f"rise, r = {RADIUS}": float(sharpness.total.rise),
        "top eigenvalue": float(sharpness.total.eigenvalues[0]),
        "+-": float(sharpness.total.residuals[0]),
        "clients' top: median": float(np.median(largest)),
        "max": float(largest.max()),
    }


class Measured(NamedTuple):
    """Measurements of one method's model."""

    row: dict[str, Any]  # of the table
    surfaces: dict[
        str, fs.diagnostics.surfaces.Surface
    ]  # of the training and the test loss; in the clients' plane
    dots: np.ndarray  # coordinates of server and clients in their plane

    def save(self, path: pathlib.Path) -> None:
        """Writes the measurements; a kill leaves the whole file or none."""
        arrays: dict[str, Any] = {
            f"{name}.{field}": np.asarray(value)
            for name, values in self.surfaces.items()
            for field, value in values._asdict().items()
        }
        part = path.with_suffix(".part.npz")
        np.savez(part, row=json.dumps(self.row), dots=self.dots, **arrays)
        part.replace(path)

    @classmethod
    def load(cls, path: pathlib.Path) -> "Measured":
        """Reads measurements that were saved."""
        with np.load(path) as file:
            surfaces = {
                name: fs.diagnostics.surfaces.Surface(
                    *(file[f"{name}.{field}"] for field in fs.diagnostics.surfaces.Surface._fields)
                )
                for name in SURFACES
            }
            return cls(json.loads(str(file["row"])), surfaces, file["dots"])


def loss_surfaces(
    losses: Mapping[str, Callable[[Any], jax.Array]],
    params: Any,
    nearby: Any,
    extent: float,
    points: int,
) -> tuple[dict[str, fs.diagnostics.surfaces.Surface], np.ndarray]:
    """The surfaces around a model, and the coordinates of ``nearby`` models ``[k, ...]``."""
    d1, d2 = (
        fs.diagnostics.planes.filter_normalized(jax.random.key(seed), params) for seed in (3, 4)
    )
    surfaces = {
        name: fs.diagnostics.surfaces.surface(loss, params, d1, d2, extent, points)
        for name, loss in losses.items()
    }
    plane = fs.diagnostics.planes.principal_plane(params, nearby)
    window = plane.window(0.3)
    surfaces["clients"] = fs.diagnostics.surfaces.surface(
        losses["test"], params, plane.d1, plane.d2, window, points
    )
    return surfaces, np.asarray(plane.coordinates)


def mean_rise(drawn: fs.diagnostics.surfaces.Surface, radius: float) -> float:
    """Mean rise of the loss above the model's, over the grid points within a radius.

    Example:
        >>> d1, d2 = jnp.eye(2)
        >>> of = fs.diagnostics.surfaces.surface
        >>> bowl = of(lambda x: (x**2).sum(), jnp.zeros(2), d1, d2, points=3)
        >>> mean_rise(bowl, 1.0)  # four of five points are at distance 1
        0.8
    """
    a, b, values = (np.asarray(x, np.float64) for x in drawn)
    squares = a[:, None] ** 2 + b**2
    return float((values - values[squares == squares.min()])[squares <= radius**2 + 1e-9].mean())
