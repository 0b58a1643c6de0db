"""Algorithms that coincide with simpler ones, and settings in which they do not."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from catalogue import current_timeline, model, moved, trained
from instance_q import LR, models
from quadratics import CENTRES, HESSIANS, NUM_CLIENTS, same_clients, state_after
from small_problems import assert_close

import fedjax_sim as fs
from fedjax_sim import tree

pytestmark = pytest.mark.usefixtures("x64")

TOLERANCE = 1e-12  # double precision, contractive maps: round-off does not accumulate
QUICK = {"fedavg_schedule", "fedavgm", "fedprox", "fedsam", "fedasam"}
# Models of the catalogue with these numbers.
EQUAL = [
    ("fedavg_schedule", {"decay": 0.0}, "fedavg", {}),
    ("fedavgm", {"server_lr": 1.0, "momentum": 0.0}, "fedavg", {}),
    ("fedprox", {"mu": 0.0}, "fedavg", {}),
    ("fedacg", {"momentum": 0.0, "mu": 0.0}, "fedavg", {}),
    ("fedacg", {"momentum": 0.0, "mu": 0.4}, "fedprox", {"mu": 0.4}),
    ("fedsam", {"radius": 0.0}, "fedavg", {}),
    ("fedasam", {"radius": 0.0}, "fedavg", {}),
    ("fedlesam", {"radius": 0.0}, "fedavg", {}),
    ("mofedsam", {"radius": 0.0, "mix": 1.0}, "fedavg", {}),
    ("mofedsam", {"radius": 0.3, "mix": 1.0}, "fedsam", {"radius": 0.3}),
    ("fedcm", {"server_lr": 1.0, "mix": 1.0}, "fedavg", {}),
    ("fedcm", {"server_lr": 1.0, "mix": 0.4}, "mofedsam", {"radius": 0.0, "mix": 0.4}),
    ("fedgamma", {"radius": 0.0, "server_lr": 1.0}, "scaffold_II", {"server_lr": 1.0}),
    ("scaffold_m", {"server_lr": 0.8, "mix": 1.0}, "scaffold_II", {"server_lr": 0.8}),
    ("fedsmoo", {"mu": 0.4, "radius": 0.0}, "feddyn", {"mu": 0.4}),
    ("fedinit", {"relaxation": 0.0}, "fedavg", {}),
    # The weights stay 1.
    ("fedala", {"weight_lr": 0.0}, "fedavg", {}),
    ("feddf", {"distill_lr": 0.0}, "fedavg", {}),
    ("fedntd", {"weight": 0.0}, "fedavg", {}),
    ("moon", {"weight": 0.0}, "fedavg", {}),
    (
        "fedgloss",
        {"server_lr": 1.0, "mu": 0.4, "radius": 0.0, "local_radius": 0.0},
        "feddyn",
        {"mu": 0.4},
    ),
    ("fedswa", {"rho": 1.0, "alpha": 1.0}, "fedavg", {}),
    ("fedswa", {"rho": 1.0, "alpha": 0.7}, "fedavgm", {"server_lr": 0.7, "momentum": 0.0}),
]
DIFFERENT = [
    ("fedacg", {"momentum": 0.5, "mu": 0.0}, "fedavg", {}),
    ("fedacg", {"momentum": 0.5, "mu": 0.4}, "fedprox", {"mu": 0.4}),
    ("feddyn", {"mu": 0.3}, "fedavg", {}),
    ("fedsam", {"radius": 0.3}, "fedavg", {}),
    ("fedasam", {"radius": 0.3}, "fedavg", {}),
    ("fedlesam", {"radius": 0.3}, "fedavg", {}),
    ("mofedsam", {"radius": 0.0, "mix": 0.5}, "fedavg", {}),
    ("fedinit", {"relaxation": 0.3}, "fedavg", {}),
    ("fedala", {"weight_lr": 0.4}, "fedavg", {}),
    ("feddf", {"distill_lr": 0.05}, "fedavg", {}),
    ("fedntd", {"weight": 0.6}, "fedavg", {}),
    ("moon", {"weight": 0.6}, "fedavg", {}),
    ("fedgloss", {"server_lr": 1.0, "radius": 0.2, "local_radius": 0.0}, "feddyn", {"mu": 0.3}),
    ("fedgloss", {"server_lr": 1.0, "radius": 0.0, "local_radius": 0.2}, "feddyn", {"mu": 0.3}),
    ("fedswa", {"rho": 0.3, "alpha": 1.0}, "fedavg", {}),
    ("fedswa", {"rho": 1.0, "alpha": 1.3}, "fedavg", {}),
    ("fedmoswa", {"rho": 1.0, "alpha": 1.0}, "fedavg", {}),
]


def rows(table):
    return pytest.mark.parametrize(
        ("name", "changed", "other", "its"),
        [pytest.param(*row, marks=[] if row[0] in QUICK else pytest.mark.slow) for row in table],
    )


@rows(EQUAL)
def test_special_numbers_give_simpler_algorithms(name, changed, other, its):
    assert_close(model(name, **changed), model(other, **its), TOLERANCE)


@rows(DIFFERENT)
def test_other_numbers_do_not(name, changed, other, its):
    assert moved(model(name, **changed), model(other, **its)) > 1e-3


@pytest.mark.slow
def test_one_local_step_is_fedavg():
    """With minibatches, not full gradients."""
    timeline = current_timeline()
    once = dataclasses.replace(timeline, num_steps=jnp.minimum(timeline.num_steps, 1))
    for name in ("mb_sgd", "fedsgd"):
        one, other = (trained(key, once, lr=0.2).server.params for key in (name, "fedavg"))
        assert_close(one, other, TOLERANCE)


def frozen(algorithm):
    """An algorithm whose clients' and server's controls are kept at zero."""

    def local(message, state, oracle, work):
        (delta, change), _ = algorithm.local(message, state, oracle, work)
        return (delta, tree.zeros_like(change)), state

    return algorithm._replace(local=local)


# Algorithm and a simpler one on quadratics; where they are equal, and where they are not.
ON_QUADRATICS = {
    "fedsgd": (lambda: fs.fedavg(0.2), lambda: fs.fedsgd(0.2), {"num_steps": 1}, {"num_steps": 2}),
    "fedprox": (
        # The proximal gradient is 0 at the start of the visit.
        lambda: fs.fedprox(0.2, mu=0.5), lambda: fs.fedavg(0.2), {"num_steps": 1}, {"num_steps": 2},
    ),
    "scaffold I": (
        lambda: fs.scaffold(0.1, option="I"), lambda: fs.fedavg(0.1),
        {"num_rounds": 1}, {"num_rounds": 2},
    ),
    "scaffold II": (
        lambda: fs.scaffold(0.1), lambda: fs.fedavg(0.1), {"num_rounds": 1}, {"num_rounds": 2},
    ),
    "fedlesam": (
        # Three rounds of two clients, nobody twice.
        lambda: fs.fedlesam(0.1, radius=0.3), lambda: fs.fedavg(0.1),
        {"num_rounds": 3, "cohort_size": 2}, {"num_rounds": 4, "cohort_size": 2},
    ),
    "fedinit": (
        # In the first round all models are the initial one.
        lambda: fs.fedinit(0.1, 0.3), lambda: fs.fedavg(0.1), {"num_rounds": 1}, {"num_rounds": 2},
    ),
    "fedspeed": (
        # All clients, so that the mean of the cohort's corrections is that of all.
        lambda: fs.fedspeed(0.1, 0.3, radius=0.0), lambda: fs.feddyn(0.1, 0.3),
        {"cohort_size": NUM_CLIENTS}, {"cohort_size": 2},
    ),
    "fedspeed without its second gradient": (
        lambda: fs.fedspeed(0.1, 0.3, mix=0.0), lambda: fs.feddyn(0.1, 0.3),
        {"cohort_size": NUM_CLIENTS}, None,
    ),
    "fedmoswa": (
        lambda: fs.fedmoswa(0.1), lambda: fs.fedswa(0.1), {"num_rounds": 1}, {"num_rounds": 2},
    ),
    "fedswa": (
        # A visit of one step has no decay.
        lambda: fs.fedswa(0.1, rho=0.2), lambda: fs.fedavg(0.1, optax.sgd(1.5)),
        {"num_steps": 1}, {"num_steps": 2},
    ),
    "fedac I": (
        lambda: fs.fedac(0.2, 0.3, 1), lambda: fs.mb_ac_sgd(0.2, 0.3),
        {"num_steps": 1}, {"num_steps": 2},
    ),
    "fedac vanilla": (
        lambda: fs.fedac(0.2, 0.3, 1, "vanilla"), lambda: fs.mb_ac_sgd(0.2, 0.3),
        {"num_steps": 1}, {"num_steps": 2},
    ),
    "fedac of the timeline": (
        lambda: fs.fedac(0.1, 0.3), lambda: fs.fedac(0.1, 0.3, 5), {}, {"num_steps": 3},
    ),
    "fedac of equal rates": (
        # gamma = eta: x_ag = x stays so, for all alpha and beta.
        lambda: fs.fedac(0.1, numbers=(0.1, 3.0, 4.0)), lambda: fs.fedavg(0.1),
        {}, None,
    ),
    "fedgamma": (
        lambda: frozen(fs.fedgamma(0.1, radius=0.3)), lambda: fs.fedsam(0.1, radius=0.3), {}, None,
    ),
    "fedmoswa without controls": (
        lambda: frozen(fs.fedmoswa(0.1)), lambda: fs.fedswa(0.1), {}, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ON_QUADRATICS)
def test_coincidences_on_quadratics(name):
    make, other, equal, different = ON_QUADRATICS[name]
    assert_close(
        state_after(make(), **equal).server.params, state_after(other(), **equal).server.params,
        TOLERANCE,
    )  # fmt: skip
    if different is not None:
        one, two = (state_after(a(), **different).server.params for a in (make, other))
        assert np.abs(one - two).max() > 1e-3


@pytest.mark.parametrize(
    ("make", "other"),
    [
        (lambda: fs.fedgamma(0.1, radius=0.3), lambda: fs.fedsam(0.1, radius=0.3)),
        (lambda: fs.fedac(0.1, 0.3, 5), lambda: fs.fedavg(0.1)),
        # The server's control stays 0, but the clients' still take their mean gradients away.
        (lambda: fs.fedmoswa(0.1, gamma=0.0), lambda: fs.fedswa(0.1)),
    ],
    ids=["fedgamma", "fedac", "fedmoswa"],
)
def test_differences_on_quadratics(make, other):
    one, two = state_after(make()), state_after(other())
    assert np.abs(one.server.params - two.server.params).max() > 1e-3
    if hasattr(one.server, "control"):
        assert np.abs(one.clients).max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda: fs.fedavg(0.2), lambda: fs.fedavgm(0.2), lambda: fs.fedprox(0.2, mu=0.5),
        lambda: fs.fedacg(0.1), lambda: fs.fedsam(0.1), lambda: fs.fedasam(0.1),
        lambda: fs.mofedsam(0.1), lambda: fs.fedgamma(0.1), lambda: fs.fedswa(0.1),
        lambda: fs.fedmoswa(0.1, gamma=1.0), lambda: fs.fedac(0.1, 0.3, 5), lambda: fs.mb_sgd(0.1),
        lambda: fs.mb_ac_sgd(0.1, 0.3),
    ],
)  # fmt: skip
def test_identical_clients_act_as_one(make):
    several = state_after(make(), 3, NUM_CLIENTS, clients=same_clients(NUM_CLIENTS))
    assert_close(
        several.server, state_after(make(), 3, 1, clients=same_clients(1)).server, TOLERANCE
    )


@pytest.mark.parametrize(
    ("scaled", "plain"),
    [
        (lambda: fs.fedavg(0.1 / 3), lambda: fs.fedavg(0.1)),
        (lambda: fs.fedsgd(0.1 / 3), lambda: fs.fedsgd(0.1)),
        (lambda: fs.fedavgm(0.1 / 3), lambda: fs.fedavgm(0.1)),
        (lambda: fs.fedprox(0.1 / 3, mu=1.8), lambda: fs.fedprox(0.1, mu=0.6)),
        # gamma falls by 3, alpha and beta stay.
        (lambda: fs.fedac(0.1 / 3, 0.9, 5), lambda: fs.fedac(0.1, 0.3, 5)),
    ],
    ids=["fedavg", "fedsgd", "fedavgm", "fedprox", "fedac"],
)
def test_scaled_objective_with_scaled_rates(scaled, plain):
    """F -> 3 F with lr -> lr / 3, and weights that scale with F, leaves the trajectory."""
    other = state_after(scaled(), clients=(3 * HESSIANS, CENTRES)).server.params
    assert_close(other, state_after(plain()).server.params, TOLERANCE)


def pairs():
    return fs.timelines.repeat_rounds(fs.timelines.full(3, 2, 5), 2)


SGD = optax.sgd(LR)
THREE = {"clients": ([1.0, 2.0, 0.5], [1.0, -1.0, 3.0]), "num_steps": 2}
# Algorithm, a simpler one, and options of the runs on instance Q; those of quick tests first.
ON_INSTANCE_Q = {
    "fedvarp of all clients": (lambda: fs.fedvarp(LR), lambda: fs.fedavg(LR), {}),
    "fedexp of equal clients": (
        lambda: fs.fedexp(LR), lambda: fs.fedavg(LR), {"clients": ([2.0, 2.0], [1.0, 1.0])},
    ),
    "diloco": (
        lambda: fs.diloco(server_lr=1.0, momentum=0.0, local_optimizer=SGD),
        lambda: fs.fedavg(LR), {},
    ),
    "fednova of equal steps": (lambda: fs.fednova(LR), lambda: fs.fedavg(LR), {}),
    "mimelite": (lambda: fs.mimelite(LR, momentum=0.0), lambda: fs.fedavg(LR), {}),
    "q_fedavg": (lambda: fs.q_fedavg(LR, 0.0), lambda: fs.fedavg(LR), THREE),
    "scaffnew of fixed steps": (lambda: fs.scaffnew(LR, 1 / 5), lambda: fs.scaffold(LR), {}),
    "scaffold_m at first": (lambda: fs.scaffold_m(LR), lambda: fs.fedcm(LR), {"rounds": 1}),
    "fedlin of equal steps": (
        lambda: fs.fedlin(5 * LR), lambda: fs.mime(LR, momentum=0.0), {"timeline": pairs},
    ),
    **{
        f"fedavg with local SGD, {origin}": (
            lambda origin=origin: fs.fedavg(local_optimizer=SGD, local_state=origin),
            lambda: fs.fedavg(LR), {},
        )
        for origin in ("reset", "keep", "mean")
    },
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        name if i < 3 else pytest.param(name, marks=pytest.mark.slow)
        for i, name in enumerate(ON_INSTANCE_Q)
    ],
)
def test_coincidences_on_instance_q(name):
    make, other, options = ON_INSTANCE_Q[name]
    options = {key: value() if callable(value) else value for key, value in options.items()}
    assert_close(models(make(), **options), models(other(), **options), TOLERANCE)
