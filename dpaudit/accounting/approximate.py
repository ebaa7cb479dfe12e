"""What a run costs beforehand: (epsilon, delta) from public settings alone, for every text that could come out."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dpaudit.accounting.composition import (
    Composition,
    Method,
    epsilons_by_steps,
    exponential_mechanism_epsilon,
    rounded_sum,
    steps_within,
    zcdp_of_range,
)
from dpaudit.mechanisms import ContextChange, Mechanism

MOST_TOKENS = 1 << 40


@dataclass(frozen=True)
class ApproximateAccountant:
    """The approximate guarantee of runs by their number of tokens.

    Noisy counts are composed jointly with the tokens; the centres' epsilon and delta are added to theirs.

    Attributes:
        eta: bounded range of one draw, in nats; infinite where nothing bounds it.
        laplace: epsilons of noisy counts, one each (`rebalancing_events`).
        centers: epsilon of noised centres, in nats.
        centers_delta: their delta.

    Raises:
        ValueError: what the centres cost is negative or no number.
    """

    eta: float
    laplace: tuple[float, ...] = ()
    centers: float = 0.0
    centers_delta: float = 0.0

    def __post_init__(self) -> None:
        if not (self.centers >= 0 and 0 <= self.centers_delta <= 1):
            raise ValueError(
                f"centres cost at least 0, with a delta from 0 to 1, not {self.centers}, {self.centers_delta}"
            )

    @classmethod
    def of(
        cls,
        mechanism: Mechanism,
        change: ContextChange | None,
        *,
        laplace: tuple[float, ...] = (),
        centers: float = 0.0,
        centers_delta: float = 0.0,
    ) -> ApproximateAccountant | None:
        """The accountant of a mechanism, None if only the data shows its cost; under no change nothing is bounded."""
        eta = mechanism.eta(change or ContextChange("add_remove"))
        if eta is None:
            return None
        return cls(math.inf if change is None else eta, laplace, centers, centers_delta)

    def without_clusters(self) -> ApproximateAccountant:
        """The accountant of the tokens alone."""
        return replace(self, laplace=(), centers=0.0, centers_delta=0.0)

    def rho(self, tokens: int) -> float:
        """rho of the zCDP guarantee of so many tokens: eta^2 / 8 each."""
        return zcdp_of_range(self.eta, tokens)

    def delta_left(self, delta: float) -> float:
        """What the centres leave of a delta, rounded down; 0 where nothing."""
        return max(0.0, math.nextafter(delta - self.centers_delta, 0.0)) if self.centers_delta else delta

    def epsilon(self, tokens: int, delta: float, method: Method = "optimal") -> Composition:
        """What a run costs that may sample up to `tokens` tokens in every batch.

        Args:
            tokens: the most that a batch may have, not a realised number.
            delta: in (0, 1), of everything.
            method: how to compose (`exponential_mechanism_epsilon`).

        Raises:
            ValueError: an argument is out of its range.
        """
        if not 0 < delta < 1:
            raise ValueError(f"delta must lie strictly between 0 and 1, not {delta}")
        left = self.delta_left(delta)
        if not left:  # the centres alone have spent it
            return Composition(math.inf, None, delta, method)
        found = exponential_mechanism_epsilon(self.eta, tokens, left, method=method, laplace=self.laplace)
        lower = None if self.centers_delta else found.epsilon_lower
        return Composition(rounded_sum(found.epsilon, self.centers), lower, delta, found.method)

    def epsilons(self, tokens: Sequence[int], delta: float, method: Method) -> list[float | None]:
        """`epsilon` at several lengths, positive and ascending, at once; None where "optimal" does not reach."""
        found = epsilons_by_steps(self.eta, tokens, self.delta_left(delta), method=method, laplace=self.laplace)
        return [None if epsilon is None else rounded_sum(epsilon, self.centers) for epsilon in found]

    def affordable_tokens(self, epsilon: float, delta: float, method: Method = "rdp") -> int:
        """The most tokens a batch may have while the run stays within `epsilon` at `delta`.

        Raises:
            ValueError: an argument is out of its range, clusters alone exceed `epsilon`, or the answer is beyond 2^40
                tokens.
        """
        if not 0 < epsilon < math.inf:
            raise ValueError(f"epsilon must be positive and finite, not {epsilon}")

        def within(tokens: int, by: Method = method) -> bool:
            return self.epsilon(tokens, delta, by).epsilon <= epsilon

        if not within(0):
            spent = "the clusters alone cost" if self.centers or self.centers_delta else "the rebalancing alone costs"
            raise ValueError(f"epsilon {epsilon:g} is less than {spent}")
        if method == "rdp":
            return _largest(within, 0)
        by_rdp = _largest(lambda tokens: within(tokens, "rdp"), 0) if within(0, "rdp") else 0
        # One pass over the recursion comes close; a few calls of the bound itself settle it.
        most, left = by_rdp + by_rdp // 4 + 16, epsilon - self.centers
        guess = steps_within(left, self.eta, most, self.delta_left(delta), laplace=self.laplace)
        return _largest(within, max(by_rdp, guess))


def _largest(within: Callable[[int], bool], guess: int) -> int:
    """The largest number that is within, near `guess`: strides that double, then bisection. 0 is within."""
    if within(guess):
        low, high = guess, guess + 1
        while within(high):
            low, high = high, 2 * high - guess
            if low > MOST_TOKENS:
                raise ValueError("this epsilon affords more than 2^40 tokens under these settings: check them")
    else:
        low, high = guess - 1, guess
        while not within(low):
            low, high = max(0, 2 * low - guess), low
    return low + bisect_left(range(low + 1, high), True, key=lambda tokens: not within(tokens))
