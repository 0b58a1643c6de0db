"""Generated problems: quadratics, asymmetric losses and recovery."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedjax_sim import objectives
from fedjax_sim.data import augmentation
from fedjax_sim.diagnostics import gradient_noise
from fedjax_sim.problems.asymmetric import piecewise_quadratic, third_order_smooth
from fedjax_sim.problems.quadratics import Quadratics, quadratic_optimum, quadratics
from fedjax_sim.problems.recovery import low_rank_regression, sparse_regression

# ---- quadratics


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtype_and_seed(dtype):
    problem = quadratics(3, 2, 0, dtype=dtype)
    assert problem.A.dtype == problem.b.dtype == dtype
    np.testing.assert_array_equal(
        problem.b, quadratics(3, 2, np.random.default_rng(0), dtype=dtype).b
    )
    assert (problem.b != quadratics(3, 2, 1, dtype=dtype).b).any()


@given(
    num_clients=st.integers(1, 5),
    dim=st.integers(1, 6),
    mu=st.floats(0, 2),
    more=st.floats(0.01, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_quadratics_have_the_promised_spectrum(num_clients, dim, mu, more, seed):
    A, b = quadratics(num_clients, dim, seed, mu=mu, smoothness=mu + more, dtype=np.float64)
    assert A.shape == (num_clients, dim, dim)
    assert b.shape == (num_clients, dim)
    np.testing.assert_allclose(A, np.swapaxes(A, 1, 2), atol=1e-14)
    spectrum = np.linalg.eigvalsh(A)
    # float64 round-off of a d x d product and an eigenvalue solver, d <= 6, norms <= 5.
    np.testing.assert_allclose(spectrum[:, -1], mu + more, atol=1e-12)
    if dim > 1:
        np.testing.assert_allclose(spectrum[:, 0], mu, atol=1e-12)


def test_eigenvectors_are_haar():
    # Then the mean of A is (trace / d) I, here with mean eigenvalue 1/2; fixed eigenvectors would
    # leave 0 and 1 on the diagonal.
    A, _ = quadratics(4000, 3, seed=0, mu=0.0, smoothness=1.0, dtype=np.float64)
    error = 5 * A.std(axis=0) / np.sqrt(len(A))  # five standard errors
    assert (np.abs(A.mean(axis=0) - 0.5 * np.eye(3)) < error).all()


def test_the_gradient_is_zero_at_the_optimum():
    problem = quadratics(5, 3, seed=1, mu=0.2, dtype=np.float64)
    optimum = quadratic_optimum(problem)
    gradient = np.einsum("mij,mj->i", problem.A, optimum - problem.b)
    np.testing.assert_allclose(gradient, 0, atol=1e-12)  # float64 round-off of a 3 x 3 system


def test_with_equal_hessians_the_optimum_is_the_mean_of_the_minimisers():
    problem = quadratics(5, 3, seed=1, same_hessian=True, dtype=np.float64)
    np.testing.assert_allclose(quadratic_optimum(problem), problem.b.mean(axis=0), atol=1e-12)


def test_singular_problems_get_a_minimiser():
    A = np.array([[[2.0, 0.0], [0.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]]])
    problem = Quadratics(A, np.array([[0.0, 7.0], [3.0, 7.0]]))
    np.testing.assert_allclose(quadratic_optimum(problem), [1.0, 0.0], atol=1e-14)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: quadratics(1, 0, 0), "dim is 0"),
        (lambda: sparse_regression(1, 1, 5, 4, 0), "num_nonzero is 5; expected at most 4"),
        (lambda: low_rank_regression(1, 1, -1, 4, 0), "rank is -1; expected at least 0"),
        (lambda: sparse_regression(1, 1, 0, 0, 0), "dim is 0; expected at least 1"),
        (lambda: low_rank_regression(1, 1, 0, 0, 0), "size is 0; expected at least 1"),
        (lambda: quadratics(1, 2, 0, mu=2.0), "smoothness is 1.0; expected at least 2"),
    ],
)
def test_bad_arguments(call, match):
    with pytest.raises(ValueError, match=match):
        call()


# ---- asymmetric losses


@pytest.mark.parametrize(("smoothness", "third"), [(1.0, 0.5), (3.0, 2.0)])
def test_derivatives_of_the_third_order_instance(x64, smoothness, third):
    """Closed forms by NumPy, also at 0 and where cosh overflows; rounding only."""
    x = np.array([-1000.0, -1.0, -1e-9, 0.0, 0.3, 1000.0])
    gradient = functools.partial(third_order_smooth, smoothness=smoothness, third=third)
    u = 4 * third / smoothness * x
    log_cosh = np.abs(u) + np.log1p(np.exp(-2 * np.abs(u))) - np.log(2)
    expected = [
        0.75 * smoothness * x + smoothness**2 / (16 * third) * log_cosh,
        smoothness * (0.75 + np.tanh(u) / 4),
        third * np.cosh(np.clip(u, -300, 300)) ** -2,
    ]
    for values in expected:
        np.testing.assert_allclose(jax.vmap(gradient)(x), values, rtol=1e-12, atol=1e-15)
        gradient = jax.grad(gradient)


def test_derivatives_of_the_piecewise_quadratic():
    """All numbers are exact in float32."""
    result = piecewise_quadratic(jnp.array([-2.0, -0.5, 0.0, 0.5, 2.0]), 4.0, 0.5)
    np.testing.assert_array_equal(result, [-1.0, -0.25, 0.0, 2.0, 8.0])
    slope = jax.grad(lambda x: piecewise_quadratic(x, 4.0, 0.5))
    assert [float(slope(x)) for x in (-1.0, 1.0)] == [0.5, 4.0]


# ---- recovery


def test_inputs_vary_around_the_means_of_their_clients():
    """Var of a client's sample mean is s^2 (h^2 + 1/n), of its examples s^2."""
    num_clients, count, dim, scale, heterogeneity = 200, 50, 20, 0.5, 2.0
    problem = sparse_regression(
        num_clients, count, 3, dim, 0, feature_scale=scale, heterogeneity=heterogeneity,
        test_examples_per_client=count, dtype=np.float64,
    )  # fmt: skip
    x = problem.train.examples["x"].reshape(num_clients, count, dim)
    centres = x.mean(axis=1)
    # Relative standard error of a variance from n normal numbers is sqrt(2 / n); five of them.
    between = scale**2 * (heterogeneity**2 + 1 / count)
    np.testing.assert_allclose(centres.var(), between, rtol=5 * np.sqrt(2 / centres.size))
    within = x - centres[:, None]
    size = num_clients * (count - 1) * dim
    np.testing.assert_allclose((within**2).sum() / size, scale**2, rtol=5 * np.sqrt(2 / size))
    # Coordinates of an example are independent: correlations have standard error 1 / sqrt(N).
    correlation = np.corrcoef(within.reshape(-1, dim).T) - np.eye(dim)
    assert np.abs(correlation).max() < 5 / np.sqrt(num_clients * count)
    # The test set has the same means and other draws.
    other = problem.test.examples["x"].reshape(x.shape).mean(axis=1)
    difference = scale**2 * 2 / count
    np.testing.assert_allclose(
        ((other - centres) ** 2).mean(), difference, rtol=5 * np.sqrt(2 / centres.size)
    )


def test_hessian_of_a_client_has_one_large_eigenvalue():
    """2 (||mu||^2 + 1), of the mean squared error: why rates above 1e-3 diverge if d = 1,024."""
    problem = sparse_regression(1, 20_000, 1, 50, 0, dtype=np.float64)
    x = problem.train.examples["x"]
    largest = np.linalg.eigvalsh(2 * x.T @ x / len(x))[-1]
    mean = x.mean(axis=0)  # of errors 1 / sqrt(n)
    np.testing.assert_allclose(largest, 2 * (1 + mean @ mean), rtol=0.05)
    # ||mu||^2 is chi-squared, mean d and variance 2 d: four deviations.
    assert abs(mean @ mean - 50) < 4 * 10


@pytest.mark.parametrize("make", [sparse_regression, low_rank_regression])
def test_targets_follow_the_truth(make):
    problem = make(4, 2000, 2, 5, 0, noise=0.5, feature_scale=0.3, dtype=np.float64)
    for data in (problem.train, problem.test):
        x, y = data.examples["x"].reshape(len(data.examples["y"]), -1), data.examples["y"]
        residual = y - x @ problem.weight.ravel() - problem.bias
        # Five standard errors of a deviation, 1 / sqrt(2 n), and of a mean, 1 / sqrt(n).
        np.testing.assert_allclose(residual.std(), 0.5, rtol=5 / np.sqrt(2 * len(y)))
        assert abs(residual.mean()) < 5 * 0.5 / np.sqrt(len(y))
        assert np.abs(x.T @ residual / len(y)).max() < 5 * 0.5 / np.sqrt(len(y))


def test_bias_is_standard_normal_over_seeds():
    biases = [float(sparse_regression(1, 1, 0, 1, seed).bias) for seed in range(400)]
    assert abs(np.mean(biases)) < 5 / np.sqrt(400)
    np.testing.assert_allclose(np.std(biases), 1, rtol=5 / np.sqrt(800))


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    dim=st.integers(1, 6),
    part=st.integers(0, 6),
)
def test_shapes_and_truths(sizes, dim, part):
    count = min(part, dim)
    sparse = sparse_regression(len(sizes), sizes, count, dim, 0, test_examples_per_client=2)
    low_rank = low_rank_regression(len(sizes), sizes, count, dim, 0, test_examples_per_client=2)
    assert sparse.weight.tolist() == [1.0] * count + [0.0] * (dim - count)
    np.testing.assert_array_equal(low_rank.weight, np.diag(sparse.weight))
    assert np.linalg.matrix_rank(low_rank.weight) == count
    for problem, shape in ((sparse, (dim,)), (low_rank, (dim, dim))):
        assert problem.train.sizes.tolist() == sizes
        assert problem.test.sizes.tolist() == [2] * len(sizes)
        assert problem.train.examples["x"].shape == (sum(sizes), *shape)
        assert problem.train.examples["y"].shape == (sum(sizes),)
        assert problem.bias.shape == ()


@pytest.mark.parametrize("make", [sparse_regression, low_rank_regression])
def test_one_seed_is_one_problem(make):
    single, double = (make(3, 4, 1, 3, 0, dtype=dtype) for dtype in (np.float32, np.float64))
    more = make(3, 4, 1, 3, np.random.default_rng(0), test_examples_per_client=1, dtype=np.float64)
    for name in ("x", "y"):
        exact = double.train.examples[name]
        assert single.train.examples[name].dtype == single.weight.dtype == np.float32
        np.testing.assert_array_equal(single.train.examples[name], exact.astype(np.float32))
        np.testing.assert_array_equal(more.train.examples[name], exact)
    assert single.bias == np.float32(double.bias)
    assert (make(3, 4, 1, 3, 1).train.examples["x"] != single.train.examples["x"]).all()
    # Neither the ones nor the scale of the features change the draws.
    other = make(3, 4, 2, 3, 0, feature_scale=0.25, dtype=np.float64)
    np.testing.assert_array_equal(other.train.examples["x"], 0.25 * double.train.examples["x"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_clients": 0}, "num_clients is 0; expected at least 1"),
        ({"examples_per_client": [1, 2]}, r"examples_per_client is \[1, 2\]; expected a positive"),
        ({"test_examples_per_client": 0}, "examples_per_client is 0; expected a positive"),
        ({"feature_scale": 0.0}, "feature_scale is 0.0; expected a positive number"),
        ({"feature_scale": np.inf}, "feature_scale is inf; expected a positive number"),
        ({"heterogeneity": -1.0}, "heterogeneity is -1.0; expected at least 0"),
        ({"noise": np.nan}, "noise is nan; expected at least 0"),
    ],
)
@pytest.mark.parametrize(
    ("make", "counts"),
    [
        (sparse_regression, {"num_nonzero": 2, "dim": 4}),
        (low_rank_regression, {"rank": 2, "size": 4}),
    ],
)
def test_refusals(make, counts, options, message):
    with pytest.raises(ValueError, match=message):
        make(**({"num_clients": 3, "examples_per_client": 5, "seed": 0} | counts | options))


MAKERS = {
    "quadratics": lambda dtype: quadratics(2, 3, 0, dtype=dtype),
    "sparse": lambda dtype: sparse_regression(2, 4, 1, 3, 0, dtype=dtype),
    "low_rank": lambda dtype: low_rank_regression(2, 4, 1, 3, 0, dtype=dtype),
    "normalize": lambda dtype: augmentation.normalize(
        jnp.zeros((1, 1), jnp.uint8), 0.5, 0.25, dtype
    ),
    "as_float": lambda dtype: objectives.as_float(jnp.ones(2, jnp.float32), dtype),
}


@pytest.mark.parametrize("name", MAKERS)
def test_dtypes_are_floating(name):
    """Integers would cut the numbers: all matrices 0, means of pixels 127 instead of 127.5."""
    for dtype, shown in ((int, "int64"), ("int8", "int8"), (complex, "complex128"), ("f5", "'f5'")):
        with pytest.raises(ValueError, match=f"^dtype is {shown}; expected a floating dtype"):
            MAKERS[name](dtype)
    for dtype in (np.float32, "float16"):
        assert all(x.dtype == dtype for x in jax.tree.leaves(MAKERS[name](dtype)) if x.ndim > 1)


def test_nodes_of_noise():
    """NumPy's weights of 400 Hermite nodes are NaN, those of 300 are right."""
    noise = gradient_noise.gaussian(2.0, num_nodes=300)
    np.testing.assert_allclose(noise.weights @ noise.nodes**4, 48, rtol=1e-12)
    with pytest.raises(ValueError, match=r"^num_nodes is 400; expected at most 300 without panels"):
        gradient_noise.gaussian(2.0, num_nodes=400)
    noise = gradient_noise.gaussian(2.0, num_nodes=400, panels=2)
    np.testing.assert_allclose(noise.weights @ noise.nodes**4, 48, rtol=1e-12)
    for make in (gradient_noise.gaussian, gradient_noise.uniform):
        for counts in ({"num_nodes": 2.5}, {"panels": 1.5}, {"num_nodes": 0}, {"panels": 0}):
            with pytest.raises(ValueError, match=f"^{next(iter(counts))} is .*; expected "):
                make(1.0, **counts)


@pytest.mark.parametrize("third", [1e-2, 1e-4, 1e-6])
def test_a_nearly_quadratic_instance_in_single_precision(third):
    """A difference of two logarithms had an error of 5 %."""
    x = np.array([-1.0, -0.1, -1e-3, 1e-3, 0.1, 1.0], np.float32)
    u = 4 * third * x.astype(np.float64)
    expected = 0.75 * x.astype(np.float64) + np.log1p(2 * np.sinh(u / 2) ** 2) / (16 * third)
    np.testing.assert_allclose(third_order_smooth(jnp.asarray(x), 1.0, third), expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["examples_per_client", "test_examples_per_client"])
def test_sizes_are_refused_by_the_name_of_their_argument(name):
    sizes = {"examples_per_client": 2, name: 0}
    with pytest.raises(ValueError, match=f"^{name} is 0; expected a positive integer"):
        sparse_regression(3, num_nonzero=1, dim=2, seed=0, **sizes)
