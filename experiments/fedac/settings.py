"""Settings of the FedAc paper's figures on a9a and epsilon."""

from typing import NamedTuple

_FOUR = ("fedavg", "fedac_i", "mb_sgd", "mb_ac_sgd")
_FIVE = (*_FOUR, "vanilla_fedac")


class Setting(NamedTuple):
    """A figure of the paper."""

    dataset: str
    l2: float  # also the estimate of the strong convexity
    lrs: tuple[float, ...]
    methods: tuple[str, ...]
    optimum: float  # F*, from the authors' program


def rates(first: float, count: int) -> tuple[float, ...]:
    """1, 2, 5, 10, ... times ``first``, which is a power of 10 or 5 times one."""
    steps = [float(f"{m}e{e}") for e in range(-4, 3) for m in (1, 2, 5)]
    return tuple(steps[steps.index(first) :][:count])


# The authors have no vanilla FedAc on a9a-1e-2.
SETTINGS = {
    "a9a-1e-2": Setting("a9a", 1e-2, rates(1e-3, 13), _FIVE, 0.3727237615595949),
    "a9a-1e-3": Setting(
        "a9a", 1e-3, rates(1e-3, 13), (*_FIVE, "fedac_ii_code"), 0.3333407530091771
    ),
    "a9a-1e-4": Setting(
        "a9a", 1e-4, rates(1e-3, 12), (*_FIVE, "fedac_ii_code"), 0.3245069255709821
    ),
    "epsilon-1e-4": Setting("epsilon", 1e-4, rates(5e-3, 13), _FOUR, 0.47130400753628965),
}
EVERY_RATE = rates(1e-4, 19)  # beyond the paper's grids, too
