"""A run whose evaluations are far apart, which test_segments.py starts, kills and resumes.

python long_run.py DIRECTORY SECONDS_PER_SEGMENT

Every round sleeps for the seconds in the environment variable SLEEP.
"""

import os
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim as fs

EVAL_EVERY = 1000


def _sleep(value):
    time.sleep(float(os.environ.get("SLEEP", "0")))
    return value


def slept(update: fs.Update) -> jax.Array:
    number = update.round.number
    return jax.pure_callback(_sleep, jax.ShapeDtypeStruct((), number.dtype), number)


def main(directory: str, seconds: float) -> None:
    data = fs.FederatedData({"x": np.arange(6, dtype=np.float32)}, np.array([0, 2, 4, 6]))
    task = fs.empirical_task(lambda w, batch, key: (w - batch["x"]) ** 2, data, fs.epochs(1, 1))
    timeline = fs.timelines.uniform(jax.random.key(0), 2 * EVAL_EVERY, 3, 2, task.num_steps)
    setup = fs.Setup(task, timeline, jnp.zeros(()), lambda w: {"w": w}, eval_every=EVAL_EVERY)
    fs.simulate(
        fs.scaffold(0.01),
        setup,
        jax.random.key(1),
        storage=fs.Storage(directory, checkpoint_seconds=0),
        options=fs.Options(probes=fs.Probes(server={"slept": slept}), segment_seconds=seconds),
    )


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
