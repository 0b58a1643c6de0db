"""``fedjax-sim fork``: alternatives as they are written, and a run that continues."""

import numpy as np
import pytest

import fedjax_sim as fs
from fedjax_sim.cli.fork import _parsed
from fedjax_sim.cli.main import main

HYPER = {"lr": 0.2}


def test_alternatives():
    assert _parsed("fedprox:mu=0.5", "fedavg", HYPER, 6)[:2] == ("fedprox", {"lr": 0.2, "mu": 0.5})
    assert _parsed("lr=0.1", "fedavg", HYPER, 6) == ("fedavg", {"lr": 0.1}, None, False)
    restarted = _parsed("fedadam:restart=true,server_lr=0.1", "fedavg", HYPER, 6)
    assert restarted.algorithm == "fedadam"
    assert restarted.restart
    assert restarted.hyper["server_lr"] == 0.1
    timeline = fs.timelines.full(2, 6, 1)
    change = _parsed("remove=3/5,lose=0,delay=1,by=2,lr=0.3", "fedavg", HYPER, 6).change
    changed = change(timeline)
    arrived = np.array([False, True, True, False, True, False])
    np.testing.assert_array_equal(changed.arrived, [arrived] * 2)
    assert changed.max_staleness == 2
    assert changed.version.tolist() == [[0] * 6, [1, 0, 1, 1, 1, 1]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("=3", r"alternatives has '=3'; expected ALGORITHM or"),
        ("remove=x", r"alternatives has 'remove=x' with 'x'; expected a number"),
        ("remove=3/6", r"alternatives has 'remove=3/6' with client 6; expected clients 0 \.\. 5"),
        ("fedprux:mu=1", r"alternatives has 'fedprux:mu=1': .*fedprux"),
        ("rate=1", r"alternatives has 'rate=1': .*fedavg has lr"),
        ("restart=yes", r"alternatives has 'restart=yes' with restart=yes; expected true or false"),
        ("remove=1,by=3", r"alternatives has 'remove=1,by=3'; expected delay=CLIENTS with by"),
    ],
)
def test_refused_alternatives(text, message):
    with pytest.raises(ValueError, match=message):
        _parsed(text, "fedavg", HYPER, 6)


@pytest.mark.slow
def test_command(tmp_path, capsys):
    """A fork before the last round; after the last round there is nothing to continue."""
    run = "--algorithms fedavg --rounds 4 --num-clients 8 --cohort-size 4 --seeds 2"
    model = ["--model", "softmax_regression", "--local-steps", "1"]
    options = [*run.split(), *model, "--output", str(tmp_path)]
    assert main(["run", "quickstart", *options]) == 0
    capsys.readouterr()
    tables = []
    (tmp_path / "fork_3.png").write_text("of an earlier fork")
    for at in ("3", "4"):
        code = main(["fork", str(tmp_path), "--round", at, "--alternatives", "lr=0.2", "remove=1"])
        tables.append(capsys.readouterr())
        assert code == (0 if at == "3" else 2)
    first, *rows = tables[0].out.splitlines()
    assert first == "test/accuracy minus that of the unchanged run, after round 4:"
    assert rows[0].startswith("lr=0.2")
    assert "+0.0000 [+0.0000, +0.0000]" in rows[0]  # the rate of the run
    assert rows[1].startswith("remove=1")
    assert rows[2] == f"figure: {tmp_path / 'fork_3_2.png'}"
    assert (tmp_path / "fork_3_2.png").exists()
    assert (tmp_path / "fork_3.png").read_text() == "of an earlier fork"
    assert "round is 4; expected 1 .. 3" in tables[1].err
