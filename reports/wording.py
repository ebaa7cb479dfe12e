"""The words that every report shares: statuses, evidence levels, kinds of epsilon, warnings and the glossary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from dpaudit.claims import EMPIRICAL, ApproximateClaim, ExPostClaim
from dpaudit.claims import KIND_MEANINGS as KIND_MEANINGS
from dpaudit.claims import KIND_TITLES as KIND_TITLES
from dpaudit.reports.text import counted, one_line
from dpaudit.results import Status, Verdict
from dpaudit.results.evidence import EVIDENCE_LEVELS
from dpaudit.results.rounding import DIGITS, lower_bound

Value = TypeVar("Value")

STATUS_NAMES: Final[dict[Status | Verdict, str]] = {
    "not_verified": "Not verified",
    "fail": "Failed",
    "error": "Could not run",
    "warn": "Warning",
    "pass": "Passed",
    "skip": "Not made",
}

STATUS_MARKS: Final[dict[Status | Verdict, str]] = {
    "not_verified": "!",
    "fail": "✗",
    "error": "?",
    "warn": "!",
    "pass": "✓",
    "skip": "–",
}
#: Verdicts within a line.
VERDICT_NAMES: Final[dict[Verdict, str]] = {
    "pass": "pass",
    "not_verified": "not verified",
    "fail": "fail",
    "error": "error",
}

#: Stands where there is no figure.
ABSENT: Final = "–"

#: What stands before a check's fixed words. A failed check's detail may know more of this run than its remedy.
WHY, REMEDY, HERE = "Why it matters", "How to mend it", "In this run"

DETAIL_NAMES: Final[dict[Status, str]] = {
    "fail": "What to do",
    "error": "What to do",
    "warn": "Detail",
    "pass": "Detail",
    "skip": "Reason",
}

PRIVATE_FIGURES: Final = (
    "This report is itself private. Its ex-post figures are functions of the private data, as are the per-batch costs "
    "and the losses of left-out contexts. Keep it as closely as the records; do not publish it or quote its figures."
)

PRIVATE_REPORT: Final = (
    "This report is itself private. Batch sizes, digests and what the checks measured come from the private data. "
    "Keep it as closely as the records, even where the claimed epsilon may be published."
)

PUBLIC_REPORT: Final = (
    "This report holds settings that the run declares public, a claim if it was fixed beforehand or given to the "
    "audit, what follows from both, and the outcomes of checks. It holds no figure that was worked out from the "
    "records, no text, no digest of a record and no path."
)

LOWER_BOUND: Final = (
    "The attack's ε is a lower bound: an (ε, δ) guarantee below it, for all outputs, is refuted, with that confidence. "
    "It is of the batch level, for whoever attacks knows the batch. "
    "An ex-post claim is held against each text's own bound instead. "
    "A lower bound is no guarantee itself, and another attack may find more."
)

OF_CANARIES: Final = (
    "The canaries' ε is one from below too, by the coins of this very run: what they could show at most was settled "
    "with their number. A small one is no guarantee."
)

KINDS_APART: Final = (
    "Figures of different kinds do not add up, and none can replace another. "
    "Agreed: what was given to the audit, as with --epsilon."
)

NOT_COMPARABLE: Final = (
    "Ex-post and approximate figures cannot be compared with each other. An ex-post epsilon bounds the one output that "
    "was drawn and is known only afterwards, from private data; an approximate epsilon bounds, together "
    "with its delta, every set of outputs in advance. The smaller number is not the stronger guarantee."
)

OF_RHO: Final = (
    "ρ holds at every δ at once, and against everybody, even those who know a record's batch. Rhos of several releases "
    "add up. For readers of the texts, who do not know her batch, an ε at the claim's δ follows: see approximate DP."
)

RISE_AND_FALL: Final = (
    "Rise: how much more probable a neighbour can have made these very texts. Fall: how much less probable. Each is "
    "summed over the tokens on its own, and the exact cost is the larger sum. Theorem 1 adds up the larger of the two "
    "token by token, after bounding each more loosely."
)

OF_THE_BATCH_LEVEL: Final = (
    "Costs of batches and of tokens are of the batch level: they count as if everybody knew which batch a record was "
    "in."
)

LOSS_SIGN: Final = (
    "Loss: log-probability of the batch's text minus the same without the context. Positive: the context made the text "
    "more probable. No loss goes beyond the exact bound unless the record or the accounting is wrong."
)

SEVERAL_CONTEXTS: Final = (
    "One unit can change several contexts. A batch's ex-post figures are for the whole change falling on that batch, "
    "while a loss is of one context."
)

LEDGER_LEAD: Final = (
    "How each figure above comes about, a tree for each kind: kinds are never added up. "
    "Every node says how its children make it up."
)

NO_BATCH_COSTS: Final = (
    "This run has no cost per batch or per token: no ex-post cost was computed for it. "
    "Where an approximate guarantee stands above, it counts tokens in advance and is the same for every batch."
)

REPRODUCE: Final = (
    "The first command writes it again. The second is the same audit as a gate before a release: it exits with 0 only "
    "if the claim holds."
)

CURVE_MARKS: Final = "Below, how many batches reached each position."

GROWTH_MARKS: Final = "Each point is the whole run, had no batch gone beyond that length."

BUDGET_MARKS: Final = "Thick: over all batches. Thin and dashed: in the batch where fewest took part, at each position."

SAMPLES_LEAD: Final = (
    "The texts of samples.jsonl. Read them before you sign. The check release.text confirms that these are the sampled "
    "texts. Release all of them or none: leaving out an expensive text would give it away."
)

MARKS_LEAD: Final = (
    "A token is underlined by what it cost, exactly. Point at one, or go to it with the keyboard, for its rise and "
    "fall, its probability, what else was likely, and how far a neighbour could move it. A dot is a token that shows "
    "nothing: a part of a letter, or the end."
)

TRUSTED: Final = "Other assumptions"

#: The sections of a report after the verdict, in their order, by the id that links lead to.
SECTIONS: Final[dict[str, str]] = {
    "samples": "The released texts",
    "not-checked": "What was not checked",
    "checks": "Evidence and checks",
    "quality": "Quality of the texts",
    "sign-off": "Sign-off",
    "engineers": "For engineers",
    "claimed": "Claimed, recomputed and agreed",
    "tokens": "What each token cost",
    "budgets": "How contexts used their budgets",
    "directions": "Rise and fall",
    "losses": "Losses of left-out contexts against the bound",
    "batches": "What each batch cost",
    "ledger": "How the figures come about",
    "settings": "Configuration, versions and digests",
    "reproduce": "How to reproduce this report",
    "glossary": "Glossary",
}

#: What the checks of a family look at, by the part of their ids before the dot.
FAMILIES: Final[dict[str, str]] = {
    "integrity": "Integrity of the files",
    "record": "The record of the steps",
    "sampling": "How tokens were drawn",
    "release": "What is released",
    "partition": "Where records went",
    "mechanism": "The mechanism's settings",
    "budget": "What every context has spent",
    "rebalancing": "Clusters and their noise",
    "composition": "What the claim adds up",
    "claim": "The claim",
    "neighbors": "Actual neighbours",
    "replay": "Replays with model and data",
    "canaries": "Made-up records and their coins",
    "disclosure": "What a public report would hold",
    "policy": "The house's policy",
}

METHOD_NAMES: Final[dict[str, str]] = {
    "rdp": "Rényi DP (rdp), the paper's method",
    "optimal": "optimal adaptive composition (optimal)",
    "zcdp": "what all tokens together may cost, by zero-concentrated DP",
}

#: How a node's children make it up.
RULES: Final[dict[str, str]] = {
    "leaf": "",
    "sum": "the sum of",
    "maximum": "the largest of",
    "joint": "composed jointly by one accountant from",
}

#: Under kind ex-post "joint" is no accountant's work.
SHARED: Final = "the worst way of sharing the changed contexts among"

GLOSSARY: Final[dict[str, str]] = {
    "Epsilon (ε)": "How far the odds of an output can shift when the data changes by one unit: by a factor of e^ε at "
    "most. Smaller is more private.",
    "Nats": "The unit of every epsilon and cost here: natural logarithms. One nat is a factor of e, about 2.718.",
    "Release level": "For readers of the texts, who do not know which batch a record was in: that is drawn in secret "
    "and at random, so a text says less about any one record. An ε without a level is of this one.",
    "Batch level": "For whoever does know a record's batch, because they have the key, the assignment or the run "
    "directory. Costs of batches and tokens, lower ends, attacks and losses of left-out contexts are of this level.",
    "Round": "One pass over all records under a secret key of its own, which puts every record into one batch.",
    "Delta (δ)": "The probability that an approximate guarantee allows beside the factor e^ε. An ex-post guarantee has "
    "none, but for what noised cluster centres spent.",
    "Ex-post": ExPostClaim.meaning + " The number must not be published as it is.",
    "Approximate": ApproximateClaim.meaning + " Written (ε, δ)-DP.",
    "Empirical": KIND_MEANINGS[EMPIRICAL] + " A small empirical loss is no guarantee; a large one can refute one.",
    "Relation": "What makes two data sets neighbours: “add or remove” changes their size by one unit, “replace” swaps "
    "one unit for another and keeps the size.",
    "Unit": "What one unit of that change is: a record of the private data, a context, or a user with all records of "
    "theirs.",
    "Context": "One prompt, made of one or more private records. Its logits have one say in every token.",
    "Budget of a context": "The most, in rho of zero-concentrated DP, that a context may spend on all tokens of its "
    "batch: it is left out of every draw that would take it beyond.",
    "Batch": "The contexts that together generate one synthetic text. Batches share no records.",
    "Slot": "The number of a context within its batch, from 0. Which record it is, only “assignment” in the run "
    "directory can tell.",
    "Theorem 1": "The paper's formula for the ex-post cost of one token, from how far a neighbour can have moved each "
    "token's score. It adds up over a batch's tokens. Here it stands on bounds that are tighter than the paper's own "
    'for an odd number of contexts; the paper\'s own: median_bounds(..., definition="theorem1").',
    "Exact, rise and fall": "The supremum over all aggregates that a neighbour can have, never above Theorem 1. For "
    f"added or removed contexts no smaller bound exists. {RISE_AND_FALL}",
    "Saving": "Theorem 1 minus exact, in nats, and as a share of Theorem 1.",
    "Lower end": "What no accountant can go below for draws of this range and number. The true cost lies between it "
    "and ε.",
    "Rebalancing": "What it cost to group records: noisy counts, and in an ex-post total noised cluster centres too. "
    "It is added to that total; in an approximate ε counts are inside, accounted for jointly, and centres are named "
    "apart.",
    "Leave-one-out loss": "How much a batch's own text would have changed in log-probability had one actual context "
    "been missing. The largest counts by size, whatever its sign.",
    "Attack": "Texts generated again and again from data with a planted record and without it. How well their "
    "probabilities tell the two apart gives an ε from below, for all outputs, at a δ and with a confidence.",
    "Canaries": "Made-up records, each in the data or out of it by a secret coin that was committed to before the "
    "first token. How many of the coins the texts let one guess gives an ε from below, for this very run.",
    "Rounding": f"Bounds show {DIGITS} significant digits and are rounded up, with more digits where a claim stands "
    "beside them; lower ends are rounded down. Losses and savings are rounded to the nearest. Claims are never "
    "rounded.",
}

_RELATIONS: Final[dict[str, str]] = {"add_remove": "add or remove one", "replace": "replace one"}


def neighbours(relation: str, unit: str, records_per_user: int | None) -> str:
    """What neighbouring data sets differ by: "add or remove one user with at most 10 records"."""
    of_user = ", all records of theirs"
    if records_per_user is not None:
        of_user = f" with at most {counted(records_per_user, 'record')}"
    return one_line(f"{_RELATIONS.get(relation, relation)} {unit}{of_user if unit == 'user' else ''}")


def or_absent(value: Value | None, shown: Callable[[Value], str]) -> str:
    """How a figure is shown, where there is one."""
    return ABSENT if value is None else shown(value)


def least_epsilon(epsilon: float) -> str:
    """An epsilon that was shown from below. 0 is no bound, and is not said as one."""
    return f"epsilon at least {lower_bound(epsilon)}" if epsilon > 0 else "no epsilon above 0"


def evidence(level: int) -> str:
    """What a check of this evidence level rests on."""
    known = 0 <= level < len(EVIDENCE_LEVELS)
    return f"Level {level}: {EVIDENCE_LEVELS[level].rests_on if known else 'a level that this version does not know'}"
