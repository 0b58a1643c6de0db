#!/bin/sh
# JAX's weighted choice: among millions of entries some are drawn twice as often as others.
#
# Guess: random.choice with equal probabilities p is random.choice without them.  With p a uniform
# number of float32 is looked up in the cumulative sum, and there are 2^23 such numbers: of 6 million
# equal entries some own one of them and some two, and of 2^24 entries every other one is never drawn.
# Without p, every entry has its share.  Examples of a large corpus drawn by weights are affected.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp
import numpy as np

print("jax", jax.__version__)


def counts(n, draws, weighted):
    p = jnp.full(n, 1 / n, jnp.float32) if weighted else None
    drawn = jax.random.choice(jax.random.key(0), n, (draws,), p=p)
    return np.bincount(np.asarray(drawn), minlength=n)


n = 6_000_000
ratio = {}
for weighted in (False, True):
    drawn = counts(n, 2 * n, weighted)
    ratio[weighted] = drawn.var() / drawn.mean()
    print("p" if weighted else "no p", f"6,000,000 entries, variance / mean {ratio[weighted]:.3f}")
assert abs(ratio[False] - 1) < 0.01  # of 6e6 Poisson counts it is 1 with a deviation of 6e-4
assert ratio[True] > 1.2
n = 2**24
drawn = counts(n, n, True) > 0
print(f"2^24 entries, as many draws: even ones {drawn[::2].mean():.3f} odd ones {drawn[1::2].mean():.3f}")
print(f"expected of both: {1 - np.exp(-1):.3f}")
assert sorted([drawn[::2].mean() > 0.85, drawn[1::2].any()]) == [False, True]
PYTHON
