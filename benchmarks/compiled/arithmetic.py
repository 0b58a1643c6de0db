"""Bytes and arithmetic of the operations of a compiled program."""

import math
import re

from benchmarks.compiled.hlo import Module, Operation, arrays, is_kernel, num_bytes

_SLICES = ("dynamic-slice", "gather", "slice")


def flops(module: Module, operation: Operation, within: dict[str, Operation]) -> float:
    """Returns the multiply-adds, times 2, of an operation's products and convolutions."""
    if operation.opcode in ("fusion", "async-start"):
        return sum(
            flops(module, inner, module.computations[called])
            for called in operation.called
            for inner in module.computations[called].values()
        )
    shapes = [arrays(within[name].shape)[0] for name in operation.operands[:2] if name in within]
    if len(shapes) < 2:
        return 0.0
    (left, right), output = shapes, arrays(operation.shape)[0]
    if operation.opcode == "dot":
        return _dot(operation.attributes, "lhs_contracting_dims={([\\d,]*)}", left, output)
    if operation.opcode == "convolution":
        return _convolution(operation.attributes, left, right, output)
    if operation.opcode == "custom-call":
        if "__cublas" in operation.attributes:
            digits = re.search(r'lhs_contracting_dimensions":\[([^\]]*)\]', operation.attributes)
            axes = re.findall(r"\d+", digits[1]) if digits else ()
            return 2.0 * math.prod(output) * math.prod(left[int(axis)] for axis in axes)
        if "__cudnn$convForward" in operation.attributes:
            return _convolution(operation.attributes, left, right, output)
        if "__cudnn$convBackwardInput" in operation.attributes:
            return _convolution(operation.attributes, output, right, left)
        if "__cudnn$convBackwardFilter" in operation.attributes:
            return _convolution(operation.attributes, left, output, right)
    return 0.0


def _dot(text: str, pattern: str, left: tuple[int, ...], output: tuple[int, ...]) -> float:
    found = re.search(pattern, text)
    axes = [int(axis) for axis in found[1].split(",") if axis] if found else []
    return 2.0 * math.prod(output) * math.prod(left[axis] for axis in axes)


def _convolution(
    text: str, images: tuple[int, ...], kernel: tuple[int, ...], output: tuple[int, ...]
) -> float:
    """Returns the arithmetic without the products with padding and dilation."""
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", text)
    assert labels is not None, text[:200]
    of_images, of_kernel, of_output = labels.groups()
    window = re.search(r"window=\{([^}]*)\}", text)
    given = dict(re.findall(r"(\w+)=([\d_x\-]+)", window[1])) if window else {}
    positions = 1
    for axis in (c for c in of_output if c.isdigit()):
        number = int(axis)

        def setting(name: str, default: str, number: int = number) -> str:
            return given[name].split("x")[number] if name in given else default

        low = int(setting("pad", "0_0").split("_")[0])
        positions *= _positions(
            images[of_images.index(axis)],
            kernel[of_kernel.index(axis)],
            output[of_output.index(axis)],
            low,
            int(setting("stride", "1")),
            int(setting("lhs_dilate", "1")),
            int(setting("rhs_dilate", "1")),
        )
    groups = [int(n) for n in re.findall(r"(?:feature|batch)_group_count=(\d+)", text)]
    channels = images[of_images.index("f")]
    batch = images[of_images.index("b")]
    features = output[of_output.index("f")]
    return 2.0 * batch * channels * features * positions / math.prod(groups)


def _positions(
    image: int, kernel: int, output: int, low: int, stride: int, spread: int, reach: int
) -> int:
    """Returns the pairs of output and kernel positions that meet an entry of the image."""
    count = 0
    for k in range(kernel):
        for position in range(output):
            at = position * stride + k * reach - low
            count += 0 <= at <= (image - 1) * spread and at % spread == 0
    return count


def bytes_accessed(module: Module, operation: Operation, within: dict[str, Operation]) -> float:
    """Returns the bytes that a kernel reads and writes.

    Of an array that a fusion only slices, the slices count; of one that it updates in place, the
    update.
    """
    if not is_kernel(operation):
        return 0.0
    inputs = [num_bytes(within[name].shape) if name in within else 0 for name in operation.operands]
    output = num_bytes(operation.shape)
    if operation.opcode in _SLICES:
        return 2.0 * output
    if operation.opcode == "dynamic-update-slice":
        return 2.0 * inputs[1]
    if operation.opcode == "fusion":
        return _fusion_bytes(module.computations[operation.called[0]], inputs, output)
    return float(sum(inputs) + output)


def _fusion_bytes(inside: dict[str, Operation], inputs: list[int], output: int) -> float:
    users: dict[str, list[Operation]] = {}
    for operation in inside.values():
        for name in operation.operands:
            users.setdefault(name, []).append(operation)

    def readers(name: str) -> list[Operation]:
        found = []
        for user in users.get(name, []):
            found += readers(user.name) if user.opcode == "bitcast" else [user]
        return found

    def source(name: str) -> str:
        while inside[name].opcode == "bitcast":
            name = inside[name].operands[0]
        return name

    amount = 0.0
    updated = 0
    for operation in inside.values():
        if operation.opcode != "parameter":
            continue
        size = inputs[int(operation.arguments)]
        uses = readers(operation.name)
        parts = 0
        for user in uses:
            if user.opcode in _SLICES and source(user.operands[0]) == operation.name:
                parts += num_bytes(user.shape)
            elif (
                user.opcode == "dynamic-update-slice" and source(user.operands[0]) == operation.name
            ):
                updated += size - num_bytes(inside[user.operands[1]].shape)
            else:
                parts = size
                break
        amount += min(size, parts)
    return amount + max(output - updated, 0)
