"""Known differences of our experiments' settings from the papers', their lengths and their costs.

Names are those of reports below ``experiments/results``; patterns match at their beginning.
"""

import re
from typing import Any, NamedTuple

import pandas as pd

from experiments.reproductions.reading import Result
from experiments.reproductions.verdicts import LEAST, LEAST_QUICK


class Difference(NamedTuple):
    """A setting of the paper or its program that ours does not have."""

    reports: str  # pattern
    text: str
    claims: str = ""  # pattern of setting and claim, anywhere; "" for all


class Length(NamedTuple):
    """The length of the paper's runs: the last value of a column of our table, or a fact."""

    reports: str  # pattern
    paper: float
    column: str = "round"


DIFFERENCES = (
    Difference(
        r"fedswa/(table2|averages|loss_surface|parts)-cpu(?!-wide)",
        "LeNet-5 of 6-16-120-84 channels and units for 64-64-384-192",
    ),
    Difference(
        "fedswa/table2-cpu-wide",
        "LeNet-5 of 32-32-192-96 channels and units, half of the program's",
    ),
    Difference("fedswa/table2.*compressed", "the decay of 1,000 rounds compressed into 200"),
    Difference(
        "fedswa/.*cifar10-lenet5-dirichlet0.1", "CIFAR-10 and LeNet-5 for CIFAR-100 and ResNet-18"
    ),
    Difference(
        "fedswa/table2",
        "FedSAM with weight decay and clipping, which the program's has not",
        r"FedSAM(?!-program)",
    ),
    Difference("fedswa/digits", "a perceptron on digits for the paper's networks and images"),
    Difference("fedswa/drift", "a rate above the theorem's condition", r"lr \d"),
    Difference("favano/cifar-", "a small network without batch normalisation for ResNet-20"),
    Difference("favano/cifar-cpu", "20 clients for 100, at four times the paper's rate"),
    Difference("favano/cifar-tuned", "every method at its own tuned rate"),
    Difference("fco/(primal_averaging|fmri)", "a synthetic stand-in for the recordings"),
    Difference(
        "fco/(lasso|lowrank)-scale",
        "features times 0.316, without which the thesis's rates diverge; lambda is not printed",
    ),
    Difference("fco/(longer/)?emnist-femnist", "104 of the data set's 3,383 writers"),
    Difference("fco/(longer/)?emnist-mnist", "MNIST's writers for EMNIST's"),
    Difference(
        "heterogeneity/femnist/femnist", "105 of 3,597 writers, some with fewer than 100 images"
    ),
    Difference("heterogeneity/femnist/mnist", "MNIST's writers for FEMNIST's"),
    Difference(
        "personalised", "initial values, and some defaults of the methods (named in the report)"
    ),
    Difference("personalised/pfllib/mnist", "MNIST for Fashion-MNIST"),
)
LENGTHS = (
    Length("fedswa/(table2|averages|parts)", 1000),
    Length("favano/mnist/table2", 5000, "time"),
    Length("favano/cifar", 10_000, "time"),
    Length("fco/(longer/)?emnist", 5000),
    Length("fco/(lasso|lowrank)", 500),
    Length("fco/fmri", 300),
    Length("heterogeneity/femnist", 250),
    Length("personalised", 2000),
)
QUICK = "favano/mnist|fedswa/digits|heterogeneity|fco/(longer/)?emnist"  # runs under ten minutes


def differences(result: Result, claim: str) -> list[str]:
    """The known differences of a claim's setting, by the report and the claim's text."""
    return [
        known.text
        for known in DIFFERENCES
        if re.match(known.reports, result.name) and re.search(known.claims, claim)
    ]


def length(result: Result) -> tuple[float, float] | None:
    """The lengths of our runs and the paper's; None if no length is known."""
    for known in LENGTHS:
        if re.match(known.reports, result.name):
            values: Any = pd.read_csv(result.file(".csv"), usecols=[known.column])
            return float(values[known.column].max()), known.paper
    return None


def least_seeds(result: Result) -> int:
    """The least number of seeds of a paired interval."""
    return LEAST_QUICK if re.match(QUICK, result.name) else LEAST
