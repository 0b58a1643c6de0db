"""Digests of algorithms alone, to compare two of them."""

import jax.numpy as jnp
from small_problems import no_data

import fedjax_sim as fs
from fedjax_sim.runs.storage.run_functions import identified, trace_run


def digest_of(algorithm) -> str:
    """Returns the digest of what an algorithm traces to, on a task that does not matter."""
    task = no_data()
    setup = fs.Setup(task, fs.timelines.full(1, task.num_clients, 3), jnp.zeros(1))
    digest = identified(trace_run(algorithm, setup, batched=False))["algorithm"]
    assert digest is not None
    return digest
