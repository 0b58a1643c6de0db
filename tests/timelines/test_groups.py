"""Groups of clients that take turns."""

import jax
import numpy as np
import pytest

import fedjax_sim as fs


def test_groups_take_turns_and_their_clients_take_part_by_chance():
    timeline = fs.timelines.grouped_bernoulli(
        jax.random.key(0), 3000, 8, 0.3, np.arange(1, 9), num_groups=3
    )
    clients, mask = np.asarray(timeline.clients), np.asarray(timeline.mask)
    groups = np.array([0, 0, 0, 1, 1, 1, 2, 2])
    assert (groups[clients] == np.arange(3000)[:, None] % 3).all()
    counts = np.bincount(clients[mask], minlength=8)
    # Standard deviation 0.0145 of a share of 1,000 rounds.
    np.testing.assert_allclose(counts / 1000, 0.3, atol=5 * 0.0145)
    np.testing.assert_array_equal(timeline.num_steps, clients + 1)
    rule = timeline.sampling
    assert (rule.kind, rule.probability, rule.groups, rule.population) == ("poisson", 0.3, 3, 2)
    assert rule.expected_uploads == pytest.approx(0.3 * 8 / 3)


@pytest.mark.slow
def test_one_group_is_bernoulli():
    key = jax.random.key(1)
    grouped = fs.timelines.grouped_bernoulli(key, 5, 4, 0.5, 1, num_groups=1)
    whole = fs.timelines.bernoulli(key, 5, 4, 0.5, 1)
    jax.tree.map(np.testing.assert_array_equal, grouped, whole)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"probability": 0.0}, "probability is 0.0; expected a concrete number"),
        ({"num_groups": 9}, "num_groups is 9; expected 1 .. num_clients = 8"),
        ({"num_rounds": 0}, "num_rounds is 0"),
    ],
)
def test_bad_input(changes, message):
    sizes = {"num_rounds": 2, "num_clients": 8, "num_groups": 2}
    arguments = sizes | {"probability": 0.5, "num_steps": 1} | changes
    with pytest.raises(ValueError, match=message):
        fs.timelines.grouped_bernoulli(jax.random.key(0), **arguments)
