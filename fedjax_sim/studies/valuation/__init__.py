r"""Valuation of clients: the contribution of every client's data to a metric of a run.

A cooperative game gives every coalition S of clients a value, here the improvement of a metric L
over the initial model when only the clients of S take part,

.. math:: v(S) = L(x_0) - L(x_S), \qquad v(\emptyset) = 0,

with the opposite sign for a metric that should be large.  :func:`game` retrains: all coalitions
share timeline, minibatches and initial model, so hundreds of runs are one program.
:func:`leave_one_out`, :func:`exact_shapley`, :func:`permutation_shapley` and
:func:`stratified_shapley` take a game.  :func:`influence` differentiates one run;
:func:`fed_sv` and :func:`gtg_shapley` sum games of single rounds.
"""

from fedjax_sim.studies.valuation.estimates import (
    exact_shapley,
    leave_one_out,
    permutation_shapley,
    stratified_shapley,
)
from fedjax_sim.studies.valuation.games import Game, from_values
from fedjax_sim.studies.valuation.influences import example_influence, influence
from fedjax_sim.studies.valuation.per_round import fed_sv, gtg_shapley
from fedjax_sim.studies.valuation.result import Valuation
from fedjax_sim.studies.valuation.retraining import game

__all__ = [
    "Game",
    "Valuation",
    "exact_shapley",
    "example_influence",
    "fed_sv",
    "from_values",
    "game",
    "gtg_shapley",
    "influence",
    "leave_one_out",
    "permutation_shapley",
    "stratified_shapley",
]
