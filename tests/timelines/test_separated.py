"""Clients that return late: counts, gaps and independence, against the laws of NumPy processes."""

import jax
import numpy as np
import pytest

import fedjax_sim as fs
from fedjax_sim.wrappers.privacy.participation import min_separation

KEY = jax.random.key(3)


def visits(timeline):
    """Which client takes part in which round, bool ``[T, M]``."""
    mask = np.zeros((timeline.num_rounds, timeline.cohort_size), bool)
    np.put_along_axis(mask, np.asarray(timeline.clients), np.asarray(timeline.mask), 1)
    return mask


@pytest.mark.parametrize("redraw", [False, True])
def test_clients_visit_once_per_pass(redraw):
    mask = visits(fs.timelines.balls_in_bins(KEY, 22, 3000, 5, 2, redraw=redraw))
    passes = mask[:20].reshape(4, 5, 3000)
    assert (passes.sum(1) == 1).all()
    # Places: 3000 of 5, each with the deviation sqrt(3000 / 5 * 4 / 5) = 22.
    assert abs(passes.sum(2) - 600).max() < 5 * 22
    places = passes.argmax(1)
    same = (places[0] == places[1]).mean()
    assert same == pytest.approx(0.2, abs=5 * 0.0073) if redraw else same == 1
    if not redraw:
        assert (mask[20:] == mask[:2]).all()
    # Clients draw independently: sizes of cohorts are not fixed.
    assert len(set(passes[0].sum(1).tolist())) > 1


def process(random, rounds, clients, p, apart):
    """b-min-separation after 60 rounds from rest, client by client."""
    mask = np.zeros((rounds + 60, clients), bool)
    last = np.full(clients, -apart)
    for t in range(rounds + 60):
        mask[t] = (t - last >= apart) & (random.random(clients) < p)
        last[mask[t]] = t
    return mask[60:]


@pytest.mark.parametrize(("p", "apart"), [(0.3, 4), (0.5, 1), (1.0, 3), (0.05, 2)])
def test_counts_and_gaps_of_b_min_separation(p, apart):
    clients, rounds = 8000, 24
    timeline = fs.timelines.b_min_sep(KEY, rounds, clients, p, 1, separation=apart)
    mask, other = visits(timeline), process(np.random.default_rng(0), rounds, clients, p, apart)
    share = p / (1 + (apart - 1) * p)
    assert timeline.sampling.expected_uploads == pytest.approx(share * clients)
    assert min_separation(timeline) == apart
    # Every round has the stationary share, the first too: deviation sqrt(s (1 - s) / M) < 0.0056.
    np.testing.assert_allclose(mask.mean(1), share, atol=5 * 0.0056)
    for statistic in (lambda m: np.bincount(m.sum(0), minlength=25) / clients, _gaps):
        np.testing.assert_allclose(statistic(mask), statistic(other), atol=5 * 0.008)
    # Rounds of different clients are independent: the correlation has the deviation 1 / sqrt(T M).
    left, right = mask[:, ::2] - share, mask[:, 1::2] - share
    assert abs((left * right).mean()) < 5 * share / np.sqrt(rounds * clients / 2) + 1e-12


def _gaps(mask):
    """Shares of the rounds between visits of a client, 0 .. 24."""
    gaps = np.concatenate([np.diff(np.flatnonzero(mask[:, i])) for i in range(mask.shape[1])])
    return np.bincount(gaps, minlength=25) / len(gaps)


def test_they_are_pure_functions_of_the_key_under_vmap_and_jit():
    keys = jax.random.split(KEY, 3)
    for draw in (
        lambda key: fs.timelines.balls_in_bins(key, 7, 9, 3, 1, redraw=True),
        lambda key: fs.timelines.b_min_sep(key, 7, 9, 0.4, 1, separation=2),
    ):
        batch = jax.jit(jax.vmap(draw))(keys)
        for i in range(3):
            one = draw(keys[i])
            np.testing.assert_array_equal(batch.mask[i], one.mask)
            assert batch.sampling == one.sampling
        longer = jax.tree.map(np.asarray, draw(keys[0]))
        assert longer.mask.shape == (7, 9)


def test_the_first_rounds_do_not_depend_on_their_number():
    for draw in (
        lambda rounds: fs.timelines.balls_in_bins(KEY, rounds, 9, 3, 1, redraw=True),
        lambda rounds: fs.timelines.b_min_sep(KEY, rounds, 9, 0.4, 1, separation=2),
    ):
        np.testing.assert_array_equal(draw(12).mask[:5], draw(5).mask)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fs.timelines.balls_in_bins(KEY, 3, 9, 0, 1), "num_bins is 0"),
        (lambda: fs.timelines.balls_in_bins(KEY, 3, 0, 2, 1), "num_clients is 0"),
        (lambda: fs.timelines.balls_in_bins(KEY, 0, 9, 2, 1), "num_rounds is 0"),
        (lambda: fs.timelines.b_min_sep(KEY, 3, 9, 0.0, 1, separation=2), "probability is 0.0"),
        (lambda: fs.timelines.b_min_sep(KEY, 3, 9, 1.5, 1, separation=2), "probability is 1.5"),
        (lambda: fs.timelines.b_min_sep(KEY, 3, 9, 0.5, 1, separation=0), "separation is 0"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
