"""Checks of oracles, and of what their functions return."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_sim.checks.calls import shapes_text
from fedjax_sim.types import Oracle, Params, PyTree


def checked_oracle(source: str, oracle: Any) -> Oracle:
    """Returns an oracle whose gradients have the shapes of the model, and whose losses are numbers.

    A gradient of another shape would be broadcast by the step that uses it.  The checks compare
    shapes while the oracle's functions are traced.
    """
    if not isinstance(oracle, Oracle):
        raise ValueError(
            f"{source} returns a {type(oracle).__name__}; expected a fedjax_sim.Oracle, such as "
            "oracle._replace(grad=...) of another one"
        )

    def checked(name: str, function: Any, *, gradient: bool) -> Any:
        if not callable(function):  # which the algorithm does not need
            return function

        def result(params: Params, *step: Any) -> Any:
            value = function(params, *step)
            if _floats(value) != _floats(params if gradient else 0.0):
                expected = f"floats as the model, {shapes_text(params)}" if gradient else "one loss"
                raise ValueError(
                    f"{source} has a function {name} that returns {shapes_text(value)}; expected "
                    f"{expected}"
                )
            return value

        return result

    return oracle._replace(
        grad=checked("grad", oracle.grad, gradient=True),
        full_grad=checked("full_grad", oracle.full_grad, gradient=True),
        loss=checked("loss", oracle.loss, gradient=False),
        full_loss=checked("full_loss", oracle.full_loss, gradient=False),
    )


def _floats(values: PyTree) -> Any:
    """Returns the structure and the shapes of floating leaves; of other leaves also the dtypes."""

    def shape(leaf: Any) -> Any:
        try:
            dtype = jnp.result_type(leaf)
        except TypeError:
            return type(leaf)
        floating = jnp.issubdtype(dtype, jnp.floating)
        return jnp.shape(leaf), None if floating else dtype

    return jax.tree.structure(values), [shape(leaf) for leaf in jax.tree.leaves(values)]
