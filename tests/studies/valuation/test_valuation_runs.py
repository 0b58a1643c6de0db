"""Values of clients from runs: closed forms, single runs, finite differences, kept coalitions."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial
from small_problems import (
    KEY,
    SIZES,
    compiled,
    logistic_losses,
    logistic_params,
    logistic_task,
    quadratic_task,
)

import fedjax_sim as fs
from fedjax_sim import valuation
from fedjax_sim.runs.storage.files import FolderError
from fedjax_sim.studies.valuation.coalitions import resampled

CENTRES = np.array([1.0, 2.0, 4.0, 7.0], np.float32)


def losses(x, examples, key):
    return (x - examples["c"]) ** 2 / 2


def loss(x):
    return (x - 3) ** 2 / 2


def estimation(timeline=None, start=0.0):
    """One client per centre; a step with rate 1 of a single client ends at its centre."""
    data = fs.FederatedData({"c": CENTRES}, np.arange(5))
    task = fs.empirical_task(losses, data, fs.full_batch(1))
    timeline = timeline or fs.timelines.full(1, 4, task.num_steps)
    return fs.Setup(task, timeline, jnp.array(start))


def two_cohorts():
    clients = np.array([[0, 1, 2], [1, 2, 3]])
    ones = np.ones((2, 3), int)
    return fs.Timeline(
        clients, np.array([[0] * 3, [1] * 3]), ones, ones == 1, np.arange(2.0), max_steps=1
    )


def logistic_setup(**fields):
    task = logistic_task()
    timeline = fs.timelines.uniform(jax.random.key(5), 3, len(SIZES), 4, task.num_steps)
    examples = jax.tree.map(jnp.asarray, task.oracle.args[0].examples)

    def eval_fn(params):
        every = logistic_losses(params, examples, None)
        return {"loss": every.mean(), "worst": every.max(), "all": every}

    return fs.Setup(
        task, timeline, logistic_params(), eval_fn, eval_every=2,
        weighting=fs.weight_by_examples, **fields,
    )  # fmt: skip


@pytest.mark.slow
def test_mean_estimation_by_retraining(tmp_path):
    """The values of the closed game, with chunks of at most two coalitions, kept on disk."""
    seen = []

    def follow(done, total):
        seen.append((done, total))

    options = {"directory": tmp_path, "width": 1, "on_progress": follow}
    game = valuation.game(fs.fedavg(1.0), estimation(), KEY, loss, **options)
    single = valuation.leave_one_out(game)
    np.testing.assert_allclose(single.values, [0.763889, 0.375, -0.069444, 0.097222], atol=1e-6)
    computed = seen[-1][1]
    assert computed == 6  # nobody, all, four without one
    game = valuation.game(fs.fedavg(1.0), estimation(), KEY, loss, **options)
    exact = valuation.exact_shapley(game)
    np.testing.assert_allclose(exact.values, [1.709491, 1.996528, 1.681713, -1.012731], atol=1e-6)
    assert seen[-1] == (16 - computed, 16 - computed)
    assert exact.num_runs == 15
    with pytest.raises(FolderError, match="a game with another algorithm"):
        valuation.game(fs.fedavg(0.5), estimation(), KEY, loss, directory=tmp_path)
    whole = (tmp_path / "coalitions.npz").read_bytes()
    for part in (b"damaged", whole[: len(whole) // 2]):
        (tmp_path / "coalitions.npz").write_bytes(part)
        with pytest.raises(FolderError, match=r"coalitions\.npz is damaged"):
            valuation.game(fs.fedavg(1.0), estimation(), KEY, loss, directory=tmp_path)
    (tmp_path / "game.json").write_text('{"algorithm": ')
    with pytest.raises(FolderError, match=r"game\.json is damaged"):
        valuation.game(fs.fedavg(1.0), estimation(), KEY, loss, directory=tmp_path)


@pytest.mark.parametrize(
    "weighting",
    [
        lambda work: jnp.arange(1.0, 5.0),
        lambda work: work.client.sum() == 0 + 1 + 2 + 3,
    ],
    ids=["slots", "sum"],
)
def test_weights_of_influence_are_those_of_rounds(weighting):
    """A weighting receives the visits of a round."""
    two = estimation(fs.timelines.full(2, 4, 1))
    values = valuation.influence(
        fs.fedavg(0.5), dataclasses.replace(two, weighting=weighting), KEY, loss
    ).values
    assert np.isfinite(values).all()


@pytest.mark.slow
def test_influence_of_mean_estimation():
    result = valuation.influence(fs.fedavg(1.0), estimation(), KEY, loss)
    np.testing.assert_allclose(result.values, [0.3125, 0.1875, -0.0625, -0.4375], atol=1e-6)


@pytest.mark.usefixtures("x64")
def test_influence_is_first_order_in_the_weight_that_leaves():
    """Clients with the weights 1, 1 and 2: the last one has half of the total, so far from it."""
    task = quadratic_task(np.array([1.0, 2.0, 0.5])[:, None, None], np.array([[1.0], [-1], [3]]), 2)
    setup = fs.Setup(task, fs.timelines.full(3, 3, 2), jnp.zeros(1))
    setup = fs.weight_by_client(setup, jnp.array([1.0, 1.0, 2.0]))
    args = (fs.fedavg(0.1), setup, KEY, lambda x: jnp.sum((x - 1) ** 2) / 2)
    removed = valuation.leave_one_out(valuation.game(*args, mode="min"))
    np.testing.assert_allclose(removed.values, [0.055231, -0.224849, 0.433487], atol=5e-7)
    influences = valuation.influence(*args, mode="min")
    np.testing.assert_allclose(influences.values, [0.039483, -0.222116, 0.182632], atol=5e-7)


@pytest.mark.slow
def test_influence_of_a_run_that_diverges():
    """Also with one number as the weight of all uploads."""
    setup = dataclasses.replace(estimation(), weighting=lambda work: 2.0)
    with pytest.raises(FloatingPointError, match=r"loss is inf with .* of 4 derivatives"):
        valuation.influence(fs.fedavg(1e30), setup, KEY, loss)


@pytest.mark.parametrize(
    "value",
    [
        lambda *run: valuation.exact_shapley(valuation.game(*run)),
        valuation.fed_sv,
        valuation.influence,
    ],
)
def test_metrics_of_models_of_nan_are_no_values(value, allow_nans):
    """Comparisons with NaN are false, so every coalition had the same accuracy, and no value."""

    def accuracy(x):
        return jnp.where(x > 3, 0.75, 0.25)

    twice = estimation(fs.timelines.full(9, 4, 1))
    with pytest.raises(FloatingPointError, match="accuracy is nan"):
        value(fs.fedavg(1e9), twice, KEY, accuracy)


def test_fed_sv_of_two_cohorts():
    setup = estimation(two_cohorts())
    result = valuation.fed_sv(fs.fedavg(0.5), setup, KEY, loss)
    np.testing.assert_allclose(result.values, [0.012731, 1.052083, 2.739583, 0.664352], atol=1e-6)
    assert result.values.sum() == pytest.approx(4.46875, abs=1e-6)
    assert result.by_round is not None
    assert result.by_round[1, 0] == result.by_round[0, 3] == 0  # absent
    assert (result.num_runs, result.num_evaluations) == (1, 14)
    guided = valuation.gtg_shapley(fs.fedavg(0.5), setup, KEY, loss, jax.random.key(1))
    np.testing.assert_allclose(guided.values, result.values, atol=0.15)
    assert guided.values.sum() == pytest.approx(4.46875, abs=2e-3)
    assert guided.facts["skipped"] == 0


def test_rounds_of_fed_sv_draw_their_own_coalitions():
    """With one key; errors of equal rounds would be equal, and add up instead of their squares."""
    data = fs.FederatedData({"c": CENTRES}, np.arange(5))
    task = fs.empirical_task(lambda x, batch, key: -batch["c"] * x, data, fs.full_batch(1))
    setup = fs.Setup(task, fs.timelines.full(3, 4, task.num_steps), jnp.array(0.0))

    def gain(x):  # the same in every round
        return x

    for estimate in (
        lambda game: valuation.permutation_shapley(game, KEY, 2),
        lambda game: valuation.stratified_shapley(game, KEY, 9, pilot=2),
    ):
        result = valuation.fed_sv(fs.fedavg(1.0), setup, KEY, gain, mode="max", estimate=estimate)
        assert result.by_round is not None
        for i, j in ((0, 1), (0, 2), (1, 2)):
            assert abs(result.by_round[i] - result.by_round[j]).max() > 0.01


def test_fed_sv_values_only_uploads_that_arrived():
    lost = np.array([[True, False, False], [False, False, True]])
    setup = estimation(dataclasses.replace(two_cohorts(), lost=lost))
    result = valuation.fed_sv(fs.fedavg(0.5), setup, KEY, loss)
    assert result.by_round is not None
    assert result.by_round[0, 0] == result.by_round[1, 3] == 0
    _, history = fs.run(fs.fedavg(0.5), dataclasses.replace(setup, eval_fn=lambda x: {"x": x}), KEY)
    total = loss(0.0) - loss(float(history.metrics["x"][-1]))
    assert result.values.sum() == pytest.approx(total, abs=1e-6)


def test_fed_sv_adds_up_with_weights_of_a_mean_over_all_clients():
    """FedDyn's server adds the share of a coalition's weights to its dual, so to its model."""
    algorithm = fs.feddyn(0.5, mu=0.5)
    setup = dataclasses.replace(
        estimation(two_cohorts()), weighting=lambda work: 1.0 + work.client.astype(jnp.float32)
    )
    values = valuation.fed_sv(algorithm, setup, KEY, loss).values
    state, _ = fs.run(algorithm, setup, KEY)
    total = loss(0.0) - loss(float(state.server.params))
    assert values.sum() == pytest.approx(total, rel=1e-5)  # single precision


def test_weights_of_a_round_are_a_function_of_all_its_visits():
    """Each visit alone would have the share 1, so all clients the same weight."""

    def share(work):
        return square(work) / jnp.sum(square(work))

    def square(work):
        return (1 + work.client) ** 2

    setup = estimation(two_cohorts())
    by_share, by_square = (
        valuation.fed_sv(
            fs.fedavg(0.5), dataclasses.replace(setup, weighting=weighting), KEY, loss
        ).values
        for weighting in (share, square)
    )
    np.testing.assert_allclose(by_share, by_square, rtol=1e-5)  # single precision
    assert abs(by_square - valuation.fed_sv(fs.fedavg(0.5), setup, KEY, loss).values).min() > 0.01


@pytest.mark.usefixtures("allow_nans")
def test_rounds_of_negative_weights_have_no_values():
    """The round is a divergence of the run, also if it is the last one."""
    setup = dataclasses.replace(
        estimation(), weighting=lambda work: 1.0 - 2.0 * (work.client == 1).astype(jnp.float32)
    )
    with pytest.raises(FloatingPointError, match="loss is nan for the coalition of the clients"):
        valuation.fed_sv(fs.fedavg(0.5), setup, KEY, loss)


@pytest.mark.slow
def test_fed_sv_reads_a_coalition_as_a_part_of_its_round():
    """PP-MARINA's rounds of all clients have whole uploads, also for a coalition of some."""
    setup = estimation(fs.timelines.full(2, 4, 1))
    plain = fs.fedavg(0.5)
    whole = fs.pp_marina(plain, fs.compression.identity())
    expected = valuation.fed_sv(plain, setup, KEY, loss).values
    np.testing.assert_allclose(valuation.fed_sv(whole, setup, KEY, loss).values, expected, 1e-6)


def test_nobody_has_a_value_without_reports():
    timeline = fs.timelines.full(2, 4, 1)
    empty = dataclasses.replace(timeline, mask=np.zeros((2, 4), bool))
    result = valuation.gtg_shapley(fs.fedavg(0.5), estimation(empty), KEY, loss, KEY, mode="min")
    np.testing.assert_array_equal(result.values, 0)
    assert result.facts == {"permutations": 0, "skipped": 0, "rounds": 0}


def test_refusals_of_keys_counts_and_metrics():
    setup, algorithm, keys = estimation(), fs.fedavg(1.0), jax.random.split(KEY, 2)
    with pytest.raises(ValueError, match=r"key has shape \(2,\); expected one key"):
        valuation.game(algorithm, setup, keys, loss)
    with pytest.raises(ValueError, match=r"resample has shape \(2,\); expected one key"):
        valuation.game(algorithm, setup, KEY, loss, resample=keys)
    with pytest.raises(ValueError, match=r"permutation_key has shape \(2,\); expected one key"):
        valuation.gtg_shapley(algorithm, setup, KEY, loss, keys)
    with pytest.raises(ValueError, match=r"width is 1\.5; expected an integer"):
        valuation.fed_sv(algorithm, setup, KEY, loss, width=1.5)
    with pytest.raises(ValueError, match=r"most_sweeps is 1\.5; expected an integer"):
        valuation.gtg_shapley(algorithm, setup, KEY, loss, KEY, most_sweeps=1.5)
    with pytest.raises(ValueError, match="metric returns an array; expected a function"):
        valuation.influence(algorithm, setup, KEY, lambda x: x + jnp.zeros(2), mode="min")
    with pytest.raises(ValueError, match=r"client is 1\.5; expected an integer"):
        valuation.example_influence(algorithm, setup, KEY, loss, 1.5)
    for estimate in (3, lambda game: 3):
        with pytest.raises(ValueError, match=r"estimate (is 3|returns 3); expected a"):
            valuation.fed_sv(algorithm, setup, KEY, loss, estimate=estimate)
    with pytest.raises(ValueError, match=r"algorithm is 1\.0; expected a FedAlgorithm"):
        valuation.fed_sv(1.0, setup, KEY, loss)
    for value in (valuation.game, valuation.fed_sv, valuation.influence):
        with pytest.raises(ValueError, match="metric is 3; expected a function of the model"):
            value(algorithm, setup, KEY, 3)
    with pytest.raises(ValueError, match="on_progress is 3; expected a function of"):
        valuation.game(algorithm, setup, KEY, loss, on_progress=3)
    with pytest.raises(ValueError, match="algorithm requires equal weights of all uploads"):
        valuation.influence(fs.fedvarp(1.0), setup, KEY, loss)


@pytest.mark.slow
def test_coalitions_below_the_number_that_a_rule_requires():
    """They are refused, although half of the clients would do, or their rounds are skipped."""
    data = fs.from_clients(
        [{"c": np.full(1, c, np.float32)} for c in (1, 2, 4, 7, 1, 2, 4, 7, 9, 9)]
    )
    task = fs.empirical_task(losses, data, fs.full_batch(1))
    setup = fs.Setup(task, fs.timelines.full(1, 10, task.num_steps), jnp.array(0.0))
    inner, rule = fs.fedavg(1.0), fs.robust.krum(f=1)  # at least 5 uploads
    with pytest.raises(ValueError, match=r"accepts client 0 alone: .* 1 uploads .* skip_small"):
        valuation.game(fs.robust.aggregate(inner, rule), setup, KEY, loss)
    skips = fs.robust.aggregate(inner, rule, skip_small_rounds=True)
    game = valuation.game(skips, setup, KEY, loss, mode="min")
    size = np.array([1, 2, 4, 10])[:, None]
    values = game.values(np.arange(10) < size)
    np.testing.assert_array_equal(values[:3], 0)
    state, _ = fs.run(skips, setup, KEY)
    assert values[3] == pytest.approx(4.5 - float(loss(state.server.params)))


@pytest.mark.parametrize(
    "value", [valuation.fed_sv, lambda *run: valuation.gtg_shapley(*run, permutation_key=KEY)]
)
def test_values_of_rounds_refuse_a_selection(value):
    algorithm = fs.selection.select(fs.fedavg(1.0), fs.selection.power_of_choice(2))
    with pytest.raises(
        ValueError, match="algorithm has a selection; expected none, since a round's coalitions"
    ):
        value(algorithm, estimation(), KEY, loss)


@pytest.mark.parametrize(
    "value", [valuation.fed_sv, lambda *run: valuation.gtg_shapley(*run, permutation_key=KEY)]
)
def test_values_of_rounds_refuse_statistics_that_clients_keep(value):
    """Visits move them in every coalition, so values did not sum to the fall of the metric."""
    algorithm = fs.running_statistics(fs.fedavg(1.0), lambda path, leaf: False, "private")
    with pytest.raises(ValueError, match="algorithm has running statistics that clients keep"):
        value(algorithm, estimation(), KEY, loss)


def test_fed_sv_refuses_other_rules_than_the_mean():
    algorithm = fs.robust.aggregate(fs.fedavg(0.5), fs.robust.median())
    with pytest.raises(ValueError, match="another rule than the mean"):
        valuation.fed_sv(algorithm, estimation(two_cohorts()), KEY, loss)


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm", [fs.scaffold(0.2), fs.fedadam(0.2, server_lr=0.1)], ids=["scaffold", "fedadam"]
)
def test_a_coalition_is_the_run_without_the_others(algorithm):
    """Also with momentum and states of clients, for every metric of the evaluation."""
    setup = logistic_setup()
    game = valuation.game(algorithm, setup, KEY, "loss")
    coalitions = np.array([[True] * 8, [False] * 8, [True, False] * 4, [False] * 6 + [True] * 2])
    values = {name: game.with_metric(name, "min").values(coalitions) for name in ("loss", "worst")}
    start = setup.eval_fn(setup.params)
    metrics = compiled(lambda setup: fs.run(algorithm, setup, KEY)[1].metrics)
    for i, members in enumerate(coalitions):
        mask = members[np.asarray(setup.timeline.clients)]
        timeline = dataclasses.replace(setup.timeline, mask=mask)
        one = dataclasses.replace(setup, timeline=timeline)
        final = metrics(one)
        for name, value in values.items():
            expected = float(start[name] - final[name][-1])
            assert value[i] == pytest.approx(expected, abs=2e-6)
    assert values["loss"][1] == 0


@pytest.mark.slow
def test_sum_of_rounds_is_the_total_of_the_run():
    """FedSV with a server that has momentum: efficiency holds for the algorithm's own update."""
    setup = logistic_setup()
    algorithm = fs.fedadam(0.2, server_lr=0.1)
    result = valuation.fed_sv(algorithm, setup, KEY, "loss")
    total = valuation.game(algorithm, setup, KEY, "loss").total()
    assert result.values.sum() == pytest.approx(total, abs=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_influence_against_finite_differences():
    setup = logistic_setup()
    algorithm = fs.fedadam(0.2, server_lr=0.1)
    result = valuation.influence(algorithm, setup, KEY, "loss", checkpoint=None)
    assert abs(result.values.sum()) < 1e-12

    @compiled
    def final_loss(factors, setup):
        weighting = lambda work: work.num_examples * 1.0 * factors[work.client]  # noqa: E731
        one = dataclasses.replace(setup, weighting=weighting)
        return fs.run(algorithm, one, KEY)[1].metrics["loss"][-1]

    with jax.numpy_dtype_promotion("standard"):
        step, ones = 1e-5, np.ones(len(SIZES))
        for client in (0, 1, 5):
            change = step * np.eye(len(SIZES))[client]
            slope = (final_loss(ones + change, setup) - final_loss(ones - change, setup)) / step / 2
            assert -slope == pytest.approx(result.values[client], rel=1e-6, abs=1e-10)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_example_influence_against_finite_differences():
    """Against a loss with the examples' weights written out."""
    setup, client = logistic_setup(), 3
    algorithm = fs.fedavg(0.2)
    result = valuation.example_influence(algorithm, setup, KEY, "loss", client, checkpoint=None)
    assert len(result.values) == SIZES[client]
    data = setup.task.oracle.args[0]
    first = int(data.offsets[client])

    def weighted(params, examples, key):
        return examples["e"] * logistic_losses(params, examples, key)

    start = {**data.examples, "e": np.ones(SIZES.sum())}
    task = fs.empirical_task(
        weighted, fs.FederatedData(start, np.asarray(data.offsets)), fs.epochs(2, 2)
    )

    @compiled
    def final_loss(weights):
        examples = {**data.examples, "e": weights}
        oracle = Partial(task.oracle.func, dataclasses.replace(data, examples=examples))
        one = dataclasses.replace(setup, task=dataclasses.replace(task, oracle=oracle))
        return fs.run(algorithm, one, KEY)[1].metrics["loss"][-1]

    step, ones = 1e-5, np.ones(SIZES.sum())
    for row in range(2):
        change = step * np.eye(len(ones))[first + row]
        slope = (final_loss(ones + change) - final_loss(ones - change)) / step / 2
        assert -slope == pytest.approx(result.values[row], rel=1e-6, abs=1e-10)


@pytest.mark.slow
def test_cohorts_drawn_from_the_coalition():
    """Every coalition has full cohorts, in an order that all coalitions share."""
    task = fs.Task(lambda *arguments: None, np.ones(6, int), np.arange(6))
    timeline = fs.timelines.uniform(jax.random.key(0), 9, 6, 2, task.num_steps)
    setup = fs.Setup(task, timeline, jnp.zeros(()))
    members = jnp.array([True, False, True, True, False, False])
    draw = compiled(lambda members: resampled(setup, members, jax.random.key(1)))
    drawn = draw(members)
    assert drawn.mask.all()
    assert set(np.unique(drawn.clients)) == {0, 2, 3}
    np.testing.assert_array_equal(drawn.num_steps, drawn.clients)  # of the clients drawn
    everyone = np.asarray(draw(jnp.ones(6, bool)).clients)
    kept = np.asarray(members)[everyone].all(axis=1)
    np.testing.assert_array_equal(np.asarray(drawn.clients)[kept], everyone[kept])
    alone = draw(jnp.arange(6) == 4)
    np.testing.assert_array_equal(alone.mask.sum(1), 1)
    # As many report as in the given timeline.
    counts = np.arange(9) % 3
    fewer = dataclasses.replace(timeline, mask=np.arange(2) < counts[:, None])
    some = resampled(dataclasses.replace(setup, timeline=fewer), members, jax.random.key(1))
    np.testing.assert_array_equal(some.mask.sum(1), counts)
    np.testing.assert_array_equal(some.clients, drawn.clients)


def test_drawn_cohorts_may_have_more_slots_than_clients():
    """The slots beyond the clients are empty in the timeline, and stay so."""
    timeline = fs.timelines.full(1, 4, np.ones(4, int))

    def wider(name):
        return np.pad(np.asarray(getattr(timeline, name)), ((0, 0), (0, 2)))

    fields = {name: wider(name) for name in ("clients", "version", "num_steps", "mask")}
    setup = estimation(dataclasses.replace(timeline, **fields))
    game = valuation.game(fs.fedavg(1.0), setup, KEY, loss, resample=KEY)
    coalitions = np.array([[True] * 4, [True, False, False, True]])
    # As in test_mean_estimation_by_retraining: models 3.5 and 4.
    np.testing.assert_allclose(game.values(coalitions), [4.375, 4.0], atol=1e-6)


@pytest.mark.slow
def test_examples_have_their_weights_in_means_of_outputs():
    """FedNTD's distillation is a mean over the examples, too; against weights written out."""

    def model(params, x):
        return x @ params

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5, 2)).astype(np.float32), np.array([0, 1, 2, 1, 0])
    data = fs.FederatedData({"x": x, "y": y}, np.array([0, 3, 5]))
    task = fs.empirical_task(fs.objectives.cross_entropy(model), data, fs.full_batch(2))
    params = jnp.asarray(rng.normal(size=(2, 3)).astype(np.float32))
    setup = fs.Setup(task, fs.timelines.full(1, 2, task.num_steps), params)

    def square(w):
        return (w**2).sum()

    algorithm = fs.fedntd(model, 0.5, weight=2.0)
    values = valuation.example_influence(algorithm, setup, KEY, square, 0, mode="min").values

    def final(weights):
        def client(rows, e):
            def total(w, received):
                logits, old = x[rows] @ w, x[rows] @ received
                own = jnp.arange(3) == y[rows, None]
                entropy = jax.nn.logsumexp(logits, 1) - jnp.where(own, logits, 0).sum(1)
                new, q = (jax.nn.log_softmax(jnp.where(own, -jnp.inf, z)) for z in (logits, old))
                terms = jnp.where(own, 0, jnp.exp(q) * (jnp.where(own, 0, q - new)))
                return (e * (entropy + 2.0 * terms.sum(1))).mean()

            w = params
            for _ in range(2):
                w = w - 0.5 * jax.grad(total)(w, params)
            return w

        return square((client(np.arange(3), weights) + client(np.arange(3, 5), jnp.ones(2))) / 2)

    np.testing.assert_allclose(values, -compiled(jax.grad(final))(jnp.ones(3)), rtol=1e-4)


def test_drawn_cohorts_have_no_lost_uploads():
    """A slot is given to another client, so the numbers of lost uploads would change, too."""
    timeline = fs.timelines.full(1, 4, np.ones(4, int))
    lost = np.arange(4)[None] == 3
    failing = estimation(dataclasses.replace(timeline, lost=lost, mask=np.arange(4)[None] > 0))
    with pytest.raises(ValueError, match=r"timeline\.lost has 1 lost uploads; expected none"):
        valuation.game(fs.fedavg(1.0), failing, KEY, loss, mode="min", resample=KEY)


@pytest.mark.slow
def test_bad_arguments():
    setup, algorithm = estimation(), fs.fedavg(1.0)
    call = valuation.game
    several = {"loss": loss, "all": lambda x: jnp.stack([x, x])}
    named = dataclasses.replace(
        setup, eval_fn=lambda x: {name: metric(x) for name, metric in several.items()}
    )
    for name in ("acc", "all"):  # only single numbers are metrics
        with pytest.raises(ValueError, match=f"metric is '{name}'; expected one of loss"):
            call(algorithm, named, KEY, name, mode="max")
    with pytest.raises(ValueError, match=r"setup\.eval_fn None; expected an evaluation"):
        call(algorithm, setup, KEY, "loss")
    with pytest.raises(ValueError, match="mode is None; expected 'min' or 'max' for a metric"):
        call(algorithm, setup, KEY, lambda x: x)
    with pytest.raises(ValueError, match="mode is 'least'"):
        call(algorithm, setup, KEY, loss, mode="least")
    with pytest.raises(ValueError, match="width is 0"):
        call(algorithm, setup, KEY, loss, width=0)
    with pytest.raises(ValueError, match="every 2 rounds; expected the last round, 1"):
        call(
            algorithm,
            dataclasses.replace(setup, eval_fn=fs.evaluation.at_rounds(lambda x: {"loss": x}, 2)),
            KEY,
            "loss",
        )
    with pytest.raises(ValueError, match="all clients"):
        call(fs.marina(algorithm, fs.compression.random_k(1), 0.5), setup, KEY, loss)
    with pytest.raises(ValueError, match="memory is 1 bytes per device; expected at least"):
        call(algorithm, setup, KEY, loss, memory=1).total()
    stale = estimation(dataclasses.replace(setup.timeline, max_staleness=1))
    with pytest.raises(ValueError, match="staleness of up to 1"):
        call(algorithm, stale, KEY, loss, resample=KEY)
    fewer = estimation(dataclasses.replace(setup.timeline, num_steps=np.zeros((1, 4), int)))
    with pytest.raises(ValueError, match=r"task\.num_steps; expected the clients' own numbers"):
        call(algorithm, fewer, KEY, loss, resample=KEY)
    zero = dataclasses.replace(setup, weighting=lambda work: work.client != 2)
    with pytest.raises(ValueError, match="weighting is 0 for client 2; expected positive"):
        valuation.influence(algorithm, zero, KEY, loss)
    with pytest.raises(ValueError, match=r"client is 9; expected 0 \.\. 3"):
        valuation.example_influence(algorithm, setup, KEY, loss, 9)
    shared = fs.shared_task(losses, {"c": CENTRES}, 4, fs.full_batch(1))
    with pytest.raises(ValueError, match="no rows of its clients on the device"):
        valuation.example_influence(
            algorithm, dataclasses.replace(setup, task=shared), KEY, loss, 0
        )


@pytest.mark.slow
def test_other_ways_to_run_coalitions_agree():
    """One after the other for a kernel; drawn cohorts of everyone; clients on devices."""

    def kernel_losses(x, examples, key):
        return losses(x.sum(), examples, key)

    setup = estimation()
    coalitions = np.array([[True, False, False, True], [True] * 4, [False, True, False, False]])
    expected = -((np.array([4.0, 3.5, 2.0]) - 3) ** 2) / 2 + 4.5
    call = valuation.game
    everyone = call(fs.fedavg(1.0), setup, KEY, loss, resample=jax.random.key(3))
    np.testing.assert_allclose(everyone.values(coalitions), expected, atol=1e-6)
    data = fs.FederatedData({"c": CENTRES}, np.arange(5))
    batches = fs.full_batch(1)
    task = fs.empirical_task(kernel_losses, data, batches)
    kernel = dataclasses.replace(setup, task=task, params=jnp.zeros((1, 1, 1, 1)))
    in_turn = call(fs.fedavg(1.0), kernel, KEY, lambda x: loss(x.sum()), mode="min")
    np.testing.assert_allclose(in_turn.values(coalitions), expected, atol=1e-6)
    mesh = jax.make_mesh((2,), ("clients",))
    task = fs.empirical_task(losses, data, batches, placement=fs.execution.by_client(4, mesh))
    timeline = fs.timelines.arrange_by_stratum(setup.timeline, 4, 2)
    placed_setup = dataclasses.replace(setup, task=task, timeline=timeline)
    placed = call(fs.fedavg(1.0), placed_setup, KEY, loss)
    np.testing.assert_allclose(placed.values(coalitions), expected, atol=1e-6)
    with pytest.raises(ValueError, match="placed on devices by client; expected a task without"):
        call(fs.fedavg(1.0), placed_setup, KEY, loss, resample=KEY)
