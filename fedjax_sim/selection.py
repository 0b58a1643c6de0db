"""From a sweep's frame to the numbers that papers print: scores, best settings, comparisons.

A sweep's frame is tidy, one value a row.  Its columns are the configuration (``algorithm`` if there
are several, and the hyper-parameters; NaN where the algorithm does not have one), ``seed``,
``round``, ``metric``, ``value`` and ``diverged_at`` (the round of the run's first server state that
is not finite, 0 if none).  Runs of one seed share schedules and minibatches, so configurations are
compared seed by seed.

A run that failed has the score NaN, and so has every mean over seeds with a failed one: the mean of
the survivors would reward a configuration for failing.  "Grid order" means: numbers ascending, then
strings alphabetically, then NaN; first column first.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from scipy.special import stdtr, stdtrit

Mode: TypeAlias = Literal["min", "max"]

_NOT_HYPER = ("algorithm", "seed", "round", "metric", "value", "diverged_at", "score")


def scores(
    frame: pd.DataFrame,
    metric: str,
    hyper: Sequence[str] | None = None,
    *,
    last: int = 1,
    reduce: Literal["mean", "best"] = "mean",
    mode: Mode = "min",
) -> pd.DataFrame:
    """One number per run: a row per (configuration, seed), in grid order.

    ``reduce="mean"`` is the mean of the metric's last ``last`` evaluations.  ``reduce="best"`` is
    the best evaluation of the whole run, as in the experiments of Yuan and Ma (2020), "Federated
    Accelerated Stochastic Gradient Descent".

    A run that diverged, or has a value among those used that is not finite, has the score NaN.
    This holds for "best" too.  What such a run reached before it diverged depends on how often it
    was evaluated, and nobody would train with that setting.

    Args:
        frame: a sweep's frame, see the module.
        hyper: the hyper-parameters' columns; by default every column that the module does not name.
        mode: whether "best" is the smallest value or the largest.

    Returns:
        columns: the configuration, ``seed``, ``score``, ``diverged_at``.

    Raises:
        ValueError: missing columns, an unknown metric, two values for one round of a run (is a
            hyper-parameter missing from ``hyper``?), ``diverged_at`` not constant within a run, a
            run that did not diverge with fewer than ``last`` evaluations.

    Example:
        >>> columns = ["lr", "seed", "round", "metric", "value", "diverged_at"]
        >>> rows = [(lr, 0, r, "loss", 1 / (lr * r), 0) for lr in (0.1, 0.5) for r in (1, 2, 4)]
        >>> rows += [(2.0, 0, 1, "loss", 3.0, 2), (2.0, 0, 2, "loss", float("nan"), 2)]
        >>> scores(pd.DataFrame(rows, columns=columns), "loss", last=2)["score"].tolist()
        [3.75, 0.75, nan]
    """
    _sign(mode)
    if reduce not in ("mean", "best"):
        raise ValueError(f'reduce is {reduce!r}; expected "mean" or "best"')
    if last < 1 or (reduce == "best" and last != 1):
        raise ValueError(f'last is {last}; expected at least 1, and 1 with reduce="best"')
    if reduce == "mean":
        return _reduce(frame, metric, hyper, last, lambda rounds, values: values.mean())
    optimum = np.min if mode == "min" else np.max
    return _reduce(frame, metric, hyper, None, lambda rounds, values: optimum(values))


def rounds_to_target(
    frame: pd.DataFrame,
    metric: str,
    target: float,
    hyper: Sequence[str] | None = None,
    *,
    count: Literal["first", "run"] = "first",
    mode: Mode = "min",
) -> pd.DataFrame:
    """How many rounds each run takes to reach ``target``; infinity if it does not.

    ``count="first"``: the first evaluated round with value <= target (>= with ``mode="max"``).
    ``count="run"``: all rounds of the run, if any of its values reaches the target.  The latter is
    how Yuan and Ma count, whose runs of T/K rounds differ in K: with
    ``best(..., per=["algorithm", "num_clients"], mode="min")`` it gives the rounds of the largest K
    that reaches the target.

    The frame has the columns of :func:`scores`, fewer rounds being better, so :func:`best`
    (``mode="min"``) and :func:`speed_up` take it.  Failed runs are NaN, as there.

    Raises:
        ValueError: as :func:`scores`; a target that is not finite.

    Example:
        >>> columns = ["lr", "seed", "round", "metric", "value", "diverged_at"]
        >>> rows = [(lr, 0, r, "loss", 1 / (lr * r), 0) for lr in (0.1, 0.5) for r in (1, 2, 4)]
        >>> rounds_to_target(pd.DataFrame(rows, columns=columns), "loss", 1.0)["score"].tolist()
        [inf, 2.0]
    """
    sign = _sign(mode)
    if not math.isfinite(target):
        raise ValueError(f"target is {target}; expected a finite number")
    if count not in ("first", "run"):
        raise ValueError(f'count is {count!r}; expected "first" or "run"')

    def rounds_of(rounds: np.ndarray, values: np.ndarray) -> float:
        reached = rounds[sign * values <= sign * target]
        if not len(reached):
            return math.inf
        return reached[0] if count == "first" else rounds[-1]

    return _reduce(frame, metric, hyper, None, rounds_of)


class Interval(NamedTuple):
    """A mean over seeds and its confidence interval."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def mean_interval(values: Any, level: float = 0.95) -> Interval:
    """Student's t interval of the mean over the first axis: mean +- t s / sqrt(n).

    s is the sample standard deviation, t the (1 + level) / 2 quantile for n - 1 degrees of freedom.
    The bounds are NaN if n = 1 or a value is not finite.

    Args:
        values: [n, ...].

    Raises:
        ValueError: no values; a level outside (0, 1).

    Example:
        >>> [round(float(bound), 3) for bound in mean_interval([1.0, 2.0, 3.0])]
        [2.0, -0.484, 4.484]
    """
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; expected a number between 0 and 1")
    values = np.asarray(values, np.float64)
    if values.ndim == 0 or not len(values):
        raise ValueError(f"values has shape {values.shape}; expected [n, ...] with n >= 1")
    half = stdtrit(len(values) - 1, (1 + level) / 2) * _standard_error(values)
    with np.errstate(invalid="ignore"):
        mean = values.mean(axis=0)
        return Interval(mean, mean - half, mean + half)


def best(
    scores: pd.DataFrame, *, per: str | Sequence[str] = (), mode: Mode, level: float = 0.95
) -> pd.DataFrame:
    """The best configuration of every cell, cells being the values of the columns ``per``.

    The best mean over seeds wins, but a configuration with a failed seed never beats one without:
    it has no mean to compare, and a setting that fails for some draws of clients is not one to
    train with.  Where every configuration has failed seeds, the fewest win, then the best mean of
    the others.  Such a cell stays, with mean NaN.  Ties go to the first in grid order.

    ``<hyper>_at_edge`` says that the chosen value is the smallest or the largest that its algorithm
    tried in the cell, so that the true best may lie outside the grid.  Values that are not numbers,
    and grids of one value, have no edge.

    Returns:
        a row per cell in grid order; columns: ``per``, the rest of the configuration, ``mean``,
        ``low`` and ``high`` (:func:`mean_interval`), ``num_seeds``, ``num_failed``, and
        ``<hyper>_at_edge`` for every hyper-parameter not in ``per``.

    Raises:
        ValueError: an unknown column in ``per``, two scores for one configuration and seed,
            configurations of one cell with different seeds (of a sweep that is not finished, drop
            those that lack some).

    Example:
        >>> rows = [(lr, s, (lr - 0.1) ** 2 + s) for lr in (0.01, 0.1, 1.0) for s in (0, 1)]
        >>> frame = best(pd.DataFrame(rows, columns=["lr", "seed", "score"]), mode="min")
        >>> frame[["lr", "mean", "num_failed", "lr_at_edge"]].values.tolist()
        [[0.1, 0.5, 0, False]]
    """
    config = _configuration(scores)
    per = [per] if isinstance(per, str) else list(per)
    tuned = [name for name in config if name not in (*per, "algorithm")]
    first, statistics = [], []
    for cell, chosen in _choose(scores, per, mode):
        if "algorithm" in config:
            same = np.asarray(cell["algorithm"] == chosen["algorithm"].iloc[0])
            cell = cell.loc[same, :]
        values = _values(chosen)
        statistics.append(
            mean_interval(values, level)._asdict()
            | {"num_seeds": len(values), "num_failed": int(np.isnan(values).sum())}
            | {f"{name}_at_edge": _at_edge(chosen[name].iloc[0], cell[name]) for name in tuned}
        )
        first.append(chosen.head(1))
    left = pd.concat(first, ignore_index=True)[[*per, *(n for n in config if n not in per)]]
    return left.join(pd.DataFrame(statistics))


def table(
    frame: pd.DataFrame, rows: str | Sequence[str], columns: str, *, digits: int = 3
) -> pd.DataFrame:
    """:func:`best`'s frame as a table of "mean ± half-width" texts.

    The mean has ``digits`` significant digits and the half-width of its interval the same decimals;
    one seed has no half-width.  "1/3 failed" stands for a mean that failed seeds leave undefined;
    a cell that was not run is empty.

    Raises:
        ValueError: an unknown column, two rows for one cell, digits < 1.

    Example:
        >>> columns = ["M", "K", "mean", "low", "high", "num_seeds", "num_failed"]
        >>> nan = float("nan")
        >>> data = [(2, 1, 0.512, 0.49, 0.534, 3, 0), (4, 1, nan, nan, nan, 3, 1)]
        >>> print(markdown(table(pd.DataFrame(data, columns=columns), "M", "K")))
        | M | K = 1 |
        |---|---|
        | 2 | 0.512 ± 0.022 |
        | 4 | 1/3 failed |
    """
    rows = [rows] if isinstance(rows, str) else list(rows)
    if digits < 1:
        raise ValueError(f"digits is {digits}; expected at least 1")
    _check_columns(frame, [*rows, columns, "mean", "low", "high", "num_seeds", "num_failed"])
    if (repeated := frame.duplicated([*rows, columns])).any():
        cell = frame.loc[repeated, [*rows, columns]].iloc[0].to_dict()
        raise ValueError(f"frame has two rows for {cell}; expected one (is another column varied?)")
    numbers = (frame[name] for name in ("mean", "low", "high", "num_seeds", "num_failed"))
    text = [
        f"{failed}/{seeds} failed" if failed else _plus_minus(mean, (high - low) / 2, digits)
        for mean, low, high, seeds, failed in zip(*numbers, strict=True)
    ]
    cells = frame[[*rows, columns]].assign(text=text)
    return cells.pivot(index=rows, columns=columns, values="text").fillna("")


def markdown(frame: pd.DataFrame) -> str:
    """A frame as a Markdown table: numbers with four significant digits, NaN empty.

    Named index levels are the first columns; the name of the columns is part of their headings.

    Example:
        >>> print(markdown(pd.DataFrame({"lr": [0.1], "mean": [1 / 3], "low": [float("nan")]})))
        | lr | mean | low |
        |---|---|---|
        | 0.1 | 0.3333 |  |
    """
    levels = [str(name) for name in frame.index.names if name is not None]
    prefix = "" if frame.columns.name is None else f"{frame.columns.name} = "
    heads = [*levels, *(f"{prefix}{_cell(name)}" for name in frame.columns)]
    body = (frame.reset_index() if levels else frame).itertuples(index=False)
    lines = [heads, ["---"] * len(heads), *([_cell(value) for value in row] for row in body)]
    rendered = ["| " + " | ".join(line) + " |" for line in lines]
    rendered[1] = rendered[1].replace(" ", "")
    return "\n".join(rendered)


def grid_values(frame: pd.DataFrame, column: str) -> list[Any]:
    """The distinct values of a column, in grid order.

    Example:
        >>> grid_values(pd.DataFrame({"lr": [0.1, float("nan"), 0.01, 0.1]}), "lr")
        [0.01, 0.1, nan]
    """
    _check_columns(frame, [column])
    return frame[column].iloc[_first_rows(_ids(frame, [column]))].tolist()


def rows_with(frame: pd.DataFrame, column: str, value: Any) -> pd.DataFrame:
    """The rows with that value; NaN selects the rows without one.

    Example:
        >>> frame = pd.DataFrame({"lr": [0.1, float("nan")], "score": [1, 2]})
        >>> rows_with(frame, "lr", float("nan"))["score"].tolist()
        [2]
    """
    _check_columns(frame, [column])
    same = frame[column].isna() if pd.isna(value) else frame[column] == value
    return frame.loc[np.asarray(same), :]


class PairedDifference(NamedTuple):
    """Score of a minus score of b, seed by seed, and what it says about the mean difference."""

    differences: pd.Series  # by seed; NaN where a or b failed
    mean: float  # over the seeds where neither failed, like everything below
    low: float
    high: float
    p_value: float
    num_seeds: int
    failed: tuple[Any, ...]  # the seeds left out
    setting_a: dict[str, Any]  # the configurations compared
    setting_b: dict[str, Any]


def paired_difference(
    scores: pd.DataFrame,
    between: str,
    a: Any,
    b: Any,
    *,
    mode: Mode,
    at: Mapping[Any, Mapping[str, Any]] | None = None,
    level: float = 0.95,
) -> PairedDifference:
    """Compares two values of the column ``between``, each at its best configuration.

    With d_s = score_a(s) - score_b(s) over the n seeds where neither failed: the mean of d, its
    t interval, and the two-sided p value of Student's paired t test (of
    :func:`scipy.stats.ttest_rel`).  One seed: NaN.  Seeds where one failed, or has an infinite
    score, are in ``failed``: the rest then speak only of seeds where both succeed.

    Configurations chosen by these very scores make small p values too likely.  To report one,
    choose on other seeds and pass ``at``.

    Args:
        at: hyper-parameters to hold, ``{a: {"lr": 0.1}}``; the others are the best (:func:`best`).

    Raises:
        ValueError: an unknown column or value, nothing at the given hyper-parameters, a and b with
            different seeds.

    Example:
        >>> rows = [("fedavg", s, s + 0.5) for s in (1, 2)] + [("scaffold", s, s) for s in (1, 2)]
        >>> frame = pd.DataFrame(rows, columns=["algorithm", "seed", "score"])
        >>> paired_difference(frame, "algorithm", "scaffold", "fedavg", mode="min").mean
        -0.5
    """
    at = at or {}
    one, other = (_at_best(scores, between, x, at.get(x, {}), mode) for x in (a, b))
    seeds = _same_seeds(one, other)
    with np.errstate(invalid="ignore"):
        differences = _values(one) - _values(other)
    kept = np.isfinite(differences)
    d = differences[kept]
    mean, low, high = mean_interval(d if len(d) else [math.nan], level)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = 2 * stdtr(len(d) - 1, -np.abs(mean) / _standard_error(d))
    config = _configuration(scores)
    return PairedDifference(
        differences=pd.Series(np.where(kept, differences, math.nan), index=seeds),
        mean=float(mean),
        low=float(low),
        high=float(high),
        p_value=float(p),
        num_seeds=len(d),
        failed=tuple(seeds[~kept].tolist()),
        setting_a=one[config].iloc[0].to_dict(),
        setting_b=other[config].iloc[0].to_dict(),
    )


def paired_differences(
    scores: pd.DataFrame, between: str = "algorithm", *, mode: Mode, level: float = 0.95
) -> pd.DataFrame:
    """:func:`paired_difference` of all pairs, each value at its best configuration.

    ``p_holm`` is adjusted for the number of pairs: Holm (1979), "A simple sequentially rejective
    multiple test procedure"; p values below a bound q then include a false one with probability at
    most q.  The intervals are not adjusted.

    Returns:
        columns ``a``, ``b``, ``mean``, ``low``, ``high``, ``p_value``, ``p_holm``, ``num_seeds``,
        ``num_failed``; pairs in grid order.

    Raises:
        ValueError: as :func:`paired_difference`; fewer than two values of ``between``.

    Example:
        >>> rows = [(name, s, s * x) for x, name in enumerate(("c", "b", "a")) for s in (1, 2, 3)]
        >>> frame = pd.DataFrame(rows, columns=["algorithm", "seed", "score"])
        >>> paired_differences(frame, mode="min")[["a", "b", "mean"]].values.tolist()
        [['a', 'b', 2.0], ['a', 'c', 4.0], ['b', 'c', 2.0]]
    """
    values = grid_values(scores, between)
    if len(values) < 2:
        raise ValueError(f"scores has {between} = {values}; expected at least two values")
    rows = []
    for a, b in itertools.combinations(values, 2):
        found = paired_difference(scores, between, a, b, mode=mode, level=level)
        rows.append((a, b, *found[1:6], len(found.failed)))
    names = ["a", "b", "mean", "low", "high", "p_value", "num_seeds", "num_failed"]
    frame = pd.DataFrame(rows, columns=names)
    frame.insert(6, "p_holm", _holm(frame["p_value"].to_numpy()))
    return frame


def speed_up(
    scores: pd.DataFrame,
    over: str = "num_clients",
    *,
    per: str | Sequence[str] = (),
    mode: Mode = "min",
    reference: float = 0.0,
    level: float = 0.95,
) -> pd.DataFrame:
    r"""What more clients buy: error(M0) / error(M), M0 the smallest M of the curve.

    error(M) is the mean over seeds of score - ``reference`` (F*, the optimum; with ``mode="max"``
    of ``reference`` - score) at the best configuration of that M.  Linear speed-up is M / M0.  With
    scores of :func:`rounds_to_target` the error is the number of rounds.

    The interval of S = error(M0) / error(M) is exp(log S +- t se) by the delta method, paired by
    seed: log S has the first-order deviations d_s = error_s(M0) / error(M0) -
    error_s(M) / error(M),
    and se is the standard error of their mean.  It contains S, and needs positive means only, not
    a positive error of every seed.

    Args:
        over: the column of M.
        per: the columns that tell curves apart, ``["algorithm", "local_steps"]`` for the figures of
            Yuan and Ma (2020).

    Returns:
        :func:`best`'s frame per (``per``, ``over``) with ``error``, ``error_low``, ``error_high``
        for the mean and its interval, and ``speed_up``, ``speed_up_low``, ``speed_up_high``,
        ``linear``.  The speed-up is NaN where error(M0) or error(M) is not finite.

    Raises:
        ValueError: as :func:`best`; M not positive numbers, different seeds along a curve, a mean
            error that is not positive.

    Example:
        >>> rows = [(m, seed, 0.5 + (1 + seed) / m) for m in (2, 4, 8) for seed in (0, 1)]
        >>> frame = pd.DataFrame(rows, columns=["num_clients", "seed", "score"])
        >>> speed_up(frame, reference=0.5)[["error", "speed_up", "linear"]].values.tolist()
        [[0.75, 1.0, 1.0], [0.375, 2.0, 2.0], [0.1875, 4.0, 4.0]]
    """
    per = [per] if isinstance(per, str) else list(per)
    _check_columns(scores, [*per, over])
    sizes = np.asarray(scores[over])
    if sizes.dtype.kind not in "iuf" or not (sizes > 0).all():
        raise ValueError(
            f"scores has {over} = {scores[over].unique().tolist()}; expected positive numbers"
        )
    errors = scores.assign(score=_sign(mode) * (scores["score"] - reference))
    frame = best(errors, per=[*per, over], mode="min", level=level)
    error, size = np.asarray(frame["mean"]), np.asarray(frame[over])
    if (error <= 0).any():
        raise ValueError(
            f"reference is {reference}; expected it to be better than every mean score, but "
            f"the smallest error is {np.nanmin(error):.6g}"
        )
    # Cells are in grid order: the smallest M of a curve comes first.
    curve = _ids(frame, per)
    base = _first_rows(curve)[curve]
    chosen = [rows for _, rows in _choose(errors, [*per, over], "min")]
    ratios = [
        _ratio(chosen[i], rows, level)._asdict() for i, rows in zip(base, chosen, strict=True)
    ]
    renamed = frame.rename(columns={"mean": "error", "low": "error_low", "high": "error_high"})
    return renamed.join(pd.DataFrame(ratios)).assign(linear=size / size[base])


class _Ratio(NamedTuple):
    speed_up: float
    speed_up_low: float
    speed_up_high: float


def _ratio(base: pd.DataFrame, rows: pd.DataFrame, level: float) -> _Ratio:
    """Ratio of two configurations' mean scores, and its interval: see :func:`speed_up`."""
    _same_seeds(base, rows)
    above, below = _values(base), _values(rows)
    if not (np.isfinite(above).all() and np.isfinite(below).all()):
        return _Ratio(math.nan, math.nan, math.nan)
    ratio = above.mean() / below.mean()
    deviations = above / above.mean() - below / below.mean()  # their mean is 0
    _, low, high = mean_interval(deviations - deviations.mean(), level)
    return _Ratio(ratio, ratio * math.exp(low), ratio * math.exp(high))


def _reduce(
    frame: pd.DataFrame,
    metric: str,
    hyper: Sequence[str] | None,
    last: int | None,
    reduce: Callable[[np.ndarray, np.ndarray], float],
) -> pd.DataFrame:
    """``reduce(rounds, values)`` of every run's last evaluations (None: of all); NaN: failed."""
    _check_columns(frame, ["seed", "round", "metric", "value", "diverged_at", *(hyper or ())])
    measured = np.asarray(frame["metric"] == metric)
    if not measured.any():
        known = frame["metric"].unique().tolist()
        raise ValueError(f"metric is {metric!r}; expected one of {known}")
    if hyper is None:
        hyper = [name for name in frame.columns if name not in _NOT_HYPER]
    algorithm = ["algorithm"] if "algorithm" in frame.columns else []
    key = [*dict.fromkeys([*algorithm, *hyper]), "seed"]
    run = _ids(frame, key)
    runs = frame[key].iloc[_first_rows(run)].reset_index(drop=True)
    diverged_at = np.asarray(frame["diverged_at"])
    # NaN differs from itself, so that it is refused, too.
    if (diverged_at != diverged_at[_first_rows(run)][run]).any():
        raise ValueError("diverged_at differs within a run; expected one round, 0 if none")
    diverged_at = diverged_at[_first_rows(run)]

    run, rounds = run[measured], np.asarray(frame["round"])[measured]
    values = np.asarray(frame["value"], np.float64)[measured]
    order = np.lexsort((rounds, run))
    run, rounds, values = run[order], rounds[order], values[order]
    if (twice := (np.diff(run) == 0) & (np.diff(rounds) == 0)).any():
        at = runs.iloc[run[:-1][twice][0]].to_dict() | {"round": rounds[:-1][twice][0].item()}
        raise ValueError(f"frame has two values for {at}; expected one (is another column varied?)")
    stops = np.searchsorted(run, np.arange(len(runs)), side="right")
    starts = np.concatenate([[0], stops[:-1]])
    if (short := (diverged_at == 0) & (stops - starts < (last or 1))).any():
        raise ValueError(
            f"frame has {(stops - starts)[short][0]} evaluations of {metric!r} for "
            f"{runs.iloc[short.argmax()].to_dict()}; expected at least {last or 1}"
        )
    score = np.full(len(runs), math.nan)
    for i in np.flatnonzero(diverged_at == 0):
        used = slice(starts[i] if last is None else stops[i] - last, stops[i])
        if np.isfinite(values[used]).all():
            score[i] = reduce(rounds[used], values[used])
    return runs.assign(score=score, diverged_at=diverged_at)


def _choose(
    scores: pd.DataFrame, per: Sequence[str], mode: Mode
) -> Iterator[tuple[pd.DataFrame, pd.DataFrame]]:
    """For every cell in grid order its rows, and those of its best configuration by seed."""
    config, sign = _configuration(scores), _sign(mode)
    _check_columns(scores, per)
    rows = scores.iloc[np.argsort(_ids(scores, [*config, "seed"]))].reset_index(drop=True)
    if (repeated := rows.duplicated([*config, "seed"])).any():
        at = rows.loc[repeated, [*config, "seed"]].iloc[0].to_dict()
        raise ValueError(f"scores has two rows for {at}; expected one")
    ids = _ids(rows, config)
    for _, cell in rows.groupby(_ids(rows, per)):
        count = len(np.unique(ids[cell.index]))
        size = len(cell) // count
        seeds = np.asarray(cell["seed"])
        if (seeds != np.resize(seeds[:size], len(cell))).any():
            raise ValueError(
                "scores has configurations with different seeds in the cell "
                f"{cell[list(per)].iloc[0].to_dict()}; expected the same seeds for all"
            )
        values = _values(cell).reshape(count, size)
        failed = np.isnan(values).sum(axis=1)
        # Among configurations with equally many failures, sums rank like means.  The sort is
        # stable: ties in grid order.
        winner = int(np.lexsort((sign * np.nansum(values, axis=1), failed))[0])
        yield cell, cell.iloc[winner * size : (winner + 1) * size]


def _at_best(
    scores: pd.DataFrame, between: str, value: Any, held: Mapping[str, Any], mode: Mode
) -> pd.DataFrame:
    """Rows, by seed, of the best configuration with the held hyper-parameters."""
    wanted = {between: value, **held}
    part = scores
    for name, setting in wanted.items():
        part = rows_with(part, name, setting)
    if not len(part):
        raise ValueError(f"scores has no row with {wanted}; expected some")
    ((_, chosen),) = _choose(part, (), mode)
    return chosen


def _same_seeds(one: pd.DataFrame, other: pd.DataFrame) -> np.ndarray:
    a, b = np.asarray(one["seed"]), np.asarray(other["seed"])
    if a.tolist() != b.tolist():
        raise ValueError(
            f"scores has seeds {a.tolist()} and {b.tolist()} for two configurations to compare; "
            "expected the same"
        )
    return a


def _values(rows: pd.DataFrame) -> np.ndarray:
    return np.asarray(rows["score"], np.float64)


def _configuration(scores: pd.DataFrame) -> list[str]:
    _check_columns(scores, ["seed", "score"])
    if not len(scores):
        raise ValueError("scores has no rows; expected some")
    return [name for name in scores.columns if name not in ("seed", "score", "diverged_at")]


def _check_columns(frame: pd.DataFrame, needed: Sequence[str]) -> None:
    if missing := [name for name in needed if name not in frame.columns]:
        raise ValueError(f"the frame lacks the columns {missing}; it has {list(frame.columns)}")


def _ids(frame: pd.DataFrame, columns: Sequence[str]) -> np.ndarray:
    """Numbers the distinct rows of the columns in grid order: [rows] int."""
    if not columns:
        return np.zeros(len(frame), int)
    return frame.groupby(list(columns), dropna=False, observed=True).ngroup().to_numpy()


def _first_rows(ids: np.ndarray) -> np.ndarray:
    """Position of the first row of every number."""
    return np.unique(ids, return_index=True)[1]


def _sign(mode: str) -> int:
    if mode not in ("min", "max"):
        raise ValueError(f'mode is {mode!r}; expected "min" or "max"')
    return 1 if mode == "min" else -1


def _standard_error(values: np.ndarray) -> Any:
    """Of the mean over the first axis; NaN for one value."""
    if len(values) < 2:
        return np.full(values.shape[1:], math.nan)
    with np.errstate(invalid="ignore"):
        return values.std(axis=0, ddof=1) / math.sqrt(len(values))


def _at_edge(value: Any, grid: Any) -> bool:
    values = grid.dropna().unique()
    if values.dtype.kind not in "iuf" or len(values) < 2:
        return False
    return bool(value in (values.min(), values.max()))


def _holm(p: np.ndarray) -> np.ndarray:
    """Adjusted p values: the k-th smallest of m times m - k + 1, made monotone; NaN stays."""
    order = np.argsort(p)  # NaN last
    factors = np.isfinite(p).sum() - np.arange(len(p))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(factors * p[order]), 1)
    return adjusted


def _plus_minus(mean: float, half: float, digits: int) -> str:
    if not math.isfinite(mean):
        return f"{mean:g}"
    exponent = math.floor(math.log10(abs(mean))) if mean else 0
    scientific = not -4 < exponent < 6
    scale = 10.0**exponent if scientific else 1.0
    decimals = max(0, digits - 1 - (0 if scientific else exponent))
    parts = [f"{x / scale:.{decimals}f}" for x in (mean, half) if math.isfinite(x)]
    text = " ± ".join(parts)
    if not scientific:
        return text
    return f"({text})e{exponent:+03d}" if len(parts) > 1 else f"{text}e{exponent:+03d}"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.4g}"
    return str(value).replace("|", "\\|")
