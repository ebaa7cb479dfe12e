"""README.md of a release: a dataset card in Hugging Face's format, from an audit's public form.

It states an epsilon of a claim that holds whatever the data are, and no other: an ex-post epsilon
is about one outcome.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import yaml

from dpaudit.mechanisms.claims import CLAIM_KINDS, ClaimKind
from dpaudit.reports import attacks, findings, labels, levels, publisher, quality, questions, worth
from dpaudit.reports.document import (
    Block,
    Commands,
    Document,
    Items,
    KeyFigure,
    KeyFigures,
    Paragraph,
    Section,
    Table,
)
from dpaudit.reports.text import counted, one_line
from dpaudit.reports.wording import say, section_title
from dpaudit.reports.writers import markdown
from dpaudit.results import AuditResult, Settings
from dpaudit.results.publication import NOT_STATED, About, Mark, SignedOff, Split
from dpaudit.results.quality import Quality
from dpaudit.results.release_layout import JSONL, PARQUET, REGISTRY, REPORT
from dpaudit.results.rounding import exactly

#: How the hub sorts data sets by their number of rows: the upper end of each class.
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
_LARGER = "1M<n<10M"
#: How many of the sentences on attacks a card has: a toss-up and a test's alarms.
_SENTENCES = 2
#: Plain text to YAML 1.1, and numbers to readers of YAML 1.2: these are quoted.
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|0o[0-7]+$")


class Released(NamedTuple):
    """The subject of a card.

    Attributes:
        result: the audit's, in its public form, and passed.
        kind: of the claim.
        about: what the publisher says.
        texts: how many each split has.
        labelled: whether texts have labels.
        quality: the run's evaluation, private as it is; None without one.
        mark: that each file of texts has.
        reviewers: who signed the run off.
        stamps: names of files with time stamps of its commitment and head.
        labels: how many texts each label has, over all splits.
    """

    result: AuditResult
    kind: ClaimKind
    about: About
    texts: Mapping[Split, int]
    labelled: bool
    quality: Quality | None
    mark: Mark
    reviewers: tuple[SignedOff, ...] = ()
    stamps: tuple[str, ...] = ()
    labels: Mapping[str | None, int] = MappingProxyType({})


def render_card(released: Released) -> str:
    """Return the whole card: YAML front matter, and Markdown."""
    front = as_yaml(_front_matter(released))
    return f"---\n{front}---\n\n{markdown.render(_document(released))}"


class _Dumper(yaml.SafeDumper):
    """Quotes what any version of YAML would read as a number."""


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+.0123456789"))


def as_yaml(values: Mapping[str, Any]) -> str:
    """Return a mapping as YAML, in its order, and no line folded."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1 << 16)


def states_epsilon(result: AuditResult, kind: ClaimKind) -> bool:
    """Return whether readers outside learn an epsilon: of a public claim, whatever the data are."""
    return CLAIM_KINDS[kind].beforehand and result.claim is not None


def _front_matter(released: Released) -> dict[str, Any]:
    about, rows = released.about, sum(released.texts.values())
    size = next((name for end, name in _SIZES if rows < end), _LARGER)
    files = [{"split": split, "path": f"{PARQUET}/{split}.parquet"} for split in released.texts]
    tasks = ["text-generation", *["text-classification"] * released.labelled]
    return {
        "pretty_name": about.name,
        **({} if about.languages is None else {"language": list(about.languages)}),
        **({} if about.license is None else {"license": about.license}),
        "task_categories": tasks,
        "size_categories": [size],
        "annotations_creators": ["machine-generated"],
        "tags": ["synthetic", "differential-privacy", "dpaudit"],
        "configs": [{"config_name": "default", "data_files": files}],
        "dpaudit": released.mark.model_dump(),
    }


def _document(released: Released) -> Document:
    """Return the card below its front matter."""
    result, about = released.result, released.about
    sections: dict[str, Iterable[Block]] = {
        "Uses": _paragraphs(about.intended_use),
        "Dataset Structure": [_structure(released), *_labels(released)],
        "Dataset Creation": _creation(result),
        "Personal and Sensitive Information": _sensitive(released),
        "Bias, Risks, and Limitations": _limits(released),
        "Audit": _audit(released),
    }
    return Document(
        about.name,
        [*_about(about), *(Section(title, list(blocks)) for title, blocks in sections.items())],
    )


def _about(about: About) -> Iterator[Block]:
    if about.description != NOT_STATED:
        yield from _paragraphs(about.description)
    if about.curators != (NOT_STATED,):
        yield Paragraph(f"Published by {', '.join(about.curators)}.")
    if about.contact:
        yield Paragraph(("Contact: ", *publisher.with_addresses(about.contact), "."))


def _paragraphs(text: str) -> list[Block]:
    """Return what somebody wrote, as plain paragraphs."""
    return [Paragraph(part) for part in text.split("\n") if part.strip()]


def _groups(result: AuditResult) -> str:
    """Return whose costs add up beyond what the promise, if there is one, is about."""
    claim = result.claim
    if claim is not None and claim.unit == "user":
        return "Users who belong together, such as a family,"
    return "Records that belong together, such as several of one person,"


def _structure(released: Released) -> Paragraph:
    columns = "`text` and `label`" if released.labelled else "`text`"
    splits = ", ".join(
        f"`{name}` {counted(count, 'text')}" for name, count in released.texts.items()
    )
    return Paragraph(
        say("card-structure", splits=splits, columns=columns, parquet=PARQUET, jsonl=JSONL)
    )


def _labels(released: Released) -> Iterator[Section]:
    settings = released.result.run.settings
    if settings is not None and (said := list(labels.shares(settings, released.labels))):
        yield Section("Labels", said)


def _creation(result: AuditResult) -> Iterator[Block]:
    yield Paragraph(say("card-made"))
    if any(check.id == "canaries.coins" and check.status == "pass" for check in result.checks):
        yield Paragraph(say("card-canaries"))
    yield settings_table(result)


def settings_table(result: AuditResult) -> Block:
    """Return those of the public settings that say what was made how, or that there are none."""
    settings = result.run.settings
    if settings is None:
        return Paragraph("The settings are left out, for they were not found fit to publish.")
    rows = [
        (name, f"`{one_line(value)}`") for name, value in _settings(settings) if value is not None
    ]
    return Table.of("Settings", ("Setting", "Value"), rows, [1])


def _settings(settings: Settings) -> Iterator[tuple[str, Any]]:
    """Yield those of the public settings that say what was made how."""
    yield "Language model", settings.model.name
    yield "Digest of the model", settings.model.digest
    for name, value in (settings.mechanism or {}).items():
        fields = {"kind": value}
        if isinstance(value, Mapping):
            fields = {} if name == "support" else value
        for field, stated in fields.items():
            yield (name if field == "kind" else field).replace("_", " ").capitalize(), stated
    if settings.decoding is not None:
        yield "Most tokens of a text", settings.decoding.max_tokens
        yield "Tokens of a batch", settings.decoding.tokens_per_batch
    yield "How records were grouped", settings.batching.rule
    yield "Clusters", settings.clustering.method
    yield "Made", settings.created[:10]
    yield (
        "Made with",
        ", ".join(f"{name} {version}" for name, version in settings.software.items()) or None,
    )


def _sensitive(released: Released) -> Iterator[Block]:
    """Yield what is promised and what not, and what the publisher says of personal data."""
    yield from promised(released.result, released.kind)
    yield from publisher.personal_data(released.about)


def promised(result: AuditResult, kind: ClaimKind) -> Iterator[Block]:
    """Yield what is promised, whom each level of it holds against, and what is not promised.

    Args:
        result: the audit's, in its public form, and passed.
        kind: of the claim.
    """
    yield promise(result, kind)
    if states_epsilon(result, kind) and (held := levels.holding(result)):
        yield KeyFigures([KeyFigure(level.name, level.figure, level.holds) for level in held])
        yield Paragraph(levels.not_covered(result.claim))
        if said := [*attacks.sentences(result)][:_SENTENCES]:
            yield Paragraph(" ".join([*said, say("attacks-explained")]))
    yield Paragraph("Nothing here promises:")
    not_promised = [say(f"not-promised-{about}") for about in ("model", "releases", "truth")]
    groups = say("not-promised-groups", groups=_groups(result))
    yield Items([say("not-promised-nothing"), groups, *not_promised])


def promise(result: AuditResult, kind: ClaimKind) -> Paragraph:
    """Return what is promised, in one sentence; or that no epsilon is stated, and why."""
    if not CLAIM_KINDS[kind].beforehand:
        return Paragraph(say("card-ex-post"))
    claim = result.claim
    if claim is None:
        return Paragraph(say("card-withheld"))
    figures = f"({exactly(claim.stated)}, {exactly(claim.delta)})-differentially private"
    if claim.rho is not None:
        figures = f"{exactly(claim.rho)}-zero-concentrated differentially private"
    return Paragraph(
        f"The making of these texts is {figures} ({levels.neighbours_of(claim)}).", "strong"
    )


def _limits(released: Released) -> Iterator[Block]:
    coupled = [
        str(caveat) for caveat in released.result.caveats if caveat.code == "of-model.coupled"
    ]
    yield Items(
        (say("card-as-sampled"), *coupled, *[say("card-test-split")] * ("test" in released.texts))
    )
    yield Section("Beside texts without any private record", list(_baseline(released)))
    yield Section(section_title("worth"), [Paragraph(worth.paid_words(released.result.paid))])


def _baseline(released: Released) -> Iterator[Block]:
    """Yield figures of texts without records beside these, if both were measured on public data."""
    found = released.quality
    if found is None or found.baseline is None:
        yield Paragraph(say("card-no-baseline"))
        return
    # Where it is not known whether private records are among the real texts, they may be.
    known = found.own == 0 and (found.held_out is None or found.held_out.own == 0)
    if not (released.about.public_reference and known):
        yield Paragraph(say("card-baseline-withheld"))
        return
    # Held-out likelihood is measured in the run's own batches, whatever it is of.
    shown = found.model_copy(update={"likelihood": None})
    header = quality.header(shown)
    yield Table.of(section_title("quality"), header, quality.rows(shown), [len(header) - 1])
    yield from map(Paragraph, quality.added(shown))
    yield Paragraph(say("card-real-texts"))


def _audit(released: Released) -> Iterator[Block]:
    result = released.result
    yield Paragraph(
        f"The run was audited with dpaudit {result.run.dpaudit} before these texts were "
        "released, and it passed. "
        f"{findings.tally(result)}. {findings.evidence_asked(result)}"
    )
    yield from held_to_policy(result)
    yield Items(assumptions(result, released.kind))
    for each in released.reviewers:
        yield Paragraph(
            f"{each.name} ({each.role}) read {', '.join(each.read)} and signed the run off on "
            f"{each.time[:10]}, accepting: {one_line(each.accepts)}"
        )
    yield Paragraph(say("card-stamped" if released.stamps else "card-unstamped"))
    if released.mark.revocations is not None:
        yield Paragraph(say("card-revocations", address=f"`{released.mark.revocations}`"))
    yield Paragraph(
        f"`{REPORT}/report.html` is the report. `{REGISTRY}` is an entry for the OpenDP registry "
        f"of deployments, as a draft. `{released.mark.attestation}` names every file here by its "
        "digest. To check signature and files with the publisher's public key:"
    )
    yield Commands(["dpaudit verify . --key FILE.pub"])
    yield Paragraph(questions.in_short(result, released.about))


def held_to_policy(result: AuditResult) -> Iterator[Paragraph]:
    """Yield which policy the run was held to; nothing without one."""
    if result.policy is not None:
        name = f"the policy `{result.policy.name}`" if result.policy.name else "a policy"
        yield Paragraph(f"It was held to {name} (SHA-256 `{result.policy.sha256}`).")


def assumptions(result: AuditResult, kind: ClaimKind) -> list[str]:
    """Return what a pass rests on besides, for readers of the texts.

    A card of an ex-post run states no figure, whatever was given; and how to have one is for the
    publisher.
    """
    shown = [caveat for caveat in result.caveats if caveat.code != "caveat.to-show-figure"]
    if not CLAIM_KINDS[kind].beforehand:
        shown = [caveat for caveat in shown if caveat.family != "empty-bound"]
    return list(map(str, shown))
