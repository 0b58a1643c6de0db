"""Writes the outputs of pages' cells into the pages, so that they show results as plain Markdown.

`python docs/outputs.py [PAGE ...]` runs the pages and rewrites what follows a cell directly: a
block of `text`, or a picture `page_*.png`.  The site shows these and not the cell's own output
(docs/extensions/sources.py).  `docs/pages.json` has a digest of every page's code then.
"""

import base64
import hashlib
import json
import pathlib
import re
import sys
from collections.abc import Sequence
from typing import Any

from execute import HERE, Page, run
from myst_nb.core.read import read_myst_markdown_notebook
from myst_parser.config.main import MdParserConfig

DIGESTS = HERE / "pages.json"
# A cell, and the picture or the text that follows it, if any.
CELL = re.compile(
    r"^```\{code-cell\}\n(?P<code>.*?)^```$"
    r"(?P<stored>\n\n(?:!\[[^\]]*\]\((?P<picture>[\w./]*/page_\w+\.png)\)|```text\n(?P<text>.*?)^```))?",
    re.MULTILINE | re.DOTALL,
)


def pages() -> list[pathlib.Path]:
    """Returns the pages that have stored outputs."""
    every = [path for path in sorted(HERE.rglob("*.md")) if "_build" not in path.parts]
    return [path for path in every if stored(path.read_text())]


def stored(text: str) -> list[re.Match]:
    """Returns the cells of a page whose outputs are stored."""
    return [cell for cell in CELL.finditer(text) if cell["stored"]]


def digest(text: str) -> str:
    """Returns a digest of the code of a page."""
    cells = [cell["code"] for cell in CELL.finditer(text)]
    return hashlib.sha256("\n".join(cells).encode()).hexdigest()[:16]


def write(path: pathlib.Path) -> None:
    """Runs a page and writes its outputs."""
    text = path.read_text()
    notebook = read_myst_markdown_notebook(text, MdParserConfig(), path=path)
    result = run(Page(path, notebook))
    if result.err is not None:
        raise RuntimeError(f"{path.name} failed\n{result.exc_string}")
    executed = [cell for cell in notebook.cells if cell.cell_type == "code"]
    cells = zip(CELL.finditer(text), executed, strict=True)
    for block, cell in reversed([pair for pair in cells if pair[0]["stored"]]):
        if block["picture"]:
            (path.parent / block["picture"]).write_bytes(_picture(cell.outputs))
        else:
            start, end = block.span("text")
            text = text[:start] + _text(cell.outputs) + text[end:]
    path.write_text(text)


def _picture(outputs: Sequence[Any]) -> bytes:
    (picture,) = (x.data["image/png"] for x in outputs if "image/png" in x.get("data", {}))
    return base64.b64decode(picture)


def _text(outputs: Sequence[Any]) -> str:
    parts = [x.get("text") or x.get("data", {}).get("text/plain", "") for x in outputs]
    lines = "".join(f"{part.rstrip()}\n" for part in parts if part).splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


def main(names: Sequence[str]) -> None:
    """Writes the outputs of pages, by default of all, and the digests of their code."""
    digests = json.loads(DIGESTS.read_text()) if DIGESTS.exists() else {}
    for path in [pathlib.Path(name).resolve() for name in names] or pages():
        write(path)
        digests[str(path.relative_to(HERE))] = digest(path.read_text())
        DIGESTS.write_text(json.dumps(digests, indent=1, sort_keys=True) + "\n")
        print(path.relative_to(HERE.parent), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
