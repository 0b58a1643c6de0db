"""From the sweeps on scans to the paper's claims and Figure 4.11."""

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from experiments import fco_grid as grid
from experiments.fco_common import METHODS, Claim, Curves, Rates
from experiments.fco_report import PAIR, Check
from fedjax_sim.plotting.curves import legend_above, line_look, style_axes

SHOWN_ROUNDS, PRODUCTS = (10, 30, 100, 300), (0.003, 0.3)  # of Figure 4.11
LOSS, ACCURACY, DENSITY = "validation/loss", "validation/accuracy", "density"
# Not the paper's:
CLOSE, TWICE = 0.05, 2.0  # in accuracy; in density


def progress(history: pd.DataFrame) -> pd.DataFrame:
    """Accuracy and density of the pairs of Figure 4.11, a row per pair, seed and round shown."""
    product = history["lr"] * history["server_lr"]
    # The product of decimal numbers, 0.1 * 0.03 say, is off by rounding.
    low, high = PRODUCTS[0] * (1 - 1e-9), PRODUCTS[1] * (1 + 1e-9)
    shown = history["round"].isin(SHOWN_ROUNDS) & history["metric"].isin((ACCURACY, DENSITY))
    rows = history.loc[product.between(low, high) & shown, :]
    wide = rows.pivot(index=[*PAIR, "seed", "round"], columns="metric", values="value")
    return wide.reset_index().rename_axis(columns=None)


def reaches(rows: pd.DataFrame, centralised: Mapping[str, float]) -> pd.DataFrame:
    """By method and round the share of pairs about as accurate and sparse as the centralised."""
    accurate = rows[ACCURACY] >= centralised[ACCURACY] - CLOSE
    sparse = rows[DENSITY] <= TWICE * centralised[DENSITY]
    shares = rows.assign(share=(accurate & sparse).astype(float))
    return shares.pivot_table(
        index="method", columns="round", values="share", aggfunc="mean", sort=False
    ).reindex(columns=sorted(set(rows["round"])))


def claims(
    centralised: Mapping[str, float], local: Mapping[str, float], shares: pd.DataFrame
) -> list[Claim]:
    """What the paper says, with the baselines that were found here."""
    dual, osp, mid, mid_osp = METHODS

    def like_centralised(curves: Curves, rates: Rates) -> tuple[str, bool]:
        del rates
        accuracy, share = (float(curves[dual][m][-1]) for m in (ACCURACY, DENSITY))
        text = f"accuracy {accuracy:.3f}, density {share:.3g}; centralised "
        text += f"{centralised[ACCURACY]:.3f}, {centralised[DENSITY]:.3g}"
        close = accuracy >= centralised[ACCURACY] - CLOSE
        return text, close and share <= TWICE * centralised[DENSITY]

    def above_local(curves: Curves, rates: Rates) -> tuple[str, bool]:
        del rates
        accuracy = float(curves[dual][ACCURACY][-1])
        return f"{accuracy:.3f} against {local[ACCURACY]:.3f}", accuracy > local[ACCURACY]

    def robust(curves: Curves, rates: Rates) -> tuple[str, bool]:
        del curves, rates
        if not len(shares.columns):
            return "no round of the figure was run", False
        last = dict(zip(shares.index.tolist(), shares.iloc[:, -1].tolist(), strict=True))
        text = ", ".join(f"{m} {100 * share:.0f} %" for m, share in last.items())
        return text, all(last[dual] > share for m, share in last.items() if m != dual)

    def below(metric: str, sign: int) -> Check:
        return grid.beats(dual, (mid, mid_osp), metric, 1, sign)

    region = f"accuracy within {CLOSE:g} of, density at most {TWICE:g} times"
    every = tuple(METHODS)
    found = [
        ((dual,), f"{dual} is comparable to centralised: {region} its", like_centralised),
        ((dual,), f"{dual} is more accurate than training alone", above_local),
        ((dual, mid, mid_osp), f"{mid} and {mid_osp} are denser", below(DENSITY, 1)),
        ((dual, mid, mid_osp), f"{mid} and {mid_osp} are less accurate", below(ACCURACY, -1)),
        ((dual, osp), f"{osp} is less accurate", grid.beats(dual, (osp,), ACCURACY, 1, -1)),
        (every, f"{dual} is most robust: most pairs with {region} centralised's", robust),
    ]
    return [Claim(("fmri",), *rest) for rest in found]


def scatter(rows: pd.DataFrame, label: str) -> Figure:
    """Figure 4.11: accuracy against density, a dot per pair of rates, a panel per round."""
    rounds = sorted(set(rows["round"]))
    figure = Figure(figsize=(1.2 + 3.4 * len(rounds), 3.9), layout="constrained")
    panels = figure.subplots(1, len(rounds), sharex=True, sharey=True, squeeze=False)[0]
    names = rows["method"].unique().tolist()
    for done, axes in zip(rounds, panels, strict=True):
        for place, name in enumerate(names):
            part = rows[(rows["round"] == done) & (rows["method"] == name)]
            color = line_look(place)["color"]
            axes.plot(part[DENSITY], part[ACCURACY], "o", ms=5, alpha=0.6, color=color, label=name)
        axes.set(xlabel="density", title=f"round {done}", xlim=(-0.03, 1.03))
        style_axes(axes)
    panels[0].set_ylabel("validation accuracy")
    legend_above(figure, names, len(names))
    figure.supxlabel(
        f"{label}: all pairs of rates with product in {list(PRODUCTS)}", fontsize="small"
    )
    return figure
