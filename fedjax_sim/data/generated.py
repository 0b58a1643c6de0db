r"""Tasks whose examples are generated from the client's number, inside the compiled program.

No example is stored.  A visit generates its client's examples once, before its local steps, so
memory grows with the cohort and not with the population.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import Partial

from fedjax_sim.checks import INT32_MAX, called, check_count, check_key, check_takes
from fedjax_sim.data.batches import Batches
from fedjax_sim.data.federated import FederatedData
from fedjax_sim.data.inspection import check_finite
from fedjax_sim.data.task import (
    Objective,
    check_losses,
    check_rule,
    empirical_oracle,
    losses_of_few,
)
from fedjax_sim.objectives import check_labels
from fedjax_sim.tree import Repeated
from fedjax_sim.types import Oracle, Params, PyTree, Task, shown

Generate = Callable[[Array, Array], PyTree]  # (client, key) -> examples, leaves [n, ...]


def generated_task(
    objective: Objective,
    generate: Generate,
    num_clients: int,
    batches: Batches,
    *,
    key: Array,
    full_grad_batch: int = 256,
) -> Task:
    r"""Returns a task whose clients' examples are generated, as many as memory could never hold.

    .. math:: F_i(x) = \frac{1}{n} \sum_{j=1}^{n} \ell(x; \xi_{ij}),
              \qquad (\xi_{i1}, \dots, \xi_{in}) = \mathrm{generate}(i, \mathrm{fold\_in}(key, i))

    A client has the same examples in every visit.  No array has the length of the population; only
    algorithms that keep a state per client need one.  Equal to :func:`empirical_task` on
    :func:`generated_data` of all clients: to the bit under sequential execution, up to the order of
    sums under vmapped execution.

    Args:
        objective: as in :func:`empirical_task`.
        generate: pure function ``(client, key) -> examples``, a pytree of arrays ``[n, ...]`` with
            the same n for all clients.  A :class:`jax.tree_util.Partial` passes its arrays to
            compiled programs as arguments.
        num_clients: the population M.
        batches: the minibatch rule, e.g. ``epochs(1, batch_size=10)``.
        key: decides the examples of all clients.
        full_grad_batch: examples per block of the full local gradient.

    Raises:
        ValueError: a population outside 1 .. 2^31 - 1, or generated leaves without a common first
            axis.

    Example:
        >>> import fedjax_sim as fs
        >>> def generate(client, key):
        ...     x = jax.random.normal(key, (10, 3))
        ...     return {"x": x, "y": x.sum(1) + jnp.where(client % 2 == 0, -1.0, 1.0)}
        >>> loss = lambda w, batch, key: (batch["x"] @ w - batch["y"]) ** 2
        >>> task = generated_task(
        ...     loss, generate, 15_000_000, fs.epochs(1, batch_size=5), key=jax.random.key(0))
        >>> timeline = fs.timelines.uniform(jax.random.key(1), 20, 15_000_000, 50, task.num_steps)
        >>> setup = fs.Setup(task, timeline, jnp.zeros(3))
        >>> state, _ = fs.run(fs.fedavg(0.1), setup, jax.random.key(2))
        >>> bool(abs(state.server.params - 1).max() < 0.2)
        True
    """
    check_key(key)
    check_count(num_clients=num_clients)
    if not 1 <= num_clients <= INT32_MAX:
        raise ValueError(f"num_clients is {num_clients}; expected 1 .. {INT32_MAX}")
    check_rule(objective, batches, full_grad_batch)
    size = _num_examples(generate, key)
    data = GeneratedData(_partial(generate), jax.random.key_data(key), jnp.array([0, size]))
    empirical = empirical_oracle(objective, batches, (size, size), full_grad_batch)
    oracle = _GeneratedOracle(empirical, str(jax.random.key_impl(key)), num_clients)
    num_steps = np.asarray(batches.num_steps(np.array([size])))[0]
    sizes: Any = Repeated(np.int32(size), num_clients)
    steps: Any = Repeated(np.int32(num_steps), num_clients)
    return Task(Partial(oracle, data), sizes, steps, batches.resume is not None)


def generated_data(generate: Generate, clients: Any, *, key: Array) -> FederatedData:
    """Returns the examples of some clients, for evaluation or for a look at them.

    Clients whose numbers are not below the population of the task take part in no round.

    Args:
        generate, key: as in :func:`generated_task`.
        clients: their numbers, int ``[m]``.

    Raises:
        ValueError: no clients, numbers that are no integers in 0 .. 2^31 - 1, or generated leaves
            without a common first axis.

    Example:
        >>> generate = lambda client, key: {"x": jax.random.normal(key, (10, 3))}
        >>> held_out = generated_data(generate, np.arange(2) + 15_000_000, key=jax.random.key(0))
        >>> held_out.num_clients, held_out.examples["x"].shape
        (2, (20, 3))
    """
    check_key(key)
    numbers = np.asarray(clients)
    if numbers.ndim != 1 or not len(numbers):
        raise ValueError(f"clients has shape {numbers.shape}; expected [m] with m >= 1")
    if numbers.dtype.kind not in "iu":
        raise ValueError(f"clients has dtype {numbers.dtype}; expected integers")
    if numbers.min() < 0 or numbers.max() > INT32_MAX:
        raise ValueError(
            f"clients has numbers {numbers.min()} .. {numbers.max()}; expected 0 .. {INT32_MAX}"
        )
    numbers = numbers.astype(np.int32)
    size = _num_examples(generate, key)
    each = jax.jit(jax.vmap(lambda i: generate(i, jax.random.fold_in(key, i))))(numbers)
    examples = jax.tree.map(lambda x: np.asarray(x).reshape(-1, *x.shape[2:]), each)
    return FederatedData(examples, np.arange(len(numbers) + 1, dtype=np.int32) * size)


@shown
class GeneratedData(NamedTuple):
    """Dynamic part of a task of generated clients.

    Example:
        >>> from fedjax_sim.data.batches import epochs
        >>> loss = lambda w, batch, key: (w - batch["x"]) ** 2
        >>> normal = lambda client, key: {"x": jax.random.normal(key, (4,))}
        >>> task = generated_task(loss, normal, 1000, epochs(1, 2), key=jax.random.key(0))
        >>> task.oracle.args[0].offsets.tolist()  # four examples per client
        [0, 4]
    """

    generate: Partial
    key: Array  # words of the key
    offsets: Array  # [2] of one client's examples


class _GeneratedOracle(NamedTuple):
    """Static part of a task of generated clients; hashable by value."""

    empirical: Any  # (data, client, key, max_steps, first_step) -> Oracle
    key_impl: str
    num_clients: int  # part of a run's identity

    @property
    def objective(self) -> Objective:
        return self.empirical.objective

    def check(self, data: GeneratedData, params: Params) -> None:
        """Refuses an objective that does not fit the model, or the examples of the first client."""
        shapes = jax.eval_shape(self._examples, data, 0)
        check_losses(*losses_of_few(self.objective, params, shapes))
        with jax.ensure_compile_time_eval():  # numbers, also where the caller is being traced
            examples = self._examples(data, 0)
        check_finite(examples, data.offsets)
        check_labels(self.objective, params, examples)

    def _examples(self, data: GeneratedData, client: Any) -> PyTree:
        key = jax.random.wrap_key_data(data.key, impl=self.key_impl)
        client = jnp.asarray(client, jnp.int32)
        return data.generate(client, jax.random.fold_in(key, client))

    def __call__(
        self,
        data: GeneratedData,
        client: Array,
        key: Array,
        max_steps: int,
        first_step: Array | None = None,
    ) -> Oracle:
        own = FederatedData(self._examples(data, client), data.offsets)
        return self.empirical(own, jnp.array(0, jnp.int32), key, max_steps, first_step)


def _partial(generate: Generate) -> Partial:
    return generate if isinstance(generate, Partial) else Partial(generate)


def _num_examples(generate: Generate, key: Array) -> int:
    """Returns the number of examples that a client has."""
    client = jax.ShapeDtypeStruct((), jnp.int32)
    check_takes("generate", generate, ("client", "key"))
    expected = "a function that returns arrays [n, ...]"
    leaves = jax.tree.leaves(
        called("generate", "a client and a key", expected, jax.eval_shape, generate, client, key)
    )
    lengths = {leaf.shape[:1] for leaf in leaves}
    if len(lengths) != 1 or not all(length and length[0] for length in lengths):
        shapes = [leaf.shape for leaf in leaves]
        raise ValueError(
            f"generate returns arrays of shapes {shapes}; expected [n, ...] with one n >= 1 for all"
        )
    return lengths.pop()[0]
