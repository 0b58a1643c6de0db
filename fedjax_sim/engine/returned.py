"""Calls of an algorithm's functions while a run is traced, and checks of what they return.

The checks compare structures, shapes and dtypes, so a compiled run does not contain them.
"""

import operator
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim.checks import called, check_generator, is_real
from fedjax_sim.types import (
    Choice,
    ClientState,
    FedAlgorithm,
    Params,
    PyTree,
    ServerState,
    Upload,
)

_MOST_LEAVES = 8  # in a message
_REAL = "real numbers, as an array"
# Arguments of the functions of an algorithm; those of a selection or an aggregation may be absent.
ARGUMENTS = {
    "init": ("params",),
    "local": ("message", "state", "oracle", "work"),
    "update": ("state", "mean", "round"),
    "broadcast": ("state", "round"),
    "init_client": ("params",),
    "requires.check": ("task", "timeline"),
    "personal": ("message", "state", "oracle", "work"),
    "aggregation.each": ("state", "upload"),
    "aggregation.check": ("timeline",),
    "aggregation.num_bytes": ("upload", "num_slots"),
    "selection.choose": ("state", "candidates", "round"),
    "selection.init": ("num_clients",),
    "selection.score": ("params", "oracle", "work"),
    "selection.report": ("params", "oracle", "work"),
    "selection.learn": ("state", "clients", "reports", "arrived"),
}
OPTIONAL = (
    "requires.check", "personal", "aggregation.each", "selection.score", "selection.report",
)  # fmt: skip
_REFUSING = ("requires.check", "aggregation.check")
_DESCRIBED = {
    "": "fs.FedAlgorithm", "requires": "fs.Requires", "selection": "fs.selection.Selector",
    "aggregation": "fedjax_sim.types.Aggregation",
}  # fmt: skip


def called_part(algorithm: FedAlgorithm, name: str, *arguments: Any) -> Any:
    """Returns what a function of an algorithm returns; its mistakes have its name."""
    given = f"({', '.join(ARGUMENTS[name])})"
    where = _DESCRIBED[name.rpartition(".")[0]]
    expected = f"a function that JAX can trace, as {where} describes it"
    function = operator.attrgetter(name)(algorithm)
    refuses = name in _REFUSING
    return called(f"algorithm.{name}", given, expected, function, *arguments, refuses=refuses)


def checked_init(server: ServerState) -> ServerState:
    """Returns a first server state, which has the model as its attribute ``params``."""
    if not hasattr(server, "params"):
        raise ValueError(
            f"algorithm.init returns {_leaves(server)}; expected a server state whose attribute "
            "params is the model, for example a NamedTuple"
        )
    return checked_arrays("init", server)


def checked_arrays(function: str, state: PyTree) -> PyTree:
    """Returns a state if all of its leaves are arrays or numbers, and its keys of one generator."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        try:
            kind = jax.typeof(leaf).dtype
        except TypeError as error:
            raise ValueError(
                f"algorithm.{function} returns {_name(path, leaf)}; expected an array"
            ) from error
        if jnp.issubdtype(kind, jax.dtypes.prng_key):
            check_generator(f"{_name(path, leaf)}, which algorithm.{function} returns,", leaf)
    return state


def checked_visit(result: Any, state: ClientState, *, averaged: bool) -> tuple[Upload, ClientState]:
    """Returns the upload and the new state of a visit, if the state is as before."""
    if not (isinstance(result, tuple) and len(result) == 2):
        raise ValueError(
            f"algorithm.local returns {_leaves(result)}; expected a pair (upload, client state)"
        )
    upload, new = result
    checked = checked_means if averaged else checked_arrays
    return checked("local", upload), checked_state("local", new, state)


def checked_means(function: str, upload: PyTree) -> PyTree:
    """Returns an upload if it has floating leaves only, of which means can be taken."""
    checked_arrays(function, upload)
    for path, leaf in jax.tree_util.tree_leaves_with_path(upload):
        if not jnp.issubdtype(jax.typeof(leaf).dtype, jnp.floating):
            raise ValueError(
                f"algorithm.{function} returns an upload with {_name(path, leaf)}; expected real "
                "floating numbers, since uploads are averaged"
            )
    return upload


def checked_choice(result: Any, state: PyTree, num_slots: int, *, unbiased: bool) -> Any:
    """Returns the choice and the new state of a selector, whose arrays have one entry per slot."""
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], Choice)):
        raise ValueError(
            f"algorithm.selection.choose returns {_leaves(result)}; expected a pair (choice, new "
            "state) with a selection.Choice"
        )
    choice, new = result
    kinds = {
        "chosen": (jnp.bool_, "booleans, whether each slot is chosen"),
        "factors": (jnp.floating, "floating numbers"),
        "num_steps": (jnp.integer, "integers"),
    }
    for name, (kind, expected) in kinds.items():
        values = getattr(choice, name)
        if values is None and name != "chosen":
            continue
        shape, dtype = getattr(values, "shape", None), getattr(values, "dtype", None)
        if shape != (num_slots,) or dtype is None or not jnp.issubdtype(dtype, kind):
            raise ValueError(
                f"algorithm.selection.choose returns {name} {_leaves(values)}; expected "
                f"[{num_slots}] {expected}"
            )
    if unbiased != (choice.factors is not None):
        given = "factors" if choice.factors is not None else "no factors"
        raise ValueError(
            f"algorithm.selection.choose returns {given} with unbiased={unbiased}; expected "
            "factors with unbiased=True, or none without: the mean is over all candidates or over "
            "the chosen ones"
        )
    return choice, checked_state("selection.choose", new, state)


def probed(kind: str, probes: Mapping[str, Any], value: Any) -> dict[str, Any]:
    """Returns the values of probes by name, which are arrays of real numbers, or trees of them."""
    values = {}
    for name, probe in probes.items():
        place = f"probes.{kind}[{name!r}]"
        measured = called(place, f"a {type(value).__name__}", f"a function of it: {_REAL}",
                          probe, value)  # fmt: skip
        if measured is None or not all(map(_is_real, jax.tree.leaves(measured))):
            raise ValueError(f"{place} returns {_leaves(measured)}; expected {_REAL}")
        values[name] = measured
    return values


def _is_real(leaf: Any) -> bool:
    try:
        return not jnp.issubdtype(jax.typeof(leaf).dtype, jnp.complexfloating)
    except TypeError:
        return False


def check_recorded(probed: Mapping[str, Any]) -> None:
    """Refuses probes whose values are several arrays or keys, which files of a run cannot hold."""
    for name, value in probed.items():
        if not hasattr(value, "dtype") or not is_real(value):
            raise ValueError(
                f"probes has {name!r} that returns {_leaves(value)}; expected one array of numbers"
            )


def checked_weights(weights: Any, num_slots: int) -> Array:
    """Returns the weights ``[S]`` of a round's uploads as floats; one number is for all slots.

    Negative weights become NaN, so that their round is a divergence: no mean has them.  So do those
    whose sum may be infinite, by which a mean would be 0.
    """
    try:
        shape = jax.typeof(weights).shape
    except TypeError:
        shape = None
    if shape not in ((), (num_slots,)):
        raise ValueError(
            f"weighting returns {_leaves(weights)} for {num_slots} visits; expected [{num_slots}], "
            "one weight per visit"
        )
    if not is_real(weights):
        raise ValueError(f"weighting returns {_leaves(weights)}; expected real numbers")
    weights = jnp.asarray(weights, jnp.result_type(float))
    most = float(jnp.finfo(weights.dtype).max) / num_slots
    valid = (weights >= 0) & (weights <= most)
    return jnp.broadcast_to(jnp.where(valid, weights, jnp.nan), (num_slots,))


def checked_state(function: str, new: PyTree, old: PyTree) -> PyTree:
    """Returns a state if it has the structure, the shapes and the dtypes of the state before.

    Python numbers and weakly typed arrays pass if they adopt the dtype of the leaf before.
    """
    if jax.tree.structure(new) != jax.tree.structure(old):
        found, expected = _leaves(new), _leaves(old)
        if found == expected:  # containers of other types
            found, expected = str(jax.tree.structure(new)), str(jax.tree.structure(old))
        raise ValueError(
            f"algorithm.{function} returns the state {found}; expected {expected}, as before"
        )
    checked_arrays(function, new)
    leaves = jax.tree_util.tree_leaves_with_path(new)
    for (path, leaf), before in zip(leaves, jax.tree.leaves(old), strict=True):
        found, expected = jax.typeof(leaf), jax.typeof(before)
        adopts = found.weak_type and jnp.result_type(leaf, before) == expected.dtype
        if found.shape != expected.shape or not (adopts or found.dtype == expected.dtype):
            raise ValueError(
                f"algorithm.{function} returns a state with {_name(path, leaf)}; expected "
                f"{_name((), before)}, as before"
            )
    return new


def check_precision(function: str, new: PyTree, old: PyTree, params: Params) -> None:
    """Refuses to change a state in half precision, if the model has leaves in half precision.

    A leaf that a function passes on, such as a frozen one, is the same object as before.
    """
    if not any(map(_is_half, jax.tree.leaves(params))):
        return
    for (path, leaf), before in zip(
        jax.tree_util.tree_leaves_with_path(new), jax.tree.leaves(old), strict=True
    ):
        if leaf is not before and _is_half(leaf):
            raise ValueError(
                f"algorithm.{function} changes {_name(path, leaf)}; expected float32, since half "
                "precision rounds small steps to 0: use params = fedjax_sim.tree.wide(params) with "
                "the model models.in_precision(model, dtype), or freeze these leaves"
            )


def _is_half(leaf: Any) -> bool:
    dtype = jnp.result_type(leaf)
    return jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32


def _leaves(state: PyTree) -> str:
    """Returns the type of a state and its first leaves as text."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    names = [_name(path, leaf) for path, leaf in leaves[:_MOST_LEAVES]]
    if len(leaves) == 1 and not leaves[0][0]:
        return names[0]
    names += ["..."] * (len(leaves) > _MOST_LEAVES)
    return f"{type(state).__name__}({', '.join(names)})"


def _name(path: tuple, leaf: Any) -> str:
    """Returns the path of a leaf with its dtype and shape, or with its value, as text."""
    try:
        aval = jax.typeof(leaf)
    except TypeError:
        text = f"{leaf!r:.60}"
    else:
        text = f"{aval.dtype}{list(aval.shape)}"
    return f"{jax.tree_util.keystr(path)} {text}".strip()
