r"""Adaptive clipping: the clip follows a quantile of the norms of the uploads.

References:
    Andrew, Thakkar, McMahan, Ramaswamy, "Differentially Private Learning with Adaptive Clipping",
        2021, https://arxiv.org/abs/1905.03871.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.checks import check_at_least, check_at_most, check_positive, is_concrete
from fedjax_sim.types import Scalar, Upload


class AdaptiveClip(NamedTuple):
    """Rule of adaptive clipping; made by :func:`adaptive_clip`."""

    quantile: Scalar
    lr: Scalar
    initial: Scalar
    count_std: Scalar | None

    def check(
        self,
        noise_multiplier: Scalar,
        expected_uploads: Scalar,
        fixed_clip_only: str | None,
        most_examples: Scalar | None,
    ) -> None:
        """Refuses what does not fit."""
        if fixed_clip_only is not None:
            raise ValueError(f"clip is adaptive; expected a fixed one: {fixed_clip_only}")
        if most_examples is not None:
            raise ValueError(
                f"most_examples is {most_examples}; expected none with an adaptive clip, which "
                "counts clients"
            )
        std = count_std(self, expected_uploads)
        if (
            is_concrete(noise_multiplier)
            and is_concrete(std)
            and float(noise_multiplier) >= 2 * float(std)
        ):
            raise ValueError(
                f"noise_multiplier is {noise_multiplier}; expected less than 2 count_std = "
                f"{2 * float(std):g}, with which the clients below the clip are counted"
            )


def adaptive_clip(
    quantile: Scalar = 0.5,
    *,
    lr: Scalar = 0.2,
    initial: Scalar = 0.1,
    count_std: Scalar | None = None,
) -> AdaptiveClip:
    r"""Clip that moves towards a quantile of the norms of uploads.

    .. math::
        b_i = 1[\|u_i\| \le C], \qquad
        \tilde b = \frac12 + \frac1{\bar m} \Bigl(\sum_i (b_i - \tfrac12) + N(0, \sigma_b^2)\Bigr),
        \qquad C \leftarrow C \exp(-\eta_C (\tilde b - \gamma))

    The noise of a round has the clip of that round.  Counting costs privacy too: uploads get the
    noise multiplier :math:`z_\Delta = (z^{-2} - (2 \sigma_b)^{-2})^{-1/2}`, so that both releases
    together cost as much as one with z.

    Args:
        quantile: :math:`\gamma`, the share of uploads that are not clipped, in [0, 1].
        lr: :math:`\eta_C`.
        initial: C in the first round.
        count_std: :math:`\sigma_b`; default 0.05 times the expected uploads.

    Raises:
        ValueError: a quantile outside [0, 1], or another number that is not positive.

    References:
        Andrew et al., 2021, Algorithm 1 and Theorem 1.

    Example:
        >>> import fedjax_sim as fs
        >>> private = fs.privacy.privatize(
        ...     fs.fedavg(0.1), adaptive_clip(), noise_multiplier=1.0, expected_uploads=50)
        >>> float(private.init(jnp.zeros(3)).clip)
        0.10000000149011612
    """
    check_at_least(0, quantile=quantile)
    check_at_most(1, quantile=quantile)
    check_positive(lr=lr, initial=initial)
    check_positive(count_std=count_std)
    return AdaptiveClip(quantile, lr, initial, count_std)


def count_std(rule: AdaptiveClip, expected_uploads: Scalar) -> Scalar:
    r"""Returns :math:`\sigma_b`, the standard deviation of the noise on the count."""
    return 0.05 * expected_uploads if rule.count_std is None else rule.count_std


def upload_noise(rule: AdaptiveClip, noise_multiplier: Scalar, expected_uploads: Scalar) -> Scalar:
    r"""Returns :math:`z_\Delta`, the noise multiplier of the uploads."""
    share = noise_multiplier / (2 * count_std(rule, expected_uploads))
    return noise_multiplier / (1 - share**2) ** 0.5


def below(upload: Upload, clip: Scalar) -> Array:
    """Returns 1/2 for an upload whose norm is at most the clip, otherwise -1/2."""
    norm = tree.safe_norm(jax.tree.map(lambda x: x.astype(jnp.result_type(float)), upload))
    return (norm <= clip).astype(jnp.result_type(float)) - 0.5


def next_clip(rule: AdaptiveClip, clip: Array, count: Array, expected_uploads: Scalar) -> Array:
    """Returns the clip of the next round, for the noisy sum of :func:`below`."""
    share = 0.5 + count / expected_uploads
    return clip * jnp.exp(-rule.lr * (share - rule.quantile)).astype(clip.dtype)
