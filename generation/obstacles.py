"""Why a run of a config could not pass its own audit at evidence level 2, told before anything is generated.

Each function here foresees what checks of `dpaudit.checks` will say of any run of the config, however it turns out.
Nothing here judges a run: that a config has no obstacle is no promise that its run passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from dpaudit.accounting import (
    CLUSTERINGS,
    ApproximateAccountant,
    rebalancing_epsilon,
    rebalancing_events,
    rebalancing_scale,
    rounded_sum,
)
from dpaudit.generation.config import Config
from dpaudit.generation.overlap import PublicTexts
from dpaudit.generation.records import Records, read_public_examples
from dpaudit.mechanisms import context_change
from dpaudit.results.rounding import rounded_up
from dpaudit.runs import InputError, Privacy
from dpaudit.runs.disclosed import LABELS, MOST_PAIRS, PATH, acting_texts, is_anybodys


@dataclass(frozen=True)
class Obstacle:
    """What keeps every run of a config from passing.

    Attributes:
        check: the check that fails or cannot be made.
        field: of the config.
        problem: what is wrong there, without a full stop. Never holds text of a private record.
        remedy: what would do instead, as a sentence.
        meant: the config itself says that its run is for no release, so that telling is enough.
    """

    check: str
    field: str
    problem: str
    remedy: str
    meant: bool = False

    def __str__(self) -> str:
        return str(self.error())

    def error(self, otherwise: str = "") -> InputError:
        """As an error, whose remedy goes on with `otherwise`."""
        return InputError(self.field, f"{self.problem} ({self.check}).", f"{self.remedy} {otherwise}".rstrip())


Finder = Callable[[Config, Records | None], Iterator[Obstacle]]


def obstacles(config: Config, data: Records | None = None) -> tuple[Obstacle, ...]:
    """Everything that is known to keep a run from passing: of the config alone, or of its data too where it was read.

    Raises:
        InputError: the config's public examples cannot be read, or its clustering has numbers out of their range.
    """
    return tuple(found for finder in _FINDERS for found in finder(config, data))


def refuse(found: Sequence[Obstacle], otherwise: str = "") -> None:
    """Refuse a config with any obstacle that it does not name itself.

    `otherwise` is what else can be done, as a sentence.

    Raises:
        InputError: names the field of the first of them.
    """
    refused = [each for each in found if not each.meant]
    if refused:
        more = len(refused) - 1
        raise refused[0].error(f"({more} more to mend after this one.) {otherwise}" if more else otherwise)


def _randomness(config: Config, _: Records | None) -> Iterator[Obstacle]:
    if config.sampling.seed is not None:
        yield Obstacle(
            "mechanism.randomness",
            "sampling.seed",
            "anyone who knows the seed can repeat every draw, so the run fails its audit: seeds are for tests",
            "Leave out the section if the texts are to be released.",
            meant=True,
        )


def _trained(config: Config, _: Records | None) -> Iterator[Obstacle]:
    if config.model.trained_on_records == "yes":
        yield Obstacle(
            "mechanism.model",
            "model.trained_on_records",
            "the model may write what it remembers of the private records, and no epsilon here covers that",
            "Use a model that never saw them.",
        )


def _clusters(config: Config, _: Records | None) -> Iterator[Obstacle]:
    if config.clustering is not None and config.clustering.method == "k-means":
        yield Obstacle(
            "rebalancing.noise",
            "clustering.method",
            "k-means computes its centres from private records without noise, so no epsilon holds",
            "Use public centres, or noised ones: chang or dpm.",
        )


def _origins(config: Config, _: Records | None) -> Iterator[Obstacle]:
    for section, check in (("batching", "partition.public-parameters"), ("settings", "claim.tuning")):
        if getattr(config.chosen_from, section) == "private":
            yield Obstacle(
                check,
                f"chosen_from.{section}",
                "numbers were chosen by looking at private records, and no epsilon covers that",
                "Choose them by public texts or sizes. Only then declare public.",
            )


def _sums(config: Config, _: Records | None) -> Iterator[Obstacle]:
    aggregator = config.mechanism.aggregator
    if aggregator.sums and "mechanism.divisor" not in aggregator.not_applicable and not config.records_contexts:
        truncated = config.mechanism.support.size is not None
        yield Obstacle(
            "mechanism.divisor",
            "record.contexts",
            f"contexts are not recorded, and without them no check can recompute the {aggregator.name}",
            "Leave record.contexts out: over these allowed tokens, contexts take little space."
            if truncated
            else "Set true: each step then takes 8 bytes for every context and token of the vocabulary. Or set "
            "mechanism.support to public-top-k, which records contexts in little space.",
        )


def _delta(config: Config, data: Records | None) -> Iterator[Obstacle]:
    """As the audit has it: below one over the records, or over the contexts where each is a unit of the claim."""
    claim, clustering, approximate = config.claim, config.clustering, config.claim_kind.beforehand
    records = 2 if data is None else max(2, len(data.records))
    delta, field = (config.privacy.delta, "privacy.delta") if claim is None else (claim.delta, "claim.delta")
    if claim is not None and not claim.delta and config.claim_kind.delta == "optional":
        delta, field = config.privacy.delta, "privacy.delta"
    if not approximate:
        delta, field = 0.0 if clustering is None else clustering.delta or 0.0, "clustering.delta"
    counted, units = "records", records
    if config.rule == "hashed-slots" and config.privacy.unit == "context":
        shown = config.batching.slots or 1
        shown *= len(config.data.groups) * config.batching.generate_per_label
        counted, units = ("contexts", shown) if shown > records else (counted, units)
    if delta and not delta < 1 / units:
        yield Obstacle(
            "claim.delta",
            field,
            f"this is {delta:g}. With {units:,} {counted}, a delta of {1 / units:g} or more could give one away",
            f"Choose a smaller one by a public number of {counted}: here {small_delta(units):g} is small enough.",
        )


def small_delta(records: int) -> float:
    """A power of ten that is at most a tenth of 1 / records."""
    return float(f"1e-{len(str(records - 1)) + 1}")


def _claimed(config: Config, data: Records | None) -> Iterator[Obstacle]:
    """A claim that is fixed beforehand against what is spent whatever comes out."""
    claim, privacy = config.claim, config.privacy
    if claim is None or (config.clustering is not None and config.clustering.method == "k-means"):
        return
    most = privacy.records_per_user or (None if data is None else data.most_per_user)
    if privacy.unit == "user" and most is None:
        return  # known once the data is read
    counts, centers = _spent_on_clusters(config, most)
    shared = config.shares_budgets
    change = context_change(privacy.unit, privacy.relation, config.rule, records_per_user=most, shared=shared)
    accountant = ApproximateAccountant.of(
        config.mechanism,
        change,
        laplace=rebalancing_events(counts, privacy.relation),
        centers=centers,
        centers_delta=0.0 if config.clustering is None else config.clustering.delta or 0.0,
    )
    promised, figure = config.claim_kind.stated(claim), config.claim_kind.figures[0]
    spent, what = rounded_sum(counts, centers), "the clusters alone cost"
    if accountant is not None and claim.rho is not None:
        every_round = replace(accountant, rounds=config.batching.rounds)
        spent, what = every_round.rho_of_all(config.decoding.most_tokens), "these settings cost"
    elif accountant is not None:
        spent, what = accountant.epsilon(config.decoding.most_tokens, claim.delta).epsilon, "these settings cost"
    if not config.claim_kind.covers(promised, spent):
        yield Obstacle(
            f"claim.{figure}",
            f"claim.{figure}",
            f"this is {promised:g}, and {what} {rounded_up(spent)}",
            "Claim that, lower mechanism.contribution.clip or the tokens of a batch, or raise the divisor or the "
            "temperature."
            if accountant is not None
            else "Claim more, or give clusters less.",
        )


def _spent_on_clusters(config: Config, most_per_user: int | None) -> tuple[float, float]:
    """Epsilon of noisy counts and of centres, in nats, by the scales of the noise that a run would draw."""
    clustering, privacy = config.clustering, config.privacy
    if clustering is None or clustering.epsilon is None:
        return 0.0, 0.0
    records = most_per_user or 1 if privacy.unit == "user" else 1
    if clustering.keep is not None:
        scale = rebalancing_scale(clustering.epsilon, privacy.relation, records)
        return min(clustering.epsilon, rebalancing_epsilon(scale, privacy.relation, records)), 0.0
    # Its scales take other libraries to work out.
    from dpaudit.generation.grouping import expected_statement

    delta = clustering.delta or 0.0
    unit = Privacy(unit=privacy.unit, relation=privacy.relation)
    settings = expected_statement(config, unit, None).settings
    return 0.0, CLUSTERINGS[clustering.method].epsilon(settings, delta, privacy.relation)


def _disclosed(config: Config, data: Records | None) -> Iterator[Obstacle]:
    """Settings that are published, or act on every text, against paths and the records themselves."""
    examples = read_public_examples(config)
    shown = [text for each in examples.values() for text in each]
    acting = acting_texts(config.prompt.text, shown, config.decoding.banned_words)
    if config.chosen_from.settings == "public" and PATH.search(config.prompt.end or ""):
        yield Obstacle(
            "disclosure.sensitive",
            "prompt.end",
            "a public report would hold this mark, which looks like a path of this machine",
            "Use another mark.",
        )
    tried = [(field, text) for field, text in acting if not is_anybodys(field, text)]
    if len(tried) * len(config.data.groups) > MOST_PAIRS:
        yield Obstacle(
            "disclosure.sensitive",
            "prompt.public_examples",
            f"{len(tried):,} texts of {len(config.data.groups):,} labels are more than an audit compares with records",
            "Give fewer examples, or fewer labels.",
        )
        return
    public = PublicTexts(config.prompt.text, config.prompt.end, shown, config.decoding.banned_words, config.data.groups)
    for shared in public.shared_with(() if data is None else [record.text for record in data.records]):
        if shared.copied:
            yield Obstacle(
                "disclosure.sensitive",
                shared.setting.replace(LABELS, "data.labels"),
                "these texts contain a private record or a large part of one, and influence every released text",
                "Replace all of these texts by others that contain no record. To replace only those that matched would "
                "be a choice by the records.",
            )


_FINDERS: tuple[Finder, ...] = (_trained, _clusters, _origins, _sums, _delta, _claimed, _disclosed, _randomness)
