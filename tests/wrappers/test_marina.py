"""MARINA and PP-MARINA: NumPy derivations, exact second moments, identities, checks, bits."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compressed_quadratics import as_unbiased, instance, setup, top
from small_problems import assert_close, compiled

import fedjax_sim as fs
from fedjax_sim.compression import identity, random_k, top_k

pytestmark = pytest.mark.usefixtures("x64")
A, B, BEST = instance()
LR = 0.03

CENTRES = instance(4, 8)[1]
MEAN = CENTRES.mean(0)
CLIENTS, OMEGA, STEP, P = 4, 3.0, 0.2, 0.25
X0 = (MEAN**2).sum()


def moments(rounds, g=STEP, p=P):
    """x: E|x - x*|^2, y: E<x - x*, g>, z: E|g|^2 with the server's estimate g."""
    x = y = z = X0
    values = []
    for _ in range(rounds):
        new = x - 2 * g * y + g**2 * z
        y, z = (
            p * new + (1 - p) * (1 - g) * (y - g * z),
            p * new + (1 - p) * ((1 - g) ** 2 + g**2 * OMEGA / CLIENTS) * z,
        )
        x = new
        values.append(x)
    return np.array(values)


def test_recursion_has_the_printed_figures():
    np.testing.assert_allclose(moments(10)[-1], 0.0195949, rtol=0, atol=5e-8)
    np.testing.assert_allclose(moments(50)[-1], 1.12485e-6, rtol=0, atol=5e-12)


@pytest.mark.slow
def test_second_moments():
    """The mean over 4,000 runs within five standard errors."""
    problem = setup(np.ones((4, 8)), CENTRES, MEAN, fs.timelines.full(20, 4, 1))
    algorithm = fs.marina(fs.fedsgd(STEP), random_k(2), P)

    @compiled
    def go(problem, keys):
        return jax.vmap(lambda key: fs.run(algorithm, problem, key)[1].metrics["error"])(keys)

    errors = np.asarray(go(problem, jax.random.split(jax.random.key(1), 4000)))
    for t in (0, 1, 4, 9, 19):
        standard_error = errors[:, t].std() / np.sqrt(len(errors))
        slack = 1e-12  # the first rounds are not random
        assert abs(errors[:, t].mean() - moments(20)[t]) < 5 * standard_error + slack, t
        assert standard_error < 0.1 * moments(20)[t]


def visit(x, i):
    y = x.copy()
    for _ in range(3):
        y = y - LR * A[i] * (y - B[i])
    return x - y


FULL = fs.Probes(server={"full": lambda update: update.new_state.full})


def go(algorithm, timeline, num_steps=3, probes=FULL):
    problem = setup(A, B, BEST, timeline, num_steps)
    run = functools.partial(fs.run, algorithm, probes=probes)
    return compiled(run)(problem, jax.random.key(4))


def test_marina_follows_its_derivation():
    """With a deterministic codec and three local steps; coins are those of the run."""
    state, history = go(
        fs.marina(fs.fedavg(LR), as_unbiased(top_k(4)), 0.4), fs.timelines.full(8, 4, 3)
    )
    coins = np.asarray(history.probes["full"])
    assert coins[0]
    assert 1 < coins.sum() < 8
    x, before, estimate = np.zeros(10), None, np.zeros(10)
    for coin in coins:
        if coin:
            estimate = np.mean([visit(x, i) for i in range(4)], axis=0)
        else:
            changes = [top(4)(visit(x, i) - visit(before, i)) for i in range(4)]
            estimate = estimate + np.mean(changes, axis=0)
        x, before = x - estimate, x
    assert_close(state.server.params, x, 1e-12)
    assert_close(state.server.estimate, estimate, 1e-12)
    assert_close(state.server.previous, before, 1e-12)


@pytest.mark.slow
def test_pp_marina_follows_its_derivation():
    """Rounds of all clients send whole uploads, the others those of two clients, one of none."""
    timeline = fs.timelines.full_or_uniform(jax.random.key(5), 8, 4, 2, 0.3, 3)
    mask = np.array(timeline.mask)
    mask[4] = False
    timeline = dataclasses.replace(timeline, mask=jnp.asarray(mask))
    assert set(mask.sum(1)) == {0, 2, 4}
    state, history = go(fs.pp_marina(fs.fedavg(LR), as_unbiased(top_k(4))), timeline)
    x, before, estimate = np.zeros(10), None, np.zeros(10)
    for present in mask:
        clients = np.nonzero(present)[0]
        if len(clients) == 0:
            continue
        if len(clients) == 4:
            estimate = np.mean([visit(x, i) for i in clients], axis=0)
        else:
            changes = [top(4)(visit(x, i) - visit(before, i)) for i in clients]
            estimate = estimate + np.mean(changes, axis=0)
        x, before = x - estimate, x
    assert_close(state.server.params, x, 1e-12)
    assert_close(state.server.estimate, estimate, 1e-12)
    reported = mask.any(1)
    np.testing.assert_array_equal(
        np.asarray(history.probes["full"])[reported], mask[reported].all(1)
    )


@pytest.mark.slow
def test_without_compression_it_is_the_algorithm():
    timeline = fs.timelines.full(8, 4, 3)
    plain = go(fs.fedavg(LR), timeline, probes=fs.Probes())[1].metrics["error"]
    for algorithm in (
        fs.marina(fs.fedavg(LR), as_unbiased(top_k(1)), 1.0),
        fs.marina(fs.fedavg(LR), identity(), 0.3),
        fs.pp_marina(fs.fedavg(LR), as_unbiased(top_k(1))),
    ):
        np.testing.assert_allclose(go(algorithm, timeline)[1].metrics["error"], plain, rtol=1e-10)


def test_uploads_in_units_of_a_gradient_survive_a_schedule():
    """With one step per visit these are gradients; uploads with the rate are of other rounds."""
    rates = fs.local.exponential_decay(0.1, 0.7)
    timeline, server = fs.timelines.full(8, 4, 1), optax.sgd(0.1)
    unit = fs.per_step_uploads(fs.fedavg(rates, server=server), rates)
    errors = [
        go(algorithm, timeline, 1, fs.Probes())[1].metrics["error"]
        for algorithm in (unit, fs.marina(unit, identity(), 1e-9))
    ]
    # Eight contracting steps in double precision: round-off of differences and quotients.
    np.testing.assert_allclose(*errors, rtol=1e-10)
    plain = fs.fedavg(rates)
    errors = [
        go(algorithm, timeline, 1, fs.Probes())[1].metrics["error"]
        for algorithm in (plain, fs.marina(plain, identity(), 1e-9))
    ]
    assert errors[1][-1] > 1.5 * errors[0][-1]


@pytest.mark.slow
def test_both_uploads_use_the_same_minibatch():
    """At a model that does not move, the difference is 0 whatever the minibatches are."""
    data = fs.from_clients([{"x": jnp.arange(8.0) + i + 1} for i in range(3)])
    task = fs.empirical_task(lambda w, batch, key: w * batch["x"], data, fs.with_replacement(1, 2))
    problem = fs.Setup(task, fs.timelines.full(3, 3, 1), jnp.zeros(()))
    algorithm = fs.marina(fs.fedsgd(0.1), identity(), 1e-9)
    probes = fs.Probes(client={"upload": lambda visit: visit.upload})
    _, history = fs.run(algorithm, problem, jax.random.key(0), probes=probes)
    uploads = history.probes["upload"]
    assert (uploads[0] != 0).all()
    np.testing.assert_array_equal(uploads[1:], 0)  # gradients do not depend on the model


@pytest.mark.slow
def test_linear_convergence_at_the_rate_of_the_theorem():
    """The central claim, also for PP-MARINA, whose compressed rounds have half of the clients."""
    codec, omega = random_k(5), 1.0
    smoothness = np.sqrt((A.max(1) ** 2).mean())
    p = float(1 / (1 + omega))
    lr = float(fs.theory.compression.marina_lr(smoothness, omega, p, 4))
    error = go(fs.marina(fs.fedsgd(lr), codec, p), fs.timelines.full(400, 4, 1), 1)
    assert error[1].metrics["error"][-1] < 1e-18
    p = float(fs.theory.compression.pp_marina_probability(omega, 4, 2))
    lr = float(fs.theory.compression.pp_marina_lr(smoothness, omega, p, 2))
    timeline = fs.timelines.full_or_uniform(jax.random.key(0), 600, 4, 2, p, 1)
    error = go(fs.pp_marina(fs.fedsgd(lr), codec), timeline, 1)
    assert error[1].metrics["error"][-1] < 1e-15


def test_bits_of_rounds():
    """Mean bits 32 p d + (1 - p) bits(Q); here of the realised coins."""
    params = jax.ShapeDtypeStruct((1000,), jnp.float32)
    codec, timeline = random_k(10), fs.timelines.full(4, 3, 1)
    full = np.array([True, False, False, True])
    up = np.where(full, identity().bits(params), codec.bits(params))
    moved = fs.timelines.bits_moved(timeline, up, down=32_000)
    np.testing.assert_array_equal(moved, 3 * np.cumsum([64_000, 32_320, 32_320, 64_000]))
    with pytest.raises(ValueError, match="up is -1"):
        fs.timelines.bits_moved(timeline, np.array([1, -1, 1, 1]), 0)


# ---- inside other wrappers


def last_client_breaks(algorithm):
    """Its uploads are not finite after the first round, and do not count."""

    def local(message, state, oracle, work):
        upload, new = algorithm.local(message, state, oracle, work)
        breaks = (work.client == 3) & (work.round > 0)
        return jnp.where(breaks, jnp.nan, upload), new

    return fs.skip_nonfinite(algorithm._replace(local=local))


AROUND = {
    "nothing": lambda algorithm: algorithm,
    "skip_nonfinite": last_client_breaks,
    "average_rounds": fs.average_rounds,
    "privatize": lambda algorithm: fs.privacy.privatize(algorithm, 1.0, 0.1, expected_uploads=4),
    "inner_product": lambda algorithm: fs.robust.attacks.inner_product(algorithm, ONE),
    "mimic": lambda algorithm: fs.robust.attacks.mimic(algorithm, ONE),
}
ONE = np.arange(4) == 0


def of_marina(state):
    return state if hasattr(state, "full") else of_marina(state.inner)


@pytest.mark.usefixtures("allow_nans")
@pytest.mark.parametrize(
    ("method", "around"),
    [
        *(("marina", around) for around in AROUND),
        *(("pp_marina", around) for around in ("nothing", "skip_nonfinite", "privatize")),
    ],
)
def test_the_server_reads_uploads_as_clients_send_them(around, method):
    if method == "marina":
        timeline = fs.timelines.full(12, 4, 3)
        algorithm = fs.marina(fs.fedsgd(LR), identity(), 0.4)
    else:
        timeline = fs.timelines.full_or_uniform(jax.random.key(5), 12, 4, 2, 0.4, 3)
        algorithm = fs.pp_marina(fs.fedsgd(LR), identity())
    if (around, method) == ("privatize", "pp_marina"):
        with pytest.raises(ValueError, match="exact mean of the uploads: the number of uploads"):
            AROUND[around](algorithm)
        return
    probes = fs.Probes(
        client={"sent": lambda visit: visit.message.full},
        server={"read": lambda update: of_marina(update.new_state).full},
    )
    _, history = go(AROUND[around](algorithm), timeline, probes=probes)
    sent, read = np.asarray(history.probes["sent"]), np.asarray(history.probes["read"])
    assert 1 < read.sum() < 12
    np.testing.assert_array_equal(sent, np.broadcast_to(read[:, None], sent.shape))


# ---- arguments


def start(algorithm, timeline):
    return fs.init(algorithm, setup(A, B, BEST, timeline))


@pytest.mark.slow
def test_timelines():
    plain = fs.fedsgd(0.1)
    full = fs.timelines.full(3, 4, 1)
    some = fs.timelines.cyclic(3, 4, 2, 1)
    masked = dataclasses.replace(full, mask=full.mask.at[1, 2].set(False))
    for timeline in (some, masked):
        with pytest.raises(ValueError, match="timeline has rounds with fewer than all 4 clients"):
            start(fs.marina(plain, random_k(1), 0.5), timeline)
    with pytest.raises(ValueError, match="timeline has 2 clients in its first round; expected all"):
        start(fs.pp_marina(plain, random_k(1)), some)
    start(fs.pp_marina(plain, random_k(1)), masked)
    start(fs.marina(plain, random_k(1), 0.5), fs.timelines.arrange_by_stratum(full, 4, 3))
    stale = dataclasses.replace(full, max_staleness=1)
    with pytest.raises(ValueError, match="staleness of up to 1; expected none: MARINA adds"):
        start(fs.marina(plain, random_k(1), 0.5), stale)


def test_weights_of_drawn_cohorts_are_refused():
    """The mean of the estimates over all cohorts would be 1.26 in place of 1.865.

    The curvatures are 1, 2, 3 and 10, the first model is 0.21 after a mean gradient of -2.1, and
    one of four clients is drawn: the change has the mean curvature 4 in place of the weighted 1.12.
    """
    curvatures, shares = np.array([1.0, 2.0, 3.0, 10.0]), np.array([0.97, 0.01, 0.01, 0.01])

    def visit(w, k):
        return curvatures[k] * (w - curvatures[k])

    first = shares @ [visit(0.0, k) for k in range(4)]
    model = -0.1 * first
    exact = shares @ [visit(model, k) for k in range(4)]
    drawn = np.mean([first + visit(model, k) - visit(0.0, k) for k in range(4)])
    np.testing.assert_allclose([exact, drawn], [-1.8648, -1.26], rtol=1e-12)

    sizes = (97, 1, 1, 1)
    data = fs.from_clients([{"x": jnp.full(n, x)} for n, x in zip(sizes, curvatures, strict=True)])
    task = fs.empirical_task(
        lambda w, batch, key: batch["x"] * (w - batch["x"]) ** 2 / 2, data, fs.full_batch(1)
    )
    whole = fs.timelines.full(2, 4, 1)
    some = dataclasses.replace(whole, mask=whole.mask.at[1, 1:].set(False))
    algorithm = fs.pp_marina(fs.fedsgd(0.1), identity())
    setup = fs.Setup(task, whole, jnp.zeros(()), weighting=fs.weight_by_examples)
    state, _ = fs.run(algorithm, setup, jax.random.key(0))
    np.testing.assert_allclose(state.server.estimate, exact, rtol=1e-12)
    with pytest.raises(ValueError, match="weighting is weight_by_examples; expected uniform_weigh"):
        fs.run(algorithm, dataclasses.replace(setup, timeline=some), jax.random.key(0))


def test_the_check_of_the_algorithm_remains():
    def check(task, timeline):
        raise ValueError("refused by the algorithm")

    plain = fs.fedsgd(0.1).requiring(check=check)
    for algorithm in (fs.marina(plain, random_k(1), 0.5), fs.pp_marina(plain, random_k(1))):
        with pytest.raises(ValueError, match="refused by the algorithm"):
            start(algorithm, fs.timelines.full(3, 4, 1))


def test_algorithms_that_do_not_fit():
    with pytest.raises(ValueError, match="clients that keep state"):
        start(fs.marina(fs.feddyn(0.1, 0.1), random_k(1), 0.5), fs.timelines.full(3, 4, 1))
    with pytest.raises(ValueError, match=r"truth values; expected .* apply marina after ef21_p"):
        start(
            fs.ef21_p(fs.marina(fs.fedsgd(0.1), random_k(1), 0.5), top_k(1)),
            fs.timelines.full(3, 4, 1),
        )
    with pytest.raises(ValueError, match="probability is 0; expected"):
        fs.timelines.full_or_uniform(jax.random.key(0), 3, 4, 2, 0, 1)
    with pytest.raises(ValueError, match="cohort_size is 5"):
        fs.timelines.full_or_uniform(jax.random.key(0), 3, 4, 5, 0.5, 1)
