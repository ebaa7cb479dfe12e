"""The error where a package is not installed that an optional part of dpaudit brings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dpaudit.runs import InputError
from dpaudit.runs.extras import installing


def missing(where: str, package: str | None, extra: str, purpose: str = "") -> InputError:
    """Return the error, with the command that installs the part.

    Args:
        where: the argument, or the function, that needs the package.
        package: what Python did not find.
        extra: the optional part of dpaudit, such as `generate`.
        purpose: what it is needed for, as in "to write releases".
    """
    remedy = " ".join(filter(None, (installing(extra), purpose)))
    return InputError(where, f"{package} is not installed.", f"{remedy}.")


@contextmanager
def needs(extra: str, purpose: str) -> Iterator[None]:
    """Turn a missing package of an optional part into the error that says how to install it.

    Args:
        extra, purpose: as for `missing`.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise missing(extra, error.name, extra, purpose) from None
