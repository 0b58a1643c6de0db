"""Figures 1, 4 and 6 to 10 of the FedSWA paper: loss surfaces and flatness of the trained models.

    python -m experiments.fedswa.loss_surface                  # CIFAR-10, small LeNet-5, 51 x 51
    python -m experiments.fedswa.loss_surface --scale smoke --points 7 --examples 500

Liu et al., 2025.  The paper does not say how its surfaces are made; here as in
:mod:`experiments.fedswa.flatness`.
"""

import dataclasses
import pathlib

import jax
import numpy as np
import pandas as pd
import tyro

import fedjax_sim as fs
from experiments.fedswa.flatness import Measured, flatness, local_models, loss_surfaces
from experiments.fedswa.methods import build
from experiments.fedswa.problem import build_model, clients, problem
from experiments.fedswa.runs import tuned
from experiments.fedswa.settings import COLUMNS, OneColumn, Setting, describe, skewed
from experiments.harness import Report, check_finished, settings, subsample, write_csv
from experiments.harness.figures import save
from fedjax_sim import datasets, objectives
from fedjax_sim.analysis.tables import markdown
from fedjax_sim.diagnostics.generalization import generalization_gap, metric
from fedjax_sim.evaluation import evaluator
from fedjax_sim.plotting import surfaces

METHODS = ("FedAvg", "FedSAM", "FedSWA", "FedMoSWA")


@dataclasses.dataclass(frozen=True)
class LossSurface(OneColumn):
    """Options of this experiment."""

    concentration: float = 0.1  # of the paper's Figure 1
    points: int = 51
    extent: float = 1.0
    examples: int = 10_000  # of the training and of the test set, for the surfaces
    iterations: int = 20  # of Lanczos


def measured(
    setting: Setting, methods: tuple[str, ...], lrs: dict[str, float], options: LossSurface
) -> dict[str, Measured]:
    """The measurements by method; finished ones are read from the folder of the method's run."""
    dataset = datasets.load(setting.dataset, options.data_dir)
    rounds, scale = options.num_rounds(setting), options.size
    every = max(1, rounds // 10)
    setup, keys = problem(setting, scale, rounds, 1, dataset, eval_every=every)
    model = build_model(setting, scale, dataset.num_classes)
    data = clients(setting, scale, dataset)
    # Flatness is that of the loss without augmentation.
    plain = fs.empirical_task(objectives.cross_entropy(model.apply), data, fs.full_batch(1))
    metrics = objectives.classification_metrics(model.apply)
    losses = {
        name: metric(evaluator(metrics, subsample(examples, options.examples), 250), "loss")
        for name, examples in (("train", data.examples), ("test", dataset.test))
    }
    test = {key: dataset.test[key] for key in ("x", "y")}
    gaps = jax.jit(generalization_gap(metrics, data.examples, test))

    def measure(method: str, folder: pathlib.Path) -> Measured:
        algorithm = build(lrs[method], method, options.lr_decay(setting))
        config = {"method": method, "lr": lrs[method], "setting": setting._asdict()}
        result = fs.simulate(
            algorithm, setup, keys, directory=folder, config=config, on_divergence="record"
        )
        check_finished(result, folder)
        state = jax.tree.map(lambda x: x[0], result.state)
        params = state.server.params
        row = {"method": method, "lr": lrs[method]}
        row |= flatness(plain, gaps(params), params, options.iterations)
        taking_part = np.asarray(setup.timeline.clients)[0, -1]
        nearby = local_models(algorithm, state, setup.task, taking_part)
        around = loss_surfaces(losses, params, nearby, options.extent, options.points)
        return Measured(row, *around)

    results: dict[str, Measured] = {}
    for method in methods:
        runs = options.work / options.label / f"{setting.name}-{rounds}-models"
        folder = runs / f"{method}-{lrs[method]:g}"
        path = folder / f"surfaces-{options.points}-{options.extent:g}-{options.examples}.npz"
        if not path.exists():
            measure(method, folder).save(path)
        results[method] = Measured.load(path)
        print(markdown(pd.DataFrame([results[method].row])), flush=True)
    return results


def write(setting: Setting, results: dict[str, Measured], options: LossSurface) -> None:
    """Writes the table of flatness and its figures; values and reliefs go to the kept runs."""
    table = pd.DataFrame([result.row for result in results.values()])
    values = pd.DataFrame(
        [
            (name, method, a, b, float(value))
            for method, result in results.items()
            for name, grid in result.surfaces.items()
            for a, row in zip(grid.a, grid.values, strict=True)
            for b, value in zip(grid.b, row, strict=True)
        ],
        columns=["surface", "method", "a", "b", "loss"],
    )
    write_csv(options.work / f"{setting.name}-surfaces.csv", values)
    figures = {}
    for name in ("train", "test"):
        group = {method: result.surfaces[name] for method, result in results.items()}
        middle = [float(s.values[s.values.shape[0] // 2].max()) for s in group.values()]
        style = {"high": 1.5 * max(middle), "label": f"{name} loss"}
        figures[f"{setting.name}-{name}-contours"] = surfaces.contours(group, **style)
        save(surfaces.reliefs(group, **style), options.work / f"{setting.name}-{name}-relief.png")
    planes = {method: result.surfaces["clients"] for method, result in results.items()}
    dots = {method: result.dots for method, result in results.items()}
    figures[f"{setting.name}-clients"] = surfaces.contours(planes, dots=dots, label="test loss")
    drawn = f"Surfaces: {options.points} x {options.points} points, {options.examples} examples."
    text = Report(f"Flatness: {setting.name}", describe(setting, options), drawn, table)
    folder, facts = options.folder("loss_surface"), settings(options)
    text.save(folder, setting.name, table, figures, options=facts)


def main(options: LossSurface) -> None:
    """Trains the methods, measures and draws; what is finished is kept and not repeated."""
    setting = skewed(COLUMNS[options.column], options.concentration)
    print(describe(setting, options), flush=True)
    methods = options.methods or METHODS
    write(setting, measured(setting, methods, tuned(setting, methods, options), options), options)


if __name__ == "__main__":
    main(tyro.cli(LossSurface, description=__doc__))
