"""The paper's statements about constrained handwriting models (section 4.5.5)."""

from experiments.fco.claims import (
    Statement,
    above,
    above_at_equal_rates,
    coincide,
    scatter_text,
)
from experiments.fco.handwriting import TASKS
from experiments.fco.methods import METHODS
from experiments.fco.selection import Selected

LOSS, ACCURACIES = "train/loss", ("train/accuracy", "test/accuracy")
METRICS = (LOSS, *ACCURACIES)
# Not the paper's, which shows curves:
NEARLY, CLEARLY = 0.02, 1.5  # curves that coincide; a loss that is far above another


def _over_rates(selected: Selected) -> str:
    """FedDualAvg-OSP's loss over that of the others at all client rates."""
    dual, osp = "FedDualAvg", "FedDualAvg-OSP"
    server_lr = selected.rates[dual][1]
    parts = []
    for lr in sorted(set(selected.score["lr"])):
        scores = selected.at_rates((lr, server_lr))
        if scores.keys() >= {dual, osp}:
            parts.append(f"{lr:g}: {scores[osp] / scores[dual]:.3g}")
    best = selected.rates[osp]
    return (
        f"its loss over {dual}'s at the server rate {server_lr:g} grows with the client rate "
        f"({', '.join(parts)}), as the projection of a server state that is further outside the "
        f"ball changes it more; its own best rates are ({best[0]:g}, {best[1]:g})"
    )


def _statements() -> tuple[Statement, ...]:
    every = tuple(METHODS)
    dual, osp, mid, mid_osp = every
    found = []
    for metric, word, sign in zip(METRICS, ("least", *["highest"] * 2), (-1, 1, 1), strict=True):
        for name in TASKS:
            others = (osp, mid, mid_osp) if name == "4a" else (mid, mid_osp)
            text = f"{dual} has the {word} {metric.replace('/', ' ')}"
            text += "" if name == "4a" else f" but for {osp}"
            check, why = above(dual, others, metric, sign=sign), scatter_text(dual, others, metric)
            found.append(Statement((name,), (dual, *others), text, check, why=why))
    ours = f"training losses within {100 * NEARLY:g} %"
    near = coincide((mid, mid_osp), LOSS, NEARLY)
    text = f"{mid} and {mid_osp} nearly coincide"
    why = scatter_text(mid, (mid_osp,), LOSS)
    found.append(Statement(tuple(TASKS), (mid, mid_osp), text, near, ours, why))
    near, text = coincide((osp, mid, mid_osp), LOSS, NEARLY), f"{osp} is close to them, too"
    found.append(Statement(("4a",), (osp, mid, mid_osp), text, near, ours, _over_rates))
    others = (dual, mid, mid_osp)
    ours = f"training loss > {CLEARLY:g} x the others'"
    equal, best = f"at equal rates, the best of {dual}", "each method at its own best rates"
    for name, text in (("4b", "much worse"), ("4c", "off the plot")):
        for reading, check in (
            (equal, above_at_equal_rates(osp, others, CLEARLY)),
            (best, above(osp, others, LOSS, CLEARLY)),
        ):
            text_ = f"{osp} is {text}, {reading}"
            found.append(Statement((name,), every, text_, check, ours, _over_rates))
    for metric in ACCURACIES:
        text = f"{osp} has the highest {metric.replace('/', ' ')}"
        why = scatter_text(osp, others, metric)
        check = above_at_equal_rates(osp, others, metric=metric)
        statement = Statement(("4b",), every, f"{text}, {equal}", check, why=why, needs=metric)
        found.append(statement)
        check = above(osp, others, metric)
        found.append(Statement(("4b",), every, f"{text}, {best}", check, why=why))
    return tuple(found)


STATEMENTS = _statements()
