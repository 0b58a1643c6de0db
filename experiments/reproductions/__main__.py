"""The pages docs/reproductions.md and docs/reproductions/ from the files under experiments/results.

python -m experiments.reproductions
python -m experiments.reproductions --check     # exits with 1 if a page is not current
"""

import dataclasses
import pathlib

import tyro

from experiments.reproductions import favano, fedswa, pfllib, reports, thesis
from experiments.reproductions.page import further_page, main_page, paper_page
from experiments.reproductions.reading import all_results, all_scripts

PAPERS = (fedswa.PAPER, favano.PAPER, thesis.PAPER, reports.HETEROGENEITY, reports.LOJASIEWICZ)
OTHERS = (pfllib.PAPER, reports.SYSTEM)  # no papers, or others' benchmarks
DOCS = pathlib.Path(__file__).parents[2] / "docs"


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of this script."""

    check: bool = False  # writes nothing


def pages() -> dict[pathlib.Path, str]:
    """The text of every page by its path, as the files have it now."""
    folder, every = DOCS / "reproductions", (*PAPERS, *OTHERS)
    found = {DOCS / "reproductions.md": main_page(PAPERS, OTHERS)}
    found |= {folder / f"{paper.name}.md": paper_page(paper, folder) for paper in every}
    texts = list(found.values())
    further = further_page(texts, every, all_results(), all_scripts(), folder)
    return found | {folder / "further.md": further}


def main(options: Options) -> None:
    """Writes or checks the pages."""
    for path, text in pages().items():
        if options.check and (not path.exists() or path.read_text() != text):
            raise SystemExit(f"{path.name} is not current; run python -m experiments.reproductions")
        if not options.check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
