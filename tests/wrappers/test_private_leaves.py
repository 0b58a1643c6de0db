"""Private and frozen leaves, and sums in the order of a tree over client numbers."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bilinear import COHORTS, LR, C, by_hand, gradient, head, run
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st
from small_problems import (
    assert_close,
    assert_identical,
    compiled,
    logistic_params,
    logistic_task,
    partial_timeline,
    rotated,
)

import fedjax_sim as fs
from fedjax_sim import models
from fedjax_sim.tree import leaves
from fedjax_sim.tree.leaves import last_layer, names, normalisation, split
from fedjax_sim.wrappers.fixed_order import pairwise_sum

# ---- private leaves


def layers(params, where):
    """Paths of the layers with selected leaves."""
    part = split(params, where)[0]
    paths = jax.tree_util.tree_leaves_with_path(part)
    return {"/".join(names(path)[:-1]) for path, _ in paths}


@pytest.mark.slow
def test_last_layers_of_the_package_s_models():
    for model, expected in [
        (models.softmax_regression(4, 2), "linear"),
        (models.mlp(4, (3,) * 10, 2), "dense11"),
        (models.digits_cnn(), "head/dense2"),
        (models.resnet20(), "head/dense1"),
        (models.vgg11(), "head/dense2"),
        (models.vit_tiny((32, 32, 3), 10), "head"),
        (models.lstm(90), "head"),
    ]:
        params = jax.eval_shape(model.init, jax.random.key(0))
        assert layers(params, last_layer) == {expected}


def test_normalisation_layers():
    params = jax.eval_shape(models.resnet20().init, jax.random.key(0))
    found = layers(params, normalisation)
    assert {"norm", "blocks/0/norm1", "blocks/8/norm2"} <= found
    assert all(layer.rpartition("/")[2].startswith("norm") for layer in found)
    linen = {
        "params": {
            "BatchNorm_0": {"scale": 1.0, "bias": 0.0},
            "Dense_0": {"kernel": 1.0, "bias": 0.0},
        },
        "batch_stats": {"BatchNorm_0": {"mean": 0.0, "var": 1.0}},
    }
    assert layers(linen, normalisation) == {"params/BatchNorm_0", "batch_stats/BatchNorm_0"}
    assert layers(linen, last_layer) == {"params/Dense_0"}
    # A bias alone is a normalisation's if the layer's name says so.
    leaves = {"norm": ["bias"], "layer": ["scale", "bias"], "shift": ["bias"], "last": ["kernel"]}
    other = {layer: dict.fromkeys(names, 0.0) for layer, names in leaves.items()}
    assert layers(other, normalisation) == {"norm", "layer"}


@pytest.mark.parametrize(
    "make",
    [
        lambda where: fs.private(fs.scaffold(LR), where, LR),
        lambda where: fs.fine_tuned(fs.fedavg(LR), LR, steps=1, where=where),
        lambda where: fs.freeze(fs.fedavg(LR), where),
        lambda where: fs.fedper(LR, where),
        lambda where: fs.lg_fedavg(LR, where),
        lambda where: fs.fedrep(LR, where=where),
        lambda where: fs.fedbabu(LR, where=where),
        lambda where: fs.fedavg_ft(LR, where=where),
    ],
)
def test_a_misspelt_name_selects_no_leaves_and_is_refused(make):
    params = {"u": jnp.zeros(()), "v": jnp.zeros(())}
    misspelt = make(lambda path, leaf: path[0] == "w")
    with pytest.raises(ValueError, match="where selects none of the leaves; expected some of u, v"):
        misspelt.init(params)
    make(head).init(params)


@pytest.mark.usefixtures("x64")
def test_sam_perturbs_the_shared_leaves_only():
    """Both gradients of a step are taken at the head before the step; the second one moves it."""

    def visit(c, u, v):
        for _ in range(3):
            at = u + 0.2 * np.sign(gradient(c, u, v)[0])
            gu, gv = gradient(c, at, v)
            u, v = u - LR * gu, v - 0.05 * gv
        return u, v

    state = run(fs.private(fs.fedsam(LR, radius=0.2), head, 0.05), 3, COHORTS)
    u, heads = by_hand(visit, COHORTS)
    assert_close((state.server.params["u"], state.clients.personal["v"]), (u, heads), 1e-13)


@pytest.mark.usefixtures("x64")
def test_heads_move_once_in_both_visits_of_marina():
    """With the probability 1 it is FedAvg; the visit from the previous message only compares."""
    plain = fs.fedavg(LR)
    marina = fs.marina(plain, fs.compression.identity(), 1.0)
    twice = [[True, True]] * 2
    expected = run(fs.private(plain, head, LR), 3, twice)
    state = run(fs.private(marina, head, LR), 3, twice)
    assert_close(state.server.params["u"], expected.server.params["u"], 1e-13)
    assert_close(state.clients.personal["v"], expected.clients.personal["v"], 1e-13)


def visit(method, oracle, number, params, **state):
    """One client's visit of 3 steps to round ``number``: the upload, and its private leaves."""
    zero, now = jnp.array(0), fs.Round(jnp.array(number), jnp.array(1), 1, jax.random.key(0))
    work = fs.Work(now.number, zero, jnp.array(3), jnp.array(4), zero, now.key, max_steps=3)
    server = method.init(params)
    server = server._replace(inner=server.inner._replace(**state))
    with jax.disable_jit():
        upload, new = method.local(
            method.broadcast(server, now), method.init_client(params), oracle, work
        )
    return upload, new.personal


@pytest.mark.parametrize(
    "make",
    [
        functools.partial(fs.scaffold, option="I"),
        functools.partial(fs.fedmoswa, option="I"),
        functools.partial(fs.fedmoswa, option="I-minibatch"),
        fs.mimelite,
        functools.partial(fs.q_fedavg, q=1.0),
        functools.partial(fs.term, tilt=0.5),
    ],
    ids=["scaffold_I", "fedmoswa_I", "fedmoswa_I-minibatch", "mimelite", "q_fedavg", "term"],
)
def test_values_at_the_received_model_have_the_heads_before_the_visit(make):
    """Steps of the body do not depend on the head, so the head's rate changes no upload."""
    params = {"u": jnp.array(1.0), "v": jnp.array(2.0)}
    oracle = fs.Oracle(
        grad=lambda x, k: x,
        loss=lambda x, k: x["v"] ** 2,
        full_grad=lambda x: {"u": x["v"], "v": x["v"]},
        full_loss=lambda x: x["v"] ** 2,
    )
    still, moved = (
        visit(fs.private(make(0.1), head, rate), oracle, 0, params) for rate in (0.0, 0.5)
    )
    chex.assert_trees_all_equal(moved[0], still[0])
    np.testing.assert_allclose((still[1]["v"], moved[1]["v"]), (2, 2 * 0.5**3), rtol=1e-6)


@pytest.mark.parametrize("make", [fs.mime, fs.fedlin])
def test_heads_of_mime_and_fedlin_follow_the_local_model(make):
    """The body moves from 1 by 1/2 per step; the head's gradient is the body."""
    # FedLin divides its rate by the number of steps.
    method = fs.mime(0.5, momentum=0.0) if make is fs.mime else fs.fedlin(1.5)
    params = {"u": jnp.array(1.0), "v": jnp.array(0.0)}
    oracle = fs.Oracle(
        grad=lambda x, k: {"u": jnp.array(-1.0), "v": x["u"]},
        loss=lambda x, k: jnp.array(0.0),
        full_grad=lambda x: {"u": jnp.array(-1.0), "v": x["u"]},
    )
    control = {"u": jnp.array(-1.0), "v": None}
    upload, own = visit(fs.private(method, head, 1.0), oracle, 1, params, control=control)
    np.testing.assert_allclose((upload["u"], own["v"]), (-1.5, -(1 + 1.5 + 2)), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_scaffold_on_the_shared_leaves():
    """Controls correct the body; the heads move by their plain gradients."""
    state = run(fs.private(fs.scaffold(LR), head, LR), 3, COHORTS)
    u, control, controls, heads = 1.0, 0.0, np.zeros(2), np.full(2, 0.5)
    for row in COHORTS:
        changes, drift = [], 0.0
        for i in np.flatnonzero(row):
            y, v = u, heads[i]
            for _ in range(3):
                gu, gv = gradient(C[i], y, v)
                y, v = y - LR * (gu - controls[i] + control), v - LR * gv
            new = controls[i] - control + (u - y) / (3 * LR)
            drift += (new - controls[i]) / 2
            changes.append(y - u)
            controls[i], heads[i] = new, v
        u, control = u + np.mean(changes), control + drift
    assert_close(state.server.params["u"], u, 1e-13)
    assert_close(state.server.inner.control["u"], control, 1e-12)
    assert_close((state.clients.inner["u"], state.clients.personal["v"]), (controls, heads), 1e-12)


# ---- frozen leaves


def test_upload_and_optimiser_have_no_frozen_leaves():
    params = {"base": jnp.zeros((50, 50)), "adapter": jnp.zeros(3)}
    frozen = fs.freeze(fs.fedadam(0.1, 0.1), nnx.PathContains("base"))
    state = jax.eval_shape(frozen.init, params)
    assert sum(leaf.size for leaf in jax.tree.leaves(state)) == 2500 + 3 * 3 + 1
    oracle = fs.Oracle(lambda x, k: x, lambda x, k: jnp.array(0.0), lambda x: x)
    number = jnp.array(1, jnp.int32)
    work = fs.Work(number, number, number, number, number * 0, jax.random.key(0), 1)
    message = frozen.broadcast(frozen.init(params), None)  # pyright: ignore
    upload, _ = frozen.local(message, (), oracle, work)
    assert [leaf.size for leaf in jax.tree.leaves(upload)] == [3]


@pytest.mark.parametrize(("answer", "word"), [(True, "all"), (False, "none")])
def test_predicate_that_selects_all_or_none_is_refused(answer, word):
    frozen = fs.freeze(fs.fedavg(0.1), lambda path, leaf: answer)
    with pytest.raises(ValueError, match=f"selects {word} of the leaves; expected some of b, w$"):
        frozen.init(logistic_params())


@pytest.mark.parametrize("combine", ["averaged", "private"])
def test_freezing_statistics_that_are_updated_is_refused(combine):
    """Silently they would keep their initial values, with which the model is evaluated."""
    params = {"base": {"kernel": jnp.ones(2), "mean": jnp.zeros(2)}, "adapter": jnp.ones(2)}

    def is_mean(path, leaf):
        return path[-1] == "mean"

    updating = fs.running_statistics(fs.fedavg(0.1), is_mean, combine)
    with pytest.raises(ValueError, match=r"such as base/mean; expected running_statistics\(freeze"):
        fs.freeze(updating, lambda path, leaf: path[0] == "base").init(params)
    fs.freeze(updating, lambda path, leaf: path[-1] == "kernel").init(params)
    frozen = fs.freeze(fs.fedavg(0.1), lambda path, leaf: path[0] == "base")
    fs.running_statistics(frozen, is_mean, combine).init(params)


def test_predicate_is_a_function():
    with pytest.raises(ValueError, match=r"where is 'head'; expected a predicate \(path, leaf\)"):
        fs.freeze(fs.fedavg(0.1), "head")  # pyright: ignore


def test_parts_of_nested_models():
    params = {"body": [np.ones(2), np.zeros(1)], "head": (np.arange(3),)}
    head, body = leaves.split(params, nnx.PathContains("head"))
    assert [len(jax.tree.leaves(part)) for part in (head, body)] == [1, 2]
    assert_identical(leaves.join(head, body), params)
    assert_identical(leaves.join(body, head), params)
    assert_identical(leaves.without(params, head), body)
    first, _ = leaves.split(params, lambda path, leaf: path == ("body", "0"))
    assert [leaf.tolist() for leaf in jax.tree.leaves(first)] == [[1, 1]]


# ---- fixed orders


POPULATION = 64
total = compiled(pairwise_sum)


def halves(begin: int, end: int, values: dict[int, np.float32]) -> np.float32 | None:
    """The sum over client numbers ``begin`` to ``end``, by halving the interval; None: nobody."""
    present = [number for number in values if begin <= number < end]
    if len(present) < 2:
        return values[present[0]] if present else None
    middle = (begin + end) // 2
    left, right = halves(begin, middle, values), halves(middle, end, values)
    if left is None or right is None:
        return right if left is None else left
    return left + right


@given(st.permutations(range(POPULATION)), st.integers(0, 2**32 - 1))
def test_sums_halve_the_interval_of_numbers(order, seed):
    numbers = np.array(order[:9], np.int32)
    values = np.random.default_rng(seed).normal(size=9).astype(np.float32)
    expected = halves(0, POPULATION, dict(zip(numbers.tolist(), values, strict=True)))
    np.testing.assert_array_equal(total(values, numbers), expected)


@pytest.mark.slow
def test_the_mean_is_that_of_the_algorithm_with_weights(x64):
    """A single upload, too: there is nothing to add."""
    plain, ordered = (
        compiled(functools.partial(fs.run, algorithm))
        for algorithm in (fs.fedavg(0.2), fs.fixed_order(fs.fedavg(0.2)))
    )
    timeline, task = partial_timeline(), logistic_task(rotated(2))
    for most in (1, 4):
        mask = timeline.mask & (np.cumsum(timeline.mask, axis=1) <= most)
        some = dataclasses.replace(timeline, mask=mask)
        setup = fs.Setup(task, some, logistic_params(), weighting=fs.weight_by_examples)
        expected, state = (run(setup, jax.random.key(2))[0] for run in (plain, ordered))
        for name, leaf in expected.server.params.items():
            # The order of sums of at most four numbers, over four rounds in double precision.
            np.testing.assert_allclose(state.server.params[name], leaf, rtol=1e-13)


def test_refuses_an_aggregation():
    with pytest.raises(ValueError, match="algorithm has an aggregation already; expected one"):
        fs.fixed_order(fs.robust.aggregate(fs.fedavg(0.1), fs.robust.median()))
    with pytest.raises(ValueError, match="another aggregation than the mean; expected it around"):
        fs.skip_nonfinite(fs.fixed_order(fs.fedavg(0.1)))


@pytest.mark.slow
def test_forecast_has_the_memory_of_all_uploads():
    setup = fs.Setup(logistic_task(rotated(2)), partial_timeline(), logistic_params())
    parts = fs.forecast(fs.fixed_order(fs.fedavg(0.1)), setup, jax.random.key(0)).parts
    assert parts["uploads"] == 4 * 4 * 4  # slots, entries of the model, bytes
