r"""Per-FedAvg: an initial model from which one step adapts to a client.

References:
    Fallah, Mokhtari, Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees: A
        Model-Agnostic Meta-Learning Approach", 2020, arXiv 2002.07948.
"""

from __future__ import annotations

from typing import Literal

import jax
import optax
from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import cycled, step_range, visit_of
from fedjax_sim.algorithms.fedavg import fedavg
from fedjax_sim.checks import check_count, check_positive, check_rates, check_unused
from fedjax_sim.local import ScalarOrSchedule, local_steps, rate, sgd
from fedjax_sim.types import (
    FedAlgorithm,
    Oracle,
    Params,
    Scalar,
    Task,
    Timeline,
    Upload,
    Work,
    specified,
)

__all__ = ["perfedavg"]

_MINIBATCHES = {"FO": 2, "HF": 3, "exact": 3}  # per meta-step


@specified
def perfedavg(
    lr: ScalarOrSchedule,
    adapt_lr: ScalarOrSchedule | None = None,
    hessian: Literal["FO", "HF", "exact"] = "FO",
    delta: Scalar = 1e-3,
    adapt_steps: int = 1,
    server: optax.GradientTransformation | None = None,
) -> FedAlgorithm:
    r"""Per-FedAvg: FedAvg on the loss after one gradient step (MAML).

    The objective is :math:`\operatorname{mean}_i F_i(x - a \nabla F_i(x))`.  Each meta-step draws
    the minibatches b, b' and b'':

    .. math::
        w &= y - a\, g_i(y; b), \qquad G = g_i(w; b'), \qquad y_0 = x \\
        y &\leftarrow y - \eta\, G \ \text{(FO)} \quad\text{or}\quad
        y - \eta\, (G - a H) \ \text{(HF)} \\
        H &= \frac{g_i(y + \delta G; b'') - g_i(y - \delta G; b'')}{2 \delta} \\
        x &\leftarrow x - \operatorname{mean}_i (x - y_J)

    FO leaves out the Hessian, HF approximates its product with G by a difference of gradients, and
    ``"exact"`` differentiates the gradient.  A visit of K local steps has K minibatches, enough for
    :math:`J = \lfloor K / 2 \rfloor` meta-steps of FO or :math:`\lfloor K / 3 \rfloor` of the
    others: meta-step j takes the minibatches 2j and 2j + 1, or 3j to 3j + 2.  A visit that is too
    short for one uploads 0.  Clients keep nothing; the personal model is the server's after
    ``adapt_steps`` steps of rate a on the client's first minibatches, which more steps than
    minibatches take again.

    Args:
        lr: rate :math:`\eta` of the meta-steps, the paper's :math:`\beta`, or a schedule over
            rounds.
        adapt_lr: rate a of the adaptation, the paper's :math:`\alpha`, or a schedule over rounds.
            Default: ``lr``.
        hessian: treatment of the Hessian.
        delta: distance :math:`\delta` of HF's difference, only with HF.
        adapt_steps: steps of the adaptation that gives a personal model.
        server: as for :func:`~fedjax_sim.algorithms.fedavg`.

    Raises:
        ValueError: another ``hessian``, a ``delta`` that is not positive or not with HF,
            ``adapt_steps`` below 1, ``server`` is one that FedAvg refuses; at the start of the
            run, a timeline whose visits are all too short for a meta-step.

    References:
        Fallah et al., 2020, Algorithm 1; FO and HF: section 5.

    Example:
        >>> algorithm = perfedavg(lr=0.1, adapt_lr=0.01, hessian="HF")
    """
    check_rates(adapt_lr=adapt_lr)
    if hessian not in _MINIBATCHES:
        raise ValueError(f"hessian is {hessian!r}; expected 'FO', 'HF' or 'exact'")
    check_positive(delta=delta)
    if hessian != "HF":
        check_unused(f"hessian={hessian!r}", delta=(delta, 1e-3))
    check_count(1, adapt_steps=adapt_steps)
    minibatches = _MINIBATCHES[hessian]
    inner_lr = lr if adapt_lr is None else adapt_lr

    def local(x: Params, state: tuple, oracle: Oracle, work: Work) -> tuple[Upload, tuple]:
        eta, a = rate(lr, work), rate(inner_lr, work, "adapt_lr")

        def curvature(y: Params, direction: Params, k: Array) -> Params:
            if hessian == "exact":
                return jax.jvp(lambda y: oracle.grad(y, k), (y,), (direction,))[1]
            above = oracle.grad(tree.add_scale(y, delta, direction), k)
            below = oracle.grad(tree.add_scale(y, -delta, direction), k)
            return tree.divide(tree.sub(above, below), 2 * delta)

        def step(y: Params, j: Array) -> Params:
            first = minibatches * j
            w = sgd(a, oracle.grad)(y, first)
            gradient = oracle.grad(w, first + 1)
            if hessian != "FO":
                product = curvature(y, gradient, first + 2)
                gradient = tree.add_scale(gradient, -a, product)
            return tree.add_scale(y, -eta, gradient)

        visit = work._replace(
            num_steps=work.num_steps // minibatches, max_steps=work.max_steps // minibatches
        )
        return tree.sub(x, local_steps(step, x, visit)), state

    def personal(x: Params, state: tuple, oracle: Oracle, work: Work) -> Params:
        step = sgd(rate(inner_lr, work, "adapt_lr"), oracle.grad)
        return local_steps(cycled(step, work), x, visit_of(work, adapt_steps))

    def check(task: Task, timeline: Timeline) -> None:
        if (most := step_range(timeline)[1]) < minibatches:
            raise ValueError(
                f"timeline.num_steps is at most {most}; expected visits of at least {minibatches} "
                f"local steps, the minibatches of one meta-step (hessian={hessian!r})"
            )

    return fedavg(lr, server)._replace(local=local, personal=personal).requiring(check=check)
