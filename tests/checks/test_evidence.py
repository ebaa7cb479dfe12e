"""What a pass rests on: every check up to the level that was asked for, made."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dpaudit.accounting import LowerBound
from dpaudit.auditing.disclosure import public_form
from dpaudit.auditing.run import audit_run
from dpaudit.mechanisms import log_probability
from dpaudit.reports.reproducing import commands
from dpaudit.results import Finding
from dpaudit.results.replay import (
    Attacked,
    LeftOut,
    PublicParts,
    PublicReplay,
    Replay,
    ReplayedStep,
)
from dpaudit.runs import aggregate_digest
from tests.checks.test_faults import CLEAN
from tests.trials import trial

#: A key without a pattern, which could be secret.
OTHER_KEY = "3609fec0febd8ad97e0105aed63ecb5dcc75bdb4286c3a4ed9822ee3b94b8a5c"
REPLAYED = ("neighbors.regenerated", "replay.logits", "replay.lower-bound")


def test_a_pass_needs_every_check_up_to_the_level(make_run):
    for evidence, verdict in [
        (0, "pass"),
        (1, "pass"),
        (2, "pass"),
        (3, "not_verified"),
        (4, "not_verified"),
    ]:
        result = audit_run(make_run().path, evidence=evidence)
        assert (result.verdict, result.evidence) == (verdict, evidence)
        assert result.not_checked == REPLAYED
        if verdict == "not_verified":
            checks = result.guarantee.values["checks"]
            assert "replay.logits" in checks
            assert ("replay.lower-bound" in checks) == (evidence == 4)
            assert result.guarantee.values["remedy"].values["options"] == "--data FILE --evidence 4"


def test_there_are_five_levels(make_run):
    for level in [-1, 5]:
        with pytest.raises(ValueError, match="0 to 4"):
            audit_run(make_run().path, evidence=level)


def test_a_skip_says_what_would_run_the_check(make_run):
    skipped = [check for check in make_run().audit().checks if check.id in REPLAYED]
    assert len(skipped) == len(REPLAYED)
    assert all("--data FILE --evidence 4" in check.detail for check in skipped)


def test_nothing_of_ours_is_to_be_run_where_we_cannot_load_the_generator(make_run, dpaudit):
    """Neither a command that could only be refused, nor a pass at a level that nobody replayed."""
    for edits, again in (
        ({"prompt.template": "another"}, False),
        ({"recorded": {"generator": "other 1.0"}}, True),
    ):
        for settings in (
            {},
            {"aggregator": "mean", "contexts": False},
            {"aggregator": "mean", "contribution": "differences"},
        ):
            run = make_run(**settings)
            run.edit_manifest(edits)
            run.rehash()
            result = audit_run(run.path, evidence=4)
            assert result.verdict == "not_verified" and set(REPLAYED) <= set(result.not_checked)
            for check in result.checks:
                assert "dpaudit report" not in check.detail and "--model" not in check.detail, (
                    check.id
                )
                assert (
                    check.id not in REPLAYED or "cannot load this run's generator" in check.detail
                )
            assert not any("--data" in command for command in commands(result))
        for option in ("--data", "--model"):
            code, _, err = dpaudit("report", run.path, option, "none.txt")
            assert code == 2 and "cannot load this generator" in err
        _, _, err = dpaudit("verify", run.path, "--epsilon", 30)
        command = f"`dpaudit replay {run.path} --data FILE --without ROW -- PYTHON SCRIPT`"
        assert (command in " ".join(err.split())) == again


def test_what_is_not_declared_is_not_passed(make_run, failed):
    """A foreign run may leave these out; then nobody can tell, and the verdict is no pass."""
    for field, check in [
        ("batching.key", "partition.stable"),
        ("batching.batches_per_label", "partition.stable"),
        ("batching.generate_per_label", "release.selection"),
        ("chosen_from.batching", "partition.public-parameters"),
        ("chosen_from.settings", "claim.tuning"),
    ]:
        run = make_run()
        run.edit_manifest({field: None})
        run.rehash()
        result = run.audit()
        assert failed(result) == set()
        assert result.verdict == "not_verified"
        assert check in result.guarantee.values["checks"]
        assert check in result.not_checked


def test_a_claim_per_context_needs_no_rule_for_records(make_run):
    run = make_run(unit="context")
    run.edit_manifest({"batching.key": None, "claim.unit": "context"})
    run.rehash()
    result = run.audit()
    assert result.verdict == "pass"
    assert "partition.stable" not in result.not_checked


def test_slices_support_a_claim_per_context(make_run):
    result = make_run(rule="paper-slices", unit="context", sizes=(4, 4)).audit()
    (check,) = (check for check in result.checks if check.id == "partition.stable")
    assert (result.verdict, check.status, check.applicable) == ("pass", "skip", False)


def test_slots_show_the_records_of_smallest_digest(make_run):
    """With k = 2, a record may be left out only where its slot is full already."""
    run = make_run(rule="hashed-slots", unit="context", sizes=(4, 4))
    run.edit_manifest({"prompt.examples_per_context": 2})
    run.rehash()
    (check,) = (check for check in run.audit().checks if check.id == "partition.stable")
    assert check.status == "pass"
    lines = (run / "assignment").read_text().splitlines(keepends=True)
    shown = next(index for index, line in enumerate(lines) if line.split("\t")[1] == "0")
    digest = lines[shown].split("\t")[0]
    (run / "assignment").write_text(
        "".join([*lines[:shown], f"{digest}\t-\t-\n", *lines[shown + 1 :]])
    )
    run.rehash()
    (check,) = (check for check in run.audit().checks if check.id == "partition.stable")
    assert (check.status, check.code) == ("fail", "misplaced")
    assert check.values["problem"].values["problem"].code == "partition.left-out"


def test_an_assignment_that_cannot_be_read_is_said(make_run):
    run = make_run()
    (run / "assignment").write_text("nonsense\n")
    run.rehash()
    checks = {check.id: check for check in run.audit().checks}
    assert checks["partition.stable"].status == "skip"
    assert checks["integrity.format"].status == "fail"


def check_of(result, check_id):
    (check,) = (check for check in result.checks if check.id == check_id)
    return check


MEANS = (
    {"aggregator": "mean"},
    {"aggregator": "mean", "sizes": (4, 4)},
    {"aggregator": "mean", "sizes": (4, 4), "rule": "hashed-slots"},
    {"aggregator": "mean", "sizes": (4, 4), "rule": "paper-slices", "unit": "context"},
    {"aggregator": "mean", "sizes": (4,)},
    {"aggregator": "mean", "sizes": (1, 2), "top_k": 5},
    {"aggregator": "mean", "sizes": (6, 5), "contribution": "differences"},
)


def test_what_a_mean_is_the_sum_of_its_contexts_show(make_run):
    """Without contexts nothing shows: over n or over 4, four contexts give one mean.

    A weight shows nowhere either.
    """
    for kind in MEANS:
        shown, hidden = (
            make_run(**kind, contexts=contexts).audit_with_model() for contexts in (True, False)
        )
        check = check_of(shown, "mechanism.divisor")
        assert (check.status, check.evidence, shown.verdict) == ("pass", 1, "pass")
        check = check_of(hidden, "mechanism.divisor")
        assert (check.status, check.evidence, check.applicable, hidden.verdict) == (
            "skip",
            1,
            True,
            "not_verified",
        )
        assert (check.code, check.values["seen"]) == ("unrecorded-contexts", 0)
        assert [note.code for note in check.notes] == ["replay.command"]


def test_a_mean_without_contexts_has_nothing_to_hide(make_run):
    """Sums without terms are shown to be 0.

    One batch that has some is enough to leave the run open.
    """
    result = make_run(aggregator="mean", sizes=(0, 0), contexts=False).audit()
    assert (check_of(result, "mechanism.divisor").status, result.verdict) == ("pass", "pass")
    result = make_run(aggregator="mean", sizes=(0, 3), contexts=False, max_tokens=1).audit()
    check = check_of(result, "mechanism.divisor")
    assert (check.status, result.verdict) == ("skip", "not_verified")
    assert check.values == {"seen": 1, "steps": 2}


def test_few_contexts_that_agree_are_no_other_divisor(make_run):
    """Six contexts favour six tokens, over 4.

    The mean of the others is -c, as if it were over 6.
    """
    run = make_run(aggregator="mean", sizes=(6, 6), divisor=4.0, max_tokens=1)

    def favouring(draft):
        rows = np.full((6, 12), -6.0)
        rows[np.arange(6), np.arange(6)] = 6.0
        (step,) = draft.steps
        mean = rows.sum(axis=0) / 4
        draft.edit(
            0,
            contexts=rows,
            aggregate=mean,
            aggregate_digest=aggregate_digest(mean),
            log_probability=log_probability(mean, step.token, run.spec.mechanism.temperature),
        )

    for batch in range(2):
        run.rewrite(batch, favouring)
    run.rehash()
    assert run.audit().verdict == "pass"


def replayed(*steps, public=None, left_out=(), attack=None):
    """A replay that found this, and nothing else."""
    return Replay(None, public, None, None, steps, left_out, attack)


STEP = ReplayedStep(batch=0, position=1, difference=0.0, tolerance=1.0)


def test_a_replay_shows_what_the_record_leaves_open(make_run):
    """The check says how far a replay went.

    A replay that shows nothing, or other values, shows nothing here.
    """
    coarse = dataclasses.replace(STEP, difference=0.5)
    wrong = dataclasses.replace(STEP, difference=2.0)
    run = make_run(aggregator="mean", contexts=False)
    for steps, status in (
        ((STEP,), "pass"),
        ((STEP, wrong), "skip"),
        ((coarse,), "skip"),
        ((), "skip"),
    ):
        result = audit_run(run.path, replay=replayed(*steps), disclosed=trial(), evidence=3)
        check = check_of(result, "mechanism.divisor")
        assert (check.status, result.verdict == "pass") == (status, status == "pass")
        if status == "pass":
            assert check.evidence == 3
            assert (check.code, check.values["recomputed"]) == ("recomputed", 1)
            assert check.notes[0].values["share"] == pytest.approx(0.99)


def test_the_model_alone_shows_what_is_public(make_run):
    """Of all steps. Where rounding may hide something, it shows nothing."""
    for sizes in ((4,), (4, 4)):
        run = make_run(top_k=5, sizes=sizes)
        for difference, wrong, status in (
            (0.0, 0, "pass"),
            (0.5, 0, "skip"),
            (0.0, 1, "fail"),
            (0.5, 1, "fail"),
        ):
            first = Finding(code="replay.other-support", values={"tokens": 2}) if wrong else None
            found = PublicReplay(None, PublicParts(6, wrong, first, difference, 1.0))
            result = audit_run(run.path, replay=found)
            check = check_of(result, "mechanism.support-public")
            assert (check.status, check.evidence) == (status, 3)
            assert (result.verdict == "fail") == (status == "fail")
            code = {"pass": "recomputed", "skip": "rounding-hides", "fail": "not-the-models"}[
                status
            ]
            assert (check.code, check.values["recomputed"]) == (code, 6)


def test_what_later_steps_took_from_a_public_prompt_only_a_replay_shows(make_run):
    """Two batches part at the second token.

    From there on, a support or an anchor has private logits.
    """
    for start, status in ((0, "fail"), (1, "skip")):
        run = make_run(
            aggregator="mean",
            contribution="differences",
            top_k=5,
            sizes=(4, 5),
            private_anchor=True,
            private_from=start,
        )
        result = run.audit()
        check = check_of(result, "mechanism.support-public")
        assert (check.status, result.verdict) == (
            status,
            "fail" if status == "fail" else "not_verified",
        )
    assert check.evidence == 1 and "mechanism.support-public" in result.not_checked
    assert check.code == "uncompared"
    assert [check.values[name] for name in ("agreeing", "steps", "before")] == [
        2,
        result.run.steps,
        0,
    ]
    assert [note.code for note in check.notes] == ["mechanism.shown-by-model"]
    assert (
        check.made_with.startswith("--model")
        and "mechanism.support-public" in result.guarantee.values["checks"]
    )
    # Some texts part later: that a support is public is seen after a token, and open after more.
    run = make_run(top_k=2, sizes=(4, 5, 4), seed=1)
    result = run.audit()
    check = check_of(result, "mechanism.support-public")
    assert (check.status, check.evidence, result.verdict) == ("skip", 3, "pass"), check.measured
    assert "caveat.public-parts" in {caveat.code for caveat in result.caveats}
    result = audit_run(run.path, evidence=3)
    assert (
        result.verdict == "not_verified"
        and "mechanism.support-public" in result.guarantee.values["checks"]
    )
    result = make_run(top_k=5, sizes=(4, 5), max_tokens=1).audit()
    check = check_of(result, "mechanism.support-public")
    assert (check.status, check.evidence, check.code) == ("pass", 1, "agree")
    assert (check.values["agreeing"], check.values["steps"]) == (2, 2)
    assert "caveat.public-parts" not in {caveat.code for caveat in result.caveats}


def test_a_support_must_have_another_to_agree_with(make_run):
    """One batch of a label shows nothing; a replay does."""
    result = make_run(top_k=5, sizes=(4,)).audit()
    (check,) = (check for check in result.checks if check.id == "mechanism.support-public")
    assert (check.status, check.applicable, result.verdict) == ("skip", True, "not_verified")


def test_coarse_rounding_shows_nothing_but_equality(make_run):
    """In bfloat16 elsewhere than where a run was made, a replay could not tell a forged record."""
    for difference, tolerance, status in [
        (0.0, 9.0, "pass"),
        (0.1, 9.0, "skip"),
        (1e-3, 9.0, "pass"),
    ]:
        step = dataclasses.replace(STEP, difference=difference, tolerance=tolerance)
        result = audit_run(make_run().path, replay=replayed(step), evidence=3)
        (check,) = (check for check in result.checks if check.id == "replay.logits")
        assert check.status == status
        assert result.verdict == ("pass" if status == "pass" else "not_verified")


def test_a_loss_that_rounding_could_make_shows_nothing(make_run):
    left_out = LeftOut(batch=0, slot=0, recorded=0.1, regenerated=3.0, tolerance=5.0)
    result = audit_run(make_run().path, replay=replayed(left_out=(left_out,)))
    checks = {check.id: check.status for check in result.checks}
    assert checks["neighbors.regenerated"] == "skip"


def test_without_a_bound_no_loss_is_within_it(make_run):
    """A mean run whose users have more records than any ex-post cost is worked out for."""
    run = make_run(aggregator="mean", contexts=True)
    run.edit_manifest({"privacy.records_per_user": 300, "claim.unit": "user", "claim.epsilon": 1e6})
    run.rehash()
    (check,) = (check for check in run.audit().checks if check.id == "neighbors.removal")
    assert (check.status, check.applicable) == ("skip", True)


def test_only_what_an_attack_shows_with_confidence_refutes_a_claim_and_only_an_approximate_one(
    make_run,
):
    """An ex-post claim is about one output.

    Figures for all outputs together cannot refute it.
    """
    for aggregator, epsilon, estimate in [("mean", 0.1, 99.0), ("median", 99.0, 99.5)]:
        attack = Attacked(
            LowerBound(1e-4, 0.95, epsilon, estimate, ()), trials=20, beyond=0, worst=None
        )
        result = audit_run(make_run(aggregator=aggregator).path, replay=replayed(attack=attack))
        assert {check.id: check.status for check in result.checks}["replay.lower-bound"] == "pass"


def test_a_maximum_over_some_batches_is_not_judged(make_run):
    run = make_run()
    run.drop(1)
    run.rehash()
    assert {check.id: check.status for check in run.audit().checks}[
        "composition.all-batches"
    ] == "skip"


def test_who_a_user_is_stays_the_runs_word(make_run):
    """A column of row numbers gives each user one record.

    Readers outside are told what the count rests on, too.
    """
    run = make_run(unit="user", records_per_user=2, width=3)
    run.edit_manifest({"data.user": "row"})
    run.rehash()
    result = run.audit(dataclasses.replace(CLEAN, most_per_user=1))
    (check,) = [check for check in result.checks if check.id == "partition.users"]
    assert (check.status, check.evidence, check.values["column"]) == ("pass", 3, "row")
    for audience in (result, public_form(result)):
        assert "caveat.users-by-column" in {caveat.code for caveat in audience.caveats}
    assert "'row'" not in public_form(result).model_dump_json()


@pytest.mark.parametrize(
    "settings",
    [{}, {"batching.key": OTHER_KEY}, {"batching.batches_per_label": 2000}],
    ids=["honest", "other key", "more batches"],
)
def test_only_a_replay_shows_where_rounds_sent_the_records_of_slots(make_run, settings):
    """Their batches have as many contexts under any key, and among any number of batches.

    So a claim for readers alone passes with a replay only; one of the batch level without, too.
    """
    run = make_run(aggregator="mean", secret=True, rounds=3, sizes=(4, 4), rule="hashed-slots")
    run.edit_manifest(settings)
    run.rehash()
    found = audit_run(run.path)
    open_ = {check.id: check.evidence for check in found.checks if check.id in found.not_checked}
    assert (found.verdict, open_["partition.stable"]) == ("not_verified", 3)
    assert open_["amplification.records"] == 1
    replayed = audit_run(run.path, replay=CLEAN)
    shown = {check.id: (check.status, check.evidence) for check in replayed.checks}
    assert replayed.verdict == "pass" and shown["partition.stable"] == ("pass", 3)
    run.edit_manifest({"claim.epsilon": found.claim.batch_epsilon})
    run.rehash()
    known = audit_run(run.path)
    open_ = {check.id: check.evidence for check in known.checks if check.id in known.not_checked}
    assert (known.verdict, open_["amplification.records"]) == ("pass", 3)
