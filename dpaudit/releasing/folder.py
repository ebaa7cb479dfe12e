"""Release folders: from an audited run, whole or not at all."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

from securesystemslib.signer import CryptoSigner

from dpaudit.auditing.disclosure import public_form
from dpaudit.mechanisms.claims import ClaimKind
from dpaudit.releasing.attestation import Beside, envelopes, predicates
from dpaudit.releasing.files import read_fields
from dpaudit.releasing.marks import mark_of
from dpaudit.releasing.policy import PolicyFile
from dpaudit.releasing.stamp import read_stamps
from dpaudit.releasing.texts import has_labels, rows_of, split_rows, tables
from dpaudit.reports.annexes import render_dpia, render_hipaa, render_questions
from dpaudit.reports.card import Released, render_card
from dpaudit.reports.deployment import render_deployment
from dpaudit.reports.write import documents, write_files
from dpaudit.results import AuditResult
from dpaudit.results.attestation import SIGN_OFFS
from dpaudit.results.publication import About, ReleasedFolder, SignedOff
from dpaudit.results.quality import Quality
from dpaudit.results.release_layout import CARD, DPIA, HIPAA, QUESTIONS, REGISTRY, REPORT
from dpaudit.runs import InputError, RunReader
from dpaudit.runs.batches import Sample
from dpaudit.runs.layout import ATTESTATION, SAMPLES

_ABOUT = "`dpaudit release --about-template` lists and explains the fields."


class RefusedError(Exception):
    """A run that is not released. `reasons`: sentences."""

    def __init__(self, *reasons: str) -> None:
        super().__init__(" ".join(reasons))
        self.reasons = reasons


def read_about(path: Path | None) -> About:
    """Read a publisher's description of the texts in a YAML file; nothing without one.

    Raises:
        InputError: the file is none.
    """
    if path is None:
        return About()
    return read_fields(path, About, "a YAML description", _ABOUT)[0]


def about_template() -> str:
    """Return a file for `read_about` that explains each field, all of them commented out."""
    return resources.files("dpaudit.releasing").joinpath("about-template.yaml").read_text("utf-8")


def require_signer(policy: PolicyFile | None, signer: CryptoSigner | None) -> None:
    """Raise RefusedError where a policy names signers, and this is none of them."""
    wanted = None if policy is None else policy.policy.signers
    if wanted is None:
        return
    if signer is None:
        raise RefusedError(
            "policy.signers: the policy names who may sign, and this release would be unsigned."
        )
    if signer.public_key.keyid not in wanted:
        raise RefusedError(
            f"policy.signers: the policy does not name the key {signer.public_key.keyid}."
        )


def require_new(out: Path) -> None:
    """Refuse a place for a release where something is: a release is written once, as a whole.

    Raises:
        InputError: something is there.
    """
    try:
        os.lstat(out)
    except FileNotFoundError:
        return
    except OSError as error:  # such as a name that is too long
        raise InputError(
            str(out), f"cannot be written ({error.strerror}).", "Name another --out."
        ) from None
    raise InputError(
        str(out),
        "there is something already, and releases are not replaced.",
        "Name another --out.",
    )


def require_split(reader: RunReader, test_share: float) -> None:
    """Refuse texts that cannot be split. The audit judges everything else about them.

    Raises:
        InputError: they cannot.
    """
    try:
        rows = rows_of(reader.samples(), reader.where(SAMPLES))
    except InputError:
        return
    split_rows(rows, test_share)


def write_release(
    result: AuditResult,
    reader: RunReader,
    out: Path,
    *,
    signer: CryptoSigner | None = None,
    about: About | None = None,
    quality: Quality | None = None,
    test_share: float | None = None,
    stamps: Sequence[Path] = (),
    sign_offs: tuple[bytes, tuple[SignedOff, ...]] = (b"", ()),
    now: datetime | None = None,
) -> ReleasedFolder:
    """Write a passed run's release folder.

    Args:
        result: the audit's, in its internal form, and held to the policy if there is one.
        reader: of the run that was audited.
        out: the folder, which is made.
        signer: None leaves it unsigned.
        about: what the publisher says.
        quality: the run's evaluation, None without one.
        test_share: of the texts, in a split of their own; None for a single split.
        stamps: files of time stamping authorities' answers about the run's commitment or head.
        sign_offs: of the run, checked: their file, empty without one, and who signed.
        now: when; by default the clock's.

    Raises:
        RefusedError: the audit was no pass, or the run is not the one that was audited any more.
        InputError: there is something at `out`, the texts cannot be written, or cannot be split; a
            stamp is not of this run.
        OSError: the folder cannot be written. Nothing is left of it then.
    """
    settings = result.run.settings
    if result.verdict != "pass" or result.claim is None or settings is None:
        raise RefusedError(f"the audit did not pass: {result.guarantee}")
    now, about, kind = now or datetime.now(UTC), about or About(), result.claim.kind
    public = public_form(result)
    seen = hashlib.sha256()
    rows = rows_of(_seen(reader.samples(), seen), reader.where(SAMPLES))
    if seen.hexdigest() != result.run.digests.get(SAMPLES):
        raise RefusedError("samples.jsonl is not what was audited: it was changed since.")
    if not rows:
        raise RefusedError("there are no texts.")
    splits = split_rows(rows, test_share)
    texts = {split: len(of) for split, of in splits.items()}
    labels = Counter(row.label for row in rows)
    # Public together with its commitment alone, whose nonce keeps others from testing guesses.
    head = None if settings.commitment is None else reader.head_or_none()
    signed_off, reviewers = sign_offs
    answers = read_stamps(stamps, settings.commitment, head)
    said = predicates(public, kind, Beside(settings.commitment, head, about.revocations), now)
    mark = mark_of(said, public.run.settings)
    card = Released(
        public,
        kind,
        about,
        texts,
        has_labels(splits),
        quality,
        mark,
        reviewers,
        tuple(answers),
        labels,
    )
    files: dict[str, bytes] = {
        CARD: render_card(card).encode(),
        REGISTRY: render_deployment(public, result.claim, about, now.date()).encode(),
        **_annexes(public, kind, about),
        **tables(splits, mark),
        **{f"{REPORT}/{name}": _bytes(text) for name, text in documents(public).items()},
        **answers,
        **({SIGN_OFFS: signed_off} if signed_off else {}),
    }
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    files[ATTESTATION] = envelopes(said.about(digests), signer)
    _write_whole(files, out)
    keyid = None if signer is None else signer.public_key.keyid
    return ReleasedFolder(
        folder=str(out),
        release=said.release,
        texts=texts,
        evidence=public.evidence,
        signer=keyid,
        files=digests,
    )


def _annexes(public: AuditResult, kind: ClaimKind, about: About) -> dict[str, bytes]:
    """Return drafts for the house's own files by their paths; none where it says nothing."""
    if about == About():
        return {}
    found = {
        QUESTIONS: render_questions(public, kind, about).encode(),
        DPIA: render_dpia(public, kind, about).encode(),
    }
    if about.hipaa is not None:
        found[HIPAA] = render_hipaa(public, kind, about).encode()
    return found


def _seen(samples: Iterator[Sample], digest: hashlib._Hash) -> Iterator[Sample]:
    """Yield the samples, and digest the file that they are all of."""
    for sample in samples:
        digest.update(sample.line().encode("utf-8", "surrogatepass"))
        yield sample


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def _write_whole(files: Mapping[str, bytes], out: Path) -> None:
    """Write all files, or no folder: they are written beside it, and renamed at the end.

    Everybody may read them, for they are what is published.
    """
    require_new(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=".release.", suffix=".part", dir=out.parent))
    try:
        folders: dict[str, dict[str, str | bytes]] = {}
        for name, content in files.items():
            folder, _, last = name.rpartition("/")
            folders.setdefault(folder, {})[last] = content
        for folder, held in folders.items():
            write_files(held, partial / folder)
        for path in (*partial.rglob("*"), partial):
            path.chmod(0o755 if path.is_dir() else 0o644)
        # fails where something else but an empty folder came into being there
        os.rename(partial, out)
    except BaseException:
        with suppress(OSError):
            shutil.rmtree(partial)
        raise
