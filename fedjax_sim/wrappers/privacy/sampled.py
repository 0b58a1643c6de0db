r"""Epsilon of sampled privacy losses, for sampling under which no loss distribution is known.

The samples come from the package jax-privacy, on the host.

References:
    Choquette-Choo, Ganesh, Haque, Steinke, Thakurta, "Near Exact Privacy Amplification for Matrix
        Mechanisms", 2024, https://arxiv.org/abs/2410.06266.
    b-min-sep sampling: https://arxiv.org/abs/2602.09338.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedjax_sim.checks import import_extra
from fedjax_sim.wrappers.privacy.events import losses_event

LEAST, SHOWN = 40_000, 30.0  # samples per direction: at least these, and SHOWN / delta
WRONG = 1e-6  # largest probability, over the samples, of an epsilon that is too small
_CHUNK = 20_000


def epsilon_of_losses(losses: list[np.ndarray], delta: float) -> float:
    r"""Returns an epsilon that is too small with a probability of at most ``WRONG``.

    The mean of n independent :math:`(1 - e^{\epsilon - L})_+`, which are in [0, 1], falls to m or
    less with a probability of at most :math:`\exp(-n\,\mathrm{kl}(m, \delta))` where their
    expectation is :math:`\delta` (Hoeffding, 1963, Theorem 1).  The mean falls in epsilon, so only
    its value at the true epsilon can be wrong.

    Args:
        losses: samples of the losses, one array per direction.
        delta: in (0, 1).
    """
    size = min(map(len, losses))
    enough = math.log(len(losses) / WRONG) / size
    if -math.log1p(-delta) < enough:
        raise ValueError(
            f"delta is {delta:g}; expected at least {-math.expm1(-enough):.3g}, the smallest that "
            f"{size} sampled losses can show"
        )

    def kl(m: float) -> float:
        first = 0.0 if m == 0 else m * math.log(m / delta)
        return first + (1 - m) * math.log((1 - m) / (1 - delta))

    low, high = 0.0, delta
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if kl(middle) >= enough else (low, middle)
    most = low

    def smallest(values: np.ndarray) -> float:
        below, above = 0.0, max(float(values.max()), 0.0)
        for _ in range(60):
            middle = (below + above) / 2
            mean = np.mean(-np.expm1(np.minimum(middle - values, 0.0)))
            below, above = (below, middle) if mean <= most else (middle, above)
        return above

    return max(map(smallest, losses))


class MonteCarlo:
    """Accountant, with dp-accounting's interface, of one event of sampled losses."""

    def __init__(self) -> None:
        self._event: Any = None

    def supports(self, event: Any) -> bool:
        """Returns True for an event of sampled losses."""
        return isinstance(event, losses_event())

    def compose(self, event: Any, count: int = 1) -> MonteCarlo:
        """Takes the event of all rounds."""
        if count != 1 or self._event is not None:
            raise ValueError(f"count is {count}; expected one event of sampled losses")
        self._event = event
        return self

    def get_epsilon(self, delta: float) -> float:
        """Returns epsilon; without an event 0."""
        if self._event is None:
            return 0.0
        number = math.ceil(max(LEAST, SHOWN / delta) / _CHUNK)
        losses = [_losses(self._event, number, present) for present in (True, False)]
        return epsilon_of_losses(losses, delta)


def _losses(event: Any, chunks: int, present: bool) -> np.ndarray:
    """Returns sampled losses with the client (P of Q), or without it (Q of P)."""
    samples = import_extra("jax_privacy.experimental.monte_carlo.sample_generation", "privacy")
    rules = import_extra("jax_privacy.batch_selection", "privacy")
    rule = rules.BMinSepSampling(event.probability, event.num_rounds, event.separation)
    column, z = np.asarray(event.coefficients), event.noise_multiplier
    random, parts = np.random.default_rng(0), []
    for _ in range(chunks):
        drawn = samples.generate_sample(rule, z, column, random, present, _CHUNK)
        # At probability 1 the logarithm of the probability of waiting is -inf.
        with np.errstate(divide="ignore"):
            parts.append(samples.compute_privacy_loss(rule, drawn, z, column))
    return np.concatenate(parts) if present else -np.concatenate(parts)
