"""The central mean, of the middle values: it lies between the median and the mean of all.

It is an L-statistic, T_m of docs/mathematics.md ("Central means"). Its record is a median's, with
more rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import override

from dpaudit.mechanisms.interfaces import Arrays, Box, Floats, StepArray
from dpaudit.mechanisms.mean import column_sums
from dpaudit.mechanisms.median import Median
from dpaudit.mechanisms.neighbors import ContextChange
from dpaudit.mechanisms.order_statistics import held_places, held_places_on_device

if TYPE_CHECKING:
    from torch import Tensor

#: The largest `Central.central`. A hostile manifest can neither make the reader allocate at will
#: nor the audit endless: leaving out each of m contexts in turn takes m^2 additions a token.
MAX_CENTRAL = 128


class Central(Median):
    """The mean of the m middle places of sorted contributions, padded with -clip and clip.

    With n contexts these places are from n/2 - m/2 to n/2 + m/2, where the i-th smallest value
    takes the place from i - 1 to i: where n and m are not both even or both odd, the two values at
    the ends count half. m = 1 is the median.

    m is a whole number: then the places of every neighbour, and those of its bounds, are made of 2m
    halves, and are added up in one order. Rounding is monotone, so bounds and losses hold to the
    last bit, in float32 too, with no allowance. A fraction would weigh the ends otherwise, round
    otherwise, and buy nothing.

    A step records `central`, the order statistics [2 (width + m // 2) + n % 2, S]: of those,
    `width` on either side are beyond the places; `sides`, packed bits [ceil(n / 8), S] of the
    contexts that rank below them (none for n = 0); and `holder` [places, S], the contexts whose
    removal takes along a value of their own: m of them where n - m is even, else m - 1, and no more
    than there are.

    Attributes:
        central: m. Public: choose it from the number of contexts that is *expected*, such as a
            quarter of it, never from the number that a batch has.
    """

    name: ClassVar[str] = "central"
    not_applicable: ClassVar[Mapping[str, str]] = {
        "mechanism.divisor": "mechanisms.central-undivided",
    }

    central: Annotated[int, Field(ge=1, le=MAX_CENTRAL)]

    @property
    @override
    def title(self) -> str:
        return "central mean"

    @override
    def arrays(self, contexts: int, width: int, clip: float) -> dict[str, StepArray]:
        found = super().arrays(contexts, width + self.central // 2, clip)
        found.pop("holder", None)
        if held := self._held(contexts):
            found["holder"] = StepArray("<u4", (held,), largest=contexts - 1)
        return found

    @override
    def box(self, arrays: Arrays, change: ContextChange, clip: float) -> Box:
        """Return bounds: each context that comes or goes moves the places by half a one."""
        central, reach = arrays["central"], change.half_steps
        if len(central) - reach < self.central:
            raise ValueError(
                f"{len(central)} central values do not bound a {change.relation} of "
                f"{change.contexts} context(s): "
                "record a larger width"
            )
        return self._of(central[:-reach]), self._of(central), self._of(central[reach:])

    @override
    def width_for(self, change: ContextChange) -> int:
        """Return the width on either side of the places."""
        return (change.half_steps + self.central % 2 + 1) // 2

    def _of(self, central: Floats) -> Floats:
        """Return the mean of the m middle places of rows [rows, S], in the rows' dtype.

        The sums are float64. The places' 2m halves are taken in pairs, which are two of one row or
        one each of two rows, and the m pairs are added up in one and the same order, whatever the
        rows. So no row can be lowered and the sum rise.
        """
        first, apart = divmod(len(central) - self.central, 2)
        # what a corrupt record's infinite values give, accountants refuse
        with np.errstate(all="ignore"):
            pairs = central[first : first + self.central].astype(np.float64)
            pairs += central[first + apart : first + apart + self.central]
            mean: Floats = (column_sums(pairs) / (2 * self.central)).astype(central.dtype)
        return mean

    def _held(self, contexts: int) -> int:
        """Return how many places have a holder."""
        return min(self.central - (contexts - self.central) % 2, contexts)

    def _sides(
        self, values: Floats, central: Floats
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint32] | None]:
        sides, holders = held_places(values, central, self._held(len(values)))
        return sides, holders if len(holders) else None

    def _sides_on_device(self, values: Tensor, central: Tensor) -> tuple[Tensor, Tensor | None]:
        sides, holders = held_places_on_device(values, central, self._held(len(values)))
        return sides, holders if len(holders) else None
