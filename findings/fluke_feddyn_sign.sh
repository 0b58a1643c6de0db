#!/bin/sh
# fluke's FedDyn: the linear term has the wrong sign, so clients and server run away from the optimum.
#
# Guess: a client minimises f(x) - <h, x> + alpha/2 |x - s|^2, where h sums up alpha (s - x), and the server
# subtracts the mean of h / alpha, so that all come to rest where the mean gradient is 0.  The penalty is
# alpha <x, h - s>: h with the opposite sign, and alpha a second time.  The server adds the mean of h.
# Two clients x^2 / 2 and 3 (x - 1)^2 / 2 have the optimum 0.75.  After 20 rounds with alpha 1 the paper's
# rule is there to five digits and fluke at -74 and growing.  With alpha 0.1 its clients are farther from
# each other than their own optima, 0 and 1.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check torch==2.13.0 numpy rich diskcache omegaconf psutil typer torchmetrics matplotlib pandas scikit-learn seaborn cerberus
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps fluke-fl==0.8.1
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata

import torch
from fluke.algorithms.feddyn import FedDynClient, FedDynServer
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader

print("fluke-fl", importlib.metadata.version("fluke-fl"))


class Scalar(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.x = torch.nn.Parameter(torch.zeros(1))

    def forward(self, inputs):
        return self.x * torch.ones(len(inputs))


def loss(x, y):
    return (y[:, 0] * (x - y[:, 1]) ** 2).mean() / 2


problems = ((1.0, 0.0), (3.0, 1.0))


def fluke(alpha, rounds=20):
    clients = []
    for index, problem in enumerate(problems):
        y = torch.tensor([problem, problem])
        data = FastDataLoader(torch.ones(2, 1), y, num_labels=1, batch_size=2)
        rule = OptimizerConfigurator({"name": "SGD", "lr": 0.25}, {"name": "StepLR", "step_size": 1, "gamma": 1.0})
        client = FedDynClient(index, data, None, rule, loss, local_epochs=40, alpha=alpha, clipping=0)
        client.weight = 1.0
        clients.append(client)
    server = FedDynServer(Scalar(), None, clients, alpha=alpha)
    for client in clients:
        client.set_channel(server.channel)
    for number in range(rounds):
        server.broadcast_model(clients)
        for client in clients:
            client.local_update(number)
        server.aggregate(clients, list(server.receive_client_models(clients, state_dict=False)))
    return server.model.x.item(), [client.model.x.item() for client in clients]


def paper(alpha, rounds=20):
    s, h = 0.0, [0.0, 0.0]
    for _ in range(rounds):
        x = [(a * b + hi + alpha * s) / (a + alpha) for (a, b), hi in zip(problems, h)]
        h = [hi - alpha * (xi - s) for hi, xi in zip(h, x)]
        s = sum(x) / 2 - sum(h) / 2 / alpha
    return s


found = {alpha: fluke(alpha) for alpha in (0.1, 1.0)}
for alpha, (server, ends) in found.items():
    print(f"alpha {alpha}: paper {paper(alpha):.5f}, fluke's server {server:.4f}, clients", ends)
assert abs(paper(1.0) - 0.75) < 1e-5
assert found[1.0][0] < -50
assert found[0.1][1][0] < 0 and found[0.1][1][1] > 1
PYTHON
