"""Public-only texts: a run's prompts without records, in a directory that is no run's."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dpaudit.commands.cli import main
from dpaudit.generation.algorithm import generate
from dpaudit.generation.config import Config
from dpaudit.generation.models import LanguageModel
from dpaudit.generation.passes import OwnCache
from dpaudit.generation.prompts import template
from dpaudit.generation.public import generate_public
from dpaudit.generation.sampling import SeededStream, sample
from dpaudit.runs import InputError, RunReader, Sample
from dpaudit.runs.public import PublicReader

MakeConfig = Callable[..., Config]
MakeRun = Callable[..., Path]

TOP = {"support": {"kind": "public-top-k", "size": 12}}
NOWHERE = {"path": "/nowhere/at/all.csv"}
EXAMPLES = {"north": ["Snow until noon.", "A cold wind."], "south": ["Dust in the afternoon."]}


def texts(folder: Path) -> list[Sample]:
    return list(PublicReader(folder).samples())


@pytest.fixture
def public(tmp_path: Path, make_config: MakeConfig) -> MakeRun:
    """Makes public-only texts. Arguments as for `make_config`."""

    def make(**sections: Any) -> Path:
        config = make_config(**{"data": NOWHERE, **sections})
        return Path(generate_public(config, tmp_path / f"public-{len(list(tmp_path.iterdir()))}"))

    return make


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[Any, str]]:
    """Runs dpaudit: exit code, and all that it said."""

    def called(*arguments: object) -> tuple[Any, str]:
        with pytest.raises(SystemExit) as left:
            main([*map(str, arguments)])
            raise SystemExit(0)
        said = "".join(capfd.readouterr())
        assert "Traceback" not in said
        return left.value.code, said

    return called


@pytest.mark.parametrize(
    ("size", "margin", "temperature"), [(12, None, 0.7), (12, 0.25, 1.0), (None, None, 1.5)]
)
def test_each_token_is_drawn_from_the_public_prompt_alone(
    public: MakeRun, tiny: LanguageModel, size: int | None, margin: float | None, temperature: float
) -> None:
    """Softmax of the template's logits over the support, with public examples and temperature."""
    wording = template("pt", tiny.tokenizer)
    support = (
        {"kind": "full"}
        if size is None
        else {"kind": "public-top-k", "size": size, "margin": margin}
    )
    mechanism = {"support": support, "temperature": temperature}
    found = texts(public(mechanism=mechanism, prompt={"public_examples": EXAMPLES}))
    assert [(one.id, one.label) for one in found] == [
        (0, "north"),
        (1, "north"),
        (2, "south"),
        (3, "south"),
    ]
    for one in found:
        source = SeededStream(7, one.id)
        cache = OwnCache(tiny, [wording.tokens(str(one.label), EXAMPLES[str(one.label)])], 150)
        for token in one.tokens:
            logits = cache.logits[0].numpy()
            last = -np.inf if size is None else np.sort(logits)[-size]
            ids = np.flatnonzero(logits >= last if margin is None else logits > last - margin)
            assert ids[sample(logits[ids].astype(np.float64), temperature, source).index] == token
            cache.append(token)


@pytest.mark.parametrize(
    "decoding", [{}, {"tokens_per_batch": 12, "least_tokens": 3, "no_repeated_ngram": 2}]
)
def test_they_are_the_texts_of_empty_batches_of_a_run_with_anchors(
    public: MakeRun, generated: MakeRun, decoding: dict[str, Any]
) -> None:
    sections = {
        "mechanism": {"contribution": "differences", "clip": 0.5, **TOP},
        "decoding": decoding,
    }
    reader, baseline = RunReader(generated(**sections)), texts(public(**sections))
    empty = []
    for batch in reader.batches:
        with reader.batch(batch) as opened:
            empty += [batch] * (opened.header.contexts == 0)
    own = [one for one in reader.samples() if one.id in empty]
    assert own and [one for one in baseline if one.id in empty] == own
    assert any(one.number for one in own) is ("tokens_per_batch" in decoding)
    PublicReader(public(**sections)).public.require_fit("x", reader.manifest)


def test_neither_the_records_nor_what_is_done_with_them_decides_a_text(public: MakeRun) -> None:
    plain = texts(public())
    for sections in (
        {"data": {"path": "/elsewhere.csv"}},
        {"mechanism": {"aggregator": "mean", "clip": 12.0, "divisor": 4.0}},
        {"mechanism": {"contribution": "differences", "aggregator": "central", "central": 3}},
        {"privacy": {"unit": "user", "records_per_user": 2, "relation": "replace"}},
        {"batching": {"slots": 3}, "prompt": {"examples_per_context": 2}},
        {"model": {"rows": 2}},
    ):
        assert texts(public(**sections)) == plain, sections
    assert texts(public(mechanism={"temperature": 0.2})) != plain


def test_a_baseline_of_clusters_has_as_many_texts_of_each_label(
    tmp_path: Path, settings: Callable[..., dict[str, Any]]
) -> None:
    values = settings(data=NOWHERE) | {
        "batching": {"batches_per_cluster": 4, "generate_per_cluster": 2}
    }
    centers = {"method": "public-centers", "centers": 3, "public": "/nowhere.csv"}
    folder = Path(
        generate_public(
            Config.model_validate({**values, "clustering": centers}), tmp_path / "public"
        )
    )
    assert [one.label for one in texts(folder)] == ["north"] * 6 + ["south"] * 6
    centers = {"method": "dpm", "epsilon": 1.0, "delta": 1e-5, "public": "/nowhere.csv"}
    with pytest.raises(InputError, match=r"clustering\.method: dpm finds"):
        generate_public(Config.model_validate({**values, "clustering": centers}), tmp_path / "more")


def test_the_directory_says_what_made_it_and_is_nobodys_run(
    public: MakeRun, command: Callable[..., tuple[Any, str]], make_config: MakeConfig
) -> None:
    folder = public(mechanism=TOP)
    assert sorted(os.listdir(folder)) == ["public.json", "samples.jsonl", "tokenizer.json"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    fields = json.loads((folder / "public.json").read_text())
    assert (fields["private"], fields["batches"], fields["labels"]) == (
        "nothing",
        2,
        ["north", "south"],
    )
    assert (
        fields["mechanism"]["temperature"] == 1.0 and fields["mechanism"]["support"]["size"] == 12
    )
    assert fields["sampling"] == {"generator": "test-seed", "seed": 7, "seed_hashes": []}
    assert "dpaudit" in fields["software"]
    assert "nowhere" not in json.dumps(fields)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for arguments in (
        ("verify", folder),
        ("report", folder, "--out", folder.parent / "report"),
        ("inspect", folder, "--batch", 0),
        ("compare", folder, folder.parent),
        ("evaluate", folder, "--reference", "/nowhere.csv"),
        ("replay", folder, "--data", "/nowhere.csv"),
    ):
        code, said = command(*arguments)
        assert code == 2, arguments
        assert "nothing to audit" in said
        assert "evaluate RUN --reference DATA --baseline FOLDER" in said
    with pytest.raises(InputError, match="not empty"):
        generate(make_config(), folder)
    with pytest.raises(InputError, match="not empty"):
        generate_public(make_config(), folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_the_command_writes_them(
    tmp_path: Path, settings: Callable[..., dict[str, Any]], command: Callable[..., tuple[Any, str]]
) -> None:
    config, out = tmp_path / "config.yaml", tmp_path / "out"
    config.write_text(yaml.safe_dump(settings(data=NOWHERE)))
    code, said = command("generate", config, "--out", out, "--public-only", "--workers", 2)
    assert code == 2 and "leave out --workers" in said and not out.exists()
    code, said = command("generate", config, "--out", out, "--public-only")
    assert (
        code == 0
        and "nothing to audit" in said
        and f"--baseline {out}" in said
        and "4 of 4 batches done" in said
    )
    assert len(texts(out)) == 4
    code, said = command("generate", config, "--out", out, "--public-only", "--json", "--quiet")
    assert code == 2 and "not empty" in said
    code, said = command(
        "generate", config, "--out", tmp_path / "more", "--public-only", "--json", "--quiet"
    )
    assert code == 0 and json.loads(said) == {"public": str(tmp_path / "more")}


def test_they_are_the_baseline_of_runs_that_differ_in_their_records_alone(
    public: MakeRun, generated: MakeRun
) -> None:
    run = RunReader(generated(mechanism=TOP)).manifest
    PublicReader(
        public(mechanism={**TOP, "aggregator": "mean", "divisor": 2.0})
    ).public.require_fit("x", run)
    slots = {"batching": {"slots": 3}, "prompt": {"examples_per_context": 2}}
    PublicReader(public(mechanism=TOP, **slots)).public.require_fit("x", run)
    for name, sections in {
        "mechanism.temperature": {"mechanism": {**TOP, "temperature": 0.5}},
        "mechanism.support": {"mechanism": {"support": {"kind": "public-top-k", "size": 11}}},
        "model.dtype": {"mechanism": TOP, "model": {"dtype": "bfloat16"}},
        "prompt.public_examples": {"mechanism": TOP, "prompt": {"public_examples": EXAMPLES}},
        "decoding.max_tokens": {"mechanism": TOP, "decoding": {"max_tokens": 4}},
        "decoding.tokens_per_batch": {"mechanism": TOP, "decoding": {"tokens_per_batch": 9}},
        "decoding.least_tokens": {"mechanism": TOP, "decoding": {"least_tokens": 2}},
        "labels": {"mechanism": TOP, "data": {**NOWHERE, "labels": ["north", "east"]}},
    }.items():
        with pytest.raises(InputError, match=rf"x: {name} differs"):
            PublicReader(public(**sections)).public.require_fit("x", run)
    fitting = PublicReader(public(mechanism=TOP)).public
    for digest in (None, "ab" * 32):
        model = run.model.model_copy(update={"digest": digest})
        unknown = fitting.model_copy(update={"model": model}) if digest is None else fitting
        with pytest.raises(InputError, match=r"model\.digest differs"):
            unknown.require_fit("x", run.model_copy(update={"model": model}))


def changed(**fields: Any) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        found = json.loads((folder / "public.json").read_text())
        (folder / "public.json").write_text(json.dumps({**found, **fields}))

    return change


def written(name: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content)


def linked(folder: Path) -> None:
    (folder / "public.json").unlink()
    (folder / "public.json").symlink_to("/etc/passwd")


def huge(folder: Path) -> None:
    with (folder / "public.json").open("wb") as file:
        file.truncate((1 << 24) + 1)


HOSTILE: dict[str, Callable[[Path], object]] = {
    "a run": written("run.json", "{}"),
    "what is left of a run": lambda folder: (folder / "steps").mkdir(),
    "none": lambda folder: (folder / "public.json").unlink(),
    "no texts": lambda folder: (folder / "samples.jsonl").unlink(),
    "other texts": written("samples.jsonl", "{}\n"),
    "not JSON": written("public.json", "{"),
    "a list": written("public.json", "[]"),
    "deep": written("public.json", "[" * 100_000),
    "a key twice": written("public.json", '{"private": "nothing", "private": "nothing"}'),
    "a link": linked,
    "huge": huge,
    "private after all": changed(private="records"),
    "another version": changed(format_version=1),
    "a field more": changed(surprise="<script>"),
    "endless": changed(batches=1 << 60),
    "no number": changed(mechanism={"temperature": float("nan"), "support": {}}),
    "no temperature": changed(mechanism={"support": {}}),
    "a text for a number": changed(batches="2"),
    "another date": changed(created="<b>"),
    "a digest that is none": changed(samples="../../etc/passwd"),
}


def test_what_is_no_baseline_is_refused_in_one_line(public: MakeRun) -> None:
    folder = public()
    kept = {path.name: path.read_bytes() for path in folder.iterdir()}
    for kind, change in HOSTILE.items():
        change(folder)
        with pytest.raises(InputError) as refused:
            PublicReader(folder)
        said = str(refused.value)
        assert len(said) < 500 and "\n" not in said, kind
        assert not any(part in said for part in ("<script>", "<b>", "passwd")), kind
        for path in folder.iterdir():
            path.rmdir() if path.is_dir() else path.unlink()
        for name, content in kept.items():
            (folder / name).write_bytes(content)
    with pytest.raises(InputError, match=r"public\.json is missing"):
        PublicReader(folder / "nowhere")
