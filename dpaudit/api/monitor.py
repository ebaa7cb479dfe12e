"""Progress and warnings of a call: quiet in Python, with bars on the command line."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from dpaudit.generation.events import Event

#: Called with how much is done and the total.
Progress: TypeAlias = Callable[[int, int], None]
#: Called with the name of a step, how much of it is done and its total.
Steps: TypeAlias = Callable[[str, int, int], None]


class Monitor:
    """A receiver of progress and warnings. This one shows no progress, and uses `warnings`."""

    def progress(self, title: str, unit: str) -> AbstractContextManager[Progress]:
        """Show one task, whose amount is counted in `unit`, such as batches."""
        return nullcontext(lambda done, total: None)

    def steps(self) -> AbstractContextManager[Steps]:
        """Show tasks that follow each other."""
        return nullcontext(lambda title, done, total: None)

    def generation(self, tokens: int) -> AbstractContextManager[Callable[[Event], None]]:
        """Show a generation of up to so many tokens a batch, by a function that takes events."""
        return nullcontext(lambda event: None)

    def titled(self, title: str) -> Monitor:
        """Return a monitor that says of which run its progress and warnings are."""
        return self

    def note(self, message: str) -> None:
        """Say what begins now."""

    def hint(self, message: str) -> None:
        """Say what is worth to know about a result."""

    def warn(self, message: str) -> None:
        """Warn of something that does not stop the call."""
        warnings.warn(message, UserWarning, stacklevel=4)


SILENT = Monitor()
