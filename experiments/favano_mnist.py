r"""FAVANO's Table 2: four methods on MNIST against the clock.

    python -m experiments.favano_mnist                      # the whole table, ten seeds
    python -m experiments.favano_mnist --part sensitivity   # what the paper leaves open
    python -m experiments.favano_mnist --part others        # FedAsync and asynchronous SGD
    python -m experiments.favano_mnist --part variance      # the clients' models and the server's

"FAVANO: Federated AVeraging with Asynchronous Nodes" (arXiv 2305.16099), Section 5 and Appendix C.

Where the paper is silent or two-minded: alpha is the stochastic one; FedBuff has the local rate
times Z / n (as the program it was run with) and a server rate tuned on a small grid, since 1, which
the text would give, collapses; steps between contacts follow from geometric durations; the non-IID
split deals shards.  ``--part sensitivity`` shows what each of these does.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import pandas as pd
import tyro
from jax import Array

import fedjax_sim as fs
from experiments import favano_common as common
from experiments import favano_methods as methods
from experiments.favano_common import Problem, Split
from experiments.favano_methods import Clock, Method
from experiments.output import write
from fedjax_sim import datasets, models, objectives, plotting
from fedjax_sim.algorithms.staleness import constant, hinge, polynomial
from fedjax_sim.analysis.tables import markdown
from fedjax_sim.evaluation import evaluator
from fedjax_sim.execution import devices
from fedjax_sim.types import Params

LR, BATCH_SIZE, HIDDEN = 0.5, 128, 32
HORIZON, EVAL_TIME = 5000.0, 100.0
SERVER_LRS = (0.03, 0.1, 0.3, 1.0)  # FedBuff's, tried on one seed each
# (split, fraction of slow clients) of each column, and the paper's accuracies: mean, deviation.
SETTINGS: dict[str, tuple[Split, float]] = {
    "IID, 2/3 fast": ("iid", 1 / 3),
    "non-IID, 2/3 fast": ("shards", 1 / 3),
    "non-IID, 1/9 fast": ("shards", 8 / 9),
}
PAPER = {
    "FedAvg": ((93.4, 0.3), (38.7, 7.7), (44.8, 6.9)),
    "QuAFL": ((92.3, 0.9), (40.7, 6.7), (45.5, 4.0)),
    "FedBuff": ((96.0, 0.1), (85.1, 3.2), (67.3, 5.5)),
    "FAVANO": ((95.1, 0.1), (88.9, 0.9), (87.3, 2.3)),
}


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of this experiment."""

    part: Literal["table", "sensitivity", "others", "variance"] = "table"
    seeds: int | None = None  # default: 10 for the table, 3 for the others
    horizon: float = HORIZON  # simulated time; the paper's is 5000
    settings: tuple[str, ...] = tuple(SETTINGS)
    data_dir: pathlib.Path | None = None  # default: the environment variable FEDJAX_SIM_DATA
    work: pathlib.Path = pathlib.Path("results/favano_mnist")  # finished runs, to continue from
    output: pathlib.Path = pathlib.Path("experiments/results/favano_mnist")

    def __post_init__(self) -> None:
        if unknown := set(self.settings) - set(SETTINGS):
            raise ValueError(f"settings has {sorted(unknown)}; expected some of {list(SETTINGS)}")
        if self.num_seeds < 1:
            raise ValueError(f"seeds is {self.seeds}; expected at least 1")

    @property
    def num_seeds(self) -> int:
        if self.seeds is None:
            return 10 if self.part == "table" else 3
        return self.seeds

    @property
    def scale(self) -> str:
        if self.horizon == HORIZON:
            return f"{HORIZON:g} time units, as in the paper"
        return f"{self.horizon:g} of the paper's {HORIZON:g} time units"


def problem(dataset: datasets.Dataset, split: Split, num_clients: int = 100) -> Problem:
    """The paper's network and rates on one of the splits."""
    model = models.mlp(dataset.train["x"].shape[1:], (HIDDEN,), dataset.num_classes)
    return Problem(
        examples={key: jnp.asarray(dataset.train[key]) for key in ("x", "y")},
        assignment=common.assignment(dataset.train["y"], split, num_clients),
        objective=objectives.cross_entropy(model.apply),
        batches=fs.stream(BATCH_SIZE, Clock().max_steps),
        init=lambda key: uniform_start(model, key),
        evaluate=evaluator(objectives.classification_metrics(model.apply), dataset.test),
        lr=LR,
    )


def uniform_start(model: models.Model, key: Array) -> Params:
    """PyTorch's initial values of linear layers: uniform within +-1 / sqrt(fan-in)."""
    layers = model.init(key)
    keys = jax.random.split(key, 2 * len(layers))
    start = {}
    for i, (name, layer) in enumerate(sorted(layers.items())):
        bound = layer["kernel"].shape[1] ** -0.5
        start[name] = {
            part: jax.random.uniform(
                keys[2 * i + j], layer[part].shape, minval=-bound, maxval=bound
            )
            for j, part in enumerate(("kernel", "bias"))
        }
    return start


class Runs:
    """The experiment's runs, kept on disk."""

    def __init__(self, options: Options):
        self.options = options
        self.dataset = datasets.load("mnist", data_dir=options.data_dir)

    def __call__(
        self,
        method: Method,
        setting: str,
        seeds: range,
        *,
        split: Split | None = None,
        variance: common.Variance = "none",
        **clock,
    ) -> pd.DataFrame:
        own, slow = SETTINGS[setting]
        split = split or own
        frame = common.run(
            problem(self.dataset, split), Clock(slow, self.options.horizon, **clock), method, seeds,
            eval_time=EVAL_TIME, variance=variance, work=self.options.work, facts={"split": split},
        )  # fmt: skip
        return frame.assign(setting=setting)


def final(frame: pd.DataFrame) -> pd.DataFrame:
    """The last row of every seed; a run that diverged has chance's accuracy."""
    return frame.sort_values("round").groupby("seed").tail(1)


def accuracy(frame: pd.DataFrame) -> tuple[float, float]:
    """Mean and standard deviation over the seeds, percent."""
    values = 100 * final(frame)["accuracy"].to_numpy(dtype=float)
    return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else float("nan")


def tuned(
    runs: Callable[..., pd.DataFrame], setting: str, server_lrs: Sequence[float] = SERVER_LRS
) -> tuple[Method, pd.DataFrame]:
    """FedBuff with the server rate that is best on one seed that the table does not use."""
    rows = []
    for server_lr in server_lrs:
        frame = runs(methods.fedbuff(server_lr), setting, range(100, 101))
        rows.append({"setting": setting, "server rate": server_lr, "accuracy": accuracy(frame)[0]})
    found = pd.DataFrame(rows)
    best = found.loc[found["accuracy"].idxmax(), "server rate"]
    return methods.fedbuff(float(best)), found  # pyright: ignore[reportArgumentType]


def table(options: Options) -> None:
    """Table 2, its curves, and FedBuff's tuning."""
    runs, seeds = Runs(options), range(options.num_seeds)
    rows, histories, tunings = [], [], []
    for setting in options.settings:
        column = list(SETTINGS).index(setting)
        buffered, tuning = tuned(runs, setting)
        tunings.append(tuning)
        collapse = methods.fedbuff(1.0, scaled=False)
        for name, method in [
            ("FedAvg", methods.fedavg()),
            ("QuAFL", methods.quafl()),
            ("FedBuff", buffered),
            ("FAVANO", methods.favano()),
            ("FAVANO, deterministic alpha", methods.favano("deterministic")),
            ("FedBuff as printed: rates 0.5 and 1", collapse),
        ]:
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
                row["note"] = method.label
            rows.append(row)
            print(pd.DataFrame(rows[-1:]).to_string(index=False, header=False), flush=True)
    result = pd.DataFrame(rows)
    text = "\n\n".join(
        [
            "# MNIST against the clock (Table 2 of FAVANO)",
            f"{options.scale}; {len(seeds)} seeds; 100 clients, 20 a contact, 20 steps at most, "
            f"buffer 10, batches of {BATCH_SIZE}, rate {LR:g}. Accuracy on test images, percent.",
            markdown(result),
            "## FedBuff's server rate, one seed of its own",
            markdown(
                pd.concat(tunings).pivot(index="server rate", columns="setting", values="accuracy")
            ),
            "## Claims",
            markdown(claims(result)),
        ]
    )
    history = pd.concat(histories, ignore_index=True)
    write(options.output, "table2", history, text, horizon=options.horizon, seeds=len(seeds))
    for setting in options.settings:
        for x in ("time", "local_steps"):
            draw(options.output, history, setting, "accuracy", x)


def claims(result: pd.DataFrame) -> pd.DataFrame:
    """What the paper concludes from its table, and what was found."""
    rows = []
    for setting in dict.fromkeys(result["setting"]):
        part = result[result["setting"] == setting]
        here = dict(zip(part["method"], part["accuracy"], strict=True))
        iid = SETTINGS[setting][0] == "iid"
        order = ["FedBuff", "FAVANO", "FedAvg", "QuAFL"] if iid else ["FAVANO", "FedBuff"]
        says = " > ".join(order) if iid else "FAVANO best, then FedBuff; FedAvg and QuAFL below 60"
        values = ", ".join(f"{name} {here[name]:.1f}" for name in PAPER)
        ranked = sorted(PAPER, key=lambda name: -here[name])
        low = iid or max(here["FedAvg"], here["QuAFL"]) < 60
        holds = ranked[: len(order)] == order and low
        rows.append(
            {"setting": setting, "claim": says, "found": values, "holds": "yes" if holds else "no"}
        )
    return pd.DataFrame(rows)


def draw(folder: pathlib.Path, history: pd.DataFrame, setting: str, metric: str, x: str) -> None:
    """One setting's curves."""
    part = history[history["setting"] == setting]
    melted = part.melt(
        ["algorithm", "seed", x], value_vars=[metric], var_name="metric", value_name="value"
    )
    figure = plotting.curves(melted.dropna(subset=["value"]), metric, x=x)
    slug = setting.replace(", ", "-").replace("/", "of").replace(" ", "-").lower()
    figure.savefig(folder / f"{slug}-{metric}-{x}.png", dpi=90)


def sensitivity(options: Options) -> None:
    """Each choice that the paper leaves open, changed alone."""
    runs, seeds = Runs(options), range(options.num_seeds)
    rows = []
    for setting in options.settings:
        if SETTINGS[setting][0] == "iid":
            continue
        cases: list[tuple[str, Method, dict]] = [("default", methods.favano(), {})]
        cases += [(f"law of E: {law}", methods.favano(), {"law": law}) for law in methods.LAWS[1:]]
        cases += [("alpha: deterministic", methods.favano("deterministic"), {})]
        cases += [("split: pairs", methods.favano(), {"split": "pairs"})]
        cases += [("QuAFL: rate (s + 1) / s", methods.quafl(rate_factor=True), {})]
        cases += [("QuAFL: default", methods.quafl(), {})]
        for server_lr in SERVER_LRS:
            cases.append((f"FedBuff: server rate {server_lr:g}", methods.fedbuff(server_lr), {}))
        cases += [
            (f"FedBuff: server rate {rate:g}, lr unscaled", methods.fedbuff(rate, scaled=False), {})
            for rate in (0.02, 0.1, 1.0)
        ]
        for name, method, changes in cases:
            mean, deviation = accuracy(runs(method, setting, seeds, **changes))
            rows.append({"setting": setting, "choice": name, "accuracy": mean, "+-": deviation})
            print(rows[-1], flush=True)
    result = pd.DataFrame(rows)
    text = "\n\n".join(
        [
            "# What the open choices do",
            f"{options.scale}; {len(seeds)} seeds; test accuracy, percent.",
            markdown(result),
        ]
    )
    write(options.output, "sensitivity", result, text, horizon=options.horizon, seeds=len(seeds))


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
            updates = final(frame)["round"].mean()
            rows.append(
                {"setting": setting, "method": method.label, "accuracy": mean, "+-": deviation,
                 "server updates": updates}
            )  # fmt: skip
            print(rows[-1], flush=True)
    result = pd.DataFrame(rows)
    text = "\n\n".join(
        [
            "# FedAsync and asynchronous SGD on the same clock",
            f"{options.scale}; {len(seeds)} seeds; test accuracy, percent. FedAsync mixes 0.6 in, "
            "adaptive rates fall with the staleness beyond the number of clients.",
            markdown(result),
        ]
    )
    write(options.output, "others", result, text, horizon=options.horizon, seeds=len(seeds))


def variance(options: Options) -> None:
    """``sum_i ||w_i - w||^2``, with the clients' models as they are and as they were received."""
    runs, seeds = Runs(options), range(options.num_seeds)
    histories = []
    for setting in options.settings:
        if SETTINGS[setting][0] == "iid":
            continue
        buffered, _ = tuned(runs, setting)
        for name, method in [
            ("QuAFL", methods.quafl()), ("FedBuff", buffered), ("FAVANO", methods.favano()),
        ]:  # fmt: skip
            exact = runs(method, setting, seeds, variance="exact")
            lazy = runs(method, setting, seeds, variance="lazy")
            frame = exact.assign(algorithm=name, variance_lazy=lazy["variance"])
            histories.append(frame)
    history = pd.concat(histories, ignore_index=True)
    last = history[history["time"] >= 0.8 * options.horizon]
    measured = ["variance", "variance_lazy", "accuracy"]
    means = pd.DataFrame(last.groupby(["setting", "algorithm"])[measured].mean())
    text = "\n\n".join(
        [
            "# How far the clients' models are from the server's",
            f"{options.scale}; {len(seeds)} seeds; means over the last fifth of the time. "
            "`variance`: clients' models after their steps so far; `variance_lazy`: as received.",
            markdown(means.reset_index()),
        ]
    )
    write(options.output, "variance", history, text, horizon=options.horizon, seeds=len(seeds))
    for setting in dict.fromkeys(history["setting"]):
        draw(options.output, history, str(setting), "variance", "time")


def main(options: Options) -> None:
    """Runs one part."""
    devices.use_all_cores()
    parts = {"table": table, "sensitivity": sensitivity, "others": others, "variance": variance}
    parts[options.part](options)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
