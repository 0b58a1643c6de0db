"""Texts of the pages of the API reference: a page per package, an entry per public name."""

import importlib
import inspect
from typing import Any

import public_names
from public_names import PublicName


def pages() -> dict[str, str]:
    """Returns the text (reStructuredText) of each page by its name."""
    sections: dict[str, list[str]] = {}
    for path in public_names.by_module():
        page = page_of(path)
        sections.setdefault(page, []).extend([path] if path != page else [])
    result = {page: _page(page, inside) for page, inside in sections.items()}
    return result | {"index": _index(sorted(sections))}


def page_of(path: str) -> str:
    """Returns the page of a public module: its own, or that of the package that lists it."""
    parent = path.rpartition(".")[0]
    listed = parent in public_names.modules() and parent != public_names.ROOT
    return parent if listed and not public_names.is_package(path) else path


def _index(packages: list[str]) -> str:
    rows = "".join(
        f"   * - :doc:`{page}`\n     - {_summary(importlib.import_module(page))}\n"
        for page in packages
    )
    entries = "".join(f"   {page}\n" for page in packages)
    return (
        f"{_title('API reference', '=')}Every public name, by package. ``fs`` stands for "
        "``fedjax_sim``; algorithms are also names of ``fs``.\n\n"
        f".. list-table::\n   :widths: 40 60\n\n{rows}\n"
        f".. toctree::\n   :hidden:\n\n{entries}"
    )


def _page(package: str, sections: list[str]) -> str:
    text = [_title(package, "="), _described(package, sections)]
    for path in sections:
        text += [_title(path.removeprefix(package + "."), "-"), _described(path, [])]
    return "".join(text)


def _described(path: str, sections: list[str]) -> str:
    names = public_names.by_module()[path]
    text = [f".. automodule:: {path}\n   :no-members:\n\n"]
    if len(names) > 1 or sections:
        rows = [f"   * - :py:obj:`{n.name} <{n.path}>`\n     - {_summary(n)}\n" for n in names]
        rows += [
            f"   * - :py:mod:`{section.removeprefix(path + '.')} <{section}>`\n"
            f"     - {_summary(importlib.import_module(section))}\n"
            for section in sections
        ]
        text.append(f".. list-table::\n   :widths: 35 65\n   :class: summary\n\n{''.join(rows)}\n")
    text += [_entry(name) for name in names]
    return "".join(text)


def _entry(name: PublicName) -> str:
    if name.is_class:
        return f".. autoclass:: {name.path}\n   :members:\n\n"
    if name.is_function:
        return f".. autofunction:: {name.path}\n\n"
    value, text = public_names.constant(name)
    body = "".join(f"   {line}\n" for line in text.splitlines())
    return f".. py:data:: {name.path}\n   :value: {value}\n\n{body}\n"


def _summary(value: Any) -> str:
    if isinstance(value, PublicName):
        if not (value.is_class or value.is_function):
            return " ".join(public_names.constant(value)[1].partition("\n\n")[0].split())
        value = value.value
    first = (inspect.getdoc(value) or "").partition("\n\n")[0]
    return " ".join(first.split())


def _title(text: str, mark: str) -> str:
    return f"{text}\n{mark * len(text)}\n\n"
