r"""FedNTD: clients keep the received model's view of the classes that are not an example's own.

References:
    Lee, Jeong, Shin, Bae, Yun, "Preservation of the Global Knowledge by Not-True Distillation in
        Federated Learning", 2022, arXiv 2106.03097.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.tree_util import Partial

from fedjax_sim.algorithms.fedavg import fedavg
from fedjax_sim.checks import check_at_least, check_positive
from fedjax_sim.local import ScalarOrSchedule, with_term
from fedjax_sim.objectives import Apply, outputs_of
from fedjax_sim.types import FedAlgorithm, Model, Oracle, Params, PyTree, Scalar, specified

__all__ = ["fedntd"]


@specified
def fedntd(
    model: Apply | Model,
    lr: ScalarOrSchedule,
    weight: Scalar = 1.0,
    temperature: Scalar = 1.0,
    server: optax.GradientTransformation | None = None,
) -> FedAlgorithm:
    r"""FedNTD: FedAvg whose clients distil the received model over the not-true classes.

    With ``weight`` :math:`\beta`, ``temperature`` :math:`\tau` and the logits
    :math:`z(y)` of an example of class k:

    .. math::
        q_c(y) &= \frac{\exp(z_c(y) / \tau)}{\sum_{c' \ne k} \exp(z_{c'}(y) / \tau)},
            \quad c \ne k, \qquad
        D(y) = \sum_{c \ne k} q_c(x) \log \frac{q_c(x)}{q_c(y)} \\
        y &\leftarrow y - \eta\,\bigl(g_i(y) + \beta\, \nabla \operatorname{mean} D(y)\bigr),
        \qquad y_0 = x, \qquad x \leftarrow \operatorname{mean}_i y_{K_i}

    The mean is over the step's minibatch.  Both logits are those of evaluation: without dropout and
    augmentation, with running statistics.  With :math:`\beta = 0` it is FedAvg.  The gradient of D
    is a term of the algorithm's own: clipping and decay of the oracle do not act on it.

    Args:
        model: a model, or its function ``(params, x) -> logits [B, classes]``.
        lr: client learning rate :math:`\eta`, or a schedule over rounds.
        weight: weight :math:`\beta` of the distillation.
        temperature: of the softmax, positive, :math:`\tau`.
        server: as for :func:`~fedjax_sim.algorithms.fedavg`.

    Raises:
        ValueError: a number outside its range, ``server`` is one that FedAvg refuses; in the first
            round, a task without examples, or labels that are no classes of the logits.

    References:
        Lee et al., 2022, Algorithm 1.

    Example:
        >>> import fedjax_sim as fs
        >>> model = fs.models.mlp(64, hidden=(32,), num_classes=10)
        >>> algorithm = fedntd(model, lr=0.1)
    """
    check_at_least(0, weight=weight)
    check_positive(temperature=temperature)
    term = Partial(NotTrue(model), weight=weight, temperature=temperature)

    def anchored(oracle: Oracle, x: Params) -> Oracle:
        return with_term(oracle, term, x)

    return fedavg(lr, server, anchored)


# Hashable by value, as objectives are.
@dataclasses.dataclass(frozen=True)
class NotTrue:
    """Divergence between the not-true softmaxes of two models, ``[B]``."""

    model: Apply | Model

    def __call__(
        self,
        y: Params,
        x: Params,
        examples: PyTree,
        key: Any,
        *,
        weight: Scalar,
        temperature: Scalar,
    ) -> Array:
        student, teacher = (self._logs(params, examples, temperature) for params in (y, x))
        # Where the class is the example's own, both are -infinity in effect, and count as 0.
        divergence = jnp.where(
            _is_true(examples["y"], student), 0, jnp.exp(teacher) * (teacher - student)
        ).sum(axis=-1)
        return jnp.asarray(weight, divergence.dtype) * divergence.reshape(len(divergence), -1).mean(
            1
        )

    def _logs(self, params: Params, examples: PyTree, temperature: Scalar) -> Array:
        """Logarithms of the not-true softmax; the smallest number for the true class."""
        logits = outputs_of(self.model, params, examples)
        lowest = jnp.finfo(logits.dtype).min  # finite: the derivative of 0 * infinity is NaN
        scaled = logits / jnp.asarray(temperature, logits.dtype)
        masked = jnp.where(_is_true(examples["y"], logits), lowest, scaled)
        return jax.nn.log_softmax(masked, axis=-1)


def _is_true(labels: Array, logits: Array) -> Array:
    """Returns True for every example's own class, ``[B, classes]``."""
    if logits.shape[:-1] != labels.shape or not jnp.issubdtype(labels.dtype, jnp.integer):
        raise ValueError(
            f"examples['y'] has dtype {labels.dtype} and shape {labels.shape}; expected "
            f"integers of shape {logits.shape[:-1]}, since the logits have shape {logits.shape}"
        )
    return jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)
