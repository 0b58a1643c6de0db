"""Faults of the folders of runs and sweeps: kills at writes, damaged files, links, full disks."""

import functools
import pathlib
import shutil
import warnings

import jax
import kill_points
import numpy as np
import small_runs
from faults import Outcome, Result, Trial, compared, cut, delete, files_in, flip, flip_header
from full_disk import full_disk

import fedjax_sim as fs
from fedjax_sim.runs.storage.files import RecoveryWarning


def again(folder: pathlib.Path) -> list[bytes]:
    """Resumes the run or the sweep of a folder; returns its bits."""
    if (folder / "slices").exists() or (folder / "sweep.json").exists():
        return small_runs.sweep_bits(small_runs.sweep(folder))
    return small_runs.run_bits(small_runs.run(folder), folder)


def read(folder: pathlib.Path) -> list[bytes]:
    """Returns everything that readers find in a folder.  A slice that is left out is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecoveryWarning)
        try:
            history = fs.analysis.read_folder(folder).history
        except RecoveryWarning as warning:
            raise ValueError(str(warning)) from warning
    # The name of the folder stands for the algorithm of a run.
    found = [history.drop(columns="algorithm", errors="ignore").to_csv(index=False).encode()]
    if not (folder / "slices").exists():
        models = fs.load(folder).models()
        found += [np.asarray(x).tobytes() for x in jax.tree.leaves(models.params)]
        found.append(str([models.seeds, models.rounds]).encode())
    return found


class Folders:
    """A finished run or sweep, its bits, and what kills at its writes leave."""

    def __init__(self, kind: str, base: pathlib.Path):
        self.name = kind
        self.whole = base / kind / "whole"
        self.bits = self.start(self.whole)
        killed = base / kind / "killed"
        with kill_points.recorded(killed, base / kind / "copies"):
            self.start(killed)
        self.read = read(self.whole)
        self.other = base / kind / "other"
        if kind == "run":
            small_runs.run(self.other, eval_initial=True)
        else:
            small_runs.sweep(self.other, {"lr": [0.2, 0.4]})
        self.copies = sorted((base / kind / "copies").iterdir(), key=lambda path: int(path.name))

    def start(self, folder: pathlib.Path) -> list[bytes]:
        if self.name == "sweep":
            return small_runs.sweep_bits(small_runs.sweep(folder))
        return small_runs.run_bits(small_runs.run(folder), folder)

    def trials(self) -> dict[str, Trial]:
        damages = {
            "a flipped bit": flip,
            "a flipped bit of a header or a digit": flip_header,
            "a cut file": cut,
            "a deleted file": delete,
        }
        readers = {
            "a flipped bit, read": flip,
            "a flipped bit of a header or a digit, read": flip_header,
        }
        return {
            f"{self.name}: kill at a write": self._killed,
            f"{self.name}: kill at a write, a torn file": self._torn,
            **{
                f"{self.name}: {text}": functools.partial(self._damaged, damage=damage)
                for text, damage in damages.items()
            },
            **{
                f"{self.name}: {text}": functools.partial(self._read_damaged, damage=damage)
                for text, damage in readers.items()
            },
            f"{self.name}: a link": self._linked,
            f"{self.name}: a file of another {self.name}": self._foreign,
            f"{self.name}: full disk": self._full,
        }

    def _resumed(self, folder: pathlib.Path, expected: Outcome | None = None) -> Result:
        result = compared(lambda: self.start(folder), self.bits, str(folder))
        if expected is Outcome.SAME and result[0] is Outcome.REFUSED:
            return Result(Outcome.LOST, result[1])
        return result

    def _copy(self, rng: np.random.Generator, folder: pathlib.Path) -> pathlib.Path:
        """Copies what a kill at a random write leaves."""
        return shutil.copytree(self.copies[rng.integers(len(self.copies))], folder, symlinks=True)

    def _killed(self, rng: np.random.Generator, folder: pathlib.Path) -> Result:
        return self._resumed(self._copy(rng, folder), Outcome.SAME)

    def _torn(self, rng: np.random.Generator, folder: pathlib.Path) -> Result:
        """The file that was being written has a part of its content."""
        self._copy(rng, folder)
        history = folder / "history.csv"
        partial = [path for path in files_in(folder) if path.name.endswith(".tmp")]
        if partial:
            cut(rng, partial[-1])
        elif history.exists():
            with history.open("ab") as file:
                file.write(b"0,3,norm,0.123\n1,3,no"[: int(rng.integers(1, 22))])
        return self._resumed(folder, Outcome.SAME)

    def _damaged(self, rng: np.random.Generator, folder: pathlib.Path, *, damage) -> Result:
        if rng.integers(2):
            shutil.copytree(self.whole, folder)
        else:
            self._copy(rng, folder)
        paths = files_in(folder)
        if not paths:
            return Result(Outcome.SAME)
        path = paths[rng.integers(len(paths))]
        damage(rng, path)
        outcome, text = self._resumed(folder)
        return Result(outcome, f"{path.relative_to(folder)}: {text}")

    def _read_damaged(self, rng: np.random.Generator, folder: pathlib.Path, *, damage) -> Result:
        shutil.copytree(self.whole, folder)
        paths = files_in(folder)
        path = paths[rng.integers(len(paths))]
        damage(rng, path)
        outcome, text = compared(lambda: read(folder), self.read, str(folder))
        return Result(outcome, f"{path.relative_to(folder)}: {text}")

    def _linked(self, rng: np.random.Generator, folder: pathlib.Path) -> Result:
        """A file is a link to one elsewhere, which has to stay as it is."""
        self._copy(rng, folder)
        paths = files_in(folder)
        if not paths:
            return Result(Outcome.SAME)
        path = paths[rng.integers(len(paths))]
        elsewhere = folder.with_name("elsewhere")
        shutil.copy(path, elsewhere)
        before = elsewhere.read_bytes()
        path.unlink()
        path.symlink_to(elsewhere) if rng.integers(2) else path.hardlink_to(elsewhere)
        outcome, text = self._resumed(folder)
        if elsewhere.read_bytes() != before:
            outcome, text = Outcome.LOST, "the file elsewhere changed"
        return Result(outcome, f"{path.relative_to(folder)}: {text}")

    def _foreign(self, rng: np.random.Generator, folder: pathlib.Path) -> Result:
        """A file, a checkpoint or a slice of another run, which is intact."""
        shutil.copytree(self.whole, folder)
        paths = [path for path in files_in(self.other) if "checkpoints" not in path.parts]
        paths += list((self.other / "checkpoints").glob("*"))
        path = paths[rng.integers(len(paths))]
        target = folder / path.relative_to(self.other)
        if path.is_dir():
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(path, target)
        else:
            shutil.copy(path, target)
        if path.stem in ("history", "clients") and rng.integers(2):
            shutil.copy(path.with_suffix(".digests"), target.with_suffix(".digests"))
        outcome, text = compared(lambda: read(folder), self.read, str(folder))
        if outcome not in (Outcome.LOST, Outcome.UNDOCUMENTED):
            outcome, text = self._resumed(folder)
        return Result(outcome, f"{path.relative_to(self.other)}: {text}")

    def _full(self, rng: np.random.Generator, folder: pathlib.Path) -> Result:
        most = int(rng.integers(5, 1500))
        with full_disk(most):
            result = compared(lambda: self.start(folder), self.bits, str(folder))
        if result[0] is Outcome.UNDOCUMENTED:
            return result
        return self._resumed(folder, Outcome.SAME)
