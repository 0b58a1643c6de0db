"""Every notebook runs from top to bottom (`make notebooks` also checks that none has outputs)."""

import pathlib

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = pathlib.Path(__file__).parent
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_runs(path, tmp_path):
    # The working folder is a new one, so that results of earlier runs are not taken up.
    folder = tmp_path / "notebooks"
    folder.mkdir()
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=600, resources=resources).execute()
    shown = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    figures = [out for out in shown if "image/png" in out.get("data", {})]
    assert figures, "no figure was displayed"
    assert not [out for out in shown if out.output_type == "error"]
