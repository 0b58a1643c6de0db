"""Games of single rounds, from the uploads of one run."""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim import tree
from fedjax_sim.checks import check_count
from fedjax_sim.engine import (
    Execution,
    Probes,
    RunState,
    Visit,
    advance,
    checked_weights,
    first_state,
    takes_state,
    vmapped,
)
from fedjax_sim.runs import Mode
from fedjax_sim.studies.valuation.games import Game, Metrics, Outcomes
from fedjax_sim.studies.valuation.metrics import Metric, evaluated_once, metrics_of
from fedjax_sim.types import FedAlgorithm, Round, Setup

WIDTH = 32  # models that are evaluated at once


class RoundGame(NamedTuple):
    """The game of one round's cohort of n clients."""

    number: int
    clients: np.ndarray  # [n]
    game: Game


def round_games(
    algorithm: FedAlgorithm,
    setup: Setup,
    key: Array,
    metric: Metric,
    *,
    mode: Mode = None,
    execution: Execution | None = None,
    width: int = WIDTH,
) -> Iterator[RoundGame]:
    """Yields the games of the rounds of one run, those without reports excepted, one at a time."""
    check_count(1, width=width)
    if algorithm.aggregation is not None:
        raise ValueError(
            "algorithm aggregates by another rule than the mean; expected the mean of the uploads, "
            "of which coalitions of a round have their own"
        )
    setup, name = evaluated_once(algorithm, setup, key, metric, mode)
    if takes_state(setup.eval_fn):
        raise ValueError(
            "setup.eval_fn takes the run's state; expected a function of the server's model: "
            "coalitions of a round differ in the model only"
        )
    # Of one round: its metrics are computed below.
    single = dataclasses.replace(setup, timeline=setup.timeline[:1], eval_fn=None)

    @jax.jit
    def step(setup: Setup, state: RunState, key: Array) -> tuple[RunState, Any, Array]:
        def weight(visit: Visit) -> Array:
            fields = (field[None] for field in visit.work[:-1])
            batch = visit.work._replace(**dict(zip(visit.work._fields[:-1], fields, strict=True)))
            return checked_weights(setup.weighting(batch), 1)[0]

        probes = Probes(client={"upload": lambda visit: visit.upload, "weight": weight})
        state, history = advance(algorithm, setup, state, key, execution=execution, probes=probes)
        uploads, weights = jax.tree.map(
            lambda x: x[0], (history.probes["upload"], history.probes["weight"])
        )
        return state, uploads, weights

    @jax.jit
    def metrics(
        setup: Setup,
        state: RunState,
        uploads: Any,
        weights: Array,
        arrived: Array,
        members: Array,
        key: Array,
    ) -> dict[str, Array]:
        def of_coalition(members: Array) -> dict[str, Array]:
            own = jnp.where(members, weights.astype(jnp.result_type(float)), 0)
            reduce = execution or vmapped()
            mean, _ = reduce(lambda shared, upload: (upload, ()), (), uploads, own)
            branch = jax.random.fold_in(jax.random.fold_in(key, state.round), num_clients)
            round = Round(state.round, arrived.sum(), num_clients, branch)
            # The algorithm's own update, so that FedSV adds up to the fall of the metric for every
            # server.
            new = algorithm.update(state.server, mean, round.counting(members.sum()))
            server = tree.where(own.sum() > 0, new, state.server)
            return metrics_of(algorithm, setup, state._replace(server=server), key)

        return jax.vmap(of_coalition)(members)

    num_clients = setup.task.num_clients
    clients, mask = np.asarray(setup.timeline.clients), np.asarray(setup.timeline.arrived)
    state = first_state(algorithm, setup)
    for t in range(setup.timeline.num_rounds):
        before = state
        part = dataclasses.replace(single, timeline=setup.timeline[t : t + 1])
        state, uploads, weights = step(part, before, key)
        slots = np.flatnonzero(mask[t])
        if not len(slots):
            continue

        def evaluate(
            coalitions: np.ndarray,
            slots=slots,
            before=before,
            uploads=uploads,
            weights=weights,
            t=t,
        ) -> Metrics:
            members = np.zeros((width, mask.shape[1]), bool)
            members[: len(coalitions), slots] = coalitions
            values = metrics(setup, before, uploads, weights, mask[t], members, key)
            return {k: np.asarray(v, np.float64)[: len(coalitions)] for k, v in values.items()}

        outcomes = Outcomes(evaluate, len(slots), chunk=lambda count: width)
        yield RoundGame(t, clients[t, slots], Game(outcomes, name, mode))
