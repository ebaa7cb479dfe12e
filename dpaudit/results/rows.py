"""Very many results of one kind, kept as the values of their fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar, overload

from pydantic import BaseModel, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema
from typing_extensions import override

Row = TypeVar("Row", bound=BaseModel)


class Rows(Sequence[Row], Generic[Row]):
    """A sequence of models, each of which is made when it is asked for.

    A model takes 1.4 KB, and its values some 200 bytes.
    """

    def __init__(self, kind: type[Row], rows: Iterable[Row]) -> None:
        """Take the values of models, which need not be kept."""
        self._kind, self._names = kind, tuple(kind.model_fields)
        self._values = [getattr(row, name) for row in rows for name in self._names]

    @override
    def __len__(self) -> int:
        return len(self._values) // len(self._names)

    @overload
    def __getitem__(self, place: int) -> Row: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[Row, ...]: ...

    @override
    def __getitem__(self, place: int | slice) -> Row | tuple[Row, ...]:
        if isinstance(place, slice):
            return tuple(self[each] for each in range(len(self))[place])
        first = range(len(self))[place] * len(self._names)
        values = self._values[first : first + len(self._names)]
        return self._kind.model_validate(dict(zip(self._names, values, strict=True)))

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, (Rows, tuple, list)) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment]  # as of a list

    def __repr__(self) -> str:
        return repr([*self])


class KeptAsRows:
    """Has pydantic keep a field `Annotated[Sequence[Model], KeptAsRows()]` as `Rows`."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        (kind,) = source.__args__
        models = handler.generate_schema(tuple[kind, ...])  # type: ignore[valid-type]

        def take(value: Any, validate: Callable[[Any], tuple[Any, ...]]) -> Rows[Any]:
            return value if isinstance(value, Rows) else Rows(kind, validate(value))

        return core_schema.no_info_wrap_validator_function(
            take,
            models,
            serialization=core_schema.plain_serializer_function_ser_schema(
                tuple, return_schema=models
            ),
        )
