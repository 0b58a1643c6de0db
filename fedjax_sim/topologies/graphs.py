r"""Graphs with their mixing matrices: fixed or in time, undirected or directed.

References:
    Xiao, Boyd, "Fast Linear Iterations for Distributed Averaging", 2004 (Metropolis weights).
    Ying, Yuan, Chen, Hu, Pan, Yin, "Exponential Graph is Provably Efficient for Decentralized Deep
        Training", 2021, arXiv 2110.13363.
    Boyd, Ghosh, Prabhakar, Shah, "Randomized Gossip Algorithms", 2006 (matchings).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedjax_sim.checks import check_count, check_share, is_concrete, seeded
from fedjax_sim.topologies.topology import Topology, check_topology, most_gathered
from fedjax_sim.types import plain_integers

_SUMS = 1e-6  # of a row in single precision


def from_matrix(matrix: np.ndarray) -> Topology:
    r"""Returns the topology of one mixing matrix ``[M, M]``, or of P for successive rounds.

    Client i receives :math:`\sum_j W_{ij} x_j`.  Columns have the sum 1: all that a client sends
    arrives.  If the rows have it, too, the matrix is doubly stochastic.

    Args:
        matrix: ``[M, M]`` or ``[P, M, M]``.

    Raises:
        ValueError: no real numbers, no square matrices, entries below 0 or not finite, columns
            whose sum is not 1.

    Example:
        >>> topology = from_matrix(np.array([[0.75, 0.25], [0.25, 0.75]]))
        >>> topology.spectral_gap, topology.links_per_client
        (0.5, 1.0)
    """
    try:
        known = np.asarray(matrix)
    except ValueError:  # rows of different lengths
        known = np.asarray(None)
    if known.dtype.kind not in "biuf":
        raise ValueError(f"matrix is {matrix!r:.60}; expected real numbers, [M, M] or [P, M, M]")
    matrix = known.astype(np.float64)
    dense = matrix[None] if matrix.ndim == 2 else matrix
    if dense.ndim != 3 or dense.shape[1] != dense.shape[2] or 0 in dense.shape:
        raise ValueError(f"matrix has the shape {matrix.shape}; expected [M, M] or [P, M, M]")
    if not (np.isfinite(dense).all() and (dense >= 0).all()):
        raise ValueError(f"matrix has the entry {dense.min()}; expected finite numbers from 0 on")
    columns = dense.sum(axis=1)
    if (worst := np.abs(columns - 1).max()) > _SUMS:
        total = columns.flat[np.abs(columns - 1).argmax()]
        raise ValueError(
            f"matrix has a column with the sum {total:.6g}; expected 1 (matrix[i, j] is the weight "
            f"of j's model for i), but it is off by {worst:.2g}"
        )
    off_diagonal = (dense > 0) & ~np.eye(dense.shape[1], dtype=bool)
    rounds, receivers, senders = np.nonzero(off_diagonal)
    own = np.diagonal(dense, axis1=1, axis2=2)
    return _topology(own, (rounds, receivers, senders), dense[off_diagonal])


Links = tuple[np.ndarray, np.ndarray, np.ndarray]  # rounds, receivers, senders, all [L]


def _topology(own: np.ndarray, links: Links, weights: np.ndarray) -> Topology:
    """Returns the topology of clients' own weights ``[P, M]`` and those of links ``[L]``.

    Links are sorted, and no link occurs twice.  Matrices ``[P, M, M]`` are made for dense graphs
    only: for thousands of clients they do not fit the memory.
    """
    period, count = own.shape
    rounds, receivers, senders = links
    number = rounds * count + receivers
    received = np.bincount(number, minlength=period * count)
    most = int(received.max(initial=0)) + 1
    if most <= most_gathered(count):
        each = np.broadcast_to(np.arange(count)[:, None], (period, count, most))
        neighbours = each.astype(np.int32)
        packed = np.zeros(neighbours.shape)
        packed[:, :, 0] = own
        slots = 1 + np.arange(len(number)) - (np.cumsum(received) - received)[number]
        neighbours[rounds, receivers, slots] = senders
        packed[rounds, receivers, slots] = weights
    else:
        neighbours, packed = None, np.zeros((period, count, count))
        packed[:, np.arange(count), np.arange(count)] = own
        packed[rounds, receivers, senders] = weights
    rows = own.ravel() + np.bincount(number, weights, period * count)
    # The same links in the order of the transposed matrices.
    order = np.lexsort((receivers, senders, rounds))
    mirrored = senders[order], receivers[order]
    symmetric = all(np.array_equal(a, b) for a, b in zip(mirrored, links[1:], strict=True))
    return Topology(
        packed,
        neighbours,
        num_links=len(weights),
        symmetric=symmetric and bool((np.abs(weights[order] - weights) < _SUMS).all()),
        doubly_stochastic=bool((np.abs(rows - 1) < _SUMS).all()),
    )


@plain_integers
def undirected(num_clients: int, edges: Iterable[tuple[int, int]]) -> Topology:
    r"""Returns a graph with Metropolis weights, :math:`w_{ij} = 1 / (1 + \max(d_i, d_j))`.

    The degrees d do not count the client itself, which keeps the rest of its row.  The matrix is
    symmetric and doubly stochastic for every graph.

    Args:
        num_clients: M.
        edges: pairs of clients; an edge that occurs twice counts once.

    Raises:
        ValueError: no client, clients outside 0 .. M - 1, an edge from a client to itself.

    References:
        Xiao and Boyd, 2004, section 4.2.

    Example:
        >>> undirected(3, [(0, 1), (1, 2)]).matrices()[0].round(2).tolist()
        [[0.67, 0.33, 0.0], [0.33, 0.33, 0.33], [0.0, 0.33, 0.67]]
    """
    senders, receivers = _checked_edges(num_clients, edges)
    links = _unique(
        num_clients, np.concatenate([receivers, senders]), np.concatenate([senders, receivers])
    )
    _, i, j = links
    degrees = np.bincount(i, minlength=num_clients)
    weights = 1 / (1 + np.maximum(degrees[i], degrees[j]))
    own = 1 - np.bincount(i, weights, num_clients)
    return _topology(own[None], links, weights)


@plain_integers
def directed(num_clients: int, edges: Iterable[tuple[int, int]]) -> Topology:
    r"""Returns a directed graph whose clients divide their mass equally among the receivers.

    Client j sends to its receivers and keeps a share, all with the weight 1 / (1 + their number).
    The matrix is doubly stochastic for regular graphs only; others are for
    :func:`~fedjax_sim.topologies.sgp`.

    Args:
        num_clients: M.
        edges: pairs ``(sender, receiver)``.

    Raises:
        ValueError: as for :func:`undirected`.

    References:
        Assran et al., 2019, appendix A.

    Example:
        >>> directed(3, [(0, 1), (1, 2), (2, 0), (0, 2)]).matrices()[0].round(2).tolist()
        [[0.33, 0.0, 0.5], [0.33, 0.5, 0.0], [0.33, 0.5, 0.5]]
    """
    senders, receivers = _checked_edges(num_clients, edges)
    links = _unique(num_clients, receivers, senders)
    shares = 1 / (1 + np.bincount(links[2], minlength=num_clients))
    return _topology(shares[None], links, shares[links[2]])


def _checked_edges(
    num_clients: int, edges: Iterable[tuple[int, int]]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns first and second clients of edges, ``[E]`` each."""
    check_count(1, num_clients=num_clients)
    listed = np.asarray([*edges] or np.zeros((0, 2), int))
    if listed.ndim != 2 or listed.shape[1] != 2 or listed.dtype.kind not in "iu":
        raise ValueError(f"edges is {listed!r:.60}; expected pairs of integers")
    i, j = listed.T
    wrong = (listed < 0).any(axis=1) | (listed >= num_clients).any(axis=1) | (i == j)
    if wrong.any():
        pair = tuple(listed[wrong][0].tolist())
        raise ValueError(
            f"edges has {pair}; expected two different clients of 0 .. {num_clients - 1}"
        )
    return i, j


def _unique(num_clients: int, receivers: np.ndarray, senders: np.ndarray) -> Links:
    """Returns the links of one round, sorted and each once."""
    number = np.unique(receivers.astype(np.int64) * num_clients + senders)
    return np.zeros_like(number), number // num_clients, number % num_clients


@plain_integers
def complete(num_clients: int) -> Topology:
    """Returns the complete graph: everybody receives the mean, as from a server.

    Raises:
        ValueError: no client.

    Example:
        >>> round(complete(5).spectral_gap, 12)
        1.0
    """
    check_count(1, num_clients=num_clients)
    return Topology(
        np.zeros((1, num_clients, 1)),
        np.arange(num_clients, dtype=np.int32)[None, :, None],
        num_links=num_clients * (num_clients - 1),
        symmetric=True,
        doubly_stochastic=True,
        mean_weight=np.ones(1),
    )


@plain_integers
def ring(num_clients: int) -> Topology:
    """Returns a ring: two neighbours, all three weights 1/3.

    Raises:
        ValueError: fewer than 2 clients.

    Example:
        >>> ring(8).links_per_client
        2.0
    """
    check_count(2, num_clients=num_clients)
    return undirected(num_clients, [(i, (i + 1) % num_clients) for i in range(num_clients)])


@plain_integers
def torus(num_rows: int, num_columns: int) -> Topology:
    """Returns a grid without borders: four neighbours, all five weights 1/5.

    Client ``num_columns * row + column``.  Sides of 2 have one neighbour in their direction.

    Raises:
        ValueError: a side below 2.

    Example:
        >>> torus(4, 4).links_per_client, torus(4, 4).num_clients
        (4.0, 16)
    """
    check_count(2, num_rows=num_rows, num_columns=num_columns)
    number = np.arange(num_rows * num_columns).reshape(num_rows, num_columns)
    edges = [
        (int(i), int(j))
        for axis in (0, 1)
        for i, j in zip(number.flat, np.roll(number, -1, axis).flat, strict=True)
    ]
    return undirected(number.size, edges)


@plain_integers
def exponential(num_clients: int) -> Topology:
    r"""Returns the static exponential graph: client i receives from :math:`i + 2^k \bmod M`.

    All :math:`1 + \lceil \log_2 M \rceil` weights are equal.  The matrix is doubly stochastic and
    directed.  For an even M its spectral gap is :math:`2 / (1 + \lceil \log_2 M \rceil)`.

    Raises:
        ValueError: fewer than 2 clients.

    References:
        Ying et al., 2021, weights of the static exponential graph and Proposition 1.

    Example:
        >>> exponential(16).links_per_client, round(exponential(16).spectral_gap, 6)
        (4.0, 0.4)
    """
    check_count(2, num_clients=num_clients)
    # 2^k is below M: a client receives from others, each once.
    offsets = 2 ** np.arange((num_clients - 1).bit_length())
    receivers = np.repeat(np.arange(num_clients), len(offsets))
    links = _unique(
        num_clients, receivers, (receivers + np.tile(offsets, num_clients)) % num_clients
    )
    share = 1 / (1 + len(offsets))
    return _topology(np.full((1, num_clients), share), links, np.full(len(receivers), share))


@plain_integers
def one_peer_exponential(num_clients: int) -> Topology:
    r"""Returns the one-peer exponential graphs: in round t client i receives from one other.

    The other client is :math:`i + 2^{t \bmod \tau} \bmod M`, with
    :math:`\tau = \lceil \log_2 M \rceil`, and both weights are 1/2.  If M is a power of 2, the
    models are equal after :math:`\tau` rounds, which is the spectral gap 1.

    Raises:
        ValueError: fewer than 2 clients.

    References:
        Ying et al., 2021, weights of the one-peer exponential graph and Lemma 1.

    Example:
        >>> one_peer_exponential(8).period, one_peer_exponential(8).spectral_gap
        (3, 1.0)
    """
    check_count(2, num_clients=num_clients)
    period = (num_clients - 1).bit_length()
    rounds = np.repeat(np.arange(period), num_clients)
    receivers = np.tile(np.arange(num_clients), period)
    links = rounds, receivers, (receivers + 2**rounds) % num_clients
    return _topology(np.full((period, num_clients), 0.5), links, np.full(len(rounds), 0.5))


@plain_integers
def erdos_renyi(num_clients: int, probability: float, seed: int = 0) -> Topology:
    """Returns a random graph: every pair is an edge with a probability, with Metropolis weights.

    Raises:
        ValueError: fewer than 2 clients, a probability outside [0, 1], or a graph that is not
            connected, on which the clients never agree.

    Example:
        >>> topology = erdos_renyi(20, 0.4, seed=1)
        >>> topology.symmetric, topology.doubly_stochastic, 0 < topology.spectral_gap < 1
        (True, True, True)
    """
    check_count(2, num_clients=num_clients)
    check_share(probability=probability)
    check_count(seed=seed)
    # Pairs (i, j > i) in the order of i: number first[i] + j - i - 1 is the coin of (i, j).
    first = np.concatenate([[0], np.cumsum(np.arange(num_clients - 1, 0, -1))])
    (drawn,) = np.nonzero(seeded(seed).random(first[-1]) < probability)
    i = np.searchsorted(first, drawn, side="right") - 1
    edges = list(zip(i.tolist(), (drawn - first[i] + i + 1).tolist(), strict=True))
    if (parts := _num_parts(num_clients, edges)) > 1:
        raise ValueError(
            f"probability is {probability}; expected a connected graph, but that of seed {seed} "
            f"has {parts} parts: use a larger probability or another seed"
        )
    return undirected(num_clients, edges)


def _num_parts(num_clients: int, edges: list[tuple[int, int]]) -> int:
    """Returns the number of connected parts of a graph."""
    part = np.arange(num_clients)
    for i, j in edges:
        part[part == part[j]] = part[i]
    return len(np.unique(part))


@plain_integers
def random_matching(num_clients: int, num_rounds: int, seed: int = 0) -> Topology:
    """Returns random matchings, one per round: pairs of clients average their models.

    With an odd number one client stays alone.  After ``num_rounds`` rounds the matchings repeat.

    Raises:
        ValueError: fewer than 2 clients, or no round.

    References:
        Boyd et al., 2006, section II, with all pairs of a matching at once.

    Example:
        >>> topology = random_matching(6, num_rounds=50)
        >>> topology.period, topology.links_per_client
        (50, 1.0)
    """
    check_count(2, num_clients=num_clients)
    check_count(1, num_rounds=num_rounds)
    check_count(seed=seed)
    rng = seeded(seed)
    pairs = num_clients // 2
    order = np.stack([rng.permutation(num_clients) for _ in range(num_rounds)])
    left, right = order[:, :pairs], order[:, pairs : 2 * pairs]
    own = np.broadcast_to(np.arange(num_clients), order.shape)
    other, rounds = own.copy(), np.arange(num_rounds)[:, None]
    other[rounds, left], other[rounds, right] = right, left
    paired = other != own
    numbers, receivers = np.nonzero(paired)
    links = numbers, receivers, other[paired]
    return _topology(np.where(paired, 0.5, 1.0), links, np.full(len(numbers), 0.5))


def alternate(*topologies: Topology) -> Topology:
    """Returns the topology whose rounds use the given ones in turn, all rounds of each.

    Their shares of :meth:`Topology.lazy` may be traced, unless a graph is dense.

    Raises:
        ValueError: none, a value that is no topology, different numbers of clients, or traced
            weights beside a dense graph.

    Example:
        >>> alternate(ring(8), complete(8)).period
        2
    """
    for topology in topologies:
        check_topology(topology, doubly=False)
    counts = {topology.num_clients for topology in topologies}
    if len(counts) != 1:
        raise ValueError(f"topologies have {sorted(counts)} clients; expected one number of them")
    traced = not all(is_concrete(topology.weights) for topology in topologies)
    if any(topology.neighbours is None for topology in topologies):
        if traced:
            raise ValueError(
                "topologies have a dense graph and traced weights; expected numbers, or a share of "
                "all of them, as of alternate(...).lazy(share)"
            )
        return from_matrix(np.concatenate([topology.matrices() for topology in topologies]))
    most = max(topology.weights.shape[2] for topology in topologies)
    clients = np.arange(counts.pop(), dtype=np.int32)[:, None]
    xp: Any = jnp if traced else np
    real = xp.result_type(float)

    def padded(xp: Any, values: object, own: np.ndarray | int) -> Any:
        known = xp.asarray(values)
        rest = (*known.shape[:2], most - known.shape[2])
        return xp.concatenate([known, xp.broadcast_to(xp.asarray(own, known.dtype), rest)], axis=2)

    weights = [padded(xp, xp.asarray(topology.weights, real), 0) for topology in topologies]
    means = [
        xp.zeros(topology.period) if mean is None else xp.asarray(mean, real)
        for topology in topologies
        for mean in [topology.mean_weight]
    ]
    has_means = any(topology.mean_weight is not None for topology in topologies)
    return Topology(
        xp.concatenate(weights),
        np.concatenate([padded(np, topology.neighbours, clients) for topology in topologies]),
        num_links=sum(topology.num_links for topology in topologies),
        symmetric=all(topology.symmetric for topology in topologies),
        doubly_stochastic=all(topology.doubly_stochastic for topology in topologies),
        mean_weight=xp.concatenate(means) if has_means else None,
    )
