"""Parts that the wrappers for compression with memory share: states, checks, coded uploads."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.checks import check_is_algorithm
from fedjax_sim.compression import StatefulCodec, same_form
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
)
from fedjax_sim.wrappers.received import check_receives_mean, inner_params

# Branches of keys; algorithms and codecs use the key itself or small numbers.
UPLOAD, MESSAGE, COIN = 2**31, 2**31 + 1, 2**31 + 2
# Reason for `Requires.uniform_weights_if_partial`.
UNWEIGHTED_MEMORY = "the server's estimate is the mean over all clients, also over absent ones"
# What the server inside EF21 and DIANA receives.
ESTIMATES = (
    "the server receives estimates of the mean upload here, whose errors would add up to another "
    "limit (ef14 sends every error later)"
)
# Reason for `Requires.other_uploads`.
FROM_ESTIMATES = "differences from an estimate of the change of the model"

Personal = Callable[[Message, ClientState, Oracle, Work], Params]


class MemoryState(NamedTuple):
    """State of a client that keeps a memory between its visits."""

    inner: ClientState
    memory: Params  # EF14: the error e_i; EF21: the estimate g_i; DIANA: the shift h_i
    codec: PyTree  # of a codec with memory, else ()


class EstimateState(NamedTuple):
    """State of a server that keeps the mean of the clients' memories."""

    inner: ServerState
    estimate: Params  # EF21: the mean of all g_i; DIANA: the mean of all h_i

    params = inner_params


def with_memory(algorithm: FedAlgorithm, codec: StatefulCodec) -> Callable[[Params], MemoryState]:
    """Returns the ``init_client`` of clients that keep a memory, which starts at 0."""

    def init_client(params: Params) -> MemoryState:
        zero = tree.zeros_like(params)
        return MemoryState(algorithm.init_client(params), zero, codec.init(zero))

    return init_client


def with_estimate(algorithm: FedAlgorithm) -> Callable[[Params], EstimateState]:
    """Returns the ``init`` of a server that keeps an estimate, which starts at 0."""
    return lambda params: EstimateState(algorithm.init(params), tree.zeros_like(params))


def personal_inner(algorithm: FedAlgorithm) -> Personal | None:
    """Returns the ``personal`` of clients whose state contains the algorithm's."""
    personal = algorithm.personal
    if personal is None:
        return None
    return lambda message, state, oracle, work: personal(
        message, state.inner, oracle, work.inside()
    )


def visit_of(
    algorithm: FedAlgorithm, message: Message, state: MemoryState, oracle: Oracle, work: Work
) -> tuple[Upload, ClientState]:
    """Returns the algorithm's upload, which must have the form of the memory, and client state."""
    upload, inner = algorithm.local(message, state.inner, oracle, work.inside())
    check_form(upload, state.memory)
    return upload, inner


def encode(codec: StatefulCodec, x: Params, memory: PyTree, work: Work) -> tuple[Params, PyTree]:
    """Returns a client's vector after its codec, and the codec's next memory."""
    return codec.through(jax.random.fold_in(work.key, UPLOAD), x, memory)


def if_present(
    work: Work, sent: Upload, new: MemoryState, old: MemoryState
) -> tuple[Upload, MemoryState]:
    """Returns the upload and the state of a visit; a visit without steps sends 0 and keeps both."""
    present = work.num_steps > 0
    return tree.where(present, sent, tree.zeros_like(sent)), tree.where(present, new, old)


def add_share(estimate: Params, mean: Upload, round: Round, rate: Any = 1.0) -> Params:
    """Adds the clients' changes, ``(s / M) mean``, to the mean of the memories of all clients."""
    share = jnp.asarray(round.participation).astype(jnp.result_type(float))
    return tree.add_scale(estimate, jnp.asarray(rate).astype(share.dtype) * share, mean)


def check_sends_changes(algorithm: FedAlgorithm) -> None:
    """Refuses algorithms whose uploads are models (FAVANO, QuAFL), and private ones."""
    check_is_algorithm(algorithm)
    if (last := algorithm.requires.last) is not None:
        raise ValueError(
            f"algorithm is {last.name}(...); expected it as the last wrapper: {last.reason}"
        )
    check_receives_mean("the wrapper", algorithm)
    if algorithm.requires.uploads_models:
        raise ValueError(
            "algorithm uploads models, which its server averages with its own model; expected one "
            "whose uploads are changes of the model, as those of fedavg, since a memory of models "
            "would count as a change"
        )


def check_one_kind(algorithm: FedAlgorithm) -> None:
    """Refuses algorithms whose uploads are no changes of the model, or not in all rounds."""
    check_sends_changes(algorithm)
    if (kinds := algorithm.requires.kinds_of_uploads) is not None:
        raise ValueError(
            f"algorithm has uploads of several kinds: {kinds}; expected changes of the model in "
            "all rounds, as those of fedavg"
        )


def check_adds_nothing_up(algorithm: FedAlgorithm, receives: str) -> None:
    """Refuses algorithms that add up uploads, in the server and exactly so in clients' states."""
    requires = algorithm.requires
    reason = requires.mean_of_states or requires.uniform_weights_if_partial
    if reason is not None:
        raise ValueError(
            f"algorithm adds uploads up over the rounds: {reason}; expected one that does not, "
            f"since {receives}"
        )


def check_form(upload: Upload, params: Params) -> None:
    """Refuses uploads that do not have the form of the model."""
    if _paths(upload) < _paths(params):
        raise ValueError(
            f"algorithm has uploads of a part of the model, {_shown(upload)}; expected the whole, "
            f"{_shown(params)}: apply freeze, private and running_statistics after wrappers with a "
            "memory, such as freeze(ef14(fedavg(0.1), codec), where)"
        )
    if not same_form(upload, params):
        raise ValueError(
            f"algorithm has uploads of the form {_shown(upload)}; expected that of the model, "
            f"{_shown(params)}: memories are kept of changes of the model, such as the uploads of "
            "fedavg, and not of uploads with further parts"
        )


def _paths(x: PyTree) -> set[str]:
    return {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(x)}


def _shown(x: PyTree) -> str:
    def text(leaf: Array) -> str:
        return f"{jnp.asarray(leaf).dtype}{list(jnp.shape(leaf))}"

    shown = str(jax.tree.map(text, x)).replace("'", "")
    return shown if len(shown) < 150 else shown[:147] + "..."
