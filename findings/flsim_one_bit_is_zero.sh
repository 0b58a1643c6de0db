#!/bin/sh
# FLSim's quantisation to one bit: nearly every entry of an update becomes 0, and with symmetric levels all do.
#
# Guess: one bit keeps the sign, or one of two values around the entries, as in signSGD or QSGD.  Levels are
# those of PyTorch's integers of one bit, -1 and 0, and 0 has to be one of them: the other one is as far from
# it as the smallest and the largest entry are from each other, so all but extreme entries are nearer to 0.
# Of 10,000 normal numbers one differs from 0 afterwards, and for symmetric levels none, so that a model
# hardly trains or not at all, and nothing says so.  From two bits on the update keeps its direction.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check torch==2.13.0 numpy==2.4.6 hydra-core==1.3.2 omegaconf==2.3.0 pandas==2.3.3 scikit-learn==1.8.0
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps flsim==0.1.0
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata

import torch
from flsim.channels.message import Message
from flsim.channels.scalar_quantization_channel import (
    ScalarQuantizationChannel,
    ScalarQuantizationChannelConfig,
)
from omegaconf import OmegaConf

print("flsim", importlib.metadata.version("flsim"), "torch", torch.__version__)


class Update:
    """The interface of a model that a channel uses."""

    def __init__(self, module):
        self.module = module

    def fl_get_module(self):
        return self.module


def sent(entries, bits, scheme):
    layer = torch.nn.Linear(1000, 10, bias=False)
    layer.weight.data.copy_(entries)
    settings = OmegaConf.structured(ScalarQuantizationChannelConfig(n_bits=bits, qscheme=scheme))
    message = ScalarQuantizationChannel(**settings).client_to_server(Message(Update(layer)))
    return message.model.fl_get_module().weight.data


entries = torch.randn(10, 1000, generator=torch.Generator().manual_seed(0))
found = {}
for scheme in ("affine", "symmetric"):
    for bits in (1, 2, 8):
        received = sent(entries, bits, scheme)
        nonzero = received.count_nonzero().item()
        product = ((entries * received).sum() / entries.square().sum()).item()
        found[scheme, bits] = nonzero, product
        print(
            f"{scheme}, {bits} bits: {nonzero} of {entries.numel()} entries differ from 0,"
            f" {product:.3f} of the update along the one before"
        )
assert found["affine", 1][0] < 100 and found["affine", 1][1] < 0.05
assert found["symmetric", 1][0] == 0
assert all(abs(found[scheme, 8][1] - 1) < 0.01 for scheme in ("affine", "symmetric"))
PYTHON
