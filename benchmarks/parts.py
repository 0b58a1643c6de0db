"""Large files in parts, for machines that receive little at a time.

python -m benchmarks.parts split FILE --megabytes 45   # FILE.1of3, FILE.2of3, FILE.3of3
python -m benchmarks.parts join FOLDER                 # each file whose parts are all there
"""

import argparse
import pathlib
import re

from benchmarks.jobs import command_line
from fedjax_sim.checks import check_positive


def split(path: pathlib.Path, megabytes: float) -> list[pathlib.Path]:
    """Writes parts of at most a number of megabytes beside a file; returns their paths."""
    check_positive(megabytes=megabytes)
    content, size = path.read_bytes(), int(megabytes * 1e6)
    count = max(-(-len(content) // size), 1)
    parts = [path.with_name(f"{path.name}.{number + 1}of{count}") for number in range(count)]
    for number, part in enumerate(parts):
        part.write_bytes(content[number * size : (number + 1) * size])
    return parts


def join(folder: pathlib.Path) -> list[pathlib.Path]:
    """Writes the files that are missing and whose parts are all in the folder or below it."""
    written = []
    for first in sorted(folder.rglob("*.1of*")):
        match = re.fullmatch(r"(.+)\.1of(\d+)", first.name)
        if match is None:
            continue
        whole, count = first.with_name(match[1]), int(match[2])
        parts = [first.with_name(f"{match[1]}.{i + 1}of{count}") for i in range(count)]
        if not whole.exists() and all(part.exists() for part in parts):
            whole.write_bytes(b"".join(part.read_bytes() for part in parts))
            written.append(whole)
    return written


def main(arguments: list[str] | None = None) -> None:
    """Splits a file or joins those of a folder."""
    parser = command_line("parts", __doc__)
    parser.add_argument("action", choices=("split", "join"))
    parser.add_argument("path", type=pathlib.Path)
    parser.add_argument("--megabytes", type=float, default=45.0)
    args = parser.parse_args(arguments)
    if not args.path.exists():
        raise argparse.ArgumentTypeError(f"path is {args.path}; expected a file or a folder")
    done = split(args.path, args.megabytes) if args.action == "split" else join(args.path)
    print(*done, sep="\n")


if __name__ == "__main__":
    main()
