"""A recorded generator that is run again with its outputs frozen.

It continues with released tokens.

`dpaudit replay RUN --without ROW` sets the variable. The output is never finished: it cannot pass
for a run.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dpaudit.runs import RunReader
from dpaudit.runs.assignment import KEY_BYTES
from dpaudit.runs.storage import Location

VARIABLE = "DPAUDIT_FROZEN"


@dataclass(frozen=True)
class Frozen:
    """The released run that a generator is run again against.

    Attributes:
        released: the run that it made, which gives the key of its batches and every token.
        out: where to write instead.
    """

    released: Location
    out: Path

    @classmethod
    def asked(cls) -> Frozen | None:
        """Read the environment's request for frozen outputs; None without one."""
        found = os.environ.get(VARIABLE)
        if found is None:
            return None
        fields = json.loads(found)
        return cls(fields["released"], Path(fields["out"]))

    def environment(self) -> dict[str, str]:
        """Return the variable of this request."""
        return {VARIABLE: json.dumps({"released": str(self.released), "out": str(self.out)})}

    def tokens(self) -> Mapping[int, tuple[int, ...]]:
        """Return the tokens of each batch, one text's after another's."""
        found: dict[int, tuple[int, ...]] = {}
        for sample in RunReader(self.released).samples():
            found[sample.id] = found.get(sample.id, ()) + sample.tokens
        return found


def batching_key() -> bytes:
    """Return a new secret key for batches, or the released run's if outputs are frozen."""
    frozen = Frozen.asked()
    recorded = None
    if frozen is not None:
        recorded = RunReader(frozen.released).manifest.batching.key
    if recorded is None:
        return secrets.token_bytes(KEY_BYTES)
    return bytes.fromhex(recorded)
