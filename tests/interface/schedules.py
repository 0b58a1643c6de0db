"""Timelines for the families that are tried on the interface."""

import functools

import jax.numpy as jnp
import numpy as np
from regression import STEPS, M

import fedjax_sim as fs


def timeline(clients, version, num_steps, mask, time) -> fs.Timeline:
    version, num_steps, mask = np.asarray(version), np.asarray(num_steps), np.asarray(mask)
    staleness = np.where(mask, np.arange(len(version))[:, None] - version, 0)
    return fs.Timeline(
        clients=jnp.asarray(clients, jnp.int32),
        version=jnp.asarray(version, jnp.int32),
        num_steps=jnp.asarray(num_steps, jnp.int32),
        mask=jnp.asarray(mask),
        time=jnp.asarray(time, jnp.float32),
        max_steps=int(num_steps.max()),
        max_staleness=int(staleness.max()),
    )


@functools.cache
def synchronous(num_rounds: int = 5, cohort: int = 4) -> fs.Timeline:
    """Partial participation with dropouts; nobody reports in round 2."""
    rng = np.random.default_rng(1)
    clients = np.stack([rng.choice(M, cohort, replace=False) for _ in range(num_rounds)])
    mask = rng.uniform(size=clients.shape) < 0.75
    mask[2] = False
    version = np.broadcast_to(np.arange(num_rounds)[:, None], clients.shape)
    return timeline(clients, version, STEPS[clients], mask, np.arange(num_rounds) + 1)


def visits(schedule: fs.Timeline) -> list[list[tuple[int, int, int]]]:
    """Per round the (client, version, steps) of those who report."""
    c, v, k, m = (
        np.asarray(x)
        for x in (schedule.clients, schedule.version, schedule.num_steps, schedule.mask)
    )
    return [
        [(int(c[t, s]), int(v[t, s]), int(k[t, s])) for s in np.flatnonzero(m[t])]
        for t in range(len(c))
    ]
