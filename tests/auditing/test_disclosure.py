"""A public report holds only what is public, and a check looks through what it would say."""

from __future__ import annotations

import io
import json
import math
import re
import shlex
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from dpaudit.auditing.checks import disclosure
from dpaudit.auditing.disclosure import public_form
from dpaudit.auditing.run import Question, audit_run
from dpaudit.commands.cli import main
from dpaudit.reports.machine import render_sarif
from dpaudit.reports.terminal import summary
from dpaudit.reports.write import write_reports
from dpaudit.reports.writers.terminal import print_document
from dpaudit.results import AuditResult, CheckResult, Finding, Quantity, RunSummary
from dpaudit.results.rounding import bound, lower_bound, nearest
from dpaudit.runs import Assigned, DecodingRules, KeyedHash, RunReader, data_digest
from tests.nesting import read_run

Run = Any
#: Numbers that stand out, so that finding one in a report is no coincidence.
SIZES, RECORDS = (1021, 1031), 2237
KINDS: dict[str, dict[str, Any]] = {
    "median": {},
    "median, beforehand": {},
    "median, failing": {},
    "median, contexts": {"contexts": True},
    "mean": {"aggregator": "mean"},
    "budgets": {"aggregator": "mean", "budget": 0.9137},
    "user": {"unit": "user", "records_per_user": 2, "width": 3},
    "secret median": {"secret": True},
    "secret median, beforehand": {"secret": True},
    "secret mean": {"aggregator": "mean", "secret": True},
}


def manifest(run: Run) -> dict[str, Any]:
    return dict(read_run(run))


def settings(result: AuditResult) -> dict[str, Any]:
    """The settings that a result tells."""
    assert result.run.settings is not None
    return result.run.settings.model_dump(mode="json", exclude_none=True)


def keyed(run: Run) -> KeyedHash:
    return KeyedHash(bytes.fromhex(manifest(run)["batching"]["key"]))


def enlarge(run: Run) -> None:
    """Records that no generated batch takes, up to the number that stands out."""
    hashing, batching = keyed(run), manifest(run)["batching"]
    assigned = list(RunReader(run.path).assignment())
    number = 0
    while len(assigned) < RECORDS:
        number += 1
        digest = hashing.digest("a", f"another record, {number}")
        if (
            hashing.of_round(0).batch(digest, batching["batches_per_label"])
            >= batching["generate_per_label"]
        ):
            assigned.append(Assigned(digest, None, None))
    assigned.sort(key=lambda one: one.digest)
    (run / "assignment").write_text("".join(one.line() for one in assigned))
    digest = data_digest(one.digest for one in assigned)
    run.edit_manifest({"data.records": RECORDS, "data.digest": digest})


def distinctive(make_run: Callable[..., Run], kind: str) -> Run:
    """A run of some kind whose private strings and numbers cannot be taken for others."""
    run = make_run(sizes=SIZES, max_tokens=8, **KINDS[kind])
    enlarge(run)
    if kind in ("median", "median, contexts", "secret median"):
        run.edit_manifest({"claim.epsilon": 76.5432})
    if kind.endswith("median, beforehand"):
        run.edit_manifest({"claim.epsilon": 123.0, "claim_stated": "beforehand"})
    if kind == "median, failing":
        run.edit_manifest({"claim.epsilon": 0.0, "claim_stated": "beforehand"})
    if kind == "secret mean":
        run.edit_manifest({"claim.batch_epsilon": 321.0})
    if kind in ("mean", "budgets", "secret mean"):
        run.edit_manifest({"claim.epsilon": 123.0, "claim.delta": 1e-5})
    if kind == "user":
        run.edit_manifest(
            {"claim.unit": "user", "privacy.unit": "user", "privacy.records_per_user_from": "data"}
        )
    run.rehash()
    return run


def private_strings(run: Run) -> Iterator[str]:
    reader = RunReader(run.path)
    held = manifest(run)
    for digest in (
        held["batching"]["key"],
        held["data"]["digest"],
        *reader.hashes().digests.values(),
    ):
        yield from (digest, digest[:12])
    for assigned in reader.assignment():
        yield assigned.digest[:12]
    yield from (str(run.path), run.path.parent.name, "another record", "record 0")
    for sample in reader.samples():
        yield from filter(
            None,
            (sample.text, ", ".join(map(str, sample.tokens)) if len(sample.tokens) > 2 else ""),
        )


def private_numbers(run: Run, result: AuditResult) -> Iterator[float]:
    ex_post, empirical = result.guarantees.ex_post, result.guarantees.empirical
    assert ex_post is not None
    yield from (RECORDS, *SIZES, sum(SIZES), 1 / RECORDS)
    yield from (ex_post.theorem1, ex_post.exact, ex_post.rise, ex_post.fall, ex_post.batch_epsilon)
    yield ex_post.epsilon
    yield from (loss.loss for loss in empirical.worst)
    yield empirical.leave_one_out_max or 0.0
    for batch in result.batches:
        yield from filter(
            None, (batch.exact, batch.theorem1, batch.rise, batch.fall, batch.leave_one_out_max)
        )
    if result.tokens is not None:
        for series in (
            result.tokens.mean,
            result.tokens.maximum,
            result.tokens.theorem1,
            result.tokens.exact,
        ):
            yield from series
    if (use := result.budgets) is not None:
        yield from (use.left_out, use.moved, *use.active, *use.fewest)
    reader = RunReader(run.path)
    if reader.manifest.claim_stated == "afterwards" and reader.manifest.claim is not None:
        yield reader.manifest.claim.epsilon
    for batch_id in reader.batches:
        with reader.batch(batch_id) as batch:
            for step in batch.steps():
                yield step.log_probability
                for values in (*step.arrays.values(), step.contexts):
                    if values is not None:
                        yield from map(float, values.reshape(-1)[:50])


def public_numbers(result: AuditResult) -> Iterator[float]:
    """Costs of a mean run that do not depend on the data.

    By Theorem 1, every token costs its public range.
    """
    if result.guarantees.approximate is not None and result.tokens is not None:
        yield from result.tokens.theorem1
        yield from (
            batch.theorem1 for batch in result.batches if batch.theorem1 in result.tokens.theorem1
        )


@cache  # every file of every report is searched for the same ones
def spellings(number: float) -> set[str]:
    """All printed spellings of a number that has the four or more digits to be recognised by."""
    found = {
        repr(number),
        f"{number:g}",
        f"{number:,}",
        lower_bound(number),
        nearest(number, 3),
        nearest(number),
    }
    found |= {bound(number, digits) for digits in range(4, 12)} | {
        f"{number:.{places}f}" for places in range(2, 8)
    }
    found |= {spelt.lstrip("-") for spelt in found}
    return {spelt for spelt in found if told(spelt)}


def told(spelt: str) -> bool:
    """Whether a number has the digits to be recognised by."""
    return len(re.sub(r"e.*|\D", "", spelt).strip("0")) >= 4


def leaks(text: str, strings: Iterable[str], numbers: Iterable[float]) -> set[str]:
    """Which of these a text holds; numbers only where they stand by themselves."""
    printed = filter(told, set(re.findall(r"\d[\d.,]*\d(?:e[-+]?\d+)?", text)))
    known = sorted(filter(math.isfinite, {*numbers}), key=abs)
    sizes = np.abs(known)
    # most strings begin with nothing that the text has
    begun = {text[at : at + 8] for at in range(len(text))}
    found = {each for each in strings if (len(each) < 8 or each[:8] in begun) and each in text}
    for spelt in printed:
        with suppress(ValueError):
            value = float(spelt.replace(",", ""))
            # four digits or more are no further off than a thousandth
            first, last = np.searchsorted(sizes, (0.998 * value, 1.002 * value))
            if any(spelt in spellings(number) for number in known[first : last + 1]):
                found.add(spelt)
    return found


def documents(result: AuditResult, folder: Path) -> dict[str, str]:
    """Everything that is written or printed of a result."""
    found = {path.name: path.read_text("utf-8") for path in write_reports(result, folder).values()}
    console = Console(width=80, record=True, file=io.StringIO())
    print_document(summary(result), console)
    return found | {"sarif": render_sarif(result), "terminal": console.export_text()}


def check_of(result: AuditResult) -> CheckResult:
    (found,) = [check for check in result.checks if check.id == "disclosure.sensitive"]
    return found


# --- what a public report holds -------------------------------------------------------------------


@pytest.mark.usefixtures("empty_figures")  # which stand encoded in a page: no text is found in them
@pytest.mark.parametrize("kind", KINDS)
def test_a_public_report_holds_no_private_string_or_number(make_run, tmp_path, kind):
    run = distinctive(make_run, kind)
    result = run.audit()
    assert result.verdict == ("fail" if kind == "median, failing" else "pass"), result.guarantee
    strings, numbers = set(private_strings(run)), set(private_numbers(run, result))
    public = {spelt for number in public_numbers(result) for spelt in spellings(number)}
    written = documents(public_form(result), tmp_path / "public")
    assert written.keys() == {
        "report.html",
        "report.json",
        "report.md",
        "junit.xml",
        "sarif",
        "terminal",
    }
    found = {name: leaks(text, strings, numbers) - public for name, text in written.items()}
    assert not any(found.values()), found
    # The search itself finds what is there, in figures or not.
    internal = documents(result, tmp_path / "internal")
    shown = {str(run.path), *bound(result.guarantees.ex_post.exact).split()}
    assert shown & leaks(internal["report.html"], strings, numbers)
    for name in ("report.html", "report.json", "report.md"):
        assert len(leaks(internal[name], strings, numbers)) > 5


def swapped(run: Run) -> None:
    steps = run / "steps"
    (steps / "00000000.zip").rename(steps / "kept")
    (steps / "00000001.zip").rename(steps / "00000000.zip")
    (steps / "kept").rename(steps / "00000001.zip")


def cut(run: Run) -> None:
    for name in ("steps/00000000.zip", "samples.jsonl", "assignment"):
        content = (run / name).read_bytes()
        (run / name).write_bytes(content[: len(content) * 2 // 3])


def without_a_batch(run: Run) -> None:
    (run / "steps/00000001.zip").unlink()


def unparsable(run: Run) -> None:
    (run / "run.json").write_text((run / "run.json").read_text()[:-40])


@pytest.mark.parametrize("damage", [swapped, cut, without_a_batch, unparsable])
@pytest.mark.parametrize("options", [[], ["--json"], ["--data", "records.csv"]], ids=" ".join)
def test_a_public_report_of_an_unreadable_run_prints_and_writes_nothing_private(
    make_run, tmp_path_factory, capfd, monkeypatch, damage, options
):
    if "--data" in options:
        pytest.importorskip("torch")
    run = distinctive(make_run, "median")
    result, strings = run.audit(), set(private_strings(run))
    numbers = set(private_numbers(run, result))
    damage(run)
    place = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(place)
    findings = ["--sarif", "findings.sarif"]
    assert (
        dpaudit("report", run.path, "--audience", "public", "--out", "public", *findings, *options)
        == 2
    )
    shown = dict(zip(("stdout", "stderr"), capfd.readouterr(), strict=True))
    shown |= {path.name: path.read_text("utf-8") for path in place.rglob("*") if path.is_file()}
    found = {name: leaks(text, strings, numbers) for name, text in shown.items()}
    assert not any(found.values()), found
    assert not any(re.search(r"header is of|steps/\d|\d\.zip", text) for text in shown.values())
    assert ("cannot be replayed" if "--data" in options else "integrity.") in shown["stderr"]


def codes(found):
    return {each.code for each in found}


def test_a_claim_is_public_if_it_was_fixed_beforehand(make_run):
    for kind, claim, code in [
        ("median", False, "verdict.public-withheld"),
        ("median, beforehand", True, "verdict.public-ex-post"),
        ("median, failing", True, "verdict.public-failed"),
        ("mean", True, "verdict.approximate"),
        ("user", False, "verdict.public-withheld"),
    ]:
        result = distinctive(make_run, kind).audit()
        public = public_form(result)
        assert public.guarantee.code == code
        assert (public.claim == result.claim) == claim
        assert (public.verdict, public.evidence, public.not_checked) == (
            result.verdict,
            result.evidence,
            result.not_checked,
        )
        assert public.guarantees.approximate == (
            result.guarantees.approximate if kind == "mean" else None
        )
        assert {tree.kind for tree in public.ledger} == (
            {"approximate"} if kind == "mean" else set()
        )
        assert "caveat.outcomes-private" in codes(public.caveats)
        assert ("caveat.no-figure" in codes(public.caveats)) == (not claim)


@pytest.mark.parametrize("epsilon", [999.0, 0.001])
@pytest.mark.parametrize("kind", ["median", "median, beforehand"])
def test_a_claim_that_was_asked_for_is_public_and_said_to_be_so(
    make_run, tmp_path, capfd, kind, epsilon
):
    run = distinctive(make_run, kind)
    result = run.audit()
    out = tmp_path / "out"
    code = dpaudit("report", run.path, "--audience", "public", "--out", out, "--epsilon", epsilon)
    assert code == (0 if epsilon == 999.0 else 1)
    public = AuditResult.model_validate_json((out / "report.json").read_text("utf-8"))
    assert public.claim is not None
    assert public.claim.epsilon == epsilon
    assert public.guarantee.code == ("verdict.public-failed" if code else "verdict.public-ex-post")
    if not code:
        assert public.guarantee.values["origin"] == Finding(code="verdict.given-to-the-audit")
        assert public.guarantee.values["epsilon"] == Quantity(value=999.0, unit="nats")
    assert ("empty-bound.factor" in codes(public.caveats)) == (code == 0)
    assert "caveat.claim-given" in codes(public.caveats)
    assert "of-claim.stated-afterwards" not in codes(public.caveats)
    shown = "".join([*capfd.readouterr(), *(path.read_text("utf-8") for path in out.iterdir())])
    assert not leaks(
        shown, set(private_strings(run)) - {run.path.parent.name}, private_numbers(run, result)
    )


def test_a_claim_is_withheld_where_a_figure_of_it_is_the_runs_own(make_run):
    for question, named in [
        (Question(), False),
        (Question(relation="add_remove"), False),
        (Question(delta=0.0), False),
        (Question(epsilon=999.0), True),
        (Question(epsilon=999.0, delta=0.0, relation="add_remove", unit="record"), True),
    ]:
        run = distinctive(make_run, "median")
        public = public_form(audit_run(run.path, question))
        assert (public.claim is not None) == named
        withheld = public.guarantee.values.get("why") == Finding(code="withheld.stated-afterwards")
        assert withheld == ("caveat.to-show-figure" in codes(public.caveats)) == (not named)
        run.edit_manifest({"chosen_from.settings": "private"})
        run.rehash()
        assert public_form(audit_run(run.path, question)).claim is None


def test_an_own_claim_beside_another_is_public_where_it_would_be_by_itself(make_run):
    run, asked = make_run(aggregator="mean"), Question(epsilon=999.0)
    assert public_form(audit_run(run.path, asked)).own_claim == run.audit().claim
    run.edit_manifest({"privacy.delta_from": "records"})
    run.rehash()
    assert public_form(audit_run(run.path, asked)).own_claim is None
    ex_post = distinctive(make_run, "median")
    assert public_form(audit_run(ex_post.path, asked)).own_claim is None


def test_users_counted_in_the_data_and_the_claim_for_them_are_private(make_run):
    run = make_run(aggregator="mean", unit="user", records_per_user=7, budget=0.01)
    declared = public_form(run.audit())
    assert declared.claim.records_per_user == 7 and declared.budgets is None
    assert "caveat.users-declared" in codes(declared.caveats)
    assert settings(declared)["privacy"]["records_per_user"] == 7
    run.edit_manifest({"privacy.records_per_user_from": "data"})
    run.rehash()
    counted = public_form(run.audit())
    assert counted.claim is None
    assert counted.guarantees.approximate is None
    assert "7 records" not in counted.to_json()
    assert "records_per_user" not in settings(counted)["privacy"]
    # Nor what was worked out from it.
    assert "width" in settings(declared)["record"] and "width" not in settings(counted)["record"]
    assert (
        "budget" in settings(declared)["mechanism"]
        and "budget" not in settings(counted)["mechanism"]
    )


def test_noise_that_is_scaled_by_counted_users_is_private_whatever_was_asked(make_run):
    run = make_run(aggregator="mean", clusters="public-centers-rebalanced", sizes=(3, 4, 5, 2))
    run.edit_manifest({
        "privacy.unit": "user",
        "privacy.records_per_user": 7,
        "privacy.records_per_user_from": "data",
        "clustering.counts.scale": 56.0,
    })  # fmt: skip
    run.rehash()
    found = public_form(audit_run(run.path, Question(unit="record")))
    assert found.claim is None and found.ledger == ()
    assert "scale 56" not in found.to_json()


def test_what_is_not_declared_public_is_left_out(make_run):
    run = make_run(aggregator="mean")
    whole = settings(public_form(run.audit()))
    batching = manifest(run)["batching"]
    assert whole["batching"].keys() == {
        name for name, value in batching.items() if value is not None
    } - {"key"}
    stated = {name for name, value in manifest(run).items() if value is not None}
    unpublished = {"claim", "claim_stated", "sensitivity", "nonce", "commitment", "redrawn"}
    assert whole.keys() == (stated - unpublished - {"format"}) | {"format_version"}
    assert whole["data"] == {"labels": manifest(run)["data"]["labels"]}
    assert whole["sampling"] == {"generator": "os-entropy"}
    run.edit_manifest({"chosen_from": {"batching": None, "settings": "private"}})
    run.rehash()
    public = public_form(run.audit())
    left = settings(public)
    assert left["batching"].keys() == {"rule"} and left["data"].keys() == {"labels"}
    assert not left.keys() & {"mechanism", "decoding", "record", "prompt"}
    assert left["model"] == {"trained_on_records": "unknown"}
    assert public.claim is None
    assert public.guarantees.approximate is None


def test_words_of_the_users_own_stay_in_the_run_directory(make_run):
    rules = DecodingRules(banned_words=("w9",), no_repeated_ngram=3)
    run = make_run(top_k=5, rules=rules)
    public = settings(public_form(run.audit()))
    lengths = {
        "max_tokens": run.spec.max_tokens,
        "sequences": [list(each) for each in run.spec.sequences],
    }
    assert public["decoding"] == {
        "least_tokens": 0,
        "no_line_breaks": False,
        "no_repeated_ngram": 3,
        **lengths,
    }
    assert "public" not in public["prompt"]


def test_noisy_counts_and_centres_stay_in_the_run_directory(make_run, tmp_path):
    for aggregator in ["median", "mean"]:
        run = make_run(
            sizes=(3, 4, 5, 2), clusters="public-centers-rebalanced", aggregator=aggregator
        )
        counts = [[40123457, -3077191, 75219331, 12043777], [5011973, 60177389, 1319447, 61291853]]
        run.edit_clusters(noisy_counts=counts)
        # Noise of such a scale hides a thousand records altogether.
        scale = {"clustering.counts.scale": 5e7, "clustering.counts.epsilon": 0.125}
        run.edit_manifest({"batching.records_per_batch": 10.5e6, **scale})
        run.rehash()
        result = run.audit()
        assert result.verdict == "pass"
        recorded = json.loads((run / "clusters").read_text())
        secrets = {str(abs(count)) for row in counts for count in row}
        secrets |= {recorded["centers"], manifest(run)["clustering"]["digest"]}
        written = documents(public_form(result), tmp_path / "public")
        assert not {secret for secret in secrets for text in written.values() if secret in text}
        assert settings(public_form(result))["clustering"] == {
            "method": "public-centers-rebalanced"
        }


def test_checks_say_what_they_compare_and_not_what_they_measured(make_run):
    result = distinctive(make_run, "median, failing").audit()
    public = public_form(result)
    assert [(check.id, check.status) for check in public.checks] == [
        (c.id, c.status) for c in result.checks
    ]
    assert {check.measured for check in public.checks} == {""}
    assert all(check.expected for check in public.checks)
    details = {check.detail for check in public.checks}
    assert details <= {"", "Run `dpaudit report RUN_DIR --data FILE --evidence 4`."}


def test_no_released_text_is_in_a_public_report(empty_figures, make_run, tmp_path):
    result = make_run(sizes=(3, 4)).audit()
    texts = [shown.text for shown in result.samples]
    assert len(texts) == 2 and all(texts)
    public = public_form(result)
    assert public.samples == ()
    internal = documents(result, tmp_path / "internal")
    for name, text in documents(public, tmp_path / "public").items():
        assert (
            "The released texts" not in text
            and "likeliest" not in text.partition("<body>")[2].lower()
        ), name
        assert '"exact"' not in text, name
        assert not any(json.dumps(shown) in text for shown in texts), name
    assert all(json.dumps(shown, ensure_ascii=False) in internal["report.json"] for shown in texts)
    assert all("The released texts" in internal[name] for name in ("report.html", "report.md"))
    assert all(said in internal["report.html"] for said in ("data-said", "Likeliest others"))
    assert '"likeliest"' in internal["report.json"]


def test_why_a_check_matters_and_how_to_mend_it_are_its_fixed_words(make_run):
    result = distinctive(make_run, "median, failing").audit()
    altered = tuple(
        check.model_copy(update={"why": "4711", "remedy": "4712"}) for check in result.checks
    )
    public = public_form(result.model_copy(update={"checks": altered}))
    assert [(c.why, c.remedy) for c in public.checks] == [(c.why, c.remedy) for c in result.checks]
    assert all(check.why and check.remedy for check in public.checks)


def test_which_fields_of_the_claim_were_given_is_public(make_run):
    run = distinctive(make_run, "median")
    question = Question(epsilon=999.0, unit="record")
    result = audit_run(run.path, question)
    assert result.asked == ("epsilon", "unit")
    assert public_form(result).asked == result.asked
    assert run.audit().asked == ()


def test_an_unreadable_run_has_a_public_form(tmp_path):
    result = audit_run(tmp_path / "nowhere")
    public = public_form(result)
    assert public.verdict == "error"
    assert str(tmp_path) in result.to_json()
    assert str(tmp_path) not in public.to_json()


def test_a_folders_name_for_the_model_stays_on_the_machine(make_run):
    for folder in [
        "/mnt/zebulon/weights",
        "../zebulon/weights",
        "~/zebulon",
        "C:\\zebulon",
        "work/zebulon/cohort",
    ]:
        run = make_run()
        run.edit_manifest({"model.name": folder})
        run.rehash()
        result = run.audit()
        assert check_of(result).status == "pass"
        assert "zebulon" not in public_form(result).to_json()
        assert "withheld" in settings(public_form(result))["model"]["name"]


# --- the check ------------------------------------------------------------------------------------


def a_record(run: Run) -> str:
    hashing, digests = (
        keyed(run),
        {assigned.digest for assigned in RunReader(run.path).assignment()},
    )
    texts = (f"record {number} of {run.spec.seed}" for number in range(10**4))
    return next(text for text in texts if hashing.digest("a", text) in digests)


def a_digest(run: Run) -> str:
    return next(RunReader(run.path).assignment()).digest


FAULTS: dict[str, tuple[str, Callable[[Run], Any], str, str]] = {
    "a record as the model's name": ("model.name", a_record, "model.name", "record"),
    "a digest as bytes": (
        "decoding.sequences",
        lambda run: [*run.spec.sequences, list(bytes.fromhex(a_digest(run)[:16]))],
        "decoding.sequences[3]",
        "digest",
    ),
    "a digest as numbers of 16 bits": (
        "decoding.sequences",
        lambda run: [
            *run.spec.sequences,
            [int(a_digest(run)[at : at + 4], 16) for at in range(0, 16, 4)],
        ],
        "decoding.sequences[3]",
        "digest",
    ),
    "a digest's decimal digits": (
        "prompt.template",
        lambda run: f"run {int(a_digest(run), 16)}",
        "prompt.template",
        "digest",
    ),
    "a digest within another": (
        "model.digest",
        lambda run: "5" * 20 + a_digest(run)[:12] + "5" * 32,
        "model.digest",
        "digest",
    ),
    "a digest as a version": (
        "software",
        lambda run: {"torch": f"2.4.0+{a_digest(run)[:12]}"},
        "software.torch",
        "digest",
    ),
    "a record's digest as the model": ("model.name", a_digest, "model.name", "digest"),
    "a digest cut short": (
        "prompt.template",
        lambda run: f"run {a_digest(run)[:12].upper()}",
        "prompt.template",
        "digest",
    ),
    "a digest among other digits": (
        "prompt.template",
        lambda run: f"ab{a_digest(run)[:16]}",
        "prompt.template",
        "digest",
    ),
    "the key in the prompt's name": (
        "prompt.template",
        lambda run: manifest(run)["batching"]["key"],
        "prompt.template",
        "secret",
    ),
    "the data's digest as the model's": (
        "model.digest",
        lambda run: manifest(run)["data"]["digest"],
        "model.digest",
        "secret",
    ),
    "sizes of batches": (
        "prompt.template",
        lambda run: ", ".join(str(size) for size in run.spec.contexts_of[1:]),
        "prompt.template",
        "sizes",
    ),
    "sizes of batches as a stop sequence": (
        "decoding.sequences",
        lambda run: [*run.spec.sequences, list(run.spec.contexts_of)],
        "decoding.sequences[3]",
        "sizes",
    ),
    "the key of a round": (
        "prompt.template",
        lambda run: keyed(run).of_round(0).key.hex(),
        "prompt.template",
        "secret",
    ),
    "a record in a line of a template": (
        "prompt.text",
        lambda run: f"Such as:\n- {{example}}\n  {a_record(run)}",
        "prompt.text",
        "record",
    ),
    "a file's path": (
        "prompt.template",
        lambda run: "see /someone/notes/prompt.txt",
        "prompt.template",
        "path",
    ),
    "a folder of one's own": (
        "prompt.template",
        lambda run: "~someone/prompts",
        "prompt.template",
        "path",
    ),
    "a path as the prompt": (
        "prompt.template",
        lambda run: str(run.path),
        "prompt.template",
        "path",
    ),
}


def test_what_is_private_in_a_public_setting_fails_and_is_not_repeated(make_run, failed, tmp_path):
    for name in FAULTS:
        field, value, shown, code = FAULTS[name]
        run = make_run(sizes=(4, 3, 5, 3, 6, 3, 2, 4, 5) if name.startswith("sizes") else (4, 5))
        planted = value(run)
        run.edit_manifest({field: planted})
        run.rehash()
        result = run.audit()
        assert failed(result) == {"disclosure.sensitive"}, name
        found = check_of(result)
        assert (found.values["field"], found.code) == (shown, code), name
        secret = planted if isinstance(planted, str) else json.dumps(planted)
        assert secret not in found.model_dump_json()
        # A public report of this run leaves the settings out altogether.
        public = public_form(result)
        assert public.run == RunSummary(
            dpaudit=result.run.dpaudit, dp_accounting=result.run.dp_accounting
        )
        assert "caveat.settings-left-out" in codes(public.caveats)
        for text in documents(public, tmp_path / "public").values():
            assert secret not in text


def test_rounds_stay_secret(make_run, tmp_path):
    for kind in ({"aggregator": "mean"}, {}):
        run = make_run(secret=True, rounds=3, sizes=(4, 4, 4, 4), **kind)
        result = run.audit()
        public = public_form(result)
        hashing = keyed(run)
        secrets = {hashing.key.hex(), *(hashing.of_round(number).key.hex() for number in range(3))}
        secrets |= {assigned.digest for assigned in RunReader(run.path).assignment()}
        for text in documents(public, tmp_path / "public").values():
            assert not {secret for secret in secrets if secret[:12] in text}
        assert public.batches == () and public.tokens is None and public.budgets is None
        batching = settings(public)["batching"]
        assert batching["rounds"] == 3 and batching["allocation"] == {
            "kind": "hashed",
            "secret": True,
        }
        assert batching.keys() <= {"rule", "batches", *disclosure._BATCHING}
        found = public.guarantees
        assert found.ex_post is None and (found.approximate is None) == (not kind)
        if found.approximate is not None:
            assert found.approximate == result.guarantees.approximate
            assert (
                found.approximate.amplification.groups == ((10, 2),) and public.claim.batch_epsilon
            )
            assert "caveat.assumption" in codes(public.caveats)


def test_who_an_ex_post_claim_holds_against_is_public(make_run):
    for kind, said in (({}, False), ({"secret": True}, True)):
        run = make_run(sizes=(4, 5, 4, 5), **kind)
        run.edit_manifest({"claim.epsilon": 20.0, "claim_stated": "beforehand"})
        run.rehash()
        assert ("readers" in public_form(run.audit()).guarantee.values) == said


def test_what_only_looks_private_passes(make_run):
    for harmless in [
        "2.4.0+cpu",
        "org/model-2b",
        "https://example.org/a/b",
        "r/worldnews",
        "and/or",
        "10/12/2025",
        "e5767ef843d",
        "from /r/science/ and /yes/",
        "/yes/no/",
    ]:
        run = make_run()
        run.edit_manifest({"prompt.template": harmless, "prompt.end": harmless})
        run.rehash()
        assert check_of(run.audit()).status == "pass"


def test_versions_of_another_kind_are_not_published(make_run):
    """Only names of known packages, and versions that look like versions, are published.

    Both are free text.
    """
    run = make_run()
    record = a_record(run)
    run.edit_manifest(
        {
            "software": {
                "Jane Roe": "2.0",
                "torch": f"{record}",
                "numpy": "2.4.0+cpu",
                "seed": record,
            }
        }
    )
    run.rehash()
    result = run.audit()
    assert (check_of(result).status, result.verdict) == ("pass", "pass")
    assert settings(public_form(result))["software"] == {"numpy": "2.4.0+cpu"}


def with_records(run: Run, *texts: str) -> None:
    """Put these texts into the run's data, instead of others in batches that were not generated."""
    hashing, batching = keyed(run), manifest(run)["batching"]
    label = manifest(run)["data"]["labels"][0]
    spare = {line.digest for line in RunReader(run.path).assignment() if line.batch is None}
    digests = [hashing.digest(label, text) for text in texts]
    ungenerated = batching["generate_per_label"]
    places = hashing.of_round(0)
    digests = [
        each for each in digests if places.batch(each, batching["batches_per_label"]) >= ungenerated
    ]
    assert digests
    dropped = set(sorted(spare)[: len(digests)])
    lines = [line for line in RunReader(run.path).assignment() if line.digest not in dropped]
    lines = sorted(
        [*lines, *(Assigned(digest, None, None) for digest in digests)],
        key=lambda line: line.digest,
    )
    (run / "assignment").write_text("".join(line.line() for line in lines))
    run.edit_manifest({"data.digest": data_digest(line.digest for line in lines)})
    run.rehash()


def test_a_record_that_is_a_word_of_a_setting_or_a_label_tells_nobody(make_run):
    """Such words stand there whatever the records are.

    With and without the record, a public report is the same.
    """
    words = [
        "median",
        "a",
        "b",
        "true",
        "os-entropy",
        "add_remove",
        "Answer:",
        "own",
        "record",
        "miniature",
        "#",
    ]
    run = make_run()
    run.edit_manifest({"prompt.text": "Answer:\n{example}\n#", "prompt.template": "own"})
    run.rehash()
    without = run.audit()
    with_records(run, *words)
    held = run.audit()
    assert held.verdict == without.verdict == "pass"
    assert public_form(held) == public_form(without)


def test_records_taken_for_labels_fail(make_run):
    """As where the column of texts is named for that of labels."""
    run = make_run()
    text = "a record of several lines, far longer than the name of any group " * 2
    run.edit_manifest({"data.labels": ["a", text]})
    with_records(run, text)
    found = check_of(run.audit())
    assert (found.code, found.values["field"]) == ("record", "data.labels[1]")


def test_digests_in_the_digits_of_a_number_are_seen():
    digest = "9f3c5a7be1d2"
    for value in (
        int(digest, 16),
        float(int(digest, 16)),
        float.fromhex(f"0x1.{digest}p-3"),
        -int(digest, 16),
    ):
        assert digest in disclosure._digits([("field", value)]), value
    for value in (0.800000000001, 1e300, 1 << 47, [1, 2, 3], "median", 7):
        assert digest not in disclosure._digits([("field", value)]), value


def test_a_record_that_is_not_in_the_data_passes(make_run):
    run = make_run()
    run.edit_manifest({"prompt.template": "a record of nobody"})
    run.rehash()
    assert check_of(run.audit()).status == "pass"


def test_without_a_key_digests_and_paths_are_still_looked_for(make_run):
    run = make_run()
    run.edit_manifest({"batching.key": None})
    run.rehash()
    found = check_of(run.audit())
    assert (found.status, [note.code for note in found.notes]) == ("pass", ["disclosure.unkeyed"])
    run.edit_manifest({"prompt.template": a_digest(run)})
    run.rehash()
    assert check_of(run.audit()).status == "fail"


def test_without_an_assignment_it_cannot_be_told(make_run):
    for text in ["", None, "not an assignment\n"]:
        run = make_run()
        (run / "assignment").unlink() if text is None else (run / "assignment").write_text(text)
        run.rehash()
        result = run.audit()
        assert (check_of(result).status, check_of(result).applicable) == ("skip", True)
        assert public_form(result).run.settings is None


def test_a_run_per_context_needs_no_assignment(make_run):
    run = make_run(rule="paper-slices", unit="context", sizes=(4, 4))
    (run / "assignment").write_text("")
    run.rehash()
    result = run.audit()
    assert (check_of(result).status, check_of(result).applicable) == ("skip", False)
    assert public_form(result).run.settings is not None
    run.edit_manifest({"prompt.template": "/home/someone/run"})
    run.rehash()
    assert check_of(run.audit()).status == "fail"


def test_more_labels_than_can_be_tried_are_not_passed(make_run, monkeypatch):
    monkeypatch.setattr(disclosure, "MOST_PAIRS", -1)
    found = check_of(make_run().audit())
    assert (found.status, found.applicable, found.code) == ("skip", True, "too-many-labels")


# --- the command ----------------------------------------------------------------------------------


def dpaudit(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    return int(left.value.code or 0)


def test_a_public_report_has_a_folder_of_its_own(empty_figures, make_run, capfd):
    run = make_run()
    assert dpaudit("report", run.path) == 0
    assert dpaudit("report", run.path, "--audience", "public") == 0
    public = {path.name for path in (run / "report/public").iterdir()}
    assert public == {"report.html", "report.json", "report.md", "junit.xml"}
    assert str(run.path) in (run / "report/report.html").read_text()
    assert str(run.path) not in (run / "report/public/report.html").read_text()
    assert dpaudit("verify", run.path) == 0
    (run / "report/public").rename(run / "report/elsewhere")
    (run / "report/public").symlink_to(run / "report/elsewhere")
    assert dpaudit("report", run.path, "--audience", "public") == 2
    capfd.readouterr()


def test_public_json_is_the_public_form(make_run, tmp_path, capfd):
    run = make_run()
    assert (
        dpaudit("report", run.path, "--out", tmp_path / "out", "--audience", "public", "--json")
        == 0
    )
    out = capfd.readouterr().out
    assert (
        out
        == public_form(run.audit()).to_json()
        == (tmp_path / "out/report.json").read_text("utf-8")
    )


def test_findings_are_written_where_they_are_wanted(empty_figures, make_run, tmp_path, capfd):
    run = make_run()
    run.edit_manifest({"claim.epsilon": 0.0})
    run.rehash()
    out, findings = tmp_path / "out", tmp_path / "findings.sarif"
    assert dpaudit("report", run.path, "--out", out, "--sarif", findings) == 1
    (log,) = json.loads(findings.read_text("utf-8"))["runs"]
    assert "claim.epsilon" in {
        found["ruleId"] for found in log["results"] if found["level"] == "error"
    }
    assert int(ET.parse(out / "junit.xml").getroot().get("failures") or 0) >= 1
    assert dpaudit("report", run.path, "--out", out, "--sarif", run / "findings.sarif") == 2
    assert dpaudit("report", run.path, "--out", out, "--sarif", tmp_path) == 2
    assert "inside a run directory" in capfd.readouterr().err


def test_findings_of_an_unreadable_run_are_written_too(tmp_path, capfd):
    assert dpaudit("report", tmp_path / "nowhere", "--sarif", tmp_path / "findings.sarif") == 2
    (log,) = json.loads((tmp_path / "findings.sarif").read_text("utf-8"))["runs"]
    assert not log["invocations"][0]["executionSuccessful"]
    capfd.readouterr()


def test_verify_names_what_was_not_made_with_its_command(make_run, capfd):
    run = make_run()
    assert dpaudit("verify", run.path) == 0
    err = capfd.readouterr().err
    assert "dpaudit: not made: " in err
    assert "replay.logits" in err
    assert f"Run `dpaudit report {run.path} --data FILE --evidence 4`." in err


def test_commands_name_the_run_for_a_shell(make_run, tmp_path):
    place = tmp_path / "a run; with blanks"
    make_run().path.rename(place)
    result = audit_run(place)
    details = [check.detail for check in result.checks if "dpaudit report" in check.detail]
    assert details and all(shlex.quote(str(place)) in detail for detail in details)
    assert "RUN_DIR" not in result.to_json()
    assert str(place) not in public_form(result).to_json()
    unread = audit_run(tmp_path / "is not there")
    assert "RUN_DIR" not in unread.to_json()


def test_a_delta_that_tells_the_number_of_records_is_withheld(make_run):
    """With delta records ** -1.1, as without privacy.delta, any reader can compute the number."""
    run = make_run(aggregator="mean")
    run.edit_manifest({"privacy.delta_from": "records"})
    run.rehash()
    result = run.audit()
    public = public_form(result)
    assert result.verdict == "pass"
    assert (public.claim, public.guarantees.approximate, public.ledger) == (None, None, ())
    assert public.guarantee.values["why"] == Finding(code="withheld.records-counted")
    # its epsilon still tells
    assert public_form(audit_run(run.path, Question(delta=1e-5))).claim is None
    assert public_form(audit_run(run.path, Question(epsilon=99.0, delta=1e-5))).claim is not None
