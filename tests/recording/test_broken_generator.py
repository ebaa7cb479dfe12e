"""A generator of one's own, broken in three ways: each fails the check that is there for it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from dpaudit.auditing.run import audit_run

SCRIPT = Path(__file__).parents[2] / "examples" / "foreign_run.py"
BROKEN = {
    "cut off in place of moved": (
        "np.maximum(-CLIP, scores - scores.max() + CLIP)",
        "np.clip(scores, -CLIP, CLIP)",
        {"mechanism.clip"},
    ),
    "the likeliest token": (
        "(token,) = secrets.SystemRandom().choices(range(len(WORDS)), weights=weights)",
        "token = int(log_probabilities.argmax())",
        {"sampling.distribution"},
    ),
    "the last batch dropped": (
        "batching=placed.batching",
        'batching=placed.batching.model_copy(update={"batches": GENERATED - 1})',
        {"release.selection", "partition.disjoint"},
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_generator_fails_its_check(name: str, tmp_path: Path) -> None:
    old, new, fails = BROKEN[name]
    text = SCRIPT.read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "broken.py").write_text(text.replace(old, new), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("broken_foreign_run", tmp_path / "broken.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.write_run(tmp_path / "run")
    found = audit_run(tmp_path / "run")
    assert fails <= {check.id for check in found.checks if check.status == "fail"}
