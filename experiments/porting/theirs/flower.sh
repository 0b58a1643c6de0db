#!/bin/sh
# Column "theirs" of flower in docs/coming_from/table.toml, by running it.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip() { "$folder/venv/bin/pip" install --quiet --disable-pip-version-check "$@"; }
pip flwr==1.42.0 flwr-datasets==0.6.1
PYTHONPATH="$here" "$folder/venv/bin/python" - <<'PYTHON'
import types

import datasets
import numpy as np
from compare import compare
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp import strategy as strategies
from flwr.supercore.task_identity import TaskIdentity
from flwr_datasets import partitioner

TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
SEVEN = [12.0, 14.0, 20.0, 39.0, 45.0, 52.0, 59.0]
LABELS = datasets.Dataset.from_dict({"label": np.repeat(np.arange(10), 600)})


def arrays(value):
    return ArrayRecord({"x": Array(np.asarray([value], np.float32))})


def replies(values, examples):
    return [
        types.SimpleNamespace(
            has_error=lambda: False,
            content=RecordDict(
                {"arrays": arrays(value), "metrics": MetricRecord({"num-examples": number})}
            ),
        )
        for value, number in zip(values, examples, strict=True)
    ]


def messages(strategy, x, number=1, nodes=10):
    grid = types.SimpleNamespace(get_node_ids=lambda: range(nodes))
    return list(strategy.configure_train(number, arrays(x), ConfigRecord(), grid))


def three_rounds(strategy, change=1.0):
    x, path = 0.0, []
    for number in (1, 2, 3):
        messages(strategy, x, number)
        result, _ = strategy.aggregate_train(number, replies([x + change], [1]))
        x = float(result["x"].numpy()[0])
        path.append(x)
    return path


def cohort(fraction, nodes):
    return len(messages(strategies.FedAvg(fraction_train=fraction), 0.0, nodes=nodes))


def aggregated(strategy, values, examples=None):
    result, _ = strategy.aggregate_train(1, replies(values, examples or [1] * len(values)))
    return float(result["x"].numpy()[0])


def partitions(rule):
    rule.dataset = LABELS
    return [rule.load_partition(client) for client in range(10)]


def largest(**settings):
    ratios = []
    for seed in range(30):
        rule = partitioner.DirichletPartitioner(
            num_partitions=10, partition_by="label", alpha=0.1, seed=seed, **settings
        )
        sizes = [len(rows) for rows in partitions(rule)]
        ratios.append(max(sizes) / np.mean(sizes))
    return float(np.mean(ratios))


nan_of_five = [1.0, 2.0, np.nan, 3.0, 4.0]
measured = {
    "adam": three_rounds(strategies.FedAdam(eta=0.1)),
    "yogi": three_rounds(strategies.FedYogi(eta=0.1)),
    "adagrad": three_rounds(strategies.FedAdagrad(eta=0.1)),
    "small": [
        x
        for kind in (strategies.FedAdam, strategies.FedYogi, strategies.FedAdagrad)
        for x in three_rounds(kind(eta=0.1), 0.01)
    ],
    "momentum": three_rounds(strategies.FedAvgM(server_learning_rate=0.1, server_momentum=0.9)),
    "cohort": [cohort(0.3, 9), cohort(0.29, 10), cohort(0.1, 10), cohort(0.2, 50)],
    "weights": aggregated(strategies.FedAvg(), [0, 1], [10, 30]),
    "krum": aggregated(strategies.Krum(num_malicious_nodes=2), SEVEN),
    "multikrum": aggregated(strategies.MultiKrum(num_malicious_nodes=2), SEVEN),
    "bulyan": [
        aggregated(strategies.Bulyan(num_malicious_nodes=1), values)
        for values in (SEVEN, [2, 11, 12, 23, 32, 42, 58])
    ],
    "trimmed": [aggregated(strategies.FedTrimmedAvg(beta=beta), SEVEN) for beta in (0.2, 0.3)],
    "median": aggregated(strategies.FedMedian(), [1, 2, 4], [1, 1, 100]),
    "nan": [
        aggregated(strategies.FedMedian(), nan_of_five),
        aggregated(strategies.FedTrimmedAvg(beta=0.2), nan_of_five),
        aggregated(strategies.Krum(num_malicious_nodes=1), nan_of_five),
    ],
    "dirichlet": largest(self_balancing=True),
    "unbalanced": [
        largest(self_balancing=False, min_partition_size=least) for least in (0, 10)
    ],
    "iid": [len(set(rows["label"])) for rows in partitions(partitioner.IidPartitioner(10))],
}
compare("flower", "flwr flwr-datasets", measured)
PYTHON
