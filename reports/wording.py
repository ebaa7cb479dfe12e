"""The words that every report shares: statuses, evidence levels, kinds of epsilon, warnings and the glossary."""

from __future__ import annotations

from typing import Final, Literal

from dpaudit.results import Status
from reports.rounding import DIGITS
from reports.text import one_line

Kind = Literal["ex-post", "approximate", "empirical"]

STATUS_ORDER: Final[tuple[Status, ...]] = ("fail", "error", "warn", "pass", "skip")

STATUS_NAMES: Final[dict[Status, str]] = {
    "fail": "Failed",
    "error": "Could not run",
    "warn": "Warning",
    "pass": "Passed",
    "skip": "Skipped",
}

STATUS_MARKS: Final[dict[Status, str]] = {"fail": "✗", "error": "?", "warn": "!", "pass": "✓", "skip": "–"}

DETAIL_NAMES: Final[dict[Status, str]] = {
    "fail": "What to do",
    "error": "What to do",
    "warn": "Detail",
    "pass": "Detail",
    "skip": "Missing",
}

EVIDENCE: Final[tuple[str, ...]] = (
    "taken on trust from what the run says about itself",
    "worked out from the recorded numbers alone",
    "record and released text compared with each other",
    "repeated with the model and the private data",
    "tried on actual neighbouring data sets",
)

KIND_TITLES: Final[dict[Kind, str]] = {
    "ex-post": "Ex-post epsilon",
    "approximate": "Approximate DP",
    "empirical": "Empirical losses",
}

KIND_MEANINGS: Final[dict[Kind, str]] = {
    "ex-post": "Worked out after the run, for the text that did come out. It depends on the private data.",
    "approximate": "Fixed by public settings and δ beforehand. It covers every text that could come out.",
    "empirical": "Seen when real contexts were left out. It says nothing about neighbours nobody tried.",
}

PRIVATE_FIGURES: Final = (
    "This report is itself private. Its ex-post figures are functions of the private data, as are the per-batch costs "
    "and the losses of left-out contexts. Keep it as closely as the records; do not publish it or quote its figures."
)

PRIVATE_REPORT: Final = (
    "This report is itself private. Batch sizes, digests and what the checks measured come from the private data. "
    "Keep it as closely as the records, even where the claimed epsilon may be published."
)

NOT_COMPARABLE: Final = (
    "Ex-post and approximate figures cannot be compared with each other. An ex-post epsilon bounds the one output that "
    "was drawn and is known only afterwards, from private data; an approximate epsilon bounds, together "
    "with its delta, every set of outputs in advance. The smaller number is not the stronger guarantee."
)

NO_BATCH_COSTS: Final = (
    "This run has no cost per batch or per token to plot: no ex-post cost was computed for it. "
    "Where an approximate guarantee stands above, it counts tokens in advance and is the same for every batch."
)

GLOSSARY: Final[tuple[tuple[str, str], ...]] = (
    (
        "Epsilon (ε)",
        "How far the odds of an output can shift when the data changes by one unit: by a factor of e^ε at most. "
        "Smaller is more private.",
    ),
    ("Nats", "The unit of every epsilon and cost here: natural logarithms. One nat is a factor of e, about 2.718."),
    (
        "Delta (δ)",
        "The probability that an approximate guarantee allows beside the factor e^ε. An ex-post guarantee has none.",
    ),
    ("Ex-post", KIND_MEANINGS["ex-post"] + " The number must not be published as it is."),
    ("Approximate", KIND_MEANINGS["approximate"] + " Written (ε, δ)-DP."),
    ("Empirical", KIND_MEANINGS["empirical"] + " A small empirical loss is no guarantee; a large one can refute one."),
    (
        "Relation",
        "What makes two data sets neighbours: “add or remove” changes their size by one unit, “replace” swaps one "
        "unit for another and keeps the size.",
    ),
    ("Unit", "What one unit of that change is: a record of the private data, or a context."),
    ("Context", "One prompt, made of one or more private records. Its logits have one say in every token."),
    ("Batch", "The contexts that together generate one synthetic text. Batches share no records."),
    (
        "Theorem 1",
        "The bound that the mechanism's paper gives for the ex-post cost of one token, from the values next to the "
        "median. Costs of a batch's tokens add up; the costliest batch counts for the run.",
    ),
    ("Exact", "The smallest bound that the same recorded values allow. It is never above Theorem 1."),
    ("Rebalancing", "What noisy counts cost, where they decided how records were grouped. It is added to the total."),
    (
        "Leave-one-out loss",
        "How much a batch's own text would have changed in log-probability had one actual context been missing.",
    ),
    (
        "Rounding",
        f"Bounds show {DIGITS} significant digits and are rounded up, with more digits where a claim stands beside "
        "them. Losses that were measured are rounded to the nearest. Claims are never rounded. "
        "report.json has every figure in full.",
    ),
)

_RELATIONS: Final[dict[str, str]] = {"add_remove": "add or remove one", "replace": "replace one"}


def neighbours(relation: str, unit: str) -> str:
    """What neighbouring data sets differ by: "add or remove one record"."""
    return one_line(f"{_RELATIONS.get(relation, relation)} {unit}")


def evidence(level: int) -> str:
    """What a check of this evidence level rests on."""
    meaning = EVIDENCE[level] if 0 <= level < len(EVIDENCE) else "a level that this version does not know"
    return f"Level {level}: {meaning}"
