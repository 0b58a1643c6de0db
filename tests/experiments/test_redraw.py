"""One command redraws all reports; it finds the functions of all papers.  Results stay small."""

import importlib
import inspect
import pathlib
import shutil

import matplotlib.pyplot as plt
import numpy as np
import pytest
from PIL import Image

from experiments import redraw
from experiments.harness import figures

ROOT = pathlib.Path(redraw.__file__).parent


def test_every_paper_has_a_function():
    papers = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert set(redraw.PAPERS) == papers - {"harness", "reproductions"}
    for paper in redraw.PAPERS:
        function = importlib.import_module(f"experiments.{paper}.redraw").redraw
        parameters = list(inspect.signature(function).parameters.values())
        assert all(p.default is not p.empty for p in parameters[1:]), paper
    with pytest.raises(ValueError, match="papers is 'x'; expected one of"):
        redraw.Options(papers="x")


def test_results_stay_small():
    """Git keeps every version: tables, small CSV files and one figure per table."""
    sizes = {path: path.stat().st_size for path in (ROOT / "results").rglob("*") if path.is_file()}
    assert 0 < sum(sizes.values()) < 8e6
    assert max(sizes.values()) < 3e5, max(sizes, key=sizes.__getitem__)


def test_no_picture_is_cut_at_an_edge():
    """Labels that leave a figure have ink in its outermost rows or columns of pixels."""
    pictures = [*(ROOT / "results").rglob("*.png"), *(ROOT.parent / "docs/images").rglob("*.png")]
    assert len(pictures) > 100
    cut = []
    for path in pictures:
        grey = np.asarray(Image.open(path).convert("L")).astype(int)
        edges = np.concatenate([grey[0], grey[-1], grey[:, 0], grey[:, -1]])
        if np.any(edges < 215):
            cut.append(str(path.relative_to(ROOT.parent)))
    assert not cut


@pytest.mark.slow
@pytest.mark.parametrize("paper", redraw.PAPERS)
def test_kept_reports_are_those_of_their_files(tmp_path, capsys, monkeypatch, paper):
    """Texts do not change, CSV and JSON files neither."""
    monkeypatch.setattr(figures, "save", lambda figure, path: plt.close(figure))
    shutil.copytree(ROOT / "results" / paper, tmp_path / paper)
    redraw.main(redraw.Options(papers=(paper,), output=tmp_path))
    for path in (tmp_path / paper).rglob("*"):
        kept = ROOT / "results" / path.relative_to(tmp_path)
        if path.is_file() and path.suffix != ".png":
            assert path.read_text() == kept.read_text(), path
    assert "reports redrawn" in capsys.readouterr().out
