"""Records of the environment: versions, devices, revision of the code."""

import json
import subprocess

import jax
import pytest
import small_runs

from fedjax_sim.engine import execution
from fedjax_sim.runs import RunFolder
from fedjax_sim.runs.storage import environment


def test_git_revision(tmp_path):
    file = tmp_path / "code.py"
    file.write_text("x = 1\n")
    assert environment.git_revision(file) is None  # no checkout

    def git(*arguments: str) -> str:
        name = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        command = ["git", "-C", str(tmp_path), *name, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    assert environment.git_revision(file) is None  # a checkout of something else
    git("add", "code.py")
    git("commit", "-q", "-m", "first")
    head = git("rev-parse", "HEAD")
    assert environment.git_revision(file) == {"revision": head, "modified": False}
    file.write_text("x = 2\n")
    assert environment.git_revision(file) == {"revision": head, "modified": True}


def test_calls_are_read_without_a_torn_line(tmp_path):
    assert RunFolder(tmp_path).calls() == []
    for done in (0, 3):
        environment.log_call(tmp_path / "calls.jsonl", done, execution.vmapped)
    with (tmp_path / "calls.jsonl").open("a") as file:
        file.write('{"began": "2026')  # a kill while the line was written
    calls = RunFolder(tmp_path).calls()
    assert [call["after_round"] for call in calls] == [0, 3]
    assert calls[0]["execution"] == "vmapped"
    environment.log_call(tmp_path / "calls.jsonl", 5, execution.vmapped)
    assert [call["after_round"] for call in RunFolder(tmp_path).calls()] == [0, 3, 5]


@pytest.mark.slow
def test_every_call_that_computes_leaves_a_line(tmp_path):
    small_runs.run(tmp_path)
    small_runs.run(tmp_path)  # finished: nothing to record
    (entry,) = map(json.loads, (tmp_path / "calls.jsonl").read_text().splitlines())
    assert (entry["after_round"], entry["execution"]) == (0, "auto")
    assert entry["num_devices"] == jax.device_count()
    assert entry["versions"]["jax"] == jax.__version__
    assert entry["code"] == environment.code_digest()
