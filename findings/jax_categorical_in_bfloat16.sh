#!/bin/sh
# JAX's categorical with logits in bfloat16: of 1,000 equal classes the first 100 get half of the draws.
#
# Guess: equal logits are equal in every dtype, so each class gets its share.  Noise of the logits' dtype is
# added and the largest sum wins; in bfloat16 that noise has some 128 values, so most draws are ties, and
# the first of equal numbers wins: the first 100 classes get 54 % of the draws and 278 of 1,000 classes none.
# With mode="high" the shares are right.  random.choice with p in bfloat16 looks one of 128 uniform numbers
# up in a sum of bfloat16: 872 of 1,000 entries are never drawn.  Cohorts, labels and tokens are drawn so.
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
CLASSES, DRAWS = 1000, 20_000


def shares(drawn):
    """Share of the first tenth of the classes, and the number of classes that never occur."""
    counts = np.bincount(np.asarray(drawn), minlength=CLASSES)
    return counts[: CLASSES // 10].sum() / DRAWS, int((counts == 0).sum())


key, found = jax.random.key(0), {}
for dtype in (jnp.float32, jnp.bfloat16):
    logits, p = jnp.zeros(CLASSES, dtype), jnp.full(CLASSES, 1 / CLASSES, dtype)
    name = dtype.__name__
    found[name, "categorical"] = shares(jax.random.categorical(key, logits, shape=(DRAWS,)))
    found[name, "categorical, high"] = shares(
        jax.random.categorical(key, logits, shape=(DRAWS,), mode="high")
    )
    found[name, "choice"] = shares(jax.random.choice(key, CLASSES, (DRAWS,), p=p))
for (name, function), (first, absent) in found.items():
    print(f"{name} {function}: first 100 of 1,000 classes {first:.1%} (expected 10 %), never drawn {absent}")
for function in ("categorical", "categorical, high", "choice"):
    assert abs(found["float32", function][0] - 0.1) < 0.01 and found["float32", function][1] == 0
assert found["bfloat16", "categorical"][0] > 0.5 and found["bfloat16", "categorical"][1] > 250
assert abs(found["bfloat16", "categorical, high"][0] - 0.1) < 0.01
assert found["bfloat16", "categorical, high"][1] == 0
assert found["bfloat16", "choice"][1] >= CLASSES - 128
PYTHON
