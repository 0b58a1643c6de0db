"""Selection of clients by the state of the run, and local steps that follow the loss.

A selector is a value, :class:`~fedjax_sim.types.Selector`; :func:`select` gives it to an algorithm.
The timeline has the candidates of every round, of which the selector chooses some inside the
compiled program: ``select(fedavg(0.1), power_of_choice(5))``.
"""

from fedjax_sim.types import Candidates, Choice, Selector
from fedjax_sim.wrappers.selection.adacomm import adacomm
from fedjax_sim.wrappers.selection.multinomial import multinomial
from fedjax_sim.wrappers.selection.oort import oort
from fedjax_sim.wrappers.selection.power_of_choice import power_of_choice
from fedjax_sim.wrappers.selection.proportional import inclusion_probabilities, proportional
from fedjax_sim.wrappers.selection.scores import (
    full_loss,
    gradient_norm,
    minibatch_loss,
    visit_loss,
)
from fedjax_sim.wrappers.selection.select import select

__all__ = [
    "Candidates",
    "Choice",
    "Selector",
    "adacomm",
    "full_loss",
    "gradient_norm",
    "inclusion_probabilities",
    "minibatch_loss",
    "multinomial",
    "oort",
    "power_of_choice",
    "proportional",
    "select",
    "visit_loss",
]
