"""The page docs/reproductions.md from the files under experiments/results.

python -m experiments.reproductions
python -m experiments.reproductions --check     # exits with 1 if the page is not current
"""

import dataclasses
import pathlib

import tyro

from experiments.reproductions import favano, fedswa, pfllib, reports, thesis
from experiments.reproductions.page import page
from experiments.reproductions.reading import all_results, all_scripts

PAPERS = (
    fedswa.PAPER, favano.PAPER, thesis.PAPER, reports.HETEROGENEITY, reports.LOJASIEWICZ,
    pfllib.PAPER, reports.SYSTEM,
)  # fmt: skip
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "reproductions.md"


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of this script."""

    check: bool = False  # writes nothing


def text() -> str:
    """The page as the files have it now."""
    return page(PAPERS, all_results(), all_scripts(), PAGE.parent)


def main(options: Options) -> None:
    """Writes or checks the page."""
    new = text()
    if options.check and PAGE.read_text() != new:
        raise SystemExit(f"{PAGE.name} is not current; run python -m experiments.reproductions")
    if not options.check:
        PAGE.write_text(new)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
