"""A sweep that test_sweep_resume.py starts as a process of its own, kills and resumes.

python killed_sweep.py DIRECTORY SECONDS_PER_SEGMENT [I/N]
"""

import sys
import time

import jax
import jax.numpy as jnp
from sweep_problems import quadratic_trial, sweep_of

import fedjax_sim as fs

NUM_SEEDS, LRS = 4, (0.01, 0.02, 0.05)


def main(directory, pause: float = 0.0, part: tuple[int, int] | None = None) -> fs.Sweep:
    """A slice for every seed, of four segments each."""
    trial = quadratic_trial(
        fs.scaffold,
        NUM_SEEDS,
        num_rounds=8,
        eval_every=2,
        probes=fs.Probes(client={"drift": lambda visit: jnp.sum(visit.upload[0] ** 2)}),
    )
    return sweep_of(
        trial,
        {"lr": LRS} if part is None else fs.Part({"lr": LRS}, *part),
        jax.random.split(jax.random.key(4), NUM_SEEDS),
        devices=jax.devices()[:1],
        folder=directory,
        progress=lambda news: time.sleep(pause),
    )


if __name__ == "__main__":
    part = tuple(map(int, sys.argv[3].split("/"))) if len(sys.argv) > 3 else None
    result = main(sys.argv[1], float(sys.argv[2]), part)
    print(len(result.runs) - result.resumed, "computed", result.resumed, "found")
