from pathlib import Path

import pytest
import torch

from dpaudit.generation import passes
from dpaudit.generation.models import LanguageModel
from dpaudit.generation.passes import free_memory, planned_rows

GIB = 1 << 30


def test_rows_are_as_many_as_fit_and_serve(tiny: LanguageModel) -> None:
    for free, rows in [(GIB, 64), (0, 1), (12 << 20, 1)]:
        weights = sum(x.numel() * x.element_size() for x in tiny.network.parameters())
        assert planned_rows(tiny, 64, 16, free + weights) == rows


def test_rows_are_a_power_of_two_that_never_falls_with_memory(tiny: LanguageModel) -> None:
    planned = [planned_rows(tiny, 64, 16, mebibytes << 20) for mebibytes in range(0, 200, 5)]
    assert planned == sorted(planned)
    assert len(set(planned)) > 2
    assert all(rows & (rows - 1) == 0 for rows in planned)
    assert planned_rows(tiny, 64_000, 16, 100 << 20) < planned_rows(tiny, 64, 16, 100 << 20)


def test_a_containers_limit_counts(tmp_path: Path) -> None:
    for limit, used, least in [
        ("1000000", "400000", 600000),
        ("1000", "2000", 0),
        ("max", "5", None),
    ]:
        with pytest.MonkeyPatch.context() as monkeypatch:
            machine = free_memory(torch.device("cpu"))
            (tmp_path / "memory.max").write_text(f"{limit}\n")
            (tmp_path / "memory.current").write_text(f"{used}\n")
            monkeypatch.setattr(passes, "_CGROUP", tmp_path)
            found = free_memory(torch.device("cpu"))
            assert found == least if least is not None else found > machine / 2
