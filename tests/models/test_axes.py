"""Matrices of layers: adapters of every known layer, from the layers' definitions."""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from small_problems import compiled

import fedjax_sim as fs
from fedjax_sim import models
from fedjax_sim.tree.leaves import last_layer

RANK, ALPHA, KEY = 2, 3.0, jax.random.key(0)
RNG = np.random.default_rng(0)


class Scanned(linen.Module):
    """Three dense layers 4 -> 4, whose kernels are stacked along an axis."""

    axis: int

    @linen.compact
    def __call__(self, x):
        body = linen.scan(
            lambda layer, x, _: (layer(x), None),
            variable_axes={"params": self.axis},
            split_rngs={"params": True},
            length=3,
        )
        return body(linen.Dense(4, name="dense"), x, None)[0]


class Stacked(nnx.Module):
    """Three layers 5 -> 4, whose kernels are stacked along the first axis."""

    def __init__(self, rngs):
        make = nnx.split_rngs(splits=3)(nnx.vmap(lambda rngs: nnx.Linear(5, 4, rngs=rngs)))
        self.dense = make(rngs)

    def __call__(self, x):
        graph, state = nnx.split(self.dense)
        layers = [jax.tree.map(lambda leaf, i=i: leaf[i], state) for i in range(3)]
        return sum(nnx.merge(graph, layer)(x) for layer in layers)


class Own(linen.Module):
    """A layer that names its axes itself."""

    axis_roles: ClassVar = {"weight": "oi"}

    @linen.compact
    def __call__(self, x):
        return x @ self.param("weight", linen.initializers.ones, (3, x.shape[-1])).T


# Layer: the module, the shapes of a batch and of the kernel, and the kernel's change by A
# [stack, r, inputs] and B [stack, outputs, r], with their axes divided as in the kernel.
FLAX = {
    "nnx.Linear": (lambda rngs: nnx.Linear(5, 3, rngs=rngs), (7, 5), (5, 3), "ri,or->io"),
    "nnx.LinearGeneral": (
        lambda rngs: nnx.LinearGeneral((2, 3), (4, 5), axis=(1, -1), rngs=rngs),
        (7, 2, 3), (2, 3, 4, 5), "rij,opr->ijop",
    ),
    "nnx.LinearGeneral of a batch axis": (
        lambda rngs: nnx.LinearGeneral(3, 4, batch_axis={0: 7}, rngs=rngs),
        (7, 3), (7, 3, 4), "sri,sor->sio",
    ),
    "nnx.Einsum": (
        lambda rngs: nnx.Einsum("nta,hab->nthb", (8, 2, 4), (8, 4), rngs=rngs),
        (7, 3, 2), (8, 2, 4), "ra,hbr->hab",
    ),
    "nnx.Einsum of heads": (
        lambda rngs: nnx.Einsum("nta,hba->nthb", (8, 4, 2), rngs=rngs),
        (7, 3, 2), (8, 4, 2), "ra,hbr->hba",
    ),
    "nnx.Einsum by head": (
        lambda rngs: nnx.Einsum("nha,hab->nhb", (8, 3, 4), rngs=rngs),
        (7, 8, 3), (8, 3, 4), "hra,hbr->hab",
    ),
    "nnx.Embed": (lambda rngs: nnx.Embed(9, 4, rngs=rngs), (7, 0), (9, 4), "rv,fr->vf"),
    "nnx.Conv": (
        lambda rngs: nnx.Conv(3, 4, (2, 5), rngs=rngs), (7, 6, 6, 3), (2, 5, 3, 4), "rxyi,or->xyio"
    ),
    "nnx.ConvTranspose": (
        lambda rngs: nnx.ConvTranspose(3, 4, (2, 5), rngs=rngs),
        (7, 6, 6, 3), (2, 5, 3, 4), "ri,xyor->xyio",
    ),
    "nnx.ConvTranspose of a convolution": (
        lambda rngs: nnx.ConvTranspose(3, 4, (2, 5), transpose_kernel=True, rngs=rngs),
        (7, 6, 6, 3), (2, 5, 4, 3), "ri,xyor->xyoi",
    ),
    "nnx.vmap": (Stacked, (7, 5), (3, 5, 4), "sri,sor->sio"),
    "linen.Dense": (linen.Dense(3), (7, 5), (5, 3), "ri,or->io"),
    "linen.DenseGeneral": (
        linen.DenseGeneral((4, 5), axis=(1, -1)), (7, 2, 3), (2, 3, 4, 5), "rij,opr->ijop"
    ),
    "linen.DenseGeneral of a batch axis": (
        linen.DenseGeneral(4, batch_dims=(0,)), (7, 3), (7, 3, 4), "sri,sor->sio"
    ),
    "linen.Einsum": (linen.Einsum((8, 2, 4), "nta,hab->nthb"), (7, 3, 2), (8, 2, 4), "ra,hbr->hab"),
    "linen.Embed": (linen.Embed(9, 4), (7, 0), (9, 4), "rv,fr->vf"),
    "linen.Conv": (linen.Conv(4, (2, 5)), (7, 6, 6, 3), (2, 5, 3, 4), "rxyi,or->xyio"),
    "linen.Conv of sequences": (linen.Conv(4, 5), (7, 6, 3), (5, 3, 4), "rxi,or->xio"),
    "linen.ConvLocal": (
        linen.ConvLocal(4, (5,), padding="VALID"), (7, 6, 3), (2, 15, 4), "sri,sor->sio"
    ),
    "linen.ConvTranspose": (
        linen.ConvTranspose(4, (2, 5)), (7, 6, 6, 3), (2, 5, 3, 4), "ri,xyor->xyio"
    ),
    "linen.ConvTranspose of a convolution": (
        linen.ConvTranspose(4, (2, 5), transpose_kernel=True),
        (7, 6, 6, 3), (2, 5, 4, 3), "ri,xyor->xyoi",
    ),
    "linen.OptimizedLSTMCell": (
        linen.RNN(linen.OptimizedLSTMCell(4)), (7, 3, 5), (5, 4), "ri,or->io"
    ),
    "linen.scan": (Scanned(0), (7, 4), (3, 4, 4), "sri,sor->sio"),
    "linen.scan along the second axis": (Scanned(1), (7, 4), (4, 3, 4), "sri,sor->iso"),
    "own linen layer": (Own(), (7, 5), (3, 5), "ri,or->oi"),
    "own nnx layer": (
        lambda rngs: models.dense.Linear(
            5, 3, initializer=nnx.initializers.lecun_normal(), rngs=rngs
        ),
        (7, 5), (3, 5), "ri,or->oi",
    ),
}  # fmt: skip


def factors(adapters):
    """The only A and the only B of a model."""
    found = jax.tree_util.tree_leaves_with_path(adapters)
    by_name = {path[-1].key: leaf for path, leaf in found}
    assert len(by_name) == len(found) == 2
    return by_name["a"], by_name["b"]


def model_and_inputs(module, shape):
    tokens = not shape[-1]  # token ids
    x = RNG.integers(0, 9, shape[:-1]) if tokens else RNG.random(shape)
    x = jnp.asarray(x, jnp.int32 if tokens else jnp.float32)
    if isinstance(module, linen.Module):
        return models.from_linen(module, x), x
    return models.from_nnx(module), x


@pytest.mark.parametrize("name", FLAX)
def test_adapters_follow_the_definition_of_the_layer(name):
    module, shape, of_kernel, contraction = FLAX[name]
    with jax.numpy_dtype_promotion("standard"):  # as flax's recurrent cells require
        base, x = model_and_inputs(module, shape)
        shapes = jax.tree_util.tree_leaves_with_path(jax.eval_shape(base.init, KEY))
        of_layer = [fs.tree.leaves.names(path) for path, leaf in shapes if leaf.shape == of_kernel]
        path = of_layer[0]
        where = lambda found, leaf: found == path  # noqa: E731
        model = models.lora(base, RANK, ALPHA, where)
        params = jax.tree.map(
            lambda leaf: RNG.normal(size=leaf.shape).astype(leaf.dtype),
            jax.eval_shape(model.init, KEY),
        )
        operands, kernel_axes = contraction.split("->")
        size = dict(zip(kernel_axes, of_kernel, strict=True)) | {"r": RANK}
        divided = [
            np.asarray(factor, np.float64).reshape([size[axis] for axis in axes])
            for factor, axes in zip(factors(params["adapters"]), operands.split(","), strict=True)
        ]
        change = ALPHA / RANK * np.einsum(contraction, *divided)

        def expected(keys, leaf):
            return (leaf + (change if fs.tree.leaves.names(keys) == path else 0)).astype(leaf.dtype)

        merged = jax.tree_util.tree_map_with_path(expected, params["base"])

        @compiled
        def results(params, merged):
            outputs = model.apply(params, x), base.apply(merged, x)
            return model.init(KEY), models.merge_lora(base, params, ALPHA, where), outputs

        start, actual, outputs = results(params, merged)
    a, b = factors(start["adapters"])
    of_a, of_b = operands.split(",")
    stack = [size[axis] for axis in of_a if axis in of_b and axis != "r"]
    num_inputs, num_outputs = (
        math.prod(size[axis] for axis in axes) // math.prod([RANK, *stack]) for axes in (of_a, of_b)
    )
    assert (a.shape, b.shape) == ((*stack, RANK, num_inputs), (*stack, num_outputs, RANK))
    assert np.abs(a).max() > 0
    assert np.abs(b).max() == 0
    # Sums in another order.
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, 1e-4, 1e-5), actual, merged)
    np.testing.assert_allclose(*outputs, rtol=1e-3, atol=1e-4)


ATTENTION = {
    "nnx": models.from_nnx(
        lambda rngs: nnx.MultiHeadAttention(4, 64, decode=False, rngs=rngs)
    ),
    "linen": models.from_linen(linen.MultiHeadDotProductAttention(4), jnp.zeros((1, 3, 64))),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_of_flax(name):
    """Queries and values of width 64, 4 heads of dimension 16: 2 r (64 + 64) at r = 8 is 2,048."""
    base = ATTENTION[name]
    model = models.lora(base, 8)
    params = jax.eval_shape(model.init, KEY)
    assert sum(leaf.size for leaf in jax.tree.leaves(params["adapters"])) == 2048
    params = jax.tree.map(lambda x: RNG.normal(size=x.shape).astype(x.dtype), params)
    merged = models.merge_lora(base, params)
    for layer, rank in {"query": 8, "value": 8, "key": 0, "out": 0}.items():
        change = merged[layer]["kernel"] - params["base"][layer]["kernel"]
        assert np.linalg.matrix_rank(np.asarray(change).reshape(64, 64), tol=1e-2) == rank
    x = jnp.asarray(RNG.random((2, 3, 64)), jnp.float32)
    run = compiled(lambda params: (model.apply(params, x), base.apply(merged, x)))
    np.testing.assert_allclose(*run(params), rtol=1e-3, atol=1e-2)
    # The output layer, whose kernel is [4, 16, 64], has a matrix of 64 rows and 64 columns.
    of_output = models.lora(base, 8, where=lambda path, leaf: path == ("out", "kernel"))
    a, b = factors(jax.eval_shape(of_output.init, KEY)["adapters"])
    assert (a.shape, b.shape) == ((8, 64), (64, 8))


def test_ffa_lora_freezes_the_factor_of_the_inputs():
    """A is random and stays, B starts at zero and moves, in nnx.Linear as in our own layers."""
    base = models.from_nnx(lambda rngs: nnx.Linear(5, 3, rngs=rngs))
    model = models.lora(base, RANK, ALPHA, lambda path, leaf: path[-1] == "kernel")
    data = fs.from_clients([{"x": RNG.random((4, 5), np.float32), "y": np.array([0, 1, 2, 0])}])
    task = fs.empirical_task(fs.objectives.cross_entropy(model), data, fs.full_batch(2))
    params = compiled(model.init)(KEY)
    algorithm = fs.freeze(fs.fedavg(0.5), models.ffa_lora_frozen)
    setup = fs.Setup(task, fs.timelines.full(2, 1, 2), params)
    state, _ = compiled(lambda setup: fs.run(algorithm, setup, KEY))(setup)
    old, new = params["adapters"]["kernel"], state.server.params["adapters"]["kernel"]
    assert (new["a"].shape, new["b"].shape) == ((RANK, 5), (3, RANK))
    np.testing.assert_array_equal(new["a"], old["a"])
    assert np.abs(new["b"]).min() > 0


def test_last_layer_of_flax():
    model = models.from_nnx(
        lambda rngs: nnx.Sequential(nnx.Linear(5, 4, rngs=rngs), nnx.Linear(4, 3, rngs=rngs))
    )
    adapted = models.lora(model, RANK, where=last_layer)
    a, b = factors(jax.eval_shape(adapted.init, KEY)["adapters"])
    assert (a.shape, b.shape) == ((RANK, 4), (3, RANK))


class Unknown(nnx.Module):
    def __init__(self, shape, rngs):
        self.kernel = nnx.Param(jnp.ones(shape))

    def __call__(self, x):
        return jnp.tensordot(x, self.kernel[...], 1)


class Cube(nnx.Module):
    """Four layers 4 -> 4: the axis of the stack cannot be told from those of a layer."""

    def __init__(self, rngs):
        make = nnx.split_rngs(splits=4)(nnx.vmap(lambda rngs: nnx.Linear(4, 4, rngs=rngs)))
        self.dense = make(rngs)

    def __call__(self, x):
        return x


class Both(linen.Module):
    """A layer that takes the axes of its kernel in both roles."""

    @linen.compact
    def __call__(self, x):
        layer = linen.Einsum((4, 4), use_bias=False, name="layer")
        return layer(layer(x, "na,ab->nb"), einsum_str="nb,ab->na")


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (models.from_nnx(lambda rngs: Unknown((5, 4, 2), rngs)), (5, 4, 2)),
        (models.from_nnx(lambda rngs: Unknown((5, 4), rngs)), (5, 4)),
        (models.from_nnx(Cube), (4, 4, 4)),
        (models.from_nnx(lambda rngs: nnx.Conv(4, 6, 3, feature_group_count=2, rngs=rngs)),
         (3, 2, 6)),
        (models.from_linen(linen.Einsum((4, 2), "nta,at->nta"), jnp.ones((1, 2, 4))), (4, 2)),
        (models.from_linen(Both(), jnp.ones((1, 4))), (4, 4)),
        (models.Model(lambda key: {"kernel": jnp.ones((5, 4, 2))}, lambda params, x: x), (5, 4, 2)),
    ],
    ids=["three axes", "two axes", "cube", "groups", "diagonal", "both", "functions"],
)  # fmt: skip
def test_kernels_of_unknown_layers_are_refused(model, shape):
    with pytest.raises(ValueError, match=r"where selects .*kernel of shape .*axis_roles") as error:
        models.lora(model, where=lambda path, leaf: path[-1] == "kernel")
    assert f"of shape {shape} and dtype float32" in str(error.value)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (models.lenet5(), {"conv1/kernel": ((2, 75), (6, 2)), "conv2/kernel": ((2, 150), (16, 2)),
                           "head/dense3/kernel": ((2, 84), (10, 2))}),
        (models.resnet18(), {"blocks/2/shortcut/conv/kernel": ((2, 64), (128, 2))}),
        (models.lstm(), {"embedding": ((2, 90), (8, 2)), "layer1/input/kernel": ((2, 8), (1024, 2)),
                         "layer2/hidden/kernel": ((2, 256), (1024, 2))}),
        (models.vit_tiny(), {"patch/kernel": ((2, 48), (192, 2)),
                             "blocks/mlp/fc1/kernel": ((12, 2, 192), (12, 768, 2))}),
        (models.transformer(65), {"blocks/3/mlp/fc2/kernel": ((2, 256), (64, 2))}),
    ],
    ids=["lenet5", "resnet18", "lstm", "vit_tiny", "transformer"],
)  # fmt: skip
def test_adapters_of_own_models(model, expected):
    adapted = models.lora(model, RANK, where=lambda path, leaf: "/".join(path) in expected)
    shapes = jax.eval_shape(adapted.init, KEY)["adapters"]
    for path, (of_a, of_b) in expected.items():
        node = shapes
        for key in path.split("/"):
            node = node[key]
        assert (node["a"].shape, node["b"].shape) == (of_a, of_b)


@pytest.mark.parametrize("leaf", ["positions", "embedding", "blocks/attn/qkv/bias"])
def test_other_leaves_of_own_models_are_refused(leaf):
    """Among them the embedding of the transformer, which is also the matrix of its logits."""
    model = models.transformer(65) if leaf == "embedding" else models.vit_tiny()
    with pytest.raises(ValueError, match=f"where selects {leaf} of shape"):
        models.lora(model, where=lambda path, _: "/".join(path) == leaf)
