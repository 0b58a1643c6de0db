"""Measurements of training and of trained models: flatness, generalisation, stability, bias."""

from fedjax_sim.diagnostics import (
    client_updates,
    connectivity,
    constants,
    drift,
    dynamics,
    generalization,
    gradient_moments,
    gradient_noise,
    heterogeneity,
    iterate_bias,
    lanczos,
    linear_models,
    optimum,
    overlays,
    planes,
    potential,
    recovery,
    sharpness,
    smoothness,
    stability,
    surfaces,
)
from fedjax_sim.diagnostics.constants import measure, suboptimality
from fedjax_sim.diagnostics.drift import shadow_probes, shadowed
from fedjax_sim.diagnostics.gradient_moments import batch_moments, sampled_moments
from fedjax_sim.diagnostics.heterogeneity import ClientMap
from fedjax_sim.diagnostics.iterate_bias import Derivative
from fedjax_sim.diagnostics.linear_models import SOFTMAX, linear_model_bounds
from fedjax_sim.diagnostics.optimum import Optimum, mean_loss
from fedjax_sim.diagnostics.overlays import FEDAVG, SHADOW, Bound, Overlay, overlay
from fedjax_sim.diagnostics.privacy_audit import Audit, audit
from fedjax_sim.diagnostics.recovery import CUTOFF
from fedjax_sim.diagnostics.smoothness import Curvature, curvature
from fedjax_sim.diagnostics.stability import neighbours
from fedjax_sim.diagnostics.surfaces import Surface

__all__ = [
    "Audit",
    "audit",
    "client_updates",
    "connectivity",
    "constants",
    "drift",
    "dynamics",
    "generalization",
    "gradient_moments",
    "gradient_noise",
    "heterogeneity",
    "iterate_bias",
    "lanczos",
    "linear_models",
    "optimum",
    "overlays",
    "planes",
    "potential",
    "recovery",
    "sharpness",
    "smoothness",
    "stability",
    "surfaces",
]
