"""Plans of a first config: how many texts a limit gives, by public numbers alone.

`dpaudit init` and `dpaudit generate DATA` choose batches by them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dpaudit.accounting import ApproximateAccountant, AttackLimit, Limit, ReleaseAccountant
from dpaudit.accounting.approximate import largest
from dpaudit.accounting.release import amount_of
from dpaudit.mechanisms import BatchingRule, Mechanism
from dpaudit.results import AttackBound
from dpaudit.results.plan import Offer, PlanName
from dpaudit.results.rounding import decimals, stated
from dpaudit.runs import InputError, SecretBatches
from dpaudit.runs.manifest import MAX_BATCHES, MAX_ROUNDS, Privacy

#: Contexts of a batch: with fewer noise decides most tokens; a larger one is not chosen.
FEWEST, MOST = 8, 1 << 14
#: With fewer batches of a label, secrecy gains less than half; of several examples a context needs
#: so many.
_ENOUGH_BATCHES = 4
#: Examples of a context in the plan that is closer to the records, the best first.
_EXAMPLES = (3, 2)
#: What is left of the clip in the plan of a smaller epsilon.
_CAREFUL = 0.5


@dataclass(frozen=True)
class Wish:
    """The requested size of a first config.

    Attributes:
        labels: how many there are; 1 without any.
        records: about how many there are, as everyone may know.
        texts: how many, at most; None for as many as the limit gives.
        limit: what the run may cost at the release level; None for a mechanism whose cost only its
            texts show.
        held_out: the share of the records that no batch has.
    """

    labels: int
    records: int
    texts: int | None = None
    limit: Limit | None = None
    held_out: float = 0.0

    @property
    def placed(self) -> float:
        """How many records a label has in batches, about."""
        return self.records * (1 - self.held_out) / self.labels

    @property
    def texts_of_label(self) -> int | None:
        """How many texts a label may have; None for no limit."""
        return None if self.texts is None else self.texts // self.labels


@dataclass(frozen=True)
class Sizes:
    """Sizes of a run.

    Attributes:
        contexts: of a batch, on average.
        batches: into how many of them each label's records are hashed, in a round.
        generated: how many of those are generated.
        rounds: how often.
        examples: records of a context.
    """

    contexts: int
    batches: int
    generated: int
    rounds: int = 1
    examples: int = 1

    @classmethod
    def of(cls, wish: Wish, contexts: int, examples: int = 1) -> Sizes:
        """Return one round of filled batches; there are none where the records fill none."""
        held = _records_of(contexts, examples)
        batches = math.floor(wish.placed / held + 0.5)
        most = batches if wish.texts_of_label is None else wish.texts_of_label
        return cls(contexts, batches, min(batches, most), 1, examples)

    def in_rounds(self, most: int, texts: int | None) -> Sizes:
        """Return these sizes in up to `most` rounds, for up to `texts` texts of a label."""
        if texts is None:
            return replace(self, rounds=most)
        rounds = min(most, math.ceil(texts / self.batches))
        return replace(self, rounds=rounds, generated=min(self.batches, texts // rounds))

    @property
    def cells(self) -> int | None:
        """Cells of a batch, of which those with exactly `examples` records are its contexts."""
        return None if self.examples == 1 else _cells_of(self.contexts, self.examples)

    @property
    def records(self) -> int:
        """Records of a batch, about."""
        return round(_records_of(self.contexts, self.examples))

    @property
    def rule(self) -> BatchingRule:
        """The rule by which records become contexts."""
        return "hashed-records" if self.cells is None else "hashed-cells"

    @property
    def texts_of_label(self) -> int:
        """All texts of a label."""
        return int(self.generated * self.rounds)


def _cells_of(contexts: int, examples: int) -> int:
    """Return how many cells give so many contexts, by the rate at which records give most."""
    rate = examples - 1
    share = float(rate) ** examples * math.exp(-rate) / math.factorial(examples)  # Poisson
    return math.ceil(contexts / share)


def _records_of(contexts: int, examples: int) -> float:
    return (
        float(contexts) if examples == 1 else float((examples - 1) * _cells_of(contexts, examples))
    )


@dataclass(frozen=True)
class Pricing:
    """A mean's cost for one unit, by its batches' contexts.

    Attributes:
        mechanism: with any divisor and margin, which follow from the contexts.
        tokens: the most of a batch.
        delta: of the claim.
        privacy: the unit and its relation.
    """

    mechanism: Mechanism
    tokens: int
    delta: float
    privacy: Privacy

    def of(self, contexts: int) -> Mechanism:
        """Return the mechanism with a divisor of so many contexts.

        Its margin is what one of them can lift a token by.
        """
        fields = self.mechanism.model_dump()
        fields["aggregator"]["divisor"] = float(contexts)
        fields["support"]["margin"] = self.margin(contexts)
        return Mechanism.model_validate(fields)

    def margin(self, contexts: int) -> float:
        """Return how far one of the contexts can lift a token, to three digits."""
        return float(f"{2 * self.mechanism.clip / contexts:.3g}")

    def clipped(self, share: float) -> Pricing:
        """Return the pricing with that share of the clip."""
        contribution = self.mechanism.contribution
        clipped = contribution.model_copy(update={"clip": contribution.clip * share})
        return replace(self, mechanism=self.mechanism.model_copy(update={"contribution": clipped}))

    def batch_level(self, sizes: Sizes) -> float:
        """Return epsilon for someone who knows a record's batches.

        It is by the accounting that anyone can repeat.
        """
        found = self._accountant(sizes).batch_level(self.tokens, self.delta, "rdp")
        return float(decimals(found.epsilon, 4, most=math.inf))

    def release(self, sizes: Sizes) -> float:
        """Return a run's claim: epsilon for readers who do not know a record's batches.

        It is rounded up.
        """
        found = self._accountant(sizes).epsilon(self.tokens, self.delta)
        return min(float(decimals(found, 4, most=math.inf)), self.batch_level(sizes))

    def attacks(self, sizes: Sizes) -> tuple[AttackBound, AttackBound]:
        """Return what readers can do, and what someone can who knows a record's batches."""
        whole = self._accountant(sizes)
        curves = whole.attack_curve, whole.batch_attack_curve
        readers, known = (AttackBound.of(curve(self.tokens, self.delta)) for curve in curves)
        return readers, known

    def most_rounds(self, sizes: Sizes, limit: Limit, texts: int | None) -> int:
        """Return how many rounds of these sizes are within a limit for readers.

        For up to `texts` texts of a label, no more rounds are looked at than these need.
        """
        accountant = self._accountant(replace(sizes, rounds=1))
        if texts is not None:
            needed = min(math.ceil(texts / sizes.batches), MAX_ROUNDS)
            spent = accountant.of_rounds(needed).spent(limit, self.tokens, self.delta)
            if spent <= amount_of(limit):
                return needed
        return accountant.most_rounds_within(limit, self.tokens, self.delta)

    def spent_of_batch(self, contexts: int, limit: Limit) -> float:
        """Return the figure of one batch that a limit is about, at the batch level, rounded up."""
        sizes = Sizes(contexts, 1, 1)
        if not isinstance(limit, AttackLimit):
            return self.batch_level(sizes)
        curve = self._accountant(sizes).batch_attack_curve(self.tokens, self.delta)
        return float(decimals(limit.reached(curve)))

    def contexts(self, limit: Limit) -> int:
        """Find the fewest contexts, FEWEST or more, whose batch level is within a limit.

        MOST are.
        """
        guess = float(FEWEST)
        if isinstance(limit, AttackLimit):
            one = self._accountant(Sizes(1, 1, 1)).batch
            guess = one.eta * math.sqrt(self.tokens) / (2 * limit.deviations())

        def too_few(contexts: int) -> bool:
            if contexts < FEWEST:
                return True
            return contexts < MOST and self.spent_of_batch(contexts, limit) > amount_of(limit)

        return 1 + largest(too_few, max(FEWEST, min(round(guess), MOST)) - 1)

    def _accountant(self, sizes: Sizes) -> ReleaseAccountant:
        mechanism = self.of(sizes.contexts)
        batch = ApproximateAccountant.of(
            mechanism, self.privacy.change(sizes.rule), rounds=sizes.rounds
        )
        assert batch is not None, "a mean's cost is known beforehand"
        secret = SecretBatches(((sizes.batches, sizes.generated),), sizes.rounds)
        return ReleaseAccountant.of(batch, mechanism, self.privacy, sizes.rule, secret)


@dataclass(frozen=True)
class Choice:
    """One plan of the menu: what is offered, and the settings that do it."""

    offer: Offer
    sizes: Sizes
    pricing: Pricing | None


def plans(wish: Wish, contexts: int, pricing: Pricing | None) -> dict[PlanName, Choice]:
    """Return the plans for a wish, of batches with `contexts` contexts where the limit allows.

    Args:
        wish: the request.
        contexts: the mechanism's own number.
        pricing: None for a mechanism whose cost only its texts show.

    Raises:
        InputError: the records do not give a text of each label within that limit; says which
            numbers would do.
    """
    if wish.texts_of_label == 0:
        problem = f"that is less than one text for each of the {wish.labels:,} labels."
        raise InputError("--texts", problem, f"Give --texts {wish.labels} or more.")
    sizes = _many(wish, contexts, pricing)
    if pricing is None or wish.limit is None:
        return {"many": Choice(_offer("many", wish, sizes, None, 0.0), sizes, None)}
    found: list[tuple[PlanName, Sizes, Pricing]] = [("many", sizes, pricing)]
    for examples in _EXAMPLES if sizes.contexts == contexts else ():
        close = Sizes.of(wish, contexts, examples)
        if close.batches < _ENOUGH_BATCHES:
            continue
        if rounds := pricing.most_rounds(close, wish.limit, wish.texts_of_label):
            found.append(
                ("close", close.in_rounds(min(rounds, MAX_ROUNDS), wish.texts_of_label), pricing)
            )
            break
    found.append(("careful", sizes, pricing.clipped(_CAREFUL)))
    clip = pricing.mechanism.clip
    return {
        name: Choice(_offer(name, wish, of, price, clip), of, price) for name, of, price in found
    }


def _offer(name: PlanName, wish: Wish, sizes: Sizes, pricing: Pricing | None, clip: float) -> Offer:
    attacks = (None, None) if pricing is None else pricing.attacks(sizes)
    return Offer(
        name=name,
        texts=sizes.texts_of_label * wish.labels,
        rounds=sizes.rounds,
        records=sizes.records,
        contexts=sizes.contexts,
        examples=sizes.examples,
        influence=1.0 if pricing is None else pricing.mechanism.clip / clip,
        epsilon=None if pricing is None else pricing.release(sizes),
        batch_epsilon=None if pricing is None else pricing.batch_level(sizes),
        attack=attacks[0],
        batch_attack=attacks[1],
    )


def _many(wish: Wish, contexts: int, pricing: Pricing | None) -> Sizes:
    """Return the sizes that give most texts: one example a context, in rounds.

    Raises:
        InputError: the records do not give a text of each label.
    """
    sizes, limit, texts = Sizes.of(wish, contexts), wish.limit, wish.texts_of_label
    if pricing is None or limit is None:
        if not sizes.batches:
            raise _too_few_error(wish, sizes, pricing)
        return sizes.in_rounds(MAX_ROUNDS if texts else 1, texts)
    rounds = pricing.most_rounds(sizes, limit, texts) if sizes.batches > 1 else 0
    if not rounds:
        if pricing.spent_of_batch(MOST, limit) > amount_of(limit):
            raise _too_small_error(wish, limit, pricing)
        # Smaller batches make room where a label has a single one, and only raise the cost
        # elsewhere.
        fewest = pricing.contexts(limit)
        sizes = Sizes.of(wish, fewest if sizes.batches < 2 else max(contexts, fewest))
        if not sizes.batches:
            raise _too_few_error(wish, sizes, pricing)
        rounds = pricing.most_rounds(sizes, limit, texts)
    most = min(rounds, MAX_ROUNDS, MAX_BATCHES // (wish.labels * sizes.batches))
    return sizes.in_rounds(max(1, most), texts)


def _most_contexts(wish: Wish) -> int:
    """Return the most contexts that fill a batch of a label. Half as many still round up to one."""
    return min(MOST, math.floor(wish.placed / 0.5))


def _name(limit: Limit) -> str:
    if isinstance(limit, AttackLimit):
        return "--advantage" if limit.at is None else "--true-positives"
    return "--epsilon"


def _option(limit: Limit, amount: float) -> str:
    """Return the option that asks for a limit of another amount."""
    at = limit.at if isinstance(limit, AttackLimit) else None
    return f"{_name(limit)} {stated(amount)}" + ("" if at is None else f"@{stated(at)}")


def _words(limit: Limit) -> str:
    return str(limit) if isinstance(limit, AttackLimit) else f"epsilon {stated(limit)}"


def _too_small_error(wish: Wish, limit: Limit, pricing: Pricing) -> InputError:
    """Refuse a limit that no batch is large enough for.

    Name one that the same records can have.
    """
    problem = f"{_words(limit)} needs more than {MOST:,} records in a batch."
    remedy, contexts = "Have more records.", _most_contexts(wish)
    if contexts >= FEWEST:
        least = pricing.spent_of_batch(contexts, limit)
        remedy = f"Give {_option(limit, least)} or more."
    return InputError(_name(limit), problem, remedy)


def _too_few_error(wish: Wish, sizes: Sizes, pricing: Pricing | None) -> InputError:
    """Return the error that the records fill no batch of a label."""
    limit = wish.limit
    at = "" if limit is None else f" at {_words(limit)}"
    problem = (
        f"a text needs {sizes.contexts:,} records of its label{at}: {wish.records:,} records are "
        "too few."
    )
    least = math.ceil(sizes.contexts * wish.labels / (1 - wish.held_out))
    ways = [f"{least:,} records or more"]
    if pricing is not None and limit is not None and (most := _most_contexts(wish)) >= FEWEST:
        ways.insert(0, _option(limit, pricing.spent_of_batch(most, limit)))
    where = "--records" if limit is None else _name(limit)
    return InputError(where, problem, f"Try: {', or '.join(ways)}.")
