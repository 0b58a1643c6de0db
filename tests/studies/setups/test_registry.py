"""Algorithms as options: discovery, hyper-parameters, defaults."""

import inspect
import re
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_problems import quadratic_task

import fedjax_sim as fs
from fedjax_sim import algorithms
from fedjax_sim.cli import docstrings
from fedjax_sim.local import ScalarOrSchedule
from fedjax_sim.studies.setups import entries, registry
from fedjax_sim.studies.setups.build import resolve
from fedjax_sim.studies.setups.entries import AlgorithmEntry
from fedjax_sim.studies.setups.presets import PRESETS, options
from fedjax_sim.studies.setups.problem import entries_of
from fedjax_sim.studies.setups.registry import algorithms_of
from fedjax_sim.studies.setups.settings import (
    AlgorithmOptions,
    check_tuning,
    resolve_hyper,
    untuned_rates,
)
from fedjax_sim.studies.setups.study import Study
from fedjax_sim.types import FedAlgorithm, Scalar


def hyper_of(*names, preset="quickstart", **values):
    """Hyper-parameters of algorithms by the options of a preset."""
    run = options(preset, algorithms=names, **values)
    return resolve_hyper(algorithms_of(names), run.algorithms)


def test_every_algorithm_of_the_library_is_on_the_command_line():
    """They are found by what they return; wrappers of algorithms and helpers are none.

    MOON and FedProto take features and FedDF a pool, which are no text.
    """
    others = {"average_rounds", "gradient_controls", "moon", "feddf", "fedproto"}
    assert set(registry.ALGORITHMS) == set(algorithms.__all__) - others
    assert set(registry.DEFAULTS) <= set(registry.ALGORITHMS)


def test_algorithms_get_the_model_of_the_problem():
    study = Study(options(algorithms=("fedntd",), num_clients=4, cohort_size=2))
    comparison = resolve(study)
    algorithm, parts = comparison.algorithm("fedntd"), comparison.problem.parts
    assert algorithm.spec is not None
    assert parts is not None
    assert algorithm.spec == fs.fedntd(parts.model, 0.2).spec
    assert "model" not in registry.ALGORITHMS["fedntd"].hyper


def test_a_model_that_no_study_knows_is_missed_in_the_first_round():
    setup = fs.presets.quickstart(seeds=None, num_clients=4, cohort_size=2, rounds=1)
    with pytest.raises(ValueError, match="the model of the study is None, since its setup is its"):
        fs.run(registry.ALGORITHMS["fedntd"].build({"lr": 0.1}), setup, jax.random.key(0))


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
    values = {"strength": 3, "twice": True, "rule": "b"}
    expected = {"lr": 0.2, "strength": 3.0, "rule": "b", "twice": True}
    assert resolved(entry, values) == expected


def resolved(entry, values):
    """Hyper-parameters of one algorithm, some of which are given."""
    return resolve_hyper({entry.name: entry}, AlgorithmOptions(hyper={entry.name: values}))[
        entry.name
    ]


TOY = AlgorithmEntry("toy", toy)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "hyper lacks toy.strength; expected a value"),
        ({"strength": -1.0}, "hyper has toy.strength=-1.0; expected a number of at least 0"),
        ({"strength": True}, "hyper has toy.strength=True; expected a number of at least 0"),
        ({"strength": "1"}, "hyper has toy.strength='1'; expected a number of at least 0"),
        ({"strength": float("nan")}, "hyper has toy.strength=nan; expected a number of at least"),
        ({"lr": 0.0}, "hyper has toy.lr=0.0; expected a positive number"),
        ({"twice": "yes"}, "hyper has toy.twice='yes'; expected true or false"),
        ({"rule": 1}, "hyper has toy.rule=1; expected a name"),
        ({"tuning_steps": 2.0}, "hyper has toy.tuning_steps=2.0; expected an integer of at least"),
        ({"tuning_steps": True}, "hyper has toy.tuning_steps=True; expected an integer of at le"),
        ({"strenght": 1.0}, "hyper has toy.strenght; toy has lr, .*; did you mean strength"),
    ],
)
def test_hyper_parameters_that_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        resolved(TOY, values)


@pytest.mark.parametrize(
    ("names", "hyper", "message"),
    [
        (("fedavg",), {"fedprx": {"mu": 1.0}}, "hyper has 'fedprx'; expected one of fedavg; did y"),
        (("fedavg,scaffold",), {}, "expected blanks between names: fedavg scaffold"),
        (("FedAvg",), {}, "algorithms has 'FedAvg'; expected fedavg"),
        (("fedavgg",), {}, "algorithms has 'fedavgg'; .* did you mean fedavg"),
        (("fedavg", "fedavg"), {}, "expected distinct names, at least one"),
        ((), {}, "expected distinct names, at least one"),
    ],
)
def test_names_of_algorithms_that_are_refused(names, hyper, message):
    with pytest.raises(ValueError, match=message):
        hyper_of(*names, hyper=hyper)


def test_hyper_parameters_of_known_algorithms_that_do_not_run_wait():
    """A file has those of its algorithms, of which a command may name some."""
    assert hyper_of("fedavg", hyper={"fedprox": {"mu": 1.0}}) == {"fedavg": {"lr": 0.2}}


def own(lr: "Unknown" = 0.3, mu=0.5, *, name="a"):  # noqa: F821  # pyright: ignore
    """A function of a study, one of whose annotations only a type checker knows."""
    assert name == "a"
    return algorithms.fedprox(lr, mu)


def test_algorithms_of_a_study():
    """Objects, functions, and a name of the library for something else."""
    given = {"mine": fs.fedsam(0.1, 0.05), "own": own, "fedavg": lambda lr=0.7: fs.fedavg(lr)}
    study = Study(options(algorithms=tuple(given), lr=0.4), algorithms=given)
    rows = entries_of(study)
    assert [rows[name].hyper_defaults for name in given] == [
        {}, {"mu": 0.5, "name": "a"}, {"lr": 0.7}
    ]  # fmt: skip
    assert rows["mine"].build({}) is given["mine"]
    found = resolve_hyper(rows, study.options.algorithms)
    assert found == {"mine": {}, "own": {}, "fedavg": {"lr": 0.4}}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, "algorithms has 'mine', which is int; expected a fedjax_sim.FedAlgorithm, or a funct"),
        (lambda tree: None, "algorithms has 'mine', which returned NoneType; expected a fedjax_s"),
        (
            AlgorithmEntry.build,
            "algorithms has 'mine', whose parameter 'hyper' has no default; expected a number",
        ),
    ],
)
def test_other_objects_of_a_study_are_refused(given, message):
    study = Study(options(algorithms=("mine",)), algorithms={"mine": given})
    with pytest.raises(ValueError, match=message):
        entries_of(study)["mine"].build({"tree": 1.0})


def test_a_rate_that_only_the_function_knows_decays_and_tunes():
    """``lr=0.3`` is the function's default, not a hyper-parameter that is given."""

    def mine(lr: ScalarOrSchedule = 0.3):
        return fs.fedavg(lr)

    (entry,) = algorithms_of(["mine"], {"mine": mine}).values()
    one = jnp.array(1)
    work = fs.Work(one, one, one, one, one * 0, one, max_steps=1)
    oracle = fs.Oracle(lambda x, k: x, lambda x, k: x.sum(), lambda x: x)
    x = jnp.ones(2)
    algorithm = entry.build({"lr_decay": 0.5, "tuning_steps": 1})
    delta, _ = algorithm.local(x, algorithm.init_client(x), oracle, work)
    np.testing.assert_allclose(delta, 0.3 * 0.5 * x, rtol=1e-6)


@pytest.mark.parametrize("name", ["fedavg", "fedsam"])
def test_steps_of_fine_tuning_are_clipped_and_decayed_as_local_ones(name):
    """``fedsam`` transforms the gradients of its local steps itself, at the perturbed model."""
    hyper = {"lr": 0.5, "tuning_steps": 2, "clip": 1.0, "weight_decay": 0.1}
    algorithm = registry.ALGORITHMS[name].build(hyper)
    one, start = jnp.array(1), jnp.zeros(2)
    work = fs.Work(one, one, one, one, one * 0, one, max_steps=1)
    goal = jnp.array([3.0, 4.0])
    oracle = fs.Oracle(lambda x, k: x - goal, lambda x, k: x.sum(), lambda x: x - goal)
    assert algorithm.personal is not None
    tuned = algorithm.personal(start, algorithm.init_client(start), oracle, work)
    first = 0.5 * goal / 5  # of norm 1/2, on the line to the goal
    np.testing.assert_allclose(tuned, first + 0.5 * (goal / 5 - 0.1 * first), rtol=1e-6)


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
    assert resolved(entry, {}) is not None  # the defaults are complete and in range


@pytest.mark.parametrize("name", registry.ALGORITHMS)
def test_algorithms_on_the_command_line_accept_each_hyper_parameter(name):
    entry = registry.ALGORITHMS[name]
    defaults = dict.fromkeys(entry.hyper) | entry.hyper_defaults
    values = {key: v if isinstance(v, str | int) else 0.25 for key, v in defaults.items()}
    values |= {key: 2 for key in ("head_steps", "tuning_steps") if key in values}
    values |= {key: "HF" for key in ("hessian",) if key in values}  # the form that has delta
    if "lr" not in values:  # there is no rate of fine-tuning
        values = {key: value for key, value in values.items() if key not in entries.TUNING}
    assert resolved(entry, values) == values


def test_hyper_parameters_that_all_algorithms_have():
    hyper = hyper_of(
        "fedavg", "fedsam", lr=0.5, lr_decay=0.9, clip=3.0, weight_decay=0.01,
        hyper={"fedsam": {"clip": 2, "radius": 0}},
    )  # fmt: skip
    common = {"lr": 0.5, "lr_decay": 0.9, "weight_decay": 0.01}
    assert hyper == {"fedavg": common | {"clip": 3.0}, "fedsam": common | {"clip": 2, "radius": 0}}


def test_an_algorithm_may_have_a_weight_decay_of_its_own():
    """AdamW's is decoupled: the option sets it, and no gradient is changed."""
    hyper = hyper_of("fedavg", "diloco", weight_decay=0.05)
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


def decaying(lr: float | Callable = 0.3):
    return algorithms.fedavg(lr)


def test_rates_of_own_functions_decay_where_they_may_be_schedules():
    own = {"own": decaying, "other": lambda lr=0.1: algorithms.fedavg(lr)}
    study = Study(options(algorithms=("own",), lr=0.1, lr_decay=0.5), algorithms=own)
    rows = entries_of(study)
    hyper = resolve_hyper(rows, study.options.algorithms)["own"]
    task = quadratic_task(np.ones((1, 1, 1)), np.full((1, 1), 10.0), 1)
    setup = fs.Setup(task, fs.timelines.full(3, 1, task.num_steps), jnp.ones(1))
    state, _ = fs.run(rows["own"].build(hyper), setup, jax.random.key(0))
    x = 1.0
    for t in range(3):
        x -= 0.1 * 0.5**t * (x - 10)
    np.testing.assert_allclose(state.server.params, x, rtol=1e-6)  # single precision
    both = Study(options(algorithms=("own", "other"), lr_decay=0.5), algorithms=own)
    with pytest.raises(ValueError, match=r"other does not have it; expected the annotation lr: fl"):
        resolve_hyper(entries_of(both), both.options.algorithms)


@pytest.mark.parametrize(
    ("names", "values", "message"),
    [
        (("mb_ac_sgd",), {"lr_decay": 0.9}, "lr_decay is 0.9, but mb_ac_sgd does not have it"),
        (("fedavg",), {"server_lr": 0.9}, "server_lr is 0.9, but none of fedavg has one"),
    ],
)
def test_options_that_an_algorithm_lacks(names, values, message):
    with pytest.raises(ValueError, match=message):
        resolve(Study(options(algorithms=names, **values)))


def test_hyper_parameters_override_each_other():
    values = {"lr": 0.5, "server_lr": 0.7, "hyper": {"fedadam": {"lr": 0.9}}}
    assert hyper_of("fedavg", "fedadam", **values) == {
        "fedavg": {"lr": 0.5},
        "fedadam": {"lr": 0.9, "server_lr": 0.7},
    }


def test_rates_of_a_preset_are_replaced_by_all_other_options():
    rates = {"fedavg": 0.1, "scaffold": 0.05}
    assert hyper_of("scaffold", rates=rates)["scaffold"]["lr"] == 0.05
    hyper = {"scaffold": {"lr": 0.3}}
    both = hyper_of("fedavg", "scaffold", rates=rates, lr=0.7, hyper=hyper)
    assert [values["lr"] for values in both.values()] == [0.7, 0.3]


def test_rates_of_a_preset_are_not_those_of_own_algorithms():
    """An own algorithm with the name of a built-in one has its own default."""
    own = {"fedavg": fs.fedavg(0.7), "scaffold": lambda lr=0.3: fs.scaffold(lr)}
    chosen = options("femnist", algorithms=("fedavg", "scaffold", "fedprox")).algorithms
    rows = algorithms_of(chosen.algorithms, own)
    assert resolve_hyper(rows, chosen) == {
        "fedavg": {},
        "scaffold": {},
        "fedprox": {"mu": 0.1, "lr": 0.1},
    }


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_rates_of_presets_belong_to_their_algorithms(preset):
    chosen = PRESETS[preset].algorithms
    found = resolve_hyper(algorithms_of(chosen.algorithms), chosen)
    for name, rate in chosen.rates.items():
        assert found[name]["lr"] == rate


@pytest.mark.parametrize(
    ("preset", "values", "expected"),
    [
        (
            "femnist",
            {"algorithms": ("fedavg", "ditto", "pfedme")},
            {"ditto": 0.2, "pfedme": 0.04},
        ),
        ("femnist", {"algorithms": ("fedavg", "ditto"), "hyper": {"ditto": {"lr": 0.1}}}, {}),
        ("femnist", {"algorithms": ("fedavg", "ditto"), "lr": 0.1}, {}),
        ("femnist", {}, {}),
        ("asynchronous", {"algorithms": ("favano", "fedexp")}, {"fedexp": 0.2}),
        ("quickstart", {"algorithms": ("ditto",)}, {}),
    ],
)
def test_rates_that_were_not_tuned_for_a_preset(preset, values, expected):
    chosen = options(preset, **values).algorithms
    rows = algorithms_of(chosen.algorithms)
    assert untuned_rates(rows, resolve_hyper(rows, chosen), chosen) == expected


@pytest.mark.slow
def test_rates_that_were_not_tuned_for_a_preset_are_named():
    values = {"algorithms": ("favano", "fedexp"), "seeds": 1, "horizon": 400.0}
    note = resolve(Study(options("asynchronous", **values))).untuned
    assert note == "not tuned for these settings, default rate: fedexp.lr=0.2"


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
    names, values = ("fedavg", "fedbabu"), {"tuning_lr": 0.1, "personal": 2}
    alone = hyper_of(*names, **values)
    with pytest.raises(ValueError, match=r"tuning_lr is 0\.1 for fedavg; expected --tuning-steps"):
        check_tuning(registry.ALGORITHMS["fedavg"], alone["fedavg"])
    check_tuning(registry.ALGORITHMS["fedbabu"], alone["fedbabu"])
    hyper = hyper_of(*names, **values, hyper={"fedavg": {"tuning_steps": 3}})
    assert hyper["fedavg"]["tuning_steps"] == 3
    assert hyper["fedavg"]["tuning_lr"] == hyper["fedbabu"]["tuning_lr"] == 0.1


def test_algorithms_with_fine_tuning_have_no_further_steps():
    assert "tuning_steps" in registry.ALGORITHMS["ditto"].common
    for name in ("fedavg_ft", "fedbabu"):
        assert "tuning_steps" not in registry.ALGORITHMS[name].common
