"""evaluation.json may be anything: it gives one message and never has a say in a verdict."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dpaudit.auditing.disclosure import public_form
from dpaudit.commands.cli import main
from dpaudit.results.quality import (
    Baseline,
    Downstream,
    Encoder,
    HeldOut,
    HeldOutLikelihood,
    Mauve,
    MauveSettings,
    PerToken,
    ProbeSettings,
    Quality,
    Scores,
    Texts,
    Trained,
    added_by,
    scores,
)
from dpaudit.results.quality_file import (
    EVALUATION,
    MAX_BYTES,
    read_quality,
    write_measures,
    write_private,
)
from dpaudit.results.schemas import json_schema
from dpaudit.runs import InputError, RunReader

pytestmark = pytest.mark.usefixtures("empty_figures")
Run = Any
DIGEST = "ab" * 32


def quality(samples: str = DIGEST, **fields: Any) -> Quality:
    texts = Texts(texts=40, distinct=39, digest=DIGEST)
    settings = MauveSettings(
        n=20,
        clusters=2,
        iterations=500,
        initialisations=5,
        explained_variance=0.9,
        scaling=5.0,
        points=32,
        seeds=(0, 1),
    )
    encoder = Encoder(
        name="an encoder",
        digest=DIGEST,
        max_tokens=256,
        pooling="mean",
        dimensions=384,
        normalized=True,
    )
    probe = Downstream(
        method="linear-probe",
        encoder=encoder,
        settings=ProbeSettings(strength=1.0, iterations=1000, seeds=(0, 1, 2)),
        majority=0.5,
        trained=(Trained(source="synthetic", texts=40, accuracy=scores((0.75,))),),
    )
    values: dict[str, Any] = {
        "created": "2025-01-02T03:04:05+00:00",
        "samples": samples,
        "synthetic": texts,
        "label_lines": 0,
        "reference": texts,
        "own": 40,
        "features": encoder,
        "held_out": HeldOut(
            origin="split",
            share=0.2,
            seed=0,
            test=texts,
            own=1,
            dropped_real=0,
            dropped_synthetic=0,
        ),
        "mauve": Mauve(
            settings=settings,
            wanted=1000,
            real=40,
            score=scores((0.25, 0.5)),
            ceiling=scores((0.9, 0.95)),
        ),
        "downstream": (probe,),
        "warnings": ("MAUVE is of few texts.",),
        "versions": {"mauve-text": "0.4.0"},
    }
    return Quality(**{**values, **fields})


def edited(change: Callable[[Any], object]) -> str:
    fields = json.loads(quality().to_json())
    change(fields)
    return json.dumps(fields)


def test_what_is_written_is_read_back_by_its_owner_alone(tmp_path: Path) -> None:
    path = write_measures(quality(), tmp_path / "new" / "report")
    assert read_quality(path.parent, lambda: DIGEST) == quality()
    assert [stat.S_IMODE(p.stat().st_mode) for p in (path, path.parent, path.parent.parent)] == [
        0o600,
        0o700,
        0o700,
    ]
    assert [p.name for p in path.parent.iterdir()] == [EVALUATION]
    assert read_quality(tmp_path / "nowhere", pytest.fail) is None


def test_what_could_not_be_read_back_is_not_written(tmp_path: Path) -> None:
    loose = quality().model_copy(update={"own": 41})
    with pytest.raises(ValueError):
        write_measures(loose, tmp_path)
    assert not list(tmp_path.iterdir())


def test_reports_have_no_digests_of_texts_and_comparisons_need_them(tmp_path: Path) -> None:
    found = quality().without_digests()
    assert found.has_digests is False and found.model_dump()["reference"]["digest"] is None
    assert found.mauve == quality().mauve
    write_measures(found, tmp_path)
    with pytest.raises(InputError, match="lacks the digests"):
        read_quality(tmp_path, lambda: DIGEST)


def test_figures_of_other_versions_are_not_compared() -> None:
    for name, mauve, probe in [
        ("mauve-text", True, False),
        ("faiss-cpu", True, False),
        ("scikit-learn", True, True),
        ("torch", True, True),
        ("protocol", True, True),
        ("python", False, False),
    ]:
        one, other = quality(), quality(versions={**quality().versions, name: "another"})
        assert (one.mauve_conditions != other.mauve_conditions) is mauve
        (found,) = one.downstream
        assert (one.accuracy_conditions(found) != other.accuracy_conditions(found)) is probe


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20).map(tuple))
def test_scores_survive_a_round_trip(values: tuple[float, ...]) -> None:
    found = scores(values)
    assert Scores.model_validate_json(found.model_dump_json()) == found
    assert (found.std is None) == (len(values) == 1)
    with pytest.raises(ValidationError):
        Scores(values=values, mean=found.mean + 0.01, std=found.std)


def set_at(*path: str | int, value: Any) -> Callable[[Any], object]:
    def change(fields: Any) -> None:
        *parents, last = path
        for parent in parents:
            fields = fields[parent]
        fields[last] = value

    return change


def beside() -> Quality:
    """With a baseline, by MAUVE."""
    mauve = quality().mauve
    assert mauve is not None
    mauve = mauve.model_copy(update={"public": scores((0.2, 0.3))})
    texts = Texts(texts=40, distinct=39, digest=DIGEST)
    return quality(
        mauve=mauve, baseline=Baseline(samples=DIGEST, texts=texts, added=added_by(mauve, (), 0))
    )


def likely() -> Quality:
    """With a likelihood, and no baseline."""
    likelihood = HeldOutLikelihood(
        model=Encoder(name="a model", digest=DIGEST, max_tokens=64),
        texts=Texts(texts=8, distinct=8, digest=DIGEST),
        left_out=0,
        tokens=100,
        supported=90,
        nll=PerToken(mean=3.0, error=0.3),
        public_nll=PerToken(mean=4.5, error=0.4),
        gain=PerToken(mean=1.5, error=0.2),
    )
    return quality(likelihood=likelihood)


def edited_likely(change: Callable[[Any], object]) -> str:
    fields = json.loads(likely().to_json())
    change(fields["likelihood"])
    return json.dumps(fields)


def edited_beside(change: Callable[[Any], object]) -> str:
    fields = json.loads(beside().to_json())
    change(fields)
    return json.dumps(fields)


def test_what_is_written_is_valid_by_its_schema() -> None:
    schema = json_schema("evaluation")
    for found in (quality(), beside(), likely(), quality(mauve=None, held_out=None)):
        document = json.loads(found.to_json())
        jsonschema.validate(document, schema)
        for wrong in (
            {"audience": "public"},
            {"samples": "x"},
            {"new": 1},
            {"schema_version": "1"},
        ):
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(document | wrong, schema)


@pytest.mark.parametrize("found", [beside(), likely()])
def test_what_stands_beside_a_run_survives_a_round_trip(tmp_path: Path, found: Quality) -> None:
    write_measures(found, tmp_path)
    assert read_quality(tmp_path, lambda: DIGEST) == found


def test_a_likelihood_is_a_measure_that_needs_no_baseline() -> None:
    (added,) = likely().added
    assert (added.measure, added.difference, added.spread, added.outcome) == (
        "likelihood",
        1.5,
        0.2,
        "more",
    )
    bare = likely().without_digests()
    assert (
        bare.likelihood is not None
        and bare.likelihood.texts.digest is None
        and bare.added == likely().added
    )
    assert not likely().model_copy(update={"likelihood": bare.likelihood}).has_digests


HOSTILE: dict[str, str | bytes] = {
    "empty": "",
    "cut short": quality().to_json()[:-40],
    "not UTF-8": b"\xff\xfe{}",
    "another object": "{}",
    "a list": "[]",
    "deep": "[" * 100_000,
    "NaN": edited(set_at("mauve", "score", "mean", value=float("nan"))),
    "infinity": '{"mauve": 1e999}',
    "above 1": edited(set_at("mauve", "score", "values", 0, value=1.5)),
    "a mean that is not the values'": edited(set_at("mauve", "score", "mean", value=0.99)),
    "more of the run's own than there are": edited(set_at("own", value=41)),
    "more test texts of its own than there are": edited(set_at("held_out", "own", value=41)),
    "a variance that mauve-text cannot keep": edited(
        set_at("mauve", "settings", "explained_variance", value=0.99999)
    ),
    "no digest": edited(set_at("reference", "digest", value=None)),
    "no values": edited(set_at("mauve", "score", "values", value=[])),
    "a value too few": edited(set_at("mauve", "settings", "seeds", value=[0, 1, 2])),
    "a text for a number": edited(set_at("mauve", "settings", "n", value="20")),
    "a huge number": edited(set_at("synthetic", "texts", value=10**400)),
    "another version": edited(set_at("schema_version", value="1")),
    "public": edited(set_at("audience", value="public")),
    "no mark": edited(set_at("private", value="fit to publish")),
    "a field more": edited(set_at("surprise", value="<script>")),
    "a digest that is none": edited(set_at("reference", "digest", value="../../etc/passwd")),
    "other settings": edited(set_at("downstream", 0, "method", value="fine-tuned")),
    "a source twice": edited(
        lambda found: found["downstream"][0]["trained"].append(found["downstream"][0]["trained"][0])
    ),
    "a long name": edited(set_at("features", "name", value="x" * 2000)),
    "more added than measured": edited_beside(
        set_at("baseline", "added", 0, "difference", value=0.9)
    ),
    "a smaller spread than measured": edited_beside(
        set_at("baseline", "added", 0, "spread", value=0.001)
    ),
    "no spread": edited_beside(set_at("baseline", "added", 0, "spread", value=None)),
    "added to another measure": edited_beside(
        set_at("baseline", "added", 0, "measure", value="linear-probe")
    ),
    "nothing said of what was added": edited_beside(set_at("baseline", "added", value=[])),
    "a figure without its baseline": edited_beside(set_at("baseline", value=None)),
    "a baseline's value too few": edited_beside(
        set_at("mauve", "public", value=scores((0.2,)).model_dump())
    ),
    "a gain that is not the losses'": edited_likely(set_at("gain", "mean", value=1.6)),
    "a loss below 0": edited_likely(
        lambda f: [f["nll"].update(mean=-1.0), f["gain"].update(mean=5.5)]
    ),
    "an error that no texts have": edited_likely(set_at("gain", "error", value=0.05)),
    "an error of a single text": edited_likely(set_at("texts", "texts", value=1)),
    "no error of several texts": edited_likely(set_at("gain", "error", value=None)),
    "likelihood of no texts": edited_likely(set_at("texts", "texts", value=0)),
    "more supported tokens than there are": edited_likely(set_at("supported", value=101)),
    "a likelihood without the digest of its texts": edited_likely(
        set_at("texts", "digest", value=None)
    ),
    "a likelihood added to a baseline of texts": edited_beside(
        set_at("baseline", "added", 0, "measure", value="likelihood")
    ),
    "other texts": quality(samples="cd" * 32).to_json(),
    "a key twice": quality().to_json().replace('"private":', '"private": "x", "private":', 1),
    "errors about very many values": '{"downstream": [' + "{}," * 4_000_000 + "{}]}",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_was_not_written_here_is_told_in_one_line_and_changes_no_verdict(
    make_run: Callable[..., Run], capfd: pytest.CaptureFixture[str], tmp_path: Path, kind: str
) -> None:
    run, content = make_run(), HOSTILE[kind]
    (run / "report").mkdir()
    # Of this run's own texts: otherwise those alone would be told.
    own = f'"samples": "{RunReader(run.path).digest("samples.jsonl")}"'.encode()
    content = content if isinstance(content, bytes) else content.encode()
    (run / "report" / EVALUATION).write_bytes(
        content.replace(f'"samples": "{DIGEST}"'.encode(), own, 1)
    )
    code, err = report(run, capfd, tmp_path)
    assert code == 0
    (line,) = err.splitlines()
    assert EVALUATION in line and "dpaudit evaluate" in line and len(line) < 500
    for part in ("<script>", "surprise", "passwd", "xxxx"):
        assert part not in err


def report(run: Run, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> tuple[Any, str]:
    """Exit code and stderr of a report, which must have no quality in it."""
    with pytest.raises(SystemExit) as left:
        main(["report", str(run.path), "--out", str(tmp_path / "out"), "--quiet"])
    assert json.loads((tmp_path / "out" / "report.json").read_text())["quality"] is None
    assert "Quality of" not in (tmp_path / "out" / "report.html").read_text()
    return left.value.code, capfd.readouterr().err


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)


SPECIAL: dict[str, Callable[[Path], object]] = {
    "folder": Path.mkdir,
    "pipe": os.mkfifo,
    "link": lambda path: path.symlink_to("/etc/passwd"),
    "broken link": lambda path: path.symlink_to("nowhere"),
    "huge": huge,
}


@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_no_plain_file_is_not_read(
    make_run: Callable[..., Run], capfd: pytest.CaptureFixture[str], tmp_path: Path, kind: str
) -> None:
    run = make_run()
    (run / "report").mkdir()
    SPECIAL[kind](run / "report" / EVALUATION)
    code, err = report(run, capfd, tmp_path)
    assert code == 0 and err.count("\n") == 1 and EVALUATION in err


def test_a_failing_run_fails_with_an_evaluation_too(
    make_run: Callable[..., Run], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = make_run()
    run.edit_manifest({"claim.epsilon": run.exact * 0.9})
    run.rehash()
    write_measures(quality(RunReader(run.path).digest("samples.jsonl")), run / "report")
    with pytest.raises(SystemExit) as left:
        main(["report", str(run.path), "--out", str(tmp_path / "out"), "--quiet"])
    assert left.value.code == 1
    assert capfd.readouterr().err == ""
    assert "Quality of the texts" in (tmp_path / "out" / "report.html").read_text()


def test_the_public_form_of_a_result_has_none(make_run: Callable[..., Run]) -> None:
    result = make_run(aggregator="mean").audit().model_copy(update={"quality": quality()})
    assert public_form(result).quality is None
    assert (
        "MAUVE" not in public_form(result).to_json()
        and "mauve" not in public_form(result).to_json()
    )


def test_writing_replaces_no_special_file(tmp_path: Path) -> None:
    path = tmp_path / EVALUATION
    path.symlink_to(tmp_path / "target")
    with pytest.raises(InputError, match="no plain file"):
        write_private(path, b"{}")
    assert path.is_symlink() and not (tmp_path / "target").exists()
    with pytest.raises(InputError, match="cannot be written"):
        write_private(Path("/proc/none/file"), b"{}")
