"""Bytes as a disk or a network may hand them over: damaged, cut short, or something else."""

from hypothesis import strategies as st


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """``data`` after one to three of: overwritten, cut, extended, a piece repeated; or noise."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=200))
    result = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        where = draw(st.integers(0, len(result)))
        piece = draw(st.binary(min_size=1, max_size=8))
        match draw(st.sampled_from(["overwrite", "cut", "insert", "remove", "repeat"])):
            case "overwrite":
                result[where : where + len(piece)] = piece
            case "cut":
                del result[where:]
            case "insert":
                result[where:where] = piece
            case "remove":
                del result[where : where + len(piece)]
            case "repeat":
                result[where:where] = result[where : where + 64]
    return bytes(result)
