"""Options of the algorithms and of their local steps."""

import dataclasses
from typing import Annotated

from fedjax_sim.studies.setups.fields import HIDDEN, Count, NotNegative, Positive, group

HyperParameters = dict[str, bool | int | float | str]
ALGORITHMS = ("fedavg", "fedprox", "fedavgm", "fedadam", "scaffold")


@group
class AlgorithmOptions:
    """The algorithms, their hyper-parameters, and what all of them share."""

    algorithms: tuple[str, ...] = ALGORITHMS
    """Algorithms to compare (see fedjax-sim list)."""
    lr: Positive | None = None
    """Client learning rate of all algorithms; default: one per algorithm (see fedjax-sim list)."""
    server_lr: Positive | None = None
    """Server learning rate of the algorithms that have one; default: one per algorithm."""
    lr_decay: Positive | None = None
    """Factor of the client learning rate from one round to the next; default: constant rates."""
    clip: Positive | None = None
    """Largest norm of a local gradient, longer ones are clipped; default: no clipping."""
    weight_decay: NotNegative | None = None
    """Weight decay in the local steps, added after clipping; default: none."""
    tuning_steps: Count | None = None
    """With --personal: local steps that a client's model takes on the client's training examples
    before it is evaluated, for any algorithm; fedavg_ft and fedbabu have their own number of
    visits; default: none."""
    tuning_lr: Positive | None = None
    """Rate of --tuning-steps, fedavg_ft and fedbabu; default: the algorithm's lr."""
    hyper: dict[str, HyperParameters] = dataclasses.field(default_factory=dict)
    """Hyper-parameters of single algorithms, as --hyper.fedprox.mu 0.1; default: see fedjax-sim
    list."""
    rates: Annotated[dict[str, Positive], HIDDEN] = dataclasses.field(default_factory=dict)
    """Client rates that were tuned for a preset, by algorithm; all other options replace them."""
    local_epochs: Count = 5
    """Passes of a client over its examples per round."""
    local_steps: Count | None = None
    """Local steps on minibatches drawn with replacement; default: local epochs. With time:clock:
    steps per report, and the largest number of steps between two contacts."""
    batch_size: Count = 7
    """Examples per local step."""
