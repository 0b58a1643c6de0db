"""The local loop's branches and masks, by platform and by how clients run."""

import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim
from fedjax_sim.local import carrying, exponential_decay, local_path, local_steps, rate
from fedjax_sim.types import Work

UNUSED: Any = None


def visit(num_steps, x):
    work = Work(UNUSED, UNUSED, num_steps, UNUSED, UNUSED, UNUSED, max_steps=4)
    return local_steps(lambda carry, k: carry * x + k.astype(x.dtype), jnp.float32(1), work)


STEPS, X = jnp.array([0, 2, 4]), jnp.array([3.0, 2.0, -1.0])
EXPECTED = [1.0, 1 * 4 + 1, ((-1 * -1 + 1) * -1 + 2) * -1 + 3]


def one_after_the_other(num_steps, x):
    return jax.lax.map(lambda client: visit(*client), (num_steps, x))


@pytest.mark.parametrize("run", [jax.vmap(visit), one_after_the_other])
@pytest.mark.parametrize("jit", [False, True])
def test_steps_beyond_a_clients_own_change_nothing(run, jit):
    np.testing.assert_array_equal((jax.jit(run) if jit else run)(STEPS, X), EXPECTED)


@pytest.mark.parametrize("run", [jax.vmap(visit), one_after_the_other])
def test_both_modes_of_differentiation(run):
    reverse = jax.grad(lambda x: run(STEPS, x).sum())(X)
    forward = jax.jvp(lambda x: run(STEPS, x), (X,), (jnp.ones(3),))[1]
    np.testing.assert_allclose(reverse, forward)
    np.testing.assert_allclose(reverse[:2], [0.0, 2 * 2.0])  # of x * x + 1 at 2


@pytest.mark.parametrize(
    ("run", "platform", "constant"),
    [
        (one_after_the_other, "cpu", "mask"),  # a branch around the step
        (one_after_the_other, "tpu", "branch"),  # every step is computed, its result selected
        (one_after_the_other, "cuda", "branch"),
        (jax.vmap(visit), "cpu", "branch"),
        (jax.vmap(visit), "cuda", "branch"),
    ],
)
def test_only_a_client_alone_on_a_cpu_branches_around_a_step(run, platform, constant):
    text = jax.jit(run).trace(STEPS, X).lower(lowering_platforms=(platform,)).as_text()
    results = re.search(r"return %(\w+), %(\w+) : tensor<i1>, tensor<(3x)?i1>", text)
    assert results
    names = dict(zip(("branch", "mask"), results.groups()[:2], strict=True))
    assert [kind for kind, name in names.items() if name.startswith("c")] == [constant]


@pytest.mark.parametrize("num_steps", [3, 4])
@pytest.mark.parametrize("loop", [local_steps, local_path])
def test_loops_carry_a_value_beside_the_model(loop, num_steps):
    """The model is the sum of the steps' numbers; the value doubles with every step done."""
    work = Work(UNUSED, UNUSED, jnp.array(num_steps), UNUSED, UNUSED, UNUSED, max_steps=4)
    with carrying(jnp.array(1)) as count:

        def step(x, k):
            count.value = 2 * count.value
            return x + k

        result = loop(step, jnp.array(0), work)
    models = np.array([0, 0, 1, 3, 6])
    expected = models[num_steps] if loop is local_steps else np.minimum(models, models[num_steps])
    np.testing.assert_array_equal(result, expected)
    assert count.value == 2**num_steps


def test_nothing_is_decided_by_the_default_backend():
    """Except for the record of the environment: a program is lowered for any platform."""
    root = pathlib.Path(fedjax_sim.__file__).parent
    users = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if re.search(r"\bdefault_backend\b", path.read_text())
    }
    assert users <= {"runs/storage/environment.py"}


@pytest.mark.parametrize("round", [2, 2.0, np.int64(2), jnp.array(2)])
def test_decay_of_rounds_of_any_kind(round):
    """A schedule is read outside of runs, too, for a table or a figure."""
    assert float(exponential_decay(0.5, 0.5)(round)) == 0.125


@pytest.mark.parametrize(
    ("lr", "message"),
    [
        ([0.1, 0.5], r"lr has shape \(2,\); expected one number"),
        (lambda round: jnp.array([0.1, 0.5]), r"lr\(round\) has shape \(2,\); expected one number"),
        (lambda round: "0.1", r"lr\(round\) is '0\.1'; expected a number, not text"),
        (lambda round: None, r"lr\(round\) is None; expected one number"),
        (lambda round: 0.1j, r"lr\(round\) is 0\.1j; expected a real number"),
        (lambda round: {"w": 0.1}, r"lr\(round\) is \{'w': 0\.1\}; expected a number"),
        (
            lambda: 0.1,
            r"lr fails for a traced round \(TypeError: .*; expected a schedule: a functi",
        ),
        (
            lambda round: {}["lr"],
            r"lr fails for a traced round \(KeyError: 'lr'\); expected a sche",
        ),
    ],
    ids=["list", "schedule of vectors", "text", "None", "complex", "dict", "arguments", "error"],
)
def test_a_rate_is_one_number(lr, message):
    """A vector of rates, one per client or per round, would scale the entries of the model."""
    work = Work(jnp.array(3), 0, 1, 1, jnp.array(1), None, 1)
    with pytest.raises(ValueError, match=message):
        rate(lr, work)
