"""Options of a sweep: the meaning of a grid, and the checks before data are loaded."""

import dataclasses
import itertools
import json
import math
import pathlib
import re

import hypothesis.strategies as st
import pytest
from hypothesis import given
from traced import digest_of

from fedjax_sim import models
from fedjax_sim.cli import sweep
from fedjax_sim.cli.grid import (
    RUN_SETTINGS,
    SETTINGS,
    configurations,
    mode_of,
    swept_hyper,
    with_settings,
)
from fedjax_sim.cli.main import main
from fedjax_sim.runs.sweeps import program
from fedjax_sim.runs.sweeps.result import Sweep
from fedjax_sim.runs.sweeps.static import static_names
from fedjax_sim.studies.setups import names, own_objects
from fedjax_sim.studies.setups.build import hyper_parameters
from fedjax_sim.studies.setups.config import RunConfig, SweepConfig, from_comparison
from fedjax_sim.studies.setups.config_file import read_sweep, to_json
from fedjax_sim.studies.setups.registry import algorithms_of

RATES = st.floats(1e-9, 1e9)
# Names that a grid of FedProx may have, with their values; cohorts fit every population.
VALUES = {
    "lr": RATES,
    "mu": st.floats(0, 1e9),
    "alpha": RATES,
    "dropout": st.floats(0, 0.99),
    "cohort_size": st.integers(1, 50),
    "num_clients": st.integers(50, 500),
    "local_steps": st.integers(1, 1000),
    "batch_size": st.integers(1, 1000),
    "model": st.sampled_from(["auto", *models.MODELS]),
    "weighting": st.sampled_from(["uniform", "examples"]),
}


def grid_of(*grid: str, **options) -> list[dict]:
    return configurations(SweepConfig(grid=grid, **options))


def points_of(folder: pathlib.Path, text: str, **options) -> list[dict]:
    path = folder / "points.csv"
    path.write_text(text)
    return configurations(SweepConfig(points=path, **options))


def values_of(found: list[dict], name: str) -> list:
    return list(dict.fromkeys(entry[name] for entry in found))


@st.composite
def grids(draw) -> dict[str, list]:
    names = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=4, unique=True))
    values = {
        name: draw(st.lists(VALUES[name], min_size=1, max_size=3, unique=True)) for name in names
    }
    return values


@pytest.mark.slow
@given(grids(), st.booleans())
def test_a_grid_is_the_product_of_its_values(grid, qualified):
    """Options outside, hyper-parameters inside, both in the order given; the last name fastest."""
    texts = [
        ("fedprox." if qualified and name in ("lr", "mu") else "")
        + f"{name}={','.join(map(str, values))}"
        for name, values in grid.items()
    ]
    names = sorted(grid, key=lambda name: name in ("lr", "mu"))  # stable
    expected = [
        {"algorithm": "fedprox"} | dict(zip(names, values, strict=True))
        for values in itertools.product(*(grid[name] for name in names))
    ]
    found = grid_of(*texts, algorithms=("fedprox",))
    assert found == expected
    assert [list(entry) for entry in found] == [list(entry) for entry in expected]
    assert [{k: type(v) for k, v in entry.items()} for entry in found] == [
        {k: type(v) for k, v in entry.items()} for entry in expected
    ]


@given(st.floats(1e-6, 1e3), st.floats(1.01, 1e6), st.integers(2, 12))
def test_geometric_ranges(low, ratio, count):
    high = low * ratio
    found = values_of(grid_of(f"lr={low}:{high}:{count}"), "lr")
    expected = [low * (high / low) ** (i / (count - 1)) for i in range(count)]
    # Values are rounded to twelve digits: half a unit of the last one, of 1.00000000000 5e-12.
    assert found == pytest.approx(expected, rel=5.1e-12)
    assert all(value == float(f"{value:.12g}") for value in found)


def test_geometric_ranges_have_round_ends():
    assert values_of(grid_of("lr=0.001:10:5"), "lr") == [0.001, 0.01, 0.1, 1.0, 10.0]
    assert values_of(grid_of("alpha=0.1:10:3"), "alpha") == [0.1, 1.0, 10.0]


@given(st.integers(1, 20), st.integers(1, 80), st.integers(2, 12))
def test_geometric_ranges_of_integers_are_rounded(low, more, count):
    """Powers of two for cohorts; neighbours that round to one value are one."""
    high = low + more
    found = values_of(grid_of(f"cohort_size={low}:{high}:{count}"), "cohort_size")
    assert all(type(value) is int for value in found)
    assert found == sorted(set(found))
    assert (found[0], found[-1]) == (low, high)
    for i in range(count):
        exact = low * (high / low) ** (i / (count - 1))
        assert any(abs(value - exact) < 0.5 + 1e-9 for value in found)


def test_powers_of_two():
    assert values_of(grid_of("cohort_size=2:64:6"), "cohort_size") == [2, 4, 8, 16, 32, 64]


def test_each_algorithm_takes_its_own_hyper_parameters():
    found = grid_of(
        "cohort_size=2,4",
        "lr=0.1,0.2",
        "mu=0,1",
        "fedadam.server_lr=0.01",
        algorithms=("fedavg", "fedprox", "fedadam"),
    )
    fedavg = [
        {"algorithm": "fedavg", "cohort_size": m, "lr": lr} for m in (2, 4) for lr in (0.1, 0.2)
    ]
    fedprox = [
        {"algorithm": "fedprox", "cohort_size": m, "lr": lr, "mu": mu}
        for m in (2, 4)
        for lr in (0.1, 0.2)
        for mu in (0.0, 1.0)
    ]
    fedadam = [entry | {"algorithm": "fedadam", "server_lr": 0.01} for entry in fedavg]
    assert found == [*fedavg, *fedprox, *fedadam]


@pytest.mark.parametrize("order", [1, -1])
def test_values_for_one_algorithm_go_before_those_for_all(order):
    grid = ("lr=0.1,0.2", "scaffold.lr=0.5")[::order]
    found = grid_of(*grid, algorithms=("fedavg", "scaffold"))
    assert [(entry["algorithm"], entry["lr"]) for entry in found] == [
        ("fedavg", 0.1),
        ("fedavg", 0.2),
        ("scaffold", 0.5),
    ]


def test_an_algorithm_without_the_swept_hyper_parameter_runs_once():
    found = grid_of("mu=0,1", algorithms=("fedavg", "fedprox"))
    assert [entry.get("mu") for entry in found] == [None, 0.0, 1.0]


def test_a_hyper_parameter_with_the_name_of_an_option_is_not_the_option():
    """The alpha of FedSWA, and that of the Dirichlet partition."""
    found = grid_of("fedswa.alpha=0.5,1", "alpha=0.3", algorithms=("fedavg", "fedswa"))
    assert found == [
        {"algorithm": "fedavg", "alpha": 0.3},
        {"algorithm": "fedswa", "alpha": 0.3, "fedswa.alpha": 0.5},
        {"algorithm": "fedswa", "alpha": 0.3, "fedswa.alpha": 1.0},
    ]
    assert [swept_hyper(entry) for entry in found] == [{}, {"alpha": 0.5}, {"alpha": 1.0}]
    config = SweepConfig(algorithms=("fedavg", "fedswa"))
    assert {with_settings(config, entry).alpha for entry in found} == {0.3}


def test_the_algorithm_gets_the_hyper_parameter_with_the_name_of_an_option(tmp_path, monkeypatch):
    calls = []

    def observed(factory, make_setup, entries, keys, **options):
        calls.append((factory, entries))
        return Sweep([], False, 0, 0, 0.0, 0.0)

    monkeypatch.setattr(sweep, "sweep", observed)
    grid = ("fedswa.alpha=0.5", "streaming_diloco.delay=0,1", "streaming_diloco.lr=0.1")
    config = SweepConfig(output=tmp_path, algorithms=("fedswa", "streaming_diloco"), grid=grid)
    sweep.run_sweep(config)
    ((factory, entries),) = calls
    (swa,) = (entry for entry in entries if entry["algorithm"] == "fedswa")
    hyper = hyper_parameters(config)["fedswa"] | {"alpha": 0.5}
    expected = algorithms_of(["fedswa"])["fedswa"].build(hyper)
    assert digest_of(factory(**swa)) == digest_of(expected)
    # An integer cannot vary inside a program, a rate can.
    static = static_names(factory, entries)
    assert "streaming_diloco.delay" in static
    assert not {"streaming_diloco.lr", "fedswa.alpha"} & static


@pytest.mark.parametrize("name", ["option", "scaffold.option"])
def test_hyper_parameters_that_are_words(name):
    found = grid_of(f"{name}=I,II", algorithms=("fedavg", "scaffold"))
    assert [swept_hyper(entry) for entry in found] == [{}, {"option": "I"}, {"option": "II"}]


def test_points_are_rows(tmp_path):
    found = points_of(
        tmp_path,
        "lr,cohort_size,model,fedprox.mu\n0.1,5,mlp,\n 0.2 ,7,,0.5\n\n0.1,5,mlp,\n",
        algorithms=("fedavg", "fedprox"),
        grid=("nobody.has=this",),  # which the points replace
    )
    assert found == [
        {"algorithm": "fedavg", "cohort_size": 5, "model": "mlp", "lr": 0.1},
        {"algorithm": "fedprox", "cohort_size": 5, "model": "mlp", "lr": 0.1},
        {"algorithm": "fedavg", "cohort_size": 7, "lr": 0.2},
        {"algorithm": "fedprox", "cohort_size": 7, "lr": 0.2, "mu": 0.5},
    ]


def test_points_that_are_one_configuration_of_an_algorithm_are_run_once(tmp_path):
    found = points_of(tmp_path, "lr,mu\n0.1,0\n0.1,1\n", algorithms=("fedavg", "fedprox"))
    assert [(entry["algorithm"], entry.get("mu")) for entry in found] == [
        ("fedavg", None),
        ("fedprox", 0.0),
        ("fedprox", 1.0),
    ]


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_can_be_swept(name):
    default = getattr(SweepConfig(), name)
    value = {"full_probability": 0.5}.get(name, 3) if default is None else default
    clock = {"clock": "exponential", "local_steps": 2} if name not in RUN_SETTINGS else {}
    if clock:  # without a clock the setting has no effect
        with pytest.raises(ValueError, match=f"^grid has '{name}'; expected a hyper-parameter"):
            grid_of(f"{name}={value}")
    (found,) = grid_of(f"{name}={value}", **clock)
    assert found == {"algorithm": "fedavg", name: value}
    assert type(found[name]) is type(value)
    assert getattr(with_settings(SweepConfig(), found), name) == value
    assert swept_hyper(found) == {}


def test_a_configuration_is_settings_and_hyper_parameters():
    found = grid_of("cohort_size=3", "mu=0.5", algorithms=("fedavg", "fedprox"))[1]
    own = with_settings(SweepConfig(rounds=7, algorithms=("fedavg", "fedprox")), found)
    assert (own.cohort_size, own.rounds, own.algorithms) == (3, 7, ("fedprox",))
    assert swept_hyper(found) == {"mu": 0.5}


@pytest.fixture
def no_data(monkeypatch):
    """Loading data, or anything after it, fails the test."""

    def load(*arguments):
        raise AssertionError("reached the data")

    monkeypatch.setattr(own_objects.datasets, "load", load)


OF_FEDAVG = (
    "fedavg: aggregator, clip, compress, compress_down, feedback, feedback_rate, lr, lr_decay, "
    "privacy_clip, privacy_noise, privacy_noise_law, tuning_lr, tuning_steps, weight_decay"
)


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ((), r"grid is empty; expected at least one NAME=V1,V2"),
        (("lr",), r"grid has 'lr'; expected NAME=V1,V2,\.\.\. or NAME=LOW:HIGH:COUNT"),
        (("lr=",), r"grid has 'lr='; expected NAME="),
        (("=0.1",), r"grid has '=0.1'; expected NAME="),
        (("lr=0.1", "lr=0.2"), r"grid has 'lr=0.2'; expected .* each name once"),
        (("lr=0.1,0.1",), r"grid has .*0.1} twice; expected distinct configurations"),
        (("lr=0.1,",), r"grid has lr=; expected a number"),
        (("lr=fast",), r"grid has lr=fast; expected a number"),
        (("lr=0.1:0.2",), r"grid has lr=0.1:0.2; expected a number"),
        (("lr=0",), r"grid has .*: hyper has 'fedavg.lr=0.0'; expected a positive number"),
        (("lr=nan",), r"grid has .*: hyper has 'fedavg.lr=nan'; expected a positive number"),
        (("lr=0.1,inf",), r"grid has .*: hyper has 'fedavg.lr=inf'; expected a positive number"),
        (("lr=0.2:0.1:3",), r"grid has 'lr=0.2:0.1:3'; expected LOW:HIGH:COUNT, 0 < LOW < HIGH"),
        (("lr=0:0.1:3",), r"grid has 'lr=0:0.1:3'; expected LOW:HIGH:COUNT"),
        (("lr=0.1:0.2:1",), r"grid has 'lr=0.1:0.2:1'; expected LOW:HIGH:COUNT"),
        (("lr=0.1:0.2:2.5",), r"grid has 'lr=0.1:0.2:2.5'; expected LOW:HIGH:COUNT"),
        (("lr=0.1:much:3",), r"grid has 'lr=0.1:much:3'; expected LOW:HIGH:COUNT"),
        (("lr=0.1:inf:3",), r"grid has 'lr=0.1:inf:3'; expected LOW:HIGH:COUNT"),
        (("lr=nan:1:3",), r"grid has 'lr=nan:1:3'; expected LOW:HIGH:COUNT"),
        (("model=1:2:3",), r"grid has 'model=1:2:3'; expected model=V1,V2,"),
        (("cohort_size=2.5",), r"grid has cohort_size=2.5; expected an integer"),
        (("cohort_size=0",), r"grid has .*: cohort_size is 0; expected an integer of at least 1"),
        (("cohort_size=101",), r"grid has .*: cohort_size is 101; expected 1 .. 100, the clients"),
        (("partition_seed=-1",), r"grid has .*: partition_seed is -1; expected .* at least 0"),
        (("dropout=0,1",), r"grid has .*: dropout is 1.0; expected a number in \[0, 1\)"),
        (("model=mlp,resnet",), r"grid has .*: model is 'resnet'; expected one of auto, "),
        (
            ("eval_every=1",),
            rf"grid has 'eval_every'; expected a hyper-parameter \({OF_FEDAVG}\)",
        ),
        (
            ("mu=0.1",),
            rf"grid has 'mu'; expected a hyper-parameter \({OF_FEDAVG}\) or an option",
        ),
        (("fedprox.mu=0.1",), r"grid has 'fedprox.mu'; expected a hyper-parameter"),
        (("fedavg.mu=0.1",), r"grid has 'fedavg.mu'; expected a hyper-parameter"),
        (("fedavg.rounds=3",), r"grid has 'fedavg.rounds'; expected a hyper-parameter"),
        ((".lr=3",), r"grid has '.lr'; expected a hyper-parameter"),
        # The name is wrong, whatever its values are.
        (
            ("samplng=full,uniform",),
            r"grid has 'samplng'; expected a hyper-parameter .*; did you mean sampling\?",
        ),
        (("algorithm=fedavg,scaffold",), r"grid has 'algorithm'; expected a hyper-parameter"),
    ],
)
def test_bad_grids(grid, message, no_data):
    with pytest.raises(ValueError, match="^" + message):
        sweep.run_sweep(SweepConfig(grid=grid))


def test_ranges_that_only_a_factory_checks_are_checked_before_data_are_loaded(no_data):
    config = SweepConfig(algorithms=("scaffold",), grid=("option=I,III",))
    message = "^grid has {'algorithm': 'scaffold', 'option': 'III'}: option is 'III'; expected"
    with pytest.raises(ValueError, match=message):
        sweep.run_sweep(config)
    with pytest.raises(ValueError, match=r"^grid has 'option=1:2:3'; expected option=V1,V2,"):
        sweep.run_sweep(dataclasses.replace(config, grid=("option=1:2:3",)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "rounds is 0; expected an integer of at least 1"),
        ({"seeds": 0}, "seeds is 0; expected an integer of at least 1"),
        # jax.random.key(2**32) is jax.random.key(0).
        ({"seed": 2**32}, "seed is 4294967296; expected an integer of at most 4294967293"),
        ({"partition_seed": 2**32}, "partition_seed is .*; expected an integer of at most 429496"),
        ({"rounds": 2**31}, "rounds is 2147483648; expected an integer of at most 2147483647"),
        ({"examples_memory": 1e30}, r"examples_memory is 1e\+30; expected .* of at most 9e\+09"),
        ({"algorithms": ()}, r"algorithms is \(\); expected distinct names, at least one"),
        ({"algorithms": ("fedavg",) * 2}, r"algorithms is .*; expected distinct names"),
        ({"algorithms": ("newton",)}, "algorithms has 'newton'; expected some of afl, agd, "),
        ({"hyper": ("fedavg.mu=1",)}, "hyper has 'fedavg.mu=1'; fedavg has lr"),
        ({"dataset": "imagenet"}, "dataset is 'imagenet'; expected .*digits"),
        ({"cohort_size": 101}, "grid has .*: cohort_size is 101; expected 1 .. 100"),
        ({"mode": "largest"}, "mode is 'largest'; expected auto, max or min"),
        ({"last": 0}, "last is 0; expected 1 .. 50, the evaluations of 100 rounds"),
        ({"last": 51}, "last is 51; expected 1 .. 50, the evaluations of 100 rounds"),
        ({"last": 9, "grid": ("rounds=16,100",)}, "last is 9; expected 1 .. 8"),
        ({"last": 2, "best": True}, "last is 2; expected 1 .. 1, with --best"),
        ({"cells": ("cohort_size",)}, "cells has 'cohort_size'; expected some of lr, each at most"),
        ({"cells": ("algorithm",)}, "cells has 'algorithm'; expected some of lr"),
        ({"cells": ("lr", "lr")}, "cells has 'lr'; expected some of lr, each at most once"),
        ({"over": "num_clients"}, "over is 'num_clients'; expected a name with values in the grid"),
        (
            {"over": "cohort_size", "grid": ("cohort_size=2,4",)},
            "reference is 0.0; expected a positive number, such as 1, with --over and --metric",
        ),
        ({"reference": math.nan}, "reference is nan; expected a finite number"),
        ({"memory": math.nan}, "memory is nan; expected a positive number of gigabytes"),
        ({"memory": math.inf}, "memory is inf; expected a positive number of gigabytes"),
        ({"memory": 0.0}, r"memory is 0\.0; expected a positive number of gigabytes"),
    ],
)
def test_bad_options(options, message, no_data):
    with pytest.raises(ValueError, match="^" + message):
        sweep.run_sweep(SweepConfig(**options))


@pytest.mark.parametrize(
    ("metric", "mode", "expected"),
    [
        ("train/loss", "auto", "min"),
        ("valid/accuracy", "auto", "max"),
        ("train/loss", "max", "max"),
        ("test/bleu", "max", "max"),
    ],
)
def test_the_name_of_the_metric_says_which_values_are_better(metric, mode, expected):
    """By default a loss is not maximized, which would choose the worst configuration."""
    assert mode_of(SweepConfig(metric=metric, mode=mode)) == expected


def test_a_name_that_does_not_say_which_values_are_better_needs_a_mode():
    with pytest.raises(ValueError, match=r"^mode is auto; expected max or min, .* 'test/bleu'"):
        mode_of(SweepConfig(metric="test/bleu"))


def test_everybody_may_be_sampled_whatever_the_cohort_size():
    assert len(grid_of("num_clients=5,20", sampling="full")) == 2
    assert len(grid_of("lr=0.1", cohort_size=1000, partition="natural")) == 1
    # The cohort need only fit the populations of the grid.
    assert len(grid_of("num_clients=20,30", num_clients=5, cohort_size=20)) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a line of distinct names and a row or more"),
        ("lr\n", "expected a line of distinct names and a row or more"),
        ("lr\n0.1,0.2\n", "expected a line of distinct names and a row or more"),
        ("lr,lr\n0.1,0.2\n", "expected a line of distinct names and a row or more"),
        ("lr,speed\n0.1,3\n", "points has 'speed'; expected a hyper-parameter"),
        ("lr,speed\n0.1,fast\n", "points has 'speed'; expected a hyper-parameter"),
        ("lr\nfast\n", "points has lr=fast; expected a number"),
        ("cohort_size\n1.5\n", "points has cohort_size=1.5; expected an integer"),
        ("lr\n-1\n", "points has {.*-1.0}: hyper has .*; expected a positive number"),
        ("lr,cohort_size\n0.1,5\n0.1,\n", "over is 'cohort_size'; expected a name with values"),
    ],
)
def test_bad_points(tmp_path, text, message):
    with pytest.raises(ValueError, match="^(points is .*; )?" + message):
        points_of(tmp_path, text, over="cohort_size" if "0.1,5" in text else None)


def test_points_that_cannot_be_read(tmp_path):
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"lr\n\xff\xfe\n")
    for path in (tmp_path / "nowhere.csv", tmp_path, binary):
        with pytest.raises(ValueError, match=r"^points is '.*', which cannot be read: "):
            configurations(SweepConfig(points=path))


def saved(path: pathlib.Path, config: RunConfig, **more) -> pathlib.Path:
    path.write_text(json.dumps({"config": to_json(config), **more}))
    return path


def test_config_survives_json(tmp_path):
    config = SweepConfig(
        output=tmp_path / "a",
        data_dir=tmp_path,
        points=tmp_path / "points.csv",
        algorithms=("fedavg", "fedprox"),
        hyper=("fedprox.mu=0.3",),
        lr=0.3,
        grid=("cohort_size=2,3",),
        cells=("cohort_size",),
        over="cohort_size",
        metric="test/loss",
        mode="min",
        last=2,
        reference=-0.5,
        memory=1.5,
    )
    assert read_sweep(saved(tmp_path / "config.json", config)) == config
    assert read_sweep(saved(tmp_path / "config.json", SweepConfig())) == SweepConfig()


def test_a_comparison_gives_its_settings_algorithms_and_hyper_parameters(tmp_path):
    run = RunConfig(
        rounds=7, seeds=9, algorithms=("fedavg", "fedprox"), lr=0.3, hyper=("fedprox.mu=0.5",)
    )
    path = saved(tmp_path / "config.json", run, algorithms=hyper_parameters(run))
    config = read_sweep(path)
    assert (config.rounds, config.algorithms) == (7, ("fedavg", "fedprox"))
    # Its folder is the run's, and as many seeds as for a curve are too many for a grid.
    assert (config.output, config.seeds) == (SweepConfig().output, SweepConfig().seeds)
    assert hyper_parameters(config) == hyper_parameters(run)
    assert len(configurations(config)) == 2 * 4  # rates of the default grid


@pytest.mark.parametrize("options", [{"num_clients": 30}, {"model": "mlp"}, {"execution": "auto"}])
def test_every_setting_of_a_preset_is_kept(options):
    run = RunConfig(**options)
    config = from_comparison(run)
    own = {"output", "algorithms", "seeds"}
    for field in dataclasses.fields(RunConfig):
        kept = SweepConfig() if field.name in own else run
        assert getattr(config, field.name) == getattr(kept, field.name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--grid lr=0", "--grid has {'algorithm': 'fedavg', 'lr': 0.0}: hyper has"),
        ("--grid cohort_size=101", "cohort_size is 101; expected 1 .. 100"),
        ("--points nowhere.csv", "--points is 'nowhere.csv', which cannot be read"),
        ("--rounds 0", "--rounds is 0; expected an integer of at least 1"),
        ("--hyper scaffold.lr=1", "--hyper has 'scaffold.lr=1'; expected one of fedavg"),
        ("--server-lr 1", "--server-lr is 1.0, but none of fedavg has one"),
        ("--metric speed", "--metric is 'speed'; expected one of test/accuracy, test/loss, "),
        ("--last 99", "--last is 99; expected 1 .. 50"),
        ("--over cohort_size", "--over is 'cohort_size'; expected a name with values in the grid"),
        ("--memory nan", "--memory is nan; expected a positive number of gigabytes"),
        ("--model lenet5", "--model is 'lenet5', which takes examples of shape"),
        ("--num-clients 5000", "--partition is 'dirichlet'"),
        ("--dataset a9a --data-dir .", "a9a: nothing found in"),
    ],
)
def test_bad_options_exit_with_2_and_one_line(tmp_path, capsys, monkeypatch, options, message):
    def compiled(*args):
        raise AssertionError("compiles")

    monkeypatch.setattr(program.Programs, "prepare", compiled)
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "--output", "swept", *options.split()]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("fedjax-sim: error: ")
    assert error.count("\n") == 1
    assert not (tmp_path / "swept").exists()


@pytest.mark.parametrize(
    "options", ["--rounds many", "--mode largest", "--over alpha", "--speed 3", "--sampling some"]
)
def test_options_that_cannot_be_read_are_named(tmp_path, capsys, options):
    assert main(["sweep", "--output", str(tmp_path / "swept"), *options.split()]) == 2
    assert options.split()[0] in capsys.readouterr().err
    assert not (tmp_path / "swept").exists()


@pytest.mark.parametrize("chosen", ["slowstart", "nowhere/config.json"])
def test_unknown_presets_and_configs_are_refused(chosen, capsys):
    assert main(["sweep", chosen]) == 2
    assert chosen in capsys.readouterr().err


@pytest.mark.parametrize("preset", names.PRESETS)
def test_help_lists_every_option_with_its_default(preset, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")  # wide enough that no default is broken over lines
    assert main(["sweep", preset, "--help"]) == 0
    shown = capsys.readouterr().out
    parts = re.split(r"\n\W*--(?=[a-z])", shown)[1:]
    described = {re.split(r"[\s,]", part)[0]: part for part in parts}
    defaults = from_comparison(names.PRESETS[preset])
    for field in dataclasses.fields(SweepConfig):
        value = getattr(defaults, field.name)
        value = " ".join(value) if isinstance(value, tuple) else value
        text = described[field.name.replace("_", "-")]
        if value in (None, ""):  # the text itself says what the default is
            assert re.search("(?<!\\()default: ", text)
            assert "(default: " not in text
        else:
            assert f"(default: {value})" in text
