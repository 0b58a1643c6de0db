"""The programs to compile, from shapes alone: no data set is made and nothing is executed."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import fedjax_sim as fs
from benchmarks import accelerator, asynchrony, sweep
from benchmarks.candidates import timeline
from benchmarks.memory import loop
from benchmarks.workloads import WORKLOADS, Workload
from fedjax_sim.algorithms.staleness import realised_steps
from fedjax_sim.data import ClientSource
from fedjax_sim.engine import BlockedData, ByClient, strategies
from fedjax_sim.runs import Trial, block_functions, cut

ROUNDS = 7  # no other loop of a case has this trip count
STATEFUL_CLIENTS = 10_000
CONTACTS = 20

EXECUTIONS: dict[str, Callable[[], strategies.Execution]] = {
    "vmapped": strategies.vmapped,
    "sequential": strategies.sequential,
    "auto": lambda: strategies.auto(devices=()),  # not on this process's devices
}


class Program(NamedTuple):
    """A function to compile, with the shapes of its arguments."""

    function: Callable
    arguments: tuple
    shardings: tuple  # of the arguments, prefixes
    rounds: int
    max_steps: int  # local steps of the longest visit
    donated: tuple[int, ...] = ()


class Case(NamedTuple):
    """A workload, and the ways to execute it."""

    title: str
    strategies: tuple[str, ...]
    build: Callable[[Sequence[Any], str], Program]  # of the target's devices and the strategy


def _float32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _int32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


KEY = jax.eval_shape(lambda: jax.random.key(0))


def task_shapes(
    objective: Callable, x: jax.ShapeDtypeStruct, num_clients: int, batches: Any
) -> fs.Task:
    """Returns the shapes of a task whose clients have equally many examples ``x [N, ...]``."""
    offsets = np.arange(num_clients + 1, dtype=np.int32) * (x.shape[0] // num_clients)

    def build(examples: dict) -> fs.Task:
        return fs.empirical_task(objective, fs.FederatedData(examples, offsets), batches)

    return jax.eval_shape(build, {"x": x, "y": _int32(x.shape[0])})


def model_and_objective(w: Workload) -> tuple[fs.models.Model, Callable]:
    """Returns a workload's model and the objective of a client."""
    build = {
        "softmax": lambda: fs.models.softmax_regression(w.shape, w.classes),
        "logistic": lambda: fs.models.logistic_regression(w.shape),
        "femnist": fs.models.femnist_cnn,
        "lenet": fs.models.lenet5,
    }
    model = build[w.model]()
    loss = fs.objectives.binary_cross_entropy if w.classes == 1 else fs.objectives.cross_entropy
    return model, loss(model.apply)


def training(
    algorithm: fs.FedAlgorithm,
    task: fs.Task,
    params: Any,
    draw: Callable[[jax.Array], fs.Timeline],
    execution: strategies.Execution,
    task_sharding: Any,
    everywhere: Any,
    max_steps: int,
) -> Program:
    """A whole run of FedAvg or another algorithm, with the schedule drawn inside the program."""

    def rounds(task: fs.Task, params: Any, key: jax.Array) -> Any:
        schedule, visits = jax.random.split(key)
        setup = fs.Setup(task, draw(schedule), params, eval_every=ROUNDS)
        return fs.run(algorithm, setup, visits, execution=execution)[0].server.params

    shardings = task_sharding, everywhere, everywhere
    return Program(rounds, (task, params, KEY), shardings, ROUNDS, max_steps)


def workload(name: str) -> Callable[[Sequence[Any], str], Program]:
    """Returns the builder of one of W1 to W4."""

    def build(devices: Sequence[Any], strategy: str) -> Program:
        w = WORKLOADS[name]
        model, objective = model_and_objective(w)
        x = _float32(w.clients * w.examples, *w.shape)
        task = task_shapes(objective, x, w.clients, fs.epochs(w.epochs, w.batch))
        params = jax.eval_shape(model.init, KEY)
        where = SingleDeviceSharding(devices[0])
        draw = lambda key: timeline(w, key, ROUNDS)  # noqa: E731
        return training(
            fs.fedavg(w.lr), task, params, draw, EXECUTIONS[strategy](), where, where, w.steps
        )

    return build


def network(name: str, dtype: Any = None) -> Callable[[Sequence[Any], str], Program]:
    """Returns the builder of ResNet-18 or ViT-Tiny as the part ``accelerator`` trains them."""

    def build(devices: Sequence[Any], strategy: str) -> Program:
        net = accelerator.NETWORKS[name]
        on_tpu = devices[0].platform == "tpu"
        half = dtype is not None
        pairs = half and on_tpu
        model = {
            "ResNet-18": lambda: fs.models.resnet18(net.classes, pairs=pairs, remat=pairs),
            "ViT-Tiny": lambda: fs.models.vit_tiny(
                num_classes=net.classes, unroll=half or not on_tpu
            ),
        }[name]()
        model = fs.models.in_precision(model, dtype) if half else model
        clients, cohort = accelerator.CLIENTS, accelerator.COHORT
        x = _float32(clients * net.batch * net.steps, *net.shape)
        task = task_shapes(
            fs.objectives.cross_entropy(model.apply), x, clients, fs.epochs(1, net.batch)
        )
        params = jax.eval_shape(model.init, KEY)
        where = SingleDeviceSharding(devices[0])

        def draw(key: jax.Array) -> fs.Timeline:
            return fs.timelines.uniform(key, ROUNDS, clients, cohort, net.steps)

        return training(
            fs.fedavg(accelerator.LR), task, params, draw, EXECUTIONS[strategy](), where, where,
            net.steps,
        )  # fmt: skip

    return build


def asynchronous(devices: Sequence[Any], strategy: str) -> Program:
    """FAVANO in the setting of the part ``asynchrony``; its timeline is an argument."""
    made = asynchrony.schedule(
        asynchrony.CLIENTS, asynchrony.COHORT, CONTACTS, asynchrony.MAX_STEPS
    )
    model, batch, examples, _ = asynchrony.CASES["engine"]
    x = jax.ShapeDtypeStruct((asynchrony.CLIENTS * examples, asynchrony.PIXELS), jnp.uint8)
    task = task_shapes(
        fs.objectives.cross_entropy(model.apply), x, asynchrony.CLIENTS,
        fs.stream(batch, asynchrony.MAX_STEPS),
    )  # fmt: skip
    active = jnp.full(asynchrony.CLIENTS, asynchrony.P_ACTIVE)
    algorithm = fs.favano(asynchrony.LR, realised_steps(active))
    execution = EXECUTIONS[strategy]()

    def train(task: fs.Task, timeline: fs.Timeline, params: Any) -> Any:
        setup = fs.Setup(task, timeline, params)
        key = jax.random.key(1)
        return fs.run(algorithm, setup, key, execution=execution)[0].server.params

    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, jax.dtypes.canonicalize_dtype(x.dtype)),
        made.timeline,
    )
    params = jax.eval_shape(model.init, KEY)
    where = SingleDeviceSharding(devices[0])
    return Program(
        train, (task, shapes, params), (where, where, where), CONTACTS, made.timeline.max_steps
    )


def swept(devices: Sequence[Any], strategy: str) -> Program:
    """The 49 x 3 runs of W4 as one block of a sweep, with the states as an argument."""
    w = WORKLOADS["W4"]
    model, objective = model_and_objective(w)
    x = _float32(w.clients * w.examples, *w.shape)
    task = task_shapes(objective, x, w.clients, fs.epochs(w.epochs, w.batch))
    setup = fs.Setup(
        task=task,
        timeline=jax.eval_shape(jax.vmap(lambda k: timeline(w, k, ROUNDS)), _keys(sweep.SEEDS)),
        params=jax.eval_shape(jax.vmap(model.init), _keys(sweep.SEEDS)),
        eval_every=ROUNDS,
    )
    width = len(sweep.expand(sweep.GRID))
    execution = None if strategy == "auto" else EXECUTIONS[strategy]()

    def factory(lr: Any, server_lr: Any) -> fs.FedAlgorithm:
        return fs.fedavg(lr, sweep.optax.sgd(server_lr))

    def block(setup: fs.Setup) -> tuple[Callable, Callable]:
        trial = Trial(factory, setup, execution, fs.engine.NO_PROBES)
        return block_functions(trial, cut(width, sweep.SEEDS, 1, width, sweep.SEEDS))

    def begin(hyper: dict, task: fs.Task, timeline: fs.Timeline, params: Any) -> Any:
        made = dataclasses.replace(setup, task=task, timeline=timeline, params=params)
        return block(made)[0](hyper, task, timeline, params)

    def segment(hyper: dict, task: fs.Task, timeline: Any, state: Any, keys: jax.Array) -> Any:
        made = dataclasses.replace(setup, task=task, timeline=timeline)
        state, _ = block(made)[1](hyper, task, None, timeline, state, keys)
        return state

    hyper = {name: _float32(width) for name in sweep.GRID}
    state = jax.eval_shape(begin, hyper, task, setup.timeline, setup.params)
    arguments = hyper, task, setup.timeline, state, _keys(sweep.SEEDS)
    where = SingleDeviceSharding(devices[0])
    return Program(segment, arguments, (where,) * 5, ROUNDS, w.steps, donated=(3,))


def _keys(number: int) -> Any:
    return jax.eval_shape(lambda: jax.random.split(jax.random.key(0), number))


def stateful(devices: Sequence[Any], strategy: str) -> Program:
    """SCAFFOLD with 10,000 parameters in the state of each of 10,000 clients."""
    model, steps = fs.models.softmax_regression(99, 100), 4
    task = task_shapes(
        fs.objectives.cross_entropy(model.apply), _float32(STATEFUL_CLIENTS * 4, 99),
        STATEFUL_CLIENTS, fs.epochs(2, batch_size=2),
    )  # fmt: skip

    def draw(key: jax.Array) -> fs.Timeline:
        return fs.timelines.uniform(key, ROUNDS, STATEFUL_CLIENTS, 10, steps)

    def begin(task: fs.Task, params: Any) -> Any:
        return loop(fs.scaffold(0.1), draw, params).begin(task)

    state = jax.eval_shape(begin, task, jax.eval_shape(model.init, KEY))
    execution = EXECUTIONS[strategy]()

    def proceed(task: fs.Task, state: Any, key: jax.Array) -> Any:
        schedule, visits = jax.random.split(key)
        setup = fs.Setup(task, draw(schedule), None, eval_every=ROUNDS)
        return fs.advance(fs.scaffold(0.1), setup, state, visits, execution=execution)[0]

    where = SingleDeviceSharding(devices[0])
    return Program(proceed, (task, state, KEY), (where,) * 3, ROUNDS, steps, donated=(1,))


class _Shapes(NamedTuple):
    """Placement by client whose data are shapes."""

    placement: ByClient
    examples: dict
    offsets: Any

    def task(self, source: ClientSource, build: Callable) -> fs.Task:
        del source
        blocks = BlockedData(self.examples, self.offsets, self.placement)
        return dataclasses.replace(build(BlockedData.place, blocks), placement=self.placement)


def sharded(devices: Sequence[Any], strategy: str) -> Program:
    """W1 on all devices of the target: data by client, or replicated with a divided cohort."""
    w, number = WORKLOADS["W1"], len(devices)
    mesh = fs.execution.make_mesh(devices)
    cohort = -(-w.cohort // number) * number
    model, objective = model_and_objective(w)
    params = jax.eval_shape(model.init, KEY)
    x = _float32(w.clients * w.examples, *w.shape)
    batches = fs.epochs(w.epochs, w.batch)
    everywhere = NamedSharding(mesh, PartitionSpec())
    algorithm = fs.fedavg(w.lr)
    if strategy == "replicated":
        task = task_shapes(objective, x, w.clients, batches)

        def uniform(key: jax.Array) -> fs.Timeline:
            return fs.timelines.uniform(key, ROUNDS, w.clients, cohort, w.steps)

        return training(
            algorithm, task, params, uniform, strategies.sharded(mesh), everywhere, everywhere,
            w.steps,
        )  # fmt: skip
    placement = fs.execution.by_client(w.clients, Mesh(mesh.devices, mesh.axis_names))
    strata = placement.strata
    source = ClientSource(np.full(w.clients, w.examples), lambda first, last: {})

    def build(examples: dict, offsets: Any) -> fs.Task:
        shapes: Any = _Shapes(placement, examples, offsets)
        return fs.empirical_task(objective, source, batches, placement=shapes)

    rows = strata.number * strata.width * w.examples
    examples = {"x": _float32(rows, *w.shape), "y": _int32(rows)}
    task = jax.eval_shape(build, examples, _int32(strata.number, strata.width + 1))
    by_device = jax.tree.map(
        lambda spec: NamedSharding(mesh, spec),
        placement.specs(task),
        is_leaf=lambda x: isinstance(x, PartitionSpec),
    )

    def stratified(key: jax.Array) -> fs.Timeline:
        return fs.timelines.stratified(
            key, ROUNDS, w.clients, cohort, w.steps, num_strata=strata.number
        )

    return training(
        algorithm, task, params, stratified, EXECUTIONS["auto"](), by_device, everywhere, w.steps
    )


ALL = tuple(EXECUTIONS)
CASES = {
    "W1": Case("softmax regression, 100 clients x 30 steps", ALL, workload("W1")),
    "W2": Case("FEMNIST CNN, 10 clients x 5 steps", ALL, workload("W2")),
    "W3": Case("LeNet-5, 10 clients x 50 steps", ALL, workload("W3")),
    "W4": Case("logistic regression, 1,000 clients x 16 steps", ALL, workload("W4")),
    "asynchronous": Case("FAVANO, 784-32-10, 20 clients x 20 steps", ALL, asynchronous),
    "sweep": Case("W4, 49 learning-rate pairs x 3 seeds", ("auto",), swept),
    "ResNet-18": Case(
        "group normalisation, 32 x 32 images, 10 clients x 5 steps", ALL, network("ResNet-18")
    ),
    "ViT-Tiny": Case("32 x 32 images, 10 clients x 5 steps", ALL, network("ViT-Tiny")),
    "ResNet-18-bfloat16": Case(
        "the same, products in bfloat16", ("auto",), network("ResNet-18", jnp.bfloat16)
    ),
    "ViT-Tiny-bfloat16": Case(
        "the same, products in bfloat16", ("auto",), network("ViT-Tiny", jnp.bfloat16)
    ),
    "SCAFFOLD": Case(
        "10,000 clients' states of 10,000 parameters, 10 clients x 4 steps", ALL, stateful
    ),
    "sharded": Case("W1 on all devices", ("by-client", "replicated"), sharded),
}
