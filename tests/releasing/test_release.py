"""A release folder: read by common tools, without anything private, and written only for a pass."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import stat
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import dpaudit.auditing.run as audit
from dpaudit.auditing.disclosure import public_form
from dpaudit.auditing.run import Question, audit_run
from dpaudit.releasing.folder import RefusedError, read_about, write_release
from dpaudit.releasing.texts import Row, split_rows, tables
from dpaudit.releasing.verify import verify_folder
from dpaudit.reports.card import Released, render_card
from dpaudit.reports.deployment import render_deployment
from dpaudit.reports.document import Table
from dpaudit.reports.labels import shares
from dpaudit.reports.publisher import PERSONAL, TITLES
from dpaudit.reports.wording import say
from dpaudit.results import AuditResult, Finding
from dpaudit.results.catalogue import message
from dpaudit.results.publication import About, HipaaDetermination
from dpaudit.results.quality import Quality
from dpaudit.results.release_layout import DPIA, HIPAA, QUESTIONS
from dpaudit.results.replay import Replay
from dpaudit.results.rounding import bound, exactly
from dpaudit.runs import InputError, RunReader
from tests.settings import MARK

Run = Any
Releases = Callable[..., tuple[Path, AuditResult]]
Command = Callable[..., tuple[int, str, str]]
FILES = {
    "README.md",
    "opendp_deployment.yaml",
    "attestation.intoto.jsonl",
    "data/train.parquet",
    "jsonl/train.jsonl",
    "jsonl/train.jsonl.provenance.json",
    *(f"report/{name}" for name in ("report.html", "report.json", "report.md", "junit.xml")),
}
ABOUT = About(
    name="Tickets of a support desk",
    curators=("An example house",),
    curator_type="Nonprofit",
    description="Made-up tickets.\nSecond paragraph with [markup](x) and <b>tags</b>.",
    intended_use="Training of classifiers.",
    region="European Union",
    sector="Technology",
    license="cc-by-4.0",
    languages=("en",),
    contact="desk at example",
)


#: All that a publisher can say of personal data, and an expert's words.
STATED = ABOUT.model_copy(
    update={name: f"STATED-{name}" for name in PERSONAL if name != "roles"}
    | {
        "roles": {"accepts the risk": "STATED-roles"},
        "hipaa": HipaaDetermination(expert="STATED-expert", risk="STATED-risk"),
    }
)


def front_matter(card: str) -> dict[str, Any]:
    found = re.fullmatch(r"---\n(.*?)\n---\n(.*)", card, re.DOTALL)
    assert found
    return dict(yaml.safe_load(found[1]))


def registry_schema() -> dict[str, Any]:
    """As OpenDP has it; dates of YAML are dates, as for its own validator."""
    return dict(
        yaml.safe_load((Path(__file__).parent / "opendp" / "deployments-schema.yaml").read_text())
    )


# --- what is in it --------------------------------------------------------------------------------


def test_a_folder_has_all_its_files_and_no_other(released: Releases, contents: Any) -> None:
    folder, result = released()
    assert set(contents(folder)) == FILES
    report = json.loads((folder / "report" / "report.json").read_text())
    assert (report["audience"], report["verdict"]) == ("public", "pass")
    assert not list(folder.parent.glob(".*.part"))
    assert (folder / "report" / "report.json").read_text() == public_form(result).to_json()


def test_everybody_may_read_what_is_published(released: Releases, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        folder, _ = released()
    finally:
        os.umask(before)
    modes = {
        stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.rglob("*")) if path.is_dir()
    }
    assert modes == {0o755}
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*") if path.is_file()} == {
        0o644
    }


def test_datasets_reads_it(
    released: Releases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
    for share, splits in ((None, {"train"}), (0.3, {"train", "test"})):
        folder, result = released(release={"test_share": share}, sizes=(3, 4, 5, 4, 3, 4))
        found = datasets.load_dataset(str(folder), cache_dir=str(tmp_path / "cache" / str(share)))
        assert set(found) == splits
        texts = [row for split in found.values() for row in split]
        assert sorted(row["text"] for row in texts) == sorted(
            sample.text for sample in result.samples
        )
        assert {row["label"] for row in texts} == {"a", "b"}
        for split in splits:
            lines = [
                json.loads(line)
                for line in (folder / "jsonl" / f"{split}.jsonl").read_text().splitlines()
            ]
            assert lines == list(found[split])


def test_texts_without_labels_have_one_column() -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    found = tables({"train": [Row("a text", None, 0), Row("", None, 1)]}, MARK)
    assert parquet.read_table(io.BytesIO(found["data/train.parquet"])).to_pylist() == [
        {"text": "a text"},
        {"text": ""},
    ]
    assert found["jsonl/train.jsonl"] == b'{"text": "a text"}\n{"text": ""}\n'


def test_whole_batches_go_to_the_test_split() -> None:
    rows = [
        Row(f"{batch}.{number}", "ab"[batch % 2], batch)
        for batch in range(40)
        for number in range(3)
    ]
    for share in (0.01, 0.1, 0.5, 0.99):
        found = split_rows(rows, share)
        assert sorted(found["train"] + found["test"]) == sorted(rows)
        assert not {row.batch for row in found["train"]} & {row.batch for row in found["test"]}
        for label in "ab":
            of = [row for row in found["test"] if row.label == label]
            assert min(share, 19 / 20) * 60 <= len(of) < share * 60 + 3
    assert list(split_rows(rows, None)) == ["train"]
    with pytest.raises(InputError, match="has two batches"):
        split_rows(rows[:3], 0.5)


def test_the_card_states_the_promise_of_a_claim_that_holds_whatever_the_data(
    released: Releases,
) -> None:
    folder, result = released(release={"about": ABOUT})
    card = (folder / "README.md").read_text()
    front = front_matter(card)
    assert (
        front["pretty_name"] == ABOUT.name
        and front["license"] == "cc-by-4.0"
        and front["language"] == ["en"]
    )
    assert front["configs"][0]["data_files"] == [{"split": "train", "path": "data/train.parquet"}]
    assert front["size_categories"] == ["n<1K"] and "differential-privacy" in front["tags"]
    assert result.claim is not None
    assert (
        f"({exactly(result.claim.epsilon)}, {exactly(result.claim.delta)})-differentially private"
        in card
    )
    assert "add or remove one record" in card
    assert "<b>" not in card and "\\[markup\\]" in card
    for part in (
        "## Personal and Sensitive Information",
        "Nothing here promises:",
        "## Bias, Risks, and Limitations",
    ):
        assert part in card


def test_a_card_of_a_large_epsilon_says_its_exponent_alone(make_run: Callable[..., Run]) -> None:
    result = make_run(aggregator="mean").audit()
    for epsilon, said in (
        (3.0, "at most a factor of 20.1 (e^3)"),
        (700.0, "at most a factor of e^700"),
        (1e15, "a factor of e^1e+15"),
    ):
        claim = result.claim.model_copy(update={"epsilon": epsilon})
        card = card_with(result.model_copy(update={"claim": claim}), None, About())
        assert said in card and max(map(len, card.split())) < 100


def test_a_card_says_that_contexts_of_a_batch_were_coupled(make_run: Callable[..., Run]) -> None:
    result = make_run(aggregator="mean").audit()
    coupled = message(Finding(code="of-model.coupled"))
    assert str(coupled) not in card_with(result, None, About())
    assert str(coupled) in card_with(
        result.model_copy(update={"caveats": (coupled,)}), None, About()
    )


def test_an_ex_post_card_states_no_epsilon_and_says_why(released: Releases) -> None:
    for question in (None, Question(epsilon=987.625), Question(epsilon=5.8125)):
        folder, result = released(question, aggregator="median")
        assert result.guarantees.ex_post is not None and result.claim is not None
        card = (folder / "README.md").read_text()
        entry = (folder / "opendp_deployment.yaml").read_text()
        assert say("card-ex-post") in card
        assert "give --epsilon" not in card and f"# {About().name}\n\n## Uses" in card
        assert not re.search(r"(?:epsilon|ε)\W{0,8}\d", card + entry)
        for figure in (
            result.claim.epsilon,
            result.guarantees.ex_post.batch_epsilon,
            result.guarantees.ex_post.exact,
        ):
            for digits in range(3, 9):
                assert bound(figure, digits) not in card + entry
        assert "987" not in card and "5.8125" not in card
        parameters = yaml.safe_load(entry)["deployment"]["privacy_loss"]
        assert parameters["privacy_parameters"] == {}
        assert "ex-post" in parameters["privacy_parameters_details"]


def test_a_withheld_claim_is_on_no_card(
    make_run: Callable[..., Run], tmp_path: Path, empty_figures: None
) -> None:
    pytest.importorskip("pyarrow")
    run = make_run(aggregator="mean", sizes=(3, 4, 5))
    run.edit_manifest({"privacy.delta_from": "records"})
    run.rehash()
    result = run.audit()
    write_release(result, RunReader(run.path), tmp_path / "texts")
    card, entry = (
        (tmp_path / "texts" / name).read_text() for name in ("README.md", "opendp_deployment.yaml")
    )
    assert "No epsilon is stated here, although" in card
    assert yaml.safe_load(entry)["deployment"]["privacy_loss"]["privacy_parameters"] == {}
    assert bound(result.claim.epsilon) not in card + entry


def test_the_command_says_where_the_card_states_no_epsilon(
    make_run: Callable[..., Run], dpaudit: Command, empty_figures: None
) -> None:
    pytest.importorskip("pyarrow")
    withheld, ex_post, stated = (make_run(aggregator=kind) for kind in ("mean", "median", "mean"))
    withheld.edit_manifest({"privacy.delta_from": "records"})
    withheld.rehash()
    code, _, err = dpaudit("release", withheld.path, "--out", "a", "--unsigned")
    assert (
        code == 0
        and "states no epsilon. The run's approximate claim" in err
        and "number of private records" in err
    )
    code, _, err = dpaudit("release", ex_post.path, "--out", "b", "--unsigned", "--epsilon", "1000")
    assert code == 0 and "states no epsilon: this run's is ex-post" in err
    code, _, err = dpaudit("release", stated.path, "--out", "c", "--unsigned")
    assert code == 0 and "states no epsilon" not in err and "claim is smaller" not in err
    code, _, err = dpaudit("release", stated.path, "--out", "d", "--unsigned", "--epsilon", "900")
    assert code == 0 and "Without it, it states the run's own" in err


def test_the_registrys_own_schema_takes_the_entry(released: Releases) -> None:
    for kind, question in (({}, None), ({"aggregator": "median"}, None), ({"budget": 1.0}, None)):
        folder, result = released(question, release={"about": ABOUT}, **kind)
        text = (folder / "opendp_deployment.yaml").read_text()
        entry = yaml.load(text, Loader=yaml.BaseLoader) | {"tier": yaml.safe_load(text)["tier"]}
        entry["deployment"] = yaml.safe_load(text)["deployment"]
        jsonschema.Draft7Validator(
            registry_schema(), format_checker=jsonschema.Draft7Validator.FORMAT_CHECKER
        ).validate(entry)
        assert entry["deployment"]["basic"]["data_product_type"] == "Synthetic data"
        assert all(
            token.style in (None, "'", '"', "|")
            for token in yaml.scan(text)
            if hasattr(token, "style")
        )
        parameters = entry["deployment"]["privacy_loss"]["privacy_parameters"]
        if result.claim.kind == "approximate":
            assert (
                parameters["epsilon"] == result.claim.epsilon
                and parameters["delta"] == result.claim.delta
            )
            assert ("rho" in parameters) == (kind.get("budget") is not None)


def test_an_entry_is_within_the_registrys_schema(released: Releases) -> None:
    """By the names that it holds, which their schema may not bound, and by what they require."""

    def held(mine: dict[str, Any], wanted: dict[str, Any], where: str) -> None:
        for name, value in mine.items():
            assert name in wanted["properties"], f"{where}.{name}"
            if isinstance(value, dict):
                held(value, wanted["properties"][name], f"{where}.{name}")
        assert set(wanted.get("required", ())) <= mine.keys(), where

    for kind in ({}, {"aggregator": "median"}, {"budget": 1.0}):
        folder, _ = released(None, release={"about": ABOUT}, **kind)
        held(
            yaml.safe_load((folder / "opendp_deployment.yaml").read_text()),
            registry_schema(),
            "entry",
        )


def test_an_entry_says_of_no_counted_setting_that_it_was_chosen_without_the_data(
    make_run: Callable[..., Run],
) -> None:
    counted = make_run(clusters="public-centers-rebalanced", sizes=(3, 4, 5, 2))
    private, declared = make_run(), make_run()
    private.edit_manifest({"chosen_from": {"batching": "public", "settings": "private"}})
    for run, said, unsaid in (
        (
            declared,
            "None: labels, numbers of batches and the settings in the report",
            "all other settings",
        ),
        (counted, "Numbers of batches follow from noisy counts", "numbers of batches and"),
        (private, "not declared public", "None"),
    ):
        result = run.audit()
        entry = yaml.safe_load(
            render_deployment(public_form(result), result.claim, About(), date(2026, 11, 24))
        )
        found = entry["deployment"]["dp_variant"]["unprotected_quantities"]
        assert said in found and unsaid not in found


def test_a_card_says_what_is_so_of_its_release(make_run: Callable[..., Run]) -> None:
    result = make_run(aggregator="mean").audit()

    def card(of: AuditResult, about: About = ABOUT, texts: Any = None) -> str:
        return render_card(
            Released(public_form(of), "approximate", about, texts or {"train": 3}, True, None, MARK)
        )

    users = result.model_copy(update={"claim": result.claim.model_copy(update={"unit": "user"})})
    (one,) = (check for check in result.checks if check.id == "canaries.coins")
    checks = (*result.checks, one.model_copy(update={"status": "pass"}))
    for said, with_it, without in (
        (
            "The test split is of synthetic texts",
            card(result, texts={"train": 3, "test": 1}),
            card(result),
        ),
        ("several of one person, add up", card(result), card(users)),
        ("such as a family, add up", card(users), card(result)),
        (
            "Some of the records may be canaries",
            card(result.model_copy(update={"checks": checks})),
            card(result),
        ),
    ):
        assert said in with_it and said not in without
    found = card(
        result, About(contact="Desk of A@B <privacy@example.org>, a_b@example.org or [us](x)")
    )
    assert (
        "Contact: Desk of <A@B> &lt;<privacy@example.org>&gt;, <a_b@example.org> or \\[us\\](x)."
        in found
    )


def test_a_name_is_text_to_every_version_of_yaml(make_run: Callable[..., Run]) -> None:
    result = public_form(make_run(aggregator="mean").audit())
    for name in ("0o17", "1e3", "12", "1.", "no", "~"):
        about = About(name=name, curators=(name,))
        entry = render_deployment(result, result.claim, about, date(2026, 11, 24))
        for text in (entry, card_with(make_run(aggregator="mean").audit(), None, about)):
            assert f"name: '{name}'" in text
        curators = yaml.safe_load(entry)["deployment"]["basic"]["data_curators"]
        assert curators == [{"data_curator_name": name}]


# --- the public baseline --------------------------------------------------------------------------


@pytest.fixture
def measured() -> Quality:
    texts = {"texts": 40, "distinct": 39, "digest": "ab" * 32}
    encoder = {"name": "ENCODER", "digest": "ab" * 32, "max_tokens": 256}
    settings = {
        "n": 20,
        "clusters": 2,
        "iterations": 500,
        "initialisations": 5,
        "explained_variance": 0.9,
    }
    mauve = {
        "settings": settings | {"scaling": 5.0, "points": 32, "seeds": [0, 1]},
        "wanted": 1000,
        "real": 40,
        "score": {"values": [0.25, 0.5], "mean": 0.375, "std": 0.1767766952966369},
        "ceiling": {"values": [0.9, 0.9], "mean": 0.9, "std": 0.0},
        "public": {"values": [0.125, 0.125], "mean": 0.125, "std": 0.0},
    }
    added = {"measure": "mauve", "difference": 0.25, "spread": 0.1767766952966369}
    fields = {
        "created": "2025-01-02T03:04:05+00:00",
        "samples": "ab" * 32,
        "synthetic": texts,
        "label_lines": 0,
        "reference": texts,
        "own": 0,
        "features": encoder,
        "held_out": None,
        "mauve": mauve,
        "downstream": [],
        "warnings": ["MARKERWARNING"],
        "versions": {"mauve-text": "0.4.0"},
        "baseline": {"samples": "cd" * 32, "texts": texts, "added": [added]},
    }
    return Quality.model_validate_json(json.dumps(fields))


def card_with(result: AuditResult, quality: Quality | None, about: About) -> str:
    return render_card(
        Released(public_form(result), "approximate", about, {"train": 3}, True, quality, MARK)
    )


def test_figures_beside_the_baseline_are_on_the_card_where_they_are_public(
    make_run: Callable[..., Run], measured: Quality
) -> None:
    result = make_run(aggregator="mean").audit()
    public, private = About(public_reference=True), About()
    assert "No public baseline was measured" in card_with(result, None, public)
    assert "No public baseline was measured" in card_with(
        result, measured.model_copy(update={"baseline": None}), public
    )
    card = card_with(result, measured, public)
    assert "0.375" in card and "0.125" in card
    withheld = (
        (measured, private),
        (measured.model_copy(update={"own": 1}), public),
        (measured.model_copy(update={"own": 40}), private),
        (measured.model_copy(update={"own": None}), public),
    )
    for quality, about in withheld:
        card = card_with(result, quality, about)
        assert "figures are withheld" in card
        assert "0.375" not in card and "0.125" not in card


def test_the_card_has_the_evaluation_that_the_policy_was_held_against(
    make_run: Callable[..., Run],
    tmp_path: Path,
    dpaudit: Command,
    measured: Quality,
    monkeypatch: pytest.MonkeyPatch,
    empty_figures: None,
) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "policy.yaml").write_text("policy_version: 1\nquality: public-baseline\n")
    (tmp_path / "about.yaml").write_text("public_reference: true\n")
    found = iter([(measured, "")])
    monkeypatch.setattr("dpaudit.api.audits.quality_of", lambda _: next(found))
    options = ("--policy", "policy.yaml", "--about", "about.yaml", "--unsigned")
    code, _, err = dpaudit("release", make_run(aggregator="mean").path, "--out", "texts", *options)
    assert code == 0, err
    assert "0.375" in (tmp_path / "texts" / "README.md").read_text()


# --- nothing private ------------------------------------------------------------------------------


def test_nothing_that_is_private_is_in_any_byte(
    make_run: Callable[..., Run],
    tmp_path: Path,
    contents: Any,
    measured: Quality,
    empty_figures: None,
) -> None:
    pytest.importorskip("pyarrow")
    for kind in (
        {"aggregator": "mean"},
        {"aggregator": "median"},
        {"aggregator": "mean", "budget": 0.9137},
    ):
        run = make_run(sizes=(3, 4, 5, 4), **kind)
        run.edit_manifest(
            {
                "data.text": "MARKERCOLUMN",
                "data.label_values": ["MARKERVALUE", "b"],
                "data.split": "MARKERSPLIT",
                "model.device": "MARKERDEVICE",
                "prompt.text": "MARKERTEMPLATE {example}",
                "prompt.template": "own",
                "prompt.digest": "d1" * 32,
                "software": {"MARKERSOFTWARE": "1", "numpy": "MARKERVERSION"},
                "sensitivity": "MARKERSENSITIVITY",
            }
        )
        run.rehash()
        (run / "report").mkdir()
        (run / "report" / "MARKERREPORT.txt").write_text("MARKERREPORT")
        place = run.path.rename(run.path.parent / f"MARKERPATH{run.path.name}")
        result = audit_run(place).model_copy(update={"quality": measured})
        reader = RunReader(place)
        folder = tmp_path / "texts" / kind["aggregator"] / str(len(kind))
        write_release(result, reader, folder, quality=measured, test_share=0.4, about=STATED)
        manifest, found = reader.manifest, contents(folder)
        secrets = {
            manifest.batching.key,
            manifest.nonce,
            manifest.data.digest,
            str(tmp_path),
            "d1" * 32,
        }
        secrets |= set(reader.hashes().digests.values()) | {
            assigned.digest for assigned in reader.assignment()
        }
        assert len(found) == len(FILES) + 6  # the test split with its side-car, and the annexes
        for name, text in found.items():
            assert "MARKER" not in text and "ENCODER" not in text, name
            assert not {
                secret for secret in secrets if secret and (secret in text or secret[:12] in text)
            }, name
            for number in (
                manifest.data.records,
                result.guarantees.ex_post and result.guarantees.ex_post.exact,
            ):
                if number and kind["aggregator"] == "median":
                    # a hundred per cent is the style sheet's
                    shown = rf"(?<![\w.]){re.escape(f'{number:.4g}')}(?!%)"
                    assert not re.search(shown, text), (
                        name,
                        number,
                    )
        named = {name for name, text in found.items() if manifest.commitment in text}
        marked = {name for name in found if name.endswith((".parquet", ".provenance.json"))}
        assert named == {"attestation.intoto.jsonl", "README.md"} | marked
        batches = found["jsonl/train.jsonl"] + found["jsonl/test.jsonl"]
        assert not {"tokens", "stop", "cluster", "id"} & {
            key for line in batches.splitlines() for key in json.loads(line)
        }


def test_the_plants_would_be_found(
    make_run: Callable[..., Run], contents: Any, tmp_path: Path
) -> None:
    """What searches is not blind: in Parquet and in envelopes it finds what does stand there."""
    pytest.importorskip("pyarrow")
    run = make_run(aggregator="mean", sizes=(3, 4, 5, 4))
    result = run.audit()
    write_release(result, RunReader(run.path), tmp_path / "texts")
    found, text = (
        contents(tmp_path / "texts"),
        max((sample.text for sample in result.samples), key=len),
    )
    assert json.dumps(text) in found["data/train.parquet"]
    assert "DPAUDIT_EVIDENCE_2" in found["attestation.intoto.jsonl"]


# --- files that people write ----------------------------------------------------------------------


def test_what_a_publisher_says_is_read_strictly(tmp_path: Path) -> None:
    path = tmp_path / "about.yaml"
    path.write_text("name: Tickets\ncurators: [A house]\nlicense: cc-by-4.0\n")
    assert read_about(path) == About(name="Tickets", curators=("A house",), license="cc-by-4.0")
    assert read_about(None) == About()
    path.write_text("license: other\nlanguages: [en, de, cmn, multilingual]\n")
    assert read_about(path).languages == ("en", "de", "cmn", "multilingual")
    for text, said in (
        ("licence: cc-by-4.0", "Did you mean license?"),
        ("curators: []", "Allowed: a list of one thing at least."),
        ("curators: A house", "Allowed: a list, such as"),
        ("languages: [no]", "quotes make it that"),
        ("name: ''", "name"),
        ('name: "a\\u0007b"', "Allowed: one line of text, without control characters."),
        ("license: CC BY", "the hub has no licence 'CC BY'. Give an identifier"),
        ("license: CC-BY-4.0", "Did you mean cc-by-4.0?"),
        ("license: proprietary", "such as cc-by-4.0, or other."),
        ("languages: [EN]", "the hub has no language 'EN'. Give a code of ISO 639-1"),
        ("languages: [en, de-CH]", "the hub has no language 'de-CH'"),
        ("languages: [xx]", "the hub has no language 'xx'"),
        ("languages: [english]", "the hub has no language 'english'"),
        ("sector: Gardening", "Technology"),
        ("recipient: everybody", "Did you mean recipients?"),
        ("roles: [me]", "about.yaml: roles: the value is"),
        ("roles: {accepts the risk: 7}", "roles.accepts the risk: the value is 7"),
        ("hipaa: yes", "about.yaml: hipaa: the value is True"),
        ("hipaa: {experts: A. Nother}", "Did you mean hipaa.expert?"),
        ("hipaa: {date: 2026-11-27}", "hipaa.date: the value is"),
        ("curator_type: Industries", "Government"),
        ("retention: ''", "about.yaml: retention"),
        ("review:", "review: this field has no value"),
        ("- name", "no mapping of fields"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=re.escape(said)):
            read_about(path)


def test_an_entrys_address_is_the_one_that_the_registry_gives_it(
    make_run: Callable[..., Run],
) -> None:
    result = make_run(aggregator="mean").audit()
    for name, curators, slug in (
        ("Popular Emojis", ("Apple",), "popular-emojis-apple-2026"),
        ("Tickets, 2026!", ("A house", "B_house"), "tickets-2026--a-house-b-house-2026"),
        ("Städtisches Klinikum", ("Klinik & Co.",), "städtisches-klinikum-klinik-co--2026"),
        ("票", ("Ltd",), "票-ltd-2026"),
        ("a _b", ("C",), "a--b-c-2026"),
        ("1e", ("5",), "1e-5-2026"),
    ):
        about = About(name=name, curators=curators)
        text = render_deployment(public_form(result), result.claim, about, date(2026, 11, 24))
        # Its tests compare the line as it stands, without quotes.
        assert text.splitlines()[0] == f"url_slug: {slug}"
        assert yaml.safe_load(text)["url_slug"] == slug


def test_the_template_explains_every_field_and_is_accepted(
    tmp_path: Path, dpaudit: Command
) -> None:
    code, out, _ = dpaudit("release", "--about-template")
    assert code == 0 and all(not line or line[0] == "#" for line in out.splitlines())
    path = tmp_path / "about.yaml"
    path.write_text(re.sub(r"^# (?=( \s)?[a-zA-Z][\w ]*:)", "", out, flags=re.M))
    found = read_about(path)
    names = [*About.model_fields, *(f"hipaa.{name}" for name in HipaaDetermination.model_fields)]
    assert [name for name in names if found.stated(name) is None] == []
    assert {*TITLES} == {*names} - {"hipaa", "license", "languages", "public_reference"}


# --- annexes, labels, the registry's entry -----------------------------------------------------


def test_annexes_hold_what_is_stated_and_list_what_is_not(released: Releases) -> None:
    folder, _ = released(release={"about": STATED})
    card, dpia, hipaa = (
        (folder / name).read_text().replace("\\_", "_") for name in ("README.md", DPIA, HIPAA)
    )
    for name in PERSONAL:
        assert f"STATED-{name}" in card and f"STATED-{name}" in dpia
    assert "STATED-expert" in hipaa and "STATED-risk" in hipaa and "STATED-expert" not in dpia
    for draft in (dpia, hipaa):
        assert "differentially private" in draft and "no legal advice" in draft
    absent = hipaa.partition("## Not stated")[2]
    assert "`hipaa.recipient`" in absent and "`hipaa.expert`" not in absent
    assert dpia.partition("## Not stated")[2].count("\n- ") == 0
    assert verify_folder(folder, None).verdict == "pass"

    folder, _ = released(release={"about": About(retention="STATED-retention")})
    assert not (folder / HIPAA).exists()
    card, dpia = ((folder / name).read_text() for name in ("README.md", DPIA))
    absent = dpia.partition("## Not stated")[2]
    for name in PERSONAL:
        assert (f"(`{name}`)" in absent) == (name != "retention")
        assert (TITLES[name] in card.partition("Not stated by the publisher:")[2]) == (
            name != "retention"
        )
        if name != "retention":  # nothing stands in its place
            assert TITLES[name] not in dpia.partition("## Not stated")[0].replace("## ", "")


def test_a_card_has_the_labels_shares_and_what_they_tell(make_run: Callable[..., Run]) -> None:
    pages = {
        "counted": make_run(clusters="public-centers-rebalanced", sizes=(3, 4, 5, 2)),
        "private": make_run(),
        "lead": make_run(),
    }
    pages["private"].edit_manifest({"chosen_from": {"batching": "private", "settings": "public"}})
    for name, run in pages.items():
        settings = public_form(run.audit()).run.settings
        said, *rest = shares(settings, {"a": 3, "b": 1})
        begun = say(f"labels-{name}", batches=2, labels=2).partition(".")[0]
        assert str(said.words).partition(".")[0][-40:] == begun[-40:], name
        rows = next(block for block in rest if isinstance(block, Table)).rows
        of_a = rows[0].cells
        assert of_a[0] == "a" and of_a[-2:] == ("3", "75.00%")
        # only numbers that are public, and hang on no record, are declared ones
        assert (of_a[1] == "50.00%") == (name == "lead")


def test_the_registrys_schema_lacks_only_what_the_publisher_does_not_state(
    released: Releases,
) -> None:
    tiers = {}
    for about in (About(), ABOUT, STATED):
        folder, _ = released(release={"about": about})
        text = (folder / "opendp_deployment.yaml").read_text()
        entry = yaml.load(text, Loader=yaml.BaseLoader) | {"tier": yaml.safe_load(text)["tier"]}
        entry["deployment"] = yaml.safe_load(text)["deployment"]
        problems = list(jsonschema.Draft7Validator(registry_schema()).iter_errors(entry))
        missing = [problem.message for problem in problems]
        assert missing == ["'data_curator_type' is a required property"] * (about == About())
        tiers[about.name, about.justification] = entry["tier"]
    assert list(tiers.values()) == [2, 2, 3]


# --- what is refused ------------------------------------------------------------------------------


def plant_text(run: Run) -> None:
    run.edit_samples(lambda lines: lines[0].update(text="another"))


def plant_forged_text(run: Run) -> None:
    plant_text(run)
    run.rehash()


def plant_claim(run: Run) -> None:
    run.edit_manifest({"claim.epsilon": 0.01})
    run.rehash()


def plant_missing(run: Run) -> None:
    run.steps_file(0).unlink()


def plant_seed(run: Run) -> None:
    run.edit_manifest({"sampling": {"generator": "test-seed", "seed": 1}})
    run.rehash()


def plant_no_claim(run: Run) -> None:
    run.edit_manifest({"claim": None})


def plant_added_line(run: Run) -> None:
    run.edit_samples(lambda lines: lines.append(lines[-1]))
    run.rehash()


ATTEMPTS: dict[str, tuple[Callable[[Run], None] | None, tuple[Any, ...], int]] = {
    "a changed text": (plant_text, (), 1),
    "a changed text, and its digest": (plant_forged_text, (), 1),
    "a claim that is too small": (plant_claim, (), 1),
    "a batch that is missing": (plant_missing, (), 2),
    "a seed": (plant_seed, (), 1),
    "no claim": (plant_no_claim, (), 2),
    "a text twice": (plant_added_line, (), 2),
    "a smaller epsilon than the run's": (None, ("--epsilon", "0.01"), 1),
    "level 4 without the data": (None, ("--level", "4"), 1),
    "another commitment": (None, ("--commitment", "ab" * 32), 1),
    "a policy that is not met": (None, ("--policy", "strict.yaml"), 1),
    "a policy with other signers": (None, ("--policy", "signers.yaml"), 1),
    "a unit that nothing bounds": (None, ("--unit", "user"), 1),
}


@pytest.mark.parametrize("name", ATTEMPTS)
def test_what_failed_is_not_released(
    make_run: Callable[..., Run], tmp_path: Path, dpaudit: Command, keys: Path, name: str
) -> None:
    pytest.importorskip("pyarrow")
    plant, options, expected = ATTEMPTS[name]
    (tmp_path / "strict.yaml").write_text("policy_version: 1\nepsilon: 0.01\n")
    (tmp_path / "signers.yaml").write_text(f"policy_version: 1\nsigners: [{'ab' * 32}]\n")
    run = make_run(aggregator="mean")
    if plant is not None:
        plant(run)
    code, out, err = dpaudit("release", run.path, "--out", "texts", "--key", keys / "key", *options)
    assert code == expected, err
    assert "not released" in err
    assert not (tmp_path / "texts").exists() and not list(tmp_path.glob(".*"))
    assert "Released" not in out


def test_a_text_that_changed_after_the_audit_is_not_released(
    make_run: Callable[..., Run], tmp_path: Path
) -> None:
    run = make_run(aggregator="mean")
    result = run.audit()
    plant_text(run)
    with pytest.raises(RefusedError, match="changed since"):
        write_release(result, RunReader(run.path), tmp_path / "texts")
    with pytest.raises(RefusedError, match="did not pass"):
        write_release(run.audit(), RunReader(run.path), tmp_path / "texts")
    assert not (tmp_path / "texts").exists()


def test_a_text_that_changed_while_the_audit_ended_is_not_released(
    make_run: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, summary = make_run(aggregator="mean"), audit._summary

    def late(facts: Any) -> dict[str, Any]:
        plant_forged_text(run)
        return summary(facts)

    monkeypatch.setattr(audit, "_summary", late)
    result = run.audit()
    assert result.verdict == "pass"
    with pytest.raises(RefusedError, match="changed since"):
        write_release(result, RunReader(run.path), tmp_path / "texts")


def test_whoever_stops_the_replay_of_a_gate_stops_the_gate(
    make_run: Callable[..., Run], tmp_path: Path, dpaudit: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_run(aggregator="mean").path
    found = Replay(None, None, None, None, (), (), None, whole=False)
    monkeypatch.setattr("dpaudit.generation.replay.replay_run", lambda *_, **__: found)
    (tmp_path / "records.csv").write_text("text,label\n")
    options = ("--data", "records.csv", "--level", "2")
    for command in (("verify", path), ("release", path, "--out", "texts", "--unsigned")):
        code, out, err = dpaudit(*command, *options)
        assert (code, out) == (130, "") and "interrupted" in err
    assert not (tmp_path / "texts").exists()
    assert dpaudit("report", path, *options)[0] == 0


def test_an_entry_has_the_unit_that_was_tested(
    make_run: Callable[..., Run], tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow")
    run = make_run(
        aggregator="median", unit="user", records_per_user=2, width=8, sizes=(3, 4, 5, 4)
    )
    for unit in ("record", "user"):
        result = audit_run(run.path, Question(unit=unit))
        assert public_form(result).claim is None
        write_release(result, RunReader(run.path), tmp_path / unit)
        entry = yaml.safe_load((tmp_path / unit / "opendp_deployment.yaml").read_text())
        assert entry["deployment"]["privacy_loss"]["privacy_unit"].startswith(f"One {unit}")


def test_tokens_alone_are_not_released(
    make_run: Callable[..., Run], tmp_path: Path, dpaudit: Command
) -> None:
    pytest.importorskip("pyarrow")
    run = make_run(aggregator="mean", text=False)
    code, _, err = dpaudit("release", run.path, "--out", "texts", "--unsigned")
    assert code == 2 and "token ids alone" in err


def test_the_command_line_is_held_to_be_clear(
    make_run: Callable[..., Run],
    tmp_path: Path,
    dpaudit: Command,
    keys: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = make_run(aggregator="mean")
    monkeypatch.setattr(
        "dpaudit.api.audits.audit_run", lambda *_, **__: pytest.fail("an audit was spent")
    )
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "attestation.intoto.jsonl").touch()
    (tmp_path / "file").write_text("")
    for options, said in (
        (["--out", "texts"], "either --key FILE"),
        (["--out", "texts", "--unsigned", "--level", "1"], "needs evidence level 2 or more"),
        (["--out", "texts", "--key", keys / "key", "--unsigned"], "either --key FILE"),
        (["--out", "there", "--unsigned"], "inside a release folder"),
        (["--out", "file", "--unsigned"], "there is something already"),
        (["--out", "file/texts", "--unsigned"], "file"),
        (["--out", run / "texts", "--unsigned"], "inside a run directory"),
        (["--out", run / "report", "--unsigned"], "inside the run directory"),
        (["--out", "x" * 300, "--unsigned"], "File name too long"),
        (["--out", "texts", "--unsigned", "--test-share", "0.5"], "no label has two batches"),
        (
            ["--out", "texts", "--key", keys / "key", "--junit", keys / "key"],
            "would replace the key",
        ),
        (["--out", "there/more", "--unsigned"], "inside a release folder"),
        (["--out", "texts", "--unsigned", "--junit", "there/junit.xml"], "inside a release folder"),
        (["--out", "texts", "--key", "nowhere"], "cannot be read"),
        (["--out", "texts", "--key", keys / "key.pub"], "key"),
        (["--out", "texts", "--unsigned", "--about", "file"], "is empty"),
        (["--out", "texts", "--unsigned", "--test-share", "1"], "test-share"),
        (["--out", "texts", "--unsigned", "--junit", "texts/junit.xml"], "elsewhere"),
        (
            ["--out", "texts", "--unsigned", "--sarif", run / "findings.sarif"],
            "inside a run directory",
        ),
    ):
        code, out, err = dpaudit("release", run.path, *options)
        assert (code, out) == (2, ""), err
        assert said in err
    assert sorted(path.name for path in tmp_path.iterdir() if path != run.path) == ["file", "there"]


def test_a_failed_write_leaves_nothing(
    make_run: Callable[..., Run],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    empty_figures: None,
) -> None:
    pytest.importorskip("pyarrow")
    run = make_run(aggregator="mean")
    result, written = run.audit(), []

    def fail(files: dict[str, Any], folder: Path) -> None:
        written.append(folder)
        if len(written) > 2:
            raise OSError("the disk is full")
        folder.mkdir(parents=True, exist_ok=True)
        for name in files:
            (folder / name).write_text("half")

    monkeypatch.setattr("dpaudit.releasing.folder.write_files", fail)
    with pytest.raises(OSError, match="full"):
        write_release(result, RunReader(run.path), tmp_path / "texts")
    assert [path for path in tmp_path.iterdir() if path != run.path] == []


def test_the_command_releases_what_passes(
    make_run: Callable[..., Run],
    tmp_path: Path,
    dpaudit: Command,
    keys: Path,
    contents: Any,
    empty_figures: None,
) -> None:
    pytest.importorskip("pyarrow")
    run = make_run(aggregator="mean")
    (tmp_path / "about.yaml").write_text("name: Tickets\n")
    (tmp_path / "policy.yaml").write_text("policy_version: 1\nname: ours\nepsilon: 1000\n")
    commitment = RunReader(run.path).manifest.commitment
    options = (
        "--about",
        "about.yaml",
        "--policy",
        "policy.yaml",
        "--key",
        keys / "key",
        "--commitment",
        commitment,
    )
    code, out, err = dpaudit("release", run.path, "--out", "new/texts", *options)
    assert code == 0, err
    assert "Released: new/texts (2 train texts; " in out and " level 2; signed by" in out
    gate = f"--policy policy.yaml --commitment {commitment} --level 2"
    assert f": dpaudit verify new/texts --key {keys / 'key'}.pub {gate}" in " ".join(err.split())
    code, out, err = dpaudit("report", run.path, "--out", "new/texts")
    assert code == 2 and "inside a release" in err, "private reports stay out of it"
    assert set(contents(tmp_path / "new" / "texts")) == FILES | {DPIA, QUESTIONS}
    digest = hashlib.sha256((tmp_path / "policy.yaml").read_bytes()).hexdigest()
    assert digest in (tmp_path / "new" / "texts" / "README.md").read_text()
    found = json.loads(dpaudit("release", run.path, "--out", "b", "--unsigned", "--json")[1])
    assert (found["signer"], found["texts"]) == (None, {"train": 2})
    assert set(found["files"]) == FILES - {"attestation.intoto.jsonl"}


def test_findings_for_readers_outside_are_written_whether_or_not_it_passed(
    make_run: Callable[..., Run], tmp_path: Path, dpaudit: Command, empty_figures: None
) -> None:
    pytest.importorskip("pyarrow")
    run = make_run(aggregator="median")
    cost = run.audit().guarantees.ex_post.batch_epsilon
    files = ("--junit", "junit.xml", "--sarif", "findings.sarif")
    for epsilon, wanted in ((1000, 0), (cost / 2, 1)):
        folder = f"texts-{wanted}"
        code, out, _ = dpaudit(
            "release", run.path, "--out", folder, "--unsigned", "--epsilon", epsilon, *files
        )
        assert code == wanted
        found = [(tmp_path / name).read_text() for name in files[1::2]]
        assert all(("claim.epsilon" in text) for text in found)
        assert (f"{cost:.4f}"[:-1] in out) == (code == 1)
        assert not any(f"{cost:.4f}"[:-1] in text for text in found)
        assert ("<failure" in found[0]) == (code == 1) == ('"error"' in found[1])
