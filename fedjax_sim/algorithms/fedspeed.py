r"""FedSpeed: proximal visits with a correction, along gradients that are mixed with a sharp one.

References:
    Sun, Shen, Huang, Ding, Tao, "FedSpeed: Larger Local Interval, Less Communication Round, and
        Higher Generalization Accuracy", 2023, arXiv 2302.10429.
"""

from __future__ import annotations

from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import ModelState, Transform
from fedjax_sim.checks import check_at_least, check_positive, check_rates, check_share
from fedjax_sim.local import (
    ScalarOrSchedule,
    corrected,
    local_steps,
    proximal,
    rate,
    sgd,
    unchanged,
)
from fedjax_sim.types import (
    FedAlgorithm,
    Oracle,
    Params,
    Requires,
    Round,
    Scalar,
    Upload,
    Work,
    specified,
)

__all__ = ["fedspeed"]


@specified
def fedspeed(
    lr: ScalarOrSchedule,
    mu: Scalar = 0.1,
    radius: Scalar = 0.1,
    mix: Scalar = 1.0,
    normalised: bool = False,
    transform: Transform = unchanged,
) -> FedAlgorithm:
    r"""FedSpeed: the correction removes the bias of the proximal term; flat minima by an ascent.

    With ``mu`` :math:`\mu`, ``radius`` :math:`\rho`, ``mix`` :math:`\alpha` and the corrections
    :math:`u_i` from zero:

    .. math::
        q(y) &= (1 - \alpha)\, g_i(y) + \alpha\, g_i\bigl(y + \rho\, g_i(y)\bigr) \\
        y &\leftarrow y - \eta\,\bigl(q(y) - u_i + \mu\,(y - x)\bigr), \qquad y_0 = x \\
        u_i &\leftarrow u_i - \mu\,(y_{K_i} - x), \qquad
        x \leftarrow \operatorname{mean}_{i \in S} (y_{K_i} - u_i / \mu)

    Both gradients of a step are those of one minibatch.  A client's state is :math:`u_i`.  With
    ``radius=0`` or ``mix=0`` and all clients in every round it is FedDyn.

    The authors' program differs: its ascent has the length :math:`\rho` (``normalised=True``), its
    gradient is the second one alone (``mix=1``), its server subtracts the mean of all clients'
    :math:`u_i` instead of the cohort's, and it clips the gradient with the correction.  Here
    ``transform`` acts on q alone.

    Args:
        lr: client learning rate :math:`\eta`, or a schedule over rounds.
        mu: weight of the proximal term, positive, the paper's :math:`1 / \lambda`.
        radius: rate of the ascent :math:`\rho`, or its length.
        mix: weight :math:`\alpha` of the gradient after the ascent, in [0, 1].
        normalised: the ascent is :math:`\rho\, g_i(y) / \|g_i(y)\|`.
        transform: as for :func:`~fedjax_sim.algorithms.fedsam`, of q.

    Raises:
        ValueError: a number outside its range.

    References:
        Sun et al., 2023, Algorithm 1.

    Example:
        >>> algorithm = fedspeed(lr=0.1, mix=0.9)
    """
    check_rates(lr=lr)
    check_positive(mu=mu)
    check_at_least(0, radius=radius)
    check_share(mix=mix)

    def quasi(oracle: Oracle) -> Oracle:
        def grad(y: Params, k: Array) -> Params:
            first = oracle.grad(y, k)
            length = tree.over_norm(radius, first) if normalised else radius
            second = oracle.grad(tree.add_scale(y, length, first), k)
            return tree.add(tree.scale(1 - mix, first), tree.scale(mix, second))

        return oracle._replace(grad=grad)

    def local(x: Params, dual: Params, oracle: Oracle, work: Work) -> tuple[Upload, Params]:
        # Algorithm 1, the prox-correction term
        step = corrected(proximal(transform(quasi(oracle)), mu, x), tree.scale(-1, dual))
        delta = tree.sub(x, local_steps(sgd(rate(lr, work), step.grad), x, work))
        new = tree.add_scale(dual, mu, delta)
        # The upload is the change to y - u / mu; without steps there is none.
        upload = tree.add_scale(delta, 1 / mu, new)
        return tree.where(work.num_steps > 0, upload, tree.zeros_like(upload)), new

    def update(state: ModelState, mean: Upload, round: Round) -> ModelState:
        return ModelState(tree.sub(state.params, mean))

    requires = Requires(other_uploads="changes of the model minus a multiple of the correction")
    return FedAlgorithm(ModelState, local, update, init_client=tree.zeros_like, requires=requires)
