"""Files of a comparison: one tidy history, a summary, and the environment of the run."""

import csv
import importlib.metadata
import json
import pathlib
import platform
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import pandas as pd

from fedjax_sim.simulation.files import replacing, write_text

HISTORY_COLUMNS = ("algorithm", "seed", "round", "metric", "value")
ACCURACY, LOSS = "test/accuracy", "test/loss"
_PACKAGES = ("fedjax_sim", "jax", "jaxlib", "flax", "optax", "numpy", "scikit-learn")


def merge_histories(
    directory: pathlib.Path, algorithms: Sequence[str], *, write: bool = True, clock: bool = False
) -> pd.DataFrame:
    """Returns one frame of all algorithms' ``history.csv``, and writes ``directory/history.csv``.

    Columns: algorithm, seed, round, metric, value; with ``clock`` also time, the simulated time of
    the round.  Values are copied digit by digit, so the file holds the bits of the run.
    Algorithms without a history are left out.
    """
    rows: list[tuple] = []
    for algorithm in algorithms:
        path = directory / algorithm / "history.csv"
        if not path.exists():
            continue
        with path.open(newline="") as file:
            read = [
                (r["replica"], r["round"], r["metric"], r["value"]) for r in csv.DictReader(file)
            ]
        times = {(seed, at): value for seed, at, metric, value in read if metric == "time"}
        for seed, at, metric, value in read:
            time = (times[seed, at],) if clock else ()
            rows.append((algorithm, int(seed), int(at), *time, metric, value))
    columns: list[str] = list(HISTORY_COLUMNS)
    if clock:
        columns.insert(columns.index("round") + 1, "time")
    if write:
        target = directory / "history.csv"
        with replacing(target) as partial, partial.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(rows)
    frame = pd.DataFrame(rows, columns=columns)
    return frame.astype({"seed": int, "value": float} | ({"time": float} if clock else {}))


def summarize(
    history: pd.DataFrame, target: float, timings: Mapping[str, Mapping[str, Any]]
) -> pd.DataFrame:
    """Returns a row per algorithm: final accuracy, rounds to the target, time.

    ``rounds_to_target`` is the median over the seeds that reached the target (``reached`` of
    them), at the rounds of evaluation; NaN if none did.  ``time_to_target`` is the same in
    simulated time, for a history with a column ``time``.  ``accuracy_std`` is the sample standard
    deviation over seeds, 0 for one seed.  ``local_steps_per_second`` counts all seeds together,
    without compilation.

    Args:
        history: as :func:`merge_histories` returns it.
        target: test accuracy.
        timings: per algorithm ``compile_seconds``, ``run_seconds``, ``local_steps`` and
            ``num_rounds``; a shorter history is that of an unfinished run.

    Example:
        >>> rows = [("fedavg", s, r, "test/accuracy", 0.1 * r + s) for s in (0, 1) for r in (1, 2)]
        >>> history = pd.DataFrame(rows, columns=list(HISTORY_COLUMNS))
        >>> timing = {"compile_seconds": 1.0, "run_seconds": 2.0, "local_steps": 8, "num_rounds": 2}
        >>> row = summarize(history, 0.15, {"fedavg": timing}).loc["fedavg"]
        >>> row["accuracy_mean"].round(3), row["rounds_to_target"], row["local_steps_per_second"]
        (np.float64(0.7), np.float64(1.5), np.float64(4.0))
    """
    rows = {}
    for algorithm in history["algorithm"].unique():
        chosen = (history["metric"] == ACCURACY) & (history["algorithm"] == algorithm)
        part = history.loc[chosen, :]
        curves = part.pivot(index="round", columns="seed", values="value")
        at, values = curves.index.to_numpy(), curves.to_numpy()  # [E], [E, seeds]
        final, above = values[-1], values >= target
        first, reached = above.argmax(axis=0), above.any(axis=0)
        timing = timings[algorithm]
        seconds = timing["run_seconds"]
        rows[algorithm] = {
            "rounds": int(at[-1]),
            "finished": int(at[-1]) == timing["num_rounds"],
            "accuracy_mean": float(final.mean()),
            "accuracy_std": float(final.std(ddof=1)) if len(final) > 1 else 0.0,
            "rounds_to_target": _median(at[first][reached]),
            "reached": int(reached.sum()),
            "seeds": len(final),
            "diverged": timing.get("diverged", 0),
            "run_seconds": seconds,
            "compile_seconds": timing["compile_seconds"],
            "local_steps": timing["local_steps"],
            "local_steps_per_second": timing["local_steps"] / seconds if seconds else 0.0,
        }
        if "time" in history.columns:
            times = part.pivot(index="round", columns="seed", values="time").to_numpy()
            own = times[first, np.arange(len(final))]
            rows[algorithm]["time_to_target"] = _median(own[reached])
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("algorithm")


def _median(values: np.ndarray) -> float:
    return float(np.median(values)) if len(values) else float("nan")


def add_timing(path: pathlib.Path, **new: float) -> dict[str, Any]:
    """Adds the seconds and steps of one call to those of the calls that it resumed.

    Returns the sums; ``diverged`` and ``num_rounds`` are not summed but replaced.
    """
    old: dict[str, Any] = read_json(path) if path.exists() else {}
    replaced = ("diverged", "num_rounds")
    total = {k: v if k in replaced else old.get(k, 0) + v for k, v in new.items()}
    write_json(path, total)
    return total


def read_timings(directory: pathlib.Path, algorithms: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns the timings that :func:`add_timing` wrote; zeros for an algorithm without any."""
    names = ("compile_seconds", "run_seconds", "local_steps", "diverged", "num_rounds")
    paths = {name: directory / name / "timing.json" for name in algorithms}
    return {
        name: read_json(path) if path.exists() else dict.fromkeys(names, 0)
        for name, path in paths.items()
    }


def check_folder(path: pathlib.Path) -> None:
    """Refuses an output folder that cannot be created or written; creates nothing.

    Raises:
        ValueError: naming the folder and the reason.
    """
    existing = next(p for p in (path, *path.parents) if p.exists() or p == p.parent)
    try:
        with tempfile.TemporaryDirectory(dir=existing):
            pass
    except OSError as error:
        raise ValueError(
            f"output is '{path}', which cannot be created: {error.strerror or error} ('{existing}')"
        ) from error


def read_json(path: pathlib.Path) -> Any:
    """Returns the values in a JSON file.

    Raises:
        ValueError: naming the file, if it cannot be read or is damaged.
    """
    try:
        return json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def write_json(path: pathlib.Path, values: Mapping[str, Any]) -> None:
    """Writes JSON such that a kill leaves the old file or the new one; NaN becomes null."""
    text = json.dumps(as_json(values), indent=2, allow_nan=False)
    write_text(path, text + "\n")


def environment() -> dict[str, Any]:
    """Returns versions, device and git revision, which a result depends on as well."""
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
    """Returns the revision of the checkout that tracks ``file``, and whether it has changes.

    None if no checkout tracks it.
    """

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


def as_json(value: Any) -> Any:
    """Returns JSON values: paths as text, tuples as lists, NaN and infinities as null.

    Example:
        >>> as_json({"lr": (0.1, float("nan")), "output": pathlib.Path("results")})
        {'lr': [0.1, None], 'output': 'results'}
    """
    if isinstance(value, Mapping):
        return {str(key): as_json(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(entry) for entry in value]
    if isinstance(value, pathlib.PurePath):
        return value.as_posix()
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not np.isfinite(value) else value
