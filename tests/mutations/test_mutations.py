"""Mutations of the list apply to the present code, and each has a result."""

import json
import pathlib

import fedjax_sim

HERE = pathlib.Path(__file__).parent
PACKAGE = pathlib.Path(fedjax_sim.__file__).parent


def test_every_mutation_has_one_place():
    """Else rewrite it: the same fault in today's line."""
    mutations = json.loads((HERE / "mutations.json").read_text())
    texts = {one["path"]: (PACKAGE.parent / one["path"]).read_text() for one in mutations}
    places = [texts[one["path"]].count(one["before"]) for one in mutations]
    assert [number for number, count in enumerate(places) if count != 1] == []
    assert all(one["before"] != one["after"] for one in mutations)


def test_every_mutation_has_a_result():
    mutations, results = (
        json.loads((HERE / name).read_text()) for name in ("mutations.json", "results.json")
    )
    assert list(results) == [str(number) for number in range(len(mutations))]
    assert None not in results.values()
