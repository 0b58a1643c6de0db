#!/bin/sh
# NumPy's mean over the first axis of float32 adds one number after the other.
#
# Guess: np.mean of a float32 array errs by about 1e-7, since NumPy sums pairwise.  It does so along
# the last axis in memory only.  The mean over the first axis, as in np.mean(np.stack(values), axis=0),
# adds rows to a float32 sum: the mean of a million rows of 0.1 is 0.101, the same numbers transposed
# give 0.1.  Metrics per example and statistics over many clients are averaged like this.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import numpy as np

print("numpy", np.__version__)
rows = np.full((1_000_000, 2), 0.1, np.float32)
first = rows.mean(axis=0)
last = np.ascontiguousarray(rows.T).mean(axis=1)
print("over the first axis", first, "over the last axis", last)
assert np.all(np.abs(first - 0.1) > 5e-4)
assert np.all(np.abs(last - 0.1) < 1e-6)
PYTHON
