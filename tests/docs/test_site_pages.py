"""Links of the repository's documents in the site, and tables of fields, options and faults."""

from __future__ import annotations

from typing import Annotated, Literal

import click
import pytest
from pydantic import BaseModel, Field

from docsite import faults
from docsite.commands import commands_page
from docsite.fields import field_tables
from docsite.markdown import escaped
from docsite.repository import linked, site_path, source_page, with_site_links


@pytest.mark.parametrize(
    ("origin", "page", "link", "expected"),
    [
        ("README.md", "index.md", "docs/claims.md#anchor", "claims.md#anchor"),
        ("README.md", "index.md", "LICENSE", "source/LICENSE.md"),
        ("docs/claims.md", "claims.md", "../README.md", "index.md"),
        ("docs/claims.md", "claims.md", "../examples", "source/examples/index.md"),
        ("docs/claims.md", "claims.md", "../examples/foreign_run.py", "source/examples/foreign_run.py.md"),
        ("docs/claims.md", "claims.md", "budgets.md", "budgets.md"),
        ("docs/claims.md", "claims.md", "no-such-page.md", "no-such-page.md"),
        ("docs/claims.md", "claims.md", "../../outside.md", "../../outside.md"),
        ("docs/claims.md", "claims.md", "https://example.org/docs/claims.md", "https://example.org/docs/claims.md"),
        ("docs/claims.md", "claims.md", "#anchor", "#anchor"),
    ],
)
def test_links_lead_to_the_same_thing_in_the_site(origin: str, page: str, link: str, expected: str) -> None:
    assert with_site_links(origin, page, f"[text]({link})") == f"[text]({expected})"


def test_files_outside_the_docs_are_found_and_shown() -> None:
    assert list(linked("docs/claims.md", "[a](../LICENSE) [b](budgets.md#x) [c](gone.md)")) == [
        "LICENSE",
        "docs/budgets.md",
    ]
    assert "Apache License" in source_page("LICENSE")
    listing = source_page("examples")
    assert "[bbc-median.yaml](bbc-median.yaml.md)" in listing
    assert "hashes" not in listing
    assert site_path("CONTRIBUTING.md") == "contributing.md"


class Inner(BaseModel):
    """A part.

    Attributes:
        first, second: two | of `a|b`; None where [there] is *none*.
    """

    first: Annotated[int, Field(ge=1, lt=9)] | None = None
    second: Literal["a", "b"] = "a"


class Outer(BaseModel):
    """The whole <of it>."""

    parts: tuple[Inner, ...]
    name: Annotated[str, Field(min_length=1)] = "x"


def test_fields_have_kind_default_and_meaning() -> None:
    page = field_tables(Outer.model_json_schema(), "outer.yaml")
    assert "## outer.yaml {: #outer-yaml }\n\nThe whole &lt;of it>." in page
    assert "| `parts`{: #outer-yaml.parts } | list of [parts](#parts) | required |  |" in page
    assert '| `name`{: #outer-yaml.name } | text not empty | `"x"` |  |' in page
    meaning = r"two \| of `a|b`; null where \[there\] is \*none\*."
    assert f"| `first`{{: #parts.first }} | whole number ≥ 1, < 9 or null | `null` | {meaning} |" in page
    assert f'| `second`{{: #parts.second }} | `a`, `b` | `"a"` | {meaning} |' in page


class Twice(BaseModel):
    """One part in two places."""

    left: Inner
    right: Inner | None


def test_a_part_of_several_fields_has_its_own_name() -> None:
    page = field_tables(Twice.model_json_schema(), "twice")
    assert page.count("## Inner {: #inner }") == 1
    assert page.count("[Inner](#inner)") == 2


class Other(BaseModel):
    """Another part."""


class Either(BaseModel):
    """Two parts in one place."""

    part: Inner | Other


def test_parts_of_one_field_have_their_own_names() -> None:
    page = field_tables(Either.model_json_schema(), "either")
    assert "[Inner](#inner) or [Other](#other)" in page
    assert "## Inner {: #inner }" in page


def test_commands_have_usage_help_and_options() -> None:
    @click.group()
    def group() -> None:
        """All of it."""

    @group.command()
    @click.argument("place")
    @click.option("--kind", type=click.Choice(["a", "b"]), default="a", show_default=True, help="As for --other.")
    @click.option("--other", hidden=True)
    def act(place: str, kind: str, other: str) -> None:
        """Do one thing.

        \b
        Example:
          group act here
        """

    page = commands_page(group, "group")
    assert "| [act](#act) | Do one thing. |" in page
    assert "## act {: #act }\n\n```text\ngroup act [OPTIONS] PLACE\n```\n\nDo one thing." in page
    assert "```text\nExample:\n  group act here\n```" in page
    assert r"| `--kind [a|b]` | As for `--other`. \[default: a\] |" in page
    assert "| `--other" not in page


def test_faults_and_checks_link_to_each_other() -> None:
    row = "| a fault | `claim.epsilon`, `claim.kind` | what `record.range` says |"
    links = "[`claim.epsilon`](reference/checks.md#claim.epsilon), [`claim.kind`](reference/checks.md#claim.kind)"
    assert faults.with_links(row) == f"| a fault {{: #fault-a-fault }} | {links} | what `record.range` says |"
    found = faults.faults_of("claim.epsilon")
    assert found
    assert all("claim.epsilon" in fault.checks for fault in found)
    assert len(found[0].checks) == min(len(fault.checks) for fault in found)


def test_words_stay_words_in_markdown() -> None:
    assert escaped("a_b *c* [d] <e>\n `f_g`") == r"a\_b \*c\* \[d\] &lt;e> `f_g`"
