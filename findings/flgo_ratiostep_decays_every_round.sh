#!/bin/sh
# FLGo's schedule "ratiostep": the rate falls in every round but those in which it should.
#
# Guess: ratiostep_0.25 multiplies the clients' rate by the decay after each quarter of the rounds,
# as its description says, so that the last of 40 rounds has a few factors of the decay.  The rounds
# that end a quarter are those left out: the rate falls before all others, in 35 of 39 cases, and
# with a decay of 0.5 goes from 0.1 to 3e-12.  Training seems to have converged.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check \
    torch==2.13.0 numpy==2.4.6 scipy tqdm matplotlib prettytable ujson pynvml pyyaml networkx \
    requests toolz
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps \
    flgo==0.4.4
cd "$folder"
"$folder/venv/bin/python" - 2>"$folder/log" <<'PYTHON' || { cat "$folder/log"; exit 1; }
import contextlib
import importlib.metadata
import io

import flgo
import flgo.algorithm.fedavg as algorithm

print("flgo", importlib.metadata.version("flgo"))
OPTIONS = {
    "num_steps": 1,
    "batch_size": -1,  # all examples
    "learning_rate": 0.1,
    "train_holdout": 0.0,
    "eval_interval": -1,
    "no_tqdm": True,
    "no_log_console": True,
}
PROBLEM = "flgo.benchmark.distributed_quadratic_programming"
with contextlib.redirect_stdout(io.StringIO()):
    flgo.gen_task(
        {"benchmark": {"name": PROBLEM, "para": {"num_clients": 4, "data_size": 5}}}, "task"
    )


def rates(schedule):
    """The clients' rate in each of 40 rounds."""
    runner = flgo.init(
        "task",
        algorithm,
        {**OPTIONS, "num_rounds": 40, "lr_scheduler": schedule, "learning_rate_decay": 0.5},
    )
    found = []
    sample = runner.sample

    def observed():
        found.append(runner.clients[0].learning_rate)
        return sample()

    runner.sample = observed
    with contextlib.redirect_stdout(io.StringIO()):
        runner.run()
    return found


ratio, step = rates("ratiostep_0.25"), rates("step_10")
print("rounds 1, 9, 10, 11, 12 and 40")
for name, found in {"ratiostep_0.25": ratio, "step_10": step}.items():
    print(name, *(f"{found[k - 1]:.3g}" for k in (1, 9, 10, 11, 12, 40)))
falls = sum(a != b for a, b in zip(ratio, ratio[1:]))
print(f"falls between the 40 rounds: ratiostep_0.25 {falls}, 3 described")
assert falls == 35 and ratio[8] == ratio[9]
assert abs(step[-1] - 0.1 * 0.5**4) < 1e-9
assert ratio[-1] < 1e-10
PYTHON
