"""A finished run's sources: its model and prompts as in run.json, and its batches from the data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import zip_longest
from typing import NamedTuple

from dpaudit.generation.canaries import included
from dpaudit.generation.config import ModelConfig
from dpaudit.generation.grouping import recompute_grouping
from dpaudit.generation.head import Head
from dpaudit.generation.model_loading import load_model
from dpaudit.generation.model_probe import isolation_of
from dpaudit.generation.model_step import UNIT_ROUNDOFF, rounding_tolerance
from dpaudit.generation.models import FIELD, LanguageModel
from dpaudit.generation.overlap import shared_texts
from dpaudit.generation.partition import (
    Batch,
    Layout,
    Partition,
    groups_of,
    partition,
    with_allowances,
)
from dpaudit.generation.prompts import Prompts, template
from dpaudit.generation.records import Record, Records
from dpaudit.generation.rows import OF_SETTINGS
from dpaudit.generation.run_data import THE_DATA, require_run_records
from dpaudit.results import Finding, Place, Value
from dpaudit.results.catalogue import sentence
from dpaudit.results.replay import SharedText
from dpaudit.runs import (
    InputError,
    KeyedHash,
    Manifest,
    RunReader,
    as_released,
    without_stop,
)
from dpaudit.runs.assignment import KEY_BYTES
from dpaudit.runs.layout import ASSIGNMENT, MANIFEST

#: Characters of a prompt without its examples; a run directory may ask for any.
LONGEST_FRAME = 1 << 22


class RunParts(NamedTuple):
    """A run's batches in order of id, and what their texts come from.

    Attributes:
        held_out: see `Partition`.
    """

    manifest: Manifest
    model: LanguageModel
    prompts: Prompts
    batches: Sequence[Batch]
    held_out: Sequence[tuple[Record, int]] = ()


def rebuild(reader: RunReader, data: str, records: Sequence[Record]) -> RunParts:
    """Return the parts of a finished run, by its record, its data and its model.

    Args:
        reader: the run.
        data: where the records are, for errors.
        records: the run's private ones.

    Raises:
        InputError: as `replay_run` does, or the recorded assignment is not what the rule gives.
    """
    rebuilt = Rebuilt(reader, data, lambda: Records(tuple(records), None, 0), None)
    if problem := rebuilt.assignment_problem():
        raise InputError(
            reader.name, f"{sentence(problem)}.", "Restore the run, or generate it again."
        )
    return RunParts(
        reader.manifest,
        rebuilt.named.model,
        rebuilt.named.prompts,
        rebuilt.partition.batches,
        rebuilt.partition.held_out,
    )


class NamedModel:
    """The model and the prompts that a run names.

    Attributes:
        head: the model's, where the run's mechanism scores the support alone.
    """

    def __init__(self, reader: RunReader, name: str | None) -> None:
        """Load the model, by its `name` or the run's.

        Raises:
            InputError: the model or a prompt is not the run's.
        """
        reader.require_loadable()
        self._reader, self._manifest = reader, reader.manifest
        self._where = reader.where(MANIFEST)
        self.model = self._load(name)
        self.head = Head.of(self.model.network) if self._manifest.mechanism.over_support else None
        self.prompts = self._run_prompts()

    def rounding(self, scale: float) -> float:
        """Return how far logits may be off, in logit units.

        `scale` is the largest number around.
        """
        config, dtype = (
            self.model.network.config.get_text_config(),
            self._manifest.model.dtype or "float32",
        )
        return rounding_tolerance(scale, config.num_hidden_layers, config.hidden_size, dtype)

    def text_problem(self) -> Finding | None:
        """Return the first text unlike its tokens decoded by the model's tokenizer, or None."""
        for batch_id in self._reader.batches:
            with self._reader.batch(batch_id) as recorded:
                if recorded.tokens.min() < 0:
                    return Finding(
                        code="replay.foreign-token-in", values={"place": Place(batch=batch_id)}
                    )
                for sample in recorded.samples():
                    own = self.model.decode(
                        without_stop(sample.tokens, self._manifest.decoding.sequences)
                    )
                    same = own is not None and sample.text == as_released(own)
                    if sample.text is not None and not same:
                        place: dict[str, Value] = {
                            "place": Place(batch=batch_id),
                            "text": sample.number,
                        }
                        return Finding(code="replay.other-text", values=place)
        return None

    def _field_error(self, field: str, problem: str) -> InputError:
        return _field_error(self._where, field, problem)

    def _load(self, name: str | None) -> LanguageModel:
        named = self._manifest.model
        if named.digest is None or named.dtype not in UNIT_ROUNDOFF:
            lacking = "digest" if named.digest is None else "dtype"
            raise self._field_error(f"model.{lacking}", "the run does not say which model it used.")
        # A run that was made on a CPU is computed bit for bit only there.
        device = "cpu" if named.device == "cpu" else "auto"
        with of_options():
            coupled = {"coupled_rows": "batch"} if named.isolation == "batch" else {}
            fields = {"name": name or named.name, "dtype": named.dtype, "device": device, **coupled}
            config = ModelConfig.model_validate(fields)
            model = load_model(config, named.digest)
        if named.isolation == "shared" != isolation_of(model) and named.device == model.device.type:
            problem = (
                "this is shared, and in one pass this model's contexts move each other's bits here."
            )
            remedy = "Replay on a machine like the one that made the run; there this must not be."
            raise InputError(f"{self._where}: model.isolation", problem, remedy)
        if model.vocabulary != self._manifest.record.vocabulary:
            problem = (
                f"this is {self._manifest.record.vocabulary}, but the model scores "
                f"{model.vocabulary} tokens."
            )
            raise self._field_error("record.vocabulary", problem)
        return model

    def _run_prompts(self) -> Prompts:
        """Return the run's prompts."""
        named, model, data = self._manifest.prompt, self.model, self._manifest.data
        examples, most = named.examples_per_context, named.max_example_tokens
        if named.template != "own" and (named.text, named.end) != (None, None):
            raise self._field_error(
                "prompt.template", "the run has a template of its own, and names another."
            )
        if most is None:
            raise self._field_error(
                "prompt.max_example_tokens", "the run names no length of examples."
            )
        try:
            wording = template(named.template, model.tokenizer, named.text, named.end)
        except InputError as error:
            raise self._field_error(error.where, error.problem) from None
        if wording.shows_label and not data.labels:
            raise self._field_error("data.labels", "the run has none, and its prompts show them.")
        if wording.digest != named.digest:
            problem = (
                f"the run's template {named.template!r} has another digest than this version's."
            )
            if named.text is not None:
                problem = "this is not the digest of the run's own prompt.text and prompt.end."
            raise InputError(
                f"{self._where}: prompt.digest",
                problem,
                "Replay with the dpaudit that made the run.",
            )
        if model.positions is not None and examples * most > model.positions:
            problem = (
                f"examples may take {examples * most} tokens, but the model takes "
                f"{model.positions}."
            )
            raise self._field_error("prompt.max_example_tokens", problem)
        if examples * len(named.text or "") > LONGEST_FRAME:
            raise self._field_error(
                "prompt.text", f"{examples} examples in it are too long for any model."
            )
        labels, rules = data.groups, self._manifest.forbidden_tokens(model.tokenizer_json)
        prompts = Prompts(
            model, wording, labels, examples, most, named.one_line, named.public_examples, rules
        )
        if named.public not in ((), tuple(map(prompts.public_tokens, labels))):
            raise self._field_error(
                "prompt.public", "these are not the tokens of the template's public prompts."
            )
        return prompts


class Rebuilt:
    """A run with its data and its model.

    Attributes:
        records: the run's, with the canaries that were in.
        most_per_user: see `dpaudit.results.replay.Replay`.
        noise: see `dpaudit.results.replay.Replay`.
        partition: what the declared rule makes of the records; what contexts may spend as the
            assignment has it.
        named: the run's model and prompts.
    """

    def __init__(
        self, reader: RunReader, data: str, read: Callable[[], Records], model: str | None
    ) -> None:
        """Read the data and load the model.

        Raises:
            InputError: the model or the `read` data, called `data`, are not the run's.
        """
        reader.require_loadable()
        self._reader, self._manifest = reader, reader.manifest
        self._where = reader.where(MANIFEST)
        self._clusters = reader.clusters()
        self._require_rule()
        found = read()
        canaries = included(reader.canaries()) if self._manifest.canaries is not None else ()
        self.records, self._users = tuple(sorted({*found.records, *canaries})), found.users
        self.most_per_user = found.most_per_user
        require_run_records(self._manifest, self.records, data, self._where)
        self._centers, self.noise = recompute_grouping(
            self._manifest, self._clusters, self.records, self._where
        )
        self.partition = self._with_allowances(self.partitioned(self.records))
        self.named = NamedModel(reader, model)

    def partitioned(self, records: Iterable[Record]) -> Partition:
        """Return the partition of these records by the declared rule."""
        return partition(Layout.of(self._manifest), self._clusters, records, self._centers)

    def assignment_problem(self) -> Finding | None:
        """Return the first line of the recorded assignment that breaks the rule, or None."""
        whose = self._users or {}
        users = {self._digest(record): self._hashing.user(user) for record, user in whose.items()}
        pairs = zip_longest(self._reader.assignment(), self.partition.assignment)
        for number, (recorded, derived) in enumerate(pairs, start=1):
            if recorded != derived:
                return Finding(
                    code="replay.other-assignment", values={"line": number, "file": ASSIGNMENT}
                )
            if recorded is not None and recorded.user != users.get(recorded.digest, recorded.user):
                return Finding(
                    code="replay.other-user", values={"line": number, "file": ASSIGNMENT}
                )
        return None

    def shared_texts(self) -> tuple[SharedText, ...]:
        """Return what the run's public settings share with its records, its canaries aside."""
        manifest = self._manifest
        canaries = self._reader.canaries().canaries if manifest.canaries else ()
        made_up = {(canary.label, canary.text) for canary in canaries}
        records = (each.text for each in self.records if (each.label, each.text) not in made_up)
        stops = [
            self.named.model.decode(list(sequence)) or ""
            for sequence in manifest.decoding.sequences
        ]
        return shared_texts(manifest, records, stops, [canary.text for canary in canaries])

    def _with_allowances(self, parts: Partition) -> Partition:
        """Return the rule's partition with the budgets that the assignment states."""
        if not self._manifest.own_allowances:
            return parts
        recorded = {each.digest: each for each in self._reader.assignment()}
        pairs = ((each, recorded.get(each.digest, each)) for each in parts.assignment)
        places = tuple(each._replace(user=known.user, spent=known.spent) for each, known in pairs)
        return with_allowances(replace(parts, assignment=places), self._manifest)

    @cached_property
    def _hashing(self) -> KeyedHash:
        return KeyedHash(bytes.fromhex(self._manifest.batching.key or ""))

    def _digest(self, record: Record) -> str:
        return self._hashing.digest(record.label, record.text)

    def _require_rule(self) -> None:
        """Refuse a run.json that declares less of the batching rule than this generator does.

        Raises:
            InputError: a field is missing, or numbers of batches disagree.
        """
        batching = self._manifest.batching
        part = "label" if self._manifest.clustering.method == "none" else "cluster"
        if len(batching.key or "") != 2 * KEY_BYTES:
            raise _field_error(
                self._where, "batching.key", f"the run gives no key of {KEY_BYTES} bytes."
            )
        hashed = part == "label" and batching.rule != "paper-slices"
        for field in (f"generate_per_{part}", *["batches_per_label"] * hashed):
            if not getattr(batching, field):
                raise _field_error(self._where, f"batching.{field}", "the run does not say this.")
        if (
            sum(len(group.ids) for group in groups_of(Layout.of(self._manifest), self._clusters))
            != batching.per_round
        ):
            problem = (
                f"this is {batching.batches}, which is not generate_per_{part} for each of "
                f"the {part}s"
            )
            problem += "." if batching.rounds == 1 else f" in each of {batching.rounds} rounds."
            remedy = "Restore the run, or generate it again."
            raise InputError(f"{self._where}: batching.batches", problem, remedy)


def _field_error(where: str, field: str, problem: str) -> InputError:
    """Return the error about a field of run.json."""
    return InputError(
        f"{where}: {field}", problem, "Only runs of `dpaudit generate` can be replayed."
    )


@contextmanager
def of_options() -> Iterator[None]:
    """Name the command's options in errors that ask for other settings, fixed here."""
    try:
        yield
    except InputError as error:
        where = "--model" if error.where == FIELD else error.where
        remedy = THE_DATA if error.code in OF_SETTINGS else error.remedy
        raise InputError(where, error.problem, remedy, error.code) from None
