"""What a reader of a pass must know beside it, and which of it readers outside may be told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dpaudit.auditing.factors import next_to_nothing
from dpaudit.catalogue import sentence
from dpaudit.checks import Facts
from dpaudit.checks.claim import recomputed_levels
from dpaudit.checks.disclosure import in_common
from dpaudit.checks.levels import DRAWN, PSEUDORANDOM
from dpaudit.results import COUPLED, NEXT_TO_NOTHING, OF_THE_MODEL, TRAINED_NO, TRAINED_UNKNOWN, CheckResult

_DECLARED = "What the run declares is taken as true where no check looks behind it."
_PUBLIC_PARTS = "Only the model shows that all supports and anchors are public (mechanism.support-public)."
_NO_COMMITMENT = (
    "No commitment was given: settings, places of records and texts may be later than the run, and all else recomputed."
)
_NO_HEAD = (
    "No head from the end of the run was given to this audit: texts could have been drawn again or cut "
    "later, and all else recomputed."
)
_NO_SEED = (
    "The run commits to a seed, which this audit was not given: nothing shows that its tokens are the seed's "
    "(sampling.committed-seed)."
)
_EARLY_HEAD = (
    "The head that was given to this audit is from before the run's end: batches that were finished later could have "
    "been drawn again or cut, and all else recomputed."
)
_STATED_AFTERWARDS = "The run stated this claim itself, after it was generated."
_NUMBER_ALONE = "A pass means that the number is right, not that it is small enough."
_EARLIER = (
    "What records or users had spent in earlier runs is as this run says: `dpaudit compose` holds it against theirs."
)
_USERS_BY_COLUMN = "Whose a record is follows from a column of the data that the run names, and is taken as true."
_ASSUMED = {each.code: f"The release level rests on an assumption: {sentence(each)}." for each in (PSEUDORANDOM, DRAWN)}
_COUNTED = (
    "Several records of one person count one after another; so do several releases of the same records, and every key "
    "that was drawn again after somebody looked."
)
_WEAK_CHANNELS = (
    "The release level does not cover what times, halved passes, failures, or which of two workers finished first may "
    "tell of the batches' sizes: publish none of it."
)
_FIXED = frozenset(
    {
        _COUNTED,
        _WEAK_CHANNELS,
        *_ASSUMED.values(),
        *OF_THE_MODEL,
        _EARLIER,
        _DECLARED,
        _PUBLIC_PARTS,
        _NO_COMMITMENT,
        _NO_HEAD,
        _EARLY_HEAD,
        _NO_SEED,
        _STATED_AFTERWARDS,
        _NUMBER_ALONE,
        _USERS_BY_COLUMN,
    }
)


def caveats(facts: Facts, checks: Iterable[CheckResult]) -> Iterator[str]:
    """All of them, for readers inside."""
    claim, privacy = facts.claim, facts.manifest.privacy
    if said := next_to_nothing(claim.epsilon):
        yield said
    empty = [batch for batch, header in sorted(facts.headers.items()) if not header.contexts]
    if empty and claim.kind == "ex-post":
        which = f"batch {empty[0]} has" if len(empty) == 1 else f"{len(empty):,} batches have"
        yield f"{NEXT_TO_NOTHING} {which} no context, so that one more would decide the text alone."
    levels = recomputed_levels(facts)
    if levels is not None and levels.amplified:
        assert levels.amplification.assumption is not None
        yield _ASSUMED[levels.amplification.assumption.code]
        yield _COUNTED
        yield _WEAK_CHANNELS
    # With "yes" there is no pass.
    yield TRAINED_NO if facts.manifest.model.trained_on_records == "no" else TRAINED_UNKNOWN
    if facts.manifest.recorded is not None and (cells := facts.manifest.batching.cells) is not None:
        yield rows_held(sum(header.contexts for header in facts.headers.values()), cells * len(facts.headers))
    if facts.equal:
        more = f", and {len(facts.equal) - 1:,} more such sets" if len(facts.equal) > 1 else ""
        yield (
            f"{facts.equal[0]} are equal at every step, bit for bit{more}: they show one record, or records that begin "
            "alike. The claim holds only if each is a record of its own."
        )
    if facts.replay is not None:
        for shared in facts.replay.shared or ():
            found = sentence(in_common(shared))
            yield f"{found} Who wrote it must say whether it comes from them: if so, the claim is void."
    public = next((check for check in checks if check.id == "mechanism.support-public"), None)
    if public is not None and (public.status == "skip" or not public.evidence):
        yield _PUBLIC_PARTS
    yield _DECLARED
    if facts.manifest.model.isolation == "batch":
        yield COUPLED
    if facts.manifest.privacy.earlier:
        yield _EARLIER
    if facts.held.commitment is None:
        yield _NO_COMMITMENT
    elif facts.held.head is None:
        yield _NO_HEAD
    if facts.held.head not in (None, facts.reader.head()):
        yield _EARLY_HEAD
    if facts.manifest.sampling.committed and facts.seeded is None:
        yield _NO_SEED
    if facts.manifest.claim_stated == "afterwards" and claim == facts.manifest.claim:
        yield _STATED_AFTERWARDS
    counted = facts.replay is not None and facts.replay.most_per_user is not None
    if claim.unit == "user" and privacy.records_per_user_from == "declared":
        yield _USERS_BY_COLUMN if counted else _declared_users(privacy.records_per_user)
    elif claim.unit == "user":
        most = privacy.records_per_user
        yield f"No user of this data has more than {most} records; the claim holds for users with no more than that."
    yield _NUMBER_ALONE


def rows_held(held: int, rows: int) -> str:
    """How many of a recorded generator's rows show a record, where each is a cell of one record or empty."""
    if not held:
        return f"None of {rows:,} rows holds a private record: the texts are the public prompt's alone."
    return f"{held:,} of {rows:,} rows hold a private record; cells of none or several show nothing of theirs."


def public_caveats(said: Iterable[str], declared_users: int | None) -> Iterator[str]:
    """Those of an audit's caveats that tell nothing of the records: known sentences alone, whatever the others say.

    Args:
        said: the audit's.
        declared_users: how many records a user has by declaration; None where that is not public.
    """
    public = _FIXED | (set() if declared_users is None else {_declared_users(declared_users)})
    yield from (caveat for caveat in said if caveat in public)


def _declared_users(most: int | None) -> str:
    return f"That no user has more than {most} records is declared by the run; the record cannot show it."
