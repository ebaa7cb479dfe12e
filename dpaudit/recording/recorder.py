"""Records of a generator's steps, made by plain calls on arrays from any program.

    placed = hashed_records(texts, batches=6, generated=4)
    manifest = Manifest(batching=placed.batching, data=placed.data, ...)
    with Recorder.create(path, manifest, placed.assignment) as recorder:
        for number, texts in enumerate(placed.batches):
            with recorder.batch(number, contexts=len(texts)) as batch:
                while batch.stop is None:
                    batch.draw(contexts=clipped, aggregate=blended)
                batch.finish()
        recorder.finish()

Arrays may be of numpy, or anything that numpy makes arrays of: JAX's, and tensors of PyTorch on any
device. Misshapen arrays and values that are no numbers are refused at once; whether the numbers are
right, the audit says. A run that was left midway has no claim and no hashes, and cannot pass.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.accounting import ExPostAccountant
from dpaudit.accounting.ex_post_release import readers_cost
from dpaudit.generation.sampling import CommittedStream, OsEntropy, RandomBytes, sample
from dpaudit.mechanisms import ANCHOR, FLOAT64_ROUNDING, Arrays
from dpaudit.mechanisms.claims import ExPostClaim
from dpaudit.recording.frozen import Frozen, batching_key
from dpaudit.results.rounding import decimals
from dpaudit.runs import (
    Allocation,
    Assigned,
    BatchHeader,
    Batching,
    BatchWriter,
    Claim,
    CommittedSeed,
    Data,
    KeyedHash,
    Manifest,
    RunWriter,
    Step,
    Vocabulary,
    aggregate_digest,
    data_digest,
    secret_batches,
    without_stop,
)
from dpaudit.runs.manifest import StopReason
from dpaudit.runs.storage import Location

_CLAIM_DECIMALS = 4


@dataclass(frozen=True)
class HashedRecords:
    """Records in the batches that a keyed hash of each alone gives, and their part of a manifest.

    Attributes:
        batching, data: for the manifest.
        assignment: for `Recorder.create`.
        batches: the records of each batch that is to be generated; one context each.
    """

    batching: Batching
    data: Data
    assignment: tuple[Assigned, ...]
    batches: tuple[tuple[str, ...], ...]


def hashed_records(records: Iterable[str], *, batches: int, generated: int) -> HashedRecords:
    """Place records by a new secret key. Equal texts are one record. A batch may have none.

    Args:
        records: the private texts.
        batches: number of batches that the records are hashed into; public.
        generated: number of batches, the first ones, of which texts are made; public too.

    Raises:
        ValueError: there are no such batches, or a record is no text.
    """
    if not 1 <= generated <= batches:
        raise ValueError(f"generated must be 1 to batches ({batches}), not {generated}")
    key = batching_key()
    keyed = KeyedHash(key)
    places = keyed.of_round(0)
    placed = [
        (digest, places.batch(digest, batches), text) for digest, text in _by_digest(keyed, records)
    ]
    assignment = [
        Assigned(digest, number if number < generated else None, slot=None)
        for digest, number, _ in placed
    ]
    return HashedRecords(
        batching=Batching(
            rule="hashed-records",
            batches=generated,
            batches_per_label=batches,
            generate_per_label=generated,
            key=key.hex(),
            allocation=Allocation(kind="hashed", secret=True),
        ),
        data=Data(records=len(placed), digest=data_digest(digest for digest, _, _ in placed)),
        assignment=tuple(assignment),
        batches=tuple(
            tuple(text for _, number, text in placed if number == each) for each in range(generated)
        ),
    )


def _by_digest(keyed: KeyedHash, records: Iterable[str]) -> list[tuple[str, str]]:
    distinct = set(records)
    if kinds := {type(record).__name__ for record in distinct if not isinstance(record, str)}:
        raise ValueError(f"records must be texts, not {', '.join(sorted(kinds))}")
    return sorted((keyed.digest("", record), record) for record in distinct)


def _whole_number(name: str, value: Any) -> int:
    """Return a whole number of any type.

    Other values may be private, and are not repeated.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be a whole number, not {type(value).__name__}") from None


class Recorder:
    """One run being recorded.

    Attributes:
        manifest: what run.json holds. Its `commitment` is there before the first batch.
    """

    def __init__(
        self,
        writer: RunWriter,
        tokenizer: Vocabulary | None,
        frozen: Frozen | None,
        seed: CommittedSeed | None,
    ) -> None:
        """Use `create` instead."""
        self._writer, self._tokenizer, self.manifest, self._seed = (
            writer,
            tokenizer,
            writer.manifest,
            seed,
        )
        change = self.manifest.privacy.change(self.manifest.batching.rule)
        ex_post = self.manifest.mechanism.draw.ex_post
        stated = (
            self.manifest.claim is not None or change is None or frozen is not None or not ex_post
        )
        per_round = self.manifest.batching.per_round
        self._accountant = (
            None if stated else ExPostAccountant(self.manifest.mechanism, change, per_round)
        )
        self._frozen = None if frozen is None else frozen.tokens()

    @classmethod
    def create(
        cls,
        path: Location,
        manifest: Manifest,
        assignment: Iterable[Assigned],
        *,
        tokenizer_json: str | None = None,
        seed: CommittedSeed | None = None,
    ) -> Recorder:
        """Start a run in a new or empty directory.

        Args:
            path: of the directory, or its URL.
            manifest: all that is known beforehand. `record.contexts` must be on: the audit sees
                from contributions alone that an aggregate is what the mechanism makes of them.
                `batching.allocation` says how records were given to batches; where it is None, both
                levels of the run are equal.
            assignment: where each record went, in ascending order of digests.
            tokenizer_json: the tokenizer in the form of the `tokenizers` library; None releases
                token ids alone.
            seed: what `draw` takes its numbers from, of a manifest that has the hashes of its parts
                (`dpaudit.runs.read_seed`); None for the operating system's.

        Raises:
            InputError: the directory holds something else, cannot be written, or another writer has
                it.
            ValueError: the manifest asks for what is not recorded here, or for another seed; or the
                tokenizer cannot be read.
        """
        if manifest.sampling.seed_hashes != (() if seed is None else seed.hashes):
            raise ValueError(
                "sampling.seed_hashes are not those of `seed`: give Sampling the hashes that it has"
            )
        if not manifest.record.contexts:
            raise ValueError(
                "record.contexts is off: set Record(contexts=True), for a recorder is given "
                "contributions"
            )
        if manifest.mechanism.budget is not None:
            raise ValueError(
                "mechanism.budget is set: what contexts spend is not recorded; leave it out"
            )
        try:
            tokenizer = None if tokenizer_json is None else Vocabulary.of(tokenizer_json)
        except ValueError as error:
            raise ValueError(f"tokenizer_json cannot be read: {error}") from None
        frozen = Frozen.asked()
        where = path if frozen is None else frozen.out
        writer = RunWriter.create(
            where, manifest, tokenizer_json=tokenizer_json, assignment=assignment
        )
        return cls(writer, tokenizer, frozen, seed)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    @contextmanager
    def batch(
        self, number: int, *, contexts: int, label: str | None = None
    ) -> Iterator[RecordedBatch]:
        """Record one batch of `contexts` private contexts, kept if the block calls `finish`.

        Raises:
            BatchExistsError: it is whole already.
            ValueError: the manifest has no such batch, or one of the numbers is none.
        """
        header = BatchHeader(
            id=_whole_number("number", number),
            contexts=_whole_number("contexts", contexts),
            label=label,
        )
        with self._writer.batch(header) as writer:
            frozen = None if self._frozen is None else self._frozen.get(number, ())
            source: RandomBytes = OsEntropy()
            if self._seed is not None and (commitment := self.manifest.commitment) is not None:
                source = CommittedStream(self._seed, commitment, number)
            yield RecordedBatch(
                self.manifest, header, writer, self._accountant, self._tokenizer, source, frozen
            )
        if self._accountant is not None:
            self._accountant.close(number)

    def finish(self, claim: Claim | None = None) -> None:
        """Close the run.

        Args:
            claim: what the run claims. None keeps a claim of the manifest; where it has none, the
                run states the ex-post epsilon that its record supports, at both levels.

        Raises:
            ValueError: a batch is missing, or nothing bounds the cost.
        """
        if self._frozen is not None:
            return
        if claim is None and self.manifest.claim is None:
            claim = self._ex_post_claim()
        self._writer.finish(claim)

    def _ex_post_claim(self) -> Claim:
        """Return the claim that the record supports at both levels, rounded up."""
        accountant, manifest = self._accountant, self.manifest
        if accountant is None or not math.isfinite(accountant.epsilon):
            raise ValueError(
                "nothing bounds what this run costs: state a claim, or batch by a hash of each "
                "record"
            )
        privacy, known = manifest.privacy, accountant.epsilon
        unclustered = manifest.clustering.method == "none"  # of clusters a recorder is not told
        secret = secret_batches(manifest, privacy.unit) if unclustered else None
        change, cost = accountant.change, accountant.batch_cost
        readers = readers_cost(manifest, secret, privacy.relation, change, None, known, cost)
        epsilon, batch_epsilon = (
            float(decimals(each, _CLAIM_DECIMALS, most=math.inf)) for each in (readers, known)
        )
        return Claim(
            epsilon=epsilon,
            batch_epsilon=batch_epsilon,
            kind=ExPostClaim.id,
            relation=privacy.relation,
            unit=privacy.unit,
        )


class RecordedBatch:
    """One batch being recorded, a step at a time. `Recorder.batch` makes it.

    n contexts, S tokens to sample from: all V, or those of `support`.

    Attributes:
        truncated: whether every step needs a support.
        tokens: of the text so far.
        stop: why the text ends with its last token; None while it continues.
    """

    def __init__(
        self,
        manifest: Manifest,
        header: BatchHeader,
        writer: BatchWriter,
        accountant: ExPostAccountant | None,
        tokenizer: Vocabulary | None,
        source: RandomBytes,
        frozen: Sequence[int] | None,
    ) -> None:
        """Use `Recorder.batch` instead."""
        self._manifest, self._header, self._writer = manifest, header, writer
        self._accountant, self._tokenizer, self._source, self._frozen = (
            accountant,
            tokenizer,
            source,
            frozen,
        )
        self.truncated = manifest.truncated
        self.tokens: list[int] = []
        self.stop: StopReason | None = None
        self._steps = 0

    def draw(
        self, *, contexts: Any, aggregate: Any, support: Any = None, anchor: Any = None
    ) -> int:
        """Draw a token by the operating system or the committed seed, and record the step.

        Args:
            contexts: [n, S] what each context gave, clipped: in [-clip, clip].
            aggregate: [S] what you made of it, before the temperature; with the anchor, where there
                is one.
            support: int [S] ids of the tokens to sample from, ascending, where these are not the
                whole vocabulary.
            anchor: [S] what is public and was added to the aggregate, where the mechanism has such.

        Raises:
            ValueError: names the array that is missing, misshapen or no number, and where.
        """
        if self._manifest.mechanism.draw.arrays():
            raise self._refused(
                f"tokens are drawn by {self._manifest.mechanism.draw.name}: draw them, and call "
                "step"
            )
        given = self._check_step(contexts, aggregate, support, anchor)
        if self._frozen is not None:
            return self._continue_frozen(given, self._frozen)
        drawn = sample(given.sampled, self._manifest.mechanism.temperature, self._source)
        return self._write(given, int(given.ids[drawn.index]), drawn.log_probability)

    def step(
        self,
        token: int,
        log_probability: float,
        *,
        contexts: Any,
        aggregate: Any,
        support: Any = None,
        anchor: Any = None,
        **drawn: Any,
    ) -> int:
        """Record a step whose token you drew yourself. Other arguments are those of `draw`.

        Args:
            token: its id.
            log_probability: logarithm of the probability that your sampler gave it, at most 0; 0
                where noise decides.
            drawn: what the mechanism's draw records, by name (`Draw.arrays`). With `noisy-argmax`,
                `noise` is [S], what you added to the aggregate, which you give without it. With
                `sparse-vector`, `test` is the test's distance, the threshold's noise and its own,
                or None once all private tokens are used; `aggregate` is what a private token would
                be drawn from.

        Returns:
            The token to go on with: yours, or the released one where a run is made again with its
                outputs frozen.

        Raises:
            ValueError: as `draw`.
        """
        given = self._check_step(contexts, aggregate, support, anchor, drawn)
        try:
            number, logarithm = _whole_number("token", token), float(log_probability)
        except (TypeError, ValueError):
            kinds = f"{type(token).__name__} and {type(log_probability).__name__}"
            raise self._refused(
                f"token and log_probability must be a whole number and a real one, not {kinds}"
            ) from None
        if self._frozen is not None:
            here = self._log_probability(given, number)
            return self._continue_frozen(
                given, self._frozen, as_said=math.isclose(here, logarithm, **_ROUNDED)
            )
        if not -math.inf < logarithm <= _ROUNDED_ONE:
            raise self._refused(
                f"log_probability is {logarithm}, which is no logarithm of a probability"
            )
        if number not in given.ids:
            raise self._refused(
                f"token {number} is not among the {len(given.ids)} that could be drawn"
            )
        return self._write(given, number, logarithm)

    def end_text(self, text: str | None = None) -> None:
        """End a text whose batch continues with another (`Decoding.tokens_per_batch`).

        `text` is as for `finish`.
        """
        self._writer.end_text(text=self._text(text), stop=self._reason())
        self.tokens, self.stop = [], None

    def finish(self, text: str | None = None) -> None:
        """End the batch's last text and the batch.

        Args:
            text: what is released. None takes the tokens as the run's tokenizer decodes them.

        Raises:
            ValueError: the text does not end here by the manifest's `decoding`.
        """
        self._writer.finish(text=self._text(text), stop=self._reason())

    def _reason(self) -> StopReason:
        if self.stop is None:
            most = self._manifest.decoding.max_tokens
            raise self._refused(
                f"a text ends after {len(self.tokens)} of {most} tokens, and at no stop sequence"
            )
        return self.stop

    def _text(self, text: str | None) -> str | None:
        if text is not None or self._tokenizer is None:
            return text
        return self._tokenizer.decode(
            without_stop(self.tokens, self._manifest.decoding.sequences), special=False
        )

    def _check_step(
        self,
        contexts: Any,
        aggregate: Any,
        support: Any,
        anchor: Any,
        drawn: Mapping[str, Any] = MappingProxyType({}),
    ) -> _CheckedStep:
        """Check and return the parts of a step."""
        manifest, mechanism = self._manifest, self._manifest.mechanism
        if self.stop is not None:
            raise self._refused(f"the text has ended ({self.stop}): call finish")
        ids = (
            np.arange(manifest.record.vocabulary)
            if not manifest.truncated
            else self._support(support)
        )
        if support is not None and not manifest.truncated:
            raise self._refused(
                "support is given, and mechanism.support of the manifest is the whole vocabulary"
            )
        size, dtype = len(ids), np.dtype(manifest.record.dtype)
        values = self._floats("contexts", contexts, (self._header.contexts, size))
        if values.dtype.itemsize > dtype.itemsize:
            raise self._refused(
                f"contexts are {values.dtype}, and record.dtype of the manifest is {dtype}"
            )
        values = values.astype(dtype)
        arrays = mechanism.aggregator.step(values, mechanism.clip, manifest.record.width)
        if mechanism.contribution.anchored:
            public = self._floats(ANCHOR, anchor, (size,))
            arrays[ANCHOR] = public.astype(np.float32)
            if (arrays[ANCHOR] != public).any():
                raise self._refused(
                    "anchor is more precise than float32, in which it is recorded: round it first"
                )
        elif anchor is not None:
            raise self._refused(
                f"anchor is given, and the contribution {mechanism.contribution.name} has none"
            )
        theirs = self._floats("aggregate", aggregate, (size,))
        described = mechanism.draw.arrays()
        for name in drawn.keys() - described.keys():
            raise self._refused(f"{name} is given, and tokens are drawn by {mechanism.draw.name}")
        for name, array in described.items():
            value = drawn.get(name)
            if value is None and (absent := mechanism.draw.absent(name)) is not None:
                arrays[name] = absent
            else:
                shape = (*array.rows, size) if array.columns else array.rows
                arrays[name] = self._floats(name, value, shape).astype(np.float64)
        theirs = mechanism.draw.scores(theirs, arrays, mechanism.temperature)
        own = mechanism.aggregate(arrays)
        # Sums in another order are the same sums. What differs by more is recorded as it was: the
        # audit objects.
        same = np.abs(own - theirs).max(initial=0.0) <= FLOAT64_ROUNDING
        return _CheckedStep(ids, values, arrays, own if same else theirs)

    def _continue_frozen(
        self, given: _CheckedStep, released: Sequence[int], *, as_said: bool = True
    ) -> int:
        """Continue with the released token, whether or not it could be drawn here.

        Its log-probability is NaN if the mechanism gives the script's own token another one than
        the script did.
        """
        if self._steps >= len(released):
            raise self._refused(
                f"the released batch ends after {len(released)} tokens, and this one goes on"
            )
        token = released[self._steps]
        logarithm = self._log_probability(given, token) if as_said else math.nan
        return self._write(given, token, logarithm)

    def _log_probability(self, given: _CheckedStep, token: int) -> float:
        """Return a token's log-probability by the mechanism; -inf if it could not be drawn."""
        found = np.flatnonzero(given.ids == token)
        if len(found):
            return self._manifest.mechanism.log_probability(given.sampled, int(found[0]))
        return -math.inf

    def _write(self, given: _CheckedStep, token: int, log_probability: float) -> int:
        self._writer.write(
            Step(
                token=token,
                log_probability=log_probability,
                aggregate_digest=aggregate_digest(given.sampled),
                arrays=given.arrays,
                contexts=given.contexts if self._header.contexts else None,
                support=given.ids if self._manifest.truncated else None,
            )
        )
        if self._accountant is not None:
            index = int(np.searchsorted(given.ids, token))
            self._accountant.charge(
                self._header.id, self._manifest.mechanism.reduced(given.arrays, index)
            )
        self.tokens.append(token)
        self._steps += 1
        self.stop = self._manifest.decoding.reason(self.tokens, self._steps)
        return token

    def _support(self, support: Any) -> NDArray[np.int64]:
        """Check and return token ids, ascending."""
        if support is None:
            raise self._refused("support is missing: give the ids of the tokens to sample from")
        ids, vocabulary = self._array("support", support), self._manifest.record.vocabulary
        if ids.ndim != 1 or ids.dtype.kind not in "iu" or not len(ids):
            raise self._refused(f"support must be whole numbers in one row, not {_described(ids)}")
        if (np.diff(ids.astype(np.int64)) <= 0).any():
            raise self._refused(
                "support must ascend, each token once: sort it, and the columns of all else with it"
            )
        if ids[0] < 0 or ids[-1] >= vocabulary:
            raise self._refused(f"support holds ids outside the vocabulary of {vocabulary}")
        return ids.astype(np.int64)

    def _floats(self, name: str, value: Any, shape: tuple[int, ...]) -> NDArray[np.floating]:
        """Check and return finite real numbers of a shape."""
        if value is None:
            raise self._refused(f"{name} is missing")
        array = self._array(name, value)
        if array.dtype.kind != "f":
            raise self._refused(f"{name} must be real numbers, not {_described(array)}")
        if array.shape != shape:
            raise self._refused(
                f"{name} must have the shape {list(shape)}, not {list(array.shape)}"
            )
        if not np.isfinite(array).all():
            raise self._refused(
                f"{name} holds a value that is not finite: leave such tokens out of the support"
            )
        return array

    def _array(self, name: str, value: Any) -> NDArray[Any]:
        if hasattr(value, "detach"):  # a tensor of PyTorch, on any device
            value = value.detach().cpu()
        try:
            return np.asarray(value)
        except (TypeError, ValueError) as error:
            raise self._refused(
                f"{name} is nothing that numpy makes an array of ({error}): try float32"
            ) from None

    def _refused(self, problem: str) -> ValueError:
        return ValueError(f"batch {self._header.id}, step {self._steps}: {problem}")


#: A logarithm of a probability of 1 that was rounded.
_ROUNDED_ONE = 1e-9
#: Logarithms of probabilities that were added up in another order.
_ROUNDED = {"rel_tol": FLOAT64_ROUNDING, "abs_tol": FLOAT64_ROUNDING}


@dataclass(frozen=True)
class _CheckedStep:
    """One step: token ids [S], contributions [n, S], record, and the vector [S] to sample from."""

    ids: NDArray[np.int64]
    contexts: NDArray[np.floating]
    arrays: Arrays
    sampled: NDArray[np.floating]


def _described(array: NDArray[Any]) -> str:
    return f"{array.dtype} of shape {list(array.shape)}"
