"""Cohorts of clients in groups that take turns."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from fedjax_sim.checks import check_count, check_one_number, check_part, check_timeline_size
from fedjax_sim.timelines.rules import Sampling
from fedjax_sim.timelines.sampling import _thinned, rounds_of
from fedjax_sim.timelines.strata import strata
from fedjax_sim.types import Timeline, plain_integers


@plain_integers
def grouped_bernoulli(
    key: Array,
    num_rounds: int,
    num_clients: int,
    probability: float,
    num_steps: int | np.ndarray | Array,
    *,
    num_groups: int,
) -> Timeline:
    r"""Cohorts from groups that take turns, whose clients take part with ``probability``.

    Groups are blocks of consecutive clients whose sizes differ by at most one.  In round t every
    client of group t mod b takes part independently; all others are absent, so a client that
    returns does so after a multiple of b rounds.  A round has a slot for each client of the largest
    group.  Privacy by banded matrices is amplified under this sampling
    (:func:`~fedjax_sim.wrappers.privacy.amplified_banded`); the expected cohort size is
    ``probability * num_clients / num_groups``.

    Args:
        key: PRNG key of the cohorts.
        num_rounds: T.
        num_clients: M.
        probability: of taking part in a round of the client's group, in (0, 1].
        num_steps: local steps per visit: one number, or ``[M]``.
        num_groups: b.

    Raises:
        ValueError: a probability outside (0, 1], more groups than clients, or a number below 1.

    Example:
        >>> import jax
        >>> timeline = grouped_bernoulli(jax.random.key(0), 4, 6, 0.5, num_steps=1, num_groups=3)
        >>> timeline.clients.tolist()
        [[0, 1], [2, 3], [4, 5], [0, 1]]
    """
    check_count(1, num_rounds=num_rounds)
    check_part("num_clients", num_clients, num_groups=num_groups)
    check_one_number(probability=probability)
    if isinstance(probability, Tracer) or not 0 < probability <= 1:
        raise ValueError(f"probability is {probability}; expected a concrete number in (0, 1]")
    blocks = strata(num_clients, num_groups)
    check_timeline_size(num_rounds, blocks.width)
    groups = [blocks.clients(g) for g in range(num_groups)]
    slots = np.arange(blocks.width)
    # Slots beyond a small group repeat its first client, and stay empty.
    members = np.array([np.where(slots < len(g), g.start + slots, g.start) for g in groups])
    filled = np.array([slots < len(g) for g in groups])
    turn = np.arange(num_rounds) % num_groups
    rule = Sampling("poisson", num_clients / num_groups, len(groups[-1]), groups=num_groups)
    timeline = rounds_of(members[turn], rule, num_clients, num_steps)
    return _thinned(key, dataclasses.replace(timeline, mask=jnp.asarray(filled[turn])), probability)
