"""Methods of the FedSWA paper's tables, with the hyper-parameters of section 6.1."""

from collections.abc import Callable
from typing import Any

import fedjax_sim as fs
from experiments.fedswa.variants import (
    doubled,
    fedsam_without_decay,
    fedswa_second_program,
    mofedsam_without_decay,
)

LR, LR_DECAY = 0.1, 0.998
RHO, ALPHA, GAMMA = 0.1, 1.5, 0.2
WEIGHT_DECAY, MAX_NORM = 1e-3, 10.0  # of the authors' programs


def regular(oracle: fs.Oracle) -> fs.Oracle:
    """Clips the gradient, then adds the weight decay."""
    return fs.transforms.add_decayed_weights(
        fs.transforms.clip_by_global_norm(oracle, MAX_NORM), WEIGHT_DECAY
    )


def _plain(factory: Callable[..., fs.FedAlgorithm], **hyper: Any) -> Callable:
    return lambda lr, **swept: fs.transforms.transform_oracle(
        factory(lr, **(hyper | swept)), regular
    )


def _sharp(factory: Callable[..., fs.FedAlgorithm], **hyper: Any) -> Callable:
    return lambda lr, **swept: factory(lr, transform=regular, **(hyper | swept))


# Radii and momenta are those of the authors' programs.  "-program" has a difference of a program
# from the paper, "-README" also its rate for FedSWA: see variants.py.
METHODS: dict[str, Callable[..., fs.FedAlgorithm]] = {
    "FedAvg": _plain(fs.fedavg),
    "FedDyn": _plain(fs.feddyn, mu=0.01),
    "SCAFFOLD": _plain(fs.scaffold),
    "FedSAM": _sharp(fs.fedsam, radius=0.05),
    "MoFedSAM": _sharp(fs.mofedsam, radius=0.1, mix=0.1),
    "FedLESAM": _sharp(fs.fedlesam, radius=0.1),
    "FedASAM": _sharp(fs.fedasam, radius=0.5, eta=0.01),
    "FedACG": _plain(fs.fedacg, momentum=0.85, mu=0.01),
    "FedGAMMA": _sharp(fs.fedgamma, radius=0.1),
    "FedSMOO": _sharp(fs.fedsmoo, mu=0.1, radius=0.1),
    "FedAvgM": _plain(fs.fedavgm, momentum=0.9),
    "FedSWA": _plain(fs.fedswa, rho=RHO, alpha=ALPHA),
    "FedSWA-program": _plain(fedswa_second_program),
    "FedSWA-README": _plain(lambda lr: fs.fedswa(doubled(lr), RHO, ALPHA)),
    "FedSWA-program-README": _plain(lambda lr: fedswa_second_program(doubled(lr))),
    "FedSAM-program": fedsam_without_decay,
    "MoFedSAM-program": mofedsam_without_decay,
    "FedMo": _plain(fs.fedmo, gamma=GAMMA),
    "FedMoSWA": _plain(fs.fedmoswa, rho=RHO, alpha=ALPHA, gamma=GAMMA),
}


def build(lr: Any, method: str, decay: float = LR_DECAY, **hyper: Any) -> fs.FedAlgorithm:
    """The method with the rate ``lr * decay^t`` in round t."""
    return METHODS[method](fs.local.exponential_decay(lr, decay), **hyper)
