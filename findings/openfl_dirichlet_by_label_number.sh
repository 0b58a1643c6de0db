#!/bin/sh
# OpenFL's Dirichlet split: labels with high numbers are held by fewer clients.
#
# Guess: every label is split by shares from one Dirichlet distribution, so labels are exchangeable.
# Labels are dealt out in their order, and a client that has its part of the examples gets none of the
# later ones, whose shares are scaled up for the rest: with alpha 0.5 and 20 clients label 0 is held
# by 18.2 of them and label 9 by 10.2; without the rule it is 17.5.  OpenFL names FedMA's code as its
# source, and FedML and FedLab have the rule, too, so results per label depend on their numbers.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check numpy==2.4.6 dynaconf==3.3.5 tqdm pandas
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps openfl==1.9
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata

import numpy as np
from openfl.utilities.data_splitters import DirichletNumPyDataSplitter

print("openfl", importlib.metadata.version("openfl"))
labels = np.repeat(np.arange(10), 600)


def holders(alpha):
    counts = np.zeros(10)
    for seed in range(40):
        splitter = DirichletNumPyDataSplitter(alpha=alpha, min_samples_per_col=1, seed=seed)
        for indices in splitter.split(labels, 20):
            counts[np.unique(labels[indices])] += 1 / 40
    return counts


def without_rule(alpha):
    rng = np.random.default_rng(0)
    sizes = rng.multinomial(600, rng.dirichlet([alpha] * 20, 2000))
    return (sizes > 0).sum(1).mean()


for alpha in (0.5, 5.0):
    found = holders(alpha)
    print(f"alpha {alpha}: clients that hold labels 0 to 9", found.round(1).tolist())
    print(f"of one Dirichlet distribution per label: {without_rule(alpha):.1f}")
    assert abs(found[0] - without_rule(alpha)) < 1
    assert found[9] < 0.8 * found[0]
PYTHON
