"""Frozen leaves: predicates, and what the server and the clients have of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from small_problems import assert_identical, logistic_params

import fedjax_sim as fs
from fedjax_sim.tree import leaves


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
