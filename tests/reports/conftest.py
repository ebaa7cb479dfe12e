"""Audit results made by hand, for every shape that a report has to cope with."""

from __future__ import annotations

import functools
import math
import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from dpaudit.accounting import AttackCurve
from dpaudit.auditing.comparison import compare_runs
from dpaudit.reports.audit_document import render_html
from dpaudit.reports.compare import render_comparison_html
from dpaudit.results import (
    Alternative,
    Amplification,
    Approximate,
    Attack,
    AttackBound,
    AuditResult,
    BatchResult,
    BudgetUse,
    CheckResult,
    ClaimResult,
    ContextLoss,
    Empirical,
    ExpensiveToken,
    ExPost,
    Finding,
    Guarantees,
    Kind,
    LedgerEntry,
    Message,
    RunSummary,
    SampleText,
    Status,
    TokenCosts,
    TokenCurve,
    Zcdp,
)
from dpaudit.results.comparison import Comparison
from tests.settings import settings

HOSTILE = (
    '<script>alert(1)</script> | `tick` | [click](javascript:alert(1)) "><img src=x '
    "onerror=alert(1)>\n"
    "# heading | \u202egnp.exe\u202c | \x1b[31mred\x1b[0m | [bold]markup[/bold] | "
    "مرحبا 👩‍👩‍👧 | {{ 7 * 7 }} | @someone \x00"
)


def check(check_id: str, status: Status = "pass", **fields: Any) -> CheckResult:
    return CheckResult(
        **{
            "id": check_id,
            "title": f"{check_id} came out as {status}",
            "status": status,
            "evidence": 1,
            "measured": "2.413 nats",
            "expected": "at most 2.5 nats",
            "detail": "Batch 17 is the costliest.",
            "reference": "The paper, Theorem 1",
            "why": f"Somebody is harmed where {check_id} fails.",
            "remedy": f"Mend what {check_id} found.",
            **fields,
        }
    )


MEDIAN = {
    "contribution": {"kind": "logits", "clip": 6.0, "grid": None},
    "aggregator": {"kind": "median"},
    "draw": {"kind": "softmax"},
    "temperature": 1.25,
    "support": {"kind": "full", "size": None},
}


def run_summary(parts: Mapping[str, Any] | None = None, **fields: Any) -> RunSummary:
    """What was read of a run whose settings have these parts in place of the usual ones."""
    stated = {
        "mechanism": MEDIAN,
        "batching": {"rule": "hashed-records", "batches": 40},
        "data": {"labels": ["business", "sport"]},
        "decoding": {
            "max_tokens": 48,
            "sequences": [[0], [2, 2]],
            "least_tokens": 0,
            "no_line_breaks": False,
        },
        "model": {
            "name": "SmolLM2-135M-Instruct",
            "digest": "ab" * 32,
            "trained_on_records": "unknown",
        },
        "software": {"python": "3.11.9", "torch": "2.4.0"},
        **(parts or {}),
    }
    return RunSummary(**{
        "settings": settings(stated),
        "path": "runs/bbc median",
        "dpaudit": "0.1.0",
        "digests": {"samples.jsonl": "cd" * 32, "steps/0.npz": "ef" * 32},
        **fields,
    })  # fmt: skip


def batches(
    count: int, labels: tuple[str | None, ...] = ("business", "sport")
) -> tuple[BatchResult, ...]:
    source = random.Random(5)
    rows = []
    for index in range(count):
        theorem1 = 1.2 + source.gammavariate(3, 0.12)
        rise, fall = theorem1 * source.uniform(0.8, 0.95), theorem1 * source.uniform(0.8, 0.95)
        rows.append(
            BatchResult(
                id=index,
                label=labels[index % len(labels)],
                contexts=source.randrange(24, 40),
                steps=source.randrange(20, 49),
                theorem1=theorem1,
                exact=max(rise, fall),
                rise=rise,
                fall=fall,
                leave_one_out_max=source.uniform(0.05, 0.3),
            )
        )
    return tuple(rows)


def curve(
    length: int = 48, count: int = 40, exact: float = 2.0, theorem1: float = 2.2
) -> TokenCurve:
    """A curve that ends at the run's own figures."""
    source = random.Random(7)
    mean = tuple(
        0.05 * math.exp(-position / 15) + 0.02 + source.uniform(0, 0.01)
        for position in range(length)
    )
    shares = tuple((position + 1) / length for position in range(length))
    return TokenCurve(
        position=tuple(range(1, length + 1)),
        batches=tuple(max(1, count - max(0, position - 20)) for position in range(length)),
        mean=mean,
        maximum=tuple(value * 4 for value in mean),
        theorem1=tuple(theorem1 * share for share in shares),
        exact=tuple(exact * share for share in shares),
    )


def sample(batch: int, **fields: Any) -> SampleText:
    text = f"The text of batch {batch},\nin two lines."
    defaults = {"number": 0, "label": "sport", "text": text, "characters": len(text), "tokens": 12}
    return SampleText(**{"batch": batch, **defaults, **fields})


def shaded(batch: int, words: tuple[str, ...], cost: float = 0.4, **fields: Any) -> SampleText:
    """A text of these tokens, whose costs halve from one to the next."""
    text, exact = "".join(words), tuple(cost / 2**place for place in range(len(words)))
    ends = tuple(len("".join(words[: place + 1])) for place in range(len(words)))
    told = tuple(
        ExpensiveToken(
            at=place,
            text=word,
            exact=exact[place],
            rise=exact[place] / 2,
            fall=exact[place],
            probability=0.25,
            likeliest=(
                Alternative(text=" else", probability=0.5),
                Alternative(text="\n", probability=0.125),
            ),
        )
        for place, word in enumerate(words)
    )
    costs = TokenCosts(ends=ends, exact=exact, most_expensive=told)
    return sample(batch, text=text, characters=len(text), tokens=len(words), costs=costs, **fields)


def empirical(rows: tuple[BatchResult, ...]) -> Empirical:
    worst = sorted(rows, key=lambda row: -(row.leave_one_out_max or 0))[:5]
    losses = [
        ContextLoss(batch=row.id, slot=3 + place, loss=(row.leave_one_out_max or 0) * (-1) ** place)
        for place, row in enumerate(worst)
    ]
    largest = abs(losses[0].loss) if losses else None
    return Empirical(
        leave_one_out_max=largest, contexts=sum(row.contexts for row in rows), worst=tuple(losses)
    )


#: Of runs whose levels are equal, and of runs whose levels are not.
EQUAL = Amplification(reason=Finding(code="levels.known"))
SECRET = Amplification(
    groups=((14, 2), (15, 2)),
    rounds=3,
    assumption=Finding(code="levels.pseudorandom"),
)


def ex_post(rows: tuple[BatchResult, ...], rebalancing: float = 0.0, **changes: Any) -> ExPost:
    worst = {
        name: max((getattr(row, name) for row in rows), default=0.0)
        for name in ("theorem1", "rise", "fall")
    }
    exact = max(worst["rise"], worst["fall"])
    fields = {
        "relation": "add_remove",
        "unit": "record",
        **worst,
        "exact": exact,
        "rebalancing": rebalancing,
    }
    fields |= {"amplification": EQUAL}
    return ExPost(
        **{
            **fields,
            "epsilon": exact + rebalancing,
            "batch_epsilon": exact + rebalancing,
            **changes,
        }
    )


def entry(
    name: str, value: float, rule: str = "leaf", kind: Kind = "ex-post", **changes: Any
) -> LedgerEntry:
    return LedgerEntry(
        **{
            "name": name,
            "kind": kind,
            "relation": "add_remove",
            "unit": "record",
            "value": value,
            "delta": None,
            "rule": rule,
            "reference": "docs/mathematics.md#runs",
            "children": (),
            "omitted": 0,
            **changes,
        }
    )


def ex_post_ledger(rows: tuple[BatchResult, ...], found: ExPost) -> LedgerEntry:
    ranked = sorted(rows, key=lambda row: -(row.exact or 0))
    listed = tuple(
        entry(
            f"batch {row.id}",
            row.exact or 0,
            "maximum",
            children=tuple(
                entry(
                    f"{name} summed over {row.steps} tokens",
                    getattr(row, name),
                    "sum",
                    omitted=row.steps,
                )
                for name in ("rise", "fall")
            ),
        )
        for row in ranked[:50]
    )
    generation = entry(
        "generation", found.exact, "maximum", children=listed, omitted=len(rows) - len(listed)
    )
    rebalancing = entry("rebalancing", found.rebalancing)
    return entry("pipeline", found.batch_epsilon, "sum", children=(rebalancing, generation))


def empirical_ledger(found: Empirical) -> LedgerEntry:
    largest = found.leave_one_out_max or 0.0
    batch = entry(f"batch {found.worst[0].batch}", largest, kind="empirical")
    return entry("leave-one-out", largest, "maximum", "empirical", children=(batch,), omitted=39)


#: Tokens: one shows nothing, one is a line break, and the last are of little cost.
WORDS = ("The", " text", "", " of", " batch", " 0", ",", "\n", "in", " two", " lines", ".")
NO_LOSSES = Empirical(leave_one_out_max=None, contexts=0, worst=())
REPLAY = "Run `dpaudit report 'runs/bbc median' --data FILE --evidence 4`."
CLAIM = ClaimResult(epsilon=2.5, delta=0.0, kind="ex-post", relation="add_remove", unit="record")


def said(words: str, code: str = "caveat.declared") -> Message:
    """Words that stand where an audit's own would."""
    return Message(code=code, values={"words": words}, words=words)


def median_run(count: int = 40, **changes: Any) -> AuditResult:
    rows = batches(count)
    found, losses = ex_post(rows), empirical(rows)
    return AuditResult(
        **{
            "verdict": "pass",
            "evidence": 2,
            "guarantee": said(
                "The median run's released texts cost at most 2.5 nats ex post for adding or "
                "removing one record."
            ),
            "caveats": (said("A caveat that stands beside the guarantee."),),
            "claim": CLAIM,
            "guarantees": Guarantees(ex_post=found, approximate=None, empirical=losses),
            "ledger": (ex_post_ledger(rows, found), empirical_ledger(losses)) if rows else (),
            "batches": rows,
            "tokens": curve(count=count, exact=found.exact) if rows else None,
            "checks": (
                check("integrity.format", evidence=0),
                check("integrity.hashes"),
                check("record.range"),
                check(
                    "rebalancing.noise", "skip", detail="No counts were noised.", applicable=False
                ),
                check("claim.epsilon"),
                check("replay.logits", "skip", evidence=3, detail=REPLAY, made_with="--data FILE"),
                check(
                    "replay.lower-bound", "skip", evidence=4, detail=REPLAY, made_with="--data FILE"
                ),
            ),
            "not_checked": ("replay.logits", "replay.lower-bound"),
            "run": run_summary(),
            "samples": (shaded(0, WORDS), *map(sample, range(1, 4)))[: len(rows)],
            **changes,
        }
    )


def failed_run() -> AuditResult:
    return median_run(
        verdict="fail",
        guarantee=said(
            "No guarantee: the run cost more than the 1.5 nats that it claims for one record."
        ),
        claim=CLAIM.model_copy(update={"epsilon": 1.5}),
        checks=(
            check("integrity.format"),
            check("record.range", "warn", measured="3 values at the clip"),
            check(
                "record.aggregate",
                "error",
                detail="The aggregate's file is missing. Write it with RunWriter.",
            ),
            check(
                "claim.epsilon",
                "fail",
                title="The run costs more than it claims",
                detail="Claim at least 2.5, or generate shorter texts.\nThe costliest batch is 17.",
            ),
            check("release.text", "skip", detail="The tokenizer is missing: pass --model DIR."),
        ),
        not_checked=("release.text",),
    )


def attacked_run() -> AuditResult:
    """A mean run that a replay attacked, with no losses of contexts."""
    found = Attack(
        epsilon=0.41237,
        estimate=0.63219,
        delta=4.4e-4,
        confidence=0.95,
        trials=1200,
        beyond=0,
    )
    run = mean_run()
    return mean_run(
        guarantees=run.guarantees.model_copy(
            update={"empirical": NO_LOSSES.model_copy(update={"attack": found})}
        )
    )


def public_run() -> AuditResult:
    """What is left of a median run for readers outside."""
    run = median_run()
    return run.model_copy(
        update={
            "audience": "public",
            "guarantees": Guarantees(ex_post=None, approximate=None, empirical=NO_LOSSES),
            "ledger": (),
            "batches": (),
            "tokens": None,
            "checks": tuple(
                each.model_copy(
                    update={
                        "measured": "",
                        "detail": each.detail.replace("'runs/bbc median'", "RUN_DIR"),
                    }
                )
                for each in run.checks
            ),
            "run": RunSummary(dpaudit="0.1.0"),
            "samples": (),
        }
    )


def attacks(epsilon: float, batch_epsilon: float) -> dict[str, AttackBound]:
    """What attackers can do at both levels by these epsilons alone."""
    bounds = {"attack": epsilon, "batch_attack": batch_epsilon}
    return {
        name: AttackBound.of(AttackCurve.of_epsilon(each, 4.4e-4)) for name, each in bounds.items()
    }


APPROXIMATE = Approximate(
    epsilon=2.31987654321,
    batch_epsilon=2.31987654321,
    batch_lower=2.3094999,
    batch_rdp=2.49987654321,
    delta=4.4e-4,
    method="optimal",
    relation="add_remove",
    unit="record",
    tokens=48,
    sensitivity="Adding or removing one record moves each mean logit by at most 6 / 32 = 0.1875.",
    rebalancing=0.25,
    amplification=EQUAL,
    **attacks(2.31987654321, 2.31987654321),
)


def approximate_ledger() -> LedgerEntry:
    def joint(name: str, value: float, **changes: Any) -> LedgerEntry:
        return entry(
            name, value, **{"kind": "approximate", "delta": 4.4e-4, "rule": "joint", **changes}
        )

    token = joint("a token", 0.3, rule="leaf", delta=0.0)
    generation = joint("generation: 48 tokens", 2.2, children=(token,), omitted=47)
    rebalancing = joint("rebalancing", 0.25, rule="leaf", delta=0.0)
    return joint("pipeline", APPROXIMATE.epsilon, children=(rebalancing, generation))


def mean_run(**changes: Any) -> AuditResult:
    """A mean run that claims an approximate guarantee; its ex-post figure is not claimed."""
    rows = batches(12)
    found = ex_post(rows, rebalancing=0.25)
    return median_run(
        **{
            "guarantee": said(
                "Generating these texts was (2.5, 0.00044)-DP for adding or removing one record."
            ),
            "claim": ClaimResult(
                epsilon=2.5, delta=4.4e-4, kind="approximate", relation="add_remove", unit="record"
            ),
            "guarantees": Guarantees(
                ex_post=found, approximate=APPROXIMATE, empirical=empirical(rows)
            ),
            "ledger": (approximate_ledger(), ex_post_ledger(rows, found)),
            "batches": rows,
            "tokens": curve(count=12, exact=found.exact),
            "run": run_summary(
                {"mechanism": {**MEDIAN, "aggregator": {"kind": "mean", "divisor": 32.0}}}
            ),
            **changes,
        }
    )


def secret_run(**changes: Any) -> AuditResult:
    """A mean run of three rounds with secret batches; its levels differ, claimed and recomputed."""
    run = mean_run()
    assert run.claim is not None and run.guarantees.ex_post is not None
    apart = {"epsilon": 0.47612345, "batch_epsilon": 2.31987654, "amplification": SECRET}
    apart |= attacks(0.47612345, 2.31987654)
    found = run.guarantees.model_copy(
        update={
            "approximate": APPROXIMATE.model_copy(update=apart),
            "ex_post": run.guarantees.ex_post.model_copy(
                update={"epsilon": 0.40912345, "amplification": SECRET}
            ),
        }
    )
    claim = run.claim.model_copy(update={"epsilon": 0.48, "batch_epsilon": 2.5})
    guarantee = said(
        "Generating these texts was (0.48, 0.00044)-DP for adding or removing one record."
    )
    return mean_run(**{"claim": claim, "guarantees": found, "guarantee": guarantee, **changes})


def secret_median_run(**changes: Any) -> AuditResult:
    """A median run whose batches are secret, which claims nothing at the batch level."""
    run = median_run()
    assert run.guarantees.ex_post is not None
    found = run.guarantees.ex_post.model_copy(
        update={"epsilon": 0.6156789, "amplification": SECRET}
    )
    claim = CLAIM.model_copy(update={"epsilon": 0.62})
    return median_run(
        **{
            "claim": claim,
            "guarantees": run.guarantees.model_copy(update={"ex_post": found}),
            **changes,
        }
    )


def budget_use(length: int = 48, **changes: Any) -> BudgetUse:
    """Contexts that drop out from the fifth token on, with a few that take part again."""
    active = [
        min(1.0, 1.4 * math.exp(-place / 9) + 0.05 * (place % 7 == 0)) for place in range(length)
    ]
    fields = {
        "budget": 0.1082561,
        "smallest": 0.1082561,
        "worst_case": 2.98964129,
        "contexts": 129,
        "left_out": 117,
        "spent": (0.41, 0.87, 0.96, 0.99, 1.0),
        "position": tuple(range(1, length + 1)),
        "active": tuple(active),
        "fewest": tuple(share**3 for share in active),
        "moved": 0.48685,
    }
    return BudgetUse(**{**fields, **changes})


def budgets_run(**changes: Any) -> AuditResult:
    """A mean run whose contexts have budgets of their own, which its guarantee is by."""
    run = mean_run()
    by_budgets = {
        "method": "zcdp",
        "rho": 0.1082561,
        "batch_lower": None,
        "batch_rdp": APPROXIMATE.epsilon,
    }
    found = APPROXIMATE.model_copy(update=by_budgets)
    guarantees = run.guarantees.model_copy(update={"approximate": found})
    return mean_run(**{"guarantees": guarantees, "budgets": budget_use(), **changes})


def rho_run(**changes: Any) -> AuditResult:
    """A mean run with budgets that claims a rho, and says who made it."""
    run, rho = budgets_run(), 0.11
    zcdp = Zcdp(
        relation="add_remove",
        unit="record",
        rho=0.1082561,
        rebalancing=0.0,
        tokens=48,
        any_length=True,
        advantage=0.19,
    )
    tree = entry(
        "pipeline",
        zcdp.rho,
        kind="zcdp",
        children=(entry("generation", zcdp.rho, kind="zcdp"),),
        rule="sum",
    )
    assert run.run.settings is not None
    made_by = run.run.settings.model_copy(
        update={"made_by": "The records team <records@example.org>"}
    )
    return budgets_run(
        **{
            "guarantee": said(
                "Generating these texts was 0.11-zCDP for adding or removing one record."
            ),
            "claim": ClaimResult(
                rho=rho, delta=4.4e-4, kind="zcdp", relation="add_remove", unit="record"
            ),
            "guarantees": run.guarantees.model_copy(update={"zcdp": zcdp}),
            "ledger": (tree, *run.ledger),
            "run": run.run.model_copy(update={"settings": made_by}),
            **changes,
        }
    )


def approximate_only_run() -> AuditResult:
    """A mean run whose record bounds nothing: no cost by batch or token, and no losses."""
    none = dict.fromkeys(("theorem1", "exact", "rise", "fall", "leave_one_out_max"))
    return mean_run(
        guarantees=Guarantees(ex_post=None, approximate=APPROXIMATE, empirical=NO_LOSSES),
        ledger=(approximate_ledger(),),
        batches=tuple(row.model_copy(update=none) for row in batches(12)),
        tokens=None,
    )


def user_run() -> AuditResult:
    """A claim per user, of batches of several texts."""
    claim = CLAIM.model_copy(update={"unit": "user"})
    rows = batches(3)
    found = ex_post(rows, unit="user")
    guarantees = Guarantees(ex_post=found, approximate=None, empirical=empirical(rows))
    rows = tuple(row.model_copy(update={"texts": 1 + row.id}) for row in rows)
    return median_run(3, claim=claim, guarantees=guarantees, batches=rows)


def unreadable_run() -> AuditResult:
    return AuditResult(
        verdict="error",
        evidence=2,
        guarantee=said("No guarantee: the run directory could not be read."),
        caveats=(),
        claim=None,
        guarantees=Guarantees(ex_post=None, approximate=None, empirical=NO_LOSSES),
        ledger=(),
        batches=(),
        tokens=None,
        checks=(check("integrity.format", "fail", measured="format 2", expected="format 1"),),
        not_checked=(),
        run=RunSummary(dpaudit="0.1.0"),
    )


def nested(depth: int) -> LedgerEntry:
    tree = entry("leaf", 1.0)
    for _ in range(depth):
        tree = entry("level", 1.0, "sum", children=(tree,))
    return tree


def hostile_run() -> AuditResult:
    parts = {"contribution": {"kind": "logits", "clip": HOSTILE}, "aggregator": {"kind": HOSTILE}}
    mechanism = {**MEDIAN, **parts, HOSTILE: {HOSTILE: [HOSTILE, {HOSTILE: HOSTILE}]}}
    mechanism |= {"long": "x" * 200_000, "many": {str(index): index for index in range(5_000)}}
    run = run_summary({"mechanism": mechanism}, path=HOSTILE, dpaudit=HOSTILE)
    return median_run(
        verdict="fail",
        guarantee=said(HOSTILE),
        caveats=(said(HOSTILE),),
        ledger=(
            entry(
                HOSTILE,
                1.0,
                "sum",
                reference=HOSTILE,
                children=(entry("y" * 100_000, math.nan),),
                omitted=1,
            ),
            nested(50),
        ),
        batches=batches(5, labels=(HOSTILE, None, "\u202eabc", "y" * 100_000, "")),
        checks=(
            check(
                HOSTILE,
                "fail",
                title=HOSTILE,
                measured=HOSTILE,
                expected=HOSTILE,
                detail=HOSTILE,
                reference=HOSTILE,
            ),
            check("claim.epsilon", "skip", detail=HOSTILE),
            check("claim.epsilon", "skip", evidence=9),
            check("\ufffe", "warn", detail="\uffff"),
            check("claim." + HOSTILE, "skip", applicable=False),
        ),
        not_checked=("claim.epsilon",),
        run=run,
        samples=(
            sample(0, label=HOSTILE, text=HOSTILE, characters=100_000),
            shaded(1, ("\ufffe```\n~~~\n" * 40, HOSTILE, '" onmouseover="alert(1)', "\u202e")),
            sample(2, text=None, characters=0),
        ),
    )


def infinite_run() -> AuditResult:
    rows = batches(3)
    rows = (rows[0].model_copy(update={"theorem1": math.inf, "exact": math.inf}), *rows[1:])
    result = median_run(3)
    bad = {
        "theorem1": math.inf,
        "exact": math.nan,
        "rise": math.inf,
        "fall": math.nan,
        "epsilon": math.inf,
    }
    bad |= {"batch_epsilon": math.inf}
    losses = Empirical(
        leave_one_out_max=math.inf,
        contexts=3,
        worst=(ContextLoss(batch=0, slot=0, loss=-math.inf),),
    )
    found = ex_post(batches(3), relation="replace", unit="context", **bad)
    return result.model_copy(
        update={
            "batches": rows,
            "guarantees": Guarantees(ex_post=found, approximate=None, empirical=losses),
            "ledger": (
                entry("pipeline", math.inf, "sum", children=(entry("generation", math.nan),)),
            ),
            "tokens": TokenCurve(
                position=(1, 2, 3),
                batches=(3, 3, 2),
                mean=(0.1, math.inf, math.nan),
                maximum=(0.2, math.inf, math.nan),
                theorem1=(0.2, math.inf, math.inf),
                exact=(0.1, math.inf, math.nan),
            ),
        }
    )


BUILDERS: dict[str, Callable[[], AuditResult]] = {
    "median": median_run,
    "failed": failed_run,
    "mean": mean_run,
    "budgets": budgets_run,
    "rho": rho_run,
    "secret": secret_run,
    "secret median": secret_median_run,
    "attacked": attacked_run,
    "public": public_run,
    "approximate only": approximate_only_run,
    "user": user_run,
    "no batch": lambda: median_run(0),
    "one batch": lambda: median_run(1),
    "unreadable": unreadable_run,
    "hostile": hostile_run,
    "infinite": infinite_run,
}
#: Results cannot be changed, so each is built once: tests tell rendered pages apart by the object
#: they are of.
SAMPLES = {name: functools.cache(build) for name, build in BUILDERS.items()}


Samples = dict[str, Callable[[], AuditResult]]


@pytest.fixture(scope="session")
def samples() -> Samples:
    """Builders of every kind of result."""
    return dict(SAMPLES)


@pytest.fixture(scope="session")
def results() -> dict[str, AuditResult]:
    """Every kind of result."""
    return {name: build() for name, build in SAMPLES.items()}


@pytest.fixture(scope="session")
def large_run() -> AuditResult:
    """A run of 1,000 batches of up to 500 tokens."""
    return median_run(1_000).model_copy(update={"tokens": curve(length=500, count=1_000)})


@pytest.fixture(scope="session")
def html_of() -> Callable[[AuditResult], str]:
    """The page of a result, drawn once for all tests."""
    rendered: dict[int, tuple[AuditResult, str]] = {}

    def get(result: AuditResult) -> str:
        if id(result) not in rendered:
            rendered[id(result)] = (
                result,
                render_html(result),
            )  # kept, so that its id stays its own
        return rendered[id(result)][1]

    return get


@pytest.fixture(scope="session")
def comparison(results: dict[str, AuditResult]) -> Comparison:
    """Results of both kinds, whole ones and others, one with a hostile name."""
    named = {
        name: results[name] for name in ("median", "mean", "failed", "infinite", "public", "secret")
    }
    return compare_runs(named | {HOSTILE: results["hostile"]})


@pytest.fixture(scope="session")
def comparison_page(comparison: Comparison) -> str:
    """That comparison as a page, one of whose links is no path."""
    return render_comparison_html(
        comparison, {"median": "../a b/report.html", "mean": "javascript:alert(1)"}
    )


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without figures, for tests that look at words or files alone: drawing takes a while."""
    monkeypatch.setattr("dpaudit.reports.writers.html.in_page", lambda _: None)


GOLDEN = Path(__file__).with_name("golden")


@pytest.fixture(scope="session")
def golden() -> Callable[[str, str], None]:
    """Holds a text against the file of this name in tests/reports/golden.

    With DPAUDIT_UPDATE_GOLDEN=1 it writes the file instead: read the difference before you commit
    it.
    """

    def hold(name: str, text: str) -> None:
        path = GOLDEN / name
        content = text.encode("utf-8", "backslashreplace")
        if os.environ.get("DPAUDIT_UPDATE_GOLDEN") == "1":
            GOLDEN.mkdir(exist_ok=True)
            path.write_bytes(content)
        assert path.exists(), f"no {path.name}: write it with DPAUDIT_UPDATE_GOLDEN=1"
        assert path.read_bytes().decode() == content.decode(), (
            f"{path.name} differs: see DPAUDIT_UPDATE_GOLDEN"
        )

    return hold
