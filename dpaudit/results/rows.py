"""Very many results of one kind, kept as the values of their fields."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Generic, TypeVar, overload

from pydantic import BaseModel, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema
from typing_extensions import override

#: Models that are taken in at a time.
_TOGETHER = 256
Row = TypeVar("Row", bound=BaseModel)


class Rows(Sequence[Row], Generic[Row]):
    """A sequence of models, each of which is made when it is asked for.

    A model takes 1.4 KB, and its values a tenth of that.
    """

    def __init__(self, kind: type[Row], rows: Iterable[Row]) -> None:
        """Take the values of models, which need not be kept."""
        self.kind, self._names, self._number = kind, tuple(kind.model_fields), 0
        #: Of _TOGETHER models at a time, the values of each field.
        self._blocks = list[list[Sequence[Any]]]()
        left = iter(rows)
        while block := tuple(islice(left, _TOGETHER)):
            self._blocks.append(
                [_column([getattr(row, name) for row in block]) for name in self._names]
            )
            self._number += len(block)

    @override
    def __len__(self) -> int:
        return self._number

    @overload
    def __getitem__(self, place: int) -> Row: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[Row, ...]: ...

    @override
    def __getitem__(self, place: int | slice) -> Row | tuple[Row, ...]:
        if isinstance(place, slice):
            return tuple(self[each] for each in range(len(self))[place])
        block, row = divmod(range(len(self))[place], _TOGETHER)
        values = (column[row] for column in self._blocks[block])
        return self.kind.model_validate(dict(zip(self._names, values, strict=True)))

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, (Rows, tuple, list)) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment]  # as of a list

    def __repr__(self) -> str:
        return repr([*self])


def _column(values: list[Any]) -> Sequence[Any]:
    """Return values in an array if all are numbers that it can hold."""
    kinds = {type(value) for value in values}
    with suppress(OverflowError):
        if kinds == {float}:
            return array("d", values)
        if kinds == {int}:
            return array("q", values)
    return values


class KeptAsRows:
    """Has pydantic keep a field `Annotated[Sequence[Model], KeptAsRows()]` as `Rows`."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        (kind,) = source.__args__
        models = handler.generate_schema(tuple[kind, ...])  # type: ignore[valid-type]

        def take(value: Any, validate: Callable[[Any], tuple[Any, ...]]) -> Rows[Any]:
            kept = isinstance(value, Rows) and value.kind is kind
            return value if kept else Rows(kind, validate(value))

        return core_schema.no_info_wrap_validator_function(
            take,
            models,
            # `models` heeds what is asked of single rows, `include` and `exclude`.
            serialization=core_schema.wrap_serializer_function_ser_schema(
                lambda rows, write: write(tuple(rows)), schema=models
            ),
        )
