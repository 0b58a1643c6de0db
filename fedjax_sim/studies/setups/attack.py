"""Options of attacks: attackers of all algorithms, and what they send or do."""

from typing import Annotated, Literal, NamedTuple

import jax
import numpy as np
import pydantic

from fedjax_sim.data import FederatedData
from fedjax_sim.studies.setups.fields import (
    Count,
    Finite,
    NotNegative,
    PositiveProbability,
    Probability,
    group,
    without,
)
from fedjax_sim.types import FedAlgorithm
from fedjax_sim.wrappers import Attackers as Mask
from fedjax_sim.wrappers import Trigger, attacks, triggered


@group
class NoAttack:
    """No client attacks."""

    kind: Literal["none"] = "none"


@group
class Attackers:
    """Clients that attack in all their visits, drawn with the partition's seed."""

    fraction: PositiveProbability = 0.2
    """Fraction of the clients that attack."""


@group
class SignFlip(Attackers):
    """The negative of the upload."""

    scale: Finite = 1.0
    """Factor of the negative."""
    kind: Literal["sign_flip"] = "sign_flip"


@group
class Scaling(Attackers):
    """A multiple of the upload."""

    factor: Finite = 10.0
    """Factor of the upload."""
    kind: Literal["scaling"] = "scaling"


@group
class Gaussian(Attackers):
    """Normal numbers."""

    std: NotNegative = 1.0
    """Standard deviation."""
    kind: Literal["gaussian"] = "gaussian"


@group
class Infinity(Attackers):
    """Infinite numbers."""

    kind: Literal["infinity"] = "infinity"


@group
class Alie(Attackers):
    """The honest mean minus z standard deviations."""

    z: Finite | None = None
    """Number of standard deviations; default: by the numbers of clients."""
    kind: Literal["alie"] = "alie"


@group
class InnerProduct(Attackers):
    """A negative multiple of the honest mean."""

    eps: Finite = 0.1
    """Factor of the negative mean."""
    kind: Literal["inner_product"] = "inner_product"


@group
class Mimic(Attackers):
    """The upload of one honest client."""

    warmup: Count = 20
    """Rounds in which the client is chosen."""
    kind: Literal["mimic"] = "mimic"


@group
class LabelFlip(Attackers):
    """Training on label K - 1 - y."""

    share: Probability = 1.0
    """Share of the attackers' examples."""
    kind: Literal["label_flip"] = "label_flip"


@group
class Backdoor(Attackers):
    """Training on a pattern of pixels with label 0; its success is backdoor/accuracy."""

    factor: Finite = 1.0
    """Factor of the upload."""
    kind: Literal["backdoor"] = "backdoor"


Attack = Annotated[
    NoAttack | SignFlip | Scaling | Gaussian | Infinity | Alie | InnerProduct | Mimic | LabelFlip
    | Backdoor,
    pydantic.Field(discriminator="kind"),
]  # fmt: skip


class Attacked(NamedTuple):
    """The attack of a comparison and its attackers, which are the same for all seeds."""

    options: Attack
    attackers: Mask

    def on(self, algorithm: FedAlgorithm) -> FedAlgorithm:
        """Returns an algorithm under attack."""
        options = self.options
        if isinstance(options, NoAttack | LabelFlip):  # the data change only
            return algorithm
        if isinstance(options, Backdoor):
            return attacks.scaling(algorithm, self.attackers, options.factor)
        values = without(options, "kind", "fraction")
        return getattr(attacks, options.kind)(algorithm, self.attackers, **values)

    def poisoned(self, data: FederatedData, num_classes: int) -> FederatedData:
        """Returns the examples that the clients train on."""
        if isinstance(self.options, LabelFlip):
            return attacks.flip_labels(data, self.attackers, num_classes, self.options.share)
        if isinstance(self.options, Backdoor):
            return attacks.poison(data, self.attackers, trigger(data.examples["x"]))
        return data


def trigger(images: np.ndarray) -> Trigger:
    """Returns the pattern of the backdoor: 5 x 5 pixels, less for images with edges below 20."""
    size = min([5, *(edge // 4 for edge in np.shape(images)[1:3])])
    return Trigger(max(size, 1), value=float(np.max(images, initial=0)))


def attacked_test(test: dict[str, np.ndarray], images: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the test examples with the backdoor's pattern for clients with these images."""
    x = test["x"]
    if x.dtype == np.uint8 and images.dtype != np.uint8:
        # Noise has made numbers in [0, 1] of the clients' pixels only.
        x = x.astype(images.dtype) / images.dtype.type(255)
    return triggered({**test, "x": x}, trigger(images))


def attack_of(options: Attack, num_clients: int, seed: int) -> Attacked | None:
    """Returns the attack that the options describe; None without one.

    A larger fraction adds attackers to those of a smaller one.
    """
    if isinstance(options, NoAttack):
        return None
    key = jax.random.fold_in(jax.random.key(seed), 1)
    attackers = attacks.random_clients(key, num_clients, options.fraction)
    if not np.any(attackers.mask):
        raise ValueError(
            f"attack.fraction is {options.fraction}, which leaves no attackers of {num_clients} "
            "clients; expected a larger fraction"
        )
    return Attacked(options, attackers)
