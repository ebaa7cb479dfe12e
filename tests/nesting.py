"""Mechanisms, and places in run.json, by short names, as tests give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpaudit.mechanisms import Mechanism

#: The part of a mechanism that each setting is of; all others are the mechanism's own.
PARTS = {
    **dict.fromkeys(("clip", "grid"), "contribution"),
    **dict.fromkeys(("divisor", "central", "scale"), "aggregator"),
    **dict.fromkeys(("noise_multiplier", "sampling_rate"), "draw"),
    **dict.fromkeys(("threshold", "threshold_noise", "private_tokens", "public_temperature"), "draw"),
}
_KINDS = ("contribution", "aggregator", "draw")


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
