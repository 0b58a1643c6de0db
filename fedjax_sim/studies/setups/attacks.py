"""Attacks on the command line: ``--attack NAME[:NUMBER]`` by ``--attackers FRACTION``."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from fedjax_sim.algorithms import fedavg
from fedjax_sim.checks import did_you_mean
from fedjax_sim.data import FederatedData
from fedjax_sim.studies.setups.config import RunConfig
from fedjax_sim.types import FedAlgorithm
from fedjax_sim.wrappers import Attackers, Trigger, attacks

BACKDOOR = "backdoor"


class AttackEntry(NamedTuple):
    """An attack on the command line."""

    description: str
    # (algorithm, attackers), and the number, if it is given. None: the data change only.
    build: Callable[..., FedAlgorithm] | None
    number: str | None  # meaning of the number after the colon; None: there is none
    changes_data: bool = False


def _mimic(algorithm: FedAlgorithm, attackers: Attackers, rounds: float = 20) -> FedAlgorithm:
    return attacks.mimic(algorithm, attackers, int(rounds))


def _replace_model(
    algorithm: FedAlgorithm, attackers: Attackers, factor: float = 1.0
) -> FedAlgorithm:
    return attacks.scaling(algorithm, attackers, factor)


ATTACKS: dict[str, AttackEntry] = {
    "sign_flip": AttackEntry("the negative of the upload", attacks.sign_flip, "scale, 1"),
    "scaling": AttackEntry("a multiple of the upload", attacks.scaling, "factor, 10"),
    "gaussian": AttackEntry("normal numbers", attacks.gaussian, "standard deviation, 1"),
    "infinity": AttackEntry("infinite numbers", attacks.infinity, None),
    "alie": AttackEntry(
        "the honest mean minus z standard deviations", attacks.alie, "z, by the numbers of clients"
    ),
    "inner_product": AttackEntry(
        "a negative multiple of the honest mean", attacks.inner_product, "epsilon, 0.1"
    ),
    "mimic": AttackEntry("the upload of one honest client", _mimic, "rounds of warm-up, 20"),
    "label_flip": AttackEntry("training on label K - 1 - y", None, "share of examples, 1", True),
    BACKDOOR: AttackEntry(
        "training on a pattern of pixels with label 0", _replace_model,
        "factor of the upload, 1", True,
    ),
}  # fmt: skip


class Attack(NamedTuple):
    """The attack of a comparison and its attackers, which are the same for all seeds."""

    name: str
    number: float | None
    attackers: Attackers

    def on(self, algorithm: FedAlgorithm) -> FedAlgorithm:
        """Returns an algorithm under attack."""
        build = ATTACKS[self.name].build
        if build is None:
            return algorithm
        numbers = [] if self.number is None else [self.number]
        return build(algorithm, self.attackers, *numbers)

    def poisoned(self, data: FederatedData, num_classes: int) -> FederatedData:
        """Returns the examples that the clients train on.

        Raises:
            ValueError: examples that are no images, for a backdoor.
        """
        if self.name == "label_flip":
            share = 1.0 if self.number is None else self.number
            return attacks.flip_labels(data, self.attackers, num_classes, share)
        if self.name == BACKDOOR:
            return attacks.poison(data, self.attackers, trigger(data.examples["x"]))
        return data


def trigger(images: np.ndarray) -> Trigger:
    """Returns the pattern of the backdoor: 5 x 5 pixels, less for images with edges below 20.

    Example:
        >>> trigger(np.zeros((2, 8, 8), np.uint8)).size
        2
    """
    size = min([5, *(edge // 4 for edge in np.shape(images)[1:3])])
    return Trigger(max(size, 1), value=float(np.max(images, initial=0)))


def attack_of(config: RunConfig, num_clients: int, seed: int | None = None) -> Attack | None:
    """Returns the attack that the options describe; None without one.

    A larger fraction adds attackers to those of a smaller one.

    Args:
        config: the options.
        num_clients: of the task.
        seed: of the attackers; default: ``partition_seed``.

    Raises:
        ValueError: as :func:`parse`; a fraction outside (0, 1].

    Example:
        >>> attack = attack_of(RunConfig(attack="scaling:5", attackers=0.3), num_clients=10)
        >>> attack.number, int(attack.attackers.mask.sum())
        (5.0, 3)
    """
    check(config)
    if config.attack == "none":
        return None
    name, number = parse(config.attack)
    seed = config.partition_seed if seed is None else seed
    key = jax.random.fold_in(jax.random.key(seed), 1)
    return Attack(name, number, attacks.random_clients(key, num_clients, config.attackers))


def check(config: RunConfig) -> None:
    """Refuses options of attacks that no data set could make valid.

    Raises:
        ValueError: naming the option, its value and what was expected.
    """
    if config.attack == "none":
        return
    name, number = parse(config.attack)
    if not 0 < config.attackers <= 1:
        raise ValueError(f"attackers is {config.attackers}; expected a number in (0, 1]")
    if ATTACKS[name].changes_data and config.num_strata is not None:
        raise ValueError(
            f"attack is {config.attack!r}; expected none with --num-strata, which loads the "
            "examples of the data set block by block"
        )
    if name == "label_flip" and number is not None and not 0 <= number <= 1:
        raise ValueError(f"attack is {config.attack!r}; expected a share in [0, 1]")
    try:
        Attack(name, number, Attackers(np.ones(1, bool))).on(fedavg(1.0))
    except ValueError as error:
        raise ValueError(f"attack is {config.attack!r}: {error}") from error


def parse(attack: str) -> tuple[str, float | None]:
    """Returns the name and the number of an attack.

    Raises:
        ValueError: an unknown name, or a number that is missing, not finite or not expected.

    Example:
        >>> parse("alie"), parse("alie:1.5")
        (('alie', None), ('alie', 1.5))
    """
    name, colon, text = attack.partition(":")
    if name not in ATTACKS:
        raise ValueError(
            f"attack is {attack!r}; expected none or one of {', '.join(ATTACKS)}"
            f"{did_you_mean(name, ATTACKS)}"
        )
    if not colon:
        return name, None
    meaning = ATTACKS[name].number
    if meaning is None:
        raise ValueError(f"attack is {attack!r}; expected {name} without a number")
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not np.isfinite(number):
        raise ValueError(f"attack is {attack!r}; expected {name}:NUMBER, the {meaning}")
    return name, number
