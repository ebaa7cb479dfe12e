"""How numbers are printed. Bounds are rounded up, so that a report never promises more privacy than was computed."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal

DIGITS = 4
_CHECK_DECIMALS = 6
_ENOUGH_DIGITS = 17  # a double never needs more
_SMALLEST_PLAIN = Decimal("1e-4")
_LARGEST_PLAIN = Decimal("1e15")


def bound(value: float, digits: int = DIGITS) -> str:
    """A figure that promises "at most this": `digits` significant digits, rounded up."""
    return _shown(value, digits, ROUND_CEILING)


def lower_bound(value: float) -> str:
    """A figure that says "at least this": rounded down."""
    return _shown(value, DIGITS, ROUND_FLOOR)


def nearest(value: float, digits: int = DIGITS) -> str:
    """A figure that was measured and promises nothing: `digits` significant digits, rounded to the nearest."""
    return _shown(value, digits, ROUND_HALF_EVEN)


def stated(value: float) -> str:
    """A figure somebody stated, exactly as stated: never rounded in either direction."""
    if not math.isfinite(value):
        return _in_words(value)
    return str(int(value)) if value == int(value) and abs(value) < _LARGEST_PLAIN else repr(float(value))


def _digits_beside(value: float, claimed: float) -> int:
    """How many digits it takes for rounding a bound up not to push it past the claim it stands beside."""
    if not (math.isfinite(value) and math.isfinite(claimed)) or value > claimed:
        return DIGITS
    for digits in range(DIGITS, _ENOUGH_DIGITS):
        if _rounded(value, digits, ROUND_CEILING) <= Decimal(repr(float(claimed))):
            return digits
    return _ENOUGH_DIGITS


def digits_against(value: float, claimed: float) -> int:
    """As `bound_beside` needs; for a figure that exceeds its claim six decimals at least, like the check's."""
    if math.isfinite(value) and value > claimed:
        return max(DIGITS, Decimal(repr(float(value))).adjusted() + 1 + _CHECK_DECIMALS)
    return _digits_beside(value, claimed)


def bound_beside(value: float, claimed: float) -> str:
    """A bound with as many digits as it takes for rounding up not to push it past the claim it stands beside."""
    return bound(value, _digits_beside(value, claimed))


def bound_against(value: float, claimed: float) -> str:
    """As `bound_beside`, with the digits of `digits_against`."""
    return bound(value, digits_against(value, claimed))


def saving(larger: float, smaller: float) -> str:
    """By how much the second of two bounds improves on the first, in nats and percent: `0.0470 (5.8%)`."""
    saved = larger - smaller
    if not math.isfinite(saved):
        return "not finite"
    if saved == 0:
        return "none"
    return f"{nearest(saved, 3)} ({nearest(100 * saved / larger, 2)}%)" if larger else nearest(saved, 3)


def _shown(value: float, digits: int, rounding: str) -> str:
    if not math.isfinite(value):
        return _in_words(value)
    if value == 0:
        return "0"
    rounded = _rounded(value, digits, rounding)
    if _SMALLEST_PLAIN <= abs(rounded) < _LARGEST_PLAIN:
        return f"{rounded:,f}"
    return f"{rounded:.{digits - 1}e}"


def _rounded(value: float, digits: int, rounding: str) -> Decimal:
    # The shortest decimal that reads back as this double, not its exact binary value: 0.1 must not become 0.1001.
    exact = Decimal(repr(float(value)))
    if exact == 0:
        return exact
    rounded = _quantized(exact, exact.adjusted(), digits, rounding)
    # 9.9996 became 10.000, with a digit too many.
    return _quantized(rounded, rounded.adjusted(), digits, rounding)


def _quantized(number: Decimal, exponent: int, digits: int, rounding: str) -> Decimal:
    places = exponent - digits + 1
    if places > 0 and abs(number) < _LARGEST_PLAIN:
        places = 0  # 12345.6 becomes 12,346, not 12,350
    return number.quantize(Decimal(1).scaleb(places), rounding=rounding)


def _in_words(value: float) -> str:
    if math.isnan(value):
        return "not a number"
    return "infinite" if value > 0 else "minus infinite"
