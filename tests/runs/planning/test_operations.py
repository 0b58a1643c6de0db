"""Operations of programs with loops and branches."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.runs.planning.measuring import operations

N, INNER, OUTER = 20, 3, 5
MATRIX = jax.ShapeDtypeStruct((N, N), jnp.float32)
PRODUCT = 2 * N**3


def powers(x, length):
    return jax.lax.scan(lambda y, _: (y @ x, None), x, length=length)[0]


def test_loops_count_as_often_as_they_run_and_branches_once():
    """5 x (3 + max(2, 1)) products and 5 for another pass over them; a batch of 4 of all that."""

    @jax.jit
    def outer(x, flag):
        def step(y, _):
            y = powers(y, INNER)
            return jax.lax.cond(flag, lambda y: powers(y, 2), lambda y: y @ y, y), None

        result, _ = jax.lax.scan(step, x, length=OUTER)
        return jax.lax.map(lambda row: result @ row, jnp.ones((OUTER, N, N)))

    flag = jax.ShapeDtypeStruct((), jnp.bool_)
    expected = OUTER * (INNER + 2) + OUTER
    one = operations(outer, MATRIX, flag)
    np.testing.assert_allclose(one / PRODUCT, expected, rtol=0.02)
    batch = jax.ShapeDtypeStruct((4, N, N), jnp.float32)
    four = operations(jax.vmap(outer, (0, None)), batch, flag)
    np.testing.assert_allclose(four / PRODUCT, 4 * expected, rtol=0.02)
