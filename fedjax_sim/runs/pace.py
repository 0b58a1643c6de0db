"""Lengths of the segments of a run."""


def stride(rounds: int, eval_every: int, *, single: bool = False) -> int:
    """Returns the most rounds per dispatch: those of about a twentieth of the evaluations.

    The number divides that of the evaluations where a number near a twentieth does.  With
    ``single`` it is that of one evaluation.

    Example:
        >>> stride(100, 2), stride(82, 2), stride(83, 2), stride(100, 2, single=True)
        (4, 2, 4, 2)
    """
    if single:
        return eval_every
    near = max(-(-rounds // eval_every) // 20, 1)
    equal = [n for n in range(-(-near // 2), 2 * near + 1) if rounds % (n * eval_every) == 0]
    return eval_every * min(equal, key=lambda n: abs(n - near), default=near)


class Pace:
    """Lengths of segments: short ones first, then as many rounds as fit into a time."""

    _AIM = 1 / 3  # share of the time that is planned, since later rounds may take longer
    _GROWTH = 8

    def __init__(self, most: int, eval_every: int, seconds: float):
        self._most, self._eval_every, self._seconds = most, eval_every, seconds
        self._rounds = 1

    def after(self, done: int, num_rounds: int) -> int:
        """Returns the round that ends the segment after ``done`` rounds.

        It is one with an evaluation if the time suffices for that.
        """
        last = min(done + self._rounds, num_rounds)
        evaluated = last - last % self._eval_every
        return evaluated if done < evaluated and last < num_rounds else last

    def took(self, rounds: int, seconds: float) -> None:
        """Chooses the next length from the time of a segment."""
        fitting = int(self._AIM * self._seconds * rounds / max(seconds, 1e-9))
        self._rounds = max(1, min(fitting, self._GROWTH * self._rounds, self._most))
