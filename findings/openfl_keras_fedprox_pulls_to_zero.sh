#!/bin/sh
# OpenFL's FedProx for Keras: the proximal term pulls every weight to 0, wherever the server's model is.
#
# Guess: steps follow g + mu (x - s), where s is the model when the optimizer is built, as its text says, so that
# a client whose loss has optimum 7 and curvature 1 comes from s = 5 to (7 + 5 mu) / (1 + mu), 6 for mu = 1.
# The variables for s are made by Keras, which fills them with 0, and nothing sets them later: the rule is SGD
# with weight decay mu, and the client ends at 3.5.  A larger mu, which should keep clients at the server's
# model, keeps them at 0; without a gradient the received model decays.  The optimizer for PyTorch gets s by a call.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check \
    tensorflow-cpu==2.21.0 keras==3.15.1 numpy==2.4.6 dynaconf==3.3.5 tqdm pandas scikit-learn
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps openfl==1.9
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" - 2>"$folder/log" <<'PYTHON' || { cat "$folder/log"; exit 1; }
import importlib.metadata

import keras
import tensorflow as tf
from openfl.utilities.optimizers.keras import FedProxOptimizer

print("openfl", importlib.metadata.version("openfl"), "keras", keras.__version__)
OPTIMUM, SENT, RATE, STEPS = 7.0, 5.0, 0.2, 30


def visit(optimizer, curvature):
    """A client that receives SENT, after STEPS steps on curvature / 2 (x - OPTIMUM)^2."""
    weight = tf.Variable([SENT])
    optimizer.build([weight])
    for _ in range(STEPS):
        optimizer.apply_gradients([(curvature * (weight - OPTIMUM), weight)])
    return float(weight[0])


for mu in (0.0, 1.0, 3.0):
    found = visit(FedProxOptimizer(RATE, mu=mu), 1.0)
    proximal, decayed = (OPTIMUM + mu * SENT) / (1 + mu), OPTIMUM / (1 + mu)
    still = visit(FedProxOptimizer(RATE, mu=mu), 0.0)
    print(f"mu {mu}: from {SENT} to {found:.3f}; FedProx {proximal:.3f}, weight decay {decayed:.3f}; "
          f"without a gradient {still:.3f}, FedProx {SENT}")
    assert abs(found - decayed) < 0.01
    assert (abs(found - proximal) > 1) == (mu > 0)
    assert (still < 0.1) == (mu > 0)
PYTHON
