"""The generators of others that are recorded as they are: a file each, and a line here."""

from __future__ import annotations

import importlib
import json
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Literal, cast

from dpaudit.runs import Manifest
from dpaudit.runs.manifest import Mend, TrainedOnRecords
from dpaudit.runs.storage import Location

#: By name: the module whose `recording(asked)` wraps the generator while a block runs.
GENERATORS = {"invink": "dpaudit.recording.invink"}


@dataclass(frozen=True)
class Asked:
    """What is asked of a recording.

    Attributes:
        out: the run directory to write.
        mend: what is replaced in the generator; nothing else is.
        texts, max_tokens: public numbers, which "lengths" puts in place of those that the generator takes from records.
        claim: the epsilon that the generator was asked for, or the largest that it says it spent on a text.
        trained_on_records: whether the model's weights were trained on any of the private records.
    """

    out: Location
    mend: tuple[Mend, ...] = ()
    texts: int | None = None
    max_tokens: int | None = None
    claim: Literal["asked", "spent"] = "asked"
    trained_on_records: TrainedOnRecords = "unknown"

    def __post_init__(self) -> None:
        given = self.texts is not None and self.max_tokens is not None
        if ("lengths" in self.mend) != given or (self.texts is None) != (self.max_tokens is None):
            raise ValueError("texts and max_tokens are for mend lengths, which needs both")

    def called(self, name: str) -> list[str]:
        """What a Python is given before a script, to run it under the recorder of a generator."""
        return ["-m", "dpaudit.recording", name, json.dumps(asdict(self), default=str)]


def called_again(manifest: Manifest, out: Location) -> list[str]:
    """As `Asked.called`, for what made a run; nothing where its script records for itself."""
    recorded = manifest.recorded
    name = "" if recorded is None else recorded.generator.partition(" ")[0]
    if recorded is None or name not in GENERATORS:
        return []
    numbers = {}
    if "lengths" in recorded.mended:
        numbers = {"texts": manifest.batches, "max_tokens": manifest.stopping.max_tokens}
    claim: Literal["asked", "spent"] = "spent" if manifest.claim_stated == "afterwards" else "asked"
    trained = manifest.model.trained_on_records
    return Asked(out, recorded.mended, **numbers, claim=claim, trained_on_records=trained).called(name)


def recording(name: str, asked: Asked) -> AbstractContextManager[None]:
    """Record what a generator does while a block runs: one run, whole when the block ends.

    Raises:
        InputError: the generator is not installed, is of another version, or made no whole run; or the directory cannot
            be used.
        KeyError: there is no such generator.
    """
    module = importlib.import_module(GENERATORS[name])
    return cast(AbstractContextManager[None], module.recording(asked))
