"""The code of the site's pages: few imports, public names, links that exist.

`make docs` runs the code.
"""

import pathlib
import re

import pytest

import fedjax_sim as fs

DOCS = pathlib.Path(__file__).parent.parent / "docs"
PAGES = [
    path
    for path in sorted([*DOCS.glob("*.md"), *DOCS.glob("howto/*.md")])
    if "file_format: mystnb" in path.read_text()
]
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
    assert len(re.findall(r"^(?:import|from) .*$", code, re.MULTILINE)) <= 6
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
