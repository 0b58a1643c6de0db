"""``fedjax-sim init``: a study module to start from, for a preset or a table."""

import dataclasses
import itertools
import json
import os
import pathlib
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_sim.checks import did_you_mean
from fedjax_sim.cli.errors import resolving
from fedjax_sim.datasets import (
    LABELS,
    SPLIT,
    SUFFIXES,
    Columns,
    group_text,
    identifiers,
    is_table,
    read_columns,
    read_table,
)
from fedjax_sim.studies.setups import LR, PRESETS, flat

DESCRIPTION = """\
Writes FILE.py, a study module to start from. Of a preset (default quickstart) it has the options,
and an algorithm and a metric of your own; of a table (.csv, .tsv, .parquet, .npz) the labels, the
clients and the scale that its columns suggest. fedjax-sim run FILE.py runs it."""
USAGE = "init FILE.py [PRESET | TABLE]"

# Names of columns with labels or clients, without a plural s and _id.
_LABELS = (*LABELS, "target", "class", "outcome", "diagnosis", "species", "category")
_CLIENTS = (
    "client", "user", "writer", "site", "hospital", "center", "centre", "device", "speaker",
    "station", "subject", "patient", "school", "bank", "region",
)  # fmt: skip
_FEW = 20  # whole numbers of at most so many values, or with so many rows per value, are classes
_WIDTH = 88  # of a line, as formatters have it
# Options of a preset that the module has, and comments on them.
_OPTIONS = {
    "dataset": "by name, see fedjax-sim list",
    "partition": "or shards, iid, natural, ...",
    "alpha": "concentration of the labels; smaller is more heterogeneous",
    "num_clients": "",
    "cohort_size": "clients per round, or per contact of the server",
    "local_epochs": "passes of a client over its examples per visit",
    "local_steps": "steps of a client per visit",
    "batch_size": "examples per step",
    "rounds": "",
    "horizon": "simulated time at which every algorithm ends",
    "eval_every": "rounds between evaluations",
    "seeds": "runs per algorithm, all in one program",
}

_OF_PRESET = '''\
"""The preset {preset} with an algorithm and a metric of one's own.

    fedjax-sim run {file}
    fedjax-sim sweep {file} --algorithms mine --grid.mu.values 0.1 1

Options that are typed replace those of this file.
"""

import pathlib

import fedjax_sim as fs


def mine(lr={lr}, mu=0.1):
    """FedAvg whose uploads count less the longer they are; parameters are options."""
    fedavg = fs.fedavg(lr)

    def local(message, state, oracle, work):
        upload, state = fedavg.local(message, state, oracle, work)
        return fs.tree.scale(1 / (1 + mu * fs.tree.norm(upload)), upload), state

    return fedavg._replace(local=local)


def top_two(outputs, y):
    """Metrics beside loss and accuracy, one value per example."""
    best = outputs.argsort(-1)[:, -2:]
    return {{"top-2": (best == y[:, None]).any(-1).astype(float)}}


def study():
    """Returns the comparison."""
    options = fs.presets.options(
        "{preset}",
        output=pathlib.Path("results/{name}"),
{options}
    )
    # These are compared, unless --algorithms names others, also built-in ones.
    algorithms = {{"fedavg": fs.fedavg, "mine": mine}}
    # Other parts that fs.Study takes: model, dataset, loss, rows, timeline, setup.
    return fs.Study(options, algorithms=algorithms, metrics=top_two)
'''

_OF_TABLE = '''\
"""A comparison on the examples of {table}.

    fedjax-sim run {file}
    fedjax-sim sweep {file} --algorithms fedavg --grid.lr.values {rates}

Options that are typed replace those of this file.
"""

import pathlib

import fedjax_sim as fs

TABLE = pathlib.Path(__file__).parent / {path}


def study():
    """Returns the comparison."""
    dataset = fs.datasets.read_table(
        TABLE,
{reading}
    )
    options = fs.presets.options(
        "quickstart",
        output=pathlib.Path("results/{name}"),
        algorithms=("fedavg", "fedprox", "scaffold"),
{options}
    )
    # Other parts that fs.Study takes: algorithms, model, loss, metrics, rows, timeline.
    return fs.Study(options, dataset=dataset)
'''


@dataclasses.dataclass(frozen=True)
class InitOptions:
    """Options of ``fedjax-sim init``, for a table."""

    label_column: str | None = None
    """Column with the labels; default: by its name, else the last one."""
    client_column: str | None = None
    """Column with the client of each example; default: by its name, if there is one."""
    drop: tuple[str, ...] = ()
    """Columns that are no features, beside identifiers of rows."""
    separator: str | None = None
    """Separator of the fields of a CSV file; default: comma, semicolon or tab."""
    decimal: str = "."
    """Decimal sign of a CSV file."""


def init(arguments: list[str]) -> int:
    """Writes a study module; returns the exit code."""
    from fedjax_sim.cli.options import parse, typed_names

    with resolving({field.name: field.name for field in dataclasses.fields(InitOptions)}):
        names = list(itertools.takewhile(lambda text: not text.startswith("-"), arguments))
        typed = arguments[len(names) :]
        options = parse(InitOptions, USAGE, DESCRIPTION, typed, InitOptions())
        if not 1 <= len(names) <= 2:
            raise ValueError(f"FILE is {' '.join(names)!r}; expected fedjax-sim {USAGE}")
        path, source = pathlib.Path(names[0]), names[1] if len(names) > 1 else "quickstart"
        if path.suffix != ".py":
            raise ValueError(f"FILE is '{path}'; expected a name that ends with .py")
        if path.exists():
            raise ValueError(f"FILE is '{path}', which exists; expected the name of a new file")
        for name in typed_names(typed) if source in PRESETS else ():
            value = getattr(options, name)
            raise ValueError(f"{name} is {value!r}; expected a table with it, not {source}")
        text = _of_source(path, source, options)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    print(f"study: {path}\nto run it: fedjax-sim run {path}")
    return 0


def _of_source(path: pathlib.Path, source: str, options: InitOptions) -> str:
    if source in PRESETS:
        return of_preset(path, source)
    if is_table(source):
        return of_table(path, pathlib.Path(source), options)
    raise ValueError(
        f"PRESET is {source!r}; expected {', '.join(PRESETS)} or a table ({', '.join(SUFFIXES)})"
        f"{did_you_mean(source, PRESETS)}"
    )


def of_preset(path: pathlib.Path, preset: str) -> str:
    """Returns the study module of a preset."""
    values = flat(PRESETS[preset])
    shown = {name: values[name] for name in _OPTIONS if values.get(name) is not None}
    if shown["partition"] == "natural":
        del shown["num_clients"]
    if "local_steps" in shown:
        del shown["local_epochs"]
    return _OF_PRESET.format(
        preset=preset,
        file=path.name,
        name=path.stem,
        lr=values["rates"].get("fedavg", LR),
        options=_lines([(name, value, _OPTIONS[name]) for name, value in shown.items()]),
    )


def of_table(path: pathlib.Path, table: pathlib.Path, options: InitOptions) -> str:
    """Returns the study module of a table, which is read once to see that it can be."""
    form = {"separator": options.separator, "decimal": options.decimal}
    columns = read_columns(table, options.client_column, options.drop, **form)["train"]
    reading = _reading(columns, options)
    given = {name: value for name, value, _ in reading}
    given |= {} if options.separator is None else {"separator": options.separator}
    given |= {} if options.decimal == "." else {"decimal": options.decimal}
    dataset = read_table(table, **given)
    reading += [(name, given[name], "") for name in ("separator", "decimal") if name in given]
    numbers = dataset.target == "numbers"
    natural = "client_column" in given
    rows = len(columns.read(given["label_column"]))
    count = len(dataset.group_names or ()) if natural else max(2, min(100, rows // 15))
    division: list[tuple[str, Any, str]] = (
        [("partition", "natural", f"clients are the values of {given['client_column']}")]
        if natural
        else [
            ("partition", "iid" if numbers else "dirichlet", "no column names the clients"),
            ("num_clients", count, ""),
        ]
    )
    rate = 0.01 if numbers else LR
    return _OF_TABLE.format(
        table=_short(table.name).replace("\\", "/").replace('"', "'"),
        file=path.name,
        name=path.stem,
        path=_text(pathlib.Path(os.path.relpath(table, path.parent)).as_posix()),
        reading=_lines(reading),
        rates=f"{rate / 2:g} {rate:g} {2 * rate:g}",
        options=_lines(
            [
                *division,
                ("cohort_size", min(10, count), "clients per round"),
                ("lr", rate, "of all algorithms; fedjax-sim sweep finds a better one"),
                ("local_epochs", 1, _OPTIONS["local_epochs"]),
                ("batch_size", 10, _OPTIONS["batch_size"]),
                ("rounds", 50, ""),
                ("seeds", 3, _OPTIONS["seeds"]),
            ]
        ),
    )


def _reading(columns: Columns, options: InitOptions) -> list[tuple[str, Any, str]]:
    """Returns what the columns suggest: arguments of the reader with comments."""
    label, reason = options.label_column, ""
    if label is None:
        label, reason = _named(columns.names, _LABELS), "by its name"
    if label is None:
        label, reason = columns.names[-1], "the last column; is it the label?"
    client = options.client_column
    if client is None:
        others = [name for name in columns.names if name != label and _repeats(columns, name)]
        client = _named(others, _CLIENTS)
    features = [name for name in columns.names if name not in (label, client, SPLIT)]
    whole = [name for name in features if columns.is_array(name)]
    text = [] if whole else [name for name in features if columns.read(name).dtype.kind in "OUS"]
    encode = "one_hot" if text else None
    rows = [] if whole else identifiers(columns, features, encode)
    text = [name for name in text if name not in rows]
    target = _target(columns.read(label)) if label in columns.names else None
    found: list[tuple[str, Any, str]] = [
        ("label_column", label, reason),
        ("target", target, '"numbers" for regression, "classes" otherwise'),
        ("client_column", client, "the client of each row"),
        ("drop", [*options.drop, *rows], "no features"),
        ("encode", "one_hot" if text else None, f"text: {', '.join(text)}"),
        # Of whole examples, such as images, the reader decides.
        ("scale", None if whole else "standardise", "mean 0 and deviation 1 in training"),
    ]
    return [entry for entry in found if entry[1] not in (None, [])]


def _named(names: Sequence[str], known: Sequence[str]) -> str | None:
    """Returns the first column with a known name."""
    plain = {name.lower().removesuffix("_id").removesuffix("s"): name for name in names}
    plain |= {name.lower(): name for name in names}
    return next((plain[name] for name in known if name in plain), None)


def _repeats(columns: Columns, name: str) -> bool:
    """Returns True for a column that has its values twice or more, on average."""
    if columns.is_array(name):
        return False
    values = set(map(group_text, columns.read(name)))
    return 2 <= len(values) <= len(columns.read(name)) / 2


def _target(y: np.ndarray) -> str | None:
    """Returns the kind of labels; None for labels that the reader refuses with its reason."""
    if y.dtype.kind not in "biuf" or y.ndim > 1:
        return None
    if not np.isfinite(y.astype(float)).all() or (y != np.rint(y)).any():
        return "numbers"
    return "classes" if len(np.unique(y)) <= max(_FEW, len(y) // _FEW) else "numbers"


def _lines(arguments: Sequence[tuple[str, Any, str]]) -> str:
    """Returns arguments of a call, a line each, with comments."""
    lines = []
    for name, value, comment in arguments:
        line = f"        {name}={_text(value)},"
        comment = f"# {_short(comment)}" if comment else ""
        if comment and len(line) + 2 + len(comment) > _WIDTH:
            lines.append(f"        {comment}")
        elif comment:
            line = f"{line}  {comment}"
        lines.append(line)
    return "\n".join(lines)


def _text(value: Any) -> str:
    """Returns a number, a text or a list of texts as Python."""
    return json.dumps(value, ensure_ascii=False)


def _short(text: str) -> str:
    return textwrap.shorten(text, _WIDTH - 14, placeholder=" ...")
