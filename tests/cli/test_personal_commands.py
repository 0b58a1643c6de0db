"""Personal models on the command line: tables, files and figures of ``run`` and ``sweep``."""

import json
from typing import Any

import pandas as pd
import pytest

from fedjax_sim import analysis, plotting
from fedjax_sim.cli import main
from fedjax_sim.cli.grid import SweepOptions
from fedjax_sim.studies.setups import options

pytestmark = pytest.mark.slow
PERSONAL = "personal/test/accuracy/weighted_mean"
OPTIONS = [
    "quickstart", "--rounds", "2", "--seeds", "2", "--num-clients", "16", "--test-of", "clients",
    "--personal", "2", "--held-out-clients", "0.25", "--model", "mlp_small",
    "--algorithms", "fedavg", "ditto",
]  # fmt: skip


def from_history(folder, keys) -> Any:
    """Accuracies of the clients' own models on all test examples, after the last round."""
    history = pd.read_csv(folder / "history.csv")
    rows = history.loc[(history["metric"] == PERSONAL) & (history["round"] == 2)]
    return pd.Series(rows.set_index(keys)["value"]).sort_index()


def from_clients(folder, keys) -> Any:
    """Accuracies of the clients' own models, computed from the values of all clients."""
    clients = pd.read_csv(folder / "clients.csv")
    rows = clients.loc[(clients["split"] == "personal/test") & (clients["round"] == 2)]
    right = rows["accuracy"] * rows["num_examples"]
    sums = rows.assign(right=right).groupby(keys)[["right", "num_examples"]].sum()
    return (sums["right"] / sums["num_examples"]).sort_index()


def test_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # headings are not broken over lines
    main.main(["run", *OPTIONS, "--per-client", "2", "--lr", "0.2", "--output", str(tmp_path)])
    assert "personal models" in capsys.readouterr().out
    summary = json.loads((tmp_path / "summary.json").read_text())["algorithms"]
    own = from_history(tmp_path, ["algorithm", "seed"]).groupby("algorithm").mean().to_dict()
    for name in ("fedavg", "ditto"):
        assert summary[name]["personal_mean"] == pytest.approx(own[name], rel=1e-9)
    # FedAvg's clients use the server's model; those of Ditto do not.
    assert own["fedavg"] != own["ditto"]
    splits = "personal_test", "personal_unseen", "clients_test", "clients_train", "clients_held_out"
    assert {f"{split}.png" for split in splits} <= {p.name for p in tmp_path.iterdir()}


def cells(text):
    """The rows of a Markdown table by their first cell."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {row[0]: row[1:] for row in rows}


PARTIAL = [
    "run", "quickstart", "--rounds", "4", "--eval-every", "2", "--seeds", "2", "--num-clients",
    "10", "--test-of", "clients", "--lr", "0.2", "--model", "mlp_small",
    "--algorithms", "fedavg", "fedper",
]  # fmt: skip


def test_methods_are_compared_by_their_personal_models(tmp_path, capsys, monkeypatch):
    """FedPer's server keeps the initial head: 0.5 instead of 0.95 on digits."""
    monkeypatch.setenv("COLUMNS", "200")  # headings are not broken over lines
    main.main([*PARTIAL, "--personal", "4", "--output", str(tmp_path / "run")])
    printed = capsys.readouterr().out
    assert printed.index("personal models") < printed.index("test accuracy")
    assert "fedper \N{DAGGER}" in printed
    summary = json.loads((tmp_path / "run/summary.json").read_text())["algorithms"]["fedper"]
    assert summary["accuracy_mean"] < 0.8 < summary["personal_mean"]
    assert summary["rounds_to_target"] == 4
    assert summary["partial_model"]
    main.main(["table", str(tmp_path / "run")])
    rows = cells(printed := capsys.readouterr().out)
    heads = ["personal test accuracy weighted mean", "test accuracy", "training loss"]
    assert rows["method"] == heads
    own, of_server, loss = rows["FedPer \N{DAGGER}"]
    assert "**" in own
    assert "**" not in of_server + loss
    assert "\N{DAGGER} Clients keep or train a part of the model" in printed
    content = analysis.read_folders([tmp_path / "run"])
    assert content.partial == {"FedPer \N{DAGGER}"}
    figure = plotting.plot_folder(tmp_path / "run")
    assert [axes.get_ylabel() for axes in figure.axes] == heads


def test_without_personal_models_a_partial_one_is_marked_and_never_the_best(tmp_path, capsys):
    main.main([*PARTIAL[:-2], "fedper", "--output", str(tmp_path / "run")])
    assert "fedper \N{DAGGER}" in capsys.readouterr().out
    main.main(["table", str(tmp_path / "run")])
    assert "**" not in "".join(cells(capsys.readouterr().out)["FedPer \N{DAGGER}"])
    sweep = [
        "sweep",
        *PARTIAL[1:],
        "--grid.lr.values",
        "0.1",
        "0.2",
        "--output",
        str(tmp_path / "sweep"),
    ]
    main.main(sweep)
    capsys.readouterr()
    main.main(["table", str(tmp_path / "sweep")])
    rows = cells(capsys.readouterr().out)
    (name,) = (name for name in rows if name.startswith("FedPer"))
    assert name.endswith("\N{DAGGER}")
    assert "**" not in "".join(rows[name])


def test_the_metric_of_a_sweep_follows_from_personal():
    personal = options(personal=2, test_of="clients")
    assert SweepOptions().score_metric == "test/accuracy"
    assert SweepOptions(personal).score_metric == PERSONAL
    assert SweepOptions(personal, metric="test/loss").score_metric == "test/loss"


def test_sweep(tmp_path):
    grid = ["--grid.lr.values", "0.1", "0.2"]
    main.main(["sweep", *OPTIONS[:-2], "ditto", *grid, "--output", str(tmp_path)])
    keys = ["algorithm", "lr", "seed"]
    own, of_clients = from_history(tmp_path, keys), from_clients(tmp_path, keys)
    assert len(own) == 4
    # The file has seven digits.
    assert of_clients.to_dict() == pytest.approx(own.to_dict(), rel=1e-6)
    splits = pd.read_csv(tmp_path / "clients.csv")["split"]
    assert set(splits) == {"personal/test", "personal/unseen"}
    best = pd.read_csv(tmp_path / "best.csv").set_index("algorithm")["mean"].to_dict()
    per_rate = own.groupby(["algorithm", "lr"]).mean().groupby("algorithm").max().to_dict()
    assert best == pytest.approx(per_rate, rel=1e-6)
    assert (tmp_path / "clients_personal_test.png").exists()


def test_models_after_steps_of_fine_tuning(tmp_path):
    """More steps fit better; the server's model does not depend on them."""
    sweep = ["sweep", *OPTIONS[:-1], "--grid.tuning-steps.values", "1", "6", "--metric", PERSONAL]
    main.main([*sweep, "--tuning-lr", "0.3", "--output", str(tmp_path)])
    keys = ["algorithm", "tuning_steps"]
    own = from_history(tmp_path, [*keys, "seed"]).groupby(keys).mean()
    assert (own.xs(6, level="tuning_steps") > own.xs(1, level="tuning_steps")).all()
    history = pd.read_csv(tmp_path / "history.csv")
    of_server = history.loc[history["metric"] == "test/loss"].groupby(
        ["algorithm", "seed", "round"]
    )
    assert (of_server["value"].count() == 2).all()
    assert (of_server["value"].nunique() == 1).all()
