r"""Muon: momentum whose matrices are orthogonalised.

References:
    Jordan et al., "Muon: An Optimizer for Hidden Layers in Neural Networks", 2024.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from fedjax_sim import tree
from fedjax_sim.types import Params, Scalar

# Coefficients of the polynomial a X + b X^3 + c X^5, which maps (0, 1] into about [0.7, 1.2].
_A, _B, _C = 3.4445, -4.7750, 2.0315


class MuonState(NamedTuple):
    momentum: Params  # M


# No rule on shapes tells the stacked biases of `vit` from a kernel, so the default takes leaves
# with two axes, and users may select others.
def is_matrix(path: tuple[str, ...], leaf: Any) -> bool:
    """Predicate of the leaves with two axes."""
    return jnp.ndim(leaf) == 2


def split(params: Params, matrices: tree.leaves.Selection) -> tuple[Params, Params]:
    """Returns the leaves that Muon updates, which must have at least two axes, and all others."""
    part, others = tree.leaves.split(params, matrices)
    for path, leaf in jax.tree_util.tree_leaves_with_path(part):
        if jnp.ndim(leaf) < 2:
            raise ValueError(
                f"matrices selects {'/'.join(tree.leaves.names(path))} of shape {jnp.shape(leaf)}; "
                "expected leaves with two axes or more"
            )
    return part, others


def orthogonalized(matrix: Array, steps: int = 5) -> Array:
    r"""Returns a matrix with the singular vectors of ``matrix`` and singular values near 1.

    Newton-Schulz steps :math:`X \leftarrow a X + (b A + c A^2) X` with :math:`A = X X^\top`, from
    :math:`X = \text{matrix} / (\|\text{matrix}\|_F + 10^{-7})`.
    """
    rows, columns = matrix.shape
    x = matrix.T if rows > columns else matrix
    x = tree.scale(tree.over_norm(1.0, x, 1e-7), x)
    for _ in range(steps):
        square = x @ x.T
        x = _A * x + (_B * square + _C * square @ square) @ x
    return x.T if rows > columns else x


def scale_by_muon(momentum: Scalar = 0.95) -> optax.GradientTransformation:
    r"""Transform that replaces matrices of gradients by Muon's directions.

    .. math::
        M \leftarrow \beta M + (1 - \beta) g, \qquad
        u = \sqrt{\max(1, \text{rows} / \text{columns})}\;
        \mathrm{orth}\bigl(\beta M + (1 - \beta) g\bigr)

    Kernels are stored as [outputs, inputs]; leaves with further axes before these hold several
    kernels, one per block of a network.  The direction does not depend on the scale of g.
    optax's Muon corrects the bias of M and has another order of the axes.
    """

    def init(params: Params) -> MuonState:
        return MuonState(tree.zeros_like(params))

    def update(
        gradient: Params, state: MuonState, params: Params | None = None
    ) -> tuple[Params, MuonState]:
        new = _mixed(momentum, state.momentum, gradient)
        ahead = _mixed(momentum, new, gradient)

        def direction(kernels: Array) -> Array:
            rows, columns = kernels.shape[-2:]
            function = orthogonalized
            for _ in range(kernels.ndim - 2):
                function = jax.vmap(function)
            return max(1.0, rows / columns) ** 0.5 * function(kernels)

        return jax.tree.map(direction, ahead), MuonState(new)

    return optax.GradientTransformation(init, update)  # pyright: ignore[reportArgumentType]


def muon_or_adam(
    momentum: Scalar, b1: Scalar, b2: Scalar, matrices: tree.leaves.Selection
) -> optax.GradientTransformation:
    """Transform that applies Muon to the selected leaves and Adam to all others."""

    def labels(params: Params) -> Any:
        part, others = split(params, matrices)
        names = (
            jax.tree.map(lambda _, name=name: name, x)
            for name, x in (("muon", part), ("adam", others))
        )
        return tree.leaves.join(*names)

    adam = optax.scale_by_adam(b1, b2, eps_root=1e-30)
    return optax.partition({"muon": scale_by_muon(momentum), "adam": adam}, labels)


def _mixed(momentum: Scalar, mean: Params, gradient: Params) -> Params:
    return tree.add_scale(tree.scale(momentum, mean), 1 - momentum, gradient)
