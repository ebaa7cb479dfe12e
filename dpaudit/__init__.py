"""Privacy accounting and auditing for text made by differentially private LLM inference.

`import dpaudit` gives the functions below. Each is imported when it is first used, so that auditing
needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dpaudit.version import __version__

if TYPE_CHECKING:
    from dpaudit.api.audits import Audit as Audit
    from dpaudit.api.audits import AuditError as AuditError
    from dpaudit.api.audits import audit as audit
    from dpaudit.api.budgeting import Budget as Budget
    from dpaudit.api.budgeting import plan_budget as plan_budget
    from dpaudit.api.comparing import RunComparison as RunComparison
    from dpaudit.api.comparing import RunComposition as RunComposition
    from dpaudit.api.comparing import compare as compare
    from dpaudit.api.comparing import compose as compose
    from dpaudit.api.contaminating import KnownRecords as KnownRecords
    from dpaudit.api.contaminating import contamination as contamination
    from dpaudit.api.disclosing import Disclosure as Disclosure
    from dpaudit.api.disclosing import disclose as disclose
    from dpaudit.api.evaluating import Evaluation as Evaluation
    from dpaudit.api.evaluating import evaluate as evaluate
    from dpaudit.api.generating import Config as Config
    from dpaudit.api.generating import generate as generate
    from dpaudit.api.generating import generate_public as generate_public
    from dpaudit.api.publishing import Release as Release
    from dpaudit.api.publishing import push_to_hub as push_to_hub
    from dpaudit.api.publishing import release as release
    from dpaudit.api.publishing import verify_release as verify_release
    from dpaudit.api.reading import Run as Run
    from dpaudit.api.reading import Texts as Texts
    from dpaudit.api.reading import open_public as open_public
    from dpaudit.api.reading import open_run as open_run
    from dpaudit.api.recording import record as record
    from dpaudit.api.vouching import provenance as provenance
    from dpaudit.errors import InputError as InputError
    from dpaudit.releasing.folder import RefusedError as RefusedError

#: The module of each public name.
_MODULES = {
    "Audit": "api.audits",
    "AuditError": "api.audits",
    "Budget": "api.budgeting",
    "Config": "api.generating",
    "Disclosure": "api.disclosing",
    "Evaluation": "api.evaluating",
    "InputError": "errors",
    "KnownRecords": "api.contaminating",
    "RefusedError": "releasing.folder",
    "Release": "api.publishing",
    "Run": "api.reading",
    "RunComparison": "api.comparing",
    "RunComposition": "api.comparing",
    "Texts": "api.reading",
    "audit": "api.audits",
    "compare": "api.comparing",
    "compose": "api.comparing",
    "contamination": "api.contaminating",
    "disclose": "api.disclosing",
    "evaluate": "api.evaluating",
    "generate": "api.generating",
    "generate_public": "api.generating",
    "open_public": "api.reading",
    "open_run": "api.reading",
    "plan_budget": "api.budgeting",
    "provenance": "api.vouching",
    "push_to_hub": "api.publishing",
    "record": "api.recording",
    "release": "api.publishing",
    "verify_release": "api.publishing",
}
__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted({*globals(), *_MODULES})
