r"""Mean model and potential of an asynchronous run: the distances between its models.

The analysis of QuAFL and FAVANO uses the mean of the server's model and the models of n clients,
``mu = (w + sum_i w_i) / (n + 1)``, where w_i is the model that client i received at its last
contact. Experiments that store the current models of the clients can pass those. Clients are
pytrees whose leaves have a leading axis of length n.

References:
    "FAVANO: Federated AVeraging with Asynchronous Nodes", arXiv:2305.16099, Equations 5 and 49 and
    Section 5.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.types import Params


def mean_model(server: Params, clients: Params) -> Params:
    """``mu = (w + sum_i w_i) / (n + 1)``, summed in at least float32.

    A server step of FAVANO or QuAFL moves it by ``-lr / (n + 1)`` times the sum of the contacted
    clients' progress, for any contacted clients (Equation 53).

    Args:
        server: w.
        clients: w_i, leaves ``[n, ...]``.

    Returns:
        A model like ``server``.

    Raises:
        ValueError: no clients, leaves with another structure, shape or number of clients.

    Example:
        >>> float(mean_model(jnp.array(4.0), jnp.array([1.0, 1.0])))
        2.0
    """
    n = _num_clients(server, clients)
    return tree.cast_like(_mean(server, clients, n), jax.tree.map(jnp.asarray, server))


def potential(server: Params, clients: Params) -> Array:
    r"""``Phi = ||w - mu||^2 + sum_i ||w_i - mu||^2``, in at least float32.

    Args:
        server: w.
        clients: w_i, leaves ``[n, ...]``.

    Returns:
        A scalar.

    Raises:
        ValueError: no clients, leaves with another structure, shape or number of clients.

    Example:
        >>> float(potential(jnp.array(4.0), jnp.array([1.0, 1.0])))
        6.0
    """
    mu = _mean(server, clients, _num_clients(server, clients))
    return tree.norm(tree.sub(_wide(server), mu), squared=True) + _from(mu, clients)


def client_variance(server: Params, clients: Params) -> Array:
    r"""``sum_i ||w_i - w||^2 = Phi + (n + 1) ||w - mu||^2`` (Equation 77), in at least float32.

    Args:
        server: w.
        clients: w_i, leaves ``[n, ...]``.

    Returns:
        A scalar. It is a sum over the clients and not a mean, as in the figures of the paper.

    Raises:
        ValueError: no clients, leaves with another structure, shape or number of clients.

    Example:
        >>> float(client_variance(jnp.array(4.0), jnp.array([1.0, 1.0])))
        18.0
    """
    _num_clients(server, clients)
    return _from(server, clients)


def _wide(x: Params) -> Params:
    return tree.wide(jax.tree.map(jnp.asarray, x))


def _mean(server: Params, clients: Params, n: int) -> Params:
    """The mean of n + 1 models before it is rounded."""
    total = jax.tree.map(lambda w, each: w + each.sum(0), _wide(server), _wide(clients))
    return tree.divide(total, n + 1)


def _from(center: Params, clients: Params) -> Array:
    differences = jax.tree.map(lambda each, w: each - w, _wide(clients), _wide(center))
    return jnp.asarray(tree.norm(differences, squared=True))


def _num_clients(server: Params, clients: Params) -> int:
    structures = jax.tree.structure(server), jax.tree.structure(clients)
    if structures[0] != structures[1] or not jax.tree.leaves(server):
        raise ValueError(
            f"clients has the structure {structures[1]}; expected {structures[0]}, as the server, "
            "with at least one leaf"
        )
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(clients)]
    n = shapes[0][0] if shapes[0] else 0
    expected = [(n, *jnp.shape(leaf)) for leaf in jax.tree.leaves(server)]
    if n < 1 or shapes != expected:
        raise ValueError(
            f"clients has leaves of shapes {shapes[:3]}; expected the shapes of the server with a "
            "leading axis of at least 1 client"
        )
    return n
