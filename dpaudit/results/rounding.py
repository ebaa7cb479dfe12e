"""Figures as shown.

Bounds are rounded up, so that nothing shown promises more privacy than was computed. The only place
where a figure is rounded for display: checks, audits, commands and reports all use it.
"""

from __future__ import annotations

import math
import re
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal

#: Significant digits of a figure in a report.
DIGITS = 4
#: From here on commands show an epsilon in full.
MOST_ROUNDED = 1e9
_CHECK_DECIMALS, _MOST_CHECKED = 6, 1e6
_FACTOR_DIGITS = 3
_DELTA_DIGITS = 3
#: Of 1e-05, as Python writes it.
_EXPONENT = re.compile(r"(e-)0(?=\d)")
_ALL_DIGITS = Context(prec=400)  # of any double
_EXPONENTIAL_DIGITS = Context(prec=50)
#: A larger factor says no more than its exponent does.
_MOST_FACTOR = 1000
_ENOUGH_DIGITS = 17  # a double never needs more
_SMALLEST_PLAIN = Decimal("1e-4")
_LARGEST_PLAIN = Decimal("1e15")


def bound(value: float, digits: int = DIGITS) -> str:
    """Return a figure that promises "at most this": `digits` significant digits, rounded up."""
    return _shown(value, digits, ROUND_CEILING)


def lower_bound(value: float, digits: int = DIGITS) -> str:
    """Return a figure that says "at least this": rounded down."""
    return _shown(value, digits, ROUND_FLOOR)


def nearest(value: float, digits: int = DIGITS) -> str:
    """Return a measured figure, which promises nothing: to `digits` significant digits, nearest."""
    return _shown(value, digits, ROUND_HALF_EVEN)


def stated(value: float) -> str:
    """Return a figure somebody stated, exactly as stated: never rounded in either direction."""
    if not math.isfinite(value):
        return _in_words(value)
    plain = value == int(value) and abs(value) < _LARGEST_PLAIN
    return str(int(value)) if plain else _short_exponent(repr(float(value)))


def exactly(number: float) -> str:
    """Return a claimed number in a sentence, exactly, with an exponent where that is shorter."""
    return _short_exponent(short if float(short := f"{number:g}") == number else repr(number))


def in_100(share: float) -> str:
    """Return a bound on a share as times in 100, a whole number, rounded up: 62.25 is 63."""
    # As for other bounds, of the shortest decimal: 0.07 is 7, whatever its double is.
    return f"{(100 * Decimal(repr(float(share)))).to_integral_value(ROUND_CEILING)}"


def delta_bound(value: float, claimed: float | None = None) -> str:
    """Return a computed delta, rounded up to three significant digits, or more beside a claim."""
    digits = _digits_beside(value, claimed, _DELTA_DIGITS)
    number = _rounded(value, digits, ROUND_CEILING).normalize() if value else Decimal(0)
    if value < 1 <= number:  # all is lost at one, and not below it
        return stated(value)
    return stated(float(number))  # written as the claim's


def small_delta(records: int) -> float:
    """Return a power of ten that is at most a tenth of 1 / records."""
    return float(f"1e-{len(str(records - 1)) + 1}")


def _short_exponent(number: str) -> str:
    return _EXPONENT.sub(r"\1", number)


def decimals(
    value: float | str, places: int = 4, rounding: str = ROUND_CEILING, most: float = MOST_ROUNDED
) -> str:
    """Return a figure with this many decimals, rounded up unless `rounding` says otherwise.

    What is `most` or more, or not finite, is shown in full; a string stays as it is, for JSON holds
    infinities as such.
    """
    if isinstance(value, str) or not -math.inf < value < most:
        return str(value)
    return f"{Decimal(value).quantize(Decimal(1).scaleb(-places), rounding, _ALL_DIGITS):f}"


def rounded_up(epsilon: float) -> str:
    """Return an epsilon as checks and guarantees state it: six decimals, rounded up."""
    return (
        decimals(epsilon, _CHECK_DECIMALS, most=_MOST_CHECKED)
        if math.isfinite(epsilon)
        else "infinite"
    )


def exponential(epsilon: float) -> str:
    """Return e to the power of an epsilon in nats: three significant digits, rounded up."""
    # The next number above: the exponential itself is rounded to the nearest, which may be below.
    above = Decimal(epsilon).exp(_EXPONENTIAL_DIGITS).next_plus(_EXPONENTIAL_DIGITS)
    return f"{above.normalize(Context(prec=_FACTOR_DIGITS, rounding=ROUND_CEILING)):f}"


def factor(epsilon: float) -> str:
    """Return e to the power of an epsilon in nats, rounded up if its size says something."""
    power = f"e^{exactly(epsilon)}"
    if not 0 < epsilon < math.log(_MOST_FACTOR):
        return power
    return f"{exponential(epsilon)} ({power})"


def _digits_beside(value: float, claimed: float | None, least: int = DIGITS) -> int:
    """Return the digits that keep a bound, rounded up, from passing the claim beside it, if any."""
    if claimed is None or not (math.isfinite(value) and math.isfinite(claimed)) or value > claimed:
        return least
    for digits in range(least, _ENOUGH_DIGITS):
        if _rounded(value, digits, ROUND_CEILING) <= Decimal(repr(float(claimed))):
            return digits
    return _ENOUGH_DIGITS


def digits_against(value: float | None, claimed: float | None) -> int:
    """Return how many digits a bound needs that rounding up must not push past its claim.

    A figure that exceeds its claim has six decimals at least, like the check's.
    """
    if value is None:
        return DIGITS
    if claimed is not None and math.isfinite(value) and value > claimed:
        return max(DIGITS, Decimal(repr(float(value))).adjusted() + 1 + _CHECK_DECIMALS)
    return _digits_beside(value, claimed)


def bound_against(value: float, claimed: float | None) -> str:
    """Return a bound with the digits of `digits_against`."""
    return bound(value, digits_against(value, claimed))


def saving(larger: float, smaller: float) -> str:
    """Return the second bound's improvement on the first, in nats and percent: `0.0470 (5.8%)`."""
    saved = larger - smaller
    if not math.isfinite(saved):
        return "not finite"
    if saved == 0:
        return "none"
    return (
        f"{nearest(saved, 3)} ({nearest(100 * saved / larger, 2)}%)"
        if larger
        else nearest(saved, 3)
    )


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
    # The shortest decimal that reads back as this double, not its exact binary value: 0.1 must not
    # become 0.1001.
    number = Decimal(repr(float(value)))
    for _ in range(2):  # once more, for 9.9996 became 10.000, with a digit too many
        places = number.adjusted() - digits + 1
        if places > 0 and abs(number) < _LARGEST_PLAIN:
            places = 0  # 12345.6 becomes 12,346, not 12,350
        number = number.quantize(Decimal(1).scaleb(places), rounding=rounding)
    return number


def _in_words(value: float) -> str:
    if math.isnan(value):
        return "not a number"
    return "infinite" if value > 0 else "minus infinite"
