"""Settings and marks of runs that were never made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dpaudit.results import Settings
from dpaudit.results.publication import Generator, Mark

#: Of files of a release that was never made.
MARK = Mark(
    generator=Generator(dpaudit="1", model=None, model_digest=None),
    run=None,
    release="ab" * 32,
    revocations=None,
)


def settings(parts: Mapping[str, Any]) -> Settings:
    """Settings with these parts, in the form of run.json, in place of the plainest."""
    stated = {
        "format_version": 2,
        "created": "2025-01-02T03:04:05Z",
        "privacy": {
            "unit": "record",
            "relation": "add_remove",
            "records_per_user_from": "declared",
        },
        "batching": {"rule": "hashed-records", "batches": 3},
        "clustering": {"method": "none"},
        "chosen_from": {},
        "sampling": {"generator": "os-entropy"},
        "model": {"trained_on_records": "unknown"},
        "software": {},
        **parts,
    }
    return Settings.model_validate_json(json.dumps(stated))
