#!/bin/sh
# FLGo's power-of-choice: it trains the first d clients only.
#
# Guess: d candidates are drawn from all clients, each with the probability of its share of the
# examples, and those with the largest losses train.  The ranks of the candidates' losses are then
# used as numbers of clients, so that with 40 clients and d = 8 the clients 0 to 7 train in all
# rounds whoever was drawn, in an order by losses of others.  The default d, all clients, hides it.
# Results for a small d are those of a population of d clients.
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
import flgo.algorithm.powerofchoice as algorithm
import numpy as np

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
CLIENTS, CANDIDATES, ROUNDS = 40, 8, 60
with contextlib.redirect_stdout(io.StringIO()):
    flgo.gen_task(
        {"benchmark": {"name": PROBLEM, "para": {"num_clients": CLIENTS, "data_size": 5}}}, "task"
    )


def trained(candidates):
    """The clients that train in some round."""
    runner = flgo.init(
        "task",
        algorithm,
        {**OPTIONS, "num_rounds": ROUNDS, "proportion": 0.1, "algo_para": [candidates]},
    )
    seen = set()
    sample = runner.sample

    def observed():
        chosen = sample()
        seen.update(int(client) for client in chosen)
        return chosen

    runner.sample = observed
    with contextlib.redirect_stdout(io.StringIO()):
        runner.run()
    return sorted(seen)


few = trained(CANDIDATES)
print(f"{CLIENTS} clients, d = {CANDIDATES}, 4 of them in each of {ROUNDS} rounds")
print("clients that have trained:", *few)
drawn = np.random.default_rng(0)
losses = np.linspace(0.0, 1.0, CLIENTS)  # of clients that stay as they are
right = set()
for _ in range(ROUNDS):
    candidates = drawn.choice(CLIENTS, CANDIDATES, replace=False)
    right.update(sorted(candidates.tolist(), key=losses.__getitem__)[-4:])
print(f"by the rule, with losses that stay as they are: {len(right)} clients")
assert set(few) <= set(range(CANDIDATES))
assert len(right) > 20
PYTHON
