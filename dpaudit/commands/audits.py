"""The end of commands with an audit: they leave with its exit code."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from dpaudit.commands.terminal import tell

if TYPE_CHECKING:
    from dpaudit.api.audits import Audit


def leave(*audits: Audit) -> None:
    """Leave with the worst verdict's exit code; say on stderr why a run could not be judged."""
    from dpaudit.reports.findings import causes
    from dpaudit.results import EXIT_CODES

    for found in audits:
        for check in causes(found.result):
            # What is for readers outside holds neither what was measured nor where.
            said = (check.id, check.measured or check.title, check.detail)
            tell(f"dpaudit: {' '.join(': '.join(filter(None, said)).splitlines())}")
    sys.exit(max(EXIT_CODES[found.result.verdict] for found in audits))
