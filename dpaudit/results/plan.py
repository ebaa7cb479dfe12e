"""The preview of a run, before anything of it is written."""

from __future__ import annotations

from dpaudit.results.audit import ClaimResult, Result
from dpaudit.results.values import Finding
from dpaudit.runs.emptiness import Emptiness as Emptiness

#: A model that can follow a prompt writes texts that say nothing no oftener: one in ten would do
#: for a release, and of ten texts two may be luck.
_MOST_EMPTY = 0.25
#: A model of fewer parameters is a toy: of SmolLM2-135M's texts no setting made better ones, while
#: those of a model twice as large read well (AG News, 2026-11).
_TOY = 200_000_000


class PreviewedText(Result):
    """A text of the public prompt alone.

    Attributes:
        label: "" where there are none.
        text: as a run would write it.
        empty: why it says nothing; None if it says something.
    """

    label: str
    text: str
    empty: Emptiness | None


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
    empty: dict[Emptiness, int]
    labels: int
    told: int
    asked: int
    examples: int
    drafted: bool

    @property
    def toy(self) -> bool:
        """Whether the model is too small for texts that are worth releasing."""
        return self.parameters < _TOY

    @property
    def follows(self) -> bool:
        """Whether the model can follow the prompt, by its texts and by the public examples."""
        chance = 1 / self.labels if self.labels else 0.0
        says_something = sum(self.empty.values()) <= _MOST_EMPTY * self.texts
        return says_something and self.told >= self.asked * (1 + chance) / 2


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
        seconds: on this machine, where no text ends early; loading the model is left out.
        stored: bytes of all steps before they are compressed.
        obstacles: what keeps the run from passing its audit, as sentences; empty if nothing is
            known to.
        public_parts: what steps take from public prompts, which audits recompute with the model.
        canaries: how many made-up records are in the data or out of it; None without any.
        refutable: the most that these could refute, at the claim's delta with 95% confidence, in
            nats.
        preview: texts of the public prompt alone.
        knows_tokenizer: whether audits know the model's tokenizer; others are to be named to them.
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
    equal: Finding | None
    fewest: int | None
    one_label: float | None
    affordable: int | None
    withheld: str
    sure: int | None
    left: float | None
    seconds: float
    stored: int
    obstacles: tuple[str, ...]
    public_parts: tuple[str, ...]
    canaries: int | None
    refutable: float | None
    preview: PublicPreview
    knows_tokenizer: bool
