"""Games by retraining: a coalition is a mask over the timeline."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim.algorithms._shared import check_none_lost
from fedjax_sim.checks import check_bytes, check_count, check_key, check_takes
from fedjax_sim.engine import Execution, check_run
from fedjax_sim.runs import Mode, arrays_digest, identified, trace_run
from fedjax_sim.studies.valuation.coalitions import Programs, masked
from fedjax_sim.studies.valuation.games import Game, Outcomes
from fedjax_sim.studies.valuation.metrics import Metric, evaluated_once
from fedjax_sim.tree import entries
from fedjax_sim.types import FedAlgorithm, Setup


def game(
    algorithm: FedAlgorithm,
    setup: Setup,
    key: Array,
    metric: Metric,
    *,
    mode: Mode = None,
    resample: Array | None = None,
    directory: str | pathlib.Path | None = None,
    width: int | None = None,
    memory: int | None = None,
    execution: Execution | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Game:
    r"""Returns the game in which a coalition trains alone.

    .. math:: v(S) = L(x_0) - L(x_S)

    :math:`x_S` is the final model of the run in which all visits of clients outside S are masked.
    Timeline, minibatches and initial model are the same for all coalitions, so differences are
    those of the clients.  Rounds without members of S change nothing.

    Coalitions run together (``vmap`` over masks; one after the other for convolutions on a CPU), in
    powers of two up to a width that fits the memory, and divided over all devices (with a placed
    task its own).  The width changes the last bits of the values.  Every metric of a coalition is
    cached.

    Args:
        algorithm: any algorithm that accepts rounds in which clients are missing.
        setup: of one run; ``eval_every`` is not used.
        key: of the runs.
        metric: a metric of ``setup.eval_fn`` (such as a held-out loss, an accuracy, or
            ``accuracy/worst_decile`` of :func:`~fedjax_sim.engine.evaluation.client_evaluator`), or
            a function of the model.
        mode: ``"min"``: small values of the metric are good; ``"max"``: large ones; None: as
            the metric's name says (:func:`~fedjax_sim.engine.evaluation.names.direction`).  A
            function whose name does not say it needs it.
        resample: key of the cohorts.  Every round then has the first members of S in a random order
            of all clients, as many as report in the timeline's round, with all the clients' steps,
            instead of the members in the timeline's cohort: coalitions keep full cohorts.  The
            timeline must not have lost uploads then.  None: the timeline.
        directory: folder of finished coalitions, from which an interrupted valuation continues and
            which other processes may share; None: memory only.
        width: coalitions per device at once, at most; default 64 on a CPU, 512 on an accelerator.
        memory: bytes per device that a program may need; default as in :func:`fedjax_sim.sweep`.
        execution: execution strategy; default for the number of coalitions.
        on_progress: called after every chunk of coalitions with the number of those that are
            computed and of those that were missing.

    Raises:
        ValueError: arguments that do not fit each other, an algorithm that requires several
            clients per round (a robust rule may skip small rounds), or not even one coalition fits
            the memory.
        FolderError: the folder belongs to another game.

    Example:
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"x": jnp.array([1.0, 2.0, 6.0])}, np.arange(4))
        >>> loss = lambda w, examples, key: (w - examples["x"]) ** 2 / 2
        >>> task = fs.empirical_task(loss, data, fs.full_batch(1))
        >>> setup = fs.Setup(task, fs.timelines.full(1, 3, task.num_steps), jnp.zeros(()))
        >>> game = fs.valuation.game(
        ...     fs.fedavg(1.0), setup, jax.random.key(0), lambda w: (w - 3) ** 2 / 2, mode="min")
        >>> game.values([[True, False, False], [True, True, True]]).tolist()  # models 1 and 3
        [2.5, 4.5]
    """
    check_bytes(memory=memory)
    if width is not None:
        check_count(1, width=width)
    if on_progress is not None:
        check_takes("on_progress", on_progress, ("done", "total"))
    setup, name = evaluated_once(algorithm, setup, key, metric, mode)
    if resample is not None:
        check_key(resample, "resample")
        _check_resampled(setup)
    _check_single_client(algorithm, setup)
    programs = Programs(algorithm, setup, key, resample, width, memory, execution)
    identity = {} if directory is None else _identity(algorithm, setup, key, resample)
    outcomes = Outcomes(
        programs, setup.task.num_clients, chunk=programs.chunk, directory=directory,
        identity=identity, on_progress=on_progress,
    )  # fmt: skip
    return Game(outcomes, name, mode)


def _check_single_client(algorithm: FedAlgorithm, setup: Setup) -> None:
    """Refuses algorithms that do not accept the smallest coalitions; their masks are traced."""
    timeline = setup.timeline
    reports = np.asarray(timeline.clients)[np.asarray(timeline.arrived)]
    if not reports.size:
        return
    alone = masked(timeline, jnp.asarray(np.arange(setup.task.num_clients) == reports[0]))
    try:
        check_run(algorithm, dataclasses.replace(setup, timeline=alone), None)
    except ValueError as error:
        # An algorithm that skips small rounds requires one that is not skipped: with everybody.
        both = jax.tree.map(lambda *leaves: np.stack(leaves), timeline, alone)
        try:
            pair = jax.tree.map(lambda x: np.stack([x, x]), setup.params)
            check_run(algorithm, dataclasses.replace(setup, timeline=both, params=pair), 2)
        except ValueError:
            raise ValueError(
                f"algorithm does not accept every coalition; expected one that accepts client "
                f"{reports[0]} alone: {error}"
            ) from error


def _check_resampled(setup: Setup) -> None:
    timeline = setup.timeline
    if setup.task.placement is not None:
        raise ValueError(
            "setup.task is placed on devices by client; expected a task without a placement with "
            "resample, since every device has slots for its own clients"
        )
    if timeline.max_staleness or timeline.own_models or timeline.first_step is not None:
        raise ValueError(
            f"timeline has a staleness of up to {timeline.max_staleness}, or clients that continue "
            "earlier visits; expected synchronous rounds with resample"
        )
    check_none_lost(timeline, "with resample the slots of lost uploads have other clients")
    steps = np.asarray(entries(setup.task.num_steps, jnp.asarray(timeline.clients)))
    same = (steps == np.asarray(timeline.num_steps)) | ~np.asarray(timeline.mask)
    everyone = entries(setup.task.num_steps, jnp.arange(setup.task.num_clients))
    if not same.all() or int(everyone.max()) > timeline.max_steps:
        raise ValueError(
            "timeline.num_steps differs from task.num_steps; expected the clients' own numbers of "
            "steps with resample"
        )


def _identity(
    algorithm: FedAlgorithm, setup: Setup, key: Array, resample: Array | None
) -> dict[str, Any]:
    """Returns everything that the metrics of a coalition depend on, as JSON values."""
    keys = [None if k is None else np.asarray(jax.random.key_data(k)).tolist()
            for k in (key, resample)]  # fmt: skip
    return {
        **identified(trace_run(algorithm, setup, batched=False)),
        "data": arrays_digest((setup.task, setup.eval_fn)),
        "key": keys[0],
        "model": arrays_digest(setup.params),
        "resample": keys[1],
        "timeline": arrays_digest(setup.timeline),
    }
