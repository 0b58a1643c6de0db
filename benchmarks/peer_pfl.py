"""pfl-research's FederatedAveraging on W1 to W4, in the virtual environment that has pfl and torch.

One process, no privacy, uniform weights.  pfl does not shuffle a client's examples, so it does
slightly less than the others.
"""

# pyright: reportMissingImports=false, reportArgumentType=false

import statistics
import time
import types

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel

from benchmarks import torch_loop
from benchmarks.workloads import WORKLOADS


class Clock(TrainingProcessCallback):
    """Notes when each round ends, and ends the training after some seconds."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self.ends: list[float] = []
        self.cpu_ends: list[float] = []

    def on_train_begin(self, *, model):
        del model
        self._note()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        del aggregate_metrics, model, central_iteration
        self._note()
        # Round 0 also evaluates; round 1 is left out like the others' second call.
        timed = len(self.ends) - 3
        enough = timed > 0 and (self.ends[-1] - self.ends[2] > self.seconds or timed >= 50)
        return enough, Metrics()

    def _note(self):
        self.ends.append(time.perf_counter())
        self.cpu_ends.append(time.process_time())


def measure(workload: str, threads: int | None, seconds: float) -> dict[str, float]:
    """Runs in the candidate's own process; ``threads`` of torch, None: one per core."""
    torch_loop.use_threads(threads)
    np.random.seed(0)  # noqa: NPY002  pfl's sampler draws from it
    w = WORKLOADS[workload]
    x, y = torch_loop.tensors(w)
    network = torch_loop.network(w)

    def loss(self, inputs, labels):
        return torch_loop.loss(w, self(inputs), labels)

    def metrics(self, inputs, labels):
        del self, labels
        return {"examples": Weighted(0.0, len(inputs))}

    network.loss = types.MethodType(loss, network)
    network.metrics = types.MethodType(metrics, network)
    clients = list(range(w.clients))
    data = FederatedDataset.from_slices(
        {i: [x[i], y[i]] for i in clients}, get_user_sampler("random", clients)
    )
    clock = Clock(seconds)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=10**6,
            evaluation_frequency=10**6,
            train_cohort_size=w.cohort,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(
            training_data=data, val_data=data, postprocessors=[WeightByUser()]
        ),
        model=PyTorchModel(
            model=network,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(network.parameters(), 1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=w.epochs, local_learning_rate=w.lr, local_batch_size=w.batch
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[clock],
    )
    if not all(bool(torch.isfinite(p).all()) for p in network.parameters()):
        raise FloatingPointError("the model diverged")
    rounds = np.diff(clock.ends).tolist()
    return {
        "seconds": statistics.median(rounds[2:]),
        "cpu_seconds": statistics.median(np.diff(clock.cpu_ends).tolist()[2:]),
        "first_call_seconds": rounds[0],
        "calls": len(rounds) - 2,
    }
