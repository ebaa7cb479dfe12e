"""The findings of a replay, with the model alone or with the data: checks judge them."""

from __future__ import annotations

from dataclasses import dataclass, field

from dpaudit.accounting import LowerBound
from dpaudit.results.values import Finding


@dataclass(frozen=True)
class ReplayedStep:
    """One step whose logits were computed anew.

    Attributes:
        difference: the largest difference between recorded and recomputed values, in logit units.
        tolerance: how large it may be, by the rounding of the model's dtype.
    """

    batch: int
    position: int
    difference: float
    tolerance: float
    problems: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class LeftOut:
    """A context left out of its batch, and the batch's own tokens scored again without it.

    Attributes:
        recorded: log p(text) - log p(text without it) in nats, from the record; NaN where that
            gives no loss.
        regenerated: the same, from the model on the data without it.
        tolerance: how far the two may lie apart, in nats.
    """

    batch: int
    slot: int
    recorded: float
    regenerated: float
    tolerance: float


@dataclass(frozen=True)
class Difference:
    """Changes of one kind by a record beside its own contribution.

    Attributes:
        kind: settings, places of records, batches, lengths, supports, anchors, rows, aggregates; or
            that the script ended otherwise (ends).
        first: the first of them, and where.
    """

    kind: str
    places: int
    first: Finding


@dataclass(frozen=True)
class Rerun:
    """A recorded generator's script run again without a record, going on with the released tokens.

    Attributes:
        row: of the record in the file of data, from 1.
        unstable: the first place where the script on the same data differs from the run; None if it
            does not.
        differences: those of each kind in which the script on the same data does not differ.
    """

    row: int
    unstable: Finding | None
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class Attacked:
    """The result of repeated generation on two neighbours that differ by a canary.

    Attributes:
        bound: the mechanism's epsilon from below, at the claim's delta, with confidence.
        beyond: texts whose log-ratio exceeds the ex-post bound that the accounting gives for that
            very text.
        worst: the text that exceeds it most, by its log-ratio and its bound; None if none does.
    """

    bound: LowerBound
    trials: int
    beyond: int
    worst: Finding | None


@dataclass(frozen=True)
class PublicParts:
    """The public parts of a run's steps, recomputed at every step.

    Attributes:
        steps: how many these are.
        wrong: how many contradict the record by more than rounding.
        first: the first of them, and where; None without one.
        difference: the largest difference between recorded and recomputed values, in logit units.
        tolerance: how large it may be, by the rounding of the model's dtype.
    """

    steps: int
    wrong: int
    first: Finding | None
    difference: float
    tolerance: float


@dataclass(frozen=True)
class PublicReplay:
    """All that a replay found with the model alone.

    Attributes:
        texts: where a text is not its tokens decoded with the model's own tokenizer; None if all
            are.
        public: None in a run whose steps take nothing from a public prompt.
        head: of the run that was replayed (`RunReader.head`); None if it has none, or nobody says.
    """

    texts: Finding | None
    public: PublicParts | None
    head: str | None = field(default=None, kw_only=True)

    @property
    def with_data(self) -> Replay | None:
        """This replay; None if it had the model alone."""
        return self if isinstance(self, Replay) else None


@dataclass(frozen=True)
class SharedText:
    """A public setting's overlap with records of the data: numbers, and none of the text.

    Attributes:
        setting: its field in run.json, or the file `canaries`.
        letters: the most letters and digits in a row that it and a record have in common.
        records: how many records have many in a row in common with it.
        copied: how many of these are in it so far that they were taken from there, or it from them.
    """

    setting: str
    letters: int
    records: int
    copied: int


@dataclass(frozen=True)
class Replay(PublicReplay):
    """All that a replay found with the model and the data.

    Attributes:
        assignment: where the declared rule, run on the data, contradicts the recorded assignment;
            None if it does not.
        noise: absolute differences of noisy counts and counts of the data, added up; None in a run
            without noisy counts. Together with the noisy counts it tells of exact ones: it is not
            for reports.
        whole: whether nobody stopped it: what was not done by then is not there.
        most_per_user: the most records that one user has in the data; None if the run names no
            column of users.
        shared: what public settings have in common with records; None if nobody looked.
    """

    assignment: Finding | None
    noise: int | None
    steps: tuple[ReplayedStep, ...]
    left_out: tuple[LeftOut, ...]
    attack: Attacked | None
    whole: bool = True
    most_per_user: int | None = field(default=None, kw_only=True)
    shared: tuple[SharedText, ...] | None = field(default=None, kw_only=True)
