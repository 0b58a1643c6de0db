"""Checks of arguments: the values that they refuse, with their messages, and those that pass."""

import re
from fractions import Fraction

import jax
import numpy as np
import pytest

import fedjax_sim as fs
from fedjax_sim import checks, tree

KEYS = jax.random.split(jax.random.key(0), 3)

REFUSED = [
    (lambda: checks.check_choice(("I", "II"), option="III"), "option is 'III'; expected 'I' or 'I"),
    (lambda: checks.check_part("num_clients", 3, cohort_size=4), "expected 1 .. num_clients = 3"),
    (lambda: checks.check_rates(lr=-0.1), "lr is -0.1; expected at least 0"),
    (lambda: checks.check_at_least(0.0, noise=-1.0), "noise is -1.0; expected at least 0"),
    (
        lambda: checks.check_at_least(0, **checks.least_entries(weights=np.array([1.0, -2.0]))),
        "weights is -2.0; expected at least 0",
    ),
    (
        lambda: checks.check_at_most(1, **checks.largest_entries(weights=np.array([1.0, 2.0]))),
        "weights is 2.0; expected at most 1",
    ),
    (lambda: checks.check_count(1, num_rounds=2.5), "num_rounds is 2.5; expected an integer"),
    (lambda: checks.check_counts(1, hidden=64), "hidden is 64; expected a sequence of integers"),
    (lambda: checks.check_positive(lr=0.0), "lr is 0.0; expected a positive number"),
    (
        lambda: checks.check_at_most(checks.INT32_MAX, num_steps=2**31),
        "num_steps is 2147483648; expected at most 2147483647",
    ),
    (lambda: checks.check_one_number(p=np.ones(3)), "p has shape (3,); expected one number"),
    (lambda: checks.check_one_number(p={"w": 0.1}), "p is {'w': 0.1}; expected a number"),
    (
        lambda: checks.check_takes("f", min, ()) or checks.check_takes("f", 3, ("x",)),
        "f is 3; expe",
    ),
    (lambda: checks.check_takes("f", lambda x: x, ("x", "y")), "f takes (x); expected (x, y)"),
    (
        lambda: checks.called("f", "x", "a number", lambda x: x["y"], {"x": 1}),
        "f fails for x (KeyError: 'y'); expected a number",
    ),
    (lambda: checks.check_decay(b2=1.0), "b2 is 1.0; expected a number in [0, 1)"),
    (lambda: checks.check_probability(p=0), "p is 0; expected a number in (0, 1]"),
    (lambda: checks.check_share(share=np.nan), "share is nan; expected a number in [0, 1]"),
    (lambda: checks.check_rates(lr=Fraction(-1, 2)), "lr is -1/2; expected at least 0"),
    (
        lambda: checks.check_known(["digits", "mnist"], name="minst"),
        "name is 'minst'; expected one of digits, mnist; did you mean mnist?",
    ),
    (lambda: checks.check_keys(0), "keys is 0; expected jax.random.key(0), or n keys [n] as of"),
    (
        lambda: checks.check_keys(KEYS[np.array([0, 1, 0])]),
        "keys[0] and keys[2] are equal; expected another key for every seed",
    ),
    (lambda: checks.check_key(KEYS), "key has shape (3,); expected one key, such as"),
    (
        lambda: checks.check_generator("key", jax.random.key(0, impl="rbg")),
        "key is of the generator rbg, whose draws under jax.vmap differ from single",
    ),
    (lambda: checks.check_bytes(memory=np.inf), "memory is inf; expected 1 .. 2^63 - 1 bytes"),
    (
        lambda: checks.check_timeline_size(10**9, 10**6),
        "num_rounds x cohort_size is 1000000000 x 1000000",
    ),
    (
        lambda: checks.check_horizon(10.0, time=1e-30, num_rounds=4096, cohort_size=2),
        "horizon is 10.0, but after 4096 updates the simulated time is 1e-30",
    ),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[message[:30] for _, message in REFUSED])
def test_refused_values(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_values_that_pass():
    checks.check_rates(lr=lambda round: 0.1 / (1 + round), server_lr=1.0)
    checks.check_at_least(1, num_clients=3)
    checks.check_at_most(1, **checks.largest_entries(weights=np.array([0.5, 1.0])))
    checks.check_count(num_clients=np.int64(3))
    checks.check_counts(1, hidden=(64, 32))
    checks.check_one_number(probability=0.5)
    checks.check_decay(momentum=0.9)
    checks.check_probability(p=Fraction(1, 1), q=None)
    checks.check_share(share=0)
    checks.check_number(x=Fraction(1, 3))
    checks.check_known({"digits": 1}, name="digits")
    checks.check_keys(jax.random.key(0))
    checks.check_horizon(10.0, time=5.0, num_rounds=4096, cohort_size=2)
    assert checks.host_memory() > 2**20
    assert (checks.is_concrete(0.5), checks.is_concrete(None)) == (True, False)
    assert jax.eval_shape(lambda x: x if checks.is_concrete(x) else None, 0.5) is None  # traced


def test_traced_values_have_no_known_numbers():
    known = {"array": jax.numpy.ones(2), "number": Fraction(1, 2)}
    assert not checks.is_traced(known)
    assert all(map(checks.is_concrete, known.values()))

    @jax.jit
    def traced(x):
        assert checks.is_traced({"array": x, "number": 1.0})
        assert not checks.is_concrete(x)
        checks.check_probability(p=x[0])
        checks.check_share(share=x[0])
        return x

    traced(jax.numpy.full(2, 7.0))


def test_value_errors_have_the_name_of_the_function_unless_they_are_refusals():
    """JAX, NumPy and optax raise them for mistakes, this package for arguments that it names."""

    def own():
        raise ValueError("beta is 2")

    def called(function, **options):
        return checks.called("f", "nothing", "a number", function, **options)

    for mistake in (
        lambda: jax.numpy.broadcast_to(np.ones(2), (5, 7)),
        lambda: np.reshape(np.ones(2), 3),
        lambda: tree.sub(np.ones(2), np.ones(1)),  # its operands are not the user's arguments
        own,
    ):
        with pytest.raises(
            ValueError, match=r"^f fails for nothing \(ValueError: .*; expected a nu"
        ):
            called(mistake)
    with pytest.raises(ValueError, match=r"^size is 0; expected at least 1"):
        called(lambda: checks.check_count(1, size=0))
    with pytest.raises(ValueError, match=r"^beta is 2"):
        called(own, refuses=True)


class OwnError(ValueError):
    """A kind of error that callers of a user's function may catch."""


@pytest.mark.parametrize("kind", [FloatingPointError, ImportError, OSError, RuntimeError, OwnError])
def test_errors_with_a_meaning_of_their_own_pass(kind):
    def fails():
        raise kind("own")

    with pytest.raises(kind, match=r"^own$"):
        checks.called("f", "nothing", "a number", fails)
    shapes = {"w": np.ones((2, 3), np.float32), "n": 3}
    assert checks.shapes_text(shapes) == "['n'] int, ['w'] float32[2, 3]"


def test_names():
    assert checks.did_you_mean("fedpox", ["fedavg", "fedprox"]) == "; did you mean fedprox?"
    assert checks.did_you_mean("adam", ["fedavg"]) == ""
    with pytest.raises(ImportError, match=r"no_such_package could not be imported .*privacy"):
        checks.import_extra("no_such_package", "privacy")


def test_shapes():
    one = checks.shapes_of_one(np.ones((2, 3), np.float32), batched=True)
    assert (one.shape, one.dtype) == ((3,), np.float32)
    data = fs.from_clients([{"x": np.ones(1)}] * 3)
    task = fs.empirical_task(lambda w, b, key: b["x"] * w, data, fs.full_batch(1))
    # Two of three clients per round.
    assert checks.partial_rounds(task, fs.timelines.cyclic(2, 3, 2, 1)).tolist() == [2, 2]


# Intervals of numbers that are compared with both ends, where text would end in Python's error.
CLOCK = {"num_clients": 2, "num_steps": 1}
LAW, TIMELINES, PARTITION = fs.timelines.exponential(1.0), fs.timelines, fs.data.partition
TEXTS = {
    "horizon": [
        lambda text: TIMELINES.arrivals(KEYS[0], LAW, horizon=text, **CLOCK),
        lambda text: TIMELINES.synchronous(KEYS[0], LAW, horizon=text, cohort_size=1, **CLOCK),
        lambda text: TIMELINES.contacts(
            KEYS[0], TIMELINES.renewal_counts(LAW), horizon=text, num_clients=2, cohort_size=1,
            max_steps=1,
        ),
        lambda text: TIMELINES.alternating(KEYS[0], 2, text, mean_present=1.0, mean_absent=1.0),
    ],
    "mean_present": [
        lambda text: TIMELINES.alternating(KEYS[0], 2, 9.0, mean_present=text, mean_absent=1.0)
    ],
    "sigma": [
        lambda text: TIMELINES.log_normal(1.0, text),
        lambda text: PARTITION.log_normal(9, 2, text, 0),
        lambda text: fs.data.feature_shift.noise_levels(text, 2),
    ],
    "slow": [lambda text: TIMELINES.two_speeds(KEYS[0], 2, 0.5, fast=1.0, slow=text)],
    "probability": [
        lambda text: TIMELINES.lose_uploads(KEYS[0], TIMELINES.full(2, 2, 1), np.array([text] * 2))
    ],
    "delta": [
        lambda text: TIMELINES.slots_for(9, 0.5, 3, text),
        lambda text: fs.privacy.local_noise_multiplier(1.0, text),
    ],
    "test_fraction": [lambda text: PARTITION.train_test_split([[0, 1]], text, 0)],
    "train_ratio": [lambda text: PARTITION.pfllib_split([[0, 1]], 0, train_ratio=text)],
    "feature_scale": [
        lambda text: fs.problems.recovery.sparse_regression(2, 4, 1, 3, 0, feature_scale=text)
    ],
    "quantiles": [lambda text: fs.evaluation.client_statistics(np.ones(2), (text,))],
    "level": [lambda text: fs.analysis.mean_interval([1.0, 2.0], text)],
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_text_is_no_number(name):
    """YAML reads 1e-3 as text."""
    for call in TEXTS[name]:
        with pytest.raises(ValueError, match=rf"^{name} is .*1e-3.*; expected "):
            call("1e-3")
