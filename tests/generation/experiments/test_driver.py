"""A table with tiny models, end to end: order, resuming, failing rows, and the command's output."""

from __future__ import annotations

import csv
import json
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from dpaudit.api.evaluating import Evaluation
from dpaudit.auditing.run import audit_run
from dpaudit.commands.cli import cli, main
from dpaudit.generation.algorithm import generate
from dpaudit.generation.events import BatchDone
from dpaudit.generation.experiments.driver import BASELINE, RUN, Stages, run_table
from dpaudit.generation.experiments.table import EvaluationConfig, Row, load_table
from dpaudit.generation.experiments.table_page import files
from dpaudit.generation.experiments.table_results import (
    Audited,
    Evaluated,
    Measured,
    RowResult,
    TableResult,
)
from dpaudit.generation.joined import CACHE_VARIABLE
from dpaudit.results import AuditResult
from dpaudit.results.quality import Downstream, Mauve, Quality, scores
from dpaudit.runs import InputError
from dpaudit.runs.extras import installing
from dpaudit.runs.public import PublicReader
from dpaudit.runs.storage import open_storage

pytestmark = pytest.mark.usefixtures("empty_figures")
PUBLISHED = {"mauve": 0.5, "mauve_std": 0.01, "accuracy": 0.75, "accuracy_std": 0.02}
DELTA = 1e-3
LABELS = ("north", "south")
#: A run with a test seed fails its audit.
SECRET = {"test_seed": None}
FINE_TUNED = {
    "preset": "laptop",
    "batch_size": 2,
    "steps": 1,
    "learning_rates": (1e-4,),
    "weight_decays": (0.0,),
    "patience": 1,
    "validation": 0.1,
    "max_tokens": None,
    "seeds": (0, 1),
}


@pytest.fixture
def table_file(tmp_path: Path, settings: Callable[..., dict[str, Any]]) -> Path:
    """A mean row, a median row, and one whose data is not there."""
    mean = {"aggregator": "mean", "divisor": 4.0, "clip": 2.0}
    configs = {
        "rows/mean": settings(
            mechanism=mean, privacy={"delta": DELTA}, decoding=SECRET, record={"contexts": True}
        ),
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
            {
                "config": "rows/median.yaml",
                "dataset": "Letters",
                "method": "Median",
                "paper": paper,
            },
        ],
    }
    path = tmp_path / "table" / "table.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


class Recorder(Stages):
    """Stages that remember their requests.

    A row of `broken` fails while it is generated.
    """

    def __init__(
        self, *broken: str, evaluated: bool = True, quality: Quality | None = None
    ) -> None:
        super().__init__(evaluated=evaluated, unverified=True)
        self.asked: list[tuple[str, str]] = []
        self.broken, self.quality = broken, quality

    def generate(self, row: Row, run: Path) -> None:
        self.asked.append(("generate", row.name))
        if row.name in self.broken:
            raise RuntimeError("a private text")
        generate(row.config, run)

    def compare(self, row: Row, run: Path) -> None:
        self.asked.append(("compare", row.name))
        super().compare(row, run)

    def audit(self, run: Path) -> AuditResult:
        self.asked.append(("audit", run.parent.name))
        return audit_run(run)

    def evaluate(self, row: Row, run: Path, settings: EvaluationConfig) -> Quality:
        self.asked.append(("evaluate", run.parent.name))
        if self.quality is None:
            raise InputError("--reference", "there are no texts.", "Give some.")
        return self.quality


class Generating(Stages):
    """Stages that generate by a function of the row and its run directory, and audit."""

    def __init__(self, make: Callable[[Row, Path], None]) -> None:
        super().__init__(evaluated=False, unverified=True)
        self._make = make

    def generate(self, row: Row, run: Path) -> None:
        self._make(row, run)


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
    trained = (
        {"source": "synthetic", "texts": 4, "accuracy": figure},
        {"source": "real-same-size", "texts": 3},
    )
    return Quality.model_validate(
        {
            "created": "2026-11-22T00:00:00+00:00",
            "samples": "2" * 64,
            "synthetic": texts,
            "reference": texts,
            "label_lines": 0,
            "own": 4,
            "features": encoder,
            "held_out": None,
            "mauve": {
                "settings": settings,
                "wanted": 1000,
                "real": 8,
                "score": figure,
                "ceiling": ceiling,
            },
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


def run(path: Path, out: Path, recorder: Recorder, *only: str) -> TableResult:
    return run_table(load_table(path).only(only), out, recorder, lambda *told: None)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the rows are run once for all tests."""
    return tmp_path_factory.mktemp("made")


@pytest.fixture
def out(made: Path, table_file: Path, quality: Quality, tmp_path: Path) -> Path:
    """A copy of a table's folder with whole runs."""
    if not (made / "rows").exists():
        run(table_file, made, Recorder(quality=quality))
    shutil.copytree(made, tmp_path / "out")
    return tmp_path / "out"


NAMES = {"mean": "rows/mean", "median": "rows/median"}


def stages(first: str) -> list[tuple[str, str]]:
    """What is asked for the two rows that can be run."""
    # audits and evaluations see the run directory alone
    return [
        call
        for name in NAMES
        for call in ((first, NAMES[name]), ("audit", name), ("evaluate", name))
    ]


def test_rows_run_in_order_past_one_that_fails(
    table_file: Path, tmp_path: Path, quality: Quality
) -> None:
    first = Recorder(quality=quality)
    found = run(table_file, tmp_path / "out", first)
    assert first.asked == [("generate", "gone"), *stages("generate")]
    gone, mean, median = found.rows
    assert gone.failure is not None and (gone.failure.kind, gone.failure.stage) == (
        "unusable",
        "generate",
    )
    assert "nowhere.csv" in gone.failure.message
    for row in (mean, median):
        assert row.audited is not None and row.audited.verdict == "pass", row
        assert row.audited.texts == 4 and row.failure is None
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o700
    assert found.exit_code == 2


def test_a_whole_run_is_compared_audited_and_evaluated_again(
    table_file: Path, out: Path, quality: Quality
) -> None:
    better = {**quality.model_dump(), "warnings": ("measured again",)}
    again = Recorder(quality=Quality.model_validate(better))
    rows = run(table_file, out, again).rows
    assert again.asked == [("generate", "gone"), *stages("compare")]
    assert rows[1].evaluated is not None and rows[1].evaluated.warnings == ("measured again",)


def test_a_whole_run_of_another_config_or_other_records_is_refused(
    table_file: Path,
    tmp_path: Path,
    out: Path,
    settings: Callable[..., dict[str, Any]],
    data_file: Path,
) -> None:
    for changed in ["config", "records"]:
        config = table_file.parent / "rows" / "median.yaml"
        other = tmp_path / "other.csv"
        other.write_text(data_file.read_text() + "south,one more\n")
        sections: dict[str, Any] = {"decoding": {**SECRET, "max_tokens": 4}}
        told = "decoding.max_tokens"
        if changed == "records":
            sections, told = {"decoding": SECRET, "data": {"path": str(other)}}, "data.digest"
        config.write_text(yaml.safe_dump(settings(**sections)))
        recorder = Recorder(evaluated=False)
        row = run(table_file, out, recorder, "rows/median").rows[0]
        failure = row.failure
        assert failure is not None and (failure.kind, failure.stage) == ("unusable", "resume")
        assert told in failure.message and row.audited is None
        assert recorder.asked == [("compare", "rows/median")]


def test_texts_that_are_not_all_known_to_be_the_runs_own_give_no_figures(
    table_file: Path, out: Path, quality: Quality
) -> None:
    for own in [3, None]:
        other = quality.model_copy(update={"own": own})
        row = run(table_file, out, Recorder(quality=other), "rows/mean").rows[0]
        assert row.evaluated is None and row.audited is not None
        assert row.failure is not None and (row.failure.kind, row.failure.stage) == (
            "unusable",
            "evaluate",
        )


def test_a_failed_evaluation_keeps_the_audit_and_is_tried_again(
    table_file: Path, out: Path, quality: Quality
) -> None:
    row = run(table_file, out, Recorder(), "rows/mean").rows[0]
    assert row.audited is not None and row.evaluated is None
    assert row.failure is not None and row.failure.stage == "evaluate"
    again = Recorder(quality=quality)
    assert run(table_file, out, again, "rows/mean").rows[0].evaluated is not None


def test_what_cannot_be_audited_is_not_evaluated(
    table_file: Path, out: Path, quality: Quality
) -> None:
    hashes = out / "rows" / "median" / RUN / "hashes"
    hashes.write_bytes(b"\xff")
    again = Recorder(quality=quality)
    found = run(table_file, out, again, "rows/median")
    assert ("evaluate", "median") not in again.asked
    audited = found.rows[0].audited
    assert (
        audited is not None
        and audited.verdict == "error"
        and audited.failed
        and found.exit_code == 2
    )


def test_a_changed_run_fails_its_audit(table_file: Path, out: Path) -> None:
    samples = out / "rows" / "median" / RUN / "samples.jsonl"
    samples.write_bytes(samples.read_bytes()[:-40] + b"\n")
    found = run(table_file, out, Recorder(evaluated=False), "rows/median")
    row = found.rows[0]
    assert row.audited is not None and row.audited.verdict != "pass" and found.exit_code > 0


def test_a_defect_in_one_row_tells_its_type_alone_and_stops_no_other(
    table_file: Path, tmp_path: Path
) -> None:
    found = run(table_file, tmp_path / "out", Recorder("rows/mean", evaluated=False))
    failure = found.rows[1].failure
    assert failure is not None and failure.kind == "internal"
    assert "RuntimeError" in failure.message and "private" not in found.to_json().replace(
        "private records", ""
    )
    assert found.rows[2].audited is not None and found.exit_code == 3


HOW = installing("generate")


def test_what_lacks_on_this_machine_is_no_defect(table_file: Path, tmp_path: Path) -> None:
    for error, told in [
        (PermissionError(13, "Permission denied", "/place"), "/place: Permission denied."),
        (
            ModuleNotFoundError("No module named 'absent'", name="absent"),
            f"absent is not installed. {HOW}.",
        ),
        (
            OSError("what a library says of a damaged file"),
            "a library cannot read or write a file (OSError).",
        ),
    ]:

        def lacking(row: Row, where: Path) -> None:
            raise error

        rows = load_table(table_file).only(("rows/mean",))
        found = run_table(rows, tmp_path / "out", Generating(lacking), lambda *told: None)
        failure = found.rows[0].failure
        assert failure is not None and (failure.kind, failure.message) == ("unusable", told)


def test_one_process_at_a_time_has_the_folder(table_file: Path, tmp_path: Path) -> None:
    out, recorder = tmp_path / "out", Recorder(evaluated=False)
    release = open_storage(out).lock()
    with pytest.raises(InputError, match="another process is"):
        run(table_file, out, recorder, "rows/median")
    assert recorder.asked == []
    release()

    def second(row: Row, where: Path) -> None:
        open_storage(out).lock()

    rows = load_table(table_file).only(("gone",))
    failure = run_table(rows, out, Generating(second), lambda *told: None).rows[0].failure
    assert failure is not None and "process is writing" in failure.message
    open_storage(out).lock()()  # it was given back


def test_an_interruption_goes_on_at_the_batch_where_it_stopped(
    table_file: Path, tmp_path: Path
) -> None:
    rows = load_table(table_file).only(("rows/median",))

    def stopped(row: Row, where: Path) -> None:
        def stop(event: Any) -> None:
            if isinstance(event, BatchDone):
                raise KeyboardInterrupt

        generate(row.config, where, stop)

    recorder = Recorder(evaluated=False)
    with pytest.raises(KeyboardInterrupt):
        run_table(rows, tmp_path / "out", Generating(stopped), lambda *told: None)
    found = run_table(rows, tmp_path / "out", recorder, lambda *told: None)
    assert recorder.asked == [("generate", "rows/median"), ("audit", "median")]
    assert found.rows[0].audited is not None and found.rows[0].audited.verdict == "pass"


def test_what_a_table_takes_from_an_audit_and_an_evaluation(
    table_file: Path, out: Path, quality: Quality
) -> None:
    """Of two classifiers the fine-tuned one; the ceiling beside it is of as many real texts."""
    tuned = quality.downstream[0].model_dump()
    tuned |= {"method": "fine-tuned", "settings": FINE_TUNED}
    tuned["trained"][0]["accuracy"] = scores((0.6,)).model_dump()
    both = Quality.model_validate(
        {**quality.model_dump(), "downstream": (quality.downstream[0].model_dump(), tuned)}
    )
    row = run(table_file, out, Recorder(quality=both), "rows/median").rows[0]
    figure, ceiling = (
        Measured(mean=found.mean, std=found.std)
        for found in (scores((0.2, 0.4)), scores((0.8, 0.9)))
    )
    assert row.evaluated == Evaluated(
        n=4,
        mauve=figure,
        real_mauve=ceiling,
        method="fine-tuned",
        accuracy=Measured(mean=0.6, std=None),
        trained=4,
        real_accuracy=ceiling,
        real_trained=3,
        warnings=("few texts",),
    )
    assert (
        "public only"
        not in files(TableResult(title="T", versions={}, real={}, rows=(row,)))["table.md"].lower()
    )
    audit = audit_run(out / "rows" / "median" / RUN)
    ex_post = audit.guarantees.ex_post
    assert ex_post is not None and row.audited is not None
    assert row.audited.theorem1 == ex_post.theorem1 and row.audited.claim == audit.claim
    costly = audit.guarantees.model_copy(
        update={"ex_post": ex_post.model_copy(update={"rebalancing": 0.5})}
    )
    assert (
        Audited.of(audit.model_copy(update={"guarantees": costly})).theorem1
        == ex_post.theorem1 + 0.5
    )
    for status, verdict in (("error", "fail"), ("skip", "not_verified")):
        check = audit.checks[0].model_copy(update={"status": status})
        other = audit.model_copy(update={"checks": (check,), "verdict": verdict})
        assert Audited.of(other).failed == (check.id,)


def test_a_public_baseline_stands_below_its_row(
    table_file: Path, out: Path, quality: Quality
) -> None:
    figure = scores((0.3, 0.5))
    beside = quality.model_dump()
    beside["mauve"]["public"] = figure.model_dump()
    beside["downstream"][0]["trained"] += (
        {"source": "public", "texts": 2, "accuracy": figure.model_dump()},
    )
    mauve, downstream = (
        Mauve.model_validate(beside["mauve"]),
        Downstream.model_validate(beside["downstream"][0]),
    )
    read = quality.model_copy(update={"mauve": mauve, "downstream": (downstream,)})
    found = run(table_file, out, Recorder(quality=read), "rows/median")
    evaluated = found.rows[0].evaluated
    assert evaluated is not None and evaluated.public_mauve == Measured(
        mean=figure.mean, std=figure.std
    )
    assert (evaluated.public_accuracy, evaluated.public_trained) == (evaluated.public_mauve, 2)
    below = [line for line in files(found)["table.md"].splitlines() if "n = 4/2" in line]
    assert len(below) == 1 and ".400±.141" in below[0]
    cells = dict(zip(*list(csv.reader(files(found)["table.csv"].splitlines())), strict=True))
    assert (cells["public_mauve"], cells["public_accuracy_texts"]) == ("0.4", "2")


def test_the_command_makes_a_rows_baseline_once_and_measures_it_beside_the_run(
    table_file: Path, out: Path, quality: Quality, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = yaml.safe_load(table_file.read_text())
    values["rows"] = [{**values["rows"][1], "baseline": True}, values["rows"][2]]
    table_file.write_text(yaml.safe_dump(values))
    measured: list[tuple[str, Path | None]] = []

    def evaluate(run: Path, reference: Any, *, baseline: Path | None, **_: Any) -> Evaluation:
        measured.append((run.parent.name, baseline))
        return Evaluation(run, quality, run, None)

    monkeypatch.setattr("dpaudit.generation.experiments.driver.evaluate", evaluate)
    made = []
    for _ in range(2):
        assert command(table_file, "--out", out)[0] == 0
        public = out / "rows" / "mean" / BASELINE
        assert (
            PublicReader(public).public.samples
            and not (out / "rows" / "median" / BASELINE).exists()
        )
        made.append((public / "samples.jsonl").stat().st_mtime_ns)
    assert measured == [("mean", public), ("median", None)] * 2 and made[0] == made[1]


def test_the_exit_code_follows_the_audit() -> None:
    for verdict, code in [("pass", 0), ("fail", 1), ("error", 2)]:
        audited = {
            "verdict": verdict,
            "failed": (),
            "claim": None,
            "theorem1": None,
            "equal": None,
            "texts": 0,
            "tokens": 0,
        }
        row = {
            "config": "a",
            "dataset": "L",
            "method": "A",
            "kind": "ex-post",
            "clusters": 1,
            "unbounded": False,
        }
        rows = (RowResult.model_validate({**row, "audited": audited}),)
        assert TableResult(title="T", versions={}, real={}, rows=rows).exit_code == code


def test_table_json_reads_back(table_file: Path, out: Path, quality: Quality) -> None:
    found = run(table_file, out, Recorder(quality=quality), "rows/median")
    assert TableResult.model_validate_json(found.to_json()) == found


# --- the command ----------------------------------------------------------------------------------


def command(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli, ["lab", "table", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def test_the_command_goes_on_prints_and_writes_a_table(table_file: Path, out: Path) -> None:
    code, printed, told = command(table_file, "--out", out, "--no-evaluation", "--json")
    assert code == 2
    assert "[3/3] rows/median: auditing" in told and "table.md" in told
    rows = json.loads(printed)["rows"]
    assert [row["config"] for row in rows] == ["gone", "rows/mean", "rows/median"]
    assert rows[0]["failure"]["stage"] == "generate"
    assert json.loads((out / "table.json").read_text()) == json.loads(printed)
    for name in ("table.md", "table.csv", "table.json"):
        assert stat.S_IMODE((out / name).stat().st_mode) == 0o600
    assert (out / "rows" / "median" / RUN / "report" / "report.html").is_file()


def test_part_of_a_table_does_not_replace_the_whole(table_file: Path, out: Path) -> None:
    (out / "table.md").write_text("all rows")
    code, printed, told = command(
        table_file, "--out", out, "--no-evaluation", "--only", "rows/median"
    )
    assert code == 0, told
    assert "Median" in printed and "Mean" not in printed and "Gone" not in printed
    assert "[1/1] rows/median: auditing" in told and "Written" not in told
    assert (out / "table.md").read_text() == "all rows" and not (out / "table.csv").exists()


def test_a_table_that_cannot_be_written_was_printed(
    table_file: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (out / "table.md").mkdir()
    with pytest.raises(SystemExit) as left:
        main(["lab", "table", str(table_file), "--out", str(out), "--no-evaluation"])
    said = capsys.readouterr()
    assert (
        left.value.code == 2
        and "Median" in said.out
        and "table.md: cannot be written" in said.err
        and "no plain file" in said.err
    )


def test_a_second_command_in_the_folder_is_refused(
    table_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    release = open_storage(tmp_path / "out").lock()
    with pytest.raises(SystemExit) as left:
        main(["lab", "table", str(table_file), "--out", str(tmp_path / "out")])
    release()
    assert left.value.code == 2 and "another process is" in capsys.readouterr().err


def test_a_table_is_not_written_into_a_run_directory(
    table_file: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["lab", "table", str(table_file), "--out", str(out / "rows" / "median" / RUN / "sub")])
    assert left.value.code == 2 and "a run directory" in capsys.readouterr().err


def test_the_dry_run_needs_neither_data_nor_folder(table_file: Path, tmp_path: Path) -> None:
    code, printed, told = command(table_file, "--dry-run", "--tokens-per-second", 10)
    assert (code, told) == (0, "")
    assert "Gone" in printed and "10 context tokens/s, as given" in printed
    code, printed, _ = command(table_file, "--dry-run", "--json")
    assert code == 0
    mean = json.loads(printed)["rows"][1]
    assert (mean["batches"], mean["contexts"], mean["tokens"], mean["context_tokens"]) == (
        4,
        2.5,
        5,
        50,
    )
    assert mean["unit"] == "record" and mean["delta"] == DELTA


def test_what_cannot_be_asked(table_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, told in [
        ((), "Name a folder with --out"),
        (("--only", "rows/mode", "--dry-run"), "there is no row 'rows/mode'"),
    ]:
        with pytest.raises(SystemExit) as left:
            main(["lab", "table", str(table_file), *arguments])
        assert left.value.code == 2
        assert told in capsys.readouterr().err


def test_the_command_evaluates_with_a_probe_and_mauve(
    table_file: Path, tmp_path: Path, encoder_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mauve")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    values = yaml.safe_load(table_file.read_text())
    held_out = tmp_path / "held-out.csv"
    held_out.write_text(
        "label,text\n" + "".join(f"{label},{n} unseen\n" for n in range(4) for label in LABELS)
    )
    values["datasets"]["Letters"]["held_out"] = {"path": str(held_out)}
    values["evaluation"] = {"embedding": str(encoder_folder), "most_records": 6}
    table_file.write_text(yaml.safe_dump(values))
    code, printed, told = command(
        table_file, "--out", tmp_path / "out", "--only", "rows/median", "--json"
    )
    row = json.loads(printed)["rows"][0]
    assert code == 0, (told, row["failure"])
    assert "(--most-records)" in row["evaluated"]["warnings"][0]
    assert (tmp_path / "out" / "rows" / "median" / RUN / "report" / "evaluation.json").is_file()
