"""Transforms, ``Oracle -> Oracle``: modified gradients for any algorithm.

A transform changes ``grad``, the direction that local steps descend; ``loss`` and ``full_grad``
stay those of the data.  The order of composition is the order of operations:
``add_decayed_weights(clip_by_global_norm(oracle, 10.0), 1e-3)`` clips first and decays after.
:func:`transform_oracle` applies a transform to a finished algorithm; the algorithm's own terms
(proximal, control variates) then come last.  Methods that take a gradient at a perturbed model
have an argument ``transform`` instead: it acts on that gradient, not on the one that perturbs.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.checks import (
    called,
    check_is_algorithm,
    check_statistics_last,
    check_takes,
    checked_oracle,
)
from fedjax_sim.types import FedAlgorithm, Oracle, Params, Scalar, specified


@specified
def transform_oracle(
    algorithm: FedAlgorithm, transform: Callable[[Oracle], Oracle]
) -> FedAlgorithm:
    """Returns an algorithm whose clients use ``transform(oracle)``, also for personal models.

    Raises:
        ValueError: no algorithm, or one that updates running statistics, which the transform would
            change (apply :func:`~fedjax_sim.wrappers.running_statistics.running_statistics` last);
            no function of an oracle, or one that returns something else.

    Example:
        >>> from fedjax_sim.algorithms import fedavg
        >>> decay = lambda oracle: add_decayed_weights(oracle, 1e-3)
        >>> algorithm = transform_oracle(fedavg(lr=0.1), decay)
    """
    check_is_algorithm(algorithm)
    check_takes("transform", transform, ("oracle",))
    check_statistics_last("transform_oracle", algorithm)
    personal = algorithm.personal

    def transformed(oracle: Oracle) -> Oracle:
        expected = "a function that returns an Oracle"
        new = called("transform", "an oracle", expected, transform, oracle)
        return checked_oracle("transform", new)

    return algorithm._replace(
        local=lambda message, state, oracle, work: algorithm.local(
            message, state, transformed(oracle), work
        ),
        personal=personal
        and (
            lambda message, state, oracle, work: personal(message, state, transformed(oracle), work)
        ),
    )


def proximal(oracle: Oracle, mu: Scalar, anchor: Params) -> Oracle:
    r"""Gradient of :math:`F_i(x) + \frac{\mu}{2} \|x - \text{anchor}\|^2`.

    Example:
        >>> oracle = Oracle(lambda x, k: x, lambda x, k: x @ x / 2, lambda x: x)  # F(x) = x^2 / 2
        >>> proximal(oracle, 2.0, anchor=jnp.ones(2)).grad(jnp.array([1.0, 3.0]), 0).tolist()
        [1.0, 7.0]
    """

    def grad(x, k):
        return tree.add_scale(oracle.grad(x, k), mu, tree.sub(x, anchor))

    return oracle._replace(grad=grad)


def corrected(oracle: Oracle, correction: Params) -> Oracle:
    """Gradient plus a constant vector, ``g(x) + correction`` (control variates, dual terms).

    Example:
        >>> oracle = Oracle(lambda x, k: x, lambda x, k: x @ x / 2, lambda x: x)  # F(x) = x^2 / 2
        >>> corrected(oracle, jnp.array([1.0, -1.0])).grad(jnp.ones(2), 0).tolist()
        [2.0, 0.0]
    """
    return oracle._replace(grad=lambda x, k: tree.add(oracle.grad(x, k), correction))


def perturbed(oracle: Oracle, offset: Params) -> Oracle:
    """Gradient at a shifted model, ``g(x + offset)``.

    Example:
        >>> cube = Oracle(lambda x, k: 3 * x**2, lambda x, k: (x**3).sum(), lambda x: 3 * x**2)
        >>> perturbed(cube, jnp.array([1.0])).grad(jnp.array([1.0]), 0).tolist()
        [12.0]
    """
    return oracle._replace(grad=lambda x, k: oracle.grad(tree.add(x, offset), k))


def sam(oracle: Oracle, radius: Scalar) -> Oracle:
    r"""Sharpness-aware gradient :math:`g(x + r\, g(x) / \|g(x)\|)` on one minibatch.

    The norm is global over the tree; a zero gradient gives a zero perturbation.
    Foret et al., 2021.

    Example:
        >>> oracle = Oracle(lambda x, k: x, lambda x, k: x @ x / 2, lambda x: x)  # F(x) = x^2 / 2
        >>> sam(oracle, 5.0).grad(jnp.array([3.0, 4.0]), 0).tolist()  # at x + (3, 4)
        [6.0, 8.0]
    """

    def grad(x, k):
        ascent = oracle.grad(x, k)
        return oracle.grad(tree.add_scale(x, tree.over_norm(radius, ascent), ascent), k)

    return oracle._replace(grad=grad)


def asam(oracle: Oracle, radius: Scalar, eta: Scalar = 0.01) -> Oracle:
    r"""Adaptive SAM: :math:`g(x + r\, T^2 g / \|T g\|)` with :math:`T = |x| + \eta`.

    T is 1 on leaves of one dimension or none (biases, scales).  Kwon et al., 2021;
    in federated form Caldarola et al., 2022.

    Example:
        >>> oracle = Oracle(lambda x, k: x, lambda x, k: x @ x / 2, lambda x: x)  # F(x) = x^2 / 2
        >>> asam(oracle, 5.0).grad(jnp.array([3.0, 4.0]), 0).tolist()  # as sam: one dimension
        [6.0, 8.0]
    """

    def grad(x, k):
        def scaling(leaf):
            return jnp.abs(leaf) + jnp.asarray(eta, leaf.dtype) if leaf.ndim > 1 else None

        def times(t, leaf):
            return leaf if t is None else t * leaf

        t = [scaling(leaf) for leaf in jax.tree.leaves(x)]
        leaves, structure = jax.tree.flatten(oracle.grad(x, k))
        tg = [times(a, b) for a, b in zip(t, leaves, strict=True)]
        ttg = structure.unflatten([times(a, b) for a, b in zip(t, tg, strict=True)])
        return oracle.grad(tree.add_scale(x, tree.over_norm(radius, tg), ttg), k)

    return oracle._replace(grad=grad)


def with_term(oracle: Oracle, term: Callable[..., Array], *models: Params) -> Oracle:
    r"""Gradient plus that of the mean of ``term(x, *models, examples, key)`` over the minibatch.

    For losses of outputs or features that compare x with other models.  The term has one value per
    example, ``[B]``, and its derivative with respect to x counts.  Numbers that may be traced are
    arguments of a ``jax.tree_util.Partial``, which must not contain arrays otherwise.

    Raises:
        ValueError: the oracle has no ``mean``.

    Example:
        >>> import numpy as np
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"x": np.array([1.0, 3.0])}, np.array([0, 2]))
        >>> loss = lambda w, examples, key: w * examples["x"]
        >>> oracle = fs.empirical_task(loss, data, fs.full_batch(1)).oracle(0, jax.random.key(0), 1)
        >>> pull = lambda w, anchor, examples, key: examples["x"] * (w - anchor) ** 2
        >>> float(with_term(oracle, pull, jnp.array(1.0)).grad(jnp.array(2.0), 0))  # 2 + 2 * 2
        6.0
    """
    mean = mean_over(oracle)

    def grad(x, k):
        # First: the last gradient of a step moves private leaves.
        of_term = jax.grad(mean(term, k))(x, *models)
        return tree.add(oracle.grad(x, k), of_term)

    return oracle._replace(grad=grad)


def mean_over(oracle: Oracle) -> Callable[..., Callable[..., Array]]:
    """Returns ``oracle.mean``, the mean of a function of models over a client's examples.

    Raises:
        ValueError: the oracle has none.

    Example:
        >>> import numpy as np
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"x": np.array([1.0, 3.0])}, np.array([0, 2]))
        >>> loss = lambda w, examples, key: w * examples["x"]
        >>> oracle = fs.empirical_task(loss, data, fs.full_batch(1)).oracle(0, jax.random.key(0), 1)
        >>> square = lambda w, examples, key: w * examples["x"] ** 2
        >>> float(mean_over(oracle)(square)(2.0))  # over all data: 2 (1 + 9) / 2
        10.0
    """
    if oracle.mean is None:
        raise ValueError(
            "oracle.mean is None; expected a task whose oracle has the mean over a client's "
            "examples, as those of empirical_task"
        )
    return oracle.mean


def clip_by_global_norm(oracle: Oracle, max_norm: Scalar, eps: Scalar = 1e-6) -> Oracle:
    r"""Gradient scaled to norm at most ``max_norm``: :math:`g \min(1, c / (\|g\| + \epsilon))`.

    The norm is global over the tree.  ``eps`` is that of PyTorch's ``clip_grad_norm_``, with which
    the published experiments clip; 0 makes gradients longer than ``max_norm`` exactly as long.

    Example:
        >>> oracle = Oracle(lambda x, k: x, lambda x, k: x @ x / 2, lambda x: x)  # F(x) = x^2 / 2
        >>> clip_by_global_norm(oracle, 1.0, eps=0.0).grad(jnp.array([0.0, 4.0]), 0).tolist()
        [0.0, 1.0]
    """

    def grad(x, k):
        g = oracle.grad(x, k)
        return tree.scale(tree.clip_factor(max_norm, g, eps), g)

    return oracle._replace(grad=grad)


def unchanged(oracle: Oracle) -> Oracle:
    """Returns the oracle without a change.

    Example:
        >>> oracle = Oracle(lambda x, k: x, lambda x, k: x @ x / 2, lambda x: x)  # F(x) = x^2 / 2
        >>> unchanged(oracle) is oracle
        True
    """
    return oracle


def add_decayed_weights(oracle: Oracle, weight_decay: Scalar) -> Oracle:
    """Coupled weight decay on every parameter: ``g(x) + weight_decay * x``.

    Example:
        >>> oracle = Oracle(lambda x, k: x, lambda x, k: x @ x / 2, lambda x: x)  # F(x) = x^2 / 2
        >>> add_decayed_weights(oracle, 0.5).grad(jnp.array([2.0]), 0).tolist()
        [3.0]
    """
    return oracle._replace(grad=lambda x, k: tree.add_scale(oracle.grad(x, k), weight_decay, x))
