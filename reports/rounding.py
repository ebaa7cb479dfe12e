"""How numbers are printed. Bounds are rounded up, so that a report never promises more privacy than was computed."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Decimal

DIGITS = 4
_ENOUGH_DIGITS = 17  # a double never needs more
_SMALLEST_PLAIN = Decimal("1e-4")
_LARGEST_PLAIN = Decimal("1e15")


def bound(value: float, digits: int = DIGITS) -> str:
    """A figure that promises "at most this": `digits` significant digits, rounded up."""
    return _shown(value, digits, ROUND_CEILING)


def nearest(value: float, digits: int = DIGITS) -> str:
    """A figure that was measured and promises nothing: `digits` significant digits, rounded to the nearest."""
    return _shown(value, digits, ROUND_HALF_EVEN)


def stated(value: float) -> str:
    """A figure somebody stated, exactly as stated: never rounded in either direction."""
    if not math.isfinite(value):
        return _in_words(value)
    return str(int(value)) if value == int(value) and abs(value) < _LARGEST_PLAIN else repr(float(value))


def bound_beside(value: float, claimed: float) -> str:
    """A bound with as many digits as it takes for rounding up not to push it past the claim it stands beside."""
    if not (math.isfinite(value) and math.isfinite(claimed)) or value > claimed:
        return bound(value)
    for digits in range(DIGITS, _ENOUGH_DIGITS):
        if _rounded(value, digits, ROUND_CEILING) <= Decimal(repr(float(claimed))):
            return bound(value, digits)
    return stated(value)


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
