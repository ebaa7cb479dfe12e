"""Audited runs -> Comparison: what differs between them, and ex-post costs at one length.

Costs at one length are read off the runs' token curves and never carried beyond them: what further
text would have cost depends on data nobody looked at.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import JsonValue

from dpaudit.accounting import rounded_sum
from dpaudit.auditing.guarantees import NOTHING
from dpaudit.results import AuditResult, SampleText, TokenCurve
from dpaudit.results.comparison import Comparison, Differing, QualityColumn, RunScore, SameLength
from dpaudit.results.quality import Measure, PerToken, Scores, Source
from dpaudit.results.values import leaves

#: What classifiers are trained on whose accuracies are compared.
_TRAINED: tuple[Source, ...] = ("synthetic", "public", "real-same-size")
#: The texts of a run that stand beside those of others.
_TEXTS = 3
#: Settings that say nothing to a reader: they differ between any two runs, are token ids or fixed
#: words.
_OWN: dict[str, Any] = {
    "created": True,
    "commitment": True,
    "sensitivity": True,
    "sampling": {"seed_hashes"},
    "prompt": {"public"},
}


def compare_runs(results: Mapping[str, AuditResult]) -> Comparison:
    """Set audited runs side by side.

    Args:
        results: two or more audits by the name to show.

    Returns:
        A comparison in which figures for different neighbours never meet at one length.
    """
    return Comparison(
        runs={name: _in_short(result) for name, result in results.items()},
        settings=_differing(
            [_settings(result) for result in results.values()], absent_differs=True
        ),
        checks=_differing([_statuses(result) for result in results.values()], absent_differs=False),
        same_length=tuple(_same_length(results)),
        quality=_quality_columns(results),
    )


#: What each check says in words, which a report has, and a comparison does not.
_WORDS = ("title", "measured", "expected", "detail", "reference", "why", "remedy")


def _in_short(result: AuditResult) -> AuditResult:
    """Return an audit without what a comparison does not show.

    It has no figures if the run cannot be read.
    """
    checks = tuple(check.model_copy(update=dict.fromkeys(_WORDS, "")) for check in result.checks)
    left_out: dict[str, Any] = {
        "batches": (),
        "ledger": (),
        "tokens": None,
        "quality": None,
        "checks": checks,
    }
    if result.verdict == "error":
        left_out |= {"guarantees": NOTHING, "budgets": None}
    return result.model_copy(update={**left_out, "samples": tuple(_texts(result))})


def _texts(result: AuditResult) -> Iterator[SampleText]:
    """Yield the first text of each label, then others, up to _TEXTS.

    Those of the same labels stand side by side.
    """
    labels = [sample.label for sample in result.samples]
    first = [labels.index(sample.label) == place for place, sample in enumerate(result.samples)]
    ranked = sorted(
        zip(first, result.samples, strict=True),
        key=lambda found: (not found[0], found[1].label or ""),
    )
    for _, sample in ranked[:_TEXTS]:
        yield sample.model_copy(update={"costs": None})


def _settings(result: AuditResult) -> dict[str, JsonValue]:
    if result.run.settings is None:
        return {}
    return dict(
        leaves(result.run.settings.model_dump(mode="json", exclude=_OWN, exclude_none=True))
    )


def _statuses(result: AuditResult) -> dict[str, JsonValue]:
    """Return how each check came out that applies to the run."""
    return {check.id: check.status for check in result.checks if check.applicable}


def _differing(runs: list[dict[str, JsonValue]], *, absent_differs: bool) -> tuple[Differing, ...]:
    """Return the settings that are not the same for all runs.

    With `absent_differs`, so does one that is absent from one of them.
    """
    found = []
    for name in dict.fromkeys(name for run in runs for name in run):
        values = [run.get(name) for run in runs]
        counted = values if absent_differs else [value for value in values if value is not None]
        if any(value != counted[0] for value in counted):
            found.append(Differing(name=name, values=tuple(values)))
    return tuple(found)


def _same_length(results: Mapping[str, AuditResult]) -> Iterator[SameLength]:
    """Yield ex-post epsilons at one length for runs with the same neighbours and finite cost."""
    groups: dict[tuple[str, str, int | None], list[str]] = {}
    for name, result in results.items():
        found = result.guarantees.ex_post
        if result.verdict == "error" or found is None or not math.isfinite(found.batch_epsilon):
            continue
        if _length(result.tokens):
            groups.setdefault(found.neighbours, []).append(name)
    for (relation, unit, most), names in groups.items():
        if len(names) > 1:
            tokens = min(_length(results[name].tokens) for name in names)
            epsilons = tuple(_epsilon_at(results[name], tokens) for name in names)
            alike: dict[str, Any] = {"relation": relation, "unit": unit, "records_per_user": most}
            yield SameLength(**alike, tokens=tokens, runs=tuple(names), epsilons=epsilons)


def _length(curve: TokenCurve | None) -> int:
    """Return up to which length a curve is known: past its first gap, sums lack a token."""
    if curve is None:
        return 0
    return sum(position == place for place, position in enumerate(curve.position, start=1))


def _epsilon_at(result: AuditResult, tokens: int) -> float:
    """Return the exact cost at a length, with that of the clusters.

    The latter is spent before the first token.
    """
    curve, found = result.tokens, result.guarantees.ex_post
    assert curve is not None and found is not None
    return rounded_sum(curve.exact[tokens - 1], found.rebalancing)


def _quality_columns(results: Mapping[str, AuditResult]) -> tuple[QualityColumn, ...]:
    """Return the evaluated figures, a column for each measure and its conditions as a whole."""
    groups: dict[tuple[str, str], list[QualityColumn]] = {}
    for name, result in results.items():
        for one in _measures(name, result):
            groups.setdefault((one.measure, one.conditions), []).append(one)
    order = ("mauve", "linear-probe", "fine-tuned", "likelihood")
    return tuple(
        group[0].model_copy(update={"scores": tuple(one.scores[0] for one in group)})
        for group in sorted(groups.values(), key=lambda group: order.index(group[0].measure))
    )


def _measures(name: str, result: AuditResult) -> Iterator[QualityColumn]:
    """Yield one run's measures, a column each; none of a run that cannot be read as a whole."""
    quality = result.quality
    if quality is None or result.verdict == "error":
        return
    added = {each.measure: each for each in quality.added}

    def column(
        measure: Measure,
        n: int,
        features: str,
        conditions: tuple[Any, ...],
        score: Scores | PerToken,
        public: Scores | PerToken | None,
        ceiling: Scores | None,
    ) -> QualityColumn:
        digest = hashlib.sha256(repr(conditions).encode("utf-8", "backslashreplace")).hexdigest()
        found = RunScore(
            run=name, score=score, public=public, ceiling=ceiling, added=added.get(measure)
        )
        return QualityColumn(
            measure=measure, conditions=digest, n=n, features=features, scores=(found,)
        )

    if (mauve := quality.mauve) is not None:
        n, features, conditions = mauve.settings.n, quality.features.name, quality.mauve_conditions
        yield column("mauve", n, features, conditions, mauve.score, mauve.public, mauve.ceiling)
    for downstream in quality.downstream:
        trained, public, real = (downstream.of(source) for source in _TRAINED)
        if trained is not None and quality.held_out is not None:
            texts, encoder = quality.held_out.test.texts, downstream.encoder.name
            conditions = quality.accuracy_conditions(downstream)
            others = [None if each is None else each.accuracy for each in (public, real)]
            yield column(downstream.method, texts, encoder, conditions, trained.accuracy, *others)
    if (given := quality.likelihood) is not None:
        settings = result.run.settings
        rules = settings and settings.decoding and settings.decoding.rules
        asked = settings and (settings.prompt, rules, (settings.mechanism or {}).get("support"))
        conditions = (*quality.likelihood_conditions, asked)
        yield column(
            "likelihood",
            given.texts.texts,
            given.model.name,
            conditions,
            given.score,
            given.public,
            None,
        )
