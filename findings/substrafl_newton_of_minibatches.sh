#!/bin/sh
# substrafl's Newton-Raphson: with minibatches the gradient of several outputs is another one.
#
# Guess: one gradient and one Hessian are taken over all examples of a client, so that the size of
# the minibatches changes memory only.  Gradients are added by Python's sum(total, gradient), which
# sums the rows of the total and adds this to every row.  With one output there is one row and all
# is right; for 4 classes and 60 examples in minibatches of 10 the error is 14 times the gradient,
# and 8 rounds end at a loss above 1e30, those with one minibatch at 1.3.  The Hessian is right.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check \
    torch==2.13.0 numpy==2.4.6 pydantic cloudpickle tqdm packaging requests pyyaml \
    python-slugify docker
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps \
    substrafl==1.0.0 substra==1.0.0 substratools==1.0.0
"$folder/venv/bin/python" - 2>"$folder/log" <<'PYTHON' || { cat "$folder/log"; exit 1; }
import importlib.metadata

import numpy as np
import torch
from substrafl.algorithms.pytorch import TorchNewtonRaphsonAlgo
from substrafl.strategies import NewtonRaphson

print("substrafl", importlib.metadata.version("substrafl"))
EXAMPLES, FEATURES, CLASSES, PENALTY = 60, 3, 4, 0.1
torch.manual_seed(0)
inputs = torch.randn(EXAMPLES, FEATURES)
labels = torch.randint(0, CLASSES, (EXAMPLES,))


class Examples(torch.utils.data.Dataset):
    def __init__(self, data_from_opener, is_inference=False):
        self.inputs, self.targets = data_from_opener

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index]


def run(outputs, size):
    """The error of the first gradient, its size, and the losses before 8 rounds and after them."""
    torch.manual_seed(1)
    linear = torch.nn.Linear(FEATURES, outputs)
    torch.nn.init.zeros_(linear.bias)
    loss = torch.nn.CrossEntropyLoss() if outputs > 1 else torch.nn.MSELoss()
    data = inputs, labels if outputs > 1 else labels.float()[:, None]

    class Client(TorchNewtonRaphsonAlgo):
        def __init__(self):
            super().__init__(
                model=linear, criterion=loss, batch_size=size, dataset=Examples, l2_coeff=PENALTY
            )

    def objective():
        penalty = sum((p**2).sum() for p in linear.parameters())
        return loss(linear(data[0]), data[1]) + PENALTY / 2 * penalty

    client = Client()
    server = NewtonRaphson(client, damping_factor=1.0)
    losses = [objective().item()]
    right = torch.autograd.grad(objective(), list(linear.parameters()))
    state = client.train(data_from_opener=data, _skip=True)
    error = max(np.abs(a - b.numpy()).max() for a, b in zip(state.gradients, right, strict=True))
    for _ in range(8):
        step = server.compute_averaged_states(shared_states=[state], _skip=True)
        state = client.train(data_from_opener=data, shared_state=step, _skip=True)
        losses.append(objective().item())
    return error, max(b.abs().max().item() for b in right), losses[0], losses[-1]


found = {}
for outputs in (1, CLASSES):
    for size in (EXAMPLES, 10):
        found[outputs, size] = run(outputs, size)
        error, largest, first, last = found[outputs, size]
        print(f"{outputs} outputs, minibatches of {size}: gradient up to {largest:.2f}, its error "
              f"{error:.1e}; loss {first:.3f}, after 8 rounds {last:.3g}")
for case in ((1, EXAMPLES), (1, 10), (CLASSES, EXAMPLES)):
    assert found[case][0] < 1e-5
    assert found[case][3] < found[case][2]
assert abs(found[1, EXAMPLES][3] - found[1, 10][3]) < 1e-4
assert found[CLASSES, 10][0] > 5 * found[CLASSES, 10][1]
assert not found[CLASSES, 10][3] < found[CLASSES, 10][2]
PYTHON
