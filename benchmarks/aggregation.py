"""Aggregation of one step, against a sort and a memory pass.

Aggregation is clipping, central order statistics, medians and leave-one-out sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from benchmarks.rows import Row, Wanted
from benchmarks.timing import interleaved
from dpaudit.generation.aggregation import NOTHING_PUBLIC, aggregated
from dpaudit.mechanisms import Mechanism, Median, TopClippedLogits

WIDTH = 2
#: The paper's clip for the median.
CLIP = 6.0
#: Standard deviations of a common row and of each context's own deviations from it: some 70% of the
#: values then lie at the floor of a vocabulary of 256,000 with this clip.
COMMON, OWN = 2.85, 0.7


def rows(small: bool) -> Iterator[Row]:
    """Compare with clamp and sort, and with a pass of amax, at a realistic floor and at none."""
    vocabulary, rounds = (4096, 2) if small else (256_000, 15)
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        for contexts in (64, 63):
            for floor in (True, False):
                case = "realistic floor" if floor else "no floor"
                yield from _rows(case, _logits(contexts, vocabulary, floor).to(device), rounds)


def _logits(contexts: int, vocabulary: int, floor: bool) -> torch.Tensor:
    """Draw float32 [contexts, vocabulary].

    Without a floor, the clip cuts off nothing.
    """
    random = torch.Generator().manual_seed(0)
    if not floor:
        return torch.rand((contexts, vocabulary), generator=random) * CLIP
    common = torch.randn(vocabulary, generator=random) * COMMON
    return common + torch.randn((contexts, vocabulary), generator=random) * OWN


def _rows(floor: str, logits: torch.Tensor, rounds: int) -> Iterator[Row]:
    mechanism = Mechanism(
        contribution=TopClippedLogits(clip=CLIP), aggregator=Median(), temperature=1.0
    )
    settle = _settle(logits.device)

    def ours() -> None:
        aggregated(logits, NOTHING_PUBLIC, mechanism, WIDTH)

    def sort() -> None:
        torch.sort(torch.clamp(logits, -CLIP, CLIP), dim=0)
        settle()

    def one_pass() -> None:
        torch.amax(logits, dim=0)
        settle()

    timings = interleaved({"ours": ours, "sort": sort, "amax": one_pass}, rounds)
    top = logits.amax(dim=1, keepdim=True)
    share = float((logits - top + 2 * CLIP <= 0).float().mean())
    contexts, vocabulary = logits.shape
    case = f"{contexts} x {vocabulary:,}, {floor} ({share:.0%}), {logits.device.type}"
    milliseconds = {f"{name}, ms": timings.median(name) * 1e3 for name in ("ours", "sort", "amax")}
    for what, over, under, wanted in (
        ("clamp and sort over ours", "sort", "ours", Wanted("at least", 10)),
        ("ours over one pass of amax", "ours", "amax", Wanted("at most", 12)),
    ):
        figures: dict[str, float | str] = {
            **milliseconds,
            "lowest to highest": timings.spread(over, under),
        }
        yield Row(
            "aggregation",
            f"{what}: {case}",
            timings.ratio(over, under),
            wanted=wanted,
            figures=figures,
        )


def _settle(device: torch.device) -> Callable[[], None]:
    """Return a function that waits for the device; on a CPU there is nothing to wait for."""
    return (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else (lambda: None)
