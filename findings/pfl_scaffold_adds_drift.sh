#!/bin/sh
# pfl-research's SCAFFOLD: the control variates have the wrong sign, so drift is added, not removed.
#
# Guess: c_i is a mean gradient and steps follow g - c_i + c, so that clients that know their c_i move in
# one direction.  Here c_i is the change of the model per unit of the rate, which is minus a gradient, and
# is used with the paper's signs: g - c_i + c is 2 g - mean(g).  Two clients with gradients 1 and -1,
# whose moves should be 0 from the second visit on, move twice as far as in FedAvg.  With the rule that
# takes c_i from the moved model, the factor doubles in every visit.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pfl==0.6.0 torch==2.13.0 'numpy<2.5'
"$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata

import torch
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.data.dataset import Dataset
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

print("pfl", importlib.metadata.version("pfl"), "torch", torch.__version__)


class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def loss(self, slope):
        return (slope * self.weight).mean()

    def metrics(self, slope):
        return {}


def moves(by_gradient, visits=4):
    network = Line()
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), 1.0))
    train = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.1, local_batch_size=None)
    options = SCAFFOLDParams(
        central_num_iterations=visits,
        evaluation_frequency=visits,
        train_cohort_size=2,
        val_cohort_size=0,
        population=2,
        use_gradient_as_control_variate=by_gradient,
        user_state_storage=InMemoryUserStateStorage(),
    )
    algorithm, rows = SCAFFOLD(), []
    for visit in range(visits):
        contexts, model, _ = algorithm.get_next_central_contexts(model, visit, options, train)
        total, row = None, []
        for user, slope in (("a", 1.0), ("b", -1.0)):
            start = model.get_parameters()
            data = Dataset(raw_data=[torch.tensor([slope])], user_id=user)
            upload, _ = algorithm.train_one_user(start, model, data, contexts[0])
            upload = upload.apply_elementwise(torch.clone)
            row.append(round(upload["model_update/weight"].item(), 4))
            model.set_parameters(start)
            total = upload if total is None else total + upload
        algorithm.process_aggregated_statistics(contexts[0], Metrics(), model, total)
        rows.append(row)
    return rows


with_gradient, with_difference = moves(True), moves(False)
print("moves of both clients per visit, c_i from a gradient:     ", with_gradient)
print("moves of both clients per visit, c_i from the model moved:", with_difference)
assert with_gradient == [[-0.1, 0.1]] + [[-0.2, 0.2]] * 3
assert with_difference == [[-0.1, 0.1], [-0.2, 0.2], [-0.4, 0.4], [-0.8, 0.8]]
PYTHON
