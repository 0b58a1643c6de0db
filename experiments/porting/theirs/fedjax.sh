#!/bin/sh
# Column "theirs" of fedjax in docs/coming_from/table.toml, by running it.
# It needs jax.tree_map, which later releases of JAX do not have.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip() { "$folder/venv/bin/pip" install --quiet --disable-pip-version-check "$@"; }
pip fedjax==0.0.17 jax==0.4.25 jaxlib==0.4.25 "numpy<2" "scipy<1.13" dm-haiku==0.0.12
PYTHONPATH="$here" "$folder/venv/bin/python" - <<'PYTHON'
import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from compare import compare
from fedjax.algorithms import fed_avg, mime
from fedjax.core.client_datasets import (
    ClientDataset,
    PaddedBatchHParams,
    ShuffleRepeatBatchHParams,
)


def path(optimizer):
    params, result = {"x": jnp.zeros(1)}, []
    state = optimizer.init(params)
    for _ in range(3):
        state, params = optimizer.apply({"x": -jnp.ones(1)}, state, params)
        result.append(float(params["x"][0]))
    return result


def client(name, change, examples):
    return name, ClientDataset({"d": np.full(examples, change, np.float32)}), jax.random.PRNGKey(0)


def share():
    def grad(params, batch, key):
        return jax.tree_util.tree_map(lambda x: -batch["d"].mean(), params)

    sgd = fedjax.optimizers.sgd(1.0)
    one_step = ShuffleRepeatBatchHParams(batch_size=30, num_epochs=None, num_steps=1)
    algorithm = fed_avg.federated_averaging(grad, sgd, sgd, one_step)
    state = algorithm.init({"x": jnp.zeros(())})
    state, _ = algorithm.apply(state, [client(b"a", 0, 10), client(b"b", 1, 30)])
    return float(state.params["x"])


def mime_path():
    algorithm = mime.mime(
        lambda params, batch, key: -params["x"] * batch["d"],
        fedjax.optimizers.sgd(1.0, momentum=0.9),
        ShuffleRepeatBatchHParams(batch_size=1, num_epochs=1),
        PaddedBatchHParams(batch_size=1),
        1.0,
    )
    state, result = algorithm.init({"x": jnp.zeros(())}), []
    for _ in range(3):
        state, _ = algorithm.apply(state, [client(b"a", 1, 1)])
        result.append(float(state.params["x"]))
    return result


def drawn(examples, epochs):
    data = ClientDataset({"x": np.arange(examples)})
    return [batch["x"] for batch in data.shuffle_repeat_batch(batch_size=4, num_epochs=epochs)]


nine = drawn(9, 1)
optimizers = fedjax.optimizers
measured = {
    "adam": path(optimizers.adam(0.1, 0.9, 0.99, 1e-3)),
    "yogi": path(optimizers.yogi(0.1, 0.9, 0.99, 1e-3)),
    "adagrad": path(optimizers.adagrad(0.1, eps=1e-3)),
    "momentum": path(optimizers.sgd(0.1, momentum=0.9))
    + path(optimizers.sgd(0.1, momentum=0.9, nesterov=True)),
    "weights": share(),
    "batches": [len(batch) for batch in drawn(10, 2)],
    "last-batch": [*map(len, nine), int(np.sum(np.bincount(np.concatenate(nine)) == 2))],
    "mime": mime_path(),
}
compare("fedjax", "fedjax jax", measured)
PYTHON
