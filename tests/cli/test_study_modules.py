"""Study modules: an own algorithm, model, data set, loss, metrics, clients, timeline or setup."""

import json
import pathlib
import re
import shutil
import sys

import jax
import numpy as np
import pandas as pd
import pytest

import fedjax_sim as fs
from fedjax_sim import datasets
from fedjax_sim.cli.main import main
from fedjax_sim.cli.options import parse, read_arguments
from fedjax_sim.reports import read_folders
from fedjax_sim.reports.page.sections import joint
from fedjax_sim.reports.page.sources import source_of
from fedjax_sim.runs import comparison as comparing
from fedjax_sim.runs import digest, read_runs
from fedjax_sim.studies.setups import Run, members_of, resolve

MODULE = '''
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen

import fedjax_sim as fs
from fedjax_sim import datasets

SCALE = 1.0
FACTOR = 3.0


class State(NamedTuple):
    params: Any


def nova(lr, mu: float = 0.0, *, server_lr=1.0, option: str = "I"):
    """FedNova: progress per local step. Wang et al., 2020."""

    def local(start, state, oracle, work):
        def step(k, x):
            grad = oracle.grad(x, k)
            new = jax.tree.map(lambda x, g, s: x - lr * (g + mu * (x - s)), x, grad, start)
            return jax.tree.map(lambda n, o: jnp.where(k < work.num_steps, n, o), new, x)

        end = jax.lax.fori_loop(0, work.max_steps, step, start)
        steps = jnp.maximum(work.num_steps, 1).astype(jnp.float32)
        return jax.tree.map(lambda e, s: (e - s) / steps, end, start), state

    def update(server, mean, round):
        return State(jax.tree.map(lambda x, d: x + FACTOR * server_lr * d, server.params, mean))

    return fs.FedAlgorithm(init=State, local=local, update=update)


class Net(linen.Module):
    @linen.compact
    def __call__(self, x):
        x = linen.relu(linen.Dense(8)(x.reshape(len(x), -1)))
        return linen.Dense(3)(x)


def load():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 300)
    x = rng.normal(size=(300, 1, 4, 4)) + y[:, None, None, None]
    return datasets.from_arrays(x, np.array(["cat", "dog", "eel"])[y])


def loss(outputs, y):
    return -SCALE * jnp.take_along_axis(jax.nn.log_softmax(outputs), y[:, None], 1)[:, 0]


def metrics(outputs, y):
    return {"margin": jax.lax.top_k(outputs, 2)[0] @ jnp.array([1.0, -1.0])}


def rows(dataset, seed):
    return np.array_split(np.random.default_rng(seed).permutation(len(dataset.train["y"])), 12)


def timeline(key, task):
    return fs.timelines.uniform(key, 4, task.num_clients, 3, task.num_steps)


def study():
    options = fs.presets.options(
        "quickstart", rounds=4, seeds=2, local_steps=3, cohort_size=3, eval_every=4,
        validation=0.2, validation_of="pool",
    )
    own = {"fedavg": fs.fedavg, "nova": nova, "fixed": fs.fedprox(0.1, mu=1.0)}
    return fs.Study(
        options, own, load(), Net(), loss, metrics, rows=rows, timeline=timeline
    )
'''


@pytest.fixture(scope="module")
def module(tmp_path_factory) -> pathlib.Path:
    """A file with all own parts but a setup."""
    path = tmp_path_factory.mktemp("own") / "own_study.py"
    path.write_text(MODULE)
    return path


@pytest.fixture(autouse=True)
def unchanged_path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


@pytest.fixture(scope="module")
def finished(module, tmp_path_factory) -> pathlib.Path:
    """The results of the module; not to be changed."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    arguments = ["run", str(module), "--hyper.nova.mu", "1", "--output", str(folder)]
    assert main(arguments) == 0
    return folder


@pytest.mark.slow
def test_own_parts_beside_a_built_in_algorithm(module, finished, capsys):
    frame = pd.read_csv(finished / "history.csv")
    assert set(frame["algorithm"]) == {"fedavg", "nova", "fixed"}
    assert {"valid/accuracy", "valid/margin", "test/margin"} <= set(frame["metric"])
    saved = json.loads((finished / "config.json").read_text())
    assert saved["algorithms"]["nova"] == {"lr": 0.2, "mu": 1.0}
    assert saved["algorithms"]["fixed"] == {}
    assert saved["data"]["class_names"] == ["cat", "dog", "eel"]
    assert saved["data"]["valid_examples"] == 48  # a fifth of 240
    own = ["algorithms", "dataset", "model", "loss", "metrics", "rows", "timeline"]
    assert saved["own"] == own
    assert "own_study" not in (finished / "config.json").read_text()

    before = (finished / "history.csv").read_bytes()
    command = ["run", str(module), "--hyper.nova.mu", "1", "--output", str(finished)]
    assert main(command) == 0  # finished before
    assert "finished before" in capsys.readouterr().out
    assert (finished / "history.csv").read_bytes() == before


@pytest.mark.slow
def test_results_do_not_show_options_that_own_parts_replaced(finished, tmp_path):
    """Captions, tables and reports named the data set, partition and rounds of the preset."""
    settings = json.loads((finished / "config.json").read_text())["settings"]
    replaced = {"dataset", "partition", "num_clients", "sampling", "cohort_size", "rounds", "model"}
    assert replaced.isdisjoint(settings)
    assert settings["own"][1:] == ["dataset", "model", "loss", "metrics", "rows", "timeline"]
    table = tmp_path / "table.md"
    assert main(["table", str(finished), "--output", str(table)]) == 0
    setting = "own data: own partition, 0.2 of the pool for validation, own timeline, 3 local steps"
    assert setting in table.read_text()
    assert " of 100." not in table.read_text()  # the rounds of the preset
    page = tmp_path / "report.html"
    assert main(["report", str(finished), "--output", str(page)]) == 0
    assert "this command repeats" not in page.read_text()  # a file names no code
    assert "the same command with the module repeats them" in page.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "differing"),
    [
        ("FACTOR = 3.0", "FACTOR = 2.0", "what the algorithm computes has changed"),
        ("0.1, mu=1.0", "0.1, mu=2.0", "it is fedprox(lr=0.1, mu=1.0, server=None) there, and"),
        ("linen.relu", "linen.gelu", "what the objective and the evaluation compute has changed"),
        ("SCALE = 1.0", "SCALE = 2.0", "what the objective and the evaluation compute has changed"),
        ("[1.0, -1.0]", "[2.0, -2.0]", "what the evaluation computes has changed"),
        ("default_rng(0)", "default_rng(1)", "data"),
        ("default_rng(seed)", "default_rng(seed + 1)", "data"),
        ("uniform(key,", "uniform(jax.random.fold_in(key, 1),", "timeline"),
    ],
)
def test_a_changed_part_is_noticed_when_the_run_is_resumed(
    finished, tmp_path, capsys, old, new, differing
):
    assert old in MODULE
    folder, path = shutil.copytree(finished, tmp_path / "copied"), tmp_path / "own_study.py"
    path.write_text(MODULE.replace(old, new))
    before = {file: file.read_bytes() for file in folder.rglob("*.csv")}
    assert main(["run", str(path), "--hyper.nova.mu", "1", "--output", str(folder)]) == 1
    assert re.search(f"holds another run: .*{re.escape(differing)}", one_line(capsys))
    assert {file: file.read_bytes() for file in folder.rglob("*.csv")} == before
    # What the file says of the runs that are there remains.
    kept, saved = (
        {name: members_of(x / "config.json")[name] for name in ("examples", "data", *OWN_DIGESTS)}
        for x in (finished, folder)
    )
    assert saved == kept


OWN_DIGESTS = ("own_arrays", "own_functions")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "differing"),
    [
        ("linen.relu", "linen.gelu", "objective, evaluation"),
        ("SCALE = 1.0", "SCALE = 2.0", "objective"),
        ("[1.0, -1.0]", "[2.0, -2.0]", "evaluation"),
        ("default_rng(0)", "default_rng(1)", "data"),
        ("default_rng(seed)", "default_rng(seed + 1)", "data, rows"),
        ("uniform(key,", "uniform(jax.random.fold_in(key, 1),", "timeline"),
    ],
)
def test_an_algorithm_is_not_added_on_a_changed_part(
    finished, tmp_path, capsys, old, new, differing
):
    folder, path = shutil.copytree(finished, tmp_path / "copied"), tmp_path / "own_study.py"
    path.write_text(MODULE.replace(old, new))
    command = ["run", str(path), "--algorithms", "fedavgm", "--output", str(folder)]
    assert main(command) == 2
    error = rf"which holds another comparison: {differing} of \w+ differ"
    assert re.search(error, one_line(capsys))
    assert not (folder / "fedavgm").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "is_same"),
    [
        ("default_rng(seed)", "default_rng(seed + 1)", False),  # rows
        ("uniform(key,", "uniform(jax.random.fold_in(key, 1),", False),  # timeline
        ("[1.0, -1.0]", "[2.0, -2.0]", True),  # metrics
    ],
)
def test_folders_with_other_clients_or_cohorts_are_not_of_one_setting(
    finished, tmp_path, old, new, is_same
):
    path, other = tmp_path / "own_study.py", tmp_path / "other"
    path.write_text(MODULE.replace(old, new))
    assert main(["run", str(path), "--algorithms", "fedavg", "--output", str(other)]) == 0
    settings = read_folders([finished, other]).settings
    assert (len(set(settings.values())) == 1) is is_same
    page = joint([source_of(finished), source_of(other)])
    assert (len(set(page.settings.values())) == 1) is is_same


@pytest.mark.slow
def test_a_grid_is_not_added_on_a_changed_loss(tmp_path, capsys):
    """Runs of another algorithm are no runs of the grid, so their functions are not compared."""
    path, output = tmp_path / "own_study.py", tmp_path / "out"

    def swept(algorithm, module):
        path.write_text(module)
        words = ["--algorithms", algorithm, "--seeds", "1", "--grid.lr.values", "0.1"]
        return main(["sweep", str(path), *words, "--output", str(output)])

    assert swept("fedavg", MODULE) == 0
    capsys.readouterr()
    assert swept("fedprox", MODULE.replace("SCALE = 1.0", "SCALE = 2.0")) != 0
    assert "holds another sweep: the objective of the study module has changed" in one_line(capsys)
    assert len(read_runs(output)) == 1
    assert swept("fedprox", MODULE) == 0
    assert len(read_runs(output)) == 2


def one_line(capsys) -> str:
    """Returns the error, which is one line."""
    error = capsys.readouterr().err
    assert error.startswith("fedjax-sim: error: ")
    assert error.count("\n") == 1
    return error


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["run", "run --dry-run", "sweep", "clients", "advise", "measure"]
)
def test_the_file_of_a_study_module_names_no_code(finished, capsys, command):
    path = finished / "config.json"
    name, *flags = command.split()
    assert main([name, str(path), *flags]) == 2
    expected = (
        f"{path} has algorithms, dataset, model, loss, metrics, rows, timeline of a study module, "
        "and a file names no code; expected the study module in place of the file"
    )
    assert expected in one_line(capsys)


@pytest.mark.slow
def test_a_folder_of_a_study_module_runs_nothing(finished, tmp_path, capsys):
    fork = ["fork", str(finished), "--round", "2", "--algorithm", "nova"]
    assert main([*fork, "--alternatives.slow.hyper.lr", "0.1"]) == 2
    assert "of a study module, and a file names no code; expected fs.fork(" in one_line(capsys)
    assert main(["table", str(finished)]) == 0
    assert main(["plot", str(finished), "--output", str(tmp_path / "figure.png")]) == 0
    export = ["export", str(finished), "--algorithm", "nova", "--output", str(tmp_path / "a.npz")]
    assert main(export) == 0
    # The same options without the module are another comparison.
    capsys.readouterr()
    assert main(["run", "quickstart", "--output", str(finished), "--seeds", "2"]) == 2
    assert "the parts of a study module are algorithms, dataset, model" in one_line(capsys)


@pytest.mark.slow
def test_a_model_of_a_study_module_is_an_argument(finished):
    """The accuracy that was recorded is that of the loaded model."""
    saved, own = fs.load(finished), load_module()
    with pytest.raises(ValueError, match=r"a file names no code; expected fs.load\(folder, model="):
        saved.predict(np.ones((4, 1, 4, 4), np.float32), "nova")
    x = own.load().test["x"]
    model = fs.models.from_linen(own.Net(), jax.ShapeDtypeStruct((1, *x.shape[1:]), np.float32))
    labels = fs.load(finished, model=model).classify(x, "nova", seed=1)
    right = np.array(["cat", "dog", "eel"])[own.load().test["y"]]
    frame = saved.to_frame().query("algorithm == 'nova' and seed == 1 and round == 4")
    recorded = frame.loc[frame["metric"] == "test/accuracy", "value"].item()
    assert (labels == right).mean() == pytest.approx(recorded, abs=1e-6)  # a float32 mean


def load_module():
    """The module of the finished run, which load_study keeps by its name."""
    return sys.modules["own_study.py"]


@pytest.mark.slow
def test_other_algorithms_and_hyper_parameters_are_typed(module, tmp_path):
    """Names and flags keep their type; an algorithm of the library needs no own one."""
    folder = tmp_path / "run"
    typed = "--algorithms nova fedsgd --hyper.nova.option II --hyper.nova.server-lr 0.5 --lr 0.1"
    assert main(["run", str(module), *typed.split(), "--output", str(folder)]) == 0
    saved = json.loads((folder / "config.json").read_text())
    nova = {"lr": 0.1, "option": "II", "server_lr": 0.5}
    assert saved["algorithms"] == {"nova": nova, "fedsgd": {"lr": 0.1}}
    assert saved["own"][0] == "algorithms"


SMALL = """
import jax
import jax.numpy as jnp
import numpy as np
import fedjax_sim as fs
from fedjax_sim import datasets
from flax import linen, nnx

OPTIONS = fs.presets.options(
    "quickstart", rounds=2, seeds=2, local_steps=1, num_clients=4, cohort_size=2, eval_every=2,
    algorithms=NAMES, model="softmax_regression",
)

class Nnx(nnx.Module):
    def __init__(self, *, rngs):
        self.layer = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x):
        return self.layer(x.reshape(len(x), -1))

class Scalar(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(1)(x.reshape(len(x), -1))[:, 0]

class Broken(linen.Module):
    @linen.compact
    def __call__(self, x):
        return x @ jnp.ones((3, 3))

def made(x, y):
    part = {"x": np.asarray(x), "y": np.asarray(y)}
    return datasets.Dataset("mine", part, part, 3, None, None, None, "made")

def no_luck(*arguments):
    raise RuntimeError("no luck")

def needs_other(lr, other: fs.FedAlgorithm): ...

def study():
    return fs.Study(OPTIONS, PARTS)
"""


def small_study(folder: pathlib.Path, parts: str) -> pathlib.Path:
    path = folder / "small_study.py"
    names = '("mine",)' if '"mine"' in parts else '("fedavg",)'
    path.write_text(SMALL.replace("PARTS", parts).replace("NAMES", names))
    return path


@pytest.mark.slow
def test_a_timeline_and_rows_as_objects_and_a_model_of_nnx(tmp_path):
    """All seeds have the same cohorts, and different minibatches."""
    parts = (
        "model=fs.models.from_nnx(lambda rngs: Nnx(rngs=rngs)), "
        "rows=[np.arange(0, 700), np.arange(700, 1438)], timeline=fs.timelines.full(2, 2, 1)"
    )
    folder = tmp_path / "run"
    assert main(["run", str(small_study(tmp_path, parts)), "--output", str(folder)]) == 0
    saved = json.loads((folder / "config.json").read_text())
    assert saved["partition"]["num_clients"] == 2
    assert saved["model"]["parameters"] == 650
    frame = pd.read_csv(folder / "history.csv").query("round == 2")
    steps = frame.loc[frame["metric"] == "local_steps", "value"]
    assert steps.tolist() == [4, 4]  # 2 rounds x 2 clients x 1 step, both seeds
    assert frame.loc[frame["metric"] == "test/loss", "value"].nunique() == 2


@pytest.mark.slow
def test_a_setup_per_seed(tmp_path, capsys):
    """Seed s has the split of seed s; its values are those of Python."""
    parts = "setup=lambda seed: fs.presets.quickstart(seed=seed, partition_seed=seed, seeds=None, "
    options = "rounds=2, num_clients=4, cohort_size=2, local_steps=1, model='softmax_regression')"
    folder = tmp_path / "run"
    path = small_study(tmp_path, parts + options)
    assert main(["run", str(path), "--output", str(folder)]) == 0
    frame = pd.read_csv(folder / "history.csv").query("round == 2")
    losses = frame.loc[frame["metric"] == "test/loss"].set_index("seed")["value"]
    setup = fs.presets.quickstart(
        seed=1, partition_seed=1, seeds=None, rounds=2, num_clients=4, cohort_size=2,
        local_steps=1, model="softmax_regression",
    )  # fmt: skip
    result = fs.simulate(fs.fedavg(0.2), setup, fs.presets.keys(2)[1])
    expected = result.history.metrics["test/loss"][-1]
    np.testing.assert_allclose(losses[1], expected, rtol=1e-5)  # another program
    assert losses[0] != losses[1]

    before = (folder / "history.csv").read_bytes()
    path.write_text(path.read_text().replace("partition_seed=seed", "partition_seed=seed + 1"))
    assert main(["run", str(path), "--output", str(folder)]) != 0
    assert "holds another run: data differ" in capsys.readouterr().err
    assert (folder / "history.csv").read_bytes() == before


ERROR = """
import jax
import numpy as np

import fedjax_sim as fs


def make(seed):
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    data = fs.FederatedData({"x": x, "y": x.sum(1)}, np.arange(0, 41, 5))
    loss = lambda w, batch, key: (batch["x"] @ w - batch["y"]) ** 2
    task = fs.empirical_task(loss, data, fs.epochs(1, 5))
    timeline = fs.timelines.uniform(jax.random.key(seed), 2, 8, 4, task.num_steps)
    error = lambda w: {"distance": abs(w - 1).max()}
    return fs.Setup(task, timeline, np.zeros(3, np.float32), error)


def study():
    return fs.Study(fs.presets.options(seeds=1, algorithms=("fedavg",)), setup=make)
"""


def test_a_setup_without_an_accuracy_has_tables_and_a_summary(tmp_path, capsys):
    path, folder = tmp_path / "own.py", tmp_path / "run"
    path.write_text(ERROR)
    assert main(["run", str(path), "--output", str(folder)]) == 0
    assert "distance" in capsys.readouterr().out
    row = json.loads((folder / "summary.json").read_text())["algorithms"]["fedavg"]
    values = pd.read_csv(folder / "history.csv").query("metric == 'distance' and round == 2")
    assert row["distance_mean"] == values["value"].item() < 1
    assert row["rounds_to_target"] is None
    assert (folder / "curves.png").exists()


@pytest.mark.parametrize(
    ("typed", "code", "ended"),
    [
        ("", 0, "finished"),
        ("--time-limit 1e-9", 130, "interrupted"),
        ("--lr 1e30 --on-divergence raise", 1, "failed"),
    ],
)
def test_logs_are_closed_and_say_how_the_run_ended(tmp_path, monkeypatch, typed, code, ended):
    """Before, runs of MLflow were running for ever."""
    heard = []
    monkeypatch.setattr(fs.callbacks, "MLflow", lambda experiment: Log(heard))
    path = tmp_path / "own.py"
    path.write_text(ERROR)
    words = f"--output {tmp_path / 'run'} --log-mlflow mine {typed}".split()
    with jax.debug_nans(False):
        assert main(["run", str(path), *words]) == code
    assert heard[-1] == ended


class Log:
    def __init__(self, heard):
        self._heard = heard

    def __call__(self, event):
        self._heard.append(event.round)

    def close(self, ended):
        self._heard.append(ended)


OWN = 'algorithms={"mine": %s}'
DATA = "dataset=made(%s)"

WRONG = [
    (OWN % "3", "--algorithms has 'mine', which is int; expected a fedjax_sim.FedAlgorithm, or a"),
    (
        OWN % "lambda lr: {}",
        "--algorithms has 'mine', which returned dict; expected a fedjax_sim.F",
    ),
    (
        OWN % "needs_other",
        "'mine', whose parameter 'other' has no default; expected a number, name",
    ),
    (OWN % "no_luck", "'mine', which raised RuntimeError: no luck (small_study.py, line 36)"),
    (
        OWN % "lambda lr: fs.fedprox(lr, mu=-1.0)",
        "'mine', which raised ValueError: mu is -1.0; exp",
    ),
    ("algorithms=[fs.fedavg]", "algorithms of the study is list; expected a dictionary of algor"),
    ("model=Nnx(rngs=nnx.Rngs(0))", "model of the study is Nnx; expected a fedjax_sim.models.Mode"),
    (
        "model=Scalar()",
        "model of the study returned outputs of shape (3,) for 3 examples; expected",
    ),
    (
        "model=Broken()",
        "module fails for an example_input . float32[1, 8, 8, 1] (TypeError: dot_general requires",
    ),
    ("dataset='digits'", "dataset of the study is str; expected a fedjax_sim.datasets.Dataset"),
    (
        DATA % "np.zeros((3, 2)), [1, 2, 3]",
        "not usable: mine: train labels are in 1 .. 3; expected",
    ),
    (DATA % "np.zeros((3, 2)), ['a', 'b', 'c']", "mine: train labels are <U1[3]; expected integer"),
    (
        DATA % "np.full((3, 2), np.nan), [0, 1, 2]",
        "mine: train examples have NaN or infinity at [0",
    ),
    (
        "loss=lambda outputs, y: outputs.mean()",
        "loss returned shape () for outputs (3, 10) and y (",
    ),
    ("loss='squared'", "loss of the study is str; expected a function of outputs and labels"),
    (
        "loss=no_luck",
        "model, loss or metrics of the study raised RuntimeError: no luck (small_study",
    ),
    ("metrics=lambda outputs, y: outputs[:, 0]", "metrics returned "),
    ("metrics=lambda outputs, y: {'a': 'b'}", "metrics 'a' returned "),
    (
        "rows=lambda dataset, seed: [np.array([0.5])]",
        "rows of the study has float64[1] for client 0",
    ),
    (
        "rows=lambda dataset, seed: [np.array([10**6])]",
        "assignment has rows 1000000 .. 1000000; ex",
    ),
    (
        "rows=lambda dataset, seed: None",
        "rows of the study is NoneType; expected a list of row num",
    ),
    ("rows=no_luck", "rows of the study raised RuntimeError: no luck (small_study.py, line 36)"),
    (
        "rows=3",
        "rows of the study is int; expected a list of row numbers per client, or a function",
    ),
    (
        "timeline=lambda key, task: None",
        "timeline of the study is NoneType; expected a fedjax_sim.T",
    ),
    ("timeline=3", "timeline of the study is int; expected a fedjax_sim.Timeline, or a function"),
    (
        "timeline=no_luck",
        "timeline of the study raised RuntimeError: no luck (small_study.py, line",
    ),
    ("timeline=fs.timelines.full(2, 9, 1)", "clients"),
    (
        "setup=lambda seed: None",
        "setup of the study returned NoneType; expected a fedjax_sim.Setup",
    ),
    ("setup=lambda seed: fs.presets.quickstart(rounds=2)", "setup of the study returned "),
    ("setup=no_luck", "setup of the study raised RuntimeError: no luck (small_study.py, line 36)"),
]
FILES = {
    "no_study.py": (
        "x = 1",
        "MODULE is 'no_study.py', which has no function study(); expected one",
    ),
    "other.py": (
        "def study():\n    return 3",
        "whose study() returned int; expected a fedjax_sim.S",
    ),
    "syntax.py": ("def study(:", "which raised SyntaxError: invalid syntax (syntax.py, line 1)\n"),
    "imports.py": (
        "import nowhere_at_all",
        "which raised ModuleNotFoundError: No module named 'now",
    ),
    "option.py": (
        "import fedjax_sim as fs\ndef study():\n    return fs.Study(fs.presets.options(roundz=3))",
        "whose study() raised ValueError: roundz is no option; did you mean rounds? (option.py, l",
    ),
    "preset.py": (
        "import fedjax_sim as fs\ndef study():\n    return fs.Study(fs.presets.quickstart)",
        "ValueError: options of the study is function; expected those of fs.presets.options(...)",
    ),
}


@pytest.fixture
def compiled(monkeypatch):
    """Names of the functions that a test compiles; no run begins."""
    events = []
    monkeypatch.setattr(comparing, "execute", lambda *_: pytest.fail("reached the simulation"))

    def listen(event, duration, **options):
        if "backend_compile" in event:
            events.append(options.get("fun_name"))

    fs.datasets.load("digits")  # imports scikit-learn
    jax.monitoring.register_event_duration_secs_listener(listen)
    yield events
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.parametrize(("parts", "message"), WRONG, ids=[part for part, _ in WRONG])
def test_a_wrong_part_is_one_line(tmp_path, capsys, compiled, parts, message):
    output = tmp_path / "run"
    assert main(["run", str(small_study(tmp_path, parts)), "--output", str(output)]) == 2
    assert message in one_line(capsys)
    assert not output.exists()
    own = parts.startswith(("timeline", "setup", "model=Nnx"))  # they compile their own programs
    assert own or compiled == []


TIMELINE = "timeline=fs.timelines.full(2, 4, 1)"
TYPED = [
    (TIMELINE, "--rounds 5", "--rounds is 5; expected none, since small_study.py has its own time"),
    (TIMELINE, "sampling:full", "sampling is 'full'; expected none, since small_study.py has its"),
    (TIMELINE, "--cohort-size 2", "--cohort-size is 2; expected none, since small_study.py has it"),
    ("model=Scalar()", "--model mlp", "--model is 'mlp'; expected none, since small_study.py has"),
    ("rows=[np.arange(9)]", "--num-clients 3", "--num-clients is 3; expected none, since small_"),
    ("rows=[np.arange(9)]", "--alpha 1", "--alpha is 1.0; expected none, since small_study.py has"),
    (DATA % "X, Y", "--dataset mnist", "--dataset is 'mnist'; expected none, since small_study.py"),
    ("setup=no_luck", "--rounds 5", "--rounds is 5; expected none, since small_study.py has its o"),
    *[
        ("setup=no_luck", typed, f"{typed.split()[0]} is {value}; expected none, since small_study")
        for typed, value in (
            ("--num-clients 4", 4),
            ("--validation 0.5", 0.5),
            ("--batch-size 3", 3),
            ("--local-steps 3", 3),
            ("--per-client 5", 5),
            ("--scores auc", "('auc',)"),
            ("--loss squared", "'squared'"),
        )
    ],
    ("setup=no_luck", "attack:backdoor", "attack is 'backdoor'; expected none with a setup of the"),
    ("setup=no_luck", "adapters:lora", "adapters is 'lora'; expected none, since small_study.py h"),
    ("setup=no_luck", "partition:iid", "partition is 'iid'; expected none, since small_study.py"),
    (
        "setup=lambda seed: fs.presets.quickstart(rounds=2, seeds=None)",
        "--precision float64",
        "--precision is 'float64'; expected a setup of the study whose model is in float64, not fl",
    ),
]


@pytest.mark.parametrize("command", ["run", "sweep"])
@pytest.mark.parametrize(("parts", "typed", "message"), TYPED, ids=[typed for _, typed, _ in TYPED])
def test_a_typed_option_that_an_own_part_replaces_is_refused(
    tmp_path, capsys, compiled, command, parts, typed, message
):
    path = small_study(tmp_path, parts.replace("X, Y", "np.zeros((3, 2)), [0, 1, 2]"))
    command = [command, str(path), *typed.split(), "--output", str(tmp_path / "run")]
    assert main(command) == 2
    assert message in one_line(capsys)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("named", "typed", "compared"),
    [
        ((), "", ("mine", "fedsgd")),
        (("fedavg", "mine"), "", ("fedavg", "mine")),  # those of the options
        (("fedavg", "mine"), "--algorithms fedsgd", ("fedsgd",)),
    ],
)
def test_own_algorithms_are_compared_unless_others_are_named(tmp_path, named, typed, compared):
    given = f"algorithms={named}" if named else ""
    path = tmp_path / "named_study.py"
    path.write_text(
        "import fedjax_sim as fs\n"
        "def study():\n"
        "    own = {'mine': fs.fedprox, 'fedsgd': fs.fedsgd}\n"
        f"    return fs.Study(fs.presets.options({given}), own)\n"
    )
    source, study, rest = read_arguments([str(path), *typed.split()])
    run = parse(Run, f"run {source}", "", rest, study.options)
    assert run.algorithms.algorithms == compared


@pytest.mark.parametrize("name", FILES)
def test_a_file_without_a_study_is_one_line(tmp_path, monkeypatch, capsys, compiled, name):
    monkeypatch.chdir(tmp_path)
    text, message = FILES[name]
    (tmp_path / name).write_text(text)
    assert main(["run", name, "--output", "run"]) == 2
    error = one_line(capsys)
    assert compiled == []
    assert message in error
    assert error.startswith(f"fedjax-sim: error: MODULE is '{name}', wh")


def test_a_file_that_is_not_there(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "nowhere.py"]) == 2
    assert "MODULE is 'nowhere.py', which does not exist; expected a study" in one_line(capsys)


def in_folders(path, module):
    """Returns a function that runs commands on this module, each in a folder of its own."""

    def call(command, algorithm, *words):
        path.write_text(module)
        output = path.parent / command
        common = ["--algorithms", algorithm, "--seeds", "1", "--output", str(output)]
        return main([command, str(path), *common, *words])

    return call


LONGER = MODULE.replace("uniform(key, 4,", "uniform(key, 8,")
OTHER_TIMELINE = MODULE.replace("uniform(key,", "uniform(jax.random.fold_in(key, 1),")


@pytest.mark.slow
def test_an_algorithm_is_added_on_a_longer_timeline(tmp_path, capsys):
    """It was refused, also where the other algorithms have these rounds."""
    path = tmp_path / "own_study.py"
    assert in_folders(path, MODULE)("run", "fedavg") == 0
    call = in_folders(path, LONGER)
    assert call("run", "fedavg") == 0
    assert call("run", "fedprox") == 0
    assert members_of(tmp_path / "run" / "config.json")["own_rounds"] == 8
    capsys.readouterr()
    other = OTHER_TIMELINE.replace("1), 4,", "1), 8,")
    assert in_folders(path, other)("run", "fedavgm") == 2
    assert re.search(r"timeline of \w+ differ from those here", one_line(capsys))


@pytest.mark.slow
def test_a_grid_is_not_added_on_another_timeline_or_other_rows(tmp_path, capsys):
    """And sweeps, searches and comparisons of one study are of one setting."""
    path, grid = tmp_path / "own_study.py", ["--grid.lr.values", "0.1"]
    call = in_folders(path, MODULE)
    assert call("sweep", "fedavg", *grid) == 0
    capsys.readouterr()
    assert in_folders(path, OTHER_TIMELINE)("sweep", "fedprox", *grid) != 0
    assert "the timeline of the study module has changed" in one_line(capsys)
    of_other_rows = in_folders(path, MODULE.replace("default_rng(seed)", "default_rng(seed + 1)"))
    assert of_other_rows("sweep", "fedprox", *grid, "--grid.local_steps.values", "1", "2") != 0
    assert "the rows of the study module has changed" in one_line(capsys)
    assert call("run", "fedavg") == 0
    search = ["--space.lr.from", "0.1", "--space.lr.to", "0.2", "--trials", "1", "--batch", "1"]
    assert call("tune", "fedavg", *search) == 0
    folders = [tmp_path / name for name in ("run", "sweep", "tune")]
    assert len(set(read_folders(folders).settings.values())) == 1


def test_rows_of_a_study_have_the_examples_that_are_divided():
    """For their digest they had those of the validation part, too."""

    def rows(dataset, seed):
        return np.split(np.arange(len(dataset.train["y"])), 12)  # 84, but not all 104

    y = np.arange(130) % 2
    options = fs.presets.options(validation=0.2, validation_of="pool", seeds=1, rounds=1)
    study = fs.Study(options, dataset=datasets.from_arrays(np.eye(130)[:, :3], y), rows=rows)
    own = resolve(study).own
    assert own.arrays == {"rows": digest(*np.split(np.arange(84), 12))}
