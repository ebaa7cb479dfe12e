"""Faults that begin once a model has been loaded and tried out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dpaudit.generation import model_loading
from dpaudit.generation.model_probe import Probe
from dpaudit.generation.models import LanguageModel


@contextmanager
def after_load(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute from the moment on at which a model has been tried out."""
    own, probe = getattr(owner, name), model_loading.probe

    def probed(model: LanguageModel) -> Probe:
        setattr(owner, name, own)
        found = probe(model)
        setattr(owner, name, value)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, value)
        patch.setattr(model_loading, "probe", probed)
        yield
