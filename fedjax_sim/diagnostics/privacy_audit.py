"""Audits: a lower bound of epsilon from runs with and without one planted client.

References:
    Nasr, Song, Thakurta, Papernot, Carlini, "Adversary Instantiation: Lower Bounds for
        Differentially Private Machine Learning", 2021, https://arxiv.org/abs/2101.04535.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim.checks import (
    check_count,
    check_is_setup,
    check_one_number,
    check_split_keys,
    import_extra,
)
from fedjax_sim.engine import check_run, run
from fedjax_sim.types import FedAlgorithm, Params, Setup, Timeline, shown
from fedjax_sim.wrappers import check_delta


@shown
class Audit(NamedTuple):
    """Result of an audit of n runs with and n runs without the planted client."""

    epsilon: float  # lower bound
    present: np.ndarray  # [n] scores of the runs with the client
    absent: np.ndarray  # [n] scores of the runs without


def audit(
    algorithm: FedAlgorithm,
    setup: Setup,
    keys: Array,
    client: int,
    score: Callable[[Params], Array],
    *,
    delta: float,
    significance: float = 0.05,
    batch_size: int = 256,
) -> Audit:
    """Returns a lower bound of epsilon, with the confidence ``1 - significance``.

    Someone who sees the final model guesses whether the client took part, from a score: every
    threshold has rates of true and false positives, and the bound follows from Clopper-Pearson
    intervals of both, corrected for the number of thresholds.  It must not exceed the epsilon that
    an accountant returns; the final model is less than what the accountant assumes to be released,
    so it may be much smaller.  The more striking the client's data, the stronger the audit: plant
    one whose upload has the length of the clip in a direction of its own.

    Args:
        algorithm: of :func:`~fedjax_sim.wrappers.privacy.privatize`, or any other.
        setup: of one run; or with n timelines ``[n, T, S]``, one per key, if an accountant counts
            on the secrecy of randomly drawn cohorts.  ``eval_fn`` is not used.
        keys: ``[n]``; more runs make the bound sharper, log(n) or so is the largest one.
        client: number of the client that is present or absent.
        score: of the final model; larger if the client was probably present.
        delta: that of the guarantee.
        significance: probability that the bound exceeds the true epsilon, in (0, 1/2).
        batch_size: runs that execute at once.

    Raises:
        ValueError: a client that does not exist, no keys or one key, a delta or a significance out
            of range, a score that is no number, an algorithm that needs the client.
        ImportError: jax-privacy is not installed.

    Example:
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"x": jnp.array([0.0, 8.0])}, jnp.array([0, 1, 2]))
        >>> loss = lambda params, examples, key: (params - examples["x"]) ** 2
        >>> task = fs.empirical_task(loss, data, fs.full_batch(num_steps=1))
        >>> setup = fs.Setup(task, fs.timelines.full(1, 2, task.num_steps), jnp.array(0.0))
        >>> private = fs.privacy.privatize(fs.fedavg(0.1), 1.0, 0.0, expected_uploads=2)
        >>> result = audit(private, setup, jax.random.split(jax.random.key(0), 100), 1,
        ...                lambda params: params, delta=1e-5)
        >>> result.present.mean(), result.absent.mean(), result.epsilon > 2  # without noise
        (np.float64(0.5), np.float64(0.0), True)
    """
    check_is_setup(setup)
    setup = dataclasses.replace(setup, eval_fn=None)
    check_count(1, batch_size=batch_size)
    check_count(client=client)
    check_split_keys(keys)
    one_per_key = np.ndim(getattr(setup.timeline, "clients", ())) == 3
    count, params = None, setup.params
    if one_per_key:
        count, params = len(keys), _repeat(setup.params, len(keys))
    checked = dataclasses.replace(setup, params=params)
    check_run(algorithm, checked, count)
    check_delta(delta)
    check_one_number(significance=significance)
    if not 0 < significance < 0.5:
        raise ValueError(f"significance is {significance}; expected a number in (0, 0.5)")
    if not 0 <= client < setup.task.num_clients:
        raise ValueError(f"client is {client}; expected 0 .. {setup.task.num_clients - 1}")
    without = np.asarray(setup.timeline.mask) & (np.asarray(setup.timeline.clients) != client)
    absence = dataclasses.replace(setup.timeline, mask=jnp.asarray(without))
    try:
        check_run(algorithm, dataclasses.replace(checked, timeline=absence), count)
    except ValueError as error:
        raise ValueError(
            f"algorithm does not accept the rounds without client {client}; expected one that "
            f"does: {error}"
        ) from error
    auditing = import_extra("jax_privacy.auditing", "privacy")

    @jax.jit
    def scores(keys: Array, setup: Setup, timeline: Timeline) -> Array:
        def final(args: tuple[Array, Timeline | None]) -> Array:
            key, own = args
            part = dataclasses.replace(setup, timeline=timeline if own is None else own)
            result = score(run(algorithm, part, key)[0].server.params)
            if jnp.shape(result) != ():
                raise ValueError(f"score has shape {jnp.shape(result)}; expected one number")
            return result

        return jax.lax.map(final, (keys, timeline if one_per_key else None), batch_size=batch_size)

    timelines = setup.timeline, absence
    draws = jax.vmap(jax.random.split)(keys)  # different noise with and without the client
    present, absent = (np.asarray(scores(draws[:, i], setup, timelines[i]), float) for i in (0, 1))
    every = np.concatenate([present, absent])
    if (lost := np.isnan(every)).any():  # beside which no threshold would say anything
        raise ValueError(
            f"score is NaN for {lost.sum()} of {len(every)} models; expected numbers (a run that "
            "diverged has a model of NaN)"
        )
    bound = auditing.CanaryScoreAuditor(present, absent).epsilon_clopper_pearson(
        significance, delta
    )
    return Audit(float(bound), present, absent)


def _repeat(params: Params, count: int) -> Params:
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *jnp.shape(x))), params)
