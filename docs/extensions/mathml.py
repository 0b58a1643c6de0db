"""Mathematics as MathML, which browsers render without scripts, fonts or a network."""

import html
import re
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

# Commands of LaTeX that docutils lacks, or accepts in fewer places.
REPLACEMENTS = (
    (r"\\dots(?![a-z])", r"\\ldots "),
    (r"\\(big|Big|bigg|Bigg)(?![a-zA-Z])", ""),
    (r"\\([td]?frac)\s*(\d)\s*(\d)", r"\\\1{\2}{\3}"),
    (r"\\([td]?frac)\s*(\d)(?=\\|\{)", r"\\\1{\2}"),
    (r"\\tfrac(?![a-z])", r"\\frac"),
    (r"\\textstyle(?![a-z])", ""),
)


def to_mathml(latex: str, block: bool) -> str:
    """Returns the MathML of a formula.

    Args:
        latex: the formula; a block may have several lines, aligned at `&`.
        block: True for a formula on lines of its own.
    """
    for pattern, replacement in REPLACEMENTS:
        latex = re.sub(pattern, replacement, latex)
    if block and ("\\\\" in latex or "&" in latex) and "\\begin{align" not in latex:
        latex = rf"\begin{{aligned}}{latex}\end{{aligned}}"
    return tex2mathml(latex, as_block=block)


def _written(translator: Any, node: nodes.Element, block: bool) -> str:
    latex = node.astext()
    try:
        return to_mathml(latex, block)
    except MathError as error:
        logging.getLogger(__name__).warning("%s in %r", error, latex, location=node)
        return html.escape(latex)


def _inline(translator: Any, node: nodes.Element) -> None:
    translator.body.append(_written(translator, node, block=False))
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.Element) -> None:
    translator.body.append('<div class="math-block">')
    # Formulas that are separated by an empty line stand below each other.
    for part in re.split(r"\n\s*\n", node.astext().strip()):
        formula = nodes.math_block(part, part)
        formula.source, formula.line = node.source, node.line
        translator.body.append(_written(translator, formula, block=True))
    translator.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the renderer; `html_math_renderer = "mathml"` selects it."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
