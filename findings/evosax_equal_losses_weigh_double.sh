#!/bin/sh
# evosax's SimpleES: where candidates have equal losses the weights do not sum to 1, so the search runs away.
#
# Guess: candidates with equal losses share the weights of their ranks, and a loss that tells nothing leaves the
# search where chance takes it.  Each gets the weight of the mean of their ranks, rounded down.  Half of
# the ranks have a weight: of ten equal candidates each has that of rank 4 of 0 to 9, which is 0.2, together
# 2; of eleven each has that of rank 5, which is 0.  On a flat loss, such as accuracy on a few
# examples, the spread grows from 1 to 40 in 100 generations, or falls to 0.00003.  With a fitness_shaping_fn
# that shares the weights it ends at 0.8, and at 0.6 where losses are random numbers.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check \
    jax==0.10.2 jaxlib==0.10.2 evosax==0.3.2 flax==0.12.8 optax==0.2.8 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata

import jax
import jax.numpy as jnp
import numpy as np
from evosax.algorithms import SimpleES

print("evosax", importlib.metadata.version("evosax"))
GENERATIONS, SEARCHES = 100, 50


def shared(population, losses, state, params):
    """Of candidates with equal losses each gets the mean of the weights of their ranks."""
    ranked = jnp.zeros(losses.size).at[jnp.argsort(losses)].set(params.weights)
    equal = losses[:, None] == losses
    return equal @ ranked / equal.sum(1)


def search(rule, loss):
    """How far the mean went and the spread in the end, medians over searches."""
    def generation(carry, key):
        state, (ask, tell, chance) = carry, jax.random.split(key, 3)
        population, state = rule.ask(ask, state, rule.default_params)
        losses = loss(chance, (rule.population_size,))
        return rule.tell(tell, population, losses, state, rule.default_params)[0], None

    def run(key):
        state = rule.init(key, jnp.ones(3), rule.default_params)
        state, _ = jax.lax.scan(generation, state, jax.random.split(key, GENERATIONS))
        return jnp.linalg.norm(state.mean - 1), state.std.mean()

    found = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), SEARCHES))
    return tuple(float(np.median(x)) for x in found)


def flat(key, shape):
    return jnp.ones(shape)


for number in (10, 11):
    rules = {"by default": SimpleES(number, jnp.zeros(3)),
             "shared": SimpleES(number, jnp.zeros(3), fitness_shaping_fn=shared)}
    for best in (1, 3, 5, 7, 9, number):
        losses = (jnp.arange(number) >= best).astype(jnp.float32)
        sums = [float(rule.fitness_shaping_fn(jnp.zeros((number, 3)), losses, None, rule.default_params).sum())
                for rule in rules.values()]
        print(f"{number} candidates, {best} equally good, the others equally bad: weights sum to {sums[0]:.2f}, "
              f"shared {sums[1]:.2f}")
        expected = (0.2 * best if best < number else 2 if number == 10 else 0)
        assert abs(sums[0] - expected) < 1e-5 and abs(sums[1] - 1) < 1e-5
    for name, rule in rules.items():
        for kind, loss in (("by chance", jax.random.normal), ("equal", flat)):
            moved, spread = search(rule, loss)
            print(f"{number} candidates, weights {name}, losses {kind}: the mean moved by {moved:.2f}, the "
                  f"spread went from 1 to {spread:.5f}")
            if name == "by default" and kind == "equal":
                assert (spread > 20 and moved > 50) if number == 10 else (spread < 1e-4 and moved == 0)
            else:
                assert 0.3 < spread < 2 and 2 < moved < 12
PYTHON
