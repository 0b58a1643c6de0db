"""Growth of SGD's bias with steps and rate: two families, their laws, the diffusion."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import fedjax_sim as fs
from experiments.local_methods.bias_laws import piecewise_quadratic_bias, third_order_bias
from experiments.local_methods.diffusion import backward_equation
from fedjax_sim.diagnostics import Derivative

KINK = partial(fs.problems.asymmetric.piecewise_quadratic, right=1.0, left=0.5)
SMOOTH = partial(fs.problems.asymmetric.third_order_smooth, smoothness=1.0, third=0.5)
SPREADS = 8.0  # half width of a grid, in standard deviations of a random walk


def grid(lr: float, std: float, num_steps: int, points: int = 4) -> np.ndarray:
    """Around 0, wide enough for ``num_steps``, with ``points`` points a standard deviation."""
    half = int(np.ceil(SPREADS * points * num_steps**0.5))
    return lr * std / points * np.arange(-half, half + 1)


def at_zero(
    gradient: Derivative,
    noise: fs.diagnostics.gradient_noise.Noise,
    lr: float,
    num_steps: int,
    observable: Any = None,
) -> np.ndarray:
    """``E h(x_k)`` from x_0 = 0, the optimum, for k = 0 .. num_steps."""
    points = grid(lr, noise.variance**0.5, num_steps)
    return fs.diagnostics.iterate_bias.mean_iterates(
        gradient, noise, lr, num_steps, points, observable
    ).mean[:, len(points) // 2]


class Family(NamedTuple):
    """An objective whose bias is measured, and the slopes of its law."""

    name: str
    gradient: Derivative
    noise: fs.diagnostics.gradient_noise.Noise
    law: Any  # (lr, k) -> bias
    slopes: tuple[float, float]  # against k and against the rate


def families() -> list[Family]:
    """The objective with a kink and the one with a third derivative; noise of variance 1."""
    kink = Family(
        "kink",
        KINK,
        fs.diagnostics.gradient_noise.gaussian(1.0, 6, panels=17),
        lambda lr, k: piecewise_quadratic_bias(1.0, 0.5, lr, 1.0, k),
        (1.5, 2.0),
    )
    smooth = Family(
        "third order",
        SMOOTH,
        fs.diagnostics.gradient_noise.gaussian(1.0),
        lambda lr, k: float(third_order_bias(SMOOTH, 0.0, 1.0, lr, k, "recursion")),
        (2.0, 3.0),
    )
    return [kink, smooth]


def growth(lrs: Sequence[float], steps: int) -> pd.DataFrame:
    """Bias of both families for k = 1, 2, 4, ... and every rate, beside the small-time law."""
    rows = []
    for family in families():
        for lr in lrs:
            bias = at_zero(family.gradient, family.noise, lr, steps)
            for k in 2 ** np.arange(1, int(np.log2(steps)) + 1):
                law = family.law(lr, int(k))
                rows.append(
                    {"family": family.name, "lr": lr, "k": int(k), "bias": bias[k], "law": law}
                )
    return pd.DataFrame(rows)


def slopes(table: pd.DataFrame) -> pd.DataFrame:
    """Log-log slopes: against k (the last two powers of 2, least rate) and against the rate."""
    rows = []
    for family in families():
        part = table[table["family"] == family.name]
        small = part[part["lr"] == table["lr"].min()]
        fixed = part[part["k"] == (32 if 32 in set(part["k"]) else 8)]
        rows.append(
            {
                "family": family.name,
                "slope in k": _slope(small["k"].tolist()[-2:], small["bias"].tolist()[-2:]),
                "expected in k": family.slopes[0],
                "slope in lr": _slope(fixed["lr"].tolist(), fixed["bias"].tolist()),
                "expected in lr": family.slopes[1],
            }
        )
    return pd.DataFrame(rows)


def _slope(x: Sequence[float], y: Sequence[float]) -> float:
    return float(np.polyfit(np.log(x), np.log(np.abs(y)), 1)[0])


def draw_growth(axis: Any, family: Family, table: pd.DataFrame, lrs: Sequence[float]) -> None:
    """Draws a family's bias against k, a color per rate; lines: the law."""
    shown = table[table["family"] == family.name]
    for i, lr in enumerate(lrs):
        part = shown[shown["lr"] == lr]
        axis.loglog(part["k"], np.abs(part["bias"]), f"C{i}o", ms=4, label=f"rate {lr:g}")
        axis.loglog(part["k"], np.abs(part["law"]), color=f"C{i}")
    title = f"{family.name}: bias, law (lines), slope {family.slopes[0]:g}"
    axis.set(title=title, xlabel="k", ylabel="|bias|")


def draw_rates(axis: Any, table: pd.DataFrame, steps: int) -> None:
    """Draws the bias of both families against the rate for k = 8 and ``steps``."""
    for i, family in enumerate(families()):
        shown = table[table["family"] == family.name]
        for k, mark in ((8, "o"), (steps, "s")):
            part = shown[shown["k"] == 2 ** int(np.log2(k))]
            axis.loglog(part["lr"], np.abs(part["bias"]), f"C{i}{mark}", ms=5)
            label = f"{family.name}, slope {family.slopes[1]:g}" if mark == "o" else None
            axis.loglog(part["lr"], np.abs(part["law"]), color=f"C{i}", label=label)
    title = f"Against the rate, k = 8 (circles), {steps}"
    axis.set(title=title, xlabel="rate", ylabel="|bias|")


def continuous(lr: float, num_steps: int) -> pd.DataFrame:
    """Recursion, backward equation and both constants of its expansion, third-order objective."""
    points = grid(lr, 1.0, num_steps)
    middle = len(points) // 2
    recursion = fs.diagnostics.iterate_bias.mean_iterates(
        SMOOTH, fs.diagnostics.gradient_noise.gaussian(1.0), lr, num_steps, points
    ).mean[:, middle]
    equation = backward_equation(SMOOTH, 1.0, lr, num_steps, points)[:, middle]
    rows = []
    for k in 2 ** np.arange(1, int(np.log2(num_steps)) + 1):
        law = {
            form: float(third_order_bias(SMOOTH, 0.0, 1.0, lr, int(k), form))
            for form in ("recursion", "diffusion")
        }
        rows.append(
            {"k": int(k), "recursion": recursion[k], "backward equation": equation[k]}
            | {
                "1/4 k (k - 1)": law["recursion"],
                "1/4 k^2": law["diffusion"],
                "1/2 k^2 (printed)": 2 * law["diffusion"],
                "recursion / (1/4 k (k - 1))": recursion[k] / law["recursion"],
                "equation / (1/4 k^2)": equation[k] / law["diffusion"],
            }
        )
    return pd.DataFrame(rows)
