"""The experiment from a thousand clients to a million, small."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import fedjax_sim as fs
from experiments.system import million_clients as million
from experiments.system import populations
from experiments.system.redraw import redraw


def test_populations_contain_each_other():
    whole = populations.load(0, 2500)
    for start, stop in ((0, 40), (990, 1010), (1000, 2000), (2499, 2500), (7, 7)):
        part = populations.load(start, stop)
        assert part["x"].shape == (10 * (stop - start), 60)
        for name, values in part.items():
            np.testing.assert_array_equal(values, whole[name][10 * start : 10 * stop])
    assert not np.array_equal(populations.load(0, 1)["x"], populations.load(1, 2)["x"])
    assert 0.4 < whole["y"].mean() < 0.6


def test_clients_differ_as_the_formulas_say():
    data = populations.load(0, 4000)
    x = data["x"].reshape(4000, 10, 60)
    # Means over ten examples have variance 1/4 + 1/10; examples within a client 1, up to the
    # standard error of 240,000 squares, 0.003, and of 2.2 million.
    np.testing.assert_allclose(x.mean(1).var(), 0.35, atol=0.01)
    np.testing.assert_allclose(x.var(1, ddof=1).mean(), 1.0, atol=0.01)
    direction = np.random.default_rng(0).standard_normal(60, np.float32)
    margin = data["x"] @ (populations.NORM * direction / np.linalg.norm(direction))
    # The sign of the common plane's margin predicts the label, the clients' own planes blur it.
    assert 0.65 < np.mean((margin > 0) == data["y"]) < 0.85


def test_losses_are_means_over_clients():
    loss = lambda params, examples, key: params * examples["y"]  # noqa: E731
    found = populations.mean_losses(loss, [jnp.float32(1), jnp.float32(3)], 5, 1005)
    expected = populations.load(5, 1005)["y"].mean()
    np.testing.assert_allclose(found, [expected, 3 * expected], rtol=1e-5)


@pytest.fixture
def small(tmp_path):
    return million.Options(
        clients=(16,), rounds=3, cohort=16, seeds=2, work=tmp_path / "w", output=tmp_path / "o"
    )


@pytest.mark.slow
def test_one_command_makes_the_table_and_the_figure(small, tmp_path, monkeypatch):
    """The cases run in this process."""
    monkeypatch.setattr(fs.execution, "use_all_cores", lambda: None)
    monkeypatch.setattr(million, "in_own_process", lambda case, **setting: case(**setting))
    million.main(small)
    folder = tmp_path / "o" / "system" / "million_clients"
    table = pd.read_csv(folder / "million_clients.csv")
    assert table["algorithm"].tolist() == ["fedavg", "scaffold"]
    assert table["clients"].tolist() == [16, 16]
    assert (table[["ms per round", "peak GB", "train/loss", "test/loss"]] > 0).all(axis=None)
    # Everybody takes part in every round of 16 clients: the first round's variates are zero, the
    # others' are not, so the methods differ, slightly.
    assert 0 < abs(table["test/loss"][0] - table["test/loss"][1]) < 0.1
    assert (folder / "million_clients.png").read_bytes().startswith(b"\x89PNG")
    facts = json.loads((folder / "million_clients.json").read_text())
    assert [len(c["seconds"]) for c in facts["cases"]] == [2] * 2
    # Nothing is run again; the names of kept cases are fixed.
    assert {path.name for path in (tmp_path / "w").iterdir()} == {
        "fedavg-16-3-16-2.json", "scaffold-16-3-16-2.json"
    }  # fmt: skip
    monkeypatch.setattr(million, "in_own_process", None)
    million.main(small)
    text = (folder / "million_clients.md").read_text()
    assert "16 clients per round (8 strata)" in text
    (folder / "million_clients.png").unlink()
    redraw(tmp_path / "o" / "system")
    assert (folder / "million_clients.md").read_text() == text
    assert (folder / "million_clients.png").exists()


@pytest.mark.slow
def test_a_case_runs_in_a_process_of_its_own(small, tmp_path):
    million.main(dataclasses.replace(small, algorithms=("fedavg",), seeds=1))
    assert (tmp_path / "w" / "fedavg-16-3-16-1.json").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": 0}, "rounds is 0"),
        ({"cohort": 12}, "cohort is 12; expected a multiple of 8"),
        ({"clients": (999,)}, "expected at least the 1000 per round"),
        ({"algorithms": ("sgd",)}, "expected some of fedavg, scaffold"),
    ],
)
def test_bad_options_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(million.Options(), **changes)
