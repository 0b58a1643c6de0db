#!/bin/sh
# FLGo's FedMGDA+: a server rate of 0.5 becomes 0, and the model never moves.
#
# Guess: the settings of an algorithm are used as given; the command line reads them as floats.
# They are then cast to the type of the default, and the default of the server's rate is the integer
# 1: rates below 1 become 0, rates from 1 to below 2 become 1.  Training with 0.5 runs without a
# message and ends where it began.  A sweep over rates of 0.1, 0.5 and 1 has one run that trains.
# TiFL's setting C, whose default is the integer 0, is cast in the same way.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check \
    torch==2.13.0 numpy==2.4.6 scipy tqdm matplotlib prettytable ujson pynvml pyyaml networkx \
    requests toolz cvxopt
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps \
    flgo==0.4.4
cd "$folder"
"$folder/venv/bin/python" - 2>"$folder/log" <<'PYTHON' || { cat "$folder/log"; exit 1; }
import contextlib
import importlib.metadata
import io

import flgo
import flgo.algorithm.fedmgda as algorithm

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
        {"benchmark": {"name": PROBLEM, "para": {"num_clients": 5, "data_size": 5}}}, "task"
    )


def trained(rate):
    """The rate that is used and the model after 20 rounds from (1, 1)."""
    options = {"num_rounds": 20, "proportion": 1.0, "sample": "full", "algo_para": [rate, 0.1]}
    runner = flgo.init("task", algorithm, {**OPTIONS, **options})
    runner.model.x.data.fill_(1.0)
    with contextlib.redirect_stdout(io.StringIO()):
        runner.run()
    return runner.eta, runner.model.x.detach().numpy().ravel()


found = {rate: trained(rate) for rate in (0.1, 0.9, 1.0, 1.9)}
for rate, (used, model) in found.items():
    print(f"rate {rate}: used {used!r}, the model after 20 rounds from (1, 1) {model}")
for rate in (0.1, 0.9):
    assert found[rate][0] == 0 and (found[rate][1] == 1.0).all()
assert found[1.0][0] == found[1.9][0] == 1
assert (found[1.0][1] == found[1.9][1]).all() and (found[1.0][1] != 1.0).all()
PYTHON
