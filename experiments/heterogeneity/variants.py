"""FedProx whose clients solve their proximal problems exactly."""

from collections.abc import Callable

import jax
import optax
from jax import Array

import fedjax_sim as fs
from fedjax_sim.types import Params, Scalar, Upload

MAX_STEPS = 100  # of L-BFGS


def exact_fedprox(mu: Scalar, tolerance: float) -> fs.FedAlgorithm:
    r"""FedProx of which a visit returns the minimiser, whatever its number of local steps.

    .. math:: y_i = \arg\min_y F_i(y) + \frac{\mu}{2} \|y - x\|^2

    :math:`F_i` is the loss of the visit's first minibatch: with ``full_batch`` that of all of the
    client's examples.  L-BFGS stops at a gradient of norm ``tolerance``.  With ``mu`` 0 it is the
    limit of FedAvg for many local steps, if a client's loss has a minimiser.
    """

    def local(x: Params, state: tuple, oracle: fs.Oracle, work: fs.Work) -> tuple[Upload, tuple]:
        def objective(y: Params) -> Array:
            return oracle.loss(y, 0) + mu / 2 * optax.tree.norm(fs.tree.sub(y, x), squared=True)

        solution = minimiser(objective, x, tolerance)
        return fs.tree.where(
            work.num_steps > 0, fs.tree.sub(x, solution), fs.tree.zeros_like(x)
        ), state

    return fs.fedprox(0.0, mu)._replace(local=local)


def minimiser(objective: Callable[[Params], Array], start: Params, tolerance: float) -> Params:
    """The minimiser of a smooth convex function by at most :data:`MAX_STEPS` steps of L-BFGS."""
    solver = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(objective)

    def unfinished(carry: tuple[Params, optax.OptState]) -> Array:
        count, grad = (optax.tree.get(carry[1], name) for name in ("count", "grad"))
        return (count == 0) | ((count < MAX_STEPS) & (optax.tree.norm(grad) > tolerance))

    def step(carry: tuple[Params, optax.OptState]) -> tuple[Params, optax.OptState]:
        x, state = carry
        value, grad = value_and_grad(x, state=state)
        updates, state = solver.update(grad, state, x, value=value, grad=grad, value_fn=objective)
        return optax.apply_updates(x, updates), state

    # optax multiplies floats with integer counts, which strict promotion refuses.
    with jax.numpy_dtype_promotion("standard"):
        return jax.lax.while_loop(unfinished, step, (start, solver.init(start)))[0]
