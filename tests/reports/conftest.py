"""Audit results made by hand, for every shape that a report has to cope with."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from dpaudit.results import (
    Approximate,
    AuditResult,
    BatchResult,
    CheckResult,
    ClaimResult,
    Empirical,
    ExPost,
    Guarantees,
    Status,
    TokenCurve,
)

HOSTILE = (
    '<script>alert(1)</script> | `tick` | [click](javascript:alert(1)) "><img src=x onerror=alert(1)>\n'
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
            **fields,
        }
    )


def run_summary(**mechanism: Any) -> dict[str, Any]:
    return {
        "manifest": {
            "mechanism": {
                "aggregator": "median",
                "clip": 6.0,
                "temperature": 1.25,
                "divisor": None,
                "support": {"kind": "full", "size": None},
                **mechanism,
            },
            "batching": {"rule": "hashed-records", "batches": 40, "labels": ["business", "sport"]},
            "stopping": {"max_tokens": 48, "sequences": [[0], [2, 2]]},
            "sampling": {"generator": "os-entropy", "seed": None},
            "model": {"name": "SmolLM2-135M-Instruct", "digest": "ab" * 32},
            "software": {"python": "3.11.9", "torch": "2.4.0"},
            "created": "2025-01-02T03:04:05Z",
        },
        "path": "runs/bbc median",
        "dpaudit": "0.1.0",
        "digests": {"samples.jsonl": "cd" * 32, "steps/0.npz": "ef" * 32},
    }


def batches(count: int, labels: tuple[str | None, ...] = ("business", "sport")) -> tuple[BatchResult, ...]:
    source = random.Random(5)
    return tuple(
        BatchResult(
            id=index,
            label=labels[index % len(labels)],
            contexts=source.randrange(24, 40),
            steps=source.randrange(20, 48),
            theorem1=1.2 + source.gammavariate(3, 0.12),
            exact=None,
            leave_one_out_max=source.uniform(0.05, 0.3),
        )
        for index in range(count)
    )


def curve(length: int = 48, count: int = 40) -> TokenCurve:
    source = random.Random(7)
    mean = tuple(0.05 * math.exp(-position / 15) + 0.02 + source.uniform(0, 0.01) for position in range(length))
    return TokenCurve(
        position=tuple(range(1, length + 1)),
        batches=tuple(max(1, count - max(0, position - 20)) for position in range(length)),
        mean=mean,
        maximum=tuple(value * 4 for value in mean),
    )


CLAIM = ClaimResult(epsilon=2.5, delta=0.0, kind="ex-post", relation="add_remove", unit="record")


def median_run(count: int = 40, **changes: Any) -> AuditResult:
    rows = batches(count)
    worst = max(row.theorem1 for row in rows if row.theorem1 is not None)
    ex_post = ExPost(relation="add_remove", unit="record", theorem1=worst, exact=None, rebalancing=0.0, total=worst)
    return AuditResult(
        **{
            "verdict": "pass",
            "guarantee": (
                "The median run's released texts cost at most 2.5 nats ex post for adding or removing one record."
            ),
            "caveats": ("A caveat that stands beside the guarantee.",),
            "claim": CLAIM,
            "guarantees": Guarantees(ex_post=ex_post, approximate=None, empirical=Empirical(leave_one_out_max=0.2987)),
            "batches": rows,
            "tokens": curve(count=count),
            "checks": (
                check("integrity.format", evidence=0),
                check("integrity.hashes"),
                check("record.range"),
                check("release.text", "skip", evidence=2, detail="The tokenizer is missing: pass --model DIR."),
                check("claim.epsilon"),
            ),
            "not_checked": ("sampling.distribution", "partition.disjoint", "partition.stable"),
            "run": run_summary(),
            **changes,
        }
    )


def failed_run() -> AuditResult:
    return median_run(
        verdict="fail",
        guarantee="No guarantee: the run cost more than the 1.5 nats that it claims for one record.",
        claim=CLAIM.model_copy(update={"epsilon": 1.5}),
        checks=(
            check("integrity.format"),
            check("record.range", "warn", measured="3 values at the clip"),
            check("record.aggregate", "error", detail="The aggregate's file is missing. Write it with RunWriter."),
            check(
                "claim.epsilon",
                "fail",
                title="The run costs more than it claims",
                detail="Claim at least 2.5, or generate shorter texts.\nThe costliest batch is 17.",
            ),
            check("release.text", "skip", detail="The tokenizer is missing: pass --model DIR."),
        ),
    )


def mean_run() -> AuditResult:
    plain = tuple(row.model_copy(update={"theorem1": None, "leave_one_out_max": None}) for row in batches(12))
    approximate = Approximate(
        epsilon=2.49987654321,
        delta=4.4e-4,
        method="rdp",
        relation="add_remove",
        unit="record",
        tokens=48,
        rebalancing=0.0,
    )
    return median_run(
        guarantee="Generating these texts was (2.5, 0.00044)-DP for adding or removing one record.",
        claim=ClaimResult(epsilon=2.5, delta=4.4e-4, kind="approximate", relation="add_remove", unit="record"),
        guarantees=Guarantees(ex_post=None, approximate=approximate, empirical=Empirical(leave_one_out_max=None)),
        batches=plain,
        tokens=None,
        run=run_summary(aggregator="mean", divisor=32.0),
    )


def unreadable_run() -> AuditResult:
    return AuditResult(
        verdict="error",
        guarantee="No guarantee: the run directory could not be read.",
        caveats=(),
        claim=None,
        guarantees=Guarantees(ex_post=None, approximate=None, empirical=Empirical(leave_one_out_max=None)),
        batches=(),
        tokens=None,
        checks=(check("integrity.format", "fail", measured="format 2", expected="format 1"),),
        not_checked=(),
        run={},
    )


def hostile_run() -> AuditResult:
    run = run_summary(aggregator=HOSTILE, clip=HOSTILE)
    run["path"] = HOSTILE
    run[HOSTILE] = {HOSTILE: [HOSTILE, {HOSTILE: HOSTILE}]}
    run["dpaudit"] = HOSTILE
    run["long"] = "x" * 200_000
    run["many"] = {str(index): index for index in range(5_000)}
    return median_run(
        verdict="fail",
        guarantee=HOSTILE,
        caveats=(HOSTILE,),
        batches=batches(5, labels=(HOSTILE, None, "\u202eabc", "y" * 100_000, "")),
        checks=(
            check(
                HOSTILE, "fail", title=HOSTILE, measured=HOSTILE, expected=HOSTILE, detail=HOSTILE, reference=HOSTILE
            ),
            check("claim.epsilon", "skip", detail=HOSTILE),
            check("claim.epsilon", "skip", evidence=9),
        ),
        not_checked=(HOSTILE, "record.range"),
        run=run,
    )


def infinite_run() -> AuditResult:
    rows = batches(3)
    rows = (rows[0].model_copy(update={"theorem1": math.inf}), *rows[1:])
    result = median_run(3)
    ex_post = ExPost(
        relation="replace", unit="context", theorem1=math.inf, exact=math.nan, rebalancing=0.0, total=math.inf
    )
    return result.model_copy(
        update={
            "batches": rows,
            "guarantees": result.guarantees.model_copy(update={"ex_post": ex_post}),
            "tokens": TokenCurve(
                position=(1, 2, 3), batches=(3, 3, 2), mean=(0.1, math.inf, math.nan), maximum=(0.2, math.inf, math.nan)
            ),
        }
    )


SAMPLES = {
    "median": median_run,
    "failed": failed_run,
    "mean": mean_run,
    "unreadable": unreadable_run,
    "hostile": hostile_run,
    "infinite": infinite_run,
}


@pytest.fixture
def samples() -> dict[str, Callable[[], AuditResult]]:
    """Builders of every kind of result."""
    return dict(SAMPLES)


@pytest.fixture(params=sorted(SAMPLES))
def result(request: pytest.FixtureRequest) -> AuditResult:
    """Each kind of result in turn."""
    return SAMPLES[request.param]()


@pytest.fixture
def large_run() -> AuditResult:
    """A run of 1,000 batches."""
    return median_run(1_000)
