"""Faults of the folders of runs and sweeps: kills at writes, damaged files, full disks."""

import functools
import pathlib
import shutil

import kill_points
import numpy as np
import small_runs
from faults import Outcome, Result, Trial, compared, cut, delete, files_in, flip
from full_disk import full_disk


def again(folder: pathlib.Path) -> list[bytes]:
    """Resumes the run or the sweep of a folder; returns its bits."""
    if (folder / "slices").exists() or (folder / "sweep.json").exists():
        return small_runs.sweep_bits(small_runs.sweep(folder))
    return small_runs.run_bits(small_runs.run(folder), folder)


class Folders:
    """A finished run or sweep, its bits, and what kills at its writes leave."""

    def __init__(self, kind: str, base: pathlib.Path):
        self.name = kind
        self.whole = base / kind / "whole"
        self.bits = self.start(self.whole)
        killed = base / kind / "killed"
        with kill_points.recorded(killed, base / kind / "copies"):
            self.start(killed)
        self.copies = sorted((base / kind / "copies").iterdir(), key=lambda path: int(path.name))

    def start(self, folder: pathlib.Path) -> list[bytes]:
        if self.name == "sweep":
            return small_runs.sweep_bits(small_runs.sweep(folder))
        return small_runs.run_bits(small_runs.run(folder), folder)

    def trials(self) -> dict[str, Trial]:
        damages = {"a flipped bit": flip, "a cut file": cut, "a deleted file": delete}
        return {
            f"{self.name}: kill at a write": self._killed,
            f"{self.name}: kill at a write, a torn file": self._torn,
            **{
                f"{self.name}: {text}": functools.partial(self._damaged, damage=damage)
                for text, damage in damages.items()
            },
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

    def _full(self, rng: np.random.Generator, folder: pathlib.Path) -> Result:
        most = int(rng.integers(5, 1500))
        with full_disk(most):
            result = compared(lambda: self.start(folder), self.bits, str(folder))
        if result[0] is Outcome.UNDOCUMENTED:
            return result
        return self._resumed(folder, Outcome.SAME)
