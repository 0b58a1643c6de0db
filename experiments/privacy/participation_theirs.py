"""Epsilons of other libraries for the table of :mod:`experiments.privacy.participation`.

In an environment with dp-accounting==0.6.0, jax-privacy==2.0.0, PLD_accounting==2.0, numba==0.68.1:

    python experiments/privacy/participation_theirs.py > participation.json

and the file goes to experiments/results/privacy.  It takes about 15 minutes on one core.
jax-privacy's numbers are estimates from 2,000,000 sampled losses, of which one in ten thousand
decides; other seeds gave up to 2 % more.
"""

# pyright: reportMissingImports=false

import functools
import json
import os
from importlib.metadata import version
from typing import Any

import dp_accounting as dp
import jax
import numpy as np
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from jax_privacy import batch_selection as rules
from jax_privacy.experimental.monte_carlo import sample_generation as samples
from jax_privacy.matrix_factorization import toeplitz
from PLD_accounting import gaussian_allocation_epsilon_range

CLIENTS, COHORT, ROUNDS, PASS, BANDS, DELTA = 1000, 20, 100, 50, 8, 1e-4
PASSES, TURNS = ROUNDS // PASS, -(-ROUNDS // BANDS)
LOSSES, AT_ONCE = 2_000_000, 10_000  # of an estimate
TOTAL, RENYI = "dp-accounting {}, PLD", "dp-accounting {}, RDP"
ALLOCATION = "PLD_accounting {}"
ESTIMATE = "jax-privacy {}, estimate without an error bound"

Found = tuple[float, str]  # epsilon, and of what


def pld(event: dp.DpEvent, count: int) -> Found:
    """Epsilon of repeated mechanisms by the distribution of their privacy loss."""
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    return accountant.compose(event, count).get_epsilon(DELTA), TOTAL


def rdp(event: dp.DpEvent, count: int, neighbours: dp.NeighboringRelation) -> Found:
    """Epsilon of repeated mechanisms by Renyi divergences."""
    accountant = RdpAccountant(neighboring_relation=neighbours)
    return accountant.compose(event, count).get_epsilon(DELTA), RENYI


def allocation() -> Found:
    """Upper bound for a client in one round of each pass.

    It is the same round of every pass, so the passes are one with less noise.
    """
    upper, _ = gaussian_allocation_epsilon_range(
        delta=DELTA, sigma=PASSES**-0.5, num_steps=PASS, epsilon_accuracy=0.01
    )
    return upper, ALLOCATION


def estimate(rule: rules.BatchSelectionStrategy, column: np.ndarray) -> Found:
    """The larger epsilon of the two directions, from sampled losses."""
    found = []
    for present in (True, False):
        random, parts = np.random.default_rng(0), []
        for _ in range(LOSSES // AT_ONCE):
            drawn: Any = samples.generate_sample(rule, 1.0, column, random, present, AT_ONCE)
            parts.append(samples.compute_privacy_loss(rule, drawn, 1.0, column))
        losses = np.concatenate(parts) * (1 if present else -1)
        low, high = 0.0, max(float(losses.max()), 0.0)
        for _ in range(60):
            middle = (low + high) / 2
            delta = np.mean(np.maximum(-np.expm1(middle - losses), 0))
            low, high = (low, middle) if delta <= DELTA else (middle, high)
        found.append(high)
    return max(found), ESTIMATE


def banded() -> np.ndarray:
    """Coefficients of the noise, of norm 1."""
    with jax.enable_x64(True):
        found = np.asarray(toeplitz.optimize_banded_toeplitz(ROUNDS, BANDS))
    return found / np.linalg.norm(found)


def epsilons() -> dict[str, Found]:
    """The numbers by rule and law; laws that refuse a rule have none."""
    gaussian, sampled = dp.GaussianDpEvent, dp.PoissonSampledDpEvent
    relation = dp.NeighboringRelation
    tree = dp.SingleEpochTreeAggregationDpEvent(1.0, PASS)
    of_tree = functools.partial(rdp, tree, PASSES, relation.REPLACE_SPECIAL)
    grouped = functools.partial(pld, sampled(BANDS * COHORT / CLIENTS, gaussian(1.0)), TURNS)
    # A replaced client changes a sum by twice the clip.
    uniform = dp.SampledWithoutReplacementDpEvent(CLIENTS, COHORT, gaussian(0.5))
    waiting = COHORT / (CLIENTS - (BANDS - 1) * COHORT)
    balls_in_bins = rules.BallsInBinsSampling(ROUNDS, PASS)
    b_min_sep = rules.BMinSepSampling(waiting, ROUNDS, BANDS)
    coefficients = banded()
    return {
        "bernoulli independent": pld(sampled(COHORT / CLIENTS, gaussian(1.0)), ROUNDS),
        "uniform independent": rdp(uniform, ROUNDS, relation.REPLACE_ONE),
        "cyclic independent": pld(gaussian(1.0), PASSES),
        "cyclic tree": of_tree(),
        "cyclic banded": pld(gaussian(1.0), 1),
        "balls_in_bins independent": allocation(),
        "balls_in_bins tree": of_tree(),
        "balls_in_bins banded": estimate(balls_in_bins, coefficients),
        "b_min_sep independent": estimate(b_min_sep, np.ones(1)),
        "b_min_sep banded": estimate(b_min_sep, coefficients),
        "grouped_bernoulli independent": grouped(),
        "grouped_bernoulli banded": grouped(),
    }


def main() -> None:
    """Prints the numbers with the versions of their libraries."""
    cells = {}
    for name, (epsilon, of) in epsilons().items():
        library = of.split(" ", 1)[0]
        cells[name] = {"epsilon": round(float(epsilon), 4), "of": of.format(version(library))}
    command = "python experiments/privacy/participation_theirs.py"
    print(json.dumps({"command": command, "cells": cells}, indent=2))


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()
