"""Programs and digests of runs, and sweeps: numbers of algorithms are arguments."""

import dataclasses
import functools
import itertools
import json
import os
import subprocess
import sys

import catalogue
import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest
import small_problems
from call_records import sweep_on
from catalogue import ALGORITHMS, STRUCTURES, current, declared, for_each, program
from catalogue import task as catalogue_task
from small_problems import logistic_data, logistic_losses, logistic_params
from sweep_problems import KEYS, ONE_DEVICE

import fedjax_sim as fs
from fedjax_sim.runs import programs
from fedjax_sim.runs.storage.run_functions import identified, trace_run

# ---- programs


_LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"


@pytest.fixture(scope="module")
def lowered():
    """Names of the programs that were lowered, also of those that a cache on disk had compiled."""
    names = []

    def listen(event, seconds, fun_name="", **_):
        del seconds
        if event == _LOWERED:
            names.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


def _setup(name):
    return fs.Setup(
        catalogue.task(),
        catalogue.timeline_of(name),
        small_problems.logistic_params(),
        eval_fn=lambda params: params,
        eval_every=2,
    )


def _run(name, values):
    algorithm = catalogue.algorithm(name, values)
    return fs.simulate(algorithm, _setup(name), jax.random.key(2)).state


def _has_numbers(name):
    """Returns False where numbers are inside of a function of the test or of another library."""
    values = catalogue.ALGORITHMS[name][1]
    return len(jax.tree.leaves(catalogue.algorithm(name, values).spec)) >= len(values)


INSIDE = {
    "fedavg_adam_keep", "fedavg_adam_mean", "fedavg_adam_reset", "fedavg_schedule", "fedmuon",
    "fedntd", "fedproto",
}  # fmt: skip


def test_which_algorithms_have_their_numbers_inside_of_functions():
    assert {name for name in catalogue.ALGORITHMS if not _has_numbers(name)} == INSIDE


@catalogue.for_each(quick={"fedadam", "scaffold_II", "fedasync"}, without=INSIDE)
def test_other_numbers_lower_no_program(name, lowered):
    """A later call with other numbers runs the first call's program, and uses its own numbers."""
    values = catalogue.ALGORITHMS[name][1]
    others = {key: 0.9 * value for key, value in values.items()}
    _run(name, values)
    lowered.clear()
    state = _run(name, others)
    assert lowered == []
    programs._functions.clear()
    jax.tree.map(_same_bytes, state.server, _run(name, others).server)
    changed = jax.tree.leaves(_run(name, values).server.params)
    assert any(
        (np.asarray(x) != np.asarray(y)).any()
        for x, y in zip(changed, jax.tree.leaves(state.server.params), strict=True)
    )


def _same_bytes(x, y):
    np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def test_integers_and_options_are_constants_of_programs(lowered):
    _run("scaffold_II", {"lr": 0.2, "server_lr": 0.8})
    lowered.clear()
    setup = _setup("scaffold_II")
    fs.simulate(fs.scaffold(0.2, 0.8, option="I"), setup, jax.random.key(2))
    assert "segment" in " ".join(lowered)


def test_an_integer_rate_shares_the_program(lowered):
    setup = _setup("fedavg")
    fs.simulate(fs.fedavg(0.5), setup, jax.random.key(2))
    lowered.clear()
    fs.simulate(fs.fedavg(1), setup, jax.random.key(2))
    assert lowered == []


def test_numbers_of_schedules_are_arguments(lowered):
    setup = _setup("fedavg")
    decayed = [fs.fedavg(fs.local.exponential_decay(0.2, decay)) for decay in (0.9, 0.5)]
    first = fs.simulate(decayed[0], setup, jax.random.key(2)).state.server.params
    lowered.clear()
    second = fs.simulate(decayed[1], setup, jax.random.key(2)).state.server.params
    assert lowered == []
    assert not np.array_equal(first["w"], second["w"])


@pytest.mark.slow
def test_kept_programs_are_bounded(monkeypatch):
    """Each of these runs has a program of its own, since the period is a static value."""
    monkeypatch.setattr(programs, "_MOST_FUNCTIONS", 2)
    setup = dataclasses.replace(_setup("fedavg"), eval_fn=None)
    setup = dataclasses.replace(setup, timeline=setup.timeline[:1])
    for every in (1, 2, 3):
        fs.simulate(fs.fedavg(0.1), dataclasses.replace(setup, eval_every=every), jax.random.key(2))
    assert [kept.eval_every for kept in programs._functions.values()] == [2, 3]


# ---- digests


_PROGRAM = """
import json
from test_programs import digests
print(json.dumps(digests()))
"""


@functools.cache
def digest_of(name):
    return digest(*ALGORITHMS[name])


def digest(factory, values):
    data = logistic_data()
    task = fs.empirical_task(logistic_losses, data, fs.epochs(1, batch_size=8))
    timeline = fs.timelines.full(1, data.num_clients, task.num_steps)
    # Some algorithms use the number of clients that report in a round.
    setup = fs.Setup(task, timeline, logistic_params())
    numbers = {name: jax.numpy.asarray(value) for name, value in values.items()}
    digests = identified(trace_run(factory(**numbers), setup, batched=False))
    return digests["objective"], digests["algorithm"]


def digests():
    return {name: digest_of(name) for name in ALGORITHMS}


@pytest.mark.slow
def test_digests_are_equal_in_other_processes():
    path = os.pathsep.join(sys.path)
    here = os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    seed = "1" if os.environ.get("PYTHONHASHSEED") == "2" else "2"  # this process has another
    other = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env=here | {"PYTHONHASHSEED": seed}, capture_output=True, check=True,
    )  # fmt: skip
    assert json.loads(other.stdout) == {name: list(each) for name, each in digests().items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_hyper_parameter_is_in_the_digest(name):
    factory, values = ALGORITHMS[name]
    before = digest_of(name)
    assert digest(factory, values) == before
    for changed in values:
        other = values | {changed: 0.9 * values[changed]}
        assert digest(factory, other)[1] != before[1], changed


def _first(params, examples, key):
    return params["b"] * examples["x"][:, 0]


def _second(params, examples, key):
    return params["b"] * examples["x"][:, 1]


def _difference_of_means(one, other):
    """FedAvg whose uploads are shifted by the difference of two means over a client's data."""

    def make(lr):
        inner = fs.fedavg(lr)

        def local(message, state, oracle, work):
            upload, state = inner.local(message, state, oracle, work)
            shift = oracle.mean(one)(message) - oracle.mean(other)(message)
            return upload | {"b": upload["b"] + shift}, state

        return inner._replace(local=local)

    return make


def test_functions_whose_means_an_algorithm_takes_are_in_the_digest():
    values = {"lr": 0.2}
    plain, exchanged, once = (
        digest(_difference_of_means(*functions), values)
        for functions in [(_first, _second), (_second, _first), (_first, _first)]
    )
    assert len({plain, exchanged, once}) == 3
    assert digest(_difference_of_means(_first, _second), values) == plain


# ---- sweeps


@pytest.mark.slow
@for_each(among=STRUCTURES)
def test_sweep_equals_single_runs(name, x64):
    factory, values = ALGORITHMS[name]
    swept = list(values)[:2]
    fixed = {key: value for key, value in values.items() if key not in swept}
    grid = {key: [values[key], 0.7 * values[key]] for key in swept}
    task, timeline = catalogue_task(), current(name)
    setup = fs.Setup(
        task,
        timeline,
        {key: jnp.asarray(value)[None] for key, value in logistic_params().items()},
        eval_fn=lambda params: params,
        eval_every=timeline.num_rounds,
    )
    swept_factory = functools.partial(factory, **fixed)

    def sweep(grid):
        # In the execution that `auto` chooses, which keeps the runs of a client side by side.
        return sweep_on(ONE_DEVICE, swept_factory, setup, grid, KEYS[:1])

    result = sweep(grid)
    assert len(result.runs) == len(list(itertools.product(*grid.values())))
    for run in result.runs:
        hyper = {key: jnp.asarray(v) for key, v in (fixed | run.configuration).items()}
        expected = program(name)(hyper, task, declared(name, timeline), KEYS[0]).server.params
        for leaf, value in expected.items():
            # Only the order of sums differs: some hundred operations of 1e-16 each.
            np.testing.assert_allclose(run.history.metrics[leaf][0], value, rtol=1e-11, atol=1e-13)
    # The same number of other runs with other values in the same program: the same bits.
    beside = sweep({key: [values[key], 0.9 * values[key]] for key in swept})
    first, again = (each.runs[0] for each in (result, beside))
    assert first.configuration == again.configuration
    for leaf, value in first.history.metrics.items():
        np.testing.assert_array_equal(again.history.metrics[leaf], value)
