"""Figure 2.1: paths of SGD on a function with a kink, and of the diffusion beside them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from scipy.stats import gaussian_kde

import fedjax_sim as fs
from experiments.local_methods.bias_growth import at_zero
from experiments.local_methods.diffusion import diffusion_paths

RIGHT, LEFT, STD, LR = 2.0, 0.2, 0.1, 1e-2
RECORDED = (128, 256, 512, 1024)


def figure_data(
    repetitions: int, num_diffusion_paths: int, seed: int
) -> tuple[np.ndarray, pd.DataFrame]:
    """The paths of Figure 2.1 ``[4, N]``, and their moments beside those of the recursion."""
    gradient = partial(fs.problems.asymmetric.piecewise_quadratic, right=RIGHT, left=LEFT)
    path_key, diffusion_key = jax.random.split(jax.random.key(seed))
    paths = np.asarray(
        fs.diagnostics.iterate_bias.simulate_paths(
            gradient,
            fs.diagnostics.gradient_noise.gaussian(STD).sample,
            LR,
            0.0,
            RECORDED,
            repetitions,
            path_key,
        )
    ).astype(np.float64)
    continuous = np.asarray(
        diffusion_paths(gradient, STD, LR, 0.0, RECORDED, num_diffusion_paths, diffusion_key)
    ).astype(np.float64)
    noise, steps = fs.diagnostics.gradient_noise.gaussian(STD, 6, panels=17), list(RECORDED)
    mean = at_zero(gradient, noise, LR, RECORDED[-1])[steps]
    second = at_zero(gradient, noise, LR, RECORDED[-1], jnp.square)[steps]
    table = pd.DataFrame(
        {
            "k": steps,
            "mean, paths": paths.mean(1),
            "standard error": paths.std(1) / repetitions**0.5,
            "mean, recursion": mean,
            "std, paths": paths.std(1),
            "std, recursion": np.sqrt(second - mean**2),
            "mean, diffusion": continuous.mean(1),
            "standard error, diffusion": continuous.std(1) / num_diffusion_paths**0.5,
        }
    )
    return paths, table


def densities(paths: np.ndarray, points: int = 60) -> pd.DataFrame:
    """Kernel estimates of the iterate's density after each of the recorded numbers of steps."""
    x = np.linspace(np.quantile(paths, 1e-3), np.quantile(paths, 1 - 1e-3), points)
    parts = [
        pd.DataFrame({"k": k, "x": x, "density": gaussian_kde(path)(x)})
        for k, path in zip(RECORDED, paths, strict=True)
    ]
    return pd.concat(parts, ignore_index=True)
