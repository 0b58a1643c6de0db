"""The API reference: a generated page per package, signatures as in the source, resolved links."""

import ast
import functools
import importlib
import inspect
import pathlib
import re
from typing import Any

import public_names
from docutils import nodes
from reference_pages import pages
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode

from fedjax_sim.types import field_comments

FOLDER = "reference"
_SECTION = re.compile(r"(Attributes|Args|Returns|Yields|Raises|References|Example):$")


def write_pages(app: Sphinx) -> None:
    """Writes the pages that changed, and removes those of packages that are gone."""
    folder = pathlib.Path(app.srcdir) / FOLDER
    folder.mkdir(exist_ok=True)
    texts = {f"{name}.rst": text for name, text in pages().items()}
    for old in folder.iterdir():
        if old.name not in texts:
            old.unlink()
    for name, text in texts.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


# --- Signatures as in the source, and the comments of fields.


def signature(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, text: str | None, result: str | None
) -> tuple[str, str] | None:
    """Returns the arguments and the result with the annotations that the source has."""
    node = public_names.definition(obj)
    if isinstance(node, ast.ClassDef):
        init = next((f for f in node.body if getattr(f, "name", None) == "__init__"), None)
        if isinstance(init, ast.FunctionDef):
            return _arguments(init, skip_first=True), ""
        fields = _fields(node)
        return (f"({', '.join(_field(field) for field in fields)})", "") if fields else None
    if isinstance(node, ast.FunctionDef):
        method = "." in inspect.unwrap(obj).__qualname__
        returned = ast.unparse(node.returns).strip("'") if node.returns else ""
        return _arguments(node, skip_first=method), returned
    return None


def _arguments(node: ast.FunctionDef, skip_first: bool) -> str:
    arguments = ast.parse(ast.unparse(node.args).join(("def f(", "): ..."))).body[0].args
    static = any(getattr(d, "id", "") == "staticmethod" for d in node.decorator_list)
    if skip_first and not static and arguments.args:
        arguments.args.pop(0)
    return f"({ast.unparse(arguments)})"


def _fields(node: ast.ClassDef) -> list[ast.AnnAssign]:
    return [
        item
        for item in node.body
        if isinstance(item, ast.AnnAssign)
        and isinstance(item.target, ast.Name)
        and not item.target.id.startswith("_")
        and "ClassVar" not in ast.unparse(item.annotation)
    ]


def _field(field: ast.AnnAssign) -> str:
    default = f" = {ast.unparse(field.value)}" if field.value is not None else ""
    return f"{ast.unparse(field.target)}: {ast.unparse(field.annotation)}{default}"


def describe_fields(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Lists a class's fields, with the comments beside them in the source, in its docstring."""
    comments = field_comments(obj) if what != "module" and inspect.isclass(obj) else {}
    if not comments:
        return
    added = [f"* ``{field}``: {_literal(comment)}" for field, comment in comments.items()]
    at = next((i for i, line in enumerate(lines) if _SECTION.match(line)), len(lines))
    end = at
    if lines[at : at + 1] == ["Attributes:"]:  # as `help` shows them
        end = next((i for i in range(at, len(lines)) if not lines[i]), len(lines))
    lines[at:end] = ["", *added, ""]


def _literal(comment: str) -> str:
    comment = re.sub(r"`([^`]+)`", r"``\1``", comment)
    return re.sub(r"(?<!`)([*|\\])", r"\\\1", comment) if "``" not in comment else comment


def skip_fields(
    app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any
) -> bool | None:
    """Leaves out fields, which the class's text describes, and members without a docstring."""
    if type(obj).__name__ in ("_tuplegetter", "member_descriptor"):
        return True
    return None


def list_references(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Turns the lines of a section `References` into a list, one item per paper."""
    if "References:" not in lines:
        return
    start = lines.index("References:") + 1
    end = start
    while end < len(lines) and (not lines[end] or lines[end].startswith("    ")):
        end += 1
    items: list[str] = []
    for line in filter(None, lines[start:end]):
        if line.startswith(" " * 8):
            items[-1] += " " + line.strip()
        else:
            items.append("    * " + line.strip())
    lines[start:end] = [*items, ""]


# --- Links.


@functools.cache
def _targets() -> tuple[dict[str, str], dict[str, set[str]]]:
    exact: dict[str, str] = {}
    last: dict[str, set[str]] = {}
    listed = public_names.modules()
    by_source = {}
    for name in public_names.everything():
        exact[name.path] = name.path
        last.setdefault(name.name, set()).add(name.path)
        if name.is_class or name.is_function:
            exact[name.source] = by_source[name.source] = name.path
    for path, names in listed.items():  # other paths of the same objects
        for name in names:
            value = inspect.unwrap(getattr(importlib.import_module(path), name))
            source = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
            if source in by_source:
                exact[f"{path}.{name}"] = by_source[source]
    return exact, last


def resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, contnode: nodes.Element
) -> nodes.Element | None:
    """Resolves links to names under any of their paths.

    A link from a docstring to an internal name that exists has no page: it stays text.  So do
    annotations.  A docstring's link to a name that does not exist is a warning.
    """
    if node.get("refdomain") != "py":
        return None
    exact, last = _targets()
    target, module = node["reftarget"], node.get("py:module") or ""
    head, _, member = target.rpartition(".")
    for path in (target, f"{module}.{target}"):
        if path in exact:
            return _link(app, env, node, contnode, exact[path])
    if head in exact:
        return _link(app, env, node, contnode, f"{exact[head]}.{member}")
    if "." not in target and len(candidates := last.get(target, set())) == 1:
        return _link(app, env, node, contnode, next(iter(candidates)))
    if "refwarn" not in node or _exists(target, module):
        return contnode
    return None


def _link(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, contnode: nodes.Element, path: str
) -> nodes.Element:
    entry = env.get_domain("py").objects.get(path)
    if entry is None:
        return contnode
    return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, [contnode], path)


def _exists(target: str, module: str) -> bool:
    """Returns whether a name can be imported, from a module or from one of its parents."""
    if not target.startswith(public_names.ROOT) and "." in target:
        return not target.startswith("fs.")  # of another package: jax, numpy, ...
    inside = [f"{module}."] if module else []  # pages in Markdown have no module
    for prefix in ("", *inside, *_sources(module)):
        parts = f"{prefix}{target}".split(".")
        for cut in range(len(parts), 0, -1):
            try:
                value = importlib.import_module(".".join(parts[:cut]))
            except ImportError:
                continue
            try:
                for part in parts[cut:]:
                    value = getattr(value, part)
            except AttributeError:
                break
            return True
    return False


def _sources(module: str) -> list[str]:
    """Prefixes of the modules that define the names of a documented module."""
    names = public_names.by_module().get(module, [])
    return sorted({f"{n.source.rpartition('.')[0]}." for n in names if n.is_class or n.is_function})


def repair_back_links(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Directs the links from a page of source code to the entries of its names.

    `sphinx.ext.viewcode` assumes that all names of a module are documented under one path.
    """
    if not page.startswith(f"_modules/{public_names.ROOT}"):
        return
    exact, _ = _targets()
    module = page.removeprefix("_modules/").replace("/", ".")

    def repaired(link: re.Match) -> str:
        parts = link[2].split(".")
        names = [f"{module}.{'.'.join(parts[start:])}" for start in range(len(parts))]
        for name in names:
            if name in exact:
                return f'{link[1]}#{exact[name]}"'
        for name in names:  # methods
            head, _, member = name.rpartition(".")
            if head in exact:
                return f'{link[1]}#{exact[head]}.{member}"'
        return link[0]

    context["body"] = re.sub(
        r'(<a class="viewcode-back" href="[^"#]*)#([^"]*)"', repaired, context["body"]
    )


def setup(app: Sphinx) -> dict[str, bool]:
    """Connects the generator, the signatures and the links."""
    app.connect("builder-inited", write_pages)
    app.connect("autodoc-process-signature", signature)
    app.connect("autodoc-process-docstring", list_references, priority=400)  # before napoleon
    # Before napoleon (500), which would make objects of the fields.
    app.connect("autodoc-process-docstring", describe_fields, priority=400)
    app.connect("autodoc-skip-member", skip_fields)
    app.connect("missing-reference", resolve)
    app.connect("html-page-context", repair_back_links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
