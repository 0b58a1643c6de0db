r"""Laws of the noise that the server adds to the sums of clipped uploads.

References:
    McMahan, Ramage, Talwar, Zhang, "Learning Differentially Private Recurrent Language Models",
        2018, https://arxiv.org/abs/1710.06963 (independent Gaussian noise).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim.privacy.events import Mechanism, sampled_gaussian
from fedjax_sim.types import PyTree, Timeline, Upload

NoiseState = PyTree


class Noise(NamedTuple):
    r"""Law of the noise on the sums of clipped uploads.

    ``init(like)`` returns the state before the first round.  ``like`` has the structure, shapes and
    dtypes of an upload (arrays or ``jax.ShapeDtypeStruct``).

    ``draw(key, state, std, number, like)`` returns the noise of round ``number`` and the next
    state.  ``std`` is :math:`z C`, the noise multiplier times the bound of the norm of one upload;
    a correlated law multiplies by the sensitivity of its own encoder.  The key belongs to the
    round.  A round in which nobody reports draws nothing: its state is discarded.

    ``mechanism(noise_multiplier, timeline, num_clients)`` returns what an accountant counts for all
    rounds of a concrete timeline ``[T, S]``.  It raises ValueError, with the reason, for a timeline
    that does not fit the law.

    ``fixed_clip_only`` is the reason why the bound C must not change between rounds; None: it may.

    Example:
        >>> noise = independent()
        >>> like = {"w": jnp.zeros((3, 2))}
        >>> drawn, _ = noise.draw(jax.random.key(0), noise.init(like), 2.0, jnp.array(0), like)
        >>> drawn["w"].shape
        (3, 2)
    """

    init: Callable[[Upload], NoiseState]
    draw: Callable[[Array, NoiseState, Array | float, Array, Upload], tuple[Upload, NoiseState]]
    mechanism: Callable[[float, Timeline, int], Mechanism]
    fixed_clip_only: str | None = None


def independent() -> Noise:
    """Independent Gaussian noise in every round (DP-FedAvg).

    Example:
        >>> noise = independent()
        >>> noise.init(jnp.zeros(3))
        ()
    """

    def draw(
        key: Array, state: tuple, std: Array | float, number: Array, like: Upload
    ) -> tuple[Upload, tuple]:
        del number
        return normal(key, std, like), state

    return Noise(lambda like: (), draw, sampled_gaussian)


def normal(key: Array, std: Array | float, like: Upload) -> Upload:
    """Returns independent normal numbers of mean 0, one key per leaf.

    They are drawn in single precision, so that runs in double precision see the same noise.

    Args:
        key: PRNG key.
        std: standard deviation of every entry.
        like: the structure, shapes and dtypes.

    Example:
        >>> normal(jax.random.key(0), 0.0, {"w": jnp.ones(2)})["w"].tolist()
        [0.0, 0.0]
    """
    leaves, structure = jax.tree.flatten(like)

    def of(number: int, leaf: Any) -> Array:
        drawn = jax.random.normal(jax.random.fold_in(key, number), leaf.shape, jnp.float32)
        scaled = drawn.astype(jnp.promote_types(leaf.dtype, jnp.float32))
        return (jnp.asarray(std).astype(scaled.dtype) * scaled).astype(leaf.dtype)

    return structure.unflatten([of(number, leaf) for number, leaf in enumerate(leaves)])
