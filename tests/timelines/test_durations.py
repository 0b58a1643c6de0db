"""Laws of step durations: supports, means, traces and their files, speeds."""

import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from fedjax_sim.timelines import (
    arrivals,
    contacts,
    deterministic,
    exponential,
    from_trace,
    geometric,
    independent_counts,
    log_normal,
    read_trace,
    renewal_counts,
    synchronous,
    two_speeds,
)

CLIENTS = np.array([2, 0, 2])
COUNT = 20_000
# A law's mean and standard deviation for each of three clients.
LAWS = {
    "geometric": (geometric(np.array([0.5, 1.0, 1 / 16])), [2, 1, 16], [2**0.5, 0, 240**0.5]),
    "exponential": (exponential(np.array([2.0, 1.0, 16.0])), [2, 1, 16], [2, 1, 16]),
    "deterministic": (deterministic(np.array([2.0, 1.0, 16.0])), [2, 1, 16], [0, 0, 0]),
    # m exp(s Z - s^2 / 2) has the variance m^2 (exp(s^2) - 1)
    "log_normal": (
        log_normal(np.array([2.0, 1.0, 16.0]), 0.5),
        [2, 1, 16],
        np.array([2, 1, 16]) * np.sqrt(np.exp(0.25) - 1),
    ),
    "traced": (
        from_trace(np.array([[1.0, np.nan, 3.0], [1.0, np.nan, np.nan], [8.0, 16.0, 24.0]])),
        [2, 1, 16],
        [1, 0, np.sqrt(128 / 3)],
    ),
}


@pytest.mark.parametrize("name", LAWS)
def test_means_and_deviations(name):
    """Durations of the given clients, in their order; a client given twice has two draws.

    Five standard errors; that of a standard deviation is at most sqrt(kurtosis - 1) / 2 of it per
    root of the count, at most 2 for these laws.
    """
    law, mean, deviation = LAWS[name]
    drawn = law(np.random.default_rng(1), CLIENTS, COUNT)
    assert drawn.shape == (3, COUNT)
    assert drawn.dtype == np.float64
    expected, sigma = np.array(mean)[CLIENTS], np.array(deviation)[CLIENTS]
    error = 5 * sigma / np.sqrt(COUNT) + 1e-12
    assert (np.abs(drawn.mean(axis=1) - expected) <= error).all()
    assert (np.abs(drawn.std(axis=1) - sigma) <= 2 * error).all()
    assert (drawn[0] != drawn[2]).any() == (sigma[0] > 0)
    again = law(np.random.default_rng(1), CLIENTS, COUNT)
    np.testing.assert_array_equal(again, drawn)


@pytest.mark.parametrize("name", LAWS)
def test_nobody_takes_no_time(name):
    assert LAWS[name][0](np.random.default_rng(0), np.arange(0), 4).shape == (0, 4)


@pytest.mark.parametrize(
    ("law", "reference"),
    [
        (exponential(3.0), scipy.stats.expon(scale=3)),
        (log_normal(3.0, 0.8), scipy.stats.lognorm(0.8, scale=3 * np.exp(-0.32))),
    ],
)
def test_continuous_distributions(law, reference):
    """Kolmogorov and Smirnov's test; the seed's p value is far from what chance may give."""
    drawn = law(np.random.default_rng(2), np.array([0]), 5000)[0]
    assert scipy.stats.kstest(drawn, reference.cdf).pvalue > 0.01


def test_geometric_probabilities():
    """Whole numbers from 1; five standard errors of each frequency."""
    drawn = geometric(0.3)(np.random.default_rng(0), np.array([0]), COUNT)[0]
    assert set(np.unique(drawn)) <= set(range(1, 60))
    for j in range(1, 8):
        p = scipy.stats.geom.pmf(j, 0.3)
        assert abs((drawn == j).mean() - p) < 5 * np.sqrt(p * (1 - p) / COUNT)


def test_traces_give_each_client_its_own_records():
    """All of them, equally often, and never what is missing: five standard errors."""
    law = from_trace(np.array([[np.nan, 1.0, 2.0], [7.0, np.nan, np.nan]]))
    drawn = law(np.random.default_rng(0), np.array([1, 0]), COUNT)
    assert set(drawn[0]) == {7.0}
    assert set(drawn[1]) == {1.0, 2.0}
    assert abs((drawn[1] == 1.0).mean() - 0.5) < 2.5 / np.sqrt(COUNT)


def test_files_of_traces(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("client, duration\n2,1.5\n0, 3\n2,2.5\n")
    table = read_trace(path, 3)
    np.testing.assert_array_equal(table, [[3, np.nan], [np.nan, np.nan], [1.5, 2.5]])
    with pytest.raises(ValueError, match="at least one per client"):
        from_trace(table)  # client 1 has none
    path.write_text("client,duration\n")
    assert read_trace(path, 2).shape == (2, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"begins with \[\]; expected 'client,duration'"),
        ("id,time\n0,1\n", r"begins with \['id,time'\]; expected 'client,duration'"),
        (
            "client,duration\n0,1\n3,1\n",
            r"line 3 is '3,1'; expected a client of 0 \.\. 2 and a num",
        ),
        ("client,duration\n-1,1\n", "line 2 is '-1,1'"),
        ("client,duration\n0,1\n1,two\n", "line 3 is '1,two'"),
        ("client,duration\n0,1\n1.0,2\n", r"line 3 is '1\.0,2'"),
        ("client,duration\n0,1\n\n0,1\n", "line 3 is ''"),
        ("client,duration\n0,1,2\n", "line 2 is '0,1,2'"),
        ("client,duration\n0,nan\n", "line 2 is '0,nan'"),
    ],
)
def test_refuses_files_and_names_the_line(tmp_path, text, message):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_trace(path, 3)


@pytest.mark.parametrize(
    ("clients", "fraction", "slow"),
    [(100, 1 / 3, 34), (100, 8 / 9, 89), (10, 0.3, 3), (7, 0.0, 0), (7, 1.0, 7), (3, 0.01, 1)],
)
def test_two_speeds(clients, fraction, slow):
    success = two_speeds(jax.random.key(1), clients, fraction, fast=1 / 2, slow=1 / 16)
    assert success.shape == (clients,)
    assert (success == 1 / 16).sum() == slow
    assert (success == 1 / 2).sum() == clients - slow


def test_slow_clients_are_anyone():
    """Over 400 keys each of 8 is among the 2 slow ones 100 times; five deviations of 8.7."""
    slow = sum(two_speeds(jax.random.key(k), 8, 1 / 4, fast=0.0, slow=1.0) for k in range(400))
    assert np.abs(slow - 100).max() < 44
    np.testing.assert_array_equal(
        two_speeds(jax.random.key(5), 8, 0.5, fast=0.0, slow=1.0),
        two_speeds(jax.random.key(5), 8, 0.5, fast=0.0, slow=1.0),
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: geometric(0.0), r"success is 0\.0; expected probabilities in \(0, 1\]"),
        (lambda: geometric(np.array([0.5, 1.1])), r"success is \[0\.5 1\.1\]"),
        (lambda: geometric(np.nan), "success is nan"),
        (lambda: exponential(0.0), r"mean is 0\.0; expected positive finite numbers"),
        (lambda: exponential(np.array([1.0, np.inf])), r"mean is \[ *1\. inf\]"),
        (lambda: deterministic(-1.0), r"duration is -1\.0; expected positive finite"),
        (lambda: log_normal(0.0, 1.0), r"mean is 0\.0; expected positive finite"),
        (lambda: log_normal(1.0, -0.5), r"sigma is -0\.5; expected a finite number >= 0"),
        (lambda: log_normal(1.0, np.nan), r"sigma is nan; expected a finite number >= 0"),
        (lambda: log_normal(1.0, np.inf), r"sigma is inf; expected a finite number >= 0"),
        (
            lambda: from_trace(np.ones(3)),
            r"durations has shape \(3,\); expected \[M, L\] of positive",
        ),
        (lambda: from_trace(np.array([[1.0], [0.0]])), r"durations has shape \(2, 1\)"),
        (lambda: from_trace(np.array([[1.0], [np.nan]])), "at least one per client"),
        (
            lambda: two_speeds(jax.random.key(0), 4, 1.5, fast=1.0, slow=1.0),
            r"slow_fraction is 1\.5; expected a number in \[0, 1\]",
        ),
    ],
)
def test_refuses(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("law", "message"),
    [
        (geometric(np.ones(2)), "success has shape (2,)"),
        (exponential(np.ones(2)), "mean has shape (2,)"),
        (deterministic(np.ones(2)), "duration has shape (2,)"),
        (log_normal(np.ones(2), 0.5), "mean has shape (2,)"),
        (deterministic(np.ones((3, 2))), "duration has shape (3, 2)"),
        (from_trace(np.ones((2, 4))), "durations has shape (2, 4)"),
    ],
)
def test_laws_with_too_few_clients_name_the_argument(law, message):
    with pytest.raises(ValueError, match=re.escape(message) + "; expected .* client 2"):
        law(np.random.default_rng(0), np.array([0, 2]), 3)


KEY = jax.random.key(0)
# Every clock that draws from a law.
CLOCKS = {
    "arrivals": lambda law: arrivals(KEY, law, horizon=20.0, num_clients=3, num_steps=2),
    "synchronous": lambda law: synchronous(
        KEY, law, horizon=20.0, num_clients=3, cohort_size=3, num_steps=2
    ),
    "contacts": lambda law: contacts(
        KEY, renewal_counts(law), horizon=20.0, num_clients=3, cohort_size=3, max_steps=2
    ),
}
WRONG_LAWS = {
    "one_column": (lambda rng, clients, count: np.ones((len(clients), 1)), r"\(3, 1\).*\(3, 2\)"),
    "one_row": (lambda rng, clients, count: np.ones((1, count)), r"\(1, 2\).*\(3, 2\)"),
    "flat": (lambda rng, clients, count: np.ones(count), r"\(2,\).*\(3, 2\)"),
    "negative": (lambda rng, clients, count: np.full((len(clients), count), -0.5), "-0.5.*>= 0"),
    "nan": (lambda rng, clients, count: np.full((len(clients), count), np.nan), "nan.*>= 0"),
    "fails": (lambda rng, clients: np.ones((len(clients), 2)), "TypeError.*expected a law"),
    "number": (2.0, "not callable.*expected a law"),
}


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("wrong", WRONG_LAWS)
def test_wrong_laws_are_refused(clock, wrong):
    """A column would be broadcast as a visit of one step, a row as clients of equal draws."""
    law, message = WRONG_LAWS[wrong]
    with pytest.raises(ValueError, match=f"^durations (returns|fails).*{message}"):
        CLOCKS[clock](law)


@pytest.mark.parametrize("clock", CLOCKS)
def test_durations_may_have_half_precision(clock):
    half = CLOCKS[clock](
        lambda rng, clients, count: jnp.full((len(clients), count), 2, jnp.bfloat16)
    )
    chex.assert_trees_all_equal(half, CLOCKS[clock](deterministic(2.0)))


def test_counts_are_whole_and_positive():
    """Continuous laws have no counts: rounded down, they would give 0 where 1 is the least."""

    def steps(law, first=1):
        stepping = independent_counts(law, first=first)
        return contacts(KEY, stepping, horizon=9.0, num_clients=2, cohort_size=2, max_steps=4)

    for law in (exponential(3.0), deterministic(2.5), deterministic(0.5)):
        with pytest.raises(ValueError, match=r"^counts returns .*expected whole numbers from 1 on"):
            steps(law)
    assert steps(deterministic(3.0)).num_steps.tolist() == [[3, 3]]
    assert steps(deterministic(9.0)).num_steps.tolist() == [[4, 4]]
    assert steps(deterministic(5.0), first=0).num_steps.tolist() == [[4, 4]]
    assert steps(deterministic(1.0), first=0).num_steps.tolist() == [[0, 0]]


@pytest.mark.parametrize("steps", [deterministic(1.0), 3, lambda rng, clients, cap: None])
def test_steps_of_contacts_are_a_stepping(steps):
    with pytest.raises(ValueError, match=r"^steps .*expected a law of the number of steps"):
        contacts(KEY, steps, horizon=9.0, num_clients=2, cohort_size=2, max_steps=4)


def test_parameters_are_numbers():
    for law, name in ((deterministic, "duration"), (exponential, "mean"), (geometric, "success")):
        with pytest.raises(ValueError, match=f"^{name} is 'fast'; expected an array of numbers"):
            law("fast")
    with pytest.raises(ValueError, match=r"^durations is .*; expected an array of numbers"):
        from_trace([[1.0, 2.0], [3.0]])
