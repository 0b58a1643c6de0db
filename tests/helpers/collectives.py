"""Prints, for each algorithm, the kinds of collectives in its round on eight devices.

Run by a test in a process of its own, since the number of host devices is fixed when JAX starts.
"""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim as fs
from fedjax_sim.engine.execution import placement
from fedjax_sim.timelines import sampling

NUM_CLIENTS, COHORT, DEVICES = 40, 16, 8
COLLECTIVE = re.compile(
    r" (all-gather|all-reduce|all-to-all|collective-\w+|reduce-scatter|ragged-\w+)(?:-start)?\("
)


def losses(params, batch, key):
    del key
    return (batch["x"] @ params["w"] + params["b"] - batch["y"]) ** 2


def problem(sharded: bool) -> fs.Task:
    rng = np.random.default_rng(0)
    examples = {"x": rng.normal(size=(400, 5)), "y": rng.normal(size=400)}
    data = fs.FederatedData(examples, np.arange(0, 401, 10))
    mesh = placement.make_mesh(jax.devices()[:DEVICES])
    where = placement.by_client(NUM_CLIENTS, mesh) if sharded else None
    return fs.empirical_task(losses, data, fs.epochs(1, 5), placement=where)


def late(timeline: fs.Timeline) -> fs.Timeline:
    version = np.maximum(np.arange(timeline.num_rounds)[:, None] - np.arange(COHORT) % 3, 0)
    return fs.timelines.allocate_buffers(
        fs.Timeline(
            timeline.clients, jnp.asarray(version, jnp.int32), timeline.num_steps, timeline.mask,
            timeline.time, timeline.max_steps, max_staleness=2,
        )
    )  # fmt: skip


def main() -> None:
    params = {"w": jnp.zeros(5), "b": jnp.zeros(())}
    task = problem(sharded=True)
    timeline = sampling.stratified(
        jax.random.key(0), 4, NUM_CLIENTS, COHORT, task.num_steps, num_strata=DEVICES
    )
    algorithms = {
        "fedavg": fs.fedavg(0.1),
        "fedavg, late": fs.fedavg(0.1),
        "fedadam": fs.fedadam(0.1, 0.01),
        "scaffold": fs.scaffold(0.1),
        "feddyn": fs.feddyn(0.1),
        "fedmoswa": fs.fedmoswa(0.1),
        "mofedsam": fs.mofedsam(0.1),
    }
    found = {}
    for name, algorithm in algorithms.items():
        schedule = late(timeline) if "late" in name else timeline

        def train(task, timeline, algorithm=algorithm):
            return fs.run(algorithm, fs.Setup(task, timeline, params), jax.random.key(1))[0]

        compiled = jax.jit(train).lower(task, schedule).compile()
        found[name] = COLLECTIVE.findall(compiled.as_text() or "")
        found[name] += [f"{len(jax.tree.leaves(compiled.output_shardings.clients))} states"]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
