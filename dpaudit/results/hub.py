"""Identifiers that the Hugging Face hub takes in a data set's card: it refuses a card that has others.

LICENCES are those of its page "Licenses" (huggingface/hub-docs, docs/hub/repositories-licenses.md, at commit 242f4a1e of
22 August 2026). hub_languages.txt has the codes of the package @huggingface/languages 1.0.0: ISO 639-1, then ISO 639-3.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection
from functools import cache
from importlib import resources
from typing import Annotated

from pydantic import AfterValidator, Field

LICENCES = (
    "apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0 bigcode-openrail-m "
    "afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0 cc-by-2.5 "
    "cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0 "
    "cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0 cdla-permissive-1.0 "
    "cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0 "
    "lgpl lgpl-2.1 lgpl-3.0 isc h-research intel-research lppl-1.3c ms-pl apple-ascl apple-amlr mpl-2.0 odc-by odbl "
    "openmdw-1.0 openmdw-1.1 openrail++ osl-3.0 postgresql ofl-1.1 ncsa unlicense zlib pddl lgpl-lr "
    "deepfloyd-if-license fair-noncommercial-research-license llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 "
    "grok2-community gemma unknown other"
).split()
#: Values of `language` that are no code of a language.
_NO_LANGUAGES = ("code", "multilingual")


@cache
def languages() -> frozenset[str]:
    """Codes of languages, two letters or three, and what the hub takes beside them."""
    listed = resources.files("dpaudit.results").joinpath("hub_languages.txt").read_text("ascii")
    return frozenset((*listed.split(), *_NO_LANGUAGES))


def _licence(value: str) -> str:
    if value not in LICENCES:
        raise ValueError(
            f"the hub has no licence {value!r}.{_close(value, LICENCES)} Give an identifier of its list, such as "
            "cc-by-4.0, or other"
        )
    return value


def _language(value: str) -> str:
    if value not in languages():
        raise ValueError(
            f"the hub has no language {value!r}. Give a code of ISO 639-1 or 639-3 in small letters, such as en or deu, "
            "without a region"
        )
    return value


def _close(value: str, known: Collection[str]) -> str:
    return "".join(f" Did you mean {name}?" for name in difflib.get_close_matches(value.lower(), known, n=1))


Licence = Annotated[str, Field(max_length=60), AfterValidator(_licence)]
Language = Annotated[str, Field(max_length=60), AfterValidator(_language)]
