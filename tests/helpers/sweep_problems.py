"""Setups for the tests of sweeps, and the single runs that a sweep has to equal."""

import contextlib
import dataclasses
from collections.abc import Iterator

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import optax
from call_records import records, sweep_on
from small_problems import (
    NUM_CLIENTS,
    compiled,
    logistic_params,
    logistic_task,
    quadratic_task,
    random_quadratics,
)

import fedjax_sim as fs
from fedjax_sim.engine import NO_PROBES
from fedjax_sim.runs.sweeps.trial import Trial

KEYS = jax.random.split(jax.random.key(7), 3)
ONE_DEVICE = jax.devices()[:1]
QUADRATIC_STEPS = 3


def fedavg_with_server(lr, server_lr=1.0) -> fs.FedAlgorithm:
    """FedAvg with a server optimizer that keeps a state."""
    return fs.fedavg(lr, optax.sgd(server_lr, momentum=0.5))


def starts(num_seeds: int):
    """Another model for every seed, ``[n, ...]``."""
    scales = jnp.arange(1.0, num_seeds + 1)
    return jax.tree.map(
        lambda x: (scales.reshape(-1, *[1] * x.ndim) * x).astype(x.dtype), logistic_params()
    )


def schedules(task: fs.Task, num_seeds: int, num_rounds: int = 4, cohort_size: int = 4):
    """Another schedule for every seed, ``[n, T, S]``; a third of the clients drop out."""

    def of(key):
        steps = task.num_steps
        timeline = fs.timelines.uniform(key, num_rounds, NUM_CLIENTS, cohort_size, steps)
        return fs.timelines.dropout(key, timeline, 0.3)

    return jax.vmap(of)(jax.random.split(jax.random.key(11), num_seeds))


def logistic_metrics(params):
    return {"norm": jnp.sum(params["w"] ** 2), "w": params["w"]}


PROBES = fs.Probes(
    client={"steps": lambda visit: visit.work.num_steps.astype(float)},
    server={"moved": lambda update: update.new_state.params["w"] - update.state.params["w"]},
    run={"bias": lambda state: state.server.params["b"]},
)


def logistic_trial(factory, timeline, num_seeds: int = 2, task=None, **options) -> Trial:
    """Ragged clients, minibatches, metrics and probes of every kind."""
    task = logistic_task() if task is None else task
    return _trial(factory, task, timeline, starts(num_seeds), logistic_metrics, PROBES, options)


def quadratic_trial(factory=fs.fedavg, num_seeds: int = 3, num_rounds: int = 6, **options) -> Trial:
    """Compiles fast; the metric is the model itself, so nothing that goes wrong stays unseen."""
    hessians, centres = random_quadratics(NUM_CLIENTS, 2)
    task = quadratic_task(hessians.astype(np.float32), centres.astype(np.float32), QUADRATIC_STEPS)
    sampled = fs.timelines.uniform(jax.random.key(2), num_rounds, NUM_CLIENTS, 3, task.num_steps)
    params = jnp.arange(2 * num_seeds, dtype=jnp.float32).reshape(num_seeds, 2) / 4
    return _trial(factory, task, sampled, params, lambda x: {"x": x}, NO_PROBES, options)


def _trial(factory, task, timeline, params, eval_fn, probes, options) -> Trial:
    execution = options.pop("execution", None)
    probes = options.pop("probes", probes)
    setup = fs.Setup(task, timeline, params, **({"eval_fn": eval_fn} | options))
    return Trial(factory, setup, execution, probes)


def changed(trial: Trial, **fields) -> Trial:
    """The trial with other fields of its setup."""
    return trial._replace(setup=dataclasses.replace(trial.setup, **fields))


def sweep_of(trial: Trial, grid, keys, *, devices=None, **options) -> fs.Sweep:
    """The sweep of a trial."""
    factory, setup, execution, probes = trial
    settings = records(execution=execution, probes=probes, **options)
    return sweep_on(devices, factory, setup, grid, keys, **settings)


def of_seed(setup: fs.Setup, seed: int) -> tuple[fs.Timeline, object]:
    """The schedule and the first model of one seed."""
    timeline = setup.timeline
    if timeline.clients.ndim == 3:
        timeline = jax.tree.map(lambda x: x[seed], timeline)
    return timeline, jax.tree.map(lambda x: x[seed], setup.params)


def alone(trial: Trial, keys=KEYS):
    """``(configuration, seed) -> (history, diverged_at)`` of single runs by :func:`fs.run`."""

    setup = trial.setup

    @compiled
    def program(hyper, task, timeline, params, key):
        state, history = fs.run(
            trial.factory(**hyper),
            fs.Setup(
                task,
                timeline,
                params,
                eval_fn=setup.eval_fn,
                eval_every=setup.eval_every,
                weighting=setup.weighting,
            ),
            key,
            execution=fs.execution.vmapped(),
            probes=trial.probes,
        )
        return history, state.diverged_at

    def of(configuration, seed: int):
        real = jnp.result_type(float)
        hyper = {name: jnp.asarray(value, real) for name, value in configuration.items()}
        return program(hyper, setup.task, *of_seed(setup, seed), keys[seed])

    return of


def assert_equals_single_runs(result: fs.Sweep, trial: Trial, rtol: float, fixed=()) -> None:
    """Every run has the history that a run of its own has, within ``rtol`` of each array's scale.

    ``fixed`` names what of the configurations is the setup's and not the algorithm's.
    """
    reference = alone(trial)
    for run in result.runs:
        seed = int(run.seed)
        hyper = {name: v for name, v in run.configuration.items() if name not in fixed}
        history, diverged_at = reference(hyper, seed)
        assert run.diverged_at == int(diverged_at)
        np.testing.assert_array_equal(run.history.round, history.round)
        timeline, _ = of_seed(trial.setup, seed)
        at = np.asarray(history.round) - 1
        mask, steps = np.asarray(timeline.mask), np.asarray(timeline.num_steps)
        expected = dict(history.metrics) | history.probes
        expected["time"] = np.asarray(timeline.time)[at]
        expected["local_steps"] = (steps * mask).sum(axis=1).cumsum()[at]
        for name in trial.probes.client:  # of the clients that reported
            rounds = zip(np.asarray(history.probes[name]), mask, strict=True)
            expected[name] = [v[m].mean() if m.any() else np.nan for v, m in rounds]
        actual = run.history.metrics | run.history.probes
        assert actual.keys() == expected.keys()
        for name, value in expected.items():
            value = np.asarray(value)
            scale = np.nanmax(np.abs(value), initial=0.0)
            np.testing.assert_allclose(
                actual[name], value, rtol=0, atol=rtol * scale, err_msg=f"{name} of {run[:2]}"
            )


@contextlib.contextmanager
def compilations() -> Iterator[list[str]]:
    """The names of the programs compiled within the context, in order."""
    names: list[str] = []

    def listen(event: str, duration: float, **details) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(str(details.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield names
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
