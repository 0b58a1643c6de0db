"""Uploads that are not finite are left out: one diverging client does not ruin the run."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.types import (
    ClientState,
    FedAlgorithm,
    Oracle,
    Params,
    Round,
    ServerState,
    Upload,
    Work,
)


class SkipNonfiniteState(NamedTuple):
    inner: ServerState
    left_out: Array  # over all rounds, the share of a round's weight that was left out

    @property
    def params(self) -> Params:
        """The model."""
        return self.inner.params


class _Screened(NamedTuple):
    upload: Upload
    left_out: Array  # 1 or 0; 0 of a visit of no steps, whose upload is to be zero


def skip_nonfinite(algorithm: FedAlgorithm) -> FedAlgorithm:
    r"""The same algorithm, to which uploads with a NaN or an infinity count nothing.

    The mean is taken over the others; the client keeps the state it had.  Where no upload of a
    round is finite the server stays as it is.  The server's state says how much was left out:
    ``left_out`` grows every round by the share of the weight, by 1 / 10 for one of ten clients of
    equal weight.

    Example:
        >>> from fedjax_sim.algorithms import fedavg
        >>> algorithm = skip_nonfinite(fedavg(lr=0.1))
        >>> float(algorithm.init(jnp.zeros(2)).left_out)
        0.0
    """

    def init(params: Params) -> SkipNonfiniteState:
        return SkipNonfiniteState(algorithm.init(params), jnp.zeros((), jnp.result_type(float)))

    def local(
        message: Params, state: ClientState, oracle: Oracle, work: Work
    ) -> tuple[_Screened, ClientState]:
        upload, new = algorithm.local(message, state, oracle, work)
        finite = tree.all_finite((upload, new))
        left_out = (~finite).astype(jnp.result_type(float))
        upload = tree.where(finite, upload, tree.zeros_like(upload))
        return _Screened(upload, left_out), tree.where(finite, new, state)

    def update(state: SkipNonfiniteState, mean: _Screened, round: Round) -> SkipNonfiniteState:
        share = 1 - mean.left_out
        some = share > 0
        rest = tree.divide(mean.upload, jnp.where(some, share, 1))
        uploads = jnp.asarray(round.num_uploads).astype(share.dtype) * share
        new = algorithm.update(state.inner, rest, round._replace(num_uploads=uploads))
        return SkipNonfiniteState(
            tree.where(some, new, state.inner), state.left_out + mean.left_out
        )

    return FedAlgorithm(
        init,
        local,
        update,
        lambda state, round: algorithm.broadcast(state.inner, round),
        algorithm.init_client,
    )
