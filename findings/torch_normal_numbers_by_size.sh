#!/bin/sh
# PyTorch's normal numbers on a CPU: a tensor of 15 and one of 16 begin with other numbers.
#
# Guess: for one seed a longer tensor continues a shorter one.  From 16 entries on another algorithm
# draws them, so the first entries of randn(16) are not those of randn(15).  Initial values of small
# layers, noise per parameter and draws per client change entirely when a width crosses 16; uniform
# numbers do not.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import torch

print("torch", torch.__version__)


def first(draw, size):
    torch.manual_seed(0)
    return [round(x, 4) for x in draw(size)[:3].tolist()]


for size in (10, 15, 16, 20):
    print(size, "normal", first(torch.randn, size), "uniform", first(torch.rand, size))
assert first(torch.randn, 10) == first(torch.randn, 15)
assert first(torch.randn, 16) == first(torch.randn, 20)
assert first(torch.randn, 15) != first(torch.randn, 16)
assert first(torch.rand, 15) == first(torch.rand, 16)
PYTHON
