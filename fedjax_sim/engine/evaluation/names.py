"""Names of the clients behind the arrays of an evaluation per client."""

from collections.abc import Mapping
from typing import Any

from jax.tree_util import Partial

from fedjax_sim.engine.evaluation.means import _All

ClientNames = Mapping[str, tuple[str, ...]]  # by split, as in clients.csv


def client_names(eval_fn: Any) -> dict[str, tuple[str, ...]]:
    """Returns the names of the clients of each split, as far as their data have names.

    Evaluators of :func:`~fedjax_sim.engine.evaluation.client_evaluator` and
    :func:`~fedjax_sim.engine.evaluation.personal_evaluator` with ``per_client=True`` keep the
    ``client_ids`` of their data, also inside of
    :func:`~fedjax_sim.engine.evaluation.merge_evaluators` and
    :func:`~fedjax_sim.engine.evaluation.at_rounds`.
    """
    return {split_of(prefix): names for prefix, names in _names(eval_fn, "").items()}


def split_of(prefix: str) -> str:
    """Returns the split of a metric's prefix: ``client/test`` is "test"."""
    return prefix.removeprefix("client/")


def _names(part: Any, prefix: str) -> dict[str, tuple[str, ...]]:
    if not isinstance(part, Partial):
        return {}
    if isinstance(part.func, _All):
        result: dict[str, tuple[str, ...]] = {}
        for name, inner in zip(part.func.names, part.args[0], strict=True):
            result |= _names(inner, "/".join(filter(None, (prefix, name))))
        return result
    names = getattr(getattr(part.func, "summary", None), "client_ids", None)
    if names is not None:
        return {prefix: names}
    return {} if not part.args else _names(part.args[0], prefix)
