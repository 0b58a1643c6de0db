"""Folders of results: their names, and what they hold."""

import json
import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import Literal

from fedjax_sim.runs.storage.files import FolderError, read_json, write_text

Kind = Literal["a run", "a comparison", "a sweep"]
NAMES = "algorithms.json"  # of a comparison: the algorithms' names, by folder


def folder_names(names: Iterable[str], argument: str = "algorithms") -> dict[str, str]:
    """Returns a folder name for every name.

    Raises:
        ValueError: there are no names, one is no text, or two have the same folder.

    Example:
        >>> folder_names(["FedAvg, lr 0.1", "scaffold"])
        {'FedAvg, lr 0.1': 'FedAvg-lr-0.1', 'scaffold': 'scaffold'}
        >>> folder_names(["-1", "1"], "seeds")  # a number keeps its sign
        {'-1': '-1', '1': '1'}
    """
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


def record_names(folder: pathlib.Path, folders: Mapping[str, str]) -> None:
    """Writes the algorithms' names in a comparison's folder, beside those of earlier calls.

    Args:
        folder: the comparison's.
        folders: names of the algorithms' folders, by the algorithms' names.
    """
    old = recorded_names(folder)
    new = {inner: name for name, inner in folders.items()}
    if old | new != old:  # a finished comparison may be in a folder that can only be read
        write_text(folder / NAMES, json.dumps(old | new, indent=2) + "\n")


def recorded_names(folder: pathlib.Path) -> dict[str, str]:
    """Returns the algorithms' names in a comparison's folder, by folder; empty if it has none.

    Raises:
        FolderError: the file is damaged.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     record_names(pathlib.Path(folder), folder_names(["FedAvg, lr 0.1"]))
        ...     recorded_names(pathlib.Path(folder))
        {'FedAvg-lr-0.1': 'FedAvg, lr 0.1'}
    """
    path, advice = folder / NAMES, "delete it (results then have the names of their folders)"
    if not path.exists():
        return {}
    names = read_json(path, advice)
    for inner, name in names.items():  # a name has one folder, so equal names are found, too
        if not inner or not isinstance(name, str) or inner != _folder_name(name):
            raise FolderError(
                f"{path} has the name {name!r:.80} for the folder {inner!r:.80}; expected names "
                f"with the folders that a comparison gives them: {advice}"
            )
    return names


def is_seed(folder: pathlib.Path) -> bool:
    """Returns True for the folder of a single seed's run, which has the seed's name.

    Raises:
        FolderError: ``run.json`` is damaged.
    """
    path, advice = folder / "run.json", "expected a JSON object with the names of replicas"
    replicas = read_json(path, advice).get("replicas")
    if not isinstance(replicas, list) or not all(isinstance(name, str) for name in replicas):
        raise FolderError(f"{path} is damaged (it has the replicas {replicas!r:.80}); {advice}")
    return len(replicas) == 1 and _folder_name(replicas[0]) == folder.name


def kind_of(folder: pathlib.Path) -> Kind | None:
    """Returns what a folder holds; None if there are no results.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "fedavg" / "run.json"
        ...     path.parent.mkdir()
        ...     _ = path.write_text("{}")
        ...     kind_of(path.parent), kind_of(pathlib.Path(folder))
        ('a run', 'a comparison')
    """
    if (folder / "sweep.json").exists():
        return "a sweep"
    if (folder / "run.json").exists():
        return "a run"
    seeds = (path.parent for path in folder.glob("*/*/run.json"))
    if any(folder.glob("*/run.json")) or any(map(is_seed, seeds)):
        return "a comparison"
    return None


def check_kind(folder: pathlib.Path, kind: Kind, argument: str = "directory") -> None:
    """Refuses a folder that holds other results than ``kind``, and a file; writes nothing.

    Args:
        folder: the folder, which need not exist.
        kind: what is going to be written.
        argument: name of the argument in messages.

    Raises:
        ValueError: naming the folder and what it holds.
    """
    existing = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    if existing.exists() and not existing.is_dir():
        what = "is a file" if existing == folder else f"is inside the file '{existing}'"
        raise ValueError(f"{argument} is '{folder}', which {what}; expected a folder")
    held = kind_of(folder)
    if held not in (None, kind):
        raise FolderError(
            f"{argument} is '{folder}', which holds {held}; expected another folder for {kind}"
        )
