"""A browser for tests of pages and for the documentation's pictures: a system Chromium, offline."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.needs import npm_part

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_ARGUMENTS = [
    "--no-sandbox",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
]


def executable() -> str | None:
    """The Chromium that is installed here; None where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


def axe_script() -> Path:
    """Where `make setup` puts axe-core."""
    return npm_part("axe-core") / "axe.min.js"


@contextmanager
def launched() -> Iterator[Browser]:
    """A headless browser, until the block ends."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(), args=_ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()
