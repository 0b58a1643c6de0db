#!/bin/sh
# orbax: who goes back to round 2 of 5 and trains on gets no checkpoint of rounds 3 to 5, and restores old ones.
#
# Guess: a round that is trained anew is written over the old one, or save fails with the error that the
# checkpoint exists, as its text says.  A step up to the latest one in the folder is left out without an error:
# save returns False, as it does for steps between two intervals.  From round 6 on it saves again, so that the
# folder holds rounds 3 to 5 of the dropped run between those of the new one.  So it is for a new run with
# the folder of an old one: until it is longer nothing is saved, and its last model is lost.  The error
# comes only with force=True; delete(step) for each later step makes room.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check \
    jax==0.10.2 jaxlib==0.10.2 orbax-checkpoint==0.12.8 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - "$folder" 2>"$folder/log" <<'PYTHON' || { cat "$folder/log"; exit 1; }
import importlib.metadata
import sys

import numpy as np
import orbax.checkpoint as ocp

print("orbax-checkpoint", importlib.metadata.version("orbax-checkpoint"))
FIRST, SECOND = 0.0, 100.0  # added to the number of the round in the models of two runs


def manager(name):
    options = ocp.CheckpointManagerOptions(enable_async_checkpointing=False)
    return ocp.CheckpointManager(f"{sys.argv[1]}/{name}", options=options)


def train(checkpoints, rounds, run, **options):
    """Whether each round was saved."""
    return [checkpoints.save(i, args=ocp.args.StandardSave({"x": np.array([run + i])}), **options) for i in rounds]


def models(checkpoints):
    return {i: float(checkpoints.restore(i, args=ocp.args.StandardRestore())["x"][0])
            for i in sorted(checkpoints.all_steps())}


for name, again, delete in (("back to round 2", range(3, 8), False), ("a new, shorter run", range(1, 5), False),
                            ("back to round 2, later rounds deleted", range(3, 8), True)):
    with manager(name) as checkpoints:
        assert all(train(checkpoints, range(1, 6), FIRST))
    with manager(name) as checkpoints:
        for step in range(3, 6) if delete else ():
            checkpoints.delete(step)
        saved = train(checkpoints, again, SECOND)
        found = models(checkpoints)
        print(f"{name}: rounds {list(again)} saved {saved}; models in the folder {found}")
        assert saved == [delete or i > 5 for i in again]
        assert all(found[i] == i + (SECOND if written else FIRST) for i, written in zip(again, saved))
        try:
            train(checkpoints, [5], SECOND, force=True)
        except ValueError as error:
            print(f"    with force=True: {type(error).__name__}: {error}")
        else:
            raise AssertionError("force=True wrote over a checkpoint")
PYTHON
