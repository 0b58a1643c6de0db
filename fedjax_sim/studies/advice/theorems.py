"""Theorems that :func:`fedjax_sim.advise` applies: conditions, prescribed settings, bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import optax
from jax import Array

from fedjax_sim.algorithms.averaged_fedavg import averaged_fedavg
from fedjax_sim.algorithms.fedac import fedac
from fedjax_sim.algorithms.fedavg import fedavg
from fedjax_sim.algorithms.fedswa import fedmoswa
from fedjax_sim.algorithms.scaffold import gradient_controls
from fedjax_sim.studies.advice import conditions as c
from fedjax_sim.theory import (
    ProblemConstants,
    best_lr,
    feddualavg,
    fedswa,
    lojasiewicz,
    positive,
)
from fedjax_sim.theory import fedac as fedac_theory
from fedjax_sim.theory import fedavg as avg
from fedjax_sim.types import FedAlgorithm, shown

Settings = dict[str, Array]  # lr, and augmentation where the theorem has one
Measure = Literal["F - F*", "squared gradient norm"]
GAP: Measure = "F - F*"
GRADIENT: Measure = "squared gradient norm"
LOSS = "F"  # the metric of runs from which F - F* follows

_COMMON = (c.FULL, c.EQUAL_STEPS, c.SYNCHRONOUS, c.EQUAL_WEIGHTS, c.INDEPENDENT)
_DECADES = 6.0  # of rates, where a theorem prescribes none
_SMALL = 1e-3  # client rate over the effective rate, where a theorem needs small client rates


@shown
class Theorem(NamedTuple):
    """A convergence theorem as functions of constants and sizes.

    ``prescribe`` and ``bound`` take ``(constants, *, local_steps, rounds, clients, cohort_size)``,
    the bound also the prescribed settings; ``algorithm`` takes the constants, ``local_steps``,
    ``rounds``, ``share`` (of clients per round) and the settings.  Numbers of the first two may be
    arrays that broadcast.

    Example:
        >>> theorem = THEOREMS[0]
        >>> constants = ProblemConstants(L=1.0, sigma=0.0, zeta=0.0, B=1.0)
        >>> sizes = {"local_steps": 5, "rounds": 20, "clients": 4, "cohort_size": 4}
        >>> theorem.name, float(theorem.prescribe(constants, **sizes)["lr"])
        ('FedAvg, convex', 0.25)
    """

    name: str
    source: str
    quantity: str  # that the bound bounds
    measure: Measure
    assumes: tuple[str, ...]  # names of conditions
    needs: tuple[str, ...]  # constants
    prescribe: Callable[..., Settings]
    bound: Callable[..., Array]
    algorithm: Callable[..., FedAlgorithm]
    # the quantity is a mean over FedAvg's shadow iterates before ("start") or after each step
    over_shadow: Literal["start", "end"] | None = None
    output: str = "model"  # what the algorithm's model is, as runs show it
    prepare: Callable[..., Any] | None = None  # (first state, setup, key) -> first state


def _family(family: Any, *, drop: str | None = None, **which: str) -> tuple[Callable, Callable]:
    """A family's prescribed rate as a setting, and its bound; ``drop`` is a constant to ignore."""

    def without(constants: ProblemConstants) -> ProblemConstants:
        return constants if drop is None else constants._replace(**{drop: None})

    def prescribe(constants: ProblemConstants, *, cohort_size: Any, **sizes: Any) -> Settings:
        del cohort_size  # all clients take part
        return {"lr": family.prescribed_lr(without(constants), **which, **sizes)}

    def bound(constants: ProblemConstants, *, cohort_size: Any, **sizes: Any) -> Array:
        del cohort_size
        return family.bound(without(constants), **which, **sizes)

    return prescribe, bound


def _augmented(variant: Literal["I", "II"]) -> tuple[Callable, Callable]:
    """Prescribed augmentation of FedAc and the prescribed rate at it, and the bound."""
    rule, bound = _family(fedac_theory, regime="convex", variant=variant)

    def prescribe(constants: ProblemConstants, *, cohort_size: Any, **sizes: Any) -> Settings:
        augmentation = fedac_theory.prescribed_augmentation(constants, variant=variant, **sizes)
        at = {"augmentation": augmentation, "cohort_size": cohort_size, **sizes}
        return rule(constants, **at) | {"augmentation": augmentation}

    return prescribe, bound


def _minimised(bound: Callable[..., Array], limit: Callable[..., Array]) -> Callable:
    """The rate below ``limit`` at which a bound without a prescribed rate is smallest.

    NaN where that is the smallest rate of the grid: the bound prefers no steps at all.
    """

    def prescribe(
        constants: ProblemConstants, *, local_steps: Any, rounds: Any, **sizes: Any
    ) -> Settings:
        def one(K: Array, R: Array) -> Array:
            at = {"local_steps": K, "rounds": R, **sizes}
            largest = limit(constants, **at)
            lr = best_lr(lambda lr: bound(constants, lr=lr, **at), largest, decades=_DECADES).lr
            return jnp.where(lr > 1.01 * 10**-_DECADES * largest, lr, jnp.nan)

        K, R = (jnp.asarray(x, float) for x in (local_steps, rounds))
        return {"lr": jnp.vectorize(one)(*jnp.broadcast_arrays(K, R))}

    return prescribe


def _linear(constants: ProblemConstants, *, cohort_size: Any, **sizes: Any) -> Array:
    del cohort_size
    (gap,) = positive(constants, "Delta")
    return lojasiewicz.linear_bound(constants, gap=gap, **sizes)


def _linear_limit(constants: ProblemConstants, *, local_steps: Array, **_: Any) -> Array:
    (L,) = positive(constants, "L")
    return jnp.where(local_steps == 1, 1 / 2, 1 / (18 * local_steps)) / L


def _momentum_controls(
    constants: ProblemConstants, *, clients: Any, cohort_size: Any, **sizes: Any
) -> Array:
    return fedswa.convergence.nonconvex_descent(
        constants, clients=clients, cohort_size=cohort_size, gamma=cohort_size / clients, **sizes
    )


def _momentum_limit(
    constants: ProblemConstants, *, local_steps: Array, clients: Any, cohort_size: Any, **_: Any
) -> Array:
    (L,) = positive(constants, "L")
    return cohort_size / (24 * L * clients * local_steps)


def _fedavg(constants: ProblemConstants, *, lr: float, **_: Any) -> FedAlgorithm:
    return fedavg(lr)


def _averaged_third_order(
    constants: ProblemConstants, *, lr: float, local_steps: int, rounds: int, **_: Any
) -> FedAlgorithm:
    return averaged_fedavg(lr, 1 + 1 / (local_steps * rounds), at="start")


def _averaged_strongly_convex(constants: ProblemConstants, *, lr: float, **_: Any) -> FedAlgorithm:
    mu = float(positive(constants, "mu")[0])
    return averaged_fedavg(lr, 1 - lr * mu / 2, at="start")


def _small_client_rate(constants: ProblemConstants, *, lr: float, **_: Any) -> FedAlgorithm:
    return fedavg(_SMALL * lr, optax.sgd(1 / _SMALL))


def _fedac(variant: Literal["I", "II"]) -> Callable[..., FedAlgorithm]:
    def algorithm(
        constants: ProblemConstants,
        *,
        lr: float,
        local_steps: int,
        augmentation: float | None = None,
        **_: Any,
    ) -> FedAlgorithm:
        mu = float(positive(constants, "mu")[0]) if augmentation is None else augmentation
        return fedac(lr, mu, local_steps, variant, augmentation)

    return algorithm


def _fedmoswa(constants: ProblemConstants, *, lr: float, share: float, **_: Any) -> FedAlgorithm:
    return fedmoswa(lr, 1.0, 1.0, share)


_SHADOW = "mean of F - F* over all shadow iterates"
_WEIGHTED = "F - F* at a weighted mean of all shadow iterates"
_AVERAGE = "weighted mean of shadow iterates"
_GRADIENT = "mean of ||grad F||^2 over all shadow iterates"
_MODEL = "F - F* at the model"
_ONE = (*_COMMON, c.CONVEX, c.ONE_OBJECTIVE)
_STRONG = (*_ONE, c.STRONGLY_CONVEX)
_THESIS = "Yuan (2023)"
_SMALL_RATE = "small client rate"

THEOREMS = (
    Theorem(
        "FedAvg, convex", f"Proposition 2.1, {_THESIS}", _SHADOW, GAP, (*_COMMON, c.CONVEX),
        ("L", "sigma", "zeta", "B"), *_family(avg, regime="convex"), _fedavg, over_shadow="end",
    ),
    Theorem(
        "FedAvg, convex, third order", f"Theorem 2.19, {_THESIS}", _WEIGHTED, GAP, _ONE,
        ("L", "sigma", "sigma4", "Q", "B"), *_family(avg, regime="third order"),
        _averaged_third_order, output=_AVERAGE,
    ),
    Theorem(
        "FedAvg, strongly convex", f"Theorem B.18, {_THESIS}", _WEIGHTED, GAP, _STRONG,
        ("L", "mu", "sigma", "sigma4", "Q", "B"), *_family(avg, regime="strongly convex"),
        _averaged_strongly_convex, output=_AVERAGE,
    ),
    Theorem(
        "FedAvg, strongly convex clients", "Theorem F.2, Labbi et al. (2025)", _MODEL, GAP,
        (*_COMMON, c.CONVEX), ("L", "lojasiewicz_mu", "sigma", "zeta_mean", "Delta"),
        _minimised(_linear, _linear_limit), _linear, _fedavg,
    ),
    Theorem(
        "FedAvg, small client rate", f"Theorem 4.3, {_THESIS}",
        "F - F* at the mean of the server's models", GAP, (*_COMMON, c.CONVEX),
        ("L", "sigma", "B_h"), *_family(feddualavg, regime=_SMALL_RATE), _small_client_rate,
    ),
    Theorem(
        "FedAvg, nonconvex", f"Theorem 2.22, {_THESIS}", _GRADIENT, GRADIENT,
        (*_COMMON, c.ONE_OBJECTIVE), ("L", "sigma", "G", "Delta"),
        *_family(avg, regime="nonconvex", drop="Q"), _fedavg, over_shadow="start",
    ),
    Theorem(
        "FedAvg, nonconvex, third order", f"Theorem 2.23, {_THESIS}", _GRADIENT,
        GRADIENT, (*_COMMON, c.ONE_OBJECTIVE), ("L", "sigma", "G", "Delta", "Q"),
        *_family(avg, regime="nonconvex"), _fedavg, over_shadow="start",
    ),
    Theorem(
        "FedAc-I, convex", f"Theorem B.21, {_THESIS}", _MODEL, GAP, _ONE,
        ("L", "sigma", "B"), *_augmented("I"), _fedac("I"),
    ),
    Theorem(
        "FedAc-II, convex, third order", f"Theorem B.23, {_THESIS}", _MODEL, GAP, _ONE,
        ("L", "sigma", "sigma4", "Q", "B"), *_augmented("II"), _fedac("II"),
    ),
    Theorem(
        "FedAc-I, strongly convex", f"Theorem 3.5, {_THESIS}", _MODEL, GAP, _STRONG,
        ("L", "mu", "sigma", "Delta", "B"),
        *_family(fedac_theory, regime="strongly convex", variant="I"), _fedac("I"),
    ),
    Theorem(
        "FedAc-II, strongly convex, third order", f"Theorem B.1, {_THESIS}", _MODEL, GAP,
        _STRONG, ("L", "mu", "sigma", "sigma4", "Q", "Delta", "B"),
        *_family(fedac_theory, regime="strongly convex", variant="II"), _fedac("II"),
    ),
    Theorem(
        "FedMoSWA, nonconvex", "Lemma G.18, Liu et al. (2025)",
        "mean of ||grad F||^2 over the server's models", GRADIENT,
        (c.UNIFORM, c.EQUAL_STEPS, c.SYNCHRONOUS, c.EQUAL_WEIGHTS, c.INDEPENDENT),
        ("L", "sigma", "zeta_mean", "Delta"), _minimised(_momentum_controls, _momentum_limit),
        _momentum_controls, _fedmoswa, prepare=gradient_controls,
    ),
)  # fmt: skip
"""In the order of tables."""
