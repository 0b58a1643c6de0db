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
    Candidates,
    Choice,
    FedAlgorithm,
    LastWrapper,
    Requires,
    RunningStatistics,
    Selector,
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
from fedjax_sim.types.arrays import (
    plain_integer,
    plain_integers,
    plain_number,
    readable,
    tree_text,
)
from fedjax_sim.types.models import Described, Model
from fedjax_sim.types.setup import (
    KEY_ROWS,
    Setup,
    Task,
    Timeline,
    sizes_text,
    uniform_weights,
    weight_by_examples,
)
from fedjax_sim.types.specs import Same, Spec, spec_of, specified, value_text, with_spec
from fedjax_sim.types.summaries import (
    Rows,
    Summary,
    common_rows,
    counted,
    field_comments,
    listed,
    rows_of,
    shown,
)
from fedjax_sim.types.visits import EvalFn, Oracle, Round, Stack, Weighting, Work

__all__ = [
    "KEY_ROWS",
    "Aggregation",
    "Bits",
    "Candidates",
    "Choice",
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
    "Rows",
    "RunningStatistics",
    "Same",
    "Scalar",
    "Selector",
    "ServerState",
    "Setup",
    "Spec",
    "Stack",
    "Step",
    "Summary",
    "Task",
    "Timeline",
    "Upload",
    "Weighting",
    "Work",
    "annotated_kinds",
    "common_rows",
    "counted",
    "field_comments",
    "listed",
    "plain_integer",
    "plain_integers",
    "plain_number",
    "readable",
    "rows_of",
    "send_state",
    "shown",
    "sizes_text",
    "spec_of",
    "specified",
    "tree_text",
    "uniform_weights",
    "value_text",
    "weight_by_examples",
    "with_spec",
]
