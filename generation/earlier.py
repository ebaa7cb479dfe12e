"""The budgets that earlier runs of the same records left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dpaudit.generation.config import Config
from dpaudit.runs import (
    Assigned,
    InputError,
    Manifest,
    RunReader,
    continuation_problem,
    most_spent,
    spent_by,
)
from dpaudit.runs.storage import Location

_REMEDY = (
    "Give --spent once for each earlier run, and the config the data, unit and rule that they had."
)


@dataclass(frozen=True)
class Earlier:
    """The runs that one goes on from.

    Attributes:
        commitments: theirs, in their order.
        key: of their hash, which is the new run's; None without any.
        spent: by `Assigned.payer`, in nats of rho.
    """

    commitments: tuple[str, ...] = ()
    key: str | None = None
    spent: Mapping[str, float] = field(default_factory=dict)
    _runs: tuple[RunReader, ...] = ()

    @classmethod
    def of(cls, runs: Sequence[Location], begun: RunReader | None, config: Config) -> Earlier:
        """Read them, or what the run has of them that has `begun`.

        Raises:
            InputError: one cannot be read, is not finished, or is not among those that the run had;
                or the config's contexts have no budgets.
        """
        if runs and not (config.has_budgets and config.batching.full_rule == "hashed-records"):
            problem = (
                "this config's contexts have no budgets of their own, or are not a record each."
            )
            remedy = "Give privacy.epsilon, or a limit on attacks, and one example per context."
            raise InputError("--spent", problem, remedy)
        if runs and config.batching.rounds > 1:
            problem = (
                f"this config has {config.batching.rounds} batching.rounds, and budgets "
                "are of each round."
            )
            raise InputError("--spent", problem, "Leave out batching.rounds, or --spent.")
        readers = tuple(
            sorted(map(RunReader, runs), key=lambda reader: len(reader.manifest.privacy.earlier))
        )
        commitments = tuple(filter(None, (reader.manifest.commitment for reader in readers)))
        if begun is not None:
            had = begun.manifest.privacy.earlier
            if readers and commitments != had:
                problem = (
                    f"{begun.name} is there already, and went on from other runs than "
                    "these, or from none."
                )
                raise InputError(
                    "--spent", problem, "Give those that it went on from, or name a new directory."
                )
            # Nobody had spent anything where no run was before: the assignment need not be read for
            # that.
            spent = {each.payer: each.spent for each in begun.assignment()} if had else {}
            return cls(had, begun.manifest.batching.key, spent)
        if not readers:
            return cls()
        if len(set(commitments)) < len(commitments):
            problem = f"{_listed(readers)}: two of these are the same run."
            raise InputError("--spent", problem, "Give --spent once for each earlier run.")
        _require(readers, readers[-1].manifest, readers[:-1])
        key, spent = readers[0].manifest.batching.key, most_spent(map(spent_by, readers))
        return cls(commitments, key, spent, readers)

    def require_continued(self, manifest: Manifest) -> None:
        """Raise InputError where a run, as it is to be, cannot go on from these."""
        if self._runs:
            _require(self._runs, manifest, self._runs)

    def require_known(self, assignment: Iterable[Assigned]) -> None:
        """Require that earlier runs know some user of a new run.

        Otherwise each budget would begin anew in silence.

        Raises:
            InputError: they know none.
        """
        if self._runs and not any(place.payer in self.spent for place in assignment):
            said = (
                f"{_listed(self._runs)}: not one record, or user, of this config is in their data."
            )
            raise InputError(
                "--spent",
                said,
                "Give the data that they had: a text that was edited is another record.",
            )


def _require(named: Sequence[RunReader], later: Manifest, earlier: Sequence[RunReader]) -> None:
    problem = continuation_problem(later, [reader.manifest for reader in earlier])
    if problem is not None:
        said = f"{_listed(named)}: one of these, or this config, cannot be gone on with: {problem}."
        raise InputError("--spent", said, _REMEDY)


def _listed(runs: Sequence[RunReader]) -> str:
    return ", ".join(run.name for run in runs)
