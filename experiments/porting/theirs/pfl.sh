#!/bin/sh
# Column "theirs" of pfl in docs/coming_from/table.toml, by running it.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip() { "$folder/venv/bin/pip" install --quiet --disable-pip-version-check "$@"; }
pip torch==2.13.0 numpy
pip "pfl[pytorch]==0.6.0"
PYTHONPATH="$here" "$folder/venv/bin/python" - <<'PYTHON'
import types

import numpy as np
import torch
from compare import compare
from pfl.aggregate.weighting import WeightByDatapoints, WeightByUser
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.data.dataset import Dataset
from pfl.data.partition import partition_by_dirichlet_class_distribution
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.internal.ops.selector import set_framework_module
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl.stats import MappedVectorStatistics

LABELS = np.repeat(np.arange(10), 600)


class Scalar(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.x = torch.nn.Parameter(torch.zeros(1))

    def loss(self, change, eval=False):
        return -(self.x * change).mean()

    def metrics(self, change, eval=False):
        return {}


def share(strategy):
    total = None
    for value, number in ((0.0, 10), (1.0, 30)):
        stats = MappedVectorStatistics({"x": np.array([value])}, weight=1)
        context = types.SimpleNamespace(num_datapoints=number)
        stats, _ = strategy.postprocess_one_user(stats=stats, user_context=context)
        total = stats if total is None else total + stats
    total.average()
    return float(total["x"][0])


def control():
    network = Scalar()
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), 1.0))
    settings = SCAFFOLDParams(
        central_num_iterations=2,
        evaluation_frequency=1,
        train_cohort_size=2,
        val_cohort_size=0,
        population=4,
        use_gradient_as_control_variate=True,
        user_state_storage=InMemoryUserStateStorage(),
    )
    visit = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.1, local_batch_size=1)
    algorithm, total = SCAFFOLD(), None
    (context,), model, _ = algorithm.get_next_central_contexts(model, 0, settings, visit)
    for user in "ab":
        start = model.get_parameters().apply_elementwise(lambda w: w.clone())
        data = Dataset(raw_data=[torch.ones(2, 1)], user_id=user)
        stats, _ = algorithm.train_one_user(start, model, data, context)
        model.set_parameters(start)
        total = stats if total is None else total + stats
    algorithm.process_aggregated_statistics(context, Metrics(), model, total)
    return float(algorithm._server_c["x"])


shares = [share(strategy) for strategy in (WeightByUser(), WeightByDatapoints())]
ten = Dataset(raw_data=[np.arange(10)])
np.random.seed(0)
users = partition_by_dirichlet_class_distribution(LABELS, 0.1, lambda: 300)
set_framework_module(pytorch_ops)
measured = {
    "weights": shares,
    "batches": [len(x) for _ in range(2) for (x,) in ten.iter(4)],
    "scaffold": control(),
    "dirichlet": float(np.mean([len(set(LABELS[rows])) for rows in users])),
}
compare("pfl", "pfl torch", measured)
PYTHON
