"""JSON Schemas of the files that programs read or write, each from its type, none by hand.

dpaudit/schemas/NAME.schema.json is each of them as text; a test compares them. What may change
within a version, and what raises it, is in docs/schemas.md.
"""

from __future__ import annotations

import json
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import (
    DataclassField,
    ModelField,
    TaggedUnionSchema,
    TypedDictField,
)

from dpaudit.results.attestation import ATTESTATION_VERSION, Statement
from dpaudit.results.audit import AuditResult
from dpaudit.results.comparison import Comparison
from dpaudit.results.contamination import Contamination
from dpaudit.results.deferred import TITLED
from dpaudit.results.disclosed_texts import DisclosedTexts
from dpaudit.results.policy import Policy
from dpaudit.results.quality import Quality
from dpaudit.runs.manifest import FORMAT_VERSION, run_json

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _Plain(GenerateJsonSchema):
    """A writer of the dialect's own keywords: strict validators refuse OpenAPI's."""

    def tagged_union_schema(self, schema: TaggedUnionSchema) -> JsonSchemaValue:
        """Return the alternatives; which field tells them apart follows from their own schemas."""
        found = super().tagged_union_schema(schema)
        found.pop("discriminator", None)
        return found

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Return whether a field's type has no title of its own, as a deferred one has."""
        titled = schema.get("metadata", {}).get(TITLED)
        return not titled and super().field_title_should_be_set(schema)


class _Whole(_Plain):
    """A writer of schemas of files in which every field stands, as `Manifest.of_json` demands."""

    def field_is_required(
        self, field: ModelField | DataclassField | TypedDictField, total: bool
    ) -> bool:
        """Return that it is, whatever default its type has for those who build one."""
        return True


class Kind(NamedTuple):
    """A kind of file.

    Attributes:
        model: its type.
        version: raised where a file of the version before could be read no more, or would say
            something else.
        mode: "validation" for what is read from anywhere, "serialization" for what dpaudit alone
            writes: there every field stands, and numbers that JSON does not have are texts.
        generator: writes the schema.
    """

    model: type[BaseModel]
    version: int
    mode: Literal["validation", "serialization"]
    generator: type[GenerateJsonSchema] = _Plain


#: By the name of the schema.
SCHEMAS = {
    "run": Kind(run_json(), FORMAT_VERSION, "validation", _Whole),
    "report": Kind(AuditResult, 3, "serialization"),
    "comparison": Kind(Comparison, 3, "serialization"),
    "trial": Kind(DisclosedTexts, 1, "serialization"),
    "contamination": Kind(Contamination, 1, "serialization"),
    "evaluation": Kind(Quality, 2, "validation"),
    "policy": Kind(Policy, 1, "validation"),
    "attestation": Kind(Statement, ATTESTATION_VERSION, "validation"),
}


def json_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a kind of file, draft 2020-12. Raises KeyError without one."""
    kind = SCHEMAS[name]
    return {
        "$schema": DIALECT,
        "$id": f"urn:dpaudit:{name}:{kind.version}",
        **kind.model.model_json_schema(mode=kind.mode, schema_generator=kind.generator),
    }


def schema_text(name: str) -> str:
    """Return the same as the shipped file has it."""
    return json.dumps(json_schema(name), indent=2) + "\n"
