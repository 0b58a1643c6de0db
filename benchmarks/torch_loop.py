"""A tight sequential PyTorch loop: batches by index, foreach SGD, no DataLoader."""

# pyright: reportMissingImports=false, reportPrivateImportUsage=false

import os

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.jobs import OneCall, timed
from benchmarks.workloads import WORKLOADS, Workload, make_data


def measure(workload: str, threads: int | None, seconds: float) -> dict[str, float]:
    """Runs in the candidate's own process; ``threads`` None: one per core."""
    use_threads(threads)
    return timed(loop(WORKLOADS[workload]), seconds)


def use_threads(threads: int | None) -> None:
    torch.set_num_threads(threads or len(os.sched_getaffinity(0)))
    torch.manual_seed(0)


def network(w: Workload) -> nn.Module:
    """The workload's model, inputs ``[B, channels, height, width]``."""
    if w.model in ("softmax", "logistic"):
        return nn.Linear(w.shape[0], w.classes)
    if w.model == "femnist":
        return nn.Sequential(
            *(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 62)),
        )
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


def loss(w: Workload, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if w.classes == 1:
        return functional.binary_cross_entropy_with_logits(logits[:, 0], labels.float())
    return functional.cross_entropy(logits, labels)


def tensors(w: Workload) -> tuple[torch.Tensor, torch.Tensor]:
    """x ``[clients, examples, ...]``, y int64 ``[clients, examples]``."""
    x, y = make_data(w)
    if len(w.shape) == 3:
        x = x.transpose(0, 1, 4, 2, 3)
    return torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(y).long()


def loop(w: Workload) -> OneCall:
    """Returns a function that runs one round per call."""
    net, (x, y) = network(w), tensors(w)
    params: list[torch.Tensor] = list(net.parameters())
    server = [p.detach().clone() for p in params]
    optimizer = torch.optim.SGD(params, lr=w.lr, foreach=True)
    rng = np.random.default_rng(1)

    def one_call() -> int:
        total = [torch.zeros_like(p) for p in server]
        for c in rng.choice(w.clients, w.cohort, replace=False):
            xc, yc = x[c], y[c]
            with torch.no_grad():
                torch._foreach_copy_(params, server)
            for _ in range(w.epochs):
                order = torch.randperm(w.examples)
                for rows in order.split(w.batch):
                    optimizer.zero_grad(set_to_none=True)
                    loss(w, net(xc[rows]), yc[rows]).backward()
                    optimizer.step()
            with torch.no_grad():
                torch._foreach_add_(total, params)
        with torch.no_grad():
            for p, t in zip(server, total, strict=True):
                p.copy_(t / w.cohort)
        return 1

    return one_call
