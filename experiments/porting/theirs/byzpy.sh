#!/bin/sh
# Column "theirs" of byzpy in docs/coming_from/table.toml, by running it.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip() { "$folder/venv/bin/pip" install --quiet --disable-pip-version-check "$@"; }
pip torch==2.13.0 numpy
pip byzpy==0.1.4
PYTHONPATH="$here" "$folder/venv/bin/python" - <<'PYTHON'
import torch
from byzpy.aggregators.coordinate_wise.median import CoordinateWiseMedian
from byzpy.aggregators.coordinate_wise.trimmed_mean import CoordinateWiseTrimmedMean
from byzpy.aggregators.geometric_wise.geometric_median import GeometricMedian
from byzpy.aggregators.geometric_wise.krum import Krum, MultiKrum
from byzpy.attacks.little import LittleAttack
from compare import compare


def vectors(*values):
    return [torch.tensor([float(value)], dtype=torch.float64) for value in values]


seven = vectors(12, 14, 20, 39, 45, 52, 59)
nan_of_five = vectors(1, 2, float("nan"), 3, 4)
measured = {
    "krum": float(Krum(f=2).aggregate(seven)),
    "multikrum": float(MultiKrum(f=2, q=5).aggregate(seven)),
    "trimmed": float(CoordinateWiseTrimmedMean(f=2).aggregate(seven)),
    "median": [
        float(CoordinateWiseMedian().aggregate(values))
        for values in (seven, vectors(1, 2, 3, 4))
    ],
    "geometric": float(GeometricMedian().aggregate(seven)),
    "little": float(LittleAttack(f=2).apply(honest_grads=vectors(1, 2, 4))),
    "nan": [
        float(rule.aggregate(nan_of_five))
        for rule in (CoordinateWiseMedian(), CoordinateWiseTrimmedMean(f=1), Krum(f=1))
    ],
}
compare("byzpy", "byzpy", measured)
PYTHON
