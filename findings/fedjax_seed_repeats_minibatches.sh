#!/bin/sh
# FedJAX: a seed for minibatches gives a client the same ones in every round, and with few steps most examples none.
#
# Guess: seed makes a run repeatable, as the seed of a whole run does, and rounds still differ.  Each visit of a
# client starts a new generator from this seed, so the order of its examples is the same in each round, and
# so are the orders of all clients of one size.  With three steps of ten examples a client with 100 trains on
# 30 of them for the whole run; the other 70 are never seen.  Without a seed all are seen after a few rounds,
# but the run can't be repeated.
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

print("fedjax", importlib.metadata.version("fedjax"), "jax", jax.__version__)
EXAMPLES, ROUNDS = 100, 30
client = fedjax.ClientDataset({"place": np.arange(EXAMPLES)})


def seen(seed):
    """Number of examples that had a gradient in thirty rounds of FedAvg, three steps of ten each."""
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        lambda counts, batch, key: jnp.zeros(EXAMPLES).at[batch["place"]].add(-1.0),
        client_optimizer=fedjax.optimizers.sgd(1.0),
        server_optimizer=fedjax.optimizers.sgd(1.0),
        client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(batch_size=10, num_steps=3, seed=seed),
    )
    state = algorithm.init(jnp.zeros(EXAMPLES))
    for index in range(ROUNDS):
        state, _ = algorithm.apply(state, [(b"0", client, jax.random.PRNGKey(index))])
    counts = np.asarray(state.params)
    assert counts.sum() == 30 * ROUNDS
    return int(np.count_nonzero(counts))


found = {seed: seen(seed) for seed in (0, 1, None)}
for seed, number in found.items():
    print(f"seed {seed}: {number} of {EXAMPLES} examples trained on in {ROUNDS} rounds")
assert found[0] == found[1] == 30
assert found[None] == EXAMPLES
PYTHON
