"""Part ``composite``: 49 pairs of learning rates of composite methods, each method one sweep.

LASSO set I (1,024 weights, l1) for its 500 rounds, low-rank set I (32 x 32, nuclear norm) for 100
of its 500: 64 clients x 128 examples, 10 clients x 13 steps of 10 examples a round.  ``fedavg`` is
the same sweep without any regulariser, ``feddualavg_osp`` applies it on the server only: what
``feddualavg`` takes beyond them is its clients' proximal operators, for matrices a singular value
decomposition a step.  ``loop`` runs FedDualAvg's pairs one after the other, as in part ``sweep``.
Seconds are without compilation.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fedjax_sim as fs
from benchmarks.floors import Machine, floor
from benchmarks.jobs import Job, Options, Results
from benchmarks.report import Case
from benchmarks.sweep import Training, one_by_one, together

GRID = {"lr": np.geomspace(1e-5, 1e-3, 7).tolist(), "server_lr": np.geomspace(0.01, 1, 7).tolist()}
ROUNDS = {"lasso": 500, "lowrank": 100}
DIM, SIZE, CLIENTS, EXAMPLES, COHORT, BATCH = 1024, 32, 64, 128, 10, 10
PSI = {"lasso": fs.prox.L1(0.2), "lowrank": fs.prox.Nuclear(0.3)}
METHODS: dict[str, Callable[..., fs.FedAlgorithm]] = {
    "feddualavg": fs.feddualavg,
    "fedmid": fs.fedmid,
    "feddualavg_osp": fs.feddualavg_osp,
    "fedavg": lambda lr, composite, server_lr: fs.fedavg(lr, optax.sgd(server_lr)),
}
OURS, LOOP = "feddualavg", "loop"
CANDIDATES = (*METHODS, LOOP)
TITLES = {
    "lasso": "LASSO, 1,024 weights: 49 pairs, 500 rounds",
    "lowrank": "Nuclear norm, 32 x 32: 49 pairs, 100 rounds",
}


def jobs(options: Options) -> list[Job]:
    """A job per problem and method; the workloads of the other parts do not matter."""
    names = options.chosen(CANDIDATES)
    return [
        Job(case, name, "benchmarks.composite", {"case": case, "candidate": name})
        for case in ROUNDS
        for name in names
    ]


def measure(case: str, candidate: str) -> dict[str, float]:
    """A whole sweep in the candidate's own process."""
    fs.execution.use_all_cores(threads=4)  # for singular value decompositions
    runs = training(case, METHODS[OURS if candidate == LOOP else candidate], ROUNDS[case])
    outcome = (one_by_one if candidate == LOOP else together)(runs, GRID)
    return {"seconds": outcome.seconds, "compile_seconds": outcome.compile_seconds}


def training(case: str, method: Callable[..., fs.FedAlgorithm], rounds: int) -> Training:
    """The runs of a method, of one seed."""
    if case == "lasso":
        problem = fs.problems.recovery.sparse_regression(CLIENTS, EXAMPLES, DIM // 2, DIM, seed=0)
    else:
        problem = fs.problems.recovery.low_rank_regression(
            CLIENTS, EXAMPLES, SIZE // 2, SIZE, seed=0
        )

    def predict(params, x):
        return x.reshape(x.shape[0], -1) @ params["weight"].ravel() + params["bias"]

    task = fs.empirical_task(
        fs.objectives.squared_error(predict), problem.train, fs.epochs(1, BATCH)
    )
    composite = fs.prox.composite(PSI[case], where=lambda path, leaf: path == "weight")
    start = {"weight": jnp.zeros(problem.weight.shape), "bias": jnp.zeros(())}
    timeline = fs.timelines.uniform(
        jax.random.key(0), rounds, CLIENTS, cohort_size=COHORT, num_steps=task.num_steps
    )
    setup = fs.Setup(
        task=task,
        timeline=jax.tree.map(lambda x: x[None], timeline),
        params=jax.tree.map(lambda x: x[None], start),
        eval_fn=lambda params: {"norm": optax.tree.norm(params)},
        eval_every=rounds,
    )
    keys = jax.random.split(jax.random.key(1), 1)
    return Training(lambda lr, server_lr: method(lr, composite, server_lr), setup, keys)


def cases(results: Results, machine: Machine) -> list[Case]:
    """The sweeps with the floor of their gradients."""

    def case(name: str, rows: dict[str, dict[str, float]]) -> Case:
        steps = 49 * ROUNDS[name] * COHORT * -(-EXAMPLES // BATCH)
        flops = 4.0 * steps * BATCH * DIM  # both problems have 1,024 weights
        return Case(
            name=name,
            title=TITLES[name],
            unit="a sweep",
            rows=rows,
            ours=OURS,
            same_work=(LOOP,),
            floor=floor(machine, flops, 0),
            local_steps=steps,
        )

    return [case(name, rows) for name, rows in results.items()]
