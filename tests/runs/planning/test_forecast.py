"""Forecasts: what they say beside what runs really hold; refusals; ``fedjax-sim run --dry-run``."""

import dataclasses
import functools
import shlex

import jax
import numpy as np
import pytest
from call_records import records
from small_problems import (
    KEY,
    NUM_CLIENTS,
    NUM_FEATURES,
    SIZES,
    logistic_data,
    logistic_losses,
    logistic_params,
    logistic_task,
    quadratic_task,
)

import fedjax_sim as fs
from fedjax_sim import execution, models, objectives
from fedjax_sim.cli.main import main
from fedjax_sim.cli.tables import forecast_table
from fedjax_sim.diagnostics.dynamics import client_dynamics
from fedjax_sim.engine.execution import offload, placement
from fedjax_sim.runs.planning.forecast import forecast
from fedjax_sim.runs.planning.needs import KNOBS, Forecast, Seconds
from fedjax_sim.timelines import sampling
from fedjax_sim.types import Aggregation

ROUNDS, COHORT, RUNS = 6, 4, 3
MODEL = 4 * (NUM_FEATURES + 1)  # bytes of the parameters
ROW = 4 * (NUM_FEATURES + 1)  # of an example: features and label
ALGORITHM = fs.scaffold(0.1)


@functools.cache
def timeline():
    steps = logistic_task().num_steps
    return sampling.uniform(jax.random.key(1), ROUNDS, NUM_CLIENTS, COHORT, steps)


def found(task=None, when=None, params=None, key=KEY, eval_fn=None, **options) -> Forecast:
    task = logistic_task() if task is None else task
    when = timeline() if when is None else when
    params = logistic_params() if params is None else params
    return forecast(ALGORITHM, fs.Setup(task, when, params, eval_fn), key, **records(**options))


@functools.cache
def unmeasured() -> Forecast:
    return found(measure=False)


def held(tree, device=None) -> int:
    """Bytes of the arrays, on one device."""
    device = jax.devices()[0] if device is None else device
    pieces = [
        piece.data.nbytes
        for leaf in jax.tree.leaves(tree)
        for piece in leaf.addressable_shards
        if piece.device == device
    ]
    return sum(pieces)


@pytest.mark.slow
def test_numbers_of_a_resident_run():
    evaluate = fs.evaluation.evaluator(
        lambda params, x: {"mean": x["x"] @ params["w"]}, {"x": np.ones((7, 3), np.float32)}
    )
    one = found(eval_fn=evaluate)
    assert 2 * 7 * NUM_FEATURES <= one.flops_per_evaluation <= 4 * 7 * NUM_FEATURES
    done = fs.simulate(ALGORITHM, fs.Setup(logistic_task(), timeline(), logistic_params()), KEY)
    assert one.parameters == NUM_FEATURES + 1
    assert one.client_bytes == MODEL
    assert one.upload_bytes == 2 * MODEL  # model and control variate
    # The examples, where each client's begin, and the clients' sizes and steps.
    indices = NUM_CLIENTS + 1 + 2 * NUM_CLIENTS
    assert one.parts["examples"] == ROW * SIZES.sum() + 4 * indices
    assert one.parts["client states"] == held(done.state.clients) == NUM_CLIENTS * MODEL
    assert one.parts["server"] == held((done.state.server, done.state.past))
    assert one.parts["evaluation"] >= 7 * 3 * 4
    assert one.parts["temporaries"] > COHORT * MODEL  # a cohort's models at least
    assert one.peak == sum(one.parts.values())
    assert one.rounds == ROUNDS
    assert one.evaluations == ROUNDS
    assert min(one.seconds) > 0


@pytest.mark.slow
def test_numbers_of_several_runs_together():
    params = jax.tree.map(lambda x: np.stack([x] * RUNS), logistic_params())
    several = found(params=params, key=jax.random.split(KEY, RUNS))
    one = unmeasured()
    assert several.parameters == one.parameters
    assert several.client_bytes == RUNS * one.client_bytes
    assert several.upload_bytes == RUNS * one.upload_bytes
    assert several.parts["client states"] == RUNS * one.parts["client states"]
    assert several.parts["examples"] == one.parts["examples"]
    assert several.flops_per_round == RUNS * one.flops_per_round
    assert np.isnan(one.seconds.per_round)


def test_a_mean_keeps_no_uploads_together():
    assert Aggregation(each=lambda state, upload: upload).num_bytes(np.ones(4), 3) == 0


@pytest.mark.slow
def test_arithmetic_of_a_step():
    # A softmax regression's gradient is two products of the batch with a matrix, forward and
    # backward; what is done beside them (softmax, differences) is of a lower order.
    rng = np.random.default_rng(0)
    batch, inputs, classes, steps = 8, 200, 30, 5
    data = fs.FederatedData(
        {
            "x": rng.normal(size=(4 * batch, inputs)).astype(np.float32),
            "y": rng.integers(classes, size=4 * batch),
        },
        np.arange(5) * batch,
    )
    model = models.softmax_regression(inputs, classes)
    loss = objectives.cross_entropy(model.apply)
    task = fs.empirical_task(loss, data, fs.stream(batch, steps))
    when = sampling.uniform(KEY, 3, 4, 2, task.num_steps)
    one = forecast(fs.fedavg(0.1), fs.Setup(task, when, model.init(KEY)), KEY, measure=False)
    products = 2 * steps * 2 * (2 * batch * inputs * classes)
    assert products <= one.flops_per_round <= 1.2 * products


@pytest.mark.slow
def test_local_work_of_evaluations_counts():
    """Evaluations with clients' visits show their arithmetic and their memory."""
    num_clients, dim, iterations = 12, 300, 20
    hessians = np.eye(dim, dtype=np.float32) * np.ones((num_clients, 1, 1), np.float32)
    task = quadratic_task(hessians, np.ones((num_clients, dim), np.float32), 1)

    def needs(task, size, *measures, **options):
        one = execution.chunked(1)
        dynamics = client_dynamics(measures, iterations=iterations, execution=one, **options)
        start = np.zeros(size, np.float32)
        when = sampling.full(4, num_clients, 1)
        setup = fs.Setup(task, when, start, fs.evaluation.at_rounds(dynamics, 2))
        return forecast(
            fs.fedavg(0.1), setup, KEY, measure=False, options=fs.Options(execution=one)
        )

    eigenvalue = needs(task, dim, "eigenvalue").flops_per_evaluation
    products = num_clients * iterations * 2 * dim**2  # of the Hessian and a vector
    # Three vectors are orthogonalised twice, against iterations + 1 vectors.
    lanczos = num_clients * iterations * (iterations + 1) * 24 * dim
    assert products <= eigenvalue <= 1.1 * (products + lanczos)

    # Without matrices, F_i(x) = |x - i|^2 / 2, the memory is that of models.
    def oracle(client, key, max_steps):
        def grad(x, step=0):
            return x - client.astype(float)

        return fs.Oracle(grad, None, grad)

    counts = np.ones(num_clients, np.int32)
    dim, task = 50_000, fs.Task(oracle, counts, counts)
    recomputed = needs(task, dim, "alignment")
    stored = needs(task, dim, "alignment", store_updates=True)
    assert stored.flops_per_evaluation < recomputed.flops_per_evaluation
    models = num_clients * dim * 4
    assert stored.parts["temporaries"] > models > recomputed.parts["temporaries"]


@pytest.mark.slow
def test_numbers_of_clients_by_device():
    where = placement.by_client(NUM_CLIENTS, num_strata=4)
    task = fs.empirical_task(logistic_losses, logistic_data(), fs.epochs(2, 2), placement=where)
    when = sampling.stratified(KEY, ROUNDS, NUM_CLIENTS, COHORT, task.num_steps, num_strata=4)
    one = found(task, when)
    done = fs.simulate(ALGORITHM, fs.Setup(task, when, logistic_params()), KEY)
    assert one.parts["client states"] == held(done.state.clients) == NUM_CLIENTS // 4 * MODEL
    assert one.parts["server"] == held((done.state.server, done.state.past))
    assert one.parts["examples"] < unmeasured().parts["examples"]
    assert one.seconds.per_round > 0


@pytest.mark.slow
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("states", [False, True])
def test_numbers_with_examples_on_the_host(states, batched):
    limit = 2 * ROW * int(np.sort(SIZES)[-COHORT:].sum()) + 1
    where = offload.on_host(limit, states=states)
    task = fs.empirical_task(logistic_losses, logistic_data(), fs.epochs(2, 2), placement=where)
    runs, params, key = 1, logistic_params(), KEY
    if batched:
        runs, key = RUNS, jax.random.split(KEY, RUNS)
        params = jax.tree.map(lambda x: np.stack([x] * RUNS), params)
    one = found(task, params=params, key=key)
    made = offload.plan(task, timeline(), 0, 1, 1)
    # The present load and the next one: rows, first row per client, numbers of the clients.
    assert one.parts["examples"] == 2 * (made.rows * ROW + 4 * (2 * made.clients + 1))
    assert 2 * made.rows * ROW <= limit
    clients = COHORT if states else NUM_CLIENTS
    assert one.parts["client states"] == runs * clients * MODEL
    assert one.seconds.per_round > 0


UNMEASURED = Seconds(1.0, np.nan, np.nan)
PARTS = {"examples": 4, "client states": 3, "server": 2, "evaluation": 1, "temporaries": 5}


@pytest.mark.parametrize("largest", PARTS)
def test_what_cannot_fit_is_refused_with_the_numbers_and_the_knob(largest):
    parts = {name: 10**9 * size for name, size in PARTS.items()} | {largest: 7 * 10**9}
    fits = Forecast(1, 0, 4, parts, sum(parts.values()), 1.0, 1, 1, UNMEASURED)
    fits.check()
    with pytest.raises(ValueError, match="memory of a device is ") as error:
        fits._replace(memory=fits.peak - 1).check()
    text = str(error.value)
    assert KNOBS[largest] in text
    assert f"expected at least {fits.peak / 1e9:g} " in text
    assert all(f"{name} {size / 1e9:g}" in text for name, size in parts.items())


@pytest.mark.slow
def test_what_does_not_fit_is_not_run(monkeypatch):
    short = found(memory=1)
    assert np.isnan(short.seconds.per_round)
    with pytest.raises(ValueError, match="memory of a device is 1e-09 GB"):
        short.check()


def test_contradictions_are_refused_before_any_compilation():
    when = timeline()
    wrong = dataclasses.replace(when, clients=when.clients + NUM_CLIENTS)
    with pytest.raises(ValueError, match="timeline"):
        found(when=wrong)


@functools.cache
def private():
    return fs.privacy.privatize(fs.fedavg(0.1), 0.5, 9.0, expected_uploads=COHORT)


@pytest.mark.slow
def test_private_algorithms_have_their_epsilon():
    setup = fs.Setup(logistic_task(), timeline(), logistic_params())
    needs = forecast(private(), setup, KEY, measure=False, delta=1e-3)
    assert needs.privacy == fs.privacy.epsilon(private(), setup, 1e-3)
    assert unmeasured().privacy is None


def test_epsilon_is_shown():
    plain = Forecast(1, 0, 4, PARTS, 10**9, 1.0, 1, 1, UNMEASURED)
    guarantee = fs.privacy.Guarantee(2.0, 1e-3, "replace_one", "rdp", "4 of 9 clients")
    needs = plain._replace(privacy=guarantee)
    assert needs.rows["epsilon at delta 0.001"] == "2 (replace_one)"
    assert str(needs).splitlines()[-1].split(maxsplit=4)[-1] == "2 (replace_one)"
    assert "<th>epsilon at delta 0.001</th><td>2 (replace_one)</td>" in needs._repr_html_()
    assert "epsilon" not in str(plain)
    with pytest.raises(ValueError, match=r"delta is 0.0; expected a number in \(0, 1\)"):
        forecast(
            private(), fs.Setup(logistic_task(), timeline(), logistic_params()), KEY, delta=0.0
        )


def test_rows_of_bytes_say_whose_they_are():
    """A codec sends less than the server has in memory, and every seed has an upload."""
    rows = Forecast(650, 2600, 5200, PARTS, 10**9, 1.0, 1, 1, UNMEASURED).rows
    assert rows["bytes of a client's state, all seeds"] == "2,600"
    assert rows["bytes of a client's upload in memory, all seeds"] == "5,200"


def test_columns_of_a_table_may_have_different_parts():
    """Only a robust rule has all uploads in memory together."""
    plain = Forecast(1, 0, 4, PARTS, 10**9, 1.0, 1, 1, UNMEASURED)
    stacked = plain._replace(parts={"uploads": 10**6, **PARTS})
    table = forecast_table({"stacked": stacked, "plain": plain})
    names, first, second = ([*column.cells] for column in table.columns)
    at = names.index("MB of uploads")
    assert (first[at], second[at]) == ("1.0", "")


DRY = shlex.split(
    "run quickstart --model softmax_regression --num-clients 20 --cohort-size 4 --rounds 4 "
    "--local-steps 2 --seeds 2 --dry-run --algorithms scaffold"
)


@pytest.mark.parametrize(
    "options",
    [
        "",
        *(
            pytest.param(options, marks=pytest.mark.slow)
            for options in (
                "--num-strata 2 --algorithms fedavg scaffold",
                "--examples-memory 0.01 --states host",
                "--precision float64",
            )
        ),
    ],
)
def test_dry_run_prints_and_writes_nothing(options, tmp_path, capsys):
    output = tmp_path / "results"
    assert main([*DRY, *options.split(), "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    assert "parameters of a model" in printed
    assert "not run" not in printed
    size = "10,400" if options.endswith("64") else "5,200"  # 650 parameters, two seeds
    assert size in printed
    assert not output.exists()


@pytest.mark.slow
def test_dry_run_refuses_what_cannot_fit(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("fedjax_sim.runs.planning.forecast.memory_limit", lambda device: 1000)
    assert main([*DRY, "--output", str(tmp_path / "results")]) == 2
    captured = capsys.readouterr()
    assert "not run" in captured.out
    assert "memory of a device is 1e-06 GB; expected at least" in captured.err
