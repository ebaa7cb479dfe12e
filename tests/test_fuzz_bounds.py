"""Mutated and made-up run directories: none costs much, and none ends in exit code 3.

A process of limited means reads them. What an audit may take is the same for all of them, whatever
they declare, and whatever size their files have.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from dpaudit.runs import RunReader
from dpaudit.runs.archive import ArchiveWriter
from dpaudit.runs.batches import BatchArrays, BatchHeader
from dpaudit.runs.text import KNOWN_TOKENIZERS
from tests.test_fuzz import DAMAGE, KINDS

MEGABYTES, TIMES = 512, 10
#: Whose audit is the honest one that others' time is measured by.
EXAMPLE = Path(__file__).parents[1] / "examples/runs/bbc-median"
#: Audits the directories that it is told of, one a line, and says of each: exit code, megabytes it
#: grew by, seconds.
AUDITOR = f"""
import contextlib, io, json, os, pathlib, re, resource, sys, time, traceback
from dpaudit.commands.cli import main
from dpaudit.runs.text import KNOWN_TOKENIZERS
KNOWN_TOKENIZERS.update(dict.fromkeys(os.environ["KNOWN"].split()))  \
# as conftest does in its process
import dpaudit.auditing, dpaudit.runs.text, tokenizers

def kilobytes(what):
    return int(re.search(what + r":\\s*(\\d+) kB", \
pathlib.Path("/proc/self/status").read_text()).group(1))

most = kilobytes("VmSize") * 1024 + ({2 * MEGABYTES} << 20)
resource.setrlimit(resource.RLIMIT_AS, (most, most))
for line in sys.stdin:
    command = json.loads(line)
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the highest use is counted from here
    before, code, said, began = kilobytes("VmRSS"), 0, io.StringIO(), time.process_time()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main(command)
        except SystemExit as left:
            code = left.code
        except BaseException:
            code = None
            traceback.print_exc()
    took, grown = time.process_time() - began, (kilobytes("VmHWM") - before) // 1024
    print(json.dumps([code, grown, took, said.getvalue()[-2000:]]), flush=True)
"""


@contextmanager
def auditor(place: Path) -> Iterator[Callable[..., tuple[int, int, float, str]]]:
    """Runs a command in the one process that reads all directories."""
    environment = {**os.environ, "COLUMNS": "200", "KNOWN": " ".join(KNOWN_TOKENIZERS)}
    with (
        (place / "stderr").open("wb") as errors,
        subprocess.Popen(
            [sys.executable, "-c", AUDITOR],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=place,
            env=environment,
            text=True,
        ) as process,
    ):
        assert process.stdin and process.stdout

        def audit(*command: str) -> tuple[int, int, float, str]:
            print(json.dumps(command), file=process.stdin, flush=True)
            answer = process.stdout.readline()
            assert answer, f"{command}: the process ended: {(place / 'stderr').read_text()[-2000:]}"
            code, grown, seconds, said = json.loads(answer)
            return code, grown, seconds, said

        yield audit
        process.stdin.close()


# --- made-up files --------------------------------------------------------------------------------

TEXTS = ("run.json", "samples.jsonl", "assignment", "clusters", "hashes", "tokenizer.json")
#: What is repeated to make a text of some size, and what it stands between.
UNITS = {
    "line feeds": ("", "\n", ""),
    "lists": ("[", "[],", "0]\n"),
    "lists of lists": ("[", "[[],[]],", "0]\n"),
    "objects": ("[", "{},", "0]\n"),
    "numbers": ("[", "1,", "0]\n"),
    "floats": ("[", "1e9,", "0]\n"),
    "texts": ("[", '"ab",', "0]\n"),
    "unknown fields": ("{", '"f%d":[],', '"z":0}\n'),
    "lines of lists": ("", "[]\n", ""),
    "digits": ('{"format":', "9", "}\n"),
    "depth": ("", "[", ""),
    "hexadecimal": ('"', "5e", '"\n'),
    "zeros": ("", "\0", ""),
    "large letters": ('"', "\U0001f600", '"\n'),
}


def repeated(rng: random.Random, most: int = 20_000_000) -> tuple[str, str]:
    name = rng.choice(list(UNITS))
    begin, unit, end = UNITS[name]
    size = int(10 ** rng.uniform(3, 7.3))
    many = min(size, most) // len(unit.encode())
    middle = "".join(unit % number for number in range(many // 2)) if "%d" in unit else unit * many
    return f"{many} {name}", begin + middle + end


def text_made_up(run: Any, rng: random.Random) -> str:
    name, (said, text) = rng.choice(TEXTS), repeated(rng)
    (run / name).write_text(text)
    return f"{name} of {said}"


def text_appended(run: Any, rng: random.Random) -> str:
    name, (said, text) = rng.choice(TEXTS), repeated(rng)
    with (run / name).open("a") as file:
        file.write(text)
    return f"{name} and {said}"


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value."""
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, each in inner:
        yield (*path, key)
        yield from places(each, (*path, key))


def odd_value(rng: random.Random) -> str:
    """JSON for a field."""
    return rng.choice(
        [
            lambda: "1" + "0" * rng.choice((3, 9, 18, 40, 400, 5000)),
            lambda: "-" + "1" + "0" * rng.choice((0, 18, 400)),
            lambda: rng.choice(
                ("1e308", "1e-308", "5e-324", "-1e308", "1e999", "NaN", "0.1", "0", "null", "true")
            ),
            lambda: str(1 << rng.randrange(63)),
            lambda: json.dumps("x" * int(10 ** rng.uniform(0, 6.5))),
            lambda: json.dumps(["5e"] * int(10 ** rng.uniform(0, 5.5))),
            lambda: json.dumps([[1]] * int(10 ** rng.uniform(0, 5.5))),
            lambda: json.dumps(
                {f"k{number}": "v" for number in range(int(10 ** rng.uniform(0, 5)))}
            ),
            lambda: json.dumps("a 2026-99-99T99:99:99Z"),
        ]
    )()


def field_made_up(run: Any, rng: random.Random) -> str:
    """A value of a JSON file that means something else, and often too much."""
    name = rng.choice(("run.json", "run.json", "run.json", "clusters", "tokenizer.json"))
    content = json.loads((run / name).read_text())
    chosen = [rng.choice(list(places(content))) for _ in range(rng.choice((1, 1, 2)))]
    odd = []
    for path in chosen:
        place = content
        try:
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = f"@{len(odd)}@"
        except (TypeError, KeyError, IndexError):  # within what the other one replaced
            continue
        odd.append(odd_value(rng))
    text = json.dumps(content)
    for number, value in enumerate(odd):
        text = text.replace(f'"@{number}@"', value)
    (run / name).write_text(text)
    return f"{name}: {chosen} {[value[:40] for value in odd]}"


def vocabulary_made_up(run: Any, rng: random.Random) -> str:
    """A tokenizer of many tokens or merges, or with parts that the library panics over."""
    content, many = json.loads((run / "tokenizer.json").read_text()), int(10 ** rng.uniform(2, 5.7))
    kind = rng.choice(("tokens", "merges", "pairs", "added", "pieces", "charsmap"))
    if kind == "tokens":
        content["model"]["vocab"] = {f"t{number}": number for number in range(many)}
    elif kind == "pieces":
        content["model"] = {
            "type": "Unigram",
            "unk_id": 0,
            "vocab": [[f"t{n}", -1.0] for n in range(many)],
        }
    elif kind in ("merges", "pairs"):
        content["model"]["merges"] = [
            ["a", f"b{n}"] if kind == "pairs" else f"a b{n}" for n in range(many)
        ]
    elif kind == "added":
        content["added_tokens"] = [
            {"id": n, "content": f"a{n}", "special": n % 2 == 0} for n in range(many)
        ]
    else:
        content["normalizer"] = {
            "type": "Precompiled",
            "precompiled_charsmap": rng.choice(("AA==", "//8=")),
        }
    (run / "tokenizer.json").write_text(json.dumps(content))
    return f"tokenizer.json with {many} {kind}"


def sparse(run: Any, rng: random.Random) -> str:
    """A file that is empty but large, under a name that `hashes` may know."""
    name = rng.choice((*TEXTS, "steps/00000000.zip", "steps/00000007.zip", "steps/notes", "notes"))
    size = 1 << rng.randrange(20, 43)
    with (run / name).open("ab") as file:
        file.truncate(size)
    with (run / "hashes").open("a") as file:
        file.write(f"{'0' * 64}  {name}\n")
    return f"{name} of {size} bytes"


def zip_made_up(run: Any, rng: random.Random) -> str:
    """Ends of zip files, ordinary and large, that say anything, after a hole of any size."""
    size, many = 1 << rng.randrange(16, 36), rng.choice((0, 1, 9, 0xFFFF))
    declared = rng.choice((size, size - 98, 1 << 24, 1 << 31, 0xFFFFFFFF, rng.randrange(1 << 32)))
    ordinary = min(rng.choice((declared, 0xFFFFFFFF, 0)), 0xFFFFFFFF)
    with run.steps_file(0).open("wb" if rng.random() < 0.7 else "ab") as file:
        file.truncate(size)
        file.seek(size)
        if rng.random() < 0.7:
            file.write(
                struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, many, many, declared, 0)
            )
            file.write(struct.pack("<4sIQI", b"PK\6\7", 0, size, 1))
        file.write(struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, many, many, ordinary, 0, 0))
    return f"a zip of {size} bytes whose directory is said to have {declared}, {ordinary}"


def metadata_made_up(run: Any, rng: random.Random) -> str:
    """A batch's own JSON."""
    said, text = repeated(rng, 3_000_000)
    which = rng.choice(("zarr.json", "token/zarr.json", "constant/zarr.json"))

    def change(entries: list[Any]) -> list[Any]:
        begun = rng.choice((b"", b'{"attributes": '))
        return [
            each._replace(data=begun + text.encode()) if each.name == which else each
            for each in entries
        ]

    run.rezip(0, change)
    return f"{which} of {said}"


def entries_many(run: Any, rng: random.Random) -> str:
    many = int(10 ** rng.uniform(2, 4.3))
    run.rezip(
        0,
        lambda entries: (
            entries + [entries[0]._replace(name=f"central/c/{n}/0/0") for n in range(9, many)]
        ),
    )
    return f"{many} entries"


def large(place: Path) -> bool:
    """Whether a file, or what a link leads to, is one to be read by nobody."""
    return place.is_file() and place.stat().st_size >= 1 << 26


def step_large(run: Any, rng: random.Random) -> str:
    """A batch of one step whose arrays are zeros, which take next to no room on disk."""
    vocabulary, contexts = 1 << rng.randrange(10, 21), rng.randrange(1 << rng.randrange(1, 9))
    grid, dtype = rng.choice((None, 0.125)), rng.choice((run.spec.dtype, "float64"))
    run.edit_manifest(
        {
            "record.vocabulary": vocabulary,
            "record.contexts": True,
            "record.dtype": dtype,
            "mechanism.clip": 8.0,
            "mechanism.grid": grid,
            "mechanism.contribution": rng.choice(("logits", "differences")),
        }
    )
    with patch("dpaudit.runs.batches.MAX_STEP_BYTES", 1 << 30):
        specs = BatchArrays(RunReader(run.path).manifest, contexts).specs(1)
    if sum(spec.chunk_bytes for spec in specs.values()) > 1 << 28:
        return "nothing"
    archive = ArchiveWriter(
        run.steps_file(0), {"header": asdict(BatchHeader(id=0, contexts=contexts, label="a"))}
    )
    ending = {"token": {"texts": [{"length": 1, "stop": "max-tokens", "text": None}]}}
    for name, spec in specs.items():
        archive.declare(name, spec, ending.get(name))
        archive.chunk(name, spec, 0, np.zeros(spec.chunk_shape, dtype=spec.dtype))
    archive.close()
    return f"a step of {contexts} contexts and {vocabulary} tokens, {dtype}, grid {grid}"


MADE_UP = [
    text_made_up,
    text_appended,
    field_made_up,
    field_made_up,
    field_made_up,
    vocabulary_made_up,
    sparse,
    zip_made_up,
    metadata_made_up,
    entries_many,
    step_large,
]
ANY = [*DAMAGE, *MADE_UP]
#: What leaves a file that nothing here can read, in the order in which one may come after another.
LAST = "sparse zip_made_up replaced"


@pytest.mark.parametrize(
    "trials",
    [range(30), pytest.param(range(30, 5030), marks=pytest.mark.slow)],
    ids=["some", "5000"],
)
def test_no_directory_costs_much_or_ends_in_an_internal_error(make_run, tmp_path, trials):
    costs: list[tuple[int, float, str]] = []
    wrong: list[str] = []
    clean = [str(make_run(**kind).path) for kind in KINDS.values()]
    with auditor(tmp_path) as audit:
        for path in clean:
            assert audit("verify", path, "--workers", "1")[0] == 0
        honest = audit("verify", str(EXAMPLE), "--workers", "1")[2]
        for trial in trials:
            rng = random.Random(f"bounds {trial}")
            run = make_run(**KINDS[rng.choice(list(KINDS))])
            said = [f"{trial}"]
            for change in sorted(
                rng.sample(ANY, rng.choice((1, 1, 1, 2))), key=lambda each: LAST.find(each.__name__)
            ):
                try:
                    said.append(change(run, rng))
                except (
                    OSError,
                    ValueError,
                    KeyError,
                    TypeError,
                    IndexError,
                    AttributeError,
                    zipfile.BadZipFile,
                ):
                    said.append("what an earlier change left cannot be changed so")
            hashed = (run / "hashes").exists() <= (run / "hashes").is_file()
            if hashed and rng.random() < 0.5 and not any(map(large, run.path.rglob("*"))):
                with suppress(OSError):
                    run.rehash()
            command = rng.choice((*["verify"] * 8, "inspect", "compare"))
            others = [str(EXAMPLE)] if command == "compare" else []
            workers = ["--batch", "0"] if command == "inspect" else ["--workers", "1"]
            code, grown, seconds, output = audit(command, str(run.path), *others, *workers)
            costs.append((grown, seconds, f"{command} {said}"))
            if code not in (0, 1, 2) or "Traceback" in output or "panicked" in output:
                wrong.append(f"{command} {said}: {code} {output}")
            shutil.rmtree(run.path)
    over = [each for each in costs if each[0] > MEGABYTES or each[1] > TIMES * honest]
    assert (wrong, over) == ([], []), f"an honest audit takes {honest:.3f} s"
