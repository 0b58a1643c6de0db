"""Further parts of the MNIST experiment: open choices, other methods, the clients' variance."""

from typing import Any

import pandas as pd

from experiments.favano import methods
from experiments.favano.methods import Method
from experiments.favano.mnist_runs import SERVER_LRS, Options, Runs
from experiments.favano.outcomes import accuracy, curves, final, tuned
from experiments.harness import Report
from fedjax_sim.algorithms.staleness import constant, hinge, polynomial


def facts(options: Options) -> dict[str, Any]:
    """Values for the JSON file."""
    return {"horizon": options.horizon, "seeds": options.num_seeds}


def sensitivity(options: Options) -> None:
    """Each choice that the paper leaves open, changed alone."""
    runs, seeds = Runs(options), range(options.num_seeds)
    cases: list[tuple[str, Method, dict]] = [("default", methods.favano(), {})]
    cases += [(f"law of E: {law}", methods.favano(), {"law": law}) for law in methods.LAWS[1:]]
    cases += [("alpha: deterministic", methods.favano("deterministic"), {})]
    cases += [("split: pairs", methods.favano(), {"split": "pairs"})]
    cases += [("QuAFL: rate (s + 1) / s", methods.quafl(rate_factor=True), {})]
    cases += [("QuAFL: default", methods.quafl(), {})]
    for rate in SERVER_LRS:
        cases.append((f"FedBuff: server rate {rate:g}", methods.fedbuff(rate), {}))
    for rate in (0.02, 0.1, 1.0):
        name = f"FedBuff: server rate {rate:g}, lr unscaled"
        cases.append((name, methods.fedbuff(rate, scaled=False), {}))
    rows = []
    for setting in options.skewed_settings:
        for name, method, changes in cases:
            mean, deviation = accuracy(runs(method, setting, seeds, **changes))
            rows.append({"setting": setting, "choice": name, "accuracy": mean, "+-": deviation})
            print(rows[-1], flush=True)
    table = pd.DataFrame(rows)
    text = Report("Effects of the open choices", f"{options.scale}; test accuracy, percent.", table)
    text.save(options.folder, "sensitivity", table, **facts(options))


def others(options: Options) -> None:
    """Methods that the paper discusses and does not run, on the same clock."""
    runs, seeds = Runs(options), range(options.num_seeds)
    compared = [
        methods.fedasync("constant", constant),
        methods.fedasync("polynomial 1/2", polynomial(0.5)),
        methods.fedasync("hinge 4, 10", hinge(4, 10)),
        *(methods.async_sgd(f, adaptive=a) for f in (0.01, 0.1, 1.0) for a in (False, True)),
    ]
    rows = []
    for setting in options.settings:
        for method in compared:
            frame = runs(method, setting, seeds)
            mean, deviation = accuracy(frame)
            row = {"setting": setting, "method": method.label, "accuracy": mean, "+-": deviation}
            rows.append(row | {"server updates": final(frame)["round"].mean()})
            print(rows[-1], flush=True)
    table = pd.DataFrame(rows)
    explained = (
        f"{options.scale}; test accuracy, percent. FedAsync mixes 0.6 in, adaptive rates fall with "
        "the staleness beyond the number of clients."
    )
    text = Report("FedAsync and asynchronous SGD on the same clock", explained, table)
    text.save(options.folder, "others", table, **facts(options))


def variance(options: Options) -> None:
    """``sum_i ||w_i - w||^2``, with the clients' models as they are and as they were received."""
    runs, seeds = Runs(options), range(options.num_seeds)
    histories = []
    for setting in options.skewed_settings:
        buffered, _ = tuned(runs, setting, SERVER_LRS)
        compared = {
            "QuAFL": methods.quafl(), "FedBuff": buffered, "FAVANO": methods.favano()
        }  # fmt: skip
        for name, method in compared.items():
            exact = runs(method, setting, seeds, variance="exact")
            lazy = runs(method, setting, seeds, variance="lazy")
            histories.append(exact.assign(algorithm=name, variance_lazy=lazy["variance"]))
    history = pd.concat(histories, ignore_index=True)
    last = history[history["time"] >= 0.8 * options.horizon]
    measured = ["variance", "variance_lazy", "accuracy"]
    means = pd.DataFrame(last.groupby(["setting", "algorithm"])[measured].mean())
    explained = (
        f"{options.scale}; means over the last fifth of the time. `variance`: clients' models "
        "after their steps so far; `variance_lazy`: as received."
    )
    text = Report(
        "Distance of the clients' models from the server's", explained, means.reset_index()
    )
    figures = curves(history, options.skewed_settings, "variance", "time")
    text.save(options.folder, "variance", history, figures, **facts(options))
