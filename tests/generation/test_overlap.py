"""Records hidden in texts that are declared public, and texts that are nobody's."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpaudit.auditing.disclosure import public_form
from dpaudit.auditing.run import audit_run
from dpaudit.generation.canaries import WORDS
from dpaudit.generation.overlap import FORM_RECORDS, PublicTexts
from dpaudit.generation.replay import replay_run
from dpaudit.results import Finding
from tests.nesting import read_run

Texts = dict[str, Any]


def some_text(seed: int, words: int = 30) -> str:
    """Sentences of random words, with capitals and marks."""
    draw = random.Random(seed)
    sentences = [" ".join(draw.choices(WORDS, k=6)).capitalize() for _ in range(words // 6)]
    return ", and so on. ".join(sentences) + "."


RECORDS = [some_text(seed) for seed in range(40)]
RECORD = RECORDS[7]
LETTERS = len(RECORD.replace(" ", ""))


def less(text: str, words: int, seed: int) -> str:
    kept = text.split()
    for place in sorted(random.Random(seed).sample(range(len(kept)), words), reverse=True):
        del kept[place]
    return " ".join(kept)


def full_width(text: str) -> str:
    return "".join(chr(ord(each) + 0xFEE0) if "!" <= each <= "~" else each for each in text)


HALF, OTHER_HALF = RECORD[: len(RECORD) // 2], RECORD[len(RECORD) // 2 :]
COPIES: dict[str, Texts] = {
    "word for word": {"examples": [RECORD]},
    "lower case": {"examples": [RECORD.lower()]},
    "marks": {"examples": [RECORD.replace(",", "").replace(".", "")]},
    "white space": {"examples": [RECORD.replace(" ", "\n  ")]},
    "no white space": {"examples": [RECORD.replace(" ", "")]},
    "zero-width marks": {"examples": ["\u200b".join(RECORD)]},
    "compatible forms": {"examples": [full_width(RECORD)]},
    "accents": {"examples": [RECORD.replace("e", "e\u0301").replace("a", "\u00e4")]},
    "with other words around": {"examples": [f"{some_text(90)} {RECORD} {some_text(91)}"]},
    "two records spliced": {"examples": [f"{HALF} {RECORDS[8][len(RECORDS[8]) // 2 :]}"]},
    "among other examples": {"examples": [some_text(92), RECORD.upper(), some_text(93)]},
    "half in the template": {"template": f"Write a text like this: {HALF}\n{{example}}\n"},
    "halves around the placeholder": {"template": f"{RECORD[:80]}{{example}}{RECORD[80:150]}"},
    "banned words, word by word": {"banned": RECORD.split()},
    "banned words, sorted": {
        "banned": sorted({word.strip(".,").lower() for word in RECORD.split()})
    },
    "labels": {"labels": RECORD.split()},
    "stop sequences": {"stops": ["\n", *(f" {word}" for word in RECORD.split())]},
    "mark of the end": {"end": RECORD[:90]},
    "canary": {"canaries": [some_text(94), RECORD]},
} | {f"less four words, {seed}": {"examples": [less(RECORD, 4, seed)]} for seed in range(8)}


@pytest.mark.parametrize("name", COPIES)
def test_a_record_in_a_public_text_is_a_copy(name: str) -> None:
    (found,) = PublicTexts(**COPIES[name]).shared_with(RECORDS)
    assert found.copied == 1 + (name == "two records spliced")


def test_short_records_and_records_of_wide_characters_are_found() -> None:
    short = "Amber Finch, of 3 Quince Lane, has been ill since May and lives alone."
    wide = "王小明于三月二日在北京市朝阳区医院确诊糖尿病，随后开始接受胰岛素治疗。"
    for record in (short, wide, "Ill: A. Finch"):
        for text in (record, record.upper().replace(",", " ").replace("，", "")):
            (found,) = PublicTexts(examples=[f"{text}"]).shared_with([*RECORDS, record])
            assert found.copied == 1
    longer = f"{short} A neighbour brings her what she needs."
    for seed in range(6):
        (found,) = PublicTexts(examples=[less(longer, 4, seed)]).shared_with([*RECORDS, longer])
        assert found.copied == 1, seed


def test_what_texts_have_in_common_by_chance_is_no_copy() -> None:
    phrase = "according to a spokesman for the group"
    records = [*RECORDS, f"{some_text(50)} {phrase} {some_text(51)}"]
    (found,) = PublicTexts(examples=[f"{some_text(52)} {phrase} {some_text(53)}"]).shared_with(
        records
    )
    assert (found.records, found.copied) == (1, 0) and 30 <= found.letters < 50
    for texts in (
        {"examples": [some_text(seed) for seed in range(60, 80)]},
        {"template": f"{some_text(81)}\n{{example}}\n", "end": "END OF TEXT"},
        {"banned": list(WORDS[:4]), "labels": ["north", "south"], "stops": ["\n\n", "END"]},
        {"examples": ["amber"], "labels": ["amber and pine"], "banned": ["pine"]},
        {},
    ):
        assert (
            PublicTexts(**texts).shared_with([*RECORDS, "amber", "Amber and pine", "Pine."]) == ()
        )


def test_a_form_that_many_records_have_is_told_and_is_no_copy() -> None:
    """A record that is in the text beyond the form, or nearly whole, is a copy all the same."""
    form = (
        "The insured called to report a loss at the premises. An adjuster was sent out on the "
        "same day. Outcome: "
    )
    records = [form + some_text(seed, 12) for seed in range(100, 100 + 2 * FORM_RECORDS)]
    (found,) = PublicTexts(examples=[form + some_text(99, 12)]).shared_with(records)
    assert (found.records, found.copied) == (len(records), 0) and found.letters >= 80
    (found,) = PublicTexts(examples=[records[3].lower()]).shared_with(records)
    assert found.copied == 1
    (found,) = PublicTexts(examples=[records[3].removeprefix(form)]).shared_with(records)
    assert found.copied == 1
    (found,) = PublicTexts(examples=[form]).shared_with(records[: FORM_RECORDS - 1])
    assert found.copied == FORM_RECORDS - 1, "of so few records nobody can tell that it is a form"


def test_a_replay_finds_records_in_public_texts(
    generated: Callable[..., Path], data_file: Path, tmp_path: Path, canary: str
) -> None:
    """What is told of a near miss is for readers inside, and holds nothing of the text."""
    phrase = "nothing that anybody would call a secret of theirs"
    data = tmp_path / "more.csv"
    data.write_text(
        data_file.read_text()
        + f'north,"{some_text(95)} {phrase}"\nnorth,{canary} is all there is of it\n'
    )
    for example, copied in (
        (f"{canary.upper().replace('-', ' ')}: IS ALL THERE IS, of it", True),
        (f"They said {phrase[:-9]}.", False),
    ):
        run = generated(data={"path": str(data)}, prompt={"public_examples": {"north": [example]}})
        assert read_run(run)["prompt"]["public_examples"]
        result = audit_run(run, replay=replay_run(run, str(data), steps=1, left_out=0, trials=0))
        (check,) = (check for check in result.checks if check.id == "disclosure.sensitive")
        assert (check.status, check.evidence) == ("fail" if copied else "pass", 3)
        if not copied:
            shared = {"field": "prompt.public_examples", "letters": 34, "records": 1}
            assert Finding(code="disclosure.in-common", values=shared) in check.notes
        inside, outside = (
            json.dumps(each.model_dump(mode="json")["checks"])
            for each in (result, public_form(result))
        )
        assert (
            phrase[:30] not in inside
            and canary not in inside
            and "in a row in common" not in outside
        )
