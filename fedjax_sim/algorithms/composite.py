r"""Federated composite optimisation: :math:`\min_x F(x) + \psi(x)`, psi non-smooth or a constraint.

References:
    Yuan, Zaheer, Reddi, "Federated Composite Optimization", 2021; chapter 4 of
    Yuan, "On Principled Local Optimization Methods for Federated Learning", 2023, whose equations
        and algorithms are cited.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.local import ScalarOrSchedule, local_steps, rate
from fedjax_sim.prox.base import Penalty, like
from fedjax_sim.prox.composite import Composite
from fedjax_sim.prox.mirror import Euclidean
from fedjax_sim.types import FedAlgorithm, Oracle, Params, Round, Scalar, Work


class FedMiDState(NamedTuple):
    params: Params


class FedDualAvgState(NamedTuple):
    params: Params  # the primal of the dual, which is evaluated
    dual: Params  # y
    elapsed: Array  # the weight of psi: the sum of all rates so far


class _Visit(NamedTuple):
    descent: Params  # start - end, of primal or dual
    elapsed: Array  # the sum of the visit's client rates


def fedmid(
    lr: ScalarOrSchedule,
    composite: Composite,
    server_lr: Scalar = 1.0,
    *,
    local_prox: bool = True,
    server_prox: bool = True,
    delta_space: Literal["primal", "dual"] = "primal",
    project_start: bool = True,
) -> FedAlgorithm:
    r"""FedMiD, federated mirror descent: composite mirror steps on clients and on the server.

    With :math:`P_c(y) = \operatorname{argmin}_x h(x) + c\,\psi(x) - \langle y, x \rangle`, the prox
    of :math:`c\,\psi` if h is Euclidean:

    .. math::
        x_i &\leftarrow P_{\eta_c}(\nabla h(x_i) - \eta_c\, g_i(x_i)), \qquad x_i^0 = x \\
        x &\leftarrow P_{\eta_s \bar H}(\nabla h(x) + \eta_s \textstyle\sum_i w_i (x_i^{K_i} - x)),
        \qquad \bar H = \textstyle\sum_i w_i \eta_c K_i

    The mean change already holds the clients' shrinkage by a finite psi, and the server shrinks
    once more: for small rates FedMiD as printed solves :math:`F + 2 \psi`.  ``server_prox=False``
    or ``local_prox=False`` (:func:`fedmid_osp`) solve :math:`F + \psi`.  A constraint is no
    stronger for being applied twice.  Of a single client, ``server_prox=False`` is the proximal
    gradient method (composite mirror descent), the reference that local steps are compared with.

    Args:
        lr: eta_c, or a schedule over rounds.
        composite: psi and h, see :func:`fedjax_sim.prox.composite`.
        server_lr: eta_s.
        local_prox: whether clients apply psi.
        server_prox: whether the server does. Without it a server rate above 1 can leave a
            constraint.
        delta_space: "primal" sends changes of x, as printed; "dual" those of :math:`\nabla h(x)`,
            which are what the server's formula calls for. The same if h is Euclidean.
        project_start: whether an initial model outside a constraint is projected first.

    Raises:
        ValueError: another ``delta_space``; psi and h without a closed form.

    References:
        Yuan, 2023, Algorithm 5.

    Example:
        >>> from fedjax_sim import prox
        >>> algorithm = fedmid(0.01, prox.composite(prox.L1(0.2)), server_lr=0.3)
    """
    if delta_space not in ("primal", "dual"):
        raise ValueError(f"delta_space is {delta_space!r}; expected 'primal' or 'dual'")

    def init(params: Params) -> FedMiDState:
        start = composite.argmin(composite.to_dual(params), 0.0) if project_start else params
        return FedMiDState(start)

    def local(x: Params, state: tuple, oracle: Oracle, work: Work) -> tuple[_Visit, tuple]:
        eta = rate(lr, work)

        def step(y: Params, k: Array) -> Params:
            # Eq. (4.5), which omits the rate before the gradient.
            dual = tree.add_scale(composite.to_dual(y), -eta, oracle.grad(y, k))
            return composite.argmin(dual, eta) if local_prox else composite.to_primal(dual)

        end = local_steps(step, x, work)
        of = composite.to_dual if delta_space == "dual" else lambda x: x
        return _Visit(tree.sub(of(x), of(end)), total_rate(eta, work.num_steps)), state

    def update(state: FedMiDState, mean: _Visit, round: Round) -> FedMiDState:
        del round
        dual = tree.add_scale(composite.to_dual(state.params), -server_lr, mean.descent)
        if server_prox:
            return FedMiDState(composite.argmin(dual, like(mean.elapsed, server_lr) * mean.elapsed))
        return FedMiDState(composite.to_primal(dual))

    return FedAlgorithm(init, local, update)


def fedmid_osp(lr: ScalarOrSchedule, composite: Composite, server_lr: Scalar = 1.0) -> FedAlgorithm:
    r"""FedMiD with only the server proximal: clients do not know psi.

    With one local step and unit server rate this is the proximal gradient method.

    References:
        Yuan, 2023, Algorithm 7.

    Example:
        >>> from fedjax_sim import prox
        >>> algorithm = fedmid_osp(0.01, prox.composite(prox.L1(0.2)))
    """
    return fedmid(lr, composite, server_lr, local_prox=False)


def feddualavg(
    lr: ScalarOrSchedule, composite: Composite, server_lr: Scalar = 1.0, *, local_prox: bool = True
) -> FedAlgorithm:
    r"""FedDualAvg, federated dual averaging: clients' dual states are averaged, not their models.

    The average of sparse models is not sparse, nor that of low-rank ones low-rank; the model of an
    averaged dual state is.  In a round that starts at y with the weight H:

    .. math::
        x_i^k &= P_{H + \eta_c k}(y_i^k), \qquad
        y_i^{k+1} = y_i^k - \eta_c\, g_i(x_i^k), \qquad y_i^0 = y \\
        y &\leftarrow y + \eta_s \textstyle\sum_i w_i (y_i^{K_i} - y), \qquad
        H \leftarrow H + \eta_s \textstyle\sum_i w_i \eta_c K_i

    from :math:`y = \nabla h(x)` and H = 0; the model is :math:`P_H(y)`.  Of a single client it is
    dual averaging.  The dual state grows with H: after millions of local steps single precision
    loses digits of the model.

    Args:
        lr: eta_c, or a schedule over rounds.
        composite: psi and h, see :func:`fedjax_sim.prox.composite`.
        server_lr: eta_s.
        local_prox: whether clients apply psi.

    Raises:
        ValueError: psi and h without a closed form.

    References:
        Yuan, 2023, Algorithm 6.

    Example:
        >>> from fedjax_sim import prox
        >>> algorithm = feddualavg(0.01, prox.composite(prox.Nuclear(0.3), where=prox.kernels))
    """

    def init(params: Params) -> FedDualAvgState:
        dual = composite.to_dual(params)
        elapsed = jnp.zeros((), jnp.result_type(float))
        return FedDualAvgState(composite.argmin(dual, elapsed), dual, elapsed)

    def local(
        message: tuple[Params, Array], state: tuple, oracle: Oracle, work: Work
    ) -> tuple[_Visit, tuple]:
        dual, elapsed = message
        eta = rate(lr, work)
        step = dual_step(eta, composite, elapsed, oracle, local_prox)
        end = local_steps(step, dual, work)
        return _Visit(tree.sub(dual, end), total_rate(eta, work.num_steps)), state

    def update(state: FedDualAvgState, mean: _Visit, round: Round) -> FedDualAvgState:
        del round
        dual = tree.add_scale(state.dual, -server_lr, mean.descent)
        elapsed = state.elapsed + like(mean.elapsed, server_lr) * mean.elapsed
        return FedDualAvgState(composite.argmin(dual, elapsed), dual, elapsed)

    return FedAlgorithm(init, local, update, lambda state, round: (state.dual, state.elapsed))


def feddualavg_osp(
    lr: ScalarOrSchedule, composite: Composite, server_lr: Scalar = 1.0
) -> FedAlgorithm:
    r"""FedDualAvg with only the server proximal: clients do not know psi.

    If h is Euclidean the dual states are FedAvg's iterates on F alone, and the model is such an
    iterate after a prox whose weight grows without bound: of a penalty it tends to 0 in the end.

    References:
        Yuan, 2023, Algorithm 8.

    Example:
        >>> from fedjax_sim import prox
        >>> algorithm = feddualavg_osp(0.01, prox.composite(prox.L1(0.2)))
    """
    return feddualavg(lr, composite, server_lr, local_prox=False)


def fedavg_subgradient(
    lr: ScalarOrSchedule,
    composite: Composite,
    server_lr: Scalar = 1.0,
    order: Literal["together", "after"] = "together",
) -> FedAlgorithm:
    r"""FedAvg that treats a penalty as if it were smooth: :math:`x \leftarrow x - \eta (g + s)`.

    s is a subgradient of psi, of l1 :math:`\lambda \operatorname{sign}(x)`; so models are never
    sparse.

    Args:
        lr: client learning rate, or a schedule over rounds.
        composite: psi, a penalty, with a Euclidean h.
        server_lr: of the mean change of the model.
        order: "together" takes s where g is taken; "after", as the authors' program does, at
            the model that the gradient step has moved.

    Raises:
        ValueError: a constraint; another geometry or ``order``.

    References:
        Yuan, 2023, section 4.5, "FedAvg (d)".

    Example:
        >>> from fedjax_sim import prox
        >>> algorithm = fedavg_subgradient(0.01, prox.composite(prox.L1(0.2)))
    """
    if order not in ("together", "after"):
        raise ValueError(f"order is {order!r}; expected 'together' or 'after'")
    if not isinstance(composite.psi, Penalty):
        raise ValueError(f"composite has psi {composite.psi}; expected a penalty, not a constraint")
    if not isinstance(composite.mirror, Euclidean):
        raise ValueError(f"composite has mirror {composite.mirror}; expected Euclidean")

    def local(x: Params, state: tuple, oracle: Oracle, work: Work) -> tuple[Params, tuple]:
        eta = rate(lr, work)

        def step(y: Params, k: Array) -> Params:
            moved = tree.add_scale(y, -eta, oracle.grad(y, k))
            at = y if order == "together" else moved
            return tree.add_scale(moved, -eta, composite.subgradient(at))

        return tree.sub(x, local_steps(step, x, work)), state

    def update(state: FedMiDState, descent: Params, round: Round) -> FedMiDState:
        del round
        return FedMiDState(tree.add_scale(state.params, -server_lr, descent))

    return FedAlgorithm(FedMiDState, local, update)


def dual_step(
    lr: Scalar, composite: Composite, elapsed: Array, oracle: Oracle, local_prox: bool = True
) -> Callable[[Params, Array], Params]:
    """A client's step of dual averaging; psi has the weight ``elapsed`` when the visit starts."""

    def step(y: Params, k: Array) -> Params:
        weight = elapsed + total_rate(lr, k)
        x = composite.argmin(y, weight) if local_prox else composite.to_primal(y)  # Eq. (4.7)
        return tree.add_scale(y, -lr, oracle.grad(x, k))  # Eq. (4.6)

    return step


def total_rate(lr: Scalar, num_steps: Array) -> Array:
    """The sum of the rates of so many steps, in full precision."""
    full = jnp.result_type(float)
    return jnp.asarray(lr).astype(full) * jnp.asarray(num_steps).astype(full)
