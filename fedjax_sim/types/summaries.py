"""Records as people see them: by ``print``, in notebooks and by ``help``.

The decorator :func:`shown` is the only mechanism.  A record with a method ``_summary`` shows a
title and named values, as text and as HTML; any other record shows the fields that differ from
their defaults.  The comments beside the fields are the source of ``help``.
"""

import html
import linecache
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

from fedjax_sim.types.specs import record_text

T = TypeVar("T")

Rows = Mapping[str, str]  # names and values
Form = Literal["text", "html"]

WIDTH = 80  # columns of a terminal
LINES = 25
_MOST_NAMES = 8
_MOST_KINDS = 3  # of a value in several records


class Summary(NamedTuple):
    """Title and named values that stand for a record.

    Example:
        >>> print(Summary("Setup", {"clients": "100", "rounds": "60"}).text())
        Setup
          clients  100
          rounds   60
    """

    title: str
    rows: Rows
    # Returns a table below the rows. None: there is none.
    table: Callable[[Form], str] | None = None

    def text(self) -> str:
        """Returns at most 25 lines of 80 characters; only the title may be longer."""
        below = self._below("text")
        for most in (2, 1):  # lines of one value
            text = "\n".join([self.title, *self._lines(most), *below])
            if text.count("\n") < LINES:
                break
        return text

    def _lines(self, most: int) -> list[str]:
        width = max(map(len, self.rows), default=0)
        lines: list[str] = []
        for name, value in self.rows.items():
            lines += textwrap.wrap(
                value or "none",
                WIDTH,
                initial_indent=f"  {name:<{width}}  ",
                subsequent_indent=" " * (width + 4),
                max_lines=most,
                placeholder=" ...",
                break_long_words=False,
                break_on_hyphens=False,
            )
        return lines

    def html(self) -> str:
        """Returns the same as a paragraph and a table."""
        rows = [
            f"<tr><th>{html.escape(name)}</th><td>{html.escape(value or 'none')}</td></tr>"
            for name, value in self.rows.items()
        ]
        table = ["<table>", *rows, "</table>"] if rows else []
        return "\n".join([f"<p>{html.escape(self.title)}</p>", *table, *self._below("html")])

    def _below(self, form: Form) -> list[str]:
        if self.table is None:
            return []
        try:
            return [self.table(form)]
        except Exception as error:  # a text must not fail; such as deleted arrays, lost files
            problem = f"No table: {type(error).__name__}: {error}".partition("\n")[0]
            return [f"<p>{html.escape(problem)}</p>" if form == "html" else problem]


def rows_of(*parts: Any) -> dict[str, str]:
    """Returns the rows of all parts that have a summary."""
    found: dict[str, str] = {}
    for part in parts:
        if hasattr(part, "_summary"):
            found |= _summary_of(part).rows
    return found


def common_rows(every: Iterable[Rows]) -> dict[str, str]:
    """Returns the rows of several records, with all values of each name."""
    values: dict[str, dict[str, None]] = {}  # ordered sets
    for rows in every:
        for name, value in rows.items():
            values.setdefault(name, {})[value] = None
    return {name: _either(list(texts)) for name, texts in values.items()}


def listed(names: Iterable[Any]) -> str:
    """Returns the first names, and how many there are of more than a few."""
    texts = list(map(str, names))
    if len(texts) <= _MOST_NAMES:
        return ", ".join(texts)
    return f"{', '.join(texts[:_MOST_NAMES])}, ...; {len(texts):,} in all"


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun, "1 run" or "1,200 runs"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _either(texts: list[str]) -> str:
    few = len(texts) <= _MOST_KINDS
    return " or ".join(texts if few else [texts[0], "...", texts[-1]])


def shown(cls: type[T]) -> type[T]:
    """Decorates a record, a named tuple or a dataclass, so that people can read it.

    ``repr`` and Jupyter show the method ``_summary``, which returns a :class:`Summary`; without one
    they show the fields that differ from their defaults.  Neither reads a large array of a device.

    ``help`` shows the comments beside the fields in the source: in a section "Attributes" of the
    docstring, and at each field of a named tuple.
    """

    def __repr__(self: Any) -> str:
        return _summary_of(self).text()

    def _repr_html_(self: Any) -> str:
        return _summary_of(self).html()

    for method in (__repr__, _repr_html_):
        setattr(cls, method.__name__, method)
    comments = field_comments(cls)
    cls.__doc__ = _with_attributes(cls.__doc__ or "", comments)
    if "_fields" in cls.__dict__:
        kinds = {  # texts of annotations, which named tuples wrap
            name: getattr(kind, "__forward_arg__", kind)
            for name, kind in cls.__annotations__.items()
        }
        cls.__new__.__annotations__ = kinds
        for name, kind in kinds.items():
            getattr(cls, name).__doc__ = comments.get(name, str(kind))
    return cls


def _summary_of(record: Any) -> Summary:
    try:
        return record._summary()
    except Exception:  # no summary, or a pytree whose leaves are no arrays, such as `in_axes`
        return Summary(record_text(record), {})


def field_comments(cls: type) -> dict[str, str]:
    """Returns the comments of a class's fields: beside each, or on the lines above it."""
    comments: dict[str, str] = {}
    above: list[str] = []
    for line in _body(cls):
        if comment := re.fullmatch(r"    # (.*)", line):
            above.append(comment[1])
            continue
        if field := re.match(r"    ([a-z]\w*): ", line):
            beside = line.partition("  # ")[2]
            if text := beside or " ".join(above):
                text = re.sub(r"(?<=[.;:]) {2,}", " ", text)  # that part has its own stop
                comments[field[1]] = re.sub(r" {2,}", "; ", text)
        above = []
    return comments


def _body(cls: type) -> Iterator[str]:
    """Yields the lines of a class in its module; none without source, as in a frozen program."""
    # `inspect.getsource` parses the module, which takes longer than importing it.
    file = getattr(sys.modules.get(cls.__module__), "__file__", None) or ""
    inside = False
    for line in linecache.getlines(file):
        if inside and line[:1] not in ("\n", " ", ")", "#"):
            return
        inside = inside or re.match(rf"class {cls.__name__}\b", line) is not None
        if inside:
            yield line.rstrip("\n")


def _with_attributes(docstring: str, comments: Mapping[str, str]) -> str:
    """Returns a docstring with a section of the fields, before its other sections."""
    if not comments:
        return docstring
    outer, inner = " " * 8, " " * 12
    lines = ["    Attributes:"]
    for name, comment in comments.items():
        text = f"{name}: {comment}"
        lines += textwrap.wrap(text, 100, initial_indent=outer, subsequent_indent=inner)
    section = "\n".join(lines)
    first = re.search(r"^    (Args|Returns|Raises|References|Example):", docstring, re.MULTILINE)
    at = len(docstring.rstrip()) if first is None else first.start()
    before, after = docstring[:at].rstrip(), docstring[at:].rstrip()
    return "\n\n".join(filter(None, (before, section, after))) + "\n    "
