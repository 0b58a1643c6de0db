"""``clients.csv`` and ``clients.parquet``: values, resuming, refusals."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import fedjax_sim as fs
from fedjax_sim.engine import History
from fedjax_sim.engine.evaluation import at_rounds, client_evaluator, evaluator, merge_evaluators
from fedjax_sim.reports import read_client_values
from fedjax_sim.runs.storage import client_rows
from fedjax_sim.runs.storage.client_rows import ClientRows, client_frame, read_clients
from fedjax_sim.runs.storage.files import FolderError

RUN = "ab"
SEEDS = ["3", "4"]
SIZES = np.array([2, 0, 5])


def history(*rounds) -> History:
    """Two seeds; client i's loss in round t of seed s is 100 s + 10 t + i."""
    s, t, i = np.ix_(range(2), rounds, range(3))
    loss = (100 * s + 10 * t + i).astype(np.float32)
    sizes = np.broadcast_to(SIZES, loss.shape)
    metrics = {"test/per_client/loss": loss, "test/per_client/num_examples": sizes}
    return History(np.broadcast_to(rounds, (2, len(rounds))), metrics, {})


def expected(*rounds) -> pd.DataFrame:
    rows = [
        (seed, done, client, "test", SIZES[client], 100.0 * s + 10 * done + client)
        for done, (s, seed), client in itertools.product(rounds, enumerate(SEEDS), (0, 2))
    ]
    return pd.DataFrame(rows, columns=[*client_rows.ROW_INDEX, "loss"])


def same(actual, wanted):
    pd.testing.assert_frame_equal(actual, wanted, check_dtype=False)


@pytest.fixture(params=["clients.csv", "clients.parquet"])
def kind(request, monkeypatch):
    """Writes all rows into a text file, or into parts of Parquet."""
    if request.param == "clients.parquet":
        pytest.importorskip("pyarrow")
        monkeypatch.setattr(client_rows, "_MOST_TEXT", 0)
    return request.param


def begun(folder, *rounds) -> ClientRows:
    rows = ClientRows(folder, RUN, num_evaluations=4)
    rows.resume(None)
    for part in rounds:
        rows.append(history(*part), SEEDS)
    return rows


def test_rows_are_read_back_and_cut_when_resumed(tmp_path, kind):
    rows = begun(tmp_path, (1, 2))
    mark = rows.mark()
    rows.append(history(3, 4), SEEDS)
    assert (tmp_path / kind).exists()
    same(read_clients(tmp_path, RUN, mark), expected(1, 2, 3, 4))
    same(client_frame(history(1, 2), SEEDS), expected(1, 2))
    again = ClientRows(tmp_path, RUN, num_evaluations=4)
    again.resume(mark)
    same(read_clients(tmp_path, RUN, mark), expected(1, 2))
    assert again.mark() == mark
    again.append(history(3, 4), SEEDS)
    assert again.mark() == rows.mark()
    same(read_clients(tmp_path, RUN, again.mark()), expected(1, 2, 3, 4))


def test_rows_without_a_checkpoint_are_removed(tmp_path, kind):
    mark = begun(tmp_path, (0,)).mark()
    ClientRows(tmp_path, RUN, num_evaluations=4).resume(mark)
    same(read_clients(tmp_path, RUN, mark), expected(0))
    ClientRows(tmp_path, RUN, num_evaluations=4).resume(None)
    assert not client_rows.has_clients(tmp_path)
    assert ClientRows(tmp_path, RUN, num_evaluations=4).mark() is None


@pytest.mark.parametrize("change", ["flip", "delete", "of another run", "missing"])
def test_changed_rows_are_refused(tmp_path, kind, change):
    """By readers, with or without a checkpoint, and when the run goes on."""
    mark = begun(tmp_path, (1, 2), (3, 4)).mark()
    paths = sorted((tmp_path / kind).iterdir()) if kind == "clients.parquet" else [tmp_path / kind]
    path, run = paths[0], RUN
    match change:
        case "flip":
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
        case "delete" if kind == "clients.parquet":
            path.unlink()
        case "delete":
            path.write_bytes(path.read_bytes().replace(b"3,1,0,test,2,10.0\n", b""))
        case "of another run":
            run = "cd"
        case _:
            for each in paths:
                each.unlink()
    for read in (
        lambda: read_clients(tmp_path, run, mark),
        lambda: read_clients(tmp_path, run, None),
    ):
        with pytest.raises(FolderError, match="clients"):
            read()
    if run == RUN:
        with pytest.raises(FolderError, match="clients"):
            ClientRows(tmp_path, RUN, 4).resume(mark)


def test_torn_lines_are_cut_and_changed_ones_named(tmp_path):
    rows = begun(tmp_path, (1,))
    mark, path = rows.mark(), tmp_path / "clients.csv"
    whole = path.read_bytes()
    rows.append(history(2), SEEDS)
    path.write_bytes(whole + b"3,2,0,te")
    same(read_clients(tmp_path, RUN, mark), expected(1))
    ClientRows(tmp_path, RUN, 4).resume(mark)
    assert path.read_bytes() == whole
    path.write_bytes(whole.replace(b"10.0", b"10.5"))
    with pytest.raises(FolderError, match=r"clients.csv, line 2: .* was changed"):
        ClientRows(tmp_path, RUN, 4).resume(mark)
    with pytest.raises(FolderError, match=r"has no clients.csv"):
        read_clients(tmp_path / "none", RUN, None)


def test_names_of_seeds_with_commas_are_read(tmp_path):
    names = ["lr=0.1, momentum", 'the "second"']
    rows = ClientRows(tmp_path, RUN, num_evaluations=4)
    rows.append(history(1), names)
    frame = read_clients(tmp_path, RUN, rows.mark())
    assert sorted(set(frame["seed"])) == sorted(names)


@pytest.mark.slow
def test_rows_of_a_run(tmp_path):
    """Every other evaluation; personal values of clients beside the history's quantiles."""
    data = fs.FederatedData({"y": np.arange(6, dtype=np.float32)}, np.array([0, 2, 2, 6]))
    metrics = lambda w, e: {"loss": (e["y"] - w) ** 2}  # noqa: E731
    task = fs.empirical_task(lambda w, e, key: metrics(w, e)["loss"], data, fs.full_batch(1))
    clients = client_evaluator(metrics, data, per_client=True, quantiles=(0.5,))
    setup = fs.Setup(
        task,
        fs.timelines.full(4, 3, task.num_steps),
        jnp.zeros(2),
        merge_evaluators(
            client=at_rounds(clients, 2), test=evaluator(metrics, data.examples, max_examples=4)
        ),
    )
    keys = jax.random.split(jax.random.key(0), 2)
    kept = fs.simulate(
        fs.fedavg(0.1), setup, keys, storage=tmp_path, options=fs.Options(segment_seconds=1e-9)
    )
    frame = kept.per_client()
    assert sorted(set(frame["round"])) == [2, 4]
    assert set(frame["client"]) == {0, 2}
    same(frame, fs.simulate(fs.fedavg(0.1), setup, keys).per_client())
    # In the history: quantiles at the same rounds, no arrays, and the subsample's size.
    table = kept.to_frame().pivot_table("value", ["seed", "round"], "metric")
    assert not any("per_client" in name or "evaluated" in name for name in table)
    medians = table["client/loss/q50"].dropna()
    for seed, done in medians.index:
        rows = frame[(frame["seed"] == seed) & (frame["round"] == done)]
        np.testing.assert_allclose(medians[seed, done], rows["loss"].median(), rtol=1e-6)
    assert len(medians) == 4
    assert (table["test/examples"] == 4).all()
    assert len(table["test/loss"]) == 8


def test_a_frame_is_joined_once(monkeypatch):
    """Time is linear in the number of evaluations; metrics of other splits are numbers, too."""
    many = history(*range(100))
    other = {"valid/per_client/accuracy": np.ones((2, 100, 3), np.float32)}
    other["valid/per_client/num_examples"] = many.metrics["test/per_client/num_examples"]
    monkeypatch.setattr(pd, "concat", None)
    frame = client_frame(many._replace(metrics=many.metrics | other), SEEDS)
    assert len(frame) == 2 * 2 * 100 * 2
    assert [frame[name].dtype.kind for name in ("accuracy", "loss")] == ["f", "f"]
    assert frame["accuracy"].isna().equals(frame["split"] == "test")


@pytest.mark.parametrize("kept", [True, False])
def test_without_an_evaluation_per_client_there_are_no_rows(tmp_path, kept):
    data = fs.FederatedData({"y": np.ones(2, np.float32)}, np.arange(3))
    task = fs.empirical_task(lambda w, e, key: (e["y"] - w) ** 2, data, fs.full_batch(1))
    timeline = fs.timelines.full(1, 2, task.num_steps)
    setup = fs.Setup(task, timeline, jnp.zeros(1), lambda w: {"loss": w**2})
    keys, folder = jax.random.split(jax.random.key(0), 1), tmp_path if kept else None
    compared = fs.compare({"fedavg": fs.fedavg(0.1)}, setup, keys, storage=folder)
    assert compared.per_client().empty
    assert compared.simulations["fedavg"][0].per_client().empty


def test_clients_of_a_model_of_nan_have_no_values(tmp_path, allow_nans):
    """Comparisons with NaN are false, so a model of NaN would have accuracies of clients."""
    data = fs.from_clients([{"x": jnp.array([1.0, 3.0])}, {"x": jnp.array([2.0])}])
    task = fs.empirical_task(lambda w, batch, key: (w - batch["x"]) ** 2, data, fs.full_batch(1))

    def accuracy(w, examples):
        return {"accuracy": jnp.where(w > examples["x"], 0.75, 0.25)}

    each = fs.evaluation.client_evaluator(accuracy, data, per_client=True)
    timeline = fs.timelines.full(9, 2, task.num_steps)
    setup = fs.Setup(task, timeline, jnp.zeros(1), eval_fn=each, eval_every=3)
    keys = jax.random.split(jax.random.key(0), 1)
    algorithm = fs.fedavg(1e9)
    record = [fs.callbacks.Divergence("record")]
    memory = fs.simulate(algorithm, setup, keys, callbacks=record)
    folder = fs.simulate(algorithm, setup, keys, callbacks=record, storage=tmp_path / "run")
    swept = fs.sweep(fs.fedavg, setup, {"lr": [1e9]}, keys)
    diverged_at = int(memory.state.diverged_at[0])
    assert 3 < diverged_at <= 9
    frames = memory.per_client(), folder.per_client(), swept.per_client()
    for frame in (*frames, read_client_values(tmp_path / "run")):
        known = np.isfinite(frame["accuracy"])
        np.testing.assert_array_equal(known, frame["round"] < diverged_at)
        assert frame["num_examples"].tolist() == [2, 1] * 3
