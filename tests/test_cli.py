"""The command line: exit codes, what goes to which stream, and what is loaded for it."""

from __future__ import annotations

import io
import json
import math
import os
import pty
import shutil
import socket
import subprocess
import sys
from decimal import Decimal
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

from dpaudit.accounting import zcdp_epsilon
from dpaudit.auditing.caveats import rows_held
from dpaudit.auditing.checks import registered
from dpaudit.commands.cli import cli, main
from dpaudit.commands.options import MOST_EPSILON
from dpaudit.results.rounding import decimals
from dpaudit.runs import RunReader
from dpaudit.runs.manifest import MAX_NUMBER

pytestmark = pytest.mark.usefixtures("empty_figures")

EXAMPLE = Path(__file__).parents[1] / "examples" / "runs" / "bbc-median"
BUDGET = ["budget", "--clip", "9", "--temperature", "1.5"]


def no_constant(name):
    raise AssertionError(f"{name} is not JSON")


def strict_json(text):
    return json.loads(text, parse_constant=no_constant)


@pytest.fixture
def dpaudit(capfd, monkeypatch):
    """Runs the entry point in this process: (exit code, stdout, stderr)."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments):
        with pytest.raises(SystemExit) as left:
            main([str(a) for a in arguments])
            raise SystemExit(0)
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        return left.value.code, out, err

    return run


def test_an_option_that_is_given_twice_is_refused(dpaudit, make_run, tmp_path):
    run = make_run().path
    (tmp_path / "strict.yaml").write_text("policy_version: 1\nepsilon: 0.1\n")
    (tmp_path / "lax.yaml").write_text("policy_version: 1\nepsilon: 1000\n")
    policies = [f"--policy={tmp_path / name}.yaml" for name in ("strict", "lax")]
    for twice, said in (
        (policies, "--policy is given more than once"),
        (["--epsilon", 0.1, "--epsilon=1000"], "--epsilon is given more than once"),
        (["--evidence", 4, "--level", 2], "--evidence/--level is given more than once"),
    ):
        for command in (
            ["verify"],
            ["report"],
            ["release", "--unsigned", "--out", tmp_path / "texts"],
        ):
            code, out, err = dpaudit(*command, *twice, run)
            assert (code, out) == (2, "") and said in err
    code, _, err = dpaudit(
        "verify", run, "--json", "--json", "--tokenizer", run, "--tokenizer", run
    )
    assert code == 0, err


def test_a_full_standard_error_changes_no_exit_code(make_run, started):
    run = make_run().path
    for arguments, code in (
        (["verify", run], 0),
        (["verify", run, "--epsilon", "0.01"], 1),
        (["verify", "no"], 2),
        (["no"], 2),
    ):
        with open("/dev/full", "w") as full, open(os.devnull, "w") as out:
            assert started(arguments, out.fileno(), full.fileno())() == code, arguments


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-16", "utf-8"])
def test_commands_speak_through_any_encoding(make_run, tmp_path, monkeypatch, encoding):
    run = make_run().path
    texts = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    lines = [json.dumps(text | {"text": "é ε 票 👩‍👩‍👧"}) for text in texts]
    (run / "samples.jsonl").write_text("".join(f"{line}\n" for line in lines))
    for arguments, code in (
        (["report", run, "--out", tmp_path / "é", "--json"], 1),
        (["inspect", EXAMPLE, "--batch", 8], 0),
    ):
        written, told = (io.TextIOWrapper(io.BytesIO(), encoding) for _ in range(2))
        with monkeypatch.context() as patch, pytest.raises(SystemExit) as left:
            patch.setattr(sys, "stdout", written)
            patch.setattr(sys, "stderr", told)
            main([str(argument) for argument in arguments])
            raise SystemExit(0)
        written.flush()
        said = written.buffer.getvalue()
        assert left.value.code == code
        if "--json" in arguments:
            assert {text["text"] for text in strict_json(said.decode(encoding))["samples"]} == {
                "é ε 票 👩‍👩‍👧"
            }
            assert encoding.startswith("utf") or said.isascii()


def test_a_locale_that_is_not_utf_8_is_none_to_refuse():
    variables = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONIOENCODING"
    } | variables
    command = [sys.executable, "-m", "dpaudit", "inspect", EXAMPLE, "--batch", "8"]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"\\u" in done.stdout and done.stdout.isascii()


def test_closed_streams_change_no_exit_code(make_run, tmp_path):
    """`2>&-` and the like; a number that is free goes to no file that is opened later."""
    run = [path := make_run().path, "--tokenizer", path]
    for arguments, closed, code in (
        (["verify", *run, "--epsilon", "0.01"], "2>&-", 1),
        (["report", *run, "--out", tmp_path / "report"], "2>&- <&- >&-", 141),
        (["no"], "2>&-", 2),
    ):
        command = [
            "bash",
            "-c",
            f'"$@" {closed}',
            "bash",
            sys.executable,
            "-m",
            "dpaudit",
            *map(str, arguments),
        ]
        assert subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode == code, (
            arguments,
            closed,
        )
    assert (
        strict_json((tmp_path / "report" / "report.json").read_text("utf-8"))["verdict"] == "pass"
    )


def test_an_interpreter_without_docstrings_says_the_same():
    said = []
    for options in ([], ["-OO"]):
        command = [sys.executable, *options, "-m", "dpaudit", "checks", "release.text"]
        said.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert said[0] == said[1] != ""


def clean(run):
    return run


def failing(run):
    run.edit_manifest({"claim.epsilon": run.exact * 0.99})
    run.rehash()
    return run


def unreadable(run):
    run.steps_file(0).write_bytes(b"PK")
    return run


def unparsable(run):
    (run / "run.json").write_text("{")
    return run


CASES = [
    (clean, 0, ""),
    (failing, 1, ""),
    (unreadable, 2, "00000000.zip"),
    (unparsable, 2, "run.json"),
]


def test_a_run_that_leaves_a_setting_out_is_refused(make_run, dpaudit):
    """Its defaults would be the best ones for it: no seed, any record, no budget."""
    for place in (("sampling",), ("privacy", "unit"), ("mechanism", "draw")):
        run = make_run()
        fields = json.loads((run / "run.json").read_text())
        section = fields["settings"]
        for name in place[:-1]:
            section = section[name]
        del section[place[-1]]
        (run / "run.json").write_text(json.dumps(fields))
        code, _, err = dpaudit("verify", run.path)
        assert code == 2 and f"run.json: settings.{'.'.join(place)}" in err


def listing(run):
    return sorted(p.relative_to(run.path).as_posix() for p in run.path.rglob("*"))


#: A run as it was planted, its exit code and message, and whether it is asked for JSON.
ASKED = [(*case, as_json) for case, as_json in product(CASES, (False, True))]
VERDICTS = ("pass", "fail", "error")


@pytest.mark.parametrize(("plant", "code", "message", "as_json"), ASKED)
def test_verify(make_run, dpaudit, plant, code, message, as_json):
    run = plant(make_run())
    before = listing(run)
    found, out, err = dpaudit("verify", run.path, *["--json"] * as_json)
    assert (found, listing(run)) == (code, before)
    assert message in err
    if as_json:
        assert bool(err) == (code == 2)
        assert strict_json(out)["verdict"] == VERDICTS[code]
    elif code == 1:
        assert "claim.epsilon" in out


@pytest.mark.parametrize(("plant", "code", "message", "as_json"), ASKED)
def test_report(make_run, dpaudit, tmp_path, plant, code, message, as_json):
    run, out_dir = plant(make_run()), tmp_path / "reports"
    before = listing(run)
    found, out, err = dpaudit("report", run.path, "--out", out_dir, *["--json"] * as_json)
    assert (found, listing(run)) == (code, before)
    assert message in err
    if as_json:
        assert bool(err) == (code == 2)
        assert strict_json(out)["verdict"] == VERDICTS[code]
    else:  # what to do with the report, and what comes next where it passed
        assert (f"Report (private): {out_dir / 'report.html'}\n" in out) == out_dir.exists()
        gate = (
            f"Next: dpaudit verify {run.path} --epsilon AGREED --relation add_remove --unit "
            "record\n"
        )
        assert (gate in err) == (code == 0)
    if plant is not unparsable:
        written = {p.name: p.read_text(encoding="utf-8") for p in out_dir.iterdir()}
        assert {"report.html", "report.json", "report.md"} <= written.keys()
        assert strict_json(written["report.json"])["verdict"] == VERDICTS[code]


@pytest.mark.parametrize(("plant", "code", "message", "as_json"), ASKED)
def test_compare(make_run, dpaudit, tmp_path, plant, code, message, as_json):
    run, mean = plant(make_run()), make_run(aggregator="mean")
    page = tmp_path / "comparison.html"
    found, out, err = dpaudit("compare", run.path, mean.path, "--out", page, *["--json"] * as_json)
    assert found == code
    assert message in err
    assert bool(err) == (code == 2)
    assert "<html" in page.read_text(encoding="utf-8")
    if as_json:
        document = strict_json(out)
        assert list(document["runs"]) == [str(run.path), str(mean.path)]
    else:
        assert "cannot be compared" in out


def test_report_goes_into_the_run_and_leaves_it_valid(make_run, dpaudit):
    run = make_run()
    assert dpaudit("report", run.path)[0] == 0
    assert (run / "report/report.html").exists()
    assert dpaudit("verify", run.path)[0] == 0


def test_paths_that_are_no_runs(dpaudit, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for command, name in product(("verify", "report"), ("nowhere", "file", "empty")):
        code, _, err = dpaudit(command, tmp_path / name)
        assert code == 2
        assert name in err
    assert list((tmp_path / "empty").iterdir()) == []


def test_reports_to_unwritable_places(make_run, dpaudit, tmp_path):
    (tmp_path / "file").write_text("in the way")
    run = make_run()
    for where in ("file/report", "file"):
        code, out, err = dpaudit("report", run.path, "--out", tmp_path / where)
        assert (code, out) == (2, "")  # told before the audit
        assert "--out" in err
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_place_where_no_folder_can_be_made_is_told_before_the_audit(make_run, dpaudit, tmp_path):
    code, out, err = dpaudit("report", make_run().path, "--out", "/proc/nothing/here")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "/proc/nothing/here: cannot be" in err
    place = tmp_path / "new/report"
    assert dpaudit("report", tmp_path / "nowhere", "--out", place, "--evidence", "9")[0] == 2
    assert not place.parent.exists()


def test_nothing_is_said_beside_a_public_report_nor_under_quiet(make_run, dpaudit):
    assert dpaudit("report", make_run().path, "--audience", "public")[2] == ""
    assert dpaudit("report", make_run().path, "--quiet")[2] == ""


def test_json_on_standard_output_drives_no_terminal(make_run, dpaudit, tmp_path):
    run, hostile = make_run(), "a\x9b2J\u202eb"
    run.edit_manifest({"data.labels": [hostile]})
    for number in range(2):
        run.rewrite(number, lambda draft: object.__setattr__(draft.header, "label", hostile))
    commands = [
        ["inspect", run.path, "--batch", 0],
        ["report", run.path],
        ["verify", run.path],
    ]
    for command in commands:
        out = dpaudit(*command, "--json")[1]
        assert not set(out) & {"\x9b", "\u202e"}
        assert hostile in json.dumps(strict_json(out), ensure_ascii=False)


def test_a_run_of_any_name_drives_no_terminal_and_is_named_for_a_shell(
    make_run, dpaudit, tmp_path, monkeypatch
):
    run = make_run()
    monkeypatch.chdir(run.path.parent)
    for name, named in (("-x", "./-x"), ("a b", "'a b'"), ("a\u202e\x9b2J\n\x1b[mb", "RUN_DIR")):
        shutil.copytree(run.path, name)
        for command in (
            ("report", f"./{name}"),
            ("report", f"./{name}", "--audience", "public"),
            ("inspect", f"./{name}", "--batch", 0),
            ("compare", f"./{name}", "--format", "svg", "--figures", f"{name} figures"),
        ):
            _, out, err = dpaudit(*command)
            assert not set(out + err) & {"\x1b", "\x9b", "\u202e"} and "\n\\x1b[mb" not in out + err
            if command[0] == "inspect":
                assert f"Next: dpaudit inspect {named} --batch" in err
        assert f"\ndpaudit report {named}\n" in Path(name, "report/report.md").read_text()
        assert (
            f"dpaudit compare {named} --format svg"
            in Path(f"{name} figures/captions.md").read_text()
        )


def test_no_private_report_takes_the_place_of_a_public_one(make_run, dpaudit, tmp_path):
    run, out = make_run(), tmp_path / "shared"
    assert dpaudit("report", run.path, "--audience", "public", "--out", out)[0] == 0
    before = (out / "report.html").read_bytes()
    code, shown, err = dpaudit("report", run.path, "--out", out)
    assert (code, shown) == (2, "") and "a public report is there" in err
    assert (out / "report.html").read_bytes() == before
    assert dpaudit("report", run.path, "--audience", "public", "--out", out)[0] == 0
    assert dpaudit("report", run.path, "--out", tmp_path / "own")[0] == 0
    assert dpaudit("report", run.path, "--audience", "public", "--out", tmp_path / "own")[0] == 0


def test_arguments_that_are_too_many_drive_no_terminal(dpaudit):
    for arguments in (
        ("verify", "a", "b\u202e\n\x1b[2J"),
        ("verify", "--no\x1b[2J", "a"),
        ("verify\x1b[2J",),
    ):
        code, out, err = dpaudit(*arguments)
        assert (code, out) == (2, "") and not set(err) & {"\x1b", "\u202e"} and "\n\\x1b" not in err


def test_what_has_brackets_and_is_no_address_is_refused(dpaudit):
    for url in ("http://[evil", "s3://x]y/run"):
        code, _, err = dpaudit("verify", url)
        assert code == 2 and "this is no URL" in err


SPECIAL = {
    "pipe": os.mkfifo,
    "link": lambda path: path.symlink_to(path.parent / "linked"),
    "link to a file": lambda path: path.symlink_to(__file__),
}


@pytest.mark.parametrize("option", ["--out", "--sarif", "compare"])
def test_what_is_no_plain_file_is_refused_and_left_as_it_is(make_run, dpaudit, tmp_path, option):
    run, other = make_run(), make_run(seed=1)
    for kind, make in SPECIAL.items():
        out = tmp_path / kind
        out.mkdir()
        named = out / {"--out": "report.json", "--sarif": "findings", "compare": "page"}[option]
        make(named)
        before = named.lstat()
        command = {
            "--out": ["report", run.path, "--out", out],
            "--sarif": ["report", run.path, "--out", tmp_path / "other", "--sarif", named],
            "compare": ["compare", run.path, other.path, "--out", named],
        }[option]
        code, _, err = dpaudit(*command)
        assert code == 2
        (line,) = err.splitlines()
        assert str(named) in line
        assert "no plain file" in line
        assert ("--sarif" if option == "--sarif" else "--out") in line
        assert (named.lstat().st_mode, named.lstat().st_ino) == (before.st_mode, before.st_ino)
        assert list(out.iterdir()) == [named]


def test_a_report_into_a_folder_that_is_a_link(make_run, dpaudit, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    assert dpaudit("report", make_run().path, "--out", tmp_path / "link")[0] == 0
    assert (tmp_path / "folder/report.html").is_file()


def test_comparison_to_an_unwritable_place(make_run, dpaudit, tmp_path):
    (tmp_path / "file").write_text("in the way")
    one, other = make_run(), make_run(seed=1)
    code, _, err = dpaudit(
        "compare", one.path, other.path, "--out", tmp_path / "file/comparison.html"
    )
    assert code == 2
    assert "comparison.html" in err


def test_a_comparison_that_is_written_with_unread_runs_is_said_to_be(make_run, dpaudit, tmp_path):
    run, broken, page = make_run(), unparsable(make_run()), tmp_path / "comparison.html"
    code, _, err = dpaudit("compare", run.path, broken.path, "--out", page)
    assert code == 2
    assert page.is_file()
    assert f"{page} is written, with" in err and f"cannot be read: {broken.path}\n" in err


def test_what_is_no_run_is_told_before_anything_is_compared(make_run, dpaudit, tmp_path):
    run, page, baseline = make_run(), tmp_path / "comparison.html", tmp_path / "baseline"
    baseline.mkdir()
    (baseline / "public.json").write_text("{}")
    for place, why in ((tmp_path / "nowhere", "no such directory"), (baseline, "public-only")):
        code, out, err = dpaudit("compare", run.path, place, "--out", page)
        assert (code, out, page.exists()) == (2, "", False)
        (told,) = err.splitlines()
        assert told.startswith(f"dpaudit: {place}") and why in told


def test_a_mistyped_path_takes_two_lines(dpaudit, tmp_path):
    code, out, err = dpaudit("report", tmp_path / "nowhere")
    assert (code, out.count("\n"), err.count("\n")) == (2, 1, 1)
    assert "no such directory" in err and "Check the path." in err


def test_the_report_of_a_pass_takes_thirteen_lines(make_run, dpaudit, tmp_path):
    for settings in ({}, {"aggregator": "mean"}):
        code, out, _ = dpaudit("report", make_run(**settings).path, "--out", tmp_path / "out")
        assert code == 0
        assert len(out.splitlines()) <= 13
        assert out.startswith("Pass") and "Recomputed: " in out


def test_closed_output_is_no_success(make_run):
    run = [path := make_run().path, "--tokenizer", path]
    for options, code in (
        (["verify", "--json", *run], 141),
        (["checks"], 141),
        (["verify", *run], 0),
    ):
        command = [sys.executable, "-m", "dpaudit", *map(str, options)]
        found = subprocess.run(
            ["bash", "-c", '"$@" >&-', "bash", *command], stderr=subprocess.DEVNULL, check=False
        )
        assert found.returncode == code, options


def test_compare_needs_two_different_runs(make_run, dpaudit):
    run = make_run().path
    assert dpaudit("compare", run)[0] == 2
    assert dpaudit("compare", run, run)[0] == 2


def test_a_report_tests_the_claim_that_verify_tests(make_run, dpaudit, tmp_path):
    run, out = make_run(), tmp_path / "out"
    assert dpaudit("report", run.path, "--out", out)[0] == 0
    for asked in (
        {"epsilon": run.exact * 0.99},
        {"epsilon": 1e9, "unit": "context"},
        {"epsilon": run.exact * 5, "relation": "replace"},
        {"delta": 1e-6},
    ):
        options = [text for name, value in asked.items() for text in (f"--{name}", value)]
        code = dpaudit("report", run.path, "--out", out, *options)[0]
        written = strict_json((out / "report.json").read_text("utf-8"))
        found, gated, _ = dpaudit("verify", run.path, *options, "--json")
        assert (code, {**written, "samples": []}) == (
            found,
            strict_json(gated),
        )  # a gate's logs hold no text
        assert written["samples"]
        assert {name: written["claim"][name] for name in asked} == asked


# --- runs that cannot be read ---------------------------------------------------------------------


@pytest.mark.parametrize("audience", ["internal", "public"])
def test_no_report_of_a_pass_outlives_it(make_run, dpaudit, tmp_path, audience):
    for folder in ([], ["--out"]):
        run = make_run()
        named = (
            tmp_path / "out"
            if folder
            else run / {"internal": "report", "public": "report/public"}[audience]
        )
        options = [*folder, *[named] * len(folder), "--audience", audience]
        assert dpaudit("report", run.path, *options)[0] == 0
        (run / "run.json").write_text((run / "run.json").read_text()[:-40])
        code, out, err = dpaudit("report", run.path, *options)
        assert code == 2
        assert str(named / "report.html") in out
        assert "integrity.format" in err
        written = {path.name: path.read_text("utf-8") for path in named.iterdir() if path.is_file()}
        assert strict_json(written["report.json"])["verdict"] == "error"
        for name in ("report.html", "report.md"):
            assert "Error: this run could not be audited" in written[name]
            assert "Pass:" not in written[name]
        assert "<error " in written["junit.xml"]
        assert ("run.json: this is not JSON" in "".join(written.values())) == (
            audience == "internal"
        )


def test_nothing_is_written_into_what_is_no_run(dpaudit, tmp_path):
    """Folders grow from one round to the next."""
    for name in ("", "report", "report/report.html", "report/public"):
        place = tmp_path / name
        place.write_text("another's") if name.endswith("html") else place.mkdir(exist_ok=True)
        before = sorted(tmp_path.rglob("*"))
        for audience in ("internal", "public"):
            assert dpaudit("report", tmp_path, "--audience", audience)[0] == 2
        assert sorted(tmp_path.rglob("*")) == before
        assert all(path.read_text() == "another's" for path in before if path.is_file())


def test_verify_says_the_cause_alone(dpaudit, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "run.json").write_text("{")
    for name in ("nowhere", "empty", "run.json"):
        code, out, err = dpaudit("verify", tmp_path / name)
        assert (code, out) == (2, "")
        assert err.startswith("dpaudit: integrity.format: ")
        assert str(tmp_path / name) in err
        assert "not made" not in err
        assert err.count("\n") == 1


def test_verify_against_a_lower_epsilon(make_run, dpaudit):
    run = make_run()
    for factor in (0.0, 0.99, 1 - 1e-9):
        code, out, _ = dpaudit("verify", run.path, "--epsilon", repr(run.exact * factor))
        assert code == 1
        assert "claim.epsilon" in out


def test_verify_against_what_the_record_supports(make_run, dpaudit):
    run = make_run()
    assert dpaudit("verify", run.path, "--epsilon", repr(run.exact))[0] == 0
    assert dpaudit("verify", run.path, "--epsilon", "1e9", "--unit", "context")[0] == 0
    assert dpaudit("verify", run.path, "--relation", "replace")[0] == 1
    assert dpaudit("verify", run.path, "--delta", "1e-6")[0] == 1


def test_verify_against_a_commitment_and_a_head(make_run, dpaudit, tmp_path):
    run = make_run()
    reader = RunReader(run.path)
    commitment, head = reader.manifest.commitment, reader.head()
    code, out, err = dpaudit(
        "verify", run.path, "--commitment", f" {commitment.upper()}\n", "--head", head
    )
    assert (code, out) == (0, "")
    assert "No commitment" not in err
    assert "No head" not in err
    assert "No head" in dpaudit("verify", run.path, "--commitment", commitment)[2]
    assert "No commitment" in dpaudit("verify", run.path)[2]
    run.edit_manifest({"model.name": "another"})
    run.rehash()
    assert dpaudit("verify", run.path)[0] == 0, (
        "who recomputes everything is not found by the record alone"
    )
    code, out, _ = dpaudit("verify", run.path, "--commitment", commitment)
    assert (code, out.count("FAIL"), "FAIL integrity.commitment" in out) == (1, 1, True)
    out = ("--out", tmp_path / "report")
    assert dpaudit("report", run.path, *out, "--head", head)[0] == 1
    assert (
        dpaudit("report", run.path, *out, "--commitment", RunReader(run.path).manifest.commitment)[
            0
        ]
        == 0
    )


def test_what_is_no_claim_is_refused(make_run, dpaudit):
    run = make_run()
    for wrong in (
        ["--epsilon", "nan"],
        ["--epsilon", "inf"],
        ["--epsilon", "-1"],
        ["--epsilon", "one"],
        ["--delta", "nan"],
        ["--delta", "2"],
        ["--relation", "swap"],
        ["--unit", "household"],
        ["--commitment", "5eed"],
        ["--head", "x" * 64],
        ["--head", ""],
        ["--surprise"],
    ):
        for command in ("verify", "report"):
            code, out, err = dpaudit(command, run.path, *wrong)
            assert (code, out) == (2, ""), wrong
            assert wrong[0] in err
    assert not (run / "report").exists()


# --- places to write, and pipes -------------------------------------------------------------------


def test_a_report_inside_a_run_is_refused_before_anything_is_written(make_run, dpaudit, tmp_path):
    run, other = make_run(), make_run(seed=1)
    (tmp_path / "link").symlink_to(run / "steps")
    before = listing(run)
    for place in ("", "steps", "steps/new", "reports", "link", "run.json/x"):
        out = tmp_path / "link/new" if place == "link" else run / place
        for named in (run, other):
            code, printed, err = dpaudit("report", named.path, "--out", out)
            assert (code, printed) == (2, ""), place
            assert str(named / "report") in err
        assert listing(run) == before


def test_a_comparison_inside_a_run_is_refused_before_anything_is_written(make_run, dpaudit):
    run, other = make_run(), make_run(seed=1)
    before = listing(run)
    for place in ("c.html", "report", "steps/c.html", "report/../c.html"):
        code, printed, err = dpaudit("compare", other.path, run.path, "--out", run / place)
        assert (code, printed) == (2, ""), place
        assert str(other / "report") in err
        assert listing(run) == before


def test_a_run_that_lacks_everything_is_spared_too(dpaudit, tmp_path):
    assert dpaudit("report", tmp_path, "--out", tmp_path / "sub")[0] == 2
    assert list(tmp_path.iterdir()) == []


def test_links_in_a_circle_are_no_place_to_write(make_run, dpaudit, tmp_path):
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    assert dpaudit("report", make_run().path, "--out", tmp_path / "circle/new")[0] == 2


def test_a_runs_report_folder_may_be_named(make_run, dpaudit):
    run, other = make_run(), make_run(seed=1)
    assert dpaudit("report", run.path, "--out", run / "report")[0] == 0
    assert dpaudit("compare", run.path, other.path, "--out", run / "report/c.html")[0] == 0
    assert dpaudit("verify", run.path)[0] == 0


def test_an_empty_path_is_refused(dpaudit, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments in (
        ["verify", ""],
        ["report", ""],
        ["report", "x", "--out", ""],
        ["generate", "", "--out", "x"],
        ["demo", "--out", ""],
    ):
        code, out, err = dpaudit(*arguments)
        assert (code, out) == (2, ""), arguments
        assert "the path is empty" in err
    assert list(tmp_path.iterdir()) == []


# --- the program as a process ---------------------------------------------------------------------

#: Forks itself for every command line that it is sent, with where its standard streams lead, and
#: answers its exit code: a process of its own for each, but only one that has to import the
#: program.
FORKING = """
import gc, json, os, socket, sys, tempfile
import matplotlib.backends.backend_svg, matplotlib.figure, numpy, rich.progress, tokenizers
import dpaudit.auditing.comparison, dpaudit.reports.compare, dpaudit.reports.figures, \
dpaudit.reports.write
import dpaudit
from dpaudit.commands.cli import main

matplotlib.figure.Figure.savefig = lambda figure, file, **_: file.write(
    b'<svg xmlns="http://www.w3.org/2000/svg" width="1pt" height="1pt" viewBox="0 0 1 1"/>')
with tempfile.TemporaryDirectory() as folder:  # what the first audit of a process looks up
    dpaudit.audit(sys.argv[2]).save(folder)
asked = socket.socket(fileno=int(sys.argv[1]))
gc.freeze()  # nothing to look through in each fork
while True:
    message, streams, _, _ = socket.recv_fds(asked, 1 << 16, 2)
    if not message:
        break
    child = os.fork()
    if not child:
        asked.close()
        for number, stream in enumerate(streams, 1):
            os.dup2(stream, number)
            os.close(stream)
        arguments, environment = json.loads(message)
        os.environ.clear()
        os.environ.update(environment)
        main(arguments)
        sys.exit(0)
    for stream in streams:
        os.close(stream)
    asked.sendall(bytes([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]))
asked.close()
"""


@pytest.fixture(scope="module")
def forking():
    """A socket to a process that runs FORKING."""
    asking, asked = socket.socketpair()
    example = Path(__file__).parents[1] / "examples/runs/bbc-median"
    command = [sys.executable, "-W", "error", "-c", FORKING, str(asked.fileno()), str(example)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    started = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, pass_fds=[asked.fileno()], env=environment
    )
    asked.close()
    asking.settimeout(120)
    with asking, started:
        yield asking
        asking.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def started(forking):
    """Starts the program with two streams, and returns a function that waits for its exit code."""

    def start(arguments, stdout, stderr, environment=None):
        words = [str(argument) for argument in arguments]
        # What conftest knows, another process does not: each run's tokenizer is its model's own.
        own = [word for word in words if (Path(word) / "tokenizer.json").is_file()]
        words += [word for run in own for word in ("--tokenizer", run)]
        message = json.dumps([words, dict(os.environ) if environment is None else environment])
        socket.send_fds(forking, [message.encode()], [stdout, stderr])
        return lambda: forking.recv(1)[0]

    return start


@pytest.fixture
def process(started, tmp_path):
    """Runs the program: (exit code, stdout, stderr)."""

    def run(*arguments):
        with open(tmp_path / "stdout", "w+b") as out, open(tmp_path / "stderr", "w+b") as err:
            code = started(arguments, out.fileno(), err.fileno())()
        return code, *((tmp_path / name).read_text("utf-8") for name in ("stdout", "stderr"))

    return run


@pytest.fixture
def into_a_closed_pipe(started, tmp_path):
    """Exit code and stderr of the program when nobody reads its output."""

    def run(*arguments, stderr=False):
        reader, writer = os.pipe()
        os.close(reader)
        with open(writer, "wb") as closed, open(tmp_path / "stderr", "w+b") as err:
            code = started(arguments, closed.fileno(), (closed if stderr else err).fileno())()
        return code, (tmp_path / "stderr").read_text("utf-8")

    return run


#: What a shell sees of a program that SIGPIPE ended: a success whose output nobody read to its end.
UNREAD = 141


@pytest.mark.parametrize(("plant", "code"), [(clean, UNREAD), (failing, 1), (unreadable, 2)])
def test_a_closed_pipe_is_told_by_the_exit_code_unless_the_verdict_is_worse(
    make_run, tmp_path, into_a_closed_pipe, plant, code
):
    run, other = plant(make_run()), make_run(seed=1)
    for stderr in (False, True):
        for arguments in (["verify", run.path, "--json"], ["compare", run.path, other.path]):
            found, err = into_a_closed_pipe(*arguments, stderr=stderr)
            assert found == code
            assert "Traceback" not in err
            assert "Exception" not in err
        # What prints nothing has lost nothing.
        assert into_a_closed_pipe("verify", run.path, stderr=stderr)[0] == (
            0 if plant is clean else code
        )
    assert into_a_closed_pipe("report", run.path, "--out", tmp_path / "out", stderr=True)[0] == code
    assert (tmp_path / "out/report.html").exists()


def test_a_closed_pipe_is_no_defect(into_a_closed_pipe):
    for arguments in (["--help"], ["checks"], ["lab", "--help"], ["--version"]):
        assert into_a_closed_pipe(*arguments) == (UNREAD, "")


def test_a_reader_that_reads_all_changes_nothing(make_run, started):
    reader, writer = os.pipe()
    ended = started(["verify", make_run().path, "--json"], writer, 2)
    os.close(writer)
    with open(reader, encoding="utf-8") as output:
        assert strict_json(output.read())["verdict"] == "pass"
    assert ended() == 0


def test_a_closed_stdout_leaves_the_guarantee_on_stderr(make_run, into_a_closed_pipe):
    assert "dpaudit: fail: " in into_a_closed_pipe("verify", failing(make_run()).path)[1]


def test_a_message_into_a_closed_pipe_keeps_its_exit_code(tmp_path, into_a_closed_pipe):
    assert into_a_closed_pipe("verify", tmp_path / "nowhere", stderr=True)[0] == 2
    assert (
        into_a_closed_pipe(*BUDGET, "--batch-size", 64, "--records", 9, "--tokens", 1)[0] == UNREAD
    )


def test_verify_says_the_caveats_beside_the_guarantee(make_run, dpaudit):
    run, mean = make_run(), make_run(aggregator="mean")
    caveats = json.loads(dpaudit("verify", run.path, "--json")[1])["caveats"]
    assert caveats
    err = dpaudit("verify", run.path)[2]
    compared = dpaudit("compare", run.path, mean.path)[1]
    for caveat in caveats:
        assert f"dpaudit: {caveat['words']}\n" in err
        assert "".join(caveat["words"].split()) in "".join(compared.split())


# --- budget ---------------------------------------------------------------------------------------

RECORDS = (108000, 504000, 230400)
#: The paper's table of hyperparameters: batch size, epsilon, output tokens for the three data sets.
TABLE = [
    (64, 10, (373, 337, 355)),
    (64, 9.9, (367, 331, 349)),
    (256, 3, (733, 642, 686)),
    (256, 2.9, (689, 604, 645)),
]
BUDGET_KEYS = {
    *("tokens", "batch_epsilon", "delta", "method", "rho", "relation", "batch_lower"),
    *("batch_size", "divisor", "group_size", "sensitivity", "rebalancing_epsilon"),
    *("batch_attack", "asked_epsilon", "asked_advantage", "asked_true_positives"),
}


def budget(size, records, *options):
    arguments = [
        *BUDGET,
        "--batch-size",
        str(size),
        "--records",
        str(records),
        *map(str, options),
        "--json",
    ]
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert (result.exit_code, result.stderr) == (0, "")
    return strict_json(result.stdout)


@pytest.mark.usefixtures("coarse")
def test_budget_gives_the_papers_output_tokens():
    for (size, epsilon, row), place in zip(TABLE, (0, 1, 2, 0), strict=True):
        for records, tokens in [(RECORDS[place], row[place])]:
            found = budget(size, records, "--epsilon", epsilon)
            assert found.keys() == BUDGET_KEYS
            assert found["tokens"] == tokens
            assert found["delta"] == pytest.approx(records**-1.1)
            assert found["batch_epsilon"] <= epsilon
            unasked = found | {"asked_epsilon": None}
            assert budget(size, records, "--tokens", tokens) == unasked
            assert budget(size, records, "--tokens", tokens + 1)["batch_epsilon"] > epsilon


@pytest.mark.usefixtures("coarse")
def test_budget_under_replace_buys_about_a_quarter():
    add_remove, replace = (
        budget(64, 108000, "--epsilon", 10, "--relation", r)["tokens"]
        for r in ("add_remove", "replace")
    )
    assert replace == pytest.approx(add_remove / 4, abs=1)


def test_budget_by_the_optimal_method():
    found = budget(64, 108000, "--tokens", 367, "--method", "optimal")
    assert found.keys() == BUDGET_KEYS
    assert found["method"] == "optimal"
    assert found["batch_lower"] < found["batch_epsilon"] <= 9.30
    assert found["batch_epsilon"] < 1.005 * found["batch_lower"]
    by_rdp = budget(64, 108000, "--tokens", 367)
    assert by_rdp["batch_lower"] is None
    assert by_rdp["rho"] == found["rho"]


def test_budget_with_rebalancing_is_joint():
    found = budget(64, 108000, "--tokens", 367, "--rebalancing-epsilon", 0.1)
    assert found["batch_epsilon"] == pytest.approx(9.906, abs=0.0005)
    assert found["rebalancing_epsilon"] == 0.1
    afforded = budget(64, 108000, "--epsilon", 9.9, "--rebalancing-epsilon", 0.1)
    assert (afforded["tokens"], afforded["batch_epsilon"] <= 9.9) == (366, True)


@pytest.mark.usefixtures("coarse")
def test_budget_says_which_sensitivity_it_used():
    for options, factor, sensitivity in (
        ([], 1, "fixed divisor s, add_remove: c/s per context"),
        (["--relation", "replace"], 4, "fixed divisor s, replace: 2c/s per context"),
        (
            ["--divisor", "actual"],
            4,
            "divisor the number of contexts, at least s, add_remove: 2c/s per context",
        ),
        (["--group-size", 3], 9, "fixed divisor s, add_remove: c/s per context, 3 contexts"),
    ):
        found = budget(64, 108000, "--tokens", 50, *options)
        assert found["sensitivity"] == sensitivity
        assert found["rho"] == pytest.approx(factor * 50 * 0.1875**2 / 8)


def in_words(*options):
    arguments = [*BUDGET, "--batch-size", "64", "--records", "108000", *map(str, options)]
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


@pytest.mark.usefixtures("coarse")
def test_budget_names_what_is_not_the_default():
    plain = in_words("--tokens", 1)
    assert plain.startswith("1 token per") and "of 64 contexts" in plain
    assert "rdp" in plain and "add_remove" in plain
    options = ["--divisor", "actual", "--group-size", 3, "--rebalancing-epsilon", 0.1]
    said = in_words("--tokens", 5, *options)
    for setting in ("number of contexts", "changes 3 contexts", "epsilon 0.1,"):
        assert setting in said
        assert setting not in plain


def test_budget_by_the_optimal_method_says_its_lower_end():
    found = budget(64, 108000, "--tokens", 50, "--method", "optimal")
    said = in_words("--tokens", 50, "--method", "optimal")
    low = float(said.partition("lower end")[2].partition(":")[0])
    assert found["batch_lower"] - 1e-4 < low <= found["batch_lower"]


def test_budget_has_both_ends_of_a_million_tokens():
    found = budget(64, 108000, "--tokens", 10**6, "--method", "optimal")
    assert found["method"] == "optimal"
    assert found["batch_lower"] < found["batch_epsilon"] < 1.01 * found["batch_lower"]


def test_budget_states_no_lower_end_where_none_is_known():
    options = ["--tokens", 1, "--delta", 0.0468, "--method", "optimal"]
    found = budget(64, 20, *options)
    assert found["batch_lower"] is None and found["batch_epsilon"] > 0
    assert "not known" in in_words(*options, "--records", 20)
    assert "lower end" not in in_words(
        "--tokens", 1, "--delta", 0.5, "--method", "optimal", "--records", 1
    )


def test_figures_are_never_rounded_down():
    figures = (9.9, 0.0001, 1.00005, 4.35, 5e-324, 8.5e8 + 0.1, 0.28, 16.1, 33.3333, 1e300)
    for epsilon, places in product(figures, (3, 4)):
        shown = decimals(epsilon, places)
        assert Decimal(shown) >= Decimal(epsilon) or shown == repr(epsilon)
        assert Decimal(shown) - Decimal(epsilon) <= Decimal(10) ** -places


@pytest.mark.usefixtures("coarse")
def test_budget_warns_of_a_delta_that_protects_nobody(dpaudit):
    for delta, warned in ((1e-3, True), (0.5, True), (9e-4, False), (None, False)):
        options = [] if delta is None else ["--delta", delta]
        code, out, err = dpaudit(
            *BUDGET, "--batch-size", 64, "--records", 1000, "--tokens", 3, *options, "--json"
        )
        assert code == 0
        assert strict_json(out)["tokens"] == 3
        assert ("1 / records" in err) == warned


def test_budget_refuses_unusable_settings(dpaudit):
    for options in (
        [],
        ["--epsilon", "1", "--tokens", "1"],
        ["--epsilon", "1", "--rebalancing-epsilon", "2"],
        ["--tokens", "1", "--rebalancing-epsilon", "-1"],
        ["--tokens", "1", "--rebalancing-epsilon", "nan"],
        ["--tokens", "1", "--rebalancing-epsilon", "inf"],
        ["--tokens", "1", "--group-size", "0"],
        ["--tokens", "1", "--divisor", "none"],
        ["--tokens", "1", "--batch-size", "nan"],
        ["--tokens", "1.5"],
        ["--epsilon", "-1"],
        ["--epsilon", "1", "--method", "optimal", "--clip", "1e-12"],
        ["--epsilon", "nan"],
        ["--epsilon", "0"],
        ["--epsilon", "inf"],
        ["--tokens", "-1"],
        ["--tokens", "1", "--delta", "0"],
        ["--tokens", "1", "--delta", "1"],
        ["--tokens", "1", "--delta", "nan"],
        ["--tokens", "1", "--clip", "0"],
        ["--tokens", "1", "--clip", "inf"],
        ["--tokens", "1", "--temperature", "-1"],
        ["--tokens", "1", "--records", "0"],
        ["--tokens", "1", "--records", "1"],
        ["--tokens", "1", "--method", "guess"],
    ):
        code, out, err = dpaudit(*BUDGET, "--batch-size", 64, "--records", 1000, *options)
        assert (code, out) == (2, ""), options
        assert (
            err.splitlines()[-1].startswith(("Error: ", "dpaudit: "))
            and "warning" not in err.splitlines()[-1]
        )


def answer(dpaudit, *options):
    code, out, err = dpaudit(
        "budget", "--clip", 8, "--temperature", 1, "--records", 2127, "--delta", 1e-5, *options
    )
    assert (code, err) == (0, ""), err
    return out


@pytest.mark.usefixtures("coarse")
def test_budget_finds_the_fewest_contexts(dpaudit):
    for method in ("rdp", "optimal"):
        asked = ("--epsilon", 3, "--method", method, "--json")
        found = strict_json(answer(dpaudit, "--tokens", 20, *asked))
        assert found["tokens"] == 20 and found["batch_epsilon"] <= 3
        size = found["batch_size"]
        assert strict_json(answer(dpaudit, "--batch-size", size, *asked))["tokens"] >= 20
        assert strict_json(answer(dpaudit, "--batch-size", size - 1, *asked))["tokens"] < 20
    said = answer(dpaudit, "--tokens", 100, "--epsilon", 3)
    assert "100 tokens" in said and "of 120 contexts" in said and "No fewer contexts" in said


@pytest.mark.usefixtures("coarse")
def test_budget_finds_the_fewest_contexts_for_what_attacks_may_gain(dpaudit):
    demo = ("--temperature", 0.7, "--clip", 2, "--json")
    for limit, size, reached in (
        (("--advantage", 0.1), 80, 0.0993),
        (("--true-positives", "0.05@0.01"), 30, 0.0482),
    ):
        found = strict_json(answer(dpaudit, *demo, "--tokens", 48, *limit))
        figures = found["batch_attack"]
        figure = figures["advantage" if size == 80 else "tpr_at_1pct"]
        assert (found["batch_size"], figure) == (size, pytest.approx(reached, abs=5e-5))
        assert found["batch_epsilon"] > 0
        fewer = answer(dpaudit, *demo, "--batch-size", size - 1, *limit)
        assert strict_json(fewer)["tokens"] < 48
    found = strict_json(answer(dpaudit, *demo, "--batch-size", 32, "--advantage", 0.2))
    assert (found["tokens"], found["asked_advantage"]) == (31, 0.2)
    assert found["batch_attack"]["advantage"] == pytest.approx(0.1987, abs=1e-4)


@pytest.mark.usefixtures("coarse")
def test_budget_that_pays_for_nothing_says_so(dpaudit):
    for limit in (
        ("--epsilon", 1e-300),
        ("--advantage", 1e-4),
        ("--true-positives", "0.0101@0.01"),
    ):
        asked = ("--batch-size", 32, *limit)
        found = strict_json(answer(dpaudit, *asked, "--json"))
        one = strict_json(answer(dpaudit, "--batch-size", 32, "--tokens", 1, "--json"))
        assert found["tokens"] == 0
        for name in ("batch_epsilon", "batch_attack", "rho"):
            assert found[name] == one[name]
        assert "pays for no token" in answer(dpaudit, *asked)
        rounds = (*asked, "--tokens", 64, "--labels", 1)
        found = strict_json(answer(dpaudit, *rounds, "--json"))
        assert (found["rounds"], found["texts"]) == (0, 0) and found["attack"]["advantage"] > 1e-4
    code, out, err = dpaudit(
        "budget", "--clip", 2, "--temperature", 0.7, "--records", 2127, "--batch-size", 32,
        "--advantage", 0.2, "--rebalancing-epsilon", 0.5,
    )  # fmt: skip
    assert (code, out) == (2, "") and "0.2213" in err


@pytest.mark.usefixtures("coarse")
def test_budgets_of_their_own_keep_what_attacks_may_gain(dpaudit):
    own = ("--individual", "--batch-size", 32, "--json")
    found = strict_json(answer(dpaudit, *own, "--advantage", 0.2))
    assert found["rho"] == pytest.approx(2 * 0.2 * math.atanh(0.2), rel=1e-8)
    assert 0.2 * (1 - 1e-6) < found["batch_attack"]["advantage"] <= 0.2
    assert found["batch_epsilon"] == pytest.approx(zcdp_epsilon(found["rho"], 1e-5))
    found = strict_json(answer(dpaudit, *own, "--true-positives", "0.05@0.01"))
    assert 0.05 * (1 - 1e-5) < found["batch_attack"]["tpr_at_1pct"] <= 0.05
    readers = strict_json(answer(dpaudit, *own, "--advantage", 0.2, "--rounds", 2))
    assert 0.2 * (1 - 1e-3) < readers["attack"]["advantage"] <= 0.2
    assert readers["epsilon"] < readers["batch_epsilon"]
    users = strict_json(answer(dpaudit, *own, "--advantage", 0.2, "--group-size", 3))
    assert users["budget"] == pytest.approx(2 * 0.2 * math.atanh(0.2) / 9, rel=1e-8)


@pytest.mark.usefixtures("coarse")
def test_budgets_of_their_own_are_for_any_number_of_tokens(dpaudit):
    own = ("--epsilon", 2, "--individual")
    found = strict_json(answer(dpaudit, *own, "--batch-size", 32, "--tokens", 96, "--json"))
    worst = strict_json(answer(dpaudit, "--epsilon", 2, "--batch-size", 32, "--json"))
    assert found["budget"] == found["rho"] and found["sure_tokens"] >= worst["tokens"]
    assert zcdp_epsilon(found["rho"], 1e-5) <= 2 < zcdp_epsilon(found["rho"] * (1 + 1e-7), 1e-5)
    # What it takes to be in all tokens, by the square of the share.
    assert found["share"] ** 2 * 96 * (16 / 32) ** 2 / 8 == pytest.approx(found["budget"], rel=0.01)
    for options, shared in ((["--relation", "replace"], 4), (["--group-size", 3], 9)):
        fewer = strict_json(answer(dpaudit, *own, "--batch-size", 32, *options, "--json"))
        assert fewer["rho"] == found["rho"] and fewer["budget"] == pytest.approx(
            found["rho"] / shared
        )
    fewest = strict_json(answer(dpaudit, *own, "--tokens", 96, "--json"))
    assert (
        fewest["sure_tokens"]
        >= 96
        > strict_json(answer(dpaudit, *own, "--batch-size", fewest["batch_size"] - 1, "--json"))[
            "sure_tokens"
        ]
    )
    assert "first 3 of" in answer(dpaudit, *own, "--batch-size", 32)
    assert "in all 96 if" in " ".join(
        answer(dpaudit, *own, "--batch-size", 32, "--tokens", 96).split()
    )
    assert "in all 0\n" in answer(dpaudit, *own, "--batch-size", 32, "--tokens", 0)


def in_rounds(dpaudit, *options):
    asked = ("--batch-size", 32, "--tokens", 64, *options, "--json")
    code, out, _ = dpaudit(
        "budget", "--clip", 2, "--temperature", 1, "--records", 1230, "--delta", 1e-5, *asked
    )
    assert code == 0
    return strict_json(out)


@pytest.mark.usefixtures("coarse")
def test_budget_of_rounds_has_both_levels(dpaudit):
    found = in_rounds(dpaudit, "--texts", 1217)
    assert (found["rounds"], found["texts"], found["batches"]) == (33, 1254, 38), "rounds are whole"
    assert 1.99 < found["epsilon"] <= 2 < found["batch_epsilon"]
    few = in_rounds(dpaudit, "--labels", 3, "--rounds", 1)
    assert few["one_label"]["epsilon"] < few["epsilon"] < few["batch_epsilon"] < 2
    own = in_rounds(dpaudit, "--individual", "--epsilon", 2, "--rounds", 4)
    alone = strict_json(
        answer(dpaudit, "--individual", "--epsilon", 2, "--batch-size", 32, "--json")
    )
    assert own["texts"] == 152 and own["budget"] > alone["budget"]
    assert (
        own["batch_epsilon"] == pytest.approx(zcdp_epsilon(4 * own["rho"], 1e-5))
        and own["batch_epsilon"] > 2
    )
    assert alone["batch_epsilon"] == 2 and alone["epsilon"] is None


@pytest.mark.slow
def test_an_epsilon_buys_texts_in_budgets_of_rounds(dpaudit):
    found = in_rounds(dpaudit, "--labels", 1, "--epsilon", 2)
    assert (found["texts"], found["rounds"]) == (1254, 33) and found["epsilon"] <= 2
    assert [each["texts"] for each in found["menu"]] == [5548, 1254, 152]
    assert in_rounds(dpaudit, "--rounds", 34)["epsilon"] > 2, "one more does not fit"
    assert in_rounds(dpaudit, "--labels", 1, "--epsilon", 1e300)["rounds"] == 1 << 20, (
        "and no more than may be asked"
    )
    none = in_rounds(dpaudit, "--labels", 1, "--epsilon", 0.01)
    assert (none["rounds"], none["texts"]) == (0, 0) and none["epsilon"] > 0.01


@pytest.mark.usefixtures("coarse")
def test_budget_warns_of_few_batches(dpaudit):
    asked = (
        "--clip",
        2,
        "--temperature",
        1,
        "--records",
        600,
        "--batch-size",
        32,
        "--tokens",
        64,
        "--rounds",
        1,
    )
    for labels, said in ((6, "into 3 batches"), (18, "into 1 batch:"), (4, "")):
        code, _, err = dpaudit("budget", *asked, "--labels", labels)
        assert code == 0 and (said in " ".join(err.split()) if said else not err), err


@pytest.mark.usefixtures("coarse")
def test_budget_says_what_it_cannot_answer(dpaudit):
    for options, argument in (
        (["--individual", "--tokens", 3, "--batch-size", 3], "--epsilon"),
        (["--individual", "--epsilon", 3, "--batch-size", 3, "--divisor", "actual"], "--divisor"),
        (["--individual", "--epsilon", 3, "--batch-size", 3, "--method", "optimal"], "--method"),
        (["--epsilon", 3], "--batch-size"),
        (["--epsilon", 3, "--texts", 9, "--tokens", 9, "--batch-size", 3], "--epsilon"),
        (["--rounds", 3, "--batch-size", 32], "--tokens"),
        (["--rounds", 3, "--batch-size", 32, "--tokens", 0], "--tokens"),
        (["--rounds", 3, "--tokens", 9], "--batch-size"),
        (["--epsilon", 3, "--batch-size", 32, "--tokens", 9], "--epsilon"),
        (
            ["--rounds", 3, "--tokens", 9, "--batch-size", 3, "--batches", 4, "--generated", 5],
            "--generated",
        ),
        (["--rounds", 3, "--tokens", 9, "--batch-size", 3000], "--records"),
        (["--epsilon", 1e-6, "--tokens", 99999], "--epsilon"),
        (["--individual", "--epsilon", 1, "--batch-size", 3, "--rebalancing-epsilon", 2], "budget"),
    ):
        code, out, err = dpaudit(
            "budget", "--clip", 8, "--temperature", 1, "--records", 2127, *options
        )
        assert (code, out) == (2, "") and err.splitlines()[-1].startswith(
            f"dpaudit: {argument}: "
        ), err


@pytest.mark.usefixtures("coarse")
def test_budget_with_settings_beyond_the_floats(dpaudit):
    questions = (["--tokens", "3"], ["--epsilon", "1"], ["--tokens", "0"])
    for options, size, question in product(
        (["--clip", "1e200"], ["--temperature", "1e-200"]), ("64", "1e-200"), questions
    ):
        code, out, _ = dpaudit(
            *BUDGET, "--batch-size", size, "--records", 1000, *options, *question, "--json"
        )
        assert code == 0
        found = strict_json(out)
        # the plain sum of the ranges may still be a float
        charged = found["tokens"] or int(found["asked_epsilon"] is not None)
        if charged and found["batch_epsilon"] != "inf":
            settings = {"--clip": 9.0, "--temperature": 1.5, options[0]: float(options[1])}
            pure = charged * (2 * settings["--clip"] / settings["--temperature"] / float(size))
            assert pure <= found["batch_epsilon"] < math.inf
            assert found["batch_attack"]["advantage"] > 0.99
        else:
            assert (charged, found["batch_epsilon"]) in [(3, "inf"), (1, "inf"), (0, 0.0)]


# --- the program ----------------------------------------------------------------------------------


def leaf_commands(group=cli, path=()):
    """Every command that does something, by the words that call it."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from leaf_commands(command, (*path, name))
        else:
            yield (*path, name), command


def test_what_is_no_number_is_answered_with_the_range_of_the_option():
    for _, command in leaf_commands():
        for kind in (param.type for param in command.params):
            if isinstance(kind, click.IntRange | click.FloatRange):
                with pytest.raises(click.BadParameter) as refused:
                    kind.convert("1e", None, None)
                assert str(kind.max if kind.min is None else kind.min) in refused.value.message


def test_every_command_has_an_example_and_can_be_quiet():
    for words, _ in leaf_commands():
        result = CliRunner().invoke(cli, [*words, "--help"], catch_exceptions=False)
        assert result.exit_code == 0
        assert f"dpaudit {' '.join(words)}" in result.stdout
        assert "Example" in result.stdout
        assert "--quiet" in result.stdout


def test_help_lists_six_verbs_first_and_cuts_no_summary():
    result = CliRunner().invoke(cli, ["--help"], catch_exceptions=False, terminal_width=80)
    listed = result.stdout.partition("Commands:")[2]
    assert "..." not in listed
    names = [line.split()[0] for line in listed.splitlines() if line.startswith("  ")]
    assert names[:6] == ["init", "generate", "report", "evaluate", "release", "verify"]
    assert sorted(names) == sorted(cli.commands)


def test_unusable_command_lines(dpaudit):
    for name in ("nothing", "report", "verify", "compare", "lab"):
        code, out, err = dpaudit(name)
        assert (code, out) == (2, ""), name
        assert "Usage" in err


def test_no_command_is_answered_with_the_help(dpaudit):
    """An exit code 0 would say that a claim holds: a script's command may be an empty variable."""
    code, out, err = dpaudit()
    assert (code, out) == (2, "")
    assert (0, err, "") == dpaudit("-h") == dpaudit("--help")
    assert "\\n" not in err and "Commands:\n  init" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["generate"], "Missing argument 'DATA_OR_CONFIG'."),
        (["budget", "--epsilon"], "Option '--epsilon' requires an argument."),
        (
            ["budget", "--epsilon", "much"],
            "Invalid value for '--epsilon': 'much' is not a finite number in the range x>0.",
        ),
        (
            ["generate", "own.csv", "--tokens", "1e9"],
            "Invalid value for '--tokens': '1e9' is not a whole number in the range 8<=x<=32768.",
        ),
        (["budget"], "Missing option '--clip'."),
        (
            ["verify", "run", "--polcy", "3"],
            "No such option '--polcy'. Did you mean '--policy'?",
        ),
        (["--quiet"], "No such option '--quiet'."),
        (["generat"], "No such command 'generat'. Did you mean 'generate'?"),
        (["compare", "run"], "Name two or more run directories."),
        (["record"], "Missing argument 'GENERATOR'"),
        (["verify", "one", "t\nwo"], "Got unexpected extra argument (t\\nwo)"),
        (
            ["budget", "--clip", "1", "--relation", "other"],
            "'other' is not one of 'add_remove', 'replace'.",
        ),
    ],
)
def test_errors_of_the_command_line_are_one_line(dpaudit, arguments, said):
    """As click words them. A line break is one of the user's own, and stands as an escape."""
    code, out, err = dpaudit(*arguments)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("Error: ") and said in err.splitlines()[-1]
    assert err.count("Error: ") == 1 and "\t" not in err


def test_a_verdicts_cause_is_one_line(dpaudit):
    code, _, err = dpaudit("verify", "no\nsuch run")
    assert (code, err.count("\n")) == (2, 1)


def test_internal_error_quotes_nothing(dpaudit, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("a private record")

    monkeypatch.setattr("dpaudit.api.audits.audit_run", broken)
    code, out, err = dpaudit("verify", "anything")
    assert (code, out) == (3, "")
    assert "a private record" not in err
    assert "DPAUDIT_DEBUG" in err


def python(code, *arguments):
    command = [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


LOADED = "import sys; print(*(m for m in {} if m in sys.modules))"
HEAVY = (
    "torch",
    "transformers",
    "numcodecs",
    "matplotlib",
    "numpy",
    "pandas",
    "dpaudit.generation.experiments",
)


def test_command_line_alone_loads_nothing_heavy():
    result = python(f"import dpaudit.commands.cli\n{LOADED.format(HEAVY)}")
    assert (result.stdout.split(), result.stderr, result.returncode) == ([], "", 0)


#: As on a machine where only `pip install dpaudit` was run.
WITHOUT_GENERATION = """
import sys
from dpaudit.commands.cli import main

class Absent:
    def find_spec(self, name, *_):
        if name.split(".")[0] in ("torch", "transformers", "pandas", "pyarrow", "datasets"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
main(sys.argv[1:])
"""


def test_report_needs_neither_torch_nor_transformers(make_run, tmp_path):
    run = make_run().path
    result = python(
        WITHOUT_GENERATION,
        "report",
        run,
        "--out",
        tmp_path / "report",
        "--quiet",
        "--tokenizer",
        run,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert (tmp_path / "report/report.html").exists()


def test_exit_codes_of_the_process(make_run, process):
    for plant, code, message in CASES:
        found, out, err = process("verify", plant(make_run()).path, "--json")
        assert found == code
        assert message in err
        assert "Traceback" not in err
        assert strict_json(out)["verdict"] == VERDICTS[code]


def test_checks_are_listed_and_explained(dpaudit):
    code, out, err = dpaudit("checks")
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()[1:]] == list(registered())
    code, out, err = dpaudit("checks", "sampling.distribution")
    assert (code, err) == (0, "")
    for part in (
        "evidence",
        "compares",
        "remedy",
        "reference",
        "docs/mathematics.md#the-sampling-test",
    ):
        assert part in out
    rows = strict_json(dpaudit("checks", "--json")[1])
    assert [row["id"] for row in rows] == list(registered())
    assert strict_json(dpaudit("checks", "claim.delta", "--json")[1])["evidence"] == 0


def test_a_check_that_is_not_there(dpaudit):
    code, out, err = dpaudit("checks", "claim.everything")
    assert (code, out) == (2, "")
    assert "no check 'claim.everything'" in err
    assert "claim.tuning" in err and "record.range" not in err, "those of its family are named"


def test_places_that_lead_nowhere_are_refused(dpaudit):
    for location in ("s3:/bucket/run", "file://work/run", "memory://", "memory:///"):
        code, out, err = dpaudit("verify", location)
        assert (code, out) == (2, "") and err, location


def test_url_of_a_file_is_its_path(make_run, dpaudit):
    assert dpaudit("verify", f"file://{make_run().path}")[0] == 0


def test_run_is_not_generated_to_where_it_would_be_lost(dpaudit, tmp_path):
    code, _, err = dpaudit("generate", "config.yaml", "--out", "memory://run")
    assert code == 2
    assert "no longer than" in err


def test_refuses_a_used_place_before_reading_the_records(dpaudit, tmp_path):
    """The records are not there: an error about them would come first otherwise."""
    file, folder = tmp_path / "file", tmp_path / "folder"
    file.touch()
    folder.mkdir()
    (folder / "notes").touch()
    for place in (file, folder):
        given = ("--no-labels", "--records", "400", "--epsilon", "3", "--out", str(place))
        code, out, err = dpaudit("generate", "nowhere.csv", *given)
        assert (code, out) == (2, "")
        assert str(place) in err and "nowhere.csv" not in err


def test_modules_are_the_command_line_too():
    """A gate that did nothing would be open."""
    for module in ("dpaudit", "dpaudit.commands.cli"):
        ended = subprocess.run(
            [sys.executable, "-m", module, "verify", "/nowhere"], capture_output=True, text=True
        )
        assert ended.returncode == 2
        assert "/nowhere" in ended.stderr


# --- quiet, colour and progress -------------------------------------------------------------------


def test_quiet_leaves_results_and_errors(make_run, dpaudit, tmp_path):
    run, wrong = make_run(), failing(make_run())
    assert dpaudit("verify", run.path)[2] != ""
    assert dpaudit("verify", run.path, "--quiet") == (0, "", "")
    code, out, err = dpaudit("verify", wrong.path, "-q")
    assert (code, err) == (1, "")
    assert "FAIL claim.epsilon" in out
    code, _, err = dpaudit("verify", unreadable(make_run()).path, "-q")
    assert code == 2
    assert "00000000.zip" in err
    for command in (
        ["report", run.path, "--out", tmp_path / "out"],
        ["compare", run.path, wrong.path],
        ["checks"],
    ):
        assert dpaudit(*command, "-q")[:2] == dpaudit(*command)[:2]


def test_quiet_keeps_warnings(dpaudit):
    options = ["--batch-size", 64, "--records", 1000, "--tokens", 3, "--delta", 0.5]
    assert "warning" in dpaudit(*BUDGET, *options, "--quiet")[2]


def test_quiet_lasts_for_one_command(make_run, dpaudit):
    run = make_run()
    assert dpaudit("verify", run.path, "-q")[2] == ""
    assert dpaudit("verify", run.path)[2] != ""


@pytest.fixture
def on_a_terminal(started):
    """What the program writes to a terminal, colours and all, and its exit code."""

    def run(*arguments, **environment):
        ours, terminal = pty.openpty()
        settings = {
            name: value
            for name, value in os.environ.items()
            if name not in ("NO_COLOR", "COLUMNS", "CI")
        }
        ended = started(
            arguments, terminal, terminal, settings | {"TERM": "xterm-256color"} | environment
        )
        os.close(terminal)
        seen = b""
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # the last writer left
                break
            if not part:
                break
            seen += part
        os.close(ours)
        return ended(), seen.decode()

    return run


def test_colour_is_for_terminals_and_for_those_who_want_it(
    make_run, tmp_path, on_a_terminal, process
):
    command = ["report", make_run().path, "--out", tmp_path / "out"]
    code, seen = on_a_terminal(*command)
    assert code == 0
    assert "\x1b[1;32mPass" in seen
    code, seen = on_a_terminal(*command, NO_COLOR="1")
    assert code == 0
    assert "Pass: the claim holds" in seen
    assert "\x1b[1;32m" not in seen
    _, out, err = process(*command)
    assert "Pass: the claim holds" in out
    assert "\x1b" not in out + err


def test_progress_has_a_rate_and_is_for_terminals_that_are_not_quiet(
    make_run, on_a_terminal, dpaudit
):
    run = make_run()
    code, seen = on_a_terminal("verify", run.path)
    assert code == 0
    assert "Auditing" in seen
    assert "2/2" in seen
    assert "Auditing" not in on_a_terminal("verify", run.path, "--quiet")[1]
    assert "Auditing" not in dpaudit("verify", run.path)[2]


# --- completion -----------------------------------------------------------------------------------


def test_completion_in_bash_completes(tmp_path):
    """In a real shell, by click's own way, as docs/command-line.md has it."""
    (tmp_path / "dpaudit").write_text(f'#!/bin/sh\nexec {sys.executable} -m dpaudit "$@"\n')
    (tmp_path / "dpaudit").chmod(0o755)
    script = """
    eval "$(_DPAUDIT_COMPLETE=bash_source dpaudit)"
    COMP_WORDS=(dpaudit inspect --ba) COMP_CWORD=2
    _dpaudit_completion dpaudit
    echo "${COMPREPLY[@]}"
    """
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PATH": path},
    )
    assert done.stdout.split() == ["--batch"]


def test_completion_knows_commands_options_and_run_directories(dpaudit, monkeypatch):
    def completed(words):
        """What the program answers to the shell's script."""
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
        return dpaudit()[1].splitlines()

    monkeypatch.setenv("_DPAUDIT_COMPLETE", "bash_complete")
    assert completed("dpaudit rep") == ["plain,replay", "plain,report"]
    assert completed("dpaudit verify --evi") == ["plain,--evidence"]
    assert completed("dpaudit report --audience pub")[-1] == "plain,public"
    for command in ("report", "verify", "inspect", "compare"):
        assert completed(f"dpaudit {command} exam") == ["dir,exam"]
    assert completed("dpaudit generate conf") == ["file,conf"]


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        # What is missing of dpaudit itself is a defect, and nothing that a user could install.
        (ModuleNotFoundError(name="dpaudit.gone"), 3, "internal error"),
        (ModuleNotFoundError(name="torch"), 2, "torch is not installed"),
        (
            OSError("a library's own, of a damaged file"),
            2,
            "a library cannot read or write a file (OSError)",
        ),
        (
            PermissionError(13, "Permission denied", "errors.py"),
            2,
            "errors.py: Permission denied. Mend that",
        ),
        (ImportError("cannot import name"), 3, "internal error (ImportError)"),
    ],
)
def test_imports_may_be_interrupted_or_fail(dpaudit, monkeypatch, raised, code, said):
    class Raises:
        def find_spec(self, name, *_):
            if name == "dpaudit.errors":
                raise raised

    monkeypatch.delitem(sys.modules, "dpaudit.errors")
    monkeypatch.setattr(sys, "meta_path", [Raises(), *sys.meta_path])
    found, out, err = dpaudit("checks")
    assert (found, out) == (code, "")
    assert said in err


def test_no_epsilon_beyond_those_that_a_claim_can_have_is_tested(dpaudit, make_run):
    """The option's bound is the field's."""
    assert MOST_EPSILON == MAX_NUMBER
    run = make_run().path
    for command in ("verify", "report"):
        code, _, err = dpaudit(command, run, "--epsilon", 1e16)
        assert code == 2 and "--epsilon" in err


def test_record_says_what_it_cannot_run(dpaudit, make_run, tmp_path):
    finished = make_run()
    (tmp_path / "script.py").write_text("raise SystemExit(7)")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    script, own = tmp_path / "script.py", ["--out", tmp_path / "run"]
    numbers = "dpaudit: --mend: "
    for arguments, said in (
        ([*own, "--", sys.executable], "dpaudit: -- PYTHON SCRIPT"),
        (
            [*own, "--", sys.executable, tmp_path / "none.py"],
            f": '{tmp_path / 'none.py'}'",
        ),
        ([*own, "--", "no-such-python", script], ": 'no-such-python'"),
        ([*own], "Missing argument"),
        ([*own, "--mend", "lengths", "--", sys.executable, script], numbers),
        ([*own, "--mend", "all", "--texts", "2", "--", sys.executable, script], numbers),
        ([*own, "--max-tokens", "2", "--", sys.executable, script], numbers),
        (
            [*own, "--mend", "everything", "--", sys.executable, script],
            "'everything' is not one of",
        ),
        ([*own, "--", sys.executable, script], "the script ended with exit code"),
        (
            [*own, "--", "true", script],
            "the script ended with exit code 0 and wrote no complete run",
        ),
        (["--out", tmp_path / "taken", "--", "true", script], "taken: the directory is not empty"),
        (
            ["--out", tmp_path / "taken" / "notes.txt", "--", "true", script],
            "notes.txt: cannot be written",
        ),
        (["--out", finished.path, "--", "true", script], "the directory is not empty"),
        (["--out", finished / "run", "--", "true", script], "inside a run directory"),
    ):
        code, out, err = dpaudit("record", "invink", *arguments)
        assert (code, out) == (2, ""), arguments
        assert said in err
        assert not (tmp_path / "run").exists()
    code, _, err = dpaudit("record", "nobody's", *own, "--", sys.executable, script)
    assert code == 2
    assert "GENERATOR" in err


def test_record_says_how_many_rows_hold_a_record(dpaudit, make_run, monkeypatch, tmp_path):
    """Of hashed cells, whose number may leave none that shows a record; and so do the reports."""
    run, script = make_run(rule="hashed-cells"), tmp_path / "script.py"
    run.edit_manifest({"recorded": {"generator": "other 1.0", "mended": ["batches"]}})
    run.rehash()
    script.touch()

    def recorded(*_: object, **__: object) -> SimpleNamespace:
        shutil.copytree(run.path, tmp_path / "run")
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr("dpaudit.api.recording.subprocess.run", recorded)
    code, _, err = dpaudit(
        "record", "invink", "--out", tmp_path / "run", "--", sys.executable, script
    )
    assert code == 0
    assert "9 of 14 rows hold" in err
    assert "the run does not say how records were given to batches" in " ".join(err.split())
    assert rows_held(0, 12).code == "caveat.rows-empty"
