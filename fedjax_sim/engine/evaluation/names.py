"""Names of metrics, which say a direction and an importance, and of the clients behind arrays."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from jax.tree_util import Partial

from fedjax_sim.engine.evaluation.means import _All
from fedjax_sim.engine.evaluation.state import _AtRounds

# Mean over all test examples of the models that clients use themselves.
PERSONAL = "personal/test/accuracy/weighted_mean"
PERSONAL_R2 = "personal/test/r2/weighted_mean"  # of a regression

# By these methods are compared, so tables and figures show them first. By those of personal models,
# where they were evaluated, all methods can be compared.
_HEADLINES = (PERSONAL, PERSONAL_R2, "test/accuracy", "test/r2", "test/loss", "train/loss")
PROGRESS = ("round", "time", "local_steps", "bits")

# Words of metrics of which larger values are better, and which lie in [0, 1].
_FRACTIONS = {
    "accuracy", "acc", "precision", "recall", "f1", "auc", "auroc", "dice", "iou", "jain",
}  # fmt: skip
# Words of other metrics of which larger values are better: the coefficient of determination.
_LARGER = {"r2"}
# Words of metrics, besides losses and errors, of which smaller values are better; the spread of
# accuracies over clients is one of them, and so is the success of an attacker's backdoor.
_SMALLER = {
    "perplexity", "ppl", "nll", "mse", "rmse", "mae", "gap", "distance", "regret", "std",
    "variance", "backdoor",
}  # fmt: skip


def direction(metric: str) -> Literal["min", "max"] | None:
    """Returns "max" or "min", the better direction that a metric's name implies; None: unknown."""
    if _is_count(metric):
        return None
    name = metric.lower()
    if "loss" in name or "error" in name or not _SMALLER.isdisjoint(_words(name)):
        return "min"
    return "max" if is_fraction(metric) or not _LARGER.isdisjoint(_words(name)) else None


def is_fraction(metric: str) -> bool:
    """Returns True for the name of an accuracy or the like, whose values lie in [0, 1]."""
    name = metric.lower()
    words = [] if _is_count(metric) else _words(name)
    in_top = re.search(r"(?<![a-z0-9])top[-_ ]?\d", name) and "error" not in words
    return bool(in_top) or not _FRACTIONS.isdisjoint(words)


def headline(metrics: Iterable[str]) -> list[str]:
    """Returns the metrics that measure a model, the most important ones first."""
    names = [x for x in metrics if x not in PROGRESS and not _is_count(x)]
    return sorted(names, key=_place)


def _place(metric: str) -> tuple[int, int]:
    if metric in _HEADLINES:
        return 0, _HEADLINES.index(metric)
    if metric.startswith("personal/test/") and metric.endswith("/weighted_mean"):
        return 1, 0
    directions = ("max", "min", None)
    of_clients = metric.startswith(("client/", "personal/")) or re.search(r"/q\d+$", metric)
    of_other_parts = metric.startswith(("train/", "valid/"))
    rank = 4 if of_clients else 3 if of_other_parts else 2
    return rank, directions.index(direction(metric))


def _is_count(metric: str) -> bool:
    return metric.rpartition("/")[2] in ("examples", "clients")


def _words(name: str) -> list[str]:
    return re.split(r"[^a-z0-9]+", name)


ClientNames = Mapping[str, tuple[str, ...]]  # by split, as in clients.csv


def client_names(eval_fn: Any) -> dict[str, tuple[str, ...]]:
    """Returns the names of the clients of each split, as far as their data have names."""
    parts = {prefix: getattr(part.func, "summary", None) for prefix, part in parts_of(eval_fn)}
    found = {prefix: getattr(summary, "client_ids", None) for prefix, summary in parts.items()}
    return {split_of(prefix): names for prefix, names in found.items() if names is not None}


def split_of(prefix: str) -> str:
    """Returns the split of a metric's prefix: ``client/test`` is "test"."""
    return prefix.removeprefix("client/")


def parts_of(eval_fn: Any, prefix: str = "") -> Iterator[tuple[str, Partial]]:
    """Yields the evaluators that an evaluator is made of, with the prefixes of their metrics."""
    if not isinstance(eval_fn, Partial):
        return
    if isinstance(eval_fn.func, _All):
        for name, part in zip(eval_fn.func.names, eval_fn.args[0], strict=True):
            yield from parts_of(part, "/".join(filter(None, (prefix, name))))
        return
    yield prefix, eval_fn
    if eval_fn.args:
        yield from parts_of(eval_fn.args[0], prefix)


def periods_of(eval_fn: Any, metric: str) -> set[int]:
    """Returns the periods of the parts of :func:`at_rounds` that measure a metric."""
    return {
        part.func.every
        for prefix, part in parts_of(eval_fn)
        if isinstance(part.func, _AtRounds) and metric.startswith(f"{prefix}/" if prefix else "")
    }
