"""Identifiers that the Hugging Face hub takes in a data set's card: it refuses all others.

hub_licences.txt has those of its page "Licenses" (huggingface/hub-docs,
docs/hub/repositories-licenses.md, at commit 242f4a1e of 22 August 2026), hub_languages.txt the
codes of the package @huggingface/languages 1.0.0: ISO 639-1, then ISO 639-3.
"""

from __future__ import annotations

import difflib
from functools import cache
from importlib import resources
from typing import Annotated

from pydantic import AfterValidator, Field

#: Values of `language` that are no code of a language.
_NO_LANGUAGES = frozenset({"code", "multilingual"})


@cache
def licences() -> frozenset[str]:
    """Return identifiers of licences, and `other`."""
    return _listed("hub_licences.txt")


@cache
def languages() -> frozenset[str]:
    """Return codes of languages, two letters or three, and what the hub takes beside them."""
    return _listed("hub_languages.txt") | _NO_LANGUAGES


def _listed(name: str) -> frozenset[str]:
    return frozenset(resources.files("dpaudit.results").joinpath(name).read_text("ascii").split())


def _licence(value: str) -> str:
    if value not in licences():
        close = difflib.get_close_matches(value.lower(), sorted(licences()), n=1)
        meant = "".join(f" Did you mean {name}?" for name in close)
        raise ValueError(
            f"the hub has no licence {value!r}.{meant} Give an identifier of its list, such as "
            "cc-by-4.0, or other"
        )
    return value


def _language(value: str) -> str:
    if value not in languages():
        raise ValueError(
            f"the hub has no language {value!r}. Give a code of ISO 639-1 or 639-3 in small "
            "letters and without a "
            "region, such as en or deu"
        )
    return value


Licence = Annotated[str, Field(max_length=60), AfterValidator(_licence)]
Language = Annotated[str, Field(max_length=60), AfterValidator(_language)]
