"""Single differences of the released programs against NumPy, and their identities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from network import final, flat, gradient, mean, rounds, sam_offset, start, timeline
from small_problems import NUM_CLIENTS, assert_close, assert_identical

import fedjax_sim as fs
from experiments.fedswa import variants
from experiments.harness.controls import last_on_worker, workers_of

pytestmark = pytest.mark.usefixtures("x64")

# In double precision and over three rounds of at most ten steps, round-off stays digits below.
TOLERANCE = 1e-11
LR = 0.1


def test_scaffold_with_an_inert_correction_is_fedavg():
    """Equal to the bit; SCAFFOLD itself is another model."""
    inert = final(variants.scaffold_inert(LR)).server.params
    assert_identical(inert, final(fs.fedavg(LR)).server.params)
    assert np.abs(flat(inert) - flat(final(fs.scaffold(LR)).server.params)).max() > 1e-3


@pytest.mark.slow
def test_controls_of_the_inert_scaffold():
    x, server = start(), np.zeros_like(start())
    controls = np.zeros((NUM_CLIENTS, len(x)))
    for visits in rounds():
        models, changes = [], []
        for client, batches in visits:
            y = x
            for weights in batches:
                y = y - LR * gradient(y, weights)
            new = controls[client] - server + (x - y) / (LR * len(batches))
            models.append(y)
            changes.append(new - controls[client])
            controls[client] = new
        x, server = mean(models), server + np.sum(changes, axis=0) / NUM_CLIENTS
    state = final(variants.scaffold_inert(LR))
    actual = (flat(state.server.params), flat(state.server.control), flat(state.clients))
    assert_close(actual, (x, server, controls), TOLERANCE)


def slots():
    """The slots of the reporting clients, in the order of ``rounds()``."""
    mask = np.asarray(timeline().mask)
    return [np.flatnonzero(row) for row in mask]


@pytest.mark.slow
def test_fedmo_with_the_controls_of_the_workers_last_clients():
    gamma = 0.4
    x = start()
    m, last = np.zeros_like(x), np.zeros((timeline().clients.shape[1], len(x)))
    for visits, workers in zip(rounds(), slots(), strict=True):
        models, changes = [], []
        for (_, batches), worker in zip(visits, workers, strict=True):
            y, correction = x, m - last[worker]
            for weights in batches:
                y = y - LR * (gradient(y, weights) + correction)
            last[worker] = (x - y) / (LR * len(batches)) - correction
            models.append(y)
            changes.append(last[worker] - m)
        x, m = mean(models), m + gamma * mean(changes)
    workers = workers_of(timeline(), NUM_CLIENTS)
    server = final(last_on_worker(fs.fedmo(LR, gamma), workers)).server
    assert_close(
        (flat(server.params), flat(server.inner.control), flat(server.last)),
        (x, m, last),
        TOLERANCE,
    )
    assert np.abs(x - flat(final(fs.fedmo(LR, gamma)).server.params)).max() > 1e-4


@pytest.mark.slow
def test_a_worker_per_client_is_the_state_of_the_client():
    """Each client's own worker keeps the client's own state."""
    own = np.tile(np.arange(NUM_CLIENTS), (len(rounds()), 1))
    state = final(last_on_worker(fs.fedmo(LR), own)).server
    plain = final(fs.fedmo(LR))
    assert_close(flat(state.params), flat(plain.server.params), TOLERANCE)
    assert_close(flat(state.last), flat(plain.clients), TOLERANCE)


@pytest.mark.slow
def test_an_algorithm_without_client_states_has_no_state_on_workers():
    workers = workers_of(timeline(), NUM_CLIENTS)
    wrapped = final(last_on_worker(fs.fedavg(LR), workers)).server.params
    assert_identical(wrapped, final(fs.fedavg(LR)).server.params)


def test_states_of_workers_need_equal_weights():
    workers = workers_of(timeline(), NUM_CLIENTS)
    algorithm = last_on_worker(fs.fedmo(LR), workers)
    with pytest.raises(ValueError, match="workers' states are sums of the uploads"):
        final(algorithm, weighting=fs.weight_by_examples)


def test_fedsam_without_decay():
    """Plain steps along the gradient at the perturbed model, radius 0.05 as in the programs."""
    x = start()
    for visits in rounds():
        models = []
        for _, batches in visits:
            y = x
            for weights in batches:
                y = y - LR * gradient(y + sam_offset(gradient(y, weights), 0.05), weights)
            models.append(y)
        x = mean(models)
    server = final(variants.fedsam_without_decay(LR)).server
    assert_close(flat(server.params), x, TOLERANCE)


@pytest.mark.slow
def test_mofedsam_without_decay():
    """A tenth of the gradient at radius 0.1, nine tenths of the last round's direction."""
    x, direction = start(), np.zeros_like(start())
    for visits in rounds():
        models = []
        for _, batches in visits:
            y = x
            for weights in batches:
                g = gradient(y + sam_offset(gradient(y, weights), 0.1), weights)
                y = y - LR * (0.1 * g + 0.9 * direction)
            models.append((y, (x - y) / (LR * len(batches))))
        x, direction = mean([y for y, _ in models]), mean([d for _, d in models])
    server = final(variants.mofedsam_without_decay(LR)).server
    assert_close(flat(server.params), x, TOLERANCE)


def test_the_programs_rate_doubles_at_the_start_of_a_visit():
    """README: 2e-1 for FedSWA, so the first of K rates is 0.4 and the last is 0.4 / K."""
    x = start()
    for visits in rounds():
        models = []
        for _, batches in visits:
            y = x
            for k, weights in enumerate(batches):
                y = y - 0.4 * (1 - k / len(batches)) * gradient(y, weights)
            models.append(y)
        x = mean(models)
    assert_close(flat(final(variants.fedswa_second_program(0.2)).server.params), x, TOLERANCE)


def test_cosine_schedule():
    """From the full rate through half of it to nearly 0, never below."""
    schedule = variants.cosine(0.2, 1000)
    values = [float(schedule(jnp.array(t))) for t in (0, 250, 500, 999)]
    half = np.sqrt(0.5)
    expected = [0.2, 0.1 * (1 + half), 0.1, 0.1 * (1 - np.cos(np.pi / 1000))]
    assert_close(values, expected, 1e-15)


@pytest.mark.slow
def test_a_cosine_schedule_is_part_of_a_run():
    x = start()
    for t, visits in enumerate(rounds()):
        eta = LR * (1 + np.cos(np.pi * t / 3)) / 2
        models = []
        for _, batches in visits:
            y = x
            for weights in batches:
                y = y - eta * gradient(y, weights)
            models.append(y)
        x = mean(models)
    assert_close(flat(final(fs.fedavg(variants.cosine(LR, 3))).server.params), x, TOLERANCE)


def test_cropped_test_images_are_shifts_with_a_black_border():
    """Every image is one of the 81 crops of itself with 4 black pixels on each side."""
    images = np.random.default_rng(0).integers(1, 256, (20, 32, 32, 3), np.uint8)
    examples = {"x": images, "y": np.arange(20)}
    out = variants.cropped(examples, jax.random.key(0))
    assert_identical(out["y"], examples["y"])
    padded = np.pad(images, ((0, 0), (4, 4), (4, 4), (0, 0)))
    shifts = []
    for before, after in zip(padded, np.asarray(out["x"]), strict=True):
        places = [(i, j) for i in range(9) for j in range(9)]
        found = [p for p in places if (before[p[0] : p[0] + 32, p[1] : p[1] + 32] == after).all()]
        assert len(found) == 1
        shifts += found
    assert len(set(shifts)) > 10  # 81 (1 - (80 / 81)^20), about 18, are expected
