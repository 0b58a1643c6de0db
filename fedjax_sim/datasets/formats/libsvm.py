"""LIBSVM text: ``label index:value index:value ...``, one example per line, indices from 1."""

from collections.abc import Iterable, Iterator

import numpy as np

from fedjax_sim.datasets.dataset import DataError, same_length

_BLOCK = 1 << 24  # bytes of text parsed at a time; bounds temporary memory
_LONGEST = 40  # characters of one number; text beyond that is damage, not data
_SPACE, _COLON, _LINE = b" :\n"
_NUMBER_BYTES = np.zeros(256, bool)
_NUMBER_BYTES[list(b"0123456789+-.eE")] = True


def parse_libsvm(
    blocks: Iterable[bytes],
    num_features: int,
    where: object = "LIBSVM data",
    max_rows: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Reads two-class LIBSVM text into dense features.

    The format is that of LIBSVM (Chang and Lin, 2011): each line is a label, -1 or +1, and the
    non-zero features as ``index:value`` with indices ascending from 1.

    Args:
        blocks: the text in pieces of any length, as
            :func:`~fedjax_sim.datasets.formats.files.stream` yields it.
        num_features: F; required because the last features may be zero in every row.
        where: the file's name, for error messages.
        max_rows: refuse more rows, before memory for them is allocated.

    Returns:
        Features float32 ``[N, F]`` and labels int32 ``[N]``, 0 for -1 and 1 for +1.

    Raises:
        DataError: characters or order foreign to the format, indices that do not ascend or lie
            outside 1..F, values that are not finite in float32, other labels, too many rows, or
            a last line that is incomplete.

    Example:
        >>> x, y = parse_libsvm([b"+1 1:0.5 3:2\\n-1 2:1\\n"], num_features=3)
        >>> x.tolist(), y.tolist()
        ([[0.5, 0.0, 2.0], [0.0, 1.0, 0.0]], [1, 0])
    """
    xs, ys, num_rows = [np.zeros((0, num_features), np.float32)], [np.zeros(0, np.int32)], 0
    for text in _whole_lines(blocks, where, longest=(num_features + 1) * (2 * _LONGEST + 2)):
        if max_rows is not None and num_rows + text.count(b"\n") > max_rows:
            raise DataError(f"{where}: more than {max_rows} rows; expected at most {max_rows}")
        x, y = _parse_lines(text, num_features, f"{where}, line {num_rows + 1} or later")
        num_rows += len(y)
        xs.append(x)
        ys.append(y)
    features, labels = np.concatenate(xs), np.concatenate(ys)
    same_length(where, features=features, labels=labels)
    return features, labels


def _whole_lines(blocks: Iterable[bytes], where: object, longest: int) -> Iterator[bytes]:
    pending, size = [], 0
    for block in blocks:
        pending.append(block)
        size += len(block)
        if size >= _BLOCK and b"\n" in block:
            text, _, rest = b"".join(pending).rpartition(b"\n")
            pending, size = [rest], len(rest)
            yield text + b"\n"
        elif size >= _BLOCK + longest:
            raise DataError(f"{where}: has a line of {size} bytes; expected at most {longest}")
    text = b"".join(pending)
    if text and not text.endswith(b"\n"):
        raise DataError(f"{where}: the last line does not end; expected a complete file")
    if text:
        yield text


def _parse_lines(text: bytes, num_features: int, where: str) -> tuple[np.ndarray, np.ndarray]:
    chars = np.frombuffer(text.replace(b"\r\n", b"\n"), np.uint8)
    in_number = _NUMBER_BYTES[chars]
    foreign = ~(in_number | (chars == _SPACE) | (chars == _COLON) | (chars == _LINE))
    if foreign.any():
        character = bytes(chars[foreign][:1])
        raise DataError(f"{where}: has {character!r}; expected finite numbers, spaces and colons")

    # Numbers are runs of number characters; the character before a number gives its kind.
    edges = np.flatnonzero(np.diff(in_number, prepend=False, append=False))
    starts, ends = edges[::2], edges[1::2]
    before = np.where(starts == 0, _LINE, chars[starts - 1])
    is_label, is_index, is_value = (before == mark for mark in (_LINE, _SPACE, _COLON))
    # Each line begins with a label.  Each index ends in a colon, each colon ends an index, and
    # each value follows a colon: so the three kinds come in order.
    num_lines, num_colons = (np.count_nonzero(chars == mark) for mark in (_LINE, _COLON))
    paired = is_index.sum() == is_value.sum() == num_colons
    if (
        is_label.sum() != num_lines
        or not paired
        or not (chars[ends[is_index]] == _COLON).all()
        or (ends - starts).max() > _LONGEST
    ):
        raise DataError(f"{where}: expected lines of the form: label index:value index:value ...")

    numbers = np.array(chars.tobytes().replace(b":", b" ").split())
    try:
        labels = numbers[is_label].astype(np.float64)
        indices = numbers[is_index].astype(np.int64)
        with np.errstate(over="ignore"):
            values = numbers[is_value].astype(np.float64).astype(np.float32)
    except (ValueError, OverflowError) as error:
        raise DataError(f"{where}: {error}; expected numbers, indices integers") from error

    if not np.isin(labels, (-1.0, 1.0)).all():
        raise DataError(f"{where}: has label {labels[abs(labels) != 1][0]}; expected -1 or +1")
    if not np.isfinite(values).all():
        raise DataError(f"{where}: has a value beyond float32; expected finite values")
    rows = (np.cumsum(is_label) - 1)[is_index]
    ascends = (np.diff(indices) > 0) | (np.diff(rows) > 0)
    if indices.size and not (indices.min() >= 1 and indices.max() <= num_features):
        raise DataError(
            f"{where}: indices are in {indices.min()} .. {indices.max()}; "
            f"expected 1 .. {num_features}"
        )
    if not ascends.all():
        raise DataError(f"{where}: indices of a line do not ascend; expected ascending ones")
    x = np.zeros((num_lines, num_features), np.float32)
    x[rows, indices - 1] = values
    return x, (labels > 0).astype(np.int32)
