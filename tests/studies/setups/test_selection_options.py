"""Selectors and local work as options, against the functions of the library."""

import json

import pytest

import fedjax_sim as fs
from fedjax_sim import selection
from fedjax_sim.cli.main import main
from fedjax_sim.studies.setups import build, fields
from fedjax_sim.studies.setups.presets import options
from fedjax_sim.studies.setups.problem import batches
from fedjax_sim.studies.setups.run import Run
from fedjax_sim.studies.setups.sampling import sized
from fedjax_sim.studies.setups.selection import NoSelection, selected
from fedjax_sim.studies.setups.study import Study

TIMELINE = fs.timelines.full(2, 3, num_steps=7)
EQUAL = [
    ({"selection": "power-of-choice"}, selection.power_of_choice(5)),
    (
        {"selection": "power-of-choice", "size": 3, "loss": "last"},
        selection.power_of_choice(3, "last"),
    ),
    ({"selection": "proportional", "size": 2}, selection.proportional(2)),
    (
        {"selection": "proportional", "score": "loss"},
        selection.proportional(5, selection.full_loss),
    ),
    ({"selection": "multinomial", "size": 4}, selection.multinomial(4)),
    ({"selection": "oort", "size": 4}, selection.oort(4)),
    (
        {"selection": "oort", "exploration": 0.5, "decay": 0.9, "least_exploration": 0.1},
        selection.oort(5, exploration=0.5, decay=0.9, least_exploration=0.1),
    ),
    ({"selection": "adacomm", "interval": 3}, selection.adacomm(7, 3)),
    ({"selection": "adacomm", "decay": 0.25}, selection.adacomm(7, 10, decay=0.25)),
]


def chosen(values):
    named = {n if n == "selection" else f"selection.{n}": value for n, value in values.items()}
    return options(**named).selection


@pytest.mark.parametrize(("values", "selector"), EQUAL, ids=str)
def test_selectors_are_the_functions_of_the_library(values, selector):
    plain = fs.fedavg(0.1)
    assert selected(plain, chosen(values), TIMELINE).spec == selection.select(plain, selector).spec


def test_every_kind_is_in_the_table():
    (field,) = (field for field in fields.fields_of(Run) if field.name == "selection")
    kinds = {fields.kind_of(kind) for kind in field.alternatives}
    assert kinds == {values["selection"] for values, _ in EQUAL} | {"none"}
    plain = fs.fedavg(0.1)
    assert selected(plain, NoSelection(), TIMELINE) is plain


def test_adaptive_steps_begin_with_one_number_for_the_partitions_of_all_seeds():
    run = options(
        model="softmax_regression", num_clients=8, partition="quantity", alpha=0.3, sampling="full",
        selection="adacomm", seeds=2, partition_per_seed=True, local_epochs=1, batch_size=16,
    )  # fmt: skip
    message = (
        "^selection is 'adacomm', and clients do at most 24, 62 local steps in the partitions of "
        r"seeds 0 \.\. 1; expected one number"
    )
    with pytest.raises(ValueError, match=message):
        build.resolve(Study(run))
    equal = fields.replaced(run, "local_steps", 4)
    build.check_steps(Study(equal), fs.datasets.load("digits"))


def test_fractions_of_clients_and_epochs():
    run = options(cohort_fraction=0.29, cohort_rounding="flower", epoch_fraction=0.5, batch_size=5)
    assert sized(run.cohort, 100).cohort_size == 28
    assert sized(options(cohort_size=7).cohort, 100).cohort_size == 7
    assert batches(run.algorithms) is fs.epochs(0.5, 5)
    assert batches(options(local_epochs=2, batch_size=5).algorithms) is fs.epochs(2, 5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"selection": "oort", "selection.size": 0}, "selection.size is 0"),
        ({"selection": "oort", "selection.decay": 2.0}, "selection.decay is 2.0"),
        (
            {"selection": "oort", "privacy": "gaussian", "privacy.noise": 1.0},
            "selection is 'oort'; expected none",
        ),
        ({"epoch_fraction": 0.5, "local_steps": 3}, "epoch_fraction is 0.5"),
        ({"epoch_fraction": 1.5}, "epoch_fraction is 1.5"),
        ({"cohort_rounding": "flower"}, "cohort_rounding is 'flower'"),
        ({"cohort_fraction": 0.0}, "cohort_fraction is 0.0"),
    ],
)
def test_refusals(values, message):
    with pytest.raises(ValueError, match=message):
        build.resolve(Study(options(**values)))


def test_a_clock_is_refused():
    with pytest.raises(ValueError, match="selection is 'oort'; expected none with time:clock"):
        build.resolve(Study(options("asynchronous", selection="oort")))


@pytest.mark.slow
def test_command_line(tmp_path):
    arguments = "--rounds 2 --seeds 1 --algorithms fedavg --model softmax_regression".split()
    chosen = "--cohort-fraction 0.08 selection:multinomial --selection.size 3".split()
    main(["run", "quickstart", *arguments, *chosen, "--output", str(tmp_path)])
    rows = (tmp_path / "fedavg" / "history.csv").read_text()
    assert "local_steps" in rows
    run = options(selection="multinomial", **{"selection.size": 3, "cohort_fraction": 0.08})
    config = json.loads((tmp_path / "config.json").read_text())["config"]
    assert config["selection"] == {"size": run.selection.size, "kind": "multinomial"}
    assert config["cohort"]["cohort_fraction"] == run.cohort.cohort_fraction
