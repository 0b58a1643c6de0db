"""Attacks and failures as options: functions, timelines, poisoned data, refusals."""

import jax
import numpy as np
import pytest
from traced import digest_of

import fedjax_sim as fs
from fedjax_sim.objectives import as_float
from fedjax_sim.studies.setups import build, fields
from fedjax_sim.studies.setups.attack import Backdoor, NoAttack, attack_of, trigger
from fedjax_sim.studies.setups.checks import check_study
from fedjax_sim.studies.setups.presets import options
from fedjax_sim.studies.setups.problem import prepare
from fedjax_sim.studies.setups.run import Run
from fedjax_sim.studies.setups.sampling import failing
from fedjax_sim.studies.setups.study import Study
from fedjax_sim.wrappers.robust import attacks

SMALL = {
    "model": "softmax_regression", "num_clients": 20, "partition": "iid", "cohort_size": 10,
    "rounds": 3, "seeds": 1, "algorithms": ("fedavg",), "local_epochs": 1,
}  # fmt: skip


def study(**values) -> Study:
    return Study(options(**SMALL, **values))


def attacked(kind, **values):
    """The attack of a kind; a quarter of 20 clients attack."""
    given = {f"attack.{name}": value for name, value in values.items()}
    chosen = options(attack=kind, **{"attack.fraction": 0.25}, **given).attack
    return attack_of(chosen, 20, seed=0)


# A label flip changes data only; a backdoor replaces the model by a multiple of the upload.
EQUAL = [
    ("sign_flip", {"scale": 3.0}, lambda a, mask: attacks.sign_flip(a, mask, 3.0)),
    ("scaling", {"factor": 5.0}, lambda a, mask: attacks.scaling(a, mask, 5.0)),
    ("gaussian", {"std": 2.0}, lambda a, mask: attacks.gaussian(a, mask, 2.0)),
    ("infinity", {}, attacks.infinity),
    ("alie", {}, attacks.alie),
    ("alie", {"z": 1.5}, lambda a, mask: attacks.alie(a, mask, 1.5)),
    ("inner_product", {"eps": 0.5}, lambda a, mask: attacks.inner_product(a, mask, 0.5)),
    ("mimic", {"warmup": 7}, lambda a, mask: attacks.mimic(a, mask, 7)),
    ("label_flip", {"share": 0.5}, lambda a, mask: a),
    ("backdoor", {"factor": 3.0}, lambda a, mask: attacks.scaling(a, mask, 3.0)),
]
# Without values the defaults are those of the functions; a backdoor's upload is as it is.
DEFAULTS = [
    (name, {}, getattr(attacks, name))
    for name in ("sign_flip", "scaling", "gaussian", "inner_product", "mimic")
] + [("backdoor", {}, lambda a, mask: attacks.scaling(a, mask, 1.0))]


@pytest.mark.parametrize(("kind", "values", "function"), EQUAL + DEFAULTS)
def test_attacks_are_the_functions_of_the_library(kind, values, function):
    attack = attacked(kind, **values)
    assert attack is not None
    assert int(attack.attackers.mask.sum()) == 5
    plain = fs.fedavg(0.1)
    assert digest_of(attack.on(plain)) == digest_of(function(plain, attack.attackers))


def test_every_kind_is_in_the_table():
    (field,) = (field for field in fields.fields_of(Run) if field.name == "attack")
    kinds = {fields.kind_of(kind) for kind in field.alternatives}
    assert kinds == {kind for kind, *_ in EQUAL} | {"none"}
    assert attack_of(NoAttack(), 20, seed=0) is None


def test_attackers_are_nested():
    masks = [
        attack_of(Backdoor(fraction=fraction), 30, seed=0).attackers.mask for fraction in (0.1, 0.5)
    ]
    assert (masks[0] <= masks[1]).all()


def test_clients_and_test_examples_have_one_trigger_also_beside_noise():
    problem = prepare(study(attack="backdoor", shift="noise"), fs.datasets.load("digits"))
    evaluate = problem.setup.eval_fn
    parts = dict(zip(evaluate.func.names, evaluate.args[0], strict=True))
    shown = np.asarray(as_float(parts["backdoor"].args[0]["x"]))
    # The corner of the noisy images, which are no bytes, and so their largest value.
    largest = float(problem.setup.task.oracle.args[0].examples["x"].max())
    assert largest > 1.1
    np.testing.assert_allclose(shown[:, -2:, -2:], largest, rtol=1e-6)
    assert shown[:, :-2].max() <= 1


def test_triggers_fit_the_images():
    assert trigger(np.ones((1, 28, 28))).size == 5
    assert trigger(np.ones((1, 2, 2))).size == 1


def failed(**values):
    rounds = fs.timelines.full(6, 5, num_steps=2)
    return failing(options(**values).cohort, jax.random.key(0), rounds)


def test_timelines_with_failures():
    """The draws do not depend on the probabilities."""
    plain, some, more = failed(), failed(lost=0.3, late=0.3, delay=2), failed(lost=0.6, late=0.6)
    assert plain.lost is None
    assert (plain.max_staleness, some.max_staleness, more.max_staleness) == (0, 2, 1)
    assert (np.asarray(some.lost) <= np.asarray(more.lost)).all()
    assert 0 < some.lost.sum() < more.lost.sum()
    assert (np.asarray(some.version) < np.asarray(plain.version)).any()
    assert not np.array_equal(some.lost, np.asarray(some.version) < np.asarray(plain.version))


@pytest.mark.parametrize("kind", ["backdoor", "label_flip"])
def test_attacks_on_data_need_all_examples(kind):
    with pytest.raises(ValueError, match=f"attack is '{kind}'; expected none with --num-strata"):
        check_study(study(attack=kind, num_strata=2))


def test_misspelled_attacks_are_refused():
    with pytest.raises(ValueError, match=r"attack is 'alei'; expected one of .* did you mean alie"):
        options(attack="alei")


@pytest.mark.slow
def test_poisoned_data_train_but_do_not_evaluate():
    values = {"attack": "backdoor", "attack.factor": 3.0, "attack.fraction": 0.5}
    problem = prepare(study(**values), fs.datasets.load("digits"))
    metrics = problem.setup.eval_fn(jax.tree.map(lambda x: x[0], problem.setup.params))
    assert {"backdoor/accuracy", "test/accuracy"} <= set(metrics)
    honest = problem.parts.data.examples
    trained = problem.setup.task.oracle.args[0].examples
    changed = (np.asarray(trained["y"]) != honest["y"]).sum()
    attackers = problem.attack.attackers.mask
    most = np.diff(problem.parts.data.offsets)[attackers].sum()
    assert 0.35 * most < changed < 0.55 * most  # half of them, of which a tenth had label 0


@pytest.mark.slow
def test_algorithms_of_runs_are_attacked():
    values = {"attack": "sign_flip", "attack.scale": 3.0, "attack.fraction": 0.4}
    run = build.resolve(study(**values))
    attackers = run.problem.attack.attackers
    expected = attacks.sign_flip(fs.fedavg(0.2), attackers, 3.0)
    assert digest_of(run.algorithm("fedavg")) == digest_of(expected)
    ruled = build.resolve(study(**values, robust="median")).algorithm("fedavg")
    assert ruled.aggregation is not None


@pytest.mark.slow
def test_the_attackers_do_not_depend_on_the_seed_of_a_partition():
    """Those of the upload and those of the data are the same clients."""
    own = study(
        partition_per_seed=True, attack="backdoor",
        **{"attack.fraction": 0.4, "attack.factor": 3.0},
    )  # fmt: skip
    own = own.replaced(options=fields.replaced(own.options, "seeds", 2))
    run = build.resolve(own)
    attackers = run.problem.attack.attackers
    for seed in (0, 1):
        honest = prepare(build.of_seed(own, seed), fs.datasets.load("digits")).parts.data
        sizes = np.diff(honest.offsets)
        clients = np.repeat(np.arange(len(sizes)), sizes)
        setup = run.setup_of_seed("fedavg", seed, fs.models.auto)
        trained = setup.task.oracle.args[0].examples
        changed = clients[np.asarray(trained["y"]) != honest.examples["y"]]
        assert set(changed) == set(np.flatnonzero(attackers.mask))
