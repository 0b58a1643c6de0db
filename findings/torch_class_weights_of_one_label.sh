#!/bin/sh
# PyTorch's weighted cross-entropy: class weights do nothing for a client of one class.
#
# Guess: a weight of 10 makes losses and gradients of that class ten times as large.  The mean divides
# by the sum of the weights of the minibatch, so where all examples are of one class the weight
# cancels.  With one label per client every class weight has the effect of none, in each local step,
# while the same weights matter in centralised training on the same examples.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import torch
from torch.nn.functional import cross_entropy

print("torch", torch.__version__)
weight = torch.tensor([10.0, 1.0])
logits = torch.tensor([[0.3, -0.2], [0.1, 0.4]])
for labels in ([0, 0], [1, 1], [0, 1]):
    plain, weighted = (cross_entropy(logits, torch.tensor(labels), w) for w in (None, weight))
    print(labels, f"unweighted {plain:.6f} weighted {weighted:.6f}")
    assert (abs(plain - weighted) < 1e-6) == (len(set(labels)) == 1)
single = [cross_entropy(logits[i : i + 1], torch.tensor([i]), weight) for i in range(2)]
whole = cross_entropy(logits, torch.tensor([0, 1]), weight)
print(f"mean of the two examples' losses {sum(single) / 2:.6f}, loss of both {whole:.6f}")
assert abs(sum(single) / 2 - whole) > 0.01
PYTHON
