"""Compiled programs of runs: numbers of algorithms are arguments, and few programs are kept."""

import dataclasses

import catalogue
import jax
import jax.monitoring
import numpy as np
import pytest
import small_problems

import fedjax_sim as fs
from fedjax_sim.runs import programs

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
