"""Published setups: their clients and times, interrupted runs, the table of the page."""

import json
import signal
import types

import jax
import numpy as np
import pytest

import fedjax_sim as fs
from benchmarks import __main__ as command
from benchmarks import published, published_data, published_table, report
from benchmarks.jobs import Options
from benchmarks.published_setups import SETUPS, small
from fedjax_sim import datasets
from fedjax_sim.datasets import Dataset

DIGITS = np.tile(np.arange(10, dtype=np.int32), 50)


def made_up(name, **_):
    """A small data set in the form of the real one."""
    rng = np.random.default_rng(0)
    shape = {"mnist": (28, 28, 1), "femnist": (28, 28, 1), "shakespeare": (80,)}.get(name)
    shape = shape or (32, 32, 3)
    if name == "shakespeare":
        x, y = rng.integers(1, 87, (500, *shape)).astype(np.uint16), DIGITS + 1
    else:
        x, y = rng.integers(0, 256, (500, *shape)).astype(np.uint8), DIGITS
    part = {"x": x, "y": y} | ({"coarse": y % 5} if name == "cifar100" else {})
    test = {key: leaf[:40] for key, leaf in part.items()}
    writers = np.sort(rng.integers(0, 7, 500)).astype(np.int32)
    return Dataset(name, part, test, 10, writers, None, tuple("abcdefg"), "arrays")


@pytest.fixture
def small_data(monkeypatch):
    monkeypatch.setattr(datasets, "load", made_up)


@pytest.mark.usefixtures("small_data")
def test_clients_are_divided_as_in_the_sources():
    def labels(clients):
        return [np.bincount(clients.client(i)["y"], minlength=10) for i in range(20)]

    shards = published_data.cifar10_shards(20, 40).train
    assert set(np.asarray(shards.sizes)) <= {24, 25, 26}
    assert max(np.count_nonzero(own) for own in labels(shards)) <= 4  # two shards of 12 or 13
    power_law = published_data.mnist_power_law(20)
    for i, own in enumerate(labels(power_law.train)):
        assert set(np.flatnonzero(own)) <= {i % 10, (i + 1) % 10}
    pooled = power_law.train.num_examples + len(power_law.test["y"])
    assert 500 < pooled <= 540  # of training and test part; each client's shares are rounded down
    assert abs(float(power_law.train.examples["x"].mean())) < 0.1  # standardised
    sizes = np.asarray(published_data.mnist_dirichlet(4).train.sizes)
    assert (sizes % 10 == 0).all()
    assert sizes.sum() <= 0.75 * 540
    assert published_data.femnist_cycled(20).train.num_clients == 20
    one, same = (published_data.femnist_cycled(20).train.client(i)["x"] for i in (0, 7))
    np.testing.assert_array_equal(one, same)
    assert set(np.asarray(published_data.cifar100_by_superclass(5).train.sizes)) == {100}


@pytest.mark.usefixtures("small_data")
def test_sequences_of_characters():
    clients = published_data.shakespeare_sequences(9, 300)
    assert clients.train.num_examples == 300
    assert np.asarray(clients.train.sizes).min() >= 1
    examples = clients.train.examples
    assert examples["x"].shape == examples["y"].shape == (300, 80)
    np.testing.assert_array_equal(examples["x"][:, 1:], examples["y"][:, :-1])


def test_published_seconds():
    """As printed: minutes and hours of FLUTE's table and FedML's beside it."""
    printed = {"F2": ("0:08:22", "5:49:52"), "F3": ("1:42:01", "15:55:36")}
    printed |= {"F4": ("0:21:50", "6:46:21"), "F1": ("0:01:35", "0:03:09")}
    for name, texts in printed.items():
        for program, text in zip(("FLUTE", "FedML"), texts, strict=True):
            hours, minutes, seconds = map(int, text.split(":"))
            assert SETUPS[name].seconds[program] == 3600 * hours + 60 * minutes + seconds
    assert all(setup.assumptions and setup.sources for setup in SETUPS.values())


def measured(**values):
    row = {"seconds": 100.0, "seconds_per_round": 2.0, "compile_seconds": 3.0, "cores": 2}
    row |= {"measured_rounds": 50, "highest_load": 0.5, "accuracy": 0.25}
    return row | values


def test_cases_name_extrapolations_and_hardware():
    b1, p1, l1 = (published.case(name, measured()) for name in ("B1", "P1", "L1"))
    full = published.case("P1", measured(measured_rounds=1500))
    assert b1.title.endswith("ours on 2 CPU cores, theirs on 32 cores and 4 Quadro RTX 6000")
    assert b1.rows["ours"]["seconds"] == 100
    assert "  ours: 0.25 x as fast as BlazeFL" in report.table(b1).splitlines()
    assert "ours (extrapolated)" in p1.rows
    assert "ours" in full.rows
    assert l1.rows["ours"]["seconds"] == 2  # theirs are seconds of one round
    assert l1.unit == "a round"


def test_table_of_the_page():
    cases = {
        name: {**report.as_json(published.case(name, measured(measured_rounds=rounds)))}
        | {"date": "2026-11-23T01:00", "machine": {"flops": 2.04e11}}
        for name, rounds in (("P1", 30), ("B1", 5))
    }
    lines = published_table.section(cases).splitlines()
    assert lines[0].startswith("**2 CPU cores here are compared with the hardware in the second")
    assert [line.split(":")[0] for line in lines[4:6]] == ["| B1", "| P1"]
    assert "| **100 s** | 3.00 s | 2.00 s | 5 of 5 | 0.250 | 0.5 | 204 GFLOP/s |" in lines[4]
    assert (
        "| **100 s**, extrapolated | 3.00 s | 2.00 s | 30 of 1,500 |  | 0.5 | 204 GFLOP/s |"
        in lines[5]
    )


def test_page_shows_the_stored_results():
    cases = json.loads(published_table.RESULTS.read_text())["cases"]
    assert published_table.section(cases) in published_table.PAGE.read_text()


def test_command_line(capsys):
    options = Options((), None, 1.0, {}, ("F1",))
    (job,) = published.jobs(options)
    assert job.arguments["setup"] == "F1"
    assert not job.arguments["full"]
    assert [job.case for job in published.jobs(options._replace(setups=()))] == list(SETUPS)
    assert published.jobs(options._replace(candidates=("numpy",))) == []
    with pytest.raises(SystemExit):
        command.main(["B1", "rounds"])
    assert "B1 given without published; expected published before it" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("small_data")
def test_interrupted_and_killed_runs_go_on(tmp_path, monkeypatch):
    """Rounds before and after an interruption count once, and the model is the same."""
    setup = small(SETUPS["F1"], 20, 4)._replace(slices=2)
    whole = published.run(setup, tmp_path / "whole")
    simulate, calls = fs.simulate, []

    def disturbed(*arguments, **options):
        calls.append(options["storage"].folder)
        if len(calls) == 1:  # SIGINT in the first of two rounds
            stop = types.SimpleNamespace(progress=lambda _: signal.raise_signal(signal.SIGINT))
            options["callbacks"] = [stop]
        if len(calls) == 3:
            raise SystemExit("killed")
        return simulate(*arguments, **options)

    monkeypatch.setattr(fs, "simulate", disturbed)
    known = []
    for error in (KeyboardInterrupt, SystemExit):
        with pytest.raises(error):
            published.run(setup, tmp_path / "parts")
        known.append(json.loads((tmp_path / "parts" / "seconds.json").read_text()))
    assert [seconds["rounds"] for seconds in known] == [1, 2]
    resumed = published.run(setup, tmp_path / "parts")
    assert not (tmp_path / "parts").exists()
    assert resumed["loss"] == whole["loss"]
    assert resumed["local_steps"] == whole["local_steps"] > known[1]["local_steps"] > 0
    assert resumed["seconds_per_round"] * 4 > known[1]["run"] > known[0]["run"] > 0


@pytest.mark.slow
@pytest.mark.usefixtures("small_data")
@pytest.mark.parametrize("name", SETUPS)
def test_setups_fit_their_models(name):
    """Objective and evaluation of every setup can be traced, and the first loss is plausible."""
    setup = small(SETUPS[name], 20, 1)
    problem, evaluate = published.prepare(setup)
    shapes = jax.eval_shape(lambda f, p: f(p), evaluate, problem.params)
    assert {"test/loss", "test/accuracy"} <= set(shapes)
    state, _ = jax.eval_shape(
        lambda problem, key: fs.run(fs.fedavg(setup.lr), problem, key), problem, jax.random.key(0)
    )
    assert jax.tree.structure(state.server.params) == jax.tree.structure(problem.params)
