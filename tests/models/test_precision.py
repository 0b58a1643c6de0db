"""Half precision in the products of local steps and nowhere else; the precisions of commands."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.extend.core import jaxprs_in_params
from small_problems import KEY

import fedjax_sim as fs
from fedjax_sim import datasets, models, objectives
from fedjax_sim.cli.grid import Axis, SweepOptions
from fedjax_sim.cli.run import compare
from fedjax_sim.cli.sweep import run_sweep
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
    found = products(value, params)
    assert len(found) == 5  # two layers forward, two kernels and one activation backward
    assert set(found) == {("bfloat16", "bfloat16")}
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
    objectives.classification_metrics(half.apply)


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
    assert set(products(lambda x: oracle.grad(x, 0), params)) == {("bfloat16", "bfloat16")}


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
