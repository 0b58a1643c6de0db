"""Checkpoints of a run: states on disk with digests of their files.

Orbax writes ``checkpoints/ROUND``.  ``record.json`` in it is written last: a checkpoint without it
was not finished.  It has the digest of every file, the beginnings of the files that grow, and what
identifies the run.  A damaged checkpoint is set aside, and the run continues from an older one.
"""

import contextlib
import errno
import gc
import itertools
import logging
import os
import pathlib
import re
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim.engine import RunState, distributed
from fedjax_sim.runs.storage.files import (
    FolderError,
    RecoveryWarning,
    file_digest,
    own,
    read_json,
    sync,
    write_json,
)
from fedjax_sim.runs.storage.history_file import Mark

# Reasons that TensorStore gives as text only.
_REASONS = {
    os.strerror(number): number
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EACCES)
}
# Seconds after an error in which other threads finish their files and find no one waiting.
_LATE = 0.1


@contextlib.contextmanager
def one_error(folder: pathlib.Path) -> Iterator[None]:
    """Context of reading and writing; a failing disk raises one ``OSError`` that names the folder.

    Orbax's threads report the error as well, each with a traceback of its own.  Those are left out.

    Example:
        >>> with one_error(pathlib.Path("results")):
        ...     raise ValueError("RESOURCE_EXHAUSTED: Failed to write [os_error_code='28']")
        Traceback (most recent call last):
        OSError: [Errno 28] No space left on device: 'results'
    """
    try:
        with _quiet_threads():
            try:
                yield
            except Exception:
                gc.collect()  # unretrieved exceptions of tasks report themselves when collected
                time.sleep(_LATE)
                raise
    except Exception as error:
        number = _number(error)
        if number is None:
            raise
        raise OSError(number, os.strerror(number), str(folder)) from error


def _number(error: Exception) -> int | None:
    if isinstance(error, OSError):
        return error.errno
    text = str(error)
    if code := re.search(r"os_error_code='(\d+)'", text):
        return int(code[1])
    return next((number for reason, number in _REASONS.items() if reason in text), None)


@contextlib.contextmanager
def _quiet_threads() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("absl", "asyncio")]
    levels = [logger.level for logger in loggers]
    hook = sys.unraisablehook

    def ignore_closed_loops(unraisable: Any) -> None:
        if "Event loop is closed" not in str(unraisable.exc_value):
            hook(unraisable)

    sys.unraisablehook = ignore_closed_loops
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


_RECORD = "record.json"
_KEPT = 2  # newest checkpoints


class Confirmed(NamedTuple):
    """The state of a run's folder that a checkpoint confirms."""

    run: Mapping[str, Any]  # what identifies the run
    history: Mark
    clients: Mark | None  # None: no client has values


class Checkpoints:
    """The checkpoints in a folder; several processes share them, the first one verifies.

    ``check`` refuses a checkpoint of another run, by its folder and what identifies that run.
    """

    def __init__(
        self, folder: pathlib.Path, check: Callable[[pathlib.Path, Mapping[str, Any]], None]
    ):
        import orbax.checkpoint as ocp  # slow to import, and needed only here

        self._ocp, self.folder, self._check = ocp, own(folder).absolute(), check
        distributed.on_first(self._set_damaged_aside)
        options = ocp.CheckpointManagerOptions(
            max_to_keep=_KEPT, enable_async_checkpointing=False, create=True
        )
        self._manager = ocp.CheckpointManager(self.folder, options=options)

    @property
    def newest(self) -> int | None:
        """The round of the newest checkpoint."""
        return self._manager.latest_step()

    def restore(
        self, state: RunState, round: int | None = None
    ) -> tuple[RunState, Confirmed] | None:
        """Returns the newest or a given checkpoint's state, placed as ``state``; None without."""
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
        return jax.tree.map(_uncommitted, saved["state"]), confirmed(path)

    def save(self, state: RunState, confirms: Callable[[], Confirmed]) -> None:
        """Writes a checkpoint, and removes those before the last."""
        step = int(np.asarray(state.round).max())
        if step == self.newest:
            return
        args = self._ocp.args
        with one_error(self.folder):
            self._manager.save(step, args=args.Composite(state=args.StandardSave(state)))
        distributed.on_first(lambda: write_record(self.folder / str(step), confirms()))

    def _set_damaged_aside(self) -> None:
        """Moves damaged checkpoints out of the way, if there is one that is not."""
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
            else:
                self._check(path, confirmed(path).run)
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
# Content of a checkpoint, whole or not: Orbax's and the record.
_PARTS = {"state", "metrics", "_CHECKPOINT_METADATA", "descriptor", "commit_success.txt"}


def _check_own(step: pathlib.Path) -> None:
    """Refuses a folder with files of others, which Orbax would delete with old checkpoints."""
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


def newest(folder: pathlib.Path) -> Confirmed | None:
    """Returns what the newest checkpoint confirms whose record is intact; reads only."""
    for path in _steps(folder) if folder.exists() else ():
        with contextlib.suppress(FolderError, OSError):
            return confirmed(path)
    return None


def write_record(step: pathlib.Path, confirms: Confirmed) -> None:
    """Completes a checkpoint with the digests of its files, after forcing them to the disk."""
    paths = sorted(step.rglob("*"))
    for path in [*paths, step, step.parent]:
        sync(path)
    files = {
        path.relative_to(step).as_posix(): file_digest(path) for path in paths if path.is_file()
    }
    write_json(step / _RECORD, {"files": files, **confirms._asdict()}, indent=1)


def damage(step: pathlib.Path) -> str:
    """Returns what is damaged in a checkpoint, or an empty text; reads all of its files."""
    if not (step / _RECORD).exists():
        return _UNFINISHED
    try:
        for name, expected in _read_record(step)["files"].items():
            if not (step / name).is_file():
                return f"{name} is missing"
            if file_digest(step / name) != expected:
                return f"{name} is not what was written"
    except FolderError:
        return f"{_RECORD} is not what was written"
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return f"{error.filename} cannot be read"
    return ""


def confirmed(step: pathlib.Path) -> Confirmed:
    """Returns what a checkpoint confirms."""
    values = _read_record(step)
    clients = values["clients"]
    return Confirmed(
        values["run"], Mark(*values["history"]), None if clients is None else Mark(*clients)
    )


def _read_record(step: pathlib.Path) -> dict[str, Any]:
    return read_json(step / _RECORD, "restore it from a copy")


def _uncommitted(x: Array) -> Array:
    """Returns an uncommitted copy of an array on one device, which may move to other devices.

    Arrays that are divided over devices, or on the host, stay there.
    """
    if isinstance(x, np.ndarray) or len(x.sharding.device_set) > 1:
        return x
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(_uncommitted(jax.random.key_data(x)))
    return jnp.asarray(np.asarray(x))
