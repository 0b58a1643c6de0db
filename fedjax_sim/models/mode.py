"""Functions ``apply`` of models that compute something else in training."""

import dataclasses
from collections.abc import Callable
from typing import Any

from fedjax_sim.types import Params


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
    """Function ``apply`` of a model with ``train``; objectives refuse it."""

    function: Callable[[Params, Any], Any]
    trains_otherwise = True

    def __call__(self, params: Params, x: Any) -> Any:
        return self.function(params, x)
