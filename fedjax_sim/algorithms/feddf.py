r"""FedDF: the server distils the ensemble of the clients' models on unlabelled data.

References:
    Lin, Kong, Stich, Jaggi, "Ensemble Distillation for Robust Model Fusion in Federated Learning",
        2020, arXiv 2006.07242.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import ModelState
from fedjax_sim.algorithms.fedavg import fedavg
from fedjax_sim.checks import check_at_least, check_count
from fedjax_sim.local import ScalarOrSchedule, optimizer_init, optimizer_update
from fedjax_sim.objectives import Apply, outputs_of
from fedjax_sim.types import (
    Aggregation,
    FedAlgorithm,
    Model,
    Params,
    Requires,
    Round,
    Scalar,
    Stack,
    specified,
)
from fedjax_sim.wrappers import stack_bytes

__all__ = ["feddf"]


@specified
def feddf(
    model: Apply | Model,
    pool: Any,
    lr: ScalarOrSchedule,
    steps: int = 1000,
    batch_size: int = 128,
    distill_lr: Scalar = 1e-3,
) -> FedAlgorithm:
    r"""FedDF: FedAvg, and then steps of the server towards the mean logits of the clients' models.

    With the logits f, the softmax :math:`\sigma` and a minibatch B of the pool, drawn with
    replacement by the round's key:

    .. math::
        y &\leftarrow y - \eta\, g_i(y), \qquad y_0 = x, \qquad
        x \leftarrow \operatorname{mean}_{i \in S} y_{K_i} \\
        x &\leftarrow \operatorname{Adam}\Bigl(x, \nabla_x \frac{1}{|B|} \sum_{d \in B}
            \operatorname{KL}\bigl(
            \sigma\bigl(\tfrac{1}{|S|} \textstyle\sum_{i \in S} f(y_{K_i}, d)\bigr)
            \,\big\|\, \sigma(f(x, d))\bigr)\Bigr) \quad \text{(steps times)}

    Adam starts with zero moments in every round; its rate falls to 0 along a cosine.  The mean of
    the models has the setup's weights, the mean of the logits equal ones.  The clients' models of a
    round are in memory together.  With ``steps=0`` it is FedAvg.

    The paper stops the distillation early by a validation set; here the number of steps is fixed.
    The authors' program clips the gradient to norm 5, and by default averages the losses of all
    clients' logits instead of the logits.

    Args:
        model: a model, or its function ``(params, x) -> logits [B, classes]``.
        pool: inputs without labels, ``[n, ...]``.
        lr: client learning rate :math:`\eta`, or a schedule over rounds.
        steps: distillation steps per round.
        batch_size: inputs per step.
        distill_lr: first rate of Adam in a round.

    Raises:
        ValueError: a number outside its range, an empty pool; at the start of the run, a timeline
            with staleness; in the first round, outputs without an axis of classes.

    References:
        Lin et al., 2020, Algorithm 1.

    Example:
        >>> import fedjax_sim as fs
        >>> model = fs.models.mlp(64, hidden=(32,), num_classes=10)
        >>> algorithm = feddf(model, np.zeros((500, 64), np.float32), lr=0.1, steps=50)
    """
    check_count(0, steps=steps)
    check_count(1, batch_size=batch_size)
    if not np.ndim(pool) or not np.shape(pool)[0]:
        raise ValueError(f"pool has shape {np.shape(pool)}; expected [n, ...] with n at least 1")
    check_at_least(0, distill_lr=distill_lr)
    rate: Any = distill_lr  # optax's type has no traced numbers
    distiller = optax.adam(optax.cosine_decay_schedule(rate, max(steps, 1)))
    plain = fedavg(lr)

    def logits(params: Params, x: Array) -> Array:
        z = outputs_of(model, params, {"x": x})
        if z.ndim < 2:
            raise ValueError(f"model has outputs of shape {z.shape}; expected logits [B, classes]")
        return z

    def update(state: ModelState, stack: Stack, round: Round) -> ModelState:
        mean = tree.weighted_mean(stack.uploads, stack.mean_weights)
        start = tree.sub(state.params, mean)

        def teacher_of(upload: Params, arrived: Array) -> Params:
            # What did not arrive may be NaN, which a share of 0 would not leave out.
            return tree.sub(state.params, tree.where(arrived, upload, tree.zeros_like(upload)))

        teachers = jax.vmap(teacher_of)(stack.uploads, stack.arrived)

        def ensemble(x: Array) -> Array:
            each = jax.vmap(logits, (0, None))(teachers, x)
            # All shares are 0 in a round without uploads, whose update is discarded.
            arrived = stack.arrived.astype(each.dtype)
            return jnp.tensordot(arrived / jnp.maximum(arrived.sum(), 1), each, 1)

        def divergence(params: Params, x: Array) -> Array:
            teacher, student = (jax.nn.log_softmax(z) for z in (ensemble(x), logits(params, x)))
            return (jnp.exp(teacher) * (teacher - student)).sum(axis=-1).mean()

        def step(carry: tuple[Params, Any], k: Array) -> tuple[tuple[Params, Any], None]:
            params, opt_state = carry
            key = jax.random.fold_in(round.key, k)
            rows = jax.random.randint(key, (batch_size,), 0, np.shape(pool)[0], np.int32)
            gradient = jax.grad(divergence)(params, jnp.asarray(pool)[rows])
            updates, opt_state = optimizer_update(distiller, gradient, opt_state, params)
            return (optax.apply_updates(params, updates), opt_state), None

        first = start, optimizer_init(distiller, start)
        (params, _), _ = jax.lax.scan(step, first, jnp.arange(steps, dtype=jnp.uint32))
        return ModelState(params)

    return FedAlgorithm(
        ModelState,
        plain.local,
        update,
        aggregation=Aggregation(num_bytes=stack_bytes),
        requires=Requires(synchronous="the server distils the models that uploads lead to"),
    )
