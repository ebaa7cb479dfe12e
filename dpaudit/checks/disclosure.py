"""Would a report for readers outside hold something private? What it says of a run's settings, and whether it may."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from dpaudit.checks.facts import Facts
from dpaudit.checks.registry import Outcome, RunCheck, not_applicable
from dpaudit.runs import InputError, KeyedHash, Manifest

#: Leading hexadecimal digits that give a digest away: long enough for a million records to have none by chance.
TELLING = 12
#: The most pairs of a label and a text that are tried as records: a second or two of hashing.
MOST_PAIRS = 1 << 20
WITHHELD = "withheld: a path on the machine of the run"

#: Fields that are not published, but from which every text follows.
UNPUBLISHED = ("prompt.text", "prompt.public_examples", "decoding.banned_words")
_IN_EVERY_TEXT = "It acts on every text, and no epsilon here includes that. Do not release these texts."

_BATCHING = (
    "batches",
    "batches_per_label",
    "generate_per_label",
    "generate_per_cluster",
    "slots",
    "cells",
    "examples_per_context",
)
_RULES = ("least_tokens", "no_line_breaks", "no_repeated_ngram")
_PROMPT = ("template", "digest", "max_example_tokens", "end", "one_line")
_HEXADECIMAL = re.compile(f"[0-9a-f]{{{TELLING},}}")
_PATH = re.compile(r"""(?:^|[\s"'=(,;:])(?:/[\w.~-]+/|~/|[A-Za-z]:[\\/]|\\\\\w)|file:/""")
_LOCAL = ("/", "./", "../", "~", "\\")


def public_settings(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What a public report says of run.json, with or without its key and its claim.

    Only named fields, and numbers only if they are declared public.
    """
    privacy, batching, origins = manifest["privacy"], manifest["batching"], manifest["origins"]
    said = {name: manifest[name] for name in ("format_version", "created", "origins", "software")}
    said["privacy"] = {name: privacy[name] for name in ("unit", "relation", "records_per_user_from")}
    if privacy["records_per_user_from"] == "declared":
        said["privacy"]["records_per_user"] = privacy["records_per_user"]
    said["batching"] = {name: batching[name] for name in ("rule", "labels")}
    if origins["batching"] == "public":
        said["batching"] |= {name: batching[name] for name in _BATCHING if name in batching}
        if manifest["clustering"].get("records_per_batch") is not None:
            del said["batching"]["batches"]  # follows from noisy counts
    said["clustering"] = {"method": manifest["clustering"]["method"]}
    said["sampling"] = {"generator": manifest["sampling"]["generator"]}
    if origins["settings"] == "public":
        said |= {name: manifest[name] for name in ("mechanism", "stopping", "record")}
        # A list of banned words is the user's own, and the public prompts' tokens spell the template.
        said["decoding"] = {name: manifest["decoding"][name] for name in _RULES}
        said["prompt"] = _prompt(manifest["prompt"])
        said["model"] = {name: manifest["model"][name] for name in ("name", "digest", "dtype")}
        if said["model"]["name"].startswith(_LOCAL) or _PATH.search(said["model"]["name"]):
            said["model"]["name"] = WITHHELD
    return said


def _prompt(prompt: Mapping[str, Any]) -> dict[str, Any]:
    """A template of the user's own stays inside, and so does its digest, which would confirm a guess of it.

    Nobody checks that no private example stands in it. Its end mark can be read off the sequences that stop a text.
    """
    own = prompt.get("text") is not None
    return {name: value for name, value in prompt.items() if name in _PROMPT and not (own and name == "digest")}


@RunCheck(
    id="disclosure.sensitive",
    title="A public report would hold no record, digest of a record, key or path",
    fails="A public report would hold a record, a digest of one, the key or a path",
    evidence=2,
    why="A public report is read by anyone. A record, key or path in a setting would be published with it.",
    remedy="Public reports of this run leave its settings out. Change that text before the next run.",
    reference="docs/releasing.md",
)
def settings_are_fit_to_publish(facts: Facts) -> Outcome:
    """Each text of a public report's settings against the key, the data's digest, the records' digests, and paths.

    Under the key it is also held against the records themselves, and so is what is not published, but acts on every
    text: each line of a template of the user's own, the public examples and the banned words.
    """
    expected = "settings without a path, the key, a digest of the data or of a record, and a record's text"
    manifest = facts.manifest
    texts = list(_texts(public_settings(manifest.model_dump(mode="json"))))
    places = _digits(texts)
    for field, text in texts:
        # Labels are released with the texts; one such as /r/privacy is no place on a disk.
        if not field.startswith("batching.labels") and _PATH.search(text):
            return Outcome("fail", f"{field} holds a path", expected)
    for name, secret in (("the key", manifest.batching.key), ("the data's digest", manifest.data.digest)):
        if secret is not None and secret[:TELLING] in places:
            return Outcome("fail", f"{places[secret[:TELLING]]} holds {name}", expected)
    texts += _unpublished(manifest)
    if len(texts) * max(1, len(manifest.batching.labels)) > MOST_PAIRS:
        return Outcome("skip", "not tried", expected, f"Too many labels: over {MOST_PAIRS:,} pairs with a text.")
    records: dict[str, str] = {}  # field by the digest that a record of that very text would have
    if manifest.batching.key is not None:
        keyed, labels = KeyedHash(bytes.fromhex(manifest.batching.key)), manifest.batching.labels or ("",)
        records = {keyed.digest(label, text): field for field, text in texts for label in labels}
    count = 0
    try:
        for count, assigned in enumerate(facts.reader.assignment(), start=1):
            if assigned.digest[:TELLING] in places:
                said = f"{places[assigned.digest[:TELLING]]} holds the digest of the record in line {count}"
                return Outcome("fail", f"{said} of the assignment", expected)
            if assigned.digest in records:
                said = f"{records[assigned.digest]} is the record in line {count} of the assignment, word for word"
                return Outcome("fail", said, expected, _IN_EVERY_TEXT if said.startswith(UNPUBLISHED) else "")
    except InputError as error:
        return Outcome("skip", "not read", expected, str(error))
    if not count and facts.claim.unit == "context":
        return not_applicable(expected, "The claim is per context, and no assignment is recorded.")
    if not count and facts.manifest.data.records:
        return Outcome("skip", "nothing", expected, "The run records no assignment to compare with.")
    unkeyed = "" if records else "Without batching.key no text could be held against the records."
    return Outcome("pass", f"{len(texts)} texts, {count} records", expected, unkeyed)


def _unpublished(manifest: Manifest) -> list[tuple[str, str]]:
    """Texts that every prompt or text follows from, as they are and as white space hides what they say.

    A template is taken as a whole and by its lines.
    """
    template, examples = manifest.prompt.text or "", manifest.prompt.public_examples.values()
    parts = {
        "prompt.text": [template, *template.split("\n")],
        "prompt.public_examples": [text for each in examples for text in each],
        "decoding.banned_words": manifest.decoding.banned_words,
    }
    forms = {
        (field, form)
        for field, texts in parts.items()
        for text in texts
        for form in (text, text.strip(), " ".join(text.split()))
    }
    return sorted((field, form) for field, form in forms if form)


def _texts(value: Any, field: str = "") -> Iterator[tuple[str, str]]:
    """Every text with the name of its field. Keys that the run chose are texts too, and name no field."""
    if isinstance(value, str):
        yield field, value
    elif field == "software":
        for number, entry in enumerate(value.items(), start=1):
            yield from ((f"entry {number} of software", text) for text in entry)
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _texts(inner, f"{field}.{name}" if field else name)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _texts(inner, f"{field}[{number}]")


def _digits(texts: list[tuple[str, str]]) -> dict[str, str]:
    """Field by every run of so many hexadecimal digits that it could be the beginning of a digest."""
    return {
        run[start : start + TELLING]: field
        for field, text in texts
        for run in _HEXADECIMAL.findall(text.lower())
        for start in range(len(run) - TELLING + 1)
    }
