#!/bin/sh
# FedJAX's rate of out-of-vocabulary tokens: with two such tokens it is 0, whatever the text.
#
# Guess: oov_target_values lists the tokens that stand for unknown words, and the rate counts a token that
# is one of them.  It counts a token that is all of them at once.  With one value the rate is right, with
# two or more it is 0: of five tokens of which three are unknown, 0.0 instead of 0.6.  Its own tokenizer of Stack
# Overflow has the option num_oov_buckets, which gives unknown words several tokens.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check fedjax==0.0.17 jax==0.4.24 jaxlib==0.4.24 numpy==1.26.4 scipy==1.11.4 dm-haiku==0.0.11 optax==0.1.9
JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata

import jax
import jax.numpy as jnp
from fedjax import metrics

print("fedjax", importlib.metadata.version("fedjax"), "jax", jax.__version__)
sentence = {"y": jnp.array([7, 100, 101, 100, 8, 0])}  # 100 and 101 are unknown words, 0 is padding
rates = {}
for values in ((100,), (101,), (100, 101)):
    metric = metrics.SequenceTokenOOVRate(oov_target_values=values)
    rates[values] = float(metric.evaluate_example(sentence, None).result())
    print(f"rate of tokens {values}: {rates[values]:.1f}")
assert abs(rates[100,] - 0.4) < 1e-6 and abs(rates[101,] - 0.2) < 1e-6
assert rates[100, 101] == 0
PYTHON
