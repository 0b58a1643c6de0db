r"""IFCA: clusters of clients, one model per cluster.

References:
    Ghosh, Chung, Yin, Ramchandran, "An Efficient Framework for Clustered Federated Learning",
        2020, arXiv 2006.04088.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import UPLOADS_COUNTS, real
from fedjax_sim.checks import check_choice, check_count, check_rates
from fedjax_sim.compression import code_bits, identity
from fedjax_sim.local import ScalarOrSchedule, local_steps, per_step, rate, sgd
from fedjax_sim.types import Bits, FedAlgorithm, Oracle, Params, Requires, Round, Work, specified

__all__ = ["ifca"]


class IfcaState(NamedTuple):
    params: Params  # theta_0
    others: Params  # theta_1 .. [k - 1, ...]

    @property
    def models(self) -> Params:
        """All models, with leaves ``[k, ...]``."""
        return jax.tree.map(
            lambda x, rest: jnp.concatenate([jnp.asarray(x)[None], rest]), self.params, self.others
        )


class IfcaMessage(NamedTuple):
    models: Params  # theta [k, ...]


class IfcaUpload(NamedTuple):
    chosen: Array  # [k] 1 for the client's cluster, else 0
    change: Params  # [k, ...] theta_j - y for the client's cluster, else 0

    def coded(self) -> Params:
        """Returns the part that a codec encodes, the one model that a client sends."""
        return jax.tree.map(lambda x: x.sum(0), self.change)

    def restored(self, model: Params) -> IfcaUpload:
        """Returns the upload with another model for the client's cluster."""
        return self._replace(change=_at_cluster(self.chosen > 0, model))

    def exact_bits(self) -> int:
        """Returns the bits of the number of the cluster, which no codec encodes."""
        return code_bits(self.chosen.shape[-1])


@specified
def ifca(
    lr: ScalarOrSchedule,
    num_models: int = 2,
    average: Literal["models", "gradients"] = "models",
    losses: Literal["all", "minibatches"] = "all",
    initial_models: Callable[[Params], Params] | None = None,
) -> FedAlgorithm:
    r"""IFCA: every client trains the model with the smallest loss on its own data.

    .. math::
        j_i &= \arg\min_j F_i(\theta_j), \qquad
        y \leftarrow y - \eta\, g_i(y), \qquad y_0 = \theta_{j_i} \\
        \theta_j &\leftarrow \theta_j - \frac
            {\operatorname{mean}_i [j_i = j]\, (\theta_j - y_{K_i})}
            {\operatorname{mean}_i [j_i = j]}

    A model that no client chose does not change.  Ties go to the lowest number, and a loss that is
    NaN counts as infinite.  With ``average="gradients"`` a client sends one gradient, of its first
    minibatch, and the mean is not divided by the cluster's share:
    :math:`\theta_j \leftarrow \theta_j - \eta \operatorname{mean}_i [j_i = j]\, g_i(\theta_j)`.

    In a visit without steps a client chooses no model, and counts in none of the means of models.

    Clients keep nothing.  The personal model is the one with the smallest loss on the client's
    training data, with ``losses="minibatches"`` on the minibatches of one visit; the server's
    ``params`` is only the first of the models.  ``upload.chosen`` of a visit
    (:class:`~fedjax_sim.engine.Probes`) has the client's cluster.  A real client sends one model
    and the number of its cluster: runs count the bits of these, and
    :func:`~fedjax_sim.compression.compressed` encodes the model only.  The simulation's upload has
    ``num_models`` models of which all but one are 0.

    Args:
        lr: client learning rate :math:`\eta`, or a schedule over rounds.
        num_models: number of clusters, k.
        average: clients train and send "models", or send "gradients".
        losses: a client compares the models by their losses on "all" of its examples or on the
            "minibatches" of the visit.
        initial_models: initial model -> k models with leaves ``[k, ...]``. Default: the initial
            model and copies of it with the entries of every leaf in random order, which for
            independent random entries are further draws. Models that are constant, such as zeros,
            need another function: equal models never separate.

    Raises:
        ValueError: ``num_models`` below 1, another ``average`` or ``losses``; at the start of the
            run, models without a leading axis of ``num_models``, or ``losses="all"`` for a task
            whose oracle has no ``full_loss``.

    References:
        Ghosh et al., 2020, Algorithm 1.

    Example:
        Two clients with minimisers 0 and 1, and models that start between them:

        >>> import fedjax_sim as fs
        >>> data = fs.from_clients([{"x": jnp.array([0.0])}, {"x": jnp.array([1.0])}])
        >>> task = fs.empirical_task(
        ...     lambda w, batch, key: (w - batch["x"]) ** 2, data, fs.full_batch(5))
        >>> setup = fs.Setup(task, fs.timelines.full(20, 2, task.num_steps), jnp.array(0.5))
        >>> algorithm = ifca(0.1, initial_models=lambda w: w + jnp.array([-0.1, 0.1]))
        >>> state, _ = fs.run(algorithm, setup, jax.random.key(0))
        >>> state.server.models.round(3).tolist()
        [0.0, 1.0]
    """
    check_rates(lr=lr)
    check_count(1, num_models=num_models)
    check_choice(("models", "gradients"), average=average)
    check_choice(("all", "minibatches"), losses=losses)
    start = initial_models or (lambda params: permuted_copies(params, num_models))

    def init(params: Params) -> IfcaState:
        models = start(params)
        shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(models)]
        expected = [(num_models, *jnp.shape(leaf)) for leaf in jax.tree.leaves(params)]
        if shapes != expected:
            raise ValueError(
                f"initial_models returns leaves of shapes {shapes}; expected {expected}, one model "
                f"for each of num_models={num_models}"
            )
        return state_of(models)

    def choose(models: Params, oracle: Oracle, work: Work) -> Array:
        """Returns the number of the model with the smallest loss."""

        def over_minibatches(model: Params) -> Array:
            zero = jnp.zeros((), jax.eval_shape(oracle.loss, model, 0).dtype)
            total = local_steps(lambda total, k: total + oracle.loss(model, k), zero, work)
            return per_step(total, work)

        loss = oracle.full_loss if losses == "all" else over_minibatches
        if loss is None:
            raise ValueError(
                "losses is 'all', but the task's oracle has no full_loss; expected a task with "
                "one, or losses='minibatches'"
            )
        # No loop: oracles that carry statistics can be asked outside of loops only.
        values = jnp.stack([loss(tree.take(models, jnp.array(j))) for j in range(num_models)])
        return jnp.argmin(jnp.where(jnp.isnan(values), jnp.inf, values))

    def local(
        message: IfcaMessage, state: tuple, oracle: Oracle, work: Work
    ) -> tuple[IfcaUpload, tuple]:
        cluster = choose(message.models, oracle, work)
        theta = tree.take(message.models, cluster)
        if average == "models":
            y = local_steps(sgd(rate(lr, work), oracle.grad), theta, work)
            change = tree.sub(theta, y)
        else:
            change = tree.scale(rate(lr, work), oracle.grad(theta, 0))
        chosen = (jnp.arange(num_models) == cluster) & (work.num_steps > 0)
        upload = IfcaUpload(real(chosen), _at_cluster(chosen, change))
        return upload, state

    def update(state: IfcaState, mean: IfcaUpload, round: Round) -> IfcaState:
        change = mean.change
        if average == "models":  # the quotient of two means: the mean over the cluster's clients
            share = jnp.where(mean.chosen > 0, mean.chosen, 1)
            change = jax.tree.map(lambda x: x / _along(share.astype(x.dtype), x[0]), change)
        return state_of(tree.sub(state.models, change))

    def personal(message: IfcaMessage, state: tuple, oracle: Oracle, work: Work) -> Params:
        return tree.take(message.models, choose(message.models, oracle, work))

    def broadcast(state: IfcaState, round: Round) -> IfcaMessage:
        return IfcaMessage(state.models)

    def bits(upload: IfcaUpload) -> int:
        return identity().bits(upload.change) // num_models + upload.exact_bits()

    return FedAlgorithm(
        init,
        local,
        update,
        broadcast,
        personal=personal,
        requires=Requires(
            exact_mean=UPLOADS_COUNTS,
            other_uploads="a change for each of the models",
            bits=Bits(upload=bits),
        ),
    )


def state_of(models: Params) -> IfcaState:
    """Returns the server's state with models ``[k, ...]``."""
    return IfcaState(jax.tree.map(lambda x: x[0], models), jax.tree.map(lambda x: x[1:], models))


def _at_cluster(chosen: Array, model: Params) -> Params:
    """Returns k models ``[k, ...]``: the model where ``chosen`` is true, else 0."""
    return jax.tree.map(lambda x: jnp.where(_along(chosen, x), x, jnp.zeros_like(x)), model)


def _along(values: Array, leaf: Array) -> Array:
    """Returns values ``[k]`` in a shape that broadcasts against ``[k, ...]`` of a leaf."""
    return values.reshape(-1, *[1] * leaf.ndim)


def permuted_copies(params: Params, count: int) -> Params:
    """Returns leaves ``[k, ...]``: a model, and copies with the entries of leaves permuted."""
    leaves, structure = jax.tree.flatten(params)

    def copies(index: int, leaf: Array) -> Array:
        keys = jax.random.split(jax.random.fold_in(jax.random.key(0), index), count)[1:]
        others = [jax.random.permutation(key, jnp.ravel(leaf)) for key in keys]
        return jnp.stack([leaf, *(other.reshape(jnp.shape(leaf)) for other in others)])

    return structure.unflatten([copies(*pair) for pair in enumerate(leaves)])
