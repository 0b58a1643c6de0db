"""SCAFFOLD: stochastic controlled averaging.

References:
    Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", 2020.
"""

from typing import Literal, NamedTuple

from fedjax_sim import tree
from fedjax_sim.gradients import corrected
from fedjax_sim.local import Rate, local_steps, per_step, rate, sgd
from fedjax_sim.typing import FedAlgorithm, Oracle, Params, Round, Scalar, Work


class ScaffoldState(NamedTuple):
    params: Params
    control: Params  # c, the mean of all clients' controls when zero-initialised


def scaffold(lr: Rate, server_lr: Scalar = 1.0, option: Literal["I", "II"] = "II") -> FedAlgorithm:
    r"""SCAFFOLD: control variates :math:`c_i` on the clients and :math:`c` on the server, from 0.

    .. math::
        y &\leftarrow y - \eta\,(g_i(y) - c_i + c), \qquad y_0 = x \\
        c_i^+ &= \nabla F_i(x) \ \text{(option I)} \quad\text{or}\quad
        c_i - c + \tfrac{1}{K_i \eta}(x - y_{K_i}) \ \text{(option II)} \\
        x &\leftarrow x - \eta_s \operatorname{mean}_i (x - y_{K_i}), \qquad
        c \leftarrow c + \tfrac{|S|}{M} \operatorname{mean}_i (c_i^+ - c_i)

    Option I is the full local gradient at the received model: one more pass over the data, no
    more communication.  A visit of zero steps leaves :math:`c_i` as it is.

    Raises:
        ValueError: an option other than "I" and "II".

    References:
        Karimireddy et al., 2020, Algorithm 1.

    Example:
        >>> algorithm = scaffold(lr=0.1)
    """
    if option not in ("I", "II"):
        raise ValueError(f"option is {option!r}; expected 'I' or 'II'")

    def init(params: Params) -> ScaffoldState:
        return ScaffoldState(params, tree.zeros_like(params))

    def broadcast(state: ScaffoldState, round: Round) -> ScaffoldState:
        del round
        return state

    def local(
        message: ScaffoldState, control: Params, oracle: Oracle, work: Work
    ) -> tuple[tuple[Params, Params], Params]:
        x, eta = message.params, rate(lr, work)
        correction = tree.sub(message.control, control)
        y = local_steps(sgd(eta, corrected(oracle, correction).grad), x, work)  # Eq. (3)
        delta = tree.sub(x, y)
        if option == "I":
            new = oracle.full_grad(x)  # Eq. (4), option I
        else:
            descent = per_step(delta, work)
            new = tree.add_scale(tree.scale(-1, correction), 1 / eta, descent)  # Eq. (4), option II
        new = tree.where(work.num_steps > 0, new, control)
        return (delta, tree.sub(new, control)), new

    def update(state: ScaffoldState, mean: tuple[Params, Params], round: Round) -> ScaffoldState:
        delta, dcontrol = mean
        participation = round.num_uploads / round.num_clients
        return ScaffoldState(  # Eq. (5)
            tree.add_scale(state.params, -server_lr, delta),
            tree.add_scale(state.control, participation, dcontrol),
        )

    return FedAlgorithm(init, local, update, broadcast, init_client=tree.zeros_like)
