"""Runs of clustered records: what they record, claim and draw; and audits and replays agree."""

from __future__ import annotations

import csv
import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from dpaudit.accounting import (
    ApproximateAccountant,
    ChangScales,
    ExPostAccountant,
    kept_by_counts,
    rebalancing_events,
    rebalancing_scale,
)
from dpaudit.auditing.run import audit_run
from dpaudit.commands.cli import main
from dpaudit.generation import grouping
from dpaudit.generation.algorithm import batch_tasks, generate
from dpaudit.generation.clustering.dpm import Dpm
from dpaudit.generation.clustering.embedding import Embedder
from dpaudit.generation.clustering.kmeans import PublicKMeans
from dpaudit.generation.clustering.noise import Noise
from dpaudit.generation.config import Config
from dpaudit.generation.events import BatchDone, Event, TextsEmbedded
from dpaudit.generation.joined import CACHE_VARIABLE
from dpaudit.generation.replay import replay_run
from dpaudit.generation.sampling import SeededStream
from dpaudit.mechanisms import context_change
from dpaudit.runs import ClusterPlaces, InputError, KeyedHash, RunReader, decoded_centers
from dpaudit.runs.manifest import MAX_BATCHES
from tests.forging import unfinish
from tests.nesting import nested
from tests.trials import trial

CANARY = "canary-7f3a"
LABELS = ["north", "south"]
KEY = "0f" * 32
WORDS = ("rain", "goals", "votes", "shares", "films")

PUBLIC_CENTERS = {"method": "public-centers", "centers": 4}
REBALANCED = {"method": "public-centers-rebalanced", "centers": 6, "keep": 3, "epsilon": 0.5}
CHANG = {
    "method": "chang",
    "centers": 3,
    "epsilon": 2.0,
    "delta": 1e-3,
    "dimension": 4,
    "public": None,
}
DPM = {"method": "dpm", "epsilon": 2.0, "delta": 1e-3}
K_MEANS = {"method": "k-means", "centers": 3, "public": None}

MEAN = {"aggregator": "mean", "divisor": 8.0}
BY_COUNTS = {"records_per_batch": 5, "most_batches": 3}

MakeConfig = Callable[..., Config]


class KilledError(Exception):
    """What a test kills a generation with."""


def forbidden(*_: object, **__: object) -> None:
    """Stands for what a run must not do."""
    raise AssertionError("something is embedded, or noise is drawn")


def fresh(folder: Path) -> Path:
    """Where one of several runs of a test goes."""
    return Path(tempfile.mkdtemp(dir=folder)) / "run"


def text(number: int) -> str:
    return f"{WORDS[number % len(WORDS)] * 3} {CANARY} {number}"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees another one's embeddings."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Forty records with the label north, ten with south; every text holds the canary."""
    path = tmp_path / "records.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["label", "text"])
        writer.writerows([LABELS[number % 5 == 4], text(number)] for number in range(50))
    return path


@pytest.fixture
def clustered(tmp_path: Path, data: Path, tiny_folder: Path, encoder_folder: Path) -> MakeConfig:
    """A config with a clustering: its fields, and sections as keyword arguments."""
    public = tmp_path / "public.csv"
    public.write_text("text\n" + "".join(f"{WORDS[n % 5]} in public {n}\n" for n in range(30)))

    def make(clustering: dict[str, Any], **sections: dict[str, Any]) -> Config:
        values: dict[str, Any] = {
            "data": {"path": str(data), "labels": LABELS},
            "model": {"name": str(tiny_folder), "device": "cpu"},
            "prompt": {"max_example_tokens": 24},
            "batching": {"key": KEY},
            "clustering": {"public": str(public), "embedding": str(encoder_folder), **clustering},
            "mechanism": {"aggregator": "median", "clip": 4.0, "temperature": 1.0},
            "decoding": {"max_tokens": 2},
            "sampling": {"generator": "test-seed", "seed": 7},
            "chosen_from": {"batching": "public", "settings": "public"},
        }
        values["batching"]["batches_per_cluster"] = 2
        for name, fields in sections.items():
            values[name] = {**values.get(name, {}), **fields}
        return Config.model_validate({**values, "mechanism": nested(values["mechanism"])})

    return make


def truth(config: Config, reader: RunReader) -> tuple[NDArray[np.int64], dict[str, int]]:
    """By plain loops: record counts [labels, k] by nearest centre, and digests with the centre."""
    clusters, manifest = reader.clusters(), reader.manifest
    assert config.data.path is not None
    centers = decoded_centers(clusters, manifest.clustering.centers or 0).astype(np.float64)
    counts, homes = np.zeros((2, len(centers)), dtype=np.int64), {}
    embedder = Embedder(manifest.clustering.embedding or "", normalize=True, device="cpu")
    with Path(config.data.path).open() as file:
        for row in csv.DictReader(file):
            label = LABELS.index(row["label"])
            apart = ((centers - embedder.embed([row["text"]])[0]) ** 2).sum(axis=1)
            counts[label, apart.argmin()] += 1
            kept = np.array(clusters.kept[label])
            homes[KeyedHash(bytes.fromhex(KEY)).digest(row["label"], row["text"])] = int(
                kept[apart[kept].argmin()]
            )
    return counts, homes


def test_records_go_to_the_nearest_centre_that_their_label_keeps(
    tmp_path: Path, clustered: MakeConfig
) -> None:
    for clustering, batching in [
        (PUBLIC_CENTERS, {}),
        (REBALANCED, {"batches_per_cluster": None, **BY_COUNTS, "generate_per_cluster": 2}),
        (REBALANCED, {"slots": 4}),
        (REBALANCED, {"cells": 4}),
        (CHANG, {}),
        (DPM, {}),
    ]:
        prompt = {"examples_per_context": 2 if "cells" in batching else 1}
        config = clustered(
            clustering, batching={"batches_per_cluster": 2, **batching}, prompt=prompt
        )
        run = fresh(tmp_path)
        reader = RunReader(generate(config, run))
        clusters, stated = reader.clusters(), reader.manifest.clustering
        assert stated.method == clusters.method == clustering["method"]
        assert (stated.origin == "public") == clustering["method"].startswith("public")
        places = ClusterPlaces(clusters, config.batching.generate_per_cluster)
        assert len(places) == reader.manifest.batching.batches == len(reader.batches)
        _, homes = truth(config, reader)
        hashing = KeyedHash(bytes.fromhex(KEY)).of_round(0)
        for assigned in reader.assignment():
            if assigned.batch is not None:
                place = places[assigned.batch]
                assert place.center == homes[assigned.digest]
                assert place.number == hashing.batch(assigned.digest, place.count)
        for batch in reader.batches:
            with reader.batch(batch) as opened:
                place = places[batch]
                assert (opened.header.label, opened.header.cluster) == (
                    LABELS[place.label],
                    place.center,
                )
        failed = [check.id for check in audit_run(run, evidence=1).checks if check.status == "fail"]
        assert failed == ["mechanism.randomness"]  # the test seed


def test_counts_are_noised_before_anything_is_chosen_by_them(
    tmp_path: Path, clustered: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[float, NDArray[np.int64]]] = []
    original = Noise.rounded_laplace

    def watched(self: Noise, scale: float, size: int) -> NDArray[np.int64]:
        values = original(self, scale, size)
        drawn.append((scale, values))
        return values

    monkeypatch.setattr(Noise, "rounded_laplace", watched)
    config = clustered(
        REBALANCED, privacy={"unit": "user", "relation": "replace", "records_per_user": 3}
    )
    reader = RunReader(generate(config, tmp_path / "run"))
    ((scale, noise),) = drawn
    counts, _ = truth(config, reader)
    noisy = np.array(reader.clusters().noisy_counts)
    assert np.array_equal(noisy, counts + noise.reshape(2, 6))
    assert scale == rebalancing_scale(0.5, "replace", 3)
    stated = reader.manifest.clustering.counts
    assert stated is not None
    assert (stated.scale, stated.epsilon, stated.noised) == (scale, 0.5, "before-selection")
    assert np.array_equal(reader.clusters().kept, kept_by_counts(noisy, 3))


def test_noise_is_drawn_once_however_often_a_run_goes_on(
    tmp_path: Path, clustered: MakeConfig
) -> None:
    for killed_after in [1, 3]:
        with pytest.MonkeyPatch.context() as monkeypatch:
            config = clustered(REBALANCED, batching={"batches_per_cluster": None, **BY_COUNTS})
            secret = config.model_copy(
                update={"batching": config.batching.model_copy(update={"key": None})}
            )
            whole = fresh(tmp_path)
            unbroken = RunReader(generate(config, whole))
            done: list[Event] = []

            def kill_later(event: Event) -> None:
                done.append(event)
                if sum(isinstance(event, BatchDone) for event in done) == killed_after:
                    raise KilledError

            run = fresh(tmp_path)
            with pytest.raises(KilledError):
                generate(config, run, kill_later)
            embedded = [event for event in done if isinstance(event, TextsEmbedded)]
            assert {(event.texts, event.total) for event in embedded} == {
                ("public", 30),
                ("private", 50),
            }
            begun = (run / "clusters").read_bytes()

            monkeypatch.setattr(grouping, "Embedder", forbidden)
            monkeypatch.setattr(Noise, "rounded_laplace", forbidden)
            tasks = batch_tasks(secret, str(run))
            on_disk = set(RunReader(run).batches)
            other = min(set(range(unbroken.manifest.batching.batches)) - on_disk)
            assert [finished.batch for finished in tasks([other])] == [other]
            generate(config, run)
            assert (run / "clusters").read_bytes() == begun == (whole / "clusters").read_bytes()
            for name in ("assignment", "samples.jsonl"):
                assert (run / name).read_bytes() == (whole / name).read_bytes()


def kill(event: Event) -> None:
    if isinstance(event, BatchDone):
        raise KilledError


def test_a_run_says_how_its_centres_were_found(tmp_path: Path, clustered: MakeConfig) -> None:
    for clustering, setting, value, public in [
        (REBALANCED, "k", 6, True),
        (CHANG, "dimension", 4, False),
        (DPM, "epsilon", 2.0, True),
        (K_MEANS, "k", 3, False),
    ]:
        config = clustered(clustering, chosen_from={"batching": "private"})
        stated = RunReader(generate(config, fresh(tmp_path))).manifest.clustering
        assert stated.settings[setting] == value
        texts = sorted({f"{WORDS[n % 5]} in public {n}".encode() for n in range(30)})
        digest = hashlib.sha256(
            b"".join(len(text).to_bytes(8, "big") + text for text in texts)
        ).hexdigest()
        assert stated.public_digest == (digest if public else None)


def test_public_centres_can_be_found_again(
    tmp_path: Path, clustered: MakeConfig, encoder_folder: Path
) -> None:
    reader = RunReader(generate(clustered(REBALANCED), tmp_path / "run"))
    seed = reader.manifest.clustering.settings["seed"]
    assert isinstance(seed, int)
    public = Embedder(str(encoder_folder), normalize=True, device="cpu").embed(
        sorted(f"{WORDS[n % 5]} in public {n}" for n in range(30))
    )
    centers = PublicKMeans(6, seed).fit(public[:0], public, Noise(SeededStream(1, 0)))
    assert np.array_equal(decoded_centers(reader.clusters(), 6), centers)


def test_settings_are_compared_without_public_texts(tmp_path: Path, clustered: MakeConfig) -> None:
    for clustering, changed, setting in [
        (REBALANCED, {"centers": 7}, "k"),
        (CHANG, {"dimension": 5}, "dimension"),
        (CHANG, {"centers": 2}, "centers"),
        ({**DPM, "normalize": False}, {"delta": 2e-3}, "delta"),
    ]:
        with pytest.MonkeyPatch.context() as monkeypatch:
            run = fresh(tmp_path)
            with pytest.raises(KilledError):
                generate(clustered(clustering), run, kill)
            public = tmp_path / "public.csv"
            texts = public.read_text()
            public.unlink()
            monkeypatch.setattr(grouping, "Embedder", forbidden)
            with pytest.raises(
                InputError, match=rf"started with another .*clustering\.settings\.{setting}\b"
            ):
                generate(clustered({**clustering, **changed}), run)
            generate(clustered(clustering), run)
            public.write_text(texts)


def test_a_run_goes_on_under_its_own_clustering_only(tmp_path: Path, clustered: MakeConfig) -> None:
    run = tmp_path / "run"
    with pytest.raises(KilledError):
        generate(clustered(REBALANCED), run, kill)
    others = {
        "clustering.method": PUBLIC_CENTERS,
        "clustering.keep": {**REBALANCED, "keep": 2},
        "clustering.counts.epsilon, clustering.counts.scale": {**REBALANCED, "epsilon": 5.0},
        "clustering.normalize": {**REBALANCED, "normalize": False},
    }
    for field, clustering in others.items():
        with pytest.raises(InputError, match=f"started with another {field}"):
            generate(clustered(clustering), run)
    sections: dict[str, dict[str, dict[str, Any]]] = {
        "batching.batches_per_cluster": {"batching": {"batches_per_cluster": 3}},
        "batching.batches, batching.generate_per_cluster": {
            "batching": {"generate_per_cluster": 2}
        },
        "data.labels": {"data": {"labels": [*LABELS, "east"]}},
        "batching.key": {"batching": {"key": "f0" * 32}},
    }
    for field, changed in sections.items():
        with pytest.raises(InputError, match=f"started with another .*{field}"):
            generate(clustered(REBALANCED, **changed), run)


def test_the_commands_take_a_clustering(
    tmp_path: Path, clustered: MakeConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    """From YAML to a report that names the clusters; progress tells no text."""
    config, run = tmp_path / "config.yaml", tmp_path / "run"
    made = clustered(CHANG, mechanism=MEAN, privacy={"delta": 1e-2}, record={"contexts": True})
    settings = made.model_dump(mode="json", exclude_unset=True)
    config.write_text(yaml.safe_dump(settings))
    main(["generate", str(config), "--out", str(run)])
    with pytest.raises(SystemExit) as reported:
        main(["report", str(run)])
    assert reported.value.code == 1  # a test seed is no pass
    report = (run / "report" / "report.html").read_text()
    assert "Cluster centres" in report
    shown = capsys.readouterr()
    assert CANARY not in shown.out + shown.err + report.partition("Released")[0]


def test_a_median_run_claims_its_clusters_too(tmp_path: Path, clustered: MakeConfig) -> None:
    for clustering, cost, delta in (
        (PUBLIC_CENTERS, 0.0, 0.0),
        (REBALANCED, 0.5, 0.0),
        (CHANG, 2.0, 1e-3),
    ):
        reader = RunReader(generate(clustered(clustering), tmp_path / str(clustering["method"])))
        mechanism = reader.manifest.mechanism
        accountant = ExPostAccountant(
            mechanism, context_change("record", "add_remove", "hashed-records")
        )
        for batch in reader.batches:
            with reader.batch(batch) as opened:
                for step in opened.steps():
                    accountant.charge(batch, mechanism.reduced(dict(step.arrays), step.token))
        claim = reader.manifest.claim
        assert claim is not None
        assert (claim.kind, claim.delta) == ("ex-post", delta)
        assert (
            0
            <= claim.epsilon - accountant.epsilon - (reader.manifest.clustering.epsilon or 0)
            <= cost + 1.001e-4
        )
        assert claim.epsilon >= accountant.epsilon + 0.99 * cost


def test_a_mean_run_claims_its_clusters_too(tmp_path: Path, clustered: MakeConfig) -> None:
    change = context_change("record", "add_remove", "hashed-records")
    delta = 1e-2
    for clustering in (REBALANCED, CHANG):
        config = clustered(clustering, mechanism=MEAN, privacy={"delta": delta})
        manifest = RunReader(generate(config, tmp_path / str(clustering["method"]))).manifest
        events = rebalancing_events(0.5, "add_remove") if manifest.clustering.counts else ()
        rest = delta - (manifest.clustering.delta or 0)
        accountant = ApproximateAccountant.of(manifest.mechanism, change, laplace=events)
        assert manifest.claim is not None and accountant is not None
        tokens = accountant.epsilon(2, rest, "rdp").epsilon
        assert manifest.claim.delta == delta
        assert 0 <= manifest.claim.epsilon - tokens - (manifest.clustering.epsilon or 0) < 1.001e-4


def test_a_delta_that_the_centres_use_up_is_refused(tmp_path: Path, clustered: MakeConfig) -> None:
    # 50 records give a delta of 0.0135
    greedy = clustered({**CHANG, "delta": 0.09}, mechanism=MEAN)
    with pytest.raises(InputError, match=r"privacy\.delta.*centres alone take 0\.09"):
        generate(greedy, tmp_path / "run")


def test_what_cannot_be_used_costs_no_draw(tmp_path: Path, clustered: MakeConfig) -> None:
    for sections, problem in [
        ({"model": {"name": "absent/folder"}}, r"^model\.name"),
        ({"decoding": {"max_tokens": 10_000}}, "the model takes 256"),
        (
            {"mechanism": {"support": {"kind": "public-top-k", "size": 273}}},
            r"mechanism\.support\.size: .* 272 tokens",
        ),
        ({"privacy": {"unit": "user", "records_per_user": 200}}, "central values on each side"),
        (
            {"mechanism": {**MEAN, "clip": 12.0, "temperature": 0.1, "divisor": 5e-324}},
            "no finite epsilon",
        ),
    ]:
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # no retries
            for name in ("Embedder", "Noise"):
                monkeypatch.setattr(grouping, name, forbidden)
            with pytest.raises(InputError, match=problem):
                generate(clustered(REBALANCED, **sections), tmp_path / "run")
            assert not (tmp_path / "run").exists()


def test_too_many_batches_are_refused_before_counts_are_noised(
    tmp_path: Path, clustered: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many centres dpm finds, its noise decides: nobody can tell from the config alone."""
    many = MAX_BATCHES // 8
    config = clustered(DPM, batching={"batches_per_cluster": many, "generate_per_cluster": many})
    monkeypatch.setattr(Dpm, "fit", lambda *_: np.eye(5, 16, dtype=np.float32))
    with pytest.raises(
        InputError, match=r"batching\.generate_per_cluster: .* 2,097,152, .* 5 clusters .* 2"
    ):
        generate(config, tmp_path / "run")


def test_centres_that_no_run_holds_are_refused_before_counts_are_noised(
    tmp_path: Path, clustered: MakeConfig
) -> None:
    for number in [np.nan, np.inf, 2e6]:
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(
                PublicKMeans, "fit", lambda *_: np.full((6, 16), number, dtype=np.float32)
            )
            monkeypatch.setattr(Noise, "rounded_laplace", forbidden)
            with pytest.raises(InputError, match=r"clustering\.embedding: .* 1,000,000"):
                generate(clustered(REBALANCED), tmp_path / "run")


def test_replays_embed_anew_and_agree(tmp_path: Path, clustered: MakeConfig) -> None:
    for mechanism in [{}, MEAN]:
        config = clustered(
            REBALANCED, mechanism=mechanism, batching={"batches_per_cluster": None, **BY_COUNTS}
        )
        run, data = fresh(tmp_path), config.data.path
        assert data is not None
        generate(config, run)
        found = replay_run(run, data, steps=3, left_out=2, trials=0)
        assert (found.assignment, found.texts) == (None, None)
        reader = RunReader(run)
        noisy, (exact, _) = np.array(reader.clusters().noisy_counts), truth(config, reader)
        assert found.noise == np.abs(noisy - exact).sum() > 0
        assert [step.problems for step in found.steps] == [()] * 3
        checks = {
            check.id: check
            for check in audit_run(run, evidence=4, replay=found, disclosed=trial()).checks
        }
        levels = {
            "partition.stable": 3,
            "rebalancing.noise": 3,
            "replay.logits": 3,
            "neighbors.regenerated": 4,
        }
        assert {(name, checks[name].status, checks[name].evidence) for name in levels} == {
            (name, "pass", level) for name, level in levels.items()
        }


def test_counts_that_never_had_their_noise_fail_against_the_data(
    tmp_path: Path, clustered: MakeConfig
) -> None:
    """Noise of scale 10 is declared, and none was drawn: the record alone cannot tell."""

    class Silent(Noise):
        def rounded_laplace(self, scale: float, size: int) -> NDArray[np.int64]:
            return np.zeros(size, dtype=np.int64)

    config = clustered({**REBALANCED, "epsilon": 0.1})
    run, data = tmp_path / "run", config.data.path
    assert data is not None
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(grouping, "Noise", Silent)
        generate(config, run)
    statuses = []
    for found in (None, replay_run(run, data, steps=1, left_out=0, trials=0)):
        (check,) = (
            check
            for check in audit_run(run, replay=found).checks
            if check.id == "rebalancing.noise"
        )
        statuses.append(check.status)
    assert statuses == ["pass", "fail"]


def test_a_replay_wants_the_very_embedding_model(
    tmp_path: Path, clustered: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = clustered(REBALANCED)
    run, data = tmp_path / "run", config.data.path
    assert data is not None
    generate(config, run)

    class Other(Embedder):
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(*arguments, **settings)
            self.digest = "0" * 64

    monkeypatch.setattr(grouping, "Embedder", Other)
    with pytest.raises(InputError, match=r"clustering\.embedding.*the run used"):
        replay_run(run, data, trials=0)


def test_k_means_on_private_records_fails_its_audit(tmp_path: Path, clustered: MakeConfig) -> None:
    run = tmp_path / "run"
    manifest = RunReader(
        generate(clustered(K_MEANS, chosen_from={"batching": "private"}), run)
    ).manifest
    assert (manifest.clustering.origin, manifest.clustering.epsilon) == ("private", None)
    failed = {check.id for check in audit_run(run, evidence=1).checks if check.status == "fail"}
    assert {"partition.public-parameters", "claim.epsilon"} <= failed


def test_no_private_text_and_no_exact_count_is_written(
    tmp_path: Path, clustered: MakeConfig
) -> None:
    config = clustered({**REBALANCED, "epsilon": 0.01})
    reader = RunReader(generate(config, tmp_path / "run"))
    exact, _ = truth(config, reader)
    assert np.count_nonzero(np.array(reader.clusters().noisy_counts) == exact) <= 2
    places = [tmp_path / "run", tmp_path / "cache"]
    for file in (file for place in places for file in place.rglob("*") if file.is_file()):
        assert CANARY.encode() not in file.read_bytes()


def test_private_vectors_have_no_say_in_the_radius(tmp_path: Path, clustered: MakeConfig) -> None:
    config = clustered({**DPM, "normalize": False})
    stated = RunReader(generate(config, tmp_path / "run")).manifest.clustering
    embedder = Embedder(stated.embedding or "", normalize=False, device="cpu")
    public = embedder.embed([f"{WORDS[n % 5]} in public {n}" for n in range(30)])
    assert stated.settings["radius"] == pytest.approx(
        float(np.linalg.norm(public, axis=1).max()), rel=1e-6
    )


def test_a_run_goes_on_under_other_versions_of_the_accountant(
    tmp_path: Path, clustered: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scales of noise that come out with other last digits are no other settings."""
    run, config = tmp_path / "run", clustered(CHANG)
    generate(config, run)
    (run / "steps" / "00000000.zip").unlink()
    unfinish(run)
    original = ChangScales.epsilon
    monkeypatch.setattr(
        ChangScales, "epsilon", lambda self, *given: original(self, *given) * (1 - 1e-9)
    )
    generate(config, run)
    assert (run / "hashes").exists()


def test_a_projection_onto_more_dimensions_than_there_are_is_refused(
    tmp_path: Path, clustered: MakeConfig
) -> None:
    with pytest.raises(
        InputError, match=r"clustering\.dimension: this is 17, but embeddings have 16"
    ):
        generate(clustered({**CHANG, "dimension": 17}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_too_few_public_texts_are_refused(tmp_path: Path, clustered: MakeConfig) -> None:
    for clustering in ({**REBALANCED, "centers": 31}, {**PUBLIC_CENTERS, "centers": 31}):
        with pytest.raises(InputError, match="too few for 31 cluster centres") as caught:
            generate(clustered(clustering), tmp_path / "run")
        assert CANARY not in str(caught.value)
    assert not (tmp_path / "run").exists()
