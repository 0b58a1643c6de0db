"""Rows of FAVANO (arXiv 2305.16099)."""

from experiments.favano.mnist_report import CHOICES
from experiments.favano.mnist_report import PAPER as TABLE_2
from experiments.favano.mnist_runs import SETTINGS
from experiments.reproductions.page import Paper, Reading, Row, decided, judged
from experiments.reproductions.reading import Result

MNIST = "favano/mnist/table2"
NOTES = {
    "small": "a small network without batch normalisation for ResNet-20, whose run takes days on "
    "two cores; the command for the paper's network is `python -m experiments.favano.cifar "
    "--scale paper`.",
    "open": "the paper does not give FedBuff's server rate, the law of the numbers of steps, "
    "alpha's version and the split; `sensitivity` (non-IID) and `iid` show what each does.",
}
SMALL, OPEN = "**small**.", "**open**."


def _column(setting: str) -> Reading:
    def read(result: Result) -> str:
        rows = result.table("", "setting", "method", "accuracy", "+-").to_dict("records")
        return ", ".join(
            f"{row['method']} {row['accuracy']} ± {row['+-']}"
            for row in rows
            if row["setting"] == setting and row["method"] in TABLE_2
        )

    return read


def _methods(result: Result) -> str:
    settings = dict.fromkeys(result.table("", "setting", "method", "accuracy")["setting"])
    return "at the end: " + "; ".join(
        f"{setting}: {result.values('accuracy', where={'setting': setting})}"
        for setting in settings
    )


def _columns(result: Result) -> str:
    return "; ".join(f"{setting}: {_column(setting)(result)}" for setting in SETTINGS)


def _choices(result: Result) -> str:
    """The choices that bring each method to the paper's accuracy, named by the method."""
    near: dict[str, list[str]] = {}
    for row in result.table("of the paper", "method", "choice", "accuracy").to_dict("records"):
        near.setdefault(str(row["method"]), []).append(f"{row['choice']} {row['accuracy']}")
    return "; ".join(f"{method}: {', '.join(choices)}" for method, choices in near.items())


def _distances(result: Result) -> str:
    rows = result.table("", *CHOICES, "setting", "distance").to_dict("records")
    return "; ".join(
        f"{row['setting']} ({', '.join(str(row[name]) for name in CHOICES)}): {row['distance']}"
        for row in rows
    )


ROWS = (
    Row(
        "Table 1: units of time to an accuracy",
        "orders; constants dropped",
        "The orders with corrected units (docs/errata.md), constants taken as 1.",
        ("favano/theory/units",),
        lambda result: (
            "8/9 slow, eps = 0.001: " + result.values("eps = 0.001", where={"slow": "8/9"})
        ),
        "python -m experiments.favano.theory",
    ),
    *(
        Row(
            f"Table 2, MNIST, {setting}",
            ", ".join(f"{name} {row[place][0]} ± {row[place][1]}" for name, row in TABLE_2.items()),
            OPEN,
            (MNIST,),
            _column(setting),
            "python -m experiments.favano.mnist",
        )
        for place, setting in enumerate(SETTINGS)
    ),
    Row(
        "Table 2, MNIST: choices that the paper leaves open",
        "none printed",
        "Two seeds per choice.",
        ("favano/mnist/sensitivity",),
        lambda result: (
            "non-IID, 2/3 fast: "
            + result.values("accuracy", by="choice", where={"setting": "non-IID, 2/3 fast"})
        ),
        "python -m experiments.favano.mnist --part sensitivity --seeds 2",
    ),
    Row(
        "Table 2, MNIST, IID: one choice changed at a time",
        "none printed",
        "Named are the choices within half a point of the paper, another for each method, so they "
        "explain no table; one seed per choice. Longer steps "
        "bring FAVANO and FedBuff to the paper's numbers: alpha taken from the printed law of the "
        "numbers of steps, and the local rate without the factor Z / n. Standardised pixels alone "
        "bring both two points nearer. With one fast client of nine that alpha is far worse than "
        "the default.",
        ("favano/mnist/iid",),
        _choices,
        "python -m experiments.favano.mnist --part iid --seeds 1",
    ),
    Row(
        "Table 2, MNIST: one setting for all methods and columns",
        "the twelve numbers of the table",
        "Sum of absolute differences from the paper over the twelve cells, in points, with seeds "
        "that the selection has not seen. Settings: all combinations of pixels, alpha, the law of "
        "steps between contacts, and FedBuff's local rate with and without Z / n.",
        ("favano/mnist/factorial",),
        _distances,
        "python -m experiments.favano.mnist --part factorial",
    ),
    Row(
        "Figures 1, 2 and 5: accuracy against the clock, MNIST",
        "asynchronous methods beat FedAvg in time; QuAFL does not cope with non-IID data; with "
        "1/9 fast clients FedBuff is stuck and FAVANO accurate",
        OPEN,
        (MNIST,),
        _columns,
        "python -m experiments.favano.mnist",
    ),
    Row(
        "Figures 3a and 6: CIFAR-10, accuracy against the clock",
        "FedBuff and FAVANO best",
        "Non-IID, FedBuff and FAVANO lead by 8 points. IID, they are level with FedAvg (44.4 to "
        "44.8), each at its own rate; QuAFL is 2 points behind. FedBuff's best rate is a thirtieth "
        "(non-IID) or a sixteenth (IID) of FAVANO's, so its clients' models vary less, not more. "
        "In the non-IID case FedBuff's best rate is the least and QuAFL's the largest that was "
        "tried. " + SMALL,
        ("favano/cifar-tuned-cpu/methods", "favano/cifar-cpu/methods"),
        _methods,
        "python -m experiments.favano.cifar_tuned",
    ),
    Row(
        "Figures 3a and 6, 2,500 units of time at four times the paper's rate",
        "FedBuff and FAVANO best, FedBuff's variance larger",
        "A quarter of the paper's time with 20 clients: FAVANO moves by about one local step per "
        "contact, so its contacts are far too few here. " + SMALL,
        ("favano/cifar-cpu/methods",),
        _methods,
        "python -m experiments.favano.cifar --part methods",
    ),
    Row(
        "Figure 3b: Tiny ImageNet, ResNet-18, IID",
        "FAVANO best",
        "Cannot run here: Tiny ImageNet is not available, and ResNet-18 needs an accelerator.",
        command="python -m experiments.favano.tiny_imagenet --scale paper",
    ),
    Row("Figure 4", "an illustration of the algorithms", "No data in it."),
    Row(
        "Figure 7: clients per contact",
        "a larger s helps",
        SMALL,
        ("favano/cifar-cpu/selected",),
        lambda result: result.values("accuracy", by="s"),
        "python -m experiments.favano.cifar --part selected",
    ),
    Row(
        "Figure 7: FAVANO[QNN]",
        "close to full precision, in the figure below it",
        "Two seeds. " + SMALL,
        ("favano/cifar-cpu/quantized",),
        lambda result: result.values("accuracy"),
        "python -m experiments.favano.cifar --part quantized",
    ),
    Row(
        "Figures 2 and 5: variance of the clients' models, MNIST",
        "curves without numbers",
        "Mean over the last fifth of the time; depends on when in a visit models are compared.",
        ("favano/mnist/variance",),
        lambda result: "; ".join(
            f"{row['setting']}, {row['algorithm']}: {row['variance']}"
            for row in result.table("", "algorithm", "variance").to_dict("records")
        ),
        "python -m experiments.favano.mnist --part variance --seeds 2",
    ),
    Row(
        "FedAsync and asynchronous SGD on the same clock",
        "not in the paper's experiments",
        "Baselines of its related work.",
        ("favano/mnist/others",),
        lambda result: (
            "non-IID, 2/3 fast: "
            + result.values("accuracy", where={"setting": "non-IID, 2/3 fast"})
        ),
        "python -m experiments.favano.mnist --part others --seeds 2",
    ),
    Row(
        "Theorem 1 and its lemmas",
        "bounds of the mean squared gradient and of the potential",
        "Quadratics with known constants; corrected forms (docs/errata.md).",
        ("favano/theory/theory",),
        lambda result: result.line("All bounds hold"),
        "python -m experiments.favano.theory",
    ),
)
SHORT = (
    "over 2,500 units there are few contacts: FAVANO's server moves by about one local step per "
    "contact, so a short horizon favours methods that count all steps"
)


def story() -> str:
    """The paragraph of the paper: its claims, our runs and their results."""
    names = ("IID, 2/3 fast", "non-IID, 2/3 fast", "non-IID, 1/9 fast")
    printed = "; ".join(
        f"{name}: " + ", ".join(f"{m} {row[place][0]}" for m, row in TABLE_2.items())
        for place, name in enumerate(names)
    )
    parts = [
        "FAVANO lets a server collect models from clients that are still training, so that slow "
        "clients do not hold up the others, and divides each client's progress by the number of "
        "steps it had time for. The claim is that it is as accurate as its rivals on clients with "
        "equal data (IID), and more accurate when clients have different data and few of them, one "
        f"of nine for two of three, are fast. Table 2, accuracy on MNIST in %: {printed}."
    ]
    table = Result(MNIST)
    if table.exists:
        rows = table.table("", "setting", "method", "accuracy").to_dict("records")
        ours = "; ".join(
            f"{name}: "
            + ", ".join(
                f"{row['method']} {float(row['accuracy']):.1f}"
                for row in rows
                if row["setting"] == name and row["method"] in TABLE_2
            )
            for name in names
        )
        own = [claim for claim in judged(PAPER) if claim.report == table]
        parts.append(
            f"Ours, ten seeds over the paper's time: {ours}. Of the statements about it, "
            f"{decided(own)} FedBuff's server rate, which the paper does not give, is tuned here."
        )
    factorial = Result("favano/mnist/factorial")
    if factorial.exists:
        parts.append(
            "Sum of |ours - paper| over the table, points, with one setting: "
            f"{_distances(factorial)}."
        )
    parts.append(
        "CIFAR-10 ran with a small network for the paper's ResNet-20, which decides nothing; Tiny "
        "ImageNet did not run. Theorem 1 and its lemmas hold in the corrected form."
    )
    return " ".join(parts)


PAPER = Paper(
    "FAVANO (arXiv 2305.16099)",
    "favano",
    ROWS,
    story,
    {
        "FedBuff > FAVANO > FedAvg > QuAFL": "all four are within one point of each other at the "
        "paper's rate; `iid` shows the choices that the paper leaves open",
        "FAVANO best, then FedBuff": "FedBuff with a tuned server rate is better than printed; "
        "the paper does not give its rate, and its text's rate of 1 collapses",
        "favano/cifar-tuned-cpu/methods: FedBuff and FAVANO are best": "over 10,000 units, each at "
        "its own rate, FedAvg, FedBuff and FAVANO are level in the IID case, inside the intervals "
        "over seeds; QuAFL is 2 points behind",
        "FedBuff and FAVANO are best": SHORT,
        "FedBuff's clients' variance is larger": "each method is at its own best rate, and "
        "FedBuff's is a thirtieth (non-IID) or a sixteenth (IID) of FAVANO's",
        "FedBuff's variance is larger": "the rate of FedBuff's clients is multiplied by Z / n",
        "QNN is": "both are below 19 %, after a quarter of the paper's time; with two seeds the "
        "interval of their difference is too wide for either statement",
        "FedBuff gets stuck": "here FedBuff has a tuned server rate, 0.3, and loses 3 points. With "
        "the server rate 0.03 it falls from 85.44 to 59.45 (two seeds, `sensitivity`), from 85.43 "
        "to 68.92 on the seed of the choice; the paper: from 85.1 to 67.3. With few fast clients "
        "the server makes 241 updates instead of 818",
    },
    NOTES,
)
