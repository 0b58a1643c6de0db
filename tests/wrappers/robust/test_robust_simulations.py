"""Robust runs in `simulate`: the state of a rule in checkpoints, and executions."""

import pytest
from resumed_runs import check_stopped_runs

import fedjax_sim as fs
from fedjax_sim import robust


@pytest.mark.slow
def test_the_previous_aggregate_survives_a_checkpoint(tmp_path):
    rule = robust.centred_clipping(0.05, iterations=2)
    algorithm = robust.aggregate(robust.worker_momentum(fs.fedavg(0.05)), rule)
    check_stopped_runs(algorithm, tmp_path)
