"""Successive halving: runs of several configurations, of which the best go on.

K. Jamieson, A. Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization",
AISTATS 2016, Algorithm 1 with a share 1/eta of L. Li et al., "Hyperband", JMLR 2018.
"""

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from fedjax_sim.checks import check_count
from fedjax_sim.engine import History, RunState
from fedjax_sim.runs.events import notify
from fedjax_sim.runs.interrupt import deferred_interrupt
from fedjax_sim.runs.sweeps.grid import selected
from fedjax_sim.runs.sweeps.program import Program, Programs, SliceResult
from fedjax_sim.runs.sweeps.result import SweepRun
from fedjax_sim.runs.sweeps.slices import Batch, RunNumber
from fedjax_sim.runs.sweeps.sweep import Known, Outcome, SweepPlan, SweepProgress, open_store
from fedjax_sim.runs.sweeps.watchers import Watchers
from fedjax_sim.types import Params, shown

Scores = Callable[[Mapping[RunNumber, SweepRun], int], Mapping[int, float]]


@shown
class Halving(NamedTuple):
    r"""Rounds after which the best configurations of a batch continue and the others end.

    Of the :math:`n_k` configurations that reach the k-th of these rounds,
    :math:`\max(1, \lfloor n_k / \eta \rfloor)` continue from their states.  The last ones do all
    rounds.  The states of all runs of a batch stay on the devices between two rungs.

    Example:
        >>> Halving((10, 30), eta=3).counts(27)
        [27, 9, 3]
    """

    rounds: tuple[int, ...]  # increasing, multiples of ``eval_every``, below the last round
    eta: int = 3  # at least 2

    def counts(self, number: int) -> list[int]:
        """Returns how many of so many configurations begin each part of the rounds."""
        result = [number]
        for _ in self.rounds:
            result.append(max(1, result[-1] // self.eta))
        return result

    def check(self, num_rounds: int, every: int) -> None:
        """Refuses rounds in which no run can be cut."""
        check_count(2, **{"halving.eta": self.eta})
        if not isinstance(self.rounds, (tuple, list)):
            raise ValueError(f"halving.rounds is {self.rounds!r:.60}; expected a tuple of rounds")
        ends = [0, *self.rounds, num_rounds]
        for before, rung in itertools.pairwise(ends[:-1]):
            check_count(**{"halving.rounds": rung})
            if not before < rung < num_rounds or rung % every:
                raise ValueError(
                    f"halving.rounds is {self.rounds}; expected increasing multiples of "
                    f"eval_every = {every} below the setup's {num_rounds} rounds"
                )


class _Part(NamedTuple):
    """Runs of one seed group that are under way."""

    batch: Batch  # of all rounds
    histories: dict[RunNumber, list[History]]
    diverged_at: dict[RunNumber, np.ndarray]
    models: dict[RunNumber, Params | None]
    rows: dict[RunNumber, int]  # places of their states
    states: list[RunState]  # of the last slices


def run_bracket(
    plans: Mapping[int, SweepPlan],
    programs: Programs,
    scores: Scores,
    halving: Halving,
) -> Outcome:
    """Runs the configurations of a sweep until each has ended or done all rounds.

    A run that ends after a rung is kept in the folder of that rung's sweep, as a run of that many
    rounds.  A bracket runs as a whole, since states are not kept, unless the folders have the runs
    that it leaves: those of a tuning for another metric or with other rungs are other ones.
    """
    ends = sorted(plans)
    plan = plans[ends[-1]]
    known: dict[RunNumber, Known] = {}
    batches = {
        end: list(of.batches(open_store(of), of.shares, known if end == ends[-1] else {}))
        for end, of in plans.items()
    }
    found = _on_disk(batches, len(plan.configurations), scores, halving)
    if found is not None:
        return Outcome({}, found, known, False, False, 0.0, programs)

    new: dict[RunNumber, SweepRun] = {}
    began, compiled = time.perf_counter(), programs.compile_seconds
    alive = list(range(len(plan.configurations)))
    parts = [_Part(batch, {}, {}, {}, {}, []) for batch in batches[ends[-1]]]

    parts_of_rounds = list(itertools.pairwise([0, *ends]))
    counts = zip(halving.counts(len(alive)), parts_of_rounds, strict=True)
    work = sum(count * (last - first) for count, (first, last) in counts)  # in rounds of all seeds
    done = 0.0

    def report(batch: Batch, program: Program, slices: int, round: int) -> None:
        before = slices * (last - first) + round - first  # rounds of slices
        share = done + _weight(batch, plan) * before / len(program.plan.slices)
        progress = SweepProgress(
            batch.group.static, program.plan, program.compiled.bytes_per_device, programs.budget,
            slices, round, ends[-1], len(new), plan.num_runs, min(share / work, 1.0),
        )  # fmt: skip
        notify(plan.callbacks, "progress", progress)

    with deferred_interrupt() as signalled:
        watchers = Watchers(plan.callbacks)

        def interrupted() -> bool:
            return signalled() or watchers.interrupted()

        for first, last in parts_of_rounds:
            for i, part in enumerate(parts):
                following = _advanced(part, alive, programs, first, last, report, interrupted)
                if following is None:
                    return Outcome(new, {}, known, True, True, 0.0, programs)
                done += _weight(_of(part.batch, alive), plan) * (last - first)
                parts[i] = following
            reached = _taken(parts, batches[last])
            if last == ends[-1]:
                ending = set(alive)
            else:
                ending = _ending(alive, scores(reached, last), halving)
            finished = {run: one for run, one in reached.items() if run[0] in ending}
            for batch in batches[last]:
                own = {run: one for run, one in finished.items() if run in batch.identities}
                # A run on disk keeps its bits, which may differ in another block.
                kept = batch.on_disk(own)
                missing = {run: one for run, one in own.items() if run not in kept}
                batch.save(missing)
                finished |= kept
                watchers.runs(batch.identified(own | kept))
            new |= finished
            alive = sorted(set(alive) - ending)
        ended = interrupted()
    seconds = time.perf_counter() - began - (programs.compile_seconds - compiled)
    return Outcome(new, {}, known, False, ended, seconds, programs)


def _ending(alive: Sequence[int], order: Mapping[int, float], halving: Halving) -> set[int]:
    """Returns the configurations that end at a rung: all but the best."""
    best_first = sorted(alive, key=lambda i: (-order[i], i))
    return set(best_first[max(1, len(alive) // halving.eta) :])


def _on_disk(
    batches: Mapping[int, Sequence[Batch]], number: int, scores: Scores, halving: Halving
) -> dict[RunNumber, SweepRun] | None:
    """Returns the runs of a finished bracket from the folders; None: they have not all of them."""
    ends = sorted(batches)
    kept = {
        end: {run: one for batch in of for run, one in batch.on_disk(batch.every()).items()}
        for end, of in batches.items()
    }
    every = [run for batch in batches[ends[-1]] for run in batch.every()]
    alive, found = set(range(number)), dict[RunNumber, SweepRun]()
    for end in ends:
        ending = alive
        if end != ends[-1]:
            # Runs that went on have the evaluations of this rung, too.
            reached = {run: one for e in ends if e >= end for run, one in kept[e].items()}
            if any(run not in reached for run in every if run[0] in alive):
                return None
            known = {run: one for run, one in reached.items() if run[0] in alive}
            ending = _ending(sorted(alive), scores(known, end), halving)
        for run in every:
            if run[0] in ending:
                if run not in kept[end]:
                    return None
                found[run] = kept[end][run]
        alive = alive - ending
    return found


def _of(batch: Batch, alive: Sequence[int]) -> Batch:
    """Returns the runs of these configurations."""
    rows = [i for i, j in enumerate(batch.group.members) if j in alive]
    return batch._replace(group=selected(batch.group, rows))


def _weight(batch: Batch, plan: SweepPlan) -> float:
    """Returns the number of configurations, of which some seeds alone are a part."""
    return len(batch.group.members) * len(batch.numbers) / len(plan.seeds)


def _advanced(
    part: _Part,
    alive: Sequence[int],
    programs: Programs,
    first: int,
    last: int,
    report: Callable[[Batch, Program, int, int], None],
    interrupted: Callable[[], bool],
) -> _Part | None:
    """Returns the runs of these configurations after the rounds ``first`` to ``last``."""
    batch = _of(part.batch, alive)
    if not batch.group.members:
        return part._replace(histories={}, states=[])
    program = programs.prepare(batch.trial, batch.group, batch.keys)
    after = _Part(part.batch, {}, {}, {}, {}, [])
    place = 0
    for number, blocks in enumerate(program.plan.slices):
        report(batch, program, number, first)
        members = [batch.members(program.plan, block) for block in blocks]
        start = None
        if first:
            shape = len(blocks), program.plan.width, program.plan.seeds
            rows = [part.rows[run] for block in members for run in block]
            start = program.continued(part.states, np.reshape(rows, shape))
        result = program.run(
            blocks,
            functools.partial(report, batch, program, number),
            interrupted,
            keep_models=batch.keep_models,
            start=start,
            first=first,
            last=last,
            keep_state=True,
        )
        if result is None:
            return None
        assert result.state is not None
        after.states.append(result.state)
        for at, run in _places(result, members):
            if run not in after.rows:
                history = jax.tree.map(lambda x, at=at: x[at], result.history)
                after.histories[run] = [*part.histories.get(run, []), history]
                after.diverged_at[run] = result.diverged_at[at]
                after.models[run] = jax.tree.map(lambda x, at=at: x[at], result.models)
                after.rows[run] = place + int(np.ravel_multi_index(at, result.diverged_at.shape))
        place += result.diverged_at.size
    return after


def _places(
    result: SliceResult, members: Sequence[Sequence[RunNumber]]
) -> Iterator[tuple[tuple[int, ...], RunNumber]]:
    """Yields the runs of a slice with their places ``(device, row, seed)``."""
    for device, block in enumerate(members):
        for number, run in enumerate(block):
            yield (device, *divmod(number, result.diverged_at.shape[2])), run


def _taken(parts: Sequence[_Part], batches: Sequence[Batch]) -> dict[RunNumber, SweepRun]:
    """Returns the runs under way as runs that end here."""
    taken: dict[RunNumber, SweepRun] = {}
    for part, batch in zip(parts, batches, strict=True):
        runs = list(part.histories)
        if not runs:
            continue
        history = jax.tree.map(
            lambda *x: np.stack(x)[None, :, None],
            *(jax.tree.map(lambda *x: np.concatenate(x), *part.histories[run]) for run in runs),
        )
        diverged = np.stack([part.diverged_at[run] for run in runs])[None, :, None]
        models = [part.models[run] for run in runs]
        stacked = None
        if batch.keep_models:
            stacked = jax.tree.map(lambda *x: np.stack(x)[None, :, None], *models)
        result = SliceResult(history, diverged, stacked, None)
        taken |= batch.cut(result, [runs], ())
    return taken
