"""Plug-ins: entry points of other packages, found when a name is asked for, and loaded once.

A plug-in is trusted like any installed package: its code runs in this process. A run directory
names the plug-ins that it used, and so can ask for installed ones only. Entry points are looked for
where packages are installed, not in the current folder.
"""

from __future__ import annotations

import site
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, cast

from dpaudit.errors import InputError

MECHANISMS: Final = "dpaudit.mechanisms"
CHECKS: Final = "dpaudit.checks"
RECORDERS: Final = "dpaudit.recorders"
CLUSTERING: Final = "dpaudit.clustering"
GROUPS: Final = (MECHANISMS, CHECKS, RECORDERS, CLUSTERING)
#: The distribution whose own plug-ins are part of this program.
OWN: Final = "dpaudit"
#: What code of another package may raise, other than an interruption.
FAILURES: Final = (Exception, SystemExit)
#: Of another package's error message.
_MOST_CHARACTERS = 200


class PlugIn(NamedTuple):
    """An entry point of an installed package.

    Attributes:
        group: what it adds, one of GROUPS.
        name: what configs, run.json and reports call it.
        value: module and object, as "package.module:object".
        package, version: the distribution that has it.
    """

    group: str
    name: str
    value: str
    package: str
    version: str

    @property
    def is_own(self) -> bool:
        """Whether it is part of dpaudit's own distribution."""
        return self.package == OWN

    def load(self) -> Any:
        """Import it, once.

        Raises:
            InputError: the import fails; later calls raise the same.
        """
        found = _load(self)
        if isinstance(found, InputError):
            raise found
        return found

    def words(self) -> str:
        """Return its part of the catalogue, in TOML, or "".

        It is the file beside its module, with the module's name.

        Raises:
            InputError: the plug-in cannot be loaded, or its file cannot be read.
        """
        self.load()
        file = Path(str(sys.modules[self.value.partition(":")[0]].__file__)).with_suffix(".toml")
        try:
            return file.read_text("utf-8") if file.exists() else ""
        except (OSError, UnicodeDecodeError) as error:
            raise self.unusable(f"{file.name} cannot be read ({type(error).__name__}).") from None

    def failed(self, error: BaseException) -> InputError:
        """Return the error for a plug-in that raised `error`.

        Its message is left out: it may be of private records.
        """
        return self.unusable(f"it failed ({type(error).__name__}).")

    def unusable(self, problem: str, remedy: str = "") -> InputError:
        """Return the error of a plug-in that cannot be used."""
        where = f"{self.package} {self.version}: entry point {self.name} of {self.group}"
        remedy = remedy or f"Mend {self.value}, or uninstall {self.package}."
        return InputError(where, problem, remedy, "plug-in.unusable")


@cache
def plug_ins(group: str) -> tuple[PlugIn, ...]:
    """Return the installed plug-ins of a group, by name, without loading any."""
    return tuple(
        sorted((each for each in _installed() if each.group == group), key=lambda each: each.name)
    )


def plug_in(group: str, name: str) -> PlugIn | None:
    """Return the plug-in of a name, dpaudit's own if there is one, or None.

    Raises:
        InputError: two other packages have the name.
    """
    found = [each for each in plug_ins(group) if each.name == name]
    found.sort(key=lambda each: not each.is_own)
    if len(found) > 1 and not found[0].is_own:
        raise found[0].unusable(
            f"{found[1].package} has one of that name, too.", "Uninstall one of both packages."
        )
    return found[0] if found else None


def failure_of(took_part: Iterable[PlugIn], error: BaseException) -> InputError | None:
    """Return an error as the failure of a plug-in that took part; None without another package's.

    It is the plug-in whose code raised the error. If no other package's did, it is the first: what
    one returns may be unusable.
    """
    others = [each for each in took_part if not each.is_own]
    if isinstance(error, InputError) or not others:
        return None
    return failure_within(others, error) or others[0].failed(error)


def failure_within(plug_ins: Iterable[PlugIn], error: BaseException) -> InputError | None:
    """Return an error as the failure of the plug-in whose code raised it, or None."""
    modules = [
        str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)
    ]
    packages = {module.partition(".")[0] for module in modules}
    at_fault = (
        each for each in plug_ins if each.value.partition(":")[0].partition(".")[0] in packages
    )
    return next((each.failed(error) for each in at_fault if not each.is_own), None)


def loaded() -> tuple[PlugIn, ...]:
    """Return the plug-ins that were loaded so far, in that order."""
    return tuple(_LOADED)


_LOADED: list[PlugIn] = []


@cache
def _installed() -> tuple[PlugIn, ...]:
    found: dict[str, list[PlugIn]] = {}
    for distribution in metadata.distributions(path=_places()):
        if f"[{OWN}." not in (distribution.read_text("entry_points.txt") or ""):
            continue  # reading a name takes ten times as long
        # each look at them parses all metadata
        package, version = str(distribution.name), str(distribution.version)
        each = [
            PlugIn(point.group, point.name, point.value, package, version)
            for point in distribution.entry_points
            if point.group in GROUPS
        ]
        # the first on the path counts, as for imports
        found.setdefault(package.lower().replace("_", "-"), each)
    return tuple(plug_in for each in found.values() for plug_in in each)


def _places() -> list[str]:
    """Return the folders of installed packages, and that of dpaudit itself."""
    users = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [*site.getsitepackages(), *users, str(Path(__file__).parents[1])]


@cache
def _load(plug_in: PlugIn) -> Any:
    try:
        found = metadata.EntryPoint(plug_in.name, plug_in.value, plug_in.group).load()
    except FAILURES as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())[:_MOST_CHARACTERS]
        return plug_in.unusable(f"it cannot be imported ({said}).")
    _LOADED.append(plug_in)
    return found


Kind = TypeVar("Kind")
#: What classes of a group derive from.
_KINDS: dict[str, list[type[Any]]] = {}


class Registry(Mapping[str, type[Kind]]):
    """The classes of one kind by name: dpaudit's own, and those of plug-ins, loaded when asked for.

    A name of dpaudit's own always means its own class. Listing leaves out classes that cannot be
    used, and asking for one by its name raises InputError.

    Attributes:
        own: dpaudit's.
        kind: the class that all of them derive from.
    """

    def __init__(
        self,
        group: str,
        kind: type[Any],
        own: Mapping[str, type[Kind]],
        objection: Callable[[Any], str],
    ) -> None:
        """Register the kind.

        Args:
            group: the entry points' group.
            kind: the class that all derive from.
            own: dpaudit's classes by name.
            objection: returns why a plug-in's class cannot be used, or "".
        """
        self.own, self.kind, self._group, self._objection = dict(own), kind, group, objection
        _KINDS.setdefault(group, []).append(kind)

    def __getitem__(self, name: str) -> type[Kind]:
        if name in self.own:
            return self.own[name]
        found = plug_in(self._group, name)
        if found is None:
            raise KeyError(name)
        loaded = found.load()
        if not isinstance(loaded, type):
            raise found.unusable(f"{found.value} is no class.")
        if not issubclass(loaded, tuple(_KINDS[self._group])):
            raise found.unusable(f"{found.value} derives from no class that {self._group} takes.")
        if not issubclass(loaded, self.kind):
            raise KeyError(name)  # of another kind in the same group
        if missing := sorted(getattr(loaded, "__abstractmethods__", ())):
            raise found.unusable(f"{found.value} leaves out {', '.join(missing)}.")
        if (own := getattr(loaded, "name", None)) != name:
            raise found.unusable(f"the class calls itself {own!r}.", "Give both the same name.")
        if problem := self._objection(loaded):
            raise found.unusable(problem)
        try:
            # A pydantic model; else its first use shows what is wrong with its fields.
            getattr(loaded, "model_rebuild", bool)()
        except FAILURES as error:
            raise found.failed(error) from error
        return cast("type[Kind]", loaded)

    def require_unclaimed(self, name: str) -> None:
        """Refuse a name of dpaudit's own that another package also has.

        The user who installed it may mean the other one.

        Raises:
            InputError: names that package.
        """
        found = plug_in(self._group, name)
        if found is not None and (name in self.own or found.is_own):
            for each in plug_ins(self._group):
                if each.name == name and not each.is_own:
                    raise each.unusable(f"the name {name} is dpaudit's own.")

    def __iter__(self) -> Iterator[str]:
        yield from self.own
        for name in dict.fromkeys(each.name for each in plug_ins(self._group)):
            with suppress(InputError):
                if name not in self.own and name in self:
                    yield name

    def __len__(self) -> int:
        return sum(1 for _ in self)
