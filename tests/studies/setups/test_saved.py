"""A model goes from a run's folder into another program."""

import jax
import numpy as np
import pytest
import small_runs
from safetensors.numpy import load_file

import fedjax_sim as fs
from fedjax_sim import callbacks
from fedjax_sim.cli.main import main
from fedjax_sim.cli.watching import Watching
from fedjax_sim.datasets import from_arrays
from fedjax_sim.runs.storage.model_files import Models, named_leaves, read_models, write_models
from fedjax_sim.studies.setups import Study, options, prepare
from fedjax_sim.studies.setups.saved import SavedResults

OPTIONS = """run quickstart --algorithms fedavg scaffold --rounds 4 --eval-every 2 --seeds 2
--num-clients 10 --cohort-size 2 --local-steps 1 --model softmax_regression --validation 0.2
--keep-best valid/accuracy""".split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "run"
    assert main([*OPTIONS, "--output", str(folder), "--log-csv", f"{folder}/log.csv"]) == 0
    return folder


@pytest.mark.slow
def test_a_folder_of_the_command_line(folder):
    saved = fs.load(folder)
    assert saved.algorithms == ["fedavg", "scaffold"]
    x, y = (fs.datasets.load("digits").test[name] for name in "xy")
    frame = saved.to_frame().query("metric == 'test/accuracy' and algorithm == 'scaffold'")
    assert sorted(frame["round"].unique()) == [0, 2, 4]
    for seed in (0, 1):
        accuracy = (saved.classify(x, "scaffold", seed=seed) == y).mean()
        recorded = frame.query("round == 4 and seed == @seed")["value"].item()
        assert accuracy == pytest.approx(recorded, abs=1e-6)  # float32 mean over the examples
    logits = saved.predict(x[:7], "scaffold", batch_size=3)
    np.testing.assert_allclose(logits, saved.predict(x[:7], "scaffold"), rtol=1e-5)
    models, best = saved.models("fedavg"), saved.models("fedavg", "best")
    assert (models.seeds, models.rounds) == (["0", "1"], [4, 4])
    scores = saved.to_frame().query("metric == 'valid/accuracy' and algorithm == 'fedavg'")
    expected = scores.groupby("seed")["value"].max()
    np.testing.assert_allclose(best.metrics["valid/accuracy"], expected, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["npz", "safetensors", "orbax"])
def test_export(folder, tmp_path, kind, capsys):
    path = tmp_path / "new" / "folder" / "model"
    options = ["--algorithm", "fedavg", "--seed", "1", "--format", kind, "--output", str(path)]
    assert main(["export", str(folder), *options]) == 0
    assert capsys.readouterr().out == f"model: {path} (fedavg, seed 1, after round 4)\n"
    params = named_leaves(fs.load(folder).params("fedavg", 1))
    if kind == "orbax":
        import orbax.checkpoint as ocp

        with ocp.StandardCheckpointer() as checkpointer:
            arrays = named_leaves(checkpointer.restore(path))
    else:
        arrays = dict(np.load(path)) if kind == "npz" else load_file(path)
    assert arrays.keys() == params.keys()
    for name, x in params.items():
        np.testing.assert_array_equal(arrays[name], x)
    assert main(["export", str(folder), *options]) == 2
    assert "--output is" in capsys.readouterr().err


@pytest.mark.slow
def test_a_folder_of_python(tmp_path):
    result = small_runs.compare(tmp_path)
    saved = fs.load(tmp_path)
    name = saved.algorithms[0]
    np.testing.assert_array_equal(saved.models(name).params, result.models()[name])
    with pytest.raises(ValueError, match="which does not record its model; expected a folder of"):
        saved.predict(np.ones((2, 3)), name)
    outputs = saved.predict(np.ones((2, 1)), name, apply=lambda params, x: x * params.sum())
    assert outputs.shape == (2, 1)
    with pytest.raises(ValueError, match=r"outputs have shape \(2,\); expected \[N, classes\]"):
        saved.classify(np.ones((2, 1)), name, apply=lambda params, x: x[:, 0] * params.sum())


def test_a_folder_of_python_predicts_with_the_model_that_load_is_given(tmp_path):
    """It has no config.json, so neither a shape nor a type of examples."""
    result = small_runs.compare(tmp_path)
    net = fs.models.Model(lambda key: None, lambda params, x: x * params.sum())
    saved = fs.load(tmp_path, model=net)
    name, x = saved.algorithms[0], np.ones((2, 1), np.float32)
    expected = x * np.sum(result.models()[name][0])
    np.testing.assert_allclose(saved.predict(x, name), expected, rtol=1e-6)


@pytest.mark.slow
def test_algorithms_keep_their_names_and_order(tmp_path):
    """Names of folders have fewer characters; without the file they are all there is."""
    sizes = np.ones(2, int)
    task, timeline = fs.Task(_halves, sizes, sizes), fs.timelines.full(2, 2, 1)
    setup = fs.Setup(task, timeline, np.zeros(1, np.float32))
    names = ["with a rate of 0.5", "FedAvg, lr 0.1"]
    keys = jax.random.split(jax.random.key(0), 1)
    for name, lr in zip(names, (0.5, 0.1), strict=True):  # the second call keeps the first name
        fs.compare({name: fs.fedavg(lr)}, setup, keys, storage=tmp_path)
    saved = fs.load(tmp_path)
    assert saved.algorithms == names
    assert saved.params(names[0]) == 0.75
    (tmp_path / "algorithms.json").unlink()
    assert fs.load(tmp_path).algorithms == ["FedAvg-lr-0.1", "with-a-rate-of-0.5"]


def _halves(client, key, max_steps):
    del client, key, max_steps
    return fs.Oracle(lambda x, step: x - 1, lambda x, step: x**2, lambda x: x - 1)


def test_a_run_that_kept_no_best_model(tmp_path):
    saved = SavedResults(tmp_path, {"fedavg": [tmp_path]})
    with pytest.raises(ValueError, match=r"which is 'best', but .* expected a run with"):
        saved.params("fedavg", which="best")


def test_integer_keys_of_models_stay_integers(tmp_path):
    params = {0: np.zeros((1, 2)), 10: [{"w": np.ones((1, 3))}], 9: {}}
    write_models(tmp_path / "models.npz", Models(params, ["0"], [1], {}), "ab")
    read = read_models(tmp_path / "models.npz", "ab").params
    assert jax.tree.structure(read) == jax.tree.structure(params)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda saved: fs.load(saved.folder / "no"), "folder is .*, which does not exist"),
        (lambda saved: fs.load(saved.folder / "fedavg/checkpoints"), "which has no run; expected"),
        (lambda saved: saved.params("fedavgm"), "algorithm is 'fedavgm'; expected one of fedavg, "),
        (lambda saved: saved.params(), "algorithm is None; expected one of fedavg, scaffold"),
        (lambda saved: saved.params("fedavg", 7), "seed is 7; expected one of 0, 1"),
        (lambda saved: saved.models("fedavg", "first"), "which is 'first'; expected 'last' or "),
        (lambda saved: saved.predict(np.ones((2, 8)), "fedavg"), r"x has shape \(2, 8\); expected"),
        (
            lambda saved: saved.predict(np.ones((2, 8, 8, 1)), "fedavg"),
            "x has dtype float64; expected uint8, since the model divides uint8 by 255",
        ),
    ],
)
def test_bad_arguments_are_refused(folder, call, message):
    with pytest.raises(ValueError, match=message):
        call(fs.load(folder))


@pytest.mark.slow
def test_damaged_models_are_refused(folder, tmp_path):
    path = tmp_path / "models.npz"
    data = bytearray((folder / "fedavg/models.npz").read_bytes())
    data[data.index(b"NUMPY") + 200] ^= 4
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"models.npz is damaged \(.*\); delete it and run again"):
        read_models(path, "ab")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep_best": "norm2"}, "keep_best is 'norm2'; expected one of norm; did you mean norm?"),
        ({"stop_early": "norm", "mode": "min", "patience": 0}, "patience is 0; expected"),
        ({"stop_early": "loss"}, "stop_early is 'loss'; expected one of norm"),
        (
            {"keep_best": "norm"},
            "keep_best is 'norm'; expected --mode min or --mode max with it, s",
        ),
        ({"stop_early": "norm"}, "stop_early is 'norm'; expected --mode min or --mode max with it"),
    ],
)
def test_bad_options_are_refused(options, message):
    setup = fs.Setup(None, None, np.zeros((2, 3)), lambda w: {"norm": abs(w).max()})
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        Watching(**options).callbacks(setup)


@pytest.mark.parametrize("option", ["keep_best", "stop_early"])
def test_metrics_of_some_rounds_only_are_known_before_the_run(option):
    """An evaluation with --per-client or --personal takes the state of the run."""
    data = fs.FederatedData({"y": np.ones(2, np.float32)}, np.array([0, 1, 2]))
    task = fs.empirical_task(lambda w, b, key: (w - b["y"]) ** 2, data, fs.full_batch(1))
    slow = fs.evaluation.at_rounds(lambda w: {"loss": w**2}, 2)
    setup = fs.Setup(
        task, fs.timelines.full(4, 2, task.num_steps), np.zeros(2, np.float32),
        fs.evaluation.merge_evaluators(slow=slow), eval_every=2,
    )  # fmt: skip
    known, misspelt = (Watching(**{option: name}) for name in ("slow/loss", "slow/los"))
    assert known.callbacks(setup, fs.fedavg(0.1))
    with pytest.raises(ValueError, match=rf"^{option} is .*; expected one of slow/loss; did you"):
        misspelt.callbacks(setup, fs.fedavg(0.1))


def test_options_become_callbacks(tmp_path):
    setup = fs.Setup(None, None, np.zeros((2, 3)), lambda w: {"norm": abs(w).max()})
    watching = Watching(
        log_csv=tmp_path / "a.csv", keep_best="norm", stop_early="norm", mode="min", time_limit=60.0
    )
    kinds = [type(callback) for callback in watching.callbacks(setup)]
    names = ["CsvLog", "BestModel", "EarlyStopping", "TimeLimit"]
    assert kinds == [getattr(callbacks, name) for name in names]


def test_a_folder_of_a_sweep_is_named(tmp_path):
    (tmp_path / "slices").mkdir()
    with pytest.raises(ValueError, match=r"holds a sweep; .* storage=fs.Storage\(folder, keep_"):
        fs.load(tmp_path)


def test_the_scaling_of_a_data_set_is_recorded():
    """So that raw examples can be brought to the scale of a model later."""
    x, y = np.array([[1.0, 10.0], [3.0, 30.0]]), [0, 1]
    small = options(partition="iid", num_clients=2, cohort_size=1, seeds=1, rounds=1)
    found = []
    for scale in ("standardise", "none"):
        data = from_arrays(x, y, test=(x, y), scale=scale)
        found.append(prepare(Study(small, dataset=data), data).description["data"])
    assert found[0]["scaling"] == {"shift": [2.0, 20.0], "divisor": [1.0, 10.0]}
    assert "scaling" not in found[1]
