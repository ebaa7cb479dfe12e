"""A run's quality, as types: MAUVE, downstream accuracy, held-out likelihood.

The figures are from private records, without noise. A file of these may come from anywhere, so
nothing is coerced, unknown fields are refused, and figures that do not follow from the values
beside them are too.
"""

import json
import math
import statistics
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from dpaudit.mechanisms import Fields

#: What stands in every evaluation, and wherever its figures are shown.
PRIVATE: Final = "computed from private records, and no epsilon pays for publishing it"

#: The most of everything that is counted: texts of a side, iterations, steps; and of what costs
#: more than its time.
MOST, MOST_POINTS, MOST_SEEDS, MOST_FITS = (1 << 31) - 1, 100_000, 1000, 10_000
#: mauve-text keeps a single component where its sums of float32 shares miss the target; they reach
#: this one.
MOST_VARIANCE = 0.999

#: Held-out texts whose standard error tells a gain from chance.
FEWEST_TEXTS = 8

Source = Literal["synthetic", "public", "real-same-size", "real-all"]
Measure = Literal["mauve", "linear-probe", "fine-tuned", "likelihood"]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=1 << 40)]
Some = Annotated[int, Field(ge=1, le=MOST)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Words = Annotated[str, Field(max_length=1000)]
Seeds = Annotated[
    tuple[Annotated[int, Field(ge=0, lt=1 << 31)], ...], Field(min_length=1, max_length=MOST_SEEDS)
]

#: Sums of a thousand shares in another order differ by less.
_ROUNDING = 1e-9


class Scores(Fields):
    """One figure, measured once for each seed.

    Attributes:
        values: in the seeds' order.
        std: sample standard deviation (n - 1); None for a single value. It has what the seeds
            change in it and no more: not what another generation of the texts would change.
    """

    values: Annotated[tuple[Share, ...], Field(min_length=1, max_length=MOST_SEEDS)]
    mean: Share
    std: NotNegative | None

    @model_validator(mode="after")
    def _follow_from_the_values(self) -> Self:
        mean, std = _mean_and_std(self.values)
        agree = (self.std is None) == (std is None) and abs(
            (self.std or 0.0) - (std or 0.0)
        ) <= _ROUNDING
        if abs(self.mean - mean) > _ROUNDING or not agree:
            raise ValueError("mean and std are not those of the values")
        return self


def scores(values: tuple[float, ...]) -> Scores:
    """Return values with mean and spread. Raises pydantic's ValidationError beyond 0 to 1."""
    mean, std = _mean_and_std(values)
    return Scores(values=values, mean=mean, std=std)


def _mean_and_std(values: tuple[float, ...]) -> tuple[float, float | None]:
    mean = min(1.0, math.fsum(values) / len(values))
    return mean, statistics.stdev(values) if len(values) > 1 else None


class Texts(Fields):
    """One set of texts.

    Attributes:
        digest: SHA-256 over labels and texts, in order: it tells who has the same file. It has no
            key, or two runs' references could not be compared; so it confirms a guess of the whole
            set. None if reports leave it out.
    """

    texts: Count
    distinct: Count
    digest: Digest | None


class Encoder(Fields):
    """A model, and what it does with a text.

    Attributes:
        max_tokens: longer texts are cut.
        pooling, dimensions, normalized: of embeddings; None for a classifier.
    """

    name: Words
    digest: Digest
    max_tokens: Some
    pooling: Literal["mean", "cls"] | None = None
    dimensions: Some | None = None
    normalized: bool | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """The fields that decide the model's numbers: all but its name, of which it has many."""
        return self.model_dump(mode="json", exclude={"name"})


class MauveSettings(Fields):
    """The settings of a MAUVE beside texts and features.

    Two figures can be compared where all of them agree.

    Attributes:
        n: texts on every side.
        clusters: of k-means over both sides, n / 10 unless told otherwise.
        explained_variance: that PCA keeps.
        seeds: each draws its own texts, uniformly and without replacement, and starts k-means.
        stratified: texts are drawn whatever their labels.
    """

    n: Some
    clusters: Some
    iterations: Some
    initialisations: Some
    explained_variance: Annotated[float, Field(gt=0, le=MOST_VARIANCE)]
    scaling: Positive
    points: Annotated[int, Field(ge=2, le=MOST_POINTS)]
    seeds: Seeds
    stratified: Literal[False] = False


class Mauve(Fields):
    """MAUVE (Pillutla et al., 2021) of a run's texts.

    Attributes:
        wanted: the n that was asked for; there may be fewer texts.
        real: how many distinct texts the reference has, up to case and white space: n, or 2 n, are
            drawn from these.
        score: synthetic texts against the reference.
        ceiling: the reference against other texts of the reference, n of each.
        public: texts of the baseline against the reference; None without a baseline.
    """

    settings: MauveSettings
    wanted: Some
    real: Some
    score: Scores
    ceiling: Scores
    public: Scores | None = None

    @model_validator(mode="after")
    def _one_value_a_seed(self) -> Self:
        measured = [found for found in (self.score, self.ceiling, self.public) if found is not None]
        if {len(found.values) for found in measured} != {len(self.settings.seeds)}:
            raise ValueError("there is one value for each seed")
        return self


class Trained(Fields):
    """Accuracy on real held-out texts of a classifier that was trained on one source.

    Attributes:
        texts: that it was trained on, those for validation included.
    """

    source: Source
    texts: Some
    accuracy: Scores


class ProbeSettings(Fields):
    """Settings of scikit-learn's LogisticRegression on embeddings; seeds draw the real texts."""

    strength: Positive
    iterations: Some
    seeds: Seeds


class FineTuneSettings(Fields):
    """The paper's protocol (its appendix, "Evaluation hyperparameters"), or less of it.

    Attributes:
        preset: which defaults these are, before single numbers were overridden.
        batch_size, steps: epochs = ceil(batch_size * steps / texts to train on).
        learning_rates, weight_decays: all pairs are tried; Adam, at a constant rate.
        patience: epochs without a better validation accuracy after which a fit stops.
        validation: share of the training texts.
        max_tokens: of a text; None for all that the encoder takes.
        seeds: of validation split, new weights, order and dropout.
    """

    preset: Literal["paper", "laptop"]
    batch_size: Some
    steps: Some
    learning_rates: Annotated[tuple[Positive, ...], Field(min_length=1, max_length=100)]
    weight_decays: Annotated[tuple[NotNegative, ...], Field(min_length=1, max_length=100)]
    patience: Some
    validation: Annotated[float, Field(gt=0, lt=1)]
    max_tokens: Some | None
    seeds: Seeds

    @model_validator(mode="after")
    def _can_be_listed(self) -> Self:
        if len(self.seeds) * len(self.learning_rates) * len(self.weight_decays) > MOST_FITS:
            raise ValueError(f"rates, weight decays and seeds make more than {MOST_FITS:,} fits")
        if any(
            len(set(listed)) < len(listed)
            for listed in (self.seeds, self.learning_rates, self.weight_decays)
        ):
            raise ValueError("a rate, a weight decay or a seed is listed twice")
        return self


class Downstream(Fields):
    """Accuracy of a classifier of labels, by what it was trained on.

    It is trained on synthetic texts, the baseline's and real ones.

    Attributes:
        encoder: whose embeddings the probe looks at, or that was fine-tuned.
        majority: share of the most frequent label among the test texts: what costs no training.
    """

    method: Literal["linear-probe", "fine-tuned"]
    encoder: Encoder
    settings: ProbeSettings | FineTuneSettings
    majority: Share
    trained: Annotated[tuple[Trained, ...], Field(min_length=1, max_length=4)]

    @model_validator(mode="after")
    def _settings_fit_the_method(self) -> Self:
        if isinstance(self.settings, ProbeSettings) != (self.method == "linear-probe"):
            raise ValueError("the settings are another method's")
        if len({trained.source for trained in self.trained}) < len(self.trained):
            raise ValueError("a source is listed twice")
        return self

    def of(self, source: Source) -> Trained | None:
        """Return what was trained on this source."""
        return next((trained for trained in self.trained if trained.source == source), None)


class HeldOut(Fields):
    """The real texts that classifiers are tested on.

    Attributes:
        origin: a file of its own, or a share of the reference, by a hash of each text under `seed`.
        share: of the reference; None for a file.
        own: how many of them the run was made from, letter by letter and whatever their labels;
            None if it is not known. The generator's prompts may have shown these.
        dropped_real, dropped_synthetic: training texts that are among the test texts too, up to
            case and white space, and were left out of training.
    """

    origin: Literal["file", "split"]
    share: Share | None
    seed: Count
    test: Texts
    own: Count | None
    dropped_real: Count
    dropped_synthetic: Count

    @model_validator(mode="after")
    def _own_ones_are_among_them(self) -> Self:
        if (self.own or 0) > self.test.texts:
            raise ValueError("there are fewer test texts than those of the run's own")
        return self


class Added(Fields):
    """The records' addition to a figure: the run's texts' less that of texts without any record.

    Attributes:
        difference: of the two means; of likelihoods in nats a token.
        spread: its standard deviation, as far as figures show it (`added_by`); None if nothing
            tells.
    """

    measure: Measure
    difference: Finite
    spread: NotNegative | None

    @property
    def outcome(self) -> Literal["more", "nothing", "less", "unknown"]:
        """The conclusion: within twice the spread, no addition can be told from chance."""
        if self.spread is None:
            return "unknown"
        if abs(self.difference) <= 2 * self.spread:
            return "nothing"
        return "more" if self.difference > 0 else "less"


class PerToken(Fields):
    """A mean over tokens, in nats.

    Attributes:
        error: its standard error, by how texts differ; None for a single text.
    """

    mean: Finite
    error: NotNegative | None


class HeldOutLikelihood(Fields):
    """The probability of real texts in the run's own batches, and by the public prompt alone.

    No prompt showed these texts. Every text is given, token by token, to the first batch of its
    label. The means stand over the tokens that the steps' supports have.

    Attributes:
        model: the run's; texts are cut to as many tokens as the run's own have at most.
        texts: held-out ones.
        left_out: texts of the test file that are a private record or a public example, up to case
            and white space.
        tokens: of texts; what leads up to a text does not count.
        supported: how many of those the supports have.
        nll: mean negative log-probability of a supported token under the aggregates.
        public_nll: the same by the public prompt alone, at the same temperature over the same
            supports: epsilon 0.
        gain: public_nll - nll, what the records added; its error is that of the difference, text by
            text.
    """

    model: Encoder
    texts: Texts
    left_out: Count
    tokens: Some
    supported: Some
    nll: PerToken
    public_nll: PerToken
    gain: PerToken

    @property
    def score(self) -> PerToken:
        """Mean log-probability of a token: the more, the better."""
        return self.nll.model_copy(update={"mean": -self.nll.mean})

    @property
    def public(self) -> PerToken:
        """The same by the public prompt alone."""
        return self.public_nll.model_copy(update={"mean": -self.public_nll.mean})

    @property
    def added(self) -> Added:
        """The records' addition, in nats a token, with its standard error.

        The error says what other texts would change. That of a few texts is too uncertain to tell
        by.
        """
        spread = self.gain.error if self.texts.texts >= FEWEST_TEXTS else None
        return Added(measure="likelihood", difference=self.gain.mean, spread=spread)

    @model_validator(mode="after")
    def _gain_follows_from_the_losses(self) -> Self:
        ours, public, gain = self.nll, self.public_nll, self.gain
        slack = _ROUNDING * max(1.0, abs(ours.mean), abs(public.mean))
        if (
            not self.texts.texts
            or self.supported > self.tokens
            or min(ours.mean, public.mean) < -slack
        ):
            raise ValueError("these are no losses of texts' tokens")
        if abs(public.mean - ours.mean - gain.mean) > slack:
            raise ValueError("the gain is not that of the two losses")
        errors = [found.error for found in (ours, public, gain) if found.error is not None]
        if len(errors) != (3 if self.texts.texts > 1 else 0):
            raise ValueError("there are standard errors of two texts and more, and of no fewer")
        # each is that of the others' sum or difference
        if errors and 2 * max(errors) > sum(errors) + slack:
            raise ValueError("no texts have these three standard errors")
        return self


class Baseline(Fields):
    """Public-only texts that were measured beside the run's.

    They have the same prompts without any record, epsilon 0.

    Attributes:
        samples: SHA-256 of their samples.jsonl.
        texts: at most as many of each label as the run has.
        added: what the records added to each figure that both have.
    """

    samples: Digest
    texts: Texts
    added: Annotated[tuple[Added, ...], Field(max_length=3)]


def added_by(
    mauve: Mauve | None, downstream: tuple[Downstream, ...], tests: int
) -> tuple[Added, ...]:
    """Return the records' addition to each figure that the baseline has; `tests`: test texts."""
    found = []
    if mauve is not None and mauve.public is not None:
        found.append(_added("mauve", mauve.score, mauve.public, mauve.ceiling, None))
    for each in downstream:
        run, public, real = each.of("synthetic"), each.of("public"), each.of("real-same-size")
        if run is not None and public is not None:
            drawn = None if real is None else real.accuracy
            found.append(_added(each.method, run.accuracy, public.accuracy, drawn, tests))
    return tuple(found)


def _added(
    measure: Measure, run: Scores, public: Scores, real: Scores | None, tests: int | None
) -> Added:
    """Return the difference with its spread, as far as figures show it.

    Each figure varies with its seeds. Another generation's texts would change it, too: by about as
    much as other draws of as many real texts change `real`. And an accuracy is one of finitely many
    test texts.
    """
    drawn = None if real is None else real.std
    variances = []
    for found in (run, public):
        variances += (
            [max(found.std or 0.0, drawn or 0.0) ** 2] if (found.std, drawn) != (None, None) else []
        )
        variances += [found.mean * (1 - found.mean) / tests] if tests else []
    return Added(
        measure=measure,
        difference=run.mean - public.mean,
        spread=math.sqrt(math.fsum(variances)) if variances else None,
    )


class Quality(Fields):
    """One evaluation of a run's texts, with all that decided it.

    Attributes:
        created: UTC, ISO 8601.
        samples: SHA-256 of the samples.jsonl that was evaluated.
        label_lines: how many of them began with a line that was nothing but their label, and were
            measured without it.
        reference: real records, as they were used; MAUVE's are the distinct texts among them.
        own: how many of these the run was made from, letter by letter and whatever their labels;
            None if the run does not say which records it was made from.
        held_out: None if the texts have no labels.
        mauve: None if there were too few texts.
        baseline: None if nothing was measured beside the run.
        likelihood: None if it was not asked for.
        versions: of what computed them: packages, this package's way of measuring (`protocol`) and
            the kind of device.
    """

    schema_version: Literal["2"] = "2"
    audience: Literal["internal"] = "internal"
    private: Literal["computed from private records, and no epsilon pays for publishing it"] = (
        PRIVATE
    )
    created: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00$")]
    samples: Digest
    synthetic: Texts
    label_lines: Count
    reference: Texts
    own: Count | None
    features: Encoder
    held_out: HeldOut | None
    mauve: Mauve | None
    downstream: Annotated[tuple[Downstream, ...], Field(max_length=2)]
    warnings: Annotated[tuple[Words, ...], Field(max_length=100)]
    versions: Annotated[dict[Words, Words], Field(max_length=100)]
    baseline: Baseline | None = None
    likelihood: HeldOutLikelihood | None = None

    @property
    def added(self) -> tuple[Added, ...]:
        """The records' addition to each figure that stands beside one without any record."""
        found = () if self.baseline is None else self.baseline.added
        return found if self.likelihood is None else (*found, self.likelihood.added)

    @model_validator(mode="after")
    def _own_ones_are_among_them(self) -> Self:
        if (self.own or 0) > self.reference.texts:
            raise ValueError("there are fewer real texts than those of the run's own")
        return self

    @model_validator(mode="after")
    def _added_follows_from_the_figures(self) -> Self:
        tests = 0 if self.held_out is None else self.held_out.test.texts
        wanted = added_by(self.mauve, self.downstream, tests)
        stated = () if self.baseline is None else self.baseline.added
        if [added.measure for added in wanted] != [added.measure for added in stated]:
            raise ValueError(
                "what the records added is not stated of the figures that a baseline has"
            )
        for ours, theirs in zip(wanted, stated, strict=True):
            same = (ours.spread is None) == (theirs.spread is None)
            same &= abs((ours.spread or 0.0) - (theirs.spread or 0.0)) <= _ROUNDING
            if not same or abs(ours.difference - theirs.difference) > _ROUNDING:
                raise ValueError("what the records added does not follow from the figures")
        return self

    def to_json(self) -> str:
        """Return this as strict JSON text."""
        return (
            json.dumps(self.model_dump(mode="json"), indent=2, allow_nan=False, ensure_ascii=False)
            + "\n"
        )

    @property
    def has_digests(self) -> bool:
        """Whether every set of texts has its digest: without, nothing can be compared."""
        test = self.reference if self.held_out is None else self.held_out.test
        given = test if self.likelihood is None else self.likelihood.texts
        return None not in (self.synthetic.digest, self.reference.digest, test.digest, given.digest)

    def without_digests(self) -> Self:
        """Return the same for a report, which needs no digests of private texts."""
        bare, held, given = {"digest": None}, self.held_out, self.likelihood
        return self.model_copy(
            update={
                "synthetic": self.synthetic.model_copy(update=bare),
                "reference": self.reference.model_copy(update=bare),
                "held_out": held
                and held.model_copy(update={"test": held.test.model_copy(update=bare)}),
                "likelihood": given
                and given.model_copy(update={"texts": given.texts.model_copy(update=bare)}),
            }
        )

    @property
    def mauve_conditions(self) -> tuple[Any, ...]:
        """The values that must agree for two runs' MAUVE to be compared."""
        settings = None if self.mauve is None else self.mauve.settings
        packages = self._versions("mauve-text", "faiss-cpu", "scikit-learn", *_ENCODING)
        return (self.reference.digest, self.features.identity, settings, packages)

    def accuracy_conditions(self, found: Downstream) -> tuple[Any, ...]:
        """Return what must agree for two runs' accuracies to be compared."""
        test = None if self.held_out is None else self.held_out.test.digest
        trainers = ("scikit-learn",) if found.method == "linear-probe" else ()
        return (
            found.method,
            found.encoder.identity,
            found.settings,
            test,
            self._versions(*trainers, *_ENCODING),
        )

    @property
    def likelihood_conditions(self) -> tuple[Any, ...]:
        """Conditions for comparing two runs' likelihoods, beside their prompts and supports."""
        found = self.likelihood
        return (
            ()
            if found is None
            else (found.texts.digest, found.model.identity, self._versions(*_ENCODING))
        )

    def _versions(self, *names: str) -> tuple[tuple[str, str | None], ...]:
        return tuple((name, self.versions.get(name)) for name in names)


#: Versions that decide what an encoder makes of texts, and this package's own.
_ENCODING = ("protocol", "torch", "transformers", "tokenizers")
