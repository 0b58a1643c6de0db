"""A short version of the campaign of faults (``python -m tests.faults``)."""

import pathlib
import shutil

import folder_trials
import numpy as np
import pytest
import reader_trials
from faults import Outcome, Trial, compared

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


@pytest.mark.slow
@pytest.mark.filterwarnings("default::fedjax_sim.simulation.files.RecoveryWarning")
@pytest.mark.parametrize("kind", ["run", "sweep"])
def test_folders(tmp_path, kind):
    folders = folder_trials.Folders(kind, tmp_path)
    assert len(folders.copies) > 10
    outcomes = attempt(folders.trials(), 2, tmp_path / "trial")
    for name in (f"{kind}: kill at a write", f"{kind}: full disk"):
        assert set(outcomes[name]) == {Outcome.SAME}


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
