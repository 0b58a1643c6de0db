"""Directions, planes and grids against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial
from small_problems import compiled

from fedjax_sim.diagnostics.planes import Plane, filter_normalized, plane, principal_plane
from fedjax_sim.diagnostics.surfaces import surface
from fedjax_sim.engine.evaluation import evaluator
from fedjax_sim.models.cnn import cnn

KEY = jax.random.key(0)


def random_tree(seed, scale=1.0):
    rng = np.random.default_rng(seed)
    return {"w": scale * rng.normal(size=(3, 2)), "b": scale * rng.normal(size=3)}


def flat(x):
    return np.asarray(ravel_pytree(x)[0])


@pytest.mark.slow
def test_filters_have_the_models_norms_in_every_layout():
    model = cnn((8, 8, 2), 3, channels=(4, 5), kernel_size=3, hidden=(6,), pool_after=(True, False))
    params = jax.tree.map(lambda x: x + 0.1, compiled(model.init)(KEY))
    d = compiled(filter_normalized)(jax.random.key(1), params)
    axes = {"conv1": 3, "conv2": 3, "dense1": 0, "dense2": 0}  # outputs: HWIO, [outputs, inputs]
    layers = {**params["head"], **params}
    directions = {**d["head"], **d}
    for name, axis in axes.items():
        kernel, direction = layers[name]["kernel"], directions[name]["kernel"]
        others = tuple(i for i in range(kernel.ndim) if i != axis)
        expected = np.sqrt((np.asarray(kernel) ** 2).sum(others))
        actual = np.sqrt((np.asarray(direction) ** 2).sum(others))
        np.testing.assert_allclose(actual, expected, rtol=1e-5)  # float32 sums
        assert not directions[name]["bias"].any()
        assert layers[name]["bias"].any()
    # Gaussian inside a filter: of 54 + 180 entries none are alike, and they have both signs.
    assert len(np.unique(d["conv2"]["kernel"])) == d["conv2"]["kernel"].size
    assert 0.3 < (np.asarray(d["conv2"]["kernel"]) > 0).mean() < 0.7


def test_invariance_to_the_scale_of_layers_and_precision(x64):
    params = {"a": jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)))}
    d = filter_normalized(KEY, params)
    doubled = filter_normalized(KEY, jax.tree.map(lambda x: 2 * x, params))
    np.testing.assert_allclose(doubled["a"], 2 * d["a"], rtol=1e-14)
    single = filter_normalized(KEY, jax.tree.map(lambda x: x.astype(jnp.float32), params))
    np.testing.assert_allclose(single["a"], d["a"], rtol=1e-5)
    other = filter_normalized(KEY, params, filter_axis=lambda leaf: -1)
    norms = [np.linalg.norm(x["a"], axis=0) for x in (other, params)]
    np.testing.assert_allclose(*norms, rtol=1e-13)


def test_a_filter_of_zeros_stays_zero():
    d = filter_normalized(KEY, {"a": jnp.zeros((2, 3)), "b": jnp.ones(4), "c": jnp.array(1.0)})
    assert all(not leaf.any() for leaf in jax.tree.leaves(d))


@pytest.mark.slow
@given(st.integers(0, 1000))
@settings(max_examples=40)
def test_plane_holds_its_three_models(seed):
    with jax.enable_x64(True):
        models = [random_tree((seed, i)) for i in range(3)]
        result = plane(*models)
        d1, d2 = flat(result.d1), flat(result.d2)
        gram = np.array([d1, d2]) @ np.array([d1, d2]).T
        np.testing.assert_allclose(gram, np.eye(2), atol=1e-14)
        for model, (a, b) in zip(models, result.coordinates, strict=True):
            np.testing.assert_allclose(flat(models[0]) + a * d1 + b * d2, flat(model), atol=1e-13)
        assert result.coordinates[2, 1] > 0


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3, 6])
def test_principal_plane_is_that_of_the_singular_vectors(x64, count):
    center = random_tree(0)
    models = [random_tree(i, scale=i) for i in range(1, count + 1)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *models)
    result = principal_plane(center, stacked)
    differences = np.stack([flat(m) - flat(center) for m in models])
    directions = np.linalg.svd(differences, full_matrices=False)[2][:2]
    for d, expected in zip((flat(result.d1), flat(result.d2)), directions, strict=True):
        np.testing.assert_allclose(d * np.sign(d @ expected), expected, atol=1e-12)
    basis = np.stack([flat(result.d1), flat(result.d2)])
    np.testing.assert_allclose(result.coordinates[1:], differences @ basis.T, atol=1e-12)
    np.testing.assert_array_equal(result.coordinates[0], [0, 0])


@pytest.mark.slow
def test_principal_plane_of_many_parameters_needs_no_matrix_of_their_number():
    models = jax.random.normal(KEY, (4, 200_000))
    result = principal_plane(jnp.zeros(200_000), models)  # [n, n] would be 160 GB
    # Random models are almost orthogonal, of length sqrt(n).
    lengths = np.linalg.norm(result.coordinates[1:], axis=0)
    np.testing.assert_allclose(lengths, np.sqrt(200_000), rtol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [1, 3, 25, 100])
def test_grid_values(x64, chunk):
    x, d1, d2 = (random_tree(i) for i in range(3))
    examples = {"x": np.random.default_rng(4).normal(size=(7, 2))}

    def metrics(params, batch):
        out = batch["x"] @ params["w"].T + params["b"]
        return {"loss": (out**2).sum(axis=1), "first": out[:, 0]}

    evaluate = evaluator(metrics, examples, batch_size=3)
    result = surface(evaluate, x, d1, d2, extent=((-1.0, 0.5), (0.0, 2.0)), points=5, chunk=chunk)
    np.testing.assert_allclose(result.a, np.linspace(-1, 0.5, 5))
    np.testing.assert_allclose(result.b, np.linspace(0, 2, 5))
    for i, a in enumerate(result.a):
        for j, b in enumerate(result.b):
            w, c = (x[k] + float(a) * d1[k] + float(b) * d2[k] for k in ("w", "b"))
            out = examples["x"] @ w.T + c
            np.testing.assert_allclose(result.values["loss"][i, j], (out**2).sum(1).mean())
            np.testing.assert_allclose(result.values["first"][i, j], out[:, 0].mean(), atol=1e-14)


def test_data_are_arguments_and_one_program_serves_other_models():
    calls = []

    def loss(offset, params):
        calls.append(1)
        return jnp.sum((params - offset) ** 2)

    d = jnp.array([1.0, 0.0]), jnp.array([0.0, 1.0])
    counts = []
    for offset in (0.0, 1.0):
        result = surface(Partial(loss, jnp.array(offset)), jnp.zeros(2), *d, points=3)
        np.testing.assert_allclose(result.values[0, 0], 2 * (1 + offset) ** 2, rtol=1e-6)
        counts.append(len(calls))
    assert counts[0] == counts[1]  # not traced again


def test_window_of_the_dots():
    result = Plane(None, None, np.array([[0.0, 0.0], [2.0, 0.0], [1.0, 4.0]]))
    assert result.window(0.25) == ((-1.0, 3.0), (-1.0, 5.0))


def test_errors():
    x = jnp.arange(3.0)
    with pytest.raises(ValueError, match="params_a, params_b and params_c lie on one line"):
        plane(x, x + 1, x + 2)
    with pytest.raises(ValueError, match="lie on one line"):
        plane(x, x, x + jnp.array([1.0, 0.0, 0.0]))
    with pytest.raises(ValueError, match="models lie on one line"):
        principal_plane(x, x + jnp.array([[1.0], [2.0], [-3.0]]))
    with pytest.raises(ValueError, match="models has 1 models; expected at least 2"):
        principal_plane(x, x[None])
    for options, match in (
        ({"points": 1}, "points is 1; expected at least 2"),
        ({"chunk": 0}, "chunk is 0; expected at least 1"),
        ({"extent": 0.0}, "extent is 0.0; expected a positive number"),
        ({"extent": ((0.0, 1.0), (1.0, 1.0))}, "expected a positive number or two"),
        ({"extent": (-1.0, 1.0)}, r"extent is \(-1.0, 1.0\); expected a positive number or two"),
        ({"extent": np.inf}, "extent is inf; expected a positive number"),
        ({"extent": [[0.0, 1.0], [1.0, 1.0]]}, "expected a positive number or two"),
    ):
        with pytest.raises(ValueError, match=match):
            surface(jnp.sum, x, x, x, **options)


HALVES = pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])


@HALVES
@pytest.mark.parametrize(("size", "scale"), [(50, 1e-4), (70_000, 0.02)])
def test_filters_of_half_precision_have_the_models_norms(dtype, size, scale):
    """In float16 squares of 1e-4 have lost digits, and those of 70,000 draws add to infinity."""
    kernel = (scale * jax.random.normal(jax.random.key(1), (2, size))).astype(dtype)
    d = filter_normalized(KEY, {"a": kernel})["a"]
    assert d.dtype == dtype
    norms = [np.linalg.norm(np.asarray(x, np.float64), axis=1) for x in (d, kernel)]
    np.testing.assert_allclose(*norms, rtol=1e-2)


@HALVES
def test_planes_through_models_of_half_precision(dtype):
    """Norms above 256 were infinite in float16, and there were no eigenvalues."""
    center = jnp.array([128.0, 0.0, 1.0], dtype)
    b, c = center + jnp.array([384, 0, 0], dtype), center + jnp.array([256, 512, 0], dtype)
    result = plane(center, b, c)
    assert result.d1.dtype == result.d2.dtype == dtype
    np.testing.assert_allclose(result.coordinates, [[0, 0], [384, 0], [256, 512]], rtol=1e-6)
    result = principal_plane(center, jnp.stack([b, c]))
    assert result.d1.dtype == dtype
    lengths = jnp.linalg.norm(result.coordinates, axis=1)
    np.testing.assert_allclose(lengths, [0, 384, np.hypot(256, 512)], rtol=1e-5)


def test_losses_that_are_no_scalars_are_refused():
    x = jnp.arange(3.0)
    with pytest.raises(ValueError, match=r"loss has shape \(3,\); expected a scalar"):
        surface(lambda x: x**2, x, x, x, points=3)
    with pytest.raises(ValueError, match=r"loss\['each'\] has shape \(1,\); expected a scalar"):
        surface(lambda x: {"all": x.sum(), "each": x[:1]}, x, x, x, points=3)
