"""The labels of released texts beside those that were declared, and what their shares tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from dpaudit.reports.document import Block, Paragraph, Table
from dpaudit.reports.findings import is_public
from dpaudit.reports.text import LABEL_LENGTH, counted, one_line
from dpaudit.reports.wording import ABSENT, say, section_title
from dpaudit.results import AuditResult, Settings
from dpaudit.results.rounding import nearest

#: Labels that a table lists.
_MOST = 50


def blocks(result: AuditResult) -> Iterator[Block]:
    """Yield the section of a report; of readers outside, the released texts are not for it."""
    settings = result.run.settings
    if settings is None:
        return
    released: Counter[str | None] = Counter()
    for batch in result.batches:
        released[batch.label] += batch.texts
    yield from shares(settings, None if is_public(result) else released)


def shares(settings: Settings, released: Mapping[str | None, int] | None) -> Iterator[Block]:
    """Yield what the labels' shares tell, and a table of them; nothing for texts without labels.

    Args:
        settings: of the run.
        released: texts by label; None if they are not shown.
    """
    declared = () if settings.data is None or settings.data.labels is None else settings.data.labels
    others = [name for name in released or () if name is not None and name not in declared]
    names = [*declared, *others]
    if not names:
        return
    yield Paragraph(_meaning(settings, len(declared)))
    of_label = batches_of_label(settings)
    rows = [
        (
            one_line(name, LABEL_LENGTH) or "empty",
            _share(of_label and 1, len(declared)) if name in declared else ABSENT,
            f"{of_label:,}" if of_label and name in declared else ABSENT,
            *_released(released, name),
        )
        for name in names[:_MOST]
    ]
    header = ["Label", "Declared share", "Declared batches"]
    if released is not None:
        header += ["Released texts", "Released share"]
    yield Table.of(section_title("labels"), header, rows)
    if len(names) > _MOST:
        yield Paragraph(f"{counted(len(names) - _MOST, 'more label')} not listed here.", "quiet")
    if released is not None and of_label:
        yield Paragraph(say("labels-texts"), "quiet")


def _meaning(settings: Settings, labels: int) -> str:
    """Return what the labels' shares say about the private records.

    Numbers of batches that follow from noisy counts are in no public form.
    """
    if settings.chosen_from.batching != "public" or settings.batching.rule == "paper-slices":
        return say("labels-private")
    batches = batches_of_label(settings)
    if batches is not None and labels:
        return say("labels-lead", batches=batches, labels=labels)
    counted_batches = settings.batching.batches is None
    if counted_batches or settings.batching.records_per_batch is not None:
        return say("labels-counted")
    return say("labels-undeclared")


def batches_of_label(settings: Settings) -> int | None:
    """Return how many batches each label has, over all rounds; None if that is no public number."""
    batching = settings.batching
    generated = getattr(batching, "generate_per_label", None)
    public = settings.chosen_from.batching == "public" and batching.rule != "paper-slices"
    if not public or generated is None or batching.records_per_batch is not None:
        return None
    rounds = settings.stopped_after or getattr(batching, "rounds", None) or 1
    return int(generated) * int(rounds)


def _share(part: int | None, whole: int) -> str:
    return ABSENT if part is None or not whole else f"{nearest(100 * part / whole)}%"


def _released(released: Mapping[str | None, int] | None, name: str) -> tuple[str, ...]:
    if released is None:
        return ()
    count = released.get(name, 0)
    return f"{count:,}", _share(count, sum(released.values()))
