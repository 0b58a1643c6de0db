#!/bin/sh
# Column "theirs" of declearn in docs/coming_from/table.toml, by running it.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip() { "$folder/venv/bin/pip" install --quiet --disable-pip-version-check "$@"; }
pip declearn==2.9.1
PYTHONPATH="$here" "$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
from compare import compare
from declearn.aggregator import AveragingAggregator
from declearn.model.sklearn import NumpyVector
from declearn.optimizer import modules


def vector(value):
    return NumpyVector({"x": np.array([float(value)])})


def path(module):
    x, result = 0.0, []
    for _ in range(3):
        x += 0.1 * float(module.run(vector(1)).coefs["x"][0])
        result.append(x)
    return result


def share(steps):
    rule = AveragingAggregator()
    first, second = (rule.prepare_for_sharing(vector(i), n) for i, n in enumerate(steps))
    return float(rule.finalize_updates(first + second).coefs["x"][0])


def controls():
    server, result = modules.ScaffoldServerModule(), []
    for delta, names in ((1, "ab"), (0, "cd")):
        first, second = (modules.ScaffoldAuxVar(delta=vector(delta), clients={n}) for n in names)
        server.process_aux_var(first + second)
        result.append(float(server.collect_aux_var().state.coefs["x"][0]))
    return result


adaptive = [
    modules.AdamModule(beta_1=0.9, beta_2=0.99, eps=1e-3),
    modules.YogiModule(beta_1=0.9, beta_2=0.99, eps=1e-3),
    modules.AdaGradModule(eps=1e-3),
]
measured = {
    "optimisers": [x for module in adaptive for x in path(module)],
    "momentum": path(modules.MomentumModule(beta=0.9)) + path(modules.EWMAModule(beta=0.9)),
    "weights": [share((10, 30)), share((5, 5))],
    "scaffold": controls(),
}
compare("declearn", "declearn", measured)
PYTHON
