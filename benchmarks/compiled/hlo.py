"""Reading of a compiled program's text (HLO): operations, loops, cycles, bytes and arithmetic.

A compiler's cost analysis counts the body of a loop once.  Here every quantity of a body is
multiplied by the trip counts of the loops around it.
"""

import math
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_NAME = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = ")
_OPCODE = re.compile(r"\s*([\w\-]+)\(")
_ARRAY = re.compile(r"\b(pred|bf16|[a-z]+\d+\w*)\[([\d,]*)\]")
_CALLED = re.compile(
    r"(?:calls|to_apply|true_computation|false_computation)=(%?[\w.\-]+)"
    r"|(?:calls|branch_computations)=\{([^}]*)\}"
)
_BITS = {"pred": 8, "token": 0}

# Operations that are no kernel of their own: names of values, control flow, and the ends of
# asynchronous operations.
_FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "call",
    "conditional", "after-all", "partition-id", "replica-id", "opt-barrier", "add-dependency",
    "domain", "async-update",
}  # fmt: skip
COLLECTIVES = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all",
    "collective-permute", "collective-broadcast",
)  # fmt: skip


class Operation(NamedTuple):
    """One line of a computation."""

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    arguments: str  # text between the parentheses
    attributes: str  # text after the parentheses

    @property
    def called(self) -> tuple[str, ...]:
        """Computations that it calls, except for a loop's."""
        found = (one or several for one, several in _CALLED.findall(self.attributes))
        return tuple(name for names in found for name in re.findall(r"[\w.\-]+", names))

    @property
    def cycles(self) -> int:
        """The TPU compiler's estimate, 0 if there is none."""
        found = re.search(r'estimated_cycles":"(\d+)"', self.attributes)
        return int(found[1]) if found else 0


class Module(NamedTuple):
    """Computations of a program: name -> operations by name."""

    entry: str
    computations: dict[str, dict[str, Operation]]


class Loop(NamedTuple):
    """A loop of a computation."""

    name: str
    body: str
    trips: int | None  # None: not known to the compiler


def parse(text: str) -> Module:
    """Returns the computations of ``compiled.as_text()``."""
    computations: dict[str, dict[str, Operation]] = {}
    current: dict[str, Operation] | None = None
    entry = None
    for line in text.splitlines():
        if header := _HEADER.match(line):
            current = computations.setdefault(header[2], {})
            entry = header[2] if header[1] else entry
        elif current is not None and (operation := _operation(line)):
            current[operation.name] = operation
    if entry is None:
        raise ValueError("text has no line that starts with ENTRY; expected a compiled module")
    return Module(entry, computations)


def _operation(line: str) -> Operation | None:
    name = _NAME.match(line)
    if name is None:
        return None
    rest = line[name.end() :]
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    opcode = _OPCODE.match(rest, end)
    if opcode is None:
        return None
    close = _closing(rest, opcode.end() - 1)
    arguments = rest[opcode.end() : close]
    operands = tuple(re.findall(r"%([\w.\-]+)", arguments))
    return Operation(name[1], rest[:end], opcode[1], operands, arguments, rest[close + 1 :])


def _closing(text: str, opening: int) -> int:
    """Returns the position of the parenthesis that closes the one at ``opening``."""
    depth = 0
    for i in range(opening, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0:
            return i
    return len(text)


def arrays(shape: str) -> list[tuple[int, ...]]:
    """Returns the dimensions of the arrays in a shape.

    Example:
        >>> arrays("(f32[8,10]{1,0:T(8,128)}, s32[])")
        [(8, 10), ()]
    """
    return [tuple(int(n) for n in dims.split(",") if n) for _, dims in _ARRAY.findall(shape)]


def num_bytes(shape: str) -> int:
    """Returns the bytes of a shape without padding.

    Example:
        >>> num_bytes("(bf16[8,10]{1,0:T(8,128)(2,1)}, pred[3])")
        163
    """
    total = 0
    for kind, dims in _ARRAY.findall(shape):
        bits = _BITS.get(kind) or int(re.search(r"\d+", kind)[0])  # pyright: ignore
        total += bits * math.prod(int(n) for n in dims.split(",") if n)
    return total // 8


def is_kernel(operation: Operation) -> bool:
    """Returns True for an operation that starts work on the device."""
    opcode = operation.opcode
    return opcode not in _FREE and not opcode.endswith("-done")


def loops(module: Module, computation: str) -> Iterator[Loop]:
    """Yields the loops of a computation, without those in their bodies."""
    for operation in module.computations[computation].values():
        if operation.opcode == "while":
            body = re.search(r"body=%?([\w.\-]+)", operation.attributes)
            assert body is not None
            yield Loop(operation.name, body[1], _trips(module, operation))
        elif operation.opcode in ("call", "conditional", "async-start"):
            for called in operation.called:
                yield from loops(module, called)


def _trips(module: Module, loop: Operation) -> int | None:
    """Returns the trip count: as the compiler states it, or the bound of a counter from 0."""
    if found := re.search(r'known_trip_count":\{"n":"(\d+)"', loop.attributes):
        return int(found[1])
    condition = re.search(r"condition=%?([\w.\-]+)", loop.attributes)
    assert condition is not None
    operations = module.computations[condition[1]]
    constants = [
        int(operation.arguments)
        for operation in operations.values()
        if operation.opcode == "constant" and operation.shape.startswith("s32[]")
    ]
    compares = any("direction=LT" in operation.attributes for operation in operations.values())
    if not compares:  # inside a fusion
        inner = [module.computations[c] for o in operations.values() for c in o.called]
        compares = any("direction=LT" in o.attributes for part in inner for o in part.values())
        constants += [
            int(o.arguments)
            for part in inner
            for o in part.values()
            if o.opcode == "constant" and o.shape.startswith("s32[]")
        ]
    return constants[0] if compares and len(constants) == 1 else None


def total(module: Module, computation: str, quantity: Callable[[Operation], float]) -> float:
    """Returns the sum of a quantity over a computation, bodies times trip counts.

    A loop with an unknown trip count is counted once, and of a conditional the largest branch.
    """
    amount = 0.0
    trips = {loop.name: loop for loop in loops(module, computation)}
    for operation in module.computations[computation].values():
        if operation.opcode == "while":
            loop = trips[operation.name]
            amount += (loop.trips or 1) * total(module, loop.body, quantity)
            continue
        amount += quantity(operation)
        if operation.opcode == "conditional":
            amount += max(total(module, called, quantity) for called in operation.called)
        elif operation.opcode in ("call", "async-start"):
            amount += sum(total(module, called, quantity) for called in operation.called)
    return amount
