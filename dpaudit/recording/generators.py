"""Other packages' generators that are recorded unchanged, by an entry point each."""

from __future__ import annotations

import difflib
import json
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Literal, cast

from dpaudit.plugins import RECORDERS, PlugIn, plug_in, plug_ins
from dpaudit.runs import InputError, Manifest
from dpaudit.runs.manifest import Mend, TrainedOnRecords
from dpaudit.runs.storage import Location


@dataclass(frozen=True)
class RecordingOptions:
    """The options of a recording.

    Attributes:
        out: the run directory to write.
        mend: what is replaced in the generator; nothing else is.
        texts, max_tokens: public numbers, which "lengths" puts in place of those that the generator
            takes from records.
        claim: the epsilon that the generator was asked for, or the largest that it says it spent on
            a text.
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
        """Return Python's arguments before a script, to run it under a generator's recorder."""
        return ["-m", "dpaudit.recording", name, json.dumps(asdict(self), default=str)]


def called_again(manifest: Manifest, out: Location) -> list[str]:
    """Return `RecordingOptions.called` for a run's generator; [] if its script records itself."""
    recorded = manifest.recorded
    name = "" if recorded is None else recorded.generator.partition(" ")[0]
    if recorded is None or plug_in(RECORDERS, name) is None:
        return []
    numbers = {}
    if "lengths" in recorded.mended:
        numbers = {"texts": manifest.batches, "max_tokens": manifest.decoding.max_tokens}
    claim: Literal["asked", "spent"] = "spent" if manifest.claim_stated == "afterwards" else "asked"
    trained = manifest.model.trained_on_records
    return RecordingOptions(
        out, recorded.mended, **numbers, claim=claim, trained_on_records=trained
    ).called(name)


def recording(name: str, asked: RecordingOptions) -> AbstractContextManager[None]:
    """Record a generator while a block runs: one run, whole when the block ends.

    Raises:
        InputError: nothing records a generator of this name; it is not installed, is of another
            version, or made no whole run; or the directory cannot be used.
    """
    found = find_recorder(name)
    wrapped = found.load()
    if not callable(wrapped):
        raise found.unusable(f"{found.value} cannot be called.")
    return cast(AbstractContextManager[None], wrapped(asked))


def find_recorder(name: str) -> PlugIn:
    """Return the plug-in that records a generator, without loading it.

    Raises:
        InputError: there is none.
    """
    found = plug_in(RECORDERS, name)
    if found is None:
        known = [each.name for each in plug_ins(RECORDERS)]
        close = "".join(
            f" Did you mean {each}?" for each in difflib.get_close_matches(name, known, n=1)
        )
        remedy = (
            f"Known are {', '.join(known)}.{close} Another package can add one (docs/plugins.md)."
        )
        raise InputError(
            "GENERATOR", f"nothing records a generator {name!r}.", remedy, "recorders.unknown"
        )
    return found
