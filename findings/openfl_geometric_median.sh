#!/bin/sh
# OpenFL's geometric median: it goes to the model nearest to the mean, outliers included.
#
# Guess: Weiszfeld's steps, which weight every client by its share over its distance.  Each step
# multiplies the weights of the step before by 1 / distance, so the shares are forgotten and the nearest
# model takes everything.  Of five scalars 0, 1, 3, 7 and 20 the geometric median is the median, 3; the
# result is 6.99, since the outlier draws the mean from which the steps start to 6.2.  More steps come
# closer to 7, none to 3.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check numpy==2.4.6 dynaconf==3.3.5 tqdm pandas
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps openfl==1.9
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata

import numpy as np
from openfl.interface.aggregation_functions.geometric_median import geometric_median

print("openfl", importlib.metadata.version("openfl"))


def distances(median, models):
    return np.abs(models - median).sum()


models = np.array([[0.0], [1.0], [3.0], [7.0], [20.0]])
shares = np.ones(5) / 5
found = {steps: geometric_median(models, shares, maxiter=steps).item() for steps in (1, 4, 20)}
print("mean", models.mean(), "median", np.median(models), "by number of steps", found)
for value in (3.0, found[4]):
    print(f"sum of distances from {value:.3f}: {distances(value, models):.3f}")
assert abs(found[4] - 7) < 0.01  # four steps are the default
assert abs(found[20] - 7) < 1e-6
assert distances(found[4], models) > distances(3.0, models) + 3
PYTHON
