#!/bin/sh
# fluke's pFedMe: the penalty is the distance of the model to itself, so lambda has no effect.
#
# Guess: the personal model is held near the client's own model w by lambda / 2 |theta - w|^2, and w follows it and is
# sent.  The optimiser gets the parameters of the model that it moves as w, so that the pull is 0.  w is
# moved and then overwritten by theta, which is what is sent.  With lambda 0 and 15 a client sends the same
# model to the last bit: that of SGD with k steps for each minibatch, and a decay to 0 by mu.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check torch==2.13.0 numpy rich diskcache omegaconf psutil typer torchmetrics matplotlib pandas scikit-learn seaborn cerberus
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps fluke-fl==0.8.1
"$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata

import torch
from fluke.algorithms.pfedme import PFedMeClient, PFedMeOptimizer, PFedMeServer
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader

print("fluke-fl", importlib.metadata.version("fluke-fl"))
RATE, STEPS, EPOCHS = 0.05, 3, 4


class Scalar(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.x = torch.nn.Parameter(torch.zeros(1))

    def forward(self, inputs):
        return self.x * torch.ones(len(inputs))


def loss(x, y):
    return ((x - y) ** 2).mean() / 2


def sent(penalty, rounds=2):
    """What a client with its optimum at 1 sends in each of two rounds, the server staying at 0."""
    data = FastDataLoader(torch.ones(2, 1), torch.ones(2), num_labels=1, batch_size=2)
    rule = OptimizerConfigurator(
        {"name": PFedMeOptimizer, "lr": RATE, "lamda": penalty, "mu": 0.0}, {"name": "StepLR", "step_size": 1, "gamma": 1.0}
    )
    client = PFedMeClient(0, data, None, rule, loss, local_epochs=EPOCHS, k=STEPS)
    server = PFedMeServer(Scalar(), None, [client])
    client.set_channel(server.channel)
    found = []
    for number in range(rounds):
        server.broadcast_model([client])
        client.local_update(number)
        (model,) = server.receive_client_models([client], state_dict=False)
        found.append(model.x.item())
    return found


def paper(penalty):
    """theta and w of the paper after a round that starts at 0, with the same rate for both."""
    theta = w = 0.0
    for _ in range(EPOCHS):
        for _ in range(STEPS):
            theta -= RATE * (theta - 1 + penalty * (theta - w))
        w -= penalty * RATE * (w - theta)
    return theta, w


plain = 1 - (1 - RATE) ** (STEPS * EPOCHS)
for penalty in (0.0, 1.0, 15.0):
    theta, w = paper(penalty)
    print(f"lambda {penalty}: fluke sends {sent(penalty)}; the paper's w {w:.4f}, theta {theta:.4f}; SGD {plain:.4f}")
assert sent(0.0) == sent(1.0) == sent(15.0)
assert abs(sent(15.0)[0] - plain) < 1e-5
assert paper(0.0)[1] == 0 and paper(15.0)[1] < plain - 0.05
PYTHON
