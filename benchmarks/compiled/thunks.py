"""Reading of XLA's dump of a GPU program: what command buffers capture, how matrix units add.

A command buffer is a CUDA graph: its kernels, and loops inside it, run without the host.
"""

import collections
import pathlib
import re
from collections.abc import Mapping
from typing import NamedTuple

from fedjax_sim.engine import COMMAND_BUFFER_FLAGS

RECOMMENDED_FLAGS = " ".join(f"--{name}={value}" for name, value in COMMAND_BUFFER_FLAGS.items())

_THUNK = re.compile(r"^( *)\d+: (k\w+)\s+\[[^\]]*\]\s*(.*)$")
_AFTER, _BEFORE = "thunk_sequence_after_thunk_passes.txt", "thunk_sequence.txt"


class Thunks(NamedTuple):
    """Thunks of a program that the host starts one by one, and its command buffers."""

    command_buffers: int
    loops: tuple[bool, ...]  # of each loop, in the order of the program: the host runs it
    others: tuple[str, ...]  # kernels and copies outside command buffers

    @property
    def loops_outside(self) -> int:
        """Number of loops that the host runs."""
        return sum(self.loops)


def parse(text: str) -> Thunks:
    """Returns the thunks of a dumped sequence."""
    buffers, loops, others = 0, [], []
    captured: int | None = None  # indentation of the command buffer around the line
    for line in text.splitlines():
        found = _THUNK.match(line)
        if found is None:
            continue
        indent, kind, label = len(found[1]), found[2], found[3]
        if captured is not None and indent <= captured:
            captured = None
        inside = captured is not None
        if kind == "kCommandBuffer":
            buffers += 1
            captured = indent if captured is None else captured
        elif kind == "kWhile":
            loops.append(not inside)
        elif not inside and kind not in ("kSequential", "kConditional"):
            others.append(label.split(" grid:")[0].strip() or kind)
    return Thunks(buffers, tuple(loops), tuple(others))


def read(folder: pathlib.Path) -> Thunks:
    """Returns the thunks of the largest program in a folder of dumps."""
    before = sorted(folder.glob(f"*.{_BEFORE}"), key=lambda path: path.stat().st_size)
    if not before:
        raise FileNotFoundError(f"{folder} has no file *.{_BEFORE}; expected XLA's dump there")
    name = before[-1].name.removesuffix(_BEFORE)
    after = folder / f"{name}{_AFTER}"
    # XLA writes the second file only if its passes changed something.
    return parse((after if after.is_file() else before[-1]).read_text())


# Products of matrix units: dtypes of the result and of both operands, as PTX writes them.
_MATRIX_UNIT = re.compile(r"\bmma(?:_async)?\.sync\S*?\.(b?f16|f32)\.b?f16\.b?f16\b")


def accumulators(folder: pathlib.Path) -> dict[str, int]:
    """Returns the matrix units' instructions on half-precision operands, by the dtype of the sums.

    Those in the kernels that XLA wrote itself (dumps ``*.ptx``).  Kernels of cuBLAS are not there;
    for bfloat16 it has none that add in less than float32.
    """
    found = (
        name for path in folder.glob("*.ptx") for name in _MATRIX_UNIT.findall(path.read_text())
    )
    return dict(collections.Counter(found))


def flags(environ: Mapping[str, str], folder: str, recommended: bool) -> str:
    """Returns XLA_FLAGS that dump the thunks, with or without the recommended flags.

    Example:
        >>> flags({"XLA_FLAGS": "--a=1"}, "/tmp/d", recommended=False)
        '--a=1 --xla_dump_to=/tmp/d'
    """
    parts = [environ.get("XLA_FLAGS", ""), RECOMMENDED_FLAGS if recommended else ""]
    return " ".join(part for part in (*parts, f"--xla_dump_to={folder}") if part)
