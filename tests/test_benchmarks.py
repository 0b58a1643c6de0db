"""The benchmarks' arithmetic: floors, ratios, tables; that what is compared does the same work."""

import json
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fs
from benchmarks import __main__ as command
from benchmarks import (
    accelerator,
    asynchrony,
    candidates,
    cells,
    compare,
    composite,
    evaluation,
    floors,
    generated,
    hypergradients,
    jobs,
    memory,
    methods,
    offload,
    products,
    report,
    rounds,
    startup,
    sweep,
)
from benchmarks.floors import Machine
from benchmarks.jobs import Job, Options
from benchmarks.report import Case
from benchmarks.workloads import WORKLOADS, Workload, make_data
from fedjax_sim import models

TINY = Workload("logistic", (5,), 1, 6, 4, 8, 4, 2, 6, flops=20.0, lr=0.1)
DEFAULTS = Options(tuple(WORKLOADS), None, 1.0, {})


def case(seconds: dict[str, float], **options) -> Case:
    rows = {name: {"seconds": value} for name, value in seconds.items()}
    return Case("W", "title", "a round", rows, "ours", **options)


@pytest.mark.parametrize("name", WORKLOADS)
def test_workload_counts_the_parameters_of_its_model(name):
    model, task = candidates.problem(WORKLOADS[name]._replace(clients=2, cohort=2))
    params = jax.eval_shape(model.init, jax.random.key(0))
    assert sum(x.size for x in jax.tree.leaves(params)) == WORKLOADS[name].parameters
    assert set(task.num_steps.tolist()) == {WORKLOADS[name].steps}


def test_work_of_a_round_and_its_floor():
    """By hand: 4 clients x 4 steps x 4 examples of 5 features and a label, 2 x 6 parameters."""
    assert TINY.steps_per_round == 16
    assert TINY.flops_per_round == 20 * 16 * 4
    assert TINY.bytes_per_round == 4 * (64 * 6 + 2 * 4 * 6)
    assert floors.floor(Machine(flops=1280, bytes=1e9), TINY.flops_per_round, 1) == 1
    assert floors.floor(Machine(flops=1e9, bytes=2.0), 1, TINY.bytes_per_round) == 864


@pytest.mark.slow
def test_machine_rates_are_rates():
    """A matrix product and a copy of known size; any machine lies between these bounds."""
    rates = Machine(**floors.measure(size=256, megabytes=8, seconds=0.05))
    assert 1e8 < rates.flops < 1e15
    assert 1e7 < rates.bytes < 1e14


def test_ratios():
    """Against the fastest other, and the fastest variant of each peer with a target."""
    seconds = {"ours": 2.0, "ours-1dev": 1.0, "torch-loop": 9.0, "torch-loop-1": 8.0, "jax": 5.0}
    targets = {"torch-loop": 4.5, "absent": 2.0}
    found = report.ratios(case(seconds, targets=targets))
    assert found == [("jax", 2.5, None), ("torch-loop-1", 4.0, 4.5)]
    assert report.ratios(case({"jax": 1.0})) == []
    fastest_has_a_target = case({"ours": 2.0, "jax": 4.0}, targets={"jax": 1.0})
    assert report.ratios(fastest_has_a_target) == [("jax", 2.0, 1.0)]


def test_ratios_are_between_candidates_that_do_the_same_work():
    """The stored results: a sweep of other methods, a run without derivatives, other clients."""
    compared = {}
    for part in ("composite", "hypergradients", "asynchrony"):
        path = jobs.ROOT / "benchmarks" / "results" / f"{part}.json"
        stored = json.loads(path.read_text())
        rows = {name: case["candidates"] for name, case in stored["cases"].items()}
        for one in command.PARTS[part].module.cases(rows, Machine(**stored["machine"])):
            assert report.as_json(one)["ratios"] == stored["cases"][one.name]["ratios"]
            compared[one.name] = [ratio.peer for ratio in report.ratios(one)]
    assert compared == {
        "lasso": ["loop"],
        "lowrank": ["loop"],
        "16": ["one"],
        "64": ["one"],
        "256": ["one"],
        "engine": ["eager"],
        "tick": ["eager"],
        "clients": [],
    }


def test_table():
    seconds = {"torch": 0.5, "ours": 0.1}
    text = report.table(case(seconds, targets={"torch": 4.0}, floor=0.05, local_steps=200))
    first, ours, torch, floor, ratio = text.splitlines()
    assert first == "title  (seconds a round)"
    assert ours.split() == "ours 100 ms 2.0 x floor 2,000 local steps/s".split()
    assert torch.split() == "torch 500 ms 10.0 x floor 400 local steps/s".split()
    assert floor.split() == "floor 50.0 ms".split()
    assert ratio == "  ours: 5.00 x as fast as torch (target 4 x: reached)"
    missed = report.table(case(seconds, targets={"torch": 6.0}))
    assert missed.endswith("(target 6 x: not reached)")


def test_limits():
    """A ratio up to the limit keeps it; candidates that were not measured are left out."""
    rows = {"fedsam": {"seconds": 4.0, "ratio": 2.0}, "scaffold": {"seconds": 2.6, "ratio": 1.3}}
    bounds = {"fedsam": 2.0, "scaffold": 1.15, "absent": 1.0}
    limited = Case("W", "title", "a round", rows, "", baseline="fedavg", limits=bounds)
    assert report.limits(limited) == [("fedsam", 2.0, 2.0), ("scaffold", 1.3, 1.15)]
    fedsam, scaffold = report.table(limited).splitlines()[-2:]
    assert fedsam == "  fedsam: 2.00 x fedavg (at most 2 x: kept)"
    assert scaffold == "  scaffold: 1.30 x fedavg (at most 1.15 x: exceeded)"
    stored = report.as_json(limited)
    assert stored["limits"][1] == {"candidate": "scaffold", "ratio": 1.3, "limit": 1.15}
    assert stored["ratios"] == []


def test_chart(tmp_path):
    cases = [case({"torch": 0.5, "ours": 0.1}, floor=0.05), case({"ours": 1.0}), case({"a": 2.0})]
    figure = report.chart(cases)
    assert len(figure.axes) == 3
    axes = figure.axes[0]
    assert [bar.get_width() for bar in axes.patches] == [0.1, 0.5]
    assert [text.get_text() for text in axes.texts] == ["100 ms", "500 ms"]
    ours, torch = (bar.get_facecolor() for bar in axes.patches)
    assert ours != torch
    assert axes.lines[0].get_xdata() == [0.05, 0.05]
    figure.savefig(tmp_path / "chart.png")


def test_clock_and_processor_time_are_medians_per_round(monkeypatch):
    # Differences within the calls: 1, 5 and 3 seconds, of all threads 2, 10 and 6.
    clock = iter([0.0, 9.0, 9.0, 10.0, 11.0, 11.0, 12.0, 17.0, 17.0, 20.0, 23.0, 99.0])
    processor = iter([0.0, 2.0, 10.0, 20.0, 30.0, 36.0])
    monkeypatch.setattr(jobs.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(jobs.time, "process_time", lambda: next(processor))
    measured = jobs.timed(lambda: 2, 9.0)
    assert measured == {
        "seconds": 1.5, "cpu_seconds": 3.0, "first_call_seconds": 9.0, "calls": 3
    }  # fmt: skip


def test_repeats_are_interleaved_and_summed_up():
    order = []
    values = iter([1.0, 10.0, 5.0, 20.0, 3.0, 60.0])

    def measure(job, timeout):
        assert timeout is None
        order.append(job.candidate)
        return {"seconds": next(values), "calls": 2}

    found = jobs.collect([Job("W", "a", "m"), Job("W", "b", "m")], 3, None, measure).runs
    assert order == ["a", "b"] * 3
    assert [one["seconds"] for one in found["W"]["a"]] == [1.0, 5.0, 3.0]
    assert jobs.summary(found["W"]["a"]) == {"seconds": 3.0, "calls": 2, "best_seconds": 1.0}
    assert jobs.summary(found["W"]["b"]) == {"seconds": 20.0, "calls": 2, "best_seconds": 10.0}


def test_after_the_deadline_jobs_are_left_out(monkeypatch):
    now = iter(range(100))  # two readings a job that is measured
    monkeypatch.setattr(jobs.time, "perf_counter", lambda: float(next(now)))
    given = []

    def measure(job, timeout):
        given.append(timeout)
        if job.candidate == "b":
            raise RuntimeError("out of memory")
        return {"seconds": 1.0}

    listed = [Job("W", name, "m") for name in "abc"]
    found = jobs.collect(listed, 1, 2.5, measure)
    assert found.runs == {"W": {"a": [{"seconds": 1.0}]}}
    assert found.left_out == ["W b", "W c"]
    assert given == [2.5, 0.5]
    with pytest.raises(RuntimeError, match="out of memory"):
        jobs.collect(listed, 1, None, measure)


def test_a_job_is_stopped_in_time():
    with pytest.raises(subprocess.TimeoutExpired):
        jobs.run(Job("machine", "rates", "benchmarks.floors", {"seconds": 60}), 0.2)


def test_a_job_that_fails_keeps_what_it_measured(tmp_path):
    program = (
        "def measure():\n"
        "    print('{\"a\": 1.0}')\n"
        '    print("a line that is no record")\n'
        '    raise ValueError("no luck")\n'
    )
    (tmp_path / "failing_job.py").write_text(program)
    job = Job("W", "a", "failing_job", env={"PYTHONPATH": str(tmp_path)})
    with pytest.raises(jobs.Failed, match=r"a on W failed:[\s\S]*ValueError: no luck") as failed:
        jobs.run(job, 60.0)
    assert failed.value.measured == {"a": 1.0}


def test_a_job_that_is_stopped_keeps_what_it_measured(tmp_path):
    """The last line may be cut short."""
    program = (
        "import sys, time\n"
        "def measure():\n"
        '    print(\'{"a": 1.0}\'), print(\'{"a": 1.0, "b": 2.0}\')\n'
        '    sys.stdout.write(\'{"a": 1.0, "b\')\n'
        "    time.sleep(60)\n"
    )
    (tmp_path / "slow_job.py").write_text(program)
    job = Job("W", "a", "slow_job", env={"PYTHONPATH": str(tmp_path)})
    with pytest.raises(jobs.PartlyMeasured) as stopped:
        jobs.run(job, 3.0)
    assert stopped.value.measured == {"a": 1.0, "b": 2.0}

    def measure(job, left):
        raise stopped.value

    found = jobs.collect([job], 1, time.perf_counter() + 60, measure)
    assert found.runs == {"W": {"a": [{"a": 1.0, "b": 2.0}]}}
    assert found.left_out == ["W a: the rest"]


@pytest.mark.slow
def test_a_job_runs_in_a_process_of_its_own():
    arguments = {"size": 64, "megabytes": 1, "seconds": 0.01}
    assert set(jobs.run(Job("machine", "rates", "benchmarks.floors", arguments))) == {
        "flops",
        "bytes",
    }
    with pytest.raises(RuntimeError, match="odd on W9 failed"):
        jobs.run(Job("W9", "odd", "benchmarks.floors", {"unknown": 1}))


def test_versions_of_peers_are_those_of_their_interpreters():
    found = command._peer_versions({"fedjax": sys.executable})
    assert set(found) == {"torch", "drjax", "peer fedjax"}
    assert found["peer fedjax"]["jax"] == jax.__version__
    assert command._version("no-such-package", sys.executable) == "not installed"


def test_jobs_of_the_parts():
    """By default what is installed; convolutions without the candidates that take minutes."""
    default = rounds.jobs(DEFAULTS)
    assert {("W1", "jax-vmap"), ("W2", "ours")} <= {(job.case, job.candidate) for job in default}
    assert ("W2", "jax-vmap") not in {(job.case, job.candidate) for job in default}
    named = rounds.jobs(DEFAULTS._replace(candidates=("jax-map", "ours=chunked:5@2")))
    assert {(job.case, job.candidate) for job in named} == {
        (w, c) for w in WORKLOADS for c in ("jax-map", "ours=chunked:5@2")
    }
    assert named[1].arguments["strategy"] == "chunked:5"
    assert named[1].arguments["devices"] == 2
    peer = rounds.jobs(DEFAULTS._replace(workloads=("W1",), peers={"fedjax": sys.executable}))
    assert peer[-1].module == "benchmarks.peer_fedjax"
    assert {job.case for job in sweep.jobs(DEFAULTS)} == {"W1", "W4"}
    assert [len(part.jobs(DEFAULTS)) for part in (cells, memory, startup)] == [9, 3, 1]
    assert [job.case for job in methods.jobs(DEFAULTS)] == ["W1", "W1-1dev", "W3"]
    one = methods.jobs(DEFAULTS._replace(candidates=("fedsam", "ours"), workloads=("W3", "W4")))
    assert [(job.case, job.arguments["names"]) for job in one] == [("W3", ["fedsam"])]
    only_numpy = DEFAULTS._replace(candidates=("numpy",))
    assert [len(part.jobs(only_numpy)) for part in (rounds, sweep, memory, methods)] == [0, 0, 0, 0]
    assert {job.candidate for job in cells.jobs(only_numpy)} == {"numpy"}
    engines, populations = len(asynchrony.ENGINE), len(asynchrony.NUM_CLIENTS)
    engines += len(asynchrony.EXECUTIONS)  # with another model
    assert len(asynchrony.jobs(DEFAULTS)) == engines + populations
    assert len(composite.jobs(DEFAULTS)) == 2 * (len(composite.METHODS) + 1)


@pytest.mark.slow
def test_composite_sweep_and_loop_train_the_same_models():
    grid = {"lr": [1e-4, 3e-4], "server_lr": [0.5]}
    for case in composite.ROUNDS:
        runs = composite.training(case, composite.METHODS["feddualavg"], 2)
        together = sweep.together(runs, grid).norms
        apart = sweep.one_by_one(runs, grid).norms
        assert together == pytest.approx(apart, rel=1e-5)  # summed in another order
        assert 0 < together[0, 0] != together[1, 0] > 0


@pytest.mark.slow
def test_lazy_and_eager_asynchronous_engines_train_the_same_model(monkeypatch):
    """A client's model can wait until someone asks for it."""
    tiny = asynchrony.Learned(models.mlp(5, (4,), 10), 3, 8, 0.0)
    for name, value in {"CLIENTS": 9, "COHORT": 3, "PIXELS": 5, "CASES": {"engine": tiny}}.items():
        monkeypatch.setattr(asynchrony, name, value)
    found = {name: asynchrony.engine(name, 6) for name in asynchrony.EXECUTIONS}
    # Summed in another order: a few units of single precision in a norm.
    assert found["eager"]["norm"] == pytest.approx(found["ours"]["norm"], rel=1e-5)
    assert found["ours=chunked:4"]["norm"] == pytest.approx(found["ours"]["norm"], rel=1e-5)
    assert found["eager=vmapped"]["norm"] == pytest.approx(found["ours"]["norm"], rel=1e-5)
    assert found["ours=devices"]["norm"] == pytest.approx(found["ours"]["norm"], rel=1e-5)
    assert found["eager"]["local_steps"] > found["ours"]["local_steps"] > 0


@pytest.mark.slow
def test_ours_and_plain_jax_train_the_same_model_on_full_batches():
    """One step on all of a client's examples leaves nothing to chance: equal up to rounding."""
    w = TINY._replace(cohort=6, batch=8, epochs=1)
    model, task = candidates.problem(w)
    params = model.init(jax.random.key(0))
    timeline = candidates.timeline(w, jax.random.key(0), 1)
    state, _ = fs.run(fs.fedavg(w.lr), fs.Setup(task, timeline, params), jax.random.key(1))
    mine = np.concatenate([np.ravel(x) for x in jax.tree.leaves(state.server.params)])
    x, y = make_data(w)
    plain = [{"w": jnp.zeros((5, 1)), "b": jnp.zeros(1)}]
    keys = jax.random.split(jax.random.key(2), w.cohort)
    locally = jax.vmap(lambda x, y, key: candidates._client(w, plain, x, y, key))
    with jax.numpy_dtype_promotion("standard"):
        found = jax.tree.map(lambda a: a.mean(0), locally(jnp.array(x), jnp.array(y), keys))
    theirs = np.concatenate([np.ravel(x) for x in jax.tree.leaves(found)])
    # Steps of size 0.1 x gradients of size 0.1: 1e-8 is their float32 rounding.
    np.testing.assert_allclose(np.sort(mine), np.sort(theirs), atol=1e-8)


@pytest.mark.slow
def test_sweep_candidates_do_the_same_runs():
    """All ways give equal final models for each (configuration, seed)."""
    runs = sweep.training(TINY, rounds=2, seeds=2)
    grid = {"lr": [0.01, 0.1], "server_lr": [0.5, 1.0, 1.5]}
    whole = sweep.together(runs, grid)
    vmapped = sweep.at_once(runs, grid)
    sampled = sweep.one_by_one(runs, grid, sample=5)
    assert len(whole.norms) == 12
    assert len(set(whole.norms.values())) == 12
    assert len(sampled.norms) == 5
    for norms in (vmapped.norms, sampled.norms):
        for run, norm in norms.items():
            assert norm == pytest.approx(whole.norms[run], rel=1e-5)  # float32, order of sums


@pytest.mark.slow
def test_cell_agrees_with_numpy(x64):
    """The NumPy loop, given the rows that the clients of the cell drew, ends with its model."""
    x, y = cells.make_data()
    x, y = x[:300].astype(np.float64), y[:300].astype(np.float64)
    clients, rounds_ = 5, 2
    rows = drawn_rows(len(x), clients, rounds_)
    assert len(np.unique(rows)) > 100  # of 640 draws
    model, *_ = cells.single_cell(x, y, clients, rounds_)
    models, *_ = cells.sweep_cell(x, y, clients, rounds_)
    for lr, found in zip([cells.RATES[6], *cells.RATES], [model, *models], strict=True):
        expected = cells.numpy_cell(
            x, y, lr, clients, cells.LOCAL_STEPS, rounds_, lambda t, k: rows[t, :, k]
        )
        # The sweep's learning rates are float64 here, hence double precision throughout.
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def drawn_rows(num_rows: int, clients: int, num_rounds: int) -> np.ndarray:
    """[T, M, K]: the rows that a cell's clients draw, by a loss whose gradient spells them out."""
    examples = np.zeros((num_rows, 1)), np.zeros(num_rows)
    _, setup, keys = cells.training(*examples, clients, num_rounds)
    index = jnp.arange(num_rows)
    batches = fs.with_replacement(1, num_steps=cells.LOCAL_STEPS)
    task = fs.shared_task(lambda p, rows, key: p[rows], index, clients, batches)
    zeros = jnp.zeros(num_rows)

    def rows(visit):
        gradient = jax.vmap(lambda k: visit.oracle.grad(zeros, k))
        return jnp.argmax(gradient(jnp.arange(cells.LOCAL_STEPS)), axis=-1)

    probes = fs.Probes(client={"rows": rows})
    _, history = fs.run(
        fs.fedsgd(0.0), fs.Setup(task, setup.timeline, zeros), keys[0], probes=probes
    )
    return np.asarray(history.probes["rows"])


def test_data_of_a_cell_has_the_shape_of_a9a():
    x, y = cells.make_data()
    assert x.shape == (32_561, 123)
    assert set(np.unique(x)) == {0, 1}
    np.testing.assert_array_equal(x.sum(axis=1), 14)
    assert 0.2 < y.mean() < 0.8


def test_cases_of_the_cells_count_the_single_numpy_run_for_all_rates():
    results = {"M=64": {c: {"seconds": 2.0} for c in ("sweep", "run", "numpy")}}
    swept, alone = cells.cases(results, Machine(1e9, 1e9))
    assert swept.rows["numpy"]["seconds"] == 13 * 2.0
    assert alone.rows["numpy"]["seconds"] == 2.0
    # 64 clients x 4,096 steps of 6 x 123 operations, at 1e9 a second.
    assert alone.floor == pytest.approx(64 * 4096 * 6 * 123 / 1e9)


def test_methods_are_compared_with_the_call_beside_them():
    """On a machine that gets twice as slow from pass to pass the quotients stay what they are."""
    order = []

    def call(name, cost):
        def timed():
            order.append(name)
            return cost * 2.0 ** ((len(order) - 1) // 4), cost

        return timed

    found = methods.in_turns({"fedavg": call("a", 1.0), "fedsam": call("s", 3.0)}, 0.0, rounds=10)
    assert order == (list("aaas") + list("aasa")) * 2 + list("aaas")
    assert [found[f"fedavg:{name}"] for name in ("ratio", "cpu_ratio", "pairs")] == [1, 1, 5]
    assert [found[f"fedsam:{name}"] for name in ("ratio", "lower_quartile", "cpu_ratio")] == [3] * 3
    assert found["fedsam:seconds"] == pytest.approx(3 * 2**2 / 10)  # of the middle pass
    assert (found["fedsam:least_cpu_ratio"], found["fedsam:cpu_seconds"]) == (3, 0.3)


@pytest.mark.slow
def test_evaluation_measured_on_a_tiny_model(monkeypatch):
    """The ratio is that of seconds per example; the floor counts a forward pass."""
    tiny = evaluation.Subject(lambda _: models.mlp((4,), (8,), 10), (4,), 5, 20)
    monkeypatch.setitem(evaluation.SUBJECTS, "tiny", tiny)
    flat = evaluation.measure("tiny", list(evaluation.CANDIDATES), 0.0)
    assert flat["evaluation:flops"] == 2 * (4 * 8 + 8 * 10)  # products with both matrices
    (case,) = evaluation.cases({"tiny": {"evaluation": flat}}, Machine(1e9, 1e9))
    assert set(case.rows) == set(evaluation.CANDIDATES)
    assert all(row["seconds"] > 0 for row in case.rows.values())
    assert [limit.limit for limit in report.limits(case)] == [0.5, 0.5]
    flat = evaluation.measure("tiny", [evaluation.TRAINING], 0.0)
    (case,) = evaluation.cases({"tiny": {"evaluation": flat}}, Machine(1e9, 1e9))
    assert "tiny" in report.table(case)


@pytest.mark.parametrize("name", evaluation.SUBJECTS)
def test_floors_of_evaluations_count_the_products(name):
    """By hand: outputs x patch x channels of every layer; stored floors are such numbers, too."""
    expected = {
        "lenet5": 28 * 28 * 6 * 75 + 10 * 10 * 16 * 150 + 400 * 120 + 120 * 84 + 84 * 10,
        "femnist_cnn": 26 * 26 * 32 * 9 + 24 * 24 * 64 * 288 + 9216 * 128 + 128 * 62,
        "mlp": 784 * 200 + 200 * 200 + 200 * 10,
        # Stem, then per stage two convolutions, and a shortcut where the shape changes; the head.
        "resnet": 1024 * 8 * 27
        + 1024 * 8 * 72 * 2
        + 256 * 16 * (72 + 144 + 8)
        + 64 * 32 * (144 + 288 + 16)
        + 32 * 10,
    }[name]
    assert evaluation.forward_flops(name) == 2 * expected
    stored = json.loads((jobs.ROOT / "benchmarks" / "results" / "evaluation.json").read_text())
    floor = stored["cases"][name]["floor_seconds"]
    assert floor * stored["machine"]["flops"] == pytest.approx(2 * expected, rel=1e-6)


@pytest.mark.slow
def test_methods_measured_on_a_tiny_workload(monkeypatch):
    """FedAvg is always among them; rows and limits of the case come from the flat numbers."""
    monkeypatch.setitem(WORKLOADS, "W3", TINY)
    monkeypatch.setitem(methods.ROUNDS, "W3", 2)
    flat = methods.measure("W3", None, 0.0, ["fedmoswa", "fedsam"])
    assert all(value > 0 for value in flat.values())
    (case,) = methods.cases({"W3": {"methods": flat}}, Machine(1e9, 1e9))
    assert list(case.rows) == ["fedavg", "fedmoswa", "fedsam"]
    assert [limit.candidate for limit in report.limits(case)] == ["fedmoswa", "fedsam"]
    assert len(report.chart([case]).axes[0].patches) == 3


@pytest.mark.slow
def test_examples_on_the_host_train_the_same_model(tmp_path):
    found = {name: offload.training(TINY, name, 4, tmp_path) for name in offload.CANDIDATES}
    assert len({row["norm"] for row in found.values()}) == 1
    (case,) = offload.cases({"W4": found}, Machine(1e9, 1e9))
    assert [limit.candidate for limit in report.limits(case)] == ["host", "file"]
    assert [job.case for job in offload.jobs(DEFAULTS)] == ["W1"] * 3 + ["W2"] * 3 + ["W3"] * 3


@pytest.mark.parametrize("name", ["W2", "W3"])
def test_products_have_the_arithmetic_of_the_workload(name):
    network = accelerator.NETWORKS[name]
    model = network.build(jax.lax.conv_general_dilated)
    params = jax.eval_shape(model.init, jax.random.key(0))
    found = products.products(model.apply, params, jnp.zeros((2, *network.shape)))
    assert products.training_flops(found) == 2 * WORKLOADS[name].flops


@pytest.mark.slow
def test_products_of_residual_networks_and_transformers():
    """Multiply-adds of a forward pass as published: 0.556 G of ResNet-18 on 32 x 32."""
    model = accelerator.NETWORKS["ResNet-18"].build(jax.lax.conv_general_dilated)
    params = jax.eval_shape(model.init, jax.random.key(0))
    found = products.products(model.apply, params, jnp.zeros((1, 32, 32, 3)))
    assert sum(p.flops for p in found) / 2 == pytest.approx(0.556e9, rel=0.01)
    model = accelerator.NETWORKS["ViT-Tiny"].build(None)
    params = jax.eval_shape(model.init, jax.random.key(0))
    found = products.products(model.apply, params, jnp.zeros((1, 32, 32, 3)))
    # Patches, 12 blocks (queries, keys and values; scores; averages; projection; two layers), head.
    assert len(found) == 1 + 12 * 6 + 1
    width, tokens = 192, 65
    block = tokens * (4 * width**2 + 8 * width**2) + 2 * tokens**2 * width
    assert sum(p.flops for p in found) / 2 == 64 * 48 * width + 12 * block + width * 100


@pytest.mark.slow
def test_bare_products_are_all_computed():
    found = [products.Product(1, 5, 3, 4), products.Product(2, 5, 4, 2)]
    function, operands = products.bare(found, clients=3)
    assert [tuple(x.shape) for x in operands[1]] == [(6, 5, 4), (6, 4, 2), (6, 5, 2)]
    (x, kernel, gradient), (x2, kernel2, gradient2) = jax.tree.map(np.asarray, operands)
    expected = x[0, 0] @ kernel[0, :, 0] + x[0, :, 0] @ gradient[0, :, 0]
    expected += x2[0, 0] @ kernel2[0, :, 0] + x2[0, :, 0] @ gradient2[0, :, 0]
    expected += gradient2[0, 0] @ kernel2[0, 0]
    np.testing.assert_allclose(jax.jit(function)(operands), expected, rtol=1e-5)
    text = jax.jit(function).lower(operands).as_text()
    assert text.count("dot_general") == 5


@pytest.mark.slow
def test_accelerator_on_a_tiny_network(monkeypatch):
    tiny = accelerator.Network(
        lambda conv: models.cnn((6, 6, 1), 2, channels=(2,), kernel_size=3, hidden=(), conv=conv),
        (6, 6, 1),
        2,
        2,
        2,
    )
    monkeypatch.setattr(accelerator, "SQUARE", {"cpu": 32})
    monkeypatch.setattr(accelerator, "STRATEGIES", ("vmapped", "sequential"))
    chosen = {name: accelerator.CONVOLUTIONS[name] for name in ("lax", "auto")}
    monkeypatch.setattr(accelerator, "CONVOLUTIONS", chosen)
    monkeypatch.setitem(accelerator.NETWORKS, "tiny", tiny)
    reported = []
    found = accelerator.measured(tiny, 0.001, lambda numbers: reported.append(dict(numbers)))
    assert reported[-1] == found
    assert [len({key.split()[0] for key in numbers}) for numbers in reported] == [2, 3, 4, 6]
    (case,) = accelerator.cases({"tiny": {"all": found}}, Machine(1.0, 1.0))
    usual = {name for name in case.rows if name.endswith("/float32")}
    assert usual == {
        f"{name}/float32" for name in ("bare", "vmapped/auto", "sequential/auto", "vmapped/lax")
    }
    (half,) = {name for name in case.rows if name.endswith("/bfloat16")} - {"bare/bfloat16"}
    best = min(usual - {"bare/float32"}, key=lambda name: case.rows[name]["seconds"])
    assert half == best.replace("float32", "bfloat16")
    row, bare = case.rows[best], case.rows["bare/float32"]
    assert row["of_bare"] == pytest.approx(bare["seconds"] / row["seconds"])
    plain = case.rows["vmapped/lax/float32"]["seconds"]
    assert row["times_plain_vmap"] == pytest.approx(plain / row["seconds"])
    named = [job.case for job in accelerator.jobs(DEFAULTS)]
    assert named == ["W2", "W3", "LeNet-5", "ResNet-18", "ViT-Tiny", "tiny"]


def test_every_method_is_one():
    assert all(isinstance(build(0.1), fs.FedAlgorithm) for build in methods.METHODS.values())


@pytest.mark.slow
def test_a_method_that_diverges_is_not_timed(allow_nans):
    model, task = candidates.problem(TINY)
    params = model.init(jax.random.key(0))
    with pytest.raises(FloatingPointError, match="the benchmark's model diverged"):
        methods.one_call(fs.fedavg(lambda _: float("nan")), TINY, task, params, 2)


@pytest.mark.slow
def test_a_loop_goes_on_from_its_state():
    """Two calls are the two runs, the second from the state of the first."""
    model, task = candidates.problem(TINY)
    params = model.init(jax.random.key(0))
    algorithm = fs.scaffold(TINY.lr)

    def timeline(key):
        return candidates.timeline(TINY, key, 2)

    run = memory.loop(algorithm, timeline, params)
    state = run.begin(task)
    expected = fs.init(algorithm, fs.Setup(task, timeline(jax.random.key(0)), params))
    for number in range(2):
        key = jax.random.key(number)
        state = run.proceed(task, state, key)
        schedule, visits = jax.random.split(key)
        expected, _ = fs.advance(
            algorithm,
            fs.Setup(task, timeline(schedule), None, eval_every=timeline(schedule).num_rounds),
            expected,
            visits,
        )
    assert int(state.round) == 4
    # The same operations, compiled together and one scan at a time: rounding of float32.
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6),
        (state.server, state.clients),
        (expected.server, expected.clients),
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stateless", "stateful"])
def test_memory_counts_data_and_state(name):
    found = memory.measure(name, clients=20)
    data, state = {"stateless": (20 * 10 * 61, 0), "stateful": (20 * 4 * 100, 20 * 10_000)}[name]
    assert found["data_mb"] == pytest.approx(4e-6 * (data + 21), abs=0.05)
    assert found["client_state_mb"] == pytest.approx(4e-6 * state, abs=0.05)
    assert found["seconds"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(("free", "run"), [(10**9, 100), (3_963_600, 25)])
def test_controls_of_a_residual_network_alias_their_state(free, run, monkeypatch, allow_nans):
    """A case beyond half of the free memory is analysed, and fewer clients are run.

    While JAX looks for NaNs it donates nothing.
    """
    monkeypatch.setattr(memory, "free_bytes", lambda: free)
    model = models.resnet(10, channels=(32,), blocks=(1,))
    # Kernels of stem and block, scales and biases of three norms, the head.
    parameters = 9 * 3 * 32 + 2 * 9 * 32 * 32 + 3 * 2 * 32 + 32 * 10 + 10
    found = memory.controls(100, 1, model)
    state = 4e-6 * 100 * parameters
    assert found["client_state_mb"] == pytest.approx(state, abs=0.05)
    assert found["program_aliased_mb"] >= found["client_state_mb"]
    assert found["clients"] == 100
    assert found.get("clients_run", 100) == run
    assert found["seconds"] > 0


def test_startup_knows_rows_from_a_header(tmp_path):
    path = tmp_path / "history.csv"
    path.write_text("seed,round\n")
    assert not startup._has_rows(path)
    path.write_text("seed,round\n0,1\n")
    assert startup._has_rows(path)


def test_command_stores_numbers_and_bars(tmp_path, monkeypatch, capsys):
    """The measurements replaced by made ones: everything around them."""

    def measure(job, timeout):
        if job.case == "machine":
            return {"flops": 1e11, "bytes": 1e10}
        return {"seconds": 0.2 if job.candidate == "ours" else 0.4}

    monkeypatch.setattr(
        command,
        "collect",
        lambda listed, repeats, deadline: jobs.collect(listed, repeats, deadline, measure),
    )
    command.main(["rounds", "--workloads", "W4", "--repeats", "1", "--out", str(tmp_path)])
    stored = json.loads((tmp_path / "rounds.json").read_text())
    assert stored["cases"]["W4"]["candidates"]["ours"]["seconds"] == 0.2
    assert {"peer": "jax-vmap", "ratio": 2.0, "target": None} in stored["cases"]["W4"]["ratios"]
    assert (tmp_path / "benchmark_rounds.png").stat().st_size > 1000
    assert "2.00 x as fast as" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["speed"],
            "part is speed; expected rounds, sweep, cells, methods, topologies, selection, ev",
        ),
        (["cells", "--candidates", "drjax-mesh"], "candidate is 'drjax-mesh', which cells do"),
        (["cells", "--repeats", "0"], "repeats is 0"),
        (["--peer", "fedjax=/nowhere"], "expected NAME=PATH of a Python interpreter"),
        (["--peer", f"flower={sys.executable}"], "peer is flower; expected fedjax, pfl"),
    ],
)
def test_command_refuses(arguments, message, capsys):
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert message in capsys.readouterr().err


def test_ways_to_differentiate_a_run():
    """A job per number of rounds and way; the network and the steps of the module's text."""
    listed = hypergradients.jobs(DEFAULTS)
    ways = {"run", "none", "one", "sqrt", "log", "forward"}
    assert {(job.case, job.candidate) for job in listed} == {
        (str(rounds), way) for rounds in hypergradients.ROUNDS for way in ways
    }
    params = jax.eval_shape(lambda: hypergradients.problem(2)[0].params)
    assert sum(x.size for x in jax.tree.leaves(params)) == 12_730
    assert hypergradients.EXAMPLES / hypergradients.BATCH == 5


@pytest.mark.slow
def test_generated_clients_are_learned_and_their_memory_is_that_of_a_cohort():
    found = generated.measure(10**8, rounds=20, cohort=50)
    assert (found["clients"], found["rounds"]) == (10**8, 20)
    assert found["peak_rss_mb"] - found["idle_rss_mb"] < 8 * 10**8 / 1e6  # two numbers per client
    assert found["loss"] < np.log(2)  # on clients that take part in no round
    (case,) = generated.cases({"S100": {"ours": found}}, Machine(1.0, 1.0))
    assert case.title == "S100: 100,000,000 generated clients"


def test_revisions_are_measured_in_turns(tmp_path):
    order = []

    def measure(job):
        order.append(job.root.name)
        return {"seconds": 2.0 if job.root.name == "new" else 1.0}

    roots = [tmp_path / "old", tmp_path / "new"]
    pairs = compare.measured([jobs.Job("W1", "ours", "module")], roots, 2, measure)
    assert pairs == {("W1", "ours"): [(1.0, 2.0), (1.0, 2.0)]}
    assert order == ["old", "new", "new", "old"]
    assert "| W1 | ours | 1e+03 | 2e+03 | 2.00 | 2.00 .. 2.00 |" in compare.table(pairs, "a", "b")


def test_an_unknown_revision_is_named(tmp_path):
    with pytest.raises(SystemExit, match="revision is 'no-such-revision'"):
        compare.checked_out("no-such-revision", tmp_path / "folder")
    assert compare.checked_out(".", tmp_path) == jobs.ROOT
