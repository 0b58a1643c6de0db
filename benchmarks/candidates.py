"""The JAX candidates of the rounds: ours, plain JAX, DrJAX.

Each is ``setup(workload, ...) -> one_call``; ``one_call() -> rounds done`` blocks until they are
done.
"""

# pyright: reportMissingImports=false

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.jobs import OneCall
from benchmarks.workloads import WIDE, Workload, make_data


def problem(w: Workload, half: bool = False) -> tuple:
    """The workload as fedjax_sim's ``(model, task)``, its gradients in bfloat16 if ``half``."""
    import fedjax_sim as fs
    from fedjax_sim import models, objectives

    build = {
        "softmax": lambda: models.softmax_regression(w.shape, w.classes),
        "logistic": lambda: models.logistic_regression(w.shape),
        "femnist": models.femnist_cnn,
        "lenet": models.lenet5,
        "lenet-wide": lambda: models.lenet5(w.classes, *WIDE),
        "resnet18": lambda: models.resnet18(w.classes),
    }
    model = build[w.model]()
    loss = objectives.binary_cross_entropy if w.classes == 1 else objectives.cross_entropy
    x, y = make_data(w)
    offsets = np.arange(w.clients + 1, dtype=np.int32) * w.examples
    data = fs.FederatedData({"x": x.reshape(-1, *w.shape), "y": y.reshape(-1)}, offsets)
    task = fs.empirical_task(loss(model.apply), data, fs.epochs(w.epochs, w.batch))
    return model, models.in_precision(task, jnp.bfloat16) if half else task


def timeline(w: Workload, key: jax.Array, rounds: int):
    """The workload's participation: everybody, or a uniform cohort."""
    from fedjax_sim.timelines import sampling

    if w.cohort == w.clients:
        return sampling.full(rounds, w.clients, w.steps)
    return sampling.uniform(key, rounds, w.clients, w.cohort, w.steps)


def execution_strategy(name: str):
    """Returns ``auto``, ``vmapped``, ``sequential``, ``chunked:N``, ``sharded[-chunked:N]``."""
    from fedjax_sim.engine import strategies

    kind, _, number = name.partition(":")
    mesh = jax.make_mesh((jax.device_count(),), ("clients",))
    known = {
        "auto": strategies.auto,
        "vmapped": strategies.vmapped,
        "sequential": strategies.sequential,
        "chunked": lambda: strategies.chunked(int(number)),
        "sharded": lambda: strategies.sharded(mesh),
        "sharded-chunked": lambda: strategies.sharded(mesh, strategies.chunked(int(number))),
    }
    if kind not in known:
        raise ValueError(f"strategy is {name!r}; expected one of {', '.join(known)}")
    return known[kind]()


def placed(function: Callable, task, *rest) -> tuple[Callable, object]:
    """Returns the compiled function and its first argument, the task, on the devices it needs.

    Without this, the task would be copied to several devices in every call.
    """
    compiled = jax.jit(function).lower(task, *rest).compile()
    return compiled, jax.device_put(task, compiled.input_shardings[0][0])


def ours(w: Workload, strategy: str, rounds: int | None = None, half: bool = False) -> OneCall:
    """fedjax_sim: sampling, minibatches, training and averaging of many rounds per dispatch."""
    import fedjax_sim as fs

    # By default about half a second of work, as a run with few evaluations has.
    rounds = rounds or {"logistic": 100, "softmax": 10}.get(w.model, 1)
    model, task = problem(w, half)
    algorithm, strategies = fs.fedavg(w.lr), execution_strategy(strategy)

    def rounds_of(task, params, key):
        schedule, visits = jax.random.split(key)
        when = timeline(w, schedule, rounds)
        state, _ = fs.run(
            algorithm, fs.Setup(task, when, params, eval_every=rounds), visits, execution=strategies
        )
        return state.server.params

    state = {"params": model.init(jax.random.key(0)), "calls": 0}
    program = functools.cache(lambda: placed(rounds_of, task, state["params"], jax.random.key(0)))

    def one_call() -> int:
        call, data = program()
        key = jax.random.fold_in(jax.random.key(7), state["calls"])
        state["params"] = jax.block_until_ready(call(data, state["params"], key))
        state["calls"] += 1
        return rounds

    return one_call


def _loss(w: Workload, params, x, y):
    """The workload's loss written without the library, with jax.lax convolutions."""

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
    import drjax

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
