"""Options of differential privacy of clients: clip, noise, law of the noise, target."""

import contextlib
import dataclasses
import functools
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import jax
import numpy as np
import pydantic

from fedjax_sim.algorithms import fedavg
from fedjax_sim.studies.setups.fields import (
    Count,
    Inside,
    NotNegative,
    Positive,
    Probability,
    group,
)
from fedjax_sim.types import FedAlgorithm, Setup, Task, Timeline
from fedjax_sim.wrappers import dry_visit, min_separation, most_visits, num_draws, privacy


@group
class Norm:
    """One bound of the norm of an upload."""

    bound: Positive = 1.0
    """Largest norm of an upload."""
    kind: Literal["norm"] = "norm"


@group
class Adaptive:
    """A bound that follows a quantile of the norms of the uploads."""

    quantile: Probability = 0.5
    """Quantile of the norms."""
    initial: Positive = 0.1
    """First bound."""
    kind: Literal["adaptive"] = "adaptive"


@group
class Parts:
    """A bound per part of the upload."""

    bounds: dict[str, Positive]
    """Bounds by the parts' names, as --privacy.clip.bounds 0 0.5 1 2."""
    kind: Literal["parts"] = "parts"


Clip = Annotated[Norm | Adaptive | Parts, pydantic.Field(discriminator="kind")]


@group
class Independent:
    """Noise that is independent between rounds."""

    kind: Literal["independent"] = "independent"


@group
class Tree:
    """Tree aggregation (DP-FTRL): noise that partly cancels between rounds."""

    rounds: Count | None = None
    """Rounds per tree; default: the fewest from a client's visit to its next."""
    efficient: bool = False
    """Honaker's estimator, with less noise."""
    kind: Literal["tree"] = "tree"


@group
class Banded:
    """A banded matrix: noise that partly cancels between rounds."""

    bands: Count = 4
    """Number of bands."""
    kind: Literal["banded"] = "banded"


Law = Annotated[Independent | Tree | Banded, pydantic.Field(discriminator="kind")]


@group
class NoPrivacy:
    """No clipping of uploads, no noise."""

    kind: Literal["none"] = "none"


@group
class GaussianNoise:
    """Differential privacy of clients by clipped uploads and Gaussian noise (extra privacy)."""

    clip: Clip = Norm()
    """Bound of the uploads."""
    noise: NotNegative | None = None
    """Noise multiplier: standard deviation of the noise on the sum of the uploads divided by the
    bound; default: the one that epsilon requires."""
    epsilon: Positive | None = None
    """Epsilon of the whole run, from which the noise multiplier is computed; default: that of the
    noise."""
    delta: Inside = 1e-5
    """Delta of the guarantee, well below one over the number of clients."""
    law: Law = Independent()
    """Law of the noise; the others are for timelines in which clients return late, as
    sampling:cyclic."""
    kind: Literal["gaussian"] = "gaussian"


Privacy = Annotated[NoPrivacy | GaussianNoise, pydantic.Field(discriminator="kind")]

# Names of arguments that a message of the library may begin with, and their options.
_OPTIONS = {
    "clip": "privacy.clip",
    "noise_multiplier": "privacy.noise",
    "epsilon": "privacy.epsilon",
    "delta": "privacy.delta",
}


def check_noise(options: Privacy) -> None:
    """Refuses noise and a target for it at once, and neither."""
    if isinstance(options, NoPrivacy):
        return
    if options.noise is not None and options.epsilon is not None:
        raise ValueError(
            f"privacy.epsilon is {options.epsilon}; expected none with --privacy.noise"
        )
    if options.noise is None and options.epsilon is None:
        raise ValueError("privacy.noise is None; expected --privacy.noise or --privacy.epsilon")


def privatized(
    algorithm: FedAlgorithm, options: Privacy, timeline: Timeline | None
) -> FedAlgorithm:
    """Returns the private algorithm, or the algorithm itself without privacy."""
    if isinstance(options, NoPrivacy):
        return algorithm
    if options.noise is None:
        raise ValueError(f"privacy.noise is None; expected that of epsilon {options.epsilon}")
    if timeline is None or timeline.sampling is None:
        raise ValueError(
            "timeline has no sampling rule; expected a named one (sampling) in a private run, "
            "which divides by the expected number of uploads"
        )
    uploads = timeline.sampling.expected_uploads
    with _named_options():
        return privacy.privatize(
            algorithm,
            _clip_of(options.clip),
            options.noise,
            expected_uploads=uploads,
            noise=law_of(options.law, timeline),
        )


def _clip_of(clip: Clip) -> Any:
    match clip:
        case Norm():
            return clip.bound
        case Adaptive():
            return privacy.adaptive_clip(clip.quantile, initial=clip.initial)
        case Parts():
            return dict(clip.bounds)


def check_parts(algorithm: FedAlgorithm, options: Privacy, setup: Setup) -> None:
    """Refuses a clip whose parts are not those of the algorithm's uploads."""
    if isinstance(options, NoPrivacy) or not isinstance(options.clip, Parts):
        return
    batched = setup.timeline.clients.ndim == 3

    def visit(params: Any) -> Any:
        params = jax.tree.map(lambda x: x[0], params) if batched else params
        return dry_visit(algorithm, params, 1, 1)

    with _named_options():
        jax.eval_shape(visit, setup.params)


def law_of(law: Law, timeline: Timeline) -> privacy.NoiseLaw | None:
    """Returns the law of noise for a concrete timeline; None for independent noise.

    A tree has by default the fewest rounds from one visit of a client to its next, or all rounds if
    no client returns.  Bands have the sensitivity of the timeline's visits.
    """
    if isinstance(law, Independent):
        return None
    rounds = num_draws(timeline)
    separation = min_separation(timeline) or rounds
    if separation < 2:
        raise ValueError(
            f"privacy.law is {law.kind!r}; expected a timeline in which no client takes part in "
            "two rounds in a row, for example sampling:cyclic"
        )
    if isinstance(law, Tree):
        return privacy.tree_aggregation(law.rounds or separation, efficient=law.efficient)
    if law.bands > rounds:
        raise ValueError(
            f"privacy.law.bands is {law.bands}; expected at most {rounds} bands, the rounds"
        )
    return privacy.banded(
        _coefficients(rounds, law.bands),
        rounds,
        separation=separation,
        visits=most_visits(timeline),
    )


@functools.cache
def _coefficients(num_rounds: int, bands: int) -> np.ndarray:
    return privacy.banded_coefficients(num_rounds, bands)


@contextlib.contextmanager
def _named_options() -> Iterator[None]:
    """Context in which a message that begins with an argument's name has the option's name."""
    try:
        yield
    except ValueError as error:
        message = str(error)
        name = re.match(r"\w+", message)
        if name is None or name[0] not in _OPTIONS:
            raise
        raise ValueError(_OPTIONS[name[0]] + message[name.end() :]) from error


class Accounts(NamedTuple):
    """Epsilon of a comparison's private algorithms, which share timeline, clip and noise."""

    options: Privacy
    setup: Setup

    def with_noise(self) -> Privacy:
        """Returns the options with the noise that the target epsilon requires."""
        options = self.options
        if isinstance(options, NoPrivacy) or options.epsilon is None:
            return options
        with _named_options():
            noise = privacy.noise_multiplier(
                self.setup,
                options.epsilon,
                options.delta,
                noise=law_of(options.law, self.setup.timeline),
            )
        return dataclasses.replace(options, noise=noise, epsilon=None)

    def guarantee(self) -> privacy.Guarantee | None:
        """Returns the guarantee of the whole run; None without privacy."""
        if isinstance(self.options, NoPrivacy):
            return None
        with _named_options():
            return privacy.epsilon(self._carrier(), self.setup, self.options.delta)

    def per_round(self, rounds: Sequence[int]) -> dict[int, float]:
        """Returns epsilon after the given rounds; nothing without privacy."""
        if isinstance(self.options, NoPrivacy):
            return {}
        values = privacy.epsilon_per_round(self._carrier(), self.setup, self.options.delta, rounds)
        return dict(zip(rounds, map(float, values), strict=True))

    def _carrier(self) -> FedAlgorithm:
        """Returns an algorithm with this noise; epsilon does not depend on anything else of it."""
        assert isinstance(self.options, GaussianNoise)
        unit = dataclasses.replace(self.options, clip=Norm())
        return privatized(fedavg(1.0), unit, self.setup.timeline)


def accounts_of(options: Privacy, setup: Setup) -> Accounts:
    """Returns the accounts of a comparison."""
    # Nothing but the timeline and the number of clients counts, so no data are kept.
    ones = np.ones(setup.task.num_clients, np.int8)
    task = Task(_no_oracle, ones, ones)
    return Accounts(options, Setup(task, setup.timeline, ()))


def _no_oracle(*visit: Any) -> Any:
    raise AssertionError(f"an accountant asked for the data of {visit}")
