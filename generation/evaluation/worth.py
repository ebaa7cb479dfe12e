"""The records' addition to a run's texts, by records that no prompt showed: without noise, or paid.

A record that is held out goes, token by token, to the batch that it would have been in. So each
record of the data, shown or held out, touches one batch of a round alone, and one batch's gain.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from functools import partial

import numpy as np

from dpaudit.accounting.worth import noise_scale, steps_of
from dpaudit.generation import expected
from dpaudit.generation.algorithm import Ready
from dpaudit.generation.clustering.noise import Noise
from dpaudit.generation.config import Config
from dpaudit.generation.evaluation.likelihood import (
    Doubles,
    HeldOut,
    Measurement,
    Watch,
    enough_memory,
    naming_the_option,
    per_token,
)
from dpaudit.generation.evaluation.texts import RealData, read_real
from dpaudit.generation.events import Progress
from dpaudit.generation.public import generate_public
from dpaudit.generation.rebuilt import RunParts, rebuild
from dpaudit.generation.sampling import OsEntropy
from dpaudit.mechanisms import MASKED
from dpaudit.results.worth import Gain, Nothing, PaidGain, Worth, moved_batches
from dpaudit.runs import InputError, Manifest, RunReader, without_stop
from dpaudit.runs.layout import PUBLIC, SAMPLES
from dpaudit.runs.public import PublicReader
from dpaudit.runs.storage import Location, open_storage
from dpaudit.runs.vacuity import PublicText, vacuities

#: Of a figure that is paid for: at most so many records of each batch.
MOST_OF_A_BATCH = 4
EPSILON, LEAST_EPSILON = "--epsilon", 1e-6


class GainByBatch:
    """The gain of held-out records in their batches of the first round.

    Attributes:
        batches: the batches that were to be measured, a public choice.
        sums: `Measurement.sums` of each batch with records that are held out.
    """

    def __init__(self, run: RunParts, batches: range, of_each: int, watch: Watch) -> None:
        """Measure.

        Args:
            run: with the records that it holds out.
            batches: those of the first round that are measured, a public choice.
            of_each: the most records of a batch, those of smallest digest.
            watch: told what is done, of texts, and of how many.
        """
        self.batches = batches
        self._held_out = len(run.held_out)
        texts = defaultdict[int, list[str]](list)
        for record, batch in run.held_out:
            if batch in self.batches and len(texts[batch]) < of_each:
                texts[batch].append(record.text)
        total, done = sum(map(len, texts.values())), 0
        self.sums: dict[int, Doubles] = {}
        with enough_memory():
            for number, chosen in sorted(texts.items()):
                self.sums[number] = _sums(run, number, chosen)
                done += len(chosen)
                watch(done, total)

    @property
    def gain(self) -> Gain:
        """The mean gain of a token, without noise."""
        sums = np.concatenate([np.zeros((0, 4)), *self.sums.values()])
        nats, alone, supported, tokens = sums.T
        # nothing is shown of a token that the model rules out; NaN is below nothing
        usable = bool(supported.any()) and bool(np.max([nats, alone]) < -MASKED)
        return Gain(
            held_out=self._held_out,
            texts=len(sums) if usable else 0,
            tokens=int(tokens.sum()) if usable else 0,
            supported=int(supported.sum()) if usable else 0,
            gain=per_token(alone - nats, supported) if usable else None,
        )

    @property
    def gains(self) -> dict[int, float]:
        """The gain of each measured batch, in nats a token; NaN where nothing tells it."""
        return {batch: _mean_gain(sums) for batch, sums in self.sums.items()}

    @property
    def steps(self) -> int:
        """The sum over batches of each batch's gain, cut off, in integer steps."""
        return sum(map(steps_of, self.gains.values()))


def _sums(run: RunParts, number: int, texts: list[str]) -> Doubles:
    """Return a batch's sums; zeros where they cannot be measured, as no record may stop it."""
    batch = run.batches[number]
    alone = run._replace(batches=(batch,))
    held_out = HeldOut({batch.label: tuple(texts)}, 0)
    try:
        return Measurement(alone, 1, held_out, lambda *_: None).sums()
    except InputError:
        return np.zeros((len(texts), 4))


def _mean_gain(sums: Doubles) -> float:
    nats, alone, supported, _ = sums.sum(axis=0)
    return float((alone - nats) / supported) if supported else math.nan


def paid_gain(
    found: GainByBatch, manifest: Manifest, epsilon: float, earlier: PaidGain | None
) -> PaidGain:
    """Return the gain with noise that costs epsilon. Each call draws anew, and is paid for anew.

    Args:
        found: of all batches of the first round.
        manifest: the run's.
        epsilon: in nats.
        earlier: the run's figure that was paid for before; None for the first.
    """
    privacy = manifest.privacy
    records = moved_batches(privacy)
    noise = Noise(OsEntropy()).rounded_laplace(noise_scale(epsilon, records), 1)
    return PaidGain.of(
        found.steps + int(noise[0]),
        epsilon,
        records=records,
        batches=len(found.batches),
        earlier=earlier,
        unit=privacy.unit,
        relation=privacy.relation,
    )


def require_payable(manifest: Manifest, epsilon: float) -> None:
    """Refuse a figure for a run of which no proof holds, or whose noise would be beyond numbers.

    Raises:
        InputError: no records were held out, one record moves several batches, records decided
            how many there are or where they go, or epsilon is too small.
    """
    privacy, chosen = manifest.privacy, manifest.chosen_from.batching
    if not epsilon >= LEAST_EPSILON:
        problem = f"this is {epsilon:g}, which leaves nothing but noise."
        raise InputError(EPSILON, problem, f"Give {LEAST_EPSILON:g} or more.")
    if not manifest.batching.held_out_millionths:
        problem = "the run held no records out, so nothing shows what the others added."
        raise InputError(EPSILON, problem, "Generate a run with batching.held_out: 0.1, say.")
    if manifest.own_allowances:
        problem = "the records of a user share a budget, so one record can move several batches."
        raise InputError(EPSILON, problem, "Leave it out: no proof covers such a figure.")
    if privacy.unit == "user" and privacy.records_per_user_from != "declared":
        problem = "the noise would follow from the most records of a user, counted in the data."
        remedy = "Generate a run that declares privacy.records_per_user."
        raise InputError(EPSILON, problem, remedy)
    if chosen != "public" or manifest.clustering.origin == "private":
        problem = "private records may have chosen the run's batches, so one can move several."
        remedy = "Generate a run with chosen_from.batching: public, and no clusters of the data's."
        raise InputError(EPSILON, problem, remedy)


def pay_for_gain(
    reader: RunReader,
    data: RealData,
    epsilon: float,
    worth: Worth | None,
    watch: Callable[[str, int, int], None],
) -> Worth:
    """Measure the gain in all batches of the first round, and pay for a figure of it.

    Args:
        reader: the run, finished.
        data: the run's private records are the reference.
        epsilon: the cost of the figure, in nats.
        worth: what was measured before; None if nothing was.
        watch: told what is done, of texts, and of how many.

    Raises:
        InputError: no proof holds for the run, or the reference or the model is not the run's.
    """
    require_payable(reader.manifest, epsilon)
    with naming_the_option(
        EPSILON, "Give the run's own data with --reference, and have its model where run.json says."
    ):
        found = gain_of_run(reader, data, watch)
    before = worth or Worth(samples=reader.digest(SAMPLES))
    paid = paid_gain(found, reader.manifest, epsilon, before.paid)
    return before.model_copy(update={"gain": found.gain, "paid": paid})


def gain_of_run(
    reader: RunReader, data: RealData, watch: Callable[[str, int, int], None]
) -> GainByBatch:
    """Measure the gain of a finished run's held-out records in all batches of the first round.

    Arguments and errors as for `pay_for_gain`.
    """
    records = read_real(reader.manifest, data.reference, "--reference", data)
    run = rebuild(reader, data.reference, records)
    batches = range(run.manifest.batching.per_round)
    return GainByBatch(run, batches, MOST_OF_A_BATCH, partial(watch, "Gain of held-out records"))


def write_baseline(config: Config, out: Location, ready: Ready, progress: Progress) -> Nothing:
    """Write the texts of a finished run's prompts without any record; count those of nothing.

    Texts that are there already, from before the run was gone on with, are kept.

    Args:
        config: all settings.
        out: where to write.
        ready: the run's parts.
        progress: told of every text and of every step.

    Raises:
        InputError: only the records tell how many texts there are, they cannot be written, or
            those that are there are another run's.
    """
    if not open_storage(out).exists(PUBLIC):
        generate_public(config, out, progress, ready.prompting)
    reader = PublicReader(out)
    reader.public.require_fit(reader.where(PUBLIC), ready.manifest)
    sequences, public = ready.manifest.decoding.sequences, PublicText.of(ready.manifest)
    texts = [(sample.text, without_stop(sample.tokens, sequences)) for sample in reader.samples()]
    return Nothing(texts=len(texts), nothing=vacuities(texts, public).total())


def gain_at_the_end(ready: Ready, watch: Watch) -> Gain | None:
    """Measure a finished run's gain on some records; None where it holds none out."""
    held_out = ready.records.held_out
    if not held_out:
        return None
    run = RunParts(ready.manifest, ready.model, ready.prompts, ready.records.batches, held_out)
    batches = expected.measured(ready.manifest.batching.per_round)
    return GainByBatch(run, batches, 1, watch).gain
