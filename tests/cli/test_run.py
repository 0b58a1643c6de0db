"""The comparison as a library function: what it runs, and what it says about it."""

import dataclasses
import json
import subprocess
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from small_problems import quadratic_task

import fedjax_sim as fs
from fedjax_sim import datasets, engine, models
from fedjax_sim.cli import build, registry, report
from fedjax_sim.cli.config import RunConfig, check, read, to_json
from fedjax_sim.cli.run import compare, prepare
from fedjax_sim.simulation.simulate import Progress

TINY = RunConfig(
    model="softmax_regression",
    num_clients=20,
    cohort_size=4,
    rounds=5,
    local_steps=3,
    seeds=2,
    seed=7,
    eval_every=2,
    algorithms=("fedavg", "fedprox"),
    hyper=("fedprox.mu=0",),
    target_accuracy=0.5,
    dropout=0.2,
)


@pytest.fixture(scope="module")
def events():
    return []


@pytest.fixture(scope="module")
def result(tmp_path_factory, events):
    config = dataclasses.replace(TINY, output=tmp_path_factory.mktemp("results"))
    return compare(config, lambda name, progress: events.append((name, progress)))


def curves(history: pd.DataFrame, algorithm: str, metric: str) -> pd.DataFrame:
    rows = (history["algorithm"] == algorithm) & (history["metric"] == metric)
    return history.loc[rows, :].pivot(index="round", columns="seed", values="value")


def test_history_is_tidy_and_complete(result):
    frame = pd.read_csv(result.config.output / "history.csv")
    pd.testing.assert_frame_equal(frame, result.history, check_dtype=False)
    for algorithm in TINY.algorithms:
        for metric in ("test/accuracy", "test/loss", "train/accuracy", "train/loss", "local_steps"):
            table = curves(frame, algorithm, metric)
            assert table.index.tolist() == [2, 4, 5]  # every second round, and the last
            assert table.columns.tolist() == [7, 8]
            assert table.notna().all(axis=None)


def test_each_seed_is_what_a_run_of_its_own_gives(result):
    problem = prepare(result.config, datasets.load("digits"))
    for i, seed in enumerate((7, 8)):
        params, timeline = jax.tree.map(lambda x, i=i: x[i], (problem.params, problem.timeline))
        state, _ = jax.jit(
            lambda task, params, timeline, key: engine.run(
                registry.algorithm("fedavg", {"lr": 0.2}), task, timeline, params, key
            )
        )(problem.task, params, timeline, problem.keys[i])
        for metric, value in problem.eval_fn(state.server.params).items():
            recorded = curves(result.history, "fedavg", metric).loc[5, seed]
            # The batched program sums in another order: float32 rounding over 15 local steps.
            np.testing.assert_allclose(recorded, value, rtol=1e-4)


def test_algorithms_are_paired(result):
    """FedProx without its proximal term is FedAvg, if clients, minibatches and models agree."""
    for metric in ("test/loss", "train/loss"):
        np.testing.assert_allclose(
            curves(result.history, "fedavg", metric),
            curves(result.history, "fedprox", metric),
            rtol=1e-5,  # two compiled programs
        )


def test_seeds_differ_in_model_schedule_and_minibatches():
    config = dataclasses.replace(TINY, model="mlp_small")
    problem = prepare(config, datasets.load("digits"))
    assert not (problem.timeline.clients[0] == problem.timeline.clients[1]).all()
    assert not (
        problem.params["dense1"]["kernel"][0] == problem.params["dense1"]["kernel"][1]
    ).all()
    assert len(np.unique(jax.random.key_data(problem.keys), axis=0)) == 2


def test_first_seed_selects_the_same_runs(result, tmp_path):
    """Seed 8 is seed 8, whether it runs beside seed 7 or first."""
    config = dataclasses.replace(
        TINY, seed=8, seeds=1, algorithms=("fedavg",), hyper=(), output=tmp_path
    )
    alone = compare(config)
    np.testing.assert_allclose(
        curves(alone.history, "fedavg", "test/loss")[8],
        curves(result.history, "fedavg", "test/loss")[8],
        rtol=1e-4,  # float32 rounding: batches of another width
    )
    assert alone.summary.loc["fedavg", "accuracy_std"] == 0


def test_summary_agrees_with_history(result):
    summary = json.loads((result.config.output / "summary.json").read_text())
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


def test_progress_is_reported_from_start_to_end(result, events):
    del result
    for name in TINY.algorithms:
        told = [progress for algorithm, progress in events if algorithm == name]
        assert told[0] is None
        assert [progress.round for progress in told[1:]] == [2, 4, 5]
        assert isinstance(told[-1], Progress)
        assert set(told[-1].metrics) >= {report.ACCURACY, report.LOSS}


def test_another_algorithm_can_be_added_to_a_finished_comparison(tmp_path):
    config = dataclasses.replace(TINY, algorithms=("fedavg",), hyper=(), output=tmp_path)
    compare(config)
    spent = (tmp_path / "fedavg" / "timing.json").read_text()
    both = compare(dataclasses.replace(config, algorithms=("scaffold",)))
    assert both.summary.index.tolist() == ["fedavg", "scaffold"]
    assert both.history["algorithm"].unique().tolist() == ["fedavg", "scaffold"]
    assert (tmp_path / "fedavg" / "timing.json").read_text() == spent
    assert read(tmp_path / "config.json").algorithms == ("fedavg", "scaffold")
    with pytest.raises(ValueError, match=r"scaffold has .* there"):
        compare(dataclasses.replace(config, algorithms=("scaffold",), lr=0.3))


@pytest.mark.parametrize("partition", build.PARTITIONS)
def test_partitions_cover_each_option(partition):
    config = dataclasses.replace(TINY, partition=partition, alpha=1.0)
    dataset = datasets.load("digits")
    if partition == "natural":
        groups = np.arange(len(dataset.train["y"])) % 6
        dataset = dataset._replace(train_groups=groups, group_names=tuple("abcdef"))
    data = build.clients(config, dataset).data
    assert data.num_clients == (6 if partition == "natural" else 20)
    assert (data.client_ids == tuple("abcdef")) == (partition == "natural")
    labels = [np.unique(data.client(i)["y"]).size for i in range(data.num_clients)]
    if partition == "classes":
        assert labels == [2] * 20
    sizes = np.asarray(data.sizes)
    assert (np.ptp(sizes) > 2) == (partition in ("dirichlet-by-class", "quantity"))


@pytest.mark.parametrize(
    ("sampling", "slots", "mean_cohort"),
    [
        ("uniform", 5, 5),
        ("weighted", 5, 5),
        ("bernoulli", 20, 5),
        ("cyclic", 5, 5),
        ("full", 20, 20),
    ],
)
def test_sampling_and_dropout_options(sampling, slots, mean_cohort):
    config = dataclasses.replace(TINY, sampling=sampling, cohort_size=5, rounds=200, dropout=0.2)
    timeline = prepare(config, datasets.load("digits")).timeline
    assert timeline.clients.shape == (2, 200, slots)
    mean = float(timeline.mask.sum(axis=-1).mean())
    # Standard error of the mean below sqrt(20 / 4) / sqrt(400) = 0.12; four of them.
    assert abs(mean - 0.8 * mean_cohort) < 0.5


def test_local_work_options():
    dataset = datasets.load("digits")
    epochs = dataclasses.replace(TINY, local_steps=None, local_epochs=2, batch_size=10)
    task = prepare(epochs, dataset).task
    sizes = np.asarray(task.num_examples)
    assert task.num_steps.tolist() == (2 * np.ceil(sizes / 10)).astype(int).tolist()
    steps = prepare(dataclasses.replace(TINY, local_steps=3), dataset).task
    assert set(steps.num_steps.tolist()) == {3}


def test_weighting_option():
    assert build.weighting(TINY) is engine.uniform_weights
    weighted = dataclasses.replace(TINY, weighting="examples")
    assert build.weighting(weighted) is engine.weight_by_examples


@pytest.mark.parametrize("execution", ["vmapped", "chunked", "sequential", "auto"])
def test_execution_options_agree(execution, result, tmp_path):
    config = dataclasses.replace(
        TINY, execution=execution, chunk_size=3, algorithms=("fedavg",), hyper=(), output=tmp_path
    )
    losses = curves(compare(config).history, "fedavg", "train/loss")
    expected = curves(result.history, "fedavg", "train/loss")
    np.testing.assert_allclose(losses, expected, rtol=1e-4)  # the order of float32 sums


@pytest.mark.parametrize("name", build.MODELS)
def test_models_match_the_names_and_shapes_of_the_options(name):
    hints = typing.get_type_hints(RunConfig)
    assert set(typing.get_args(hints["model"])) == {"auto", *build.MODELS}
    assert set(typing.get_args(hints["partition"])) == set(build.PARTITIONS)
    shape, built = build.MODELS[name]
    shape = shape or (5,)
    model = built(shape, 3, models.auto)
    params = jax.eval_shape(model.init, jax.random.key(0))
    inputs = jax.ShapeDtypeStruct((2, *shape), np.float32)
    assert jax.eval_shape(model.apply, params, inputs).shape == (2, 3)


@pytest.mark.parametrize("name", registry.ALGORITHMS)
def test_algorithms_on_the_command_line_accept_each_hyper_parameter(name):
    defaults = registry.hyper_defaults(name) | dict.fromkeys(registry.common_hyper(name))
    values = {key: v if isinstance(v, str) else 0.25 for key, v in defaults.items()}
    settings = tuple(f"{name}.{key}={value}" for key, value in values.items())
    config = RunConfig(algorithms=(name,), hyper=settings)
    assert registry.hyper_parameters(config)[name] == values


def test_hyper_parameters_that_all_algorithms_have():
    config = RunConfig(
        algorithms=("fedavg", "fedsam"), lr=0.5, lr_decay=0.9, clip=3.0, weight_decay=0.01,
        hyper=("fedsam.clip=2", "fedsam.radius=0"),
    )  # fmt: skip
    hyper = registry.hyper_parameters(config)
    common = {"lr": 0.5, "lr_decay": 0.9, "weight_decay": 0.01}
    assert hyper == {"fedavg": common | {"clip": 3.0}, "fedsam": common | {"clip": 2, "radius": 0}}


@pytest.mark.parametrize("name", ["fedavg", "fedsam", "scaffold"])
def test_rate_decays_over_rounds_and_decay_comes_after_clipping(name):
    """One step a round on F(x) = |x - 10|^2 / 2 from 1: clipped to -2, then 0.5 x is added."""
    hyper = {"lr": 0.1, "lr_decay": 0.5, "clip": 2.0, "weight_decay": 0.5}
    task = quadratic_task(np.ones((1, 1, 1)), np.full((1, 1), 10.0), 1)
    timeline = fs.timelines.full(3, 1, task.num_steps)
    algorithm = registry.algorithm(name, hyper)
    state, _ = fs.run(algorithm, task, timeline, jnp.ones(1), jax.random.key(0))
    x = 1.0
    for t in range(3):
        x -= 0.1 * 0.5**t * (-2 + 0.5 * x)
    np.testing.assert_allclose(state.server.params, x, rtol=1e-6)  # single precision


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip": 0.0}, "clip is 0.0; expected a positive number"),
        ({"lr_decay": -1.0}, "lr_decay is -1.0; expected a positive number"),
        ({"weight_decay": -0.1}, "weight_decay is -0.1; expected a number of at least 0"),
        ({"lr_decay": 0.9, "algorithms": ("fedac",)}, "lr_decay is 0.9, but fedac does not have"),
    ],
)
def test_refuses_hyper_parameters_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        compare(RunConfig(**options))


def test_hyper_parameters_override_each_other():
    config = RunConfig(
        algorithms=("fedavg", "fedadam"), lr=0.5, server_lr=0.7, hyper=("fedadam.lr=0.9",)
    )
    assert registry.hyper_parameters(config) == {
        "fedavg": {"lr": 0.5},
        "fedadam": {"lr": 0.9, "server_lr": 0.7},
    }


def test_config_survives_json(tmp_path):
    config = dataclasses.replace(TINY, output=tmp_path / "a", data_dir=tmp_path)
    # SCAFFOLD is from an earlier call.
    hyper = registry.hyper_parameters(config) | {"scaffold": {"lr": 1.0}}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"config": to_json(config), "algorithms": hyper}))
    again = read(path)
    assert registry.hyper_parameters(again) == registry.hyper_parameters(config)
    ignored = {"hyper": (), "lr": None}
    assert dataclasses.replace(again, **ignored) == dataclasses.replace(config, **ignored)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"config": {"rounds": 3}, "algorithms": {}}'])
def test_files_that_are_no_config_are_refused(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"not the config\.json of a comparison"):
        read(path)


def test_library_callers_are_checked_too():
    with pytest.raises(ValueError, match="sampling is 'random'; expected one of uniform, "):
        check(dataclasses.replace(TINY, sampling="random"))  # pyright: ignore[reportArgumentType]


def test_git_revision(tmp_path):
    file = tmp_path / "code.py"
    file.write_text("x = 1\n")
    assert report.git_revision(file) is None  # no checkout

    def git(*arguments: str) -> str:
        name = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        command = ["git", "-C", str(tmp_path), *name, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    assert report.git_revision(file) is None  # a checkout of something else
    git("add", "code.py")
    git("commit", "-q", "-m", "first")
    head = git("rev-parse", "HEAD")
    assert report.git_revision(file) == {"revision": head, "modified": False}
    file.write_text("x = 2\n")
    assert report.git_revision(file) == {"revision": head, "modified": True}


def test_json_is_strict(tmp_path):
    path = tmp_path / "x.json"
    report.write_json(path, {"a": float("nan"), "b": [np.float32(2), np.inf], "c": (True, None)})
    values = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(name))
    assert values == {"a": None, "b": [2.0, None], "c": [True, None]}


def test_summary_when_only_some_seeds_reach_the_target():
    values = {0: [0.1, 0.9], 1: [0.2, 0.3], 2: [0.8, 0.7]}
    rows = [("a", s, r, report.ACCURACY, v[r - 1]) for s, v in values.items() for r in (1, 2)]
    history = pd.DataFrame(rows, columns=list(report.HISTORY_COLUMNS))
    timing = {"a": {"compile_seconds": 0.0, "run_seconds": 0.0, "local_steps": 0}}
    row = report.summarize(history, 3, 0.75, timing).loc["a"]
    assert row["reached"] == 2
    assert row["rounds_to_target"] == 1.5  # of rounds 2 and 1
    assert row["accuracy_mean"] == pytest.approx((0.9 + 0.3 + 0.7) / 3)
    assert not row["finished"]
    assert row["local_steps_per_second"] == 0
    none = report.summarize(history, 2, 0.95, timing).loc["a"]
    assert none["reached"] == 0
    assert np.isnan(none["rounds_to_target"])
    assert none["finished"]


def test_examples_on_the_host_change_nothing(tmp_path):
    """An option that no result depends on: the same bits, also in a folder begun without it."""
    shared = {"algorithms": ("scaffold",), "rounds": 4, "seeds": 2, "model": "softmax_regression"}
    expected = compare(RunConfig(output=tmp_path / "device", **shared)).history
    for name, states in (("host", "device"), ("both", "host")):
        config = RunConfig(output=tmp_path / name, examples_memory=0.0005, states=states, **shared)
        pd.testing.assert_frame_equal(compare(config).history, expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"states": "host"}, "states is host; expected examples_memory with it"),
        ({"examples_memory": 0.0}, "examples_memory is 0.0; expected a positive number"),
        ({"examples_memory": 1.0, "num_strata": 2}, "examples_memory is 1.0; expected none with"),
        ({"sampling": "stratified"}, "num_strata is None; expected a number, which sampling"),
    ],
)
def test_refuses_places_that_contradict(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        compare(RunConfig(output=tmp_path, **options))


def test_diagnosis_needs_all_data(tmp_path):
    with pytest.raises(ValueError, match="num_strata is 2; expected none with --diagnose"):
        compare(RunConfig(output=tmp_path, num_strata=2), diagnose=True)
