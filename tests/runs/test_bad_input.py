"""Whatever lies at the path: an audit never raises, never passes it, and names the file."""

from __future__ import annotations

import json
import math
import os
import shutil
import struct
import warnings
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpaudit.audit import audit_run
from dpaudit.runs import encoded_centers

DEEP = "[" * 100_000


def complaints(result):
    return "\n".join(f"{c.id}: {c.measured}: {c.detail}" for c in result.checks if c.status in ("fail", "error"))


def assert_refused(result, name, verdicts=("error",)):
    assert result.verdict in verdicts, complaints(result)
    assert name in complaints(result)
    json.loads(result.to_json())


# --- the path itself -------------------------------------------------------------------------------------------------

PATHS = {
    "missing": lambda path: None,
    "a file": lambda path: path.write_text("no run"),
    "an empty folder": lambda path: path.mkdir(),
    "a dangling link": lambda path: path.symlink_to(path.parent / "nowhere"),
    "a folder without run.json": lambda path: (path / "steps").mkdir(parents=True),
}


@pytest.mark.parametrize("make", PATHS.values(), ids=PATHS.keys())
def test_path_that_is_no_run(tmp_path, make):
    path = tmp_path / "somewhere"
    make(path)
    assert_refused(audit_run(path), "somewhere")
    assert_refused(audit_run(str(path)), "somewhere")


@pytest.mark.parametrize("name", ["a" * 5000, "a\0b", "run.json/run"], ids=["long", "nul", "below a file"])
def test_path_that_the_system_refuses(make_run, name):
    assert_refused(audit_run(make_run() / name), name[:2])


def test_path_that_is_not_utf8(make_run):
    run = make_run()
    odd = os.fsdecode(os.fsencode(run.path) + b"\xff")
    run.path.rename(odd)
    result = audit_run(odd)
    assert result.verdict == "pass"
    result.to_json().encode("utf-8")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", ["run.json", "samples.jsonl", "hashes", "steps", "steps/00000000.zip", "clusters"])
def test_file_that_may_not_be_read(make_run, name):
    run = make_run()
    mode = (run / name).stat().st_mode
    (run / name).chmod(0)
    result = run.audit()
    (run / name).chmod(mode)
    assert_refused(result, name, ("error", "fail"))


# --- run.json --------------------------------------------------------------------------------------------------------

TEXTS = {
    "empty": "",
    "not JSON": "format_version: 1",
    "deep": DEEP,
    "deep object": '{"a":' * 100_000,
    "array": "[1]",
    "string": '"run"',
    "null": "null",
    "NaN": '{"format_version": NaN}',
    "digits": '{"format_version": ' + "1" * 10_000 + "}",
    "huge": " " * (1 << 24) + "{}",
    "not UTF-8": b"\xff\xfe{}",
    "lone surrogate": '{"format_version": "\\ud800"}',
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_manifest_that_is_not_json_of_format_1(make_run, text):
    run = make_run()
    (run / "run.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    run.rehash()
    assert_refused(run.audit(), "run.json")


@pytest.mark.parametrize("version", [0, 2, "1", True, None, 1.0, [1], 10**300], ids=str)
def test_other_format_version(make_run, version):
    run = make_run()
    run.edit_manifest({"format_version": version})
    run.rehash()
    assert_refused(run.audit(), "run.json: format_version")


FIELDS = {
    "surprise": 1,
    "mechanism.surprise": 1,
    "mechanism.clip": -1.0,
    "mechanism.temperature": "1.25",
    "mechanism.divisor": 4.0,
    "mechanism.support": {"kind": "public-top-k", "size": 13},
    "mechanism.aggregator": "mode",
    "batching.batches": 0,
    "batching.rule": "hashed-slots",
    "batching.labels": ["twice", "twice"],
    "stopping.max_tokens": 10**9,
    "stopping.sequences": "end",
    "record.vocabulary": 10**9,
    "record.width": 1,
    "record.dtype": "float16",
    "record.contexts": 1,
    "data.records": -1,
    "data": None,
    "claim": None,
    "claim.epsilon": -1.0,
    "claim.delta": 2.0,
    "claim.kind": "rigorous",
    "claim.relation": True,
    "software": {"python": 3.11},
    "clustering.settings": {"k": 3},
    "clustering.public_digest": "0" * 64,
    "clustering": {"method": "k-means"},
}


@pytest.mark.parametrize("name", FIELDS)
def test_manifest_field_of_the_wrong_type_or_value(make_run, name):
    run = make_run()
    run.edit_manifest({name: FIELDS[name]})
    run.rehash()
    result = run.audit()
    # Without a claim the run is merely unfinished. A rule that spans several fields names the part they are in.
    assert_refused(result, "claim" if name == "claim" else "run.json")
    assert name.split(".")[0] in complaints(result)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("name", ["claim.epsilon", "mechanism.clip", "mechanism.temperature"])
def test_manifest_number_that_is_not_finite(make_run, name, number):
    run = make_run()
    run.edit_manifest({name: "here"})
    text = (run / "run.json").read_text().replace('"here"', number)
    (run / "run.json").write_text(text)
    run.rehash()
    assert_refused(run.audit(), "run.json")


EXTREMES = [
    ({}, {"mechanism.temperature": 5e-324}),
    ({}, {"record.vocabulary": 1 << 22}),
    ({}, {"stopping.max_tokens": 1 << 20}),
    ({}, {"batching.batches": 1 << 24}),
    ({"aggregator": "mean"}, {"mechanism.temperature": 1e-200, "mechanism.divisor": 1e-200}),
    ({"aggregator": "mean"}, {"mechanism.clip": 1e200}),
    ({"aggregator": "mean"}, {"mechanism.divisor": 1e300}),
    ({"aggregator": "mean"}, {"data.records": 10**400}),
    ({"aggregator": "mean"}, {"claim.delta": 5e-324, "claim.epsilon": 7.0}),  # three tokens of range 2.4
]


@pytest.mark.parametrize(("kind", "change"), EXTREMES, ids=str)
def test_extreme_settings_overflow_nowhere(make_run, kind, change):
    run = make_run(**kind)
    run.edit_manifest(change)
    run.rehash()
    result = run.audit()
    assert result.verdict in ("fail", "error")
    json.loads(result.to_json())


# --- files missing, linked, of another kind --------------------------------------------------------------------------

NAMES = [
    "run.json",
    "samples.jsonl",
    "hashes",
    "assignment",
    "clusters",
    "tokenizer.json",
    "steps",
    "steps/00000001.zip",
]


def remove(path):
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def link(path):
    path.symlink_to(shutil.move(path, path.parent.parent / f"moved-{path.name}"))


def make_folder(path):
    remove(path)
    (path / "inside").mkdir(parents=True)


def make_fifo(path):
    remove(path)
    os.mkfifo(path)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("replace", [remove, link, make_folder, make_fifo])
def test_file_that_is_missing_linked_or_of_another_kind(make_run, name, replace):
    run = make_run()
    replace(run / name)
    # A folder that holds nothing of ours where steps/ was: what is missing are the batches.
    assert_refused(run.audit(), "steps" if name == "steps" else name, ("error", "fail"))


@pytest.mark.parametrize("name", ["samples.jsonl", "assignment", "clusters", "tokenizer.json", "steps/00000001.zip"])
def test_missing_file_is_noticed_though_the_hashes_are_forged(make_run, name):
    run = make_run()
    remove(run / name)
    run.rehash()
    assert_refused(run.audit(), "00000001" if name == "00000001.zip" else name.split("/")[0], ("error", "fail"))


# --- clusters --------------------------------------------------------------------------------------------------------

CLUSTERED = {"sizes": (1, 2, 1, 2), "clusters": "public-centers-rebalanced"}
CLUSTERS = {
    "surprise": 1,
    "method": "means",
    "noisy_counts": [[1, 2, 3, 1 << 41]] * 2,
    "kept": [[0, -1], [1, 3]],
    "batches": [[4, 8], [6, 1e300]],
    "centers": "no base64!",
}


@pytest.mark.parametrize("name", CLUSTERS)
def test_clusters_of_the_wrong_type_or_value(make_run, name):
    run = make_run(**CLUSTERED)
    run.edit_clusters(**{name: CLUSTERS[name]})
    run.rehash()
    result = run.audit()
    assert_refused(result, "clusters")
    assert name in complaints(result)


@pytest.mark.parametrize("number", [math.nan, math.inf, -1.1e6])
def test_centers_that_are_no_embeddings(make_run, number):
    run = make_run(**CLUSTERED)
    centers = run.spec.centers.copy()
    centers[2, 1] = number
    text, digest = encoded_centers(centers)
    run.edit_clusters(centers=text)
    run.edit_manifest({"clustering.digest": digest})
    run.rehash()
    result = run.audit()
    assert_refused(result, "clusters")
    assert "centers holds a number that is not finite, or beyond 1,000,000" in complaints(result)


SETTINGS = {
    "a list": [1],
    "too many": {f"s{number}": 1 for number in range(65)},
    "a long value": {"k": "x" * 257},
    "a long name": {"k" * 65: 1},
    "a name of another line": {"k\nb": 1},
    "nothing": {"k": None},
    "a list inside": {"k": [1]},
    "yes": {"k": True},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_settings_of_a_clustering_are_few_and_plain(make_run, settings):
    run = make_run(**CLUSTERED)
    run.edit_manifest({"clustering.settings": settings})
    run.rehash()
    result = run.audit()
    assert_refused(result, "run.json")
    assert "clustering.settings" in complaints(result)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "1" + "0" * 400])
def test_settings_of_a_clustering_are_finite(make_run, number):
    run = make_run(**CLUSTERED)
    run.edit_manifest({"clustering.settings": {"k": "here"}})
    (run / "run.json").write_text((run / "run.json").read_text().replace('"here"', number))
    run.rehash()
    assert_refused(run.audit(), "run.json")


@pytest.mark.parametrize(
    ("name", "key"),
    [("run.json", '"claim": null,'), ("run.json", '"created": "",'), ("clusters", '"kept": [[0], [0]],')],
)
def test_a_key_that_is_there_twice(make_run, name, key):
    """Readers could differ over it: most take the last one, and some the first."""
    run = make_run(**CLUSTERED)
    text = (run / name).read_text()
    (run / name).write_text(text.replace("{", "{" + key, 1))
    run.rehash()
    result = run.audit()
    assert_refused(result, name)
    assert "a key is doubled" in complaints(result)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_clusters_that_are_not_json_of_format_1(make_run, text):
    run = make_run(**CLUSTERED)
    (run / "clusters").write_bytes(text if isinstance(text, bytes) else text.encode())
    run.rehash()
    assert_refused(run.audit(), "clusters")


CLUSTERINGS = {
    "centers": 0,
    "keep": 5,
    "origin": None,
    "delta": 1.0,
    "epsilon": 0.5,  # of public centres
    "embedding": None,
    "digest": "0" * 63,
    "counts": {"epsilon": 1.0, "scale": 0.0, "noised": "before-selection"},
    "counts.noised": "later",
    "records_per_batch": None,
    "most_batches": 0,
}


@pytest.mark.parametrize("name", CLUSTERINGS)
def test_clustering_of_the_wrong_type_or_value(make_run, name):
    run = make_run(**CLUSTERED)
    run.edit_manifest({f"clustering.{name}": CLUSTERINGS[name]})
    run.rehash()
    assert_refused(run.audit(), "run.json: clustering")


@pytest.mark.parametrize("change", [{"batches_per_label": 9}, {"generate_per_label": 1}], ids=str)
def test_batches_are_of_labels_or_of_clusters(make_run, change):
    run = make_run(**CLUSTERED)
    run.edit_manifest({f"batching.{name}": value for name, value in change.items()})
    run.rehash()
    assert_refused(run.audit(), "with a clustering")
    plain = make_run()
    plain.edit_manifest({"batching.generate_per_cluster": 1})
    plain.rehash()
    assert_refused(plain.audit(), "generate_per_cluster")


HUGE = [
    {"batching.generate_per_cluster": 10**18},
    {"clustering.records_per_batch": 5e-324},
    {"clustering.counts.scale": 5e-324},
    {"clustering.counts.scale": 1e308, "clustering.counts.epsilon": 5e-324},
    {"clustering.counts.epsilon": 1e308},
    {"clustering.delta": 0.5, "clustering.origin": "noised"},
]


@pytest.mark.parametrize("change", HUGE, ids=str)
@pytest.mark.parametrize("aggregator", ["median", "mean"])
def test_extreme_clusterings_overflow_nowhere(make_run, change, aggregator):
    run = make_run(**CLUSTERED, aggregator=aggregator)
    run.edit_manifest(change)
    run.rehash()
    result = run.audit()
    json.loads(result.to_json())
    assert result.verdict == ("pass" if "clustering.counts.epsilon" in change and len(change) == 1 else "fail")


# --- samples.jsonl, hashes, tokenizer.json ---------------------------------------------------------------------------


def line_edit(change):
    """Edit the text of samples.jsonl as bytes."""
    return lambda run: (run / "samples.jsonl").write_bytes(change((run / "samples.jsonl").read_bytes()))


SAMPLES = {
    "empty": line_edit(lambda data: b""),
    "cut inside a line": line_edit(lambda data: data[:-9]),
    "without the last newline": line_edit(lambda data: data[:-1]),
    "not UTF-8": line_edit(lambda data: data.replace(b"w", b"\xff", 1)),
    "not JSON": line_edit(lambda data: b"sample\n" + data),
    "blank line": line_edit(lambda data: data + b"\n"),
    "array": line_edit(lambda data: b"[]\n" + data),
    "deep": line_edit(lambda data: DEEP.encode() + b"\n"),
    "line missing": line_edit(lambda data: data[: data.index(b"\n") + 1]),
    "doubled line": line_edit(lambda data: data + data),
    "foreign id": lambda run: run.edit_samples(lambda lines: lines[1].update(id=7)),
    "negative id": lambda run: run.edit_samples(lambda lines: lines[1].update(id=-1)),
    "huge id": lambda run: run.edit_samples(lambda lines: lines[1].update(id=10**30)),
    "id as text": lambda run: run.edit_samples(lambda lines: lines[1].update(id="1")),
    "tokens as text": lambda run: run.edit_samples(lambda lines: lines[1].update(tokens=["1"])),
    "unknown field": lambda run: run.edit_samples(lambda lines: lines[1].update(score=1)),
    "field missing": lambda run: run.edit_samples(lambda lines: lines[1].pop("stop")),
    "unknown stop": lambda run: run.edit_samples(lambda lines: lines[1].update(stop="boredom")),
}


@pytest.mark.parametrize("damage", SAMPLES.values(), ids=SAMPLES.keys())
def test_damaged_samples(make_run, damage):
    run = make_run()
    damage(run)
    run.rehash()
    assert_refused(run.audit(), "samples.jsonl")


HASHES = {
    "empty": lambda text: "",
    "no digest": lambda text: "run.json\n" + text,
    "upper case": lambda text: text.upper(),
    "doubled": lambda text: text + text.splitlines(keepends=True)[0],
    "cut": lambda text: text[:-1],
    "outside": lambda text: text + "0" * 64 + "  ../../etc/passwd\n",
    "absolute": lambda text: text + "0" * 64 + "  /etc/passwd\n",
    "one line less": lambda text: "".join(text.splitlines(keepends=True)[1:]),
}


@pytest.mark.parametrize("damage", HASHES.values(), ids=HASHES.keys())
def test_damaged_hashes(make_run, damage):
    run = make_run()
    (run / "hashes").write_text(damage((run / "hashes").read_text()))
    result = run.audit()
    assert_refused(result, "integrity.hashes", ("error", "fail"))


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"null", b"\xff", DEEP.encode(), b'{"model": {}}'], ids=range(7))
def test_damaged_tokenizer(make_run, text):
    run = make_run()
    (run / "tokenizer.json").write_bytes(text)
    run.rehash()
    assert_refused(run.audit(), "tokenizer.json", ("fail", "error"))


@pytest.mark.parametrize("name", ["foreign.txt", "steps/foreign.zip", "steps/00000000.zip.part", os.fsdecode(b"\xff")])
def test_foreign_file(make_run, name):
    run = make_run()
    (run / name).write_text("added")
    result = run.audit()
    assert_refused(result, "was added", ("error", "fail"))
    result.to_json().encode("utf-8")


# --- batch files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0, 1, 2, 5, 10, 25, 50, 75, 90, 99, 100])
def test_truncated_batch_is_never_read_as_whole(make_run, share):
    run = make_run()
    whole = run.steps_file(0).read_bytes()
    run.steps_file(0).write_bytes(whole[: (len(whole) - 1) * share // 100])
    run.rehash()
    assert_refused(run.audit(), "steps/00000000.zip")


def test_changed_byte_anywhere_never_passes(make_run):
    run = make_run(aggregator="mean", sizes=(2,), vocabulary=6, max_tokens=2)
    files = {p: p.read_bytes() for p in sorted(run.path.rglob("*")) if p.is_file()}

    @given(st.sampled_from(list(files)), st.integers(0, 10**6), st.integers(1, 255))
    @settings(max_examples=250)
    def check(path, offset, mask):
        damaged = bytearray(files[path])
        damaged[offset % len(damaged)] ^= mask
        path.write_bytes(damaged)
        try:
            result = run.audit()
        finally:
            path.write_bytes(files[path])
        assert_refused(result, path.name, ("error", "fail"))

    check()
    assert run.audit().verdict == "pass"


def test_changed_bytes_of_a_batch_never_raise_though_the_hashes_are_forged(make_run):
    run = make_run(sizes=(3,), vocabulary=6, max_tokens=2)
    whole = run.steps_file(0).read_bytes()

    @given(st.lists(st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255)), min_size=1, max_size=4))
    @settings(max_examples=200)
    def check(changes):
        damaged = bytearray(whole)
        for offset, value in changes:
            damaged[offset] = value
        run.steps_file(0).write_bytes(damaged)
        run.rehash()
        json.loads(run.audit().to_json())

    check()


def test_swapped_batches(make_run):
    run = make_run(sizes=(4, 4))
    one, other = run.steps_file(0), run.steps_file(1)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    assert_refused(run.audit(), "steps/00000000.zip")
    run.rehash()
    assert_refused(run.audit(), "steps/00000000.zip")


def test_batch_of_another_run(make_run):
    run, other = make_run(), make_run(seed=1)
    shutil.copy(other.steps_file(0), run.steps_file(0))
    assert_refused(run.audit(), "steps/00000000.zip", ("fail",))
    run.rehash()
    assert_refused(run.audit(), "samples.jsonl", ("fail",))


@pytest.mark.parametrize(
    "kind", [{"sizes": (8, 9)}, {"vocabulary": 13}, {"dtype": "float64"}, {"aggregator": "mean"}, {"width": 3}], ids=str
)
def test_batch_of_another_kind_of_run(make_run, kind):
    run, other = make_run(), make_run(**kind)
    shutil.copy(other.steps_file(0), run.steps_file(0))
    run.rehash()
    assert_refused(run.audit(), "00000000.zip" if "sizes" not in kind else "samples.jsonl", ("error", "fail"))


def entry(name, change):
    """Change the bytes of one entry of a batch's zip file; its checksum follows."""
    return lambda entries: [e._replace(data=change(e.data)) if e.name == name else e for e in entries]


def metadata(name, *place, value):
    """Set a field of an entry's JSON."""

    def change(data):
        fields = json.loads(data)
        inner = fields
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = value
        return json.dumps(fields).encode()

    return entry(name, change)


def header(offset, number):
    """Set a field of a chunk's Blosc header: its own buffer says how large things are."""
    return entry("central/c/0/0/0", lambda data: data[:offset] + struct.pack("<I", number) + data[offset + 4 :])


GRID = ("chunk_grid", "configuration", "chunk_shape")
CODEC = {"name": "gzip", "configuration": {"level": 1}}
ZIPS = {
    "no entries": lambda entries: [],
    "no zarr.json": lambda entries: entries[1:],
    "foreign entry": lambda entries: [*entries, entries[0]._replace(name="extra/zarr.json")],
    "path traversal": lambda entries: [*entries, entries[0]._replace(name="../../evil")],
    "absolute path": lambda entries: [*entries, entries[0]._replace(name="/tmp/evil")],
    "doubled entry": lambda entries: [*entries, entries[-1]],
    "chunk missing": lambda entries: [e for e in entries if e.name != "central/c/1/0/0"],
    "chunk empty": entry("central/c/0/0/0", lambda data: b""),
    "chunk cut": entry("central/c/0/0/0", lambda data: data[:-5]),
    "chunk a header only": entry("central/c/0/0/0", lambda data: data[:12]),
    "chunk claims more": header(4, 2**31 - 1),
    "chunk claims less": header(4, 4),
    "chunk claims a longer buffer": header(12, 2**31 - 1),
    "chunk claims a shorter buffer": header(12, 17),
    "chunk of huge blocks": header(8, 2**31 - 1),
    "a billion steps": metadata("token/zarr.json", "shape", value=[10**9]),
    "no steps": metadata("token/zarr.json", "shape", value=[0]),
    "steps in words": metadata("token/zarr.json", "shape", value=["3"]),
    "steps without shape": metadata("token/zarr.json", "shape", value=[]),
    "other shape": metadata("central/zarr.json", "shape", value=[3, 4, 10**9]),
    "other chunks": metadata("central/zarr.json", *GRID, value=[3, 4, 12]),
    "other dtype": metadata("central/zarr.json", "data_type", value="float64"),
    "other codec": metadata("central/zarr.json", "codecs", value=[CODEC]),
    "no codec": metadata("central/zarr.json", "codecs", value=[]),
    "bits of tokens missing": lambda entries: [e for e in entries if not e.name.startswith("constant/")],
    "fewer bits of tokens": metadata("constant/zarr.json", "shape", value=[3, 1]),
    "bits of tokens cut": entry("constant/c/1/0", lambda data: data[:-3]),
    "bits of tokens a header only": entry("constant/c/1/0", lambda data: data[:3]),
    "bits of tokens of another array": lambda entries: [
        e._replace(data=next(o.data for o in entries if o.name == "central/c/0/0/0"))
        if e.name == "constant/c/0/0"
        else e
        for e in entries
    ],
    "chunk larger than its array": entry("central/c/1/0/0", lambda data: data + bytes(1 << 16)),
    "big-endian numbers": metadata("central/zarr.json", "codecs", 0, "configuration", "endian", value="big"),
    "storage transformers": metadata("central/zarr.json", "storage_transformers", value=[{"name": "x"}]),
    "other chunk names": metadata("central/zarr.json", "chunk_key_encoding", value={"name": "v2"}),
    "group for array": metadata("central/zarr.json", "node_type", value="group"),
    "other zarr": metadata("zarr.json", "zarr_format", value=2),
    "a field twice": entry("central/zarr.json", lambda data: b'{"shape": "hidden", ' + data[1:]),
    "a field of the header twice": entry("zarr.json", lambda data: data.replace(b'{"id"', b'{"id": "hidden", "id"')),
    "blanks behind": entry("token/zarr.json", lambda data: data + b" " * 1000),
    "another byte order mark": entry("central/zarr.json", lambda data: b"\xef\xbb\xbf" + data),
    "false for zero": metadata("central/zarr.json", "fill_value", value=False),
    "a format in halves": metadata("central/zarr.json", "zarr_format", value=3.0),
    "more of the group": metadata("zarr.json", "note", value="hidden"),
    "more attributes of the group": metadata("zarr.json", "attributes", "note", value="hidden"),
    "more of an array": metadata("central/zarr.json", "note", value="hidden"),
    "attributes of an array": metadata("central/zarr.json", "attributes", "note", value="hidden"),
    "more attributes of the tokens": metadata("token/zarr.json", "attributes", "note", value="hidden"),
    "other compression": metadata("central/zarr.json", "codecs", 1, "configuration", "clevel", value=9),
    "metadata not JSON": entry("central/zarr.json", lambda data: b"{"),
    "metadata deep": entry("central/zarr.json", lambda data: DEEP.encode()),
    "metadata huge": entry("central/zarr.json", lambda data: data + b" " * (1 << 24)),
    "other batch": metadata("zarr.json", "attributes", "header", "id", value=1),
    "id as text": metadata("zarr.json", "attributes", "header", "id", value="0"),
    "negative contexts": metadata("zarr.json", "attributes", "header", "contexts", value=-4),
    "a billion contexts": metadata("zarr.json", "attributes", "header", "contexts", value=10**9),
    "one context more": metadata("zarr.json", "attributes", "header", "contexts", value=5),
    "unknown header field": metadata("zarr.json", "attributes", "header", "surprise", value=1),
    "lone surrogate": metadata("zarr.json", "attributes", "header", "label", value="\ud800"),
    "no header": metadata("zarr.json", "attributes", value={}),
    "unknown stop": metadata("token/zarr.json", "attributes", "stop", value="boredom"),
    "text as number": metadata("token/zarr.json", "attributes", "text", value=5),
}


@pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning")
@pytest.mark.parametrize("damage", ZIPS.values(), ids=ZIPS.keys())
def test_hostile_batch_file(make_run, tmp_path, damage):
    run = make_run()
    run.rezip(0, damage)
    run.rehash()
    assert_refused(run.audit(), "steps/00000000.zip")
    assert not (tmp_path.parent / "evil").exists()


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_zip_bomb_is_not_decompressed(make_run, compression):
    run = make_run()
    run.rezip(0, entry("central/c/0/0/0", lambda data: bytes(1 << 26)), compression)
    run.rehash()
    assert_refused(run.audit(), "compressed by the zip itself")


def test_comments_of_a_zip_are_refused(make_run):
    """They could hold anything, and nothing else looks at them."""
    for comment in ("", "hidden"):
        run = make_run()
        path = run.steps_file(0)
        with zipfile.ZipFile(path, "a") as archive:
            archive.comment = comment.encode()
            archive.infolist()[0].comment = comment.encode()
            archive._didModify = True
        run.rehash()
        if comment:
            assert_refused(run.audit(), "account for")
        else:
            assert run.audit().verdict == "pass"


def test_row_that_would_not_fit_memory_is_refused(make_run):
    """The manifest alone may imply rows of many gigabytes; nothing of that size is allocated."""
    run = make_run()
    run.edit_manifest({"record.vocabulary": 1 << 22, "record.width": 64, "record.dtype": "float64"})
    shape = [129 - 1, 1 << 22]

    def grow(entries):
        entries = metadata("central/zarr.json", "shape", value=[3, *shape])(entries)
        entries = metadata("central/zarr.json", "data_type", value="uint64")(entries)
        entries = metadata("central/zarr.json", "codecs", 1, "configuration", "typesize", value=8)(entries)
        return metadata("central/zarr.json", *GRID, value=[1, *shape])(entries)

    run.rezip(0, grow)
    run.rehash()
    assert_refused(run.audit(), "are read")


def test_every_refusal_is_quiet(make_run, capfd):
    """No warnings or tracebacks beside the result."""
    run = make_run()
    run.steps_file(0).write_bytes(b"PK")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.audit()
    assert capfd.readouterr() == ("", "")
