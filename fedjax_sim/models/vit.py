"""Vision transformers, as pure functions of nested dicts of arrays.

Every layer with parameters is a matrix product, so ``vmap`` over clients with their own weights
gives batched matrix products.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from fedjax_sim.checks import check_count, check_counts
from fedjax_sim.models.base import Model
from fedjax_sim.models.cnn import check_images
from fedjax_sim.models.layers import (
    attend,
    gelu,
    product,
    product_in_parts,
    standardise,
    takes_adapters,
)
from fedjax_sim.tree import leaves
from fedjax_sim.types import Params, plain_integers

_INIT = jax.nn.initializers.truncated_normal(stddev=0.02)
_EPSILON = 1e-6


@plain_integers
def vit(
    image_shape: tuple[int, int, int],
    num_classes: int,
    *,
    patch_size: int,
    width: int,
    depth: int,
    heads: int,
    mlp_dim: int | None = None,
    remat: bool = False,
    unroll: bool = False,
) -> Model:
    """Vision transformer with class token: ``[B, H, W, C] -> logits [B, num_classes]``.

    The image is cut into N = (H / p) (W / p) patches of p x p pixels.  With patches
    ``x_1 .. x_N`` as vectors in the order row, column, channel, and T = 1 + N tokens,

        ``z = [class_token, W_p x_1 + b_p, ..., W_p x_N + b_p] + positions``,
        ``z <- z + proj(attention(qkv(norm1(z))))``  and  ``z <- z + fc2(gelu(fc1(norm2(z))))``

    in each of ``depth`` blocks, and the logits are ``head(norm(z)_class)``.  Attention has
    ``heads`` heads of dimension d = width / heads, each ``softmax(Q K^T / sqrt(d)) V``; GELU is the
    exact one, ``x Phi(x)``; norms are layer norms with epsilon 1e-6.  There is no dropout.

    Parameters are nested dicts: ``patch``, ``class_token`` ``[width]``, ``positions``
    ``[T, width]``, ``blocks`` with ``norm1``, ``attn.qkv``, ``attn.proj``, ``norm2``, ``mlp.fc1``,
    ``mlp.fc2``, then ``norm`` and ``head``.  Norms have ``scale`` and ``bias``, the other layers
    ``kernel`` ``[outputs, inputs]`` and ``bias``; the outputs of qkv are all queries, all keys, all
    values, head by head.  Arrays under ``blocks`` have a leading axis of ``depth``: the blocks are
    scanned, which compiles several times faster than a Python loop.  Kernels, class token and
    positions start normal with standard deviation 0.02, truncated at -0.04 and 0.04 (the standard
    deviation is then 0.0176), scales at one, biases at zero.
    Activations have the parameters' dtype; layer norms and softmax are computed in at least
    float32.

    Source: Dosovitskiy et al. (2021, https://arxiv.org/abs/2010.11929).

    Args:
        image_shape: height, width, channels of one image.
        num_classes: number of logits.
        patch_size: side p of a patch.
        width: dimension of a token.
        depth: number of blocks.
        heads: number of attention heads.
        mlp_dim: width of the hidden layer of a block; None means ``4 * width``.
        remat: recompute all activations of a block for its gradient: memory for one block and
            ``depth`` token arrays, for about a third more arithmetic.  Without it the results of
            the four layers of a block are stored, and only what lies between is recomputed.
        unroll: compile each block by itself: on GPUs three fifths of the kernels and seven tenths
            of the memory traffic, on TPUs in bfloat16 two thirds of the cycles
            (docs/performance.md), for a compilation that takes several times as long.

    Raises:
        ValueError: a size that is no integer of at least 1; an image that patches do not tile;
            ``heads`` that do not divide ``width``; from ``apply``, images of another shape.

    Example:
        >>> model = vit((8, 8, 3), 10, patch_size=4, width=6, depth=2, heads=3)
        >>> params = jax.jit(model.init)(jax.random.key(0))
        >>> params["positions"].shape, params["blocks"]["attn"]["qkv"]["kernel"].shape
        ((5, 6), (2, 18, 6))
        >>> model.apply(params, jnp.ones((2, 8, 8, 3))).shape
        (2, 10)
    """
    mlp_dim = 4 * width if mlp_dim is None else mlp_dim
    check_count(1, num_classes=num_classes, patch_size=patch_size, width=width, depth=depth)
    check_count(1, heads=heads, mlp_dim=mlp_dim)
    check_counts(1, image_shape=image_shape)
    if len(image_shape) != 3:
        raise ValueError(f"image_shape is {image_shape}; expected height, width, channels")
    if image_shape[0] % patch_size or image_shape[1] % patch_size:
        raise ValueError(
            f"patch_size is {patch_size}; expected a divisor of height and width of image_shape "
            f"{image_shape}"
        )
    if width % heads:
        raise ValueError(f"heads is {heads}; expected a divisor of width {width}")
    rows, columns = image_shape[0] // patch_size, image_shape[1] // patch_size

    # Activations between products are recomputed: loads cost accelerators more than arithmetic.
    policies = jax.checkpoint_policies
    policy = policies.nothing_saveable if remat else policies.dots_with_no_batch_dims_saveable

    def init(key: Array) -> Params:
        patch, token, positions, blocks, head = jax.random.split(key, 5)
        return {
            "patch": _init_linear(patch, patch_size**2 * image_shape[2], width),
            "class_token": _INIT(token, (width,), jnp.float32),
            "positions": _INIT(positions, (1 + rows * columns, width), jnp.float32),
            "blocks": jax.vmap(lambda key: _init_block(key, width, mlp_dim))(
                jax.random.split(blocks, depth)
            ),
            "norm": _init_norm(width),
            "head": _init_linear(head, width, num_classes),
        }

    def apply(params: Params, x: Array) -> Array:
        check_images(x, tuple(image_shape))
        x = x.astype(params["positions"].dtype)
        z = _linear(params["patch"], _patches(x, rows, columns))
        token = jnp.broadcast_to(params["class_token"], (x.shape[0], 1, width))
        z = lax.concatenate([token, z], 1) + params["positions"]
        packed, unpack = _packed(params["blocks"])

        def step(z: Array, packed: Any) -> tuple[Array, None]:
            return _block(unpack(*packed), z, heads), None

        # Inside a loop, common-subexpression elimination cannot undo the recomputation. Without one
        # it may, unless the memory matters.
        step = jax.checkpoint(step, prevent_cse=unroll and remat, policy=policy)
        z, _ = lax.scan(step, z, packed, unroll=unroll)
        return _linear(params["head"], _layer_norm(params["norm"], z[:, 0]))

    return Model(init, takes_adapters(apply), axis_roles=_axis_roles)


@plain_integers
def vit_tiny(
    image_shape: tuple[int, int, int] = (32, 32, 3),
    num_classes: int = 10,
    patch_size: int = 4,
    remat: bool = False,
    unroll: bool = False,
) -> Model:
    """ViT-Tiny: width 192, 12 blocks, 3 heads; see :func:`vit`.

    Patches of side 4 suit images of side 32 and 64, patches of side 16 images of side 224.

    Example:
        >>> params = jax.eval_shape(vit_tiny().init, jax.random.key(0))
        >>> sum(leaf.size for leaf in jax.tree.leaves(params))
        5362762
    """
    sizes = {"patch_size": patch_size, "width": 192, "depth": 12, "heads": 3}
    return vit(image_shape, num_classes, **sizes, remat=remat, unroll=unroll)


@plain_integers
def vit_base16(
    num_classes: int = 200,
    image_shape: tuple[int, int, int] = (224, 224, 3),
    remat: bool = False,
    unroll: bool = False,
) -> Model:
    """ViT-Base with patches of side 16: width 768, 12 blocks, 12 heads; see :func:`vit`.

    Without the head it has 85,798,656 parameters at 224 x 224;
    :func:`~fedjax_sim.models.load_vit` fills it from a file.

    Example:
        >>> params = jax.eval_shape(vit_base16().init, jax.random.key(0))
        >>> sum(leaf.size for leaf in jax.tree.leaves(params)) - 200 * (768 + 1)
        85798656
    """
    sizes = {"patch_size": 16, "width": 768, "depth": 12, "heads": 12}
    return vit(image_shape, num_classes, **sizes, remat=remat, unroll=unroll)


def _axis_roles(path: tuple[str, ...], leaf: Any) -> str | None:
    del leaf
    if path[-1] != "kernel":
        return None
    return "soi" if path[0] == "blocks" else "oi"


def _packed(blocks: Params) -> tuple[tuple[Array, Params], Callable[[Array, Params], Params]]:
    """Scales and biases as one array and all other leaves, and the function that joins one block's.

    A scan has a slice of every array in every step, and one more for its gradient.
    """
    dtype = blocks["norm1"]["scale"].dtype
    vectors, rest = leaves.split(blocks, lambda _, leaf: leaf.ndim == 2 and leaf.dtype == dtype)
    arrays, structure = jax.tree.flatten(vectors)
    sizes = [array.shape[1] for array in arrays]

    def unpack(packed: Array, rest: Params) -> Params:
        return leaves.join(structure.unflatten(lax.split(packed, sizes)), rest)

    return (lax.concatenate(arrays, 1), rest), unpack


def _block(params: Params, z: Array, heads: int) -> Array:
    z = z + _attention(params["attn"], _layer_norm(params["norm1"], z), heads)
    hidden = _linear(params["mlp"]["fc1"], _layer_norm(params["norm2"], z))
    return z + _linear(params["mlp"]["fc2"], gelu(hidden))


def _attention(params: Params, z: Array, heads: int) -> Array:
    batch, tokens, width = z.shape
    parts = product_in_parts(params["qkv"]["kernel"], params["qkv"]["bias"], z, 3)
    queries, keys, values = (x.reshape(batch, tokens, heads, width // heads) for x in parts)
    return _linear(params["proj"], attend(queries, keys, values).reshape(z.shape))


def _patches(x: Array, rows: int, columns: int) -> Array:
    """``[B, H, W, C] -> [B, rows * columns, H / rows * W / columns * C]``."""
    batch, height, width, channels = x.shape
    x = x.reshape(batch, rows, height // rows, columns, width // columns, channels)
    entries = height // rows * (width // columns) * channels
    return x.swapaxes(2, 3).reshape(batch, rows * columns, entries)


def _linear(params: Params, x: Array) -> Array:
    return product(params["kernel"], x) + params["bias"]


def _layer_norm(params: Params, x: Array) -> Array:
    return standardise(x, (-1,), _EPSILON) * params["scale"] + params["bias"]


def _init_block(key: Array, width: int, mlp_dim: int) -> Params:
    qkv, proj, fc1, fc2 = jax.random.split(key, 4)
    return {
        "norm1": _init_norm(width),
        "attn": {
            "qkv": _init_linear(qkv, width, 3 * width),
            "proj": _init_linear(proj, width, width),
        },
        "norm2": _init_norm(width),
        "mlp": {"fc1": _init_linear(fc1, width, mlp_dim), "fc2": _init_linear(fc2, mlp_dim, width)},
    }


def _init_linear(key: Array, inputs: int, outputs: int) -> Params:
    kernel = _INIT(key, (outputs, inputs), jnp.float32)
    return {"kernel": kernel, "bias": jnp.zeros(outputs, jnp.float32)}


def _init_norm(width: int) -> Params:
    return {"scale": jnp.ones(width, jnp.float32), "bias": jnp.zeros(width, jnp.float32)}
