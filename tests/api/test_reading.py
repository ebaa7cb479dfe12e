"""`dpaudit inspect` shows the audit's figures and what it is asked for; a run's words are inert."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
from rich.console import Console

from dpaudit.api.inspecting import look_into_batch, look_into_step
from dpaudit.api.reading import open_run
from dpaudit.api.steps import LONGEST
from dpaudit.commands.cli import main
from dpaudit.reports.costs import cost_of
from dpaudit.reports.levels import recomputed_words
from dpaudit.reports.writers.terminal import print_document
from dpaudit.results.rounding import bound, digits_against
from dpaudit.runs import InputError, RunReader

KINDS = {
    "median": {},
    "mean": {"aggregator": "mean", "contexts": True},
    "supports": {"top_k": 2, "sizes": (4, 5, 4), "seed": 1},
    "users": {"unit": "user", "records_per_user": 2, "width": 3},
    "replaced": {"relation": "replace", "width": 3},
    "slots": {"rule": "hashed-slots", "sizes": (4, 4)},
    "cells": {"rule": "hashed-cells", "sizes": (4, 3)},
    "tokens alone": {"text": False},
    "clusters": {"clusters": "public-centers-rebalanced", "sizes": (2, 3, 4, 2)},
    "budgets": {"aggregator": "mean", "budget": 0.9},
}


@pytest.fixture(params=KINDS)
def run(request, make_run):
    return make_run(**KINDS[request.param])


@pytest.fixture
def dpaudit(capfd):
    """Runs the entry point in this process: (exit code, stdout, stderr)."""

    def call(*arguments):
        code = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as left:
            code = left.code
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    return call


def strict_json(text):
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def batch_of(run, number=0):
    return open_run(run.path).batches[number]


def step_of(run, batch=0, step=0):
    return batch_of(run, batch).steps[step]


def printed(look, width=80):
    console = Console(width=width, record=True, force_terminal=False, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        print_document(look.document, console)
        return console.export_text()


# --- the figures ----------------------------------------------------------------------------------


def test_a_batchs_figures_are_the_audits(run):
    for audited in run.audit().batches:
        found = batch_of(run, audited.id)
        cost = found.cost
        assert (cost.theorem1, cost.exact, cost.rise, cost.fall) == (
            audited.theorem1,
            audited.exact,
            audited.rise,
            audited.fall,
        )
        assert [found.label, found.contexts, len(found.costs)] == [
            audited.label,
            audited.contexts,
            audited.steps,
        ]
        assert (
            abs(found.losses.worst[0].loss) if found.losses else None
        ) == audited.leave_one_out_max
        assert found.objections == ()
        assert cost.exact <= math.nextafter(sum(cost.exact for cost in found.costs), math.inf) * (
            1 + 1e-9
        )
        (text,) = look_into_batch(run.path, audited.id).figures["texts"]
        assert (text["end"] == ()) == (text["stop"] == "max-tokens")


def test_a_steps_figures_are_its_batchs(run):
    batch = batch_of(run, 1)
    for cost, step in zip(batch.costs, batch.steps, strict=True):
        assert step.cost == step_of(run, 1, cost.step).cost == cost
        assert math.exp(cost.log_probability) == pytest.approx(step.sampled.probability)
        top = step.top(1000)
        assert step.sampled in top
        assert len(top) == len(step.aggregate)
        assert sum(token.probability for token in top) == pytest.approx(1)
        assert [token.rank for token in top] == sorted(token.rank for token in top)
        assert all(token.lower <= token.center <= token.upper for token in top)
        assert step.movable == sum(token.lower < token.upper for token in top)


def test_costs_can_be_worked_out_from_what_a_step_shows(run):
    """Theorem 1's two sides, from the bounds alone: what is shown is what was charged for."""
    scale = open_run(run.path).manifest.mechanism.temperature
    for step in batch_of(run).steps:
        top = step.top(1000)

        def log_sum(values):
            return float(np.logaddexp.reduce(np.array(values) / scale))

        lower, center, upper = (
            [getattr(token, name) for token in top] for name in ("lower", "center", "upper")
        )
        x = step.sampled
        up = (x.upper - x.center) / scale + log_sum(center) - log_sum(lower)
        down = (x.center - x.lower) / scale - log_sum(center) + log_sum(upper)
        assert step.cost.theorem1 == pytest.approx(max(up, down))


def test_a_change_of_several_contexts_moves_tokens_further(make_run):
    one, two = make_run(width=3), make_run(width=3, unit="user", records_per_user=2)
    near, far = step_of(one, 0, 0), step_of(two, 0, 0)
    assert (near.neighbours.contexts, far.neighbours.contexts) == (1, 2)
    assert [t.center for t in near.top(10)] == [t.center for t in far.top(10)]
    assert sum(t.upper - t.lower for t in far.top(10)) > sum(
        t.upper - t.lower for t in near.top(10)
    )
    assert far.cost.exact > near.cost.exact


def test_tokens_are_decoded_with_the_runs_tokenizer(make_run):
    run = make_run()
    batch = batch_of(run, 0)
    assert [cost.text for cost in batch.costs] == [
        "<end>" if cost.token == run.spec.end else f"w{cost.token}" for cost in batch.costs
    ]
    step = step_of(run, 0, 1)
    assert step.prefix == batch.costs[0].text
    bare = step_of(make_run(text=False), 0, 1)
    assert (bare.prefix, bare.sampled.text) == (None, None)


def test_where_nothing_bounds_a_change_there_is_no_cost_and_a_reason(make_run):
    run = make_run(rule="paper-slices", unit="context", sizes=(4, 4))
    run.edit_manifest({"claim.unit": "record"})
    batch, step = batch_of(run, 0), step_of(run, 0, 0)
    assert "paper-slices" in batch.neighbours.problem
    assert (batch.cost.exact, step.cost.exact, step.movable) == (None, None, None)
    assert {(t.lower, t.upper) for t in step.top(10)} == {(None, None)}
    assert "no cost, for nothing bounds" in printed(look_into_batch(run.path, 0))
    narrow = make_run(width=2)
    narrow.edit_manifest({"privacy.records_per_user": 5, "claim.unit": "user"})
    assert "record.width 2" in batch_of(narrow, 0).neighbours.problem


def test_a_step_says_who_took_part_and_what_is_spent(make_run):
    assert step_of(make_run(), 0, 0).budgets is None
    run = make_run(aggregator="mean", sizes=(6, 0), budget=0.9, max_tokens=12)
    assert step_of(run, 1, 0).budgets is None, "a batch without contexts"
    active = []
    with RunReader(run.path).batch(0) as batch:
        for position, step in enumerate(batch.steps()):
            shown = step_of(run, 0, position)
            active.append(shown.budgets.active)
            assert active[-1] == step.active.sum()
            shares = sorted(step.spent[1] / 0.9)
            assert (shown.budgets.spent, shown.budgets.budget) == (
                (shares[0], shares[3], shares[-1]),
                0.9,
            )
            said = " ".join(printed(look_into_step(run.path, 0, position)).split())
            assert f"{active[-1]} of 6 contexts took part" in said
    assert active[0] == 6 > active[-1]


def test_sums_that_are_no_numbers_are_shown(make_run):
    run = make_run(aggregator="mean", budget=0.9)
    run.rewrite(0, lambda draft: draft.alter(0, "spent", (-1, 0), np.nan))
    step = step_of(run, 0, 0)  # numpy's warnings are errors here
    assert step.budgets.active == step.contexts - 1
    assert "not a number" in printed(look_into_step(run.path, 0, 0))
    assert {objection.check for objection in step.objections} >= {"budget.sums", "budget.limit"}


# --- what is wrong with a run ---------------------------------------------------------------------


def test_objections_of_a_step_are_told_where_they_are(make_run, dpaudit):
    run = make_run(seed=1)
    run.rewrite(1, lambda draft: draft.edit(1, log_probability=-0.001))
    run.rehash()
    batch, step = batch_of(run, 1), step_of(run, 1, 1)
    assert {objection.step for objection in batch.objections} == {1}
    assert batch.objections == step.objections != ()
    code, out, _ = dpaudit("inspect", run.path, "--batch", 1)
    assert code == 0
    assert f"{batch.objections[0].check}, step 1" in out
    assert step_of(run, 1, 0).objections == ()
    failed = [check.id for check in run.audit().checks if check.status == "fail"]
    assert failed == [batch.objections[0].check]


def test_a_token_that_is_not_in_the_support(make_run):
    run = make_run(top_k=5)
    with RunReader(run.path).batch(0) as batch:
        support = batch.step(0).support
    absent = next(token for token in range(run.spec.vocabulary) if token not in support)
    run.rewrite(0, lambda draft: draft.edit(0, token=absent))
    step = step_of(run, 0, 0)
    assert (step.sampled, step.cost.exact) == (None, None)
    assert "not among the 5 allowed tokens" in " ".join(
        printed(look_into_step(run.path, 0, 0)).split()
    )
    assert batch_of(run, 0).cost.exact is None


def test_a_step_of_nothing_but_nan_is_shown(make_run):
    run = make_run()
    run.rewrite(0, lambda draft: draft.alter(0, "central", slice(None), np.nan))
    step = step_of(run, 0, 0)  # numpy's warnings are errors here
    assert all(math.isnan(token.probability) for token in step.top(10))
    assert "not a number" in printed(look_into_step(run.path, 0, 0))


def test_a_step_without_a_cost_comes_before_the_costliest(make_run):
    run = make_run(seed=1)
    run.rewrite(1, lambda draft: draft.alter(2, "central", slice(None), np.nan))
    batch = batch_of(run, 1)
    assert batch.costs[2].exact is None
    assert look_into_batch(run.path, 1).deeper.endswith("--step 2")
    assert cost_of(None) == cost_of(math.nan) == math.inf


def test_a_recorded_probability_that_is_nonsense_is_shown(make_run):
    run = make_run()
    run.rewrite(0, lambda draft: draft.edit(0, log_probability=1e4))
    assert "recorded as infinite" in " ".join(printed(look_into_step(run.path, 0, 0)).split())


def test_tokens_of_equal_value_share_their_rank(make_run):
    run = make_run()
    run.rewrite(0, lambda draft: draft.alter(0, "central", slice(None), 0.0))
    step = step_of(run, 0, 0)
    assert {token.rank for token in step.top(1000)} == {1}


def test_replacing_a_context_moves_a_mean_by_two_of_its_logits(make_run):
    one, two = (
        step_of(make_run(aggregator="mean", contexts=True, sizes=(4, 4), rule=rule))
        for rule in ("hashed-cells", "hashed-slots")
    )
    assert (one.neighbours.contexts, two.neighbours.contexts) == (1, 1)
    assert (one.neighbours.change, two.neighbours.change) == ("add_remove", "replace")

    def reach(step):
        return max(token.upper - token.lower for token in step.top(1000))

    assert reach(two) == pytest.approx(2 * reach(one))


def test_more_changed_contexts_than_costs_are_worked_out_for(make_run, monkeypatch):
    run = make_run(unit="user", records_per_user=3, width=5)
    assert batch_of(run, 0).neighbours.problem == ""
    monkeypatch.setattr("dpaudit.api.steps.MOST_CONTEXTS", 2)
    batch = batch_of(run, 0)
    assert re.match(r"3 changed contexts .*than the 2 ", batch.neighbours.problem)
    monkeypatch.setattr("dpaudit.api.steps.MOST_CONTEXTS", 3)
    assert batch_of(run, 0).neighbours.problem == ""


def test_a_tokens_text_is_cut(make_run):
    run = make_run()
    tokenizer = json.loads((run / "tokenizer.json").read_text())
    words = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {
        (word + "x" * 300 if word.startswith("w") else word): number
        for word, number in words.items()
    }
    tokenizer["model"]["unk_token"] = "w0" + "x" * 300
    (run / "tokenizer.json").write_text(json.dumps(tokenizer))
    step = step_of(run, 0, 1)
    assert {len(token.text) for token in (*step.top(10), step.cost)} <= {LONGEST, len("<end>")}
    assert len(step.prefix) == LONGEST


def test_a_file_that_cannot_be_read_is_named(make_run):
    run = make_run()
    run.steps_file(0).write_bytes(b"PK")
    with pytest.raises(InputError, match=r"00000000\.zip"):
        look_into_batch(run.path, 0)


def test_a_bound_is_not_rounded_past_the_claim_it_stands_beside(make_run):
    mean = make_run(aggregator="mean")
    found = mean.audit().guarantees.approximate.epsilon
    mean.edit_manifest({"claim.epsilon": math.nextafter(found, math.inf)})
    mean.rehash()
    audited = mean.audit()
    assert audited.verdict == "pass"
    shown = re.search(r"ε ≤ ([\d.]+)", recomputed_words(audited.claim, audited.guarantees))
    assert float(shown[1]) <= audited.claim.epsilon


def test_a_batchs_sum_has_the_digits_of_its_run(make_run):
    run = make_run()
    run.edit_manifest({"claim.epsilon": math.nextafter(run.exact, math.inf)})
    audited = run.audit()
    costliest = max(audited.batches, key=lambda batch: batch.exact)
    shown = bound(costliest.exact, digits_against(costliest.exact, audited.claim.epsilon))
    assert len(shown) > len("0.1234")
    assert f"exact {shown} nats" in printed(look_into_batch(run.path, costliest.id), 200)


def test_numbers_that_are_none_are_shown(make_run):
    run = make_run()
    run.rewrite(0, lambda draft: draft.alter(0, "central", (slice(None), 0), np.nan))
    step = look_into_step(run.path, 0, 0, top=1000)
    assert step.figures["cost"].exact is None
    assert strict_json(step.to_json())["top"][-1]["center"] == "nan"
    assert "not a number" in printed(step)


def test_an_unfinished_run_is_shown_without_costs(make_run, tmp_path, dpaudit):
    generator = make_run.generator(sizes=(4, 5, 3))
    with generator.create(tmp_path / "run") as writer:
        generator.batch(writer, 0)
    assert open_run(tmp_path / "run").batches[0].cost.exact > 0
    assert dpaudit("inspect", tmp_path / "run", "--batch", 0)[0] == 0
    code, _, err = dpaudit("inspect", tmp_path / "run", "--batch", 1)
    assert code == 2
    assert "no batch 1; 1 is on disk" in err and "Name 0 with --batch." in err


def test_the_batches_of_an_unfinished_run_are_named(make_run, tmp_path, dpaudit):
    generator = make_run.generator(sizes=(2,) * 24)
    with generator.create(tmp_path / "run") as writer:
        for number in range(0, 24, 2):
            generator.batch(writer, number)
            if number == 4:
                assert (
                    "Name one of 0, 2, 4 with --batch."
                    in dpaudit("inspect", tmp_path / "run", "--batch", 1)[2]
                )
    err = dpaudit("inspect", tmp_path / "run", "--batch", 1)[2]
    assert "12 are on disk." in err
    assert "Name one of 0, 2, 4, 6, 8, 10, 12, 14, 16, 18 or one of 2 more with --batch." in err


def test_what_is_not_there_is_one_clear_error(make_run, dpaudit):
    for options, said in [
        (["--batch", "2"], "no batch 2; 2 are on disk. Name one from 0 to 1 with --batch"),
        (["--batch", "0", "--step", "3"], "no step 3. Name one from 0 to"),
        (["--step", "3"], "--batch"),
        (["--batch", "-1"], "--batch"),
        (["--batch", "0", "--step", "0", "--top", "0"], "--top"),
    ]:
        code, out, err = dpaudit("inspect", make_run().path, *options)
        assert (code, out) == (2, "")
        assert said in err


def test_a_run_or_a_batch_that_cannot_be_read_is_one_clear_error(make_run, dpaudit, tmp_path):
    for options in [["--batch", "0"], ["--batch", "0", "--step", "0"]]:
        code, out, err = dpaudit("inspect", tmp_path / "nowhere", *options)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "nowhere" in err
        run = make_run()
        run.steps_file(0).write_bytes(b"PK")
        code, out, err = dpaudit("inspect", run.path, *options)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "00000000.zip" in err


def test_only_the_batch_that_is_asked_for_is_read(make_run):
    run = make_run()
    run.steps_file(0).write_bytes(b"PK")
    assert batch_of(run, 1).cost.exact > 0
    with pytest.raises(InputError):
        batch_of(run, 0)


def test_only_the_step_that_is_asked_for_is_read(make_run, monkeypatch):
    run = make_run(seed=1)
    run.rechunk(1, monkeypatch)  # a step a chunk

    def spoil(entries):
        return [
            entry._replace(data=b"\0") if entry.name == "central/c/1/0/0" else entry
            for entry in entries
        ]

    run.rezip(1, spoil)
    assert step_of(run, 1, 0).cost.exact > 0
    with pytest.raises(InputError, match="step 1"):
        step_of(run, 1, 1)
    with pytest.raises(InputError, match="step 1"):
        batch_of(run, 1).read()


# --- what is printed ------------------------------------------------------------------------------


def each(run):
    return look_into_batch(run.path, 1), look_into_step(run.path, 1, 0)


def table_of(text):
    """The lines after the first table's header."""
    return re.split(r"^(?:step|rank) .*\n", text, maxsplit=1, flags=re.MULTILINE)[1]


def first_row(text):
    return table_of(text).split("\n")[0].split()


def test_every_line_fits_the_terminal(run):
    for width in [40, 80, 120]:
        for found in each(run):
            text = printed(found, width)
            assert all(len(line) <= width or "dpaudit report" in line for line in text.splitlines())


def test_no_figure_is_ever_cut(run):
    for found in each(run):
        wide = [line.split() for line in table_of(printed(found, 200)).splitlines()]
        for width in (40, 60, 80):
            below = table_of(printed(found, width))
            rows = [line.split() for line in below.splitlines()]
            # A row that goes on below begins with its first cell again.
            for row in wide:
                beside = {cell for other in rows if other[:1] == row[:1] for cell in other}
                assert set(row[:5]) <= beside or not re.fullmatch(r"\d+", row[0])
            assert "…" not in below


def test_the_costliest_stands_first_and_is_named_next(make_run, dpaudit):
    run = make_run(sizes=(2, 3, 8, 5))
    costliest = max(run.audit().batches, key=lambda batch: batch.exact)
    _, out, err = dpaudit("inspect", run.path, "--batch", costliest.id)
    step = max(batch_of(run, costliest.id).costs, key=lambda cost: cost.exact).step
    assert first_row(out)[0] == str(step)
    assert f"--batch {costliest.id} --step {step}\n" in err


def test_that_it_is_sensitive_is_said_beside_it(make_run, dpaudit):
    for options in [["--batch", "1"], ["--batch", "1", "--step", "0"]]:
        run = make_run()
        code, out, err = dpaudit("inspect", run.path, *options, "--json")
        assert code == 0
        assert strict_json(out)["run"] == str(run.path)
        assert "sensitive" in err
        # a warning, which --quiet keeps; no next command
        quiet = dpaudit("inspect", run.path, *options, "--quiet")[2]
        assert ("sensitive" in quiet, "Next" in quiet) == (True, False)


def test_a_batch_of_several_texts_says_where_each_begins_and_why_it_ended(make_run):
    run = make_run(max_tokens=4, tokens_per_batch=9)
    said = " ".join(printed(look_into_batch(run.path, 0)).split())
    assert [said.count(f"begins at step {step}") for step in (0, 3, 4, 7)] == [1, 1, 1, 1]
    assert "tokens were spent" in said and ", after 2 tokens; it begins" in said
    many = make_run(max_tokens=1, tokens_per_batch=9)
    assert "and 4 more texts; --json has" in printed(look_into_batch(many.path, 0))


def test_a_batch_says_why_it_ended(make_run):
    ends = {}
    for seed in range(12):
        run = make_run(seed=seed)
        for number in range(2):
            batch = batch_of(run, number)
            ends[batch.texts[0].stop] = (
                batch,
                " ".join(printed(look_into_batch(run.path, number)).split()),
            )
    batch, said = ends["max-tokens"]
    assert f"maximum length, after {len(batch.costs)} tokens" in said
    batch, said = ends["end-token"]
    end = batch.texts[0].tokens[-1:]
    assert f"the stop sequence {end[0]}" in said
    assert tuple(cost.token for cost in batch.costs[-len(end) :]) == end


def test_what_a_run_says_drives_neither_terminal_nor_table(make_run):
    run = make_run(sizes=(4, 5, 3))
    hostile = "[red]\x1b[2J\u202e<script>\n" + "x" * 900
    run.edit_manifest({"data.labels": [hostile]})
    for number in range(3):
        run.rewrite(number, lambda draft: object.__setattr__(draft.header, "label", hostile))
        run.rewrite(number, lambda draft: setattr(draft, "text", hostile))
    tokenizer = json.loads((run / "tokenizer.json").read_text())
    words = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {
        (f"\x1b[2J\u202e\n[b]{word}" if word.startswith("w") else word): number
        for word, number in words.items()
    }
    tokenizer["model"]["unk_token"] = "\x1b[2J\u202e\n[b]w0"
    (run / "tokenizer.json").write_text(json.dumps(tokenizer))
    for found in each(run):
        text = printed(found)
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert len(text) < 6000
        assert all(len(line) <= 80 or "dpaudit report" in line for line in text.splitlines())
    assert '"\\x1b[2J\\u202e\\n[b]w' in printed(look_into_step(run.path, 1, 0))
