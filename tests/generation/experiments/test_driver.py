"""A table with tiny models from end to end: order, resuming, rows that fail, and what the command prints and leaves."""

from __future__ import annotations

import csv
import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from dpaudit.audit import audit_run
from dpaudit.cli import cli, main
from dpaudit.quality import Quality, scores
from dpaudit.results import AuditResult
from dpaudit.runs import InputError
from generation.algorithm import generate
from generation.experiments.driver import RESULT, RUN, Stages, run_table
from generation.experiments.layout import lines, markdown, notes, spreadsheet
from generation.experiments.results import TableResult
from generation.experiments.table import EvaluationConfig, Row, load_table

PUBLISHED = {"mauve": 0.5, "mauve_std": 0.01, "accuracy": 0.75, "accuracy_std": 0.02}
DELTA = 1e-3
LABELS = ("north", "south")
#: A run with a test seed fails its audit.
SECRET = {"test_seed": None}


@pytest.fixture
def table_file(tmp_path: Path, settings: Callable[..., dict[str, Any]]) -> Path:
    """A mean row, a median row, and one whose data is not there."""
    mean = {"aggregator": "mean", "divisor": 4.0, "clip": 2.0}
    configs = {
        "rows/mean": settings(mechanism=mean, privacy={"delta": DELTA}, decoding=SECRET),
        "rows/median": settings(decoding=SECRET),
        "gone": settings(data={"path": str(tmp_path / "nowhere.csv")}),
    }
    (tmp_path / "table" / "rows").mkdir(parents=True)
    for name, values in configs.items():
        (tmp_path / "table" / f"{name}.yaml").write_text(yaml.safe_dump(values))
    paper = {"epsilon": 9.9, "clustering_epsilon": 0.1, "clusters": 3, **PUBLISHED}
    values = {
        "title": "Tiny | table",
        "parameters": 1e4,
        "datasets": {"Letters": {"records": 10, "paper": PUBLISHED}},
        "rows": [
            {"config": "gone.yaml", "dataset": "Letters", "method": "Gone"},
            {"config": "rows/mean.yaml", "dataset": "Letters", "method": "Mean", "paper": paper},
            {"config": "rows/median.yaml", "dataset": "Letters", "method": "Median", "paper": paper},
        ],
    }
    path = tmp_path / "table" / "table.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


class Recorder:
    """Stages that remember what was asked of them. A row of `broken` fails while it is generated."""

    def __init__(self, *broken: str, evaluated: bool = True, quality: Quality | None = None) -> None:
        self.asked: list[tuple[str, str]] = []
        self.broken, self.quality = broken, quality
        self.stages = Stages(self._generate, self._audit, self._evaluate if evaluated else None)

    def _generate(self, row: Row, run: Path) -> None:
        self.asked.append(("generate", row.name))
        if row.name in self.broken:
            raise RuntimeError("a private text")
        generate(row.config, run)

    def _audit(self, run: Path) -> AuditResult:
        self.asked.append(("audit", run.parent.name))
        return audit_run(run)

    def _evaluate(self, run: Path, reference: Any, held_out: Any, settings: EvaluationConfig) -> Quality:
        self.asked.append(("evaluate", run.parent.name))
        if self.quality is None:
            raise InputError("--reference", "there are no texts.", "Give some.")
        return self.quality


@pytest.fixture
def quality() -> Quality:
    texts = {"texts": 4, "distinct": 4, "digest": "0" * 64}
    encoder = {"name": "tiny", "digest": "1" * 64, "max_tokens": 48}
    settings = {
        "n": 4,
        "clusters": 2,
        "iterations": 5,
        "initialisations": 1,
        "explained_variance": 0.9,
        "scaling": 5.0,
        "points": 32,
        "seeds": (0, 1),
    }
    figure, ceiling = (scores(values).model_dump() for values in ((0.2, 0.4), (0.8, 0.9)))
    trained = ({"source": "synthetic", "texts": 4, "accuracy": figure}, {"source": "real-same-size", "texts": 4})
    return Quality.model_validate(
        {
            "created": "2026-11-22T00:00:00+00:00",
            "samples": "2" * 64,
            "synthetic": texts,
            "reference": texts,
            "is_runs_data": True,
            "features": encoder,
            "held_out": None,
            "mauve": {"settings": settings, "wanted": 1000, "score": figure, "ceiling": ceiling},
            "downstream": (
                {
                    "method": "linear-probe",
                    "encoder": encoder,
                    "settings": {"strength": 1.0, "iterations": 10, "seeds": (0, 1)},
                    "majority": 0.5,
                    "trained": (trained[0], {**trained[1], "accuracy": ceiling}),
                },
            ),
            "warnings": ("few texts",),
            "versions": {},
        }
    )


def run(path: Path, out: Path, recorder: Recorder) -> TableResult:
    return run_table(load_table(path), out, recorder.stages, lambda *told: None)


def test_rows_run_in_order_past_one_that_fails_and_again_only_where_something_is_left(
    table_file: Path, tmp_path: Path, quality: Quality
) -> None:
    first = Recorder(quality=quality)
    found = run(table_file, tmp_path / "out", first)
    done = [(stage, name) for name in ("mean", "median") for stage in ("generate", "audit", "evaluate")]
    names = {"mean": "rows/mean", "median": "rows/median"}
    done = [(stage, names[name] if stage == "generate" else name) for stage, name in done]
    assert first.asked == [("generate", "gone"), *done]
    gone, mean, median = found.rows
    assert gone.failure is not None and (gone.failure.kind, gone.failure.stage) == ("unusable", "generate")
    assert "nowhere.csv" in gone.failure.message and gone.key == ""
    for row in (mean, median):
        assert row.audited is not None and row.audited.verdict == "pass", row
        assert row.audited.texts == 4 and row.evaluated is not None and row.failure is None
        assert stat.S_IMODE((tmp_path / "out" / row.config / RESULT).stat().st_mode) == 0o600
    assert found.exit_code == 2
    again = Recorder(quality=quality)
    assert run(table_file, tmp_path / "out", again) == found
    assert again.asked == [("generate", "gone")]


def test_a_failed_evaluation_keeps_the_audit_and_is_tried_again(
    table_file: Path, tmp_path: Path, quality: Quality
) -> None:
    row = run(table_file, tmp_path / "out", Recorder()).rows[1]
    assert row.audited is not None and row.evaluated is None
    assert row.failure is not None and row.failure.stage == "evaluate"
    again = Recorder(quality=quality)
    assert run(table_file, tmp_path / "out", again).rows[1].evaluated is not None
    assert ("generate", "rows/mean") not in again.asked and ("evaluate", "mean") in again.asked


def test_a_table_without_evaluation_is_not_taken_for_one_with_it(
    table_file: Path, tmp_path: Path, quality: Quality
) -> None:
    assert run(table_file, tmp_path / "out", Recorder(evaluated=False)).rows[1].evaluated is None
    assert run(table_file, tmp_path / "out", Recorder(quality=quality)).rows[1].evaluated is not None


def test_a_defect_in_one_row_tells_its_type_alone_and_stops_no_other(table_file: Path, tmp_path: Path) -> None:
    found = run(table_file, tmp_path / "out", Recorder("rows/mean", evaluated=False))
    failure = found.rows[1].failure
    assert failure is not None and failure.kind == "internal"
    assert "RuntimeError" in failure.message and "private" not in found.to_json().replace("private records", "")
    assert found.rows[2].audited is not None and found.exit_code == 3


def test_an_interruption_goes_on_at_the_batch_where_it_stopped(
    table_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = load_table(table_file).only(("rows/median",))

    def stopped(row: Row, where: Path) -> None:
        from generation.events import BatchDone

        def stop(event: Any) -> None:
            if isinstance(event, BatchDone):
                raise KeyboardInterrupt

        generate(row.config, where, stop)

    recorder = Recorder(evaluated=False)
    with pytest.raises(KeyboardInterrupt):
        run_table(table, tmp_path / "out", Stages(stopped, recorder.stages.audit, None), lambda *told: None)
    found = run_table(table, tmp_path / "out", recorder.stages, lambda *told: None)
    assert recorder.asked == [("generate", "rows/median"), ("audit", "median")]
    assert found.rows[0].audited is not None and found.rows[0].audited.verdict == "pass"


def test_a_row_that_was_begun_with_another_config_is_refused(
    table_file: Path, tmp_path: Path, settings: Callable[..., dict[str, Any]]
) -> None:
    recorder = Recorder(evaluated=False)
    run(table_file, tmp_path / "out", recorder)
    config = table_file.parent / "rows" / "median.yaml"
    config.write_text("# a comment changes nothing\n" + config.read_text())
    assert run(table_file, tmp_path / "out", recorder).rows[2].failure is None
    config.write_text(yaml.safe_dump(settings(decoding={"max_tokens": 4})))
    failure = run(table_file, tmp_path / "out", recorder).rows[2].failure
    assert failure is not None and "another config" in failure.message


def test_a_changed_run_is_audited_again(table_file: Path, tmp_path: Path) -> None:
    run(table_file, tmp_path / "out", Recorder(evaluated=False))
    hashes = tmp_path / "out" / "rows" / "median" / RUN / "hashes"
    hashes.write_text(hashes.read_text().replace("samples.jsonl", "sample.jsonl"))
    row = run(table_file, tmp_path / "out", Recorder(evaluated=False)).rows[2]
    assert row.audited is not None and row.audited.verdict != "pass"


def test_the_layout_has_the_papers_figures_beside_ours(table_file: Path, tmp_path: Path, quality: Quality) -> None:
    found = run(table_file, tmp_path / "out", Recorder(quality=quality))
    real, gone, mean, median = lines(found)
    assert real[:2] == ("Letters", "Real data")
    assert real.mauve == (".500±.010", ".850±.071") and real.accuracy == (".750±.020", ".850±.071")
    assert gone.audit == "could not generate" and gone.mauve == ("-", "-")
    assert mean.clusters == median.clusters == ("3", "2")
    # Two kinds of epsilon never share a column.
    assert mean.approximate[0] == median.ex_post[0] == "9.9+0.1"
    assert mean.ex_post == median.approximate == ("-", "-")
    assert mean.mauve == (".500±.010", ".300±.141")
    audited = found.rows[2].audited
    assert audited is not None and audited.claim is not None and audited.theorem1 is not None
    exact, theorem1 = (float(part) for part in median.ex_post[1].rstrip(")").split(" ("))
    assert audited.claim.epsilon <= exact < audited.claim.epsilon + 0.01
    assert audited.theorem1 <= theorem1 < audited.theorem1 + 0.01
    assert "few texts" in list(notes(found))
    page = markdown(found)
    assert page.startswith("# Tiny \\| table\n") and "no epsilon pays for publishing it" in page
    assert "| Letters | Mean | 3 | 2 | 9.9+0.1 |" in page
    sheet = list(csv.DictReader(spreadsheet(found).splitlines()))
    assert [row["kind"] for row in sheet] == ["ex-post", "approximate", "ex-post"]
    assert float(sheet[1]["mauve"]) == pytest.approx(0.3) and sheet[1]["delta"] == str(DELTA)


def test_table_json_reads_back(table_file: Path, tmp_path: Path, quality: Quality) -> None:
    found = run(table_file, tmp_path / "out", Recorder(quality=quality))
    assert TableResult.model_validate_json(found.to_json()) == found


# --- the command -----------------------------------------------------------------------------------------------------


def command(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli, ["table", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def test_the_command_runs_prints_and_writes_a_table(table_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, printed, told = command(table_file, "--out", out, "--no-evaluation", "--only", "rows/median")
    assert code == 0, told
    assert "Median" in printed and "Mean " not in printed and "[1/1] rows/median: auditing" in told
    for name in ("table.md", "table.csv", "table.json"):
        assert stat.S_IMODE((out / name).stat().st_mode) == 0o600
    assert (out / "rows" / "median" / RUN / "report" / "report.html").is_file()
    code, printed, told = command(table_file, "--out", out, "--no-evaluation", "--json")
    assert code == 2
    rows = json.loads(printed)["rows"]
    assert [row["config"] for row in rows] == ["gone", "rows/mean", "rows/median"]
    assert rows[0]["failure"]["stage"] == "generate" and "done before" in told
    assert json.loads((out / "table.json").read_text()) == json.loads(printed)


def test_the_dry_run_needs_neither_data_nor_folder(table_file: Path, tmp_path: Path) -> None:
    code, printed, told = command(table_file, "--dry-run", "--tokens-per-second", 10)
    assert (code, told) == (0, "")
    assert "Gone" in printed and "10 context tokens/s, as given" in printed
    code, printed, _ = command(table_file, "--dry-run", "--json")
    assert code == 0
    mean = json.loads(printed)["rows"][1]
    assert (mean["batches"], mean["contexts"], mean["tokens"], mean["context_tokens"]) == (4, 2.5, 5, 50)
    assert mean["unit"] == "record" and mean["delta"] == DELTA


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "Name a folder with --out"),
        (("--only", "rows/mode", "--dry-run"), "there is no row 'rows/mode'"),
        (("--out", "x", "--tokens-per-second", "3"), "--tokens-per-second is for --dry-run"),
    ],
)
def test_what_cannot_be_asked(
    table_file: Path, arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["table", str(table_file), *arguments])
    assert left.value.code == 2
    assert told in capsys.readouterr().err


def test_the_command_evaluates_with_a_probe_and_mauve(table_file: Path, tmp_path: Path, encoder_folder: Path) -> None:
    pytest.importorskip("mauve")
    values = yaml.safe_load(table_file.read_text())
    held_out = tmp_path / "held-out.csv"
    held_out.write_text("label,text\n" + "".join(f"{label},{n} unseen\n" for n in range(4) for label in LABELS))
    values["datasets"]["Letters"]["held_out"] = {"path": str(held_out)}
    values["evaluation"] = {"embedding": str(encoder_folder)}
    table_file.write_text(yaml.safe_dump(values))
    code, printed, told = command(table_file, "--out", tmp_path / "out", "--only", "rows/median", "--json")
    row = json.loads(printed)["rows"][0]
    assert code == 0, (told, row["failure"])
    assert row["evaluated"]["warnings"]
    assert (tmp_path / "out" / "rows" / "median" / RUN / "report" / "evaluation.json").is_file()
