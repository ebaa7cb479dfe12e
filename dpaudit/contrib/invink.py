"""invink 0.1.0 (InvisibleInk, arXiv 2507.02974), unmodified, under the recorder.

Names within its module are wrapped while a block runs, and what passes through them is recorded:
the seed, the batches, the prompts, the clip, rows and public row of every step, the support, the
probabilities and the token. What `mend` names is replaced there as well:

- "randomness": tokens are drawn with the operating system's entropy.
- "batches": records are hashed by a secret key, each alone, to the cells of the batches
  (`hashed-cells`). A cell of one record is a row; one of none or several is empty, and gives 0. Its
  own batches are slices of the list, in order.
- "lengths": public numbers stand in for those that would come from the records.
- "rows": each row goes through the model alone, without padding.

One step samples from softmax((l0 + mean of clip(l_i - l0)) / temperature) over the public top k and
what is within a margin of it: l0 the public prompt's logits, l_i those of B private prompts, B its
batch_size less the public row.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from dpaudit.mechanisms import Mechanism
from dpaudit.mechanisms.claims import ApproximateClaim
from dpaudit.recording.frozen import batching_key
from dpaudit.recording.generators import RecordingOptions
from dpaudit.recording.recorder import RecordedBatch, Recorder
from dpaudit.runs import (
    Allocation,
    Assigned,
    Batching,
    Claim,
    Data,
    Decoding,
    InputError,
    KeyedHash,
    Manifest,
    Model,
    Origins,
    Prompt,
    Record,
    Recorded,
    Sampling,
    data_digest,
)
from dpaudit.runs.manifest import SOFTWARE, Moved, Rows

NAME, VERSION = "invink", "0.1.0"
#: How many records are emptied to see what that does to the batches.
TRIED = 64
#: What its probabilities may differ by from those of what passed through it.
_ROUNDING = 1e-12
_AUTO = "auto"
_WRAPPED = (
    *("setup_seed", "load_hf_tokenizer", "load_hf_model", "get_clip", "batchify"),
    *("get_prompt", "difference_clip", "get_topk", "get_epsilon"),
)


@contextmanager
def recording(asked: RecordingOptions) -> Iterator[None]:
    """Record a run of invink (see `dpaudit.recording.generators.recording`)."""
    module = _module()
    with ExitStack() as opened:
        session = _Session(asked, module, opened)
        opened.enter_context(mock.patch.multiple(module, **session.wrapped()))
        if "lengths" in asked.mend:
            opened.enter_context(
                _public_lengths(module.generate, num=asked.texts, max_toks=asked.max_tokens)
            )
        yield
        if not session.finished:
            problem = f"{NAME} ended before its run was whole: {session.progress}."
            raise InputError(
                str(asked.out), problem, "Let the script call invink.generate once, to its end."
            )


def _module() -> ModuleType:
    remedy = (
        "Use Python 3.12 or later, and install it there: `pip install --no-deps "
        f"{NAME}=={VERSION}`."
    )
    try:
        found = metadata.version(NAME)
    except metadata.PackageNotFoundError:
        raise InputError(NAME, "is not installed for this Python.", remedy) from None
    if found != VERSION:
        raise InputError(
            NAME, f"is of version {found}, and {VERSION} is the one that is known here.", remedy
        )
    try:
        importlib.import_module(NAME)
    except (SyntaxError, ImportError) as error:
        raise InputError(NAME, f"cannot be imported ({error}).", remedy) from None
    return sys.modules[f"{NAME}.generate"]  # the package's attribute of this name is the function


@contextmanager
def _public_lengths(generate: Any, **numbers: int | None) -> Iterator[None]:
    """Give the generator's function other defaults, by whatever name a script has it."""
    names = list(inspect.signature(generate).parameters)
    kept = generate.__defaults__
    generate.__defaults__ = tuple(
        numbers.get(name, default) for name, default in zip(names[-len(kept) :], kept, strict=True)
    )
    try:
        yield
    finally:
        generate.__defaults__ = kept


class _Session:
    """One call of `invink.generate`, seen through the names that its module calls.

    Attributes:
        finished: whether the run is whole.
    """

    def __init__(self, asked: RecordingOptions, module: ModuleType, opened: ExitStack) -> None:
        self._asked, self._opened = asked, opened
        self._own: dict[str, Callable[..., Any]] = {
            name: getattr(module, name) for name in _WRAPPED
        }
        self._arguments: dict[str, Any] = {}
        self._limits: dict[str, Any] = {}
        self._prompts: list[dict[str, Any]] = []
        self._spent: list[float] = []
        self._recorder: Recorder | None = None
        self._batch: RecordedBatch | None = None
        self._closing = opened.enter_context(ExitStack())
        self.finished = False

    @property
    def progress(self) -> str:
        """The progress, for messages."""
        if self._recorder:
            return f"{len(self._spent)} of {self._batching.batches} texts"
        return "no token was drawn"

    def wrapped(self) -> dict[str, Any]:
        """Return the replacements of the module's names."""
        own = {name: getattr(self, f"_{name}") for name in self._own}
        return own | {"np": _Numpy(self._choice)}

    # --- what is settled before the first token ---------------------------------------------------

    def _setup_seed(self, *given: Any, **named: Any) -> None:
        if self._arguments:
            raise InputError(
                str(self._asked.out),
                "invink.generate was called twice, and a run is one call.",
                "Record each call into a directory of its own.",
            )
        caller = inspect.currentframe()
        assert caller is not None and caller.f_back is not None
        # as they were given: numbers that are "auto" still are
        self._arguments = dict(caller.f_back.f_locals)
        public = {"num": self._asked.texts, "max_toks": self._asked.max_tokens}
        others = [name for name, number in public.items() if self._arguments[name] != number]
        if others and "lengths" in self._asked.mend:
            problem = (
                f"the script itself gives {' and '.join(others)}, and not as --texts and "
                "--max-tokens have it."
            )
            raise InputError(
                NAME, problem, "Leave them out of its call: the recorder gives the public numbers."
            )
        if "randomness" not in self._asked.mend:
            self._own["setup_seed"](*given, **named)

    def _load_hf_tokenizer(self, *given: Any, **named: Any) -> Any:
        self._tokenizer = self._own["load_hf_tokenizer"](*given, **named)
        return self._tokenizer

    def _load_hf_model(self, *given: Any, **named: Any) -> Any:
        self._model = self._own["load_hf_model"](*given, **named)
        if "rows" in self._asked.mend:
            self._model.generate = _each_alone(self._model.generate)
        return self._model

    def _get_clip(self, **named: Any) -> float:
        self._limits = named
        self._clip = float(self._own["get_clip"](**named))
        return self._clip

    def _batchify(self, lst: Sequence[str], s: int, n: int) -> list[list[str]]:
        self._texts, self._size, key = list(lst), s, batching_key()
        hashed = "batches" in self._asked.mend

        def celled(texts: list[str], number: int) -> tuple[list[list[str]], list[list[int]]]:
            return _celled(key, texts, s, number)

        place = celled if hashed else self._sliced
        batches, self._absent = place(self._texts, n)
        self._batching = Batching(
            rule="hashed-cells" if hashed else "paper-slices",
            batches=n,
            batches_per_label=n if hashed else None,
            generate_per_label=n,
            slots=None if hashed else s,
            cells=s if hashed else None,
            key=key.hex(),
            allocation=Allocation(kind="hashed" if hashed else "by-order", secret=hashed),
        )
        self._assignment = _assignment(KeyedHash(key), self._texts, self._batching)
        self._moved = self._emptied(place, batches, n)
        return batches

    def _sliced(self, texts: list[str], n: int) -> tuple[list[list[str]], list[list[int]]]:
        batches = list(self._own["batchify"](lst=texts, s=self._size, n=n))
        return batches, [[] for _ in batches]

    def _emptied(self, place: Callable[..., Any], batches: list[list[str]], n: int) -> Moved:
        """Try the effect on the batches of emptying a record, for some records."""
        tried, most = range(0, len(self._texts), max(1, -(-len(self._texts) // TRIED))), 0
        for left_out in tried:
            texts = list(self._texts)
            texts[left_out] = ""
            if self._arguments["drop_empty"]:
                del texts[left_out]
            number = len(texts) // self._size if self._arguments["num"] == _AUTO else n
            try:
                found = place(texts, number)[0]
            except ValueError:  # it refuses to go on, which every batch shows
                found = []
            found = found[:n] + [[]] * (n - len(found))
            most = max(most, sum(one != other for one, other in zip(batches, found, strict=True)))
        return Moved(tried=len(tried), moved=most)

    def _get_prompt(self, **named: Any) -> Any:
        if self._batch is not None:
            raise InputError(
                str(self._asked.out), "a text began before another had ended.", "Report this."
            )
        if len(self._prompts) == self._limits["batch_size"]:
            self._prompts = []
        self._prompts.append(named)
        return self._own["get_prompt"](**named)

    def _start(self, vocabulary: int) -> Recorder:
        """Begin the run: the last moment before a token is drawn."""
        mend, given, limits = self._asked.mend, self._arguments, self._limits
        ends = self._model.generation_config.eos_token_id
        digests = [assigned.digest for assigned in self._assignment]
        claim = Claim(
            epsilon=float(limits["epsilon"]), delta=float(limits["delta"]), kind=ApproximateClaim.id
        )
        name = str(given["model_name_or_path"])
        manifest = Manifest(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            mechanism=self._mechanism(vocabulary),
            batching=self._batching,
            chosen_from=Origins(
                batching="private" if given["num"] == _AUTO else "public",
                settings="private" if given["max_toks"] == _AUTO else "public",
            ),
            decoding=Decoding(max_tokens=int(limits["num_toks"]), sequences=_sequences(ends)),
            sampling=Sampling()
            if "randomness" in mend
            else Sampling(generator="mt19937", seed=int(given["random_seed"])),
            record=Record(vocabulary=vocabulary, dtype="float64", contexts=True),
            data=Data(records=len(digests), digest=data_digest(digests), label=None),
            model=Model(
                name=Path(name).name if os.path.isdir(name) else name,
                dtype=str(self._model.dtype).removeprefix("torch."),
                device=self._model.device.type,
                rows=int(limits["batch_size"]),
                trained_on_records=self._asked.trained_on_records,
            ),
            prompt=Prompt(template=NAME, digest=self._prompt_digest()),
            software={each: metadata.version(each) for each in (NAME, *SOFTWARE)},
            recorded=Recorded(
                generator=f"{NAME} {VERSION}",
                mended=mend,
                batches=self._moved,
                rows=self._lengthened(),
            ),
            claim=claim if self._asked.claim == "asked" else None,
        )
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        words = None if backend is None else backend.to_str()
        return self._opened.enter_context(
            Recorder.create(self._asked.out, manifest, self._assignment, tokenizer_json=words)
        )

    def _mechanism(self, vocabulary: int) -> Mechanism:
        top, size = int(self._arguments["topk"]), int(self._limits["batch_size"])
        support: dict[str, Any] = {"kind": "full"}
        if top < vocabulary:
            support = {
                "kind": "public-top-k",
                "size": top,
                "margin": 2 * self._clip / size,
                "limit": vocabulary,
            }
        fields = {
            "contribution": {"kind": "raw-differences", "clip": self._clip},
            "aggregator": {"kind": "mean", "divisor": float(size - 1)},
            "temperature": float(self._limits["temp"]),
            "support": support,
        }
        try:
            return Mechanism.model_validate(fields)
        except ValidationError as error:
            problem = f"its settings are no mechanism ({error.errors()[0]['msg']})."
            raise InputError(
                NAME, problem, "Ask for a positive epsilon, at a positive temperature."
            ) from None

    def _prompt_digest(self) -> str:
        """Return the digest of all that is public in its prompts."""
        parts = ("system_prompt", "pub_prompt", "prv_prompt", "dataset_desc")
        return hashlib.sha256(
            repr([str(self._arguments[name]) for name in parts]).encode()
        ).hexdigest()

    def _lengthened(self) -> Rows:
        """Try the effect of a longer text in the first row on the other rows of the first batch.

        It is the longest of all texts, twice.
        """
        text, longer = max(self._texts, key=len), [dict(prompt) for prompt in self._prompts]
        longer[0]["private_ref"] = f"{text} {text}"
        before, after = self._scored(self._prompts), self._scored(longer)
        supports = [
            self._own["get_topk"](
                pub_logits=rows[-1],
                k=min(int(self._arguments["topk"]), rows.shape[1]),
                clip=self._clip,
                batch=len(rows),
            )[0]
            for rows in (before, after)
        ]
        moved = float(np.abs(before[1:] - after[1:]).max(initial=0.0))
        return Rows(logit=moved, support=int(np.count_nonzero(supports[0] != supports[1])))

    def _scored(self, prompts: list[dict[str, Any]]) -> NDArray[np.float64]:
        """Return the model's logits [rows, V] right behind prompts, as the generator has them."""
        texts = [self._own["get_prompt"](**prompt) for prompt in prompts]
        encoded = self._tokenizer(texts, return_tensors="pt", padding=True, truncation=True).to(
            self._model.device
        )
        output = self._model.generate(
            encoded.input_ids,
            attention_mask=encoded.attention_mask,
            max_new_tokens=1,
            do_sample=False,
            pad_token_id=self._tokenizer.eos_token_id,
            output_logits=True,
            return_dict_in_generate=True,
        )
        return np.asarray(output.logits[0].cpu().numpy(), dtype=np.float64)

    # --- one step ---------------------------------------------------------------------------------

    def _difference_clip(self, logit: Any, publogit: Any, clip_norm: float) -> NDArray[np.float64]:
        rows, public = np.asarray(logit, dtype=np.float64), np.asarray(publogit, dtype=np.float64)
        if self._recorder is None:
            self._recorder = self._start(len(public))
        number = len(self._spent)
        absent, present = (
            self._absent[number],
            [row for row in range(len(rows)) if row not in self._absent[number]],
        )
        if self._batch is None:
            self._batch = self._closing.enter_context(
                self._recorder.batch(number, contexts=len(present))
            )
        clipped: NDArray[np.float64] = self._own["difference_clip"](
            logit=rows, publogit=public, clip_norm=clip_norm
        )
        clipped[absent] = public
        self._public, self._aggregate = public, clipped.mean(axis=0)
        self._differences = np.clip(rows[present] - public, -clip_norm, clip_norm)
        return clipped

    def _get_topk(self, **named: Any) -> Any:
        found = self._own["get_topk"](**named)
        self._support = np.flatnonzero(found[0])
        return found

    def _choice(self, values: Any, p: NDArray[np.float64]) -> np.int64:
        """Draw by the generator's own random numbers, or by the operating system's."""
        assert self._batch is not None
        ids = self._support
        if p[np.setdiff1d(values, self._support)].any():
            ids = np.flatnonzero(p)
        aggregate, temperature = self._aggregate[ids], float(self._limits["temp"])
        expected = np.exp((aggregate - aggregate.max()) / temperature)
        if np.abs(expected / expected.sum() - p[ids]).max() > _ROUNDING:
            # it draws from something else: that is what is recorded
            aggregate = temperature * np.log(p[ids])
        step = {
            "contexts": self._differences[:, ids],
            "aggregate": aggregate,
            "support": ids if self._batch.truncated else None,
            "anchor": self._public[ids],
        }
        if "randomness" in self._asked.mend:
            return np.int64(self._batch.draw(**step))
        token = np.random.choice(values, p=p)
        return np.int64(self._batch.step(int(token), float(np.log(p[token])), **step))

    def _get_epsilon(self, **named: Any) -> float:
        """Take the end of a text, and what the generator says that it spent on it."""
        spent = float(self._own["get_epsilon"](**named))
        if self._batch is None or self._recorder is None:
            return spent
        self._batch.finish()
        self._batch = None
        self._closing.close()
        self._spent.append(spent)
        if len(self._spent) == self._batching.batches:
            delta, largest = float(self._limits["delta"]), max(self._spent)
            stated = Claim(epsilon=largest, delta=delta, kind=ApproximateClaim.id)
            self._recorder.finish(None if self._asked.claim == "asked" else stated)
            self.finished = True
        return spent


class _Numpy:
    """numpy, but for `random.choice`."""

    def __init__(self, choice: Callable[..., Any]) -> None:
        self.random = SimpleNamespace(choice=choice)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def _celled(
    key: bytes, texts: list[str], cells: int, batches: int
) -> tuple[list[list[str]], list[list[int]]]:
    """Return batches of one text for each cell that holds exactly one, and of an empty one else.

    Also return the places of the empty ones.
    """
    keyed = KeyedHash(key)
    places = keyed.of_round(0)
    held: dict[tuple[int, int], list[str]] = {}
    for text in sorted(set(texts) - {""}):
        digest = keyed.digest("", text)
        held.setdefault((places.batch(digest, batches), places.slot(digest, cells)), []).append(
            text
        )
    shown = [
        [
            found[0] if len(found := held.get((batch, cell), [])) == 1 else ""
            for cell in range(cells)
        ]
        for batch in range(batches)
    ]
    return shown, [[row for row, text in enumerate(batch) if not text] for batch in shown]


def _assignment(keyed: KeyedHash, texts: list[str], batching: Batching) -> list[Assigned]:
    """Return each text's place, in ascending order of digests.

    Under slices equal texts are numbered; else they are one.
    """
    if batching.cells is not None:
        digests, places = (
            sorted(keyed.digest("", text) for text in set(texts) - {""}),
            keyed.of_round(0),
        )
        return [
            Assigned(
                digest, places.batch(digest, batching.batches), places.slot(digest, batching.cells)
            )
            for digest in digests
        ]
    seen: Counter[str] = Counter()
    placed, slots = [], batching.slots or 1
    for number, text in enumerate(texts):
        batch, slot = divmod(number, slots)
        digest = keyed.digest(str(seen[text] or ""), text)
        seen[text] += 1
        placed.append(
            Assigned(digest, *((batch, slot) if batch < batching.batches else (None, None)))
        )
    return sorted(placed, key=lambda assigned: assigned.digest)


def _sequences(ends: Any) -> tuple[tuple[int, ...], ...]:
    """Return the stop sequences, from one token's id, a list of them or None."""
    return tuple((int(end),) for end in ([] if ends is None else np.atleast_1d(ends)))


def _each_alone(generate: Callable[..., Any]) -> Callable[..., Any]:
    """Return `generate` of one step that runs each row alone.

    There is no padding, and each row has a cache of its own.
    """

    def alone(
        input_ids: Any, *, attention_mask: Any, past_key_values: Any = None, **options: Any
    ) -> Any:
        import torch

        caches = [None] * len(input_ids) if past_key_values is None else past_key_values
        outputs = []
        for ids, mask, cache in zip(input_ids, attention_mask.bool(), caches, strict=True):
            row = {"attention_mask": torch.ones_like(ids[mask][None]), "past_key_values": cache}
            outputs.append(generate(ids[mask][None], **row, **options))
        logits = torch.cat([output.logits[0] for output in outputs])
        return SimpleNamespace(
            logits=(logits,), past_key_values=[output.past_key_values for output in outputs]
        )

    return alone
