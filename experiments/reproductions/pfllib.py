"""Rows of PFLlib's benchmark of personalised methods."""

from experiments.personalised.methods import PUBLISHED
from experiments.personalised.report import PUBLISHED_ARE
from experiments.reproductions.page import Paper, Row
from experiments.reproductions.reading import Result

MODULE = "python -m experiments.personalised.pfllib"


def _published(dataset: str) -> str:
    return ", ".join(f"{method} {value}" for method, value in PUBLISHED[dataset].items())


def _ours(result: Result) -> str:
    rows = result.table("", "method", "all examples").to_dict("records")
    return ", ".join(f"{row['method']} {row['all examples']}" for row in rows)


_FASHION = f"{PUBLISHED_ARE['mnist']}, best of 2,000 rounds: {_published('mnist')}"


def story() -> str:
    """The paragraph of the paper: its claims, our runs and their results."""
    parts = [
        "PFLlib's page compares methods that train a model of its own for every client. Where "
        "clients have very different data, all of them are far ahead of the one model of FedAvg."
    ]
    result = Result("personalised/pfllib/cifar100_200_rounds")
    if result.exists:
        parts.append(f"Ours on CIFAR-100, accuracy in %: {_ours(result)}.")
    return " ".join(parts)


PAPER = Paper(
    "PFLlib's benchmark page: personalised methods, 20 clients, Dirichlet(0.1)",
    "pfllib",
    (
        Row(
            "Test accuracy in %, CIFAR-100",
            f"best of 2,000 rounds: {_published('cifar100')}",
            "Best of 200 rounds; FedAvg and FedRep no longer rise. Initial values and Ditto's mu "
            "differ, see the report.",
            ("personalised/pfllib/cifar100_200_rounds",),
            _ours,
            f"{MODULE} --dataset cifar100 --rounds 200 --eval-every 5 --seeds 1",
        ),
        Row(
            "Test accuracy in %, MNIST",
            _FASHION,
            "MNIST is easier than Fashion-MNIST. Best of 20 rounds: the full length would take "
            "hundreds of core-hours for all methods and seeds, or less than 17 hours of an H200 by "
            "the time of the next row (docs/performance.md).",
            ("personalised/pfllib/mnist_20_rounds",),
            _ours,
            f"{MODULE} --rounds 20 --eval-every 2",
        ),
        Row(
            "Test accuracy in %, MNIST, longer",
            _FASHION,
            "As before, best of 100 rounds, one seed, on an H200, by four commands for some of the "
            "methods each. The six methods are in the page's order, which has the same number for "
            "pFedMe and APFL; one seed does not decide between FedAvg and FedProx (0.04 points) or "
            "APFL and pFedMe (0.08).",
            ("personalised/pfllib/mnist_100_rounds",),
            _ours,
            f"{MODULE} --rounds 100 --eval-every 5 --seeds 1",
        ),
    ),
    story,
)
