#!/bin/sh
# Plato's non-IID split: clients draw from all data with one seed, so that they hold the same examples.
#
# Guess: 100 clients with 600 examples each divide 60,000 examples, or, if each draws for itself, hold 63 % of
# them.  The shares of the labels are drawn with a seed of the client's own, the examples with the seed of
# the configuration, the same for all clients: whoever likes a label holds the same examples of it.
# With concentration 0.5 the 100 clients together hold 5.5 % of the data; with 100, which is nearly IID, 1.3 %, and
# two clients share 94 % of their examples.  More clients bring no more data, and overfitting comes early.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check torch==2.13.0 numpy==2.4.6 pyyaml
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps plato-learn==1.0
cd "$folder"
for concentration in 0.5 100; do
cat > config.yml <<YAML
clients: {type: simple, total_clients: 100, per_client: 10}
server: {address: 127.0.0.1, port: 8000}
data: {datasource: MNIST, sampler: noniid, partition_size: 600, concentration: $concentration, random_seed: 1}
trainer: {type: basic, rounds: 1}
algorithm: {type: fedavg}
YAML
"$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata
from types import SimpleNamespace

import numpy as np
import torch
from plato.config import Config
from plato.samplers.dirichlet import Sampler
from torch.utils.data import WeightedRandomSampler

concentration = Config().data.concentration
print("plato-learn", importlib.metadata.version("plato-learn"), "torch", torch.__version__, "concentration", concentration)
CLIENTS = range(1, 101)
labels = np.random.default_rng(0).integers(10, size=60_000)
source = SimpleNamespace(targets=lambda: labels, classes=lambda: list(range(10)))
samplers = {client: Sampler(source, client, testing=False) for client in CLIENTS}


def own_seed(client):
    """The same draw with a seed of the client's own."""
    generator = torch.Generator().manual_seed(1000 + client)
    return set(WeightedRandomSampler(samplers[client].sample_weights, 600, False, generator=generator))


found = {}
for name, draw in (("Plato", lambda client: set(samplers[client].get())), ("own seeds", own_seed)):
    held = {client: draw(client) for client in CLIENTS}
    assert all(len(examples) == 600 for examples in held.values())
    union = len(set().union(*held.values())) / 60_000
    common = np.mean([len(held[i] & held[j]) / 600 for i in CLIENTS for j in range(1, i)])
    found[name] = union, common
    print(f"{name}: 100 clients hold {union:.1%} of the data, two clients share {common:.1%} of their examples")
assert found["Plato"][0] < 0.1 and abs(found["own seeds"][0] - 0.634) < 0.01
assert found["Plato"][1] > 0.3 and found["own seeds"][1] < 0.02
if concentration == 100:
    assert found["Plato"][0] < 0.02 and found["Plato"][1] > 0.9
PYTHON
done
