"""Report, figure and page on the bias of asynchrony."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import fedjax_sim as fs
from experiments.harness import Estimate, Report, select
from experiments.questions import asynchrony_limits as limits
from experiments.questions import asynchrony_times as times
from experiments.questions.asynchrony_setting import (
    CURVATURES,
    FAST,
    INTERVAL,
    LR,
    METHODS,
    POWER,
    SLOW,
    STEPS,
    slow_clients,
    system,
)
from experiments.questions.asynchrony_tables import combined, slopes, stationary, summary
from experiments.questions.page import Answer, Page, Study, together

TWO_THIRDS, NEAR = 2 / 3, 0.02  # the share of slow clients of most sentences; a tolerance
LOOKS = dict(zip(METHODS, ("C2", "C0", "C1", "C3", "C4"), strict=True))
Tables = Mapping[str, pd.DataFrame]


def expected_lack(method: str, clients: int, slow: float, corrected: bool = False) -> float:
    """Weight that slow clients lack in the limit by the formula, for Hessians that are shared."""
    a = np.broadcast_to(CURVATURES, (clients, len(CURVATURES)))
    weights = limits.influence(method, corrected, system(method, clients, slow), LR, a, POWER)
    is_slow = slow_clients(clients, slow)
    return float(is_slow.mean() - (weights[is_slow].sum(axis=0) / weights.sum(axis=0)).mean())


def draw(tables: Tables) -> Figure:
    """Draws the lack over the share of slow clients, distances over M, and shares over time."""
    figure, (left, middle, right) = plt.subplots(
        1, 3, figsize=(13.5, 4.2), layout="constrained", width_ratios=(1.2, 1, 1)
    )
    _draw_lacks(left, summary(select(tables[""], part="speed", clients=100)))
    _draw_sizes(middle, tables[""])
    _draw_shares(right, tables["clocks"])
    return figure


def _draw_lacks(axes: Any, rows: pd.DataFrame) -> None:
    grid = np.linspace(0.02, 0.98, 49)
    for method, colour in LOOKS.items():
        for corrected in (False, True):
            own = select(rows, method=method, corrected=corrected)
            ends = [own["lack"] - own["lack low"], own["lack high"] - own["lack"]]
            axes.errorbar(
                own["slow"], own["lack"], yerr=ends, fmt="o", ms=5, capsize=2, color=colour,
                mfc="white" if corrected else colour,
            )  # fmt: skip
            lacks = [expected_lack(method, 100, share, corrected) for share in grid]
            axes.plot(grid, lacks, color=colour, lw=1, ls="--" if corrected else "-")
        axes.plot([], [], "o-", color=colour, label=method)
    axes.plot([], [], "o--", color="grey", mfc="white", label="corrected")
    axes.axhline(0, color="black", lw=0.6)
    axes.set(xlabel="share of slow clients", ylabel="weight that slow clients lack in the limit")
    axes.set_title("M = 100: lines by formula, points measured", fontsize=10)
    axes.legend(frameon=False, fontsize=8, loc="upper left")


def _draw_sizes(axes: Any, table: pd.DataFrame) -> None:
    sizes = np.array([100, 1000, 10_000, 100_000])
    slow_and_fast = 1 / (sizes * TWO_THIRDS) + 1 / (sizes * (1 - TWO_THIRDS))
    near = table.loc[np.isclose(table["slow"], TWO_THIRDS), :]
    near = select(near, corrected=False)
    for method in ("FedBuff", "FAVANO", "QuAFL"):
        lacks = np.array([expected_lack(method, size, TWO_THIRDS) for size in sizes])
        for gap, style, face in ((1.0, "-", LOOKS[method]), (0.0, ":", "white")):
            expected = abs(lacks) * np.sqrt(gap**2 + slow_and_fast)
            axes.plot(sizes, expected, ls=style, color=LOOKS[method], lw=1)
            runs = select(combined(near, 1.0, gap), method=method)
            for size, part in runs.groupby("clients"):
                found = fs.analysis.mean_interval(part["distance"].to_numpy())
                ends = [[found.mean - max(found.low, 1e-6)], [found.high - found.mean]]
                axes.errorbar(
                    [size], [found.mean], yerr=ends, fmt="o", ms=5, capsize=2, mfc=face,
                    color=LOOKS[method],
                )  # fmt: skip
    axes.plot([], [], "o-", color="grey", label="slow clients' data differ (gap 1)")
    axes.plot([], [], "o:", color="grey", mfc="white", label="data independent of speed")
    axes.set(xscale="log", yscale="log", xlabel="clients M", ylabel="distance of the limit")
    axes.set(ylim=(1e-5, 3))
    axes.set_title("two thirds slow, minimisers N(0, 1)", fontsize=10)
    axes.legend(frameon=False, fontsize=8, loc="lower left")


def _draw_shares(axes: Any, clocks: pd.DataFrame) -> None:
    rows = select(clocks, clients=clocks["clients"].max(), steps=STEPS)
    free = SLOW / FAST / 2
    one = select(rows, group=rows["group"].iloc[0])
    for number, (_, own) in enumerate(rows.groupby("group")):
        ratio = own["share"] / own["limit"]
        label = f"FedBuff, M = {own['clients'].iloc[0]:,}" if number == 0 else None
        axes.plot(own["time"] - STEPS / FAST / 2, ratio, color=LOOKS["FedBuff"], lw=1, label=label)
    ratio = one["expected"] / (free / (1 + free))
    axes.plot(one["time"] - STEPS / FAST / 2, ratio, "k--", lw=1, label="renewal equation")
    at_contacts = times.contact_shares(1 / 3, SLOW, FAST, STEPS, 0.2, INTERVAL, 200)
    ratio = at_contacts / at_contacts[-1]
    axes.plot(
        INTERVAL * (np.arange(200) + 1), ratio, color=LOOKS["FAVANO"], lw=1.5, label="contacts"
    )
    axes.axhspan(1 - times.TOLERANCE, 1 + times.TOLERANCE, color="black", alpha=0.1, lw=0)
    axes.set(xlabel="units of time", ylabel="slow clients' share / its limit")
    axes.set_xlim(0, float(np.max(one["time"])))
    axes.set_title("a third slow, K = 20; grey: within 10 %", fontsize=10)
    axes.legend(frameon=False, fontsize=8)


def build(tables: Tables, facts: Mapping[str, Any]) -> tuple[Report, dict[str, Figure]]:
    """Returns the report's text and figure."""
    report = Report(
        "The bias of asynchrony",
        "Quadratic clients with exact gradients, fast and slow (a step takes 2 or 16 units of time "
        "on average, at most 20 steps per visit). `speed`: minimisers are 1 for slow and 0 for "
        "fast clients, so `lack` is the weight that slow clients lack in the limit. `scatter`: "
        "minimisers are independent of speed, N(0, 1). Limits are means over the last half of the "
        "time; intervals of 95 % over seeds, whose problems and timelines differ. `spread` is the "
        "standard deviation of the server's model around its mean.",
    )
    report.section("Limits", summary(tables[""]).round(4))
    report.section("Slope of log distance over log M, per seed", slopes(tables[""], "scatter"))
    report.section(
        "When slow clients' share of FedBuff's uploads is within 10 % of its limit",
        "Means and intervals over groups of timelines.",
        stationary(tables["clocks"], facts["constants"]),
    )
    return report, {"asynchrony": draw(tables)}


def _lacks(table: pd.DataFrame, method: str, corrected: bool, size: int = 100) -> np.ndarray:
    rows = select(table, method=method, corrected=corrected, clients=size, part="speed")
    return np.asarray(rows.loc[np.isclose(rows["slow"], TWO_THIRDS), "lack"])


def _near(values: np.ndarray, expected: float, tolerance: float = NEAR) -> bool | None:
    return Estimate.of(values).between(expected - tolerance, expected + tolerance)


def agreement(table: pd.DataFrame) -> pd.DataFrame:
    """Relative differences from the formula without correction, with intervals, a row per case."""
    rows = []
    for part, one in select(table, corrected=False).groupby("part", sort=False):
        if not str(part).startswith("speed"):
            continue
        for _, case in one.groupby(["method", "clients", "slow"], sort=False):
            off = (case["lack"] / case["lack by formula"] - 1).to_numpy()
            found = fs.analysis.mean_interval(off)
            row = {name: case[name].iloc[0] for name in ("method", "clients", "slow", "part")}
            rows.append(row | {"off": found.mean, "low": found.low, "high": found.high})
    return pd.DataFrame(rows)


def _answer_agreement(table: pd.DataFrame) -> Answer:
    cases = agreement(table)
    inside = (cases["off"].abs() <= NEAR).to_numpy()
    covered = ((cases["low"] <= 0) & (cases["high"] >= 0)).to_numpy()
    worst = cases.loc[cases["off"].abs().idxmax(), :]
    excluded = bool(((cases["low"] > NEAR) | (cases["high"] < -NEAR)).to_numpy().any())
    return Answer(
        "The limit is the mean of minimisers weighted by rates of contribution, within 2 %",
        f"{inside.sum()} of {len(cases)} cases within 2 %, {covered.sum()} intervals contain the "
        f"formula; worst {worst['method']}, M = {worst['clients']}, {worst['slow']:.2g} slow: "
        f"{100 * worst['off']:.1f} % [{100 * worst['low']:.1f}, {100 * worst['high']:.1f}]",
        False if excluded else (True if inside.all() else None),
    )


def _answer_share(table: pd.DataFrame) -> Answer:
    means = summary(select(table, method="FedBuff", corrected=False, clients=100, part="speed"))
    largest = float(means.loc[means["lack"].idxmax(), "slow"])  # pyright: ignore
    found = {name: _lacks(table, name, False) for name in ("FedBuff", "FedAsync")}
    verdicts = [_near(found["FedBuff"], 0.45), _near(found["FedAsync"], 0.47)]
    return Answer(
        "Two thirds slow: they lack 0.45 (FedBuff) and 0.47 (FedAsync) of their weight 0.67; the "
        "lack is largest there, not at nine tenths",
        f"{Estimate.of(found['FedBuff']):.3f} and {Estimate.of(found['FedAsync']):.3f}; largest at "
        f"{largest:.2g}",
        together(*verdicts, bool(np.isclose(largest, TWO_THIRDS))),
    )


def _answer_stale(table: pd.DataFrame) -> Answer:
    found = _lacks(table, "FedAsync, stale less", False)
    return Answer(
        "A weight (1 + staleness)^(-1/2) makes it worse: 0.59",
        f"{Estimate.of(found):.3f}",
        _near(found, 0.59),
    )


def _answer_quafl(table: pd.DataFrame) -> Answer:
    found = _lacks(table, "QuAFL", False)
    rows = select(table, clients=100, corrected=True, part="scatter, other Hessians")
    rows = rows.loc[np.isclose(rows["slow"], TWO_THIRDS), :]
    left = {
        name: select(rows, method=name)["distance by formula"].to_numpy()
        for name in ("QuAFL", "FedBuff")
    }
    return Answer(
        "QuAFL hardly favours fast clients: 0.087; with different Hessians its weights leave a "
        "bias",
        f"{Estimate.of(found):.3f}; corrected, different Hessians, by formula: "
        f"{left['QuAFL'].mean():.4f} left (FedBuff {left['FedBuff'].mean():.4f})",
        together(_near(found, 0.087), bool((left["QuAFL"] > left["FedBuff"]).all())),
    )


def _answer_favano(table: pd.DataFrame) -> Answer:
    with_alpha, without = (_lacks(table, "FAVANO", flag) for flag in (True, False))
    return Answer(
        "FAVANO's alpha over-corrects by 0.042; without it 0.37 is lacking",
        f"{Estimate.of(with_alpha):.3f} and {Estimate.of(without):.3f}",
        together(_near(with_alpha, -0.042), _near(without, 0.37)),
    )


def _answer_corrected(table: pd.DataFrame) -> Answer:
    rows = summary(select(table, corrected=True, clients=100, part="speed"))
    rows = rows.loc[rows["method"].isin(["FedBuff", "FedAsync", "FedAsync, stale less"]), :]
    zero = ((rows["lack low"] <= 0) & (rows["lack high"] >= 0)).to_numpy()
    inside = ((rows["lack low"] >= -NEAR) & (rows["lack high"] <= NEAR)).to_numpy()
    return Answer(
        "Uploads weighted by 1 / (M share E[s]) remove the bias: intervals contain 0 and lie "
        "within 0.02",
        f"{zero.sum()} of {len(rows)} contain 0, {inside.sum()} lie within; two thirds slow: "
        f"FedBuff {Estimate.of(_lacks(table, 'FedBuff', True)):.3f}, FedAsync "
        f"{Estimate.of(_lacks(table, 'FedAsync', True)):.3f}",
        bool(zero.all() and inside.all()),
    )


def _answer_sizes(table: pd.DataFrame) -> Answer:
    found = slopes(table, "scatter")
    texts, verdicts = [], []
    for method, own in found.groupby("method", sort=False):
        values = own["slope"].to_numpy()
        texts.append(f"{method} {Estimate.of(values):.2f}")
        verdicts.append(_near(values, -0.5, 0.1))
    sizes: Any = select(table, method="FedBuff")["clients"]
    least, most = int(sizes.min()), int(sizes.max())
    large = {name: _lacks(table, name, False, most) for name in ("FedBuff", "FAVANO")}
    kept = ", ".join(f"{name} {Estimate.of(values):.3f}" for name, values in large.items())
    return Answer(
        "Speed independent of data: distance like M^(-1/2) (slope within 0.1); otherwise it stays",
        f"slopes from M = {least} to {most:,}: {', '.join(texts)}; lack at M = {most:,}: {kept}",
        together(*verdicts),
    )


def _answer_times(clocks: pd.DataFrame, constants: Mapping[str, Any]) -> Answer:
    rows = stationary(clocks, constants)
    by_size = rows.loc[rows["steps"] == STEPS, :]
    by_size = by_size.loc[by_size["clients"].isin(clocks["clients"]), :]
    largest = by_size.loc[by_size["clients"].idxmax(), :]
    others = rows.loc[rows["steps"] != STEPS, :]
    steps = pd.concat([by_size.loc[[by_size["clients"].idxmax()], :], others])
    slope = float(np.polyfit(np.log(steps["steps"]), np.log(steps["time"]), 1)[0])
    at_contacts = times.contact_shares(1 / 3, SLOW, FAST, STEPS, 0.2, INTERVAL, 400)
    contacts = times.stationary_from(at_contacts, at_contacts[-1], INTERVAL)
    inside = [
        True if low >= 800 and high <= 1200 else (False if low > 1200 or high < 800 else None)
        for low, high in zip(by_size["low"], by_size["high"], strict=True)
    ]
    texts = ", ".join(f"M = {r['clients']:,}: {r['time']:.0f}" for r in by_size.to_dict("records"))
    return Answer(
        "FedBuff's share is stationary after about 1,000 units at every M, like K^2; 160 of its "
        "updates; contacts after 70 units",
        f"{texts} (M = {int(largest['clients']):,}: [{largest['low']:.0f}, {largest['high']:.0f}], "
        f"{largest['FedBuff' + chr(39) + 's updates']:.0f} updates); exponent of K {slope:.2f}; "
        f"contacts, by formula, {contacts:.0f}",
        together(*inside, abs(slope - 2) <= 0.1),
    )


def page(tables: Tables, facts: Mapping[str, Any]) -> Page:
    """The page's sentences, figure and answers."""
    table, options = tables[""], facts["options"]
    lacks = {name: f"{Estimate.of(_lacks(table, name, False)):.3f}" for name in METHODS}
    clocks, runs = (np.asarray(each["clients"]) for each in (tables["clocks"], table))
    largest, trained = int(clocks.max()), int(runs.max())
    return Page(
        f"With two thirds of 100 clients slow, the limits give slow clients too little weight: "
        f"FedBuff by {lacks['FedBuff']} of 0.67, FedAsync by {lacks['FedAsync']}, QuAFL by "
        f"{lacks['QuAFL']}; uploads weighted by inverse rates of contribution remove FedBuff's "
        f"({Estimate.of(_lacks(table, 'FedBuff', True)):.3f}), and FAVANO's alpha over-corrects "
        f"({Estimate.of(_lacks(table, 'FAVANO', True)):.3f}).",
        "A corrected FedBuff or FedAsync on clients with equal Hessians and a small server rate "
        f"whose interval lies beyond {NEAR:g}, a FAVANO with this alpha whose interval contains 0, "
        "or a limit that is not the mean of minimisers weighted as in "
        "`experiments/questions/asynchrony_limits.py`.",
        "95 % intervals over seeds. Left: lines follow from speeds and sizes alone. Middle: "
        "without correction. Right: groups of timelines.",
        [
            _answer_agreement(table),
            _answer_share(table),
            _answer_stale(table),
            _answer_quafl(table),
            _answer_favano(table),
            _answer_corrected(table),
            _answer_sizes(table),
            _answer_times(tables["clocks"], facts["constants"]),
        ],
        f"Quadratics with exact gradients, equal curvatures unless said otherwise; rate {LR:g}, at "
        f"most {STEPS} steps, {options['seeds']} seeds. Networks, minibatches, other "
        f"laws of durations and lost uploads were not tried; runs reach M = {trained:,} "
        f"and timelines {largest:,}, larger M are by formula only.",
    )


STUDY = Study(
    "asynchrony",
    "The bias of asynchrony",
    "Where do asynchronous methods settle if some clients are slow, when is the slow clients' "
    "share of the updates stationary, and which weights correct the limit?",
    build,
    page,
)
