"""Every place that the crosswalk names is there in a real release, and its pages say what it says.

After a change of crosswalk.toml: DPAUDIT_UPDATE_DOCS=1 pytest tests/releasing/test_crosswalk.py
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel, ValidationError

from docsite.crosswalk import page
from dpaudit.auditing.checks import registered
from dpaudit.auditing.disclosure import public_form
from dpaudit.releasing.folder import about_template, read_about
from dpaudit.reports.audit_document import render_markdown
from dpaudit.reports.questions import standings
from dpaudit.results import AuditResult
from dpaudit.results.crosswalk import Question, Where, crosswalk
from dpaudit.results.deferred import Deferred
from dpaudit.results.publication import About
from dpaudit.results.release_layout import QUESTIONS

Run = Any
Releases = Callable[..., tuple[Path, AuditResult]]
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/crosswalk.md"
#: What no run of these tests has: `dpaudit evaluate --epsilon` pays for it.
UNPAID = {"paid.at_least"}


@pytest.fixture
def full(tmp_path: Path) -> About:
    """The template with each of its examples filled in."""
    path = tmp_path / "about.yaml"
    path.write_text(re.sub(r"^# (?=( \s)?[a-zA-Z][\w ]*:)", "", about_template(), flags=re.M))
    return read_about(path)


def held(value: Any, path: str) -> Any:
    """What a path leads to; None if it leads nowhere."""
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def is_field(model: type[BaseModel], path: str) -> bool:
    """Whether a model has the field, with those of the models in its fields."""
    name, _, rest = path.partition(".")
    if name not in model.model_fields:
        return False
    annotation = model.model_fields[name].annotation
    parts = (annotation, *get_args(annotation))
    about = [each for part in parts for each in getattr(part, "__metadata__", ())]
    deferred = [each.model for each in about if isinstance(each, Deferred)]
    inner = [
        part
        for part in (*parts, *deferred)
        if isinstance(part, type) and issubclass(part, BaseModel)
    ]
    return not rest or any(is_field(part, rest) for part in inner)


def anchors(document: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", document.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dangling(where: Where, folder: Path) -> Iterator[str]:
    """Yield each place that is not there in this release."""
    report = json.loads((folder / "report/report.json").read_text("utf-8"))
    shown = set(re.findall(r'id="([^"]+)"', (folder / "report/report.html").read_text("utf-8")))
    card = (folder / "README.md").read_text("utf-8")
    entry = yaml.safe_load((folder / "opendp_deployment.yaml").read_text("utf-8"))
    line = (folder / "attestation.intoto.jsonl").read_text("utf-8").splitlines()[0]
    statement = json.loads(base64.b64decode(json.loads(line)["payload"]))
    attested = {each["name"] for each in statement["predicate"]["configuration"]}
    names = {*re.findall(r"^#+ (.+)$", card, re.M), *yaml.safe_load(card.split("---")[1])}
    for path in where.report:
        if not is_field(AuditResult, path) or (path not in UNPAID and held(report, path) is None):
            yield path
    yield from (name for name in where.checks if name not in registered())
    yield from (name for name in where.sections if name not in shown)
    yield from (name for name in where.card if name not in names)
    yield from (path for path in where.entry if held(entry, path) is None)
    yield from (name for name in where.attestation if name not in attested)
    yield from (name for name in where.about if not is_field(About, name))
    for place in where.pages:
        name, _, anchor = place.partition("#")
        document = ROOT / "docs" / name
        if not document.is_file() or anchor not in {"", *anchors(document)}:
            yield place


@pytest.fixture
def folder(released: Releases, full: About) -> Path:
    return released(release={"about": full})[0]


def test_each_place_is_in_a_real_release(folder: Path) -> None:
    found = {
        question.number: list(dangling(question.where, folder))
        for question in crosswalk().questions
    }
    assert not {number: places for number, places in found.items() if places}


def test_a_dangling_place_of_any_kind_is_found(folder: Path) -> None:
    """A fault is planted in each kind of place, and found."""
    plants = {
        "report": "claim.units",
        "checks": "claim.deltas",
        "sections": "attack",
        "card": "Personal Information",
        "entry": "deployment.basic.names",
        "attestation": "attack",
        "about": "hipaa.experts",
        "pages": "claims.md#no-such-heading",
    }
    assert plants.keys() == Where.model_fields.keys()
    for kind, name in plants.items():
        assert list(dangling(Where(**{kind: (name,)}), folder)) == [name]
    # A field that exists, and that this release leaves out.
    assert list(dangling(Where(report=("run.settings.data.source",)), folder))


def test_most_questions_are_answered_and_each_open_one_names_whom_to_ask() -> None:
    questions = crosswalk().questions
    answered = [each for each in questions if each.now == "answered"]
    assert len(questions) == 33 and len(answered) >= 24
    assert sum(each.where.of_run for each in answered) >= 19
    for changed in (
        {"now": "not"},
        {"now": "partly", "ask": ""},
        {"answer": ""},
        {"where": {}},
        {"now": "yes"},
    ):
        with pytest.raises(ValidationError):
            Question.model_validate(questions[0].model_dump() | changed)


def test_a_result_answers_no_question_that_it_has_no_figure_for(
    make_run: Callable[..., Run],
) -> None:
    by_number = {question.number: question for question in crosswalk().questions}
    mean = public_form(make_run(aggregator="mean").audit())
    median = public_form(make_run(aggregator="median").audit())
    for number in (5, 14, 21, 23, 29):  # of attacks, which nothing bounds for an ex-post claim
        assert by_number[number].standing(mean) == "here"
        assert by_number[number].standing(median) == "not-here"
    assert by_number[15].standing(mean) == "publisher"  # it was not attacked
    assert {by_number[number].standing(mean) for number in (18, 19, 22)} == {"publisher"}
    unmade = [
        check.model_copy(update={"status": "skip"}) if check.id == "claim.delta" else check
        for check in mean.checks
    ]
    assert by_number[3].standing(mean) == "here"
    without = mean.model_copy(update={"checks": tuple(unmade)})
    assert by_number[3].standing(without) == "not-here"
    assert standings(without)["here"] == standings(mean)["here"] - 1


def test_reports_and_the_card_list_the_questions(folder: Path, released: Releases) -> None:
    page_of_release = (folder / "report/report.html").read_text("utf-8")
    rows = re.findall(r'id="question-(\d+)"', page_of_release)
    assert rows == [str(question.number) for question in crosswalk().questions]
    assert page_of_release.index('id="question-1"') > page_of_release.index('id="sign-off"')
    links = set(re.findall(r'href="#([^"]+)"', page_of_release))
    assert links <= set(re.findall(r'id="([^"]+)"', page_of_release))
    assert "33 questions" in (folder / "README.md").read_text("utf-8")
    _, result = released()
    assert render_markdown(result).count("\n| 33\\. ") == 1


def questions_page(folder: Path) -> tuple[list[int], dict[int, str]]:
    """The page's four numbers, and its text by question."""
    text = (folder / QUESTIONS).read_text("utf-8")
    _, *parts = re.split(r"^#### (\d+)\\\. ", text, flags=re.MULTILINE)
    (lead,) = re.findall(r"^33 questions.+$", text, re.MULTILINE)
    counts = [int(number) for number in re.findall(r"\d+", lead)]
    return counts, dict(zip(map(int, parts[::2]), parts[1::2], strict=True))


def test_a_page_of_the_release_answers_by_audit_and_publisher(
    folder: Path, full: About, released: Releases
) -> None:
    (asked, here, publisher, left), answers = questions_page(folder)
    assert [*answers] == [question.number for question in crosswalk().questions]
    assert (asked, left) == (here + publisher, 0)
    html = (folder / "report/report.html").read_text("utf-8")
    targets = re.findall(r"\]\(<\.\./([^>#]+)#?([^>]*)>\)", "".join(answers.values()))
    assert len(targets) > 40
    for name, anchor in targets:
        assert (folder / name).is_file() and (not anchor or f'id="{anchor}"' in html)
    report = json.loads((folder / "report/report.json").read_text("utf-8"))
    assert f": {report['claim']['unit']}\n" in answers[1] and "claim.delta: passed" in answers[3]
    assert full.intruder_test and full.intruder_test[:40] in answers[22]

    folder, _ = released(release={"about": About(review="in May")})
    (_, same, publisher, left), answers = questions_page(folder)
    assert same == here and publisher + left == 33 - here and 0 < publisher < left
    assert "in May" in answers[18] and "in May" in answers[33] and "in May" not in answers[22]


def test_the_page_is_what_the_crosswalk_says() -> None:
    if os.environ.get("DPAUDIT_UPDATE_DOCS"):
        PAGE.write_text(page(), encoding="utf-8")
    assert PAGE.read_text("utf-8") == page()
