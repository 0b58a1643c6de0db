"""One process of several, or the only one: a SCAFFOLD run by client over all devices.

    python tests/helpers/one_of_several.py FOLDER PROCESS_ID NUM_PROCESSES PORT DEVICES

With ``--stop-at ROUND`` process 0 gets a Ctrl-C after that round, and with ``--pause SECONDS`` each
process sleeps after each segment.  The folder gets history and checkpoints.
"""

import argparse
import os
import signal
import time
import types

import jax


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    for name in ("process_id", "num_processes", "port", "devices"):
        parser.add_argument(name, type=int)
    parser.add_argument("--stop-at", type=int)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--heartbeat", type=int, default=60)
    given = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", given.devices)

    from fedjax_sim.engine.execution import distributed, placement
    from fedjax_sim.timelines import sampling

    if given.num_processes > 1:
        distributed.connect(
            f"localhost:{given.port}",
            given.num_processes,
            given.process_id,
            heartbeat_timeout=given.heartbeat,
        )

    import jax.numpy as jnp
    import numpy as np

    import fedjax_sim as fs
    from fedjax_sim.data.source import ClientSource, from_data

    num_clients, strata = 19, 4
    rng = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 6, num_clients))])
    x = rng.normal(size=(offsets[-1], 3))
    data = fs.FederatedData({"x": x, "y": x.sum(axis=1) + rng.normal(size=offsets[-1])}, offsets)
    asked = []

    def load(start, stop):
        asked.append((start, stop))
        return from_data(data).load(start, stop)

    def losses(params, batch, key):
        return (batch["x"] @ params - batch["y"]) ** 2

    task = fs.empirical_task(
        losses,
        ClientSource(np.diff(offsets), load),
        fs.epochs(2, 2),
        placement=placement.by_client(num_clients, num_strata=strata),
    )
    print("loaded", asked[1:])
    timeline = sampling.stratified(
        jax.random.key(0), given.rounds, num_clients, 8, task.num_steps, num_strata=strata
    )

    def on_progress(progress):
        if progress.round == given.stop_at and distributed.is_first():
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(given.pause)

    result = fs.simulate(
        fs.scaffold(0.05),
        fs.Setup(
            task, timeline, jnp.zeros(3), eval_fn=lambda params: {"norm": jnp.linalg.norm(params)}
        ),
        jax.random.key(1),
        callbacks=[types.SimpleNamespace(progress=on_progress)],
        storage=fs.Storage(given.folder, checkpoint_seconds=0),
        options=fs.Options(
            probes=fs.Probes(client={"drift": lambda visit: jnp.sum(visit.upload[0])})
        ),
    )
    print("rounds", result.rounds_done, "interrupted", result.interrupted)


if __name__ == "__main__":
    main()
