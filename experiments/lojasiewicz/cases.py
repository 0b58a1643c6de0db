"""Cases of the experiment: families, noise, local steps and rounds."""

import functools
from typing import Any

import numpy as np

from experiments.lojasiewicz.families import (
    logistic,
    power,
    quadratic,
    sine_quadratic,
    softplus_tilted,
)
from experiments.lojasiewicz.family import Family, gaussian
from experiments.lojasiewicz.policies import softmax_bandit, softmax_mdp, two_armed_bandit
from experiments.lojasiewicz.runs import Case

REWARDS = np.array(
    [(1, 0.6411, 0.2165), (0.9348, 0.6453, 0.2223), (0.9732, 0.6291, 0.2182), (1, 0.6014, 0.2273)]
)
DISAGREEING = np.array([(1, 0.2, 0.5), (0.2, 1, 0.5)])  # the best arms differ


def tilted(visited: Any, tilt: float = 0.8, num_clients: int = 8) -> Family:
    """The tilted quadratic of curvature 1."""
    del visited
    return softplus_tilted(1.0, tilt, num_clients)


def powers(visited: Any, degree: float, num_clients: int = 4) -> Family:
    """Powers on the ball of radius 1.5."""
    del visited
    return power(degree, 1.5, num_clients)


def _quadratic(visited: Any) -> Family:
    del visited
    centres = np.random.default_rng(0).normal(size=(8, 3)) / 4
    return quadratic(np.diag([0.0, 0.5, 1.0]), centres)


def _sine(visited: Any) -> Family:
    del visited
    return sine_quadratic(4)


def _logistic(visited: Any) -> Family:
    return logistic(np.linspace(0.8, 1.2, 8), float(np.min(visited)))


def _two_armed(visited: Any) -> Family:
    return two_armed_bandit(np.linspace(0.6, 1.0, 4), float(np.min(visited)))


def _mdp(visited: Any) -> Family:
    rng = np.random.default_rng(0)
    transitions = rng.dirichlet(np.ones(3), size=(3, 2))
    rewards = np.clip(rng.uniform(size=(3, 2)) + rng.normal(size=(2, 3, 2)) / 20, 0, 1)
    return softmax_mdp(rewards, transitions, np.full(3, 1 / 3), 0.3, visited)


def cases(local_steps: int, repetitions: int) -> list[Case]:
    """Every family; names say where the constants hold along a trajectory only."""
    K, few = local_steps, max(repetitions // 20, 2)
    bandit = functools.partial(softmax_bandit, REWARDS)
    disagreeing = functools.partial(softmax_bandit, DISAGREEING)
    found = [
        Case("quadratic, singular", _quadratic, np.full(3, 2.0), 0.5, K, 200),
        Case("tilted quadratic", tilted, 3.0, 0.5, K, 200),
        Case("x^2 + 3 sin^2 x", _sine, 2.5, 0.5, K, 200),
        Case("power 4", functools.partial(powers, degree=4.0), np.full(2, 1.0), 0.3, K, 400),
        Case("logistic, trajectory", _logistic, 1.0, 0.1, K, 400),
        Case("two-armed bandit, trajectory", _two_armed, 0.0, 0.02, K, 400),
        Case("softmax bandit, trajectory", bandit, np.zeros(3), 0.05, K, 400),
        Case("disagreeing bandit, trajectory", disagreeing, np.zeros(3), 0.05, K, 400),
        Case("softmax MDP, trajectory", _mdp, np.zeros((3, 2)), 0.05, K, 2000, repetitions=few),
    ]
    return [case._replace(repetitions=min(case.repetitions, repetitions)) for case in found]


def sweep_cases(repetitions: int) -> dict[str, list[Case]]:
    """The tilted quadratic: clients without tilt, tilts, and local steps at a constant lr K."""

    def case(name: str, std: float, K: int, rounds: int, **options: Any) -> Case:
        family = functools.partial(tilted, **options)
        return Case(name, family, 3.0, std, K, rounds, repetitions=repetitions)

    return {
        "M": [case(f"M = {M}", 2.0, 10, 400, tilt=0.0, num_clients=M) for M in (2, 8, 32)],
        "zeta": [case(f"zeta = {d}", 0.5, 10, 400, tilt=d) for d in (0.0, 0.2, 0.8, 1.6)],
        "K": [case(f"K = {K}", 2.0, K, 400) for K in (2, 5, 10, 30)],
    }


def exact_cases() -> list[Case]:
    """Exact gradients of equal clients, one local step: the rates in R alone."""
    return [
        Case("power 2", lambda _: power(2.0, 1.5, 1), np.ones(1), 0.0, 1, 40),
        *(
            Case(f"power {p:g}", functools.partial(powers, degree=p), np.ones(1), 0.0, 1, 4000)
            for p in (3.0, 4.0, 8.0)
        ),
        Case("logistic", lambda x: logistic(np.ones(1), float(np.min(x))), 0.0, 0.0, 1, 4000),
        Case(
            "two-armed bandit",
            lambda x: two_armed_bandit(np.ones(1), float(np.min(x))),
            0.0,
            0.0,
            1,
            4000,
        ),
    ]


def reference_cases(repetitions: int) -> list[Case]:
    """The cases of the reference runs."""
    bandit = functools.partial(softmax_bandit, REWARDS)
    start = np.full(1, 1.5)
    return [
        Case("tilted quadratic", tilted, 3.0, 0.5, 10, 200, 1.0, gaussian, repetitions),
        Case("softmax bandit", bandit, np.zeros(3), 0.0, 5, 4000),
        Case("power 4", functools.partial(powers, degree=4.0), start, 0.0, 1, 1000),
    ]
