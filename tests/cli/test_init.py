"""``fedjax-sim init``: the study modules that it writes load, run and describe what was read."""

import csv
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from fedjax_sim.cli import run_options
from fedjax_sim.cli.errors import Failure
from fedjax_sim.cli.init import init
from fedjax_sim.cli.options import parse, read_arguments
from fedjax_sim.studies.setups import PRESETS, flat, load_study

SITES = ("Lima", "Oslo", "Rome")
SPECIES = ("setosa", "virginica")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_flowers(path: str, rows: int = 60) -> None:
    """Row numbers, a number, a text, the client and, in the middle, the label as text."""
    random = np.random.default_rng(0)
    with pathlib.Path(path).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "length", "species", "colour", "site"])
        for row in range(rows):
            kind = row // 3 % 2
            length = round(kind + 0.3 * random.normal(), 3)
            writer.writerow(
                [row, length, SPECIES[kind], ["red", "blue"][row // 6 % 2], SITES[row % 3]]
            )


def write_prices(path: str, rows: int = 60) -> None:
    """Numbers with decimal commas, and the label, prices with fractions, in the last column."""
    random = np.random.default_rng(0)
    lines = ["size;floor;rent"]
    for row in range(rows):
        size = round(30 + 100 * random.random(), 1)
        lines.append(f"{size};{row % 5};{round(12.7 * size + row % 5, 2)}".replace(".", ","))
    pathlib.Path(path).write_text("\n".join(lines) + "\n")


def write_images(path: str) -> None:
    random = np.random.default_rng(0)
    images = random.integers(0, 255, (60, 8, 8)).astype(np.uint8)
    np.savez(path, x=images, y=np.arange(60) % 4)


def test_a_preset_has_its_own_options():
    for preset, run in PRESETS.items():
        assert init([f"{preset}.py", preset]) == 0
        study = load_study(pathlib.Path(f"{preset}.py"))
        assert list(study.algorithms) == ["fedavg", "mine"]
        ours, theirs = flat(study.options), flat(run)
        assert ours.pop("output") == pathlib.Path(f"results/{preset}")
        assert ours.pop("algorithms") == ("fedavg", "mine")
        assert ours == {name: value for name, value in theirs.items() if name in ours}


def test_options_that_are_typed_replace_those_of_the_file():
    init(["study.py"])
    arguments = "study.py partition:iid --rounds 2 --seeds 1 --hyper.mine.mu 0.5".split()
    _, study, rest = read_arguments(arguments)
    kind = run_options.RunOptions
    given = parse(kind, "run", "", rest, kind(study.options)).run
    values = flat(given)
    assert (values["partition"], values["rounds"], values["seeds"]) == ("iid", 2, 1)
    assert values["hyper"] == {"mine": {"mu": 0.5}}
    assert values["cohort_size"] == PRESETS["quickstart"].cohort.cohort_size


def test_a_table_is_read_as_its_columns_say(capsys):
    write_flowers("data.csv")
    assert init(["study.py", "data.csv"]) == 0
    assert "fedjax-sim run study.py" in capsys.readouterr().out
    study = load_study(pathlib.Path("study.py"))
    dataset = study.dataset
    assert dataset is not None
    assert dataset.class_names == SPECIES
    assert sorted(dataset.group_names or ()) == sorted(SITES)
    # The length and the two colours; the row numbers are no features.
    assert dataset.train["x"].shape[1:] == (3,)
    assert dataset.scaling is not None
    np.testing.assert_allclose(dataset.train["x"][:, 0].mean(), 0, atol=1e-5)  # float32
    values = flat(study.options)
    assert (values["partition"], values["cohort_size"]) == ("natural", len(SITES))
    text = pathlib.Path("study.py").read_text()
    assert 'label_column="species",  # by its name' in text


def test_columns_that_are_named_come_first():
    write_flowers("data.csv")
    init(["study.py", "data.csv", "--label-column", "colour", "--drop", "species"])
    study = load_study(pathlib.Path("study.py"))
    assert study.dataset is not None
    assert study.dataset.class_names == ("blue", "red")
    assert study.dataset.train["x"].shape[1:] == (1,)


def test_numbers_are_targets_of_a_regression():
    write_prices("rents.csv")
    init(["study.py", "rents.csv", "--decimal", ","])
    study = load_study(pathlib.Path("study.py"))
    assert study.dataset is not None
    assert study.dataset.target == "numbers"
    assert flat(study.options)["partition"] == "iid"
    assert "is it the label?" in pathlib.Path("study.py").read_text()


def test_images_keep_their_bytes():
    write_images("images.npz")
    init(["study.py", "images.npz"])
    study = load_study(pathlib.Path("study.py"))
    assert study.dataset is not None
    assert study.dataset.train["x"].dtype == np.uint8
    assert study.dataset.num_classes == 4


def test_a_module_in_another_folder_finds_the_table(folder, monkeypatch):
    (folder / "data").mkdir()
    write_flowers("data/flowers.csv")
    init(["studies/flowers.py", "data/flowers.csv"])
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    assert load_study(folder / "studies" / "flowers.py").dataset is not None


def test_names_and_values_cannot_end_a_comment_or_a_text():
    name = 'a"""b\\.csv'
    with pathlib.Path(name).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(['x """\' \\', "y"])
        writer.writerows(
            [i * i % 7, "yes\nimport no_such_module" if i % 2 else "no"] for i in range(30)
        )
    init(["study.py", name])
    study = load_study(pathlib.Path("study.py"))
    assert study.dataset is not None
    assert study.dataset.num_classes == 2


def test_all_modules_pass_ruff(folder):
    write_flowers("flowers.csv")
    write_prices("rents.csv")
    write_images("images.npz")
    for name in PRESETS:
        init([f"{name}.py", name])
    for name, *more in (["flowers.csv"], ["images.npz"], ["rents.csv", "--decimal", ","]):
        init([f"{name[:-4]}.py", name, *more])
    for command in (["check", "--select", "E,F,I,B,UP,SIM,RUF,C4"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--isolated", "--no-cache", str(folder)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "FILE is ''; expected fedjax-sim init FILE.py [PRESET | TABLE]"),
        (["a.py", "b", "c"], "FILE is 'a.py b c'"),
        (["study.txt"], "FILE is 'study.txt'; expected a name that ends with .py"),
        (["old.py"], "FILE is 'old.py', which exists"),
        (["a.py", "quickstrat"], "PRESET is 'quickstrat'; expected quickstart.*did you mean"),
        (["a.py", "none.csv"], "none.csv does not exist"),
        (["a.py", "flowers.csv", "--label-column", "kind"], "--label-column is 'kind'"),
    ],
)
def test_refusals_write_nothing(folder, arguments, message):
    write_flowers("flowers.csv")
    (folder / "old.py").write_text("mine\n")
    with pytest.raises(Failure, match=message.replace("[", r"\[").replace("(", r"\(")) as error:
        init(arguments)
    assert error.value.code == 2
    assert (folder / "old.py").read_text() == "mine\n"
    assert [path.name for path in folder.glob("*.py")] == ["old.py"]


@pytest.mark.slow
@pytest.mark.parametrize("source", [*sorted(PRESETS.keys() - {"femnist"}), "flowers.csv"])
def test_a_module_runs_as_it_is(source, capsys):
    from fedjax_sim.cli.main import main

    write_flowers("flowers.csv")
    init(["study.py", source])
    short = ["--horizon", "300"] if source == "asynchronous" else ["--rounds", "2"]
    assert main(["run", "study.py", *short, "--seeds", "1"]) == 0
    assert "results: results/study" in capsys.readouterr().out
