"""Algorithms with a robust rule in the engine: executions, timelines, sweeps, checks, identity."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import robust_rules as derived
from jax.tree_util import Partial
from resumed_runs import check_stopped_runs
from small_problems import (
    KEY,
    NUM_CLIENTS,
    assert_close,
    assert_identical,
    compiled,
    logistic_data,
    logistic_losses,
    logistic_params,
    logistic_task,
    partial_timeline,
    quadratic_task,
    stale_timeline,
)
from traced import digest_of

import fedjax_sim as fs
from fedjax_sim import robust
from fedjax_sim.engine.execution import placement, strategies
from fedjax_sim.types import Stack

pytestmark = pytest.mark.usefixtures("x64")

RULES = {
    "median": robust.median(),
    "mixed krum": robust.bucketing(robust.nnm(robust.krum(0), f=1)),
    "clipping": robust.centred_clipping(0.3),
}
CENTRES = np.array([[1.0, 2.0], [0.0, 1.0], [2.0, 0.5], [40.0, -30.0], [1.5, 1.0], [0.5, 3.0]])


def quadratic(num_clients=6):
    """F_i(x) = |x - c_i|^2 / 2: with rate 1 a client uploads x - c_i after one step."""
    return quadratic_task(np.stack([np.eye(2)] * num_clients), CENTRES[:num_clients], 1)


def wide_setup():
    """A thousand parameters, six clients."""

    def oracle(client, key, max_steps):
        del client, key, max_steps
        return fs.Oracle(lambda x, k: x - 1, lambda x, k: x.sum(), lambda x: x - 1)

    task = fs.Task(oracle, np.ones(6, np.int32), np.ones(6, np.int32))
    return fs.Setup(task, fs.timelines.full(2, 6, 1), jnp.zeros(1000))


def _oracle_of(centres, client, key, max_steps):
    del key, max_steps
    centre = centres[client]
    return fs.Oracle(lambda x, k: x - centre, lambda x, k: x.sum(), lambda x: x - centre)


def final(algorithm, setup, **options):
    return compiled(lambda setup: fs.run(algorithm, setup, KEY, **options)[0])(setup)


def setup_of(timeline, **options):
    return fs.Setup(quadratic(), timeline, jnp.zeros(2), **options)


def masked(timeline, mask):
    return dataclasses.replace(timeline, mask=np.broadcast_to(mask, timeline.mask.shape))


def test_a_server_takes_the_rule_of_the_uploads():
    """Three rounds of FedAvg with the median, with an empty slot, against NumPy."""
    present = np.arange(6) != 1
    timeline = masked(fs.timelines.full(3, 6, 1), present)
    algorithm = robust.aggregate(fs.fedavg(0.5), robust.median())
    x = np.zeros(2)
    for _ in range(3):
        x = x - derived.median(0.5 * (x - CENTRES[present]))
    assert_close(final(algorithm, setup_of(timeline)).server.params, x, 1e-12)


def test_lost_uploads_do_not_exist_for_a_rule():
    full = fs.timelines.full(2, 6, 1)
    lost = dataclasses.replace(full, lost=np.broadcast_to(np.arange(6) == 3, (2, 6)))
    absent = masked(full, np.arange(6) != 3)
    algorithm = robust.aggregate(fs.fedavg(0.5), robust.trimmed_mean(1))
    runs = [final(algorithm, setup_of(timeline)).server for timeline in (lost, absent)]
    assert_identical(*runs)


@pytest.mark.parametrize("iterations", [1, 2])
def test_centred_clipping_remembers_the_previous_aggregate(iterations):
    algorithm = robust.aggregate(fs.fedavg(0.5), robust.centred_clipping(0.7, iterations))
    timeline = fs.timelines.full(4, 6, 1)
    weights = np.array([1.0, 2.0, 3.0, 1.0, 1.0, 2.0])
    x, v = np.zeros(2), np.zeros(2)
    for _ in range(4):
        v = derived.centred_clipping(0.5 * (x - CENTRES), v, 0.7, iterations, weights)
        x = x - v
    task = dataclasses.replace(quadratic(), num_examples=weights.astype(int))
    setup = fs.Setup(task, timeline, jnp.zeros(2), weighting=fs.weight_by_examples)
    state = final(algorithm, setup).server
    assert_close((state.params, state.aggregate), (x, v), 1e-12)


@pytest.mark.parametrize("iterations", [1, 2])
def test_clipping_leaves_out_an_upload_that_is_not_finite(iterations):
    """As if the client were absent, as a mean of clipped uploads and from a stack."""
    algorithm = robust.aggregate(fs.fedavg(0.5), robust.centred_clipping(0.7, iterations))
    timeline = fs.timelines.full(2, 6, 1)
    broken = np.where(np.arange(6)[:, None] == 3, np.inf, CENTRES)
    oracle = Partial(_oracle_of, jnp.asarray(broken))  # without 0 x inf
    task = dataclasses.replace(quadratic(), oracle=oracle)
    infinite = final(algorithm, fs.Setup(task, timeline, jnp.zeros(2)))
    absent = final(algorithm, setup_of(masked(timeline, np.arange(6) != 3)))
    assert_close(infinite.server, absent.server, 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_executions_agree(name):
    """Chunks, devices, and clients that are stored by device, on a stateful algorithm."""
    algorithm = robust.aggregate(fs.scaffold(0.1), RULES[name])
    mesh = jax.make_mesh((4,), ("clients",))
    task, params = logistic_task(), logistic_params()
    timeline = fs.timelines.full(2, NUM_CLIENTS, task.num_steps)
    setup = fs.Setup(task, timeline, params)
    expected = final(algorithm, setup, execution=strategies.vmapped())
    for execution in (strategies.chunked(3), strategies.sharded(mesh)):
        assert_close(final(algorithm, setup, execution=execution), expected, 1e-12)
    placed = fs.empirical_task(
        logistic_losses,
        logistic_data(),
        fs.epochs(2, 2),
        placement=placement.by_client(NUM_CLIENTS, mesh),
    )
    divided = final(algorithm, dataclasses.replace(setup, task=placed))
    assert_close(divided.server, expected.server, 1e-12)


def test_clipping_once_has_no_stack():
    """One iteration needs the memory of a chunk: no array has a row per slot and parameter."""
    setup = wide_setup()

    def shapes(rule):
        algorithm = robust.aggregate(fs.fedavg(0.5), rule)
        run = jax.jit(lambda s: fs.run(algorithm, s, KEY, execution=strategies.sequential())[0])
        return "6x1000xf64" in run.lower(setup).as_text()

    assert not shapes(robust.centred_clipping(0.3))
    assert shapes(robust.centred_clipping(0.3, iterations=2))


@pytest.mark.slow
@pytest.mark.parametrize("timeline", [partial_timeline, stale_timeline])
def test_a_stacked_algorithm_is_the_algorithm(timeline):
    """Weighted means of stacks, also of transformed uploads, on masked and stale timelines."""
    task, params = logistic_task(), logistic_params()
    setup = fs.Setup(task, timeline(), params, weighting=fs.weight_by_examples)
    clipped = robust.aggregate(fs.scaffold(0.1), robust.centred_clipping(0.3))
    algorithm = fs.average_rounds(clipped)
    stacked = robust.stacked(algorithm)
    assert_close(final(stacked, setup), final(algorithm, setup), 1e-12)
    assert robust.stacked(stacked) is stacked


def test_bucketing_draws_by_client_and_round():
    """Neither the order of slots nor empty slots change the buckets; rounds do."""
    uploads = jnp.asarray(np.random.default_rng(0).normal(size=(8, 3)))
    order = np.random.default_rng(1).permutation(8)
    rule = robust.bucketing(robust.median())

    @compiled
    def draw(stack, key):
        points = robust.aggregation.points_of(stack)
        return rule.aggregate(points, (), key)

    keys = jax.random.split(jax.random.key(0))
    clients, present = jnp.arange(8, dtype=jnp.int32), jnp.arange(8) < 6
    first = draw(Stack(uploads, None, present, clients), keys[0])
    moved = draw(Stack(uploads[order], None, present[order], clients[order]), keys[0])
    assert_close(moved, first, 1e-15)
    assert (draw(Stack(uploads, None, present, clients), keys[1]) != first).any()


def test_too_few_uploads_are_refused_before_compilation():
    krum = robust.aggregate(fs.fedavg(0.5), robust.krum(1))
    short = fs.timelines.full(3, 4, 1)
    with pytest.raises(ValueError, match=r"timeline has 4 slots; expected at least 5, .*krum"):
        fs.init(krum, setup_of(short))
    mask = np.ones((3, 6), bool)
    mask[1, :2] = False
    mask[2] = False  # an empty round changes nothing anyway
    small = masked(fs.timelines.full(3, 6, 1), mask)
    message = r"timeline has 4 uploads in round 1; expected at least 5, which krum\(f=1\) requires"
    with pytest.raises(ValueError, match=message):
        fs.init(krum, setup_of(small))
    seeds = jax.tree.map(lambda *x: np.stack(x), fs.timelines.full(3, 6, 1), small)
    with pytest.raises(ValueError, match="4 uploads in round 1 of seed 1"):
        robust.aggregation.check_counts(robust.krum(1), seeds)
    skipping = robust.aggregate(fs.fedavg(0.5), robust.krum(1), skip_small_rounds=True)
    state = final(skipping, setup_of(small)).server.params
    once = final(skipping, setup_of(fs.timelines.full(1, 6, 1))).server.params
    assert_identical(state, once)
    with pytest.raises(ValueError, match="4 uploads in round 0; expected at least 5"):
        fs.init(skipping, setup_of(masked(fs.timelines.full(2, 6, 1), mask[1:])))


def test_weights_are_refused_where_a_rule_takes_none():
    timeline = fs.timelines.full(1, 6, 1)
    setup = setup_of(timeline, weighting=fs.weight_by_examples)
    taking = [
        robust.mean(), robust.median(), robust.geometric_median(), robust.centred_clipping(),
        robust.bucketing(robust.krum(0)),
    ]  # fmt: skip
    for rule in taking:
        fs.init(robust.aggregate(fs.fedavg(0.5), rule), setup)
    for rule in (
        robust.trimmed_mean(1), robust.krum(1), robust.multi_krum(1), robust.bulyan(0),
        robust.nnm(robust.median(), 1),
    ):  # fmt: skip
        message = "weighting is weight_by_examples; expected uniform_weights: .* equal weights"
        with pytest.raises(ValueError, match=message):
            fs.init(robust.aggregate(fs.fedavg(0.5), rule), setup)


def test_what_cannot_be_combined_is_refused():
    aggregated = robust.aggregate(fs.fedavg(0.5), robust.median())
    with pytest.raises(ValueError, match="rule is 'median'; expected a robust"):
        robust.aggregate(fs.fedavg(0.1), "median")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="algorithm has a robust rule already"):
        robust.aggregate(aggregated, robust.median())
    gathered = strategies.gathered(lambda uploads, weights: uploads[0])
    with pytest.raises(ValueError, match=r"execution is gathered\(...\); expected a strategy with"):
        fs.run(aggregated, setup_of(fs.timelines.full(1, 6, 1)), KEY, execution=gathered)
    codec = fs.compression.top_k(1)
    for name, wrap in {
        "skip_nonfinite": fs.skip_nonfinite,
        "running_statistics": lambda a: fs.running_statistics(a, lambda path, leaf: False),
        "ef21": lambda a: fs.ef21(a, codec),
        "marina": lambda a: fs.marina(a, fs.compression.random_k(1), 0.5),
    }.items():
        with pytest.raises(ValueError, match=f"than the mean.* around ({name}|the wrapper)"):
            print(name, wrap(aggregated))
    needs_data = fs.fedavg(0.5)._replace(local=lambda m, s, oracle, work: (oracle.extra, s))
    with pytest.raises(ValueError, match="uploads whose shapes need a task"):
        robust.aggregate(needs_data, robust.centred_clipping()).init(jnp.zeros(2))


@pytest.mark.slow
def test_a_sweep_over_rules_and_radii():
    """Rules are static hyper-parameters; radii are traced ones, all in one program."""
    setup = setup_of(fs.timelines.full(3, 6, 1), eval_fn=lambda x: {"a": x[0], "b": x[1]})

    def factory(tau, iterations: int):
        rule = robust.centred_clipping(tau, iterations)
        return robust.aggregate(fs.fedavg(0.5), rule)

    batched = dataclasses.replace(setup, params=jnp.zeros((1, 2)))
    grid = {"tau": [0.3, 0.7, 5.0], "iterations": [1, 2]}
    result = fs.sweep(factory, batched, grid, KEY[None])
    assert (len(result.runs), result.compilations) == (6, 2)
    for run in (result.runs[1], result.runs[4]):
        single = final(factory(**run.configuration), setup)
        last = [run.history.metrics[name][-1] for name in ("a", "b")]
        assert_close(np.array(last), single.server.params, 1e-12)


def test_the_rule_identifies_a_run():
    plain = fs.fedavg(0.5)
    algorithms = [
        plain,
        robust.stacked(plain),
        robust.aggregate(plain, robust.median()),
        robust.aggregate(plain, robust.trimmed_mean(1)),
        robust.aggregate(plain, robust.trimmed_mean(2)),
        robust.aggregate(plain, robust.nnm(robust.trimmed_mean(2))),
        robust.aggregate(plain, robust.bucketing(robust.trimmed_mean(2))),
        robust.aggregate(plain, robust.bucketing(robust.trimmed_mean(2), size=3)),
        robust.aggregate(plain, robust.centred_clipping(1.0)),
        robust.aggregate(plain, robust.centred_clipping(2.0)),
        robust.aggregate(plain, robust.trimmed_mean(1), skip_small_rounds=True),
    ]
    digests = [digest_of(algorithm) for algorithm in algorithms]
    assert len(set(digests)) == len(digests)
    again = robust.aggregate(fs.fedavg(0.5), robust.trimmed_mean(1))
    assert digest_of(again) == digests[3]


@pytest.mark.slow
def test_a_forecast_has_the_stack():
    setup = wide_setup()

    def uploads(algorithm):
        parts = fs.forecast(algorithm, setup, KEY, measure=False).parts
        assert parts["temporaries"] >= 0
        return parts.get("uploads", 0)

    stack = 6 * 1000 * 8
    assert uploads(fs.fedavg(0.5)) == 0
    assert uploads(robust.stacked(fs.fedavg(0.5))) == stack
    assert uploads(robust.aggregate(fs.fedavg(0.5), robust.median())) == stack
    assert uploads(robust.aggregate(fs.fedavg(0.5), robust.krum(1))) == stack + 6 * 6 * 8
    assert uploads(robust.aggregate(fs.fedavg(0.5), robust.centred_clipping())) == 0


def test_worker_momentum_moves_at_visits_only():
    mask = np.array([[True] * 6, [True, False] * 3, [True] * 6])
    timeline = masked(fs.timelines.full(3, 6, 1), mask)
    algorithm = robust.worker_momentum(fs.fedavg(0.5), beta=0.75)
    x, m = np.zeros(2), np.zeros((6, 2))
    for present in mask:
        m[present] = 0.75 * m[present] + 0.25 * 0.5 * (x - CENTRES[present])
        x = x - m[present].mean(axis=0)
    state = final(algorithm, setup_of(timeline))
    assert_close((state.server.params, state.clients.memory), (x, m), 1e-12)
    with pytest.raises(ValueError, match=r"beta is 1\.5; expected at most 1"):
        robust.worker_momentum(fs.fedavg(0.5), beta=1.5)


@pytest.mark.parametrize("iterations", [0, 4])
def test_derivatives_of_the_geometric_median_at_an_upload(iterations):
    """The distance has no derivative at 0; there it counts as constant."""
    x = jnp.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]])  # the mean is the last upload
    rule = robust.geometric_median(iterations, nu=0.5)

    @compiled
    def slope(scale):
        stack = Stack(scale * x + scale, None, jnp.ones(3, bool), jnp.arange(3))
        points = robust.aggregation.points_of(stack)
        return jax.grad(lambda s: rule.aggregate(points._replace(x=s * x + s), (), KEY).sum())(
            scale
        )

    np.testing.assert_allclose(slope(1.0), 2.0, atol=1e-12)


# ---- simulated runs


@pytest.mark.slow
def test_the_previous_aggregate_survives_a_checkpoint(tmp_path):
    with jax.enable_x64(False):
        rule = robust.centred_clipping(0.05, iterations=2)
        algorithm = robust.aggregate(robust.worker_momentum(fs.fedavg(0.05)), rule)
        check_stopped_runs(algorithm, tmp_path)
