"""Folders of results: their names, and what they hold."""

import pathlib
import re
import types
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from fedjax_sim.runs.storage.files import FolderError, read_json, write_json
from fedjax_sim.runs.storage.store import RunFolder

Kind = Literal["a run", "a comparison", "a sweep"]
_NAMES = "algorithms.json"  # of a comparison: the algorithms' names, by folder


def folder_names(names: Iterable[str], argument: str = "algorithms") -> dict[str, str]:
    """Returns a folder name for every name."""
    names = list(names)
    if any(not isinstance(name, str) for name in names):
        raise ValueError(f"{argument} has the names {names}; expected text")
    folders = {name: _folder_name(name) for name in names}
    if not folders:
        raise ValueError(f"{argument} is empty; expected at least one name")
    used: dict[str, str] = {}
    for name, folder in folders.items():
        if not folder or folder.lower() in used:  # some file systems ignore case
            other = f", as of {used[folder.lower()]!r}" if folder else ""
            raise ValueError(
                f"{argument} has the name {name!r}, whose folder would be {folder!r}{other}; "
                "expected names that differ in letters or digits"
            )
        used[folder.lower()] = name
    return folders


def _folder_name(name: str) -> str:
    return name if re.fullmatch(r"-\d+", name) else re.sub(r"[^\w.+=-]+", "-", name).strip("-.")


def record_names(
    folder: pathlib.Path,
    folders: Mapping[str, str],
    functions: Mapping[str, Any] = types.MappingProxyType({}),
) -> None:
    """Writes the algorithms' names, of these folders, beside those of earlier calls.

    ``functions`` are digests of what all algorithms have in common; empty: those that are there.
    """
    old = _recorded(folder)
    new = {**old, "names": recorded_names(folder) | {x: name for name, x in folders.items()}}
    if functions:
        new["functions"] = recorded_functions(folder) | dict(functions)
    if new != old:  # a finished comparison may be in a folder that can only be read
        write_json(folder / _NAMES, new)


def recorded_names(folder: pathlib.Path) -> dict[str, str]:
    """Returns the algorithms' names in a comparison's folder, by folder; empty if it has none."""
    return _recorded(folder).get("names", {})


def recorded_functions(folder: pathlib.Path) -> dict[str, Any]:
    """Returns the digests that :func:`record_names` wrote; empty if there are none."""
    return _recorded(folder).get("functions", {})


def _recorded(folder: pathlib.Path) -> dict[str, Any]:
    path = folder / _NAMES
    if not path.exists():
        return {}
    return read_json(path, "delete it (results then have the names of their folders)")


def is_seed(folder: pathlib.Path) -> bool:
    """Returns True for the folder of a single seed's run, which has the seed's name."""
    replicas = RunFolder(folder).identity()["replicas"]
    return len(replicas) == 1 and _folder_name(replicas[0]) == folder.name


def runs_in(folder: pathlib.Path, depth: int = 1) -> list[pathlib.Path]:
    """Returns the folders of runs, that many levels below a folder."""
    found = sorted(folder.glob("/".join(["*"] * depth)))
    return [path for path in found if path.is_dir() and RunFolder(path).exists]


def kind_of(folder: pathlib.Path) -> Kind | None:
    """Returns what a folder holds; None if there are no results."""
    if (folder / "sweep.json").exists():
        return "a sweep"
    if RunFolder(folder).exists:
        return "a run"
    if runs_in(folder) or any(map(is_seed, runs_in(folder, 2))):
        return "a comparison"
    return None


def check_kind(folder: pathlib.Path, kind: Kind, argument: str = "directory") -> None:
    """Refuses a folder that holds other results than ``kind``, and a file; writes nothing."""
    existing = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    if existing.exists() and not existing.is_dir():
        what = "is a file" if existing == folder else f"is inside the file '{existing}'"
        raise ValueError(f"{argument} is '{folder}', which {what}; expected a folder")
    held = kind_of(folder)
    if held not in (None, kind):
        raise FolderError(
            f"{argument} is '{folder}', which holds {held}; expected another folder for {kind}"
        )
