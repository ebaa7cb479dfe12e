"""Links of repository documents in the site, tables of fields, and the catalogue of checks."""

from __future__ import annotations

from pathlib import Path

import griffe
import pytest

from docsite.checks import catalogue, escaped, with_links_to_checks
from docsite.fields import Fields
from docsite.hooks import site_path, with_site_links

DOCS = Path(__file__).parents[2] / "docs"


def test_links_lead_to_the_same_thing_in_the_site() -> None:
    for origin, page, link, expected in (
        ("README.md", "index.md", "docs/claims.md#anchor", "claims.md#anchor"),
        ("README.md", "index.md", "LICENSE", "source/LICENSE.md"),
        ("docs/claims.md", "claims.md", "../README.md", "index.md"),
        ("docs/claims.md", "claims.md", "../examples", "source/examples/index.md"),
        (
            "docs/claims.md",
            "claims.md",
            "../examples/foreign_run.py",
            "source/examples/foreign_run.py.md",
        ),
        ("docs/claims.md", "claims.md", "budgets.md", "budgets.md"),
        ("docs/claims.md", "claims.md", "no-such-page.md", "no-such-page.md"),
        ("docs/claims.md", "claims.md", "../../outside.md", "../../outside.md"),
        (
            "docs/claims.md",
            "claims.md",
            "https://example.org/docs/claims.md",
            "https://example.org/docs/claims.md",
        ),
        ("docs/claims.md", "claims.md", "#anchor", "#anchor"),
        ("docs/reference/config.md", "reference/config.md", "../start.md", "../start.md"),
    ):
        assert with_site_links(origin, page, f"[text]({link})") == f"[text]({expected})"
    assert site_path("CONTRIBUTING.md") == "contributing.md"


MODELS = '''
from dataclasses import dataclass
from typing import Annotated, Literal
from pydantic import BaseModel, Field

MOST = 12_000
Count = Annotated[int, Field(ge=1, le=MOST)]

class Base(BaseModel):
    """Without fields."""

class Inner(Base):
    """A part.

    Attributes:
        first, second: two of `a|b`.
    """
    first: Count | None = None
    second: Literal["a", "b"] = "a"
    third: tuple[Annotated[float, Field(gt=0)], ...]

    @property
    def fourth(self) -> int:
        """No field."""

@dataclass
class Plain:
    """No model.

    Attributes:
        part: the only one.
    """
    part: Inner

class Again(Inner):
    """With what it inherits."""

class Other:
    """Neither.

    Attributes:
        kept: as it stands.
    """
    kept: int
'''


def test_fields_have_kind_default_and_meaning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site_models.py").write_text(MODELS)
    monkeypatch.syspath_prepend(tmp_path)
    module = griffe.load(
        "site_models", search_paths=[tmp_path], extensions=griffe.load_extensions(Fields)
    )

    def sections(name: str) -> list[griffe.DocstringSection]:
        docstring = module[name].docstring
        docstring.parser = "google"
        return list(docstring.parsed)

    assert [section.kind.value for section in sections("Base")] == ["text"]
    text, fields = sections("Inner")
    assert text.value == "A part."
    assert fields.title == "Fields:"
    assert [
        (field.name, str(field.annotation), field.default, field.description)
        for field in fields.value
    ] == [
        ("first", "int ≥ 1, ≤ 12,000 | None", "None", "two of `a|b`."),
        ("second", "Literal['a', 'b']", "'a'", "two of `a|b`."),
        ("third", "tuple[float > 0, ...]", None, ""),
    ]
    inherited = [(field.name, field.description) for field in sections("Again")[1].value]
    assert inherited == [("first", "two of `a|b`."), ("second", "two of `a|b`."), ("third", "")]
    (part,) = sections("Plain")[1].value
    assert (part.name, part.annotation.canonical_path, part.description) == (
        "part",
        "site_models.Inner",
        "the only one.",
    )
    assert sections("Other")[1].kind.value == "attributes"


def test_faults_and_checks_link_to_each_other(tmp_path: Path) -> None:
    row = "| `claim.epsilon`, `claim.kind` | a fault |"
    links = "[`claim.epsilon`](checks.md#claim.epsilon), [`claim.kind`](checks.md#claim.kind)"
    assert (
        with_links_to_checks(row) == f"| {links} {{: #fails-claim-epsilon-claim-kind }} | a fault |"
    )
    for page in DOCS.glob("*.md"):
        (tmp_path / page.name).write_text(
            page.read_text(encoding="utf-8").split("\n", 1)[0], encoding="utf-8"
        )
    (tmp_path / "reference").mkdir()
    (tmp_path / "reference/faults.md").write_text(
        f"{row}\n| `claim.kind` | second; third; fourth; 5 more |\n", encoding="utf-8"
    )
    page = catalogue(tmp_path)
    only = "[a fault](faults.md#fails-claim-epsilon-claim-kind)"
    assert f"- **Shown on**: runs with a planted fault: {only}\n" in page
    first = "; ".join(
        f"[{name}](faults.md#fails-claim-kind)" for name in ("second", "third", "fourth")
    )
    assert f"{first} and 6 more\n" in page
    assert "### claim.kind {: #claim.kind }" in page
    assert "(../mathematics.md#the-sampling-test)" in page


def test_words_stay_words_in_markdown() -> None:
    assert escaped("a_b *c* [d] <e>\n `f_g`") == r"a\_b \*c\* \[d\] &lt;e> `f_g`"
