#!/bin/sh
# optax's Rprop: each step is that of the gradient before, and the first one is 0.
#
# Guess: with one set of settings optax's and PyTorch's Rprop take the same steps.  optax returns
# the step that it kept from the last call instead of the new one.  The first call returns 0, so a
# client with one local step sends no update, and one whose visits are short loses a step in each;
# and after a change of the sign the parameter stays for two steps.  With PyTorch's steps of
# gradient k the two agree at k + 1, as long as no sign changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check \
    torch==2.13.0 numpy==2.4.6 optax==0.2.8 jax==0.10.2 jaxlib==0.10.2
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import jax.numpy as jnp
import numpy as np
import optax
import torch

print("optax", optax.__version__, "torch", torch.__version__)


def in_optax(gradients):
    """The steps of one parameter."""
    rule = optax.rprop(0.1, eta_minus=0.5, eta_plus=1.2, min_step_size=1e-6, max_step_size=50.0)
    state, steps = rule.init(jnp.float32(0)), []
    for gradient in gradients:
        step, state = rule.update(jnp.float32(gradient), state)
        steps.append(float(step))
    return np.array(steps)


def in_torch(gradients):
    x = torch.zeros(1, requires_grad=True)
    rule = torch.optim.Rprop([x], 0.1, etas=(0.5, 1.2), step_sizes=(1e-6, 50.0))
    path = [0.0]
    for gradient in gradients:
        x.grad = torch.full((1,), gradient)
        rule.step()
        path.append(x.item())
    return np.diff(path)


for gradients in ([1.0] * 6, [1.0, 1.0, 1.0, -1.0, -1.0, -1.0]):
    late, right = in_optax(gradients), in_torch(gradients)
    print("gradients", gradients)
    print("  optax", late.round(4).tolist(), "torch", right.round(4).tolist())
    assert late[0] == 0
    assert np.isclose(right[0], -0.1)
    if min(gradients) > 0:
        assert np.allclose(late[1:], right[:-1])
    else:
        assert np.allclose(late[3:5], 0)
        assert right[3] == 0 < right[4]
PYTHON
