"""Slices of a sweep: found on disk, computed here, or left to other processes.

Several processes may work on one sweep in one directory.  Each claims a slice before it runs it,
by a lock that ends with the process.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax import Array

from fedjax_sim.runs import history as history_rows
from fedjax_sim.runs.storage import outcome
from fedjax_sim.runs.sweeps.grid import Block, Configuration, Group, Plan
from fedjax_sim.runs.sweeps.program import Program, SliceResult
from fedjax_sim.runs.sweeps.result import SweepRun
from fedjax_sim.runs.sweeps.store import SweepStore, portable
from fedjax_sim.runs.sweeps.trial import RunDigests, Trial
from fedjax_sim.types import FedAlgorithm
from fedjax_sim.wrappers import NEEDS_DATA

RunNumber = tuple[int, int]  # (configuration, seed)

_POLL_SECONDS = 0.5


class Batch(NamedTuple):
    """Runs of a group for some seeds: their names, and how they are found, kept and cut."""

    group: Group
    configurations: Sequence[Configuration]
    seeds: Sequence[str]  # names of all seeds
    numbers: Sequence[int]  # of the seeds that the trial is for
    trial: Trial
    algorithms: Mapping[int, FedAlgorithm]  # by configuration
    keys: Array  # of these seeds
    identities: Mapping[RunNumber, RunDigests]
    store: SweepStore
    keep_models: bool

    def every(self) -> list[RunNumber]:
        return [(i, j) for i in self.group.members for j in self.numbers]

    def on_disk(self, numbers: Collection[RunNumber]) -> dict[RunNumber, SweepRun]:
        """Returns those of the runs that the directory has now."""
        self.store.refresh()
        first = self.group.members[0]
        own = {self.seeds[j]: self.identities[first, j] for j in self.numbers}
        self.store.check_group(self.group, own)
        params = self.trial.setup.params
        model = jax.tree.map(lambda x: x[0], params) if self.keep_models else None
        runs = {
            (i, j): self.store.find(
                self.configurations[i], self.seeds[j], self.identities[i, j], model
            )
            for i, j in numbers
        }
        return {number: run for number, run in runs.items() if run is not None}

    def members(self, plan: Plan, block: Block) -> list[RunNumber]:
        """Returns the (configuration, seed) numbers of a block, ``[width * seeds]``."""
        return [
            (self.group.members[row], self.numbers[seed])
            for row in plan.configurations(block, len(self.group.members))
            for seed in plan.seed_numbers(block, len(self.numbers))
        ]

    def claim_name(self, members: Collection[RunNumber]) -> str:
        """Returns the name of a slice's claim, equal in all processes that would run it."""
        runs = [(self.configurations[i], self.seeds[j]) for i, j in members]
        return self.store.claim_name(runs, self.keep_models)

    def take(
        self, result: SliceResult, members: list[list[RunNumber]], on_disk: Collection[RunNumber]
    ) -> dict[RunNumber, SweepRun]:
        """Cuts the runs that are not on disk from a slice's arrays, and saves them."""
        taken = self.cut(result, members, on_disk)
        self.save(taken)
        return taken

    def save(self, runs: Mapping[RunNumber, SweepRun]) -> None:
        """Saves runs, unless another process has begun another sweep in the folder meanwhile."""
        with self.store.alone():
            self.on_disk([])
            self.store.save(self.identified(runs))

    def cut(
        self,
        result: SliceResult,
        members: Sequence[Sequence[RunNumber]],
        on_disk: Collection[RunNumber],
    ) -> dict[RunNumber, SweepRun]:
        """Returns the runs that are not on disk, from a slice's arrays."""
        clock = history_rows.Clock(self.trial.setup.timeline, len(self.numbers))
        probes = self.trial.probes.client.keys()
        rounds = np.asarray(result.history.round)
        new = {i for block in members for i, j in block if (i, j) not in on_disk}
        algorithms = {i: self.algorithms[i] for i in sorted(new)}
        bits = self._bits(clock, rounds.reshape(-1, rounds.shape[-1])[0].tolist(), algorithms)
        partial = {i for i in new if algorithms[i].requires.partial_model}
        taken: dict[RunNumber, SweepRun] = {}
        for device, block in enumerate(members):
            for place, (i, j) in enumerate(block):
                if (i, j) in on_disk:
                    continue  # it keeps its bits, which may differ in another block
                at = (device, *divmod(place, result.diverged_at.shape[2]))
                history = jax.tree.map(lambda x, at=at: x[at][None], result.history)
                history = history_rows.complete(history, clock, probes, [self.numbers.index(j)])
                taken[i, j] = SweepRun(
                    dict(self.configurations[i]),
                    self.seeds[j],
                    jax.tree.map(lambda x: portable(x[0]), history),
                    int(result.diverged_at[at]),
                    jax.tree.map(lambda x, at=at: x[at], result.models),
                    bits.get((i, self.seeds[j])),
                    i in partial,
                )
        return taken

    def identified(self, runs: Mapping[RunNumber, SweepRun]) -> list[tuple[RunDigests, SweepRun]]:
        """Returns runs with their identities."""
        return [(self.identities[number], run) for number, run in runs.items()]

    def _bits(
        self,
        clock: history_rows.Clock,
        rounds: Sequence[int],
        algorithms: Mapping[int, FedAlgorithm],
    ) -> dict[tuple[int, str], tuple[int, ...]]:
        """Returns by configuration and seed the bits sent until the rounds, where they are known.

        All members send arrays of the same shapes, but the bits of their codes may depend on their
        numbers, as with MARINA's probability.
        """
        seeds = [self.seeds[j] for j in self.numbers]
        setup, shapes = self.trial.setup, None
        result: dict[tuple[int, str], tuple[int, ...]] = {}
        for i, algorithm in algorithms.items():
            try:
                shapes = shapes or outcome.visit_shapes(algorithm, setup, batched=True)
            except NEEDS_DATA:
                return {}  # an algorithm that needs a real oracle
            facts = outcome.describe(algorithm, setup, seeds, clock, batched=True, shapes=shapes)
            recorded = outcome.Outcome(rounds[-1], {}, **facts)
            for seed in seeds:
                sent = [x for x in recorded.bits(seed, rounds) if x is not None]
                if len(sent) == len(rounds):
                    result[i, seed] = tuple(sent)
        return result


class Finished(NamedTuple):
    """Runs after a pass over the slices of a batch."""

    new: dict[RunNumber, SweepRun]  # computed by this process
    found: dict[RunNumber, SweepRun]  # on disk
    claimed: list[str]  # claims of other processes, whose slices are missing


def run_slices(
    program: Program,
    batch: Batch,
    on_disk: dict[RunNumber, SweepRun],
    report: Callable[[int, int, int], None],
    interrupted: Callable[[], bool],
    finished_runs: Callable[[Collection[tuple[RunDigests, SweepRun]]], None] = lambda runs: None,
) -> Finished:
    """Runs the slices of a batch that are not on disk and that no other process runs."""
    new, found, claimed = finished = Finished({}, dict(on_disk), [])
    report(0, 0, len(found))
    for number, blocks in enumerate(program.plan.slices):
        members = [batch.members(program.plan, block) for block in blocks]
        every = [run for block in members for run in block]
        if found.keys() >= set(every):
            continue
        name = batch.claim_name(every)
        with batch.store.claimed(name) as is_claimed:
            if not is_claimed:
                claimed.append(name)
                continue
            found.update(batch.on_disk(every))  # another process may have finished meanwhile
            if not found.keys() >= set(every):

                def on_segment(round: int, number: int = number) -> None:
                    report(number, round, len(new) + len(found))

                result = program.run(blocks, on_segment, interrupted, keep_models=batch.keep_models)
                if result is None:
                    break
                taken = batch.take(result, members, found)
                new.update(taken)
                finished_runs(batch.identified(taken))
        report(number + 1, program.trial.setup.timeline.num_rounds, len(new) + len(found))
    return finished


def wait_for_others(
    store: SweepStore, claims: Sequence[str], interrupted: Callable[[], bool]
) -> None:
    """Waits until a process gives up one of these claims, with its slice or without."""
    while not interrupted() and not any(map(store.is_free, claims)):
        time.sleep(_POLL_SECONDS)
