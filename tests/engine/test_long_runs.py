"""Runs of many small steps: parameters near 1 that change by 1e-3 per round.

Numbers of bfloat16 near 1 have a distance of 2^-7 = 7.8e-3 above it and 3.9e-3 below, so adding
1e-3 gives 1 again.  Numbers of float32 have 1.2e-7.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fs

STEP = 1e-3
ALGORITHMS = {
    "fedavg": fs.fedavg(STEP),
    "fedavgm": fs.fedavgm(STEP, 0.1, momentum=0.9),
    "fedadam": fs.fedadam(1.0, STEP),
    "fedyogi": fs.fedyogi(1.0, STEP),
    "fedadagrad": fs.fedadagrad(1.0, STEP),
}


def climbing(params, rounds):
    """A loss whose gradient in the model, which computes in bfloat16, is -1 everywhere."""
    data = fs.FederatedData({"x": np.ones(2, np.float32)}, np.arange(3))

    def loss(params, example, key):
        low = params.astype(jnp.bfloat16)
        x = example["x"].astype(jnp.bfloat16)
        return -(x[:, None] * low).sum(1).astype(jnp.float32)

    task = fs.empirical_task(loss, data, fs.full_batch(num_steps=1))
    return fs.Setup(task, fs.timelines.full(rounds, 2, task.num_steps), params)


def final(algorithm, params, rounds):
    state, _ = fs.run(algorithm, climbing(params, rounds), jax.random.key(0))
    return state.server.params


@pytest.mark.parametrize("name", ALGORITHMS)
def test_parameters_in_half_precision_are_refused_and_wide_ones_move(name):
    half = jnp.ones(2, jnp.bfloat16)
    assert (half + jnp.bfloat16(STEP) == half).all()
    with pytest.raises(ValueError, match=r"expected float32, since half precision rounds small st"):
        final(ALGORITHMS[name], half, 2)
    model = final(ALGORITHMS[name], fs.tree.wide(half), 50)
    assert model.dtype == jnp.float32
    # Every rule has steps of at least a tenth of STEP; momentum with 0.1 sums up to STEP.
    assert (model > 1 + 50 * STEP / 10).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_hundred_thousand_steps(name):
    model = final(ALGORITHMS[name], jnp.ones(2, jnp.float32), 100_000)
    # Adagrad's steps are STEP / sqrt(t), which add up to 2 STEP sqrt(T); the others' are STEP.
    exact = 2 * STEP * 100_000**0.5 if name == "fedadagrad" else STEP * 100_000
    # A float32 between 64 and 128 errs by up to 4e-6 per step, in one direction for equal steps.
    assert model == pytest.approx(1 + exact, rel=6e-3)


def test_single_precision_has_the_same_limit_at_smaller_steps():
    """Half of the distance 2^-23 of float32 numbers above 1 is 6e-8."""
    assert (final(fs.fedavg(5e-8), jnp.ones(2, jnp.float32), 50) == 1).all()
    assert (final(fs.fedavg(1e-7), jnp.ones(2, jnp.float32), 50) > 1).all()


@pytest.mark.slow
def test_the_mean_of_all_iterates_in_single_precision():
    """The sum of 10^5 equal iterates errs by up to half a unit in the last place per term.

    Terms 1.1 to a sum of up to 1.1e5, whose numbers have the distance 2^-7, err in one direction:
    at most 10^5 2^-8 / 1.1e5 = 3.6e-3 of the mean, and 9.3e-4 here. In double precision: 2^-29 of
    that.
    """
    start = np.array([1.1, 0.7, 0.3, 1.0])
    single = final(fs.averaged_fedavg(1e-12), jnp.asarray(start, jnp.float32), 100_000)
    error = np.abs(np.asarray(single) / start.astype(np.float32) - 1)
    assert (error < 3.6e-3).all()
    assert error.max() == pytest.approx(9.3e-4, rel=0.01)
    assert error[3] == 0
    with jax.enable_x64(True):
        double = np.asarray(final(fs.averaged_fedavg(1e-18), jnp.asarray(start), 100_000))
    np.testing.assert_allclose(double, start, rtol=1e-11)
