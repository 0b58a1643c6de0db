r"""FedProto: clients keep their models and share the mean features of their classes.

References:
    Tan, Long, Liu, Zhou, Lu, Jiang, Zhang, "FedProto: Federated Prototype Learning across
        Heterogeneous Clients", 2022, arXiv 2105.00243.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.tree_util import Partial

from fedjax_sim.algorithms._shared import UPLOADS_COUNTS
from fedjax_sim.checks import check_at_least, check_choice, check_count, check_rates
from fedjax_sim.local import ScalarOrSchedule, local_steps, mean_over, rate, sgd, with_term
from fedjax_sim.objectives import Apply, outputs_of
from fedjax_sim.tree import bits_of_arrays
from fedjax_sim.types import (
    FedAlgorithm,
    Oracle,
    Params,
    PyTree,
    Requires,
    Round,
    Scalar,
    Work,
    specified,
)

__all__ = ["fedproto"]


class Prototypes(NamedTuple):
    """Mean features of the classes."""

    features: Array  # [C, D]; 0 where unknown
    known: Array  # [C] 1 or 0


class FedProtoState(NamedTuple):
    params: Params  # the initial model, with which a new client starts
    prototypes: Prototypes


class PrototypeUpload(NamedTuple):
    weighted: Array  # [C, D] features times weights
    weights: Array  # [C]; 0 for a class without examples

    def coded(self) -> Array:
        """Returns the part that a codec encodes."""
        return self.weighted

    def restored(self, weighted: Array) -> PrototypeUpload:
        """Returns the upload with other features."""
        return self._replace(weighted=weighted)

    def exact_bits(self) -> int:
        """Returns the bits of the weights, which no codec encodes."""
        return bits_of_arrays(self.weights)


@specified
def fedproto(
    features: Apply,
    num_classes: int,
    width: int,
    lr: ScalarOrSchedule,
    weight: Scalar = 1.0,
    average: Literal["clients", "examples"] = "clients",
) -> FedAlgorithm:
    r"""FedProto: a model per client, whose features are pulled to the common class means.

    With ``weight`` :math:`\lambda`, features R of D entries and the common prototypes
    :math:`c_k` of the classes k that are known:

    .. math::
        P(v) &= \tfrac{1}{D} \|R(v) - c_k\|^2 \text{ for an example of a known class k, else } 0 \\
        v_i &\leftarrow v_i
            - \eta\,\bigl(g_i(v_i) + \lambda\, \nabla \operatorname{mean} P(v_i)\bigr) \\
        c_{i,k} &= \text{mean of } R(v_i) \text{ over the client's examples of class k}, \qquad
        c_k \leftarrow \operatorname{mean}_{i:\, n_{i,k} > 0} c_{i,k}

    The client's model :math:`v_i` is its personal model and is not sent.  The server's model stays
    the initial one.  The mean over clients has the setup's weights, and with
    ``average="examples"`` also the numbers :math:`n_{i,k}` of examples.  A class that no client of
    a round has keeps its prototype.  With :math:`\lambda = 0` every client trains alone.

    P is that of the authors' program, which averages over clients; the paper penalises the distance
    of the client's class means, and its aggregation divides the mean over examples by the number
    of clients once more.  The program takes :math:`c_{i,k}` along the last epoch, not after it.

    Args:
        features: ``(params, x) -> features [B, D]``, a part of the model.
        num_classes: number of classes.  A label that is none makes the model NaN.
        width: number D of features.
        lr: client learning rate :math:`\eta`, or a schedule over rounds.
        weight: weight :math:`\lambda` of the distance to the prototypes.
        average: "clients" or "examples".

    Raises:
        ValueError: a number outside its range, another ``average``; in the first round, a task
            without examples, labels that are no integers, or features of another shape.

    References:
        Tan et al., 2022, Algorithm 1.

    Example:
        >>> hidden = lambda params, x: jnp.tanh(x @ params["hidden"])
        >>> algorithm = fedproto(hidden, num_classes=10, width=32, lr=0.1)
    """
    check_rates(lr=lr)
    check_at_least(0, weight=weight)
    check_count(1, num_classes=num_classes, width=width)
    check_choice(("clients", "examples"), average=average)
    of_class = OfClass(features, num_classes, width)

    def init(params: Params) -> FedProtoState:
        unknown = Prototypes(jnp.zeros((num_classes, width)), jnp.zeros(num_classes))
        return FedProtoState(params, unknown)

    def local(
        message: Prototypes, v: Params, oracle: Oracle, work: Work
    ) -> tuple[PrototypeUpload, Params]:
        term = Partial(Distance(of_class), prototypes=message, weight=weight)
        v = local_steps(sgd(rate(lr, work), with_term(oracle, term).grad), v, work)
        sums = mean_over(oracle)(Partial(of_class))(v)
        sums = jnp.broadcast_to(sums, (num_classes, width + 1))  # without data it is one number
        share = sums[:, -1]
        own = sums[:, :-1] / jnp.where(share > 0, share, 1)[:, None]  # the client's prototypes
        weights = (share > 0).astype(share.dtype)
        if average == "examples":
            weights = share * jnp.asarray(work.num_examples).astype(share.dtype)
        weights = jnp.where(work.num_steps > 0, weights, 0)
        return PrototypeUpload(weights[:, None] * own, weights), v

    def update(state: FedProtoState, mean: PrototypeUpload, round: Round) -> FedProtoState:
        found = mean.weights > 0
        average = mean.weighted / jnp.where(found, mean.weights, 1)[:, None]
        old = state.prototypes
        values = jnp.where(found[:, None], average.astype(old.features.dtype), old.features)
        return state._replace(prototypes=Prototypes(values, jnp.where(found, 1, old.known)))

    return FedAlgorithm(
        init,
        local,
        update,
        broadcast=lambda state, round: state.prototypes,
        init_client=lambda params: params,
        personal=lambda message, v, oracle, work: v,
        requires=Requires(exact_mean=UPLOADS_COUNTS, partial_model=True),
    )


# Hashable by value, as objectives are.
@dataclasses.dataclass(frozen=True)
class OfClass:
    """Features and a one in the row of an example's class, ``[B, C, D + 1]``."""

    features: Apply
    num_classes: int
    width: int

    def rows(self, params: Params, examples: PyTree) -> tuple[Array, Array]:
        """Returns features ``[B, D]``, and a one at every example's class, ``[B, C]``."""
        z, labels = outputs_of(self.features, params, examples), examples["y"]
        if z.shape != (*labels.shape, self.width):
            raise ValueError(
                f"features has values of shape {z.shape}; expected {(*labels.shape, self.width)}, "
                f"for labels of shape {labels.shape} and width {self.width}"
            )
        if not jnp.issubdtype(labels.dtype, jnp.integer):
            raise ValueError(f"examples['y'] has dtype {labels.dtype}; expected integer labels")
        return z, jax.nn.one_hot(labels, self.num_classes, dtype=z.dtype)

    def __call__(self, params: Params, examples: PyTree, key: Any) -> Array:
        z, classes = self.rows(params, examples)
        with_one = jnp.concatenate([z, jnp.ones_like(z[:, :1])], axis=1)
        return classes[:, :, None] * with_one[:, None, :]


@dataclasses.dataclass(frozen=True)
class Distance:
    """Mean square of the differences between features and their class's prototype, ``[B]``."""

    of_class: OfClass

    def __call__(
        self,
        params: Params,
        examples: PyTree,
        key: Any,
        *,
        prototypes: Prototypes,
        weight: Scalar,
    ) -> Array:
        z, classes = self.of_class.rows(params, examples)
        targets, known = (classes @ x.astype(z.dtype) for x in prototypes)
        # A label that is no class is in no row; NaN as a factor, so that the gradient is NaN, too.
        factor = jnp.where(classes.sum(axis=1) > 0, known, jnp.nan).astype(z.dtype)
        return jnp.asarray(weight, z.dtype) * factor * jnp.square(z - targets).mean(axis=1)
