"""Algorithms on the command line: discovery, hyper-parameters, defaults."""

import dataclasses
import inspect
import re
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_problems import quadratic_task

import fedjax_sim as fs
from fedjax_sim import algorithms
from fedjax_sim.cli import docstrings
from fedjax_sim.studies.setups import entries, registry
from fedjax_sim.studies.setups.build import hyper_parameters, resolve, untuned
from fedjax_sim.studies.setups.config import RunConfig
from fedjax_sim.studies.setups.entries import AlgorithmEntry
from fedjax_sim.studies.setups.names import PRESETS
from fedjax_sim.studies.setups.settings import parse_setting, resolve_hyper
from fedjax_sim.types import FedAlgorithm, Scalar


def test_every_algorithm_of_the_library_is_on_the_command_line():
    """They are found by what they return; wrappers of algorithms and helpers are none."""
    others = {"average_rounds", "gradient_controls"}
    assert set(registry.ALGORITHMS) == set(algorithms.__all__) - others
    assert set(registry.DEFAULTS) <= set(registry.ALGORITHMS)


def toy(
    lr: Scalar, strength: Scalar, rule: Literal["a", "b"] = "a", twice: bool = False
) -> FedAlgorithm:
    """Toy: nothing new. Nobody et al., 2026.

    Args:
        lr: client learning rate.
        strength: a number without
            default.
        rule: a name.
    """
    return algorithms.fedprox(lr, strength)


def brief(lr: Scalar, strength: Scalar = 1.0) -> FedAlgorithm:
    """Toy whose docstring ends with the parameters.

    Args:
        lr: client learning rate.
        strength: a number with a
            default."""
    return algorithms.fedprox(lr, strength)


def test_the_last_line_of_a_docstring_counts():
    texts = docstrings.descriptions(AlgorithmEntry("brief", brief))
    assert (texts["lr"], texts["strength"]) == ("client learning rate.", "a number with a default.")


def test_a_new_algorithm_needs_nothing_but_its_function():
    entry = AlgorithmEntry("toy", toy)
    assert entry.hyper_defaults == {"lr": 0.2, "strength": None, "rule": "a", "twice": False}
    assert docstrings.descriptions(entry)["strength"] == "a number without default."
    assert (docstrings.summary(entry)[:3], docstrings.paper(entry)) == (
        "Toy",
        "Nobody et al., 2026",
    )
    with pytest.raises(ValueError, match=r"hyper lacks toy\.strength; expected toy\.str"):
        resolve_hyper({"toy": entry})
    with pytest.raises(ValueError, match=r"hyper has 'toy\.twice=yes'; expected true or false"):
        resolve_hyper({"toy": entry}, ["toy.twice=yes"])
    settings = ["toy.strength=3", "toy.twice=true", "toy.rule=b"]
    expected = {"lr": 0.2, "strength": 3.0, "rule": "b", "twice": True}
    assert resolve_hyper({"toy": entry}, settings) == {"toy": expected}


@pytest.mark.parametrize("name", registry.ALGORITHMS)
def test_defaults_and_descriptions_name_parameters(name):
    """A renamed parameter must be renamed in the table of defaults, too."""
    entry = registry.ALGORITHMS[name]
    known = {*inspect.signature(entry.factory).parameters}
    known |= {key for adapter in entries.ADAPTERS.values() for key in adapter.hyper}
    assert set(registry.DEFAULTS.get(name, {})) <= known
    assert docstrings.summary(entry)
    described = docstrings.descriptions(entry)
    assert all(described[key] for key in entry.hyper_defaults)
    assert not re.search(r"[\\`]|math", " ".join([docstrings.summary(entry), *described.values()]))
    assert resolve_hyper({name: entry})  # the defaults are complete and in range


@pytest.mark.parametrize("name", registry.ALGORITHMS)
def test_algorithms_on_the_command_line_accept_each_hyper_parameter(name):
    entry = registry.ALGORITHMS[name]
    defaults = dict.fromkeys(entry.hyper) | entry.hyper_defaults
    special = (*entries.COMPRESSION, entries.AGGREGATOR, entries.NOISE_LAW)
    for key in special:  # they have tests of their own
        del defaults[key]
    values = {key: v if isinstance(v, str | int) else 0.25 for key, v in defaults.items()}
    values |= {key: 2 for key in ("head_steps", "tuning_steps") if key in values}
    if "lr" not in values:  # there is no rate of fine-tuning
        values = {key: value for key, value in values.items() if key not in entries.TUNING}
    settings = [
        f"{name}.{key}={str(v).lower() if v in (True, False) else v}" for key, v in values.items()
    ]
    assert resolve_hyper({name: entry}, settings)[name] == values


def test_hyper_parameters_that_all_algorithms_have():
    config = RunConfig(
        algorithms=("fedavg", "fedsam"), lr=0.5, lr_decay=0.9, clip=3.0, weight_decay=0.01,
        hyper=("fedsam.clip=2", "fedsam.radius=0"),
    )  # fmt: skip
    hyper = hyper_parameters(config)
    common = {"lr": 0.5, "lr_decay": 0.9, "weight_decay": 0.01}
    assert hyper == {"fedavg": common | {"clip": 3.0}, "fedsam": common | {"clip": 2, "radius": 0}}


def test_an_algorithm_may_have_a_weight_decay_of_its_own():
    """AdamW's is decoupled: the option sets it, and no gradient is changed."""
    config = RunConfig(algorithms=("fedavg", "diloco"), weight_decay=0.05)
    hyper = hyper_parameters(config)
    assert hyper["fedavg"]["weight_decay"] == hyper["diloco"]["weight_decay"] == 0.05
    entry = registry.ALGORITHMS["diloco"]
    assert "weight_decay" not in entry.common
    oracle = fs.Oracle(lambda x, k: 0 * x, lambda x, k: x.sum(), lambda x: 0 * x)
    one = jnp.array(1)
    work = fs.Work(one, one, one, one, one * 0, one, max_steps=1)
    algorithm = entry.build({"lr": 0.5, "weight_decay": 0.1, "lr_decay": 0.9})
    x = jnp.ones(2)
    delta, _ = algorithm.local(x, algorithm.init_client(x), oracle, work)
    np.testing.assert_allclose(delta, 0.5 * 0.9 * 0.1 * x, rtol=1e-6)


@pytest.mark.parametrize("name", ["fedavg", "fedsam", "scaffold"])
def test_rate_decays_over_rounds_and_decay_comes_after_clipping(name):
    """One step per round on F(x) = |x - 10|^2 / 2 from 1: clipped to -2, then 0.5 x is added."""
    hyper = {"lr": 0.1, "lr_decay": 0.5, "clip": 2.0, "weight_decay": 0.5}
    task = quadratic_task(np.ones((1, 1, 1)), np.full((1, 1), 10.0), 1)
    timeline = fs.timelines.full(3, 1, task.num_steps)
    algorithm = registry.ALGORITHMS[name].build(hyper)
    state, _ = fs.run(algorithm, fs.Setup(task, timeline, jnp.ones(1)), jax.random.key(0))
    x = 1.0
    for t in range(3):
        x -= 0.1 * 0.5**t * (-2 + 0.5 * x)
    np.testing.assert_allclose(state.server.params, x, rtol=1e-6)  # single precision


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip": 0.0}, "clip is 0.0; expected a positive number"),
        ({"lr_decay": -1.0}, "lr_decay is -1.0; expected a positive number"),
        ({"weight_decay": -0.1}, "weight_decay is -0.1; expected a number of at least 0"),
        ({"lr_decay": 0.9, "algorithms": ("fedac",)}, "lr_decay is 0.9, but fedac does not have"),
    ],
)
def test_refuses_hyper_parameters_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        resolve(RunConfig(**options))


def test_hyper_parameters_override_each_other():
    config = RunConfig(
        algorithms=("fedavg", "fedadam"), lr=0.5, server_lr=0.7, hyper=("fedadam.lr=0.9",)
    )
    assert hyper_parameters(config) == {
        "fedavg": {"lr": 0.5},
        "fedadam": {"lr": 0.9, "server_lr": 0.7},
    }


def test_rates_of_a_preset_are_replaced_by_all_other_options():
    rates = ("fedavg.lr=0.1", "scaffold.lr=0.05")
    assert (
        resolve_hyper({"scaffold": registry.ALGORITHMS["scaffold"]}, rates=rates)["scaffold"]["lr"]
        == 0.05
    )
    both = {name: registry.ALGORITHMS[name] for name in ("fedavg", "scaffold")}
    resolved = resolve_hyper(both, ["scaffold.lr=0.3"], {"lr": 0.7}, rates)
    assert [resolved[name]["lr"] for name in both] == [0.7, 0.3]


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_rates_of_presets_belong_to_their_algorithms(preset):
    config = PRESETS[preset]
    resolved = hyper_parameters(config)
    for setting in config.rates:
        name, key, text = parse_setting(setting)
        assert resolved[name][key] == float(text)


@pytest.mark.parametrize(
    ("preset", "options", "note"),
    [
        ("femnist", {"algorithms": ("fedavg", "ditto", "pfedme")}, "ditto.lr=0.2 pfedme.lr=0.04"),
        ("femnist", {"algorithms": ("fedavg", "ditto"), "hyper": ("ditto.lr=0.1",)}, None),
        ("femnist", {"algorithms": ("fedavg", "ditto"), "lr": 0.1}, None),
        ("femnist", {}, None),
        ("asynchronous", {"algorithms": ("favano", "fedexp")}, "fedexp.lr=0.2"),
        ("quickstart", {"algorithms": ("ditto",)}, None),
    ],
)
def test_rates_that_were_not_tuned_for_a_preset_are_named(preset, options, note):
    found = untuned(dataclasses.replace(PRESETS[preset], **options))
    assert found == (note and f"not tuned for these settings, default rate: {note}")


@pytest.mark.parametrize(
    ("name", "hyper", "message"),
    [
        ("fedavg", {"tuning_steps": 0}, "tuning_steps is 0; expected at least 1"),
        (
            "agd",
            {"smoothness": 1.0, "mu": 0.1, "tuning_steps": 2},
            "an algorithm without lr; expec",
        ),
    ],
)
def test_fine_tuning_is_refused(name, hyper, message):
    entry = registry.ALGORITHMS[name]
    with pytest.raises(ValueError, match=message):
        entry.build({**entry.tuned_defaults, **hyper})


def test_a_rate_of_fine_tuning_needs_steps():
    config = RunConfig(algorithms=("fedavg", "fedbabu"), tuning_lr=0.1, personal=2)
    with pytest.raises(ValueError, match=r"tuning_lr is 0\.1 for fedavg; expected --tuning-steps"):
        hyper_parameters(config)
    hyper = hyper_parameters(dataclasses.replace(config, hyper=("fedavg.tuning_steps=3",)))
    assert hyper["fedavg"]["tuning_steps"] == 3
    assert hyper["fedavg"]["tuning_lr"] == hyper["fedbabu"]["tuning_lr"] == 0.1


def test_algorithms_with_fine_tuning_have_no_further_steps():
    assert "tuning_steps" in registry.ALGORITHMS["ditto"].common
    for name in ("fedavg_ft", "fedbabu"):
        assert "tuning_steps" not in registry.ALGORITHMS[name].common
