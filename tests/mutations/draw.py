"""Draws mutations of core files: ``python tests/mutations/draw.py > mutations.json``.

Needs ``pip install cosmic-ray==8.7.0``.  Operators are the signs, comparisons, negations,
off-by-ones and truth values of that package, masks and weights that become constants, and keys
without the number that is folded in.  A mutation is stored by the changed lines and not by their
numbers, so that it can be applied after the code has moved.
"""

import difflib
import json
import pathlib
import random
import re
import sys

from cosmic_ray import plugins
from cosmic_ray.mutating import mutate_code

SEED = 0
PER_FILE = 6
ROOT = pathlib.Path(__file__).resolve().parents[2]
FILES = """
engine/rounds local/__init__ local/transforms types/setup tree/arithmetic tree/leaves
data/batches data/task data/federated engine/evaluation/streaming engine/evaluation/means
engine/execution/strategies engine/execution/placement engine/execution/offload
engine/execution/chunks timelines/sampling timelines/buffers timelines/arrivals algorithms/scaffold
algorithms/fedopt
""".split()
OPERATORS = """
ReplaceBinaryOperator_Add_Sub ReplaceBinaryOperator_Sub_Add ReplaceBinaryOperator_Mul_Div
ReplaceBinaryOperator_Div_Mul ReplaceBinaryOperator_Mod_Mul ReplaceBinaryOperator_FloorDiv_Mul
ReplaceComparisonOperator_Lt_LtE ReplaceComparisonOperator_LtE_Lt ReplaceComparisonOperator_Gt_GtE
ReplaceComparisonOperator_GtE_Gt ReplaceComparisonOperator_Eq_NotEq
ReplaceComparisonOperator_NotEq_Eq ReplaceComparisonOperator_Is_IsNot
ReplaceUnaryOperator_Delete_USub ReplaceUnaryOperator_Delete_Not ReplaceUnaryOperator_Delete_Invert
AddNot ReplaceTrueWithFalse ReplaceFalseWithTrue ReplaceAndWithOr ReplaceOrWithAnd NumberReplacer
""".split()
# Masks and weights become constants; keys lose the number that is folded in.
_CONSTANTS = {r"(?<=\()mask(?=[,)])": "mask | True", r"(?<=\()weights?(?=[,)])": "0 * {} + 1"}
_FOLDED = r"(?:jax\.random\.)?fold_in\((\w+(?:\.\w+)*), [^()]+\)"


def _by_operators(code: str) -> list[str]:
    result = []
    for name in OPERATORS:
        operator = plugins.get_operator(f"core/{name}")()
        occurrence = 0
        while mutated := mutate_code(code, operator, occurrence):
            result.append(mutated)
            occurrence += 1
    return result


def _by_names(code: str) -> list[str]:
    matches = [
        (match, constant.format(match.group()))
        for pattern, constant in _CONSTANTS.items()
        for match in re.finditer(pattern, code)
    ]
    matches += [(match, match.group(1)) for match in re.finditer(_FOLDED, code)]
    return [code[: match.start()] + new + code[match.end() :] for match, new in matches]


def _change(before: str, after: str) -> dict[str, str] | None:
    """Returns the changed lines, or None where they are in several places."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    parts = [part for part in difflib.SequenceMatcher(None, old, new).get_opcodes()
             if part[0] != "equal"]  # fmt: skip
    if len(parts) != 1:
        return None
    _, start, stop, first, last = parts[0]
    one, other = "".join(old[start:stop]), "".join(new[first:last])
    if one.strip() in ("", "*,") or not other.strip():  # ``*,`` marks keywords
        return None
    # Enough lines before it that the place is unique.
    while before.count(one) > 1 and start > 0:
        start -= 1
        one, other = old[start] + one, old[start] + other
    return {"before": one, "after": other} if before.count(one) == 1 else None


def main() -> None:
    rng = random.Random(SEED)
    mutations = []
    for name in FILES:
        path = f"fedjax_sim/{name}.py"
        code = (ROOT / path).read_text()
        kinds = [_by_operators(code), _by_names(code)]
        changes = [[_change(code, mutated) for mutated in kind] for kind in kinds]
        pools = [[change for change in kind if change is not None] for kind in changes]
        named = rng.sample(pools[1], min(2, len(pools[1])))
        drawn = named + rng.sample(pools[0], PER_FILE - len(named))
        mutations += [{"path": path, **change} for change in drawn]
    json.dump(mutations, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
