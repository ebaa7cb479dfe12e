"""What a report says, before any format: verdict, the kinds side by side with the claim, checks in order, settings."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, get_args

from dpaudit.catalogue import sentence
from dpaudit.reports import wording
from dpaudit.reports.costs import batch_costs, curve_described, directions, ex_post_digits, growth_described, losses
from dpaudit.reports.findings import checks_with, cited, is_public, needed
from dpaudit.reports.levels import are_apart, claimed_words, digits_for, secret_batches
from dpaudit.reports.text import LABEL_LENGTH, counted, one_line
from dpaudit.reports.wording import LOWER_BOUND, OF_CANARIES, neighbours, or_absent
from dpaudit.results import (
    Approximate,
    Asked,
    AuditResult,
    BatchResult,
    BudgetPanel,
    ClaimResult,
    ExPost,
    Finding,
    Kind,
    LedgerEntry,
    Message,
    RunEpsilon,
    Spread,
    Value,
)
from dpaudit.results.inspection import Neighbours
from dpaudit.results.rounding import (
    bound,
    delta_bound,
    lower_bound,
    nearest,
    saving,
    stated,
)
from dpaudit.results.shell import WITH_DATA, argument, claim_options

#: A claim that is rounded up by less is taken for the figure itself.
_AS_CLAIMED = 1.001
#: How a model's name begins that a public report withholds.
WITHHELD_NAME = "withheld:"
NOT_CLAIMED = "not claimed"
NOT_COMPUTED = "not computed"
NOT_GIVEN = "none given"
WITHHELD = "withheld"

#: What whoever accepts a run writes down, and what belongs there.
SIGNED_BY = {
    "Purpose of the release": "for whom, and what for",
    "Kept until": "this report and the run directory",
    "Reviewer": "who read all texts",
    "Role": "",
    "ε accepted (nats)": "with its kind and neighbours",
    "Date and signature": "",
}
MOST_BATCHES, MOST_CONTEXTS, MOST_POINTS = 50, 20, 12
CURVE_COLUMNS = ("ε (nats)", "Smallest δ, estimated", "δ at least")
WORST_COLUMNS = ("Batch", "Slot", "Empirical loss (nats)", "Ex-post bound of the batch, exact (nats)")

#: The column of what was given to the audit.
_AGREED = "Agreed"
#: What lines of a kind are called: epsilon at either level, or at both where one figure holds at both.
_RELEASE, _BATCH, _EITHER = "ε, release level", "ε, batch level", "ε, both levels"
#: Which fields of a claim a line of a kind is about.
_OPTIONS = {
    _RELEASE: {"epsilon"},
    _BATCH: {"batch_epsilon"},
    _EITHER: {"epsilon", "batch_epsilon"},
    "δ": {"delta"},
    "Neighbours": {"relation", "unit"},
}
#: Entries of the run's summary that say which software audited it.
_VERSIONS = ("dpaudit", "dp_accounting")
#: The evidence level that the commands ask for unless told, and the first that needs the private data.
_USUAL_EVIDENCE, _WITH_DATA = 2, 3
#: The checks that hold a run against its model and its data.
_REPLAYS = ("replay.logits", "replay.lower-bound", "neighbors.regenerated")
_SETTINGS_DEPTH, _SETTINGS_ITEMS = 8, 60


class KindBlock(NamedTuple):
    """One kind of epsilon. Kinds are rendered as separate blocks so that their figures cannot be read across.

    Attributes:
        lines: a quantity's name, as claimed and as recomputed; empty where this kind was neither.
        parts: what the recomputed figure is made of.
        remark: what is absent or what to mind.
        own: the run's own claim, a cell for each line, where the one that was tested was given to the audit.
    """

    kind: Kind
    lines: tuple[tuple[str, str, str], ...]
    parts: tuple[tuple[str, str], ...]
    remark: str
    own: tuple[str, ...] = ()

    def table(self, asked: Sequence[Asked]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
        """Return header and rows: each quantity as claimed, recomputed and agreed, which are the `asked` fields."""
        if not self.lines:
            return (), ()
        names, claimed, recomputed = zip(*self.lines, strict=True)
        columns = [("Claimed", self.own or claimed), ("Recomputed", recomputed)]
        if claimed[0] != NOT_CLAIMED:
            agreed = [
                cell if _OPTIONS[name] & set(asked) else wording.ABSENT
                for name, cell in zip(names, claimed, strict=True)
            ]
            columns.append((_AGREED, tuple(agreed if asked else (NOT_GIVEN, *agreed[1:]))))
        return ("", *(name for name, _ in columns)), tuple(zip(names, *(cells for _, cells in columns), strict=True))


class Column(NamedTuple):
    """A column of the per-batch table; `words` tells text, which may be hostile, from figures."""

    name: str
    cell: Callable[[BatchResult], str]
    words: bool = False


class Node(NamedTuple):
    """One entry of the ledger. `figure` says its value in full; `rule` how `children` and the `left_out` make it up."""

    name: str
    figure: str
    rule: str
    reference: str
    children: tuple[Node, ...]
    left_out: str


class Tree(NamedTuple):
    """The ledger of one kind."""

    kind: Kind
    neighbours: str
    root: Node


class Setting(NamedTuple):
    """One entry of the run's settings: a name with a value, or with entries of its own."""

    name: str
    value: str = ""
    entries: tuple[Setting, ...] = ()


def headline(result: AuditResult) -> str:
    """Return the verdict in a few words; the first of them, up to the colon, are the verdict itself."""
    return sentence(_headline(result))


def _headline(result: AuditResult) -> Finding:
    if result.verdict == "error":
        return Finding(code="headline.error")
    if result.verdict == "pass":
        bound: dict[str, Value] = {"bound": Finding(code="headline.empty-bound")} if empty_bounds(result) else {}
        unstated = "headline.pass-withheld" if is_public(result) else "headline.pass-without-claim"
        return Finding(code=unstated if result.claim is None else "headline.pass", values=bound)
    if result.verdict == "not_verified":
        return Finding(code="headline.not-verified", values={"unmade": len(needed(result))})
    failed = [check.id for check in checks_with(result, "fail", "error")]
    if "claim.epsilon" in failed:
        return Finding(code="headline.claim-exceeded")
    return Finding(code="headline.failed", values={"failed": len(failed)})


def empty_bounds(result: AuditResult) -> list[Message]:
    """Return the caveats that say that a guarantee rules out next to nothing."""
    return [caveat for caveat in result.caveats if caveat.family == "empty-bound"]


def model_caveats(result: AuditResult) -> list[Message]:
    """Return what no check sees of the model."""
    return [caveat for caveat in result.caveats if caveat.family == "of-model"]


def other_caveats(result: AuditResult) -> list[Message]:
    """Return what else a reader of the guarantee must know: mostly what it takes on trust."""
    return [caveat for caveat in result.caveats if caveat.family not in ("empty-bound", "of-model")]


def audience(result: AuditResult) -> tuple[str, str]:
    """Who the report is for, in a word or two, and which kinds of statement it therefore holds."""
    if is_public(result):
        return "Public.", wording.PUBLIC_REPORT
    empirical = result.guarantees.empirical
    losses = (empirical.leave_one_out_max, empirical.attack, empirical.canaries) != (None, None, None)
    ex_post = result.guarantees.ex_post is not None or batch_costs(result) is not None
    return "Private.", wording.PRIVATE_FIGURES if ex_post or losses else wording.PRIVATE_REPORT


def caution(result: AuditResult) -> str:
    """What to mind about the recomputed figures where other checks than the claim's own are no pass; else empty."""
    if result.guarantees.ex_post is None and result.guarantees.approximate is None:
        return ""
    failed = checks_with(result, "fail", "error")
    if any(not check.id.startswith(("claim.", "disclosure.")) for check in failed):
        return (
            "Checks of the run itself did not pass. What is recomputed below rests on what the run recorded, "
            "so it bounds nothing until they do."
        )
    if needed(result):
        return (
            "Checks that a pass needs were not made. What is recomputed below rests on what the run recorded, "
            "and they would show whether that is so."
        )
    return ""


def contents(result: AuditResult) -> dict[str, str]:
    """The parts that this result's report has, in their order, by the id that links lead to."""
    public = is_public(result)
    present = {
        "ledger": bool(result.ledger),
        "batches": not public,
        "tokens": not public and bool(growth_described(result) or curve_described(result.tokens)),
        "budgets": not public and result.budgets is not None,
        "directions": not public and directions(result) is not None,
        "losses": not public and (losses(result) is not None or bool(worst_contexts(result))),
        "quality": result.quality is not None and not public,
        "samples": bool(result.samples) and not public,
    }
    return {name: title for name, title in wording.SECTIONS.items() if present.get(name, True)}


def kind_blocks(result: AuditResult) -> tuple[KindBlock, ...]:
    """The three kinds, each on its own, in a fixed order."""
    blocks = (_ex_post_block(result), _approximate_block(result), _empirical_block(result))
    own, kind = result.own_claim, result.claim.kind if result.claim else None
    if own is not None:
        cells = _claim_cells(own)
    elif result.asked and is_public(result):
        cells = dict.fromkeys(_OPTIONS, WITHHELD)
    else:
        return blocks
    return tuple(
        block._replace(own=tuple(cells[name] for name, _, _ in block.lines))
        if block.lines and block.kind == kind
        else block
        for block in blocks
    )


def batch_columns(result: AuditResult) -> tuple[Column, ...]:
    """The per-batch table's columns, without those that this run has no figure for. Kinds have columns of their own."""
    cost = partial(or_absent, shown=partial(bound, digits=ex_post_digits(result)))
    several = any(batch.texts != 1 for batch in result.batches)
    columns = [
        Column("Batch", lambda batch: str(batch.id)),
        Column("Ex-post, exact (nats)", lambda batch: cost(batch.exact)),
        Column("Rise", lambda batch: cost(batch.rise)),
        Column("Fall", lambda batch: cost(batch.fall)),
        Column("Ex-post, Theorem 1 (nats)", lambda batch: cost(batch.theorem1)),
        Column("Saving (nats)", _saved),
        Column("Empirical, largest loss (nats)", lambda batch: or_absent(batch.leave_one_out_max, nearest)),
        Column("Contexts", lambda batch: f"{batch.contexts:,}"),
        Column("Texts", lambda batch: f"{batch.texts:,}" if several else wording.ABSENT),
        Column("Tokens", lambda batch: f"{batch.steps:,}"),
        Column("Label", lambda batch: or_absent(batch.label, _label), words=True),
    ]
    return tuple(column for column in columns if any(column.cell(batch) != wording.ABSENT for batch in result.batches))


def worst_contexts(result: AuditResult) -> tuple[tuple[str, ...], ...]:
    """Rows of WORST_COLUMNS: the contexts whose absence would have mattered most, by the size of their loss."""
    exact = {batch.id: batch.exact for batch in result.batches}
    shown = partial(bound, digits=ex_post_digits(result))
    return tuple(
        (str(context.batch), str(context.slot), signed(context.loss), or_absent(exact.get(context.batch), shown))
        for context in result.guarantees.empirical.worst[:MOST_CONTEXTS]
    )


def worst_sentence(result: AuditResult) -> str:
    """Which contexts are listed, and how many more there are."""
    listed = len(worst_contexts(result))
    count = max(result.guarantees.empirical.contexts, listed)
    said = "The context" if listed == 1 else f"The {listed} contexts"
    return f"{said} with the largest loss by size, of {count:,} left out one at a time."


def several_contexts(result: AuditResult) -> str:
    """What a batch's figures say where one unit can change more than one context; else empty."""
    found = result.guarantees.ex_post
    if found is None or found.unit == "context":
        return ""
    one = found.relation == "add_remove" and (found.unit == "record" or found.records_per_user == 1)
    return "" if one else wording.SEVERAL_CONTEXTS


def signed(loss: float) -> str:
    """A loss with its sign, for here the sign says which way the text would have moved."""
    return f"+{nearest(loss)}" if loss > 0 and math.isfinite(loss) else nearest(loss)


def ledger(result: AuditResult, depth: int = 8, breadth: int = 60) -> tuple[Tree, ...]:
    """The composition of each kind as a tree of printable text, bounded in depth and breadth."""
    # As elsewhere in the report: a loss is measured, an epsilon is a bound.
    shown: dict[Kind, Callable[[float], str]] = {
        "empirical": nearest,
        "ex-post": partial(bound, digits=ex_post_digits(result)),
        "approximate": partial(bound, digits=digits_for(result.claim, result.guarantees.approximate)),
    }
    records = result.claim.records_per_user if result.claim else None
    trees = []
    for entry in result.ledger:
        between = neighbours(entry.relation, entry.unit, records)
        figure = partial(_figure, shown=shown[entry.kind], claim=result.claim)
        trees.append(Tree(entry.kind, between, _node(entry, figure, depth, breadth)))
    return tuple(trees)


def made_of(tree: Tree) -> str:
    """What the root of a tree is made of, in one line: names up to what explains them."""
    parts = [f"{child.name.partition(':')[0]} {child.figure}" for child in tree.root.children]
    return f"{tree.root.rule}: {'; '.join([*parts, *['…'] * bool(tree.root.left_out)])}"


def listed_batches(result: AuditResult) -> tuple[BatchResult, ...]:
    """The batches that a report lists: the costliest, or the first where none has a cost."""
    costs = batch_costs(result)
    return (result.batches if costs is None else costs.costliest)[:MOST_BATCHES]


def listed_sentence(result: AuditResult) -> str:
    """Which batches are listed, and how many are not."""
    count, listed = len(result.batches), len(listed_batches(result))
    if count == 0:
        return "No batch was read."
    has_costs, texts = batch_costs(result) is not None, sum(batch.texts for batch in result.batches)
    in_all = f" They have {texts:,} texts in all." if texts != count else ""
    if count > listed:
        which = "costliest" if has_costs else "first"
        others = "one" if count - listed == 1 else f"{count - listed:,}"
        return f"The {listed} {which} of {count:,} batches; report.json has the other {others} too.{in_all}"
    return counted(count, "batch", "batches") + (", costliest first." if has_costs and count > 1 else ".") + in_all


def claim_sentence(result: AuditResult) -> str:
    """The claim in words."""
    claim = result.claim
    if claim is None:
        return "Withheld from this report." if is_public(result) else "The run claims no guarantee."
    return claim_words(claim)


def claim_words(claim: ClaimResult) -> str:
    """A claim as it was stated: `approximate, ε ≤ 2.5 nats, δ = 1e-5, add or remove one record`."""
    delta = f", δ = {stated(claim.delta)}" if claim.kind == "approximate" or claim.delta else ""
    return f"{claim.kind}, {claimed_words(claim)}{delta}, {neighbours_of(claim)}"


def neighbours_of(
    stated_for: ClaimResult | ExPost | Approximate | RunEpsilon | BudgetPanel | Spread | Neighbours,
) -> str:
    """What the neighbours differ by that a claim or a figure holds for."""
    return neighbours(stated_for.relation, stated_for.unit, stated_for.records_per_user)


def commands(result: AuditResult) -> tuple[str, ...]:
    """What to type to get this report again and to use its claim as a release gate."""
    path = argument(result.run.get("path") or "RUN_DIR", "RUN_DIR")
    audience = " --audience public" if is_public(result) else ""
    report = f"dpaudit report {path}{audience}{claim_options(result.claim, result.asked)}{rests_on(result)}"
    return (report, f"dpaudit verify {path}{claim_options(result.claim, get_args(Asked))}{rests_on(result)}")


def rests_on(result: AuditResult) -> str:
    """The options without which an audit would not show what this one did: the model, the data, the level."""
    replays = [check for check in result.checks if check.id in _REPLAYS]
    replayed = result.guarantees.empirical.attack is not None or any(check.status != "skip" for check in replays)
    # Where nothing of ours can load the generator, no check asks for the data.
    wanted = result.evidence >= _WITH_DATA and any(check.made_with == WITH_DATA for check in replays)
    level = "" if result.evidence == _USUAL_EVIDENCE else f" --evidence {result.evidence}"
    if replayed or wanted:
        return f"{level} {WITH_DATA}"
    modelled = any(
        check.id == "mechanism.support-public" and check.status != "skip" and check.evidence == _WITH_DATA
        for check in result.checks
    )
    return f"{level} --model {argument(_model_name(result), 'NAME')}" if modelled else level


def _model_name(result: AuditResult) -> str:
    name = _part(_part(result.run, "manifest"), "model").get("name")
    return name if isinstance(name, str) and not name.startswith(WITHHELD_NAME) else "NAME"


def signed_off(result: AuditResult) -> tuple[tuple[str, str], ...]:
    """The files that whoever accepts the run signs for, with their digests."""
    digests = _part(result.run, "digests")
    files = () if is_public(result) else ("run.json", "samples.jsonl")
    return tuple((f"SHA-256 of {name}", one_line(digests[name], LABEL_LENGTH)) for name in files if name in digests)


def _part(run: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part of a run's summary; empty where there is none."""
    part = run.get(name)
    return part if isinstance(part, Mapping) else {}


def claim_origin(result: AuditResult) -> str:
    """Whether the run stated the tested claim or somebody gave it to the audit, in a sentence."""
    if result.asked:
        names = [{"epsilon": "ε", "delta": "δ"}.get(name, name) for name in result.asked]
        given = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
        rest = "" if len(names) == len(get_args(Asked)) else " The rest is the run's own."
        return f"The claim's {given} {'were' if len(names) > 1 else 'was'} given to the audit.{rest}"
    if result.claim is None:
        return ""
    when = {"beforehand": ", stated before it was generated", "afterwards": ", stated after it was generated"}
    return f"The claim is the run's own{when.get(str(_part(result.run, 'manifest').get('claim_stated')), '')}."


def settings(run: Mapping[str, Any]) -> tuple[tuple[str, tuple[Setting, ...]], ...]:
    """The run's summary as trees of printable text, bounded in depth and breadth: configuration, versions, digests."""
    manifest = _part(run, "manifest")
    versions = {name: run[name] for name in _VERSIONS if name in run}
    versions |= {"generated with": manifest["software"]} if "software" in manifest else {}
    configuration = {name: value for name, value in run.items() if name not in (*_VERSIONS, "digests", "manifest")}
    configuration |= {name: value for name, value in manifest.items() if name != "software"}
    if isinstance(prompt := configuration.get("prompt"), Mapping):  # token ids of a prompt say nothing to a reader
        configuration["prompt"] = {name: value for name, value in prompt.items() if name != "public"}
    parts = (("Configuration", configuration), ("Versions", versions), ("Digests", _part(run, "digests")))
    return tuple((title, _entries(list(held.items()), depth=1)) for title, held in parts if held)


def _ex_post_block(result: AuditResult) -> KindBlock:
    claim = _claim_of(result, "ex-post")
    found = result.guarantees.ex_post
    if found is None:
        lines, remark = _claim_lines(claim, None), "No ex-post epsilon was computed for this run."
        if is_public(result):
            lines = _claim_lines(claim, None, WITHHELD)
            remark = "The ex-post epsilon is worked out from the private data, so it is withheld from this report."
        return KindBlock("ex-post", lines, (), remark)
    exact, theorem1, rise, fall, rebalancing = (
        bound(value, ex_post_digits(result))
        for value in (found.exact, found.theorem1, found.rise, found.fall, found.rebalancing)
    )
    saved = saving(found.theorem1, found.exact)
    of_batch = _of_batch_level(found)
    parts = (
        (f"Generation, exact{of_batch}", _nats(exact)),
        (f"Rise{of_batch}", _nats(rise)),
        (f"Fall{of_batch}", _nats(fall)),
        ("Rebalancing", _nats(rebalancing)),
        (f"Generation, Theorem 1{of_batch}", _nats(theorem1)),
        ("Exact saves (nats)", saved),
        *_between_levels(found),
    )
    total = "batch level's total" if of_batch else "total"
    remark = f"The {total} is exact + rebalancing. {wording.RISE_AND_FALL}"
    return KindBlock("ex-post", _claim_lines(claim, found), parts, remark)


def _approximate_block(result: AuditResult) -> KindBlock:
    claim = _claim_of(result, "approximate")
    found = result.guarantees.approximate
    if found is None:
        remark = "No approximate guarantee was computed for this run."
        if is_public(result):
            remark = "No approximate guarantee follows from what the run declares public."
        return KindBlock("approximate", _claim_lines(claim, None), (), remark)
    rdp = bound(found.batch_rdp, digits_for(claim, found))
    most, of_batch = f"{found.tokens:,}", _of_batch_level(found)
    if found.method == "zcdp":
        most = f"any number; a batch has at most {found.tokens:,}"
    low = NOT_COMPUTED if found.batch_lower is None else lower_bound(found.batch_lower)
    inside = " inside ε, accounted for jointly" if found.rebalancing else ""
    parts = (
        (f"Accounting method{of_batch}", wording.METHOD_NAMES.get(found.method, one_line(found.method))),
        (f"No accountant can go below{of_batch}", _nats(low)),
        (f"By Rényi DP{of_batch}", _nats(rdp)),
        (f"Tokens accounted for{', in each round' if found.amplification.rounds > 1 else ''}", most),
        *[("All tokens", f"rho {bound(found.rho or 0.0)} (zCDP), whatever their number")] * (found.rho is not None),
        ("Rebalancing", _nats(bound(found.rebalancing)) + inside),
        *[("Cluster centres", f"{_nats(bound(found.centers))} of ε and {delta_bound(found.centers_delta)} of δ")]
        * bool(found.centers),
        ("Sensitivity", one_line(found.sensitivity)),
        *_between_levels(found),
        *[
            (
                f"To {wording.neighbours(other.relation, other.unit, None)}{of_batch}",
                f"{_nats(bound(other.epsilon))}; by Rényi DP {bound(other.rdp)}",
            )
            for other in found.others
        ],
    )
    remark = "Public settings and the claimed δ decide these figures."
    # By budgets what was recomputed is Rényi's, too, and below the claim by rounding alone.
    claimed = None if claim is None else claim.epsilon if claim.batch_epsilon is None else claim.batch_epsilon
    tighter = found.batch_epsilon < found.batch_rdp
    if tighter and claimed is not None and found.batch_epsilon < claimed <= found.batch_rdp * _AS_CLAIMED:
        remark += (
            f" The claim{of_batch} is by Rényi accounting, which others can repeat; what was recomputed is tighter, "
            "and holds."
        )
    return KindBlock("approximate", _claim_lines(claim, found), parts, remark)


def _of_batch_level(found: ExPost | Approximate) -> str:
    """What stands behind the name of a figure that is the batch level's alone; empty where levels are equal."""
    return " (batch level)" if found.amplification.groups else ""


def _between_levels(found: ExPost | Approximate) -> Iterator[tuple[str, str]]:
    """What lies between the levels, or why nothing does."""
    between = found.amplification
    if between.groups:
        yield "Secret batches", secret_batches(between)
    if between.assumption is not None:
        yield "The release level rests on", one_line(sentence(between.assumption))
    if between.reason is not None:
        yield "Both levels are equal", one_line(sentence(between.reason))


def _empirical_block(result: AuditResult) -> KindBlock:
    found = result.guarantees.empirical
    if is_public(result):
        return KindBlock("empirical", (), (), "What was measured on the private data is withheld from this report.")
    if found.leave_one_out_max is None and found.attack is None and found.canaries is None:
        return KindBlock("empirical", (), (), "No loss of a left-out context was computed for this run.")
    parts: list[tuple[str, str]] = []
    if found.leave_one_out_max is not None:
        largest = nearest(found.leave_one_out_max)
        parts.append(("Largest loss of a left-out context", _nats(largest)))
        parts.append(("Contexts left out, one at a time", f"{found.contexts:,}"))
        if found.worst:
            worst = found.worst[0]
            parts.append(("Where, with its sign", f"{signed(worst.loss)} (batch {worst.batch}, slot {worst.slot})"))
    remark = "Not a guarantee, so it has no claim to stand beside."
    if (attack := found.attack) is not None:
        parts += [
            ("Attack: ε at least", f"{_least(attack.epsilon)} {_sure(attack.confidence)}"),
            ("At δ", delta_bound(attack.delta)),
            ("Without allowing for chance", _nats(nearest(attack.estimate))),
            ("Texts on either side", f"{attack.trials:,}"),
            ("Texts beyond their ex-post bound", f"{attack.beyond:,}"),
        ]
        remark = LOWER_BOUND
    if (canaries := found.canaries) is not None:
        parts += [
            ("Canaries: coins guessed right", f"{canaries.right:,} of {canaries.coins:,}"),
            ("ε at least, for all outputs", f"{_least(canaries.epsilon)} {_sure(canaries.confidence)}"),
            ("And at most, were all right", _least(canaries.most)),
        ]
        remark = f"{remark} {OF_CANARIES}"
    return KindBlock("empirical", (), tuple(parts), remark)


def _least(epsilon: float) -> str:
    """A bound from below in a row of its own; 0 is none."""
    return _nats(lower_bound(epsilon)) if epsilon > 0 else "none above 0"


def _sure(confidence: float) -> str:
    return f"({nearest(100 * confidence, 3).rstrip('0').rstrip('.')}% confidence)"


def attack_curve(result: AuditResult) -> tuple[tuple[str, ...], ...]:
    """Rows of CURVE_COLUMNS: which delta the attack leaves to each epsilon. Empty where no attack was made.

    At most MOST_POINTS of them, evenly, the first and the last among them.
    """
    found = result.guarantees.empirical.attack
    points = () if found is None else found.curve
    if len(points) > MOST_POINTS:
        points = tuple(points[index * (len(points) - 1) // (MOST_POINTS - 1)] for index in range(MOST_POINTS))
    return tuple((nearest(at.epsilon), nearest(at.delta, 3), lower_bound(at.delta_lower, 3)) for at in points)


def _figure(entry: LedgerEntry, shown: Callable[[float], str], claim: ClaimResult | None) -> str:
    return _nats(shown(entry.value)) + (
        f", δ = {delta_bound(entry.delta, claim.delta if claim else None)}" if entry.delta else ""
    )


def _node(
    entry: LedgerEntry, figure: Callable[[LedgerEntry], str], depth: int, breadth: int, inherited: str | None = None
) -> Node:
    """A node down to `depth` levels; a reference that the parent has too is not repeated."""
    listed = entry.children[:breadth] if depth > 1 else ()
    omitted = max(0, entry.omitted) + len(entry.children) - len(listed)
    shared = (entry.rule, entry.kind) == ("joint", "ex-post")
    words = wording.SHARED if shared else wording.RULES[entry.rule]
    rule = words and f"{words} {len(listed) + omitted:,}"
    return Node(
        name=one_line(entry.name, LABEL_LENGTH) or "unnamed",
        figure=figure(entry),
        rule=f"{rule}, not listed here" if rule and not listed else rule,
        reference="" if entry.reference == inherited else one_line(cited(entry.reference), LABEL_LENGTH),
        children=tuple(_node(child, figure, depth - 1, breadth, entry.reference) for child in listed),
        left_out=f"{omitted:,} more, not listed here" if listed and omitted else "",
    )


def _saved(batch: BatchResult) -> str:
    return wording.ABSENT if batch.theorem1 is None or batch.exact is None else saving(batch.theorem1, batch.exact)


def _label(label: str) -> str:
    return one_line(label, LABEL_LENGTH) or "empty"


def _claim_of(result: AuditResult, kind: Kind) -> ClaimResult | None:
    return result.claim if result.claim is not None and result.claim.kind == kind else None


def _claim_cells(claim: ClaimResult) -> dict[str, str]:
    """What a claim states, by the name of its line."""
    epsilon = _nats(stated(claim.stated))
    batch = NOT_CLAIMED if claim.batch_epsilon is None else _nats(stated(claim.batch_epsilon))
    return {
        _RELEASE: epsilon,
        _BATCH: batch,
        _EITHER: epsilon,
        "δ": stated(claim.delta),
        "Neighbours": neighbours_of(claim),
    }


def _claim_lines(
    claim: ClaimResult | None, found: ExPost | Approximate | None, otherwise: str = NOT_COMPUTED
) -> tuple[tuple[str, str, str], ...]:
    """Each quantity of a kind as claimed and as recomputed; `otherwise` stands for what was not recomputed."""
    if claim is None and found is None:
        return ()
    claimed = dict.fromkeys(_OPTIONS, NOT_CLAIMED) if claim is None else _claim_cells(claim)
    recomputed = dict.fromkeys(_OPTIONS, otherwise)
    if claim is not None and found is None and otherwise == WITHHELD:
        recomputed |= {"δ": "none", "Neighbours": neighbours_of(claim)}
    if found is not None:
        digits = digits_for(claim, found)
        release, batch = (_nats(bound(value, digits)) for value in (found.epsilon, found.batch_epsilon))
        delta = delta_bound(found.delta, claim.delta if claim else None) if found.delta else "none"
        recomputed = {_RELEASE: release, _BATCH: batch, _EITHER: release}
        recomputed |= {"δ": delta, "Neighbours": neighbours_of(found)}
    levels = (_RELEASE, _BATCH) if are_apart(claim, found) else (_EITHER,)
    return tuple((name, claimed[name], recomputed[name]) for name in (*levels, "δ", "Neighbours"))


def _nats(figure: str) -> str:
    return f"{figure} nats" if any(character.isdigit() for character in figure) else figure


def _entries(items: list[tuple[object, object]], depth: int) -> tuple[Setting, ...]:
    """Entries of a mapping, without those that are not set or hold nothing."""
    items = [(name, value) for name, value in items if value is not None and value not in ("", [], (), {})]
    shown = [_setting(one_line(name, LABEL_LENGTH), value, depth) for name, value in items[:_SETTINGS_ITEMS]]
    if len(items) > _SETTINGS_ITEMS:
        more = counted(len(items) - _SETTINGS_ITEMS, "more entry", "more entries")
        shown.append(Setting("…", f"{more} in report.json"))
    return tuple(shown)


def _setting(name: str, value: object, depth: int) -> Setting:
    if depth >= _SETTINGS_DEPTH and isinstance(value, Mapping | list | tuple):
        return Setting(name, "nested too deeply to show")
    if isinstance(value, Mapping):
        entries = _entries(list(value.items()), depth + 1)
        return Setting(name, "" if entries else "none", entries)
    if isinstance(value, list | tuple):
        if any(isinstance(item, Mapping | list | tuple) for item in value):
            return Setting(name, "", _entries([(str(index), item) for index, item in enumerate(value)], depth + 1))
        left_out = len(value) - _SETTINGS_ITEMS
        more = f", and {left_out:,} more" if left_out > 0 else ""
        return Setting(name, ", ".join(map(_scalar, value[:_SETTINGS_ITEMS])) + more or "none")
    return Setting(name, _scalar(value))


def _scalar(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return stated(value)
    return one_line(value) or (json.dumps(str(value)) if value else "empty")  # white space, made visible
