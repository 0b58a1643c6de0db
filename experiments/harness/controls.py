"""FedMoSWA's factors in two experiments: whose control a client has, gamma, alpha, rho.

``own``: every client keeps its control (FedMoSWA).  ``none``: no controls (FedSWA), so gamma does
not matter.  ``last on worker``: a client starts from the control of the last client of its worker,
as the second released program has it.  ``SCAFFOLD`` stands beside them: the client's own control,
and a server's control that is the mean of all clients' controls; its rho is 1.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import fedjax_sim as fs

OWN, NONE, LAST, SCAFFOLD = "own", "none", "last on worker", "SCAFFOLD"
CONTROLS = (OWN, NONE, LAST, SCAFFOLD)
FACTORS = ("gamma", "alpha", "rho")
MEASURES = ("test accuracy", "test loss", "train loss", "gap")


def settings_of(
    controls: str, gammas: Sequence[float], alphas: Sequence[float], rhos: Sequence[float]
) -> list[dict[str, float]]:
    """Values of the three factors; a factor that has no effect is NaN."""
    if controls in (NONE, SCAFFOLD):
        gammas = (np.nan,)
    if controls == SCAFFOLD:
        rhos = (1.0,)
    return [dict(zip(FACTORS, one, strict=True)) for one in itertools.product(gammas, alphas, rhos)]


class WorkersState(NamedTuple):
    inner: Any
    last: Any  # [S, ...] state that each of the S workers wrote last

    @property
    def params(self) -> Any:
        return self.inner.params


def last_on_worker(
    algorithm: fs.FedAlgorithm, workers: Array | np.ndarray, num_workers: int | None = None
) -> fs.FedAlgorithm:
    """An algorithm whose client starts from the state of the last client of its worker.

    The second program writes the states of clients into the memory of the process that computed
    the visit, and reads them from a dictionary that nothing fills.  So it keeps one state per
    worker, not per client.
    """
    count = int(workers.max()) + 1 if num_workers is None else num_workers
    table = jnp.asarray(workers, jnp.int32)

    def init(params: Any) -> WorkersState:
        first = algorithm.init_client(params)
        last = jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *jnp.shape(x))), first)
        return WorkersState(algorithm.init(params), last)

    def broadcast(state: WorkersState, round: fs.Round) -> tuple[Any, Any]:
        return algorithm.broadcast(state.inner, round), state.last

    def local(
        message: tuple[Any, Any], state: tuple, oracle: fs.Oracle, work: fs.Work
    ) -> tuple[Any, tuple]:
        received, last = message
        worker = table[work.round, work.client]
        own = jax.tree.map(lambda x: x[worker], last)
        upload, new = algorithm.local(received, own, oracle, work)
        change = jax.tree.map(
            lambda x, old, new: jnp.zeros_like(x).at[worker].set(new - old), last, own, new
        )
        return (upload, change), state

    def update(state: WorkersState, mean: tuple[Any, Any], round: fs.Round) -> WorkersState:
        upload, change = mean
        total = fs.tree.scale(round.num_uploads, change)  # one entry per worker
        return WorkersState(
            algorithm.update(state.inner, upload, round), fs.tree.add(state.last, total)
        )

    return algorithm.requiring(uniform_weights="workers' states are sums of the uploads")._replace(
        init=init, broadcast=broadcast, local=local, update=update, init_client=lambda params: ()
    )


def workers_of(timeline: fs.Timeline, num_clients: int) -> np.ndarray:
    """The worker of each client in each round, ``[T, M]``: the number of its slot.

    The programs give the s-th client of a cohort to the s-th worker.  Clients that do not report
    in a round have worker 0, which nothing reads.
    """
    clients = np.asarray(timeline.clients)
    workers = np.zeros((len(clients), num_clients), np.int32)
    rounds, slots = np.nonzero(np.asarray(timeline.mask))
    workers[rounds, clients[rounds, slots]] = slots
    return workers
