"""Decoder-only transformers of tokens, as flax ``nnx`` modules."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from fedjax_sim.checks import check_count
from fedjax_sim.models.base import Model, from_nnx
from fedjax_sim.models.layers import (
    attend,
    causal,
    check_sequences,
    product,
    rotary,
    standardise,
    takes_adapters,
    takes_tokens,
)
from fedjax_sim.types import plain_integers

_DEVIATION = 0.02  # standard deviation of the initial kernels
_EPSILON = 1e-5


@plain_integers
def transformer(
    vocab_size: int, *, width: int = 64, depth: int = 4, heads: int = 4, mlp_dim: int | None = None
) -> Model:
    r"""Decoder-only transformer: ``tokens [B, L] -> logits [B, L, vocab_size]`` of the next tokens.

    With the embedded tokens :math:`z = E_{x_1}, \dots, E_{x_L}` each of ``depth`` blocks computes

    .. math::

        z \leftarrow z + W_o\, \mathrm{attention}(W_q n_1(z), W_k n_1(z), W_v n_1(z)), \qquad
        z \leftarrow z + W_2\, \mathrm{gelu}(W_1 n_2(z)),

    and the logits are :math:`E\, n(z)` (tied embeddings).  gelu is the approximation by tanh, as in
    GPT-2.  A position attends to itself and earlier positions.  Queries and keys are rotated: at
    position p of a head of dimension d, the pair :math:`(x_j, x_{j + d/2})` by the angle
    :math:`p\, 10^{-8j/d}`.  So there are no position embeddings, and a model takes sequences of any
    length.  Norms n are layer norms with a scale and no bias, epsilon 1e-5; no layer has a bias,
    and there is no dropout.

    Parameters are nested dicts: ``embedding`` E ``[vocab_size, width]``; ``blocks`` "0", "1", ...
    with ``norm1.scale``, ``attn.query``, ``attn.key``, ``attn.value`` and ``attn.proj`` with
    ``kernel`` ``[width, width]``, ``norm2.scale``, ``mlp.fc1`` and ``mlp.fc2`` with ``kernel``
    ``[outputs, inputs]``; ``norm.scale``.  E and kernels start normal with standard deviation 0.02,
    those of ``proj`` and ``fc2`` with :math:`0.02 / \sqrt{2\, \text{depth}}` as in GPT-2.
    Activations have the parameters' dtype; norms, angles and softmax are computed in at least
    float32.

    Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019 (GPT-2),
    without biases and with rotary positions (Su et al., 2021).

    Args:
        vocab_size: number V of tokens.
        width: dimension w of an embedded token; the default model has about 0.2 million parameters.
        depth: number D of blocks.
        heads: number of attention heads; their dimension ``width / heads`` is even.
        mlp_dim: width m of the hidden layer of a block; None means ``4 * width``.  The model has
            V w + D (4 w^2 + 2 w m + 2 w) + w parameters.

    Raises:
        ValueError: a size that is no integer of at least 1; a ``width`` that is no multiple of
            ``2 * heads``; from ``apply``, tokens that are not integers ``[B, L]``.

    Example:
        >>> model = transformer(65)
        >>> params = jax.jit(model.init)(jax.random.key(0))
        >>> sum(leaf.size for leaf in jax.tree.leaves(params))
        201344
        >>> params["blocks"]["0"]["attn"]["query"]["kernel"].shape
        (64, 64)
        >>> model.apply(params, jnp.ones((5, 7), jnp.int32)).shape
        (5, 7, 65)
    """
    mlp_dim = 4 * width if mlp_dim is None else mlp_dim
    check_count(1, vocab_size=vocab_size, width=width, depth=depth, heads=heads, mlp_dim=mlp_dim)
    if width % (2 * heads):
        raise ValueError(
            f"width is {width}; expected a multiple of 2 heads = {2 * heads}, since rotations "
            "take the entries of a head in pairs"
        )
    model = from_nnx(lambda rngs: _Transformer(vocab_size, width, depth, heads, mlp_dim, rngs))
    return model._replace(apply=takes_tokens(takes_adapters(model.apply), vocab_size))


class _Transformer(nnx.Module):
    def __init__(
        self, vocab_size: int, width: int, depth: int, heads: int, mlp_dim: int, rngs: nnx.Rngs
    ):
        self.embedding = _normal(rngs, (vocab_size, width), _DEVIATION)
        residual = _DEVIATION * (2 * depth) ** -0.5
        self.blocks = nnx.List(
            [_Block(width, heads, mlp_dim, residual, rngs) for _ in range(depth)]
        )
        self.norm = _Norm(width)

    def __call__(self, tokens: Array) -> Array:
        check_sequences(tokens)
        embedding = self.embedding.get_value()
        z = embedding[tokens]
        for block in self.blocks:
            z = block(z)
        return product(embedding, self.norm(z))


class _Block(nnx.Module):
    def __init__(self, width: int, heads: int, mlp_dim: int, residual: float, rngs: nnx.Rngs):
        self.norm1, self.norm2 = _Norm(width), _Norm(width)
        self.attn = _Attention(width, heads, residual, rngs)
        self.mlp = _Mlp(width, mlp_dim, residual, rngs)

    def __call__(self, z: Array) -> Array:
        z = z + self.attn(self.norm1(z))
        return z + self.mlp(self.norm2(z))


class _Attention(nnx.Module):
    def __init__(self, width: int, heads: int, residual: float, rngs: nnx.Rngs):
        self.query, self.key, self.value = (
            _Linear(width, width, _DEVIATION, rngs) for _ in range(3)
        )
        self.proj = _Linear(width, width, residual, rngs)
        self.heads = heads

    def __call__(self, z: Array) -> Array:
        batch, tokens, width = z.shape
        by_head = (batch, tokens, self.heads, width // self.heads)
        queries, keys, values = (
            layer(z).reshape(by_head) for layer in (self.query, self.key, self.value)
        )
        positions = jnp.arange(tokens)
        queries, keys = rotary(queries, positions), rotary(keys, positions)
        return self.proj(attend(queries, keys, values, causal(tokens)).reshape(z.shape))


class _Mlp(nnx.Module):
    def __init__(self, width: int, mlp_dim: int, residual: float, rngs: nnx.Rngs):
        self.fc1 = _Linear(width, mlp_dim, _DEVIATION, rngs)
        self.fc2 = _Linear(mlp_dim, width, residual, rngs)

    def __call__(self, z: Array) -> Array:
        return self.fc2(jax.nn.gelu(self.fc1(z)))


class _Linear(nnx.Module):
    """Linear layer without bias whose kernel is [outputs, inputs], as in the package's models."""

    axis_roles: ClassVar = {"kernel": "oi"}

    def __init__(self, inputs: int, outputs: int, deviation: float, rngs: nnx.Rngs):
        self.kernel = _normal(rngs, (outputs, inputs), deviation)

    def __call__(self, x: Array) -> Array:
        return product(self.kernel.get_value(), x)


class _Norm(nnx.Module):
    def __init__(self, width: int):
        self.scale = nnx.Param(jnp.ones(width, jnp.float32))

    def __call__(self, z: Array) -> Array:
        return standardise(z, (-1,), _EPSILON) * self.scale.get_value()


def _normal(rngs: nnx.Rngs, shape: tuple[int, ...], deviation: float) -> nnx.Param:
    return nnx.Param(deviation * jax.random.normal(rngs.params(), shape, jnp.float32))
