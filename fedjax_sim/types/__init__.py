"""Types that all modules share.

A federated algorithm is five pure functions over pytrees (:class:`FedAlgorithm`).  An algorithm
accesses a client's data only through an :class:`Oracle`, a client's visit through :class:`Work` and
the round through :class:`Round`.  A :class:`Timeline` states, as data, which clients report in each
round and from which model they started.  A :class:`Setup` holds everything that stays fixed when
algorithms are compared.
"""

from fedjax_sim.types.algorithm import (
    Aggregation,
    Bits,
    FedAlgorithm,
    LastWrapper,
    Requires,
    RunningStatistics,
    send_state,
)
from fedjax_sim.types.aliases import (
    ClientState,
    Device,
    Message,
    Params,
    PyTree,
    Scalar,
    ServerState,
    Step,
    Upload,
)
from fedjax_sim.types.annotations import annotated_kinds
from fedjax_sim.types.models import Described, Model
from fedjax_sim.types.setup import Setup, Task, Timeline, uniform_weights, weight_by_examples
from fedjax_sim.types.specs import Same, Spec, spec_of, specified, with_spec
from fedjax_sim.types.visits import EvalFn, Oracle, Round, Stack, Weighting, Work

__all__ = [
    "Aggregation",
    "Bits",
    "ClientState",
    "Described",
    "Device",
    "EvalFn",
    "FedAlgorithm",
    "LastWrapper",
    "Message",
    "Model",
    "Oracle",
    "Params",
    "PyTree",
    "Requires",
    "Round",
    "RunningStatistics",
    "Same",
    "Scalar",
    "ServerState",
    "Setup",
    "Spec",
    "Stack",
    "Step",
    "Task",
    "Timeline",
    "Upload",
    "Weighting",
    "Work",
    "annotated_kinds",
    "send_state",
    "spec_of",
    "specified",
    "uniform_weights",
    "weight_by_examples",
    "with_spec",
]
