"""Attacks on uploads against NumPy, flipped labels and backdoors, and refusals."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from small_problems import (
    assert_close,
    compiled,
    logistic_data,
    logistic_losses,
    logistic_params,
    quadratic_task,
    random_quadratics,
    rotated,
)
from traced import digest_of

import fedjax_sim as fs
from fedjax_sim.engine.execution.devices import make_mesh
from fedjax_sim.engine.execution.placement import by_client
from fedjax_sim.types import Aggregation, Stack
from fedjax_sim.wrappers.robust import attacks
from fedjax_sim.wrappers.robust.attacks import colluding

pytestmark = pytest.mark.usefixtures("x64")

NUM_CLIENTS, DIM = 12, 5
UPLOADS = np.sin(np.outer(np.arange(1, 13), np.arange(1, 6))) + 0.1 * np.arange(1, 6)
MASK = np.isin(np.arange(NUM_CLIENTS), [1, 4, 11])
ABSENT = np.isin(np.arange(NUM_CLIENTS), [4, 7])  # in the round of the tests of stacks
HONEST = UPLOADS[~MASK & ~ABSENT]
KEY = jax.random.key(0)


class State(NamedTuple):
    params: Any


# Client i uploads row i, in two leaves; the server keeps all uploads that it receives.
SENDING = fs.FedAlgorithm(
    init=State,
    local=lambda x, state, oracle, work: (split(jnp.asarray(UPLOADS)[work.client]), state),
    update=lambda state, stack, round: State(stack.uploads),
    aggregation=Aggregation(),
)
WITH_STRENGTH = {
    "sign_flip": (attacks.sign_flip, 1.5),
    "sign_flip_mean": (functools.partial(attacks.sign_flip, of="mean"), 1.5),
    "scaling": (attacks.scaling, 7.0),
    "gaussian": (attacks.gaussian, 0.5),
    "added": (functools.partial(attacks.gaussian, add=True), 0.5),
    "alie": (attacks.alie, 1.2),
    "inner_product": (attacks.inner_product, 0.3),
}


def split(x):
    return {"a": x[..., :2], "b": x[..., 2:]}


def joined(tree):
    return np.concatenate([tree["a"], tree["b"]], axis=-1)


def received(algorithm, num_steps=3):
    """What the server receives of all clients in round 5, [M, d]; masked clients are absent."""
    zero = jnp.zeros(NUM_CLIENTS, jnp.int32)
    clients = jnp.arange(NUM_CLIENTS, dtype=jnp.int32)
    keys = jax.random.split(KEY, NUM_CLIENTS)

    def visit(client, key):
        work = fs.Work(zero[0] + 5, client, zero[0] + num_steps, zero[0], zero[0], key, 3)
        return algorithm.local((), (), None, work)[0]

    uploads = jax.vmap(visit)(clients, keys)
    stack = Stack(uploads, None, jnp.asarray(~ABSENT), clients)
    round = fs.Round(jnp.array(5), jnp.array(10), NUM_CLIENTS, KEY)
    return algorithm.update(algorithm.init(jnp.zeros(DIM)), stack, round).params


@functools.cache
def all_received():
    """Of every attack with a traced strength, and of the others, in one program."""

    @compiled
    def of_all(strengths):
        sent = {
            name: received(attack(SENDING, MASK, strengths[name]))
            for name, (attack, _) in WITH_STRENGTH.items()
        }
        return sent | {
            "infinity": received(attacks.infinity(SENDING, MASK)),
            "alie_default": received(attacks.alie(SENDING, MASK)),
            "mimic_fixed": received(attacks.mimic(SENDING, MASK, target=2)),
            "mimic_absent": received(attacks.mimic(SENDING, MASK, target=7)),
            "nobody": received(attacks.alie(SENDING, ~MASK & MASK, z=1.0)),
            "everybody": received(attacks.inner_product(SENDING, MASK | ~MASK)),
            "no_steps": received(attacks.gaussian(SENDING, MASK), num_steps=0),
            "never": received(attacks.scaling(SENDING, attacks.Attackers(MASK, 0.0))),
            "corrupted": received(attacks.corrupted(SENDING, np.where(MASK, 1.0, 0.0))),
        }

    return of_all({name: jnp.asarray(strength) for name, (_, strength) in WITH_STRENGTH.items()})


def expected(name):
    """In NumPy; absent attackers' uploads do not matter."""
    mean, deviation = HONEST.mean(0), HONEST.std(0, ddof=1)
    if name in ("nobody", "everybody", "no_steps", "never", "mimic_absent"):
        return UPLOADS
    z = stats.norm.ppf((10 - 2 - 4) / (10 - 2))  # 2 of 10 uploads; s = 6 - 2
    forged = {
        "sign_flip": -1.5 * UPLOADS,
        "sign_flip_mean": -1.5 * mean,
        "scaling": 7.0 * UPLOADS,
        "alie": mean - 1.2 * deviation,
        "alie_default": mean - z * deviation,
        "inner_product": -0.3 * mean,
        "infinity": np.inf,
        "mimic_fixed": UPLOADS[2],
        "corrupted": np.nan,
    }[name]
    return np.where(MASK[:, None], forged, UPLOADS)


@pytest.mark.parametrize(
    "name",
    ["sign_flip", "sign_flip_mean", "scaling", "alie", "alie_default", "inner_product", "infinity",
     "mimic_fixed", "mimic_absent", "nobody", "everybody", "no_steps", "never", "corrupted"],
)  # fmt: skip
def test_uploads(name, allow_nans):
    sent = joined(all_received()[name])[~ABSENT]
    np.testing.assert_allclose(sent, expected(name)[~ABSENT], rtol=0, atol=1e-14)


def test_noise(allow_nans):
    """Standard normal numbers times the strength, different for all clients and entries."""
    noise = joined(all_received()["gaussian"])[MASK]
    added = joined(all_received()["added"])
    np.testing.assert_allclose(added[MASK] - UPLOADS[MASK], noise, atol=1e-14)
    np.testing.assert_array_equal(added[~MASK], UPLOADS[~MASK])
    assert len(set(noise.ravel())) == noise.size
    assert stats.kstest(noise.ravel(), stats.norm(scale=0.5).cdf).pvalue > 1e-3


def test_rounds_without_an_attack_have_derivatives():
    """Gradients are finite in a second round with two uploads, none of an attacker."""
    task = quadratic_task(np.ones((6, 1, 1)), np.arange(6.0).reshape(6, 1), 1)
    mask = np.array([[True] * 6, [False, True, True, False, False, False]])
    timeline = dataclasses.replace(fs.timelines.full(2, 6, 1), mask=mask)
    setup = fs.Setup(task, timeline, jnp.zeros(1))

    def model(lr):
        algorithm = attacks.alie(fs.fedavg(lr), attacks.some_clients([0, 3], 6))
        return fs.run(algorithm, setup, jax.random.key(0))[0].server.params[0]

    slope = compiled(jax.grad(model))(0.5)
    step = compiled(model)(0.75) - compiled(model)(0.25)
    np.testing.assert_allclose(slope, 2 * step, rtol=0.05)


def test_printed_z():
    for (n, f), printed in {(12, 3): 0.139710, (25, 5): 0.253347, (50, 24): 1.426077}.items():
        z = stats.norm.ppf(colluding.quantile(np.array(n), np.array(f)))
        assert z == pytest.approx(printed, abs=5e-7)


@pytest.mark.slow
def test_mimic(allow_nans):
    """Three rounds of warm-up, rounds of one or no honest client, and rounds without the target."""
    algorithm = attacks.mimic(SENDING, MASK, warmup=3)
    rng = np.random.default_rng(0)
    arrived = rng.random((8, NUM_CLIENTS)) < 0.7
    arrived[0] = MASK | (np.arange(NUM_CLIENTS) == 5)
    arrived[1] = MASK
    uploads = UPLOADS * rng.normal(size=(8, NUM_CLIENTS, 1))
    start = algorithm.init(split(jnp.zeros(DIM)))
    algorithm_of_form = algorithm._replace(init=lambda params: start)

    @compiled
    def rounds(uploads, arrived):
        def step(state, now):
            number, x, here = now
            clients = jnp.arange(NUM_CLIENTS, dtype=jnp.int32)
            round = fs.Round(number, here.sum(), NUM_CLIENTS, KEY)
            inner = state._replace(inner=State(()))
            new = algorithm_of_form.update(inner, Stack(split(x), None, here, clients), round)
            return new._replace(inner=state.inner), (new.inner.params, new.target)

        return jax.lax.scan(step, start, (jnp.arange(8), uploads, arrived))

    last, (sent, targets) = rounds(jnp.asarray(uploads), jnp.asarray(arrived))
    z, mean, t, target = joined(start.direction), np.zeros(DIM), 0, None
    for number in range(8):
        x, here = uploads[number], arrived[number]
        honest = np.flatnonzero(here & ~MASK)
        if t < 3 and len(honest):
            mean = t / (t + 1) * mean + x[honest].mean(0) / (t + 1)
            c = sum(((x[i] - mean) @ z) * (x[i] - mean) for i in honest)
            if np.linalg.norm(c):
                z = t / (t + 1) * z + c / np.linalg.norm(c) / (t + 1)
                z /= np.linalg.norm(z)
            target = honest[np.argmax(x[honest] @ z)]
            t += 1
        result = x.copy()
        if target in honest:
            result[MASK] = x[target]
        np.testing.assert_allclose(
            joined(jax.tree.map(lambda leaf, k=number: leaf[k], sent))[here], result[here],
            atol=1e-12,
        )  # fmt: skip
        if number != 1:
            assert int(targets[number]) == target
    assert int(last.rounds) == 3
    assert_close(joined(last.direction), z, 1e-12)


# ---- runs


LR = 0.3
HESSIANS, CENTRES = random_quadratics(NUM_CLIENTS, DIM)
START = np.linspace(-1, 1, DIM)


@functools.cache
def timeline():
    sampled = fs.timelines.uniform(jax.random.key(1), 6, NUM_CLIENTS, 9, num_steps=1)
    return fs.timelines.lose_uploads(jax.random.key(2), sampled, 0.1)


def attacked(rule):
    """ALIE against FedSGD with a rule, and the same in NumPy."""
    algorithm = fs.fedsgd(LR)
    if rule is not None:
        algorithm = fs.robust.aggregate(algorithm, rule)
    return attacks.alie(algorithm, MASK, z=1.0)


def by_hand(combine):
    x = START
    visits = timeline()
    for clients, here in zip(np.asarray(visits.clients), np.asarray(visits.arrived), strict=True):
        present = clients[here]
        gradients = np.einsum("mij,mj->mi", HESSIANS[present], x - CENTRES[present])
        bad = MASK[present]
        honest = gradients[~bad]
        gradients[bad] = honest.mean(0) - honest.std(0, ddof=1)
        x = x - LR * combine(gradients)
    return x


def run(algorithm, execution=None):
    @compiled
    def go(task, timeline):
        setup = fs.Setup(task, timeline, jnp.asarray(START))
        return fs.run(algorithm, setup, KEY, execution=execution)[0].server

    return go(quadratic_task(HESSIANS, CENTRES, 1), timeline())


RULES = {
    "mean": (None, lambda g: g.mean(0)),
    "median": (fs.robust.median(), lambda g: np.median(g, axis=0)),
    "clipping": (fs.robust.centred_clipping(100.0), lambda g: g.mean(0)),  # clips nothing
}
EXECUTIONS = {
    "chunked": lambda: fs.execution.chunked(2),
    "sharded": lambda: fs.execution.sharded(
        jax.make_mesh((3,), ("clients",), devices=jax.devices()[:3])
    ),
}


@pytest.mark.parametrize(
    "rule",
    ["mean", *(pytest.param(name, marks=pytest.mark.slow) for name in ("median", "clipping"))],
)
def test_runs_with_rules(rule):
    """Partial cohorts with lost uploads: only those that arrive count, as honest or attackers'."""
    built, combine = RULES[rule]
    assert_close(run(attacked(built)).params, by_hand(combine), 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("name", ["sign_flip", "gaussian", "alie"])
def test_executions_agree(name, execution):
    attack, strength = WITH_STRENGTH[name]
    algorithm = attack(fs.scaffold(0.1), attacks.Attackers(MASK, 0.7), strength)
    one, other = run(algorithm), run(algorithm, EXECUTIONS[execution]())
    assert_close(other, one, 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("attack", [attacks.mimic, attacks.alie])
def test_clients_on_a_mesh(attack):
    """Data by client on two devices, with lost uploads, as on one."""
    where = by_client(8, make_mesh(jax.devices()[:2]), num_strata=4)
    whole, placed = (
        fs.empirical_task(logistic_losses, logistic_data(), rotated(2), placement=placement)
        for placement in (None, where)
    )
    visits = fs.timelines.uniform(jax.random.key(1), 4, 8, 6, whole.num_steps)
    visits = fs.timelines.lose_uploads(jax.random.key(2), visits, 0.4)
    arranged = fs.timelines.arrange_by_stratum(visits, 8, 4)
    robust = fs.robust.aggregate(fs.scaffold(0.1), fs.robust.median())
    algorithm = attack(robust, np.arange(8) == 3)

    @compiled
    def go(task, timeline):
        setup = fs.Setup(task, timeline, logistic_params())
        return fs.run(algorithm, setup, KEY)[0].server

    assert_close(go(placed, arranged), go(whole, visits), 1e-12)


def test_digests_have_attackers_and_strengths():
    def digest(mask=MASK, probability=1.0, std=2.0):
        attackers = attacks.Attackers(mask, probability)
        return digest_of(attacks.gaussian(fs.fedavg(0.1), attackers, std))

    assert digest() == digest()
    assert len({digest(), digest(~MASK), digest(probability=0.5), digest(std=3.0)}) == 4


@pytest.mark.slow
def test_strength_may_be_swept():
    """Two strengths in one program equal separate runs, with the same noise."""

    def factory(std):
        return attacks.gaussian(fs.fedsgd(LR), MASK, std)

    setup = fs.Setup(
        quadratic_task(HESSIANS, CENTRES, 1), timeline(), jnp.asarray(START)[None],
        eval_fn=lambda params: {"norm": (params**2).sum()}, eval_every=6,
    )  # fmt: skip
    frame = fs.sweep(factory, setup, {"std": [0.5, 2.0]}, KEY[None]).to_frame()
    for std in (0.5, 2.0):
        rows = frame[(frame["std"] == std) & (frame["metric"] == "norm")]
        value = float((run(factory(std)).params ** 2).sum())
        assert float(rows["value"].iloc[-1]) == pytest.approx(value, rel=1e-10)


# ---- attackers


@compiled
def drawn(probability):
    attackers = attacks.Attackers(MASK).sometimes(probability)
    clients = jnp.arange(NUM_CLIENTS)

    def attack(number, client):
        key = jax.random.fold_in(jax.random.fold_in(KEY, number), client)
        return attackers.attack(client, number, key)

    return jax.vmap(jax.vmap(attack, (None, 0)), (0, None))(jnp.arange(20), clients)


@settings(max_examples=20)
@given(st.floats(0, 1), st.floats(0, 1))
def test_random_attacks_are_coupled(one, other):
    few, many = (np.asarray(drawn(p)) for p in sorted((one, other)))
    assert (few <= many).all()
    assert not many[:, ~MASK].any()


def test_who_attacks():
    half, quarter = (attacks.random_clients(KEY, 20, share).mask for share in (0.5, 0.25))
    assert (half.sum(), quarter.sum()) == (10, 5)
    assert (quarter <= half).all()
    late = attacks.Attackers(MASK).sometimes(lambda number: number >= 3)
    sent = [bool(late.attack(jnp.array(1), jnp.array(t), KEY)) for t in range(6)]
    assert sent == [False] * 3 + [True] * 3


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: attacks.sign_flip(SENDING, [1, 4]), r"attackers is .*expected booleans \[M\]"),
        (lambda: attacks.sign_flip(SENDING, MASK, of="all"), "of is 'all'; expected 'own' or"),
        (lambda: attacks.sign_flip(SENDING, MASK, -1.0), "scale is -1.0; expected at least 0"),
        (lambda: attacks.sign_flip(SENDING, MASK, -1.0, of="mean"), "scale is -1.0; expected at"),
        (lambda: attacks.inner_product(SENDING, MASK, -1.0), "eps is -1.0; expected at least 0"),
        (lambda: attacks.gaussian(SENDING, MASK, -1.0), "std is -1.0"),
        (lambda: attacks.corrupted(SENDING, 1.5), r"probability is 1.5; expected numbers in \[0"),
        (lambda: attacks.mimic(SENDING, MASK, warmup=0), "warmup is 0"),
        (lambda: attacks.mimic(SENDING, MASK, target=4), "target is 4; expected an honest client"),
        (lambda: attacks.mimic(SENDING, MASK, target=12), "target is 12; expected an honest"),
        (lambda: attacks.some_clients([3], 3), r"clients is \[3\]; expected 0 \.\. 2"),
        (lambda: attacks.random_clients(KEY, 9, 1.2), r"fraction is 1.2; expected a number in"),
        (lambda: attacks.replacement_factor(3, 4), r"num_attackers is 4; expected 1 \.\. 3"),
        (lambda: attacks.replacement_factor(3, 1, 0.0), "server_lr is 0.0; expected a positive"),
        (
            lambda: attacks.alie(SENDING, attacks.Attackers(MASK, 0.5)),
            "z is None; expected a number for attackers that attack in some visits only",
        ),
        (lambda: some(attackers=OF_FOUR[:2]), r"attackers has the shape \(2,\); expected \(4,\)"),
        (lambda: some(attackers=attacks.Attackers(OF_FOUR, 0.5)), "attack in some visits only"),
        (lambda: some(share=1.5), r"share is 1.5; expected a number in \[0, 1\]"),
        (lambda: some(num_classes=3), r"the largest of 'y' is 4; expected at most 2"),
        (lambda: some(leaf="z"), "leaf is 'z'; expected a key"),
        (lambda: some(leaf="x", data=fs.FederatedData({"x": np.ones(13)}, OFFSETS)), "dtype float"),
        (
            lambda: attacks.poison(data(), OF_FOUR, attacks.Trigger(7)),
            "size is 7; expected at most 6",
        ),
        (lambda: attacks.poison(data(), OF_FOUR, attacks.Trigger(0)), "size is 0"),
        (lambda: attacks.poison(data(), OF_FOUR, attacks.Trigger(2, -1)), "target is -1"),
        (lambda: attacks.Trigger().on(np.ones((3, 8))), r"shape \(3, 8\); expected \[N, H, W\]"),
        (
            lambda: attacks.Trigger(1, value=0.5).on(np.ones((1, 3, 8), np.uint8)),
            r"value is 0.5; expected an integer in 0 .. 255, since the images are uint8",
        ),
        (
            lambda: attacks.Trigger(1, value=256).on(np.ones((1, 3, 8), np.uint8)),
            "value is 256; expected an integer in 0 .. 255",
        ),
        (
            lambda: attacks.triggered({"x": np.ones((2, 8, 8)), "y": np.zeros(2)}),
            "all examples have the label 0",
        ),
    ],
)
def test_refuses_arguments(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def start(algorithm, mask_of_slots=None):
    visits = timeline()
    if mask_of_slots is not None:
        visits = dataclasses.replace(visits, mask=mask_of_slots)
    fs.init(algorithm, fs.Setup(quadratic_task(HESSIANS, CENTRES, 1), visits, jnp.asarray(START)))


def test_refuses_setups():
    for mask, name in ((np.ones(5, bool), "attackers"), (MASK, "probability")):
        attackers = attacks.Attackers(mask, 1.0 if name == "attackers" else np.ones(5))
        with pytest.raises(ValueError, match=rf"{name} has the shape \(5,\); expected \(12,\)"):
            start(attacks.scaling(fs.fedsgd(LR), attackers))
    counts = (MASK[np.asarray(timeline().clients)] & np.asarray(timeline().arrived)).sum(1)
    first = int(np.flatnonzero(counts > 1)[0])
    robust = fs.robust.aggregate(fs.fedsgd(LR), fs.robust.trimmed_mean(f=1))
    for attack in (attacks.sign_flip, attacks.inner_product):
        with pytest.raises(
            ValueError,
            match=f"attackers send {counts[first]} uploads in round {first}; expected at most f =",
        ):
            start(attack(robust, MASK))
    start(attacks.sign_flip(fs.robust.aggregate(fs.fedsgd(LR), fs.robust.median()), MASK))
    # Two uploads, one of an attacker: (2 - 1 - 1) / 1.
    clients = np.asarray(timeline().clients)
    few = np.zeros(clients.shape, bool)
    few[2, np.flatnonzero(MASK[clients[2]])[:1]] = True
    few[2, np.flatnonzero(~MASK[clients[2]])[:1]] = True
    visits = dataclasses.replace(timeline(), mask=few, lost=None)
    setup = fs.Setup(quadratic_task(HESSIANS, CENTRES, 1), visits, jnp.asarray(START))
    with pytest.raises(ValueError, match=r"send 1 of 2 uploads in round 2, for which .* is 0; exp"):
        fs.init(attacks.alie(fs.fedsgd(LR), MASK), setup)
    fs.init(attacks.alie(fs.fedsgd(LR), MASK, z=1.0), setup)


def test_attackers_are_numbers_or_a_mask():
    for clients in ([True, False, True], [1.7]):
        with pytest.raises(ValueError, match=r"clients has dtype .*; expected integers"):
            attacks.some_clients(clients, 3)
    assert not attacks.some_clients([], 3).mask.any()
    for mask in ([True, False], (True, False)):
        assert attacks.sign_flip(fs.fedavg(0.1), mask)
        assert attacks.sign_flip(fs.fedavg(0.1), attacks.Attackers(mask))


# ---- poisoned data


OFFSETS = np.array([0, 4, 4, 10, 13])  # client 1 has no examples
OF_FOUR = np.array([True, True, False, True])
OWNERS = np.repeat(np.arange(4), np.diff(OFFSETS))


def data(labels=None):
    rng = np.random.default_rng(0)
    examples = {
        "x": rng.integers(0, 200, (13, 6, 7), dtype=np.uint8),
        "y": rng.integers(0, 5, 13, dtype=np.int32) if labels is None else labels,
    }
    return fs.FederatedData(examples, OFFSETS)


def some(**changed):
    arguments = {"data": data(), "attackers": OF_FOUR, "num_classes": 5} | changed
    return attacks.flip_labels(**arguments)


def test_flipped_labels():
    """All labels of attackers, none of the others; twice is nothing; pixels stay."""
    flipped = attacks.flip_labels(data(), OF_FOUR, num_classes=5)
    y = data().examples["y"]
    np.testing.assert_array_equal(flipped.examples["y"], np.where(OF_FOUR[OWNERS], 4 - y, y))
    assert flipped.examples["y"].dtype == np.int32
    np.testing.assert_array_equal(flipped.examples["x"], data().examples["x"])
    again = attacks.flip_labels(flipped, attacks.Attackers(OF_FOUR), num_classes=5)
    np.testing.assert_array_equal(again.examples["y"], y)
    sequences = np.arange(26).reshape(13, 2)
    both = attacks.flip_labels(data(sequences), OF_FOUR, num_classes=26).examples["y"]
    np.testing.assert_array_equal(both[0], 25 - sequences[0])


@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 5))
def test_shares(one, other, seed):
    """Each attacker changes its share, rounded; larger shares add examples."""
    wrong = np.full(13, 4)
    counts = []
    for share in sorted((one, other)):
        y = attacks.flip_labels(data(wrong), OF_FOUR, 5, share=share, seed=seed).examples["y"]
        changed = y == 0
        sizes = np.bincount(OWNERS[changed], minlength=4)
        expected = np.floor(share * np.diff(OFFSETS) + 0.5) * OF_FOUR
        np.testing.assert_array_equal(sizes, expected)
        counts.append(changed)
    assert (counts[0] <= counts[1]).all()


def test_trigger_and_poison():
    trigger = attacks.Trigger(size=3, target=2)
    x, y = data().examples["x"], data().examples["y"]
    bad = attacks.poison(data(), OF_FOUR, trigger, share=0.5)
    changed = (bad.examples["x"] != x).any(axis=(1, 2))
    assert np.bincount(OWNERS[changed], minlength=4).tolist() == [2, 0, 0, 2]
    assert (bad.examples["x"][changed][:, 3:, 4:] == x.max()).all()
    kept = bad.examples["x"].copy()
    kept[:, 3:, 4:] = x[:, 3:, 4:]
    np.testing.assert_array_equal(kept, x)
    np.testing.assert_array_equal(bad.examples["y"], np.where(changed, 2, y))
    shown = attacks.triggered({"x": x, "y": y, "id": np.arange(13)}, trigger)
    np.testing.assert_array_equal(shown["id"], np.flatnonzero(y != 2))
    np.testing.assert_array_equal(shown["y"], 2)
    np.testing.assert_array_equal(shown["x"], trigger.on(x)[y != 2])
    colours = np.zeros((2, 4, 4, 3), np.float32)
    assert attacks.Trigger(2, value=0.5).on(colours).sum() == 2 * 4 * 3 * 0.5
    assert colours.max() == 0


@pytest.mark.slow
def test_backdoor_succeeds_unless_a_rule_removes_it():
    """Model replacement by one of ten clients, against the mean and against the median."""
    dataset = fs.datasets.load("digits")
    test = dataset.test
    parts = np.array_split(np.random.default_rng(0).permutation(len(dataset.train["y"])), 10)
    clean = fs.from_assignment(dataset.train, parts)
    attackers = attacks.some_clients([3], 10)
    trigger = attacks.Trigger(size=2)
    model = fs.models.softmax_regression((8, 8), 10)
    metrics = fs.objectives.classification_metrics(model.apply)
    evaluate = {
        "clean": fs.evaluation.evaluator(metrics, test),
        "backdoor": fs.evaluation.evaluator(metrics, attacks.triggered(test, trigger)),
    }
    task = fs.empirical_task(
        fs.objectives.cross_entropy(model), attacks.poison(clean, attackers, trigger),
        fs.epochs(1, 10),
    )  # fmt: skip
    setup = fs.Setup(task, fs.timelines.full(15, 10, task.num_steps), model.init(jax.random.key(0)))

    def rates(algorithm):
        state, _ = jax.jit(lambda setup: fs.run(algorithm, setup, jax.random.key(1)))(setup)
        return {k: float(f(state.server.params)["accuracy"]) for k, f in evaluate.items()}

    factor = attacks.replacement_factor(10, 1)
    lost = rates(attacks.scaling(fs.fedavg(0.1), attackers, factor))
    robust = fs.robust.aggregate(fs.fedavg(0.1), fs.robust.median(f=1))
    kept = rates(attacks.scaling(robust, attackers, factor))
    assert lost["backdoor"] > 0.9
    assert lost["clean"] > 0.7
    assert kept["backdoor"] < 0.3
    assert kept["clean"] > 0.85


def test_data_of_clients_that_attack_are_those_of_the_mask():
    """Attackers that poison data serve for uploads, too."""
    attackers = attacks.random_clients(jax.random.key(2), 4, 0.5)
    y = attacks.flip_labels(data(np.full(13, 4)), attackers, 5).examples["y"]
    np.testing.assert_array_equal(y == 0, np.asarray(attackers.mask)[OWNERS])
    assert isinstance(attackers.attack(jnp.array(0), jnp.array(0), jax.random.key(0)), jax.Array)
