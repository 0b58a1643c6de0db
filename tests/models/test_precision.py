"""Half precision in the products of local steps and nowhere else; the precisions of commands."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from jax.extend.core import jaxprs_in_params
from small_problems import KEY

import fedjax_sim as fs
from fedjax_sim import datasets, models, objectives
from fedjax_sim.cli.grid import Axis, SweepOptions
from fedjax_sim.cli.run import compare
from fedjax_sim.cli.sweep import run_sweep
from fedjax_sim.data.augmentation import normalized
from fedjax_sim.studies.setups import Study, arithmetic, options, prepare, resolve
from fedjax_sim.timelines import sampling

SHAPE, CLASSES = (4, 4, 1), 5
PLAIN = models.mlp(SHAPE, (6,), CLASSES)
HALF = models.in_precision(PLAIN, jnp.bfloat16)


def batch():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, *SHAPE)).astype(np.float32)
    return {"x": x, "y": rng.integers(CLASSES, size=12)}


def products(function, *arguments) -> list[tuple]:
    """The dtypes of the operands of all products of a program, those of called functions, too."""

    def within(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name == "dot_general":
                yield tuple(v.aval.dtype.name for v in equation.invars)
            for inner in jaxprs_in_params(equation.params):
                yield from within(inner)

    return list(within(jax.make_jaxpr(function)(*arguments).jaxpr))


@pytest.mark.slow
def test_products_of_a_step_are_in_half_precision_and_gradients_are_not():
    params, examples = PLAIN.init(KEY), batch()

    def loss(model, params):
        return objectives.cross_entropy(model.apply)(params, examples, KEY).mean()

    value = jax.value_and_grad(lambda params: loss(HALF, params))
    # The outputs are sums in float32 of products of rounded operands.
    assert set(products(value, params)) == {("bfloat16", "bfloat16"), ("float32", "float32")}
    # Two layers forward, two kernels and one activation backward.
    assert jax.jit(value).lower(params).compile().as_text().count(" dot(") == 5
    half, gradient = value(params)
    assert {leaf.dtype for leaf in jax.tree.leaves((half, gradient))} == {jnp.dtype("float32")}
    # Bfloat16 has 8 significant bits: an entry is off by 2**-9 of itself, a sum of 16 products of
    # such entries by a few times that of the largest.
    whole, exact = jax.value_and_grad(lambda params: loss(PLAIN, params))(params)
    assert half != whole
    assert abs(half - whole) < 2**-6 * whole
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=2**-5 * np.abs(b).max()), gradient, exact
    )


def test_other_inputs_and_outputs_are_left_alone():
    table = models.Model(lambda key: jnp.ones((3, 2)), lambda w, x: {"rows": w[x], "ids": x})
    out = models.in_precision(table, jnp.bfloat16).apply(
        jnp.full((3, 2), 1 + 2**-12), jnp.arange(2)
    )
    assert out["ids"].dtype == jnp.int32
    assert out["rows"].dtype == jnp.float32
    assert out["rows"].tolist() == [[1.0, 1.0]] * 2  # rounded, so computed in half precision


def test_objectives_refuse_the_evaluation_of_a_model_that_trains_otherwise():
    """With ``apply`` alone the model would train without dropout."""
    dropout = models.from_nnx(lambda rngs: nnx.Dropout(0.5, rngs=rngs))
    half = models.in_precision(dropout, jnp.bfloat16)
    with pytest.raises(ValueError, match="expected the model itself"):
        objectives.cross_entropy(half.apply)
    with pytest.raises(ValueError, match="expected the model itself"):
        objectives.cross_entropy(dropout._replace(train=None))
    objectives.classification_metrics(half.apply)


def test_outputs_and_losses_are_not_rounded():
    """z = 1 + 2**-9 needs 10 bits; operands have 8, outputs in bfloat16 would be 1."""
    plain = models.Model(lambda key: (), lambda w, x: (x @ w["kernel"]).T[:, :, None] + w["bias"])
    half = models.in_precision(plain, jnp.bfloat16)
    params = {"kernel": jnp.ones((1, 1)), "bias": jnp.float32(2**-9)}
    x = jnp.float32([[1 + 2**-12]])  # rounded to 1
    assert half.apply(params, x).tolist() == [[[1 + 2**-9]]]
    assert jax.jit(half.apply)(params, x).tolist() == [[[1 + 2**-9]]]
    gradient = jax.grad(lambda params: half.apply(params, x).sum())(params)
    assert jax.tree.map(lambda x: x.tolist(), gradient) == {"kernel": [[1.0]], "bias": 1.0}
    tangent = jax.jvp(lambda x: half.apply(params, x), (x,), (jnp.ones_like(x),))[1]
    assert tangent.tolist() == [[[1.0]]]


def linear(w, x):
    return x @ w["kernel"] + w["bias"]


@pytest.mark.parametrize(
    ("apply", "expected"),
    [
        (linear, [1 + 2**-9, 1 + 2**-9]),
        (jax.jit(linear), [1 + 2**-9, 1 + 2**-9]),
        (lambda w, x: jax.jit(jax.jit(linear))(w, x)[:, 1:], [1 + 2**-9]),
        (lambda w, x: jnp.concatenate([linear(w, x), -linear(w, x) / 2], 1)[:, ::3],
         [1 + 2**-9, -(1 + 2**-9) / 2]),
    ],
    ids=["bias", "jitted", "sliced", "joined"],
)  # fmt: skip
def test_sums_behind_outputs_are_not_rounded(apply, expected):
    """The sum 1 + 2**-10 of the product needs 11 bits, and with the bias 2**-10 it needs 10."""
    half = models.in_precision(models.Model(lambda key: (), apply), jnp.bfloat16)
    params = {"kernel": jnp.float32([[1, 1], [2**-10, 2**-10]]), "bias": jnp.full(2, 2**-10)}
    x = jnp.ones((1, 2))
    assert half.apply(params, x).tolist() == [expected]
    gradient = jax.grad(lambda params: half.apply(params, x).sum())(params)["bias"]
    assert gradient.tolist() == jax.grad(lambda p: apply(p, x).sum())(params)["bias"].tolist()


def test_log_probabilities_are_not_positive():
    """Sums of 301.5 and 298.5 minus their own maxima, which 8 bits round to 302 and 298."""
    model = models.Model(lambda key: (), lambda w, x: jax.nn.log_softmax(x @ w))
    half = models.in_precision(model, jnp.bfloat16)
    kernel = jnp.float32([[300, 0], [1.5, 0]])
    outputs = half.apply(kernel, jnp.float32([[1, 1], [1, -1]]))
    np.testing.assert_array_equal(outputs.max(axis=1), [0, 0])


@pytest.mark.parametrize("name", ["logistic", "softmax", "mlp"])
def test_outputs_of_models_are_not_rounded(name):
    """Outputs are those of float32 if the last layer's inputs have 8 bits."""
    model, head = {
        "logistic": (models.logistic_regression(3), "linear"),
        "softmax": (models.softmax_regression(3, 4), "linear"),
        "mlp": (models.mlp(3, (5,), 4), "dense2"),
    }[name]
    x = jnp.float32([[1, -2, 3]])
    params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), model.init(KEY))
    if name == "mlp":
        params["dense1"]["bias"] = jnp.float32([1, 2, 3, 4, 5])  # of ReLU, exact in 8 bits
    draw = jax.random.normal(KEY, (2, *params[head]["kernel"].shape)).astype(jnp.bfloat16)
    bias = draw[1, :, 0].astype(jnp.float32)
    params[head] = {"kernel": draw[0].astype(jnp.float32), "bias": bias}
    outputs = models.in_precision(model, jnp.bfloat16).apply(params, x)
    np.testing.assert_allclose(outputs, model.apply(params, x), rtol=1e-6)


def products_of(text) -> set[tuple[str, str, str]]:
    """The dtypes of operands and results of all products in a program's StableHLO."""
    kinds = r"stablehlo\.(?:dot_general|convolution).*"
    types = r"\(tensor<(?:\d+x)*(\w+)>, tensor<(?:\d+x)*(\w+)>\) -> tensor<(?:\d+x)*(\w+)>"
    return set(re.findall(kinds + types, text))


@pytest.mark.slow
@pytest.mark.parametrize("clients", [None, 2])
@pytest.mark.parametrize(
    "model",
    [models.lenet5(10, (2, 3), (8, 7)), models.resnet(10, channels=(4, 8), blocks=(1, 1))],
    ids=["lenet5", "resnet"],
)
def test_products_are_accumulated_in_single_precision(model, clients):
    """Operands in bfloat16 in the program, sums in float32 in the compiled text (of the CPU)."""
    half = models.in_precision(model, jnp.bfloat16)
    examples = {"x": jnp.ones((4, 32, 32, 3)), "y": jnp.zeros(4, int)}
    params = jax.eval_shape(model.init, KEY)

    def gradient(params):
        loss = objectives.cross_entropy(half.apply)
        return jax.grad(lambda params: loss(params, examples, KEY).mean())(params)

    if clients is not None:
        stack = jax.ShapeDtypeStruct
        params = jax.tree.map(lambda p: stack((clients, *p.shape), p.dtype), params)
        gradient = jax.vmap(gradient)
    program = jax.jit(gradient).lower(params)
    half_or_sum = {("bf16", "bf16", "bf16"), ("f32", "f32", "f32")}  # the latter: the outputs
    assert products_of(program.as_text()) == half_or_sum
    compiled = program.compile().as_text()
    results = re.findall(r"= (\w+)\[[^ ]* (?:dot|convolution)\(", compiled)
    assert set(results) == {"f32"}


def is_kernel(path, leaf):
    return path[-1] == "kernel"


def task_of(objective):
    return fs.empirical_task(objective, fs.FederatedData(batch(), np.array([0, 5, 12])), RULE)


RULE = fs.epochs(1, 4)
LOSS = objectives.cross_entropy(PLAIN)


class _LinenNormalised(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(2)(linen.LayerNorm()(x))


@pytest.mark.parametrize(
    "model",
    [
        models.from_linen(_LinenNormalised(), jnp.ones((1, 3))),
        models.from_nnx(
            lambda rngs: nnx.Sequential(nnx.LayerNorm(3, rngs=rngs), nnx.Linear(3, 2, rngs=rngs))
        ),
    ],
    ids=["linen", "nnx"],
)
def test_layers_of_flax_that_promote_dtypes_have_a_precision(model):
    """Normalisations of modules without state compute their means in single precision."""
    params, x = model.init(KEY), np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    half = models.in_precision(model, jnp.bfloat16).apply(params, x)
    # Rounded operands of three products, each of at most the size of the outputs.
    expected = np.asarray(model.apply(params, x))
    np.testing.assert_allclose(half, expected, atol=3 * 2**-8 * abs(expected).max())


@pytest.mark.parametrize(
    "task",
    [
        task_of(LOSS),
        task_of(objectives.with_l2(LOSS, 0.1)),
        task_of(fs.data.augmentation.transformed(LOSS, lambda x, key: x)),
        fs.generated_task(
            LOSS, lambda client, key: jax.tree.map(jnp.asarray, batch()), 3, RULE, key=KEY
        ),
    ],
    ids=["plain", "l2", "augmented", "generated"],
)
def test_tasks_have_a_precision(task):
    params = PLAIN.init(KEY)
    for precise, name in ((task, "float32"), (models.in_precision(task, jnp.bfloat16), "bfloat16")):
        gradient = precise.oracle(jnp.int32(0), KEY, 1).grad
        assert (name, name) in products(lambda x, g=gradient: g(x, 0), params)
        assert ("bfloat16" in str(jax.make_jaxpr(gradient)(params, 0))) == (name == "bfloat16")


@pytest.mark.slow
def test_tasks_on_the_host_have_a_precision():
    data = fs.FederatedData(batch(), np.array([0, 5, 12]))
    models_of = []
    for placement in (None, fs.execution.on_host(10**6)):
        task = models.in_precision(
            fs.empirical_task(LOSS, data, RULE, placement=placement), jnp.bfloat16
        )
        setup = fs.Setup(task, sampling.full(2, 2, task.num_steps), PLAIN.init(KEY))
        models_of.append(fs.simulate(fs.fedavg(0.1), setup, KEY).state.server.params)
    jax.tree.map(np.testing.assert_array_equal, *models_of)


def test_tasks_with_objectives_of_users_are_refused():
    task = task_of(lambda params, examples, key: examples["x"].mean((1, 2, 3)))
    with pytest.raises(ValueError, match=r"task has the objective .*; expected one of fedjax_sim"):
        models.in_precision(task, jnp.bfloat16)
    with pytest.raises(ValueError, match="dtype is int8; expected a floating dtype"):
        models.in_precision(task, jnp.int8)


def test_dtypes_that_are_not_floating_are_refused():
    with pytest.raises(ValueError, match="dtype is int8; expected a floating dtype"):
        models.in_precision(PLAIN, jnp.int8)


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm", [fs.fedavg(0.1), fs.scaffold(0.1), fs.fedadam(0.1, 0.01), fs.fedavgm(0.1)]
)
def test_server_uploads_and_client_states_stay_in_single_precision(algorithm):
    examples = batch()
    data = fs.FederatedData(examples, np.array([0, 5, 12]))
    task = fs.empirical_task(objectives.cross_entropy(HALF.apply), data, fs.epochs(1, 4))
    timeline = sampling.full(3, 2, task.num_steps)
    state, _ = jax.jit(lambda: fs.run(algorithm, fs.Setup(task, timeline, PLAIN.init(KEY)), KEY))()
    floating = [
        x.dtype.name
        for x in jax.tree.leaves((state.server, state.clients))
        if jnp.issubdtype(x.dtype, jnp.floating)
    ]
    assert set(floating) == {"float32"}


@pytest.mark.parametrize(
    ("precision", "attribute"), [("tf32", "HIGH"), ("float32", "HIGHEST"), ("default", "DEFAULT")]
)
def test_products_are_asked_for_as_configured(precision, attribute):
    with arithmetic(options(precision=precision).execution):
        text = jax.jit(jnp.dot).lower(jnp.ones((2, 2)), jnp.ones((2, 2))).as_text()
    asked = f"precision = [{attribute}, {attribute}]"
    assert asked in text


def study(precision, folder) -> Study:
    return Study(options(
        algorithms=("fedavg",), model="softmax_regression", num_clients=20,
        cohort_size=4, rounds=4, local_steps=3, seeds=2, eval_every=2, precision=precision,
        output=folder / precision,
    ))  # fmt: skip


@pytest.mark.slow
def test_comparisons_in_every_precision_agree_to_its_rounding(tmp_path):
    histories = {
        name: compare(resolve(study(name, tmp_path))).history
        for name in ("default", "bfloat16", "float64")
    }
    rows = histories["float64"]["metric"].isin(["train/loss", "test/loss"])
    exact = histories["float64"]["value"][rows].to_numpy()
    errors = {
        name: float(np.abs(history["value"][rows].to_numpy() / exact - 1).max())
        for name, history in histories.items()
    }
    # The same models, cohorts and minibatches; 24 and 8 bits over a dozen local steps.
    assert 0 < errors["default"] < 1e-5
    assert 1e-5 < errors["bfloat16"] < 2e-2


@pytest.mark.slow
def test_the_server_is_evaluated_in_single_precision(tmp_path):
    half = study("bfloat16", tmp_path)
    problem = prepare(half, datasets.load("digits"))
    params = jax.tree.map(lambda x: x[0], problem.setup.params)
    found = products(lambda params: problem.setup.eval_fn(params), params)
    assert found
    assert set(found) == {("float32", "float32")}
    oracle = problem.setup.task.oracle(jnp.int32(0), KEY, 1)
    assert ("bfloat16", "bfloat16") in products(lambda x: oracle.grad(x, 0), params)


def test_setups_of_studies_have_a_precision(tmp_path):
    """The option was ignored for a study with a setup of its own."""
    setup = fs.Setup(task_of(LOSS), sampling.full(1, 2, np.array([2, 2])), PLAIN.init(KEY))
    half = study("bfloat16", tmp_path)
    own = dataclasses.replace(half, setup=lambda seed: setup)
    oracle = prepare(own, None).setup.task.oracle(jnp.int32(0), KEY, 1)
    assert ("bfloat16", "bfloat16") in products(lambda x: oracle.grad(x, 0), setup.params)


@pytest.mark.slow
def test_double_precision_starts_from_the_same_models_and_stays_double(tmp_path):
    single = prepare(study("default", tmp_path), datasets.load("digits"))
    double = study("float64", tmp_path)
    with arithmetic(double.options.execution):
        problem = prepare(double, datasets.load("digits"))
        timeline, params, key = jax.tree.map(
            lambda x: x[0], (problem.setup.timeline, problem.setup.params, problem.keys)
        )
        setup = fs.Setup(problem.setup.task, timeline, params)
        state, _ = jax.jit(lambda setup, key: fs.run(fs.scaffold(0.1), setup, key))(setup, key)
        trained = jax.tree.leaves((state.server, state.clients))
    assert {x.dtype.name for x in trained if jnp.issubdtype(x.dtype, jnp.floating)} == {"float64"}
    jax.tree.map(np.testing.assert_array_equal, problem.setup.params, single.setup.params)


@pytest.mark.slow
def test_sweeps_have_a_precision(tmp_path):
    values = {}
    for precision in ("float32", "float64"):
        own = study(precision, tmp_path)
        sweep = SweepOptions(own.options, {"lr": Axis((0.1, 0.2))})
        values[precision] = run_sweep(own, sweep).history["value"].to_numpy()
    assert np.any(values["float32"] != values["float64"])
    np.testing.assert_allclose(values["float32"], values["float64"], rtol=1e-4)


DROPOUT = models.from_nnx(
    lambda rngs: nnx.Sequential(nnx.Linear(3, 2, rngs=rngs), nnx.Dropout(0.5, rngs=rngs))
)


@pytest.mark.parametrize(
    ("model", "around"),
    [
        (models.softmax_regression(3, 2), lambda model: normalized(model, 0.5, 0.2)),
        (models.softmax_regression(3, 2), lambda model: models.lora(model, where=is_kernel)),
        (DROPOUT, lambda model: normalized(model, 0.5, 0.2)),
        (DROPOUT, lambda model: models.lora(model, where=is_kernel)),
    ],
    ids=["normalised", "adapted", "normalised dropout", "adapted dropout"],
)
def test_a_precision_inside_of_another_function_is_not_replaced_in_silence(model, around):
    """The products would stay in bfloat16, in a check in double precision, too."""
    inside = around(models.in_precision(model, jnp.bfloat16))
    message = "dtype is float32 for a model that computes in bfloat16 inside of another function"
    with pytest.raises(ValueError, match=message):
        models.in_precision(inside, jnp.float32)
    task = task_of(objectives.cross_entropy(inside))
    with pytest.raises(ValueError, match=message):
        models.in_precision(task, jnp.float32)
    params = inside.init(KEY)
    last = models.in_precision(models.in_precision(around(model), jnp.bfloat16), jnp.float32)
    assert last.apply(params, jnp.ones((1, 3))).dtype == jnp.float32


def test_a_later_precision_replaces_an_earlier_one():
    again = models.in_precision(HALF, jnp.float32)
    assert again.apply == models.in_precision(PLAIN, jnp.float32).apply
    params = PLAIN.init(KEY)
    assert set(products(again.apply, params, batch()["x"])) == {("float32", "float32")}


@pytest.mark.parametrize(
    ("dtype", "named"), [("foo", "'foo'"), ("int32", "int32"), (3.0, "3.0"), (None, "None")]
)
def test_what_is_no_floating_dtype_is_named(dtype, named):
    with pytest.raises(ValueError, match=f"dtype is {named}; expected a floating dtype"):
        models.in_precision(models.softmax_regression(3, 2), dtype)


@pytest.mark.parametrize("model", [lambda w, x: x @ w, fs.fedavg(0.1)])
def test_what_is_no_model_has_no_precision(model):
    with pytest.raises(ValueError, match=r"model is .*; expected a fedjax_sim Model or Task"):
        models.in_precision(model, jnp.bfloat16)
