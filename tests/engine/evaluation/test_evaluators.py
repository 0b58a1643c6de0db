"""Streamed evaluation against NumPy over all examples at once."""

import contextlib
import dataclasses
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fs
from fedjax_sim.data.federated import FederatedData
from fedjax_sim.engine.evaluation import (
    at_rounds,
    client_evaluator,
    client_statistics,
    evaluate,
    evaluator,
    merge_evaluators,
    personal_evaluator,
)

RNG = np.random.default_rng(0)
X = RNG.standard_normal((23, 3)).astype(np.float32)
Y = RNG.standard_normal(23).astype(np.float32)
W = RNG.standard_normal(3).astype(np.float32)
OFFSETS = np.array([0, 0, 5, 6, 6, 18, 23, 23])  # clients of 0, 5, 1, 0, 12, 5 and 0 examples
# Means of at most 23 float32 numbers near 1, in another order.
TOLERANCE = 1e-5


def metrics(params, examples):
    error = examples["x"] @ params - examples["y"]
    return {"loss": error**2, "small": (jnp.abs(error) < 1).astype(error.dtype)}


def expected_values(w=W):
    error = X.astype(np.float64) @ w - Y
    return {"loss": error**2, "small": (np.abs(error) < 1).astype(np.float64)}


def expected_summary(values):
    means = np.array([values[a:b].mean() for a, b in itertools.pairwise(OFFSETS) if b > a])
    quantiles = {f"q{q}": np.quantile(means, q / 100) for q in (10, 50, 90)}
    worst = {"worst_decile": means.max(), "std": means.std()}  # of 4 clients, of a loss
    jain = means.sum() ** 2 / (len(means) * (means**2).sum())
    extremes = {"mean": means.mean(), "min": means.min(), "max": means.max()}
    return {**extremes, **quantiles, **worst, "jain": jain}


# Divisors of 23, non-divisors, one batch, and a batch larger than the data.
@pytest.mark.parametrize("batch_size", [1, 4, 23, 100])
def test_means_over_examples(batch_size):
    evaluate = evaluator(metrics, {"x": X, "y": Y}, batch_size)
    actual = jax.jit(lambda evaluate, w: evaluate(w))(evaluate, jnp.asarray(W))
    assert actual.keys() == {"loss", "small"}
    for name, values in expected_values().items():
        np.testing.assert_allclose(actual[name], values.mean(), rtol=TOLERANCE)


@pytest.mark.parametrize("batch_size", [1, 4, 23, 100])
def test_summary_over_clients(batch_size):
    data = FederatedData({"x": X, "y": Y}, OFFSETS)
    evaluate = client_evaluator(metrics, data, batch_size)
    actual = jax.jit(lambda evaluate, w: evaluate(w))(evaluate, jnp.asarray(W))
    expected = {
        f"{name}/{statistic}": value
        for name, values in expected_values().items()
        for statistic, value in expected_summary(values).items()
    }
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=TOLERANCE, err_msg=name)


def test_quantile_names():
    data = FederatedData({"x": X, "y": Y}, OFFSETS)
    evaluate = client_evaluator(metrics, data, quantiles=(0.025, 1.0))
    result = evaluate(jnp.asarray(W))
    assert {"loss/q2.5", "loss/q100"} < result.keys()
    assert result["loss/q100"] == result["loss/max"]


def test_vmap_over_params():
    both = merge_evaluators(
        all=evaluator(metrics, {"x": X, "y": Y}, 4),
        client=client_evaluator(metrics, FederatedData({"x": X, "y": Y}, OFFSETS), 4),
    )
    params = jnp.asarray(np.stack([W, 2 * W, -W]))
    batched = jax.jit(lambda both, params: jax.vmap(both)(params))(both, params)
    for i, w in enumerate(params):
        for name, value in both(w).items():
            # The batched product may be summed in another order.
            np.testing.assert_allclose(batched[name][i], value, rtol=TOLERANCE, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [4, 100])
def test_gradient(x64, batch_size):
    x, y, w = X.astype(np.float64), Y.astype(np.float64), jnp.asarray(W, jnp.float64)
    evaluate = evaluator(metrics, {"x": x, "y": y}, batch_size)
    gradient = jax.jit(jax.grad(lambda w: evaluate(w)["loss"]))(w)
    assert gradient.dtype == jnp.float64
    np.testing.assert_allclose(gradient, 2 / 23 * x.T @ (x @ W - y), rtol=1e-12)
    clients = client_evaluator(metrics, FederatedData({"x": x, "y": y}, OFFSETS), batch_size)
    gradient = jax.jit(jax.grad(lambda w: clients(w)["loss/mean"]))(w)
    weights = np.concatenate([np.full(n, 1 / n / 4) for n in np.diff(OFFSETS) if n])
    np.testing.assert_allclose(gradient, 2 * x.T @ (weights * (x @ W - y)), rtol=1e-12)


def test_only_one_batch_of_activations_is_live():
    """Memory of the gradient does not grow with the number of examples."""

    def wide(params, examples):
        hidden = jnp.tanh(examples["x"][:, None] * params)  # [B, 1000]
        return {"loss": hidden.sum(axis=1)}

    def temporaries(length):
        evaluate = evaluator(wide, {"x": jnp.ones(length)}, batch_size=10)
        gradient = jax.grad(lambda params, evaluate: evaluate(params)["loss"])
        compiled = jax.jit(gradient).lower(jnp.ones(1000), evaluate).compile()
        analysis = compiled.memory_analysis()
        assert analysis is not None
        return analysis.temp_size_in_bytes

    # 200 times the examples; kept activations would add 4 MB to the 40 KB of a batch.
    assert temporaries(2000) < temporaries(10) + 10**6


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_sums_of_half_precision_metrics(dtype):
    """Sums of 3,000 ones, exact in float32; bfloat16 ends at 256 and float16 at 2,048."""
    ones, w = {"x": np.ones(3000, np.float32)}, jnp.zeros((), dtype)
    data = FederatedData(ones, np.array([0, 3000]))

    def metrics(params, examples):
        return {"one": examples["x"].astype(params.dtype)}

    assert evaluator(metrics, ones, batch_size=10)(w)["one"] == 1
    assert client_evaluator(metrics, data, batch_size=10)(w)["one/mean"] == 1
    own = personal_evaluator(metrics, data, lambda params, state: params, batch_size=10)
    server = fs.fedavg(0.1).init(w)
    state = fs.RunState(jnp.array(0), server, jnp.zeros(1), (), jnp.array(0))
    result = evaluate(own, state)
    assert (result["one/mean"], result["one/weighted_mean"]) == (1, 1)


def test_data_are_arguments_of_the_compiled_program():
    evaluate = evaluator(metrics, {"x": X, "y": Y}, 4)
    shapes = {leaf.shape for leaf in jax.tree.leaves(evaluate)}
    assert shapes == {(23, 3), (23,)}


@pytest.mark.parametrize(
    "build",
    [
        lambda x: evaluator(metrics, {"x": x, "y": Y}, 4),
        lambda x: client_evaluator(metrics, FederatedData({"x": x, "y": Y}, OFFSETS), 4),
        lambda x: merge_evaluators(all=evaluator(metrics, {"x": x, "y": Y}, 4)),
    ],
)
def test_equal_evaluators_compile_once(build):
    chex.clear_trace_counter()
    evaluate = jax.jit(chex.assert_max_traces(lambda evaluate, w: evaluate(w), n=1))
    first = evaluate(build(X), jnp.asarray(W))
    second = evaluate(build(2 * X), jnp.asarray(W))
    assert all(first[name] != second[name] for name in first if "loss" in name)


def test_merged_names():
    evaluate = merge_evaluators(
        test=evaluator(metrics, {"x": X, "y": Y}), norm=lambda w: {"params": jnp.linalg.norm(w)}
    )
    result = evaluate(jnp.asarray(W))
    assert list(result) == ["test/loss", "test/small", "norm/params"]
    np.testing.assert_allclose(result["norm/params"], np.linalg.norm(W), rtol=TOLERANCE)


def test_merged_metrics_have_different_names():
    one = evaluator(metrics, {"x": X, "y": Y})
    for both in (
        merge_evaluators(one, one),
        merge_evaluators(lambda w: {"a/b": w}, a=lambda w: {"b": w}),
    ):
        with pytest.raises(ValueError, match=r"two metrics '(loss|a/b)'; expected different names"):
            both(jnp.asarray(W))


@pytest.mark.parametrize("dtype", [np.int32, jnp.bfloat16, np.float16, bool])
def test_statistics_of_numbers_of_any_dtype(dtype):
    """Quantiles of integers have fractions, and 900 squares exceed float16's largest number."""
    values = (np.arange(901) % 32).astype(dtype)
    result = client_statistics(values)
    exact = values.astype(np.float64)
    for name, q in (("q10", 0.1), ("q50", 0.5), ("q90", 0.9)):
        np.testing.assert_allclose(result[name], np.quantile(exact, q), rtol=TOLERANCE)
    jain = exact.sum() ** 2 / (901 * (exact**2).sum())
    np.testing.assert_allclose(result["jain"], jain, rtol=TOLERANCE)
    between = client_statistics(np.array([0, 1], dtype), quantiles=(0.25,))
    np.testing.assert_allclose(between["q25"], 0.25, rtol=TOLERANCE)


@pytest.mark.parametrize("values", [np.ones(0), np.ones((2, 2)), 1.0, np.ones(2, np.complex64)])
def test_statistics_refuse_other_arrays(values):
    with pytest.raises(ValueError, match=r"values has shape .*; expected real numbers \[M\]"):
        client_statistics(values)


def test_quantiles_next_to_an_infinite_client():
    with jax.debug_nans(False):  # of the standard deviation
        result = client_statistics(jnp.array([1.0, jnp.inf, 2.0]), (0.25, 0.5, 0.75))
    assert [float(result[name]) for name in ("q25", "q50", "q75")] == [1.5, 2, np.inf]


def test_quantiles_at_an_infinite_client():
    """The largest value is the quantile 1, and the smallest one the quantile 0."""
    with jax.debug_nans(False), jax.debug_infs(False):
        result = client_statistics(jnp.array([jnp.inf, 1.0, jnp.inf]), (0.0, 0.5, 1.0))
        lowest = client_statistics(jnp.array([-jnp.inf, 1.0]), (0.0,))["q0"]
    assert [float(result[name]) for name in ("q0", "q50", "q100")] == [1, np.inf, np.inf]
    assert float(lowest) == -np.inf


def test_sums_of_many_examples_of_one_client():
    """One after the other, 100,000 terms would be wrong by 6e-4."""
    sizes = np.array([3, 100_000, 0, 5])
    data = FederatedData({"x": np.full(sizes.sum(), 0.1, np.float32)}, np.cumsum([0, *sizes]))
    evaluate = client_evaluator(lambda w, batch: {"v": w * batch["x"]}, data, 1000, per_client=True)
    values = evaluate(jnp.ones(()))["per_client/v"]
    np.testing.assert_allclose(values, [0.1, 0.1, 0, 0.1], rtol=2e-5)


def test_subsample_is_fixed_and_counted():
    evaluators = [evaluator(metrics, {"x": X, "y": Y}, max_examples=9) for _ in range(2)]
    results = [evaluate(jnp.asarray(W)) for evaluate in evaluators]
    chex.assert_trees_all_equal(*results)
    assert results[0]["examples"] == 9
    kept = np.asarray(evaluators[0].args[0]["x"])
    np.testing.assert_array_equal(kept, fs.evaluation.subsample({"x": X}, 9)["x"])
    rows = {tuple(row) for row in kept}
    assert len(rows) == 9  # distinct examples, all of them from the data
    assert rows <= {tuple(row) for row in X}
    everything = evaluator(metrics, {"x": X, "y": Y}, max_examples=100)(jnp.asarray(W))
    assert everything["examples"] == len(X)


@pytest.mark.parametrize("better", [True, False])
def test_statistics_of_25_clients(better):
    values = RNG.random(25)
    result = client_statistics(jnp.asarray(values, jnp.float32), higher_is_better=better)
    worst = np.sort(values)[:3] if better else np.sort(values)[-3:]
    np.testing.assert_allclose(result["worst_decile"], worst.mean(), rtol=TOLERANCE)
    np.testing.assert_allclose(result["std"], values.std(), rtol=TOLERANCE)
    np.testing.assert_allclose(result["q90"], np.quantile(values, 0.9), rtol=TOLERANCE)
    equal = client_statistics(jnp.zeros(4), higher_is_better=better)
    assert equal["jain"] == 1
    assert client_statistics(jnp.array([0.0, 0.0, 3.0, 0.0]))["jain"] == 0.25


def state_of(params, clients=(), done=1):
    server = fs.fedavg(0.1).init(jnp.asarray(params))
    return fs.RunState(jnp.array(done), server, clients, (), jnp.array(0))


@pytest.mark.parametrize("batch_size", [1, 4, None])
def test_personal_models(batch_size):
    """Client i's examples under client i's model, the server's plus its state."""
    own = RNG.standard_normal((len(OFFSETS) - 1, 3)).astype(np.float32)
    evaluate = personal_evaluator(
        metrics,
        FederatedData({"x": X, "y": Y}, OFFSETS),
        lambda server, client: server + client,
        batch_size,
        per_client=True,
    )
    result = jax.jit(lambda evaluate, state: evaluate(state))(evaluate, state_of(W, own))
    losses = np.array(
        [
            expected_values(W + own[i])["loss"][a:b].mean() if b > a else 0
            for i, (a, b) in enumerate(itertools.pairwise(OFFSETS))
        ]
    )
    np.testing.assert_allclose(result["per_client/loss"], losses, rtol=TOLERANCE)
    assert result["per_client/num_examples"].tolist() == np.diff(OFFSETS).tolist()
    np.testing.assert_allclose(
        result["loss/mean"], losses[np.diff(OFFSETS) > 0].mean(), rtol=TOLERANCE
    )


def test_personal_models_require_states_of_all_clients():
    data = FederatedData({"x": X, "y": Y}, OFFSETS)
    evaluate = personal_evaluator(metrics, data, lambda server, client: server)
    for clients in ((), jnp.zeros((2, 3))):
        with pytest.raises(ValueError, match="expected 7, those of the evaluated data"):
            evaluate(state_of(W, clients))


@pytest.mark.slow
def test_evaluation_at_some_rounds():
    """A condition, also for several replicas; other rounds are marked."""
    slow = at_rounds(evaluator(metrics, {"x": X, "y": Y}, 4, max_examples=5), 3)
    both = merge_evaluators(slow=slow, test=evaluator(metrics, {"x": X, "y": Y}, 4))
    replicas = jax.tree.map(lambda *x: jnp.stack(x), state_of(W, done=6), state_of(-W, done=6))
    program = jax.jit(lambda both, state: jax.vmap(evaluate, (None, 0))(both, state))
    assert "conditional" in program.lower(both, replicas).as_text("hlo")
    due = program(both, replicas)
    assert due["slow/evaluated"].tolist() == [True, True]
    np.testing.assert_allclose(due["test/loss"][0], both(state_of(W))["test/loss"], rtol=TOLERANCE)
    other = program(both, replicas._replace(round=jnp.array([7, 7])))
    assert other["slow/evaluated"].tolist() == [False, False]
    np.testing.assert_array_equal(other["test/loss"], due["test/loss"])


def test_a_part_at_some_rounds_needs_a_name():
    """Its mark without a prefix would say that the other parts were skipped, too."""
    slow = at_rounds(lambda w: {"norm": abs(w)}, 2)
    state = state_of(jnp.array(2.0), done=3)
    for beside in ({}, {"test": lambda w: {"loss": w}}):
        plain = [] if beside else [lambda w: {"loss": w}]
        with pytest.raises(ValueError, match="a part of at_rounds without a name"):
            evaluate(merge_evaluators(*plain, slow, **beside), state)
    assert not evaluate(merge_evaluators(slow), state)["evaluated"]


@pytest.mark.slow
@pytest.mark.parametrize(("every", "message"), [(7, "eval_every 5 in 12 rounds"), (4, None)])
def test_a_period_that_no_evaluation_reaches_is_refused(every, message):
    data = FederatedData({"y": np.ones(2, np.float32)}, np.array([0, 1, 2]))
    task = fs.empirical_task(lambda w, e, key: (w - e["y"]) ** 2, data, fs.full_batch(1))
    rare = merge_evaluators(rare=at_rounds(lambda w: {"norm": abs(w)}, every))
    setup = fs.Setup(task, fs.timelines.full(12, 2, task.num_steps), np.float32(0), rare, 5)
    algorithm, key = fs.fedavg(0.1), jax.random.key(0)
    keys = key[None]
    batch = dataclasses.replace(setup, params=np.zeros(1, np.float32))
    calls = [
        lambda: fs.run(algorithm, setup, key),
        lambda: fs.simulate(algorithm, setup, key),
        lambda: fs.compare({"fedavg": algorithm}, batch, keys),
        lambda: fs.sweep(lambda lr: fs.fedavg(lr), batch, {"lr": [0.1]}, keys),
    ]
    for call in calls if message else calls[:1]:
        with pytest.raises(ValueError, match=message) if message else contextlib.nullcontext():
            call()
    # With the initial model there is an evaluation.
    frame = fs.simulate(algorithm, setup, key, options=fs.Options(eval_initial=True)).to_frame()
    rounds = frame.loc[frame["metric"] == "rare/norm", "round"]
    assert rounds.tolist() == ([0] if message else [0, 12])


NO_VALUES = r"expected floating values \[23\], one per example"


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (None, r"metrics is None; expected a function of \(params, examples\) -> \{name"),
        (lambda params: {}, r"metrics takes \(params\); expected \(params, examples\)"),
        (
            lambda params, examples: {"a": examples["z"]},
            r"metrics fails for .* \(KeyError: 'z'\); ex",
        ),
        (lambda params, examples: {"a": None}, f"metrics returns None for 'a'; {NO_VALUES}"),
        (lambda params, examples: {"a": [0.5]}, rf"metrics returns \[.*\] for 'a'; {NO_VALUES}"),
        (lambda params, examples: {"a": 0.5}, rf"metrics returns float32\[\] for 'a'; {NO_VALUES}"),
        (lambda params, examples: {"a": "b"}, r"metrics fails for .* \(TypeError: "),
    ],
)
def test_metrics_that_are_no_values_per_example(own, message):
    data = FederatedData({"x": X, "y": Y}, OFFSETS)
    for make in (lambda: evaluator(own, data.examples), lambda: client_evaluator(own, data)):
        with pytest.raises(ValueError, match=message):
            make()(jnp.asarray(W))


def test_errors():
    data = FederatedData({"x": X, "y": Y}, OFFSETS)
    with pytest.raises(ValueError, match=r"lengths \[22, 23\]"):
        evaluator(metrics, {"x": X, "y": Y[1:]})
    with pytest.raises(ValueError, match=r"lengths \[0\]; expected .* at least 1"):
        evaluator(metrics, {"x": X[:0], "y": Y[:0]})
    with pytest.raises(ValueError, match="batch_size is 0"):
        evaluator(metrics, {"x": X, "y": Y}, batch_size=0)
    with pytest.raises(ValueError, match="max_examples is 0"):
        evaluator(metrics, {"x": X, "y": Y}, max_examples=0)
    with pytest.raises(ValueError, match=r"max_examples is 2\.5; expected an integer"):
        evaluator(metrics, {"x": X, "y": Y}, max_examples=2.5)
    with pytest.raises(ValueError, match=r"lengths \[9, 23\]"):  # JAX would clamp the rows
        evaluator(metrics, {"x": jnp.asarray(X), "y": jnp.asarray(Y[:9])}, max_examples=5)
    with pytest.raises(ValueError, match=r"a leaf of shape \(\); expected \[N, \.\.\.\]"):
        evaluator(metrics, {"x": X, "y": 1.0})
    with pytest.raises(ValueError, match=r"metrics returns .*; expected a dict of values by name"):
        evaluator(lambda params, examples: examples["x"], {"x": X})(jnp.asarray(W))
    with pytest.raises(ValueError, match=r"\['y'\] has dtype <U1; expected numbers"):
        evaluator(metrics, {"x": X, "y": np.array(["a"] * len(X))})
    for on_clients in (client_evaluator, personal_evaluator):
        with pytest.raises(ValueError, match="data is a dict; expected FederatedData, such as"):
            on_clients(metrics, {"x": X, "y": Y})
    with pytest.raises(ValueError, match="every is 0"):
        at_rounds(evaluator(metrics, {"x": X, "y": Y}), 0)
    with pytest.raises(ValueError, match="quantiles contains 10"):
        client_evaluator(metrics, data, quantiles=(10,))
    with pytest.raises(ValueError, match="evaluators is empty"):
        merge_evaluators()
    with pytest.raises(ValueError, match="evaluators has a dict; expected functions"):
        merge_evaluators({"test": evaluator(metrics, {"x": X, "y": Y})})
    for wrong in (lambda values: values.mean(), lambda values: values > 0):
        evaluate = evaluator(
            lambda p, e, f=wrong: {"loss": f(metrics(p, e)["loss"])}, data.examples
        )
        with pytest.raises(ValueError, match=r"for 'loss'; expected floating values \[23\]"):
            evaluate(jnp.asarray(W))


@pytest.mark.parametrize("wrong", [lambda values: values.mean(), lambda values: values > 0])
def test_personal_metrics_are_one_value_per_example(wrong):
    """The mean of a batch would include examples of other clients."""
    data = FederatedData({"x": X, "y": Y}, OFFSETS)
    own = personal_evaluator(
        lambda p, e: {"loss": wrong(metrics(p, e)["loss"])}, data, lambda params, state: params
    )
    server = fs.fedavg(0.1).init(jnp.asarray(W))
    state = fs.RunState(jnp.array(0), server, jnp.zeros(7), (), jnp.array(0))
    with pytest.raises(ValueError, match=r"for 'loss'; expected floating values \[\d+\], one per"):
        evaluate(own, state)


def test_names_of_metrics_say_which_clients_are_worst():
    data = FederatedData({"x": jnp.array([1.0, 3.0])}, np.array([0, 1, 2]))

    def values(params, examples):
        return dict.fromkeys(("top-5", "f1", "loss"), examples["x"])

    result = client_evaluator(values, data)(jnp.zeros(()))
    worst = {name: float(result[f"{name}/worst_decile"]) for name in ("top-5", "f1", "loss")}
    assert worst == {"top-5": 1, "f1": 1, "loss": 3}
    chosen = client_evaluator(values, data, higher_is_better=("loss",))(jnp.zeros(()))
    assert chosen["loss/worst_decile"] == 1
