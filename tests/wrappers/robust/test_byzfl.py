"""Robust rules against those of ByzFL (extra ``oracles``), where it is installed.

Known differences: ByzFL's Krum sums over n - f - 1 neighbours, which are those of Krum for f - 1
attackers; its Multi-Krum averages n - f uploads; its geometric median starts at 0.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from robust_rules import reference_uploads

from fedjax_sim import robust
from fedjax_sim.types import Stack
from fedjax_sim.wrappers.robust.aggregation import points_of

byzfl = pytest.importorskip("byzfl", reason="byzfl is not installed (extra oracles)")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("x64")]

F, SLOTS = 2, 12
CASES = {
    "median": (robust.median(), lambda: byzfl.Median()),
    "trimmed mean": (robust.trimmed_mean(F), lambda: byzfl.TrMean(f=F)),
    "krum": (robust.krum(F - 1), lambda: byzfl.Krum(f=F)),
    "multi-krum": (robust.multi_krum(F - 1, m=SLOTS - F), lambda: byzfl.MultiKrum(f=F)),
    "geometric median": (
        robust.geometric_median(iterations=3000),
        lambda: byzfl.GeometricMedian(nu=1e-5, T=3000),
    ),
    "clipping": (
        robust.centred_clipping(1.0, iterations=3),
        lambda: byzfl.CenteredClipping(L=3, tau=1.0),
    ),
    "nnm + trimmed mean": (
        robust.nnm(robust.trimmed_mean(F)),
        lambda: lambda x: byzfl.TrMean(f=F)(byzfl.NNM(f=F)(x)),
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", [None, 0, 1])
def test_rules_agree_with_byzfl(name, seed):
    rule, build = CASES[name]
    x = reference_uploads() if seed is None else np.random.default_rng(seed).normal(size=(SLOTS, 7))
    clients = jnp.arange(SLOTS, dtype=jnp.int32)
    points = points_of(Stack(jnp.asarray(x), None, jnp.ones(SLOTS, bool), clients))
    aggregate = jax.jit(rule.aggregate)(points, jnp.zeros(x.shape[1]), jax.random.key(0))
    np.testing.assert_allclose(aggregate, build()(x.copy()), rtol=0, atol=1e-9)
