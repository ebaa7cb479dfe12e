"""What cannot pass its audit is refused before anything is generated, and nothing else is."""

from __future__ import annotations

import csv
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import ValidationError

from dpaudit.auditing.checks.evidence import AuditedRun
from dpaudit.auditing.checks.preflight import Obstacle, refuse
from dpaudit.auditing.checks.preflight import obstacles as obstacles_of
from dpaudit.auditing.checks.registry import Outcome, SettingsCheck
from dpaudit.auditing.run import audit_run
from dpaudit.generation.algorithm import generate
from dpaudit.generation.config import Config, load_config
from dpaudit.generation.planned import planned_run
from dpaudit.generation.public_parts import replay_public
from dpaudit.generation.records import Records, read_records
from dpaudit.plugins import PlugIn
from dpaudit.results.catalogue import catalogue
from dpaudit.results.rounding import small_delta
from dpaudit.runs import InputError, RunReader
from tests.forging import unfinish
from tests.nesting import read_run

MakeConfig = Callable[..., Config]
Settings = Callable[..., dict[str, Any]]
Dpaudit = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parents[2]

REAL = {"max_tokens": 2, "test_seed": None}
MEAN = {"aggregator": "mean", "divisor": 4.0, "clip": 2.0}
TOP = {"support": {"kind": "public-top-k", "size": 12}}
ANCHORED = {"contribution": "differences", "clip": 0.5}
DELTA = {"privacy": {"delta": 1e-3}}
TEXT = "lorem ipsum of nobody"


def obstacles(config: Config, data: Records | None = None) -> tuple[Obstacle, ...]:
    return obstacles_of(planned_run(config, data))


def forced(canary: str, folder: Path, encoder: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Check, field and sections of configs that cannot pass."""
    record = f"{canary} alone"
    top_mean, public = {**MEAN, **TOP}, folder / "examples.csv"
    with public.open("w", newline="") as file:
        csv.writer(file).writerows([("label", "text"), ("south", record)])
    yield "mechanism.randomness", "sampling.seed", {"decoding": {"test_seed": 7}}
    yield "mechanism.model", "model.trained_on_records", {"model": {"trained_on_records": "yes"}}
    yield "claim.tuning", "chosen_from.settings", {"chosen_from": {"settings": "private"}}
    yield (
        "partition.public-parameters",
        "chosen_from.batching",
        {"chosen_from": {"batching": "private"}},
    )
    yield "mechanism.divisor", "record.contexts", {"mechanism": MEAN, **DELTA}
    yield (
        "mechanism.divisor",
        "record.contexts",
        {"mechanism": top_mean, **DELTA, "record": {"contexts": False}},
    )
    yield "claim.delta", "privacy.delta", {"mechanism": top_mean, "privacy": {"delta": 0.1}}
    slots = {"batching": {"slots": 40}, "privacy": {"unit": "context", "delta": 0.02}}
    yield "claim.delta", "privacy.delta", {"mechanism": top_mean, **slots}
    yield (
        "claim.delta",
        "claim.delta",
        {"mechanism": top_mean, "claim": {"epsilon": 1e3, "delta": 0.1}},
    )
    yield (
        "claim.epsilon",
        "claim.epsilon",
        {"mechanism": top_mean, "claim": {"epsilon": 0.5, "delta": 1e-3}},
    )
    yield (
        "disclosure.sensitive",
        "prompt.public_examples",
        {"prompt": {"public_examples": {"north": [record]}}},
    )
    yield (
        "disclosure.sensitive",
        "prompt.public_examples",
        {"prompt": {"public_examples": str(public)}},
    )
    own = {"template": None, "text": f"About {{label}}:\n{record}\n- {{example}}\n-"}
    yield "disclosure.sensitive", "prompt.text", {"prompt": own}
    yield (
        "disclosure.sensitive",
        "decoding.banned_words",
        {"decoding": {**REAL, "banned_words": [record]}},
    )
    end = {"template": None, "text": "About {label}:\n- {example}\n-", "end": " /home/garden"}
    yield "disclosure.sensitive", "prompt.end", {"prompt": end}
    clustered = {
        "batching": {
            "batches_per_label": None,
            "generate_per_label": None,
            "batches_per_cluster": 2,
        }
    }
    k_means = {"method": "k-means", "centers": 2, "embedding": str(encoder)}
    private = {"chosen_from": {"batching": "private"}}
    yield "rebalancing.noise", "clustering.method", {**clustered, **private, "clustering": k_means}
    texts = folder / "public.csv"
    with texts.open("w", newline="") as file:
        csv.writer(file).writerows([("text",), *[(f"{TEXT} {number}",) for number in range(9)]])
    rebalanced = {
        "centers": 2,
        "keep": 1,
        "epsilon": 0.5,
        "embedding": str(encoder),
        "public": str(texts),
    }
    one = {**clustered, "clustering": {"method": "public-centers-rebalanced", **rebalanced}}
    yield "claim.epsilon", "claim.epsilon", {**one, "claim": {"epsilon": 0.25}}
    noised = {
        "method": "dpm",
        "epsilon": 2.0,
        "delta": 0.1,
        "embedding": str(encoder),
        "public": str(texts),
    }
    yield "claim.delta", "clustering.delta", {**clustered, "clustering": noised}


def test_what_is_refused_would_not_pass(
    settings: Settings, canary: str, tmp_path: Path, encoder_folder: Path
) -> None:
    for number, (check, field, sections) in enumerate(forced(canary, tmp_path, encoder_folder)):
        values = settings(**({"decoding": REAL} | sections))
        values["batching"] = {
            name: value for name, value in values["batching"].items() if value is not None
        }
        config = Config.model_validate(values)
        found = obstacles(config, read_records(config.data))
        assert (check, field) in {(each.check, each.setting) for each in found}, sections
        assert not any(canary in str(each) for each in found)
        run = Path(generate(config, tmp_path / str(number)))
        result = audit_run(run, replay=replay_public(run))
        assert result.verdict in ("fail", "not_verified")
        unseen = {each.id for each in result.checks if each.status == "fail"}
        unseen |= {
            each.id
            for each in result.checks
            if each.status == "skip" and each.applicable and each.evidence < 3
        }
        # Without noise no claim holds; and where both levels are equal, so are what is claimed of
        # them.
        follows = {"claim.batch-epsilon"} | (
            {"claim.epsilon"} if check == "rebalancing.noise" else set()
        )
        assert unseen - follows == {each.check for each in found}, sections


def some_sections(chosen: random.Random) -> dict[str, Any]:
    """A config's sections by chance; most of them go together."""
    mechanism: dict[str, Any] = chosen.choice([MEAN, {}, {"aggregator": "central", "central": 2}])
    margin = {"support": {"kind": "public-top-k", "size": 9, "margin": 0.5}}
    mechanism = mechanism | chosen.choice([TOP, TOP, {}, margin])
    mechanism = mechanism | chosen.choice([ANCHORED, {}])
    unit = chosen.choice(["record", "record", "context", "user"])
    privacy: dict[str, Any] = {"unit": unit, "relation": chosen.choice(["add_remove", "replace"])}
    if unit == "user":
        privacy["records_per_user"] = chosen.choice([1, 2])
    if mechanism.get("aggregator") == "mean":
        privacy["delta"] = chosen.choice([None, 1e-3, 1e-3, 0.3])
    batching: dict[str, Any] = {
        "batches_per_label": 3,
        "generate_per_label": chosen.choice([1, 2, 2]),
    }
    batching |= chosen.choice([{}, {}, {"slots": 2}, {"slots": 4}])
    decoding = {**REAL, "max_tokens": chosen.choice([1, 3])}
    decoding |= chosen.choice(
        [{}, {"tokens_per_batch": 5}, {"least_tokens": 1}, {"no_repeated_ngram": 2}]
    )
    return {
        "mechanism": mechanism,
        "privacy": privacy,
        "batching": batching,
        "decoding": decoding,
        "record": {"contexts": chosen.choice([None, True, None])},
        "prompt": chosen.choice([{}, {"public_examples": {"north": [TEXT]}}, {"one_line": True}]),
    }


def test_what_is_accepted_passes_and_nothing_else_does(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    chosen, verdicts = random.Random(11), []
    while len(verdicts) < 16:
        sections = some_sections(chosen)
        try:
            config = make_config(**sections)
            found = obstacles(config, read_records(config.data))
            run = Path(generate(config, tmp_path / str(len(verdicts))))
        except (ValidationError, InputError):
            continue
        result = audit_run(run, replay=replay_public(run))
        verdicts.append(result.verdict)
        assert (result.verdict == "pass") == (not found), (sections, result.guarantee)
    assert set(verdicts) == {"pass", "not_verified", "fail"}


def test_a_secret_key_covers_a_claim_that_the_batch_level_exceeds(make_config: MakeConfig) -> None:
    """The audit holds epsilon against the release level, so that is looked at; in all rounds."""
    sections = {"mechanism": {**MEAN, **TOP, "clip": 0.1}, "decoding": REAL}
    sections |= {"privacy": {"relation": "replace"}, "claim": {"epsilon": 1.0, "delta": 1e-3}}
    batching = {"batches_per_label": 40, "generate_per_label": 2}
    costs: dict[tuple[int, bool], set[str]] = {}
    for rounds in (1, 40):
        for key in (None, "ab" * 32):
            config = make_config(**sections, batching={**batching, "rounds": rounds, "key": key})
            secret, goes_on = planned_run(config), planned_run(config, goes_on=True)
            assert (key is None) == bool(secret.manifest.batching.allocation.secret)  # type: ignore[union-attr]
            assert not goes_on.manifest.batching.allocation.secret  # type: ignore[union-attr]
            costs[rounds, key is None] = {each.check for each in obstacles_of(secret)}
            assert costs[rounds, key is None] <= {each.check for each in obstacles_of(goes_on)}
    exceeded = {"claim.epsilon"}
    assert costs == {(1, True): set(), (1, False): set(), (40, True): set(), (40, False): exceeded}


def codes(config: Config) -> set[tuple[str, str]]:
    return {(each.check, each.code) for each in obstacles(config, read_records(config.data))}


def test_settings_alone_exceed_a_rho_spend_a_delta_and_are_too_many(
    make_config: MakeConfig,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    encoder_folder: Path,
) -> None:
    budgets = {**MEAN, **TOP, "budget": 0.5}
    for rho, found in ((0.01, {("claim.rho", "exceeded")}), (0.6, set())):
        claim = {"kind": "zcdp", "rho": rho}
        assert codes(make_config(mechanism=budgets, claim=claim, decoding=REAL)) == found
    (texts := tmp_path / "public.csv").write_text("text\n" + f"{TEXT}\n" * 9)
    noised = {
        "method": "dpm",
        "epsilon": 2.0,
        "delta": 0.1,
        "embedding": str(encoder_folder),
        "public": str(texts),
    }
    batching = {"batches_per_label": None, "generate_per_label": None, "batches_per_cluster": 2}
    clustered = {"mechanism": {**MEAN, **TOP}, "clustering": noised, "batching": batching}
    values = settings(**clustered, decoding=REAL)
    values["batching"] = {
        name: value for name, value in values["batching"].items() if value is not None
    }
    config = Config.model_validate(values)
    (spent,) = obstacles(config, read_records(config.data))
    assert (spent.check, spent.code, spent.setting) == (
        "claim.delta",
        "spent-on-centers",
        "privacy.delta",
    )
    monkeypatch.setattr("dpaudit.auditing.checks.disclosure.MOST_PAIRS", 0)
    shown = {"template": None, "text": f"About {{label}}:\n{TEXT}\n- {{example}}\n-"}
    assert codes(make_config(prompt=shown, decoding=REAL)) == {
        ("disclosure.sensitive", "too-many-labels")
    }


def test_words_name_a_field_of_a_config() -> None:
    """And say what is wrong without a full stop, for the check's id follows."""
    for check, entry in catalogue().check.items():
        for code, words in entry.before.items():
            assert words.remedy.rstrip().endswith(".") and not words.problem.rstrip().endswith(
                "."
            ), (check, code)
            section, _, field = words.setting.partition(".")
            if "{" in words.setting:
                continue
            assert section in Config.model_fields
            kind = Config.model_fields[section].annotation
            kinds = [kind, *get_args(kind)]
            assert any(field in getattr(each, "model_fields", {}) for each in kinds), (check, code)


def test_an_outcome_without_words_is_an_obstacle_and_a_plug_ins_error_is_none(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(run: AuditedRun) -> Outcome:
        raise ZeroDivisionError

    checks = {name: SettingsCheck(id=name) for name in ("mechanism.model", "mechanism.unit")}
    checks["mechanism.model"].function = lambda run: Outcome("fail", "unheard-of")
    checks["mechanism.unit"].function = raises
    monkeypatch.setattr("dpaudit.auditing.checks.preflight.registered", lambda: checks)
    with pytest.raises(ZeroDivisionError):
        obstacles(make_config())
    checks["mechanism.unit"].plug_in = PlugIn(
        "dpaudit.checks", "acme.unit", "acme:unit", "acme", "1"
    )
    (found,) = obstacles(make_config())
    assert (found.check, found.code, found.setting) == (
        "mechanism.model",
        "unheard-of",
        "mechanism.model",
    )
    assert not found.meant


def test_a_claim_for_users_goes_by_the_data_where_it_says_no_more(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    path = tmp_path / "users.csv"
    with path.open("w", newline="") as file:
        rows = [("north", f"text {number}", f"u{number // 3}") for number in range(9)]
        csv.writer(file).writerows([("label", "text", "user"), *rows])
    mechanism = {**MEAN, **TOP, "clip": 0.1}
    found = []
    for epsilon in (0.2, 5.0):
        config = make_config(
            data={"path": str(path), "user": "user", "labels": ["north"]},
            mechanism=mechanism,
            privacy={"unit": "user"},
            claim={"epsilon": epsilon, "delta": 1e-3},
            decoding=REAL,
        )
        assert obstacles(config) == ()
        found.append([each.check for each in obstacles(config, read_records(config.data))])
    assert found == [["claim.epsilon"], []]


@pytest.mark.usefixtures("coarse")
def test_only_configs_for_other_ends_among_ours_cannot_pass() -> None:
    """The paper's were tuned on the records, and its mean is over all tokens."""
    for path in sorted([*ROOT.glob("examples/**/*.yaml"), *ROOT.glob("generation/demos/*.yaml")]):
        if "rows:" in path.read_text():
            continue
        expected, config = set(), load_config(path)
        if config.chosen_from.batching == "private":
            assert "paper/" in str(path)
            expected.add("partition.public-parameters")
        if config.chosen_from.settings == "private":
            expected.add("claim.tuning")
        if config.mechanism.aggregator.name == "mean" and config.mechanism.support.size is None:
            expected.add("mechanism.divisor")
        if config.clustering is not None and config.clustering.method == "k-means":
            expected.add("rebalancing.noise")
        assert {each.check for each in obstacles(config)} == expected, path


def test_generate_refuses_before_the_model_and_says_what_would_do(
    dpaudit: Dpaudit, settings: Settings, tmp_path: Path
) -> None:
    values = settings(
        mechanism=MEAN, model={"name": str(tmp_path / "no-model")}, decoding=REAL, **DELTA
    )
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(values))
    # a dry run says first that it loads the model
    for arguments, before in (["--out", "run"], 0), (["--dry-run"], 1):
        code, out, err = dpaudit("generate", "own.yaml", *arguments)
        err = "".join(err.splitlines(keepends=True)[before:])
        assert (code, out, err.count("\n")) == (2, "", 1)
        for part in (
            "own.yaml: record.contexts: ",
            "(mechanism.divisor)",
            "Set true",
            "--unverified",
        ):
            assert part in err
    assert "no-model" in dpaudit("generate", "own.yaml", "--out", "run", "--unverified")[2]
    assert "no-model" in dpaudit("generate", "own.yaml", "--out", "run", "--public-only")[2]
    assert not (tmp_path / "run").exists()


def test_what_is_generated_all_the_same_is_told_of(
    dpaudit: Dpaudit, settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "own.yaml").write_text(
        yaml.safe_dump(settings(mechanism=MEAN, decoding=REAL, **DELTA))
    )
    code, out, err = dpaudit("generate", "own.yaml", "--out", "run", "--unverified", "-q")
    assert (code, out) == (0, "")
    assert "warning: run: record.contexts: " in err
    code, out, _ = dpaudit("generate", "own.yaml", "--dry-run", "--unverified")
    assert code == 0
    assert "(mechanism.divisor)" in " ".join(out.split())
    assert dpaudit("verify", "run")[0] == 1


def test_a_finished_batch_that_is_gone_is_not_drawn_again_in_silence(
    dpaudit: Dpaudit, settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(settings(decoding=REAL)))
    run = tmp_path / "run"
    assert dpaudit("generate", "own.yaml", "--out", "run", "-q")[0] == 0
    unfinish(run)
    first = run / "steps/00000000.zip"
    kept = first.read_bytes()
    first.unlink()
    code, _, err = dpaudit("generate", "own.yaml", "--out", "run", "-q")
    assert code == 2
    assert "00000000.zip: batch 0 was finished, and" in " ".join(err.split())
    first.write_bytes(kept)
    code, _, err = dpaudit("generate", "own.yaml", "--out", "run")
    assert (code, "their head is " in " ".join(err.split())) == (0, True)
    assert dpaudit("verify", "run", "--tokenizer", run / "tokenizer.json")[0] == 0
    unfinish(run)
    first.unlink()
    code, _, err = dpaudit("generate", "own.yaml", "--out", "run", "--unverified", "-q")
    assert (code, "drawn again: 0." in " ".join(err.split())) == (0, True)
    assert read_run(run)["redrawn"] == [0]
    failed = {check.id for check in audit_run(run).checks if check.status == "fail"}
    assert failed >= {"integrity.redrawn"}


def test_a_test_seed_is_told_of_and_runs(
    dpaudit: Dpaudit, settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(settings(decoding={"max_tokens": 1})))
    code, _, err = dpaudit("generate", "own.yaml", "--out", "run", "-q")
    assert code == 0
    assert "warning: run: sampling.seed: " in err
    assert RunReader(tmp_path / "run").manifest.sampling.generator == "test-seed"


def test_all_rows_of_a_table_are_looked_at_before_the_first_runs(
    dpaudit: Dpaudit, settings: Settings, tmp_path: Path
) -> None:
    rows = {
        "good": {},
        "mean": {"mechanism": MEAN, **DELTA},
        "large": {"mechanism": {**MEAN, **TOP}},
    }
    rows["large"] |= {"privacy": {"delta": 0.3}}  # as the data alone tells
    for name, sections in rows.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(settings(decoding=REAL, **sections)))
    table = {"title": "T", "parameters": 1e4, "datasets": {"D": {"records": 10}}}
    table["rows"] = [{"config": f"{name}.yaml", "dataset": "D", "method": name} for name in rows]
    (tmp_path / "table.yaml").write_text(yaml.safe_dump(table))
    code, out, err = dpaudit("lab", "table", "table.yaml", "--out", "out", "--no-evaluation")
    assert (code, out, err.count("\n")) == (2, "", 1)
    for part in ("mean.yaml: record.contexts: ", "2 rows could not pass", "--unverified"):
        assert part in err
    assert not (tmp_path / "out").exists()
    code, out, _ = dpaudit(
        "lab", "table", "table.yaml", "--out", "out", "--no-evaluation", "--unverified"
    )
    assert code == 1
    assert "mean: the audit says not verified: mechanism.divisor." in out
    assert "large: " in out and "says fail: claim.delta" in out
    assert (
        dpaudit("lab", "table", "table.yaml", "--out", "more", "--no-evaluation", "--only", "good")[
            0
        ]
        == 0
    )


def test_a_small_delta_is_a_power_of_ten() -> None:
    for records in (1, 2, 9, 10, 11, 99_999, 100_000, 100_001):
        delta = small_delta(records)
        assert 1 / (1000 * records) < delta <= 1 / (10 * records)


def test_what_more_is_to_be_mended_is_counted(make_config: MakeConfig) -> None:
    config = make_config(
        mechanism=MEAN, chosen_from={"settings": "private", "batching": "private"}, decoding=REAL
    )
    with pytest.raises(InputError, match=r"\(2 more to mend .*\) Else."):
        refuse(obstacles(config), "Else.")


def test_what_only_the_release_level_covers_is_accepted_and_passes(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    sections = {"mechanism": {**MEAN, **TOP, "clip": 0.5}, "decoding": REAL}
    sections |= {"privacy": {"relation": "add_remove"}, "claim": {"epsilon": 0.3, "delta": 1e-3}}
    batching = {"batches_per_label": 40, "generate_per_label": 2}
    found = {}
    for key in (None, "ab" * 32):
        config = make_config(**sections, batching={**batching, "key": key})
        run = Path(generate(config, tmp_path / str(key)))
        verdict = audit_run(run, replay=replay_public(run)).verdict
        found[key is None] = (
            {each.check for each in obstacles(config, read_records(config.data))},
            verdict,
        )
    assert found == {True: (set(), "pass"), False: ({"claim.epsilon"}, "fail")}
