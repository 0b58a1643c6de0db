"""Counts that are no integers are refused by every factory of data and timelines."""

import inspect

import jax.numpy as jnp
import numpy as np
import pytest
from small_problems import KEY, no_data

import fedjax_sim as fs
from fedjax_sim import compression, timelines
from fedjax_sim.data import partition
from fedjax_sim.data.augmentation import random_crop
from fedjax_sim.data.feature_shift import noise_levels
from fedjax_sim.data.generated import generated_task
from fedjax_sim.problems import quadratics, recovery
from fedjax_sim.timelines import (
    arrivals,
    arrivals_in_flight,
    contacts,
    contacts_in_flight,
    deterministic,
    renewal_counts,
    synchronous,
)

LABELS = np.arange(60) % 4
FULL = timelines.full(3, 4, 1)


def losses(params, examples, key):
    return examples["x"] * params


def generate(client, key):
    return {"x": jnp.ones(2)}


def bucketing(size):
    return fs.robust.bucketing(fs.robust.mean(), size)


EXAMPLES = {"x": np.ones(4, np.float32)}
DATA = fs.FederatedData(EXAMPLES, np.array([0, 2, 4]))
DURATIONS = deterministic(1.0)
FACTORIES = [
    (fs.epochs, {"batch_size": 2, "max_steps": 3}),
    (fs.with_replacement, {"batch_size": 2, "num_steps": 3}),
    (fs.stream, {"batch_size": 2, "num_steps": 3}),
    (fs.shuffled_repeats, {"num_epochs": 1, "batch_size": 2, "max_steps": 3}),
    (fs.complete_batches, {"num_epochs": 1, "batch_size": 2}),
    (fs.full_batch, {"num_steps": 3}),
    (timelines.full, {"num_rounds": 2, "num_clients": 4}),
    (timelines.single, {"num_rounds": 2, "num_clients": 4, "client": 1}),
    (timelines.uniform, {"num_rounds": 2, "num_clients": 4, "cohort_size": 3}),
    (timelines.weighted, {"num_rounds": 2, "cohort_size": 3}),
    (timelines.bernoulli, {"num_rounds": 2, "num_clients": 4}),
    (timelines.full_or_uniform, {"num_rounds": 2, "num_clients": 4, "cohort_size": 3}),
    (timelines.cyclic, {"num_rounds": 2, "num_clients": 4, "cohort_size": 3}),
    (timelines.stratified, {"num_rounds": 2, "num_clients": 4, "cohort_size": 2, "num_strata": 2}),
    (timelines.poisson, {"num_rounds": 2, "num_clients": 4, "slots": 3}),
    (timelines.grouped_bernoulli, {"num_rounds": 2, "num_clients": 4, "num_groups": 2}),
    (timelines.repeat_rounds, {"times": 2}),
    (timelines.geometric_steps, {"max_steps": 2}),
    (timelines.delay_uploads, {"delay": 2}),
    (timelines.arrange_by_stratum, {"num_clients": 4, "num_strata": 2}),
    (arrivals, {"num_clients": 4, "num_steps": 1, "buffer": 2, "concurrency": 3}),
    (arrivals_in_flight, {"num_clients": 4, "num_steps": 1, "buffer": 2, "every": 2}),
    (contacts, {"num_clients": 4, "cohort_size": 2, "max_steps": 3}),
    (contacts_in_flight, {"num_clients": 4, "cohort_size": 2, "max_steps": 3, "every": 2}),
    (synchronous, {"num_clients": 4, "cohort_size": 2, "num_steps": 3}),
    (timelines.always, {"num_clients": 4}),
    (timelines.alternating, {"num_clients": 4}),
    (timelines.two_speeds, {"num_clients": 4}),
    (partition.iid, {"num_examples": 60, "num_clients": 4}),
    (partition.quantity_skew, {"num_examples": 60, "num_clients": 4, "min_size": 2}),
    (partition.exponential, {"num_examples": 60, "num_clients": 4, "min_size": 2}),
    (partition.log_normal, {"num_examples": 60, "num_clients": 4, "min_size": 2}),
    (partition.proportional, {"num_examples": 60, "min_size": 2}),
    (partition.dirichlet, {"num_clients": 4}),
    (partition.dirichlet_by_class, {"num_clients": 4, "min_size": 2, "max_tries": 9}),
    (partition.classes_per_client, {"num_clients": 4, "k": 2}),
    (partition.shards, {"num_clients": 4, "k": 2}),
    (partition.label_quantity, {"num_clients": 4, "k": 2}),
    (partition.pachinko, {"num_clients": 4, "size": 5}),
    (partition.pfllib_dirichlet, {"num_clients": 2, "min_size": 2}),
    (partition.pfllib_extended_dirichlet, {"num_clients": 4, "k": 2}),
    (partition.pfllib_pathological, {"num_clients": 4, "k": 2}),
    (partition.hold_out, {"num_clients": 4}),
    (fs.empirical_task, {"full_grad_batch": 2}),
    (fs.shared_task, {"num_clients": 4, "full_grad_batch": 2}),
    (generated_task, {"num_clients": 4, "full_grad_batch": 2}),
    (random_crop, {"padding": 1}),
    (noise_levels, {"num_clients": 4}),
    (compression.uniform, {"levels": 3}),
    (compression.qsgd, {"levels": 3}),
    (compression.luq_codec, {"exponent_levels": 3}),
    (compression.power_sgd, {"rank": 2}),
    (compression.gaussian_low_rank, {"rank": 2}),
    (fs.privacy.tree_aggregation, {"num_rounds": 4}),
    (fs.privacy.banded_coefficients, {"num_rounds": 4, "bands": 2}),
    (bucketing, {"size": 2}),
    (fs.robust.geometric_median, {"iterations": 2}),
    (fs.robust.rfa, {"iterations": 2}),
    (quadratics.quadratics, {"num_clients": 4, "dim": 2}),
    (recovery.sparse_regression, {"num_clients": 4, "num_nonzero": 2, "dim": 3}),
    (recovery.low_rank_regression, {"num_clients": 4, "rank": 2, "size": 3}),
]
# Arguments that are no counts.
OTHERS = {
    "key": KEY, "num_steps": 1, "weights": np.ones(4), "probability": 0.5, "timeline": FULL,
    "horizon": 20.0, "durations": DURATIONS, "mean_present": 1.0, "mean_absent": 1.0,
    "slow_fraction": 0.5, "fast": 1.0, "slow": 2.0, "alpha": 1.0, "seed": 0, "sigma": 1.0,
    "labels": LABELS, "coarse": LABELS // 2, "fraction": 0.5, "objective": losses, "data": DATA,
    "batches": fs.full_batch(1), "examples": EXAMPLES, "generate": generate,
    "examples_per_client": 3, "images": jnp.ones((2, 4, 4, 1)),
    "steps": renewal_counts(DURATIONS), "balance": True, "num_epochs": 1,
}  # fmt: skip
CASES = [(factory, counts, name) for factory, counts in FACTORIES for name in counts]


def call(factory, counts):
    parameters = inspect.signature(factory).parameters
    needed = {name: OTHERS[name] for name in parameters if name in OTHERS}
    return factory(**needed | counts)


@pytest.mark.parametrize(
    ("factory", "counts", "name"), CASES, ids=[f"{f.__name__}-{name}" for f, _, name in CASES]
)
def test_counts_are_integers(factory, counts, name):
    call(factory, {key: np.int64(value) for key, value in counts.items()})
    for value in (counts[name] + 0.5, np.float32(1.5), str(counts[name]), [counts[name]]):
        with pytest.raises(ValueError, match=f"{name} is .*; expected an integer"):
            call(getattr(factory, "__wrapped__", factory), counts | {name: value})
    with pytest.raises(ValueError, match=f"{name} is True; expected an integer"):
        call(getattr(factory, "__wrapped__", factory), counts | {name: True})


def test_evaluations_are_after_whole_rounds():
    setup = fs.Setup(no_data(4), FULL, jnp.zeros(1), eval_every=2.5)  # type: ignore
    with pytest.raises(ValueError, match=r"eval_every is 2\.5; expected an integer"):
        fs.run(fs.fedavg(0.1), setup, KEY)


@pytest.mark.parametrize("rows", [[0.5, 1.0], [True, False], ["0", "1"], [[0, 1]]])
def test_rows_are_integers(rows):
    with pytest.raises(ValueError, match=r"assignment\[1\] is .*; expected integers in one"):
        fs.from_assignment(EXAMPLES, [np.array([2]), np.array(rows)])


def test_a_client_may_have_no_rows():
    assert fs.from_assignment(EXAMPLES, [np.array([]), np.array([0, 3])]).sizes.tolist() == [0, 2]


def test_offsets_are_integers():
    with pytest.raises(ValueError, match=r"offsets is float64\[3\]; expected integers"):
        fs.FederatedData({"x": [1.0, 2.0, 3.0]}, [0, 1.5, 3])  # type: ignore
    data = fs.FederatedData(EXAMPLES, np.array([0, 1.5, 4]))
    with pytest.raises(ValueError, match=r"data\.offsets has dtype float64; expected integers"):
        fs.empirical_task(losses, data, fs.full_batch(1))
