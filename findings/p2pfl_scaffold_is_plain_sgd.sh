#!/bin/sh
# p2pfl's SCAFFOLD for PyTorch: the corrections reach no gradient, and a client's control only grows.
#
# Guess: a step follows g - c_i + c, and after a visit c_i is the mean gradient of that visit.  The
# correction is added before gradients are set to 0, to tensors that have none, with the rate as a
# factor and the sign reversed.  So steps are those of SGD whatever the controls are.  The old c_i is
# kept and c is not subtracted: with gradients of 1 in every step c_i is 1, 2, 3, ... after 1, 2, 3 visits.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check torch==2.13.0 numpy==1.26.4 lightning==2.6.6
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps p2pfl==0.4.4
cd "$folder"
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import logging
import sys
from unittest import mock

import lightning
import numpy as np
import torch

# Another compressor of the package needs these; they are not used here.
sys.modules.update({name: mock.MagicMock() for name in ("opendp", "opendp.prelude")})
from p2pfl.learning.frameworks.pytorch.callbacks.scaffold_callback import SCAFFOLDCallback

for package in ("p2pfl", "lightning", "torch"):
    print(package, importlib.metadata.version(package))
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
STEPS, RATE = 4, 0.1


class Scalar(lightning.LightningModule):
    """A model x with loss x, whose gradient is 1 everywhere."""

    def __init__(self):
        super().__init__()
        self.x = torch.nn.Parameter(torch.zeros(1))

    def training_step(self, batch, number):
        return self.x.sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), RATE)


def visit(callback):
    model = Scalar()
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        callbacks=[callback],
    )
    trainer.fit(model, torch.utils.data.DataLoader(torch.zeros(STEPS, 1)))
    return model.x.item()


callback = SCAFFOLDCallback()
moved = {}
for server in (0.0, 100.0, -100.0):
    callback.c_i = []
    callback.additional_info = {"global_c": [np.array([server], np.float32)]}
    moved[server] = visit(callback)
    print(f"c_i = 0, c = {server}: moved by {moved[server]:.2f}, expected {-STEPS * RATE * (1 + server):.2f}")
assert all(abs(value + STEPS * RATE) < 1e-5 for value in moved.values())

callback, controls = SCAFFOLDCallback(), []
for _ in range(3):
    visit(callback)
    controls.append(round(callback.c_i[0].item(), 4))
print("c_i after 1, 2 and 3 visits with c = 0:", *controls, "expected 1 1 1")
assert controls == [1.0, 2.0, 3.0]
PYTHON
