"""``fedjax-sim fork``: alternatives as they are written, and a run that continues."""

import json

import jax
import numpy as np
import pytest

import fedjax_sim as fs
from fedjax_sim.cli import fork
from fedjax_sim.cli.fork import AlternativeOptions, ForkOptions, with_alternatives
from fedjax_sim.cli.main import main
from fedjax_sim.cli.options import parse
from fedjax_sim.studies.setups import Study, options, problem, resolve, to_json

RUN = options(
    algorithms=("fedavg",), num_clients=6, cohort_size=6, seeds=1, model="softmax_regression"
)


def test_alternatives_have_names():
    typed = (
        "--round 3 --alternatives.slow.hyper.lr 0.1 --alternatives.new.algorithm fedadam "
        "--alternatives.new.restart --alternatives.new.hyper.server-lr 0.1 "
        "--alternatives.out.remove 3 5 --alternatives.out.late 1 --alternatives.out.delay 2"
    ).split()
    default = ForkOptions(0, alternatives=with_alternatives(typed))
    assert parse(ForkOptions, "fork FOLDER", "", typed, default).alternatives == {
        "slow": AlternativeOptions(hyper={"lr": 0.1}),
        "new": AlternativeOptions("fedadam", {"server_lr": 0.1}, restart=True),
        "out": AlternativeOptions(remove=(3, 5), late=(1,), delay=2),
    }


def test_changes_of_the_timeline():
    one = AlternativeOptions(remove=(3, 5), lose=(0,), late=(1,), delay=2)
    changed = fork._change(one)(fs.timelines.full(2, 6, 1))
    arrived = np.array([False, True, True, False, True, False])
    np.testing.assert_array_equal(changed.arrived, [arrived] * 2)
    assert changed.max_staleness == 2
    assert changed.version.tolist() == [[0] * 6, [1, 0, 1, 1, 1, 1]]
    assert fork._change(AlternativeOptions(hyper={"lr": 0.3})) is None


def test_hyper_parameters_of_the_run_remain():
    """Those that all algorithms share remain under another one; its own ones under the same."""
    comparison = resolve(Study(RUN))

    def spec(**changes):
        return fork._built(comparison, "fedavg", "one", AlternativeOptions(**changes)).spec

    assert spec() == comparison.algorithm("fedavg").spec
    assert spec(hyper={"lr": 0.1}) == fs.fedavg(0.1).spec
    assert spec(algorithm="fedprox", hyper={"mu": 0.5}) == fs.fedprox(0.2, 0.5).spec


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("--round 3", "--alternatives is empty; expected at least one"),
        (
            "--round 0 --alternatives.a.hyper.lr 1",
            "--round is 0; expected an integer of at least 1",
        ),
        ("--round 3 --alternatives.a.remove x", "Error parsing --alternatives.a.remove"),
        ("--round 3 --alternatives.a.remove 6", "a.remove has client 6; expected clients 0 .. 5"),
        ("--round 3 --alternatives.a.late 1 --alternatives.a.delay 0", "a.delay is 0; expected an"),
        ("--round 3 --alternatives.a.algorithm fedprux", "has 'fedprux'; .*mean fedprox?"),
        (
            "--round 3 --alternatives.a.hyper.rate 1",
            "alternatives.a: hyper has fedavg.rate; fedavg",
        ),
        ("--round 3 --alternatives.a 1", "--alternatives.a is no option; expected further names"),
        ("--round 3 --alternatives lr=0.2", "--alternatives is no option; expected further names"),
        (
            "--round 3 --algorithm fedprox --alternatives.a.lose 0",
            "--algorithm is 'fedprox'; expec",
        ),
    ],
)
def test_refused_alternatives(tmp_path, capsys, typed, message):
    saved = {"config": to_json(RUN), "algorithms": {"fedavg": {"lr": 0.2}}}
    (tmp_path / "config.json").write_text(json.dumps(saved))
    assert main(["fork", str(tmp_path), *typed.split()]) == 2
    error = capsys.readouterr().err
    first, _, last = message.partition(".*")
    assert first in error
    assert last in error
    assert "Error parsing" in message or error.count("\n") == 1


def test_a_folder_without_a_configuration_is_refused(tmp_path, capsys):
    assert main(["fork", str(tmp_path), "--round", "1", "--alternatives.a.hyper.lr", "1"]) == 2
    assert "which has no config.json; expected a folder that" in capsys.readouterr().err


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
        code = main(
            [
                "fork",
                str(tmp_path),
                "--round",
                at,
                "--alternatives.same.hyper.lr",
                "0.2",
                "--alternatives.without.remove",
                "1",
            ]
        )
        tables.append(capsys.readouterr())
        assert code == (0 if at == "3" else 2)
    first, *rows = tables[0].out.splitlines()
    assert first == "test/accuracy minus that of the unchanged run, after round 4:"
    assert rows[0].startswith("same")
    assert "+0.0000 [+0.0000, +0.0000]  2 seeds" in rows[0]  # the rate of the run
    assert rows[1].startswith("without")
    assert rows[2] == f"figure: {tmp_path / 'fork_3_2.png'}"
    assert (tmp_path / "fork_3_2.png").exists()
    assert (tmp_path / "fork_3.png").read_text() == "of an earlier fork"
    assert "round is 4; expected 1 .. 3" in tables[1].err
    saved = json.loads((tmp_path / "config.json").read_text())
    del saved["sha256"]
    saved["algorithms"]["fedavg"]["lr"] = 0.3  # as after a copy of another file
    (tmp_path / "config.json").write_text(json.dumps(saved))
    assert main(["fork", str(tmp_path), "--round", "3", "--alternatives.a.remove", "1"]) == 2
    assert "fedavg' holds another run: " in capsys.readouterr().err


@pytest.mark.slow
def test_an_algorithm_that_was_added_with_its_examples_on_the_host(tmp_path, capsys, monkeypatch):
    """The run of each algorithm says where its examples were; config.json has the last call's."""
    small = "--rounds 2 --num-clients 6 --cohort-size 3 --seeds 1 --local-steps 1 --eval-every 1"
    words = [*small.split(), "--model", "softmax_regression", "--output", str(tmp_path)]
    assert main(["run", "quickstart", "--algorithms", "fedavg", *words]) == 0
    host = ["--algorithms", "fedprox", "--examples-memory", "0.001"]
    assert main(["run", "quickstart", *host, *words]) == 0

    def forked(algorithm, *options):
        capsys.readouterr()
        slow = ["--alternatives.slow.hyper.lr", "0.05"]
        flags = ["--round", "1", "--algorithm", algorithm, *slow, *options]
        return main(["fork", str(tmp_path), *flags]), capsys.readouterr().err

    assert forked("fedavg") == (0, "")
    with monkeypatch.context() as patched:  # refused before anything runs
        patched.setattr(fork.forking, "fork", None)
        code, error = forked("fedavg", "--metric", "test/acuracy")
        assert (code, "--metric is 'test/acuracy'; expected one of " in error) == (2, True)
        code, error = forked("fedavg", "--output", "figure.jpg")
        assert (code, "--output is 'figure.jpg'; expected a name that" in error) == (2, True)
    code, error = forked("fedprox")
    assert code == 2
    assert "whose fedprox ran with --examples-memory; expected a run with all exa" in error
    functions_of = problem.functions_of

    def doubled(*arguments):
        loss, metrics = functions_of(*arguments)
        return jax.tree_util.Partial(lambda *x: 2 * loss(*x)), metrics

    monkeypatch.setattr(problem, "functions_of", doubled)
    code, error = forked("fedavg")
    assert code == 2
    assert "what the objective computes has changed" in error
    assert "accept_changed_code=True" in error
    assert forked("fedavg", "--accept-changed-code") == (0, "")
