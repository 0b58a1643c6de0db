"""FedAvg's rounds in PyTorch, as it is written for a GPU: graphs, channels last, bfloat16, vmap.

Ways:

* ``graphs``: one client after the other; a client's whole visit is one CUDA graph, images are in
  channels-last order;
* ``vmap``: all clients at once, by ``torch.func.vmap`` of one client's step;
* ``vmap-graph``: the same, with all steps of a round in one CUDA graph.

On a CPU there are no graphs, so the same code runs as it is written.  The networks, the
minibatches' sizes and the arithmetic per round are those of ``ours``; :func:`one_round` gives the
model after a round from given parameters, for a comparison.
"""

# pyright: reportMissingImports=false, reportPrivateImportUsage=false

import contextlib
import functools
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from benchmarks.jobs import Measured, timed
from benchmarks.torch_loop import loss, network, tensors
from benchmarks.workloads import GOALS, WIDE, Workload, reduced

WAYS = ("graphs", "vmap", "vmap-graph")
Tensors = list[torch.Tensor]
Round = Callable[[Tensors, torch.Tensor, torch.Tensor, torch.Tensor], Tensors]


class Block(nn.Module):
    """Basic residual block with group normalisation in two groups."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.GroupNorm(2, outputs), nn.GroupNorm(2, outputs)
        self.shortcut = nn.Identity()
        if inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(2, outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm2(self.conv2(functional.relu(self.norm1(self.conv1(x)))))
        return functional.relu(y + self.shortcut(x))


def resnet18(classes: int) -> nn.Module:
    """ResNet-18 with the stem for small images."""
    widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
    blocks = [Block(a, b, 1 if a == b else 2) for a, b in itertools.pairwise(widths)]
    return nn.Sequential(
        *(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.GroupNorm(2, 64), nn.ReLU(), *blocks),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes)),
    )


def lenet(channels: Sequence[int], units: Sequence[int], classes: int) -> nn.Module:
    """LeNet-5 of given widths."""
    (a, b), (c, d) = channels, units
    return nn.Sequential(
        *(nn.Conv2d(3, a, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(a, b, 5), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(25 * b, c), nn.ReLU(), nn.Linear(c, d)),
        *(nn.ReLU(), nn.Linear(d, classes)),
    )


def network_of(w: Workload) -> nn.Module:
    """Network of a workload, inputs ``[B, channels, height, width]``."""
    if w.model == "resnet18":
        return resnet18(w.classes)
    if w.model == "lenet-wide":
        return lenet(*WIDE, w.classes)
    return network(w)


def measure(
    workloads: Sequence[str], precisions: Sequence[str], seconds: float, tiny: bool
) -> Measured:
    """Runs in a process of its own; prints ``WORKLOAD/WAY/PRECISION seconds`` after each."""
    numbers: Measured = {}
    errors = {}
    device = _device()
    for name, precision, way in itertools.product(workloads, precisions, WAYS):
        w = reduced(GOALS[name]) if tiny else GOALS[name]
        candidate = f"{name}/{way}/{precision}"
        x, y = (t.to(device) for t in _tensors(w))
        try:
            found = timed(_rounds(w, way, precision, x, y), seconds)
        except RuntimeError as error:  # out of memory, or no capture
            errors[candidate] = f"{error}"[:300]
            continue
        numbers[f"{candidate} seconds"] = found["seconds"]
        print(json.dumps(numbers), flush=True)
    if not numbers:
        raise RuntimeError(json.dumps(errors))
    for name, error in errors.items():
        print(f"not measured: {name}: {error}", file=sys.stderr)
    print(json.dumps(numbers), flush=True)
    return numbers


@functools.lru_cache(maxsize=1)
def _tensors(w: Workload) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the examples of a workload, those of the last one from memory."""
    return tensors(w)


def one_round(
    w: Workload,
    params: Sequence[np.ndarray],
    x: np.ndarray,
    y: np.ndarray,
    rows: np.ndarray,
    way: str = "graphs",
    precision: str = "float32",
) -> list[np.ndarray]:
    """Returns the mean of the clients' models after their visits.

    Args:
        w: the workload.
        params: arrays in the order and the layout of the network's parameters.
        x: the cohort's examples, ``[C, n, channels, height, width]`` or ``[C, n, features]``.
        y: labels ``[C, n]``.
        rows: of the minibatches, ``[C, K, B]``.
        way: one of ``WAYS``.
        precision: bfloat16, tf32 or float32.
    """  # fmt: skip
    device = _device()
    step = _round(w, way, precision)
    given = [torch.tensor(p, device=device) for p in params]
    arrays = (torch.as_tensor(a, device=device) for a in (x, y.astype(np.int64), rows))
    return [p.cpu().numpy() for p in step(given, *arrays)]


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _rounds(
    w: Workload, way: str, precision: str, x: torch.Tensor, y: torch.Tensor
) -> Callable[[], int]:
    """Returns a function that samples a cohort and minibatches and runs one round."""
    torch.manual_seed(0)
    params = [p.detach().to(x.device) for p in network_of(w).parameters()]
    step = _round(w, way, precision)
    rng = np.random.default_rng(1)
    generator = torch.Generator(x.device).manual_seed(0)

    def one_call() -> int:
        nonlocal params
        clients = torch.from_numpy(rng.choice(w.clients, w.cohort, replace=False)).to(x.device)
        noise = torch.rand(w.cohort * w.epochs, w.examples, device=x.device, generator=generator)
        rows = noise.argsort(1).reshape(w.cohort, w.steps, w.batch)
        params = step(params, x[clients], y[clients], rows)
        if x.is_cuda:
            torch.cuda.synchronize()
        return 1

    return one_call


@contextlib.contextmanager
def _arithmetic(precision: str, device: torch.device) -> Iterator[None]:
    """Context of a precision: operands of products in bfloat16, parameters in float32."""
    torch.backends.cuda.matmul.allow_tf32 = precision != "float32"
    torch.backends.cudnn.allow_tf32 = precision != "float32"
    torch.backends.cudnn.benchmark = True
    half = precision == "bfloat16"
    with torch.autocast(device.type, torch.bfloat16, enabled=half, cache_enabled=False):
        yield


def _round(w: Workload, way: str, precision: str) -> Round:
    """Returns ``(params, x, y, rows) -> params`` of a round."""
    if way == "graphs":
        return _one_by_one(w, precision)
    return _together(w, precision, captured=way != "vmap")


def _one_by_one(w: Workload, precision: str) -> Round:
    """Clients one after the other, each visit one graph on a GPU."""
    net = network_of(w).to(_device())
    images = len(w.shape) == 3
    if images:
        net = net.to(memory_format=torch.channels_last)
    own: Tensors = list(net.parameters())

    def visit(x: torch.Tensor, y: torch.Tensor, rows: torch.Tensor) -> None:
        for picked in rows.unbind(0):
            batch = x[picked]
            if images:
                batch = batch.contiguous(memory_format=torch.channels_last)
            with _arithmetic(precision, x.device):
                logits = net(batch)
            slopes = torch.autograd.grad(loss(w, logits.float(), y[picked]), own)
            with torch.no_grad():
                torch._foreach_add_(own, slopes, alpha=-w.lr)

    run = _Graph(visit)

    def one_round(params: Tensors, x: torch.Tensor, y: torch.Tensor, rows: torch.Tensor) -> Tensors:
        total = [torch.zeros_like(p) for p in params]
        run.prepare(x[0], y[0], rows[0])
        for client in range(len(x)):
            with torch.no_grad():
                torch._foreach_copy_(own, params)
            run(x[client], y[client], rows[client])
            with torch.no_grad():
                torch._foreach_add_(total, own)
        return [t.detach() / len(x) for t in total]

    return one_round


def _together(w: Workload, precision: str, captured: bool) -> Round:
    """All clients at once."""
    net = network_of(w).to(_device())
    names = [name for name, _ in net.named_parameters()]
    stacked = [
        p.detach().expand(w.cohort, *p.shape).clone(memory_format=torch.contiguous_format)
        for p in net.parameters()
    ]

    def objective(params: tuple, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        logits = functional_call(net, dict(zip(names, params, strict=True)), (x,))
        return loss(w, logits.float(), y)

    slopes = vmap(grad(objective), (0, 0, 0))

    def visits(x: torch.Tensor, y: torch.Tensor, rows: torch.Tensor) -> None:
        clients = torch.arange(len(x), device=x.device)[:, None]
        for picked in rows.unbind(1):
            with _arithmetic(precision, x.device):
                found = slopes(tuple(stacked), x[clients, picked], y[clients, picked])
            torch._foreach_add_(stacked, [s.float() for s in found], alpha=-w.lr)

    run = _Graph(visits) if captured else visits

    @torch.no_grad()
    def one_round(params: Tensors, x: torch.Tensor, y: torch.Tensor, rows: torch.Tensor) -> Tensors:
        if isinstance(run, _Graph):
            run.prepare(x, y, rows)
        torch._foreach_copy_(stacked, [p.expand(len(x), *p.shape) for p in params])
        run(x, y, rows)
        return [s.mean(0) for s in stacked]

    return one_round


class _Graph:
    """Function of tensors of fixed shapes, on a GPU one CUDA graph."""

    def __init__(self, function: Callable[..., None]):
        self.function = function
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: tuple[torch.Tensor, ...] = ()

    def prepare(self, *arguments: torch.Tensor) -> None:
        """Captures the function, which then has run: its state is to be set afterwards."""
        if self.graph is not None or not arguments[0].is_cuda:
            return
        self.inputs = tuple(argument.clone() for argument in arguments)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # cuDNN chooses its algorithms before the capture
            self.function(*self.inputs)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.function(*self.inputs)

    def __call__(self, *arguments: torch.Tensor) -> None:
        if self.graph is None:
            self.function(*arguments)
            return
        torch._foreach_copy_(list(self.inputs), list(arguments))
        self.graph.replay()
