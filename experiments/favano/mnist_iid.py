"""FAVANO's Table 2, IID: accuracies if one choice that the paper leaves open is changed."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import fedjax_sim as fs
from experiments.favano import methods, mnist_report
from experiments.favano.methods import Method
from experiments.favano.mnist_runs import SETTINGS, Changes, Options, Runs
from experiments.favano.outcomes import accuracy
from experiments.harness import save_report

DEFAULTS = {
    "FedAvg": methods.fedavg(), "QuAFL": methods.quafl(), "FedBuff": methods.fedbuff(0.1),
    "FAVANO": methods.favano(),
}  # fmt: skip
# Changes of the problem, for all methods.
PROBLEMS = {
    "default": Changes(),
    "standardised pixels": Changes(standardised=True),
    "LeCun-normal initial values": Changes(lecun_init=True),
    "batches of 32": Changes(batch_size=32),
    "batches with replacement": Changes(with_replacement=True),
    "500 train images per client": Changes(train_examples=50_000),
}


class Case(NamedTuple):
    """A method with one choice changed."""

    name: str  # of the method in the paper's table
    choice: str
    method: Method
    options: Mapping[str, Any] = {}  # of the runs


def of_the_printed_law(clock: methods.Clock, success: np.ndarray) -> np.ndarray:
    """Means of the law that Appendix C.2 prints, while step times decide what clients do."""
    return fs.theory.step_counts.geometric(success, clock.max_steps).mean


PRINTED = methods.favano_divided("alpha of the printed law", of_the_printed_law)
UNDIVIDED = methods.favano_divided("alpha = 1", lambda clock, success: np.ones(len(success)))
ALPHAS = [
    Case("FAVANO", "alpha: deterministic", methods.favano("deterministic")),
    Case("FAVANO", "alpha: means of the printed law", PRINTED),
    Case("FAVANO", "alpha: 1, all local steps count", UNDIVIDED),
]


def cases() -> list[Case]:
    """All cases of the IID column, a method's default first."""
    fedbuff = {f"server rate {rate:g}": methods.fedbuff(rate) for rate in (0.03, 0.2, 0.3, 0.5, 1)}
    for rate in (0.02, 0.05):
        fedbuff[f"server rate {rate:g}, lr unscaled"] = methods.fedbuff(rate, scaled=False)
    for rate in (0.5, 1):
        fedbuff[f"server rate {rate:g}, warm-up of 100 updates"] = methods.fedbuff(
            rate, warm_up=100
        )
    options: dict[str, dict[str, Any]] = {
        "law of E: literal": {"law": "literal"},
        "client rate 1": {"changes": Changes(lr=1.0)},
        "client rate 2": {"changes": Changes(lr=2.0)},
        "a contact every 5 units of time": {"interaction": 1.0},
    }
    return [
        *(
            Case(name, choice, method, {"changes": changes})
            for name, method in DEFAULTS.items()
            for choice, changes in PROBLEMS.items()
        ),
        Case("QuAFL", "rate (s + 1) / s", methods.quafl(rate_factor=True)),
        *(Case("FedBuff", choice, method) for choice, method in fedbuff.items()),
        *ALPHAS,
        *(Case("FAVANO", choice, methods.favano(), given) for choice, given in options.items()),
    ]


def iid(options: Options) -> None:
    """One choice at a time in the IID column, and alpha in the others."""
    runs, seeds, rows = Runs(options), range(options.num_seeds), []
    first, *others = options.settings
    todo = [(first, case) for case in cases()]
    default = Case("FAVANO", "default", DEFAULTS["FAVANO"])
    todo += [(setting, case) for setting in others for case in (default, *ALPHAS)]
    usual: dict[tuple[str, str], float] = {}
    for setting, case in todo:
        mean, _ = accuracy(runs(case.method, setting, seeds, **case.options))
        base = usual.setdefault((setting, case.name), mean)
        printed = mnist_report.PAPER[case.name][list(SETTINGS).index(setting)][0]
        rows.append(
            {
                "setting": setting, "method": case.name, "choice": case.choice, "accuracy": mean,
                "change": mean - base, "paper": printed, "difference": mean - printed,
            }
        )  # fmt: skip
        print(rows[-1], flush=True)
    tables = {"": pd.DataFrame(rows)}
    save_report(options.folder, "iid", tables, mnist_report.iid, **options.facts)
