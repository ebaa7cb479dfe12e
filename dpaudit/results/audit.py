"""Results of an audit, as types. report.json is one AuditResult; reports only render it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field
from typing_extensions import override

from dpaudit import accounting
from dpaudit.mechanisms import GaussianDraws, Relation, Unit
from dpaudit.mechanisms.claims import CLAIM_KINDS, ClaimKind, Kind, KindOfClaim
from dpaudit.results.deferred import deferred
from dpaudit.results.evidence import POLICY
from dpaudit.results.result import (
    AttackBound,
    ForNeighbours,
    Result,
    Status,
    Verdict,
    json_text,
)
from dpaudit.results.rows import KeptAsRows, Rows
from dpaudit.results.summary import RunSummary
from dpaudit.results.values import Finding, Message, Number, Value
from dpaudit.runs import NoGain, NotSecret, SecretBatches
from dpaudit.runs.assignment import KEY_BYTES
from dpaudit.runs.secrecy import MOST_RECORDS
from dpaudit.runs.vacuity import VACUITIES, Vacuity

if TYPE_CHECKING:
    from dpaudit.results.disclosed_texts import DisclosedTexts
    from dpaudit.results.policy import AppliedPolicy
    from dpaudit.results.quality import Quality
    from dpaudit.results.worth import PaidGain, Worth
else:  # parts that few results have, and whose types take some 40 ms to make
    Quality = deferred("dpaudit.results.quality", "Quality")
    Worth = deferred("dpaudit.results.worth", "Worth")
    PaidGain = deferred("dpaudit.results.worth", "PaidGain")
    AppliedPolicy = deferred("dpaudit.results.policy", "AppliedPolicy")
    DisclosedTexts = deferred("dpaudit.results.disclosed_texts", "DisclosedTexts")

Asked = Literal["epsilon", "batch_epsilon", "rho", "delta", "relation", "unit"]

#: How many characters of a released text a result holds, and of all of them.
SAMPLE_LENGTH, ALL_SAMPLES_LENGTH = 20_000, 1_000_000
#: With more batches a report's JSON has no indents, which are a third of it.
_INDENTED = 1_000

#: Pairs of numbers of batches, of which no other covers one: a run has one or two.
_MOST_GROUPS = Field(max_length=64)


class ClaimResult(ForNeighbours):
    """The claim that was tested, in nats.

    Attributes:
        epsilon: at the release level, against whoever does not know which batch a record was in;
            None for a kind that has another figure.
        batch_epsilon: at the batch level, against whoever does; None if nothing is claimed there.
        rho: of zCDP, at the batch level; None for the other kinds.
        delta: 0 where the kind has none. For zCDP what epsilons are worked out at, or 0 for none.
    """

    epsilon: Number | None = None
    batch_epsilon: Number | None = None
    rho: Number | None = None
    delta: Number
    kind: ClaimKind

    @property
    def terms(self) -> type[KindOfClaim]:
        """Its kind, as a class: what claims of this kind state and promise."""
        return CLAIM_KINDS[self.kind]

    @property
    def stated(self) -> float:
        """The figure that it promises, in nats: epsilon at the release level, or rho."""
        return self.terms.stated(self)


_Cost = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=1)]


class NormalDraws(Result):
    """Draws by normal noise: its multiplier, and the rate of the coins that sample contexts."""

    multiplier: _Cost
    rate: Annotated[float, Field(ge=0, le=1)]


class BatchCost(Result):
    """The most that one batch can cost, in nats.

    Attributes:
        eta: bounded range of a draw; None if nothing bounds it.
        budget: rho of any number of tokens; None likewise.
        noise: of draws by normal noise, which have neither; None for others.
    """

    eta: _Cost | None = None
    budget: _Cost | None = None
    noise: NormalDraws | None = None

    @classmethod
    def of(cls, accountant: "accounting.ApproximateAccountant") -> Self:
        """Return what an accountant takes one batch to cost."""
        noise = accountant.gaussian
        return cls(
            eta=accountant.eta if math.isfinite(accountant.eta) else None,
            budget=accountant.most_rho if math.isfinite(accountant.most_rho) else None,
            noise=noise and NormalDraws(multiplier=noise.multiplier, rate=noise.rate),
        )

    def accountant(self, rounds: int = 1) -> "accounting.ApproximateAccountant":
        """Return the accountant of so many rounds of such batches, without clusters."""
        return accounting.ApproximateAccountant(
            math.inf if self.eta is None else self.eta,
            most_rho=math.inf if self.budget is None else self.budget,
            gaussian=None
            if self.noise is None
            else GaussianDraws(self.noise.multiplier, self.noise.rate),
            rounds=rounds,
        )


class AttackSettings(Result):
    """The public settings that bounds on attacks follow from, for readers who recompute them.

    Attributes:
        unit: what one batch can cost one unit of the claim.
        record: what one batch can cost one record that comes or goes; None where both levels are
            equal.
        groups: how many batches a record's batch is hidden among, and how many of them are
            generated, for the groups that cost most; empty where both levels are equal.
        records: how many records one unit changes, one after another. More than MOST_RECORDS gain
            nothing from secret batches, however many they are.
        tokens: the most of a batch, in each round.
        rounds: how many.
        shares: over how many stopping points delta is split.
        delta: down to which the curves are worked out.
        laplace: epsilons of noisy counts, one each.
        centers, centers_delta: epsilon and delta of noised centres.
    """

    unit: BatchCost
    record: BatchCost | None = None
    groups: Annotated[tuple[tuple[_Count, Annotated[int, Field(ge=0)]], ...], _MOST_GROUPS] = ()
    records: Annotated[int, Field(ge=1, le=MOST_RECORDS + 1)] = 1
    tokens: Annotated[int, Field(ge=0, le=1 << 40)]
    rounds: Annotated[int, Field(ge=1, le=1 << 20)] = 1
    shares: Annotated[int, Field(ge=1, le=1 << 20)] = 1
    delta: Annotated[float, Field(gt=0, lt=1)]
    laplace: Annotated[tuple[_Cost, ...], Field(max_length=64)] = ()
    centers: Annotated[Number, Field(ge=0)] = 0.0
    centers_delta: Annotated[float, Field(ge=0, le=1)] = 0.0

    @classmethod
    def of(cls, accountant: "accounting.ReleaseAccountant", tokens: int, delta: float) -> Self:
        """Return the settings of an accountant, of a batch's most tokens and of a delta."""
        batch, one, secret = accountant.batch, accountant.one, accountant.secret
        return cls(
            unit=BatchCost.of(batch),
            record=None if one is None or secret is None else BatchCost.of(one),
            groups=() if one is None or secret is None else accounting.costliest(secret),
            records=min(accountant.records, MOST_RECORDS + 1),
            tokens=tokens,
            rounds=batch.rounds,
            shares=accountant.shares,
            delta=delta,
            laplace=batch.laplace,
            centers=batch.centers,
            centers_delta=batch.centers_delta,
        )

    def bounds(self) -> tuple[AttackBound, AttackBound]:
        """Work out what attacks can do at the release and at the batch level.

        Raises:
            ValueError: the settings do not fit each other.
        """
        batch = replace(
            self.unit.accountant(self.rounds),
            laplace=self.laplace,
            centers=self.centers,
            centers_delta=self.centers_delta,
        )
        one = None if self.record is None else self.record.accountant()
        secret = None if one is None else SecretBatches(self.groups, self.rounds)
        accountant = accounting.ReleaseAccountant(batch, one, secret, self.records, self.shares)
        release, known = map(AttackBound.of, accountant.attack_curves(self.tokens, self.delta))
        return release, known


class BoundsAttacks(ForNeighbours):
    """Base of guarantees that bound attacks.

    Attributes:
        attack: what readers can do; `batch_attack`: what someone can who knows a record's batch.
        attack_settings: what both follow from.
    """

    attack: AttackBound | None = None
    batch_attack: AttackBound | None = None
    attack_settings: AttackSettings | None = None


class Amplification(Result):
    """The gain of secret batches, or the reason for none. Public where the claim is.

    Attributes:
        groups: how many batches a group's records are hashed into, and how many of them are
            generated, in a round; each pair of numbers once, ascending. Empty if the levels are
            equal.
        reason: why both levels are equal; None if they are not.
        assumption: what the release level rests on; None if the levels are equal.
    """

    groups: tuple[tuple[int, int], ...] = ()
    rounds: int = 1
    reason: Finding | None = None
    assumption: Finding | None = None

    @staticmethod
    def why_equal(reason: NotSecret | NoGain) -> Finding:
        """Return why both levels are equal, as a finding."""
        values: dict[str, Value] = {"bytes": KEY_BYTES} if reason is NotSecret.SHORT_KEY else {}
        return Finding(code=f"levels.{reason}", values=values)


class ExPost(ForNeighbours):
    """Data-dependent ex-post epsilon, in nats, recomputed from the record. Itself private.

    All but `epsilon` is of the batch level: against whoever knows which batch a record was in.

    Attributes:
        epsilon: at the release level, clusters included: for someone who knows all other records
            and their batches, but not hers.
        theorem1: the paper's Theorem 1, summed over tokens, worst batch.
        exact: the larger of `rise` and `fall`, suprema over all aggregates that a neighbour can
            have; never above `theorem1`.
        rise: how much more probable a neighbour can have made the texts.
        rebalancing: epsilon of what decided how records were grouped: noisy counts, and centres.
        batch_epsilon: exact + rebalancing.
        delta: of noised centres; where it is not 0, the claim is about sets of outcomes
            (docs/mathematics.md).
    """

    epsilon: Number
    theorem1: Number
    exact: Number
    rise: Number
    fall: Number
    rebalancing: Number
    batch_epsilon: Number
    delta: Number = 0.0
    amplification: Amplification = Amplification()


class OtherNeighbours(Result):
    """The same run between other neighbours, at the claim's delta."""

    relation: Relation
    unit: Unit
    epsilon: Number
    rdp: Number


class Approximate(BoundsAttacks):
    """(epsilon, delta)-DP of the mean mechanism, from public settings alone.

    Attributes:
        epsilon: the smallest sound figure at the release level, against whoever does not know which
            batch a record was in; rebalancing is inside.
        batch_epsilon: the same at the batch level, against whoever does, by `method`; accounted for
            jointly.
        batch_lower: no accountant can do better than this for an exponential mechanism of this
            range at the batch level; None if none above 0 is known.
        batch_rdp: what Renyi accounting (the paper's method) gives for the same run there.
        tokens: the most that a batch may have, which were accounted for, in each round.
        rho: zCDP of any number of tokens, by contexts' budgets or a draw that bounds them; None
            without either.
        sensitivity: what moves a logit how far, in words.
        rebalancing: pure epsilon of the noisy counts, already in `epsilon`.
        centers, centers_delta: of the cluster centres, already in `epsilon` and `delta`.
        others: between other neighbours, for a recorded generator, whose claim may leave open which
            it is about.
    """

    epsilon: Number
    batch_epsilon: Number
    batch_lower: Number | None
    batch_rdp: Number
    amplification: Amplification = Amplification()
    delta: Number
    method: str
    tokens: int
    rho: Number | None = None
    sensitivity: str
    rebalancing: Number
    centers: Number = 0.0
    centers_delta: Number = 0.0
    others: tuple[OtherNeighbours, ...] = ()


class Zcdp(BoundsAttacks):
    """rho-zCDP of everything at the batch level, in nats, from public settings alone.

    Worked out for a claim of rho.

    Attributes:
        rho: of generation and clusters, rounded up. It holds at every delta, and against whoever
            knows all batches.
        rebalancing: rho of what decided how records were grouped; already in `rho`.
        tokens: the most that a batch may have, in each round.
        any_length: whether budgets, or a draw that bounds all tokens, keep generation within it
            however many there are.
        advantage: the most by which a test's rate of true positives exceeds that of false ones, by
            the claimed rho.
    """

    rho: Number
    rebalancing: Number
    tokens: int
    any_length: bool
    advantage: Number


class ContextLoss(Result):
    """log p(text) - log p(text without this context), in nats, summed over the batch's tokens."""

    batch: int
    slot: int
    loss: Number


class Attack(Result):
    """The result of telling a run from its neighbour by its texts.

    It is a lower bound: the mechanism is no more private.

    Attributes:
        epsilon: an (epsilon, delta) guarantee with a smaller epsilon is refuted, with `confidence`;
            0 where none is.
        estimate: the same without allowing for chance.
        trials: texts that were generated on either side.
        beyond: texts whose log-ratio exceeds the ex-post bound that the accounting gives for that
            very text.
    """

    epsilon: Number
    estimate: Number
    delta: Number
    confidence: float
    trials: int
    beyond: int


class CanaryGuesses(Result):
    """The texts' information on the secret coins of this very run's canaries.

    It is a lower bound, for all outputs.

    Attributes:
        epsilon: an (epsilon, delta) guarantee with a smaller epsilon is refuted, with `confidence`;
            0 where none is.
        most: what so many coins could refute, were every guess right: known beforehand.
    """

    coins: int
    right: int
    epsilon: Number
    most: Number
    delta: Number
    confidence: float


class Empirical(Result):
    """Losses that were realised on actual neighbours. They prove nothing about the others.

    Attributes:
        leave_one_out_max: the largest absolute loss of a left-out context; None if the record gives
            none.
        worst: the contexts with the largest absolute losses, largest first.
        canaries: None if the run has none, or its record does not bear their coins out.
    """

    leave_one_out_max: Number | None
    contexts: int
    worst: tuple[ContextLoss, ...]
    attack: Attack | None = None
    canaries: CanaryGuesses | None = None


class Guarantees(Result):
    """Figures of each kind, never added up and never in one column.

    Attributes:
        zcdp: None unless the claim is of that kind.
        no_attack: why nothing bounds attacks in general; None where something does.
    """

    ex_post: ExPost | None
    approximate: Approximate | None
    zcdp: Zcdp | None = None
    no_attack: Message | None = None
    empirical: Empirical

    @property
    def attacks(self) -> Zcdp | Approximate | None:
        """What bounds attacks: of a claim of zCDP its rho, else what public settings give."""
        given = (self.zcdp, self.approximate)
        return next((each for each in given if each is not None and each.attack is not None), None)

    def epsilons(self, kind: ClaimKind) -> ExPost | Approximate | None:
        """Return a kind of claim's recomputed epsilons at both levels, or None without any."""
        found: ExPost | Approximate | None = getattr(self, CLAIM_KINDS[kind].epsilons)
        return found


class LedgerEntry(Result):
    """One node of the composition: what it costs, of which kind, and how its children make it up.

    Attributes:
        rule: "leaf", "sum" of the children, "maximum" over them, or "joint" composition by an
            accountant.
        reference: the theorem or the documentation's place that justifies the rule.
        omitted: children that are not listed (the cheaper batches of a long run).
    """

    name: str
    kind: Kind
    relation: Relation
    unit: Unit
    value: Number
    delta: Number | None
    rule: Literal["leaf", "sum", "maximum", "joint"]
    reference: str
    children: tuple["LedgerEntry", ...]
    omitted: int


class BatchResult(Result):
    """One batch's ex-post costs in nats, as in ExPost; None if the record gives no such figure.

    Attributes:
        steps: tokens of all its texts.
    """

    id: int
    label: str | None
    contexts: int
    steps: int
    theorem1: Number | None
    exact: Number | None
    rise: Number | None
    fall: Number | None
    leave_one_out_max: Number | None
    texts: int = 1


class BudgetUse(Result):
    """The use of the budgets that a run's contexts have of their own. Never public.

    Attributes:
        budget: the most that a context may spend, in nats of zCDP's rho.
        smallest: the smallest allowance of a context: less where users' contexts share budgets, or
            earlier runs have spent of them.
        worst_case: the cost of all tokens that a batch may have for a context that moves each as
            far as any can.
        left_out: how many of them a draw was made without, at least once.
        spent: the least, the quartiles and the most that a context has spent, as shares of the
            budget, rounded up to hundredths.
        position: of tokens in their batch, 1-based.
        active: the share of contexts that took part in those draws, over all batches.
        fewest: the same for the batch where it was least.
        moved: how far contexts moved the draws that they took part in, as a share of what the clip
            lets any: the range of a draw that costs what they paid on average. A clip of about that
            share costs as much by worst-case accounting.
    """

    budget: Number
    smallest: Number
    worst_case: Number
    contexts: int
    left_out: int
    spent: tuple[float, ...]
    position: tuple[int, ...]
    active: tuple[float, ...]
    fewest: tuple[float, ...]
    moved: float


class TokenCurve(Result):
    """Ex-post cost by token position, in nats, over the batches that reached it.

    The paper's appendix has such figures.

    Positions are those in the batch: where it has several texts, they go on from one to the next.

    Attributes:
        position: 1-based, ascending.
        mean, maximum: of the exact cost of the token there, max(rise, fall).
        theorem1, exact: ex-post epsilon of generation had every batch ended here.
        unbounded: how many tokens nothing bounds. None of the other figures counts them.
    """

    position: tuple[int, ...]
    batches: tuple[int, ...]
    mean: tuple[Number, ...]
    maximum: tuple[Number, ...]
    theorem1: tuple[Number, ...]
    exact: tuple[Number, ...]
    unbounded: int = 0


class Alternative(Result):
    """A token that could have been drawn instead: its text, and its probability by the record."""

    text: str
    probability: Number


class ExpensiveToken(Result):
    """One token of a text in full. Costs are for the whole change falling on its batch, in nats.

    Attributes:
        at: which of the text's tokens, from 0.
        text: the token alone; empty if it is a part of a character, or ends the text.
        exact, rise, fall: as in ExPost. A neighbour's probability lies between probability *
            e^-fall and probability * e^rise.
        probability: of the token, by the record.
        likeliest: the most probable others.
    """

    at: int
    text: str
    exact: Number
    rise: Number
    fall: Number
    probability: Number
    likeliest: tuple[Alternative, ...]


class TokenCosts(Result):
    """The cost of each token of a text.

    Attributes:
        ends: where each ends in the text, in characters; the same twice for one that shows none.
        exact: its exact cost in nats, infinite if nothing bounds it.
        most_expensive: those of them that are among the most expensive of all texts, in this order.
    """

    ends: tuple[int, ...]
    exact: tuple[Number, ...]
    most_expensive: tuple[ExpensiveToken, ...]


class SampleText(Result):
    """One released text, from samples.jsonl.

    Attributes:
        batch, number: which one: the batch, and which of its texts, from 0.
        text: at most SAMPLE_LENGTH characters; None if the run releases token ids alone.
        costs: None if the record gives none, where they would be too many, and where the text is
            not what its tokens spell.
    """

    batch: int
    number: int
    label: str | None
    text: str | None
    characters: int
    tokens: int
    costs: TokenCosts | None = None


class TextCounts(Result):
    """The number of released texts, and of those that say nothing (`dpaudit.runs.vacuity`).

    Each counts once, for the first of these that holds.

    Attributes:
        empty: those of white space alone; of token ids without text, those that end at once.
        very_short: the others with fewer than VERY_SHORT tokens before their end.
        digits: those of digits and signs, rather than letters.
        lists: those that are lists of items.
        repetitions: those that repeat themselves.
        prompts: those that repeat the prompt's words, or a public example.
        other_language: those that are not in the language of the public examples.
    """

    texts: int
    empty: int
    very_short: int
    digits: int = 0
    lists: int = 0
    repetitions: int = 0
    prompts: int = 0
    other_language: int = 0

    @classmethod
    def of(cls, texts: int, found: Mapping[Vacuity, int]) -> Self:
        """Return the counts of so many texts, by how they say nothing."""
        return cls(texts=texts, **{name: found.get(name, 0) for name in VACUITIES})

    @property
    def nothing(self) -> int:
        """The number of texts that say nothing."""
        return sum(getattr(self, name) for name in VACUITIES)


class CheckResult(Result):
    """One check's outcome.

    Attributes:
        evidence: 0 declared in the manifest, 1 arithmetic on the record, 2 record against release,
            3 recomputed with model and data, 4 tested against actual neighbours.
        code: which of the check's outcomes it is, by the catalogue (`dpaudit.results.catalogue`).
            Empty if that is private.
        values: what was found: numbers with their units, places, names. Readers outside get those
            that may be public.
        notes: further findings: where, and what to do.
        measured, expected, detail: code, values and notes in words, for people. A program needs
            none of them.
        applicable: False for a skip that hides nothing, since the run has no part that the check is
            about.
        made_with: options of `dpaudit report` that make a check that was not made; empty if none
            do.
        why: what harm comes where the check fails. The same for every run.
        remedy: how to mend it where it fails, in general; `detail` may know more of this run.
    """

    id: str
    title: str
    status: Status
    code: str = ""
    values: dict[str, Value] = Field({})
    notes: tuple[Finding, ...] = ()
    evidence: int
    measured: str
    expected: str
    detail: str
    reference: str
    applicable: bool = True
    made_with: str = ""
    why: str = ""
    remedy: str = ""

    def required(self, level: int) -> bool:
        """Return whether a pass lacks this unmade check, by this level of evidence or a policy."""
        by_policy = self.id.partition(".")[0] == POLICY
        return self.status == "skip" and self.applicable and (by_policy or self.evidence <= level)


class AuditResult(Result):
    """The result of one audit.

    Attributes:
        audience: "public" for the form that `dpaudit.auditing.disclosure.public_form` makes for
            readers outside.
        verdict: "fail" when a check failed; "not_verified" when none did, and one that a pass needs
            was not made (see `CheckResult.required`); "error" when the run cannot be read; else
            "pass".
        evidence: the level that was asked for.
        ledger: how the figures come about: a tree for each kind, since kinds are never added up.
        not_checked: ids of the checks that are about the run and were not made, at any level.
        quality: how good the texts are, where that was evaluated. No part of the audit, and never
            public.
        worth: what the records added to the texts, where that was measured. No part of the audit,
            and never public.
        paid: what the records added, with noise that an epsilon beside the claim's pays for.
            Public: its cost adds to the claim's. None if nothing was paid.
        asked: fields of the claim that were given to the audit, in place of the run's own.
        samples: the released texts, in order, up to ALL_SAMPLES_LENGTH characters. Never public:
            the verdict does not say that they may be.
        own_claim: the run's own claim, where `asked` gave another. Public where it was fixed
            beforehand.
        released: how many texts there are, and how many are empty or very short. Never public; None
            if unknown.
        budgets: how contexts used budgets of their own. Never public; None if they have none.
        policy: which policy the run was held to. Public, for it is the house's and was there
            before; None without one.
        disclosed: the texts on trial against the data, where these were given. Never public.
    """

    schema_version: Literal["3"] = "3"
    audience: Literal["internal", "public"] = "internal"
    verdict: Verdict
    evidence: int
    guarantee: Message
    caveats: tuple[Message, ...]
    claim: ClaimResult | None
    guarantees: Guarantees
    ledger: tuple[LedgerEntry, ...]
    batches: Annotated[Sequence[BatchResult], KeptAsRows()]
    tokens: TokenCurve | None
    checks: tuple[CheckResult, ...]
    not_checked: tuple[str, ...]
    run: RunSummary
    quality: Quality | None = None
    worth: Worth | None = None
    paid: PaidGain | None = None
    asked: tuple[Asked, ...] = ()
    samples: Annotated[Sequence[SampleText], KeptAsRows()] = ()
    own_claim: ClaimResult | None = None
    released: TextCounts | None = None
    budgets: BudgetUse | None = None
    policy: AppliedPolicy | None = None
    disclosed: DisclosedTexts | None = None

    @override
    def to_json(self) -> str:
        """Return this as strict JSON text; with very many batches in one line, made row by row."""
        if len(self.batches) <= _INDENTED:
            return super().to_json()
        parts = ["{"]
        for place, name in enumerate(type(self).model_fields):
            parts.append(f'{", " * bool(place)}"{name}": ')
            parts += self._json_parts(name)
        return "".join([*parts, "}\n"])

    def _json_parts(self, name: str) -> Iterator[str]:
        value = getattr(self, name)
        if not isinstance(value, Rows):
            yield json_text(self.model_dump(mode="json", include={name})[name])
            return
        yield "["
        for place, row in enumerate(value):
            yield ", " * bool(place) + json_text(row.model_dump(mode="json"))
        yield "]"
