#!/bin/sh
# lineax's Diagonal: the more entries, the more are taken for 0, and from 4,194,304 on in float32 all are.
#
# Guess: a diagonal system is solved by x = b / a, entry by entry, as the class says, and only an entry that is
# 0 has the solution 0.  By default entries up to 2 N times the machine precision times the largest count as
# 0, where N is their number (the text says N): 24 % of the largest for a million parameters, 95 % for four.
# Then a step divided by a diagonal Hessian or Fisher information is 0 in every entry, and the result says
# "successful".  The automatic solver does the same with well_posed False or None.  With well_posed=True,
# or rcond=0, each entry is divided.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check \
    jax==0.10.2 jaxlib==0.10.2 lineax==0.1.1 equinox==0.13.8 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata

import jax.numpy as jnp
import lineax
import numpy as np

print("lineax", importlib.metadata.version("lineax"))
PRECISION = float(jnp.finfo(jnp.float32).eps)
SOLVERS = {
    "Diagonal()": lineax.Diagonal(),
    "AutoLinearSolver(well_posed=False)": lineax.AutoLinearSolver(well_posed=False),
    "AutoLinearSolver(well_posed=None)": lineax.AutoLinearSolver(well_posed=None),
    "Diagonal(rcond=0)": lineax.Diagonal(rcond=0.0),
    "Diagonal(well_posed=True)": lineax.Diagonal(well_posed=True),
    "AutoLinearSolver(well_posed=True)": lineax.AutoLinearSolver(well_posed=True),
}


def zeros(diagonal, solver):
    """The share of entries of the solution for b = 1 that are 0; the others are 1 / diagonal."""
    operator = lineax.DiagonalLinearOperator(jnp.asarray(diagonal))
    solution = lineax.linear_solve(operator, jnp.ones(len(diagonal)), solver)
    assert bool(solution.result == lineax.RESULTS.successful)
    x = np.asarray(solution.value)
    np.testing.assert_allclose(x[x != 0], 1 / diagonal[x != 0], rtol=1e-6)
    return float(np.mean(x == 0))


for number in (10, 1_000, 100_000, 1_000_000, 2**22 - 1, 2**22):
    cut = 2 * number * PRECISION
    even = np.linspace(0.01, 1, number, dtype=np.float32)
    equal = np.ones(number, np.float32)
    print(f"{number} entries: those up to {cut:.7f} of the largest count as 0")
    for name, solver in SOLVERS.items():
        lost = zeros(even, solver), zeros(equal, solver)
        print(f"    {name}: 0 for {lost[0]:.1%} of 0.01 to 1, for {lost[1]:.0%} of equal entries")
        guess = name in ("Diagonal(rcond=0)", "Diagonal(well_posed=True)", "AutoLinearSolver(well_posed=True)")
        share = max(cut - 0.01, 0) / 0.99
        assert abs(lost[0] - (0 if guess else share)) < 1e-3
        assert lost[1] == (0 if guess else float(cut >= 1))
PYTHON
