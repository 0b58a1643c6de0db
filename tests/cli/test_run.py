"""The comparison as a library function: what it runs, and what it says about it."""

import dataclasses
import json
import shutil
import types

import hand_made_runs
import jax
import numpy as np
import pandas as pd
import pytest

import fedjax_sim as fs
from fedjax_sim import datasets, models
from fedjax_sim.cli import report
from fedjax_sim.cli.grid import Axis, SweepOptions
from fedjax_sim.cli.main import main
from fedjax_sim.cli.run import compare, ready
from fedjax_sim.cli.sweep import run_sweep
from fedjax_sim.datasets import shakespeare_tff
from fedjax_sim.runs import FolderError, read_runs
from fedjax_sim.runs.result import Progress
from fedjax_sim.studies.setups import (
    ALGORITHMS,
    Problem,
    Study,
    options,
    prepare,
    read,
    resolve,
)

SMALL = {
    "model": "softmax_regression",
    "num_clients": 20,
    "cohort_size": 4,
    "rounds": 2,
    "local_steps": 3,
    "seeds": 2,
    "seed": 7,
    "eval_every": 2,
    "algorithms": ("fedavg",),
    "target_accuracy": 0.5,
    "dropout": 0.2,
}
TINY = SMALL | {
    "rounds": 5, "algorithms": ("fedavg", "fedprox"), "hyper": {"fedprox": {"mu": 0.0}}
}  # fmt: skip
DIGITS = datasets.load("digits")


def study(values: dict, **others) -> Study:
    """A study with options in place of the quickstart's."""
    return Study(options(**values | others))


def problem(values: dict, **others) -> Problem:
    return prepare(study(values, **others), DIGITS)


@pytest.fixture(scope="module")
def events():
    return []


@pytest.fixture(scope="module")
def result(tmp_path_factory, events):
    follow = types.SimpleNamespace(
        begin=lambda name: events.append((name, None)),
        progress=lambda progress: events.append((progress.name, progress)),
    )
    output = tmp_path_factory.mktemp("results")
    return compare(resolve(study(TINY, output=output)), callbacks=[follow])


def curves(history: pd.DataFrame, algorithm: str, metric: str) -> pd.DataFrame:
    rows = (history["algorithm"] == algorithm) & (history["metric"] == metric)
    return history.loc[rows, :].pivot(index="round", columns="seed", values="value")


@pytest.mark.slow
def test_history_is_tidy_and_complete(result):
    frame = pd.read_csv(result.output / "history.csv")
    pd.testing.assert_frame_equal(frame, result.history, check_dtype=False)
    for algorithm in TINY["algorithms"]:
        for metric in ("test/accuracy", "test/loss", "train/accuracy", "train/loss", "local_steps"):
            table = curves(frame, algorithm, metric)
            assert table.index.tolist() == [0, 2, 4, 5]  # first, every second round, last
            assert table.columns.tolist() == [7, 8]
            assert table.notna().all(axis=None)


@pytest.mark.slow
def test_each_seed_is_what_a_run_of_its_own_gives(result):
    own = problem(TINY)
    shared = own.setup
    for i, seed in enumerate((7, 8)):
        params, timeline = jax.tree.map(lambda x, i=i: x[i], (shared.params, shared.timeline))
        state, _ = jax.jit(
            lambda setup, key: fs.run(ALGORITHMS["fedavg"].build({"lr": 0.2}), setup, key)
        )(fs.Setup(shared.task, timeline, params), own.keys[i])
        for metric, value in shared.eval_fn(state.server.params).items():
            recorded = curves(result.history, "fedavg", metric).loc[5, seed]
            # The batched program sums in another order: float32 rounding over 15 local steps.
            np.testing.assert_allclose(recorded, value, rtol=1e-4)


@pytest.mark.slow
def test_algorithms_are_paired(result):
    """FedProx without its proximal term is FedAvg, if clients, minibatches and models agree."""
    for metric in ("test/loss", "train/loss"):
        np.testing.assert_allclose(
            curves(result.history, "fedavg", metric),
            curves(result.history, "fedprox", metric),
            rtol=1e-5,  # two compiled programs
        )


@pytest.mark.slow
def test_seeds_differ_in_model_schedule_and_minibatches():
    own = problem(TINY, model="mlp_small")
    clients, kernels = own.setup.timeline.clients, own.setup.params["dense1"]["kernel"]
    assert not (clients[0] == clients[1]).all()
    assert not (kernels[0] == kernels[1]).all()
    assert len(np.unique(jax.random.key_data(own.keys), axis=0)) == 2


@pytest.mark.slow
def test_first_seed_selects_the_same_runs(result, tmp_path):
    """Seed 8 is seed 8, whether it runs beside seed 7 or first."""
    alone = compare(
        resolve(study(TINY, seed=8, seeds=1, algorithms=("fedavg",), output=tmp_path, hyper={}))
    )
    np.testing.assert_allclose(
        curves(alone.history, "fedavg", "test/loss")[8],
        curves(result.history, "fedavg", "test/loss")[8],
        rtol=1e-4,  # float32 rounding: batches of another width
    )
    assert np.isnan(alone.summary.loc["fedavg", "accuracy_std"])  # n - 1 = 0


@pytest.mark.slow
def test_summary_agrees_with_history(result):
    summary = json.loads((result.output / "summary.json").read_text())
    for algorithm, row in summary["algorithms"].items():
        accuracy = curves(result.history, algorithm, "test/accuracy")
        assert row["accuracy_mean"] == pytest.approx(accuracy.loc[5].mean(), rel=1e-12)
        assert row["accuracy_std"] == pytest.approx(accuracy.loc[5].std(ddof=1), rel=1e-12)
        reached = [accuracy.index[accuracy[s] >= 0.5] for s in accuracy.columns]
        reached = [rounds[0] for rounds in reached if len(rounds)]
        assert row["reached"] == len(reached)
        assert row["rounds_to_target"] == (np.median(reached) if reached else None)
        steps = curves(result.history, algorithm, "local_steps").loc[5].sum()
        assert row["local_steps"] == steps
        assert row["local_steps_per_second"] == pytest.approx(steps / row["run_seconds"])
        assert row["finished"]
    assert summary["algorithms"]["fedprox"]["hyper_parameters"] == {"lr": 0.2, "mu": 0.0}


@pytest.mark.slow
def test_progress_is_reported_from_start_to_end(result, events):
    del result
    for name in TINY["algorithms"]:
        reports = [progress for algorithm, progress in events if algorithm == name]
        assert reports[0] is None
        rounds = [progress.round for progress in reports[1:]]
        assert rounds == sorted(set(rounds))  # lengths depend on the time of a round
        assert rounds[-1] == 5
        assert isinstance(reports[-1], Progress)
        assert set(reports[-1].metrics) >= {report.ACCURACY, report.LOSS}


@pytest.mark.slow
def test_another_algorithm_can_be_added_to_a_finished_comparison(tmp_path):
    compare(resolve(study(SMALL, output=tmp_path)))
    spent = (tmp_path / "fedavg" / "timing.json").read_text()
    both = compare(resolve(study(SMALL, output=tmp_path, algorithms=("scaffold",))))
    assert both.summary.index.tolist() == ["fedavg", "scaffold"]
    assert both.history["algorithm"].unique().tolist() == ["fedavg", "scaffold"]
    assert (tmp_path / "fedavg" / "timing.json").read_text() == spent
    assert read(tmp_path / "config.json").algorithms.algorithms == ("fedavg", "scaffold")
    with pytest.raises(ValueError, match=r"scaffold has .* there"):
        compare(resolve(study(SMALL, output=tmp_path, algorithms=("scaffold",), lr=0.3)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampling", "slots", "mean_cohort"),
    [
        ("uniform", 5, 5),
        ("weighted", 5, 5),
        ("bernoulli", 20, 5),
        ("poisson", 17, 5),
        ("cyclic", 5, 5),
        ("full", 20, 20),
        ("pairs", 5, 5),
        ("geometric", 20, 20),
    ],
)
def test_sampling_and_dropout_options(sampling, slots, mean_cohort):
    timeline = problem(TINY, sampling=sampling, cohort_size=5, rounds=200).setup.timeline
    assert timeline.clients.shape == (2, 200, slots)
    mean = float(timeline.mask.sum(axis=-1).mean())
    # Standard error of the mean below sqrt(20 / 4) / sqrt(400) = 0.12; four of them.
    assert abs(mean - 0.8 * mean_cohort) < 0.5


@pytest.mark.slow
def test_rounds_in_pairs_and_random_communication():
    """An odd number of rounds ends with the first round of a pair."""
    pairs = problem(TINY, cohort_size=5, local_steps=4, sampling="pairs").setup.timeline
    clients = np.asarray(pairs.clients)
    assert clients.shape == (2, 5, 5)
    np.testing.assert_array_equal(clients[:, 1:4:2], clients[:, 0:4:2])
    assert (clients[:, 2] != clients[:, 1]).any()
    common = problem(TINY, cohort_size=100, local_steps=4, sampling="geometric").setup.timeline
    steps = np.asarray(common.num_steps)
    assert steps.shape == (2, 5, 20)
    assert (steps == steps[..., :1]).all()
    assert len(set(steps[..., 0].ravel().tolist())) > 2
    assert common.max_steps == 20


def test_local_work_options():
    task = problem(TINY, local_steps=None, local_epochs=2, batch_size=10).setup.task
    sizes = np.asarray(task.num_examples)
    assert task.num_steps.tolist() == (2 * np.ceil(sizes / 10)).astype(int).tolist()
    steps = problem(TINY, local_steps=3).setup.task
    assert set(steps.num_steps.tolist()) == {3}


def test_weighting_option():
    assert problem(TINY).setup.weighting is fs.uniform_weights
    assert problem(TINY, weighting="examples").setup.weighting is fs.weight_by_examples


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> pd.DataFrame:
    """The history of the small comparison by the default execution."""
    return compare(resolve(study(SMALL, output=tmp_path_factory.mktemp("small")))).history


@pytest.mark.slow
@pytest.mark.parametrize("execution", ["chunked", "sequential"])
def test_execution_options_agree(execution, small, tmp_path):
    own = study(SMALL, execution=execution, chunk_size=3, output=tmp_path)
    losses = curves(compare(resolve(own)).history, "fedavg", "train/loss")
    expected = curves(small, "fedavg", "train/loss")
    np.testing.assert_allclose(losses, expected, rtol=1e-4)  # the order of float32 sums


@pytest.mark.slow
@pytest.mark.parametrize("name", models.MODELS)
def test_models_take_the_shapes_in_their_rows(name):
    shape, built = models.MODELS[name]
    shape = shape or (5,)
    model = built(shape, 3, models.auto)
    params = jax.eval_shape(model.init, jax.random.key(0))
    dtype = np.int32 if name.startswith(("lstm", "transformer")) else np.float32
    inputs = jax.ShapeDtypeStruct((2, *shape), dtype)
    positions = (80,) if name in ("lstm_sequence", "transformer") else ()
    assert jax.eval_shape(model.apply, params, inputs).shape == (2, *positions, 3)


@pytest.mark.slow
def test_examples_on_the_host_change_nothing(tmp_path):
    """An option that no result depends on: the same bits, also in a folder begun without it."""
    shared = SMALL | {"algorithms": ("scaffold",), "eval_every": 1}
    expected = compare(resolve(study(shared, output=tmp_path / "device"))).history
    stored = {"output": tmp_path / "host", "examples_memory": 0.0005, "states": "host"}
    pd.testing.assert_frame_equal(compare(resolve(study(shared, **stored))).history, expected)


@pytest.mark.slow
def test_diagnosis_needs_all_data(tmp_path):
    with pytest.raises(ValueError, match="num_strata is 2; expected none with --diagnose"):
        compare(resolve(study({}, output=tmp_path, num_strata=2)), diagnose=True)


@pytest.mark.slow
def test_more_rounds_extend_a_run(tmp_path):
    def go(name, rounds):
        sizes = {"seeds": 2, "num_clients": 10, "cohort_size": 2, "local_steps": 1}
        shared = {"algorithms": ("scaffold",), "model": "softmax_regression"} | sizes
        return compare(resolve(study(shared, output=tmp_path / name, rounds=rounds)))

    whole = go("whole", 6)
    go("parts", 4)
    extended = go("parts", 6)
    pd.testing.assert_frame_equal(extended.history, whole.history)
    assert bool(extended.summary.loc["scaffold", "finished"])
    with pytest.raises(ValueError, match="rounds is 6 there and 4 here"):
        go("parts", 4)


def test_rounds_that_cannot_extend_a_run_leave_the_configuration_as_it_was(tmp_path):
    """Otherwise neither the old number of rounds nor the new one would continue the run."""
    with ready(resolve(study(SMALL, rounds=3, output=tmp_path))) as job:
        report.write_json(tmp_path / "config.json", job.header)
    saved, folder = (tmp_path / "config.json").read_bytes(), tmp_path / "fedavg"
    hand_made_runs.write_run(folder, rounds=3)
    with pytest.raises(ValueError, match=r"^rounds is 5, and the directory has 3 rounds with an"):
        compare(resolve(study(SMALL, rounds=5, output=tmp_path)))
    shutil.rmtree(folder)
    hand_made_runs.write_run(folder, rounds=2, timeline="another")
    with pytest.raises(ValueError, match=r"^rounds is 5, and the 2 rounds in .* have other"):
        compare(resolve(study(SMALL, rounds=5, output=tmp_path)))
    assert (tmp_path / "config.json").read_bytes() == saved


@pytest.mark.slow
def test_runs_of_other_comparisons_are_refused_where_they_were_copied(tmp_path, capsys):
    """Tables would compare them under the setting and the names of the comparison there."""
    small = SMALL | {"rounds": 1, "eval_every": 1, "seeds": 1}
    here, other = tmp_path / "here", tmp_path / "other"
    compare(resolve(study(small, output=here, algorithms=("fedavg", "fedprox"))))
    compare(resolve(study(small, output=other, alpha=5.0)))
    assert main(["table", str(here)]) == 0
    (here / "fedavg").rename(tmp_path / "kept")
    for source, text in {
        other / "fedavg": "alpha is 5.0 there",
        here / "fedprox": "algorithm is 'fedprox' there",
    }.items():
        shutil.copytree(source, here / "fedavg")
        commands = [["table", str(here)], ["run", str(here / "config.json")]]
        commands[1] += ["--algorithms", "fedprox"]  # whose own run is right
        for command in commands:
            assert main(command) == 2
            assert f"{here / 'fedavg'} " in (error := capsys.readouterr().err)
            assert text in error
        shutil.rmtree(here / "fedavg")
    (tmp_path / "kept").rename(here / "fedavg")
    assert main(commands[1]) == 0
    shutil.copy(other / "config.json", here)
    with pytest.raises(FolderError, match=r"alpha is 0.1 there and 5.0 in config.json"):
        fs.load(here).models("fedavg")


@pytest.mark.slow
@pytest.mark.parametrize("one_by_one", [False, True])
def test_algorithms_are_not_added_on_other_examples(tmp_path, one_by_one):
    """The options are the same, and the file of the data set is another one."""
    small = SMALL | {"rounds": 1, "eval_every": 1, "output": tmp_path}
    small |= {"partition_per_seed": one_by_one}
    compare(resolve(Study(options(**small), dataset=DIGITS)))
    before = (tmp_path / "history.csv").read_bytes()
    other = DIGITS._replace(train={**DIGITS.train, "x": DIGITS.train["x"] // 2})
    added = Study(options(**small | {"algorithms": ("fedprox",)}), dataset=other)
    with pytest.raises(FolderError, match=r"another comparison: data of fedavg.* differ"):
        compare(resolve(added))
    assert (tmp_path / "history.csv").read_bytes() == before
    assert not (tmp_path / "fedprox").exists()
    compare(resolve(dataclasses.replace(added, dataset=DIGITS)))


@pytest.mark.slow
def test_algorithms_are_added_with_the_same_examples_on_the_host(tmp_path):
    """An algorithm is added with the examples on the host or not, if they are the same."""
    small = SMALL | {"rounds": 1, "eval_every": 1, "output": tmp_path}
    compare(resolve(Study(options(**small), dataset=DIGITS)))
    on_host = options(**small | {"algorithms": ("fedprox",), "examples_memory": 0.001})
    other = DIGITS._replace(train={**DIGITS.train, "x": DIGITS.train["x"] // 2})
    with pytest.raises(FolderError, match=r"another comparison: examples of fedavg.* differ"):
        compare(resolve(Study(on_host, dataset=other)))
    assert not (tmp_path / "fedprox").exists()
    compare(resolve(Study(on_host, dataset=DIGITS)))
    assert (tmp_path / "fedprox").is_dir()


@pytest.mark.slow
def test_grids_are_not_added_on_other_examples(tmp_path):
    """Their names differ, so that no configuration of one grid is a run of the other."""
    small = SMALL | {"rounds": 1, "eval_every": 1, "seeds": 1, "output": tmp_path}
    run = options(**small | {"algorithms": ("fedprox",)})
    other = DIGITS._replace(train={**DIGITS.train, "x": DIGITS.train["x"] // 2})

    def swept(dataset, name):
        grid = SweepOptions(run, {name: Axis((0.1, 0.3))})
        return run_sweep(Study(dataset=dataset), grid)

    swept(DIGITS, "lr")
    with pytest.raises(FolderError, match="another sweep: the examples of the data set have chang"):
        swept(other, "mu")
    assert len(read_runs(tmp_path)) == 2
    swept(DIGITS, "mu")
    assert len(read_runs(tmp_path)) == 4


@pytest.mark.slow
def test_sequences_with_a_label_at_every_position():
    """Padding counts neither in the loss nor in the accuracy; the LSTM predicts every position."""
    text = "Now, by my maidenhead, at twelve year old, I bade her come. " * 4
    roles = {"NURSE": [text], "CADE": ["We John Cade, so term'd", text[:150]]}
    data = shakespeare_tff.from_snippets(roles, {"NURSE": [text[:100]]})
    sizes = {"rounds": 1, "eval_every": 1, "seeds": 1, "cohort_size": 2, "batch_size": 4}
    own = prepare(study({"partition": "natural", "algorithms": ("fedavg",)} | sizes), data)
    assert own.description["model"] == {"name": "lstm_sequence", "parameters": 820_522}
    assert own.description["partition"]["num_examples"] == 6
    params = jax.tree.map(lambda x: x[0], own.setup.params)
    metrics = jax.jit(own.setup.eval_fn)(params)
    logits = own.parts.model.apply(params, data.test["x"])
    counted = data.test["y"] >= 0
    right = (logits.argmax(-1) == data.test["y"]) & counted
    expected = (right.sum(1) / counted.sum(1)).mean()
    np.testing.assert_allclose(metrics["test/accuracy"], expected, rtol=1e-5)
    assert counted.sum() == 100  # of 102 tokens in two pieces, whose first ones are inputs only
