#!/bin/sh
# orbax's best checkpoint: after one round whose loss is NaN the best model is deleted and a worse one is best.
#
# Guess: best_fn with max_to_keep=1 keeps the checkpoint with the smallest loss, and a round whose loss is NaN is
# never it.  Checkpoints are sorted by the loss and the last one stays; a NaN is neither above nor below
# anything, so that it stays where it is, at the end.  With losses 3, 1, NaN, 9 the model of loss 1 is deleted
# for that of NaN, and this one for that of 9, which best_step() then names.  With mode "max" and accuracies
# it is the same.  A best_fn that gives infinity for NaN, or -infinity with "max", keeps the best one.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check \
    jax==0.10.2 jaxlib==0.10.2 orbax-checkpoint==0.12.8 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - "$folder" 2>"$folder/log" <<'PYTHON' || { cat "$folder/log"; exit 1; }
import importlib.metadata
import math
import sys
import tempfile

import numpy as np
import orbax.checkpoint as ocp

print("orbax-checkpoint", importlib.metadata.version("orbax-checkpoint"))
NAN = math.nan


def rounds(values, mode, number, best_fn):
    """After each round: the rounds whose models are kept, and the best one."""
    options = ocp.CheckpointManagerOptions(
        max_to_keep=number, best_fn=best_fn, best_mode=mode, enable_async_checkpointing=False)
    with ocp.CheckpointManager(tempfile.mkdtemp(dir=sys.argv[1]), options=options) as manager:
        for step, value in enumerate(values):
            model = {"round": np.full(2, float(step))}
            assert manager.save(step, args=ocp.args.StandardSave(model), metrics={"value": float(value)})
            yield manager.all_steps(), manager.best_step()


def plain(metrics):
    return metrics["value"]


for mode, sign, worst in (("min", 1, math.inf), ("max", -1, -math.inf)):
    def never_nan(metrics, worst=worst):
        return worst if math.isnan(metrics["value"]) else metrics["value"]

    for losses in ([3, 1, 2, 9], [3, 1, NAN, 9], [NAN, 3, 1, 9], [1, NAN, NAN, 2, 3]):
        values = sign * np.array(losses)
        for number in (1, 2):
            best = [int(np.nanargmin(losses[: i + 1])) if not np.isnan(losses[0]) or i else 0
                    for i in range(len(losses))]
            found = {name: list(rounds(values, mode, number, fn))
                     for name, fn in (("as it is", plain), ("NaN as the worst", never_nan))}
            print(f"mode {mode}, values {values}, {number} kept: the best rounds are {best}")
            for name, steps in found.items():
                print(f"    {name}: best_step {[step for _, step in steps]}, kept {[kept for kept, _ in steps]}")
            assert [step for _, step in found["NaN as the worst"]] == best
            after_the_first = any(map(math.isnan, losses[1:]))
            assert (found["as it is"][-1][1] != best[-1]) == after_the_first
            assert (best[-1] not in found["as it is"][-1][0]) == (after_the_first)
PYTHON
