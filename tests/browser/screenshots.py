"""The first screens of a passing and a failing report, as pictures for the documentation.

python -m tests.browser.screenshots
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from pathlib import Path

from PIL import Image

from dpaudit.auditing.run import audit_run
from dpaudit.reports.audit_document import render_html
from dpaudit.results import AuditResult
from tests.browser.chromium import launched
from tests.browser.samples import EXAMPLE, failed

IMAGES = Path(__file__).parents[2] / "docs/images"
#: In pixels; a fifth larger than on a screen, to be read where the picture is made smaller.
WIDTH, HEIGHT, SCALE = 1_200, 960, 1.2


def main() -> None:
    """Writes both pictures."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name, launched() as browser:
        folder = Path(name)
        size = {"width": round(WIDTH / SCALE), "height": round(HEIGHT / SCALE)}
        page = browser.new_page(viewport=size, device_scale_factor=SCALE, color_scheme="light")
        for title, result in (("pass", passing()), ("fail", failing(folder))):
            path = folder / f"{title}.html"
            path.write_text(render_html(result), encoding="utf-8")
            page.goto(path.as_uri())
            save(page.screenshot(), IMAGES / f"report-{title}.png")


def passing() -> AuditResult:
    """By a path that is the same on every machine: the report shows it."""
    with contextlib.chdir(EXAMPLE.parents[2]):
        return audit_run(EXAMPLE.relative_to(EXAMPLE.parents[2]))


def failing(folder: Path) -> AuditResult:
    """The same run with one text changed."""
    with contextlib.chdir(folder):
        return failed(Path())


def save(png: bytes, path: Path) -> None:
    """The picture in 256 colours, which are more than a report has."""
    Image.open(io.BytesIO(png)).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(
        path, optimize=True
    )


if __name__ == "__main__":
    main()
