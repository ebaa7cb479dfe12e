"""Hostile run directories, audited by the command line in a process of limited means.

Every one is refused (exit code 2) or fails a check (1), within a minute and 4 GB of address space,
without a traceback. What they lure the reader to is a pipe that nobody writes to: following it
would last for ever. One process reads them all, one after the other, and none may make it grow by
more than it is allowed.
"""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dpaudit import reports
from dpaudit.commands.cli import main
from dpaudit.runs.text import KNOWN_TOKENIZERS
from tests.forging import append_entries
from tests.nesting import write_run

SECONDS, ADDRESSES = 60, 4 << 30
#: What reading a run may add to what a process takes anyway.
MEGABYTES = 350

CHILD = f"""
import contextlib, json, os, pathlib, re, resource, signal, sys, traceback
resource.setrlimit(resource.RLIMIT_AS, ({ADDRESSES}, {ADDRESSES}))
from dpaudit.commands.cli import main
from dpaudit.runs.text import KNOWN_TOKENIZERS
from dpaudit.runs.text import KNOWN_TOKENIZERS
KNOWN_TOKENIZERS.update(dict.fromkeys(os.environ["KNOWN"].split()))  \
# as conftest does in its process

def kilobytes(what):
    return int(re.search(what + r":\\s*(\\d+) kB", \
pathlib.Path("/proc/self/status").read_text()).group(1))

for number, path in enumerate(json.load(sys.stdin)):
    print("reading", path, file=sys.__stderr__, flush=True)
    signal.alarm({SECONDS})  # ends the process
    with contextlib.suppress(OSError):
        pathlib.Path("/proc/self/clear_refs").write_text("5")  \
# the highest use is counted from here
    before, code = kilobytes("VmRSS"), None
    with open(f"said-{{number}}", "w") as said, contextlib.redirect_stdout(said), \
contextlib.redirect_stderr(said):
        try:
            main(["verify", path, "--workers", "1"])
        except SystemExit as left:
            code = left.code
        except BaseException:
            traceback.print_exc()
    print(json.dumps([code, (kilobytes("VmHWM") - before) // 1024]), flush=True)
"""


def verified(runs, place):
    """`dpaudit verify` of run directories by name: (exit code, all output, megabytes of growth)."""
    environment = {**os.environ, "COLUMNS": "200", "KNOWN": " ".join(KNOWN_TOKENIZERS)}
    paths = json.dumps([str(run) for run in runs.values()])
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=paths,
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers = map(json.loads, done.stdout.splitlines())
    said = [(place / f"said-{number}").read_text("utf-8") for number in range(len(runs))]
    return {
        name: (code, text, grown)
        for name, (code, grown), text in zip(runs, answers, said, strict=True)
    }


def text_of(name, text):
    """Put a text in a file's place."""
    return lambda run: (run / name).write_bytes(text if isinstance(text, bytes) else text.encode())


def field(**change):
    return lambda run: run.edit_manifest(
        {name.replace("__", "."): value for name, value in change.items()}
    )


def number_in(name, digits):
    """A number in run.json that Python would not write."""

    def plant(run):
        run.edit_manifest({name: "here"})
        (run / "run.json").write_text((run / "run.json").read_text().replace('"here"', digits))

    return plant


def entry(name, change):
    def edit(entries):
        return [
            each._replace(data=change(each.data)) if each.name == name else each for each in entries
        ]

    return lambda run: run.rezip(0, edit)


def entry_json(name, text):
    """Replace a part of an entry's JSON."""
    return entry(
        name,
        lambda data: (
            json.dumps(json.loads(data) | {"attributes": "here"}).replace('"here"', text).encode()
        ),
    )


def lure(name):
    """A link, under one of the run's names, to a pipe outside."""

    def plant(run):
        pipe = run.path.parent / "pipe"
        os.mkfifo(pipe)
        target = run / name
        if target.is_dir():
            target.rename(run.path.parent / "steps-elsewhere")
            target.symlink_to(run.path.parent / "steps-elsewhere")
        else:
            target.unlink()
            target.symlink_to(pipe)

    return plant


def pipe(name):
    def plant(run):
        (run / name).unlink()
        os.mkfifo(run / name)

    return plant


def digest_outside(run):
    os.mkfifo(run.path.parent / "pipe")
    append_entries(run.path, "../pipe", "steps/../../pipe", "/dev/stdin")


def a_million_rows(run):
    """As many steps as a manifest may declare, and arrays of as many: more than the batch has."""
    run.edit_manifest({"decoding.max_tokens": 1 << 15})

    def grow(entries):
        return [
            each._replace(data=each.data.replace(b'"shape": [3,', b'"shape": [32768,'))
            if each.name.startswith(("central", "constant", "sides", "holder"))
            else each
            for each in entries
        ]

    for number in range(2):
        run.rezip(number, grow)


def sixteen_million_batches(run):
    names = ("batches", "batches_per_label", "generate_per_label")
    run.edit_manifest({f"batching.{name}": 1 << 24 for name in names})


def declared_steps_without_chunks(run):
    """Names of a million steps, none of which are there."""
    run.edit_manifest({"decoding.max_tokens": 1 << 15})

    def claim(entries):
        return [
            each._replace(data=re.sub(rb'("(?:chunk_)?shape": \[)3', rb"\g<1>32768", each.data))
            if each.name.endswith("zarr.json")
            else each
            for each in entries
            if "/c/" not in each.name
        ]

    run.rezip(0, claim)


def large_directory(run):
    """A zip whose directory is said to have a gigabyte, which is there: a hole in the file."""
    path = run.steps_file(0)
    with open(path, "wb") as file:
        file.truncate(1 << 30)
        file.seek(1 << 30)
        file.write(struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, 1 << 30, 0, 0))


def large_directory_of_a_large_file(run):
    """The same, as files of more than four gigabytes say it."""
    path, size = run.steps_file(0), 1 << 33
    with open(path, "wb") as file:
        file.truncate(size)
        file.seek(size)
        file.write(struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, size, 0))
        file.write(struct.pack("<4sIQI", b"PK\6\7", 0, size, 1))
        file.write(
            struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
        )


def many_entries(run):
    def more(entries):
        return entries + [
            entries[0]._replace(name=f"central/c/{number}/0/0") for number in range(3, 20_000)
        ]

    run.rezip(0, more)


def same_label(text):
    """Use one text for a batch's label and the names of model and template."""

    def plant(run):
        labels = [text, "b"]
        run.edit_manifest(
            {
                "data.labels": labels,
                "model.name": text,
                "prompt.template": text,
                "software": {text: text},
            }
        )
        run.rewrite(
            0,
            lambda draft: setattr(draft, "header", replace(draft.header, label=text)),
        )

    return plant


DEEP = "[" * 1_000_000
HUGE = "1" + "0" * 400
LONG = "1" * 1_000_000
#: What is planted, the exit code, and what the message must name.
HOSTILE = {
    "a billion tokens": (field(decoding__max_tokens=10**9), 2, "decoding.max_tokens"),
    "a billion batches": (field(batching__batches=10**9), 2, "batching.batches"),
    "16 million batches": (sixteen_million_batches, 2, "batch 2 is missing"),
    "a billion tokens to choose from": (field(record__vocabulary=10**9), 2, "record.vocabulary"),
    "a million steps": (field(decoding__max_tokens=1 << 15), 1, "release.stopping"),
    "a million rows of three steps": (a_million_rows, 2, "00000000.zip"),
    "deep run.json": (text_of("run.json", '{"format":' + DEEP), 2, "run.json"),
    "deep samples": (text_of("samples.jsonl", DEEP + "\n"), 2, "samples.jsonl"),
    "deep clusters": (text_of("clusters", DEEP), 2, "clusters"),
    "deep tokenizer": (text_of("tokenizer.json", '{"model":' + DEEP), 2, "tokenizer.json"),
    "deep zarr.json": (entry("zarr.json", lambda _: DEEP.encode()), 2, "00000000.zip"),
    "deep attributes": (
        entry_json("token/zarr.json", '{"a":' * 100_000 + "1" + "}" * 100_000),
        2,
        "00000000.zip",
    ),
    "epsilon NaN": (number_in("claim.epsilon", "NaN"), 2, "NaN"),
    "clip infinite": (number_in("mechanism.clip", "Infinity"), 2, "Infinity"),
    "clip beyond floats": (number_in("mechanism.clip", "1e400"), 2, "mechanism.contribution.clip"),
    "epsilon of 400 digits": (number_in("claim.epsilon", HUGE), 2, "claim.epsilon"),
    "epsilon of a million digits": (number_in("claim.epsilon", LONG), 2, "run.json"),
    "records of 400 digits": (number_in("data.records", HUGE), 2, "data.records"),
    "seed of 400 digits": (
        number_in("sampling", f'{{"generator": "test-seed", "seed": {HUGE}}}'),
        2,
        "sampling.seed",
    ),
    "contexts of 400 digits": (
        entry_json("zarr.json", f'{{"header": {{"id": 0, "contexts": {HUGE}}}}}'),
        2,
        ".zip",
    ),
    "stop sequence of 400 digits": (
        number_in("decoding.sequences", f"[[{HUGE}]]"),
        2,
        "decoding.sequences",
    ),
    "linked run.json": (lure("run.json"), 2, "run.json"),
    "linked samples": (lure("samples.jsonl"), 2, "samples.jsonl"),
    "linked batch": (lure("steps/00000000.zip"), 2, "00000000.zip"),
    "linked steps": (lure("steps"), 2, "steps"),
    "linked tokenizer": (lure("tokenizer.json"), 2, "tokenizer.json"),
    "linked hashes": (lure("hashes"), 2, "hashes"),
    "pipe for run.json": (pipe("run.json"), 2, "run.json"),
    "pipe for the assignment": (pipe("assignment"), 2, "assignment"),
    "link among the batches": (
        lambda run: (run / "steps/more").symlink_to("/dev/zero"),
        2,
        "steps",
    ),
    "digests of files outside": (digest_outside, 1, "integrity.hashes"),
    "names that leave the zip": (
        lambda run: run.rezip(
            0, lambda entries: [each._replace(name=f"../../../{each.name}") for each in entries]
        ),
        2,
        "00000000.zip",
    ),
    "a million steps that are not there": (declared_steps_without_chunks, 2, "00000000.zip"),
    "a directory of a gigabyte": (large_directory, 2, "are to be read at once"),
    "a directory of eight gigabytes": (
        large_directory_of_a_large_file,
        2,
        "are to be read at once",
    ),
    "many entries": (many_entries, 2, "superfluous"),
    "zip bomb": (
        lambda run: run.rezip(
            0, lambda e: [*e[:-1], e[-1]._replace(data=bytes(1 << 24))], compression=8
        ),
        2,
        "compressed by the zip itself",
    ),
    "doubled array": (entry("central/c/0/0/0", lambda data: data * 2), 2, "00000000.zip"),
    "key of a million bytes": (field(batching__key="5e" * 1_000_000), 2, "batching.key"),
    "examples of 400 digits": (
        number_in("prompt.examples_per_context", HUGE),
        2,
        "prompt.examples_per_context",
    ),
    "stop sequences": (field(decoding__sequences=[[1]] * 1_600_000), 2, "run.json"),
    "some thousand stop sequences": (
        field(decoding__sequences=[[1]] * 3_000),
        2,
        "decoding.sequences",
    ),
    "template of a million digits": (field(prompt__template="5e" * 500_000), 2, "prompt.template"),
    "template of 15 million digits": (field(prompt__template="5e" * 7_500_000), 2, "run.json"),
    "month 99": (field(created="2026-99-01T00:00:00Z"), 2, "created"),
    "a step of gigabytes": (field(record__vocabulary=1 << 22, record__width=64), 2, "record"),
    "no key": (field(batching__key=""), 2, "batching.key"),
}


def grown(name):
    """A file of 4 terabytes of nothing; file systems keep it for free."""

    def grow(run):
        with open(run / name, "r+b") as file:
            file.truncate(1 << 42)

    return grow


def padded_zip(run):
    """A terabyte of nothing before a zip: those who look for its end find it whole."""
    data = run.steps_file(0).read_bytes()
    with open(run.steps_file(0), "wb") as file:
        file.seek(1 << 40)
        file.write(data)


def sparse_under_a_recorded_name(run):
    """400 gigabytes of nothing, under a name that is in hashes and in no format."""
    for name in ("extra.bin", "steps/extra.bin"):
        with open(run / name, "wb") as file:
            file.truncate(400 << 30)
    append_entries(run.path, "extra.bin", "steps/extra.bin")


def large_directory_behind_a_small_one(run):
    """An ordinary zip's end says little, and a large file's two gigabytes.

    Readers believe the latter.
    """
    path, size = run.steps_file(0), 1 << 31
    with open(path, "wb") as file:
        file.truncate(size)
        file.seek(size)
        file.write(struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, 9, 9, size, 0))
        file.write(struct.pack("<4sIQI", b"PK\6\7", 0, size, 1))
        file.write(struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 9, 9, 100, 0, 0))


def charsmap(run):
    """What the library panics over is of no use in decoding, and not given to it."""
    with_tokenizer(run, {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AA=="}})


def many_digests(run):
    append_entries(run.path, *(f"steps/{number:08d}.zip" for number in range(2, 100_002)))


def long_assignment(run):
    """Half a million records in no batch: as objects they would exceed what is allowed here."""
    with open(run / "assignment", "w") as file:
        file.writelines(f"{number:064x}\t-\t-\n" for number in range(500_000))


def growing_text(run):
    """Forty replacements in a row: 2^40 letters."""
    with_tokenizer(run, TOKENIZERS["growing in many ways"])


#: Not rehashed, for what they do is not done to files that can be read: the digests would be
#: checked first.
TEXTS = ("run.json", "samples.jsonl", "assignment", "clusters", "hashes", "tokenizer.json")
LARGE = {
    f"terabytes of {name}": (grown(name), 2, name) for name in (*TEXTS, "steps/00000000.zip")
} | {
    "terabytes before a zip": (padded_zip, 2, "00000000.zip"),
    "400 gigabytes in hashes": (sparse_under_a_recorded_name, 2, "half-written or foreign files"),
    "a directory of two gigabytes in hiding": (
        large_directory_behind_a_small_one,
        2,
        "are to be read at once",
    ),
    "many digests": (many_digests, 1, "100,000 differences"),
}
LONG_FILES = {
    "line of 100 megabytes": (
        text_of("samples.jsonl", b'{"id": 0, "text": "' + b"x" * 100_000_000 + b'"}\n'),
        2,
        "samples.jsonl",
    ),
    "30 million line feeds": (
        text_of("samples.jsonl", b"\n" * 30_000_000),
        2,
        "samples.jsonl, line 1",
    ),
    "tokenizer of 9 million lists": (
        text_of("tokenizer.json", b"[" + b"[]," * 9_000_000 + b"]"),
        2,
        "tokenizer.json",
    ),
    "charsmap": (charsmap, 0, "pass"),
    "long assignment": (long_assignment, 1, "partition.disjoint"),
    "growing text": (growing_text, 2, "tokenizer.json"),
    # An object array would be unpickled, by some readers; here the manifest fixes every array's
    # type.
    "pickle": (
        entry("central/c/0/0/0", lambda _: b"cos\nsystem\n(S'touch unpickled'\ntR."),
        2,
        "00000000.zip",
    ),
}
MORE_MEGABYTES = {"long assignment": 100}


def test_hostile_runs_are_refused_within_bounds(make_run, tmp_path):
    runs, cases = {}, HOSTILE | LARGE | LONG_FILES
    for name, (plant, *_) in cases.items():
        run = make_run()
        folder = tmp_path / f"case{len(runs)}"  # with room beside it
        folder.mkdir()
        run.path = run.path.rename(folder / "run")
        plant(run)
        if not (name in LARGE or re.search(r"link|pipe|digests|directory", name)):
            run.rehash()
        runs[name] = run.path
    wrong = {}
    for name, (code, said, megabytes) in verified(runs, tmp_path).items():
        _, expected, named = cases[name]
        if (
            code != expected
            or named not in said
            or "Traceback" in said
            or "panicked" in said
            or len(said) > 20_000
            or megabytes > MORE_MEGABYTES.get(name, MEGABYTES)
        ):
            wrong[name] = (code, megabytes, said[-500:])
    assert wrong == {}
    assert not (tmp_path / "unpickled").exists()


# --- text that would act --------------------------------------------------------------------------

MARKUP = "<script>alert(1)</script>\"><img src=x onerror=alert(1)>'&amp;]]><!--"
CONTROLS = "\x1b[31mred\x1b]0;title\x07\x9b2J\r\b\u202egnp\u2028"


#: Sorts and filters tables; it stands behind all that comes from the run.
OWN_SCRIPT = (Path(reports.__file__).parent / "templates" / "report.js").read_text()


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.seen = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))


@pytest.fixture
def dpaudit(capfd, monkeypatch):
    """Runs a command in this process: (exit code, all it printed)."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments):
        with pytest.raises(SystemExit) as left:
            main([*map(str, arguments), "--workers", "1"])
        said = "".join(capfd.readouterr())
        assert "Traceback" not in said
        return left.value.code, said

    return run


@pytest.mark.parametrize("text", [MARKUP, CONTROLS], ids=["markup", "controls"])
def test_text_of_a_run_is_only_text(make_run, dpaudit, tmp_path, text):
    """In reports, and in error messages, which bring names to the terminal."""
    run = make_run()
    same_label(text)(run)
    (run / f"steps/{text.replace('/', '|')}").write_text("a name")
    run.rehash()
    code, said = dpaudit("report", run.path, "--out", tmp_path / "out")
    assert code == 2  # a foreign file among the batches
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", said)
    page = (tmp_path / "out/report.html").read_text()
    tags = Tags(page).seen
    drawn = "data:image/svg+xml;base64,"
    acting = [
        tag
        for tag, attributes in tags
        if tag == "script" or (tag == "img" and not attributes["src"].startswith(drawn))
    ]
    assert acting == ["script"] and page.endswith(
        f"<script>{OWN_SCRIPT}</script>\n</body>\n</html>"
    )
    assert not any(name.startswith("on") for _, attributes in tags for name in attributes)
    ET.parse(tmp_path / "out/junit.xml")
    json.loads((tmp_path / "out/report.json").read_text())
    for name in ("report.html", "report.md", "junit.xml"):
        assert not re.search(
            "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", (tmp_path / "out" / name).read_text()
        )
    odd = run.path.with_name(text.replace("/", "|"))
    run.path.rename(odd)
    write_run(odd, {"format": 3, text: 1})
    code, said = dpaudit("verify", odd)
    assert code == 2
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", said)


def test_report_folder_that_is_a_link(make_run, dpaudit, tmp_path):
    run, outside = make_run(), tmp_path / "outside"
    outside.mkdir()
    (run / "report").symlink_to(outside)
    code, said = dpaudit("report", run.path)
    assert (code, "link" in said, list(outside.iterdir())) == (2, True, [])


# --- a tokenizer that would not end ---------------------------------------------------------------

REPLACED = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
NESTED = {"type": "Sequence", "decoders": [{"type": "Sequence", "decoders": [REPLACED] * 10}] * 4}
TOKENIZERS = {
    "growing": {"decoder": {"type": "Sequence", "decoders": [REPLACED] * 10}},
    "growing in many ways": {"decoder": NESTED},
    "growing at once": {"decoder": REPLACED | {"content": "a" * 10**6}},
    "growing from nothing": {"decoder": REPLACED | {"pattern": {"String": ""}}},
    "backtracking": {"decoder": REPLACED | {"pattern": {"Regex": "(a+a+)+(.*.*)*$x"}}},
    "stripping beyond the end": {
        "decoder": {"type": "Strip", "content": "a", "start": 2**63, "stop": 0}
    },
    "without a type": {"decoder": {"decoders": [REPLACED] * 40}},
    "long tokens": {
        "model": {"type": "WordLevel", "vocab": {"a" * 10**6: 0, "b": 1}, "unk_token": "b"}
    },
    "long pieces": {"model": {"type": "Unigram", "vocab": [["a" * 10**6, 0.0]], "unk_id": 0}},
}


DECODERS = {
    "none": None,
    "GPT-2": {
        "type": "ByteLevel",
        "add_prefix_space": True,
        "trim_offsets": True,
        "use_regex": True,
    },
    "BERT": {"type": "WordPiece", "prefix": "##", "cleanup": True},
    "T5": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
    "Llama": {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    },
}


def with_tokenizer(run, change):
    """Set fields of tokenizer.json, or change its text."""
    text = (run / "tokenizer.json").read_text()
    (run / "tokenizer.json").write_text(
        change(text) if callable(change) else json.dumps(json.loads(text) | change)
    )
    run.rehash()
    return run


def test_tokenizers_that_would_not_end_are_not_run(make_run, failed):
    # Readers read it differently.
    doubled = {
        "a key twice": lambda text: text.replace(
            '"decoder":', f'"decoder":{json.dumps(REPLACED)},"decoder":'
        )
    }
    for name, change in (TOKENIZERS | doubled).items():
        run = with_tokenizer(make_run(), change)
        assert failed(run.audit()) == {"integrity.format", "release.text"}, name


def test_known_decoders_are_run(make_run):
    """The texts are those of another decoder; what counts is that they were decoded again."""
    for name, decoder in DECODERS.items():
        checks = {
            check.id: check
            for check in with_tokenizer(make_run(), {"decoder": decoder}).audit().checks
        }
        assert checks["integrity.format"].status == "pass", name
        first = checks["release.text"].values.get("first")
        assert first is None or first.code != "release.undecodable", name
