"""``report``: one HTML file of a result, with everything that the page needs."""

import html
import importlib.resources
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedjax_sim.checks import import_extra
from fedjax_sim.data import FederatedData, label_counts
from fedjax_sim.reports.folders import distinct_names
from fedjax_sim.reports.page.charts import Chart, algorithm_names
from fedjax_sim.reports.page.sections import (
    Method,
    Section,
    joint,
    methods_of,
    sections_of,
)
from fedjax_sim.reports.page.sources import Source, label_columns, source_of
from fedjax_sim.reports.page.specs import SPECS
from fedjax_sim.runs import write_text

MOST_BYTES = 2_000_000  # of a report's data
_POINTS = (2000, 1000, 500, 250, 120, 60, 30, 15, 8, 4, 2)  # of a curve
_LICENCE = (
    "Charts: Vega, Vega-Lite and Vega-Embed, (c) University of Washington Interactive Data Lab "
    "and contributors, BSD 3-Clause licence."
)


def report(
    result: Any,
    path: str | pathlib.Path = "report.html",
    *,
    data: FederatedData | None = None,
) -> pathlib.Path:
    """Writes a result, or folders of results, as one HTML file with interactive charts.

    The file has the setting, a table with paired tests, learning curves against rounds and whatever
    other progress was recorded, distributions over clients, the map of labels, the best settings
    of a sweep with its sensitivity and heat maps, versions and the command that repeats the
    results: each where the result has it.  Opening it needs no network and no other file.  Its data
    stay below 2 MB; longer curves are thinned, and the page says so.

    Args:
        result: of :func:`fedjax_sim.simulate`, :func:`fedjax_sim.compare` or
            :func:`fedjax_sim.sweep`; or the folder of one, also of ``fedjax-sim``; or a list of
            folders, whose methods are compared.
        path: the file.
        data: training data of the clients, with classes ``y``, whose labels the map shows; folders
            of ``fedjax-sim run`` record them.

    Returns:
        The path.

    Raises:
        ValueError: another result; a folder without results; a path that does not end in .html;
            more methods and metrics than fit into the data of a report; ``data`` with several
            results, or without classes.
        ImportError: vl-convert is not installed (the extra ``report``).

    Example:
        >>> import tempfile
        >>> import jax
        >>> import numpy as np
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"y": np.ones(2, np.float32)}, np.array([0, 1, 2]))
        >>> task = fs.empirical_task(lambda w, b, key: (w - b["y"]) ** 2, data, fs.full_batch(1))
        >>> setup = fs.Setup(task, fs.timelines.full(3, 2, task.num_steps), np.float32(0),
        ...                  lambda w: {"error": abs(w - 1)}, eval_every=1)
        >>> result = fs.simulate(fs.fedavg(0.1), setup, jax.random.key(0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = report(result, pathlib.Path(folder) / "report.html")
        ...     path.name, path.read_text()[:15]
        ('report.html', '<!doctype html>')
    """
    path = pathlib.Path(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"path is '{path}'; expected a name that ends in .html")
    library = import_extra("vl_convert", "report")
    sources = _sources(result)
    if data is not None:
        if len(sources) > 1:
            raise ValueError(f"data is given with {len(sources)} results; expected one result")
        columns = label_columns(label_counts(data, _num_classes(data)))
        sources = [sources[0]._replace(labels=pd.DataFrame(columns))]
    text = document(sources, library.javascript_bundle())
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path.resolve(), text)  # a link of the user's stays
    return path


def _num_classes(data: FederatedData) -> int:
    found = data.examples.get("y") if isinstance(data.examples, dict) else None
    labels = np.asarray(found)  # of None: an object
    if not np.issubdtype(labels.dtype, np.integer) or not labels.size:
        raise ValueError("data has no integer labels 'y'; expected classes, which a map shows")
    return int(np.max(labels)) + 1


def _sources(result: Any) -> list[Source]:
    if not isinstance(result, list | tuple) or hasattr(result, "_fields"):
        return [source_of(result)]
    if not result:
        raise ValueError("result is an empty list; expected at least one folder")
    if others := [x for x in result if not isinstance(x, str | pathlib.Path)]:
        raise ValueError(f"result has a {type(others[0]).__name__}; expected one, or folders")
    sources = [source_of(each) for each in result]
    if len(sources) == 1:
        return sources
    names = distinct_names([pathlib.Path(each) for each in result])
    return [source._replace(name=name) for source, name in zip(sources, names, strict=True)]


def document(sources: Sequence[Source], bundle: str) -> str:
    """Returns a report as HTML, with its data below the limit."""
    joined = joint(sources)
    if joined.history.empty:
        raise ValueError("result has no evaluations; expected at least one")
    methods, data = methods_of(algorithm_names(joined.history)), ""
    for most in _POINTS:
        sections = sections_of(sources, joined, most)
        data = _data(methods, sections)
        if len(data.encode()) <= MOST_BYTES:
            return _page(sources, methods, sections, data, bundle)
    raise ValueError(
        f"result has {len(methods)} methods, whose curves of {_POINTS[-1]} points need "
        f"{len(data.encode()):,} bytes; expected at most {MOST_BYTES:,}: report fewer folders"
    )


def _data(methods: Sequence[Method], sections: Sequence[Section]) -> str:
    """Returns the data of all charts as JSON that a script element can hold."""
    every = [chart for section in sections for chart in section.charts]
    values = {
        "methods": [method._asdict() for method in methods],
        "charts": [
            {
                "kind": chart.kind,
                "choices": chart.choices,
                "views": chart.views,
                "methods": [method._asdict() for method in methods_of(chart.names)],
            }
            for chart in every
        ],
        "specs": {chart.kind: SPECS[chart.kind] for chart in every},
    }
    text = json.dumps(values, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")  # no end of a script element, and no comment


def _page(
    sources: Sequence[Source],
    methods: Sequence[Method],
    sections: Sequence[Section],
    data: str,
    bundle: str,
) -> str:
    kinds = {source.kind for source in sources}
    named = ", ".join(source.name for source in sources if source.name)
    what = kinds.pop() if len(sources) == 1 else f"{len(sources)} folders"
    title = f"{named}: {what}" if named else what.capitalize()
    number, bodies = 0, []
    for i, section in enumerate(sections):
        bodies.append(_section(section, f"s{i}", methods, number))
        number += len(section.charts)
    links = "".join(f'<a href="#s{i}">{html.escape(s.title)}</a>' for i, s in enumerate(sections))
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            '<head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<link rel="icon" href="data:,">',
            f"<title>{html.escape(title)}</title>",
            f"<style>{_asset('page.css')}</style></head>",
            f"<body><header><h1>{html.escape(title)}</h1><nav>{links}</nav></header>",
            f"<main>{''.join(bodies)}</main>",
            f"<footer>Made by fedjax_sim. {_LICENCE}</footer>",
            f'<script type="application/json" id="data">{data}</script>',
            f"<script>{bundle}</script>",
            f"<script>{_asset('page.js')}</script>",
            "</body></html>\n",
        ]
    )


def _section(section: Section, identifier: str, methods: Sequence[Method], number: int) -> str:
    """Returns the HTML of a section whose first chart has that number."""
    figures = [
        _figure(chart, number + i, start)
        for i, chart in enumerate(section.charts)
        for start in section.starts or (chart.start or (0,) * len(chart.choices),)
    ]
    legend = _legend(methods) if section.legend else ""
    charts = f'<div class="charts">{"".join(figures)}</div>' if figures else ""
    caption = f'<p class="note">{html.escape(section.caption)}</p>' if section.caption else ""
    heading = f'<h2 id="{identifier}">{html.escape(section.title)}</h2>'
    return f"<section>{heading}{section.body}{legend}{charts}{caption}</section>"


def _figure(chart: Chart, number: int, start: tuple[int, ...]) -> str:
    note = f"<p>{html.escape(chart.note)}</p>" if chart.note else ""
    legend = _legend(methods_of(chart.names), hides=False) if chart.names else ""
    return (
        f'<figure data-chart="{number}" data-start="{json.dumps(list(start))}">{legend}'
        '<div class="controls"></div><div class="plot"></div>'
        f'<figcaption><span class="view-note"></span>{note}</figcaption></figure>'
    )


def _legend(methods: Sequence[Method], *, hides: bool = True) -> str:
    """Returns the methods with their lines; with ``hides`` as buttons that hide the lines."""
    entries = []
    for i, method in enumerate(methods):
        dashes = ",".join(map(str, method.dash)) if method.dash[1] else "none"
        line = (
            f'<svg width="26" height="8" aria-hidden="true"><line x1="0" y1="4" x2="26" y2="4" '
            f'stroke="{method.color}" stroke-width="2.5" stroke-dasharray="{dashes}"/></svg>'
        )
        tag = f'button type="button" aria-pressed="true" data-method="{i}"' if hides else "span"
        entries.append(f"<{tag}>{line}{html.escape(method.label)}</{tag.split()[0]}>")
    return f'<div class="methods">{"".join(entries)}</div>'


def _asset(name: str) -> str:
    return importlib.resources.files("fedjax_sim.reports.page").joinpath(name).read_text()
