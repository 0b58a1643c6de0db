"""The phases of ``simulate``, ``compare`` and ``sweep``, one by one."""

import contextlib
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from call_records import SINGLE
from sweep_problems import KEYS, compilations, quadratic_trial

import fedjax_sim as fs
from fedjax_sim.runs import comparison, simulation
from fedjax_sim.runs.sweeps import sweep

SETUP = quadratic_trial(num_seeds=2, num_rounds=6).setup
ALGORITHM = fs.fedavg(0.1)


def checked(storage=None, callbacks=(), **options):
    return simulation.check(ALGORITHM, SETUP, KEYS[:2], callbacks, storage, fs.Options(**options))


def test_a_checked_call_has_names_config_and_an_answer_to_divergences():
    call = checked(fs.Storage(config={"lr": 1}), seeds=["a", "b"])
    assert (call.names, call.config, call.batched) == (["a", "b"], {"lr": 1}, True)
    (divergence,) = call.callbacks
    event = types.SimpleNamespace(error=simulation.DivergenceError("mine"), all=False)
    with pytest.raises(simulation.DivergenceError, match="mine"):
        divergence.diverged(event)


@pytest.mark.parametrize("trace", [False, True])
def test_preparing_compiles_nothing(trace):
    with compilations() as names:
        prepared = simulation.prepare(checked(), trace=trace)
    assert not [name for name in names if "segment" in name]
    assert prepared.step == 1  # of six evaluations, at most a twentieth


def test_restoring_returns_the_first_state_or_that_of_the_newest_checkpoint(tmp_path):
    stop = types.SimpleNamespace(progress=lambda _: None, poll=iter([None, "interrupt"]).__next__)
    prepared = simulation.prepare(checked(tmp_path, [stop]), trace=False)
    begun = simulation.restore(prepared)
    assert (begun.done, begun.action, begun.state.round.tolist()) == (0, None, [0, 0])
    with contextlib.ExitStack() as stack:
        ended = simulation.run_segments(prepared, begun, stack)
    assert (ended.done, ended.action, ended.interrupt_requested) == (2, "interrupt", True)
    again = simulation.restore(simulation.prepare(checked(tmp_path), trace=False))
    assert again.done == 2
    jax.tree.map(np.testing.assert_array_equal, again.state, ended.state)


def test_the_result_counts_what_this_call_ran():
    prepared = simulation.prepare(checked(callbacks=[SINGLE]), trace=False)
    begun = simulation.restore(prepared)
    with contextlib.ExitStack() as stack:
        ended = simulation.run_segments(prepared, begun, stack)
    result = simulation.result_of(prepared, begun, ended)
    steps = np.asarray(SETUP.timeline.num_steps)[np.asarray(SETUP.timeline.mask)]
    assert result.rounds_done == 6
    assert result.local_steps == 2 * steps.sum()  # of two seeds
    assert result.history.round.tolist() == [list(range(1, 7))] * 2
    assert (result.interrupted, result.stopped) == (False, False)


def test_a_plan_of_a_comparison_has_a_call_for_every_algorithm(tmp_path):
    algorithms = {"a b": ALGORITHM, "c": fs.scaffold(0.1)}
    storage = fs.Storage(tmp_path, config=lambda name: {"name": name})
    plan = comparison.check(algorithms, SETUP, KEYS[:2], (), storage, fs.Options())
    comparison.trace(plan)
    (part,) = plan.parts.of("a b")
    call = plan.call("a b", part, 0)
    assert call.storage.folder == tmp_path / "a-b"
    assert (call.name, call.config, call.names) == ("a b", {"name": "a b"}, ["0", "1"])
    assert list(tmp_path.iterdir()) == []  # before the first one runs


def test_a_plan_of_a_sweep_has_all_groups_and_finds_no_runs(tmp_path):
    def make_setup(rounds):
        return fs.Setup(SETUP.task, SETUP.timeline[:rounds], SETUP.params, SETUP.eval_fn)

    grid = {"rounds": [2, 3], "lr": [0.1, 0.2]}
    plan = sweep.check(fs.fedavg, make_setup, grid, KEYS[:2], (), tmp_path, fs.Options())
    assert [group.static for group, _ in plan.shares] == [{"rounds": 2}, {"rounds": 3}]
    assert plan.num_runs == 8
    programs = sweep.programs_for(fs.Options())
    outcome = sweep.run_groups(plan, sweep.open_store(plan), programs)
    result = sweep.result_of(plan, outcome)
    assert (len(result.runs), result.resumed, result.missing) == (8, 0, 0)
    found = sweep.run_groups(plan, sweep.open_store(plan), programs)
    assert (len(found.found), found.new, found.stopped) == (8, {}, False)


def test_methods_of_callbacks_are_called_in_order():
    seen = []
    watch = types.SimpleNamespace(
        begin=lambda name: seen.append(("begin", name)),
        progress=lambda progress: seen.append((progress.name, progress.round)),
        finished=lambda name, result: seen.append(("finished", name, result.rounds_done)),
    )
    setup = fs.Setup(SETUP.task, SETUP.timeline[:2], jnp.zeros((2, 2)))
    fs.compare({"a": ALGORITHM}, setup, KEYS[:2], callbacks=[watch])
    assert seen == [("begin", "a"), ("a", 1), ("a", 2), ("finished", "a", 2)]
    seen.clear()
    fs.simulate(ALGORITHM, setup, KEYS[:2], callbacks=[watch])
    assert seen == [("begin", ""), ("", 1), ("", 2), ("finished", "", 2)]


@pytest.mark.parametrize("action", ["raise", "stop", "record"])
@pytest.mark.parametrize("name", ["simulate", "compare"])
def test_what_follows_a_divergence(name, action, allow_nans):
    """The rate of round 3 is infinite."""
    algorithm = fs.fedavg(lambda round: jnp.where(round == 2, jnp.inf, 0.1))
    callbacks = [fs.callbacks.Divergence(action)]
    rounds = {"stop": 3, "record": 6}

    def run(**settings):
        if name == "simulate":
            return fs.simulate(algorithm, SETUP, KEYS[:2], **settings)
        (result,) = fs.compare({"a": algorithm}, SETUP, KEYS[:2], **settings).simulations["a"]
        return result

    if action == "raise":
        with pytest.raises(fs.callbacks.DivergenceError, match="replica 0 in round 3, 1 in round"):
            run(callbacks=callbacks)
    else:
        assert run(callbacks=callbacks).rounds_done == rounds[action]
    if name == "simulate":
        with pytest.raises(fs.callbacks.DivergenceError):
            run()
    else:
        assert run().rounds_done == 6
