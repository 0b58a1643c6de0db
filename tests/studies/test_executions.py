"""Tuning: what is measured is executed as said, kept, and found again."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from small_problems import compiled

import fedjax_sim as fs
from fedjax_sim import models, objectives
from fedjax_sim.cli import run
from fedjax_sim.cli.main import main
from fedjax_sim.cli.measured import run_measure
from fedjax_sim.studies import executions
from fedjax_sim.studies.executions import ExecutionChoice
from fedjax_sim.studies.setups import MeasuredExecution, Study, options, problem, read, resolve

ALGORITHMS = ("fedavg", "fedprox", "scaffold")


def tiny(**values) -> Study:
    small = {
        "algorithms": ALGORITHMS, "model": "softmax_regression", "cohort_size": 4, "seeds": 2,
        "rounds": 3, "local_epochs": 1,
    }  # fmt: skip
    return Study(options(**small | values))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(executions, "_SECONDS", 0.0)


def image_problem(conv, batched=False):
    model = models.digits_cnn(conv=conv)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 8, 8, 1)).astype(np.float32)
    data = fs.FederatedData({"x": x, "y": np.arange(12, dtype=np.int32) % 10}, np.arange(0, 13, 3))
    loss = objectives.cross_entropy(model.apply)
    task = fs.empirical_task(loss, data, fs.epochs(1, batch_size=3))
    timeline = fs.timelines.full(2, 4, task.num_steps)
    keys = jax.random.split(jax.random.key(0), 2)
    params = jax.vmap(model.init)(keys) if batched else model.init(keys[0])
    setup = fs.Setup(task, timeline, params)
    return executions.Problem(fs.fedavg(0.1), setup, keys if batched else keys[0])


@pytest.mark.slow
def test_measures_strategies_then_lowerings_with_the_best(monkeypatch):
    monkeypatch.setattr(executions.devices, "workers", lambda: jax.devices()[:2])
    found = executions.measure_executions(
        fs.fedavg(0.1), lambda conv: image_problem(conv).setup, jax.random.key(0)
    )
    seconds = [m.seconds for m in found]
    assert seconds == sorted(seconds)
    assert all(s > 0 for s in seconds)
    plain = {m.choice for m in found if m.choice.lowering == "auto"}
    assert plain == {
        ExecutionChoice(1),
        ExecutionChoice(4),
        ExecutionChoice(1, 2),
        ExecutionChoice(2, 2),
    }
    rest = [m.choice for m in found if m.choice.lowering != "auto"]
    assert sorted(c.lowering for c in rest) == ["blocked", "canonical", "im2col", "winograd"]
    best = min((m for m in found if m.choice in plain), key=lambda m: m.seconds).choice
    assert {c._replace(lowering="auto") for c in rest} == {best}


@pytest.mark.slow
def test_what_does_not_fit_is_left_out(monkeypatch):
    needed = {
        m.choice: m.num_bytes for m in executions.measure_executions(*dense_problem(models.auto))
    }
    assert needed[ExecutionChoice(8)] > needed[ExecutionChoice(1)]
    monkeypatch.setattr(
        executions.devices, "memory_limit", lambda device: needed[ExecutionChoice(8)] - 1
    )
    kept = {m.choice for m in executions.measure_executions(*dense_problem(models.auto))}
    assert ExecutionChoice(8) not in kept
    assert ExecutionChoice(1) in kept


def dense_problem(conv):
    data = fs.FederatedData({"x": np.ones((16, 50), np.float32)}, np.arange(0, 17, 2))
    task = fs.empirical_task(
        lambda w, batch, key: (batch["x"] @ w - 1) ** 2, data, fs.full_batch(1)
    )
    timeline = fs.timelines.full(2, 8, task.num_steps)
    setup = fs.Setup(task, timeline, jnp.zeros(50))
    return executions.Problem(fs.fedavg(0.1), setup, jax.random.key(0))


@pytest.mark.slow
@pytest.mark.parametrize(
    "choice",
    [
        ExecutionChoice(1),
        ExecutionChoice(3),
        ExecutionChoice(2, 2),
    ],
)
def test_a_choice_is_a_strategy_like_any_other(monkeypatch, choice):
    monkeypatch.setattr(executions.devices, "workers", jax.devices)
    algorithm, setup, key = dense_problem(None)
    expected, found = (
        compiled(lambda setup, how=how: fs.run(algorithm, setup, key, execution=how)[0])(setup)
        for how in (fs.execution.vmapped(), choice.execution())
    )
    # Sums of 8 clients in another order: a few units in the last place of float32.
    np.testing.assert_allclose(found.server.params, expected.server.params, rtol=1e-6)


def test_a_choice_for_more_devices_than_there_are_is_refused(monkeypatch):
    monkeypatch.setattr(executions.devices, "workers", lambda: jax.devices()[:1])
    with pytest.raises(ValueError, match="num_devices is 2; expected at most 1"):
        ExecutionChoice(4, 2).execution()


def test_stored_choices_are_found_by_what_they_hold_for(tmp_path):
    path = tmp_path / "folder" / "executions.json"
    first, second = {"batch_size": 1, "parameters": [(2, 3)]}, {"batch_size": 2}
    assert executions.stored(path, first) is None
    executions.store(path, first, [executions.Measured(ExecutionChoice(4), 1.0, 2.0, 3)])
    executions.store(
        path, second, [executions.Measured(ExecutionChoice(2, 2, "im2col"), 1.0, 2.0, 3)]
    )
    assert executions.stored(path, first) == ExecutionChoice(4)
    assert executions.stored(path, second) == ExecutionChoice(2, 2, "im2col")
    executions.store(
        path, first, [executions.Measured(ExecutionChoice(1), 1.0, 2.0, 3)]
    )  # measured again
    assert executions.stored(path, first) == ExecutionChoice(1)
    assert len(json.loads(path.read_text())) == 2


@pytest.mark.parametrize("text", ["{", '[{"choice": 1}]', '{"a": 1}'])
def test_a_file_of_something_else_is_refused(tmp_path, text):
    (tmp_path / "executions.json").write_text(text)
    with pytest.raises(ValueError, match="is damaged"):
        executions.stored(tmp_path / "executions.json", {"batch_size": 1})


@pytest.mark.slow
def test_descriptions_differ_where_times_do():
    problem = image_problem(models.auto, batched=True)
    base = executions.describe(problem, 3)
    assert base["parameters"] == [list(x.shape[1:]) for x in jax.tree.leaves(problem.setup.params)]
    assert (base["replicas"], base["cohort_size"], base["client_state"]) == (2, 4, False)
    assert executions.describe(problem._replace(algorithm=fs.scaffold(0.1)), 3)["client_state"]
    assert executions.describe(image_problem(models.auto), 3)["replicas"] == 1
    assert executions.describe(problem, 4) != base


@pytest.mark.slow
def test_measure_command_measures_each_kind_once_and_run_uses_it(tmp_path, monkeypatch):
    monkeypatch.setattr(executions.devices, "workers", lambda: jax.devices()[:1])
    path = tmp_path / "executions.json"
    names = [name for name, _ in run_measure(resolve(tiny()), path)]
    assert names == ["fedavg", "scaffold"]  # fedprox keeps no client state either
    used, original = [], ExecutionChoice.execution
    monkeypatch.setattr(
        ExecutionChoice, "execution", lambda self: used.append(self) or original(self)
    )
    study = tiny(output=tmp_path / "run")
    first = run.compare(resolve(study), measured_files=[path])
    assert len(used) == 3
    asked = tiny(algorithms=("scaffold",), output=tmp_path / "other", execution="sequential")
    plain = run.compare(
        resolve(asked), measured_files=[path]
    )  # an execution that was asked for is kept
    assert len(used) == 3
    recorded = read(tmp_path / "run/config.json").execution.measured
    assert list(recorded) == list(ALGORITHMS)
    assert all(isinstance(choice, MeasuredExecution) for choice in recorded.values())
    # A later measurement does not change a run that is there, nor its repetition.
    path.unlink()
    again = run.compare(resolve(study), measured_files=[path])
    pd.testing.assert_frame_equal(again.history, first.history)
    other = tiny(output=tmp_path / "run", measured={"fedavg": MeasuredExecution(7)})
    with pytest.raises(ValueError, match=r"fedavg was executed as .* there and 7x1:auto is given"):
        run.compare(resolve(other))
    # The same runs up to the order of float32 sums, which 3 rounds amplify a little.
    same = first.history.query("algorithm == 'scaffold'")
    np.testing.assert_allclose(same["value"], plain.history["value"], rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("per_seed", [False, True])
def test_a_tuned_lowering_is_used(tmp_path, monkeypatch, per_seed):
    study = tiny(
        model="digits_cnn", algorithms=("fedavg",), rounds=1, seeds=1,
        partition_per_seed=per_seed, output=tmp_path / "run",
    )  # fmt: skip
    monkeypatch.setattr(executions, "stored", lambda path, seen: ExecutionChoice(1, 1, "canonical"))
    built = []
    original = problem.model_of
    monkeypatch.setattr(
        problem, "model_of", lambda *parts: built.append(parts[-1]) or original(*parts)
    )
    run.compare(resolve(study), measured_files=[tmp_path / "executions.json"])
    # The first seed's own setup is made once, and checked and run.
    assert built == [models.auto, *[models.canonical] * (2 if per_seed else 1)]


@pytest.mark.slow
def test_measure_on_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.chdir(tmp_path)
    typed = "--algorithms fedavg --cohort-size 2 --seeds 1 --model softmax_regression".split()
    assert main(["measure", *typed]) == 0
    assert "convolutions" in capsys.readouterr().out
    assert len(json.loads((tmp_path / ".fedjax_sim/executions.json").read_text())["choices"]) == 1
    assert not (tmp_path / "user/fedjax_sim/executions.json").exists()
    assert main(["measure", "--cohort-size", "0"]) == 2
    assert "--cohort-size is 0" in capsys.readouterr().err
