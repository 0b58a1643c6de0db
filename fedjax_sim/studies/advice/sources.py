"""Sources of constants: proven, given, or estimated at some models."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from fedjax_sim.diagnostics import Curvature
from fedjax_sim.theory import ProblemConstants, is_known
from fedjax_sim.types import shown

Kind = Literal["exact", "given", "bound", "estimate", "unknown"]

NAMES = (
    "L", "mu", "sigma", "sigma4", "Q", "G", "zeta", "zeta_mean", "zeta_star", "B", "B_h", "Delta",
    "lojasiewicz_mu", "lojasiewicz_alpha",
)  # fmt: skip
"""The constants that are measured."""

_CONVEXITY = ("mu", "lojasiewicz_mu", "lojasiewicz_alpha")
_SUPREMA = ("L", "Q", "zeta", "zeta_mean")  # measured without sampling, from below
_TOLERANCE = 1e-3  # of given constants against measured ones, relative: single precision
_ROUNDING = 1e-5  # times L


@shown
class Source(NamedTuple):
    """Where the value of a constant comes from.

    * ``exact``: the value that the theorems mean, up to rounding;
    * ``given``: by the caller, who says that it holds at every model;
    * ``bound``: at least the value that the theorems mean, so bounds stay valid;
    * ``estimate``: the extreme value at the measured models, which may be exceeded elsewhere;
    * ``unknown``: no value, with the reason.

    Example:
        >>> Source("estimate", "largest value at 2 models").kind
        'estimate'
    """

    kind: Kind
    note: str


class Sourced(NamedTuple):
    """Constants with their sources, by name."""

    constants: ProblemConstants
    sources: dict[str, Source]

    def but(self, source: Source, **values: Any) -> Sourced:
        """Returns them with other values, which have one source."""
        return Sourced(
            self.constants._replace(**values), self.sources | dict.fromkeys(values, source)
        )


def value_of(constants: ProblemConstants, name: str) -> float | None:
    """Returns a constant as a number; None: unknown."""
    value = getattr(constants, name)
    return float(value) if is_known(value) else None


def models(count: int) -> str:
    """Returns the number of models as a text."""
    return f"{count} model{'s' if count > 1 else ''}"


def measured_sources(
    constants: ProblemConstants, count: int, num_samples: int, no_optimum: str
) -> dict[str, Source]:
    """Returns the sources of measured constants, before anything is proven or given."""
    seen = models(count)
    most = Source("estimate", f"largest value at {seen}")
    noise = Source("estimate", f"{num_samples} gradients per client at {seen}")
    least = Source("estimate", f"smallest value at {seen}")
    ends = Source("exact", "at the initial model and the optimum")
    sources: dict[str, Source] = dict.fromkeys(NAMES, ends)
    sources |= dict.fromkeys(_SUPREMA, most)
    sources |= dict.fromkeys(("sigma", "sigma4", "G"), noise)
    sources |= dict.fromkeys(_CONVEXITY, least)
    for name in NAMES:
        if not is_known(getattr(constants, name)):
            curved = f"not strongly convex at {seen}"
            sources[name] = Source("unknown", curved if name in _CONVEXITY else no_optimum)
    return sources


def proven(
    constants: ProblemConstants,
    *,
    quadratic: bool,
    spectrum: bool,
    shared: bool,
    deterministic: bool,
) -> dict[str, tuple[float, str]]:
    """Returns the constants that follow from a task's structure: values and notes."""
    values = {}
    if quadratic:
        values["Q"] = (0.0, "constant Hessians")
        for name in ("L", *_CONVEXITY) if spectrum else ():
            if (value := value_of(constants, name)) is not None:
                values[name] = (value, "constant Hessians, all eigenvalues")
    if shared:
        values |= dict.fromkeys(("zeta", "zeta_mean"), (0.0, "one objective"))
    if deterministic:
        values |= dict.fromkeys(("sigma", "sigma4"), (0.0, "gradients without noise"))
    return values


def rounding(bent: Curvature) -> float:
    """Returns the largest error of an eigenvalue."""
    dtype = np.asarray(bent.clients.largest).dtype
    return float(100 * np.finfo(dtype).eps * bent.norm)


def convexity(bent: Curvature, known: ProblemConstants, quadratic: bool, count: int) -> Source:
    """Returns the source of the claim that all clients are convex; "unknown": they are not."""
    lowest = float(np.min(np.asarray(bent.clients.smallest)))
    if is_known(known.mu):
        return Source("given", "known.mu")
    if lowest < -rounding(bent):
        return Source("unknown", f"a client's Hessian has the eigenvalue {lowest:.3g}")
    if quadratic:
        return Source("exact", "constant Hessians without negative eigenvalues")
    return Source("estimate", f"no negative eigenvalue at {models(count)}")


def check_known(known: ProblemConstants, measured: ProblemConstants) -> None:
    """Refuses given constants that a measured value contradicts."""
    for name in known.known:
        given, seen = value_of(known, name), value_of(measured, name)
        assert given is not None
        if given < 0:
            raise ValueError(f"known.{name} is {given}; expected a non-negative number")
        if name in _SUPREMA and seen is not None and given < (1 - _TOLERANCE) * seen - _ROUNDING:
            raise ValueError(
                f"known.{name} is {given}; expected at least {seen:.4g}, "
                "the value at a measured model"
            )
    mu, seen = value_of(known, "mu"), value_of(measured, "mu")
    rounded = _ROUNDING * (value_of(measured, "L") or 0.0)
    if mu is not None and seen is not None and mu > (1 + _TOLERANCE) * seen + rounded:
        raise ValueError(
            f"known.mu is {mu}; expected at most {seen:.4g}, the smallest eigenvalue of F's "
            "Hessian at a measured model"
        )
