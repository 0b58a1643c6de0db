"""FedAvg under clients' Lojasiewicz inequalities: gaps, bounds, and how far apart they are.

    python -m experiments.lojasiewicz
    python -m experiments.lojasiewicz --repetitions 50

Labbi et al., "On Global Convergence Rates for Federated Policy Gradient under Heterogeneous
Environment", arXiv 2505.23459 (version 1), Appendix F.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Iterable
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import tyro

from experiments.lojasiewicz_cases import REWARDS, Case, cases, history, measure, powers, tilted
from experiments.output import write
from fedjax_sim.analysis.tables import markdown
from fedjax_sim.problems.lojasiewicz.families import logistic, power
from fedjax_sim.problems.lojasiewicz.family import gaussian
from fedjax_sim.problems.lojasiewicz.policies import softmax_bandit, two_armed_bandit

# Computed by a program of its own, to the digits given: the gap, and the corrected closed form.
REFERENCES = {
    "tilted quadratic": {
        "round": [10, 50, 200],
        "gap": [1.8630, 0.12718, 0.08327],
        "closed": [7.004, 5.002, 3.311],
    },
    "softmax bandit": {"round": [100, 1000, 4000], "gap": [0.2993, 0.0480, 0.0088]},
    "power 4": {
        "round": [1, 10, 100, 1000],
        "gap": [0.6104, 0.05588, 1.0176e-3, 1.1222e-5],
        "closed": [0.9298, 0.1780, 4.06e-3, 4.50e-5],
    },
}


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of this experiment."""

    repetitions: int = 200
    seed: int = 0
    output: pathlib.Path = pathlib.Path("experiments/results")

    def __post_init__(self) -> None:
        if self.repetitions < 2:
            raise ValueError(f"repetitions is {self.repetitions}; expected at least 2")


def sweep_cases(repetitions: int) -> dict[str, list[Case]]:
    """The tilted quadratic: clients without tilt, tilts, and local steps at a constant lr K."""

    def case(name: str, std: float, K: int, rounds: int, **options: Any) -> Case:
        family = functools.partial(tilted, **options)
        return Case(name, family, 3.0, std, K, rounds, repetitions=repetitions)

    return {
        "M": [case(f"M = {M}", 2.0, 10, 400, tilt=0.0, num_clients=M) for M in (2, 8, 32)],
        "zeta": [case(f"zeta = {d}", 0.5, 10, 400, tilt=d) for d in (0.0, 0.2, 0.8, 1.6)],
        "K": [case(f"K = {K}", 2.0, K, 400) for K in (2, 5, 10, 30)],
    }


def exact_cases() -> list[Case]:
    """Exact gradients of equal clients, one local step: the rates in R alone."""
    return [
        Case("power 2", lambda _: power(2.0, 1.5, 1), np.ones(1), 0.0, 1, 40),
        *(
            Case(f"power {p:g}", functools.partial(powers, degree=p), np.ones(1), 0.0, 1, 4000)
            for p in (3.0, 4.0, 8.0)
        ),
        Case("logistic", lambda x: logistic(np.ones(1), float(np.min(x))), 0.0, 0.0, 1, 4000),
        Case(
            "two-armed bandit",
            lambda x: two_armed_bandit(np.ones(1), float(np.min(x))),
            0.0,
            0.0,
            1,
            4000,
        ),
    ]


def reference_cases(repetitions: int) -> list[Case]:
    """Of :data:`REFERENCES`."""
    bandit = functools.partial(softmax_bandit, REWARDS)
    start = np.full(1, 1.5)
    return [
        Case("tilted quadratic", tilted, 3.0, 0.5, 10, 200, 1.0, gaussian, repetitions),
        Case("softmax bandit", bandit, np.zeros(3), 0.0, 5, 4000),
        Case("power 4", functools.partial(powers, degree=4.0), start, 0.0, 1, 1000),
    ]


def histories(found: Iterable[Case], seed: int) -> list[pd.DataFrame]:
    """Of every case, all rounds."""
    return [history(case, measure(case, seed)) for case in found]


def looseness(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """A row per case: the final gap and bounds, and the largest ratios over all later rounds."""
    rows = []
    for table in tables:
        last, later = table.iloc[-1], table.iloc[1:]
        lowest = later["gap"] - 3 * later["standard error"]
        rows.append(
            last[["case", "alpha", "M", "K", "zeta", "gap", "standard error", "floor"]].to_dict()
            | {name: last[name] for name in ("recursion", "closed")}
            | {f"{name} / gap": last[name] / last["gap"] for name in ("recursion", "closed")}
            | {
                f"max gap / {name}": (later["gap"] / later[name]).max()
                for name in ("recursion", "closed")
            }
            | {"max drift / bound": (table["drift"] / table["drift bound"]).max()}
            | {
                "violated": bool(
                    (lowest > later["recursion"]).any()
                    or (lowest > later["closed"]).any()
                    or (table["drift"] > table["drift bound"]).any()
                )
            }
        )
    return pd.DataFrame(rows)


def rates(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Slopes in log-log over the last factor of 4 in R; for alpha = 1 the factor per round."""
    rows = []
    for table in tables:
        alpha, rounds = table["alpha"].iloc[0], table["round"].iloc[-1]
        early = table.iloc[rounds // 4]
        row: dict[str, Any] = {"case": table["case"].iloc[0], "alpha": alpha, "R": rounds}
        row["measure"] = "factor per round" if alpha == 1 else "slope"
        row["expected"] = np.nan if alpha == 1 else -1 / (alpha - 1)
        for name in ("gap", "recursion", "closed"):
            change = np.log(table[name].iloc[-1] / early[name])
            row[name] = (
                np.exp(change / (rounds - rounds // 4)) if alpha == 1 else change / np.log(4)
            )
        rows.append(row)
    return pd.DataFrame(rows)


def references(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """The reference numbers beside those found here."""
    rows = []
    for table in tables:
        name = table["case"].iloc[0]
        known = REFERENCES[name]
        for i, number in enumerate(known["round"]):
            here = table.iloc[number]
            row = {"case": name, "round": number, "gap, reference": known["gap"][i]}
            row |= {"gap": here["gap"], "standard error": here["standard error"]}
            row |= {"closed, reference": known.get("closed", [np.nan] * 4)[i]}
            rows.append(row | {"closed": here["closed"], "recursion": here["recursion"]})
    return pd.DataFrame(rows)


def thinned(table: pd.DataFrame, points: int = 30) -> pd.DataFrame:
    """About that many rounds, evenly on a logarithmic scale."""
    last = table["round"].iloc[-1]
    return table.iloc[np.unique(np.geomspace(1, last + 1, points).astype(int) - 1)]


def draw(axis: Any, table: pd.DataFrame, color: str, label: str) -> None:
    """One case: mean and quantiles of the gap, and the bounds."""
    rounds = table["round"] + (table["alpha"].iloc[0] > 1)  # round 0 on a logarithmic axis
    axis.fill_between(rounds, table["5 %"].clip(lower=1e-12), table["95 %"], color=color, alpha=0.2)
    axis.plot(rounds, table["gap"], color=color, label=label)
    axis.plot(rounds, table["recursion"], color=color, ls="--")
    axis.plot(rounds, table["closed"], color=color, ls=":")
    if table["floor"].iloc[0] > 0:
        axis.axhline(table["floor"].iloc[0], color="0.6", lw=0.8)
    axis.set(yscale="log", xscale="linear" if table["alpha"].iloc[0] == 1 else "log")


def families_figure(pairs: list[tuple[pd.DataFrame, pd.DataFrame]]) -> Any:
    """A panel a family, one local step and several."""
    drawn, axes = plt.subplots(3, 3, figsize=(13, 10), layout="constrained")
    for axis, pair in zip(axes.flat, pairs, strict=False):
        for color, table in zip(("C0", "C1"), pair, strict=True):
            draw(axis, table, color, f"K = {table['K'].iloc[0]}")
        first = pair[0].iloc[0].to_dict()
        xlabel = "round" if first["alpha"] == 1 else "round + 1"
        axis.set(title="{case}, alpha = {alpha:g}".format(**first), xlabel=xlabel)
        axis.legend(frameon=False, fontsize=8)
    for axis in axes[:, 0]:
        axis.set(ylabel="F - F*")
    drawn.suptitle("mean, 5 to 95 %; recursion bound dashed, closed form dotted, floor grey")
    return drawn


def sweeps_figure(
    sweeps: dict[str, list[pd.DataFrame]], exact: list[pd.DataFrame], drifting: list[pd.DataFrame]
) -> Any:
    """The sweeps, Lemma F.1, and the rates without noise."""
    drawn, axes = plt.subplots(2, 3, figsize=(13, 7.5), layout="constrained")
    for axis, (name, tables) in zip(axes.flat, sweeps.items(), strict=False):
        for i, table in enumerate(tables):
            draw(axis, table, f"C{i}", table["case"].iloc[0])
        axis.set(title=f"tilted quadratic over {name}", xlabel="round", ylabel="F - F*")
        axis.legend(frameon=False, fontsize=8)
    for i, table in enumerate(drifting):
        axes[1, 0].semilogy(table["round"], table["drift"], f"C{i}", label=table["case"].iloc[0])
        axes[1, 0].semilogy(table["round"], table["drift bound"], f"C{i}", ls="--")
    axes[1, 0].set(title="Lemma F.1: drift and its bound (dashed)", xlabel="round")
    axes[1, 0].legend(frameon=False, fontsize=8)
    for i, table in enumerate(exact):
        label = f"{table['case'].iloc[0]}, alpha = {table['alpha'].iloc[0]:.3g}"
        axes[1, 1].loglog(table["round"] + 1, table["gap"], f"C{i}", label=label)
        axes[1, 1].loglog(table["round"] + 1, table["recursion"], f"C{i}", ls="--")
    axes[1, 1].set(title="exact gradients, K = 1", xlabel="round + 1", ylim=(1e-14, 3))
    axes[1, 2].axis("off")
    axes[1, 2].legend(*axes[1, 1].get_legend_handles_labels(), frameon=False, loc="center left")
    return drawn


def main(options: Options) -> None:
    """Runs, writes and draws."""
    run = functools.partial(histories, seed=options.seed)
    single, several = (run(cases(K, options.repetitions)) for K in (1, 10))
    sweeps = {name: run(found) for name, found in sweep_cases(options.repetitions).items()}
    exact, checks = run(exact_cases()), run(reference_cases(options.repetitions))
    swept = [table for tables in sweeps.values() for table in tables]
    text = (
        "# FedAvg under clients' Lojasiewicz inequalities\n\n"
        f"{options.repetitions} repetitions, noise of fixed norm unless said; rate 1 / (2 L) for "
        "K = 1, else 1 / (18 L K).  Gaps are F - F*, F* the mean of the clients' infima; none is "
        "below the floor inf F - F*.  `recursion` iterates the inequality of a "
        "round, `closed` is Theorem F.2, Lemma F.3 or Theorem F.4, corrected.  Ratios are over all "
        "rounds but the first; `violated` means by more than 3 standard errors.  `trajectory`: mu "
        "and zeta hold at the models visited.\n\n"
        f"## Families\n\n{markdown(looseness([*single, *several]))}\n\n"
        f"## Sweeps of the tilted quadratic\n\n{markdown(looseness(swept))}\n\n"
        f"## Rates, exact gradients\n\n{markdown(rates(exact))}\n\n"
        f"## Reference runs\n\nNormal noise in the first.\n\n{markdown(references(checks))}"
    )
    print(text, flush=True)
    folder = options.output / "lojasiewicz"
    groups = {"families": [*single, *several], "sweeps": swept, "exact": exact, "checks": checks}
    kept = [thinned(t).assign(group=name) for name, tables in groups.items() for t in tables]
    facts = {"options": dataclasses.asdict(options)}
    write(folder, "lojasiewicz", pd.concat(kept, ignore_index=True), text, **facts)
    for name, drawn in (
        ("lojasiewicz", families_figure(list(zip(single, several, strict=True)))),
        ("lojasiewicz_sweeps", sweeps_figure(sweeps, exact, several[:4])),
    ):
        drawn.savefig(folder / f"{name}.png", dpi=90)
        plt.close(drawn)


if __name__ == "__main__":
    main(tyro.cli(Options))
