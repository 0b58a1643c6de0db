"""Conditions, prescribed settings and predicted rounds against NumPy; nothing is trained."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

import fedjax_sim as fs
from fedjax_sim.studies.advice import THEOREMS, Condition, Measurement, Sizes, Source
from fedjax_sim.studies.advice import conditions as names
from fedjax_sim.studies.advice.conditions import conditions_of
from fedjax_sim.studies.advice.predictions import Settings, predict
from fedjax_sim.studies.advice.sources import NAMES
from fedjax_sim.theory import ProblemConstants
from fedjax_sim.timelines.rules import Sampling

SIZES = Sizes(clients=4, cohort_size=4, local_steps=5, rounds=20)
BY_NAME = {theorem.name: theorem for theorem in THEOREMS}


def measurement(**values) -> Measurement:
    """Given constants; the others are unknown."""
    sources = {
        name: Source("given", "") if name in values else Source("unknown", "not given")
        for name in NAMES
    }
    convex = Source("given", "")
    return Measurement(ProblemConstants(**values), sources, convex, True, None, None, 1)


def prediction(name, target=None, local_steps=(1, 2, 4), sizes=SIZES, **values):
    theorem = BY_NAME[name]
    every = {text: Condition(text, True, "") for text in theorem.assumes}
    return predict(
        theorem, measurement(**values), every, sizes, target=target, local_steps=local_steps
    )


def test_rounds_of_noisy_fedavg_are_the_fewest():
    """Proposition 2.1 at its rate, round by round."""
    L, sigma, zeta, B, M, target = 2.0, 0.5, 0.3, 1.5, 4, 0.4
    R = np.arange(1.0, 20001)[:, None]
    K = np.array([1.0, 2.0, 4.0, 8.0])
    cube = (B**2 / (R * L)) ** (1 / 3)
    lr = np.minimum(1 / (4 * L), np.sqrt(M / (K * R)) * B / sigma)
    lr = np.minimum(lr, np.minimum(cube / (K * sigma) ** (2 / 3), cube / (K * zeta ** (2 / 3))))
    drift = 4 * K * lr**2 * sigma**2 + 18 * K**2 * lr**2 * zeta**2
    bound = B**2 / (2 * lr * K * R) + lr * sigma**2 / M + L * drift
    fewest = R[(bound <= target).argmax(axis=0), 0]
    assert (bound[-1] <= target).all()
    steps = tuple(int(k) for k in K)
    constants = {"L": L, "sigma": sigma, "zeta": zeta, "B": B}
    result = prediction("FedAvg, convex", target, steps, **constants)
    chosen = int((fewest <= 1.1 * fewest.min()).argmax())
    assert result.prescribed.local_steps == K[chosen]
    assert result.prescribed.rounds == fewest[chosen]
    at = int(fewest[chosen]) - 1, chosen
    np.testing.assert_allclose(result.prescribed.lr, lr[at], rtol=1e-12)
    np.testing.assert_allclose(result.prescribed.bound, bound[at], rtol=1e-12)
    # At the setup's own sizes, R = 20 and K = 5.
    assert (result.here.local_steps, result.here.rounds) == (5, 20)
    expected = fs.theory.fedavg.prescribed_lr(
        ProblemConstants(**constants), "convex", local_steps=5, rounds=20, clients=4
    )
    np.testing.assert_allclose(result.here.lr, expected, rtol=1e-6)


def test_local_steps_that_save_nothing_are_not_prescribed():
    """Theorem 4.3 without noise: lr = 1 / (4 K L), so the bound 4 L B_h^2 / R has no K."""
    result = prediction("FedAvg, small client rate", 0.1, L=2.0, sigma=0.0, B_h=1.5)
    assert result.prescribed.local_steps == 1
    assert result.prescribed.rounds == 4 * 2.0 * 1.5**2 / 0.1
    np.testing.assert_allclose(result.prescribed.lr, 1 / 8, rtol=1e-12)
    without_target = prediction("FedAvg, small client rate", L=2.0, sigma=0.0, B_h=1.5)
    assert (without_target.prescribed.local_steps, without_target.prescribed.rounds) == (1, 20)
    np.testing.assert_allclose(without_target.prescribed.bound, 4 * 2 * 1.5**2 / 20, rtol=1e-12)


def test_a_bound_that_prefers_no_steps_prescribes_none():
    """Theorem F.2 in 20 rounds: the noise costs more per rate than the rate gains."""
    name, mu, M = "FedAvg, strongly convex clients", 0.5, 4
    constants = {"L": 1.0, "lojasiewicz_mu": mu, "sigma": 5.0, "zeta_mean": 0.0, "Delta": 0.1}
    result = prediction(name, **constants)
    assert result.failed == [
        "a rate is in the theorem's range: the bound is NaN, or smallest at rate 0"
    ]
    # A floor of zeta^2 / mu = 0.02 at K = 1 is below the target; K > 1 has 0.16.
    result = prediction(name, 0.05, **constants | {"zeta_mean": 0.1, "sigma": 0.1})
    best = result.prescribed
    assert best.local_steps == 1
    floor = 0.02 + 2 * best.lr * 0.1**2 / (M * mu)
    value = (1 - best.lr * mu / 2) ** best.rounds * 0.1 + floor
    np.testing.assert_allclose(best.bound, value, rtol=1e-9)


def test_targets_below_a_floor_are_not_reached():
    """zeta^2 / mu = 0.02 remains at any rate of Theorem F.2."""
    constants = {"L": 1.0, "lojasiewicz_mu": 0.5, "sigma": 0.0, "zeta_mean": 0.1, "Delta": 0.1}
    result = prediction("FedAvg, strongly convex clients", 0.01, **constants)
    assert result.applies
    assert result.prescribed is None


def test_unknown_and_impossible_constants_are_named():
    result = prediction("FedAvg, nonconvex", L=1.0, sigma=0.5, Delta=1.0)
    assert result.failed == ["G is known: not given"]
    assert result.here is None
    result = prediction("FedAvg, convex", L=0.0, sigma=0.5, zeta=0.0, B=1.0)
    assert result.failed == [
        "the constants are in the theorem's range: L is 0.0; expected a positive number"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("theorem", THEOREMS, ids=lambda theorem: theorem.name)
def test_theorems_need_the_constants_that_they_name(theorem):
    every = dict.fromkeys(NAMES, 0.5) | {"L": 1.0, "lojasiewicz_alpha": 1.0}
    needed = {name: every[name] for name in theorem.needs}
    result = Settings(theorem, ProblemConstants(**needed), SIZES, [2])(np.array([1000]))[0]
    assert np.isfinite(result.lr)
    assert np.isfinite(result.bound)
    for name in set(theorem.needs) - {"Q"}:  # without Q, other theorems hold
        fewer = ProblemConstants(**{k: v for k, v in needed.items() if k != name})
        with pytest.raises(ValueError, match=rf"constants.{name} is None"):
            Settings(theorem, fewer, SIZES, [2])(np.array([1000]))


def timeline_of(cohort_size, num_rounds=6, num_steps=3):
    """The first clients in every round."""
    shape = num_rounds, cohort_size
    return fs.Timeline(
        clients=np.tile(np.arange(cohort_size), (num_rounds, 1)),
        version=np.tile(np.arange(num_rounds)[:, None], (1, cohort_size)),
        num_steps=np.full(shape, num_steps),
        mask=np.ones(shape, bool),
        time=np.arange(1.0, num_rounds + 1),
        max_steps=num_steps,
    )


def setup(timeline, **fields):
    oracle = jax.tree_util.Partial(lambda *arguments: None)
    task = fs.Task(oracle, np.ones(4, np.int32), np.full(4, 3, np.int32))
    return fs.Setup(task, timeline, np.ones(2), **fields)


def test_conditions_of_the_run():
    facts = measurement(L=1.0, mu=0.5, zeta=0.0)
    full = timeline_of(4)
    result = conditions_of(setup(full), facts)
    assert all(condition.holds for condition in result.values())

    def failed(timeline, **fields):
        every = conditions_of(setup(timeline, **fields), facts).values()
        return {condition.name for condition in every if not condition.holds}

    drawn = Sampling("without_replacement", 2.0, population=4, size=2)
    part = dataclasses.replace(timeline_of(2), sampling=drawn)
    assert failed(part) == {names.FULL}
    cyclic = dataclasses.replace(part, sampling=Sampling("fixed", 2.0))
    assert failed(cyclic) == {names.FULL, names.UNIFORM}
    unknown = conditions_of(setup(timeline_of(2)), facts)
    assert unknown[names.UNIFORM].holds is None
    uneven = dataclasses.replace(full, num_steps=np.arange(24).reshape(6, 4) % 3 + 1)
    assert failed(uneven) == {names.EQUAL_STEPS}
    late = dataclasses.replace(full, version=np.zeros((6, 4), int), max_staleness=5)
    assert failed(late) == {names.SYNCHRONOUS}
    lost = dataclasses.replace(full, lost=np.eye(6, 4, dtype=bool))
    assert failed(lost) == {names.FULL, names.UNIFORM, names.SYNCHRONOUS}
    assert failed(full, weighting=lambda work: work.client) == {names.EQUAL_WEIGHTS}

    def uniform_weights(work):  # another function of the same name
        return work.client

    assert failed(full, weighting=uniform_weights) == {names.EQUAL_WEIGHTS}
    nameless = functools.partial(lambda scale, work: scale, 2.0)
    condition = conditions_of(setup(full, weighting=nameless), facts)[names.EQUAL_WEIGHTS]
    assert not condition.holds
    assert condition.reason.startswith("weighting is functools.partial(")
    # One example per client: weights by examples are equal.
    assert failed(full, weighting=fs.weight_by_examples) == set()


def test_conditions_of_the_problem():
    timeline = timeline_of(4)

    def holds(facts):
        every = conditions_of(setup(timeline), facts)
        chosen = names.CONVEX, names.STRONGLY_CONVEX, names.ONE_OBJECTIVE, names.INDEPENDENT
        return tuple(every[name].holds for name in chosen)

    facts = measurement(L=1.0, mu=0.5, zeta=0.0)
    assert holds(facts) == (True, True, True, True)
    assert holds(facts._replace(deterministic=False)) == (True, True, True, None)
    assert holds(measurement(L=1.0, mu=0.0, zeta=0.1)) == (True, False, False, True)
    estimate = Source("estimate", "at 2 models")
    guessed = facts._replace(
        sources=dict.fromkeys(NAMES, estimate), convex=Source("unknown", "a negative eigenvalue")
    )
    assert holds(guessed) == (False, None, None, True)


def test_bad_input_is_refused_before_anything_is_measured():
    full = setup(timeline_of(4))
    for arguments, message in (
        ({"target": 0.0}, "target is 0.0; expected a positive number"),
        ({"gradient_target": -1.0}, "gradient_target is -1.0; expected a positive number"),
        ({"local_steps": []}, "local_steps is empty"),
        ({"local_steps": [4, 0]}, "local_steps is 0; expected at least 1"),
        ({"local_steps": [1, 2.5]}, "local_steps is 2.5; expected an integer"),
        ({"num_samples": 0}, "num_samples is 0; expected at least 1"),
        ({"num_samples": 2.5}, "num_samples is 2.5; expected an integer"),
        ({"known": {"L": 1.0}}, "known is .*; expected a fedjax_sim.theory.ProblemConstants"),
        ({"lower_bound": "0"}, "lower_bound is '0'; expected a number, not text"),
        ({"theorems": 3}, "theorems has 3; expected those of fs.advice.THEOREMS"),
        ({"theorems": ["FedAvg, convex"]}, "theorems has 'FedAvg, convex'; expected those of"),
        ({"execution": 3}, "execution is 3; expected a strategy"),
    ):
        with pytest.raises(ValueError, match=message):
            fs.advise(full, **arguments)
    with pytest.raises(ValueError, match="setup is a Task; expected a"):
        fs.advise(full.task)
    stacked = jax.tree.map(lambda x: np.stack([x, x]), full.timeline)
    with pytest.raises(ValueError, match=r"timeline.clients has shape \(2, 6, 4\); expected"):
        fs.advise(dataclasses.replace(full, timeline=stacked))
    with pytest.raises(ValueError, match="setup is traced"):
        jax.jit(fs.advise)(full)
