"""Names of algorithms and metrics in figures and tables."""

import re

import pytest

from fedjax_sim.reports.labels import algorithm_label, algorithm_labels, better, metric_label
from fedjax_sim.runs.callbacks.direction import sign
from fedjax_sim.studies.setups import ALGORITHMS


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_a_name_as_papers_write_it(name):
    label = algorithm_label(name)
    assert label != name
    assert label[0].isupper() or label in ("pFedMe", "q-FedAvg")  # as the paper writes it
    assert "_" not in label
    # The label begins as the code's name does, or its initials do: mb_sgd, Minibatch SGD.
    words = re.findall(r"[A-Za-z][A-Za-z]*", label)
    assert words[0].lower()[0] == name[0]
    assert len(label) <= 30


def test_names_are_distinct_and_known_ones_are_as_printed():
    labels = algorithm_labels(ALGORITHMS)
    assert len(set(labels.values())) == len(labels)
    assert [labels[name] for name in ("fedavg", "scaffold", "fedmid_osp", "fedmoswa")] == [
        "FedAvg", "SCAFFOLD", "FedMiD-OSP", "FedMoSWA"
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["FedAvg, lr 0.1", "mine", "ratio: 3", "a b:c", "C:/tmp"])
def test_names_of_users_stay(name):
    assert algorithm_label(name) == name


def test_metrics_have_words():
    assert metric_label("test_accuracy") == "test accuracy"
    assert metric_label("client/loss/q90") == "client loss, 90 % quantile"


@pytest.mark.parametrize(
    ("metric", "mode"),
    [
        ("acc", "max"),
        ("top-2", "max"),
        ("test/top5", "max"),
        ("top-5 error", "min"),
        ("stopped", "min"),
        ("valid/perplexity", "min"),
        ("accuracy gap", "min"),
        ("client/accuracy/std", "min"),
        ("backdoor/accuracy", "min"),
    ],
)
def test_the_better_direction_of_metrics_of_users(metric, mode):
    assert better(metric) == mode
    if metric == "stopped":  # tables have a default, callbacks do not guess
        with pytest.raises(ValueError, match="expected 'min' or 'max', since the name of metric"):
            sign(metric, None)
    else:
        assert sign(metric, None) == {"max": 1, "min": -1}[mode]
