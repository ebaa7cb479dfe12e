"""Is the tokenizer that a run brings the model's own? Its vocabulary could spell records."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from dpaudit.auditing.run import audit_run
from dpaudit.results import CheckResult
from dpaudit.results.replay import PublicReplay
from dpaudit.runs import InputError, RunReader, Vocabulary, without_stop
from dpaudit.runs.reader import read_tokenizer
from dpaudit.runs.strict_json import load
from dpaudit.runs.text import KNOWN_TOKENIZERS

EXAMPLE = Path(__file__).parents[2] / "examples/runs/bbc-median"
SECRET = "Patient 3: HIV positive"


def release(result: Any) -> CheckResult:
    (found,) = [check for check in result.checks if check.id == "release.text"]
    return found


def forge(run: Any, change: Any) -> None:
    """Alter the run's tokenizer, and its texts as that decodes them, in record and release."""
    tokenizer = json.loads((run / "tokenizer.json").read_text())
    change(tokenizer)
    (run / "tokenizer.json").write_text(json.dumps(tokenizer))
    decode = RunReader(run.path).decoder(special=False)
    assert decode is not None
    stops = run.spec.decoding.sequences
    for batch in RunReader(run.path).batches:
        with RunReader(run.path).batch(batch) as reader:
            texts = [decode(without_stop(sample.tokens, stops)) for sample in reader.samples()]
        run.rewrite(batch, partial(retold, texts))
    run.rehash()


def retold(texts: list[str | None], draft: Any) -> None:
    for text, said in zip(draft.texts, texts, strict=True):
        text.text = said


def spelt(tokenizer: dict[str, Any]) -> None:
    words = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {
        (SECRET if number == 0 else word): number for word, number in words.items()
    }
    tokenizer["model"]["unk_token"] = SECRET


def added(tokenizer: dict[str, Any]) -> None:
    entry, words = tokenizer["added_tokens"][0], tokenizer["model"]["vocab"]
    del words[next(word for word, number in words.items() if number == 4)]
    tokenizer["added_tokens"].append({**entry, "id": 4, "content": SECRET, "special": False})


def replaced(tokenizer: dict[str, Any]) -> None:
    tokenizer["decoder"] = {"type": "Replace", "pattern": {"String": "w"}, "content": "HIV "}


@pytest.mark.parametrize("change", [spelt, added, replaced])
def test_texts_by_an_unknown_tokenizer_are_no_pass(make_run, change):
    run = make_run(max_tokens=1, sizes=(4, 5))
    own = read_tokenizer(run / "tokenizer.json")
    assert run.audit().verdict == "pass"
    forge(run, change)
    result = run.audit()
    assert (release(result).status, result.verdict) == ("skip", "not_verified"), release(
        result
    ).measured
    assert result.guarantee.values["checks"] == ("release.text",)
    assert release(result).code == "own-tokenizer"
    assert [note.code for note in release(result).notes] == ["release.name-or-replay"]
    told = audit_run(run.path, tokenizers=frozenset({own}))
    assert (release(told).status, told.verdict) == ("fail", "fail")


def test_a_tokenizer_that_is_given_or_a_replay_is_enough(make_run, monkeypatch):
    run = make_run()
    own = read_tokenizer(run.path)
    monkeypatch.delitem(KNOWN_TOKENIZERS, own)
    assert release(run.audit()).status == "skip"
    assert audit_run(run.path, tokenizers=frozenset({own})).verdict == "pass"
    replay = PublicReplay(texts=None, public=None)
    assert release(audit_run(run.path, replay=replay)).status == "pass"


def test_what_is_no_plain_file_is_no_tokenizer(tmp_path):
    os.mkfifo(tmp_path / "tokenizer.json")
    for path in (tmp_path, tmp_path / "tokenizer.json", tmp_path / "none"):
        with pytest.raises(InputError, match="such plain file"):
            read_tokenizer(path)


def test_tokens_alone_need_no_tokenizer(make_run, monkeypatch):
    monkeypatch.setattr("dpaudit.auditing.checks.release.KNOWN_TOKENIZERS", {})
    assert release(make_run(text=False).audit()).status == "pass"


def test_the_example_has_a_tokenizer_that_is_known():
    assert KNOWN_TOKENIZERS[read_tokenizer(EXAMPLE)] == "SmolLM2"


def test_one_tokenizer_in_two_forms_has_one_digest(make_run):
    """What says how texts become tokens may differ: it decides no text."""
    text = (make_run() / "tokenizer.json").read_text()
    digest = Vocabulary.of(text).digest
    altered = json.loads(text) | {"truncation": None, "normalizer": {"type": "Lowercase"}}
    for other in (json.dumps(altered, indent=1), Tokenizer.from_str(text).to_str()):
        assert Vocabulary.of(other).digest == digest
    special = json.loads(text)
    special["added_tokens"][0]["special"] = False
    assert Vocabulary.of(json.dumps(special)).digest != digest
    with pytest.raises(ValueError, match="no vocabulary"):
        Vocabulary.of("{}")


def test_audit_reads_the_tokenizer_once(make_run, monkeypatch):
    run, read = make_run(), []
    monkeypatch.setattr(
        "dpaudit.runs.text.load", lambda data, most: read.append(data) or load(data, most)
    )
    path = run / "tokenizer.json"
    path.write_text(path.read_text() + "\n")  # no earlier test has read these bytes
    assert read_tokenizer(path) == RunReader(run.path).decoding_digest()
    run.rehash()
    assert run.audit().verdict == "pass"
    assert len(read) == 1


def test_altered_tokenizer_is_read_anew(make_run):
    run = make_run()
    path, reader = run / "tokenizer.json", RunReader(run.path)
    before = reader.decoding_digest()
    tokenizer = json.loads(path.read_text())
    spelt(tokenizer)
    path.write_text(json.dumps(tokenizer))
    assert reader.decoding_digest() != before
    path.write_text("{}")
    for _ in range(2):
        with pytest.raises(InputError, match="no vocabulary"):
            reader.tokenizer()


def test_verify_takes_the_tokenizer_from_its_user(make_run, monkeypatch, dpaudit_code, tmp_path):
    run = make_run()
    monkeypatch.delitem(KNOWN_TOKENIZERS, read_tokenizer(run.path))
    own = tmp_path / "tokenizer.json"
    own.write_text((run / "tokenizer.json").read_text())
    assert dpaudit_code("verify", run.path) == 1
    assert dpaudit_code("verify", run.path, "--tokenizer", own) == 0
    assert dpaudit_code("verify", run.path, "--tokenizer", tmp_path) == 0
    assert dpaudit_code("verify", run.path, "--tokenizer", EXAMPLE) == 1
    assert dpaudit_code("verify", run.path, "--tokenizer", tmp_path / "nowhere") == 2
    own.write_text("{")
    assert dpaudit_code("verify", run.path, "--tokenizer", own) == 2


@pytest.fixture
def dpaudit_code(capfd):
    from dpaudit.commands.cli import main

    def called(*arguments: object) -> int:
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        capfd.readouterr()
        return int(left.value.code or 0)

    return called


def test_the_end_mark_is_one_of_the_stop_sequences(make_run):
    run = make_run()
    for mark in ("<end>", "w2 w3", " w1 <end>\n"):
        run.edit_manifest({"prompt.end": mark})
        run.rehash()
        assert run.audit().verdict == "pass", mark
