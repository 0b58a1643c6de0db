r"""FedAdamW: local AdamW with shared second moments and a global direction.

References:
    Liu et al., "FedAdamW: A Communication-Efficient Optimizer with Convergence and Generalization
        Guarantees for Federated Large Models", 2025.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import UPLOADS_COUNTS, real
from fedjax_sim.checks import check_at_least, check_choice, check_decay, check_rates
from fedjax_sim.local import ScalarOrSchedule, inverse_rate, local_steps, per_step, rate
from fedjax_sim.types import (
    FedAlgorithm,
    Oracle,
    Params,
    Requires,
    Round,
    Scalar,
    Work,
    send_state,
    specified,
)

__all__ = ["fedadamw"]


class FedAdamWState(NamedTuple):
    params: Params  # x
    direction: Params  # Delta, the mean descent direction of the last round
    second_moment: Params  # v, one number per block
    num_steps: Array  # local steps in all rounds


class _Visit(NamedTuple):
    delta: Params
    direction: Params
    second_moment: Params
    num_steps: Array
    present: Array  # 1, or 0 after a visit without steps


@specified
def fedadamw(
    lr: ScalarOrSchedule,
    correction: Scalar = 0.5,
    weight_decay: Scalar = 0.01,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    blocks: Literal["leaf", "entry"] = "leaf",
    first_count: Literal["visit", "run"] = "visit",
) -> FedAlgorithm:
    r"""FedAdamW: AdamW on the clients from averaged second moments, corrected by a direction.

    With ``correction`` :math:`\alpha`, ``weight_decay`` :math:`\lambda`, and a visit that starts
    from :math:`y = x`, m = 0 and the server's :math:`\bar v`:

    .. math::
        m &\leftarrow \beta_1 m + (1 - \beta_1) g_i(y), \qquad
        v \leftarrow \beta_2 v + (1 - \beta_2) g_i(y)^2 \\
        y &\leftarrow y - \eta \Bigl(\frac{m / (1 - \beta_1^{k})}
        {\sqrt{v / (1 - \beta_2^{t})} + \epsilon} + \alpha \Delta + \lambda y\Bigr)

    in step k of the visit and step t of the run; a round adds the mean number of its visits' steps,
    rounded to an integer, to the count of the run.  The server averages displacements and block
    means of second moments, from :math:`\Delta = \bar v = 0`:

    .. math::
        x \leftarrow \operatorname{mean}_i y_{K_i}, \qquad
        \Delta \leftarrow \operatorname{mean}_i \frac{x - y_{K_i}}{K_i \eta}, \qquad
        \bar v \leftarrow \operatorname{mean}_i \operatorname{mean}_{block} v_i

    The means of second moments and of numbers of steps are over the visits with steps; in
    :math:`\Delta` a visit without steps counts as 0.

    Args:
        lr: client learning rate :math:`\eta`, or a schedule over rounds.
        correction: weight :math:`\alpha` of the global direction.
        weight_decay: decoupled weight decay :math:`\lambda`.
        b1: decay of the mean of gradients.
        b2: decay of the mean of squares.
        eps: number beside the root.
        blocks: the second moments that a client sends: one per leaf of the model, or, as in the
            authors' program, one per entry.
        first_count: steps that correct the bias of m: those of the visit, or, as in the authors'
            program, those of the run, with which m is too short after the first round.

    Raises:
        ValueError: another ``blocks`` or ``first_count``.

    References:
        Liu et al., 2025, Algorithm 2.

    Example:
        >>> algorithm = fedadamw(lr=1e-3)
    """
    check_rates(lr=lr)
    check_at_least(0, correction=correction, weight_decay=weight_decay, eps=eps)
    check_decay(b1=b1, b2=b2)
    check_choice(("leaf", "entry"), blocks=blocks)
    check_choice(("visit", "run"), first_count=first_count)

    def block_means(v: Params) -> Params:
        return jax.tree.map(_mean, v) if blocks == "leaf" else v

    def init(params: Params) -> FedAdamWState:
        zeros = tree.zeros_like(params)
        v = block_means(zeros)
        return FedAdamWState(params, zeros, v, jnp.zeros((), jnp.int32))

    def local(
        message: FedAdamWState, state: tuple, oracle: Oracle, work: Work
    ) -> tuple[_Visit, tuple]:
        x, eta = message.params, rate(lr, work)

        def step(carry: tuple[Params, Params, Params], k: Array) -> tuple:
            y, m, v = carry
            g = oracle.grad(y, k)
            m = tree.add_scale(tree.scale(b1, m), 1 - b1, g)
            v = tree.add_scale(tree.scale(b2, v), 1 - b2, jax.tree.map(jnp.square, g))
            in_run = message.num_steps + k + 1
            first = tree.scale(_unbiased(b1, in_run if first_count == "run" else k + 1), m)
            second = tree.scale(_unbiased(b2, in_run), v)
            descent = jax.tree.map(_over_root, first, second)
            descent = tree.add_scale(descent, correction, message.direction)
            descent = tree.add_scale(descent, weight_decay, y)
            return tree.add_scale(y, -eta, descent), m, v

        v = jax.tree.map(jnp.broadcast_to, message.second_moment, jax.tree.map(jnp.shape, x))
        y, _, v = local_steps(step, (x, tree.zeros_like(v), v), work)
        delta, present = tree.sub(x, y), real(work.num_steps > 0)
        direction = tree.scale(inverse_rate(eta), per_step(delta, work))
        moments = tree.scale(present, block_means(v))
        return _Visit(delta, direction, moments, real(work.num_steps), present), state

    def _over_root(first: Array, second: Array) -> Array:
        # The number under the root keeps the derivative finite where all gradients are 0.
        return first / (jnp.sqrt(second + jnp.asarray(1e-30, second.dtype)) + _as(second, eps))

    def update(state: FedAdamWState, mean: _Visit, round: Round) -> FedAdamWState:
        share = jnp.where(mean.present > 0, mean.present, 1)  # of the visits with steps
        steps = jnp.round(mean.num_steps / share).astype(state.num_steps.dtype)
        return FedAdamWState(
            tree.sub(state.params, mean.delta),
            mean.direction,
            tree.where(
                mean.present > 0, tree.divide(mean.second_moment, share), state.second_moment
            ),
            state.num_steps + steps,
        )

    return FedAlgorithm(
        init, local, update, send_state, requires=Requires(exact_mean=UPLOADS_COUNTS)
    )


def _mean(leaf: Array) -> Array:
    """Returns the mean of the entries; 0 for a leaf without entries."""
    return jnp.mean(leaf) if leaf.size else jnp.zeros((), leaf.dtype)


def _unbiased(decay: Scalar, count: Array) -> Array:
    """Returns 1 / (1 - decay^count)."""
    return 1 / (1 - real(decay) ** real(count))


def _as(leaf: Array, scalar: Scalar) -> Array:
    return jnp.asarray(scalar).astype(leaf.dtype)
