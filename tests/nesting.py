"""Mechanisms, and places in run.json, by short names, as tests give them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dpaudit.mechanisms import AGGREGATORS, CONTRIBUTIONS, DRAWS, Mechanism
from dpaudit.plugins import Registry
from dpaudit.runs.manifest import SECTIONS, Manifest, Settings

_KINDS: dict[str, Registry[Any]] = {
    "contribution": CONTRIBUTIONS,
    "aggregator": AGGREGATORS,
    "draw": DRAWS,
}
#: The part of a mechanism that each setting is of; all others are the mechanism's own. Settings of
#: plug-ins stand here by name, for they need not be installed.
PARTS = {
    **{
        name: part
        for part, kinds in _KINDS.items()
        for kind in kinds.own.values()
        for name in kind.model_fields
    },
    "scale": "aggregator",
    **dict.fromkeys(("noise_multiplier", "sampling_rate"), "draw"),
    **dict.fromkeys(
        ("threshold", "threshold_noise", "private_tokens", "public_temperature"), "draw"
    ),
}


def nested(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mechanism's settings, each in its part; a part may be given as its kind alone.

    A part's setting that is None is left out.
    """
    found: dict[str, Any] = {"contribution": {"kind": "logits"}}
    for name, value in fields.items():
        if name in _KINDS:
            part = value if isinstance(value, Mapping) else {"kind": value}
            found[name] = found.get(name, {}) | part
        elif name not in PARTS:
            found[name] = value
        elif value is not None:
            found.setdefault(PARTS[name], {})[name] = value
    return found


def mechanism_with(fields: Mapping[str, Any]) -> Mechanism:
    """Return the mechanism of these settings (`nested`)."""
    return Mechanism.model_validate(nested(fields))


def place_of(name: str) -> list[str]:
    """Return where run.json has a setting, such as `mechanism.clip`."""
    section, _, rest = name.partition(".")
    if section == "mechanism":
        if rest in _KINDS:
            return [section, rest, "kind"]
        return [section, *([PARTS[rest]] if rest in PARTS else []), *rest.split(".")]
    return name.split(".")


def read_run(run: Any) -> dict[str, Any]:
    """Return what a run's run.json holds: its sections, with settings and what was made of them."""
    fields = json.loads((run / "run.json").read_text(encoding="utf-8"))
    settings, made = fields.pop("settings"), fields.pop("made")
    for name, section in settings.items():
        both = isinstance(section, dict) and isinstance(made.get(name), dict)
        fields[name] = section | made.pop(name) if both else section
    return {**fields, **made}


def write_run(run: Any, fields: Mapping[str, Any]) -> None:
    """Write run.json from what `read_run` returns."""
    settings: dict[str, Any] = {}
    made: dict[str, Any] = {}
    file: dict[str, Any] = {"settings": settings, "made": made}
    for name, value in fields.items():
        if name in SECTIONS and isinstance(value, Mapping):
            kind, _ = SECTIONS[name]
            settings[name] = {
                field: each for field, each in value.items() if field in kind.model_fields
            }
            made[name] = {
                field: each for field, each in value.items() if field not in kind.model_fields
            }
        elif name in Settings.model_fields:
            settings[name] = value
        elif name in Manifest.model_fields and name != "sensitivity":
            made[name] = value
        else:
            file[name] = value
    (run / "run.json").write_text(json.dumps(file), encoding="utf-8")
