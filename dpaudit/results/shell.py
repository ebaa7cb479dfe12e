"""Write the arguments of commands that reports and the program show, as a shell takes them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from dpaudit.results.audit import AuditResult, CheckResult, ClaimResult
from dpaudit.results.evidence import HIGHEST
from dpaudit.results.rounding import stated

#: The level of evidence that commands ask for unless told.
_USUAL_EVIDENCE = 2
#: The options that make a check of a run against its data, and how those begin that make it with
#: the model alone.
WITH_DATA, WITH_MODEL = "--data FILE", "--model"
#: Stands for a run directory that is not known, or that readers are not told.
RUN_DIR = "RUN_DIR"


def argument(name: str, otherwise: str) -> str:
    """Return a path as an argument of a command, quoted where need be.

    A name that cannot be printed as it is, or would reorder what stands around it, is nothing to
    paste: `otherwise`.
    """
    if not name.isprintable():
        return otherwise
    return shlex.quote(f"./{name}" if name.startswith("-") else name)


def claim_options(claim: ClaimResult | None, names: Iterable[str]) -> str:
    """Return the options for these fields of a claim, each after a space, or "" if withheld."""
    if claim is None:
        return ""
    values = {name: getattr(claim, name) for name in names}
    return "".join(
        f" --{name.replace('_', '-')} {value if isinstance(value, str) else stated(value)}"
        for name, value in values.items()
        if value is not None
    )


def options_making(unmade: Iterable[CheckResult], level: int) -> str:
    """Return `dpaudit report`'s options that make unmade checks at a level of evidence, or ""."""
    options = dict.fromkeys(check.made_with for check in unmade if check.made_with)
    if WITH_DATA in options:  # which loads the model, too
        options = dict.fromkeys(option for option in options if not option.startswith(WITH_MODEL))
        level = HIGHEST
    asked = [f"--evidence {level}"] * (bool(options) and level != _USUAL_EVIDENCE)
    return " ".join([*options, *asked])


def context_of(run: str, question: str = "") -> dict[str, str]:
    """Return values for all sentences: the run, as a shell takes it, and options to ask again."""
    return {"run": argument(run, RUN_DIR), "question": question}


def context_for(result: AuditResult) -> dict[str, str]:
    """Return values for sentences about an audit; a public one does not say where the run is."""
    return context_of(result.run.path or RUN_DIR, claim_options(result.claim, result.asked))
