"""Parts of a result that few results have: their types are imported with the first value of one."""

from __future__ import annotations

import json
from functools import cached_property
from importlib import import_module
from typing import Annotated, Any, cast

from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

#: In a core schema's metadata: its JSON Schema has a title, and the field's name is none.
TITLED = "titled"


def deferred(module: str, name: str) -> Any:
    """Return an annotation that accepts, refuses and describes what a model of `module` does."""
    return Annotated[Any, Deferred(module, name)]


class Deferred:
    """Validation by a model that is imported when there is something to validate."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    @cached_property
    def model(self) -> type[BaseModel]:
        """The model, imported now."""
        return cast("type[BaseModel]", getattr(import_module(self._module), self._name))

    def _validated(self, value: object, info: ValidationInfo) -> BaseModel:
        if info.mode == "json":  # where a list may be a tuple
            return self.model.model_validate_json(json.dumps(value))
        return self.model.model_validate(value)

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(
            self._validated, metadata={TITLED: True}
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        self.model.model_rebuild()
        # by its name, under the schema's definitions
        return handler(core_schema.definitions_schema(self.model.__pydantic_core_schema__, []))
