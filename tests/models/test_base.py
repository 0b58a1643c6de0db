"""The adapters of flax modules."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from fedjax_sim.models.base import from_linen, from_nnx


def sequential(rngs):
    # Twelve children: as strings, "10" sorts before "2".
    layers = [nnx.Linear(3, 3, rngs=rngs) for _ in range(11)]
    return nnx.Sequential(*layers, nnx.Linear(3, 2, rngs=rngs))


class Tied(nnx.Module):
    """One layer used twice."""

    def __init__(self, rngs):
        self.first = nnx.Linear(3, 3, rngs=rngs)
        self.again = self.first

    def __call__(self, x):
        return self.again(jnp.tanh(self.first(x)))


@pytest.mark.parametrize("constructor", [sequential, Tied])
def test_nnx_model_equals_the_module(constructor):
    model = from_nnx(constructor)
    key, x = jax.random.key(3), jax.random.normal(jax.random.key(1), (5, 3))
    expected = constructor(nnx.Rngs(key))(x)
    np.testing.assert_array_equal(model.apply(model.init(key), x), expected)


def test_nnx_params_are_nested_dicts_of_arrays_with_string_keys():
    params = from_nnx(sequential).init(jax.random.key(0))
    assert set(params["layers"]) == {str(i) for i in range(12)}
    assert all(type(leaf) is type(jnp.ones(())) for leaf in jax.tree.leaves(params))
    assert len(from_nnx(Tied).init(jax.random.key(0))) == 1  # a shared layer is stored once


def test_nnx_model_under_transformations():
    model = from_nnx(lambda rngs: nnx.Linear(3, 2, rngs=rngs))
    x = jnp.arange(12.0).reshape(4, 3)
    keys = jax.random.split(jax.random.key(0), 5)
    params = jax.jit(jax.vmap(model.init))(keys)
    assert params["kernel"].shape == (5, 3, 2)

    @jax.checkpoint
    def objective(params):
        return jnp.sum(model.apply(params, x))

    gradients = jax.jit(jax.vmap(jax.grad(objective)))(params)
    # d/dK sum(x K + b) = column sums of x in every column; exact for these small integers.
    expected = np.tile(np.array([[18.0], [22.0], [26.0]]), (5, 1, 2))
    np.testing.assert_array_equal(gradients["kernel"], expected)
    np.testing.assert_array_equal(gradients["bias"], np.full((5, 2), 4.0))


def test_nnx_constructor_is_not_run_on_arrays():
    def constructor(rngs):
        return nnx.Linear(10**6, 10**6, rngs=rngs)  # 4 TB of weights

    model = from_nnx(constructor)
    assert jax.eval_shape(model.init, jax.random.key(0))["kernel"].shape == (10**6, 10**6)


def test_nnx_module_with_other_state_is_refused():
    class Counter(nnx.Module):
        def __init__(self):
            self.calls = nnx.Cache(jnp.zeros(()))

    with pytest.raises(ValueError, match=r"variables calls \(Cache\); expected nnx.Param"):
        from_nnx(lambda rngs: Counter())


@pytest.mark.slow
def test_linen_model_equals_the_module():
    module = linen.Sequential([linen.Dense(4), linen.relu, linen.Dense(2)])
    key, x = jax.random.key(3), jax.random.normal(jax.random.key(1), (5, 3))
    expected = module.apply(module.init(key, x), x)
    for example in (x[:1], jax.ShapeDtypeStruct((1, 3), jnp.float32)):
        model = from_linen(module, example)
        np.testing.assert_array_equal(model.apply(model.init(key), x), expected)


def test_linen_module_with_other_state_is_refused():
    class Counter(linen.Module):
        @linen.compact
        def __call__(self, x):
            self.variable("calls", "count", jnp.zeros, ())
            return x

    with pytest.raises(ValueError, match=r"collections \['calls'\]; expected 'params'"):
        from_linen(Counter(), jnp.ones((1, 3)))


class WithoutStreams(nnx.Module):
    def __init__(self):
        self.layer = nnx.Linear(3, 2, rngs=nnx.Rngs(0))


@pytest.mark.parametrize(
    ("constructor", "message"),
    [
        (lambda: nnx.Linear(3, 2, rngs=nnx.Rngs(0)), "constructor is a Linear; expected a functio"),
        (lambda: linen.Dense(2), "constructor is a Dense; expected a function that builds"),
        (lambda: 3, "constructor is a int; expected a function"),
        (lambda: WithoutStreams, r"constructor takes \(\); expected one argument, the rngs"),
        (lambda: nnx.Linear, r"constructor takes \(in_features, .*; expected one argument"),
        (lambda: lambda rngs: None, "constructor returns a NoneType; expected a flax.nnx module"),
        (lambda: lambda rngs: linen.Dense(2), "constructor returns a Dense; expected a flax.nnx"),
        (
            lambda: lambda rngs: nnx.Linear("a", 2, rngs=rngs),
            r"constructor fails .*\(TypeError: Sha",
        ),
    ],
)
def test_what_builds_no_nnx_module_is_refused(constructor, message):
    with pytest.raises(ValueError, match=message):
        from_nnx(constructor())


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (lambda: linen.Dense, "module is Dense; expected an instance of a flax.linen module"),
        (lambda: lambda: linen.Dense(2), "module is a function; expected an instance"),
        (lambda: nnx.Linear(3, 2, rngs=nnx.Rngs(0)), "module is a Linear; .*from_nnx"),
        (
            lambda: linen.Dense("a"),
            r"module fails for an example_input \. float32\[1, 3\] \(TypeError: .*; expected a fla",
        ),
    ],
)
def test_what_is_no_linen_module_is_refused(module, message):
    with pytest.raises(ValueError, match=message):
        from_linen(module(), jnp.ones((1, 3)))


@pytest.mark.parametrize("example", [(1, 3), [[1.0, 2.0, 3.0]], None])
def test_the_example_of_a_linen_module_has_a_shape(example):
    with pytest.raises(ValueError, match=r"example_input is .*; expected an array or a"):
        from_linen(linen.Dense(2), example)


class Normalised(linen.Module):
    @linen.compact
    def __call__(self, x, train=False):
        return linen.Dense(2)(linen.BatchNorm(use_running_average=not train)(x))


MODELS = {
    "nnx": from_nnx(lambda rngs: nnx.Linear(3, 2, rngs=rngs)),
    "nnx with statistics": from_nnx(
        lambda rngs: nnx.Sequential(
            nnx.BatchNorm(3, momentum=0.9, rngs=rngs), nnx.Linear(3, 2, rngs=rngs)
        )
    ),
    "linen": from_linen(linen.Dense(2), jnp.ones((1, 3))),
    "linen with statistics": from_linen(Normalised(), jnp.ones((1, 3))),
}


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("nnx", {"bias": None}, "params lacks bias; "),
        ("nnx", {"bias": jnp.ones(1)}, r"params has bias of shape \(1,\) instead of \(2,\); "),
        ("nnx", {"kernel": jnp.ones((2, 3, 2))}, r"has kernel of shape \(2, 3, 2\) instead of "),
        ("nnx", {"scale": jnp.ones(2)}, "params has scale, which the model does not have; "),
        ("nnx", {"bias": {"b": 1.0}}, "params lacks bias, and has bias/b, which the model does"),
        ("nnx with statistics", {"layers": {}}, r"lacks layers/0/bias, .*scale and 3 more; "),
        ("nnx with statistics", {"2": jnp.ones(2)}, "params has 2, which the model does not have"),
        ("linen", {"bias": None}, "params lacks bias; "),
        ("linen", {"kernel": jnp.ones((2, 3))}, r"kernel of shape \(2, 3\) instead of \(3, 2\)"),
        ("linen", {"scale": jnp.ones(2)}, "params has scale, which the model does not have; "),
        ("linen with statistics", {"params": {}}, "params lacks params/BatchNorm_0/bias, "),
        (
            "linen with statistics",
            {"batch_stats": {"BatchNorm_0": {"mean": jnp.zeros(3), "var": jnp.ones(1)}}},
            r"params has batch_stats/BatchNorm_0/var of shape \(1,\) instead of \(3,\); ",
        ),
    ],
)
def test_parameters_of_other_models_are_refused(name, change, message, train):
    """A bias [1] was broadcast and unknown leaves were ignored, both silently."""
    model = MODELS[name]
    params = model.init(jax.random.key(0)) | change
    params = {key: value for key, value in params.items() if value is not None}
    x = jnp.ones((4, 3))

    def call():
        if train and model.train is not None:
            return model.train(params, x, jax.random.key(1), jnp.ones(4))
        return model.apply(params, x)

    with pytest.raises(ValueError, match=message) as error:
        call()
    assert str(error.value).endswith("; expected the names and shapes of the model's init(key)")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of flax's unbox
def test_boxes_of_metadata_may_be_left_out():
    kernel = linen.with_partitioning(linen.initializers.ones, ("in", "out"))
    model = from_linen(linen.Dense(2, kernel_init=kernel), jnp.ones((1, 3)))
    boxed = model.init(jax.random.key(0))
    bare = {"kernel": boxed["kernel"].unbox(), "bias": boxed["bias"]}
    outputs = [model.apply(params, jnp.ones((1, 3))).tolist() for params in (boxed, bare)]
    assert outputs == [[[3.0, 3.0]], [[3.0, 3.0]]]
