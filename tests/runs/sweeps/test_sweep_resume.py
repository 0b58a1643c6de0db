"""A sweep's directory: kills, Ctrl-C and larger grids keep every finished run, bit for bit."""

import dataclasses
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import types

import chex
import jax
import jax.numpy as jnp
import killed_sweep
import numpy as np
import processes
import pytest
from call_records import sweep_on
from small_problems import assert_identical
from sweep_problems import KEYS, ONE_DEVICE, changed, compilations, quadratic_trial, sweep_of

import fedjax_sim as fs
from fedjax_sim.runs.storage.files import FolderError, digest, read_npz, write_npz
from fedjax_sim.runs.sweeps import store
from fedjax_sim.runs.sweeps.store import run_key

SCRIPT = pathlib.Path(killed_sweep.__file__)
LRS = [0.1, 0.2, 0.3]


def go(directory=None, trial=None, grid=None, keys=KEYS, **options) -> fs.Sweep:
    """Three slices, one per seed."""
    return sweep_of(
        quadratic_trial() if trial is None else trial,
        {"lr": LRS} if grid is None else grid,
        keys,
        devices=ONE_DEVICE,
        folder=directory,
        **options,
    )


def on_disk(directory) -> fs.Sweep:
    """The runs of :func:`go` that the folder has."""
    factory, setup, execution, probes = quadratic_trial()
    options = fs.Options(execution=execution, probes=probes)
    return fs.finished_runs(factory, setup, {"lr": LRS}, KEYS, storage=directory, options=options)


def files(directory) -> dict[str, int]:
    """Files of the finished slices, with the times at which they were written."""
    return {path.name: path.stat().st_mtime_ns for path in directory.glob("slices/*.npz")}


def same_runs(actual: fs.Sweep, expected: fs.Sweep) -> None:
    assert [run[:2] + run[3:] for run in actual.runs] == [
        run[:2] + run[3:] for run in expected.runs
    ]
    assert_identical([run.history for run in actual.runs], [run.history for run in expected.runs])


@pytest.mark.slow
def test_killed_sweep_resumes_with_the_same_bits(tmp_path):
    """SIGKILL while the second or a later of four slices is in progress."""
    env = processes.environment(tmp_path / "cache")
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = subprocess.Popen([sys.executable, SCRIPT, killed, "0.1"], env=env)
    deadline = time.monotonic() + 120
    while not files(killed) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.15)  # into the next slice, whose four segments take 0.4 seconds
    process.kill()
    process.wait()
    kept = files(killed)
    assert 0 < len(kept) < killed_sweep.NUM_SEEDS, "the kill came too late to test anything"

    killed_sweep.main(killed)
    assert len(files(killed)) == killed_sweep.NUM_SEEDS
    assert files(killed).items() >= kept.items()  # not written again
    # Everything is found, nothing is run.
    resumed, uninterrupted = killed_sweep.main(killed), killed_sweep.main(whole)
    assert resumed.resumed == len(resumed.runs) == 12
    assert resumed.compilations == uninterrupted.resumed == 0
    same_runs(resumed, uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("eval_every", "moment", "slices"),
    [  # moment: slices done and rounds of the one in progress; 6 rounds are three segments, or one
        (2, (0, 0), 0),
        (2, (1, 4), 1),
        (2, (2, 6), 2),
        (4, (1, 6), 1),
    ],
)
def test_ctrl_c_keeps_the_finished_slices(tmp_path, eval_every, moment, slices):
    trial = quadratic_trial(eval_every=eval_every)
    seen = []

    def interrupt(news):
        seen.append((news.slices_done, news.round))
        if seen[-1] == moment:
            signal.raise_signal(signal.SIGINT)

    stopped = go(tmp_path, trial, progress=interrupt)
    assert stopped.interrupted
    assert len(stopped.runs) == 3 * slices
    assert len(files(tmp_path)) == slices
    # Nothing is begun afterwards; a slice whose last segment is done counts.
    assert seen[-1] == (moment if moment[1] < 6 else (slices, 6))
    resumed = go(tmp_path, trial)
    assert (resumed.interrupted, resumed.resumed) == (False, 3 * slices)
    same_runs(resumed, go(trial=trial))


@pytest.mark.slow
def test_ctrl_c_in_the_last_slice_of_a_group_starts_no_other():
    setups = {
        "a": quadratic_trial(num_seeds=1).setup,
        "b": quadratic_trial(num_seeds=1, num_rounds=5).setup,
    }
    seen = []

    def interrupt(news):
        seen.append(news.static)
        if news.slices_done == 1:
            signal.raise_signal(signal.SIGINT)

    result = sweep_on(
        ONE_DEVICE,
        fs.fedavg,
        lambda which: setups[which],
        {"which": ["a", "b"], "lr": LRS},
        KEYS[:1],
        callbacks=[types.SimpleNamespace(progress=interrupt)],
    )
    assert result.interrupted
    assert {run.configuration["which"] for run in result.runs} == {"a"}
    assert all(static == {"which": "a"} for static in seen)


@pytest.mark.slow
def test_finished_sweep_is_read_and_not_run(tmp_path):
    probes = fs.Probes(run={"matrix": lambda state: jnp.outer(state.server.params, jnp.ones(2))})
    trial = quadratic_trial(probes=probes)
    first = go(tmp_path, trial, seeds=["a", "b", "c"])
    before = files(tmp_path)
    with compilations() as names:
        again = go(tmp_path, trial, seeds=["a", "b", "c"])
    assert not [name for name in names if "alone" in name]
    assert (again.resumed, again.compilations, again.run_seconds) == (9, 0, 0.0)
    assert files(tmp_path) == before
    same_runs(again, first)


@pytest.mark.slow
def test_every_type_of_number_survives_the_disk(tmp_path):
    types = (jnp.bfloat16, jnp.float16, jnp.int8, bool)
    trial = quadratic_trial(
        num_seeds=1, eval_fn=lambda x: {jnp.dtype(t).name: (x > 0).astype(t) for t in types}
    )
    first = go(tmp_path, trial, keys=KEYS[:1])
    again = go(tmp_path, trial, keys=KEYS[:1])
    assert again.resumed == 3
    same_runs(again, first)
    dtypes = jax.tree.map(lambda x: x.dtype.name, again.runs[0].history.metrics)
    assert dtypes == jax.tree.map(lambda x: x.dtype.name, first.runs[0].history.metrics)
    del dtypes["time"], dtypes["local_steps"]
    # bfloat16 is none of NumPy's types.
    assert dtypes == {t: t.replace("bfloat16", "float32") for t in dtypes}


@pytest.mark.slow
def test_only_finished_runs_are_returned_on_request(tmp_path):
    first = go(tmp_path, grid={"lr": LRS[:2]})
    before = files(tmp_path)
    with compilations() as names:
        part = on_disk(tmp_path)
    assert not [name for name in names if "alone" in name]
    assert (len(part.runs), part.resumed, part.interrupted) == (6, 6, False)
    assert files(tmp_path) == before
    same_runs(part, first)
    assert on_disk(tmp_path / "empty").runs == []
    assert not (tmp_path / "empty").exists()
    with pytest.raises(ValueError, match="storage is None; expected the folder whose finished"):
        on_disk(None)


@pytest.mark.slow
def test_a_larger_grid_reuses_the_runs(tmp_path):
    small = go(tmp_path, keys=KEYS[:2], trial=quadratic_trial(num_seeds=2))
    assert len(small.runs) == 6
    seen = []
    # More rates, in another order, and one more seed; the first two start as before.
    large = go(tmp_path, grid={"lr": [0.5, *LRS[::-1]]}, progress=seen.append)
    assert large.resumed == 6
    assert [run.configuration["lr"] for run in large.runs[::3]] == [0.5, 0.3, 0.2, 0.1]
    old = {run_key(run.configuration, run.seed): run for run in small.runs}
    for run in large.runs:
        if run_key(run.configuration, run.seed) in old:
            assert_identical(run.history, old[run_key(run.configuration, run.seed)].history)
    assert [news.runs_done for news in seen] == sorted(news.runs_done for news in seen)
    assert (seen[0].runs_done, seen[-1].runs_done) == (6, 12)
    # What is on disk stays what was returned.
    same_runs(go(tmp_path, grid={"lr": [0.5, *LRS[::-1]]}), large)
    # A part of it, too.
    part = go(tmp_path, grid={"lr": [0.2]})
    assert part.resumed == 3
    same_runs(part, large._replace(runs=large.runs[6:9]))


BASE = quadratic_trial


def other(**fields):
    return changed(BASE(), **fields)


OTHERS = {
    "config": {"config": {"lr": 1}},
    "keys": {"keys": KEYS[::-1]},
    "data": {"trial": lambda: other(task=jax.tree.map(lambda x: 2 * x, BASE().setup.task))},
    "schedule": {"trial": lambda: other(timeline=BASE(num_rounds=7).setup.timeline)},
    "model": {"trial": lambda: other(params=BASE().setup.params + 1)},
    "eval_every": {"trial": lambda: BASE(eval_every=2)},
    "identity": {"config": lambda: lambda configuration: {"algorithm": "other"}},
    "algorithm": {"trial": lambda: BASE(lambda lr: fs.fedavg(lr / 2))},
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    directory = tmp_path_factory.mktemp("finished")
    go(directory)
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("other", OTHERS)
def test_another_sweep_is_refused(finished, other):
    options = {k: v() if callable(v) else v for k, v in OTHERS[other].items()}
    before = files(finished)
    with compilations() as names, pytest.raises(ValueError, match=r"directory '.*' holds another"):
        go(finished, **options)
    assert not [name for name in names if "alone" in name]
    assert files(finished) == before
    assert go(finished).resumed == 9  # and the directory is none the worse


@pytest.mark.slow
@pytest.mark.parametrize("other", [name for name in OTHERS if name != "identity"])
def test_another_grid_of_another_sweep_is_refused(finished, other):
    """Tables of the folder would choose among rates on other data, or of two algorithms."""
    options = {k: v() if callable(v) else v for k, v in OTHERS[other].items()}
    before = files(finished)
    with compilations() as names, pytest.raises(ValueError, match=r"directory '.*' holds another"):
        go(finished, grid={"lr": [0.7]}, **options)
    assert not [name for name in names if "alone" in name]
    assert files(finished) == before


@pytest.mark.slow
def test_configurations_with_other_choices_may_have_other_setups(tmp_path):
    """Names that the setup takes decide what its runs are; identities may differ by rate."""

    def setup(cohort):
        whole = quadratic_trial().setup
        mask = np.asarray(whole.timeline.mask) & (np.arange(3) < cohort)
        fewer = dataclasses.replace(whole.timeline, mask=mask)
        return dataclasses.replace(whole, timeline=fewer)

    def run(grid):
        config = lambda configuration: {"half": configuration["lr"] / 2}  # noqa: E731
        storage = fs.Storage(tmp_path, config=config)
        return sweep_on(ONE_DEVICE, fs.fedavg, setup, grid, KEYS, storage=storage)

    assert run({"cohort": [2], "lr": [0.1]}).resumed == 0
    assert run({"cohort": [3], "lr": [0.2]}).resumed == 0
    assert run({"cohort": [2, 3], "lr": [0.1, 0.2]}).resumed == 6


@pytest.mark.slow
def test_what_a_kill_leaves_of_a_file_is_ignored(tmp_path):
    first = go(tmp_path)
    lost = sorted((tmp_path / "slices").glob("*.npz"))[0]
    (tmp_path / "slices" / f".{lost.name}.0123456789ab.tmp").write_bytes(lost.read_bytes()[:100])
    lost.unlink()
    again = go(tmp_path)
    assert again.resumed == 6
    same_runs(again, first)
    written = [path.name for path in (tmp_path / "slices").iterdir() if path.is_file()]
    assert len(written) == 3
    assert lost.name in written


def test_names_of_runs():
    """Equal for values of equal meaning, whatever the order and the library they come from."""
    assert run_key({"b": np.float64(0.5), "a": np.int64(2)}, "s") == run_key(
        {"a": 2, "b": 0.5}, "s"
    )
    assert run_key({"a": 1}, "s") != run_key({"a": 2}, "s")
    assert digest(np.zeros(2), np.zeros(0)) != digest(np.zeros(0), np.zeros(2))
    assert digest(np.zeros(2)) != digest(np.zeros(2, np.float32))


def test_final_models_are_kept_and_found_again(tmp_path):
    """In memory and on disk; runs without their models are repeated."""
    without = go(tmp_path)
    with pytest.raises(ValueError, match=r"0 of 9 runs have a model; .*keep_models"):
        without.models()
    first = go(tmp_path, keep_models=True)
    again = go(tmp_path, keep_models=True)
    assert (first.resumed, again.resumed) == (0, 9)
    models = first.models()
    chex.assert_shape(models, (9, 2))
    chex.assert_trees_all_equal(models, again.models())
    last = np.stack([run.history.metrics["x"][-1] for run in first.runs])
    chex.assert_trees_all_equal(models, last)
    assert go(tmp_path).resumed == 9  # whether models are needed or not
    same_runs(first._replace(runs=[run._replace(model=None) for run in first.runs]), without)


@pytest.mark.slow
def test_slices_of_another_sweep_are_refused(tmp_path):
    """Their runs would be among those of a report."""
    go(tmp_path / "here")
    go(tmp_path / "there", grid={"lr": [0.4, 0.5]})
    for path in (tmp_path / "there").glob("slices/*.npz"):
        shutil.copy(path, tmp_path / "here" / "slices")
    problem = rf"\.npz is of another sweep than {tmp_path}/here/sweep\.json, or was renamed"
    for read in (go, fs.analysis.read_folder):
        with pytest.raises(FolderError, match=problem):
            read(tmp_path / "here")


def test_a_sweep_that_another_one_overtakes_saves_nothing(tmp_path):
    """While its first slice runs; the runs of this slice would be among the other's."""

    def overtake(progress):
        if progress.round > 0 and not files(tmp_path):
            go(tmp_path, quadratic_trial(num_rounds=7))

    begun = types.SimpleNamespace(progress=overtake)
    with pytest.raises(FolderError, match=r"holds another sweep: .* had another data or settings"):
        go(tmp_path, grid={"lr": [0.4, 0.5]}, callbacks=[begun])
    assert {run.configuration["lr"] for run in store.read_runs(tmp_path)} == set(LRS)


def test_a_renamed_slice_is_refused(tmp_path):
    go(tmp_path)
    path = next(tmp_path.glob("slices/*.npz"))
    path.rename(path.with_name("mine.npz"))
    with pytest.raises(FolderError, match=r"mine\.npz is of another sweep .*, or was renamed"):
        go(tmp_path)


def test_a_slice_of_another_version_is_refused(tmp_path):
    go(tmp_path)
    path = next(tmp_path.glob("slices/*.npz"))
    arrays = read_npz(path, "")
    meta = [entry[:-1] for entry in json.loads(str(arrays["meta"]))]  # a digest less
    sweep = json.loads((tmp_path / "sweep.json").read_text())["id"]
    path.unlink()
    other = path.with_name(store._name(meta, sweep, False))
    write_npz(other, arrays | {"meta": np.array(json.dumps(meta))})
    with pytest.raises(FolderError, match=r"\.npz is of another version of fedjax_sim; choose"):
        go(tmp_path)
