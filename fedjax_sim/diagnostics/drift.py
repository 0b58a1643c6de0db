r"""Client drift and the shadow sequence of FedAvg, within a round.

The shadow iterate ``xbar(r, k) = 1 / M sum_m x_m(r, k)`` is the mean of the clients' iterates after
k local steps in round r; in a run it is the mean with the run's weights. Bounds on FedAvg are
bounds on the mean of ``F(xbar(r, k))``. The clients of :func:`shadowed` FedAvg also upload their
iterates, so the engine's mean of the uploads contains the shadow sequence; :func:`shadow_probes`
reduce it to numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from fedjax_sim.algorithms.fedavg import fedavg
from fedjax_sim.engine import Probes, Update
from fedjax_sim.local import ScalarOrSchedule, local_path, rate, sgd
from fedjax_sim.types import FedAlgorithm, Oracle, Params, Upload, Work, shown


@shown
class ShadowUpload(NamedTuple):
    """An upload with the client's iterates, whose mean is the shadow sequence.

    Example:
        >>> oracle = Oracle(grad=lambda x, k: x, loss=None, full_grad=None)
        >>> work = Work(0, 0, jnp.array(2), 1, 0, None, max_steps=2)
        >>> upload, _ = shadowed(0.5).local(jnp.array(8.0), (), oracle, work)
        >>> upload.iterates.tolist(), upload.distances.tolist()
        ([8.0, 4.0, 2.0], [0.0, 16.0, 36.0])
    """

    upload: Upload
    iterates: Params  # [K + 1, ...]
    distances: Array  # [K + 1] ||x^k - x^0||^2
    present: Array  # 1; the mean of a round without uploads is 0


def shadowed(
    lr: ScalarOrSchedule, server: optax.GradientTransformation | None = None
) -> FedAlgorithm:
    """FedAvg whose uploads contain the iterates, for :func:`shadow_probes`.

    The models are those of :func:`fedjax_sim.fedavg`. The memory per client is K + 1 models.
    Timelines with staleness are refused.

    Example:
        >>> algorithm = shadowed(0.1)  # with probes=shadow_probes(loss)
    """
    plain = fedavg(lr, server)

    def local(x: Params, state: tuple, oracle: Oracle, work: Work) -> tuple[ShadowUpload, tuple]:
        iterates = local_path(sgd(rate(lr, work), oracle.grad), x, work)
        distances = _squares(jax.tree.map(lambda path, x: path - x, iterates, x), 1)
        upload = jax.tree.map(lambda path, x: x - path[-1], iterates, x)
        return ShadowUpload(upload, iterates, distances, jnp.ones_like(distances[0])), state

    return plain._replace(
        local=local,
        update=lambda state, mean, round: plain.update(state, mean.upload, round),
    ).requiring(synchronous="the shadow is the mean of clients that started from one model")


def shadow_probes(
    loss: Callable[[Params], Array] | None = None, at: Literal["start", "end"] = "end"
) -> Probes:
    r"""Server probes of a :func:`shadowed` run: means over the steps of each round.

    * ``shadow_loss``: mean of ``F(xbar(r, k))`` over k = 1 .. K, if a loss is given; with
      ``at="start"`` over k = 0 .. K - 1;
    * ``drift``: mean of ``sum_m w_m ||x_m(r, k) - xbar(r, k)||^2`` over k = 0 .. K - 1;
    * ``drift_from_start``: mean of ``sum_m w_m ||x_m(r, k) - x(r, 0)||^2`` over the same steps.

    ``xbar(r, k) = sum_m w_m x_m(r, k)`` has the weights with which the run averages the uploads of
    the round, normalised to sum to 1. In a round without uploads, all iterates are the server's
    model, so the drift is 0.

    :func:`fedjax_sim.theory.fedavg.shadow_bound` bounds the first two. ``drift`` is the
    difference of two means, so it loses digits if the shadow moves much farther than the clients
    drift apart.

    Args:
        loss: F. If it is a ``jax.tree_util.Partial`` that carries data, pass it as an argument to
            the function that you jit, and call ``shadow_probes`` inside that function.
        at: "end" evaluates the iterates after each step, as Proposition 2.1 of Yuan (2023) does;
            "start" those before it, as Theorems 2.22 and 2.23 on gradients do.

    Raises:
        ValueError: another ``at``.

    Example:
        >>> import fedjax_sim as fs, numpy as np
        >>> data = fs.FederatedData({"x": np.array([0.0, 4.0], np.float32)}, np.array([0, 1, 2]))
        >>> loss = lambda w, batch, key: 0.5 * (batch["x"] - w) ** 2
        >>> task = fs.empirical_task(loss, data, fs.full_batch(2))
        >>> setup = fs.Setup(task, fs.timelines.full(1, 2, 2), jnp.array(2.0))
        >>> probes = shadow_probes(lambda w: (w - 2) ** 2 / 2 + 2)
        >>> _, history = fs.run(shadowed(0.5), setup, jax.random.key(0), probes=probes)
        >>> {name: float(value[0]) for name, value in sorted(history.probes.items())}
        {'drift': 0.5, 'drift_from_start': 0.5, 'shadow_loss': 2.0}
    """
    if at not in ("start", "end"):
        raise ValueError(f"at is {at!r}; expected 'start' or 'end'")
    steps = slice(1, None) if at == "end" else slice(-1)

    def from_start(update: Update) -> Array:
        return update.mean.distances[:-1].mean()

    def from_shadow(update: Update) -> Array:
        shadow = update.mean.iterates
        from_first = _squares(jax.tree.map(lambda x: x - x[0], shadow), 1)
        return jnp.maximum(update.mean.distances - from_first, 0)[:-1].mean()

    probes = {"drift": from_shadow, "drift_from_start": from_start}
    if loss is not None:

        def shadow_loss(update: Update) -> Array:
            def of_round(path: Array, x: Array) -> Array:
                return jnp.where(update.mean.present > 0, path[steps], x)

            iterates = jax.tree.map(of_round, update.mean.iterates, update.state.params)
            return jax.lax.map(loss, iterates).mean()

        probes["shadow_loss"] = shadow_loss
    return Probes(server=probes)


def _squares(x: Params, leading: int) -> Array:
    """Squared norms over all axes but the leading ones, summed over leaves."""
    parts = [
        jnp.sum(leaf.reshape(*leaf.shape[:leading], -1) ** 2, axis=-1)
        for leaf in jax.tree.leaves(x)
    ]
    return sum(parts[1:], parts[0])
