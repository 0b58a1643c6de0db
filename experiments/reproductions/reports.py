"""Rows of the heterogeneity report, of the Lojasiewicz appendix, and of measurements without a
paper."""

from experiments.reproductions.page import Paper, Row
from experiments.reproductions.reading import Result

PERCEPTRON = "heterogeneity/perceptron/perceptron"
RUN = "python -m experiments.heterogeneity.perceptron"
WRITERS = "python -m experiments.heterogeneity.femnist"


def _perceptron(result: Result, heading: str, column: str, cases: str) -> str:
    rows = result.table(heading, "case", column).to_dict("records")
    return ", ".join(f"{r['case']}: {r[column]}" for r in rows if r["case"].startswith(cases))


def _writers(result: Result) -> str:
    rows = result.table("", "partition", "final accuracy, %").to_dict("records")
    return "; ".join(
        f"seed {row['seed']}, {row['partition']}: {row['final accuracy, %']} %, "
        f"round {row['rounds to 79 %']}"
        for row in rows
    )


def heterogeneity() -> str:
    """The paragraph of the paper: its claims, our runs and their results."""
    parts = [
        "The report asks what different data on the clients cost FedAvg. Its claims: more local "
        "steps per round mean fewer rounds but a worse model in the end; FedProx, which keeps "
        "clients near the received model, ends much better and needs more rounds; a known bound of "
        "the loss is far above what happens; and on handwriting, clients that are writers need "
        "more rounds than clients with mixed data (220 and 142 rounds to 79 %)."
    ]
    perceptron, writers = Result(PERCEPTRON), Result("heterogeneity/femnist/femnist-matched")
    if perceptron.exists:
        table = perceptron.table("Model of the text", "case", "late test gap")
        tau = {f"FedAvg, tau {steps}": steps for steps in (10, 50, 300, 1000)}
        rows = table.to_dict("records")
        losses = ", ".join(
            f"{tau[row['case']]}: {row['late test gap']}" for row in rows if row["case"] in tau
        )
        parts.append(
            "Ours, ten draws of the data, loss above the best possible one in the end, by local "
            f"steps per round: {losses}. FedProx, the bound, the differences between clients and "
            "the numbers of rounds are as claimed, too."
        )
    if writers.exists:
        parts.append(f"On a part of the writers, which decides nothing: {_writers(writers)}.")
    return " ".join(parts)


def lojasiewicz() -> str:
    """The paragraph of the paper: its claims, our runs and their results."""
    parts = [
        "The appendix bounds how fast FedAvg's loss falls if the loss may be flat around its "
        "minimum; alpha measures how flat. There are no experiments in it. On functions whose "
        "constants are known we compared its bounds, corrected as the errata say, with exact runs, "
        "and its rates with fitted ones."
    ]
    rates = Result("lojasiewicz/rates")
    if rates.exists:
        found = (f"{c['claim']}: {c['found']}" for c in rates.claims.to_dict("records"))
        parts.append(f"{'; '.join(found)}.")
    return " ".join(parts)


def simulator() -> str:
    """The paragraph of the measurements."""
    return "Measurements of the simulator, which belong to no paper."


HETEROGENEITY = Paper(
    "Dhasade, Kremer and Renard (report): FedAvg and heterogeneity",
    "heterogeneity",
    (
        Row("Figure 1", "an illustration", "No data in it."),
        Row(
            "Figure 2, Experiment 1: FedAvg with one client that differs",
            "final b (notebook): -1.512, -1.689, -2.245, -2.468 for tau 10, 50, 300, 1000",
            "Points drawn from the same law; the report's are one more draw. The pair of clients "
            "of every round has another optimum than all clients.",
            (PERCEPTRON,),
            lambda result: _perceptron(result, "Model of the text", "final b", "FedAvg, tau"),
            RUN,
        ),
        Row(
            "Figure 2, right: heterogeneity",
            "0.4067 at tau 1000 (notebook)",
            "Another draw of the points.",
            (PERCEPTRON,),
            lambda result: _perceptron(result, "Model of the text", "heterogeneity", "FedAvg, tau"),
            RUN,
        ),
        Row(
            "Figure 3, Experiment 2: FedProx against FedAvg",
            "FedProx reaches a much better loss; no numbers",
            "Test losses above their minimum after the last round, for the weights of the "
            "authors' program; pairs of clients. Exact: local problems solved exactly.",
            (PERCEPTRON,),
            lambda result: _perceptron(result, "Model of the code", "test gap", "Fed"),
            RUN,
        ),
        Row(
            "Figure 4, Experiment 3: FEMNIST by writer and IID",
            "79 % after 142 rounds (IID) and 220 (by writer)",
            "The writers in FEMNIST's files that are available, clients of equal sizes in both "
            "cases; one seed.",
            ("heterogeneity/femnist/femnist-matched",),
            _writers,
            WRITERS,
        ),
        Row(
            "Figure 4 with LEAF's default IID clients",
            "79 % after 142 rounds (IID) and 220 (by writer)",
            "The report's command leaves LEAF's default: a hundredth as many IID clients, each "
            "with a hundred times the images.",
            ("heterogeneity/femnist/femnist-leaf_default",),
            _writers,
            f"{WRITERS} --iid leaf_default",
        ),
        Row(
            "Figure 4 on MNIST's writers",
            "as above",
            "Easier data: both reach 79 % within a few rounds. Two seeds.",
            ("heterogeneity/femnist/mnist-matched",),
            _writers,
            f"{WRITERS} --dataset mnist --seeds 2",
        ),
        Row(
            "Figure 5: gap and its bound",
            "bound 2.26, 56.5, 22,586 for tau 10, 50, 1000 (notebook), far above the gap",
            "The bound's assumption is full participation; gaps of both are in the report.",
            (PERCEPTRON,),
            lambda result: (
                "bound: "
                + result.values("bound", by="tau")
                + "; gap (pair): "
                + result.values("pair", by="tau")
            ),
            RUN,
        ),
    ),
    heterogeneity,
    {
        "Experiment 3: by writer more rounds to 79 %": "MNIST is easier: both reach 79 % by the "
        "first evaluation. To the final accuracy by writer, by writer takes 1.58 and 1.67 times "
        "as many rounds as IID",
    },
)
LOJASIEWICZ = Paper(
    "Labbi et al. (2025), Appendix F: FedAvg under a Lojasiewicz condition",
    "lojasiewicz",
    (
        Row(
            "Lemma F.1, Theorems F.2 and F.4, Lemma F.3",
            "bounds of drift and gap; no experiments",
            "Families with known constants, corrected forms (docs/errata.md).",
            ("lojasiewicz/rates",),
            lambda result: (
                "closed form / gap: "
                + ", ".join(
                    f"{row['case']}, K = {row['K']}: {row['closed / gap']}"
                    for row in result.table("Families", "case", "closed / gap").to_dict("records")
                )
            ),
            "python -m experiments.lojasiewicz.rates",
        ),
        Row(
            "Theorem F.4: rates",
            "R^(-1 / (alpha - 1)) for alpha > 1",
            "Slopes of the exact gap.",
            ("lojasiewicz/rates",),
            lambda result: ", ".join(
                f"{row['case']}: {row['gap']} (expected {row['expected']})"
                for row in result.table("Rates", "case", "expected").to_dict("records")
                if row["expected"]
            ),
            "python -m experiments.lojasiewicz.rates",
        ),
    ),
    lojasiewicz,
)
SYSTEM = Paper(
    "The simulator itself",
    "simulator",
    (
        Row(
            "A thousand to a million clients",
            "no paper; at most 0.1 s per round and 8 GB",
            "",
            ("system/million_clients/million_clients",),
            lambda result: result.line("At 1,000,000 clients"),
            "python -m experiments.system.million_clients",
        ),
        Row(
            "Precision",
            "no paper",
            "Largest differences of a seed from float64.",
            ("system/precision/digits",),
            lambda result: ", ".join(
                f"{row['algorithm']} {row['metric']} in {row['precision']}: {row['largest']}"
                for row in result.table("", "precision", "largest").to_dict("records")
                if row["largest"]
            ),
            "python -m experiments.system.precision",
        ),
        Row(
            "Compression with memory",
            "no paper",
            "FedAvg on 20 heterogeneous clients, rates tuned by validation; bits per upload.",
            ("compression/digits/digits",),
            lambda result: (
                "test accuracy: "
                + ", ".join(
                    f"{row['method']} {row['accuracy']} at {row['kilobits per round']} kbit"
                    for row in result.table("", "method", "kilobits per round").to_dict("records")
                )
            ),
            "python -m experiments.compression.digits",
        ),
        Row(
            "Values of faulty clients",
            "no paper",
            "Mislabelled clients and free riders among honest clients; AUC of each kind, and the "
            "training runs that a method needs.",
            ("valuation/digits/digits",),
            lambda result: ", ".join(
                f"{row['method']} {row['AUC mislabelled']} and {row['AUC free rider']} "
                f"({row['runs']} runs)"
                for row in result.table("", "method", "AUC free rider").to_dict("records")
            ),
            "python -m experiments.valuation.digits",
        ),
        Row(
            "Central privacy, accuracy against epsilon",
            "pfl-research's setting for CIFAR-10 IID, with MNIST and a perceptron",
            "1,000 users, 50 per round, clip 0.4, 150 rounds, five seeds; noise of Poisson cohorts "
            "of 50 of 10,000 users. Epsilon is a forecast: the simulated runs are not private at "
            "it.",
            ("privacy/mnist/mnist",),
            lambda result: ", ".join(
                f"{row['run']}: {row['accuracy in %']}"
                for row in result.table("", "run", "accuracy in %").to_dict("records")
            ),
            "python -m experiments.privacy.mnist_central",
        ),
        Row(
            "DiLoCo and data-parallel AdamW",
            "Douillard et al., 2023, at other sizes",
            "Test loss of a transformer with 0.2 million parameters at the best outer rate, after "
            "2,000 steps from random values (the paper: 88,000, of which 24,000 before DiLoCo "
            "starts). With four workers and a tenth of the communication DiLoCo is between one "
            "replica and data-parallel AdamW; with less it is behind both, perhaps because 40 and "
            "8 rounds are few for an outer momentum of 0.9. With one worker it is behind AdamW, "
            "too, so the drift between workers is not the whole reason. Other outer momenta were "
            "not tried.",
            ("language/diloco/diloco",),
            lambda result: ", ".join(
                f"{row['method']} {row['loss']} (W = {row['workers']}, H = {row['local_steps']})"
                for row in result.table("", "method", "workers", "loss").to_dict("records")
            ),
            "python -m experiments.language.diloco",
        ),
    ),
    simulator,
)
