"""Gossip algorithms and hierarchical FedAvg: NumPy derivations, identities, the papers' claims."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_problems import (
    NUM_CLIENTS,
    SIZES,
    assert_close,
    logistic_data,
    logistic_losses,
    logistic_params,
    logistic_task,
    quadratic_task,
    random_quadratics,
    recorded_rounds,
    rotated,
    run,
)

import fedjax_sim as fs
from fedjax_sim import topologies
from fedjax_sim.runs.history import Clock
from fedjax_sim.runs.storage.outcome import Outcome, describe

pytestmark = pytest.mark.usefixtures("x64")

TOLERANCE = 1e-11  # double precision, four rounds of at most five steps
LR = 0.2
KEY = jax.random.key(2)
M = NUM_CLIENTS
DIRECTED = topologies.directed(M, [(i, (i + 1) % M) for i in range(M)] + [(0, 4), (1, 6), (0, 2)])


def timeline(num_rounds=4):
    """All clients in another order per round, with equal numbers of steps in each round."""
    full = fs.timelines.full(num_rounds, M, 5)
    steps = np.broadcast_to(np.resize([3, 5, 2, 4], num_rounds)[:, None], (num_rounds, M))
    clients = np.random.default_rng(3).permuted(np.asarray(full.clients), axis=1)
    return dataclasses.replace(full, clients=clients, num_steps=jnp.asarray(steps, jnp.int32))


def flat(params):
    return np.concatenate([params["w"], np.asarray(params["b"])[..., None]], axis=-1)


def gradient(model, weights):
    """Gradient of the weighted sum of the examples' logistic losses."""
    data = logistic_data().examples
    features = np.column_stack([data["x"], np.ones(len(data["y"]))])
    probabilities = 1 / (1 + np.exp(-features @ model))
    return features.T @ (weights * (probabilities - data["y"]))


def visits(given=None):
    """[[batches of client 0, of client 1, ...] of every round]."""
    rounds = recorded_rounds(SIZES, rotated(2), given or timeline(), KEY)
    return [[batches for _, batches in sorted(one, key=lambda visit: visit[0])] for one in rounds]


def at_one_point(models, batches):
    """Every client's mean over its minibatches' gradients at its model."""
    return np.stack(
        [
            np.mean([gradient(x, b) for b in own], axis=0)
            for x, own in zip(models, batches, strict=True)
        ]
    )


def final(algorithm, given=None, **fields):
    task = logistic_task(rotated(2))
    setup = fs.Setup(task, given or timeline(), logistic_params(), **fields)
    return run(algorithm, setup, KEY)[0]


def starts():
    return np.tile(flat(logistic_params()), (M, 1))


# ---- derivations: loops over rounds and clients, from the papers


def by_d_psgd(matrices):
    x = starts()
    for t, batches in enumerate(visits()):
        x = matrices[t % len(matrices)] @ x - LR * at_one_point(x, batches)
    return x


def by_dfedavgm(matrices, momentum=0.6):
    x = starts()
    for t, batches in enumerate(visits()):
        z = []
        for start, own in zip(x, batches, strict=True):
            y = before = start
            for b in own:
                y, before = y - LR * gradient(y, b) + momentum * (y - before), y
            z.append(y)
        x = matrices[t % len(matrices)] @ np.stack(z)
    return x


def by_gradient_tracking(matrices):
    x, rounds = starts(), visits()
    y = g = at_one_point(x, rounds[0])
    for t, batches in enumerate([*rounds[1:], None]):
        w = matrices[t % len(matrices)]
        x = w @ (x - LR * y)
        if batches is not None:
            new = at_one_point(x, batches)
            y, g = w @ y + new - g, new
    return x


def by_d2(matrices):
    [w], rounds = matrices, visits()
    x = starts()
    g = at_one_point(x, rounds[0])
    last, x = x, w @ (x - LR * g)
    for batches in rounds[1:]:
        new = at_one_point(x, batches)
        last, x, g = x, w @ (2 * x - last - LR * new + LR * g), new
    return x


def by_sgp(matrices):
    x, w = starts(), np.ones(M)
    for t, batches in enumerate(visits()):
        p = matrices[t % len(matrices)]
        half = x - LR * at_one_point(x / w[:, None], batches)
        x, w = p @ half, p @ w
    return x


CASES = {
    "d_psgd": (topologies.d_psgd, by_d_psgd, topologies.random_matching(M, 3)),
    "d_psgd, dense": (topologies.d_psgd, by_d_psgd, topologies.complete(M).lazy(0.2)),
    "dfedavgm": (
        lambda lr, graph: topologies.dfedavgm(lr, graph, 0.6), by_dfedavgm, topologies.ring(M),
    ),
    "gradient_tracking": (
        topologies.gradient_tracking, by_gradient_tracking, topologies.one_peer_exponential(M),
    ),
    "d2": (topologies.d2, by_d2, topologies.ring(M).lazy(0.2)),
    "sgp": (topologies.sgp, by_sgp, DIRECTED),
    "sgp, in time": (
        topologies.sgp, by_sgp, topologies.alternate(DIRECTED, topologies.exponential(M)),
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if "," in n else n for n in CASES]
)
def test_derivations(name):
    make, derive, topology = CASES[name]
    server = final(make(LR, topology)).server
    expected = derive(topology.matrices())
    assert_close(flat(server.models), expected, TOLERANCE)
    assert_close(flat(server.params), expected.mean(0), TOLERANCE)


@pytest.mark.slow
def test_schedules_of_rates_are_those_of_the_round_of_the_gradient():
    """D2 subtracts what it added in the round before, at the rate of that round."""
    topology, rates = topologies.ring(M).lazy(0.2), 0.3 * 0.8 ** np.arange(4)
    w, x, last = topology.matrices()[0], starts(), starts()
    for lr, batches in zip(rates, visits(), strict=True):
        new = x - lr * at_one_point(x, batches)
        x, last = w @ (new + x - last), new
    algorithm = topologies.d2(fs.local.exponential_decay(0.3, 0.8), topology)
    assert_close(flat(final(algorithm).server.models), x, TOLERANCE)


# ---- identities


def one_step():
    return dataclasses.replace(timeline(), num_steps=jnp.ones((4, M), jnp.int32))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "central", "rounds"),
    [
        (lambda lr, w: topologies.dfedavgm(lr, w, 0.0), fs.fedavg, timeline),
        (topologies.gradient_tracking, fs.fedsgd, one_step),
        (topologies.d2, fs.fedsgd, one_step),
        (topologies.sgp, fs.fedsgd, one_step),
    ],
)
def test_the_complete_graph_is_a_server(make, central, rounds):
    """To rounding: the sums have another order, and FedAvg subtracts the mean change."""
    expected = final(central(LR), rounds()).server.params
    server = final(make(LR, topologies.complete(M)), rounds()).server
    assert_close(server.params, expected, 1e-14)
    assert_close(jax.tree.map(lambda x: x[3], server.models), expected, 1e-14)


@pytest.mark.slow
def test_relabelled_clients_on_the_relabelled_graph():
    """The models follow their clients, one example per client and no draws."""
    order = np.array([5, 2, 7, 0, 3, 6, 1, 4])
    data = [
        jax.tree.map(lambda x: np.repeat(x[:1], 3, axis=0), logistic_data().client(i))
        for i in range(M)
    ]
    matrix = DIRECTED.matrices()[0]
    models = []
    for clients, w in [(data, matrix), ([data[i] for i in order], matrix[np.ix_(order, order)])]:
        task = fs.empirical_task(logistic_losses, fs.from_clients(clients), rotated(2))
        setup = fs.Setup(task, timeline(), logistic_params())
        models.append(run(topologies.sgp(LR, topologies.from_matrix(w)), setup, KEY)[0].server)
    assert_close(flat(models[1].models), flat(models[0].models)[order], 1e-14)


@pytest.mark.slow
def test_lazy_share_varies_in_one_sweep():
    """Traced weights: each run of the sweep equals its own with numbers, to rounding."""

    def make(share):
        return topologies.d_psgd(LR, topologies.ring(M).lazy(share))

    entries = jax.tree_util.Partial(lambda params: {"b": params["b"], "w": params["w"].sum()})
    params = jax.tree.map(lambda x: x[None], logistic_params())
    setup = fs.Setup(logistic_task(rotated(2)), timeline(), params, entries, eval_every=4)
    result = fs.sweep(make, setup, {"share": [0.1, 0.5]}, jnp.stack([KEY]))
    found = result.to_frame().set_index(["share", "metric"])["value"]
    for share in [0.1, 0.5]:
        for name, expected in entries(final(make(share)).server.params).items():
            assert found[share, name] == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("weighting", [fs.uniform_weights, fs.weight_by_examples])
@pytest.mark.parametrize(("edges", "period"), [(np.arange(M) // 3, 1), (np.zeros(M, int), 3)])
def test_hierarchies_that_are_fedavg(edges, period, weighting):
    """A cloud in every round, or one edge; also with some of the clients, to rounding."""
    steps = rotated(2).num_steps(SIZES)
    some = fs.timelines.uniform(jax.random.key(1), 4, M, 5, steps)
    expected = final(fs.fedavg(LR), some, weighting=weighting).server.params
    algorithm = topologies.hier_fedavg(LR, edges, period)
    server = final(algorithm, some, weighting=weighting).server
    assert_close(server.params, expected, 1e-14)


@pytest.mark.parametrize("period", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_hierarchical_fedavg(period):
    """Liu et al., 2020, Algorithm 1, with the examples as weights and some clients absent."""
    edges = np.array([0, 1, 2, 0, 1, 2, 0, 0])
    mask = np.ones((4, M), bool)
    mask[1, [1, 4]] = False  # edge 1 has no reports
    mask[2, [0, 5]] = False
    some = dataclasses.replace(timeline(), mask=jnp.asarray(mask))
    x = np.tile(flat(logistic_params()), (3, 1))
    counted = np.zeros(3)
    for t, reports in enumerate(recorded_rounds(SIZES, rotated(2), some, KEY)):
        new, count = np.zeros_like(x), np.zeros(3)
        for client, batches in reports:
            y = x[edges[client]]
            for b in batches:
                y = y - LR * gradient(y, b)
            new[edges[client]] += SIZES[client] * y
            count[edges[client]] += SIZES[client]
        x[count > 0] = new[count > 0] / count[count > 0, None]
        counted += count
        cloud = counted @ x / counted.sum()
        if (t + 1) % period == 0:
            x, counted = np.tile(cloud, (3, 1)), np.zeros(3)
    algorithm = topologies.hier_fedavg(LR, edges, period)
    server = final(algorithm, some, weighting=fs.weight_by_examples).server
    actual = flat(server.params), flat(server.edges), server.weights
    assert_close(actual, (cloud, x, counted), TOLERANCE)


# ---- claims, on quadratics of different clients with full gradients

COUNT, DIM = 6, 3
HESSIANS, CENTRES = random_quadratics(COUNT, DIM)
OPTIMUM = np.linalg.solve(HESSIANS.sum(0), np.einsum("mij,mj->i", HESSIANS, CENTRES))


def models_after(algorithm, num_rounds):
    task = quadratic_task(HESSIANS, CENTRES, 1)
    setup = fs.Setup(task, fs.timelines.full(num_rounds, COUNT, 1), jnp.zeros(DIM))
    return np.asarray(run(algorithm, setup, KEY)[0].server.models)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda: topologies.gradient_tracking(0.1, topologies.ring(COUNT)),
        lambda: topologies.gradient_tracking(0.1, topologies.random_matching(COUNT, 7)),
        lambda: topologies.gradient_tracking(0.1, topologies.exponential(COUNT)),
        lambda: topologies.d2(0.1, topologies.ring(COUNT).lazy(0.1)),
    ],
)
def test_corrected_methods_reach_the_optimum(make):
    """Nedic et al., 2017, Theorem 3.14, and Tang et al., 2018, Corollary 3: linear convergence."""
    models = models_after(make(), 700)
    assert np.abs(models - OPTIMUM).max() < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("lr", [0.1, 0.02])
def test_d_psgd_stops_where_its_fixed_point_is(lr):
    """(I - W) X = -lr A (X - B), which is not the optimum; proportional to the rate."""
    w = topologies.ring(COUNT).matrices()[0]
    blocks = np.zeros((COUNT, DIM, COUNT, DIM))
    for i in range(COUNT):
        blocks[i, :, i, :] = lr * HESSIANS[i]
    system = np.kron(np.eye(COUNT) - w, np.eye(DIM)) + blocks.reshape(COUNT * DIM, -1)
    right = lr * np.einsum("mij,mj->mi", HESSIANS, CENTRES).ravel()
    limit = np.linalg.solve(system, right).reshape(COUNT, DIM)
    models = models_after(topologies.d_psgd(lr, topologies.ring(COUNT)), round(70 / lr))
    np.testing.assert_allclose(models, limit, rtol=0, atol=1e-10)
    distance = np.abs(models - OPTIMUM).max()
    assert 0.3 * lr < distance < 10 * lr  # a bias of the rate's order, with room for constants


@pytest.mark.slow
def test_push_sum_averages_on_a_directed_graph_where_mixing_does_not():
    """Assran et al., 2019, section 2: z converges to the mean of the start, x does not."""
    algorithm = topologies.sgp(0.0, DIRECTED)
    setup = fs.Setup(logistic_task(), timeline(200), logistic_params())
    state = fs.init(algorithm, setup)
    rng = np.random.default_rng(0)
    models = {"w": jnp.asarray(rng.normal(size=(M, 3))), "b": jnp.asarray(rng.normal(size=M))}
    state = state._replace(server=state.server._replace(models=models))
    server = fs.advance(algorithm, setup, state, KEY)[0].server
    mean = flat(models).mean(0)
    z = flat(server.models) / np.asarray(server.mixed)[:, None]
    assert_close(z, np.tile(mean, (M, 1)), 1e-10)
    assert np.abs(flat(server.models) - mean).max() > 0.1 * np.abs(mean).max()
    message = algorithm.broadcast(server, fs.Round(jnp.array(0), jnp.array(M), M, KEY))
    work = fs.Work(*jnp.arange(5), KEY, max_steps=4)
    own = algorithm.personal(message, (), None, work)
    np.testing.assert_allclose(flat(own), z[1], rtol=1e-14)


# ---- communication


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        topologies.d_psgd,
        lambda lr, graph: topologies.dfedavgm(lr, graph, 0.0),
        topologies.gradient_tracking,
        lambda lr, graph: topologies.d2(lr, graph.lazy(0.2)),
        topologies.sgp,
    ],
)
@pytest.mark.parametrize("wrap", [lambda a: a, fs.average_rounds], ids=["alone", "averaged"])
def test_lattices_decode_near_the_models_of_the_network(make, wrap):
    """Models far beyond the radius of the codes, 3.3 around 0: within the cells of those sent."""
    task = quadratic_task(HESSIANS, CENTRES + 50, 1)
    setup = fs.Setup(task, fs.timelines.full(30, COUNT, 1), jnp.full(DIM, 50.0))
    algorithm = make(0.05, topologies.ring(COUNT))
    expected = run(wrap(algorithm), setup, KEY)[0].server.params
    codes = fs.compressed(wrap(algorithm), fs.compression.lattice(16, 1e-4))
    assert np.abs(expected).max() > 40
    np.testing.assert_allclose(run(codes, setup, KEY)[0].server.params, expected, atol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        # The model has 4 numbers of 32 bits.
        (lambda: topologies.d_psgd(LR, topologies.ring(M)), 2 * 128),
        (lambda: topologies.dfedavgm(LR, topologies.torus(2, 4)), 3 * 128),
        (lambda: topologies.gradient_tracking(LR, topologies.exponential(M)), 3 * 256),
        (lambda: topologies.d2(LR, topologies.complete(M)), 7 * 128),
        (lambda: topologies.d_psgd(LR, topologies.random_matching(M, 5)), 128),
        # 11 links of 8 clients, with the weight of push-sum: 11 * 160 / 8.
        (lambda: topologies.sgp(LR, DIRECTED), 220),
        # 4 bits per number, and a norm per leaf.
        (
            lambda: fs.compressed(
                topologies.dfedavgm(LR, topologies.ring(M)), fs.compression.qsgd(7)
            ),
            2 * (4 * 4 + 2 * 32),
        ),
    ],
)
def test_bits_count_every_link_once(make, expected, tmp_path):
    with jax.enable_x64(False):
        task = fs.empirical_task(logistic_losses, logistic_data(), rotated(2))
        params = jax.tree.map(lambda x: x.astype(jnp.float32), logistic_params())
        setup = fs.Setup(task, timeline(2), params)
        found = describe(make(), setup, ["0"], Clock(setup.timeline, 1), batched=False)
    assert (found["upload_bits"], found["download_bits"]) == (expected, 0)
    assert Outcome(2, {"0": 0}, M, expected, 0, found["uploads"]).bits("0", [2]) == [
        2 * M * expected
    ]


# ---- bad input


def some_clients():
    return fs.timelines.cyclic(3, M, 5, 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: topologies.d_psgd(0.1, np.eye(3)),
            "expected one of fedjax_sim.topologies",
        ),
        (lambda: topologies.d_psgd(0.1, DIRECTED), "rows whose sum is not 1, which move the mean"),
        (lambda: topologies.d_psgd(-0.1, topologies.ring(M)), "lr is -0.1; expected at least 0"),
        (lambda: topologies.dfedavgm(0.1, topologies.ring(M), 1.0), "momentum is 1.0; expected a"),
        (lambda: topologies.d2(0.1, topologies.ring(M)), "the eigenvalue -0.3333; expected more"),
        (lambda: topologies.d2(0.1, topologies.exponential(M)), "topology is directed; expected s"),
        (
            lambda: topologies.d2(0.1, topologies.random_matching(M, 3)),
            "topology has 3 mixing matrices; expected one",
        ),
        (
            lambda: topologies.hier_fedavg(0.1, np.ones(M)),
            r"edges is array.*; expected \[M\]",
        ),
        (
            lambda: topologies.hier_fedavg(0.1, np.array([0, 2])),
            r"has the numbers \[0, 2\]; expect",
        ),
        (lambda: topologies.hier_fedavg(0.1, np.array([0]), 0), "period is 0; expected at least 1"),
        (
            lambda: fs.skip_nonfinite(topologies.sgp(0.1, DIRECTED)),
            "algorithm has another aggregation than the mean",
        ),
        (
            lambda: fs.compressed(
                topologies.sgp(0.1, DIRECTED), fs.compression.identity(), fs.compression.qsgd(7)
            ),
            "exact messages: clients send to their neighbours, and nobody sends messages",
        ),
        (
            lambda: fs.ef21_p(topologies.hier_fedavg(0.1, np.arange(3)), fs.compression.top_k(2)),
            "exact messages: a client reads the part of its edge only",
        ),
        (
            lambda: final(topologies.sgp(0.1, topologies.ring(5))),
            f"topology has 5 clients; expected {M}, those of the task",
        ),
        (
            lambda: final(topologies.sgp(0.1, DIRECTED), some_clients()),
            f"has 5 of {M} clients; expected all of them.*every client mixes the models",
        ),
        (
            lambda: final(topologies.sgp(0.1, DIRECTED), weighting=fs.weight_by_examples),
            "expected uniform_weights: the weights are those of the mixing matrix",
        ),
        (
            lambda: final(topologies.hier_fedavg(0.1, np.arange(3))),
            rf"edges has the shape \(3,\); expected \({M},\), one entry per client",
        ),
    ],
)
def test_refuses(make, message):
    with pytest.raises(ValueError, match=message):
        make()
