"""Hypergradients beside closed forms, finite differences and each other."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from small_problems import (
    compiled,
    logistic_params,
    logistic_task,
    partial_timeline,
    quadratic_task,
    rotated,
)

import fedjax_sim as fs
from fedjax_sim.engine.execution import offload

KEY = jax.random.key(0)
# Three clients a_i (x - c_i)^2 / 2, two steps, three rounds, metric (x_3 - 1)^2 / 2.
CURVATURES, CENTRES = np.array([1.0, 2.0, 0.5]), np.array([1.0, -1.0, 3.0])
LOSS = 0.2761146498
OF_LR, OF_WEIGHTS = -1.6284716824, [-0.0394834259, 0.2221155325, -0.0913160533]
LAST_OF_LR, LAST_OF_WEIGHTS = -0.55763484, [-0.015892, 0.092230, -0.038169]


def error(x):
    return jnp.sum((x - 1) ** 2) / 2


def quadratics(rounds=3, **options):
    task = quadratic_task(CURVATURES[:, None, None], CENTRES[:, None], 2)
    timeline = fs.timelines.full(rounds, 3, 2)
    return fs.Setup(task, timeline, jnp.zeros(1), lambda x: {"error": error(x)}, **options)


def of_quadratics(metric=error, **options):
    def algorithm_of(hyper):
        return fs.fedavg(hyper["lr"])

    def setup_of(hyper, setup):
        return fs.weight_by_client(setup, hyper["weights"])

    return fs.hypergradient(metric, algorithm_of, quadratics(), KEY, setup_of=setup_of, **options)


def hyper():
    return {"lr": jnp.array(0.1), "weights": jnp.array([1.0, 1.0, 2.0])}


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_closed_form():
    """Two affine recursions; both modes, all policies, and a metric of the setup."""
    functions = [
        of_quadratics(mode="forward"),
        of_quadratics("error"),
        of_quadratics(mode="reverse"),
        of_quadratics(mode="reverse", checkpoint=None),
    ]
    assert [function.mode(hyper()) for function in functions] == ["forward"] * 2 + ["reverse"] * 2
    for result in compiled(lambda h: [function(h) for function in functions])(hyper()):
        assert result.truncation is None
        np.testing.assert_allclose(result.value, LOSS, rtol=0, atol=5e-11)
        np.testing.assert_allclose(result.gradient["lr"], OF_LR, rtol=0, atol=5e-11)
        np.testing.assert_allclose(result.gradient["weights"], OF_WEIGHTS, rtol=0, atol=5e-11)
        # Only ratios of weights matter.
        assert abs(result.gradient["weights"] @ hyper()["weights"]) < 1e-15


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_truncation_and_its_estimated_bias():
    """The last round alone; a state of one number contracts by A = 0.81375 in every round."""
    result = compiled(of_quadratics(last_rounds=1))(hyper())
    gradient, truncation = result.gradient, result.truncation
    np.testing.assert_allclose(result.value, LOSS, rtol=0, atol=5e-11)
    np.testing.assert_allclose(gradient["lr"], LAST_OF_LR, rtol=0, atol=5e-9)
    np.testing.assert_allclose(gradient["weights"], LAST_OF_WEIGHTS, rtol=0, atol=5e-7)
    np.testing.assert_allclose(truncation.contraction, 0.81375, rtol=1e-14)
    # One round: rho |b| / (1 - rho), which here bounds the terms that are left out.
    np.testing.assert_allclose(truncation.contributions["lr"], [gradient["lr"]])
    bound = 0.81375 / (1 - 0.81375)
    np.testing.assert_allclose(truncation.bias["lr"], bound * abs(gradient["lr"]), rtol=1e-14)
    assert abs(OF_LR - gradient["lr"]) < truncation.bias["lr"]
    dropped = np.linalg.norm(gradient["weights"] - np.array(OF_WEIGHTS))
    assert dropped < truncation.bias["weights"] < 4 * dropped


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_contributions_of_all_rounds_add_up_to_the_derivative():
    result = compiled(of_quadratics(last_rounds=3, checkpoint=None))(hyper())
    contributions = result.truncation.contributions
    assert contributions["weights"].shape == (3, 3)
    np.testing.assert_allclose(contributions["lr"].sum(), OF_LR, rtol=0, atol=5e-11)
    np.testing.assert_allclose(contributions["lr"][-1], LAST_OF_LR, rtol=0, atol=5e-9)
    np.testing.assert_allclose(result.gradient["weights"], OF_WEIGHTS, rtol=0, atol=5e-11)
    assert result.truncation.bias == {"lr": 0, "weights": 0}


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("last_rounds", [2, 3])
def test_truncation_and_the_initial_model(last_rounds):
    """No round depends on it; it counts if no round is left out, else the bias does."""

    def setup_of(start, setup):
        return dataclasses.replace(fs.weight_by_client(setup, hyper()["weights"]), params=start)

    result = compiled(
        fs.hypergradient(
            error, lambda start: fs.fedavg(0.1), quadratics(), KEY,
            setup_of=setup_of, last_rounds=last_rounds,
        )
    )(jnp.zeros(1))  # fmt: skip
    derivative = -np.sqrt(2 * LOSS) * 0.81375**3
    values = np.array([result.gradient[0], result.truncation.bias])
    expected = [derivative, 0] if last_rounds == 3 else [0, -derivative]
    np.testing.assert_allclose(values, expected, atol=1e-9)


@pytest.mark.slow
def test_a_run_that_does_not_forget_has_no_bound():
    """With rate 0 the state is kept as it is: the adjoint does not shrink."""
    result = compiled(of_quadratics(last_rounds=2))(hyper() | {"lr": jnp.array(0.0)})
    assert result.truncation.contraction == 1
    assert result.truncation.bias["lr"] == np.inf


def by_round(rates):
    return lambda t: rates[t]


# Rates per round, on minibatches of clients of which some drop out.
ALGORITHMS = {
    "momentum": (
        lambda h: fs.fedavg(by_round(h["rates"]), optax.sgd(h["server"], momentum=h["momentum"])),
        {"rates": np.array([0.3, 0.25, 0.2, 0.1]), "server": 0.9, "momentum": 0.6},
    ),
    "fedadam": (
        lambda h: fs.fedadam(by_round(h["rates"]), h["server"]),
        {"rates": np.array([0.3, 0.25, 0.2, 0.1]), "server": 0.05},
    ),
    "fedprox": (
        lambda h: fs.fedprox(by_round(h["rates"]), h["mu"]),
        {"rates": np.array([0.3, 0.25, 0.2, 0.1]), "mu": 0.4},
    ),
    "scaffold": (
        lambda h: fs.scaffold(by_round(h["rates"]), h["server"]),
        {"rates": np.array([0.3, 0.25, 0.2, 0.1]), "server": 0.8},
    ),
}


def cubic(params):
    return sum((leaf**3).sum() for leaf in jax.tree.leaves(params))


@functools.cache
def logistic_setup():
    start = jax.tree.map(lambda x: x.astype(float), logistic_params())
    return fs.Setup(logistic_task(rotated(2)), partial_timeline(), start)


def smooth_oracle(client, key, max_steps):
    """Client i has the mean over coordinates of log cosh(x - i / 2), plus noise per visit."""
    del max_steps
    centre = jnp.asarray(client, float) / 2
    noise = jax.random.normal(key, (2,)) / 10

    def grad(x, step):
        del step
        return jnp.tanh(x - centre) + noise

    return fs.Oracle(grad, lambda x, step: jnp.log(jnp.cosh(x)).sum(), lambda x: grad(x, 0))


@functools.cache
def smooth_setup():
    """4 rounds of 2 of 3 clients, of whom one drops out of the second round."""
    task = fs.Task(smooth_oracle, np.ones(3, np.int32), np.full(3, 2))
    timeline = fs.timelines.cyclic(4, 3, 2, 2)
    mask = np.ones((4, 2), bool)
    mask[1, 0] = False
    timeline = dataclasses.replace(timeline, mask=mask)
    return fs.Setup(task, timeline, jnp.array([0.3, -0.4]))


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ALGORITHMS)
def test_finite_differences(name):
    algorithm_of, values = ALGORITHMS[name]
    values = jax.tree.map(jnp.asarray, values)
    flat, unravel = jax.flatten_util.ravel_pytree(values)
    reverse = fs.hypergradient(cubic, algorithm_of, smooth_setup(), KEY, mode="reverse")
    result = compiled(reverse)(values)

    @compiled
    @jax.vmap
    def metric(flat):
        state, _ = fs.run(algorithm_of(unravel(flat)), smooth_setup(), KEY)
        return cubic(state.server.params)

    eps = 1e-5
    steps = eps * np.eye(flat.size)
    sides = metric(jnp.concatenate([flat + steps, flat - steps, flat[None]]))
    expected = (sides[: flat.size] - sides[flat.size : -1]) / (2 * eps)
    np.testing.assert_allclose(result.value, sides[-1], rtol=1e-13)
    actual, _ = jax.flatten_util.ravel_pytree(result.gradient)
    assert np.abs(expected).min() > 1e-6
    np.testing.assert_allclose(actual, expected, rtol=2e-7, atol=1e-10)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_modes_and_policies_agree():
    """Momentum, minibatches, clients that drop out; derivatives over several hyper-parameters."""
    algorithm_of, values = ALGORITHMS["momentum"]
    values = jax.tree.map(jnp.asarray, values)
    setup = logistic_setup()
    forward = fs.hypergradient(cubic, algorithm_of, setup, KEY, mode="forward")
    reverse = fs.hypergradient(cubic, algorithm_of, setup, KEY, mode="reverse", checkpoint="log")
    results = compiled(lambda h: (forward(h), reverse(h)))(values)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-12), *results)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_can_be_vmapped():
    function = fs.hypergradient(error, fs.fedavg, quadratics(), KEY)
    several = compiled(jax.vmap(function))(jnp.array([0.05, 0.1]))
    np.testing.assert_allclose(several.gradient[1], function(0.1).gradient, rtol=1e-13)
    assert several.value[0] > several.value[1]


@pytest.mark.slow
def test_forecast_shows_what_a_policy_stores():
    """64 rounds of a state of one number (4 bytes), and the residuals of 2 steps of 3 clients."""
    forecasts = {
        checkpoint: fs.hypergradient(
            error, fs.fedavg, quadratics(64), KEY, mode="reverse", checkpoint=checkpoint
        ).forecast(0.1)
        for checkpoint in (None, "sqrt")
    }
    stored = {name: forecast.parts["stored states"] for name, forecast in forecasts.items()}
    assert stored == {None: 64 * 4, "sqrt": 16 * 4}
    temporaries = [forecast.parts["temporaries"] for forecast in forecasts.values()]
    assert temporaries[0] - temporaries[1] > 40 * 3 * 2 * 4
    assert forecasts[None].rounds == 64
    assert forecasts["sqrt"].seconds.compile > 0
    with pytest.raises(ValueError, match="expected at least"):
        forecasts[None]._replace(memory=1).check()


@pytest.mark.usefixtures("x64")
def test_statistics_of_clients_are_in_functions_of_the_model():
    """The server's are the initial ones.  The same function is a metric of the setup, too."""
    model = fs.models.from_nnx(lambda rngs: nnx.BatchNorm(1, momentum=0.5, rngs=rngs))
    x = np.array([[1.0], [5.0], [2.0], [9.0]])
    data = fs.from_assignment({"x": x, "y": 3 * x + 1}, [[0, 1], [2, 3]])
    task = fs.empirical_task(fs.objectives.squared_error(model), data, fs.full_batch(2))
    start = jax.tree.map(lambda x: x.astype(float), model.init(jax.random.key(0)))

    def loss(params):
        return ((model.apply(params, x) - (3 * x + 1)) ** 2).mean()

    setup = fs.Setup(task, fs.timelines.full(2, 2, 2), start, lambda params: {"loss": loss(params)})

    def private(lr):
        return fs.running_statistics(fs.fedavg(lr), model.statistics, "private")

    own, named = (fs.hypergradient(m, private, setup, KEY)(0.01) for m in (loss, "loss"))
    assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-12)
    assert_close(own.value, named.value)
    assert_close(own.gradient, named.gradient)
    state, _ = compiled(lambda setup: fs.run(private(0.01), setup, KEY))(setup)
    clients = [jax.tree.map(lambda x, i=i: x[i], state.clients) for i in range(2)]
    models = [fs.personal_model(state.server.params, client) for client in clients]
    assert_close(own.value, np.mean([loss(params) for params in models]))


@pytest.mark.parametrize("options", [{"mode": "forward"}, {"mode": "reverse"}, {"last_rounds": 2}])
@pytest.mark.usefixtures("allow_nans")
def test_a_diverged_run_has_no_derivatives(options):
    """An accuracy does not depend on the model, but a run without a result has no derivative."""

    def accuracy(x):
        return jnp.mean((x > 0).astype(jnp.float32))

    # A factor of -1e30 per step: the second step leaves the range of float32.
    result = of_quadratics(accuracy, **options)(hyper() | {"lr": jnp.array(1e30)})
    for number in jax.tree.leaves(result):
        assert np.isnan(number).all()
    finite = of_quadratics(accuracy, **options)(hyper())
    assert np.isfinite(finite.value)
    assert float(finite.gradient["lr"]) == 0


@pytest.mark.parametrize("mode", ["forward", "reverse"])
def test_a_weight_of_0_has_the_derivative_0(mode):
    """The others keep theirs: a step with rate 1 ends at the mean of 0 and 6 with equal weights."""
    task = quadratic_task(np.ones((3, 1, 1)), np.array([[2.0], [0.0], [6.0]]), 1)
    setup = fs.Setup(task, fs.timelines.full(1, 3, 1), jnp.zeros(1))
    derivative = fs.hypergradient(
        lambda x: x[0], lambda weights: fs.fedavg(1.0), setup, KEY,
        setup_of=lambda weights, setup: fs.weight_by_client(setup, weights), mode=mode,
    )  # fmt: skip
    result = derivative(jnp.array([0.0, 1.0, 1.0]))
    np.testing.assert_allclose(result.value, 3.0)
    np.testing.assert_allclose(result.gradient, [0.0, -1.5, 1.5], atol=1e-6)


def test_mistakes_of_functions_of_hyper_parameters_have_their_names():
    setup = quadratics()
    cases = [
        (lambda h: fs.fedavg(h["rate"]), {}, {"lr": 0.1}, r"algorithm_of fails .*KeyError: 'rate'"),
        (lambda h: fs.fedavg(h), {}, {"lr": "0.1"}, r"hyper\['lr'\] is '0.1'; expected floating"),
        (fs.fedavg, {"setup_of": lambda h, s: None}, 0.1, "setup_of returns a NoneType; expected"),
        (fs.fedavg, {"setup_of": lambda h, s: s.rounds}, 0.1, "setup_of fails .*AttributeError"),
        (lambda h, s: fs.fedavg(h), {}, 0.1, r"algorithm_of takes \(h, s\); expected \(hyper\)"),
        (fs.fedavg, {"setup_of": lambda h: setup}, 0.1, r"setup_of takes \(h\); expected \(hyper"),
    ]
    for algorithm_of, options, value, message in cases:
        with pytest.raises(ValueError, match=message):
            fs.hypergradient(error, algorithm_of, setup, KEY, **options)(value)
    with pytest.raises(ValueError, match=r"setup is a int; expected a fedjax_sim\.Setup"):
        fs.weight_by_client(3, jnp.ones(3))
    with pytest.raises(ValueError, match=r"weights is \['1', '2', '3'\]; expected numbers"):
        fs.weight_by_client(setup, ["1", "2", "3"])


def test_refuses_bad_arguments():
    setup = quadratics()
    build = functools.partial(fs.hypergradient, error, fs.fedavg)
    cases = [
        ({"mode": "both"}, r"mode is 'both'; expected 'auto', 'forward' or 'reverse'"),
        ({"last_rounds": 4}, r"last_rounds is 4; expected at most the timeline's 3 rounds"),
        ({"last_rounds": 0}, r"last_rounds is 0; expected at least 1"),
        ({"last_rounds": 1, "mode": "forward"}, r"with mode 'forward'; expected 'reverse'"),
        ({"checkpoint": 0}, r"checkpoint is 0; expected"),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=message):
            build(setup, KEY, **options)
    with pytest.raises(ValueError, match=r"keys is 0; expected jax.random.key"):
        build(setup, 0)
    with pytest.raises(ValueError, match=r"algorithm_of is .*: fs\.fedavg, not fs\.fedavg\(0\.1\)"):
        fs.hypergradient("error", fs.fedavg(0.1), setup, KEY)
    rare = dataclasses.replace(setup, eval_fn=fs.evaluation.at_rounds(setup.eval_fn, 2))
    with pytest.raises(ValueError, match="every 2 rounds; expected the last round, 3, to be one"):
        fs.hypergradient("error", fs.fedavg, rare, KEY)
    with pytest.raises(ValueError, match=r"metric is 3; expected a function of the model"):
        fs.hypergradient(3, fs.fedavg, setup, KEY)
    with pytest.raises(ValueError, match=r"metric is 'accuracy'; expected one of \['error'\]"):
        fs.hypergradient("accuracy", fs.fedavg, setup, KEY)(0.1)
    with pytest.raises(ValueError, match=r"metric has shape \(1,\) and dtype float32; expected"):
        fs.hypergradient(lambda x: x, fs.fedavg, setup, KEY)(0.1)
    with pytest.raises(ValueError, match=r"hyper\['lr'\] is 1; expected floating numbers"):
        fs.hypergradient(error, lambda h: fs.fedavg(h["lr"]), setup, KEY)({"lr": 1})
    with pytest.raises(ValueError, match=r"hyper has no leaves"):
        build(setup, KEY)({})
    with pytest.raises(ValueError, match=r"weights has shape \(2,\); expected \(3,\)"):
        fs.weight_by_client(setup, jnp.ones(2))
    with pytest.raises(ValueError, match=r"weights is .*; expected at least 0"):
        fs.weight_by_client(setup, jnp.array([1.0, -1.0, 1.0]))
    with pytest.raises(ValueError, match=r"weights is \[0. 0. 0.\]; expected a positive one"):
        fs.weight_by_client(setup, jnp.zeros(3))
    with pytest.raises(ValueError, match=r"expected uniform_weights"):
        fs.hypergradient(error, fs.fedvarp, setup, KEY, setup_of=_doubled)(0.1)


@pytest.mark.parametrize(
    "change", [lambda rounds: rounds[:1], lambda rounds: fs.timelines.remove_clients(rounds, 0)]
)
def test_another_timeline_of_the_hyper_parameters_is_refused(change):
    """The rounds of the setup were run instead."""

    def setup_of(hyper, setup):
        return dataclasses.replace(setup, timeline=change(setup.timeline))

    derivative = fs.hypergradient(error, fs.fedavg, quadratics(), KEY, setup_of=setup_of)
    with pytest.raises(ValueError, match=r"setup_of returns another timeline, of [13] rounds"):
        derivative(0.1)


def _doubled(hyper, setup):
    del hyper
    return fs.weight_by_client(setup, jnp.full(3, 2.0))


def test_refuses_examples_on_the_host():
    setup = quadratics()
    task = dataclasses.replace(setup.task, placement=offload.on_host(10_000))
    with pytest.raises(ValueError, match=r"setup\.task has its examples on the host"):
        fs.hypergradient(error, fs.fedavg, dataclasses.replace(setup, task=task), KEY)
