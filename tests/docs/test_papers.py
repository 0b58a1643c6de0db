"""The bibliography has the papers that the files of algorithms, rules, attacks and privacy cite."""

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
FILES = sorted((ROOT / "fedjax_sim" / "algorithms").glob("[a-z]*.py"))
PARTS = sorted(
    path
    for name in ("robust", "privacy", "selection")
    for path in (ROOT / "fedjax_sim" / "wrappers" / name).rglob("[a-z]*.py")
)


def _plain(text: str) -> str:
    return " ".join(re.sub(r"[{}\\]", "", text).lower().split())


BIBLIOGRAPHY = _plain((ROOT / "docs" / "papers.bib").read_text())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_papers_of_an_algorithm_are_listed(path):
    assert _titles(path)
    assert not [title for title in _titles(path) if title not in BIBLIOGRAPHY]


@pytest.mark.parametrize("path", PARTS, ids=lambda path: path.stem)
def test_papers_of_rules_attacks_privacy_and_selectors_are_listed(path):
    assert not [title for title in _titles(path) if title not in BIBLIOGRAPHY]


def _titles(path: pathlib.Path) -> list[str]:
    """Returns the titles that are quoted in the references of a module's docstring."""
    doc = ast.get_docstring(ast.parse(path.read_text())) or ""
    return [_plain(title) for title in re.findall(r'"([^"]+)"', doc.partition("References:")[2])]
