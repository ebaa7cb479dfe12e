"""The number of texts that records give within a limit, by public numbers alone.

`dpaudit init` chooses batches by it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dpaudit.accounting import ApproximateAccountant, AttackLimit, Limit, ReleaseAccountant
from dpaudit.accounting.approximate import largest
from dpaudit.accounting.release import amount_of
from dpaudit.mechanisms import ContextChange, Mechanism
from dpaudit.results import AttackBound
from dpaudit.results.rounding import decimals, stated
from dpaudit.runs import InputError, SecretBatches

#: Contexts of a batch: with fewer noise decides most tokens; a larger one is not chosen.
FEWEST, MOST = 8, 1 << 14
#: Batches of a label where nobody says how many records there are, and how many of them are
#: generated at least: what two take from the public prompt can be compared.
BATCHES, GENERATED = 10, 2


@dataclass(frozen=True)
class Wish:
    """The requested size of a first config; None if nothing is requested.

    Attributes:
        labels: how many there are; 1 without any.
        records: about how many there are, as everyone may know.
        texts: how many, at least.
        limit: what a mean may cost.
    """

    labels: int
    records: int | None = None
    texts: int | None = None
    limit: Limit | None = None


@dataclass(frozen=True)
class Pricing:
    """A mean's cost for one record, by its batches' contexts.

    One record more or less is one context more or less.

    Attributes:
        mechanism: with any divisor and margin, which follow from the contexts.
        tokens: the most of a batch.
        delta: of the claim.
    """

    mechanism: Mechanism
    tokens: int
    delta: float

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

    def batch_level(self, contexts: int, rounds: int = 1) -> float:
        """Return epsilon of so many rounds for someone who knows a record's batches.

        It is by the accounting that anyone can repeat.
        """
        found = replace(self._one(contexts), rounds=rounds).epsilon(self.tokens, self.delta, "rdp")
        return float(decimals(found.epsilon, 4, most=math.inf))

    def release(self, sizes: Sizes) -> float:
        """Return a run's claim: epsilon for readers who do not know a record's batches.

        It is rounded up.
        """
        found = self._secret(sizes).of_rounds(sizes.rounds).epsilon(self.tokens, self.delta)
        return min(
            float(decimals(found, 4, most=math.inf)), self.batch_level(sizes.contexts, sizes.rounds)
        )

    def attacks(self, sizes: Sizes) -> tuple[AttackBound, AttackBound]:
        """Return what readers can do, and what someone can who knows a record's batch."""
        whole = self._secret(sizes).of_rounds(sizes.rounds)
        curves = whole.attack_curve, whole.batch_attack_curve
        readers, known = (AttackBound.of(curve(self.tokens, self.delta)) for curve in curves)
        return readers, known

    def spent(self, sizes: Sizes, limit: Limit) -> float:
        """Return the figure of readers that a limit is about, rounded up."""
        if not isinstance(limit, AttackLimit):
            return self.release(sizes)
        whole = self._secret(sizes).of_rounds(sizes.rounds)
        return float(decimals(whole.spent(limit, self.tokens, self.delta)))

    def spent_of_batch(self, contexts: int, limit: Limit) -> float:
        """Return the same of one round for someone who knows a record's batch."""
        if not isinstance(limit, AttackLimit):
            return self.batch_level(contexts)
        curve = self._one(contexts).attack_curve(self.tokens, self.delta)
        return float(decimals(limit.reached(curve)))

    def most_rounds(self, sizes: Sizes, limit: Limit) -> int:
        """Return how many rounds of these sizes are within a limit for readers."""
        return self._secret(sizes).most_rounds_within(limit, self.tokens, self.delta)

    def contexts(self, limit: Limit) -> int:
        """Find the fewest contexts, FEWEST or more, whose batch level is within a limit.

        MOST are.
        """
        guess = float(FEWEST)
        if isinstance(limit, AttackLimit):
            guess = self._one(1).eta * math.sqrt(self.tokens) / (2 * limit.deviations())

        def too_few(contexts: int) -> bool:
            if contexts < FEWEST:
                return True
            return contexts < MOST and self.spent_of_batch(contexts, limit) > amount_of(limit)

        return 1 + largest(too_few, max(FEWEST, min(round(guess), MOST)) - 1)

    def _one(self, contexts: int) -> ApproximateAccountant:
        accountant = ApproximateAccountant.of(self.of(contexts), ContextChange("add_remove"))
        assert accountant is not None, "a mean's cost is known beforehand"
        return accountant

    def _secret(self, sizes: Sizes) -> ReleaseAccountant:
        one = self._one(sizes.contexts)
        return ReleaseAccountant(one, one, SecretBatches(((sizes.batches, sizes.generated),)))


@dataclass(frozen=True)
class Sizes:
    """Sizes of a run.

    Attributes:
        contexts: records of a batch.
        batches: into how many of them each label's records are hashed, in a round.
        generated: how many of those are generated.
        rounds: how often.
    """

    contexts: int
    batches: int
    generated: int
    rounds: int = 1

    @classmethod
    def of(cls, wish: Wish, contexts: int, pricing: Pricing | None) -> Sizes:
        """Return the sizes for a wish: `contexts` to a batch, or more where its limit needs them.

        Args:
            wish: the request.
            contexts: the mechanism's own number.
            pricing: None for a mechanism whose epsilon only its texts show.

        Raises:
            InputError: the records do not give as many texts within that limit; says which numbers
                would do.
        """
        sizes = cls._by_filled_batches(wish, contexts)
        if pricing is None or wish.limit is None:
            return sizes.required(wish, pricing)
        limit, allowed = wish.limit, amount_of(wish.limit)
        # The readers' limit is mostly within reach; else batches are so large that each of them is.
        least = math.inf
        if sizes.generated <= sizes.batches and sizes.batches > 1:
            least = pricing.spent(sizes, limit)
        if least > allowed:
            if pricing.spent_of_batch(MOST, limit) > allowed:
                raise _too_small_error(wish, limit, pricing)
            fewest = pricing.contexts(limit)
            # Smaller batches make room where a label has a single one, and only raise the cost
            # elsewhere.
            sizes = cls._by_filled_batches(
                wish, fewest if least == math.inf else max(contexts, fewest)
            )
        sizes.required(wish, pricing)
        if (found := pricing.spent(sizes, limit)) > allowed:
            rounds = pricing.most_rounds(sizes, limit)
            ways = [f"--texts {rounds * sizes.batches * wish.labels}"] if rounds else []
            # At the cost of the first sizes these are taken again; at that of others, others still
            # would be.
            ways += [_option(limit, least)] if math.isfinite(least) else []
            cost = least if math.isfinite(least) else found
            problem = f"{wish.texts or 0:,} texts cost {_words(limit, cost)} at the release level."
            raise InputError(_name(limit), problem, f"Try: {', or '.join(ways)}.")
        return sizes

    @classmethod
    def _by_filled_batches(cls, wish: Wish, contexts: int) -> Sizes:
        """Return sizes by batches of `contexts` contexts, in rounds for more texts than batches."""
        asked = max(GENERATED, math.ceil((wish.texts or 0) / wish.labels))
        if wish.records is None:
            return cls(contexts, max(BATCHES, asked), asked)
        batches = math.floor(wish.records / wish.labels / contexts + 0.5)
        if wish.texts is None:
            return cls(contexts, batches, max(asked, batches))
        rounds = max(1, math.ceil(asked / batches)) if batches >= GENERATED else 1
        return cls(contexts, batches, math.ceil(asked / rounds), rounds)

    def required(self, wish: Wish, pricing: Pricing | None) -> Sizes:
        """Return these sizes.

        Raises:
            InputError: the records do not fill as many batches.
        """
        if self.generated > self.batches:
            raise _too_few_error(wish, self, pricing)
        return self


def _most_contexts(wish: Wish, generated: int) -> int:
    """Return the most contexts that fill so many batches of a label.

    Somewhat fewer round up to one more batch.
    """
    return (
        MOST
        if wish.records is None
        else min(MOST, math.floor(wish.records / wish.labels / (generated - 0.5)))
    )


def _name(limit: Limit) -> str:
    if isinstance(limit, AttackLimit):
        return "--advantage" if limit.at is None else "--true-positives"
    return "--epsilon"


def _option(limit: Limit, amount: float) -> str:
    """Return the option that asks for a limit of another amount."""
    at = limit.at if isinstance(limit, AttackLimit) else None
    return f"{_name(limit)} {stated(amount)}" + ("" if at is None else f"@{stated(at)}")


def _words(limit: Limit, amount: float) -> str:
    if isinstance(limit, AttackLimit):
        return str(replace(limit, most=amount)) if amount < 1 else "everything"
    return f"epsilon {stated(amount)}"


def _too_small_error(wish: Wish, limit: Limit, pricing: Pricing) -> InputError:
    """Refuse a limit that no batch is large enough for.

    Name one that the same records and texts can have.
    """
    problem = f"{_words(limit, amount_of(limit))} needs more than {MOST:,} records in a batch."
    contexts = _most_contexts(wish, max(GENERATED, math.ceil((wish.texts or 0) / wish.labels)))
    remedy = "Ask for fewer texts, or have more records."
    if contexts >= FEWEST:
        remedy = f"Give {_option(limit, pricing.spent_of_batch(contexts, limit))} or more."
    return InputError(_name(limit), problem, remedy)


def _too_few_error(wish: Wish, sizes: Sizes, pricing: Pricing | None) -> InputError:
    """Return the error that the records give fewer batches than a label needs."""
    records, least, limit = wish.records or 0, sizes.generated * wish.labels, wish.limit
    given = "no text" if not sizes.batches else f"{sizes.batches * wish.labels:,} texts a round"
    at = "" if limit is None else f" at {_words(limit, amount_of(limit))}"
    problem = (
        f"{least:,} texts are needed, each from {sizes.contexts:,} records{at}: your "
        f"{records:,} records give {given}."
    )
    ways = [f"{least * sizes.contexts:,} records or more"]
    if pricing is not None and (fewer := _most_contexts(wish, sizes.generated)) >= FEWEST:
        asked = math.inf if limit is None else limit
        ways.insert(0, _option(asked, pricing.spent_of_batch(fewer, asked)))
    where = "--records" if limit is None else _name(limit)
    if wish.texts is not None:
        where = "--texts"
    return InputError(where, problem, f"Try: {', or '.join(ways)}.")
