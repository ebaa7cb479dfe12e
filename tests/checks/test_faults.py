"""Every check has a planted fault that makes it fail, and names of its own. Digests are forged after each fault."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from dpaudit.accounting import bounds_from_central
from dpaudit.checks import RUN_CHECKS, STEP_CHECKS
from dpaudit.runs import aggregate_digest

CLIP = 6.0
ODD, EVEN = {"sizes": (5, 4)}, {"sizes": (4, 5)}
MEAN = {"aggregator": "mean"}


@dataclass(frozen=True)
class Fault:
    """What is done to a run of some kind, and exactly which checks must fail."""

    fails: frozenset[str]
    plant: Callable[[Any], None]
    kind: dict[str, Any]


FAULTS: dict[str, Fault] = {}


def fault(*fails: str, **kind: Any) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    def register(plant: Callable[[Any], None]) -> Callable[[Any], None]:
        assert plant.__name__ not in FAULTS
        FAULTS[plant.__name__] = Fault(frozenset(fails), plant, kind)
        return plant

    return register


def altered(name: str, place: Any, value: Any) -> Callable[[Any], None]:
    """Set one entry of one array in the first step of batch 0."""
    return lambda run: run.rewrite(0, lambda draft: draft.alter(0, name, place, value))


def manifest(**change: Any) -> Callable[[Any], None]:
    return lambda run: run.edit_manifest({name.replace("__", "."): value for name, value in change.items()})


def scaled_claim(factor: float) -> Callable[[Any], None]:
    """A claim of `factor` times what the record supports."""
    return lambda run: run.edit_manifest({"claim.epsilon": run.exact * factor})


def plain(name: str, plant: Callable[[Any], None], *fails: str, **kind: Any) -> None:
    """Register a fault that one of the functions above makes."""
    assert name not in FAULTS
    FAULTS[name] = Fault(frozenset(fails), plant, kind)


# --- integrity -------------------------------------------------------------------------------------------------------


@fault("integrity.format", **MEAN)
def batch_cut_short(run):
    path = run.steps_file(1)
    path.write_bytes(path.read_bytes()[:-1])


@fault("integrity.format", "claim.epsilon")
def batch_cut_short_leaves_nothing_to_bound_the_median(run):
    batch_cut_short(run)


@fault("integrity.hashes")
def foreign_file(run):
    run.rehash()
    (run / "notes.txt").write_text("added later")


@fault("integrity.hashes")
def altered_file(run):
    run.rehash()
    (run / "assignment").write_text("")


@fault("integrity.hashes")
def missing_file(run):
    run.rehash()
    (run / "hashes").write_text((run / "hashes").read_text() + "0" * 64 + "  gone.txt\n")


@fault("integrity.format", "partition.disjoint")
def assignment_of_something_else(run):
    (run / "assignment").write_text("record one: batch 0\n")


@fault("integrity.format")
def clusters_of_something_else(run):
    (run / "clusters").write_text("[]")


@fault("integrity.complete", "claim.epsilon")
def dropped_batch(run):
    run.drop(1)
    run.rehash()


@fault("integrity.complete", "claim.epsilon")
def dropped_first_batch(run):
    run.drop(0)
    run.rehash()


@fault("integrity.complete")
def dropped_sample(run):
    run.edit_samples(lambda lines: lines.pop())
    run.rehash()


@fault("integrity.complete")
def doubled_sample(run):
    run.edit_samples(lambda lines: lines.append(lines[0]))
    run.rehash()


@fault("integrity.complete", "partition.disjoint", "claim.epsilon")
def batch_that_is_not_declared(run):
    run.edit_manifest({"batching.batches": 1})
    run.rehash()


@fault("integrity.complete")
def half_written_batch(run):
    (run / "steps/00000002.zip.part").write_bytes(b"PK")
    run.rehash()


@fault("integrity.complete", "partition.disjoint")
def lost_assignment(run):
    (run / "assignment").unlink()
    run.rehash()


@fault("integrity.hashes")
def foreign_file_with_a_digest(run):
    (run / "seed_texts.txt").write_text("what the prompts were made of")


@fault("integrity.complete", text=False, sizes=(4, 4), max_tokens=12, vocabulary=200)
def batch_copied(run):
    draft = run.draft(0)
    run.rewrite(1, lambda copy: setattr(copy, "steps", draft.steps) or setattr(copy, "stop", draft.stop))


# --- partition -------------------------------------------------------------------------------------------------------


def assigned(change: Callable[[list[list[str]]], None]) -> Callable[[Any], None]:
    """Change the assignment's lines, each a list of digest, batch and slot."""

    def plant(run):
        path = run / "assignment"
        lines = [line.split("\t") for line in path.read_text().splitlines()]
        change(lines)
        path.write_text("".join("\t".join(line) + "\n" for line in lines))

    return plant


SLOTS = {"rule": "hashed-slots", "sizes": (4, 4)}
plain("record_in_two_batches", assigned(lambda lines: lines.insert(1, [lines[0][0], "1", "-"])), "partition.disjoint")
plain("record_left_out", assigned(lambda lines: lines.pop(0)), "partition.disjoint")
plain("record_in_an_undeclared_batch", assigned(lambda lines: lines[0].__setitem__(1, "7")), "partition.disjoint")
plain("record_in_another_batch", assigned(lambda lines: lines[0].__setitem__(1, "1")), "partition.disjoint")
plain("slot_of_a_rule_without", assigned(lambda lines: lines[0].__setitem__(2, "0")), "partition.disjoint")
plain("slot_out_of_range", assigned(lambda lines: lines[0].__setitem__(2, "4")), "partition.disjoint", **SLOTS)
plain("slot_shared", assigned(lambda lines: lines[1].__setitem__(2, "0")), "partition.disjoint", **SLOTS)
plain("digests_out_of_order", assigned(lambda lines: lines.reverse()), "partition.disjoint")
plain("other_data_digest", manifest(data__digest="0" * 64), "partition.disjoint")
plain("other_number_of_records", manifest(data__records=999), "partition.disjoint")
plain("other_number_of_slots", manifest(batching__slots=1000), "partition.disjoint", **SLOTS)


@fault("partition.disjoint")
def costly_batch_dropped_with_the_declared_number(run):
    run.drop(1)
    run.edit_manifest({"batching.batches": 1})


# --- record.range ----------------------------------------------------------------------------------------------------
# Row 0 of four central values bounds nothing under add_remove, so the claim stands and only the range is wrong.

plain("nan_in_central", altered("central", (0, 3), np.nan), "record.range", **EVEN)
plain("infinity_in_central", altered("central", (3, 3), np.inf), "record.range", **EVEN)
plain("below_the_clip", altered("central", (0, 3), np.nextafter(np.float32(-CLIP), -np.inf)), "record.range", **EVEN)
plain("beyond_the_clip", altered("central", (3, 3), CLIP + 1e-5), "record.range", **EVEN)
plain("unsorted_central", altered("central", (0, slice(None)), CLIP), "record.range", **EVEN)
plain("nan_in_the_middle", altered("central", (1, 3), np.nan), "record.range", "record.aggregate", "claim.epsilon")
plain("nan_in_aggregate", altered("aggregate", 3, np.nan), "record.range", "record.aggregate", **MEAN)


@fault("record.range")
def opposite_infinities(run):
    def change(draft):
        draft.alter(0, "central", (0, 3), -np.inf)
        draft.alter(0, "central", (3, 3), np.inf)

    run.rewrite(0, change)


@fault("record.range", "partition.disjoint", aggregator="mean", contexts=False)
def aggregate_larger_than_contexts_allow(run):
    def change(draft):
        draft.header = replace(draft.header, contexts=1)

    run.rewrite(0, change)


@fault("record.range", top_k=5, text=False)
def unsorted_support(run):
    def change(draft):
        step = draft.steps[0]
        turned = {name: getattr(step, name)[..., ::-1].copy() for name in ("central", "sides", "support")}
        draft.edit(0, **turned, aggregate_digest=aggregate_digest((turned["central"][1] + turned["central"][2]) / 2))

    run.rewrite(0, change)


plain("support_outside_vocabulary", altered("support", 4, 12), "record.range", top_k=5, text=False, seed=3)

# --- record.aggregate ------------------------------------------------------------------------------------------------

plain("aggregate_altered", altered("aggregate", 3, 0.125), "record.aggregate", **MEAN)
plain("context_and_central_disagree", altered("central", (0, 3), -CLIP), "record.aggregate", contexts=True)
plain("higher_temperature_declared", manifest(mechanism__temperature=2.0), "record.aggregate")
plain("lower_temperature_declared", manifest(mechanism__temperature=1.0), "record.aggregate", "claim.epsilon")
plain("divisor_not_the_declared_one", manifest(mechanism__divisor=4.5), "record.aggregate", contexts=True, **MEAN)


@fault("record.aggregate")
def digest_of_another_vector(run):
    run.rewrite(0, lambda draft: draft.edit(0, aggregate_digest=bytes(32)))


@fault("record.aggregate", **EVEN)
def sampled_from_the_lower_middle_value(run):
    run.rewrite(0, lambda draft: draft.edit(0, aggregate_digest=aggregate_digest(draft.steps[0].central[1])))


@fault("record.aggregate")
def log_probability_slightly_off(run):
    run.rewrite(0, lambda draft: draft.edit(0, log_probability=draft.steps[0].log_probability - 1e-7))


@fault("record.range", "record.aggregate", aggregator="mean", sizes=(0, 2))
def mean_of_no_contexts_is_not_zero(run):
    ones = np.ones(12)
    run.rewrite(0, lambda draft: draft.edit(0, aggregate=ones, aggregate_digest=aggregate_digest(ones)))


# --- record.sides ----------------------------------------------------------------------------------------------------


def flipped(place: Any) -> Callable[[Any], None]:
    def change(draft):
        draft.alter(0, "sides", place, ~draft.steps[0].sides[place])

    return lambda run: run.rewrite(0, change)


def other_holder(wanted: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Name another context as the holder of one median."""

    def change(draft):
        candidates = np.flatnonzero(wanted(draft.steps[0]))
        draft.alter(0, "holder", 3, next(int(i) for i in candidates if i != draft.steps[0].holder[3]))

    return lambda run: run.rewrite(0, change)


def wrong_padding(run):
    """Where contexts run out, let a value stand that is neither -clip nor out of order."""

    def change(draft):
        padding = draft.steps[0].central.shape[0] // 2 - draft.header.contexts // 2
        central = draft.steps[0].central
        column = int(np.argmax(central[padding]))
        draft.alter(0, "central", (padding - 1, column), (central[padding - 1, column] + central[padding, column]) / 2)

    run.rewrite(0, change)


@fault("record.sides", contexts=True)
def sides_of_two_contexts_swapped(run):
    def change(draft):
        draft.edit(0, sides=draft.steps[0].sides[::-1].copy())

    run.rewrite(0, change)


plain("flipped_side", flipped((0, 3)), "record.sides", **EVEN)
plain("flipped_side_of_odd", flipped((4, 11)), "record.sides", **ODD)
plain("holder_out_of_range", altered("holder", 3, 5), "record.sides", **ODD)
plain("holder_marked_below", other_holder(lambda step: step.sides[:, 3]), "record.sides", **ODD)
plain("holder_above", other_holder(lambda step: ~step.sides[:, 3]), "record.sides", contexts=True, **ODD)
plain("wrong_padding_of_0", wrong_padding, "record.sides", "record.aggregate", sizes=(0, 4))
plain("wrong_padding_of_1", wrong_padding, "record.sides", sizes=(1, 4))
plain("wrong_padding_of_2", wrong_padding, "record.sides", sizes=(2, 4))
plain("wrong_padding_of_3", wrong_padding, "record.sides", sizes=(3, 4))

# --- sampling, release, mechanism ------------------------------------------------------------------------------------


@fault("sampling.support", top_k=5, text=False, **MEAN)
def token_outside_the_public_support(run):
    def change(draft):
        draft.edit(0, token=next(i for i in range(12) if i not in draft.steps[0].support))

    run.rewrite(0, change)


plain("token_outside_the_vocabulary", lambda run: run.rewrite(0, lambda d: d.edit(0, token=12)), "sampling.support",
      text=False, **MEAN)  # fmt: skip
plain("negative_token", lambda run: run.rewrite(0, lambda draft: draft.edit(0, token=-1)), "sampling.support",
      "release.text", "claim.epsilon")  # fmt: skip


@fault("sampling.support", "record.aggregate", **MEAN)
def token_of_probability_0(run):
    run.rewrite(0, lambda draft: draft.edit(0, log_probability=-np.inf))


@fault("release.text")
def text_edited_in_record_and_release(run):
    run.rewrite(0, lambda draft: setattr(draft, "text", "a nicer text"))


@fault("release.text")
def text_edited_in_release(run):
    run.edit_samples(lambda lines: lines[0].update(text="a nicer text"))


@fault("release.text")
def text_withheld(run):
    run.edit_samples(lambda lines: lines[0].update(text=None))


@fault("release.text", text=False)
def tokens_edited_in_release(run):
    run.edit_samples(lambda lines: lines[0]["tokens"].reverse() or lines[0]["tokens"].append(1))


@fault("release.text")
def lines_reordered(run):
    run.edit_samples(lambda lines: lines.reverse())


@fault("release.text")
def key_doubled(run):
    path = run / "samples.jsonl"
    path.write_text(path.read_text().replace('"text": ', '"text": "a private record", "text": ', 1))


@fault("release.text")
def spaces_added(run):
    path = run / "samples.jsonl"
    path.write_text(path.read_text().replace('"tokens": ', '"tokens":  ', 1))


@fault("release.text")
def label_that_is_not_public(run):
    run.rewrite(0, lambda draft: setattr(draft, "header", replace(draft.header, label="Jane Roe")))


@fault("release.text")
def cluster_without_clustering(run):
    run.rewrite(0, lambda draft: setattr(draft, "header", replace(draft.header, cluster=424242)))


@fault("release.text")
def label_edited_in_release(run):
    run.edit_samples(lambda lines: lines[0].update(label="b"))


@fault("release.text")
def text_without_a_tokenizer(run):
    (run / "tokenizer.json").unlink()


@fault("release.text")
def batch_of_another_run_under_the_same_claim(run):
    run.edit_manifest({"claim.epsilon": 100.0})
    shutil.copy(run.sibling(seed=1).steps_file(0), run.steps_file(0))


@fault("release.stopping", text=False, **MEAN)
def costly_tail_dropped(run):
    run.rewrite(0, lambda draft: draft.steps.pop())


@fault("release.stopping", text=False, **MEAN)
def said_to_end_at_an_end_token(run):
    run.edit_manifest({"stopping.sequences": []})
    run.rewrite(0, lambda draft: setattr(draft, "stop", "end-token"))


@fault("release.stopping", text=False, **MEAN)
def goes_on_past_an_end_token(run):
    run.edit_manifest({"stopping.sequences": [[run.draft(0).steps[0].token]]})


plain("test_seed_declared", manifest(sampling={"generator": "test-seed", "seed": 1}), "mechanism.randomness")

# --- claim -----------------------------------------------------------------------------------------------------------

plain("claim_one_percent_too_low", scaled_claim(0.99), "claim.epsilon")
plain("claim_a_hair_too_low", scaled_claim(1 - 1e-9), "claim.epsilon")
plain("claim_of_nothing", manifest(claim__epsilon=0.0), "claim.epsilon")
plain("mean_claim_too_low", lambda run: run.edit_manifest({"claim.epsilon": run.approximate * (1 - 1e-9)}),
      "claim.epsilon", **MEAN)  # fmt: skip
plain("mean_replace_under_an_add_remove_claim", manifest(claim__relation="replace"), "claim.epsilon", **MEAN)
plain("slices_claimed_per_record", manifest(claim__unit="record"), "claim.epsilon", "mechanism.unit",
      rule="paper-slices", unit="context", sizes=(4, 4))  # fmt: skip
plain("mean_slices_claimed_per_record", manifest(claim__unit="record"), "claim.epsilon", "mechanism.unit",
      rule="paper-slices", unit="context", **MEAN)  # fmt: skip
plain("replace_beyond_the_recorded_width", manifest(claim__relation="replace", claim__epsilon=100.0),
      "claim.epsilon", "mechanism.unit",
      rule="hashed-slots", sizes=(4, 4))  # fmt: skip
plain("ex_post_with_delta", manifest(claim__delta=1e-9), "claim.delta")
plain("no_delta", manifest(claim__delta=0.0), "claim.delta", "claim.epsilon", **MEAN)
plain("delta_of_one_record", manifest(claim__delta=1 / 1000), "claim.delta", **MEAN)
plain("delta_beyond_the_records_shown", lambda run: run.edit_manifest({"data.records": 1, "claim.delta": 0.3})
      or (run / "assignment").write_text(""), "claim.delta", **MEAN)  # fmt: skip
plain("delta_of_a_half", manifest(claim__delta=0.5), "claim.delta", **MEAN)
# A claim of the wrong kind has no figure to be held against, so claim.epsilon cannot pass beside it.
plain("median_as_approximate", manifest(claim__kind="approximate", claim__delta=1e-4, claim__epsilon=100.0),
      "claim.kind", "claim.epsilon")  # fmt: skip
plain("mean_ex_post_too_low", lambda run: run.edit_manifest(
          {"claim.kind": "ex-post", "claim.delta": 0.0, "claim.epsilon": run.exact * (1 - 1e-9)}),
      "claim.epsilon", **MEAN)  # fmt: skip
plain("mean_ex_post_of_a_huge_group", lambda run: run.edit_manifest(
          {"claim.kind": "ex-post", "claim.unit": "user", "claim.delta": 0.0, "claim.epsilon": 1e6,
           "privacy.records_per_user": 1 << 20}),
      "claim.epsilon", **MEAN)  # fmt: skip
plain("user_without_a_bound", manifest(claim__unit="user", claim__epsilon=1e6), "claim.epsilon")
plain("user_claimed_as_a_record", manifest(claim__unit="user"), "claim.epsilon", records_per_user=2, width=3)
plain("user_beyond_the_recorded_width", manifest(claim__unit="user", claim__epsilon=1e6), "claim.epsilon",
      records_per_user=4, width=2)  # fmt: skip

plain("mean_over_batches", lambda run: run.edit_manifest(
          {"claim.epsilon": math.fsum(batch.exact for batch in run.audit().batches) / 4 + 1e-4}),
      "claim.epsilon", "composition.total", sizes=(1, 4, 5, 8))  # fmt: skip
plain("costliest_batch_left_out", lambda run: run.edit_manifest(
          {"claim.epsilon": sorted(batch.exact for batch in run.audit().batches)[-2] + 1e-4}),
      "claim.epsilon", "composition.all-batches", sizes=(1, 4, 5, 8))  # fmt: skip


def become(**fields: Any) -> Callable[[Any], None]:
    """Put a run in its place that was dishonest from the start."""

    def plant(run: Any) -> None:
        other = run.sibling(**fields)
        shutil.rmtree(run.path)
        shutil.copytree(other.path, run.path)

    return plant


plain("greedy_decoding", become(greedy=True), "sampling.distribution", sizes=(8,) * 8, max_tokens=30)
plain("greedy_decoding_of_means", become(greedy=True), "sampling.distribution",
      sizes=(8,) * 8, max_tokens=30, divisor=8.0, **MEAN)  # fmt: skip
plain("contexts_that_miss_the_clip", become(below_clip=0.5), "mechanism.clip", contexts=True, dtype="float64")


@fault("mechanism.support-public", sizes=(4, 5, 4), top_k=5)
def support_of_its_own(run):
    def change(draft):
        step = draft.steps[0]
        free = next(i for i in range(run.spec.vocabulary) if i not in step.support)
        rest = [i for i in step.support.tolist() if i != step.token][1:]
        support = np.array(sorted([*rest, free, step.token]), dtype=np.int32)
        if np.searchsorted(support, step.token) != np.searchsorted(step.support, step.token):
            support = np.array(sorted([*step.support[step.support != step.token][:-1], free, step.token]))
        draft.edit(0, support=support.astype(np.int32))

    run.rewrite(2, change)


#: These say why claim.epsilon fails, which fails with them. Every other check must be shown to fail on its own.
NEVER_ALONE = {"claim.kind", "composition.total", "composition.all-batches", "mechanism.unit"}
#: These hold the accounting against actual neighbours, so only a broken accounting fails them: tests below break it.
OF_THE_ACCOUNTING = {"neighbors.removal", "neighbors.addition"}
#: These are about the digests themselves, which are therefore not forged afterwards.
DIGESTS = {"foreign_file", "altered_file", "missing_file"}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_fails_exactly_its_checks(make_run, failed, name):
    planted = FAULTS[name]
    run = make_run(**planted.kind)
    assert run.audit().verdict == "pass"
    planted.plant(run)
    if name not in DIGESTS:
        run.rehash()
    result = run.audit()
    assert failed(result) == planted.fails, [
        (check.id, check.measured, check.detail) for check in result.checks if check.status == "fail"
    ]
    assert result.verdict == ("error" if planted.fails & {"integrity.format", "integrity.complete"} else "fail")
    for check in result.checks:
        if check.id in planted.fails:
            assert check.measured
            assert check.expected
            assert check.detail


@pytest.mark.parametrize("factor", [0.5, 0.99])
def test_bounds_that_are_too_narrow_fail_the_neighbours(make_run, failed, monkeypatch, factor):
    def narrow(central, relation, group=1):
        lower, center, upper = bounds_from_central(central, relation, group)
        return center + (lower - center) * factor, center, center + (upper - center) * factor

    monkeypatch.setattr("dpaudit.accounting.ex_post.bounds_from_central", narrow)
    monkeypatch.setattr("dpaudit.checks.neighbors.bounds_from_central", narrow)
    run = make_run(sizes=(2, 3), dtype="float64")
    assert "neighbors.addition" in failed(run.audit())
    monkeypatch.setattr("dpaudit.accounting.ex_post._costs", lambda *_: (np.zeros(()),) * 3)
    assert "neighbors.removal" in failed(run.audit())


@pytest.mark.parametrize("check_id", sorted({*RUN_CHECKS, *STEP_CHECKS} - OF_THE_ACCOUNTING))
def test_every_check_can_fail_alone(check_id):
    alone = any(planted.fails == {check_id} for planted in FAULTS.values())
    assert alone or (check_id in NEVER_ALONE and any(check_id in planted.fails for planted in FAULTS.values()))


@pytest.mark.parametrize("position", [0, 1, 2])
def test_step_checks_name_the_batch_and_the_step(make_run, position):
    run = make_run(text=False, seed=2)
    run.rewrite(1, lambda draft: draft.edit(position, aggregate_digest=bytes(32)))
    run.rehash()
    (found,) = [check for check in run.audit().checks if check.status == "fail"]
    assert f"batch 1, step {position}" in found.measured


def test_unbounded_run_says_so(make_run):
    run = make_run(rule="paper-slices", unit="context", sizes=(4, 4))
    run.edit_manifest({"claim.unit": "record"})
    run.rehash()
    found = {check.id: check for check in run.audit().checks if check.status == "fail"}
    assert found.keys() == {"claim.epsilon", "mechanism.unit"}
    assert "infinite" in found["claim.epsilon"].measured
    assert all("paper-slices" in check.detail for check in found.values())
