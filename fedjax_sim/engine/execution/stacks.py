"""Execution of algorithms whose server receives something else than the mean of the uploads."""

from fedjax_sim.engine.execution.strategies import Execution, Gathered, Local, gathered
from fedjax_sim.engine.returned import called_part, checked_means
from fedjax_sim.types import Aggregation, FedAlgorithm, PyTree, ServerState, Upload


def is_stacked(aggregation: Aggregation | None) -> bool:
    """Returns True if the server receives all uploads of a round."""
    return aggregation is not None and aggregation.each is None


def strategy(aggregation: Aggregation | None, execution: Execution) -> Execution:
    """Returns a strategy that delivers what an algorithm's server receives."""
    if aggregation is None:
        return execution
    if isinstance(execution, Gathered):
        raise ValueError(
            "execution is gathered(...); expected a strategy with the mean, such as "
            "execution.vmapped(), since the algorithm has an aggregation of its own"
        )
    if aggregation.each is not None:
        return execution
    return gathered(lambda uploads, weights: uploads, execution)


def received(
    algorithm: FedAlgorithm, server: ServerState, local: Local, shared: PyTree
) -> tuple[Local, PyTree]:
    """Returns a round's function of a client and its shared input, with the server's transform."""
    if algorithm.aggregation is None or algorithm.aggregation.each is None:
        return local, shared

    def transformed(shared: PyTree, slot: PyTree) -> tuple[Upload, PyTree]:
        server, shared = shared
        upload, outputs = local(shared, slot)
        changed = called_part(algorithm, "aggregation.each", server, upload)
        return checked_means("aggregation.each", changed), outputs

    return transformed, (server, shared)
