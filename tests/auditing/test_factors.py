"""What is said of an epsilon in words promises no more than it does."""

from __future__ import annotations

import math
from decimal import Context, Decimal

from hypothesis import given
from hypothesis import strategies as st

from dpaudit.auditing.caveats import empty_bound
from dpaudit.results.rounding import factor

_PRECISE = Context(prec=60)


def shown(epsilon: float) -> Decimal:
    return Decimal(factor(epsilon).partition(" ")[0])


@given(st.floats(1e-300, math.log(999.9)))
def test_a_factor_is_never_below_its_epsilon(epsilon: float) -> None:
    true = Decimal(epsilon).exp(_PRECISE)
    assert true < shown(epsilon) <= true * Decimal("1.0101")


def test_an_epsilon_just_above_a_round_factor_shows_the_next_one() -> None:
    for hundredths in range(101, 1000):
        for epsilon in (
            near := math.log(hundredths / 100),
            math.nextafter(near, 0),
            math.nextafter(near, 10),
        ):
            assert shown(epsilon) >= Decimal(epsilon).exp(_PRECISE), hundredths


def test_a_factor_has_three_digits_while_they_say_something() -> None:
    for epsilon, said in [
        (3.0, "20.1 (e^3)"),
        (1.0, "2.72 (e^1)"),
        (6.9, "993 (e^6.9)"),
        (120.0, "e^120"),
        (0.0, "e^0"),
    ]:
        assert factor(epsilon) == said


def test_a_factor_that_rules_out_nothing_is_said_to() -> None:
    assert list(empty_bound(10.0)) == list(empty_bound(math.nan)) == []
    (found,) = empty_bound(120.0)
    assert found.code == "empty-bound.factor"
    assert found.values["digits"] == len(str(int(Decimal(120).exp())))
    (endless,) = empty_bound(math.inf)
    assert endless.values.keys() == {"epsilon", "endless"}
