"""A run directory's digests rewritten, to hide a change or as a crash would have left them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dpaudit.runs import InputError, RunReader
from dpaudit.runs.journal import Journal

LAST = ("run.json", "samples.jsonl")


def journal_of(run: Path, entries: Iterable[tuple[str, str]]) -> str:
    """A journal of these digests and names, chained as it should be, for any run.json."""
    begun: Any = SimpleNamespace(nonce=None, commitment=None)
    with suppress(InputError):
        begun = RunReader(run).manifest
    journal, lines = Journal(begun), []
    for digest, name in entries:
        lines.append(journal.entry(digest, name))
        if name not in journal.digests or name.startswith("steps/"):
            journal.add(digest, name)
    return "".join(lines)


def entries_of(run: Path) -> list[tuple[str, str]]:
    """Digest and name of every file that is there, as a journal of it would list them."""
    names = sorted(p.relative_to(run).as_posix() for p in run.rglob("*") if p.is_file())
    names = [
        name
        for name in names
        if name not in (*LAST, "hashes", "journal")
        and not name.startswith(("baseline/", "report/"))
    ]
    names += [name for name in LAST if (run / name).is_file()]
    return [entry_of(run, name) for name in names]


def entry_of(run: Path, name: str) -> tuple[str, str]:
    """Digest and name of a file."""
    return hashlib.sha256((run / name).read_bytes()).hexdigest(), name


def list_digests(run: Path, *more: tuple[str, str]) -> None:
    """Forge `hashes`, with entries that no file has, or that a file had before."""
    entries = entries_of(run)
    last = [entry for entry in entries if entry[1] in LAST]
    (run / "hashes").write_text(
        journal_of(run, [*entries[: len(entries) - len(last)], *more, *last])
    )


def unfinish(run: Path) -> None:
    """What a crash leaves of a finished run: neither `hashes` nor an entry of what is not there."""
    (run / "hashes").unlink()
    (run / "samples.jsonl").unlink(missing_ok=True)
    (run / "journal").write_text(
        journal_of(run, [entry for entry in entries_of(run) if entry[1] not in LAST])
    )


def append_entries(run: Path, *names: str) -> None:
    """Chain entries of these names to `hashes`, with a digest of nothing that is there."""
    entries = [(line[:64], line[66:]) for line in (run / "hashes").read_text().splitlines()[1::2]]
    (run / "hashes").write_text(journal_of(run, [*entries, *(("0" * 64, name) for name in names)]))
