#!/bin/sh
# FedJAX's initial clusters: one noisy client becomes two of them, which are the same.
#
# Guess: k-means++ starts from different centres.  The next centre is the model of the client with the largest
# loss under all centres so far, also if that is its own model already: a client whose own model fits it badly
# is chosen over and over.  Of two equal centres every client takes the first.  For three groups of four
# clients around 0, 5 and 10 and one client with noise of deviation 20, two of the three groups share a cluster
# after ten rounds of HypCluster for each of ten keys.  Without that client all three are found.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check fedjax==0.0.17 jax==0.4.24 jaxlib==0.4.24 numpy==1.26.4 scipy==1.11.4 dm-haiku==0.0.11 optax==0.1.9
JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from fedjax.algorithms import hyp_cluster

print("fedjax", importlib.metadata.version("fedjax"), "jax", jax.__version__)


def loss(x, batch, key):
    return 0.5 * (x - batch["x"]) ** 2


def clients(noisy):
    generator = np.random.default_rng(0)
    kinds = [(mean, 0.1) for mean in (0, 5, 10) for _ in range(4)] + [(5, 20.0)] * noisy
    return [
        (
            f"{i:02}".encode(),
            fedjax.ClientDataset({"x": generator.normal(mean, deviation, 20).astype(np.float32)}),
            jax.random.PRNGKey(i),
        )
        for i, (mean, deviation) in enumerate(kinds)
    ]


batches = fedjax.ShuffleRepeatBatchHParams(batch_size=10, num_epochs=10, seed=0)
whole = fedjax.PaddedBatchHParams(batch_size=20)
trainer = hyp_cluster.ClientParamsTrainer(fedjax.grad(loss), fedjax.optimizers.sgd(0.5))
evaluator = fedjax.AverageLossEvaluator(loss)
algorithm = hyp_cluster.hyp_cluster(
    loss, fedjax.optimizers.sgd(0.1), fedjax.optimizers.sgd(1.0), whole, batches
)
used = {}
for noisy in (0, 1):
    sample = clients(noisy)
    used[noisy] = []
    for key in range(10):
        centres = hyp_cluster.kmeans_init(
            3, jnp.zeros(()), sample, trainer, batches, evaluator, whole, jax.random.PRNGKey(key)
        )
        state = algorithm.init(centres)
        for _ in range(10):
            state, diagnostics = algorithm.apply(state, sample)
        groups = {int(diagnostics[f"{i:02}".encode()]["cluster_id"]) for i in range(12)}
        used[noisy].append((len({float(x) for x in centres}), len(groups)))
    print(
        f"{noisy} noisy clients: centres that differ and clusters of the three groups after ten rounds,"
        f" for ten keys {used[noisy]}; for the last key {[round(float(x), 2) for x in centres]} became"
        f" {[round(float(x), 2) for x in state.cluster_params]}"
    )
assert used[0] == [(3, 3)] * 10
assert all(centres < 3 and groups == 2 for centres, groups in used[1])
PYTHON
