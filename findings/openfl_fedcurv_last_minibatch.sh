#!/bin/sh
# OpenFL's FedCurv: the Fisher information is that of the last minibatch over the number of minibatches.
#
# Guess: the diagonal is a mean of squared gradients over the client's examples.  Every minibatch replaces
# the one before, so all but the last one count for nothing, and the penalty falls as 1 / n with the number
# of minibatches: the same examples repeated ten times give a tenth of it.  Squares are those of the
# minibatch's mean gradient, so the batch size changes it as well.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check torch==2.13.0 numpy==2.4.6 dynaconf==3.3.5 tqdm pandas
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps openfl==1.9
"$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata

import torch
from openfl.utilities.fedcurv.torch.fedcurv import FedCurv

print("openfl", importlib.metadata.version("openfl"), "torch", torch.__version__)


def information(batches):
    layer = torch.nn.Linear(1, 2, bias=False)
    torch.nn.init.zeros_(layer.weight)
    rule = FedCurv(layer, 1.0)
    rule.on_train_begin(layer)
    rule.on_train_end(layer, batches, "cpu")
    return getattr(rule, "weight_u").flatten().tolist()


def batch(*x):
    return torch.tensor(x)[:, None], torch.zeros(len(x), dtype=torch.long)


# at weights 0 an example x of label 0 has the gradients -x / 2 and x / 2, so their squares are x^2 / 4
large_first = information([batch(10.0), batch(2.0)])
small_first = information([batch(2.0), batch(10.0)])
repeated = information([batch(10.0), batch(2.0)] * 10)
together = information([batch(10.0, -2.0)])
print("mean of x^2 / 4 for x = 10 and 2: 13.0")
print("10 then 2:", large_first, " 2 then 10:", small_first)
print("10 then 2, ten times:", repeated, " one minibatch of 10 and -2:", together)
assert large_first == [0.5, 0.5] and small_first == [12.5, 12.5]
assert torch.allclose(torch.tensor(repeated), torch.tensor(0.05))
assert together == [4.0, 4.0]
PYTHON
