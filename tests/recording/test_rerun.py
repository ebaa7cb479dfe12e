"""A recorded generator reruns without a record, outputs frozen: all ways of private data show.

The generators are a few lines of numpy each. One is run as a script by the command; the others in
this process.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from dpaudit.auditing.run import audit_run
from dpaudit.recording import RecordedBatch, Recorder, hashed_records
from dpaudit.recording.frozen import VARIABLE, Frozen
from dpaudit.recording.rerun import Script, rerun
from dpaudit.results.replay import Rerun
from dpaudit.runs import Assigned, Claim, Decoding, InputError, KeyedHash, Prompt, Record, RunReader
from dpaudit.runs.manifest import Moved, Recorded, Rows
from dpaudit.runs.reader import read_tokenizer
from dpaudit.runs.text import KNOWN_TOKENIZERS
from tests.recording.test_recorder import ANCHORED, MEAN, MEDIAN, VOCABULARY, handed, manifest_of

TEXTS = [f"record {number}" for number in range(24)]
Spoilt = Callable[[dict[str, Any], list[str], list[str]], dict[str, Any]]


def honest(given: dict[str, Any], texts: list[str], everything: list[str]) -> dict[str, Any]:
    return given


@dataclass(frozen=True)
class Generator:
    """A script's behaviour: mechanism fields, what it hands over, and settings from the records."""

    fields: dict[str, Any]
    spoilt: Spoilt = honest
    settings: Callable[[list[str]], dict[str, Any]] = lambda records: {}
    sliced: bool = False
    temperature: Callable[[list[str]], float] | None = None  # of tokens that it draws itself
    tokenizer: str | None = None

    def __call__(self, path: Path, records: list[str]) -> None:
        placed = hashed_records(records, batches=3, generated=2)
        batches, assignment = [list(texts) for texts in placed.batches], placed.assignment
        if self.sliced:
            batches = [records[:8], records[8:16]]
            assignment = tuple(self._slices(placed.batching.key, records))
        seen = Recorded(
            generator="toy", batches=Moved(tried=1, moved=1), rows=Rows(logit=0.0, support=0)
        )
        manifest = manifest_of(self.fields, placed, recorded=seen, **self.settings(records))
        with Recorder.create(path, manifest, assignment, tokenizer_json=self.tokenizer) as recorder:
            for number, texts in enumerate(batches):
                with recorder.batch(number, contexts=len(texts)) as batch:
                    while batch.stop is None:
                        given = handed(self.fields, texts, len(batch.tokens))
                        self._draw(batch, self.spoilt(given, texts, records), records)
                    batch.finish()
            recorder.finish()

    def _draw(self, batch: RecordedBatch, given: dict[str, Any], records: list[str]) -> None:
        if self.temperature is None:
            batch.draw(**given)
            return
        scores = given["aggregate"].astype(float) / self.temperature(records)
        scores -= np.logaddexp.reduce(scores)
        token = int(np.random.default_rng().choice(VOCABULARY, p=np.exp(scores)))
        batch.step(token, float(scores[token]), **given)

    @staticmethod
    def _slices(key: Any, records: list[str]) -> list[Assigned]:
        digest = KeyedHash(bytes.fromhex(key)).digest
        placed = [
            Assigned(digest("", text), i // 8 if i < 16 else None, None)
            for i, text in enumerate(records)
        ]
        return sorted(placed, key=lambda each: each.digest)


@dataclass(frozen=True)
class InProcess(Script):
    """A script that is a function of this process."""

    generator: Callable[[Path, list[str]], None] = Generator(MEDIAN)
    patch: Any = None

    def run(self, released: RunReader, out: Path, data: Path, instead: Path) -> int:
        with self.patch.context() as patched:
            for name, value in Frozen(released.location, out).environment().items():
                patched.setenv(name, value)
            try:
                self.generator(out, instead.read_text().splitlines())
            except ValueError:
                return 1
        return 0


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The kinds of what moved when a generator's run was remade without a record of a batch."""

    def make(generator: Any, *, again: Any = None, shown: bool = True, most: int = 1) -> Any:
        data = tmp_path / "notes.txt"
        data.write_text("\n".join(TEXTS) + "\n")
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        generator(tmp_path / "run", TEXTS)
        released = RunReader(tmp_path / "run")
        keyed = KeyedHash(bytes.fromhex(released.manifest.batching.key or ""))
        places = {each.digest: each.batch for each in released.assignment()}
        rows = [
            i
            for i, text in enumerate(TEXTS, 1)
            if (places[keyed.digest("", text)] is not None) == shown
        ]
        script = InProcess("python", ("script.py", str(data)), again or generator, monkeypatch)
        found = rerun(tmp_path / "run", data, rows[:most], script, lambda said: None)
        return found[0] if most == 1 else found

    return make


def kinds(found: Any) -> set[str]:
    return {difference.kind for difference in found.differences}


@pytest.mark.parametrize("fields", [MEDIAN, MEAN, ANCHORED], ids=["median", "mean", "anchored"])
@pytest.mark.parametrize("shown", [True, False])
def test_an_honest_generator_moves_nothing(made, fields, shown, tmp_path):
    found = made(Generator(fields), shown=shown)
    assert (found.differences, found.unstable) == ((), None)
    result = audit_run(tmp_path / "run", reruns=[found])
    assert {check.id: check.status for check in result.checks}["replay.frozen"] == "pass"


def alike(given: dict[str, Any], texts: list[str], everything: list[str]) -> dict[str, Any]:
    """Rows that are equal at the first step, as those of records that begin alike."""
    if not np.array_equal(given["contexts"], handed(MEDIAN, texts, 0)["contexts"]):
        return given
    return {
        "contexts": np.ones_like(given["contexts"]),
        "aggregate": np.ones_like(given["aggregate"]),
    }


def test_rows_that_are_alike_at_first_are_told_apart_later(made):
    found = made(Generator(MEDIAN, alike), most=len(TEXTS))
    assert len(found) > 8
    assert not any(each.differences or each.unstable for each in found)


def peeking(given: dict[str, Any], texts: list[str], everything: list[str]) -> dict[str, Any]:
    """A row that hangs on how many there are, as padding makes it."""
    contexts = given["contexts"].copy()
    contexts[:, 3] -= np.float32(0.001) * len(texts) / 64
    return {"contexts": contexts, "aggregate": np.median(contexts, axis=0)}


def private_support(
    given: dict[str, Any], texts: list[str], everything: list[str]
) -> dict[str, Any]:
    """A token of the support by the number of records."""
    swapped = given["support"].copy()
    free = np.setdiff1d(np.arange(VOCABULARY), swapped)
    swapped[len(everything) % 6] = free[len(everything) % len(free)]
    order = np.argsort(swapped)
    return given | {"support": swapped[order]}


def private_anchor(
    given: dict[str, Any], texts: list[str], everything: list[str]
) -> dict[str, Any]:
    anchor = given["anchor"] + np.float32(0.01 * len(everything))
    return given | {"anchor": anchor, "aggregate": anchor + given["contexts"].sum(0) / 9}


def over_all(given: dict[str, Any], texts: list[str], everything: list[str]) -> dict[str, Any]:
    """An aggregate that takes in records of other batches."""
    return given | {"aggregate": given["aggregate"] + np.float32(0.01 * len(everything))}


def smallest_batch() -> Spoilt:
    """A batch that has lost a record is drawn from something else."""
    seen: set[tuple[str, ...]] = set()

    def spoilt(given: dict[str, Any], texts: list[str], everything: list[str]) -> dict[str, Any]:
        if len(everything) == len(TEXTS):
            seen.add(tuple(texts))
        return given if tuple(texts) in seen else given | {"aggregate": 0 * given["aggregate"]}

    return spoilt


def test_a_records_own_batch_is_drawn_from_what_its_mechanism_says(made):
    cooler = Generator(MEDIAN, temperature=lambda records: len(records) / len(TEXTS))
    for generator in (
        Generator(MEDIAN, smallest_batch()),
        Generator(MEAN, smallest_batch()),
        cooler,
    ):
        found = made(generator)
        assert (kinds(found), found.unstable) == ({"draws"}, None), found
    assert kinds(made(Generator(MEDIAN, temperature=lambda records: 1.0))) == set()


FAULTS = {
    "settings": Generator(
        MEDIAN, settings=lambda records: {"decoding": Decoding(max_tokens=len(records) // 3)}
    ),
    "places": Generator(MEDIAN, sliced=True),
    "rows": Generator(MEDIAN, peeking),
    "supports": Generator(ANCHORED, private_support),
    "anchors": Generator(ANCHORED, private_anchor),
    "aggregates": Generator(MEDIAN, over_all),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_what_else_a_record_moves_has_a_name(made, kind, tmp_path):
    found = made(FAULTS[kind])
    assert kind in kinds(found), found
    assert found.unstable is None
    checks = {check.id: check for check in audit_run(tmp_path / "run", reruns=[found]).checks}
    assert (checks["replay.frozen"].status, checks["replay.frozen"].code) == ("fail", "moved")
    assert {moved.values["row"] for moved in checks["replay.frozen"].values["moved"]} == {found.row}
    assert not any(text in str(found) for text in TEXTS)


def private_settings(records: list[str]) -> dict[str, Any]:
    """All texts in a setting, in a mapping's keys and in a list, and the number of texts."""
    return {
        "prompt": Prompt(
            template=" ".join(records), public_examples={text: (text,) for text in records}
        ),
        "software": dict.fromkeys(records, "1"),
        "decoding": Decoding(max_tokens=8, sequences=((len(records),),)),
        "record": Record(vocabulary=len(records), contexts=True),
    }


def private_vocabulary(
    given: dict[str, Any], texts: list[str], everything: list[str]
) -> dict[str, Any]:
    return {name: value[..., : len(everything)] for name, value in given.items()}


def test_settings_that_moved_are_named_without_their_texts(made):
    def without_sequences(records: list[str]) -> dict[str, Any]:
        return {
            name: part for name, part in private_settings(records).items() if name != "decoding"
        }

    for stated, first in (
        (private_settings, "decoding.sequences"),
        (without_sequences, "prompt.public_examples"),
    ):
        found = made(Generator(MEDIAN, private_vocabulary, stated))
        assert {"settings", "supports"} <= kinds(found)
        names = {each.first.values["name"] for each in found.differences if each.kind == "settings"}
        assert names == {first}
        assert not any(text in str(found) for text in TEXTS)
    numbers = made(
        Generator(
            MEDIAN, settings=lambda records: {"decoding": Decoding(max_tokens=len(records) // 3)}
        )
    )
    (settings,) = (each.first for each in numbers.differences if each.kind == "settings")
    assert settings.values == {"name": "decoding.max_tokens", "before": 8, "after": 7}


def test_a_claim_that_was_stated_beforehand_is_a_setting(made):
    def by_records(records: list[str]) -> dict[str, Any]:
        return {"claim": Claim(epsilon=50, delta=1 / (len(records) + 1), kind="approximate")}

    found = made(Generator(MEAN, settings=by_records))
    assert kinds(found) == {"settings"}
    (settings,) = (each.first for each in found.differences)
    assert (settings.values["name"], settings.values["before"]) == ("claim.delta", 0.04)


def test_a_script_that_ends_otherwise_is_told(made):
    def raises(path: Path, records: list[str]) -> None:
        if len(records) < len(TEXTS):
            raise ValueError("too few")
        Generator(MEDIAN)(path, records)

    def leaves(path: Path, records: list[str]) -> None:
        if len(records) == len(TEXTS):
            Generator(MEDIAN)(path, records)

    for script in (raises, leaves):
        assert kinds(made(script)) == {"ends"}


def test_nothing_is_told_where_the_script_does_not_do_the_same_twice(made, tmp_path):
    noise = iter(range(10**6))

    def restless(given: dict[str, Any], texts: list[str], everything: list[str]) -> dict[str, Any]:
        contexts = given["contexts"].copy()
        contexts[:, 3] -= np.float32(1e-3) * (next(noise) % 7)
        return {"contexts": contexts, "aggregate": np.median(contexts, axis=0)}

    found = made(Generator(MEDIAN, restless))
    assert kinds(found) == set()
    assert found.unstable.code in ("rerun.rows", "rerun.aggregate")
    result = audit_run(tmp_path / "run", reruns=[found])
    (check,) = (check for check in result.checks if check.id == "replay.frozen")
    assert (result.verdict, check.status) == ("fail", "skip")
    assert (check.code, check.values) == ("unstable", {"unstable": found.unstable})


def test_what_is_made_so_is_no_run(tmp_path, monkeypatch):
    Generator(MEDIAN)(tmp_path / "run", TEXTS)
    monkeypatch.setenv(
        VARIABLE, json.dumps({"released": str(tmp_path / "run"), "out": str(tmp_path / "again")})
    )
    Generator(MEDIAN)(tmp_path / "ignored", TEXTS)
    assert not (tmp_path / "ignored").exists()
    assert audit_run(tmp_path / "again").verdict == "error"
    one, other = RunReader(tmp_path / "run"), RunReader(tmp_path / "again")
    for batch in one.batches:
        with one.batch(batch) as before, other.batch(batch) as after:
            assert before.tokens.tolist() == after.tokens.tolist()
            assert np.allclose(before.log_probabilities, after.log_probabilities, atol=1e-9)


def test_what_cannot_be_run_again_is_one_error(made, tmp_path, monkeypatch):
    made(Generator(MEDIAN))
    run, data, generator = tmp_path / "run", tmp_path / "notes.txt", Generator(MEDIAN)

    def again(
        rows: list[int], generator: Any = generator, file: Path = data, given: str = str(data)
    ) -> Any:
        return rerun(
            run,
            file,
            rows,
            InProcess("python", ("s.py", given), generator, monkeypatch),
            lambda said: None,
        )

    def never(path: Path, records: list[str]) -> None:
        raise AssertionError("a row that is not there is told before the script runs")

    for rows, options, problem in (
        ([5, 25], {"generator": never}, "has no row 25"),
        ([1], {"given": "other.txt"}, "is not given"),
        ([1], {"generator": lambda path, records: None}, "it recorded nothing"),
        (
            [1],
            {"generator": lambda path, records: generator(path, records[:-1])},
            "not the records of the run",
        ),
    ):
        with pytest.raises(InputError, match=problem):
            again(rows, **options)
    data.write_text("\n".join([*TEXTS, TEXTS[0]]) + "\n")
    with pytest.raises(InputError, match="are the same"):
        again([1])
    data.write_text("\n".join(TEXTS) + "\n")
    for file in ("samples.jsonl", "assignment"):
        whole = (run / file).read_bytes()
        (run / file).write_bytes(whole[:-9])
        with pytest.raises(InputError, match=file):
            again([1], never)
        (run / file).write_bytes(whole)
    assert [(each.row, each.differences) for each in again([2, 2])] == [(2, ())]


#: Of a tokenizer that no audit knows.
WORDS = Tokenizer(
    WordLevel({f"word{number}": number for number in range(VOCABULARY)}, unk_token="word0")
).to_str()
SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.recording.test_rerun import FAULTS, MEDIAN, WORDS, Generator

generator = Generator(MEDIAN, tokenizer=WORDS) if sys.argv[1] == "honest" else FAULTS[sys.argv[1]]
generator(Path(sys.argv[2]), Path(sys.argv[3]).read_text().splitlines())
"""


@pytest.mark.parametrize(("kind", "code"), [("honest", 0), ("supports", 1)])
def test_the_command(dpaudit, tmp_path, kind, code, monkeypatch):
    root = Path(__file__).parents[2]
    (tmp_path / "script.py").write_text(SCRIPT.format(root=str(root)))
    (tmp_path / "notes.txt").write_text("\n".join(TEXTS) + "\n")
    (tmp_path / "words.json").write_text(WORDS)
    generator = Generator(MEDIAN, tokenizer=WORDS) if kind == "honest" else FAULTS[kind]
    generator(tmp_path / "run", TEXTS)
    if kind == "honest":
        monkeypatch.delitem(KNOWN_TOKENIZERS, read_tokenizer(tmp_path / "run"))
        (text,) = (
            check
            for check in audit_run("run", reruns=[Rerun(5, None, ())]).checks
            if check.id == "release.text"
        )
        assert [note.code for note in text.notes] == ["release.name-tokenizer"]
    command = ("--", sys.executable, "script.py", kind, "run", "notes.txt")
    found, out, err = dpaudit(
        "replay",
        "run",
        "--data",
        "notes.txt",
        "--without",
        5,
        "--tokenizer",
        "words.json",
        "--json",
        *command,
    )
    checks = {check["id"]: check for check in json.loads(out)["checks"]}
    assert checks["replay.frozen"]["status"] == ("pass" if kind == "honest" else "fail"), err
    assert found == code, [
        check for check in checks.values() if check["status"] not in ("pass", "skip")
    ]
    assert dpaudit("replay", "run", "--data", "notes.txt", "--without", 5)[0] == 2
    assert (
        dpaudit("replay", "run", "--data", "notes.txt", "--without", 5, "--steps", 3, *command)[0]
        == 2
    )
