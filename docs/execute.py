"""Runs the code of the site's pages, some at a time, and stores the outputs for Sphinx.

`python docs/execute.py` runs the notebooks and the pages with `{code-cell}` blocks that have no
stored outputs.  Outputs of another state of the package are removed first.
"""

import concurrent.futures
import hashlib
import os
import pathlib
import shutil
import sys
import tempfile
from typing import NamedTuple

import nbformat
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from jupyter_cache.executors.utils import ExecutionResult, single_nb_execution
from myst_nb.core.read import is_myst_markdown_notebook, read_myst_markdown_notebook
from myst_parser.config.main import MdParserConfig

HERE = pathlib.Path(__file__).parent
BUILD = HERE / "_build"
CACHE = BUILD / "executed"
TIMEOUT = 300  # seconds per cell


class Page(NamedTuple):
    """A page with code."""

    path: pathlib.Path
    notebook: nbformat.NotebookNode


def pages() -> list[Page]:
    """Returns all pages with code, the notebooks first, because they take longest."""
    result = [
        Page(path, nbformat.read(path, as_version=4))
        for path in sorted((HERE.parent / "notebooks").glob("*.ipynb"))
    ]
    for path in sorted(
        [*HERE.glob("*.md"), *HERE.glob("howto/*.md"), *HERE.glob("coming_from/*.md")]
    ):
        text = path.read_text()
        if is_myst_markdown_notebook(text):
            config = MdParserConfig()
            result.append(Page(path, read_myst_markdown_notebook(text, config, path=path)))
    return result


def package_digest() -> str:
    """Returns a digest of the package's files and of the versions of what it needs."""
    digest = hashlib.sha256(sys.version.encode())
    files = [*(HERE.parent / "fedjax_sim").rglob("*.py"), *(HERE.parent / "requirements").glob("*")]
    for path in sorted(files):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def remove_stale() -> None:
    """Removes outputs, and what Sphinx made of them, if the package has changed since."""
    record, digest = BUILD / "package_digest", package_digest()
    if record.exists() and record.read_text() == digest:
        return
    for folder in (CACHE, BUILD / "doctrees"):
        shutil.rmtree(folder, ignore_errors=True)
    BUILD.mkdir(exist_ok=True)
    record.write_text(digest)


def run(page: Page) -> ExecutionResult:
    """Runs a page's code in an empty folder, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        return single_nb_execution(page.notebook, folder, TIMEOUT, allow_errors=False)


def main() -> int:
    """Runs all pages without stored outputs; returns the exit status."""
    remove_stale()
    cache = get_cache(str(CACHE))

    def is_stored(page: Page) -> bool:
        try:
            cache.match_cache_notebook(page.notebook)
        except KeyError:
            return False
        return True

    missing = [page for page in pages() if not is_stored(page)]
    workers = max(1, min(4, os.cpu_count() or 1))
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        running = {pool.submit(run, page): page for page in missing}
        for future in concurrent.futures.as_completed(running):
            page, result = running[future], future.result()
            name = page.path.relative_to(HERE.parent)
            if result.err is not None:
                failed += 1
                print(f"{name} failed\n{result.exc_string}", file=sys.stderr)
                continue
            print(f"{name} {result.time:.1f} s", flush=True)
            bundle = CacheBundleIn(
                page.notebook, str(page.path), data={"execution_seconds": result.time}
            )
            cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
