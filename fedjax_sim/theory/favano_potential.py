r"""How FAVANO's clients stay together: the potential of its models contracts.

.. math:: \Phi_t = \|w_t - \mu_t\|^2 + \sum_i \|w_t^i - \mu_t\|^2

of the models that :func:`fedjax_sim.diagnostics.potential.potential` takes.  Constants are those of
:mod:`fedjax_sim.theory.favano`.

Slips of "FAVANO: Federated AVeraging with Asynchronous Nodes", arXiv:2305.16099:

* Equation 81 keeps less than it has: Equations 78 and 79 give the contraction
  ``s / (2 n (s + 1))`` for every s, not ``s (n - s) / (2 n (n + 1) (s + 1))``, which is 0 where all
  clients are contacted and agree afterwards.
* With the printed contraction the last step of Lemma B.4 fails for s near n, and for s = 1 if b is
  small; with the larger one it holds for all s from 2, and for s = 1 if b is at least 2.4.
"""

import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory.constants import (
    Form,
    at_most,
    check_choice,
    non_negative,
    positive,
    where_valid,
)
from fedjax_sim.theory.favano import possible
from fedjax_sim.types import Scalar


def contraction(*, n: Scalar, s: Scalar, form: Form = "corrected") -> Array:
    r"""kappa of :func:`potential_bound`: ``E Phi_{t+1} <= (1 - kappa) Phi_t`` without gradients.

    ``s / (2 n (s + 1))``; printed, ``s (n - s) / (2 n (n + 1) (s + 1))``.

    Raises:
        ValueError: a constant that is not positive, an unknown form.

    References:
        Equation 6; Equations 78 and 79.

    Example:
        >>> [float(contraction(n=3, s=3, form=form)) for form in ("corrected", "printed")]
        [0.125, 0.0]
    """
    check_choice("form", form, Form)
    n, s = positive(n=n, s=s)
    kappa = s / (2 * n * (s + 1))
    return kappa * (n - s) / (n + 1) if form == "printed" else kappa


def contraction_at_rest(*, n: Scalar, s: Scalar) -> Array:
    r"""The largest kappa with ``E Phi_{t+1} <= (1 - kappa) Phi_t`` if nobody moves.

    .. math:: 1 - \kappa = \frac{n - s}{n} \Bigl(1 + \frac{s}{(n - 1)(s + 1)}\Bigr)

    It is attained where the server's model is the clients' mean.  With gradients a bound has to
    give some of it up.

    Raises:
        ValueError: a constant that is not positive.

    Example:
        >>> round(float(contraction_at_rest(n=7, s=1)), 4)
        0.0714
    """
    n, s = positive(n=n, s=s)
    others = jnp.maximum(n - 1, 1)  # n = 1: the first factor is 0
    return 1 - (n - s) / n * (1 + s / (others * (s + 1)))


def potential_bound(
    potential: Scalar,
    progress: Scalar,
    *,
    lr: Scalar,
    n: Scalar,
    s: Scalar,
    form: Form = "corrected",
) -> Array:
    r"""``E Phi_{t+1}``, from the potential and the clients' progress in that server step.

    .. math:: (1 - \kappa) \Phi_t + 3 \frac{s^2}{n} \eta^2 \sum_i E\|h_i / \alpha_i\|^2

    Args:
        potential: ``E Phi_t``.
        progress: the sum over ALL clients of ``E||h_i / alpha_i||^2``, h_i the sum of the
            gradients that client i would have used if contacted.
        lr: eta.
        form: of kappa, see :func:`contraction`.

    Returns:
        The bound; NaN, and for concrete arguments a warning, where ``s > n``.

    Raises:
        ValueError: a constant that is not positive (negative for potential, progress), an unknown
            form.

    References:
        Equation 6.

    Example:
        >>> float(potential_bound(8.0, 0.0, lr=0.1, n=3, s=3))
        7.0
    """
    potential, progress = non_negative(potential=potential, progress=progress)
    kappa = contraction(n=n, s=s, form=form)
    lr, n, s = positive(lr=lr, n=n, s=s)
    value = (1 - kappa) * potential + 3 * (s * lr) ** 2 / n * progress
    return where_valid(value, s <= n, "s <= n")


def contraction_margin(*, n: Scalar, s: Scalar, b: Scalar, form: Form = "corrected") -> Array:
    """``n kappa - 0.12 / b - 1 / 5``: where it is negative Lemma B.4's proof fails at its rate.

    Raises:
        ValueError: a constant that is not positive, an unknown form.

    References:
        From Equation 165 to Equation 167, at ``eta = 1 / (20 s L b)``.

    Example:
        >>> s = jnp.arange(1, 101)
        >>> held = s[contraction_margin(n=100, s=s, b=1.0, form="printed") >= 0]
        >>> int(held.min()), int(held.max())
        (2, 33)
    """
    kappa = contraction(n=n, s=s, form=form)
    n, b = positive(n=n, b=b)
    return n * kappa - 0.12 / b - 0.2


def next_potential_bound(
    potential: Scalar,
    gradient: Scalar,
    *,
    lr: Scalar,
    L: Scalar,
    sigma: Scalar,
    G: Scalar,
    B: Scalar,
    a: Scalar,
    b: Scalar,
    n: Scalar,
    s: Scalar,
    K: Scalar,
    form: Form = "corrected",
) -> Array:
    r"""``E Phi_{t+1}``, from the potential and the gradient at the mean model.

    .. math:: \Bigl(1 - \frac{1}{5 n}\Bigr) \Phi_t + 3 s^2 \eta^2 \bigl(a \sigma^2 + 8 b G^2\bigr)
        + 24 B^2 s^2 \eta^2 b\, E\|\nabla f(\mu_t)\|^2

    Args:
        potential: ``E Phi_t``.
        gradient: ``E||grad f(mu_t)||^2``.
        lr: eta.
        form: of kappa, see :func:`contraction`; ``"corrected"`` also has Lemma B.2.2's condition,
            ``lr <= 1 / (4 L K^2)``.

    Returns:
        The bound; NaN, and for concrete arguments a warning, where ``lr > 1 / (20 s L b)``, or
        ``n kappa - 48 (s L lr)^2 b < 1 / 5``, ``B < 1`` or ``s > n``.

    Raises:
        ValueError: a constant that is not positive (negative for potential, gradient, sigma, G), an
            unknown form.

    References:
        Lemma B.4, Equation 167.

    Example:
        >>> constants = dict(L=1.0, sigma=0.0, G=0.0, B=1.0, a=1.0, b=1.0, n=10, s=2, K=1)
        >>> round(float(next_potential_bound(1.0, 0.0, lr=0.01, **constants)), 3)
        0.98
    """
    potential, gradient = non_negative(potential=potential, gradient=gradient)
    kappa = contraction(n=n, s=s, form=form)
    usable = possible(B, n, s)
    lr, L, B, a, b = positive(lr=lr, L=L, B=B, a=a, b=b)
    n, s, K = positive(n=n, s=s, K=K)
    sigma, G = non_negative(sigma=sigma, G=G)
    noise = 3 * (s * lr) ** 2 * (sigma**2 * a + 8 * b * G**2)
    value = (1 - 1 / (5 * n)) * potential + noise + 24 * (B * s * lr) ** 2 * b * gradient
    limits = [1 / (20 * s * L * b)] + ([] if form == "printed" else [1 / (4 * L * K**2)])
    contracts = at_most(48 * (s * L * lr) ** 2 * b + 0.2, n * kappa)
    valid = at_most(lr, *limits) & contracts & usable
    names = "lr <= 1 / (20 s L b)" + ("" if form == "printed" else ", lr <= 1 / (4 L K^2)")
    text = f"{names}, n kappa - 48 (s L lr)^2 b >= 1 / 5, B >= 1, s <= n"
    return where_valid(value, valid, text)
