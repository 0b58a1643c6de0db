"""Quantised models: exactly the plain model where nothing is quantised, gradients by hand."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_params import random_params
from small_problems import assert_close, assert_identical, compiled

import fedjax_sim as fs
from fedjax_sim import models, objectives
from fedjax_sim.compression.quantizers import luq, luq_gradient, sawb_clip
from fedjax_sim.models import Quantizers, auto, low_bit, quantized
from fedjax_sim.models.convolution.lowering import automatic, lowered
from fedjax_sim.models.dense import dense_product

EPS = np.finfo(np.float32).eps
KEY = jax.random.key(3)


def small_mlp(conv, dot):
    del conv
    return models.mlp(6, (5,), 3, dot=dot)


def small_cnn(conv, dot):
    return models.cnn(
        (8, 8, 2), 3, channels=(4, 6), kernel_size=3, hidden=(8,), pool_after=(False, True),
        conv=conv, dot=dot,
    )  # fmt: skip


def small_resnet(conv, dot):
    return models.resnet(3, channels=(4, 8), blocks=(1, 1), conv=conv, dot=dot)


def resnet20(conv, dot):
    return models.resnet20(conv=conv, dot=dot)


SHAPES = {
    small_mlp: (4, 6),
    small_cnn: (4, 8, 8, 2),
    small_resnet: (4, 8, 8, 3),
    resnet20: (1, 8, 8, 3),
}


@functools.cache
def problem(build):
    params = jax.tree.map(np.asarray, random_params(build(auto, dense_product)))
    shape = SHAPES[build]
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    return params, {"x": x, "y": np.arange(shape[0], dtype=np.int32) % 3}


@pytest.mark.slow
@pytest.mark.parametrize("build", [small_mlp, small_cnn, small_resnet])
def test_identity_quantisers_give_the_plain_model(build):
    params, examples = problem(build)

    def step(objective):
        return compiled(jax.value_and_grad(lambda params: objective(params, examples, KEY).mean()))

    # With `auto` itself, arrays between layers would be in blocks.
    plain = build(lowered(automatic), dense_product)
    expected = step(objectives.cross_entropy(plain.apply))(params)
    for exempt in ((), (-1,)):
        apply = quantized(build, Quantizers(), exempt)
        actual = step(objectives.keyed(objectives.cross_entropy, apply))(params)
        assert_identical(actual, expected)


def recorder():
    """Quantisers that note the kernels they see, in order."""
    seen = []

    def weight(kernel):
        seen.append(kernel.shape)
        return kernel

    return seen, Quantizers(weight=weight)


@pytest.mark.slow
def test_all_layers_of_resnet20_but_the_last():
    """A stem, nine blocks of two convolutions, two shortcuts: 21, and the head."""
    params = jax.eval_shape(resnet20(auto, dense_product).init, KEY)
    x = jax.ShapeDtypeStruct(SHAPES[resnet20], jnp.float32)
    seen, quantizers = recorder()
    out = jax.eval_shape(quantized(resnet20, quantizers), params, x, KEY)
    assert out.shape == (1, 10)
    kernels = [leaf.shape for leaf in jax.tree.leaves(params) if len(leaf.shape) == 4]
    assert sorted(seen) == sorted(kernels)
    assert len(seen) == 21
    seen, quantizers = recorder()
    jax.eval_shape(quantized(resnet20, quantizers, exempt=(0, -1)), params, x, KEY)
    assert (3, 3, 3, 16) not in seen
    assert len(seen) == 20
    seen, quantizers = recorder()
    jax.eval_shape(quantized(resnet20, quantizers, exempt=()), params, x, KEY)
    assert seen[-1] == (10, 64)


def grid(x, unit, package):
    return unit * package.round(x / unit)


@jax.custom_jvp
def halves(w):
    return grid(w, 0.5, jnp)


@jax.custom_jvp
def quarters(x):
    return grid(x, 0.25, jnp)


halves.defjvp(lambda primals, tangents: (halves(*primals), tangents[0]))
quarters.defjvp(lambda primals, tangents: (quarters(*primals), 2 * tangents[0]))


@jax.custom_vjp
def eighths_backwards(key, z):
    del key
    return z


eighths_backwards.defvjp(lambda key, z: (z, None), lambda _, ct: (None, grid(ct, 0.125, jnp)))

FIXED = Quantizers(halves, quarters, eighths_backwards)


@pytest.mark.parametrize("exempt", [(), (-1,), (0,)])
def test_gradients_of_two_layers_by_hand(exempt, x64):
    """z1 = Qw(W1) Qa(x) + b1, h = relu(z1), z2 = Qw(W2) Qa(h) + b2, squared error.

    The activations' quantiser has slope 2, so that a straight-through factor left out is seen.
    """
    rng = np.random.default_rng(0)
    w1, b1 = 2 * rng.normal(size=(5, 6)), rng.normal(size=5)
    w2, b2 = 2 * rng.normal(size=(3, 5)), rng.normal(size=3)
    x, y = rng.normal(size=(4, 6)), rng.normal(size=(4, 3))
    params = {
        "dense1": {"kernel": jnp.asarray(w1), "bias": jnp.asarray(b1)},
        "dense2": {"kernel": jnp.asarray(w2), "bias": jnp.asarray(b2)},
    }
    objective = objectives.keyed(objectives.squared_error, quantized(small_mlp, FIXED, exempt))
    examples = {"x": jnp.asarray(x), "y": jnp.asarray(y)}
    step = compiled(jax.value_and_grad(lambda p: objective(p, examples, KEY).sum()))
    loss, gradient = step(params)

    first, second = 0 not in exempt, -1 not in exempt

    def to(values, unit, quantises):
        return grid(values, unit, np) if quantises else values

    qw1, qx = to(w1, 0.5, first), to(x, 0.25, first)
    z1 = qx @ qw1.T + b1
    h = np.maximum(z1, 0)
    qw2, qh = to(w2, 0.5, second), to(h, 0.25, second)
    z2 = qh @ qw2.T + b2
    assert loss == pytest.approx(((z2 - y) ** 2).sum(), rel=1e-12)
    d2 = 2 * (z2 - y)
    q2 = to(d2, 0.125, second)
    d1 = (q2 @ qw2) * (2 if second else 1) * (z1 > 0)
    q1 = to(d1, 0.125, first)
    expected = {
        "dense1": {"kernel": q1.T @ qx, "bias": d1.sum(axis=0)},
        "dense2": {"kernel": q2.T @ qh, "bias": d2.sum(axis=0)},
    }
    assert_close(gradient, expected, rtol=1e-12)  # double precision


@pytest.mark.slow
def test_gradients_through_luq_by_hand():
    """Each layer draws from its own branch of the key; the last is exempt."""
    params, examples = problem(small_mlp)
    apply = quantized(small_mlp, Quantizers(gradient=luq_gradient))
    gradient = compiled(jax.grad(lambda p: (apply(p, examples["x"], KEY) ** 2).sum()))(params)
    w1, b1 = (np.asarray(params["dense1"][name], float) for name in ("kernel", "bias"))
    w2, b2 = (np.asarray(params["dense2"][name], float) for name in ("kernel", "bias"))
    x = np.asarray(examples["x"], float)
    z1 = x @ w1.T + b1
    d2 = 2 * (np.maximum(z1, 0) @ w2.T + b2)
    d1 = (d2 @ w2) * (z1 > 0)
    q1 = np.asarray(luq(jax.random.fold_in(KEY, 0), jnp.asarray(d1, jnp.float32)))
    # Single precision; the cotangents that the model rounds differ from d1 by round-off only.
    np.testing.assert_allclose(gradient["dense1"]["kernel"], q1.T @ x, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(gradient["dense2"]["kernel"], d2.T @ np.maximum(z1, 0), rtol=1e-4)
    assert np.abs(q1 - d1).max() > 0.01


def test_quantised_gradients_are_unbiased():
    """Every layer's product is linear in the cotangent, and layers draw independently."""
    draws = 1000
    params, examples = problem(small_mlp)
    apply = quantized(small_mlp, Quantizers(gradient=luq_gradient), exempt=())
    plain = quantized(small_mlp, Quantizers())

    def gradient(apply, key):
        return jax.grad(lambda p: (apply(p, examples["x"], key) ** 2).sum())(params)

    keys = jax.random.split(KEY, draws)
    sampled = compiled(jax.vmap(lambda key: gradient(apply, key)))(keys)
    exact = compiled(lambda: gradient(plain, KEY))()

    def compare(sample, expected):
        sample = np.asarray(sample, float)
        error = np.abs(sample.mean(axis=0) - np.asarray(expected))
        # Five standard errors of a mean, and round-off where nothing varies.
        slack = 1e-5 * np.abs(expected).max()
        assert (error <= 5 * sample.std(axis=0) / np.sqrt(draws) + slack).all()

    jax.tree.map(compare, sampled, exact)
    assert np.asarray(sampled["dense1"]["kernel"]).std(axis=0).max() > 0.01


@pytest.mark.slow
def test_low_bits():
    """A hidden layer sees 7 values of weights and 8 of activations that are not negative."""
    x = np.random.default_rng(0).standard_normal((40, 30)).astype(np.float32)

    @functools.partial(compiled, static_argnums=0)
    def rounded(quantizers, x):
        return (
            quantizers.weight(x),
            quantizers.activation(x),
            quantizers.activation(jax.nn.relu(x)),
            jax.grad(lambda z: (quantizers.gradient(KEY, z) ** 3).sum())(x),
        )

    weights, activations, positive, cotangents = map(np.unique, rounded(low_bit(), x))
    assert (len(weights), len(activations), len(positive)) == (7, 7, 8)
    assert len(cotangents) <= 15
    five = low_bit(weight_bits=2, activation_bits=5, gradient_levels=1)
    weights, activations, _, cotangents = map(np.unique, rounded(five, x))
    assert len(weights) == 3
    assert 7 < len(activations) <= 31
    assert len(cotangents) <= 5


@pytest.mark.slow
@pytest.mark.parametrize("build", [small_mlp, small_cnn])
def test_clients_and_keys_batch(build):
    """Vmapped over clients' parameters and keys as over one after the other."""
    params, examples = problem(build)
    clients = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), params)
    keys = jax.random.split(KEY, 2)
    apply = quantized(build, low_bit(clip=lambda x, levels: jnp.abs(x).max()))
    objective = objectives.keyed(objectives.cross_entropy, apply)

    def gradient(params, key):
        return jax.grad(lambda p: objective(p, examples, key).mean())(params)

    batched = compiled(jax.vmap(gradient))(clients, keys)
    for i, key in enumerate(keys):
        one = jax.tree.map(lambda leaf: leaf[i], clients)  # noqa: B023
        actual = jax.tree.map(lambda leaf: leaf[i], batched)  # noqa: B023
        # Products in another order, in single precision.
        assert_close(actual, compiled(gradient)(one, key), rtol=1e-4)


@pytest.mark.slow
def test_training_with_quantised_clients():
    """The stored parameters stay off the grid; steps and cohorts as of any objective."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(48, 6)).astype(np.float32)
    y = (x[:, :3] + 0.3 * rng.normal(size=(48, 3))).argmax(axis=1).astype(np.int32)
    data = fs.FederatedData({"x": x, "y": y}, np.arange(0, 49, 8))
    model = small_mlp(auto, dense_product)
    params = model.init(jax.random.key(0))
    objective = objectives.keyed(objectives.cross_entropy, quantized(small_mlp))
    task = fs.empirical_task(objective, data, fs.epochs(2, batch_size=4))
    timeline = fs.timelines.full(15, 6, task.num_steps)

    def final(cohort):
        run = compiled(
            lambda task: fs.run(
                fs.fedavg(0.2), fs.Setup(task, timeline, params), KEY, execution=cohort
            )
        )
        return run(task)[0].server.params

    trained = final(fs.execution.sequential())
    assert jax.tree.structure(trained) == jax.tree.structure(params)
    assert len(np.unique(trained["dense1"]["kernel"])) == 30
    plain = objectives.cross_entropy(model.apply)
    losses = [float(plain(p, {"x": x, "y": y}, None).mean()) for p in (params, trained)]
    assert losses[1] < 0.7 * losses[0]
    # Rounding amplifies round-off where it tips an entry over; here it does not.
    assert_close(final(fs.execution.vmapped()), trained, rtol=1e-3)


@pytest.mark.parametrize(
    ("build", "clip"), [(small_mlp, None), (small_mlp, sawb_clip()), (small_cnn, None)]
)
def test_a_short_minibatch_is_quantised_without_the_examples_that_fill_it_up(build, clip):
    """Minibatches of 3 and 1 of four examples, of which the filling one is 50 times as large."""
    params, examples = problem(build)
    x = np.array(examples["x"])
    x[0] *= 50
    quantizers = low_bit(clip=clip)._replace(gradient=Quantizers().gradient)
    objective = objectives.keyed(objectives.cross_entropy, quantized(build, quantizers))
    data = fs.FederatedData({"x": x, "y": examples["y"]}, np.array([0, 4]))
    order, key = fs.epochs(1, batch_size=3), jax.random.key(2)
    task = fs.empirical_task(objective, data, order, full_grad_batch=3)
    oracle = task.oracle(jnp.array(0), key, 2)
    regularised = fs.empirical_task(objectives.with_l2(objective, 0.0), data, order)

    def of_rows(rows):
        part = {"x": x[rows], "y": examples["y"][rows]}
        return jax.value_and_grad(lambda params: objective(params, part, key).mean())(params)

    alone = [of_rows([row]) for row in range(4)]
    loss, gradient = oracle.loss(params, 1), oracle.grad(params, 1)
    row = int(np.argmin([abs(one[0] - loss) for one in alone]))
    assert row != 0  # which fills up
    assert_close((loss, gradient), alone[row], rtol=1e-5)
    assert_close(regularised.oracle(jnp.array(0), key, 2).loss(params, 1), loss, rtol=1e-6)
    if clip is None:  # with the other one many entries are ties, which rounding decides
        three = of_rows([0, 1, 2])
        blocks = jax.tree.map(lambda three, one: (3 * three + one) / 4, three[1], alone[3][1])
        assert_close(oracle.full_grad(params), blocks, rtol=1e-4)


def test_bad_arguments():
    params, examples = problem(small_mlp)
    for exempt in ((2,), (-3,)):
        with pytest.raises(ValueError, match=r"exempt is .*; expected numbers of the model's 2"):
            quantized(small_mlp, exempt=exempt)(params, examples["x"], KEY)
    for name, value in itertools.product(("weight_bits", "activation_bits"), (1, 0)):
        with pytest.raises(ValueError, match=f"{name} is {value}"):
            low_bit(**{name: value})
    with pytest.raises(ValueError, match="gradient_levels is -1"):
        low_bit(gradient_levels=-1)
    for name in ("weight_bits", "activation_bits", "gradient_levels"):
        for value in (2.5, True, "3"):
            with pytest.raises(ValueError, match=f"{name} is {value!r}; expected an integer"):
                low_bit(**{name: value})
    for name in ("weight_bits", "activation_bits"):
        with pytest.raises(ValueError, match=f"{name} is 40; expected at most 31"):
            low_bit(**{name: 40})


@pytest.mark.parametrize("dtype", [np.uint8, np.int32])
def test_integer_inputs_are_quantised_as_numbers(dtype):
    """Levels are no integers of the inputs' type, in which negative ones would wrap."""
    params, examples = problem(small_mlp)
    x = np.random.default_rng(0).integers(0, 251, examples["x"].shape)
    apply = compiled(quantized(small_mlp))
    expected = apply(params, x.astype(np.float32), KEY)
    np.testing.assert_array_equal(apply(params, x.astype(dtype), KEY), expected)


@pytest.mark.slow
def test_products_of_all_builders():
    """The argument reaches every dense layer."""
    builders = {
        models.mlp: (((4,), (5,), 2), 2, (1, 4)),
        models.lenet5: ((), 3, (1, 32, 32, 3)),
        models.femnist_cnn: ((), 2, (1, 28, 28, 1)),
        models.digits_cnn: ((), 2, (1, 8, 8, 1)),
        models.resnet18: ((), 1, (1, 8, 8, 3)),
        models.resnet20: ((), 1, (1, 8, 8, 3)),
    }
    for build, (args, count, shape) in builders.items():
        kernels = []

        def dot(x, kernel, kernels=kernels):
            kernels.append(kernel.shape)
            return dense_product(x, kernel)

        model = build(*args, dot=dot)
        params = jax.eval_shape(model.init, KEY)
        jax.eval_shape(model.apply, params, jax.ShapeDtypeStruct(shape, jnp.float32))
        assert len(kernels) == count


def of_one_example(conv, dot):
    """A model of examples one by one, whose layers have inputs without an axis of examples."""
    del conv

    def apply(params, x):
        def one(x):
            return dot(dot(x, params["first"]), params["second"]).mean(0)

        return jax.vmap(one)(x)

    return models.Model(lambda key: {}, apply)


def of_tokens(conv, dot):
    """A model with a product of its parameters, whose first axis is no axis of examples."""
    del conv
    return models.Model(
        lambda key: {}, lambda p, x: dot(x[:, 0], p["second"] * 0 + dot(p["first"], p["second"]))
    )


@pytest.mark.parametrize("build", [of_one_example, of_tokens])
def test_other_axes_than_that_of_the_examples_are_kept_in_short_minibatches(build):
    """Four entries on the first axis of a layer's input, as many as the minibatch has rows."""
    draws = jax.random.normal(KEY, (6, 4, 4))
    params, x = {"first": draws[0], "second": draws[1]}, draws[2:]
    apply = quantized(build, low_bit()._replace(gradient=Quantizers().gradient), exempt=())
    alone = apply(params, x[:3], KEY)
    filled = apply.weighted(params, x, KEY, jnp.array([1.0, 1.0, 1.0, 0.0]))
    assert_close(filled[:3], alone, rtol=1e-6)
    assert apply.weighted(params, x[:3], KEY, jnp.array([1.0, 1.0, 0.0])).shape == alone.shape
