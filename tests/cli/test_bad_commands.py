"""Bad commands: one line that names the option, its value and what was expected.

Nothing is written and nothing is compiled.
"""

import re
import shlex
import sys

import jax
import numpy as np
import pytest

import fedjax_sim as fs
from fedjax_sim.cli.main import main
from fedjax_sim.studies.setups.build import resolve
from fedjax_sim.studies.setups.config import RunConfig

OBJECTS = """
import numpy as np
import fedjax_sim as fs
from fedjax_sim import datasets

constant = 3

def fednova(lr, mu=0.1): ...
def returns_dict(): return {}
def needs_model(lr, model: fs.FedAlgorithm): ...
def fails(lr): raise RuntimeError("no luck")
def net_of_size(size): ...
def mean_loss(outputs, y): return outputs.mean()
def words(outputs, y): return {"a": "b"}
def uniform(key): return None
def no_rows(dataset): return [np.array([0.5])]
def far_rows(dataset): return [np.array([10**6])]

def no_data(data_dir): return None

def made(x, y):
    part = {"x": np.asarray(x), "y": np.asarray(y)}
    return datasets.Dataset("mine", part, part, 3, None, None, None, "made")

def from_one(data_dir): return made(np.zeros((3, 2)), [1, 2, 3])
def text(data_dir): return made(np.zeros((3, 2)), ["a", "b", "c"])
def with_nan(data_dir): return made(np.full((3, 2), np.nan), [0, 1, 2])
def channels_first(data_dir): return made(np.zeros((3, 3, 32, 32)), [0, 1, 2])
"""
FILES = {
    "bad_objects.py": OBJECTS,
    "bad_syntax.py": "def net(:\n",
    "bad_import.py": "import nowhere_to_be_found\n",
    "words.csv": "colour,size,label\nred,1,cat\nblue,2,dog\n",
    "numbers.csv": "size,label\n1,0.5\n2,1.5\n3,2.5\n",
    "file": "",
}

COMMANDS = [
    ("run quikstart", "PRESET is 'quikstart'; expected .* did you mean quickstart?"),
    ("run nowhere/config.json", "nowhere/config.json cannot be read: No such file"),
    # algorithms and hyper-parameters
    ("run --algorithms fedpox", "--algorithms has 'fedpox'; expected some of .*mean fedprox?"),
    ("run --algorithms fedavg fedavg", "--algorithms is .*; expected distinct names, at least one"),
    ("run --algorithms", "--algorithms is (); expected distinct names, at least one"),
    ("run --algorithms favano", "--clock is 'none'; expected a law of step durations for favano"),
    ("run --algorithms bad_objects:", "--algorithms has 'bad_objects:', which names no function"),
    ("run --algorithms nosuch:f", "--algorithms has 'nosuch:f', but there is no module nosuch in"),
    (
        "run --algorithms bad_objects:fednov",
        "but bad_objects has no function fednov; did you mean fednova?",
    ),
    ("run --algorithms bad_objects:constant", "which is an int; expected a function"),
    (
        "run --algorithms bad_objects:returns_dict",
        "which returned a dict; expected a fedjax_sim.FedAlgorithm",
    ),
    (
        "run --algorithms bad_objects:needs_model",
        "whose parameter 'model' has no default; expected a number",
    ),
    (
        "run --algorithms bad_objects:fails",
        "which raised RuntimeError: no luck (bad_objects.py, line 11)",
    ),
    ("run --algorithms bad_syntax:net", "bad_syntax.py, line 1: invalid syntax"),
    (
        "run --algorithms bad_import:net",
        "but bad_import cannot be imported: ModuleNotFoundError: No module",
    ),
    (
        "run --hyper fedavg.rate=1",
        "--hyper has 'fedavg.rate=1'; fedavg has lr, lr_decay, clip, weight_decay",
    ),
    (
        "run --hyper fedadam.server_rl=1",
        "--hyper has 'fedadam.server_rl=1'; .* did you mean server_lr?",
    ),
    (
        "run --hyper fedpox.mu=1",
        "--hyper has 'fedpox.mu=1'; expected one of .*; did you mean fedprox?",
    ),
    ("run --hyper fedprox.mu", "--hyper has 'fedprox.mu'; expected ALGORITHM.NAME=VALUE"),
    ("run --hyper fedprox.mu=-1", "--hyper has 'fedprox.mu=-1'; expected a number of at least 0"),
    (
        "run --hyper fedprox.mu=much",
        "--hyper has 'fedprox.mu=much'; expected a number of at least 0",
    ),
    ("run --lr 0", "--lr is 0.0; expected a positive number"),
    ("run --algorithms fedavg --server-lr 1", "--server-lr is 1.0, but none of fedavg has one"),
    ("run --algorithms fedac --lr-decay 0.9", "--lr-decay is 0.9, but fedac does not have it"),
    # data
    ("run --dataset digit", "--dataset is 'digit'; expected one of .*; did you mean digits?"),
    (
        "run --dataset nowhere.csv",
        "nowhere.csv does not exist; expected a table (.csv, .tsv, .parquet, .npz)",
    ),
    (
        "run --dataset words.csv",
        "words.csv: column 'colour' has 'red' in row 1; expected numbers: encode='one_hot'",
    ),
    (
        "run --loss squared",
        "--loss is 'squared', for targets that are numbers; expected another one, since",
    ),
    (
        "run --dataset numbers.csv",
        "--partition is 'dirichlet': data set numbers has numbers as targets; expected a partition",
    ),
    (
        "run --dataset words.csv --label-column lable",
        "--label-column is 'lable'; .*did you mean label?",
    ),
    (
        "run --dataset mnist --data-dir .",
        "mnist: nothing found in .; expected train-images-idx3-ubyte.gz",
    ),
    (
        "run --dataset bad_objects:no_data",
        "which returned None; expected a fedjax_sim.datasets.Dataset",
    ),
    ("run --dataset bad_objects:from_one", "mine: train labels are in 1 .. 3; expected 0 .. 2"),
    (
        "run --dataset bad_objects:text",
        "mine: train labels are <U1[3]; expected integers [N] (from_arrays",
    ),
    ("run --dataset bad_objects:with_nan", "mine: train examples have NaN or infinity at [0, 0]"),
    ("run --validation 1", "--validation is 1.0; expected a number in [0, 1)"),
    (
        "run --validation 0.01",
        "--validation is 0.01, which leaves no validation examples; expected",
    ),
    # models, losses, metrics
    ("run --model mpl", "--model is 'mpl'; expected one of auto, .*; did you mean mlp?"),
    (
        "run --model lenet5",
        "--model is 'lenet5', which takes examples of shape [32, 32, 3]; expected",
    ),
    (
        "run --model lenet5 --dataset bad_objects:channels_first",
        "these are images with channels first: fedjax_sim.datasets.to_channels_last converts them",
    ),
    (
        "run --model bad_objects:net_of_size",
        "whose parameter 'size' is unknown; expected parameters among shape",
    ),
    (
        "run --model bad_objects:returns_dict",
        "which returned a dict; expected a fedjax_sim.models.Model",
    ),
    (
        "run --loss bad_objects:mean_loss",
        "which returned shape () for outputs (3, 10) and y (3,); expected (3,)",
    ),
    (
        "run --metrics bad_objects:mean_loss",
        "--metrics is 'bad_objects:mean_loss', which returned an array of shape (); expected",
    ),
    (
        "run --metrics bad_objects:words",
        "--metrics is 'bad_objects:words', which returned no arrays; expected one value per",
    ),
    (
        "run --loss mean_loss",
        "--loss is 'mean_loss', which names no function; expected MODULE:FUNCTION",
    ),
    # options for all algorithms are named, not the hyper-parameter that they set
    ("run --aggregator krum", "--aggregator is 'krum'; expected krum:f=VALUE"),
    ("run --aggregator krum:f=-1", "--aggregator is 'krum:f=-1': f is -1; expected at least 0"),
    ("run --compress top_k:0", "--compress is 'top_k:0': keep is 0; expected a number of"),
    ("run --feedback ef14 --algorithms fedavg", "--feedback is 'ef14'; expected --compress with"),
    ("run --privacy-clip few", "--privacy-clip is 'few'; expected a positive number, adaptive"),
    # columns of a table
    (
        "run --dataset words.csv --client-column colour",
        "--client-column is 'colour'; expected --partition natural with it, not dirichlet",
    ),
    (
        "sweep --dataset words.csv --client-column colour --grid partition=iid,shards",
        "--client-column is 'colour'; expected --partition natural with it, not iid, shards",
    ),
    ("run --label-column kind", "--label-column is 'kind'; expected none with --dataset digits"),
    # clients and rounds
    (
        "run --partition dirichle",
        "--partition is 'dirichle'; expected one of .*; did you mean dirichlet?",
    ),
    (
        "run --partition natural",
        "--partition is 'natural': data set digits does not say which client",
    ),
    (
        "run --partition bad_objects:no_rows",
        "which returned float64[1] for client 0; expected row numbers",
    ),
    (
        "run --partition bad_objects:far_rows",
        "--partition is 'bad_objects:far_rows': assignment has rows",
    ),
    (
        "run --num-clients 5000",
        "--partition is 'dirichlet': num_clients is 5000 with at least 1",
    ),
    ("run --cohort-size 101", "--cohort-size is 101; expected 1 .. 100, the clients"),
    (
        "run --sampling unifrom",
        "--sampling is 'unifrom'; expected one of .*; did you mean uniform?",
    ),
    (
        "run --sampling bad_objects:unifrm",
        "bad_objects has no function unifrm; did you mean uniform?",
    ),
    ("run --timeline uniform", "--timeline is 'uniform', which names no function; expected MODULE"),
    (
        "run --sampling stratified",
        "--num-strata is None; expected a number, which --sampling stratified needs",
    ),
    (
        "run --partition-per-seed --num-strata 4",
        "--num-strata is 4; expected None with --partition-per-seed",
    ),
    ("run --rounds 0", "--rounds is 0; expected an integer of at least 1"),
    ("run --dropout 1", "--dropout is 1.0; expected a number in [0, 1)"),
    ("run --states host", "--states is host; expected --examples-memory with it"),
    ("run --seeds 0", "--seeds is 0; expected an integer of at least 1"),
    (
        "run --output file/results",
        "--output is 'file/results', which cannot be created: Not a directory",
    ),
    # other commands
    ("sweep --grid lr", "--grid has 'lr'; expected NAME=V1,V2,... or NAME=LOW:HIGH:COUNT"),
    (
        "sweep --grid cohort_siz=5",
        "--grid has 'cohort_siz'; expected .*; did you mean cohort_size?",
    ),
    ("sweep --grid model=mpl", "--grid has {.*}: model is 'mpl'; expected .*; did you mean mlp?"),
    (
        "sweep --algorithms bad_objects:fednov",
        "bad_objects has no function fednov; did you mean fednova?",
    ),
    ("sweep --points nowhere.csv", "--points is 'nowhere.csv', which cannot be read"),
    ("sweep --part 5/4", "--part is '5/4'; expected I/N with 1 <= I <= N, as 2/8"),
    ("sweep --part a/b", "--part is 'a/b'; expected I/N with 1 <= I <= N, as 2/8"),
    ("sweep --distributed", "--distributed is an option of fedjax-sim run; expected --part I/N"),
    ("sweep --last 99", "--last is 99; expected 1 .. 50, the evaluations of 100 rounds"),
    ("measure femnst", "PRESET is 'femnst'; expected .*; did you mean femnist?"),
    ("list fedpox", "unknown algorithm 'fedpox'; expected some of .*; did you mean fedprox?"),
]

_compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, duration, **options: (
        _compiled.append(event) if "backend_compile" in event else None
    )
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("bad")
    for name, text in FILES.items():
        (path / name).write_text(text)
    fs.datasets.load("digits")  # imports scikit-learn
    return path


@pytest.fixture
def here(folder, monkeypatch):
    """The current directory; nothing may be written there, and nothing compiled."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "path", list(sys.path))
    compiled = len(_compiled)
    yield folder
    assert {path.name for path in folder.iterdir()} == set(FILES)
    assert _compiled[compiled:] == []


def pattern(message: str) -> str:
    """A regular expression in which only ``.*`` is special."""
    return ".*".join(map(re.escape, message.split(".*")))


@pytest.mark.parametrize(("command", "message"), COMMANDS, ids=[c for c, _ in COMMANDS])
def test_one_line_says_what_was_expected(here, capsys, command, message):
    assert main(shlex.split(command)) in (1, 2)
    error = capsys.readouterr().err
    assert error.startswith("fedjax-sim: error: ")
    assert re.search(pattern(message), error)
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            "fedbn",
            "--algorithms has 'fedbn': params has the layers dense1, dense2; expected a norm",
        ),
        ("fedbn --dry-run", "--algorithms has 'fedbn': params has the layers dense1, dense2"),
        (
            "fedavg --measured fedavg=bad",
            "--measured has 'fedavg=bad'; expected ALGORITHM=CLIENTSxDEV",
        ),
        (
            "fedavg --measured fedavg=bad --dry-run",
            "--measured has 'fedavg=bad'; expected ALGORITHM=",
        ),
    ],
)
def test_one_line_where_the_model_is_needed(tmp_path, capsys, command, message):
    """Its initial values are compiled, and no run is."""
    options = shlex.split(f"{command} --seeds 1 --output {tmp_path / 'run'}")
    assert main(["run", "--algorithms", *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"fedjax-sim: error: {message}")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithms": ("fedpox",)}, "algorithms has 'fedpox'; .*did you mean fedprox?"),
        (
            {"model": "bad_objects:returns_dict"},
            "model is 'bad_objects:returns_dict', which returned",
        ),
        (
            {"loss": "bad_objects:mean_loss"},
            "loss is 'bad_objects:mean_loss', which returned shape ()",
        ),
        ({"validation": 1.0}, "validation is 1.0; expected a number in [0, 1)"),
        ({"hyper": ("fedprox.l=1",)}, "hyper has 'fedprox.l=1'; .*did you mean lr?"),
    ],
)
def test_a_configuration_of_these_options_raises(here, options, message):
    with pytest.raises(ValueError, match="^" + pattern(message)):
        resolve(RunConfig(**options))


X = np.zeros((3, 2), np.float32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fs.datasets.load("digit"), "name is 'digit'; expected .*did you mean digits?"),
        (lambda: fs.datasets.read_table("nowhere.csv"), "nowhere.csv does not exist; expected"),
        (lambda: fs.datasets.from_arrays(X, ["a", "b"]), "own: train has 3 examples and 2 labels"),
        (lambda: fs.datasets.from_arrays(X, [0.0, 1, 2]), "own: train labels are whole floats"),
        (lambda: fs.datasets.from_arrays([["a"]] * 3, [0, 1, 2]), "own: train examples are <U1"),
        (
            lambda: fs.datasets.from_arrays([[1], [1, 2]], [0, 1]),
            "own: train examples or labels are",
        ),
        (lambda: fs.datasets.to_channels_last(np.zeros((2, 3, 4, 3))), "x has shape (2, 3, 4, 3);"),
        (
            lambda: fs.from_clients([]),
            "clients is empty; expected a list of one pytree per client",
        ),
        (lambda: fs.from_clients([{"x": ["a", "b"]}]), "examples['x'] has text; expected numbers"),
        (lambda: fs.FederatedData({"x": [1, [2]]}, [0, 2]), "examples['x'] is a ragged list"),
        (
            lambda: fs.FederatedData({"x": [1, 2, 3]}, [0, 2]),
            "offsets is [0, 2]; expected numbers from 0 to 3",
        ),
        (lambda: fs.presets.quickstart(rounds=0), "rounds is 0; expected an integer of at least 1"),
        (
            lambda: fs.presets.quickstart(round=3),
            "round is no option of a setup; did you mean rounds?",
        ),
    ],
)
def test_python_equivalents_raise(call, message):
    with pytest.raises(ValueError, match="^" + pattern(message)):
        call()


def test_the_table_has_fifty_commands():
    assert len(dict(COMMANDS)) >= 50
