"""The settings of `dpaudit demo`: a median run and a mean run on parts that install from the package registry."""

from __future__ import annotations

from importlib import resources

from dpaudit.generation.config import Config, load_config

DEMOS = ("median", "mean")


def demo_configs() -> dict[str, Config]:
    """Config by aggregator, "median" first."""
    configs: dict[str, Config] = {}
    for name in DEMOS:
        with resources.as_file(resources.files("dpaudit.generation") / "demos" / f"bbc-{name}.yaml") as path:
            configs[name] = load_config(path)
    return configs
