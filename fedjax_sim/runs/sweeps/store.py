"""Folder of a sweep: one file per finished slice, which later calls read.

Files name the runs they hold by configuration and seed, with digests of everything else that a run
depends on.  So a grid can be extended, and runs that are there already are not repeated.  Several
processes may share the folder: each slice is claimed by one of them and written whole.  A file's
name is a digest of its runs and of the folder's identifier, so a slice of another sweep is noticed.
"""

import contextlib
import json
import pathlib
import secrets
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_sim.engine import History
from fedjax_sim.runs.storage.files import (
    DamagedError,
    FolderError,
    RecoveryWarning,
    digest,
    own,
    read_json,
    read_npz,
    remove_partials,
    write_npz,
)
from fedjax_sim.runs.storage.folders import check_kind
from fedjax_sim.runs.storage.identity import arrays_digest
from fedjax_sim.runs.storage.locks import locked, try_lock
from fedjax_sim.runs.storage.store import claim
from fedjax_sim.runs.sweeps.grid import Configuration, Group
from fedjax_sim.runs.sweeps.result import SweepRun
from fedjax_sim.runs.sweeps.trial import RunDigests
from fedjax_sim.types import Params

RunKey = tuple[str, str]  # (configuration as JSON, seed)
_SWEEP, _SLICES = "sweep.json", "slices"
_UNFINISHED = "unfinished"  # there from the first slice of a grid until all its runs are


class _Kept(NamedTuple):
    """One run of a slice file."""

    identity: RunDigests
    run: SweepRun
    model: list[np.ndarray]  # leaves of the final model, if kept


def run_key(configuration: Mapping[str, Any], seed: str) -> RunKey:
    """Returns a run's name in the files."""
    return json.dumps(dict(configuration), sort_keys=True, default=_text), seed


def _text(value: Any) -> Any:
    """Returns what JSON has in the place of a value; of an array all numbers count."""
    if not isinstance(value, (np.generic, np.ndarray, jax.Array)):
        return repr(value)
    return arrays_digest(value) if value.ndim else np.asarray(value).item()


def portable(x: np.ndarray) -> np.ndarray:
    """Returns the array in a type that NumPy's files keep: bfloat16 becomes float32, exactly."""
    return x.astype(np.float32) if x.dtype.kind == "V" else x


class SweepStore:
    """Folder of a sweep; with None as directory, or none that is there to ``create``, empty."""

    def __init__(
        self,
        directory: pathlib.Path | None,
        config: Mapping[str, Any] | None,
        *,
        create: bool = True,
        accept_changed_code: bool = False,
    ):
        self._accept = accept_changed_code
        self._folder = None if directory is None else own(directory / _SLICES)
        self._kept: dict[RunKey, _Kept] = {}
        self._of_seeds: dict[str, _Kept] = {}  # one run of every configuration, with its settings
        self._read: set[str] = set()  # names of files
        self._checked: set[tuple[str, str, RunKey]] = set()  # runs and groups
        if self._folder is None or directory is None:
            return
        check_kind(directory, "a sweep")
        if not create and not (directory / _SWEEP).exists():
            self._folder = None
            return
        with locked(directory, wait=True):  # of two sweeps that start together, one is refused
            check_kind(directory, "a sweep")  # a run may have begun meanwhile
            self._folder.mkdir(exist_ok=True)
            if any(self._folder.glob("*.npz")) and not (directory / _SWEEP).exists():
                raise FolderError(
                    f"{directory / _SWEEP} is missing, beside finished runs, so that nothing "
                    "says which sweep this is; restore it from a copy, choose another directory or "
                    "delete this one"
                )
            values = {"config": dict(config or {})}
            self._id = claim(directory / _SWEEP, values, identifier=secrets.token_hex(8))
        self.refresh()

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which no other process writes to the folder."""
        if self._folder is None:
            return contextlib.nullcontext()
        return locked(self._folder.parent, wait=True)

    def refresh(self) -> None:
        """Reads the files that other processes have written since."""
        for path in sorted(self._folder.glob("[!.]*.npz")) if self._folder else ():
            if path.name in self._read:
                continue
            self._read.add(path.name)
            for key, kept in _read_or_set_aside(path, self._id).items():
                self._keep(key, kept)

    def _keep(self, key: RunKey, kept: _Kept) -> None:
        # Of two files with one run, the one with its model counts.
        if key not in self._kept or (kept.model and not self._kept[key].model):
            self._kept[key] = kept
        self._of_seeds.setdefault(key[0], kept)

    def claim_name(self, runs: Iterable[tuple[Mapping[str, Any], str]], models: bool) -> str:
        """Returns the name of a slice's claim, from its configurations and seeds."""
        return "" if self._folder is None else digest([run_key(*run) for run in runs], models)

    @contextlib.contextmanager
    def claimed(self, name: str) -> Iterator[bool]:
        """Context that yields True if this process alone may run the slice of that name."""
        if self._folder is None:
            yield True
            return
        lock = try_lock(self._claim(name))
        try:
            yield lock is not None
        finally:
            if lock is not None:
                lock.release()

    def is_free(self, name: str) -> bool:
        """Returns True if no process has claimed the slice of that name."""
        with self.claimed(name) as is_claimed:
            return is_claimed

    def _claim(self, name: str) -> pathlib.Path:
        assert self._folder is not None
        path = own(self._folder / ".claims") / f"{name}.lock"
        path.parent.mkdir(exist_ok=True)
        return path

    def find(
        self,
        configuration: Mapping[str, Any],
        seed: str,
        identity: RunDigests,
        model: Params | None = None,
    ) -> SweepRun | None:
        """Returns the run if it is there.

        Args:
            configuration, seed, identity: those of the run.
            model: a model with the structure and types of the final models; a run that is there
                without its final model then does not count as found.  None: models do not matter.
        """
        key = run_key(configuration, seed)
        kept = self._kept.get(key)
        if kept is None:
            self._check_settings(key, identity)
            return None
        self._check_same(configuration, seed, kept.identity, identity)
        run = kept.run._replace(configuration=dict(configuration))
        if model is None:
            return run
        if not kept.model:
            return None
        leaves, structure = jax.tree.flatten(model)
        typed = [x.astype(np.asarray(y).dtype) for x, y in zip(kept.model, leaves, strict=True)]
        return run._replace(model=jax.tree.unflatten(structure, typed))

    def check_group(self, group: Group, identities: Mapping[str, RunDigests]) -> None:
        """Refuses runs of a group's program on another setup, or of another algorithm."""
        names, fixed = {*group.static, *group.names}, run_key(group.static, "")
        for (text, seed), kept in self._kept.items():
            known, place = kept.run.configuration, (text, seed, fixed)
            if seed not in identities or known.keys() != names or place in self._checked:
                continue
            self._checked.add(place)
            if run_key({name: known[name] for name in group.static}, "") == fixed:
                like = kept.identity._replace(data=kept.identity.setup)
                here = identities[seed]._replace(data=identities[seed].setup)
                self._check_same(known, seed, like, here)

    def _check_same(
        self, configuration: Mapping[str, Any], seed: str, known: RunDigests, identity: RunDigests
    ) -> None:
        """Refuses a run that had another identity."""
        differing = "data or settings" if known.data != identity.data else ""
        if not self._accept and known.algorithm != identity.algorithm:
            differing = "algorithm" + (differing and ", data or settings")
        elif not (self._accept or differing) and known.functions != identity.functions:
            differing = "code of algorithm, objective, model or evaluation"
        if differing:
            raise self._other_sweep(dict(configuration), seed, differing)

    def _check_settings(self, key: RunKey, identity: RunDigests) -> None:
        """Refuses a seed whose configuration is there with other seeds and other settings."""
        known = self._of_seeds.get(key[0])
        if known is None or self._accept or known.identity.settings == identity.settings:
            return
        differing = "algorithm" if known.identity.algorithm != identity.algorithm else ""
        differing = differing or "number of rounds, evaluation, cohort size, identity or code"
        raise self._other_sweep(json.loads(key[0]), known.run.seed, differing)

    def _other_sweep(self, configuration: Configuration, seed: str, differing: str) -> FolderError:
        return FolderError(
            f"directory {str(self._folder)!r} holds another sweep: {configuration} with "
            f"seed {seed} had another {differing}; choose another directory or delete it"
        )

    def save(self, runs: Iterable[tuple[RunDigests, SweepRun]]) -> None:
        """Writes the runs of one slice; a kill leaves the whole file or none."""
        runs = list(runs)
        if self._folder is None or not runs:
            return
        history = runs[0][1].history
        arrays = {"round": history.round, "diverged_at": np.array([r.diverged_at for _, r in runs])}
        for kind in ("metrics", "probes"):
            for name in getattr(history, kind):
                values = [getattr(run.history, kind)[name] for _, run in runs]
                arrays[f"{kind}:{name}"] = np.stack(values)
        bits = [run.bits for _, run in runs if run.bits is not None]
        if len(bits) == len(runs):
            arrays["bits"] = np.array(bits, np.int64)
        arrays["partial_model"] = np.array([run.partial_model for _, run in runs])
        models = [jax.tree.leaves(run.model) for _, run in runs]
        for i, leaves in enumerate(zip(*models, strict=True)):
            arrays[f"model:{i}"] = np.stack([portable(leaf) for leaf in leaves])
        meta = [[*run_key(run.configuration, run.seed), *identity] for identity, run in runs]
        (self._folder / _UNFINISHED).touch()
        path = self._folder / _name(meta, self._id, bool(models[0]))
        remove_partials(self._folder, path.name)
        write_npz(path, {"meta": np.array(json.dumps(meta)), **arrays})
        self._read.add(path.name)
        for (identity, run), leaves in zip(runs, models, strict=True):
            kept = _Kept(identity, run._replace(model=None), [portable(leaf) for leaf in leaves])
            self._keep(run_key(run.configuration, run.seed), kept)


def _name(meta: list[Any], sweep: str, has_models: bool) -> str:
    return f"{digest(sweep, meta, has_models)}.npz"


def mark_finished(directory: pathlib.Path | None) -> None:
    """Notes that a sweep's folder has all runs of a grid."""
    if directory is not None and is_unfinished(directory):
        (directory / _SLICES / _UNFINISHED).unlink(missing_ok=True)


def is_unfinished(directory: pathlib.Path) -> bool:
    """Returns True if runs of a sweep's grid are missing: it is in progress, or was killed."""
    return (directory / _SLICES / _UNFINISHED).exists()


def read_runs(directory: pathlib.Path) -> list[SweepRun]:
    """Returns the finished runs in a sweep's folder, by configuration and seed; writes nothing.

    Damaged slices are left out.
    """
    runs: dict[RunKey, SweepRun] = {}
    if not (directory / _SWEEP).exists():
        return []
    sweep = read_json(directory / _SWEEP, "restore it from a copy")["id"]
    for path in sorted((directory / _SLICES).glob("[!.]*.npz")):
        try:
            kept = _read(path, sweep, "its runs are left out")
        except DamagedError as error:
            warnings.warn(str(error), RecoveryWarning, 2)
            continue
        runs |= {key: entry.run for key, entry in kept.items()}

    def place(key: RunKey) -> list[Any]:
        values = [*sorted(json.loads(key[0]).items()), ("seed", key[1])]
        numbers = (int, float)
        return [
            (name, not isinstance(v, numbers), v if isinstance(v, numbers) else 0, str(v).zfill(9))
            for name, v in values
        ]

    return [runs[key] for key in sorted(runs, key=place)]


def _read_or_set_aside(path: pathlib.Path, sweep: str) -> dict[RunKey, _Kept]:
    """Returns the runs of a file; a damaged file is renamed, and its runs are repeated."""
    aside = path.with_suffix(".damaged")
    try:
        return _read(path, sweep, f"it was renamed to {aside.name}, and its runs are repeated")
    except FileNotFoundError:  # another process has renamed it
        return {}
    except DamagedError as error:
        with contextlib.suppress(FileNotFoundError):
            path.replace(aside)
        warnings.warn(str(error), RecoveryWarning, stacklevel=2)
        return {}


def _read(path: pathlib.Path, sweep: str, advice: str) -> dict[RunKey, _Kept]:
    """Returns the runs of a slice, unless it is damaged or of another sweep."""
    arrays: dict[str, Any] = read_npz(path, advice)
    meta = json.loads(str(arrays["meta"]))
    if path.name != _name(meta, sweep, "model:0" in arrays):
        raise FolderError(
            f"{path} is of another sweep than {path.parent.parent / _SWEEP}, or was renamed; move "
            "it elsewhere"
        )
    result = {}
    if any(len(entry) != 2 + len(RunDigests._fields) for entry in meta):
        raise FolderError(f"{path} is of another version of fedjax_sim; choose another directory")
    for i, (configuration, seed, *identity) in enumerate(meta):
        parts: dict[str, dict[str, Any]] = {"metrics": {}, "probes": {}, "model": {}}
        for name, values in arrays.items():
            kind, colon, rest = name.partition(":")
            if colon:
                parts[kind][rest] = values[i]
        history = History(arrays["round"], parts["metrics"], parts["probes"])
        run = SweepRun(
            json.loads(configuration),
            seed,
            history,
            int(arrays["diverged_at"][i]),
            bits=tuple(arrays["bits"][i].tolist()) if "bits" in arrays else None,
            partial_model=bool(arrays["partial_model"][i]),
        )
        model = [parts["model"][str(k)] for k in range(len(parts["model"]))]
        result[configuration, seed] = _Kept(RunDigests(*identity), run, model)
    return result
