"""What a comparison leaves behind: one tidy history, a summary, where it came from."""

import csv
import importlib.metadata
import json
import pathlib
import platform
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import pandas as pd

HISTORY_COLUMNS = ("algorithm", "seed", "round", "metric", "value")
ACCURACY, LOSS = "test/accuracy", "test/loss"
_PACKAGES = ("fedjax_sim", "jax", "jaxlib", "flax", "optax", "numpy", "scikit-learn")


def merge_histories(
    directory: pathlib.Path, algorithms: Sequence[str], *, write: bool = True
) -> pd.DataFrame:
    """One frame of all algorithms' ``history.csv``, also written to ``directory/history.csv``.

    Columns: algorithm, seed, round, metric, value.  Values are copied digit by digit, so the file
    holds the bits of the run.  Algorithms without a history are left out.
    """
    rows: list[tuple[str, int, int, str, str]] = []
    for algorithm in algorithms:
        path = directory / algorithm / "history.csv"
        if path.exists():
            with path.open(newline="") as file:
                rows += [
                    (algorithm, int(row["replica"]), int(row["round"]), row["metric"], row["value"])
                    for row in csv.DictReader(file)
                ]
    if write:
        target = directory / "history.csv"
        partial = target.with_suffix(".tmp")
        with partial.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(HISTORY_COLUMNS)
            writer.writerows(rows)
        partial.replace(target)
    frame = pd.DataFrame(rows, columns=list(HISTORY_COLUMNS))
    return frame.astype({"seed": int, "round": int, "value": float})


def summarize(
    history: pd.DataFrame, num_rounds: int, target: float, timings: Mapping[str, Mapping[str, Any]]
) -> pd.DataFrame:
    """One row per algorithm: final accuracy, rounds to the target, time.

    ``rounds_to_target`` is the median over the seeds that reached the target (``reached`` of
    them), at the rounds of evaluation; NaN if none did.  ``accuracy_std`` is the sample standard
    deviation over seeds, 0 for one seed.  ``local_steps_per_second`` counts all seeds together,
    without compilation.

    Args:
        history: as :func:`merge_histories` returns it.
        num_rounds: T; a shorter history is that of an unfinished run.
        target: test accuracy.
        timings: per algorithm ``compile_seconds``, ``run_seconds`` and ``local_steps``.

    Example:
        >>> rows = [("fedavg", s, r, "test/accuracy", 0.1 * r + s) for s in (0, 1) for r in (1, 2)]
        >>> history = pd.DataFrame(rows, columns=list(HISTORY_COLUMNS))
        >>> timings = {"fedavg": {"compile_seconds": 1.0, "run_seconds": 2.0, "local_steps": 8}}
        >>> row = summarize(history, 2, 0.15, timings).loc["fedavg"]
        >>> row["accuracy_mean"].round(3), row["rounds_to_target"], row["local_steps_per_second"]
        (np.float64(0.7), np.float64(1.5), np.float64(4.0))
    """
    rows = {}
    for algorithm in history["algorithm"].unique():
        chosen = (history["metric"] == ACCURACY) & (history["algorithm"] == algorithm)
        curves = history.loc[chosen, :].pivot(index="round", columns="seed", values="value")
        at, values = curves.index.to_numpy(), curves.to_numpy()  # [E], [E, seeds]
        final, above = values[-1], values >= target
        reached = at[above.argmax(axis=0)][above.any(axis=0)]
        timing = timings[algorithm]
        seconds = timing["run_seconds"]
        rows[algorithm] = {
            "rounds": int(at[-1]),
            "finished": int(at[-1]) == num_rounds,
            "accuracy_mean": float(final.mean()),
            "accuracy_std": float(final.std(ddof=1)) if len(final) > 1 else 0.0,
            "rounds_to_target": float(np.median(reached)) if len(reached) else float("nan"),
            "reached": len(reached),
            "seeds": len(final),
            "diverged": timing.get("diverged", 0),
            "run_seconds": seconds,
            "compile_seconds": timing["compile_seconds"],
            "local_steps": timing["local_steps"],
            "local_steps_per_second": timing["local_steps"] / seconds if seconds else 0.0,
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("algorithm")


def add_timing(path: pathlib.Path, **new: float) -> dict[str, Any]:
    """Adds the seconds and steps of one call to those of the calls it resumed.

    Returns the sums; ``diverged`` is not summed but replaced.
    """
    total: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    diverged = new.pop("diverged")
    total = {key: total.get(key, 0) + value for key, value in new.items()} | {"diverged": diverged}
    write_json(path, total)
    return total


def read_timings(directory: pathlib.Path, algorithms: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What :func:`add_timing` left; zeros for an algorithm that was killed before."""
    nothing = {"compile_seconds": 0.0, "run_seconds": 0.0, "local_steps": 0, "diverged": 0}
    paths = {name: directory / name / "timing.json" for name in algorithms}
    return {n: json.loads(p.read_text()) if p.exists() else nothing for n, p in paths.items()}


def write_json(path: pathlib.Path, values: Mapping[str, Any]) -> None:
    """Writes JSON such that a kill leaves the old file or the new one; NaN becomes null."""
    partial = path.with_suffix(".tmp")
    text = json.dumps(_strict(values), indent=2, allow_nan=False)
    partial.write_text(text + "\n")
    partial.replace(path)


def environment() -> dict[str, Any]:
    """Versions, device and git revision: what a result depends on besides its configuration."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    device = jax.devices()[0]
    return {
        "versions": versions,
        "git": git_revision(pathlib.Path(__file__)),
        "backend": jax.default_backend(),
        "device": device.device_kind,
        "machine": platform.machine(),
    }


def git_revision(file: pathlib.Path) -> dict[str, Any] | None:
    """Revision of the checkout that tracks ``file``, and whether it has changes; None without."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(file.parent), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()

    try:
        # An installed copy may lie inside some other project's checkout.
        git("ls-files", "--error-unmatch", file.name)
        return {
            "revision": git("rev-parse", "HEAD"),
            "modified": bool(git("status", "--porcelain", "--untracked-files=no")),
        }
    except (OSError, subprocess.SubprocessError):
        return None


def _strict(value: Any) -> Any:
    """JSON values; numbers that JSON does not have become null."""
    if isinstance(value, Mapping):
        return {str(key): _strict(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(entry) for entry in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not np.isfinite(value) else value
