"""FedMiD and FedDualAvg in geometries that are not Euclidean: whole runs against derivations.

The mirror maps are written from the definitions of h, not from their conjugates: the inverse of the
p-norm's gradient by a search for the norm, hypentropy by logarithms and exponentials.
"""

import network
import numpy as np
import pytest
from composite_problems import KERNEL, LR, SERVER_LR, on_kernel, shares, soft
from network import rounds
from scipy.optimize import brentq
from small_problems import assert_close

import fedjax_sim as fs
from fedjax_sim import prox

pytestmark = pytest.mark.usefixtures("x64")

# In double precision and over three rounds of at most ten steps, round-off stays digits below; the
# search for the p-norm ends at a relative width of 1e-15.
TOLERANCE = 1e-11
P, B, WEIGHT, LOW, HIGH = 1.6, 0.3, 0.2, -0.05, 0.4


def p_norm_dual(x):
    norm = (np.abs(x) ** P).sum() ** (1 / P)
    return np.sign(x) * np.abs(x) ** (P - 1) * norm ** (2 - P) / (P - 1) if norm else 0 * x


def p_norm_primal(y):
    """The x with ``p_norm_dual(x) = y``, found by its norm."""
    if not y.any():
        return y

    def entries(norm):
        return (np.abs(y) * (P - 1) * norm ** (P - 2)) ** (1 / (P - 1))

    def excess(norm):
        return (entries(norm) ** P).sum() ** (1 / P) - norm

    return np.sign(y) * entries(brentq(excess, 1e-6, 1e6, xtol=1e-300, rtol=1e-15))


def hypentropy_dual(x):
    return np.sign(x) * np.log((np.abs(x) + np.sqrt(x**2 + B**2)) / B)


def hypentropy_primal(y):
    return B * (np.exp(y) - np.exp(-y)) / 2


def soft_before(primal):
    """P_c of an l1 penalty, for gradients of h that preserve signs and zeros."""
    return lambda y, c: primal(soft(y, c * WEIGHT))


def clipped(y, c):
    """P_c of the box."""
    del c
    return np.clip(hypentropy_primal(y), LOW, HIGH)


# Library's composite; gradient of h, its inverse and P_c in NumPy.
CASES = {
    "p_norm_l1": (
        (prox.L1(WEIGHT), prox.PNorm(P)),
        (p_norm_dual, p_norm_primal, soft_before(p_norm_primal)),
    ),
    "hypentropy_l1": (
        (prox.L1(WEIGHT), prox.Hypentropy(B)),
        (hypentropy_dual, hypentropy_primal, soft_before(hypentropy_primal)),
    ),
    "hypentropy_box": (
        (prox.Box(LOW, HIGH), prox.Hypentropy(B)),
        (hypentropy_dual, hypentropy_primal, clipped),
    ),
}


def geometry(name):
    """The library's composite and the maps of the whole model: Euclidean but for the kernel."""
    (psi, mirror), maps = CASES[name]
    return prox.composite(psi, mirror, prox.kernels), of_the_model(*maps)


def of_the_model(dual, primal, argmin):
    without_c = (on_kernel(lambda v, c, f=f: f(v)) for f in (dual, primal))
    dual, primal = (lambda x, f=f: f(x, 0.0) for f in without_c)
    return dual, primal, on_kernel(argmin)


def derived_fedmid(maps, local_prox=True, dual_deltas=False):
    """Yuan, 2023, Algorithms 5 and 7."""
    dual, primal, argmin = maps
    x = argmin(dual(network.start()), 0.0)
    for visits in rounds():
        w = shares(visits, False)
        ends = []
        for _, batches in visits:
            y = x
            for weights in batches:
                step = dual(y) - LR * network.gradient(y, weights)
                y = argmin(step, LR) if local_prox else primal(step)
            ends.append(y)
        sent = [dual(y) - dual(x) if dual_deltas else y - x for y in ends]
        weight = SERVER_LR * w @ [LR * len(batches) for _, batches in visits]
        x = argmin(dual(x) + SERVER_LR * w @ np.array(sent), weight)
    return x


def derived_feddualavg(maps, local_prox=True):
    """Yuan, 2023, Algorithms 6 and 8."""
    dual, primal, argmin = maps
    y, elapsed = dual(argmin(dual(network.start()), 0.0)), 0.0
    for visits in rounds():
        w = shares(visits, False)
        ends = []
        for _, batches in visits:
            z, t = y, elapsed
            for weights in batches:
                z = z - LR * network.gradient(argmin(z, t) if local_prox else primal(z), weights)
                t = t + LR
            ends.append(z)
        y = y + SERVER_LR * (w @ np.array(ends) - y)
        elapsed = elapsed + SERVER_LR * w @ [LR * len(batches) for _, batches in visits]
    return argmin(y, elapsed)


@pytest.mark.parametrize(
    ("name", "local_prox", "space"),
    [
        ("p_norm_l1", True, "primal"),
        ("p_norm_l1", False, "dual"),
        ("hypentropy_l1", True, "dual"),
        ("hypentropy_l1", False, "primal"),
        ("hypentropy_box", True, "primal"),
        ("hypentropy_box", False, "dual"),
    ],
)
def test_fedmid(name, local_prox, space):
    composite, maps = geometry(name)
    factory = fs.fedmid if local_prox else fs.fedmid_osp
    state = network.final(factory(LR, composite, SERVER_LR, delta_space=space))
    expected = derived_fedmid(maps, local_prox, space == "dual")
    assert_close(network.flat(state.server.params), expected, TOLERANCE)


@pytest.mark.parametrize(
    ("name", "local_prox"),
    [("p_norm_l1", True), ("p_norm_l1", False), ("hypentropy_l1", True), ("hypentropy_box", False)],
)
def test_feddualavg(name, local_prox):
    composite, maps = geometry(name)
    factory = fs.feddualavg if local_prox else fs.feddualavg_osp
    state = network.final(factory(LR, composite, SERVER_LR))
    expected = derived_feddualavg(maps, local_prox)
    assert_close(network.flat(state.server.params), expected, TOLERANCE)


@pytest.mark.parametrize("name", CASES)
def test_the_geometries_differ(name):
    """The kernel's end differs from that under the Euclidean map: the derivations see the map."""
    argmin = (lambda y, c: np.clip(y, LOW, HIGH)) if "box" in name else soft_before(lambda y: y)
    euclidean = of_the_model(lambda x: x, lambda y: y, argmin)
    difference = derived_fedmid(geometry(name)[1]) - derived_fedmid(euclidean)
    assert np.abs(difference[KERNEL]).max() > 1e-3
