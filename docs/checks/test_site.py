"""The built site, without a browser: links, resources, numbers of figures and of formulas."""

import functools
import pathlib
import re
from html.parser import HTMLParser
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import nbformat
import pytest

DOCS = pathlib.Path(__file__).parents[1]
SITE = DOCS / "_build" / "html"
PAGES = sorted(SITE.rglob("*.html"))


class Parsed(NamedTuple):
    """Targets and references of a page."""

    ids: set[str]
    links: list[str]  # of <a>
    resources: list[str]  # of images, scripts and style sheets


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.result = Parsed(set(), [], [])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {key: value for key, value in attrs if value is not None}
        if "id" in values:
            self.result.ids.add(values["id"])
        if tag == "a" and "href" in values:
            self.result.links.append(values["href"])
        if tag in ("img", "script", "iframe", "source") and "src" in values:
            self.result.resources.append(values["src"])
        if tag == "link" and values.get("rel") in ("stylesheet", "icon", "preload"):
            self.result.resources.append(values["href"])


@functools.cache
def parsed(path: pathlib.Path) -> Parsed:
    """Returns the ids, links and resources of a page."""
    parser = _Parser()
    parser.feed(path.read_text())
    return parser.result


def test_internal_links_and_resources_exist():
    missing = []
    for page in PAGES:
        for link in (*parsed(page).links, *parsed(page).resources):
            parts = urlsplit(link)
            if parts.scheme or not (parts.path or parts.fragment):
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            if not target.exists() or (
                parts.fragment
                and target.suffix == ".html"
                and unquote(parts.fragment) not in parsed(target).ids
            ):
                missing.append(f"{page.relative_to(SITE)}: {link}")
    assert len(PAGES) > 40
    assert not missing


def test_pages_need_no_network():
    remote = [
        f"{page.relative_to(SITE)}: {resource}"
        for page in PAGES
        for resource in parsed(page).resources
        if urlsplit(resource).scheme not in ("", "data")
    ]
    styles = [
        str(path.relative_to(SITE))
        for path in SITE.rglob("*.css")
        if re.search(r"(@import|url\()\s*['\"]?https?:", path.read_text(errors="replace"))
    ]
    assert not remote
    assert not styles


@pytest.mark.parametrize("path", sorted((DOCS.parent / "notebooks").glob("*.ipynb")), ids=str)
def test_notebook_is_a_page_with_figures(path):
    """Sphinx fails if a cell does; every notebook also shows at least one figure."""
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    text = (SITE / "notebooks" / f"{path.stem}.html").read_text()
    assert re.search(r'<img[^>]+src="\.\./_images/', text)
    assert "Traceback (most recent call last)" not in text


def test_figures_are_pictures():
    assert not [str(page) for page in PAGES if "&lt;Figure size" in page.read_text()]


def test_home_shows_a_figure():
    assert re.search(r'<img[^>]+src="_images/', (SITE / "index.html").read_text())


@pytest.mark.parametrize("word", ["auc", "batchnorm", "regress"])  # stems
def test_the_search_knows_a_word(word):
    assert re.search(rf'"?\b{word}"?:', (SITE / "searchindex.js").read_text())


def test_formulas_are_mathml():
    text = (SITE / "algorithms.html").read_text()
    assert text.count('class="math-block"') >= text.count("<h2>")  # an algorithm has a formula
    leftover = re.sub(r"<(code|pre|script)\b.*?</\1>", "", text, flags=re.DOTALL)
    assert not re.search(r"\\(frac|eta|leftarrow|nabla)", leftover)
