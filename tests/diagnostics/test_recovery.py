"""Recovery metrics against scikit-learn and NumPy, with empty supports and under vmap."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score, precision_score, recall_score

from fedjax_sim.diagnostics.recovery import (
    density,
    numerical_rank,
    recovery_error,
    support,
    support_scores,
)

ENTRIES = st.sampled_from([0.0, 0.005, -0.5, 2.0, float("nan")])
PAIRS = st.lists(st.tuples(ENTRIES, st.booleans()), min_size=1, max_size=8)


@pytest.mark.slow
@given(PAIRS)
def test_scores_are_scikit_learns(pairs):
    x = np.array([value for value, _ in pairs], np.float32)
    truth = np.array([true for _, true in pairs])
    with np.errstate(invalid="ignore"):
        result = np.abs(x) > 1e-2
    both_empty = not result.any() and not truth.any()
    with jax.debug_nans(False):
        scores, share = support_scores(jnp.asarray(x), truth), density(jnp.asarray(x))
        where = support(jnp.asarray(x))
    for score, reference in zip(scores, (precision_score, recall_score, f1_score), strict=True):
        # Where scikit-learn would divide by zero: 1 if there was nothing to find, else 0.
        expected = reference(truth, result, zero_division=1.0 if both_empty else 0.0)
        np.testing.assert_allclose(score, expected, rtol=1e-6)
    np.testing.assert_array_equal(where, result)
    np.testing.assert_allclose(share, result.mean(), rtol=1e-6)


def test_empty_supports():
    zeros, ones = jnp.zeros(3), jnp.ones(3)
    assert [float(s) for s in support_scores(zeros, zeros)] == [1, 1, 1]
    assert [float(s) for s in support_scores(zeros, ones)] == [0, 0, 0]
    assert [float(s) for s in support_scores(ones, zeros)] == [0, 0, 0]
    assert float(density(zeros)) == 0


def test_counts_leave_the_range_of_half_precision():
    x = jnp.ones(70_000, jnp.float16)  # its largest number is 65,504
    scores = support_scores(x, x)
    assert [float(score) for score in scores] == [1, 1, 1]
    assert scores.f1.dtype == x.dtype


def test_integers_have_fractional_scores():
    x = jnp.array([1, 0, 1])
    np.testing.assert_allclose(density(x), 2 / 3, rtol=1e-6)
    np.testing.assert_allclose(support_scores(x, jnp.ones(3)), [1, 2 / 3, 0.8], rtol=1e-6)


def test_cutoff_may_vary_and_be_traced():
    x = jnp.array([0.5, 0.1, -0.02, 0.001])
    result = jax.jit(jax.vmap(density, (None, 0)))(x, jnp.array([1e-4, 1e-2, 0.3]))
    assert result.tolist() == [1.0, 0.75, 0.25]
    assert support(x, 0.5).tolist() == [False] * 4  # at the cutoff it is zero


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_batches_and_precisions(dtype):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(5, 7)) * (rng.random((5, 7)) < 0.5), dtype)
    truth = jnp.asarray(rng.random(7) < 0.5)
    batched = jax.jit(jax.vmap(support_scores, (0, None)))(x, truth)
    for i in range(5):
        alone = support_scores(x[i], truth)
        assert alone.f1.dtype == density(x[i]).dtype == dtype
        assert [float(s[i]) for s in batched] == [float(s) for s in alone]


def test_ranks_are_numpys():
    rng = np.random.default_rng(1)
    x = np.stack([rng.normal(size=(6, r)) @ rng.normal(size=(r, 4)) for r in (0, 1, 3, 4)])
    x = x.astype(np.float32)
    expected = [np.linalg.matrix_rank(matrix, tol=1e-2) for matrix in x]
    assert numerical_rank(jnp.asarray(x)).tolist() == expected
    assert jax.jit(jax.vmap(numerical_rank))(jnp.asarray(x)).tolist() == expected
    assert int(numerical_rank(jnp.eye(3), 2.0)) == 0


def test_what_is_not_a_number_has_no_rank(allow_nans):
    assert int(numerical_rank(jnp.full((3, 3), jnp.nan))) == 0


def test_errors_are_frobenius_norms():
    rng = np.random.default_rng(2)
    x, truth = rng.normal(size=(2, 4, 3)).astype(np.float32)
    np.testing.assert_allclose(
        recovery_error(jnp.asarray(x), truth), np.linalg.norm(x - truth, "fro"), rtol=1e-6
    )


def test_refusals():
    for metric in (support_scores, recovery_error):
        with pytest.raises(ValueError, match=r"shape \(2,\); expected \(3,\), the shape"):
            metric(jnp.ones(3), jnp.ones(2))
    with pytest.raises(ValueError, match=r"x has shape \(3,\); expected a matrix"):
        numerical_rank(jnp.ones(3))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_ranks_and_errors_in_half_precision(dtype):
    """JAX decomposes no such matrices, and the squares of 100 errors of 32 are above 65,504."""
    assert int(numerical_rank(jnp.diag(jnp.array([3.0, 0.02, 0.005], dtype)))) == 2
    error = recovery_error(jnp.full(100, 32.0, dtype), np.full(100, 0.25, np.float32))
    np.testing.assert_allclose(error, 317.5, rtol=1e-6)
    assert float(recovery_error(jnp.array([1, 2]), np.array([0.5, 2.0]))) == 0.5
