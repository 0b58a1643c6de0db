"""Regulariser and mirror map, applied to the leaves of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim.prox.base import Penalty, Regularizer
from fedjax_sim.prox.mirror import Euclidean, Mirror
from fedjax_sim.prox.penalties import Zero
from fedjax_sim.types import Params, Scalar, shown

Where = Callable[[str, Any], bool]  # (path of a leaf, the leaf) -> True if it is regularised


def every_leaf(path: str, leaf: Any) -> bool:
    """Chooses the whole model.

    Example:
        >>> every_leaf("['dense']['bias']", jnp.zeros(3))
        True
    """
    return True


def kernels(path: str, leaf: Any) -> bool:
    """Chooses the leaves with at least two axes, and so neither biases nor scales.

    Example:
        >>> kernels("w", jnp.ones((2, 3))), kernels("b", jnp.ones(2))
        (True, False)
    """
    return jnp.ndim(leaf) >= 2


@shown
class Composite(NamedTuple):
    r"""The functions of :math:`F + \psi` that a composite method needs besides gradients of F.

    psi and h are sums over the leaves chosen by ``where``; each leaf is a separate array. On the
    other leaves psi is 0 and h is Euclidean.
    """

    psi: Regularizer
    mirror: Mirror
    where: Where

    def value(self, params: Params) -> Array:
        """psi(x), a scalar."""
        each = self._map(lambda psi, mirror, x: psi.value(x), params)
        return jax.tree.reduce(jnp.add, each)

    def to_dual(self, params: Params) -> Params:
        """The gradient of h."""
        return self._map(lambda psi, mirror, x: mirror.to_dual(x), params)

    def to_primal(self, dual: Params) -> Params:
        """The inverse of :meth:`to_dual`."""
        return self._map(lambda psi, mirror, y: mirror.to_primal(y), dual)

    def argmin(self, dual: Params, c: Scalar) -> Params:
        """The minimiser of ``h + c psi - <dual, .>``: psi's prox if h is Euclidean."""
        return self._map(lambda psi, mirror, y: mirror.argmin(psi, y, c), dual)

    def subgradient(self, params: Params) -> Params:
        """An element of psi's subdifferential.

        Raises:
            ValueError: psi is a constraint, which has no subgradient outside its set and no
                unique one at its boundary.
        """

        def one(psi: Regularizer, mirror: Mirror, x: Array) -> Array:
            if not isinstance(psi, Penalty):
                raise ValueError(f"psi is {psi}; expected a penalty, which is finite everywhere")
            return psi.subgradient(x)

        return self._map(one, params)

    def _map(self, function: Callable[[Regularizer, Mirror, Array], Array], x: Params) -> Params:
        def one(path: Any, leaf: Array) -> Array:
            if self.where(jax.tree_util.keystr(path, simple=True, separator="/"), leaf):
                return function(self.psi, self.mirror, leaf)
            return function(Zero(), Euclidean(), leaf)

        return jax.tree.map_with_path(one, x)


def composite(
    psi: Regularizer, mirror: Mirror | None = None, where: Where = every_leaf
) -> Composite:
    r"""The regulariser psi of a composite problem :math:`\min_x F(x) + \psi(x)`, with a geometry.

    Args:
        psi: a penalty or a constraint of :mod:`fedjax_sim.prox`, or any :class:`Regularizer`.
        mirror: the distance-generating function h. Default: Euclidean.
        where: chooses the leaves that are regularised, from a leaf's path, such as
            ``"layer/kernel"``, and the leaf. Default: all leaves; see :func:`kernels`.

    Raises:
        ValueError: psi is no regulariser or ``mirror`` no mirror map, such as a class that was not
            called.

    Example:
        >>> from fedjax_sim import prox
        >>> lasso = composite(prox.L1(0.5), where=lambda path, leaf: path == "w")
        >>> params = {"w": jnp.array([2.0, 0.25]), "b": jnp.array(0.25)}
        >>> {name: leaf.tolist() for name, leaf in lasso.argmin(params, 1.0).items()}
        {'b': 0.25, 'w': [1.5, 0.0]}
    """
    if isinstance(psi, type) or not isinstance(psi, Regularizer):
        raise ValueError(f"psi is {psi!r:.60}; expected a regulariser, for example prox.L1(0.1)")
    mirror = Euclidean() if mirror is None else mirror
    if isinstance(mirror, type) or not isinstance(mirror, Mirror):
        raise ValueError(f"mirror is {mirror!r:.60}; expected a mirror map, such as prox.Entropy()")
    return Composite(psi, mirror, where)


def check_composite(composite: Composite) -> None:
    """Refuses arguments of composite methods that are no composite regulariser."""
    if not isinstance(composite, Composite):
        raise ValueError(
            f"composite is {composite!r:.60}; expected prox.composite(prox.L1(0.1)) or another"
        )
