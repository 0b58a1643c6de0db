"""The folder of a sweep: one file per finished slice, found again after a kill.

Files name the runs they hold by configuration, seed and a digest of what else the run depends on,
so that a grid can be extended: runs that are there already are not repeated.
"""

import hashlib
import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedjax_sim.engine import History
from fedjax_sim.simulation.store import claim

RunKey = tuple[str, str]  # (configuration as JSON, seed)


class SweepRun(NamedTuple):
    """One run of a sweep, finished: E evaluations, T rounds."""

    configuration: dict[str, Any]
    seed: str
    history: History  # metrics [E, ...], "time" and "local_steps" among them; probes [T, ...]
    diverged_at: int  # first round whose server state was not finite; 0: none


def run_key(configuration: Mapping[str, Any], seed: str) -> RunKey:
    """A run's name in the files.

    Example:
        >>> run_key({"lr": 0.1, "batch_size": 5}, "0")
        ('{"batch_size": 5, "lr": 0.1}', '0')
    """
    plain = {k: v.item() if isinstance(v, np.generic) else v for k, v in configuration.items()}
    return json.dumps(plain, sort_keys=True, default=repr), seed


def digest(*parts: Any) -> str:
    """A hash of arrays and JSON values.

    Example:
        >>> digest(np.arange(3)) == digest(np.arange(3)), digest(np.arange(3)) == digest(1)
        (True, False)
    """
    sha = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            sha.update(f"{part.shape}{part.dtype}".encode() + part.tobytes())
        else:
            sha.update(json.dumps(part, sort_keys=True).encode())
    return sha.hexdigest()[:16]


def portable(x: np.ndarray) -> np.ndarray:
    """The array in a type that NumPy's files keep: of JAX's own ones (bfloat16) float32, exactly.

    Example:
        >>> import jax.numpy as jnp
        >>> portable(np.ones(1, jnp.bfloat16)).dtype, portable(np.ones(1, np.float16)).dtype
        (dtype('float32'), dtype('float16'))
    """
    return x.astype(np.float32) if x.dtype.kind == "V" else x


class SweepStore:
    """A sweep's folder; with None as directory nothing is kept."""

    def __init__(self, directory: pathlib.Path | None, config: Mapping[str, Any] | None):
        self._folder = None if directory is None else directory / "slices"
        self._found: dict[RunKey, tuple[str, SweepRun]] = {}
        if self._folder is None or directory is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        claim(directory / "sweep.json", {"config": dict(config or {})})
        for path in sorted(self._folder.glob("*.npz")):
            self._found |= _read(path)

    def find(self, configuration: Mapping[str, Any], seed: str, identity: str) -> SweepRun | None:
        """The run if it is there.

        Raises:
            ValueError: it is there, but of other data, schedules, models or keys.
        """
        identity_there, run = self._found.get(run_key(configuration, seed), (identity, None))
        if identity_there != identity:
            raise ValueError(
                f"directory {str(self._folder)!r} holds another sweep: {dict(configuration)} with "
                f"seed {seed} had other data or settings; choose another directory or delete it"
            )
        return run if run is None else run._replace(configuration=dict(configuration))

    def save(self, runs: Iterable[tuple[str, SweepRun]]) -> None:
        """Writes the runs of one slice, ``(identity, run)`` each, so that a kill leaves the whole
        file or none."""
        runs = list(runs)
        if self._folder is None or not runs:
            return
        history = runs[0][1].history
        arrays = {"round": history.round, "diverged_at": np.array([r.diverged_at for _, r in runs])}
        for kind in ("metrics", "probes"):
            for name in getattr(history, kind):
                values = [getattr(run.history, kind)[name] for _, run in runs]
                arrays[f"{kind}:{name}"] = np.stack(values)
        meta = [[*run_key(run.configuration, run.seed), identity] for identity, run in runs]
        path = self._folder / f"{digest(meta)}.npz"
        partial = path.with_suffix(".tmp")
        with partial.open("wb") as file:
            np.savez(file, meta=np.array(json.dumps(meta)), **arrays)
        partial.replace(path)


def _read(path: pathlib.Path) -> dict[RunKey, tuple[str, SweepRun]]:
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    found = {}
    for i, (configuration, seed, identity) in enumerate(json.loads(str(arrays["meta"]))):
        parts: dict[str, dict[str, Any]] = {"metrics": {}, "probes": {}}
        for name, values in arrays.items():
            kind, colon, rest = name.partition(":")
            if colon:
                parts[kind][rest] = values[i]
        history = History(arrays["round"], **parts)
        run = SweepRun(json.loads(configuration), seed, history, int(arrays["diverged_at"][i]))
        found[configuration, seed] = identity, run
    return found
