r"""Units of time to a mean squared gradient of eps: FAVANO beside four other methods.

Table 1 (see :mod:`fedjax_sim.theory.favano`): orders of the number of server steps, numbers taken
as 1, times C = ``time_per_step``, the length of a server step
(:mod:`experiments.favano.step_times`).  ``Delta`` is that of the initial model.  Compare how
such orders change, not their values.  Numbers of steps must not depend on the units of f and of
models; where the printed table violates that, the errata give the correction.
"""

import jax.numpy as jnp
from jax import Array

from experiments.favano.steps import corollary_steps
from fedjax_sim.theory import ProblemConstants, ProgressConstants, Scalar, non_negative, positive


def fedavg_units(
    constants: ProblemConstants,
    *,
    eps: Scalar,
    local_steps: Scalar,
    clients: Scalar,
    cohort_size: Scalar,
    time_per_step: Scalar = 1.0,
) -> Array:
    r"""FedAvg with s of n clients per round and K local steps.

    .. math:: \Bigl(\frac{\Delta L (\sigma^2 + (1 - s / n) K G^2)}{s K \epsilon^2}
        + \frac{\Delta L G}{\epsilon^{3/2}} + \frac{L \Delta B^2}{\epsilon}\Bigr) C

    Needs L, sigma, dissimilarity (G), dissimilarity_factor (B), Delta.
    """
    L, B, F = positive(constants, "L", "dissimilarity_factor", "Delta")
    n, s, K = positive(clients=clients, cohort_size=cohort_size, local_steps=local_steps)
    eps, time = positive(eps=eps, time_per_step=time_per_step)
    sigma, G = non_negative(constants, "sigma", "dissimilarity")
    sampling = (1 - s / n) * K * G**2
    noise, drift = F * L * (sigma**2 + sampling), F * L * G
    return (noise / (s * K * eps**2) + drift / eps**1.5 + L * F * B**2 / eps) * time


def fedbuff_units(
    constants: ProblemConstants,
    *,
    eps: Scalar,
    clients: Scalar,
    cohort_size: Scalar,  # s, the size of the buffer
    max_staleness: Scalar,  # tau_max
    time_per_step: Scalar = 1.0,
) -> Array:
    r"""FedBuff, whose updates are at most tau_max server steps old.

    .. math:: \Bigl(\frac{\Delta L (\sigma^2 + G^2)}{\epsilon^2}
        + \frac{\Delta L \sqrt{(\tau_{\max}^2 / s^2 + 1)(\sigma^2 + n G^2)}}{\epsilon^{3/2}}
        + \frac{\Delta L}{\epsilon}\Bigr) C

    Needs L, sigma, dissimilarity (G), Delta.
    """
    L, F, eps, time = positive(constants, "L", "Delta", eps=eps, time_per_step=time_per_step)
    n, s = positive(clients=clients, cohort_size=cohort_size)
    sigma, G, tau_max = non_negative(
        constants, "sigma", "dissimilarity", max_staleness=max_staleness
    )
    drift = jnp.sqrt(((tau_max / s) ** 2 + 1) * (sigma**2 + n * G**2))
    return F * L * ((sigma**2 + G**2) / eps**2 + drift / eps**1.5 + 1 / eps) * time


def async_sgd_units(
    constants: ProblemConstants,
    *,
    eps: Scalar,
    cohort_size: Scalar,  # s, the number of clients that compute at a time
    mean_staleness: Scalar,  # tau_avg, the mean delay of a gradient in server steps
    max_staleness: Scalar,  # tau_max, the largest delay
    time_per_step: Scalar = 1.0,
) -> Array:
    r"""Asynchronous SGD, with a server step for every gradient that arrives.

    .. math:: \Bigl(\frac{\Delta L (3 \sigma^2 + 4 G^2)}{\epsilon^2}
        + \frac{\Delta L G \sqrt{s \tau_{avg}}}{\epsilon^{3/2}}
        + \frac{\Delta L \sqrt{s \tau_{\max}}}{\epsilon}\Bigr) C

    Needs L, sigma, dissimilarity (G), Delta.
    """
    L, F, eps, time = positive(constants, "L", "Delta", eps=eps, time_per_step=time_per_step)
    (s,) = positive(cohort_size=cohort_size)
    sigma, G = non_negative(constants, "sigma", "dissimilarity")
    tau_avg, tau_max = non_negative(mean_staleness=mean_staleness, max_staleness=max_staleness)
    noise = F * L * (3 * sigma**2 + 4 * G**2) / eps**2
    drift = F * L * G * jnp.sqrt(s * tau_avg) / eps**1.5
    return (noise + drift + F * L * jnp.sqrt(s * tau_max) / eps) * time


def quafl_units(
    constants: ProblemConstants,
    *,
    eps: Scalar,
    local_steps: Scalar,
    mean_steps: Scalar,
    clients: Scalar,
    cohort_size: Scalar,
    time_per_step: Scalar = 1.0,
) -> Array:
    r"""QuAFL, whose clients do on average E (``mean_steps``) of at most K local steps.

    .. math:: \Bigl(\frac{\Delta L K (\sigma^2 + 2 K G^2)}{E^2 \epsilon^2}
        + \frac{n \sqrt n}{E \sqrt{E s}} \frac{\Delta K L \sqrt{\sigma^2 + 2 K G^2}}{\epsilon^{3/2}}
        + \frac{n \sqrt n \Delta B K^2 L}{E \sqrt s\, \epsilon}\Bigr) C

    Needs L, sigma, dissimilarity (G), dissimilarity_factor (B), Delta.
    """
    L, B, F = positive(constants, "L", "dissimilarity_factor", "Delta")
    n, s, K = positive(clients=clients, cohort_size=cohort_size, local_steps=local_steps)
    E, eps, time = positive(mean_steps=mean_steps, eps=eps, time_per_step=time_per_step)
    sigma, G = non_negative(constants, "sigma", "dissimilarity")
    noise = sigma**2 + 2 * K * G**2
    spread = n**1.5 / (E * jnp.sqrt(s))
    drift = spread * jnp.sqrt(noise / E) / eps**1.5
    return F * L * K * (noise / (E * eps) ** 2 + drift + spread * B * K / eps) * time


def favano_units(
    constants: ProblemConstants,
    *,
    eps: Scalar,
    progress: ProgressConstants,
    local_steps: Scalar,
    clients: Scalar,
    cohort_size: Scalar,
    time_per_step: Scalar = 1.0,
) -> Array:
    """FAVANO: :func:`~experiments.favano.steps.corollary_steps` times its time per step.

    Needs L, sigma, dissimilarity (G), dissimilarity_factor (B), Delta.
    """
    (time,) = positive(time_per_step=time_per_step)
    steps = corollary_steps(
        constants,
        eps=eps,
        progress=progress,
        local_steps=local_steps,
        clients=clients,
        cohort_size=cohort_size,
    )
    return steps * time
