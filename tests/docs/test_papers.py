"""The bibliography has the papers that the files of the algorithms cite."""

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
FILES = sorted((ROOT / "fedjax_sim" / "algorithms").glob("[a-z]*.py"))


def _plain(text: str) -> str:
    return " ".join(re.sub(r"[{}\\]", "", text).lower().split())


BIBLIOGRAPHY = _plain((ROOT / "docs" / "papers.bib").read_text())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_papers_of_an_algorithm_are_listed(path):
    """Titles are quoted in the references of a module's docstring."""
    doc = ast.get_docstring(ast.parse(path.read_text())) or ""
    titles = re.findall(r'"([^"]+)"', doc.partition("References:")[2])
    assert titles
    assert not [title for title in map(_plain, titles) if title not in BIBLIOGRAPHY]
