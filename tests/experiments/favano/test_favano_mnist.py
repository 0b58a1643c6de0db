"""FAVANO's experiment on MNIST, on made-up data and cut down to seconds."""

import functools
import io
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from made_up_images import images

import fedjax_sim as fs
from experiments.favano import (
    clock_runs,
    methods,
    mnist,
    mnist_iid,
    mnist_parts,
    mnist_report,
    mnist_runs,
)
from experiments.favano.clock_inputs import groups_of_equal_sizes
from experiments.favano.methods import Clock
from experiments.favano.problem import assignment
from fedjax_sim import datasets

pytestmark = pytest.mark.usefixtures("compiled_without_optimizations")


def no_training(*arguments):
    raise AssertionError("a finished run was trained again")


def test_seeds_with_clients_of_other_sizes_run_apart():
    """One program has one number of examples for each client."""

    class Parts(NamedTuple):
        assignment: Any

    problem: Any = Parts(lambda seed: [np.arange(3 + seed % 2), np.arange(4)])
    assert groups_of_equal_sizes(problem, [0, 1, 2, 5]) == [[0, 2], [1, 5]]
    assert groups_of_equal_sizes(problem, []) == []


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Ten clients instead of a hundred, on images of distinct classes; one setting."""
    clock = {"num_clients": 10, "cohort_size": 2, "max_steps": 3, "buffer": 2}
    monkeypatch.setattr(datasets, "load", lambda name, data_dir: images(28, 1))
    monkeypatch.setattr(mnist_runs, "Clock", functools.partial(Clock, **clock))
    problem = functools.partial(mnist_runs.problem, num_clients=10)
    monkeypatch.setattr(mnist_runs, "problem", problem)
    for name, value in {"BATCH_SIZE": 8, "LR": 0.05, "EVAL_TIME": 50.0}.items():
        monkeypatch.setattr(mnist_runs, name, value)
    for script in (mnist, mnist_parts):
        monkeypatch.setattr(script, "SERVER_LRS", (0.1,))

    def options(part, **changes):
        return mnist.Options(
            part=part, seeds=1, horizon=300.0, settings=("non-IID, 2/3 fast",),
            work=tmp_path / "work", output=tmp_path / "out", **changes,
        )  # fmt: skip

    return options


@pytest.mark.slow
@pytest.mark.usefixtures("allow_nans")  # the probe of the variance is NaN between its moments
class TestMnist:
    def test_parts_and_resuming(self, small, tmp_path, monkeypatch):
        """One test, since the parts have runs in common."""
        options = small("table")
        folder = tmp_path / "out" / "favano" / "mnist"
        mnist.main(options)
        text = (folder / "table2.md").read_text()
        assert "300 of the paper's 5000 time units; 1 seed;" in text
        assert all(f"| non-IID, 2/3 fast | {name} |" in text for name in mnist_report.PAPER)
        history = pd.read_csv(folder / "table2.csv")
        assert set(history["algorithm"]) == set(mnist_report.PAPER)
        favano = mnist_runs.Runs(options)(methods.favano(), options.settings[0], range(1))
        # Of the kept evaluations every second one up to the last is in the file.
        expected = favano[::-2][::-1].reset_index(drop=True)
        drawn = history[history["algorithm"] == "FAVANO"].reset_index(drop=True)
        for column in ("time", "local_steps", "accuracy"):
            np.testing.assert_allclose(drawn[column], expected[column], rtol=1e-4)
        # A contact every 7 time units, of two clients; the greys are learnt a little.
        np.testing.assert_array_equal(favano["time"], 7 * favano["round"])
        np.testing.assert_array_equal(favano["reports"], 2 * favano["round"])
        assert favano["loss"].iloc[-1] < favano["loss"].iloc[0]
        # 32 bits per entry, up and down.
        entries = 784 * 32 + 32 + 32 * 10 + 10
        np.testing.assert_allclose(favano["bits"], 64 * entries * favano["reports"], rtol=1e-4)
        rows = pd.read_csv(folder / "table2-methods.csv").set_index("method")
        assert rows["server updates"]["FAVANO"] == favano["round"].iloc[-1]
        assert {path.suffix for path in folder.iterdir()} == {
            ".csv", ".json", ".md", ".png"
        }  # fmt: skip

        trained = clock_runs.train
        monkeypatch.setattr(clock_runs, "train", no_training)
        mnist.main(options)
        assert (folder / "table2.md").read_text() == text

        # A file cut short, and one that a kill left unrenamed: both runs are done again, alone.
        files = sorted((tmp_path / "work").glob("*/0.csv"))
        whole = [path.read_text() for path in files[:2]]
        files[0].write_text(whole[0][:-20])
        files[1].rename(files[1].with_suffix(".tmp"))
        again = []

        def counting(problem, clock, method, *rest):
            again.append(method.label)
            trained(problem, clock, method, *rest)

        monkeypatch.setattr(clock_runs, "train", counting)
        mnist.main(options)
        assert len(again) == 2
        for path, text in zip(files[:2], whole, strict=True):
            frames = [pd.read_csv(source) for source in (path, io.StringIO(text))]
            pd.testing.assert_frame_equal(*(frame.drop(columns="seconds") for frame in frames))

        monkeypatch.setattr(methods, "LAWS", methods.LAWS[:2])
        mnist.main(small("sensitivity"))
        found = pd.read_csv(folder / "sensitivity.csv")
        assert found["choice"].is_unique
        assert found["accuracy"].between(0, 100).all()
        laws = {f"law of E: {law}" for law in methods.LAWS[1:]}
        assert laws | {"split: pairs", "alpha: deterministic"} <= set(found["choice"])

        chosen = [
            case
            for case in mnist_iid.cases()
            if case.name == "FAVANO" and case.choice in ("default", "batches of 32")
        ]
        monkeypatch.setattr(mnist_iid, "cases", lambda: chosen)
        mnist.main(small("iid"))
        found = pd.read_csv(folder / "iid.csv").set_index("choice")
        assert list(found.index) == ["default", "batches of 32"]
        assert found["change"]["default"] == 0
        np.testing.assert_allclose(found["difference"], found["accuracy"] - 88.9, atol=0.01)

        mnist.main(small("variance"))
        history = pd.read_csv(folder / "variance.csv").dropna(subset=["variance"])
        assert set(history["algorithm"]) == {"QuAFL", "FedBuff", "FAVANO"}
        assert (history["variance"] > 0).all()
        # Clients that have moved differ from what they received.
        assert (history["variance"] != history["variance_lazy"]).any()


def test_same_split_for_everyone():
    labels = np.repeat(np.arange(10), 60)
    for split, classes in (("iid", 5), ("shards", 2), ("pairs", 2)):
        parts = assignment(labels, split, 20)(3)
        assert len({len(rows) for rows in parts}) == 1
        rows = np.concatenate(parts)
        assert len(np.unique(rows)) == len(rows)
        many = [len(np.unique(labels[rows])) for rows in parts]
        assert min(many) >= classes if split == "iid" else set(many) == {2}


def test_claims_about_few_fast_clients():
    """FedBuff loses 20 points with few fast clients, then 5; QuAFL is ahead of FedAvg, then not."""
    rows = [
        (setting, name, value)
        for setting, values in (
            ("non-IID, 2/3 fast", (30, 40, 90, 88)), ("non-IID, 1/9 fast", (30, 40, 70, 89))
        )
        for name, value in zip(mnist_report.PAPER, values, strict=True)
    ]  # fmt: skip
    table = pd.DataFrame(rows, columns=pd.Index(["setting", "algorithm", "accuracy"]))
    table = pd.concat([table.assign(seed=0), table.assign(seed=1)])
    (stuck,) = mnist_report.stuck_claims(table)
    assert (stuck.found, stuck.holds) == ({"2/3 fast": 90, "1/9 fast": 70}, True)
    np.testing.assert_allclose(stuck.margins, [[10, 10]])  # beyond the 10 points
    best, last = mnist_report.table2_claims(table)
    assert (best.holds, last.holds) == (False, True)  # FedBuff is ahead, then FAVANO
    np.testing.assert_allclose(np.mean(last.margins, axis=1), [19, 40, 30, 30, 20])
    assert [claim.holds for claim in mnist_report.ahead_claims(table)] == [True, True]
    other = table.replace({"accuracy": {70: 85, 40: 20}})
    assert not mnist_report.stuck_claims(other)[0].holds
    assert [claim.holds for claim in mnist_report.ahead_claims(other)] == [False, False]
    assert not mnist_report.stuck_claims(table[table["setting"] == "non-IID, 2/3 fast"])


def test_cases_of_the_iid_column():
    """Every choice is another run, and the first of each method is the default."""
    cases = mnist_iid.cases()
    runs = {(case.name, case.method.label, str(case.options)) for case in cases}
    assert len({(case.name, case.choice) for case in cases}) == len(runs) == len(cases)
    for name in mnist_report.PAPER:
        first = next(case for case in cases if case.name == name)
        assert first.choice == "default"
        assert first.options == {"changes": mnist_runs.UNCHANGED}
    # Table 2's printed law: 2 steps and, with the cap of 20, 11.6 of fast and slow clients.
    alpha = mnist_iid.of_the_printed_law(Clock(), np.array([1 / 2, 1 / 16]))
    np.testing.assert_allclose(alpha, [2.0, 11.6], atol=1e-3)


@pytest.mark.slow
def test_changes_of_the_problem():
    data = images(28, 1)
    default = mnist_runs.problem(data, "iid", 10)
    params = default.init(jax.random.key(0))
    changed = mnist_runs.Changes(
        standardised=True, lecun_init=True, batch_size=32, train_examples=100, lr=2.0
    )
    other = mnist_runs.problem(data, "iid", 10, changed)
    assert (default.lr, other.lr) == (0.5, 2.0)
    assert (len(default.examples["y"]), len(other.examples["y"])) == (400, 100)
    assert not other.init(jax.random.key(0))["dense1"]["bias"].any()
    assert params["dense1"]["bias"].any()
    assert len(other.batches.draw(jax.random.key(0), jnp.array(50), 50, 1)(0)[0]) == 32
    # Standardised pixels are the default's, moved and scaled.
    batch = {"x": jnp.asarray(data.train["x"][:5]), "y": jnp.asarray(data.train["y"][:5])}
    moved = {**batch, "x": (batch["x"] / 255 - 0.1307) / 0.3081}
    losses = other.objective(params, batch, None), default.objective(params, moved, None)
    np.testing.assert_allclose(*losses, rtol=1e-5)  # single precision


def test_warm_up_of_fedbuff():
    """In its update t of 100 the local rate is (t + 1) / 100 of the usual one."""
    warm = methods.fedbuff(1.0, warm_up=100).algorithm(jnp.array(0.5), jnp.zeros(3))
    oracle = fs.Oracle(lambda x, k: jnp.ones(2), lambda x, k: x.sum(), lambda x: x)
    for number, expected in ((0, 0.01), (49, 0.5), (99, 1.0), (400, 1.0)):
        work = fs.Work(jnp.array(number), jnp.array(0), jnp.array(3), 1, jnp.array(0), None, 3)
        (_, delta), _ = warm.local(jnp.zeros(2), (), oracle, work)
        np.testing.assert_allclose(delta, 3 * 0.5 * expected, rtol=1e-6)  # single precision
