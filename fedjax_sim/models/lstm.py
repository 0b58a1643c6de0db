"""Long short-term memory networks of tokens, as pure functions of nested dicts of arrays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from fedjax_sim.checks import check_count
from fedjax_sim.models.base import Model
from fedjax_sim.models.layers import check_sequences, takes_tokens
from fedjax_sim.types import Params, plain_integers


@plain_integers
def lstm(
    vocab_size: int = 90,
    *,
    embedding: int = 8,
    width: int = 256,
    depth: int = 2,
    every_position: bool = True,
) -> Model:
    r"""LSTM language model: ``tokens [B, L] -> logits [B, L, vocab_size]`` of the next tokens.

    With the embedded tokens :math:`x_1, \dots, x_L` and :math:`h_0 = c_0 = 0`, one layer computes

    .. math::

        (a^i, a^f, a^g, a^o) &= W x_t + R h_{t-1} + b, \\
        c_t &= \sigma(a^f) \odot c_{t-1} + \sigma(a^i) \odot \tanh(a^g), \\
        h_t &= \sigma(a^o) \odot \tanh(c_t).

    The next layer takes :math:`h_1, \dots, h_L` as its x, and the logits are linear in the last
    layer's h.  All :math:`W x_t` of a layer are one product before the loop over t, and the
    gradient of R is one product after it.  Inside the loop remain the products with R.

    Parameters are nested dicts: ``embedding`` ``[vocab_size, embedding]``; ``layer1``, ``layer2``,
    ... with ``input.kernel`` W ``[4 width, inputs]``, ``hidden.kernel`` R ``[4 width, width]`` and
    ``bias``; ``head`` with ``kernel`` ``[vocab_size, width]`` and ``bias``.  The embedding starts
    standard normal, all others uniform on :math:`\pm 1 / \sqrt{width}`, as in PyTorch, whose layers
    have two such biases instead of b: their sum has twice the variance at the start.  Activations
    have the parameters' dtype.

    The defaults are the network of FedML and FLUTE for Shakespeare's characters (McMahan et al.,
    2017, https://arxiv.org/abs/1602.05629, section 3; Reddi et al., 2021,
    https://arxiv.org/abs/2003.00295).

    Source: Hochreiter and Schmidhuber (1997, https://doi.org/10.1162/neco.1997.9.8.1735).

    Args:
        vocab_size: number of tokens.
        embedding: dimension of an embedded token.
        width: dimension of h and c.
        depth: number of layers.
        every_position: predict the token after every position; False predicts only the token after
            the last one, ``[B, vocab_size]``, as LEAF does.

    Raises:
        ValueError: a size that is no integer of at least 1; from ``apply``, tokens that are not
            integers ``[B, L]``.

    Example:
        >>> model = lstm(10, embedding=3, width=4)
        >>> params = model.init(jax.random.key(0))
        >>> sorted(params), params["layer2"]["input"]["kernel"].shape
        (['embedding', 'head', 'layer1', 'layer2'], (16, 4))
        >>> model.apply(params, jnp.ones((5, 7), jnp.int32)).shape
        (5, 7, 10)
    """
    check_count(1, vocab_size=vocab_size, embedding=embedding, width=width, depth=depth)
    layers = [f"layer{i}" for i in range(1, depth + 1)]

    def init(key: Array) -> Params:
        embedding_key, head_key, *keys = jax.random.split(key, 2 + depth)
        inputs = [embedding, *[width] * (depth - 1)]
        return {
            "embedding": jax.random.normal(embedding_key, (vocab_size, embedding), jnp.float32),
            **{
                layer: _init_layer(key, size, width)
                for layer, key, size in zip(layers, keys, inputs, strict=True)
            },
            "head": _init_linear(head_key, width, vocab_size, width),
        }

    def apply(params: Params, x: Array) -> Array:
        check_sequences(x)
        hidden = params["embedding"][x.T]  # [L, B, embedding]
        for name in layers:
            layer = params[name]
            projected = hidden @ layer["input"]["kernel"].T + layer["bias"]
            hidden = _recurrence(layer["hidden"]["kernel"], projected)
        hidden = hidden.swapaxes(0, 1) if every_position else hidden[-1]
        return hidden @ params["head"]["kernel"].T + params["head"]["bias"]

    return Model(init, takes_tokens(apply, vocab_size), axis_roles=_axis_roles)


def _axis_roles(path: tuple[str, ...], leaf: Any) -> str | None:
    del leaf
    return {"kernel": "oi", "embedding": "io"}.get(path[-1])


@jax.custom_jvp
def _recurrence(kernel: Array, projected: Array) -> Array:
    """Returns h ``[L, B, H]`` of the kernel R ``[4 H, H]`` and ``W x + b`` ``[L, B, 4 H]``."""
    # JAX's own gradient of the loop would add an outer product to the gradient of R in every step.
    return _loop(kernel, projected)[0]


def _loop(kernel: Array, projected: Array) -> tuple[Array, ...]:
    """Returns ``h_t, a_t, h_{t-1}, c_{t-1}`` for all t, each ``[L, B, ...]``."""

    def step(state: tuple[Array, Array], projected: Array) -> tuple:
        hidden, cell = state
        gates = projected + hidden @ kernel.T
        i, f, g, o = _activated(gates)
        after = f * cell + i * g
        output = o * jnp.tanh(after)
        return (output, after), (output, gates, hidden, cell)

    zeros = jnp.zeros((projected.shape[1], kernel.shape[1]), projected.dtype)
    return lax.scan(step, (zeros, zeros), projected)[1]


@_recurrence.defjvp
def _tangent(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    """Returns h and its tangent; the transpose of this linear map is the gradient."""
    # Everything that does not depend on the previous tangent is computed for all t at once: R's
    # tangent enters by one product, whose transpose is one product, too.
    kernel, projected = primals
    hidden, gates, before, cell_before = _loop(kernel, projected)
    i, f, g, o = _activated(gates)
    squashed = jnp.tanh(f * cell_before + i * g)
    # Derivatives of c_t with respect to a^i, a^f, a^g and c_{t-1}, of h_t to a^o and c_t.
    factors = (
        jnp.concatenate([i * (1 - i) * g, f * (1 - f) * cell_before, i * (1 - g**2)], axis=-1),
        f,
        o * (1 - o) * squashed,
        o * (1 - squashed**2),
    )
    moved = tangents[1] + before @ tangents[0].T

    def step(state: tuple[Array, Array], moment: tuple[Array, ...]) -> tuple:
        of_hidden, of_cell = state
        moved, to_cell, forget, from_output, from_cell = moment
        of_gates = moved + of_hidden @ kernel.T
        width = of_hidden.shape[1]
        terms = to_cell * of_gates[:, : 3 * width]
        of_cell = forget * of_cell + terms.reshape(-1, 3, width).sum(axis=1)
        of_hidden = from_output * of_gates[:, 3 * width :] + from_cell * of_cell
        return (of_hidden, of_cell), of_hidden

    zeros = jnp.zeros_like(before[0])
    return hidden, lax.scan(step, (zeros, zeros), (moved, *factors))[1]


def _activated(gates: Array) -> tuple[Array, ...]:
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    return jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)


def _init_layer(key: Array, inputs: int, width: int) -> Params:
    input_key, hidden_key = jax.random.split(key)
    projection = _init_linear(input_key, inputs, 4 * width, width)
    return {
        "input": {"kernel": projection["kernel"]},
        "hidden": {"kernel": _uniform(hidden_key, (4 * width, width), width)},
        "bias": projection["bias"],
    }


def _init_linear(key: Array, inputs: int, outputs: int, width: int) -> Params:
    kernel_key, bias_key = jax.random.split(key)
    return {
        "kernel": _uniform(kernel_key, (outputs, inputs), width),
        "bias": _uniform(bias_key, (outputs,), width),
    }


def _uniform(key: Array, shape: tuple[int, ...], width: int) -> Array:
    return jax.random.uniform(key, shape, jnp.float32, -(width**-0.5), width**-0.5)
