"""Reports as HTML, without a browser: contents, numbers, escapes, size, refusals."""

import html.parser
import json
import re
import sys

import hand_made_runs
import jax
import numpy as np
import pandas as pd
import pytest
import scipy.stats
import vl_convert

import fedjax_sim as fs
from fedjax_sim.cli.main import main
from fedjax_sim.engine import PERSONAL, History
from fedjax_sim.reports.folders import Rule
from fedjax_sim.reports.labels import PARTIAL
from fedjax_sim.reports.page import document as document_of
from fedjax_sim.reports.page import label_columns
from fedjax_sim.reports.page.document import document
from fedjax_sim.reports.page.sources import Source, source_of
from fedjax_sim.runs import FolderError, SweepRun, write_json
from fedjax_sim.runs.storage.outcome import Outcome

COLUMNS = ["algorithm", "seed", "diverged_at", "round", "metric", "value"]


class _Page(html.parser.HTMLParser):
    """Elements, texts and data of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.loads, self.scripts = [], [], [], []
        self._in = None
        self.feed(text)
        self.data = json.loads(self.scripts[0])

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self._in = tag
        self.loads += [value for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data):
        (self.scripts if self._in == "script" else self.texts).append(data)

    def handle_endtag(self, tag):
        self._in = None

    @property
    def text(self):
        return " ".join(self.texts)


def _history(names, rounds=(0, 2, 4), seeds=(0, 1, 2), metrics=("test/accuracy",)):
    """Values that differ by algorithm, seed and round."""
    rows = [
        (name, seed, 0, done, metric, 0.1 * (i + 1) + 0.01 * seed**2 + 0.05 * done + 0.3 * m)
        for i, name in enumerate(names)
        for seed in seeds
        for done in rounds
        for m, metric in enumerate(metrics)
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def _page(*sources):
    return _Page(document(sources, ""))


def _columns(page, chart=0, view="0/0"):
    return page.data["charts"][chart]["views"][view]["columns"]


def test_curves_are_means_over_seeds_with_students_interval():
    page = _page(Source("comparison", _history(["fedavg", "scaffold"])))
    columns = pd.DataFrame(_columns(page))
    values = np.array([[0.2 + 0.01 * s**2 + 0.05 * r for r in (0, 2, 4)] for s in range(3)])
    low, high = scipy.stats.t.interval(
        0.95, 2, loc=values.mean(0), scale=scipy.stats.sem(values, axis=0)
    )
    second = columns.loc[columns["m"] == 1]
    assert [method["label"] for method in page.data["methods"]] == ["FedAvg", "SCAFFOLD"]
    assert second["x"].tolist() == [0, 2, 4]
    np.testing.assert_allclose(second["mean"], values.mean(0), atol=1e-9)
    np.testing.assert_allclose(second["low"], np.clip(low, 0, 1), atol=1e-9)
    np.testing.assert_allclose(second["high"], np.clip(high, 0, 1), atol=1e-9)


def test_table_and_paired_tests_are_those_of_scipy():
    history = _history(["fedavg", "scaffold"])
    rng = np.random.default_rng(0)
    history["value"] += 0.01 * rng.standard_normal(len(history))
    page = _page(Source("comparison", history))
    last = history.loc[history["round"] == 4].pivot(
        index="seed", columns="algorithm", values="value"
    )
    test = scipy.stats.ttest_rel(last["fedavg"], last["scaffold"])
    assert f"{test.pvalue:.4g}" in page.texts
    assert f"{(last['fedavg'] - last['scaffold']).mean():.4g}" in page.texts
    mean = last["scaffold"].mean()
    half = scipy.stats.sem(last["scaffold"]) * scipy.stats.t.ppf(0.975, 2)
    assert f"{mean:.3f} ± {half:.3f}" in page.texts


@pytest.mark.parametrize(("metric", "in_pairs"), [("test/accuracy", 0), (PERSONAL, 2)])
def test_parts_of_models_are_compared_by_personal_metrics_only(metric, in_pairs):
    """Besides the pairs of three methods, a name is in the table and above the curves."""
    history = _history(["fedavg", "fedper", "scaffold"], metrics=(metric,))
    page = _page(Source("comparison", history, partial=frozenset({"fedper"})))
    assert page.data["methods"][1]["label"] == f"FedPer {PARTIAL}"
    assert page.texts.count(f"FedPer {PARTIAL}") == 2 + in_pairs


def test_line_ends_with_a_cross_where_a_seed_diverged():
    history = _history(["fedavg"])
    history.loc[history["seed"] == 1, "diverged_at"] = 3
    page = _page(Source("run", history))
    assert _columns(page)["x"] == [0, 2]
    assert _columns(page)["end"] == [False, True]
    assert "diverged in round 3 (1 of 3 seeds)" in page.text


@pytest.mark.parametrize("failed", [[0], [1], [0, 1, 2]])
def test_progress_of_a_seed_that_diverged_is_known(failed):
    history = _history(["fedavg"], metrics=("loss", "bits"))
    history.loc[history["metric"] == "bits", "value"] = 64.0 * history["round"]
    history.loc[history["seed"].isin(failed), "diverged_at"] = 3
    page = _page(Source("run", history))
    assert _columns(page, view="0/1")["x"] == [0, 128]
    assert _columns(page, view="0/1")["end"] == [False, True]


def test_rounds_with_probes_alone_are_no_evaluations():
    evaluated = _history(["fedavg"], rounds=(2, 4), metrics=("time", "loss"))
    probes = _history(["fedavg"], rounds=range(1, 5), metrics=("drift",))
    assert "4, 2 evaluations" in _page(Source("run", pd.concat([evaluated, probes]))).texts


def test_clients_of_a_method_that_stopped_early_are_named():
    clients = pd.DataFrame(
        [(name, 0, done, c, "train", 3, 0.1 * c) for name, done in (("a", 2), ("b", 4), ("a", 0))
         for c in range(3)],
        columns=["algorithm", "seed", "round", "client", "split", "num_examples", "accuracy"],
    )  # fmt: skip
    page = _page(Source("comparison", _history(["a", "b"]), clients=clients))
    notes = [page.data["charts"][-1]["views"][f"0/{i}"]["note"] for i in range(3)]
    assert notes == ["Not recorded for b.", "Not recorded for b.", "Not recorded for a."]


NAMES = ['</script><script id="x">1</script>', "<b>bold</b>", "a & 'b' \"c\"", "<!-- --> {x} $x"]


def test_names_of_the_user_are_text_everywhere():
    history = _history(NAMES, metrics=("<i>loss</i>", "</script><u>"))
    clients = pd.DataFrame(
        [(name, 0, 4, c, "<s>split", 3, 0.1 * c) for name in NAMES for c in range(3)],
        columns=["algorithm", "seed", "round", "client", "split", "num_examples", "<i>acc</i>"],
    )
    labels = pd.DataFrame(label_columns(np.array([[1, 0], [2, 3]])))
    source = Source(
        "comparison", history, setting="<em>set</em>", facts={"<q>": "<q>"},
        algorithms=dict.fromkeys(NAMES, "<kbd>"), options={"<var>": "</style>"}, clients=clients,
        labels=labels, environment={"versions": {"<dfn>": "<dfn>"}, "device": "<ins>"},
        command="<del>", name="<h1>title</h1>",
    )  # fmt: skip
    page = _page(source)
    assert page.tags.count("script") == 3  # data, bundle, the page's own
    assert page.tags.count("h1") == 1
    assert not {"i", "u", "s", "em", "q", "kbd", "var", "dfn", "ins", "del"} & set(page.tags)
    for name in NAMES:
        assert name in page.texts
    assert [method["label"] for method in page.data["methods"]] == NAMES
    assert page.tags.count("b") == 2  # the best mean of each metric


def test_page_loads_nothing():
    page = _page(Source("run", _history(["fedavg"])))
    assert page.loads[0] == "data:,"  # an icon that needs no request
    assert all(address.startswith("#") for address in page.loads[1:])


@pytest.mark.parametrize(("limit", "points"), [(None, 2000), (120_000, 500)])
def test_long_curves_are_thinned_and_the_page_says_so(limit, points, monkeypatch):
    """Four curves of 2,500 points with some 54 bytes each: 500 fit into 120,000 bytes."""
    monkeypatch.setattr(document_of, "MOST_BYTES", limit or document_of.MOST_BYTES)
    history = _history(["fedavg", "scaffold"], rounds=range(2_500), metrics=("loss", "extra"))
    page = _page(Source("comparison", history))
    assert len(page.scripts[0].encode()) <= document_of.MOST_BYTES
    columns = pd.DataFrame(_columns(page))
    at = columns.loc[columns["m"] == 0, "x"].tolist()
    assert len(at) == points
    assert (at[0], at[-1]) == (0, 2_499)
    assert f"Curves are thinned to {points} of up to 2,500 points" in page.text


def test_short_curves_are_whole_and_too_many_are_refused(monkeypatch):
    source = Source("run", _history(["fedavg"]))
    assert "thinned" not in _page(source).text
    monkeypatch.setattr(document_of, "MOST_BYTES", 100)
    with pytest.raises(ValueError, match="expected at most 100: report fewer folders"):
        document([source], "")


def test_other_axes_are_those_that_were_recorded():
    history = _history(["fedavg"], metrics=("loss", "bits", "time"))
    history.loc[history["metric"] == "bits", "value"] = 64.0 * history["round"]
    history.loc[history["metric"] == "time", "value"] = history["round"]
    page = _page(Source("run", history))
    (chart,) = page.data["charts"]
    assert chart["choices"][1] == ["against", ["rounds", "bits sent"]]  # time is that of rounds
    assert _columns(page, view="0/1")["x"] == [0, 128, 256]


def test_sweep_has_best_settings_sensitivity_and_heat_map():
    rows = [
        (lr, steps, seed, 0, 4, "loss", (lr - 0.2) ** 2 + 1 / steps)
        for lr in (0.1, 0.2, 2.0, 4.0)
        for steps in (1, 2)
        for seed in range(3)
    ]
    history = pd.DataFrame(rows, columns=["lr", "steps", *COLUMNS[1:]])
    history.loc[(history["lr"] == 2.0) & (history["steps"] == 1), "diverged_at"] = 2
    history.loc[history["lr"] == 4.0, "diverged_at"] = 1
    page = _page(Source("sweep", history))
    curves, sensitivity, grid = page.data["charts"]
    assert curves["views"]["0/0"]["columns"]["mean"] == [0.5]  # the best: lr 0.2, 2 steps
    assert sensitivity["choices"] == [["against", ["learning rate", "steps"]]]
    lines = sensitivity["views"]["0"]
    assert lines["columns"]["x"] == [0.1, 0.2, 2.0]
    np.testing.assert_allclose(lines["columns"]["mean"], [0.51, 0.5, 3.74])  # with 2 steps each
    assert lines["logs"] == [True, False]  # a factor of 40
    assert lines["note"] == "Every setting failed: run at 4."
    cells = pd.DataFrame(grid["views"]["0"]["columns"]).set_index(["x", "y"])
    assert cells.loc[("2", "1"), "failed"] == "3 of 3 seeds failed"
    assert cells.loc[("2", "1"), "mean"] is None or np.isnan(cells.loc[("2", "1"), "mean"])
    assert cells.index[cells["best"]].tolist() == [("0.2", "2")]
    assert "8" in page.texts  # configurations


def test_cells_of_numbers_with_equal_short_texts_are_apart():
    """Cells of one text would lie on each other."""
    rows = [
        (steps, lr, seed, 0, 4, "loss", lr + steps - 1e6)
        for steps in (1_000_001.0, 1_000_002.0)
        for lr in (0.1, 0.2)
        for seed in range(3)
    ]
    page = _page(Source("sweep", pd.DataFrame(rows, columns=["steps", "lr", *COLUMNS[1:]])))
    (grid,) = (chart for chart in page.data["charts"] if chart["kind"] == "grid")
    view = grid["views"]["0"]
    assert view["xs"] == ["1000001.0", "1000002.0"] or view["ys"] == ["1000002.0", "1000001.0"]
    assert len(set(zip(view["columns"]["x"], view["columns"]["y"], strict=True))) == 4


@pytest.mark.parametrize(
    ("command", "repeated"),
    [("run", "the results"), ("sweep", "the grid that ran last"), ("tune", "the results")],
)
def test_the_command_of_a_grown_sweep_repeats_its_last_grid(command, repeated):
    source = Source("run", _history(["fedavg"]), command=f"fedjax-sim {command} config.json")
    assert f"this command repeats {repeated}:" in _page(source).text


@pytest.mark.parametrize(("mode", "best"), [("max", "0.200"), ("min", "0.100"), (None, "0.100")])
def test_the_best_of_a_sweep_is_the_best_in_the_direction_that_it_was_told(mode, best):
    """The name of the metric says no direction."""
    history = _history(["fedavg", "scaffold"], rounds=(0,), seeds=(0,), metrics=("utility",))
    rule = Rule("utility", mode)
    text = document([Source("sweep", history.assign(lr=0.1), rule)], "")
    assert re.findall(r"<(?:b|strong)>([\d.]+)", text) == [best]


def test_clients_have_shares_and_quantiles():
    metrics = [f"client/accuracy/{name}" for name in ("q10", "q50", "q90")]
    history = _history(["fedavg"], metrics=("test/accuracy", *metrics))
    clients = pd.DataFrame(
        [("fedavg", 0, 4, c, "train", 3, value) for c, value in enumerate((0.5, 0.25, 1.0, 0.25))],
        columns=["algorithm", "seed", "round", "client", "split", "num_examples", "accuracy"],
    )
    page = _page(Source("run", history, clients=clients))
    curves, bands, shares = page.data["charts"]
    assert curves["choices"][0][1] == ["test accuracy"]  # quantiles have a chart of their own
    assert bands["choices"][0][1] == ["client accuracy"]
    # Mean over seeds of 0.1 + 0.01 s^2 + 0.05 r + 0.3 m, m = 1, 2, 3 for the quantiles.
    base = 0.1 + 0.05 / 3 + 0.05 * np.array([0, 2, 4])
    drawn = bands["views"]["0/0"]["columns"]
    for name, m in (("low", 1), ("mean", 2), ("high", 3)):
        np.testing.assert_allclose(drawn[name], base + 0.3 * m, atol=5e-9)
    columns = shares["views"]["0/0"]["columns"]
    assert columns["x"] == [0.25, 0.25, 0.25, 0.5, 1.0]
    assert columns["mean"] == [0, 0.25, 0.5, 0.75, 1]


def test_values_of_clients_are_those_of_their_own_method_beside_a_sweep():
    """The sweep comes first and has a method, but no values of clients."""
    swept = pd.concat([_history(["fedavg"]).assign(lr=lr) for lr in (0.1, 0.2)])
    values = {"fedavg": 0.25, "scaffold": 0.75}
    clients = pd.DataFrame(
        [(name, 0, 4, 0, "train", 3, value) for name, value in values.items()],
        columns=["algorithm", "seed", "round", "client", "split", "num_examples", "accuracy"],
    )
    run = Source("comparison", _history([*values]), clients=clients, name="run")
    page = _page(Source("sweep", swept, name="rates"), run)
    labels = [method["label"] for method in page.data["methods"]]
    shares = next(chart for chart in page.data["charts"] if chart["kind"] == "shares")
    view = shares["views"]["0/0"]
    lines = zip(view["columns"]["m"], view["columns"]["x"], strict=True)
    assert {labels[m]: x for m, x in lines} == {"FedAvg, run": 0.25, "SCAFFOLD, run": 0.75}
    assert view["note"] == f"Not recorded for {labels[0]}."


def _client_rows(values, seed=0, done=4):
    """Values of the clients of one method in one round."""
    columns = ["algorithm", "seed", "round", "client", "split", "num_examples", "accuracy"]
    rows = [("fedavg", seed, done, c, "train", 3, value) for c, value in enumerate(values)]
    return pd.DataFrame(rows, columns=columns)


@pytest.mark.parametrize(
    ("parts", "share", "notes"),
    [
        ([_client_rows([0.5, np.inf, np.nan, 0.25])], [0, 0.5, 1],
         ["FedAvg: 2 of 4 values are not finite, left out."]),
        ([_client_rows([0.5, 0.25]), _client_rows([0.75], 1, 2)], [0, 0.5, 1],
         ["FedAvg: 1 of 2 seeds.", "FedAvg: 1 of 2 seeds."]),
        ([_client_rows([np.nan])], [], ["FedAvg: 1 of 1 values are not finite, left out."]),
    ],
)  # fmt: skip
def test_clients_that_a_distribution_lacks_are_counted(parts, share, notes):
    page = _page(Source("run", _history(["fedavg"]), clients=pd.concat(parts)))
    views = [*page.data["charts"][-1]["views"].values()]
    assert views[-1]["columns"]["mean"] == share
    assert [view["note"] for view in views] == notes


def test_thinned_distributions_over_clients_say_so():
    """Between two of 100 points the share is up to 1 % too low."""
    page = _page(Source("run", _history(["fedavg"]), clients=_client_rows(np.arange(1234) / 1e4)))
    assert len(page.data["charts"][-1]["views"]["0/0"]["columns"]["x"]) == 100
    assert "Curves are thinned to 100 of up to 1,235 points" in page.text


def test_points_of_late_rounds_and_near_rates_are_apart():
    """With six digits, two rounds were one round, at another number of rounds."""
    history = _history(["fedavg"], rounds=(1_234_567, 1_234_568), metrics=("loss", "bits"))
    history.loc[history["metric"] == "bits", "value"] = 1e6 * history["round"] + 1
    page = _page(Source("run", history))
    assert _columns(page)["x"] == [1_234_567, 1_234_568]
    assert _columns(page, view="0/1")["x"] == [1_234_567_000_001, 1_234_568_000_001]
    rows = [(lr, s, 0, 4, "loss", lr) for lr in (0.12345671, 0.12345672) for s in range(3)]
    page = _page(Source("sweep", pd.DataFrame(rows, columns=["lr", *COLUMNS[1:]])))
    assert page.data["charts"][1]["views"]["0"]["columns"]["x"] == [0.12345671, 0.12345672]


def test_values_under_the_pointer_have_the_digits_of_the_data():
    page = _page(Source("run", _history(["fedavg"])))
    *_, points = page.data["specs"]["lines"]["layer"]
    tips = {tip["field"]: tip.get("format") for tip in points["encoding"]["tooltip"]}
    numbers = ("x", "mean", "low", "high")
    assert tips == {"method": "", **dict.fromkeys(numbers, ".15~g")}


def test_a_flat_curve_lies_within_its_band():
    """With six digits the mean was 2.30258, and so was the lower end of the band."""
    history = _history(["fedavg"], metrics=("loss",))
    history["value"] = 2.302585 + 1e-6 * history["value"]
    columns = pd.DataFrame(_columns(_page(Source("run", history))))
    mean = history.groupby("round")["value"].mean()
    np.testing.assert_allclose(columns["mean"], mean, atol=1e-8)
    assert (columns["low"] < columns["mean"]).all()
    assert (columns["mean"] < columns["high"]).all()


def test_a_metric_below_a_distribution_that_is_no_quantile_has_a_curve():
    metrics = [f"client/loss/{name}" for name in ("q10", "q50", "q90", "quarters", "q95")]
    page = _page(Source("run", _history(["fedavg"], metrics=metrics)))
    assert page.data["charts"][0]["choices"][0][1] == [
        "client loss quarters", "client loss, 95 % quantile"
    ]  # fmt: skip


def test_clients_and_labels_without_examples_have_a_place_on_the_map():
    labels = pd.DataFrame(label_columns(np.array([[1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 3, 0]])))
    view = _page(Source("run", _history(["fedavg"]), labels=labels)).data["charts"][-1]["views"][""]
    assert (view["xs"], view["ys"], view["rows"]) == ([0, 1, 2], [0, 1, 2], 3)


def test_near_settings_of_a_sweep_are_told_apart():
    """With four digits both rates were 0.01235, and with six both values of alpha 0.123457."""
    rows = [
        (alpha, lr, seed, 0, 4, "loss", lr * alpha + seed)
        for alpha in (0.12345671, 0.12345672)
        for lr in (0.0123451, 0.0123462)
        for seed in range(3)
    ]
    history = pd.DataFrame(rows, columns=["alpha", "lr", *COLUMNS[1:]])
    page = _page(Source("sweep", history, cells=("alpha",)))
    _, _, table = " ".join(page.texts).partition("best of")
    assert re.findall(r"run (\S+) (\S+) ", table)[:2] == [
        ("0.12345671", "0.0123451*"), ("0.12345672", "0.0123451*")
    ]  # fmt: skip


def test_options_and_hyper_parameters_have_all_digits(folder):
    rate, horizon = 0.012345678, 1234567.0
    saved = {"settings": CONFIG | {"horizon": horizon}, "algorithms": {"fedavg": {"lr": rate}}}
    (folder / "config.json").write_text(json.dumps(saved))
    page = _page(source_of(folder))
    assert "lr=0.012345678" in page.texts
    assert "1234567" in page.texts


def test_heat_maps_that_are_too_large_are_named():
    rows = [
        (lr, steps, 0, 0, 4, "loss", lr * steps) for lr in np.arange(1, 22.0) for steps in range(20)
    ]
    page = _page(Source("sweep", pd.DataFrame(rows, columns=["lr", "steps", *COLUMNS[1:]])))
    assert "grid" not in [chart["kind"] for chart in page.data["charts"]]
    assert "No map has more than 400 cells: run: steps, learning rate (420)." in page.text


def _two_settings():
    """Two clients' partitions, of which each has another best rate; alpha 0.5 is the easier."""
    return [
        ({"algorithm": "fedavg", "alpha": alpha, "lr": lr}, str(seed), alpha + 0.1 * (lr == alpha))
        for alpha in (0.1, 0.5)
        for lr in (0.1, 0.5)
        for seed in range(3)
    ]


def _swept_folder():
    rows = [(*x.values(), seed, 0, 4, "test/accuracy", v) for x, seed, v in _two_settings()]
    frame = pd.DataFrame(rows, columns=["algorithm", "alpha", "lr", *COLUMNS[1:]])
    return Source("sweep", frame, cells=("alpha",))


def _swept_in_memory():
    runs = [
        SweepRun(x, seed, History(np.array([4]), {"test/accuracy": np.array([value])}, {}), 0)
        for x, seed, value in _two_settings()
    ]
    return source_of(fs.Sweep(runs, False, 0, 0, 0.0, 0.0, settings=("alpha",)))


@pytest.mark.parametrize("make", [_swept_folder, _swept_in_memory])
def test_every_setting_of_a_sweep_has_its_best(make):
    """A larger alpha is no better configuration."""
    page = _page(make())
    _, _, table = " ".join(page.texts).partition("best of")
    assert re.findall(r"FedAvg (\S+) (\S+) (\S+)", table)[:2] == [
        ("0.1", "0.1*", "0.200"), ("0.5", "0.5*", "0.600")
    ]  # fmt: skip
    assert len(page.data["methods"]) == 2


CONFIG = {
    "dataset": "digits", "partition": "dirichlet", "alpha": 0.3, "num_clients": 20,
    "cohort_size": 5, "local_epochs": 2, "local_steps": None, "batch_size": 7, "model": "mlp",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "my run"
    for name, gain in (("fedavg", 0.0), ("scaffold", 0.1)):
        rows = [
            (seed, done, metric, value)
            for seed in ("0", "1")
            for done in (0, 2, 4)
            for metric, value in (("time", float(done)), ("test/accuracy", 0.2 * done / 2 + gain))
        ]
        outcome = Outcome(4, {"0": 0, "1": 0}, 20, 32, 64, dict.fromkeys(("0", "1"), 5))
        hand_made_runs.write_run(path / name, rows, outcome, ("0", "1"))
    saved = {"settings": CONFIG, "algorithms": {"fedavg": {"lr": 0.25}, "scaffold": {"lr": 0.5}}}
    (path / "config.json").write_text(json.dumps(saved | {"environment": {"device": "tpu v9"}}))
    write_json(path / "labels.json", label_columns(np.array([[3, 0], [0, 4]])))
    return path


def test_folder_shows_what_it_records(folder):
    page = _page(source_of(folder))
    assert "my run: comparison" in page.texts
    assert "20 clients, partition dirichlet with alpha = 0.3" in page.text
    assert "lr=0.25" in page.texts
    assert "tpu v9" in page.texts
    assert f"fedjax-sim run '{folder}/config.json' --output results/repeated" in page.texts
    curves, labels = page.data["charts"]
    assert curves["choices"][1][1] == ["rounds", "bits sent"]
    # 5 clients, 32 bits up and 64 down, in 2 and 4 rounds.
    assert curves["views"]["0/1"]["columns"]["x"][:3] == [0, 960, 1920]
    assert labels["views"][""]["columns"] == {
        "client": [0, 1], "label": [0, 1], "examples": [3, 4]
    }  # fmt: skip


@pytest.fixture
def no_bundle(monkeypatch):
    """Pages without the library that draws, which takes two seconds to load."""
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda: "")


def test_pairs_are_of_one_setting():
    """Two methods on each of two partitions: two pairs, not six."""
    history = _history(["fedavg", "scaffold"])
    history["value"] += np.random.default_rng(0).uniform(0, 0.1, len(history))
    sources = [Source("comparison", history, setting=f"alpha {x}", name=f"a{x}") for x in (1, 2)]
    page = _page(*sources)
    for number in (1, 2):
        # In the table, above the curves, and in one pair.
        assert page.texts.count(f"FedAvg, a{number}") == 3
    same = _page(*(source._replace(setting="") for source in sources))
    assert same.texts.count("FedAvg, a1") == 5


def test_damaged_labels_are_refused(folder):
    text = (folder / "labels.json").read_text()
    (folder / "labels.json").write_text(text.replace("3", "9", 1))
    with pytest.raises(FolderError, match=r"labels\.json is damaged .*; delete it"):
        source_of(folder)


CONSTANTS, MEASURED = '{"constants": {}}', "quantity,seed,round,metric,value\nfedavg,0,1,gap,0.5\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("diagnosis.json", CONSTANTS[:-2]),
        ("diagnosis.json", "{}"),
        ("diagnosis.csv", ""),
        ("diagnosis.csv", MEASURED[:-2]),
        ("diagnosis.csv", MEASURED[:33]),
        ("diagnosis.csv", MEASURED.replace("value", "values")),
        ("diagnosis.csv", MEASURED.replace("0.5", "0.5;")),
        ("labels.json", None),
    ],
)
def test_damaged_files_of_a_folder_have_their_names(folder, name, content):
    (folder / "diagnosis.json").write_text(CONSTANTS)
    (folder / "diagnosis.csv").write_text(MEASURED)
    assert source_of(folder).diagnosis is not None
    if content is None:
        write_json(folder / name, {"client": [0, 1], "label": [0]})
    else:
        (folder / name).write_text(content)
    with pytest.raises(FolderError, match=rf"{re.escape(name)} is damaged .*delete it"):
        source_of(folder)


@pytest.mark.slow
def test_folders_of_python_with_other_data_are_not_compared(tmp_path):
    """The line of the setting is the same for both: 2 clients, 2 per round."""
    keys = jax.random.split(jax.random.key(0), 3)
    for name, target in (("one", 1.0), ("same", 1.0), ("other", 5.0)):
        rates = {"slow": 0.1, "fast": 0.2} if name == "one" else {"mine": 0.15}
        algorithms = {key: fs.fedavg(lr) for key, lr in rates.items()}
        fs.compare(algorithms, _setup(target=target), keys, storage=tmp_path / name)
    path = fs.report([tmp_path / name for name in ("one", "same", "other")], tmp_path / "a.html")
    texts = _Page(path.read_text()).texts
    # In the table and above the curves; besides, each of three methods in two pairs.
    counts = {name: texts.count(name) for name in ("slow, one", "mine, same", "mine, other")}
    assert counts == {"slow, one": 4, "mine, same": 4, "mine, other": 2}


def test_several_folders_are_one_comparison(folder, tmp_path, no_bundle):
    other = tmp_path / "other"
    (folder / "fedavg").rename(other)
    path = fs.report([folder, other], tmp_path / "both.html")
    labels = [method["label"] for method in _Page(path.read_text()).data["methods"]]
    assert labels == ["SCAFFOLD, my run", "other, other"]


@pytest.mark.slow
def test_command_writes_the_file(folder, tmp_path, capsys):
    output = tmp_path / "new" / "page.html"
    assert main(["report", str(folder), "--output", str(output)]) == 0
    assert capsys.readouterr().out == f"report: {output}\n"
    text = output.read_text()
    assert "vegaEmbed" in text
    # The size that the page for users names: 0.9 MB without data.
    assert 800_000 < len(text.encode()) < 1_100_000
    assert main(["report", str(folder), "--output", str(tmp_path / "page.pdf")]) == 2
    assert "--output is" in capsys.readouterr().err


def _setup(rounds=3, target=1.0):
    data = fs.FederatedData({"y": np.full(2, target, np.float32)}, np.array([0, 1, 2]))
    task = fs.empirical_task(lambda w, b, key: (w - b["y"]) ** 2, data, fs.full_batch(1))
    timeline = fs.timelines.full(rounds, 2, task.num_steps)
    return fs.Setup(
        task, timeline, np.zeros(3, np.float32), lambda w: {"error": abs(w - 1)}, eval_every=1
    )


@pytest.mark.slow
def test_results_in_memory_and_their_folders_have_the_same_curves(tmp_path):
    keys = jax.random.split(jax.random.key(0), 3)
    result = fs.compare({"mine": fs.fedavg(0.1)}, _setup(), keys, storage=tmp_path / "kept")
    page, stored = _page(source_of(result)), _page(source_of(tmp_path / "kept"))
    assert _columns(page) == _columns(stored)
    assert "fedavg(lr=0.1" in stored.text  # from run.json
    assert jax.__version__ in stored.texts
    # w after r rounds of full gradient steps: 1 - 0.8^r (a step takes 0.1 * 2 (w - 1)).
    np.testing.assert_allclose(_columns(page)["mean"], 0.8 ** np.arange(1, 4), atol=1e-6)


def test_simulation_and_sweep_in_memory():
    keys = jax.random.split(jax.random.key(0), 3)
    simulation = _page(source_of(fs.simulate(fs.fedavg(0.1), _setup(), keys)))
    assert simulation.data["methods"][0]["label"] == "run"
    swept = fs.sweep(fs.fedavg, _setup(), [{"lr": lr} for lr in (0.1, 0.2)], keys)
    curves, sensitivity = _page(source_of(swept)).data["charts"]
    np.testing.assert_allclose(  # 1 - 2 lr per step, three rounds
        sensitivity["views"]["0"]["columns"]["mean"], [0.8**3, 0.6**3], atol=1e-6
    )
    assert len(curves["views"]["0/0"]["columns"]["x"]) == 3  # of the best


@pytest.mark.parametrize(
    ("result", "path", "message"),
    [
        (3, "a.html", "result is a int; expected a result of fs.simulate"),
        ([], "a.html", "result is an empty list"),
        (["folder", 3], "a.html", "result has a int; expected one, or folders"),
        ("no_such_folder", "a.html", "which does not exist"),
        ("no_such_folder", "a.pdf", "path is 'a.pdf'; expected a name that ends in .html"),
        (fs.Sweep([], False, 0, 0, 0.0, 0.0), "a.html", "result has no evaluations"),
    ],
)
def test_refusals_name_the_argument(result, path, message, tmp_path, monkeypatch, no_bundle):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        fs.report(result, path)
    assert list(tmp_path.iterdir()) == []


def test_labels_of_data_that_were_not_recorded(folder, tmp_path, no_bundle):
    classes = fs.FederatedData({"y": np.array([0, 2, 2])}, np.array([0, 1, 3]))
    path = fs.report(folder, tmp_path / "a.html", data=classes)
    columns = _Page(path.read_text()).data["charts"][1]["views"][""]["columns"]
    assert columns == {"client": [0, 1], "label": [0, 2], "examples": [1, 2]}
    numbers = fs.FederatedData({"y": np.ones(3, np.float32)}, np.array([0, 1, 3]))
    nothing = fs.FederatedData({"y": np.ones(0, np.int32)}, np.array([0, 0, 0]))
    for other in (numbers, nothing):
        with pytest.raises(ValueError, match="data has no integer labels"):
            fs.report(folder, tmp_path / "a.html", data=other)
    with pytest.raises(ValueError, match="data is given with 2 results"):
        fs.report([folder, folder / "fedavg"], tmp_path / "a.html", data=classes)


def test_missing_library_names_the_extra(folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(ImportError, match=r"'\.\[report\]'"):
        fs.report(folder, tmp_path / "a.html")
