"""The transformer against one in NumPy; causality; tokens it does not have."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_problems import compiled

import fedjax_sim as fs
from fedjax_sim import models
from fedjax_sim.checks.setups import check_objective

KEY = jax.random.key(0)
V, WIDTH, DEPTH, HEADS, HIDDEN = 7, 8, 2, 2, 12
MODEL = models.transformer(V, width=WIDTH, depth=DEPTH, heads=HEADS, mlp_dim=HIDDEN)
TOKENS = np.random.default_rng(0).integers(0, V, (3, 6)).astype(np.int32)
APPLY = compiled(MODEL.apply)


def drawn(seed, dtype: type = np.float64):
    """Parameters of order one, so that norms, angles and gates matter."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(MODEL.init, jax.random.key(0))
    return jax.tree.map(lambda x: rng.standard_normal(x.shape).astype(dtype), shapes)


def norm(scale, z):
    centred = z - z.mean()
    return scale * centred / np.sqrt((centred**2).mean() + 1e-5)


def gelu(x):  # JAX's default, the approximation by tanh
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def turned(x, position):
    pairs = x[: x.size // 2] + 1j * x[x.size // 2 :]
    pairs = pairs * np.exp(1j * position * 10_000.0 ** (-np.arange(pairs.size) / pairs.size))
    return np.concatenate([pairs.real, pairs.imag])


def attended(attn, zs):
    """Outputs of an attention layer for the vectors of all positions."""
    d, outputs = WIDTH // HEADS, []
    q, k, v = ([attn[name]["kernel"] @ z for z in zs] for name in ("query", "key", "value"))
    for t in range(len(zs)):
        heads = []
        for part in (slice(h * d, (h + 1) * d) for h in range(HEADS)):
            query = turned(q[t][part], t)
            scores = [query @ turned(k[s][part], s) / math.sqrt(d) for s in range(t + 1)]
            weights = np.exp(scores) / np.exp(scores).sum()
            heads.append(sum(w * v[s][part] for s, w in enumerate(weights)))
        outputs.append(attn["proj"]["kernel"] @ np.concatenate(heads))
    return outputs


def reference(params, tokens):
    """Logits ``[L, V]`` of one sequence."""
    zs = [params["embedding"][token] for token in tokens]
    for block in params["blocks"].values():
        changes = attended(block["attn"], [norm(block["norm1"]["scale"], z) for z in zs])
        zs = [z + change for z, change in zip(zs, changes, strict=True)]
        fc1, fc2 = block["mlp"]["fc1"]["kernel"], block["mlp"]["fc2"]["kernel"]
        zs = [z + fc2 @ gelu(fc1 @ norm(block["norm2"]["scale"], z)) for z in zs]
    return np.stack([params["embedding"] @ norm(params["norm"]["scale"], z) for z in zs])


def test_outputs_are_those_of_numpy(x64):
    params = drawn(1)
    expected = np.stack([reference(params, tokens) for tokens in TOKENS])
    np.testing.assert_allclose(APPLY(params, TOKENS), expected, rtol=1e-10)


def test_later_tokens_do_not_matter():
    """A change of token t leaves the logits before it as they are, bit by bit, and moves later."""
    params = drawn(2, np.float32)
    logits = np.asarray(APPLY(params, TOKENS))
    for t in range(TOKENS.shape[1]):
        changed = TOKENS.copy()
        changed[:, t] = (changed[:, t] + 1) % V
        other = np.asarray(APPLY(params, changed))
        np.testing.assert_array_equal(other[:, :t], logits[:, :t])
        assert (other[:, t:] != logits[:, t:]).any(axis=-1).all()


@pytest.mark.slow
def test_parameters_per_client():
    several = [drawn(seed, np.float32) for seed in (1, 2)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *several)
    together = compiled(jax.vmap(MODEL.apply, (0, None)))(stacked, TOKENS)
    for params, logits in zip(several, together, strict=True):
        np.testing.assert_allclose(logits, APPLY(params, TOKENS), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_initial_values():
    """The initial loss is about that of guessing."""
    params = compiled(MODEL.init)(jax.random.key(0))
    proj = params["blocks"]["0"]["attn"]["proj"]["kernel"]
    # 64 draws: the deviation of the estimate is 9 %.
    assert float(proj.std()) == pytest.approx(0.02 / math.sqrt(2 * DEPTH), rel=0.4)
    logits = np.asarray(APPLY(params, TOKENS), np.float64)
    np.testing.assert_allclose(logits, 0, atol=0.4)  # standard deviation 0.02 sqrt(8) = 0.06


def language_setup(model, tokens):
    """A setup of two clients with one sequence each, whose labels are all tokens of the model."""
    examples = {"x": np.array([[0, 1], tokens], np.int32), "y": np.array([[0, 1], [1, 0]])}
    data = fs.FederatedData(examples, np.array([0, 1, 2]))
    task = fs.empirical_task(fs.objectives.cross_entropy(model), data, fs.full_batch(1))
    timeline = fs.timelines.full(1, 2, task.num_steps)
    return fs.Setup(task, timeline, jax.eval_shape(model.init, KEY))


@pytest.mark.parametrize(
    ("model", "tokens", "message"),
    [
        (MODEL, [6, 7], "has tokens 0 .. 7; expected 0 .. 6, since the model has embeddings of 7"),
        (MODEL, [-1, 1], "has tokens -1 .. 1; expected 0 .. 6"),
        (models.lora(MODEL, 1), [0, 9], "has tokens 0 .. 9; expected 0 .. 6"),
        (models.in_precision(MODEL, jnp.bfloat16), [0, 9], "has tokens 0 .. 9; expected 0 .. 6"),
        (models.lstm(3, width=2, depth=1), [0, 3], "has tokens 0 .. 3; expected 0 .. 2"),
        (models.lstm(3, width=2, depth=1), [2, 2], None),
    ],
)
def test_tokens_without_an_embedding_are_refused(model, tokens, message):
    """JAX takes the last row of the embedding for larger ids, and counts negative ones from it."""
    setup = language_setup(model, tokens)
    if message is None:
        check_objective(setup, batched=False)
        return
    with pytest.raises(ValueError, match=message):
        check_objective(setup, batched=False)
