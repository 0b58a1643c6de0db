r"""Wrappers, ``FedAlgorithm -> FedAlgorithm``: leave out uploads, average models over rounds.

A wrapper replaces only the functions that it changes; the algorithm keeps its checks and the reason
why it needs current broadcasts.  Compression whose clients or server keep a memory is here; codecs,
and compression without memory, are in :mod:`fedjax_sim.compression`.  Transforms of the gradients
are in :mod:`fedjax_sim.local.transforms`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.compression import coded_part, exact_bits, with_coded_part
from fedjax_sim.tree import bits_of_arrays, divide_or_keep, with_further_bits
from fedjax_sim.types import (
    ClientState,
    FedAlgorithm,
    Message,
    Oracle,
    Params,
    PyTree,
    Round,
    ServerState,
    Upload,
    Work,
    specified,
)
from fedjax_sim.wrappers.averages import average_rounds, ema_rounds
from fedjax_sim.wrappers.diana import diana
from fedjax_sim.wrappers.ef21 import ef21, ef21_p
from fedjax_sim.wrappers.error_feedback import ef14
from fedjax_sim.wrappers.fine_tuning import fine_tuned
from fedjax_sim.wrappers.fixed_order import fixed_order
from fedjax_sim.wrappers.freeze import freeze
from fedjax_sim.wrappers.marina import marina, pp_marina
from fedjax_sim.wrappers.parts import PartState, personal_model
from fedjax_sim.wrappers.per_step import per_step_uploads
from fedjax_sim.wrappers.privacy.accounting import Guarantee, epsilon, is_private
from fedjax_sim.wrappers.privacy.participation import min_separation, most_visits, num_draws
from fedjax_sim.wrappers.privacy.randomizers import check_delta
from fedjax_sim.wrappers.private import private
from fedjax_sim.wrappers.received import (
    NEEDS_DATA,
    also_checked,
    broadcast_inner,
    check_receives_mean,
    dry_client,
    dry_visit,
    inner_params,
    received_model,
    stack_bytes,
)
from fedjax_sim.wrappers.robust import attacks
from fedjax_sim.wrappers.robust.aggregation import check_counts
from fedjax_sim.wrappers.robust.attacks import Attackers, Trigger, triggered
from fedjax_sim.wrappers.running_statistics import running_statistics

__all__ = [
    "average_rounds",
    "diana",
    "ef14",
    "ef21",
    "ef21_p",
    "ema_rounds",
    "fixed_order",
    "marina",
    "per_step_uploads",
    "pp_marina",
    "skip_nonfinite",
]


class SkipNonfiniteState(NamedTuple):
    inner: ServerState
    left_out: Array  # sum over all rounds of the share of the weight that was left out

    params = inner_params


class _Checked(NamedTuple):
    upload: Upload
    left_out: Array  # 1 or 0
    # 1 - left_out, which is not sent. A mean of the one may be 1 but for rounding, where that of
    # the other is exactly 0.
    kept: Array

    def coded(self) -> PyTree:
        """Returns the part that a codec encodes, that of the upload."""
        return coded_part(self.upload)

    def restored(self, part: PyTree) -> _Checked:
        """Returns the upload with a decoded part; what is left out stays zero."""
        upload = with_coded_part(self.upload, part)
        return self._replace(upload=tree.where(self.kept > 0, upload, tree.zeros_like(upload)))

    def exact_bits(self) -> int:
        """Returns the bits of what no codec encodes."""
        return exact_bits(self.upload) + bits_of_arrays(self.left_out)


@specified
def skip_nonfinite(algorithm: FedAlgorithm) -> FedAlgorithm:
    r"""Excludes uploads that contain NaN or Inf from the mean.

    The mean is taken over the other uploads; the client keeps its previous state.  If no upload of
    a round is finite, the server does not change.  The server's state counts what was left out:
    each round adds the share of the weight to ``left_out``, for example 1 / 10 for one of ten
    clients of equal weight.

    Raises:
        ValueError: the algorithm has another aggregation than the mean, which must be applied
            last.

    Example:
        >>> from fedjax_sim.algorithms import fedavg
        >>> algorithm = skip_nonfinite(fedavg(lr=0.1))
        >>> float(algorithm.init(jnp.zeros(2)).left_out)
        0.0
    """
    check_receives_mean("skip_nonfinite", algorithm)

    def init(params: Params) -> SkipNonfiniteState:
        return SkipNonfiniteState(algorithm.init(params), jnp.zeros((), jnp.result_type(float)))

    def local(
        message: Message, state: ClientState, oracle: Oracle, work: Work
    ) -> tuple[_Checked, ClientState]:
        upload, new = algorithm.local(message, state, oracle, work)
        finite = tree.all_finite((upload, new))
        kept = finite.astype(jnp.result_type(float))
        upload = tree.where(finite, upload, tree.zeros_like(upload))
        return _Checked(upload, 1 - kept, kept), tree.where(finite, new, state)

    def update(state: SkipNonfiniteState, mean: _Checked, round: Round) -> SkipNonfiniteState:
        kept = jnp.where(mean.left_out > 0, mean.kept, 1)
        some = mean.kept > 0
        rest = divide_or_keep(mean.upload, kept)
        uploads = jnp.asarray(round.num_uploads).astype(kept.dtype) * kept
        share = None if round.share is None else round.share * kept
        new = algorithm.update(state.inner, rest, round.counting(uploads, share))
        return SkipNonfiniteState(
            tree.where(some, new, state.inner), state.left_out + mean.left_out
        )

    wrapped = algorithm.requiring(exact_mean="clients also upload whether their upload is finite")
    wrapped = with_further_bits(wrapped, lambda sent: sent.upload, lambda sent: sent.left_out)
    return wrapped._replace(
        init=init, local=local, update=update, broadcast=broadcast_inner(algorithm)
    )
