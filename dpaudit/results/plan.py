"""The preview of a run, before anything of it is written."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from dpaudit.mechanisms import Unit
from dpaudit.results.audit import ClaimResult
from dpaudit.results.result import AttackBound, Result
from dpaudit.results.values import Finding
from dpaudit.runs.vacuity import Vacuity as Vacuity

#: A model that can follow a prompt writes texts that say nothing no oftener: one in ten would do
#: for a release, and of ten texts two may be luck.
_MOST_EMPTY = 0.25
#: A model of fewer parameters is a toy: of SmolLM2-135M's texts no setting made better ones, while
#: those of a model twice as large read well (AG News, 2026-11).
_TOY = 200_000_000


def is_toy(parameters: int) -> bool:
    """Return whether a model of so many is too small for texts that are worth releasing."""
    return parameters < _TOY


class PreviewedText(Result):
    """A text of the public prompt alone.

    Attributes:
        label: "" where there are none.
        text: as a run would write it.
        empty: why it says nothing; None if it says something.
    """

    label: str
    text: str
    empty: Vacuity | None


class PublicPreview(Result):
    """Texts of the public prompt alone. No record was read: epsilon 0.

    Attributes:
        model: its name.
        parameters: of the model.
        shown: two texts of each of the first labels.
        texts: how many were made.
        empty: how many say nothing, by the reason.
        labels: the public ones; 0 where there are none.
        told: of how many public examples the model tells the label, by the other examples.
        asked: of how many it was asked; 0 with too few of them, or one label.
        examples: public examples of all labels.
        drafted: whether a model wrote them.
    """

    model: str
    parameters: int
    shown: tuple[PreviewedText, ...]
    texts: int
    empty: dict[Vacuity, int]
    labels: int
    told: int
    asked: int
    examples: int
    drafted: bool

    @property
    def follows(self) -> bool:
        """Whether the model can follow the prompt, by its texts and by the public examples."""
        chance = 1 / self.labels if self.labels else 0.0
        says_something = sum(self.empty.values()) <= _MOST_EMPTY * self.texts
        return says_something and self.told >= self.asked * (1 + chance) / 2


#: Names of the plans: the most texts; closer to the records; as many texts at a smaller epsilon.
PlanName: TypeAlias = Literal["many", "close", "careful"]
PLANS: tuple[PlanName, ...] = get_args(PlanName)


class Offer(Result):
    """One plan of the menu, by public numbers alone.

    Attributes:
        name: which plan.
        texts: how many there are at most.
        rounds: in how many rounds.
        records: of a batch, about.
        contexts: of a batch, about.
        examples: records that a context shows.
        influence: the share of the usual clip that a context has.
        epsilon: at the release level, in nats; None where only the texts show it.
        batch_epsilon: at the batch level, likewise.
        attack: what readers can do; `batch_attack`: what someone can who knows a record's batch.
            None likewise.
        seconds: on this machine, by a measured rate; None where nothing was measured.
        stored: bytes of all steps before they are compressed, about; None where nobody asked.
        audit: seconds of one core that an audit takes, about; None likewise.
    """

    name: PlanName
    texts: int
    rounds: int
    records: int
    contexts: int
    examples: int
    influence: float
    epsilon: float | None
    batch_epsilon: float | None
    attack: AttackBound | None
    batch_attack: AttackBound | None
    seconds: float | None = None
    stored: int | None = None
    audit: float | None = None


class Menu(Result):
    """The plans for records, labels and an epsilon.

    Attributes:
        records: about how many there are, as everyone may know.
        labels: how many there are; 0 without any.
        tokens: the most of a text.
        epsilon: the most that readers' epsilon may be; None for an ex-post one.
        unit: whose difference the epsilons are about.
        offers: the plans, the one that gives most texts first.
    """

    records: int
    labels: int
    tokens: int
    epsilon: float | None
    unit: Unit = "record"
    offers: tuple[Offer, ...]


class Plan(Result):
    """The facts about a run that are known beforehand. Numbers of records and contexts are private.

    Attributes:
        labels: the public ones; 0 where there are none.
        contexts: of a batch that show a record, on average: by settings and the number of records,
            not as drawn.
        tokens: the most of a batch.
        longest: the most of a text.
        several: whether a batch writes one text after another until its tokens are spent.
        claim: fixed beforehand; None for an ex-post one.
        attack: what readers can do; `batch_attack`: what someone can who knows a record's batch.
            None where public settings bound no attack.
        equal: why both levels of the claim are equal; None if they are not, or nothing is
            claimed.
        fewest: batches that some group's records go into in a round; None if the levels are
            equal.
        one_label: epsilon of as many texts at the release level, had all records one label; None
            without several.
        affordable: texts that the claim's epsilon pays for in more or fewer rounds; None if it
            is not a choice.
        withheld: why readers outside are not told the claim, and which setting would do; empty
            where they are.
        sure: how many tokens of a batch every context's own budget pays for, whatever it says; None
            without budgets.
        left: the share of its budget that earlier runs left a context, on average; None without
            earlier ones.
        seconds: on this machine, where no text ends early, with the baseline and the measurement
            of what the records added; loading the model is left out.
        stored: bytes of all steps before they are compressed.
        audit: seconds of one core that an audit takes, by rates that were measured elsewhere.
        large: whether these are many because every context's contribution to every token of the
            vocabulary is recorded.
        obstacles: what keeps the run from passing its audit, as sentences; empty if nothing is
            known to.
        needs_data: whether the audit passes only where the run is replayed with the data.
        public_parts: what steps take from public prompts, which audits recompute with the model.
        canaries: how many made-up records are in the data or out of it; None without any.
        refutable: the most that these could refute, at the claim's delta with 95% confidence, in
            nats.
        preview: texts of the public prompt alone.
        dtype: of the model's weights and activations, as loaded.
        knows_tokenizer: whether audits know the model's tokenizer; others are to be named to them.
        menu: what else the same epsilon gives; None where the epsilon is not known before the run,
            or nobody says how many records there are about.
        held_out: the share of the records that no prompt shows, already taken off `contexts`.
    """

    records: int
    labels: int
    rounds: int
    batches: int
    contexts: float
    tokens: int
    longest: int
    several: bool
    claim: ClaimResult | None
    attack: AttackBound | None
    batch_attack: AttackBound | None
    equal: Finding | None
    fewest: int | None
    one_label: float | None
    affordable: int | None
    withheld: str
    sure: int | None
    left: float | None
    seconds: float
    stored: int
    audit: float
    large: bool
    obstacles: tuple[str, ...]
    needs_data: bool
    public_parts: tuple[str, ...]
    canaries: int | None
    refutable: float | None
    preview: PublicPreview
    dtype: str
    knows_tokenizer: bool
    menu: Menu | None
    held_out: float = 0.0
