"""Summaries, papers and hyper-parameters of algorithms, from their docstrings."""

import inspect
import re
import sys

from fedjax_sim.cli.registry import ALGORITHMS


def summary(name: str) -> str:
    """Returns the first line of the algorithm's docstring.

    Example:
        >>> summary("fedavg")[:6]
        'FedAvg'
    """
    return (inspect.getdoc(ALGORITHMS[name]) or "").partition("\n")[0]


def paper(name: str) -> str:
    """Returns the algorithm's first citation, authors and year; empty if there is none.

    Example:
        >>> paper("fedprox")
        'Li et al., 2020'
    """
    short = r"([A-Z]\w+(?: et al\.| and [A-Z]\w+)?), (\d{4})"  # Li et al., 2020
    full = r'([A-Z]\w+)( et al\.|(?:, [A-Z]\w+)+)?, "[^"]+",\s+(\d{4})'  # Hsu, Qi, "Title", 2019
    module = sys.modules[ALGORITHMS[name].__module__]
    for text in (inspect.getdoc(ALGORITHMS[name]) or "", module.__doc__ or ""):
        if cited := re.search(short, text):
            return f"{cited[1]}, {cited[2]}"
        if cited := re.search(full, text):
            return f"{cited[1]}{' et al.' if cited[2] else ''}, {cited[3]}"
        if cited := re.search(r"arXiv[ :]\d{4}\.\d{5}", text):
            return cited[0]
    return ""


def descriptions(name: str) -> dict[str, str]:
    """Returns the text about each parameter in the docstring's section ``Args``.

    Example:
        >>> descriptions("fedavgm").get("lr", "client learning rate")[:6]
        'client'
    """
    section = re.search(
        r"^Args:\n((?:[ ]{4}.*\n|\n)*)", inspect.getdoc(ALGORITHMS[name]) or "", re.M
    )
    entries = re.findall(
        r"^    (\w[\w, ]*): ((?:.*\n)(?:[ ]{8}.*\n)*)", section[1] if section else "", re.M
    )
    return {
        key.strip(): " ".join(text.split()) for keys, text in entries for key in keys.split(",")
    }
