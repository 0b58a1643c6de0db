"""Options of the clients per round, and of reports that fail."""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, Literal

import jax
import numpy as np
import pydantic
from jax import Array

from fedjax_sim.checks import check_part
from fedjax_sim.studies.setups.fields import (
    Count,
    Fraction,
    Inside,
    PositiveProbability,
    Probability,
    group,
)
from fedjax_sim.studies.setups.own_code import own_code
from fedjax_sim.timelines import (
    arrange_by_stratum,
    b_min_sep,
    balls_in_bins,
    delay_uploads,
    geometric_steps,
    lose_uploads,
    poisson,
    repeat_rounds,
    sampling,
    slots_for,
    stacked,
)
from fedjax_sim.tree import fast, usual
from fedjax_sim.types import Task, Timeline


@group
class Uniform:
    """A uniform subset."""

    kind: Literal["uniform"] = "uniform"


@group
class Weighted:
    """A subset weighted by examples."""

    kind: Literal["weighted"] = "weighted"


@group
class Bernoulli:
    """Independent coin flips, --cohort-size clients on average."""

    kind: Literal["bernoulli"] = "bernoulli"


@group
class Poisson:
    """As bernoulli, with few slots."""

    delta: Inside = 1e-5
    """The slots are those that a tenth of this delta requires."""
    kind: Literal["poisson"] = "poisson"


@group
class Cyclic:
    """Clients in turn."""

    kind: Literal["cyclic"] = "cyclic"


@group
class Full:
    """All clients."""

    kind: Literal["full"] = "full"


@group
class Pairs:
    """A uniform subset for every two rounds, as mime and fedlin need."""

    kind: Literal["pairs"] = "pairs"


@group
class Geometric:
    """All clients with a random number of steps per round, equal for all, --local-steps on average
    (for scaffnew, set --hyper.scaffnew.probability to 1 / steps)."""

    kind: Literal["geometric"] = "geometric"


@group
class FullOrUniform:
    """All clients with a probability and in the first round, else a uniform subset, as the feedback
    pp_marina needs."""

    probability: PositiveProbability | None = None
    """Probability of a round with all clients; default: the cohort size divided by the number of
    clients."""
    kind: Literal["full-or-uniform"] = "full-or-uniform"


@group
class Stratified:
    """A uniform subset of every stratum (--num-strata)."""

    kind: Literal["stratified"] = "stratified"


@group
class BallsInBins:
    """Each client in one random round of every pass of clients / --cohort-size rounds, rounded to a
    whole number, so that a cohort may have some more or fewer clients on average."""

    redraw: bool = False
    """A new random round in every pass; otherwise the same place in each."""
    kind: Literal["balls-in-bins"] = "balls-in-bins"


@group
class BMinSep:
    """Independent coin flips of the clients that did not take part recently, --cohort-size clients
    on average."""

    separation: Count = 4
    """Fewest rounds from one visit of a client to its next."""
    kind: Literal["b-min-sep"] = "b-min-sep"


Sampling = Annotated[
    Uniform | Weighted | Bernoulli | Poisson | Cyclic | Full | Pairs | Geometric | FullOrUniform
    | Stratified | BallsInBins | BMinSep,
    pydantic.Field(discriminator="kind"),
]  # fmt: skip


@group
class Cohort:
    """Clients that work at the same time, and their reports."""

    cohort_size: Count = 10
    """Clients per round (on average where their number is random; not used by full and geometric);
    with time:clock those that the server contacts at once."""
    cohort_fraction: PositiveProbability | None = None
    """Fraction of the clients per round, which replaces --cohort-size; default: a number."""
    cohort_rounding: Literal["nearest", "flower"] = "nearest"
    """With --cohort-fraction: to the nearest number, at least 1; or Flower's int(), at least 2."""
    dropout: Fraction = 0.0
    """Probability that a sampled client does not report."""
    weighting: Literal["uniform", "examples"] = "uniform"
    """Weights of the clients' uploads in the mean."""
    lost: Probability = 0.0
    """Probability that an upload does not arrive; unlike with --dropout the client does its work,
    and its state changes."""
    late: Probability = 0.0
    """Probability that an upload is late: the client started from the model of --delay rounds
    before."""
    delay: Count = 1
    """With --late: rounds by which an upload is late."""


def sized(options: Cohort, num_clients: int) -> Cohort:
    """Returns the options with the number of clients that a fraction means."""
    if options.cohort_fraction is None:
        return options
    size = sampling.cohort_of(num_clients, options.cohort_fraction, rule=options.cohort_rounding)
    return dataclasses.replace(options, cohort_size=size)


def drawn(
    options: Sampling,
    rounds: int,
    cohort_size: int,
    key: Array,
    sizes: Any,
    steps: Any,
    num_strata: int | None = None,
) -> Timeline:
    """Returns a timeline of rounds."""
    clients = len(sizes)
    match options:
        case Uniform():
            return sampling.uniform(key, rounds, clients, cohort_size, steps)
        case Weighted():
            return sampling.weighted(key, rounds, np.asarray(sizes), cohort_size, steps)
        case Bernoulli():
            return sampling.bernoulli(key, rounds, clients, cohort_size / clients, steps)
        case Poisson():
            probability = cohort_size / clients
            slots = slots_for(clients, probability, rounds, options.delta)
            return poisson(key, rounds, clients, probability, steps, slots=slots)
        case Cyclic():
            return sampling.cyclic(rounds, clients, cohort_size, steps)
        case Full():
            return sampling.full(rounds, clients, steps)
        case Pairs():
            half = sampling.uniform(key, -(-rounds // 2), clients, cohort_size, steps)
            return repeat_rounds(half, 2)[:rounds]
        case Geometric():
            mean = int(np.max(steps))
            every = sampling.full(rounds, clients, mean)
            # The bound of the local loop; 0.7 % of the rounds are cut.
            return geometric_steps(key, every, 1 / mean, max_steps=5 * mean)
        case FullOrUniform():
            probability = options.probability or cohort_size / clients
            return sampling.full_or_uniform(key, rounds, clients, cohort_size, probability, steps)
        case Stratified():
            strata = num_strata or 1
            return sampling.stratified(key, rounds, clients, cohort_size, steps, num_strata=strata)
        case BallsInBins():
            check_part("num_clients", clients, cohort_size=cohort_size)
            bins = round(clients / cohort_size)
            return balls_in_bins(key, rounds, clients, bins, steps, redraw=options.redraw)
        case BMinSep():
            check_part("num_clients", clients, cohort_size=cohort_size)
            apart = options.separation
            # p M / (1 + (b - 1) p) clients on average.
            free = clients - (apart - 1) * cohort_size
            if cohort_size > free:
                raise ValueError(
                    f"sampling.separation is {apart}; expected at most {clients // cohort_size}, "
                    f"for cohorts of {cohort_size} of {clients} clients"
                )
            return b_min_sep(key, rounds, clients, cohort_size / free, steps, separation=apart)


def failing(options: Cohort, key: Array, timeline: Timeline) -> Timeline:
    """Returns a timeline with lost and late uploads, as the options say.

    The draws do not depend on the probabilities.
    """
    if options.lost:
        timeline = lose_uploads(jax.random.fold_in(key, 1), timeline, options.lost)
    if options.late:
        timeline = delay_uploads(
            jax.random.fold_in(key, 2), timeline, options.late, delay=options.delay
        )
    return timeline


def timelines(
    options: Sampling,
    cohort: Cohort,
    rounds: int,
    num_strata: int | None,
    own: Timeline | Callable[[Array, Task], Timeline] | None,
    task: Task,
    keys: Array,
) -> Timeline:
    """Returns one timeline of rounds per key, ``[n, T, S]``; a study's own replaces the rule."""

    def schedule(key: Array) -> Timeline:
        sample_key, dropout_key = usual(jax.random.split(fast(key)))
        if own is None:
            timeline = drawn(
                options,
                rounds,
                cohort.cohort_size,
                sample_key,
                task.num_examples,
                task.num_steps,
                num_strata,
            )
        else:
            timeline = own_timeline(own, sample_key, task)
        if cohort.dropout:
            timeline = sampling.dropout(dropout_key, timeline, cohort.dropout)
        return failing(cohort, dropout_key, timeline)

    if own is not None:
        return stacked([schedule(key) for key in keys])
    every = jax.jit(jax.vmap(schedule))(keys)
    if num_strata is None or isinstance(options, Stratified):
        return every
    return arrange_by_stratum(every, task.num_clients, num_strata)


def own_timeline(own: Any, key: Array, task: Task) -> Timeline:
    """Returns a study's own timeline of one key."""
    with own_code("timeline of the study"):
        timeline = own(key, task) if callable(own) else own
    if not isinstance(timeline, Timeline) or np.ndim(timeline.clients) != 2:
        kind = type(timeline).__name__
        raise ValueError(
            f"timeline of the study is {kind}; expected a fedjax_sim.Timeline of clients [T, S]"
        )
    return timeline
