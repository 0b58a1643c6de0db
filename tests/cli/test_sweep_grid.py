"""Options of a sweep: the meaning of a grid, and the checks before data are loaded."""

import dataclasses
import itertools
import json
import math
import pathlib

import hypothesis.strategies as st
import pytest
from hypothesis import given
from sweep_options import sweep_options
from traced import digest_of

import fedjax_sim as fs
from fedjax_sim import models
from fedjax_sim.cli import sweep
from fedjax_sim.cli.grid import (
    SETTINGS,
    SWEEP,
    Axis,
    SweepOptions,
    configurations,
    mode_of,
    swept_hyper,
    with_settings,
)
from fedjax_sim.cli.main import main
from fedjax_sim.runs import FolderError
from fedjax_sim.runs.sweeps import program
from fedjax_sim.runs.sweeps.result import Sweep
from fedjax_sim.runs.sweeps.trial import static_names
from fedjax_sim.studies.setups import (
    PRESETS,
    Alie,
    HuggingFace,
    Run,
    Study,
    Table,
    Text,
    algorithms_of,
    flat,
    names_of,
    options,
    problem,
    replaced,
    resolve_hyper,
    to_json,
)

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


def grid_of(grid, study: Study | None = None, **values) -> list[dict]:
    return configurations(study or Study(), sweep_options(grid, **values))


def values_of(name: str, first: float, to: float, points: int) -> list:
    found = grid_of({name: Axis(first=first, to=to, points=points)})
    return list(dict.fromkeys(entry[name] for entry in found))


@st.composite
def grids(draw) -> dict[str, list]:
    names = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=4, unique=True))
    return {
        name: draw(st.lists(VALUES[name], min_size=1, max_size=3, unique=True)) for name in names
    }


@pytest.mark.slow
@given(grids(), st.booleans())
def test_a_grid_is_the_product_of_its_values(grid, qualified):
    """Options outside, hyper-parameters inside, both in the order given; the last name fastest."""
    hyper = ("lr", "mu")
    axes = {("fedprox." if qualified and n in hyper else "") + n: v for n, v in grid.items()}
    names = sorted(grid, key=lambda name: name in hyper)  # stable
    expected = [
        {"algorithm": "fedprox"} | dict(zip(names, values, strict=True))
        for values in itertools.product(*(grid[name] for name in names))
    ]
    found = grid_of(axes, algorithms=("fedprox",))
    assert found == expected
    assert [list(entry) for entry in found] == [list(entry) for entry in expected]
    assert [{k: type(v) for k, v in entry.items()} for entry in found] == [
        {k: type(v) for k, v in entry.items()} for entry in expected
    ]


@given(st.floats(1e-6, 1e3), st.floats(1.01, 1e6), st.integers(2, 12))
def test_geometric_ranges(low, ratio, count):
    high = low * ratio
    found = values_of("lr", low, high, count)
    expected = [low * (high / low) ** (i / (count - 1)) for i in range(count)]
    # Values are rounded to twelve digits: half a unit of the last one, of 1.00000000000 5e-12.
    assert found == pytest.approx(expected, rel=5.1e-12)
    assert all(value == float(f"{value:.12g}") for value in found)


@given(st.integers(1, 20), st.integers(1, 80), st.integers(2, 12))
def test_geometric_ranges_of_integers_are_rounded(low, more, count):
    """Neighbours that round to one value are one."""
    high = low + more
    found = values_of("cohort_size", low, high, count)
    assert all(type(value) is int for value in found)
    assert found == sorted(set(found))
    assert (found[0], found[-1]) == (low, high)
    for i in range(count):
        exact = low * (high / low) ** (i / (count - 1))
        assert any(abs(value - exact) < 0.5 + 1e-9 for value in found)


@pytest.mark.parametrize(
    ("name", "limits", "expected"),
    [
        ("lr", (0.001, 10, 5), [0.001, 0.01, 0.1, 1.0, 10.0]),
        ("alpha", (0.1, 10, 3), [0.1, 1.0, 10.0]),
        ("cohort_size", (2, 64, 6), [2, 4, 8, 16, 32, 64]),
    ],
)
def test_geometric_ranges_have_round_values(name, limits, expected):
    assert values_of(name, *limits) == expected


FEDAVG, FEDPROX, SWA = ({"algorithm": name} for name in ("fedavg", "fedprox", "fedswa"))
SCAFFOLD = {"algorithm": "scaffold"}


@pytest.mark.parametrize(
    ("grid", "expected"),
    [
        # An algorithm without the hyper-parameter runs once.
        ({"mu": (0, 1)}, [FEDAVG, FEDPROX | {"mu": 0.0}, FEDPROX | {"mu": 1.0}]),
        (
            {"cohort_size": (2, 4), "lr": (0.1,), "fedprox.mu": (2,)},
            [
                own | {"cohort_size": m, "lr": 0.1} | mu
                for own, mu in ((FEDAVG, {}), (FEDPROX, {"mu": 2.0}))
                for m in (2, 4)
            ],
        ),
        # Values for one algorithm go before those for all, whatever the order.
        ({"lr": (0.1,), "scaffold.lr": (0.5,)}, [FEDAVG | {"lr": 0.1}, SCAFFOLD | {"lr": 0.5}]),
        ({"scaffold.lr": (0.5,), "lr": (0.1,)}, [FEDAVG | {"lr": 0.1}, SCAFFOLD | {"lr": 0.5}]),
        # A hyper-parameter with the name of an option, the concentration, is not the option.
        (
            {"fedswa.alpha": (0.5, 1), "alpha": (0.3,)},
            [FEDAVG | {"alpha": 0.3}]
            + [SWA | {"alpha": 0.3, "fedswa.alpha": value} for value in (0.5, 1.0)],
        ),
        # Words.
        ({"option": ("I",)}, [FEDAVG, SCAFFOLD | {"option": "I"}]),
        ({"scaffold.option": ("I",)}, [FEDAVG, SCAFFOLD | {"option": "I"}]),
        # Fields of a choice belong to the kinds that have them, whatever the order.
        (
            {"classes_per_client": (1, 2), "partition": ("iid", "shards")},
            [FEDAVG | {"partition": "iid"}]
            + [FEDAVG | {"partition": "shards", "classes_per_client": k} for k in (1, 2)],
        ),
        (
            {"attack": ("none", "alie"), "attack.z": (1.5,)},
            [FEDAVG | {"attack": "none"}, FEDAVG | {"attack": "alie", "attack.z": 1.5}],
        ),
        # What is not compressed has one feedback, none, whatever the order.
        (
            {"feedback": ("ef14", "ef21"), "compress": ("none", "top_k")},
            [FEDAVG | {"compress": "none"}]
            + [FEDAVG | {"compress": "top_k", "feedback": kind} for kind in ("ef14", "ef21")],
        ),
    ],
)  # fmt: skip
def test_names_are_options_and_hyper_parameters(grid, expected):
    algorithms = tuple(dict.fromkeys(entry["algorithm"] for entry in expected))
    found = grid_of(grid, algorithms=algorithms)
    assert found == expected
    own = [{k.rpartition(".")[2]: v for k, v in e.items() if k not in SETTINGS} for e in expected]
    assert [swept_hyper(entry) | {"algorithm": entry["algorithm"]} for entry in found] == own


def test_another_kind_of_a_choice_keeps_typed_values_that_it_has():
    """The fraction of attackers, but not the number of deviations, which only one attack has."""
    run = replaced(Run(), "attack", Alie(fraction=0.3, z=2.0))
    kinds = ("none", "alie", "sign_flip")
    none, same, other = (with_settings(run, {"attack": kind}).attack for kind in kinds)
    assert (none.kind, same) == ("none", run.attack)
    assert flat(other) == {"fraction": 0.3, "scale": 1.0}
    mixed = options(robust="nnm", **{"robust.rule": "krum", "robust.rule.f": 3})
    rule = with_settings(mixed, {"robust": "bucketing"}).robust
    assert (rule.kind, flat(rule)["rule"], flat(rule)["rule.f"]) == ("bucketing", "krum", 3)
    default = with_settings(replaced(Run(), "attack", "scaling"), {"attack": "backdoor"})
    assert flat(default)["attack.factor"] == 1.0  # not that of scaling, which nobody typed


@pytest.mark.parametrize("compress", ["none", "top_k"])
def test_a_codec_of_none_is_a_value_beside_a_feedback(compress):
    grid, base = {"compress": ("none", "top_k")}, options(compress=compress, feedback="ef21")
    found = grid_of(grid, compress=compress, feedback="ef21")
    assert [entry["compress"] for entry in found] == ["none", "top_k"]
    kinds = [flat(with_settings(base, entry))["feedback"] for entry in found]
    assert kinds == ["none", "ef21"]
    for wrong in ({"partition": ("iid",)}, {"feedback": ("ef14", "ef21")}):  # not by a grid
        with pytest.raises(ValueError, match=r"feedback is 'ef.*'; expected --compress with it"):
            grid_of(wrong, feedback="ef21")


def test_every_setting_can_be_swept():
    """In options that have it: of every choice every kind."""
    needy = ("table", "huggingface", "text", "trace", "parts")  # have fields without a default
    bases = [options(), options(time="clock"), options(privacy="gaussian")]
    bases += [options(robust="nnm"), options(robust="bucketing")]
    for run in list(bases):
        for name, setting in SETTINGS.items():
            if setting.depth < math.inf and name in flat(run):
                kinds = [group.kind for group in names_of(Run)[name].alternatives]
                bases += [replaced(run, name, kind) for kind in kinds if kind not in needy]
    of_files = names_of(Table) | names_of(HuggingFace) | names_of(Text)
    for name in SETTINGS.keys() - of_files.keys():
        base = next(run for run in bases if name in flat(run))
        default, kind = flat(base)[name], SETTINGS[name].kind
        value = kind(3) if default is None else default
        assert flat(with_settings(base, {name: value}))[name] == value
        assert swept_hyper({"algorithm": "fedavg", name: value}) == {}
    assert len(SETTINGS) > 70


def test_the_algorithm_gets_the_hyper_parameter_with_the_name_of_an_option(tmp_path, monkeypatch):
    calls = []

    def observed(factory, make_setup, entries, keys, **options):
        for entry in entries:
            make_setup(algorithm=entry["algorithm"])
        calls.append((factory, entries))
        return Sweep([], False, 0, 0, 0.0, 0.0)

    monkeypatch.setattr(sweep, "sweep", observed)
    grid = {"fedswa.alpha": (0.5,), "streaming_diloco.delay": (0, 1), "streaming_diloco.lr": (0.1,)}
    algorithms = ("fedswa", "streaming_diloco")
    config = sweep_options(grid, output=tmp_path, algorithms=algorithms)
    sweep.run_sweep(Study(), config)
    ((factory, entries),) = calls
    (swa,) = (entry for entry in entries if entry["algorithm"] == "fedswa")
    known = algorithms_of(["fedswa"])
    hyper = resolve_hyper(known, config.run.algorithms)["fedswa"] | {"alpha": 0.5}
    assert digest_of(factory(**swa)) == digest_of(known["fedswa"].build(hyper))
    # An integer cannot vary inside a program, a rate can.
    static = static_names(factory, entries)
    assert "streaming_diloco.delay" in static
    assert not {"streaming_diloco.lr", "fedswa.alpha"} & static


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "lr,cohort_size,model,fedprox.mu\n0.1,5,mlp,\n 0.2 ,7,,0.5\n\n0.1,5,mlp,\n",
            [
                FEDAVG | {"cohort_size": 5, "model": "mlp", "lr": 0.1},
                FEDPROX | {"cohort_size": 5, "model": "mlp", "lr": 0.1},
                FEDAVG | {"cohort_size": 7, "lr": 0.2},
                FEDPROX | {"cohort_size": 7, "lr": 0.2, "mu": 0.5},
            ],
        ),
        # Two points that are one configuration of an algorithm are run once.
        ("lr,mu\n1,0\n1,1\n", [own | {"lr": 1.0} for own in (FEDAVG, FEDPROX | {"mu": 0.0},
                                                             FEDPROX | {"mu": 1.0})]),
    ],
)  # fmt: skip
def test_points_are_rows(tmp_path, text, expected):
    path = tmp_path / "points.csv"
    path.write_text(text)
    grid = {"nobody.has": ("this",)}  # which the points replace
    assert grid_of(grid, algorithms=("fedavg", "fedprox"), points=path) == expected


@pytest.fixture
def no_data(monkeypatch):
    """Loading data, or anything after it, fails the test."""

    def load(*arguments, **options):
        raise AssertionError("reached the data")

    monkeypatch.setattr(problem, "load", load)


OF_FEDAVG = "fedavg: clip, lr, lr_decay, tuning_lr, tuning_steps, weight_decay"
RANGE = r"grid has lr with .*from=.*; expected 0 < from < to and points > 1, or values alone"


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({}, "grid is empty; expected at least one --grid.NAME.values"),
        ({"lr": ()}, "grid has lr without values; expected --grid.lr.values"),
        ({"lr": (0.1, 0.1)}, "grid has lr=0.1 twice; expected distinct values"),
        ({"lr": ("fast",)}, "grid has lr=fast; expected a number"),
        ({"lr": (True,)}, "grid has lr=True; expected a number"),
        ({"lr": (0,)}, "grid has .*: hyper has fedavg.lr=0.0; expected a positive number"),
        ({"lr": (math.nan,)}, "grid has .*: hyper has fedavg.lr=nan; expected a positive number"),
        ({"lr": (1, math.inf)}, "grid has .*: hyper has fedavg.lr=inf; expected a positive"),
        ({"lr": Axis(first=0.2, to=0.1, points=3)}, RANGE),
        ({"lr": Axis(first=0.0, to=0.1, points=3)}, RANGE),
        ({"lr": Axis(first=0.1, to=0.2, points=1)}, RANGE),
        ({"lr": Axis(first=0.1, to=0.2)}, RANGE),
        ({"lr": Axis(first=0.1, to=math.inf, points=3)}, RANGE),
        ({"lr": Axis(first=math.nan, to=1.0, points=3)}, RANGE),
        ({"lr": Axis(values=(0.3,), first=0.1, to=1.0, points=3)}, RANGE),
        ({"model": Axis(first=1.0, to=2.0, points=3)}, "grid has model.from=1.0; expected values"),
        ({"cohort_size": (2.5,)}, "grid has cohort_size=2.5; expected an integer"),
        ({"cohort_size": (0,)}, "grid has .*: cohort_size is 0; expected an integer of at least 1"),
        ({"partition_seed": (-1,)}, "grid has .*: partition_seed is -1; expected .* at least 0"),
        ({"dropout": (0, 1)}, r"grid has .*: dropout is 1.0; expected a number in \[0, 1\)"),
        ({"weighting": ("none",)}, "grid has .*: weighting is 'none'; expected one of uniform"),
        ({"attack": ("none", "alei")}, r"attack is 'alei'; expected .*; did you mean alie\?"),
        ({"attack.z": (1.0,)}, "attack.z is 1.0; expected attack:alie with it"),
        ({"privacy.noise": (1.0,)}, "privacy.noise is 1.0; expected privacy:gaussian with it"),
        ({"privacy": ("gaussian",)}, "grid has .*: privacy.noise is None; expected --privacy.noi"),
        # Options that decide what is measured, and names of nothing.
        *[
            ({name: (1,)}, f"grid has '{name}'; expected a hyper-parameter \\({OF_FEDAVG}\\) or an")
            for name in ("eval_every", "personal", "seeds", "output", "precision", "data_dir",
                         "partition_per_seed", "privacy.epsilon", "mu", "fedprox.mu", "fedavg.mu",
                         "fedavg.rounds", ".lr", "algorithm", "algorithms")
        ],
        # The name is wrong, whatever its values are.
        ({"samplng": ("full", "1")}, r"grid has 'samplng'; expected .*; did you mean sampling\?"),
    ],
)  # fmt: skip
def test_bad_grids(grid, message, no_data):
    with pytest.raises(ValueError, match="^" + message):
        sweep.run_sweep(Study(), sweep_options(grid))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        # jax.random.key(2**32) is jax.random.key(0).
        ({"seed": 2**32 - 1}, "seed is 4294967295; expected an integer of at most 4294967293"),
        ({"examples_memory": 1.0}, "examples_memory is 1.0; expected none, since the runs of a sw"),
        ({"mode": "largest"}, "mode is 'largest'; expected one of auto, max, min"),
        ({"last": 0}, "last is 0; expected an integer of at least 1"),
        ({"last": 51}, "grid has .*last is 51; expected 1 .. 50, the evaluations"),
        ({"last": 9, "grid": {"rounds": (16, 100)}}, "grid has .*last is 9; expected 1 .. 8"),
        ({"last": 2, "best": True}, "grid has .*last is 2; expected 1 .. 1, with"),
        ({"cells": ("cohort_size",)}, "cells has 'cohort_size'; expected some of lr, each at most"),
        ({"cells": ("algorithm",)}, "cells has 'algorithm'; expected some of lr"),
        ({"cells": ("lr", "lr")}, "cells has 'lr'; expected some of lr, each at most once"),
        ({"over": "num_clients"}, "over is 'num_clients'; expected a name with values in the grid"),
        (
            {"grid": {"num_clients": (20, 30)}, "partition": "natural"},
            "grid has .*: partition is 'natural'; expected another one with a grid of num_clients",
        ),
        ({"reference": 1.0}, "reference is 1.0; expected --over with it"),
        (
            {"over": "cohort_size", "grid": {"cohort_size": (2, 4)}, "reference": 0.0},
            "reference is 0.0; expected a positive number, such as 1, with --metric test/accuracy",
        ),
        ({"reference": math.nan}, "reference is nan; expected a finite number"),
        ({"memory": math.nan}, "memory is nan; expected a positive number of at most 9e"),
        ({"memory": 0.0}, r"memory is 0\.0; expected a positive number of at most 9e"),
        ({"part": 2}, "part is 2; expected 1 .. --parts, which is None, or neither"),
        ({"parts": 2}, "part is None; expected 1 .. --parts, which is 2"),
        ({"part": 3, "parts": 2}, "part is 3; expected 1 .. --parts, which is 2"),
        ({"privacy": "gaussian", "privacy.epsilon": 1.0}, "privacy.epsilon is 1.0; expected priv"),
        (
            {"algorithms": ("scaffold",), "grid": {"option": ("I", "III")}},
            "grid has {'algorithm': 'scaffold', 'option': 'III'}: option is 'III'; expected",
        ),
    ],
)
def test_bad_options(options, message, no_data):
    with pytest.raises(ValueError, match="^" + message):
        sweep.run_sweep(Study(), sweep_options(**{"grid": None} | options))


@pytest.mark.parametrize(
    ("metric", "mode", "expected"),
    [
        # By default a loss is not maximized, which would choose the worst configuration.
        ("train/loss", "auto", "min"),
        ("valid/accuracy", "auto", "max"),
        ("train/loss", "max", "max"),
        ("test/bleu", "max", "max"),
    ],
)
def test_the_name_of_the_metric_says_which_values_are_better(metric, mode, expected):
    assert mode_of(SweepOptions(metric=metric, mode=mode)) == expected


def test_a_name_that_does_not_say_which_values_are_better_needs_a_mode():
    with pytest.raises(ValueError, match=r"^mode is auto; expected max or min, .* 'test/bleu'"):
        mode_of(SweepOptions(metric="test/bleu"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a line of distinct names and a row or more"),
        ("lr\n", "expected a line of distinct names and a row or more"),
        ("lr\n0.1,0.2\n", "expected a line of distinct names and a row or more"),
        ("lr,lr\n0.1,0.2\n", "expected a line of distinct names and a row or more"),
        ("lr,speed\n0.1,3\n", "points has 'speed'; expected a hyper-parameter"),
        ("lr,mu\n0.1,1\n,\n", "points is .*, whose row 2 has 0 values; expected one or more"),
        ("lr,mu\n0.1\n", "points is .*, whose row 1 has 1 values; .* a comma between each two"),
        ("lr\nfast\n", "points has lr=fast; expected a number"),
        ("cohort_size\n1.5\n", "points has cohort_size=1.5; expected an integer"),
        ("lr\n-1\n", "points has {.*-1.0}: hyper has .*; expected a positive number"),
        ("lr,cohort_size\n0.1,5\n0.1,\n", "over is 'cohort_size'; expected a name with values"),
    ],
)
def test_bad_points(tmp_path, text, message):
    path = tmp_path / "points.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match="^(points is .*; )?" + message):
        grid_of(None, points=path, over="cohort_size" if "0.1,5" in text else None)


def test_points_that_cannot_be_read(tmp_path):
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"lr\n\xff\xfe\n")
    for path in (tmp_path / "nowhere.csv", tmp_path, binary):
        with pytest.raises(ValueError, match=r"^points is '.*', which cannot be read: "):
            grid_of(None, points=path)


def swept_from(source: str | pathlib.Path, typed: str = "") -> tuple[Study, SweepOptions]:
    return SWEEP.read([str(source), *typed.split()], "")[2:]


@pytest.mark.parametrize(
    ("typed", "grid"),
    [
        ("", {"lr": Axis((0.05, 0.1, 0.2, 0.4))}),
        ("--grid.lr.values 0.1 1", {"lr": Axis((0.1, 1))}),
        ("--grid.lr.from 0.1 --grid.lr.to=3 --grid.lr.points 2", {"lr": Axis((), 0.1, 3.0, 2)}),
        ("--grid.cohort-size.values 2", {"cohort_size": Axis((2,))}),
        ("--grid.cohort_size.values 2", {"cohort_size": Axis((2,))}),
        (
            "attack:alie --grid.attack.z.values 1 --grid.attack.values none alie",
            {"attack.z": Axis((1,)), "attack": Axis(("none", "alie"))},
        ),
        ("--grid.fedswa.alpha.values 0.5 --rounds 3", {"fedswa.alpha": Axis((0.5,))}),
        ("--grid.efficient.values True", {"efficient": Axis((True,))}),
    ],
)  # fmt: skip
def test_axes_have_the_typed_names_in_their_order(typed, grid):
    _, config = swept_from("quickstart", typed)
    assert list(config.grid.items()) == list(grid.items())


def test_config_survives_json(tmp_path):
    config = sweep_options(
        {
            "cohort_size": (2, 3),
            "lr": Axis(first=0.1, to=0.3, points=2),
            "attack": ("none", "alie"),
        },
        output=tmp_path / "a",
        data_dir=tmp_path,
        points=tmp_path / "points.csv",
        algorithms=("fedavg", "fedprox"),
        hyper={"fedprox": {"mu": 0.3}},
        lr=0.3,
        alpha=math.inf,
        cells=("cohort_size",),
        over="cohort_size",
        metric="test/loss",
        mode="min",
        last=2,
        reference=-0.5,
        memory=1.5,
        part=1,
        parts=2,
    )
    path = tmp_path / "config.json"
    for written in (config, SweepOptions()):
        path.write_text(json.dumps({"sweep": to_json(written)}))
        assert swept_from(path)[1] == written
    # Typed axes replace those of the file.
    assert swept_from(path, "--grid.mu.values 1")[1].grid == {"mu": Axis((1,))}


def test_a_comparison_gives_its_settings_algorithms_and_hyper_parameters(tmp_path):
    algorithms, hyper = ("fedavg", "fedprox"), {"fedavg": {"lr": 0.3}, "fedprox": {"mu": 0.5}}
    run = options(rounds=7, seeds=9, algorithms=algorithms)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"config": to_json(run), "algorithms": hyper}))
    study, config = swept_from(path)
    assert (flat(config.run)["rounds"], flat(config.run)["algorithms"]) == (7, algorithms)
    # Its folder is the run's, and as many seeds as for a curve are too many for a grid.
    own = SweepOptions().run
    assert (config.run.output, config.run.seeds) == (own.output, own.seeds)
    assert config.run.algorithms.hyper == hyper
    assert len(configurations(study, config)) == 2 * 4  # rates of the default grid


@pytest.mark.parametrize("preset", PRESETS)
def test_every_setting_of_a_preset_is_kept(preset):
    _, config = swept_from(preset)
    own = SweepOptions().run
    kept = dataclasses.replace(PRESETS[preset], output=own.output, seeds=own.seeds)
    assert config.run == replaced(kept, "algorithms", ("fedavg",))


STUDY = """
import fedjax_sim as fs

def mine(lr: float = 0.1, strength: float = 1.0):
    return fs.fedprox(lr, mu=strength)

def study():
    return fs.Study(fs.presets.options(seeds=2), algorithms={"mine": mine, "fixed": fs.fedavg(0.1)})
"""


def test_hyper_parameters_of_a_study_module_can_be_swept(tmp_path):
    path = tmp_path / "study.py"
    path.write_text(STUDY)
    study, config = swept_from(path, "--grid.strength.values 0 1")
    assert (config.run.seeds, config.run.output) == (2, SweepOptions().run.output)
    mine, fixed = {"algorithm": "mine"}, {"algorithm": "fixed"}
    expected = [mine | {"strength": 0.0}, mine | {"strength": 1.0}, fixed]
    assert configurations(study, config) == expected


@pytest.mark.parametrize(
    ("own", "name"),
    [
        ({"setup": lambda seed: None}, "cohort_size"),
        ({"setup": lambda seed: None}, "alpha"),
        ({"model": fs.models.mlp(64, (4,), 10)}, "model"),
        ({"rows": []}, "num_clients"),
        ({"rows": []}, "partition"),
        ({"timeline": lambda key, task: None}, "sampling"),
        ({"loss": lambda outputs, y: y}, "loss"),
    ],
)
def test_options_that_own_parts_replace_are_no_settings(own, name, no_data):
    message = f"^grid has '{name}', which the study's own parts replace"
    with pytest.raises(ValueError, match=message):
        grid_of({name: ("iid",) if SETTINGS[name].kind is str else (1,)}, Study(**own))
    grid = {"lr": (0.1,), "privacy.noise": (1.0,)}
    assert len(grid_of(grid, Study(**own), privacy="gaussian")) == 1


def test_a_file_with_own_parts_of_a_study_is_refused(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"sweep": to_json(SweepOptions()), "own": ["algorithms"]}))
    with pytest.raises(FolderError, match="has algorithms of a study module, and a file names no"):
        swept_from(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--metric speed", "--metric is 'speed'; expected one of test/accuracy, test/loss, "),
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


def test_help_lists_the_options_of_sweeps_with_their_defaults(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")  # wide enough that no default is broken over lines
    assert main(["sweep", "--help"]) == 0
    shown = capsys.readouterr().out
    for field in dataclasses.fields(SweepOptions):
        if field.name not in ("run", "grid"):
            assert f"--{field.name}" in shown
    for name in ("values", "from", "to", "points"):
        assert f"--grid.lr.{name} " in shown
    assert "(default: 0.05 0.1 0.2 0.4)" in shown
    assert "(default: results/sweep)" in shown
