"""docs/reference/benchmarks.md, from the latest results and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.rows import Results, Row, shown, significant

PAGE = Path(__file__).parents[1] / "docs/reference/benchmarks.md"

#: Topic -> heading, and what is compared with what and why.
TOPICS = {
    "aggregation": (
        "Aggregation",
        """\
One step over a batch's float32 logits: clip, central order statistics, median and sides. Against `torch.clamp` and
`torch.sort(dim=0)`, and one pass of `torch.amax(dim=0)` on all cores. Without a floor no column can be skipped: the
worst case.
""",  # noqa: E501
    ),
    "generation": (
        "Generation",
        """\
Tokens per second of `dpaudit generate`, from records to last digest, with SmolLM2-135M; loading the model is left out.
The bare loop makes the same forward passes, draws random tokens and does nothing else. Anchored runs sample from the
public prompt's top 100 tokens; public prompts and recorded differences are part of their time. They score private
prompts on those tokens alone, so the bare loop without its head shows how much can be gained by that. `invink`
continues the same prompts with as many rows a step, in one pass, with its defaults.
""",  # noqa: E501
    ),
    "record": (
        "Record",
        """\
Bytes of a step over SmolLM2-135M's vocabulary of 49,152, against its raw central order statistics (four float32 a
token, 768 KiB), and the share of generation time that writing takes, at a temperature of a fifteenth of the clip. A
third is wanted at the paper's median clip, 6: the larger the clip, the more bits are random. The last row is an
anchored mean with every context's differences.
""",  # noqa: E501
    ),
    "audit": (
        "Audit",
        """\
Accounting is Theorem 1, the exact cost and every leave-one-out loss, on arrays in memory. Reading decodes every step.
The whole audit reads, accounts and makes every check. Anchored records hold a public support with every context's
differences.
""",  # noqa: E501
    ),
    "engine": (
        "Engines",
        """\
What spreading work over processes costs when the work itself takes no time, and what a second worker gains.
""",  # noqa: E501
    ),
    "clustering": (
        "Clustering",
        """\
Assigning vectors to their nearest centres, exactly, from a file read piece by piece; against `vectors @ centers.T` in
float32 on all cores.
""",  # noqa: E501
    ),
    "composition": (
        "Optimal composition",
        """\
Epsilon of the mean's exponential mechanism by optimal adaptive composition, over that by Rényi accounting, at delta =
108,000^-1.1. The optimum's two ends are rounded outwards.
""",  # noqa: E501
    ),
    "matching": (
        "Matching",
        """\
Runs of words, of any length, that released texts share with one private record alone. CPU time of one thread, against
cutting all texts and records into words, and against scikit-learn's CountVectorizer, which was fitted on the texts and
finds the six lengths that the test counts. Pieces of 40 words of BBC News; beyond 15,000, they repeat with 8 words
changed.
""",  # noqa: E501
    ),
}

#: How many of a row's figures the page shows. The first is of dpaudit.
FIGURES = {"composition": 2, "generation": 1}
#: Is part of another row's figure.
NOT_SHOWN = {"central over raw central"}

INTRODUCTION = """\
Made by `make bench` on one machine; do not edit. A row's ratio is of times of one run, the median of several taken in
turns. Where several cases keep a bound, the page shows the nearest to it. `benchmarks/results/latest.json` has all,
with their ranges; `python -m benchmarks --help` says how to measure a part.
"""  # noqa: E501


def rendered(results: Results) -> str:
    """Return the page.

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
        yield "| what | wanted | measured |"
        yield "|---|---|---|"
        for (label, bound), rows in _grouped(results, topic).items():
            yield f"| {label} | {bound} | {'; '.join(case(row) for row in telling(rows))} |"


def _grouped(results: Results, topic: str) -> dict[tuple[str, str], list[Row]]:
    """Group rows that compare the same things and have the same bound."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in results.rows:
        if row.topic == topic and row.what.partition(": ")[0] not in NOT_SHOWN:
            groups.setdefault((row.what.partition(": ")[0], wanted(row)), []).append(row)
    return groups


def telling(rows: list[Row]) -> list[Row]:
    """Return all rows without a bound; of those with one, the nearest and all that miss it."""
    if all(row.skipped for row in rows):
        return rows[:1]
    kept = [row for row in rows if row.met]
    if not kept or len({row.unit for row in kept}) > 1:
        return rows
    nearest = min(
        kept,
        key=lambda row: (
            abs(row.measured - row.wanted.value) if row.wanted and row.measured else 0.0
        ),
    )
    return [row for row in rows if not row.met or row is nearest]


def machine_lines(results: Results) -> Iterator[str]:
    """Yield dates with their topics, machine and versions, a line each."""
    machine = results.machine
    dates = dict.fromkeys(results.made.values())
    for date in dates:
        topics = [topic for topic, made in results.made.items() if made == date]
        yield date if len(dates) == 1 else f"{', '.join(topics)}: {date}"
    yield (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{machine['system']}, "
        f"accelerator: {machine['accelerator']}"
    )
    yield ", ".join(f"{name} {version}" for name, version in machine["versions"].items())


def measured(row: Row) -> str:
    """Return the figure, or why there is none."""
    return row.skipped if row.measured is None else shown(row.measured, row.unit)


def wanted(row: Row) -> str:
    """Return the bound."""
    return "" if row.wanted is None else f"{row.wanted.bound} {shown(row.wanted.value, row.unit)}"


def case(row: Row) -> str:
    """Return what was measured in one case, with the figures of its topic."""
    name = row.what.partition(": ")[2]
    texts = _texts(row)
    texts.pop("lowest to highest", "")
    first = [f"{of}: {value}" for of, value in texts.items()][: FIGURES.get(row.topic, 0)]
    missed = " **missed**" if row.met is False else ""
    formed = f" ({', '.join(first)})" if first else ""
    return f"{name}: {measured(row)}{missed}{formed}"


def figures(row: Row) -> str:
    """Return all that the figure was formed from."""
    return "; ".join(f"{name}: {value}" for name, value in _texts(row).items())


def _texts(row: Row) -> dict[str, str]:
    return {
        name: value if isinstance(value, str) else significant(value)
        for name, value in row.figures.items()
    }
