"""Optax arguments of all algorithms: what is refused, and random numbers of every visit's own."""

import functools
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sweep_problems import compilations

import fedjax_sim as fs
from fedjax_sim.algorithms._optimizers import check_optimizer

CLIENTS, STEPS = 1000, 2


def optax_arguments():
    """Every (factory, argument) that takes an optax transformation."""
    for name in fs.algorithms.__all__:
        factory = getattr(fs.algorithms, name)
        if inspect.isfunction(factory):
            for argument, parameter in inspect.signature(factory).parameters.items():
                if "GradientTransformation" in str(parameter.annotation):
                    yield pytest.param(factory, argument, id=f"{name}-{argument}")


REQUIRED = {
    "mu": 0.1, "num_clients": 2, "alpha": 0.5, "personal_steps": 1, "rho": 0.1,
    "model": fs.models.softmax_regression(2, 2), "features": lambda params, x: x,
}  # fmt: skip


def built(factory, argument, optimizer):
    parameters = inspect.signature(factory).parameters
    required = {name: value for name, value in REQUIRED.items() if name in parameters}
    lr = {} if argument == "local_optimizer" else {"lr": 0.1}
    return factory(**lr, **required, **{argument: optimizer})


@pytest.mark.parametrize(("factory", "argument"), list(optax_arguments()))
def test_every_argument_refuses_what_climbs(factory, argument):
    """The direction of Adam is that of ascent; optax.adam has the sign and the rate."""
    with pytest.raises(ValueError, match=f"{argument} climbs: five steps along .* from 0 to 5;"):
        built(factory, argument, optax.scale_by_adam())
    built(factory, argument, optax.adam(0.1))
    with pytest.raises(ValueError, match=rf"{argument} is 0.9; expected .*optax.sgd\(0.1\)"):
        built(factory, argument, 0.9)


WARM_UP = optax.sgd(optax.linear_schedule(0.0, 0.1, 1000))
DESCENDING = {
    "momentum": optax.sgd(0.1, momentum=0.9, nesterov=True),
    "chain": optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3, weight_decay=0.1)),
    "yogi": optax.yogi(0.1),
    "adagrad": optax.adagrad(0.1),
    "lion": optax.lion(1e-4),
    "warm-up": WARM_UP,
    "zero": optax.set_to_zero(),
    "accumulated": optax.MultiSteps(optax.sgd(0.1), every_k_schedule=10),
    "if finite": optax.apply_if_finite(optax.sgd(0.1), 3),
    "injected": optax.inject_hyperparams(optax.adam)(learning_rate=0.1),
    "muon": optax.contrib.muon(0.1),
    "noise": optax.chain(optax.add_noise(100.0, 0.0, key=0), optax.sgd(0.1)),
    "one model": optax.partition(
        {"moves": optax.sgd(0.1), "stays": optax.set_to_zero()}, {"w": "moves", "b": "stays"}
    ),
}


@pytest.mark.parametrize("name", DESCENDING)
def test_optimizers_that_descend_or_stay(name):
    check_optimizer("server", DESCENDING[name])
    check_optimizer("server", DESCENDING[name], {"w": jnp.ones((2, 4)), "b": jnp.ones(2)})


@pytest.mark.parametrize("optimizer", [optax.sgd, optax.adam])
def test_another_rate_compiles_nothing(optimizer):
    """A sweep builds its algorithm for every rate."""
    check_optimizer("server", optimizer(0.1))
    with compilations() as compiled:
        check_optimizer("server", optimizer(0.3))
    assert not compiled


ALIASES = """adabelief adadelta adafactor adagrad adam adamw adamax adamaxw adan amsgrad fromage
lamb lars lion nadam nadamw novograd optimistic_gradient_descent radam rmsprop rprop sign_sgd
sm3 yogi contrib.acprop contrib.ademamix contrib.adopt contrib.dadapt_adamw contrib.prodigy
contrib.schedule_free_adamw""".split()


@pytest.mark.slow
@pytest.mark.parametrize("name", ALIASES)
def test_optaxs_own_optimizers_pass(name):
    alias: Any = functools.reduce(getattr, name.split("."), optax)
    optimizer = alias(0.1)
    check_optimizer("server", optimizer)
    check_optimizer("server", optimizer, {"w": jnp.zeros((3, 2)), "b": jnp.zeros(2)})


CLIMBING = {
    "sign": optax.sgd(-0.1),
    "direction": optax.scale_by_rms(),
    "momentum": optax.trace(0.9),
    "nothing": optax.identity(),
    "schedule": optax.chain(optax.scale_by_adam(), optax.scale_by_schedule(lambda t: 0.1)),
}


@pytest.mark.parametrize("name", CLIMBING)
def test_optimizers_that_climb(name):
    with pytest.raises(ValueError, match="server climbs"):
        fs.fedavg(0.1, CLIMBING[name])


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        # For gradients of single examples, over which it takes the mean.
        (
            optax.chain(
                optax.contrib.differentially_private_aggregate(1.0, 0.0, key=jax.random.key(0)),
                optax.sgd(0.1),
            ),
            r"update has shape \(\); expected \(3,\)",
        ),
        (
            optax.stateless(lambda updates, params: jax.tree.map(lambda x: -x[:1], updates)),
            r"the optimizer's update has shape \(1,\); expected \(3,\), as the gradient",
        ),
    ],
    ids=["private", "one entry"],
)
@pytest.mark.parametrize("argument", ["server", "local_optimizer"])
def test_updates_of_another_shape_are_refused(optimizer, message, argument):
    """They were broadcast to the parameters."""
    data = fs.FederatedData({"c": np.ones((2, 3), np.float32)}, np.arange(3))
    task = fs.empirical_task(lambda w, batch, key: ((w - batch["c"]) ** 2).sum(-1), data,
                             fs.full_batch(1))  # fmt: skip
    setup = fs.Setup(task, fs.timelines.full(1, 2, task.num_steps), jnp.zeros(3))
    with pytest.raises(ValueError, match=message):
        fs.run(built(fs.fedavg, argument, optimizer), setup, jax.random.key(0))


def test_a_mean_of_another_shape_is_no_gradient():
    """An upload of one number moved all parameters by it."""
    data = fs.FederatedData({"c": np.ones((2, 3), np.float32)}, np.arange(3))
    task = fs.empirical_task(lambda w, batch, key: ((w - batch["c"]) ** 2).sum(-1), data,
                             fs.full_batch(1))  # fmt: skip
    setup = fs.Setup(task, fs.timelines.full(1, 2, task.num_steps), jnp.zeros(3))
    one = fs.fedavg(0.1)._replace(local=lambda message, state, oracle, work: (jnp.ones(1), state))
    message = r"algorithm\.update fails .*the optimizer's gradient has shape \(1,\); expected \(3,"
    with pytest.raises(ValueError, match=message):
        fs.run(one, setup, jax.random.key(0))


def test_optimizers_of_one_structure_are_probed_with_the_model():
    """The biases climb, which the probe of arrays without names cannot see.

    ``optax.masked`` passes the gradients of other leaves on as they are.
    """
    masked = optax.masked(optax.sgd(0.1), {"w": True, "b": False})
    with pytest.raises(ValueError, match="server climbs"):
        fs.fedavg(0.1, masked).init({"w": jnp.zeros(3), "b": jnp.zeros(3)})
    labels = {"w": "down", "b": "up"}
    optimizer = optax.partition({"down": optax.sgd(0.1), "up": optax.scale_by_adam()}, labels)
    params = {"w": jnp.zeros(3), "b": jnp.zeros(3)}
    for algorithm in (
        fs.fedavg(0.1, optimizer),
        fs.mime(0.1, optimizer=optimizer),
        fs.diloco(local_optimizer=optimizer),
        fs.streaming_diloco(local_optimizer=optimizer),
        *(
            fs.fedavg(local_optimizer=optimizer, local_state=state)
            for state in ("reset", "keep", "mean")
        ),
    ):
        with pytest.raises(ValueError, match="climbs"):
            jax.jit(algorithm.init)(params)


def test_traced_rates_pass():
    """Their sign is not known."""
    end = jax.jit(lambda lr: fs.fedavg(0.1, optax.adam(lr)).init(jnp.zeros(2)).params)(0.1)
    np.testing.assert_array_equal(end, 0)


# ---- random numbers


def oracle(client, key, max_steps):
    """All gradients are 0, so the models are the noise."""
    del client, key, max_steps
    return fs.Oracle(lambda w, k: 0 * w, lambda w, k: 0 * w, lambda w: 0 * w)


def setup(rounds=2, clients=CLIENTS, steps=STEPS, eval_fn=None):
    task = fs.Task(oracle, num_examples=np.ones(clients, int), num_steps=np.full(clients, steps))
    timeline = fs.timelines.full(rounds, clients, task.num_steps)
    return fs.Setup(task, timeline, jnp.array(0.0), eval_fn=eval_fn or (lambda w: {"w": w}))


def uploads(algorithm, seed=0):
    """Uploads of all clients, and models after all rounds."""
    probes = fs.Probes(client={"upload": lambda visit: jax.tree.leaves(visit.upload)[0]})
    _, history = fs.run(algorithm, setup(), jax.random.key(seed), probes=probes)
    sent = np.asarray(history.probes["upload"]).reshape(len(history.round), -1)
    return sent, np.asarray(history.metrics["w"])


def noisy_sgd(key=0):
    return optax.chain(optax.add_noise(1.0, 0.0, key=key), optax.sgd(1.0))


def raw_noise(name="rng"):
    """Noise whose state has a raw key of two entries in a leaf of this name."""

    def init(params):
        del params
        return {name: jax.random.key_data(jax.random.key(0))}

    def update(updates, state, params=None):
        del params
        new, now = jax.random.split(jax.random.wrap_key_data(state[name]))
        noisy = jax.tree.map(lambda g: g + jax.random.normal(now, g.shape), updates)
        return noisy, {name: jax.random.key_data(new)}

    return optax.chain(optax.GradientTransformation(init, update), optax.sgd(1.0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "origin"),
    [
        (noisy_sgd(), "reset"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                (raw_noise(), "mean"),
                (noisy_sgd(), "keep"),
                (noisy_sgd(), "mean"),
                (raw_noise(), "reset"),
                (raw_noise(), "keep"),
            ]
        ),
    ],
)
def test_noise_of_local_optimizers_is_the_visits_own(optimizer, origin):
    """The sum of two steps' noise has the variance 2, so the mean of 1,000 clients moves by 0.045.

    All bounds are 5 standard deviations: of the variance of 2,000 values, 2 * 2 * sqrt(2 / 2000),
    of the mean, sqrt(2 / 1000), and of the correlation of 1,000 pairs, 1 / sqrt(1000).
    """
    algorithm = fs.fedavg(local_optimizer=optimizer, local_state=origin)
    sent, path = uploads(algorithm)
    assert abs(sent.var() - 2) < 5 * 2 * np.sqrt(2 / sent.size)
    moves = np.diff([0, *path])
    assert (np.abs(moves) < 5 * np.sqrt(2 / CLIENTS)).all()
    assert moves.all()
    assert abs(np.corrcoef(sent)[0, 1]) < 5 / np.sqrt(CLIENTS)  # two rounds
    other, _ = uploads(algorithm, seed=1)
    assert abs(np.corrcoef(sent[0], other[0])[0, 1]) < 5 / np.sqrt(CLIENTS)  # two runs


@pytest.mark.slow
@pytest.mark.parametrize("factory", [fs.diloco, fs.streaming_diloco])
def test_noise_of_workers_is_their_own(factory):
    arguments = {"num_fragments": 1, "delay": 0, "mix": 0.0} if "stream" in str(factory) else {}
    sent, _ = uploads(factory(local_optimizer=noisy_sgd(), **arguments))
    assert abs(sent.var() - 2) < 0.4  # bounds as above, and the second outer step moves the workers
    assert abs(np.corrcoef(sent)[0, 1]) < 5 / np.sqrt(CLIENTS)


@pytest.mark.slow
def test_noise_of_mimes_optimizer_belongs_to_the_step():
    """The state does not change in a visit: with one key the two steps would be equal.

    Their sum then had the variance 4, and all clients had the same.
    """
    sent, _ = uploads(fs.mimelite(1.0, optimizer=noisy_sgd()))
    assert abs(sent.var() - 2) < 5 * 2 * np.sqrt(2 / sent.size)
    assert abs(np.corrcoef(sent)[0, 1]) < 5 / np.sqrt(CLIENTS)


@pytest.mark.slow
def test_noise_of_a_server_belongs_to_the_run():
    """Seeds drew the same noise, as the key of the optimizer is a constant."""
    few = setup(rounds=50, clients=2)
    algorithm = fs.fedavg(0.1, server=noisy_sgd())
    paths = [
        np.asarray(fs.run(algorithm, few, jax.random.key(seed))[1].metrics["w"]) for seed in (0, 1)
    ]
    steps = np.diff(paths, axis=1)
    assert abs(np.corrcoef(steps)[0, 1]) < 5 / np.sqrt(49)  # 5 standard deviations, 49 pairs
    assert (np.abs(steps.var(axis=1) - 1) < 5 * np.sqrt(2 / 49)).all()
    again = fs.run(algorithm, few, jax.random.key(0))[1].metrics["w"]
    np.testing.assert_array_equal(paths[0], again)


@pytest.mark.slow
def test_means_of_states_send_no_keys():
    """The state is a count and a key; only the count and the model travel."""
    algorithm = fs.fedavg(local_optimizer=noisy_sgd(), local_state="mean")
    state = algorithm.init(jnp.zeros(()))
    assert [leaf.dtype for leaf in jax.tree.leaves(state.local)] == [jnp.int32]
    _, history = fs.run(algorithm, setup(rounds=3, clients=2), jax.random.key(0))
    assert np.isfinite(history.metrics["w"]).all()


def keyed(leaf, name="words"):
    """A transformation whose state has one further leaf."""
    return optax.chain(
        optax.GradientTransformation(
            lambda params: {name: leaf}, lambda updates, state, params=None: (updates, state)
        ),
        optax.sgd(0.1),
    )


def drawn(gradient, _):
    return jax.tree.map(
        lambda g: g + jax.random.normal(jax.random.key(0), g.shape, g.dtype), gradient
    )


REFUSED = {
    "two words": (keyed(jnp.zeros(2, jnp.uint32)), r"type uint32 and shape \(2,\) at .*words"),
    "four words": (keyed(jnp.zeros(4, jnp.uint32), "key"), r"type uint32 and shape \(4,\)"),
    "rbg": (optax.add_noise(1.0, 0.0, key=jax.random.key(0, impl="rbg")), "of the generator rbg"),
    "no key": (
        optax.chain(optax.stateless(drawn), optax.sgd(0.1)),
        "draws random numbers that do not come from a key in its state",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_randomness_is_refused(name):
    optimizer, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        fs.fedavg(local_optimizer=optimizer)
