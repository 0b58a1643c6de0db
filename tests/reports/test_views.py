"""Tables that Jupyter shows for results."""

import jax
import numpy as np
import pandas as pd
import pytest

import fedjax_sim as fs
from fedjax_sim.reports.folders import Rule, labelled
from fedjax_sim.reports.labels import PARTIAL, PARTIAL_NOTE
from fedjax_sim.reports.page.sources import source_of
from fedjax_sim.reports.views import runs_table
from fedjax_sim.runs.comparison import Comparison
from fedjax_sim.runs.sweeps.result import Sweep, SweepRun

COLUMNS = ["algorithm", "seed", "diverged_at", "round", "metric", "value"]


def test_comparison_has_a_row_per_algorithm_and_common_metrics_only():
    rows = [
        (name, seed, 0, r, metric, value + seed * r)
        for name, value in (("fedavg", 1.0), ("<b>", 2.0))
        for seed in (0, 1)
        for r in (1, 2)
        for metric in ("time", "train/examples", "loss", *(["extra"] if name == "fedavg" else []))
    ]
    text = runs_table(pd.DataFrame(rows, columns=COLUMNS), "html")
    assert "<th>method</th><th>loss</th>" in text
    assert "<tr><th>FedAvg</th><td><b>2.000</b></td></tr>" in text  # of 1 + 0 and 1 + 2
    assert "&lt;b&gt;" in text
    assert "<p>Mean over 2 seeds, without an interval, which needs 3. " in text


def test_partial_models_are_marked_and_never_the_best():
    rows = [
        (name, s, 0, 5, "loss", value + s * noise)
        for name, value, noise in (("fedavg", 2.0, 1.0), ("scaffold", 3.0, 1.1), ("fedper", 1.0, 0))
        for s in range(3)
    ]
    text = runs_table(pd.DataFrame(rows, columns=COLUMNS), "markdown", {"fedper"})
    assert "| FedAvg | **3.000 ± 2.484** |" in text
    assert f"| FedPer {PARTIAL} | 1.000 ± 0.000 |" in text
    assert PARTIAL_NOTE in text


@pytest.mark.slow
def test_results_in_memory_know_partial_models():
    """As their folders do: by what the algorithm requires."""
    data = fs.FederatedData({"y": np.ones(2, np.float32)}, np.array([0, 1, 2]))
    loss = lambda w, b, key: (w["a"] + w["b"] - b["y"]) ** 2  # noqa: E731
    task = fs.empirical_task(loss, data, fs.full_batch(1))
    params = {"a": np.zeros(2, np.float32), "b": np.zeros(2, np.float32)}
    timeline = fs.timelines.full(2, 2, task.num_steps)
    setup = fs.Setup(task, timeline, params, lambda w: {"error": abs(w["a"] - 1)}, eval_every=2)
    keys, body = jax.random.split(jax.random.key(0), 2), lambda path, leaf: path[0] == "b"

    def partial(lr):
        return fs.fedper(lr, where=body)

    compared = fs.compare({"fedavg": fs.fedavg(0.1), "fedper": partial(0.1)}, setup, keys)
    swept = fs.sweep({"fedavg": fs.fedavg, "fedper": partial}, setup, {"lr": [0.1]}, keys)
    for result in (compared, swept):
        assert result.partial_models == source_of(result).partial == {"fedper"}
        assert f"FedPer {PARTIAL}" in str(result)
    assert source_of(compared.simulations["fedper"][0]).partial == {"run"}
    labels = [line.get_label() for line in compared.plot("error").axes[0].lines]
    assert labels == ["FedAvg", f"FedPer {PARTIAL}"]


def test_diverged_seed_leaves_no_mean():
    rows = [("fedavg", s, 3 * s, 5, "loss", 1.0) for s in (0, 1)]
    frame = pd.DataFrame(rows, columns=COLUMNS)
    assert "diverged in round 3 (1 of 2 seeds)" in runs_table(frame, "html")


def sweep_of(losses: dict[float, float]) -> Sweep:
    runs = [
        SweepRun(
            {"lr": lr},
            seed,
            fs.History(np.array([5]), {"loss": np.array([loss])}, {}),
            0 if np.isfinite(loss) else 2,
        )
        for lr, loss in losses.items()
        for seed in ("0", "1")
    ]
    return Sweep(runs, False, 0, 1, 0.0, 0.0, missing=1)


@pytest.mark.parametrize(
    ("losses", "best"), [({0.1: 2.0, 0.2: 1.0, 0.4: np.inf}, "0.2"), ({0.1: 1.0, 0.2: 3.0}, "0.1*")]
)
def test_sweep_shows_the_best_configuration_and_marks_the_edge(losses, best):
    text = sweep_of(losses)._repr_html_()
    assert f"<tr><th>loss</th><td>{best}</td><td>1.000</td></tr>" in text
    diverged = 2 * sum(not np.isfinite(loss) for loss in losses.values())
    assert f"Sweep of {2 * len(losses)} runs, of which {diverged} diverged" in text
    assert "1 run of the grid is not finished" in text


def test_sweep_leaves_out_configurations_that_lack_seeds():
    result = sweep_of({0.1: 2.0, 0.2: 3.0, 0.4: 1.0})
    text = result._replace(runs=result.runs[:-1])._repr_html_()
    assert "<tr><th>loss</th><td>0.1*</td><td>2.000</td></tr>" in text


def test_every_algorithm_of_a_sweep_has_its_own_number_of_seeds():
    """Seeds may be finished for one algorithm only."""
    runs = [
        SweepRun(
            {"algorithm": name, "lr": lr}, str(seed),
            fs.History(np.array([5]), {"loss": np.array([lr + seed])}, {}), 0,
        )
        for name, seeds in (("fedavg", 3), ("scaffold", 2)) for lr in (1.0, 2.0)
        for seed in range(seeds)
    ]  # fmt: skip
    result = Sweep(runs[:-1], False, 0, 1, 0.0, 0.0, missing=3)
    text = result._repr_html_()
    assert "<td>fedavg</td><td>1*</td><td>2.000 ± 2.484</td>" in text  # 4.303 / sqrt(3)
    assert "<td>scaffold</td><td>1</td><td>1.500</td>" in text  # the other rate lacks a seed
    assert "Mean over 2 to 3 seeds" in text
    frame = labelled(result.to_frame(), "best", Rule(), "")
    assert frame["algorithm"].unique().tolist() == [
        "FedAvg, learning rate 1",
        "SCAFFOLD, learning rate 1",
    ]


def test_sweep_writes_an_interval_that_was_cut_with_both_ends():
    runs = [
        SweepRun({"lr": 0.1}, seed, fs.History(np.array([5]), {"accuracy": np.array([x])}, {}), 0)
        for seed, x in (("0", 0.96), ("1", 0.98), ("2", 1.0))
    ]
    text = Sweep(runs, False, 0, 1, 0.0, 0.0)._repr_html_()  # half-width 4.303 * 0.02 / sqrt(3)
    assert "<td>0.980 [0.930, 1.000]</td>" in text


def test_hyper_parameters_may_be_lists():
    result = sweep_of({0.1: 2.0, 0.2: 1.0})
    runs = [
        run._replace(configuration={"hidden": [8, [int(10 * run.configuration["lr"])]]})
        for run in result.runs
    ]
    result = result._replace(runs=runs)
    assert result.to_frame()["hidden"].unique().tolist() == [(8, (1,)), (8, (2,))]
    assert "<td>(8, (2,))</td><td>1.000</td>" in result._repr_html_()


def test_models_of_several_shapes_are_not_stacked():
    result = sweep_of({0.1: 2.0})
    runs = [run._replace(model=np.zeros(i)) for i, run in enumerate(result.runs, start=1)]
    with pytest.raises(ValueError, match="runs have models of 2 forms; expected one: read"):
        result._replace(runs=runs).models()


def test_results_without_runs():
    assert "No finished runs." in Sweep([], True, 0, 0, 0.0, 0.0)._repr_html_()
    assert "No evaluations." in Comparison({}, interrupted=True)._repr_html_()


def test_simulation_of_one_seed():
    data = fs.FederatedData({"x": np.ones((4, 1), np.float32)}, np.array([0, 2, 4]))
    task = fs.empirical_task(lambda w, b, key: (b["x"][:, 0] * w) ** 2, data, fs.full_batch(1))
    timeline = fs.timelines.full(1, 2, task.num_steps)
    setup = fs.Setup(task, timeline, np.float32(1), lambda w: {"weight": w})
    result = fs.simulate(fs.fedavg(0.1), setup, jax.random.key(0))
    assert "<tr><td>0.800</td></tr>" in result._repr_html_()  # w - 0.1 * 2 w
    assert "<p>Simulation, finished after round 1</p>" in result._repr_html_()
    assert "<p>One seed.</p>" in result._repr_html_()
