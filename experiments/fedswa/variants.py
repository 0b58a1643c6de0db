r"""Methods as the released programs have them, where the programs differ from the papers.

The FedSWA authors released two programs.  The first one has FedMoSWA with gamma 0.1 and SCAFFOLD+,
the second one FedSWA with another rate and FedMo under the name FedMoSWA.  Both start the server's
control at the mean of the clients' first controls, which is a gamma of 1 in the first round.  Every
function is one difference; docs/reproductions/fedswa.md names the published numbers that it may
explain.  Another one, controls of a worker's last client, is ``last_on_worker`` of
``experiments.harness.controls``.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

import fedjax_sim as fs
from fedjax_sim.algorithms.fedlesam import FedLesamClient
from fedjax_sim.local import ScalarOrSchedule
from fedjax_sim.types import Scalar, send_state


def fedswa_second_program(lr: ScalarOrSchedule) -> fs.FedAlgorithm:
    """FedSWA with twice the rate, a floor of 0 and an averaging server."""
    return fs.fedswa(doubled(lr), rho=0.0, alpha=1.0)


def doubled(lr: ScalarOrSchedule) -> ScalarOrSchedule:
    """Twice a rate: the README starts FedSWA from 0.2 and the other methods from 0.1.

    Its program doubles the rate again, so its FedSWA begins visits with 0.4.
    """
    return (lambda round: 2 * lr(round)) if callable(lr) else 2 * lr


def fedmoswa_first_program(
    lr: ScalarOrSchedule, rho: Scalar = 0.1, alpha: Scalar = 1.5, gamma: Scalar = 0.1
) -> fs.FedAlgorithm:
    r"""FedMoSWA with gamma 1 in the first round and a divisor of :math:`K \eta (1 + \rho) / 2`.

    The paper divides by the sum of the rates, which is larger:
    :math:`\eta (K (1 + \rho) + 1 - \rho) / 2`.
    """

    later = fs.fedmoswa(lr, rho, alpha, gamma)

    def local(message: Any, control: Any, oracle: fs.Oracle, work: fs.Work) -> tuple[Any, Any]:
        (delta, _), _ = later.local(message, control, oracle, work)
        total = trapezoid(fs.local.rate(lr, work), rho, work.num_steps)
        active = (work.num_steps > 0) & (total > 0)
        descent = fs.tree.divide(delta, jnp.where(total > 0, total, 1))
        new = fs.tree.sub(descent, fs.tree.sub(message.control, control))
        new = fs.tree.where(active, new, control)
        change = fs.tree.where(active, fs.tree.sub(new, message.control), fs.tree.zeros_like(new))
        return (delta, change), new

    return _first_gamma_one(later._replace(local=local), fs.fedmoswa(lr, rho, alpha, 1.0))


def fedmo_second_program(lr: ScalarOrSchedule, gamma: Scalar = 0.4) -> fs.FedAlgorithm:
    """FedMo with gamma 1 in the first round; the program calls it FedMoSWA."""
    return _first_gamma_one(fs.fedmo(lr, gamma), fs.fedmo(lr, 1.0))


def scaffold_plus(lr: ScalarOrSchedule, gamma: Scalar = 0.1) -> fs.FedAlgorithm:
    r"""FedMo whose controls are displacements per step (SCAFFOLD+ of the first program).

    .. math::
        y \leftarrow y - \eta\, g_i(y) + c_i - m, \qquad
        c_i^+ = c_i - m + \frac{x - y_K}{K}

    With a constant rate it is FedMo.  With a schedule, controls keep the scale of the rate of the
    round in which they were made.
    """
    gradients = fs.fedmo(lr, gamma)

    def local(message: Any, control: Any, oracle: fs.Oracle, work: fs.Work) -> tuple[Any, Any]:
        eta = fs.local.rate(lr, work)
        in_gradients = message._replace(control=fs.tree.divide(message.control, eta))
        (delta, change), new = gradients.local(
            in_gradients, fs.tree.divide(control, eta), oracle, work
        )
        new = fs.tree.where(work.num_steps > 0, fs.tree.scale(eta, new), control)
        return (delta, fs.tree.scale(eta, change)), new

    return gradients._replace(local=local)


def scaffold_inert(lr: ScalarOrSchedule) -> fs.FedAlgorithm:
    r"""SCAFFOLD whose correction has no gradient: the models are those of FedAvg.

    Both programs add the correction to the loss as a number (``.item()``).  Controls are updated
    by option II all the same, from gradients that are not corrected:

    .. math:: y \leftarrow y - \eta\, g_i(y), \qquad c_i^+ = c_i - c + \frac{x - y_K}{K \eta}
    """
    scaffold = fs.scaffold(lr)

    def local(message: Any, control: Any, oracle: fs.Oracle, work: fs.Work) -> tuple[Any, Any]:
        uncorrected = message._replace(control=control)
        (delta, change), new = scaffold.local(uncorrected, control, oracle, work)
        lag = fs.tree.sub(control, message.control)
        lag = fs.tree.where(work.num_steps > 0, lag, fs.tree.zeros_like(lag))
        return (delta, fs.tree.add(change, lag)), fs.tree.add(new, lag)

    return scaffold._replace(local=local)


def fedsam_without_decay(lr: ScalarOrSchedule) -> fs.FedAlgorithm:
    """FedSAM of both programs: neither weight decay nor clipping."""
    return fs.fedsam(lr, radius=0.05)


def mofedsam_without_decay(lr: ScalarOrSchedule) -> fs.FedAlgorithm:
    """MoFedSAM of the first program: neither weight decay nor clipping."""
    return fs.mofedsam(lr, radius=0.1, mix=0.1)


@fs.specified
def cosine(lr: Scalar, num_rounds: int) -> ScalarOrSchedule:
    r"""The second program's schedule: :math:`\eta\,(1 + \cos(\pi t / T)) / 2` in round t of T.

    It replaces the paper's decay of 0.998 per round.
    """
    return lambda round: (
        lr * (1 + jnp.cos(jnp.pi * jnp.asarray(round, jnp.result_type(float)) / num_rounds)) / 2
    )


def cropped(examples: Mapping[str, Any], key: Array) -> dict[str, Any]:
    """Test images as the second program evaluates them: with the random crop of training.

    The program draws the crops at each evaluation, here they are drawn once.
    """
    images = jnp.asarray(examples["x"])
    return {**examples, "x": fs.data.augmentation.random_crop(images, key)}


def trapezoid(lr: Scalar, rho: Scalar, num_steps: Array) -> Array:
    """Returns the first program's sum of the rates, ``num_steps * lr * (1 + rho) / 2``."""
    real = jnp.result_type(float)
    mean = (1 + jnp.asarray(rho, real)) / 2
    return jnp.asarray(num_steps).astype(real) * jnp.asarray(lr, real) * mean


class FedLesamServer(NamedTuple):
    params: Any
    displacement: Any  # of the last server update: new model minus old


def fedlesam_of_the_program(
    lr: ScalarOrSchedule, radius: Scalar = 0.1, transform: Any = fs.transforms.unchanged
) -> fs.FedAlgorithm:
    r"""FedLESAM whose :math:`x_i^{\text{old}}` is the server's model one update ago, for everybody.

    From the program of Fan et al., "Locally Estimated Global Perturbations are Better than Local
    Perturbations for Federated Sharpness-aware Minimization", 2024; the paper takes the model of
    the client's last visit.
    """
    paper = fs.fedlesam(lr, radius, transform)

    def init(params: Any) -> FedLesamServer:
        return FedLesamServer(params, fs.tree.zeros_like(params))

    def local(
        message: FedLesamServer, state: tuple, oracle: fs.Oracle, work: fs.Work
    ) -> tuple[Any, tuple]:
        old = fs.tree.sub(message.params, message.displacement)
        client = FedLesamClient(old, jnp.array(True))
        return paper.local(message.params, client, oracle, work)[0], state

    def update(state: FedLesamServer, delta: Any, round: fs.Round) -> FedLesamServer:
        del round
        return FedLesamServer(fs.tree.sub(state.params, delta), fs.tree.scale(-1, delta))

    return fs.FedAlgorithm(init, local, update, send_state)


def _first_gamma_one(later: fs.FedAlgorithm, first: fs.FedAlgorithm) -> fs.FedAlgorithm:
    def update(state: Any, mean: Any, round: fs.Round) -> Any:
        begins = round.number == 0
        return fs.tree.where(
            begins, first.update(state, mean, round), later.update(state, mean, round)
        )

    return later._replace(update=update)
