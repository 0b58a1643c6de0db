"""Objectives and metrics: functions of parameters and a batch, with one value per example.

An objective is ``(params, examples, key) -> losses [B]``; a metric function is
``(params, examples) -> {name: values [B]}``, where ``examples = {"x": [B, ...], "y": [B, ...]}``.
They return values per example instead of means, so that short last batches and clients of different
sizes are weighted exactly. ``key`` is for random objectives (dropout, augmentation).

**Models.** The argument ``model`` is a :class:`~fedjax_sim.models.Model` or its function
``apply(params, x)``. Of a model with ``train`` (dropout, batch normalisation) the objective uses
``train`` with the key of the step, and metrics use ``apply``; objectives refuse the ``apply`` of
such a model, which would train without dropout.

**Running statistics.** An objective of a model with running statistics has an attribute
``statistics``, the predicate of their leaves, and a method ``weighted(params, examples, key,
weights)``, since examples that fill up a short batch must not count in the statistics. The
gradient of a statistic s is ``s - next(s)``: the loss contains the term
``<stop(s - next(s)), s - stop(s)>``, of value 0. :func:`fedjax_sim.running_statistics` reads the
next statistics there, so oracles need no other channel.
"""

from __future__ import annotations

from collections.abc import Callable

from fedjax_sim.checks import check_at_least, check_positive, check_takes
from fedjax_sim.objectives.losses import (
    Huber,
    MaskedSoftmax,
    largest_is_label,
    logistic,
    sign_is_label,
    softmax,
    squared,
)
from fedjax_sim.objectives.of_model import (
    Apply,
    Keyed,
    KeyedApply,
    LossAndAccuracy,
    Metrics,
    Objective,
    RegressionMetrics,
    Regularised,
    apply_of,
    as_float,
    batch_losses,
    check_labels,
    check_tokens,
    finished,
    momentum_of,
    objective_of,
    outputs_of,
    prepared,
    statistics_of,
)
from fedjax_sim.types import Model, Scalar

__all__ = [
    "Apply",
    "KeyedApply",
    "Metrics",
    "Objective",
    "as_float",
    "batch_losses",
    "binary_classification_metrics",
    "binary_cross_entropy",
    "check_labels",
    "classification_metrics",
    "cross_entropy",
    "finished",
    "huber",
    "keyed",
    "momentum_of",
    "objective_of",
    "outputs_of",
    "prepared",
    "regression_metrics",
    "squared_error",
    "statistics_of",
    "with_l2",
]


def cross_entropy(model: Apply | Model, ignore: int | None = None) -> Objective:
    """Softmax cross-entropy: ``log sum_c exp(z_c) - z_y`` with logits z.

    Args:
        model: a model, or ``(params, x) -> logits``. Logits are ``[B, C]``, or ``[B, L, C]`` for
            sequences, whose loss is the mean over the L positions.
        ignore: label of positions that do not count, such as the padding of
            :func:`fedjax_sim.data.tokens.next_tokens`. The loss of a sequence is then the mean over
            its other positions, 0 if it has none. Sequences count equally, whatever their number of
            such positions.

    Returns:
        Objective for integer labels ``[B]`` (``[B, L]``) in 0..C-1. It raises ValueError if the
        labels are not integers, or if their shape differs from the logits' shape without classes.

    Example:
        >>> import jax.numpy as jnp
        >>> objective = cross_entropy(lambda params, x: x @ params)
        >>> examples = {"x": jnp.ones((2, 3)), "y": jnp.array([0, 1])}
        >>> print(objective(jnp.zeros((3, 4)), examples, None).round(4))  # log 4
        [1.3863 1.3863]

        Token ids, of which the last one is padding:

        >>> objective = cross_entropy(lambda table, x: table[x], ignore=-1)
        >>> examples = {"x": jnp.array([[0, 1, 1]]), "y": jnp.array([[1, 1, -1]])}
        >>> table = jnp.log(jnp.array([[0.75, 0.25], [0.5, 0.5]]))
        >>> print(objective(table, examples, None).round(4))
        [1.0397]
    """
    return objective_of(model, softmax if ignore is None else MaskedSoftmax(ignore))


def binary_cross_entropy(model: Apply | Model) -> Objective:
    """Logistic loss: ``log(1 + exp(z)) - y z`` with logits z.

    Args:
        model: a model, or ``(params, x) -> logits``, with logits ``[B]``.

    Returns:
        Objective for labels ``[B]``, 0 or 1 (integers, booleans, or probabilities in between).
        It raises ValueError if logits and labels differ in shape, such as ``[B, 1]`` and ``[B]``,
        which would broadcast.

    Example:
        >>> import jax.numpy as jnp
        >>> objective = binary_cross_entropy(lambda params, x: x @ params)
        >>> examples = {"x": jnp.array([[2.0], [-1000.0]]), "y": jnp.array([1, 0])}
        >>> print(objective(jnp.ones(1), examples, None).round(4))
        [0.1269 0.    ]
    """
    return objective_of(model, logistic)


def squared_error(model: Apply | Model) -> Objective:
    """Squared error summed over outputs, without a factor 1/2: ``||prediction - y||^2``.

    Args:
        model: a model, or ``(params, x) -> predictions``, with predictions ``[B, ...]``.

    Returns:
        Objective for targets ``[B, ...]``. It raises ValueError if predictions and targets differ
        in shape; a model with one output, ``[B, 1]``, suits targets ``[B]``.

    Example:
        >>> import jax.numpy as jnp
        >>> objective = squared_error(lambda params, x: x @ params)
        >>> examples = {"x": jnp.ones((1, 2)), "y": jnp.array([5.0])}
        >>> objective(jnp.ones(2), examples, None).tolist()
        [9.0]
    """
    return objective_of(model, squared)


def huber(model: Apply | Model, delta: float = 1.0) -> Objective:
    """Huber's loss, summed over outputs: with the error e of an output and ``d = delta``,
    ``e^2 / 2`` where ``|e| <= d``, else ``d (|e| - d / 2)``.

    P. J. Huber, "Robust estimation of a location parameter", The Annals of Mathematical Statistics
    35(1), 1964. Within ``delta`` it is half of :func:`squared_error`.

    Args:
        model: as for :func:`squared_error`.
        delta: positive.

    Returns:
        Objective for targets ``[B, ...]``, as of :func:`squared_error`.

    Raises:
        ValueError: ``delta`` is not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> objective = huber(lambda params, x: x @ params)
        >>> examples = {"x": jnp.ones((2, 2)), "y": jnp.array([1.5, 5.0])}
        >>> objective(jnp.ones(2), examples, None).tolist()
        [0.125, 2.5]
    """
    check_positive(delta=delta)
    return objective_of(model, Huber(delta))


def with_l2(objective: Objective, weight: Scalar) -> Objective:
    """Adds ``weight / 2 ||params||^2`` to the loss of every example.

    The mean over any batch then includes the full regulariser. The sum of squares includes all
    parameters, also biases, but no running statistics.

    Args:
        objective: ``(params, examples, key) -> losses [B]``.
        weight: non-negative; may be traced, for sweeps.

    Raises:
        ValueError: a negative weight, or no objective.

    Example:
        >>> import jax.numpy as jnp
        >>> objective = with_l2(lambda params, examples, key: jnp.zeros(2), weight=0.5)
        >>> objective({"w": jnp.array([2.0])}, {}, None).tolist()
        [1.0, 1.0]
    """
    check_takes("objective", objective, ("params", "examples", "key"), " -> losses")
    check_at_least(0, weight=weight)
    return Regularised(objective, weight)


def keyed(make: Callable[[Apply], Objective], apply: KeyedApply) -> Objective:
    """Objective of a random model: ``make(apply(., ., key))`` with the key of the objective.

    Args:
        make: a function such as :func:`cross_entropy`.
        apply: ``(params, x, key) -> outputs``, e.g. of :func:`~fedjax_sim.models.quantized`.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> noisy = lambda params, x, key: x @ params + jax.random.normal(key, x.shape[:1])
        >>> objective = keyed(squared_error, noisy)
        >>> examples = {"x": jnp.ones((1, 2)), "y": jnp.array([2.0])}
        >>> noise = jax.random.normal(jax.random.key(0), (1,))
        >>> bool(objective(jnp.ones(2), examples, jax.random.key(0)) == (2 + noise - 2) ** 2)
        True
    """
    return Keyed(make, apply)


def classification_metrics(model: Apply | Model, ignore: int | None = None) -> Metrics:
    """``loss``: :func:`cross_entropy`; ``accuracy``: 1 where the label has the largest logit.

    The accuracy of a sequence is the mean over the positions whose label is not ``ignore``, 0 if it
    has none. Sequences count equally. Among equal logits the first is used; with NaN among them no
    label is right.

    Example:
        >>> import jax.numpy as jnp
        >>> metrics = classification_metrics(lambda params, x: x @ params)
        >>> examples = {"x": jnp.eye(2), "y": jnp.array([0, 0])}
        >>> metrics(jnp.eye(2), examples)["accuracy"].tolist()
        [1.0, 0.0]
    """
    loss = softmax if ignore is None else MaskedSoftmax(ignore)
    return LossAndAccuracy(apply_of(model), loss, largest_is_label)


def binary_classification_metrics(model: Apply | Model) -> Metrics:
    """``loss``: :func:`binary_cross_entropy`; ``accuracy``: 1 where ``z > 0`` agrees with ``y``.

    Labels are 0 or 1. NaN agrees with neither.

    Example:
        >>> import jax.numpy as jnp
        >>> metrics = binary_classification_metrics(lambda params, x: x @ params)
        >>> examples = {"x": jnp.array([[1.0], [-1.0]]), "y": jnp.array([1, 1])}
        >>> metrics(jnp.ones(1), examples)["accuracy"].tolist()
        [1.0, 0.0]
    """
    return LossAndAccuracy(apply_of(model), logistic, sign_is_label)


def regression_metrics(model: Apply | Model, delta: float | None = None) -> Metrics:
    """``loss``, ``rmse`` and ``r2`` of targets that are real numbers.

    ``loss``: :func:`squared_error`, or :func:`huber` with ``delta``; with the errors e_n of N
    examples, ``rmse = sqrt(1/N sum_n e_n^2)`` and, with the mean target m,
    ``r2 = 1 - sum_n e_n^2 / sum_n (y_n - m)^2``, the coefficient of determination. For several
    outputs, e_n^2 is their mean and ``r2`` the mean of theirs.

    The evaluators of :mod:`fedjax_sim.engine.evaluation` make these numbers of all their examples,
    or of all of a client, for any batch size. ``r2`` is NaN where all targets are equal. The
    function
    itself has one value per example: the loss and e_n^2, named "mean square".

    Args:
        model: as for :func:`squared_error`.
        delta: of :func:`huber`; default: the squared error.

    Raises:
        ValueError: ``delta`` is not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> from fedjax_sim.engine.evaluation import evaluator
        >>> metrics = regression_metrics(lambda params, x: x * params)
        >>> examples = {"x": jnp.array([1.0, 2.0, 3.0]), "y": jnp.array([1.0, 2.0, 6.0])}
        >>> result = evaluator(metrics, examples)(jnp.array(1.0))
        >>> {name: round(float(value), 4) for name, value in result.items()}  # errors 0, 0, -3
        {'rmse': 1.7321, 'loss': 3.0, 'r2': 0.3571}
    """
    check_positive(delta=delta)
    return RegressionMetrics(apply_of(model), squared if delta is None else Huber(delta))
