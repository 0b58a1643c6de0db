"""Contents of a report: what a result, or a folder of results, has recorded."""

import functools
import io
import json
import pathlib
import shlex
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedjax_sim.reports.folders import (
    Rule,
    cells_of,
    data_key,
    read_client_values,
    read_folder,
    rule_of,
    run_folders,
    saved_config,
)
from fedjax_sim.reports.frames import grid_values
from fedjax_sim.reports.labels import UNFINISHED_NOTE
from fedjax_sim.runs import (
    Comparison,
    FolderError,
    RunFolder,
    Simulation,
    Sweep,
    environment,
    read_json,
)

LABELS = "labels.json"  # beside config.json: examples of the first clients by label
MOST_LABELLED = 1000  # clients in it
_MAP = ["client", "label", "examples"]
_MEASURED = ["quantity", "seed", "round", "metric", "value"]


class Source(NamedTuple):
    """Content of one result or folder."""

    kind: str  # "run", "comparison" or "sweep"
    history: pd.DataFrame  # tidy, with the configuration's columns
    rule: Rule = Rule()  # by which the best configuration of a sweep is chosen
    cells: tuple[str, ...] = ()  # columns of a sweep that are settings, each with its best
    partial: frozenset[str] = frozenset()  # algorithms whose server's model is no complete one
    setting: str = ""  # one line: data set, clients, cohort, local work
    facts: Mapping[str, str] = {}  # of data, model and size, by their labels
    algorithms: Mapping[str, str] = {}  # hyper-parameters by algorithm
    options: Mapping[str, str] = {}  # all options by name
    clients: pd.DataFrame | None = None  # a row per client, evaluated round and split
    labels: pd.DataFrame | None = None  # columns client, label, examples
    # Constants of theory by name, and columns quantity, seed, round, metric, value.
    diagnosis: tuple[Mapping[str, Any], pd.DataFrame] | None = None
    environment: Mapping[str, Any] = {}  # versions and devices
    command: str | None = None  # that repeats it
    name: str = ""  # of the folder
    data: str = ""  # digests of the data set and own clients: only methods of one are compared


@functools.singledispatch
def source_of(result: Any) -> Source:
    """Returns the content of a result in memory, or of a folder."""
    raise ValueError(
        f"result is a {type(result).__name__}; expected a result of fs.simulate, fs.compare or "
        "fs.sweep, the folder of one, or a list of folders"
    )


@source_of.register
def _(result: Simulation) -> Source:
    history = result.to_frame().assign(algorithm="run")
    clients = result.per_client()
    content = _in_memory(
        "run", result, history, clients if clients.empty else clients.assign(algorithm="run")
    )
    partial = ["run"] if result.record.partial_model else []
    return content._replace(partial=frozenset(partial))


@source_of.register
def _(result: Comparison) -> Source:
    content = _in_memory("comparison", result, result.to_frame(), result.per_client())
    return content._replace(partial=result.partial_models)


@source_of.register
def _(result: Sweep) -> Source:
    history = result.whole().to_frame()
    content = _in_memory("sweep", result, history, None)
    # As in the table of the result.
    cells = tuple(name for name in result.settings if len(grid_values(history, name)) > 1)
    return content._replace(partial=result.partial_models, cells=cells)


def label_columns(counts: np.ndarray) -> dict[str, list[int]]:
    """Returns the labels of the first clients, as ``labels.json`` has them."""
    clients, labels = np.nonzero(counts[:MOST_LABELLED])
    columns = {"client": clients, "label": labels, "examples": counts[clients, labels]}
    return {name: values.tolist() for name, values in columns.items()}


def _in_memory(
    kind: str, result: Simulation | Comparison | Sweep, history: pd.DataFrame, clients: Any
) -> Source:
    known = clients if clients is not None and len(clients) else None
    facts = {name: str(text) for name, text in result._summary().rows.items()}
    return Source(kind, history, facts=facts, clients=known, environment=environment())


@source_of.register
def _(result: str | pathlib.Path) -> Source:
    path = pathlib.Path(result)
    content, saved = read_folder(path), saved_config(path)
    config = saved.get("settings", {})
    swept = (path / "slices").is_dir()
    runs = {} if swept else run_folders(path, config)
    command = "tune" if "tuning" in saved else "sweep" if swept else "run"
    return Source(
        "sweep" if swept else "run" if RunFolder(path).exists else "comparison",
        content.history,
        rule_of(config),
        cells_of(config),
        content.partial,
        content.setting,
        _facts(saved) | ({"sweep": UNFINISHED_NOTE} if content.unfinished else {}),
        _algorithms(saved, runs),
        {name: _text(value) for name, value in _flat(config) if value not in (None, [], {})},
        None if swept else _clients(path),
        _labels(path),
        _diagnosis(path),
        saved.get("environment") or _environment(runs),
        f"fedjax-sim {command} {shlex.quote(str(path / 'config.json'))} --output results/repeated"
        if config and not saved.get("own")  # parts of a study module, which a file does not name
        else None,
        path.resolve().name,
        data_key(saved, runs),
    )


def _facts(saved: Mapping[str, Any]) -> dict[str, str]:
    """Returns what config.json says of data, clients and model."""
    data, partition, model = (saved.get(name) or {} for name in ("data", "partition", "model"))
    facts = {}
    if data:
        counts = [
            f"{data[f'{part}_examples']:,} {word}"
            for part, word in (("train", "training"), ("valid", "validation"), ("test", "test"))
            if data.get(f"{part}_examples")
        ]
        classes = [f"{data['classes']} classes"] if data.get("classes") else []
        facts["data"] = f"{data.get('name')}: {', '.join([*counts, *classes])}"
    if partition:
        facts["examples per client"] = _spread(partition.get("sizes"))
        facts["classes per client"] = _spread(partition.get("classes"))
    if model:
        facts["model"] = f"{model.get('name')}, {model.get('parameters', 0):,} parameters"
    return {name: text for name, text in facts.items() if text}


def _spread(values: Any) -> str:
    """Returns smallest, median and largest as a text."""
    if not isinstance(values, list) or len(values) != 3:
        return ""
    low, middle, high = (f"{value:.12g}" for value in values)
    return low if low == high else f"{low} to {high}, median {middle}"


def _algorithms(saved: Mapping[str, Any], runs: Mapping[str, list[pathlib.Path]]) -> dict[str, str]:
    """Returns the hyper-parameters by algorithm: of config.json, else of the runs' identities."""
    hyper = saved.get("algorithms")
    if isinstance(hyper, dict):
        return {name: _arguments(values) for name, values in hyper.items()}
    specs = {name: RunFolder(folders[0]).identity().get("spec") for name, folders in runs.items()}
    return {name: _text(spec) for name, spec in specs.items() if spec is not None}


def _arguments(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_text(x)}" for name, x in values.items() if x is not None)


def _environment(runs: Mapping[str, list[pathlib.Path]]) -> dict[str, Any]:
    """Returns the environment of the last call that computed rounds; empty if none is recorded."""
    calls = [call for folders in runs.values() for x in folders for call in RunFolder(x).calls()]
    return max(calls, key=lambda call: call["began"], default={})


def _clients(path: pathlib.Path) -> pd.DataFrame | None:
    """Returns the clients' values; None if a run was not evaluated per client."""
    folders = [x for each in run_folders(path).values() for x in each]
    if not all(RunFolder(folder).has_clients for folder in folders):
        return None
    values = read_client_values(path)
    return values if len(values) else None


def _labels(path: pathlib.Path) -> pd.DataFrame | None:
    """Returns the labels of the clients; None if they are not recorded."""
    file = path / LABELS
    if not file.exists():
        return None
    columns = read_json(file, "delete it (it can be missed)")
    return _whole(file, lambda: pd.DataFrame({name: columns[name] for name in _MAP}))


def _diagnosis(path: pathlib.Path) -> tuple[Mapping[str, Any], pd.DataFrame] | None:
    """Returns the files of ``fedjax-sim run --diagnose``; None if there are none."""
    constants, measured = path / "diagnosis.json", path / "diagnosis.csv"
    if not (constants.exists() and measured.exists()):
        return None
    known = _whole(constants, lambda: json.loads(constants.read_bytes())["constants"])
    return known, _whole(measured, lambda: _table(measured.read_text()))


def _table(text: str) -> pd.DataFrame:
    """Returns the measured quantities; a cut last number would be another one."""
    frame = pd.read_csv(io.StringIO(text)).loc[:, _MEASURED].astype({"value": float})
    if frame.empty or not text.endswith("\n"):
        raise ValueError("its end is missing")
    return frame


def _whole(file: pathlib.Path, read: Callable[[], Any]) -> Any:
    """Returns what is read from a file; refuses a damaged one."""
    try:
        return read()
    except (ValueError, KeyError, TypeError) as error:
        raise FolderError(f"{file} is damaged ({error}); delete it (it can be missed)") from error


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Returns the entries of nested mappings by dotted names."""
    pairs = []
    for name, value in values.items():
        nested = isinstance(value, Mapping)
        pairs += _flat(value, f"{prefix}{name}.") if nested else [(f"{prefix}{name}", value)]
    return pairs


def _text(value: Any) -> str:
    """Returns a value of config.json or run.json as a text; a spec as a call."""
    if isinstance(value, Mapping) and value.keys() == {"name", "arguments"}:
        return f"{value['name']}({_arguments(value['arguments'])})"
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return f"{value:.12g}" if isinstance(value, float) else str(value)
