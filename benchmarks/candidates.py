"""The candidates of the speed benchmark: ours, plain JAX, DrJAX, a PyTorch loop.

Each is ``setup(workload) -> one_call``; ``one_call() -> rounds done`` blocks until they are done.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.workloads import Workload, make_data

OneCall = Callable[[], int]


def ours(w: Workload, strategy: str, rounds: int) -> OneCall:
    """fedjax_sim: sampling, minibatches, training and averaging of ``rounds`` rounds a dispatch."""
    import fedjax_sim as fs
    from fedjax_sim import models, objectives

    build = {
        "softmax": lambda: models.softmax_regression(w.shape, w.classes),
        "logistic": lambda: models.logistic_regression(w.shape),
        "femnist": models.femnist_cnn,
        "lenet": models.lenet5,
    }
    model = build[w.model]()
    loss = objectives.binary_cross_entropy if w.classes == 1 else objectives.cross_entropy
    x, y = make_data(w)
    offsets = np.arange(w.clients + 1, dtype=np.int32) * w.examples
    data = fs.FederatedData({"x": x.reshape(-1, *w.shape), "y": y.reshape(-1)}, offsets)
    task = fs.empirical_task(loss(model.apply), data, fs.epochs(w.epochs, w.batch))
    num_steps = task.num_steps
    algorithm = fs.fedavg(w.lr)
    name, _, number = strategy.partition(":")
    mesh = jax.make_mesh((jax.device_count(),), ("clients",))
    cohorts = {
        "auto": fs.cohort.auto,
        "vmapped": fs.cohort.vmapped,
        "sequential": fs.cohort.sequential,
        "chunked": lambda: fs.cohort.chunked(int(number)),
        "sharded": lambda: fs.cohort.sharded(mesh),
        "sharded-chunked": lambda: fs.cohort.sharded(mesh, fs.cohort.chunked(int(number))),
    }
    cohort = cohorts[name]()

    def timeline(key):
        if w.cohort == w.clients:
            return fs.participation.full(rounds, w.clients, num_steps)
        return fs.participation.uniform(key, rounds, w.clients, w.cohort, num_steps)

    @functools.partial(jax.jit, donate_argnums=1)
    def call(task, params, key):
        schedule, visits = jax.random.split(key)
        state, _ = fs.run(
            algorithm, task, timeline(schedule), params, visits, cohort=cohort, eval_every=rounds
        )
        return state.server.params

    state = {"params": model.init(jax.random.key(0)), "calls": 0}

    def one_call() -> int:
        key = jax.random.fold_in(jax.random.key(7), state["calls"])
        state["params"] = jax.block_until_ready(call(task, state["params"], key))
        state["calls"] += 1
        return rounds

    return one_call


def _loss(w: Workload, params, x, y):
    """The workload's loss as one writes it without the library: jax.lax convolutions."""

    def conv(x, p):
        out = jax.lax.conv_general_dilated(
            x, p["w"], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jax.nn.relu(out + p["b"])

    def pool(x):
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    *layers, last = params
    if w.model == "femnist":
        x = pool(conv(conv(x, layers[0]), layers[1])).reshape(x.shape[0], -1)
        layers = layers[2:]
    elif w.model == "lenet":
        x = pool(conv(pool(conv(x, layers[0])), layers[1])).reshape(x.shape[0], -1)
        layers = layers[2:]
    for p in layers:
        x = jax.nn.relu(x @ p["w"] + p["b"])
    z = x @ last["w"] + last["b"]
    if w.classes == 1:
        return jnp.mean(jnp.logaddexp(0.0, z[:, 0]) - y * z[:, 0])
    picked = jnp.take_along_axis(z, y[:, None], axis=-1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(z, axis=-1) - picked)


def _init(w: Workload):
    shapes = {
        "softmax": [(784, 10)],
        "logistic": [(123, 1)],
        "femnist": [(3, 3, 1, 32), (3, 3, 32, 64), (9216, 128), (128, 62)],
        "lenet": [(5, 5, 3, 6), (5, 5, 6, 16), (400, 120), (120, 84), (84, 10)],
    }[w.model]
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return [
        {"w": jax.random.normal(k, s) / np.sqrt(np.prod(s[:-1])), "b": jnp.zeros(s[-1])}
        for k, s in zip(keys, shapes, strict=True)
    ]


def _client(w: Workload, params, x, y, key):
    """One client's local SGD: shuffled epochs over its slice of padded data."""
    keys = jax.random.split(key, w.epochs)
    order = jax.vmap(lambda k: jax.random.permutation(k, w.examples))(keys)

    def step(p, rows):
        g = jax.grad(functools.partial(_loss, w))(p, x[rows], y[rows])
        return jax.tree.map(lambda a, b: a - w.lr * b, p, g), None

    return jax.lax.scan(step, params, order.reshape(w.steps, w.batch))[0]


def _jax_round(w: Workload, round_fn: Callable) -> OneCall:
    """One jitted round per dispatch, the cohort sampled on the host."""
    x, y = map(jnp.asarray, make_data(w))
    step = jax.jit(round_fn, donate_argnums=0)
    rng = np.random.default_rng(1)
    state = {"params": _init(w), "round": 0}

    def one_call() -> int:
        ids = jnp.asarray(rng.choice(w.clients, w.cohort, replace=False))
        key = jax.random.fold_in(jax.random.key(7), state["round"])
        state["params"] = jax.block_until_ready(step(state["params"], x, y, ids, key))
        state["round"] += 1
        return 1

    return one_call


def jax_vmap(w: Workload) -> OneCall:
    """Plain ``vmap`` over clients, ``jax.lax`` convolutions."""

    def round_fn(params, x, y, ids, key):
        keys = jax.random.split(key, w.cohort)
        new = jax.vmap(functools.partial(_client, w), (None, 0, 0, 0))(params, x[ids], y[ids], keys)
        return jax.tree.map(lambda a: a.mean(0), new)

    return _jax_round(w, round_fn)


def jax_map(w: Workload) -> OneCall:
    """Plain ``lax.map`` over clients, ``jax.lax`` convolutions."""

    def round_fn(params, x, y, ids, key):
        keys = jax.random.split(key, w.cohort)
        new = jax.lax.map(lambda a: _client(w, params, x[a[0]], y[a[0]], a[1]), (ids, keys))
        return jax.tree.map(lambda a: a.mean(0), new)

    return _jax_round(w, round_fn)


def drjax_mesh(w: Workload) -> OneCall:
    """DrJAX: broadcast, map_fn, reduce_mean over a mesh of all host devices."""
    import drjax  # pyright: ignore[reportMissingImports]

    mesh = jax.make_mesh(
        (jax.device_count(),), ("clients",), axis_types=(jax.sharding.AxisType.Auto,)
    )
    jax.set_mesh(mesh)

    @drjax.program(placements={"clients": w.cohort})
    def round_fn(params, x, y, ids, key):
        keys = jax.random.split(key, w.cohort)
        local = functools.partial(_client, w)
        return drjax.reduce_mean(
            drjax.map_fn(local, (drjax.broadcast(params), x[ids], y[ids], keys))
        )

    return _jax_round(w, round_fn)


def torch_loop(w: Workload, threads: int) -> OneCall:
    """A tight sequential PyTorch loop: batches by index, foreach SGD, no DataLoader."""
    import torch  # pyright: ignore[reportMissingImports]
    from torch import nn  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    body = {
        "softmax": lambda: nn.Linear(784, 10),
        "logistic": lambda: nn.Linear(123, 1),
        "femnist": lambda: nn.Sequential(
            *(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 62)),
        ),
        "lenet": lambda: nn.Sequential(
            *(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
        ),
    }[w.model]
    net = body()
    x, y = make_data(w)
    if len(w.shape) == 3:
        x = x.transpose(0, 1, 4, 2, 3)
    x, y = torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(y).long()
    params = list(net.parameters())
    server = [p.detach().clone() for p in params]
    optimizer = torch.optim.SGD(params, lr=w.lr, foreach=True)
    rng = np.random.default_rng(1)

    def loss(z, t):
        if w.classes == 1:
            return nn.functional.binary_cross_entropy_with_logits(z[:, 0], t.float())
        return nn.functional.cross_entropy(z, t)

    def one_call() -> int:
        total = [torch.zeros_like(p) for p in server]
        for c in rng.choice(w.clients, w.cohort, replace=False):
            xc, yc = x[c], y[c]
            with torch.no_grad():
                torch._foreach_copy_(params, server)  # pyright: ignore[reportPrivateImportUsage]
            for _ in range(w.epochs):
                order = torch.randperm(w.examples)
                for rows in order.split(w.batch):
                    optimizer.zero_grad(set_to_none=True)
                    loss(net(xc[rows]), yc[rows]).backward()
                    optimizer.step()
            with torch.no_grad():
                torch._foreach_add_(total, params)  # pyright: ignore[reportPrivateImportUsage]
        with torch.no_grad():
            for p, t in zip(server, total, strict=True):
                p.copy_(t / w.cohort)
        return 1

    return one_call
