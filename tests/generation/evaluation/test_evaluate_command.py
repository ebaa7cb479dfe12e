"""`dpaudit evaluate` on files: what it prints, writes and refuses."""

from __future__ import annotations

import builtins
import json
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from pydantic import ValidationError

from dpaudit.commands.cli import main
from dpaudit.commands.evaluate import evaluate as evaluate_command
from dpaudit.generation.evaluation.settings import PAPER, PROBE
from dpaudit.generation.experiments.table import ALL_RECORDS
from dpaudit.results.quality import MOST, MauveSettings, Quality
from dpaudit.runs import RunReader
from dpaudit.runs.public import new_folder, write_public

pytestmark = pytest.mark.usefixtures("empty_figures")

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(
    run: Any,
    reference: Path,
    encoder_folder: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Command:
    """Run `dpaudit evaluate`: exit code, stdout, stderr.

    Output that quotes the real texts fails.
    """
    monkeypatch.setenv("COLUMNS", "200")

    def called(
        *options: object, name: str = "evaluate", where: object = run.path, real: object = reference
    ) -> Any:
        arguments = [name, str(where)]
        if name == "evaluate":
            arguments += [
                "--reference",
                str(real),
                "--embedding",
                str(encoder_folder),
                "--seeds",
                "2",
            ]
            arguments += ["--initialisations", "1"]
        with pytest.raises(SystemExit) as left:
            main([*arguments, *map(str, options)])
            raise SystemExit(0)
        out, err = capfd.readouterr()
        assert "7f3a" not in out + err and "Traceback" not in out + err
        return left.value.code, out, err

    return called


def test_a_table_is_printed_and_the_result_is_written(
    command: Command, run: Any, scores_folder: Path
) -> None:
    code, out, err = command()
    assert code == 0
    for part in (
        "MAUVE",
        "n = 40, 2 seeds",
        "Accuracy, linear probe",
        "(40 texts)",
        "Internal.",
        "Publishing them would",
    ):
        assert part in out
    assert "biased upwards" in err and "evaluation.json" in err
    path = run / "report" / "evaluation.json"
    for place, mode in ((path, 0o600), (run / "report", 0o700), (scores_folder, 0o700)):
        assert stat.S_IMODE(place.stat().st_mode) == mode
    assert [entry.name for entry in (run / "report").iterdir()] == [path.name]
    assert "7f3a" not in path.read_text()
    assert Quality.model_validate_json(path.read_text()).mauve is not None
    code, _, err = command(name="verify")  # the record is as it was
    assert code == 0 and "evaluation" not in err


def test_json_alone_is_printed(command: Command, run: Any, held_out: Path) -> None:
    code, out, _ = command("--json", "--test", held_out, "--n", "20", "--scaling", "2")
    assert code == 0
    found = json.loads(out)
    assert found == json.loads((run / "report" / "evaluation.json").read_text())
    assert found["mauve"]["settings"]["n"] == found["mauve"]["wanted"] == 20
    assert found["mauve"]["settings"]["scaling"] == 2.0
    assert found["held_out"]["origin"] == "file" and found["held_out"]["test"]["texts"] == 24


def test_reports_show_it_beside_the_budgets(command: Command, run: Any) -> None:
    assert command()[0] == 0
    code, out, err = command(name="report")
    assert code == 0 and "Quality of the texts" in out and "warning" not in err
    folder = run / "report"
    for name in ("report.html", "report.md"):
        shown = (folder / name).read_text()
        assert (
            "Quality of the texts" in shown
            and "Publishing them would" in shown
            and "n = 40" in shown
        )
    written = json.loads((folder / "report.json").read_text())["quality"]
    evaluation = json.loads((folder / "evaluation.json").read_text())
    assert written["mauve"] == evaluation["mauve"] and written["warnings"] == evaluation["warnings"]
    texts = [evaluation[name] for name in ("synthetic", "reference")] + [
        evaluation["held_out"]["test"]
    ]
    report = (folder / "report.json").read_text() + (folder / "report.html").read_text()
    assert not any(found["digest"] in report for found in texts)
    run.edit_samples(lambda lines: lines[0].update(text="something else"))
    code, out, err = command(name="report")
    assert (
        "Quality of the texts" not in out
        and "other texts were evaluated than samples.jsonl now holds" in err
    )


def test_no_public_report_has_any_of_it(command: Command, run: Any) -> None:
    assert command()[0] == 0
    found = json.loads((run / "report" / "evaluation.json").read_text())
    code, out, err = command("--audience", "public", name="report")
    folder = run / "report" / "public"
    texts = [out, err, *(path.read_text() for path in folder.iterdir())]
    assert code == 0 and len(texts) == 6
    figures = [repr(value) for value in found["mauve"]["score"]["values"]]
    for part in ("MAUVE", "Quality", "linear probe", found["reference"]["digest"], *figures):
        assert not any(part in text for text in texts)
    assert json.loads((folder / "report.json").read_text())["quality"] is None


def test_a_comparison_shows_it(
    command: Command, run: Any, make_run: Callable[..., Any], tmp_path: Path
) -> None:
    mean = make_run(sizes=(1,) * 40, aggregator="mean")
    other = make_run(sizes=(1,) * 40, seed=1)
    for place, n in ((run, 20), (mean, 20), (other, 30)):
        assert command("--n", n, where=place.path)[0] == 0
    page = tmp_path / "page.html"
    code, out, _ = command(other.path, mean.path, "--out", page, name="compare")
    assert code == 0
    for text in (out, page.read_text()):
        for part in ("Quality", "1: MAUVE, n = 20", "2: MAUVE, n = 30"):
            assert part in text
    columns = json.loads(command(other.path, mean.path, "--json", name="compare")[1])["quality"]
    assert all("no epsilon pays" in column["private"] for column in columns)
    mauve = [column for column in columns if column["measure"] == "mauve"]
    assert [(c["n"], len(c["scores"])) for c in mauve] == [(20, 2), (30, 1)]


@pytest.fixture
def make_baseline(run: Any, tmp_path: Path) -> Callable[..., Path]:
    """Public-only texts of each label for the run, whose model gets a digest.

    Each text holds its number.
    """
    run.edit_manifest({"model.digest": "ab" * 32})

    def made(text: str, count: int = 40, **changed: Any) -> Path:
        folder = tmp_path / f"public-{len(list(tmp_path.iterdir()))}"
        manifest = RunReader(run.path).manifest
        lines = (
            next(RunReader(run.path).samples()).model_copy(
                update={
                    "id": number,
                    "label": "ab"[number % 2],
                    "text": text.format(number, letter="xy"[number % 2]),
                }
            )
            for number in range(count)
        )
        with new_folder(folder) as storage:
            write_public(storage, manifest.model_copy(update=changed), count // 2, lines, None)
        return folder

    return made


def test_a_baseline_is_measured_beside_the_run(
    command: Command, run: Any, make_baseline: Callable[..., Path], held_out: Path
) -> None:
    run.edit_samples(
        lambda lines: [one.update(text=f"{'xy'[one['id'] % 2] * 9} {one['id']}") for one in lines]
    )
    run.edit_samples(lambda lines: [one.update(label="ab"[one["id"] % 2]) for one in lines])
    nonsense, alike = make_baseline("the same {}"), make_baseline("{letter}{letter}{letter} {}", 60)
    code, out, _ = command("--test", held_out, "--baseline", nonsense, "--json")
    assert code == 0
    found = json.loads(out)
    mauve, probe = found["baseline"]["added"]
    assert (mauve["measure"], probe["measure"], found["baseline"]["texts"]["texts"]) == (
        "mauve",
        "linear-probe",
        40,
    )
    figures = {trained["source"]: trained for trained in found["downstream"][0]["trained"]}
    assert list(figures) == ["synthetic", "public", "real-same-size", "real-all"]
    assert found["mauve"]["public"]["values"] != found["mauve"]["score"]["values"]
    difference = figures["synthetic"]["accuracy"]["mean"] - figures["public"]["accuracy"]["mean"]
    assert probe["difference"] == pytest.approx(difference) and difference > 0.3
    code, out, _ = command(name="report")
    assert code == 1 and "records added something" in out  # the record was edited
    page = (run / "report" / "report.html").read_text()
    assert "Public only" in page and "with the records" in page
    code, out, _ = command("--test", held_out, "--baseline", alike)
    assert code == 0 and "Accuracy, linear probe: +0.000 ± " in out and "told from chance" in out
    assert (
        Quality.model_validate_json((run / "report" / "evaluation.json").read_text()).baseline
        is not None
    )
    code, out, _ = command("--audience", "public", name="report")
    shown = (run / "report" / "public" / "report.html").read_text() + out
    assert code == 1 and "Public only" not in shown and "records added" not in shown
    assert command("--test", held_out)[0] == 0
    assert (
        Quality.model_validate_json((run / "report" / "evaluation.json").read_text()).baseline
        is None
    )


def test_a_classifier_is_fine_tuned_where_it_is_asked_for(
    command: Command, encoder_folder: Path, make_baseline: Callable[..., Path]
) -> None:
    options = [
        "--preset",
        "laptop",
        "--steps",
        "2",
        "--accuracy-seeds",
        "1",
        "--learning-rate",
        "0.001",
    ]
    code, out, _ = command("--classifier", encoder_folder, *options)
    assert code == 0 and "Accuracy, fine-tuned" in out
    assert "Accuracy, fine-tuned" in command()[1]  # measured before, and still of these texts
    # of whose texts nothing was tuned
    code, out, _ = command("--baseline", make_baseline("{letter} {}"), "--json")
    found = [each["method"] for each in json.loads(out)["downstream"]]
    assert code == 0 and found == ["linear-probe", "fine-tuned"]
    assert [each["measure"] for each in json.loads(out)["baseline"]["added"]] == [
        "mauve",
        "linear-probe",
    ]


def test_the_runs_own_baseline_is_measured_without_being_named(
    command: Command, run: Any, make_baseline: Callable[..., Path]
) -> None:
    shutil.copytree(make_baseline("{letter} {}"), run / "baseline")
    code, out, _ = command("--json")
    assert code == 0
    assert json.loads(out)["baseline"]["texts"]["texts"] > 0


def test_a_figure_is_refused_for_a_run_that_holds_nothing_out(command: Command, run: Any) -> None:
    code, _, err = command("--epsilon", "0.1")
    assert code == 2 and "--epsilon" in err
    assert not (run / "report" / "worth.json").exists()


def test_a_small_baseline_sets_the_n_of_both(
    command: Command, make_baseline: Callable[..., Path]
) -> None:
    code, out, err = command("--baseline", make_baseline("{letter} {}", 20), "--json")
    assert code == 0 and "baseline has 20 texts" in err
    found = json.loads(out)["mauve"]
    assert found["settings"]["n"] == 20 and len(found["public"]["values"]) == 2


def test_what_is_no_baseline_of_the_run_is_named(
    command: Command, run: Any, make_baseline: Callable[..., Path], tmp_path: Path
) -> None:
    colder = RunReader(run.path).manifest.mechanism.model_copy(update={"temperature": 0.25})
    for baseline, said in (
        (make_baseline("{}", mechanism=colder), "mechanism.temperature differs"),
        (run.path, "this is a run"),
        (tmp_path / "none", "public.json is missing"),
    ):
        code, out, err = command("--baseline", baseline)
        assert (code, out) == (2, "") and said in err
        assert not (run / "report" / "evaluation.json").exists()


def test_what_cannot_be_used_is_named(command: Command, run: Any) -> None:
    for options, said in [
        (["--n", "1"], "--n"),
        (["--clusters", "500"], "too few for 500 clusters"),
        (["--explained-variance", "0.9999"], "--explained-variance"),
        (["--n", "100000000000000"], "--n"),
        (["--iterations", "30000000000000"], "--iterations"),
        (["--probe-iterations", "10000000000000"], "--probe-iterations"),
        (["--scaling", "nan"], "--scaling"),
        (["--embedding", "/nowhere"], "--embedding"),
        (["--classifier", "/nowhere"], "--classifier"),
        (["--test", "/nowhere.csv"], "test: "),
        (["--test", "/nowhere.csv", "--test-share", "0.5"], "--test-share does not go"),
        (["--steps", "2"], "--steps: this is of fine-tuning, for which nothing asks"),
        (["--text", "body"], "--text"),
        (["--label", "topic"], "--label"),
        (["--preset", "cluster"], "--preset"),
    ]:
        code, out, err = command(*options)
        assert (code, out) == (2, "") and said in err
        assert not (run / "report" / "evaluation.json").exists()


def test_what_is_no_run_or_no_reference(command: Command, tmp_path: Path) -> None:
    code, out, err = command(where=tmp_path / "none")
    assert (code, out) == (2, "") and "none" in err
    code, out, err = command(real=tmp_path / "none.csv")
    assert (code, out) == (2, "") and "reference: " in err


def test_a_package_that_is_missing_is_named(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    importing = builtins.__import__

    def absent(name: str, *rest: Any) -> Any:
        if name == "dpaudit.generation.evaluation.protocol":
            raise ModuleNotFoundError("No module named 'mauve'", name="mauve")
        return importing(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)
    code, out, err = command()
    assert (
        (code, out) == (2, "")
        and "is not installed" in err
        and "mauve" in err
        and "[evaluate]" in err
    )


def test_what_is_in_the_way_is_left_there(
    command: Command, run: Any, tmp_path: Path, scores_folder: Path
) -> None:
    for there in ["folder", "link"]:
        (run / "report").mkdir()
        path, target = run / "report" / "evaluation.json", tmp_path / "target"
        target.write_text("another's")
        path.mkdir() if there == "folder" else path.symlink_to(target)
        code, _, err = command()
        assert code == 2 and "evaluation.json" in err
        assert not scores_folder.exists()  # told before anything is measured
        assert target.read_text() == "another's"
        shutil.rmtree(run / "report")


def limits() -> list[tuple[str, float]]:
    """Least and most of every bounded option, by its parameter."""
    found: list[tuple[str, float]] = []
    for option in evaluate_command.params:
        kind = option.type
        if isinstance(kind, click.IntRange | click.FloatRange) and option.name:
            found += [
                (option.name, bound)
                for bound, left_out in ((kind.min, kind.min_open), (kind.max, kind.max_open))
                if bound is not None and not left_out
            ]
    return [(name, bound) for name, bound in found if name != "workers"]


def test_what_an_option_takes_a_result_can_hold() -> None:
    """And nothing beyond a type's own limits is taken."""
    for name, value in limits():
        mauve: dict[str, Any] = {
            "n": 2,
            "clusters": 2,
            "iterations": 1,
            "initialisations": 1,
            "explained_variance": 0.9,
            "scaling": 1.0,
        }
        mauve |= {"points": 2, "seeds": (0,)}
        if name in ("seeds", "accuracy_seeds"):
            kinds: list[Any] = [
                (PROBE, "seeds", tuple(range(int(value)))),
                (MauveSettings(**mauve), "seeds", (0,)),
            ]
        elif name in mauve:
            kinds = [(MauveSettings(**mauve), name, value)]
        elif name.startswith("probe_"):
            kinds = [(PROBE, name.removeprefix("probe_"), value)]
        elif name == "weight_decays":
            kinds = [(PAPER, name, (value,))]
        elif name in type(PAPER).model_fields:
            kinds = [(PAPER, name, value)]
        else:
            assert (name, value) in {("most_records", v) for v in (4, ALL_RECORDS)} | {
                (name, v)
                for name, least in (("split_seed", 0), ("likelihood", 1))
                for v in (least, MOST)
            }
            continue
        for settings, field, held in kinds:
            assert type(settings).model_validate({**settings.model_dump(), field: held})
        if isinstance(value, int) and value > 2 and name not in ("seeds", "accuracy_seeds"):
            with pytest.raises(ValidationError):
                type(settings).model_validate({**settings.model_dump(), field: value + 1})


def test_help_has_an_example(command: Command) -> None:
    code, out, _ = command("--help")
    assert code == 0 and "dpaudit evaluate run --reference records.csv" in out
