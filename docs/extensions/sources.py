"""Pages as the repository shows them, with what the site adds: links, and files from elsewhere.

Pages are plain Markdown.  The site gets copies of the notebooks, of the changelog and of
CONTRIBUTING.md, and links of names such as `fs.fedavg` to the reference.
"""

import functools
import inspect
import pathlib
import re
import shutil
import types
from typing import Any

import public_names
from outputs import CELL
from sphinx.application import Sphinx

import fedjax_sim as fs

ROOT = pathlib.Path(__file__).parents[2]
NOTEBOOKS = "notebooks"
# Pages of the site for files in the root of the repository; the first two are copied.
PAGES = {
    "CHANGELOG.md": "/changelog.md",
    "CONTRIBUTING.md": "/contributing.md",
    "README.md": "/index.md",
}
COPIES = ("changelog", "contributing")
# A fenced block, a heading, a link, or a name of ours between backticks.
_PARTS = re.compile(
    r"^```.*?^```$|^\$\$.*?^\$\$$|^#.*?$|\[[^\]]*\]\([^)]*\)|`(?:fs|fedjax_sim)\.([\w.]+)`",
    re.MULTILINE | re.DOTALL,
)


def copy_files(app: Sphinx) -> None:
    """Copies notebooks and pages that changed to docs/, where Sphinx reads them."""
    docs = pathlib.Path(app.srcdir)
    folder = docs / NOTEBOOKS
    folder.mkdir(exist_ok=True)
    copies = {folder / path.name: path for path in (ROOT / NOTEBOOKS).glob("*.ipynb")}
    for old in set(folder.iterdir()) - set(copies):
        old.unlink()
    copies |= {docs / f"{name}.md": ROOT / f"{name.upper()}.md" for name in COPIES}
    for copy, path in copies.items():
        if not copy.exists() or copy.read_bytes() != path.read_bytes():
            shutil.copyfile(path, copy)


def rewrite_links(app: Sphinx, name: str, content: list[str]) -> None:
    """Directs links to files outside of docs/ that have a page to that page.

    Links in the repository's files work where they stand, for example `../notebooks/x.ipynb` in
    docs/x.md, `docs/x.md` in CHANGELOG.md and `../docs/x.md` in a notebook.
    """
    text = content[0]
    up = "" if name in COPIES else r"(?:\.\./)+"
    text = re.sub(rf"\]\({up}notebooks/(\w+\.ipynb)", r"](/notebooks/\1", text)
    text = re.sub(
        r"\[([^\]\[]*)\]\(((?:\.\./)+(?:experiments|benchmarks)/[^)#\s]*\.md)\)", _download, text
    )
    text = re.sub(
        r"\[([^\]\[]*)\]\((?:\.\./)+(fedjax_sim/[\w/]+)\.py\)",
        r'<a href="_modules/\2.html">\1</a>',
        text,
    )
    if name in COPIES or name.startswith(NOTEBOOKS):
        text = re.sub(r"\]\((?:\.\./)*docs/", "](/", text)
    for file, page in PAGES.items():
        text = re.sub(rf"\]\({up}{re.escape(file)}", f"]({page}", text)
    content[0] = text if name.startswith(NOTEBOOKS) else link_names(hide_stored_outputs(text))


def _download(link: re.Match) -> str:
    """A file of results; the site has a copy."""
    return f"{{download}}`{link[1].replace(chr(96), '')} <{link[2]}>`"


def hide_stored_outputs(text: str) -> str:
    """Returns a page whose cells show no output where the page has it (docs/outputs.py)."""

    def hide(cell: re.Match) -> str:
        tags = ":tags: [remove-output]\n"
        return cell[0].replace("\n", f"\n{tags}", 1) if cell["stored"] else cell[0]

    return CELL.sub(hide, text)


def link_names(text: str) -> str:
    """Returns a page whose public names between backticks are links to the reference."""

    def link(part: re.Match) -> str:
        target = None if part[1] is None else _target(part[1])
        return part[0] if target is None else f"{{py:obj}}`{part[0][1:-1]} <{target}>`"

    return _PARTS.sub(link, text)


def _target(name: str) -> str | None:
    """Returns the entry of the reference for a name after `fs.`; None: it has none."""
    value: Any = fs
    for part in name.split("."):
        value = getattr(value, part, None)
    if isinstance(value, types.ModuleType):
        return value.__name__ if value.__name__ in public_names.modules() else None
    value = inspect.unwrap(value) if callable(value) else value
    return _entries().get(
        f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
    )


@functools.cache
def _entries() -> dict[str, str]:
    return {x.source: x.path for x in public_names.everything() if x.is_class or x.is_function}


def setup(app: Sphinx) -> dict[str, bool]:
    """Connects them."""
    app.connect("builder-inited", copy_files)
    app.connect("source-read", rewrite_links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
