"""The pages docs/questions.md and docs/questions/ from the files under experiments/results.

python -m experiments.questions
python -m experiments.questions --check     # exits with 1 if a page is not current
"""

import dataclasses
import pathlib

import tyro

from experiments.questions.page import DOCS, finished, index, studies, text


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of this script."""

    check: bool = False  # writes nothing


def pages() -> dict[pathlib.Path, str]:
    """The text of every page by its path, as the files have it now."""
    every = studies()
    done = finished(every)
    texts = {
        DOCS / "questions" / f"{study.name}.md": text(study, done[study.name])
        for study in every
        if study.name in done
    }
    return {DOCS / "questions.md": index(every, done)} | texts


def main(options: Options) -> None:
    """Writes or checks the pages."""
    for path, content in pages().items():
        if options.check and (not path.exists() or path.read_text() != content):
            raise SystemExit(f"{path.name} is not current; run python -m experiments.questions")
        if not options.check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(content)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
