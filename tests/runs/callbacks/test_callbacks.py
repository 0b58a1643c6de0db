"""Callbacks: events, early stopping, best models, limits, logs, also over resumed calls."""

import csv
import dataclasses
import functools
import json
import re
import signal
import struct
import sys
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_runs
from call_records import records
from sweep_problems import quadratic_trial

import fedjax_sim as fs
from fedjax_sim import callbacks
from fedjax_sim.runs import simulation as simulating
from fedjax_sim.runs.events import Event
from fedjax_sim.runs.storage.store import RunFolder, claim

SETUP = quadratic_trial(num_seeds=2, num_rounds=8).setup
KEYS = jax.random.split(jax.random.key(1), 2)


def bump(params):
    """A metric that rises with the norm of the model until it is 1 and falls then."""
    size = jnp.abs(params).max()
    return {"score": -((size - 0.3) ** 2), "size": size}


def go(directory=None, **options):
    setup = fs.Setup(SETUP.task, SETUP.timeline, SETUP.params, bump)
    return fs.simulate(fs.fedavg(0.1), setup, KEYS, **records(folder=directory, **options))


@pytest.fixture(scope="module")
def whole():
    return go()


def test_events_have_every_evaluation(whole, monkeypatch):
    """Those of a segment's last evaluation have the models: after rounds 1, 5 and 8."""
    monkeypatch.setattr(simulating, "stride", lambda *_, **__: 4)
    events = []
    result = go(callbacks=[events.append], eval_initial=True)
    assert [event.round for event in events] == list(range(9))
    assert [e.round for e in events if e.params is not None] == [0, 1, 5, 8]
    scores = np.stack([event.metrics["score"] for event in events], axis=1)
    np.testing.assert_array_equal(scores, result.history.metrics["score"])
    np.testing.assert_array_equal(scores[:, 1:], whole.history.metrics["score"])
    np.testing.assert_array_equal(events[0].params, SETUP.params)
    assert events[0].metrics["time"].tolist() == events[0].metrics["local_steps"].tolist() == [0, 0]
    frame = result.to_frame()
    assert frame.query("round == 0").metric.nunique() == 4


def test_stopping_early_also_when_resumed(tmp_path, whole):
    means = whole.history.metrics["score"].mean(0)
    best = int(means.argmax())
    assert 0 < best < 5
    stop = callbacks.EarlyStopping("score", patience=2, mode="max")
    result = go(tmp_path, callbacks=[stop])
    assert (result.rounds_done, result.stopped, result.interrupted) == (best + 3, True, False)
    again = go(tmp_path, callbacks=[callbacks.EarlyStopping("score", patience=2, mode="max")])
    assert (again.rounds_done, again.stopped, again.history) == (best + 3, True, None)
    rest = go(tmp_path, callbacks=[callbacks.EarlyStopping("score", patience=20, mode="max")])
    assert (rest.rounds_done, rest.stopped) == (8, False)
    np.testing.assert_array_equal(rest.models(), whole.models())
    # The same object serves another run, which begins with nothing.
    assert go(callbacks=[stop]).rounds_done == best + 3


@pytest.mark.parametrize("interrupted_after", [None, 3])
def test_equal_values_before_and_after_an_interruption_are_no_improvement(
    tmp_path, interrupted_after
):
    """A float32 is compared with what was written of it: 0.1, not 0.10000000149."""
    constant = fs.Setup(
        SETUP.task, SETUP.timeline, SETUP.params, lambda w: {"accuracy": 0.1 + 0 * w.sum()}
    )

    def stop_there(event):
        return "interrupt" if event.round == interrupted_after and not event.replayed else None

    def run(*others):
        stop = callbacks.EarlyStopping("accuracy", patience=4)
        return fs.simulate(
            fs.fedavg(0.1), constant, KEYS, **records(folder=tmp_path, callbacks=[stop, *others])
        )

    first = run(stop_there)
    result = first if interrupted_after is None else run()
    assert (result.rounds_done, result.stopped) == (5, True)


def test_the_best_models_are_kept_over_an_interruption(tmp_path, whole):
    def interrupt(event):
        if event.round == 3:
            signal.raise_signal(signal.SIGINT)

    assert go(tmp_path, callbacks=[callbacks.BestModel("score", mode="max"), interrupt]).interrupted
    best = callbacks.BestModel("score", mode="max")
    events = []
    go(tmp_path, callbacks=[best, events.append])
    assert [event.replayed for event in events] == 3 * [True] + 5 * [False]
    scores = whole.history.metrics["score"]
    models = RunFolder(tmp_path).models("best")
    assert models.rounds == (scores.argmax(1) + 1).tolist()
    np.testing.assert_array_equal(models.metrics["score"], scores.max(1))
    np.testing.assert_array_equal(best.models[""].params, models.params)
    size = jax.vmap(lambda params: bump(params)["score"])(models.params)
    np.testing.assert_allclose(size, scores.max(1), rtol=1e-6)
    last = RunFolder(tmp_path).models()
    np.testing.assert_array_equal(last.params, whole.models())
    assert (last.seeds, last.rounds) == (["0", "1"], [8, 8])


def test_a_run_whose_first_evaluation_is_later_than_the_last_one_of_another():
    stop, best = callbacks.EarlyStopping("loss", patience=1), callbacks.BestModel("loss")
    first = Event("", ["0"], 5, 5, {"loss": np.array([1.0])}, None, False, np.ones(1))
    other = first._replace(round=10, num_rounds=20, metrics={"loss": np.array([2.0])})
    assert [stop(event) for event in (first, other)] == [None, None]
    for event in (first, other):
        best(event)
    assert best.models[""].rounds == [10]


def test_best_models_of_another_metric_are_refused(tmp_path):
    """Also while a resumed run replays its evaluations, without another BestModel."""
    claim(tmp_path / "run.json", {"replicas": ["0"]})
    metrics = {"loss": np.ones(1), "score": np.ones(1)}
    event = Event("", ["0"], 1, 3, metrics, tmp_path, False, np.zeros((1, 2)))
    callbacks.BestModel("loss")(event)
    for replayed in (False, True):
        with pytest.raises(ValueError, match="metric is 'score'; expected loss, the metric of"):
            callbacks.BestModel("score", mode="max")(event._replace(replayed=replayed))
    assert RunFolder(tmp_path).models("best").metrics == {"loss": [1.0]}


def test_best_models_of_another_mode_are_refused(tmp_path):
    """The model with the least value would stay the best one, whatever comes later."""
    claim(tmp_path / "run.json", {"replicas": ["0"]})
    event = Event("", ["0"], 1, 3, {"loss": np.ones(1)}, tmp_path, False, np.zeros((1, 2)))
    callbacks.BestModel("loss")(event)
    callbacks.BestModel("loss", mode="min")(event._replace(replayed=True))
    for replayed in (False, True):
        with pytest.raises(ValueError, match=r"mode is 'max'; expected 'min', that of best\.npz"):
            callbacks.BestModel("loss", mode="max")(event._replace(replayed=replayed))


def test_best_models_of_seeds_by_different_metrics_are_refused(tmp_path):
    """Seeds with setups of their own have files of their own, of calls with other options."""

    def one(seed):
        params = jax.tree.map(lambda x: x[0], SETUP.params)
        return fs.Setup(SETUP.task, SETUP.timeline, params, bump)

    def interrupt(event):
        return "interrupt" if (event.seeds, event.round) == (["0"], 8) else None

    for metric, others in (("score", [interrupt]), ("size", [])):
        best = callbacks.BestModel(metric, mode="max")
        options = records(folder=tmp_path, callbacks=[best, *others])
        fs.compare({"a": fs.fedavg(0.1)}, one, KEYS, **options)
    error = "of seed 0 are those by score max, and of seed 1 by size max; expected one metric"
    with pytest.raises(ValueError, match=error):
        fs.load(tmp_path).models(which="best")


def test_rounds_whose_models_are_gone_are_named(tmp_path):
    """A run that went on without it: the best of all evaluations may be among those rounds."""
    claim(tmp_path / "run.json", {"replicas": ["0"]})
    best, none = callbacks.BestModel("loss"), np.zeros((1, 2))
    for round, loss in ((1, 0.5), (2, 3.0), (3, 2.0), (4, 1.0)):
        event = Event("", ["0"], round, 4, {"loss": np.array([loss])}, tmp_path, round < 3, none)
        if round == 3:
            with pytest.warns(UserWarning, match="best of the rounds after 2: the run was without"):
                best(event)
        else:
            best(event)
    assert best.models[""].rounds == [4]


def test_an_interruption_before_the_first_round(tmp_path, whole):
    def interrupt(event):
        return "interrupt" if event.round == 0 and not event.replayed else None

    first = go(tmp_path, callbacks=[interrupt], eval_initial=True)
    assert (first.interrupted, first.rounds_done) == (True, 0)
    result = go(tmp_path, eval_initial=True)
    frame = result.to_frame().query("metric == 'score'")
    assert frame.query("seed == 0")["round"].tolist() == list(range(9))
    np.testing.assert_array_equal(result.models(), whole.models())


@pytest.mark.slow
def test_an_interruption_before_the_first_round_keeps_the_values_of_clients(tmp_path):
    def values(params):
        return {"per_client/size": abs(params), "per_client/num_examples": jnp.ones(2, jnp.int32)}

    def interrupt(event):
        return "interrupt" if event.round == 0 and not event.replayed else None

    setup = fs.Setup(SETUP.task, SETUP.timeline[:2], SETUP.params, values)
    run = functools.partial(
        fs.simulate, fs.fedavg(0.1), setup, KEYS, options=fs.Options(eval_initial=True)
    )
    assert run(storage=tmp_path, callbacks=[interrupt]).rounds_done == 0
    assert sorted(set(run(storage=tmp_path).per_client()["round"])) == [0, 1, 2]


@pytest.mark.slow
def test_an_initial_evaluation_beside_probes_of_clients(tmp_path):
    """The initial model has no visit, so the probe's rows begin with round 1."""
    probes = fs.Probes(client={"moved": lambda visit: jnp.abs(visit.upload[0]).sum()})
    result = go(tmp_path, eval_initial=True, probes=probes)
    for frame in (result.to_frame(), go(eval_initial=True, probes=probes).to_frame()):
        frame = frame.query("seed == 0")
        assert frame.query("metric == 'moved'")["round"].tolist() == list(range(1, 9))
        assert frame.query("metric == 'score'")["round"].tolist() == list(range(9))


def test_a_time_limit_interrupts_a_comparison(monkeypatch):
    limit = callbacks.TimeLimit(100)
    now = callbacks.time_limit.time.monotonic()
    clock = types.SimpleNamespace(monotonic=lambda: now + 200)
    setup = fs.Setup(SETUP.task, SETUP.timeline, SETUP.params, bump)
    algorithms = {"first": fs.fedavg(0.1), "second": fs.fedavg(0.1)}
    assert not fs.compare(algorithms, setup, KEYS, callbacks=[limit]).interrupted
    monkeypatch.setattr(callbacks.time_limit, "time", clock)
    result = fs.compare(algorithms, setup, KEYS, callbacks=[limit])
    assert result.interrupted
    assert [parts[0].rounds_done for parts in result.simulations.values()] == [1]


@pytest.mark.parametrize("with_signal", [False, True])
def test_an_interrupt_in_the_last_rounds_ends_a_comparison(with_signal):
    def interrupt(event):
        if event.round < event.num_rounds or event.name != "second":
            return None
        if with_signal:
            signal.raise_signal(signal.SIGINT)
            return None
        return "interrupt"

    setup = fs.Setup(SETUP.task, SETUP.timeline, SETUP.params, bump)
    algorithms = {name: fs.fedavg(0.1) for name in ("first", "second", "third")}
    result = fs.compare(algorithms, setup, KEYS, callbacks=[interrupt])
    assert result.interrupted
    assert [parts[0].rounds_done for parts in result.simulations.values()] == [8, 8]
    last = result.simulations["second"][0]
    assert (last.interrupted, last.interrupt_requested) == (False, True)
    del algorithms["third"]  # nothing is missing
    assert not fs.compare(algorithms, setup, KEYS, callbacks=[interrupt]).interrupted


def test_a_comparison_goes_on_after_a_stop():
    names = []

    def stop(event):
        names.append(event.name)
        return "stop" if event.name == "first" else None

    setup = fs.Setup(SETUP.task, SETUP.timeline, SETUP.params, bump)
    algorithms = {"first": fs.fedavg(0.1), "second": fs.fedavg(0.1)}
    result = fs.compare(algorithms, setup, KEYS, callbacks=[stop])
    assert [parts[0].rounds_done for parts in result.simulations.values()] == [1, 8]
    assert names == ["first"] + 8 * ["second"]


@pytest.mark.slow
def test_seeds_with_setups_of_their_own(tmp_path):
    """Their best models and their progress are those of one algorithm."""

    def own(seed):
        params = jax.tree.map(lambda x: x[seed], SETUP.params)
        return fs.Setup(SETUP.task, SETUP.timeline, params, bump)

    best, seen = callbacks.BestModel("score", mode="max"), []
    options = {"callbacks": [best], "folder": tmp_path}
    for _ in range(2):  # the second call finds both seeds finished
        fs.compare({"a": fs.fedavg(0.1)}, own, KEYS, **records(progress=seen.append, **options))
        np.testing.assert_array_equal(
            best.models["a"].params, fs.load(tmp_path).models(which="best").params
        )
        assert best.models["a"].seeds == ["0", "1"]
    fractions = [progress.fraction for progress in seen]
    assert fractions == [*np.arange(1, 17) / 16, 0.5, 1.0]


@pytest.mark.slow
def test_a_sweep_passes_on_finished_runs(tmp_path):
    events = []
    result = small_runs.sweep(tmp_path, callbacks=[events.append], keep_models=True)
    names = [f"lr={run.configuration['lr']}" for run in result.runs]
    assert sorted(names) == sorted(event.name for event in events if event.round == 8)
    assert [event.round for event in events] == 4 * [2, 4, 6, 8]
    assert (events[-1].name, events[-1].seeds) == ("lr=0.1", ["1"])
    np.testing.assert_array_equal(events[-1].params[0], result.runs[-1].model)
    with pytest.raises(ValueError, match="BestModel, which needs the model of every evaluation"):
        small_runs.sweep(None, callbacks=[callbacks.BestModel("norm", mode="max")])
    assert small_runs.sweep(tmp_path, callbacks=[events.append], keep_models=True).resumed == 4
    assert len(events) == 16

    interrupted = small_runs.sweep(None, callbacks=[lambda event: "interrupt"])
    assert (interrupted.interrupted, len(interrupted.runs)) == (True, 2)


def test_logs(tmp_path):
    logs = [callbacks.CsvLog(tmp_path / "a/log.csv"), callbacks.TensorBoard(tmp_path / "board")]
    go(callbacks=logs)
    logs[1].close()
    with (tmp_path / "a/log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 16
    assert list(rows[0]) == ["algorithm", "seed", "round", "time", "local_steps", "score", "size"]
    assert [row["seed"] for row in rows[:2]] == ["0", "1"]
    (events,) = (tmp_path / "board/1").iterdir()
    assert events.stat().st_size > 1000


def scalars_in(folder) -> dict[tuple[str, int], float]:
    """The values in TensorBoard's files: records of length, checksum, event, checksum."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    values = {}
    for path in folder.iterdir():
        content, at = path.read_bytes(), 0
        while at < len(content):
            (size,) = struct.unpack("<Q", content[at : at + 8])
            event = event_pb2.Event.FromString(content[at + 12 : at + 12 + size])
            values |= {(v.tag, event.step): v.simple_value for v in event.summary.value}
            at += size + 16
    return values


@pytest.mark.slow
def test_tensorboard_has_an_evaluation_soon_after_it(tmp_path):
    """Before, what a killed run had evaluated last was lost, and not logged when it resumed."""
    log = callbacks.TensorBoard(tmp_path)
    losses = {2: 0.5, 4: 0.25, 6: 0.125}
    for round, loss in losses.items():
        log(Event("FedAvg", ["0"], round, 9, {"loss": np.array([loss])}, None, False, None))
        time.sleep(0.2)
    end = time.monotonic() + 20
    while len(scalars_in(tmp_path / "FedAvg-0")) < 3 and time.monotonic() < end:
        time.sleep(0.2)
    assert scalars_in(tmp_path / "FedAvg-0") == {("loss", at): x for at, x in losses.items()}
    log.close()


def test_csv_log_refuses_a_file_without_a_column_of_a_metric(tmp_path):
    """The metric would be lost silently."""
    log = callbacks.CsvLog(tmp_path / "log.csv")
    log(Event("", ["0"], 1, 9, {"loss": np.ones(1), "size": np.ones(1)}, None, False, None))
    log(Event("", ["0"], 2, 9, {"loss": np.ones(1)}, None, False, None))  # others stay empty
    before = (tmp_path / "log.csv").read_text()
    metrics = {"loss": np.ones(1), "score": np.ones(1)}
    with pytest.raises(ValueError, match=r"log\.csv, whose columns lack score; expected a file"):
        log(Event("", ["0"], 3, 9, metrics, None, False, None))
    assert (tmp_path / "log.csv").read_text() == before


@pytest.mark.parametrize("kept", [12, 45])
def test_a_torn_row_of_a_csv_log_is_removed(tmp_path, kept):
    """A full disk or a power cut leaves a part of a row, and perhaps of its last number."""
    path = tmp_path / "log.csv"
    go(callbacks=[callbacks.CsvLog(path)])
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    path.write_bytes(whole[:kept])
    before = b"".join(lines[: whole[:kept].count(b"\n")])
    go(callbacks=[callbacks.CsvLog(path)])
    assert path.read_bytes() == before + (whole.removeprefix(lines[0]) if before else whole)


def test_direction_of_names_in_capitals():
    """The best model of "Test Loss" has the smallest one."""
    best = callbacks.BestModel("Test Loss")
    for round, loss in enumerate([3.0, 1.0, 2.0], start=1):
        metrics, params = {"Test Loss": np.array([loss])}, np.array([float(round)])
        best(Event("", ["0"], round, 9, metrics, None, False, params))
    assert best.models[""].rounds == [2]


class _Service:
    """Stands for the package of a tracking service and notes its calls."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        def call(*arguments, **options):
            self.calls.append((name, arguments, options))
            return None if name in ("get_experiment_by_name", "search_runs") else self

        return call


def test_calls_of_tracking_services(monkeypatch):
    service = _Service()
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=service.init))
    log = callbacks.WandB("project", group="group", mode="offline")
    go(callbacks=[log])
    log.close()
    names = [name for name, _, _ in service.calls]
    assert [names.count(name) for name in ("init", "log", "finish")] == [2, 16, 2]
    assert [options["name"] for name, _, options in service.calls if name == "init"] == ["0", "1"]
    assert service.calls[-3][2] == {"step": 8}

    client = _Service()
    client.info = types.SimpleNamespace(run_id="r")
    mlflow = types.SimpleNamespace(MlflowClient=lambda uri: client)
    entities = types.SimpleNamespace(Metric=lambda *values: values, Param=lambda *pair: pair)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    log = callbacks.MLflow("experiment")
    go(callbacks=[log])
    log.close()
    batches = [
        options["metrics"]
        for name, _, options in client.calls
        if name == "log_batch" and "metrics" in options
    ]
    assert len(batches) == 16
    assert [metric[0] for metric in batches[0]] == ["time", "local_steps", "score", "size"]
    assert batches[-1][0][2:] == (0, 8)


@pytest.mark.parametrize(
    ("ended", "code", "status"),
    [("finished", 0, "FINISHED"), ("interrupted", 1, "KILLED"), ("failed", 1, "FAILED")],
)
def test_services_are_told_how_a_run_ended(monkeypatch, ended, code, status):
    service, client = _Service(), _Service()
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=service.init))
    client.info = types.SimpleNamespace(run_id="r")
    entities = types.SimpleNamespace(Metric=lambda *values: values, Param=lambda *pair: pair)
    mlflow = types.SimpleNamespace(MlflowClient=lambda uri: client)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    logs = callbacks.WandB("project"), callbacks.MLflow("experiment")
    assert "create_experiment" not in [name for name, _, _ in client.calls]  # nothing ran yet
    for log in logs:
        log(Event("FedAvg", ["0"], 2, 9, {"loss": np.array([0.5])}, None, False, None))
        log.close(ended)
        log.close("failed")  # again: nothing is left to be ended
    assert service.calls[-1] == ("finish", (), {"exit_code": code})
    assert client.calls[-1] == ("set_terminated", ("r", status), {})
    assert "create_experiment" in [name for name, _, _ in client.calls]
    for log in logs:  # an algorithm that did all rounds, before the next one failed
        log(Event("FedAvg", ["0"], 9, 9, {"loss": np.array([0.5])}, None, False, None))
        log.close(ended)
    assert service.calls[-1] == ("finish", (), {"exit_code": 0})
    assert client.calls[-1] == ("set_terminated", ("r", "FINISHED"), {})


def test_logs_of_two_calls_share_an_experiment_that_neither_found(monkeypatch):
    """MLflow refuses a second experiment of one name, which ended the second call with an error."""
    service = _Runs()
    service.experiment = None
    entities = types.SimpleNamespace(Metric=lambda *values: values, Param=lambda *pair: pair)
    mlflow = types.SimpleNamespace(MlflowClient=lambda uri: service)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    logs = callbacks.MLflow("federated"), callbacks.MLflow("federated")
    for log, rate in zip(logs, (0.1, 0.2), strict=True):
        fs.simulate(fs.fedavg(rate), SETUP, KEYS, callbacks=[log])
    assert len(service.runs) == 2 * len(logs)


class _Runs:
    """Stands for W&B and for MLflow: keeps runs by identifier, with their parameters and steps."""

    def __init__(self):
        self.runs: dict[str, dict] = {}

    # W&B
    def init(self, *, id, config, **options):
        resumed = id in self.runs
        run = self.runs.setdefault(id, {"config": config, "steps": []})
        log = lambda values, step: run["steps"].append(step)  # noqa: E731
        return types.SimpleNamespace(log=log, finish=lambda exit_code: None, resumed=resumed)

    # MLflow
    experiment: str | None = "1"

    def get_experiment_by_name(self, name):
        return self.experiment and types.SimpleNamespace(experiment_id=self.experiment)

    def create_experiment(self, name):
        assert self.experiment is None
        self.experiment = "1"
        return "1"

    def search_runs(self, experiments, where):
        key = re.fullmatch(r"tags\.fedjax_sim_run = '([0-9a-f]{16})'", where)[1]
        return [self._found(key)] if key in self.runs else []

    def create_run(self, experiment, tags, run_name):
        self.runs[tags["fedjax_sim_run"]] = {"config": {}, "steps": []}
        return self._found(tags["fedjax_sim_run"])

    def _found(self, key):
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=key))

    def log_batch(self, run, metrics=(), params=()):
        self.runs[run]["config"].update(params)
        self.runs[run]["steps"] += [metric[3] for metric in metrics[:1]]

    def update_run(self, run, status):
        assert status == "RUNNING"  # again

    def set_terminated(self, run, status):
        pass


@pytest.fixture(params=["wandb", "mlflow"])
def tracked(request, monkeypatch):
    """The runs that a service has, a function that makes its callback, and one that reads a value
    of the logged configuration."""
    service = _Runs()
    entities = types.SimpleNamespace(Metric=lambda *values: values, Param=lambda *pair: pair)
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=service.init))
    client = types.SimpleNamespace(MlflowClient=lambda uri: service)
    monkeypatch.setitem(sys.modules, "mlflow", client)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    make = callbacks.WandB if request.param == "wandb" else callbacks.MLflow

    def value(config: dict, *names: str) -> str:
        if request.param == "mlflow":
            return config[".".join(names)]
        for name in names:
            config = config[name]
        return str(config)

    return service.runs, lambda: make("federated"), value


@pytest.mark.slow
def test_different_runs_do_not_share_a_tracked_run(tracked, tmp_path):
    """Names and folders are equal; rates, seeds' keys, data's order or descriptions differ."""
    runs, make, value = tracked
    other = dataclasses.replace(SETUP, eval_every=4)
    calls = [
        (fs.fedavg(0.1), SETUP, KEYS, {}),
        (fs.fedavg(0.2), SETUP, KEYS, {}),
        (fs.fedavg(0.1), SETUP, KEYS[::-1], {}),
        (fs.fedavg(0.1), other, KEYS, {}),
        (fs.fedavg(0.1), SETUP, KEYS, {"config": {"cohort": 3}}),
    ]
    for count, (algorithm, setup, keys, options) in enumerate(calls, start=1):
        fs.simulate(algorithm, setup, keys, **records(callbacks=[make()], **options))
        assert len(runs) == 2 * count  # one per seed
    fs.simulate(fs.fedavg(0.1), SETUP, KEYS, callbacks=[make()], storage=tmp_path)
    assert len(runs) == 2 * len(calls)  # a folder is no part of a run's identity
    configs = [run["config"] for run in runs.values()]
    rates = [value(config, "spec", "arguments", "lr") for config in configs]
    assert rates == ["0.1"] * 2 + ["0.2"] * 2 + ["0.1"] * 6
    identity = json.loads((tmp_path / "run.json").read_text())
    assert value(configs[0], "data") == identity["data"]
    assert value(configs[-1], "config", "cohort") == "3"
    assert value(configs[0], "environment", "versions", "jax") == jax.__version__


def test_a_resumed_run_continues_its_tracked_run(tracked, tmp_path):
    """Steps are rounds; a run that the service lost, or never had, gets the earlier ones, too."""
    runs, make, _ = tracked
    stop = lambda event: "interrupt" if event.round == 4 else None  # noqa: E731
    options = {"folder": tmp_path, "segment_seconds": 1e-9}
    fs.simulate(fs.fedavg(0.1), SETUP, KEYS, **records(callbacks=[make(), stop], **options))
    assert [run["steps"] for run in runs.values()] == [[1, 2, 3, 4]] * 2
    fs.simulate(fs.fedavg(0.1), SETUP, KEYS, **records(callbacks=[make()], **options))
    assert [run["steps"] for run in runs.values()] == [[*range(1, 9)]] * 2
    runs.clear()
    folder = tmp_path / "other"
    options["folder"] = folder
    fs.simulate(fs.fedavg(0.1), SETUP, KEYS, **records(callbacks=[stop], **options))
    fs.simulate(fs.fedavg(0.1), SETUP, KEYS, **records(callbacks=[make()], **options))
    assert [run["steps"] for run in runs.values()] == [[*range(1, 9)]] * 2


@pytest.mark.slow
def test_runs_of_comparisons_and_sweeps_are_tracked_apart(tracked):
    runs, make, value = tracked
    algorithms = {"a, lr=0.1": fs.fedavg(0.1), "it's b": fs.fedavg(0.2)}
    fs.compare(algorithms, SETUP, KEYS, callbacks=[make()])
    assert len(runs) == 4
    small_runs.sweep(None, callbacks=[make()])
    assert len(runs) == 4 + 4  # two rates, two seeds
    rates = [value(run["config"], "config", "lr") for run in list(runs.values())[4:]]
    assert sorted(rates) == ["0.05", "0.05", "0.1", "0.1"]


@pytest.mark.slow
def test_callbacks_ignore_rounds_that_do_not_measure_a_metric(tmp_path):
    slow = fs.evaluation.at_rounds(bump, 4)
    evaluator = fs.evaluation.merge_evaluators(test=bump, slow=slow)
    setup = fs.Setup(SETUP.task, SETUP.timeline, SETUP.params, evaluator)

    def watched(folder, *more):
        best, stop = (
            callbacks.BestModel("slow/size", mode="max"),
            callbacks.EarlyStopping("slow/size", 2, mode="max"),
        )
        log = callbacks.CsvLog(folder / "log.csv")
        events = []
        watching = [best, stop, log, events.append, *more]
        result = fs.simulate(fs.fedavg(0.1), setup, KEYS, callbacks=watching, storage=folder)
        return result, best, events

    result, best, events = watched(tmp_path / "whole")
    sizes = result.history.metrics["slow/size"]
    assert (result.rounds_done, sizes[:, 3].min() > 0) == (8, True)
    assert best.models[""].rounds == [4 * (1 + (x[7] > x[3])) for x in sizes]
    assert [event.measured("slow/size") for event in events] == 2 * [*3 * [False], True]
    assert not any("slow/evaluated" in event.metrics for event in events)
    assert np.isnan(events[0].mean("slow/size"))
    assert events[0].measured("test/size")
    with (tmp_path / "whole/log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["slow/size"] != "" for row in rows[::2]] == 2 * [*3 * [False], True]

    # A resumed run replays rounds before the first value of the metric.
    first, _, _ = watched(
        tmp_path / "resumed", lambda event: "interrupt" if event.round == 2 else None
    )
    assert first.interrupted
    again, best_again, _ = watched(tmp_path / "resumed")
    assert again.rounds_done == 8
    assert best_again.models[""].rounds == best.models[""].rounds


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        ("loss", "callbacks has 'loss'; expected functions of an Event"),
        (lambda event: "end", "which returned 'end'; expected None, 'stop' or 'interrupt'"),
        (callbacks.EarlyStopping("loss", 2), "metric is 'loss'; expected one of time, local_steps"),
        (callbacks.BestModel("loss"), "metric is 'loss'; expected one of time, local_steps, score"),
    ],
)
def test_bad_callbacks_are_refused(callback, message):
    with pytest.raises(ValueError, match=message):
        go(callbacks=[callback])


def test_a_later_stop_does_not_hide_an_interrupt_of_the_same_segment(monkeypatch):
    """Rounds 2 to 5 are one segment; a run that is only stopped would not be continued."""
    monkeypatch.setattr(simulating, "stride", lambda *_, **__: 4)
    answers = {3: "interrupt", 4: "stop"}
    result = go(callbacks=[lambda event: answers.get(event.round)])
    assert (result.rounds_done, result.interrupted, result.stopped) == (5, True, False)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: callbacks.EarlyStopping("loss", 0), "patience is 0; expected at least 1"),
        (lambda: callbacks.EarlyStopping("loss", 1, mode="up"), "mode is 'up'; expected 'min', "),
        (lambda: callbacks.TimeLimit(0), "seconds is 0; expected a positive number"),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("options", [{"patience": 2.5}, {"patience": 1, "min_delta": -0.1}])
def test_early_stopping_refuses_fractions_of_evaluations_and_negative_changes(options):
    with pytest.raises(ValueError, match=next(reversed(options))):
        callbacks.EarlyStopping("loss", **options)


def test_a_model_that_is_not_finite_is_never_the_best():
    """All clients of a model of NaN may have the same accuracy, so that their gap is 0."""
    best = fs.callbacks.BestModel("gap", mode="min")
    for done, gaps, models in ((1, [0.5, 0.5], [1.0, 2.0]), (2, [0.0, 0.25], [np.nan, 3.0])):
        params = {"w": np.array(models, np.float32), "n": np.array([1, 1])}
        metrics = {"gap": np.array(gaps)}
        best(fs.callbacks.Event("a", ["0", "1"], done, 9, metrics, None, False, params))
    kept = best.models["a"]
    assert (kept.rounds, kept.metrics["gap"]) == ([1, 2], [0.5, 0.25])
    np.testing.assert_array_equal(kept.params["w"], np.array([1.0, 3.0], np.float32))
