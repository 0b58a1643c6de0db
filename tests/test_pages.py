"""The code of the site's pages and of the notebooks: few imports, public names.

`make docs` runs the code.
"""

import pathlib
import re

import nbformat
import pytest

import fedjax_sim as fs

DOCS = pathlib.Path(__file__).parent.parent / "docs"
PAGES = [
    path
    for path in sorted(
        [*DOCS.glob("*.md"), *DOCS.glob("howto/*.md"), *DOCS.glob("coming_from/*.md")]
    )
    if "file_format: mystnb" in path.read_text()
]
NOTEBOOKS = sorted((DOCS.parent / "notebooks").glob("*.ipynb"))
pages = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)


def cells(path: pathlib.Path) -> list[str]:
    """Cells that a reader sees, without files that they write."""
    found = re.findall(r"^```\{code-cell\}\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)
    return [cell for cell in found if "remove-cell" not in cell and not cell.startswith("%%")]


def test_pages_with_code_exist():
    assert len(PAGES) >= 15


@pages
def test_few_imports_and_public_names(path):
    code = "\n".join(cells(path))
    most = 8 if path.stem == "your_own" else 6  # that page has every part of a setup
    assert len(re.findall(r"^(?:import|from) .*$", code, re.MULTILINE)) <= most
    names = set(re.findall(r"\bfs\.(\w+)|from fedjax_sim\.(\w+) import", code))
    names = {name for pair in names for name in pair if name}
    assert names <= set(fs.__all__), names - set(fs.__all__)
    assert max(map(len, code.splitlines())) <= 100


@pages
def test_code_compiles(path):
    for cell in cells(path):
        source = re.sub(r"^(?::\w+:.*\n)+", "", cell)
        if not source.startswith("!"):
            compile(source, path.name, "exec")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_easy_to_read(path):
    """Two sentences on what is seen, few imports, public names, and what to try next."""
    cells = nbformat.read(path, as_version=4).cells
    title, opening = cells[0].source.split("\n\n")[:2]
    assert title.startswith("# ")
    assert "You will " in opening
    assert len(re.findall(r"[.](?:\s|$)", opening)) == 2
    assert "## What to try next" in cells[-1].source
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    imports = re.findall(r"^(?:import|from) .*$", code, re.MULTILINE)
    assert len(imports) <= 6
    names = re.findall(r"^from fedjax_sim import (.*)$", code, re.MULTILINE)
    assert {name for line in names for name in line.split(", ")} <= set(fs.__all__)
    assert "from fedjax_sim." not in code
