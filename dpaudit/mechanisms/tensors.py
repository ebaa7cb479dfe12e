"""A step's order statistics by torch, on whatever device the logits are: the same, bit for bit, as numpy's."""

from __future__ import annotations

import torch
from torch import Tensor

from dpaudit.mechanisms.order_statistics import middle, network, select


def central_values(values: Tensor, bound: float, width: int) -> Tensor:
    """The central order statistics [2 width + n % 2, S] of clipped logits [n, S]."""
    n, columns = values.shape
    first, last = n // 2 - width, n // 2 + width + n % 2
    ordered = values.clone()
    spare = values.new_empty((n // 2, columns))
    select(ordered, spare, network(n, max(first, 0), min(last, n)), torch.minimum, torch.maximum)
    below, above = (
        values.new_full((max(rows, 0), columns), end) for rows, end in ((-first, -bound), (last - n, bound))
    )
    return torch.cat([below, ordered[max(first, 0) : min(last, n)], above])


def sides(values: Tensor, central: Tensor) -> tuple[Tensor, Tensor | None]:
    """`median_sides` of `dpaudit.mechanisms.order_statistics`, with the holder as int64."""
    n, middle, odd = len(values), len(central) // 2, len(central) % 2
    moves = central[middle - 1] != central[middle + odd]
    if not odd:
        return _packed((values <= central[middle - 1]) & moves), None
    below, tied = values < central[middle], values == central[middle]
    wanted = n // 2 - below.sum(dim=0)
    rank = tied.cumsum(dim=0, dtype=torch.int32)
    below |= tied & (rank <= wanted)
    holder = (tied & (rank == wanted + 1)).to(torch.uint8).argmax(dim=0)
    return _packed(below & moves), holder * moves


def held_places(values: Tensor, central: Tensor, held: int) -> tuple[Tensor, Tensor]:
    """`held_places` of `dpaudit.mechanisms.order_statistics`, with the holders as int64."""
    inner, first = middle(len(central), held), (len(values) - held) // 2
    moves = central[inner.start - 1] != central[inner.stop]
    # Devices may order -0.0 before 0.0, which are equal to numpy; the sum is 0.0 for both.
    ranked = torch.argsort(values + 0.0, dim=0, stable=True)
    below = torch.zeros_like(values, dtype=torch.bool).scatter_(0, ranked[:first], True)
    return _packed(below & moves), ranked[first : first + held] * moves


def _packed(flags: Tensor) -> Tensor:
    n, columns = flags.shape
    bits = flags.new_zeros((-(-n // 8) * 8, columns), dtype=torch.uint8)
    bits[:n] = flags
    weights = (1 << torch.arange(7, -1, -1, device=flags.device)).to(torch.uint8)[:, None]
    return (bits.view(-1, 8, columns) * weights).sum(dim=1, dtype=torch.uint8)
