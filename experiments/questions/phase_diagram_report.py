"""Report, figure and page of which method wins where, from its table of scores."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from experiments.harness import Report, select
from experiments.questions.page import Answer, Page, Study
from experiments.questions.phase_diagram_boundaries import (
    ASSUMPTIONS,
    DECIDED,
    predicted,
    ratios,
)
from experiments.questions.phase_diagram_problem import Problem
from experiments.questions.phase_diagram_runs import METHODS, Sizes
from experiments.questions.phase_diagram_tables import CELL, PAIRS, crossing, ratio_columns

COLOURS = dict(
    zip(
        METHODS,
        ("#4477aa", "#222222", "#bbbbbb", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377",
         "#885522"),
        strict=True,
    )
)  # fmt: skip
FEDAC = "#0033cc"  # of the line between FedAc and FedAvg
FINE = 33  # points per axis of a predicted boundary
CLEAR = 10.0  # the deterministic or the statistical term "decides" if it is this many times larger


class Plane(NamedTuple):
    """A panel: the columns on its axes."""

    title: str
    x: str
    y: str


PLANES = {
    "equal clients": Plane("equal clients", "K", "M"),
    "different clients": Plane("different clients", "K", "M"),
    "heterogeneity": Plane("heterogeneity and noise", "heterogeneity", "noise"),
    "condition": Plane("condition and noise", "condition", "noise"),
}
LABELS = {
    "K": "local steps K", "M": "clients M", "noise": r"noise $\sigma / (L B)$",
    "heterogeneity": r"heterogeneity $\zeta_* / (L B)$", "condition": r"condition number $L / \mu$",
}  # fmt: skip


def complete(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells in which all methods have run, with the number of methods in front."""
    front: Any = cells.dropna(subset=["best"])
    return front.assign(count=front["in front"].str.count(", ") + 1)


def build(
    tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any]
) -> tuple[Report, dict[str, Figure]]:
    """Text and figure."""
    options = facts["options"]
    table = tables[""]
    every, front = ratios(table, options["rounds"]), complete(table)
    report = Report(
        "Which method wins where",
        f"Scale: **{options['scale']}**. {setting(table, options)}",
    )
    report.section("Cells in which a method is in front", fronts(front))
    report.section(
        "Theorems against measurements",
        "Cells with a predicted ratio of at least 2 and a measured one whose interval is beyond "
        "5 %: do their signs agree?",
        agreements(every),
    )
    report.section("Cells that disagree with the theorems for Lipschitz Hessians", blamed(every))
    report.section(
        "Heterogeneity, in L B, at which FedAvg falls behind MB-SGD, and the theorem's",
        boundary(tables["crossings"], options),
    )
    report.section("Chosen rates at the edge of the grid", edges(table))
    return report, {"phase_diagram": figure(table, front, options)}


def setting(table: pd.DataFrame, options: Mapping[str, Any]) -> str:
    """Sizes of the runs."""
    M, K, noise, heterogeneity, condition = options["centre"]
    (_, many), (powers, few) = options["at_centre"], options["elsewhere"]
    return (
        f"{len(table)} cells, {options['rounds']} rounds; {many} seeds with the centre's M and K, "
        f"{few} elsewhere; {powers[1] - powers[0]} or more rates, halved from one to the next; "
        f"M K up to {options['gradients']:,}; centre M = {M}, K = {K}, noise {noise:g}, "
        f"heterogeneity {heterogeneity:g}, condition number {condition:g}.{partial(table)}"
    )


def partial(table: pd.DataFrame) -> str:
    """A sentence on cells in which only some methods have run; empty without such a cell."""
    missing = len(table) - len(table.dropna(subset=["best"]))
    return f" In {missing} cells only some methods have run (grey)." if missing else ""


def fronts(front: pd.DataFrame) -> pd.DataFrame:
    """By family and plane: cells that a method leads alone, and cells where it is not led."""
    rows = []
    groups: Any = front.groupby(["family", "plane"], sort=False)
    for (family, plane), part in groups:
        names = part["in front"].str.split(", ")
        row: dict[str, Any] = {"family": family, "plane": plane, "cells": len(part)}
        for method in METHODS:
            alone = len(select(part, best=method, count=1))
            row[method] = f"{alone} / {sum(method in cell for cell in names)}"
        rows.append(row)
    return pd.DataFrame(rows)


def agreements(every: pd.DataFrame) -> pd.DataFrame:
    """By family, plane and pair the verdicts under both assumptions."""
    rows = []
    groups: Any = every.groupby(["family", "plane", "first", "second"], sort=False)
    for (family, plane, first, second), part in groups:
        row = {"family": family, "plane": plane, "pair": f"{first} / {second}", "cells": len(part)}
        for name in ASSUMPTIONS:
            counts = part[f"{name}: verdict"].value_counts()
            if counts.get("no theorem", 0) == len(part):
                row[name] = "no theorem"
            else:
                agrees, disagrees = (counts.get(key, 0) for key in ("agrees", "disagrees"))
                row[name] = f"{agrees} agree, {disagrees} disagree"
        rows.append(row)
    return pd.DataFrame(rows)


def blamed(every: pd.DataFrame) -> pd.DataFrame:
    """The cells that disagree even if the Hessian's Lipschitz constant is known."""
    shown: Any = select(every, **{"third order: verdict": "disagrees"})
    shown = shown[[*CELL, "first", "second", "third order", "ratio", "low", "high"]]
    return shown.rename(columns={"third order": "predicted", "ratio": "measured"})


def edges(table: pd.DataFrame) -> pd.DataFrame:
    """By method the cells, and those whose chosen rate is the largest or the least."""
    names = table["at edge"].fillna("").str.split(", ")
    rows = [
        {
            "method": m,
            "at edge": sum(m in cell for cell in names),
            "cells": len(table.dropna(subset=[m])),
        }
        for m in METHODS
        if m in table
    ]
    return pd.DataFrame(rows)


def boundary(crossings: pd.DataFrame, options: Mapping[str, Any]) -> pd.DataFrame:
    """Crossings of FedAvg and MB-SGD along the heterogeneity, beside those of their rates."""
    rows = []
    M, K, *_, condition = options["centre"]
    for row in crossings.to_dict("records"):
        fine = np.geomspace(row["from"] / 8, row["up to"] * 8, 401)
        for name in ASSUMPTIONS:
            problem = Problem(row["noise"], fine, condition, 0.0)
            sizes = Sizes(M, K, options["rounds"])
            curve = predicted(PAIRS[0], row["family"], problem, sizes, name)
            place = crossing(fine, curve)
            row[name] = 0.0 if place == fine[0] else place  # 0: MB-SGD is ahead everywhere
        rows.append(row)
    return pd.DataFrame(rows)


def figure(table: pd.DataFrame, front: pd.DataFrame, options: Mapping[str, Any]) -> Figure:
    """A panel per family and plane: methods in front, and measured and predicted boundaries."""
    families = list(dict.fromkeys(table["family"]))
    drawing = Figure(figsize=(12.5, 3.0 * len(families) + 1.1), layout="constrained")
    panels = drawing.subplots(len(families), len(PLANES), squeeze=False)
    for family, row in zip(families, panels, strict=True):
        for (name, plane), axes in zip(PLANES.items(), row, strict=True):
            cells, part = (select(rows, family=family, plane=name) for rows in (front, table))
            if len(part):
                _panel(axes, plane, cells, part, options)
            axes.set_title(f"{family}: {plane.title}", fontsize=9)
    methods = [m for m in METHODS if m in set(front["best"])]
    handles: list[Any] = [Patch(color=COLOURS[m], label=m) for m in methods]
    handles += [
        Line2D([], [], color="k", lw=2, label="FedAvg = MB-SGD, measured"),
        Line2D([], [], color="k", lw=1.3, ls="--", label="theorems, smooth"),
        Line2D([], [], color="k", lw=1.3, ls=":", label="theorems, Lipschitz Hessian"),
        Line2D([], [], color=FEDAC, lw=2, label="FedAc = FedAvg, measured"),
    ]
    drawing.legend(handles=handles, loc="outside lower center", ncols=7, fontsize=8)
    return drawing


def _panel(
    axes: Any, plane: Plane, cells: pd.DataFrame, part: pd.DataFrame, options: Mapping[str, Any]
) -> None:
    xs, ys = (np.array(sorted(set(part[name]))) for name in (plane.x, plane.y))
    image = np.ones((len(ys), len(xs), 3))
    for row in part.to_dict("records"):  # grey where only some methods have run
        image[np.searchsorted(ys, row[plane.y]), np.searchsorted(xs, row[plane.x])] = 0.93
    for row in cells.to_dict("records"):
        i, j = np.searchsorted(ys, row[plane.y]), np.searchsorted(xs, row[plane.x])
        # A cell with several methods in front is pale, with their number.
        share = 1.0 if row["count"] == 1 else 0.35
        image[i, j] = share * np.array(to_rgb(COLOURS[row["best"]])) + 1 - share
        if row["count"] > 1:
            axes.text(j, i, row["count"], ha="center", va="center", fontsize=8, color="#333333")
    axes.imshow(image, origin="lower", aspect="auto")
    for pair, colour in ((PAIRS[0], "k"), (PAIRS[1], FEDAC)):
        name = ratio_columns(pair)[0]
        if name in part and len(part.dropna(subset=[name])):
            grid = part.pivot_table(index=plane.y, columns=plane.x, values=name)
            _contour(axes, grid.reindex(index=ys, columns=xs).to_numpy(), colour)
    for assumption, style in zip(ASSUMPTIONS, ("--", ":"), strict=True):
        _predicted(axes, plane, part, xs, ys, options, assumption, style)
    axes.set(xlabel=LABELS[plane.x], ylabel=LABELS[plane.y])
    step = 1 + len(xs) // 9  # more labels of up to four digits would overlap
    axes.set_xticks(range(0, len(xs), step), [_number(x) for x in xs[::step]], fontsize=8)
    axes.set_yticks(range(len(ys)), [_number(y) for y in ys], fontsize=8)


def _number(value: float) -> str:
    return f"{value:g}" if value >= 1 or value == 0 else f"1/{1 / value:g}"


def _contour(axes: Any, grid: np.ndarray, colour: str) -> None:
    """Draws where a measured log ratio is 0; cells without a value stay blank."""
    known = grid[np.isfinite(grid)]
    if min(grid.shape) > 1 and known.size and known.min() < 0 < known.max():
        axes.contour(np.ma.masked_invalid(grid), [0.0], colors=colour, linewidths=2.2)


def _predicted(
    axes: Any, plane: Plane, part: pd.DataFrame, xs: np.ndarray, ys: np.ndarray,
    options: Mapping[str, Any], assumption: Any, style: str,
) -> None:  # fmt: skip
    """Draws where FedAvg and MB-SGD have equal rates, between the cells too."""
    places = []
    for values in (xs, ys):
        start = 1 if values[0] == 0 else 0  # a heterogeneity of 0 has no logarithm
        at = np.linspace(start, len(values) - 1, FINE)
        logarithms = np.interp(at, range(start, len(values)), np.log(values[start:]))
        places.append((at, np.exp(logarithms)))
    (at_x, fine_x), (at_y, fine_y) = places
    x, y = np.meshgrid(fine_x, fine_y)
    first = part.iloc[0]
    names = ("M", "K", *Problem._fields)
    of = {name: first[name] for name in names} | {plane.x: x, plane.y: y}
    problem = Problem(*(of[name] for name in Problem._fields))
    sizes = Sizes(of["M"], of["K"], options["rounds"])
    value = predicted(PAIRS[0], first["family"], problem, sizes, assumption)
    value = np.broadcast_to(value, x.shape).copy()
    if plane.x == "K":
        value[x * y > options["gradients"] * 1.5] = np.nan
    if np.nanmin(value) < 0 < np.nanmax(value):
        axes.contour(
            at_x, at_y, np.ma.masked_invalid(value), [0.0], colors="k", linewidths=1.4,
            linestyles=style,
        )  # fmt: skip


def page(tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any]) -> Page:
    """Returns the answers of the study beside the expected ones."""
    options = facts["options"]
    table = tables[""]
    every, front = ratios(table, options["rounds"]), complete(table)
    lines, noise = boundary(tables["crossings"], options), options["centre"][2]
    centre = select(lines, family="quadratic", plane="heterogeneity", noise=noise).iloc[0]
    theorem = options["rounds"] ** -0.5
    crosses = bool(np.isfinite(centre.get("measured", np.nan)))
    where = (
        f"{centre['measured']:.2g} L B [{centre['low']:.2g}, {centre['high']:.2g}]"
        if crosses
        else f"no heterogeneity up to {centre['up to']:g} L B"
    )
    uniform = _not_hurt(every)
    smooth, third = (_wrong(every, name) for name in ASSUMPTIONS)
    found = (
        f"With different curvatures FedAvg falls behind MB-SGD at zeta = {where} (95 %; rates: "
        f"{centre['smooth']:.2g} for smooth functions, {centre['third order']:.2g} for Lipschitz "
        f"Hessians). At the same zeta it is behind in {uniform['one curvature']} cells with one "
        f"curvature and in {uniform['logistic']} of logistic regression. The rates' signs are "
        f"wrong in {smooth} and {third}."
    )
    answers = [
        _first(every), _second(every, options), _third(centre, where, theorem, crosses),
        Answer(
            "4. With equal curvatures and in logistic regression heterogeneity never puts FedAvg "
            "behind MB-SGD",
            f"behind in {uniform['behind']} of {uniform['cells']} cells",
            uniform["behind"] == 0,
        ),
        _fifth(front), _sixth(front),
    ]  # fmt: skip
    return Page(
        found,
        "FedAvg behind MB-SGD on quadratics with one curvature: then the size of zeta, not the "
        "curvatures, would decide; or a boundary whose interval includes a rate's.",
        "Colours: the method with the lowest loss after "
        f"{options['rounds']} rounds of K gradients per client, of nine with tuned rates. Pale "
        "cells have several in front (their number): those whose 95 % interval of the paired "
        "ratio is not beyond 5 %. Lines: where FedAvg and MB-SGD, or FedAc and FedAvg, are equal; "
        "the theorems have FedAc ahead everywhere. A missing line: one sign in the whole panel.",
        answers,
        f"Scale: **{options['scale']}**. {setting(table, options)} Assumptions to blame: "
        + _blame(every),
    )


def _count(part: pd.DataFrame, measured: int) -> str:
    return f"{len(select(part, measured=measured))} of {len(part)}"


def _pair(every: pd.DataFrame, pair: tuple[str, str], **values: Any) -> pd.DataFrame:
    return select(every, first=pair[0], second=pair[1], **values)


def _not_hurt(every: pd.DataFrame) -> dict[str, Any]:
    """Cells with heterogeneity, but with one Hessian or a tilt, and those with FedAvg behind."""
    part = _pair(every, PAIRS[0]).query("heterogeneity > 0")
    part = part.query("family == 'logistic' or curvature == 0")
    counts: dict[str, Any] = {"cells": len(part), "behind": len(select(part, measured=1))}
    counts["one curvature"] = _count(select(part, family="quadratic"), 1)
    return counts | {"logistic": _count(select(part, family="logistic"), 1)}


def _wrong(every: pd.DataFrame, assumption: str) -> str:
    name = f"{assumption}: verdict"
    agrees, disagrees = (len(select(every, **{name: to})) for to in ("agrees", "disagrees"))
    return f"{disagrees} of {agrees + disagrees} decided cells"


def _first(every: pd.DataFrame) -> Answer:
    part = _pair(every, PAIRS[0], family="quadratic", heterogeneity=0.0)
    smooth = len(part.query(f"smooth > {float(np.log10(DECIDED))!r}"))
    return Answer(
        "1. Equal quadratics: MB-SGD beats FedAvg in no cell",
        f"in {_count(part, 1)} cells; rates for smooth functions predict {smooth}",
        bool((part["measured"] != 1).all()),
    )


def _second(every: pd.DataFrame, options: Mapping[str, Any]) -> Answer:
    part = _pair(every, PAIRS[1], heterogeneity=0.0)
    kappa = part["condition"].to_numpy(float)
    steps = part["K"].to_numpy(float) * options["rounds"]
    bias = np.exp(-steps / kappa)
    statistical = part["noise"].to_numpy(float) ** 2 * kappa / (part["M"].to_numpy(float) * steps)
    few, much = part[bias > CLEAR * statistical], part[statistical > CLEAR * bias]
    right = bool((few["measured"] == -1).all() and (much["measured"] == 1).all())
    return Answer(
        "2. FedAc is ahead of FedAvg where the bias decides, behind where noise decides "
        f"(by a factor of {CLEAR:g} in the rates)",
        f"ahead in {_count(pd.DataFrame(few), -1)} cells; behind in "
        f"{_count(pd.DataFrame(much), 1)}",
        right if len(few) and len(much) else None,
    )


def _third(centre: Any, where: str, theorem: float, crosses: bool) -> Answer:
    inside = crosses and theorem / 4 <= centre["low"] and centre["high"] <= 4 * theorem
    return Answer(
        "3. Different curvatures: FedAvg falls behind MB-SGD within a factor of 4 of zeta = "
        f"L B / sqrt(R) = {theorem:.2g} L B",
        where,
        inside,
    )


def _fifth(front: pd.DataFrame) -> Answer:
    most = front.query(f"heterogeneity == {np.asarray(front['heterogeneity']).max()}")
    most = most.query("plane == 'heterogeneity'")
    names = most["best"].isin(["SCAFFOLD", "Scaffnew"])
    alone = front.query("K >= 4 and count == 1")
    plain = sum(len(select(alone, best=name)) for name in ("MB-SGD", "gradient tracking"))
    counts = ", ".join(f"{name} {count}" for name, count in most["best"].value_counts().items())
    return Answer(
        "5. SCAFFOLD or Scaffnew are best at the greatest heterogeneity; MB-SGD and gradient "
        "tracking nowhere alone in front",
        f"best: {counts} cells; the two alone in front in {plain} of {len(front)}",
        bool(names.all() and plain == 0),
    )


def _sixth(front: pd.DataFrame) -> Answer:
    alone = len(select(front, best="FedProx", count=1))
    return Answer(
        "6. FedProx is nowhere alone in front", f"in {alone} of {len(front)} cells", alone == 0
    )


def _blame(every: pd.DataFrame) -> str:
    """Disagreements by pair, with the assumption that each contradicts."""
    homogeneous = _pair(every, PAIRS[0], heterogeneity=0.0)
    different = _pair(every, PAIRS[0]).query("heterogeneity > 0")
    one = different.query("family == 'logistic' or curvature == 0")
    other = different.query("family == 'quadratic' and curvature > 0")
    fedac = _pair(every, PAIRS[1], heterogeneity=0.0)
    return (
        "smoothness alone (equal clients, FedAvg and MB-SGD: "
        f"{_wrong(homogeneous, 'smooth')} wrong, {_wrong(homogeneous, 'third order')} with the "
        "Hessian's constant); a bound of gradient differences that ignores curvature (one Hessian "
        f"or a tilt: {_wrong(one, 'third order')}; different curvatures: "
        f"{_wrong(other, 'third order')}); logarithms that Table 3.1 hides (FedAc and FedAvg: "
        f"{_wrong(fedac, 'third order')})."
    )


STUDY = Study(
    "phase_diagram",
    "Which method wins where",
    "Nine methods with tuned rates and the same rounds and gradients, on quadratics and logistic "
    "regression: which has the lowest loss, and are the boundaries those of the theorems?",
    build,
    page,
)
