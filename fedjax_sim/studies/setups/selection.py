"""Options of the selection of clients by the state of the run, and of adaptive local steps."""

from typing import Annotated, Literal

import pydantic

from fedjax_sim.studies.setups.fields import Count, PositiveProbability, Probability, group
from fedjax_sim.types import FedAlgorithm, Selector, Timeline
from fedjax_sim.wrappers import selection


@group
class NoSelection:
    """All clients that --sampling draws."""

    kind: Literal["none"] = "none"


@group
class PowerOfChoice:
    """The candidates with the largest losses."""

    size: Count = 5
    """Clients that take part; --cohort-size is the number of candidates."""
    loss: Literal["full", "minibatch", "last"] = "full"
    """Loss on all examples, on one minibatch, or as last reported."""
    kind: Literal["power-of-choice"] = "power-of-choice"


@group
class Proportional:
    """Candidates in proportion to a score, with unbiased weights."""

    size: Count = 5
    """Clients that take part; --cohort-size is the number of candidates."""
    score: Literal["norm", "loss"] = "norm"
    """Norm of the gradient, or loss, on all examples of a candidate."""
    kind: Literal["proportional"] = "proportional"


@group
class Multinomial:
    """Draws with replacement in proportion to --weighting (scheme I of Li et al. with sampling:full
    and --weighting examples)."""

    size: Count = 10
    """Draws per round."""
    kind: Literal["multinomial"] = "multinomial"


@group
class Oort:
    """Oort's utilities and exploration, among the candidates and without speeds."""

    size: Count = 5
    """Clients that take part; --cohort-size is the number of candidates."""
    exploration: Probability = 0.9
    """First share of clients that never took part."""
    decay: Probability = 0.98
    """Factor of this share per round."""
    least_exploration: Probability = 0.2
    """Smallest share."""
    kind: Literal["oort"] = "oort"


@group
class AdaComm:
    """All clients, with local steps that fall with the root of the loss."""

    interval: Count = 10
    """Rounds with the same number of local steps."""
    decay: PositiveProbability = 0.5
    """Factor of the local steps if the loss has not fallen."""
    kind: Literal["adacomm"] = "adacomm"


Selection = Annotated[
    NoSelection | PowerOfChoice | Proportional | Multinomial | Oort | AdaComm,
    pydantic.Field(discriminator="kind"),
]


def selected(algorithm: FedAlgorithm, options: Selection, timeline: Timeline) -> FedAlgorithm:
    """Returns an algorithm with the selector of the options."""
    if isinstance(options, NoSelection):
        return algorithm
    return selection.select(algorithm, selector_of(options, timeline.max_steps))


def selector_of(options: Selection, max_steps: int) -> Selector:
    """Returns the selector of the options; the first local steps are the timeline's largest."""
    match options:
        case PowerOfChoice():
            return selection.power_of_choice(options.size, options.loss)
        case Proportional():
            scores = {"norm": selection.gradient_norm, "loss": selection.full_loss}
            return selection.proportional(options.size, scores[options.score])
        case Multinomial():
            return selection.multinomial(options.size)
        case Oort():
            return selection.oort(
                options.size,
                exploration=options.exploration,
                decay=options.decay,
                least_exploration=options.least_exploration,
            )
        case AdaComm():
            return selection.adacomm(max(max_steps, 1), options.interval, decay=options.decay)
        case NoSelection():
            raise ValueError("selection is 'none'; expected a kind of selector")
