#!/bin/sh
# p2pfl's SCAFFOLD: each node starts from the trained model that it got first, so nodes never agree.
#
# Guess: after a round all nodes have one model, the last common one plus the rate times the mean change.
# The first aggregation takes the first trained model in the node's list, which is usually its own, as
# the model before the round, and adds the mean change to it.  Two nodes that begin at 0 and move to 1
# and -1 should both stay at 0; they have 1 and -1, and since every node continues from its own result,
# the same difference is left after any number of rounds.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check numpy==1.26.4
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps p2pfl==0.4.4
"$folder/venv/bin/python" - <<'PYTHON'
import importlib.machinery
import importlib.metadata
import sys
from unittest import mock

import numpy as np

# Packages of the network, the log and other parts, which are not used here.
UNUSED = set("opendp ray grpc google datasets psutil typer yaml tqdm matplotlib pandas wandb click requests".split())


class Unused:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in UNUSED:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return mock.MagicMock(__path__=[])

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Unused())
sys.modules["p2pfl.management.logger"] = mock.MagicMock()
from p2pfl.learning.aggregators.scaffold import Scaffold
from p2pfl.learning.frameworks.p2pfl_model import P2PFLModel

print("p2pfl", importlib.metadata.version("p2pfl"), "numpy", np.__version__)


class Scalar(P2PFLModel):
    def get_parameters(self):
        return [self.model.copy()]

    def set_parameters(self, params):
        self.model = np.array(params[0])


def trained(name, start, end):
    """A node's model after a visit that moved it from one number to another."""
    change = {"delta_y_i": [np.array([end - start])], "delta_c_i": [np.zeros(1)]}
    return Scalar(np.array([end]), num_samples=10, contributors=[name], additional_info={"scaffold": change})


def rounds(count):
    """Both nodes' models after each round; every visit moves one by 1 and the other by -1."""
    rules = {"a": Scaffold(global_lr=1.0), "b": Scaffold(global_lr=1.0)}
    for name, rule in rules.items():
        rule.set_addr(name)
    models, history = {"a": 0.0, "b": 0.0}, []
    for _ in range(count):
        sent = {name: trained(name, models[name], models[name] + (1 if name == "a" else -1)) for name in models}
        for name, rule in rules.items():
            own_first = [sent[name], *(sent[other] for other in sent if other != name)]
            models[name] = rule.aggregate(own_first).get_parameters()[0].item()
        history.append(tuple(models.values()))
    return history


history = rounds(5)
for number, pair in enumerate(history, 1):
    print(f"round {number}: node a has {pair[0]}, node b {pair[1]}; expected 0.0 and 0.0")
assert history == [(1.0, -1.0)] * 5
PYTHON
