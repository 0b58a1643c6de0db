"""Writes the outputs of pages' cells into the pages, so that they show results as plain Markdown.

`python docs/outputs.py [PAGE ...]` runs the pages and rewrites what follows each cell with the tag
`remove-output`: a picture `![...](...png)`, or a block of `text`.  The site shows these and not the
cell's own output.  `docs/results/pages.json` has a digest of every page's code at that time.
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

DIGESTS = HERE / "results" / "pages.json"
# A cell with the tag, and the picture or the text that follows it.
STORED = re.compile(
    r"^```\{code-cell\}\n:tags: \[[^\]]*remove-output[^\]]*\]\n.*?^```\n\n"
    r"(?:!\[[^\]]*\]\((?P<picture>[^)]+)\)|```text\n(?P<text>.*?)^```)",
    re.MULTILINE | re.DOTALL,
)


def pages() -> list[pathlib.Path]:
    """Returns the pages that have stored outputs."""
    return [path for path in sorted(HERE.rglob("*.md")) if STORED.search(path.read_text())]


def digest(text: str) -> str:
    """Returns a digest of the code of a page."""
    cells = re.findall(r"^```\{code-cell\}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return hashlib.sha256("\n".join(cells).encode()).hexdigest()[:16]


def write(path: pathlib.Path) -> None:
    """Runs a page and writes its outputs."""
    text = path.read_text()
    notebook = read_myst_markdown_notebook(text, MdParserConfig(), path=path)
    result = run(Page(path, notebook))
    if result.err is not None:
        raise RuntimeError(f"{path.name} failed\n{result.exc_string}")
    tagged = [c for c in notebook.cells if "remove-output" in c.metadata.get("tags", [])]
    blocks = list(STORED.finditer(text))
    if len(tagged) != len(blocks):
        raise ValueError(f"{path.name} has {len(tagged)} tagged cells and {len(blocks)} outputs")
    for cell, block in reversed(list(zip(tagged, blocks, strict=True))):
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
