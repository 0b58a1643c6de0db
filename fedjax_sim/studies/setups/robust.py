"""Options of robust aggregation: a rule, or mixing of the uploads before a rule."""

from typing import Annotated, Literal

import pydantic

from fedjax_sim.studies.setups.fields import Count, Index, Positive, group, without
from fedjax_sim.types import FedAlgorithm, Timeline
from fedjax_sim.wrappers import check_counts, robust


@group
class NoRule:
    """The algorithm's own mean."""

    kind: Literal["none"] = "none"


@group
class Mean:
    """The mean."""

    kind: Literal["mean"] = "mean"


@group
class Median:
    """The median of every entry."""

    f: Index | None = None
    """Attackers among the uploads; default: fewer than half."""
    kind: Literal["median"] = "median"


@group
class TrimmedMean:
    """The mean without the f largest and smallest of every entry."""

    f: Index = 1
    """Attackers among the uploads."""
    kind: Literal["trimmed_mean"] = "trimmed_mean"


@group
class Krum:
    """The upload that is closest to its neighbours."""

    f: Index = 1
    """Attackers among the uploads."""
    kind: Literal["krum"] = "krum"


@group
class MultiKrum:
    """The mean of the m uploads that are closest to their neighbours."""

    f: Index = 1
    """Attackers among the uploads."""
    m: Count | Literal["n-f-2", "n-f"] = "n-f-2"
    """Number of uploads in the mean."""
    kind: Literal["multi_krum"] = "multi_krum"


@group
class Bulyan:
    """Krum's choices, trimmed."""

    f: Index = 1
    """Attackers among the uploads."""
    kind: Literal["bulyan"] = "bulyan"


@group
class GeometricMedian:
    """The point of the least sum of distances."""

    iterations: Count = 32
    """Steps of Weiszfeld's algorithm."""
    nu: Positive = 1e-5
    """Smallest distance that counts."""
    f: Index | None = None
    """Attackers among the uploads; default: fewer than half."""
    kind: Literal["geometric_median"] = "geometric_median"


@group
class Rfa:
    """The geometric median of few steps."""

    iterations: Count = 4
    """Steps of Weiszfeld's algorithm."""
    nu: Positive = 1e-5
    """Smallest distance that counts."""
    f: Index | None = None
    """Attackers among the uploads; default: fewer than half."""
    kind: Literal["rfa"] = "rfa"


@group
class CentredClipping:
    """The mean of differences to the last aggregate, clipped."""

    tau: Positive = 100.0
    """Largest norm of a difference."""
    iterations: Count = 1
    """Number of repetitions."""
    f: Index | None = None
    """Attackers among the uploads; default: fewer than half."""
    kind: Literal["centred_clipping"] = "centred_clipping"


_Rules = (
    NoRule | Mean | Median | TrimmedMean | Krum | MultiKrum | Bulyan | GeometricMedian | Rfa
    | CentredClipping
)  # fmt: skip
Rule = Annotated[_Rules, pydantic.Field(discriminator="kind")]


@group
class Nnm:
    """The mean of each upload's nearest neighbours, before a rule."""

    rule: Rule = TrimmedMean()
    """Rule of the mixed uploads."""
    f: Index | None = None
    """Attackers among the uploads; default: the rule's."""
    kind: Literal["nnm"] = "nnm"


@group
class Bucketing:
    """Means of random groups of uploads, before a rule."""

    rule: Rule = TrimmedMean()
    """Rule of the means."""
    size: Count = 2
    """Uploads per group."""
    kind: Literal["bucketing"] = "bucketing"


Robust = Annotated[_Rules | Nnm | Bucketing, pydantic.Field(discriminator="kind")]


def aggregated(algorithm: FedAlgorithm, options: Robust) -> FedAlgorithm:
    """Returns an algorithm with a robust rule."""
    if isinstance(options, NoRule):
        return algorithm
    return robust.aggregate(algorithm, rule_of(options))


def check_uploads(options: Robust, timeline: Timeline) -> None:
    """Refuses timelines with fewer uploads in a round than the rule requires."""
    if isinstance(options, NoRule):
        return
    try:
        check_counts(rule_of(options), timeline)
    except ValueError as error:
        raise ValueError(f"robust is {options.kind!r}: {error}") from error


def rule_of(options: Robust, name: str = "robust") -> robust.Rule:
    """Returns the rule of the options."""
    if isinstance(options, NoRule):
        raise ValueError(f"{name} is 'none'; expected a rule of the mixed uploads")
    values = without(options, "kind", "rule")
    rules = [rule_of(options.rule, f"{name}.rule")] if isinstance(options, Nnm | Bucketing) else []
    try:
        return getattr(robust, options.kind)(*rules, **values)
    except ValueError as error:
        raise ValueError(f"{name} is {options.kind!r}: {error}") from error
