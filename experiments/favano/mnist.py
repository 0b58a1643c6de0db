r"""FAVANO's Table 2: four methods on MNIST against the clock.

    python -m experiments.favano.mnist                      # the whole table, ten seeds
    python -m experiments.favano.mnist --part sensitivity   # choices that the paper leaves open
    python -m experiments.favano.mnist --part iid           # what the IID column depends on
    python -m experiments.favano.mnist --part factorial     # all combinations of these choices
    python -m experiments.favano.mnist --part others        # FedAsync and asynchronous SGD
    python -m experiments.favano.mnist --part variance      # distance of the clients' models

"FAVANO: Federated AVeraging with Asynchronous Nodes" (arXiv 2305.16099), Section 5 and Appendix C.

Where the paper is silent or contradicts itself: alpha is the stochastic one; FedBuff has the local
rate times Z / n (as the program it was run with) and a server rate tuned on a small grid, since 1,
which the text would give, collapses; steps between contacts follow from geometric durations; the
non-IID split deals shards.  ``--part sensitivity`` shows the effect of each of these choices,
``--part factorial`` which combination is nearest to the whole table.
"""

import pandas as pd
import tyro

from experiments.favano import methods, mnist_report
from experiments.favano.factorial import factorial
from experiments.favano.mnist_iid import iid
from experiments.favano.mnist_parts import others, sensitivity, variance
from experiments.favano.mnist_report import PAPER
from experiments.favano.mnist_runs import SERVER_LRS, SETTINGS, Options, Runs
from experiments.favano.outcomes import accuracy, final, tuned
from experiments.harness import save_report
from fedjax_sim.engine import devices


def table(options: Options) -> None:
    """Table 2, its curves, and FedBuff's server rates."""
    runs, seeds = Runs(options), range(options.num_seeds)
    rows, histories, tunings = [], [], []
    for setting in options.settings:
        column = list(SETTINGS).index(setting)
        buffered, tuning = tuned(runs, setting, SERVER_LRS)
        tunings.append(tuning)
        compared = {
            "FedAvg": methods.fedavg(),
            "QuAFL": methods.quafl(),
            "FedBuff": buffered,
            "FAVANO": methods.favano(),
            "FAVANO, deterministic alpha": methods.favano("deterministic"),
            "FedBuff as printed: rates 0.5 and 1": methods.fedbuff(1.0, scaled=False),
        }
        for name, method in compared.items():
            count = seeds if name in PAPER else range(min(3, len(seeds)))
            frame = runs(method, setting, count).assign(algorithm=name)
            mean, deviation = accuracy(frame)
            last = final(frame)
            row = {
                "setting": setting, "method": name, "accuracy": mean, "+-": deviation,
                "seeds": len(count), "server updates": last["round"].mean(),
                "local steps": last["local_steps"].mean(), "reports": last["reports"].mean(),
            }  # fmt: skip
            if name in PAPER:
                row["paper"], row["paper +-"] = PAPER[name][column]
                row["difference"] = mean - row["paper"]
                histories.append(frame)
            if name == "FedBuff":
                best = tuning.loc[tuning["best"] != "", "best"].item()
                row["note"] = method.label + (f" ({best})" if best != "best" else "")
            rows.append(row)
            print(pd.DataFrame(rows[-1:]).to_string(index=False, header=False), flush=True)
    tables = {
        "": mnist_report.curves(pd.concat(histories)), "methods": pd.DataFrame(rows),
        "rates": pd.concat(tunings),
    }  # fmt: skip
    save_report(options.folder, "table2", tables, mnist_report.table2, **options.facts)


def main(options: Options) -> None:
    """Runs one part."""
    devices.use_all_cores()
    parts = {
        "table": table, "sensitivity": sensitivity, "iid": iid, "factorial": factorial,
        "others": others, "variance": variance,
    }  # fmt: skip
    parts[options.part](options)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
