"""Marks, revocations, sign-offs and time stamps hold for their own release, and for no other."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dpaudit import __version__
from dpaudit.api import publishing, vouching
from dpaudit.api.vouching import provenance
from dpaudit.releasing.attestation import Attestation, envelopes
from dpaudit.releasing.keys import make_key, read_public_key, read_signer
from dpaudit.releasing.revocation import read_list, revoke
from dpaudit.releasing.sign_off import sign_off
from dpaudit.releasing.stamp import request
from dpaudit.releasing.verify import verify_folder
from dpaudit.results.attestation import SIGN_OFFS
from dpaudit.results.publication import About
from dpaudit.results.release_layout import SIDE_CAR
from dpaudit.runs import InputError, RunReader
from dpaudit.runs.layout import ATTESTATION
from tests.needs import needed

Releases = Callable[..., tuple[Path, Any]]
Command = Callable[..., tuple[int, str, str]]
NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)
PARQUET, LINES, CARD = "data/train.parquet", "jsonl/train.jsonl", "README.md"


def codes(found: Any) -> list[str]:
    return [problem.code.removeprefix("released.") for problem in found.problems]


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve on this machine; the block gets the address."""
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def reattest(folder: Path, signer: Path) -> None:
    """Sign the folder's files as they are now, as a signer can who lies."""
    path = folder / ATTESTATION
    found = Attestation.of(path.read_bytes())
    subject = tuple(
        each.model_copy(
            update={
                "digest": each.digest.model_copy(
                    update={"sha256": hashlib.sha256((folder / each.name).read_bytes()).hexdigest()}
                )
            }
        )
        for each in found.found.subject
    )
    both = (each.model_copy(update={"subject": subject}) for each in (found.found, found.summary))
    path.write_bytes(envelopes(both, read_signer(signer)))


# --- marks ----------------------------------------------------------------------------------------


def test_a_single_file_leads_to_its_attestation(
    released: Releases, keys: Path, tmp_path: Path
) -> None:
    folder, _ = released(release={"about": About(revocations="https://example.org/revoked")})
    public, alone = keys / "key.pub", tmp_path / "alone.parquet"
    shutil.copy(folder / PARQUET, alone)
    found = provenance(alone)
    assert (found.verdict, found.attestation, found.signer) == ("marked", None, None)
    mark, (run,) = found.mark, {path.parent for path in tmp_path.glob("*/run.json")}
    assert mark.synthetic and mark.generator.dpaudit == __version__
    assert (mark.run, mark.revocations) == (
        RunReader(run).manifest.commitment,
        "https://example.org/revoked",
    )
    assert mark.release == verify_folder(folder, None).release
    assert provenance(alone, attestation=folder).verdict == "attested"
    found = provenance(alone, attestation=folder / ATTESTATION, key=public)
    assert (found.verdict, found.signer) == ("signed", read_public_key(public).keyid)
    assert codes(provenance(alone, key=public)) == ["no-attestation"]
    other = provenance(alone, attestation=folder, key=keys / "other.pub")
    assert (other.verdict, codes(other)) == ("fail", ["no-signature"])
    for name in (PARQUET, LINES, CARD):
        assert provenance(folder / name).mark == mark
    pyarrow = pytest.importorskip("pyarrow.parquet")
    metadata = pyarrow.read_schema(alone).metadata
    assert json.loads(metadata[b"dpaudit"]) == mark.model_dump()


def test_a_side_car_that_was_rewritten_is_refused(released: Releases, keys: Path) -> None:
    folder, _ = released()
    beside = folder / f"{LINES}{SIDE_CAR}"
    fields = json.loads(beside.read_text())
    fields["mark"] |= {"revocations": "https://example.com/old", "run": "0" * 64}
    beside.chmod(0o644)
    beside.write_text(json.dumps(fields))
    found = provenance(folder / LINES, key=keys / "key.pub")
    assert (found.verdict, codes(found), found.signer) == ("fail", ["unattested"], None)


def test_a_file_without_its_mark_says_nothing(released: Releases, tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder, _ = released()
    shutil.copy(folder / LINES, tmp_path / "alone.jsonl")
    pq.write_table(pa.table({"text": ["dpaudit", '{"mark_version":1}']}), tmp_path / "bare.parquet")
    whole = (folder / PARQUET).read_bytes()
    for name, content in {
        "cut": whole[:-9],
        "long": whole[:-8] + b"\xff\xff\xff\x7fPAR1",
        "deep": b"PAR1" + b"\x19" * 5_000 + (5_000).to_bytes(4, "little") + b"PAR1",
        "empty": b"PAR1PAR1",
        "card": b"---\ndpaudit: 1\n---\n",
        "open": b"---\n",
        "none": b"",
    }.items():
        (tmp_path / name).write_bytes(content)
    shutil.copy(folder / LINES, tmp_path / "other.jsonl")
    shutil.copy(folder / f"{LINES}.provenance.json", tmp_path / "other.jsonl.provenance.json")
    names = ("alone.jsonl", "bare.parquet", "cut", "long", "deep", "empty", "card", "open", "none")
    for name in (*names, "other.jsonl", "nowhere", "."):
        with pytest.raises(InputError):
            provenance(tmp_path / name)


def test_a_mark_of_another_attestation_is_refused(
    released: Releases, keys: Path, tmp_path: Path
) -> None:
    """Also where the key signed the wrong mark: its own other release's, or none."""
    folder, _ = released()
    other, _ = released(seed=7)
    key = read_public_key(keys / "key.pub")
    assert verify_folder(folder, key).release != verify_folder(other, key).release
    for name in (PARQUET, CARD):
        forged = Path(shutil.copytree(folder, tmp_path / f"forged-{name.replace('/', '-')}"))
        shutil.copy(other / name, forged / name)
        found = provenance(forged / name)
        assert (found.verdict, codes(found)) == ("fail", ["unattested", "other-mark"])
        reattest(forged, keys / "key")
        assert codes(verify_folder(forged, key)) == ["other-mark"]
        assert codes(provenance(forged / name)) == ["other-mark"]
    (forged / f"{LINES}.provenance.json").write_text("{}")
    (forged / CARD).write_text("no front matter")
    reattest(forged, keys / "key")
    assert codes(verify_folder(forged, key)) == ["no-mark"] * 2


def test_errors_name_what_was_typed(dpaudit: Command, tmp_path: Path, keys: Path) -> None:
    bbc = Path(__file__).parents[2] / "examples/runs/bbc-median"
    run = shutil.copytree(bbc, tmp_path / "run")
    said = {"--name": "Ada", "--role": "officer", "--read": "texts", "--accepts": "all of it"}

    def first(*words: Any) -> str:
        code, _, err = dpaudit(*words)
        assert code == 2
        return err.removeprefix("dpaudit: ").partition(":")[0]

    assert first("stamp", "zz", "--out", "x.tsq") == "DIGEST"
    for option in said:
        words = [word for pair in (said | {option: "\n" * 5000}).items() for word in pair]
        assert first("sign-off", run, "--key", keys / "key", *words) == option
    # a file that is called as an argument is
    words = [word for pair in said.items() for word in pair]
    assert first("sign-off", run, "--key", "name", *words) == "name"


# --- revocations ----------------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The address of a server that answers with the file that is asked for."""

    class Files(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = tmp_path / self.path.lstrip("/")
            content = path.read_bytes() if path.is_file() else b""
            self.send_response(200 if path.is_file() else 404)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None: ...

    with serving(Files) as address:
        yield address


def test_a_revoked_release_is_refused(
    released: Releases, keys: Path, tmp_path: Path, dpaudit: Command, served: str
) -> None:
    folder, _ = released(release={"about": About(revocations=f"{served}/revoked")})
    other, _ = released(seed=7)
    key = read_public_key(keys / "key.pub")
    signing = ("--key", keys / "key", "--out", "revoked")
    verify = ("verify", folder, "--key", keys / "key.pub", "--revocations")

    code, _, err = dpaudit(*verify[:-1])
    assert code == 0 and f"--revocations {served}/revoked" in " ".join(err.split())
    assert dpaudit(*verify, f"{served}/revoked")[0] == 2, "nobody knows"
    assert dpaudit("revoke", *signing)[0] == 0
    assert dpaudit("revoke", other, *signing, "--reason", "of a draft")[0] == 0
    for place in ("revoked", f"{served}/revoked"):
        assert dpaudit(*verify, place)[:2] == (0, "")
    assert dpaudit("revoke", folder / ATTESTATION, *signing, "--reason", "Wrong claim")[0] == 0
    for place in ("revoked", f"{served}/revoked"):
        code, out, _ = dpaudit(*verify, place)
        assert code == 1 and "Wrong claim" in out
    found = provenance(folder / PARQUET, key=keys / "key.pub", revocations=tmp_path / "revoked")
    assert (found.verdict, codes(found)) == ("fail", ["revoked"])

    whole = (tmp_path / "revoked").read_bytes()
    for name, content in {
        "cut": whole[:-40],
        "line": whole[:-1],
        "empty": b"",
        "twice": whole * 2,
        "large": b"x" * (1 << 21),
        "attestation": (folder / ATTESTATION).read_bytes(),
        "changed": whole.replace(b'"sig":"', b'"sig":"AAAA'),
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError):
            read_list(str(tmp_path / name), key)
    for place in ("nowhere", f"{served}/nowhere", "http://127.0.0.1:9/", "https://", "ftp://a/b"):
        with pytest.raises(InputError):
            read_list(place, key)
    assert dpaudit("verify", folder, "--unsigned", "--revocations", "revoked")[0] == 2


def test_a_list_of_revocations_may_be_too_old(
    released: Releases, keys: Path, tmp_path: Path, dpaudit: Command
) -> None:
    folder, _ = released()
    key, place = read_public_key(keys / "key.pub"), tmp_path / "revoked"
    revoke(None, read_signer(keys / "key"), "", place, NOW)
    assert read_list(str(place), key, now=NOW + timedelta(days=4000))
    for age, days in (
        (timedelta(days=3, seconds=-1), 3),
        (timedelta(0), 1),
        (timedelta(hours=-23), 1),  # of a clock that is ahead
    ):
        assert read_list(str(place), key, days, NOW + age).made
    for age, days in ((timedelta(days=3), 3), (timedelta(days=-2), 3)):
        with pytest.raises(InputError):
            read_list(str(place), key, days, NOW + age)

    revoke(None, read_signer(keys / "key"), "", place, datetime.now(UTC) - timedelta(days=40))
    verify = ("verify", folder, "--key", keys / "key.pub", "--revocations-days")
    for days, code in (("41", 0), ("40", 2)):
        assert dpaudit(*verify, days, "--revocations", place)[0] == code
    assert dpaudit(*verify, "41")[0] == 2, "no list"


def test_releases_of_one_second_have_ids_of_their_own(released: Releases) -> None:
    times = [NOW.replace(microsecond=each) for each in (1, 2)]
    folders = [released(release={"now": now})[0] for now in times]
    assert len({verify_folder(folder, None).release for folder in folders}) == 2


def test_another_key_revokes_nothing(
    released: Releases, keys: Path, tmp_path: Path, dpaudit: Command
) -> None:
    folder, _ = released()
    unsigned, _ = released(release={"signer": None}, seed=7)
    other = ("--key", keys / "other", "--out", "others", "--reason", "x")
    for place in (folder, unsigned, tmp_path, tmp_path / "nowhere"):
        assert dpaudit("revoke", place, *other)[0] == 2
    assert not (tmp_path / "others").exists()
    assert dpaudit("revoke", *other[:4])[0] == 0
    code, out, err = dpaudit("verify", folder, "--key", keys / "key.pub", "--revocations", "others")
    assert (code, out) == (2, "") and read_public_key(keys / "key.pub").keyid in err
    # nor does a list of one key become another's
    assert dpaudit("revoke", folder, "--key", keys / "key", *other[2:])[0] == 2
    assert dpaudit("revoke", folder, *other[:4])[0] == 2, "no reason"


# --- sign-offs ------------------------------------------------------------------------------------


def signed(folder: Path, head: str, key: Path, name: str = "Ada") -> None:
    if not key.exists():
        make_key(key)
    sign_off(
        folder,
        head,
        read_signer(key),
        name=name,
        role="officer",
        read=["the report"],
        accepts="epsilon 3",
        now=NOW,
    )


def test_a_policy_counts_reviewers_and_a_folder_shows_them(
    make_run: Callable[..., Any],
    keys: Path,
    tmp_path: Path,
    dpaudit: Command,
    empty_figures: None,
) -> None:
    pytest.importorskip("pyarrow")
    run = make_run(aggregator="mean", sizes=(3, 4, 5, 4)).path
    policy = tmp_path / "policy.yaml"
    policy.write_text("policy_version: 1\nsign_off: {reviewers: 2}\n")
    said = ("--name", "Ada", "--role", "officer", "--read", "all texts", "--accepts", "epsilon 3")
    release = ("release", run, "--key", keys / "key", "--policy", policy, "--out", "texts")
    for name in ("ada", "bo"):
        make_key(tmp_path / name)
        assert dpaudit("verify", run, "--policy", policy)[0] == 1
        assert dpaudit(*release)[0] == 1
        assert dpaudit("sign-off", run, "--key", tmp_path / name, *said)[0] == 0
        assert dpaudit("sign-off", run, "--key", tmp_path / name, *said)[0] == 2, "once each"
    assert dpaudit(*release)[0] == 0
    key = read_public_key(keys / "key.pub")
    found = verify_folder(tmp_path / "texts", key)
    assert (found.verdict, len(found.sign_offs)) == ("pass", 2)
    assert {each.key for each in found.sign_offs} == {
        read_public_key(tmp_path / f"{name}.pub").keyid for name in ("ada", "bo")
    }
    # the folder alone must meet what the policy asks
    lines = (tmp_path / "texts" / SIGN_OFFS).read_bytes().splitlines(keepends=True)
    (tmp_path / "texts" / SIGN_OFFS).write_bytes(lines[0])
    reattest(tmp_path / "texts", keys / "key")
    asked = ("verify", tmp_path / "texts", "--key", keys / "key.pub", "--policy", policy, "--json")
    problems = json.loads(dpaudit(*asked)[1])["problems"]
    assert [each["code"] for each in problems] == ["released.few-sign-offs"]
    ada = read_public_key(tmp_path / "ada.pub").keyid
    policy.write_text(f"policy_version: 1\nsign_off: {{reviewers: 2, keys: [{ada}]}}\n")
    assert dpaudit("verify", run, "--policy", policy)[0] == 1, "one of them does not count"


@pytest.mark.parametrize("fault", ["missing", "unnamed"])
def test_a_run_that_lacks_a_file_is_not_signed_off(
    make_run: Callable[..., Any], tmp_path: Path, fault: str
) -> None:
    run = make_run(aggregator="mean").path
    last = sorted((run / "steps").iterdir())[-1]
    if fault == "missing":
        last.unlink()
    else:  # the last entries, of two lines each, are cut off
        hashes = run / "hashes"
        hashes.write_text("".join(hashes.read_text().splitlines(keepends=True)[:-4]))
    make_key(tmp_path / "ada")
    said: dict[str, Any] = {"name": "Ada", "role": "officer", "read": ["texts"], "accepts": "3"}
    with pytest.raises(InputError) as refused:
        vouching.sign_off(run, key=tmp_path / "ada", **said)
    assert Path(refused.value.where).is_relative_to(run)
    assert not (run / "report" / SIGN_OFFS).exists()


def test_what_a_policy_was_held_to_is_released(
    make_run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sign-offs that change after the policy was held to them do not reach the folder."""
    pytest.importorskip("pyarrow")
    run = make_run(aggregator="mean", sizes=(3, 4, 5, 4)).path
    head, policy = RunReader(run).head(), tmp_path / "policy.yaml"
    policy.write_text("policy_version: 1\nsign_off: {reviewers: 1}\n")
    signed(run / "report", head, tmp_path / "ada")
    held = (run / "report" / SIGN_OFFS).read_bytes()

    def meanwhile(where: Path) -> None:
        signed(run / "report", head, tmp_path / "bo")

    monkeypatch.setattr("dpaudit.api.publishing.require_worth", meanwhile)
    publishing.release(run, tmp_path / "texts", unsigned=True, policy=policy)
    assert (tmp_path / "texts" / SIGN_OFFS).read_bytes() == held


def test_a_sign_off_of_another_run_is_refused(
    make_run: Callable[..., Any],
    released: Releases,
    keys: Path,
    tmp_path: Path,
    dpaudit: Command,
) -> None:
    other = make_run(aggregator="mean", seed=7).path
    signed(tmp_path / "theirs", RunReader(other).head(), tmp_path / "ada")
    folder, _ = released()
    (run,) = {path.parent for path in tmp_path.glob("*/run.json")} - {other}
    (run / "report").mkdir(exist_ok=True)
    shutil.copy(tmp_path / "theirs" / SIGN_OFFS, run / "report")
    policy = tmp_path / "policy.yaml"
    policy.write_text("policy_version: 1\nsign_off: {reviewers: 1}\n")
    assert dpaudit("release", run, "--unsigned", "--out", "texts")[0] == 2
    code, out, _ = dpaudit("verify", run, "--policy", policy)
    assert code == 1 and "policy.sign-off" in out
    # where the release's key signed it all the same, or what it says was changed
    own = tmp_path / "own"
    signed(own, RunReader(run).head(), tmp_path / "ada")
    content = (own / SIGN_OFFS).read_bytes()
    forged = content.replace(b'"sig":"', b'"sig":"AAAA')
    key = read_public_key(keys / "key.pub")
    for lines, code in (
        ((tmp_path / "theirs" / SIGN_OFFS).read_bytes(), "sign-off-of-other-run"),
        (forged, "sign-off-not-signed"),
        (content * 2, "sign-offs-unreadable"),
        (content[:-9], "sign-offs-unreadable"),
        (content, None),
    ):
        (folder / SIGN_OFFS).write_bytes(lines)
        name_it(folder, SIGN_OFFS)
        reattest(folder, keys / "key")
        assert codes(verify_folder(folder, key)) == ([] if code is None else [code])


def name_it(folder: Path, name: str) -> None:
    """Have the attestation name one more file."""
    path = folder / ATTESTATION
    found = Attestation.of(path.read_bytes())
    if name in {each.name for each in found.found.subject}:
        return
    more = found.found.subject[0].model_copy(update={"name": name})
    subject = (*found.found.subject, more)
    both = (each.model_copy(update={"subject": subject}) for each in (found.found, found.summary))
    path.write_bytes(envelopes(both, None))


# --- time stamps ----------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A stamping authority: a function that stamps a digest. `root.pem` is beside the answers."""
    pytest.importorskip("rfc3161_client")
    needed(shutil.which("openssl") is not None, "no openssl here")
    folder = tmp_path_factory.mktemp("authority")
    keys = [rsa.generate_private_key(65537, 2048) for _ in range(2)]
    names = [
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("Root", "Stamps")
    ]
    for number, (stem, extensions) in enumerate(
        {
            "root": [(x509.BasicConstraints(True, None), True)],
            "tsa": [(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.TIME_STAMPING]), True)],
        }.items()
    ):
        builder = (
            x509.CertificateBuilder()
            .subject_name(names[number])
            .issuer_name(names[0])
            .public_key(keys[number].public_key())
            .serial_number(number + 1)
            .not_valid_before(datetime.now(UTC) - timedelta(1))
            .not_valid_after(datetime.now(UTC) + timedelta(1))
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        for identifier in (
            x509.SubjectKeyIdentifier.from_public_key(keys[number].public_key()),
            x509.AuthorityKeyIdentifier.from_issuer_public_key(keys[0].public_key()),
        ):
            builder = builder.add_extension(identifier, False)
        certificate = builder.sign(keys[0], SHA256()).public_bytes(Encoding.PEM)
        (folder / f"{stem}.pem").write_bytes(certificate)
    secret = keys[1].private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    (folder / "tsa.key").write_bytes(secret)
    (folder / "serial").write_text("01\n")
    (folder / "conf").write_text(
        f"[t]\nserial = {folder}/serial\nsigner_digest = sha256\ndefault_policy = 1.2.3.4\n"
        "digests = sha256, sha512\n"
    )

    def stamp(digest: str) -> Path:
        (folder / "request.tsq").write_bytes(request(digest))
        answer = folder / f"{digest[:16]}.tsr"
        made_with = "-signer tsa.pem -inkey tsa.key -config conf -section t"
        words = f"openssl ts -reply -queryfile request.tsq {made_with} -out {answer}"
        subprocess.run(words.split(), cwd=folder, check=True, capture_output=True)
        return answer

    return stamp


def test_openssl_and_dpaudit_agree_on_a_stamp(
    authority: Callable[[str], Path], tmp_path: Path, dpaudit: Command
) -> None:
    digest, other = "ab" * 32, "cd" * 32
    answer = authority(digest)
    root = answer.parent / "root.pem"
    verify = ("stamp", "--answer", answer, "--authority")
    for asked, wanted in ((digest, 0), (other, 1)):
        line = ["openssl", "ts", "-verify", "-digest", asked, "-in", answer, "-CAfile", root]
        assert (subprocess.run(line, check=False, capture_output=True).returncode != 0) == wanted
        assert dpaudit(*verify, root, asked)[0] == wanted
    # an authority of the same name that nobody trusts
    stranger = tmp_path / "stranger.pem"
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Root")])
    key = rsa.generate_private_key(65537, 2048)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime.now(UTC) - timedelta(1))
        .not_valid_after(datetime.now(UTC) + timedelta(1))
        .add_extension(x509.BasicConstraints(True, None), True)
        .sign(key, SHA256())
    )
    stranger.write_bytes(certificate.public_bytes(Encoding.PEM))
    assert dpaudit(*verify, stranger, digest)[0] == 1
    for content in (b"", answer.read_bytes()[:-30], b"x" * (1 << 17), request(digest)):
        (tmp_path / "bad.tsr").write_bytes(content)
        assert dpaudit("stamp", "--answer", "bad.tsr", "--authority", root, digest)[0] == 2
    for arguments in (("--out", "x"), ("--answer", answer), ()):
        assert dpaudit("stamp", "no-digest", *arguments)[0] == 2
    assert dpaudit("stamp", digest, "--out", "new.tsq")[0] == 0
    assert (tmp_path / "new.tsq").read_bytes() == request(digest)


def test_a_folder_shows_when_its_commitment_existed(
    authority: Callable[[str], Path],
    released: Releases,
    make_run: Callable[..., Any],
    keys: Path,
    tmp_path: Path,
    dpaudit: Command,
) -> None:
    run = make_run(aggregator="mean", sizes=(3, 4, 5, 4)).path
    reader, key = RunReader(run), read_public_key(keys / "key.pub")
    stamps = [authority(str(digest)) for digest in (reader.manifest.commitment, reader.head())]
    root = stamps[0].parent / "root.pem"
    release = ("release", run, "--key", keys / "key", "--out", "texts")
    assert dpaudit(*release, "--stamp", authority("ab" * 32))[0] == 2
    assert dpaudit(*release, "--stamp", stamps[0], "--stamp", stamps[0])[0] == 2
    assert dpaudit(*release, "--stamp", stamps[0], "--stamp", stamps[1])[0] == 0
    folder = tmp_path / "texts"
    found = verify_folder(folder, key)
    assert (found.verdict, found.stamps, len(found.unstamped)) == ("pass", {}, 2)
    found = verify_folder(folder, key, authorities=root)
    assert (found.verdict, set(found.stamps)) == ("pass", {"commitment", "head"})
    # the stamp of another digest, signed by the release's key all the same
    shutil.copy(stamps[1], folder / "commitment.tsr")
    reattest(folder, keys / "key")
    assert codes(verify_folder(folder, key, authorities=root)) == ["other-stamp"]
    assert codes(verify_folder(released()[0], key, authorities=root)) == ["no-stamp"]


# --- the hub --------------------------------------------------------------------------------------


def test_only_a_folder_that_verifies_is_pushed(released: Releases, keys: Path) -> None:
    """The hub's own client, against an endpoint that keeps what it is sent."""
    pytest.importorskip("huggingface_hub")
    from dpaudit import RefusedError
    from dpaudit.api.publishing import push_to_hub

    folder, _ = released()
    asked: list[str] = []
    sent: dict[str, bytes] = {}
    deleted: set[str] = set()

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            old = [{"type": "file", "path": "data/test.parquet", "oid": "0" * 40, "size": 1}]
            self.answer(
                old
                if "/tree/" in self.path
                else {
                    "id": "a/b",
                    "sha": "0" * 40,
                    "siblings": [{"rfilename": "data/test.parquet"}],
                }
            )

        def do_POST(self) -> None:
            asked.append(self.path)
            content = self.rfile.read(int(self.headers["Content-Length"]))
            if "/preupload/" in self.path:
                files = [each["path"] for each in json.loads(content)["files"]]
                self.answer(
                    {
                        "files": [
                            {"path": path, "uploadMode": "regular", "shouldIgnore": False}
                            for path in files
                        ]
                    }
                )
            elif "/commit/" in self.path:
                for line in map(json.loads, content.splitlines()):
                    value = line["value"]
                    if line["key"] == "file":
                        sent[value["path"]] = base64.b64decode(value["content"])
                    elif line["key"] == "deletedFile":
                        deleted.add(value["path"])
                commit = f"http://{self.headers['Host']}/datasets/a/b/commit/1"
                self.answer({"commitUrl": commit, "commitOid": "1" * 40})
            else:
                self.answer({"url": f"http://{self.headers['Host']}/datasets/a/b"})

        def answer(self, document: Any) -> None:
            content = json.dumps(document).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None: ...

    with serving(Hub) as endpoint:
        options: dict[str, Any] = {"key": keys / "key.pub", "endpoint": endpoint, "token": "hf_x"}
        assert push_to_hub(folder, "a/b", **options).endswith("/datasets/a/b/commit/1")
        there = {path: (folder / path).read_bytes() for path in verify_folder(folder, None).names}
        assert sent == there | {ATTESTATION: (folder / ATTESTATION).read_bytes()}
        assert deleted == {"data/test.parquet"}
        asked.clear()
        (folder / CARD).write_text("more")
        with pytest.raises(RefusedError):
            push_to_hub(folder, "a/b", **options)
        with pytest.raises(InputError):
            push_to_hub(folder, "a/b", endpoint=endpoint)
        assert asked == []
        other, _ = released()
        with pytest.raises(InputError):
            push_to_hub(other, "a/b", **options | {"endpoint": "http://127.0.0.1:9"})


def test_the_pre_commit_hook_verifies(released: Releases, keys: Path, dpaudit: Command) -> None:
    import yaml

    (hook,) = yaml.safe_load((Path(__file__).parents[2] / ".pre-commit-hooks.yaml").read_text())
    folder, _ = released()
    program, *words = hook["entry"].split()
    assert (program, hook["pass_filenames"]) == ("dpaudit", False)
    assert dpaudit(*words, folder, "--key", keys / "key.pub")[0] == 0
    (folder / CARD).write_text("more")
    assert dpaudit(*words, folder, "--key", keys / "key.pub")[0] == 1
