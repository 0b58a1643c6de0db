"""A short version of the campaign of faults (``python -m tests.faults``)."""

import functools
import pathlib
import shutil

import folder_trials
import kill_points
import numpy as np
import pytest
import reader_trials
import small_runs
from faults import Outcome, Trial, compared

from fedjax_sim.runs.storage.checkpoints import newest
from fedjax_sim.runs.storage.store import RunFolder

DEFECTS = (Outcome.LOST, Outcome.UNDOCUMENTED)


def attempt(trials: dict[str, Trial], number: int, folder: pathlib.Path) -> dict[str, list]:
    """Tries every fault; returns the outcomes by name. Defects fail."""
    rng = np.random.default_rng(0)
    outcomes: dict[str, list] = {name: [] for name in trials}
    for name, trial in trials.items():
        for _ in range(number):
            outcome, description = trial(rng, folder)
            assert outcome not in DEFECTS, f"{name}: {description}"
            outcomes[name].append(outcome)
            shutil.rmtree(folder, ignore_errors=True)
    return outcomes


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folders of a run or a sweep, made once; not to be changed."""
    base = tmp_path_factory.mktemp("folders")
    return functools.cache(lambda kind: folder_trials.Folders(kind, base))


@pytest.mark.slow
@pytest.mark.filterwarnings("default::fedjax_sim.runs.storage.files.RecoveryWarning")
@pytest.mark.parametrize("kind", ["run", "sweep"])
def test_folders(folders, tmp_path, kind):
    assert len(folders(kind).copies) > 10
    outcomes = attempt(folders(kind).trials(), 2, tmp_path / "trial")
    for name in (f"{kind}: kill at a write", f"{kind}: full disk"):
        assert set(outcomes[name]) == {Outcome.SAME}


def unconfirmed(folder: pathlib.Path) -> int:
    """Number of bytes of the history after the newest checkpoint; 0 without one."""
    confirmed = newest(folder / "checkpoints")
    if confirmed is None:
        return 0
    return (folder / "history.csv").stat().st_size - confirmed.history.length


@pytest.mark.slow
def test_a_run_is_read_at_every_moment(folders, tmp_path):
    """Before each of its writes, and as a kill leaves it, also when it is resumed."""
    before = folders("run").copies
    whole = RunFolder(folders("run").whole).history()
    # Rows that no checkpoint has confirmed, the last one torn, so that resuming removes them.
    pending = next(copy for copy in before if unconfirmed(copy) > 0)
    killed = shutil.copytree(pending, tmp_path / "killed", symlinks=True)
    with (killed / "history.csv").open("r+b") as file:
        file.truncate(file.seek(0, 2) - 3)
    with kill_points.recorded(killed, tmp_path / "resumed"):
        small_runs.run(killed)
    copies = [*before, *(tmp_path / "resumed").iterdir()]
    lengths = []
    for copy in copies:
        if RunFolder(copy).exists:
            read = RunFolder(copy).history()
            assert whole.startswith(read)
            lengths.append(len(read))
    assert len(set(lengths)) > 4
    assert max(lengths) == len(whole)


@pytest.mark.slow
def test_readers(tmp_path):
    outcomes = attempt(reader_trials.trials(), 25, tmp_path / "trial")
    assert all(Outcome.REFUSED in results for results in outcomes.values())
    for number, reader in enumerate(reader_trials.readers()):
        path = tmp_path / str(number) / reader.name
        path.parent.mkdir(parents=True)
        path.write_bytes(reader.content)
        reader.read(path)  # undamaged


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ValueError("no checkpoint in /folder"), Outcome.REFUSED),
        (ValueError("no checkpoint"), Outcome.UNDOCUMENTED),
        (OSError(28, "No space", "/folder/a"), Outcome.REFUSED),
        (ValueError("/folder\nTraceback"), Outcome.UNDOCUMENTED),
        (KeyError("/folder"), Outcome.UNDOCUMENTED),
    ],
)
def test_outcomes_of_errors(error, outcome):
    def fail():
        raise error

    assert compared(fail, [], "/folder")[0] is outcome


def test_outcomes_of_bits():
    assert compared(lambda: [b"a"], [b"a"], "/folder")[0] is Outcome.SAME
    assert compared(lambda: [b"b"], [b"a"], "/folder")[0] is Outcome.LOST
