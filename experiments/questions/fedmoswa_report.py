"""Report, figure and page on FedMoSWA's gain and floor."""

import pathlib
from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from experiments.harness import Estimate, Report, read_facts, reported_rows, select
from experiments.harness.controls import FACTORS, MEASURES, OWN, SCAFFOLD
from experiments.harness.effects import best_setting, effects, largest, levels_of
from experiments.questions.fedmoswa_floor import law
from experiments.questions.fedmoswa_floor_runs import CLIENTS, Case, step_of
from experiments.questions.fedmoswa_tables import NOTHING, UP_TO, exponents, with_law
from experiments.questions.page import Answer, Page, Study, together

SMALL = 0.05  # h, up to which the law is expected to hold
SHOWN = (0.05, 0.2, 1.0)  # gammas in the figure
CIFAR100 = pathlib.Path(__file__).parents[1] / "results" / "fedswa" / "factorial-cpu"
Tables = Mapping[str, pd.DataFrame]


def draw(tables: Tables, facts: Mapping[str, Any]) -> Figure:
    """Draws floors over cohorts, floors over the law, and effects."""
    figure, (left, middle, right) = plt.subplots(
        1, 3, figsize=(14, 4.3), layout="constrained", width_ratios=(1, 0.9, 1.15)
    )
    _draw_floors(left, with_law(tables["floor"]))
    _draw_law(middle, with_law(tables["floor"]))
    _draw_effects(right, effects(tables[""], MEASURES[0], levels_of(facts)))
    return figure


def _errorbar(axes: Any, rows: pd.DataFrame, x: Any, y: str, ends: tuple[str, str], **look: Any):
    low, high = (rows[name].to_numpy() for name in ends)
    values = rows[y].to_numpy()
    axes.errorbar(x, values, yerr=[values - low, high - values], fmt="o", ms=4.5, **look)


def _draw_floors(axes: Any, table: pd.DataFrame) -> None:
    step = float(table["step"].iloc[0])
    case = select(table, step=step, noise=0.0, spread=0.0)
    case = case.loc[case["cohort"] < CLIENTS, :]
    kinds = [("FedAvg", None, "black")]
    ran = case["gamma"].dropna().unique()
    gammas = [gamma for gamma in SHOWN if gamma in ran] or sorted(ran)
    kinds += [("FedMo", gamma, f"C{i}") for i, gamma in enumerate(gammas)]
    for method, gamma, colour in kinds:
        own = select(case, method=method)
        if gamma is not None:
            own = own.loc[np.isclose(own["gamma"], gamma), :]
        r = own["cohort"] / CLIENTS
        label = method if gamma is None else f"{method}, gamma = {gamma:g}"
        _errorbar(axes, own, r, "floor", ("low", "high"), color=colour, capsize=2, label=label)
        axes.plot(r, own["exact"], color=colour, lw=1)
        if gamma is not None:
            grid = np.geomspace(1 / CLIENTS, max(r), 60)
            fedavg = np.exp(np.interp(np.log(grid), np.log(r), np.log(own["floor"] / own["ratio"])))
            h = step_of(Case(step))
            axes.plot(grid, fedavg * law(h, grid, gamma), color=colour, lw=1, ls=":")
    axes.set(xscale="log", yscale="log", xlabel="clients per round, s of 32")
    shares = sorted(case["cohort"].unique() / CLIENTS)
    axes.xaxis.set_major_locator(FixedLocator(shares))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{share * CLIENTS:.0f}" for share in shares]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylabel("square distance from the optimum")
    axes.set_title(f"Floors, h = {step_of(Case(step)):.2g}: solid exact, dotted law", fontsize=10)
    axes.legend(frameon=False, fontsize=8)


def _draw_law(axes: Any, table: pd.DataFrame) -> None:
    rows = table.loc[table["law"].notna(), :]
    axes.plot([0.03, 1.3], [0.03, 1.3], color="0.6", lw=1)
    for number, (step, own) in enumerate(rows.groupby("step")):
        for full, part in ((True, own["gamma"] <= UP_TO), (False, own["gamma"] > UP_TO)):
            some = own.loc[part, :]
            scale = (some["ratio"] / some["floor"]).to_numpy()
            some = some.assign(low=some["low"] * scale, high=some["high"] * scale)
            colour = f"C{number + 3}"
            _errorbar(
                axes, some, some["law"], "ratio", ("low", "high"), color=colour, lw=1,
                mfc=colour if full else "white",
                label=f"h = {step_of(Case(float(step))):.2g}" if full else None,
            )  # fmt: skip
    axes.plot([], [], "o", color="grey", mfc="white", label=f"gamma > {UP_TO:g}")
    axes.set(xscale="log", yscale="log", xlabel="law", ylabel="FedMo's floor over FedAvg's")
    axes.set_title("All cohorts, gamma and steps, no noise", fontsize=10)
    axes.legend(frameon=False, fontsize=8)


def _draw_effects(axes: Any, table: pd.DataFrame) -> None:
    shown = pd.concat([table.loc[table["kind"] == "main", :], largest(table)])
    places = -np.arange(len(shown))
    mean, low, high = (100 * shown[name].to_numpy() for name in ("mean", "low", "high"))
    colours = ["C0" if kind == "main" else "C1" for kind in shown["kind"]]
    for x, y, ends, colour in zip(
        mean, places, zip(mean - low, high - mean, strict=True), colours, strict=True
    ):
        axes.errorbar([x], [y], xerr=np.reshape(ends, (2, 1)), fmt="o", color=colour, capsize=3)
    axes.axvline(0, color="0.6", lw=1)
    labels = [str(name).replace(" x (", "\nx (") for name in shown["effect"]]
    axes.set_yticks(places, labels, fontsize=8)
    axes.set_xlabel("test accuracy, points, 95 % interval")
    axes.set_title("Factorial: main effects, two largest interactions", fontsize=10)


def build(tables: Tables, facts: Mapping[str, Any]) -> tuple[Report, dict[str, Figure]]:
    """Returns the report's text and figure."""
    scored, levels, options = tables[""], levels_of(facts), facts["options"]
    text = Report(
        "Where FedMoSWA's gain comes from",
        f"Factorial: {options['seeds']} seeds, each setting at the rate "
        "with the best accuracy of the other seeds; late means. Floors: square distance from the "
        f"optimum per coordinate, {CLIENTS} clients, minimisers with variance 1, "
        f"{options['floor_seeds']} seeds, {options['floor_rounds']} rounds, of which the first "
        "quarter is left out. 95 % intervals over seeds (floors: over 16 groups of seeds).",
    )
    columns = ["controls", *FACTORS]
    means: Any = scored.groupby(columns, sort=False, dropna=False)
    table = means[[*MEASURES, "lr", "at edge"]].mean().reset_index()
    text.section("Means of the settings", table.round(4))
    for measure in MEASURES:
        text.section(f"Effects on {measure}", effects(scored, measure, levels).round(5))
    text.section("Exponents of FedMo's floor", exponents(tables["floor"]).round(3))
    floors = with_law(tables["floor"]).drop(columns=["off low", "off high"])
    text.section("Floors", floors)
    return text, {"fedmoswa": draw(tables, facts)}


def _row_text(row: Any, scale: float = 100.0, digits: int = 1) -> str:
    return f"{Estimate(*(scale * value for value in _estimate(row))):.{digits}f}"


def _estimate(row: Any) -> Estimate:
    """The mean of an effect."""
    return Estimate(row["mean"], row["low"], row["high"])


def _named(name: Any, row: Any, scale: float = 100.0, digits: int = 1) -> str:
    """An effect as ``gamma 0.05 for 1: 0.1 [-0.1, 0.3]``."""
    return (
        f"{str(name).replace(': ', ' ').replace(' - ', ' for ')}: {_row_text(row, scale, digits)}"
    )


def _floor_answers(table: pd.DataFrame) -> list[Answer]:
    floors, slopes = with_law(table), exponents(table)
    real = floors.loc[floors["exact"].abs() > NOTHING, :]
    rounding = 1e-4 * real["exact"]  # of the numbers in the files
    inside = (
        (real["low"] - rounding <= real["exact"]) & (real["exact"] <= real["high"] + rounding)
    ).to_numpy()
    stationary = real.loc[real["method"] != "SCAFFOLD", :]  # its decay has a heavy tail
    exact_error = (stationary["floor"] / stationary["exact"] - 1).abs().max()
    lawful = floors.loc[floors["law"].notna(), :]
    near = lawful["step"].map(lambda step: step_of(Case(step))) <= SMALL
    near = lawful.loc[near & (lawful["gamma"] <= UP_TO), :]
    worst = near.loc[near["off"].abs().idxmax(), :]
    far = lawful.loc[lawful["off"].abs().idxmax(), :]
    one, many = (_exponent(slopes, cohort) for cohort in (1, CLIENTS // 2))
    bare = select(floors, noise=0.0)
    everyone = select(bare, cohort=CLIENTS, spread=0.0)["floor"].abs().max()
    scaffold = select(bare, method="SCAFFOLD")
    spread = _spread(floors)
    noisy = floors.loc[(floors["noise"] > 0) & (floors["cohort"] < CLIENTS), :]
    margin = _over_scaffold(noisy)
    return [
        Answer(
            "The recursion of second moments is exact: 9 in 10 intervals contain it",
            f"{inside.sum()} of {len(inside)}; largest difference {100 * exact_error:.1f} % "
            "(without SCAFFOLD, whose distance is still falling at s = 1)",
            bool(inside.mean() >= 0.9),
        ),
        Answer(
            f"The law holds within 15 % for h <= {SMALL:g} and gamma <= {UP_TO:g}",
            f"at most {100 * worst['off']:.1f} % [{100 * worst['off low']:.1f}, "
            f"{100 * worst['off high']:.1f}] off; of all cells {100 * far['off']:.0f} % (gamma "
            f"{far['gamma']:g}, step {far['step']:g}, s = {far['cohort']:.0f})",
            bool(max(abs(worst["off low"]), abs(worst["off high"])) < 0.15),
        ),
        Answer(
            "Exponent of gamma at h = 0.18: 0.38 with s = 1, at most 0.05 with s = 16",
            f"{one['exponent']:.2f} [{one['low']:.2f}, {one['high']:.2f}] and "
            f"{many['exponent']:.3f} [{many['low']:.3f}, {many['high']:.3f}]",
            together(bool(one["low"] - 0.02 <= 0.38 <= one["high"] + 0.02), many["high"] <= 0.05),
        ),
        Answer(
            "No floor at s = M, none of SCAFFOLD; curvatures change floors by less than 15 %; with "
            "noise FedMoSWA is above SCAFFOLD",
            f"s = M: {everyone:.0e}; SCAFFOLD at most {scaffold['floor'].max():.0e}, and still "
            f"falling at s = 1; curvatures {100 * spread:.0f} %; with noise FedMo over SCAFFOLD at "
            f"least {margin:.2f}",
            bool(everyone < NOTHING and spread < 0.15 and margin > 1),
        ),
    ]


def _exponent(slopes: pd.DataFrame, cohort: int) -> Any:
    """The exponent of gamma of one cohort at the first case's step."""
    rows = slopes.loc[(slopes["of"] == "gamma") & (slopes["cohort"] == cohort), :]
    return rows.loc[np.isclose(rows["step"], 0.2), :].iloc[0]


def _spread(floors: pd.DataFrame) -> float:
    """Largest relative change of FedMo's floor with cohorts by different curvatures."""
    keys = ["cohort", "gamma"]
    rows = select(floors, method="FedMo", noise=0.0, step=0.2)
    rows = rows.loc[rows["cohort"] < CLIENTS, :]
    same = rows.loc[rows["spread"] == 0, :].set_index(keys)["floor"]
    other = rows.loc[rows["spread"] > 0, :].set_index(keys)["floor"]
    return float((other / same - 1).abs().max())


def _over_scaffold(noisy: pd.DataFrame) -> float:
    """Least ratio of FedMo's floor to SCAFFOLD's."""
    scaffold = select(noisy, method="SCAFFOLD").set_index("cohort")["floor"]
    own = select(noisy, method="FedMo")
    return float((own["floor"].to_numpy() / scaffold.loc[own["cohort"]].to_numpy()).min())


def _factorial_answers(scored: pd.DataFrame, levels: Mapping[str, Any]) -> list[Answer]:
    table = effects(scored, MEASURES[0], dict(levels)).set_index("effect")
    mains = table.loc[table["kind"] == "main", :]
    own, _, of_last, gamma, alpha, rho = (mains.loc[name, :] for name in mains.index)
    sizes = mains["mean"].abs().sort_values(ascending=False)
    losses = {
        name: effects(scored, name, dict(levels)).set_index("effect").loc[mains.index[0], :]
        for name in ("test loss", "train loss")
    }
    share = losses["train loss"]["mean"] / losses["test loss"]["mean"]
    gains = losses["test loss"]["high"] < 0
    ahead = best_setting(scored, SCAFFOLD) - best_setting(scored, OWN)
    lead = Estimate.of(100 * ahead)
    return [
        Answer(
            "Controls are the largest effect: own over none by more than 2 points",
            f"{_row_text(own)} points; largest main effect: {sizes.index[0]}",
            together(
                _estimate(own).between(0.02, np.inf), str(sizes.index[0]).startswith("controls")
            ),
        ),
        Answer(
            "gamma has the second largest effect, and the least gamma is best",
            f"{mains.index[3]}: {_row_text(gamma)} points",
            together(
                _estimate(gamma).between(0, np.inf),
                bool(abs(gamma["mean"]) > max(abs(alpha["mean"]), abs(rho["mean"]))),
            ),
        ),
        Answer(
            "The last control of the worker gains less than half of what the own one does",
            f"{_row_text(of_last)} of {_row_text(own)} points",
            bool(of_last["mean"] < own["mean"] / 2),
        ),
        Answer(
            "alpha and rho change the accuracy by less than a point each",
            f"{_row_text(alpha, digits=2)} and {_row_text(rho, digits=2)} points",
            together(*(_estimate(row).between(-0.01, 0.01) for row in (alpha, rho))),
        ),
        Answer(
            "The gain is one of optimisation: the training loss has more than half of it",
            f"{f'{100 * share:.0f} %' if gains else 'no gain in test loss'} (test loss "
            f"{_row_text(losses['test loss'], 1, 3)}, training loss "
            f"{_row_text(losses['train loss'], 1, 3)})",
            bool(share > 0.5) if gains else None,
        ),
        Answer(
            "SCAFFOLD is at least as good as the best setting of FedMoSWA",
            f"{lead:.2f} points",
            lead.between(0, np.inf),
        ),
    ]


def page(tables: Tables, facts: Mapping[str, Any]) -> Page:
    """The page's sentences, figure and answers."""
    scored, levels, options = tables[""], levels_of(facts), facts["options"]
    table = effects(scored, MEASURES[0], levels)
    mains = table.loc[table["kind"] == "main", :].set_index("effect")
    floors = _floor_answers(tables["floor"])
    own = mains.iloc[0]
    rest = "; ".join(_named(name, mains.loc[name, :]) for name in mains.index[3:])
    gaps = effects(scored, "gap", levels).set_index("effect").loc[mains.index[[0, 3, 4, 5]], :]
    of_gap = "; ".join(_named(name, row, 1, 3) for name, row in gaps.iterrows())
    others = "; ".join(
        _named(name, row) for name, row in largest(table).set_index("effect").iterrows()
    )
    slopes = exponents(tables["floor"])
    cohorts = slopes.loc[(slopes["of"] == "1/s - 1/M") & np.isclose(slopes["step"], 0.2), :]
    in_cohorts = " and ".join(
        f"{row['exponent']:.2f} [{row['low']:.2f}, {row['high']:.2f}] (gamma {row['gamma']:g})"
        for row in (cohorts.iloc[0], cohorts.iloc[-1])
    )
    return Page(
        f"Own controls add {_row_text(own)} points of accuracy ({rest}; rates tuned). With cohorts "
        f"FedMo's floor is FedAvg's times (r + g)(r + h) / ((r + g)(r + 2h) + 2h^2), r = s/M, g = "
        f"gamma, h the step: {floors[1].found.split(' off')[0]} off at h <= {SMALL:g}, "
        f"g <= {UP_TO:g}.",
        "A quadratic whose floor is outside of the interval around the exact recursion; or a "
        "data set and model with cohorts of a tenth where alpha or rho, at tuned rates, changes "
        "the accuracy by more than the controls do.",
        f"95 % intervals. Left: FedMo with {CLIENTS} clients, without noise; at s = M there is no "
        "floor. Middle: the same at three steps. Right: effects at each setting's best rate, over "
        f"{options['seeds']} seeds.",
        floors + _factorial_answers(scored, levels),
        f"Exponent of 1/s - 1/M in FedMo's floor at h = {step_of(Case(0.2)):.2g}: {in_cohorts}; "
        f"FedAvg's is 1. Largest interactions, in points: {others}. On the gap between the losses: "
        f"{of_gap}. Quadratics with 8 local steps; a perceptron on 600 digits of 20 "
        f"clients, cohorts of two, {options['rounds']} rounds. {on_cifar100()}",
    )


def on_cifar100(folder: pathlib.Path = CIFAR100) -> str:
    """A sentence on the same effects in the table of ``experiments.fedswa.factorial``."""
    rows = reported_rows(folder, "factorial")
    if rows.empty:
        return "CIFAR-100 (`python -m experiments.fedswa.factorial`) has not run."
    facts = read_facts(folder, "factorial")
    levels = levels_of(facts)
    table = effects(rows, MEASURES[0], levels).set_index("effect")
    mains = table.loc[table["kind"] == "main", :]
    ran = "".join(
        f", {factor} {' or '.join(f'{level:g}' for level in levels[f'{factor}s'])}"
        for factor in FACTORS
    )
    shown = pd.concat([mains, largest(table.reset_index(), 1).set_index("effect")])
    effects_of = "; ".join(_named(name, row) for name, row in shown.iterrows())
    ahead = Estimate.of(100 * (best_setting(rows, SCAFFOLD) - best_setting(rows, OWN)))
    return (
        f"CIFAR-100, narrow LeNet-5 at one rate{ran}, {facts['options']['seeds']} seeds, points "
        f"of accuracy ([table](../../experiments/results/fedswa/{folder.name}/factorial.md)): "
        f"{effects_of}; SCAFFOLD for own controls {ahead:.1f}."
    )


STUDY = Study(
    "fedmoswa",
    "Where FedMoSWA's gain comes from",
    "Which part of FedMoSWA gains: its controls, their momentum gamma, the server step alpha, or "
    "the decay to rho? And where does it settle if only s of M clients report per round?",
    build,
    page,
)
