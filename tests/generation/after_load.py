"""Faults that begin once a model has been loaded and tried out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dpaudit.generation import model_loading, passes
from dpaudit.generation.models import LanguageModel


@contextmanager
def after_load(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute from the moment on at which a model has been tried out and its rows are planned."""
    own = getattr(owner, name)

    def before(function: Callable[[LanguageModel], Any]) -> Callable[[LanguageModel], Any]:
        def called(model: LanguageModel) -> Any:
            setattr(owner, name, own)
            found = function(model)
            setattr(owner, name, value)
            return found

        return called

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, value)
        patch.setattr(model_loading, "probe", before(model_loading.probe))
        patch.setattr(passes, "_cached_bytes", before(passes._cached_bytes))
        yield
