"""FEMNIST by writer and at random: partitions, minibatches, comparison, tiny runs."""

import json
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedjax_sim as fs
from experiments.harness.data import pooled_test
from experiments.heterogeneity import femnist, femnist_problem, femnist_report
from experiments.heterogeneity.redraw import redraw
from fedjax_sim import datasets, models


def handwriting(num_writers=30):
    """The digits of scikit-learn, as if each person had written digits of one or two classes."""
    digits = datasets.load("digits")
    groups = [
        np.minimum(part["y"] * 3 + np.arange(len(part["y"])) % 4, num_writers - 1).astype(np.int32)
        for part in (digits.train, digits.test)
    ]
    return digits._replace(
        train_groups=groups[0],
        test_groups=groups[1],
        group_names=tuple(str(i) for i in range(num_writers)),
    )


def test_matched_iid_keeps_the_sizes():
    data = handwriting()
    writers = femnist_problem.assignment(data, "by writer", "matched", 0)
    iid = femnist_problem.assignment(data, "iid", "matched", 0)
    assert [len(rows) for rows in iid] == [len(rows) for rows in writers]
    assert len({len(rows) for rows in writers}) > 1
    for rows in (iid, writers):
        np.testing.assert_array_equal(np.sort(np.concatenate(rows)), np.arange(1438))
    kinds = [np.mean([len(set(data.train["y"][r])) for r in rows]) for rows in (writers, iid)]
    assert kinds[0] < 3 < 7 < kinds[1]  # classes a client has
    assert (iid[0] != femnist_problem.assignment(data, "iid", "matched", 1)[0]).any()


@pytest.mark.parametrize(("writers", "clients"), [(30, 1), (105, 1), (260, 3), (3597, 36)])
def test_leaf_deals_to_a_hundredth_of_the_writers(writers, clients):
    groups = np.arange(8000) % writers
    data = handwriting()._replace(train_groups=groups)
    iid = femnist_problem.assignment(data, "iid", "leaf_default", 0)
    sizes = [len(rows) for rows in iid]
    assert len(sizes) == clients
    assert sum(sizes) == 8000
    assert max(sizes) - min(sizes) <= 1


def test_weights_are_what_a_visit_sees():
    sizes = [1, 4, 165, 480, 499, 500, 501, 14708]
    expected = [20 * 25 if n // 20 >= 25 else n for n in sizes]  # as the authors' program has it
    work = fs.Work(*[None] * 3, jnp.array(sizes), None, None, 25)
    assert femnist.seen_examples(work).tolist() == expected


_draw = jax.jit(
    lambda key, size: jax.vmap(femnist_problem.repeated_pass(4, 5).draw(key, size, 30, 5))(
        jnp.arange(5)
    )
)


@given(st.integers(1, 30), st.integers(0, 2**31 - 1))
def test_repeated_pass(size, seed):
    """20 rows: every example at most as often as it was copied, all of them where these fit."""
    rows, weights = _draw(jax.random.key(seed), jnp.array(size))
    counts = np.bincount(np.asarray(rows).ravel(), minlength=size)
    assert rows.shape == (5, 4)
    assert bool(weights.all())
    assert len(counts) == size
    copies = -(-20 // size)
    assert counts.max() <= copies
    if copies * size == 20:
        assert (counts == copies).all()


def test_repeated_pass_is_random_and_refuses_nobody():
    """Clients without examples have no steps and weight 0."""
    rows, other = (_draw(jax.random.key(seed), jnp.array(30))[0] for seed in range(2))
    assert (rows != other).any()
    assert not _draw(jax.random.key(0), jnp.array(0))[1].any()
    assert femnist_problem.repeated_pass(4, 5).num_steps(np.array([0, 3])).tolist() == [0, 5]


def test_test_images_of_the_writers_that_train():
    data = handwriting()
    assert len(pooled_test(data)["y"]) == 359
    strangers = data._replace(test_groups=data.test_groups + 25)
    kept = (strangers.test_groups < 30).sum()
    assert 0 < kept < 359
    assert len(pooled_test(strangers)["y"]) == kept
    nobody = data._replace(test_groups=data.test_groups + 1000)
    assert len(pooled_test(nobody)["y"]) == 359


def made_up(curves):
    """Twenty evaluations of accuracies that rise linearly and stop at a level."""
    rows = []
    for name, (slope, level) in curves.items():
        for done in range(3, 63, 3):
            value = min(slope * done, level)
            both = ("test/accuracy", "test/loss")
            rows.extend((name, 0, 0, done, metric, value) for metric in both)
    columns = ["partition", "seed", "diverged_at", "round", "metric", "value"]
    return pd.DataFrame(rows, columns=columns)


def test_comparison():
    found = femnist_report.compared(
        made_up({"iid": (0.04, 0.9), "by writer": (0.02, 0.8)}), 0, femnist_report.TARGET
    )
    assert found.final == pytest.approx({"iid": 0.9, "by writer": 0.8})
    assert found.level == pytest.approx(0.8)
    assert found.reached == {"iid": 21, "by writer": 42}  # 0.79 / 0.04 = 19.75, 0.79 / 0.02 = 39.5
    assert found.rounds == {"iid": 21, "by writer": 42}
    assert found.slow_down == 2
    assert [claim.holds for claim in femnist_report.claims([found], 60)] == [True, True]
    short = femnist_report.compared(
        made_up({"iid": (0.04, 0.5), "by writer": (0.005, 0.6)}), 0, femnist_report.TARGET
    )
    assert short.level == pytest.approx((0.285 + 0.3) / 2)  # rounds 57 and 60
    assert short.reached == {"iid": np.inf, "by writer": np.inf}
    assert short.rounds == {"iid": 9, "by writer": 60}
    assert [claim.holds for claim in femnist_report.claims([short], 60)] == [False, True]
    rounds, accuracy = femnist_report.claims([found, short], 60)
    np.testing.assert_allclose(rounds.margins, [[21, 0]])  # both miss the target: round 61
    np.testing.assert_allclose(accuracy.margins, [[10, 50 - 29.25]])
    table = femnist_report.table([short])
    assert table["rounds to 79 %"].tolist() == ["not reached"] * 2
    assert table["rounds to it"].tolist() == ["9", "60"]


def linear_model(monkeypatch):
    data = handwriting()
    monkeypatch.setattr(femnist.datasets, "load", lambda *name: data)
    monkeypatch.setattr(
        femnist_problem, "build_model", lambda dataset: models.softmax_regression((8, 8, 1), 10)
    )


@pytest.mark.slow
def test_femnist_files_and_continuing(tmp_path, monkeypatch, capsys):
    """Both partitions have one schedule, model and key; a second call trains nothing."""
    linear_model(monkeypatch)
    options = femnist.Options(rounds=4, seeds=2, work=tmp_path / "work", output=tmp_path / "out")
    femnist.main(options)
    assert "s per round" in capsys.readouterr().out
    folder = tmp_path / "out" / "femnist"
    history = (folder / "femnist-matched.csv").read_bytes()
    assert "30 clients by writer, 30 at random" in (folder / "femnist-matched.md").read_text()
    assert json.loads((folder / "femnist-matched.json").read_text())["options"]["seeds"] == 2
    assert (folder / "femnist-matched.png").stat().st_size > 2_000
    runs = tmp_path / "work" / "femnist-seen-4"
    for seed in range(2):
        first, second = (
            json.loads((runs / f"{kind}-seed{seed}" / "run.json").read_text())
            for kind in ("iid_matched", "by_writer")
        )
        for name in ("data", "id", "sha256"):
            assert first.pop(name) != second.pop(name)
        assert first == second
        # Pinned from the first version of the experiment: runs that users have kept are found.
        assert first["config"] == {"batch": 20, "dataset": "digits", "lr": 0.02, "steps": 25}
        if seed == 0:
            assert (first["key"], first["timeline"]) == ("12f3cd3d71210072", "e0ab38d14dc0860a")
    femnist.main(options)
    assert "s per round" not in capsys.readouterr().out
    assert (folder / "femnist-matched.csv").read_bytes() == history
    text = folder / "femnist-matched.md"
    before = text.read_text()
    text.write_text("")
    redraw(tmp_path / "out")
    assert text.read_text() == before


@pytest.mark.slow
def test_uniform_weights_and_leafs_sizes_change_the_run(tmp_path, monkeypatch):
    data = handwriting()
    linear_model(monkeypatch)

    def losses(**options):
        given = femnist.Options(rounds=2, work=tmp_path / "work", **options)
        return femnist.trained(data, "iid", 0, given)["value"].to_numpy()

    usual, uniform = losses(), losses(weighting="uniform")
    leaf = losses(iid="leaf_default")
    assert (usual != uniform).any()
    assert (usual != leaf).any()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["femnist", "mnist"])
def test_a_round_on_real_data(tmp_path, monkeypatch, name):
    root = os.environ.get("FEDJAX_SIM_DATA")
    if root is None or not (pathlib.Path(root) / name).is_dir():
        pytest.skip(f"FEDJAX_SIM_DATA names no folder with {name}")
    dataset = datasets.load(name)
    assert dataset.train_groups is not None
    clients, test = len(set(dataset.train_groups)), len(pooled_test(dataset)["y"])
    assert clients > 1
    if name == "mnist":  # a fixed data set; FEMNIST is as LEAF sampled it
        assert (clients, test) == (539, 10_000)
    # The network fits the images; a smaller one is trained.
    network, shape = femnist_problem.build_model(dataset), dataset.test["x"].shape[1:]
    images = jax.ShapeDtypeStruct((2, *shape), jnp.float32)
    params = jax.eval_shape(network.init, jax.random.key(0))
    assert jax.eval_shape(network.apply, params, images).shape == (2, dataset.num_classes)
    small = models.softmax_regression(shape, dataset.num_classes)
    monkeypatch.setattr(femnist_problem, "build_model", lambda dataset: small)
    monkeypatch.setattr(femnist, "NUM_STEPS", 1)
    options = femnist.Options(dataset=name, rounds=1, work=tmp_path / "work", output=tmp_path)
    femnist.main(options)
    text = (tmp_path / "femnist" / f"{name}-matched.md").read_text()
    assert f"{clients} clients by writer" in text
    assert f"{test} test" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (lambda: femnist.Options(dataset="digits"), "dataset is 'digits'; expected one of"),
        (lambda: femnist.Options(iid="leaf"), "iid is 'leaf'; expected one of"),
        (lambda: femnist.Options(weighting="all"), "weighting is 'all'; expected one of"),
        (lambda: femnist.Options(rounds=0), "rounds is 0; expected at least 1"),
        (lambda: femnist.Options(seeds=0), "seeds is 0; expected at least 1"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        options()


def test_data_without_writers_are_refused():
    with pytest.raises(ValueError, match="dataset 'digits' has no writers; expected"):
        femnist_problem.assignment(datasets.load("digits"), "iid", "matched", 0)
