"""Result of a forecast: what a run needs, and its text and table."""

import math
from typing import NamedTuple

from fedjax_sim.types import Summary, shown
from fedjax_sim.wrappers import Guarantee

# Options that reduce the memory of a part.
KNOBS = {
    "examples": "load them before they are needed (offload.on_host, --examples-memory) or "
    "divide them over devices (placement.by_client, --num-strata)",
    "client states": "keep them on the host (--states host) or divide them over devices "
    "(placement.by_client, --num-strata)",
    "server": "models with fewer parameters, fewer seeds at once (--seeds), less staleness in "
    "asynchronous timelines",
    "evaluation": "evaluate on fewer examples",
    "stored states": "more levels of recomputation (checkpoint='log'), or derivatives of the last "
    "rounds only (last_rounds)",
    "uploads": "fewer clients per round, or a rule that is a mean of clipped uploads "
    "(robust.centred_clipping with one iteration)",
    "temporaries": "fewer clients at once (execution.chunked, --execution chunked --chunk-size), "
    "smaller batches, fewer seeds at once (--seeds), or bfloat16 (--precision)",
}


@shown
class Seconds(NamedTuple):
    """Times of a run on this machine; NaN: not measured."""

    compile: float  # of the rounds and of the evaluation
    per_round: float
    per_evaluation: float  # mean over the run's evaluations


@shown
class Forecast(NamedTuple):
    """Forecast of one run, or of a batch of runs together; bytes are those of one device.

    Example:
        >>> one = Forecast(650, 0, 2600, {}, 10**9, 4e6, 100, 50, Seconds(3.0, 0.01, 0.2))
        >>> one.seconds_of_rounds, one.seconds_of_evaluations, one.total_seconds
        (1.0, 10.0, 14.0)
    """

    parameters: int  # of one model
    client_bytes: int  # state of one client between rounds, of all runs together
    upload_bytes: int  # upload of one client per round, as decoded, of all runs together
    # Bytes on the device at the peak, by part. `uploads` are those of a round that a robust rule
    # has in memory together, `temporaries` the rest by XLA's analysis of the compiled round, or of
    # an evaluation with clients' local work, which may need more.
    parts: dict[str, int]
    memory: int  # bytes that may be used
    # XLA's count for one step of one client, times the steps of a mean round; without the scores of
    # a selection.
    flops_per_round: float
    rounds: int  # of the whole run
    evaluations: int  # of the whole run
    seconds: Seconds  # measured times
    # XLA's count for an evaluation of which all parts are due, with local work, Hessian-vector
    # products and all batches, of all runs together.
    flops_per_evaluation: float = 0.0
    privacy: Guarantee | None = None  # of the whole run; None: the algorithm is not private

    @property
    def seconds_of_rounds(self) -> float:
        """Time of all rounds; NaN: not measured."""
        return self.rounds * self.seconds.per_round

    @property
    def seconds_of_evaluations(self) -> float:
        """Time of all evaluations; NaN: not measured."""
        return self.evaluations * self.seconds.per_evaluation if self.evaluations else 0.0

    @property
    def total_seconds(self) -> float:
        """Time of the whole run; NaN: not measured."""
        return self.seconds.compile + self.seconds_of_rounds + self.seconds_of_evaluations

    @property
    def peak(self) -> int:
        """Bytes at the peak."""
        return sum(self.parts.values())

    def check(self) -> None:
        """Refuses a run that does not fit.

        Raises:
            ValueError: the run does not fit; the message has the numbers and the options to change.
        """
        if self.peak <= self.memory:
            return
        largest = max(self.parts, key=self.parts.__getitem__)
        sizes = ", ".join(f"{name} {size / 1e9:.3g}" for name, size in self.parts.items())
        raise ValueError(
            f"memory of a device is {self.memory / 1e9:.3g} GB; expected at least "
            f"{self.peak / 1e9:.3g} ({sizes}); the largest part is {largest}: {KNOBS[largest]}"
        )

    @property
    def rows(self) -> dict[str, str]:
        """Names and values as text, in the order of a table.

        Example:
            >>> one = Forecast(650, 0, 2600, {}, 10**9, 4e6, 100, 50, Seconds(3.0, 0.01, 0.2))
            >>> one.rows["parameters of a model"], one.rows["seconds in all"]
            ('650', '14')
        """
        times = {
            "seconds per round": self.seconds.per_round,
            "seconds per evaluation": self.seconds.per_evaluation,
            "seconds to compile": self.seconds.compile,
            "seconds of rounds": self.seconds_of_rounds,
            "seconds of evaluations": self.seconds_of_evaluations,
            "seconds in all": self.total_seconds,
        }
        rows = {
            "parameters of a model": f"{self.parameters:,}",
            "bytes of a client's state, all seeds": f"{self.client_bytes:,}",
            "bytes of a client's upload in memory, all seeds": f"{self.upload_bytes:,}",
            **{f"MB of {part}": f"{size / 1e6:,.1f}" for part, size in self.parts.items()},
            "MB at the peak": f"{self.peak / 1e6:,.1f}",
            "MB that may be used": f"{self.memory / 1e6:,.0f}",
            "GFLOP per round": f"{self.flops_per_round / 1e9:.4g}",
            "GFLOP per evaluation": f"{self.flops_per_evaluation / 1e9:.4g}",
            **{name: "not run" if math.isnan(x) else f"{x:.3g}" for name, x in times.items()},
        }
        if self.privacy is not None:
            epsilon, delta, adjacency, *_ = self.privacy
            rows[f"epsilon at delta {delta:g}"] = f"{epsilon:.4g} ({adjacency})"
        return rows

    def _summary(self) -> Summary:
        return Summary("Forecast", self.rows)
