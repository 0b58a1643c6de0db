r"""Laws of the noise that the server adds to the sums of clipped uploads.

References:
    McMahan, Ramage, Talwar, Zhang, "Learning Differentially Private Recurrent Language Models",
        2018, https://arxiv.org/abs/1710.06963 (independent Gaussian noise).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jax import Array

from fedjax_sim.tree import normal
from fedjax_sim.types import PyTree, Spec, Timeline, Upload, shown, specified, with_spec
from fedjax_sim.wrappers.privacy.events import Mechanism, sampled_gaussian

NoiseState = PyTree


def _no_check(timeline: Timeline, num_clients: int) -> None:
    del timeline, num_clients


@with_spec
@shown
class NoiseLaw(NamedTuple):
    r"""Law of the noise on the sums of clipped uploads.

    ``init(like)`` returns the state before the first round; None: the law has none.  ``like`` has
    the structure, shapes and dtypes of an upload (arrays or ``jax.ShapeDtypeStruct``).

    ``draw(key, state, std, number, like)`` returns the noise of round ``number`` and the next
    state.  ``std`` is :math:`z C`, the noise multiplier times the bound of the norm of one upload;
    a correlated law multiplies by the sensitivity of its own encoder.  The key belongs to the
    round.  A round in which nobody reports draws nothing: its state is discarded.

    ``mechanism(noise_multiplier, timeline, num_clients)`` returns what an accountant counts for all
    rounds of a concrete timeline ``[T, S]``.  It raises ValueError, with the reason, for a timeline
    that does not fit the law.

    ``fixed_clip_only`` is the reason why the bound C must not change between rounds; None: it may.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> noise = independent()
        >>> like = {"w": jnp.zeros((3, 2))}
        >>> drawn, _ = noise.draw(jax.random.key(0), (), 2.0, jnp.array(0), like)
        >>> drawn["w"].shape
        (3, 2)
    """

    init: Callable[[Upload], NoiseState] | None  # None: no state, ()
    draw: Callable[[Array, NoiseState, Array | float, Array, Upload], tuple[Upload, NoiseState]]
    mechanism: Callable[[float, Timeline, int], Mechanism]
    fixed_clip_only: str | None = None
    # (timeline, num_clients): raises ValueError, with the reason, for a concrete timeline that does
    # not fit the law.
    check: Callable[[Timeline, int], None] = _no_check
    spec: Spec | None = None  # the factory and its arguments


@specified
def independent() -> NoiseLaw:
    """Independent Gaussian noise in every round (DP-FedAvg).

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> noise = independent()
        >>> noise.draw(jax.random.key(0), (), 2.0, jnp.array(0), jnp.zeros(3))[0].shape
        (3,)
    """

    def draw(
        key: Array, state: tuple, std: Array | float, number: Array, like: Upload
    ) -> tuple[Upload, tuple]:
        return normal(key, std, like), state

    return NoiseLaw(None, draw, sampled_gaussian)
