"""Tables and sentences of hand-written pages are those of the stored results."""

import json
import pathlib
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import fedjax_sim as fs

ROOT = pathlib.Path(__file__).parents[2]
RESULTS = ROOT / "experiments" / "results"
METHODS = {"W3 (quartiles)": "W3", "W1, one device": "W1-1dev", "W1, two devices": "W1"}
HYPERGRADIENTS = {
    "the run itself": "run",
    "two rates, forward mode": "forward",
    "no level": "none",
    "one level": "one",
    '`"sqrt"`': "sqrt",
    '`"log"`': "log",
}
LIKE = {"W1": "softmax regression", "W2": "FEMNIST CNN", "W3": "LeNet-5"}
LIKE |= {"W4": "logistic regression, 1,000 clients"}


def text_of(page: str) -> str:
    """A page's text with single spaces, so that sentences do not depend on line breaks."""
    return " ".join((ROOT / page).read_text().split())


def cases(name: str) -> dict:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())["cases"]


def table(page: str, first: str) -> list[dict[str, str]]:
    """Rows of the table of a page whose header starts with these columns."""
    text = (ROOT / page).read_text()
    lines = text[text.index(f"| {first} |") :].split("\n\n")[0].splitlines()
    split = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(split[0], row, strict=True)) for row in split[2:]]


def assert_printed(text: str, value: float) -> None:
    """The printed number is the value, rounded to the printed digits."""
    number = text.strip("* ").split()[0].replace(",", "")
    zeros = 0 if "." in number else len(number) - len(number.rstrip("0"))
    unit = 10.0 ** (zeros - len(number.partition(".")[2]))
    assert abs(float(number) - value) <= 0.5001 * unit, (text, value)


def test_costs_of_methods():
    measured = cases("methods")
    for row in table("docs/performance.md", "times FedAvg, seconds"):
        name = next(iter(row.values())).split(",")[0].lower()
        for column, case in METHODS.items():
            found = measured[case]["candidates"][name]
            assert_printed(row[column], found["ratio"])
            if "(" in row[column]:
                low, high = re.findall(r"\d\.\d+", row[column])[1:]
                assert_printed(low, found["lower_quartile"])
                assert_printed(high, found["upper_quartile"])
    seconds = {name: case["candidates"]["fedavg"]["seconds"] for name, case in measured.items()}
    printed = re.search(
        r"FedAvg's rounds took (\S+) s \(W3\), (\S+) ms \(W1\) and (\S+) ms \(W1 on one host",
        text_of("docs/performance.md"),
    )
    assert printed is not None
    for number, value in zip(
        printed.groups(),
        (seconds["W3"], 1000 * seconds["W1"], 1000 * seconds["W1-1dev"]),
        strict=True,
    ):
        assert_printed(number, value)


def test_generated_clients():
    rows = table("docs/performance.md", "clients | time per round")
    for row, case in zip(rows, cases("generated").values(), strict=True):
        found = case["candidates"]["ours"]
        assert int(row["clients"].replace(",", "")) == found["clients"]
        assert_printed(row["time per round"], 1000 * found["seconds_per_round"])
        assert_printed(row["CPU time per round, both cores"], 1000 * found["cpu_seconds_per_round"])
        assert_printed(row["peak of the process"], found["peak_rss_mb"])
        assert_printed(row["before the task"], found["idle_rss_mb"])
        assert_printed(row["held-out accuracy"], found["accuracy"])


def test_data_larger_than_the_device():
    measured = cases("offload")
    for row in table("docs/performance.md", "seconds per round | data")[:3]:
        found = measured[row["seconds per round"]]["candidates"]
        for name in ("resident", "host", "file"):
            seconds, quicker = row[name].removesuffix(")").split(" (")
            assert_printed(seconds, found[name]["seconds"])
            assert_printed(quicker, found[name]["best_seconds"])
        for name in ("host", "file"):
            assert_printed(row[f"{name} / resident"], found[name]["ratio"])


def test_asynchrony():
    columns = {
        "two host devices": "ours=devices",
        "one": "ours",
        "four clients together": "ours=chunked:4",
        "eager, one by one": "eager",
        "eager, all at once": "eager=vmapped",
        "torch, 1 thread": "torch",
        "torch, 2 threads": "torch=cores",
    }
    rows = table("docs/performance.md", "seconds, 100 contacts")
    for row, name in zip(rows, ("engine", "tick"), strict=True):
        case = cases("asynchrony")[name]
        assert_printed(row["floor"], case["floor_seconds"])
        for column, candidate in columns.items():
            if row[column]:
                assert_printed(row[column], case["candidates"][candidate]["seconds"])


def test_speed_on_the_first_page():
    measured = cases("rounds")
    peers = {
        "FedJAX": ("fedjax",),
        "PyTorch, a loop over clients": ("torch-loop", "torch-loop-1"),
        "pfl-research": ("pfl", "pfl-1"),
    }
    for row in table("README.md", "| softmax regression"):
        for workload, column in LIKE.items():
            found = measured[workload]["candidates"]
            names = [name for name in peers[next(iter(row.values()))] if name in found]
            ratio = min(found[name]["seconds"] for name in names) / found["ours"]["seconds"]
            assert_printed(row[column], ratio)


def test_topologies():
    measured = cases("topologies")
    for row in table("docs/howto/topologies.md", "CPU time per round, of FedAvg's"):
        name, bits, *ratios = row.values()
        for case, ratio in zip(measured.values(), ratios, strict=True):
            assert int(bits.replace(",", "")) == case["candidates"][name]["bits_per_link"]
            assert_printed(ratio, case["candidates"][name]["cpu_ratio"])


def test_errors_of_graphs_of_equal_gaps():
    found = pd.read_csv(RESULTS / "topologies" / "gap" / "gap.csv").query("alpha == 0.1")
    errors: Any = 100 * (1 - found.set_index(["method", "graph", "share", "seed"])["mean/accuracy"])
    torus, complete = errors["D-PSGD", "torus", 0.5], errors["D-PSGD", "complete", 0.8]
    more = fs.analysis.mean_interval((complete - torus).to_numpy())
    assert (
        f"err on {torus.mean():.0f} % of the test examples on a torus with share 0.5 and on "
        f"{complete.mean():.0f} % on the complete graph with share 0.8, both of gap 0.2: "
        f"{more.mean:.0f} points more, with an interval of 95 % from {more.low:.0f} to "
        f"{more.high:.0f} points over the partitions."
    ) in text_of("docs/howto/topologies.md")


def test_hypergradients():
    first = cases("hypergradients")
    for row in table("docs/howto/hypergradients.md", "| time, 64 rounds"):
        name = HYPERGRADIENTS[next(iter(row.values()))]
        for rounds in ("64", "256"):
            found = first[rounds]["candidates"][name]
            assert_printed(row[f"time, {rounds} rounds"], found["seconds"])
            assert_printed(row[f"memory, {rounds} rounds"], found["program_mb"])


def test_selection():
    found = cases("selection")["100"]["candidates"]
    for row in table("docs/howto/selection.md", "round | counted work, of uniform sampling's"):
        name, _, ratio = row.values()
        assert_printed(ratio, found[name.replace("`", "")]["cpu_ratio"])


@pytest.mark.parametrize(
    ("name", "last", "when"),
    [("flower", 5, "last five rounds"), ("pfllib", 3, "last three rounds")],
)
def test_ported_runs(name, last, when):
    """Differences are those of each of our seeds from the other simulator's run."""
    rounds = 100 * pd.read_csv(RESULTS / "porting" / f"{name}.csv").set_index("round")
    theirs, ours = rounds["theirs"], rounds.filter(like="ours")
    off = ours.sub(theirs, axis=0).abs().to_numpy()
    span = ours.max(axis=1) - ours.min(axis=1)
    page = text_of(f"docs/coming_from/{name}.md")
    assert f"differ by {off.mean():.1f} points on average and by {off.max():.1f} at most;" in page
    assert f"span {span.mean():.1f} on average and {span.max():.1f} at most." in page
    ends = ", ".join(f"{value:.1f}" for value in ours.tail(last).mean())
    assert (
        f"In the {when} theirs is {theirs.tail(last).mean():.1f} % on average, ours {ends} %."
    ) in page


def test_accuracies_by_momentum_of_statistics():
    runs = pd.read_csv(RESULTS / "pictures" / "batch_norm.csv")
    at: Any = runs.set_index(["momentum", "round", "seed"])["value"].sort_index()
    for row in table("docs/models_with_state.md", "momentum | 10 rounds"):
        for rounds in (10, 30, 100, 300):
            found = at[float(row["momentum"]), rounds].to_numpy()
            printed = row[f"{rounds} rounds"].split(", ")
            for text, value in zip(printed, found, strict=True):
                assert_printed(text, value)


def test_paired_and_unpaired_intervals_on_the_first_page():
    runs = pd.read_csv(RESULTS / "pictures" / "comparison.csv")
    last = runs[runs["round"] == runs["round"].max()]
    last = 100 * last.pivot(index="seed", columns="algorithm", values="value")
    one, other = (last[name].to_numpy() for name in ("fedprox", "fedavg"))
    paired = fs.analysis.mean_interval(one - other)
    n = len(one)
    spread = np.sqrt((one.var(ddof=1) + other.var(ddof=1)) / n)
    unpaired = stats.t.ppf(0.975, 2 * n - 2) * spread
    assert (
        f"{paired.high - paired.mean:.2f} points wide to each side with pairs, and "
        f"{unpaired:.2f} without."
    ) in text_of("README.md")


def test_epsilon_of_cohorts_of_fixed_size_beside_poisson_sampling():
    rows = table("docs/howto/privacy.md", "M, S, rounds, z, delta | `bernoulli`")
    # "1,000, 100, 100, 1, 1e-5": a comma without a space is inside a number.
    z = np.array([float(row["M, S, rounds, z, delta"].split(", ")[3]) for row in rows])
    ratio = np.array([float(row["`uniform`, here"]) / float(row["`bernoulli`"]) for row in rows])
    sentence = f"it is {ratio.min():.1f} to {ratio.max():.1f} times that of Poisson sampling"
    page = text_of("docs/howto/privacy.md")
    assert f"{sentence} in the settings below, the more the smaller z is." in page
    less, more = np.subtract.outer(z, z), np.subtract.outer(ratio, ratio)
    assert (more[less < 0] > 0).all()


def precision_rows(name: str) -> pd.DataFrame:
    """Rows of a comparison of precisions, by algorithm, metric and precision."""
    rows = pd.read_csv(RESULTS / "system" / "precision" / f"{name}.csv")
    return rows.set_index(["algorithm", "metric", "precision"])


def test_losses_of_the_small_resnet_by_precision():
    rows: Any = precision_rows("digits-small-resnet").loc["fedavg", "train/loss"]
    half, single, double = (rows.loc[name] for name in ("bfloat16", "float32", "float64"))
    printed = re.search(
        r"the training loss is (\S+) in bfloat16 and (\S+) in float64, a difference of (\S+) "
        r"\(95 % interval (\S+) to (\S+)\) where the standard deviation over the seeds is "
        r"(\S+)\. Float32 differs from float64 by (\S+) \((\S+) to (\S+)\)\.",
        text_of("docs/howto/precision.md"),
    )
    assert printed is not None
    values = [half["mean"], double["mean"], half["difference"], half["from"], half["to"]]
    values += [half["spread"], single["difference"], single["from"], single["to"]]
    for text, value in zip(printed.groups(), values, strict=True):
        assert_printed(text, value)


def test_accuracies_of_the_quickstart_by_precision():
    rows: Any = precision_rows("digits").xs("test/accuracy", level="metric")
    half, single = (rows.xs(name, level="precision") for name in ("bfloat16", "float32"))
    assert ((half["from"] < 0) & (half["to"] > 0)).all()
    printed = re.search(
        r"the final test accuracy by at most (\S+) \(all intervals contain 0\), and the accuracy "
        r"of one seed at any evaluation by at most (\S+)\. float32 changes it by at most (\S+) ",
        text_of("docs/clusters.md"),
    )
    assert printed is not None
    largest = [half["difference"].abs().max(), half["largest"].max(), single["largest"].max()]
    for text, value in zip(printed.groups(), largest, strict=True):
        assert_printed(text, value)


def test_losses_of_lenet5_by_precision():
    rows: Any = precision_rows("cifar10-lenet5").loc["fedavg"]
    loss, accuracy = rows.loc["train/loss"], 100 * rows.loc["test/accuracy", "mean"]
    half, single = loss.loc["bfloat16"], loss.loc["float32"]
    printed = re.search(
        r"the training loss is (\S+) in bfloat16, (\S+) in float32 and (\S+) in float64\. From "
        r"float64 bfloat16 differs by (\S+) \(95 % interval (\S+) to (\S+)\) and float32 by (\S+) "
        r"\((\S+) to (\S+)\), where the standard deviation over the seeds is (\S+)\. The test "
        r"accuracy is (\S+), (\S+) and (\S+) %",
        text_of("docs/howto/precision.md"),
    )
    assert printed is not None
    order = ["bfloat16", "float32", "float64"]
    values = [*loss.loc[order, "mean"], *half[["difference", "from", "to"]]]
    values += [*single[["difference", "from", "to"]], half["spread"], *accuracy.loc[order]]
    for text, value in zip(printed.groups(), values, strict=True):
        assert_printed(text, value)
