"""Rules of sampling as options, against the functions of the library."""

import jax
import numpy as np
import pytest

import fedjax_sim as fs
from fedjax_sim.studies.setups import fields
from fedjax_sim.studies.setups.presets import options
from fedjax_sim.studies.setups.run import Run
from fedjax_sim.studies.setups.sampling import drawn
from fedjax_sim.timelines import (
    b_min_sep,
    balls_in_bins,
    geometric_steps,
    poisson,
    repeat_rounds,
    sampling,
    slots_for,
)

ROUNDS, COHORT, KEY = 7, 3, jax.random.key(1)
SIZES = np.arange(1, 13)  # of 12 clients
STEPS = np.full(12, 2)

EQUAL = [
    ({"sampling": "uniform"}, lambda: sampling.uniform(KEY, ROUNDS, 12, COHORT, STEPS)),
    ({"sampling": "weighted"}, lambda: sampling.weighted(KEY, ROUNDS, SIZES, COHORT, STEPS)),
    ({"sampling": "bernoulli"}, lambda: sampling.bernoulli(KEY, ROUNDS, 12, 1 / 4, STEPS)),
    (
        {"sampling": "poisson", "sampling.delta": 0.01},
        lambda: poisson(
            KEY, ROUNDS, 12, 1 / 4, STEPS, slots=slots_for(12, 1 / 4, ROUNDS, 0.01)
        ),
    ),
    ({"sampling": "cyclic"}, lambda: sampling.cyclic(ROUNDS, 12, COHORT, STEPS)),
    ({"sampling": "full"}, lambda: sampling.full(ROUNDS, 12, STEPS)),
    (
        {"sampling": "pairs"},
        lambda: repeat_rounds(sampling.uniform(KEY, 4, 12, COHORT, STEPS), 2)[:ROUNDS],
    ),
    (
        {"sampling": "geometric"},
        lambda: geometric_steps(KEY, sampling.full(ROUNDS, 12, 2), 1 / 2, max_steps=10),
    ),
    (
        {"sampling": "full-or-uniform"},
        lambda: sampling.full_or_uniform(KEY, ROUNDS, 12, COHORT, 1 / 4, STEPS),
    ),
    (
        {"sampling": "full-or-uniform", "sampling.probability": 0.6},
        lambda: sampling.full_or_uniform(KEY, ROUNDS, 12, COHORT, 0.6, STEPS),
    ),
    (
        {"sampling": "stratified"},
        lambda: sampling.stratified(KEY, ROUNDS, 12, COHORT, STEPS, num_strata=3),
    ),
    ({"sampling": "balls-in-bins"}, lambda: balls_in_bins(KEY, ROUNDS, 12, 4, STEPS)),
    (
        {"sampling": "balls-in-bins", "sampling.redraw": True},
        lambda: balls_in_bins(KEY, ROUNDS, 12, 4, STEPS, redraw=True),
    ),
    (  # p 12 / (1 + 2 p) = 3
        {"sampling": "b-min-sep", "sampling.separation": 3},
        lambda: b_min_sep(KEY, ROUNDS, 12, 1 / 2, STEPS, separation=3),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("values", "rule"), EQUAL, ids=[str(row[0]) for row in EQUAL])
def test_rules_are_the_functions_of_the_library(values, rule):
    found = drawn(options(**values).sampling, ROUNDS, COHORT, KEY, SIZES, STEPS, num_strata=3)
    jax.tree.map(np.testing.assert_array_equal, found, rule())
    assert isinstance(found, fs.Timeline)


@pytest.mark.parametrize(
    ("values", "cohort", "message"),
    [
        ({"sampling": "b-min-sep", "sampling.separation": 5}, 3, "separation is 5; expected at m"),
        ({"sampling": "b-min-sep", "sampling.separation": 1}, 13, "cohort_size is 13"),
        ({"sampling": "balls-in-bins"}, 13, "cohort_size is 13"),
    ],
)
def test_cohorts_that_are_too_large_are_refused(values, cohort, message):
    with pytest.raises(ValueError, match=message):
        drawn(options(**values).sampling, ROUNDS, cohort, KEY, SIZES, STEPS)


def test_every_kind_is_in_the_table():
    (field,) = (field for field in fields.fields_of(Run) if field.name == "sampling")
    kinds = {fields.kind_of(kind) for kind in field.alternatives}
    assert kinds == {values["sampling"] for values, _ in EQUAL}
