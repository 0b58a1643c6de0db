#!/bin/sh
# flax's RNN: a sequence of length 0 has the carry after all of its padding, and padded outputs are no zeros.
#
# Guess: the carry that is returned is the one after the last real step, so that without steps it is the
# initial one, and outputs beyond the length are 0, as PyTorch's are.  The carry of step length - 1 is taken,
# which for length 0 is the last of all steps: the encoding of an empty text depends on the tokens of padding
# and on how far its minibatch was padded.  Outputs go on through the padding, so a mean over time needs the
# mask again.  Lengths from 1 on have the right carry.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check \
    jax==0.10.2 jaxlib==0.10.2 flax==0.12.8 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

print("flax", flax.__version__, "jax", jax.__version__)
FEATURES, UNITS = 2, 3
inputs = np.random.default_rng(0).normal(size=(1, 6, FEATURES)).astype(np.float32)
linen = nn.RNN(nn.GRUCell(UNITS), return_carry=True)
variables = linen.init(jax.random.key(0), inputs)
of_nnx = nnx.RNN(nnx.GRUCell(FEATURES, UNITS, rngs=nnx.Rngs(0)), return_carry=True, rngs=nnx.Rngs(1))


def by_linen(x, lengths=None):
    return linen.apply(variables, x, seq_lengths=lengths)


def by_nnx(x, lengths=None):
    return of_nnx(x, seq_lengths=lengths)


for name, run in {"linen": by_linen, "nnx": by_nnx}.items():
    for length in (6, 4, 1, 0):
        # The carry without padding: the sequence is cut at its length, or is the initial zeros.
        expected = np.asarray(run(inputs[:, :length])[0]) if length else np.zeros((1, UNITS))
        carries = []
        for padded in (5, 6):
            if padded < length:
                continue
            carry, outputs = run(inputs[:, :padded], jnp.array([length]))
            carries.append(np.asarray(carry))
        beyond = np.abs(outputs[:, length:]).max(initial=0)
        print(f"{name}, length {length}: carries when padded to 5 and 6", *(c[0].round(3) for c in carries),
              f"expected {expected[0].round(3)}; largest output beyond the length {beyond:.3f}")
        right = all(np.allclose(carry, expected, atol=1e-5) for carry in carries)
        assert right == (length > 0)
        assert (beyond > 0.1) == (length < 6)
PYTHON
