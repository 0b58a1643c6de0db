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
from fedjax_sim.cli.grid import SWEEP, configurations
from fedjax_sim.cli.main import main
from fedjax_sim.runs import comparison as comparing

FILES = {
    "words.csv": "colour,size,label\nred,1,cat\nblue,2,dog\n",
    "numbers.csv": "size,label\n1,0.5\n2,1.5\n3,2.5\n",
    "file": "",
}

COMMANDS = [
    ("run quikstart", "PRESET is 'quikstart'; expected .* did you mean quickstart?"),
    ("run nowhere/config.json", "nowhere/config.json cannot be read: No such file"),
    # names of options and of choices
    # A function of the package that is no option.
    ("run --algorithms hier_fedavg", "fs.topologies.hier_fedavg requires .* a study module gives"),
    ("run --algorithms moon", "expected a name of fedjax-sim list: fs.moon requires arguments"),
    ("run --roundz 3", "--roundz is no option; did you mean --rounds?"),
    ("run --kind x", "--kind is no option"),
    ("run --measured.fedavg.chunk 3", "--measured.fedavg.chunk is no option"),
    ("run attack:alie --attack.fractoin 0.1", "is no option; did you mean --attack.fraction?"),
    ("run --attack.z 1", "--attack.z is given; expected attack:alie with it"),
    ("run --classes-per-client 3", "--classes-per-client is given; expected one of partition:c"),
    ("run --label-column kind", "--label-column is given; expected one of data:huggingface, data"),
    ("run time:clock --rounds 5", "--rounds is given; expected time:rounds with it"),
    ("run law:geometric", "law:geometric is given; expected time:clock with it"),
    ("run robust.rule:krum", "robust.rule:krum is given; expected one of robust:bucketing"),
    ("run partition:iid partition:shards", "partition:iid partition:shards has a choice twice; ex"),
    ("run --partition shards", "--partition is no option; expected partition:KIND, one of dirich"),
    ("run partition:dirichle", "partition is 'dirichle'; expected one of .*mean dirichlet?"),
    ("run sampling:unifrom", "sampling is 'unifrom'; expected one of .*; did you mean uniform?"),
    ("run compress:topk", "compress is 'topk'; expected one of none, top-k, .*mean top-k?"),
    ("run --hyper fedprox.mu=1", "--hyper is no option; expected further names behind it"),
    ("run --hyper.fedprox 1", "--hyper.fedprox is no option; expected further names behind it"),
    ("table x --metrc 3", "--metrc is no option; did you mean --metric?"),
    ("plot x --rounds 3", "--rounds is no option"),
    # algorithms and hyper-parameters
    ("run --algorithms fedpox", "--algorithms has 'fedpox'; expected a name of fedjax-sim list; d"),
    ("run --algorithms FedAvg", "--algorithms has 'FedAvg'; expected fedavg\n"),
    (
        "run --algorithms fedavg,scaffold",
        "--algorithms has 'fedavg,scaffold'; expected blanks between names: fedavg scaffold\n",
    ),
    ("run --algorithms fedavg fedavg", "--algorithms is .*; expected distinct names, at least one"),
    ("run --algorithms", "--algorithms is (); expected distinct names, at least one"),
    ("run --algorithms favano", "time is 'rounds'; expected time:clock for favano, as in the pre"),
    ("run --hyper.fedavg.rate 1", "--hyper has fedavg.rate; fedavg has lr, lr_decay, clip, weight"),
    ("run --hyper.fedadam.server-rl 1", "--hyper has fedadam.server_rl; .*mean server_lr?"),
    ("run --hyper.fedpox.mu 1", "--hyper.fedpox.mu is given; expected .*mean fedprox?"),
    (
        "run --algorithms fedavg --hyper.fedprox.mu 1",
        "--hyper.fedprox.mu is given; expected a hyper-parameter of fedavg\n",
    ),
    ("run --hyper.scaffold.option III", "option is 'III'; expected 'I' or 'II'"),
    ("run --hyper.fedprox.mu -1", "--hyper has fedprox.mu=-1.0; expected a number of at least 0"),
    ("run --hyper.fedavg.lr nan", "--hyper has fedavg.lr=nan; expected a positive number"),
    ("run --lr 0", "--lr is 0.0; expected a positive number"),
    ("run --algorithms fedavg --server-lr 1", "--server-lr is 1.0, but none of fedavg has one"),
    (
        "run --algorithms mb_ac_sgd --lr-decay 0.9",
        "--lr-decay is 0.9, but mb_ac_sgd does not have it",
    ),
    # data
    ("run --dataset digit", "--dataset is 'digit'; expected one of .*; did you mean digits?"),
    (
        "run data:table --table nowhere.csv",
        "nowhere.csv does not exist; expected a table (.csv, .tsv, .parquet, .npz)",
    ),
    (
        "run data:table --table words.csv",
        "words.csv: column 'colour' has 'red' in row 1; expected numbers: encode='one_hot'",
    ),
    (
        "run --loss squared",
        "--loss is 'squared'; expected another one, since the targets of digits are classes",
    ),
    (
        "run data:table --table numbers.csv",
        "partition is 'dirichlet': data set numbers has numbers as targets; expected a partition",
    ),
    (
        "run data:table --table words.csv --label-column lable",
        "--label-column is 'lable'; .*did you mean label?",
    ),
    (
        "run data:table --table words.csv --client-column colour",
        "--client-column is 'colour'; expected partition:natural with it, not dirichlet",
    ),
    (
        "run --dataset mnist --data-dir .",
        "mnist: nothing found in .; expected train-images-idx3-ubyte.gz",
    ),
    ("run --validation 1", "--validation is 1.0; expected a number in [0, 1)"),
    (
        "run --validation 0.01",
        "--validation is 0.01, which leaves no validation examples; expected",
    ),
    # models
    ("run --model mpl", "--model is 'mpl'; expected auto or one of .*; did you mean mlp?"),
    (
        "run --model lenet5",
        "--model is 'lenet5', which takes examples of shape [32, 32, 3]; expected",
    ),
    # wrappers of all algorithms
    ("run robust:krum --robust.f -1", "--robust.f is -1; expected an integer of at least"),
    ("run robust:nnm robust.rule:krum --robust.rule.f -1", "--robust.rule.f is -1; expected an in"),
    (
        "run attack:alie --attack.fraction 2",
        "--attack.fraction is 2.0; expected a number in (0, 1]",
    ),
    ("run privacy:gaussian --privacy.clip.bound 0", "--privacy.clip.bound is 0.0; expected a pos"),
    ("run compress:top-k --compress.keep 0", "--compress.keep is 0.0; expected a"),
    ("run feedback:ef14", "feedback is 'ef14'; expected"),
    ("run privacy:gaussian", "--privacy.noise is None; expected --privacy.noise or --privacy.eps"),
    # clients and rounds
    (
        "run partition:natural",
        "partition is 'natural': data set digits does not say which client",
    ),
    ("run --num-clients 5000", "partition is 'dirichlet': num_clients is 5000 with at least 1"),
    (
        "run --cohort-size 101",
        "--cohort-size is 101; expected 1 .. 100, the clients (sampling full",
    ),
    (
        "run sampling:stratified",
        "--num-strata is None; expected a number, which sampling:stratified needs",
    ),
    (
        "run --partition-per-seed --num-strata 4",
        "--num-strata is 4; expected none with --partition-per-seed",
    ),
    ("run --rounds 0", "--rounds is 0; expected an integer of at least 1"),
    ("run --dropout 1", "--dropout is 1.0; expected a number in [0, 1)"),
    ("run --states host", "--states is host; expected --examples-memory with it"),
    (
        "run --num-clients 5000000000",
        "--num-clients is 5000000000; expected an integer of at most 2",
    ),
    ("run partition:shards --classes-per-client 0", "--classes-per-client is 0; expected an integ"),
    ("run --patience 0", "--patience is 0; expected an integer of at least 1"),
    ("run --coordinator a:1 --num-processes 0", "--num-processes is 0; expected an integer of at"),
    ("run --time-limit 0", "--time-limit is 0.0; expected a positive number"),
    ("run --local-steps 0", "--local-steps is 0; expected an integer of at least 1"),
    ("run --seed -1", "--seed is -1; expected an integer of at least 0"),
    ("run --target-accuracy 80", "--target-accuracy is 80.0; expected a number in (0, 1]"),
    # time
    ("run time:clock", "--local-steps is None; expected a number with time:clock"),
    *[
        (f"run asynchronous {words}", message)
        for words, message in (
            ("--law.step-time 0", "--law.step-time is 0.0; expected a positive number"),
            ("--law.slow-fraction 2", "--law.slow-fraction is 2.0; expected a number in [0, 1]"),
            ("--interaction -1", "--interaction is -1.0; expected a number of at least 0"),
            ("--horizon 5", "--horizon is 5.0; expected at least --interval, 7.0"),
            ("--dropout 0.5", "--dropout is 0.5; expected 0.0 with time:clock"),
            ("sampling:full", "sampling is 'full'; expected uniform with time:clock"),
            ("--law.file a.csv", "--law.file is given; expected law:trace with it"),
            ("law:log-normal --law.log-sigma -1", "--law.log-sigma is -1.0; expected a number"),
        )
    ],
    (
        "run --output file/results",
        "--output is 'file/results', which cannot be created: Not a directory",
    ),
    # other commands
    ("sweep --grid.lr", "--grid.lr is no option; expected further names behind it"),
    ("sweep --grid.cohort-siz.values 5", "cohort_siz'; expected .*; did you mean cohort_size?"),
    ("sweep --grid.model.values mpl", "model is 'mpl'; expected .*; did you mean mlp?"),
    ("sweep --points nowhere.csv", "--points is 'nowhere.csv', which cannot be read"),
    ("sweep --grid.lr.values 1 --part 5 --parts 4", "--part is 5; expected"),
    (
        "sweep --distributed",
        "--distributed is an option of fedjax-sim run; expected --part and --p",
    ),
    ("sweep --grid.lr.values 1 --last 99", "last is 99; expected 1 .. 50, the evaluations"),
    ("sweep --algorithms FedAvg --grid.lr.values 1", "has 'FedAvg'; expected fedavg\n"),
    ("sweep --cohort-size 101 --grid.lr.values 1", "--cohort-size is 101; expected 1 .. 100"),
    ("sweep --server-lr 1 --grid.lr.values 1", "--server-lr is 1.0, but none of fedavg has one"),
    (
        "sweep --over cohort_size",
        "--over is 'cohort_size'; expected a name with values in the grid",
    ),
    ("sweep --memory nan", "--memory is nan; expected a positive number of at most 9e"),
    ("sweep --grid.lr.values 0", "--grid has {'algorithm': 'fedavg', 'lr': 0.0}: hyper has"),
    ("sweep slowstart", "PRESET is 'slowstart'; expected quickstart, "),
    ("sweep nowhere/config.json", "nowhere/config.json cannot be read: No such file"),
    ("sweep nowhere.py", "MODULE is 'nowhere.py', which does not exist; expected a study"),
    ("measure femnst", "PRESET is 'femnst'; expected .*; did you mean femnist?"),
    ("list fedpox", "unknown algorithm 'fedpox'; expected a name of .*; did you mean fedprox?"),
    ("list FedAvg", "unknown algorithm 'FedAvg'; expected fedavg\n"),
    ("fork --round 3", "FOLDER is missing; expected fedjax-sim fork FOLDER [options]"),
    ("export x y", "FOLDER is given 2 times; expected one"),
    ("advise --target 0", "--target is 0.0; expected a positive number"),
    ("clients --max-clients 0", "--max-clients is 0; expected an integer of at least 1"),
    # tunings
    ("tune --space.lrr.from 1 --space.lrr.to 2", "--space has 'lrr'; expected a hyper-.*mean lr?"),
    (
        "tune --space.lr.from 1 --space.lr.to 0.1",
        "--space has lr with from=1.0, to=0.1; expected 0",
    ),
    ("tune --space.lr.from 0 --space.lr.to 1", "expected 0 < from < to, or --space.lr.linear"),
    ("tune --space.lr.from 0.1", "--space has lr with from=0.1, to=None; expected 0 < from < to"),
    ("tune --space.lr.values", "--space has lr without values; expected --space.lr.values"),
    ("tune --space.lr.values 1 1", "--space has lr=1.0 twice; expected distinct values"),
    (
        "tune --space.lr.values 1 --space.lr.from 1 --space.lr.to 2",
        "to=2.0; expected 0 < from < to",
    ),
    ("tune --space.lr.values 1 --space.lr.linear", "--space has lr without a range; expected"),
    (
        "tune --space.lr.from -1 --space.lr.to 1 --space.lr.linear",
        "--space has {'algorithm': 'feda",
    ),
    (
        "tune --space.local-steps.from 1 --space.local-steps.to 4.5",
        "--space has local_steps with to=4.5; expected an integer",
    ),
    (
        "tune --space.lr.from 1 --space.lr.to 2 --space.lr.step 0.3",
        "--space has lr with from=1.0, to=2.0, step=0.3; expected a step that divides the range",
    ),
    (
        "tune --space.partition.from 1 --space.partition.to 2",
        "--space has partition with a range; expected values, which are no numbers",
    ),
    (
        "tune --space.partition.values iid dirichle",
        "partition is 'dirichle'; expected one of .*mean dir",
    ),
    ("tune --space.rounds.values 4 8", "--space has 'rounds'; expected other names, since scores"),
    ("tune --space.mu.from 1 --space.mu.to 2", "--space has 'mu'; expected a hyper-parameter (fed"),
    ("tune --space lr=1", "--space is no option; expected further names behind it"),
    ("tune --trials 0", "--trials is 0; expected an integer of at least 1"),
    ("tune --batch 0", "--batch is 0; expected an integer of at least 1"),
    ("tune --halving 10 --eta 1", "--eta is 1; expected at least 2"),
    ("tune --num-processes 2", "--num-processes is an option of fedjax-sim run; expected one proc"),
    ("tune numbers.csv", "PRESET is 'numbers.csv'; expected"),
    # options without effect
    ("run --test-fraction 0.5", "--test-fraction is 0.5; expected --test-of clients with it\n"),
    ("run --validation-of pool", "--validation-of is 'pool'; expected --validation with it\n"),
    ("run --delay 3", "--delay is 3; expected --late with it\n"),
    ("run --chunk-size 5", "--chunk-size is 5; expected --execution chunked with it\n"),
    ("run --patience 5", "--patience is 5; expected --stop-early with it\n"),
    ("run --mode max", "--mode is 'max'; expected --keep-best or --stop-early with it\n"),
    ("run --heartbeat-timeout 9", "--heartbeat-timeout is 9; expected --distributed or --coor"),
    (
        "run --cohort-size 5 --cohort-fraction 0.1",
        "--cohort-size is 5; expected none with --cohort-fraction\n",
    ),
    (
        "run --local-steps 5 --local-epochs 1",
        "--local-epochs is 1; expected none with --local-steps",
    ),
    ("sweep --on-divergence raise", "--on-divergence is an option of fedjax-sim run; a sweep rec"),
    ("sweep --target-accuracy 0.5", "--target-accuracy is an option of fedjax-sim run; fedjax-si"),
    ("tune --on-divergence stop", "--on-divergence is an option of fedjax-sim run; a tuning rec"),
    ("measure --output x", "--output is an option of fedjax-sim run; a measurement is stored"),
    ("advise --output x", "--output is an option of fedjax-sim run; advice is printed"),
    (
        "sweep --points words.csv --grid.lr.values 1",
        "--grid has 'lr'; expected none with --points\n",
    ),
    ("sweep --grid.delay.values 1 2", "--grid has 'delay'; expected --late with it\n"),
    (
        "sweep --grid.test-fraction.values 0.1 0.2",
        "--grid has 'test_fraction'; expected --test-of clients with it\n",
    ),
    (
        "sweep --local-steps 5 --grid.local-epochs.values 1 2",
        "--grid has 'local_epochs'; expected none with --local-steps\n",
    ),
    (
        "sweep asynchronous --grid.local-epochs.values 1 2",
        "--grid has 'local_epochs'; expected none with --local-steps\n",
    ),
    (
        "sweep --local-epochs 1 --grid.local-steps.values 1 2",
        "--local-epochs is 1; expected none with --local-steps\n",
    ),
    (
        "sweep --cohort-fraction 0.1 --grid.cohort-size.values 2 4",
        "--grid has 'cohort_size'; expected none with --cohort-fraction\n",
    ),
    (
        "sweep sampling:full --grid.cohort-size.values 2 4",
        "--grid has 'cohort_size'; expected another sampling\n",
    ),
    (
        "run --algorithms fedavg_ft --tuning-lr 0.1",
        "--tuning-lr is 0.1; expected --personal with it, which evaluates the models\n",
    ),
    ("run --algorithms fedbabu --hyper.fedbabu.visits 2", "visits is 2; expected --personal with"),
    ("sweep --grid.tuning-steps.values 1 2", "tuning_steps is 1; expected --personal with it, wh"),
    ("tune --eta 4", "--eta is 4; expected --halving with it\n"),
    ("tune --space.delay.values 1 2", "--space has 'delay'; expected --late with it\n"),
    ("plot x --split valid", "--split is 'valid'; expected --clients with it\n"),
    ("plot x --dashboard --x steps", "--x is 'steps'; expected none with --dashboard\n"),
    ("plot x --clients rounds --log y", "--log is ('y',); expected none with --clients\n"),
    ("plot x --band std --seeds-as-lines", "--band is 'std'; expected none with --seeds-as-lin"),
    ("table x --output a.tex", "--format is 'markdown'; expected 'latex' for the file a.tex\n"),
    ("table x --format csv --digits 5", "--digits is 5; expected another --format with it\n"),
    ("table x --format csv --percent", "--percent is True; expected another --format with it\n"),
    (
        "export x --output a.safetensors",
        "--format is 'npz'; expected 'safetensors' for the file a.safetensors\n",
    ),
    (
        "init a.py quickstart --label-column y",
        "--label-column is 'y'; expected a table with it, not quickstart\n",
    ),
    ("tune privacy:gaussian --privacy.epsilon 3", "--privacy.epsilon is 3.0; expected privacy.noi"),
]

# Options whose effect depends on others, beside these.
USED = [
    "sweep --delay 2 --grid.late.values 0 0.5",
    "sweep --late 0.5 --grid.delay.values 1 2",
    "sweep --test-fraction 0.5 --grid.test-of.values dataset clients",
    "sweep --grid.sampling.values full uniform --grid.cohort-size.values 2 4",
]

# Words that the parser refuses: what its box says.
UNREADABLE = [
    ("run --rounds many", "Error parsing --rounds: invalid literal for int() with base 10: 'many'"),
    ("sweep --mode largest", "invalid choice 'largest' for argument '--mode'. Expected one of"),
    ("sweep --grid.lr.points 2.5", "Error parsing --grid.lr.points: no type matching"),
    ("run --hyper.fedprox.mu", "Missing value for argument '--hyper.fedprox.mu'."),
    ("run --hyper.fedprox.mu much", "Error parsing --hyper.fedprox.mu: could not convert string"),
    ("run --loss mean_loss", "invalid choice 'mean_loss' for argument '--loss'. Expected one of"),
    ("run data:table", "--table PATH"),
    ("run time:clock law:trace", "--law.file PATH"),
    ("run privacy:gaussian --privacy.clip.bound few", "Error parsing --privacy.clip.bound: could"),
    ("run quickstart extra", "Unrecognized options: extra"),
]

_compiled = []


def _listen(event, duration, **options):
    name = options.get("fun_name")
    if "backend_compile" in event and name != "jit(_seed_keys)":  # of the seeds, before a sweep
        _compiled.append(name)


jax.monitoring.register_event_duration_secs_listener(_listen)


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


@pytest.mark.parametrize("command", USED)
def test_options_that_a_grid_gives_an_effect_are_taken(here, command):
    _, *words = shlex.split(command)
    _, _, study, config = SWEEP.read(words, "")
    assert len(configurations(study, config)) >= 2


@pytest.mark.parametrize(("command", "message"), UNREADABLE, ids=[c for c, _ in UNREADABLE])
def test_words_that_cannot_be_read(here, capsys, monkeypatch, command, message):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(shlex.split(command)) == 2
    assert message in capsys.readouterr().err


OF_MODELS = [
    *[
        (f"--algorithms fedbn{flag}", "--algorithms has 'fedbn': params has the layers dense1, den")
        for flag in ("", " --dry-run")
    ],
    ("--algorithms fedavg scaffnew", "--algorithms has 'scaffnew': a round of the timeline"),
    ("--stop-early test/los", "--stop-early is 'test/los'; expected one of test/accuracy"),
    ("--keep-best test/los", "--keep-best is 'test/los'; expected one of test/accuracy"),
    (
        "--algorithms fedavg attack:sign-flip --attack.fraction 0.004",
        "--attack.fraction is 0.004, which leaves no attackers of 100 clients; expected a larger",
    ),
    (
        "--algorithms fedavg --examples-memory 1e-6",
        "--examples-memory is 1e-06 gigabytes: memory of on_host is 1000 bytes; expected at least",
    ),
    *[
        (f"--algorithms fedavg --local-steps 3 time:clock {words}", message)
        for words, message in (
            ("--law.step-time 0.5", "--law.step-time is 0.5; expected a mean of at least 1"),
            ("--interval 1 --horizon 2 --law.step-time 99", "--horizon is 2.0; expected"),
            ("law:trace --law.file nowhere.csv", "--law.file is 'nowhere.csv', which cannot"),
        )
    ],
]


@pytest.mark.parametrize(("words", "message"), OF_MODELS, ids=[words for words, _ in OF_MODELS])
def test_one_line_where_the_model_is_needed(tmp_path, capsys, monkeypatch, words, message):
    """Its initial values are compiled, and no run is."""
    monkeypatch.setattr(comparing, "execute", lambda *_: pytest.fail("reached the simulation"))
    output = tmp_path / "run"
    assert main(["run", *words.split(), "--seeds", "1", "--output", str(output)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"fedjax-sim: error: {message}")
    assert error.count("\n") == 1
    assert not output.exists()


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
            "round is no option; did you mean rounds?",
        ),
    ],
)
def test_python_equivalents_raise(call, message):
    with pytest.raises(ValueError, match="^" + pattern(message)):
        call()
