"""Values of examples that make a run fail: NaN, infinity, text, missing and large values."""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.types import PyTree


def check_numbers(examples: PyTree) -> None:
    """Refuses leaves of examples that are not arrays of numbers, or that JAX would change."""
    # Without double precision, JAX keeps the lower 32 bits of an integer of 64 bits.
    check_unmasked(examples)
    for path, leaf in _leaves(examples):
        if not isinstance(leaf, (np.ndarray, jax.Array)) or not leaf.shape:
            shape = f" of shape {leaf.shape}" if hasattr(leaf, "shape") else ""
            raise ValueError(
                f"examples{path} is a {type(leaf).__name__}{shape}; expected an array [N, ...] of "
                "NumPy or JAX"
            )
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            raise ValueError(
                f"examples{path} has dtype {leaf.dtype}; expected numbers, such as the words "
                "jax.random.key_data(keys)"
            )
        dtype = np.dtype(leaf.dtype)
        if dtype.kind in "OSUmM":
            raise ValueError(
                f"examples{path} has dtype {leaf.dtype}; expected numbers, for example the "
                "positions of labels in a list of names (fedjax_sim.datasets.from_arrays)"
            )
        if not dtype.isnative:
            raise ValueError(
                f"examples{path} has dtype {dtype.str}; expected the byte order of this machine: "
                "x.astype(x.dtype.newbyteorder('='))"
            )
        if dtype.kind in "fc" and dtype.itemsize > (8 if dtype.kind == "f" else 16):
            raise ValueError(
                f"examples{path} has dtype {dtype}; expected at most double precision, as of "
                "x.astype(np.float64)"
            )
        kept = jax.dtypes.canonicalize_dtype(dtype)
        if dtype.kind in "iu" and kept != dtype and leaf.size:
            low, high = leaf.min(), leaf.max()
            if low < np.iinfo(kept).min or high > np.iinfo(kept).max:
                raise ValueError(
                    f"examples{path} has integers {low} .. {high}; expected those of {kept}, or "
                    "jax.config.update('jax_enable_x64', True)"
                )


def check_disjoint(assignment: Sequence[np.ndarray], addition: str = "") -> None:
    """Refuses row numbers that occur twice, in two clients or in one."""
    rows = np.concatenate([np.empty(0, np.int64), *assignment])
    if not rows.size or np.bincount(rows).max() <= 1:
        return
    row = int(np.argmax(np.bincount(rows) > 1))
    owners = np.repeat(np.arange(len(assignment)), [len(part) for part in assignment])
    one, other = owners[rows == row][:2]
    where = f"in client {one} and in client {other}" if one != other else f"twice in client {one}"
    raise ValueError(f"assignment has row {row} {where}; expected every row at most once{addition}")


def check_unmasked(examples: PyTree) -> None:
    """Refuses masked arrays of NumPy with masked values, since JAX would compute with these."""
    for path, leaf in _leaves(examples):
        if np.ma.is_masked(leaf):
            count = int(np.ma.getmaskarray(leaf).sum())
            values = "values" if count > 1 else "value"
            raise ValueError(
                f"examples{path} has {count} masked {values}; expected none: fill them "
                "(x.filled(0.0)), or leave out their examples"
            )


def check_finite(examples: PyTree, offsets: Any = None) -> None:
    """Refuses arrays with NaN or infinity; ``offsets`` are the rows at which clients begin."""
    for path, leaf in _leaves(examples):
        values = np.asarray(leaf)
        if not jnp.issubdtype(values.dtype, jnp.floating):  # NumPy's has no bfloat16
            continue
        kept = jax.dtypes.canonicalize_dtype(values.dtype)
        with np.errstate(all="ignore"):
            fits = kept == values.dtype or _fits(values, kept)
            if fits and np.isfinite(values.sum()):  # passes without a temporary array
                continue
            finite = np.isfinite(values.astype(kept))
        row, *rest = np.unravel_index(np.argmin(finite), values.shape)
        value = values[(row, *rest)]
        if finite[(row, *rest)]:  # only the sum is infinite
            continue
        place = f"row {row}"
        if offsets is not None:
            client = int(np.searchsorted(np.asarray(offsets), row, side="right")) - 1
            example = int(row) - int(offsets[client])
            place = f"example {example} of client {client} (row {row})"
        of = f" of {kept}" if np.isfinite(value) else ""
        raise ValueError(f"examples{path} has {value} in {place}; expected finite numbers{of}")


def _fits(values: np.ndarray, dtype: Any) -> bool:
    """Returns whether a smaller dtype has numbers as large as these."""
    ends = np.array([values.min(initial=0), values.max(initial=0)])
    return bool(np.isfinite(ends.astype(dtype)).all())


def missing(values: Any) -> np.ndarray:
    """Returns True for the entries of a column that are None, NaN, NaT, NA or masked, ``[N]``."""
    if isinstance(values, np.ma.MaskedArray):
        return np.ma.getmaskarray(values) | missing(values.data)
    if not isinstance(values, np.ndarray):
        array = np.asarray(values)
        # NumPy turns a missing value among text into text.
        values = np.asarray(values, object) if array.dtype.kind in "US" else array
    if values.dtype.kind == "O":
        return np.array([_is_missing(value) for value in values], bool)
    if values.dtype.kind in "fmM":
        return values != values
    return np.zeros(len(values), bool)


def with_nan(values: Any) -> np.ndarray:
    """Returns numbers as an array, with NaN for those that are masked."""
    if np.ma.is_masked(values) and values.dtype.kind in "biuf":
        return values.astype(np.result_type(values.dtype, np.float32)).filled(np.nan)
    return np.asarray(values)


def _is_missing(value: Any) -> bool:
    try:
        return value is None or bool(value != value)
    except TypeError:  # pandas' NA
        return True
    except ValueError:  # an array
        return False


def largest_input(examples: PyTree) -> str:
    """Returns the leaf with the largest absolute value as text, ``""`` without floating leaves."""
    sizes = [
        (float(np.abs(np.asarray(leaf)).max()), path)
        for path, leaf in _leaves(examples)
        if jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.size
    ]
    return "the largest |examples{1}| is {0:.4g}".format(*max(sizes)) if sizes else ""


def _leaves(tree: PyTree) -> Iterator[tuple[str, Any]]:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        yield jax.tree_util.keystr(path), leaf
