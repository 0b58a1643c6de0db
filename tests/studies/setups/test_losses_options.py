"""Loss and metrics: by name, and functions of a study."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fs
from fedjax_sim import datasets, models
from fedjax_sim.studies.setups.losses import Losses

CLASSES = datasets.from_arrays(np.eye(4, dtype=np.float32), np.arange(4) % 2)
NUMBERS = datasets.from_arrays(np.eye(4, dtype=np.float32), np.array([0.5, 1.5, 2.5, 3.5]))
NET = models.softmax_regression((4,), 2)


def own_loss(outputs, y):
    return jnp.abs(outputs).sum(-1) + y.astype(outputs.dtype)


def own_metrics(outputs, y):
    return {"margin": outputs[:, 0] - outputs[:, 1]}


@pytest.mark.parametrize(
    ("data", "name", "regression"),
    [
        (CLASSES, None, None), (CLASSES, "cross_entropy", None), (NUMBERS, None, "squared"),
        (NUMBERS, "squared", "squared"), (NUMBERS, "huber", "huber"),
    ],
)  # fmt: skip
def test_losses_suit_the_targets(data, name, regression):
    assert Losses.of(data, name).regression == regression


@pytest.mark.parametrize(
    ("data", "name"), [(CLASSES, "squared"), (CLASSES, "huber"), (NUMBERS, "cross_entropy")]
)
def test_losses_of_other_targets_are_refused(data, name):
    message = f"loss is '{name}'; expected another one, since the targets of own are"
    with pytest.raises(ValueError, match=message):
        Losses.of(data, name)


def test_own_functions_replace_the_built_in_ones():
    losses = Losses.of(CLASSES, None, own_loss, own_metrics)
    losses.check(NET, CLASSES)
    params = jax.tree.map(lambda x: x + 0.5, NET.init(jax.random.key(0)))
    batch = {key: jnp.asarray(values) for key, values in CLASSES.train.items()}
    outputs = NET.apply(params, batch["x"])
    found = losses.evaluated(NET)(params, batch)
    assert set(found) == {"loss", "accuracy", "margin"}
    np.testing.assert_array_equal(found["loss"], own_loss(outputs, batch["y"]))
    objective = losses.objective(NET)(params, batch, jax.random.key(0))
    np.testing.assert_array_equal(objective, found["loss"])
    built_in = Losses.of(CLASSES, None).evaluated(NET)(params, batch)
    np.testing.assert_array_equal(found["accuracy"], built_in["accuracy"])


@pytest.mark.parametrize(
    ("loss", "metrics", "message"),
    [
        (lambda outputs, y: None, None, "loss returned NoneType; expected one value per example"),
        (lambda outputs, y: 1.0, None, "loss returned float; expected one value per example"),
        (
            lambda outputs, y: outputs,
            None,
            r"loss returned shape \(3, 2\) for outputs \(3, 2\) and y \(3,\); expected \(3,\), one",
        ),
        (lambda outputs, y: y, None, "loss returned int32; expected floating values"),
        (None, lambda outputs, y: outputs[:, 0], r"metrics returned .*Tracer; expected \{name: "),
        (None, lambda outputs, y: {"a": "b"}, "metrics 'a' returned str; expected one value per"),
        (None, lambda outputs, y: {"a": y.sum()}, r"metrics 'a' returned shape \(\) for outputs"),
    ],
)
def test_results_of_own_functions_are_checked(loss, metrics, message):
    with pytest.raises(ValueError, match=message):
        Losses.of(CLASSES, None, loss, metrics).check(NET, CLASSES)


def test_errors_of_own_functions_are_theirs():
    def wrong(outputs, y):
        return fs.no_such_name

    with pytest.raises(AttributeError, match="no_such_name"):
        Losses.of(CLASSES, None, wrong).check(NET, CLASSES)
