"""Is what would be released what was recorded?"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from dpaudit.checks.facts import Facts, input_problem
from dpaudit.checks.registry import Outcome, RunCheck
from dpaudit.results import Finding, Place, Value
from dpaudit.runs import InputError, Manifest, Sample, Stopping
from dpaudit.runs.layout import SAMPLES, TOKENIZER
from dpaudit.runs.text import KNOWN_TOKENIZERS


@RunCheck(id="release.text")
def texts_are_the_tokens(facts: Facts) -> Outcome:
    """Hold samples.jsonl, byte for byte, against the sampled tokens, and each text against its tokens decoded anew.

    The run's tokenizer decodes them, and must be one that is known or was given as the model's own; or a replay does,
    with the model's.
    """
    problems = list(facts.texts)
    # Extra keys, spacing and the order of lines would be released too, so nothing but the one form is accepted.
    recorded = [digest for batch_id in sorted(facts.sample_digests) for digest in facts.sample_digests[batch_id]]
    lines = differing = 0
    read = hashlib.sha256()
    if SAMPLES in facts.unreadable:
        return Outcome("fail", "unreadable", {"problem": facts.unreadable[SAMPLES]})
    try:
        for lines, line in enumerate(facts.reader.sample_lines(), 1):
            content = f"{line}\n".encode()
            read.update(content)
            if not differing and recorded[lines - 1 : lines] != [hashlib.sha256(content).digest()]:
                differing = lines
        altered = read.hexdigest() != facts.digest(SAMPLES)
    except InputError as error:
        return Outcome("fail", "unreadable", {"problem": input_problem(error, SAMPLES)})
    file: dict[str, Value] = {"file": SAMPLES}
    if altered and not differing:
        problems.append(Finding(code="release.altered-meanwhile", values=file))
    if differing and lines == len(recorded):
        problems.append(Finding(code="release.other-line", values=file | {"line": differing}))
    if len(facts.said) > 1:
        problems.append(Finding(code="release.some-without-text", values=file))
    if facts.replayed is not None and facts.replayed.texts is not None:
        problems.append(facts.replayed.texts)
    if problems:
        return Outcome("fail", "different", {"differences": len(problems), "first": problems[0]})
    if not lines:
        return Outcome("fail", "no-text")
    samples: dict[str, Value] = {"samples": lines}
    if facts.replayed is None and facts.reader.has(TOKENIZER):
        digest = facts.reader.decoding_digest()
        if digest is None or digest not in facts.tokenizers | KNOWN_TOKENIZERS.keys():
            if facts.tokenizers:
                return Outcome("fail", "other-tokenizer", {"file": TOKENIZER})
            replayable = facts.manifest.recorded is None and not facts.reruns
            remedy = Finding(code="release.name-or-replay" if replayable else "release.name-tokenizer")
            return Outcome("skip", "own-tokenizer", samples | {"file": TOKENIZER}, (remedy,))
    return Outcome("pass", "equal", samples)


@RunCheck(id="release.selection")
def batches_follow_a_public_rule(facts: Facts) -> Outcome:
    """Hold the number of a round's batches, and each one's label and cluster, against the declared numbers."""
    batching, clustered = facts.manifest.batching, facts.manifest.clustering.method != "none"
    values: dict[str, Value] = {"kind": "cluster" if clustered else "label"}
    each = batching.generate_per_cluster if clustered else batching.generate_per_label
    if each is None:
        return Outcome("skip", "undeclared", values)
    values["each"] = each
    if batching.rounds > 1:
        values["rounds"] = facts.manifest.rounds
    labels, places = batching.labels or (None,), facts.places if clustered else None
    if clustered and places is None:
        return Outcome("skip", "clusters-unread", values, (Finding(code="file.clusters-unread"),))
    per_round = each * len(labels) if places is None else places.per_round
    due = per_round * facts.manifest.rounds
    values["due"] = due
    if batching.per_round != per_round:
        return Outcome("fail", "other-number", values | {"per_round": batching.per_round})
    for batch, header in facts.headers.items():
        of_label = batch % per_round // each if places is None else places[batch].label if batch < due else 0
        if batch >= due or header.label != labels[of_label]:
            return Outcome("fail", "other-label", values | {"batch": Place(batch=batch)})
        if places is not None and header.cluster != places[batch].center:
            return Outcome("fail", "other-cluster", values | {"batch": Place(batch=batch)})
    if len(facts.headers) != due:
        return Outcome("skip", "unread", values | {"read": len(facts.headers)})
    return Outcome("pass", "by-rule", values | {"have": ("label", "cluster") if clustered else ("label",)})


@RunCheck(id="release.stopping")
def sequences_end_by_rule(facts: Facts) -> Outcome:
    """Hold each text's end, and each batch's, against the stop sequences and the numbers of tokens of the manifest.

    The stop sequences are held against the mark that is said to end a text, where there is one.
    """
    budget = facts.manifest.stopping.tokens_per_batch
    of_batch = (
        Finding(code="release.one-text")
        if budget is None
        else Finding(code="release.token-budget", values={"tokens": budget})
    )
    values: dict[str, Value] = {"batches": len(facts.headers), "of_batch": of_batch}
    if _lacks_mark(facts):
        return Outcome("fail", "mark-missing", values)
    if facts.stops:
        return Outcome("fail", "other-ends", values | {"problems": len(facts.stops), "first": facts.stops[0]})
    if not facts.headers:
        return Outcome("skip", "unread", values)
    return Outcome("pass", "by-rule", values | {"texts": sum(map(len, facts.sample_digests.values()))})


def _lacks_mark(facts: Facts) -> bool:
    """Whether no stop sequence is the end mark of the run's prompt; False where nobody can tell."""
    mark, decode = facts.manifest.prompt.end, facts.reader.decoder(special=True)
    if mark is None or decode is None:
        return False
    # Blanks at the edge of a mark may belong to a token before it.
    bare = "".join(mark.split())
    written = (decode(sequence) or "" for sequence in facts.manifest.stopping.sequences)
    return not any(bare in "".join(text.split()) if bare else mark in text for text in written)


def text_place(sample: Sample) -> Place:
    """Return which text a sample is."""
    return Place(batch=sample.id, text=sample.number)


def stop_problems(samples: Sequence[Sample], stopping: Stopping) -> Iterator[Finding]:
    """Yield what is wrong with where a batch and its texts end, or with the reasons that are given."""
    batch, spent, budget = Place(batch=samples[0].id), 0, stopping.tokens_per_batch
    for sample in samples:
        spent += len(sample.tokens)
        if problem := _stop_problem(sample, stopping, cut=spent == budget):
            yield problem
    if budget is None and len(samples) > 1:
        yield Finding(code="release.several-texts", values={"batch": batch, "texts": len(samples)})
    if budget is not None and spent != budget:
        yield Finding(code="release.other-length", values={"batch": batch, "tokens": spent, "due": budget})


def _stop_problem(sample: Sample, stopping: Stopping, *, cut: bool) -> Finding | None:
    """Return what is wrong with where a text ends. `cut`: its batch's number of tokens ends it there at the latest."""
    length, most = len(sample.tokens), stopping.max_tokens
    ends = [
        position + len(sequence)
        for sequence in filter(None, stopping.sequences)
        for position in range(length - len(sequence) + 1)
        if sample.tokens[position : position + len(sequence)] == sequence
    ]
    values: dict[str, Value] = {"text": text_place(sample)}
    if any(end < length for end in ends):
        return Finding(code="release.past-end", values=values)
    values["tokens"] = length
    if length > most:
        return Finding(code="release.too-long", values=values | {"most": most})
    ended = "end-token" if ends else "max-tokens" if length == most else "budget" if cut else "none"
    if sample.stop != ended:
        stated, found = (Finding(code=f"release.ends-{reason}") for reason in (sample.stop, ended))
        return Finding(code="release.other-end", values=values | {"stated": stated, "found": found})
    return None


def text_problems(sample: Sample, decoded: str | None, manifest: Manifest) -> Iterator[Finding]:
    """Yield what is wrong with a text and with its label, which must be a public choice.

    `decoded` is the text's tokens decoded anew; None when no tokenizer is recorded.
    """
    text: dict[str, Value] = {"text": text_place(sample)}
    if sample.text is not None:
        if decoded is None:
            yield Finding(code="release.undecodable", values=text | {"file": TOKENIZER})
        elif sample.text != decoded:
            yield Finding(code="release.not-its-tokens", values=text | {"file": SAMPLES})
    if sample.label is not None and sample.label not in manifest.batching.labels:
        yield Finding(code="release.other-label", values=text | {"file": SAMPLES})
