#!/bin/sh
# Column "theirs" of nvflare in docs/coming_from/table.toml, by running it.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip() { "$folder/venv/bin/pip" install --quiet --disable-pip-version-check "$@"; }
pip nvflare==2.9.0
PYTHONPATH="$here" "$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
from compare import compare
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AlgorithmConstants
from nvflare.app_common.workflows.base_fedavg import BaseFedAvg
from nvflare.app_common.workflows.scaffold import scaffold_aggregate_fn

DIFFERENCE = AlgorithmConstants.SCAFFOLD_CTRL_DIFF


def results(steps):
    return [
        FLModel(
            params={"x": np.array([float(i)])},
            params_type=ParamsType.FULL,
            current_round=0,
            meta={
                "NUM_STEPS_CURRENT_ROUND": number,
                "client_name": str(i),
                DIFFERENCE: {"x": np.ones(1)},
            },
        )
        for i, number in enumerate(steps)
    ]


measured = {
    "weights": float(BaseFedAvg.aggregate_fn(results([5, 5])).params["x"][0]),
    "steps": float(BaseFedAvg.aggregate_fn(results([10, 30])).params["x"][0]),
    "scaffold": float(scaffold_aggregate_fn(results([5, 5])).meta[DIFFERENCE]["x"][0]),
}
compare("nvflare", "nvflare", measured)
PYTHON
