"""``compare``: several algorithms on one setup, with progress, files and resuming."""

import concurrent.futures
import contextlib
import dataclasses
import inspect
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import numpy as np
from jax import Array

from fedjax_sim.checks import did_you_mean
from fedjax_sim.engine import NO_PROBES, Probes, check_algorithm
from fedjax_sim.evaluation.state import check_periods
from fedjax_sim.execution import distributed
from fedjax_sim.execution.devices import num_cores
from fedjax_sim.execution.strategies import Execution
from fedjax_sim.setup_checks import (
    check_batch,
    check_is_algorithm,
    check_is_setup,
    check_setup,
    check_split_keys,
)
from fedjax_sim.simulation.events import Action, Callback, Event, every_evaluation
from fedjax_sim.simulation.files import own
from fedjax_sim.simulation.folders import check_kind, folder_names, record_names
from fedjax_sim.simulation.functions import share_functions
from fedjax_sim.simulation.identity import check_json
from fedjax_sim.simulation.locks import locked
from fedjax_sim.simulation.programs import programs, stride, trace_first
from fedjax_sim.simulation.result import FRAME_COLUMNS, Progress, Simulation
from fedjax_sim.simulation.seeds import Seed, seed_names
from fedjax_sim.simulation.simulate import SEGMENT_SECONDS, simulate
from fedjax_sim.types import FedAlgorithm, PyTree, Setup

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

MakeSetup = Callable[..., Setup]
OnProgress = Callable[[str, Progress | None], None]


class Comparison(NamedTuple):
    """Results of several algorithms on one setup."""

    # By algorithm, in the order given: one simulation of all seeds, or one per seed if each seed
    # has a setup of its own. An interrupted comparison lacks those that had not started.
    simulations: dict[str, list[Simulation]]
    interrupted: bool

    def to_frame(self) -> "pd.DataFrame":
        """Returns the tidy history.

        Returns:
            columns: ``algorithm``, ``seed``, ``diverged_at`` (first round whose server state was
            not finite, or 0), ``round``, ``metric``, ``value``.
        """
        import pandas as pd  # slow to import

        rows = [
            (name, *row)
            for name, parts in self.simulations.items()
            for part in parts
            for row in part.rows()
        ]
        frame = pd.DataFrame(rows, columns=["algorithm", *FRAME_COLUMNS])
        return frame.astype({"value": float})

    def per_client(self) -> "pd.DataFrame":
        """Returns the clients' values: ``algorithm``, then as :meth:`Simulation.per_client`.

        Requires an evaluation with ``per_client=True``; without one there are no rows.
        """
        import pandas as pd  # slow to import

        parts = [
            frame.assign(algorithm=name)
            for name, simulations in self.simulations.items()
            for frame in (simulation.per_client() for simulation in simulations)
            if not frame.empty
        ]
        if not parts:
            return pd.DataFrame()
        frame = pd.concat(parts, ignore_index=True)
        frame.insert(0, "algorithm", frame.pop("algorithm"))
        return frame

    def models(self) -> dict[str, PyTree]:
        """Returns the final models by algorithm, leaves ``[n, ...]``, one per seed."""
        return {
            name: jax.tree.map(lambda *x: np.concatenate(x), *(part.models() for part in parts))
            for name, parts in self.simulations.items()
            if parts
        }

    def plot(self, metrics: str | Sequence[str] | None = None, **options: Any) -> "Figure":
        """Returns learning curves: a line per algorithm, the mean over seeds with a band.

        Args:
            metrics: metrics, in the order of the panels; default: all.
            options: ``x``, ``band``, ``yscale`` and ``max_columns`` as in
                :func:`fedjax_sim.plotting.result_curves`.
        """
        from fedjax_sim.plotting.results import result_curves  # slow to import

        return result_curves(self.to_frame(), metrics, by="algorithm", **options)

    def _repr_html_(self) -> str:
        """The final metrics as a table with a row per algorithm, which Jupyter shows."""
        from fedjax_sim.analysis.views import runs_html  # slow to import

        rounds = {part.rounds_done for parts in self.simulations.values() for part in parts}
        last = " to ".join(map(str, sorted({min(rounds), max(rounds)}))) if rounds else "0"
        note = f"Comparison after round {last}." + (" Interrupted." if self.interrupted else "")
        return runs_html(self.to_frame(), note)


def compare(
    algorithms: Mapping[str, FedAlgorithm],
    setup: Setup | MakeSetup,
    keys: Array,
    *,
    directory: str | pathlib.Path | None = None,
    execution: Execution | Mapping[str, Execution | None] | None = None,
    probes: Probes = NO_PROBES,
    seeds: Sequence[Seed] | None = None,
    eval_initial: bool = False,
    callbacks: Sequence[Callback] = (),
    config: Mapping[str, Any] | Callable[[str], Mapping[str, Any]] | None = None,
    checkpoint_seconds: float = 5.0,
    segment_seconds: float = SEGMENT_SECONDS,
    on_divergence: Literal["raise", "stop", "record"] = "record",
    on_progress: OnProgress | None = None,
    on_finished: Callable[[str, Simulation], None] | None = None,
) -> Comparison:
    """Runs several algorithms with the same clients, cohorts, minibatches and initial models.

    Each algorithm runs by :func:`~fedjax_sim.simulate`, with all seeds in one program.  With a
    directory, every algorithm has a folder of its own with history and checkpoints.  A later call
    with the same arguments resumes: it does not repeat finished algorithms, and it may add others.
    Ctrl-C, SIGTERM or a callback's "interrupt" ends the comparison after the rounds in progress,
    also if these are the last ones of an algorithm, and keeps everything so far.

    Args:
        algorithms: by the name that tables and folders show.
        setup: the setup of all algorithms, with ``params`` ``[n, ...]``; or a function that returns
            it.  If the function takes ``seed``, it is called once per seed and returns the setup of
            that seed alone (without the leading axis), for example with a split of the data of its
            own; the seeds then run one after the other, and equal shapes share one program.  If it
            takes ``algorithm``, it is called once per name, since asynchronous algorithms need
            timelines of their own.
        keys: one per seed, ``[n]``.
        directory: folder for the algorithms' folders; None keeps everything in memory.
        execution: execution strategy, or a mapping of strategies by algorithm; default
            :func:`~fedjax_sim.execution.auto`.
        probes: diagnostics inside every round.
        seeds: names of the seeds, also the values of ``seed``; default 0, 1, ...
        eval_initial: also evaluate the initial models, as round 0.
        callbacks: as in :func:`~fedjax_sim.simulate`; ``event.name`` is the algorithm's name.  If
            one returns "stop", the next algorithm follows.
        config: JSON-able description, or a function of the algorithm's name that returns it; an
            algorithm's folder with another one is refused.
        checkpoint_seconds, segment_seconds, on_divergence: as in :func:`~fedjax_sim.simulate`; by
            default a divergence is recorded, and the other algorithms run.
        on_progress: called as ``on_progress(name, None)`` when an algorithm starts, with its
            :class:`~fedjax_sim.simulation.result.Progress` after every segment, and once for an
            algorithm that an earlier call finished.
        on_finished: called as ``on_finished(name, simulation)`` after every simulation, also after
            an interrupted one.

    Raises:
        ValueError: no algorithms, values that are none, an algorithm that the setup does not fit,
            names that are not distinct as folders, executions of other algorithms, contradictory
            arguments, or a directory that is a file, or holds another comparison, a run or a sweep.
        ~fedjax_sim.simulation.locks.FolderInUseError: another process works in the directory.

    Example:
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"x": np.ones((6, 1), np.float32)}, np.array([0, 2, 6]))
        >>> loss = lambda w, batch, key: (batch["x"][:, 0] * w - 2) ** 2
        >>> task = fs.empirical_task(loss, data, fs.epochs(1, batch_size=2))
        >>> timeline = fs.timelines.full(30, 2, task.num_steps)
        >>> error = lambda w: {"error": abs(w - 2)}
        >>> setup = fs.Setup(task, timeline, np.zeros(2, np.float32), error, eval_every=30)
        >>> algorithms = {"FedAvg": fs.fedavg(0.1), "slow": fs.fedavg(0.001)}
        >>> result = compare(algorithms, setup, jax.random.split(jax.random.key(0), 2))
        >>> last = result.to_frame().query("metric == 'error'").set_index(["algorithm", "seed"])
        >>> bool((last.value["FedAvg"] < 0.01).all()), bool((last.value["slow"] > 1).all())
        (True, True)
        >>> result.models()["FedAvg"].shape
        (2,)
        >>> figure = result.plot("error", yscale="log")  # figure.savefig("curves.png")
        >>> [line.get_label() for line in figure.axes[0].lines]
        ['FedAvg', 'slow']
    """
    check_split_keys(keys)
    values = list(range(keys.shape[0]) if seeds is None else seeds)
    names = seed_names(seeds, keys.shape[0])
    if not isinstance(algorithms, Mapping):
        raise ValueError(
            f"algorithms is a {type(algorithms).__name__}; expected a dict of algorithms by name"
        )
    folders = folder_names(algorithms)
    if directory is not None:
        check_kind(pathlib.Path(directory), "a comparison")
    for name, algorithm in algorithms.items():
        check_is_algorithm(algorithm, f"algorithms[{name!r}]")
    if callable(config):
        for name in algorithms:  # before the first one runs for hours
            check_json(config(name), f"config({name!r})")
    else:
        check_json(config, "config")
    parts = _Parts(setup, values, names)
    if directory is not None and parts.per_seed:  # each algorithm's folder has folders of seeds
        for folder in folders.values():
            check_kind(pathlib.Path(directory) / folder, "a comparison")
    if not isinstance(execution, Mapping):
        execution = dict.fromkeys(algorithms, execution)
    for name in execution.keys() - algorithms.keys():
        raise ValueError(
            f"execution has {name!r}; expected names of algorithms, "
            f"{', '.join(map(repr, algorithms))}{did_you_mean(name, algorithms)}"
        )
    root = None if directory is None else pathlib.Path(directory)
    inner = {name: None if root is None else own(root / folders[name]) for name in algorithms}
    ahead = []
    for name, part in parts.checked(algorithms):
        check_periods(part.setup, eval_initial=eval_initial)
        first = share_functions(part.setup)
        compiled = programs(
            algorithms[name], first, batched=True, execution=execution.get(name), probes=probes
        )
        last = 1 if every_evaluation(callbacks) else None
        step = stride(first.timeline.num_rounds, first.eval_every, last)
        folder = _folder_of(inner[name], part)
        ahead.append(trace_first(compiled, first, keys[part.rows], step, folder))
    simulations: dict[str, list[Simulation]] = {}
    with contextlib.ExitStack() as stack:
        try:
            if root is not None:
                stack.enter_context(locked(root))
                if distributed.is_first():
                    record_names(root, folders)
            # Compilation leaves Python's lock, so later algorithms compile while the first ones do.
            pool = concurrent.futures.ThreadPoolExecutor(num_cores())
            stack.callback(pool.shutdown, wait=False, cancel_futures=True)
            for begin in filter(None, ahead):
                begin(pool)
            for name, algorithm in algorithms.items():
                if on_progress is not None:
                    on_progress(name, None)
                done = simulations.setdefault(name, [])
                for part in parts.of(name):
                    turn = {"seeds_done": len(done), "num_seeds": parts.count}
                    result = simulate(
                        algorithm,
                        part.setup,
                        keys[part.rows],
                        execution=execution.get(name),
                        probes=probes,
                        eval_initial=eval_initial,
                        callbacks=[_Named(callback, name) for callback in callbacks],
                        directory=_folder_of(inner[name], part),
                        replicas=part.names,
                        config=config(name) if callable(config) else config,
                        checkpoint_seconds=checkpoint_seconds,
                        segment_seconds=segment_seconds,
                        on_divergence=on_divergence,
                        on_progress=on_progress and _named(on_progress, name, turn),
                    )
                    done.append(result)
                    num_rounds = part.setup.timeline.num_rounds
                    if result.history is None and on_progress is not None:
                        on_progress(name, Progress(num_rounds, num_rounds, {}, **turn))
                    if on_finished is not None:
                        on_finished(name, result)
                    if result.interrupt_requested:
                        complete = name == list(algorithms)[-1] and len(done) == parts.count
                        return Comparison(simulations, result.interrupted or not complete)
        except KeyboardInterrupt:  # between two simulations, or a second Ctrl-C within one
            return Comparison(simulations, interrupted=True)
    return Comparison(simulations, interrupted=False)


def _folder_of(algorithm: pathlib.Path | None, part: "_Part") -> pathlib.Path | None:
    """Returns the folder of a part within that of its algorithm."""
    return None if algorithm is None else own(algorithm / part.folder)


class _Part(NamedTuple):
    """Seeds of an algorithm that run in one program."""

    setup: Setup  # params [n, ...]
    rows: slice  # of the keys
    names: list[str]
    folder: str  # within the algorithm's folder


class _Parts:
    """Setups of the algorithms, for all seeds together or one after the other."""

    def __init__(self, setup: Setup | MakeSetup, values: Sequence[Seed], names: list[str]):
        if not callable(setup):
            check_is_setup(setup)
        self._make: MakeSetup = setup if callable(setup) else lambda: setup
        self._values, self._names = values, names
        taken = set(inspect.signature(self._make).parameters)
        if taken - {"seed", "algorithm"}:
            raise ValueError(
                f"setup is a function of {sorted(taken)}; expected parameters among "
                "'seed' and 'algorithm'"
            )
        self.per_seed, self._per_algorithm = "seed" in taken, "algorithm" in taken
        self._common = None if taken else self._made()
        self._folders = folder_names(names, "seeds")
        self.count = len(names) if self.per_seed else 1  # per algorithm

    def _made(self, **arguments: Any) -> Setup:
        setup = self._make(**arguments)
        check_is_setup(setup)
        return setup

    def checked(self, algorithms: Mapping[str, FedAlgorithm]) -> Iterator[tuple[str, _Part]]:
        """Yields the first part of every algorithm, after checking its setup."""
        part = None
        for name, algorithm in algorithms.items():
            if part is None or self._per_algorithm:
                part = next(self.of(name))
                check_setup(part.setup)
                check_batch(part.setup, len(part.names))
            try:
                check_algorithm(algorithm, part.setup)
            except ValueError as error:
                raise ValueError(f"algorithms has {name!r}: {error}") from error
            yield name, part

    def of(self, algorithm: str) -> Iterator[_Part]:
        arguments = {"algorithm": algorithm} if self._per_algorithm else {}
        if not self.per_seed:
            setup = self._made(**arguments) if self._common is None else self._common
            yield _Part(setup, slice(None), self._names, "")
            return
        for i, (value, name) in enumerate(zip(self._values, self._names, strict=True)):
            setup = _with_axis(self._made(**arguments, seed=value))
            yield _Part(setup, slice(i, i + 1), [name], self._folders[name])


def _with_axis(setup: Setup) -> Setup:
    """Adds the axis of seeds to the initial model of a setup for one seed."""
    params = jax.tree.map(lambda x: np.asarray(x)[None], setup.params)
    return dataclasses.replace(setup, params=params)


class _Named:
    """A callback whose events have the name of the algorithm."""

    def __init__(self, callback: Callback, name: str):
        self._callback, self._name = callback, name
        self.every_evaluation = getattr(callback, "every_evaluation", False)
        self.needs_identity = getattr(callback, "needs_identity", False)
        self.poll = getattr(callback, "poll", None)

    def __call__(self, event: Event) -> Action:
        return self._callback(event._replace(name=self._name))


def _named(
    on_progress: OnProgress, name: str, turn: Mapping[str, int]
) -> Callable[[Progress], None]:
    return lambda progress: on_progress(name, progress._replace(**turn))
