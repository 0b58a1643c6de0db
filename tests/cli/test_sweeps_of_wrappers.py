"""Attacks, rules and privacy in sweeps: the algorithms, attackers and accounts of runs."""

import jax
import numpy as np
import pytest
from sweep_options import sweep_options
from traced import digest_of

import fedjax_sim as fs
from fedjax_sim.cli.grid import configurations
from fedjax_sim.cli.sweep import Runs, run_sweep
from fedjax_sim.studies.setups import Study, of_seed, options, prepare, resolve
from fedjax_sim.wrappers.robust import attacks

SMALL = {
    "model": "softmax_regression", "num_clients": 20, "partition": "iid", "cohort_size": 10,
    "rounds": 3, "seeds": 1, "algorithms": ("fedavg",), "local_epochs": 1,
}  # fmt: skip


def runs_of(grid, **values) -> Runs:
    config = sweep_options(grid, **SMALL | values)
    study = Study(config.run)
    return Runs(study, config, configurations(study, config))


@pytest.mark.slow
def test_algorithms_of_sweeps_are_attacked():
    """They are the functions of the library, with equal digests."""
    kinds, scales = ("none", "sign_flip"), (3.0,)
    runs = runs_of({"attack": kinds, "attack.scale": scales, "robust": ("none", "median")})
    run = resolve(Study(options(**SMALL, attack="sign_flip", **{"attack.scale": 3.0})))
    expected = attacks.sign_flip(fs.fedavg(0.2), run.problem.attack.attackers, 3.0)
    assert digest_of(run.algorithm("fedavg")) == digest_of(expected)
    for entry in runs.entries:
        settings = {name: v for name, v in entry.items() if name not in ("algorithm", "robust")}
        runs.make_setup()("fedavg", **settings)
        built = runs.factory()("fedavg", **settings, robust=entry["robust"])
        assert (built.aggregation is not None) == (entry["robust"] == "median")
        if entry["robust"] == "none":
            plain = fs.fedavg(0.2) if entry["attack"] == "none" else expected
            assert digest_of(built) == digest_of(plain)


@pytest.mark.slow
def test_the_attackers_of_a_sweep_do_not_depend_on_the_seed_of_a_partition():
    """Those of the upload and those of the data are the same clients, as in a run."""
    own = {"seeds": 2, "partition_per_seed": True}
    given = {"attack.fraction": 0.4, "attack.factor": 3.0}
    study = Study(options(**SMALL | own, attack="backdoor", **given))
    run = resolve(study)
    attackers = run.problem.attack.attackers
    runs = runs_of({"attack": ("none", "backdoor")}, **own, attack="backdoor", **given)
    for seed in (0, 1):
        honest = prepare(of_seed(study, seed), fs.datasets.load("digits")).parts.data
        sizes = np.diff(honest.offsets)
        clients = np.repeat(np.arange(len(sizes)), sizes)
        setup = runs.make_setup()("fedavg", seed=seed, attack="backdoor")
        trained = setup.task.oracle.args[0].examples
        changed = clients[np.asarray(trained["y"]) != honest.examples["y"]]
        assert set(changed) == set(np.flatnonzero(attackers.mask))
        built = runs.factory()("fedavg", attack="backdoor")
        assert digest_of(built) == digest_of(run.algorithm("fedavg"))


@pytest.mark.slow
def test_a_sweep_has_the_partition_of_the_first_seed_as_a_run_has():
    own = {
        "partition": "quantity", "alpha": 0.3, "sampling": "full", "selection": "adacomm",
        "seed": 1, "seeds": 1, "partition_per_seed": True,
    }  # fmt: skip
    run = resolve(Study(options(**SMALL | own)))
    runs = runs_of({"selection.decay": (0.5, 0.25)}, **own)
    setup = runs.make_setup()("fedavg", seed=1)
    assert setup.timeline.max_steps == run.setups["fedavg"].timeline.max_steps
    built = runs.factory()("fedavg", **{"selection.decay": 0.5})
    assert digest_of(built) == digest_of(run.algorithm("fedavg"))


@pytest.mark.slow
def test_the_timelines_of_all_seeds_decide_the_privacy_of_a_sweep():
    private = {
        "sampling": "bernoulli", "privacy": "gaussian", "privacy.clip.bound": 0.5,
        "privacy.delta": 0.01, "privacy.noise": 1.0, "seeds": 2, "partition_per_seed": True,
    }  # fmt: skip
    run = resolve(Study(options(**SMALL | private)))
    runs = runs_of({"lr": (0.1, 0.2)}, **private)
    for seed in (1, 0):
        assert runs.make_setup()("fedavg", seed=seed).timeline.clients.ndim == 2
    (own,) = runs.of_setup.values()
    jax.tree.map(np.testing.assert_array_equal, own.timeline, run.setups["fedavg"].timeline)
    assert runs.guarantees()["epsilon"].tolist() == [run.guarantee.epsilon] * 2


@pytest.mark.slow
def test_too_few_uploads_in_a_sweep(tmp_path):
    grid = {"robust": ("median", "krum"), "robust.f": (4,)}
    config = sweep_options(grid, **SMALL, output=tmp_path)
    with pytest.raises(ValueError, match="robust is 'krum': timeline has 10 slots; expected at le"):
        run_sweep(Study(config.run), config)
