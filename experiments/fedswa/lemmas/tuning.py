r"""Step sizes that turn the descent of one round into a rate: Lemmas G.5 and G.6.

Source: Section G.1 (see :mod:`fedjax_sim.theory.fedswa`), from Karimireddy et al. (2020).
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory import Scalar, at_most, non_negative, positive, smallest, where_valid


class Tuned(NamedTuple):
    """A step size and the bound with it."""

    step: Array
    bound: Array


def linear_rate(
    *, initial: Scalar, contraction: Scalar, noise: Scalar, max_step: Scalar, rounds: Scalar
) -> Tuned:
    r"""Lemma G.5: the step for ``d_r <= (1 - mu step) d_{r-1} - step e_r + c step^2``.

    .. math:: \frac{\sum_{r=1}^{R+1} w_r e_r}{\sum_r w_r}
        \le 3 \mu d_0 e^{-\mu \eta R} + c \eta, \quad w_r = (1 - \mu \eta)^{1-r}, \quad
        \eta = \min\Bigl\{\eta_{max}, \frac{\log \max\{2, \mu^2 R d_0 / c\}}{\mu R}\Bigr\}

    The bound is of order ``mu d_0 exp(-mu max_step R) + c / (mu R)``, up to the logarithm.

    Args:
        initial: d_0.
        contraction: mu.
        noise: c.
        max_step: the largest step, at most ``1 / mu``.
        rounds: R; there are R + 1 rounds.

    Returns:
        Step and bound; NaN with a warning where ``max_step > 1 / mu`` or
        ``rounds < 1 / (2 mu max_step)``.
    """
    mu, max_step, R = positive(contraction=contraction, max_step=max_step, rounds=rounds)
    initial, noise = non_negative(initial=initial, noise=noise)
    tiny = jnp.finfo(noise.dtype).tiny
    ratio = mu**2 * R * initial / jnp.maximum(noise, tiny)
    # The paper has max(1, ratio), at which the step may be 0 (see the errata).
    tuned = jnp.log(jnp.maximum(2, ratio)) / (mu * R)
    step = jnp.where(noise > 0, smallest(max_step, tuned), max_step)
    value = 3 * mu * initial * jnp.exp(-mu * step * R) + noise * step
    valid = at_most(max_step, 1 / mu) & at_most(1 / (2 * mu * max_step), R)
    text = "1 / (2 mu rounds) <= max_step <= 1 / mu"
    return Tuned(where_valid(step, valid, text), jnp.where(valid, value, jnp.nan))


def sublinear_rate(
    *,
    initial: Scalar,  # d_0
    max_step: Scalar,  # the largest step
    rounds: Scalar,  # R; there are R + 1 rounds
    noise: Scalar = 0.0,  # c_1
    squared_noise: Scalar = 0.0,  # c_2
) -> Tuned:
    r"""Lemma G.6: the step for ``d_r <= d_{r-1} - step e_r + c_1 step^2 + c_2 step^3``.

    .. math:: \frac{1}{R + 1} \sum_{r=1}^{R+1} e_r \le \frac{d_0}{\eta_{max} (R + 1)}
        + 2 \sqrt{\frac{c_1 d_0}{R + 1}} + 2 \Bigl(\frac{d_0}{R + 1}\Bigr)^{2/3} c_2^{1/3}, \quad
        \eta = \min\Bigl\{\eta_{max}, \sqrt{\frac{d_0}{c_1 (R + 1)}},
        \sqrt[3]{\frac{d_0}{c_2 (R + 1)}}\Bigr\}
    """
    initial, max_step = positive(initial=initial, max_step=max_step)
    rounds, c1, c2 = non_negative(rounds=rounds, noise=noise, squared_noise=squared_noise)
    tiny = jnp.finfo(initial.dtype).tiny
    mean = initial / (rounds + 1)
    # Eq. (61) and the case after it; without noise an entry is infinite or very large.
    step = smallest(
        max_step, jnp.sqrt(mean / jnp.maximum(c1, tiny)), jnp.cbrt(mean / jnp.maximum(c2, tiny))
    )
    value = mean / max_step + 2 * jnp.sqrt(c1 * mean) + 2 * mean ** (2 / 3) * c2 ** (1 / 3)
    return Tuned(step, value)
