"""Whole numbers of JSON have a longest form, and digits in a text have none."""

from __future__ import annotations

import json

import pytest

from dpaudit.runs.strict_json import load


@pytest.mark.parametrize("sign", ["", "-"])
def test_rejects_a_number_of_too_many_digits(sign):
    digits = "9" * (1024 - len(sign))
    assert load(f'{{"a": {sign}{digits}}}') == {"a": int(sign + digits)}
    for text in (f"[1, {sign}{digits}9]", f"[1, {sign}{digits}9]".encode()):
        with pytest.raises(ValueError, match="digits"):
            load(text)


def test_accepts_a_text_of_many_digits():
    text = json.dumps(["7" * 5000, 7, 1.5])
    assert load(text) == load(text.encode()) == ["7" * 5000, 7, 1.5]
