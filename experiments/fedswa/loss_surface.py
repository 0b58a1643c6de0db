"""Figures 1, 4 and 6 to 10 of the FedSWA paper: loss surfaces and flatness of the trained models.

    python -m experiments.fedswa.loss_surface                  # CIFAR-10, small LeNet-5, 51 x 51
    python -m experiments.fedswa.loss_surface --scale smoke --points 7 --examples 500
    python -m experiments.fedswa.loss_surface --rounds 1000 --pilot-rounds 0 --concentration 0.6 \\
        --finished                                # the models of table2 --checkpoints

Liu et al., 2025.  The paper does not say how its surfaces are made; here as in
:mod:`experiments.fedswa.flatness`.  Runs are those of the other scripts with ``--checkpoints``, so
one training serves a table and its surfaces.
"""

import dataclasses
import pathlib

import jax
import numpy as np
import tyro

import fedjax_sim as fs
from experiments.fedswa import methods
from experiments.fedswa.flatness import (
    Measured,
    flatness,
    instruments,
    local_models,
    loss_surfaces,
    mean_rise,
)
from experiments.fedswa.problem import problem
from experiments.fedswa.runs import run_folder, simulated, tuned
from experiments.fedswa.settings import COLUMNS, OneColumn, Setting, describe, skewed
from experiments.fedswa.surface_tables import RISES, SURFACE_RADIUS, build, tables
from experiments.harness import save_report, settings
from experiments.harness.figures import save

METHODS = ("FedAvg", "FedSAM", "FedSWA", "FedMoSWA")
ITERATIONS = 20


@dataclasses.dataclass(frozen=True)
class LossSurface(OneColumn):
    """Options of this experiment."""

    concentration: float = 0.1  # of the paper's Figure 1
    points: int = 51
    extent: float = 1.0
    examples: int = 10_000  # of the training and of the test set, for the surfaces
    iterations: int = ITERATIONS  # of Lanczos

    @property
    def label_of_measurements(self) -> str:
        """Label of the options that measurements depend on; iterations only if not the default."""
        further = "" if self.iterations == ITERATIONS else f"-{self.iterations}"
        return f"{self.points}-{self.extent:g}-{self.examples}{further}"


def measured(
    setting: Setting, lrs: dict[str, float], options: LossSurface
) -> dict[tuple[str, int], Measured]:
    """The measurements by method and seed, kept in the folder of the run.

    Unfinished runs are trained, or left out with ``options.finished``.
    """
    dataset = fs.datasets.load(setting.dataset, options.data_dir)
    rounds, scale = options.num_rounds(setting), options.size
    setup, _ = problem(setting, scale, rounds, options.seeds, dataset)
    tools = instruments(setting, scale, dataset, options.examples)

    def measure(configuration: dict, seed: int) -> Measured:
        state = simulated(setting, configuration, seed, options).state
        state = jax.tree.map(lambda x: x[0], state)
        params = state.server.params
        row = flatness(tools.task, tools.gaps(params), params, options.iterations)
        algorithm = methods.build(decay=options.lr_decay(setting), **configuration)
        taking_part = np.asarray(setup.timeline.clients)[seed, -1]
        nearby = local_models(algorithm, state, setup.task, taking_part)
        drawn, dots = loss_surfaces(tools.losses, params, nearby, options.extent, options.points)
        rises = {name: mean_rise(drawn[part], SURFACE_RADIUS) for part, name in RISES.items()}
        return Measured({**configuration, "seed": seed, **row, **rises}, drawn, dots)

    results = {}
    label = options.label_of_measurements
    for method, lr in lrs.items():
        configuration = {"method": method, "lr": lr}
        for seed in range(options.seeds):
            folder = run_folder(setting, configuration, seed, options)
            path = folder / f"surfaces-{label}.npz"
            if options.finished and not (folder / "finished.csv").exists():
                continue
            if not path.exists():
                measure(configuration, seed).save(path)
            results[method, seed] = Measured.load(path)
            print(results[method, seed].row, flush=True)
    return results


def main(options: LossSurface) -> None:
    """Trains the methods, measures and draws; what is finished is kept and not repeated."""
    setting = skewed(COLUMNS[options.column], options.concentration)
    print(describe(setting, options), flush=True)
    names = options.methods or METHODS
    results = measured(setting, tuned(setting, names, options), options)
    if not results:
        raise SystemExit(f"{options.work} has no finished run of {', '.join(names)}")
    facts = {"options": settings(options), "setting": setting._asdict(), "surfaces": True}
    folder, name = options.folder("loss_surface"), options.file(setting)
    save_report(folder, name, tables(results), build, **facts)
    for part in ("train", "test"):  # git keeps the contours
        group = {method: result.surfaces[part] for (method, _), result in results.items()}
        path = pathlib.Path(options.work) / f"{name}-{part}-relief.png"
        save(fs.plotting.reliefs(group, label=f"{part} loss"), path)


if __name__ == "__main__":
    main(tyro.cli(LossSurface, description=__doc__))
