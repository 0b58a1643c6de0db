"""Tables, claims and heat maps of the robust rules on MNIST."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import fedjax_sim as fs
from experiments.harness import Claim, Report, counted
from experiments.robust.problem import CLIENTS, LR, MIXED, RADIUS, RULES, SPLITS

METRIC = "accuracy"
KEPT = 0.9  # share of the accuracy without attackers that a rule should keep
FAILED = 0.7


def final_accuracies(history: pd.DataFrame) -> pd.DataFrame:
    """Returns the test accuracy of every run after the last round; 0 if the run diverged."""
    last = history["round"] == history["round"].max()
    rows = history.loc[last & (history["metric"] == METRIC), :]
    rows = rows.assign(accuracy=rows["value"].fillna(0.0))
    columns = ["attack", "attackers", "split", "rule", "seed", "accuracy"]
    return rows.loc[:, columns].round({"accuracy": 4})


def worst(table: pd.DataFrame) -> pd.DataFrame:
    """Returns the mean accuracy over seeds under the worst attack, a row per rule."""
    means = table.groupby(["rule", "split", "attackers", "attack"], as_index=False)["accuracy"]
    least = pd.DataFrame(means.mean()).pivot_table(
        index="rule", columns=["split", "attackers"], values="accuracy", aggfunc="min"
    )
    return least.reindex([rule for rule in RULES if rule in least.index])


def column(split: str, attackers: int) -> str:
    """Name of a column: the clients' data and the share of attackers."""
    return f"{split}, {100 * attackers // CLIENTS} %"


def baselines(table: pd.DataFrame) -> dict[str, float]:
    """Returns the mean accuracy of the mean without attackers, by split."""
    clean = table.loc[(table["attack"] == "none") & (table["rule"] == "mean"), :]
    return {
        str(split): float(np.mean(np.asarray(part["accuracy"])))
        for split, part in clean.groupby("split")
    }


def claims(table: pd.DataFrame) -> list[Claim]:
    """Returns the published picture, for the largest share of attackers; needs all rules."""
    least, clean = worst(table), baselines(table)
    if set(clean) != set(SPLITS) or len(least) < len(RULES):
        return []
    count = int(np.max(np.asarray(table["attackers"])))
    iid, labels = (
        {
            rule: round(100 * float(value) / clean[split], 1)
            for rule, value in zip(RULES, np.asarray(least[(split, count)]), strict=True)
        }
        for split in SPLITS
    )
    robust = [*MIXED, "Bulyan"]
    mixed = {rule: labels[f"NNM, {rule}"] for rule in MIXED}
    plain = {rule: labels[rule] for rule in mixed}
    setting, full, low = f"{counted(count, 'attacker')}", f"> {100 * KEPT:g}", f"< {100 * FAILED:g}"
    text = "% of the accuracy without attackers, under the worst attack"
    best = max(robust, key=iid.__getitem__)
    return [
        Claim(
            f"IID: the best rule without mixing keeps the accuracy ({text})",
            {best: iid[best]}, iid[best] > 100 * KEPT, setting, full,
        ),
        Claim(
            f"two labels: rules without mixing fail ({text})",
            {rule: labels[rule] for rule in robust},
            all(labels[rule] < 100 * FAILED for rule in robust), setting, low,
        ),
        Claim(
            f"two labels: mixing by nearest neighbours improves every rule ({text})",
            mixed, all(mixed[rule] > plain[rule] for rule in mixed), setting, "> without mixing",
        ),
        Claim(
            f"two labels: the best rule with mixing keeps the accuracy ({text})",
            {rule: value for rule, value in mixed.items() if value == max(mixed.values())},
            max(mixed.values()) > 100 * KEPT, setting, full,
        ),
    ]  # fmt: skip


def build(
    tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any]
) -> tuple[Report, dict[str, Figure]]:
    """Text, and a heat map per attack."""
    table, options = tables[""], facts["options"]
    clean = baselines(table)
    report = Report(
        f"Robust rules on MNIST, {counted(options['seeds'], 'seed')}",
        f"Softmax regression, {CLIENTS} clients, all of them in each of {options['rounds']} rounds "
        f"with one minibatch of 32, rate {LR}, worker momentum 0.9, {options['examples']} training "
        f"examples. Bucketing has buckets of 2, centred clipping the radius {RADIUS:g}; every rule "
        "is made for the number of attackers. ALIE has z = 1.5, other attacks their default "
        "strengths. Test accuracy in % after the last round, mean over seeds.",
    )
    if clean:
        text = ", ".join(f"{split} {100 * value:.1f}" for split, value in clean.items())
        report.add(f"The mean without attackers: {text}.")
    least = worst(table)
    shown = (100 * least).round(1)
    shown.columns = [column(*pair) for pair in least.columns]
    report.section("Accuracy under the worst attack", shown.rename_axis("rule").reset_index())
    report.claims(claims(table))
    return report, {f"mnist-{name}": figure for name, figure in figures(table).items()}


def figures(table: pd.DataFrame) -> dict[str, Figure]:
    """Returns a heat map per attack: a rule per row, heterogeneity and attackers per column."""
    scores = table.assign(
        score=100 * table["accuracy"],
        clients=[
            f"{split}, {100 * count // CLIENTS:2d} %"  # aligned, so that 8 % precedes 20 %
            for split, count in zip(table["split"], table["attackers"], strict=True)
        ],
    )
    maps = {}
    for attack, part in scores.groupby("attack", sort=False):
        part = part.loc[:, ["clients", "rule", "seed", "score"]]
        label = f"accuracy in %, {attack}"
        name = str(attack).replace(" ", "-").lower()
        maps[name] = fs.plotting.heat_map(part, "clients", "rule", mode="max", label=label)
    return maps
