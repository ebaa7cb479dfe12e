"""docs/benchmarks.md, from the latest results and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.rows import Results, Row, shown, significant

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"

#: Topic -> heading, and what is compared with what and why.
TOPICS = {
    "aggregation": (
        "Aggregation",
        """\
One step over the logits of a whole batch: clip every row, then find each token's central order statistics, the
median, and the bits that say on which side of it every context lies. It is held against the obvious way,
`torch.clamp` and `torch.sort(dim=0)`, which gives no bits, and against one pass over the same memory,
`torch.amax(dim=0)` on all cores. Logits are float32: a common row, and each context's own deviations from it. Cases
without a floor are the worst: no column can be skipped.
""",
    ),
    "generation": (
        "Generation",
        """\
Tokens per second of `dpaudit generate`, from the records to the last digest, with SmolLM2-135M over its whole
vocabulary. Loading the model is left out on every side. The rivals run in a process of their own, without the setting
for repeatable sums that `generation` makes.

The bare loop makes forward passes for the same prompts, as many rows together as ours, with a key-value cache and the
logits of the last position. Its prompts are padded to the longest of them, its tokens are random, and it does nothing
else. Anchored means sample from the 100 tokens that a public prompt makes likeliest, and score private contexts over
these alone, where the bare loop computes the whole head; their public prompts, and every context's differences in the
record, are part of their time. Of this model's weights a fifth are the head's, and a public prompt, which may share no
pass with private rows, has all of them read once more for every token: so these do not reach 1.2 with it.

`invink` is the package of InvisibleInk (arXiv 2507.02974). It continues the same prompts with as many rows a step as
ours has contexts, its public prompt among them (one private text less), all in one forward pass, in the same dtype,
with its default top-k and its own clip for its default epsilon; no end token stops it. Its default is 8 rows, and 32
the most that it recommends. It has no way to share a pass between texts; ours has.
""",
    ),
    "record": (
        "Record",
        """\
Bytes that a step of SmolLM2-135M takes over its whole vocabulary of 49,152, against its raw central order statistics
(four float32 a token), and the share of the generation's time that writing takes. The temperature is a fifteenth of
the clip, with which this small model writes language; every clip generates texts of its own. A grid, declared in the
manifest, rounds each context's clipped logits before anything is aggregated; its figures are for the very same steps,
rounded. A third is wanted at the paper's clip for the median, 6: the larger the clip, the more of the values are random
bits that nothing can spare. The last row is of an anchored mean, which records every context's differences over a
public support; raw are these as float32.
""",
    ),
    "audit": (
        "Audit",
        """\
Accounting is Theorem 1, the exact cost and every context's leave-one-out loss, on arrays in memory. Reading opens the
same run and decodes every step. The whole audit reads, accounts and makes every check. Peak memory is the resident
size of a process that audits and does nothing else, its libraries included. Anchored records hold a public support's
tokens with every context's differences, from which the audit works out every figure anew; they are held against the
same of the whole vocabulary, and against medians of it, which have no contexts to work out anything from.
""",
    ),
    "engine": (
        "Engines",
        """\
What spreading work over processes costs when the work itself takes no time.
""",
    ),
    "clustering": (
        "Clustering",
        """\
Assigning vectors to their nearest centres: exactly, with ties to the lowest index, from a file that is read piece by
piece. It is held against `vectors @ centers.T` in float32, which only gives the products, from the same pieces and on
all cores. Peak memory is the resident size of a process that assigns and does nothing else, its libraries included.
""",
    ),
    "composition": (
        "Optimal composition",
        """\
Epsilon of the mean's exponential mechanism by optimal adaptive composition, over that by Rényi accounting, at delta =
108,000^-1.1. The optimum's two ends are rounded outwards.
""",
    ),
}

INTRODUCTION = """\
Made by `make bench` from one run on one machine; do not edit. Ratios of times are medians of several that were taken
in turns, beside the lowest and the highest of them. `python -m benchmarks --help` says how to measure a part of it.
"""


def rendered(results: Results) -> str:
    """The page.

    Raises:
        ValueError: the results are not of a whole run in full.
    """
    if results.small or {row.topic for row in results.rows} != TOPICS.keys():
        raise ValueError("the page shows a whole run in full: python -m benchmarks --publish")
    return "\n".join(_lines(results)) + "\n"


def _lines(results: Results) -> Iterator[str]:
    yield from ("# Benchmarks", "", INTRODUCTION)
    yield from (f"- {line}" for line in machine_lines(results))
    for topic, (heading, text) in TOPICS.items():
        yield from ("", f"## {heading}", "", text)
        yield "| what | measured | wanted | kept | from |"
        yield "|---|---|---|---|---|"
        for row in results.rows:
            if row.topic == topic:
                yield f"| {row.what} | {measured(row)} | {wanted(row)} | {kept(row)} | {figures(row)} |"


def machine_lines(results: Results) -> Iterator[str]:
    """Date, machine and versions, a line each."""
    machine = results.machine
    yield f"{machine['date']}, commit {machine['commit']}"
    yield (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}, "
        f"accelerator: {machine['accelerator']}"
    )
    yield ", ".join(f"{name} {version}" for name, version in machine["versions"].items())


def measured(row: Row) -> str:
    """The figure, or why there is none."""
    return row.skipped if row.measured is None else shown(row.measured, row.unit)


def wanted(row: Row) -> str:
    """The bound."""
    return "" if row.wanted is None else f"{row.wanted.bound} {shown(row.wanted.value, row.unit)}"


def kept(row: Row) -> str:
    """Whether the bound is kept."""
    return {None: "", True: "yes", False: "**no**"}[row.met]


def figures(row: Row) -> str:
    """What the figure was formed from."""
    return "; ".join(
        f"{name}: {value if isinstance(value, str) else significant(value)}" for name, value in row.figures.items()
    )
