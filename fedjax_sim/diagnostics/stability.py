"""Uniform stability by its definition: training on data sets that differ in one example.

The runs on all neighbouring data sets and on the original are one vmapped program with the same
initial model, participation, minibatches and augmentation. The data set is not copied: every run
has one replacement example, which is inserted after the minibatch is gathered.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim import tree
from fedjax_sim.data import Batches, FederatedData, Objective, empirical_task
from fedjax_sim.diagnostics.sharpness import check_no_statistics
from fedjax_sim.engine import Execution, run, vmapped
from fedjax_sim.objectives import statistics_of
from fedjax_sim.types import (
    FedAlgorithm,
    Params,
    PyTree,
    Setup,
    Timeline,
    Weighting,
    shown,
    uniform_weights,
)

_AXIS = "neighbours"


@shown
class Neighbours(NamedTuple):
    """n data sets: in the j-th, ``replacements[j]`` replaces row ``rows[j]`` of the original."""

    data: FederatedData
    rows: np.ndarray  # [n] int
    replacements: PyTree  # [n, ...]

    def dataset(self, index: int) -> FederatedData:
        """One neighbour as a data set (host-side).

        Example:
            >>> data = FederatedData({"x": np.array([1.0, 2.0, 3.0])}, np.array([0, 1, 3]))
            >>> changed = neighbours(data, [2], {"x": np.array([9.0])}).dataset(0)
            >>> changed.examples["x"].tolist(), changed.offsets.tolist()
            ([1.0, 2.0, 9.0], [0, 1, 3])
        """

        def swap(leaf: Any, new: Any) -> np.ndarray:
            leaf = np.array(leaf)
            leaf[self.rows[index]] = np.asarray(new)[index]
            return leaf

        examples = jax.tree.map(swap, self.data.examples, self.replacements)
        return FederatedData(examples, self.data.offsets, self.data.client_ids)


@shown
class Stability(NamedTuple):
    """Distances of the runs on n neighbours from the run on the original, at E evaluations."""

    round: Array  # [E] int
    distance: Array  # [n, E] ||theta_t - theta'_t||
    loss_difference: Array  # [n, E] max over test points z of |l(z; theta_t) - l(z; theta'_t)|


def neighbours(data: FederatedData, rows: Any, replacements: PyTree) -> Neighbours:
    """Data sets ``S^(j)`` that differ from S in one example of one client each.

    Args:
        data: S.
        rows: [n] rows of ``data.examples``; the client that owns a row is changed.
        replacements: examples ``[n, ...]`` like the data; the bounds in the theory require examples
            from the distribution of that client.

    Raises:
        ValueError: rows that are not row numbers of the data, replacements of another structure,
            shape or dtype, another number of replacements than rows.

    Example:
        >>> data = FederatedData({"x": np.array([1.0, 2.0, 3.0])}, np.array([0, 1, 3]))
        >>> neighbours(data, [0, 2], {"x": np.array([8.0, 9.0])}).dataset(1).client(1)["x"].tolist()
        [2.0, 9.0]
    """
    rows = np.asarray(rows)
    if rows.ndim != 1 or rows.dtype.kind not in "iu" or rows.size < 1:
        raise ValueError(f"rows is {rows}; expected at least one row number, [n] integers")
    if rows.min() < 0 or rows.max() >= data.num_examples:
        raise ValueError(
            f"rows has {rows.min()} .. {rows.max()}; expected 0 .. {data.num_examples - 1}"
        )

    def like(x: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((len(rows), *np.shape(x)[1:]), x.dtype)

    expected = jax.tree.map(like, data.examples)
    given = jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), x.dtype), replacements)
    if given != expected:
        raise ValueError(f"replacements is {given}; expected {expected}, one example per row")
    return Neighbours(data, rows.astype(np.int32), replacements)


def stability(
    algorithm: FedAlgorithm,
    objective: Objective,
    around: Neighbours,
    batches: Batches,
    timeline: Timeline,
    params: Params,
    key: Array,
    test: PyTree,
    *,
    eval_every: int = 1,
    execution: Execution | None = None,
    weighting: Weighting = uniform_weights,
) -> Stability:
    r"""Distances between training on a data set and training on its neighbours, over rounds.

    A randomised algorithm A is uniformly eps-stable if for all neighbours
    ``sup_z E[l(z; A(S)) - l(z; A(S^(j)))] <= eps``. Then its generalisation error is at most eps,
    and for L-Lipschitz losses ``eps <= L E||A(S) - A(S^(j))||``. The expectation is over ``key``.
    One call uses one key for all runs; average the results over keys.

    Args:
        algorithm, timeline, params, key, weighting: see :func:`fedjax_sim.engine.run`.
        objective, batches: see :func:`fedjax_sim.data.task.empirical_task`.
        around: the data set and its neighbours, :func:`neighbours`.
        test: pytree of examples ``[P, ...]``, the points z, evaluated at once.
        eval_every: rounds between evaluations.
        execution: strategy that executes the clients, on one device; default all at once.

    Returns:
        The distances of n neighbours. The n + 1 runs are one program, which every call recompiles.

    Raises:
        ValueError: an objective of a model with running statistics; see
            :func:`fedjax_sim.engine.run`.

    Example:
        >>> import fedjax_sim as fs
        >>> data = FederatedData({"x": np.array([1.0, 3.0], np.float32)}, np.array([0, 1, 2]))
        >>> around = neighbours(data, [1], {"x": np.array([7.0], np.float32)})
        >>> loss = lambda w, batch, key: 0.5 * (batch["x"] - w) ** 2
        >>> timeline = fs.timelines.full(2, 2, 1)
        >>> result = stability(fs.fedavg(0.5), loss, around, fs.full_batch(1), timeline,
        ...     jnp.array(0.0), jax.random.key(0), {"x": np.array([0.0], np.float32)})
        >>> result.distance.tolist()  # 1/2 and 3/4 of 2, the shift of the mean
        [[1.0, 1.5]]
    """
    check_no_statistics(statistics_of(objective), "objective")
    offsets = np.asarray(around.data.offsets)
    # Run 0 changes no row, so it is the run on the original.
    rows = jnp.concatenate([jnp.full(1, -1, jnp.int32), around.rows])
    replacements = jax.tree.map(lambda x: jnp.concatenate([x[:1], x]), around.replacements)

    def one_run(examples: PyTree, test: PyTree, key: Array, row: Array, new: PyTree):
        def swapped(params: Params, batch: PyTree, key: Array) -> Array:
            hit = batch["row"] == row

            def put(leaf: Array, new: Array) -> Array:
                return jnp.where(hit.reshape(-1, *[1] * new.ndim), new, leaf)

            return objective(params, jax.tree.map(put, batch["example"], new), key)

        def compare(params: Params) -> dict[str, Array]:
            losses = objective(params, test, key)
            reference, reference_losses = _of_original((params, losses))
            return {
                "distance": tree.norm(tree.sub(params, reference)),
                "loss_difference": jnp.abs(losses - reference_losses).max(),
            }

        numbered = {"example": examples, "row": jnp.arange(offsets[-1], dtype=jnp.int32)}
        task = empirical_task(swapped, FederatedData(numbered, offsets), batches)
        return run(
            algorithm,
            Setup(
                task, timeline, params, eval_fn=compare, eval_every=eval_every, weighting=weighting
            ),
            key,
            execution=execution or vmapped(),
        )[1]

    axes = (None, None, None, 0, 0)
    history = jax.jit(jax.vmap(one_run, axes, axis_name=_AXIS))(
        jax.tree.map(jnp.asarray, around.data.examples),
        jax.tree.map(jnp.asarray, test),
        key,
        rows,
        replacements,
    )
    metrics = history.metrics
    return Stability(history.round[0], metrics["distance"][1:], metrics["loss_difference"][1:])


def _of_original(x: PyTree) -> PyTree:
    """Value of run 0, in every run."""
    first = jax.lax.axis_index(_AXIS) == 0
    return jax.lax.psum(jax.tree.map(lambda leaf: jnp.where(first, leaf, 0), x), _AXIS)
