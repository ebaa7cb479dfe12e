"""Reports on disk: readable by their owner only, and never half-written."""

from __future__ import annotations

import errno
import stat
from collections.abc import Mapping
from pathlib import Path

from dpaudit.reports.audit_document import build
from dpaudit.reports.machine import render_junit
from dpaudit.reports.writers import html, markdown
from dpaudit.results import AuditResult
from dpaudit.results.quality_file import replace_file


class NoPlainFileError(FileExistsError):
    """A file is to be written where something else is: a link, a pipe, a device or a folder."""


def documents(result: AuditResult) -> dict[str, str]:
    """Return report.html, report.json, report.md and junit.xml, by their names."""
    page = build(result)
    return {
        "report.html": html.render(page),
        "report.json": result.to_json(),
        "report.md": markdown.render(page),
        "junit.xml": render_junit(result),
    }


def write_reports(result: AuditResult, folder: Path) -> dict[str, Path]:
    """Write all `documents` by `write_files`; return their paths by format."""
    return dict(
        zip(
            ("html", "json", "markdown", "junit"),
            write_files(documents(result), folder),
            strict=True,
        )
    )


def write_files(files: Mapping[str, str | bytes], folder: Path) -> list[Path]:
    """Write files by their names into `folder`, for their owner alone, and return their paths.

    A folder that does not exist is made for its owner alone; one that exists keeps its permissions.

    Raises:
        NoPlainFileError: what is in the place of one of the files is none.
        OSError: the folder or a file cannot be written. Files that were already there are then
            still whole.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    paths = [folder / name for name in files]
    for path in paths:
        _refuse_special(path)
    for path, content in zip(paths, files.values(), strict=True):
        _refuse_special(path)
        # A lone surrogate cannot be UTF-8; as a backslash escape it reads back as itself in JSON.
        replace_file(
            path,
            content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace"),
        )
    return paths


def _refuse_special(path: Path) -> None:
    """Refuse special files: a rename would replace a device, a pipe or a link by a plain file."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise NoPlainFileError(
            errno.EEXIST, "what is there is no plain file, and is not replaced", str(path)
        )
