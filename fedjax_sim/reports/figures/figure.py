"""The figure that all plotting functions return."""

import io

import matplotlib.figure


class Figure(matplotlib.figure.Figure):
    """Figure of matplotlib that Jupyter shows without ``%matplotlib inline``."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=110)
        return file.getvalue()
