r"""Central differential privacy: clients clip their uploads, and the server adds noise.

References:
    McMahan, Ramage, Talwar, Zhang, "Learning Differentially Private Recurrent Language Models",
        2018, https://arxiv.org/abs/1710.06963 (DP-FedAvg).
    Andrew, Thakkar, McMahan, Ramaswamy, "Differentially Private Learning with Adaptive Clipping",
        2021, https://arxiv.org/abs/1905.03871.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim import tree
from fedjax_sim.checks import check_at_least, check_positive, is_concrete
from fedjax_sim.tree import (
    bits_of_arrays,
    message_bits,
    normal,
    with_further_bits,
    with_message_bits,
)
from fedjax_sim.types import (
    ClientState,
    FedAlgorithm,
    Message,
    Oracle,
    Params,
    Round,
    Scalar,
    ServerState,
    Task,
    Timeline,
    Upload,
    Work,
    specified,
)
from fedjax_sim.wrappers.privacy.adaptive import (
    AdaptiveClip,
    below,
    count_std,
    next_clip,
    upload_noise,
)
from fedjax_sim.wrappers.privacy.checks import check_admits_noise, check_timeline, guarded
from fedjax_sim.wrappers.privacy.clipping import (
    Clip,
    check_clip,
    check_finite,
    clip_upload,
    total_clip,
)
from fedjax_sim.wrappers.privacy.events import Mechanism, without_noise
from fedjax_sim.wrappers.privacy.noise import NoiseLaw, NoiseState, independent
from fedjax_sim.wrappers.received import inner_params, received_model, upload_shapes

# Branches of a round's key; algorithms use the key itself or small numbers.
_NOISE, _COUNT = 2**31 + 8, 2**31 + 9
_LAST = "what reaches the server would no longer be what the clip bounds and the noise covers"
_UNIFORM = "the bound of one client's share of the sum holds for equal weights"
_CURRENT = "the noise of a round has its clip, with which all its uploads must be clipped"


class PrivateState(NamedTuple):
    """State of a server that adds noise."""

    inner: ServerState
    noise: NoiseState
    clip: Array | tuple  # of adaptive clipping, in the next round; () for a fixed clip

    params = inner_params


class PrivateMessage(NamedTuple):
    """Message of a server with adaptive clipping."""

    inner: Message
    clip: Array

    @property
    def params(self) -> Params:
        """The model."""
        return received_model(self.inner)


class _Counted(NamedTuple):
    upload: Upload
    below: Array  # 1/2 if the norm of the upload is at most the clip, otherwise -1/2


@specified
def privatize(
    algorithm: FedAlgorithm,
    clip: Clip | AdaptiveClip,
    noise_multiplier: Scalar,
    *,
    expected_uploads: Scalar,
    noise: NoiseLaw | None = None,
    most_examples: Scalar | None = None,
) -> FedAlgorithm:
    r"""Makes an algorithm differentially private with respect to single clients (DP-FedAvg).

    .. math::
        \tilde u_i = u_i \min(1, C / \|u_i\|), \qquad
        \hat u = \frac{1}{\bar m} \Bigl(\sum_i \tilde u_i + N(0, z^2 C^2 I)\Bigr)

    The algorithm's update receives :math:`\hat u` instead of the mean, and :math:`\bar m` as the
    number of uploads.  The number of uploads that really arrived is not public for Poisson
    sampling, so it occurs nowhere.  An upload with NaN or Inf counts as 0.

    Everything in an upload is bounded.  What a client keeps is never released, and what the server
    computes from :math:`\hat u` (momentum, controls, compressed messages) needs no further noise.
    Apply the wrapper last: a wrapper around it is refused, since clipping must be the last change
    of an upload.  :func:`epsilon` returns the guarantee, which depends on the timeline.

    Clients that keep what they sent (EF21, DIANA, FedVARP) keep it without clip and noise, while
    the server adds up what it received over the rounds: the difference grows as a random walk.

    Args:
        algorithm: an algorithm whose upload is 0 for a client that does not change the model.
        clip: bound C of the norm over all leaves of an upload; or bounds per part of the upload by
            name, whose root of the sum of squares is C; or :func:`adaptive_clip`.
        noise_multiplier: z, the standard deviation of the noise on the sum divided by C; 0: no
            noise.  :func:`noise_multiplier` returns it for a target epsilon.
        expected_uploads: :math:`\bar m`, a public number: ``timeline.sampling.expected_uploads``.
            With ``most_examples``, the sum of the clients' weights times their probability.
        noise: law of the noise; default :func:`independent`.
        most_examples: :math:`\hat w` of the weights :math:`\min(n_i / \hat w, 1)`, by which clipped
            uploads of clients with :math:`n_i` examples are multiplied; default: equal weights.

    Raises:
        ValueError: a clip or an ``expected_uploads`` that is not positive, a negative noise
            multiplier, a ``noise`` that is no law, an algorithm whose server needs the exact mean,
            models as uploads, another aggregation than the mean, or a wrapper that must be applied
            last; when a run begins, weights other than uniform ones, and an ``expected_uploads``
            that is not the timeline's.

    References:
        McMahan et al., 2018, Algorithm 1, with the estimator :math:`\tilde f_f`.

    Example:
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"x": jnp.array([1.0, 3.0])}, jnp.array([0, 1, 2]))
        >>> loss = lambda params, examples, key: (params - examples["x"]) ** 2
        >>> task = fs.empirical_task(loss, data, fs.full_batch(num_steps=1))
        >>> setup = fs.Setup(task, fs.timelines.full(20, 2, task.num_steps), jnp.array(0.0))
        >>> private = privatize(fs.fedavg(0.25), clip=0.5, noise_multiplier=0.1, expected_uploads=2)
        >>> state, _ = fs.run(private, setup, jax.random.key(0))
        >>> bool(abs(state.server.params - 2) < 0.5)
        True
    """
    adaptive, fixed = (clip, clip.initial) if isinstance(clip, AdaptiveClip) else (None, clip)
    check_clip(fixed)
    check_at_least(0, noise_multiplier=noise_multiplier)
    if is_concrete(noise_multiplier) and float(noise_multiplier) > 0:
        if float(noise_multiplier) == np.inf:
            raise ValueError(f"noise_multiplier is {noise_multiplier}; expected a finite number")
        check_finite(fixed)
    check_positive(expected_uploads=expected_uploads)
    check_admits_noise(algorithm)
    law = independent() if noise is None else noise
    if not isinstance(law, NoiseLaw):
        raise ValueError(
            f"noise is {law!r:.60}; expected a privacy.NoiseLaw, for example "
            "privacy.tree_aggregation(100)"
        )
    check_positive(most_examples=most_examples)
    if adaptive is not None:
        adaptive.check(noise_multiplier, expected_uploads, law.fixed_clip_only, most_examples)

    noisy = not (is_concrete(noise_multiplier) and float(noise_multiplier) == 0)

    def init(params: Params) -> PrivateState:
        state = ()
        if law.init is not None:
            state = law.init(jax.eval_shape(tree.wide, upload_shapes(algorithm, params)))
        bound = () if adaptive is None else jnp.asarray(adaptive.initial, jnp.result_type(float))
        return PrivateState(algorithm.init(params), state, bound)

    def seen(round: Round) -> Round:
        # The number that arrived depends on who reports, so it must not be used.
        public = jnp.asarray(expected_uploads).astype(jnp.result_type(float))
        return round._replace(num_uploads=public)

    def broadcast(state: PrivateState, round: Round) -> Message:
        message = algorithm.broadcast(state.inner, seen(round))
        return message if adaptive is None else PrivateMessage(message, jnp.asarray(state.clip))

    def local(
        message: Message, state: ClientState, oracle: Oracle, work: Work
    ) -> tuple[Upload, ClientState]:
        if adaptive is not None:
            upload, new = algorithm.local(message.inner, state, oracle, work)
            bound = message.clip
            return _Counted(clip_upload(upload, bound), below(upload, bound)), new
        upload, new = algorithm.local(message, state, oracle, work)
        clipped = clip_upload(upload, fixed)
        if most_examples is not None:
            real = jnp.result_type(float)
            share = jnp.asarray(work.num_examples, real) / jnp.asarray(most_examples, real)
            clipped = tree.scale(jnp.minimum(share, 1), clipped)
        return clipped, new

    def update(state: PrivateState, mean: Upload, round: Round) -> PrivateState:
        total, z, bound = tree.scale(round.num_uploads, mean), noise_multiplier, total_clip(fixed)
        law_state, new_clip = state.noise, state.clip
        if adaptive is not None:
            (total, count), bound = total, jnp.asarray(state.clip)
            z = upload_noise(adaptive, noise_multiplier, expected_uploads)
            if noisy:
                std = count_std(adaptive, expected_uploads)
                count += normal(jax.random.fold_in(round.key, _COUNT), std, count)
            new_clip = next_clip(adaptive, bound, count, expected_uploads)
        if noisy:
            drawn, law_state = law.draw(
                jax.random.fold_in(round.key, _NOISE), law_state, z * bound, round.number, total
            )
            total = tree.add(total, drawn)
        estimate = _as_uploaded(tree.divide(total, expected_uploads), algorithm, state.inner)
        inner = algorithm.update(state.inner, estimate, seen(round))
        return PrivateState(inner, law_state, new_clip)

    def personal(message: Message, state: ClientState, oracle: Oracle, work: Work) -> Params:
        assert algorithm.personal is not None
        message = message if adaptive is None else message.inner
        return algorithm.personal(message, state, oracle, work)

    def check(task: Task, timeline: Timeline) -> None:
        check_timeline(timeline, task.num_clients, law, expected_uploads, most_examples)

    def mechanism(timeline: Timeline, num_clients: int) -> Mechanism:
        if not is_concrete(noise_multiplier):
            raise ValueError("noise_multiplier is traced; expected a number, to compute epsilon")
        if noise_multiplier == 0:
            return without_noise()
        return law.mechanism(float(noise_multiplier), timeline, num_clients)

    def received_bits(message: PrivateMessage) -> int:
        return message_bits(algorithm)(message.inner) + bits_of_arrays(message.clip)

    private = algorithm.requiring(uniform_weights=_UNIFORM)._replace(
        init=init,
        local=local,
        update=update,
        broadcast=broadcast,
        personal=None if algorithm.personal is None else personal,
    )
    if adaptive is not None:
        if algorithm.requires.synchronous is None:
            private = private.requiring(synchronous=_CURRENT)
        private = with_further_bits(private, lambda sent: sent.upload, lambda sent: sent.below)
        private = with_message_bits(private, received_bits)
    return guarded(private, check, mechanism, "privatize", _LAST)


def _as_uploaded(estimate: Upload, algorithm: FedAlgorithm, state: ServerState) -> Upload:
    """Returns the noisy mean in the dtypes of the algorithm's uploads.

    Models in half precision have uploads in half precision, which are clipped, summed and noised in
    single precision; rounding is post-processing.
    """
    floating = [x for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.floating)]
    if all(leaf.dtype.itemsize >= 4 for leaf in floating):
        return estimate
    uploads = upload_shapes(algorithm, state.params)
    return jax.tree.map(lambda x, like: x.astype(like.dtype), estimate, uploads)
