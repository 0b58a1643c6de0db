"""Counts that come from arrays of NumPy: the same timelines, partitions and graphs as of ints."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fs
from fedjax_sim import timelines as tl
from fedjax_sim import topologies
from fedjax_sim.data import partition

LABELS = np.repeat(np.arange(5), 40)
KEY = lambda: jax.random.key(0)  # noqa: E731
FULL = lambda: tl.full(6, 8, 2)  # noqa: E731
DURATIONS = tl.exponential(1.0)

# A call of each function, whose counts are of the kind `n`. All counts fit 8 bits; their products
# do not.
CALLS = {
    "uniform": lambda n: tl.uniform(KEY(), n(40), n(80), n(30), n(2)),
    "full": lambda n: tl.full(n(4), n(80), n(2)),
    "poisson": lambda n: tl.poisson(KEY(), n(4), n(8), 0.4, n(2), slots=n(5)),
    "bernoulli": lambda n: tl.bernoulli(KEY(), n(4), n(8), 0.4, n(2)),
    "b_min_sep": lambda n: tl.b_min_sep(KEY(), n(9), n(8), 0.4, n(2), separation=n(2)),
    "balls_in_bins": lambda n: tl.balls_in_bins(KEY(), n(6), n(8), n(3), n(2)),
    "cyclic": lambda n: tl.cyclic(n(4), n(8), n(3), n(2)),
    "full_or_uniform": lambda n: tl.full_or_uniform(KEY(), n(4), n(8), n(3), 0.4, n(2)),
    "grouped": lambda n: tl.grouped_bernoulli(KEY(), n(4), n(8), 0.4, n(2), num_groups=n(4)),
    "stratified": lambda n: tl.stratified(KEY(), n(4), n(8), n(4), n(2), num_strata=n(2)),
    "weighted": lambda n: tl.weighted(KEY(), n(4), np.arange(1.0, 9), n(3), n(2)),
    "single": lambda n: tl.single(n(4), n(8), n(2), n(3)),
    "repeat_rounds": lambda n: tl.repeat_rounds(FULL(), n(3)),
    "geometric_steps": lambda n: tl.geometric_steps(KEY(), FULL(), 0.5, n(5)),
    "delay_clients": lambda n: tl.delay_clients(FULL(), n(3), n(2)),
    "delay_uploads": lambda n: tl.delay_uploads(KEY(), FULL(), 0.5, n(2)),
    "remove_clients": lambda n: tl.remove_clients(FULL(), n(3)),
    "lose_uploads_of": lambda n: tl.lose_uploads_of(FULL(), n(3)),
    "synchronous": lambda n: tl.synchronous(
        KEY(), DURATIONS, horizon=20.0, num_clients=n(8), cohort_size=n(3), num_steps=n(2)
    ),
    "arrivals": lambda n: tl.arrivals(
        KEY(), DURATIONS, horizon=20.0, num_clients=n(8), num_steps=n(2), buffer=n(2)
    ),
    "contacts": lambda n: tl.contacts(
        KEY(), tl.renewal_counts(DURATIONS), horizon=20.0, num_clients=n(8), cohort_size=n(3),
        max_steps=n(4),
    ),
    "bits_moved": lambda n: tl.bits_moved(FULL(), n(100), n(120), to_all=n(8)),
    "slots_for": lambda n: tl.slots_for(n(100), 0.1, n(100), 1e-3),
    "sample_without_replacement": lambda n: tl.sample_without_replacement(KEY(), n(100), n(7)),
    "iid": lambda n: partition.iid(n(120), n(8), n(0)),
    "dirichlet": lambda n: partition.dirichlet(LABELS, n(8), 0.5, n(0)),
    "shards": lambda n: partition.shards(LABELS, n(8), n(2), n(0)),
    "pachinko": lambda n: partition.pachinko(LABELS, LABELS // 2, n(8), n(0), size=n(10)),
    "torus": lambda n: topologies.torus(n(20), n(20)).weights,
    "random_matching": lambda n: topologies.random_matching(n(8), n(3), n(0)).weights,
    "mlp": lambda n: fs.models.mlp(n(100), (3,), n(10)).init(KEY()),
}  # fmt: skip


def leaves(result):
    keys = lambda x: jnp.issubdtype(getattr(x, "dtype", np.int8), jax.dtypes.prng_key)  # noqa: E731
    return [jax.random.key_data(x) if keys(x) else x for x in jax.tree.leaves(result)]


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_counts_of_numpy(name, x64):
    with jax.enable_x64(x64):
        expected = leaves(CALLS[name](int))
        for kind in (np.int64, np.uint8, np.array):
            found = leaves(CALLS[name](kind))
            assert [type(x) for x in found] == [type(x) for x in expected], kind
            assert [np.asarray(x).dtype for x in found] == [np.asarray(x).dtype for x in expected]
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_array_equal(one, other)
