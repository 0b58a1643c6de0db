"""``models.npz``: the models of a run's seeds, for other programs and later processes.

The file is an ordinary archive of NumPy arrays, named by their paths in the tree of parameters, and
an entry ``description`` in JSON with that tree, the run, the seeds and the round.
"""

import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.runs.storage.files import FolderError, check_run_id, read_npz, write_npz
from fedjax_sim.types import PyTree

Which = Literal["last", "best"]
_DESCRIPTION = "description"


class Models(NamedTuple):
    """Models of n seeds."""

    params: PyTree  # leaves [n, ...]
    seeds: Sequence[str]
    rounds: Sequence[int]  # by seed, server updates done
    metrics: Mapping[str, Sequence[float]]  # by name, one value per seed; of the best models
    mode: str | None = None  # of the best models: "min" or "max"


def write_models(path: pathlib.Path, models: Models, run: str) -> None:
    """Writes models, whole or not at all.

    Dictionaries with names or integers as keys, lists and tuples of arrays are kept as they are;
    other containers, such as NamedTuples, become dictionaries or lists.
    """
    arrays: dict[str, np.ndarray] = {}
    tree = _take_apart(models.params, "", arrays)
    types = {name: str(x.dtype) for name, x in arrays.items()}
    description = {
        "run": run,
        "tree": tree,
        "types": types,
        "seeds": list(models.seeds),
        "rounds": [int(done) for done in models.rounds],
        "metrics": {name: [float(x) for x in values] for name, values in models.metrics.items()},
    }
    if models.mode is not None:
        description["mode"] = models.mode
    written = {name: _plain(x) for name, x in arrays.items()}
    written[_DESCRIPTION] = np.array(json.dumps(description))
    write_npz(path, written)


def read_models(path: pathlib.Path, run: str) -> Models:
    """Returns the models in a file, which has to be whole and of the run of that identifier."""
    advice = "delete it and run again"
    try:
        arrays = read_npz(path, advice)
    except FileNotFoundError:
        raise FolderError(f"{path} does not exist; expected the models of a run") from None
    description = json.loads(str(arrays[_DESCRIPTION]))
    check_run_id(path, description["run"], run, advice)
    typed = {
        name: arrays[name].view(jnp.dtype(kind)) for name, kind in description["types"].items()
    }
    params = _put_together(description["tree"], typed)
    values = (description[name] for name in ("seeds", "rounds", "metrics"))
    return Models(params, *values, mode=description.get("mode"))


def joined(parts: Sequence[Models]) -> Models:
    """Returns the models of several runs as those of one, whose seeds follow each other.

    Raises:
        FolderError: the best ones by several metrics, of seeds that ran in several calls.
    """
    for part in parts[1:]:
        if (one := (*parts[0].metrics, parts[0].mode)) != (other := (*part.metrics, part.mode)):
            raise FolderError(
                f"the best models of seed {parts[0].seeds[0]} are those by {_by(one)}, and of seed "
                f"{part.seeds[0]} by {_by(other)}; expected one metric of all seeds"
            )
    return Models(
        jax.tree.map(lambda *leaves: np.concatenate(leaves), *(part.params for part in parts)),
        [seed for part in parts for seed in part.seeds],
        [done for part in parts for done in part.rounds],
        {name: [x for part in parts for x in part.metrics[name]] for name in parts[0].metrics},
        parts[0].mode,
    )


def _by(rule: Sequence[str | None]) -> str:
    return " ".join(filter(None, rule))


def named_leaves(params: PyTree) -> dict[str, np.ndarray]:
    """Returns the arrays of a tree by path, as ``dense/kernel``."""
    arrays: dict[str, np.ndarray] = {}
    _take_apart(params, "", arrays)
    return arrays


def _take_apart(tree: PyTree, path: str, arrays: dict[str, np.ndarray]) -> Any:
    """Collects the arrays of a tree by path; returns the tree with paths for its arrays."""
    if tree is None:
        return None
    items = list(_items(tree))
    if not items and jax.tree_util.all_leaves([tree]):
        name = path or "params"
        if name == _DESCRIPTION or name in arrays:
            raise ValueError(f"params has two arrays named {name!r}; expected distinct paths")
        arrays[name] = np.asarray(tree)
        return name
    kind = "list" if isinstance(tree, list) else "tuple" if type(tree) is tuple else "dict"
    if isinstance(tree, dict) and tree and all(type(key) is int for key in tree):
        kind = "dict of integers"  # keys are text in JSON
    parts = [
        (name, _take_apart(part, f"{path}/{name}" if path else name, arrays))
        for name, part in items
    ]
    return {kind: [part for _, part in parts] if kind in ("list", "tuple") else dict(parts)}


def _items(tree: PyTree) -> Iterator[tuple[str, PyTree]]:
    """Yields the parts of one container with their names; nothing for a leaf."""
    parts = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)[0]
    for path, child in parts:
        if path:
            yield jax.tree_util.keystr(path[:1], simple=True), child


def _put_together(tree: Any, arrays: Mapping[str, np.ndarray]) -> PyTree:
    if tree is None:
        return None
    if isinstance(tree, str):
        return arrays[tree]
    ((kind, parts),) = tree.items()
    if kind == "dict":
        return {name: _put_together(part, arrays) for name, part in parts.items()}
    if kind == "dict of integers":
        return {int(name): _put_together(part, arrays) for name, part in parts.items()}
    return {"list": list, "tuple": tuple}[kind](_put_together(part, arrays) for part in parts)


def _plain(x: np.ndarray) -> np.ndarray:
    """Returns an array of a type that NumPy's files keep; bfloat16 as the bits of its numbers."""
    return x.view(f"u{x.dtype.itemsize}") if x.dtype.kind == "V" else x
