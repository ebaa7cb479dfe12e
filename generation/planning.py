"""Plans of a run, before anything of it is written: its number of texts, its claim, its duration.

All records are placed and the model is loaded, as for the run itself, and its first batches take a
few steps, which are timed, weighed and dropped: nothing of them is shown or kept.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from numpy.typing import NDArray

from dpaudit.accounting import limit_of
from dpaudit.accounting.guesses import canary_guesses
from dpaudit.generation import expected
from dpaudit.generation.algorithm import Ready, prepare, silent
from dpaudit.generation.config import BatchingConfig, Config
from dpaudit.generation.events import Event, PhaseBegan, Progress
from dpaudit.generation.manifest import release_accountant, secrecy_of
from dpaudit.generation.models import LanguageModel
from dpaudit.generation.preview import preview
from dpaudit.generation.sizes import Pricing, Sizes, Wish, plans
from dpaudit.generation.worker import Worker
from dpaudit.results import Amplification, AttackBound, ClaimResult
from dpaudit.results.plan import Menu, Plan
from dpaudit.runs import (
    BatchHeader,
    InputError,
    Manifest,
    NotSecret,
    Sampling,
    SecretBatches,
    Step,
    Vocabulary,
)
from dpaudit.runs.manifest import StopReason
from dpaudit.runs.storage import Location
from dpaudit.runs.text import KNOWN_TOKENIZERS

#: Steps that are timed after the first one, which waits for the prompts.
STEPS = 3


def plan(
    config: Config,
    obstacles: Sequence[str] = (),
    spent: Sequence[Location] = (),
    menu: Menu | None = None,
    needs_data: bool = False,
    progress: Progress = silent,
) -> Plan:
    """Plan a new run of a config.

    Args:
        config: all settings.
        obstacles: what keeps it from passing its audit, as sentences.
        spent: runs that it goes on from, with what they left of the budgets.
        menu: what else the same epsilon gives; None to go by the config.
        needs_data: whether its audit passes only where the run is replayed with the data.
        progress: told of the phases.

    Raises:
        InputError: as `generate` does.
    """
    ready = prepare(config, spent, progress=progress)
    progress(PhaseBegan("timing"))
    records, batches = ready.manifest.data.records, ready.manifest.batches
    contexts = expected.contexts(config, records)
    prompts, step, fixed, each, tried = _trial(ready)
    rate = _Rate(prompts / max(1, tried), step / max(1, tried))
    tokens = config.decoding.most_tokens
    texts = -(-tokens // config.decoding.longest)  # each begins with prompts that are there already
    held_out = config.batching.held_out > 0
    rows = rows_of(batches, config.batching.slots or contexts, config.batching.rounds, held_out)
    menu = menu or menu_of_config(config, ready.manifest)
    claim, mechanism, canaries = (
        ready.manifest.claim,
        ready.manifest.mechanism,
        ready.manifest.canaries,
    )
    budgets = (share for batch in ready.records.batches for share in batch.budgets or ())
    refutable = None
    if canaries is not None:
        delta = 0.0 if claim is None else claim.delta
        refutable = canary_guesses(canaries.count, delta).most_refutable()
    least = (
        min(budgets, default=mechanism.budget)
        if ready.manifest.own_allowances
        else mechanism.budget
    )
    return Plan(
        records=records,
        labels=len(config.data.labels or ()),
        rounds=ready.manifest.rounds,
        batches=batches,
        contexts=contexts,
        tokens=tokens,
        longest=config.decoding.longest,
        several=config.decoding.tokens_per_batch is not None,
        claim=None if claim is None else ClaimResult(**claim.model_dump()),
        **_levels(config, ready.manifest),
        withheld="" if claim is None else _why_withheld(ready.manifest),
        sure=None if least is None else mechanism.sure_draws(least),
        left=ready.left,
        seconds=rate.seconds(rows, 1, max(0, tokens - texts)),
        stored=round((fixed + each * contexts) * tokens * batches),
        audit=expected.audit_seconds(ready.manifest, contexts, tokens * batches),
        large=expected.large_record(ready.manifest, contexts) is not None,
        obstacles=tuple(obstacles),
        public_parts=ready.manifest.public_parts,
        canaries=None if canaries is None else canaries.count,
        refutable=refutable,
        preview=preview(config, ready.prompting),
        dtype=ready.manifest.model.dtype or "",
        knows_tokenizer=_knows_tokenizer(ready.model),
        needs_data=needs_data,
        held_out=config.batching.held_out,
        menu=None
        if menu is None
        else _timed(menu, rate, config.prompt.examples_per_context, held_out),
    )


@dataclass(frozen=True)
class _Rate:
    """The measured seconds of a context: until it has a token, and for each token after that."""

    prompt: float
    step: float

    def seconds(self, contexts: float, longer: float, tokens: int) -> float:
        """Return the time of so many contexts; their prompts are so many times as long."""
        return contexts * (self.prompt * longer + self.step * tokens)


def timed(menu: Menu, config: Config, progress: Progress = silent) -> Menu:
    """Return a menu with the time of each plan, measured on made-up records: none is read.

    Args:
        menu: the plans.
        config: that of one of them, with one record in a context.
        progress: told of the phases.

    Raises:
        InputError: the model cannot be used.
    """
    contexts = round(menu.offers[0].contexts)
    data, text = config.data, "word " * config.prompt.max_example_tokens
    with TemporaryDirectory(prefix="dpaudit-") as folder:
        file = Path(folder) / "made-up.jsonl"
        # with the columns and the encoding of the data, which a file of public examples has, too
        records = (
            {data.text: f"{number} {text}", data.label: value}
            for value in data.named
            for number in range(contexts)
        )
        lines = "".join(f"{json.dumps(record)}\n" for record in records)
        file.write_text(lines, encoding=data.encoding or "utf-8")
        made_up = {"path": str(file), "dataset": None, "config": None, "split": None, "user": None}
        one = config.model_copy(
            update={
                "data": data.model_copy(update=made_up),
                "batching": BatchingConfig(batches_per_label=1),
            }
        )
        ready = prepare(one, progress=progress)
    progress(PhaseBegan("timing"))
    prompts, step, _, _, tried = _trial(ready)
    held_out = config.batching.held_out > 0
    return _timed(menu, _Rate(prompts / tried, step / tried), 1, held_out)


def rows_of(texts: int, contexts: float, rounds: int, held_out: bool) -> float:
    """Return the contexts of a run with its baseline, and of what measures the records' gain."""
    measured = len(expected.measured(texts // rounds)) if held_out else 0
    return (texts + measured) * contexts + texts


def _timed(menu: Menu, rate: _Rate, examples: int, held_out: bool) -> Menu:
    """Return the menu with the time of each plan, by contexts with `examples` records."""
    offers = (
        offer.model_copy(
            update={
                "seconds": rate.seconds(
                    rows_of(offer.texts, offer.contexts, offer.rounds, held_out),
                    offer.examples / examples,
                    menu.tokens - 1,
                )
            }
        )
        for offer in menu.offers
    )
    return menu.model_copy(update={"offers": tuple(offers)})


def menu_of_config(config: Config, manifest: Manifest) -> Menu | None:
    """Return what else the epsilon of a config gives, for batching.records, or as its batches hold.

    Returns None where the epsilon is not known before the run, or batches are no label's.
    """
    claim, batching, parts = manifest.claim, config.batching, config.mechanism.model_dump()
    contexts, margin = parts["aggregator"].get("divisor"), parts["support"].get("margin")
    if (
        claim is None
        or claim.epsilon is None
        or None in (contexts, margin, batching.batches_per_label)
        or limit_of(config.privacy) is not None
        or batching.slots is not None
    ):
        return None
    labels, examples = len(config.data.groups), config.prompt.examples_per_context
    sizes = Sizes(round(contexts), batching.batches_per_label or 1, 1, 1, examples)
    placed, held_out = sizes.records * sizes.batches * labels, batching.held_out
    records = batching.records or round(placed / (1 - held_out))
    pricing = Pricing(config.mechanism, config.decoding.most_tokens, claim.delta, manifest.privacy)
    try:
        offers = plans(
            Wish(labels, records, None, claim.epsilon, held_out), sizes.contexts, pricing
        )
    except InputError:  # batches of so few records that none else would do
        return None
    menu = Menu(
        records=records,
        labels=len(config.data.labels or ()),
        tokens=config.decoding.longest,
        epsilon=claim.epsilon,
        unit=claim.unit,
        offers=tuple(choice.offer for choice in offers.values()),
    )
    return expected.with_sizes(menu, manifest)


def _levels(config: Config, manifest: Manifest) -> dict[str, Any]:
    """Return what attackers can do and secret batches gain, as far as public settings tell."""
    claim, batching, privacy = manifest.claim, manifest.batching, manifest.privacy
    names = ("attack", "batch_attack", "equal", "fewest", "one_label", "affordable")
    found: dict[str, Any] = dict.fromkeys(names)
    budgeted = config.model_copy(update={"mechanism": manifest.mechanism})
    accountant, tokens = (
        release_accountant(budgeted, privacy, batching, manifest.clustering),
        config.decoding.most_tokens,
    )
    if claim is not None and accountant is not None and claim.terms.beforehand:
        delta = claim.terms.tested_delta(claim.delta)
        found["attack"] = AttackBound.of(accountant.attack_curve(tokens, delta))
        found["batch_attack"] = AttackBound.of(accountant.batch_attack_curve(tokens, delta))
    secret = secrecy_of(config, privacy, batching, manifest.clustering)
    if isinstance(secret, NotSecret):
        return found | {"equal": None if claim is None else Amplification.why_equal(secret)}
    found["fewest"] = min(batches for batches, _ in secret.groups)
    if claim is None or accountant is None or accountant.secret is None:
        return found
    labels = len(config.data.groups)
    if labels > 1 and config.clustering is None:
        merged = tuple(
            (batches * labels, generated * labels) for batches, generated in secret.groups
        )
        together = replace(accountant, secret=SecretBatches(merged, secret.rounds))
        found["one_label"] = together.epsilon(tokens, claim.delta)
    if config.claim is not None and claim.epsilon is not None and not privacy.split_delta:
        rounds = accountant.most_rounds_within(claim.epsilon, tokens, claim.delta)
        found["affordable"] = rounds * batching.per_round * -(-tokens // config.decoding.longest)
    return found


def _why_withheld(manifest: Manifest) -> str:
    """Return why a claim would be withheld from readers outside, with the setting to change."""
    if manifest.privacy.unit == "user" and manifest.privacy.records_per_user_from == "data":
        return (
            "it rests on how many records one user has in the data. Declare "
            "privacy.records_per_user"
        )
    if manifest.privacy.delta_from == "records":
        return "its delta is worked out from the number of records. Declare privacy.delta"
    return ""


def _knows_tokenizer(model: LanguageModel) -> bool:
    """Return whether audits can decode the model's texts by themselves (release.text)."""
    json = model.tokenizer_json
    if json is None:
        return True  # then texts are not decoded
    try:
        return Vocabulary.of(json).digest in KNOWN_TOKENIZERS
    except ValueError:
        return False


def _trial(ready: Ready) -> tuple[float, float, float, float, int]:
    """Run the first batches that share a pass for a few steps.

    Returns:
        Seconds until all have a token, seconds a step after that, bytes of a step and of each
            context in one, and contexts.
    """
    rows, contexts = ready.manifest.model.rows or 1, 0
    chosen: list[int] = []
    for batch in ready.records.batches:
        if chosen and contexts + len(batch.contexts) > rows:
            break
        chosen.append(batch.id)
        contexts += len(batch.contexts)
    # No text ends by itself: each batch takes as many steps as the others, and weighs in as much.
    ending = {"max_tokens": 1 + STEPS, "tokens_per_batch": None, "sequences": ()}
    decoding = ready.manifest.decoding.model_copy(update=ending)
    store = _Weighed(
        ready.manifest.model_copy(
            update={"decoding": decoding, "claim": None, "sampling": Sampling()}
        )
    )
    first, start = 0.0, time.perf_counter()

    def note(event: Event) -> None:
        nonlocal first
        first = first or (time.perf_counter() - start if store.steps >= len(chosen) else 0.0)

    worker = Worker(store, ready.records.batches, ready.model, ready.prompts)
    for _ in worker.run(chosen, note):
        pass
    elapsed = time.perf_counter() - start
    further = max(1, store.steps - len(chosen)) / max(1, len(chosen))
    fixed, each = store.stored / max(1, store.steps), store.of_rows / max(1, store.rows)
    return first, (elapsed - first) / further, fixed, each, contexts


class _Weighed:
    """Storage of batches that are weighed and not kept: a `Store` and a `Record`."""

    location, whole = "", ()

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.steps = self.stored = self.rows = self.of_rows = 0

    @contextmanager
    def batch(self, header: BatchHeader) -> Iterator[_Weighed]:
        """Give this as the record of a batch."""
        yield self

    def write(self, step: Step) -> None:
        """Weigh a step."""
        self.steps += 1
        self.stored += _bytes(*step.arrays.values(), step.support, step.canary)
        self.rows += 0 if step.contexts is None else len(step.contexts)
        self.of_rows += _bytes(step.contexts, step.spent)

    def end_text(self, *, text: str | None, stop: StopReason) -> None:
        """Keep nothing of a text's end."""

    finish = end_text


def _bytes(*arrays: NDArray[Any] | None) -> int:
    return sum(array.nbytes for array in arrays if array is not None)
