"""A run that test_simulate.py starts as a process of its own, kills and resumes.

python killed_run.py DIRECTORY [SECONDS_PER_SEGMENT]
"""

import sys
import time
import types

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim as fs
from fedjax_sim.runs.simulation import simulate

NUM_ROUNDS = 40


def main(directory: str, pause: float = 0.0) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4)).astype(np.float32)
    data = fs.FederatedData({"x": x, "y": x.sum(1)}, np.array([0, 5, 12, 30, 31, 45, 60], np.int32))

    def objective(w, batch, key):
        noise = jax.random.normal(key, batch["y"].shape)
        return (batch["x"] @ w - batch["y"] + noise) ** 2

    task = fs.empirical_task(objective, data, fs.epochs(2, batch_size=4))
    keys = jax.vmap(jax.random.key)(jnp.arange(2))
    timeline = jax.vmap(lambda k: fs.timelines.uniform(k, NUM_ROUNDS, 6, 3, task.num_steps))(keys)
    simulate(
        fs.scaffold(0.01),
        fs.Setup(
            task,
            timeline,
            jnp.zeros((2, 4)),
            eval_fn=lambda w: {"norm": jnp.sum(w**2), "w": w},
            eval_every=2,
        ),
        keys,
        callbacks=[types.SimpleNamespace(progress=lambda progress: time.sleep(pause))],
        storage=fs.Storage(directory, checkpoint_seconds=0),
        options=fs.Options(
            segment_seconds=1e-9,
            probes=fs.Probes(client={"drift": lambda v: jnp.sum(v.upload[0] ** 2)}),
        ),
    )


if __name__ == "__main__":
    main(sys.argv[1], *map(float, sys.argv[2:]))
