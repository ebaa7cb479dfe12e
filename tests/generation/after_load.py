"""Faults that begin once a model has been loaded and tried out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dpaudit.generation import manifest, model_loading, passes


@contextmanager
def after_load(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute from the moment when a model has been tried and its rows are planned."""
    own = getattr(owner, name)

    def before(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any) -> Any:
            setattr(owner, name, own)
            found = function(*args)
            setattr(owner, name, value)
            return found

        return called

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, value)
        patch.setattr(model_loading, "probe", before(model_loading.probe))
        patch.setattr(passes, "_cached_bytes", before(passes._cached_bytes))
        patch.setattr(manifest, "_public_logits", before(manifest._public_logits))
        yield
