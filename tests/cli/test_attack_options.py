"""Attacks and failures on the command line: options, timelines, poisoned data, refusals."""

import jax
import numpy as np
import pytest
from traced import digest_of

import fedjax_sim as fs
from fedjax_sim.cli.grid import configurations
from fedjax_sim.cli.sweep import _Runs
from fedjax_sim.studies.setups import build
from fedjax_sim.studies.setups.attacks import ATTACKS, attack_of, parse, trigger
from fedjax_sim.studies.setups.config import RunConfig, SweepConfig
from fedjax_sim.studies.setups.problem import failing, prepare
from fedjax_sim.wrappers.robust import attacks

SMALL = {
    "model": "softmax_regression", "num_clients": 20, "partition": "iid", "cohort_size": 10,
    "rounds": 3, "seeds": 1, "algorithms": ("fedavg",), "local_epochs": 1,
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_is_an_option(name):
    entry = ATTACKS[name]
    numbers = [None] if entry.number is None else [None, 2.0]
    for number in numbers:
        attack = attack_of(RunConfig(attack=name, attackers=0.25), 20)
        assert attack is not None
        attack = attack._replace(number=number)
        assert int(attack.attackers.mask.sum()) == 5
        assert attack.on(fs.fedavg(0.1)).init is not None
    assert attack_of(RunConfig(), 20) is None


def test_attackers_are_nested():
    masks = [
        attack_of(RunConfig(attack="alie", attackers=a), 30).attackers.mask for a in (0.1, 0.5)
    ]
    assert (masks[0] <= masks[1]).all()


def failed(**options):
    rounds = fs.timelines.full(6, 5, num_steps=2)
    return failing(RunConfig(**options), jax.random.key(0), rounds)


def test_timelines_with_failures():
    """The draws do not depend on the probabilities."""
    plain, some, more = failed(), failed(lost=0.3, late=0.3, delay=2), failed(lost=0.6, late=0.6)
    assert plain.lost is None
    assert (plain.max_staleness, some.max_staleness, more.max_staleness) == (0, 2, 1)
    assert (np.asarray(some.lost) <= np.asarray(more.lost)).all()
    assert 0 < some.lost.sum() < more.lost.sum()
    assert (np.asarray(some.version) < np.asarray(plain.version)).any()
    assert not np.array_equal(some.lost, np.asarray(some.version) < np.asarray(plain.version))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attack": "alei"}, "attack is 'alei'; expected none or one of .* did you mean alie"),
        ({"attack": "infinity:2"}, "expected infinity without a number"),
        ({"attack": "scaling:x"}, "expected scaling:NUMBER, the factor"),
        ({"attack": "scaling:nan"}, "expected scaling:NUMBER, the factor"),
        ({"attack": "gaussian:-1"}, "attack is 'gaussian:-1': std is -1.0"),
        ({"attack": "mimic:0"}, "attack is 'mimic:0': warmup is 0"),
        ({"attack": "label_flip:2"}, r"attack is 'label_flip:2'; expected a share in \[0, 1\]"),
        ({"attack": "alie", "attackers": 0.0}, r"attackers is 0.0; expected a number in \(0, 1\]"),
        ({"attack": "backdoor", "num_strata": 2}, "expected none with --num-strata"),
        ({"lost": 1.5}, r"lost is 1.5; expected a number in \[0, 1\]"),
        ({"late": -0.5}, r"late is -0.5; expected a number in \[0, 1\]"),
        ({"delay": 0}, "delay is 0; expected an integer of at least 1"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=message):
        build.check(RunConfig(**SMALL, **options))


def test_names_and_numbers():
    assert parse("sign_flip") == ("sign_flip", None)
    assert parse("inner_product:0.5") == ("inner_product", 0.5)
    assert trigger(np.ones((1, 28, 28))).size == 5
    assert trigger(np.ones((1, 2, 2))).size == 1
    entries = configurations(SweepConfig(grid=("attack=none,alie:1", "lost=0.0,0.5")))
    assert [entry["attack"] for entry in entries] == ["none", "none", "alie:1", "alie:1"]
    with pytest.raises(ValueError, match="expected none or one of sign_flip"):
        configurations(SweepConfig(grid=("attack=none,alei",)))


@pytest.mark.slow
def test_poisoned_data_train_but_do_not_evaluate():
    config = RunConfig(**SMALL, attack="backdoor:3", attackers=0.5)
    problem = prepare(config, fs.datasets.load("digits"))
    metrics = problem.setup.eval_fn(jax.tree.map(lambda x: x[0], problem.setup.params))
    assert {"backdoor/accuracy", "test/accuracy"} <= set(metrics)
    honest = problem.data.examples
    trained = problem.setup.task.oracle.args[0].examples
    changed = (np.asarray(trained["y"]) != honest["y"]).sum()
    attackers = problem.attack.attackers.mask
    most = np.diff(problem.data.offsets)[attackers].sum()
    assert 0.35 * most < changed < 0.55 * most  # half of them, of which a tenth had label 0


@pytest.mark.slow
def test_algorithms_of_runs_and_sweeps_are_attacked():
    """They are the functions of the library, with equal digests."""
    small = {**SMALL, "attackers": 0.4}
    run = build.resolve(RunConfig(**small, attack="sign_flip:3"))
    attackers = run.problem.attack.attackers
    expected = digest_of(attacks.sign_flip(fs.fedavg(0.2), attackers, 3.0))
    assert digest_of(run.algorithm("fedavg")) == expected
    config = SweepConfig(**small, grid=("attack=none,sign_flip:3", "lr=0.2"))
    runs = _Runs(config, fs.datasets.load("digits"), configurations(config))
    for attack, digest in (("sign_flip:3", expected), ("none", digest_of(fs.fedavg(0.2)))):
        runs.make_setup()("fedavg", attack=attack)
        built = runs.factory()("fedavg", attack=attack, lr=0.2)
        assert digest_of(built) == digest
        ruled = runs.factory()("fedavg", attack=attack, lr=0.2, aggregator="median")
        assert ruled.aggregation is not None
        settings = runs.identity({"algorithm": "fedavg", "attack": attack})["settings"]
        assert settings.get("attack", "none") == attack


@pytest.mark.slow
def test_the_attackers_do_not_depend_on_the_seed_of_a_partition():
    """Those of the upload and those of the data are the same clients, in runs and in sweeps."""
    options = {**SMALL, "seeds": 2, "partition_per_seed": True, "attackers": 0.4}
    config = RunConfig(**options, attack="backdoor:3")
    run = build.resolve(config)
    attackers = run.problem.attack.attackers
    dataset = fs.datasets.load("digits")
    swept = SweepConfig(**options, grid=("attack=none,backdoor:3",))
    runs = _Runs(swept, dataset, configurations(swept))
    for seed in (0, 1):
        honest = prepare(build.of_seed(config, seed), dataset).data
        sizes = np.diff(honest.offsets)
        clients = np.repeat(np.arange(len(sizes)), sizes)
        from_run = run.setup_of_seed("fedavg", seed, fs.models.auto)
        from_sweep = runs.make_setup()("fedavg", seed=seed, attack="backdoor:3")
        for setup in (from_run, from_sweep):
            trained = setup.task.oracle.args[0].examples
            changed = clients[np.asarray(trained["y"]) != honest.examples["y"]]
            assert set(changed) == set(np.flatnonzero(attackers.mask))
        built = runs.factory()("fedavg", attack="backdoor:3", lr=0.2)
        assert digest_of(built) == digest_of(run.algorithm("fedavg"))


@pytest.mark.slow
def test_the_timelines_of_all_seeds_decide_the_privacy_of_a_sweep():
    private = {"sampling": "bernoulli", "privacy_clip": 0.5, "privacy_delta": 0.01}
    options = {**SMALL, **private, "seeds": 2, "partition_per_seed": True, "privacy_noise": 1.0}
    run = build.resolve(RunConfig(**options))
    config = SweepConfig(**options, grid=("lr=0.1,0.2",))
    runs = _Runs(config, fs.datasets.load("digits"), configurations(config))
    for seed in (1, 0):
        assert runs.make_setup()("fedavg", seed=seed).timeline.clients.ndim == 2
    (accounts,) = runs.accounts.values()
    jax.tree.map(
        np.testing.assert_array_equal, accounts.setup.timeline, run.setups["fedavg"].timeline
    )
    assert runs.guarantees()["epsilon"].tolist() == [run.guarantees["fedavg"].epsilon] * 2
