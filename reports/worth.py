"""What the records added to a run's texts: for readers inside, and the figure that is paid for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dpaudit.reports.text import counted
from dpaudit.reports.wording import say
from dpaudit.results import AuditResult
from dpaudit.results.rounding import exactly, lower_bound, nearest

if TYPE_CHECKING:
    from dpaudit.results.worth import Gain, PaidGain

#: With fewer texts MAUVE and accuracy tell nothing.
FEWEST = 50


def sentences(result: AuditResult) -> Iterator[str]:
    """Yield what the records added, in sentences, for readers inside; the sum of it comes first."""
    worth, texts = result.worth, result.released
    evaluated: tuple[str, ...] = ()
    if result.quality is not None:
        from dpaudit.reports import quality  # few results have any

        evaluated = quality.added(result.quality)
    if worth is None or (worth.gain is None and worth.baseline is None):
        yield from evaluated or (say("worth-not-measured"),)
        return
    unmeasured = "gain-not-measured" if _holds_out(result) else "no-held-out"
    yield say(f"worth-{unmeasured}") if worth.gain is None else gain_words(worth.gain)
    if worth.baseline is not None and texts is not None:
        ours, without = _share(texts.nothing, texts.texts), worth.baseline
        yield (
            f"Texts that say nothing, by rule: {ours} with the records, "
            f"{_share(without.nothing, without.texts)} without any."
        )
    if texts is not None and texts.texts < FEWEST:
        yield f"MAUVE and accuracy are not measurable with {counted(texts.texts, 'text')}."
    else:
        yield from evaluated[1:] or (say("not-evaluated"),)


def gain_words(found: Gain) -> str:
    """Return what the held-out records show, in a sentence."""
    texts = counted(found.texts, "held-out record")
    interval, gain = found.interval, found.gain
    if interval is None or gain is None:
        return f"What the records added is not measurable with {texts}."
    low, high = (nearest(end, 2) for end in interval)
    figure = (
        f"{nearest(gain.mean, 3)} nats a token on {texts} (95% interval over records: {low} to "
        f"{high})."
    )
    return {
        "more": f"The records made held-out ones more likely: {figure}",
        "less": f"The records made held-out ones less likely: {figure}",
        "nothing": f"The records added nothing that can be told from chance: {figure}",
        "unmeasured": "",
    }[found.outcome]


def paid_words(paid: PaidGain | None) -> str:
    """Return what the figure says that is paid for, in a sentence for any reader."""
    if paid is None:
        return say("worth-not-paid")
    return say(
        "worth-paid",
        gain=nearest(paid.gain, 3),
        bound=lower_bound(paid.at_least, 3),
        epsilon=exactly(paid.spent),
        batches=f"{paid.batches:,}",
        clip=exactly(paid.clip),
    )


def _holds_out(result: AuditResult) -> bool:
    settings = result.run.settings
    return settings is not None and bool(settings.batching.model_dump().get("held_out"))


def _share(nothing: int, texts: int) -> str:
    return f"{nothing:,} of {texts:,}"
