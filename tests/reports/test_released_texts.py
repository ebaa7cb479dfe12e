"""Whole texts with every expensive token marked, told of and reachable; none of it outside."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import pytest

from dpaudit.reports.audit_document import render_html, render_markdown
from dpaudit.reports.released import PAGE, ReleasedTexts
from dpaudit.results import AuditResult
from tests.reports.conftest import WORDS, sample, shaded

Samples = Mapping[str, Callable[[], AuditResult]]
pytestmark = pytest.mark.usefixtures("undrawn")


def test_the_pieces_are_the_text_and_marks_follow_the_cost(samples: Samples) -> None:
    result = samples["median"]()
    (shown, *_) = ReleasedTexts(result).block().texts
    assert "".join(piece.words for piece in shown.pieces if piece.words != "·") == "".join(WORDS)
    assert [piece.mark for piece in shown.pieces] == [
        4,
        4,
        3,
        2,
        1,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
    ]  # each half of the one before
    assert shown.pieces[0].said == (
        "“The” cost 0.4000 nats (rise 0.2000, fall 0.4000). Probability 0.250; a neighbour's "
        "0.167 to 0.306. "
        "Likeliest others: “ else” 0.500, “\\n” 0.125."
    )
    assert shown.table is not None and len(shown.table.rows) == 10


def test_a_token_leads_to_its_row_and_a_batch_to_its_text(samples: Samples) -> None:
    html = render_html(samples["median"]())
    targets = set(re.findall(r' id="([^"]+)"', html))
    led = re.findall(r'<a class="t\d" href="#([^"]+)"', html)
    assert len(led) == 3
    assert set(led) <= targets
    batches = re.findall(r'<th scope="row"><bdi><a href="#(text-\d+-0)">', html)
    assert sorted(set(batches)) == [f"text-{batch}-0" for batch in range(4)]
    assert set(batches) <= targets


def test_no_cost_that_is_not_finite_hides_the_others(samples: Samples) -> None:
    one = shaded(0, ("a", "b", "c"))
    assert one.costs is not None
    costs = one.costs.model_copy(update={"exact": (float("inf"), 0.4, 0.01), "most_expensive": ()})
    result = samples["one batch"]().model_copy(
        update={"samples": (one.model_copy(update={"costs": costs}),)}
    )
    (shown,) = ReleasedTexts(result).block().texts
    assert [(piece.words, piece.mark) for piece in shown.pieces] == [("a", 4), ("b", 4), ("c", 0)]
    assert "described in full" in ReleasedTexts(result).left_out


def test_texts_come_by_pages(samples: Samples) -> None:
    result = samples["median"]().model_copy(
        update={"samples": tuple(map(sample, range(2 * PAGE + 1)))}
    )
    html = render_html(result)
    assert re.findall(r"<summary>(Texts .*?)</summary>", html) == [
        "Texts 51 to 100 of 101",
        "Texts 101 to 101 of 101",
    ]
    assert all(f"The text of batch {batch}," in html for batch in range(2 * PAGE + 1))
    marked = render_markdown(result)
    assert "The other 51 texts are in report.html." in marked
    assert "The text of batch 50," not in marked


def test_texts_that_are_not_shown_are_counted(samples: Samples) -> None:
    result = samples["median"]()
    for page in (render_html(result), render_markdown(result)):
        assert "These are the first 4 of 40 texts: read the others in samples.jsonl." in page
    assert ReleasedTexts(samples["one batch"]()).left_out == ""


def test_a_page_of_many_tokens_stays_small(samples: Samples) -> None:
    """1,000 texts of 200 tokens, of which 3,000 are described in full."""
    words = tuple(f" word{place}" for place in range(200))
    long = shaded(0, words)
    assert long.costs is not None
    exact = tuple(0.3 / (1 + place % 40) for place in range(200))
    costs = long.costs.model_copy(
        update={"exact": exact, "most_expensive": long.costs.most_expensive[:3]}
    )
    texts = tuple(
        long.model_copy(update={"batch": batch, "costs": costs}) for batch in range(1_000)
    )
    result = samples["median"]().model_copy(update={"samples": texts})
    assert len(render_html(result).encode()) < 8_000_000


def test_nothing_of_a_token_reaches_readers_outside(samples: Samples) -> None:
    # dropped by nobody
    result = samples["public"]().model_copy(update={"samples": samples["median"]().samples})
    assert len(ReleasedTexts(result)) == 0
    for page in (render_html(result).partition("<body>")[2], render_markdown(result)):
        assert not any(
            said in page for said in ("Likeliest", "most expensive", "blockquote>", "underlined")
        )
