"""Rules of sampling as options, against the functions of the library."""

import jax
import numpy as np
import pytest

import fedjax_sim as fs
from fedjax_sim.studies.setups import fields
from fedjax_sim.studies.setups.presets import options
from fedjax_sim.studies.setups.run import Run
from fedjax_sim.studies.setups.sampling import drawn
from fedjax_sim.timelines import geometric_steps, poisson, repeat_rounds, sampling, slots_for

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
]  # fmt: skip


@pytest.mark.parametrize(("values", "rule"), EQUAL, ids=[str(row[0]) for row in EQUAL])
def test_rules_are_the_functions_of_the_library(values, rule):
    found = drawn(options(**values).sampling, ROUNDS, COHORT, KEY, SIZES, STEPS, num_strata=3)
    jax.tree.map(np.testing.assert_array_equal, found, rule())
    assert isinstance(found, fs.Timeline)


def test_every_kind_is_in_the_table():
    (field,) = (field for field in fields.fields_of(Run) if field.name == "sampling")
    kinds = {fields.kind_of(kind) for kind in field.alternatives}
    assert kinds == {values["sampling"] for values, _ in EQUAL}
