"""`dpaudit generate DATA`: one command from records to a run, and the config that it leaves."""

from __future__ import annotations

import csv
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from dpaudit.commands import own_data
from dpaudit.commands.progress import GenerationProgress
from dpaudit.generation.config import load_config
from dpaudit.generation.events import BatchDone, Event
from dpaudit.results.plan import PLANS, Plan
from dpaudit.runs import InputError, RunReader
from dpaudit.runs.manifest import MAX_CONTEXTS, MAX_TOKENS

Dpaudit = Callable[..., tuple[int, str, str]]
pytestmark = pytest.mark.usefixtures("coarse", "empty_figures")


@pytest.fixture
def claims(tmp_path: Path, tiny_folder: Path) -> list[object]:
    """Options for 40 records in claims.csv, whose texts take a moment."""
    with (tmp_path / "claims.csv").open("w", newline="") as file:
        rows = [(f"canary {n} of a claim", "Theft" if n % 2 else "Motor") for n in range(40)]
        csv.writer(file).writerows([("note", "kind"), *rows])
    (tmp_path / "public.csv").write_text("kind,note\nMotor,A van hit the door.\n")
    columns = ["--text", "note", "--label", "kind", "--labels", "Motor,Theft"]
    columns += ["--examples", "public.csv"]
    sizes = ["--records", 300, "--epsilon", 3, "--texts", 4]
    return ["claims.csv", *columns, *sizes, "--model", tiny_folder, "--template", "own"]


def test_one_command_writes_a_run_that_passes(
    dpaudit: Dpaudit, tmp_path: Path, tiny_folder: Path, claims: list[object]
) -> None:
    code, out, err = dpaudit("generate", *claims, "--out", "run")
    assert (code, out) == (0, ""), err
    said = " ".join(err.split())
    assert "300 records with 2 labels give 4 texts of up to 40 tokens at epsilon 1." in said
    assert "canary" not in err
    assert said.count("million parameters") == 1  # once, before the run
    reader = RunReader(tmp_path / "run")
    assert len(list(reader.samples())) == 4
    assert reader.manifest.prompt.public_examples == {"Motor": ("A van hit the door.",)}
    made = tmp_path / "run" / "config.yaml"
    assert load_config(made).batching.generate_per_label == 2
    gate = ["verify", "run", "--model", tiny_folder, "--epsilon", 3, "--unit", "record"]
    assert dpaudit(*gate, "--relation", "add_remove")[0] == 0
    # It is beside the record: it may be edited, taken away, and used for another run.
    text = made.read_text()
    made.write_text(
        text.replace("max_tokens: 40", "max_tokens: 3").replace("tokens: 8", "tokens: 1")
    )
    assert dpaudit(*gate, "--relation", "add_remove")[0] == 0
    code, _, err = dpaudit("generate", "run/config.yaml", "--out", "other")
    assert code == 0, err
    assert RunReader(tmp_path / "other").manifest.decoding.max_tokens == 3
    assert not (tmp_path / "other" / "config.yaml").exists()
    made.unlink()
    assert dpaudit(*gate, "--relation", "add_remove")[0] == 0
    hashes = (tmp_path / "run" / "hashes").read_text()
    assert "config.yaml" not in hashes


def test_a_run_is_audited_when_it_ends_as_it_would_be_later(
    dpaudit: Dpaudit, tmp_path: Path, claims: list[object]
) -> None:
    def reports() -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in (tmp_path / "run/report").glob("report.*")}

    code, _, err = dpaudit("generate", *claims, "--out", "run", "--audit", "--workers", 1)
    assert code == 0, err
    made, said = reports(), " ".join(err.split())
    (later,) = re.findall(r"dpaudit verify (run .*?)--commitment", said)
    assert {*made} == {"report.html", "report.json", "report.md"}
    assert dpaudit("report", *shlex.split(later), "--model", claims[-3])[0] == 0
    assert reports() == made
    # A run that fails its audit ends so, too.
    config = tmp_path / "run/config.yaml"
    seeded = yaml.safe_load(config.read_text()) | {
        "sampling": {"generator": "test-seed", "seed": 1}
    }
    (tmp_path / "seeded.yaml").write_text(yaml.safe_dump(seeded))
    options = ["--out", "other", "--unverified", "--audit", "--json"]
    code, out, _ = dpaudit("generate", "seeded.yaml", *options)
    assert (code, json.loads(out)["verdict"]) == (1, "fail")
    for wrong in (["--dry-run"], ["--out", "public", "--public-only"]):
        assert dpaudit("generate", "seeded.yaml", "--audit", *wrong)[0] == 2


def test_a_stranger_beside_the_config_is_still_found(
    dpaudit: Dpaudit, tmp_path: Path, tiny_folder: Path, claims: list[object]
) -> None:
    assert dpaudit("generate", *claims, "--out", "run")[0] == 0
    (tmp_path / "run" / "config.yml").write_text("records: canary")
    code, out, err = dpaudit("verify", "run", "--model", tiny_folder)
    assert code == 1 and "integrity.hashes" in out + err


def test_the_same_command_goes_on(
    dpaudit: Dpaudit, tmp_path: Path, claims: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    show = GenerationProgress.__call__

    def interrupt(self: GenerationProgress, event: Event) -> None:
        show(self, event)
        if isinstance(event, BatchDone):
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(GenerationProgress, "__call__", interrupt)
        assert dpaudit("generate", *claims, "--out", "run")[0] == 130
    made = tmp_path / "run" / "config.yaml"
    made.write_text(made.read_text() + "# edited\n")
    other = [*claims[:-1], "pt"]
    code, _, err = dpaudit("generate", *other, "--out", "run")
    assert code == 2 and "prompt" in err
    assert not (tmp_path / "run" / "hashes").exists()
    assert dpaudit("generate", *claims, "--out", "run")[0] == 0
    assert made.read_text().endswith("# edited\n")
    assert (tmp_path / "run" / "hashes").exists()


def test_a_dry_run_of_data_writes_nothing(
    dpaudit: Dpaudit, tmp_path: Path, claims: list[object]
) -> None:
    before = {*tmp_path.rglob("*")}
    code, out, _ = dpaudit("generate", *claims, "--dry-run", "--json")
    assert code == 0
    plan = Plan.model_validate_json(out)
    assert plan.menu is not None and plan.claim is not None
    assert [offer.name for offer in plan.menu.offers] == ["many", "careful"]
    assert plan.menu.offers[0].epsilon == plan.claim.epsilon
    assert plan.menu.offers[0].texts == plan.batches == 4
    assert all((offer.seconds or 0) > 0 for offer in plan.menu.offers)
    assert (
        dpaudit("generate", *claims, "--dry-run", "--json")[1].split('"seconds"')[0]
        == (out.split('"seconds"')[0])
    )
    assert {*tmp_path.rglob("*")} == before


def test_a_dry_run_says_what_does_without_a_model_before_it_loads_one(
    dpaudit: Dpaudit, claims: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise InputError("model", "it is loaded.", "")

    monkeypatch.setattr("dpaudit.api.generating.plan", refuse)
    code, _, err = dpaudit("generate", *claims, "--dry-run")
    assert code == 2 and err.index("`dpaudit budget --help`") < err.index("it is loaded.")


def test_options_about_data_do_not_go_with_a_config(
    dpaudit: Dpaudit, tmp_path: Path, claims: list[object]
) -> None:
    assert dpaudit("init", "own.yaml", "--data", *claims)[0] == 0
    for option in (["--texts", 4], ["--labels", "Motor"], ["--skip-other-labels"]):
        code, _, err = dpaudit("generate", "own.yaml", "--out", "run", *option)
        assert code == 2 and option[0] in err
    assert not (tmp_path / "run").exists()


def test_init_and_generate_take_the_same_options(
    dpaudit: Dpaudit, tmp_path: Path, claims: list[object]
) -> None:
    assert dpaudit("init", "own.yaml", "--data", *claims)[0] == 0
    assert dpaudit("generate", *claims, "--out", "run")[0] == 0
    made = (tmp_path / "run" / "config.yaml").read_text()
    assert made == (tmp_path / "own.yaml").read_text()
    assert yaml.safe_load(made)["data"]["labels"] == ["Motor", "Theft"]
    assert own_data.PLANS == PLANS
    assert own_data.MOST_CONTEXTS.max == MAX_CONTEXTS
    assert own_data.MOST_TOKENS.max == MAX_TOKENS
    least = yaml.safe_load(made)["decoding"]["least_tokens"]
    assert own_data.MOST_TOKENS.min == least


def test_the_plan_says_what_longer_texts_cost_and_what_gives_more(
    dpaudit: Dpaudit, claims: list[object]
) -> None:
    plans = []
    # two labels get equal numbers: four texts are what five asked for give
    for texts, tokens, told in ((5, [], False), (5, ["--tokens", 80], False), (400, [], True)):
        given = [texts if option == 4 else option for option in claims]
        code, out, err = dpaudit("generate", *given, *tokens, "--dry-run", "--json")
        assert (code, "--tokens" in err) == (0, told), err
        plans.append(Plan.model_validate_json(out))
    usual, longer, _ = plans
    assert usual.claim is not None and longer.claim is not None and longer.menu is not None
    assert longer.claim.epsilon > usual.claim.epsilon
    assert (longer.menu.tokens, longer.menu.offers[0].epsilon) == (80, longer.claim.epsilon)


RUN = Path(__file__).parents[2] / "examples" / "runs" / "bbc-median"
#: Runs commands, and fails where torch is imported by one of them.
WITHOUT_TORCH = """
import contextlib, io, json, sys
from dpaudit.commands.cli import main

for command in json.loads(sys.argv[1]):
    code, said = 0, io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        try:
            main(command)
        except SystemExit as left:
            code = left.code or 0
    print(json.dumps([code, said.getvalue()]))
    assert not {"torch", "transformers"} & set(sys.modules)
"""


def test_a_plan_and_a_missing_file_need_no_torch(tmp_path: Path, claims: list[object]) -> None:
    # The model is not at hand, so none of its texts is shown.
    not_here = ["nobody/nothing" if each == claims[-3] else each for each in claims]
    commands: list[list[object]] = [
        ["init", "own.yaml", "--data", *not_here],
        ["generate", "none.csv", *claims[1:], "--out", "run"],
        ["replay", RUN, "--data", "none.csv"],
        ["report", RUN, "--data", "none.csv", "--out", "report"],
        ["evaluate", RUN, "--reference", "none.csv"],
    ]
    typed = json.dumps([[str(word) for word in command] for command in commands])
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, typed], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (code, said), *refused = map(json.loads, done.stdout.splitlines())
    assert code == 0, said
    assert len(refused) == len(commands) - 1
    for code, said in refused:
        assert code == 2 and "none.csv" in said and "torch" not in said, said


def test_records_in_a_package_are_data(
    dpaudit: Dpaudit, tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        file = tmp_path / "kept_texts" / "notes" / "Motor" / f"{number}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"canary {number} of a claim")
    (tmp_path / "kept_texts" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    known = ["--labels", "Motor", "--records", 300, "--epsilon", 3, "--model", tiny_folder]
    code, out, err = dpaudit("generate", "package:kept_texts/notes", *known, "--dry-run", "--json")
    assert code == 0, err
    assert Plan.model_validate_json(out).batches > 0
