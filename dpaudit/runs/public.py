"""Public-only texts: those that a run's prompts give without any record.

Epsilon 0, nothing to audit.

The directory has no run.json, so no command takes it for a run. It holds samples.jsonl as runs do,
tokenizer.json if the model has one, and public.json, which is written last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Literal, Self

from pydantic import Field

from dpaudit.errors import InputError
from dpaudit.mechanisms import Fields, Positive, Support
from dpaudit.runs import layout
from dpaudit.runs.batches import Sample
from dpaudit.runs.manifest import (
    Count,
    Created,
    Decoding,
    Digest,
    Labels,
    Manifest,
    Model,
    Prompt,
    Sampling,
    Software,
)
from dpaudit.runs.reader import FolderReader
from dpaudit.runs.storage import Location, Storage, open_storage

_AGAIN = "Generate them again: `dpaudit generate CONFIG.yaml --public-only --out FOLDER`."
#: What must be a run's own, by the section of run.json: the fields here, or all of it.
_OWN = {
    "model": ("digest", "dtype"),
    "mechanism": ("temperature", "support"),
    "prompt": None,
    "decoding": None,
}


class PublicMechanism(Fields):
    """A draw by softmax(l0 / temperature), l0 the public log-probabilities over the support."""

    temperature: Positive
    support: Support


class PublicTexts(Fields):
    """public.json: the settings that make texts the baseline of a run, named as in run.json.

    Attributes:
        private: nothing. No record was read.
        created: when generation began, in ISO 8601 with a time zone.
        mechanism: how a token is drawn.
        labels: the public list of labels; empty without any.
        batches: how many of them each label has, or all together have where there are no labels.
        decoding, sampling, model, prompt, software: as in run.json.
        samples: SHA-256 of samples.jsonl.
    """

    format_version: Literal[2] = 2
    private: Literal["nothing"] = "nothing"
    created: Created
    mechanism: PublicMechanism
    labels: Labels
    batches: Count
    decoding: Decoding
    sampling: Sampling
    model: Model
    prompt: Prompt
    software: Software = Field(default_factory=dict)
    samples: Digest

    @classmethod
    def of(cls, manifest: Manifest, batches: int, samples: str) -> Self:
        """Return the public.json of texts that were made under a manifest's public settings."""
        return cls(
            created=manifest.created,
            mechanism=PublicMechanism(
                temperature=manifest.mechanism.temperature, support=manifest.mechanism.support
            ),
            labels=manifest.data.labels or (),
            batches=batches,
            decoding=manifest.decoding,
            sampling=manifest.sampling,
            model=manifest.model,
            prompt=manifest.prompt,
            software=manifest.software,
            samples=samples,
        )

    def require_fit(self, where: str, run: Manifest) -> None:
        """Refuse texts that are no baseline of a run: the records may not be all that differs.

        Raises:
            InputError: names the first setting that differs, or that the run does not state.
        """
        compared = [("labels", self.labels, run.data.labels or ())]
        for section, names in _OWN.items():
            own, theirs = (getattr(settings, section).model_dump() for settings in (self, run))
            # how many records a prompt shows decides nothing where it shows none
            fields = names or [name for name in own if name != "examples_per_context"]
            compared += [(f"{section}.{name}", own[name], theirs[name]) for name in fields]
        for name, ours, runs in compared:
            if ours != runs or (name == "model.digest" and ours is None):
                problem = (
                    f"{name} differs from the run's, so a comparison would show more than "
                    "what the records added."
                )
                raise InputError(
                    where, problem, "Generate public-only texts with the run's own config."
                )


class PublicReader(FolderReader):
    """Public-only texts on disk.

    Attributes:
        public: public.json, validated.
    """

    def __init__(self, location: Location) -> None:
        """Open the texts.

        Raises:
            InputError: there are none, or there are other files than such texts have.
        """
        storage = open_storage(location)
        super().__init__(storage)
        if storage.exists(layout.MANIFEST) or storage.exists(layout.STEPS):
            raise InputError(
                self.name,
                "this is a run: its texts were made from private records.",
                "Give public-only texts.",
            )
        if not storage.exists(layout.PUBLIC):
            raise InputError(
                self.name, "these are not public-only texts: public.json is missing.", _AGAIN
            )
        self.public = self._fields(layout.PUBLIC, PublicTexts)
        if self.digest(layout.SAMPLES) != self.public.samples:
            problem = "these are not the texts that public.json describes."
            raise InputError(self.where(layout.SAMPLES), problem, _AGAIN)


@contextmanager
def new_folder(location: Location) -> Iterator[Storage]:
    """Hold a new or empty directory, to which nobody else writes within the block.

    Raises:
        InputError: it holds something, cannot be written, or another writer has it.
    """
    storage = open_storage(location)
    with ExitStack() as lock:
        lock.callback(storage.lock())
        if any(entry.name != layout.LOCK for entry in storage.entries()):
            raise InputError(storage.where(), "the directory is not empty.", "Name a new one.")
        yield storage


def write_public(
    storage: Storage,
    manifest: Manifest,
    batches: int,
    samples: Iterable[Sample],
    tokenizer_json: str | None,
) -> None:
    """Write public-only texts and what made them. Arguments as for `PublicTexts.of`."""
    if tokenizer_json is not None:
        storage.write_text(layout.TOKENIZER, [tokenizer_json])
    storage.write_text(layout.SAMPLES, (sample.line() for sample in samples))
    public = PublicTexts.of(manifest, batches, FolderReader(storage).digest(layout.SAMPLES))
    storage.write_text(layout.PUBLIC, [public.model_dump_json(indent=2), "\n"])
