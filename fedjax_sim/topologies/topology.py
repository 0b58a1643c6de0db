"""Mixing matrices of a network, dense or by neighbours, with their spectral gap."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim import tree
from fedjax_sim.checks import check_share, is_concrete
from fedjax_sim.types import PyTree, Scalar, Summary, shown


def most_gathered(num_clients: int) -> int:
    """Returns the most neighbours, the client included, whose rows a mixing step gathers.

    With more neighbours the step is a matrix product.
    """
    # On a CPU, gathering 16 rows was never slower than the product for 64 clients and more. The
    # product grows with M^2: for 4,096 clients it took 189 ms, gathering 32 rows 10 ms.
    return min(max(16, num_clients // 64), 64, num_clients - 1)


@shown
@dataclasses.dataclass(frozen=True, eq=False)
class Topology:
    r"""Mixing matrices :math:`W_0, \ldots, W_{P-1}` of a network; round t uses number t mod P.

    Client i receives :math:`\sum_j (W_t)_{ij} x_j`.  A topology is a pytree, whose weights may be
    traced.  It is made by the functions of :mod:`fedjax_sim.topologies`, which check it.

    Example:
        >>> from fedjax_sim.topologies import ring
        >>> topology = ring(4)
        >>> topology.matrices()[0].round(2).tolist()[0]
        [0.33, 0.33, 0.0, 0.33]
        >>> topology.mix(jnp.array([3.0, 0.0, 0.0, 0.0]), 0).tolist()
        [1.0, 1.0, 0.0, 1.0]
        >>> round(topology.spectral_gap, 4)
        0.6667
    """

    # [P, M, D], weights of the neighbours, the client's own first; or [P, M, M], all weights
    weights: Array | np.ndarray
    # [P, M, D] int    the neighbours; missing ones are the client itself, with weight 0. None: all
    neighbours: Array | np.ndarray | None
    num_links: int  # static: directed links in P rounds, those of weight 0 not counted
    symmetric: bool  # static: all matrices are
    doubly_stochastic: bool  # static: rows and columns have the sum 1; else columns only
    # [P], weight of the mean of all models, which is added to the others; None: 0
    mean_weight: Array | np.ndarray | None = None

    @property
    def period(self) -> int:
        """Number P of matrices."""
        return self.weights.shape[0]

    @property
    def num_clients(self) -> int:
        """Number M of clients."""
        return self.weights.shape[1]

    @property
    def links_per_client(self) -> float:
        """Mean number of clients that a client sends to in one round."""
        return self.num_links / (self.period * self.num_clients)

    def mix(self, x: PyTree, round: Array | int) -> PyTree:
        r"""Returns :math:`\sum_j (W_t)_{ij} x_j` for all clients i, leaves ``[M, ...]``.

        In single precision at least.

        Example:
            >>> from fedjax_sim.topologies import complete
            >>> complete(2).mix({"w": jnp.array([1.0, 3.0])}, 0)["w"].tolist()
            [2.0, 2.0]
        """
        t = jnp.asarray(round, jnp.int32) % self.period
        weights = jnp.asarray(self.weights)[t]
        neighbours = None if self.neighbours is None else jnp.asarray(self.neighbours)[t]
        mean_weight = None if self.mean_weight is None else jnp.asarray(self.mean_weight)[t]

        def mixed(leaf: Array) -> Array:
            rows = leaf.reshape(leaf.shape[0], -1)
            w = weights.astype(leaf.dtype)
            if neighbours is None:
                total = jnp.matmul(w, rows, precision="highest")
            else:
                parts = [w[:, d, None] * rows[neighbours[:, d]] for d in range(w.shape[1])]
                total = sum(parts[1:], parts[0])
            if mean_weight is not None:
                total = total + mean_weight.astype(leaf.dtype) * rows.mean(axis=0)
            return total.reshape(leaf.shape)

        return tree.cast_like(jax.tree.map(mixed, tree.wide(x)), x)

    def lazy(self, share: Scalar) -> Topology:
        r"""Returns the topology of :math:`(1 - a) W + a I`, whose clients keep the share a.

        An eigenvalue :math:`\lambda` becomes :math:`(1 - a) \lambda + a`.  The share may be traced,
        so a sweep varies it in one program.

        Raises:
            ValueError: a share outside [0, 1].

        Example:
            >>> from fedjax_sim.topologies import ring
            >>> ring(4).lazy(0.5).matrices()[0, 0].round(2).tolist()
            [0.67, 0.17, 0.0, 0.17]
        """
        check_share(share=share)
        own = (
            np.eye(self.num_clients)
            if self.neighbours is None
            else np.eye(self.weights.shape[2])[0]
        )
        return dataclasses.replace(
            self,
            weights=(1 - share) * self.weights + share * own,
            mean_weight=None if self.mean_weight is None else (1 - share) * self.mean_weight,
        )

    def matrices(self) -> np.ndarray:
        """Returns the mixing matrices, ``[P, M, M]`` in double precision.

        Example:
            >>> from fedjax_sim.topologies import complete
            >>> complete(2).matrices().tolist()
            [[[0.5, 0.5], [0.5, 0.5]]]
        """
        weights = np.asarray(self.weights, np.float64)
        if self.neighbours is None:
            dense = weights
        else:
            dense = np.zeros((self.period, self.num_clients, self.num_clients))
            t, i = np.ogrid[: self.period, : self.num_clients]
            np.add.at(dense, (t[..., None], i[..., None], np.asarray(self.neighbours)), weights)
        if self.mean_weight is None:
            return dense
        return dense + np.asarray(self.mean_weight, np.float64)[:, None, None] / self.num_clients

    @property
    def spectral_gap(self) -> float:
        r""":math:`1 - \rho`: the distance from consensus shrinks by :math:`\rho` per round.

        With one matrix :math:`\rho` is the second largest modulus of its eigenvalues, with P
        matrices the P-th root of that of their product.  It is the rate as t grows; with one
        symmetric matrix no round shrinks the distance less.
        """
        count = self.num_clients
        if self.period == 1 and self.symmetric:
            moduli = np.sort(np.abs(np.linalg.eigvalsh(self.matrices()[0])))
            return float(1 - moduli[:-1].max(initial=0))
        # Columns have the sum 1, so the differences from the mean are mapped among themselves.
        centred = np.eye(count) - 1 / count
        product, log_scale = centred, 0.0
        for matrix in self.matrices():
            product = centred @ matrix @ product
            scale = np.abs(product).max()
            if scale < _ZERO:  # exact consensus after one period
                return 1.0
            product, log_scale = product / scale, log_scale + np.log(scale)
        radius = np.abs(np.linalg.eigvals(product)).max()
        return float(1 - (radius * np.exp(log_scale)) ** (1 / self.period))

    @property
    def smallest_eigenvalue(self) -> float:
        """Smallest eigenvalue of symmetric matrices, for the condition of :func:`d2`."""
        return float(min(np.linalg.eigvalsh(matrix)[0] for matrix in self.matrices()))

    def _summary(self) -> Summary:
        rows = {"clients": f"{self.num_clients:,}", "period": f"{self.period:,}"}
        rows["links per client"] = f"{self.links_per_client:.4g}"
        kind = "doubly stochastic" if self.doubly_stochastic else "columns have the sum 1"
        rows["matrices"] = ("symmetric, " if self.symmetric else "") + kind
        return Summary(f"Topology: {self.num_clients:,} clients", rows)


_ZERO = 1e-13  # rounding errors of some hundred sums of numbers up to 1, in double precision

jax.tree_util.register_dataclass(
    Topology,
    data_fields=["weights", "neighbours", "mean_weight"],
    meta_fields=["num_links", "symmetric", "doubly_stochastic"],
)


def check_topology(topology: object, *, doubly: bool = True, symmetric: bool = False) -> None:
    """Refuses what is no topology, and mixing matrices without a property."""
    if not isinstance(topology, Topology):
        raise ValueError(
            f"topology is {topology!r:.60}; expected one of fedjax_sim.topologies, such as ring(8)"
        )
    if doubly and not topology.doubly_stochastic:
        raise ValueError(
            "topology has rows whose sum is not 1, which move the mean of the models; expected "
            "doubly stochastic matrices, or topologies.sgp"
        )
    if symmetric and not topology.symmetric:
        raise ValueError("topology is directed; expected symmetric mixing matrices")


def known_weights(topology: Topology) -> np.ndarray | None:
    """Returns the weights in double precision; None: they are traced."""
    known = is_concrete(topology.weights)
    return np.asarray(topology.weights, np.float64) if known else None
