r"""Units of time to a mean squared gradient of eps: FAVANO beside four other methods.

Table 1 of "FAVANO: Federated AVeraging with Asynchronous Nodes", arXiv:2305.16099: orders of the
number of server steps, constants taken as 1, times ``time_per_step``, what one of them lasts
(:mod:`fedjax_sim.theory.favano_step_times`).  Constants are those of
:mod:`fedjax_sim.theory.favano`, F that of the first model.  Compare how such orders change, not
their values.

Slips of the paper, corrected by default and kept under ``form="printed"``; each is seen from the
units, those of f and of a squared gradient, which a number of steps must not have:

* FedAvg's first term lacks ``F L`` on ``K G^2``, its second has ``L^(1/2)`` for ``L``.
* AsyncSGD's last term has F under the root and no L.
* FAVANO's middle term, see :func:`fedjax_sim.theory.favano_steps.corollary_steps`.
* The rows of QuAFL and FAVANO lack their time per step.
"""

import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory.constants import Form, check_choice, non_negative, positive
from fedjax_sim.theory.favano_steps import corollary_steps
from fedjax_sim.types import Scalar


def fedavg_units(
    eps: Scalar,
    *,
    L: Scalar,
    sigma: Scalar,
    G: Scalar,
    B: Scalar,
    F: Scalar,
    n: Scalar,
    s: Scalar,
    K: Scalar,
    time_per_step: Scalar = 1.0,
    form: Form = "corrected",
) -> Array:
    r"""FedAvg with s of n clients a round and K local steps.

    .. math:: \Bigl(\frac{F L (\sigma^2 + (1 - s / n) K G^2)}{s K \epsilon^2}
        + \frac{F L G}{\epsilon^{3/2}} + \frac{L F B^2}{\epsilon}\Bigr) C

    Raises:
        ValueError: a constant that is not positive (negative for sigma, G), an unknown form.

    Example:
        >>> float(fedavg_units(0.5, L=1.0, sigma=1.0, G=0.0, B=1.0, F=1.0, n=4, s=2, K=2))
        3.0
    """
    check_choice("form", form, Form)
    eps, L, B, F, time = positive(eps=eps, L=L, B=B, F=F, time_per_step=time_per_step)
    n, s, K = positive(n=n, s=s, K=K)
    sigma, G = non_negative(sigma=sigma, G=G)
    sampling = (1 - s / n) * K * G**2
    if form == "printed":
        noise, drift = F * L * sigma**2 + sampling, F * jnp.sqrt(L) * G
    else:
        noise, drift = F * L * (sigma**2 + sampling), F * L * G
    return (noise / (s * K * eps**2) + drift / eps**1.5 + L * F * B**2 / eps) * time


def fedbuff_units(
    eps: Scalar,
    *,
    L: Scalar,
    sigma: Scalar,
    G: Scalar,
    F: Scalar,
    n: Scalar,
    s: Scalar,
    tau_max: Scalar,
    time_per_step: Scalar = 1.0,
) -> Array:
    r"""FedBuff, whose updates are at most ``tau_max`` server steps old.

    .. math:: \Bigl(\frac{F L (\sigma^2 + G^2)}{\epsilon^2}
        + \frac{F L \sqrt{(\tau_{\max}^2 / s^2 + 1)(\sigma^2 + n G^2)}}{\epsilon^{3/2}}
        + \frac{F L}{\epsilon}\Bigr) C

    Args:
        s: size of the buffer.

    Raises:
        ValueError: a constant that is not positive (negative for sigma, G, tau_max).

    Example:
        >>> float(fedbuff_units(0.5, L=1.0, sigma=0.0, G=0.0, F=1.0, n=4, s=2, tau_max=3))
        2.0
    """
    eps, L, F, time = positive(eps=eps, L=L, F=F, time_per_step=time_per_step)
    n, s = positive(n=n, s=s)
    sigma, G, tau_max = non_negative(sigma=sigma, G=G, tau_max=tau_max)
    drift = jnp.sqrt(((tau_max / s) ** 2 + 1) * (sigma**2 + n * G**2))
    return F * L * ((sigma**2 + G**2) / eps**2 + drift / eps**1.5 + 1 / eps) * time


def async_sgd_units(
    eps: Scalar,
    *,
    L: Scalar,
    sigma: Scalar,
    G: Scalar,
    F: Scalar,
    s: Scalar,
    tau_avg: Scalar,
    tau_max: Scalar,
    time_per_step: Scalar = 1.0,
    form: Form = "corrected",
) -> Array:
    r"""Asynchronous SGD, a server step for every gradient that arrives.

    .. math:: \Bigl(\frac{F L (3 \sigma^2 + 4 G^2)}{\epsilon^2}
        + \frac{F L G \sqrt{s \tau_{avg}}}{\epsilon^{3/2}}
        + \frac{F L \sqrt{s \tau_{\max}}}{\epsilon}\Bigr) C

    Printed, :math:`\sqrt{s \tau_{\max} F}` in the last term.

    Args:
        s: clients that compute at a time.
        tau_avg: mean delay of a gradient in server steps.
        tau_max: largest delay.

    Raises:
        ValueError: a constant that is not positive (negative for sigma, G and the delays), an
            unknown form.

    Example:
        >>> constants = dict(L=1.0, sigma=0.0, G=0.0, F=1.0, s=4, tau_avg=1, tau_max=4)
        >>> float(async_sgd_units(0.5, **constants))
        8.0
    """
    check_choice("form", form, Form)
    eps, L, F, s, time = positive(eps=eps, L=L, F=F, s=s, time_per_step=time_per_step)
    sigma, G, tau_avg, tau_max = non_negative(sigma=sigma, G=G, tau_avg=tau_avg, tau_max=tau_max)
    noise = F * L * (3 * sigma**2 + 4 * G**2) / eps**2
    drift = F * L * G * jnp.sqrt(s * tau_avg) / eps**1.5
    scale = jnp.sqrt(F) if form == "printed" else F * L
    return (noise + drift + scale * jnp.sqrt(s * tau_max) / eps) * time


def quafl_units(
    eps: Scalar,
    *,
    L: Scalar,
    sigma: Scalar,
    G: Scalar,
    B: Scalar,
    F: Scalar,
    n: Scalar,
    s: Scalar,
    K: Scalar,
    mean_steps: Scalar,
    time_per_step: Scalar = 1.0,
) -> Array:
    r"""QuAFL whose clients do on average E (``mean_steps``) of at most K local steps.

    .. math:: \Bigl(\frac{F L K (\sigma^2 + 2 K G^2)}{E^2 \epsilon^2}
        + \frac{n \sqrt n}{E \sqrt{E s}} \frac{F K L \sqrt{\sigma^2 + 2 K G^2}}{\epsilon^{3/2}}
        + \frac{n \sqrt n F B K^2 L}{E \sqrt s\, \epsilon}\Bigr) C

    Raises:
        ValueError: a constant that is not positive (negative for sigma, G).

    Example:
        >>> constants = dict(L=1.0, sigma=0.0, G=0.0, B=1.0, F=1.0, n=4, s=4, K=3, mean_steps=2)
        >>> float(quafl_units(0.5, **constants))  # 8 * 9 / (2 * 2 * 0.5)
        36.0
    """
    eps, L, B, F, time = positive(eps=eps, L=L, B=B, F=F, time_per_step=time_per_step)
    n, s, K, E = positive(n=n, s=s, K=K, mean_steps=mean_steps)
    sigma, G = non_negative(sigma=sigma, G=G)
    noise = sigma**2 + 2 * K * G**2
    spread = n**1.5 / (E * jnp.sqrt(s))
    drift = spread * jnp.sqrt(noise / E) / eps**1.5
    return F * L * K * (noise / (E * eps) ** 2 + drift + spread * B * K / eps) * time


def favano_units(
    eps: Scalar,
    *,
    L: Scalar,
    sigma: Scalar,
    G: Scalar,
    B: Scalar,
    F: Scalar,
    a: Scalar,
    b: Scalar,
    n: Scalar,
    s: Scalar,
    K: Scalar,
    time_per_step: Scalar = 1.0,
    form: Form = "corrected",
) -> Array:
    """FAVANO: :func:`~fedjax_sim.theory.favano_steps.corollary_steps` times its time per step.

    Raises:
        ValueError: a constant that is not positive (negative for sigma, G), an unknown form.

    Example:
        >>> constants = dict(L=1.0, sigma=0.0, G=0.0, B=1.0, F=1.0, a=1.0, b=1.0, n=4, s=2, K=3)
        >>> float(favano_units(0.5, **constants, time_per_step=7.0))
        168.0
    """
    (time,) = positive(time_per_step=time_per_step)
    steps = corollary_steps(
        eps, L=L, sigma=sigma, G=G, B=B, F=F, a=a, b=b, n=n, s=s, K=K, form=form
    )
    return steps * time
