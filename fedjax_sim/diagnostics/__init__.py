"""Measurements of training and of trained models: flatness, generalisation, stability, bias."""

from fedjax_sim.diagnostics import (
    bias_laws,
    constants,
    diffusion,
    drift,
    generalization,
    gradient_moments,
    gradient_noise,
    heterogeneity,
    iterate_bias,
    lanczos,
    linear_models,
    optimum,
    sharpness,
    smoothness,
    stability,
    surfaces,
)

__all__ = [
    "bias_laws",
    "constants",
    "diffusion",
    "drift",
    "generalization",
    "gradient_moments",
    "gradient_noise",
    "heterogeneity",
    "iterate_bias",
    "lanczos",
    "linear_models",
    "optimum",
    "sharpness",
    "smoothness",
    "stability",
    "surfaces",
]
