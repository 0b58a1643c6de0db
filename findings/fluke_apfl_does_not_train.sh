#!/bin/sh
# fluke's APFL: the personal model gets no gradient; it is a running mean of the client's shared models.
#
# Guess: both models take SGD steps, the personal one v on the loss of the mixture l v + (1 - l) w.  The
# mixture is a copy whose gradient goes nowhere: v's optimizer steps without a gradient in every minibatch.
# After a visit v becomes the mixture, which is all that moves it.  With l = 1, where APFL is training
# alone, v stays as initialised for ever; with the default 0.25 the model that is evaluated is nearly the
# shared one, and for smaller l nearer, so a sweep over l measures how old the average is.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check torch==2.13.0 numpy rich diskcache omegaconf psutil typer torchmetrics matplotlib pandas scikit-learn seaborn cerberus
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps fluke-fl==0.8.1
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata

import torch
from fluke.algorithms.apfl import APFLClient
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader

print("fluke-fl", importlib.metadata.version("fluke-fl"))


class Scalar(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.x = torch.nn.Parameter(torch.zeros(1))

    def forward(self, inputs):
        return self.x * torch.ones(len(inputs))


def personal(mixture, visits=10):
    """The personal model after visits whose shared model begins at 0 and whose data ask for 1."""
    data = FastDataLoader(torch.ones(2, 1), torch.ones(2), num_labels=1, batch_size=2)
    rule = OptimizerConfigurator(
        {"name": "SGD", "lr": 0.1}, {"name": "StepLR", "step_size": 1, "gamma": 1.0}
    )
    loss = torch.nn.MSELoss()
    client = APFLClient(0, Scalar(), data, None, rule, loss, local_epochs=5, lam=mixture)
    client.model, found = Scalar(), []
    for _ in range(visits):
        torch.nn.init.zeros_(client.model.x)
        client.fit()
        found.append(client.personalized_model.x.item())
    return found, client.model.x.item()


def paper(mixture, visits=10):
    v = 0.0
    for _ in range(visits):
        w = 0.0
        for _ in range(5):
            w -= 0.1 * 2 * (w - 1)
            v -= 0.1 * mixture * 2 * (mixture * v + (1 - mixture) * w - 1)
    return mixture * v + (1 - mixture) * w


for mixture in (1.0, 0.5, 0.25):
    models, shared = personal(mixture)
    expected, average = paper(mixture), 0.0
    for value in models:
        average = mixture * average + (1 - mixture) * shared
        assert abs(value - average) < 1e-6
    print(f"l {mixture}: fluke {models[-1]:.4f}, paper {expected:.4f}, shared model {shared:.4f}")
assert personal(1.0)[0] == [0.0] * 10 and paper(1.0) > 0.99
PYTHON
