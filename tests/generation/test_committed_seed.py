"""Runs that commit to a seed, from config to gate: one party, two, killed, in several processes."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpaudit.auditing.run import audit_run
from dpaudit.generation.algorithm import generate
from dpaudit.generation.config import Config, load_config
from dpaudit.generation.events import BatchDone, Event, RunCommitted
from dpaudit.generation.public import generate_public
from dpaudit.runs import InputError, RunReader, read_seed
from dpaudit.runs.committed_seed import part_hash
from dpaudit.runs.engines import LocalEngine
from tests.forging import unfinish

MakeConfig = Callable[..., Config]
Settings = Callable[..., dict[str, Any]]
Dpaudit = Callable[..., tuple[int, str, str]]

PARTS = [hashlib.sha256(name).digest() for name in (b"the steward's", b"the auditor's")]
HASHES = [part_hash(part) for part in PARTS]
SEEDED = "sampling.committed-seed"


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """The two parts of the seed."""
    found = [tmp_path / "steward.seed", tmp_path / "auditor.seed"]
    for file, part in zip(found, PARTS, strict=True):
        file.write_text(f"{part.hex()}\n")
        file.chmod(0o600)
    return found


def sampling(files: list[Path], **fields: Any) -> dict[str, Any]:
    return {"generator": "committed-seed", "seed_files": list(map(str, files)), **fields}


def outcome(run: Path, files: list[Path]) -> str:
    checks = {check.id: check for check in audit_run(run, seed=read_seed(files)).checks}
    assert checks["mechanism.randomness"].status == "pass"
    return checks[SEEDED].status


def tokens(run: Path) -> dict[int, list[int]]:
    reader = RunReader(run)
    found = {}
    for number in reader.batches:
        with reader.batch(number) as batch:
            found[number] = batch.tokens.tolist()
    return found


MECHANISMS: dict[str, dict[str, Any]] = {
    "median": {},
    "mean": {"mechanism": {"aggregator": "mean", "divisor": 4.0}, "privacy": {"delta": 1e-3}},
    "central": {"mechanism": {"aggregator": "central", "central": 4}},
    "differences over a support": {
        "mechanism": {
            "aggregator": "median",
            "contribution": "differences",
            "support": {"kind": "public-top-k", "size": 30},
        }
    },
    "on a grid": {"mechanism": {"aggregator": "median", "grid": 0.125}},
    "several texts, some batches empty": {
        "batching": {"batches_per_label": 9, "generate_per_label": 9},
        "decoding": {"tokens_per_batch": 12},
    },
    "cells": {
        "batching": {"cells": 6},
        "prompt": {"examples_per_context": 2},
    },
    "individual budgets": {
        "mechanism": {"aggregator": "mean", "divisor": 4.0},
        "privacy": {"epsilon": 3.0, "delta": 1e-3},
        "decoding": {"tokens_per_batch": 12},
    },
}


@pytest.mark.parametrize("kind", MECHANISMS.values(), ids=MECHANISMS)
def test_the_tokens_of_every_mechanism_are_the_seeds(
    kind: dict[str, Any], files: list[Path], tmp_path: Path, make_config: MakeConfig
) -> None:
    run = Path(generate(make_config(**kind, sampling=sampling(files)), tmp_path / "run"))
    assert outcome(run, files) == "pass"
    other = tmp_path / "other.seed"
    other.write_text(hashlib.sha256(b"other").hexdigest())
    other.chmod(0o600)
    assert outcome(run, [files[0], other]) == "fail"
    checks = {check.id: check for check in audit_run(run, seed=read_seed([files[0], other])).checks}
    assert checks[SEEDED].code == "other-parts"


class StoppedError(Exception):
    """Stands for a killed process."""


def test_a_run_that_goes_on_or_is_spread_over_processes_draws_the_same_tokens(
    files: list[Path], tmp_path: Path, make_config: MakeConfig
) -> None:
    config = make_config(sampling=sampling(files))

    def stop(event: Event) -> None:
        if isinstance(event, BatchDone):
            raise StoppedError

    run = tmp_path / "run"
    with pytest.raises(StoppedError):
        generate(config, run, stop)
    begun = Path(shutil.copytree(run, tmp_path / "begun"))
    assert 0 < len(RunReader(run).batches) < 4
    generate(config, run)
    generate(config, begun, engine=LocalEngine(2))
    assert tokens(run) == tokens(begun) and outcome(run, files) == outcome(begun, files) == "pass"
    # The same seed again: another commitment, and so other numbers.
    again = Path(generate(config, tmp_path / "again"))
    assert tokens(again) != tokens(run) and outcome(again, files) == "pass"


def test_a_batch_that_is_deleted_and_drawn_again_comes_out_the_same(
    files: list[Path], tmp_path: Path, make_config: MakeConfig
) -> None:
    config = make_config(sampling=sampling(files))
    run = Path(generate(config, tmp_path / "run"))
    first, lost = tokens(run), run / "steps/00000001.zip"
    for in_journal in (False, True):
        if in_journal:
            unfinish(run)
            lost.unlink()
        else:
            lost.unlink()
            unfinish(run)
        generate(config, run, redraw=in_journal)
        assert tokens(run) == first
        assert RunReader(run).hashes().redrawn == []  # the very file that was finished first


def test_two_parties_commit_before_either_knows_the_seed(
    files: list[Path], tmp_path: Path, settings: Settings, dpaudit: Dpaudit
) -> None:
    """The auditor's part comes after the commitment. Until then not one token is drawn."""
    steward, auditor = files
    kept = auditor.rename(tmp_path / "at the auditor's")
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(settings(sampling=sampling(files, seed_hashes=HASHES))))
    for _ in range(2):
        code, out, err = dpaudit("generate", config, "--out", "run")
        commitment = RunReader(tmp_path / "run").manifest.commitment
        assert code == 2 and not RunReader(tmp_path / "run").batches
        assert (
            "auditor.seed" in err
            and "not there yet" in err
            and err.count(str(commitment)) == 2
            and HASHES[1] in err
        )
    auditor.write_text(PARTS[0].hex() + "\n")  # not what was promised
    auditor.chmod(0o600)
    assert dpaudit("generate", config, "--out", "run")[0] == 2
    auditor.unlink()
    kept.rename(auditor)
    code, out, err = dpaudit("generate", config, "--out", "run")
    assert code == 0, err
    assert RunReader(tmp_path / "run").manifest.commitment == commitment
    seeds = ["--seed-file", steward, "--seed-file", auditor]
    code, out, err = dpaudit("verify", "run", "--commitment", commitment, *seeds)
    assert code == 0, out + err
    assert "sampling.committed-seed" not in err
    assert dpaudit("verify", "run", "--seed-file", steward)[0] == 2
    assert dpaudit("verify", "run", "--level", 3)[0] == 1


def test_no_secret_is_in_the_run_the_reports_or_what_is_printed(
    files: list[Path], tmp_path: Path, settings: Settings, dpaudit: Dpaudit
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(settings(sampling=sampling(files))))
    seeds = ["--seed-file", files[0], "--seed-file", files[1]]
    printed = ""
    for command in (
        ("generate", config, "--out", "run"),
        ("report", "run", *seeds),
        ("report", "run", "--audience", "public", *seeds),
        ("verify", "run", "--json", "--junit", "junit.xml", "--sarif", "found.sarif", *seeds),
        ("release", "run", "--out", "released", "--unsigned", *seeds),
        ("verify", "released", "--unsigned"),
    ):
        code, out, err = dpaudit(*command)
        assert code == 0, err
        printed += out + err
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".seed"]
    assert len(written) > 20
    key = bytes(a ^ b for a, b in zip(*PARTS, strict=True))
    secrets = [
        form
        for secret in (*PARTS, key)
        for form in (secret, secret.hex().encode(), secret.hex().upper().encode())
    ]
    for content in (printed.encode(), *(path.read_bytes() for path in written)):
        assert not any(secret in content for secret in secrets)
    # That randomness was committed to is public, and the hashes are the run's alone.
    public = (tmp_path / "run/report/public/report.json").read_text()
    assert "committed-seed" in public and not any(each in public for each in HASHES)
    outside = [path for path in written if "released" in path.parts or path.parent.name == "public"]
    assert not any(each.encode() in path.read_bytes() for each in HASHES for path in outside)
    attested = [json.loads(path.read_text()) for path in (tmp_path / "released").rglob("*.json")]
    assert attested
    # A seed for a release folder, and for a run without one.
    assert dpaudit("verify", "released", "--unsigned", *seeds)[0] == 2


def test_a_seed_for_a_run_without_one_is_refused(
    files: list[Path], generated: Callable[..., Path], dpaudit: Dpaudit
) -> None:
    for command in ("verify", "report"):
        code, _, err = dpaudit(
            command, generated(decoding={"test_seed": None}), "--seed-file", files[0]
        )
        assert code == 2 and "to no seed" in err and "Leave out --seed-file" in err


def test_a_part_in_the_run_directory_is_refused(
    files: list[Path], tmp_path: Path, make_config: MakeConfig
) -> None:
    with pytest.raises(InputError, match="inside the run"):
        generate(make_config(sampling=sampling(files)), tmp_path)


def test_a_part_that_was_exchanged_midway_is_refused(
    files: list[Path], tmp_path: Path, make_config: MakeConfig
) -> None:
    config = make_config(sampling=sampling(files))

    def exchange(event: Event) -> None:
        if isinstance(event, RunCommitted):
            files[1].write_text(hashlib.sha256(b"another").hexdigest())

    with pytest.raises(InputError, match="not those that the run recorded"):
        generate(config, tmp_path / "run", exchange)
    assert not RunReader(tmp_path / "run").batches
    with pytest.raises(InputError, match="seed_hashes"):
        generate(config, tmp_path / "run")


def test_the_public_baseline_needs_no_seed(tmp_path: Path, make_config: MakeConfig) -> None:
    out = generate_public(make_config(sampling=sampling([Path("nowhere")])), tmp_path / "public")
    assert '"os-entropy"' in (Path(out) / "public.json").read_text()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no files": ({"generator": "committed-seed"}, "sampling.seed_files"),
    "files of nothing": ({"seed_files": ["a"]}, "sampling.seed_files"),
    "empty": ({"generator": "committed-seed", "seed_files": []}, "sampling.seed_files"),
    "fewer hashes": (
        {"generator": "committed-seed", "seed_files": ["a", "b"], "seed_hashes": HASHES[:1]},
        "sampling.seed_hashes",
    ),
    "one hash twice": (
        {"generator": "committed-seed", "seed_files": ["a", "b"], "seed_hashes": HASHES[:1] * 2},
        "sampling.seed_hashes",
    ),
    "no hash": (
        {"generator": "committed-seed", "seed_files": ["a"], "seed_hashes": ["secret"]},
        "sampling.seed_hashes",
    ),
    "other generator": ({"generator": "dice"}, "sampling.generator"),
    "the seed itself": ({"generator": "committed-seed", "seed": PARTS[0].hex()}, "sampling.seed"),
    "missing": (
        {"generator": "committed-seed", "seed_files": ["nowhere.seed"]},
        "sampling.seed_files",
    ),
}


@pytest.mark.parametrize(("asked", "field"), REFUSED.values(), ids=REFUSED)
def test_rejects_randomness_that_is_none(
    asked: dict[str, Any], field: str, tmp_path: Path, settings: Settings, dpaudit: Dpaudit
) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings(sampling=asked)))
    code, _, err = dpaudit("generate", "config.yaml", "--dry-run")
    assert code == 2 and field in err and PARTS[0].hex() not in err, err


def test_rejects_two_seeds(tmp_path: Path, files: list[Path], settings: Settings) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(settings(sampling=sampling(files, seed=7))))
    with pytest.raises(InputError, match=r"config\.yaml: sampling"):
        load_config(path)


def test_the_command_makes_a_part_and_tells_its_hash_alone(
    tmp_path: Path, dpaudit: Dpaudit
) -> None:
    code, out, err = dpaudit("key", "--seed", "--out", "mine.seed", "--json")
    made = json.loads(out)
    assert code == 0 and made["hash"] == read_seed([tmp_path / "mine.seed"]).hashes[0]
    assert (tmp_path / "mine.seed").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "mine.seed").read_text().strip() not in out + err
    assert dpaudit("key", "--seed", "--out", "mine.seed")[0] == 2
