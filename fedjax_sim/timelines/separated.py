r"""Cohorts of clients that return after several rounds, at random: balls in bins, b-min-separation.

References:
    Chua, Ghazi, Harrison, Leeman, Kamath, Kumar, Manurangsi, Sinha, Zhang, "Balls-and-Bins Sampling
        for DP-SGD", 2024, https://arxiv.org/abs/2412.16802.
    Choquette-Choo, Ganesh, Haque, Steinke, Thakurta, "Near Exact Privacy Amplification for Matrix
        Mechanisms", 2024, https://arxiv.org/abs/2410.06266.
    "b-min-sep" sampling: https://arxiv.org/abs/2602.09338.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from fedjax_sim.checks import check_count, check_key, check_one_number
from fedjax_sim.timelines.coins import occurs
from fedjax_sim.timelines.rules import Sampling
from fedjax_sim.timelines.sampling import _stays, full, per_round
from fedjax_sim.tree import fast
from fedjax_sim.types import Timeline, plain_integers


@plain_integers
def balls_in_bins(
    key: Array,
    num_rounds: int,
    num_clients: int,
    num_bins: int,
    num_steps: int | np.ndarray | Array,
    *,
    redraw: bool = False,
) -> Timeline:
    r"""Cohorts of clients that each take part in one round of every pass, drawn uniformly.

    A pass has ``num_bins`` rounds.  Clients draw independently, so that cohorts have random sizes
    and may be empty.  A client has the same place in every pass, with exactly b rounds between its
    visits, unless ``redraw`` gives it a new one.  A round has one slot for each of the M clients,
    and absent clients are masked.

    Args:
        key: PRNG key of the places.
        num_rounds: T.
        num_clients: M.
        num_bins: b, rounds of a pass.
        num_steps: local steps per visit: one number, or ``[M]``, for example ``task.num_steps``.
        redraw: new places in every pass.

    Raises:
        ValueError: a number below 1.

    Example:
        >>> timeline = balls_in_bins(jax.random.key(0), 6, num_clients=50, num_bins=3, num_steps=1)
        >>> timeline.mask[:3].sum(0).tolist() == [1] * 50
        True
        >>> bool((timeline.mask[:3] == timeline.mask[3:]).all())
        True
    """
    check_key(key)
    check_count(1, num_bins=num_bins)
    everybody = full(num_rounds, num_clients, num_steps)
    passes = -(-num_rounds // num_bins) if redraw else 1
    keys = jax.vmap(lambda p: jax.random.fold_in(fast(key), p))(jnp.arange(passes))
    places = jax.vmap(lambda k: jax.random.randint(k, (num_clients,), 0, num_bins, jnp.int32))(keys)
    rounds = jnp.arange(num_rounds, dtype=jnp.int32)
    own = places[rounds // num_bins] if redraw else places
    rule = Sampling(
        "bins", num_clients / num_bins, num_clients, groups=num_bins, redrawn=bool(redraw)
    )
    mask = rounds[:, None] % num_bins == own
    return dataclasses.replace(everybody, mask=mask, sampling=rule)


@plain_integers
def b_min_sep(
    key: Array,
    num_rounds: int,
    num_clients: int,
    probability: float,
    num_steps: int | np.ndarray | Array,
    *,
    separation: int,
) -> Timeline:
    r"""Cohorts of clients that take part with ``probability``, at least b rounds after their last.

    A client whose last visit was b or more rounds ago takes part independently with probability p;
    the others are absent.  The first round has the stationary law, so that every cohort has
    :math:`p M / (1 + (b - 1) p)` clients on average.  At p = 1 these are :func:`balls_in_bins`, and
    at b = 1 :func:`~fedjax_sim.timelines.bernoulli`, with their sampling rules.  A round has one
    slot for each of the M clients, and absent clients are masked.

    Args:
        key: PRNG key of the cohorts.
        num_rounds: T.
        num_clients: M.
        probability: p, in (0, 1], concrete; rounded to a multiple of 2^-32.
        num_steps: local steps per visit: one number, or ``[M]``.
        separation: b, fewest rounds from one visit of a client to its next.

    Raises:
        ValueError: a probability outside (0, 1] or traced, or a number below 1.

    Example:
        >>> timeline = b_min_sep(jax.random.key(0), 90, 50, 0.5, num_steps=1, separation=3)
        >>> round(timeline.sampling.expected_uploads, 6), bool(timeline.mask[:3].sum(0).max() <= 1)
        (12.5, True)
    """
    check_key(key)
    check_one_number(probability=probability)
    if isinstance(probability, Tracer) or not 0 < probability <= 1:
        raise ValueError(f"probability is {probability}; expected a concrete number in (0, 1]")
    check_count(1, separation=separation)
    everybody = full(num_rounds, num_clients, num_steps)
    p, between = float(probability), separation - 1
    coin_key, busy_key, rest_key = jax.random.split(fast(key), 3)
    coins = per_round(coin_key, num_rounds, _stays(num_clients), p)

    # Rounds until a client may take part: stationary, 0 or uniform on 1 .. b - 1.
    words = jax.random.bits(busy_key, (num_clients,), jnp.uint32)
    busy = occurs(words, between * p / (1 + between * p))
    rest = jax.random.randint(rest_key, (num_clients,), 1, max(between, 1) + 1, jnp.int32)

    def step(wait: Array, coin: Array) -> tuple[Array, Array]:
        takes_part = coin & (wait == 0)
        return jnp.where(takes_part, between, jnp.maximum(wait - 1, 0)), takes_part

    _, mask = jax.lax.scan(step, jnp.where(busy, rest, 0), coins)
    expected = p * num_clients / (1 + between * p)
    rule = Sampling("separated", expected, num_clients, probability=p, separation=separation)
    if between == 0:
        rule = Sampling("poisson", expected, num_clients, probability=p)
    elif p == 1:
        rule = Sampling("bins", expected, num_clients, groups=separation)
    return dataclasses.replace(everybody, mask=mask, sampling=rule)
