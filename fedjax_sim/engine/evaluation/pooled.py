"""Scores of all examples together: functions of labels and outputs, computed on the host.

A program returns the model's outputs of all examples.  The host then calls the scores, after every
segment of a run.  A callback from inside the program is no alternative: on several devices of one
host it may wait for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.tree_util import Partial

from fedjax_sim.data import FederatedData, check_finite
from fedjax_sim.engine.evaluation.clients import QUANTILES, client_statistics
from fedjax_sim.engine.evaluation.context import OUTPUTS
from fedjax_sim.engine.evaluation.names import direction, parts_of
from fedjax_sim.engine.evaluation.state import due, is_mark
from fedjax_sim.engine.evaluation.streaming import check_examples, in_batches, num_examples
from fedjax_sim.objectives import Apply, apply_of, check_tokens, outputs_of
from fedjax_sim.types import Model, Params, PyTree

_MOST_BYTES = 2**28  # of the outputs that a segment returns, unless one evaluation has more

# (labels [N, ...], outputs [N, ...]) -> number, array of numbers, or numbers by name
Score = Callable[[np.ndarray, np.ndarray], Any]


def pooled_evaluator(
    model: Apply | Model,
    examples: PyTree | FederatedData,
    scores: Mapping[str, Score],
    batch_size: int | None = None,
) -> Partial:
    """Scores of all examples together, such as AUC or F1, which are no means over examples.

    Let ``z [N, ...]`` be the model's outputs and ``y [N, ...]`` the labels.  A score is a function
    ``s(y, z)`` in NumPy or scikit-learn; :mod:`fedjax_sim.engine.evaluation.scores` has some.  It
    returns a number, an array, or a dict of numbers, whose names are appended: ``name/key``.
    All scores of outputs that have a NaN are NaN, as those of a model that diverged.

    Of :class:`~fedjax_sim.FederatedData` every client is scored, too, on its own examples.
    ``name/mean``, ``name/min``, ... are the statistics of
    :func:`~fedjax_sim.engine.evaluation.client_statistics` over the clients whose score is a
    number, and ``name/clients`` is how many those are.  A client has none if its score is NaN, such
    as the AUC of one class.  The statistics are NaN if no client has a score.

    The host computes the scores from the outputs that a program returns, see :func:`scored`.
    :func:`~fedjax_sim.simulate`, :func:`~fedjax_sim.compare` and :func:`~fedjax_sim.sweep` do it
    after every segment; their histories have the scores.  Memory on the device, per evaluation of
    a segment: the outputs of all examples.

    A resumed run does not notice that a score was changed, since a score is in no program.

    Args:
        model: a :class:`~fedjax_sim.models.Model`, or its function ``apply(params, x)``.
        examples: ``{"x": [N, ...], "y": [N, ...]}``, or clients with such examples.  Of a model
            with several inputs "x" is a dict or tuple of them.
        scores: by name.
        batch_size: examples evaluated at once; default by the model.

    Returns:
        ``Partial``: ``params -> {"pooled/outputs": [N, ...]}``.

    Raises:
        ValueError: no scores, a score that is no function, no examples, examples without "x" or
            "y". At the start of a run: a score that fails on outputs of zeros, or returns something
            else than real numbers.

    Example:
        >>> data = {"x": np.array([[1.0], [2.0], [-1.0]]), "y": np.array([1, 1, 0])}
        >>> error = lambda y, z: ((z > 0) != y).mean()
        >>> evaluate = pooled_evaluator(lambda w, x: x @ w, data, {"error": error})
        >>> scored(evaluate, evaluate(np.array([1.0])))
        {'error': array(0.)}
    """
    if not scores:
        raise ValueError("scores is empty; expected functions of labels and outputs by name")
    for name, score in scores.items():
        if not callable(score):
            raise ValueError(
                f"scores has {name!r}: {score!r:.60}; expected a function of labels and outputs"
            )
    offsets, pooled = None, examples
    if isinstance(examples, FederatedData):
        offsets, pooled = jax.device_put(np.asarray(examples.offsets)), examples.examples
    if not isinstance(pooled, Mapping) or not {"x", "y"} <= pooled.keys():
        names = sorted(pooled) if isinstance(pooled, Mapping) else type(pooled).__name__
        raise ValueError(f"examples has {names}; expected a dict with 'x' and 'y'")
    part = _Pooled(apply_of(model), tuple(scores.items()), batch_size)
    return Partial(part, check_examples(pooled, batch_size), offsets)


class _Pooled(NamedTuple):
    """Static part of an evaluator of scores. Hashable by value."""

    apply: Apply
    scores: tuple[tuple[str, Score], ...]
    batch_size: int | None

    def __call__(self, examples: PyTree, offsets: Any, params: Params) -> dict[str, Array]:
        del offsets  # only the host needs them
        length = num_examples(examples)

        def collect(batch: int) -> Callable[[Params, PyTree], Array]:
            def outputs_at(params: Params, examples: PyTree, start: Array | int) -> Array:
                x = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, start, batch), examples["x"])
                return outputs_of(self.apply, params, {"x": x})  # as in other evaluators

            def every(params: Params, examples: PyTree) -> Array:
                def write(outputs: Array, index: Array) -> tuple[Array, None]:
                    start = jnp.minimum(index * batch, length - batch)
                    part = outputs_at(params, examples, start)
                    return lax.dynamic_update_slice_in_dim(outputs, part, start, 0), None

                one = jax.eval_shape(lambda p, e: outputs_at(p, e, 0), params, examples)
                if one.shape[:1] != (batch,):
                    raise ValueError(
                        f"model returns {one.dtype}{list(one.shape)} for {batch} examples; "
                        f"expected [{batch}, ...]"
                    )
                outputs = jnp.zeros((length, *one.shape[1:]), one.dtype)
                return lax.scan(write, outputs, jnp.arange(-(-length // batch)))[0]

            return every

        return {OUTPUTS: in_batches(collect, params, examples, self.batch_size)}

    def check(self, examples: PyTree, offsets: Any, params: Params) -> None:
        """Refuses examples that are not finite, unknown tokens, and scores that fail on zeros."""
        check_finite(examples)
        check_tokens(self.apply, examples["x"])
        struct = jax.eval_shape(lambda e, p: self(e, offsets, p), examples, params)[OUTPUTS]
        of = None if offsets is None else np.asarray(offsets)
        scorer = _Scorer(self.scores, np.asarray(examples["y"]), of)
        scorer(np.zeros(struct.shape, struct.dtype))


class _Scorer(NamedTuple):
    """Everything that the host needs for one evaluator of scores."""

    scores: tuple[tuple[str, Score], ...]
    labels: np.ndarray  # [N, ...]
    offsets: np.ndarray | None  # [M + 1], of clients that are scored

    def __call__(self, outputs: np.ndarray) -> dict[str, np.ndarray]:
        if outputs.shape[:1] != self.labels.shape[:1]:
            raise ValueError(
                f"metrics has outputs {list(outputs.shape)}; expected [{len(self.labels)}, ...], "
                "one of each example; leading axes, of several evaluations, are the argument shape"
            )
        results = self._of(self.labels, outputs)
        if self.offsets is None:
            return results
        bounds = zip(self.offsets[:-1], self.offsets[1:], strict=True)
        clients = [self._of(self.labels[a:b], outputs[a:b]) for a, b in bounds if a < b]
        for name in [name for name, value in results.items() if not value.ndim]:
            values = np.array([client.get(name, np.nan) for client in clients], float)
            known = values[~np.isnan(values)]
            larger = direction(name) != "min"
            of = known if len(known) else np.full(1, np.nan)
            statistics = client_statistics(of, QUANTILES, higher_is_better=larger)
            for key, value in {**statistics, "clients": len(known)}.items():
                results[_free("", f"{name}/{key}", results)] = np.asarray(value)
        return results

    def _of(self, labels: np.ndarray, outputs: np.ndarray) -> dict[str, np.ndarray]:
        results: dict[str, np.ndarray] = {}
        undefined = bool(np.isnan(outputs).any())  # functions refuse NaN or predict class 0
        for name, score in self.scores:
            values = _values(name, score, labels, np.zeros_like(outputs) if undefined else outputs)
            for full, value in values.items():
                value = np.full(value.shape, np.nan) if undefined else value
                results[_free("", full, results)] = value
        return results


class Scorers:
    """Scores of all evaluators in an ``eval_fn``, with labels on the host."""

    def __init__(self, eval_fn: Any):
        self._scorers: dict[str, _Scorer] = {}  # by the name of the outputs
        self._parts: list[Partial] = []
        for prefix, part in parts_of(eval_fn):
            if isinstance(part.func, _Pooled):
                examples, offsets = part.args[:2]
                name = f"{prefix}/{OUTPUTS}" if prefix else OUTPUTS
                labels = np.asarray(examples["y"])
                of = None if offsets is None else np.asarray(offsets)
                self._scorers[name] = _Scorer(part.func.scores, labels, of)
                self._parts.append(part)

    def __call__(self, metrics: Mapping[str, Any], shape: tuple[int, ...]) -> dict[str, Any]:
        """Returns metrics ``[*shape, ...]`` with scores in the place of outputs.

        A score that was not due is 0, as other metrics of
        :func:`~fedjax_sim.engine.evaluation.at_rounds`.
        """
        result = {name: value for name, value in metrics.items() if name not in self._scorers}
        for name, scorer in self._scorers.items():
            outputs = np.asarray(metrics[name])
            rows: list[dict[str, np.ndarray] | None] = []
            for at in np.ndindex(shape):
                marks = {key: x[at] for key, x in metrics.items() if is_mark(key)}
                rows.append(scorer(outputs[at]) if due(marks, name) else None)
            done = [row for row in rows if row is not None]
            # A segment without an evaluation needs the names and the shapes, too.
            like = done[0] if done else scorer(np.zeros(outputs.shape[len(shape) :]))
            for row in done:
                if row.keys() != like.keys():
                    raise ValueError(
                        f"scores returns {sorted(row)} and in another evaluation {sorted(like)}; "
                        "expected the same names"
                    )
            for key, value in like.items():
                kind = np.result_type(value, *(row[key] for row in done))
                values = np.zeros((len(rows), *value.shape), kind)
                for i, row in enumerate(rows):
                    values[i] = 0 if row is None else row[key]
                result[_free(name, key, result)] = values.reshape((*shape, *value.shape))
        return result

    def are_large(self, params: Params, evaluations: int) -> bool:
        """Returns True if outputs of so many evaluations are no small part of a device's memory."""
        outputs = [jax.eval_shape(lambda p, part=part: part(p), params) for part in self._parts]
        size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(outputs))
        return size * evaluations > _MOST_BYTES


def scored(eval_fn: Any, metrics: Mapping[str, Any], shape: tuple[int, ...] = ()) -> dict[str, Any]:
    """Returns metrics with scores in the place of outputs.

    For loops of your own: :func:`~fedjax_sim.simulate`, :func:`~fedjax_sim.compare` and
    :func:`~fedjax_sim.sweep` return scores.

    Args:
        eval_fn: an evaluator, maybe with parts of :func:`pooled_evaluator`.
        metrics: its result, or several results, as ``history.metrics`` of :func:`~fedjax_sim.run`.
        shape: leading axes of all metrics: ``()`` of one evaluation, else ``history.round.shape``.

    Raises:
        ValueError: a score has the name of a metric or of another score, or is not made of real
            numbers; or outputs are not those of all examples.

    Example:
        >>> norm = Partial(lambda w: {"norm": abs(w)})
        >>> scored(norm, norm(-2.0))
        {'norm': 2.0}
    """
    return Scorers(eval_fn)(metrics, shape)


def _free(outputs: str, score: str, metrics: Mapping[str, Any]) -> str:
    """Returns the metric's name of a score; refuses one that another metric has."""
    name = outputs.removesuffix(OUTPUTS) + score
    if name in metrics:
        raise ValueError(
            f"eval_fn has {name!r} twice, as a score and as another score or metric; expected "
            "different names"
        )
    return name


def _values(name: str, score: Score, labels: np.ndarray, outputs: np.ndarray) -> dict[str, Any]:
    """Returns the numbers of one score by their full names."""
    try:
        result = score(labels, outputs)
    except Exception as error:
        raise ValueError(
            f"scores[{name!r}] fails on labels {labels.dtype}{list(labels.shape)} and outputs "
            f"{outputs.dtype}{list(outputs.shape)}: {type(error).__name__}: {error}"
        ) from error
    named = result if isinstance(result, Mapping) else {"": result}
    values = {f"{name}/{key}" if key else name: np.asarray(x) for key, x in named.items()}
    for full, value in values.items():
        if not np.issubdtype(value.dtype, np.number) and value.dtype != bool:
            raise ValueError(f"scores returns {result!r:.60} for {full!r}; expected real numbers")
        if np.iscomplexobj(value):
            raise ValueError(f"scores returns {full!r}, which is complex; expected real numbers")
    return values
