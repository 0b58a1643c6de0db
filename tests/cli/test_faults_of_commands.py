"""Commands on locked, full, read-only and damaged folders, and under signals: one line each."""

import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import types

import pytest
from full_disk import full_disk

from fedjax_sim.cli import report
from fedjax_sim.cli.main import main
from fedjax_sim.runs import comparison as comparing
from fedjax_sim.runs.simulation import execute
from fedjax_sim.runs.storage.locks import locked

OPTIONS = shlex.split(
    "--model softmax_regression --num-clients 20 --cohort-size 3 --rounds 4 --local-steps 2 "
    "--seeds 1 --eval-every 1"
)
RUN = ["run", "quickstart", *OPTIONS, "--algorithms", "fedavg"]
SWEEP = ["sweep", "quickstart", *OPTIONS, "--grid.lr.values", "0.1", "0.2"]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    assert main([*RUN, "--output", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def sweep_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    assert main([*SWEEP, "--output", str(folder)]) == 0
    return folder


@pytest.fixture(params=["run", "sweep"])
def finished(request, tmp_path):
    """A command and a copy of its results."""
    source = request.getfixturevalue(f"{request.param}_folder")
    folder = shutil.copytree(source, tmp_path / "copied")
    return [*{"run": RUN, "sweep": SWEEP}[request.param], "--output", str(folder)], folder


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def one_line(captured: str) -> str:
    """Returns the error; no traceback, and nothing else."""
    assert captured.startswith("fedjax-sim: error: ")
    assert captured.count("\n") == 1
    return captured


@pytest.mark.slow
def test_a_folder_in_use_is_refused_with_its_process(tmp_path, capsys):
    codes = []
    (tmp_path / "config.json").write_text("the other process writes it")
    command = [*RUN, "--output", str(tmp_path)]
    with locked(tmp_path):
        thread = threading.Thread(target=lambda: codes.append(main(command)))
        thread.start()
        thread.join()
    assert codes == [1]
    error = one_line(capsys.readouterr().err)
    assert f"{tmp_path} is in use by process {os.getpid()} on " in error
    assert list(contents(tmp_path)) == ["config.json"]


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_the_command_continues(tmp_path, run_folder, capsys):
    command = [*RUN, "--output", str(tmp_path)]
    with full_disk(9000):  # enough for config.json, not for a checkpoint
        code = main(command)
    error = capsys.readouterr().err
    assert code == 1
    assert "Traceback" not in error
    assert f"fedjax-sim: error: {tmp_path}" in error
    assert "File too large; everything before the error is kept in" in error
    assert "the same command continues" in error
    assert main(command) == 0
    assert contents(tmp_path)["history.csv"] == contents(run_folder)["history.csv"]


@pytest.mark.slow
def test_a_finished_read_only_folder_is_reported(finished, monkeypatch, capsys):
    command, folder = finished
    before = contents(folder)
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).startswith(str(folder)))
    monkeypatch.setattr(pathlib.Path, "touch", lambda *args: pytest.fail("writes"))
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "fedavg" in printed
    assert contents(folder) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "old", "new", "problem"),
    [
        ("config.json", '"rounds": 4', '"rounds": 5', "config.json is damaged (it is not what was"),
        (
            "config.json",
            '"rounds": 4',
            '"rounds": "4"',
            'config.time.rounds is "4"; expected an int',
        ),
        (
            "config.json",
            '"rounds": 4',
            '"roumds": 4',
            "unknown key config.time.roumds; did you mean rounds?",
        ),
        ("fedavg/timing.json", '"local_steps": 24', '"local_steps": 23', "timing.json is damaged"),
        ("fedavg/run.json", "{", "[", "run.json is damaged"),
        ("fedavg/history.csv", ",4,test/loss,", ",4,test/lost,", "history.csv, line "),
    ],
)
def test_edited_files_are_named(run_folder, tmp_path, capsys, name, old, new, problem):
    folder = shutil.copytree(run_folder, tmp_path / "copied")
    text = (folder / name).read_text()
    assert old in text
    if "config." in problem and "damaged" not in problem:  # by hand, as a user's own configuration
        text = re.sub('"sha256": "[0-9a-f]+",', "", text)
    (folder / name).write_text(text.replace(old, new))
    assert main([*RUN, "--output", str(folder)]) in (1, 2)
    error = one_line(capsys.readouterr().err)
    assert problem in error
    assert str(folder / name) in error


@pytest.mark.slow
def test_an_edited_history_of_another_algorithm_is_named(run_folder, tmp_path, capsys):
    """One that this call does not run, but merges."""
    folder = shutil.copytree(run_folder, tmp_path / "copied")
    path = folder / "fedavg" / "history.csv"
    path.write_text(path.read_text().replace(",4,test/loss,", ",3,test/loss,"))
    command = [*RUN[:-1], "scaffold", "--output", str(folder)]
    assert main(command) == 2
    assert f"{path}, line " in one_line(capsys.readouterr().err)


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--target", "0.5"]])
def test_a_table_before_the_first_evaluation(run_folder, tmp_path, capsys, options):
    """A kill between the files that name a run and its first rows."""
    folder = shutil.copytree(run_folder, tmp_path / "copied")
    for name in ("history.csv", "history.digests", "outcome.json"):
        (folder / "fedavg" / name).unlink()
    shutil.rmtree(folder / "fedavg" / "checkpoints")
    assert main(["table", str(folder), *options]) == 2
    error = f"FOLDER is {str(folder)!r}, which has no evaluation of a model yet; expected one"
    assert error in one_line(capsys.readouterr().err)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_damaged_slice_is_repeated_with_a_message(sweep_folder, tmp_path, capsys):
    folder = shutil.copytree(sweep_folder, tmp_path / "copied")
    path = sorted((folder / "slices").glob("*.npz"))[0]
    path.write_bytes(path.read_bytes()[:-50])
    assert main([*SWEEP, "--output", str(folder)]) == 0
    printed = capsys.readouterr()
    assert printed.err.startswith(f"fedjax-sim: warning: {path} is damaged")
    assert printed.err.count("\n") == 1
    assert "2 runs (0 found)" in printed.out
    assert contents(folder)["history.csv"] == contents(sweep_folder)["history.csv"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_a_run_after_its_segment(tmp_path, run_folder, monkeypatch, capsys, number):
    def progress(now):
        if now.round == 2:
            signal.raise_signal(number)

    def interrupting(prepared):
        callbacks = [*prepared.call.callbacks, types.SimpleNamespace(progress=progress)]
        return execute(prepared._replace(call=prepared.call._replace(callbacks=callbacks)))

    command = [*RUN, "--output", str(tmp_path)]
    with monkeypatch.context() as patch:
        patch.setattr(comparing, "execute", interrupting)
        assert main(command) == 128 + number
    assert "to resume: fedjax-sim run" in capsys.readouterr().out
    assert main(command) == 0
    assert contents(tmp_path)["history.csv"] == contents(run_folder)["history.csv"]


def test_signals_before_the_first_round_are_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(report, "check_folder", lambda *_: signal.raise_signal(signal.SIGTERM))
    assert main([*RUN, "--output", str(tmp_path / "results")]) == 143
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("loaded", ["numpy", "pandas"])
def test_ctrl_c_while_starting_prints_no_traceback(tmp_path, loaded):
    """While Python imports, and before the first round."""
    command = [pathlib.Path(sys.executable).with_name("fedjax-sim"), *RUN]
    # Tests in the background of a shell script ignore SIGINT, and so would the process.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [*command, "--output", str(tmp_path)], stderr=subprocess.PIPE, stdout=subprocess.PIPE,
        env=dict(os.environ, JAX_PLATFORMS="cpu"), text=True,
    )  # fmt: skip
    signal.signal(signal.SIGINT, before)
    maps = pathlib.Path(f"/proc/{process.pid}/maps")
    while loaded not in maps.read_text() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=120)
    assert "Traceback" not in error
    assert process.returncode in (130, -signal.SIGINT)


@pytest.mark.slow
def test_config_of_a_killed_start_is_complete(tmp_path, monkeypatch):
    """config.json is written under the lock, by the process whose results follow."""
    seen = []

    def observed(*args, **options):
        seen.append((tmp_path / ".lock.json").exists())
        assert json.loads((tmp_path / "config.json").read_text())["config"]["time"]["rounds"] == 4
        raise KeyboardInterrupt

    monkeypatch.setattr(comparing, "execute", observed)
    assert main([*RUN, "--output", str(tmp_path)]) == 130
    assert seen == [True]
