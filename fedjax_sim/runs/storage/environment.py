"""Environment of a run: everything besides its arguments that its last bits depend on."""

import datetime
import functools
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
from typing import Any

import jax

from fedjax_sim.engine import Execution
from fedjax_sim.runs.storage.files import digest, naming, own, sync

_PACKAGES = (
    "fedjax_sim", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "scikit-learn",
)  # fmt: skip


def environment() -> dict[str, Any]:
    """Returns versions, devices, the git revision and a digest of the library's code."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "versions": versions,
        "git": git_revision(pathlib.Path(__file__)),
        "code": code_digest(),
        "backend": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
        "num_devices": jax.device_count(),
        "num_processes": jax.process_count(),
        "double_precision": bool(jax.config.values["jax_enable_x64"]),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "machine": platform.machine(),
    }


def log_call(path: pathlib.Path, first_round: int, execution: Execution) -> None:
    """Appends a line with the environment to a file of JSON lines, for the rounds that follow."""
    entry = {
        "began": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "host": platform.node(),
        "pid": os.getpid(),
        "after_round": first_round,
        "execution": getattr(execution, "__qualname__", repr(execution)).split(".<locals>")[0],
        **environment(),
    }
    before = path.read_bytes() if path.exists() else b""
    torn = before and not before.endswith(b"\n")  # by a kill or a full disk
    with naming(path), own(path).open("a") as file:
        file.write(("\n" if torn else "") + json.dumps(entry) + "\n")
    sync(path)


@functools.cache
def code_digest() -> str:
    """Returns a digest of the library's source files, 16 hexadecimal digits."""
    root = pathlib.Path(__file__).parents[2]
    files = [[p.relative_to(root).as_posix(), p.read_text()] for p in sorted(root.rglob("*.py"))]
    return digest(files)


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
