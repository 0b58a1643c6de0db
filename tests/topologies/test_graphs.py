"""Mixing matrices against their definitions, and spectral gaps against closed forms and runs."""

import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_problems import assert_close

import fedjax_sim as fs
from fedjax_sim import topologies

pytestmark = pytest.mark.usefixtures("x64")

DOUBLE = 1e-12  # sums of at most 64 products, and eigenvalues of well-conditioned matrices


def ring_eigenvalues(count):
    """Circulant matrix of 1/3, 1/3, 1/3: Gray, "Toeplitz and Circulant Matrices", 2006, Eq. 3.7."""
    return 1 / 3 + 2 / 3 * np.cos(2 * np.pi * np.arange(count) / count)


def torus_eigenvalues(rows, columns):
    """Both axes of the grid are circulant, so the eigenvalues are sums of cosines."""
    x, y = (2 * np.cos(2 * np.pi * np.arange(n) / n) for n in (rows, columns))
    return ((1 + x[:, None] + y) / 5).ravel()


def gap(eigenvalues):
    return 1 - np.sort(np.abs(eigenvalues))[-2]


GRAPHS = {
    "ring": topologies.ring(7),
    "torus": topologies.torus(3, 5),
    "narrow torus": topologies.torus(2, 4),
    "exponential": topologies.exponential(12),
    "one peer": topologies.one_peer_exponential(6),
    "erdos_renyi": topologies.erdos_renyi(12, 0.3, seed=3),
    "matching": topologies.random_matching(7, 5, seed=1),
    "complete": topologies.complete(9),
    "lazy": topologies.torus(3, 5).lazy(0.3),
    "lazy complete": topologies.complete(9).lazy(0.3),
    "directed": topologies.directed(6, [(i, (i + 1) % 6) for i in range(6)] + [(0, 3), (2, 5)]),
    "star": topologies.undirected(20, [(0, i) for i in range(1, 20)]),
    "alternate": topologies.alternate(topologies.ring(8), topologies.exponential(8)),
    "with the mean": topologies.alternate(topologies.ring(9), topologies.complete(9).lazy(0.3)),
}
SYMMETRIC = {"ring", "torus", "narrow torus", "erdos_renyi", "matching", "complete", "lazy",
             "lazy complete", "star", "with the mean"}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_matrices_are_stochastic_and_known_as_what_they_are(name):
    topology = GRAPHS[name]
    matrices = topology.matrices()
    shape = topology.period, topology.num_clients, topology.num_clients
    assert matrices.shape == shape
    assert matrices.min() >= 0
    np.testing.assert_allclose(matrices.sum(1), 1, rtol=DOUBLE)
    rows = np.abs(matrices.sum(2) - 1).max()
    assert topology.doubly_stochastic == (name != "directed") == (rows < DOUBLE)
    assert topology.symmetric == (name in SYMMETRIC)
    assert topology.symmetric == np.allclose(matrices, matrices.transpose(0, 2, 1), atol=DOUBLE)
    others = matrices * (1 - np.eye(topology.num_clients))
    assert topology.num_links == (others > 0).sum()


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAPHS)
def test_mixing_is_the_product_with_the_matrix_of_the_round(name):
    topology = GRAPHS[name]
    rng = np.random.default_rng(0)
    x = {
        "w": rng.normal(size=(topology.num_clients, 2, 3)),
        "b": rng.normal(size=topology.num_clients),
    }
    for t in range(topology.period + 1):
        matrix = topology.matrices()[t % topology.period]
        expected = {"w": np.einsum("ij,jkl->ikl", matrix, x["w"]), "b": matrix @ x["b"]}
        assert_close(topology.mix({k: jnp.asarray(v) for k, v in x.items()}, t), expected, DOUBLE)


def test_half_precision_mixes_in_single():
    """Ones stay ones: in bfloat16 the sum of 40 weights of 1/40 is 1.03."""
    mixed = topologies.complete(40).mix(jnp.ones((40, 2), jnp.bfloat16), 0)
    assert mixed.dtype == jnp.bfloat16
    assert mixed.astype(jnp.float32).tolist() == np.ones((40, 2)).tolist()


def test_sparse_graphs_have_neighbours_and_dense_ones_have_none():
    assert {name for name in GRAPHS if GRAPHS[name].neighbours is None} == {"star"}
    assert topologies.ring(500).weights.shape == (1, 500, 3)


@pytest.mark.parametrize(
    ("make", "degree"),
    [
        (lambda: topologies.ring(4096), 2),
        (lambda: topologies.exponential(4096), 12),
        (lambda: topologies.one_peer_exponential(4096), 1),
        (lambda: topologies.directed(4096, [(i, (i + 1) % 4096) for i in range(4096)]), 1),
        (lambda: topologies.erdos_renyi(4096, 16 / 4096), 16),
        (lambda: topologies.complete(4096), 4095),
        (lambda: topologies.alternate(topologies.complete(4096), topologies.ring(4096)), 2048.5),
    ],
)
def test_large_graphs_are_made_and_kept_without_matrices(make, degree):
    """A matrix of 4,096 clients has 128 MiB in double precision; none is made on the way."""
    tracemalloc.start()
    try:
        topology = make()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1e8
    assert topology.neighbours is not None
    # 6 standard deviations of the mean degree: one coin per pair.
    spread = 2 * np.sqrt(16 / 4096 * (4096 * 4095 / 2)) / 4096 if degree == 16 else 0
    assert abs(topology.links_per_client - degree) <= 6 * spread


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        (topologies.complete(5), 1),
        (topologies.complete(1), 1),  # alone is in consensus
        (topologies.complete(8).lazy(0.25), 0.75),
        (topologies.ring(9), gap(ring_eigenvalues(9))),
        (topologies.ring(16), gap(ring_eigenvalues(16))),
        (topologies.torus(4, 6), gap(torus_eigenvalues(4, 6))),
        (topologies.ring(9).lazy(0.25), gap(0.75 * ring_eigenvalues(9) + 0.25)),
        # Ying et al., 2021, Proposition 1: 2 / (1 + ceil(log2 M)) for even M.
        (topologies.exponential(16), 2 / 5),
        (topologies.exponential(24), 2 / 6),
        (topologies.exponential(64), 2 / 7),
        # Their Lemma 1: exact averaging after log2 M rounds.
        (topologies.one_peer_exponential(16), 1),
        # A matching of two of three clients and another one: the product has the eigenvalue 1/4.
        (topologies.alternate(*[topologies.undirected(3, [e]) for e in [(0, 1), (1, 2)]]), 0.5),
        # One edge among three clients: the third one is never heard.
        (topologies.undirected(3, [(0, 1)]), 0),
    ],
)
def test_spectral_gap_in_closed_form(topology, expected):
    assert topology.spectral_gap == pytest.approx(expected, abs=DOUBLE)


def test_exponential_graph_of_an_odd_number_mixes_faster_than_the_bound():
    """Ying et al., 2021, Proposition 1: for odd M the gap is strictly larger."""
    assert topologies.exponential(15).spectral_gap > 2 / 5 + 0.01


def test_one_peer_graphs_average_exactly():
    product = np.linalg.multi_dot(topologies.one_peer_exponential(16).matrices()[::-1])
    assert (product == 1 / 16).all()  # weights of powers of 2 do not round


def test_metropolis_weights_on_a_path():
    """Degrees 1, 2, 2, 1: all weights are 1 / (1 + 2); the ends keep the rest of their rows."""
    path = topologies.undirected(4, [(0, 1), (1, 2), (2, 3), (1, 0)])
    expected = np.array([[2, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 2]]) / 3
    np.testing.assert_allclose(path.matrices()[0], expected, rtol=0, atol=DOUBLE)


def test_random_graphs_follow_their_law():
    drawn = [topologies.erdos_renyi(40, 0.5, seed).num_links / 2 for seed in range(20)]
    # 20 x 780 coins: 6 standard deviations of their mean.
    assert np.mean(drawn) == pytest.approx(390, abs=6 * np.sqrt(780 / 4 / 20))
    matchings = topologies.random_matching(10, 400, seed=2).matrices()
    partners = (matchings * (1 - np.eye(10)) > 0).sum(0)
    # Every pair is matched with probability 1/9: 6 standard deviations of 400 draws.
    expected, spread = 400 / 9, np.sqrt(400 / 9 * 8 / 9)
    assert np.abs(partners[~np.eye(10, dtype=bool)] - expected).max() < 6 * spread
    assert (matchings @ matchings == matchings).all()  # averages of pairs are projections
    same, other = topologies.random_matching(10, 4, seed=2), topologies.random_matching(10, 4)
    assert (same.matrices() == matchings[:4]).all()
    assert (other.matrices() != matchings[:4]).any()


# ---- consensus in runs


def without_gradients(topology, num_rounds, models):
    """Distances from consensus in a run at the rate 0 from given models, ``[T + 1]``."""
    count, dim = models.shape
    oracle = fs.Oracle(lambda x, k: x, lambda x, k: x.sum(), lambda x: x)
    task = fs.Task(lambda *visit: oracle, np.ones(count, int), np.ones(count, int))
    setup = fs.Setup(task, fs.timelines.full(num_rounds, count, 1), jnp.zeros(dim))
    algorithm = topologies.d_psgd(0.0, topology)
    state = fs.init(algorithm, setup)
    server = state.server._replace(models=jnp.asarray(models), params=jnp.asarray(models).mean(0))
    probes = fs.Probes(run={"distance": lambda run: topologies.consensus_distance(run.server)})
    first = float(topologies.consensus_distance(server))
    state, history = fs.advance(
        algorithm, setup, state._replace(server=server), fs.presets.keys(1)[0], probes=probes
    )
    np.testing.assert_allclose(state.server.params, models.mean(0), rtol=0, atol=DOUBLE)
    return np.array([first, *np.asarray(history.probes["distance"])])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "num_rounds"),
    [
        (topologies.ring(8), 60),
        (topologies.torus(3, 4), 40),
        (topologies.exponential(24), 60),
        (topologies.erdos_renyi(10, 0.5, seed=0), 60),
        (topologies.random_matching(20, 4, seed=0), 96),
        (topologies.alternate(topologies.ring(7), topologies.ring(7).lazy(0.5)), 60),
    ],
)
def test_consensus_rate_is_the_spectral_gap(topology, num_rounds):
    """The distance shrinks by (1 - gap)^2 per round, over the last rounds of a run.

    The powers of the other eigenvalues are below 1e-4 of the largest one's by then.
    """
    models = np.random.default_rng(1).normal(size=(topology.num_clients, 30))
    distances = without_gradients(topology, num_rounds, models)
    rounds = 24  # a multiple of the periods
    rate = (distances[-1] / distances[-1 - rounds]) ** (1 / rounds)
    assert distances[-1] > 1e-26  # above the rounding errors
    assert rate == pytest.approx((1 - topology.spectral_gap) ** 2, rel=1e-4)


def test_first_rounds_shrink_by_the_gap_at_least():
    """For a symmetric matrix, from every start: the claim of all theorems."""
    topology = topologies.torus(3, 4)
    distances = without_gradients(topology, 8, np.random.default_rng(2).normal(size=(12, 3)))
    assert (distances[1:] <= (1 - topology.spectral_gap) ** 2 * distances[:-1] * (1 + 1e-9)).all()
    slow = np.cos(2 * np.pi * np.arange(8) / 8)[:, None]  # the eigenvector of the gap of a ring
    distances = without_gradients(topologies.ring(8), 5, slow)
    exact = (1 - topologies.ring(8).spectral_gap) ** (2 * np.arange(6)) * distances[0]
    np.testing.assert_allclose(distances, exact, rtol=1e-10)


# ---- bad input


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: topologies.from_matrix(np.ones((2, 3))), r"matrix has the shape \(2, 3\)"),
        (
            lambda: topologies.from_matrix(np.full((2, 2), np.nan)),
            "has the entry nan; exp",
        ),
        (
            lambda: topologies.from_matrix([[1.5, 0], [-0.5, 1]]),
            "has the entry -0.5; exp",
        ),
        (
            lambda: topologies.from_matrix(np.full((2, 2), 0.4)),
            "a column with the sum 0.8; exp",
        ),
        (lambda: topologies.undirected(3, [(0, 3)]), r"edges has \(0, 3\); expected two different"),
        (
            lambda: topologies.directed(3, [(1, 1)]),
            r"edges has \(1, 1\); expected two different",
        ),
        (lambda: topologies.undirected(3, [(0, 1, 2)]), "edges is .*; expected pairs of integers"),
        (lambda: topologies.directed(3, [(0.5, 1)]), "edges is .*; expected pairs of integers"),
        (lambda: topologies.ring(1), "num_clients is 1; expected at least 2"),
        (lambda: topologies.torus(1, 4), "num_rows is 1; expected at least 2"),
        (lambda: topologies.complete(0), "num_clients is 0; expected at least 1"),
        (
            lambda: topologies.erdos_renyi(9, 1.5),
            r"probability is 1.5; expected a number in \[0, 1\]",
        ),
        (lambda: topologies.erdos_renyi(9, 0.0), "seed 0 has 9 parts: use a larger probability"),
        (lambda: topologies.random_matching(4, 0), "num_rounds is 0; expected at least 1"),
        (lambda: topologies.ring(4).lazy(1.5), r"share is 1.5; expected a number in \[0, 1\]"),
        (lambda: topologies.erdos_renyi(9, 0.9, seed=-1), "seed is -1; expected at least 0"),
        (lambda: topologies.random_matching(4, 2, seed=1.5), "seed is 1.5; expected an integer"),
        (lambda: topologies.alternate("ring"), "topology is 'ring'; expected one of"),
        (lambda: topologies.from_matrix("W"), "matrix is 'W'; expected real numbers"),
        (lambda: topologies.from_matrix(np.eye(2) * 1j), "expected real numbers"),
        (lambda: topologies.from_matrix([[1.0, 0.0], [1.0]]), "expected real numbers"),
        (lambda: topologies.alternate(), r"topologies have \[\] clients; expected one number"),
        (
            lambda: topologies.alternate(topologies.ring(4), topologies.ring(5)),
            r"topologies have \[4, 5\] clients; expected one number of them",
        ),
    ],
)
def test_refuses(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("round", [0, 1, 2])
def test_alternating_graphs_take_traced_shares(round):
    """The mixed models are those of the matrices with numbers; a dense graph is refused."""

    def graph(share, *others):
        lazy = [topologies.ring(6).lazy(share), topologies.complete(6).lazy(share)]
        return topologies.alternate(*lazy, topologies.exponential(6), *others)

    x = np.arange(6.0) ** 2
    mixed = jax.jit(lambda share: graph(share).mix(jnp.asarray(x), round))(0.3)
    assert_close(mixed, graph(0.3).matrices()[round] @ x, DOUBLE)
    dense = topologies.from_matrix(np.full((6, 6), 1 / 6))
    with pytest.raises(ValueError, match="a dense graph and traced weights; expected numbers"):
        jax.jit(lambda share: graph(share, dense).mix(jnp.asarray(x), round))(0.3)
