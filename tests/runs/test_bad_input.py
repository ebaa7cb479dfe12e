"""Whatever lies at the path: an audit never raises, never passes it, and names the file."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import struct
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from dpaudit.auditing.run import audit_run
from dpaudit.runs import InputError, Manifest, RunReader, encoded_centers
from dpaudit.runs.manifest import SECTIONS

DEEP = "[" * 100_000


def complaints(result):
    return "\n".join(
        f"{c.id}: {c.measured}: {c.detail}" for c in result.checks if c.status in ("fail", "error")
    )


def assert_refused(result, name, verdicts=("error",)):
    assert result.verdict in verdicts, complaints(result)
    assert name in complaints(result), complaints(result)
    json.loads(result.to_json())


class Case(NamedTuple):
    """A run that is damaged.

    Attributes:
        damage: what is done to it.
        named: texts that the complaints must hold.
        verdicts: those of which one is due.
        kind: of the run that is damaged.
        rehash: whether the digests are forged, so that some other check has to notice.
    """

    damage: Callable[[Any], Any]
    named: Sequence[str]
    verdicts: Sequence[str] = ("error",)
    kind: Mapping[str, Any] = {}
    rehash: bool = True


def not_refused(make_run, cases):
    """The cases that are not refused as they should be, and what an audit makes of them."""
    wrong = {}
    for name, case in cases.items():
        run = make_run(**case.kind)
        case.damage(run)
        if case.rehash:
            run.rehash()
        result = run.audit()
        json.loads(result.to_json().encode("utf-8"))
        if result.verdict not in case.verdicts or not all(
            text in complaints(result) for text in case.named
        ):
            wrong[name] = f"{result.verdict}: {complaints(result)}"
        shutil.rmtree(run.path)
    return wrong


def bytes_of(name, data):
    return lambda run: (run / name).write_bytes(data if isinstance(data, bytes) else data.encode())


def field(name, value):
    return lambda run: run.edit_manifest({name: value})


def digits(name, number):
    """A number in run.json that Python would not write."""

    def damage(run):
        run.edit_manifest({name: "here"})
        (run / "run.json").write_text((run / "run.json").read_text().replace('"here"', number))

    return damage


# --- the path itself ------------------------------------------------------------------------------

PATHS = {
    "missing": lambda path: None,
    "a file": lambda path: path.write_text("no run"),
    "an empty folder": lambda path: path.mkdir(),
    "a dangling link": lambda path: path.symlink_to(path.parent / "nowhere"),
    "a folder without run.json": lambda path: (path / "steps").mkdir(parents=True),
}


def test_path_that_is_no_run(make_run, tmp_path):
    for number, make in enumerate(PATHS.values()):
        path = tmp_path / f"somewhere{number}"
        make(path)
        assert_refused(audit_run(path), path.name)
        assert_refused(audit_run(str(path)), path.name)
    for refused_by_the_system in ("a" * 5000, "a\0b", "run.json/run"):
        assert_refused(audit_run(make_run() / refused_by_the_system), refused_by_the_system[:2])


def test_path_that_is_not_utf8(make_run):
    run = make_run()
    odd = os.fsdecode(os.fsencode(run.path) + b"\xff")
    run.path.rename(odd)
    result = audit_run(odd)
    assert result.verdict == "pass"
    result.to_json().encode("utf-8")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_file_that_may_not_be_read(make_run):
    run = make_run()
    for name in ("run.json", "samples.jsonl", "hashes", "steps", "steps/00000000.zip", "clusters"):
        mode = (run / name).stat().st_mode
        (run / name).chmod(0)
        result = run.audit()
        (run / name).chmod(mode)
        assert_refused(result, name, ("error", "fail"))


# --- run.json -------------------------------------------------------------------------------------

TEXTS = {
    "empty": "",
    "not JSON": "format: 2",
    "deep": DEEP,
    "deep object": '{"a":' * 100_000,
    "array": "[1]",
    "string": '"run"',
    "null": "null",
    "NaN": '{"format": NaN}',
    "digits": '{"format": ' + "1" * 10_000 + "}",
    "huge": " " * (1 << 24) + "{}",
    "not UTF-8": b"\xff\xfe{}",
    "lone surrogate": '{"format": "\\ud800"}',
}


VERSIONS = (0, 1, "2", True, None, 2.0, [2], 10**300)


def test_manifest_that_is_not_json_of_format_2(make_run):
    cases = {name: Case(bytes_of("run.json", text), ["run.json"]) for name, text in TEXTS.items()}
    for version in VERSIONS:
        cases[f"version {version!r}"] = Case(field("format", version), ["run.json: format"])
    assert not_refused(make_run, cases) == {}


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
    "batching.cells": 3,
    "data.labels": ["twice", "twice"],
    "decoding.max_tokens": 10**9,
    "decoding.sequences": "end",
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


def test_manifest_field_of_the_wrong_type_or_value(make_run):
    # Without a claim the run is merely unfinished. A rule that spans several fields names the part
    # they are in.
    cases = {
        name: Case(
            field(name, value), ["claim" if name == "claim" else "run.json", name.split(".")[0]]
        )
        for name, value in FIELDS.items()
    }
    cases["float32 of a mean"] = Case(
        field("record.dtype", "float32"), ["record.dtype"], kind={"aggregator": "mean"}
    )
    for name in ("claim.epsilon", "mechanism.clip", "mechanism.temperature"):
        for number in ("NaN", "Infinity", "-Infinity", "1e999"):
            cases[f"{name} {number}"] = Case(digits(name, number), ["run.json"])
    assert not_refused(make_run, cases) == {}


def test_settings_that_what_was_made_contradicts(make_run):
    mean = {"aggregator": "mean", "sizes": (4, 5, 6)}
    cases = {
        f"{name} {value}": Case(field(name, value), ["run.json", word], kind=kind)
        for kind, name, value, word in (
            (mean | {"budget": 0.5}, "privacy.epsilon", 1e-6, "claim.epsilon"),
            (mean | {"budget": 0.5}, "privacy.delta", 1e-15, "claim.delta"),
            (mean, "privacy.epsilon", 99.0, "mechanism.budget"),
            (mean | {"budget": 0.5}, "privacy.canaries", 4000, "privacy.canaries"),
            ({"canaries": 3, "sizes": (4, 5, 6, 4)}, "privacy.canaries", None, "privacy.canaries"),
        )
    }
    cases["batches of each cluster"] = Case(
        lambda run: run.edit_manifest(
            dict.fromkeys(
                ("batching.records_per_batch", "batching.most_batches", "batching.least_batches")
            )
            | {"batching.batches_per_cluster": 999}
        ),
        ["clusters", "batching.batches_per_cluster"],
        kind=CLUSTERED,
    )
    assert not_refused(make_run, cases) == {}


EXTREMES = [
    ({}, {"mechanism.temperature": 5e-324}),
    ({}, {"record.vocabulary": 1 << 22}),
    ({}, {"decoding.max_tokens": 1 << 15}),
    ({}, {"batching.batches": 1 << 24}),
    ({"aggregator": "mean"}, {"mechanism.temperature": 1e-200, "mechanism.divisor": 1e-200}),
    ({"aggregator": "mean"}, {"mechanism.clip": 1e15}),
    ({"aggregator": "mean"}, {"mechanism.divisor": 1e15}),
    ({"aggregator": "mean"}, {"data.records": 1 << 40}),
    (
        {"aggregator": "mean"},
        {"claim.delta": 5e-324, "claim.epsilon": 7.0},
    ),  # three tokens of range 2.4
]


def test_extreme_settings_overflow_nowhere(make_run):
    cases = {
        f"{kind} {change}": Case(
            lambda run, change=change: run.edit_manifest(change), [], ("fail", "error"), kind
        )
        for kind, change in EXTREMES
    }
    assert not_refused(make_run, cases) == {}


# --- files missing, linked, of another kind -------------------------------------------------------

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


def test_file_that_is_missing_linked_or_of_another_kind(make_run):
    cases = {}
    for name in NAMES:
        # A folder that holds nothing of ours where steps/ was: what is missing are the batches.
        for replace in (remove, link, make_folder, make_fifo):
            cases[f"{replace.__name__} {name}"] = Case(
                lambda run, replace=replace, name=name: replace(run / name),
                [name],
                ("error", "fail"),
                rehash=False,
            )
        if name not in ("run.json", "hashes", "steps"):
            cases[f"{name} is missing, and the hashes are forged"] = Case(
                lambda run, name=name: remove(run / name), [name.split("/")[0]], ("error", "fail")
            )
    assert not_refused(make_run, cases) == {}


# --- clusters -------------------------------------------------------------------------------------

CLUSTERED = {"sizes": (1, 2, 1, 2), "clusters": "public-centers-rebalanced"}
CLUSTERS = {
    "surprise": 1,
    "method": "means",
    "noisy_counts": [[1, 2, 3, 1 << 41]] * 2,
    "kept": [[0, -1], [1, 3]],
    "batches": [[4, 8], [6, 1e300]],
    "centers": "no base64!",
}


def no_embeddings(number):
    def damage(run):
        centers = run.spec.centers.copy()
        centers[2, 1] = number
        text, digest = encoded_centers(centers)
        run.edit_clusters(centers=text)
        run.edit_manifest({"clustering.digest": digest})

    return damage


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


def twice(name, key):
    """A key of a JSON file."""
    return lambda run: (run / name).write_text((run / name).read_text().replace("{", "{" + key, 1))


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
}


def test_clusters_and_clusterings_of_the_wrong_type_or_value(make_run):
    def bad(damage, *named):
        return Case(damage, named, kind=CLUSTERED)

    cases = {
        f"clusters {name}": bad(bytes_of("clusters", text), "clusters")
        for name, text in TEXTS.items()
    }
    for name, value in CLUSTERS.items():
        change = {name: value}
        cases[f"clusters {name}"] = bad(
            lambda run, change=change: run.edit_clusters(**change), "clusters", name
        )
    beyond = "centers holds a number that is not finite, or beyond 1,000,000"
    for number in (math.nan, math.inf, -1.1e6):
        cases[f"centers {number}"] = bad(no_embeddings(number), "clusters", beyond)
    for name, value in CLUSTERINGS.items():
        cases[f"clustering {name}"] = bad(
            field(f"clustering.{name}", value), "run.json", "clustering"
        )
    for name, settings_ in SETTINGS.items():
        cases[f"settings {name}"] = bad(
            field("clustering.settings", settings_), "run.json", "clustering.settings"
        )
    for number in ("NaN", "Infinity", "1e999", "1" + "0" * 400):
        cases[f"settings {number}"] = bad(
            digits("clustering.settings", f'{{"k": {number}}}'), "run.json"
        )
    # Readers could differ over a key that is there twice: most take the last one, and some the
    # first.
    doubled = (
        ("run.json", '"made": null,'),
        ("run.json", '"format": 3,'),
        ("clusters", '"kept": [[0], [0]],'),
    )
    for name, key in doubled:
        cases[f"twice {key}"] = bad(twice(name, key), name, "a key is doubled")
    # Batches are of labels or of clusters.
    for name, value in {"batches_per_label": 9, "generate_per_label": 1}.items():
        cases[name] = bad(field(f"batching.{name}", value), f"batching.{name}")
    cases["without clusters"] = Case(
        field("batching.generate_per_cluster", 1), ["generate_per_cluster"]
    )
    assert not_refused(make_run, cases) == {}


HUGE = [
    {"batching.generate_per_cluster": 1 << 24},
    {"batching.records_per_batch": 5e-324},
    {"clustering.counts.scale": 5e-324},
    {"clustering.counts.scale": 1e15, "clustering.counts.epsilon": 5e-324},
    {"clustering.counts.epsilon": 1e15},
    {"clustering.delta": 0.5, "clustering.origin": "noised"},
]


def test_extreme_clusterings_overflow_nowhere(make_run):
    cases = {}
    for change, aggregator in itertools.product(HUGE, ("median", "mean")):
        due = "pass" if [*change] == ["clustering.counts.epsilon"] else "fail"
        damage, kind = (
            (lambda run, change=change: run.edit_manifest(change)),
            CLUSTERED | {"aggregator": aggregator},
        )
        cases[f"{aggregator} {change}"] = Case(damage, [], [due], kind)
    assert not_refused(make_run, cases) == {}


# --- fields that are left out -----------------------------------------------------------------


#: Of each kind of run, whatever else it records.
KINDS_OF_RUNS: tuple[Mapping[str, Any], ...] = (
    {"secret": True},
    {"aggregator": "mean", "sizes": (4, 5, 6), "budget": 0.5, "top_k": 5},
    {"contribution": "probabilities", "aggregator": "mean", "noise": 2.5, "temperature": 1.0}
    | {"sizes": (4, 5, 6), "top_k": 5},
    {"canaries": 3, "sizes": (4, 5, 6, 4)},
    {"committed": "the operating system", "sizes": (4,) * 3},
    CLUSTERED,
)
#: Whose names are a run's own. Nothing is read in place of one that is not there: versions and
#: public texts are as they stand, and centres without a number of theirs have no known cost.
NAMED_BY_RUNS = ("made.software.", "made.clustering.settings.", "made.prompt.public_examples.")
#: Fields without which others make no sense, and the place that the error names.
CONTRADICTED = {
    "made.claim.epsilon": "made.claim",
    "settings.mechanism.support.kind": "settings.mechanism.support.size",
    "settings.sampling.generator": "settings.sampling.seed_hashes",
    "settings.sampling.seed_hashes": "settings.sampling",
}
SEEN = {
    "generator": "theirs 1",
    "mended": ["rows"],
    "batches": {"tried": 3, "moved": 0},
    "rows": {"logit": 0.0, "support": 0},
}


def fields_within(fields, place=()):
    """Yield the places of all fields of run.json, sections too."""
    for name, value in fields.items():
        yield (*place, name)
        if isinstance(value, Mapping):
            yield from fields_within(value, (*place, name))


def without(fields, place):
    """Return run.json less one field."""
    first, *rest = place
    if rest:
        return {**fields, first: without(fields[first], rest)}
    return {name: value for name, value in fields.items() if name != first}


def test_no_field_that_run_json_records_is_read_as_its_default(make_run):
    """A field that is left out is refused, whatever its default: that may favour the run."""
    seen, contradicted = set(), {}
    for kind in KINDS_OF_RUNS:
        run = make_run(**kind)
        fields = json.loads((run / "run.json").read_text())
        fields["made"]["recorded"] = SEEN
        Manifest.of_json(json.dumps(fields))
        for place in fields_within(fields):
            name = ".".join(place)
            if name.startswith(NAMED_BY_RUNS):
                continue
            seen.add(name)
            (run / "run.json").write_text(json.dumps(without(fields, place)))
            with pytest.raises(InputError) as refused:
                RunReader(run.path)
            *_, where = refused.value.where.split(": ")
            if where != name:
                contradicted[name] = where
    assert contradicted == CONTRADICTED
    assert seen >= {
        *("settings.sampling", "settings.sampling.generator", "settings.model.trained_on_records"),
        *("settings.privacy.unit", "settings.privacy.relation", "settings.privacy.split_delta"),
        *("settings.mechanism.draw", "settings.mechanism.budget", "settings.mechanism.support"),
        *("settings.mechanism.draw.noise_multiplier", "settings.mechanism.contribution.grid"),
        *("made.redrawn", "made.recorded.rows", "made.clustering.counts.noised", "made.canaries"),
        *("made.claim.relation", "made.claim.delta", "made.batching.allocation.secret"),
    }


def test_each_field_stands_in_its_half_alone(make_run):
    """Else a reader of one half sees another value than the audit."""
    text = (make_run() / "run.json").read_text()
    for half, other in (("settings", "made"), ("made", "settings")):
        for section in SECTIONS:
            for field in json.loads(text)[half][section]:
                moved = json.loads(text)
                moved[other][section][field] = moved[half][section][field]
                with pytest.raises(ValidationError) as doubled:
                    Manifest.of_json(json.dumps(moved))
                assert doubled.value.errors()[0]["loc"] == (other, section, field)
                del moved[half][section][field]
                with pytest.raises(ValidationError):
                    Manifest.of_json(json.dumps(moved))
    for extra in ({"format": 4}, {"format": True}, {"more": 1}):
        with pytest.raises(ValidationError):
            Manifest.of_json(json.dumps(json.loads(text) | extra))


# --- samples.jsonl, hashes, tokenizer.json --------------------------------------------------------


def line_edit(change):
    """Edit the text of samples.jsonl as bytes."""
    return lambda run: (run / "samples.jsonl").write_bytes(
        change((run / "samples.jsonl").read_bytes())
    )


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


def test_damaged_samples(make_run):
    cases = {name: Case(damage, ["samples.jsonl"]) for name, damage in SAMPLES.items()}
    for name in ("cut inside a line", "without the last newline"):
        cases[name] = cases[name]._replace(named=["samples.jsonl", "the file ends inside a line"])
    assert not_refused(make_run, cases) == {}


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


def test_damaged_hashes_tokenizer_and_foreign_files(make_run):
    either, cases = ("error", "fail"), {}
    for name, change in HASHES.items():

        def damage(run, change=change):
            (run / "hashes").write_text(change((run / "hashes").read_text()))

        cases[f"hashes {name}"] = Case(damage, ["integrity.hashes"], either, rehash=False)
    for text in (b"", b"{}", b"[]", b"null", b"\xff", DEEP.encode(), b'{"model": {}}'):
        cases[f"tokenizer {text[:20]!r}"] = Case(
            bytes_of("tokenizer.json", text), ["tokenizer.json"], either
        )
    for name in (
        "foreign.txt",
        "steps/foreign.zip",
        "steps/00000000.zip.part",
        os.fsdecode(b"\xff"),
    ):
        cases[f"{name!r} added"] = Case(
            bytes_of(name, "added"), ["was added"], either, rehash=False
        )
    assert not_refused(make_run, cases) == {}


# --- batch files ----------------------------------------------------------------------------------


def test_truncated_batch_is_never_read_as_whole(make_run):
    run = make_run()
    whole = run.steps_file(0).read_bytes()
    for share in (0, 1, 2, 5, 10, 25, 50, 75, 90, 99, 100):
        run.steps_file(0).write_bytes(whole[: (len(whole) - 1) * share // 100])
        run.rehash()
        assert_refused(run.audit(), "steps/00000000.zip")


@pytest.mark.parametrize("examples", [30, pytest.param(250, marks=pytest.mark.slow)])
def test_changed_byte_anywhere_never_passes(make_run, examples):
    run = make_run(aggregator="mean", sizes=(2,), vocabulary=6, max_tokens=2)
    files = {p: p.read_bytes() for p in sorted(run.path.rglob("*")) if p.is_file()}

    @given(st.sampled_from(list(files)), st.integers(0, 10**6), st.integers(1, 255))
    @settings(max_examples=examples)
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


@pytest.mark.parametrize("examples", [30, pytest.param(200, marks=pytest.mark.slow)])
def test_changed_bytes_of_a_batch_never_raise_though_the_hashes_are_forged(make_run, examples):
    run = make_run(sizes=(3,), vocabulary=6, max_tokens=2)
    whole = run.steps_file(0).read_bytes()

    @given(
        st.lists(
            st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255)), min_size=1, max_size=4
        )
    )
    @settings(max_examples=examples)
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


def test_batch_of_another_kind_of_run(make_run):
    kinds = (
        {"sizes": (8, 9)},
        {"vocabulary": 13},
        {"dtype": "float64"},
        {"aggregator": "mean"},
        {"width": 3},
    )
    cases = {}
    for kind in kinds:
        other, named = (
            make_run(**kind).steps_file(0),
            "samples.jsonl" if "sizes" in kind else "00000000.zip",
        )
        damage = partial(lambda other, run: shutil.copy(other, run.steps_file(0)), other)
        cases[str(kind)] = Case(damage, [named], ("error", "fail"))
    assert not_refused(make_run, cases) == {}


def entry(name, change):
    """Change the bytes of one entry of a batch's zip file; its checksum follows."""
    return lambda entries: [
        e._replace(data=change(e.data)) if e.name == name else e for e in entries
    ]


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
    return entry(
        "central/c/0/0/0",
        lambda data: data[:offset] + struct.pack("<I", number) + data[offset + 4 :],
    )


GRID = ("chunk_grid", "configuration", "chunk_shape")
CODEC = {"name": "gzip", "configuration": {"level": 1}}
ZIPS = {
    "no entries": lambda entries: [],
    "no zarr.json": lambda entries: entries[1:],
    "foreign entry": lambda entries: [*entries, entries[0]._replace(name="extra/zarr.json")],
    "path traversal": lambda entries: [*entries, entries[0]._replace(name="../../evil")],
    "absolute path": lambda entries: [*entries, entries[0]._replace(name="/tmp/evil")],
    "doubled entry": lambda entries: [*entries, entries[-1]],
    "chunk missing": lambda entries: [e for e in entries if e.name != "central/c/0/0/0"],
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
    "other chunks": metadata("central/zarr.json", *GRID, value=[1, 4, 12]),
    "other dtype": metadata("central/zarr.json", "data_type", value="float64"),
    "other codec": metadata("central/zarr.json", "codecs", value=[CODEC]),
    "no codec": metadata("central/zarr.json", "codecs", value=[]),
    "bits of tokens missing": lambda entries: [
        e for e in entries if not e.name.startswith("constant/")
    ],
    "fewer bits of tokens": metadata("constant/zarr.json", "shape", value=[3, 1]),
    "bits of tokens cut": entry("constant/c/0/0", lambda data: data[:-3]),
    "bits of tokens a header only": entry("constant/c/0/0", lambda data: data[:3]),
    "bits of tokens of another array": lambda entries: [
        e._replace(data=next(o.data for o in entries if o.name == "central/c/0/0/0"))
        if e.name == "constant/c/0/0"
        else e
        for e in entries
    ],
    "chunk larger than its array": entry("central/c/0/0/0", lambda data: data + bytes(1 << 16)),
    "big-endian numbers": metadata(
        "central/zarr.json", "codecs", 0, "configuration", "endian", value="big"
    ),
    "storage transformers": metadata(
        "central/zarr.json", "storage_transformers", value=[{"name": "x"}]
    ),
    "other chunk names": metadata("central/zarr.json", "chunk_key_encoding", value={"name": "v2"}),
    "group for array": metadata("central/zarr.json", "node_type", value="group"),
    "other zarr": metadata("zarr.json", "zarr_format", value=2),
    "a field twice": entry("central/zarr.json", lambda data: b'{"shape": "hidden", ' + data[1:]),
    "a field of the header twice": entry(
        "zarr.json", lambda data: data.replace(b'{"id"', b'{"id": "hidden", "id"')
    ),
    "blanks behind": entry("token/zarr.json", lambda data: data + b" " * 1000),
    "another byte order mark": entry("central/zarr.json", lambda data: b"\xef\xbb\xbf" + data),
    "false for zero": metadata("central/zarr.json", "fill_value", value=False),
    "a format in halves": metadata("central/zarr.json", "zarr_format", value=3.0),
    "more of the group": metadata("zarr.json", "note", value="hidden"),
    "more attributes of the group": metadata("zarr.json", "attributes", "note", value="hidden"),
    "more of an array": metadata("central/zarr.json", "note", value="hidden"),
    "attributes of an array": metadata("central/zarr.json", "attributes", "note", value="hidden"),
    "more attributes of the tokens": metadata(
        "token/zarr.json", "attributes", "note", value="hidden"
    ),
    "other compression": metadata(
        "central/zarr.json", "codecs", 1, "configuration", "clevel", value=9
    ),
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
    "unknown stop": metadata("token/zarr.json", "attributes", "texts", 0, "stop", value="boredom"),
    "text as number": metadata("token/zarr.json", "attributes", "texts", 0, "text", value=5),
    "more of a text": metadata("token/zarr.json", "attributes", "texts", 0, "note", value="hidden"),
    "no texts": metadata("token/zarr.json", "attributes", "texts", value=[]),
    "text of no token": metadata("token/zarr.json", "attributes", "texts", 0, "length", value=0),
    "text longer than its batch": metadata(
        "token/zarr.json", "attributes", "texts", 0, "length", value=4
    ),
    "text of 10^4000 tokens": metadata(
        "token/zarr.json", "attributes", "texts", 0, "length", value=10**4000
    ),
}


@pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning")
def test_hostile_batch_files(make_run, tmp_path):
    cases = {}
    for name, damage in ZIPS.items():
        cases[name] = Case(lambda run, damage=damage: run.rezip(0, damage), ["steps/00000000.zip"])
    cases["doubled entry"] = cases["doubled entry"]._replace(
        named=["steps/00000000.zip", "an entry is doubled"]
    )
    # A bomb is not decompressed.
    bomb = entry("central/c/0/0/0", lambda data: bytes(1 << 20))
    for kind in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        damage = partial(lambda kind, run: run.rezip(0, bomb, kind), kind)
        cases[f"compression {kind}"] = Case(damage, ["compressed by the zip itself"])
    assert not_refused(make_run, cases) == {}
    assert not (tmp_path.parent / "evil").exists()


def test_texts_beyond_the_public_maximum_are_refused(make_run):
    """A claim that is made beforehand covers that many tokens and no more."""
    for aggregator in ("mean", "median"):
        run = make_run(sizes=(3, 4), aggregator=aggregator)
        longest = max(len(sample.tokens) for sample in RunReader(run.path).samples())
        run.edit_manifest({"decoding.max_tokens": longest - 1})
        run.rehash()
        assert_refused(run.audit(), "this is not a whole batch")


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
        entries = metadata("central/zarr.json", "codecs", 1, "configuration", "typesize", value=8)(
            entries
        )
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
