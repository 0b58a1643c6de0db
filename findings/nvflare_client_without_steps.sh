#!/bin/sh
# NVFlare: a client that reports no number of steps, or none done, weighs as one step.
#
# Guess: if a number of steps is missing, clients are averaged equally, or it is an error; a client that
# did 0 steps weighs 0.  Both have the weight 1.  Where one client reports 30 steps and another,
# which did the same, leaves the entry out, the shares are 30/31 and 1/31; where everybody leaves it
# out, they are equal, so a script that reports nothing works alone and fails beside one that does.
# A client without data takes part in the average with the model as it was.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check nvflare==2.9.0
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata

import numpy as np
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.workflows.base_fedavg import BaseFedAvg

print("nvflare", importlib.metadata.version("nvflare"))


def share_of_second(*reports):
    results = [
        FLModel(
            params={"x": np.array([float(i)])},
            params_type=ParamsType.FULL,
            current_round=0,
            meta={"client_name": str(i), **report},
        )
        for i, report in enumerate(reports)
    ]
    return float(BaseFedAvg.aggregate_fn(results).params["x"][0])


def steps(number):
    return {"NUM_STEPS_CURRENT_ROUND": number}


shares = {
    "30 and 30 steps": share_of_second(steps(30), steps(30)),
    "nothing and nothing": share_of_second({}, {}),
    "nothing and 30 steps": share_of_second({}, steps(30)),
    "3 and 0 steps": share_of_second(steps(3), steps(0)),
}
print(shares)
assert np.allclose(list(shares.values()), [1 / 2, 1 / 2, 30 / 31, 1 / 4])
PYTHON
