"""`dpaudit inspect`: its figures are the audit's, it reads what it is asked for, and what a run says drives nothing."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
from rich.console import Console

from dpaudit.api.reading import LONGEST, open_run
from dpaudit.cli import main
from dpaudit.reports import inspection
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


def printed(found, width=80):
    console = Console(width=width, record=True, force_terminal=False, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        inspection.print_found(found, console)
        return console.export_text()


# --- the figures ------------------------------------------------------------------------------------------------------


def test_a_runs_figures_are_the_audits(run):
    found, audited = open_run(run.path).inspect(), run.audit()
    assert found.batches == audited.batches
    assert (found.ex_post, found.approximate) == (audited.guarantees.ex_post, audited.guarantees.approximate)
    assert (found.verdict, found.claim) == (audited.verdict, audited.claim)
    assert found.problems == ()


def test_a_batchs_figures_are_the_audits(run):
    for audited in run.audit().batches:
        found = open_run(run.path).batches[audited.id].inspect()
        assert (found.theorem1, found.exact, found.rise, found.fall) == (
            audited.theorem1,
            audited.exact,
            audited.rise,
            audited.fall,
        )
        assert [found.label, found.contexts, len(found.costs)] == [audited.label, audited.contexts, audited.steps]
        assert (abs(found.worst[0].loss) if found.worst else None) == audited.leave_one_out_max
        assert found.objections == ()
        assert found.exact <= math.nextafter(sum(cost.exact for cost in found.costs), math.inf) * (1 + 1e-9)
        (text,) = found.texts
        assert (text.end == ()) == (text.stop == "max-tokens")


def test_a_steps_figures_are_its_batchs(run):
    batch = open_run(run.path).batches[1].inspect()
    for cost in batch.costs:
        step = open_run(run.path).batches[1].steps[cost.step].inspect(top=1000)
        assert step.cost == cost
        assert math.exp(cost.log_probability) == pytest.approx(step.sampled.probability)
        assert step.sampled in step.top
        assert len(step.top) == step.support
        assert sum(token.probability for token in step.top) == pytest.approx(1)
        assert [token.rank for token in step.top] == sorted(token.rank for token in step.top)
        assert all(token.lower <= token.center <= token.upper for token in step.top)
        assert step.movable == sum(token.lower < token.upper for token in step.top)


def test_costs_can_be_worked_out_from_what_a_step_shows(run):
    """Theorem 1's two sides, from the bounds alone: what is shown is what was charged for."""
    for number in range(len(open_run(run.path).batches[0].inspect().costs)):
        step = open_run(run.path).batches[0].steps[number].inspect(top=1000)
        scale = step.temperature

        def log_sum(values, scale=scale):
            return float(np.logaddexp.reduce(np.array(values) / scale))

        lower, center, upper = ([getattr(token, name) for token in step.top] for name in ("lower", "center", "upper"))
        x = step.sampled
        up = (x.upper - x.center) / scale + log_sum(center) - log_sum(lower)
        down = (x.center - x.lower) / scale - log_sum(center) + log_sum(upper)
        assert step.cost.theorem1 == pytest.approx(max(up, down))


def test_a_change_of_several_contexts_moves_tokens_further(make_run):
    one, two = make_run(width=3), make_run(width=3, unit="user", records_per_user=2)
    near, far = open_run(one.path).batches[0].steps[0].inspect(), open_run(two.path).batches[0].steps[0].inspect()
    assert (near.neighbours.contexts, far.neighbours.contexts) == (1, 2)
    assert [t.center for t in near.top] == [t.center for t in far.top]
    assert sum(t.upper - t.lower for t in far.top) > sum(t.upper - t.lower for t in near.top)
    assert far.cost.exact > near.cost.exact


def test_tokens_are_decoded_with_the_runs_tokenizer(make_run):
    run = make_run()
    batch = open_run(run.path).batches[0].inspect()
    assert [cost.text for cost in batch.costs] == [
        "<end>" if cost.token == run.spec.end else f"w{cost.token}" for cost in batch.costs
    ]
    step = open_run(run.path).batches[0].steps[1].inspect()
    assert step.prefix == batch.costs[0].text
    bare = open_run(make_run(text=False).path).batches[0].steps[1].inspect()
    assert (bare.prefix, bare.sampled.text) == (None, None)


def test_where_nothing_bounds_a_change_there_is_no_cost_and_a_reason(make_run):
    run = make_run(rule="paper-slices", unit="context", sizes=(4, 4))
    run.edit_manifest({"claim.unit": "record"})
    batch, step = open_run(run.path).batches[0].inspect(), open_run(run.path).batches[0].steps[0].inspect()
    assert "paper-slices" in batch.neighbours.problem
    assert (batch.exact, step.cost.exact, step.movable) == (None, None, None)
    assert {(t.lower, t.upper) for t in step.top} == {(None, None)}
    assert "no cost, for nothing bounds" in printed(batch)
    narrow = make_run(width=2)
    narrow.edit_manifest({"privacy.records_per_user": 5, "claim.unit": "user"})
    assert "record.width 2" in open_run(narrow.path).batches[0].inspect().neighbours.problem


def test_a_step_says_who_took_part_and_what_is_spent(make_run):
    assert open_run(make_run().path).batches[0].steps[0].inspect().budgets is None
    run = make_run(aggregator="mean", sizes=(6, 0), budget=0.9, max_tokens=12)
    assert open_run(run.path).batches[1].steps[0].inspect().budgets is None, "a batch without contexts"
    assert "budget of rho 0.9 for every context" in " ".join(open_run(run.path).inspect().mechanism)
    active = []
    with RunReader(run.path).batch(0) as batch:
        for position, step in enumerate(batch.steps()):
            shown = open_run(run.path).batches[0].steps[position].inspect()
            active.append(shown.budgets.active)
            assert active[-1] == step.active.sum()
            shares = sorted(step.spent[1] / 0.9)
            assert (shown.budgets.spent, shown.budgets.budget) == ((shares[0], shares[3], shares[-1]), 0.9)
            said = " ".join(printed(shown).split())
            assert f"{active[-1]} of 6 contexts took part" in said and "spent after it:" in said
    assert active[0] == 6 > active[-1]


def test_sums_that_are_no_numbers_are_shown(make_run):
    run = make_run(aggregator="mean", budget=0.9)
    run.rewrite(0, lambda draft: draft.alter(0, "spent", (-1, 0), np.nan))
    step = open_run(run.path).batches[0].steps[0].inspect()  # numpy's warnings are errors here
    assert step.budgets.active == step.contexts - 1
    assert "not a number" in printed(step)
    assert {objection.check for objection in step.objections} >= {"budget.sums", "budget.limit"}


# --- what is wrong with a run -----------------------------------------------------------------------------------------


def test_objections_of_a_step_are_told_where_they_are(make_run, dpaudit):
    run = make_run(seed=1)
    run.rewrite(1, lambda draft: draft.edit(1, log_probability=-0.001))
    run.rehash()
    batch, step = open_run(run.path).batches[1].inspect(), open_run(run.path).batches[1].steps[1].inspect()
    assert {objection.step for objection in batch.objections} == {1}
    assert batch.objections == step.objections != ()
    code, out, _ = dpaudit("inspect", run.path, "--batch", 1)
    assert code == 0
    assert f"{batch.objections[0].check}, step 1" in out
    assert open_run(run.path).batches[1].steps[0].inspect().objections == ()
    assert [check.id for check in open_run(run.path).inspect().problems] == [batch.objections[0].check]


def test_a_token_that_is_not_in_the_support(make_run):
    run = make_run(top_k=5)
    with RunReader(run.path).batch(0) as batch:
        support = batch.step(0).support
    absent = next(token for token in range(run.spec.vocabulary) if token not in support)
    run.rewrite(0, lambda draft: draft.edit(0, token=absent))
    step = open_run(run.path).batches[0].steps[0].inspect()
    assert (step.sampled, step.cost.exact) == (None, None)
    assert "not among the 5 tokens" in " ".join(printed(step).split())
    assert open_run(run.path).batches[0].inspect().exact is None


def test_a_step_of_nothing_but_nan_is_shown(make_run):
    run = make_run()
    run.rewrite(0, lambda draft: draft.alter(0, "central", slice(None), np.nan))
    step = open_run(run.path).batches[0].steps[0].inspect()  # numpy's warnings are errors here
    assert all(math.isnan(token.probability) for token in step.top)
    assert "not a number" in printed(step)


def test_a_step_without_a_cost_comes_before_the_costliest(make_run):
    run = make_run(seed=1)
    run.rewrite(1, lambda draft: draft.alter(2, "central", slice(None), np.nan))
    batch = open_run(run.path).batches[1].inspect()
    assert batch.costs[2].exact is None
    assert inspection.deeper(batch).endswith("--step 2")
    for nothing in (None, math.nan):
        costs = [cost.model_copy(update={"exact": nothing if cost.step == 1 else 1.0}) for cost in batch.costs]
        assert inspection.deeper(batch.model_copy(update={"costs": tuple(costs)})).endswith("--step 1")


def test_a_recorded_probability_that_is_nonsense_is_shown(make_run):
    run = make_run()
    run.rewrite(0, lambda draft: draft.edit(0, log_probability=1e4))
    assert "recorded as infinite" in " ".join(printed(open_run(run.path).batches[0].steps[0].inspect()).split())


def test_tokens_of_equal_value_share_their_rank(make_run):
    run = make_run()
    run.rewrite(0, lambda draft: draft.alter(0, "central", slice(None), 0.0))
    step = open_run(run.path).batches[0].steps[0].inspect(top=1000)
    assert {token.rank for token in step.top} == {1}


def test_replacing_a_context_moves_a_mean_by_two_of_its_logits(make_run):
    one, two = (
        open_run(make_run(aggregator="mean", contexts=True, sizes=(4, 4), rule=rule).path)
        .batches[0]
        .steps[0]
        .inspect(top=1000)
        for rule in ("hashed-cells", "hashed-slots")
    )
    assert (one.neighbours.contexts, two.neighbours.contexts) == (1, 1)
    assert (one.neighbours.change, two.neighbours.change) == ("add_remove", "replace")

    def reach(step):
        return max(token.upper - token.lower for token in step.top)

    assert reach(two) == pytest.approx(2 * reach(one))


def test_more_changed_contexts_than_costs_are_worked_out_for(make_run, monkeypatch):
    run = make_run(unit="user", records_per_user=3, width=5)
    assert open_run(run.path).batches[0].inspect().neighbours.problem == ""
    monkeypatch.setattr("dpaudit.api.reading.MOST_CONTEXTS", 2)
    batch = open_run(run.path).batches[0].inspect()
    assert re.match(r"3 changed contexts .*than the 2 ", batch.neighbours.problem)
    monkeypatch.setattr("dpaudit.api.reading.MOST_CONTEXTS", 3)
    assert open_run(run.path).batches[0].inspect().neighbours.problem == ""


def test_a_tokens_text_is_cut(make_run):
    run = make_run()
    tokenizer = json.loads((run / "tokenizer.json").read_text())
    words = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {
        (word + "x" * 300 if word.startswith("w") else word): number for word, number in words.items()
    }
    tokenizer["model"]["unk_token"] = "w0" + "x" * 300
    (run / "tokenizer.json").write_text(json.dumps(tokenizer))
    step = open_run(run.path).batches[0].steps[1].inspect()
    assert {len(token.text) for token in (*step.top, step.cost)} <= {LONGEST, len("<end>")}
    assert len(step.prefix) == LONGEST


def test_a_needed_check_that_was_not_made_is_named(make_run):
    run = make_run()
    run.steps_file(0).write_bytes(b"PK")
    found = open_run(run.path).inspect()
    skipped = [check for check in found.problems if check.status == "skip"]
    assert "release.selection" in [check.id for check in skipped]
    assert all(check.applicable and check.evidence <= 2 for check in skipped)
    said = " ".join(printed(found, 300).split())
    assert "not made release.selection" in said
    assert "00000000.zip" in said


def test_a_bound_is_not_rounded_past_the_claim_it_stands_beside(make_run):
    mean = make_run(aggregator="mean")
    found = open_run(mean.path).inspect().approximate.epsilon
    mean.edit_manifest({"claim.epsilon": math.nextafter(found, math.inf)})
    mean.rehash()
    run = open_run(mean.path).inspect()
    assert run.verdict == "pass"
    shown = next(line for line in printed(run, 200).splitlines() if "approximate" in line and "at δ" in line)
    assert float(shown.split()[1]) <= run.claim.epsilon


def test_a_batchs_sum_has_the_digits_of_its_run(make_run):
    run = make_run()
    run.edit_manifest({"claim.epsilon": math.nextafter(run.exact, math.inf)})
    costliest = max(open_run(run.path).inspect().batches, key=lambda batch: batch.exact)
    shown = printed(open_run(run.path).inspect(), 200).partition("──\n")[2].split()[3]
    assert len(shown) > len("0.1234")
    assert f"exact {shown} nats" in printed(open_run(run.path).batches[costliest.id].inspect(), 200)


def test_numbers_that_are_none_are_shown(make_run):
    run = make_run()
    run.rewrite(0, lambda draft: draft.alter(0, "central", (slice(None), 0), np.nan))
    step = open_run(run.path).batches[0].steps[0].inspect(top=1000)
    assert step.cost.exact is None
    assert strict_json(step.to_json())["top"][-1]["center"] == "nan"
    assert "not a number" in printed(step)


def test_an_unfinished_run_is_shown_without_costs(make_run, tmp_path, dpaudit):
    generator = make_run.generator(sizes=(4, 5, 3))
    with generator.create(tmp_path / "run") as writer:
        generator.batch(writer, 0)
    found = open_run(tmp_path / "run").inspect()
    assert (found.verdict, found.claim, len(found.batches), found.declared) == (None, None, 1, 3)
    assert found.batches[0].exact is None
    assert open_run(tmp_path / "run").batches[0].inspect().exact > 0
    code, out, _ = dpaudit("inspect", tmp_path / "run")
    assert code == 0
    assert "1 of 3 batches on disk" in out
    assert "not finished" in out
    code, _, err = dpaudit("inspect", tmp_path / "run", "--batch", 1)
    assert code == 2
    assert "no batch 1; 1 is on disk" in err and "Name 0 with --batch." in err


def test_the_batches_of_an_unfinished_run_are_named(make_run, tmp_path, dpaudit):
    generator = make_run.generator(sizes=(2,) * 24)
    with generator.create(tmp_path / "run") as writer:
        for number in range(0, 24, 2):
            generator.batch(writer, number)
            if number == 4:
                assert "Name one of 0, 2, 4 with --batch." in dpaudit("inspect", tmp_path / "run", "--batch", 1)[2]
    err = dpaudit("inspect", tmp_path / "run", "--batch", 1)[2]
    assert "12 are on disk." in err
    assert "Name one of 0, 2, 4, 6, 8, 10, 12, 14, 16, 18 or one of 2 more with --batch." in err


def test_what_is_not_there_is_one_clear_error(make_run, dpaudit):
    for options, said in [
        (["--batch", "2"], "no batch 2; 2 are on disk. Name one from 0 to 1 with --batch"),
        (["--batch", "0", "--step", "3"], "no step 3. Name one from 0 to"),
        (["--step", "3"], "give --batch too"),
        (["--batch", "-1"], "--batch"),
        (["--batch", "0", "--step", "0", "--top", "0"], "--top"),
    ]:
        code, out, err = dpaudit("inspect", make_run().path, *options)
        assert (code, out) == (2, "")
        assert said in err


def test_a_run_or_a_batch_that_cannot_be_read_is_one_clear_error(make_run, dpaudit, tmp_path):
    for options in [[], ["--batch", "0"], ["--batch", "0", "--step", "0"]]:
        code, out, err = dpaudit("inspect", tmp_path / "nowhere", *options)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "nowhere" in err
        run = make_run()
        run.steps_file(0).write_bytes(b"PK")
        code, out, err = dpaudit("inspect", run.path, *options)
        if options:
            assert (code, out, err.count("\n")) == (2, "", 1)
            assert "00000000.zip" in err
        else:  # the other batch and what is wrong are shown
            assert code == 0
            assert "integrity.format" in out


def test_only_the_batch_that_is_asked_for_is_read(make_run):
    run = make_run()
    run.steps_file(0).write_bytes(b"PK")
    assert open_run(run.path).batches[1].inspect().exact > 0
    with pytest.raises(InputError):
        open_run(run.path).batches[0].inspect()


def test_only_the_step_that_is_asked_for_is_read(make_run):
    run = make_run(seed=1)

    def spoil(entries):
        return [entry._replace(data=b"\0") if entry.name == "central/c/1/0/0" else entry for entry in entries]

    run.rezip(1, spoil)
    assert open_run(run.path).batches[1].steps[0].inspect().cost.exact > 0
    with pytest.raises(InputError, match="step 1"):
        open_run(run.path).batches[1].steps[1].inspect()
    with pytest.raises(InputError, match="step 1"):
        open_run(run.path).batches[1].inspect()


# --- what is printed --------------------------------------------------------------------------------------------------


def each(run):
    return (
        open_run(run.path).inspect(),
        open_run(run.path).batches[1].inspect(),
        open_run(run.path).batches[1].steps[0].inspect(),
    )


def test_every_line_fits_the_terminal(run):
    for width in [40, 80, 120]:
        for found in each(run):
            text = printed(found, width)
            assert all(len(line) <= width for line in text.splitlines())


def test_no_figure_is_ever_cut(run):
    for found in each(run):
        wide = [line.split() for line in printed(found, 200).partition("──\n")[2].splitlines()]
        for width in (40, 60, 80):
            below = printed(found, width).partition("──\n")[2]
            rows = [line.split() for line in below.splitlines()]
            # A row that goes on below begins with its first cell again.
            for row in wide:
                beside = {cell for other in rows if other[:1] == row[:1] for cell in other}
                assert set(row[:5]) <= beside or not re.fullmatch(r"\d+", row[0])
            assert "…" not in below


def test_the_costliest_stands_first_and_is_named_next(make_run, dpaudit):
    run = make_run(sizes=(2, 3, 8, 5))
    _, out, err = dpaudit("inspect", run.path)
    costliest = max(run.audit().batches, key=lambda batch: batch.exact)
    first = out.partition("──\n")[2].split()[0]
    assert first == str(costliest.id)
    assert f"dpaudit inspect {run.path} --batch {costliest.id}\n" in err
    _, out, err = dpaudit("inspect", run.path, "--batch", costliest.id)
    step = max(open_run(run.path).batches[costliest.id].inspect().costs, key=lambda cost: cost.exact).step
    assert out.partition("──\n")[2].split()[0] == str(step)
    assert f"--batch {costliest.id} --step {step}\n" in err


def test_that_it_is_sensitive_is_said_beside_it(make_run, dpaudit):
    for options in [[], ["--batch", "1"], ["--batch", "1", "--step", "0"]]:
        run = make_run()
        code, out, err = dpaudit("inspect", run.path, *options, "--json")
        assert code == 0
        assert strict_json(out)["run"] == str(run.path)
        assert "sensitive" in err
        quiet = dpaudit("inspect", run.path, *options, "--quiet")[2]  # a warning, which --quiet keeps; no next command
        assert ("sensitive" in quiet, "Next" in quiet) == (True, False)


def test_a_batch_of_several_texts_says_where_each_begins_and_why_it_ended(make_run):
    run = make_run(max_tokens=4, tokens_per_batch=9)
    said = " ".join(printed(open_run(run.path).batches[0].inspect()).split())
    assert [said.count(f"begins at step {step}") for step in (0, 3, 4, 7)] == [1, 1, 1, 1]
    assert "tokens were spent" in said and ", after 2 tokens; it begins" in said
    said = " ".join(printed(open_run(run.path).inspect()).split())
    assert "9 tokens a batch, " in said and "of at most 4" in said and "contexts texts tokens" in said
    many = make_run(max_tokens=1, tokens_per_batch=9)
    assert "and 4 more texts; --json has" in printed(open_run(many.path).batches[0].inspect())


def test_a_batch_says_why_it_ended(make_run):
    ends = {}
    for seed in range(12):
        run = make_run(seed=seed)
        for number in range(2):
            batch = open_run(run.path).batches[number].inspect()
            ends[batch.texts[0].stop] = batch, " ".join(printed(batch).split())
    batch, said = ends["max-tokens"]
    assert f"maximum length, after {len(batch.costs)} tokens" in said
    batch, said = ends["end-token"]
    end = batch.texts[0].end
    assert f"the stop sequence {end[0]}" in said
    assert tuple(cost.token for cost in batch.costs[-len(end) :]) == end


def test_what_a_run_says_drives_neither_terminal_nor_table(make_run):
    run = make_run(sizes=(4, 5, 3))
    hostile = "[red]\x1b[2J\u202e<script>\n" + "x" * 900
    run.edit_manifest({"batching.labels": [hostile]})
    for number in range(3):
        run.rewrite(number, lambda draft: object.__setattr__(draft.header, "label", hostile))
        run.rewrite(number, lambda draft: setattr(draft, "text", hostile))
    tokenizer = json.loads((run / "tokenizer.json").read_text())
    words = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {
        (f"\x1b[2J\u202e\n[b]{word}" if word.startswith("w") else word): number for word, number in words.items()
    }
    tokenizer["model"]["unk_token"] = "\x1b[2J\u202e\n[b]w0"
    (run / "tokenizer.json").write_text(json.dumps(tokenizer))
    for found in each(run):
        text = printed(found)
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert len(text) < 6000
        assert all(len(line) <= 80 for line in text.splitlines())
    assert '"\\x1b[2J\\u202e\\n[b]w' in printed(open_run(run.path).batches[1].steps[0].inspect())
