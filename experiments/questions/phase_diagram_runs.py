"""Runs: problems, rates and seeds of one (method, M, K) are one program.

Keys do not depend on problems and rates, so under ``vmap`` the noise of a seed is drawn once for
all of them, and methods see the same noise in the same (round, client, step).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim as fs
from experiments.harness import seed_keys
from experiments.questions.phase_diagram_problem import (
    Clients,
    Family,
    Problem,
    gaps,
    initial,
    make_clients,
    make_task,
)
from fedjax_sim import topologies

LONGEST = 3  # times K: the longest visit of Scaffnew


class Sizes(NamedTuple):
    """Sizes that a program is compiled for."""

    clients: int  # M
    local_steps: int  # K
    rounds: int  # R


# (lr, second number, mu, sizes); a method is tuned over the rates and its second numbers.
Make = Callable[[Any, Any, Any, Sizes], fs.FedAlgorithm]


class Method(NamedTuple):
    """A method and the second numbers that are tried with every rate."""

    make: Make
    second: tuple[float, ...] = (0.0,)  # (0,): it has none


def _fedac(lr: Any, second: Any, mu: Any, sizes: Sizes) -> fs.FedAlgorithm:
    return fs.fedac(lr, mu, sizes.local_steps)


def _tracking(lr: Any, second: Any, mu: Any, sizes: Sizes) -> fs.FedAlgorithm:
    return topologies.gradient_tracking(lr, topologies.exponential(sizes.clients))


METHODS = {
    "FedAvg": Method(lambda lr, second, mu, sizes: fs.fedavg(lr)),
    "MB-SGD": Method(lambda lr, second, mu, sizes: fs.mb_sgd(lr)),
    "single client": Method(lambda lr, second, mu, sizes: fs.fedavg(lr)),
    "FedAc": Method(_fedac),
    "SCAFFOLD": Method(lambda lr, second, mu, sizes: fs.scaffold(lr)),
    "FedMoSWA": Method(lambda lr, gamma, mu, sizes: fs.fedmoswa(lr, gamma=gamma), (0.2, 1.0)),
    "FedProx": Method(lambda lr, weight, mu, sizes: fs.fedprox(lr, weight), (0.1, 1.0)),
    "Scaffnew": Method(lambda lr, second, mu, sizes: fs.scaffnew(lr, 1 / sizes.local_steps)),
    "gradient tracking": Method(_tracking),
}


def timelines(method: str, sizes: Sizes, num_seeds: int) -> fs.Timeline:
    """Full participation; Scaffnew's visits are random, one timeline per seed along axis 0."""
    alone = method == "single client"
    one = fs.timelines.full(sizes.rounds, 1 if alone else sizes.clients, sizes.local_steps)
    if method == "Scaffnew":
        longest = 1 if sizes.local_steps == 1 else LONGEST * sizes.local_steps
        every = [
            fs.timelines.geometric_steps(key, one, 1 / sizes.local_steps, longest)
            for key in seed_keys(num_seeds, root=1)
        ]
    else:
        every = [one] * num_seeds
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(x) for x in leaves]), *every)


def final_gaps(
    family: Family,
    method: str,
    problems: Sequence[Problem],
    sizes: Sizes,
    lrs: Sequence[float],
    num_seeds: int,
) -> np.ndarray:
    """F - F* after the last round, ``[problems, rates x second numbers, seeds]``.

    Returns:
        Float64; infinite where a run diverged.  Second numbers vary fastest along the middle axis.
    """
    make, second = METHODS[method]
    tuned = jnp.asarray([(lr, value) for lr in lrs for value in second], jnp.float32)
    several = [make_clients(family, problem) for problem in problems]
    clients = jax.tree.map(lambda *leaves: jnp.stack(leaves), *several)
    mus = jnp.asarray([1 / problem.condition for problem in problems], jnp.float32)
    alone = method == "single client"

    def one(clients: Clients, mu: Any, tuned: Any, key: Any, timeline: fs.Timeline) -> Any:
        task = make_task(clients, 1 if alone else sizes.clients, sizes.local_steps)
        setup = fs.Setup(task, timeline, initial(family))
        algorithm = make(tuned[0], tuned[1], mu, sizes)
        final, _ = fs.run(algorithm, setup, key, execution=fs.execution.vmapped())
        return final.server.params

    over_rates = jax.vmap(one, (None, None, 0, None, None))
    over_problems = jax.vmap(over_rates, (0, 0, None, None, None))
    program = jax.jit(
        lambda keys, timelines: jax.lax.map(
            lambda seed: over_problems(clients, mus, tuned, *seed), (keys, timelines)
        )
    )
    models = np.asarray(program(seed_keys(num_seeds), timelines(method, sizes, num_seeds)))
    models = models.transpose(1, 2, 0, 3)  # [problems, tuned, seeds, d]
    return np.stack([gaps(family, *pair) for pair in zip(problems, models, strict=True)])
