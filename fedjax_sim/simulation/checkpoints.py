"""Checkpoints of a run: states on disk with digests of their files.

Orbax writes ``checkpoints/ROUND``.  ``record.json`` in it is written last: a checkpoint without it
was not finished.  It has the digest of every file, the beginning of the history, and a digest of
itself.  A damaged checkpoint is set aside, and the run continues from an older one.
"""

import contextlib
import errno
import itertools
import json
import os
import pathlib
import shutil
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim.engine import RunState
from fedjax_sim.execution import distributed
from fedjax_sim.simulation.files import (
    FolderError,
    RecoveryWarning,
    digest,
    file_digest,
    own,
    sync,
    write_text,
)
from fedjax_sim.simulation.history_file import Mark
from fedjax_sim.simulation.orbax_errors import one_error

_RECORD = "record.json"
_KEPT = 2  # newest checkpoints


class Checkpoints:
    """The checkpoints in a folder; several processes share them, the first one verifies."""

    def __init__(self, folder: pathlib.Path):
        import orbax.checkpoint as ocp  # slow to import, and needed only here

        self._ocp, self.folder = ocp, own(folder).absolute()
        distributed.on_first(self._set_damaged_aside)
        options = ocp.CheckpointManagerOptions(
            max_to_keep=_KEPT, enable_async_checkpointing=False, create=True
        )
        self._manager = ocp.CheckpointManager(self.folder, options=options)

    @property
    def newest(self) -> int | None:
        """The round of the newest checkpoint."""
        return self._manager.latest_step()

    def restore(self, state: RunState, round: int | None = None) -> tuple[RunState, Mark] | None:
        """Returns a state and the history before it; None without such a checkpoint.

        Args:
            state: a state with the shapes and the placement of the result.
            round: of the checkpoint; default: the newest.
        """
        step = self.newest if round is None else round
        if step is None or step not in self._manager.all_steps():
            return None
        # Devices of this process, not of the process that saved it.
        shapes = jax.tree.map(
            lambda x: (
                x
                if isinstance(x, np.ndarray)  # states on the host
                else jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
            ),
            state,
        )
        args = self._ocp.args
        path = self.folder / str(step)
        try:
            with one_error(self.folder):
                saved = self._manager.restore(
                    step, args=args.Composite(state=args.StandardRestore(shapes))
                )
        except (ValueError, KeyError, TypeError) as error:  # by another version of this program
            reason = str(error).partition("\n")[0]
            raise FolderError(f"checkpoint {path} does not fit this run: {reason}") from error
        return jax.tree.map(_uncommitted, saved["state"]), mark(path)

    def save(self, state: RunState, history: Mark) -> None:
        """Writes a checkpoint, and removes those before the last."""
        step = int(np.asarray(state.round).max())
        if step == self.newest:
            return
        args = self._ocp.args
        with one_error(self.folder):
            self._manager.save(step, args=args.Composite(state=args.StandardSave(state)))
        distributed.on_first(lambda: write_record(self.folder / str(step), history))

    def _set_damaged_aside(self) -> None:
        """Moves damaged checkpoints out of the way, if there is one that is not.

        Raises:
            FolderError: all checkpoints are damaged, or a folder is none of this run.
        """
        if not self.folder.exists():
            return
        damaged: dict[pathlib.Path, str] = {}
        intact = False
        for path in _steps(self.folder):
            _check_own(path)
            reason = damage(path)
            intact = intact or reason == ""
            if reason == _UNFINISHED:
                shutil.rmtree(path)
            elif reason:
                damaged[path] = reason
        for path in self.folder.glob("*.orbax-checkpoint-tmp*"):  # left by kills
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
        if damaged and not intact:
            reasons = "; ".join(f"{path.name}: {reason}" for path, reason in damaged.items())
            raise FolderError(
                f"no checkpoint in {self.folder} is intact ({reasons}); restore one from a copy, "
                f"or delete {self.folder.parent} to run again"
            )
        for path, reason in damaged.items():
            other = own(self.folder.parent / "damaged") / path.name
            names = (other.with_name(f"{other.name}-{number}") for number in itertools.count(2))
            aside = next(p for p in itertools.chain([other], names) if not os.path.lexists(p))
            aside.parent.mkdir(exist_ok=True)
            path.replace(aside)
            older = "an older checkpoint is used where there is no newer one"
            warnings.warn(
                f"checkpoint {path} is damaged ({reason}) and was moved to {aside}; {older}",
                RecoveryWarning,
                stacklevel=2,
            )


_UNFINISHED = "unfinished"
# Content of a checkpoint, whole or not, also of earlier versions: Orbax's and the record.
_PARTS = {"state", "meta", "metrics", "_CHECKPOINT_METADATA", "descriptor", "commit_success.txt"}


def _check_own(step: pathlib.Path) -> None:
    """Refuses a folder with files of others, which Orbax would delete with the oldest checkpoints.

    Raises:
        FolderError: naming the folder.
    """
    names = {path.name for path in own(step).iterdir()} - _PARTS
    others = [name for name in sorted(names) if not name.strip(".").startswith(_RECORD)]
    if others:
        raise FolderError(
            f"{step} has {', '.join(others)}, which a checkpoint does not have; expected "
            "checkpoints only, since old ones are deleted: move that folder elsewhere"
        )


def _steps(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the folders of checkpoints, the newest first."""
    steps = [path for path in folder.iterdir() if path.name.isdecimal() and path.is_dir()]
    return sorted(steps, key=lambda path: int(path.name), reverse=True)


def newest_mark(folder: pathlib.Path) -> Mark | None:
    """Returns the history before the newest checkpoint whose record is intact; reads only."""
    for path in _steps(folder) if folder.exists() else ():
        with contextlib.suppress(*_DAMAGES, OSError):
            return mark(path)
    return None


def write_record(step: pathlib.Path, history: Mark) -> None:
    """Completes a checkpoint with the digests of its files, after forcing them to the disk."""
    paths = sorted(step.rglob("*"))
    for path in [*paths, step, step.parent]:
        sync(path)
    files = {
        path.relative_to(step).as_posix(): file_digest(path) for path in paths if path.is_file()
    }
    values = {"files": files, "history": history._asdict()}
    text = json.dumps(values | {"digest": digest(values)}, indent=1)
    write_text(step / _RECORD, text)


_DAMAGES = (ValueError, TypeError, AttributeError, KeyError, RecursionError)


def damage(step: pathlib.Path) -> str:
    """Returns what is damaged in a checkpoint, or an empty text; reads all of its files."""
    if not (step / _RECORD).exists() and not _is_earlier(step):
        return _UNFINISHED
    try:
        mark(step)
        files = {} if _is_earlier(step) else _read_record(step)["files"]
        for name, expected in files.items():
            if not (step / name).is_file():
                return f"{name} is missing"
            if file_digest(step / name) != expected:
                return f"{name} is not what was written"
    except _DAMAGES:
        return f"{_RECORD} is not what was written"
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return f"{error.filename} cannot be read"
    return ""


def mark(step: pathlib.Path) -> Mark:
    """Returns the history before a checkpoint."""
    if _is_earlier(step):
        values = json.loads((step / "meta" / "metadata").read_bytes())
        return Mark(int(values["history_bytes"]), None)
    return Mark(**_read_record(step)["history"])


def _is_earlier(step: pathlib.Path) -> bool:
    """Returns True for a checkpoint of an earlier version, which wrote no digests."""
    return not (step / _RECORD).exists() and (step / "meta").exists()


def _read_record(step: pathlib.Path) -> dict[str, Any]:
    """Returns the record of a checkpoint.

    Raises:
        ValueError, TypeError, AttributeError, KeyError, RecursionError: it is damaged.
    """
    record = json.loads((step / _RECORD).read_bytes())
    values = {name: record[name] for name in ("files", "history")}
    if record != values | {"digest": digest(values)}:
        raise ValueError("its digest differs")
    return record


def _uncommitted(x: Array) -> Array:
    """Returns an uncommitted copy of an array on one device, which may move to other devices.

    Arrays that are divided over devices, or on the host, stay there.
    """
    if isinstance(x, np.ndarray) or len(x.sharding.device_set) > 1:
        return x
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(_uncommitted(jax.random.key_data(x)))
    return jnp.asarray(np.asarray(x))
