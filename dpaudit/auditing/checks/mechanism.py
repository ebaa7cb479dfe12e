"""Is the mechanism that the manifest declares one that a guarantee can rest on?"""

from __future__ import annotations

import hashlib
from collections import Counter
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from dpaudit.auditing.checks.claim import recomputed_figure
from dpaudit.auditing.checks.costs import Costs
from dpaudit.auditing.checks.evidence import AuditedRun, BatchEvidence, Evidence, first_alike
from dpaudit.auditing.checks.neighbors import HIDDEN_BY_ROUNDING, logits_agree, rounding_hides
from dpaudit.auditing.checks.registry import (
    Outcome,
    RunCheck,
    SettingsCheck,
    StepCheck,
    inapplicable,
    replay_remedy,
)
from dpaudit.auditing.checks.steps import BatchView, StepsView, StepView
from dpaudit.mechanisms import ANCHOR, COME_AND_GO
from dpaudit.results import Finding, Place, Quantity, Value, finding_of
from dpaudit.results.shell import argument
from dpaudit.runs import BatchHeader, InputError
from dpaudit.runs.manifest import Rows

#: The level of what rests on the model, too.
_REPLAYED = 3
#: What is public is held against other batches' after so many tokens at most: longer texts seldom
#: agree.
LONGEST_PREFIX = 7


@SettingsCheck(id="mechanism.randomness")
def randomness_is_secret(run: AuditedRun) -> Outcome:
    """Judge the declared generator: the system's entropy, a committed secret seed, or any other."""
    sampling = run.manifest.sampling
    values: dict[str, Value] = {"generator": sampling.generator}
    if sampling.generator == "os-entropy":
        return Outcome("pass", "entropy", values)
    if sampling.committed:
        return Outcome("pass", "committed-seed", values)
    if sampling.generator == "test-seed":
        return Outcome("fail", "test-seed", values)
    if sampling.seed is not None:
        values["seed"] = sampling.seed
    return Outcome("fail", "mersenne-twister", values)


@StepCheck(
    id="mechanism.clip",
    applies=lambda manifest: (
        manifest.record.contexts
        and (not manifest.truncated or manifest.mechanism.contribution.over_support)
    ),
    otherwise="mechanism.no-whole-contexts",
    together=True,
)
def contexts_are_clipped(view: StepsView) -> Finding | None:
    """Compare each context's largest logit with the clip.

    Differences must make the anchor add up to 1.
    """
    if view.contexts is None:  # a batch without contexts
        return None
    contribution = view.mechanism.contribution
    return finding_of(contribution.clip_problem(view.arrays, view.contexts, view.spans))


def _from_replayed_steps(run: AuditedRun, seen: int) -> Outcome:
    """Return replayed steps' outcome for sums without all recorded terms, or a skip without any."""
    replayed = logits_agree(run)
    assert isinstance(replayed, Outcome)
    if replayed.status == "pass":
        return Outcome("pass", "recomputed", replayed.values, replayed.notes, evidence=_REPLAYED)
    values: dict[str, Value] = {"seen": seen, "steps": run.steps}
    return Outcome("skip", "unrecorded-contexts", values, (replay_remedy(run.manifest),))


def _left_unrecorded(run: AuditedRun) -> Outcome | None:
    """Return the skip of a run that will record no terms of its sums; None of another run."""
    manifest, aggregator = run.manifest, run.manifest.mechanism.aggregator
    if manifest.record.contexts or not aggregator.sums:
        return None
    truncated = manifest.mechanism.support.size is not None
    code = "contexts-left-out" if truncated else "contexts-too-large"
    return Outcome("skip", code, {"aggregator": aggregator.name})


@StepCheck(
    id="mechanism.divisor",
    shown=lambda view: view.contributions is not None,
    unshown=_from_replayed_steps,
    together=True,
    foresee=_left_unrecorded,
)
def divisor_is_the_declared_one(view: StepsView) -> Finding | None:
    """Compare each aggregate with the recorded contexts' sum over the declared divisor."""
    mechanism, contributions = view.mechanism, view.contributions
    assert contributions is not None, "else nothing is shown"
    return finding_of(
        mechanism.aggregator.divisor_problem(view.arrays, contributions, mechanism.contribution)
    )


@RunCheck(id="mechanism.unit", gathers=(Costs,))
def bounds_are_of_the_unit(run: AuditedRun) -> Outcome:
    """Compare a claim per record or user with the batching rule.

    A slot outlives its record and is replaced.
    """
    claim, rule = run.claim, run.manifest.batching.rule
    if claim.unit == "context":
        return inapplicable("mechanism.claim-per-context")
    values: dict[str, Value] = {"unit": claim.unit, "relation": claim.relation, "rule": rule}
    recomputed = recomputed_figure(run)
    if rule in COME_AND_GO or recomputed is None or run.kind.covers(claim.stated, recomputed):
        return Outcome("pass", "covered", values)
    values |= {"claimed": Quantity(value=claim.stated, unit="nats"), "figure": run.kind.figures[0]}
    if run.change is None:
        return Outcome("fail", "unbounded", values)
    return Outcome("fail", "exceeded", values | {"due": Quantity(value=recomputed, unit="nats")})


#: Public parts of steps: a digest of what they must follow from, the label and the tokens of the
#: text so far, and how many tokens these are; the batch, and the step in it; the parts' SHA-256.
_SEEN = np.dtype(
    [("after", "V16"), ("before", "u1"), ("batch", "i4"), ("step", "i4"), ("digest", "V32")]
)


class _BatchParts(BatchEvidence):
    """The public parts of one batch's first steps."""

    def __init__(self, batch: BatchHeader) -> None:
        self._batch, self._seen = batch.id, list[tuple[bytes, int, int, int, bytes]]()
        self._label = b"" if batch.label is None else b"=" + batch.label.encode()

    @override
    def look(self, view: StepsView) -> None:
        parts = [
            array.astype(dtype, copy=False)
            for array, dtype in ((view.support, "<i8"), (view.arrays.get(ANCHOR), "<f4"))
            if array is not None
        ]
        for place, (span, before) in enumerate(zip(view.spans.slices, view.earlier, strict=True)):
            if len(before) > LONGEST_PREFIX:
                continue
            told = b"%d " % len(before) + before.astype("<i8").tobytes() + self._label
            after = hashlib.blake2b(told, digest_size=_SEEN["after"].itemsize).digest()
            digest = hashlib.sha256(b"".join(part[span].tobytes() for part in parts)).digest()
            self._seen.append((after, len(before), self._batch, view.positions[place], digest))

    @override
    def result(self) -> NDArray[np.void]:
        """Return them as _SEEN has them."""
        return np.array(self._seen, dtype=_SEEN)


class ComparedParts(Evidence):
    """Public parts of steps, held against those of other batches after the same public texts."""

    partial = True

    def __init__(self) -> None:
        self._seen = bytearray()

    @override
    @classmethod
    def open(cls, batch: BatchView) -> BatchEvidence | None:
        return _BatchParts(batch.header) if batch.manifest.needs_public else None

    @override
    def merge(self, batch: int, found: NDArray[np.void]) -> None:
        self._seen += found.tobytes()

    @cached_property
    def _alike(self) -> tuple[NDArray[np.void], NDArray[np.intp]]:
        """All steps that were seen, and of each the first one after the same label and tokens."""
        seen = np.frombuffer(self._seen, dtype=_SEEN)
        return seen, first_alike(seen["after"])

    @cached_property
    def private(self) -> list[Place]:
        """The steps that took something else from the public prompt than another did."""
        seen, first = self._alike
        other = seen[seen["digest"] != seen["digest"][first]]
        places = zip(other["batch"].tolist(), other["step"].tolist(), strict=True)
        return [Place(batch=batch, step=step) for batch, step in places]

    @cached_property
    def compared(self) -> Counter[int]:
        """Steps comparable with another batch's, by the number of tokens before them.

        These tokens are those of a step's own text.
        """
        seen, first = self._alike
        # Texts of one batch have their records in common.
        elsewhere = np.zeros(len(seen), dtype=np.bool_)
        elsewhere[first[seen["batch"] != seen["batch"][first]]] = True
        return Counter(seen["before"][elsewhere[first]].tolist())


@RunCheck(id="mechanism.support-public", gathers=(ComparedParts,))
def public_parts_are_public(run: AuditedRun) -> Outcome:
    """Compare supports and anchors with other batches' after the same label and tokens.

    Compare them with the model's, too. Where texts have parted nothing is left to compare: whether
    those steps' are public only the model shows. Without it steps after a text's first token must
    be among those that agree: who takes private supports may begin there.
    """
    parts = tuple(run.manifest.public_parts)
    if not parts:
        return Outcome("pass", "whole-vocabulary")
    compared, steps = run[ComparedParts].compared, run.steps
    values: dict[str, Value] = {"parts": parts, "steps": steps, "agreeing": compared.total()}
    if private := run[ComparedParts].private:
        return Outcome("fail", "differ", values | {"differing": len(private), "place": private[0]})
    recomputed = run.replayed.public if run.replayed is not None else None
    if recomputed is not None and recomputed.wrong:
        first: dict[str, Value] = {} if recomputed.first is None else {"first": recomputed.first}
        found = values | {"wrong": recomputed.wrong, "recomputed": recomputed.steps} | first
        return Outcome("fail", "not-the-models", found, evidence=_REPLAYED)
    if compared:
        values["before"] = max(compared)
    if compared.total() == steps:
        return Outcome("pass", "agree", values)
    if recomputed is not None:
        apart: dict[str, Value] = {
            "difference": recomputed.difference,
            "tolerance": recomputed.tolerance,
        }
        found = values | {"recomputed": recomputed.steps} | apart
        if rounding_hides(recomputed.difference, run):
            return Outcome(
                "skip", "rounding-hides", found, (HIDDEN_BY_ROUNDING,), evidence=_REPLAYED
            )
        return Outcome("pass", "recomputed", found, evidence=_REPLAYED)
    recorded = run.manifest.recorded
    if (
        recorded is not None
        and "rows" in recorded.mended
        and recorded.rows == Rows(logit=0.0, support=0)
    ):
        return Outcome("pass", "scored-apart", values, evidence=0)
    model = argument(run.manifest.model.name, "NAME")
    shown = (
        Finding(code="replay.not-loaded")
        if run.manifest.foreign
        else Finding(code="mechanism.shown-by-model", values={"model": model})
    )
    values["others"] = steps - compared.total()
    if max(compared, default=0) == 0:
        return Outcome("skip", "uncompared", values, (shown,))
    # What is left open is between the model and the record, as all that replay.logits is about.
    return Outcome("skip", "partly-compared", values, (shown,), evidence=_REPLAYED)


@SettingsCheck(id="mechanism.model")
def model_never_saw_the_records(run: AuditedRun) -> Outcome:
    """Judge what the run says of where its model's weights come from; nothing else is looked at."""
    declared = run.manifest.model.trained_on_records
    if declared == "yes":
        return Outcome("fail", "trained-on-records")
    return Outcome("pass", "unknown" if declared == "unknown" else "not-trained-on-records")


@StepCheck(
    id="mechanism.support-rules",
    applies=lambda manifest: manifest.decoding.any,
    otherwise="mechanism.no-rules",
)
def supports_keep_the_rules(view: StepView) -> Finding | None:
    """Compare each support and its token with the rules' bans after public prompt and text."""
    if isinstance(view.forbidden, InputError):
        raise view.forbidden
    if view.forbidden is None:
        return None
    allowed = np.ones(view.manifest.record.vocabulary, dtype=np.bool_)
    support = np.arange(len(allowed)) if view.step.support is None else view.step.support
    drawn = np.append(support, view.step.token)
    drawn = drawn[(drawn >= 0) & (drawn < len(allowed))]  # record.range objects to others
    for rule, ids in view.forbidden.items():
        allowed[ids] = False
        if len(held := drawn[~allowed[drawn]]):
            return Finding(
                code="mechanism.forbidden-token", values={"token": int(held[0]), "rule": rule}
            )
    least, most = (
        min(due, int(allowed.sum()))
        for due in (view.manifest.least_support, view.manifest.most_support)
    )
    if least <= len(support) <= most:
        return None
    return Finding(code="mechanism.support-size", values={"tokens": len(support), "due": most})
