"""``fedjax-sim clients``: a summary and figures before any training."""

import dataclasses

import pytest
from fedjax_sim.studies.setups.config import RunConfig

from fedjax_sim.cli.draw_clients import draw
from fedjax_sim.cli.main import main


@pytest.mark.slow
def test_the_command_draws_and_counts(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    options = (
        "--partition pfllib-dir --num-clients 10 --alpha 0.5 --test-of clients "
        "--held-out-clients 0.2 --validation 0.1 --feature-shift rotation --partition-seed 1"
    )
    assert main(["clients", *options.split(), "--output", str(tmp_path / "drawn")]) == 0
    shown = " ".join(capsys.readouterr().out.replace("\u2502", " ").split())
    assert "digits, partition pfllib-dir" in shown
    assert "clients that train 8 " in shown
    assert "clients that never train 2 " in shown
    assert "feature shift rotation" in shown
    for name in ("test examples per client", "validation examples", "label distance"):
        assert name in shown
    files = {path.name for path in (tmp_path / "drawn").iterdir()}
    assert files == {"labels.png", "sizes.png", "examples.png"}
    assert not (tmp_path / "results").exists()


def test_a_partition_per_seed_is_drawn_as_that_of_the_first_seed(tmp_path):
    config = RunConfig(num_clients=8, partition_seed=10, seed=3, seeds=1, output=tmp_path)
    shown, first = (
        list(draw(own, 8)[0].columns[1].cells)
        for own in (
            dataclasses.replace(config, partition_per_seed=True),
            dataclasses.replace(config, partition_seed=13),
        )
    )
    assert shown == first


def test_tables_of_features_have_no_figure_of_examples(tmp_path):
    (tmp_path / "table.csv").write_text(
        "a,b,site,label\n" + "\n".join(f"{i * 7 % 60},{i % 3},s{i % 4},{i % 2}" for i in range(60))
    )
    config = RunConfig(
        dataset=str(tmp_path / "table.csv"), client_column="site", partition="natural",
        feature_shift="noise", output=tmp_path / "drawn",
    )  # fmt: skip
    table, names = draw(config, 2)
    assert names == ["labels.png", "sizes.png"]
    assert list(table.columns[1].cells)[:2] == ["4", "48"]


def test_bad_options_are_one_line(capsys):
    assert main(["clients", "--partition", "shard"]) == 2
    assert "did you mean shards?" in capsys.readouterr().err
    with pytest.raises(ValueError, match="partition is 'pachinko': data set digits has no coarse"):
        draw(RunConfig(partition="pachinko"), 10)
