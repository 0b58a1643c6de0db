"""Further parts of the MNIST experiment: open choices, other methods, the clients' variance."""

import pandas as pd

from experiments.favano import methods, mnist_report
from experiments.favano.methods import Method
from experiments.favano.mnist_runs import SERVER_LRS, Options, Runs
from experiments.favano.outcomes import accuracy, final, tuned
from experiments.harness import save_report
from fedjax_sim.algorithms.staleness import constant, hinge, polynomial


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
    tables = {"": pd.DataFrame(rows)}
    save_report(options.folder, "sensitivity", tables, mnist_report.sensitivity, **options.facts)


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
    tables = {"": pd.DataFrame(rows)}
    save_report(options.folder, "others", tables, mnist_report.others, **options.facts)


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
    columns = [
        "setting", "algorithm", "seed", "time", "accuracy", "variance", "variance_lazy"
    ]  # fmt: skip
    tables = {"": pd.concat(histories).loc[:, columns]}
    save_report(options.folder, "variance", tables, mnist_report.variance, **options.facts)
