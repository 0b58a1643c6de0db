"""Long short-term memory networks of tokens, as pure functions of nested dicts of arrays."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from fedjax_sim.models.base import Model
from fedjax_sim.types import Params


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
    ``bias``; ``head`` with ``kernel`` ``[vocab_size, width]`` and ``bias``.  PyTorch's layers have
    two biases, whose sum is ours.  The embedding starts standard normal, all others uniform on
    :math:`\pm 1 / \sqrt{width}`, as in PyTorch.  Activations have the parameters' dtype.

    The defaults are the network of FedML and FLUTE for Shakespeare's characters (McMahan et al.,
    2017, https://arxiv.org/abs/1602.05629, section 3; Reddi et al., 2021,
    https://arxiv.org/abs/2003.00295).  Gradients and derivatives of gradients are supported, the
    forward-mode derivative of the loss itself is not.

    Source: Hochreiter and Schmidhuber (1997, https://doi.org/10.1162/neco.1997.9.8.1735).

    Args:
        vocab_size: number of tokens.
        embedding: dimension of an embedded token.
        width: dimension of h and c.
        depth: number of layers.
        every_position: predict the token after every position; False predicts only the token after
            the last one, ``[B, vocab_size]``, as LEAF does.

    Raises:
        ValueError: a size below 1; from ``apply``, tokens that are not integers ``[B, L]``.

    Example:
        >>> model = lstm(10, embedding=3, width=4)
        >>> params = model.init(jax.random.key(0))
        >>> sorted(params), params["layer2"]["input"]["kernel"].shape
        (['embedding', 'head', 'layer1', 'layer2'], (16, 4))
        >>> model.apply(params, jnp.ones((5, 7), jnp.int32)).shape
        (5, 7, 10)
    """
    sizes = {"vocab_size": vocab_size, "embedding": embedding, "width": width, "depth": depth}
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name} is {value}; expected at least 1")
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
        if jnp.ndim(x) != 2 or not jnp.issubdtype(x.dtype, jnp.integer):
            raise ValueError(
                f"x has shape {jnp.shape(x)} and dtype {x.dtype}; expected integer tokens [B, L]"
            )
        hidden = params["embedding"][x.T]  # [L, B, embedding]
        for name in layers:
            layer = params[name]
            projected = hidden @ layer["input"]["kernel"].T + layer["bias"]
            hidden = _recurrence(layer["hidden"]["kernel"], projected)
        hidden = hidden.swapaxes(0, 1) if every_position else hidden[-1]
        return hidden @ params["head"]["kernel"].T + params["head"]["bias"]

    return Model(init, apply)


def _cell(gates: Array, cell: Array) -> tuple[Array, Array]:
    """``a [B, 4 H], c_{t-1} [B, H] -> h_t, c_t``."""
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(cell), cell


@jax.custom_vjp
def _recurrence(kernel: Array, projected: Array) -> Array:
    """``R [4 H, H], W x + b [L, B, 4 H] -> h [L, B, H]``.

    JAX's own gradient of the loop would add an outer product to the gradient of R in every step.
    """
    return _forward(kernel, projected)[0]


def _forward(kernel: Array, projected: Array) -> tuple[Array, tuple[Array, ...]]:
    def step(state: tuple[Array, Array], projected: Array) -> tuple:
        hidden, cell = state
        gates = projected + hidden @ kernel.T
        after = _cell(gates, cell)
        return after, (after[0], gates, hidden, cell)

    zeros = jnp.zeros((projected.shape[1], kernel.shape[1]), projected.dtype)
    _, (outputs, *before) = lax.scan(step, (zeros, zeros), projected)
    return outputs, (kernel, *before)


def _backward(saved: tuple[Array, ...], cotangent: Array) -> tuple[Array, Array]:
    kernel, gates, hidden, cell = saved

    def step(state: tuple[Array, Array], moment: tuple[Array, ...]) -> tuple:
        from_later, of_cell = state
        of_output, gates, cell = moment
        _, pullback = jax.vjp(_cell, gates, cell)
        of_gates, of_cell = pullback((of_output + from_later, of_cell))
        return (of_gates @ kernel, of_cell), of_gates

    zeros = jnp.zeros_like(cell[0])
    _, of_gates = lax.scan(step, (zeros, zeros), (cotangent, gates, cell), reverse=True)
    return jnp.einsum("lbg,lbh->gh", of_gates, hidden), of_gates


_recurrence.defvjp(_forward, _backward)


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
