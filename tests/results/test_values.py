"""Values of findings come back from JSON as they were."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpaudit.results import Finding, Place, Quantity, Value
from dpaudit.results.catalogue import render

NUMBERS = st.floats(allow_nan=False)
WHOLE = st.integers(min_value=0, max_value=1 << 70)
SCALARS = st.one_of(
    st.booleans(),
    WHOLE,
    NUMBERS,
    st.text(st.characters(exclude_categories=["Cs"])),
    st.sampled_from(["inf", "-inf", "nan", "NaN", "Infinity", "1", "1.0", "true", "null"]),
    st.builds(Quantity, value=NUMBERS, unit=st.sampled_from(["", "nats", "records"])),
    st.builds(Place, batch=WHOLE, step=st.none() | WHOLE),
)
VALUES = st.one_of(SCALARS, st.lists(SCALARS).map(tuple))


@given(st.dictionaries(st.text("abc"), VALUES), VALUES)
def test_values_come_back_with_their_types(values: dict[str, Value], inner: Value) -> None:
    found = Finding(
        code="some.code",
        values={**values, "why": Finding(code="other.code", values={"inner": inner})},
    )
    read = Finding.model_validate_json(found.model_dump_json())
    assert read == found
    assert repr(read) == repr(found)  # 1 is equal to 1.0, and to True


@pytest.mark.parametrize("text", ["inf", "-inf", "nan"])
def test_a_number_that_json_lacks_is_no_name(text: str) -> None:
    found = Finding(
        code="some.code",
        values={"number": float(text), "name": text, "several": (1.5, float(text))},
    )
    read = Finding.model_validate_json(found.model_dump_json())
    assert read.values["name"] == text
    several = read.values["several"]
    assert isinstance(several, tuple)
    for value in (read.values["number"], several[1]):
        assert isinstance(value, Quantity)
        assert value.unit == "" and (value.value == float(text) or math.isnan(value.value))


def test_either_form_of_a_number_reads_the_same() -> None:
    for how in ["", ":up", ":least", ":near", ":exact", ":stated"]:
        bare, quantity = (
            render(f"{{it{how}}}", {"it": it}, {}) for it in (math.inf, Quantity(value=math.inf))
        )
        assert bare == quantity
