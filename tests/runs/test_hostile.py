"""Run directories made to harm whoever audits them, through the command line and in a process of limited means.

Every one is refused (exit code 2) or fails a check (1), within a minute and 4 GB of address space, without a
traceback. What they lure the reader to is a pipe that nobody writes to: following it would last for ever.
"""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dpaudit import reports

SECONDS, ADDRESSES = 60, 4 << 30
#: The interpreter and the libraries take some 150 of these.
MEGABYTES = 500

CHILD = f"""
import pathlib, resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({ADDRESSES}, {ADDRESSES}))
from dpaudit.cli import main
try:
    main(sys.argv[1:])
finally:
    pathlib.Path("status").write_bytes(pathlib.Path("/proc/self/status").read_bytes())
"""


@pytest.fixture(scope="module")
def bounded(tmp_path_factory):
    """Runs dpaudit in a process of its own: (exit code, all it printed, the most megabytes it used)."""
    place = tmp_path_factory.mktemp("bounded")

    def run(*arguments):
        command = [sys.executable, "-c", CHILD, *map(str, arguments)]
        environment = {**os.environ, "COLUMNS": "200"}
        done = subprocess.run(command, cwd=place, env=environment, capture_output=True, timeout=SECONDS, check=False)
        said = (done.stdout + done.stderr).decode("utf-8")
        assert "Traceback" not in said and "panicked" not in said, said[-3000:]
        kilobytes = re.search(r"VmHWM:\s*(\d+) kB", (place / "status").read_text())
        return done.returncode, said, int(kilobytes.group(1)) // 1024

    return run


def text_of(name, text):
    """Put a text in a file's place."""
    return lambda run: (run / name).write_bytes(text if isinstance(text, bytes) else text.encode())


def field(**change):
    return lambda run: run.edit_manifest({name.replace("__", "."): value for name, value in change.items()})


def number_in(name, digits):
    """A number in run.json that Python would not write."""

    def plant(run):
        run.edit_manifest({name: "here"})
        (run / "run.json").write_text((run / "run.json").read_text().replace('"here"', digits))

    return plant


def entry(name, change):
    def edit(entries):
        return [each._replace(data=change(each.data)) if each.name == name else each for each in entries]

    return lambda run: run.rezip(0, edit)


def entry_json(name, text):
    """Replace a part of an entry's JSON."""
    return entry(
        name, lambda data: json.dumps(json.loads(data) | {"attributes": "here"}).replace('"here"', text).encode()
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
    lines = (run / "hashes").read_text()
    (run / "hashes").write_text(lines + f"{'0' * 64}  ../pipe\n{'0' * 64}  steps/../../pipe\n{'0' * 64}  /dev/stdin\n")


def a_million_steps(run):
    """As many as a manifest may declare, with arrays that agree."""
    run.edit_manifest({"stopping.max_tokens": 1 << 20})

    def grow(entries):
        return [
            each._replace(data=each.data.replace(b'"shape": [3,', b'"shape": [1048576,'))
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
    run.edit_manifest({"stopping.max_tokens": 1 << 20})

    def claim(entries):
        return [
            each._replace(data=re.sub(rb'("(?:chunk_)?shape": \[)3', rb"\g<1>1048576", each.data))
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
        file.write(struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0))


def many_entries(run):
    def more(entries):
        return entries + [entries[0]._replace(name=f"central/c/{number}/0/0") for number in range(3, 100_000)]

    run.rezip(0, more)


def same_label(text):
    """One text for a batch's label, in manifest and header, and for the model's and the template's names."""

    def plant(run):
        labels = [text, "b"]
        run.edit_manifest(
            {"batching.labels": labels, "model.name": text, "prompt.template": text, "software": {text: text}}
        )
        run.rewrite(
            0, lambda draft: setattr(draft, "header", type(draft.header)(**vars(draft.header) | {"label": text}))
        )

    return plant


DEEP = "[" * 1_000_000
HUGE = "1" + "0" * 400
LONG = "1" * 1_000_000
#: What is planted, the exit code, and what the message must name.
HOSTILE = {
    "a billion tokens": (field(stopping__max_tokens=10**9), 2, "stopping.max_tokens"),
    "a billion batches": (field(batching__batches=10**9), 2, "batching.batches"),
    "16 million batches": (sixteen_million_batches, 2, "batch 2 is missing"),
    "a billion tokens to choose from": (field(record__vocabulary=10**9), 2, "record.vocabulary"),
    "a million steps": (a_million_steps, 1, "release.stopping"),
    "deep run.json": (text_of("run.json", '{"format_version":' + DEEP), 2, "run.json"),
    "deep samples": (text_of("samples.jsonl", DEEP + "\n"), 2, "samples.jsonl"),
    "deep clusters": (text_of("clusters", DEEP), 2, "clusters"),
    "deep tokenizer": (text_of("tokenizer.json", '{"model":' + DEEP), 2, "tokenizer.json"),
    "deep zarr.json": (entry("zarr.json", lambda _: DEEP.encode()), 2, "00000000.zip"),
    "deep attributes": (entry_json("token/zarr.json", '{"a":' * 100_000 + "1" + "}" * 100_000), 2, "00000000.zip"),
    "epsilon NaN": (number_in("claim.epsilon", "NaN"), 2, "NaN"),
    "clip infinite": (number_in("mechanism.clip", "Infinity"), 2, "Infinity"),
    "clip beyond floats": (number_in("mechanism.clip", "1e400"), 2, "mechanism.clip"),
    "epsilon of 400 digits": (number_in("claim.epsilon", HUGE), 2, "claim.epsilon"),
    "epsilon of a million digits": (number_in("claim.epsilon", LONG), 2, "run.json"),
    "records of 400 digits": (number_in("data.records", HUGE), 1, "partition.disjoint"),
    "seed of 400 digits": (number_in("sampling", f'{{"generator": "test-seed", "seed": {HUGE}}}'), 1, "randomness"),
    "contexts of 400 digits": (entry_json("zarr.json", f'{{"header": {{"id": 0, "contexts": {HUGE}}}}}'), 2, ".zip"),
    "stop sequence of 400 digits": (number_in("stopping.sequences", f"[[{HUGE}]]"), 1, "release.stopping"),
    "linked run.json": (lure("run.json"), 2, "run.json"),
    "linked samples": (lure("samples.jsonl"), 2, "samples.jsonl"),
    "linked batch": (lure("steps/00000000.zip"), 2, "00000000.zip"),
    "linked steps": (lure("steps"), 2, "steps"),
    "linked tokenizer": (lure("tokenizer.json"), 2, "tokenizer.json"),
    "linked hashes": (lure("hashes"), 2, "hashes"),
    "pipe for run.json": (pipe("run.json"), 2, "run.json"),
    "pipe for the assignment": (pipe("assignment"), 2, "assignment"),
    "link among the batches": (lambda run: (run / "steps/more").symlink_to("/dev/zero"), 2, "steps"),
    "digests of files outside": (digest_outside, 1, "integrity.hashes"),
    "names that leave the zip": (
        lambda run: run.rezip(0, lambda entries: [each._replace(name=f"../../../{each.name}") for each in entries]),
        2,
        "00000000.zip",
    ),
    "a million steps that are not there": (declared_steps_without_chunks, 2, "00000000.zip"),
    "a directory of a gigabyte": (large_directory, 2, "directory is said to have"),
    "a directory of eight gigabytes": (large_directory_of_a_large_file, 2, "directory is said to have"),
    "a hundred thousand entries": (many_entries, 2, "superfluous"),
    "zip bomb": (
        lambda run: run.rezip(0, lambda e: [*e[:-1], e[-1]._replace(data=bytes(1 << 28))], compression=8),
        2,
        "compressed by the zip itself",
    ),
    "doubled array": (entry("central/c/0/0/0", lambda data: data * 2), 2, "00000000.zip"),
    "key of a million bytes": (field(batching__key="5e" * 1_000_000), 2, "batching.key"),
    "no key": (field(batching__key=""), 2, "batching.key"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_run_is_refused_within_bounds(make_run, bounded, name):
    plant, code, named = HOSTILE[name]
    run = make_run()
    plant(run)
    if not re.search(r"link|pipe|digests|directory", name):
        run.rehash()
    found, said, megabytes = bounded("verify", run.path)
    assert (found, named in said) == (code, True), said[-3000:]
    assert megabytes < MEGABYTES
    assert len(said) < 20_000


def grown(run, name):
    """Make a file 4 terabytes of nothing; file systems keep it for free."""
    with open(run / name, "r+b") as file:
        file.truncate(1 << 42)


def padded_zip(run, name):
    """Put a terabyte of nothing before a zip: those who look for its end find it whole."""
    path = run / name
    data = path.read_bytes()
    with open(path, "wb") as file:
        file.seek(1 << 40)
        file.write(data)


@pytest.mark.parametrize(
    ("grow", "name"),
    [(grown, name) for name in ("run.json", "samples.jsonl", "assignment", "clusters", "hashes", "tokenizer.json")]
    + [(grown, "steps/00000000.zip"), (padded_zip, "steps/00000000.zip")],
)
def test_a_file_of_terabytes_is_not_read_through(make_run, bounded, grow, name):
    run = make_run()
    grow(run, name)
    code, said, megabytes = bounded("verify", run.path)
    assert (code, name in said) == (2, True), said[-3000:]
    assert megabytes < MEGABYTES


# --- long files ------------------------------------------------------------------------------------------------------


def test_line_of_100_megabytes(make_run, bounded):
    run = make_run()
    (run / "samples.jsonl").write_bytes(b'{"id": 0, "text": "' + b"x" * 100_000_000 + b'"}\n')
    run.rehash()
    code, said, megabytes = bounded("verify", run.path)
    assert (code, "samples.jsonl" in said) == (2, True)
    assert megabytes < MEGABYTES


def test_a_million_digests(make_run, bounded):
    run = make_run()
    with open(run / "hashes", "a") as file:
        file.writelines(f"{'0' * 64}  steps/{number:08d}.zip\n" for number in range(2, 1_000_002))
    code, said, _ = bounded("verify", run.path)
    assert (code, "1000000 differences" in said) == (1, True), said


def test_long_assignment_is_streamed(make_run, bounded):
    """Half a million records in no batch: as objects they would be larger than what is allowed here."""
    run, lines = make_run(), 500_000
    with open(run / "assignment", "w") as file:
        file.writelines(f"{number:064x}\t-\t-\n" for number in range(lines))
    run.rehash()
    code, said, megabytes = bounded("verify", run.path)
    assert (code, "partition.disjoint" in said) == (1, True)
    assert megabytes < MEGABYTES / 2


# --- text that would act ---------------------------------------------------------------------------------------------

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


@pytest.mark.parametrize("text", [MARKUP, CONTROLS], ids=["markup", "controls"])
def test_text_of_a_run_is_only_text_in_reports(make_run, bounded, tmp_path, text):
    run = make_run()
    same_label(text)(run)
    (run / f"steps/{text.replace('/', '|')}").write_text("a name")
    run.rehash()
    code, said, _ = bounded("report", run.path, "--out", tmp_path / "out")
    assert code == 2  # a foreign file among the batches
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", said)
    page = (tmp_path / "out/report.html").read_text()
    tags = Tags(page).seen
    acting = [tag for tag, _ in tags if tag in ("script", "img")]
    assert acting == ["script"] and page.endswith(f"<script>{OWN_SCRIPT}</script>\n</body>\n</html>")
    assert not any(name.startswith("on") for _, attributes in tags for name in attributes)
    ET.parse(tmp_path / "out/junit.xml")
    json.loads((tmp_path / "out/report.json").read_text())
    for name in ("report.html", "report.md", "junit.xml"):
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", (tmp_path / "out" / name).read_text())


@pytest.mark.parametrize(
    "text",
    [
        MARKUP,
        CONTROLS,
    ],
    ids=["markup", "controls"],
)
def test_text_of_an_unreadable_run_is_only_text(make_run, bounded, text):
    """Names that come to the terminal by way of an error message."""
    run = make_run()
    odd = run.path.with_name(text.replace("/", "|"))
    run.path.rename(odd)
    (odd / "run.json").write_text(json.dumps({"format_version": 1, text: 1}))
    code, said, _ = bounded("verify", odd)
    assert code == 2
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", said)


def test_report_folder_that_is_a_link(make_run, bounded, tmp_path):
    run, outside = make_run(), tmp_path / "outside"
    outside.mkdir()
    (run / "report").symlink_to(outside)
    code, said, _ = bounded("report", run.path)
    assert (code, "link" in said, list(outside.iterdir())) == (2, True, [])


# --- a tokenizer that would not end ----------------------------------------------------------------------------------

REPLACED = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
NESTED = {"type": "Sequence", "decoders": [{"type": "Sequence", "decoders": [REPLACED] * 10}] * 4}
TOKENIZERS = {
    "growing": {"decoder": {"type": "Sequence", "decoders": [REPLACED] * 10}},
    "growing in many ways": {"decoder": NESTED},
    "growing at once": {"decoder": REPLACED | {"content": "a" * 10**6}},
    "growing from nothing": {"decoder": REPLACED | {"pattern": {"String": ""}}},
    "backtracking": {"decoder": REPLACED | {"pattern": {"Regex": "(a+a+)+(.*.*)*$x"}}},
    "stripping beyond the end": {"decoder": {"type": "Strip", "content": "a", "start": 2**63, "stop": 0}},
    "without a type": {"decoder": {"decoders": [REPLACED] * 40}},
    "long tokens": {"model": {"type": "WordLevel", "vocab": {"a" * 10**6: 0, "b": 1}, "unk_token": "b"}},
    "long pieces": {"model": {"type": "Unigram", "vocab": [["a" * 10**6, 0.0]], "unk_id": 0}},
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizer_that_would_not_end(make_run, failed, name):
    run = make_run()
    fields = json.loads((run / "tokenizer.json").read_text())
    (run / "tokenizer.json").write_text(json.dumps(fields | TOKENIZERS[name]))
    run.rehash()
    assert failed(run.audit()) == {"integrity.format", "release.text"}


def test_key_that_readers_read_differently(make_run, failed):
    run = make_run()
    text = (run / "tokenizer.json").read_text()
    (run / "tokenizer.json").write_text(
        text.replace('"decoder":null', f'"decoder":{json.dumps(REPLACED)},"decoder":null')
    )
    run.rehash()
    assert failed(run.audit()) == {"integrity.format", "release.text"}


def test_growing_text_stays_in_bounds(make_run, bounded):
    """Forty replacements in a row: 2^40 letters."""
    run = make_run()
    fields = json.loads((run / "tokenizer.json").read_text())
    (run / "tokenizer.json").write_text(json.dumps(fields | TOKENIZERS["growing in many ways"]))
    run.rehash()
    code, said, megabytes = bounded("verify", run.path)
    assert (code, "tokenizer.json" in said) == (2, True)
    assert megabytes < MEGABYTES


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
        {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
        {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
    ],
    ids=["none", "GPT-2", "BERT", "T5", "Llama"],
)
def test_known_decoders_are_run(make_run, decoder):
    run = make_run()
    fields = json.loads((run / "tokenizer.json").read_text())
    (run / "tokenizer.json").write_text(json.dumps(fields | {"decoder": decoder}))
    run.rehash()
    # The texts are those of another decoder; what counts is that they were decoded again.
    checks = {check.id: check for check in run.audit().checks}
    assert checks["integrity.format"].status == "pass"
    assert "cannot be decoded" not in checks["release.text"].measured


def test_nothing_is_unpickled(make_run, bounded, tmp_path):
    """An object array would be, by some readers; here the manifest fixes every array's type."""
    run, proof = make_run(), tmp_path / "proof"
    command = f"cos\nsystem\n(S'touch {proof}'\ntR.".encode()
    entry("central/c/0/0/0", lambda _: command)(run)
    run.rehash()
    assert bounded("verify", run.path)[0] == 2
    assert not proof.exists()
