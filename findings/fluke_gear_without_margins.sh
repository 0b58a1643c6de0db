#!/bin/sh
# fluke's GEAR: a client that lacks one class trains without any margin.
#
# Guess: the margin of class j is delta (n_min / n_j)^(1/4), delta for the client's rarest class and less
# for the others, where n_min is the smallest count among the classes that it holds.  Classes that the
# client does not hold are counted, too: n_min is 0, and so are the margins of all classes that occur.
# With ten labels and fewer on some clients, as in every split by label, these train by plain cross-entropy
# for every delta, and clients with all ten labels by another loss.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check torch==2.13.0 numpy==2.4.6 omegaconf==2.4.0 torchmetrics==1.9.0
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps fluke-fl==0.8.1
"$folder/venv/bin/python" - <<'PYTHON'
import importlib.machinery
import importlib.metadata
import sys
from unittest import mock

import torch

# Packages of the command line, the log and plots, which are not used here.
UNUSED = set("rich diskcache psutil typer matplotlib pandas sklearn seaborn cerberus".split())


class Unused:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in UNUSED:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return mock.MagicMock(__path__=[])

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Unused())
from fluke.algorithms.gear import GEARClient
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader

print("fluke-fl", importlib.metadata.version("fluke-fl"))
DELTA = 2.0


def losses(counts):
    """The margins of a client with so many examples per class, the loss of its data for logits of 0, and both as expected."""
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    data = FastDataLoader(torch.zeros(len(labels), 1), labels, num_labels=len(counts), batch_size=8)
    client = GEARClient(0, data, None, OptimizerConfigurator({"name": "SGD", "lr": 0.1}), None, 1, delta=DELTA)
    loss = client.hyper_params.loss_fn
    logits = torch.zeros(len(labels), len(counts))
    held = torch.tensor([count for count in counts if count], dtype=torch.float32)
    margins = torch.zeros(len(counts))
    margins[torch.tensor(counts) > 0] = DELTA * (held.min() / held) ** 0.25
    shifted = logits - torch.nn.functional.one_hot(labels, len(counts)) * margins
    cross_entropy = torch.nn.functional.cross_entropy
    return loss.margins, loss(logits, labels).item(), margins, cross_entropy(shifted, labels).item()


for counts in ([625, 81, 1], [625, 81, 0]):
    margins, loss, expected, wanted = losses(counts)
    present = torch.tensor(counts) > 0
    print(f"examples per class {counts}, classes that occur: margins {margins[present].tolist()}, loss {loss:.4f}")
    print(f"    expected margins {expected[present].tolist()}, loss {wanted:.4f}")
    if present.all():
        assert torch.allclose(margins, expected) and abs(loss - wanted) < 1e-6
    else:
        assert (margins[present] == 0).all() and abs(loss - torch.log(torch.tensor(3.0)).item()) < 1e-6
        assert wanted > loss + 0.5
PYTHON
