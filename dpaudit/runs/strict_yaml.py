"""YAML that people write: bounded, of plain values alone, without doubled keys."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from dpaudit.errors import InputError

#: The largest file, unless its reader has a limit of its own.
MAX_BYTES = 1 << 22
_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_BOOL, _STR = "tag:yaml.org,2002:bool", "tag:yaml.org,2002:str"
#: A field of configs and policies whose values are no, yes and unknown: YAML 1.1 would make
#: booleans of the first two.
_WORD = "trained_on_records"
#: YAML 1.1 reads 1e-5 and 1.5e3 as text; everyone who writes them means the number.
_EXPONENT = re.compile(r"^[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+$")
#: It also reads 010 as eight and 1:30 as ninety, which nobody means: these are text, and so are
#: other bases.
_DIGITS = re.compile(r"^[+-]?(0|[1-9][0-9_]*)$")
_DECIMALS = re.compile(r"^[+-]?(\d[\d_]*\.[\d_]*|\.\d[\d_]*|\.(inf|Inf|INF))$|^\.(nan|NaN|NAN)$")
_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """A loader that refuses doubled keys, of which YAML would keep the last in silence.

    Numbers are decimal.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, value in node.value:
            # of what it brings in nobody would see whether a field is there already
            if key.tag == _MERGE:
                problem = "fields are merged in (<<): write them out"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            name = key.value if isinstance(key, yaml.ScalarNode) else id(key)
            if name in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, "a field is given twice", key.start_mark
                )
            seen.add(name)
            if name == _WORD and isinstance(value, yaml.ScalarNode) and value.tag == _BOOL:
                value.tag = _STR
            if name == "data":  # no field of it is a number: a label 1e5 stays text
                _exponents_as_text(value)
        mapping = super().construct_mapping(node, deep)
        if len(mapping) < len(seen):  # 2 and 2.0
            raise yaml.constructor.ConstructorError(
                None, None, "a field is given twice", node.start_mark
            )
        return mapping


def _number(loader: _Loader, node: yaml.ScalarNode) -> float:
    value = float(loader.construct_yaml_float(node))
    if value == 0 and any(digit in "123456789" for digit in node.value.lower().partition("e")[0]):
        raise yaml.constructor.ConstructorError(
            None, None, "a number is too close to zero", node.start_mark
        )
    return value


_Loader.add_constructor(_FLOAT, _number)
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag not in (_INT, _FLOAT)]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern in ((_INT, _DIGITS), (_FLOAT, _DECIMALS), (_FLOAT, _EXPONENT)):
    _Loader.add_implicit_resolver(_tag, _pattern, list("+-.0123456789"))


def _exponents_as_text(section: yaml.Node) -> None:
    left, known = [section], set[int]()
    while left:
        node = left.pop()
        if isinstance(node, yaml.ScalarNode):
            if _EXPONENT.match(node.value):
                node.tag = _STR
        elif id(node) not in known:  # aliases may lead back
            known.add(id(node))
            for item in node.value:
                left += item if isinstance(item, tuple) else [item]


def load(path: Path, what: str, remedy: str, most: int = MAX_BYTES) -> Any:
    """Return the content of a YAML file, unchecked.

    Args:
        path: the file.
        what: the name of what it should be, as in "a YAML config".
        remedy: what to give instead, as a sentence.
        most: bytes that it may have.

    Raises:
        InputError: the file cannot be read, is too large, is no YAML, or holds nothing.
    """
    return parse(read(path, what, remedy, most), path, what, remedy)


def read(path: Path, what: str, remedy: str, most: int = MAX_BYTES) -> bytes:
    """Return a file's bytes. Arguments and errors are those of `load`."""
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        problem = f"the file cannot be read: {error.strerror}."
        raise InputError(str(path), problem, f"Give the path of {what}.") from None
    if len(data) > most:
        raise InputError(str(path), f"the file has more than {most:,} bytes.", remedy)
    return data


def parse(data: bytes, path: Path, what: str, remedy: str) -> Any:
    """Return the content of these bytes of a file. Arguments and errors are those of `load`."""
    try:
        # The loader is a SafeLoader: it makes plain values only.
        values = yaml.load(data.decode("utf-8"), Loader=_Loader)  # noqa: S506
    except UnicodeDecodeError:
        problem = "the file cannot be read: it is not UTF-8 text."
        raise InputError(str(path), problem, f"Give the path of {what}.") from None
    except RecursionError:
        raise InputError(str(path), "the file nests too deeply.", remedy) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}: line {mark.line + 1}, column {mark.column + 1}" if mark else str(path)
        problem = getattr(error, "problem", None) or "the text cannot be parsed"
        raise InputError(
            where, f"this is not valid YAML: {problem}.", "Mend the line; indent with spaces."
        ) from None
    except ValueError:
        # Python reads no whole number of thousands of digits.
        raise InputError(str(path), "a number is too long to be read.", remedy) from None
    if values is None:
        raise InputError(str(path), "the file is empty.", remedy)
    return values
