"""Scores of labels and outputs for :func:`~fedjax_sim.engine.evaluation.pooled_evaluator`.

Outputs are the logits of a classifier, ``[N, C]``, or ``[N]`` or ``[N, 1]`` of two classes, and the
predictions of a regression.  A score that the examples do not define is NaN, such as the AUC of
examples of one class, and so are all scores of outputs that are NaN.
"""

from __future__ import annotations

import numpy as np

_BINS = 15


def auc(y: np.ndarray, z: np.ndarray) -> float:
    """Area under the ROC curve: ``P(z_i > z_j | y_i = 1, y_j = 0)``, ties count as a half.

    Of more than two classes the mean over the classes of "this class or another", by softmax
    probabilities; classes that no example has, or that all have, are left out.  Probabilities are
    compared by their log odds, so that those that round to 1 are not ties.

    Args:
        y: labels ``[N]``, integers from 0.
        z: logits ``[N]``, ``[N, 1]`` or ``[N, C]``.

    Example:
        >>> auc(np.array([0, 0, 1, 1]), np.array([0.1, 0.4, 0.35, 0.8]))
        0.75
    """
    z = _logits(z)
    y = _labels(y, z.shape[1])
    classes = [1] if z.shape[1] == 2 else range(z.shape[1])
    values = []
    for c in classes:
        positive = y == c
        if 0 < (count := positive.sum()) < len(y):
            _, place, equal = np.unique(_log_odds(z, c), return_inverse=True, return_counts=True)
            ranks = (np.cumsum(equal) - (equal - 1) / 2)[place]  # ties have their mean
            above = ranks[positive].sum() - count * (count + 1) / 2  # pairs in order
            values.append(above / (count * (len(y) - count)))
    return float(np.mean(values)) if values and not np.isnan(z).any() else np.nan


def f1(y: np.ndarray, z: np.ndarray) -> float:
    """F1: ``2 TP / (2 TP + FP + FN)`` of class 1, or the mean over the classes.

    It is the harmonic mean of :func:`precision` and :func:`recall` of a class.  Of more than two
    classes the mean over those that examples have or that are predicted.

    Args:
        y, z: as in :func:`auc`.

    Example:
        >>> round(f1(np.array([0, 0, 1, 1]), np.array([-1.0, 1.0, 1.0, 1.0])), 3)
        0.8
    """
    return _by_class(y, z)[2]


def precision(y: np.ndarray, z: np.ndarray) -> float:
    """Share of the examples predicted as a class that have it: of class 1, or the classes' mean.

    Of more than two classes the mean over the classes that are predicted.  The largest logit is
    the prediction; of two classes with one logit its sign.

    Args:
        y, z: as in :func:`auc`.

    Example:
        >>> round(precision(np.array([0, 0, 1, 1]), np.array([-1.0, 1.0, 1.0, 1.0])), 3)
        0.667
    """
    return _by_class(y, z)[0]


def recall(y: np.ndarray, z: np.ndarray) -> float:
    """Share of the examples of a class that are predicted as it: of class 1, or the classes' mean.

    Of more than two classes the mean over the classes that examples have.

    Args:
        y, z: as in :func:`auc`.

    Example:
        >>> recall(np.array([0, 0, 1, 1]), np.array([-1.0, 1.0, 1.0, -1.0]))
        0.5
    """
    return _by_class(y, z)[1]


def confusion(y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Number of examples of each class (row) by predicted class (column), ``[C, C]``.

    Args:
        y, z: as in :func:`auc`.

    Example:
        >>> confusion(np.array([0, 0, 1]), np.array([-1.0, 1.0, 1.0])).tolist()
        [[1, 1], [0, 1]]
    """
    z = _logits(z)
    classes = z.shape[1]
    pairs = _labels(y, classes) * classes + z.argmax(1)
    counts = np.bincount(pairs, minlength=classes**2).reshape(classes, classes)
    return np.full(counts.shape, np.nan) if np.isnan(z).any() else counts


def calibration_error(y: np.ndarray, z: np.ndarray) -> float:
    """Expected calibration error: ``sum_b n_b / N |accuracy_b - confidence_b|`` over 15 bins.

    The confidence of an example is its largest probability; bin b has the confidences in
    ``(b / 15, (b + 1) / 15]``.

    Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks", ICML 2017, Eq. (3).

    Args:
        y, z: as in :func:`auc`.

    Example:
        >>> sure = np.array([[9.0, -9.0], [9.0, -9.0]])  # both with probability 1
        >>> round(calibration_error(np.array([0, 1]), sure), 3)
        0.5
    """
    z = _logits(z)
    z = np.exp(z - z.max(1, keepdims=True))
    p = z / z.sum(1, keepdims=True)
    confidence, correct = p.max(1), p.argmax(1) == _labels(y, p.shape[1])
    if np.isnan(confidence).any():
        return np.nan
    bins = np.clip(np.ceil(confidence * _BINS).astype(int) - 1, 0, _BINS - 1)
    gaps = np.bincount(bins, correct - confidence, _BINS)  # n_b (accuracy_b - confidence_b)
    return float(np.abs(gaps).sum() / len(p))  # Eq. (3)


def perplexity(y: np.ndarray, z: np.ndarray) -> float:
    """Exponential of the mean cross-entropy: ``exp(1/N sum_n -log p_n[y_n])``.

    Args:
        y, z: as in :func:`auc`.

    Example:
        >>> perplexity(np.array([0, 1]), np.zeros((2, 4)))
        4.0
    """
    z = _logits(z)
    of_label = z[np.arange(len(z)), _labels(y, z.shape[1])]
    with np.errstate(over="ignore"):  # to infinity
        return float(np.exp(np.mean(_log_sum(z) - of_label)))


def rmse(y: np.ndarray, z: np.ndarray) -> float:
    """Root mean squared error ``sqrt(1/N sum_n (y_n - z_n)^2)``, the mean over several outputs.

    Args:
        y: targets ``[N]`` or ``[N, D]``.
        z: predictions of the same shape, or ``[N, 1]`` for targets ``[N]``.

    Example:
        >>> rmse(np.array([0.0, 2.0]), np.array([[1.0], [1.0]]))
        1.0
    """
    return float(np.sqrt(_squares(*_pairs(y, z)).mean(0)).mean())


def r2(y: np.ndarray, z: np.ndarray) -> float:
    """Coefficient of determination ``1 - sum_n (y_n - z_n)^2 / sum_n (y_n - mean y)^2``.

    NaN if all targets are equal; the mean over several outputs.

    Args:
        y, z: as in :func:`rmse`.

    Example:
        >>> r2(np.array([0.0, 2.0, 4.0]), np.array([0.0, 2.0, 2.0]))
        0.5
    """
    y, z = _pairs(y, z)
    if (np.ptp(y, axis=0) == 0).any():
        return np.nan
    return float(np.mean(1 - _squares(y, z).sum(0) / _squares(y, y.mean(0)).sum(0)))


def _by_class(y: np.ndarray, z: np.ndarray) -> tuple[float, float, float]:
    """Returns precision, recall and F1."""
    counts = confusion(y, z)
    hits, examples, predicted = np.diag(counts), counts.sum(1), counts.sum(0)
    with np.errstate(invalid="ignore"):  # 0 / 0 is NaN: the class is left out
        each = hits / predicted, hits / examples, 2 * hits / (examples + predicted)
    if len(counts) == 2:
        return float(each[0][1]), float(each[1][1]), float(each[2][1])
    means = [float(x[~np.isnan(x)].mean()) if (~np.isnan(x)).any() else np.nan for x in each]
    return means[0], means[1], means[2]


def _log_odds(z: np.ndarray, c: int) -> np.ndarray:
    """Returns the logarithm of the odds of class c; equal numbers for equal odds, ``[N]``."""
    # Sums of the same terms in another order, or of terms that are all larger, would round to
    # other numbers, and ties would count as pairs in order or out of order.
    own = z[:, [c]]
    others = np.subtract(
        np.delete(z, c, 1), own, out=np.full_like(z[:, 1:], np.inf), where=own > -np.inf
    )
    return -_log_sum(np.sort(others, axis=1))


def _log_sum(z: np.ndarray) -> np.ndarray:
    """Returns the logarithms of the sums of exponentials, ``[N]``."""
    with np.errstate(invalid="ignore"):  # NaN of NaN
        return np.logaddexp.reduce(z, axis=1)


def _labels(y: np.ndarray, num_classes: int) -> np.ndarray:
    y = np.asarray(y)
    if y.ndim != 1 or not np.isin(y, np.arange(num_classes)).all():
        raise ValueError(
            f"examples['y'] has shape {y.shape} and labels {y.min():g} .. {y.max():g}; expected "
            f"[N], whole numbers in 0 .. {num_classes - 1}, for the outputs' {num_classes} classes"
        )
    return y.astype(int)


def _logits(z: np.ndarray) -> np.ndarray:
    """Returns logits ``[N, C]``, of at least two classes; those of an infinite one are NaN."""
    z = np.asarray(z, float)
    if z.ndim == 2 and z.shape[1] == 1:
        z = z[:, 0]
    if z.ndim == 1:
        z = np.stack([np.zeros_like(z), z], 1)
    if z.ndim != 2:
        raise ValueError(f"outputs have shape {z.shape}; expected logits [N], [N, 1] or [N, C]")
    return np.where(np.isfinite(z.max(1, keepdims=True)), z, np.nan)


def _pairs(y: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns targets and predictions of equal shapes."""
    y, z = np.asarray(y, float), np.asarray(z, float)
    if {(*y.shape, 1), (*z.shape, 1)} & {y.shape, z.shape}:
        y, z = y.reshape(len(y), -1), z.reshape(len(z), -1)
    if y.shape != z.shape:
        raise ValueError(f"outputs have shape {z.shape}; expected {y.shape}, that of the targets")
    return y, z


def _squares(y: np.ndarray, z: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # to infinity
        return np.square(y - z)
