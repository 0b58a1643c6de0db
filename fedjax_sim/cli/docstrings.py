"""Summaries, papers and hyper-parameters of algorithms, from their docstrings, as plain text."""

import inspect
import re
import sys

from fedjax_sim.studies.setups import AlgorithmEntry


def summary(entry: AlgorithmEntry) -> str:
    """Returns the first line of the algorithm's docstring."""
    return plain(_docstring(entry).partition("\n")[0])


def paper(entry: AlgorithmEntry) -> str:
    """Returns the algorithm's first citation, authors and year; empty if there is none."""
    short = r"([A-Z]\w+(?: et al\.| and [A-Z]\w+)?), (\d{4})"  # Li et al., 2020
    full = r'([A-Z]\w+)( et al\.|(?:, [A-Z]\w+)+)?, "[^"]+",\s+(\d{4})'  # Hsu, Qi, "Title", 2019
    module = sys.modules.get(getattr(entry.factory, "__module__", ""))
    for text in (_docstring(entry), getattr(module, "__doc__", "") or ""):
        if cited := re.search(short, text):
            return f"{cited[1]}, {cited[2]}"
        if cited := re.search(full, text):
            return f"{cited[1]}{' et al.' if cited[2] else ''}, {cited[3]}"
        if cited := re.search(r"arXiv[ :]\d{4}\.\d{5}", text):
            return cited[0]
    return ""


def descriptions(entry: AlgorithmEntry) -> dict[str, str]:
    """Returns the text about each hyper-parameter, from the docstring's section ``Args``."""
    # The last line of a docstring has no line break.
    section = re.search(r"^Args:\n((?:[ ]{4}.*\n|\n)*)", _docstring(entry) + "\n", re.M)
    entries = re.findall(
        r"^    (\w[\w, ]*): ((?:.*\n)(?:[ ]{8}.*\n)*)", section[1] if section else "", re.M
    )
    texts = {
        key.strip(): " ".join(text.split()) for keys, text in entries for key in keys.split(",")
    }
    return {key: plain(text) for key, text in texts.items()} | entry.adapted_descriptions


def plain(text: str) -> str:
    r"""Returns a text without markup: names of functions, and letters of simple formulas."""
    text = re.sub(r":math:`([^`]*)`", lambda formula: _letters(formula[1]), text)
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"\1", text)
    return text.replace("``", "")


def _letters(formula: str) -> str:
    formula = re.sub(r"\\t?frac\{?(\w|\\\w+)\}?\{?(\w)\}?", r"\1/\2", formula)
    return formula.replace("\\nabla", "grad").replace("\\", "")


def _docstring(entry: AlgorithmEntry) -> str:
    return inspect.getdoc(entry.factory) or ""
