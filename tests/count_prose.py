"""Count the tests' assertions that hold prose: `python -m tests.count_prose`.

An assertion is an `assert`, or the `match` of `pytest.raises` and its like; prose is a string of
four words or more.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
#: Words in a row that make a sentence of a string.
WORDS = re.compile(r"(?:[A-Za-z][\w'’-]*[,;:.]? +){3}[A-Za-z]")


def assertions(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield what a module's tests assert."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            yield node.test
        elif isinstance(node, ast.Call):
            yield from (keyword.value for keyword in node.keywords if keyword.arg == "match")


def holds_prose(asserted: ast.expr) -> bool:
    """Whether an assertion has a string of four words or more."""
    parts = (node.value for node in ast.walk(asserted) if isinstance(node, ast.Constant))
    return any(isinstance(part, str) and WORDS.search(part) for part in parts)


def count_prose() -> Counter[str]:
    """Return how many such assertions each file of tests has."""
    found: Counter[str] = Counter()
    for path in sorted(TESTS.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        count = sum(map(holds_prose, assertions(tree)))
        if count:
            found[str(path.relative_to(TESTS))] = count
    return found


if __name__ == "__main__":
    counted = count_prose()
    lines = [*counted.most_common(), ("in all", counted.total())]
    sys.stdout.writelines(f"{count:4} {name}\n" for name, count in lines)
