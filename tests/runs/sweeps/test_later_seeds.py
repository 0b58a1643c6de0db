"""Later seeds of a configuration: added if only the seed differs, refused with other settings."""

import dataclasses

import jax
import numpy as np
import pytest
from call_records import sweep_on
from sweep_problems import KEYS, ONE_DEVICE, quadratic_trial, sweep_of

import fedjax_sim as fs

GRID = {"lr": [0.1]}


def go(directory, seed: int, trial=None, grid=GRID, **options) -> fs.Sweep:
    """One seed of its own."""
    trial = quadratic_trial(num_seeds=1) if trial is None else trial
    keys = KEYS[seed : seed + 1]
    return sweep_of(
        trial, grid, keys, seeds=[seed], devices=ONE_DEVICE, folder=directory, **options
    )


def other(**changes):
    setup = quadratic_trial(num_seeds=1).setup
    return quadratic_trial(num_seeds=1)._replace(setup=dataclasses.replace(setup, **changes))


def of_cohort(size: int):
    setup = quadratic_trial().setup
    steps = setup.task.num_steps
    return fs.timelines.uniform(jax.random.key(2), 6, setup.task.num_clients, size, steps)


OTHERS = {
    "rounds": {"trial": lambda: quadratic_trial(num_seeds=1, num_rounds=7)},
    "evaluations": {"trial": lambda: other(eval_every=2)},
    "cohort": {"trial": lambda: other(timeline=of_cohort(2))},
    "metrics": {"trial": lambda: other(eval_fn=lambda x: {"x": 2 * x})},
    "algorithm": {"trial": lambda: quadratic_trial(lambda lr: fs.fedavg(lr / 2), num_seeds=1)},
    "identity": {"config": lambda: lambda configuration: {"batch_size": 2}},
}


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    directory = tmp_path_factory.mktemp("first")
    go(directory, 0)
    return directory


@pytest.mark.parametrize("name", OTHERS)
def test_later_seeds_with_other_settings_are_refused(first, name):
    options = {k: v() if callable(v) else v for k, v in OTHERS[name].items()}
    with pytest.raises(ValueError, match=r"holds another sweep: {'lr': 0.1} with seed 0 had anoth"):
        go(first, 1, **options)
    assert len(list(first.glob("slices/*.npz"))) == 1


@pytest.mark.slow
def test_later_seeds_and_configurations_are_added(first):
    """Another schedule, another model and another rate of one folder."""
    started = other(timeline=quadratic_trial().setup.timeline, params=np.ones((1, 2), np.float32))
    go(first, 2, trial=started)
    result = go(first, 2, trial=started, grid={"lr": [0.1, 0.2]})
    assert (result.resumed, len(result.runs)) == (1, 2)


def test_setups_per_seed_may_differ(tmp_path):
    """Each seed has data of its own in objective and evaluation; simulated time has any length."""
    base = quadratic_trial(num_seeds=1).setup

    def make_setup(seed):
        timeline = dataclasses.replace(
            quadratic_trial(num_rounds=6 + seed).setup.timeline,
            time=np.arange(6 + seed) / (3 + seed),
        )
        return dataclasses.replace(
            base, timeline=timeline, params=base.params[0], eval_fn=lambda x: {"x": x + seed}
        )

    for seed in range(2):
        sweep_on(ONE_DEVICE, fs.fedavg, make_setup, GRID, KEYS[: seed + 1], storage=tmp_path)
    assert len(fs.analysis.read_folder(tmp_path).history["seed"].unique()) == 2
    with pytest.raises(ValueError, match=r"with seed . had another algorithm"):
        sweep_on(
            ONE_DEVICE,
            lambda lr: fs.fedavg(lr / 2),
            make_setup,
            GRID,
            KEYS[2:],
            storage=tmp_path,
            options=fs.Options(seeds=[2]),
        )
