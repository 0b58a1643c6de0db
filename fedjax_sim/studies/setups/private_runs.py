"""Differential privacy on the command line: ``--privacy-clip``, ``--privacy-noise`` and others.

Clip, noise multiplier and law of the noise are hyper-parameters of every algorithm, so a grid may
vary them: ``privacy_clip``, ``privacy_noise`` (numbers inside one program), ``privacy_noise_law``.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_sim.algorithms import fedavg
from fedjax_sim.studies.setups.config import RunConfig, SweepConfig
from fedjax_sim.studies.setups.entries import PRIVACY
from fedjax_sim.studies.setups.private_options import clip_of, law_of, parse_law
from fedjax_sim.types import FedAlgorithm, Setup, Task, Timeline
from fedjax_sim.wrappers import dry_visit, privacy

# Names of arguments that a message of the library may begin with, and their options.
_OPTIONS = {
    "clip": "privacy_clip",
    "noise_multiplier": "privacy_noise",
    "epsilon": "privacy_epsilon",
    "delta": "privacy_delta",
}


def check(config: RunConfig) -> None:
    """Refuses options that contradict each other, before data are loaded.

    Raises:
        ValueError: naming the field, its value and what was expected.

    Example:
        >>> check(RunConfig(privacy_epsilon=2.0))
        Traceback (most recent call last):
        ValueError: privacy_clip is None; expected a positive number with --privacy-epsilon
    """
    given = {
        name: getattr(config, name)
        for name in ("privacy_noise", "privacy_epsilon", "privacy_noise_law")
        if getattr(config, name) is not None
    }
    if config.privacy_noise_law is not None:
        parse_law(config.privacy_noise_law)
    if "privacy_noise" in given and "privacy_epsilon" in given:
        raise ValueError(
            f"privacy_epsilon is {config.privacy_epsilon}; expected none with --privacy-noise"
        )
    if config.privacy_clip is None:
        of_algorithms = any(".privacy_clip=" in setting for setting in config.hyper)
        if of_algorithms or isinstance(config, SweepConfig):
            return  # a grid may have it; privatized() refuses noise without a clip
        for name in given:
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"privacy_clip is None; expected a positive number with {option}")
        return
    clip_of(config.privacy_clip)
    for name, required in (("clock", "none"), ("weighting", "uniform")):
        if (value := getattr(config, name)) != required:
            raise ValueError(f"{name} is {value!r}; expected {required!r} with --privacy-clip")


def privatized(
    algorithm: FedAlgorithm, hyper: Mapping[str, Any], timeline: Timeline | None
) -> FedAlgorithm:
    """Returns the private algorithm, or the algorithm itself without ``privacy_clip``.

    Args:
        algorithm: an algorithm with all its other wrappers.
        hyper: its hyper-parameters.
        timeline: concrete, of all seeds; None: there is no private algorithm.

    Raises:
        ValueError: a clip without noise or noise without a clip, an unknown number of uploads, or
            as :func:`~fedjax_sim.wrappers.privacy.privatize` and
            :func:`~fedjax_sim.studies.setups.private_options.law_of`.

    Example:
        >>> import fedjax_sim as fs
        >>> timeline = fs.timelines.full(3, num_clients=9, num_steps=1)
        >>> hyper = {"lr": 0.1, "privacy_clip": 1.0, "privacy_noise": 0.5}
        >>> privatized(fedavg(0.1), hyper, timeline).requires.uniform_weights is not None
        True
    """
    clip, noise, law = (hyper.get(name) for name in PRIVACY)
    if clip is None:
        for name in PRIVACY:
            if hyper.get(name) is not None:
                raise ValueError(f"{name} is {hyper[name]}; expected --privacy-clip with it")
        return algorithm
    if noise is None:
        raise ValueError(f"privacy_clip is {clip}; expected --privacy-noise or --privacy-epsilon")
    if timeline is None or timeline.sampling is None:
        raise ValueError(
            "timeline has no sampling rule; expected a named one (--sampling) in a private run, "
            "which divides by the expected number of uploads"
        )
    uploads = timeline.sampling.expected_uploads
    with _named_options():
        return privacy.privatize(
            algorithm, clip_of(clip), noise, expected_uploads=uploads, noise=law_of(law, timeline)
        )


def check_parts(algorithm: FedAlgorithm, hyper: Mapping[str, Any], setup: Setup) -> None:
    """Refuses a clip whose parts are not those of the algorithm's uploads.

    Args:
        algorithm: a private algorithm.
        hyper: its hyper-parameters.
        setup: of one seed or of several.

    Raises:
        ValueError: naming the parts.
    """
    if not isinstance(clip := hyper.get("privacy_clip"), str) or "=" not in clip:
        return
    batched = setup.timeline.clients.ndim == 3

    def visit(params: Any) -> Any:
        params = jax.tree.map(lambda x: x[0], params) if batched else params
        return dry_visit(algorithm, params, 1, 1)

    with _named_options():
        jax.eval_shape(visit, setup.params)


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
    """Epsilon of the private algorithms of a comparison, which share the timeline."""

    setup: Setup
    delta: float

    def with_noise(self, hyper: Mapping[str, Any], epsilon: float) -> dict[str, dict[str, Any]]:
        """Returns the hyper-parameters with the noise that the target epsilon requires.

        Raises:
            ValueError: a target that cannot be met.
        """
        laws = {name: values.get("privacy_noise_law") for name, values in hyper.items()}
        with _named_options():
            noise = {
                law: privacy.noise_multiplier(
                    self.setup, epsilon, self.delta, noise=law_of(law, self.setup.timeline)
                )
                for law in dict.fromkeys(laws.values())
            }
        return {
            name: {**values, "privacy_noise": noise[laws[name]]} for name, values in hyper.items()
        }

    def guarantees(self, hyper: Mapping[str, Mapping[str, Any]]) -> dict[str, privacy.Guarantee]:
        """Returns the guarantee of every private algorithm, computed once per noise and law.

        Raises:
            ValueError: as :func:`~fedjax_sim.wrappers.privacy.epsilon`.
        """
        noise = {
            name: (float(values["privacy_noise"]), values.get("privacy_noise_law"))
            for name, values in hyper.items()
            if values.get("privacy_noise") is not None
        }
        with _named_options():
            values = {
                key: privacy.epsilon(self._carrier(*key), self.setup, self.delta)
                for key in dict.fromkeys(noise.values())
            }
        return {name: values[key] for name, key in noise.items()}

    def per_round(self, hyper: Mapping[str, Any], rounds: Sequence[int]) -> dict[int, float]:
        """Returns epsilon after the given rounds; nothing for an algorithm that is not private."""
        noise = hyper.get("privacy_noise")
        if noise is None:
            return {}
        private = self._carrier(float(noise), hyper.get("privacy_noise_law"))
        values = privacy.epsilon_per_round(private, self.setup, self.delta, rounds)
        return dict(zip(rounds, map(float, values), strict=True))

    def _carrier(self, noise: float, law: str | None) -> FedAlgorithm:
        """Returns an algorithm with this noise; epsilon does not depend on anything else of it."""
        hyper = {"privacy_clip": 1.0, "privacy_noise": noise, "privacy_noise_law": law}
        return privatized(fedavg(1.0), hyper, self.setup.timeline)


def accounts_of(config: RunConfig, setup: Setup) -> Accounts:
    """Returns the accounts of a comparison.

    Example:
        >>> import fedjax_sim as fs
        >>> setup = fs.presets.quickstart(num_clients=9, sampling="full", rounds=3, seeds=1)
        >>> accounts = accounts_of(RunConfig(), setup)
        >>> round(accounts.guarantees({"fedavg": {"privacy_noise": 9.0}})["fedavg"].epsilon, 2)
        0.7
    """
    # Nothing but the timeline and the number of clients counts, so no data are kept.
    ones = np.ones(setup.task.num_clients, np.int8)
    task = Task(_no_oracle, ones, ones)
    return Accounts(Setup(task, setup.timeline, ()), config.privacy_delta)


def _no_oracle(*visit: Any) -> Any:
    raise AssertionError(f"an accountant asked for the data of {visit}")
