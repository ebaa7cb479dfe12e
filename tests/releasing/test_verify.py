"""A release folder verifies exactly as it was written; every change is told in a sentence."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from pydantic.alias_generators import to_camel
from securesystemslib.dsse import Envelope

from dpaudit.auditing.disclosure import public_form
from dpaudit.auditing.run import Question
from dpaudit.releasing.keys import read_public_key, read_signer
from dpaudit.releasing.verify import verify_folder
from dpaudit.results import AttackSettings, AuditResult, Message
from dpaudit.results.attestation import PAYLOAD_TYPE, AttestedBound
from dpaudit.runs import InputError
from dpaudit.runs.layout import ATTESTATION

Releases = Callable[..., tuple[Path, AuditResult]]
Command = Callable[..., tuple[int, str, str]]
Change = Callable[[Path], object]
Problems = Callable[..., tuple[Message, ...]]


def codes(problems: Iterable[Message]) -> list[str]:
    return [problem.code for problem in problems]


def payloads(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / ATTESTATION).read_text().splitlines()
    return [json.loads(base64.b64decode(json.loads(line)["payload"])) for line in lines]


def attest(
    folder: Path, found: list[dict[str, Any]], signer: Any = None, *, keep: bool = True
) -> None:
    """Write other payloads: with the old signatures, those of a signer, or none."""
    lines = []
    for old, document in zip((folder / ATTESTATION).read_text().splitlines(), found, strict=True):
        envelope = Envelope(json.dumps(document).encode(), PAYLOAD_TYPE, {})
        if signer is not None:
            envelope.sign(signer)
        written = envelope.to_dict()
        if signer is None and keep:
            written["signatures"] = json.loads(old)["signatures"]
        lines.append(json.dumps(written, separators=(",", ":")) + "\n")
    (folder / ATTESTATION).write_text("".join(lines))


def entry(document: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in document["predicate"]["configuration"] if each["name"] == name)


def at_level(folder: Path, level: int, signer: Any = None) -> None:
    """Another evidence level, in both statements alike."""
    found, summary = payloads(folder)
    entry(found, "audit")["annotations"]["evidence"] = level
    said = summary["predicate"]["properties"]
    summary["predicate"]["properties"] = [
        f"DPAUDIT_EVIDENCE_{level}" if each.startswith("DPAUDIT_EVIDENCE") else each
        for each in said
    ]
    attest(folder, [found, summary], signer)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.fixture
def problems(keys: Path) -> Problems:
    def find(folder: Path, **options: Any) -> tuple[str, ...]:
        return verify_folder(folder, read_public_key(keys / "key.pub"), **options).problems

    return find


def test_a_folder_verifies_as_it_was_written(
    released: Releases, keys: Path, tmp_path: Path
) -> None:
    for kind in ({}, {"aggregator": "median"}, {"budget": 1.0}):
        folder, result = released(**kind)
        moved = Path(
            shutil.copytree(
                folder, tmp_path / "elsewhere" / str(len(kind)) / str(kind.get("budget"))
            )
        )
        for place in (folder, moved):
            found = verify_folder(place, read_public_key(keys / "key.pub"), level=2)
            assert (found.verdict, found.problems, found.files) == ("pass", (), 9)
            assert found.signer == read_public_key(keys / "key.pub").keyid
            assert (found.evidence, found.guarantee, found.ignored) == (
                2,
                str(public_form(result).guarantee),
                (),
            )


def test_an_unsigned_folder_verifies_without_a_key_alone(
    released: Releases, problems: Problems
) -> None:
    folder, _ = released(release={"signer": None})
    assert verify_folder(folder, None).verdict == "pass"
    assert verify_folder(folder, None).signer is None
    assert codes(problems(folder)) == ["released.unsigned"]


def write_lines(folder: Path, lines: list[str]) -> None:
    (folder / ATTESTATION).write_text("".join(lines))


#: What is done to a folder, and what is said of it.
CHANGES: dict[str, tuple[Change, str]] = {
    "a changed text": (
        lambda folder: edit(folder / "jsonl/train.jsonl", "w", "v"),
        "A file of texts (jsonl/train",
    ),
    "a changed table": (
        lambda folder: (folder / "data/train.parquet").write_bytes(b"PAR1"),
        "A table of texts (data/train.parquet) was changed",
    ),
    "another card": (
        lambda folder: edit(folder / "README.md", "Nothing here", "All here"),
        "The card (README.md) was",
    ),
    "another entry": (
        lambda folder: edit(folder / "opendp_deployment.yaml", "epsilon: ", "epsilon: 0"),
        "The registry's entry (opendp_deployment.yaml) was",
    ),
    "another report": (
        lambda folder: edit(folder / "report/report.md", "Pass", "pass"),
        "The public report (report/report.md) was",
    ),
    "a missing file": (lambda folder: (folder / "README.md").unlink(), "README.md is missing"),
    "an added file": (
        lambda folder: (folder / "data/more.parquet").write_text("x"),
        "data/more.parquet was added",
    ),
    "an added hidden file": (
        lambda folder: (folder / ".gitignore").write_text("x"),
        ".gitignore was added",
    ),
    "what hosts add, elsewhere": (
        lambda folder: (folder / "data/.gitattributes").write_text("x"),
        "data/.gitattributes was added",
    ),
    "a name that looks like a host's": (
        lambda folder: (folder / ".cache2").mkdir(),
        ".cache2/ was added",
    ),
    "an added folder": (
        lambda folder: (folder / "more").mkdir(),
        "more/ was added, and is no plain file",
    ),
    "a link": (
        lambda folder: (folder / "link").symlink_to("/etc"),
        "link was added, and is no plain file",
    ),
    "a pipe": (lambda folder: os.mkfifo(folder / "pipe"), "pipe was added, and is no plain file"),
    "a link in a file's place": (
        lambda folder: (
            (folder / "README.md").rename(folder.parent / "card"),
            (folder / "README.md").symlink_to(folder.parent / "card"),
        ),
        "README.md was added, and is no plain file",
    ),
    "a name that drives terminals": (
        lambda folder: (folder / "a\x1b[31m").write_text(""),
        "a\\x1b[31m was added",
    ),
    "no attestation": (
        lambda folder: (folder / ATTESTATION).unlink(),
        "The attestation is missing",
    ),
    "half an attestation": (
        lambda folder: write_lines(
            folder, (folder / ATTESTATION).read_text().splitlines(keepends=True)[:1]
        ),
        "other statements than the two",
    ),
    "one statement twice": (
        lambda folder: (
            (folder / ATTESTATION).write_text(
                (folder / ATTESTATION).read_text().splitlines()[0] + "\n"
            )
            or edit(folder / ATTESTATION, "", (folder / ATTESTATION).read_text())
        ),
        "other statements than the two",
    ),
    "the statements in another order": (
        lambda folder: write_lines(
            folder, (folder / ATTESTATION).read_text().splitlines(keepends=True)[::-1]
        ),
        "other statements than the two",
    ),
    "another end of line": (
        lambda folder: edit(folder / ATTESTATION, "\n", "\r\n"),
        "written anew",
    ),
    "a blank in a line": (
        lambda folder: edit(folder / ATTESTATION, ",", ", "),
        "written anew",
    ),
    "something more that is no signature": (
        lambda folder: edit(
            folder / ATTESTATION,
            '"signatures":[',
            f'"signatures":[{{"keyid":"{7:064}","sig":"YQ"}},',
        ),
        "cannot be read",
    ),
    "a signature that is written otherwise": (
        lambda folder: edit(
            folder / ATTESTATION, '"signatures":[', '"signatures":[{"keyid":"a","sig":"YR=="},'
        ),
        "written anew",
    ),
    "a broken attestation": (
        lambda folder: (folder / ATTESTATION).write_text("{}\n"),
        "cannot be read",
    ),
    "an edited attestation": (
        lambda folder: attest(
            folder,
            [
                payloads(folder)[0] | {"subject": payloads(folder)[0]["subject"][:1]},
                payloads(folder)[1],
            ],
        ),
        "signature is stale",
    ),
    "no signature": (lambda folder: attest(folder, payloads(folder), keep=False), "Nobody signed"),
    "a lowered level": (
        lambda folder: at_level(folder, 1),
        "attestation says level 1, and the report",
    ),
    "a raised level": (
        lambda folder: at_level(folder, 4),
        "attestation says level 4, and the report",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_has_a_sentence_of_its_own(
    released: Releases, problems: Problems, dpaudit: Command, keys: Path, name: str
) -> None:
    folder, _ = released()
    change, said = CHANGES[name]
    change(folder)
    found = problems(folder)
    assert any(said in problem.words for problem in found), found
    assert all(problem.words.isprintable() and problem.words.endswith(".") for problem in found)
    code, out, err = dpaudit("verify", folder, "--key", keys / "key.pub")
    assert code == 1
    assert out.count("FAIL ") >= len(found)  # the command asks for a level, too
    assert said in out and "pass" not in err
    if "attestation" in name or "signature" in name or "level" in name:
        return
    assert verify_folder(folder, None).problems == found, "bytes are looked at whoever signed"


def test_a_foreign_signature(released: Releases, problems: Problems, keys: Path) -> None:
    folder, _ = released(release={"signer": read_signer(keys / "other")})
    (found,) = problems(folder)
    ours, others = (read_public_key(keys / f"{name}.pub").keyid for name in ("key", "other"))
    assert (found.code, dict(found.values)) == (
        "released.other-key",
        {"keys": others, "wanted": ours},
    )


def resign(folder: Path, change: Callable[[list[dict[str, str]], Envelope], object]) -> None:
    """Other signatures of each envelope, which stays what it is."""
    lines = []
    for line in (folder / ATTESTATION).read_text().splitlines():
        fields = json.loads(line)
        change(fields["signatures"], Envelope.from_dict(json.loads(line)))
        lines.append(json.dumps(fields, separators=(",", ":")) + "\n")
    (folder / ATTESTATION).write_text("".join(lines))


def test_envelopes_of_others_are_read(released: Releases, problems: Problems, keys: Path) -> None:
    """A key's name is a hint that may be empty or missing; others may have signed, too."""
    other = read_signer(keys / "other")

    def countersign(signatures: list[dict[str, str]], envelope: Envelope) -> None:
        made = base64.b64encode(bytes.fromhex(other.sign(envelope.pae()).signature)).decode()
        signatures.append({"keyid": other.public_key.keyid, "sig": made})

    for change in (
        lambda signatures, _: signatures[0].update(keyid=""),
        lambda signatures, _: signatures[0].pop("keyid"),
        lambda signatures, _: signatures[0].update(keyid="a key of ours"),
        lambda signatures, _: signatures.insert(0, {"keyid": "", "sig": "YQ=="}),
        lambda signatures, _: signatures.append(dict(signatures[0])),
        countersign,
        lambda signatures, envelope: (countersign(signatures, envelope), signatures.reverse()),
    ):
        folder, _ = released()
        resign(folder, change)
        assert problems(folder) == ()
        assert verify_folder(folder, read_public_key(keys / "key.pub")).signer is not None
    folder, _ = released()
    resign(folder, countersign)
    assert verify_folder(folder, other.public_key).verdict == "pass"
    resign(folder, lambda signatures, _: signatures.pop(0))
    assert problems(folder)[0].code == "released.other-key"
    resign(folder, lambda signatures, _: signatures[0].update(keyid=""))
    assert problems(folder)[0].code == "released.no-signature"
    resign(folder, lambda signatures, _: signatures.extend([signatures[0]] * 16))
    assert problems(folder)[0].code == "released.unreadable"


def test_a_summary_that_names_no_policies_is_read(
    released: Releases, problems: Problems, keys: Path
) -> None:
    """As folders of earlier versions have it."""
    folder, _ = released()
    found = payloads(folder)
    assert found[1]["predicate"]["verifier"].pop("policies") == []
    attest(folder, found, read_signer(keys / "key"))
    assert problems(folder) == ()


def test_a_foreign_signature_under_our_name(
    released: Releases, problems: Problems, keys: Path
) -> None:
    folder, _ = released(release={"signer": read_signer(keys / "other")})
    ours, theirs = (read_public_key(keys / f"{name}.pub").keyid for name in ("key", "other"))
    (folder / ATTESTATION).write_text((folder / ATTESTATION).read_text().replace(theirs, ours))
    assert codes(problems(folder)) == ["released.stale-signature"]


def edited(folder: Path, signer: Any, change: Callable[[dict[str, Any]], object]) -> None:
    """Change what bounds attacks in the attestation and, the same, in the report; sign anew."""
    found, summary = payloads(folder)
    report = json.loads((folder / "report/report.json").read_text())
    stated = entry(found, "attacks")["annotations"]
    change(stated)
    approximate = report["guarantees"]["approximate"]
    approximate["attack_settings"] |= stated["settings"]
    for level, name in (("release", "attack"), ("batch", "batch_attack")):
        bound = {key: stated[level][given] for key, given in ATTESTED.items()}
        approximate[name] |= bound
    (folder / "report/report.json").write_text(json.dumps(report))
    digest = hashlib.sha256((folder / "report/report.json").read_bytes()).hexdigest()
    for statement in (found, summary):
        for subject in statement["subject"]:
            if subject["name"] == "report/report.json":
                subject["digest"]["sha256"] = digest
    attest(folder, [found, summary], signer)


#: The figures of a bound, as the report and as the attestation name them.
ATTESTED = {name: to_camel(name) for name in AttestedBound.model_fields}


def lowered(level: str, name: str) -> Callable[[dict[str, Any]], object]:
    def change(stated: dict[str, Any]) -> None:
        stated[level][ATTESTED[name]] *= 1 - 1e-6

    return change


def settings_of(**changes: Any) -> Callable[[dict[str, Any]], object]:
    def change(stated: dict[str, Any]) -> None:
        stated["settings"] |= changes

    return change


def test_bounds_on_attacks_are_recomputed_from_what_the_attestation_states(
    released: Releases, problems: Problems, keys: Path
) -> None:
    """Also where the publisher changes report and attestation alike, and signs both."""
    folder, result = released()
    stated = entry(payloads(folder)[0], "attacks")["annotations"]
    found = result.guarantees.approximate
    assert found is not None and found.attack is not None and found.attack_settings is not None
    assert stated["release"]["advantage"] == found.attack.advantage
    assert found.attack_settings.bounds() == (found.attack, found.batch_attack)
    eta, tokens = found.attack_settings.unit.eta, found.attack_settings.tokens
    assert eta is not None
    faults = {
        lowered("release", "advantage"): "attacks-too-low",
        lowered("batch", "tpr_at_01pct"): "attacks-too-low",
        settings_of(laplace=[0.5]): "attacks-too-low",
        settings_of(tokens=tokens + 1): "attacks-too-low",
        settings_of(rounds=2): "attacks-too-low",
        settings_of(tokens=tokens - 1): "attacks-of-cheaper",
        settings_of(unit={"eta": eta * 0.99}): "attacks-of-cheaper",
        settings_of(centers="inf"): "attacks-too-low",
        settings_of(unit={"noise": {"multiplier": 1e9, "rate": 0.5}}): "attacks-of-cheaper",
        settings_of(unit={"eta": eta, "budget": 1e-9}): "attacks-of-cheaper",
    }
    for change, code in faults.items():
        again = Path(shutil.copytree(folder, folder.with_name(f"{folder.name}-planted")))
        edited(again, read_signer(keys / "key"), change)
        # The texts' marks name the attestation as it was.
        assert {*codes(problems(again))} - {"released.other-mark"} == {f"released.{code}"}
        shutil.rmtree(again)
    edited(
        folder, read_signer(keys / "key"), lambda stated: stated["release"].update(advantage=1.0)
    )
    assert {*codes(problems(folder))} == {"released.other-mark"}, "a larger bound holds, too"


def of_settings(**changes: Any) -> Callable[[dict[str, Any]], object]:
    """Plant other settings with the very bounds that follow from these."""

    def change(stated: dict[str, Any]) -> None:
        stated["settings"] |= changes
        settings = AttackSettings.model_validate_json(json.dumps(stated["settings"]))
        for level, found in zip(("release", "batch"), settings.bounds(), strict=True):
            stated[level] = {given: getattr(found, name) for name, given in ATTESTED.items()}

    return change


CENTRES = {"sizes": (3, 4, 5, 2), "clusters": "chang"}


@pytest.mark.parametrize(
    ("run", "changes"),
    [
        ({}, {"groups": [[1 << 16, 1]]}),
        ({}, {"groups": [[10, 2]]}),  # of a run whose batches are no secret
        ({"secret": True}, {"groups": [[11, 2]]}),
        ({"secret": True}, {"groups": [[10, 1], [1 << 16, 2]]}),
        ({"rounds": 3}, {"rounds": 1}),
        ({"rounds": 3, "secret": True}, {"rounds": 2}),
        (CENTRES, {"centers": 0.0}),
        (CENTRES, {"centers_delta": 0.0}),
        (CENTRES | {"clusters": "public-centers-rebalanced"}, {"laplace": []}),
    ],
    ids=str,
)
def test_bounds_on_attacks_rest_on_the_reports_own_batches_rounds_and_clusters(
    released: Releases,
    problems: Problems,
    keys: Path,
    run: dict[str, Any],
    changes: dict[str, Any],
) -> None:
    """More batches to hide in, and fewer rounds, would bound attacks better than is true."""
    folder, result = released(**run)
    found = result.guarantees.approximate
    assert found is not None and found.attack_settings is not None
    if "groups" in changes and found.attack_settings.record is None:
        changes = {**changes, "record": found.attack_settings.unit.model_dump(mode="json")}
    edited(folder, read_signer(keys / "key"), of_settings(**changes))
    assert codes(problems(folder)) == ["released.attacks-of-cheaper"]


def test_a_records_bound_is_not_taken_for_a_persons(
    released: Releases, problems: Problems, keys: Path
) -> None:
    """Of a user's several records, and of a replaced one, every record counts at both levels."""
    folder, result = released(unit="user", records_per_user=2, width=8)
    found = result.guarantees.approximate
    assert found is not None and found.attack_settings is not None
    eta = found.attack_settings.unit.eta
    assert eta is not None
    edited(folder, read_signer(keys / "key"), settings_of(unit={"eta": eta / 2}))
    assert "released.attacks-of-cheaper" in codes(problems(folder))


def test_an_attestation_says_of_attacks_what_the_claim_allows(
    released: Releases, problems: Problems, keys: Path
) -> None:
    def without(found: dict[str, Any]) -> None:
        kept = found["predicate"]["configuration"]
        kept.remove(entry(found, "attacks"))

    def unbounded(found: dict[str, Any]) -> None:
        entry(found, "attacks")["annotations"] = {"unbounded": "Nothing bounds them."}

    def unusable(found: dict[str, Any]) -> None:
        settings = entry(found, "attacks")["annotations"]["settings"]
        settings |= {"record": {"eta": 1.0}, "groups": [[2, 3]]}

    def endless(found: dict[str, Any]) -> None:
        settings = entry(found, "attacks")["annotations"]["settings"]
        settings |= {"record": {"eta": 1.0}, "groups": [[9, 1]] * 6, "records": 200}

    faults = {
        endless: {"released.attacks-unusable", "released.other-attacks"},
        without: {"released.no-attacks", "released.other-attacks"},
        unbounded: {"released.attacks-of-other-kind", "released.other-attacks"},
        unusable: {"released.attacks-unusable", "released.other-attacks"},
    }
    for change, expected in faults.items():
        folder, _ = released()
        found, summary = payloads(folder)
        change(found)
        attest(folder, [found, summary], read_signer(keys / "key"))
        assert {*codes(problems(folder))} == expected, change.__name__
    median, _ = released(aggregator="median")
    said = entry(payloads(median)[0], "attacks")["annotations"]
    assert "very texts" in said["unbounded"] and "release" not in said
    assert problems(median) == ()


def test_an_attestation_of_another_release(released: Releases, problems: Problems) -> None:
    (one, _), (other, _) = released(), released(aggregator="median", sizes=(3, 4, 5))
    shutil.copy(other / ATTESTATION, one / ATTESTATION)
    found = problems(one)
    assert any(problem.values.get("name") == "jsonl/train.jsonl" for problem in found)
    assert "released.other-claim" in codes(found)
    for name in ("report.html", "report.json", "report.md", "junit.xml"):
        (one / "report" / name).write_text("x")
    assert "released.other-release" in codes(problems(one))


def test_a_level_that_the_signer_changed_contradicts_the_report(
    released: Releases, problems: Problems, keys: Path
) -> None:
    folder, _ = released()
    at_level(folder, 4, read_signer(keys / "key"))
    (found,) = problems(folder)
    assert (found.code, dict(found.values)) == (
        "released.level-changed",
        {"attested": 4, "reported": 2},
    )


def test_a_signer_cannot_say_other_things_than_the_report(
    released: Releases, problems: Problems, keys: Path
) -> None:
    def claim(found: dict[str, Any], summary: dict[str, Any]) -> None:
        entry(found, "claim")["annotations"]["epsilon"] = 0.5

    def checks(found: dict[str, Any], summary: dict[str, Any]) -> None:
        found["predicate"]["passedTests"].append("replay.logits")

    def versions(found: dict[str, Any], summary: dict[str, Any]) -> None:
        entry(found, "dpaudit")["annotations"]["dpaudit"] = "9"

    def policy(found: dict[str, Any], summary: dict[str, Any]) -> None:
        digest = {"sha256": "ab" * 32}
        found["predicate"]["configuration"].append({"name": "policy", "digest": digest})
        summary["predicate"]["verifier"]["policies"] = [{"name": "policy", "digest": digest}]
        summary["predicate"]["properties"].append("DPAUDIT_POLICY_MET")

    def guarantee(found: dict[str, Any], summary: dict[str, Any]) -> None:
        entry(found, "audit")["annotations"]["guarantee"] = "All is well."

    def failed(found: dict[str, Any], summary: dict[str, Any]) -> None:
        found["predicate"]["failedTests"] = ["release.text"]

    def summary_alone(found: dict[str, Any], summary: dict[str, Any]) -> None:
        summary["predicate"]["properties"][-1] = "DPAUDIT_EVIDENCE_4"

    def other_files(found: dict[str, Any], summary: dict[str, Any]) -> None:
        summary["subject"] = summary["subject"][1:]

    def fewer_files(found: dict[str, Any], summary: dict[str, Any]) -> None:
        found["subject"] = summary["subject"] = summary["subject"][1:]

    def twice(found: dict[str, Any], summary: dict[str, Any]) -> None:
        found["subject"] = summary["subject"] = [*summary["subject"], summary["subject"][0]]

    def escape(found: dict[str, Any], summary: dict[str, Any]) -> None:
        more = {"name": "../key", "digest": {"sha256": "ab" * 32}}
        found["subject"] = summary["subject"] = [*summary["subject"], more]

    def two_of(kind: str) -> Callable[[dict[str, Any], dict[str, Any]], None]:
        def planted(found: dict[str, Any], summary: dict[str, Any]) -> None:
            found["predicate"]["configuration"].insert(0, entry(found, kind))

        return planted

    def nothing_made(found: dict[str, Any], summary: dict[str, Any]) -> None:
        found["predicate"]["configuration"] = [
            entry(found, "claim"),
            entry(found, "audit"),
            entry(found, "commitment"),
        ]

    def python_names(found: dict[str, Any], summary: dict[str, Any]) -> None:
        found["predicate"]["passed_tests"] = found["predicate"].pop("passedTests")

    def another_program(found: dict[str, Any], summary: dict[str, Any]) -> None:
        summary["predicate"]["verifier"]["id"] = "urn:other"

    def another_version(found: dict[str, Any], summary: dict[str, Any]) -> None:
        summary["predicate"]["verifier"]["id"] = "urn:dpaudit:verifier:9.9"

    def no_time(found: dict[str, Any], summary: dict[str, Any]) -> None:
        summary["predicate"]["timeCreated"] = "9999-99-99T99:99:99Z"

    def foreign_digits(found: dict[str, Any], summary: dict[str, Any]) -> None:
        summary["predicate"]["timeCreated"] = "٢٠٢٦-11-25T10:00:00Z"

    def property_twice(found: dict[str, Any], summary: dict[str, Any]) -> None:
        summary["predicate"]["properties"].append(summary["predicate"]["properties"][0])

    def no_number(found: dict[str, Any], summary: dict[str, Any]) -> None:
        entry(found, "dpaudit")["annotations"]["attestation"] = True

    said = {
        claim: "different claims",
        checks: "different checks",
        versions: "different versions",
        policy: "different policy",
        guarantee: "something else of the audit",
        failed: "an audit that failed",
        summary_alone: "statements contradict each other",
        other_files: "statements name different files",
        fewer_files: "does not name README.md",
        twice: "names a file twice",
        escape: "names ../key, which no release has",
        nothing_made: "lacks the claim, the audit",
        python_names: "passedTests: Field required",
        another_program: "of another program",
        another_version: "different versions of dpaudit",
        no_time: "cannot be read",
        foreign_digits: "cannot be read",
        property_twice: "statements contradict each other",
        no_number: "cannot be read",
        **{
            two_of(kind): "one thing is said twice"
            for kind in ("claim", "audit", "dpaudit", "commitment")
        },
    }
    for change, expected in said.items():
        folder, _ = released()
        found = payloads(folder)
        change(*found)
        attest(folder, found, read_signer(keys / "key"))
        assert any(expected in problem.words for problem in problems(folder)), (
            change.__name__,
            problems(folder),
        )


def in_the_hubs_cache(folder: Path, cache: Path) -> Path:
    """The folder as `huggingface_hub.snapshot_download` keeps it: files are links into `blobs`."""
    blobs, snapshot = cache / "blobs", cache / "snapshots" / ("ab" * 20)
    blobs.mkdir(parents=True)
    for number, path in enumerate(sorted(path for path in folder.rglob("*") if path.is_file())):
        shutil.copy(path, blobs / f"{number:040x}")
        link = snapshot / path.relative_to(folder)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blobs / f"{number:040x}", link.parent))
    (blobs / "attributes").write_text("*.parquet filter=lfs\n")
    (snapshot / ".gitattributes").symlink_to("../../blobs/attributes")
    return snapshot


def blob(snapshot: Path, name: str) -> Path:
    return Path(os.path.realpath(snapshot / name))


def relink(snapshot: Path, name: str, target: str | Path) -> None:
    (snapshot / name).unlink()
    (snapshot / name).symlink_to(target)


def test_copies_of_the_hub_verify(
    released: Releases, dpaudit: Command, keys: Path, tmp_path: Path
) -> None:
    folder, _ = released()
    cached = in_the_hubs_cache(folder, tmp_path / "datasets--a--b")
    local, cloned = (Path(shutil.copytree(folder, tmp_path / name)) for name in ("local", "cloned"))
    (local / ".cache" / "huggingface" / "download").mkdir(parents=True)
    (local / ".cache" / "huggingface" / "download" / "README.md.metadata").write_text("x")
    (local / ".huggingface").mkdir()
    for number in range(1_200):  # as many objects as a repository may have
        (cloned / ".git" / "objects" / f"{number}").mkdir(parents=True)
    (cloned / ".gitattributes").write_text("*.parquet filter=lfs\n")
    for place, ignored in (
        (cached, (".gitattributes",)),
        (local, (".cache", ".huggingface")),
        (cloned, (".git", ".gitattributes")),
    ):
        found = verify_folder(place, read_public_key(keys / "key.pub"))
        assert (found.verdict, found.problems, found.ignored) == ("pass", (), ignored)
        code, out, err = dpaudit("verify", place, "--key", keys / "key.pub")
        assert (code, out) == (0, "") and f"nobody vouches for {', '.join(ignored)}" in err
    (tmp_path / "link").symlink_to(cached)
    assert verify_folder(tmp_path / "link", None).verdict == "pass"
    absolute = blob(cached, "README.md")
    relink(cached, "README.md", absolute)  # as the hub links across disks
    assert verify_folder(cached, None).verdict == "pass"


#: What is done to a copy in the hub's cache, where a link could lead astray; all but the first two
#: leave every byte.
ASTRAY: dict[str, tuple[Change, str]] = {
    "a changed blob": (
        lambda at: blob(at, "README.md").write_text("x"),
        "The card (README.md) was changed",
    ),
    "the blob of another file": (
        lambda at: relink(at, "README.md", os.readlink(at / "opendp_deployment.yaml")),
        "The card (README.md) was changed",
    ),
    "elsewhere": (
        lambda at: relink(
            at, "README.md", shutil.copy(at / "README.md", at.parents[2] / "elsewhere")
        ),
        "README.md was added, and is no plain file",
    ),
    "beside blobs": (
        lambda at: (
            shutil.copy(at / "README.md", at.parents[1] / "more"),
            relink(at, "README.md", "../../more"),
        ),
        "README.md was added",
    ),
    "through blobs": (
        lambda at: (
            shutil.copy(at / "README.md", at.parents[1] / "more"),
            relink(at, "README.md", "../../blobs/../more"),
        ),
        "README.md was added",
    ),
    "a link in blobs": (
        lambda at: (
            shutil.copy(at / "README.md", at.parents[2] / "elsewhere"),
            relink(
                at.parents[1] / "blobs", blob(at, "README.md").name, at.parents[2] / "elsewhere"
            ),
        ),
        "README.md was added",
    ),
    "a pipe": (
        lambda at: (
            relink(at, "README.md", "../../blobs/pipe"),
            os.mkfifo(at.parents[1] / "blobs/pipe"),
        ),
        "README.md was added",
    ),
    "a device": (lambda at: relink(at, "README.md", "/dev/zero"), "README.md was added"),
    "nowhere": (lambda at: relink(at, "README.md", "../../blobs/none"), "README.md was added"),
    "itself": (lambda at: relink(at, "README.md", "README.md"), "README.md was added"),
    "blobs": (lambda at: relink(at, "README.md", "../../blobs"), "README.md was added"),
    "a folder": (
        lambda at: (
            shutil.move(at / "data", at.parents[1] / "blobs/data"),
            (at / "data").symlink_to("../../blobs/data"),
        ),
        "data was added, and is no plain file",
    ),
    "blobs are elsewhere": (
        lambda at: (
            shutil.move(at.parents[1] / "blobs", at.parents[2] / "elsewhere"),
            (at.parents[1] / "blobs").symlink_to(at.parents[2] / "elsewhere"),
        ),
        "The attestation is missing",
    ),
    "no cache": (
        lambda at: at.parent.rename(at.parents[1] / "shots"),
        "The attestation is missing",
    ),
}


def test_no_link_leads_out_of_the_hubs_cache(
    released: Releases, problems: Problems, tmp_path: Path
) -> None:
    folder, _ = released()
    for name, (change, said) in ASTRAY.items():
        at = in_the_hubs_cache(folder, tmp_path / name / "datasets--a--b")
        change(at)
        found = problems(at if at.exists() else at.parents[1] / "shots" / at.name)
        assert any(said in problem.words for problem in found), (name, found)


def test_a_file_that_grows_while_it_is_read_is_read_no_further(
    released: Releases, problems: Problems, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dpaudit.releasing.verify as verify

    folder, _ = released()
    plain = verify._plain

    def replaced(path: Path) -> Any:
        return open("/dev/zero", "rb") if path.name == "README.md" else plain(path)

    monkeypatch.setattr(verify, "_plain", replaced)
    (found,) = problems(folder)
    assert (found.code, found.values["name"]) == ("released.changed", "README.md")
    larger = folder / "report" / "report.md"
    monkeypatch.setattr(verify, "_plain", plain)
    monkeypatch.setattr(
        verify, "_most", lambda name: larger.stat().st_size - (name == "report/report.md")
    )
    assert any(problem.values.get("name") == "report/report.md" for problem in problems(folder))


def test_the_claim_is_asked_for(
    released: Releases, dpaudit: Command, keys: Path, tmp_path: Path
) -> None:
    folder, result = released()
    claim = result.claim
    assert claim is not None and claim.kind == "approximate"
    for question, said in (
        (Question(), ""),
        (
            Question(
                epsilon=claim.epsilon, delta=claim.delta, relation=claim.relation, unit=claim.unit
            ),
            "",
        ),
        (Question(epsilon=claim.epsilon + 1, delta=1), ""),
        (Question(epsilon=claim.epsilon * (1 - 1e-12)), "The claim states epsilon "),
        (
            Question(batch_epsilon=1e9),
            "The claim says nothing of the batch level, and one is asked for.",
        ),
        (Question(delta=claim.delta / 2), "The claim states delta "),
        (
            Question(relation="replace"),
            "The claim is for the relation add_remove, and replace is asked for.",
        ),
        (Question(unit="user"), "The claim is for the unit record, and user is asked for."),
    ):
        found = verify_folder(folder, read_public_key(keys / "key.pub"), question=question)
        assert (
            (len(found.problems) == 1 and said in found.problems[0].words)
            if said
            else found.verdict == "pass"
        )
    gate = ("--key", keys / "key.pub", "--relation", "add_remove", "--unit", "record")
    assert dpaudit("verify", folder, *gate, "--epsilon", "1000")[0] == 0
    code, out, _ = dpaudit("verify", folder, *gate, "--epsilon", "0.5")
    assert code == 1 and "at most 0.5 is asked for" in out


def test_a_claim_is_asked_for_at_either_level(released: Releases, keys: Path) -> None:
    folder, result = released(secret=True, sizes=(4, 5, 4, 5))
    claim = result.claim
    assert (
        claim is not None
        and claim.batch_epsilon is not None
        and claim.epsilon < claim.batch_epsilon
    )
    for question, said in (
        (Question(epsilon=claim.epsilon, batch_epsilon=claim.batch_epsilon), ""),
        (Question(batch_epsilon=claim.epsilon), "The claim states batch_epsilon "),
        (Question(epsilon=claim.epsilon * 0.999), "The claim states epsilon "),
    ):
        found = verify_folder(folder, read_public_key(keys / "key.pub"), question=question)
        assert (
            (len(found.problems) == 1 and said in found.problems[0].words)
            if said
            else found.verdict == "pass"
        )


def test_a_withheld_claim_is_none_that_could_be_asked_for(released: Releases) -> None:
    withheld, _ = released(aggregator="median")
    given, _ = released(Question(epsilon=987.625), aggregator="median")
    for question in (
        Question(epsilon=1e9),
        Question(delta=1),
        Question(relation="add_remove"),
        Question(unit="record"),
    ):
        (said,) = verify_folder(withheld, None, question=question).problems
        assert (said.code, said.values["asked"]) == ("released.claim-withheld", question.asked)
        assert verify_folder(given, None, question=question).verdict == "pass"
    assert verify_folder(withheld, None).verdict == "pass"


def test_what_is_asked_for_beyond_the_bytes(released: Releases, problems: Problems) -> None:
    folder, _ = released()
    assert problems(folder, level=2) == ()
    (found,) = problems(folder, level=3)
    assert (found.code, dict(found.values)) == (
        "released.low-evidence",
        {"evidence": 2, "level": 3},
    )


def test_a_commitment_tells_of_which_run_the_texts_are(
    released: Releases, dpaudit: Command, keys: Path
) -> None:
    (one, _), (other, _) = released(), released(seed=5)
    (made,) = [
        each["digest"]["sha256"]
        for each in payloads(one)[0]["predicate"]["configuration"]
        if each["name"] == "commitment"
    ]
    gate = ("--key", keys / "key.pub", "--commitment", made)
    assert dpaudit("verify", one, *gate)[0] == 0
    code, out, _ = dpaudit("verify", other, *gate)
    assert code == 1 and "of another run" in out and made in out
    assert dpaudit("verify", one, *gate, "--head", made)[0] == 2


def test_a_policy_is_asked_for_by_its_digest(
    make_run: Callable[..., Any], tmp_path: Path, dpaudit: Command, keys: Path, empty_figures: None
) -> None:
    pytest.importorskip("pyarrow")
    keyid = read_public_key(keys / "key.pub").keyid
    (tmp_path / "ours.yaml").write_text(
        f"policy_version: 1\nname: ours\nepsilon: 1000\nsigners: ['{keyid}']\n"
    )
    (tmp_path / "other.yaml").write_text(
        f"policy_version: 1\nepsilon: 1001\nsigners: ['{'ab' * 32}']\n"
    )
    run = make_run(aggregator="mean").path
    assert (
        dpaudit("release", run, "--out", "texts", "--key", keys / "key", "--policy", "ours.yaml")[0]
        == 0
    )
    assert dpaudit("release", run, "--out", "free", "--key", keys / "key")[0] == 0
    gate = ("--key", keys / "key.pub", "--policy")
    assert dpaudit("verify", "texts", *gate, "ours.yaml")[0] == 0
    for arguments, wanted in (
        (("texts", *gate, "other.yaml"), ["released.other-policy", "released.signer-unknown"]),
        (("free", *gate, "ours.yaml"), ["released.no-policy"]),
        (("texts", "--unsigned", "--policy", "ours.yaml"), ["released.signer-unasked"]),
    ):
        code, out, _ = dpaudit("verify", *arguments, "--json")
        assert (code, [problem["code"] for problem in json.loads(out)["problems"]]) == (1, wanted)


def test_the_command(released: Releases, dpaudit: Command, keys: Path, tmp_path: Path) -> None:
    folder, _ = released()
    (run,) = (path.parent for path in tmp_path.glob("*/run.json"))
    code, out, err = dpaudit("verify", folder, "--key", keys / "key.pub")
    assert (code, out) == (0, "")
    assert "9 files as released 20" in err and "signed by" in err and "evidence level 2" in err
    for place in (folder, folder / "report"):
        code, _, err = dpaudit("report", run, "--out", place)
        assert code == 2 and "inside a release" in err
    (run / "report").symlink_to(folder)
    assert dpaudit("report", run)[0] == 2
    code, _, err = dpaudit("report", folder, "--out", tmp_path / "report")
    assert code == 2 and "folder, and no" in err
    found = json.loads(dpaudit("verify", folder, "--unsigned", "--json")[1])
    assert (found["verdict"], found["signer"]) == ("pass", None)
    code, out, _ = dpaudit("verify", folder, "--key", keys / "key.pub", "--level", "4")
    assert code == 1 and "level 4 is asked for" in out
    for arguments, said in (
        ((folder,), "Give either --key FILE.pub"),
        ((folder, "--key", keys / "key.pub", "--unsigned"), "Give either --key FILE.pub"),
        ((folder, "--key", keys / "key"), "this is a private key"),
        ((folder, "--key", keys / "key.pub", "--data", "x.csv"), "--authority, --level"),
        (
            (
                folder,
                "--key",
                keys / "key.pub",
                "--tokenizer",
                Path(__file__).parents[2] / "examples/runs/bbc-median",
            ),
            "--authority, --level",
        ),
        ((tmp_path / "nowhere", "--key", keys / "key.pub"), "cannot be read"),
        ((keys / "key", "--key", keys / "key.pub"), "cannot be read"),
        ((run, "--key", keys / "key.pub"), "This is a run, and no release folder"),
        (("s3://bucket/texts", "--key", keys / "key.pub"), "copy it here first"),
    ):
        code, out, err = dpaudit("verify", *arguments)
        assert (code, out) == (2, ""), err
        assert said in err


def test_verifying_needs_neither_the_run_nor_what_generates(released: Releases, keys: Path) -> None:
    """In an interpreter that cannot import what `pip install dpaudit` does not bring."""
    import subprocess

    folder, _ = released()
    program = f"""
import sys
class Absent:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in ("pyarrow", "datasets", "torch", "transformers", "pandas"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent)
from dpaudit.commands.cli import main
main(["verify", {str(folder)!r}, "--key", {str(keys / "key.pub")!r}])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# --- a hundred changes ----------------------------------------------------------------------------


def a_file(folder: Path, chance: random.Random) -> Path:
    return chance.choice(sorted(path for path in folder.rglob("*") if path.is_file()))


def flip(folder: Path, other: Path, chance: random.Random) -> None:
    path = a_file(folder, chance)
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def cut(folder: Path, other: Path, chance: random.Random) -> None:
    path = a_file(folder, chance)
    content = path.read_bytes()
    path.write_bytes(content[: chance.randrange(len(content))])


def extend(folder: Path, other: Path, chance: random.Random) -> None:
    with a_file(folder, chance).open("ab") as file:
        file.write(chance.choice([b"\0", b"\nx", b'{"text": "more"}\n']))


def remove(folder: Path, other: Path, chance: random.Random) -> None:
    a_file(folder, chance).unlink()


def add(folder: Path, other: Path, chance: random.Random) -> None:
    place = chance.choice([folder, folder / "data", folder / "report", folder / "new"])
    place.mkdir(exist_ok=True)
    (place / chance.choice(["a.txt", ".hidden", "test.parquet", "run.json"])).write_text("x")


def rename(folder: Path, other: Path, chance: random.Random) -> None:
    path = a_file(folder, chance)
    path.rename(path.with_name(f"{path.name}.old"))


def swap(folder: Path, other: Path, chance: random.Random) -> None:
    """A file of another release, which is signed with the same key."""
    paths = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    differing = [
        path for path in paths if (folder / path).read_bytes() != (other / path).read_bytes()
    ]
    shutil.copy(other / chance.choice(differing), folder / chance.choice(differing))


def link(folder: Path, other: Path, chance: random.Random) -> None:
    path = a_file(folder, chance)
    outside = folder.parent / f"outside{chance.random()}"
    path.rename(outside)
    path.symlink_to(outside)


def edit_payload(folder: Path, other: Path, chance: random.Random) -> None:
    found = payloads(folder)
    document = chance.choice(found)
    subject = chance.choice(document["subject"])
    chance.choice(
        [
            lambda: document["subject"].remove(subject),
            lambda: subject["digest"].update(sha256=f"{chance.getrandbits(256):064x}"),
            lambda: found[0]["predicate"]["passedTests"].pop(),
            lambda: found[1]["predicate"].update(timeCreated="2020-01-01T00:00:00Z"),
            lambda: found[1]["predicate"]["properties"].pop(),
            lambda: entry(found[0], "audit")["annotations"].update(
                evidence=chance.choice([0, 1, 3, 4])
            ),
            lambda: entry(found[0], "claim")["annotations"].update(epsilon=0.25),
        ]
    )()
    attest(folder, found)


PLANTS = (flip, cut, extend, remove, add, rename, swap, link, edit_payload, flip)


def test_a_hundred_changed_folders_and_none_verifies(
    released: Releases, keys: Path, tmp_path: Path
) -> None:
    (folder, _), (other, _) = released(), released(sizes=(5, 4, 3, 4), seed=1)
    key = read_public_key(keys / "key.pub")
    assert verify_folder(folder, key).verdict == verify_folder(other, key).verdict == "pass"
    for number in range(100):
        chance, copy = random.Random(number), tmp_path / "copies" / str(number) / "texts"
        shutil.copytree(folder, copy)
        PLANTS[number % len(PLANTS)](copy, other, chance)
        same = {
            path.relative_to(folder): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        } == {
            path.relative_to(copy): path.read_bytes() for path in copy.rglob("*") if path.is_file()
        }
        assert not same or any(path.is_symlink() for path in copy.rglob("*")), (
            "a plant changes something"
        )
        found = verify_folder(copy, key)
        assert found.verdict == "fail" and found.problems, (
            number,
            PLANTS[number % len(PLANTS)].__name__,
        )


def test_a_folder_that_nobody_can_read(tmp_path: Path, keys: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        verify_folder(tmp_path / "nowhere", None)
    many = tmp_path / "many"
    many.mkdir()
    for number in range(1100):
        (many / str(number)).touch()
    (said,) = verify_folder(many, None).problems
    assert (said.code, said.values["most"]) == ("released.too-many-files", 1000)


def test_a_file_of_any_size_takes_no_time(released: Releases, problems: Problems) -> None:
    """Holes take no room in an archive, and hours to read."""
    folder, _ = released()
    for name in ("more.bin", "README.md", "data/train.parquet"):
        with (folder / name).open("ab") as file:
            file.truncate(1 << 42)
    assert {(problem.code, problem.values["name"]) for problem in problems(folder)} == {
        ("released.added", "more.bin"),
        ("released.changed", "README.md"),
        ("released.changed", "data/train.parquet"),
    }
