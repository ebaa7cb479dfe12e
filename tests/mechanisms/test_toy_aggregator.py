"""A new aggregator is a plug-in.

This one, of a package that is not part of dpaudit, is generated with, audited, replayed, attacked,
compared and reported without any change in the product.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from dpaudit.commands.cli import cli
from dpaudit.mechanisms import Arrays
from dpaudit.runs import RunReader, RunWriter, Step, aggregate_digest
from tests.mechanisms import test_conformance as conformance
from tests.nesting import nested, read_run
from tests.plug_ins import PACKAGE, plugged_in

Floats = NDArray[np.floating[Any]]
NAME = "trimmed-sum"


def naive(values: Floats, scale: float = 2.5) -> Floats:
    return np.array([math.fsum(sorted(column.tolist())[1:-1]) / scale for column in values.T])


def record(values: Floats, clip: float, width: int) -> Arrays:
    extremes = (
        np.array([[min(column), max(column)] for column in values.T.tolist()]).T
        if len(values)
        else None
    )
    return {"trimmed": naive(values)} | ({} if extremes is None else {"extremes": extremes})


TOY = conformance.Case(NAME, record, naive, {"scale": 2.5}, rounding=1e-13, reaches=False)


@pytest.fixture(autouse=True)
def installed(tmp_path: Path) -> Iterator[None]:
    with plugged_in(tmp_path / "site", PACKAGE):
        yield


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
def test_it_conforms(check: Callable[[conformance.Case], None]) -> None:
    check(TOY)


def test_its_neighbours_lie_in_its_box_and_its_steps_come_back(tmp_path: Path) -> None:
    conformance.check_neighbours(TOY, batches=12)
    conformance.check_round_trip(TOY, tmp_path)


# --- through the program --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with data, and a run of the toy and one of the median from it."""
    pytest.importorskip("torch")
    from benchmarks.tiny import save_tiny_model

    folder = tmp_path_factory.mktemp("toy")
    save_tiny_model(folder / "model")
    lines = ["label,text", *(f"north,{number} lorem ipsum" for number in range(14))]
    (folder / "records.csv").write_text("\n".join(lines) + "\n")
    with plugged_in(folder / "site", PACKAGE):
        for aggregator in ({"aggregator": NAME, "scale": 2.5}, {"aggregator": "median"}):
            config = folder / f"{aggregator['aggregator']}.yaml"
            config.write_text(json.dumps(settings(folder, aggregator)))  # JSON is YAML too
            code, said = dpaudit(
                "generate", config, "--out", folder / str(aggregator["aggregator"])
            )
            assert code == 0, said
        yield folder


def settings(folder: Path, aggregator: dict[str, Any]) -> dict[str, Any]:
    return {
        "data": {"path": str(folder / "records.csv"), "labels": ["north"]},
        "model": {"name": str(folder / "model"), "device": "cpu"},
        "prompt": {"template": "pt", "examples_per_context": 1, "max_example_tokens": 32},
        "batching": {"rule": "hashed", "batches_per_label": 3, "generate_per_label": 2},
        "mechanism": nested({"clip": 4.0, "temperature": 1.0, **aggregator}),
        "decoding": {"max_tokens": 4},
        "record": {"contexts": True},
        "chosen_from": {"batching": "public", "settings": "public"},
    }


def dpaudit(*arguments: object) -> tuple[int, str]:
    """Exit code and output of a command, in this process, where the toy is registered."""
    result = CliRunner().invoke(cli, [*map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_its_run_passes_with_all_evidence_and_has_every_report(made: Path, tmp_path: Path) -> None:
    mechanism = read_run(made / NAME)["mechanism"]
    assert mechanism["aggregator"] == {"kind": NAME, "scale": 2.5}
    code, said = dpaudit("verify", made / NAME)
    assert code == 0, said
    evidence = ("--data", made / "records.csv", "--evidence", 4)
    code, said = dpaudit(
        "report", made / NAME, *evidence, "--out", tmp_path, "--sarif", tmp_path / "run.sarif"
    )
    assert code == 0, said
    assert {path.name for path in tmp_path.iterdir()} >= {
        "report.html", "report.json", "report.md", "junit.xml", "run.sarif"
    }  # fmt: skip
    checks = {
        check["id"]: check for check in json.loads((tmp_path / "report.json").read_text())["checks"]
    }
    for check in (
        "replay.logits",
        "replay.lower-bound",
        "neighbors.removal",
        "neighbors.regenerated",
    ):
        assert checks[check]["status"] == "pass", checks[check]
    assert {check["status"] for check in checks.values()} == {"pass", "skip"}
    assert NAME in (tmp_path / "report.html").read_text()
    code, said = dpaudit(
        "report", made / NAME, "--audience", "public", "--out", tmp_path / "public"
    )
    assert code == 0, said


def test_its_run_is_inspected_and_compared_with_a_median_run(made: Path, tmp_path: Path) -> None:
    code, said = dpaudit("inspect", made / NAME, "--batch", 0)
    assert code == 0, said
    code, said = dpaudit(
        "compare", made / NAME, made / "median", "--out", tmp_path / "comparison.html"
    )
    assert code == 0, said
    assert NAME in (tmp_path / "comparison.html").read_text()
    code, said = dpaudit("compare", made / NAME, "--figures", tmp_path / "figures")
    assert code == 0, said


def replanted(run: Path, out: Path, fault: Callable[[Step], Step]) -> Path:
    """The run rewritten with a fault in each batch's first step; its vector's digest follows."""
    reader = RunReader(run)
    with RunWriter.create(
        out, reader.manifest.model_copy(update={"claim": None}),
        tokenizer_json=reader.tokenizer_json(), assignment=reader.assignment(),
    ) as writer:  # fmt: skip
        for number in reader.batches:
            with (
                reader.batch(number) as batch,
                writer.batch(batch.header) as written,
            ):
                for position, step in enumerate(batch.steps()):
                    written.write(fault(step) if position == 0 else step)
                (sample,) = batch.samples()
                written.finish(text=sample.text, stop=sample.stop)
        writer.finish(reader.manifest.claim)
    return out


def shifted(name: str, by: float) -> Callable[[Step], Step]:
    """Move every value of an array by so much."""

    def fault(step: Step) -> Step:
        arrays = {**step.arrays, name: step.arrays[name] + by}
        digest = aggregate_digest(arrays["trimmed"])
        return Step(step.token, step.log_probability, digest, arrays, step.contexts, step.support)

    return fault


def test_a_fault_in_its_record_fails(made: Path, tmp_path: Path) -> None:
    faults = {
        "record.aggregate": shifted("trimmed", 0.01),
        "record.range": shifted("extremes", 8.5),
    }
    for number, (check, fault) in enumerate(faults.items()):
        run = replanted(made / NAME, tmp_path / str(number), fault)
        code, said = dpaudit("verify", run)
        assert code == 1, said
        assert f"FAIL {check}" in said
    honest = replanted(made / NAME, tmp_path / "honest", lambda step: step)
    assert dpaudit("verify", honest)[0] == 0
