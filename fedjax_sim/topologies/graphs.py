r"""Graphs with their mixing matrices: fixed or in time, undirected or directed.

References:
    Xiao, Boyd, "Fast Linear Iterations for Distributed Averaging", 2004 (Metropolis weights).
    Ying, Yuan, Chen, Hu, Pan, Yin, "Exponential Graph is Provably Efficient for Decentralized Deep
        Training", 2021, arXiv 2110.13363.
    Boyd, Ghosh, Prabhakar, Shah, "Randomized Gossip Algorithms", 2006 (matchings).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fedjax_sim.checks import check_at_least, check_at_most, check_count
from fedjax_sim.topologies.topology import MOST_GATHERED, Topology
from fedjax_sim.types import plain_integers

_SUMS = 1e-6  # of a row in single precision


def from_matrix(matrix: np.ndarray) -> Topology:
    r"""Returns the topology of one mixing matrix ``[M, M]``, or of P for successive rounds.

    Client i receives :math:`\sum_j W_{ij} x_j`.  Columns have the sum 1: all that a client sends
    arrives.  If the rows have it, too, the matrix is doubly stochastic.

    Args:
        matrix: ``[M, M]`` or ``[P, M, M]``.

    Raises:
        ValueError: no square matrices, entries below 0 or not finite, columns whose sum is not 1.

    Example:
        >>> topology = from_matrix(np.array([[0.75, 0.25], [0.25, 0.75]]))
        >>> topology.spectral_gap, topology.links_per_client
        (0.5, 1.0)
    """
    matrix = np.asarray(matrix, np.float64)
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
    most = int(off_diagonal.sum(axis=2).max()) + 1
    weights, neighbours = dense, None
    if most <= min(MOST_GATHERED, dense.shape[1] - 1):
        neighbours = _neighbours(off_diagonal, most)
        weights = np.take_along_axis(dense, neighbours, axis=2)
        repeated = neighbours == np.arange(dense.shape[1])[:, None]
        repeated[..., 0] = False
        weights[repeated] = 0
    return Topology(
        weights,
        neighbours,
        num_links=int(off_diagonal.sum()),
        symmetric=bool((np.abs(dense - dense.transpose(0, 2, 1)) < _SUMS).all()),
        doubly_stochastic=bool((np.abs(dense.sum(axis=2) - 1) < _SUMS).all()),
    )


def _neighbours(linked: np.ndarray, most: int) -> np.ndarray:
    """Returns each client itself and its neighbours, filled with itself, ``[P, M, most]``."""
    own = np.broadcast_to(np.arange(linked.shape[1])[:, None], (*linked.shape[:2], 1))
    first = np.argsort(~linked, axis=2, kind="stable")[..., : most - 1]
    present = np.take_along_axis(linked, first, axis=2)
    return np.concatenate([own, np.where(present, first, own)], axis=2).astype(np.int32)


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
    linked = _linked(num_clients, edges)
    linked |= linked.T
    degrees = linked.sum(axis=1)
    weights = np.where(linked, 1 / (1 + np.maximum(degrees[:, None], degrees)), 0)
    return from_matrix(weights + np.diag(1 - weights.sum(axis=1)))


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
    sends = _linked(num_clients, edges).T | np.eye(num_clients, dtype=bool)  # [receiver, sender]
    return from_matrix(sends / sends.sum(axis=0))


def _linked(num_clients: int, edges: Iterable[tuple[int, int]]) -> np.ndarray:
    """Returns the adjacency matrix ``[sender, receiver]`` of edges."""
    check_count(1, num_clients=num_clients)
    linked = np.zeros((num_clients, num_clients), bool)
    for edge in edges:
        i, j = edge
        if not (0 <= i < num_clients and 0 <= j < num_clients and i != j):
            raise ValueError(
                f"edges has {tuple(edge)}; expected two different clients of 0 .. {num_clients - 1}"
            )
        linked[i, j] = True
    return linked


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
    return from_matrix(np.full((num_clients, num_clients), 1 / num_clients))


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
        Ying et al., 2021, Eq. (5) and Proposition 1.

    Example:
        >>> exponential(16).links_per_client, round(exponential(16).spectral_gap, 6)
        (4.0, 0.4)
    """
    check_count(2, num_clients=num_clients)
    offsets = [0] + [2**k for k in range((num_clients - 1).bit_length())]
    total = np.zeros((num_clients, num_clients))
    for offset in offsets:
        total += _shift(num_clients, offset)
    return from_matrix(total / len(offsets))


@plain_integers
def one_peer_exponential(num_clients: int) -> Topology:
    r"""Returns the one-peer exponential graphs: in round t client i receives from one other.

    The other client is :math:`i + 2^{t \bmod \tau} \bmod M`, with
    :math:`\tau = \lceil \log_2 M \rceil`, and both weights are 1/2.  If M is a power of 2, the
    models are equal after :math:`\tau` rounds, which is the spectral gap 1.

    Raises:
        ValueError: fewer than 2 clients.

    References:
        Ying et al., 2021, Eq. (7) and Lemma 1.

    Example:
        >>> one_peer_exponential(8).period, one_peer_exponential(8).spectral_gap
        (3, 1.0)
    """
    check_count(2, num_clients=num_clients)
    period = (num_clients - 1).bit_length()
    own = np.eye(num_clients)
    return from_matrix(np.stack([(own + _shift(num_clients, 2**k)) / 2 for k in range(period)]))


def _shift(num_clients: int, offset: int) -> np.ndarray:
    """Returns the permutation by which client i receives from i + offset mod M."""
    return np.roll(np.eye(num_clients), offset, axis=1)


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
    check_at_least(0, probability=probability)
    check_at_most(1, probability=probability)
    i, j = np.triu_indices(num_clients, 1)
    drawn = np.random.default_rng(seed).random(len(i)) < probability
    edges = list(zip(i[drawn].tolist(), j[drawn].tolist(), strict=True))
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
    rng = np.random.default_rng(seed)
    pairs = num_clients // 2
    order = np.stack([rng.permutation(num_clients) for _ in range(num_rounds)])
    left, right = order[:, :pairs], order[:, pairs : 2 * pairs]
    own = np.broadcast_to(np.arange(num_clients), order.shape)
    other, rounds = own.copy(), np.arange(num_rounds)[:, None]
    other[rounds, left], other[rounds, right] = right, left
    paired = other != own
    # By neighbours: dense matrices of all rounds may not fit the memory.
    weights = np.stack([np.where(paired, 0.5, 1.0), np.where(paired, 0.5, 0.0)], axis=2)
    return Topology(
        weights,
        np.stack([own, other], axis=2).astype(np.int32),
        num_links=int(paired.sum()),
        symmetric=True,
        doubly_stochastic=True,
    )


def alternate(*topologies: Topology) -> Topology:
    """Returns the topology whose rounds use the given ones in turn, all rounds of each.

    Raises:
        ValueError: no topology, or different numbers of clients.

    Example:
        >>> alternate(ring(8), complete(8)).period
        2
    """
    counts = {topology.num_clients for topology in topologies}
    if len(counts) != 1:
        raise ValueError(f"topologies have {sorted(counts)} clients; expected one number of them")
    return from_matrix(np.concatenate([topology.matrices() for topology in topologies]))
