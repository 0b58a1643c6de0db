r"""Values of clients round by round, from the uploads of one run.

FedSV: T. Wang, J. Rausch, C. Zhang, R. Jia, D. Song, "A principled approach to data valuation for
federated learning", 2020 (arXiv:2009.06192).  GTG-Shapley: Z. Liu, Y. Chen, H. Yu, Y. Liu, L. Cui,
"GTG-Shapley: efficient and accurate participant contribution evaluation in federated learning",
ACM TIST 13(4), 2022, with the rules of the authors' program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim import tree
from fedjax_sim.checks import (
    check_at_least,
    check_count,
    check_is_algorithm,
    check_key,
    check_takes,
)
from fedjax_sim.engine import (
    Execution,
    Probes,
    RunState,
    advance,
    first_state,
    share_of,
    takes_state,
    vmapped,
    weights_of,
)
from fedjax_sim.runs import Mode
from fedjax_sim.studies.valuation.estimates import exact_shapley, marginals
from fedjax_sim.studies.valuation.games import Game, Metrics, Outcomes
from fedjax_sim.studies.valuation.metrics import Metric, evaluated_once, metrics_of
from fedjax_sim.studies.valuation.result import Valuation, valuation_of
from fedjax_sim.timelines import host_generator
from fedjax_sim.types import FedAlgorithm, Round, Setup, Work

WIDTH = 32  # models that are evaluated at once


def fed_sv(
    algorithm: FedAlgorithm,
    setup: Setup,
    key: Array,
    metric: Metric,
    *,
    mode: Mode = None,
    estimate: Callable[[Game], Valuation] = exact_shapley,
    execution: Execution | None = None,
    width: int = WIDTH,
) -> Valuation:
    r"""Returns the federated Shapley value: Shapley values of single rounds, summed.

    The game of round t is played by its cohort :math:`I_t`,

    .. math:: U_t(S) = L(x_t) - L(x_t \text{ updated by the mean over } S), \qquad
              \phi_i = \sum_{t : i \in I_t} \phi_i(U_t),

    so clients get nothing for rounds in which they are absent, and the values sum to
    :math:`L(x_0) - L(x_T)`.  The update is the algorithm's own, from the server state of round t.
    One run is needed, and evaluations of one model per coalition and round.

    Args:
        algorithm, setup, key, metric, mode: as for :func:`fedjax_sim.studies.valuation.game`.
        estimate: method for one round; default: exact, for cohorts of at most 14 clients.  For
            larger ones for example ``lambda game: permutation_shapley(game, key, 200)``, which
            draws other permutations in every round.
        execution: strategy of the run; also reduces the uploads of coalitions.
        width: models that are evaluated at once.

    Returns:
        ``by_round`` has the terms ``[T, M]``; ``num_evaluations`` the cost.  Squared standard
        errors of rounds are added.

    Raises:
        ValueError: as :func:`fedjax_sim.studies.valuation.game`; an evaluation that takes clients'
            states, or running statistics that clients keep.

    Example:
        >>> import jax
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"x": np.array([1, 2, 6], np.float32)}, np.arange(4))
        >>> loss = lambda w, examples, key: (w - examples["x"]) ** 2 / 2
        >>> task = fs.empirical_task(loss, data, fs.full_batch(1))
        >>> setup = fs.Setup(task, fs.timelines.full(2, 3, task.num_steps), np.float32(0))
        >>> metric = lambda w: (w - 3) ** 2 / 2
        >>> result = fed_sv(fs.fedavg(0.5), setup, jax.random.key(0), metric, mode="min")
        >>> round(float(result.values.sum()), 4)  # 3^2 / 2 - 0.75^2 / 2
        4.2188
    """
    check_takes("estimate", estimate, ("game",), " -> Valuation")
    games = round_games(algorithm, setup, key, metric, mode=mode, execution=execution, width=width)

    def value(part: RoundGame) -> Valuation:
        result, n = estimate(part.game), part.game.num_clients
        if not isinstance(result, Valuation) or np.shape(result.values) != (n,):
            raise ValueError(
                f"estimate returns {result!r:.60}; expected a Valuation of the game's {n} clients"
            )
        return result

    return _summed("FedSV", setup, games, value)


def gtg_shapley(
    algorithm: FedAlgorithm,
    setup: Setup,
    key: Array,
    metric: Metric,
    permutation_key: Array,
    *,
    mode: Mode = None,
    between: float = 0.01,
    within: float = 0.001,
    most_sweeps: int = 100,
    execution: Execution | None = None,
    width: int = WIDTH,
) -> Valuation:
    r"""Returns GTG-Shapley: rounds' Shapley values by guided, truncated permutations, summed.

    The games are those of :func:`fed_sv`.  A round with :math:`|U_t(I_t)| \le` ``between`` gives
    nothing to anyone.  Otherwise sweeps of permutations are drawn: one for every client, which
    begins with it, the rest in random order.  Along a permutation, a prefix is evaluated if
    :math:`|U_t(I_t) - U_t(\text{the prefix before})| \ge` ``within``; else its value is kept.
    Sweeps end after more than 30 permutations once the last ten running means
    :math:`\phi'` satisfy :math:`\frac1n \sum_i |\phi'_i - \phi_i| / (|\phi_i| + 10^{-12}) \le 0.05`
    against the last one.

    Both truncations are absolute: they suit metrics of order 1, such as accuracies.

    Args:
        permutation_key: PRNG key of the permutations.
        between: truncation of whole rounds.
        within: truncation of permutations.
        most_sweeps: largest number of sweeps per round.
        algorithm, setup, key, metric, mode, execution, width: as for :func:`fed_sv`.

    Returns:
        facts: ``permutations`` in all rounds, ``skipped``: share of rounds that were truncated.

    Raises:
        ValueError: as :func:`fed_sv`; numbers out of range.

    Example:
        >>> import jax
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"x": np.array([1, 2, 6], np.float32)}, np.arange(4))
        >>> loss = lambda w, examples, key: (w - examples["x"]) ** 2 / 2
        >>> task = fs.empirical_task(loss, data, fs.full_batch(1))
        >>> setup = fs.Setup(task, fs.timelines.full(2, 3, task.num_steps), np.float32(0))
        >>> metric = lambda w: (w - 3) ** 2 / 2
        >>> keys = jax.random.split(jax.random.key(0))
        >>> result = gtg_shapley(fs.fedavg(0.5), setup, keys[0], metric, keys[1], mode="min")
        >>> round(float(result.values.sum()), 3)
        4.219
    """
    check_at_least(0.0, between=between, within=within)
    check_count(1, most_sweeps=most_sweeps)
    check_key(permutation_key, "permutation_key")
    games = round_games(algorithm, setup, key, metric, mode=mode, execution=execution, width=width)
    rng = host_generator(permutation_key)

    def value(part: RoundGame) -> Valuation:
        return guided(part.game, rng, between=between, within=within, most_sweeps=most_sweeps)

    result = _summed("GTG-Shapley", setup, games, value)
    # Without any report there is no round to skip.
    facts = {"permutations": 0.0, "skipped": 0.0, **result.facts}
    facts["skipped"] /= max(facts["rounds"], 1)
    return result._replace(facts=facts)


def guided(
    game: Game, rng: np.random.Generator, *, between: float, within: float, most_sweeps: int
) -> Valuation:
    """Returns the value of one round's game by the rules of :func:`gtg_shapley`."""
    game, n = game.counted(), game.num_clients
    if abs(game.total()) <= between:
        return valuation_of("GTG-Shapley", game, np.zeros(n), permutations=0, skipped=1)
    records = np.empty((0, n))
    for _ in range(most_sweeps):
        orders = np.array([np.r_[i, rng.permutation(np.delete(np.arange(n), i))] for i in range(n)])
        new, _ = marginals(game, orders, within)
        records = np.concatenate([records, new])
        if _converged(records):
            break
    return valuation_of(
        "GTG-Shapley", game, records.mean(axis=0), permutations=len(records), skipped=0
    )


def _converged(records: np.ndarray) -> bool:
    """Returns True if the last ten running means of the records ``[P, n]`` agree to 5 %."""
    if len(records) <= 30:
        return False
    means = (
        np.cumsum(records, axis=0)[-10:] / np.arange(len(records) - 9, len(records) + 1)[:, None]
    )
    change = np.abs(means - means[-1]) / (np.abs(means[-1]) + 1e-12)
    return bool((change.mean(axis=1) <= 0.05).all())


def _summed(
    method: str,
    setup: Setup,
    games: Iterator[RoundGame],
    value: Callable[[RoundGame], Valuation],
) -> Valuation:
    """Returns the sum of the rounds' values, of variances and of facts."""
    shape = setup.timeline.num_rounds, setup.task.num_clients
    by_round, variances = np.zeros(shape), np.zeros(shape)
    evaluations, facts, exact = 0, {"rounds": 0.0}, True
    for part in games:
        result = value(part)
        by_round[part.number, part.clients] = result.values
        if result.standard_errors is not None:
            variances[part.number, part.clients] = result.standard_errors**2
            exact = False
        evaluations += result.num_runs
        for name, number in {"rounds": 1, **result.facts}.items():
            facts[name] = facts.get(name, 0.0) + number
    errors = None if exact else np.sqrt(variances.sum(axis=0))
    return Valuation(method, by_round.sum(axis=0), errors, 1, evaluations, facts, by_round)


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
    check_is_algorithm(algorithm)
    if algorithm.aggregation is not None:
        raise ValueError(
            "algorithm aggregates by another rule than the mean; expected the mean of the uploads, "
            "of which coalitions of a round have their own"
        )
    if algorithm.selection is not None:
        raise ValueError(
            "algorithm has a selection; expected none, since a round's coalitions are those of the "
            "timeline's clients"
        )
    statistics = algorithm.requires.statistics
    if statistics is not None and not statistics.uploaded:
        raise ValueError(
            "algorithm has running statistics that clients keep, which their visits move whatever "
            "the coalition; expected running_statistics(..., combine='averaged')"
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
        # Without the last field, which is static.
        probed = {"upload": lambda visit: visit.upload, "work": lambda visit: visit.work[:-1]}
        probes = Probes(client=probed)
        state, history = advance(algorithm, setup, state, key, execution=execution, probes=probes)
        uploads, fields = jax.tree.map(
            lambda x: x[0], (history.probes["upload"], history.probes["work"])
        )
        # The weights of a round are a function of all its visits.
        works = Work(*fields, max_steps=setup.timeline.max_steps)
        arrived = jnp.asarray(setup.timeline.arrived)[0]
        return state, uploads, weights_of(setup.weighting, works, arrived)

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
            share = share_of(algorithm, setup.task, setup.weighting, own, setup.timeline.max_steps)
            new = algorithm.update(state.server, mean, round.counting(members.sum(), share))
            # As in a round of the engine, weights that are NaN make the model NaN.
            server = tree.where(own.sum() <= 0, state.server, new)
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
        yield RoundGame(t, clients[t, slots], Game(outcomes, name, mode, t))
