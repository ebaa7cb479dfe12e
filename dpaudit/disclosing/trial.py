"""Units, matches and coins put together: the control-group test, and what the texts refute.

Guesses and scores follow from texts and records alone. The coins come in last, in the accounting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypedDict

import numpy as np

from dpaudit.accounting.coins import (
    ABSTAIN,
    BatchCoins,
    Flags,
    Integers,
    ShownCoins,
    SplitCoins,
    split_check,
)
from dpaudit.accounting.coins import Coins as UnitCoins
from dpaudit.accounting.control_test import TOP_UNITS, ControlTest, Statistic, control_test
from dpaudit.accounting.guesses import GuessedCoins, caused
from dpaudit.accounting.laws import Floats
from dpaudit.disclosing.claims import TestedClaim
from dpaudit.disclosing.matching import Matches, Progress, SharedRuns, shared_runs
from dpaudit.disclosing.phrases import find_phrases, numbers_in
from dpaudit.disclosing.units import Units
from dpaudit.disclosing.words import MEASURES, Measure, MeasureName
from dpaudit.results.disclosed_texts import (
    CLAIM_AT,
    CONFIDENCE,
    LEVEL,
    MOST_ROWS,
    MOST_SPANS,
    NO_POWER,
    Asked,
    Coins,
    DisclosedTexts,
    GroupCoins,
    LeftOut,
    Named,
    NamedEntity,
    NamedSpan,
    RefutedEpsilon,
    Test,
)
from dpaudit.runs import InputError

DRAWS = 100_000
#: The statistics, fixed before anybody saw a coin; by these names in results.
RUNS, GRAMS = "unique-runs", "unique-3-grams"


class LookedFor(NamedTuple):
    """Names and numbers to look for in records and texts.

    Attributes:
        ask: one that is answered for, whatever is found; None for none.
        names: of those, the ones that stand in texts are listed.
    """

    ask: str | None = None
    names: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Keep what may be private out of logs and tracebacks."""
        return "LookedFor(...)"


@dataclass(frozen=True)
class _Guesses:
    """What the texts say of each unit in each round, blind to coins [rounds * n].

    Attributes:
        runs: guesses by the text with the longest unique run.
        lengths: of that run.
        by_grams: guesses by the text with the most unique 3-grams.
        grams: how many.
    """

    runs: Integers
    lengths: Integers
    by_grams: Integers
    grams: Integers


def try_texts(
    units: Units,
    claim: TestedClaim,
    *,
    measure: MeasureName = "words",
    level: float = LEVEL,
    looked_for: LookedFor = LookedFor(),  # noqa: B008  # it is immutable
    draws: int = DRAWS,
    progress: Progress = lambda done, total: None,
) -> DisclosedTexts:
    """Test whether texts name units that were shown more often than chance gives.

    Args:
        units: with their coins.
        claim: to compare with what the texts refute.
        measure: what is counted in a row.
        level: of the test, for both tails together.
        looked_for: names to look for.
        draws: how often the coins are drawn anew.
        progress: called with units read and all.

    Raises:
        InputError: no outcome of the test could reject.
    """
    counted = MEASURES[measure]
    least = _require_power(units, level)
    shared = shared_runs(
        units.texts,
        units.records,
        units.public,
        units.text_groups,
        units.groups,
        counted,
        progress,
    )
    guesses = _guesses(units, shared)
    found = control_test(
        units.coins,
        units.values,
        (
            Statistic(RUNS, guesses.runs, guesses.lengths, counted.runs, "at least"),
            Statistic(GRAMS, guesses.by_grams, guesses.grams, TOP_UNITS, "top"),
        ),
        draws,
        units.seed,
        level / 2,
    )
    spans = sorted(shared.spans, key=lambda span: (-span.words, span.text, span.start, span.unit))
    return DisclosedTexts(
        source=units.source,
        measure=measure,
        texts=len(units.texts),
        coins=_coins(units),
        test=Test(
            statistics=(RUNS, GRAMS),
            level=level,
            p=found.p,
            p_lower=found.p_lower,
            least_records=least,
            redraws=draws,
            seed=units.seed,
        ),
        named=tuple(_named(units, guesses, found, counted)),
        epsilon=_epsilon(units, guesses, claim, CLAIM_AT[measure]),
        spans=tuple(_spans(units, spans[:MOST_SPANS])),
        more_spans=max(0, len(spans) - MOST_SPANS),
        entities=_entities(units, looked_for.names, counted, progress),
        asked=None if looked_for.ask is None else _asked(units, looked_for.ask, counted),
        left_out=LeftOut(twins=units.twins, short=_short(units, counted)),
    )


def _require_power(units: Units, level: float) -> int:
    """Return the fewest named units with which an outcome could reject.

    Raises:
        InputError: there are fewer, or no number is enough.
    """
    least = units.coins.least_right(level / 2)
    if least is not None and least <= len(units.values):
        return least
    where = "--data" if units.source == "run" else "--held-out"
    known = f"{len(units.records):,} {units.unit}{'' if len(units.records) == 1 else 's'}"
    if least is None:
        problem = f"by the coins of these {known} no outcome could reject at level {level:g}."
    else:
        problem = (
            f"these are {known}, and even if texts named them all it would take {least:,} to "
            f"reject at level {level:g}."
        )
    remedy = "Give more records, of which more were held out, or a larger --level."
    raise InputError(where, problem, remedy, NO_POWER)


def _guesses(units: Units, shared: SharedRuns) -> _Guesses:
    # Between equal texts, those of one file, lots decide: they know nothing of records and coins.
    order = np.random.default_rng([units.seed, len(units.texts)]).permutation(len(units.texts))
    rounds = [
        shared.matches(order, np.flatnonzero(units.text_rounds == number))
        for number in range(units.rounds)
    ]
    found = Matches(*(np.concatenate(each) for each in zip(*rounds, strict=True)))
    return _Guesses(
        _guess(units, found.where), found.lengths, _guess(units, found.grams_where), found.grams
    )


def _guess(units: Units, where: Integers) -> Integers:
    """Return the guess that the best text of each unit makes; none of a unit without one."""
    if units.text_batches is None:
        return np.where(where >= 0, 1, ABSTAIN)
    return np.where(where >= 0, units.text_batches[where], ABSTAIN)


def _coins(units: Units) -> Coins:
    shown, shares = units.shown, units.coins.shares
    groups = np.tile(units.groups, units.rounds)
    listed = []
    for number, name in enumerate(units.names):
        own = groups == number
        of_batches = {}
        if isinstance(units.coins, BatchCoins) and own.any():
            of_batches = {
                "batches": int(units.coins.batches[own][0]),
                "generated": int(units.coins.generated[own][0]),
            }
        listed.append(
            GroupCoins(
                label=name.label,
                cluster=name.cluster,
                units=int(own.sum()),
                shown=int(shown[own].sum()),
                p=float(shares[own].mean()) if own.any() else 0.0,
                **of_batches,
            )
        )
    return Coins(
        rule=units.rule,
        groups=tuple(listed),
        independent=_independent(units.coins),
        rounds=units.rounds,
        units=len(shown),
        shown=int(shown.sum()),
        held_out=int((~shown).sum()),
        expected_shown=units.coins.expected_shown,
        p_split=split_check(units.coins, units.values),
    )


def _named(
    units: Units, guesses: _Guesses, found: ControlTest, measure: Measure
) -> Iterator[Named]:
    shown, shares = units.shown, units.coins.shares
    counts = {each.threshold: each for each in found.statistics if each.name == RUNS}
    for k in measure.runs:
        named = (guesses.runs != ABSTAIN) & (guesses.lengths >= k)
        by_chance = _caused(shares[named], shown[named], _independent(units.coins))
        batches = units.text_batches is not None
        yield Named(
            k=k,
            shown=int((named & shown).sum()),
            held_out=int((named & ~shown).sum()),
            own_batch=counts[k].right if batches else None,
            expected_right=counts[k].expected,
            p=counts[k].p,
            **by_chance,
        )


def _independent(coins: UnitCoins) -> bool:
    """Return whether no two units share a coin, or a number that was settled."""
    if isinstance(coins, BatchCoins):
        return not coins.linked
    return not isinstance(coins, SplitCoins)


class _Caused(TypedDict):
    expected_by_chance: float | None
    caused: float | None
    caused_low: int | None
    caused_high: int | None


def _caused(shares: Floats, shown: Flags, independent: bool) -> _Caused:
    """Return what having been shown explains, where some could have been held out."""
    found = None if (shares >= 1).any() else caused(shares, shown)
    limits = found if independent else None
    return {
        "expected_by_chance": None if found is None else found.expected,
        "caused": None if limits is None else limits.estimate,
        "caused_low": None if limits is None else limits.low,
        "caused_high": None if limits is None else limits.high,
    }


@dataclass(frozen=True)
class _Tested:
    """Guesses that can refute an epsilon, and how many of them are right."""

    guesses: GuessedCoins
    right: int


def _epsilon(units: Units, guesses: _Guesses, claim: TestedClaim, k: int) -> RefutedEpsilon:
    """Return what the records named at k, fixed beforehand, refute of the claim's level."""
    named = np.where(guesses.lengths >= k, guesses.runs, ABSTAIN)
    level, tested = claim.level, None
    if units.source == "files":
        level, tested = "split", _of_split(units, guesses, named, claim.delta)
    elif level == "release":
        tested = _of_release(units, named, claim.delta)
        if tested is None:
            level, claim = "batch", TestedClaim(None, not_compared="all-shown")
    if tested is None:
        assert isinstance(units.coins, BatchCoins)  # a run's
        coins = units.coins.of_taking_part()
        tested = _Tested(GuessedCoins(coins, named, claim.delta), _right(named, units.values))
    refuting, right = tested.guesses, tested.right
    p_claim, refutable = None, False
    if claim.epsilon is not None:
        p_claim = refuting.p_value(right, claim.epsilon)
        refutable = _all_right(refuting).p_value(len(refuting.guesses), claim.epsilon) <= LEVEL
    stated, stated_delta = claim.stated or (None, None)
    return RefutedEpsilon(
        level=level,
        refuted=refuting.epsilon_refuted(right, 1 - CONFIDENCE),
        unit=units.unit,
        relation="add_remove",
        delta=claim.delta,
        k=k,
        guesses=refuting.number,
        right=right,
        most_refutable=refuting.most_refutable(1 - CONFIDENCE),
        claimed=claim.epsilon,
        claimed_of=claim.of,
        stated=stated,
        stated_delta=stated_delta,
        not_compared=claim.not_compared,
        p_claim=p_claim,
        claim_refutable=refutable,
        claim_refuted=p_claim is not None and p_claim <= LEVEL,
    )


def _all_right(guesses: GuessedCoins) -> GuessedCoins:
    """Return guesses of all coins, each one that a coin can have."""
    value = 1 if isinstance(guesses.coins, ShownCoins) else 0
    return replace(guesses, guesses=np.full(len(guesses.guesses), value, dtype=np.int64))


def _of_split(units: Units, guesses: _Guesses, named: Integers, delta: float) -> _Tested:
    """Return guesses of who was shown; of a split of a fixed size, within matched groups."""
    if not isinstance(units.coins, SplitCoins):
        assert isinstance(units.coins, ShownCoins)
        return _Tested(GuessedCoins(units.coins, named, delta), _right(named, units.values))
    groups = units.coins.matched(units.values, units.seed)
    guessed = groups.guess(named, guesses.lengths)
    # That another member was shown is one record less and one more.
    records = np.full(len(guessed), 2, dtype=np.int64)
    return _Tested(
        GuessedCoins(groups, guessed, delta, records), groups.right(guessed, units.values)
    )


def _of_release(units: Units, named: Integers, delta: float) -> _Tested | None:
    """Return guesses that a record was shown in any round, which test the release level.

    Return None where all records of a group are shown, so that no coin tests it.
    """
    count = len(units.records)
    ever, shares = _ever_shown(units)
    if (shares >= 1).any():
        return None
    values = ever.astype(np.int64)
    is_named = (named != ABSTAIN).reshape(units.rounds, count).any(axis=0)
    guessed: Integers = np.where(is_named, 1, ABSTAIN).astype(np.int64)
    coins = ShownCoins(shares, released=True)
    return _Tested(GuessedCoins(coins, guessed, delta), _right(guessed, values))


def _right(guesses: Integers, values: Integers) -> int:
    return int(((guesses != ABSTAIN) & (guesses == values)).sum())


def _spans(units: Units, spans: Sequence[tuple[int, int, int, int, int]]) -> Iterator[NamedSpan]:
    shown, count = units.shown, len(units.records)
    for text, start, end, length, unit in spans:
        place = int(units.text_rounds[text]) * count + unit
        own = None
        if units.text_batches is not None:
            own = bool(units.values[place] == units.text_batches[text])
        yield NamedSpan(
            text=units.texts[text][start:end],
            words=length,
            release_row=int(units.text_rows[text]),
            start=start,
            end=end,
            unit=int(units.rows[unit]),
            shown=bool(shown[place]),
            own_batch=own,
        )


def _asked(units: Units, name: str, measure: Measure) -> Asked:
    """Return where a name stands.

    Raises:
        InputError: it has no letter or digit.
    """
    if not measure.split(name):
        raise InputError("--ask", "there is no letter or digit in it.", "Give a name or a number.")
    (found,) = find_phrases((name,), units.texts, units.records, units.public, measure)
    ever, shares = _ever_shown(units)
    shown, own = ever[found.units], shares[found.units]
    expected = None
    if (own < 1).all():
        expected = float((own[~shown] / (1 - own[~shown])).sum())
    return Asked(
        name=name,
        shown=int(shown.sum()),
        held_out=int((~shown).sum()),
        texts=len({text for text, _, _ in found.places}),
        public=found.public,
        expected_by_chance=expected,
    )


def _entities(
    units: Units, names: Sequence[str], measure: Measure, progress: Progress
) -> tuple[NamedEntity, ...]:
    """Return the names that stand in texts, and the numbers that are nobody's or one unit's."""
    numbers = numbers_in(units.texts)
    if not (names or numbers):
        return ()
    found = find_phrases(
        (*names, *numbers), units.texts, units.records, units.public, measure, progress
    )
    ever, _ = _ever_shown(units)
    listed = []
    for at, each in enumerate(found):
        given = at < len(names)
        if not each.places or not (given or (len(each.units) <= 1 and not each.public)):
            continue
        rows = [int(units.text_rows[text]) for text in sorted({place[0] for place in each.places})]
        listed.append(
            NamedEntity(
                name=each.phrase,
                given=given,
                release_rows=tuple(rows[:MOST_ROWS]),
                texts=len(rows),
                shown=int(ever[each.units].sum()),
                held_out=int((~ever[each.units]).sum()),
                public=each.public,
            )
        )
    return tuple(listed[:MOST_SPANS])


def _ever_shown(units: Units) -> tuple[Flags, Floats]:
    """Return whether each unit was shown in any round, and the probability of that [n]."""
    count, coins = len(units.records), units.coins
    ever = np.asarray(units.shown.reshape(units.rounds, count).any(axis=0))
    takes_part = 1 - coins.held_out if isinstance(coins, BatchCoins) else 1.0
    shares = (coins.shares / takes_part).reshape(units.rounds, count)
    return ever, takes_part * (1 - np.prod(1 - shares, axis=0))


def _short(units: Units, measure: Measure) -> int:
    """Return how many units have no record that is long enough to be named."""
    least = measure.runs[0]
    return sum(
        all(len(measure.split(text)) < least for text in records) for records in units.records
    )
