"""How many texts so many records give at an epsilon: what `dpaudit init` chooses batches by. Public numbers alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpaudit.accounting import ApproximateAccountant
from dpaudit.mechanisms import ContextChange, Mechanism
from dpaudit.results.rounding import decimals, stated
from dpaudit.runs import InputError

#: Contexts of a batch: with fewer noise decides most tokens; a larger one is not chosen.
FEWEST, MOST = 8, 1 << 14
#: Batches of a label where nobody says how many records there are, and how many of them are generated at least: what
#: two take from the public prompt can be compared.
BATCHES, GENERATED = 10, 2


@dataclass(frozen=True)
class Wish:
    """What is asked of a first config's size; None where nothing is.

    Attributes:
        labels: how many there are; 1 without any.
        records: about how many there are, as everyone may know.
        texts: how many, at least.
        epsilon: of a mean's claim, at most, in nats.
    """

    labels: int
    records: int | None = None
    texts: int | None = None
    epsilon: float | None = None


@dataclass(frozen=True)
class Pricing:
    """What a mean costs one record by the contexts of its batches: a record more or less is a context more or less.

    Attributes:
        mechanism: whatever its divisor and its margin, which go by the contexts.
        tokens: the most of a batch.
        delta: of the claim.
    """

    mechanism: Mechanism
    tokens: int
    delta: float

    def of(self, contexts: int) -> Mechanism:
        """The mechanism whose divisor is so many contexts, and whose margin is what one of them can lift a token by."""
        fields = self.mechanism.model_dump()
        return Mechanism.model_validate(
            fields | {"divisor": float(contexts), "support": fields["support"] | {"margin": self.margin(contexts)}}
        )

    def margin(self, contexts: int) -> float:
        """What one of so many contexts can lift a token by, to three digits."""
        return float(f"{2 * self.mechanism.clip / contexts:.3g}")

    def claim(self, contexts: int) -> float:
        """Epsilon as a run with so many contexts claims it: rounded up, by the accounting that anyone can repeat."""
        accountant = ApproximateAccountant.of(self.of(contexts), ContextChange("add_remove"))
        assert accountant is not None, "a mean's cost is known beforehand"
        return float(decimals(accountant.epsilon(self.tokens, self.delta, "rdp").epsilon, 4, most=math.inf))

    def contexts(self, epsilon: float) -> int:
        """The fewest contexts, of at least FEWEST, whose claim is at most `epsilon`. Raises InputError beyond MOST."""
        low, high = FEWEST - 1, MOST
        if self.claim(high) > epsilon:
            problem = f"at {stated(epsilon)} a batch would need more than {MOST:,} records."
            raise InputError("--epsilon", problem, f"The least that can be had is {stated(self.claim(MOST))}.")
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.claim(middle) <= epsilon else (middle, high)
        return high


@dataclass(frozen=True)
class Sizes:
    """Sizes of a run.

    Attributes:
        contexts: records of a batch.
        batches: into how many of them each label's records are hashed.
        generated: how many of those are generated.
    """

    contexts: int
    batches: int
    generated: int

    @classmethod
    def of(cls, wish: Wish, contexts: int, pricing: Pricing | None) -> Sizes:
        """The sizes that a wish leads to, with so many contexts to a batch where it names no epsilon.

        Args:
            wish: what is asked for.
            contexts: the mechanism's own number.
            pricing: None for a mechanism whose epsilon only its texts show.

        Raises:
            InputError: the records do not give as many texts at that epsilon; says which numbers would do.
        """
        if pricing is not None and wish.epsilon is not None:
            contexts = pricing.contexts(wish.epsilon)
        asked = max(GENERATED, math.ceil((wish.texts or 0) / wish.labels))
        if wish.records is None:
            return cls(contexts, max(BATCHES, asked), asked)
        batches = math.floor(wish.records / wish.labels / contexts + 0.5)
        generated = asked if wish.texts is not None else max(asked, batches)
        if generated > batches:
            raise _too_few(wish, cls(contexts, batches, generated), pricing)
        return cls(contexts, batches, generated)


def _too_few(wish: Wish, sizes: Sizes, pricing: Pricing | None) -> InputError:
    """The records give fewer texts than are asked for, or than a label needs that are compared."""
    records, least = wish.records or 0, sizes.generated * wish.labels
    at = "" if pricing is None else f" at epsilon {stated(pricing.claim(sizes.contexts))}"
    given = "no text" if not sizes.batches else f"{sizes.batches * wish.labels:,} texts"
    found = f"{records:,} records give {given} of {sizes.contexts:,} records each{at}"
    problem = f"{found}, and {least:,} are asked for or needed."
    ways = [f"{least * sizes.contexts:,} records or more"]
    if wish.texts is not None and sizes.batches >= GENERATED:
        ways.insert(0, f"--texts {sizes.batches * wish.labels}")
    # A batch may have somewhat fewer records than the divisor says, as many as rounding makes of it.
    fewer = math.floor(records / wish.labels / (sizes.generated - 0.5))
    if pricing is not None and fewer >= FEWEST:
        ways.insert(0, f"--epsilon {stated(pricing.claim(fewer))}")
    where = "--texts" if wish.texts is not None else "--records" if wish.epsilon is None else "--epsilon"
    return InputError(where, problem, f"What would do: {', or '.join(ways)}.")
