"""Configuration of the documentation's site; `make docs` builds it."""

import pathlib
import sys

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE / "extensions"), str(HERE), str(HERE.parent)]

project = "fedjax_sim"
author = "The fedjax_sim authors"
copyright = author  # the name that Sphinx gives to this setting
version = release = "0.1.0"

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "myst_nb",
    "sphinx_copybutton",
    "sphinx_design",
    "mathml",
    "reference",
    "sources",
]
exclude_patterns = ["_build", "extensions", "checks"]
nitpicky = True

# MyST and notebooks. docs/execute.py runs the cells, in parallel, before Sphinx reads them.
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "attrs_block"]
myst_heading_anchors = 4
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE / "_build" / "executed")
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True

# The reference.
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False
napoleon_use_rtype = False
python_maximum_signature_line_length = 88
viewcode_line_numbers = True

html_theme = "furo"
html_title = "fedjax_sim"
html_static_path = ["_static"]
html_favicon = "_static/logo.svg"
html_logo = "_static/logo.svg"
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sphinx = False
templates_path: list[str] = []
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
pygments_style = "friendly"
pygments_dark_style = "github-dark"
