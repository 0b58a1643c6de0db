"""Options typed over the defaults of a preset, a file or a study module."""

import json
import math
import pathlib
import typing

import pytest

from fedjax_sim.cli import grid
from fedjax_sim.cli.main import main
from fedjax_sim.cli.options import parse, read_arguments
from fedjax_sim.cli.run_options import RunOptions
from fedjax_sim.studies.setups import (
    Range,
    Run,
    algorithms_of,
    build,
    fields,
    flat,
    having,
    names_of,
    options,
    replaced,
    resolve_hyper,
    to_json,
)
from fedjax_sim.studies.setups.privacy import Parts

RUN = options(
    algorithms=("fedavg", "fedprox", "fedadam"),
    lr=0.3,
    hyper={"fedprox": {"mu": 1.0, "lr": 0.4}},
)


def hyper_parameters(run: Run) -> dict:
    return resolve_hyper(algorithms_of(run.algorithms.algorithms), run.algorithms)


def parsed(*arguments: str) -> Run:
    """The options of a run, without running it."""
    source, study, rest = read_arguments(arguments)
    return parse(RunOptions, f"run {source}", "", rest, RunOptions(study.options)).run


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> str:
    """The config.json of a comparison."""
    path = tmp_path_factory.mktemp("written") / "config.json"
    path.write_text(json.dumps({"config": to_json(RUN), "algorithms": hyper_parameters(RUN)}))
    return str(path)


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("--algorithms fedprox", {"fedprox": {"lr": 0.4, "mu": 1.0}}),
        ("--algorithms fedavg fedsgd", {"fedavg": {"lr": 0.3}, "fedsgd": {"lr": 0.3}}),
        ("--algorithms fedsgd --hyper.fedsgd.lr 0.1", {"fedsgd": {"lr": 0.1}}),
        ("--algorithms fedprox --lr 0.3", {"fedprox": {"lr": 0.3, "mu": 1.0}}),
        ("--algorithms fedprox --lr=0.3", {"fedprox": {"lr": 0.3, "mu": 1.0}}),
        (
            "--algorithms fedavg fedprox --hyper.fedprox.mu 2",
            {"fedavg": {"lr": 0.3}, "fedprox": {"lr": 0.4, "mu": 2.0}},
        ),
        (
            "--algorithms fedprox fedadam --lr 0.7 --hyper.fedadam.lr 0.6",
            {"fedprox": {"lr": 0.7, "mu": 1.0}, "fedadam": {"lr": 0.6, "server_lr": 0.03}},
        ),
    ],
)
def test_typed_options_replace_those_of_a_file_one_by_one(file, typed, expected):
    assert hyper_parameters(parsed(file, *typed.split())) == expected


def test_a_sweep_keeps_the_hyper_parameters_of_the_algorithms_that_run(file):
    typed = f"{file} --algorithms fedprox --grid.mu.values 1 2".split()
    _, _, study, _ = grid.SWEEP.read(typed, "")
    assert hyper_parameters(study.options) == {"fedprox": {"lr": 0.4, "mu": 1.0}}


def test_without_typed_options_a_file_gives_its_own(file):
    assert hyper_parameters(parsed(file)) == hyper_parameters(RUN)
    assert replaced(parsed(file), "hyper", flat(RUN)["hyper"]) == RUN


@pytest.mark.parametrize("command", ["run", "sweep", "measure", "clients", "advise"])
def test_typed_hyper_parameters_of_an_algorithm_that_does_not_run_are_refused(
    file, command, capsys
):
    typed = "--algorithms fedavg --hyper.fedprox.mu 2".split()
    if command == "sweep":
        typed += ["--grid.lr.values", "0.1"]
    assert main([command, file, *typed]) == 2
    expected = "--hyper.fedprox.mu is given; expected a hyper-parameter of fedavg\n"
    assert capsys.readouterr().err == f"fedjax-sim: error: {expected}"


def test_integers_names_and_flags_keep_their_type():
    typed = (
        "--algorithms scaffold fedmid fedavg_ft --hyper.scaffold.option I --hyper.fedavg-ft.lr 1 "
        "--hyper.fedmid.local-prox --hyper.fedmid.no-project-start --hyper.fedavg_ft.visits 3"
    )
    run = parsed(*typed.split())
    expected = {
        "scaffold": {"option": "I"},
        "fedmid": {"local_prox": True, "project_start": False},
        "fedavg_ft": {"lr": 1.0, "visits": 3},
    }
    assert run.algorithms.hyper == expected


@pytest.mark.parametrize(
    "words",
    [
        "attack:alie --attack.z 1.5 partition:shards --classes-per-client 3 --rounds 4",
        "partition:shards attack:alie --attack.z 1.5 --rounds 4 --classes-per-client 3",
        "--rounds 4 --classes-per-client 3 --attack.z 1.5 attack:alie partition:shards",
        "quickstart --attack.z=1.5 attack:alie --classes_per_client=3 partition:shards --rounds=4",
    ],
)
def test_words_and_flags_come_in_any_order(words):
    """A word of a choice may follow its flags, and a nested one its choice."""
    values = {"rounds": 4, "classes_per_client": 3, "attack.z": 1.5}
    assert parsed(*words.split()) == options(partition="shards", attack="alie", **values)


def test_of_an_option_that_is_typed_twice_the_last_one_counts():
    words = "--seeds 3 --rounds 6 --alpha 1 --seeds=2 attack:alie --rounds 4 --attack.z -1"
    assert parsed(*words.split()) == options(
        seeds=2, rounds=4, alpha=1.0, attack="alie", **{"attack.z": -1.0}
    )


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("compress:top_k", {"compress": "top_k"}),
        ("compress:top-k --compress.keep 0.02", {"compress": "top_k", "compress.keep": 0.02}),
        ("robust.rule:krum robust:nnm", {"robust": "nnm", "robust.rule": "krum"}),
        (
            "law:log-normal time:clock --horizon 9",
            {"time": "clock", "law": "log-normal", "horizon": 9.0},
        ),
        ("--alpha inf", {"alpha": math.inf}),
        (
            "privacy:gaussian privacy.clip:parts --privacy.clip.bounds 0 0.5 1 2",
            {"privacy": "gaussian", "privacy.clip": Parts({"0": 0.5, "1": 2.0})},
        ),
        ("--partition-per-seed", {"partition_per_seed": True}),
        ("data:named", {}),
    ],
)
def test_choices(words, values):
    assert parsed(*words.split()) == options(**values)


def test_flags_of_the_default_of_a_choice_need_no_word():
    assert parsed("asynchronous", "--horizon", "70") == options("asynchronous", horizon=70.0)


@pytest.mark.parametrize(
    ("words", "noise", "epsilon"),
    [
        ("", 0.7, None),
        ("--privacy.epsilon 3", None, 3.0),
        ("--privacy.noise 2", 2.0, None),
        ("privacy:gaussian --privacy.epsilon 3", None, 3.0),
    ],
)
def test_a_typed_option_replaces_the_one_that_excludes_it(tmp_path, words, noise, epsilon):
    path, hyper = tmp_path / "config.json", {"fedavg": {"lr": 0.1}}
    run = options(algorithms=("fedavg",), privacy="gaussian", **{"privacy.noise": 0.7})
    saved = {"config": to_json(run), "algorithms": hyper, "privacy": to_json(run.privacy)}
    path.write_text(json.dumps(saved))
    values = flat(parsed(str(path), *words.split()))
    assert (values["privacy.noise"], values["privacy.epsilon"]) == (noise, epsilon)


def test_typed_epochs_replace_the_steps_of_a_preset():
    own = parsed("asynchronous", "--local-epochs", "2").algorithms
    assert (own.local_steps, own.local_epochs) == (None, 2)


@pytest.mark.parametrize("other", ["--local-steps 5", "--epoch-fraction 0.5"])
def test_typed_epochs_that_have_no_effect_are_refused(other):
    message = f"^local_epochs is 2; expected none with {other.split()[0]}$"
    with pytest.raises(ValueError, match=message):
        parsed("quickstart", "--local-epochs", "2", *other.split())
    none = (other.split()[0], "None")
    assert parsed("quickstart", "--local-epochs", "2", *none).algorithms.local_epochs == 2


# --- Ranges -----------------------------------------------------------------------------------

OUTSIDE = (-1, 0, 0.5, 1, 2**32, math.nan, math.inf, "text")


def chosen(kind: type, name: str, run: Run) -> Run:
    """The run with the choices that have a name, nested ones after their own."""
    if name in flat(run):
        return run
    choice, _, word = next(having(kind, name)).partition(":")
    run = chosen(kind, choice, run)
    required = {
        "table": {"table": "a.csv"},
        "text": {"text": pathlib.Path("a.txt")},
        "trace": {"file": "a.csv"},
        "parts": {"bounds": {"0": 1.0}},
    }
    if word in required:
        groups = names_of(kind)[choice].alternatives
        (group,) = [group for group in groups if fields.kind_of(group) == word]
        return replaced(run, choice, group(**required[word]))
    return replaced(run, choice, word)


RANGES = {
    name: mark
    for name, field in names_of(Run).items()
    for entry in [field, *([fields._entry(field)] if typing.get_args(field.hint) else [])]
    for mark in entry.marks
    if isinstance(mark, Range)
}


def test_the_table_of_ranges_has_every_group():
    """A new field with a range is among them without a change here."""
    some = {
        "rounds",
        "attack.z",
        "law.log_sigma",
        "compress.keep",
        "robust.f",
        "privacy.clip.bound",
    }
    assert some < RANGES.keys()
    assert len(RANGES) > 70


@pytest.mark.parametrize("name", RANGES)
def test_every_range_is_checked_before_data_are_loaded(name, monkeypatch):
    monkeypatch.setattr(build, "load_dataset", lambda *_: pytest.fail("loads data"))
    run, mark = chosen(Run, name, Run()), RANGES[name]
    outside = [value for value in OUTSIDE if not fields._holds(mark, value)]
    assert outside
    field = names_of(Run)[name]
    for value in outside:
        held = {"a": value} if typing.get_origin(field.hint) is dict else value
        with pytest.raises(ValueError, match=rf"^{name}(\.a)? is .*; expected "):
            fields.check(replaced(run, name, held))
