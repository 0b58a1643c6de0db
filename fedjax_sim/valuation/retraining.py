"""Games by retraining: a coalition is a mask over the timeline, and many masks are one program."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from fedjax_sim.callbacks.direction import Mode
from fedjax_sim.checks import check_at_least, check_bytes, check_keys
from fedjax_sim.engine import check_algorithm
from fedjax_sim.execution.devices import memory_limit, program_bytes, workers
from fedjax_sim.execution.placement import make_mesh
from fedjax_sim.execution.platforms import platform_of
from fedjax_sim.execution.strategies import Execution, auto, has_kernels, is_ragged
from fedjax_sim.simulation.identity import (
    algorithm_identity,
    arrays_digest,
    description,
    functions_digest,
)
from fedjax_sim.tree.repeated import entries
from fedjax_sim.types import Device, FedAlgorithm, Setup, Timeline
from fedjax_sim.valuation.games import Game, Metrics, Outcomes, Progress
from fedjax_sim.valuation.metrics import Metric, evaluated_once, final_metrics

# Coalitions per device at once. On a CPU more gain little, since a step costs as much as its runs
# plus four (sweeps.grid); on an accelerator they fill the chip.
_WIDEST = {"cpu": 64, "gpu": 512, "tpu": 512}


def game(
    algorithm: FedAlgorithm,
    setup: Setup,
    key: Array,
    metric: Metric,
    *,
    mode: Mode = None,
    resample: Array | None = None,
    directory: str | pathlib.Path | None = None,
    width: int | None = None,
    memory: int | None = None,
    devices: Sequence[Device] | None = None,
    execution: Execution | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Game:
    r"""Returns the game in which a coalition trains alone.

    .. math:: v(S) = L(x_0) - L(x_S)

    :math:`x_S` is the final model of the run in which all visits of clients outside S are masked.
    Timeline, minibatches and initial model are the same for all coalitions, so differences are
    those of the clients.  Rounds without members of S change nothing.

    Coalitions run together (``vmap`` over masks; one after the other for convolutions on a CPU), in
    powers of two up to a width that fits the memory, and divided over the devices.  The width
    changes the last bits of the values.  Every metric of a coalition is cached.

    Args:
        algorithm: any algorithm that accepts rounds in which clients are missing.
        setup: of one run; ``eval_every`` is not used.
        key: of the runs.
        metric: a metric of ``setup.eval_fn`` (such as a held-out loss, an accuracy, or
            ``accuracy/worst_decile`` of :func:`~fedjax_sim.evaluation.client_evaluator`), or a
            function of the model.
        mode: ``"min"``: small values of the metric are good; ``"max"``: large ones; None: small
            ones if the metric's name has "loss" or "error".  A function without a name needs it.
        resample: key of the cohorts.  Every round then has the first ``cohort_size`` members of S
            in a random order of all clients, with all the clients' steps, instead of the members in
            the timeline's cohort: coalitions keep full cohorts.  None: the timeline.
        directory: folder of finished coalitions, from which an interrupted valuation continues and
            which other processes may share; None: memory only.
        width: coalitions per device at once, at most; default 64 on a CPU, 512 on an accelerator.
        memory: bytes per device that a program may need; default as in :func:`fedjax_sim.sweep`.
        devices: default all; with a placed task its own.
        execution: execution strategy; default for the number of coalitions.
        on_progress: called after every chunk of coalitions.

    Raises:
        ValueError: arguments that do not fit each other, an algorithm that requires all clients,
            or not even one coalition fits the memory.
        FolderError: the folder belongs to another game.

    Example:
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"x": jnp.array([1.0, 2.0, 6.0])}, np.arange(4))
        >>> loss = lambda w, examples, key: (w - examples["x"]) ** 2 / 2
        >>> task = fs.empirical_task(loss, data, fs.full_batch(1))
        >>> setup = fs.Setup(task, fs.timelines.full(1, 3, task.num_steps), jnp.zeros(()))
        >>> game = fs.valuation.game(
        ...     fs.fedavg(1.0), setup, jax.random.key(0), lambda w: (w - 3) ** 2 / 2, mode="min")
        >>> game.values([[True, False, False], [True, True, True]]).tolist()  # models 1 and 3
        [2.5, 4.5]
    """
    check_bytes(memory=memory)
    if width is not None:
        check_at_least(1, width=width)
    setup, name = evaluated_once(algorithm, setup, key, metric, mode)
    if resample is not None:
        check_keys(resample)
        _check_resampled(setup)
    # Half of the clients: refuses algorithms whose checks require all of them.
    some = jnp.arange(setup.task.num_clients) % 2 == 0
    check_algorithm(algorithm, dataclasses.replace(setup, timeline=masked(setup.timeline, some)))
    programs = _Programs(algorithm, setup, key, resample, width, memory, devices, execution)
    identity = {} if directory is None else _identity(algorithm, setup, key, resample)
    outcomes = Outcomes(
        programs, setup.task.num_clients, chunk=programs.chunk, directory=directory,
        identity=identity, on_progress=on_progress,
    )  # fmt: skip
    return Game(outcomes, name, mode)


def masked(timeline: Timeline, members: Array) -> Timeline:
    """Returns a timeline in which only members, ``[M]`` bool, report.

    Example:
        >>> import fedjax_sim as fs
        >>> timeline = fs.timelines.full(1, 3, num_steps=1)
        >>> masked(timeline, jnp.array([True, False, True])).mask.tolist()
        [[True, False, True]]
    """
    clients = jnp.asarray(timeline.clients)
    return dataclasses.replace(timeline, mask=jnp.asarray(timeline.mask) & members[clients])


def resampled(setup: Setup, members: Array, key: Array) -> Timeline:
    """Returns a timeline whose cohorts are drawn from the members, ``[M]`` bool.

    Every round has a random order of all clients, which depends on ``key`` and the round only; its
    cohort is the first members in this order.

    Example:
        >>> import fedjax_sim as fs
        >>> task = fs.Task(lambda *arguments: None, np.ones(4, int), np.ones(4, int))
        >>> timeline = fs.timelines.uniform(jax.random.key(0), 5, 4, 2, task.num_steps)
        >>> setup = fs.Setup(task, timeline, jnp.zeros(()))
        >>> members = jnp.array([False, True, True, False])
        >>> drawn = resampled(setup, members, jax.random.key(1))
        >>> bool(drawn.mask.all()), set(drawn.clients.ravel().tolist())
        (True, {1, 2})
    """
    timeline = setup.timeline

    def cohort(round: Array) -> Array:
        order = jax.random.uniform(jax.random.fold_in(key, round), (setup.task.num_clients,))
        return jnp.argsort(jnp.where(members, order, 2.0))[: timeline.cohort_size]

    clients = jax.vmap(cohort)(jnp.arange(timeline.num_rounds)).astype(jnp.int32)
    steps = entries(setup.task.num_steps, clients).astype(jnp.int32)
    return dataclasses.replace(timeline, clients=clients, num_steps=steps, mask=members[clients])


class _Programs:
    """Compiled programs for chunks of coalitions: one per power of two."""

    def __init__(
        self,
        algorithm: FedAlgorithm,
        setup: Setup,
        key: Array,
        resample: Array | None,
        width: int | None,
        memory: int | None,
        devices: Sequence[Device] | None,
        execution: Execution | None,
    ):
        self._algorithm, self._setup, self._execution = algorithm, setup, execution
        self._keys = key, resample
        platform = platform_of((setup.task, setup.params)) or "cpu"
        # Visits of a client that runs alone skip the steps of masked ones.
        self._in_turn = platform == "cpu" and (
            has_kernels(jax.tree.leaves(setup.params)) or is_ragged(setup.timeline)
        )
        placed = setup.task.placement is not None
        self._devices = [] if placed else list(workers() if devices is None else devices)
        self._width = width or _WIDEST[platform]
        first = self._devices[0] if self._devices else jax.devices()[0]
        self._memory = memory or memory_limit(first)
        self._compiled: dict[int, Any] = {}
        self._mesh = make_mesh(self._devices, "coalitions") if self._devices else None

    def chunk(self, count: int) -> int:
        """Returns the coalitions of one call, of ``count`` that are missing."""
        parallel = max(len(self._devices), 1)
        size = min(self._width, 1 << max(-(-count // parallel) - 1, 0).bit_length())
        # A program that is up to four times too wide costs less than another compilation.
        size = min((n for n in self._compiled if size <= n <= 4 * size), default=size)
        while size not in self._compiled:
            compiled = self._compile(size * parallel)
            needed = program_bytes(compiled)
            if needed <= self._memory:
                self._compiled[size] = compiled
            elif size == 1:
                raise ValueError(
                    f"memory is {self._memory} bytes per device; expected at least {needed}, "
                    "those of one coalition"
                )
            else:
                self._width = size = size // 2
        return size * parallel

    def __call__(self, coalitions: np.ndarray) -> Metrics:
        count = len(coalitions)
        size = self.chunk(count)
        padded = coalitions[np.minimum(np.arange(size), count - 1)]
        compiled = self._compiled[size // max(len(self._devices), 1)]
        metrics = compiled(self._setup, *self._keys, self._placed(padded))
        return {name: np.asarray(x, np.float64)[:count] for name, x in metrics.items()}

    def _placed(self, members: Any) -> Array:
        if self._mesh is None:
            return jnp.asarray(members)
        return jax.device_put(members, NamedSharding(self._mesh, PartitionSpec("coalitions")))

    def _compile(self, size: int) -> Any:
        replicas = 1 if self._in_turn else size // max(len(self._devices), 1)
        execution = self._execution or auto(
            replicas, devices=(), ragged=self._in_turn,
            platform=platform_of((self._setup.task, self._setup.params)),
        )  # fmt: skip

        def of_block(setup: Setup, key: Array, resample: Array | None, members: Array) -> Any:
            def of_coalition(members: Array) -> dict[str, Array]:
                if resample is None:
                    timeline = masked(setup.timeline, members)
                else:
                    timeline = resampled(setup, members, resample)
                one = dataclasses.replace(setup, timeline=timeline)
                return final_metrics(self._algorithm, one, key, execution)

            if self._in_turn or members.shape[0] == 1:
                return jax.lax.map(of_coalition, members)
            return jax.vmap(of_coalition)(members)

        program = of_block
        if self._mesh is not None and self._mesh.size > 1:
            every, block = PartitionSpec(), PartitionSpec("coalitions")
            program = jax.shard_map(
                of_block, mesh=self._mesh, in_specs=(every, every, every, block), out_specs=block,
                check_vma=False,
            )  # fmt: skip
            where = NamedSharding(self._mesh, every)
            self._setup, self._keys = jax.device_put((self._setup, self._keys), where)
        members = self._placed(np.zeros((size, self._setup.task.num_clients), bool))
        return jax.jit(program).lower(self._setup, *self._keys, members).compile()


def _check_resampled(setup: Setup) -> None:
    timeline = setup.timeline
    if timeline.max_staleness or timeline.own_models or timeline.first_step is not None:
        raise ValueError(
            f"timeline has a staleness of up to {timeline.max_staleness}, or clients that continue "
            "earlier visits; expected synchronous rounds with resample"
        )
    steps = np.asarray(entries(setup.task.num_steps, jnp.asarray(timeline.clients)))
    same = (steps == np.asarray(timeline.num_steps)) | ~np.asarray(timeline.mask)
    everyone = entries(setup.task.num_steps, jnp.arange(setup.task.num_clients))
    if not same.all() or int(everyone.max()) > timeline.max_steps:
        raise ValueError(
            "timeline.num_steps differs from task.num_steps; expected the clients' own numbers of "
            "steps with resample"
        )


def _identity(
    algorithm: FedAlgorithm, setup: Setup, key: Array, resample: Array | None
) -> dict[str, Any]:
    """Returns everything that the metrics of a coalition depend on, as JSON values."""
    keys = [None if k is None else np.asarray(jax.random.key_data(k)).tolist()
            for k in (key, resample)]  # fmt: skip
    functions = setup.task.oracle, setup.eval_fn, setup.weighting
    return {
        "algorithm": algorithm_identity(algorithm),
        "code": functions_digest((algorithm, functions)),
        "data": arrays_digest((setup.task, setup.eval_fn)),
        "functions": description(functions),
        "key": keys[0],
        "model": arrays_digest(setup.params),
        "resample": keys[1],
        "timeline": arrays_digest(setup.timeline),
    }
