"""Files on disk: private, whole, and the truth in full; and the numbers' rounding."""

from __future__ import annotations

import itertools
import json
import math
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from dpaudit.auditing.comparison import compare_runs
from dpaudit.reports.compare import render_comparison_html
from dpaudit.reports.machine import render_sarif
from dpaudit.reports.write import NoPlainFileError, write_files, write_reports
from dpaudit.results import AuditResult, RunSummary
from dpaudit.results.rounding import (
    bound,
    bound_against,
    delta_bound,
    lower_bound,
    nearest,
    saving,
    stated,
)

#: What is in a page is looked at elsewhere.
pytestmark = pytest.mark.usefixtures("undrawn")
Samples = Mapping[str, Callable[[], AuditResult]]


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_files_and_new_folder_are_the_owners_alone(samples: Samples, tmp_path: Path) -> None:
    paths = write_reports(samples["median"](), tmp_path / "new")
    assert {path.name for path in paths.values()} == {
        "report.html",
        "report.json",
        "report.md",
        "junit.xml",
    }
    assert {path.name for path in (tmp_path / "new").iterdir()} == {
        path.name for path in paths.values()
    }
    assert _mode(tmp_path / "new") == 0o700
    assert {_mode(path) for path in paths.values()} == {0o600}


def test_every_result_can_be_written_and_read_back(
    results: dict[str, AuditResult], tmp_path: Path
) -> None:
    for result in results.values():
        text = result.to_json()
        assert AuditResult.model_validate_json(text).to_json() == text
    paths = write_reports(results["unreadable"], tmp_path)
    assert paths["json"].read_text("utf-8") == results["unreadable"].to_json()


def test_infinities_travel_as_text(samples: Samples, tmp_path: Path) -> None:
    text = write_reports(samples["infinite"](), tmp_path)["json"].read_text("utf-8")
    assert json.loads(text)["guarantees"]["ex_post"]["epsilon"] == "inf"
    read = AuditResult.model_validate_json(text).guarantees.ex_post
    assert read is not None
    assert read.batch_epsilon == math.inf
    assert math.isnan(read.exact)


def test_a_failed_write_leaves_the_old_report_whole(
    samples: Samples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_reports(samples["no batch"](), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def refuse(*_: object) -> None:
        raise OSError("disk is full")

    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(OSError, match="disk is full"):
        write_reports(samples["unreadable"](), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_file_in_the_folders_place_is_an_os_error(samples: Samples, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("x")
    with pytest.raises(OSError, match="taken"):
        write_reports(samples["median"](), tmp_path / "taken")


NOT_PLAIN = {
    "pipe": os.mkfifo,
    "link": lambda path: path.symlink_to(path.parent / "linked"),
    "link to a file": lambda path: path.symlink_to(__file__),
    "folder": Path.mkdir,
}


def test_what_is_no_plain_file_is_not_replaced(samples: Samples, tmp_path: Path) -> None:
    result = samples["unreadable"]()  # nothing in it takes time to draw
    for kind, name in itertools.product(
        NOT_PLAIN, ("report.md", "findings.sarif", "comparison.html")
    ):
        folder = tmp_path / kind / name.partition(".")[2]
        folder.mkdir(parents=True)
        refused_in(folder, result, kind, name)


def refused_in(tmp_path: Path, result: AuditResult, kind: str, name: str) -> None:
    NOT_PLAIN[kind](tmp_path / name)
    before = (tmp_path / name).lstat()
    write: dict[str, Callable[[], object]] = {
        "report.md": lambda: write_reports(result, tmp_path),
        "findings.sarif": lambda: write_files({name: render_sarif(result)}, tmp_path),
        "comparison.html": lambda: write_files(
            {name: render_comparison_html(compare_runs({"a": result}))}, tmp_path
        ),
    }
    with pytest.raises(NoPlainFileError, match="no plain file") as refused:
        write[name]()
    assert refused.value.filename == str(tmp_path / name)
    after = (tmp_path / name).lstat()
    assert (after.st_mode, after.st_ino) == (before.st_mode, before.st_ino)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_folder_may_be_a_link(samples: Samples, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    write_reports(samples["median"](), tmp_path / "link")
    assert (tmp_path / "folder/report.md").is_file()


def test_a_lone_surrogate_does_not_stop_the_report(samples: Samples, tmp_path: Path) -> None:
    run = samples["median"]().model_copy(
        update={"run": RunSummary(path="a\ud800b", dpaudit="0.1.0")}
    )
    assert (
        json.loads(write_reports(run, tmp_path)["json"].read_text("utf-8"))["run"]["path"]
        == "a\\ud800b"
    )


def test_findings_are_the_owners_alone(samples: Samples, tmp_path: Path) -> None:
    write_files({"findings.sarif": render_sarif(samples["failed"]())}, tmp_path / "new")
    assert _mode(tmp_path / "new" / "findings.sarif") == 0o600
    assert (
        json.loads((tmp_path / "new" / "findings.sarif").read_text("utf-8"))["version"] == "2.1.0"
    )


def test_a_comparison_is_the_owners_alone(samples: Samples, tmp_path: Path) -> None:
    comparison = compare_runs({name: samples[name]() for name in ("median", "mean")})
    page = tmp_path / "new" / "comparison.html"
    write_files(
        {page.name: render_comparison_html(comparison, {"median": "median/report.html"})},
        page.parent,
    )
    assert _mode(page) == 0o600
    assert page.read_text("utf-8") == render_comparison_html(
        comparison, {"median": "median/report.html"}
    )


def test_bounds_are_rounded_up() -> None:
    for value, shown in [
        (0.0, "0"),
        (0.1, "0.1000"),
        (2.5, "2.500"),
        (2.41301, "2.414"),
        (0.024101, "0.02411"),
        (12345.2, "12,346"),
        (0.000012341, "1.235e-5"),
        (99999e-9, "0.0001000"),
        (9.99951, "10.00"),
        (-2.41399, "-2.413"),
        (5e-324, "5.000e-324"),
        (1.23456e20, "1.235e+20"),
        (math.inf, "infinite"),
        (-math.inf, "minus infinite"),
        (math.nan, "not a number"),
    ]:
        assert bound(value) == shown


def test_measured_figures_are_rounded_to_the_nearest() -> None:
    assert nearest(2.41301) == "2.413"


def test_lower_ends_are_rounded_down() -> None:
    assert lower_bound(2.30949) == "2.309"


def test_savings_in_nats_and_percent() -> None:
    for larger, smaller, shown in [
        (0.815, 0.768, "0.0470 (5.8%)"),
        (2.0, 2.0, "none"),
        (0.0, 0.0, "none"),
        (math.inf, 1.0, "not finite"),
        (math.inf, math.inf, "not finite"),
        (1.0, math.nan, "not finite"),
    ]:
        assert saving(larger, smaller) == shown


def test_claims_are_never_rounded() -> None:
    for value, shown in [
        (2.5, "2.5"),
        (6.0, "6"),
        (3.1234567890123, "3.1234567890123"),
        (1e300, "1e+300"),
    ]:
        assert stated(value) == shown


def test_rounding_up_never_makes_a_held_claim_look_broken() -> None:
    for value, claimed, shown in [
        (2.413, 2.5, "2.413"),
        (2.49999, 2.5, "2.500"),
        (2.49999, 2.49999, "2.49999"),
        (3.1234567890123, 3.1234567890123, "3.1234567890123"),
        (2.51, 2.5, "2.510000"),
        (math.inf, 2.5, "infinite"),
    ]:
        assert bound_against(value, claimed) == shown
    for value, claimed, shown in [
        (4.4e-4, 4.4e-4, "0.00044"),
        (1e-5, 1e-5, "1e-5"),
        (1.23456e-5, 2e-5, "1.24e-5"),
    ]:
        assert delta_bound(value, claimed) == shown
    assert delta_bound(1.23456e-5, 1.23456e-5) == "1.23456e-5"
    assert delta_bound(0.9999999) == "0.9999999"
