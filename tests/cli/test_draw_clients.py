"""``fedjax-sim clients``: a summary and figures before any training."""

import numpy as np
import pytest

from fedjax_sim.cli.draw_clients import draw
from fedjax_sim.cli.main import main
from fedjax_sim.studies.setups import Study, Table, options


@pytest.mark.slow
def test_the_command_draws_and_counts(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    typed = (
        "partition:pfllib-dir --alpha 0.5 shift:rotation --num-clients 10 --test-of clients "
        "--held-out-clients 0.2 --validation 0.1 --partition-seed 1"
    )
    assert main(["clients", *typed.split(), "--output", str(tmp_path / "drawn")]) == 0
    shown = " ".join(capsys.readouterr().out.replace("\u2502", " ").split())
    assert "digits, partition pfllib-dir" in shown
    assert "clients that train 8 " in shown
    assert "clients that never train 2 " in shown
    assert "shift rotation" in shown
    for name in ("test examples per client", "validation examples", "label distance"):
        assert name in shown
    files = {path.name for path in (tmp_path / "drawn").iterdir()}
    assert files == {"labels.png", "sizes.png", "examples.png"}
    assert not (tmp_path / "results").exists()


def test_a_partition_per_seed_is_drawn_as_that_of_the_first_seed(tmp_path):
    values = {"num_clients": 8, "seed": 3, "seeds": 1, "output": tmp_path}
    shown, first = (
        list(draw(Study(options(**values, **own)), 8)[0].columns[1].cells)
        for own in ({"partition_seed": 10, "partition_per_seed": True}, {"partition_seed": 13})
    )
    assert shown == first


def test_clients_of_a_study_module_have_no_partition_of_the_options(tmp_path):
    rows = [np.arange(0, 700), np.arange(700, 1438)]
    table, _ = draw(Study(options(seeds=1, output=tmp_path), rows=rows), 8)
    assert table.title == "digits, partition of the study module"
    assert next(iter(table.columns[1].cells)) == "2"


def test_tables_of_features_have_no_figure_of_examples(tmp_path):
    (tmp_path / "table.csv").write_text(
        "a,b,site,label\n" + "\n".join(f"{i * 7 % 60},{i % 3},s{i % 4},{i % 2}" for i in range(60))
    )
    study = Study(options(
        data=Table(tmp_path / "table.csv", client_column="site", scale="none"),
        partition="natural", shift="noise", output=tmp_path / "drawn",
    ))  # fmt: skip
    table, names = draw(study, 2)
    assert names == ["labels.png", "sizes.png"]
    assert list(table.columns[1].cells)[:2] == ["4", "48"]


def test_bad_options_are_one_line(capsys):
    assert main(["clients", "partition:shard"]) == 2
    assert "did you mean shards?" in capsys.readouterr().err
    with pytest.raises(ValueError, match="partition is 'pachinko': data set digits has no coarse"):
        draw(Study(options(partition="pachinko")), 10)
