"""QuAFL as its authors' program has it, where the program differs from the paper.

From Zakerinia, Talaei, Nadiradze, Alistarh, "QuAFL: Federated Averaging Can Be Both Asynchronous
and Communication-Efficient", 2022.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array

import fedjax_sim as fs
from fedjax_sim.local import ScalarOrSchedule

Message = tuple[Any, Array]  # the server's model, the number of clients in contact


def quafl_of_the_program(
    lr: ScalarOrSchedule,
    *,
    rate_factor: bool = False,
    client_averaging: bool = True,
    server_averaging: bool = True,
) -> fs.FedAlgorithm:
    """QuAFL with the switches of the authors' program.

    Args:
        lr: client learning rate, or a schedule over rounds.
        rate_factor: multiplies the client rate by ``(s + 1) / s`` if the server averages.
        client_averaging: False: the client takes the server's model instead of the average.
        server_averaging: False: the server takes the clients' mean instead of the average.
    """
    paper = fs.quafl(lr)

    def local(message: Message, own: Any, oracle: fs.Oracle, work: fs.Work) -> tuple[Any, Any]:
        w, s = message
        eta = fs.local.rate(lr, work)
        if rate_factor and server_averaging:
            # In an empty round, whose results are dropped, any finite number.
            eta = jnp.asarray(eta).astype(s.dtype) * (s + 1) / jnp.maximum(s, 1)
        upload, mixed = fs.quafl(eta).local(message, own, oracle, work)
        return upload, mixed if client_averaging else w

    def update(state: Any, mean: Any, round: fs.Round) -> Any:
        if server_averaging:
            return paper.update(state, mean, round)
        return state._replace(params=mean)

    return paper._replace(local=local, update=update)
