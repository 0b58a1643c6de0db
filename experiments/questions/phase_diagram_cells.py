"""Cells of the planes of the phase diagram, and the sizes of the study."""

import itertools
from collections.abc import Iterable
from typing import NamedTuple

from experiments.questions.phase_diagram_problem import (
    DIFFERENT_CURVATURE,
    Family,
    Problem,
)


class Effort(NamedTuple):
    """Rates and seeds of a program."""

    powers: tuple[int, int]  # of 1/2, the rates times L: from the first up to the second
    seeds: int

    @property
    def lrs(self) -> list[float]:
        """The rates, the largest first."""
        return [2.0**-i for i in range(*self.powers)]


class Scale(NamedTuple):
    """Sizes of the study."""

    clients: tuple[int, ...]
    local_steps: tuple[int, ...]
    gradients: int  # the most M K
    noises: tuple[float, ...]
    heterogeneities: tuple[float, ...]  # above 0
    conditions: tuple[float, ...]
    rounds: int
    centre: tuple[int, int, float, float, float]  # M, K, noise, heterogeneity, condition
    at_centre: Effort  # with the centre's M and K, where all planes of numbers are one program
    elsewhere: Effort


def powers(base: int, first: int, last: int) -> tuple[int, ...]:
    """``base`` to the powers first .. last."""
    return tuple(base**i for i in range(first, last + 1))


NOISES = tuple(4.0**i / 2 for i in range(-2, 3))  # 1/32 .. 8
CONDITIONS = tuple(4.0**i for i in range(1, 6))
SCALES = {
    "tiny": Scale(
        (2, 4), (4,), 16, (0.5, 2.0), (0.125, 0.5), (4.0, 64.0), 4, (4, 4, 0.5, 0.5, 64.0),
        Effort((-1, 5), 4), Effort((-1, 5), 2),
    ),
    "reduced": Scale(
        (2, 16, 128, 1024), (4, 16, 64, 256), 2**14, NOISES, NOISES[:-1], CONDITIONS, 32,
        (16, 16, 0.5, 0.5, 64.0), Effort((-2, 12), 40), Effort((-1, 9), 5),
    ),
    "full": Scale(
        (2, 4, 16, 64, 256, 1024, 4096), powers(4, 0, 5), 2**16,
        tuple(2.0**i for i in range(-6, 5)), tuple(2.0**i for i in range(-6, 3)),
        tuple(2.0**i for i in range(1, 13)), 32, (16, 16, 0.5, 0.5, 64.0),
        Effort((-2, 14), 40), Effort((-2, 14), 40),
    ),
}  # fmt: skip


class Cell(NamedTuple):
    """A place in a plane."""

    plane: str
    clients: int  # M
    local_steps: int  # K
    problem: Problem


def cells(family: Family, scale: Scale) -> list[Cell]:
    """All cells of a family's planes; those of numbers first, since they are one program."""
    M, K, noise, heterogeneity, condition = scale.centre
    tau = DIFFERENT_CURVATURE if family == "quadratic" else 0.0
    both = itertools.product
    found = [
        Cell("heterogeneity", M, K, Problem(n, z, condition, tau if z else 0.0))
        for n, z in both(scale.noises, (0.0, *scale.heterogeneities))
    ]
    found += [
        Cell("condition", M, K, Problem(n, 0.0, c, 0.0))
        for n, c in both(scale.noises, scale.conditions)
    ]
    if family == "quadratic":
        found += [
            Cell("equal curvature", M, K, Problem(noise, z, condition, 0.0))
            for z in scale.heterogeneities
        ]
    found += [
        Cell(plane, m, k, Problem(noise, z, condition, tau if z else 0.0))
        for m, k in both(scale.clients, scale.local_steps)
        if m * k <= scale.gradients
        for plane, z in (("equal clients", 0.0), ("different clients", heterogeneity))
    ]
    return found


def grouped(every: Iterable[Cell]) -> list[list[Cell]]:
    """The cells by M and K, in the order of their first ones."""
    groups: dict[tuple[int, int], list[Cell]] = {}
    for cell in every:
        groups.setdefault((cell.clients, cell.local_steps), []).append(cell)
    return list(groups.values())
