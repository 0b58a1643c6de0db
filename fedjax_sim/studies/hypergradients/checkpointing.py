r"""Scans of rounds that store few states and compute the others again for derivatives.

Reverse mode visits the rounds backwards and needs the state before each of them.  With L levels of
rematerialised scans, T rounds form :math:`n = T^{1/L}` segments, each segment n shorter ones, and
so on down to single rounds.  About :math:`L\,T^{1/L}` states and the residuals of one round are
stored at a time; every level costs one more forward run.

References:
    Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016.
    Griewank and Walther, "Algorithm 799: revolve", 2000 (the least recomputation for a number of
        stored states, which needs a schedule that is no nested loop).
"""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import numpy as np

from fedjax_sim.types import PyTree

Checkpoint = Literal["sqrt", "log"] | int | None
Step = Callable[[PyTree, PyTree], PyTree]  # (state, the round's inputs) -> state


class Segments(NamedTuple):
    """Division of rounds: ``number`` segments of equal ``length``, then ``rest`` single rounds."""

    number: int
    length: int
    rest: int


def num_levels(checkpoint: Checkpoint, num_rounds: int) -> int:
    """Returns the number of levels of a policy for T rounds; 0: all residuals are stored."""
    if checkpoint is None:
        return 0
    if checkpoint == "sqrt":
        return 2
    if checkpoint == "log":
        return max(math.ceil(math.log2(max(num_rounds, 1))), 1)
    whole = isinstance(checkpoint, (int, np.integer)) and not isinstance(checkpoint, bool)
    if not whole or checkpoint < 1:
        raise ValueError(
            f"checkpoint is {checkpoint!r}; expected 'sqrt', 'log', a number of levels of at "
            "least 1, or None"
        )
    return int(checkpoint)


def divide(num_rounds: int, levels: int) -> Segments:
    """Returns the segments of the outermost of several levels.

    Their number is near T^(1/L).  A divisor of T within a factor of two is preferred, since rounds
    that are left over are compiled a second time.
    """
    near = max(round(num_rounds ** (1 / levels)), 2)
    divisors = [n for n in range(-(-near // 2), 2 * near + 1) if n > 1 and num_rounds % n == 0]
    count = min(divisors, key=lambda n: abs(math.log(n / near)), default=near)
    length = num_rounds // count
    return Segments(count, length, num_rounds - count * length)


def stored_states(num_rounds: int, levels: int) -> int:
    """Returns the most states that are stored at a time."""
    if levels <= 1 or num_rounds <= 3:
        return num_rounds
    segments = divide(num_rounds, levels)
    return segments.number + max(segments.rest, stored_states(segments.length, levels - 1))


def scan_rounds(step: Step, state: PyTree, inputs: PyTree, levels: int) -> PyTree:
    """Returns the state after ``state <- step(state, inputs[t])`` for all rounds t."""
    num_rounds = len(jax.tree.leaves(inputs)[0])
    if levels <= 1 or num_rounds <= 3:
        return _scan(step, state, inputs, recompute=levels > 0)
    count, length, _ = divide(num_rounds, levels)

    def segment(state: PyTree, part: PyTree) -> PyTree:
        return scan_rounds(step, state, part, levels - 1)

    head = jax.tree.map(lambda x: x[: count * length].reshape(count, length, *x.shape[1:]), inputs)
    state = _scan(segment, state, head, recompute=True)
    if num_rounds == count * length:
        return state
    return scan_rounds(step, state, jax.tree.map(lambda x: x[count * length :], inputs), 1)


def _scan(step: Step, state: PyTree, inputs: PyTree, *, recompute: bool) -> PyTree:
    if recompute:
        step = jax.checkpoint(step, prevent_cse=False)  # a loop's body needs no barriers
    return jax.lax.scan(lambda state, now: (step(state, now), None), state, inputs)[0]
