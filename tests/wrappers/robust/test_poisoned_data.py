"""Flipped labels and backdoors: which examples change, the trigger, success, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedjax_sim as fs
from fedjax_sim.wrappers.robust import attacks

OFFSETS = np.array([0, 4, 4, 10, 13])  # client 1 has no examples
MASK = np.array([True, True, False, True])
OWNERS = np.repeat(np.arange(4), np.diff(OFFSETS))


def data(labels=None):
    rng = np.random.default_rng(0)
    examples = {
        "x": rng.integers(0, 200, (13, 6, 7), dtype=np.uint8),
        "y": rng.integers(0, 5, 13, dtype=np.int32) if labels is None else labels,
    }
    return fs.FederatedData(examples, OFFSETS)


def test_flipped_labels():
    """All labels of attackers, none of the others; twice is nothing; pixels stay."""
    flipped = attacks.flip_labels(data(), MASK, num_classes=5)
    y = data().examples["y"]
    np.testing.assert_array_equal(flipped.examples["y"], np.where(MASK[OWNERS], 4 - y, y))
    assert flipped.examples["y"].dtype == np.int32
    np.testing.assert_array_equal(flipped.examples["x"], data().examples["x"])
    again = attacks.flip_labels(flipped, attacks.Attackers(MASK), num_classes=5)
    np.testing.assert_array_equal(again.examples["y"], y)
    sequences = np.arange(26).reshape(13, 2)
    both = attacks.flip_labels(data(sequences), MASK, num_classes=26).examples["y"]
    np.testing.assert_array_equal(both[0], 25 - sequences[0])


@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 5))
def test_shares(one, other, seed):
    """Each attacker changes its share, rounded; larger shares add examples."""
    wrong = np.full(13, 4)
    counts = []
    for share in sorted((one, other)):
        y = attacks.flip_labels(data(wrong), MASK, 5, share=share, seed=seed).examples["y"]
        changed = y == 0
        sizes = np.bincount(OWNERS[changed], minlength=4)
        expected = np.floor(share * np.diff(OFFSETS) + 0.5) * MASK
        np.testing.assert_array_equal(sizes, expected)
        counts.append(changed)
    assert (counts[0] <= counts[1]).all()


def test_trigger_and_poison():
    trigger = attacks.Trigger(size=3, target=2)
    x, y = data().examples["x"], data().examples["y"]
    bad = attacks.poison(data(), MASK, trigger, share=0.5)
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


def some(**changed):
    arguments = {"data": data(), "attackers": MASK, "num_classes": 5} | changed
    return attacks.flip_labels(**arguments)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: some(attackers=MASK[:2]), r"attackers has the shape \(2,\); expected \(4,\)"),
        (lambda: some(attackers=attacks.Attackers(MASK, 0.5)), "attack in some visits only"),
        (lambda: some(share=1.5), r"share is 1.5; expected a number in \[0, 1\]"),
        (lambda: some(num_classes=3), r"the largest of 'y' is 4; expected at most 2"),
        (lambda: some(leaf="z"), "leaf is 'z'; expected a key"),
        (lambda: some(leaf="x", data=fs.FederatedData({"x": np.ones(13)}, OFFSETS)), "dtype float"),
        (lambda: attacks.poison(data(), MASK, attacks.Trigger(7)), "size is 7; expected at most 6"),
        (lambda: attacks.poison(data(), MASK, attacks.Trigger(0)), "size is 0"),
        (lambda: attacks.poison(data(), MASK, attacks.Trigger(2, -1)), "target is -1"),
        (lambda: attacks.Trigger().on(np.ones((3, 8))), r"shape \(3, 8\); expected \[N, H, W\]"),
        (
            lambda: attacks.triggered({"x": np.ones((2, 8, 8)), "y": np.zeros(2)}),
            "all examples have the label 0",
        ),
    ],
)
def test_refusals(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_data_of_clients_that_attack_are_those_of_the_mask():
    """The same attackers serve for data and for uploads."""
    attackers = attacks.random_clients(jax.random.key(2), 4, 0.5)
    y = attacks.flip_labels(data(np.full(13, 4)), attackers, 5).examples["y"]
    np.testing.assert_array_equal(y == 0, np.asarray(attackers.mask)[OWNERS])
    assert isinstance(attackers.attack(jnp.array(0), jnp.array(0), jax.random.key(0)), jax.Array)
