"""``compare``: several algorithms on one setup, with progress, files and resuming.

Phases: :func:`check` refuses what cannot run, :func:`trace` traces all algorithms, and
:func:`run_all` runs one after the other by the phases of :mod:`fedjax_sim.runs.simulation`.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import inspect
import itertools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax import Array

from fedjax_sim.algorithms import fedavg
from fedjax_sim.checks import (
    check_is_algorithm,
    check_is_setup,
    check_split_keys,
    did_you_mean,
    import_extra,
)
from fedjax_sim.engine import Execution, check_run, distributed, num_cores
from fedjax_sim.runs import views
from fedjax_sim.runs.events import Callback, Divergence, notify, with_default
from fedjax_sim.runs.options import (
    DEFAULT_OPTIONS,
    Options,
    Storage,
    check_options_type,
    check_unused,
    storage_of,
)
from fedjax_sim.runs.result import FRAME_COLUMNS, Simulation
from fedjax_sim.runs.seeds import Seed, seed_names, with_axis
from fedjax_sim.runs.simulation import Call, Prepared, execute, identity_of, prepare
from fedjax_sim.runs.storage.files import FolderError, own
from fedjax_sim.runs.storage.folders import (
    check_kind,
    folder_names,
    record_names,
    recorded_functions,
    runs_in,
)
from fedjax_sim.runs.storage.identity import arrays_digest, timeline_arrays
from fedjax_sim.runs.storage.locks import locked
from fedjax_sim.runs.storage.run_functions import trace_run
from fedjax_sim.runs.storage.store import RunFolder
from fedjax_sim.types import (
    KEY_ROWS,
    FedAlgorithm,
    PyTree,
    Setup,
    Summary,
    common_rows,
    counted,
    listed,
    shown,
)

if TYPE_CHECKING:
    import pandas as pd

MakeSetup = Callable[..., Setup]


@shown
class Comparison(NamedTuple):
    """Results of several algorithms on one setup."""

    # By algorithm, in the order given: one simulation of all seeds, or one per seed if each seed
    # has a setup of its own. An interrupted comparison lacks those that had not started.
    simulations: dict[str, list[Simulation]]
    interrupted: bool  # an interrupt ended it, and rounds are missing

    def to_frame(self) -> pd.DataFrame:
        """Returns the tidy history.

        Returns:
            columns: ``algorithm``, ``seed``, ``diverged_at`` (first round whose server state was
            not finite, or 0), ``round``, ``metric``, ``value``.
        """
        pd = import_extra("pandas", "cli")

        rows = [
            (name, *row)
            for name, parts in self.simulations.items()
            for part in parts
            for row in part.rows()
        ]
        frame = pd.DataFrame(rows, columns=["algorithm", *FRAME_COLUMNS])
        return frame.astype({"value": float})

    def per_client(self) -> pd.DataFrame:
        """Returns the clients' values: ``algorithm``, then as :meth:`Simulation.per_client`.

        Requires an evaluation with ``per_client=True``; without one there are no rows.
        """
        pd = import_extra("pandas", "cli")

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

    @property
    def partial_models(self) -> frozenset[str]:
        """The algorithms whose server's model is no complete one (FedPer).

        Its metrics mean nothing, so tables mark these algorithms and never as the best.

        Example:
            >>> Comparison({}, interrupted=False).partial_models
            frozenset()
        """
        every = self.simulations.items()
        return frozenset(name for name, x in every if any(part.record.partial_model for part in x))

    plot = views.plot

    def _summary(self) -> Summary:
        parts = [part for simulations in self.simulations.values() for part in simulations]
        rounds = sorted({part.rounds_done for part in parts})
        last = " to ".join(map(str, dict.fromkeys((rounds[0], rounds[-1])))) if rounds else "0"
        state = "interrupted" if self.interrupted else "finished"
        about = common_rows(part.record.about for part in parts)
        rows = {name: about[name] for name in KEY_ROWS if name in about}
        if parts:
            rows["seeds"] = listed(dict.fromkeys(x for part in parts for x in part.record.seeds))
        number = counted(len(self.simulations), "algorithm")
        title = f"Comparison of {number}, {state} after round {last}"
        return Summary(title, rows, lambda form: views.table(self, form))


def compare(
    algorithms: Mapping[str, FedAlgorithm],
    setup: Setup | MakeSetup,
    keys: Array,
    *,
    callbacks: Sequence[Callback] = (),
    storage: Storage | str | pathlib.Path | None = None,
    options: Options = DEFAULT_OPTIONS,
) -> Comparison:
    """Runs several algorithms with the same clients, cohorts, minibatches and initial models.

    Each algorithm runs by :func:`~fedjax_sim.simulate`, with all seeds in one program.  With a
    folder, every algorithm has a folder of its own in it, with history and checkpoints.  A later
    call with the same arguments resumes: it does not repeat finished algorithms, and it may add
    others, with the same setup and keys.  Ctrl-C, SIGTERM or a callback's "interrupt" ends the
    comparison after the rounds in progress, also if these are the last ones of an algorithm, and
    keeps everything so far.

    Args:
        algorithms: by the name that tables and folders show.
        setup: the setup of all algorithms, with ``params`` ``[n, ...]``; or a function that returns
            it.  If the function takes ``seed``, it is called once per seed and returns the setup of
            that seed alone (without the leading axis), for example with a split of the data of its
            own; the seeds then run one after the other, and equal shapes share one program.  If it
            takes ``algorithm``, it is called once per name, since asynchronous algorithms need
            timelines of their own.
        keys: one per seed, ``[n]``.
        callbacks: as in :func:`~fedjax_sim.simulate`; ``name`` of events and of progress is the
            algorithm's name.  ``begin`` is called when an algorithm begins, ``finished`` after
            every simulation.  If one returns "stop", the next algorithm follows.  Without another
            answer a divergence is recorded, and the run continues.
        storage: folder for the algorithms' folders, or a
            :class:`~fedjax_sim.runs.options.Storage`, whose ``config`` may be a function of
            the algorithm's name; None keeps everything in memory.
        options: as in :func:`~fedjax_sim.simulate`; ``execution`` may be a mapping of strategies by
            algorithm.

    Raises:
        ValueError: no algorithms, values that are none, an algorithm that the setup does not fit,
            names that are not distinct as folders, executions of other algorithms, contradictory
            arguments, or a folder that is a file, or holds another comparison, a run or a sweep.
        ~fedjax_sim.runs.storage.locks.FolderInUseError: another process works in the folder.

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
    plan = check(algorithms, setup, keys, callbacks, storage, options)
    return run_all(plan, trace(plan))


class Plan(NamedTuple):
    """Arguments of a comparison, checked except for the setups of later seeds."""

    algorithms: Mapping[str, FedAlgorithm]
    parts: _Parts
    keys: Array
    callbacks: Sequence[Callback]
    storage: Storage
    folders: Mapping[str, str]  # by algorithm, within that of the comparison
    options: Options
    executions: Mapping[str, Execution | None]

    def call(self, name: str, part: _Part, number: int) -> Call:
        """Returns one of an algorithm's simulations, by its number."""
        folder, config = self.storage.path, self.storage.config_of(name)
        if folder is not None:
            folder = own(own(folder / self.folders[name]) / part.folder)
        return Call(
            self.algorithms[name],
            part.setup,
            self.keys[part.rows],
            part.names,
            self.callbacks,
            dataclasses.replace(self.storage, folder=folder),
            config,
            self.options,
            self.executions.get(name),
            name,
            seeds_done=number,
            num_seeds=self.parts.count,
        )

    def later(self, name: str) -> Iterator[Prepared]:
        """Yields an algorithm's simulations after the first one, each checked and traced."""
        for number, part in enumerate(self.parts.of(name, first=1), start=1):
            self.check_part(part, [name])
            yield prepare(self.call(name, part, number), trace=self.storage.path is not None)

    def check_part(self, part: _Part, names: Iterable[str]) -> None:
        """Refuses a setup that does not fit these algorithms, by the one door for checks."""
        check_run(
            {name: self.algorithms[name] for name in names},
            part.setup,
            len(part.names),
            execution=self.executions,
            eval_initial=self.options.eval_initial,
        )


def check(
    algorithms: Mapping[str, FedAlgorithm],
    setup: Setup | MakeSetup,
    keys: Array,
    callbacks: Sequence[Callback],
    storage: Storage | str | pathlib.Path | None,
    options: Options,
) -> Plan:
    """Returns the arguments of a comparison, checked before anything is compiled."""
    check_split_keys(keys)
    check_options_type(options)
    storage, callbacks = storage_of(storage), with_default(callbacks, Divergence("record"))
    check_unused("fs.compare", options, "memory")
    names = seed_names(options.seeds, keys.shape[0])
    values = list(range(keys.shape[0]) if options.seeds is None else options.seeds)
    if not isinstance(algorithms, Mapping):
        raise ValueError(
            f"algorithms is a {type(algorithms).__name__}; expected a dict of algorithms by name"
        )
    folders, root = folder_names(algorithms), storage.path
    if root is not None:
        check_kind(root, "a comparison")
    for name, algorithm in algorithms.items():
        check_is_algorithm(algorithm, f"algorithms[{name!r}]")
        storage.config_of(name)  # before the first one runs for hours
    parts = _Parts(setup, values, names)
    if root is not None and parts.per_seed:  # each algorithm's folder has folders of seeds
        for folder in folders.values():
            check_kind(root / folder, "a comparison")
    executions = options.execution
    if not isinstance(executions, Mapping):
        executions = dict.fromkeys(algorithms, executions)
    for name in executions.keys() - algorithms.keys():
        raise ValueError(
            f"options.execution has {name!r}; expected names of algorithms, "
            f"{', '.join(map(repr, algorithms))}{did_you_mean(name, algorithms)}"
        )
    return Plan(algorithms, parts, keys, callbacks, storage, folders, options, executions)


def trace(plan: Plan) -> dict[str, Prepared]:
    """Returns every algorithm's first simulation, checked and traced before one of them runs."""
    part, prepared = None, {}
    for name in plan.algorithms:
        if part is None or plan.parts.per_algorithm:
            part = next(plan.parts.of(name))
            plan.check_part(part, [name] if plan.parts.per_algorithm else plan.algorithms)
        prepared[name] = prepare(plan.call(name, part, 0), trace=True)
    return prepared


def run_all(plan: Plan, prepared: dict[str, Prepared]) -> Comparison:
    """Runs the simulations one after the other; those ``prepared`` are removed as they begin."""
    simulations: dict[str, list[Simulation]] = {}
    root, callbacks = plan.storage.path, plan.callbacks
    with contextlib.ExitStack() as stack:
        try:
            if root is not None:
                stack.enter_context(locked(root))
                functions = _check_others(plan, next(iter(prepared.values())))
                if distributed.is_first():
                    record_names(root, plan.folders, functions)
            # Compilation leaves Python's lock, so later algorithms compile while the first ones do.
            pool = concurrent.futures.ThreadPoolExecutor(num_cores())
            stack.callback(pool.shutdown, wait=False, cancel_futures=True)
            for first in prepared.values():
                if first.ahead is not None:
                    first.ahead(pool)
            for name in plan.algorithms:
                notify(callbacks, "begin", name)
                done = simulations.setdefault(name, [])
                for one in itertools.chain([prepared.pop(name)], plan.later(name)):
                    result = execute(one)
                    done.append(result)
                    notify(callbacks, "finished", name, result)
                    if result.interrupt_requested:
                        last = name == list(plan.algorithms)[-1]
                        complete = last and len(done) == plan.parts.count
                        return Comparison(simulations, result.interrupted or not complete)
        except KeyboardInterrupt:  # between two simulations, or a second Ctrl-C within one
            return Comparison(simulations, interrupted=True)
    return Comparison(simulations, interrupted=False)


# What all runs of a comparison have in common, in the names of their identities.
_COMMON = ("data", "source", "params", "key", "replicas")


def _check_others(plan: Plan, first: Prepared) -> dict[str, Any]:
    """Refuses a folder with algorithms of earlier calls whose runs are not comparable with these.

    Setups of single algorithms may have anything of their own, so they are not compared.

    Returns:
        digests of the functions of all algorithms, as far as they are to be recorded.
    """
    root, here = plan.storage.path, set(plan.folders.values())
    if root is None or plan.parts.per_algorithm:
        return {}
    assert first.call.storage.path is not None
    place = first.call.storage.path.name if plan.parts.per_seed else ""
    if not (runs_in(root) or runs_in(root, 2)):
        return {place: _functions(first.call)}
    apart = [path for path in runs_in(root, 2) if path.parent.name not in here]
    if plan.parts.per_seed:  # the first seed stands for all, which one function has made
        apart = [path for path in apart if path.name == place]
    others = [*(path for path in runs_in(root) if path.name not in here), *apart]
    if not others or (run := identity_of(first)) is None:
        return {}
    there, functions = recorded_functions(root).get(place, {}), _functions(first.call)
    changed = []
    if not plan.storage.accept_changed_code and there.get("jax") == functions["jax"]:
        changed = [
            name for name in functions if there.get(name, functions[name]) != functions[name]
        ]
    for path in others:
        known = RunFolder(path).identity()
        differing = [name for name in _COMMON if known.get(name) != run.values.get(name)]
        rounds = known.get("rounds", 0)
        if 0 < rounds <= first.setup.timeline.num_rounds:  # either may have more rounds
            beginning = arrays_digest(timeline_arrays(first.setup.timeline[:rounds]))
            differing += ["timeline"] * (beginning != known.get("timeline"))
        # With other shapes, all traces differ.
        if differing := differing or changed:
            raise FolderError(
                f"directory {str(root)!r} holds another comparison: {', '.join(differing)} differ "
                f"from those of {path.relative_to(root)}; choose another directory or delete this "
                "one"
            )
    return {}


def _functions(call: Call) -> dict[str, str]:
    """Returns digests of the functions that all algorithms share, and JAX's version.

    Those of a run depend on its algorithm, so these are the ones of FedAvg.
    """
    # A timeline of more rounds may have another bound.
    timeline = dataclasses.replace(call.setup.timeline, max_steps=2)
    setup = dataclasses.replace(call.setup, timeline=timeline)
    traces = trace_run(fedavg(0.1), setup, batched=True)
    parts = {name: getattr(traces, name) for name in ("objective", "weighting", "evaluation")}
    found = {name: x.digest for name, x in parts.items() if x is not None and x.error is None}
    return {"jax": jax.__version__, **found}


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
        # Seeds with setups of their own run one after the other. As one batch, a seed axis on data
        # and evaluation would pass through every check, placement, load and identity, and no seed
        # could be added later; a CPU would gain nothing, since such seeds share no minibatch.
        self.per_seed, self.per_algorithm = "seed" in taken, "algorithm" in taken
        self._common = None if taken else self._made()
        self._folders = folder_names(names, "seeds")
        self.count = len(names) if self.per_seed else 1  # per algorithm

    def _made(self, **arguments: Any) -> Setup:
        setup = self._make(**arguments)
        check_is_setup(setup)
        return setup

    def of(self, algorithm: str, first: int = 0) -> Iterator[_Part]:
        """Yields an algorithm's parts, from that number on."""
        arguments = {"algorithm": algorithm} if self.per_algorithm else {}
        for i in range(first, self.count):
            if self.per_seed:
                setup = with_axis(self._made(**arguments, seed=self._values[i]))
                name = self._names[i]
                yield _Part(setup, slice(i, i + 1), [name], self._folders[name])
            else:
                setup = self._made(**arguments) if self._common is None else self._common
                yield _Part(setup, slice(None), self._names, "")
