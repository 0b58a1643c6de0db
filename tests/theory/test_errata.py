"""The errata page names tests that exist."""

import pathlib
import re

HERE = pathlib.Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "errata.md"


def test_named_tests_exist():
    """``path::name``, or ``::name`` in the file named last; parametrised tests in brackets."""
    path, names = None, []
    for file, name in re.findall(r"`([\w./]*\.py)?(?:::(\w+))?(?:\[\w+\])?`", PAGE.read_text()):
        path = file or path
        if name:
            names.append((path, name))
        elif file:
            assert (HERE / file).exists(), file
    assert len(names) > 40
    for path, name in names:
        assert f"def {name}(" in (HERE / path).read_text(), (path, name)
