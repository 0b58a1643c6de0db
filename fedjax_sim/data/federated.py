"""Client data without padding: concatenated examples and the offsets of the clients."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import DTypeLike

from fedjax_sim.checks import INT32_MAX
from fedjax_sim.data.inspection import check_disjoint, check_unmasked
from fedjax_sim.types import PyTree, Summary, readable, shown, sizes_text, tree_text

__all__ = ["FederatedData", "from_assignment", "from_clients"]


@shown
@dataclasses.dataclass(frozen=True)
class FederatedData:
    """The examples of M clients, concatenated client after client.

    Client ``i`` owns rows ``offsets[i]:offsets[i + 1]`` of every leaf.  There is no padding: a
    million clients with ten examples each need ten million rows.  The object is a pytree;
    ``jax.device_put`` moves it to the device.

    Example:
        >>> import numpy as np
        >>> data = FederatedData({"x": np.arange(5.0)}, np.array([0, 2, 5]), ("ann", "bob"))
        >>> data.num_clients, data.sizes.tolist(), data.client(1)["x"].tolist()
        (2, [2, 3], [2.0, 3.0, 4.0])
    """

    examples: PyTree  # arrays [N, ...], usually {"x": inputs, "y": labels}
    offsets: np.ndarray | jax.Array  # [M + 1] int    non-decreasing, from 0 to N
    # Names of the clients in the source (writers, roles, ...). None: they have none.
    client_ids: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Converts lists of numbers to NumPy arrays."""
        if isinstance(self.offsets, list):
            object.__setattr__(self, "offsets", integers("offsets", self.offsets, np.int32))
            examples = from_lists(self.examples)
            object.__setattr__(self, "examples", examples)
            length = num_rows(examples, "examples")
            if not self.offsets.size or self.offsets[-1] != length:
                raise ValueError(
                    f"offsets is {self.offsets.tolist()}; expected numbers from 0 to {length}, "
                    "the number of examples"
                )
        elif isinstance(self.examples, dict) and any(map(_is_list, self.examples.values())):
            object.__setattr__(self, "examples", from_lists(self.examples))

    @property
    def num_clients(self) -> int:
        return self.offsets.shape[0] - 1

    @property
    def num_examples(self) -> int:
        return jax.tree.leaves(self.examples)[0].shape[0]

    @property
    def sizes(self) -> np.ndarray | jax.Array:
        """Number of examples per client, int ``[M]``."""
        return self.offsets[1:] - self.offsets[:-1]

    def client(self, index: int) -> PyTree:
        """Examples of one client (on the host; not for use inside jit)."""
        start, stop = int(self.offsets[index]), int(self.offsets[index + 1])
        return jax.tree.map(lambda x: x[start:stop], self.examples)

    def owners(self) -> np.ndarray:
        """Client that owns each example, int ``[N]`` (on the host)."""
        return np.repeat(np.arange(self.num_clients), np.asarray(self.sizes))

    def _summary(self) -> Summary:
        offsets = readable(self.offsets)
        sizes = None if offsets is None else np.diff(offsets)
        clients = sizes_text(self.num_clients, sizes)
        if self.client_ids:
            clients += f"; the first one is {self.client_ids[0]!r}"
        title = f"FederatedData: {self.num_clients:,} clients, {self.num_examples:,} examples"
        return Summary(title, {"clients": clients, "examples": tree_text(self.examples)})


jax.tree_util.register_dataclass(
    FederatedData, data_fields=["examples", "offsets"], meta_fields=["client_ids"]
)


def from_clients(
    clients: Sequence[PyTree], client_ids: Sequence[str] | None = None
) -> FederatedData:
    """Concatenates one pytree of examples per client; lists of numbers are arrays.

    Args:
        clients: trees of equal structure, with leaves ``[n_i, ...]``.
        client_ids: names of the clients; default: none.

    Raises:
        ValueError: no clients, leaves of one client that differ in length, clients whose leaves
            differ in more than the length, or not one id each.

    Example:
        >>> data = from_clients([{"x": np.zeros((2, 3))}, {"x": np.ones((1, 3))}])
        >>> data.offsets.tolist()
        [0, 2, 3]
    """
    _check_list("clients", clients, "pytree")
    clients = [from_lists(examples) for examples in clients]
    sizes = [num_rows(examples, f"clients[{i}]") for i, examples in enumerate(clients)]
    for i, examples in enumerate(clients):
        _check_like(f"clients[{i}]", examples, clients[0])
    ids = _checked_ids(client_ids, len(clients))
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    examples = jax.tree.map(lambda *leaves: np.concatenate(leaves), *clients)
    return FederatedData(examples, offsets, ids)


def from_assignment(
    examples: PyTree,
    assignment: Sequence[np.ndarray],
    client_ids: Sequence[str] | None = None,
    *,
    disjoint: bool = True,
) -> FederatedData:
    """Gives client ``i`` the rows ``assignment[i]`` of every leaf of ``examples``.

    Partitions (:mod:`fedjax_sim.data.partition`) return such lists of row numbers.  Rows may be
    left out.  A row that two clients have, or one client twice, is an error unless
    ``disjoint=False`` says that it is meant, as with :func:`~fedjax_sim.data.partition.dirichlet`.

    Args:
        examples: arrays with the same leading axis N.
        assignment: row numbers ``[n_i]`` per client.
        client_ids: names of the clients; default: none.
        disjoint: use each row at most once.

    Raises:
        ValueError: an empty assignment, row numbers outside ``examples``, a row twice, or a wrong
            number of ids.

    Example:
        >>> data = from_assignment({"x": np.arange(4)}, [np.array([3, 0]), np.array([1])])
        >>> data.client(0)["x"].tolist()
        [3, 0]
        >>> from_assignment({"x": np.arange(4)}, [[3, 0], [3]], disjoint=False).sizes.tolist()
        [2, 1]
    """
    examples = from_lists(examples)
    rows = check_assignment(examples, assignment, disjoint=disjoint)
    ids = _checked_ids(client_ids, len(assignment))
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in assignment])]).astype(np.int32)
    return FederatedData(jax.tree.map(lambda x: np.asarray(x)[rows], examples), offsets, ids)


def _check_list(name: str, clients: Any, each: str) -> None:
    """Refuses what is no list of something per client."""
    kind = isinstance(clients, Mapping) or not hasattr(clients, "__len__")
    if kind or not len(clients):
        found = f"a {type(clients).__name__}" if kind else "empty"
        raise ValueError(f"{name} is {found}; expected a list of one {each} per client")


def check_clients(name: str, data: Any) -> None:
    """Refuses what is no data of clients, such as a dict of examples."""
    if not isinstance(data, FederatedData):
        raise ValueError(
            f"{name} is a {type(data).__name__}; expected FederatedData, such as "
            "fs.from_clients([...])"
        )


def _checked_ids(client_ids: Sequence[str] | None, count: int) -> tuple[str, ...] | None:
    if client_ids is not None and len(client_ids) != count:
        raise ValueError(
            f"client_ids has {len(client_ids)} names; expected {count}, one per client"
        )
    return None if client_ids is None else tuple(client_ids)


def from_lists(examples: PyTree) -> PyTree:
    """Returns the examples with lists of numbers as arrays; floats in single precision."""
    if type(examples).__name__ == "DataFrame":
        raise ValueError(
            "examples is a DataFrame; expected a pytree of arrays, such as {'x': "
            "frame[columns].to_numpy(), 'y': frame['label'].to_numpy()}, or "
            "fs.from_table(frame, client_column=...).clients()"
        )
    check_unmasked(examples)
    if not isinstance(examples, dict):
        return _array("", examples) if _is_list(examples) else examples
    arrays = {k: _array(f"[{k!r}]", v) if _is_list(v) else v for k, v in examples.items()}
    return arrays


def _is_list(value: object) -> bool:
    """True for a list of numbers or text, nested or not; a list of arrays is a pytree."""
    if not isinstance(value, list):
        return False
    leaves = jax.tree.leaves(value)
    return bool(leaves) and all(isinstance(leaf, (bool, int, float, str)) for leaf in leaves[:100])


def _array(key: str, values: list) -> np.ndarray:
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"examples{key} is a ragged list; expected equal lengths") from error
    if array.dtype.kind not in "biuf":
        raise ValueError(
            f"examples{key} has text; expected numbers (fedjax_sim.datasets.from_arrays numbers "
            "text)"
        )
    if array.dtype.kind in "iu" and array.size:
        low, high = array.min(), array.max()
        if low < -INT32_MAX or high > INT32_MAX:
            raise ValueError(f"examples{key} has integers {low} .. {high}; expected those of int32")
    kinds = {"f": np.float32, "i": np.int32, "u": np.int32}
    return array.astype(kinds.get(array.dtype.kind, array.dtype))


def check_assignment(
    examples: PyTree, assignment: Sequence[np.ndarray], *, disjoint: bool
) -> np.ndarray:
    """Returns all row numbers of an assignment, int64, ordered by client."""
    _check_list("assignment", assignment, "array of row numbers")
    length = num_rows(examples, "examples")
    parts = [integers(f"assignment[{i}]", part, np.int64) for i, part in enumerate(assignment)]
    rows = np.concatenate(parts)
    if rows.size and (rows.min() < 0 or rows.max() >= length):
        raise ValueError(
            f"assignment has rows {rows.min()} .. {rows.max()}; expected 0 .. {length - 1}"
        )
    if disjoint:
        check_disjoint(parts, ", or disjoint=False")
    return rows


def integers(name: str, values: Any, dtype: DTypeLike) -> np.ndarray:
    """Returns whole numbers as an array; an empty list is one, whatever its dtype."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{name} is a ragged list; expected integers in one dimension") from error
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(
            f"{name} is {array.dtype}{list(array.shape)}; expected integers in one dimension"
        )
    return array.astype(dtype)


def num_rows(examples: PyTree, name: str) -> int:
    """Returns the common length of the leaves of examples."""
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(examples)]
    if not shapes:
        raise ValueError(f"{name} has no arrays; expected some, [0, ...] without examples")
    if not all(shapes):
        raise ValueError(f"{name} has a leaf that is one number; expected arrays [n, ...]")
    lengths = {shape[0] for shape in shapes}
    if len(lengths) != 1:
        raise ValueError(
            f"{name} has leaves of lengths {sorted(lengths)}; expected one common length"
        )
    return lengths.pop()


def _check_like(name: str, examples: PyTree, first: PyTree) -> None:
    """Refuses examples whose leaves differ from those of the first client in more than rows."""
    if jax.tree.structure(examples) != jax.tree.structure(first):
        raise ValueError(
            f"{name} has the structure {jax.tree.structure(examples)}; expected "
            f"{jax.tree.structure(first)}, as clients[0]"
        )
    leaves = jax.tree_util.tree_leaves_with_path(examples)
    for (path, leaf), expected in zip(leaves, jax.tree.leaves(first), strict=True):
        shape, wanted = list(np.shape(leaf)[1:]), list(np.shape(expected)[1:])
        where = f"{name}{jax.tree_util.keystr(path)}"
        if shape != wanted:
            raise ValueError(
                f"{where} has examples of shape {shape}; expected {wanted}, as clients[0]"
            )
        dtypes = [np.asarray(x).dtype for x in (leaf, expected) if np.size(x)]
        if len(dtypes) == 2 and (dtypes[0] == np.uint8) != (dtypes[1] == np.uint8):
            raise ValueError(
                f"{where} has dtype {dtypes[0]} and clients[0] {dtypes[1]}; expected uint8 in both "
                "or in neither, since models scale uint8 to [0, 1]"
            )


def leaf_of(data: FederatedData, leaf: str, option: str = "leaf") -> np.ndarray:
    """Returns a leaf of examples that are a dictionary; ``option`` is the argument naming it."""
    if not isinstance(data.examples, dict) or leaf not in data.examples:
        keys = sorted(data.examples) if isinstance(data.examples, dict) else type(data.examples)
        raise ValueError(f"{option} is {leaf!r}; expected a key of data.examples: {keys}")
    return np.asarray(data.examples[leaf])


def with_leaf(data: FederatedData, leaf: str, values: np.ndarray) -> FederatedData:
    """Returns data in which a leaf of the examples has other values."""
    return FederatedData({**data.examples, leaf: values}, data.offsets, data.client_ids)
