"""Files outside of docs/ as pages: the notebooks, the changelog, and links to them."""

import pathlib
import re
import shutil

from sphinx.application import Sphinx

ROOT = pathlib.Path(__file__).parents[2]
NOTEBOOKS = "notebooks"
# Pages of the site for files in the root of the repository.
PAGES = {
    "CHANGELOG.md": "/changelog.md",
    "CONTRIBUTING.md": "/contributing.md",
    "README.md": "/index.md",
}


def copy_notebooks(app: Sphinx) -> None:
    """Copies the notebooks that changed to docs/notebooks, where Sphinx reads them."""
    folder = pathlib.Path(app.srcdir) / NOTEBOOKS
    folder.mkdir(exist_ok=True)
    sources = {path.name: path for path in (ROOT / NOTEBOOKS).glob("*.ipynb")}
    for old in folder.iterdir():
        if old.name not in sources:
            old.unlink()
    for name, path in sources.items():
        copy = folder / name
        if not copy.exists() or copy.read_bytes() != path.read_bytes():
            shutil.copyfile(path, copy)


def rewrite_links(app: Sphinx, name: str, content: list[str]) -> None:
    """Directs links to files outside of docs/ that have a page to that page.

    Links in the repository's files work where they stand, for example `../notebooks/x.ipynb` in
    docs/x.md, `docs/x.md` in CHANGELOG.md and `../docs/x.md` in a notebook.
    """
    text = content[0]
    text = re.sub(r"\]\((?:\.\./)+notebooks/(\w+\.ipynb)", r"](/notebooks/\1", text)
    text = re.sub(
        r"\[([^\]\[]*)\]\(((?:\.\./)+(?:experiments|benchmarks)/[^)#\s]*\.md)\)", _download, text
    )
    if name.startswith(NOTEBOOKS):
        text = re.sub(r"\]\(\.\./docs/", "](/", text)
    for file, page in PAGES.items():
        text = re.sub(rf"\]\((?:\.\./)+{re.escape(file)}", f"]({page}", text)
    content[0] = text


def _download(link: re.Match) -> str:
    """A file of results; the site has a copy."""
    return f"{{download}}`{link[1].replace(chr(96), '')} <{link[2]}>`"


def rewrite_included(app: Sphinx, path: pathlib.Path, name: str, content: list[str]) -> None:
    """Directs the links of an included file of the repository's root to the site's pages."""
    text = content[0]
    text = re.sub(r"\]\(docs/", "](/", text)
    text = re.sub(r"\]\(notebooks/", "](/notebooks/", text)
    for file, page in PAGES.items():
        text = re.sub(rf"\]\({re.escape(file)}", f"]({page}", text)
    content[0] = text


def setup(app: Sphinx) -> dict[str, bool]:
    """Connects both."""
    app.connect("builder-inited", copy_notebooks)
    app.connect("source-read", rewrite_links)
    app.connect("include-read", rewrite_included)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
