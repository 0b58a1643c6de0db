"""Texts of print, notebooks and help for results, data, setups and algorithms."""

import dataclasses
import inspect
import pydoc
import re
import tokenize
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from IPython.lib.pretty import pretty

import fedjax_sim as fs
from fedjax_sim.datasets import from_arrays
from fedjax_sim.types import (
    Summary,
    common_rows,
    field_comments,
    listed,
    readable,
    shown,
    tree_text,
)

WIDTH, LINES = 80, 25
KEYS = jax.random.split(jax.random.key(0), 3)
X = np.eye(8, 3, dtype=np.float32)
DATA = fs.FederatedData({"x": X, "y": X.sum(1)}, np.array([0, 3, 8]))


def loss(w, batch, key):
    return (batch["x"] @ w - batch["y"]) ** 2


def small_setup(num_seeds=3):
    one = fs.empirical_task(loss, DATA, fs.epochs(1, batch_size=2))
    timeline = fs.timelines.full(4, one.num_clients, one.num_steps)
    metrics = lambda w: {  # noqa: E731    with an alphabetically first one that nobody asked for
        "a/first": w.sum(), "test/accuracy": 1 / (1 + w @ w), "test/loss": w @ w
    }  # fmt: skip
    return fs.Setup(one, timeline, np.zeros((num_seeds, 3), np.float32), metrics, eval_every=2)


@pytest.fixture(scope="module")
def shown_objects():
    setup = small_setup()
    simulation = fs.simulate(fs.fedavg(0.1), setup, KEYS)
    own = fs.FedAlgorithm(init=print, local=print, update=print)
    return {
        "Simulation": simulation,
        "Comparison": fs.Comparison({f"method {i}": [simulation] for i in range(62)}, False),
        "Sweep": fs.sweep(fs.fedavg, setup, {"lr": [0.1, 0.2, 0.4]}, KEYS),
        "Dataset": from_arrays([[0.0], [1.0]], [0, 1], test=([[2.0]], [1])),
        "FederatedData": DATA,
        "Task": setup.task,
        "Setup": setup,
        "Timeline": setup.timeline,
        "FedAlgorithm": own,
        "fedavg": fs.fedavg(0.1),
    }


NAMED = {  # data, sizes, algorithm and result that the text has to name
    "Simulation": ["fedavg(lr=0.1", "clients", "x float32", "test accuracy", "seeds"],
    "Comparison": ["62 algorithms", "clients", "x float32", "test accuracy", "method 9"],
    "Sweep": ["9 runs", "lr 0.1, 0.2, 0.4", "clients", "test accuracy"],
    "Dataset": ["x float32[2, 1]", "2 classes"],
    "FederatedData": ["2 clients", "8 examples", "3 to 5"],
    "Task": ["clients", "local steps"],
    "Setup": ["clients", "4, with", "float32[3, 3]"],
    "Timeline": ["4 rounds"],
    "FedAlgorithm": ["builtins.print"],
    "fedavg": ["fedavg(lr=0.1"],
}


@pytest.mark.parametrize("name", NAMED)
def test_a_text_fits_a_screen_and_names_the_parts(shown_objects, name):
    value = shown_objects[name]
    text = repr(value)
    assert str(value) == text == pretty(value)
    lines = text.split("\n")
    assert len(lines) <= LINES
    assert all(len(line) <= WIDTH for line in lines[1:])
    html = value._repr_html_()
    assert len(html) < 5000  # characters; a dump of arrays had 100,000
    for part in NAMED[name]:
        assert part in text
        assert part in html


def test_test_accuracy_and_loss_come_first(shown_objects):
    for name in ("Simulation", "Comparison"):
        (heads,) = re.findall("^.*test accuracy.*$", repr(shown_objects[name]), re.MULTILINE)
        assert heads.split("  ")[-1] == "a first" or "a first" not in heads
        assert heads.index("test accuracy") < heads.index("test loss")


def test_a_sweep_shows_the_best_of_each_setting():
    """The loss is (w - 1)^2 / 2 on 1 or 4 copies: what has more steps is no better method."""

    def setup(num_steps):
        timeline = fs.timelines.full(2, 2, num_steps)
        return dataclasses.replace(small_setup(), timeline=timeline)

    grid = {"num_steps": [1, 4], "lr": [0.1, 0.2]}
    result = fs.sweep(fs.fedavg, setup, grid, KEYS)
    assert result.settings == ("num_steps",)
    rows = re.findall(r"^test accuracy +(\d) +(\S+)", repr(result), re.MULTILINE)
    assert [steps for steps, _ in rows] == ["1", "4"]


def test_values_that_cannot_be_read_are_left_out():
    setup = small_setup()
    shapes = jax.eval_shape(lambda setup: setup, setup)
    assert "in all" in repr(setup)
    texts = [repr(shapes)]

    def traced(setup):
        texts.extend([repr(setup), repr(setup.timeline), repr(setup.task)])
        return setup.params.sum()

    jax.jit(traced)(setup)
    jax.vmap(traced)(jax.tree.map(lambda x: jnp.asarray(x)[None], setup))
    on_device = jax.device_put(setup)
    jax.tree.map(lambda x: x.delete(), on_device)
    texts.append(repr(on_device))
    for text in texts:
        assert re.match("Setup: |Timeline: |Task: ", text)
        assert "in all" not in text
    axes = jax.tree.map(lambda x: 0, setup)  # as for vmap
    assert repr(axes).startswith("Setup(task=Task(")
    assert axes._repr_html_().startswith("<p>Setup(")


def test_a_deleted_result_says_why_it_has_no_table(shown_objects):
    result = shown_objects["Simulation"]
    state = jax.tree.map(jnp.array, result.state)
    jax.tree.map(lambda x: x.delete(), state)
    text = repr(result._replace(state=state))
    assert "No table: RuntimeError: Array has been deleted" in text
    assert "clients" in text


def test_large_arrays_stay_on_their_device():
    assert readable(jnp.zeros(2**18 + 1, jnp.float32)) is None  # more than 1 MiB
    assert readable(jnp.zeros(2**18, jnp.float32)) is not None
    assert readable(np.zeros(2**20)) is not None  # on the host already
    assert readable(jax.random.key(0)) is None


def test_records_compare_and_flatten_as_before():
    work = fs.Work(1, 2, 3, 4, 5, 6, 7)
    assert work == (1, 2, 3, 4, 5, 6, 7)
    assert hash(work) == hash((1, 2, 3, 4, 5, 6, 7))
    assert jax.tree.leaves(work) == [1, 2, 3, 4, 5, 6, 7]
    assert repr(work._replace(round=jnp.zeros(9))).startswith("Work(round=float32[9], client=2")
    one, other = small_setup(), small_setup()
    assert jax.tree.structure(one.timeline) == jax.tree.structure(other.timeline)
    count = []
    jax.jit(lambda timeline: count.append(1))(one.timeline)
    assert len(count) == 1


def test_records_without_a_summary_show_what_differs_from_the_defaults():
    assert repr(fs.Requires()) == "Requires()"
    assert repr(fs.Requires(synchronous="x")) == "Requires(synchronous='x')"
    long = fs.RunState(0, {str(i): i for i in range(100)}, (), (), 0)
    assert re.search(r"server=\{.{119} \.\.\., clients=", repr(long))


def test_summaries_escape_html_and_keep_values_whole():
    summary = Summary("a < b", {"name": "x & y " * 30, "none": ""})
    assert "<p>a &lt; b</p>" in summary.html()
    assert "x &amp; y" in summary.html()
    assert len(summary.text().split("\n")) == 4  # title, two lines of the value, and none
    assert summary.text().split("\n")[2].endswith(" ...")
    fails = Summary("title", {}, lambda form: f"{1 / 0}")
    assert fails.text() == "title\nNo table: ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (tree_text({"w": np.zeros((2, 3))}), "w float64[2, 3]"),
        (tree_text(np.float32(1)), "float32[]"),
        (tree_text(()), "no arrays"),
        (tree_text([np.zeros(2)] * 5), "5 arrays of float64, 10 numbers"),
        (listed(range(9)), "0, 1, 2, 3, 4, 5, 6, 7, ...; 9 in all"),
        (common_rows([{"a": "1", "b": "2"}, {"a": "1", "b": "3"}]),
         {"a": "1", "b": "2 or 3"}),
    ],
)  # fmt: skip
def test_texts_of_parts(found, expected):
    assert found == expected


# --- help

FIELDS = {  # by a word of its meaning; shapes where it has one
    fs.FedAlgorithm: {"init": "initial model", "local": "visit", "update": "uploads",
                      "broadcast": "receive", "personal": "model", "spec": "factory"},
    fs.Oracle: {"grad": "minibatch", "full_grad": "whole", "full_loss": "whole"},
    fs.Work: {"round": "server update", "client": "number", "staleness": "download"},
    fs.Round: {"number": "updates", "num_clients": "population", "at_broadcast": "broadcast"},
    fs.Setup: {"timeline": "[T, S]", "params": "[n, ...]", "eval_every": "rounds"},
    fs.Task: {"num_examples": "[M]", "num_steps": "[M]", "placement": "device"},
    fs.Timeline: {"clients": "[T, S]", "mask": "empty", "time": "[T]", "lost": "arrive"},
}  # fmt: skip


@pytest.mark.parametrize("cls", FIELDS)
def test_help_names_every_field_and_its_meaning(cls):
    text = pydoc.render_doc(cls, renderer=pydoc.plaintext)
    assert "Alias for field" not in text
    names = getattr(cls, "_fields", None) or [field.name for field in dataclasses.fields(cls)]
    section = text.partition("Attributes:")[2].partition("Example:")[0]
    lines = dict(re.findall(r"^ \| {6}(\w+): (.+(?:\n \| {10}.+)*)", section, re.MULTILINE))
    assert list(lines) == list(names)
    for name, word in FIELDS[cls].items():
        assert word in lines[name]


PUBLIC_RECORDS = [
    value
    for value in map(fs.__getattribute__, sorted(fs.__all__))
    if inspect.isclass(value) and issubclass(value, tuple)
]


@pytest.mark.parametrize("cls", PUBLIC_RECORDS, ids=lambda cls: cls.__name__)
def test_no_field_of_a_public_record_is_without_a_description(cls):
    assert [x for x in cls._fields if getattr(cls, x).__doc__.startswith("Alias")] == []


@pytest.mark.parametrize("cls", [*FIELDS, fs.Requires, fs.FederatedData])
def test_comments_of_fields_are_those_of_the_source(cls):
    """Read again with Python's tokenizer: beside a field, or on the lines just above it."""
    lines = inspect.getsource(cls).splitlines(keepends=True)
    tokens = tokenize.generate_tokens(iter(lines).__next__)
    comments = {x.start[0]: x.string[2:] for x in tokens if x.type == tokenize.COMMENT}
    for name, found in field_comments(cls).items():
        row = next(i for i, line in enumerate(lines, 1) if line.startswith(f"    {name}: "))
        first = row
        while lines[first - 2].lstrip().startswith("#"):
            first -= 1
        rows = [row] if row in comments else range(first, row)
        text = re.sub("([.;:]) {2,}", r"\1 ", " ".join(comments[i] for i in rows))
        assert re.sub(" {2,}", "; ", text) == found


@pytest.mark.parametrize("cls", [fs.Requires, fs.Oracle, fs.FedAlgorithm, fs.Setup, fs.Timeline])
def test_help_has_no_two_stops_in_a_row(cls):
    assert not re.search(r"[.;:];", inspect.getdoc(cls))


def test_local_steps_are_those_of_the_timeline_where_its_visits_leave_the_tasks_range():
    setup = small_setup()
    assert setup._summary().rows["local steps"] == "2 to 3 per visit"
    fewer = dataclasses.replace(setup, timeline=fs.timelines.full(4, 2, np.array([0, 3])))
    assert fewer._summary().rows["local steps"] == "0 to 3 per visit"
    absent = np.zeros((4, 2), bool)
    absent[:, 1] = True  # the client without steps never reports
    masked = dataclasses.replace(fewer.timeline, mask=absent)
    one = dataclasses.replace(fewer, timeline=masked)
    assert one._summary().rows["local steps"] == "2 to 3 per visit"


def test_a_class_without_source_has_no_comments():
    record = NamedTuple("record", [("x", int)])  # noqa: UP014    has no lines of its own
    assert field_comments(record) == {}
    assert repr(shown(record)(1)) == "record(x=1)"
