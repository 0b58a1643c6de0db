"""Reports on MNIST, built from their CSV and JSON files."""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.favano.mnist_runs import BATCH_SIZE, EVAL_TIME, HORIZON, LR, SETTINGS
from experiments.favano.outcomes import by_seed, late, panels
from experiments.harness import TOLERANCES, Claim, Report, counted, means, number, paired
from experiments.harness.tables import Spread
from fedjax_sim.reports.figures.style import legend_above, style_axes

Tables = Mapping[str, pd.DataFrame]
Facts = Mapping[str, Any]
Built = tuple[Report, dict[str, Figure]]

# Table 2: accuracies of each column: mean, deviation.
PAPER = {
    "FedAvg": ((93.4, 0.3), (38.7, 7.7), (44.8, 6.9)),
    "QuAFL": ((92.3, 0.9), (40.7, 6.7), (45.5, 4.0)),
    "FedBuff": ((96.0, 0.1), (85.1, 3.2), (67.3, 5.5)),
    "FAVANO": ((95.1, 0.1), (88.9, 0.9), (87.3, 2.3)),
}
LOW = 60  # percent; FedAvg and QuAFL stay below it in the paper's non-IID columns
CLOSE = 0.5  # points to the paper's accuracy
FALL = 10  # points; not the paper's
SKEWED = [name for name, (split, *_) in SETTINGS.items() if split != "iid"]  # 2/3, 1/9 fast


def scale(facts: Facts) -> str:
    """The part of the paper's setting that was run."""
    seeds = counted(facts["seeds"], "seed")
    if facts["horizon"] == HORIZON:
        return f"{HORIZON:g} time units, as in the paper; {seeds}"
    return f"{facts['horizon']:g} of the paper's {HORIZON:g} time units; {seeds}"


def curves(history: pd.DataFrame) -> pd.DataFrame:
    """Every second evaluation up to the last, and the columns that the figure of Table 2 has."""
    runs = history.groupby(["setting", "algorithm", "seed"])
    from_last = runs.cumcount(ascending=False)
    kept = (history["algorithm"] == "FedAvg") | (from_last % 2 == 0)
    columns = ["setting", "algorithm", "seed", "time", "local_steps", "accuracy"]
    return history.loc[kept, columns]


def table2(tables: Tables, facts: Facts) -> Built:
    """Table 2: the curves, a row per setting and method, and FedBuff's server rates."""
    result = tables["methods"]
    report = Report(
        "MNIST against the clock (Table 2 of FAVANO)",
        f"{scale(facts)}; 100 clients, 20 per contact, 20 steps at most, buffer 10, batches of "
        f"{BATCH_SIZE}, rate {LR:g}. Accuracy on test images, percent.",
        result,
    )
    tried = tables["rates"].pivot(index="server rate", columns="setting", values="accuracy")
    report.section("FedBuff's server rate, one seed of its own", tried)
    scores = by_seed(tables[""])
    report.claims([*table2_claims(scores), *stuck_claims(scores), *ahead_claims(scores)])
    rows = [("accuracy", "time"), ("accuracy", "local_steps")]
    return report, {"table2": panels(tables[""], rows)}


def table2_claims(scores: pd.DataFrame) -> list[Claim]:
    """The paper's conclusions from its table."""
    rows = []
    for setting in dict.fromkeys(scores["setting"]):
        by = by_method(scores, setting)
        found = means(by)
        if SETTINGS[setting][0] == "iid":
            order = ["FedBuff", "FAVANO", "FedAvg", "QuAFL"]
            ahead = [by[first] - by[second] for first, second in itertools.pairwise(order)]
            rows.append(paired(" > ".join(order), found, ahead, setting))
            continue
        text = f"FAVANO best, then FedBuff; FedAvg and QuAFL below {LOW}"
        ahead = [by["FAVANO"] - by["FedBuff"]]
        ahead += [by["FedBuff"] - by[other] for other in ("FedAvg", "QuAFL")]
        ahead += [LOW - by[other] for other in ("FedAvg", "QuAFL")]
        rows.append(paired(text, found, ahead, setting, f"{LOW} %"))
    return rows


def by_method(scores: pd.DataFrame, setting: str) -> pd.DataFrame:
    """A row per seed, a column per method of the paper that was run, in the table's order."""
    part = scores.loc[scores["setting"] == setting]
    wide = part.pivot(index="seed", columns="algorithm", values="accuracy")
    return wide[[name for name in PAPER if name in wide]]


def stuck_claims(scores: pd.DataFrame) -> list[Claim]:
    """Figure 2: FedBuff with few fast clients against FedBuff with many."""
    many, few = (by_method(scores, setting).get("FedBuff") for setting in SKEWED)
    if many is None or few is None:
        return []
    text = f"FedBuff gets stuck: it loses more than {FALL} points from 2/3 to 1/9 fast clients"
    found = {"2/3 fast": float(many.mean()), "1/9 fast": float(few.mean())}
    return [paired(text, found, [many - few - FALL], "non-IID", f"{FALL} points")]


def ahead_claims(scores: pd.DataFrame) -> list[Claim]:
    """Figures 1 and 2: every asynchronous method is ahead of FedAvg after the same time."""
    rows = []
    for setting in SKEWED:
        by = by_method(scores, setting)
        if len(by.columns) == len(PAPER):
            text = "QuAFL, FedBuff and FAVANO are ahead of FedAvg after the same time"
            ahead = [by[name] - by["FedAvg"] for name in PAPER if name != "FedAvg"]
            rows.append(paired(text, means(by), ahead, setting))
    return rows


def cell_claims(cells: pd.DataFrame, seeds: int) -> list[Claim]:
    """The table's numbers, a claim per cell."""
    points = TOLERANCES["accuracy of a table, points"]
    rows = cells[["method", "column", "accuracy", "+-", "paper"]].itertuples(index=False)
    return [
        number(f"Table 2, {method}: {paper:g} %", Spread(ours, std, seeds), paper, points, column)
        for method, column, ours, std, paper in rows
    ]


def sensitivity(tables: Tables, facts: Facts) -> Built:
    """Choices that the paper leaves open."""
    text = f"{scale(facts)}; test accuracy, percent."
    return Report("Effects of the open choices", text, tables[""]), {}


def iid(tables: Tables, facts: Facts) -> Built:
    """Choices in the IID column, changed one at a time."""
    report = Report(
        "Table 2 of FAVANO with one choice changed at a time",
        f"{scale(facts)}; test accuracy, percent. Defaults: pixels from [0, 1], PyTorch's initial "
        f"values, batches of {BATCH_SIZE} from reshuffled epochs, 600 train images per client; "
        "FedBuff with server rate 0.1 and the local rate times Z / n; FAVANO with the stochastic "
        "alpha.",
        tables[""],
    )
    report.section(
        f"Choices within {CLOSE:g} points of the paper",
        "Another choice for each method explains no table: `factorial` has one for all.",
        near_choices(tables[""]),
    )
    return report, {}


def near_choices(table: pd.DataFrame) -> pd.DataFrame:
    """Per method which choices give the paper's accuracy in the first setting."""
    first = table.loc[table["setting"] == table["setting"].iloc[0], :]
    near = np.abs(first["difference"].to_numpy()) <= CLOSE
    return first.loc[near, ["method", "choice", "accuracy", "paper"]]


CHOICES = ["pixels", "alpha", "law", "rate"]  # the columns of a setting
SHOWN = ("default", "nearest")  # one row if they are the same


def distances(table: pd.DataFrame) -> pd.DataFrame:
    """A row per setting: the sum of ``|ours - paper|`` over its cells; in the table's order."""
    groups: Any = table.assign(distance=table["difference"].abs()).groupby(CHOICES, sort=False)
    return groups["distance"].sum().reset_index()


def factorial(tables: Tables, facts: Facts) -> Built:
    """The setting nearest to the whole table, and the default, with fresh seeds."""
    cells, selection = tables[""], tables["selection"]
    further = int((tables["cells"]["seed"].drop_duplicates() >= facts["seeds"]).sum())
    fresh = distances(cells)
    names = dict(zip(map(tuple, fresh[CHOICES].to_numpy().tolist()), SHOWN, strict=False))
    which = [names[tuple(row)] for row in cells[CHOICES].to_numpy().tolist()]
    default = selection.iloc[0]  # settings are in the order of the combinations, the default first
    nearest = selection.iloc[int(selection["distance"].to_numpy().argmin())]
    count = cells.groupby("column").ngroups * len(PAPER)
    report = Report(
        "Table 2 of FAVANO over all combinations of the open choices",
        f"{scale(facts)} select among {len(selection)} settings by the sum of |ours - paper| over "
        f"{count} cells, points of test accuracy: nearest {nearest['distance']:.1f}, default "
        f"{default['distance']:.1f}. The numbers below are those of "
        f"{counted(further, 'further seed')}. "
        "FedBuff's server rate is tuned by accuracy in each column, on one seed of its own.",
        fresh.assign(setting=list(names.values())),
    )
    shown = cells.assign(setting=which)
    shown.insert(0, "setting", shown.pop("setting"))
    report.section(
        "Cells, further seeds",
        shown.drop(columns=CHOICES),
    )
    ranked = selection.sort_values("distance", kind="stable").head(10)
    report.section("The ten nearest settings, on the seeds of the selection", ranked)
    last = np.flatnonzero(shown["setting"] == which[-1])
    report.claims(cell_claims(shown.take(last), further))
    return report, {"factorial": beside_the_paper(shown)}


def beside_the_paper(cells: pd.DataFrame) -> Figure:
    """A panel per column: the paper's accuracies and those of the settings, with deviations."""
    columns = list(dict.fromkeys(cells["column"]))
    figure = Figure(figsize=(1.0 + 3.0 * len(columns), 3.2), layout="constrained")
    axes = figure.subplots(1, len(columns), sharey=True, squeeze=False)[0]
    for panel, column in zip(axes, columns, strict=True):
        place = list(SETTINGS).index(column)
        places = np.arange(len(PAPER))
        means, deviations = zip(*(PAPER[name][place] for name in PAPER), strict=True)
        panel.errorbar(places, means, deviations, fmt="none", ecolor="k", capsize=3)
        panel.plot(places, means, "ks", ms=5, label="paper")
        groups: Any = cells[cells["column"] == column].groupby("setting", sort=False)
        for i, (name, part) in enumerate(groups):
            rows = part.set_index("method").loc[list(PAPER)]
            spot, color = places + 0.15 * (i + 1), f"C{i}"
            panel.errorbar(spot, rows["accuracy"], rows["+-"], fmt="none", ecolor=color, capsize=3)
            panel.plot(spot, rows["accuracy"], "oD"[i], ms=5, color=color, label=name)
        panel.set_xticks(places, list(PAPER))
        panel.set_title(column, fontsize="medium")
        style_axes(panel)
    axes[0].set_ylabel("test accuracy, percent")
    legend_above(figure, ["paper", *dict.fromkeys(cells["setting"])], 3)
    return figure


def others(tables: Tables, facts: Facts) -> Built:
    """FedAsync and asynchronous SGD."""
    text = (
        f"{scale(facts)}; test accuracy, percent. FedAsync mixes 0.6 in, adaptive rates fall with "
        "the staleness beyond the number of clients."
    )
    return Report("FedAsync and asynchronous SGD on the same clock", text, tables[""]), {}


def variance(tables: Tables, facts: Facts) -> Built:
    """The clients' distance from the server, over time and at the end."""
    history = tables[""]
    measured = ["variance", "variance_lazy", "accuracy"]
    means = pd.DataFrame(late(history).groupby(["setting", "algorithm"])[measured].mean())
    text = (
        f"{scale(facts)}; means over the last fifth of the time, an evaluation every "
        f"{EVAL_TIME:g} units. `variance`: clients' models after their steps so far; "
        "`variance_lazy`: as received."
    )
    title = "Distance of the clients' models from the server's"
    return Report(title, text, means.reset_index()), {
        "variance": panels(history, [("variance", "time")])
    }


# By the name of the report's files.
REPORTS = {
    "table2": table2, "sensitivity": sensitivity, "iid": iid, "factorial": factorial,
    "others": others, "variance": variance,
}  # fmt: skip
