"""LoRA: it starts as the base model and equals merged kernels; means over clients."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from small_problems import compiled

import fedjax_sim as fs
from fedjax_sim import models
from fedjax_sim.models.layers import Adapted, product
from fedjax_sim.models.vit import vit
from fedjax_sim.objectives import cross_entropy
from fedjax_sim.tree.leaves import last_layer

RANK, ALPHA, KEY = 2, 3.0, jax.random.key(0)
RNG = np.random.default_rng(0)


def kernels(path, leaf):
    return path[-1] == "kernel"


# Model, examples, where: kernels with a leading axis and blocks of rows, one by one, merged ones.
MODELS = {
    "vit": (
        vit((4, 4, 1), 3, patch_size=2, width=6, depth=2, heads=2),
        RNG.random((5, 4, 4, 1), np.float32),
        models.queries_and_values,
    ),
    "transformer": (
        models.transformer(7, width=8, depth=2, heads=2),
        RNG.integers(0, 7, (5, 4)).astype(np.int32),
        models.queries_and_values,
    ),
    "mlp": (models.mlp(4, (5,), 3), RNG.random((5, 4), np.float32), kernels),
}


def drawn(model, seed=1, scale=0.3):
    """Parameters of which none is 0."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(model.init, KEY)
    return jax.tree.map(lambda x: scale * rng.standard_normal(x.shape).astype(x.dtype), shapes)


@pytest.mark.parametrize(
    "name",
    ["mlp", *(pytest.param(name, marks=pytest.mark.slow) for name in ("vit", "transformer"))],
)
def test_starts_as_the_base_model_and_equals_merged_kernels(name):
    base, x, where = MODELS[name]
    model = models.lora(base, RANK, ALPHA, where)

    @compiled
    def outputs(params, x):
        merged = models.merge_lora(base, params, ALPHA, where)
        return model.apply(params, x), base.apply(merged, x), base.apply(params["base"], x)

    start = compiled(model.init)(KEY)
    adapters = start["adapters"]
    # Programs of their own: in one, the compiler may order the sums of the two differently.
    np.testing.assert_array_equal(
        compiled(model.apply)(start, x), compiled(base.apply)(start["base"], x)
    )
    actual, expected, without = outputs(drawn(model), x)
    # Sums in another order.
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    assert np.abs(np.asarray(actual - without)).max() > 1e-3
    for path, leaf in jax.tree_util.tree_leaves_with_path(adapters):
        bound = leaf.shape[-1] ** -0.5 if path[-1].key == "a" else 0
        assert np.abs(leaf).max() <= bound
        assert (np.abs(leaf).max() > bound / 2) == (bound > 0)


def test_products_with_factors():
    """W x + s B (A x) is (W + s B A) x."""
    kernel, x = RNG.standard_normal((5, 3)), RNG.standard_normal((2, 3))
    rows = ((0, 2), (3, 5))
    factors = tuple(
        {"a": RNG.standard_normal((1, 3)), "b": RNG.standard_normal((2, 1))} for _ in rows
    )
    expected = kernel.copy()
    for (first, end), one in zip(rows, factors, strict=True):
        expected[first:end] += 0.5 * one["b"] @ one["a"]
    arrays = jax.tree.map(jnp.asarray, (kernel, factors, np.full((), 0.5), x))
    adapted = Adapted(*arrays[:3], rows)
    merged, outputs = compiled(lambda kernel, x: (kernel.merged(), product(kernel, x)))(
        adapted, arrays[3]
    )
    np.testing.assert_allclose(merged, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(outputs, x @ expected.T, rtol=1e-5, atol=1e-6)


def test_blocks_of_rows():
    """Kernels of keys stay as they are in a common kernel of queries, keys and values."""
    base, _, where = MODELS["vit"]
    params = drawn(models.lora(base, RANK, ALPHA, where))
    qkv = params["adapters"]["blocks"]["attn"]["qkv"]["kernel"]
    assert qkv["0"]["a"].shape == (2, RANK, 6)
    assert qkv["1"]["b"].shape == (2, 6, RANK)
    change = (
        models.merge_lora(base, params, ALPHA, where)["blocks"]["attn"]["qkv"]["kernel"]
        - params["base"]["blocks"]["attn"]["qkv"]["kernel"]
    )
    expected = np.zeros((2, 18, 6))
    for block in range(2):
        for rows, name in ((slice(0, 6), "0"), (slice(12, 18), "1")):
            factors = qkv[name]
            expected[block, rows] = ALPHA / RANK * factors["b"][block] @ factors["a"][block]
    np.testing.assert_allclose(change, expected, atol=1e-5)


@pytest.mark.slow
def test_number_of_adapters():
    """4 L d r for queries and values of L layers of width d: 294,912 of ViT-Base at rank 8."""
    for base in (models.vit_base16(), models.transformer(65, width=768, depth=12, heads=12)):
        params = jax.eval_shape(models.lora(base, 8).init, KEY)
        assert sum(leaf.size for leaf in jax.tree.leaves(params["adapters"])) == 294_912


def linear_problem():
    """Two clients with least squares on a kernel [2, 3], which has an adapter of rank 1."""
    base = fs.models.Model(
        lambda key: {"dense": {"kernel": jnp.zeros((2, 3))}},
        lambda params, x: x @ params["dense"]["kernel"].T,
    )
    model = models.lora(base, 1, 1.0, kernels)
    clients = [
        {"x": RNG.standard_normal((4, 3)), "y": RNG.standard_normal((4, 2))} for _ in range(2)
    ]
    objective = fs.objectives.squared_error(model)
    task = fs.empirical_task(objective, fs.from_clients(clients), fs.full_batch(3))
    params = drawn(model)
    params = jax.tree.map(lambda x: x.astype(np.float64), params)
    return model, fs.Setup(task, fs.timelines.full(1, 2, 3), params)


@pytest.mark.parametrize("frozen", [models.lora_frozen, models.ffa_lora_frozen])
def test_mean_of_adapters(x64, frozen):
    """The mean of products is the product of means if, and only if, all clients have the same A."""
    _, setup = linear_problem()
    algorithm = fs.freeze(fs.fedavg(0.05), frozen)

    @compiled
    def factors(mask):
        timeline = dataclasses.replace(setup.timeline, mask=mask)
        state, _ = fs.run(algorithm, dataclasses.replace(setup, timeline=timeline), KEY)
        found = state.server.params["adapters"]["dense"]["kernel"]
        return found["b"], found["a"]

    masks = np.array([[[True, True]], [[True, False]], [[False, True]]])
    (b, a), *clients = [[np.asarray(x) for x in factors(mask)] for mask in masks]
    np.testing.assert_allclose(b, sum(b for b, _ in clients) / 2, rtol=1e-12)
    np.testing.assert_allclose(a, sum(a for _, a in clients) / 2, rtol=1e-12)
    gap = np.abs(b @ a - sum(b @ a for b, a in clients) / 2).max()
    if frozen is models.ffa_lora_frozen:
        np.testing.assert_array_equal(a, setup.params["adapters"]["dense"]["kernel"]["a"])
        assert gap < 1e-15
    else:
        assert gap > 1e-5


@pytest.mark.slow
def test_clients_hold_adapters_only():
    """The forecast counts them: uploads, and client states of SCAFFOLD, have 4 L d r floats."""
    base, x, where = MODELS["transformer"]
    model = models.lora(base, RANK, ALPHA, where)
    clients = [{"x": x, "y": x}, {"x": x[:2], "y": x[:2]}]
    task = fs.empirical_task(cross_entropy(model), fs.from_clients(clients), fs.epochs(1, 5))
    params = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), jax.eval_shape(model.init, KEY))
    setup = fs.Setup(task, fs.timelines.full(3, 2, task.num_steps), params)
    algorithm = fs.freeze(fs.scaffold(0.1), models.lora_frozen)
    needs = fs.forecast(algorithm, setup, KEY, measure=False)
    adapters = 4 * 2 * 8 * RANK
    assert needs.client_bytes == 4 * adapters
    assert needs.upload_bytes == 2 * 4 * adapters  # the model's change and the control's
    assert needs.parts["client states"] == 2 * 4 * adapters
    assert needs.parameters == adapters + 7 * 8 + 2 * (12 * 64 + 16) + 8


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_base_models_in_half_precision(name):
    """A frozen base in bfloat16 beside adapters in float32, which move as beside the same base.

    Outputs of the transformer are in bfloat16; the others are rounded nowhere.
    """
    base, x, where = MODELS[name]
    model = models.lora(base, RANK, ALPHA, where)
    objective = cross_entropy(model)
    labels = x if name == "transformer" else np.arange(5) % 3
    task = fs.empirical_task(objective, fs.from_clients([{"x": x, "y": labels}]), fs.full_batch(5))
    rounded = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), drawn(base))
    start = compiled(model.init)(KEY)
    algorithm = fs.freeze(fs.fedavg(0.1), models.lora_frozen)

    @compiled
    def adapters(params):
        setup = fs.Setup(task, fs.timelines.full(2, 1, 5), params)
        return fs.run(algorithm, setup, KEY)[0].server.params["adapters"]

    with jax.numpy_dtype_promotion("standard"):
        mixed = adapters(start | {"base": rounded})
        single = adapters(start | {"base": fs.tree.wide(rounded)})
    changes = [jax.tree.map(lambda x, y: x - y, one, start["adapters"]) for one in (mixed, single)]
    assert {leaf.dtype for leaf in jax.tree.leaves(mixed)} == {np.dtype(np.float32)}
    half = models.in_precision(model, jnp.bfloat16)
    outputs = jax.eval_shape(half.apply, {"adapters": mixed, "base": rounded}, x)
    assert outputs.dtype == np.float32
    distance = float(fs.tree.norm(fs.tree.sub(*changes)) / fs.tree.norm(changes[1]))
    assert distance < (0.03 if name == "transformer" else 1e-5)


@pytest.mark.slow
def test_frozen_models_with_running_statistics():
    """Dropout and batch normalisation of the base model; only adapters and statistics move."""
    base = models.from_nnx(
        lambda rngs: nnx.Sequential(
            nnx.Linear(4, 4, rngs=rngs), nnx.BatchNorm(4, rngs=rngs), nnx.Dropout(0.5, rngs=rngs),
            nnx.Linear(4, 2, rngs=rngs),
        )
    )  # fmt: skip
    model = models.lora(base, 1, 1.0, kernels)
    assert model.train is not None
    clients = [{"x": RNG.random((6, 4), np.float32), "y": np.array([0, 1] * 3)}] * 2
    task = fs.empirical_task(cross_entropy(model), fs.from_clients(clients), fs.full_batch(2))
    params = compiled(model.init)(KEY)
    setup = fs.Setup(task, fs.timelines.full(2, 2, 2), params)
    assert model.statistics is not None
    algorithm = fs.running_statistics(
        fs.freeze(fs.fedavg(0.1), models.lora_frozen), model.statistics
    )
    state, _ = compiled(lambda setup: fs.run(algorithm, setup, KEY))(setup)
    moved = [
        "/".join(fs.tree.leaves.names(path))
        for (path, new), old in zip(
            jax.tree_util.tree_leaves_with_path(state.server.params),
            jax.tree.leaves(params),
            strict=True,
        )
        if (np.asarray(new) != np.asarray(old)).any()
    ]
    assert all(name.startswith("adapters") or name[-3:] in ("ean", "var") for name in moved)
    assert {name.split("/")[0] for name in moved} == {"adapters", "base"}


def test_last_layer_and_messages():
    base, _, where = MODELS["mlp"]
    params = jax.eval_shape(models.lora(base, where=last_layer).init, KEY)
    assert list(params["adapters"]) == ["dense2"]
    with pytest.raises(ValueError, match=r"rank is 0; expected at least 1"):
        models.lora(base, 0, where=where)
    for alpha in ("8", jnp.ones(2), float("nan"), lambda round: 8.0):
        with pytest.raises(ValueError, match="alpha "):
            models.lora(base, alpha=alpha, where=where)
        with pytest.raises(ValueError, match="alpha "):
            models.merge_lora(base, {}, alpha, where)
    with pytest.raises(ValueError, match=r"selects none of the leaves; expected kernels among de"):
        models.lora(base)
    with pytest.raises(ValueError, match=r"selects dense1/bias of shape \(5,\) and dtype float32"):
        models.lora(base, where=lambda path, leaf: path[-1] == "bias")


@pytest.mark.parametrize("true", [lambda found: found, np.bool_, lambda found: found and "yes"])
def test_where_may_return_any_true_value(true):
    """As every other predicate of leaves; a match of a regular expression, for instance."""
    model = models.lora(MODELS["mlp"][0], RANK, where=lambda path, leaf: true(kernels(path, leaf)))
    shapes = jax.eval_shape(model.init, KEY)["adapters"]
    assert shapes["dense1"]["kernel"]["b"].shape == (5, RANK)


@pytest.mark.parametrize("rows", [(0, 6), (-1, 2), (2, 2), (3, 1)])
def test_rows_that_a_kernel_does_not_have_are_refused(rows):
    with pytest.raises(ValueError, match=r"where selects the rows .* of dense1/kernel; expected"):
        models.lora(MODELS["mlp"][0], where=lambda path, leaf: leaf.ndim == 2 and (rows,))
