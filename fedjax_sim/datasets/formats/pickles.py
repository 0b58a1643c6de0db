"""Safe reader of pickles that contain only numbers, strings, containers and numeric arrays.

A pickle is a program: unpickling an untrusted file runs arbitrary code.  Here every instruction is
checked against a short list before any of them runs, and the only names that a file can call are
stand-ins for NumPy's reconstruction functions.  Neither foreign code nor NumPy's own unpickling
processes the data.
"""

import io
import math
import pickle
import pickletools
from typing import Any

import numpy as np

from fedjax_sim.datasets.dataset import DataError

# Instructions of Python 2 and 3, protocols 0 to 4, for containers of strings, numbers and arrays:
# without persistent ids, extension codes, instances, pickle calls of __new__, and out-of-band or
# preallocated buffers.
_OPCODES = frozenset(
    """
    PROTO FRAME STOP MARK POP POP_MARK DUP MEMOIZE
    PUT BINPUT LONG_BINPUT GET BINGET LONG_BINGET
    NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 FLOAT BINFLOAT
    STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES
    UNICODE BINUNICODE SHORT_BINUNICODE
    EMPTY_LIST LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3
    EMPTY_DICT DICT SETITEM SETITEMS GLOBAL STACK_GLOBAL REDUCE BUILD
    """.split()
)
_NUMERIC = frozenset(f"{kind}{size}" for kind in "iu" for size in "1248") | {"f4", "f8"}


def parse_pickle(data: bytes, where: object = "pickle", *, boxed: bool = False) -> dict[str, Any]:
    """Returns a pickled dict of arrays and lists, such as a CIFAR batch, without running code."""
    # Protocols 0 to 4, of Python 2 or 3. A boxed dict is the only entry of an array of objects
    # without axes, as np.savez(file, data=a_dict) pickles it.
    expected = "expected numbers, strings, lists, tuples, dicts and arrays"
    _check_opcodes(data, where, expected)
    names, array_type = _stand_ins()

    class Restricted(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if (module, name) not in names:
                raise pickle.UnpicklingError(f"names {module}.{name}")
            return names[module, name]

    try:
        content = Restricted(io.BytesIO(data), encoding="bytes").load()
        if boxed:
            content = content.held if isinstance(content, array_type) else None
        if not isinstance(content, dict):
            raise pickle.UnpicklingError(f"holds a {type(content).__name__}, not a dict")
        return {
            _text(key): value.to_array() if isinstance(value, array_type) else _plain(value)
            for key, value in content.items()
        }
    except Exception as error:  # a malformed pickle can make the unpickler raise almost anything
        raise DataError(f"{where}: {error}; {expected}") from error


def _check_opcodes(data: bytes, where: object, expected: str) -> None:
    end = 0
    try:
        for opcode, argument, position in pickletools.genops(data):
            if opcode.name not in _OPCODES:
                raise DataError(f"{where}: uses {opcode.name}; {expected}")
            # The memo is a table as long as its largest key: keep that below the file's length.
            if opcode.name.endswith("PUT") and not 0 <= int(argument or 0) < len(data):
                raise DataError(f"{where}: memo key {argument}; {expected}")
            end = (position or 0) + 1
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{where}: {error}; expected a complete pickle") from error
    if end != len(data):
        raise DataError(f"{where}: {len(data) - end} bytes after the end; expected none")


def _stand_ins() -> tuple[dict[tuple[str, str], Any], type]:
    """Returns the names that a pickle may call with their stand-ins, and that for arrays."""
    # Created for each file, so that one file cannot alter the reading of the next one.

    class Type:
        def __init__(self, code: Any, *flags: Any):
            self.code, self.order = _text(code), "="

        def __setstate__(self, state: Any) -> None:
            self.order = "=" if _text(state[1]) == "|" else _text(state[1])

    class Values:
        array: np.ndarray | None = None
        held: Any = None  # of an array of objects without axes

        def to_array(self) -> np.ndarray:
            if self.array is None:
                raise pickle.UnpicklingError("has an array without contents")
            return self.array

        def __setstate__(self, state: Any) -> None:
            _, shape, kind, fortran, values = state
            if isinstance(kind, Type) and kind.code == "O8" and shape == () and len(values) == 1:
                self.held = values[0]
                return
            if not (isinstance(kind, Type) and kind.code in _NUMERIC and kind.order in "<>="):
                raise pickle.UnpicklingError("has an array of values other than numbers")
            dtype = np.dtype(kind.order + kind.code)
            if not all(isinstance(size, int) and size >= 0 for size in shape):
                raise pickle.UnpicklingError(f"has an array of shape {shape!r}")
            if not isinstance(values, bytes) or len(values) != math.prod(shape) * dtype.itemsize:
                raise pickle.UnpicklingError(f"has an array whose bytes do not fill {shape!r}")
            array = np.frombuffer(values, dtype).reshape(shape, order="F" if fortran else "C")
            self.array = array.astype(dtype.newbyteorder("="))

    names: dict[tuple[str, str], Any] = {
        ("numpy", "ndarray"): "ndarray",
        ("numpy", "dtype"): Type,
        # Bytes of Python 3 in protocols 0 to 2, and empty bytes.
        ("_codecs", "encode"): lambda text, codec: str.encode(text, "latin-1"),
        ("__builtin__", "bytes"): lambda: b"",
    }
    for module in ("numpy.core.multiarray", "numpy._core.multiarray"):
        names[module, "_reconstruct"] = lambda *placeholder: Values()
    return names, Values


def _text(key: Any) -> str:
    if isinstance(key, bytes):
        return key.decode("ascii")
    if not isinstance(key, str):
        raise pickle.UnpicklingError(f"has the key {key!r}, not a string")
    return key


def _plain(value: Any) -> Any:
    if not isinstance(value, bytes | str | int | float | list | tuple | dict | None):
        raise pickle.UnpicklingError(f"holds a {type(value).__name__}")
    return value
