"""Measurements of training and of trained models: flatness, generalisation, stability, bias."""

from fedjax_sim.diagnostics import (
    bias_laws,
    diffusion,
    generalization,
    gradient_noise,
    iterate_bias,
    lanczos,
    sharpness,
    stability,
    surfaces,
)

__all__ = [
    "bias_laws",
    "diffusion",
    "generalization",
    "gradient_noise",
    "iterate_bias",
    "lanczos",
    "sharpness",
    "stability",
    "surfaces",
]
