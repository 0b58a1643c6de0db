"""EF14 and EF21: the table of errors, NumPy derivations, identities and refusals.

The table: ``|x^T - x*|^2`` on the instance of ``compressed_quadratics``, computed with NumPy in
float64 from the definitions.
"""

import dataclasses
import functools
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compressed_quadratics import as_unbiased, instance, setup, sign, top
from small_problems import assert_close, assert_identical, compiled

import fedjax_sim as fs
from fedjax_sim.compression import (
    Codec,
    compressed,
    contractive,
    identity,
    lattice,
    power_sgd,
    random_k,
    scaled_sign,
    top_k,
)
from fedjax_sim.engine import contract
from fedjax_sim.runs.history import Clock
from fedjax_sim.runs.storage.outcome import describe
from fedjax_sim.wrappers.received import dry_visit

pytestmark = pytest.mark.usefixtures("x64")
A, B, BEST = instance()
RATE = 0.05
PLAIN = fs.fedavg(RATE)
EXACT = fs.fedsgd(RATE)  # uploads gradients, without the rounding of x - (x - g)
COLUMNS = {
    "GD": EXACT,
    "EF21 top-2": fs.ef21(EXACT, top_k(2)),
    "EF14 top-2": fs.ef14(PLAIN, top_k(2)),
    "top-2 alone": compressed(PLAIN, top_k(2)),
    "EF21 sign": fs.ef21(EXACT, scaled_sign()),
    "EF14 sign": fs.ef14(PLAIN, scaled_sign()),
    "sign alone": compressed(PLAIN, scaled_sign()),
}
TABLE = {
    10: [0.1648839, 0.1944886, 0.2767611, 0.7149408, 0.1443120, 0.2342154, 0.3681785],
    100: [1.39296e-5, 1.40490e-5, 0.0136238, 0.6059549, 5.21860e-6, 0.0331125, 0.3728243],
}
# Half a unit of the last printed digit.
ROUNDING = {10: [5e-8] * 7, 100: [5e-11, 5e-11, 5e-8, 5e-8, 5e-12, 5e-8, 5e-8]}


def errors(algorithms, timeline, **options):
    """``|x^t - x*|^2`` after every round, by algorithm; one program for all of them."""
    problem = setup(A, B, BEST, timeline, **options)

    @compiled
    def go(problem):
        def error(algorithm):
            return fs.run(algorithm, problem, jax.random.key(0))[1].metrics["error"]

        return {name: error(algorithm) for name, algorithm in algorithms.items()}

    return {name: np.asarray(values) for name, values in go(problem).items()}


@pytest.mark.slow
def test_table_of_errors():
    timeline = fs.timelines.full(1000, 4, 1)
    found = errors(COLUMNS, timeline)
    for rounds, row in TABLE.items():
        for name, value, tolerance in zip(COLUMNS, row, ROUNDING[rounds], strict=True):
            assert abs(found[name][rounds - 1] - value) <= tolerance, (name, rounds)
    # The central claims: EF21 converges as gradient descent does; EF14 stalls, less than without.
    for name in ("GD", "EF21 top-2", "EF21 sign"):
        assert found[name][-1] < 1e-28  # rounding of numbers of size 1
    assert found["EF14 top-2"][-1] == pytest.approx(0.02, abs=0.005)
    assert found["EF14 sign"][-1] == pytest.approx(0.01, abs=0.005)
    assert (BEST**2).sum() == pytest.approx(1.4485142599, abs=5e-11)


def test_ef21_pp_with_cohorts_in_turn():
    """Cohorts {0, 1} and {2, 3}, rate 0.02; the model moves in every round."""
    timeline = fs.timelines.cyclic(100, 4, 2, 1)
    found = errors({"pp": fs.ef21(fs.fedsgd(0.02), top_k(2))}, timeline)["pp"]
    np.testing.assert_allclose(found[[9, 99]], [0.5937761, 0.0072190], rtol=0, atol=5e-8)


# ---- derivations: rounds with absent clients and three local steps


ROUNDS, STEPS, LR = 6, 3, 0.03
MASK = np.random.default_rng(3).random((ROUNDS, 4)) < 0.6


def visit(x, i):
    """x minus the model after the local steps."""
    y = x.copy()
    for _ in range(STEPS):
        y = y - LR * A[i] * (y - B[i])
    return x - y


def numpy_ef14(code):
    x, error = np.zeros(10), np.zeros((4, 10))
    for present in MASK:
        sent = []
        for i in np.nonzero(present)[0]:
            total = error[i] + visit(x, i)
            sent.append(code(total))
            error[i] = total - sent[-1]
        x = x - np.mean(sent, axis=0)
    return x, error


def numpy_ef21(code, full_start=False):
    x, memory, estimate = np.zeros(10), np.zeros((4, 10)), np.zeros(10)
    seen = set()
    for present in MASK:
        changes = np.zeros((4, 10))
        for i in np.nonzero(present)[0]:
            changes[i] = visit(x, i) - memory[i]
            if not full_start or i in seen:
                changes[i] = code(changes[i])
            seen.add(i)
        memory = memory + changes
        estimate = estimate + changes.sum(0) / 4
        x = x - estimate
    np.testing.assert_allclose(estimate, memory.mean(0), rtol=1e-12, atol=1e-15)
    return x, memory, estimate


@pytest.fixture(scope="module")
def final_states():
    with jax.enable_x64(True):
        timeline = fs.timelines.full(ROUNDS, 4, STEPS)
        timeline = dataclasses.replace(timeline, mask=jnp.asarray(MASK))
        base = fs.fedavg(LR)
        algorithms = {
            "ef14": fs.ef14(base, top_k(3)),
            "ef14 sign": fs.ef14(base, scaled_sign()),
            "ef21": fs.ef21(base, top_k(3)),
            "ef21 full": fs.ef21(base, top_k(3), start="full"),
            "both": fs.ef21(fs.ef21_p(base, top_k(4)), top_k(3)),
        }
        problem = setup(A, B, BEST, timeline, STEPS)

        @compiled
        def go(problem):
            key = jax.random.key(0)
            return {name: fs.run(a, problem, key)[0] for name, a in algorithms.items()}

        return jax.device_get(go(problem))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "code"), [("ef14", top(3)), ("ef14 sign", sign)])
def test_ef14_follows_its_derivation(final_states, name, code):
    x, error = numpy_ef14(code)
    assert_close(final_states[name].server.params, x, 1e-12)
    assert_close(final_states[name].clients.memory, error, 1e-12)


@pytest.mark.parametrize(("name", "full"), [("ef21", False), ("ef21 full", True)])
def test_ef21_follows_its_derivation(final_states, name, full):
    x, memory, estimate = numpy_ef21(top(3), full)
    state = final_states[name]
    assert_close(state.server.params, x, 1e-12)
    assert_close(state.server.estimate, estimate, 1e-12)
    clients = state.clients.inner if full else state.clients
    assert_close(clients.memory, memory, 1e-12)


def test_both_directions_follow_their_derivation(final_states):
    """EF21-P below EF21: clients start from the copy w, the server moves x."""
    x, w, memory, estimate = np.zeros(10), np.zeros(10), np.zeros((4, 10)), np.zeros(10)
    for present in MASK:
        w = w + top(4)(x - w)
        for i in np.nonzero(present)[0]:
            change = top(3)(visit(w, i) - memory[i])
            memory[i] += change
            estimate = estimate + change / 4
        x = x - estimate
    state = final_states["both"]
    assert_close(state.server.params, x, 1e-12)
    assert_close(state.server.inner.copy, w, 1e-12)
    assert_close(state.clients.memory, memory, 1e-12)


@pytest.mark.slow
def test_codecs_of_ef21_p_inside_each_other_draw_independently():
    """Both send the same one of 16 entries with the probability 1 / 16; with one key always."""
    inner = fs.ef21_p(fs.fedavg(0.1), random_k(1))
    algorithm, x = fs.ef21_p(inner, random_k(1)), jnp.zeros(16)
    state = algorithm.init(x)
    moved = inner.init(x)._replace(inner=fs.fedavg(0.1).init(x + 1))

    def reaches(key):
        round = fs.Round(jnp.array(0), jnp.array(1), 1, key)
        return jnp.any(algorithm.broadcast(state._replace(inner=moved), round) != 0)

    hits = jax.jit(jax.vmap(reaches))(jax.random.split(jax.random.key(0), 400)).sum() / 400
    assert abs(float(hits) - 1 / 16) < 5 * np.sqrt(1 / 16 * 15 / 16 / 400)


def test_messages_of_ef21_p_are_those_of_error_feedback_on_the_server():
    """DoubleSqueeze's server: c = C(e + d), w <- w - c, e <- e + d - c, with the mean d."""
    w, e = np.zeros(10), np.zeros(10)
    for _ in range(5):
        total = e + np.mean([RATE * A[i] * (w - B[i]) for i in range(4)], axis=0)
        sent = top(3)(total)
        w, e = w - sent, total - sent
    timeline = fs.timelines.full(6, 4, 1)
    problem = setup(A, B, BEST, timeline)
    run = compiled(functools.partial(fs.run, fs.ef21_p(PLAIN, top_k(3))))
    state, _ = run(problem, jax.random.key(0))
    assert_close(state.server.copy, w, 1e-12)


# ---- identities


@pytest.mark.slow
def test_exact_codecs_change_nothing():
    """k = d, or the identity: EF14, EF21 and EF21-P are gradient descent."""
    found = errors(
        {
            "GD": PLAIN,
            "EF14": fs.ef14(PLAIN, top_k(10)),
            "EF21": fs.ef21(PLAIN, top_k(1.0)),
            "EF21, per step": fs.ef21(fs.per_step_uploads(PLAIN, RATE), identity()),
            "EF21-P": fs.ef21_p(PLAIN, identity()),
        },
        fs.timelines.full(20, 4, 1),
    )
    unit = found.pop("EF21, per step")
    for name in found:
        np.testing.assert_allclose(found[name], found["GD"], rtol=1e-10, err_msg=name)
    assert unit[-1] > 10  # the server's rate is 1, not 0.05


@pytest.mark.slow
def test_per_step_uploads_are_gradients():
    algorithms = {
        "gradients": fs.ef21(fs.fedsgd(RATE), top_k(2)),
        "per step": fs.ef21(
            fs.per_step_uploads(fs.fedavg(0.3, server=optax.sgd(RATE)), 0.3), top_k(2)
        ),
        "schedule": fs.ef21(
            fs.per_step_uploads(
                fs.fedavg(fs.local.exponential_decay(0.3, 0.8), server=optax.sgd(RATE)),
                fs.local.exponential_decay(0.3, 0.8),
            ),
            top_k(2),
        ),
    }
    found = errors(algorithms, fs.timelines.full(20, 4, 1))
    for values in found.values():
        np.testing.assert_allclose(values, found["gradients"], rtol=1e-10)


first_of_two = Codec(lambda key, x, near: x.at[1].set(0), lambda x: 32)


# ---- unbiased codecs


def random_k_oracle(memory, kept, rounds=60):
    """EF14 or EF21 with random k over 1 + omega, which keeps the drawn entries as they are.

    ``kept[t, i]`` are the entries that client i drew in round t.
    """
    x, memories, estimate = np.zeros(10), np.zeros((4, 10)), np.zeros(10)
    for t in range(rounds):
        changes = np.zeros((4, 10))
        for i in range(4):
            upload = RATE * A[i] * (x - B[i])
            offered = memories[i] + upload if memory == "ef14" else upload - memories[i]
            changes[i] = np.where(kept[t, i], offered, 0)
            memories[i] = offered - changes[i] if memory == "ef14" else memories[i] + changes[i]
        estimate = estimate + changes.mean(0)
        x = x - (changes.mean(0) if memory == "ef14" else estimate)
    return x


@pytest.mark.parametrize("memory", ["ef14", "ef21"])
def test_error_feedback_divides_unbiased_codecs(memory):
    """With 2 of 10 entries, omega = 4: without the division the memories grow in every round."""
    algorithm = {"ef14": fs.ef14, "ef21": fs.ef21}[memory](PLAIN, random_k(2))
    probes = fs.Probes(client={"upload": lambda visit: visit.upload})
    problem = setup(A, B, BEST, fs.timelines.full(60, 4, 1))
    run = compiled(functools.partial(fs.run, algorithm, probes=probes))
    state, history = run(problem, jax.random.key(0))
    kept = np.asarray(history.probes["upload"]) != 0
    assert (kept.sum(-1) == 2).all()
    # Double precision, 60 contracting steps: round-off of a few units in 1e-16.
    assert_close(state.server.params, random_k_oracle(memory, kept), 1e-12)


OWN = Codec(lambda key, x, near: x, lambda x: 0)
NOT_UNBIASED = "codec has the kind {}; expected an unb"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: fs.ef21(PLAIN, top_k(1), start="warm"), "start is 'warm'"),
        *(
            (lambda wrap=wrap, codec=codec: wrap(PLAIN, codec), message)
            for wrap in (fs.ef14, fs.ef21, fs.ef21_p)
            for codec, message in [
                (None, "codec is None; expected a codec"),
                (lattice(8, 0.1), r"codec has the kind None; expected a contr.*Unb"),
                (first_of_two, r"codec has the kind None; expected a contr.*Unb"),
            ]
        ),
        # A model divided by the rate is no gradient.
        (lambda: fs.per_step_uploads(fs.quafl(0.1), 0.1), "algorithm uploads models, which its"),
        (lambda: fs.diana(EXACT, random_k(1), -1.0), "rate is -1.0; expected at least 0"),
        (lambda: fs.diana(EXACT, random_k(1), 1.5), "rate is 1.5; expected at most 1"),
        (lambda: fs.diana(EXACT, top_k(1), 0.5), NOT_UNBIASED.format("'contraction'")),
        (lambda: fs.diana(EXACT, contractive(random_k(1)), 0.5), "kind 'contraction'; expected an"),
        (lambda: fs.diana(EXACT, OWN, 0.5), NOT_UNBIASED.format("None")),
        (lambda: fs.marina(EXACT, random_k(1), 0.0), "probability is 0"),
        (lambda: fs.marina(EXACT, random_k(1), 1.5), "probability is 1.5; expected at most 1"),
        (
            lambda: fs.marina(EXACT, power_sgd(1), 0.5),
            r"unbiased compression\.Codec without mem",
        ),
        (lambda: fs.marina(EXACT, top_k(1), 0.5), NOT_UNBIASED.format("'contraction'")),
        (lambda: fs.pp_marina(EXACT, top_k(1)), NOT_UNBIASED.format("'contraction'")),
    ],
)
def test_bad_arguments(build, message):
    with pytest.raises(ValueError, match=message):
        build()


MEMORIES = pytest.mark.parametrize(
    "algorithm",
    [fs.ef21(EXACT, top_k(2)), fs.diana(EXACT, as_unbiased(top_k(2)), 0.5)],
    ids=["ef21", "diana"],
)
WEIGHTS = np.array([1.0, 2.0, 3.0, 4.0])


def by_number(work):
    return (1 + work.client).astype(float)


@MEMORIES
def test_the_weighted_optimum_with_all_clients(algorithm):
    best = (WEIGHTS @ (A * B)) / (WEIGHTS @ A)
    problem = setup(A, B, best, fs.timelines.full(1000, 4, 1), eval_every=1000)
    weighted = dataclasses.replace(problem, weighting=by_number)
    _, history = fs.run(algorithm, weighted, jax.random.key(0))
    assert history.metrics["error"][-1] < 1e-24  # as without compression, to rounding


@MEMORIES
def test_weights_of_some_clients_are_refused(algorithm):
    """The estimate would be no mean of the memories, and the limit no optimum."""
    timeline = fs.timelines.cyclic(3, 4, 2, 1)
    weighted = dataclasses.replace(setup(A, B, BEST, timeline), weighting=by_number)
    with pytest.raises(ValueError, match="weighting is by_number; expected uniform_weights: the"):
        fs.run(algorithm, weighted, jax.random.key(0))
    fs.run(
        algorithm, dataclasses.replace(weighted, weighting=fs.uniform_weights), jax.random.key(0)
    )


@pytest.mark.parametrize(
    "algorithm",
    [
        fs.ef21(EXACT, identity()),
        fs.diana(EXACT, identity(), 0.5),
        fs.marina(EXACT, identity(), 0.1),
    ],
    ids=["ef21", "diana", "marina"],
)
@pytest.mark.parametrize(("inside_jit", "at_once"), [(False, 8), (True, 8), (False, 2**20)])
def test_weights_that_change_between_rounds_are_refused(
    algorithm, inside_jit, at_once, monkeypatch
):
    """The estimate would be a mean with weights of many rounds, and the limit another point.

    With 8 slots at once two rounds are compared together, and the third one after them.
    """
    monkeypatch.setattr(contract, "_SLOTS_AT_ONCE", at_once)
    steps = np.array([[1, 2, 3, 4], [1, 2, 3, 4], [4, 2, 3, 1]])
    timeline = dataclasses.replace(fs.timelines.full(3, 4, 4), num_steps=jnp.asarray(steps))
    problem = setup(A, B, BEST, timeline, 4)

    def go(weighting, problem=problem):
        weighted = dataclasses.replace(problem, weighting=weighting)
        run = functools.partial(fs.run, algorithm, weighted)
        return (jax.jit(run) if inside_jit else run)(jax.random.key(0))

    def by_steps(work):
        return work.num_steps.astype(float)

    for weighting, number in (
        (by_steps, 2),
        (lambda work: (1 + (work.client + work.round) % 2).astype(float), 1),
        (lambda work: jax.vmap(jax.random.uniform)(work.key), 1),
    ):
        with pytest.raises(ValueError, match=f"other weights in round {number} than before; exp"):
            go(weighting)
    go(by_number)
    same = dataclasses.replace(timeline, num_steps=jnp.broadcast_to(steps[0], (3, 4)))
    go(by_steps, dataclasses.replace(problem, timeline=same))


def test_weights_of_long_timelines_are_compared_in_parts():
    """The comparison of all 2^22 visits together had 41 bytes of NumPy's arrays for each."""
    timeline = jax.tree.map(np.asarray, fs.timelines.full(2**11, 2**11, 1))
    task = fs.shared_task(lambda x, rows, key: rows, jnp.zeros(1), 2**11, fs.full_batch(1))
    tracemalloc.start()
    try:
        contract.check_weighting(fs.ef21(EXACT, identity()), task, timeline, by_number)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 2**22 * 25, most / 2**22


# ---- the rest of an algorithm


def test_the_copy_under_attack_is_what_clients_receive():
    """Attacks hand the server another key, with which broadcast and update draw the same change."""
    algorithm = fs.robust.attacks.inner_product(fs.ef21_p(PLAIN, random_k(2)), np.arange(4) == 0)
    probes = fs.Probes(
        client={"message": lambda visit: visit.message},
        server={"copy": lambda update: update.new_state.copy},
    )
    problem = setup(A, B, BEST, fs.timelines.full(4, 4, 3), 3)
    _, history = fs.run(algorithm, problem, jax.random.key(0), probes=probes)
    received, copy = history.probes["message"], history.probes["copy"]
    np.testing.assert_array_equal(received, np.broadcast_to(copy[:, None], received.shape))


def test_wrappers_keep_checks_and_reasons():
    def check(task, timeline):
        raise ValueError("refused by the algorithm")

    def personal(message, state, oracle, work):
        return message, state

    plain = PLAIN._replace(personal=personal).requiring(synchronous="a reason", check=check)
    for wrap in (fs.ef14, fs.ef21, fs.ef21_p):
        wrapped = wrap(plain, top_k(1))
        assert wrapped.requires.synchronous == "a reason"
        assert wrapped.requires.check is check
        state = wrapped.init_client(jnp.zeros(3))
        assert wrapped.personal is not None
        work = fs.Work(*5 * [jnp.array(0)], jax.random.key(0), max_steps=1)
        assert wrapped.personal("message", state, None, work) == ("message", ())  # pyright: ignore
        assert wrap(PLAIN, top_k(1)).personal is None


@pytest.mark.slow
def test_forecast_counts_the_memories():
    """The error of 10 numbers, and with PowerSGD the start of every matrix."""
    problem = setup(A, B, BEST, fs.timelines.full(2, 4, 1))
    key = jax.random.key(0)
    plain = fs.forecast(PLAIN, problem, key, measure=False)
    memory = fs.forecast(fs.ef14(PLAIN, top_k(2)), problem, key, measure=False)
    assert (plain.client_bytes, memory.client_bytes) == (0, 80)
    assert memory.parts["client states"] == 4 * 80
    state = fs.ef14(PLAIN, power_sgd(2)).init_client({"w": jnp.zeros((6, 3)), "b": jnp.zeros(3)})
    assert sum(leaf.size for leaf in jax.tree.leaves(state)) == 18 + 3 + 6


@pytest.mark.slow
def test_power_sgd_keeps_a_start_per_client():
    """With error feedback and rank 1 of a 5 x 2 model; against NumPy's QR."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(3, 5, 2))

    def oracle(client, key, max_steps):
        def grad(x, k):
            return {"w": x["w"] - jnp.asarray(centres)[client]}

        return fs.Oracle(grad, lambda x, k: x["w"].sum(), lambda x: grad(x, 0))

    task = fs.Task(oracle, np.ones(3, np.int32), np.ones(3, np.int32))
    timeline = fs.timelines.cyclic(5, 3, 2, 1)
    params, codec = {"w": jnp.zeros((5, 2))}, power_sgd(1)
    problem = fs.Setup(task, timeline, params)
    state, _ = fs.run(fs.ef14(fs.fedavg(0.3), codec), problem, jax.random.key(0))
    x, error = np.zeros((5, 2)), np.zeros((3, 5, 2))
    start = np.repeat(np.asarray(codec.init(params)[0])[None], 3, 0)
    for cohort in np.asarray(timeline.clients):
        sent = []
        for i in cohort:
            total = error[i] + 0.3 * (x - centres[i])
            left = total @ start[i] / np.linalg.norm(total @ start[i])
            start[i] = total.T @ left
            sent.append(left @ start[i].T)
            error[i] = total - sent[-1]
        x = x - np.mean(sent, axis=0)
    assert_close(state.server.params["w"], x, 1e-12)
    assert_close(state.clients.memory["w"], error, 1e-12)
    # Only the span of Q counts: its sign and its unit are free.
    kept, derived = (
        np.abs(q) / np.linalg.norm(q, axis=1, keepdims=True)
        for q in (state.clients.codec[0], start)
    )
    assert_close(kept, derived, 1e-12)


@pytest.mark.slow
def test_visits_without_steps_send_nothing_and_keep_memories():
    timeline = fs.timelines.full(3, 4, 1)
    late = jnp.arange(3)[:, None] > 0
    idle = dataclasses.replace(timeline, num_steps=jnp.where(late, 0, timeline.num_steps))
    for wrap in (fs.ef14, fs.ef21):
        ends = []
        for part in (timeline[:1], idle):
            problem = setup(A, B, BEST, part)
            ends.append(fs.run(wrap(PLAIN, top_k(2)), problem, jax.random.key(0))[0])
        assert_identical(ends[1].clients, ends[0].clients)


@pytest.mark.parametrize(
    ("algorithm", "bits"),
    [
        (PLAIN, 640),
        (compressed(PLAIN, top_k(2)), 2 * (64 + 4)),
        (fs.ef14(PLAIN, scaled_sign()), 10 + 64),
        (fs.ef21(PLAIN, top_k(2)), 2 * (64 + 4)),
        (fs.ef21(PLAIN, top_k(2), start="full"), 2 * (64 + 4)),
        (fs.diana(PLAIN, random_k(2), 0.2), 128),
        (fs.marina(PLAIN, random_k(2), 0.25), 160 + 96),
    ],
)
def test_files_of_a_run_have_the_bits_of_the_code(algorithm, bits):
    problem = setup(A, B, BEST, fs.timelines.full(2, 4, 1))
    found = describe(algorithm, problem, ["0"], Clock(problem.timeline, 1), batched=False)
    assert found["upload_bits"] == bits


@pytest.mark.parametrize(
    "wrapper",
    [
        fs.wrappers.average_rounds,
        lambda algorithm: fs.freeze(algorithm, lambda path, leaf: path[0] == "a"),
        lambda algorithm: fs.private(algorithm, lambda path, leaf: path[0] == "a", 0.1),
        lambda algorithm: fs.ef21_p(algorithm, top_k(0.5)),
    ],
)
def test_wrapped_algorithms_still_upload_models(wrapper):
    models = fs.favano(0.1, lambda work: work.num_steps)
    with pytest.raises(ValueError, match="algorithm uploads models, which its server averages"):
        fs.ef14(wrapper(models), top_k(0.5))
    fs.ef14(wrapper(fs.fedavg(0.1)), top_k(0.5))


@pytest.mark.parametrize(
    "algorithm",
    [fs.fedmoswa(0.1), fs.mb_sgd(0.1), fs.skip_nonfinite(fs.fedavg(0.1))],
    ids=["controls", "counts", "left_out"],
)
def test_per_step_uploads_refuses_further_parts(algorithm):
    with pytest.raises(ValueError, match=r"uploads of the form \{.*; expected changes of the mod"):
        fs.per_step_uploads(algorithm, 0.1).init(jnp.ones(3))
    part = fs.freeze(fs.fedavg(0.1), lambda path, leaf: path[0] == "a")
    fs.per_step_uploads(part, 0.1).init({"a": jnp.ones(3), "b": jnp.ones(2)})


@pytest.mark.parametrize(
    "wrapper",
    [
        lambda algorithm: fs.freeze(algorithm, lambda path, leaf: path[0] == "a"),
        lambda algorithm: fs.private(algorithm, lambda path, leaf: path[0] == "a", 0.1),
    ],
)
def test_a_memory_of_a_part_of_the_model_names_the_order_of_wrappers(wrapper):
    algorithm = fs.ef14(wrapper(fs.fedavg(0.1)), top_k(0.5))
    params = {"a": jnp.ones(2), "b": jnp.ones(3)}
    with pytest.raises(ValueError, match=r"uploads of a part of the model, .*: apply freeze, "):
        jax.eval_shape(lambda x: dry_visit(algorithm, x, 4, 1), params)


@pytest.mark.parametrize(
    "algorithm",
    [
        fs.feddyn(0.1, 0.5),
        fs.fedsmoo(0.1, 0.5, 0.0),
        fs.fedgloss(0.1),
        fs.fedvarp(0.1),
        fs.ef21(EXACT, top_k(2)),
        fs.diana(EXACT, random_k(2), 0.5),
        fs.scaffnew(0.1, 0.5),
    ],
    ids=["feddyn", "fedsmoo", "fedgloss", "fedvarp", "ef21", "diana", "scaffnew"],
)
@pytest.mark.parametrize(
    "wrap",
    [
        lambda algorithm: fs.ef21(algorithm, top_k(2)),
        lambda algorithm: fs.diana(algorithm, random_k(2), 0.5),
        lambda algorithm: fs.per_step_uploads(algorithm, 0.1),
    ],
    ids=["ef21", "diana", "per_step_uploads"],
)
def test_algorithms_that_add_uploads_up_are_refused(wrap, algorithm):
    """With half of the entries limits were 0.02 to 0.2 (FedDyn) and 0.6 to 1.5 (Scaffnew) away."""
    with pytest.raises(ValueError, match="algorithm adds uploads up over the rounds: the "):
        wrap(algorithm)


@pytest.mark.parametrize("algorithm", [fs.fedlin(0.1), fs.mime(0.1)], ids=["fedlin", "mime"])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda algorithm: fs.ef14(algorithm, top_k(2)),
        lambda algorithm: fs.ef21(algorithm, top_k(2)),
        lambda algorithm: fs.diana(algorithm, random_k(2), 0.5),
        lambda algorithm: fs.marina(algorithm, random_k(2), 0.5),
        lambda algorithm: fs.per_step_uploads(algorithm, 0.1),
        lambda algorithm: fs.robust.worker_momentum(algorithm),
    ],
    ids=["ef14", "ef21", "diana", "marina", "per_step_uploads", "worker_momentum"],
)
def test_uploads_of_several_kinds_are_refused(wrap, algorithm):
    """A memory of gradients would count as a change: limits were 0.4 to 4 away from the optimum."""
    with pytest.raises(ValueError, match="uploads of several kinds: gradients in rounds 0, 2, "):
        wrap(algorithm)


@pytest.mark.parametrize(
    "algorithm",
    [fs.feddyn(0.05, 0.5), fs.scaffnew(0.05, 0.5), fs.fedvarp(0.05)],
    ids=["feddyn", "scaffnew", "fedvarp"],
)
def test_the_optimum_of_algorithms_that_add_uploads_up_with_ef14(algorithm):
    same = setup(np.ones_like(A), B, B.mean(0), fs.timelines.full(3000, 4, 2), 2, eval_every=3000)
    run = functools.partial(fs.run, fs.ef14(algorithm, top_k(5)))
    _, history = jax.jit(run)(same, jax.random.key(0))
    assert history.metrics["error"][-1] < 1e-20  # squared, to rounding
