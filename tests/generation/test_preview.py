"""Texts of the public prompt alone, before the run: no record is read, and a toy is called one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dpaudit.generation import preview as previews
from dpaudit.generation.algorithm import prompting
from dpaudit.generation.config import Config, load_config
from dpaudit.generation.preview import draft_examples, preview
from dpaudit.generation.prompts import Prompts
from dpaudit.results.plan import PublicPreview, is_toy
from dpaudit.runs import InputError, RunReader, Sample
from dpaudit.runs.manifest import StopReason
from dpaudit.runs.vacuity import VERY_SHORT

MakeConfig = Callable[..., Config]
Dpaudit = Callable[..., tuple[int, str, str]]
EXAMPLES = {
    label: [f"A {word} thing happened in the {label}." for word in ("first", "second", "third")]
    for label in ("north", "south")
}
DRAFTS = {
    "north": ("Snow lay on the hills: all of it.", "It froze."),
    "south": ('"Hot", he said.',),
}


def with_examples(make_config: MakeConfig, **sections: dict[str, Any]) -> Config:
    return make_config(prompt={"public_examples": EXAMPLES}, **sections)


def test_no_record_is_read_and_the_same_prompt_gives_the_same_texts(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    config = with_examples(make_config, data={"path": str(tmp_path / "nothing.csv")})
    found = preview(config)
    assert [text.label for text in found.shown] == ["north", "north", "south", "south"]
    assert (found.texts, found.examples, found.labels, found.drafted) == (8, 6, 2, False)
    told: list[tuple[int, int]] = []
    assert found == preview(config, watch=lambda *counts: told.append(counts))
    assert told[0] == (1, 40) and told[-1] == (40, 40)  # eight texts of up to five tokens
    assert found.shown != preview(make_config(data={"path": str(tmp_path / "nothing.csv")})).shown
    assert not list(tmp_path.iterdir())


def test_a_random_model_is_told_to_be_a_toy(make_config: MakeConfig) -> None:
    config = with_examples(make_config, decoding={"max_tokens": 24})
    found = preview(config)
    assert sum(found.empty.values()) > found.texts / 4 and not found.follows
    assert found.parameters == prompting(config).model.network.num_parameters()


def test_an_example_is_told_by_the_others_alone(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scored(right: bool) -> PublicPreview:
        def score(
            model: Any, prompts: Prompts, label: str, texts: list[str], most: int
        ) -> list[float]:
            assert not set(texts) & set(prompts.public_examples[label])
            return [float((label in text) == right) for text in texts]

        monkeypatch.setattr(previews, "_log_probabilities", score)
        return preview(with_examples(make_config))

    assert (scored(True).told, scored(False).told, scored(True).asked) == (6, 0, 6)


@pytest.mark.parametrize("template", ["pt", "it"])
def test_scores_are_the_models_log_probabilities(make_config: MakeConfig, template: str) -> None:
    """Held against passes over prompt and text in one piece, each text alone."""
    shown = {label: texts[:2] for label, texts in EXAMPLES.items()}
    examples = {"public_examples": shown, "template": template, "max_example_tokens": 8}
    config = make_config(prompt=examples)
    model, prompts, _ = prompting(config)
    texts, most = ["A thing of some length.", "Short"], 16
    found = previews._log_probabilities(model, prompts, "north", texts, most)
    for text, score in zip(texts, found, strict=True):
        tokens, lead = prompts.continuation("north", text, most)
        whole = torch.tensor([[*prompts.public_tokens("north"), *tokens]])
        with torch.no_grad():
            logits = model.network(input_ids=whole).logits[0].log_softmax(-1)
        places = range(whole.shape[1] - len(tokens) + lead, whole.shape[1])
        alone = sum(float(logits[place - 1, whole[0, place]]) for place in places)
        assert score == pytest.approx(alone, abs=1e-3)


@pytest.mark.parametrize(
    ("changed", "follows"),
    [
        ({}, True),
        ({"empty": {"digits": 2}}, True),
        ({"empty": {"digits": 2, "lists": 1}}, False),
        ({"told": 5}, False),
        ({"told": 6}, True),
        ({"told": 0, "asked": 0}, True),
        ({"told": 5, "labels": 5}, True),
    ],
)
def test_what_following_a_prompt_means(changed: dict[str, Any], follows: bool) -> None:
    found = PublicPreview(
        model="m",
        parameters=200_000_000,
        shown=(),
        texts=8,
        empty={},
        labels=2,
        told=8,
        asked=8,
        examples=8,
        drafted=False,
    )
    assert found.model_copy(update=changed).follows == follows
    assert not is_toy(found.parameters) and is_toy(199_999_999)


def test_drafts_are_whole_texts_that_say_something_and_fit_their_label_best(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[str, StopReason]] = [
        *(
            (f"A thing that fits the {label} so well: {label * fit}.", "end-token")
            for fit in (1, 5, 3, 2, 4)
            for label in ("north", "south")
        ),
        ("A thing that\n fits the north  so well: north.", "end-token"),  # the first once more
        ("northnorthnorthnorthnorthnorth northnorth it goes on and on and", "max-tokens"),
        ("north: 1, 2, 3, 4, 5, 6, 7", "end-token"),
    ]
    samples = [
        Sample(
            id=number,
            number=0,
            label="south" if "south" in text else "north",
            cluster=None,
            tokens=tuple(range(VERY_SHORT)),
            text=text,
            stop=stop,
        )
        for number, (text, stop) in enumerate(said)
    ]

    def score(model: Any, prompts: Prompts, label: str, texts: list[str], most: int) -> list[float]:
        return [float(text.count(label)) for text in texts]

    config = make_config(data={"path": "nothing.csv"})
    manifest, _ = previews.public_samples(config, prompting(config), 1, ("north",), previews.silent)
    monkeypatch.setattr(previews, "public_samples", lambda *asked: (manifest, samples))
    monkeypatch.setattr(previews, "_log_probabilities", score)
    assert draft_examples(config) == {
        label: tuple(
            f"A thing that fits the {label} so well: {label * fit}." for fit in (5, 4, 3, 2)
        )
        for label in ("north", "south")
    }
    monkeypatch.setattr(previews, "vacuity", lambda *asked: "digits")
    with pytest.raises(InputError) as caught:
        draft_examples(config)
    assert caught.value.where == "--draft-examples"


@pytest.fixture
def asked(data_file: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Of `init`: with a model at hand, whose drafts are fixed."""
    monkeypatch.setattr(previews, "draft_examples", lambda config, watch: DRAFTS)
    labels = ["--labels", "north,south", "--records", 1334, "--epsilon", 3, "--texts", 2]
    return ["init", "own.yaml", "--data", data_file, "--model", tiny_folder, *labels]


@pytest.mark.usefixtures("coarse")
def test_drafted_examples_are_marked_in_config_and_run(
    dpaudit: Dpaudit, asked: list[Any], tmp_path: Path
) -> None:
    code, out, err = dpaudit(*asked, "--about", "Größe of {things}.", "--draft-examples", "--json")
    assert code == 0, err
    assert json.loads(out)["preview"]["drafted"] is True
    config = load_config(tmp_path / "own.yaml")
    assert config.prompt.drafted and config.prompt.public_examples == DRAFTS
    assert config.prompt.text == "Größe of {{things}} ({label}), one a line:\n- {example}\n-"
    assert "Größe" in (tmp_path / "own.yaml").read_text(encoding="utf-8")
    assert dpaudit("generate", "own.yaml", "--out", "run")[0] == 0
    assert RunReader(tmp_path / "run").manifest.prompt.drafted


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize(
    ("options", "field"),
    [
        (["--draft-examples"], "--draft-examples"),
        (["--draft-examples", "--about", "Notes", "--template", "pt"], "--draft-examples"),
        (["--draft-examples", "--about", "Notes", "--examples", "own.csv"], "--draft-examples"),
        (["--examples", "none.csv"], "--examples"),
        (["--examples", "{records}"], "--examples"),
        (["--about", " "], "--about"),
        (["--about", "Notes\nof"], "--about"),
    ],
)
def test_what_cannot_be_drafted_is_refused(
    dpaudit: Dpaudit, asked: list[Any], tmp_path: Path, options: list[str], field: str
) -> None:
    code, _, err = dpaudit(*asked, *(option.format(records=asked[3]) for option in options))
    assert code == 2 and err.startswith(f"dpaudit: {field}: ")
    assert not (tmp_path / "own.yaml").exists()


def test_drafting_needs_labels_and_overwrites_nothing(
    dpaudit: Dpaudit, asked: list[Any], tmp_path: Path
) -> None:
    draft = ["--about", "Notes", "--draft-examples"]
    code, _, err = dpaudit(*asked[:6], *draft)
    assert code == 2 and "--labels" in err
    (tmp_path / "own.yaml").write_text("mine")
    code, _, err = dpaudit(*asked, *draft)
    assert code == 2 and "--force" in err and (tmp_path / "own.yaml").read_text() == "mine"


@pytest.mark.usefixtures("coarse")
def test_marking_drafts_needs_examples(make_config: MakeConfig) -> None:
    with pytest.raises(ValueError, match="public_examples"):
        make_config(prompt={"drafted": True})


def test_init_shows_texts_of_a_model_at_hand(dpaudit: Dpaudit, asked: list[Any]) -> None:
    code, out, err = dpaudit(*asked)
    assert code == 0, err
    assert out.count("north") >= 2 and out.count("south") >= 2 and "epsilon 0" in out
    assert "Ctrl-C" in err  # the config is there before the model is loaded
