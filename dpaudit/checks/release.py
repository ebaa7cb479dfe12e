"""Is what would be released what was recorded?"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from dpaudit.catalogue import sentence
from dpaudit.checks.facts import Facts
from dpaudit.checks.registry import UNREAD, RunCheck, Worded
from dpaudit.runs import InputError, Manifest, Sample, Stopping
from dpaudit.runs.layout import SAMPLES, TOKENIZER
from dpaudit.runs.text import KNOWN_TOKENIZERS

_UNKNOWN_TOKENIZER = (
    "Nothing shows that it is the model's own, and not one whose tokens spell records. Give the model's with "
    "--tokenizer FILE"
)


@RunCheck(id="release.text")
def texts_are_the_tokens(facts: Facts) -> Worded:
    """samples.jsonl, byte for byte, against the sampled tokens, and each text against its tokens decoded anew.

    The run's tokenizer decodes them, and must be one that is known or was given as the model's own; or a replay does,
    with the model's.
    """
    expected = "a line per text, in order, as sampled; text = its tokens decoded, less the stop sequence"
    problems = list(facts.texts)
    # Extra keys, spacing and the order of lines would be released too, so nothing but the one form is accepted.
    recorded = [digest for batch_id in sorted(facts.sample_digests) for digest in facts.sample_digests[batch_id]]
    lines = differing = 0
    read = hashlib.sha256()
    try:
        if SAMPLES in facts.unreadable:
            raise facts.unreadable[SAMPLES]
        for lines, line in enumerate(facts.reader.sample_lines(), 1):
            content = f"{line}\n".encode()
            read.update(content)
            if not differing and recorded[lines - 1 : lines] != [hashlib.sha256(content).digest()]:
                differing = lines
        altered = read.hexdigest() != facts.digest(SAMPLES)
    except InputError as error:
        return Worded("fail", "samples.jsonl cannot be read", expected, str(error))
    if altered and not differing:
        problems.append("samples.jsonl was altered while it was audited")
    if differing and lines == len(recorded):
        problems.append(f"line {differing} of samples.jsonl is not the one that the record implies")
    if len(facts.said) > 1:
        problems.append("some lines have a text and others tokens alone: whoever releases texts leaves those out")
    if facts.replayed is not None and facts.replayed.texts:
        problems.append(sentence(facts.replayed.texts))
    if problems:
        return Worded("fail", f"{len(problems)} difference{'s' * (len(problems) > 1)}; first: {problems[0]}", expected)
    if not lines:
        return Worded("fail", "no released text", expected, "Finish the run before it is audited.")
    if facts.replayed is None and facts.reader.has(TOKENIZER):
        digest = facts.reader.decoding_digest()
        if digest is None or digest not in facts.tokenizers | KNOWN_TOKENIZERS.keys():
            if facts.tokenizers:
                return Worded("fail", f"{TOKENIZER} decodes otherwise than the tokenizer that was given", expected)
            measured = f"{lines} samples equal, by the run's own {TOKENIZER}"
            replayable = facts.manifest.recorded is None and not facts.reruns
            remedy = f"{_UNKNOWN_TOKENIZER}{', or replay the run with --data' if replayable else ''}."
            return Worded("skip", measured, expected, remedy)
    return Worded("pass", f"{lines} samples equal", expected)


@RunCheck(id="release.selection")
def batches_follow_a_public_rule(facts: Facts) -> Worded:
    """The number of a round's batches, and each one's label and cluster, against the declared number for each."""
    batching, clustered = facts.manifest.batching, facts.manifest.clustering.method != "none"
    kind = "cluster" if clustered else "label"
    each = batching.generate_per_cluster if clustered else batching.generate_per_label
    if each is None:
        expected = f"a number of batches per {kind} that was fixed without the data"
        remedy = f"Declare batching.generate_per_{kind}, and generate that many of every {kind}."
        return Worded("skip", "no rule is declared", expected, remedy)
    several = f" in each of {facts.manifest.rounds} rounds" if batching.rounds > 1 else ""
    expected = f"the first {each} of each {kind}'s batches{several}"
    labels, places = batching.labels or (None,), facts.places if clustered else None
    if clustered and places is None:
        return Worded("skip", "nothing", expected, "The file clusters cannot be read: restore it.")
    per_round = each * len(labels) if places is None else places.per_round
    due = per_round * facts.manifest.rounds
    expected += f": {due} in all"
    if batching.per_round != per_round:
        return Worded("fail", f"{batching.per_round} batches{' a round' if several else ''}", expected)
    for batch, header in facts.headers.items():
        of_label = batch % per_round // each if places is None else places[batch].label if batch < due else 0
        if batch >= due or header.label != labels[of_label]:
            return Worded("fail", f"batch {batch} has another label than its number implies", expected)
        if places is not None and header.cluster != places[batch].center:
            return Worded("fail", f"batch {batch} has another cluster than its number implies", expected)
    if len(facts.headers) != due:
        return Worded("skip", f"{len(facts.headers)} batches", expected, UNREAD)
    what = "label and cluster" if clustered else "label"
    return Worded("pass", f"{due} batches, each with its {what}", expected)


@RunCheck(id="release.stopping")
def sequences_end_by_rule(facts: Facts) -> Worded:
    """Each text's end, and each batch's, against the stop sequences and the numbers of tokens of the manifest.

    The stop sequences against the mark that is said to end a text, where there is one.
    """
    budget = facts.manifest.stopping.tokens_per_batch
    of_batch = "one text a batch" if budget is None else f"texts until a batch has {budget} tokens, which cut the last"
    expected = f"an end token in a text's own tokens, at its end only, or the public maximum length; {of_batch}"
    if problem := _mark_problem(facts):
        return Worded("fail", problem, expected)
    if facts.stops:
        count = f"{len(facts.stops)} problem{'s' * (len(facts.stops) > 1)}"
        return Worded("fail", f"{count}; first: {facts.stops[0]}", expected)
    if not facts.headers:
        return Worded("skip", "nothing", expected, "No batch could be read.")
    texts = sum(map(len, facts.sample_digests.values()))
    return Worded("pass", f"{texts} texts of {len(facts.headers)} batches end so", expected)


def _mark_problem(facts: Facts) -> str:
    """Whether no stop sequence is the end mark of the run's prompt; empty where one is, or where nobody can tell."""
    mark, decode = facts.manifest.prompt.end, facts.reader.decoder(special=True)
    if mark is None or decode is None:
        return ""
    # Blanks at the edge of a mark may belong to a token before it.
    bare = "".join(mark.split())
    written = (decode(sequence) or "" for sequence in facts.manifest.stopping.sequences)
    if any(bare in "".join(text.split()) if bare else mark in text for text in written):
        return ""
    return "none of stopping.sequences is the mark prompt.end"


def stop_problems(samples: Sequence[Sample], stopping: Stopping) -> Iterator[str]:
    """What is wrong with where a batch and its texts end, or with the reasons that are given."""
    batch, spent, budget = samples[0].id, 0, stopping.tokens_per_batch
    for sample in samples:
        spent += len(sample.tokens)
        if problem := _stop_problem(sample, stopping, cut=spent == budget):
            yield f"{sample.place}: {problem}"
    if budget is None and len(samples) > 1:
        yield f"batch {batch}: it has {len(samples)} texts, and batches of this run have one"
    if budget is not None and spent != budget:
        yield f"batch {batch}: it ends after {spent} tokens, and each batch is to have {budget}"


def _stop_problem(sample: Sample, stopping: Stopping, *, cut: bool) -> str | None:
    """What is wrong with where a text ends. `cut`: whether its batch's number of tokens ends it there at the latest."""
    length, most = len(sample.tokens), stopping.max_tokens
    ends = [
        position + len(sequence)
        for sequence in filter(None, stopping.sequences)
        for position in range(length - len(sequence) + 1)
        if sample.tokens[position : position + len(sequence)] == sequence
    ]
    if any(end < length for end in ends):
        return "it goes on past an end token"
    if length > most:
        return f"it has {length} tokens, and the public maximum is {most}"
    ended = "end-token" if ends else "max-tokens" if length == most else "budget" if cut else "none"
    if sample.stop != ended:
        after = f"{length} token{'s' * (length > 1)}"
        return f"it is said to end {_ENDS[sample.stop]}, and ends after {after} {_ENDS[ended]}"
    return None


_ENDS = {
    "end-token": "at an end token",
    "max-tokens": "at the public maximum length",
    "budget": "where its batch's tokens are spent",
    "none": "for no declared reason",
}


def text_problems(sample: Sample, decoded: str | None, manifest: Manifest) -> Iterator[str]:
    """What is wrong with a text and with its label, which must be a public choice.

    `decoded` is the text's tokens decoded anew; None when no tokenizer is recorded.
    """
    if sample.text is not None:
        if decoded is None:
            yield f"{sample.place}: its tokens cannot be decoded with tokenizer.json, if there is one"
        elif sample.text != decoded:
            yield f"{sample.place}: the text is not its tokens decoded"
    if sample.label is not None and sample.label not in manifest.batching.labels:
        yield f"{sample.place}: its label is not among the public labels of run.json"
