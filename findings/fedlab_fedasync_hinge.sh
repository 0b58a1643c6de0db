#!/bin/sh
# FedLab's FedAsync with hinge staleness: for small slopes a late model weighs more than one in time.
#
# Guess: beyond b rounds the weight alpha is divided by a (staleness - b) + 1, which begins at 1.  It is
# divided by a (staleness - b + 1).  With a = 10 the weight falls to a twentieth, not an eleventh,
# one round after b.  With a = 0.1 it rises to five times alpha: 3 for alpha 0.6, so the server goes three
# times as far as to a late client's model.  Ten rounds after b the weight is below alpha for the first time.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check torch==2.13.0 numpy==2.4.6 tqdm
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps fedlab==1.3.0
"$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata
import sys
import warnings
from unittest import mock

import torch

warnings.simplefilter("ignore")
# only parts that are not used here need these
sys.modules.update({name: mock.MagicMock() for name in ("torchvision", "PIL", "sklearn", "sklearn.datasets", "pynvml", "munch", "pandas")})
from fedlab.contrib.algorithm.basic_server import AsyncServerHandler

print("fedlab", importlib.metadata.version("fedlab"))


def after(staleness, slope, alpha=0.6, b=4):
    """The server's model, 0 before, after a client's model of 1 that is late by this many rounds."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    server = AsyncServerHandler(model, 100)
    server.setup_optim(alpha, strategy="hinge", a=slope, b=b)
    server.round = 50
    server.load([torch.tensor([1.0]), torch.tensor([50.0 - staleness])])
    return server.model_parameters.item()


for slope in (10, 0.5, 0.1):
    found = {staleness: round(after(staleness, slope), 4) for staleness in (0, 4, 5, 6, 12, 14)}
    paper = {s: round(0.6 / (slope * max(s - 4, 0) + 1), 4) for s in found}
    print(f"a {slope}: by staleness {found}, paper {paper}")
assert abs(after(4, 0.1) - 0.6) < 1e-5 and abs(after(5, 0.1) - 3) < 1e-4
assert abs(after(5, 10) - 0.03) < 1e-5
assert after(12, 0.1) > 0.6 > after(14, 0.1)
PYTHON
