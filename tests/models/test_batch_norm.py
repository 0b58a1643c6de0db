"""Batch normalisation: statistics by hand, flax's own training loop, and combinations."""

import dataclasses
import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from small_problems import (
    NUM_CLIENTS,
    SIZES,
    assert_close,
    compiled,
    partial_timeline,
    recorded_rounds,
    stale_timeline,
)

import fedjax_sim as fs
from fedjax_sim.data.augmentation import normalized, transformed
from fedjax_sim.engine.contract import check_run
from fedjax_sim.local import carrying, local_path, local_steps
from fedjax_sim.models import from_linen, from_nnx, frozen_statistics, in_precision, lora
from fedjax_sim.objectives import cross_entropy, momentum_of, squared_error, with_l2
from fedjax_sim.wrappers.parts import personal_model

pytestmark = pytest.mark.usefixtures("x64")

MOMENTUM = 0.8
BATCHES = fs.epochs(2, 2)  # short last batches


def normalised(rngs):
    """Batch normalisation of the examples themselves: their statistics depend on no parameter."""
    norm = nnx.BatchNorm(3, momentum=MOMENTUM, rngs=rngs)
    return nnx.Sequential(norm, nnx.Linear(3, 1, rngs=rngs))


MODEL = from_nnx(normalised)


def double(params):
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float64), params)


@functools.cache
def data():
    rng = np.random.default_rng(0)
    clients = []
    for size in SIZES:
        x = rng.normal(size=3) + rng.uniform(0.5, 2) * rng.normal(size=(size, 3))
        clients.append({"x": x, "y": x[:, :1] ** 2})
    return fs.from_clients(clients)


def setup(timeline):
    task = fs.empirical_task(squared_error(MODEL), data(), BATCHES)
    params = double(MODEL.init(jax.random.key(1)))
    return fs.Setup(task, timeline, params, weighting=fs.weight_by_examples)


def run(algorithm, timeline):
    go = compiled(lambda setup: fs.run(algorithm, setup, jax.random.key(2))[0])
    return jax.device_get(go(setup(timeline)))


def expected(timeline, rate=1.0, private=False):
    """Statistics of the server after each round and of the clients, in NumPy.

    A row of statistics is (mean, variance) of the 3 features.
    """
    start = np.stack([np.zeros(3), np.ones(3)])
    past, kept = [start], np.stack([start] * NUM_CLIENTS)
    batches = recorded_rounds(SIZES, BATCHES, timeline, jax.random.key(2))
    x, version = np.asarray(data().examples["x"]), np.asarray(timeline.version)
    mask = np.asarray(timeline.mask)
    for t, visits in enumerate(batches):
        slots = np.nonzero(mask[t])[0]
        sums, weight = np.zeros((2, 3)), 0
        for slot, (client, minibatches) in zip(slots, visits, strict=True):
            s = kept[client] if private else past[version[t, slot]]
            for batch in minibatches:
                rows = x[batch > 0]
                m = np.stack([rows.mean(axis=0), rows.var(axis=0)])
                s = MOMENTUM * s + (1 - MOMENTUM) * m
            kept[client] = s
            sums, weight = sums + SIZES[client] * s, weight + SIZES[client]
        past.append((1 - rate) * past[-1] + rate * sums / weight)
    return past[-1], kept


def statistics(params):
    norm = params["layers"]["0"]
    return np.stack([norm["mean"], norm["var"]], axis=-2)


# Methods with one gradient per step: their trainable leaves differ, their statistics do not.
ONE_GRADIENT = {
    "fedavg": fs.fedavg(0.01),
    "fedadam": fs.fedadam(0.01, 0.1),
    "scaffold": fs.scaffold(0.01),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_GRADIENT)
def test_averaged_statistics_by_hand(name):
    """Ragged clients, short batches, dropped clients, weights by examples."""
    timeline = partial_timeline()
    algorithm = fs.running_statistics(ONE_GRADIENT[name], MODEL.statistics)
    state = run(algorithm, timeline)
    np.testing.assert_allclose(statistics(state.server.params), expected(timeline)[0], rtol=1e-12)


@pytest.mark.slow
def test_stale_statistics_by_hand():
    """Visits start from old statistics; the server mixes what they send into its own."""
    timeline = stale_timeline()
    algorithm = fs.running_statistics(fs.fedasync(0.01), MODEL.statistics, server_rate=0.3)
    state = run(algorithm, timeline)
    np.testing.assert_allclose(
        statistics(state.server.params), expected(timeline, rate=0.3)[0], rtol=1e-12
    )


@pytest.mark.slow
def test_private_statistics_by_hand():
    timeline = partial_timeline()
    state = run(fs.running_statistics(fs.fedavg(0.01), MODEL.statistics, "private"), timeline)
    models = jax.vmap(personal_model, (None, 0))(state.server.params, state.clients)
    np.testing.assert_allclose(statistics(models), expected(timeline, private=True)[1], rtol=1e-12)
    kernels = models["layers"]["1"]["kernel"]
    np.testing.assert_array_equal(kernels, np.stack([kernels[0]] * NUM_CLIENTS))
    np.testing.assert_array_equal(
        statistics(state.server.params), np.stack([np.zeros(3), np.ones(3)])
    )


# By hand: K steps leave 0.8^K of the start, and a server of the rate rho 1 - rho (1 - 0.8^K).
LEFT = {
    "3 steps": (3, 1, {}, "51%"),  # 0.512
    "4 steps": (4, 1, {}, None),  # 0.41
    "2 visits of 2 steps": (2, 2, {}, None),
    "6 rounds, rate 1/2": (6, 1, {"server_rate": 0.5}, "53%"),  # 0.9^6
    "7 rounds, rate 1/2": (7, 1, {"server_rate": 0.5}, None),  # 0.48
    "3 private steps": (3, 1, {"combine": "private"}, "51%"),
    "4 private steps": (4, 1, {"combine": "private"}, None),
}


@pytest.mark.parametrize("case", LEFT)
def test_statistics_near_their_start_are_evaluated_with_a_warning(case):
    rounds, steps, options, left = LEFT[case]
    evaluated = dataclasses.replace(
        setup(fs.timelines.full(rounds, NUM_CLIENTS, np.full(NUM_CLIENTS, steps))),
        eval_fn=lambda params: {"variance": statistics(params)[1].sum()},
    )
    algorithm = fs.running_statistics(fs.fedavg(0.01), MODEL.statistics, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_run(algorithm, evaluated, None)
        check_run(algorithm, dataclasses.replace(evaluated, eval_fn=None), None)
    texts = [str(warning.message) for warning in caught]
    assert len(texts) == (left is not None)
    assert all(f"leaves {left} of the running statistics" in text for text in texts)


def test_private_statistics_of_a_placed_task_are_evaluated_with_a_warning():
    timeline = fs.timelines.full(4, NUM_CLIENTS, np.full(NUM_CLIENTS, 1))
    task = fs.empirical_task(
        squared_error(MODEL), data(), BATCHES, placement=fs.execution.by_client(NUM_CLIENTS)
    )
    placed = dataclasses.replace(
        setup(timeline), task=task, eval_fn=lambda params: {"x": jnp.zeros(())}
    )
    algorithm = fs.running_statistics(fs.fedavg(0.01), MODEL.statistics, "private")
    with pytest.warns(UserWarning, match="the server's model, whose running statistics stay"):
        check_run(algorithm, placed, None)
    check_run(algorithm, dataclasses.replace(placed, eval_fn=None), None)


def test_the_momentum_is_the_largest_of_the_layers():
    class Two(linen.Module):
        @linen.compact
        def __call__(self, x, train):
            x = linen.BatchNorm(use_running_average=not train, momentum=0.5)(x)
            return linen.BatchNorm(use_running_average=not train, momentum=0.75)(x)

    examples = {"x": jnp.ones((4, 3)), "y": jnp.ones((4, 3))}
    nnx_layers = from_nnx(
        lambda rngs: nnx.Sequential(
            nnx.BatchNorm(3, momentum=0.25, rngs=rngs), nnx.BatchNorm(3, rngs=rngs)
        )
    )
    for model, largest in ((from_linen(Two(), jnp.ones((2, 3))), 0.75), (nnx_layers, 0.99)):
        params = model.init(jax.random.key(0))
        for objective in (squared_error(model), with_l2(squared_error(model), 0.1)):
            assert momentum_of(objective, params, examples) == largest
    assert momentum_of(lambda params, examples, key: params, None, examples) is None


class _Centred(nnx.Module):
    """Running statistics without batch normalisation."""

    def __init__(self):
        self.mean = nnx.BatchStat(jnp.zeros(()))
        self.scale = nnx.Param(jnp.ones(()))

    def __call__(self, x):
        return (x - self.mean[...]) * self.scale[...]


class _LinenCentred(linen.Module):
    @linen.compact
    def __call__(self, x, train):
        del train
        mean = self.variable("batch_stats", "mean", lambda: jnp.zeros(()))
        return (x - mean.value) * self.param("scale", lambda key: jnp.ones(()))


@pytest.mark.parametrize(
    "make",
    [
        lambda: from_nnx(lambda rngs: _Centred()),
        lambda: from_linen(_LinenCentred(), jnp.ones((1, 1))),
    ],
)
def test_statistics_of_no_batch_normalisation_have_no_momentum(make):
    """Nothing is known of how fast they leave their start, so there is no warning, either."""
    model = make()
    params, examples = model.init(jax.random.key(0)), {"x": jnp.ones((2, 1)), "y": jnp.ones((2, 1))}
    assert momentum_of(squared_error(model), params, examples) is None


def test_functions_around_others_know_their_momentum():
    """Adapters, precision, normalisation and augmentation: without it runs would not warn."""
    model = from_nnx(
        lambda rngs: nnx.Sequential(
            nnx.Linear(3, 3, rngs=rngs), nnx.BatchNorm(3, momentum=0.25, rngs=rngs)
        )
    )
    adapted = lora(model, 1, where=lambda path, leaf: path[-1] == "kernel")
    examples = {"x": jnp.ones((4, 6)), "y": jnp.ones((4, 3))}
    for one in (
        model,
        in_precision(model, jnp.bfloat16),
        adapted,
        in_precision(adapted, "float16"),
        normalized(model, 0.5, 0.25),
        in_precision(normalized(adapted, [0.5, 0.5, 0.5], 0.25), "float16"),
    ):
        params = one.init(jax.random.key(0))
        objective = transformed(squared_error(one), lambda x, key: x[:, :3])
        assert momentum_of(objective, params, examples) == 0.25
    dropout = from_nnx(lambda rngs: nnx.Sequential(nnx.Linear(3, 3, rngs=rngs)))
    bare = dropout._replace(train=lambda params, x, key, weights: (x, None))
    plain = lora(bare, 1, where=lambda path, leaf: path[-1] == "kernel")
    params = plain.init(jax.random.key(0))
    cut = {**examples, "x": examples["x"][:, :3]}
    assert momentum_of(squared_error(plain), params, cut) is None


@pytest.mark.parametrize("num_clients", [3, 40])
def test_private_statistics_evaluate_the_clients_own_models(num_clients):
    """A function of one model is a mean over clients: all, or 16 at equal distances.

    Client i has one example i, so that one step of momentum 0.8 moves the mean to 0.2 i.
    """
    model = from_nnx(lambda rngs: nnx.BatchNorm(1, momentum=0.8, rngs=rngs))
    x = jnp.arange(float(num_clients))[:, None]
    clients = fs.from_clients([{"x": row[None], "y": row[None]} for row in x])
    task = fs.empirical_task(squared_error(model), clients, fs.full_batch(4))
    evaluated = fs.Setup(
        task,
        fs.timelines.full(1, num_clients, task.num_steps),
        double(model.init(jax.random.key(0))),
        lambda params: {"mean": params["mean"][0], "examples": jnp.int32(7)},
    )
    algorithm = fs.running_statistics(fs.fedavg(0.0), model.statistics, "private")
    _, history = compiled(lambda setup: fs.run(algorithm, setup, jax.random.key(1)))(evaluated)
    chosen = range(3) if num_clients == 3 else np.round(np.linspace(0, 39, 16))
    found = history.metrics
    np.testing.assert_allclose(found["mean"][0], (1 - 0.8**4) * np.mean(chosen), rtol=1e-12)
    assert found["examples"].dtype == jnp.int32
    assert found["examples"][0] == 7


@pytest.mark.parametrize("averaged_inside", [False, True])
def test_private_statistics_evaluate_the_servers_other_leaves(averaged_inside):
    """A mean over rounds is evaluated, and not the model that clients receive: that is inside."""
    model = from_nnx(lambda rngs: nnx.BatchNorm(1, momentum=0.8, rngs=rngs))
    x = np.array([[1.0], [5.0], [2.0], [9.0]])
    data = fs.from_assignment({"x": x, "y": 3 * x + 1}, [[0, 1], [2, 3]])
    task = fs.empirical_task(squared_error(model), data, fs.full_batch(2))
    start = double(model.init(jax.random.key(0)))
    raw = fs.evaluation.inner(lambda params: params)
    if averaged_inside:
        raw = fs.evaluation.inner(raw)
    both = fs.evaluation.merge_evaluators(lambda params: params, raw=raw)
    given = fs.Setup(task, fs.timelines.full(4, 2, task.num_steps), start, both)

    def private(algorithm):
        return fs.running_statistics(algorithm, model.statistics, "private")

    def run(algorithm, setup):
        return compiled(lambda setup: fs.run(algorithm, setup, jax.random.key(1)))(setup)

    plain, mean = fs.fedavg(0.1), fs.average_rounds
    averaged = private(mean(plain)) if averaged_inside else mean(private(plain))
    state, history = run(averaged, given)
    alone = dataclasses.replace(given, eval_fn=lambda params: params)
    without = run(private(plain), alone)[1].metrics
    for name in ("scale", "bias"):
        assert without[name][0] != without[name][1]
        np.testing.assert_allclose(history.metrics[name][-1], without[name].mean(0), rtol=1e-12)
    for name in ("mean", "var"):
        np.testing.assert_allclose(history.metrics[name], without[name], rtol=1e-12)
    for name, values in without.items():
        np.testing.assert_allclose(history.metrics[f"raw/{name}"], values, rtol=1e-12)
    np.testing.assert_array_equal(state.server.params["scale"], history.metrics["scale"][-1])


def test_scores_of_pooled_examples_need_a_model_of_the_server():
    model = from_nnx(lambda rngs: nnx.BatchNorm(1, momentum=0.5, rngs=rngs))
    x = np.arange(4.0)[:, None]
    clients = fs.from_assignment({"x": x, "y": x}, [[0, 1], [2, 3]])
    task = fs.empirical_task(squared_error(model), clients, fs.full_batch(4))
    pooled = fs.evaluation.pooled_evaluator(model, clients, {"rmse": fs.evaluation.scores.rmse})
    scored = fs.Setup(
        task, fs.timelines.full(1, 2, 4), double(model.init(jax.random.key(0))), pooled
    )
    algorithm = fs.running_statistics(fs.fedavg(0.1), model.statistics, "private")
    with pytest.raises(ValueError, match="scores of pooled examples, and the clients keep"):
        fs.run(algorithm, scored, jax.random.key(1))


class Layers(nnx.Module):
    """Two batch normalisations after products, one of images."""

    def __init__(self, rngs):
        self.first = nnx.Linear(2, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, momentum=MOMENTUM, rngs=rngs)
        self.second = nnx.Linear(4, 3, rngs=rngs)
        self.last = nnx.BatchNorm(3, momentum=MOMENTUM, rngs=rngs)

    def __call__(self, x):
        x = jax.nn.relu(self.norm(self.first(x)))  # [B, 5, 4]
        return self.last(self.second(x).mean(axis=1))


@pytest.mark.slow
def test_one_client_is_flax_training():
    """Parameters and statistics of flax's own loop, where both compute the same."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(6, 5, 2)), rng.integers(0, 3, 6)
    model, lr, steps = from_nnx(Layers), 0.1, 4
    params = double(model.init(jax.random.key(0)))
    task = fs.empirical_task(
        cross_entropy(model), fs.from_clients([{"x": x, "y": y}]), fs.full_batch(steps)
    )
    algorithm = fs.running_statistics(fs.fedavg(lr), model.statistics)
    setup = fs.Setup(task, fs.timelines.full(1, 1, steps), params)
    state = compiled(lambda setup: fs.run(algorithm, setup, jax.random.key(3))[0])(setup)

    module = Layers(nnx.Rngs(jax.random.key(0)))
    nnx.update(module, jax.tree.map(lambda leaf: leaf.astype(jnp.float64), nnx.state(module)))
    module.train()

    def loss(module):
        logits = module(jnp.asarray(x))
        return -jnp.mean(jax.nn.log_softmax(logits)[np.arange(6), y])

    @nnx.jit
    def step(module):
        gradients = nnx.grad(loss)(module)
        moved = jax.tree.map(lambda p, g: p - lr * g, nnx.state(module, nnx.Param), gradients)
        nnx.update(module, moved)

    with jax.numpy_dtype_promotion("standard"):
        for _ in range(steps):
            step(module)
    flax = nnx.to_pure_dict(nnx.state(module))
    # The gradient of a bias before a normalisation is 0, up to rounding.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-14),
        state.server.params,
        flax,
    )
    assert np.abs(state.server.params["norm"]["mean"]).max() > 0.05
    module.eval()
    with jax.numpy_dtype_promotion("standard"):
        evaluated = module(jnp.asarray(x))
    assert_close(model.apply(state.server.params, jnp.asarray(x)), evaluated, 1e-12)


class LinenLayers(linen.Module):
    """The layers of :class:`Layers` with the usual argument of linen."""

    @linen.compact
    def __call__(self, x, train: bool):
        x = linen.Dense(4, name="first")(x)
        x = linen.BatchNorm(use_running_average=not train, momentum=MOMENTUM, name="norm")(x)
        x = linen.Dense(3, name="second")(jax.nn.relu(x)).mean(axis=1)
        return linen.BatchNorm(momentum=MOMENTUM, name="last")(x)  # the mode is left open


@pytest.mark.slow
def test_linen_computes_as_nnx():
    """Outputs, next statistics and gradients, with rows that do not count."""
    both = from_linen(LinenLayers(), jnp.ones((1, 5, 2))), from_nnx(Layers)
    params = double(both[1].init(jax.random.key(0)))
    kinds = {"params": ("bias", "kernel", "scale"), "batch_stats": ("mean", "var")}
    collections = {
        kind: {
            layer: {name: leaf for name, leaf in part.items() if name in names}
            for layer, part in params.items()
            if set(part) & set(names)
        }
        for kind, names in kinds.items()
    }
    x = jax.random.normal(jax.random.key(1), (4, 5, 2), jnp.float64)
    weights, key = jnp.array([True, True, True, False]), jax.random.key(2)
    linen_outputs, linen_new = both[0].train(collections, x, key, weights)
    outputs, new = both[1].train(params, x, key, weights)
    assert_close(linen_outputs, outputs, 1e-12)
    for layer in ("norm", "last"):
        assert_close(linen_new["batch_stats"][layer]["var"], new[layer]["var"], 1e-12)
    assert_close(both[0].apply(collections, x), both[1].apply(params, x), 1e-12)
    # Rows of weight 0 change neither statistics nor the outputs of the others.
    short, short_new = both[1].train(params, x[:3], key, weights[:3])
    assert_close(outputs[:3], short, 1e-12)
    assert_close(jax.tree.leaves(new), jax.tree.leaves(short_new), 1e-12)
    # The mode of training with constant statistics is that of evaluation.
    for model, given in zip(both, (collections, params), strict=True):
        train = frozen_statistics(model).train
        assert_close(train(given, x, key, weights)[0], model.apply(given, x), 1e-12)


@pytest.mark.slow
def test_frozen_statistics_have_no_gradient():
    model = frozen_statistics(MODEL)
    objective = cross_entropy(model)
    assert model.statistics is None
    examples = {"x": jnp.asarray(data().examples["x"][:4]), "y": jnp.zeros(4, jnp.int32)}
    params = double(MODEL.init(jax.random.key(0)))
    loss = with_l2(objective, 0.0)
    gradient = compiled(jax.grad(lambda p: loss(p, examples, None).sum()))(params)
    norm = gradient["layers"]["0"]
    np.testing.assert_array_equal(statistics(gradient), np.zeros((2, 3)))
    assert set(norm) == {"bias", "mean", "scale", "var"}
    with pytest.raises(ValueError, match="expected a model of from_nnx or from_linen with batch"):
        frozen_statistics(model)


@pytest.mark.slow
def test_penalty_leaves_statistics_alone():
    examples = {"x": jnp.asarray(data().examples["x"][:4]), "y": jnp.zeros((4, 1))}
    params = double(MODEL.init(jax.random.key(0)))

    def gradient(objective):
        return jax.grad(lambda p: objective(p, examples, jax.random.key(0)).mean())(params)

    plain, penalised = (gradient(f(squared_error(MODEL))) for f in (lambda x: x, _penalised))
    np.testing.assert_array_equal(statistics(plain), statistics(penalised))
    difference = penalised["layers"]["1"]["kernel"] - plain["layers"]["1"]["kernel"]
    np.testing.assert_allclose(difference, 10 * params["layers"]["1"]["kernel"], rtol=1e-10)


def _penalised(objective):
    return with_l2(objective, 10.0)


@pytest.mark.slow
def test_half_precision_keeps_statistics_in_full_precision():
    model = in_precision(MODEL, jnp.bfloat16)
    params = MODEL.init(jax.random.key(0))
    x = jnp.asarray(data().examples["x"][:4], jnp.float32)
    arguments = params, x, jax.random.key(0), jnp.ones(4, bool)
    outputs, new = compiled(model.train)(*arguments)
    exact = compiled(MODEL.train)(*arguments)[1]
    assert outputs.dtype == jnp.float32
    assert_close(jax.tree.leaves(new), jax.tree.leaves(exact), 1e-2)


def test_algorithm_without_the_wrapper_is_refused():
    with pytest.raises(ValueError, match=r"expected fs.running_statistics\(algorithm, model"):
        fs.init(fs.fedavg(0.1), setup(partial_timeline()))
    wrapped = fs.running_statistics(fs.fedavg(0.1), MODEL.statistics)
    for algorithm in (wrapped, fs.average_rounds(wrapped), fs.skip_nonfinite(wrapped)):
        fs.init(algorithm, setup(partial_timeline()))


@pytest.mark.parametrize(
    ("where", "leaves"),
    [
        (lambda path, leaf: path[-1] == "running_mean", "layers/0/mean, layers/0/var"),
        (lambda path, leaf: path[-1] == "mean", "layers/0/var"),
        (lambda path, leaf: path[-1] in ("mean", "var", "scale"), "layers/0/scale"),
    ],
)
@pytest.mark.parametrize("combine", ["averaged", "private"])
def test_other_leaves_than_the_statistics_are_refused(where, leaves, combine):
    """Statistics would be trained by gradients, or parameters by the change of statistics."""
    algorithm = fs.average_rounds(fs.running_statistics(fs.fedavg(0.1), where, combine))
    message = f"another answer than model.statistics for {leaves}; expected"
    with pytest.raises(ValueError, match=message):
        fs.init(algorithm, setup(partial_timeline()))


@pytest.mark.slow
def test_private_statistics_of_a_message_without_a_model_have_no_personal_model():
    algorithm = fs.running_statistics(fs.fedsmoo(0.1), MODEL.statistics, "private")

    def metrics(params, examples):
        return {"error": (MODEL.apply(params, examples["x"]) - examples["y"])[:, 0] ** 2}

    evaluated = dataclasses.replace(
        setup(partial_timeline()), eval_fn=fs.evaluation.personal_evaluator(metrics, data())
    )
    with pytest.raises(ValueError, match="algorithm sends a message without a model"):
        fs.run(algorithm, evaluated, jax.random.key(0))


def test_gradients_in_loops_of_the_algorithm_are_refused():
    def local(x, state, oracle, work):
        return jax.lax.fori_loop(0, 3, lambda k, y: oracle.grad(y, k), x), state

    algorithm = fs.running_statistics(fs.fedavg(0.1)._replace(local=local), MODEL.statistics)
    with pytest.raises(ValueError, match=r"inside a loop .* expected calls in the steps of"):
        fs.run(algorithm, setup(partial_timeline()), jax.random.key(0))


@pytest.mark.slow
def test_loops_carry_the_value_past_unused_steps():
    work = fs.Work(0, 0, jnp.array(2), 1, 0, None, max_steps=4)  # pyright: ignore
    with carrying(jnp.array(1.0)) as value:

        def step(x, k):
            del k
            value.value = 3 * value.value
            return x + value.value

        assert float(local_steps(step, jnp.array(0.0), work)) == 3 + 9
        assert local_path(step, jnp.array(0.0), work).tolist() == [0, 27, 108, 108, 108]
        assert float(value.value) == 81


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"combine": "mean"}, "combine is 'mean'; expected 'averaged' or 'private'"),
        ({"server_rate": -0.1}, "server_rate is -0.1; expected at least 0"),
        ({"server_rate": 1.5}, "server_rate is 1.5; expected at most 1"),
        ({"where": None}, "where is None; expected a predicate"),
    ],
)
def test_arguments_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        fs.running_statistics(fs.fedavg(0.1), **({"where": MODEL.statistics} | arguments))
