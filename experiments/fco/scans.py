"""Scans of brains: recordings or a stand-in of their shapes, and the model on them."""

import os
import pathlib
from typing import Any, Literal, NamedTuple

import jax
from jax.tree_util import Partial

import fedjax_sim as fs
from experiments.fco import brains, methods
from fedjax_sim.datasets import DATA_DIR_VARIABLE

METRICS = LOSS, ACCURACY, DENSITY = "validation/loss", "validation/accuracy", "density"
CUTOFF = 1e-4
PROBLEM_SEED = 0

Source = Literal["auto", "haxby", "synthetic"]


class Data(NamedTuple):
    """Scans, and whether they are recordings."""

    scans: brains.Scans
    real: bool

    @property
    def label(self) -> str:
        """The source of the data, for titles."""
        return "Haxby et al." if self.real else "SYNTHETIC STAND-IN, no recordings"


def load(source: Source, voxels: int, data_dir: pathlib.Path | None) -> Data:
    """The recordings or the stand-in, which has so many voxels."""
    where = data_dir or os.environ.get(DATA_DIR_VARIABLE) or None
    if source == "haxby" or (source == "auto" and brains.is_available(where)):
        if where is None:
            raise ValueError(
                f"data_dir is not given and {DATA_DIR_VARIABLE} is not set; expected it"
            )
        return Data(brains.haxby(where), True)
    nonzero = max(voxels * 5 // 1000, 1)
    scans = brains.sparse_classification(PROBLEM_SEED, dim=voxels, num_nonzero=nonzero)
    return Data(scans, False)


class Measured(NamedTuple):
    """The static part of an evaluation."""

    composite: fs.prox.Composite

    def __call__(self, means: Partial, params: Any) -> dict[str, jax.Array]:
        values = means(params)
        return {
            LOSS: values[LOSS] + self.composite.value(params),
            ACCURACY: values[ACCURACY],
            DENSITY: fs.diagnostics.recovery.density(params["linear"]["kernel"], CUTOFF),
        }


def make_problem(
    scans: brains.Scans,
    train: fs.FederatedData,
    *,
    weight: float,
    batches: fs.data.batches.Batches,
    rounds: int,
    cohort: int,
    seeds: int,
) -> methods.Problem:
    """The model on the data of some clients; it starts as a Keras layer does."""
    features = scans.test.examples["x"].shape[1]
    model = fs.models.logistic_regression(features)

    def init(key: jax.Array) -> Any:
        linear = model.init(key)["linear"]
        return {"linear": {**linear, "kernel": methods.glorot_weights(key, features)[None]}}

    composite = fs.prox.composite(fs.prox.L1(weight), where=fs.prox.kernels)
    metrics = fs.objectives.binary_classification_metrics(model.apply)
    means = fs.evaluation.merge_evaluators(
        validation=fs.evaluation.evaluator(metrics, scans.test.examples)
    )
    return methods.make_problem(
        composite,
        fs.empirical_task(fs.objectives.binary_cross_entropy(model.apply), train, batches),
        init,
        Partial(Measured(composite), means),
        rounds=rounds,
        cohort=cohort,
        seeds=seeds,
    )
