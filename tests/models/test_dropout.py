"""Random streams: the key of a step decides the masks; evaluation draws none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from small_problems import compiled

import fedjax_sim as fs
from fedjax_sim.models import from_linen, from_nnx, mlp
from fedjax_sim.objectives import cross_entropy, keyed, squared_error

RATE, KEY = 0.3, jax.random.key(5)


class WithMode(linen.Module):
    """A module with the usual argument of linen, and a stream of another name."""

    @linen.compact
    def __call__(self, x, train: bool):
        return linen.Dropout(RATE, deterministic=not train, rng_collection="noise")(x)


class WithDefault(linen.Module):
    """Without the argument it would never drop anything."""

    @linen.compact
    def __call__(self, x, is_training: bool = False):
        return linen.Dropout(RATE, deterministic=not is_training)(x)


MODELS = {
    "nnx": lambda: from_nnx(lambda rngs: nnx.Dropout(RATE, rngs=rngs)),
    "linen, the mode is open": lambda: from_linen(linen.Dropout(RATE), jnp.ones((1, 4))),
    "linen, an argument": lambda: from_linen(WithMode(), jnp.ones((1, 4))),
    "linen, a default": lambda: from_linen(WithDefault(), jnp.ones((1, 4))),
}
every_kind = pytest.mark.parametrize(
    "build",
    [
        pytest.param(build, id=name, marks=[] if name == "nnx" else pytest.mark.slow)
        for name, build in MODELS.items()
    ],
)


@every_kind
def test_key_decides_the_mask(build):
    model = build()
    params, x = model.init(jax.random.key(0)), jnp.ones((100, 200))
    assert jax.tree.leaves(params) == []
    assert model.statistics is None

    train = compiled(model.train)

    def outputs(key):
        return np.asarray(train(params, x, key, jnp.ones(100, bool))[0])

    first = outputs(KEY)
    np.testing.assert_array_equal(outputs(KEY), first)
    assert (outputs(jax.random.key(6)) != first).mean() > 0.3  # 2 * 0.3 * 0.7
    np.testing.assert_array_equal(model.apply(params, x), x)
    # Entries are 0 with probability 0.3, else 1 / 0.7; 5 standard deviations of the mean.
    assert set(np.unique(first)) == {np.float32(0), np.float32(1) / np.float32(1 - RATE)}
    assert abs((first == 0).mean() - RATE) < 5 * np.sqrt(RATE * (1 - RATE) / first.size)


@pytest.mark.slow
def test_layers_of_one_module_have_masks_of_their_own():
    class Two(nnx.Module):
        def __init__(self, rngs):
            self.layers = nnx.List([nnx.Dropout(RATE, rngs=rngs) for _ in range(2)])

        def __call__(self, x):
            return jnp.stack([layer(x) for layer in self.layers])

    train = compiled(from_nnx(Two).train)
    first, second = train({}, jnp.ones((1, 100)), KEY, jnp.ones(1))[0]
    assert (first != second).any()


def masked_linear(rngs):
    return nnx.Sequential(nnx.Dropout(0.5, rngs=rngs), nnx.Linear(40, 1, use_bias=False, rngs=rngs))


@pytest.mark.slow
def test_steps_clients_and_rounds_have_different_masks():
    """The gradient of an example of ones is zero where its input was dropped."""
    model = from_nnx(masked_linear)
    example = {"x": np.ones((1, 40), np.float32), "y": np.full((1, 1), 9, np.float32)}
    data = fs.from_clients([example] * 3)
    task = fs.empirical_task(squared_error(model), data, fs.full_batch(2))
    params = compiled(model.init)(KEY)

    def masks(visit):
        gradients = [visit.oracle.grad(visit.message, k) for k in (0, 1, 1)]
        return jnp.stack([g["layers"]["1"]["kernel"][:, 0] != 0 for g in gradients])

    @compiled
    def go(setup):
        probes = fs.Probes(client={"masks": masks})
        return fs.run(fs.fedavg(0.0), setup, KEY, probes=probes)[1].probes["masks"]

    found = np.asarray(go(fs.Setup(task, fs.timelines.full(2, 3, 2), params)))  # [T, S, 3, 40]
    np.testing.assert_array_equal(found[:, :, 1], found[:, :, 2])  # one step, one mask
    distinct = {mask.tobytes() for mask in found[:, :, :2].reshape(12, 40)}
    assert len(distinct) == 12


@pytest.mark.slow
def test_objective_of_a_model_passes_the_key():
    model = from_nnx(masked_linear)
    by_hand = keyed(squared_error, lambda p, x, key: model.train(p, x, key, jnp.ones(5))[0])

    @compiled
    def go(key):
        params = model.init(key)
        examples = {"x": jnp.ones((5, 40)), "y": jnp.zeros((5, 1))}
        evaluation = squared_error(lambda params, x: model.apply(params, x))
        objectives = squared_error(model), by_hand, evaluation
        return [objective(params, examples, key) for objective in objectives]

    losses, expected, evaluated = go(KEY)
    np.testing.assert_array_equal(losses, expected)
    assert (losses != evaluated).all()


def test_objective_of_a_plain_model_is_that_of_its_function():
    model = mlp(3, (4,), 2)
    assert model.train is None
    assert cross_entropy(model) == cross_entropy(model.apply)


@pytest.mark.parametrize("make", [cross_entropy, squared_error])
def test_objective_of_the_evaluating_function_is_refused(make):
    with pytest.raises(ValueError, match=r"expected the model itself, as in cross_en"):
        make(from_nnx(masked_linear).apply)
