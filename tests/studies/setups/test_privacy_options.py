"""Differential privacy as options: clips, laws of noise, accounts, refusals before compilation."""

import dataclasses

import jax
import pytest
from traced import digest_of

import fedjax_sim as fs
from fedjax_sim.studies.setups import privacy
from fedjax_sim.studies.setups.build import resolve
from fedjax_sim.studies.setups.checks import check_study
from fedjax_sim.studies.setups.presets import options
from fedjax_sim.studies.setups.privacy import (
    Adaptive,
    Banded,
    GaussianNoise,
    Independent,
    NoPrivacy,
    Norm,
    Parts,
    Tree,
)
from fedjax_sim.studies.setups.study import Study

PRIVATE = {
    "num_clients": 20, "sampling": "bernoulli", "cohort_size": 10, "rounds": 4, "seeds": 1,
    "local_epochs": 1, "model": "softmax_regression", "algorithms": ("fedavg",),
    "privacy": "gaussian", "privacy.clip.bound": 0.5, "privacy.delta": 0.01,
}  # fmt: skip
CYCLIC = fs.timelines.cyclic(8, 8, 2, num_steps=1)
PLAIN = fs.fedavg(0.1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "privacy.noise is None; expected --privacy.noise or --privacy.epsilon"),
        (
            {"privacy.noise": 1.0, "privacy.epsilon": 2.0},
            "privacy.epsilon is 2.0; expected none with --privacy.noise",
        ),
        ({"privacy.noise": 1.0, "weighting": "examples"}, "expected 'uniform' with privacy:gau"),
        (
            {"privacy.noise": 1.0, "time": "clock", "local_steps": 2},
            "time is 'clock'; expected 'rounds' with privacy:gaussian",
        ),
    ],
)
def test_options_that_contradict_each_other_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        check_study(Study(options(privacy="gaussian", **values)))


# A tree has the 4 rounds from one visit of a client to its next.
EQUAL = [
    (GaussianNoise(Norm(0.5), noise=2.0), 0.5, lambda: None),
    (
        GaussianNoise(Adaptive(0.7, 2.0), noise=0.1),
        fs.privacy.adaptive_clip(0.7, initial=2.0),
        lambda: None,
    ),
    (GaussianNoise(Adaptive(), noise=0.1), fs.privacy.adaptive_clip(), lambda: None),
    (GaussianNoise(Parts({"0": 1.0, "1": 2.0}), noise=2.0), {"0": 1.0, "1": 2.0}, lambda: None),
    (GaussianNoise(Norm(0.5), 2.0, law=Tree()), 0.5, lambda: fs.privacy.tree_aggregation(4)),
    (GaussianNoise(Norm(0.5), 2.0, law=Tree(3)), 0.5, lambda: fs.privacy.tree_aggregation(3)),
    (
        GaussianNoise(Norm(0.5), 2.0, law=Tree(efficient=True)),
        0.5,
        lambda: fs.privacy.tree_aggregation(4, efficient=True),
    ),
    pytest.param(
        GaussianNoise(Norm(0.5), 2.0, law=Banded(2)),
        0.5,
        lambda: fs.privacy.banded(
            fs.privacy.banded_coefficients(8, 2), 8, separation=4, visits=2
        ),
        marks=pytest.mark.slow,
    ),
]  # fmt: skip
ROWS = [f"row {i}" for i in range(len(EQUAL))]


@pytest.mark.parametrize(("chosen", "clip", "law"), EQUAL, ids=ROWS)
def test_options_are_the_functions_of_the_library(chosen, clip, law):
    algorithm = fs.scaffold(0.1) if isinstance(chosen.clip, Parts) else PLAIN
    found = privacy.privatized(algorithm, chosen, CYCLIC)
    expected = fs.privacy.privatize(algorithm, clip, chosen.noise, expected_uploads=2, noise=law())
    assert digest_of(found) == digest_of(expected)


def test_without_privacy_an_algorithm_stays():
    assert privacy.privatized(PLAIN, NoPrivacy(), None) is PLAIN


@pytest.mark.parametrize(
    ("chosen", "timeline", "message"),
    [
        (GaussianNoise(noise=1.0), dataclasses.replace(CYCLIC, sampling=None), "no sampling rule"),
        (GaussianNoise(noise=1.0), None, "timeline has no sampling rule"),
        (GaussianNoise(epsilon=1.0), CYCLIC, "privacy.noise is None; expected that of epsilon 1"),
        (
            GaussianNoise(Adaptive(), 1.0, law=Tree()),
            CYCLIC,
            "privacy.clip is adaptive; expected a fixed one",
        ),
        (GaussianNoise(Adaptive(), 1.0), CYCLIC, "privacy.noise is 1.0; expected less"),
        (GaussianNoise(noise=1.0, law=Banded(9)), CYCLIC, "privacy.law.bands is 9; expected at mo"),
        (
            GaussianNoise(noise=1.0, law=Tree()),
            fs.timelines.full(4, 8, 1),
            "privacy.law is 'tree'; expected a timeline in which no client takes part in two roun",
        ),
    ],
)
def test_timelines_and_clips_that_do_not_suit(chosen, timeline, message):
    with pytest.raises(ValueError, match=message):
        privacy.privatized(PLAIN, chosen, timeline)


def test_parts_of_uploads():
    scaffold = fs.privacy.privatize(fs.scaffold(0.1), {"0": 1.0, "1": 1.0}, 1.0, expected_uploads=2)
    setup = fs.Setup(None, CYCLIC, jax.numpy.zeros(3))  # type: ignore
    privacy.check_parts(scaffold, GaussianNoise(Parts({"0": 1.0, "1": 1.0})), setup)
    wrong = fs.privacy.privatize(PLAIN, {"0": 1.0}, 1.0, expected_uploads=2)
    with pytest.raises(ValueError, match=r"^privacy.clip has the parts 0; expected those of the"):
        privacy.check_parts(wrong, GaussianNoise(Parts({"0": 1.0})), setup)


def test_laws_of_noise_follow_the_timeline():
    """Eight rounds in which every client takes part in each fourth one."""
    assert privacy.law_of(Independent(), CYCLIC) is None
    tree = privacy.law_of(Tree(efficient=True), CYCLIC)
    assert tree is not None
    event = tree.mechanism(2.0, CYCLIC, 8).event
    assert (event.count, event.event.step_counts) == (2, 4)  # type: ignore
    banded = privacy.law_of(Banded(2), CYCLIC)
    assert banded is not None
    rule = banded.mechanism(2.0, CYCLIC, 8).rule
    assert rule.startswith("at least 4 rounds between visits, at most 2 per client")


def private(**values):
    return resolve(Study(options(**PRIVATE | values)))


@pytest.mark.slow
def test_a_target_epsilon_sets_the_noise_before_anything_runs():
    resolved = private(**{"privacy.epsilon": 3.0})
    guarantee, computed = resolved.guarantee, resolved.accounts.options
    assert 2.9 < guarantee.epsilon <= 3.0
    assert guarantee.adjacency == "add_or_remove_one"
    assert isinstance(computed, GaussianNoise)
    assert computed.noise > 0
    assert computed.epsilon is None
    # The noise gives the same epsilon, spent round by round.
    again = private(**{"privacy.noise": computed.noise})
    assert again.guarantee == guarantee
    spent = again.accounts.per_round([0, 2, 4])
    assert spent[0] == 0
    assert spent[0] < spent[2] < spent[4] == pytest.approx(guarantee.epsilon, rel=1e-9)
    # 10 of 20 clients on average: a round is empty, up to one client, with probability 2^-19.
    with pytest.raises(ValueError, match=r"privacy.delta is 1e-05; expected at least 0.000763"):
        private(**{"privacy.delta": 1e-5, "privacy.noise": 1.0})
    # Of several algorithms, which one.
    with pytest.raises(
        ValueError, match=r"^algorithms has 'mb_sgd': algorithm needs the exact mean"
    ):
        private(**{"algorithms": ("fedavg", "mb_sgd"), "privacy.noise": 1.0})


@pytest.mark.slow
def test_correlated_noise_spends_more():
    """A client returns after 4 rounds and visits twice: trees of 4 rounds, two of them."""
    values = {"sampling": "cyclic", "cohort_size": 5, "rounds": 8, "privacy.noise": 0.3}
    epsilons = {
        law: private(**values, **{"privacy.law": law}).guarantee.epsilon
        for law in ("independent", "tree")
    }
    assert epsilons["independent"] < epsilons["tree"]


@pytest.mark.slow
def test_slots_of_poisson_sampling_have_a_delta_of_their_own():
    """Fewer slots than the guarantee's delta requires make epsilon larger, with a warning."""
    values = {"sampling": "poisson", "num_clients": 1000, "rounds": 3, "privacy.noise": 1.0}
    with pytest.warns(UserWarning, match="cuts a cohort with a probability of .*; expected at mo"):
        cut = private(**values, **{"privacy.delta": 1e-8}).guarantee
    whole = private(**values, **{"privacy.delta": 1e-8, "sampling.delta": 1e-8}).guarantee
    assert whole.epsilon < cut.epsilon
