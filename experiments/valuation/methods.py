"""Valuations of one problem by all methods, with their costs."""

import pathlib
from collections.abc import Callable, Mapping

import jax
import pandas as pd

import fedjax_sim as fs
from experiments.valuation.problem import Problem

METRIC = "loss"
TOLERANCE = 0.05  # of truncation, as a share of the value of all clients
EXACT = "exact Shapley"

Method = Callable[[], fs.valuation.Valuation]


def methods(
    algorithm: fs.FedAlgorithm,
    problem: Problem,
    key: jax.Array,
    directory: pathlib.Path | None,
    *,
    permutations: tuple[int, ...],
    marginals: int | None,
    exact: bool,
    on_progress: Callable[..., None] | None = None,
) -> Mapping[str, Method]:
    """Functions that value the clients of a problem, by the methods' names.

    Args:
        permutations: numbers of permutations; the largest one is also truncated.
        marginals: per client, of the strata; None: without strata, which need at least two draws
            per size of a coalition and client.
        exact: with the exact Shapley value.
    """
    setup = problem.setup
    runs = fs.valuation.game(
        algorithm, setup, key, METRIC, directory=directory, on_progress=on_progress
    )
    draws = jax.random.fold_in(key, 1)  # of permutations and coalitions
    arguments = algorithm, setup, key, METRIC

    def sampled(count: int, share: float = 0.0) -> Method:
        def method() -> fs.valuation.Valuation:
            tolerance = share * abs(runs.total()) if share else 0.0
            return fs.valuation.permutation_shapley(runs, draws, count, tolerance=tolerance)

        return method

    found: dict[str, Method] = {EXACT: lambda: fs.valuation.exact_shapley(runs)} if exact else {}
    found |= {"leave-one-out": lambda: fs.valuation.leave_one_out(runs)}
    found |= {f"{count} permutations": sampled(count) for count in permutations}
    most = max(permutations)
    found |= {f"{most} permutations, truncated": sampled(most, TOLERANCE)}
    if marginals is not None:
        found["strata"] = lambda: fs.valuation.stratified_shapley(runs, draws, marginals, pilot=2)
    return found | {
        "influence": lambda: fs.valuation.influence(*arguments),
        "FedSV": lambda: fs.valuation.fed_sv(*arguments),
        "GTG-Shapley": lambda: fs.valuation.gtg_shapley(*arguments, draws),
    }


def valued(methods: Mapping[str, Method], problem: Problem, seed: int) -> pd.DataFrame:
    """A row per method and client: kind, value, standard error, and the method's cost."""
    frames = []
    for name, method in methods.items():
        result = method()
        frame = result.to_frame().assign(
            method=name, seed=seed, kind=problem.kinds, runs=result.num_runs,
            evaluations=result.num_evaluations,
        )  # fmt: skip
        frames.append(frame.drop(columns="rank"))
        print(f"seed {seed}: {name}, {result.num_runs} runs", flush=True)
    return pd.concat(frames, ignore_index=True)
