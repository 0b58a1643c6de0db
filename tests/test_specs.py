"""Specs: algorithms and schedules as values, leaves of pytrees, and the decorator of factories."""

import copy
import json
import pickle
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_sim as fs
from fedjax_sim.local import exponential_decay
from fedjax_sim.types.specs import spec_of


class State(NamedTuple):
    params: jax.Array


@fs.specified
def gradient_descent(lr: float, scale: float | None = None, *, power: int = 1) -> fs.FedAlgorithm:
    """One step of gradient descent."""
    scale = 1.0 if scale is None else scale
    return fs.FedAlgorithm(
        State,
        lambda x, state, oracle, work: (oracle.grad(x, 0), state),
        lambda state, mean, round: State(state.params - lr * scale**power * mean),
    )


@fs.specified(static=("share",))
def kept(share: float, weight: float):
    return lambda x: weight * x[: int(share * len(x))]


@fs.specified
def with_labels(algorithm: fs.FedAlgorithm, labels, weight=0.5) -> fs.FedAlgorithm:
    del labels, weight
    return algorithm._replace(update=lambda state, mean, round: state)


def unspecified() -> fs.FedAlgorithm:
    return gradient_descent(0.1)._replace(init=lambda params: State(2 * params))


def setup_of_quadratics() -> fs.Setup:
    """F_i(w) = (w - i)^2 / 2 for two clients, three rounds."""

    def oracle(client, key, max_steps):
        del key, max_steps
        client = client.astype(jnp.float32)
        return fs.Oracle(lambda w, step=0: w - client, lambda w, step: w, lambda w: w - client)

    task = fs.Task(oracle, np.ones(2, int), np.ones(2, int))
    return fs.Setup(task, fs.timelines.full(3, 2, task.num_steps), jnp.float32(0))


def test_calls_with_equal_arguments_have_equal_specs():
    expected = fs.Spec("scaffold", lr=0.1, server_lr=1.0, option="II")
    assert fs.scaffold(0.1).spec == expected
    assert hash(fs.scaffold(lr=0.1, option="II").spec) == hash(expected)
    assert fs.Spec(fs.scaffold, lr=0.1) == expected
    assert fs.scaffold(0.1, option="I").spec != expected
    assert fs.scaffold(0.1, server_lr=0.5).spec != expected
    assert fs.fedavg(0.1).spec != expected


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (1, 1.0, True),  # a rate
        (float("nan"), float("nan"), True),
        (0.0, -0.0, False),
        (0.5, np.float32(0.5), False),  # not weakly typed
        (np.float32(0.5), jnp.float32(0.5), True),
        (np.array([0.5, 1]), np.array([0.5, 1]), True),
        (np.array([0.5, 1]), np.array([0.5, 2]), False),
        (np.array([0.5, 1]), np.array([[0.5, 1]]), False),
        (np.zeros(2), np.zeros(2, np.float32), False),
        (np.array([1, 2]), np.array([1, 2]), True),
        (np.array([1, 2]), np.array([1, 3]), False),
        (exponential_decay(0.1, 0.9), exponential_decay(0.1, 0.9), True),
        (exponential_decay(0.1, 0.9), exponential_decay(0.1, 0.8), False),
        ((0.1, {"a": [1, None]}), (0.1, {"a": [1, None]}), True),
        ((0.1, {"a": [1, None]}), (0.1, {"a": [1.0, None]}), False),
        ((True,), (1,), False),
        (jnp.sin, jnp.sin, True),
        (jnp.sin, jnp.cos, False),
        ({1, 2}, {1, 2}, False),  # it has no hash, so it equals only itself
        (fs.prox.L1(0.1), fs.prox.L1(0.1), True),
        (fs.prox.L1(0.1), fs.prox.L1(0.2), False),
    ],
)
def test_arguments_are_compared_by_value(one, other, equal):
    assert (gradient_descent(one).spec == gradient_descent(other).spec) is equal


def test_only_integers_of_numbers_count_as_floating():
    algorithm = fs.fedavg(0.1)  # `labels` has no annotation
    assert with_labels(algorithm, 1).spec != with_labels(algorithm, 1.0).spec
    assert type(gradient_descent(0.1, power=1).spec.arguments["power"]) is int


def test_factories_of_one_name_are_different_specs():
    def factory():
        @fs.specified
        def make(lr: float):
            return lambda round: lr

        return make

    assert factory()(0.1).spec.name == factory()(0.1).spec.name
    assert factory()(0.1).spec != factory()(0.1).spec


def test_text_and_json_are_readable():
    spec = with_labels(fs.fedprox(exponential_decay(0.1, 0.9), 1), np.arange(3)).spec
    inside = "fedprox(lr=exponential_decay(lr=0.1, decay=0.9), mu=1.0, server=None)"
    assert repr(spec) == f"test_specs.with_labels(algorithm={inside}, labels=int64[3], weight=0.5)"
    assert repr(gradient_descent(0.1)) == "test_specs.gradient_descent(lr=0.1, scale=None, power=1)"
    assert repr(kept(0.5, float("inf")).spec) == "test_specs.kept(share=0.5, weight=inf)"
    found = json.loads(json.dumps(spec.to_json(), allow_nan=False))
    assert found["name"] == "test_specs.with_labels"
    assert found["arguments"]["labels"]["array"] == "int64[3]"
    assert found["arguments"]["algorithm"]["arguments"]["mu"] == 1.0
    assert kept(0.5, float("inf")).spec.to_json()["arguments"]["weight"] == "inf"
    assert fs.fedavg(0.1).spec.to_json()["arguments"]["anchored"] == "_unchanged"


def test_leaves_are_the_floating_numbers():
    spec = with_labels(fs.fedprox(exponential_decay(0.1, 0.9), 1), np.arange(3)).spec
    assert jax.tree.leaves(spec) == [0.1, 0.9, 1.0, 0.5]
    assert jax.tree.leaves(kept(0.5, 2.0).spec) == [2.0]
    assert jax.tree.leaves(gradient_descent(1, power=3).spec) == [1.0]
    assert jax.tree.structure(kept(0.5, 2).spec) == jax.tree.structure(kept(0.5, 3.0).spec)
    assert jax.tree.structure(kept(0.5, 2).spec) != jax.tree.structure(kept(0.4, 2).spec)
    assert jax.tree.structure(fs.fedavg(1).spec) == jax.tree.structure(fs.fedavg(0.5).spec)


def test_unflattening_calls_no_factory():
    leaves, structure = jax.tree.flatten(fs.scaffold(0.1).spec)
    marks = [object() for _ in leaves]
    spec = jax.tree.unflatten(structure, marks)  # the factory would refuse these
    assert jax.tree.leaves(spec) == marks
    assert jax.tree.structure(spec) == structure


def test_one_program_for_all_numbers():
    count = []

    @jax.jit
    def trained(spec, setup):
        count.append(1)
        return fs.run(spec.build(), setup, jax.random.key(0))[0].server.params

    setup = setup_of_quadratics()
    found = [trained(gradient_descent(lr).spec, setup) for lr in (0.5, 1, 0.25)]
    # w <- w - lr (w - 1/2) from 0: 1/2 (1 - (1 - lr)^3); exact in float32.
    np.testing.assert_array_equal(found, [(1 - (1 - lr) ** 3) / 2 for lr in (0.5, 1, 0.25)])
    assert len(count) == 1
    specs = [gradient_descent(lr, scale=2.0).spec for lr in (0.25, 0.5)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *specs)
    both = jax.vmap(trained, in_axes=(0, None))(stacked, setup)
    np.testing.assert_array_equal(both, [(1 - 0.5**3) / 2, 0.5])


def test_numbers_stay_weakly_typed():
    def kinds(spec):
        return [leaf.aval.weak_type for leaf in jax.tree.leaves(spec.build().spec)]

    found = []
    jax.jit(lambda spec: found.append(kinds(spec)))(fs.scaffold(0.1, np.float32(1)).spec)
    assert found == [[True, False]]


def test_build_calls_the_factory():
    spec = with_labels(fs.fedprox(exponential_decay(0.1, 0.9), 1), {"x": 1}, weight=2).spec
    assert spec.build().spec == spec
    assert spec.factory is with_labels
    assert fs.Spec("test_specs.kept", share=0.5, weight=2).build()(np.ones(4)).tolist() == [2, 2]


def test_optimizers_of_libraries_have_specs():
    adam = fs.specified(optax.adam)
    one, other = (fs.fedavg(0.1, server=adam(0.01, b1=b1)) for b1 in (0.9, 0.9))
    assert one.spec == other.spec
    assert one.spec != fs.fedavg(0.1, server=adam(0.01, b1=0.8)).spec
    assert jax.tree.leaves(one.spec)[:3] == [0.1, 0.01, 0.9]
    assert "b1=0.9" in repr(one)
    server = adam(0.01)
    assert isinstance(server, type(optax.adam(0.01)))
    assert spec_of(server._replace(init=server.init)) is None
    setup = setup_of_quadratics()
    trained = jax.jit(lambda spec: fs.run(spec.build(), setup, jax.random.key(0))[0].server.params)
    expected = fs.run(fs.fedavg(0.1, server=optax.adam(0.01)), setup, jax.random.key(0))[0]
    # 1 - b2 = 1e-3 is now a difference in float32, with an error of 2^-24 / 1e-3 = 6e-5 of it.
    np.testing.assert_allclose(trained(one.spec), expected.server.params, rtol=6e-5)


def test_algorithms_are_equal_by_their_specs():
    one, other = fs.scaffold(0.1), fs.scaffold(0.1)
    assert one == other
    assert not one != other  # noqa: SIM202    tuples have a method of their own
    assert hash(one) == hash(other)
    assert one != fs.scaffold(0.2)
    assert one != one._replace(update=one.update)
    plain = one._replace(update=one.update)
    assert plain == plain._replace(init=plain.init)
    assert plain != other._replace(update=other.update)
    assert one != one.spec.arguments


def test_fixed_values_are_those_that_are_no_leaves():
    spec = with_labels(fs.fedavg(kept(0.5, 2.0)), np.arange(3)).spec
    assert 0.5 in spec.fixed[1:]
    assert jax.tree.leaves(spec) == [2.0, 0.5]
    assert any(one.__class__ is np.ndarray for one in spec.fixed)
    assert any(getattr(one, "__name__", "") == "_unchanged" for one in spec.fixed)


def test_replaced_fields_drop_the_spec():
    algorithm = fs.fedavg(0.1)
    assert algorithm._replace(update=algorithm.update).spec is None
    assert copy.copy(algorithm).spec == algorithm.spec
    assert "without a spec" in repr(algorithm._replace(update=algorithm.update))
    assert fs.specified(unspecified)().spec.name == "test_specs.unspecified"


def test_an_algorithm_without_a_spec_counts_by_its_functions():
    algorithm = unspecified()
    spec = with_labels(algorithm, None).spec
    assert spec == with_labels(algorithm, None).spec
    assert spec != with_labels(unspecified(), None).spec
    assert spec.arguments["algorithm"] == algorithm
    assert fs.run(algorithm, setup_of_quadratics(), jax.random.key(0))[0].round == 3


def test_specs_of_other_processes_are_equal():
    spec = with_labels(gradient_descent(exponential_decay(0.1, 0.9)), np.arange(3)).spec
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_signature_and_docstring_stay():
    assert gradient_descent.__doc__ == "One step of gradient descent."
    with pytest.raises(TypeError, match="momentum"):
        fs.Spec(gradient_descent, lr=0.1, momentum=0.9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fs.Spec("fedpox", lr=0.1), "factory is 'fedpox'; expected one under"),
        (lambda: fs.Spec(unspecified), "factory is <function unspecified"),
        (lambda: fs.specified(static=["rate"])(unspecified), r"static is \['rate'\]; expected"),
        (lambda: fs.specified(lambda: 3)(), "returned 3; expected an algorithm or a function"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_functions_without_a_spec_have_none():
    assert spec_of(jnp.sin) is None
    assert spec_of(exponential_decay(0.1, 0.9)) == fs.Spec("exponential_decay", lr=0.1, decay=0.9)


@pytest.mark.parametrize("integer", [np.int64, np.uint8, np.array, jnp.int16])
def test_numpy_integers_are_python_integers(integer):
    """As a grid of NumPy gives them: the same value, and no type of its own in the arithmetic."""
    found = gradient_descent(0.5, power=integer(2)).spec
    assert found == gradient_descent(0.5, power=2).spec
    assert found == fs.Spec(gradient_descent, lr=0.5, power=integer(2))
    assert type(found.arguments["power"]) is int
    assert found.arguments["scale"] is None
    # Parameters that are floating numbers by their annotation take integers.
    assert gradient_descent(integer(1)).spec == gradient_descent(1.0).spec
    assert fs.afl(0.1, integer(8)).spec == fs.afl(0.1, 8).spec


def test_numpy_integers_keep_the_type_of_what_they_multiply():
    @fs.specified
    def scaled(times: int):
        return lambda x: x * times

    with jax.enable_x64(True):
        assert scaled(np.int64(3))(jnp.ones(2, jnp.int32)).dtype == jnp.int32
        assert scaled(np.array(3))(jnp.ones(2, jnp.int32)).dtype == jnp.int32
