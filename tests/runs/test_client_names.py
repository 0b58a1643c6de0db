"""Names of clients in the tables of an evaluation per client."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fs
from fedjax_sim.datasets import from_arrays
from fedjax_sim.engine import History
from fedjax_sim.engine.evaluation import (
    at_rounds,
    client_evaluator,
    evaluator,
    merge_evaluators,
    personal_evaluator,
)
from fedjax_sim.engine.evaluation.names import client_names
from fedjax_sim.runs.storage import client_rows
from fedjax_sim.runs.storage.client_rows import ClientRows, read_clients
from fedjax_sim.runs.storage.run_functions import trace_run
from fedjax_sim.runs.storage.store import RunFolder

NAMES = ("hospital0", "NA", "a,b\n007", "clinic")
PRINTED = ["hospital0", "NA", "a,b\\n007", "clinic"]  # a name is one line
KEY = jax.random.key(0)


def loss(params, batch, key):
    return (params - batch["x"]) ** 2 / 2


def metrics(params, examples):
    return {"loss": loss(params, examples, None)}


def dataset():
    """Test rows of the first and the third client only."""
    clients = np.repeat(NAMES, 3)
    test = (np.arange(3.0)[:, None], [0, 1, 0])
    return from_arrays(
        np.arange(12.0)[:, None], np.arange(12) % 2, clients=clients, test=test,
        test_clients=[NAMES[2], NAMES[0], NAMES[2]],
    )  # fmt: skip


def values(data):
    """The clients' data with one number per example."""
    return fs.FederatedData({"x": data.examples["x"][:, 0]}, data.offsets, data.client_ids)


@functools.cache  # so that all runs of a setup have one program
def setup_of(named=True):
    train, test = (values(dataset().clients(part)) for part in ("train", "test"))
    if not named:
        train, test = (fs.FederatedData(d.examples, d.offsets) for d in (train, test))
    task = fs.empirical_task(loss, train, fs.full_batch(1))
    each = merge_evaluators(
        train=client_evaluator(metrics, train, per_client=True),
        test=client_evaluator(metrics, test, per_client=True),
    )
    own = personal_evaluator(metrics, test, per_client=True)
    whole = evaluator(metrics, train.examples)
    eval_fn = merge_evaluators(whole, client=at_rounds(each, 2), personal=own)
    timeline = fs.timelines.full(4, 4, task.num_steps)
    return fs.Setup(task, timeline, jnp.array(0.0), eval_fn=eval_fn)


def check(frame, names=PRINTED):
    """Every row has the name of its client's number."""
    assert [*frame.columns][-7:] == [*client_rows.ROW_INDEX, "name", "loss"]
    assert set(frame["split"]) == {"train", "test", "personal"}
    assert [names[i] for i in frame["client"]] == frame["name"].tolist()
    assert set(frame.loc[frame["split"] == "train", "client"]) == {0, 1, 2, 3}
    assert set(frame.loc[frame["split"] == "test", "client"]) == {0, 2}


def test_of_a_simulation():
    result = fs.simulate(fs.fedavg(0.1), setup_of(), KEY)
    check(result.per_client())


@pytest.mark.parametrize("most_text", [1000, 0])
def test_in_the_files_of_a_run(tmp_path, monkeypatch, most_text):
    if not most_text:
        pytest.importorskip("pyarrow")
    monkeypatch.setattr(client_rows, "_MOST_TEXT", most_text)
    result = fs.simulate(fs.fedavg(0.1), setup_of(), KEY, storage=tmp_path)
    check(RunFolder(tmp_path).clients())
    check(result.per_client())


@pytest.mark.slow
def test_of_a_comparison_and_a_sweep():
    keys = jax.random.split(KEY, 1)
    setup = dataclasses.replace(setup_of(), params=jnp.zeros(1))
    compared = fs.compare({"a": fs.fedavg(0.1), "b": fs.fedavg(0.2)}, setup, keys)
    check(compared.per_client())
    check(fs.sweep(fs.fedavg, setup, {"lr": [0.1, 0.2]}, keys).per_client())


@pytest.mark.slow
def test_without_names_tables_are_as_before(tmp_path):
    result = fs.simulate(fs.fedavg(0.1), setup_of(named=False), KEY, storage=tmp_path)
    assert [*result.per_client().columns] == [*client_rows.ROW_INDEX, "loss"]
    header = (tmp_path / "clients.csv").read_text().partition("\n")[0]
    assert header == "seed,round,client,split,num_examples,loss"
    assert client_names(setup_of(named=False).eval_fn) == {}


def test_names_are_no_part_of_the_digest_of_an_evaluation():
    def digest(eval_fn):
        setup = dataclasses.replace(setup_of(), eval_fn=eval_fn)
        return trace_run(fs.fedavg(0.1), setup, batched=False).evaluation

    named, unnamed = (setup_of(named=named).eval_fn for named in (True, False))
    assert digest(named) == digest(unnamed)
    other = client_evaluator(metrics, values(dataset().clients("test")))  # not per client
    alike = client_evaluator(metrics, values(dataset().clients("test")), per_client=True)
    assert digest(other) != digest(alike)


def test_a_run_without_names_goes_on_in_its_own_columns(tmp_path):
    """Names are not part of a run's identity, and its table keeps its header."""
    setup = setup_of(named=False)
    fs.simulate(
        fs.fedavg(0.1),
        setup,
        KEY,
        callbacks=[lambda event: "stop"],
        storage=tmp_path,
        options=fs.Options(segment_seconds=1e-9),
    )
    before = RunFolder(tmp_path).clients()
    fs.simulate(fs.fedavg(0.1), setup_of(), KEY, storage=tmp_path)
    after = RunFolder(tmp_path).clients()
    assert [*after.columns] == [*client_rows.ROW_INDEX, "loss"]
    assert set(before["round"]) < set(after["round"]) == {1, 2, 3, 4}


def test_a_metric_with_the_name_of_the_column(tmp_path):
    values = np.array([[[0.5, 2.0]]])
    history = History(
        np.array([[1]]),
        {"per_client/name": values, "per_client/num_examples": np.array([[[4, 1]]])},
        {},
    )
    rows = ClientRows(tmp_path, "ab", 1, {"": ("x", "y")})
    rows.resume(None)
    rows.append(history, ["0"])
    assert read_clients(tmp_path, "ab", None)["name"].astype(float).tolist() == [0.5, 2.0]
