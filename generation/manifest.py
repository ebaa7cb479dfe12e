"""The manifest of a run before its first step, and checks that a run on disk is the same one."""

from __future__ import annotations

import hashlib
import math
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import ROUND_FLOOR, Decimal
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dpaudit.accounting import (
    ApproximateAccountant,
    Cost,
    ReleaseAccountant,
    limit_of,
    rebalancing_events,
    rounded_sum,
)
from dpaudit.accounting.ex_post_release import amplifies, readers_cost
from dpaudit.accounting.release import amount_of
from dpaudit.generation.config import LEAST_WIDTH, Config, SamplingConfig
from dpaudit.results import Amplification, Finding
from dpaudit.results.rounding import decimals
from dpaudit.runs import (
    Allocation,
    Assigned,
    Batching,
    Canaries,
    Claim,
    Clustering,
    ClusterPlaces,
    Clusters,
    CommittedSeed,
    Data,
    Decoding,
    InputError,
    Manifest,
    Model,
    NotSecret,
    Origins,
    Privacy,
    Prompt,
    Record,
    Sampling,
    SecretBatches,
    data_digest,
    read_seed,
    secret_batches,
)
from dpaudit.runs.manifest import (
    MAX_WIDTH,
    SOFTWARE,
    BatchingSettings,
    DataSettings,
    DecodingSettings,
    ModelSettings,
    PrivacySettings,
    PromptSettings,
    RecordSettings,
    SamplingSettings,
    settings_of,
)
from dpaudit.runs.storage import Location

if TYPE_CHECKING:
    from dpaudit.generation.models import LanguageModel
    from dpaudit.generation.prompts import Prompts

#: The paper's choice of delta: records ** -1.1.
DELTA_EXPONENT = -1.1
#: A config's field, as errors name it.
SEED_FILES = "sampling.seed_files"


def build_manifest(
    config: Config,
    batching: Batching,
    assignment: Sequence[Assigned],
    privacy: Privacy,
    clustering: Clustering,
    model: LanguageModel,
    prompts: Prompts,
    decoding: Decoding,
    sampling: Sampling,
    rows: int,
    canaries: Canaries | None = None,
) -> Manifest:
    """Build a new run's manifest.

    Its claim is None where the generator states its own at the end.

    Args:
        batching, privacy: see `declared_batching` and `declared_privacy`.
        assignment: every record's place.
        clustering: how records are grouped within labels; its cost is part of the claim.
        decoding: see `declared_decoding`.
        sampling: see `declared_sampling`.
        rows: contexts in one forward pass.
        canaries: among the records, or out of them.

    Raises:
        InputError: the settings do not fit the data or the model.
    """
    # torch: what settings alone tell is told without it
    from dpaudit.generation.model_probe import isolation_of

    installed = (name for name in SOFTWARE if list(metadata.Distribution.discover(name=name)))
    return Manifest(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        made_by=config.made_by,
        privacy=privacy,
        mechanism=config.mechanism,
        batching=batching,
        clustering=clustering,
        chosen_from=Origins(**dict(config.chosen_from)),
        decoding=decoding,
        sampling=sampling,
        record=declared_record(config, model.vocabulary, privacy),
        data=declared_data(
            config, len(assignment), data_digest(assigned.digest for assigned in assignment)
        ),
        model=Model(
            **settings_of(config.model, ModelSettings)
            | {"dtype": str(model.network.dtype).removeprefix("torch.")},
            digest=model.digest,
            device=model.device.type,
            rows=rows,
            isolation=isolation_of(model),
            public_logits=_public_logits(config, prompts, decoding),
        ),
        prompt=declared_prompt(
            config,
            prompts.public_examples,
            digest=prompts.template.digest,
            public=tuple(map(prompts.public_tokens, config.data.groups))
            if config.decoding.no_repeated_ngram
            else (),
        ),
        software={
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in installed},
        },
        canaries=None if canaries is None else canaries.committed,
        claim=claim_beforehand(
            config, units(config, len(assignment), batching), privacy, batching, clustering
        ),
    )


def _public_logits(config: Config, prompts: Prompts, decoding: Decoding) -> str | None:
    """Return the digest of the first label's public logits.

    It is None where no support or anchor is taken from them.

    Raises:
        InputError: memory is too small.
    """
    mechanism = config.mechanism
    if mechanism.support.size is None and not mechanism.contribution.anchored:
        return None
    from dpaudit.generation.passes import next_logits, out_of_memory

    try:
        public = prompts.public(config.data.groups[0], decoding.max_tokens)
    except Exception as error:
        if not out_of_memory(error):
            raise
        problem, remedy = (
            "memory is too small for a public prompt.",
            "Generate on a machine with more memory.",
        )
        raise InputError("model", problem, remedy) from None
    return hashlib.sha256(next_logits(public).tobytes()).hexdigest()


def units(config: Config, records: int, batching: Batching) -> int:
    """Return the number of units that a delta must suit.

    It counts records; where the claim is per context, slots if there are more of them.
    """
    slots = (
        batching.per_round * (config.batching.slots or 0) if config.privacy.unit == "context" else 0
    )
    return max(records, slots)


def ex_post_epsilon(tokens: float, clustering: Clustering) -> float:
    """Return the ex-post cost of tokens and their clusters, in nats.

    It is rounded up where clusters cost anything.
    """
    counts, centers = _clustering_epsilons(clustering)
    return rounded_sum(tokens, rounded_sum(counts, centers))


def ex_post_claim(
    config: Config,
    manifest: Manifest,
    clusters: Clusters,
    exact: float,
    cost: Callable[[int], Cost],
) -> Claim:
    """Return the claim that a run makes at its end, at both levels.

    It is the run's own sum and its clusters' cost, rounded up.

    Args:
        config: all settings.
        manifest, clusters: of the run.
        exact: what all its batches cost whoever knows the records' batches, in nats.
        cost: of one batch.
    """
    privacy, clustering = manifest.privacy, manifest.clustering
    secret, each = (
        secret_of(config, privacy, manifest.batching, clustering, clusters),
        manifest.batching.generate_per_cluster,
    )
    places = None if each is None else ClusterPlaces(clusters, each, manifest.rounds)
    release = readers_cost(
        manifest,
        secret,
        privacy.relation,
        privacy.change(config.batching.full_rule),
        places,
        exact,
        cost,
    )
    readers, known = (round_up(ex_post_epsilon(each, clustering)) for each in (release, exact))
    return stated_claim(config, readers, clustering.delta or 0.0, known)


def round_up(epsilon: float) -> float:
    """Round up to the next multiple of 0.0001, never below epsilon.

    Raises:
        InputError: epsilon is infinite, so there is nothing to claim.
    """
    if not math.isfinite(epsilon):
        remedy = (
            "Lower mechanism.contribution.clip or the number of tokens, or raise the "
            "divisor or the temperature."
        )
        raise InputError("mechanism", "these settings give no finite epsilon.", remedy)
    return float(decimals(epsilon, 4, most=math.inf))


def require_same_run(path: str, existing: Manifest, wanted: Manifest) -> None:
    """Refuse to go on with a run that was started under another config, model or data set.

    Raises:
        InputError: names the fields that differ.
    """
    own = {"created", "software", "claim_stated", "nonce", "commitment", "redrawn", "stopped_after"}
    stated_later = own if wanted.claim is not None else own | {"claim"}
    before, now = (
        _flat(manifest.model_dump(exclude=stated_later)) for manifest in (existing, wanted)
    )
    # which `require_same_logits` looks at
    fields = (before.keys() | now.keys()) - {"model.public_logits"}
    differing = sorted(field for field in fields if before.get(field) != now.get(field))
    if differing:
        problem = f"the run there was started with another {', '.join(differing)}."
        raise InputError(
            path, problem, "Restore the config, the data and the model, or name a new directory."
        )


def require_same_logits(path: str, existing: Manifest, wanted: Manifest) -> None:
    """Refuse to resume a run if this machine computes other public logits than the first one.

    Its supports and anchors would differ after the same tokens, and the audit would fail the whole
    run.

    Raises:
        InputError: the logits differ.
    """
    if existing.model.public_logits != wanted.model.public_logits:
        problem = (
            "this machine or its software computes other public logits than the one that "
            "began the run."
        )
        remedy = "Go on where the run began, with the same software, or name a new directory."
        raise InputError(f"{path}/run.json: model.public_logits", problem, remedy)


def require_same_clusters(
    path: str, existing: Manifest, clusters: Clusters, config: Config
) -> None:
    """Refuse to resume a run with other clusters of its records, before they are used.

    Raises:
        InputError: the method, the labels or the public number of a cluster's batches differ.
    """
    method = "none" if config.clustering is None else config.clustering.method
    each = config.batching.batches_per_cluster
    differing = ""
    if existing.clustering.method != method:
        differing = "clustering.method"
    elif existing.data.labels != config.data.labels:
        differing = "data.labels"
    elif each is not None and any(count != each for row in clusters.batches for count in row):
        differing = "batching.batches_per_cluster"
    if differing:
        problem = f"the run there was started with another {differing}."
        raise InputError(path, problem, "Restore the config, or name a new directory.")


def declared_batching(config: Config, clusters: Clusters, key: str, *, secret: bool) -> Batching:
    """Return how records become contexts and batches.

    Args:
        config: all settings.
        clusters: those of each label; empty where the config asks for no clustering.
        key: of the hash, in hexadecimal.
        secret: whether the key was drawn for this run, from the operating system.
    """
    settings = config.batching
    if config.clustering is None:
        other, batches = (
            "generate_per_cluster",
            len(config.data.groups) * settings.generate_per_label,
        )
    else:
        other, most = "generate_per_label", settings.generate_per_cluster
        batches = sum(min(count, most) for row in clusters.batches for count in row)
    return Batching(
        **settings_of(settings, BatchingSettings)
        | {other: None, "rule": config.batching.full_rule},
        batches=settings.rounds * batches,
        key=key,
        allocation=Allocation(
            kind="fixed-size" if config.batching.full_rule == "paper-slices" else "hashed",
            secret=secret,
        ),
    )


def declared_decoding(config: Config, ends: Iterable[tuple[int, ...]] = ()) -> Decoding:
    """Return the section `decoding`, with the token ids that end a text."""
    asked = settings_of(config.decoding, DecodingSettings) | {"max_tokens": config.decoding.longest}
    return Decoding(**asked, sequences=tuple(dict.fromkeys(ends)))


def declared_data(config: Config, records: int, digest: str | None = None) -> Data:
    """Return the section `data` of so many records, with `data_digest` of them."""
    asked = settings_of(config.data, DataSettings)
    if config.data.labels is None:
        asked["label"] = None
    source: Literal["path", "dataset"] = "path" if config.data.dataset is None else "dataset"
    return Data(**asked, records=records, digest=digest, source=source)


def declared_prompt(config: Config, examples: Mapping[str, tuple[str, ...]], **made: Any) -> Prompt:
    """Return the section `prompt`, with the examples that were read and what else was made."""
    asked = settings_of(config.prompt, PromptSettings)
    asked |= {"template": config.prompt.id, "public_examples": dict(examples)}
    return Prompt(**asked, **made)


def declared_sampling(asked: SamplingConfig) -> Sampling:
    """Return the section `sampling`, with the hashes of a committed seed's parts.

    Raises:
        InputError: a part of a committed seed cannot be read, or the config gives another hash of
            it.
    """
    found = settings_of(asked, SamplingSettings)
    if asked.committed and (
        not asked.seed_hashes or all(map(os.path.exists, asked.seed_files or ()))
    ):
        found["seed_hashes"] = committed_seed(asked).hashes
    # Else a part is still its owner's secret, until the run is committed to.
    return Sampling(**found)


def committed_seed(asked: SamplingConfig) -> CommittedSeed:
    """Read the seed of a config that has one. Raises InputError as `declared_sampling` does."""
    try:
        seed = read_seed(asked.seed_files or ())
    except InputError as error:
        raise InputError(SEED_FILES, f"{error.where}: {error.problem}", error.remedy) from None
    if asked.seed_hashes:
        seed.require_hashes(asked.seed_hashes, "sampling.seed_hashes")
    return seed


def require_apart(asked: SamplingConfig, out: Location) -> None:
    """Raise InputError where a part of the seed lies in the run directory, which is shared."""
    for file in asked.seed_files or ():
        if isinstance(out, Path) and Path(os.path.realpath(file)).is_relative_to(
            os.path.realpath(out)
        ):
            problem = (
                f"{file} is inside the run directory, and whoever is given the run would "
                "have the seed."
            )
            raise InputError(
                SEED_FILES, problem, "Move it elsewhere; it is as private as the records."
            )


def revealed_seed(asked: SamplingConfig, manifest: Manifest) -> CommittedSeed | None:
    """Read the seed of a run that is committed to; None for a run without one.

    Raises:
        InputError: a part is not there yet, cannot be read, or is not the one that the run began
            with.
    """
    if not asked.committed:
        return None
    for file, part in zip(asked.seed_files or (), asked.seed_hashes, strict=False):
        if not os.path.exists(file):
            raise InputError(
                SEED_FILES,
                f"{file} is not there yet. The run has begun and is committed to: "
                f"{manifest.commitment}.",
                f"Hand over this commitment, put the part of hash {part} there, and give the "
                "same command again.",
            )
    seed = committed_seed(asked)
    seed.require_hashes(manifest.sampling.seed_hashes, SEED_FILES)
    return seed


def declared_privacy(
    config: Config, most_per_user: int | None, earlier: Sequence[str] = ()
) -> Privacy:
    """Return unit and relation, with the group size of a claim per user.

    The group size is the declared one, or the largest in the data.

    Args:
        config: all settings.
        most_per_user: the largest number of records of one user; None where the data names no
            users.
        earlier: commitments of the runs that this one goes on from.

    Raises:
        InputError: a user has more records than the config declares.
    """
    declared = config.privacy.records_per_user
    if declared is not None and most_per_user is not None and most_per_user > declared:
        problem = f"this is {declared}, but one user has {most_per_user} records."
        remedy = (
            "Keep so many of every user's records, chosen by that user's alone. Or leave it out: "
            "the number is then "
            "taken from the data, and said to be."
        )
        raise InputError("privacy.records_per_user", problem, remedy)
    found = most_per_user if declared is None else declared
    return Privacy(
        **settings_of(config.privacy, PrivacySettings) | {"records_per_user": found},
        records_per_user_from="declared" if declared is not None or found is None else "data",
        delta_from="records" if config.counts_delta else "declared",
        shared_budgets=config.own_allowances,
        earlier=tuple(earlier),
    )


def declared_record(config: Config, vocabulary: int, privacy: Privacy) -> Record:
    """Return what is recorded, with enough central values for the change that a claim covers.

    Raises:
        InputError: the model has too few tokens for the support, or the format holds too few
            central values.
    """
    size, aggregator = config.mechanism.support.size, config.mechanism.aggregator
    if size is not None and size > vocabulary:
        problem = f"this is {size}, but the model has {vocabulary} tokens."
        raise InputError("mechanism.support.size", problem, f"Allowed: at most {vocabulary}.")
    change = privacy.change(config.batching.full_rule)
    width = LEAST_WIDTH if change is None else max(LEAST_WIDTH, aggregator.width_for(change))
    if width > MAX_WIDTH:
        problem = (
            f"a change of {change.contexts if change else 0} contexts needs {width} "
            "central values on each side."
        )
        remedy = (
            f"The format holds {MAX_WIDTH}: keep fewer of every user's records, chosen by "
            "that user's alone."
        )
        raise InputError("privacy.records_per_user", problem, remedy)
    asked = settings_of(config.record, RecordSettings) | {"contexts": config.records_contexts}
    return Record(**asked, dtype=aggregator.dtype, vocabulary=vocabulary, width=width)


def claim_beforehand(
    config: Config, records: int, privacy: Privacy, batching: Batching, clustering: Clustering
) -> Claim | None:
    """Return the config's claim, or the guarantee before the run.

    Without a claim in the config, the guarantee follows from public settings, where the mechanism
    has any.

    Args:
        config: all settings.
        records: how many there are, see `units`.
        privacy, batching: see `declared_privacy` and `declared_batching`.
        clustering: its cost is part of the claim; what is found later need not be right.

    Raises:
        InputError: nothing can be claimed under these settings.
    """
    accountant = release_accountant(config, privacy, batching, clustering)
    if accountant is None:
        if config.claim is None or config.claim.epsilon is None:
            return None
        alike = secret_of(config, privacy, batching, clustering) is None
        alike |= not amplifies(privacy.relation, privacy.change(config.batching.full_rule))
        known = config.claim.epsilon if alike else None
        return stated_claim(config, config.claim.epsilon, config.claim.delta, known)
    stated = config.privacy.epsilon if config.claim is None else config.claim.epsilon
    delta = stated_delta(config, records)
    if config.claim is not None and config.claim.rho is not None:
        return stated_claim(config, None, delta, None, config.claim.rho)
    if stated is not None and accountant.secret is None:
        return stated_claim(config, stated, delta, stated)
    if not accountant.batch.delta_left(delta / accountant.shares):
        problem = (
            f"this is {delta:g}, of which the clustering's centres alone take {clustering.delta:g}"
        )
        problem += (
            "."
            if accountant.shares == 1
            else f", and each round may take {delta / accountant.shares:g}."
        )
        raise InputError(
            "privacy.delta", problem, "Allowed: a number above clustering.delta and below 1."
        )
    tokens = config.decoding.most_tokens
    # By the paper's accounting, which any other library can repeat; the audit also knows a tighter
    # one.
    known = round_up(accountant.batch_level(tokens, delta, "rdp").epsilon)
    if stated is None:
        equal = accountant.secret is None or accountant.gains_nothing(tokens, delta) is not None
        stated = known if equal else min(known, round_up(accountant.epsilon(tokens, delta)))
    return stated_claim(config, stated, delta, max(stated, known))


def with_budget(
    config: Config, privacy: Privacy, batching: Batching, clustering: Clustering
) -> Config:
    """Return the config with the budget of each context that the limit in its `privacy` leaves.

    A config without one is returned as it is.

    Args:
        config: all settings.
        privacy, batching: see `declared_privacy` and `declared_batching`.
        clustering: its cost comes first.

    Raises:
        InputError: nothing is left.
    """
    limit, delta, change = (
        limit_of(config.privacy),
        config.privacy.delta,
        privacy.change(config.batching.full_rule),
    )
    accountant = release_accountant(config, privacy, batching, clustering)
    if limit is None or delta is None or change is None or accountant is None:
        return config
    field = f"privacy.{config.privacy.limit}"
    try:
        budget = accountant.most_rho_within(limit, delta)
    except ValueError as error:
        raise InputError(field, f"{error}.", "Raise it, or give clusters less.") from None
    if not budget:
        problem = f"this is {amount_of(limit):g}, which leaves contexts nothing."
        raise InputError(field, problem, "Raise it.")
    down = math.nextafter(budget, 0.0) if change.budgets > 1 else budget
    mechanism = config.mechanism.model_copy(update={"budget": down})
    return config.model_copy(update={"mechanism": mechanism})


def release_accountant(
    config: Config, privacy: Privacy, batching: Batching, clustering: Clustering
) -> ReleaseAccountant | None:
    """Return both levels of a config's mechanism, with what its clusters cost.

    Returns None where the mechanism's cost is not known before the run.
    """
    counts, centers = _clustering_epsilons(clustering)
    batch = ApproximateAccountant.of(
        config.mechanism,
        privacy.change(config.batching.full_rule),
        laplace=rebalancing_events(counts, privacy.relation),
        centers=centers,
        centers_delta=clustering.delta or 0.0,
        rounds=batching.rounds,
    )
    if batch is None:
        return None
    secret, shares = (
        secret_of(config, privacy, batching, clustering),
        privacy.shares(batching.rounds),
    )
    return ReleaseAccountant.of(
        batch, config.mechanism, privacy, config.batching.full_rule, secret, shares
    )


def secret_of(
    config: Config,
    privacy: Privacy,
    batching: Batching,
    clustering: Clustering,
    clusters: Clusters | None = None,
) -> SecretBatches | None:
    """Return what readers cannot know of a record's batch.

    Returns None where the claim does not rest on that.
    """
    found = secrecy_of(config, privacy, batching, clustering, clusters)
    return None if isinstance(found, NotSecret) else found


def secrecy_of(
    config: Config,
    privacy: Privacy,
    batching: Batching,
    clustering: Clustering,
    clusters: Clusters | None = None,
) -> SecretBatches | NotSecret:
    """Return what readers cannot know of a record's batch, or why both levels are equal.

    `clusters` are those of the run; without them, as many batches are taken for each as the config
    says in public.
    """
    if config.privacy.amplification == "none":
        return NotSecret.SWITCHED_OFF
    stated = Manifest.model_construct(
        data=config.data, privacy=privacy, batching=batching, clustering=clustering
    )
    return secret_batches(
        stated, privacy.unit, expected_clusters(config) if clusters is None else clusters
    )


def equal_levels(config: Config, manifest: Manifest) -> Finding | None:
    """Return why both levels of an approximate claim are equal; None where they are not."""
    batching, clustering, privacy = manifest.batching, manifest.clustering, manifest.privacy
    secret = secrecy_of(config, privacy, batching, clustering)
    if isinstance(secret, NotSecret):
        return Amplification.why_equal(secret)
    budgeted = config.model_copy(update={"mechanism": manifest.mechanism})
    accountant = release_accountant(budgeted, privacy, batching, clustering)
    if accountant is None or manifest.claim is None:
        return None
    why = accountant.gains_nothing(config.decoding.most_tokens, manifest.claim.delta)
    return None if why is None else Amplification.why_equal(why)


def expected_clusters(config: Config) -> Clusters:
    """Return clusters of the public number of batches: all that a claim rests on before the run."""
    clustering, batching = config.clustering, config.batching
    if clustering is None:
        return Clusters()
    labels, kept = len(config.data.groups), clustering.keep or clustering.centers or 1
    each = batching.batches_per_cluster or batching.least_batches or 1
    return Clusters(
        method=clustering.method,
        kept=(tuple(range(kept)),) * labels,
        batches=((each,) * kept,) * labels,
    )


def stated_claim(
    config: Config,
    epsilon: float | None,
    delta: float,
    batch_epsilon: float | None,
    rho: float | None = None,
) -> Claim:
    """Return a claim of the config's kind, unit and relation with these figures, in nats."""
    privacy = config.privacy
    return Claim(
        epsilon=epsilon,
        batch_epsilon=batch_epsilon,
        rho=rho,
        delta=delta,
        kind=config.claim_kind.id,
        relation=privacy.relation,
        unit=privacy.unit,
    )


def stated_delta(config: Config, records: int) -> float:
    """Return the config's delta, or one that follows from the number of `records`.

    Raises:
        InputError: there are too few.
    """
    if config.claim is not None and (config.claim.delta or config.claim_kind.delta != "optional"):
        return config.claim.delta
    if config.privacy.delta is not None:
        return config.privacy.delta
    if records < 2:
        problem = f"this is null, which needs at least 2 records, and there are {records}."
        raise InputError("privacy.delta", problem, "Allowed: a number above 0 and below 1.")
    # Three digits, rounded down: a smaller delta claims more, and epsilon is worked out for the one
    # that is claimed.
    delta = Decimal(math.pow(records, DELTA_EXPONENT))
    return float(delta.quantize(Decimal(1).scaleb(delta.adjusted() - 2), rounding=ROUND_FLOOR))


def _clustering_epsilons(clustering: Clustering) -> tuple[float, float]:
    """Return the cost of noisy counts and centres, in nats, for the run's unit and relation.

    Centres by k-means on private records have no finite cost. A run with them says so
    (`chosen_from`, `clustering.origin`), fails its audit, and its claim is of its tokens alone.
    """
    return (
        0.0 if clustering.counts is None else clustering.counts.epsilon,
        clustering.epsilon or 0.0,
    )


def _flat(fields: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested fields under dotted names."""
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        flat |= (
            _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
        )
    return flat
