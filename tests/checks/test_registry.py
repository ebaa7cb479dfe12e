"""Every check states its failure's harm and its remedy, in the same words for every run."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator

from dpaudit.auditing.checks.registry import Outcome, listed, registered
from dpaudit.results.catalogue import catalogue, render
from dpaudit.results.shell import context_of

ABOUT = [catalogue().check[check.id] for check in registered().values()]
#: What every sentence may show.
CONTEXT = {"run", "question"}


def templates() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """The catalogue's templates: where each stands, and the values that readers outside may see."""
    found = catalogue()
    for code, sentence in found.sentence.items():
        yield code, sentence.text, sentence.public
    outcomes = [(code, words, "") for code, words in found.outcome.items()]
    for name, each in found.check.items():
        outcomes += [
            (f"{name}:{code}", words, each.expected) for code, words in each.outcome.items()
        ]
    for code, words, expected in outcomes:
        due = expected if words.expected is None else words.expected
        yield code, f"{words.found} {due} {words.detail}", words.public


def test_why_it_matters_is_a_sentence_or_two() -> None:
    for about in ABOUT:
        assert 40 <= len(about.why) <= 200
        assert 1 <= len(re.findall(r"\.(?: |$)", about.why)) <= 2
        assert about.why.endswith(".")
        assert about.why not in (about.title, about.fails, about.remedy)


def test_no_two_checks_matter_for_the_same_reason() -> None:
    assert len({about.why for about in ABOUT}) == len(ABOUT)


def test_a_result_has_the_words_whatever_came_out_and_keeps_what_it_knows_of_the_run() -> None:
    check, about = registered()["integrity.format"], ABOUT[0]
    for status in ("pass", "fail", "skip"):
        found = check.in_words(
            Outcome(status, "origin-undeclared", {"field": "settings"}), context_of("run")
        )
        assert (found.why, found.remedy, found.values) == (
            about.why,
            about.remedy,
            {"field": "settings"},
        )
        assert "chosen_from.settings" in found.detail
    assert (
        check.in_words(Outcome("fail", "origin-private"), context_of("run")).detail == about.remedy
    )


def test_templates_are_whole_and_show_the_values_that_are_public() -> None:
    for code, template, public in templates():
        assert template.count("[[") == template.count("]]"), code
        named = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
        assert all(name.isidentifier() for name in named), code
        assert {*public} <= named - CONTEXT, code


def test_the_catalogue_explains_why() -> None:
    for row, about in zip(listed(), ABOUT, strict=True):
        assert row["why"] == about.why


def test_no_remedy_asks_for_another_run_because_of_a_figure() -> None:
    for about in ABOUT:
        assert "other settings" not in about.remedy, about.title
    assert "a choice that no epsilon pays for" in catalogue().check["claim.epsilon"].remedy


def test_words_say_no_more_than_the_mathematics() -> None:
    why = {name: about.why for name, about in catalogue().check.items()}
    assert "by more where a batch is smaller than the divisor" in why["mechanism.divisor"]
    assert "can cost more" in why["sampling.distribution"]
    assert "The bound or the record is wrong" in why["neighbors.removal"]
    assert "its own ex-post bound" in why["replay.lower-bound"]


def test_commands_name_the_run_as_a_shell_takes_it() -> None:
    command = "dpaudit verify {run}{question} --model m"
    for run, named in (
        ("runs/a b", "'runs/a b'"),
        ("-x", "./-x"),
        ("it's", "'it'\"'\"'s'"),
        ("s3://a/b", "s3://a/b"),
    ):
        assert render(command, {}, context_of(run)) == f"dpaudit verify {named} --model m"
    for run in ("a\nb", "a\u202eb", "a\x1bb", "b\udcff"):
        found = render(command, {}, context_of(run))
        assert found == "dpaudit verify RUN_DIR --model m", (
            "what cannot be shown as it is cannot be pasted"
        )
