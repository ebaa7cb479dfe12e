"""The words that reports share promise no more than the mathematics, and one state has one name."""

from __future__ import annotations

from dpaudit.generation.experiments import cluster_page
from dpaudit.reports.wording import STATUS_NAMES, glossary, say


def test_an_attack_refutes_guarantees_about_all_outputs_and_no_ex_post_claim() -> None:
    assert "an (ε, δ) guarantee below it, for all outputs, is refuted" in say("lower-bound")
    assert "An ex-post claim is held against each text's own bound" in say("lower-bound")
    assert "for all outputs" in glossary()["Attack"]


def test_private_figures_invite_no_choice_by_them() -> None:
    for warning in [say("quality-private"), cluster_page.WARNING]:
        assert "for choosing" not in warning
        assert "chosen_from: private" in warning


def test_delta_of_noised_centres_is_named() -> None:
    assert "noised cluster centres" in glossary()["Delta (δ)"]


def test_the_glossary_is_about_no_file_in_particular() -> None:
    assert not [term for term, meaning in glossary().items() if "report.json" in meaning]


def test_a_check_that_was_not_made_is_called_that_and_nothing_else() -> None:
    assert STATUS_NAMES["skip"] == "Not made"
    assert "Skipped" not in STATUS_NAMES.values()
