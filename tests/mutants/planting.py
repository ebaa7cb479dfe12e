"""Random faults in the code of one package, by the mutation operators of mutmut."""

from __future__ import annotations

import ast
import difflib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import libcst as cst
from mutmut.mutation.mutators import mutation_operators

#: The folders of packages below `dpaudit`, by the names that they are asked for by.
FOLDERS = {
    "mechanisms": "mechanisms",
    "accounting": "accounting",
    "checks": "auditing/checks",
}
#: Left as they are: types are not looked at when code runs, and tests assert no wording.
SPARED = (cst.Annotation, cst.Decorator, cst.FormattedString, cst.Import, cst.ImportFrom)


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes:
        file: relative to the repository.
        source: the whole file with the fault.
        diff: what the fault changes, with its line.
    """

    file: str
    source: str
    diff: str

    @property
    def line(self) -> int:
        """The number of the changed line."""
        return int(self.diff.split("@@ -")[1].split(" ")[0].split(",")[0])


@dataclass(frozen=True)
class _Place:
    """A node, and what an operator puts in its place."""

    file: Path
    module: cst.Module
    node: cst.CSTNode
    instead: cst.CSTNode


def _nodes(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield a node and all below it, without what is spared."""
    sentence = isinstance(node, cst.SimpleString) and " " in node.value
    if sentence or isinstance(node, SPARED):
        return
    yield node
    for child in node.children:
        yield from _nodes(child)


def _places(files: Sequence[Path]) -> dict[str, list[_Place]]:
    """Return all places of faults by the operator that plants them."""
    places: dict[str, list[_Place]] = {}
    for file in files:
        module = cst.parse_module(file.read_text(encoding="utf-8"))
        for node in _nodes(module):
            for of_type, operator in mutation_operators:
                if isinstance(node, of_type):
                    found = [_Place(file, module, node, instead) for instead in operator(node)]
                    places.setdefault(operator.__name__, []).extend(found)
    return places


def _mutant(place: _Place, root: Path) -> Mutant | None:
    """Return the fault at a place, or None where it changes nothing or is no Python."""
    mutated = place.module.deep_replace(place.node, place.instead)
    before, after = place.module.code, mutated.code
    try:
        if ast.dump(ast.parse(before)) == ast.dump(ast.parse(after)):
            return None
    except SyntaxError:
        return None
    name = str(place.file.relative_to(root))
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), name, name, n=0, lineterm=""
    )
    return Mutant(name, after, "\n".join(lines))


def mutants(package: str, root: Path, sample: int, seed: int) -> list[Mutant]:
    """Return a sample of faults in a package of dpaudit, equally many of each operator if possible.

    Operators take turns: a bound or a direction is tried as often as an argument, of which code has
    far more.
    """
    draw = random.Random(seed)
    places = _places(sorted((root / "dpaudit" / FOLDERS[package]).glob("*.py")))
    for listed in places.values():
        draw.shuffle(listed)
    found: list[Mutant] = []
    while len(found) < sample and any(places.values()):
        for name in sorted(places):
            mutant = _mutant(places[name].pop(), root) if places[name] else None
            if mutant is not None:
                found.append(mutant)
    return found[:sample]
