"""Synthetic data: their distributions, sizes and seeds."""

import numpy as np
import pytest

from fedjax_sim.data.summary import label_counts
from fedjax_sim.problems import synthetic


def test_clusters_have_the_given_counts_means_and_scale():
    means = np.array([[[0.0, 0.0], [5.0, -5.0]], [[1.0, 2.0], [9.0, 9.0]]])
    counts = np.array([[4000, 2000], [3000, 0]])
    data = synthetic.gaussian_clusters(means, counts, seed=0, scale=0.5)
    np.testing.assert_array_equal(label_counts(data, 2), counts)
    for i, c in [(0, 0), (0, 1), (1, 0)]:
        client = data.client(i)
        x = client["x"][client["y"] == c].astype(np.float64)
        error = (
            5 * 0.5 / np.sqrt(len(x))
        )  # five standard errors of a mean; of a deviation: / sqrt 2
        np.testing.assert_allclose(x.mean(axis=0), means[i, c], atol=error)
        np.testing.assert_allclose(x.std(axis=0), 0.5, atol=error / np.sqrt(2))


def test_regression_targets_follow_the_weights():
    data, weights = synthetic.linear_regression(
        3, [5, 7, 2000], 4, seed=0, heterogeneity=1.0, noise=0.5, dtype=np.float64
    )
    assert data.sizes.tolist() == [5, 7, 2000]
    client = data.client(2)
    residual = client["y"] - client["x"] @ weights[2]
    # Five standard errors of a deviation, 1 / sqrt(2 n), of 2000 residuals.
    np.testing.assert_allclose(residual.std(), 0.5, rtol=5 / np.sqrt(4000))
    assert np.ptp(weights, axis=0).min() > 0
    _, same = synthetic.linear_regression(3, 5, 4, seed=0)
    np.testing.assert_array_equal(same, np.broadcast_to(same[0], same.shape))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtypes_and_seeds(dtype):
    def clusters(seed):
        return synthetic.gaussian_clusters(np.ones((3, 2, 2)), 5, seed, dtype=dtype).examples["x"]

    def regression(seed):
        data, weights = synthetic.linear_regression(3, 5, 2, seed, dtype=dtype)
        assert weights.dtype == data.examples["y"].dtype == dtype
        return data.examples["x"]

    for make in (clusters, regression):
        assert make(0).dtype == dtype
        np.testing.assert_array_equal(make(0), make(np.random.default_rng(0)))
        assert (make(0) != make(1)).any()


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: synthetic.gaussian_clusters(np.zeros((2, 3)), 1, 0), r"means has shape \(2, 3\)"),
        (
            lambda: synthetic.gaussian_clusters(np.zeros((2, 3, 1)), np.ones(2, int), 0),
            r"counts has shape \(2,\)",
        ),
        (lambda: synthetic.gaussian_clusters(np.zeros((2, 3, 1)), -1, 0), "minimum -1"),
        (
            lambda: synthetic.gaussian_clusters(np.zeros((2, 3, 1)), 2.5, 0),
            r"counts has shape \(\), minimum 2.5; expected non-negative integers",
        ),
        (lambda: synthetic.gaussian_clusters(np.zeros((1, 1, 1)), 1, 0, scale=-1.0), "scale is"),
        (lambda: synthetic.linear_regression(2, [1, 2, 3], 1, 0), r"is \[1, 2, 3\]"),
        (lambda: synthetic.linear_regression(2, 0, 1, 0), "examples_per_client is 0"),
        (
            lambda: synthetic.linear_regression(2, [2.5, 1], 1, 0),
            r"examples_per_client is \[2.5, 1\]; expected a positive integer",
        ),
        (lambda: synthetic.linear_regression(0, 1, 1, 0), "num_clients is 0"),
        (lambda: synthetic.linear_regression(1, 1, 1, 0, noise=-0.1), "noise is -0.1"),
        (lambda: synthetic.linear_regression(1, 1, 1, 0, -1.0), "heterogeneity is -1.0"),
    ],
)
def test_bad_input_is_named(call, match):
    with pytest.raises(ValueError, match=match):
        call()
