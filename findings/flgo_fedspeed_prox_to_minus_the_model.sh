#!/bin/sh
# FLGo's FedSpeed: the proximal term pulls to minus the global model, so the result is too small.
#
# Guess: steps follow g + lambda (x - w + c), where w is the global model and c the client's sum of
# past changes.  With that, clients with quadratic losses reach the mean of their optima, whatever
# lambda is.  Here x is pulled to 0 as weight decay, and w and c have the other sign, so that steps
# follow g + lambda (x + w - c).  The result is the optimum divided by 1 + 2 lambda: by 1.02 with
# the default 0.01, by 1.10 with 0.05; with lambda 0 it is right.
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
import flgo.algorithm.fedspeed as algorithm
import numpy as np

print("flgo", importlib.metadata.version("flgo"))
OPTIONS = {
    "num_steps": 5,
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
        {"benchmark": {"name": PROBLEM, "para": {"num_clients": 6, "data_size": 5, "std": 3.0}}},
        "task",
    )
ROUNDS = 150


def trained(penalty):
    """The model after 150 rounds of all clients without perturbation, and the clients' optima."""
    options = {"num_rounds": ROUNDS, "proportion": 1.0, "sample": "full"}
    runner = flgo.init(
        "task", algorithm, {**OPTIONS, **options, "algo_para": [penalty, 0.0, 0.0]}
    )
    with contextlib.redirect_stdout(io.StringIO()):
        runner.run()
    optima = [
        np.mean([np.asarray(data[i][0]) for i in range(len(data))], axis=0)
        for data in (client.train_data for client in runner.clients)
    ]
    return runner.model.x.detach().numpy().ravel(), np.array(optima)


def paper(penalty, optima):
    """The same rounds by the paper's rule."""
    model, changes = np.zeros(2), np.zeros_like(optima)
    for _ in range(ROUNDS):
        local = np.tile(model, (len(optima), 1))
        for _ in range(5):
            local = local - 0.1 * (local - optima + penalty * (local - model + changes))
        changes = changes + local - model
        model = np.mean(local + changes, axis=0)
    return model


for penalty in (0.0, 0.01, 0.05):
    found, optima = trained(penalty)
    best, right = optima.mean(axis=0), paper(penalty, optima)
    print(f"lambda {penalty}: FLGo {found}, paper {right}, optimum {best}, ratio {best / found}")
    assert np.allclose(right, best, rtol=1e-3)
    assert np.allclose(found * (1 + 2 * penalty), best, rtol=1e-3)
PYTHON
