"""The figure that all plotting functions return."""

import io

import matplotlib.figure


class Figure(matplotlib.figure.Figure):
    """A figure of matplotlib that Jupyter shows without ``%matplotlib inline``.

    Example:
        >>> Figure(figsize=(1, 1))._repr_png_()[1:4]
        b'PNG'
    """

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=110)
        return file.getvalue()
