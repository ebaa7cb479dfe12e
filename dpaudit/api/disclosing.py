"""Trials from Python: do released texts name records that were shown more often than chance?"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dpaudit.api import places
from dpaudit.api.monitor import SILENT, Monitor
from dpaudit.api.shown import Shown
from dpaudit.api.tables import Records, dataframe, is_table, records_file, require_there
from dpaudit.disclosing.claims import TestedClaim, claim_of_run
from dpaudit.disclosing.files import Columns, read_lines
from dpaudit.disclosing.trial import LookedFor, try_texts
from dpaudit.disclosing.units import units_of_files, units_of_run
from dpaudit.errors import in_short
from dpaudit.generation.sources import locate
from dpaudit.reports import disclosed
from dpaudit.results.disclosed_texts import LEVEL, DisclosedTexts, NamedSpan
from dpaudit.runs import Claim, InputError, RunReader

if TYPE_CHECKING:
    from pandas import DataFrame

    from dpaudit.runs.storage import Location

#: A seed that is drawn has so many bits.
_SEED_BITS = 32


class Disclosure(Shown[DisclosedTexts]):
    """Released texts on trial. Computed from private records: do not publish it.

    Attributes:
        result: everything that was found, an immutable pydantic model.
    """

    @property
    def depends(self) -> bool:
        """Whether the texts name shown records more often than chance gives, at the level."""
        return self.result.test.depends

    @property
    def avoids(self) -> bool:
        """Whether the texts name shown records less often than chance gives, at the level."""
        return self.result.test.avoids

    @property
    def claim_refuted(self) -> bool:
        """Whether the claim that was compared does not hold, at the level of 1e-3."""
        return self.result.epsilon.claim_refuted

    @property
    def epsilon(self) -> float:
        """The largest epsilon that the texts refute with 95% confidence, in nats; 0 for none.

        It is of the level that `result.epsilon.level` names, and never a bound on what the texts
        cost.
        """
        return self.result.epsilon.refuted

    def __bool__(self) -> bool:
        """Refuse to be taken for a verdict: every trial would be true. Raises TypeError."""
        raise TypeError("a trial is neither true nor false: look at .depends or .claim_refuted")

    def to_dataframe(self) -> DataFrame:
        """Return a pandas.DataFrame with a row per copied passage, the longest first."""
        columns = NamedSpan.model_fields
        return dataframe((span.model_dump() for span in self.result.spans), columns)

    def _title(self) -> str:
        return f"Released texts on trial (private): {disclosed.headline(self.result)}"

    def _rows(self) -> list[tuple[str, str]]:
        return [
            ("test", disclosed.test_words(self.result)),
            ("epsilon", " ".join(disclosed.epsilon_words(self.result.epsilon))),
            ("power", disclosed.power_words(self.result)),
            ("more", ".depends, .avoids, .epsilon, .claim_refuted, .to_dataframe(), .result"),
        ]


def disclose(
    texts: Records,
    data: Records | None = None,
    *,
    shown: Records | None = None,
    held_out: Records | None = None,
    split_is_random: bool = False,
    p: float | None = None,
    text: str | None = None,
    label: str | None = None,
    user: str | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    level: float = LEVEL,
    ask: str | None = None,
    entities: Records | None = None,
    public: Sequence[Records] = (),
    unit: Literal["words", "characters"] = "words",
    seed: int | None = None,
    monitor: Monitor = SILENT,
) -> Disclosure:
    """Test whether released texts name records that were shown more often than chance gives.

    Give either a run of dpaudit and its `data`, or any generator's texts with the two lists of one
    random draw: the records that it was `shown`, and those that were `held_out`.

    Args:
        texts: the run directory; or released texts, as a .csv, .jsonl, .parquet or .txt file, a
            pandas.DataFrame or a datasets.Dataset.
        data: the run's private records.
        shown: the records that the generator was given.
        held_out: the records of the same draw that it was not.
        split_is_random: lots decided which of the two lists each record (or user) is in.
        p: the chance of each to be shown, where each had a coin of its own; None where so many were
            drawn.
        text: column of the texts in all files; None for "text".
        label: column of labels in all files. Texts and records of one label alone are compared.
        user: column of users in `shown` and `held_out`: all records of one have one coin.
        epsilon: the claim to compare, in nats; None for the run's own. Of a run it is of the batch
            level, of each round.
        delta: of that claim; None for none.
        level: of the test, for both tails together.
        ask: a name or phrase to look for in records and texts.
        entities: names or numbers to look for, one a row.
        public: more texts that everybody has: what stands in one is nobody's.
        unit: count words in a row, or characters, for scripts without spaces.
        seed: of ties and redraws; None for 0 of a run, and a new one of files.
        monitor: receives progress.

    Returns:
        The finding. It is private.

    Raises:
        InputError: the run has no coins, nobody says that the split is random, a file cannot be
            used, or no outcome could reject.
    """
    _require_numbers(epsilon, delta, level, p, seed)
    if unit not in ("words", "characters"):
        raise InputError("--unit", f"this is {in_short(unit)}.", "Give words or characters.")
    place = None if is_table(texts) else places.location_of(texts, "TEXTS")
    if isinstance(place, Path):  # a mistyped path is told first of all
        locate(str(place), "TEXTS")
    split = {"shown": shown, "held_out": held_out, "label": label, "user": user, "p": p}
    _require_one_kind(data, split, split_is_random)
    if data is None and isinstance(place, Path) and places.is_run(place):
        problem = "this is a run of dpaudit, whose secret batches say which records were shown."
        raise InputError("TEXTS", problem, "Give --data FILE in place of --shown and --held-out.")
    columns, measure = Columns(text or "text", label, user), unit
    with ExitStack() as stack:

        def named(records: Records, argument: str) -> str:
            return stack.enter_context(records_file(records, argument))

        def lines(records: Records, argument: str) -> tuple[str, ...]:
            found = read_lines(named(records, argument), argument, Columns(columns.text))
            return tuple(line.text for line in found)

        everybodys = tuple(chain.from_iterable(lines(each, "--public") for each in public))
        names = () if entities is None else lines(entities, "--entities")
        if data is not None:
            reader = RunReader(places.location_of(texts, "texts"))
            require_there(data, "data", reader.manifest)
            units = units_of_run(reader, named(data, "--data"), public=everybodys, seed=seed or 0)
            claim = claim_of_run(reader, reader.manifest.claim, len(units.values))
        else:
            units = units_of_files(
                named(texts, "TEXTS"),
                named(shown, "--shown"),
                named(held_out, "--held-out"),
                columns,
                split_is_random=split_is_random,
                p=p,
                public=everybodys,
                seed=secrets.randbits(_SEED_BITS) if seed is None else seed,
            )
            claim = TestedClaim(None, not_compared="none-claimed")
        if epsilon is not None:
            claim = TestedClaim(epsilon, delta or 0.0, of="given")
        looked_for = LookedFor(ask, names)
        with monitor.progress("Comparing", f"{units.unit}s") as advance:
            found = try_texts(
                units, claim, measure=measure, level=level, looked_for=looked_for, progress=advance
            )
    return Disclosure(found)


def disclosed_of_run(
    run: Location, data: Records, claim: Claim, monitor: Monitor
) -> DisclosedTexts | InputError:
    """Try a run's texts for its audit.

    Args:
        run: the run directory.
        data: its private records.
        claim: that the audit tests.
        monitor: receives progress.

    Returns:
        The finding, or why there can be none of this run.
    """
    reader = RunReader(run)
    with records_file(data, "data") as file:
        try:
            units = units_of_run(reader, file)
            with monitor.progress("Comparing texts", "records") as advance:
                return try_texts(
                    units, claim_of_run(reader, claim, len(units.values)), progress=advance
                )
        except InputError as error:
            return error


def _require_one_kind(
    data: Records | None, split: Mapping[str, object], split_is_random: bool
) -> None:
    """Raise InputError unless the arguments are those of a run, or those of two files."""
    given = [name for name, value in split.items() if value is not None]
    if split_is_random:
        given.append("split_is_random")
    if data is not None and given:
        option = f"--{given[0].replace('_', '-')}"
        problem = "it goes with other generators' texts, and --data with a run of dpaudit."
        raise InputError(option, problem, "Give --data, or --shown and --held-out.")
    lacking = [name for name in ("shown", "held_out") if split[name] is None]
    if data is None and lacking:
        problem = "nothing says which records were shown."
        remedy = (
            "Give --data FILE with a run of dpaudit, or --shown A --held-out B "
            "--split-is-random with any other texts."
        )
        raise InputError(f"--{lacking[0].replace('_', '-')}", problem, remedy)


def _require_numbers(
    epsilon: float | None,
    delta: float | None,
    level: float,
    p: float | None,
    seed: int | None,
) -> None:
    """Raise InputError where a number is out of its range."""
    if epsilon is not None and not 0 <= epsilon < math.inf:
        raise InputError("--epsilon", f"this is {in_short(epsilon)}.", "Give 0 or more.")
    if delta is not None and not 0 <= delta < 1:
        raise InputError("--delta", f"this is {in_short(delta)}.", "Give 0 or more, and below 1.")
    if delta is not None and epsilon is None:
        raise InputError("--delta", "no epsilon is given with it.", "Give --epsilon, too.")
    for name, share in (("level", level), ("p", p)):
        if share is not None and not 0 < share < 1:
            raise InputError(
                f"--{name}", f"this is {in_short(share)}.", "Give a number between 0 and 1."
            )
    if seed is not None and not 0 <= seed < 2**63:
        raise InputError("--seed", f"this is {in_short(seed)}.", "Give a number from 0 on.")
