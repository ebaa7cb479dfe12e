"""The places of reports and files, and places where they must not be."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dpaudit.runs import InputError
from dpaudit.runs.layout import ATTESTATION, BASELINE, MANIFEST, REPORT, STEPS
from dpaudit.runs.layout import PUBLIC as PUBLIC_TEXTS
from dpaudit.runs.storage import Location as Location
from dpaudit.runs.storage import is_url, open_storage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PUBLIC = "public"
#: Bytes of a report.json that say whom it is for.
_BEGINNING = 1 << 10


def last_part(location: Location) -> str:
    """Return a run's name: the last part of its location."""
    return location.name if isinstance(location, Path) else location.rpartition("/")[2]


def folder_name(location: Location) -> str:
    """Return a run's name; a path such as . is resolved first."""
    return (
        os.path.basename(os.path.realpath(location))
        if isinstance(location, Path)
        else last_part(location)
    )


def reports_of(run_dir: Location) -> Path:
    """Return the default folder for reports: in the run directory, or here for a remote run."""
    return run_dir / REPORT if isinstance(run_dir, Path) else Path(f"{last_part(run_dir)}-{REPORT}")


def inside(run_dir: Location, name: str) -> Location:
    """Return the place of a name in a run directory."""
    return run_dir / name if isinstance(run_dir, Path) else f"{run_dir.rstrip('/')}/{name}"


def baseline_of(run_dir: Location) -> Location | None:
    """Return the place of the public-only texts that `generate` made, or None without any."""
    place = inside(run_dir, BASELINE)
    return place if open_storage(place).exists(PUBLIC_TEXTS) else None


def report_folder(run_dir: Location, audience: str) -> Path:
    """Return the default report folder; a run from elsewhere must not steer writes into it."""
    folder = reports_of(run_dir)
    # A folder of its own: what lies beside a public report would be shared with it.
    for place in (folder, folder / PUBLIC):
        if place.is_symlink():
            raise InputError(
                str(place), "this is a link, which is not followed.", "Name a folder with --out."
            )
    return folder / PUBLIC if audience == PUBLIC else folder


def holds_reports(folder: Path) -> bool:
    """Return whether an earlier audit's reports are there, which must not outlive it."""
    return all((folder / name).is_file() for name in ("report.html", "report.json"))


def location_of(run: str | os.PathLike[str], argument: str = "run") -> Location:
    """Return a run's place: a path, or a URL as it stands. Raises InputError for neither."""
    return run if isinstance(run, str) and is_url(run) else path_of(run, argument)


def path_of(value: str | os.PathLike[str], argument: str) -> Path:
    """Return a path. Raises InputError where the value of this argument is none."""
    if not isinstance(value, str | os.PathLike):
        raise InputError(
            argument,
            f"this is no path, but of type {type(value).__name__}.",
            "Give a str or a Path.",
        )
    if not os.fspath(value):
        raise InputError(argument, "the path is empty.", "Name a file or a folder.")
    return Path(value)


def require_runs(runs: Iterable[Location]) -> None:
    """Raise InputError for the first that is no run, such as a mistyped path."""
    for run in runs:
        open_storage(run).require_run()


def spare_runs(
    out: Path, runs: Iterable[Location], remedy: str, *, keep_folder: bool = False
) -> None:
    """Refuse to write into a release, or into a run directory, except for its report folder.

    A run's record must stay.

    Args:
        out: where to write, links followed.
        runs: run directories, whatever is in them; others are known by what they hold.
        remedy: what to do instead.
        keep_folder: `out` is a file, which must not take the report folder's name.
    """
    spare_releases(out, remedy)
    # realpath, for resolve() raises on links in a circle.
    place, named = (
        Path(os.path.realpath(out)),
        {Path(os.path.realpath(run)) for run in runs if isinstance(run, Path)},
    )
    for folder in (place, *place.parents):
        if folder in named or ((folder / MANIFEST).is_file() and (folder / STEPS).is_dir()):
            inside = place.relative_to(folder).parts
            if inside[:1] != (REPORT,) or (keep_folder and len(inside) == 1):
                raise InputError(
                    str(out), "this is inside a run directory, whose files are the record.", remedy
                )


def is_run(place: Location) -> bool:
    """Return whether this is a run on this machine, and nothing that `release` wrote."""
    return (
        isinstance(place, Path)
        and (place / MANIFEST).is_file()
        and not os.path.lexists(place / ATTESTATION)
    )


def is_released(place: Location) -> bool:
    """Return whether this is a folder that `release` wrote, and no run."""
    return (
        isinstance(place, Path)
        and (place / ATTESTATION).is_file()
        and not (place / MANIFEST).exists()
    )


def spare_releases(out: Path, remedy: str) -> None:
    """Refuse to write into a release folder, links followed: it would not verify any more."""
    place = Path(os.path.realpath(out))
    if any((folder / ATTESTATION).is_file() for folder in (place, *place.parents)):
        raise InputError(
            str(out), "this is inside a release folder, which holds what is attested alone.", remedy
        )


@contextmanager
def writing(path: Path, option: str) -> Iterator[None]:
    """Name the path and the option that gave it, if writing to it fails."""
    from dpaudit.reports.write import NoPlainFileError

    try:
        yield
    except OSError as error:
        named = error.filename if isinstance(error, NoPlainFileError) else path
        raise InputError(
            str(named),
            f"cannot be written ({error.strerror}).",
            f"Name another place with {option}.",
        ) from None


def require_writable(folder: Path, option: str) -> None:
    """Refuse a folder that can hold no file, before an audit is spent. Nothing is left there."""
    there = next(place for place in (folder, *folder.absolute().parents) if os.path.lexists(place))
    with writing(folder, option), tempfile.TemporaryDirectory(dir=there):
        pass


def spare_public_reports(folder: Path, audience: str) -> None:
    """Refuse to put a private report where a public one is, which somebody may soon share."""
    there = folder / "report.json"
    if audience == PUBLIC or not there.is_file():
        return
    with there.open("rb") as file:
        beginning = file.read(_BEGINNING)
    if b'"audience": "public"' in beginning or b'"audience":"public"' in beginning:
        remedy = "Name another folder with --out, give --audience public, or remove it."
        raise InputError(
            str(folder), "a public report is there, and this one would be private.", remedy
        )
