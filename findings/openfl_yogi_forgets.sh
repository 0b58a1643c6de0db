#!/bin/sh
# OpenFL's Yogi: the second moment decays as fast as Adam's.
#
# Guess: Yogi changes its second moment by (1 - b2) g^2 towards g^2, so that it falls slowly after a
# large update, which is all that sets it apart from Adam.  Here the moment is also multiplied by b2 in
# every round: after one update of size 1 and 2,000 of size 0.001 it is 0.00013, Adam's is 0.00014, and
# Yogi's rule keeps 0.001.  Comparisons of the two optimizers compare Adam with nearly itself.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check numpy==2.4.6 dynaconf==3.3.5 tqdm pandas
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps openfl==1.9
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata

import numpy as np
from openfl.utilities.optimizers.numpy.adam_optimizer import NumPyAdam
from openfl.utilities.optimizers.numpy.yogi_optimizer import NumPyYogi

print("openfl", importlib.metadata.version("openfl"))
gradients = [1.0] + [0.001] * 2000


def moment(rule):
    optimizer = rule(params={"x": np.zeros(1)}, betas=(0.9, 0.999))
    for gradient in gradients:
        optimizer.step({"x": np.full(1, gradient)})
    return optimizer.grads_second_moment["x"].item()


paper = 0.0
for gradient in gradients:
    paper -= 0.001 * gradient**2 * np.sign(paper - gradient**2)
yogi, adam = moment(NumPyYogi), moment(NumPyAdam)
print(f"second moment: NumPyYogi {yogi:.6f} NumPyAdam {adam:.6f} rule of the paper {paper:.6f}")
assert abs(paper - 0.000998) < 1e-6
assert yogi < adam < 0.15 * paper
PYTHON
