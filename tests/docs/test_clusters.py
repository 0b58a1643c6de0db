"""Every command of docs/clusters.md and its scripts runs as it is printed.

Replaced are addresses, the data set of a preset, and sizes: options for a small run follow those of
the command, and of an array only the first job runs.  Slurm's commands and gcloud are stand-ins
that start the processes here; tests/clusters/slurm_trial.sh uses a real Slurm.  Of the commands
with one script the first runs, and the arguments that the script makes of the others are parsed.
"""

import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import processes
import pytest

from fedjax_sim.cli.grid import SWEEP
from fedjax_sim.cli.main import main
from fedjax_sim.cli.options import parse
from fedjax_sim.cli.run_options import RunOptions
from fedjax_sim.studies.setups import Run

ROOT = pathlib.Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "clusters.md"
SCRIPTS = sorted((ROOT / "docs" / "clusters").iterdir())
SMALL = (
    "--rounds 2 --seeds 2 --num-clients 20 --cohort-size 4 --local-steps 5 --eval-every 1 "
    "--model softmax_regression"
)
STARTS = r"(?:[A-Z]+=\S+ )*(?:sbatch|bash docs/clusters|fedjax-sim|python -m)\b"

STAND_INS = {
    # sbatch [--job-name=NAME] [--array=RANGE] SCRIPT [ARGUMENT ...]
    "sbatch": r"""
        name= array=
        while [[ $1 == --* ]]; do
            case $1 in --job-name=*) name=${1#*=};; --array=*) array=${1#*=};; *) exit 9;; esac
            shift
        done
        of_script() { sed -n "s/^#SBATCH --$1=//p" "$script"; }
        script=$1; shift
        export SLURM_JOB_NAME=${name:-$(of_script job-name)} SLURM_JOB_ID=$PORT
        export SLURM_SUBMIT_DIR=$PWD
        array=${array:-$(of_script array)}
        [ -z "$array" ] || export SLURM_ARRAY_TASK_ID=${array%%-*}
        nodes=$(of_script nodes); export SLURM_NTASKS=${nodes:-1}
        exec bash "$script" "$@" """,
    "srun": r"""
        [ "$1" != --kill-on-bad-exit=0 ] || shift
        export SLURM_STEP_NODELIST=localhost SLURM_STEP_NUM_NODES=$SLURM_NTASKS SLURM_LOCALID=0
        export SLURM_STEP_TASKS_PER_NODE="1(x$SLURM_NTASKS)" SLURM_GPUS_ON_NODE=4
        for ((i = 0; i < SLURM_NTASKS; i++)); do
            SLURM_PROCID=$i SLURM_NODEID=$i "$@" & pids[$i]=$!
        done
        code=0
        for pid in "${pids[@]}"; do wait $pid || { c=$?; code=$((c > code ? c : code)); }; done
        exit $code""",
    "scontrol": 'echo "scontrol $*"',
    # The last argument is the command for the hosts; what needs a network is not run.
    "gcloud": r"""
        echo "gcloud ${*: -1}"
        case "${*: -1}" in *"git clone"*|*"pip install"*) exit 0;; esac
        mkdir -p fedjax_sim && cp -r .venv fedjax_sim/
        export SLURM_JOB_ID=$PORT SLURM_NTASKS=1 SLURM_PROCID=0 SLURM_NODEID=0 SLURM_LOCALID=0
        export SLURM_STEP_NODELIST=localhost SLURM_STEP_TASKS_PER_NODE=1
        exec bash -c "${*: -1}" """,
}


def commands() -> list[str]:
    """Commands of the page and of the scripts' comments, each once."""
    text = PAGE.read_text()
    blocks = re.findall(rf"^    ({STARTS}.*)$", text, re.MULTILINE)
    inline = re.findall(rf"`({STARTS}[^`]*)`", re.sub(r"\n\s*", " ", text))
    comments = [
        found
        for path in SCRIPTS
        for found in re.findall(rf"^#.*?({STARTS}.*)$", path.read_text(), re.MULTILINE)
    ]
    # In a comment the rest of a known command is left out; a name alone is no command.
    found = dict.fromkeys([*blocks, *inline, *comments])
    return [c for c in found if " " in c and not c.endswith("/...")]


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> pathlib.Path:
    """A clone with its environment, as far as the commands use it."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copytree(ROOT / "docs" / "clusters", folder / "docs" / "clusters")
    program = f"""
        [ -z "$PRINT" ] || {{ echo "arguments: $*"; exit; }}
        exec {shlex.quote(sys.executable)} -m fedjax_sim.cli "$@" """
    files = {f"bin/{name}": body for name, body in STAND_INS.items()}
    files |= {"bin/fedjax-sim": program, ".venv/bin/fedjax-sim": program}
    for name, body in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)
    subprocess.run(["git", "init", "-q", folder], check=True)
    subprocess.run(["git", "-C", folder, "remote", "add", "origin", "x"], check=True)
    return folder


def run(project: pathlib.Path, command: str, *, prints: bool = False) -> str:
    """The command's output; ``prints``: ``fedjax-sim`` prints its arguments and does not run."""
    port = processes.free_port()
    env = processes.environment(
        project / ".cache", PORT=str(port), PYTHONPATH=str(ROOT), RESULTS=str(project / "results"),
        PATH=f"{project / 'bin'}{os.pathsep}{os.environ['PATH']}", JAX_COORDINATOR_PORT=str(port),
        PRINT="1" if prints else "",
    )  # fmt: skip
    done = subprocess.run(
        ["bash", "-c", command], cwd=project, env=env, timeout=600, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


def small(command: str) -> str:
    """The command with another data set, a folder of its own, and small sizes."""
    words = command.replace("femnist", "quickstart").replace(" ... ", " quickstart ")
    if " plot " in words or " list" in words:
        return words
    # A flag may be given once: those of the small run replace the command's.
    words = re.sub(rf" ({'|'.join(re.findall(r'--[a-z-]+', SMALL))}) \S+", "", words)
    if " sweep" in words or "sweep_array" in words:
        return f"{words} {SMALL.replace('--cohort-size 4 ', '')} --algorithms fedavg"
    return f"{words} {SMALL} --algorithms scaffold"


def test_the_page_has_commands():
    found = commands()
    assert sum("sbatch" in command for command in found) >= 4
    assert sum("--coordinator" in command for command in found) == 2
    assert sum("tpu_pod.sh" in command for command in found) == 1


def of_scripts() -> tuple[list[str], list[str]]:
    """The first command with each script, and the others."""
    scripts = {c: found[0] for c in commands() if (found := re.search(r"docs/clusters/\S+", c))}
    first = {script: command for command, script in reversed(scripts.items())}
    return [c for c in scripts if c in first.values()], [
        c for c in scripts if c not in first.values()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("command", of_scripts()[0])
def test_scripts_run_as_printed(project, command):
    output = run(project, small(command))
    if "slurm.sbatch" in command:
        # Each of two processes has all devices of its node; no GPU is used. Process 0 prints and
        # writes, and its results are those of one process.
        processes_line = r"^2 processes, (\d+) devices \(cpu, (\d+) per process\); idle: 8 GPUs"
        devices, each = map(int, re.findall(processes_line, output, re.MULTILINE)[0])
        assert devices == 2 * each
        folder = project / "results" / "fedjax-sim"
        config = json.loads((folder / "config.json").read_text())["config"]
        assert config["execution"]["num_strata"] == devices
        assert "coordinator" not in config
        assert output.count("results: ") == output.count(f"2 processes, {devices} devices") == 1
        assert "Gloo" not in output
        one = project / "results" / "one"
        options = f"{SMALL} --algorithms scaffold --num-strata {devices} --output {one}"
        assert main(["run", "quickstart", *options.split()]) == 0
        assert_same_history(folder, one)


def assert_same_history(folder: pathlib.Path, other: pathlib.Path):
    keys = ["algorithm", "seed", "round", "metric"]
    first, second = (pd.read_csv(path / "history.csv") for path in (folder, other))
    assert len(first) > 0
    pd.testing.assert_frame_equal(first[keys], second[keys])
    # An example at the border of two classes may be counted for the other.
    np.testing.assert_allclose(first["value"], second["value"], rtol=1e-4, atol=3e-3)


@pytest.mark.parametrize("command", of_scripts()[1])
def test_scripts_pass_the_arguments_on(project, command):
    output = run(project, small(command), prints=True)
    called, preset, *options = re.findall(r"^arguments: (.*)$", output, re.MULTILINE)[0].split()
    assert preset == "quickstart"
    if called == "sweep":
        *_, study, _ = SWEEP.read([preset, *options], "")
        given = study.options
    else:
        given = parse(RunOptions, "run quickstart", "", options, RunOptions(Run())).run
    name = re.search(r"--job-name=(\S+)", command)
    script = re.search(r"docs/clusters/\S+", command)[0]
    default = re.search(r"^#SBATCH --job-name=(\S+)", (ROOT / script).read_text(), re.MULTILINE)
    assert str(given.output) == f"results/{(name or default)[1]}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [c for c in commands() if not re.search("--coordinator|docs/clusters/", c)]
)
def test_commands_run_as_printed(project, command, monkeypatch):
    if command.startswith("python -m experiments."):  # it takes hours; tests/experiments has it
        assert (ROOT / f"{command.split()[2].replace('.', '/')}.py").exists()
        return
    monkeypatch.chdir(project)
    if " plot " in command and not (project / "results/fedjax-sim").exists():
        run(project, small("sbatch docs/clusters/slurm.sbatch femnist"))
    program, *arguments = shlex.split(small(command))
    assert program == "fedjax-sim"
    assert main(arguments) == 0


@pytest.mark.slow
def test_a_refusal_is_printed_once(project):
    """Both commands under "Several processes".  Slurm's script has a run of two processes."""
    port = processes.free_port()
    pair = [c.replace("10.0.0.1:1234", f"localhost:{port}") for c in commands() if "--coord" in c]
    # Each by its own number: `wait -n` misses the second of two that ended before it was called.
    both = "; ".join(f"{small(c)} --num-strata 1 & pids+=($!)" for c in pair)
    output = run(project, f"{both}; for p in ${{pids[@]}}; do wait $p; [ $? = 2 ] || exit 1; done")
    assert output.count("fedjax-sim: error: --num-strata is 1; expected a multiple of the") == 1


@pytest.mark.parametrize("name", ["slurm.sbatch", "sweep_array.sbatch"])
@pytest.mark.parametrize(
    ("code", "restarts", "requeued"),
    [(0, 0, False), (1, 0, False), (130, 0, True), (130, 100, False), (143, 0, False)],
)
def test_scripts_requeue_interrupted_jobs(tmp_path, name, code, restarts, requeued):
    """130: a notice before the time limit.  143: scancel."""
    for program, body in (("srun", f"exit {code}"), ("scontrol", 'echo "scontrol $*"')):
        (tmp_path / program).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / program).chmod(0o755)
    env = {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "x", "SLURM_ARRAY_TASK_ID": "1",
        "SLURM_RESTART_COUNT": str(restarts),
    }  # fmt: skip
    script = ROOT / "docs" / "clusters" / name
    done = subprocess.run(["bash", script], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert ("scontrol requeue 7" in done.stdout) == requeued
