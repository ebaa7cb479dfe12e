"""The command that installs an optional part.

dpaudit is on no index, so the command names what it was installed from.
"""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from dpaudit.runs.extras import installing

ROOT = Path(__file__).parents[2]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Installs dpaudit as some installer notes it, and gives the command's words."""
    site = tmp_path / "site"
    noted = site / "dpaudit-0.1.0.dist-info"
    noted.mkdir(parents=True)
    (noted / "METADATA").write_text("Metadata-Version: 2.1\nName: dpaudit\nVersion: 0.1.0\n")
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(site))

    def command(origin: object) -> list[str]:
        (noted / "direct_url.json").write_text(
            origin if isinstance(origin, str) else json.dumps(origin)
        )
        return shlex.split(re.findall("un `(.*)`$", installing("generate"))[0])

    return command


def test_the_command_names_the_checkout_or_the_wheel(installed: Any, tmp_path: Path) -> None:
    checkout, wheel = tmp_path / "a checkout", tmp_path / "dpaudit-0.1.0-py3-none-any.whl"
    checkout.mkdir()
    wheel.touch()
    editable = {"url": checkout.as_uri(), "dir_info": {"editable": True}}
    assert installed(editable) == ["pip", "install", "-e", f"{checkout}[generate]"]
    assert installed({"url": checkout.as_uri(), "dir_info": {}}) == [
        "pip",
        "install",
        f"{checkout}[generate]",
    ]
    assert installed({"url": wheel.as_uri(), "archive_info": {}}) == [
        "pip",
        "install",
        f"{wheel}[generate]",
    ]


def test_without_an_origin_the_command_is_for_a_checkout(installed: Any, tmp_path: Path) -> None:
    for origin in (
        "",
        "{",
        "[]",
        {"url": 7},
        {"url": (tmp_path / "gone").as_uri()},
        {"url": "https://example.org/dpaudit.whl"},
        {"url": (tmp_path / "a\u202eb").as_uri()},
        {"url": tmp_path.as_uri(), "dir_info": None},
    ):
        (tmp_path / "a\u202eb").mkdir(exist_ok=True)
        assert installed(origin) == ["pip", "install", ".[generate]"]
        assert installing("generate").startswith("In a checkout of dpaudit, run")
    (tmp_path / "site" / "dpaudit-0.1.0.dist-info" / "direct_url.json").unlink()
    assert "checkout" in installing("ray")


def test_extras_that_messages_name_exist() -> None:
    listed = (ROOT / "pyproject.toml").read_text()
    sources = [
        file.read_text("utf-8")
        for folder in ("dpaudit", "generation")
        for file in (ROOT / folder).rglob("*.py")
    ]
    called = re.compile(r"""(?:installing\(|missing\([\w".]+, [\w".]+, )["'](\w+)["']""")
    named = {name for source in sources for name in called.findall(source)}
    assert named >= {"evaluate", "generate", "ray", "release"}
    assert all(re.search(rf"^{name} = \[", listed, re.MULTILINE) for name in named)
