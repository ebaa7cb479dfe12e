"""Every check says what harm its failure does and how to mend it, in words that are the same for every run."""

from __future__ import annotations

import re

from dpaudit.checks.registry import Outcome, command_for, described, listed, registered

ABOUT = registered()


def test_why_it_matters_is_a_sentence_or_two() -> None:
    for about in ABOUT:
        assert 40 <= len(about.why) <= 200
        assert 1 <= len(re.findall(r"\.(?: |$)", about.why)) <= 2
        assert about.why.endswith(".")
        assert about.why not in (about.title, about.fails, about.remedy)


def test_no_two_checks_matter_for_the_same_reason() -> None:
    assert len({about.why for about in ABOUT}) == len(ABOUT)


def test_a_result_has_the_words_whatever_came_out_and_keeps_what_it_knows_of_the_run() -> None:
    about = ABOUT[0]
    for status in ("pass", "fail", "skip"):
        found = about.entry(Outcome(status, "measured", "expected", "what is known of this run"))
        assert (found.why, found.remedy, found.detail) == (about.why, about.remedy, "what is known of this run")
    assert about.entry(Outcome("fail", "measured", "expected")).detail == about.remedy


def test_the_catalogue_explains_why() -> None:
    for row, about in zip(listed(), ABOUT, strict=True):
        assert ("why", about.why) in list(described(row))


def test_no_remedy_asks_for_another_run_because_of_a_figure() -> None:
    for about in ABOUT:
        assert "other settings" not in about.remedy, about.id
    (cost,) = [about for about in ABOUT if about.id == "claim.epsilon"]
    assert "a choice that no epsilon pays for" in cost.remedy


def test_words_say_no_more_than_the_mathematics() -> None:
    why = {about.id: about.why for about in ABOUT}
    assert "by more where a batch is smaller than the divisor" in why["mechanism.divisor"]
    assert "can cost more" in why["sampling.distribution"]
    assert "The bound or the record is wrong" in why["neighbors.removal"]
    assert "its own ex-post bound" in why["replay.lower-bound"]


def test_commands_name_the_run_as_a_shell_takes_it():
    command = "dpaudit verify RUN_DIR --model m"
    for run, named in (("runs/a b", "'runs/a b'"), ("-x", "./-x"), ("it's", "'it'\"'\"'s'"), ("s3://a/b", "s3://a/b")):
        assert command_for(command, run) == f"dpaudit verify {named} --model m"
    for run in ("a\nb", "a\u202eb", "a\x1bb", "b\udcff"):
        assert command_for(command, run) == command, "what cannot be shown as it is cannot be pasted"
