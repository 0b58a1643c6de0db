"""A regulariser on the leaves of a model: which leaves, and each as if it were alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from proximal_points import CONSTRAINTS, PENALTIES, REGULARIZERS
from small_problems import assert_close, assert_identical, compiled

from fedjax_sim import prox

EPS = np.finfo(np.float32).eps


def model(seed=0, dtype=np.float32):
    """Nested, with a list and leaves of 0, 1 and 2 axes; entries that most weights would change."""
    rng = np.random.default_rng(seed)

    def leaf(*shape):
        return jnp.asarray(2 * rng.normal(size=shape), dtype)

    return {
        "layers": [
            {"kernel": leaf(3, 2), "bias": leaf(2)},
            {"kernel": leaf(2, 4), "bias": leaf(4)},
        ],
        "scale": leaf(),
    }


def kernels_of(params):
    return [layer["kernel"] for layer in params["layers"]]


def others_of(params):
    return [layer["bias"] for layer in params["layers"]] + [params["scale"]]


MIRRORS = {"euclidean": None, "p_norm": prox.PNorm(1.3), "hypentropy": prox.Hypentropy(0.2)}


@pytest.mark.slow
@pytest.mark.parametrize("psi", [*REGULARIZERS.values()], ids=[*REGULARIZERS])
def test_kernels_only(psi):
    if isinstance(psi, prox.GroupL1) and psi.labels is not None:
        psi = prox.GroupL1(0.7)  # labels are of one shape
    params = model()
    problem = prox.composite(psi, where=prox.kernels)

    @compiled
    def outputs(params):
        result = problem.argmin(params, 0.9)
        # Each kernel is a separate array, with its own ball and singular values.
        alone = [psi.prox(x, 0.9) for x in kernels_of(params)]
        values = problem.value(result), sum(psi.value(x) for x in kernels_of(result))
        return result, alone, values

    result, alone, (value, total) = outputs(params)
    assert jax.tree.structure(result) == jax.tree.structure(params)
    assert_identical(others_of(result), others_of(params))
    assert_identical(kernels_of(result), alone)
    if not isinstance(psi, prox.Zero):
        changed = jax.tree.map(lambda a, b: np.any(a != b), kernels_of(result), kernels_of(params))
        assert all(changed)
    assert_identical(value, total)


@pytest.mark.slow
@pytest.mark.parametrize("name", MIRRORS)
def test_other_leaves_stay_euclidean(name):
    params, mirror = model(), MIRRORS[name]
    problem = prox.composite(prox.L1(0.3), mirror, prox.kernels)
    mirror = prox.Euclidean() if mirror is None else mirror
    for function, alone in [
        (problem.to_dual, mirror.to_dual),
        (problem.to_primal, mirror.to_primal),
        (lambda x: problem.argmin(x, 0.9), lambda x: mirror.argmin(prox.L1(0.3), x, 0.9)),
    ]:
        result = function(params)
        assert_identical(others_of(result), others_of(params))
        assert_identical(kernels_of(result), [alone(x) for x in kernels_of(params)])
    # The power 3.3 on the way back magnifies rounding.
    assert_close(problem.to_primal(problem.to_dual(params)), params, 20 * EPS)


def test_every_leaf_by_default():
    params = model()
    result = prox.composite(prox.L1(0.3)).argmin(params, 0.9)
    assert_identical(result, jax.tree.map(lambda x: prox.soft_threshold(x, 0.9 * 0.3), params))
    assert prox.every_leaf("anything", params["scale"])


def test_leaves_by_path():
    """The path is that of the nested tree, with list positions."""
    seen = []

    def last_layer(path, leaf):
        seen.append((path, leaf.shape))
        return path.startswith("layers/1/")

    params = model()
    result = prox.composite(prox.L1(0.3), where=last_layer).argmin(params, 0.9)
    assert seen == [
        ("layers/0/bias", (2,)),
        ("layers/0/kernel", (3, 2)),
        ("layers/1/bias", (4,)),
        ("layers/1/kernel", (2, 4)),
        ("scale", ()),
    ]
    assert_identical(result["layers"][0], params["layers"][0])
    assert_identical(result["scale"], params["scale"])
    expected = jax.tree.map(lambda x: prox.soft_threshold(x, 0.9 * 0.3), params["layers"][1])
    assert_identical(result["layers"][1], expected)


def test_model_of_one_array():
    """Its path is empty."""
    x = jnp.array([3.0, -0.5])
    problem = prox.composite(prox.L1(1.0), where=lambda path, leaf: path == "")
    assert_identical(problem.argmin(x, 1.0), jnp.array([2.0, 0.0]))
    assert problem.value(x) == 3.5


def test_kernels_have_two_axes():
    shapes = {(): False, (3,): False, (3, 2): True, (3, 3, 2, 4): True}
    assert {shape: prox.kernels("any", jnp.zeros(shape)) for shape in shapes} == shapes


def test_value_adds_the_leaves(x64):
    params = model(dtype=np.float64)
    leaves = [np.asarray(x) for x in jax.tree.leaves(params)]
    expected = 0.7 * sum(np.abs(x).sum() for x in leaves)
    np.testing.assert_allclose(prox.composite(prox.L1(0.7)).value(params), expected, rtol=1e-15)
    expected = 0.7 * sum(np.linalg.norm(np.asarray(x), "nuc") for x in kernels_of(params))
    problem = prox.composite(prox.Nuclear(0.7), where=prox.kernels)
    np.testing.assert_allclose(problem.value(params), expected, rtol=1e-14)


def test_value_of_a_constraint_is_infinite_if_one_leaf_is_outside():
    problem = prox.composite(prox.L2Ball(1.0), where=prox.kernels)
    params = problem.argmin(model(), 0.0)
    assert problem.value(params) == 0
    params["layers"][1]["kernel"] *= 2
    assert problem.value(params) == np.inf


def test_nothing_chosen():
    params = model()
    problem = prox.composite(prox.L1Ball(0.1), where=lambda path, leaf: False)
    assert_identical(problem.argmin(params, 1.0), params)
    assert problem.value(params) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PENALTIES if name != "labels"])
def test_subgradient(name):
    psi = PENALTIES[name].psi
    params = model()
    s = prox.composite(psi, where=prox.kernels).subgradient(params)
    assert_identical(kernels_of(s), [psi.subgradient(x) for x in kernels_of(params)])
    assert_identical(others_of(s), jax.tree.map(jnp.zeros_like, others_of(params)))


@pytest.mark.parametrize("psi", [*CONSTRAINTS.values()], ids=[*CONSTRAINTS])
def test_constraints_have_no_subgradient(psi):
    message = f"psi is {type(psi).__name__}.*; expected a penalty, which is finite everywhere"
    with pytest.raises(ValueError, match=message):
        prox.composite(psi).subgradient(model())


def test_pair_without_a_closed_form():
    """The pair is refused for the chosen leaves only: on the others psi is 0."""
    problem = prox.composite(prox.Nuclear(1.0), prox.Entropy(), prox.kernels)
    with pytest.raises(ValueError, match="psi is Nuclear, mirror Entropy; expected a pair"):
        problem.argmin(model(), 1.0)
    biases = {"bias": jnp.ones(3)}
    assert_identical(problem.argmin(biases, 1.0), biases)


class Half:
    """A regulariser of one's own, half the squared norm; without a subgradient."""

    def value(self, x):
        return jnp.sum(x**2) / 2

    def prox(self, v, c):
        return v / (1 + c)


def test_regulariser_of_ones_own():
    params = model()
    problem = prox.composite(Half())
    assert_identical(problem.argmin(params, 1.0), jax.tree.map(lambda x: x / 2, params))
    with pytest.raises(ValueError, match="expected a penalty"):
        problem.subgradient(params)


def test_built_inside_a_program_of_traced_numbers():
    """With the weight, the step and the mirror map's number as arguments."""
    params = model()

    @compiled
    def run(weight, p, c, params):
        problem = prox.composite(prox.L1(weight), prox.PNorm(p), prox.kernels)
        return problem.argmin(params, c), problem.value(params)

    problem = prox.composite(prox.L1(0.3), prox.PNorm(1.3), prox.kernels)
    actual = run(0.3, 1.3, 0.9, params)
    # Powers, compiled in another way: a few units in the last place.
    assert_close(actual, (problem.argmin(params, 0.9), problem.value(params)), 20 * EPS)


def test_regulariser_as_an_argument_of_a_program():
    """It is a tree of its numbers: a batch of them is mapped over, without new compilation."""
    params = model()
    traces = []

    @jax.jit
    @jax.vmap
    def run(psi):
        traces.append(psi)
        return prox.composite(psi).argmin(params, 1.0)

    for weights in ([0.1, 0.2], [0.3, 0.4]):
        result = run(prox.L1(jnp.array(weights)))
        for i, weight in enumerate(weights):
            expected = jax.tree.map(lambda x, w=weight: prox.soft_threshold(x, w), params)
            assert_identical(jax.tree.map(lambda x, i=i: x[i], result), expected)
    assert len(traces) == 1
