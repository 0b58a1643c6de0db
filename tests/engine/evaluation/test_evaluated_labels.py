"""Labels and token ids of evaluation sets that the model does not have are refused before a run."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fs
from fedjax_sim import evaluation, models, objectives

KEY = jax.random.key(0)
CLASSES, FEATURES = 3, 2


def linear(params, x):
    return x @ params["w"]


def data(labels):
    """Two clients, whose examples have these labels."""
    x = np.ones((len(labels), FEATURES), np.float32)
    return fs.FederatedData({"x": x, "y": np.asarray(labels)}, np.array([0, 1, len(labels)]))


def setup_of(eval_fn):
    task = fs.empirical_task(
        objectives.cross_entropy(linear), data([0, 1, 2]), fs.full_batch(1)
    )  # fmt: skip
    params = {"w": jnp.zeros((FEATURES, CLASSES))}
    return fs.Setup(task, fs.timelines.full(1, 2, task.num_steps), params, eval_fn)


METRICS = objectives.classification_metrics(linear)
EVALUATORS = {
    "examples": lambda test: evaluation.evaluator(METRICS, test.examples),
    "subsample": lambda test: evaluation.evaluator(METRICS, test.examples, max_examples=9),
    "clients": lambda test: evaluation.client_evaluator(METRICS, test),
    "personal": lambda test: evaluation.personal_evaluator(METRICS, test),
    "merged and rare": lambda test: evaluation.merge_evaluators(
        lambda params: {"zero": 0.0},
        rare=evaluation.at_rounds(evaluation.evaluator(METRICS, test.examples), 1),
    ),
}


@pytest.mark.parametrize("make", EVALUATORS.values(), ids=EVALUATORS)
@pytest.mark.parametrize(("labels", "text"), [((0, 3, 1), "0 .. 3"), ((-1, 0, 2), "-1 .. 2")])
def test_labels_without_an_output_are_refused(make, labels, text):
    """JAX would clamp 3 to 2, and count -1 from the end: a wrong accuracy without an error."""
    message = rf"eval_fn: examples\['y'\] has labels {text}; expected 0 .. 2, since the outputs"
    setup = setup_of(make(data(labels)))
    with pytest.raises(ValueError, match=message):
        fs.run(fs.fedavg(0.1), setup, KEY)
    stacked = dataclasses.replace(setup, params={"w": jnp.zeros((2, FEATURES, CLASSES))})
    with pytest.raises(ValueError, match=message):
        fs.simulate(fs.fedavg(0.1), stacked, jax.random.split(KEY, 2))


@pytest.mark.slow
@pytest.mark.parametrize("make", EVALUATORS.values(), ids=EVALUATORS)
def test_all_labels_of_the_model_pass(make):
    fs.run(fs.fedavg(0.1), setup_of(make(data([2, 1, 0]))), KEY)


def test_positions_that_do_not_count_may_have_any_label():
    metrics = objectives.classification_metrics(linear, ignore=-1)
    refused = evaluation.evaluator(metrics, data([0, -1, 3]).examples)
    with pytest.raises(ValueError, match=r"has labels 0 .. 3; expected 0 .. 2"):
        fs.run(fs.fedavg(0.1), setup_of(refused), KEY)
    passes = evaluation.evaluator(metrics, data([0, -1, 2]).examples)
    _, history = fs.run(fs.fedavg(0.0), setup_of(passes), KEY)
    np.testing.assert_allclose(history.metrics["loss"], 2 / 3 * np.log(3), rtol=1e-6)


def test_binary_labels_are_0_and_1():
    metrics = objectives.binary_classification_metrics(lambda params, x: linear(params, x)[:, 0])
    test = evaluation.evaluator(metrics, data([1, -1, 1]).examples)
    with pytest.raises(ValueError, match=r"eval_fn: .* labels -1 .. 1; expected 0 .. 1"):
        fs.run(fs.fedavg(0.1), setup_of(test), KEY)


def test_token_ids_without_an_embedding_are_refused():
    model = models.lstm(5, embedding=2, width=3, depth=1)
    params = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(model.init, KEY)
    )  # fmt: skip
    tokens = np.array([[0, 4], [1, 2]], np.int32)
    train = fs.FederatedData({"x": tokens, "y": tokens}, np.array([0, 1, 2]))
    test = {"x": tokens + 1, "y": tokens}
    task = fs.empirical_task(objectives.cross_entropy(model), train, fs.full_batch(1))
    means = evaluation.evaluator(objectives.classification_metrics(model), test)
    together = evaluation.pooled_evaluator(model, test, {"largest": lambda y, z: z.max()})
    for eval_fn in (means, together):
        setup = fs.Setup(task, fs.timelines.full(1, 2, task.num_steps), params, eval_fn)
        message = r"eval_fn: examples\['x'\] has tokens 1 .. 5; expected"
        with pytest.raises(ValueError, match=message):
            fs.run(fs.fedavg(0.1), setup, KEY)


def test_models_of_another_form_pass():
    """An algorithm may evaluate other models than those of the setup; shapes say nothing then."""
    plain = fs.fedavg(0.1)

    class Server(NamedTuple):
        own: dict
        params: jnp.ndarray

    def init(params):
        return Server(params, params["w"])

    algorithm = plain._replace(
        init=init,
        broadcast=lambda server, round: server.own,
        update=lambda server, mean, round: server,
    )
    metrics = objectives.classification_metrics(lambda w, x: x @ w)
    test = evaluation.evaluator(metrics, data([0, 1, 2]).examples)
    _, history = fs.run(algorithm, setup_of(test), KEY)
    np.testing.assert_allclose(history.metrics["loss"], np.log(3), rtol=1e-6)


def test_own_evaluators_may_have_a_check():
    class Checked(NamedTuple):
        name: str

        def check(self, examples, params):
            raise ValueError(f"{self.name} has {examples.shape} for {params['w'].shape}")

        def __call__(self, examples, params):
            return {"zero": 0.0 * params["w"].sum() * examples.sum()}

    eval_fn = jax.tree_util.Partial(Checked("mine"), jnp.zeros(4))
    with pytest.raises(ValueError, match=r"eval_fn: mine has \(4,\) for \(2, 3\)"):
        fs.run(fs.fedavg(0.1), setup_of(eval_fn), KEY)
