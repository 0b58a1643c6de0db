"""Pages read well as plain Markdown: no roles of Sphinx, committed outputs, present tables."""

import importlib
import json
import pathlib
import re
import sys
import tomllib

import pytest

from fedjax_sim.checks import install_command

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text()
PAGES = [
    path
    for path in sorted(DOCS.rglob("*.md"))
    if "_build" not in path.parts and path.stem not in ("changelog", "contributing")
]
# A role such as {py:func}`run`, or a block of Sphinx that is no code.
ROLE = re.compile(r"\{[\w:+-]+\}`")
BLOCK = re.compile(r"^(?:```|:::)+\{(?!code-cell\}|toctree\})", re.MULTILINE)


def module(monkeypatch, name, folder):
    monkeypatch.syspath_prepend(str(folder))
    found = sys.modules.get(name)
    return found or importlib.import_module(name)


@pytest.mark.parametrize("path", [ROOT / "README.md", *PAGES], ids=lambda path: path.stem)
def test_pages_have_no_roles_and_includes(path):
    text = path.read_text()
    assert not ROLE.findall(text)
    assert not BLOCK.findall(text)
    assert not re.findall(r"^\([\w-]+\)=$", text, re.MULTILINE)  # targets of Sphinx


def test_roles_and_includes_would_be_found():
    assert ROLE.search("see {py:func}`fs.run`")
    assert BLOCK.search("text\n```{include} part.md\n```")
    assert not BLOCK.search("```{code-cell}\n")


# GitHub refuses some macros, and Markdown takes the backslash from these signs inside $...$.
REFUSED = re.compile(r"\\(?:operatorname|newcommand|def|mbox|phantom|href|class|style)\b")
ESCAPED = re.compile(r"(?<!\$)\$(?!\$)[^$\n`]*\\[^\w\s][^$\n`]*\$(?!\$)")


@pytest.mark.parametrize("path", [ROOT / "README.md", *PAGES], ids=lambda path: path.stem)
def test_formulas_are_those_that_pages_on_github_show(path):
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert not REFUSED.findall(text)
    assert not ESCAPED.findall(re.sub(r"\$\$.*?\$\$", "", text, flags=re.DOTALL))


def test_formulas_of_docstrings_lose_the_macro_that_github_refuses(monkeypatch):
    algorithms = module(monkeypatch, "algorithms", DOCS / "extensions")
    upright = algorithms.upright
    assert upright(r"\operatorname{mean}_i y_i") == r"\mathrm{mean}_i\, y_i"
    assert upright(r"\operatorname{mean}_{i \in S} (x)") == r"\mathrm{mean}_{i \in S} (x)"
    assert upright(r"\operatorname{clip}\bigl(") == r"\mathrm{clip}\bigl("
    assert ESCAPED.search(r"see $\|x\|$")
    assert not ESCAPED.search(r"see $\lVert x \rVert$")
    assert REFUSED.search(r"$\operatorname{mean}$")


@pytest.mark.slow  # traces every algorithm
def test_the_page_of_algorithms_is_current(monkeypatch):
    algorithms = module(monkeypatch, "algorithms", DOCS / "extensions")
    same = (DOCS / "algorithms.md").read_text() == algorithms.page()
    assert same, "docs/algorithms.md is out of date: run `make pictures`"


def test_committed_outputs_are_those_of_the_present_code(monkeypatch):
    outputs = module(monkeypatch, "outputs", DOCS)
    digests = json.loads(outputs.DIGESTS.read_text())
    assert len(digests) >= 6
    assert list(digests) == sorted(str(path.relative_to(DOCS)) for path in outputs.pages())
    for name, stored in digests.items():
        text = (DOCS / name).read_text()
        assert outputs.digest(text) == stored, f"{name} has changed: run `make pictures`"
        for block in outputs.stored(text):
            if block["picture"]:
                picture = (DOCS / name).parent / block["picture"]
                assert 0 < picture.stat().st_size < 150_000
            else:
                assert block["text"].strip()


def test_the_page_of_installation_has_all_extras():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    rows = re.findall(r"^\| (`[^|]*`) \|", (DOCS / "versions.md").read_text(), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == set(project["optional-dependencies"])


def test_one_place_knows_the_command_that_installs():
    places = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "fedjax_sim").rglob("*.py"))
        if "pip install" in path.read_text()
    ]
    assert places == ["fedjax_sim/checks/choices.py"]
    (command,) = re.findall(r"pip install '\.\[\w+\]'", install_command("cli"))
    for page in (README, (DOCS / "versions.md").read_text(), (DOCS / "index.md").read_text()):
        assert command in page
    pages = [README, *(path.read_text() for path in PAGES)]
    assert not [text for text in pages if "pip install 'fedjax_sim" in text]  # on no index


def test_how_to_pages_are_in_one_group():
    listed = re.findall(r"^howto/(\w+)$", (DOCS / "index.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(path.stem for path in (DOCS / "howto").glob("*.md"))


@pytest.mark.parametrize(
    ("word", "page"),
    [
        ("AUC", "howto/metrics.md"),
        ("Optuna", "howto/sweeps_and_tuning.md"),
        ("BatchNorm", "models_with_state.md"),
        ("regression", "your_own.md"),
    ],
)
def test_words_that_readers_search_for_are_on_their_page(word, page):
    text = (DOCS / page).read_text()
    assert re.search(rf"(?i)\b{word}\b", text)
    assert page.partition(".")[0] in (DOCS / "index.md").read_text()
