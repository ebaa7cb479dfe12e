"""Whether a model knew records: on stubbed likelihoods, and by a tiny model once."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import dpaudit  # noqa: E402
from benchmarks.tiny import save_tiny_model  # noqa: E402
from dpaudit.accounting.ranks import rank_test  # noqa: E402
from dpaudit.commands.cli import cli  # noqa: E402
from dpaudit.generation.config import ModelConfig  # noqa: E402
from dpaudit.generation.evaluation import contamination  # noqa: E402
from dpaudit.generation.model_loading import load_model  # noqa: E402
from dpaudit.runs import InputError  # noqa: E402

WORDS = ["red", "green", "blue", "north", "south", "east", "west", "one", "two", "three", "four"]


def texts(seed: int, count: int, *more: str) -> list[str]:
    random = np.random.default_rng(seed)
    return [
        " ".join([*random.choice(WORDS, 12), *more, str(seed * 10_000 + n)]) for n in range(count)
    ]


def write(path: Path, rows: list[str]) -> str:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([["text"], *([row] for row in rows)])
    return str(path)


@pytest.fixture
def by_stub(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Compares texts by likelihoods that a function of the text gives."""

    class Model:
        digest = "0" * 64

    monkeypatch.setattr(contamination, "load_model", lambda config: Model())

    def compare(records: list[str], others: list[str], score: Any) -> Any:
        monkeypatch.setattr(
            contamination, "log_probability", lambda model, text, tokens: score(text)
        )
        return contamination.compare(records, others, ModelConfig(name="stub"))

    return compare


def noise(text: str) -> float:
    return float(np.random.default_rng([*text.encode()]).normal(-3, 0.5))


def test_outcomes(by_stub: Any) -> None:
    records, others = texts(1, 120), texts(2, 150)
    known = set(records)
    honest = by_stub(records, others, noise)
    assert honest.outcome == "no-sign" and honest.exit_code == 0
    memorised = by_stub(records, others, lambda text: noise(text) + (text in known))
    assert memorised.outcome == "known" and memorised.exit_code == 1
    assert memorised.likelihood.auc > 0.8 and memorised.words.p > 0.05
    # less likely records are no sign of knowledge
    assert by_stub(records, others, lambda text: noise(text) - (text in known)).outcome == "no-sign"
    # files that differ by themselves say nothing, however likely the records are
    apart = texts(3, 150, "yesterday")
    assert by_stub(records, apart, lambda text: noise(text) + (text in known)).exit_code == 1
    assert by_stub(records, apart, noise).outcome == "files-differ"


def test_texts_in_both_files_and_short_ones_are_left_out(by_stub: Any) -> None:
    mine, others = texts(1, 60), texts(2, 60)
    records, short = [*mine, others[0].upper(), mine[0]], mine[5]
    found = by_stub(records, others, lambda text: np.nan if text == short else noise(text))
    assert (found.in_both, found.records.texts, found.records.too_short) == (1, 59, 1)
    assert found.others.texts == 59
    with pytest.raises(InputError) as refused:
        by_stub(records, records, noise)
    assert refused.value.where == "RECORDS"
    assert mine[0] not in str(refused.value)


def test_words_level(tmp_path: Path) -> None:
    """Halves of one file are told apart as often as the level says."""
    random, pool = np.random.default_rng(5), texts(1, 160)
    found = []
    for _ in range(60):
        order = random.permutation(len(pool))
        ranks = contamination.words_test(
            [pool[place] for place in order[:80]], [pool[place] for place in order[80:]]
        )
        found.append(ranks.p <= 0.05)
    assert sum(found) <= 8  # 3 expected; more in 0.4% of all seeds


def test_a_tiny_model_that_learned_its_records(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_tiny_model(folder)
    mine, other = texts(1, 45), texts(2, 45)
    records, others = write(tmp_path / "a.csv", mine), write(tmp_path / "b.csv", other)
    outcome = CliRunner().invoke(
        cli,
        ["contamination", records, "--against", others, "--model", str(folder), "--json"],
    )
    assert outcome.exit_code == 0, outcome.output
    found = json.loads(outcome.stdout)
    assert found["outcome"] == "no-sign" and found["records"]["texts"] == 45
    assert not any(text in outcome.output for text in [*mine, *other])
    # the likelihood is that of a pass with labels, the library's own loss
    model = load_model(ModelConfig(name=str(folder), dtype="float32"))
    first = model.tokenizer.bos_token_id
    ids = model.tokenizer.encode(mine[0], add_special_tokens=False)[:20]
    row = torch.tensor([[*([first] if isinstance(first, int) else []), *ids]])
    loss = float(model.network(input_ids=row, labels=row).loss.detach())
    assert contamination.log_probability(model, mine[0], 20) == pytest.approx(-loss, abs=1e-5)
    # trained on its records it is found out
    model.network.train(True)
    optimizer = torch.optim.AdamW(model.network.parameters(), lr=3e-3)
    rows = [model.tokenizer.encode(text, add_special_tokens=False) for text in mine]
    for _ in range(12):
        for ids in rows:
            row = torch.tensor([ids])
            optimizer.zero_grad()
            model.network(input_ids=row, labels=row).loss.backward()
            optimizer.step()
    model.network.train(False)
    scores = [
        np.array([contamination.log_probability(model, text, 128) for text in side])
        for side in (mine, other)
    ]
    assert rank_test(*scores).p < 1e-3


LOOKING = """
import sys
from dpaudit.commands.cli import cli
from dpaudit.errors import InputError
try:
    cli(sys.argv[1:])
except InputError as refused:
    print(refused.where, "torch" in sys.modules)
"""


def test_looks_for_the_files_before_loading_torch(tmp_path: Path) -> None:
    mine, none = write(tmp_path / "a.csv", texts(1, 45)), str(tmp_path / "nope.csv")
    for records, others, where in ((none, mine, "RECORDS"), (mine, none, "--against")):
        asked = ["contamination", records, "--against", others, "--model", "none"]
        command = [sys.executable, "-c", LOOKING, *asked]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert found.split() == [where, "False"]


def test_api_refuses_a_level(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        dpaudit.contamination("a.csv", "b.csv", "model", level=1.0)
    assert refused.value.where == "level"
