"""Sections of a report: headings, texts, tables and charts of what was recorded."""

import html
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from fedjax_sim.engine import headline
from fedjax_sim.reports.figures import COLORS
from fedjax_sim.reports.folders import default_metrics, labelled
from fedjax_sim.reports.frames import (
    configuration_columns,
    divergence_text,
    first_divergences,
    grid_values,
)
from fedjax_sim.reports.intervals import FEWEST, interval_note
from fedjax_sim.reports.labels import (
    PARTIAL,
    PARTIAL_NOTE,
    algorithm_labels,
    better,
    metric_label,
)
from fedjax_sim.reports.page import charts
from fedjax_sim.reports.page.charts import Chart
from fedjax_sim.reports.page.sources import Source
from fedjax_sim.reports.results import results
from fedjax_sim.reports.selection import Mode, complete, scores
from fedjax_sim.reports.setting import setting_key
from fedjax_sim.reports.statistics import paired_differences
from fedjax_sim.reports.tables import best_texts, render, results_table

_DASHES = ((1, 0), (8, 4), (8, 3, 2, 3), (2, 3))
_MOST_PAIRED = 10  # methods, with 45 pairs
_FEW = 6  # pairs that are shown at once
_BAND = (
    f"Lines: mean over seeds. Bands: 95 % interval of the mean (Student's t), from {FEWEST} seeds "
    "on. A cross: a seed diverged."
)


class Section(NamedTuple):
    """Part of a report."""

    title: str
    body: str  # HTML
    charts: tuple[Chart, ...] = ()
    starts: tuple[tuple[int, ...], ...] = ()  # a figure per entry, of the chart of its position
    caption: str = ""
    legend: bool = False


class Method(NamedTuple):
    """Look of a method's lines, and its label."""

    label: str
    color: str
    dash: Sequence[int]


def methods_of(names: Sequence[str]) -> list[Method]:
    """Returns label, colour and dashes of methods in an order."""
    return [
        Method(name, COLORS[i % len(COLORS)], _DASHES[i % len(_DASHES)])
        for i, name in enumerate(names)
    ]


class Joint(NamedTuple):
    """Histories of all sources as one, with a method per value of ``algorithm``."""

    history: pd.DataFrame
    settings: dict[str, str]  # by method; only methods of one setting are compared
    modes: dict[str, Mode]  # by metric: better directions that sweeps were told
    names: list[dict[str, str]]  # per source: methods by the source's own names; {} of a sweep


def joint(sources: Sequence[Source]) -> Joint:
    """Returns the histories of all sources as one."""
    parts, settings, modes, names = [], {}, dict[str, Mode](), []
    for source in sources:
        if source.rule.metric is not None and source.rule.mode is not None:
            modes[source.rule.metric] = source.rule.mode
        name = source.name if len(sources) > 1 else ""
        cells = [cell for cell in source.cells if cell in source.history]
        part = labelled(source.history, "best", source.rule, name, source.partial, cells)
        where = setting_key(source.setting, source.data)
        for method, *values in part[["algorithm", *cells]].drop_duplicates().values.tolist():
            settings[method] = ", ".join([where, *map(str, values)])
        # Without a sweep's choice, rows stay as they are.
        own = () if source.kind == "sweep" else source.history["algorithm"]
        names.append(dict(zip(own, part["algorithm"], strict=False)))
        parts.append(part.drop(columns=cells))
    return Joint(pd.concat(parts, ignore_index=True), settings, modes, names)


def sections_of(sources: Sequence[Source], joined: Joint, most: int) -> list[Section]:
    """Returns the sections of a report, with at most ``most`` points per curve."""
    history = joined.history
    metrics = _metrics(history)
    every = [
        *(_setting(source, len(sources) > 1) for source in sources),
        _results(joined, metrics, any(source.kind == "sweep" for source in sources)),
        _curves(history, metrics, most),
        *(_sweep(source, len(sources) > 1) for source in sources if source.kind == "sweep"),
        _distributions(history, most),
        _shares(sources, joined, most),
        *(_labels(source, len(sources) > 1) for source in sources),
        *(_diagnosis(source, len(sources) > 1, most) for source in sources),
        *(_repeat(source, len(sources) > 1) for source in sources),
    ]
    return [section for section in every if section is not None]


def _titled(title: str, source: Source, several: bool) -> str:
    return f"{title}: {source.name}" if several else title


def _metrics(history: pd.DataFrame) -> list[str]:
    """Returns the metrics of a model, the usual ones first; parts of distributions are not."""
    names = charts.distribution_names(history)
    quantiles = {f"{name}/{quantile}" for name in names for quantile in charts.QUANTILES}
    usual = default_metrics(history)
    every = dict.fromkeys([*usual, *headline(history["metric"].unique())])
    return [name for name in every if name not in quantiles]


def _setting(source: Source, several: bool) -> Section:
    history = source.history
    seeds, rounds = history["seed"].unique(), np.asarray(history["round"])
    evaluated = set(rounds[np.asarray(history["metric"] == "time")])  # others have probes only
    facts = dict(source.facts)
    if source.setting:
        facts["setting"] = source.setting
    facts["seeds"] = f"{len(seeds)} ({', '.join(map(str, seeds[:10]))}{' ...' * (len(seeds) > 10)})"
    facts["rounds"] = f"{rounds.max()}, {len(evaluated)} evaluations"
    if source.kind == "sweep":
        facts["configurations"] = str(_num_configurations(history))
    labels = algorithm_labels(source.algorithms)
    names = {f"algorithm {labels[name]}": text for name, text in source.algorithms.items() if text}
    body = _facts(facts | names)
    if source.options:
        body += f"<details><summary>All options</summary>{_facts(source.options)}</details>"
    return Section(_titled("Setting", source, several), body)


def _num_configurations(history: pd.DataFrame) -> int:
    fixed = ("seed", "diverged_at", "round", "metric", "value")
    names = [name for name in history.columns if name not in fixed]
    return len(history[names].drop_duplicates()) if names else 1


def _results(joined: Joint, metrics: Sequence[str], chosen: bool) -> Section:
    history = joined.history
    shown = [name for name in default_metrics(history) if name in _common(history, metrics)]
    if not shown:
        return Section("Results", _paragraph("No metric was evaluated for all methods."))
    partial = [name for name in history["algorithm"].unique() if name.endswith(PARTIAL)]
    note = PARTIAL_NOTE if partial else ""
    frame = results(history, shown, modes=joined.modes, partial=partial, among=joined.settings)
    body = _wide(results_table(frame, "html", note=note))
    diverged = _divergences(history)
    if diverged is not None:
        body += _wide(render(diverged, "html"))
    return Section("Results", body + _pairs(joined, shown[0], chosen))


def _divergences(history: pd.DataFrame) -> pd.DataFrame | None:
    rows = [
        (name, text)
        for name in charts.algorithm_names(history)
        if (text := divergence_text(first_divergences(_of(history, name))))
    ]
    return pd.DataFrame(rows, columns=["method", "divergence"]) if rows else None


def _of(history: pd.DataFrame, name: str) -> pd.DataFrame:
    return history.loc[history["algorithm"] == name, :]


def _common(history: pd.DataFrame, metrics: Sequence[str]) -> list[str]:
    counts = history.groupby("metric")["algorithm"].nunique()
    return [x for x in metrics if counts.loc[x] == history["algorithm"].nunique()]


def _pairs(joined: Joint, metric: str, chosen: bool) -> str:
    """Returns the paired tests of the methods of each setting, over the seeds that these have."""
    names = charts.algorithm_names(joined.history)
    if not metric.startswith("personal/"):  # others mean nothing for a part of a model
        names = [name for name in names if not name.endswith(PARTIAL)]
    groups = [
        [name for name in names if joined.settings[name] == setting]
        for setting in dict.fromkeys(joined.settings.values())
    ]
    parts = [_pairs_of(joined.history, metric, group) for group in groups]
    if not (parts := [part for part in parts if part is not None]):
        return ""
    frame = pd.concat(parts, ignore_index=True)
    heads = {"mean": "a - b", "low": "from", "high": "to", "p_value": "p", "p_holm": "p (Holm)",
             "num_seeds": "seeds"}  # fmt: skip
    index = pd.MultiIndex.from_arrays([frame["a"].array, frame["b"].array], names=["a", "b"])
    shown = pd.DataFrame({text: frame[name].array for name, text in heads.items()}, index)
    note = (
        f"Differences of {metric_label(metric)}, seed by seed: mean, its 95 % interval, and the "
        "two-sided paired t test; p (Holm) is adjusted for the number of pairs"
        f"{' of a setting' * (len(parts) > 1)}."
    )
    if chosen:
        note += (
            " Settings of a sweep were chosen by the same scores, which makes small p values too "
            "likely."
        )
    table = _wide(render(shown, "html", note=note))
    shown_first = " open" if len(frame) <= _FEW else ""
    return f"<details{shown_first}><summary>Paired tests</summary>{table}</details>"


def _pairs_of(history: pd.DataFrame, metric: str, names: Sequence[str]) -> pd.DataFrame | None:
    """Returns the paired tests of methods; None without two of them, two seeds, or with many."""
    if not 1 < len(names) <= _MOST_PAIRED:
        return None
    mode = better(metric)
    score = scores(history.loc[[x in names for x in history["algorithm"]], :], metric, mode=mode)
    common = set.intersection(*(set(_of(score, name)["seed"]) for name in names))
    if len(common) < 2:
        return None
    return paired_differences(score.loc[[x in common for x in score["seed"]], :], mode=mode)


def _curves(history: pd.DataFrame, metrics: Sequence[str], most: int) -> Section | None:
    chart = charts.curves(history, metrics, most)
    if chart is None:
        return None
    starts = [(i, chart.start[1]) for i in range(min(2, len(metrics)))]
    body = _paragraph("Click a method to hide it; move over a chart for values.", "note")
    return Section("Curves", body, (chart,), tuple(starts), _BAND, legend=True)


def _distributions(history: pd.DataFrame, most: int) -> Section | None:
    names = charts.distribution_names(history)
    chart = charts.distributions(history, names, most) if names else None
    if chart is None:
        return None
    starts = tuple((i, chart.start[1]) for i in range(min(2, len(names))))
    caption = (
        "Lines: median over clients. Bands: 10 % to 90 % of the clients. Both are means over seeds."
    )
    return Section("Distributions over clients", "", (chart,), starts, caption, legend=True)


def _shares(sources: Sequence[Source], joined: Joint, most: int) -> Section | None:
    """Returns the values of single clients, of all sources that have them."""
    parts = []
    for source, names in zip(sources, joined.names, strict=True):
        if source.clients is not None:
            labels = [names[name] for name in source.clients["algorithm"]]
            parts.append(source.clients.assign(algorithm=labels))
    if not parts:
        return None
    methods = charts.algorithm_names(joined.history)
    chart = charts.shares(pd.concat(parts, ignore_index=True), methods, most)
    if chart is None:
        return None
    caption = "Clients of all seeds. A curve to the right is better for an accuracy."
    return Section("Values of clients", "", (chart,), (), caption, legend=True)


def _labels(source: Source, several: bool) -> Section | None:
    """Returns the map of labels."""
    if source.labels is None or source.labels.empty:
        return None
    chart = charts.client_map(source.labels)
    last = np.max(source.labels["client"])
    caption = "A cell per client and label; white: no example."
    if last >= charts.MOST_CLIENTS:
        caption += f" The first {charts.MOST_CLIENTS} clients."
    return Section(_titled("Labels of clients", source, several), "", (chart,), (), caption)


def _diagnosis(source: Source, several: bool, most: int) -> Section | None:
    """Returns the measured constants of theory, and its bounds over the measured suboptimality."""
    if source.diagnosis is None:
        return None
    constants, measured = source.diagnosis
    rows = [(name, each["value"], each["kind"]) for name, each in constants.items()]
    table = pd.DataFrame(rows, columns=["constant", "value", "kind"])
    return Section(
        _titled("Diagnosis", source, several),
        _wide(render(table, "html")),
        (charts.diagnosis(measured, most),),
        caption=_BAND,
    )


def _sweep(source: Source, several: bool) -> Section | None:
    history = source.history
    metric = source.rule.metric or next(iter(default_metrics(history)), None)
    if metric is None or metric not in set(history["metric"]):
        return None
    if "algorithm" not in history:
        history = history.assign(algorithm="run")
    mode = source.rule.mode or better(metric)
    every = scores(history, metric, last=source.rule.last, reduce=source.rule.reduce, mode=mode)
    # Bests are of one algorithm and one setting: a larger alpha is no better configuration.
    per = ["algorithm", *(cell for cell in source.cells if cell in history)]
    score = complete(every, ["algorithm"])
    swept = [
        name
        for name in configuration_columns(score)
        if name != "algorithm"
        and pd.api.types.is_numeric_dtype(score[name])
        and sum(not pd.isna(value) for value in grid_values(score, name)) > 1
    ]
    labels = algorithm_labels(charts.algorithm_names(history))
    maps, left_out = charts.grids(score, swept, labels, metric, mode)
    parts = [charts.sensitivity(score, swept, labels, metric, mode), maps]
    found, counts = best_texts(complete(every, per), per, metric, mode)
    names = {"algorithm": "best of", "mean": metric_label(metric)}
    found = found.assign(algorithm=[labels[name] for name in found["algorithm"]]).rename(
        columns=names
    )
    note = f"{interval_note(counts)} *: at the edge of the grid."
    body = _wide(render(found, "html", note=note))
    return Section(
        _titled("Sweep", source, several),
        body,
        tuple(part for part in parts if part is not None),
        caption=(
            "Points and cells: best mean over the other settings. Bands: its 95 % interval. Grey: "
            f"a seed failed. Outlined: the best. {left_out}"
        ).strip(),
    )


def _repeat(source: Source, several: bool) -> Section:
    known = source.environment
    facts = {name: str(text) for name, text in known.get("versions", {}).items()}
    for name in ("device", "backend", "num_devices", "num_processes", "double_precision",
                 "xla_flags", "execution"):  # fmt: skip
        if known.get(name) not in (None, "", False):
            facts[name.replace("_", " ")] = str(known[name])
    if (git := known.get("git")) is not None:
        facts["git revision"] = git["revision"] + (", with changes" if git.get("modified") else "")
    if "own" in source.options:
        body = _paragraph(
            f"These results have parts of a study module ({source.options['own']}), which a folder "
            "does not name: the same command with the module repeats them."
        )
    elif source.command is None:
        body = _paragraph(
            "These results come from Python: the same call of fs.simulate, fs.compare or fs.sweep "
            "with the same arguments repeats them. The folder of a run has digests of its data, "
            "functions and initial model in run.json."
        )
    else:
        # Earlier calls may have run other grids, or other seeds, in the same folder.
        swept = source.command.startswith("fedjax-sim sweep ")
        what = "the grid that ran last" if swept else "the results"
        body = _paragraph(f"With these versions, this command repeats {what}:")
        body += f"<pre>{html.escape(source.command)}</pre>"
    title = _titled("Versions, and how to repeat it", source, several)
    return Section(title, body + (_facts(facts) if facts else ""))


def _facts(facts: Mapping[str, str]) -> str:
    rows = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>"
        for name, text in facts.items()
    )
    return f'<div class="scroll"><table class="facts">{rows}</table></div>'


def _wide(table: str) -> str:
    """Returns a table that scrolls inside the page."""
    return f'<div class="scroll">{table}</div>'


def _paragraph(text: str, kind: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f"<p{attribute}>{html.escape(text)}</p>"
