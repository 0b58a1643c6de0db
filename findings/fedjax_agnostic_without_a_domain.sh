#!/bin/sh
# FedJAX's agnostic averaging: a round without some domain makes the model NaN in the next one.
#
# Guess: a domain of which no example is sampled has no say in a round, and its weight waits.  Weights are
# divided by the number of examples of the last rounds, by default of one round.  That is 0 now, and the
# infinite quotient times the 0 examples of a client is NaN.  With five clients a round, of which each has the
# rarer of two domains with chance 1/5, a third of the rounds lack it.  A larger domain_window_size only needs
# as many such rounds in a row.  The weight does not wait either: as that of a domain with loss 0 it falls.
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
from fedjax.algorithms import agnostic_fed_avg

print("fedjax", importlib.metadata.version("fedjax"), "jax", jax.__version__)


def client(name, domain):
    examples = {"x": np.full(10, 1.0 + domain, np.float32), "domain_id": np.full(10, domain, np.int32)}
    return name, fedjax.ClientDataset(examples), jax.random.PRNGKey(0)


def run(window):
    """Models and weights of two domains after three rounds, of which the last two lack domain 1."""
    algorithm = agnostic_fed_avg.agnostic_federated_averaging(
        lambda x, batch, key: 0.5 * (x - batch["x"]) ** 2,
        client_optimizer=fedjax.optimizers.sgd(0.1),
        server_optimizer=fedjax.optimizers.sgd(1.0),
        client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(batch_size=5, num_epochs=1, seed=0),
        domain_batch_hparams=fedjax.PaddedBatchHParams(batch_size=10),
        init_domain_weights=jnp.array([0.5, 0.5]),
        domain_learning_rate=0.1,
        domain_window_size=window,
    )
    state = algorithm.init(jnp.zeros(()))
    models, weights = [], []
    for domains in ((0, 1), (0, 0), (0, 0)):
        state, _ = algorithm.apply(state, [client(b"a", domains[0]), client(b"b", domains[1])])
        models.append(round(float(state.params), 3))
        weights.append([round(float(x), 3) for x in state.domain_weights])
    return models, weights


found = {window: run(window) for window in (1, 2)}
for window, (models, weights) in found.items():
    print(f"window of {window}: models {models}, weights of the domains {weights}")
assert np.isnan(found[1][0][2]) and np.isfinite(found[1][0][1])
assert np.isfinite(found[2][0]).all()
assert found[2][1][1][1] < found[2][1][0][1]
PYTHON
