"""FedJAX's own FedAvg on W1 to W4, in the virtual environment that has FedJAX.

Its sampler and shuffled minibatches, Haiku models, one jitted step a minibatch (its default
backend).  FedJAX 0.0.17 is the release of PyPI.
"""

# pyright: reportMissingImports=false

import fedjax
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from fedjax.algorithms import fed_avg

from benchmarks.jobs import timed
from benchmarks.workloads import WORKLOADS, Workload, make_data


def measure(workload: str, seconds: float) -> dict[str, float]:
    """Runs in the candidate's own process."""
    w = WORKLOADS[workload]
    x, y = make_data(w)
    clients = {b"%06d" % i: {"x": x[i], "y": y[i]} for i in range(w.clients)}
    data = fedjax.InMemoryFederatedData(clients)
    init, apply = _network(w, x[0, :1])

    def loss(params, batch, key):
        del key
        z, labels = apply(params, batch["x"]), batch["y"]
        if w.classes == 1:
            return jnp.mean(jnp.logaddexp(0.0, z[:, 0]) - labels * z[:, 0])
        picked = jnp.take_along_axis(z, labels[:, None], axis=-1)[:, 0]
        return jnp.mean(jax.nn.logsumexp(z, axis=-1) - picked)

    batches = fedjax.ShuffleRepeatBatchHParams(batch_size=w.batch, num_epochs=w.epochs, seed=0)
    algorithm = fed_avg.federated_averaging(
        jax.jit(jax.grad(loss)), fedjax.optimizers.sgd(w.lr), fedjax.optimizers.sgd(1.0), batches
    )
    sampler = fedjax.client_samplers.UniformGetClientSampler(data, w.cohort, seed=1)
    state = {"server": algorithm.init(init(jax.random.PRNGKey(0)))}

    def one_call() -> int:
        state["server"], _ = algorithm.apply(state["server"], sampler.sample())
        jax.block_until_ready(state["server"].params)
        return 1

    found = timed(one_call, seconds)
    if not all(bool(jnp.isfinite(a).all()) for a in jax.tree.leaves(state["server"].params)):
        raise FloatingPointError("the model diverged")
    return found


def _network(w: Workload, example: np.ndarray):
    def forward(x):
        def stage(x, channels, kernel, pool):
            x = jax.nn.relu(hk.Conv2D(channels, kernel, padding="VALID")(x))
            return hk.MaxPool((1, 2, 2, 1), (1, 2, 2, 1), "VALID")(x) if pool else x

        hidden = {"femnist": [128], "lenet": [120, 84]}.get(w.model, [])
        if w.model == "femnist":
            x = stage(stage(x, 32, 3, pool=False), 64, 3, pool=True)
        elif w.model == "lenet":
            x = stage(stage(x, 6, 5, pool=True), 16, 5, pool=True)
        x = x.reshape(x.shape[0], -1)
        for size in hidden:
            x = jax.nn.relu(hk.Linear(size)(x))
        return hk.Linear(w.classes)(x)

    network = hk.without_apply_rng(hk.transform(forward))
    return lambda key: network.init(key, example), network.apply
