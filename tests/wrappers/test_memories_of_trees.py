"""Memories of compression against NumPy, for models of several leaves.

The model has a matrix and an empty leaf in single precision, and a scalar and a vector in double
precision.  Client 1 has no data, client 3 takes part in no round, some uploads are lost, one round
has no clients, and clients do different numbers of local steps.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compressed_quadratics import as_unbiased, sign, top
from small_problems import compiled

import fedjax_sim as fs
from fedjax_sim.compression import scaled_sign, top_k

pytestmark = pytest.mark.usefixtures("x64")
LEAVES = {"w": ((3, 4), "f4"), "b": ((), "f8"), "e": ((0, 2), "f4"), "s": ((5,), "f8")}
CLIENTS, ROUNDS, LR, ALPHA, START = 5, 7, 0.1, 0.3, 0.3
STEPS = np.array([3, 0, 2, 3, 1], np.int32)
EXAMPLES = np.array([3, 0, 2, 5, 1], np.int32)
RNG = np.random.default_rng(0)
A, B = (
    {name: draw(size=(CLIENTS, *shape)) for name, (shape, _) in LEAVES.items()}
    for draw in (functools.partial(RNG.uniform, 0.5, 2), RNG.normal)
)
MASK = RNG.random((ROUNDS, CLIENTS)) < 0.6
MASK[:, 3], MASK[2] = False, False
LOST = MASK & (RNG.random(MASK.shape) < 0.25)
ALL, NONE = np.ones_like(MASK), np.zeros_like(MASK)


def each(function, *trees):
    return {name: function(*(tree[name] for tree in trees)) for name in LEAVES}


def filled(value):
    return {name: np.full(shape, value) for name, (shape, _) in LEAVES.items()}


def visit(x, i):
    """x minus the model after the client's local steps."""
    y = x
    for _ in range(STEPS[i]):
        y = each(lambda y, a, b: y - LR * a[i] * (y - b[i]), y, A, B)
    return each(np.subtract, x, y)


def code_of(code):
    """Returns a NumPy codec of trees, which codes every leaf by itself, in its shape."""
    return functools.partial(each, lambda v: code(v.reshape(-1)).reshape(v.shape) if v.size else v)


def derived(rule, code, mask, lost, weights):
    """Returns the model, the memories and the server's estimate after all rounds, by the papers."""
    x, estimate, memories = filled(START), filled(0.0), [filled(0.0) for _ in range(CLIENTS)]
    for present, missing in zip(mask, lost, strict=True):
        uploads = {}
        for i in np.nonzero(present)[0]:
            h, sent = memories[i], filled(0.0)
            if STEPS[i] > 0 and rule == "ef14":
                total = each(np.add, h, visit(x, i))
                sent = code(total)
                memories[i] = each(np.subtract, total, sent)
            elif STEPS[i] > 0:
                sent = code(each(np.subtract, visit(x, i), h))
                rate = 1 if rule == "ef21" else ALPHA
                memories[i] = each(lambda h, c, rate=rate: h + rate * c, h, sent)
            if not missing[i]:
                uploads[i] = sent
        total = sum(weights[i] for i in uploads)
        if total == 0:
            continue
        mean = filled(0.0)
        for i, sent in uploads.items():
            mean = each(lambda m, c, w=weights[i] / total: m + w * c, mean, sent)
        share = len(uploads) / CLIENTS
        if rule == "ef14":
            step = mean
        elif rule == "ef21":
            step = estimate = each(lambda g, m, s=share: g + s * m, estimate, mean)
        else:
            step = each(np.add, estimate, mean)
            estimate = each(lambda h, m, s=share: h + s * ALPHA * m, estimate, mean)
        x = each(np.subtract, x, step)
    return x, each(lambda *leaves: np.stack(leaves), *memories), estimate


def oracle(client, key, max_steps):
    def grad(x, step):
        a, b = ({name: jnp.asarray(tree[name], x[name].dtype) for name in x} for tree in (A, B))
        return {name: a[name][client] * (x[name] - b[name][client]) for name in x}

    return fs.Oracle(grad, lambda x, step: x["b"], lambda x: grad(x, 0))


PLAIN = fs.fedavg(LR)
RULES = {
    "ef14": lambda codec: fs.ef14(PLAIN, codec),
    "ef21": lambda codec: fs.ef21(PLAIN, codec),
    "diana": lambda codec: fs.diana(PLAIN, as_unbiased(codec), ALPHA),
}
CODECS = {"top": (code_of(top(2)), top_k(2)), "sign": (code_of(sign), scaled_sign())}


@pytest.mark.parametrize(
    ("weighting", "mask", "lost", "coder"),
    [
        (fs.uniform_weights, MASK, LOST, "top"),
        (fs.weight_by_examples, ALL, NONE, "sign"),
    ],
    ids=["some", "weighted"],
)
def test_memories_follow_their_derivations(weighting, mask, lost, coder):
    code, codec = CODECS[coder]
    task = fs.Task(oracle, EXAMPLES, STEPS)
    timeline = dataclasses.replace(
        fs.timelines.full(ROUNDS, CLIENTS, STEPS), mask=jnp.asarray(mask), lost=jnp.asarray(lost)
    )
    params = {name: jnp.full(shape, START, kind) for name, (shape, kind) in LEAVES.items()}
    problem = fs.Setup(task, timeline, params, weighting=weighting)

    @compiled
    def go(problem, key):
        return {name: fs.run(rule(codec), problem, key)[0] for name, rule in RULES.items()}

    states = jax.device_get(go(problem, jax.random.key(0)))
    weights = np.ones(CLIENTS) if weighting is fs.uniform_weights else EXAMPLES
    for rule, state in states.items():
        x, memories, estimate = derived(rule, code, mask, lost, weights)
        found = [(state.server.params, x), (state.clients.memory, memories)]
        if rule != "ef14":
            found.append((state.server.estimate, estimate))
        for name, (_, kind) in LEAVES.items():
            # Round-off of seven rounds with numbers of size 1, some 20 operations each.
            slack = 200 * np.finfo(kind).eps
            for actual, expected in found:
                assert actual[name].dtype == kind
                np.testing.assert_allclose(
                    actual[name], expected[name], rtol=0, atol=slack, err_msg=f"{rule} {name}"
                )
