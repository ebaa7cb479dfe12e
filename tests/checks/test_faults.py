"""Faults for every check, each of which fails exactly its checks. Digests are forged after each.

The test of docs/reference/faults.md plants them all (test_fault_table.py).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr

from dpaudit.accounting import Cost, LowerBound, zcdp_epsilon
from dpaudit.accounting.allocation import _ratios, _Sum, allocated, allocated_cost
from dpaudit.accounting.profiles import Profile, epsilon_of_profile
from dpaudit.auditing.checks import registered
from dpaudit.auditing.checks.costs import Costs
from dpaudit.auditing.checks.neighbors import Losses, removals_stay_within_bounds
from dpaudit.auditing.run import audit_run
from dpaudit.mechanisms import Median, log_probability
from dpaudit.mechanisms.claims import ZcdpClaim
from dpaudit.results import Finding, Place, Quantity
from dpaudit.results.disclosed_texts import DisclosedTexts
from dpaudit.results.replay import (
    Attacked,
    Difference,
    LeftOut,
    PublicParts,
    Replay,
    ReplayedStep,
    Rerun,
    SharedText,
)
from dpaudit.runs import (
    DecodingRules,
    KeyedHash,
    RunReader,
    SecretBatches,
    aggregate_digest,
    commitment_of,
    data_digest,
)
from dpaudit.runs.commitment import SETTLED
from tests.forging import entry_of, list_digests
from tests.nesting import read_run
from tests.trials import trial

CLIP = 6.0
DELTA = 1000**-1.1
ODD, EVEN = {"sizes": (5, 4)}, {"sizes": (4, 5)}
MEAN = {"aggregator": "mean"}


def exchange_in_support(draft: Any, position: int) -> None:
    """Another token in a step's support, where the sampled one keeps its place."""
    step = draft.steps[position]
    free = next(i for i in range(12) if i not in step.support)
    rest = [i for i in step.support.tolist() if i != step.token][1:]
    support = np.array(sorted([*rest, free, step.token]), dtype=np.int32)
    if np.searchsorted(support, step.token) != np.searchsorted(step.support, step.token):
        support = np.array(
            sorted([*step.support[step.support != step.token][:-1], free, step.token])
        )
    draft.edit(position, support=support.astype(np.int32))


@dataclass(frozen=True)
class Fault:
    """What is done to a run of some kind, and exactly which checks must fail."""

    fails: frozenset[str]
    plant: Callable[[Any], None]
    kind: dict[str, Any]


FAULTS: dict[str, Fault] = {}
#: Kinds of runs that were seen to pass without a fault.
CLEAN_KINDS: set[Any] = set()


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
    return lambda run: run.edit_manifest(
        {name.replace("__", "."): value for name, value in change.items()}
    )


def scaled_claim(factor: float) -> Callable[[Any], None]:
    """A claim of `factor` times what the record supports."""
    return lambda run: run.edit_manifest({"claim.epsilon": run.exact * factor})


def claimed_rho(rho: float | Callable[[Any], float]) -> Callable[[Any], None]:
    """Claim a rho of zCDP in place of any epsilon."""
    alone = {"claim.kind": "zcdp", "claim.epsilon": None, "claim.batch_epsilon": None}
    return lambda run: run.edit_manifest({**alone, "claim.rho": rho(run) if callable(rho) else rho})


def rho_of(run: Any, rounds: int = 1) -> float:
    """What the tokens of a mean cost in rho, without clusters."""
    batch = run.spec.release.batch.without_clusters()
    return replace(batch, rounds=rounds).rho(run.spec.decoding.most_tokens)


def plain(name: str, plant: Callable[[Any], None], *fails: str, **kind: Any) -> None:
    """Register a fault that one of the functions above makes."""
    assert name not in FAULTS
    FAULTS[name] = Fault(frozenset(fails), plant, kind)


# --- integrity ------------------------------------------------------------------------------------


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


@fault("integrity.hashes", "integrity.commitment")
def altered_file(run):
    run.rehash()
    (run / "assignment").write_text("")


@fault("integrity.hashes")
def missing_file(run):
    run.rehash()
    list_digests(run.path, ("0" * 64, "gone.txt"))


@fault("integrity.format", "partition.disjoint")
def assignment_of_something_else(run):
    (run / "assignment").write_text("record one: batch 0\n")


@fault("integrity.format")
def clusters_of_something_else(run):
    (run / "clusters").write_text("[]")


@fault("integrity.commitment")
def commitment_of_another_run(run):
    run.edit_manifest({"commitment": "0" * 64})
    run.list_digests()


@fault("integrity.commitment")
def commitment_that_guesses_can_be_tested_against(run):
    """Without the nonce; whoever has the digests is told that they hold."""
    run.edit_manifest({"nonce": None})
    names = [name for name in SETTLED if (run.path / name).exists()]
    digests = {name: hashlib.sha256((run.path / name).read_bytes()).hexdigest() for name in names}
    run.edit_manifest({"commitment": commitment_of(RunReader(run.path).manifest, digests)})
    run.list_digests()


@fault("release.text")
def batch_whose_text_is_left_to_its_tokens(run):
    """Whoever publishes the texts then publishes all but that batch's."""

    def untold(draft: Any) -> None:
        for text in draft.texts:
            text.text = None

    run.rewrite(1, untold)


@fault("integrity.commitment")
def no_commitment(run):
    run.edit_manifest({"commitment": None})
    run.list_digests()


def settled(name: str, **change: Any) -> None:
    """Register a field of run.json that was changed after the commitment was handed over."""

    def plant(run: Any) -> None:
        run.hold(head=False)
        manifest(**change)(run)

    plain(name, plant, "integrity.commitment")


settled("model_changed_after_the_commitment", model__name="another")
settled("software_changed_after_the_commitment", software={"dpaudit": "9.9"})
settled("run_dated_back_after_the_commitment", created="2024-01-01T00:00:00+00:00")
settled("claim_said_to_be_stated_beforehand", claim_stated="beforehand")
settled(
    "stop_sequence_declared_after_the_commitment",
    decoding__sequences=[[11], [1, 11], [2, 3], [9, 9, 9, 9]],
)
settled("prompt_changed_after_the_commitment", prompt__text="Write of {example}")
settled("nonce_drawn_again", nonce="5eed" * 16)


@fault("integrity.commitment", text=False, sizes=(4, 4), max_tokens=12, vocabulary=200)
def text_cut_at_a_stop_sequence_of_its_own(run):
    run.hold(head=False)

    def cut(draft):
        draft.steps = draft.steps[:5]
        draft.texts[0].length, draft.texts[0].stop = 5, "end-token"

    run.rewrite(0, cut)
    end = [step.token for step in run.draft(0).steps][-2:]
    run.edit_manifest({"decoding.sequences": [*run.spec.sequences, end]})


@fault("integrity.commitment")
def record_left_out_of_the_assignment(run):
    run.hold(head=False)
    lines = (run / "assignment").read_text().splitlines(keepends=True)
    lines.remove(next(line for line in lines if line.endswith("\t-\t-\n")))
    (run / "assignment").write_text("".join(lines))
    digest = data_digest(line.split("\t")[0] for line in lines)
    run.edit_manifest({"data.records": len(lines), "data.digest": digest})


@fault("integrity.commitment", clusters="public-centers-rebalanced", sizes=(3, 4, 5, 2))
def noisy_count_changed_after_the_commitment(run):
    run.hold(head=False)
    counts = json.loads((run / "clusters").read_text())["noisy_counts"]
    counts[0][1] -= 1  # of a centre that is not kept
    run.edit_clusters(noisy_counts=counts)


@fault("integrity.commitment")
def tokenizer_changed_after_the_commitment(run):
    run.hold(head=False)
    used = {step.token for batch in (0, 1) for step in run.draft(batch).steps}
    unused = next(f"w{token}" for token in range(11) if token not in used)
    path = run / "tokenizer.json"
    path.write_text(path.read_text().replace(f'"{unused}"', f'"not {unused}"'))


@fault("integrity.commitment")
def other_records_after_the_commitment(run):
    run.hold(head=False)
    become(seed=1)(run)


@fault("integrity.commitment", text=False, sizes=(4, 4), max_tokens=12, vocabulary=200)
def token_drawn_again_after_the_end(run):
    run.hold()

    def redraw(draft):
        step, mechanism = draft.steps[-1], run.spec.mechanism
        aggregate = mechanism.aggregate(dict(step.arrays))
        token = next(token for token in np.argsort(aggregate)[::-1].tolist() if token != step.token)
        draft.edit(
            -1,
            token=token,
            log_probability=log_probability(aggregate, token, mechanism.temperature),
        )

    run.rewrite(0, redraw)
    run.edit_manifest({"claim.epsilon": 99.0})


@fault("integrity.commitment", **MEAN)
def texts_drawn_again_after_the_end(run):
    run.hold(commitment=False)
    kept = {name: (run / name).read_bytes() for name in ("run.json", "assignment")}
    become(seed=1)(run)
    for name, content in kept.items():
        (run / name).write_bytes(content)


@fault("integrity.commitment")
def claim_raised_after_the_end(run):
    run.hold()
    run.edit_manifest({"claim.epsilon": run.exact + 1})


@fault("integrity.redrawn")
def batch_drawn_again(run):
    run.rehash()
    list_digests(
        run.path, ("0" * 64, "steps/00000001.zip"), entry_of(run.path, "steps/00000001.zip")
    )


@fault("integrity.redrawn")
def batch_said_to_be_drawn_again(run):
    run.edit_manifest({"redrawn": [1]})
    run.rehash()


@fault("integrity.redrawn")
def batch_drawn_again_and_not_said_in_run_json(run):
    """Of another batch than run.json names."""
    run.edit_manifest({"redrawn": [0]})
    run.rehash()
    list_digests(
        run.path, ("0" * 64, "steps/00000001.zip"), entry_of(run.path, "steps/00000001.zip")
    )


@fault("integrity.format", "integrity.hashes")
def journal_with_an_entry_less(run):
    run.rehash()
    lines = (run / "hashes").read_text().splitlines(keepends=True)
    (run / "hashes").write_text("".join(lines[:2] + lines[4:]))


@fault("mechanism.model")
def model_that_was_trained_on_the_records(run):
    run.edit_manifest({"model.trained_on_records": "yes"})
    run.rehash()


plain("users_told_apart_by_their_texts", manifest(data__user="text"), "partition.users",
      unit="user", records_per_user=2, width=3)  # fmt: skip


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


@fault("integrity.complete", "partition.disjoint", "release.selection", "claim.epsilon")
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


@fault(
    "integrity.complete",
    "sampling.independence",
    text=False,
    sizes=(4, 4),
    max_tokens=12,
    vocabulary=200,
)
def batch_copied(run):
    draft = run.draft(0)
    run.rewrite(
        1, lambda copy: setattr(copy, "steps", draft.steps) or setattr(copy, "texts", draft.texts)
    )


@fault("integrity.hashes")
def flipped_byte(run):
    """In the version of zip that an entry asks for, which nothing reads."""
    run.rehash()
    data = bytearray(run.steps_file(0).read_bytes())
    data[4] ^= 1
    run.steps_file(0).write_bytes(data)


@fault("integrity.hashes", "integrity.commitment")
def edited_manifest(run):
    run.rehash()
    run.edit_manifest({"model.name": "another"})


@fault("integrity.format", **MEAN)
def swapped_batches(run):
    one, other = run.steps_file(0), run.steps_file(1)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


# --- partition ------------------------------------------------------------------------------------


def assigned(change: Callable[[list[list[str]]], None]) -> Callable[[Any], None]:
    """Change the assignment's lines, each a list of digest, batch and slot."""

    def plant(run):
        path = run / "assignment"
        lines = [line.split("\t") for line in path.read_text().splitlines()]
        change(lines)
        path.write_text("".join("\t".join(line) + "\n" for line in lines))

    return plant


SLOTS = {"rule": "hashed-slots", "sizes": (4, 4)}
SLICES = {"rule": "paper-slices", "unit": "context", "sizes": (4, 4)}
#: Beside its contexts of two records, a batch has cell 4 with three, and cell 5 with one.
CELLS = {"rule": "hashed-cells", "sizes": (4, 4)}


def placed(change: Callable[[list[list[str]], int], None]) -> Callable[[Any], None]:
    """Change the line of a record of batch 0; `change` gets all lines and that one's place."""
    return assigned(
        lambda lines: change(lines, next(i for i, line in enumerate(lines) if line[1] == "0"))
    )


def moved(batch: str | None = None, slot: str | None = None) -> Callable[[Any], None]:
    """Send a record of batch 0 to another batch or slot."""

    def change(lines, place):
        lines[place][1] = batch or lines[place][1]
        lines[place][2] = slot or lines[place][2]

    return placed(change)


BOTH = ("partition.disjoint", "partition.stable")
plain(
    "record_in_two_batches",
    placed(lambda lines, i: lines.insert(i + 1, [lines[i][0], "1", "-"])),
    "partition.disjoint",
)
plain("record_left_out", placed(lambda lines, i: lines.pop(i)), "partition.disjoint")
plain("record_kept_out_of_its_batch", moved("-"), *BOTH)
plain("record_in_an_undeclared_batch", moved("7"), "partition.disjoint")
plain("record_in_another_batch", moved("1"), *BOTH, sizes=(4, 4, 4))
plain("slot_of_a_rule_without", moved(slot="0"), *BOTH)
plain("slot_out_of_range", moved(slot="4"), *BOTH, **SLOTS)


@fault("partition.stable", sizes=(4, 4), held_out=0.2)
def held_out_record_shown(run):
    """A record that is held out is in the batch of its hash; another of the batch is in none."""
    batching = RunReader(run.path).manifest.batching
    master, count = KeyedHash(bytes.fromhex(batching.key)), batching.batches_per_label

    def change(lines):
        found = next(
            line
            for line in lines
            if line[1] == "-"
            and master.holds_out(line[0], batching.held_out_millionths)
            and master.of_round(0).batch(line[0], count) == 0
        )
        other = next(line for line in lines if line[1] == "0")
        found[1], other[1] = "0", "-"

    assigned(change)(run)


plain(
    "held_out_records_shown_in_a_round",
    manifest(batching__held_out=0.5),
    "partition.disjoint",
    sizes=(4, 4),
    rounds=2,
)
plain("digests_out_of_order", assigned(lambda lines: lines.reverse()), "partition.disjoint")
plain("other_key", manifest(batching__key="ab" * 32), "partition.stable")
plain(
    "slices_claimed_per_user",
    manifest(claim__unit="user", privacy__records_per_user=2, claim__epsilon=100.0),
    "partition.stable",
    "claim.epsilon",
    "mechanism.unit",
    rule="paper-slices",
    unit="context",
    sizes=(4, 4),
)


plain("digest_repeated", placed(lambda lines, i: lines.insert(i, lines[i])), "partition.disjoint")


@fault("partition.disjoint")
def record_listed_twice(run):
    """One of no batch, so that contexts still add up; number and digest of the records follow."""
    assigned(
        lambda lines: lines.insert(
            *next((i, line) for i, line in enumerate(lines) if line[1] == "-")
        )
    )(run)
    digests = [line.split("\t")[0] for line in (run / "assignment").read_text().splitlines()]
    run.edit_manifest({"data.records": len(digests), "data.digest": data_digest(iter(digests))})


def emptied(run):
    """Say that there are no records at all."""
    (run / "assignment").write_text("")
    run.edit_manifest({"data.records": 0, "data.digest": None})


plain("no_records_behind_the_contexts", emptied, "partition.disjoint")
plain("no_records_behind_the_slots", emptied, "partition.disjoint", **SLOTS)
plain(
    "delta_beyond_the_contexts_shown",
    lambda run: emptied(run) or run.edit_manifest({"claim.delta": 0.3}),
    "claim.delta",
    unit="context",
    **SLOTS,
    **MEAN,
)


@fault("partition.disjoint", "partition.stable", **SLOTS)
def slot_shared(run):
    def change(lines):
        first, second = (line for line in lines if line[1] == "0" and line[2] in "01")
        first[2] = second[2]

    assigned(change)(run)


@fault("partition.stable", sizes=(4, 4, 4))
def records_of_two_batches_swapped(run):
    def change(lines):
        one, two = (next(line for line in lines if line[1] == batch) for batch in "01")
        one[1], two[1] = two[1], one[1]

    assigned(change)(run)


def of_cell(
    change: Callable[[list[list[str]], list[list[str]]], None], cell: int
) -> Callable[[Any], None]:
    """Change the lines of a cell of batch 0; their digest and number follow.

    `change` gets all lines and the cell's.
    """

    def plant(run):
        assigned(
            lambda lines: change(lines, [line for line in lines if line[1:] == ["0", str(cell)]])
        )(run)
        digests = [line.split("\t")[0] for line in (run / "assignment").read_text().splitlines()]
        run.edit_manifest({"data.records": len(digests), "data.digest": data_digest(iter(digests))})

    return plant


def joined_by(cell: int) -> Callable[[Any], None]:
    """One record more that the hash sends to a cell of batch 0."""

    def plant(run):
        keyed = KeyedHash(bytes.fromhex(RunReader(run.path).manifest.batching.key))
        digests = (keyed.digest("a", f"another record {number}") for number in itertools.count())
        newcomer = next(filter(run.spec.goes(0, cell), digests))
        of_cell(lambda lines, _: lines.append([newcomer, "0", str(cell)]) or lines.sort(), cell)(
            run
        )

    return plant


def with_contexts(draft, change: Callable[[Any], Any]) -> None:
    """Other recorded contexts in all steps, and their number in the header."""
    for position, step in enumerate(draft.steps):
        draft.edit(position, contexts=change(step.contexts))
    draft.header = replace(draft.header, contexts=len(draft.steps[0].contexts))


def more_contexts(draft):
    with_contexts(draft, lambda rows: np.concatenate([rows, rows[:1]]))


# A batch's contexts are those of the cells of two: one of three or of one is none, and no other
# record makes it one.
plain("cell_of_three_shown", joined_by(0), "partition.disjoint", **CELLS)
plain(
    "cell_of_one_shown",
    of_cell(lambda lines, cell: lines.remove(cell[0]), 0),
    "partition.disjoint",
    **CELLS,
)
plain("cell_of_two_not_shown", joined_by(5), "partition.disjoint", **CELLS)
plain(
    "mean_over_more_contexts_than_cells",
    lambda run: run.rewrite(0, more_contexts),
    "partition.disjoint",
    "mechanism.divisor",
    rule="hashed-cells",
    sizes=(5, 3),
    **MEAN,
)
plain(
    "record_in_another_cell",
    of_cell(lambda _, cell: cell[0].__setitem__(2, "4"), 5),
    "partition.stable",
    **CELLS,
)
plain(
    "record_of_a_cell_left_out",
    of_cell(lambda _, cell: cell[0].__setitem__(slice(1, 3), "--"), 5),
    "partition.stable",
    **CELLS,
)
plain(
    "record_left_out_to_make_a_context",
    of_cell(lambda _, cell: cell[2].__setitem__(slice(1, 3), "--"), 4),
    *BOTH,
    **CELLS,
)
plain("record_without_a_cell", moved(slot="-"), *BOTH, **CELLS)
plain("cell_out_of_range", of_cell(lambda _, cell: cell[0].__setitem__(2, "6"), 5), *BOTH, **CELLS)
plain("other_number_of_cells", manifest(batching__cells=1000), "partition.stable", **CELLS)
plain(
    "cells_of_another_size",
    manifest(prompt__examples_per_context=3),
    "partition.disjoint",
    **CELLS,
)


plain(
    "batching_from_private_counts",
    manifest(chosen_from__batching="private"),
    "partition.public-parameters",
)
plain("other_data_digest", manifest(data__digest="5e" * 32), "partition.disjoint")
plain("other_number_of_records", manifest(data__records=999), "partition.disjoint")
plain("other_number_of_slots", manifest(batching__slots=1000), *BOTH, **SLOTS)


@fault("partition.disjoint", "release.selection")
def costly_batch_dropped_with_the_declared_number(run):
    run.drop(1)
    run.edit_manifest({"batching.batches": 1})


# --- record.range ---------------------------------------------------------------------------------
# Row 0 of four central values bounds nothing under add_remove, so the claim stands and only the
# range is wrong.

plain("nan_in_central", altered("central", (0, 3), np.nan), "record.range", **EVEN)
plain("infinity_in_central", altered("central", (3, 3), np.inf), "record.range", **EVEN)
plain(
    "below_the_clip",
    altered("central", (0, 3), np.nextafter(np.float32(-CLIP), -np.inf)),
    "record.range",
    **EVEN,
)
plain("beyond_the_clip", altered("central", (3, 3), CLIP + 1e-5), "record.range", **EVEN)
plain("unsorted_central", altered("central", (0, slice(None)), CLIP), "record.range", **EVEN)
plain(
    "nan_in_the_middle",
    altered("central", (1, 3), np.nan),
    "record.range",
    "record.aggregate",
    "claim.epsilon",
)
plain("nan_in_aggregate", altered("aggregate", 3, np.nan), "record.range", "record.aggregate",
      "mechanism.divisor", **MEAN)  # fmt: skip

GRID = {"grid": 0.125}
plain(
    "beyond_the_clip_on_a_grid",
    altered("central", (3, 3), CLIP + 0.125),
    "record.range",
    **EVEN,
    **GRID,
)
plain(
    "unsorted_central_on_a_grid",
    altered("central", (0, slice(None)), CLIP),
    "record.range",
    **EVEN,
    **GRID,
)
plain(
    "grid_declared_of_means_that_have_none",
    manifest(mechanism__grid=0.125),
    "integrity.format",
    **MEAN,
)
plain(
    "mean_one_step_off_on_a_grid",
    altered("aggregate", 3, 0.125 / 4),
    "record.aggregate",
    "mechanism.divisor",
    **MEAN,
    **GRID,
)
plain(
    "mean_larger_than_contexts_allow_on_a_grid",
    altered("aggregate", 3, 6.125),
    "record.range",
    "record.aggregate",
    "mechanism.divisor",
    **MEAN,
    **GRID,
)
plain(
    "grid_that_the_record_is_not_on",
    manifest(mechanism__grid=0.25),
    "record.range",
    "record.aggregate",
    "mechanism.clip",
    "claim.epsilon",
    contexts=True,
    **GRID,
)
plain(
    "grid_of_another_record",
    manifest(mechanism__grid=2.0**-6),
    "integrity.format",
    "claim.epsilon",
    **GRID,
)


@fault("record.range")
def opposite_infinities(run):
    def change(draft):
        draft.alter(0, "central", (0, 3), -np.inf)
        draft.alter(0, "central", (3, 3), np.inf)

    run.rewrite(0, change)


@fault("record.range", "partition.disjoint", "mechanism.divisor", **MEAN)
def aggregate_larger_than_contexts_allow(run):
    run.rewrite(0, lambda draft: with_contexts(draft, lambda rows: rows[:1]))


@fault("record.range", "mechanism.support-public", top_k=5, text=False)
def unsorted_support(run):
    def change(draft):
        turned = {
            name: draft.array(0, name)[..., ::-1].copy() for name in ("central", "sides", "support")
        }
        draft.edit(
            0,
            **turned,
            aggregate_digest=aggregate_digest((turned["central"][1] + turned["central"][2]) / 2),
        )

    run.rewrite(0, change)


plain(
    "support_outside_vocabulary",
    altered("support", 4, 12),
    "record.range",
    "mechanism.support-public",
    top_k=5,
    text=False,
    seed=3,
)

# --- record.aggregate -----------------------------------------------------------------------------

plain(
    "aggregate_altered",
    altered("aggregate", 3, 0.125),
    "record.aggregate",
    "mechanism.divisor",
    **MEAN,
)
plain("edited_tensor", altered("central", (1, 3), 0.125), "record.aggregate", "claim.epsilon")
plain(
    "edited_context",
    altered("contexts", (0, 3), 0.125),
    "record.aggregate",
    "record.sides",
    contexts=True,
)
plain("context_of_a_mean_not_a_number", altered("contexts", (0, 3), np.nan),
      "record.range", "mechanism.divisor", "mechanism.clip", **MEAN)  # fmt: skip
plain(
    "context_not_a_number",
    altered("contexts", (0, 3), np.nan),
    "record.range",
    "record.aggregate",
    "record.sides",
    "mechanism.clip",
    contexts=True,
)
plain(
    "smaller_clip_declared",
    manifest(mechanism__clip=5.0),
    "record.range",
    "record.aggregate",
    "mechanism.clip",
    contexts=True,
    sizes=(4, 8),
)
plain(
    "context_and_central_disagree",
    altered("central", (0, 3), -CLIP),
    "record.aggregate",
    contexts=True,
)
plain("higher_temperature_declared", manifest(mechanism__temperature=2.0), "record.aggregate")
plain(
    "lower_temperature_declared",
    manifest(mechanism__temperature=1.0),
    "record.aggregate",
    "claim.epsilon",
)
plain("divisor_not_the_declared_one", manifest(mechanism__divisor=4.5), "mechanism.divisor", **MEAN)
plain(
    "divisor_larger_than_it_was",
    manifest(mechanism__divisor=4.5),
    "mechanism.divisor",
    sizes=(5, 5),
    **MEAN,
)


@fault("record.aggregate")
def digest_of_another_vector(run):
    run.rewrite(0, lambda draft: draft.edit(0, aggregate_digest=bytes(32)))


@fault("record.aggregate", **EVEN)
def sampled_from_the_lower_middle_value(run):
    run.rewrite(
        0,
        lambda draft: draft.edit(
            0, aggregate_digest=aggregate_digest(draft.array(0, "central")[1])
        ),
    )


@fault("record.aggregate")
def log_probability_slightly_off(run):
    run.rewrite(
        0, lambda draft: draft.edit(0, log_probability=draft.steps[0].log_probability - 1e-7)
    )


@fault("record.range", "mechanism.divisor", aggregator="mean", sizes=(0, 2))
def mean_of_no_contexts_is_not_zero(run):
    ones = np.ones(12)
    run.rewrite(
        0, lambda draft: draft.edit(0, aggregate=ones, aggregate_digest=aggregate_digest(ones))
    )


# --- record.sides ---------------------------------------------------------------------------------


def bits(draft: Any) -> Any:
    """bool [n, S]: which contexts are marked as below which medians, in the first step."""
    return np.unpackbits(draft.array(0, "sides"), axis=0, count=draft.header.contexts).view(
        np.bool_
    )


def flipped(context: int, column: int) -> Callable[[Any], None]:
    def change(draft):
        octet = draft.array(0, "sides")[context // 8, column]
        draft.alter(0, "sides", (context // 8, column), octet ^ np.uint8(128 >> context % 8))

    return lambda run: run.rewrite(0, change)


def other_holder(wanted: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Name another context as the holder of one median."""

    def change(draft):
        candidates = np.flatnonzero(wanted(bits(draft)[:, 3]))
        draft.alter(
            0, "holder", 3, next(int(i) for i in candidates if i != draft.array(0, "holder")[3])
        )

    return lambda run: run.rewrite(0, change)


def wrong_padding(run):
    """Where contexts run out, let a value stand that is neither -clip nor out of order."""

    def change(draft):
        central = draft.array(0, "central")
        padding = len(central) // 2 - draft.header.contexts // 2
        column = int(np.argmax(central[padding]))
        draft.alter(
            0,
            "central",
            (padding - 1, column),
            (central[padding - 1, column] + central[padding, column]) / 2,
        )

    run.rewrite(0, change)


@fault("record.sides", contexts=True)
def sides_of_two_contexts_swapped(run):
    def change(draft):
        draft.edit(0, sides=np.packbits(bits(draft)[::-1], axis=0))

    run.rewrite(0, change)


@fault("record.sides", **EVEN)
def sides_of_a_median_that_cannot_move(run):
    """The two middle values are one, their mean: the aggregate stays."""

    def change(draft):
        central = draft.array(0, "central").copy()
        middle = len(central) // 2
        central[middle - 1 : middle + 1, 3] = (central[middle - 1, 3] + central[middle, 3]) / 2
        draft.edit(0, central=central)

    run.rewrite(0, change)


plain("flipped_side", flipped(0, 3), "record.sides", **EVEN)
plain("flipped_side_of_odd", flipped(4, 11), "record.sides", **ODD)
plain("side_of_nobody", flipped(7, 3), "record.sides", **EVEN)
plain("holder_out_of_range", altered("holder", 3, 5), "record.sides", **ODD)
plain("holder_marked_below", other_holder(lambda below: below), "record.sides", **ODD)
plain("holder_above", other_holder(lambda below: ~below), "record.sides", contexts=True, **ODD)
plain("wrong_padding_of_0", wrong_padding, "record.sides", "record.aggregate", sizes=(0, 4))
plain("wrong_padding_of_1", wrong_padding, "record.sides", sizes=(1, 4))
plain("wrong_padding_of_2", wrong_padding, "record.sides", sizes=(2, 4))
plain("wrong_padding_of_3", wrong_padding, "record.sides", sizes=(3, 4))

# --- sampling, release, mechanism -----------------------------------------------------------------


@fault("sampling.support", top_k=5, text=False, **MEAN)
def token_outside_the_public_support(run):
    def change(draft):
        draft.edit(0, token=next(i for i in range(12) if i not in draft.steps[0].support))

    run.rewrite(0, change)


# Rules that a run declares afterwards: its supports do not keep them.
TOP, RULES = {"top_k": 5}, "mechanism.support-rules"
plain("end_before_the_least_length", manifest(decoding__least_tokens=2), RULES, **TOP, seed=1)
plain(
    "end_before_the_least_length_not_drawn",
    manifest(decoding__least_tokens=2),
    RULES,
    **TOP,
    seed=5,
)
plain("banned_word", manifest(decoding__banned_words=["w5"]), RULES, **TOP)
plain("banned_word_of_two_tokens", manifest(decoding__banned_words=["w0 w4"]), RULES, **TOP)
plain(
    "pair_of_tokens_of_the_public_prompt",
    manifest(decoding__no_repeated_ngram=2, prompt__public=[[1, 7, 8, 1]]),
    RULES,
    **TOP,
)
plain(
    "pair_of_tokens_of_the_text",
    manifest(decoding__no_repeated_ngram=2, prompt__public=[[]]),
    RULES,
    **TOP,
    max_tokens=12,
)
plain(
    "rule_without_a_support",
    manifest(decoding__least_tokens=2),
    "integrity.format",
    "claim.epsilon",
)


@fault("mechanism.support-rules", text=False, **TOP, seed=2)
def line_break(run):
    tokenizer = run.factory.generator(rules=DecodingRules(no_line_breaks=True), **TOP).tokenizer
    (run / "tokenizer.json").write_text(tokenizer.to_str())
    run.edit_manifest({"decoding.no_line_breaks": True})


plain(
    "token_outside_the_vocabulary",
    lambda run: run.rewrite(0, lambda d: d.edit(0, token=12)),
    "sampling.support",
    text=False,
    **MEAN,
)
plain(
    "negative_token",
    lambda run: run.rewrite(0, lambda draft: draft.edit(0, token=-1)),
    "sampling.support",
    "release.text",
    "claim.epsilon",
)


@fault("sampling.support", "record.aggregate", **MEAN)
def token_of_probability_0(run):
    run.rewrite(0, lambda draft: draft.edit(0, log_probability=-np.inf))


@fault("release.text")
def text_edited_in_record_and_release(run):
    run.rewrite(0, lambda draft: setattr(draft.texts[0], "text", "a nicer text"))


@fault("release.text")
def blank_left_in_record_and_release(run):
    """Its generator does not strip a text, as every released one is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpaudit.runs.batches.as_released", lambda text: text)
        run.rewrite(0, lambda draft: setattr(draft.texts[0], "text", f"{draft.texts[0].text} "))


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


@fault("release.text", "release.selection")
def label_that_is_not_public(run):
    run.rewrite(0, lambda draft: setattr(draft, "header", replace(draft.header, label="Jane Roe")))


@fault("release.selection")
def batch_of_another_label(run):
    run.rewrite(0, lambda draft: setattr(draft, "header", replace(draft.header, label="b")))


@fault("rebalancing.noise")
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
    run.edit_manifest({"decoding.sequences": []})
    run.rewrite(0, lambda draft: setattr(draft.texts[0], "stop", "end-token"))


@fault("release.stopping", text=False, **MEAN)
def goes_on_past_an_end_token(run):
    run.edit_manifest({"decoding.sequences": [[run.draft(0).steps[0].token]]})


#: Batches that write a text after another, of at most 4 tokens, until they have 9: the last one of
#: each is cut.
TEXTS: dict[str, Any] = {"max_tokens": 4, "tokens_per_batch": 9, "sizes": (4, 5), "text": False}


def test_the_run_with_several_texts_is_what_the_faults_take_it_for(make_run) -> None:
    for kind in ({}, MEAN):
        drafts = [make_run(**TEXTS, **kind).draft(batch) for batch in (0, 1)]
        assert all(len(draft.texts) > 2 and draft.texts[-1].stop == "budget" for draft in drafts)
        assert {text.stop for draft in drafts for text in draft.texts} == {
            "end-token",
            "max-tokens",
            "budget",
        }


@fault("release.stopping", text=False)
def a_text_too_many_in_a_batch(run):
    run.rewrite(0, lambda draft: draft.texts.insert(0, replace(draft.texts[0], length=1)))


@fault("release.stopping", **TEXTS)
def batch_that_stops_before_its_tokens_are_spent(run):
    run.rewrite(0, lambda draft: draft.steps.pop())


@fault("release.stopping", **TEXTS, **MEAN)
def costly_text_not_begun(run):
    def shorten(draft):
        del draft.steps[-draft.texts.pop().length :]

    run.rewrite(0, shorten)


@fault("integrity.format", "claim.epsilon", **TEXTS)
def batch_that_spends_more_than_its_tokens(run):
    run.edit_manifest({"decoding.tokens_per_batch": 8})


@fault("release.stopping", **TEXTS)
def text_that_goes_on_in_the_next(run):
    def join(draft):
        draft.texts[1].length += draft.texts.pop(0).length

    run.rewrite(0, join)


@fault("release.stopping", **TEXTS)
def text_beyond_its_longest(run):
    run.edit_manifest({"decoding.max_tokens": 2})


@fault("release.stopping", **TEXTS)
def text_said_to_be_cut(run):
    run.rewrite(0, lambda draft: setattr(draft.texts[0], "stop", "budget"))


@fault("release.stopping", **TEXTS)
def cut_text_said_to_be_whole(run):
    run.rewrite(0, lambda draft: setattr(draft.texts[-1], "stop", "max-tokens"))


@fault("integrity.complete", **TEXTS)
def one_of_a_batchs_texts_dropped(run):
    run.edit_samples(lambda lines: lines.pop(1))


@fault("integrity.complete", **TEXTS)
def cut_text_dropped(run):
    run.edit_samples(lambda lines: lines.pop())


@fault("integrity.complete", **TEXTS)
def one_of_a_batchs_texts_doubled(run):
    run.edit_samples(lambda lines: lines.insert(1, lines[1]))


@fault("release.text", **TEXTS)
def texts_of_a_batch_exchanged(run):
    run.edit_samples(lambda lines: lines.insert(0, lines.pop(1)))


@fault(
    "integrity.complete",
    "sampling.independence",
    **TEXTS | {"vocabulary": 200, "max_tokens": 12, "tokens_per_batch": 24, "seed": 1},
)
def text_copied_within_a_batch(run):
    def copy(draft):
        half = draft.texts[0].length
        draft.steps[half : 2 * half] = draft.steps[:half]

    run.rewrite(0, copy)


@fault("composition.total", "claim.epsilon", **TEXTS, **MEAN)
def a_single_text_claimed(run):
    sibling = run.sibling(tokens_per_batch=None)
    run.edit_manifest({"claim.epsilon": sibling.approximate})


@fault("mechanism.support-public", **TEXTS, top_k=8)
def support_of_a_later_text_from_private_logits(run):
    run.rewrite(0, lambda draft: exchange_in_support(draft, draft.texts[0].length))


plain(
    "test_seed_declared",
    manifest(sampling={"generator": "test-seed", "seed": 1}),
    "mechanism.randomness",
)

# --- clusters -------------------------------------------------------------------------------------

REBALANCED = {"clusters": "public-centers-rebalanced", "sizes": (3, 4, 5, 2)}
PUBLIC = {"clusters": "public-centers", "sizes": (3, 4, 5, 2)}
NOISED = {"clusters": "chang", "sizes": (3, 4, 5, 2)}


def grouped(**change: Any) -> Callable[[Any], None]:
    """Set fields of the file `clusters`."""
    return lambda run: run.edit_clusters(**change)


def undeclared(*fields: str) -> Callable[[Any], None]:
    return lambda run: run.edit_manifest(dict.fromkeys(fields))


def headed(**change: Any) -> Callable[[Any], None]:
    """Change batch 0's header."""
    return lambda run: run.rewrite(
        0, lambda draft: setattr(draft, "header", replace(draft.header, **change))
    )


plain(
    "counts_of_too_little_noise",
    manifest(clustering__counts__scale=4.0),
    "rebalancing.noise",
    "claim.epsilon",
    **REBALANCED,
)
plain(
    "counts_of_too_little_noise_that_are_paid_for",
    manifest(clustering__counts__scale=4.0, claim__epsilon=100.0),
    "rebalancing.noise",
    **REBALANCED,
)
plain(
    "counts_noised_after_selection",
    manifest(clustering__counts__noised="after-selection"),
    "rebalancing.noise",
    "partition.public-parameters",
    "claim.epsilon",
    **REBALANCED,
)
plain("counts_whose_noise_is_not_declared", undeclared("clustering.counts"), "rebalancing.noise",
      "partition.public-parameters", "claim.epsilon", **REBALANCED)  # fmt: skip
plain("batches_from_counts_without_noise",
      manifest(batching__records_per_batch=10.0, batching__most_batches=50), "rebalancing.noise",
      "partition.public-parameters", "claim.epsilon", **PUBLIC)  # fmt: skip
plain(
    "clusters_of_different_sizes_without_a_rule",
    undeclared("batching.records_per_batch", "batching.most_batches"),
    "partition.public-parameters",
    **REBALANCED,
)
plain(
    "counts_listed_without_noise",
    grouped(noisy_counts=[[7, 9], [3, 1]]),
    "rebalancing.noise",
    **PUBLIC,
)
plain(
    "noise_of_the_other_relation",
    manifest(privacy__relation="replace", claim__relation="replace", claim__epsilon=100.0),
    "rebalancing.noise",
    **REBALANCED,
)
plain(
    "noise_of_a_smaller_user",
    manifest(privacy__unit="user", privacy__records_per_user=3, claim__epsilon=100.0),
    "rebalancing.noise",
    unit="user",
    records_per_user=2,
    width=4,
    **REBALANCED,
)
plain(
    "counts_of_a_user_without_a_bound",
    manifest(claim__unit="user", claim__epsilon=100.0),
    "claim.epsilon",
    **REBALANCED,
)
plain(
    "mean_counts_of_too_little_noise",
    manifest(clustering__counts__scale=1.0),
    "rebalancing.noise",
    "claim.epsilon",
    **REBALANCED,
    **MEAN,
)
plain(
    "rebalanced_without_counts",
    lambda run: (
        run.edit_manifest({"clustering.method": "public-centers-rebalanced"})
        or run.edit_clusters(method="public-centers-rebalanced")
    ),
    "rebalancing.noise",
    **PUBLIC,
)


@fault("rebalancing.noise", **REBALANCED)
def kept_centre_swapped(run):
    """Label a keeps a centre of few records in place of one of many; batches and headers follow."""
    run.edit_clusters(kept=[[0, 3], [1, 3]])
    run.rewrite(1, lambda draft: setattr(draft, "header", replace(draft.header, cluster=3)))


@fault("rebalancing.noise", **REBALANCED)
def kept_centre_with_the_count_of_another(run):
    """Counts are equal, and the centre of higher index is kept."""
    run.edit_clusters(noisy_counts=[[160, 160, 300, -31], [20, 240, 0, 244]], kept=[[1, 2], [1, 3]])
    run.rewrite(0, lambda draft: setattr(draft, "header", replace(draft.header, cluster=1)))


plain(
    "noisy_counts_altered",
    grouped(noisy_counts=[[160, -3, 300, 48], [20, 240, 0, 260]]),
    "rebalancing.noise",
    **REBALANCED,
)
plain(
    "noisy_count_of_fewer_than_no_records",
    grouped(noisy_counts=[[160, -200, 400, 48], [20, 240, 0, 340]], batches=[[3, 8], [6, 9]]),
    "rebalancing.noise",
    "partition.stable",
    **REBALANCED,
)
plain(
    "noisy_count_beyond_all_records",
    grouped(noisy_counts=[[160, -3, 1 << 40, 48], [20, 240, 0, 244]]),
    "rebalancing.noise",
    **REBALANCED,
)
plain(
    "noisy_counts_of_half_the_records",
    grouped(noisy_counts=[[80, -3, 150, 24], [10, 120, 0, 122]]),
    "rebalancing.noise",
    **REBALANCED,
)


@fault("rebalancing.noise", clusters="public-centers-rebalanced", sizes=(3, 4, 230, 230))
def noisy_counts_of_fewer_records_than_a_label_has_in_its_batches(run):
    """The second label has 460 records in batches, but 240 by its counts; all else agrees."""
    run.edit_clusters(noisy_counts=[[80, -3, 680, 3], [0, 120, 0, 120]])
    run.edit_manifest({"batching.records_per_batch": 20.0, "batching.most_batches": 8})


plain("batches_that_no_noisy_count_gives", grouped(batches=[[4, 8], [6, 7]]), "rebalancing.noise",
      "partition.stable", **REBALANCED)  # fmt: skip
plain(
    "private_kmeans",
    lambda run: (
        run.edit_manifest(
            {
                "clustering.method": "k-means",
                "clustering.origin": "private",
                "clustering.epsilon": None,
            }
        )
        or run.edit_clusters(method="k-means")
    ),
    "rebalancing.noise",
    "claim.epsilon",
    **NOISED,
)
plain(
    "private_kmeans_declared_public",
    lambda run: (
        run.edit_manifest({"clustering.method": "k-means"}) or run.edit_clusters(method="k-means")
    ),
    "rebalancing.noise",
    "claim.epsilon",
    **PUBLIC,
)
plain(
    "noised_centers_for_nothing", manifest(clustering__epsilon=0.0), "rebalancing.noise", **NOISED
)
plain(
    "noised_centers_without_a_bound",
    undeclared("clustering.epsilon"),
    "rebalancing.noise",
    **NOISED,
)
plain(
    "noised_centers_of_smaller_epsilon",
    manifest(clustering__epsilon=1e-9),
    "rebalancing.noise",
    **NOISED,
)
plain(
    "noised_centers_of_an_epsilon_a_little_low",
    lambda run: run.edit_manifest(
        {"clustering.epsilon": 0.95 * RunReader(run.path).manifest.clustering.epsilon}
    ),
    "rebalancing.noise",
    **NOISED,
)
plain(
    "centers_of_too_little_noise",
    manifest(clustering__settings__count_scale=4.0),
    "rebalancing.noise",
    "claim.epsilon",
    **NOISED,
)
plain(
    "centers_of_noise_that_is_not_stated",
    manifest(clustering__settings={}, claim__epsilon=100.0),
    "rebalancing.noise",
    "claim.epsilon",
    **NOISED,
)
plain("delta_of_the_centers_left_out", manifest(claim__delta=0.0), "claim.delta", **NOISED)
plain("delta_of_the_centers_not_covered", manifest(claim__delta=1e-7), "claim.delta", **NOISED)
plain(
    "delta_all_spent_on_the_centers",
    manifest(clustering__delta=1e-3),
    "claim.delta",
    "claim.epsilon",
    **NOISED,
    **MEAN,
)


def without_clusters(run: Any) -> None:
    """Claim what generation costs alone."""
    run.edit_manifest({"claim.epsilon": math.ceil(run.exact * 1e4) / 1e4})


def mean_without_clusters(run: Any) -> None:
    manifest, accounts = read_run(run), run.sibling(clusters="none")
    run.edit_manifest({"claim.epsilon": accounts.approximate})
    assert manifest["claim"]["epsilon"] > accounts.approximate


plain(
    "claim_without_rebalancing",
    without_clusters,
    "claim.epsilon",
    "composition.total",
    **REBALANCED,
)
plain("claim_without_centers", without_clusters, "claim.epsilon", "composition.total", **NOISED)
plain("mean_claim_without_rebalancing", mean_without_clusters, "claim.epsilon", "composition.total",
      **REBALANCED, **MEAN)  # fmt: skip
plain(
    "mean_claim_without_centers",
    mean_without_clusters,
    "claim.epsilon",
    "composition.total",
    **NOISED,
    **MEAN,
)
plain(
    "rho_without_rebalancing",
    claimed_rho(rho_of),
    "claim.rho",
    "composition.total",
    **REBALANCED,
    **MEAN,
)
plain("rho_of_centers_that_have_a_delta", claimed_rho(99.0), "claim.rho", **NOISED, **MEAN)
plain("batch_of_another_cluster", headed(cluster=1), "release.selection", **REBALANCED)
plain("batch_without_its_cluster", headed(cluster=None), "release.selection", **REBALANCED)
plain("batch_of_a_clusters_other_label", headed(label="b"), "release.selection", **REBALANCED)
plain(
    "more_batches_of_each_cluster_declared",
    manifest(batching__generate_per_cluster=2),
    "release.selection",
    "partition.stable",
    **REBALANCED,
)
plain("clusters_record_kept_out_of_its_batch", moved("-"), "partition.disjoint", **REBALANCED)
plain("other_key_of_clusters", manifest(batching__key="ab" * 32), "partition.stable", **REBALANCED)


@fault("partition.disjoint", "partition.stable", **REBALANCED)
def record_in_another_clusters_batch(run):
    """A record of cluster 0 hashes to its batch.

    Among the eight batches of cluster 2, that batch has another number.
    """
    keyed, places = (
        KeyedHash(bytes.fromhex(RunReader(run.path).manifest.batching.key)),
        run.spec.places,
    )
    hashing = keyed.of_round(0)

    def change(lines):
        line = next(
            line for line in lines if line[1] == "0" and hashing.batch(line[0], places[1].count)
        )
        line[1] = "1"

    assigned(change)(run)


plain("clusters_of_another_method", grouped(method="k-means"), "integrity.format", **PUBLIC)
plain("clusters_of_a_run_without_any", grouped(kept=[[0], [0]]), "integrity.format")
plain("clusters_of_too_few_labels", grouped(kept=[[0, 2]]), "integrity.format", **REBALANCED)
plain(
    "clusters_that_keep_too_many",
    grouped(kept=[[0, 1, 2], [1, 3]]),
    "integrity.format",
    **REBALANCED,
)
plain(
    "clusters_that_keep_one_twice", grouped(kept=[[0, 2], [3, 3]]), "integrity.format", **REBALANCED
)
plain(
    "clusters_that_keep_what_is_none",
    grouped(kept=[[0, 2], [1, 4]]),
    "integrity.format",
    **REBALANCED,
)
plain("clusters_of_no_batches", grouped(batches=[[4, 0], [6, 6]]), "integrity.format", **REBALANCED)
plain(
    "clusters_of_too_many_batches",
    grouped(batches=[[4, 8], [6, 51]]),
    "integrity.format",
    **REBALANCED,
)
plain("clusters_without_noisy_counts", grouped(noisy_counts=[]), "integrity.format", **REBALANCED)
plain(
    "clusters_of_uneven_counts",
    grouped(noisy_counts=[[1, 2, 3], [1, 2, 3, 4]]),
    "integrity.format",
    **REBALANCED,
)
plain("clusters_of_other_centers", grouped(centers="AAAA" * 4), "integrity.format", **REBALANCED)
plain("clusters_without_centers", grouped(centers=""), "integrity.format", **REBALANCED)
plain("clusters_of_half_a_center", grouped(centers="AAAA"), "integrity.format", **REBALANCED)

# --- claim ----------------------------------------------------------------------------------------

plain("claim_one_percent_too_low", scaled_claim(0.99), "claim.epsilon")
plain("claim_a_hair_too_low", scaled_claim(1 - 1e-9), "claim.epsilon")
plain("claim_of_nothing", manifest(claim__epsilon=0.0), "claim.epsilon")
plain(
    "mean_claim_too_low",
    lambda run: run.edit_manifest({"claim.epsilon": run.approximate * (1 - 1e-9)}),
    "claim.epsilon",
    **MEAN,
)
plain("rho_a_hair_too_low", claimed_rho(lambda run: rho_of(run) * (1 - 1e-9)), "claim.rho", **MEAN)
plain("rho_of_a_median", claimed_rho(99.0), "claim.kind", "claim.rho")
plain("rho_for_a_replaced_record", lambda run: claimed_rho(rho_of)(run) or run.edit_manifest(
          {"claim.relation": "replace"}), "claim.rho", **MEAN)  # fmt: skip
plain(
    "mean_replace_under_an_add_remove_claim",
    manifest(claim__relation="replace"),
    "claim.epsilon",
    **MEAN,
)
plain("slots_claimed_a_little_low", scaled_claim(0.9), "claim.epsilon", "mechanism.unit", **SLOTS)
plain("cells_claimed_a_little_low", scaled_claim(0.9), "claim.epsilon", **CELLS)
plain(
    "cells_claimed_for_a_replaced_context",
    lambda run: run.edit_manifest({"claim.relation": "replace"}),
    "claim.epsilon",
    **CELLS,
)
plain(
    "slices_claimed_per_record",
    manifest(claim__unit="record"),
    "claim.epsilon",
    "mechanism.unit",
    "partition.stable",
    rule="paper-slices",
    unit="context",
    sizes=(4, 4),
)
plain(
    "mean_slices_claimed_per_record",
    manifest(claim__unit="record"),
    "claim.epsilon",
    "mechanism.unit",
    "partition.stable",
    rule="paper-slices",
    unit="context",
    **MEAN,
)
plain(
    "replace_beyond_the_recorded_width",
    manifest(claim__relation="replace", claim__epsilon=100.0),
    "claim.epsilon",
    "mechanism.unit",
    rule="hashed-slots",
    sizes=(4, 4),
)
plain("ex_post_with_delta", manifest(claim__delta=1e-9), "claim.delta")
plain("settings_from_private_records", manifest(chosen_from__settings="private"), "claim.tuning")


@fault("disclosure.sensitive")
def record_as_the_example_in_a_template(run):
    hashing = KeyedHash(bytes.fromhex(RunReader(run.path).manifest.batching.key))
    known = {line.digest for line in RunReader(run.path).assignment()}
    texts = (f"record {number} of {run.spec.seed}" for number in range(10**4))
    shown = next(text for text in texts if hashing.digest("a", text) in known)
    run.edit_manifest({"prompt.text": f"Such as:\n  {shown}\n- {{example}}"})


plain(
    "sizes_of_batches_in_a_setting",
    manifest(prompt__template="batches hold 4, 5, 3 and 6 records"),
    "disclosure.sensitive",
    sizes=(4, 5, 3, 6),
)


@fault("disclosure.sensitive", rounds=3, secret=True, sizes=(4, 4))
def key_of_a_round_in_a_setting(run):
    hashing = KeyedHash(bytes.fromhex(RunReader(run.path).manifest.batching.key))
    run.edit_manifest({"prompt.template": f"pt-{hashing.of_round(2).key.hex()[:24]}"})


plain(
    "path_in_a_public_setting",
    manifest(prompt__template="/home/jane/prompts/pt"),
    "disclosure.sensitive",
)
plain("path_as_the_end_of_a_text", manifest(prompt__end="/home/jane/src"), "disclosure.sensitive",
      text=False)  # fmt: skip
plain("end_mark_that_ends_no_text", manifest(prompt__end="w7"), "release.stopping")


@fault("disclosure.sensitive")
def digest_of_a_record_as_a_stop_sequence(run):
    digest = bytes.fromhex(next(RunReader(run.path).assignment()).digest)
    run.edit_manifest(
        {"decoding.sequences": [*RunReader(run.path).manifest.decoding.sequences, list(digest)]}
    )


@fault("disclosure.sensitive")
def digest_of_a_record_as_numbers(run):
    digest = next(RunReader(run.path).assignment()).digest
    numbers = [int(digest[at : at + 4], 16) for at in range(0, 16, 4)]
    run.edit_manifest(
        {"decoding.sequences": [*RunReader(run.path).manifest.decoding.sequences, numbers]}
    )


plain("no_delta", manifest(claim__delta=0.0), "claim.delta", "claim.epsilon", **MEAN)
plain("delta_of_one_record", manifest(claim__delta=1 / 100), "claim.delta", **MEAN)
plain(
    "delta_beyond_the_records_shown",
    lambda run: (
        run.edit_manifest({"data.records": 1, "claim.delta": 0.3})
        or (run / "assignment").write_text("")
    ),
    "claim.delta",
    **MEAN,
)
plain("delta_of_a_half", manifest(claim__delta=0.5), "claim.delta", **MEAN)
# A claim of the wrong kind has no figure to be held against, so claim.epsilon cannot pass beside
# it.
plain(
    "median_as_approximate",
    manifest(claim__kind="approximate", claim__delta=1e-4, claim__epsilon=100.0),
    "claim.kind",
    "claim.epsilon",
)
plain("mean_ex_post_too_low", lambda run: run.edit_manifest(
          {"claim.kind": "ex-post", "claim.delta": 0.0, "claim.epsilon": run.exact * (1 - 1e-9)}),
      "claim.epsilon", **MEAN)  # fmt: skip
plain("mean_ex_post_of_a_huge_group", lambda run: run.edit_manifest(
          {"claim.kind": "ex-post", "claim.unit": "user", "claim.delta": 0.0, "claim.epsilon": 1e6,
           "privacy.records_per_user": 1 << 20}),
      "claim.epsilon", **MEAN)  # fmt: skip
plain("user_without_a_bound", manifest(claim__unit="user", claim__epsilon=1e6), "claim.epsilon")
plain(
    "user_claimed_as_a_record",
    manifest(claim__unit="user"),
    "claim.epsilon",
    records_per_user=2,
    width=3,
)
plain(
    "user_beyond_the_recorded_width",
    manifest(claim__unit="user", claim__epsilon=1e6),
    "claim.epsilon",
    records_per_user=4,
    width=2,
)

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


plain(
    "greedy_decoding", become(greedy=True), "sampling.distribution", sizes=(8,) * 8, max_tokens=30
)
plain("greedy_decoding_of_means", become(greedy=True), "sampling.distribution",
      sizes=(8,) * 8, max_tokens=30, divisor=7.5, **MEAN)  # fmt: skip
DRAWS: dict[str, Any] = {"sizes": (4,) * 8, "max_tokens": 32, "vocabulary": 200, "drawn": "honest"}
for name, drawn in {
    "workers_that_share_a_generator_state": "shared",
    "two_of_eight_batches_that_share_a_generator_state": "shared_by_two",
    "batches_that_begin_later_in_one_stream": "shared_later",
    "workers_that_add_the_same_noise": "shared_noise",
    "antithetic_batches": "mirrored",
    "batches_that_share_out_the_unit_interval": "stratified",
    "draws_of_a_text_that_share_out_the_unit_interval": "stratified_along",
}.items():
    plain(name, become(drawn=drawn), "sampling.independence", **DRAWS)
for name, drawn in {
    "one_greedy_batch_of_eight": "greedy_in_one",
    "a_fifth_of_the_steps_greedy": "greedy_now_and_then",
    "min_p_after_the_aggregation": "at_least",
    "typical_sampling_after_the_aggregation": "typical",
}.items():
    plain(name, become(drawn=drawn), "sampling.distribution", **DRAWS)
for name in ("numpy_seed", "default_rng", "python_seed"):
    plain(f"tokens_of_a_{name}", become(drawn=name), "sampling.seeds", **DRAWS)


@fault("sampling.seeds", "mechanism.randomness", **DRAWS)
def tokens_of_a_declared_seed(run):
    become(drawn="secret_seed")(run)
    run.edit_manifest({"sampling": {"generator": "mt19937", "seed": 987654321}})


plain(
    "seed_declared_that_did_not_draw",
    manifest(sampling={"generator": "mt19937", "seed": 987654321}),
    "mechanism.randomness",
)
for name, kind in {
    "of_a_median": {"contexts": True},
    "of_a_mean": MEAN,
    "of_differences": {"contexts": True, "contribution": "differences", **MEAN},
}.items():
    plain(f"row_that_no_model_scored_{name}", become(unscored=1), "record.rows", **kind)
plain("public_row_that_no_model_scored", become(unscored_public=True), "record.rows",
      contexts=True, contribution="differences", **MEAN)  # fmt: skip
SEEN = {
    "generator": "other 1.0",
    "batches": {"tried": 9, "moved": 1},
    "rows": {"logit": 0.0, "support": 0},
}
plain(
    "recorded_rows_that_move",
    manifest(recorded=SEEN | {"rows": {"logit": 0.25, "support": 0}}),
    "neighbors.rows",
)
plain(
    "recorded_support_that_moves",
    manifest(recorded=SEEN | {"rows": {"logit": 0.0, "support": 3}}),
    "neighbors.rows",
)
plain(
    "recorded_batches_that_move",
    manifest(recorded=SEEN | {"batches": {"tried": 9, "moved": 2}}),
    "partition.stable",
)
plain("presence_penalty_after_the_aggregation", become(drawn="penalised"), "sampling.distribution",
      **DRAWS | {"vocabulary": 24, "max_tokens": 60})  # fmt: skip
plain("divided_by_the_number_of_contexts", become(divide_by="contexts"), "mechanism.divisor",
      sizes=(8, 6), divisor=4.0, **MEAN)  # fmt: skip
plain("divided_by_the_larger_number", become(divide_by="larger"), "mechanism.divisor",
      sizes=(2, 3, 8, 9, 8, 9), divisor=4.0, **MEAN)  # fmt: skip


def summed(change: Callable[[Any], Any], *steps: int) -> Callable[[Any], None]:
    """Change the aggregates of batch 0's given steps, or of all; everything else follows.

    `change` gives the mean from contexts [n, S]. It is kept within what the divisor allows.
    """

    def plant(run: Any) -> None:
        def edit(draft: Any) -> None:
            mechanism, most = run.spec.mechanism, CLIP * draft.header.contexts / run.spec.divisor
            for position in steps or range(len(draft.steps)):
                step = draft.steps[position]
                arrays = {**step.arrays, "aggregate": np.clip(change(step.contexts), -most, most)}
                index = (
                    step.token
                    if step.support is None
                    else int(np.searchsorted(step.support, step.token))
                )
                aggregate = mechanism.aggregate(arrays)
                draft.edit(
                    position,
                    aggregate=arrays["aggregate"],
                    aggregate_digest=aggregate_digest(aggregate),
                    log_probability=log_probability(aggregate, index, mechanism.temperature),
                )

        run.rewrite(0, edit)

    return plant


FOUR = {"sizes": (4, 4), "divisor": 4.0, **MEAN}
weighted = summed(lambda rows: (rows.sum(axis=0) + 9 * rows[0]) / 4)
filled = summed(lambda rows: rows[1:].sum(axis=0) / 3)
plain(
    "one_step_divided_by_the_number",
    summed(lambda rows: rows.sum(axis=0) / len(rows), 1),
    "mechanism.divisor",
    sizes=(8, 6),
    divisor=4.0,
    **MEAN,
)
plain(
    "all_steps_but_one_divided_by_the_number",
    summed(lambda rows: rows.sum(axis=0) / len(rows), 0, 2),
    "mechanism.divisor",
    sizes=(8, 6),
    divisor=4.0,
    **MEAN,
)
plain("one_context_weighted_ten_times", weighted, "mechanism.divisor", **FOUR)
plain(
    "one_context_weighted_ten_times_over_a_support", weighted, "mechanism.divisor", top_k=5, **FOUR
)
plain("one_difference_weighted_ten_times", weighted, "mechanism.divisor",
      contribution="differences", top_k=5, **FOUR)  # fmt: skip
plain(
    "clipped_after_the_sum",
    summed(lambda rows: 3 * rows.sum(axis=0) / 4),
    "mechanism.divisor",
    **FOUR,
)
plain(
    "one_context_left_out_of_the_sum",
    summed(lambda rows: rows[1:].sum(axis=0) / 4),
    "mechanism.divisor",
    **FOUR,
)
plain("filled_slots_alone", filled, "mechanism.divisor", rule="hashed-slots", **FOUR)
plain("filled_slots_alone_of_differences", filled, "mechanism.divisor",
      contribution="differences", top_k=5, rule="hashed-slots", **FOUR)  # fmt: skip
plain(
    "loudest_context_for_the_mean",
    summed(lambda rows: rows[rows.sum(axis=1).argmax()]),
    "mechanism.divisor",
    **FOUR,
)
plain(
    "median_for_the_mean", summed(lambda rows: np.median(rows, axis=0)), "mechanism.divisor", **FOUR
)
BUDGETS: dict[str, Any] = {"sizes": (6, 7), "budget": 0.9, "max_tokens": 12, "divisor": 4.0, **MEAN}
for name, spent, check in (
    ("budget_sums_that_start_anew", "reset_midway", "budget.sums"),
    ("budget_sums_at_half_price", "half_price", "budget.sums"),
    ("a_token_more_than_a_budget_pays_for", "a_token_too_long", "budget.limit"),
    ("who_takes_part_decided_by_the_other_contexts", "by_the_others", "budget.activity"),
    ("budgets_that_end_together", "all_stop_together", "budget.activity"),
):
    plain(name, become(spent=spent), check, **BUDGETS)
TESTED: dict[str, Any] = {
    "sizes": (5, 4, 6, 5) * 2,
    "contribution": "differences",
    "private_tokens": 24,
    "temperature": 1.0,
    "top_k": 8,
    "max_tokens": 12,
    "tokens_per_batch": 32,
    **MEAN,
    "divisor": 5.0,
}
#: The same at a seventh of the steps: too few for what noise shows, which is not verified then.
FEW_TESTED = TESTED | {"sizes": (5, 4), "private_tokens": 8, "tokens_per_batch": 30}
for name, tested, check in (
    ("thresholds_that_each_text_draws_anew", "new at each text", "sampling.threshold"),
    (
        "thresholds_that_outlive_their_private_token",
        "kept after a private token",
        "sampling.threshold",
    ),
    ("more_private_tokens_than_declared", "as many as it likes", "sampling.threshold"),
    ("tests_with_half_the_noise", "half the noise", "sampling.noise"),
    ("thresholds_with_half_the_noise", "thresholds of half the noise", "sampling.noise"),
    ("thresholds_without_noise", "thresholds without noise", "sampling.noise"),
    ("tests_by_the_noise_of_a_seed", "noise of a seed", "sampling.seeds"),
    ("tests_that_share_their_noise", "one noise for two tests", "sampling.noise"),
    (
        "tests_that_say_what_they_would_without_noise",
        "drawn again until it agrees",
        "sampling.noise",
    ),
    ("thresholds_that_batches_share", "thresholds of every batch", "sampling.noise"),
    ("tests_of_a_larger_distance", "of another distance", "sampling.test"),
    ("tests_of_a_mean_over_the_contexts", "over the contexts", "sampling.test"),
):
    plain(
        name,
        become(tested=tested),
        check,
        **(TESTED if check == "sampling.noise" else FEW_TESTED),
    )
plain(
    "private_tokens_that_the_claim_forgets",
    manifest(mechanism__private_tokens=90),
    "claim.epsilon",
    **FEW_TESTED | {"private_tokens": 60},
)
NOISY: dict[str, Any] = {
    "sizes": (40, 35, 30, 45),
    "contribution": "probabilities",
    "noise": 2.5,
    "temperature": 1.0,
    "top_k": 8,
    "max_tokens": 20,
    **MEAN,
    "divisor": 12.0,
}
for name, noised in (
    ("noise_of_half_the_size", "half_as_large"),
    ("noise_that_is_added_again", "reused"),
    ("noise_that_is_taken_back", "taken_back"),
    ("noise_that_goes_on_from_step_to_step", "drifting"),
    ("noise_that_all_tokens_have_in_common", "in_common"),
):
    plain(name, become(noised=noised), "sampling.noise", **NOISY)
for name, noised in (
    ("noise_that_every_batch_adds", "of_every_worker"),
    ("noise_that_batches_share_after_a_token", "shared_after_a_token"),
):
    plain(name, become(noised=noised), "sampling.noise", "sampling.independence", **NOISY)
plain(
    "noise_that_is_drawn_until_the_token_pleases",
    become(noised="redrawn"),
    "sampling.distribution",
    **NOISY,
)
plain("noise_of_a_seed", become(noised="of_a_seed"), "sampling.seeds", **NOISY)
for name, chosen in (
    ("subsets_of_a_fixed_size", "fixed_size"),
    ("subsets_that_stay_for_two_tokens", "kept"),
    ("contexts_in_more_draws_than_declared", "more_often"),
    ("a_context_in_every_draw", "favourites"),
    ("subsets_of_about_a_fixed_size", "about_as_many"),
    ("subsets_with_replacement", "with_replacement"),
    ("contexts_in_fives", "in_fives"),
):
    plain(name, become(chosen=chosen), "sampling.subsets", **NOISY)
plain("coins_of_a_seed", become(chosen="coins_of_a_seed"), "sampling.seeds", **NOISY)
plain(
    "noise_of_less_than_the_claim",
    manifest(mechanism__noise_multiplier=2.0),
    "claim.epsilon",
    **NOISY,
)
plain(
    "a_rate_above_that_of_the_claim",
    manifest(mechanism__sampling_rate=0.5),
    "sampling.subsets",
    "claim.epsilon",
    **NOISY,
)
plain(
    "a_token_that_noise_does_not_make_the_highest",
    become(drawn="honest"),
    "record.aggregate",
    **NOISY,
)
plain(
    "a_noisy_maximum_of_contexts_that_come_and_go_in_pairs",
    manifest(claim__relation="replace"),
    "claim.epsilon",
    **NOISY,
)
plain("rho_below_the_budget", claimed_rho(0.9 * (1 - 1e-9)), "claim.rho", **BUDGETS)
#: Of one record the advantage is .15745, of a user of three .4565, and beside noisy counts .1641.
RISKS: dict[str, Any] = BUDGETS | {"budget": 0.05}
COUNTED: dict[str, Any] = {"clusters": "public-centers-rebalanced", "sizes": (3, 4, 5, 2)}
plain("an_advantage_beyond_the_settings", manifest(privacy__advantage=0.1), "claim.risk", **RISKS)
plain(
    "an_advantage_a_hair_beyond_the_settings",
    manifest(privacy__advantage=0.157454),
    "claim.risk",
    **RISKS,
)
plain(
    "true_positives_beyond_the_settings",
    manifest(privacy__true_positives={"at": 0.01, "most": 0.0247}),
    "claim.risk",
    **RISKS,
)
plain(
    "the_advantage_of_a_normal_law_of_the_same_rho",
    manifest(privacy__advantage=0.13),
    "claim.risk",
    **RISKS,
)
plain(
    "an_advantage_of_one_record_for_a_user",
    manifest(privacy__advantage=0.2),
    "claim.risk",
    **RISKS,
    unit="user",
    records_per_user=3,
)
plain(
    "a_claim_of_one_record_beside_an_advantage_of_a_user",
    manifest(privacy__advantage=0.2, privacy__unit="user", privacy__records_per_user=3),
    "claim.risk",
    **RISKS,
)
plain(
    "an_advantage_without_noisy_counts",
    manifest(privacy__advantage=0.16),
    "claim.risk",
    **RISKS | COUNTED,
)
plain(
    "a_budget_of_more_than_the_claim",
    manifest(mechanism__budget=1.0),
    "claim.epsilon",
    "budget.activity",
    **BUDGETS,
)
USERS = BUDGETS | {"users": 4, "unit": "user", "records_per_user": 256}
EARLIER = BUDGETS | {"before": 0.3}
plain("contexts_of_a_user_with_a_budget_each", become(whole=True), "budget.shares", **USERS)
plain("budgets_of_before_although_some_is_spent", become(whole=True), "budget.shares", **EARLIER)
plain("shares_that_are_not_used_up", become(spent="shared_at_half"), "budget.activity", **USERS)
plain("a_share_of_one_budget_overdrawn", become(spent="a_token_too_long"), "budget.limit", **USERS)

for name, field, value, kind in (
    ("records_said_to_be_of_another_user", 3, "ab" * 32, USERS),
    ("less_said_to_be_spent_before", 4, "0.1", EARLIER),
):
    plain(
        name,
        assigned(
            lambda lines, at=field, text=value: [
                line.__setitem__(at, text) for line in lines if line[at:]
            ]
        ),
        "budget.shares",
        **kind,
    )
plain("records_of_nobody", assigned(lambda lines: [line.__setitem__(3, "-") for line in lines]),
      "integrity.format", "partition.disjoint", "budget.shares", **USERS)  # fmt: skip
plain(
    "spent_before_in_no_run",
    manifest(privacy__earlier=[]),
    "integrity.format",
    "partition.disjoint",
    "budget.shares",
    before=0.3,
    **USERS,
)
plain(
    "more_records_of_a_user_than_are_declared",
    manifest(privacy__records_per_user=200),
    "budget.shares",
    **USERS,
)
plain(
    "a_claim_per_record_where_users_share_budgets",
    manifest(claim__unit="record"),
    "claim.epsilon",
    **USERS,
)
plain("users_named_where_none_share_budgets",
      assigned(lambda lines: [line.extend(["ab" * 32, "0.0"]) for line in lines]),
      "integrity.format", "partition.disjoint", **BUDGETS)  # fmt: skip
plain("users_who_had_spent_this_and_that",
      assigned(lambda lines: [line.__setitem__(4, "0.1") for line in lines if line[1] == "-"]),
      "budget.shares", before=0.3, **USERS)  # fmt: skip
plain("a_budget_of_less_than_was_spent", manifest(mechanism__budget=0.5), "budget.limit", **BUDGETS)


plain(
    "contexts_that_take_part_without_paying",
    summed(lambda rows: rows.sum(axis=0) / 4),
    "mechanism.divisor",
    **BUDGETS,
)
plain(
    "contexts_that_miss_the_clip",
    become(below_clip=0.5),
    "mechanism.clip",
    contexts=True,
    dtype="float64",
)


@fault("mechanism.support-public", sizes=(4, 5, 4), top_k=5)
def support_of_its_own(run):
    run.rewrite(2, lambda draft: exchange_in_support(draft, 0))


ANCHORED = {"contribution": "differences", "contexts": True, "top_k": 5, "sizes": (4, 5, 4)}


def reanchored(change: Callable[[Any], Any], batch: int = 2) -> Callable[[Any], None]:
    """Another anchor in a batch's first step, from which everything else follows as it should."""

    def plant(run: Any) -> None:
        def edit(draft: Any) -> None:
            mechanism, step = run.spec.mechanism, draft.steps[0]
            arrays = {**step.arrays, "anchor": change(step.arrays["anchor"]).astype(np.float32)}
            index = int(np.searchsorted(step.support, step.token))
            aggregate = mechanism.aggregate(arrays)
            draft.edit(
                0,
                anchor=arrays["anchor"],
                aggregate_digest=aggregate_digest(aggregate),
                log_probability=log_probability(aggregate, index, mechanism.temperature),
            )

        run.rewrite(batch, edit)

    return plant


plain(
    "anchor_of_its_own",
    reanchored(lambda anchor: anchor[::-1]),
    "mechanism.support-public",
    "mechanism.clip",
    **ANCHORED,
)
plain(
    "anchors_that_saw_the_records",
    become(private_anchor=True),
    "mechanism.support-public",
    **ANCHORED,
    **MEAN,
)
plain(
    "anchor_of_raw_logits",
    reanchored(lambda anchor: anchor + 1, batch=1),
    "record.range",
    "mechanism.clip",
    "mechanism.support-public",
    **ANCHORED,
)
plain(
    "anchor_that_is_no_number",
    altered("anchor", 3, np.nan),
    "record.range",
    "record.aggregate",
    "mechanism.clip",
    "mechanism.support-public",
    "claim.epsilon",
    **ANCHORED,
)
plain(
    "difference_beyond_the_clip",
    altered("contexts", (0, 3), CLIP + 1),
    "record.range",
    "record.aggregate",
    "mechanism.clip",
    **ANCHORED,
)
plain(
    "differences_of_what_is_no_distribution", become(below_clip=0.5), "mechanism.clip", **ANCHORED
)
plain("differences_divided_by_their_number", become(divide_by="contexts"), "mechanism.divisor",
      **{**ANCHORED, "sizes": (8, 6, 8)}, divisor=4.0, **MEAN)  # fmt: skip


@fault("record.range", "mechanism.support-public", top_k=5, text=False)
def support_of_fewer_tokens(run):
    def change(draft):
        step = draft.steps[0]
        kept = np.delete(np.arange(5), int(step.support[0] == step.token))
        arrays = {
            name: np.ascontiguousarray(array[..., kept]) for name, array in step.arrays.items()
        }
        aggregate = run.spec.mechanism.aggregate(arrays)
        index = int(np.searchsorted(step.support[kept], step.token))
        draft.edit(
            0,
            **arrays,
            support=step.support[kept],
            aggregate_digest=aggregate_digest(aggregate),
            log_probability=log_probability(aggregate, index, run.spec.mechanism.temperature),
        )

    run.rewrite(0, change)


# --- committed seed -------------------------------------------------------------------------------


SEEDED: dict[str, Any] = {
    "committed": "seeded",
    "text": False,
    "sizes": (4, 4),
    "max_tokens": 12,
    "vocabulary": 200,
}
#: How the tokens of a run that commits to a seed may come about instead (tests/conftest.py), by the
#: fault's name.
INSTEAD = {
    "one_token_chosen_under_a_seed": "seeded_but_one",
    "a_records_bits_as_parities_of_tokens": "parity_of_a_record",
    "best_of_two_draws_by_a_record": "once_more_where_it_suits",
    "batch_drawn_again_by_the_operating_system": "one batch drawn again",
    "a_seed_declared_and_not_used": "the operating system",
    "tokens_of_another_seed": "another seed",
    "one_part_of_two_makes_the_seed": "one part alone",
    "tokens_of_another_runs_stream": "another run's stream",
    "streams_of_two_batches_exchanged": "swapped streams",
    "stream_a_step_late": "a step late",
    "antithetic_numbers_of_a_seed": "mirrored",
    "numbers_of_a_seed_by_id": "by id",
    "a_little_colder_under_a_seed": "a little colder",
}
for name, how in INSTEAD.items():
    plain(name, become(committed=how), "sampling.committed-seed", **SEEDED)
plain(
    "parities_of_means",
    become(committed="parity_of_a_record"),
    "sampling.committed-seed",
    **SEEDED | MEAN,
)
plain(
    "stream_from_the_start_of_each_text",
    become(committed="from the start of each text"),
    "sampling.committed-seed",
    "sampling.independence",
    **SEEDED | {"tokens_per_batch": 30},
)
plain(
    "one_stream_of_a_seed_for_all_batches",
    become(committed="one stream for all batches"),
    "sampling.committed-seed",
    "sampling.independence",
    **SEEDED,
)
plain(
    "hashes_of_another_seed",
    manifest(sampling__seed_hashes=["ab" * 32, "cd" * 32]),
    "sampling.committed-seed",
    **SEEDED,
)
# The numbers are bound to the commitment: whatever is changed and committed to again has others.
plain(
    "settings_changed_and_committed_to_again",
    manifest(model__name="another"),
    "sampling.committed-seed",
    **SEEDED,
)
plain(
    "run_committed_to_again_until_it_suits",
    manifest(nonce="ab" * 32),
    "sampling.committed-seed",
    **SEEDED,
)


@fault("sampling.committed-seed", **SEEDED)
def contents_of_two_batches_exchanged(run):
    first, second = run.draft(0), run.draft(1)
    for batch, other in ((0, second), (1, first)):
        run.rewrite(
            batch,
            lambda draft, other=other: vars(draft).update(steps=other.steps, texts=other.texts),
        )


@fault("sampling.committed-seed", **SEEDED)
def step_of_another_run_under_this_seed(run):
    """Its aggregate, token and probability go together; only its number is not the step's."""
    run.rewrite(0, lambda draft: draft.steps.__setitem__(0, run.sibling(seed=1).draft(0).steps[0]))
    run.edit_manifest({"claim.epsilon": 99.0})


@fault("integrity.commitment", "sampling.committed-seed", **SEEDED)
def no_commitment_under_a_seed(run):
    no_commitment(run)


# --- canaries -------------------------------------------------------------------------------------


CANARIES = MEAN | {"sizes": (4,) * 24, "canaries": 24, "max_tokens": 6}
#: Of a temperature of a fifth, and of sums divided by a fifth; losses are what the record lets them
#: be.
MANY: dict[str, Any] = MEAN | {"contribution": "differences", "sizes": (4,) * 200, "canaries": 200}
#: Of short texts: the drafts of these differ most by a canary's favour.
DRAFTED = MANY | {"sizes": (4,) * 160, "canaries": 160, "divisor": 8.0, "max_tokens": 3}


def first_canary(run: Any, *, included: bool) -> int:
    """The batch of the first canary that is in, or out."""
    canaries = RunReader(run.path).canaries().canaries
    return next(batch for batch, canary in enumerate(canaries) if canary.included == included)


@fault("canaries.coins", **CANARIES)
def coin_flipped_once_the_texts_are_known(run):
    def flip(canaries: dict[str, Any]) -> None:
        canaries["canaries"][0]["included"] ^= True

    run.edit_canaries(flip)


@fault("canaries.coins", **CANARIES)
def coins_that_open_another_commitment(run):
    path = run / "canaries"
    path.write_text(path.read_text().replace("5a5a", "a5a5"))


@fault("canaries.coins", "integrity.commitment", **CANARIES)
def coins_committed_to_again_after_the_run(run):
    run.hold(head=False)
    coin_flipped_once_the_texts_are_known(run)


@fault("canaries.coins", **CANARIES)
def coins_that_are_lost(run):
    (run / "canaries").unlink()


@fault("canaries.coins")
def coins_that_nobody_committed_to(run):
    other = run.sibling(**CANARIES)
    shutil.copy(other / "canaries", run / "canaries")


@fault("canaries.coins", **CANARIES)
def canary_in_another_batch(run):
    def exchange(canaries: dict[str, Any]) -> None:
        first, second = canaries["canaries"][:2]
        first["text"], second["text"] = second["text"], first["text"]

    run.edit_canaries(exchange)


@fault("canaries.coins", "integrity.format", **CANARIES)
def file_of_canaries_that_cannot_be_read(run):
    (run / "canaries").write_text("[]")


plain("coins_that_all_say_in", become(fair=False), "canaries.coins", **CANARIES)


@fault("canaries.coins", **CANARIES)
def canary_that_is_out_and_was_aggregated(run):
    """In place of a record, so that numbers of contexts are right."""

    def include(draft: Any) -> None:
        for position, step in enumerate(draft.steps):
            values = step.contexts.copy()
            values[0] = step.canary
            aggregate = values.sum(axis=0) / run.spec.divisor
            likely = log_probability(aggregate, step.token, run.spec.mechanism.temperature)
            digest = aggregate_digest(aggregate)
            draft.edit(
                position,
                contexts=values,
                aggregate=aggregate,
                aggregate_digest=digest,
                log_probability=likely,
            )

    run.rewrite(first_canary(run, included=False), include)


@fault("canaries.coins", **CANARIES)
def canary_that_is_in_and_was_not_aggregated(run):
    def replace_row(draft: Any) -> None:
        draft.edit(0, canary=-draft.steps[0].canary)

    run.rewrite(first_canary(run, included=True), replace_row)


plain(
    "contributions_divided_by_a_fifth",
    become(amplified=5.0),
    "sampling.distribution",
    "canaries.lower-bound",
    **MANY,
)
plain(
    "best_of_six_drafts_by_a_record",
    become(drafts=6),
    "canaries.lower-bound",
    **DRAFTED,
)
plain(
    "worst_of_six_drafts_by_a_record",
    become(drafts=6, least_likely=True),
    "canaries.lower-bound",
    **DRAFTED,
)


# --- amplification --------------------------------------------------------------------------------
# Claims of the release level that nothing bears out: what secret batches would give where there are
# none, and wrong sums of what they do give.

SECRET = {"secret": True, "sizes": (4, 5, 4, 5)}
#: Counts decide, and three batches of a cluster are there at least, by a public number.
LEAST = {
    "secret": True,
    "clusters": "public-centers-rebalanced",
    "sizes": (3, 4, 5, 2),
    "least_batches": 3,
}
FINE = {"secret": True, "sizes": (4, 5, 4, 5), "divisor": 96.0, "max_tokens": 12}


def unkept(name: str, value: Any) -> Callable[[Any], None]:
    """What the run says of how its batches were drawn is another than the claim rests on."""
    return lambda run: run.edit_manifest({f"batching.allocation{name}": value})


def claimed(epsilon: Callable[[Any], float], level: str = "epsilon") -> Callable[[Any], None]:
    """A claim of a figure of its own, rounded up as figures are that are stated."""
    return lambda run: run.edit_manifest(
        {f"claim.{level}": math.ceil(epsilon(run.spec) * 1e4) / 1e4}
    )


def of_groups(batches: int, generated: int) -> Callable[[Any], float]:
    """What these numbers of batches would give."""

    def figure(spec: Any) -> float:
        secret = SecretBatches(((batches, generated),))
        return spec.release_of(secret).epsilon(spec.decoding.most_tokens, DELTA)

    return figure


plain(
    "key_given_in_the_config",
    unkept(".secret", False),
    "claim.epsilon",
    "amplification.key",
    **SECRET,
    **MEAN,
)
plain(
    "batches_drawn_nobody_says_how",
    unkept("", None),
    "claim.epsilon",
    "amplification.key",
    **SECRET,
    **MEAN,
)
plain(
    "key_of_31_bytes", become(key="5e" * 31), "claim.epsilon", "amplification.key", **SECRET, **MEAN
)
plain(
    "key_that_numpys_seed_gives",
    become(key=np.random.RandomState(42).bytes(32).hex()),
    "claim.epsilon",
    "amplification.key",
    **SECRET,
    **MEAN,
)
plain("key_that_was_typed", become(key=b"nobody will ever guess this key.".hex()), "claim.epsilon",
      "amplification.key", **SECRET, **MEAN)  # fmt: skip
plain(
    "key_that_is_the_digest_of_a_year",
    become(key=hashlib.sha256(b"2026").hexdigest()),
    "claim.epsilon",
    "amplification.key",
    **SECRET,
    **MEAN,
)
plain(
    "key_of_one_byte_repeated",
    become(key="a5" * 32),
    "claim.epsilon",
    "amplification.key",
    **SECRET,
    **MEAN,
)
plain(
    "key_of_bytes_that_count",
    become(key=bytes(range(32)).hex()),
    "claim.epsilon",
    "amplification.key",
    **SECRET,
    **MEAN,
)
plain(
    "key_that_is_blake2b_of_a_seed",
    become(key=hashlib.blake2b(b"1234", digest_size=32).hexdigest()),
    "claim.epsilon",
    "amplification.key",
    **SECRET,
    **MEAN,
)
plain(
    "key_that_is_sha256_of_a_packed_seed",
    become(key=hashlib.sha256((42).to_bytes(8, "little")).hexdigest()),
    "claim.epsilon",
    "amplification.key",
    **SECRET,
    **MEAN,
)
plain(
    "key_that_is_sha256_of_a_word",
    become(key=hashlib.sha256(b"secret").hexdigest()),
    "claim.epsilon",
    "amplification.key",
    **SECRET,
    **MEAN,
)
plain(
    "key_that_is_blake2b_of_a_word",
    become(key=hashlib.blake2b(b"Password", digest_size=32).hexdigest()),
    "claim.epsilon",
    "amplification.key",
    **SECRET,
    **MEAN,
)
plain("batches_of_numpys_seeded_generator", lambda run: run.edit_manifest(
          {"sampling.generator": "mt19937", "sampling.seed": 20_261_126}),
      "claim.epsilon", "amplification.key", "mechanism.randomness", **SECRET, **MEAN)  # fmt: skip
plain(
    "ex_post_claim_under_a_known_key",
    lambda run: claimed_ex_post(run) or unkept(".secret", False)(run),
    "claim.epsilon",
    "amplification.key",
    **SECRET,
)
plain(
    "batches_of_a_fixed_size",
    unkept(".kind", "fixed-size"),
    "claim.epsilon",
    "amplification.records",
    **SECRET,
    **MEAN,
)
plain(
    "records_in_their_order",
    unkept(".kind", "by-order"),
    "claim.epsilon",
    "amplification.records",
    **SECRET,
    **MEAN,
)
plain(
    "earlier_spending_under_the_same_key",
    become(before=0.1),
    "claim.epsilon",
    "amplification.records",
    **SECRET,
    **MEAN,
    budget=0.5,
)
plain(
    "a_replaced_record_ex_post",
    lambda run: claimed_ex_post(run),
    "claim.epsilon",
    "amplification.records",
    **SECRET,
    relation="replace",
)
plain(
    "slices_claimed_as_if_records_were_hashed",
    claimed(of_groups(2, 2)),
    "claim.epsilon",
    "amplification.records",
    **MEAN,
    divisor=96.0,
    max_tokens=12,
    rule="paper-slices",
    unit="context",
    sizes=(4, 4, 4, 4),
)


@fault("amplification.records", **SECRET, **MEAN)
def contexts_of_no_record_claimed_one_by_one(run):
    """A claim per context rests on no assignment, but for its level of readers."""
    (run / "assignment").write_text("")
    run.edit_manifest({"claim.unit": "context", "data.records": 0, "data.digest": None})


@fault("amplification.records", **SECRET, **MEAN)
def one_record_seen_to_move_batches_that_were_drawn_one_by_one(run):
    seen = {"batches": {"tried": 5, "moved": 3}, "rows": {"logit": 0.0, "support": 0}}
    run.edit_manifest({"claim.unit": "context", "recorded": {"generator": "toy 1.0", **seen}})


plain(
    "batches_of_all_labels_together",
    claimed(of_groups(20, 4)),
    "claim.epsilon",
    "amplification.groups",
    **SECRET,
    **MEAN,
)
plain("clusters_without_a_public_number_of_batches", claimed(of_groups(4, 1)), "claim.epsilon",
      "amplification.groups", **REBALANCED, **MEAN)  # fmt: skip
plain(
    "clusters_of_fewer_batches_than_the_least",
    grouped(batches=[[2, 8], [6, 6]]),
    "integrity.format",
    **LEAST,
)
plain("epsilon_of_a_batch_too_low", lambda run: run.edit_manifest(
          {"claim.batch_epsilon": run.batch_level * (1 - 1e-9)}),
      "claim.batch-epsilon", **SECRET, **MEAN)  # fmt: skip
plain(
    "release_level_claimed_of_a_batch",
    lambda run: run.edit_manifest({"claim.batch_epsilon": run.approximate}),
    "claim.batch-epsilon",
    **SECRET,
    **MEAN,
)
plain(
    "median_batch_claimed_too_low",
    lambda run: run.edit_manifest({"claim.batch_epsilon": run.exact * 0.9}),
    "claim.batch-epsilon",
    **SECRET,
)
plain(
    "release_level_a_hair_too_low",
    lambda run: run.edit_manifest({"claim.epsilon": run.approximate * (1 - 1e-9)}),
    "claim.epsilon",
    **SECRET,
    **MEAN,
)


def claimed_ex_post(run: Any) -> None:
    """Claim the log-mean-exp over a label's batches, of which there are ten."""
    found = run.audit().batches
    costs = np.array([(batch.rise, batch.fall) for batch in found])
    epsilon = max(allocated_cost(costs[:2], 10), allocated_cost(costs[2:], 10))
    run.edit_manifest({"claim.epsilon": math.ceil(epsilon * 1e4) / 1e4})


@fault("composition.total", "claim.epsilon", **TEXTS, **MEAN, secret=True)
def a_single_text_claimed_of_secret_batches(run):
    run.edit_manifest({"claim.epsilon": run.sibling(tokens_per_batch=None).approximate})


@fault("composition.total", "claim.batch-epsilon", **TEXTS, **MEAN, secret=True)
def a_single_text_claimed_of_a_batch(run):
    run.edit_manifest({"claim.batch_epsilon": run.sibling(tokens_per_batch=None).batch_level})


@fault("composition.total", "claim.epsilon", **LEAST, **MEAN)
def secret_batches_without_the_noisy_counts(run):
    alone = replace(run.spec.release, batch=run.spec.release.batch.without_clusters())
    claimed(lambda spec: alone.epsilon(spec.decoding.most_tokens, DELTA))(run)


@fault("claim.epsilon", **LEAST, **MEAN)
def noisy_counts_put_into_the_secret_batches(run):
    """As if whoever sees the counts did not see them."""
    spec = run.spec
    (batches, generated), *_ = spec.release.secret.groups
    together = replace(spec.release.one, laplace=spec.release.batch.laplace)
    profiles = together.profiles(spec.decoding.most_tokens, DELTA).values()
    figure = min(
        epsilon_of_profile(allocated(each, batches, generated, DELTA), DELTA) for each in profiles
    )
    claimed(lambda _: figure)(run)


@fault("claim.epsilon", **FINE, **MEAN)
def gaussian_of_the_same_zcdp_claimed(run):
    """Its profile is not above that of draws of bounded range, so it bounds nothing."""
    spec = run.spec
    (batches, generated), *_ = spec.release.secret.groups
    mu = math.sqrt(2 * spec.release.batch.rho(spec.decoding.most_tokens))
    losses = np.arange(2048) * (8 * mu + mu**2) / 2047
    deltas = ndtr(mu / 2 - losses / mu) - np.exp(losses) * ndtr(-mu / 2 - losses / mu)
    profile = allocated(Profile(float(losses[1]), deltas), batches, generated, DELTA)
    run.edit_manifest({"claim.epsilon": epsilon_of_profile(profile, DELTA)})


@fault("claim.epsilon", **FINE, **MEAN)
def added_records_alone_claimed(run):
    """What is gone can be told better than what was added."""
    spec = run.spec
    (batches, generated), *_ = spec.release.secret.groups
    profile, *_ = spec.release.one.profiles(spec.decoding.most_tokens, DELTA).values()
    ratios, most = _ratios(profile), 8.0
    total = _Sum.of(ratios, batches, generated, most, 1 << 17)
    at = np.exp(np.linspace(0.0, most, 4096).astype(np.longdouble))
    added = Profile(
        most / 4095, np.minimum.accumulate((at * total._put(1 / at)).astype(np.float64))
    )
    run.edit_manifest({"claim.epsilon": epsilon_of_profile(added, DELTA)})


ROUNDS = {"secret": True, "rounds": 3, "sizes": (4, 4, 4, 4)}


plain(
    "rho_of_one_round", claimed_rho(rho_of), "claim.rho", "amplification.rounds", **ROUNDS, **MEAN
)


def of_rounds(rounds: int) -> Callable[[Any], float]:
    """What fewer rounds cost readers of the texts."""

    def figure(spec: Any) -> float:
        secret = replace(spec.release.secret, rounds=rounds)
        accountant = replace(
            spec.release, batch=replace(spec.release.batch, rounds=rounds), secret=secret
        )
        return accountant.epsilon(spec.decoding.most_tokens, DELTA)

    return figure


plain("one_key_in_every_round", become(one_key=True), "partition.disjoint", **ROUNDS, **MEAN)


@fault("partition.disjoint", **ROUNDS)
def record_of_another_group_in_every_round(run):
    """Change the group of a record that some round shows.

    Nobody can see the group of a record whose batches are all left out.
    """
    batching = RunReader(run.path).manifest.batching
    keys = [
        KeyedHash(bytes.fromhex(batching.key)).of_round(number) for number in range(batching.rounds)
    ]

    def is_shown(digest: str) -> bool:
        return any(
            key.batch(digest, batching.batches_per_label) < batching.generate_per_label
            for key in keys
        )

    def move(lines: list[list[str]]) -> None:
        line = next(line for line in lines if is_shown(line[0]))
        line[1] = str(1 - int(line[1]))

    assigned(move)(run)


plain(
    "slot_that_no_round_gives",
    assigned(lambda lines: lines[0].__setitem__(2, "0")),
    "partition.disjoint",
    "amplification.records",
    **ROUNDS,
)
plain(
    "group_that_there_is_not",
    assigned(lambda lines: lines[0].__setitem__(1, "9")),
    "partition.disjoint",
    "amplification.records",
    **ROUNDS,
)


@fault("partition.disjoint", **ROUNDS, **MEAN)
def record_twice_in_a_round(run):
    """The line is there once, and a second-round batch has one context more than the rule sends."""

    def drop(lines):
        keyed = KeyedHash(bytes.fromhex(RunReader(run.path).manifest.batching.key)).of_round(1)
        lines.remove(next(line for line in lines if keyed.batch(line[0], 10) < 2))
        run.edit_manifest(
            {"data.records": len(lines), "data.digest": data_digest(line[0] for line in lines)}
        )

    assigned(drop)(run)


plain(
    "a_single_round_claimed",
    claimed(of_rounds(1)),
    "claim.epsilon",
    "amplification.rounds",
    **ROUNDS,
    **MEAN,
)
plain(
    "a_single_round_claimed_of_a_batch",
    claimed(
        lambda spec: (
            replace(spec.release.batch, rounds=1).epsilon(spec.decoding.most_tokens, DELTA).epsilon
        ),
        "batch_epsilon",
    ),
    "claim.batch-epsilon",
    "amplification.rounds",
    **ROUNDS,
    **MEAN,
)
plain("stopped_early_and_claimed_as_if_that_was_settled", claimed(of_rounds(2)), "claim.epsilon",
      "amplification.rounds", **ROUNDS, **MEAN, stopped=2)  # fmt: skip
plain("delta_said_to_be_split_and_spent_whole", claimed(
          lambda spec: replace(spec.release, shares=1).epsilon(spec.decoding.most_tokens, DELTA)),
      "claim.epsilon", "amplification.rounds", **ROUNDS, **MEAN, split=True, stopped=2)  # fmt: skip
plain(
    "rounds_of_known_batches_claimed_as_one",
    claimed(
        lambda spec: (
            replace(spec.release.batch, rounds=1).epsilon(spec.decoding.most_tokens, DELTA).epsilon
        )
    ),
    "claim.epsilon",
    "amplification.rounds",
    **ROUNDS | {"secret": False},
    **MEAN,
)


@fault("claim.epsilon", "amplification.rounds", **ROUNDS)
def a_single_round_claimed_ex_post(run):
    found = [(batch.rise, batch.fall) for batch in run.audit().batches]
    costs = [allocated_cost(np.array(found[first : first + 2]), 10) for first in range(0, 12, 2)]
    run.edit_manifest({"claim.epsilon": math.ceil(max(costs) * 1e4) / 1e4})


def lose_a_round(run: Any, declared: bool) -> None:
    """As if there had been fewer, by what is on disk or, too, by what run.json says."""
    for batch in range(8, 12):
        run.steps_file(batch).unlink()
    run.edit_samples(lambda lines: lines.__delitem__(slice(8, None)))
    if declared:
        run.edit_manifest({"batching.rounds": 2, "batching.batches": 8})


plain(
    "round_that_is_missing",
    lambda run: lose_a_round(run, declared=False),
    "integrity.complete",
    **ROUNDS,
    **MEAN,
)


@fault("integrity.commitment", **ROUNDS, **MEAN)
def fewer_rounds_than_were_committed_to(run):
    """Settled once the texts were there: delta is for a number that was fixed beforehand."""
    run.hold(head=False)
    lose_a_round(run, declared=True)
    claimed(of_rounds(2))(run)


# --- replay ---------------------------------------------------------------------------------------
# What a replay may find; tests/generation plants the faults that make one find it.


STEP = ReplayedStep(batch=0, position=0, difference=1e-6, tolerance=1e-4)
LEFT_OUT = LeftOut(batch=0, slot=1, recorded=0.011, regenerated=0.0110001, tolerance=1e-4)
OTHER_SIDES = Finding(code="mechanisms.other-sides", values={"sides": 3})
OTHER_SUPPORT = Finding(
    code="step.problem",
    values={
        "place": Place(batch=1, step=2),
        "problem": (Finding(code="replay.other-support", values={"tokens": 1}),),
    },
)
OTHER_ASSIGNMENT = Finding(code="replay.other-assignment", values={"line": 3, "file": "assignment"})
OTHER_TEXT = Finding(code="replay.other-text", values={"place": Place(batch=1), "text": 0})
MOVED_SUPPORT = Finding(code="rerun.support", values={"place": Place(batch=0, step=1), "tokens": 2})
BEYOND_BOUND = Finding(
    code="replay.beyond-bound",
    values={"ratio": Quantity(value=9.0, unit="nats"), "allowed": Quantity(value=1.0, unit="nats")},
)
#: On the eight counts of a clustered run, by its scale.
SOME_NOISE = 70
ATTACKED = Attacked(
    LowerBound(1e-4, 0.95, 0.5, 0.7, ((0.5, 0.01, 0.001),)), trials=20, beyond=0, worst=None
)
CLEAN = Replay(
    assignment=None,
    noise=None,
    texts=None,
    public=PublicParts(6, 0, None, 1e-6, 1e-4),
    steps=(STEP, replace(STEP, batch=1, position=2)),
    left_out=(LEFT_OUT, replace(LEFT_OUT, slot=2)),
    attack=ATTACKED,
    most_per_user=2,
    shared=(),
)


def in_public_texts(setting: str, letters: int) -> tuple[Replay, dict[str, Any], set[str]]:
    """A record, or a large part of one; tests/generation/test_overlap.py has what is one."""
    found = SharedText(setting, letters=letters, records=3, copied=1)
    return replace(CLEAN, shared=(found,)), {}, {"disclosure.sensitive"}


def with_left_out(**changes: Any) -> Replay:
    return replace(CLEAN, left_out=(LEFT_OUT, replace(LEFT_OUT, **changes)))


def attacked(**changes: Any) -> Replay:
    return replace(CLEAN, attack=replace(ATTACKED, **changes))


FOREIGN_TOKEN = Finding(code="replay.foreign-token-in", values={"place": Place(batch=1)})
OTHER_ASSIGNMENT = Finding(code="replay.other-assignment", values={"line": 3, "file": "assignment"})
#: Findings, what they are about, and the checks that must fail.
FINDINGS: dict[str, tuple[Replay | Rerun | DisclosedTexts, dict[str, Any], set[str]]] = {
    "texts_that_name_their_own_records": (
        trial(p_claim=1e-5, claim_refuted=True),
        {"aggregator": "mean"},
        {"release.disclosure"},
    ),
    "of_another_run": (replace(CLEAN, head="ab" * 32), {}, {"integrity.hashes"}),
    "other_logits": (
        replace(CLEAN, steps=(STEP, replace(STEP, difference=0.1))),
        {},
        {"replay.logits"},
    ),
    "no_number": (
        replace(CLEAN, steps=(replace(STEP, difference=math.nan),)),
        {},
        {"replay.logits"},
    ),
    "other_sides": (
        replace(CLEAN, steps=(replace(STEP, problems=(OTHER_SIDES,)),)),
        {},
        {"replay.logits"},
    ),
    "supports_that_are_not_public": (
        replace(CLEAN, public=PublicParts(6, 1, OTHER_SUPPORT, 0.5, 1e-4)),
        {"top_k": 5},
        {"mechanism.support-public"},
    ),
    "other_loss": (with_left_out(regenerated=0.02), {}, {"neighbors.regenerated"}),
    "no_loss": (with_left_out(recorded=math.nan), {}, {"neighbors.regenerated"}),
    "loss_beyond_the_bound": (
        with_left_out(recorded=99.0, regenerated=99.0),
        {},
        {"neighbors.removal"},
    ),
    "loss_beyond_the_bound_of_a_mean": (
        with_left_out(recorded=99.0, regenerated=99.0),
        MEAN,
        {"neighbors.removal"},
    ),
    "other_assignment": (replace(CLEAN, assignment=OTHER_ASSIGNMENT), {}, {"partition.stable"}),
    "user_with_eight_records_where_two_are_declared": (
        replace(CLEAN, most_per_user=8),
        {"unit": "user", "records_per_user": 2, "width": 3},
        {"partition.users"},
    ),
    "public_example_that_is_a_record_less_four_words": in_public_texts(
        "prompt.public_examples", 34
    ),
    "half_a_record_in_the_template": in_public_texts("prompt.text", 96),
    "record_in_banned_words_word_by_word": in_public_texts("decoding.banned_words", 0),
    "record_in_stop_sequences": in_public_texts("decoding.sequences", 61),
    "counts_without_noise": (replace(CLEAN, noise=0), REBALANCED, {"rebalancing.noise"}),
    "other_tokenizer": (replace(CLEAN, texts=FOREIGN_TOKEN), {}, {"release.text"}),
    "other_assignment_of_slices": (
        replace(CLEAN, assignment=OTHER_ASSIGNMENT),
        SLICES,
        {"partition.stable"},
    ),
    "support_that_follows_a_record": (
        Rerun(3, None, (Difference("supports", 4, MOVED_SUPPORT),)),
        {},
        {"replay.frozen"},
    ),
    "text_beyond_its_bound": (attacked(beyond=1, worst=BEYOND_BOUND), {}, {"replay.lower-bound"}),
    "attack_refutes_the_claim": (
        attacked(bound=LowerBound(1e-4, 0.95, 99.0, 99.5, ())),
        MEAN,
        {"replay.lower-bound"},
    ),
}


def failing_replay(make_run, name: str) -> tuple[Any, Path]:
    """A clean run's audit with a replay, which fails exactly its finding's checks, and the path."""
    found, kind, fails = FINDINGS[name]
    path = make_run(**kind).path
    clean = {"replay": replace(CLEAN, noise=SOME_NOISE), "disclosed": trial()}
    assert audit_run(path, evidence=4, **clean).verdict == "pass", name
    if isinstance(found, Rerun):
        result = audit_run(path, reruns=[found])
    elif isinstance(found, DisclosedTexts):
        result = audit_run(path, disclosed=found)
    else:
        result = audit_run(path, replay=found)
    assert {check.id for check in result.checks if check.status in ("fail", "error")} == fails, name
    assert result.verdict == "fail", name
    return result, path


def test_no_loss_goes_beyond_its_batchs_bound(make_run, failed):
    run = make_run()
    bound = run.audit().batches[LEFT_OUT.batch].exact
    for loss, fails in {
        bound: set(),
        bound + 1e-6: {"neighbors.removal"},
        -bound - 1e-6: {"neighbors.removal"},
    }.items():
        found = with_left_out(recorded=loss, regenerated=loss, tolerance=1e-9)
        assert failed(audit_run(run.path, replay=found)) == fails


def test_a_bound_that_is_no_number_is_exceeded_and_an_infinite_one_holds_nothing():
    class Seen(dict):
        """As much of a run as the check looks at."""

        replay, no_contexts, headers, manifest = None, False, {}, SimpleNamespace(foreign=False)

    losses = SimpleNamespace(largest={0: 1.0})
    for bound, expected in (
        (math.nan, ("fail", "exceeded")),
        (math.inf, ("skip", "no-cost")),
        (2.0, ("pass", "within")),
    ):
        costs = SimpleNamespace(
            ex_post=object(), batch_cost=lambda _, bound=bound: Cost(bound, bound, bound)
        )
        found = removals_stay_within_bounds(Seen({Costs: costs, Losses: losses}))
        assert (found.status, found.code) == expected


def test_an_attack_on_her_own_batch_says_nothing_of_the_release_level(make_run, failed):
    """It knows which batch she was in, as readers of the texts do not."""
    run = make_run(**SECRET, **MEAN)
    claim = run.audit().claim
    between = (claim.epsilon + run.batch_level) / 2
    assert claim.epsilon < between < run.batch_level <= claim.batch_epsilon
    for epsilon, batch_epsilon, fails in (
        (between, claim.batch_epsilon, set()),
        (claim.batch_epsilon * 1.01, claim.batch_epsilon, {"replay.lower-bound"}),
        (between, None, set()),
        (run.batch_level * 1.01, None, {"replay.lower-bound"}),
    ):
        run.edit_manifest({"claim.batch_epsilon": batch_epsilon})
        run.rehash()
        found = attacked(bound=LowerBound(DELTA, 0.95, epsilon, epsilon, ()))
        assert failed(audit_run(run.path, replay=found)) == fails


def test_an_attack_refutes_a_rho_by_the_epsilon_that_it_gives(make_run, failed):
    """Of a claim without a delta, at the kind's own."""
    run = make_run(**MEAN)
    claimed_rho(lambda run: rho_of(run) * 1.01)(run)
    run.edit_manifest({"claim.delta": 0.0})
    run.rehash()
    delta = ZcdpClaim.tested_delta(0.0)
    most = zcdp_epsilon(rho_of(run) * 1.01, delta)
    for epsilon, fails in ((most * 0.99, set()), (most * 1.01, {"replay.lower-bound"})):
        found = attacked(bound=LowerBound(delta, 0.95, epsilon, epsilon, ()))
        assert failed(audit_run(run.path, replay=found)) == fails


#: These say why claim.epsilon fails, which fails with them. Every other check must be shown to fail
#: on its own.
NEVER_ALONE = {
    "claim.kind",
    "composition.total",
    "composition.all-batches",
    "mechanism.unit",
    "amplification.key",
    "amplification.records",
    "amplification.groups",
    "amplification.rounds",
}
#: These hold the accounting against actual neighbours, so only a broken accounting fails them:
#: tests below break it.
OF_THE_ACCOUNTING = {"neighbors.removal", "neighbors.addition"}
#: These are about the digests themselves, which are therefore not forged afterwards.
DIGESTS = {
    "foreign_file",
    "altered_file",
    "missing_file",
    "flipped_byte",
    "edited_manifest",
    "commitment_of_another_run",
    "no_commitment",
    "no_commitment_under_a_seed",
    "commitment_that_guesses_can_be_tested_against",
    "batch_drawn_again",
    "batch_drawn_again_and_not_said_in_run_json",
    "journal_with_an_entry_less",
}


def failing(make_run, name: str) -> tuple[Any, Path]:
    """A faulty run's audit, which fails exactly the fault's checks, and the run's path.

    Without the fault it passed.
    """
    planted = FAULTS[name]
    run = make_run(**planted.kind)
    if run.spec not in CLEAN_KINDS:
        clean = run.audit_with_model()
        unseen = {
            check.id
            for check in clean.checks
            if check.status == "skip" and check.applicable and check.evidence < 3
        }
        few = planted.kind | {"private_tokens": 8} == FEW_TESTED
        assert unseen == ({"sampling.noise"} if few else set()), name
        assert clean.verdict == ("not_verified" if unseen else "pass"), name
        CLEAN_KINDS.add(run.spec)
    planted.plant(run)
    if name not in DIGESTS:
        run.rehash()
    result = run.audit()
    failed = [check for check in result.checks if check.status in ("fail", "error")]
    assert {check.id for check in failed} == planted.fails, (
        name,
        [(c.id, c.measured, c.detail) for c in failed],
    )
    assert result.verdict == (
        "error" if planted.fails & {"integrity.format", "integrity.complete"} else "fail"
    ), name
    assert all(check.measured and check.expected and check.detail for check in failed), name
    return result, run.path


@pytest.mark.parametrize("factor", [0.5, 0.99, 0.99999, 1.00001])
def test_bounds_that_are_too_narrow_or_too_wide_fail_the_neighbours(
    make_run, failed, monkeypatch, factor
):
    def scaled(median, arrays, change, clip):
        lower, center, upper = box(median, arrays, change, clip)
        return center + (lower - center) * factor, center, center + (upper - center) * factor

    box = Median.box
    monkeypatch.setattr(Median, "box", scaled)
    run = make_run(sizes=(2, 3), dtype="float64")
    assert "neighbors.addition" in failed(run.audit())
    monkeypatch.setattr(
        "dpaudit.accounting.ex_post._costs", lambda _, tokens, *__: (np.zeros(len(tokens)),) * 3
    )
    assert "neighbors.removal" in failed(run.audit())


def test_every_check_can_fail_alone():
    faults = [planted.fails for planted in FAULTS.values()]
    findings = [fails for _, _, fails in FINDINGS.values()]
    for check_id in registered().keys() - OF_THE_ACCOUNTING:
        alone = {check_id} in faults + findings
        assert alone or (check_id in NEVER_ALONE and any(check_id in fails for fails in faults)), (
            check_id
        )


@pytest.mark.parametrize("position", [0, 1, 2])
def test_step_checks_name_the_batch_and_the_step(make_run, position):
    run = make_run(text=False, seed=2)
    run.rewrite(1, lambda draft: draft.edit(position, aggregate_digest=bytes(32)))
    run.rehash()
    (found,) = [check for check in run.audit().checks if check.status == "fail"]
    assert found.values["place"] == Place(batch=1, step=position)


def test_unbounded_run_says_so(make_run):
    run = make_run(rule="paper-slices", unit="context", sizes=(4, 4))
    run.edit_manifest({"claim.unit": "record"})
    run.rehash()
    found = {check.id: check for check in run.audit().checks if check.status == "fail"}
    assert found.keys() == {"claim.epsilon", "mechanism.unit", "partition.stable"}
    assert "infinite" in found["claim.epsilon"].measured
    assert all("paper-slices" in check.measured + check.detail for check in found.values())
