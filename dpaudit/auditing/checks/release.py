"""Is what would be released what was recorded?"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from typing_extensions import override

from dpaudit.accounting.laws import LEVEL
from dpaudit.auditing.checks.evidence import (
    AuditedRun,
    BatchEvidence,
    ByBatch,
    Evidence,
    input_problem,
)
from dpaudit.auditing.checks.registry import Outcome, RunCheck, inapplicable, unusable
from dpaudit.auditing.checks.steps import BatchView, StepsView
from dpaudit.results import Finding, Place, Quantity, Value
from dpaudit.runs import Decoding, InputError, Manifest, Sample, as_released, without_stop
from dpaudit.runs.layout import SAMPLES, TOKENIZER
from dpaudit.runs.text import KNOWN_TOKENIZERS
from dpaudit.runs.vacuity import Vacuity, vacuity

#: The level of evidence that rests on the data.
_WITH_DATA = 3


class Texts(BatchEvidence, Evidence):
    """Texts, as steps imply them: of one batch, or of a run.

    Attributes:
        digests: SHA-256 of the batches' lines of samples.jsonl, one behind another.
        numbers: how many lines each batch has.
        problems: what is wrong with texts.
        said: whether texts are recorded as such: all are, or none, or some.
        stops: what is wrong with the ends of texts and of batches.
        vacuous: how many texts say nothing, by how they do.
    """

    partial = True

    def __init__(self) -> None:
        self.digests = bytearray()
        self.numbers: ByBatch[int] = ByBatch(array("q"))
        self.problems: list[Finding] = []
        self.said: set[bool] = set()
        self.stops: list[Finding] = []
        self.vacuous = Counter[Vacuity]()

    @override
    @classmethod
    def open(cls, batch: BatchView) -> Texts:
        found, decoding, decode = cls(), batch.manifest.decoding, batch.run.decode
        found.numbers.add(batch.header.id, len(batch.samples))
        for sample in batch.samples:
            found.digests += hashlib.sha256(sample.line().encode()).digest()
            tokens = without_stop(sample.tokens, decoding.sequences)
            said = vacuity(sample.text, tokens, batch.run.public_text)
            found.vacuous.update([said] if said else ())
            decoded = decode(tokens) if decode and sample.text is not None else None
            found.problems += text_problems(sample, decoded, batch.manifest)
            found.said.add(sample.text is not None)
        found.stops += stop_problems(batch.samples, decoding)
        return found

    @override
    def look(self, view: StepsView) -> None:
        """Look at nothing: texts are known when the batch is opened."""

    @override
    def merge(self, batch: int, found: Texts) -> None:
        self.digests += found.digests
        for each, number in found.numbers.items():
            self.numbers.add(each, number)
        self.problems += found.problems
        self.said |= found.said
        self.stops += found.stops
        self.vacuous += found.vacuous

    @property
    def number(self) -> int:
        """The number of texts."""
        return sum(self.numbers.values())

    def number_in(self, batch: int) -> int:
        """Return the number of texts in a batch; 0 of one that was not read."""
        return self.numbers.get(batch, 0)


@RunCheck(id="release.text", gathers=(Texts,))
def texts_are_the_tokens(run: AuditedRun) -> Outcome:
    """Compare samples.jsonl with the sampled tokens, and texts with their tokens decoded anew.

    The comparison with tokens is byte for byte.

    The run's tokenizer decodes them, and must be one that is known or was given as the model's own;
    or a replay does, with the model's.
    """
    # Extra keys, spacing and the order of lines would be released too, so nothing but the one form
    # is accepted.
    texts, lines, differing = run[Texts], 0, 0
    problems = list(texts.problems)
    read, size = hashlib.sha256(), hashlib.sha256().digest_size
    if SAMPLES in run.unreadable:
        return Outcome("fail", "unreadable", {"problem": run.unreadable[SAMPLES]})
    try:
        for lines, line in enumerate(run.reader.sample_lines(), 1):
            content = f"{line}\n".encode()
            read.update(content)
            due = texts.digests[size * (lines - 1) : size * lines]
            if not differing and due != hashlib.sha256(content).digest():
                differing = lines
        altered = read.hexdigest() != run.digest(SAMPLES)
    except InputError as error:
        return Outcome("fail", "unreadable", {"problem": input_problem(error, SAMPLES)})
    file: dict[str, Value] = {"file": SAMPLES}
    if altered and not differing:
        problems.append(Finding(code="release.altered-meanwhile", values=file))
    if differing and lines == texts.number:
        problems.append(Finding(code="release.other-line", values=file | {"line": differing}))
    if len(texts.said) > 1:
        problems.append(Finding(code="release.some-without-text", values=file))
    if run.replayed is not None and run.replayed.texts is not None:
        problems.append(run.replayed.texts)
    if problems:
        return Outcome("fail", "different", {"differences": len(problems), "first": problems[0]})
    if not lines:
        return Outcome("fail", "no-text")
    samples: dict[str, Value] = {"samples": lines}
    if run.replayed is None and run.reader.has(TOKENIZER):
        digest = run.reader.decoding_digest()
        if digest is None or digest not in run.tokenizers | KNOWN_TOKENIZERS.keys():
            if run.tokenizers:
                return Outcome("fail", "other-tokenizer", {"file": TOKENIZER})
            replayable = run.manifest.recorded is None and not run.reruns
            remedy = Finding(
                code="release.name-or-replay" if replayable else "release.name-tokenizer"
            )
            return Outcome("skip", "own-tokenizer", samples | {"file": TOKENIZER}, (remedy,))
    return Outcome("pass", "equal", samples)


@RunCheck(id="release.selection")
def batches_follow_a_public_rule(run: AuditedRun) -> Outcome:
    """Compare a round's number of batches, and their labels and clusters, with those declared."""
    batching, clustered = run.manifest.batching, run.manifest.clustering.method != "none"
    values: dict[str, Value] = {"kind": "cluster" if clustered else "label"}
    each = batching.generate_per_cluster if clustered else batching.generate_per_label
    if each is None:
        return Outcome("skip", "undeclared", values)
    values["each"] = each
    if batching.rounds > 1:
        values["rounds"] = run.manifest.rounds
    labels = run.manifest.data.labels or (None,)
    places = run.places if clustered else None
    if clustered and places is None:
        return Outcome("skip", "clusters-unread", values, (Finding(code="file.clusters-unread"),))
    per_round = each * len(labels) if places is None else places.per_round
    due = per_round * run.manifest.rounds
    values["due"] = due
    if batching.per_round != per_round:
        return Outcome("fail", "other-number", values | {"per_round": batching.per_round})
    for batch, header in run.headers.items():
        of_label = (
            batch % per_round // each
            if places is None
            else places[batch].label
            if batch < due
            else 0
        )
        if batch >= due or header.label != labels[of_label]:
            return Outcome("fail", "other-label", values | {"batch": Place(batch=batch)})
        if places is not None and header.cluster != places[batch].center:
            return Outcome("fail", "other-cluster", values | {"batch": Place(batch=batch)})
    if len(run.headers) != due:
        return Outcome("skip", "unread", values | {"read": len(run.headers)})
    return Outcome(
        "pass", "by-rule", values | {"have": ("label", "cluster") if clustered else ("label",)}
    )


@RunCheck(id="release.stopping", gathers=(Texts,))
def sequences_end_by_rule(run: AuditedRun) -> Outcome:
    """Compare the ends of texts and batches with the manifest's stop sequences and token numbers.

    The stop sequences are held against the mark that is said to end a text, where there is one.
    """
    budget = run.manifest.decoding.tokens_per_batch
    of_batch = (
        Finding(code="release.one-text")
        if budget is None
        else Finding(code="release.token-budget", values={"tokens": budget})
    )
    values: dict[str, Value] = {"batches": len(run.headers), "of_batch": of_batch}
    if _lacks_mark(run):
        return Outcome("fail", "mark-missing", values)
    if run[Texts].stops:
        return Outcome(
            "fail",
            "other-ends",
            values | {"problems": len(run[Texts].stops), "first": run[Texts].stops[0]},
        )
    if not run.headers:
        return Outcome("skip", "unread", values)
    return Outcome("pass", "by-rule", values | {"texts": run[Texts].number})


@RunCheck(id="release.disclosure")
def texts_refute_no_claim(run: AuditedRun) -> Outcome:
    """Hold the records that texts name against the chance that the claim leaves.

    The trial itself is made where the data are at hand (`dpaudit.disclosing`). A text that depends
    on records breaks no promise; one that names more of its own than its epsilon allows does.
    """
    batching, found = run.manifest.batching, run.disclosed
    if batching.rule == "paper-slices" or batching.key is None:
        return inapplicable("release.no-coins")
    if not run.kind.beforehand:
        return inapplicable("release.not-beforehand")
    if found is None:
        # From the level on that needs the data anyway.
        return Outcome("skip", "no-data", evidence=_WITH_DATA)
    if isinstance(found, InputError):
        from dpaudit.results.disclosed_texts import NO_POWER  # loaded: a trial raised the error

        if found.code == NO_POWER:
            return inapplicable("release.too-few-records")
        return replace(unusable(found), evidence=_WITH_DATA)
    tested = found.epsilon
    if tested.claimed is None or tested.p_claim is None:
        return inapplicable("release.other-neighbours")
    if not tested.claim_refutable:
        return inapplicable("release.beyond-power", {"claimed": _nats(tested.claimed)})
    values: dict[str, Value] = {
        "level": Finding(code=f"release.of-{tested.level}"),
        "claimed": _nats(tested.claimed),
        "k": tested.k,
        "measure": found.measure,
        "guesses": tested.guesses,
        "right": tested.right,
        "chance": tested.p_claim,
        "at": LEVEL,
    }
    if tested.claim_refuted:
        return Outcome("fail", "refuted", values | {"refuted": _nats(tested.refuted)})
    return Outcome("pass", "not-refuted", values | {"least": found.test.least_records})


def _nats(value: float) -> Quantity:
    return Quantity(value=value, unit="nats")


def _lacks_mark(run: AuditedRun) -> bool:
    """Return whether no stop sequence is the prompt's end mark; False if nobody can tell."""
    mark, decode = run.manifest.prompt.end, run.reader.decoder(special=True)
    if mark is None or decode is None:
        return False
    # Blanks at the edge of a mark may belong to a token before it.
    bare = "".join(mark.split())
    written = (decode(sequence) or "" for sequence in run.manifest.decoding.sequences)
    return not any(bare in "".join(text.split()) if bare else mark in text for text in written)


def text_place(sample: Sample) -> Place:
    """Return which text a sample is."""
    return Place(batch=sample.id, text=sample.number)


def stop_problems(samples: Sequence[Sample], decoding: Decoding) -> Iterator[Finding]:
    """Yield what is wrong with the ends of a batch and its texts, or with the reasons given."""
    batch, spent, budget = Place(batch=samples[0].id), 0, decoding.tokens_per_batch
    for sample in samples:
        spent += len(sample.tokens)
        if problem := _stop_problem(sample, decoding, cut=spent == budget):
            yield problem
    if budget is None and len(samples) > 1:
        yield Finding(code="release.several-texts", values={"batch": batch, "texts": len(samples)})
    if budget is not None and spent != budget:
        yield Finding(
            code="release.other-length", values={"batch": batch, "tokens": spent, "due": budget}
        )


def _stop_problem(sample: Sample, decoding: Decoding, *, cut: bool) -> Finding | None:
    """Return the problem with a text's end, or None.

    With `cut`, its batch's number of tokens ends it there at the latest.
    """
    length, most = len(sample.tokens), decoding.max_tokens
    ends = [
        position + len(sequence)
        for sequence in filter(None, decoding.sequences)
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
        elif sample.text != as_released(decoded):
            yield Finding(code="release.not-its-tokens", values=text | {"file": SAMPLES})
    if sample.label is not None and sample.label not in (manifest.data.labels or ()):
        yield Finding(code="release.other-label", values=text | {"file": SAMPLES})
