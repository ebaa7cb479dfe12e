"""Would a report for readers outside hold something private?

This decides what it says of a run's settings, and checks it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from dpaudit.auditing.checks.evidence import AuditedRun
from dpaudit.auditing.checks.partition import Placement
from dpaudit.auditing.checks.registry import Outcome, RunCheck, inapplicable
from dpaudit.results import CheckResult, Finding, Value
from dpaudit.results.summary import BatchingSettings, ModelSettings, PromptSettings, Settings
from dpaudit.runs import InputError, KeyedHash, Manifest
from dpaudit.runs.disclosed import LABELS, MOST_PAIRS, PATH, acting_texts, is_anybodys
from dpaudit.runs.manifest import SOFTWARE, Origins

if TYPE_CHECKING:
    from dpaudit.results.replay import SharedText

#: Leading hexadecimal digits that give a digest away: long enough for a million records to have
#: none by chance.
TELLING = 12
#: Sizes of so many batches in a row are no chance; fewer are looked for where a round has no more.
MOST_SIZES, FEWEST_SIZES = 8, 4
#: The longest decimal number that is read as one: of 256 bits, and to spare.
MOST_DIGITS = 100
WITHHELD = "withheld: a path on the machine of the run"

_IN_EVERY_TEXT = Finding(code="disclosure.in-every-text")

#: Fields that are public where the run declares its numbers of batches so.
_BATCHING = (
    "allocation",
    "rounds",
    "batches_per_label",
    "generate_per_label",
    "generate_per_cluster",
    "slots",
    "cells",
    "held_out",
)
#: Fields that are public where the run declares its settings so. A list of banned words is the
#: user's own.
_DECODING = (
    "max_tokens",
    "tokens_per_batch",
    "sequences",
    "least_tokens",
    "no_line_breaks",
    "no_repeated_ngram",
)
_VERSION = re.compile(r"v?[0-9][0-9A-Za-z.!+_-]{0,40}")
_HEXADECIMAL = re.compile(f"[0-9a-f]{{{TELLING},}}")
_DECIMAL = re.compile(r"[0-9]{2,}")
#: A number of contexts, which a manifest bounds.
_NUMBER = re.compile(r"[0-9]{1,7}")
_LOCAL = ("/", "./", "../", "~", "\\")


def public_settings(settings: Settings) -> Settings:
    """Return a public report's settings: named fields, and numbers only if declared public."""
    privacy, origins = settings.privacy, settings.chosen_from
    # How many values are kept, and what one context may spend, follow from the most records of a
    # user.
    counted = privacy.records_per_user_from != "declared"
    users = ("records_per_user",) * (not counted)
    shown = Settings(
        format_version=settings.format_version,
        created=settings.created,
        made_by=settings.made_by,  # whoever names themselves in a config publishes it
        chosen_from=origins,
        software=_versions(settings.software),
        privacy=privacy.only("unit", "relation", "records_per_user_from", "split_delta", *users),
        batching=_batching(settings),
        data=settings.data and settings.data.only("labels"),
        prompt=settings.prompt and _prompt(settings.prompt, origins),
        clustering=settings.clustering.only("method"),
        model=settings.model.only("trained_on_records"),
        sampling=settings.sampling.only("generator"),
        stopped_after=settings.stopped_after if origins.batching == "public" else None,
    )
    if origins.settings != "public":
        return shown
    mechanism, record, decoding = settings.mechanism or {}, settings.record, settings.decoding
    said = {
        "mechanism": {
            name: value for name, value in mechanism.items() if not (counted and name == "budget")
        },
        "record": record
        and record.only("dtype", "vocabulary", "contexts", *["width"] * (not counted)),
        "decoding": decoding and decoding.only(*_DECODING),
        "model": _model(settings.model),
    }
    return shown.model_copy(update=said)


def _versions(software: Mapping[str, str]) -> dict[str, str]:
    """Return the versions of the software of our own runs.

    A run's own names and versions could say anything.
    """
    versions = {name: software.get(name, "") for name in SOFTWARE}
    return {name: version for name, version in versions.items() if _VERSION.fullmatch(version)}


def _batching(settings: Settings) -> BatchingSettings:
    batching = settings.batching
    if settings.chosen_from.batching != "public":
        return batching.only("rule", "least_batches")
    counted = batching.records_per_batch is not None  # and the number follows from noisy counts
    return batching.only("rule", "least_batches", *_BATCHING, *["batches"] * (not counted))


def _model(model: ModelSettings) -> ModelSettings:
    """Return the model's public settings.

    Its name is shown unless it is a path; a name of the Hub has one slash.
    """
    shown = model.only("name", "digest", "dtype", "trained_on_records", "isolation")
    name = model.name or ""
    if name.startswith(_LOCAL) or "\\" in name or name.count("/") > 1 or PATH.search(name):
        return shown.model_copy(update={"name": WITHHELD})
    return shown


def _prompt(prompt: PromptSettings, origins: Origins) -> PromptSettings | None:
    """Return the prompt's public settings.

    A template of the user's own stays inside, and so does its digest, which would confirm a guess
    of it.

    Nobody checks that no private example stands in it. Its end mark can be read off the sequences
    that stop a text. The token ids of public prompts stay inside, too: they spell the template.
    """
    shown = ["examples_per_context"] * (origins.batching == "public")
    if origins.settings == "public":
        shown += ["template", "max_example_tokens", "end", "one_line"]
        shown += ["digest"] * (prompt.text is None)
    return prompt.only(*shown) if shown else None


class _Told(NamedTuple):
    """The public content of settings.

    Attributes:
        said: all that a public report says of them, with its fields.
        published: the texts among it.
        unpublished: texts that are not published, but act on every text.
        places: fields by all hexadecimal digits in them that could begin a digest.
    """

    said: list[tuple[str, Any]]
    published: list[tuple[str, str]]
    unpublished: list[tuple[str, str]]
    places: dict[str, str]

    @classmethod
    def of(cls, manifest: Manifest) -> _Told:
        public = public_settings(Settings.of(manifest))
        said = list(_values(public.model_dump(mode="json", exclude_none=True)))
        published = [(field, value) for field, value in said if isinstance(value, str)]
        examples = [text for each in manifest.prompt.public_examples.values() for text in each]
        unpublished = acting_texts(manifest.prompt.text, examples, manifest.decoding.banned_words)
        return cls(said, published, unpublished, _digits(said))

    @property
    def comparable(self) -> list[tuple[str, str]]:
        """The texts that are held against records: none that anybody could have written."""
        texts = (*self.published, *self.unpublished)
        return [(field, text) for field, text in texts if not is_anybodys(field, text)]


def _settings_problem(run: AuditedRun, told: _Told | None = None) -> Outcome | None:
    """Return what is wrong without a look at the assignment, or None."""
    manifest, told = run.manifest, told or _Told.of(run.manifest)
    for field, text in told.published:
        # Labels are released with the texts; one such as /home/garden is no place on a disk.
        if not field.startswith(LABELS) and PATH.search(text):
            return Outcome("fail", "path", {"field": field})
    for name, secret in _secrets(manifest):
        if secret[:TELLING] in told.places:
            return Outcome(
                "fail", "secret", {"field": told.places[secret[:TELLING]], "secret": name}
            )
    if (sizes := _sizes_in(run, told.said)) is not None:
        return Outcome("fail", "sizes", {"field": sizes})
    for each in _shared(run):
        if each.copied:
            found: dict[str, Value] = {"field": each.setting, "records": each.copied}
            return Outcome("fail", "copied", found, (_IN_EVERY_TEXT,), evidence=3)
    if len(told.comparable) * len(manifest.data.groups) > MOST_PAIRS:
        return Outcome("skip", "too-many-labels", {"most": MOST_PAIRS})
    return None


def _shared(run: AuditedRun) -> tuple[SharedText, ...]:
    return () if run.replay is None else run.replay.shared or ()


@RunCheck(id="disclosure.sensitive", gathers=(Placement,), foresee=_settings_problem)
def settings_are_fit_to_publish(run: AuditedRun) -> Outcome:
    """Compare public settings with keys, digests, batches' sizes, paths and records.

    So is what is not published, but acts on every text. Labels and single words are not held
    against records: a record may be such a word.
    """
    manifest, told = run.manifest, _Told.of(run.manifest)
    if (problem := _settings_problem(run, told)) is not None:
        return problem
    places, unpublished = told.places, dict(told.unpublished)
    records: dict[str, str] = {}  # field by the digest that a record of that very text would have
    if manifest.batching.key is not None:
        keyed = KeyedHash(bytes.fromhex(manifest.batching.key))
        records = {
            keyed.digest(label, text): field
            for field, text in told.comparable
            for label in manifest.data.groups
        }
    placed, searched = run[Placement], places or records
    with suppress(InputError):  # the placement says what is wrong with the file
        # Each line begins with its record's digest.
        for line, assigned in enumerate(run.reader.assignment_lines() if searched else (), start=1):
            if assigned[:TELLING] in places:
                return Outcome(
                    "fail", "digest", {"field": places[assigned[:TELLING]], "line": line}
                )
            if (digest := assigned.partition("\t")[0]) in records:
                field = records[digest]
                notes = (_IN_EVERY_TEXT,) if field in unpublished else ()
                return Outcome("fail", "record", {"field": field, "line": line}, notes)
    if placed.unreadable is not None:
        return Outcome("skip", "unreadable", {"problem": placed.unreadable})
    if not placed.records and run.claim.unit == "context":
        return inapplicable("partition.claim-without-assignment")
    if not placed.records and run.manifest.data.records:
        return Outcome("skip", "unassigned")
    unkeyed = (Finding(code="disclosure.unkeyed"),) * (manifest.batching.key is None)
    with_data = run.replay is not None and run.replay.shared is not None
    values: dict[str, Value] = {
        "texts": len(told.published) + len(told.unpublished),
        "records": placed.records,
    }
    return Outcome(
        "pass",
        "fit",
        values,
        (*unkeyed, *map(in_common, _shared(run))),
        evidence=3 if with_data else None,
    )


def _secrets(manifest: Manifest) -> Iterator[tuple[Finding, str]]:
    """Yield what no public report may hold, in hexadecimal, behind what it is."""
    if manifest.data.digest is not None:
        yield Finding(code="disclosure.data-digest"), manifest.data.digest
    if manifest.batching.key is not None:
        yield Finding(code="disclosure.key"), manifest.batching.key
        master = KeyedHash(bytes.fromhex(manifest.batching.key))
        for number in range(manifest.batching.rounds):
            yield (
                Finding(code="disclosure.round-key", values={"round": number}),
                master.of_round(number).key.hex(),
            )


def _sizes_in(run: AuditedRun, said: list[tuple[str, Any]]) -> str | None:
    """Return the first field with the sizes of a round's batches, or of some in a row, or None."""
    sizes = [run.headers[batch].contexts for batch in sorted(run.headers)]
    length = min(MOST_SIZES, run.manifest.batching.per_round)
    if length < FEWEST_SIZES:
        return None
    runs = {tuple(sizes[first : first + length]) for first in range(len(sizes) - length + 1)}
    for field, value in said:
        numbers = (
            value
            if isinstance(value, list | tuple)
            else [int(each) for each in _NUMBER.findall(str(value))]
        )
        if any(
            tuple(numbers[first : first + length]) in runs
            for first in range(len(numbers) - length + 1)
        ):
            return field
    return None


def in_common(shared: SharedText) -> Finding:
    """Return what a public setting has in common with records, without any of the text."""
    values: dict[str, Value] = {
        "field": shared.setting,
        "letters": shared.letters,
        "records": shared.records,
    }
    return Finding(code="disclosure.in-common", values=values)


def acts_on_every_text(check: CheckResult) -> bool:
    """Return whether a failure of disclosure.sensitive is about the texts themselves.

    Then it counts whatever is published beside them.
    """
    return _IN_EVERY_TEXT in check.notes


def _values(value: Any, field: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every text, number and list of numbers with its field, and names chosen by the run."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _values(inner, f"{field}.{name}" if field else name)
    elif isinstance(value, list | tuple):
        if value and all(type(each) is int for each in value):
            yield field, value
        for number, inner in enumerate(value):
            yield from _values(inner, f"{field}[{number}]")
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield field, value


def _spellings(value: Any) -> Iterator[str]:
    """Yield the hexadecimal digits that a reader could take a value for."""
    if isinstance(value, str):
        yield value.lower()
        yield from (
            _hexadecimal(int(digits))
            for digits in _DECIMAL.findall(value)
            if len(digits) <= MOST_DIGITS
        )
    elif isinstance(value, list | tuple):
        for width in (1, 2, 4, 8, 16):  # digits of a number: bytes, or more of them together
            if all(0 <= each < 16**width for each in value):
                yield "".join(f"{each:0{width}x}" for each in value)
    elif isinstance(value, float):
        yield from (value.hex().replace(".", ""), repr(value).replace(".", ""))
        if value.is_integer():
            yield _hexadecimal(int(value))
    else:
        yield from (_hexadecimal(value), str(abs(value)) if abs(value) < 10**MOST_DIGITS else "")


def _hexadecimal(number: int) -> str:
    """Return a number's digits behind the zeros that numbers drop: some digests begin with them."""
    return "0" * (TELLING - 1) + f"{abs(number):x}"


def _digits(said: list[tuple[str, Any]]) -> dict[str, str]:
    """Return fields by each run of hexadecimal digits long enough to be a digest's beginning."""
    return {
        run[start : start + TELLING]: field
        for field, value in said
        for spelt in _spellings(value)
        for run in _HEXADECIMAL.findall(spelt)
        for start in range(len(run) - TELLING + 1)
    }
