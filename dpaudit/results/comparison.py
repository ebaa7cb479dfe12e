"""Audited runs side by side, as types."""

from __future__ import annotations

from typing import Literal

from pydantic import JsonValue

from dpaudit.results.audit import AuditResult
from dpaudit.results.quality import PRIVATE, Added, Digest, Measure, PerToken, Scores
from dpaudit.results.result import ForNeighbours, Result
from dpaudit.results.values import Number


class Differing(Result):
    """A setting, or the status of a check, that is not the same for all runs.

    Attributes:
        name: the setting's place in run.json's settings ("privacy.unit"), or the check's id.
        values: one for each run; None if the run has no such setting, or the check does not apply
            to it.
    """

    name: str
    values: tuple[JsonValue, ...]


class SameLength(ForNeighbours):
    """Ex-post epsilon at the batch level, in nats, had these runs' batches as many tokens at most.

    Attributes:
        runs: names of the runs, which have the same neighbours.
        epsilons: of each run by the exact cost, rebalancing included.
    """

    tokens: int
    runs: tuple[str, ...]
    epsilons: tuple[Number, ...]


class RunScore(Result):
    """The quality of one run's texts, by one measure. Computed from private records.

    Attributes:
        score: of the run's texts; a likelihood is the mean log-probability of a held-out text's
            token, in nats.
        ceiling: of real texts in their place, as many as there are synthetic ones; None without
            one.
        public: of texts of the same prompts without any record, or by the public prompt; None if
            none was measured.
        added: what the records added to that; None likewise.
    """

    run: str
    score: Scores | PerToken
    ceiling: Scores | None
    public: Scores | PerToken | None = None
    added: Added | None = None


class QualityColumn(Result):
    """Scores by one measure, of runs that were measured under the same conditions.

    Attributes:
        conditions: a digest of all that must agree for two scores to be compared.
        n: texts on every side of MAUVE; test texts of an accuracy or a likelihood.
        features: name of the model that the measure rests on.
        private: the mark of every score here, wherever it goes.
    """

    measure: Measure
    conditions: Digest
    n: int
    features: str
    private: Literal["computed from private records, and no epsilon pays for publishing it"] = (
        PRIVATE
    )
    scores: tuple[RunScore, ...]


class Comparison(Result):
    """Two or more audited runs side by side.

    Attributes:
        runs: the audit of each run by its name, without batches, ledger and curves, with checks by
            code and values alone and a few of its texts. A run that cannot be read as a whole has
            no figures.
        settings: what differs between the runs' settings.
        checks: the checks that came out differently, among the runs that they apply to.
        same_length: one for each set of neighbours that several runs' ex-post costs hold for.
        quality: one for each measure and all conditions that it was taken under.
    """

    schema_version: Literal["3"] = "3"
    runs: dict[str, AuditResult]
    settings: tuple[Differing, ...]
    checks: tuple[Differing, ...]
    same_length: tuple[SameLength, ...]
    quality: tuple[QualityColumn, ...]
