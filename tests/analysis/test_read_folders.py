"""Rounds of divergence in folders of results."""

import pandas as pd
import pytest

from fedjax_sim.analysis import methods
from fedjax_sim.analysis.folders import divergences
from fedjax_sim.simulation.outcome import Outcome

NAN = float("nan")


def test_the_recorded_outcome_decides_on_the_rounds_that_it_covers():
    """A client probe is NaN in a round without reports, although the run is finite."""
    entries = [("0", 2, "loss of clients", NAN), ("1", 2, "loss", NAN), ("2", 0, "loss", NAN)]
    recorded = Outcome(2, {"0": 0, "1": 1}, 5, 32, 32, {})
    assert divergences(entries, recorded) == {"1": 1, "2": 0}
    later = [*entries, ("0", 4, "loss", NAN)]
    assert divergences(later, recorded) == {"0": 4, "1": 1, "2": 0}
    assert divergences(entries, None) == {"0": 2, "1": 2, "2": 0}


def test_configurations_with_the_same_short_text_have_labels_of_their_own():
    rates = [0.1, 0.12345678, 0.12345679]
    rows = [("fedavg", lr, 0, 0, 1, "test/accuracy", 0.5) for lr in rates]
    columns = ["algorithm", "lr", "seed", "diverged_at", "round", "metric", "value"]
    frame = methods._labelled(pd.DataFrame(rows, columns=columns), "all", None, "")
    assert frame["algorithm"].tolist() == [
        f"FedAvg, learning rate {text}" for text in ("0.1", "0.12345678", "0.12345679")
    ]


def test_a_sweep_without_evaluations_has_no_best_configuration():
    rows = [(lr, 0, 0, 1, "local_steps", 3.0) for lr in (0.1, 0.2)]
    frame = pd.DataFrame(rows, columns=["lr", "seed", "diverged_at", "round", "metric", "value"])
    message = r"history has the metrics \['local_steps'\]; expected one of the model"
    with pytest.raises(ValueError, match=message):
        methods._labelled(frame, "best", None, "")
