#!/bin/sh
# torchmetrics' AUROC: a client whose examples have one label gets 0, the worst possible value.
#
# Guess: the area under the curve is not defined there, so the value is NaN, as in scikit-learn, and such
# clients can be left out of a mean.  It is 0 with a warning, for positives only and for negatives only.  For
# a perfect model on ten clients of which five have one label the mean over clients is
# 0.5, as for guessing; the more uneven the split of labels, the worse every model looks.  Average precision
# of negatives only is 0 as well, and that of positives only 1.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check torch==2.13.0 numpy==2.4.6 torchmetrics==1.9.0 scikit-learn==1.9.1
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import math

import sklearn
import torch
import torchmetrics
from sklearn.metrics import roc_auc_score
from torchmetrics.classification import BinaryAUROC, BinaryAveragePrecision

print("torchmetrics", torchmetrics.__version__, "scikit-learn", sklearn.__version__)
clients = {
    "both labels": [0, 0, 1, 1],
    "positives only": [1, 1, 1, 1],
    "negatives only": [0, 0, 0, 0],
}
found = {}
for name, labels in clients.items():
    labels = torch.tensor(labels)
    scores = torch.where(labels == 1, 0.9, 0.1)  # of a perfect model
    found[name] = (
        BinaryAUROC()(scores, labels).item(),
        float(roc_auc_score(labels, scores)),
        BinaryAveragePrecision()(scores, labels).item(),
    )
    print(f"{name}: AUROC {found[name][0]}, by scikit-learn {found[name][1]}, average precision {found[name][2]}")
mixed = [found["both labels"][0]] * 5 + [found["positives only"][0]] * 3 + [found["negatives only"][0]] * 2
print(f"mean AUROC of a perfect model over ten clients, five of them with one label: {sum(mixed) / 10}, expected 1.0")
assert found["both labels"] == (1, 1, 1)
assert found["positives only"][0] == found["negatives only"][0] == 0
assert math.isnan(found["positives only"][1]) and math.isnan(found["negatives only"][1])
assert found["positives only"][2] == 1 and found["negatives only"][2] == 0
PYTHON
