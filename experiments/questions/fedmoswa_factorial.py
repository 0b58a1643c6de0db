"""The factorial: gamma x controls x alpha x rho x rate, with paired seeds.

The levels of controls are those of ``experiments.harness.controls``.
"""

import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

import fedjax_sim as fs
from experiments.harness import kept_json
from experiments.harness.controls import (
    CONTROLS,
    FACTORS,
    LAST,
    MEASURES,
    NONE,
    SCAFFOLD,
    last_on_worker,
    settings_of,
    workers_of,
)
from experiments.questions.flatness_problem import (
    CLIENTS,
    COHORT,
    LR_DECAY,
    clipped,
    digits,
    make_setup,
    network,
)
from fedjax_sim.runs import digest

EVALUATIONS, LATE = 20, 5  # of a run; those whose mean counts


def algorithm(controls: str, lr: Any, gamma: Any, alpha: Any, rho: Any) -> fs.FedAlgorithm:
    """The method with these controls; those of :func:`last_on_worker` need the workers."""
    if controls == NONE:
        return fs.fedswa(lr, rho, alpha)
    if controls == SCAFFOLD:
        return fs.scaffold(lr, alpha)
    return fs.fedmoswa(lr, rho, alpha, gamma)


@jax.jit(static_argnames="controls")
def _program(
    controls: str, setup: fs.Setup, workers: jax.Array, values: jax.Array, key: jax.Array
) -> dict[str, jax.Array]:
    """Metrics of all settings ``[settings]`` of one seed: late means."""

    def one(values: jax.Array) -> dict[str, jax.Array]:
        gamma, alpha, rho, lr = values
        own = algorithm(controls, fs.local.exponential_decay(lr, LR_DECAY), gamma, alpha, rho)
        if controls == LAST:
            own = last_on_worker(own, workers, COHORT)
        _, history = fs.run(clipped(own), setup, key, execution=fs.execution.vmapped())
        return {name: value[-LATE:].mean() for name, value in history.metrics.items()}

    return jax.vmap(one)(values)


def reduced(
    controls: str, settings: Sequence[dict[str, float]], lr: float, seed: int, rounds: int
) -> list[dict[str, Any]]:
    """A row per setting of one seed, on digits that a perceptron over-fits."""
    images, train, test = digits(seed)
    metrics = fs.objectives.classification_metrics(network().apply)
    seen, held_out = ({key: x[rows] for key, x in images.items()} for rows in (train, test))
    evaluated = fs.diagnostics.generalization.generalization_gap(metrics, seen, held_out)
    setup = dataclasses.replace(
        make_setup(seed, rounds), eval_fn=evaluated, eval_every=max(1, rounds // EVALUATIONS)
    )
    points = [setting | {"lr": lr} for setting in settings]
    # A factor without effect may have any value.
    values = np.nan_to_num([[point[name] for name in (*FACTORS, "lr")] for point in points])
    workers = workers_of(setup.timeline, CLIENTS)
    found = _program(controls, setup, workers, jnp.asarray(values), jax.random.key(seed))
    names = ("test/accuracy", "test/loss", "train/loss", "gap/loss")
    columns = {label: found[name] for label, name in zip(MEASURES, names, strict=True)}
    return [
        {"controls": controls, **point, "seed": seed}
        | {label: float(value[i]) for label, value in columns.items()}
        for i, point in enumerate(points)
    ]


def scored(rows: pd.DataFrame) -> pd.DataFrame:
    """Each setting and seed at the rate whose mean accuracy over the other seeds is best.

    So no seed chooses its own rate.  ``at edge``: the rate is the first or the last one.
    """
    lrs = np.unique(rows["lr"])
    parts = []
    for _, own in rows.groupby(["controls", *FACTORS], sort=False, dropna=False):
        table = own.pivot(index="lr", columns="seed", values="test accuracy").fillna(0)
        others = table.sum(axis=1).to_numpy()[:, None] - table.to_numpy()
        chosen = table.index.to_numpy()[others.argmax(axis=0)]
        best = pd.DataFrame({"seed": table.columns, "lr": chosen})
        parts.append(own.merge(best, on=["seed", "lr"]))
    found = pd.concat(parts, ignore_index=True)
    edges = len(lrs) > 1
    return found.assign(**{"at edge": edges & found["lr"].isin([lrs[0], lrs[-1]])})


def kept(
    work: pathlib.Path, seeds: int, rounds: int, lrs: Sequence[float], **levels: Any
) -> pd.DataFrame:
    """All rows of the reduced size; a file per controls, seed and rate, which is made once."""
    rows = []
    for seed, controls, lr in itertools.product(range(seeds), CONTROLS, lrs):
        settings = settings_of(controls, **levels)
        identity = {"controls": controls, "settings": settings, "lr": lr}
        identity |= {"seed": seed, "rounds": rounds}
        path = work / "fedmoswa" / f"factorial-{digest(identity)}.json"
        compute = functools.partial(reduced, controls, settings, lr, seed, rounds)
        rows += kept_json(path, lambda compute=compute: {"rows": compute()})["rows"]
        print(f"factorial: {controls}, rate {lr:g}, seed {seed}", flush=True)
    return pd.DataFrame(rows)
