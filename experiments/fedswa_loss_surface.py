"""Figures 1, 4 and 6 to 10 of the FedSWA paper: loss surfaces and flatness of the trained models.

    python -m experiments.fedswa_loss_surface                  # CIFAR-10, small LeNet-5, 51 x 51 points
    python -m experiments.fedswa_loss_surface --scale smoke --points 7 --examples 500

Liu et al., 2025.  The paper does not say how its surfaces are made; here: two random filter-normalised directions
(Li et al., 2018), the same Gaussians for all methods, on [-1, 1]^2, of training and test loss; the plane of the first two principal
components of the clients' models around the server's; and a table of sharpness: the rise along one SAM step, and
the largest Hessian eigenvalue, of the global and of every client's training loss.
"""  # noqa: E501

import dataclasses
import json
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import tyro

import fedjax_sim as fs
from experiments import fedswa_common as common
from experiments.fedswa_table2 import COLUMNS
from experiments.output import write
from fedjax_sim import datasets, objectives
from fedjax_sim.analysis.tables import markdown
from fedjax_sim.diagnostics.generalization import generalization_gap, metric
from fedjax_sim.diagnostics.sharpness import client_sharpness
from fedjax_sim.diagnostics.surfaces import Surface, filter_normalized, principal_plane, surface
from fedjax_sim.evaluation import evaluator
from fedjax_sim.plotting import surfaces

METHODS = ("FedAvg", "FedSAM", "FedSWA", "FedMoSWA")
RADIUS = 0.05
SURFACES = ("train", "test", "clients")


@dataclasses.dataclass(frozen=True)
class LossSurface(common.Options):
    """Options of this experiment."""

    column: str = "cifar10-lenet5"
    concentration: float = 0.1  # of the paper's Figure 1
    points: int = 51
    extent: float = 1.0
    examples: int = 10_000  # that the surfaces are of, of the training and of the test set
    iterations: int = 20  # of Lanczos

    def __post_init__(self) -> None:
        super().__post_init__()
        common.check_column(self.column, COLUMNS)


def models_folder(
    setting: common.Setting, method: str, lr: float, options: LossSurface
) -> pathlib.Path:
    """Where a method's run is kept."""
    rounds = common.num_rounds(setting, options)
    runs = options.work / common.run_label(options) / f"{setting.name}-{rounds}-models"
    return runs / f"{method}-{lr:g}"


def trained(
    setting: common.Setting, method: str, lr: float, options: LossSurface, problem: common.Problem
) -> fs.RunState:
    """The method's state after all rounds, from the folder's checkpoint if there is one."""
    rounds = common.num_rounds(setting, options)
    result = fs.simulate(
        common.Algorithm(method, common.lr_decay(setting, options))(lr),
        problem.task,
        problem.timeline,
        problem.params,
        problem.keys,
        eval_fn=problem.eval_fn,
        eval_every=max(1, rounds // 10),
        directory=models_folder(setting, method, lr, options),
        config={"method": method, "lr": lr, "setting": setting._asdict()},
        on_divergence="record",
    )
    if result.interrupted:
        raise SystemExit("interrupted; the same command continues")
    return jax.tree.map(lambda x: x[0], result.state)


def local_models(
    algorithm: fs.FedAlgorithm, state: fs.RunState, task: fs.Task, clients: np.ndarray
) -> Any:
    """Where the clients' next visits would end, ``[k, ...]``."""

    steps = int(np.max(task.num_steps))

    def one(client: jax.Array, state: fs.RunState, task: fs.Task) -> Any:
        key = jax.random.fold_in(jax.random.key(1), client)
        zero = jnp.zeros((), jnp.int32)
        round = fs.Round(state.round, zero + len(clients), task.num_clients, key)
        message = algorithm.broadcast(state.server, round)
        work = fs.Work(
            state.round, client, jnp.asarray(task.num_steps)[client], zero, zero, key, steps
        )
        own = jax.tree.map(lambda x: x[client], state.clients)
        upload, _ = algorithm.local(message, own, task.oracle(client, key, steps), work)
        x = state.server.params
        same = jax.tree.structure(upload) == jax.tree.structure(x)
        return jax.tree.map(jnp.subtract, x, upload if same else upload[0])

    return jax.jit(
        lambda clients, state, task: jax.lax.map(lambda c: one(c, state, task), clients)
    )(jnp.asarray(clients, jnp.int32), state, task)


def flatness(task: fs.Task, values: dict[str, Any], params: Any, iterations: int) -> dict:
    """A row of the table of flatness."""
    found = client_sharpness(task, params, jax.random.key(2), radius=RADIUS, iterations=iterations)
    largest = np.asarray(found.clients.eigenvalues[:, 0])
    return {
        "train loss": float(values["train/loss"]),
        "test loss": float(values["test/loss"]),
        "gap": float(values["gap/loss"]),
        "test accuracy": 100 * float(values["test/accuracy"]),
        f"rise, r = {RADIUS}": float(found.total.rise),
        "top eigenvalue": float(found.total.eigenvalues[0]),
        "+-": float(found.total.residuals[0]),
        "clients' top: median": float(np.median(largest)),
        "max": float(largest.max()),
    }


class Measured(NamedTuple):
    """What is kept of a method."""

    row: dict[str, Any]  # of the table
    surfaces: dict[str, Surface]  # of the training and the test loss, and in the clients' plane
    dots: np.ndarray  # where server and clients lie in their plane

    def save(self, path: pathlib.Path) -> None:
        """Writes all of it, or nothing."""
        arrays: dict[str, Any] = {
            f"{name}.{field}": np.asarray(value)
            for name, found in self.surfaces.items()
            for field, value in found._asdict().items()
        }
        part = path.with_suffix(".part.npz")
        np.savez(part, row=json.dumps(self.row), dots=self.dots, **arrays)
        part.replace(path)

    @classmethod
    def load(cls, path: pathlib.Path) -> "Measured":
        """As it was saved."""
        with np.load(path) as kept:
            surfaces = {
                name: Surface(*(kept[f"{name}.{field}"] for field in Surface._fields))
                for name in SURFACES
            }
            return cls(json.loads(str(kept["row"])), surfaces, kept["dots"])


def main(options: LossSurface) -> None:
    """Trains the methods, measures and draws; what is finished is kept and not repeated."""
    setting = common.skewed(COLUMNS[options.column], options.concentration)
    scale, methods = common.SCALES[options.scale], options.methods or METHODS
    print(common.describe(setting, options), flush=True)
    lrs = common.tuned(setting, methods, options)
    dataset = datasets.load(setting.dataset, options.data_dir)
    rounds = common.num_rounds(setting, options)
    problem = common.problem(setting, scale, rounds, 1, dataset)
    model = common.build_model(setting, scale, dataset.num_classes)
    data = common.clients(setting, scale, dataset)
    # Flatness is that of the loss without augmentation.
    plain = fs.empirical_task(objectives.cross_entropy(model.apply), data, fs.full_batch(1))
    metrics = objectives.classification_metrics(model.apply)
    losses = {
        name: metric(evaluator(metrics, common.some(examples, options.examples), 250), "loss")
        for name, examples in (("train", data.examples), ("test", dataset.test))
    }
    test = {key: dataset.test[key] for key in ("x", "y")}
    gaps = jax.jit(generalization_gap(metrics, data.examples, test))

    def measure(method: str, state: fs.RunState) -> Measured:
        params, extent, points = state.server.params, options.extent, options.points
        row = {"method": method, "lr": lrs[method]}
        row |= flatness(plain, gaps(params), params, options.iterations)
        d1, d2 = (filter_normalized(jax.random.key(seed), params) for seed in (3, 4))
        surfaces = {
            name: surface(loss, params, d1, d2, extent, points) for name, loss in losses.items()
        }
        taking_part = np.asarray(problem.timeline.clients)[0, -1]
        algorithm = common.Algorithm(method, common.lr_decay(setting, options))(lrs[method])
        found = principal_plane(params, local_models(algorithm, state, problem.task, taking_part))
        surfaces["clients"] = surface(
            losses["test"], params, found.d1, found.d2, found.window(0.3), points
        )
        return Measured(row, surfaces, np.asarray(found.coordinates))

    every: dict[str, Measured] = {}
    for method in methods:
        folder = models_folder(setting, method, lrs[method], options)
        path = folder / f"surfaces-{options.points}-{options.extent:g}-{options.examples}.npz"
        if not path.exists():
            state = trained(setting, method, lrs[method], options, problem)
            measure(method, state).save(path)
        every[method] = Measured.load(path)
        print(markdown(pd.DataFrame([every[method].row])), flush=True)
    _write(
        options.output / f"fedswa_loss_surface-{common.run_label(options)}", setting, every, options
    )


def _write(
    folder: pathlib.Path, setting: common.Setting, every: dict[str, Measured], options: LossSurface
) -> None:
    table = pd.DataFrame([found.row for found in every.values()])
    drawn = f"Surfaces: {options.points} x {options.points} points, {options.examples} examples."
    parts = [f"# Flatness: {setting.name}", common.describe(setting, options), drawn]
    text = "\n\n".join([*parts, markdown(table)])
    write(folder, setting.name, table, text, options=options)
    values = pd.DataFrame(
        [
            (name, method, a, b, float(value))
            for method, found in every.items()
            for name, grid in found.surfaces.items()
            for a, row in zip(grid.a, grid.values, strict=True)
            for b, value in zip(grid.b, row, strict=True)
        ],
        columns=["surface", "method", "a", "b", "loss"],
    )
    values.to_csv(options.work / f"{setting.name}-surfaces.csv", index=False, float_format="%.5g")
    for name in ("train", "test"):
        group = {method: found.surfaces[name] for method, found in every.items()}
        middle = [float(s.values[s.values.shape[0] // 2].max()) for s in group.values()]
        high = 1.5 * max(middle)
        for kind, draw in (("contours", surfaces.contours), ("relief", surfaces.reliefs)):
            figure = draw(group, high=high, label=f"{name} loss")
            figure.savefig(folder / f"{setting.name}-{name}-{kind}.png", dpi=80)
    planes = {method: found.surfaces["clients"] for method, found in every.items()}
    dots = {method: found.dots for method, found in every.items()}
    figure = surfaces.contours(planes, dots=dots, label="test loss")
    figure.savefig(folder / f"{setting.name}-clients.png", dpi=80)


if __name__ == "__main__":
    main(tyro.cli(LossSurface))
