"""Differential privacy on the command line: ``--privacy-clip``, ``--privacy-noise`` and others.

Clip and noise multiplier are hyper-parameters of every algorithm (``privacy_clip`` and
``privacy_noise``), so a grid may vary them inside one program.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_sim import privacy
from fedjax_sim.algorithms import fedavg
from fedjax_sim.cli.config import RunConfig, SweepConfig
from fedjax_sim.types import FedAlgorithm, Setup, Task


def check(config: RunConfig) -> None:
    """Refuses options that contradict each other, before data are loaded.

    Raises:
        ValueError: naming the field, its value and what was expected.

    Example:
        >>> check(RunConfig(privacy_epsilon=2.0))
        Traceback (most recent call last):
        ValueError: privacy_clip is None; expected a positive number with privacy_epsilon
    """
    given = {
        name: getattr(config, name)
        for name in ("privacy_noise", "privacy_epsilon")
        if getattr(config, name) is not None
    }
    if config.privacy_clip is None:
        if isinstance(config, SweepConfig):
            return  # the grid may have it; privatized() refuses noise without a clip
        for name in given:
            raise ValueError(f"privacy_clip is None; expected a positive number with {name}")
        return
    if len(given) == 2:
        raise ValueError(
            f"privacy_epsilon is {config.privacy_epsilon}; expected none with privacy_noise"
        )
    for name, required in (("clock", "none"), ("weighting", "uniform")):
        if (value := getattr(config, name)) != required:
            raise ValueError(f"{name} is {value!r}; expected {required!r} with privacy_clip")


def privatized(
    algorithm: FedAlgorithm, hyper: Mapping[str, Any], expected_uploads: float | None
) -> FedAlgorithm:
    """Returns the private algorithm, or the algorithm itself without ``privacy_clip``.

    Args:
        algorithm: an algorithm with all its other wrappers.
        hyper: its hyper-parameters.
        expected_uploads: of the timeline, as :func:`expected_uploads` returns it.

    Raises:
        ValueError: a clip without noise or noise without a clip, an unknown number of uploads, or
            as :func:`~fedjax_sim.privacy.privatize`.

    Example:
        >>> hyper = {"lr": 0.1, "privacy_clip": 1.0, "privacy_noise": 0.5}
        >>> privatized(fedavg(0.1), hyper, 10.0).uniform_weights_only is not None
        True
    """
    clip, noise = hyper.get("privacy_clip"), hyper.get("privacy_noise")
    if clip is None and noise is None:
        return algorithm
    if clip is None:
        raise ValueError(f"privacy_noise is {noise}; expected privacy_clip with it")
    if noise is None:
        raise ValueError(f"privacy_clip is {clip}; expected privacy_noise or privacy_epsilon")
    if expected_uploads is None:
        raise ValueError(
            "timeline has no sampling rule; expected a named one (--sampling) in a private run, "
            "which divides by the expected number of uploads"
        )
    return privacy.privatize(algorithm, clip, noise, expected_uploads=expected_uploads)


def expected_uploads(setup: Setup) -> float | None:
    """Returns the expected number of uploads per round; None: the rule is not known."""
    rule = setup.timeline.sampling
    return None if rule is None else rule.expected_uploads


class Accounts(NamedTuple):
    """Epsilon of the private algorithms of a comparison, which share the timeline."""

    setup: Setup
    delta: float

    def with_noise(self, hyper: Mapping[str, Any], epsilon: float) -> dict[str, dict[str, Any]]:
        """Returns the hyper-parameters with the noise that the target epsilon requires.

        Raises:
            ValueError: a target that cannot be met.
        """
        z = privacy.noise_multiplier(self.setup, epsilon, self.delta)
        return {name: {**values, "privacy_noise": z} for name, values in hyper.items()}

    def guarantees(self, hyper: Mapping[str, Mapping[str, Any]]) -> dict[str, privacy.Guarantee]:
        """Returns the guarantee of every private algorithm, computed once per noise multiplier.

        Raises:
            ValueError: as :func:`~fedjax_sim.privacy.epsilon`.
        """
        noise = _noise(hyper)
        values = {
            z: privacy.epsilon(self._carrier(z), self.setup, self.delta)
            for z in dict.fromkeys(noise.values())
        }
        return {name: values[z] for name, z in noise.items()}

    def per_round(self, hyper: Mapping[str, Any], rounds: Sequence[int]) -> dict[int, float]:
        """Returns epsilon after the given rounds; nothing for an algorithm that is not private."""
        noise = hyper.get("privacy_noise")
        if noise is None:
            return {}
        private = self._carrier(float(noise))
        values = privacy.epsilon_per_round(private, self.setup, self.delta, rounds)
        return dict(zip(rounds, map(float, values), strict=True))

    def _carrier(self, noise: float) -> FedAlgorithm:
        """Returns an algorithm with this noise; epsilon does not depend on anything else of it."""
        number = expected_uploads(self.setup) or 1.0
        return privacy.privatize(fedavg(1.0), 1.0, noise, expected_uploads=number)


def _noise(hyper: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    return {
        name: float(values["privacy_noise"])
        for name, values in hyper.items()
        if values.get("privacy_noise") is not None
    }


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
