"""The entries of the catalogue, read from the data files here and beside plug-ins."""

from functools import cache
from importlib.resources import files
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import tomli  # as the standard library's parser, compiled: a start reads some 200 KB
from pydantic import BaseModel, ConfigDict

from dpaudit.errors import InputError
from dpaudit.plugins import PlugIn, loaded

#: The entry that stands in for those of checks that cannot be loaded.
UNLOADED: Final = "plug-in.unloaded"


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


#: What may be given to an audit to make a check that was not made.
Given: TypeAlias = Literal["model", "data", "seed", "tokenizer"]


class Wording(_Entry):
    """The words for one outcome of a check.

    Templates show values by name (`dpaudit.results.catalogue.rendering`).

    Attributes:
        found: the finding, in figures.
        expected: the right value; None for the check's own `expected`.
        detail: the place, and what to do about it.
        public: names of the values that readers outside may see. None unless somebody argued for
            it.
        public_code: whether readers outside may see which outcome it is, beyond pass or fail.
    """

    found: str
    expected: str | None = None
    detail: str = ""
    public: tuple[str, ...] = ()
    public_code: bool = False


class Before(_Entry):
    """The words for an outcome that is certain before a run (`dpaudit.auditing.checks.preflight`).

    They are templates, but for `meant`.

    Attributes:
        setting: the field to change, by its name in a config.
        problem: what is wrong there, without a full stop.
        remedy: what would do instead, as a sentence.
        meant: whether the setting itself says that the run is for no release, so that telling is
            enough.
    """

    setting: str
    problem: str
    remedy: str
    meant: bool = False


class Entry(_Entry):
    """The fixed part of a check.

    Attributes:
        title, fails: state the good outcome and the bad one.
        evidence: level from 0 to 4, see `dpaudit.results.evidence`.
        made_with: inputs for a check that was not made, in order of preference: any one of them is
            enough.
        compares: what is compared with what.
        why: what harm comes if it fails.
        remedy: how to mend a failure.
        reference: the paper's or the documentation's place.
        expected: the right value, for outcomes that do not say it.
        outcome: the words for each outcome, by its code.
        before: the words for those that settings alone decide, where these are not to pass.
    """

    title: str
    fails: str
    evidence: int
    made_with: tuple[Given, ...] = ()
    compares: str
    why: str
    remedy: str
    reference: str
    expected: str = ""
    outcome: dict[str, Wording] = {}
    before: dict[str, Before] = {}


class Sentence(_Entry):
    """The words for a finding by itself or within another: a caveat, a verdict, a step's problem.

    Attributes:
        text: the template.
        public: names of the values that readers outside may see.
        public_code: whether readers outside may see the sentence. They never see one with a value
            that is not public.
    """

    text: str
    public: tuple[str, ...] = ()
    public_code: bool = False


class Catalogue(_Entry):
    """All entries.

    Attributes:
        outcome: words for outcomes that any check may have, by their codes.
        check: the fixed parts of checks, by their ids.
        sentence: sentences by their codes.
        glossary: meanings of terms.
        section: titles of a report's sections, by their ids.
        family: the subjects of the checks of a family, by the part of their ids before the dot.
    """

    outcome: dict[str, Wording] = {}
    check: dict[str, Entry] = {}
    sentence: dict[str, Sentence] = {}
    glossary: dict[str, str] = {}
    section: dict[str, str] = {}
    family: dict[str, str] = {}


def catalogue() -> Catalogue:
    """Return the whole catalogue: dpaudit's own files, then those of loaded plug-ins."""
    return _catalogue_with(loaded()).catalogue


def require_words(plug_in: PlugIn) -> None:
    """Refuse a loaded plug-in whose file is no catalogue, or repeats an entry.

    Raises:
        InputError: it is; the file is left out then.
    """
    if problem := _catalogue_with(loaded()).problems.get(plug_in):
        raise problem


class _Known(NamedTuple):
    catalogue: Catalogue
    problems: dict[PlugIn, InputError]


@cache
def _catalogue_with(plug_ins: tuple[PlugIn, ...]) -> _Known:
    found, problems, read = _own_entries(), dict[PlugIn, InputError](), set[str]()
    for each in plug_ins:
        module = each.value.partition(":")[0]
        if module in read:
            continue
        read.add(module)
        try:
            found = _join(found, each.words())
        except InputError as error:
            problems[each] = error
        except ValueError as error:
            said = str(error).partition("\n")[0]
            problems[each] = each.unusable(
                f"the file {module.rpartition('.')[2]}.toml beside it is unusable ({said})."
            )
    return _Known(found, problems)


@cache
def _own_entries() -> Catalogue:
    found = Catalogue()
    for file in sorted(files(__package__).iterdir(), key=str):
        if file.name.endswith(".toml"):
            found = _join(found, file.read_text("utf-8"))
    return found


def _join(held: Catalogue, text: str) -> Catalogue:
    """Return the catalogue with more entries, in TOML.

    Raises:
        ValueError: they are no entries, or repeat one.
    """
    more = Catalogue.model_validate(tomli.loads(text), strict=False)
    joined: dict[str, Any] = {}
    for part in Catalogue.model_fields:
        before, new = getattr(held, part), getattr(more, part)
        if twice := before.keys() & new.keys():
            raise ValueError(f"the catalogue has {min(twice)} twice")
        joined[part] = before | new
    return held.model_copy(update=joined)


def entry(check: str) -> Entry:
    """Return a check's entry; a stand-in for checks of plug-ins that cannot be loaded."""
    found = catalogue().check
    return found.get(check) or found[UNLOADED]


def plain(code: str) -> Sentence:
    """Return a sentence by its code.

    Raises:
        InputError: there is none, and a plug-in of another package was to bring it.
        KeyError: there is none.
    """
    found, others = catalogue().sentence.get(code), [each for each in loaded() if not each.is_own]
    if found is None and others:
        remedy = f'Write [sentence."{code}"] into the TOML file beside the module that says so.'
        raise others[-1].unusable(f"neither it nor another plug-in has a sentence {code}.", remedy)
    return found or catalogue().sentence[code]


def wording(check: str, outcome: str) -> Wording:
    """Return the words for an outcome, the check's own or those that all checks share.

    Raises:
        KeyError: there are none.
    """
    return entry(check).outcome.get(outcome) or catalogue().outcome[outcome]
