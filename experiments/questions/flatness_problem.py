"""Setups, methods and measures of the study of flatness and generalisation."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import fedjax_sim as fs
from experiments.questions.flatness_report import RADIUS

CLIENTS, COHORT, EXAMPLES, HIDDEN = 20, 2, 30, 16
ALPHA, NUM_EPOCHS, BATCH_SIZE = 0.1, 5, 6
LR_DECAY, MAX_NORM = 0.998, 10.0
FACTORIES = {
    "FedAvg": fs.fedavg,
    "FedSAM": lambda lr: fs.fedsam(lr, radius=0.05),
    "FedSWA": lambda lr: fs.fedswa(lr, rho=0.1, alpha=1.5),
    "FedMoSWA": lambda lr: fs.fedmoswa(lr, rho=0.1, alpha=1.5, gamma=0.2),
}


def digits(seed: int) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Images and labels of all digits, and a seed's training and test rows."""
    parts = fs.datasets.load("digits")
    x, y = (np.concatenate([parts.train[key], parts.test[key]]) for key in ("x", "y"))
    order = np.random.default_rng(seed).permutation(len(y))
    train, test = np.split(order, [CLIENTS * EXAMPLES])
    return {"x": x.reshape(-1, 64) / np.float32(255), "y": y}, train, test


def make_setup(seed: int, rounds: int) -> fs.Setup:
    """The setup of one seed."""
    images, train, test = digits(seed)
    rng = np.random.default_rng([seed, 1])
    rows = fs.data.partition.dirichlet(images["y"][train], CLIENTS, ALPHA, rng, prior="uniform")
    data = fs.from_assignment(images, [train[part] for part in rows], disjoint=False)
    model = network()
    losses = fs.objectives.cross_entropy(model.apply)
    task = fs.empirical_task(losses, data, fs.epochs(NUM_EPOCHS, BATCH_SIZE))
    draw_key, init_key = jax.random.split(jax.random.key(seed))
    timeline = fs.timelines.uniform(draw_key, rounds, CLIENTS, COHORT, task.num_steps)
    metrics = fs.objectives.classification_metrics(model.apply)
    held_out = fs.evaluation.evaluator(metrics, {key: x[test] for key, x in images.items()})
    return fs.Setup(task, timeline, model.init(init_key), eval_fn=held_out, eval_every=rounds)


def factory(method: str, lr: Any, rounds: int) -> fs.FedAlgorithm:
    """The method at a rate that decays over rounds; means of FedAvg's models over the last half."""
    algorithm = clipped(FACTORIES.get(method, fs.fedavg)(fs.local.exponential_decay(lr, LR_DECAY)))
    if method == "SWA":
        return fs.average_rounds(algorithm, rounds // 2)
    return fs.ema_rounds(algorithm, 0.98) if method == "EMA" else algorithm


def clipped(algorithm: fs.FedAlgorithm) -> fs.FedAlgorithm:
    """The algorithm whose gradients have at most the norm ``MAX_NORM``."""
    return fs.transforms.transform_oracle(
        algorithm, lambda oracle: fs.transforms.clip_by_global_norm(oracle, MAX_NORM)
    )


METHODS = (*FACTORIES, "SWA", "EMA")


def measures(model: Any, images: dict[str, np.ndarray], train: Any, test: Any) -> dict[str, float]:
    """Losses, errors and flatness of a model, in double precision."""
    with jax.enable_x64(True):
        doubles = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), (model, images["x"]))
        start, x, y = ravel_pytree(doubles[0])[0], doubles[1], jnp.asarray(images["y"], jnp.int64)
        # In blocks, since the product of all columns at once would keep every column's activations.
        blocks = np.eye(start.size).reshape(-1, start.size // 10, start.size)
        hessian = np.concatenate([_columns(start, x[train], y[train], block) for block in blocks])
        gradient = jax.grad(_loss)(start, x[train], y[train])
        step = RADIUS * gradient / jnp.linalg.norm(gradient)
        losses = [float(_loss(start, x[rows], y[rows])) for rows in (train, test)]
        wrong = [float((_logits(start, x[r]).argmax(1) != y[r]).mean()) for r in (train, test)]
        rise = float(_loss(start + step, x[train], y[train])) - losses[0]
    return {
        "train loss": losses[0], "test loss": losses[1], "gap": losses[1] - losses[0],
        "train error": wrong[0], "test error": wrong[1],
        "top eigenvalue": float(np.linalg.eigvalsh(hessian)[-1]),
        "trace": float(np.trace(hessian)), "rise": rise,
    }  # fmt: skip


@functools.cache
def network() -> fs.models.Model:
    """The perceptron of all runs."""
    return fs.models.mlp(64, (HIDDEN,), 10)


def _logits(params: jax.Array, x: jax.Array) -> jax.Array:
    """Outputs ``[n, 10]`` of the network whose parameters are one vector."""
    net = network()
    like = jax.eval_shape(net.init, jax.random.key(0))
    _, unravel = ravel_pytree(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, params.dtype), like))
    return net.apply(unravel(params), x)


@jax.jit
def _loss(params: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """Mean cross-entropy."""
    logs = jax.nn.log_softmax(_logits(params, x))
    return -logs[jnp.arange(len(y)), y].mean()


@jax.jit
def _columns(params: jax.Array, x: jax.Array, y: jax.Array, vectors: jax.Array) -> jax.Array:
    """Products of the Hessian with the rows of ``vectors``."""
    gradient = jax.grad(lambda params: _loss(params, x, y))
    return jax.vmap(lambda v: jax.jvp(gradient, (params,), (v,))[1])(vectors)
