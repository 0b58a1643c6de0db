r"""MOON: representations are pulled to those of the received model and away from the client's last.

References:
    Li, He, Song, "Model-Contrastive Federated Learning", 2021, arXiv 2103.16257.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.tree_util import Partial

from fedjax_sim import tree
from fedjax_sim.algorithms.fedavg import fedavg
from fedjax_sim.checks import check_at_least, check_positive
from fedjax_sim.local import ScalarOrSchedule, local_steps, rate, sgd, with_term
from fedjax_sim.objectives import Apply, outputs_of
from fedjax_sim.types import FedAlgorithm, Oracle, Params, PyTree, Scalar, Upload, Work, specified

__all__ = ["moon"]


class MoonClient(NamedTuple):
    params: Params  # v_i, the model at the end of the client's last visit
    visited: Array  # bool    there was a last visit


@specified
def moon(
    features: Apply,
    lr: ScalarOrSchedule,
    weight: Scalar = 1.0,
    temperature: Scalar = 0.5,
    server: optax.GradientTransformation | None = None,
) -> FedAlgorithm:
    r"""MOON: FedAvg with a contrastive loss between the features of three models.

    With ``weight`` :math:`\mu`, ``temperature`` :math:`\tau`, features :math:`R(y)` of an example
    and the cosine s:

    .. math::
        C(y) &= -\log \frac{e^{s(R(y), R(x)) / \tau}}
            {e^{s(R(y), R(x)) / \tau} + e^{s(R(y), R(v_i)) / \tau}} \\
        y &\leftarrow y - \eta\,\bigl(g_i(y) + \mu\, \nabla \operatorname{mean} C(y)\bigr),
        \qquad y_0 = x, \qquad v_i \leftarrow y_{K_i}, \qquad
        x \leftarrow \operatorname{mean}_i y_{K_i}

    The mean is over the step's minibatch.  The client keeps :math:`v_i`; its first visit has no
    contrastive term, as the first round of the authors' program.  Features are those of evaluation:
    without dropout and augmentation.  With :math:`\mu = 0` it is FedAvg.  The paper adds a
    projection head to the model, whose outputs are the features.

    Args:
        features: ``(params, x) -> features [B, ...]``, a part of the model.
        lr: client learning rate :math:`\eta`, or a schedule over rounds.
        weight: weight :math:`\mu` of the contrastive loss.
        temperature: :math:`\tau`, positive.
        server: as for :func:`~fedjax_sim.algorithms.fedavg`.

    Raises:
        ValueError: a number outside its range, ``server`` is one that FedAvg refuses; in the first
            round, a task without examples.

    References:
        Li et al., 2021, Algorithm 1.

    Example:
        >>> hidden = lambda params, x: jnp.tanh(x @ params["hidden"])
        >>> algorithm = moon(hidden, lr=0.1)
    """
    check_at_least(0, weight=weight)
    check_positive(temperature=temperature)
    contrast = Contrast(features)

    def local(
        x: Params, state: MoonClient, oracle: Oracle, work: Work
    ) -> tuple[Upload, MoonClient]:
        term = Partial(contrast, weight=weight, temperature=temperature, visited=state.visited)
        contrasted = with_term(oracle, term, x, state.params)
        y = local_steps(sgd(rate(lr, work), contrasted.grad), x, work)
        new = MoonClient(y, jnp.array(True))
        return tree.sub(x, y), tree.where(work.num_steps > 0, new, state)

    return fedavg(lr, server)._replace(
        local=local, init_client=lambda params: MoonClient(params, jnp.array(False))
    )


# Hashable by value, as objectives are.
@dataclasses.dataclass(frozen=True)
class Contrast:
    """Contrastive loss of the features of a model between two others, ``[B]``."""

    features: Apply

    def __call__(
        self,
        y: Params,
        x: Params,
        last: Params,
        examples: PyTree,
        key: Any,
        *,
        weight: Scalar,
        temperature: Scalar,
        visited: Array,
    ) -> Array:
        own, positive, negative = (self._directions(params, examples) for params in (y, x, last))
        difference = (own * (negative - positive)).sum(axis=1)
        dtype = difference.dtype
        losses = jax.nn.softplus(
            difference / jnp.asarray(temperature, dtype)
        )  # the contrastive loss C
        return jnp.where(visited, jnp.asarray(weight, dtype), 0) * losses

    def _directions(self, params: Params, examples: PyTree) -> Array:
        """Returns features of norm 1, ``[B, d]``; zeros stay zeros."""
        z = outputs_of(self.features, params, examples)
        z = z.reshape(len(z), -1)
        squared = jnp.square(z).sum(axis=1, keepdims=True)
        return z / jnp.sqrt(jnp.maximum(squared, jnp.finfo(z.dtype).tiny))
