"""Presets as setups."""

import jax
import numpy as np
import pytest

import fedjax_sim as fs
from fedjax_sim.studies.setups import resolve

SMALL = {"seeds": 2, "rounds": 3, "model": "softmax_regression"}


@pytest.mark.slow
def test_a_preset_is_the_setup_of_the_command_line():
    setup = fs.presets.quickstart(**SMALL)
    run = resolve(fs.Study(fs.presets.options(**SMALL)))  # type: ignore[arg-type]
    ours, theirs = (jax.tree.leaves((x.task, x.timeline, x.params)) for x in
                    (setup, run.setups["fedavg"]))  # fmt: skip
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(
        *(jax.random.key_data(keys) for keys in (fs.presets.keys(2), run.problem.keys))
    )


@pytest.mark.slow
def test_a_preset_for_one_seed_has_no_axis_of_seeds():
    options = {**SMALL, "seeds": None, "seed": 1}
    alone, both = fs.presets.quickstart(**options), fs.presets.quickstart(**SMALL)
    np.testing.assert_array_equal(alone.timeline.clients, both.timeline.clients[1])
    for one, several in zip(
        jax.tree.leaves(alone.params), jax.tree.leaves(both.params), strict=True
    ):
        np.testing.assert_array_equal(one, several[1])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"attack": "alie", "attack.z": 1.5}, "attack is 'alie'; expected none in a setup"),
        ({"attack": "backdoor", "attack.factor": 9.0}, "attack.factor is 9.0; expected none"),
        ({"privacy": "gaussian", "privacy.noise": 1.0}, "privacy is 'gaussian'; expected none"),
        ({"compress_down": "top_k"}, "compress_down is 'top_k'; expected none"),
        ({"robust": "median"}, "robust is 'median'; expected none"),
        ({"selection": "oort"}, "selection is 'oort'; expected none"),
        ({"adapters": "lora", "model": "transformer"}, "adapters is 'lora'; expected none"),
        ({"algorithms": ("scaffold",)}, r"algorithms is \('scaffold',\); expected none"),
        ({"lr": 0.1}, "lr is 0.1; expected none"),
        ({"hyper": {"fedavg": {"lr": 0.3}}}, "hyper is .*; expected none"),
        ({"execution": "sequential"}, "execution is 'sequential'; expected none"),
        ({"on_divergence": "raise"}, "on_divergence is 'raise'; expected none"),
        ({"target_accuracy": 0.5}, "target_accuracy is 0.5; expected none"),
        ({"precision": "tf32"}, "precision is 'tf32'; expected none"),
        ({"precision": "float64"}, r"precision is 'float64'; expected jax.enable_x64\(True\) aro"),
        ({"partition_per_seed": True}, "partition_per_seed is True; expected a setup per seed s"),
    ],
)
def test_a_setup_refuses_options_that_it_does_not_hold(values, message):
    with pytest.raises(ValueError, match=message):
        fs.presets.quickstart(**values)


def test_a_setup_takes_the_values_of_the_preset_and_attacks_on_the_data():
    """A setup has the clients' labels, so it holds the attack that changes them."""
    same = {"attack": "none", "privacy": "none", "lr": None, "execution": "auto"}
    few = {**SMALL, "num_clients": 4, "cohort_size": 2, "partition": "iid"}
    plain = fs.presets.quickstart(**few, **same)
    attacked = fs.presets.quickstart(**few, attack="label_flip", **{"attack.fraction": 0.5})
    labels = [np.asarray(setup.task.oracle.args[0].examples["y"]) for setup in (plain, attacked)]
    assert 0.4 < np.mean(labels[0] != labels[1]) < 0.6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "seeds is 0; expected at least 1"),
        ((2.5,), "seeds is 2.5; expected an integer"),
        ((2, -1), "seed is -1; expected at least 0"),
        ((2, 2**32 - 1), "seed is 4294967295; expected an integer of at most 4294967294"),
    ],
)
def test_keys_of_no_seeds_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        fs.presets.keys(*arguments)
