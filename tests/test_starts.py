"""What a command loads and makes before it works: it is most of a small run's time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dpaudit.commands import cli

#: Types of what few results have, and a parser that is three times as slow as another.
RARE = {f"dpaudit.results.{name}" for name in ("quality", "worth", "policy", "disclosed_texts")}
RARE |= {"tomllib"}
EXAMPLE = Path(__file__).parents[1] / "examples/runs/bbc-median"
#: Runs a command, and then tells what is loaded, and how often some functions were called.
COUNTED = """
import json, sys
from collections import Counter
from functools import wraps

calls = Counter()

def count(owner, name):
    function = getattr(owner, name)
    @wraps(function)
    def counted(*arguments, **options):
        calls[name] += 1
        return function(*arguments, **options)
    setattr(owner, name, counted)

import numpy.random
from dpaudit.commands.cli import main
from dpaudit.runs import manifest, strict_json

count(numpy.random, "default_rng")
count(strict_json, "_integer")
if sys.argv[1] == "report":
    from dpaudit.reports import write
    count(write, "build")
try:
    main(sys.argv[1:])
except SystemExit as left:
    assert not left.code
if sys.argv[1] == "report":
    from matplotlib.figure import Figure
    calls["documented"] = bool(Figure.set.__doc__)
calls["halves"] = manifest.run_json.cache_info().misses
print("\\n" + json.dumps([sorted(sys.modules), calls]))
"""


def started(*arguments: str) -> tuple[set[str], dict[str, int]]:
    command = [sys.executable, "-W", "error", "-c", COUNTED, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    modules, calls = json.loads(done.stdout.splitlines()[-1])
    return set(modules), calls


def test_verify_loads_what_it_needs_and_seeds_no_generator_twice():
    modules, calls = started("verify", str(EXAMPLE))
    unneeded = {"rich", "yaml", "scipy", "jinja2", "matplotlib", "dp_accounting", "numpy.ma"}
    unneeded |= {"pandas", "zarr", "dpaudit.reports.terminal", "dpaudit.results.attestation"}
    unneeded |= {"dpaudit.commands.generate", "dpaudit.runs.engines.ray", "dpaudit.runs.writer"}
    unneeded |= {"multiprocessing.connection"}
    # The accountants of guarantees that an ex-post run has not, and what replays and canaries find.
    unneeded |= {"dpaudit.accounting.release", "dpaudit.accounting.coins", "dpaudit.results.replay"}
    assert not modules & (unneeded | RARE)
    # One for each seed that somebody may type, of the keys that it makes; no number by itself.
    assert calls["default_rng"] < 500
    assert "_integer" not in calls
    assert not calls["halves"]


def test_report_builds_one_document_and_no_documentation_of_matplotlib(tmp_path):
    modules, calls = started("report", str(EXAMPLE), "--out", str(tmp_path / "report"))
    assert not modules & {"scipy", "dp_accounting", "pandas", "dpaudit.results.attestation"}
    assert not modules & {"matplotlib.pyplot", "dpaudit.releasing", "yaml", *RARE}
    assert (calls["build"], calls["documented"]) == (1, False)


def test_budget_loads_no_library_of_audits_or_pages():
    mean = ("--clip", "2", "--temperature", "1", "--records", "6000")
    modules, _ = started("budget", *mean, "--tokens", "10", "--epsilon", "5")
    assert not modules & {"yaml", "scipy", "jinja2", "matplotlib", "dp_accounting", "pandas"}
    assert not modules & {"numcodecs", "dpaudit.runs.archive", "dpaudit.results.audit"}


def test_a_command_that_cannot_be_imported_is_not_an_unknown_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(name: str) -> None:
        raise KeyError(name)

    monkeypatch.setattr(cli.importlib, "import_module", fails)
    assert "verify" in cli.cli.commands
    with pytest.raises(ImportError):
        cli.cli.commands.get("verify")
    assert cli.cli.commands.get("no-such-command") is None
