"""A config's run before it begins, without its model: what its own audit can already judge."""

from __future__ import annotations

import secrets

from dpaudit.generation.config import Config
from dpaudit.generation.manifest import (
    declared_batching,
    declared_data,
    declared_decoding,
    declared_privacy,
    declared_prompt,
    declared_record,
    declared_sampling,
    expected_clusters,
    stated_claim,
    stated_delta,
    units,
    with_budget,
)
from dpaudit.generation.overlap import shared_texts
from dpaudit.generation.records import Records, read_public_examples
from dpaudit.mechanisms import MAX_VOCABULARY
from dpaudit.results.planned import PlannedRun
from dpaudit.runs import (
    Batching,
    Claim,
    Clustering,
    Manifest,
    Model,
    Origins,
    Privacy,
)
from dpaudit.runs.assignment import KEY_BYTES
from dpaudit.runs.manifest import ModelSettings, settings_of


def planned_run(
    config: Config, data: Records | None = None, *, goes_on: bool = False
) -> PlannedRun:
    """Return a new run of a config as far as its settings tell, and its data where they were read.

    Args:
        config: all settings.
        data: the records that it names.
        goes_on: whether the run takes the secret key of earlier ones.

    Raises:
        InputError: the config's public examples or seed cannot be read, or a setting does not fit
            the data.
    """
    manifest = _manifest(config, data, secret=config.batching.key is None and not goes_on)
    shared = (
        None if data is None else shared_texts(manifest, (record.text for record in data.records))
    )
    claim = _claim(config, manifest.data.records, manifest.batching)
    return PlannedRun(manifest, claim, expected_clusters(config), shared, _names(config))


def _manifest(config: Config, data: Records | None, *, secret: bool) -> Manifest:
    privacy, clustering = _privacy(config, data), Clustering()
    if config.clustering is not None:
        # Its scales take other libraries to work out.
        from dpaudit.generation.grouping import expected_statement

        clustering = expected_statement(config, privacy, None)
    key = config.batching.key or secrets.token_hex(KEY_BYTES)
    examples = {label: tuple(texts) for label, texts in read_public_examples(config).items()}
    batching = declared_batching(config, expected_clusters(config), key, secret=secret)
    # Not validated as a whole: what the model tells is not there.
    return Manifest.model_construct(
        created="",
        made_by=config.made_by,
        privacy=privacy,
        mechanism=with_budget(config, privacy, batching, clustering).mechanism,
        batching=batching,
        clustering=clustering,
        chosen_from=Origins(**dict(config.chosen_from)),
        decoding=declared_decoding(config),
        sampling=declared_sampling(config.sampling),
        record=declared_record(config, MAX_VOCABULARY, privacy),
        data=declared_data(config, 0 if data is None else len(data.records)),
        model=Model(**settings_of(config.model, ModelSettings)),
        prompt=declared_prompt(config, examples),
    )


def _privacy(config: Config, data: Records | None) -> Privacy:
    if data is not None:
        return declared_privacy(config, data.most_per_user)
    # The fewest that a user of data which were not read can have: what fails with these fails with
    # any.
    return declared_privacy(config, 1 if config.privacy.unit == "user" else None)


def _claim(config: Config, records: int, batching: Batching) -> Claim:
    """Return the config's claim; one without figures where these follow from what is found."""
    delta = 0.0 if config.clustering is None else config.clustering.delta or 0.0
    if config.claim_kind.beforehand:
        delta = stated_delta(config, max(2, units(config, records, batching)))
    if config.claim is not None:
        return stated_claim(config, config.claim.epsilon, delta, None, config.claim.rho)
    privacy = config.privacy
    return Claim.model_construct(
        kind=config.claim_kind.id, delta=delta, relation=privacy.relation, unit=privacy.unit
    )


def _names(config: Config) -> dict[str, str]:
    """Return the config's names of those fields that it does not have under the manifest's."""
    delta = "claim.delta" if config.claim is not None and config.claim.delta else "privacy.delta"
    return {
        "claim.delta": delta if config.claim_kind.beforehand else "clustering.delta",
    }
