"""The entry of a release for OpenDP's registry of deployments, as YAML."""

from __future__ import annotations

import math
import re
from datetime import date
from typing import Any

from pydantic import JsonValue

from dpaudit.mechanisms import Relation, Unit
from dpaudit.mechanisms.claims import ApproximateClaim, ClaimKind, ZcdpClaim
from dpaudit.reports import levels
from dpaudit.reports.card import as_yaml, states_epsilon
from dpaudit.reports.wording import say
from dpaudit.results import AuditResult, ClaimResult
from dpaudit.results.publication import About

_CHANGES: dict[Relation, str] = {"add_remove": "added or removed", "replace": "replaced by another"}
_UNITS: dict[Unit, str] = {
    "record": "One record: one text of the private data",
    "context": "One context: the records that one prompt shows",
    "user": "One user: all records of one person",
}
#: The registry's names, where it has one.
_VARIANTS: dict[ClaimKind, str] = {
    ApproximateClaim.id: "Approximate DP",
    ZcdpClaim.id: "Zero-concentrated DP",
}


def render_deployment(
    result: AuditResult, tested: ClaimResult, about: About, published: date
) -> str:
    """Return the entry: its only figures are of a public claim that holds whatever the data are.

    Args:
        result: the audit's, in its public form, and passed.
        tested: the claim that it was held to, of which kind, unit and relation stand here even
            where it is withheld.
        about: what the publisher says.
        published: when.
    """
    basic = {
        "name": about.name,
        "data_curators": [
            {"data_curator_name": name, "data_curator_type": about.curator_type}
            for name in about.curators
        ],
        "intended_use": _line(about.intended_use),
        "data_product_type": "Synthetic data",
        "data_product_region": about.region,
        "description": _line(about.description),
        "publication_date": published.isoformat(),
        "data_product_sector": about.sector,
    }
    variant = {
        "variant_name": _VARIANTS.get(tested.kind, "Custom"),
        "data_domain": "All sets of records of text.",
        "unprotected_quantities": _unprotected(result),
    }
    deployment = {
        "basic": basic,
        "dp_variant": variant,
        "privacy_loss": _loss(result, tested),
        "deployment_model": {
            "model_name": "Central",
            "model_name_details": say("entry-central"),
            "actors": _actors(about),
            "release_type": "One release",
            "release_type_details": _optional_line(about.other_releases),
            "data_source_type": "Static",
            "access_type": "Non-interactive",
        },
        "accounting": {
            "post_processing": "None: the texts are released as they were sampled.",
            "composition": "Over all tokens, and all else that looked at the records; the report "
            "of the audit has it.",
        },
        "implementation": {
            "preprocessing_and_hyperparameter_tuning": "See chosen_from in the report's settings.",
            "mechanisms": f"{_mechanism(result)} Audited with dpaudit {result.run.dpaudit} at "
            "evidence level "
            f"{result.evidence}.",
            "justification": _optional_line(about.justification),
        },
        "administrative": {
            "notes": "Drafted by dpaudit release from the public report of the audit.",
            "registry_authors": list(about.curators),
        },
    }
    entry = {
        "url_slug": _slug(about, published),
        "status": "Draft",
        "tier": _tier(about, states=states_epsilon(result, tested.kind)),
        "deployment": deployment,
    }
    # The registry wants no folded scalars, which long lines would become.
    return as_yaml(_stated(entry))


def _tier(about: About, *, states: bool) -> int:
    """Return how complete the entry is: 2 with parameters, and 3 with people's reasons, too."""
    if not states:
        return 1
    reasons = (about.justification, about.access, about.recipients, about.other_releases)
    return 2 if None in reasons else 3


def _actors(about: About) -> str:
    """Return who has a part, and who is trusted, in a line."""
    said = {"Access": about.access, "Recipients": about.recipients}
    stated = [f"{name}: {_line(words)}" for name, words in said.items() if words]
    return " ".join([say("entry-actors"), *stated])


def _stated(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values that are stated, in mappings within mappings and lists too."""

    def inner(value: Any) -> Any:
        if isinstance(value, list):
            return [inner(each) for each in value]
        return _stated(value) if isinstance(value, dict) else value

    return {name: inner(value) for name, value in values.items() if value is not None}


def _loss(result: AuditResult, tested: ClaimResult) -> dict[str, Any]:
    claim = result.claim
    detail = f"Neighbouring data sets differ in that unit, {_CHANGES[tested.relation]}."
    if claim is not None and claim.records_per_user:
        detail += f" One user has at most {claim.records_per_user} records."
    loss: dict[str, Any] = {"privacy_unit": _UNITS[tested.unit], "privacy_unit_details": detail}
    if claim is None or not states_epsilon(result, tested.kind):
        why = say("entry-ex-post") if not tested.terms.beforehand else say("entry-withheld")
        return loss | {"privacy_parameters": {}, "privacy_parameters_details": why}
    found = result.guarantees.approximate
    # The rho of budgets is what a batch may cost: the epsilon of the release is another guarantee
    # than that.
    known = found is not None and found.rho is not None and math.isfinite(found.rho)
    rho = found.rho if found is not None and known and not levels.are_apart(claim, found) else None
    # A claim of zCDP states no epsilon. At its delta one was recomputed: rho goes with that of the
    # batch level.
    epsilon = claim.epsilon if claim.epsilon is not None or found is None else found.batch_epsilon
    rho = rho if claim.rho is None else claim.rho
    if (paid := result.paid) is not None:  # what the card shows beside the texts is released, too
        of = (claim.relation, claim.unit)
        epsilon = None if epsilon is None else paid.total_epsilon(epsilon, *of)
        rho = None if rho is None else paid.total_rho(rho, *of)
    parameters = {"epsilon": epsilon, "delta": claim.delta, "rho": rho}
    held = " ".join(
        f"{level.name}, {level.figure}: {level.holds}" for level in levels.holding(result)
    )
    return loss | {"privacy_parameters": parameters, "privacy_parameters_details": held or None}


def _unprotected(result: AuditResult) -> str:
    """Say what is released beside the texts without noise: nothing counted in the data."""
    settings = result.run.settings
    if settings is None or {settings.chosen_from.batching, settings.chosen_from.settings} != {
        "public"
    }:
        return "Settings that are not declared public; see the report."
    said = "the settings in the report are declared to be chosen without the private data"
    if settings.batching.batches is not None:
        return f"None: labels, numbers of batches and {said}."
    return (
        f"None: labels and {said}. Numbers of batches follow from noisy counts, which the "
        "account includes."
    )


def _mechanism(result: AuditResult) -> str:
    settings = result.run.settings
    mechanism = None if settings is None else settings.mechanism
    if mechanism is None:
        return "Tokens are drawn from aggregated logits of a language model."
    contribution, aggregator = (mechanism[part] for part in ("contribution", "aggregator"))
    return (
        "Tokens are drawn from aggregated logits of a language model (contribution "
        f"{_kind(contribution)}, "
        f"aggregator {_kind(aggregator)})."
    )


def _kind(part: JsonValue) -> JsonValue:
    return part["kind"] if isinstance(part, dict) else part


def _line(text: str) -> str:
    return " ".join(text.split())


def _optional_line(text: str | None) -> str | None:
    return None if text is None else _line(text)


def _slug(about: About, published: date) -> str:
    """Return the address that the registry gives an entry: name, curators and year, hyphenated."""
    parts = (about.name, "-".join(about.curators), str(published.year))
    return "-".join(re.sub(r"\W+", "-", part.lower()).replace("_", "-") for part in parts)
