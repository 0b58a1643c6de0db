r"""Sparse and low-rank recovery: synthetic problems of federated composite optimisation.

Clients differ in the means of their inputs; the same model generates the targets of all clients.
For one seed the training examples depend neither on ``dtype`` nor on the size of the test set.

References:
    Yuan, Zaheer, Reddi, "Federated Composite Optimization", 2021; section 4.5 of
    Yuan, "On Principled Local Optimization Methods for Federated Learning", 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from fedjax_sim.checks import (
    check_at_least,
    check_at_most,
    check_count,
    check_one_number,
    floating_dtype,
    seeded,
)
from fedjax_sim.data import FederatedData
from fedjax_sim.types import shown


@shown
class RecoveryProblem(NamedTuple):
    """Data of the clients, and the true model to recover."""

    train: FederatedData  # {"x": [N, *shape], "y": [N]}
    test: FederatedData  # fresh examples of the same clients
    weight: np.ndarray  # [*shape] the truth
    bias: np.ndarray  # scalar


def sparse_regression(
    num_clients: int,
    examples_per_client: int | Sequence[int],
    num_nonzero: int,
    dim: int,
    seed: int | np.random.Generator,
    *,
    feature_scale: float = 1.0,
    heterogeneity: float = 1.0,
    noise: float = 1.0,
    test_examples_per_client: int | Sequence[int] = 32,
    dtype: DTypeLike = np.float32,
) -> RecoveryProblem:
    r"""Least squares with sparse true weights: ``num_nonzero`` ones, then zeros.

    .. math::
        a = s\,(\mu_m + \delta), \qquad b = \langle a, x \rangle + x^0 + \sigma \varepsilon, \qquad
        \mu_m \sim N(0, h^2 I), \quad \delta \sim N(0, I), \quad x^0, \varepsilon \sim N(0, 1)

    The means :math:`\mu_m` are drawn once per client and the bias :math:`x^0` once. The Hessian of
    a client's mean squared error has an eigenvalue of about :math:`2 s^2 (1 + h^2 d)`.

    Args:
        num_clients: M.
        examples_per_client: one size for all, or [M].
        num_nonzero: number of ones among the true weights x.
        dim: d.
        seed: int or generator.
        feature_scale: s, > 0; it changes neither the true weights nor the noise.
        heterogeneity: h, the standard deviation of the clients' means, >= 0.
        noise: sigma, >= 0.
        test_examples_per_client: test examples; one size for all, or [M].
        dtype: of inputs, targets and true weights.

    Raises:
        ValueError: a count below 1, ``num_nonzero`` outside 0..dim, sizes of a wrong shape, a
            negative scale, a dtype that is not floating.

    Example:
        >>> problem = sparse_regression(4, 10, num_nonzero=2, dim=5, seed=0, noise=0.0)
        >>> problem.train.examples["x"].shape, problem.weight.tolist()
        ((40, 5), [1.0, 1.0, 0.0, 0.0, 0.0])
        >>> train = problem.train.examples
        >>> fitted = train["x"] @ problem.weight + problem.bias
        >>> bool(np.allclose(fitted, train["y"], atol=1e-5))
        True
    """
    check_count(1, dim=dim)
    check_count(num_nonzero=num_nonzero)
    check_at_most(dim, num_nonzero=num_nonzero)
    truth = np.zeros(dim)
    truth[:num_nonzero] = 1
    return _problem(
        truth, num_clients, examples_per_client, test_examples_per_client, seed,
        feature_scale, heterogeneity, noise, dtype,
    )  # fmt: skip


def low_rank_regression(
    num_clients: int,
    examples_per_client: int | Sequence[int],
    rank: int,
    size: int,
    seed: int | np.random.Generator,
    *,
    feature_scale: float = 1.0,
    heterogeneity: float = 1.0,
    noise: float = 1.0,
    test_examples_per_client: int | Sequence[int] = 32,
    dtype: DTypeLike = np.float32,
) -> RecoveryProblem:
    r"""Least squares on matrices with diagonal true weights: ``rank`` ones, then zeros.

    It is :func:`sparse_regression` with matrices A of ``size x size`` instead of vectors:
    :math:`b = \langle A, X \rangle + x^0 + \sigma \varepsilon`.

    Args:
        num_clients: M.
        examples_per_client: one size for all, or [M].
        rank: rank of the true weights X.
        size: rows and columns.
        seed: int or generator.
        feature_scale: scale of the matrices A, > 0.
        heterogeneity: standard deviation of the entries of the clients' means, >= 0.
        noise: standard deviation of the targets, >= 0.
        test_examples_per_client: test examples; one size for all, or [M].
        dtype: of inputs, targets and true weights.

    Raises:
        ValueError: see :func:`sparse_regression`; ``rank`` outside 0..size.

    Example:
        >>> problem = low_rank_regression(4, 10, rank=2, size=3, seed=0)
        >>> problem.train.examples["x"].shape, problem.weight.tolist()
        ((40, 3, 3), [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    """
    check_count(1, size=size)
    check_count(rank=rank)
    check_at_most(size, rank=rank)
    truth = np.diag(np.arange(size) < rank).astype(np.float64)
    return _problem(
        truth, num_clients, examples_per_client, test_examples_per_client, seed,
        feature_scale, heterogeneity, noise, dtype,
    )  # fmt: skip


def _problem(
    truth: np.ndarray,
    num_clients: int,
    train_sizes: int | Sequence[int],
    test_sizes: int | Sequence[int],
    seed: int | np.random.Generator,
    feature_scale: float,
    heterogeneity: float,
    noise: float,
    dtype: DTypeLike,
) -> RecoveryProblem:
    check_count(1, num_clients=num_clients)
    check_at_least(0.0, heterogeneity=heterogeneity, noise=noise)
    check_one_number(feature_scale=feature_scale)
    if not 0 < feature_scale < np.inf:
        raise ValueError(f"feature_scale is {feature_scale}; expected a positive number")
    rng, dtype = seeded(seed), floating_dtype(dtype)
    bias = rng.standard_normal()
    means = heterogeneity * rng.standard_normal((num_clients, truth.size))

    def draw(**examples_per_client: int | Sequence[int]) -> FederatedData:
        sizes = _sizes(num_clients, **examples_per_client)
        x = rng.standard_normal((sizes.sum(), truth.size)) + np.repeat(means, sizes, axis=0)
        x *= feature_scale
        y = x @ truth.ravel() + bias + noise * rng.standard_normal(len(x))
        x = x.reshape(-1, *truth.shape).astype(dtype)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        return FederatedData({"x": x, "y": y.astype(dtype)}, offsets)

    # The training set comes first: it must not depend on the size of the test set.
    train = draw(examples_per_client=train_sizes)
    test = draw(test_examples_per_client=test_sizes)
    return RecoveryProblem(train, test, truth.astype(dtype), np.asarray(bias, dtype))


def _sizes(num_clients: int, **examples_per_client: int | Sequence[int]) -> np.ndarray:
    """Returns one size per client ``[M]``, of one argument by name."""
    ((name, given),) = examples_per_client.items()
    sizes = np.asarray(given)
    if sizes.shape not in ((), (num_clients,)) or sizes.dtype.kind not in "iu" or sizes.min() < 1:
        raise ValueError(
            f"{name} is {given}; expected a positive integer, or {num_clients} of them"
        )
    return np.broadcast_to(sizes, num_clients)
