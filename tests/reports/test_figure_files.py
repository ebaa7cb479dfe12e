"""Figures as files: their contents, their descriptions, and the command that writes them."""

from __future__ import annotations

import base64
import io
import math
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure
from PIL import Image

from dpaudit.commands.cli import main
from dpaudit.reports.drawing import drawable, in_page
from dpaudit.reports.figure_files import CAPTIONS, FigureRun, figure_files, why_not_drawn
from dpaudit.reports.figures import (
    MOST_RUNS,
    Format,
    batch_spread,
    batch_spreads,
    token_curve,
    token_curves,
)
from dpaudit.results import AuditResult

Samples = dict[str, Callable[[], AuditResult]]
Files = Callable[..., dict[str, bytes]]
PAIR = (("median run", "median"), ("_mean run", "mean"))
Command = Callable[..., tuple[int, str, str]]
HOSTILE = '<script>alert(1)</script> --> & "$\\frac{$ \x1b[31m\u202e日\ufffe'
ALL: tuple[Format, ...] = ("svg", "png", "pdf")
OF_A_RUN = ("batch-costs", "token-curve")


def drawn(
    *runs: tuple[str, AuditResult], formats: tuple[Format, ...] = ("svg",)
) -> dict[str, bytes]:
    return figure_files(
        [named(*run) for run in runs], formats, "dpaudit compare runs/a --figures figures"
    )


@pytest.fixture(scope="module")
def seen() -> dict[Any, dict[str, bytes]]:
    """Files that tests share: drawing takes a while."""
    return {}


@pytest.fixture
def files_of(
    samples: Samples, seen: dict[Any, dict[str, bytes]]
) -> Callable[..., dict[str, bytes]]:
    """The files of samples, each given as its label and its name."""

    def get(*runs: tuple[str, str]) -> dict[str, bytes]:
        if runs not in seen:
            seen[runs] = drawn(*((label, samples[name]()) for label, name in runs))
        return seen[runs]

    return get


def named(name: str, result: AuditResult) -> FigureRun:
    return FigureRun(name, f"runs/{name}", result)


def words(svg: bytes) -> str:
    """All text that is drawn."""
    root = ElementTree.fromstring(svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    return " | ".join(
        text for node in root.iter("{http://www.w3.org/2000/svg}text") for text in node.itertext()
    )


def canvas(draw: Callable[[Figure], None]) -> Figure:
    figure = Figure()
    draw(figure)
    return figure


# --- one run --------------------------------------------------------------------------------------


def test_a_run_has_its_figures_in_every_format_and_captions(samples: Samples) -> None:
    files = drawn(("bbc", samples["median"]()), formats=ALL)
    stems = [f"bbc-{name}" for name in OF_A_RUN]
    assert set(files) == {f"{stem}.{ending}" for stem in stems for ending in ALL} | {CAPTIONS}
    spread, curve = (words(files[f"{stem}.svg"]) for stem in stems)
    for text in ("bbc", "n = 40", "Ex-post epsilon of a batch (nats)", "Theorem 1", "exact"):
        assert text in spread
    for text in ("bbc", "of 40 batches", "Exact cost (nats)", "largest", "Position of the token"):
        assert text in curve
    for stem in stems:
        with Image.open(io.BytesIO(files[f"{stem}.png"])) as picture:
            picture.load()
            assert picture.info["dpi"] == pytest.approx((200, 200), abs=0.1)
            assert picture.convert("RGB").getpixel((0, 0)) == (255, 255, 255)
            assert "Internal" in picture.info["Description"]
        assert files[f"{stem}.pdf"].startswith(b"%PDF-") and files[f"{stem}.pdf"].endswith(
            b"%%EOF\n"
        )
        assert b"FontType 3" not in files[f"{stem}.pdf"] and b"/Type3" not in files[f"{stem}.pdf"]


def test_an_svg_needs_no_variables_of_a_page(files_of: Files) -> None:
    for name, file in files_of(*PAIR).items():
        text = file.decode()
        if name != CAPTIONS:
            assert "var(" not in text and "currentColor" not in text and "http-equiv" not in text
            assert re.search(
                r'<svg[^>]* width="[\d.]+pt" height="[\d.]+pt"|height="[\d.]+pt"', text
            )
            assert "Internal: computed from private data." in text
            assert "<dc:date" not in text


def ticks_of(axes: Any, rows: int) -> list[list[float]]:
    """Return the costs of each row's batches, as they are drawn."""
    found = [each.get_segments() for each in axes.collections]
    ticks = [each for each in found if each and each[0][0][1] % 1 == pytest.approx(0.31)]
    assert len(ticks) == rows
    return [sorted(float(segment[0][0]) for segment in each) for each in ticks]


def test_figures_hold_the_results_own_values(samples: Samples) -> None:
    result = samples["median"]()
    drawing, curve = batch_spread(result), token_curve(result)
    assert drawing is not None and curve is not None and result.tokens is not None
    exact, theorem1 = ticks_of(canvas(drawing.draw).axes[0], 2)
    assert exact == sorted(batch.exact for batch in result.batches if batch.exact is not None)
    assert theorem1 == sorted(each.theorem1 for each in result.batches if each.theorem1 is not None)
    panel = next(axes for axes in canvas(curve.draw).axes if axes.lines)
    drawn_lines = {line.get_label(): line for line in panel.lines}
    for label, values in (("mean", result.tokens.mean), ("largest", result.tokens.maximum)):
        assert list(drawn_lines[label].get_ydata()) == list(values)
        assert list(drawn_lines[label].get_xdata()) == list(result.tokens.position)


def test_the_reports_figures_are_the_same_drawings(samples: Samples) -> None:
    result = samples["median"]()
    for name, drawing in (
        ("batch-costs", batch_spread(result)),
        ("token-curve", token_curve(result)),
    ):
        shown = in_page(drawing)
        assert shown is not None
        in_file = words(drawn(("x", result))[f"x-{name}.svg"]).split(" | ")
        svg = base64.b64decode(shown.removeprefix("data:image/svg+xml;base64,"))
        assert sorted([*words(svg).split(" | "), "x"]) == sorted(in_file)


def test_page_draws_a_picture_once(samples: Samples, monkeypatch: pytest.MonkeyPatch) -> None:
    draws, draw = [], Figure.draw
    monkeypatch.setattr(Figure, "draw", lambda *given: draws.append(given) or draw(*given))
    in_page(batch_spread(samples["median"]()))
    assert len(draws) == 1


def test_every_kind_of_run_can_be_drawn(files_of: Files) -> None:
    for name, figures in [("one batch", 2), ("infinite", 2), ("user", 2), ("budgets", 2)]:
        files = files_of((name, name))
        assert len(files) == figures + 1  # the captions
        for file, content in files.items():
            if file.endswith(".svg"):
                words(content)


def test_runs_without_costs_are_refused_with_a_reason(samples: Samples) -> None:
    for name in ["approximate only", "no batch", "unreadable", "public"]:
        reason = why_not_drawn(samples[name]())
        assert "no ex-post cost" in reason
        assert ("(epsilon, delta)" in reason) == (name == "approximate only")
        with pytest.raises(ValueError, match="no ex-post cost"):
            drawn((name, samples[name]()))


def test_costs_that_are_all_infinite_are_no_figure(samples: Samples) -> None:
    result = samples["infinite"]()
    batches = tuple(batch.model_copy(update={"exact": math.inf}) for batch in result.batches)
    assert "finite" in why_not_drawn(result.model_copy(update={"batches": batches, "tokens": None}))
    # the first token's cost is finite
    assert why_not_drawn(result.model_copy(update={"batches": batches})) == ""


# --- several runs ---------------------------------------------------------------------------------


def test_several_runs_share_two_figures(files_of: Files) -> None:
    files = files_of(*PAIR)
    batches, tokens = words(files["all-batch-spreads.svg"]), words(files["all-token-curves.svg"])
    for text in ("median run", "_mean run", "n = 40", "n = 12", "(nats)"):
        assert text in batches and text in tokens
    assert "Position of the token in its text" in tokens


def test_shared_figures_hold_each_runs_own_values(samples: Samples) -> None:
    results = [samples["median"](), samples["mean"](), samples["infinite"]()]
    runs = [named(str(place), result) for place, result in enumerate(results)]
    series = [run.series(run.name) for run in runs]
    spreads, curves = batch_spreads(series), token_curves(series)
    assert spreads is not None and curves is not None
    for drawn_costs, result in zip(ticks_of(canvas(spreads.draw).axes[0], 3), results, strict=True):
        costs = [
            batch.exact
            for batch in result.batches
            if batch.exact is not None and math.isfinite(batch.exact)
        ]
        assert drawn_costs == sorted(costs)
    lines = next(axes for axes in canvas(curves.draw).axes if axes.lines).lines
    for line, result in zip(lines, results, strict=True):
        assert result.tokens is not None
        found = [value for value in line.get_ydata() if math.isfinite(value)]
        assert found == [value for value in result.tokens.mean if math.isfinite(value)]


def test_no_two_lines_look_the_same_even_in_grey(samples: Samples) -> None:
    series = [
        named(f"r{place}", samples["median"]()).series(f"r{place}") for place in range(MOST_RUNS)
    ]
    curves = token_curves(series)
    assert curves is not None
    lines = next(axes for axes in canvas(curves.draw).axes if axes.lines).lines
    looks = {
        (line.get_marker(), line.get_linestyle(), str(line._unscaled_dash_pattern))
        for line in lines
    }
    assert len(looks) == MOST_RUNS


def test_a_mean_run_says_that_its_costs_are_not_its_guarantee(files_of: Files) -> None:
    files = files_of(*PAIR)
    note = "Mean run: ex-post costs of its texts, not its (ε, δ) guarantee."
    for name in (
        "_mean-run-batch-costs.svg",
        "_mean-run-token-curve.svg",
        "all-batch-spreads.svg",
        "all-token-curves.svg",
    ):
        assert note in words(files[name])
    assert "_mean run\u00a0†" in words(files["all-batch-spreads.svg"])
    assert note not in words(files["median-run-batch-costs.svg"])
    assert note in files[CAPTIONS].decode()


def test_an_audit_that_did_not_pass_is_on_the_figure(files_of: Files) -> None:
    files = files_of(("good", "user"), ("bad", "failed"))
    assert "did not pass" in words(files["bad-batch-costs.svg"])
    assert "did not pass" not in words(files["good-batch-costs.svg"])
    assert "bad\u00a0‡" in words(files["all-token-curves.svg"])


def test_other_neighbours_are_named_beside_each_run(files_of: Files) -> None:
    alike, apart = files_of(*PAIR), files_of(("good", "user"), ("bad", "failed"))
    for name in ("all-batch-spreads.svg", "all-token-curves.svg"):
        assert "add/remove" not in words(alike[name])
        assert "record, add/remove" in words(apart[name]) and "user, add/remove" in words(
            apart[name]
        )


def test_hostile_names_are_text(samples: Samples) -> None:
    files = drawn(
        (HOSTILE, samples["hostile"]()),
        (HOSTILE, samples["median"]()),
        (".." * 9, samples["mean"]()),
    )
    assert all(re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", name) for name in files)
    assert len(files) == 3 * len(OF_A_RUN) + 3
    for name, content in files.items():
        # nothing is markup in code
        prose = re.sub(rb"`+.*?`+", b"", content) if name == CAPTIONS else content
        assert (
            b"<script" not in prose and b"\x1b" not in content and "\u202e".encode() not in content
        )
        if name.endswith("svg"):
            words(content)
    assert '<script>alert(1)</script> --> & "$' in words(files["all-token-curves.svg"])


def test_names_that_are_alike_get_numbers(samples: Samples) -> None:
    from dpaudit.reports.figure_files import _distinct

    assert _distinct(["run", "RUN", "run", "run-3", "all"], ["all"]) == [
        "run",
        "RUN-2",
        "run-3",
        "run-3-2",
        "all-2",
    ]
    files = drawn(("run", samples["one batch"]()), ("run", samples["one batch"]()))
    assert "run-2-token-curve.svg" in files and "run-2" in words(files["all-batch-spreads.svg"])


def test_what_the_font_lacks_is_marked() -> None:
    assert drawable("a 日本 ε") == "a \ufffd\ufffd ε"
    assert drawable("x" * 50, 40) == "x" * 39 + "…"


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture
def dpaudit(capfd: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        assert isinstance(left.value.code, int)
        return left.value.code, out, err

    return run


@pytest.mark.usefixtures("empty_figures")
def test_the_command_writes_privately_and_says_that_it_is_internal(
    make_run: Any, dpaudit: Command, tmp_path: Path
) -> None:
    out = tmp_path / "new/figures"
    code, printed, err = dpaudit("compare", make_run().path, "--figures", out, "--name", "a")
    assert code == 0
    assert "Internal." in err
    assert sorted(printed.split()) == sorted(str(path) for path in out.iterdir())
    stems = [f"a-{name}" for name in OF_A_RUN]
    assert {path.name for path in out.iterdir()} == {CAPTIONS} | {
        f"{s}.{end}" for s in stems for end in ("svg", "png")
    }
    assert {stat.S_IMODE(path.stat().st_mode) for path in out.iterdir()} == {0o600}
    assert stat.S_IMODE(out.stat().st_mode) == 0o700


@pytest.mark.usefixtures("empty_figures")
def test_files_of_before_are_replaced_and_others_kept(
    make_run: Any, dpaudit: Command, tmp_path: Path
) -> None:
    run = make_run()
    stem = Path(run.path).name
    arguments = ("compare", run.path, "--figures", tmp_path / "out", "--format", "svg")
    printed = dpaudit(*arguments)[1]
    first = {path: Path(path).read_bytes() for path in printed.split()}
    (tmp_path / "out/mine.svg").write_text("mine")
    (tmp_path / f"out/{stem}-token-curve.svg").write_text("old")
    assert dpaudit(*arguments)[0] == 0
    assert {path: Path(path).read_bytes() for path in first} == first
    assert (tmp_path / "out/mine.svg").read_text() == "mine"


@pytest.mark.usefixtures("empty_figures")
def test_a_link_in_a_figures_place_is_not_followed(
    make_run: Any, dpaudit: Command, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / f"out/{CAPTIONS}").symlink_to(tmp_path / "elsewhere")
    code, _, err = dpaudit("compare", make_run().path, "--figures", tmp_path / "out")
    assert code == 2 and CAPTIONS in err
    assert [path.name for path in (tmp_path / "out").iterdir()] == [CAPTIONS]


@pytest.mark.parametrize("broken", ["nowhere", "foreign", "unparsable", "unreadable"])
def test_a_run_that_cannot_be_read_leaves_no_figure(
    make_run: Any, dpaudit: Command, tmp_path: Path, broken: str
) -> None:
    run, out = make_run(), tmp_path / "out"
    bad = tmp_path / broken
    if broken == "foreign":
        bad.mkdir()
        (bad / "notes.txt").write_text("no run")
    elif broken == "unparsable":
        bad = make_run(seed=1)
        (bad / "run.json").write_text("{")
        bad = bad.path
    elif broken == "unreadable":
        bad = make_run(seed=1)
        bad.steps_file(0).write_bytes(b"PK")
        bad = bad.path
    code, _, err = dpaudit("compare", run.path, bad, "--figures", out)
    assert code == 2 and err.startswith("dpaudit: ")
    assert not out.exists()


@pytest.mark.usefixtures("empty_figures")
def test_a_failed_audit_exits_with_its_code_and_figures(
    make_run: Any, dpaudit: Command, tmp_path: Path
) -> None:
    run = make_run()
    run.edit_manifest({"claim.epsilon": run.exact * 0.99})
    run.rehash()
    assert dpaudit("compare", run.path, "--figures", tmp_path / "out", "--format", "svg")[0] == 1
    assert (tmp_path / f"out/{CAPTIONS}").exists()


def test_a_run_without_batch_costs_is_refused_by_its_path(
    make_run: Any,
    dpaudit: Command,
    tmp_path: Path,
    samples: Samples,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "dpaudit.api.audits.audit_run", lambda *_, **__: samples["approximate only"]()
    )
    make_run().path.rename(tmp_path / "mean")
    code, printed, err = dpaudit("compare", tmp_path / "mean", "--figures", tmp_path / "out")
    assert (code, printed) == (2, "")
    assert "mean: this run has no ex-post cost" in err and "(epsilon, delta)" in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("names", [["a"], ["a", "b", "c"]])
def test_each_run_has_one_name(dpaudit: Command, tmp_path: Path, names: list[str]) -> None:
    options = [word for name in names for word in ("--name", name)]
    code, _, err = dpaudit("compare", "one", "two", "--figures", tmp_path / "out", *options)
    assert code == 2 and "2 runs" in err


def test_runs_that_no_figure_can_tell_apart_are_refused(dpaudit: Command, tmp_path: Path) -> None:
    assert "named twice" in dpaudit("compare", "one", "one", "--figures", tmp_path / "out")[2]
    assert (
        str(MOST_RUNS)
        in dpaudit("compare", *range(MOST_RUNS + 1), "--figures", tmp_path / "out")[2]
    )


@pytest.mark.parametrize("place", ["", "steps", "steps/new", "figures", "run.json/x"])
def test_figures_inside_a_run_are_refused(make_run: Any, dpaudit: Command, place: str) -> None:
    run = make_run()
    before = sorted(Path(run.path).rglob("*"))
    code, printed, _ = dpaudit("compare", run.path, "--figures", Path(run.path) / place)
    assert (code, printed) == (2, "")
    assert sorted(Path(run.path).rglob("*")) == before


#: Draws the run of a report.json, and prints a digest of its figures.
DRAW = """
import hashlib, sys
from pathlib import Path
from dpaudit.reports.figure_files import FigureRun, figure_files
from dpaudit.results import AuditResult

result = AuditResult.model_validate_json(Path(sys.argv[1]).read_text("utf-8"))
files = figure_files([FigureRun("run", "runs/run", result)], ("svg", "pdf"), \
"dpaudit compare runs/run")
print(hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest())
"""


def test_every_process_draws_the_same_bytes(samples: Samples, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(samples["one batch"]().to_json(), "utf-8")
    command = [sys.executable, "-W", "error", "-c", DRAW, str(tmp_path / "report.json")]
    another = {
        **os.environ,
        "PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") == "77" else "77",
    }
    there = subprocess.run(command, check=True, env=another, capture_output=True, text=True).stdout
    with pytest.MonkeyPatch.context() as patch, io.StringIO() as said, redirect_stdout(said):
        patch.setattr(sys, "argv", command[-2:])
        exec(DRAW, {})
        assert said.getvalue() == there != ""
