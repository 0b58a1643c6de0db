"""Language models: token ids, padding, and the loss of the next token."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from small_problems import compiled

import fedjax_sim as fs
from fedjax_sim.data.tokens import next_tokens
from fedjax_sim.engine.evaluation import evaluator
from fedjax_sim.models import from_nnx
from fedjax_sim.objectives import as_float, classification_metrics, cross_entropy

VOCABULARY, PAD, KEY = 6, 0, jax.random.key(0)


class NextToken(nnx.Module):
    """Predicts a token from the one before it."""

    def __init__(self, rngs):
        self.embed = nnx.Embed(VOCABULARY, 8, rngs=rngs)
        self.head = nnx.Linear(8, VOCABULARY, rngs=rngs)

    def __call__(self, tokens):
        return self.head(self.embed(tokens))


def sentences():
    """Every client counts from its own first word, up to 5, and pads with 0."""
    rows = [[*range(first, VOCABULARY), *[PAD] * first] for first in (1, 2, 3)]
    return np.array([[*row, PAD][:6] for row in rows])


def test_loss_and_accuracy_skip_padding():
    """Means over the positions of each sequence whose next token is a word."""
    examples = next_tokens(sentences(), pad=PAD)
    assert examples["x"].dtype == examples["y"].dtype == np.int32
    model = from_nnx(NextToken)
    objective = cross_entropy(model, ignore=-1)
    nothing = np.full((3, 5), -1, np.int32)  # sequences without words

    @compiled
    def go(x, y):
        params = model.init(KEY)
        values = classification_metrics(model, ignore=-1)(params, {"x": x, "y": y})
        empty = {"x": x, "y": nothing}
        gradient = jax.grad(lambda p: objective(p, empty, None).sum())(params)
        losses = [objective(params, batch, None) for batch in ({"x": x, "y": y}, empty)]
        return model.apply(params, x), values, losses, gradient

    logits, values, (objectives, empty), gradient = go(examples["x"], examples["y"])
    logits = np.asarray(logits, np.float64)
    losses, accuracies = [], []
    for row, labels in zip(logits, examples["y"], strict=True):
        words = labels >= 0
        scores = row[words] - np.log(np.exp(row[words]).sum(axis=-1, keepdims=True))
        losses.append(-scores[np.arange(words.sum()), labels[words]].mean())
        accuracies.append((row[words].argmax(axis=-1) == labels[words]).mean())
    np.testing.assert_allclose(values["loss"], losses, rtol=1e-5)
    np.testing.assert_allclose(values["accuracy"], accuracies, rtol=1e-6)
    np.testing.assert_array_equal(objectives, values["loss"])
    np.testing.assert_array_equal(empty, np.zeros(3))
    assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.slow
def test_clients_learn_the_next_token():
    clients = [next_tokens(row[None], pad=PAD) for row in sentences()]
    model = from_nnx(NextToken)
    task = fs.empirical_task(
        cross_entropy(model, ignore=-1), fs.from_clients(clients), fs.full_batch(5)
    )
    metrics = classification_metrics(model, ignore=-1)
    evaluate = evaluator(metrics, next_tokens(sentences(), pad=PAD))
    setup = fs.Setup(
        task, fs.timelines.full(30, 3, task.num_steps), model.init(KEY), evaluate, eval_every=30
    )
    history = compiled(lambda setup: fs.run(fs.fedavg(1.0), setup, jax.random.key(1))[1])(setup)
    assert history.metrics["accuracy"].tolist() == [1.0]
    assert history.metrics["loss"] < 0.1  # log 5 = 1.6 at the start


def test_the_dtype_decides_between_pixels_and_tokens():
    ids = jnp.array([[0, 5]])
    for dtype in (jnp.int8, jnp.int32, jnp.uint16):
        kept = as_float(ids.astype(dtype))
        assert kept.dtype == dtype
        assert kept.tolist() == [[0, 5]]
    assert as_float(ids.astype(jnp.uint8)).tolist() == [[0.0, np.float32(5) / np.float32(255)]]
    model = from_nnx(NextToken)
    examples = {"x": ids.astype(jnp.uint8), "y": ids}
    with pytest.raises(ValueError, match="must be an integer"):  # of flax
        jax.eval_shape(cross_entropy(model), jax.eval_shape(model.init, KEY), examples, KEY)


@pytest.mark.slow
def test_labels_outside_of_the_vocabulary_are_refused():
    model = from_nnx(NextToken)
    params = jax.tree.map(
        lambda leaf: np.zeros(leaf.shape, leaf.dtype), jax.eval_shape(model.init, KEY)
    )

    def task_of(y, ignore):
        clients = [{"x": np.ones((1, 2), np.int32), "y": np.array([y], np.int32)}]
        objective = cross_entropy(model, ignore)
        task = fs.empirical_task(objective, fs.from_clients(clients), fs.full_batch(1))
        return fs.Setup(task, fs.timelines.full(1, 1, 1), params)

    for y, ignore, low, high in [([1, -1], None, -1, 1), ([6, -1], -1, 0, 6)]:
        with pytest.raises(ValueError, match=rf"labels {low} .. {high}; expected 0 .. 5"):
            fs.run(fs.fedavg(0.1), task_of(y, ignore), KEY)


@pytest.mark.parametrize("tokens", [np.ones((2, 3)), np.ones(3, int), np.ones((2, 1), int)])
def test_tokens_are_a_matrix_of_integers(tokens):
    with pytest.raises(ValueError, match=r"expected integer ids \[N, L \+ 1\]"):
        next_tokens(tokens)


def test_ids_beyond_int32_are_refused():
    with pytest.raises(ValueError, match="expected ids of int32"):
        next_tokens(np.array([[1, 2**40]]))
