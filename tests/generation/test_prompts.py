from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from dpaudit.generation.models import LanguageModel
from dpaudit.generation.prompt_encoding import PromptEncoder
from dpaudit.generation.prompts import END_OF_TURN, ends_with, template, written_forms
from dpaudit.runs import InputError


@pytest.fixture
def tokenizer(tiny_folder: Path) -> PreTrainedTokenizerBase:
    """A fresh one, so that a test may change it."""
    loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(tiny_folder)
    return loaded


def test_the_pretrained_prompt(tokenizer: PreTrainedTokenizerBase) -> None:
    prompts = template("pt", tokenizer)
    assert prompts.text("Sport", []) == "```\n"
    assert prompts.text("Sport", ["one"]) == "```\nSport\none\n```\n\n```\n"
    assert (
        prompts.text("Sport", ["one", "two"])
        == "```\nSport\none\n```\n\n```\nSport\ntwo\n```\n\n```\n"
    )
    assert tokenizer.decode(prompts.tokens("Sport", ["one"])) == "```\nSport\none\n```\n\n```\n"


def test_the_instruction_prompt_in_gemmas_turns(tokenizer: PreTrainedTokenizerBase) -> None:
    assert template("it", tokenizer).stop_sequences == ()
    tokenizer.add_tokens([END_OF_TURN])
    prompts = template("it", tokenizer)
    assert prompts.text("Sport", ["one", "two"]) == (
        "<start_of_turn>user\nHere are texts with Label: Sport.\n\nText: one\n\nText: two\n\n"
        "Please give another one. No formatting or "
        "explanations.<end_of_turn>\n<start_of_turn>model\nText: "
    )
    assert prompts.text("Sport", []) == (
        "<start_of_turn>user\nHere are texts with Label: Sport.\n\n"
        "Please give another one. No formatting or "
        "explanations.<end_of_turn>\n<start_of_turn>model\nText: "
    )
    assert tokenizer.decode(prompts.stop_sequences[0]) == END_OF_TURN


def test_a_base_model_has_no_instruction_prompt(tokenizer: PreTrainedTokenizerBase) -> None:
    tokenizer.chat_template = None
    with pytest.raises(InputError) as caught:
        template("it", tokenizer)
    assert caught.value.where == "prompt.template"


def test_the_instruction_prompt_in_a_chat_format(tokenizer: PreTrainedTokenizerBase) -> None:
    plain = template("it", tokenizer).digest
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    prompts = template("it", tokenizer)
    assert prompts.text("Sport", ["one"]) == (
        "[user]Here are texts with Label: Sport.\n\nText: one\n\n"
        "Please give another one. No formatting or explanations.[assistant]Text: "
    )
    assert prompts.stop_sequences == ()
    assert prompts.digest != plain


def test_braces_in_a_text_stay_as_they_are(tokenizer: PreTrainedTokenizerBase) -> None:
    assert (
        template("pt", tokenizer)
        .text("x", ["{label} {example} {0}"])
        .startswith("```\nx\n{label} {example} {0}\n")
    )


def test_a_cut_keeps_the_first_tokens(tokenizer: PreTrainedTokenizerBase) -> None:
    assert PromptEncoder(tokenizer).cut("abcdef", 4) == "abcd"
    assert PromptEncoder(tokenizer).cut("abc", 4) == "abc"


def test_stop_sequences_of_a_fence_in_one_token(tokenizer: PreTrainedTokenizerBase) -> None:
    fence = tokenizer.convert_tokens_to_ids("```")
    assert template("pt", tokenizer).stop_sequences == ((fence,),)
    for text in ("```", "end```", "end ```", "end\n```"):
        assert ends_with(tokenizer(text)["input_ids"], (fence,))


def test_no_stop_sequence_ends_in_another(tokenizer: PreTrainedTokenizerBase) -> None:
    forms = written_forms(tokenizer, "END")
    assert len(forms) == 1
    assert tokenizer.decode(forms[0]) == "END"


def test_ends_with() -> None:
    assert ends_with([1, 2, 3], (2, 3))
    assert not ends_with([1, 2, 3], (1, 2))
    assert not ends_with([3], (2, 3))


@pytest.mark.model
def test_smollm2_fences(smollm2: LanguageModel) -> None:
    tokenizer = smollm2.tokenizer
    stops = template("pt", tokenizer).stop_sequences
    assert stops == ((3725,), (47182,))  # "```" and " ```"
    for text in ("```", "end```", "end ```", "end.\n```"):
        assert any(ends_with(tokenizer(text)["input_ids"], stop) for stop in stops)
    assert 2 in smollm2.end_tokens


@pytest.mark.model
def test_smollm2_chat_format(smollm2: LanguageModel) -> None:
    text = template("it", smollm2.tokenizer).text("sport", ["one"])
    assert "<|im_start|>user\nHere are texts with Label: sport.\n\nText: one\n\nPlease" in text
    assert text.endswith("<|im_start|>assistant\nText: ")
