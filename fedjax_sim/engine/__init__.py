"""Engine: one pure function runs a whole federated training run.

:func:`run` is :func:`init` followed by :func:`advance`, a scan of rounds.

Randomness: round t uses ``fold_in(key, t)``, client i's visit in that round ``fold_in(., i)``, and
the oracle and the algorithm use separate branches of that key.  Minibatch streams that continue
over visits use another branch, with one key per client.  So a client's draws depend neither on the
other clients of the cohort nor on the execution, and two algorithms with one key see the same
minibatches.
"""

from fedjax_sim.engine import evaluation, execution
from fedjax_sim.engine.contract import check_options, check_run
from fedjax_sim.engine.evaluation import (
    RunContext,
    at_rounds,
    client_evaluator,
    client_statistics,
    evaluate,
    evaluator,
    merge_evaluators,
    personal_evaluator,
    pooled_evaluator,
    subsample,
    takes_state,
)
from fedjax_sim.engine.evaluation.clients import PER_CLIENT, QUANTILES, quantile_names
from fedjax_sim.engine.evaluation.context import context_of
from fedjax_sim.engine.evaluation.names import (
    PERSONAL,
    PERSONAL_R2,
    ClientNames,
    client_names,
    direction,
    headline,
    is_fraction,
    periods_of,
    split_of,
)
from fedjax_sim.engine.evaluation.pooled import Scorers
from fedjax_sim.engine.evaluation.state import (
    CLOCK,
    EVALUATED,
    check_last_round,
    due,
    is_mark,
    periods,
)
from fedjax_sim.engine.evaluation.visits import Broadcast, client_row, current_broadcast, visits
from fedjax_sim.engine.execution import (
    Execution,
    Gathered,
    Local,
    auto,
    by_client,
    chunked,
    devices,
    distributed,
    gathered,
    make_mesh,
    memory_limit,
    num_cores,
    offload,
    on_host,
    placement,
    sequential,
    sharded,
    stacks,
    strategies,
    use_all_cores,
    use_command_buffers,
    vmapped,
    workers,
)
from fedjax_sim.engine.execution.blocked import BlockedData
from fedjax_sim.engine.execution.broadcasts import num_buffers
from fedjax_sim.engine.execution.chunks import inner_programs
from fedjax_sim.engine.execution.devices import COMMAND_BUFFER_FLAGS, platform_of, program_bytes
from fedjax_sim.engine.execution.distributed import HEARTBEAT_TIMEOUT
from fedjax_sim.engine.execution.offload import OnHost, PresentData
from fedjax_sim.engine.execution.placement import WHOLE, ByClient, Placement, everywhere
from fedjax_sim.engine.execution.strategies import has_kernels, is_ragged
from fedjax_sim.engine.loops import Span, advance, advance_by, init, run
from fedjax_sim.engine.records import (
    NO_PROBES,
    History,
    Probes,
    RunState,
    Selected,
    Update,
    Visit,
)
from fedjax_sim.engine.returned import called_part
from fedjax_sim.engine.rounds import (
    client_stream,
    evaluation_context,
    first_state,
    one_round,
    share_of,
    weights_by_round,
    weights_of,
    weights_of_clients,
)
from fedjax_sim.engine.selection import as_chosen, counted

__all__ = [
    "CLOCK",
    "COMMAND_BUFFER_FLAGS",
    "EVALUATED",
    "HEARTBEAT_TIMEOUT",
    "NO_PROBES",
    "PERSONAL",
    "PERSONAL_R2",
    "PER_CLIENT",
    "QUANTILES",
    "WHOLE",
    "BlockedData",
    "Broadcast",
    "ByClient",
    "ClientNames",
    "Execution",
    "Gathered",
    "History",
    "Local",
    "OnHost",
    "Placement",
    "PresentData",
    "Probes",
    "RunContext",
    "RunState",
    "Scorers",
    "Selected",
    "Span",
    "Update",
    "Visit",
    "advance",
    "advance_by",
    "as_chosen",
    "at_rounds",
    "auto",
    "by_client",
    "called_part",
    "check_last_round",
    "check_options",
    "check_run",
    "chunked",
    "client_evaluator",
    "client_names",
    "client_row",
    "client_statistics",
    "client_stream",
    "context_of",
    "counted",
    "current_broadcast",
    "devices",
    "direction",
    "distributed",
    "due",
    "evaluate",
    "evaluation",
    "evaluation_context",
    "evaluator",
    "everywhere",
    "execution",
    "first_state",
    "gathered",
    "has_kernels",
    "headline",
    "init",
    "inner_programs",
    "is_fraction",
    "is_mark",
    "is_ragged",
    "make_mesh",
    "memory_limit",
    "merge_evaluators",
    "num_buffers",
    "num_cores",
    "offload",
    "on_host",
    "one_round",
    "periods",
    "periods_of",
    "personal_evaluator",
    "placement",
    "platform_of",
    "pooled_evaluator",
    "program_bytes",
    "quantile_names",
    "run",
    "sequential",
    "sharded",
    "split_of",
    "stacks",
    "strategies",
    "subsample",
    "takes_state",
    "use_all_cores",
    "use_command_buffers",
    "visits",
    "vmapped",
    "weights_by_round",
    "weights_of",
    "workers",
]
