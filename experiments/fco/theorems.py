"""Theorems 4.3, 4.4 and 4.7 on the quadratics of :mod:`experiments.fco.quadratics`."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import fedjax_sim as fs
from experiments.fco.quadratics import DIM, NOISE, Problem, dual_norm

WEIGHT, RADIUS = 0.1, 1.0  # of the l1 penalty, of the l1 ball
# Stated without a proof, and false: see fedjax_sim.theory.feddualavg.
NOT_A_THEOREM = "4.3 (FedMiD)"
SMALL = 1e-3  # share of the client rate in the product of rates, for "small enough"


class Theorem(NamedTuple):
    """A theorem, and an instance on which it is measured."""

    name: str
    regularizer: fs.prox.Composite
    lr: Callable  # prescribed, of the constants
    bound: Callable  # of the constants and lr
    tuned: Callable  # of the constants
    constants: fs.theory.ProblemConstants
    algorithm: Callable[[Any], fs.FedAlgorithm]  # of the prescribed rate


def laws(regime: fs.theory.feddualavg.Regime) -> tuple[Callable, Callable, Callable]:
    """A theorem's prescribed rate, its bound at a rate, and its bound at that rate."""
    functions = (
        fs.theory.feddualavg.prescribed_lr,
        fs.theory.feddualavg.bound,
        fs.theory.feddualavg.tuned_bound,
    )
    first, second, third = (partial(function, regime=regime) for function in functions)
    return first, second, third


def theorems(problem: Problem) -> list[Theorem]:
    """The three theorems with the exact constants of the problem, but B_h."""
    penalty, ball = fs.prox.composite(fs.prox.L1(WEIGHT)), fs.prox.composite(fs.prox.L1Ball(RADIUS))
    deviations = problem.linear - problem.linear.mean(0)
    zeta = float(dual_norm(problem, deviations).max())
    # The noise has covariance NOISE^2 / d I.
    inverse = float(np.trace(np.linalg.inv(problem.hessian)))
    sigma_a = NOISE * (problem.smoothness * inverse / DIM) ** 0.5
    corners = RADIUS * np.concatenate([problem.hessian, -problem.hessian])
    largest = np.linalg.norm(corners[:, None] + problem.linear, axis=-1).max() + NOISE
    L = problem.smoothness
    additive = fs.theory.ProblemConstants(L=L, sigma=NOISE)
    return [
        Theorem(
            "4.3",
            penalty,
            *laws("small client rate"),
            additive,
            lambda lr: fs.average_rounds(fs.feddualavg(SMALL * lr, penalty, 1 / SMALL)),
        ),
        Theorem(
            "4.3 (OSP)",
            penalty,
            *laws("small client rate"),
            additive,
            lambda lr: fs.average_rounds(fs.fedmid_osp(SMALL * lr, penalty, 1 / SMALL)),
        ),
        Theorem(
            NOT_A_THEOREM,
            ball,
            *laws("small client rate"),
            additive,
            lambda lr: fs.average_rounds(fs.fedmid(SMALL * lr, ball, 1 / SMALL)),
        ),
        Theorem(
            "4.4",
            ball,
            *laws("bounded gradients"),
            additive._replace(G=float(largest)),
            lambda lr: fs.averaged_feddualavg(lr, ball),
        ),
        Theorem(
            "4.7",
            penalty,
            *laws("quadratic"),
            fs.theory.ProblemConstants(L=L, sigma=sigma_a, zeta=zeta),
            lambda lr: fs.averaged_feddualavg(lr, penalty),
        ),
    ]
