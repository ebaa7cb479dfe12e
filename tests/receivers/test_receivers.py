"""Other programs' own validators accept the outputs; a schema says only half of their demands."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpaudit.auditing.comparison import compare_runs
from dpaudit.auditing.disclosure import public_form
from dpaudit.auditing.run import audit_run
from dpaudit.releasing.attestation import Beside, predicates
from dpaudit.reports.card import Released, render_card
from dpaudit.reports.deployment import render_deployment
from dpaudit.reports.machine import render_junit, render_sarif
from dpaudit.results import AuditResult
from dpaudit.results.hub import languages, licences
from dpaudit.results.publication import About
from dpaudit.results.schemas import SCHEMAS, schema_text
from tests.needs import needed, npm_part
from tests.reports.conftest import budgets_run, hostile_run, mean_run, median_run
from tests.settings import MARK

Run = Any
ROOT = Path(__file__).parents[2]
ABOUT = About(
    name="Tickets of a support desk: 2026",
    curators=("An example house, Ltd.", "Häuser & Co"),
    description="Made-up tickets.\nSecond paragraph: with [markup](x) and <b>tags</b>.",
    intended_use="Training: classifiers.",
    license="cc-by-4.0",
    languages=("en", "gsw"),
)


CLUSTERED = {"clusters": "chang", "sizes": (3, 4, 5, 4)}


def results(make_run: Callable[..., Run]) -> Iterator[AuditResult]:
    """Yield each outcome that formats tell apart.

    They are pass, fail, warnings, skips, hostile texts and withheld figures.
    """
    failed = make_run()
    failed.edit_manifest({"claim.epsilon": failed.exact * 0.99})
    failed.rehash()
    torn = make_run()
    torn.steps_file(0).write_bytes(b"PK")
    for run in (make_run(aggregator="mean"), failed, torn):
        yield (result := run.audit())
        if result.verdict != "error":
            yield public_form(result)
    yield from (budgets_run(), mean_run(), median_run(7), hostile_run())
    yield audit_run(failed.path, evidence=4)


# --- Ajv, in strict mode --------------------------------------------------------------------------

AJV = """
const Ajv = require(process.argv[1] + "/dist/2020").default;
const told = [];
for (const [name, schema, documents] of JSON.parse(require("fs").readFileSync(0))) {
  try {
    const validate = new Ajv({ strict: true, allErrors: true }).compile(schema);
    for (const each of documents) if (!validate(each)) \
told.push(name + ": " + JSON.stringify(validate.errors[0]));
  } catch (error) { told.push(name + ": " + error.message); }
}
console.log(JSON.stringify(told));
"""


def ajv(asked: Iterable[tuple[str, Any, list[Any]]]) -> list[str]:
    node, part = shutil.which("node"), npm_part("ajv")
    needed(
        node is not None and part.exists(),
        "no Ajv here: `make setup` gets it where npm is installed",
    )
    command = [str(node), "-e", AJV, str(part)]
    done = subprocess.run(
        command, input=json.dumps(list(asked)), capture_output=True, text=True, check=True
    )
    return list(json.loads(done.stdout))


def test_a_strict_ajv_takes_every_schema_and_what_is_written_by_it(
    make_run: Callable[..., Run],
) -> None:
    manifests = [make_run(**kind) for kind in ({}, {"aggregator": "mean", "top_k": 5}, CLUSTERED)]
    audited = [result for result in results(make_run) if result.audience == "internal"]
    public = public_form(make_run(aggregator="mean").audit())
    said = predicates(public, "approximate", Beside("ab" * 32), datetime(2026, 11, 26, tzinfo=UTC))
    both = said.about({"README.md": "cd" * 32})
    documents: dict[str, list[Any]] = {name: [] for name in SCHEMAS}
    documents["run"] = [
        json.loads((run / "run.json").read_text(encoding="utf-8")) for run in manifests
    ]
    documents["report"] = [json.loads(each.to_json()) for each in (*audited, public)]
    documents["comparison"] = [
        json.loads(compare_runs({"a": audited[0], "b": audited[1]}).to_json())
    ]
    documents["attestation"] = [statement.document() for statement in both]
    documents["policy"] = [
        {"policy_version": 1, "epsilon": 3, "delta": 1e-5, "kinds": ["approximate"]}
    ]
    assert ajv((name, json.loads(schema_text(name)), documents[name]) for name in SCHEMAS) == []
    # What OpenAPI has beside JSON Schema, a required field without a property, a document that is
    # none.
    (discriminator, required, wrong) = ajv(
        [
            ("a", {"anyOf": [{"type": "object"}], "discriminator": {"propertyName": "x"}}, []),
            ("b", {"type": "object", "required": ["x"]}, []),
            ("c", json.loads(schema_text("policy")), [{"policy_version": 2}]),
        ]
    )
    assert "discriminator" in discriminator and "required" in required and "policy_version" in wrong


# --- Jenkins' xUnit plugin ------------------------------------------------------------------------


def test_the_schema_of_jenkins_takes_junit(make_run: Callable[..., Run]) -> None:
    xmlschema = pytest.importorskip("xmlschema")
    schema = xmlschema.XMLSchema(Path(__file__).parent / "jenkins" / "junit-10.xsd")
    for result in results(make_run):
        written = render_junit(result)
        assert [error.reason for error in schema.iter_errors(written)] == []
        assert list(
            schema.iter_errors(written.replace("<testsuites ", '<testsuites skipped="1" ', 1))
        )


# --- GitHub's code scanning -----------------------------------------------------------------------

#: The project has no address that rules could lead to.
NO_ADDRESS = {"SARIF2005"}


def sarif_problems(logs: Sequence[str], folder: Path) -> list[tuple[str, str]]:
    """Errors and warnings by Microsoft's validator, with GitHub's rules: each with its subject."""
    part = npm_part("@microsoft/sarif-multitool-linux")
    needed(part.exists(), "no SARIF validator here: `make setup` gets it where npm is installed")
    program = part / "Sarif.Multitool"
    program.chmod(0o755)  # its install script would
    paths = [folder / f"{number}.sarif" for number, _ in enumerate(logs)]
    for path, log in zip(paths, logs, strict=True):
        path.write_text(log, encoding="utf-8")
    found = folder / "found.sarif"
    command = [program, "validate", *paths, "--rule-kind", "Sarif;Gh", "--output", found]
    settings = {
        **os.environ,
        "DOTNET_SYSTEM_GLOBALIZATION_INVARIANT": "1",
        "DOTNET_CLI_TELEMETRY_OPTOUT": "1",
    }
    done = subprocess.run(command, env=settings, capture_output=True, text=True, check=False)
    assert f"{len(paths)} files scanned" in done.stdout, done.stdout
    (run,) = json.loads(found.read_text(encoding="utf-8-sig"))["runs"]
    told = [
        (each["ruleId"], each["message"]["arguments"][0])
        for each in run["results"]
        if each.get("level") != "note"
    ]
    return [(rule, what) for rule, what in told if rule not in NO_ADDRESS]


def test_githubs_rules_take_sarif(make_run: Callable[..., Run], tmp_path: Path) -> None:
    logs = [render_sarif(result) for result in results(make_run)]
    assert any(".zip" in log for log in logs), "also a finding in a file without lines"
    wrong = json.loads(logs[0])
    del wrong["runs"][0]["tool"]["driver"]["rules"][7]["fullDescription"]  # that it would be told
    told = sarif_problems([*logs, json.dumps(wrong)], tmp_path)
    assert told == [("GH2012", "runs[0].tool.driver.rules[7]")]


def test_rules_and_findings_have_what_github_asks_for(make_run: Callable[..., Run]) -> None:
    """By its page on SARIF support: what its validator does not look at, too."""
    for result in results(make_run):
        long = result.model_copy(
            update={
                "checks": tuple(c.model_copy(update={"why": "x" * 5000}) for c in result.checks)
            }
        )
        (run,) = json.loads(render_sarif(long))["runs"]
        for rule in run["tool"]["driver"]["rules"]:
            for part in ("shortDescription", "fullDescription"):
                assert 0 < len(rule[part]["text"]) <= 1024
            assert rule["help"]["text"]
        for found in run["results"]:
            assert found["message"]["text"] and len(found["locations"]) == 1
            region = found["locations"][0]["physicalLocation"]["region"]
            assert {"startLine", "startColumn", "endLine", "endColumn"} <= region.keys()
            assert found["partialFingerprints"]["primaryLocationLineHash"]
        prints = {
            found["partialFingerprints"]["primaryLocationLineHash"] for found in run["results"]
        }
        assert len(prints) == len({found["ruleId"] for found in run["results"]})


# --- the Hugging Face hub -------------------------------------------------------------------------


def test_the_hub_reads_the_card_and_knows_its_identifiers(make_run: Callable[..., Run]) -> None:
    hub = pytest.importorskip("huggingface_hub")
    result = public_form(make_run(aggregator="mean").audit())
    card = hub.DatasetCard(
        render_card(Released(result, "approximate", ABOUT, {"train": 3}, True, None, MARK))
    )
    fields = card.data.to_dict()
    assert fields["license"] == "cc-by-4.0" and fields["language"] == ["en", "gsw"]
    assert fields["pretty_name"] == ABOUT.name and fields["configs"][0]["config_name"] == "default"
    assert fields["license"] in licences() and set(fields["language"]) <= languages()


def test_languages_are_those_of_the_hubs_own_package() -> None:
    node, part = shutil.which("node"), npm_part("@huggingface/languages")
    needed(
        node is not None and part.exists(),
        "no list of languages here: `make setup` gets it where npm is installed",
    )
    listed = (
        "const all = require(process.argv[1]); "
        "console.log(Object.values(all).flatMap(Object.keys).join(' '))"
    )
    done = subprocess.run(
        [str(node), "-e", listed, str(part)], capture_output=True, text=True, check=True
    )
    assert languages() == {*done.stdout.split(), "code", "multilingual"}


# --- OpenDP's registry of deployments -------------------------------------------------------------


def leaves(values: Any, path: str = "") -> Iterator[str]:
    if isinstance(values, dict):
        for name, value in values.items():
            yield from leaves(value, f"{path}/{name}")
    else:
        yield path


def places(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    yield path
    for name, field in schema.get("properties", {}).items():
        yield from places(field, f"{path}/{name}")


def test_an_entry_keeps_the_registrys_rules(make_run: Callable[..., Run]) -> None:
    """The rules beyond the schema (tests/releasing/opendp): order, quoting, a working address."""
    schema = yaml.safe_load(
        (ROOT / "tests/releasing/opendp/deployments-schema.yaml").read_text(encoding="utf-8")
    )
    order = list(places(schema))
    for kind in ({"aggregator": "mean"}, {}, {"aggregator": "mean", "budget": 1.0}):
        result = make_run(**kind).audit()
        for about in (About(), ABOUT):
            text = render_deployment(public_form(result), result.claim, about, date(2026, 11, 26))
            entry = yaml.safe_load(text)
            where = [order.index(leaf) for leaf in leaves(entry) if leaf in order]
            assert where == sorted(where) and len(where) > 15
            styles = {
                token.style for token in yaml.scan(text) if isinstance(token, yaml.ScalarToken)
            }
            assert styles <= {None, "'", '"', "|"}
            basic = entry["deployment"]["basic"]
            curators = [each["data_curator_name"] for each in basic["data_curators"]]
            parts = (basic["name"], "-".join(curators), basic["publication_date"][:4])
            address = re.sub(
                "_", "-", "_".join(re.sub(r"\W+", "_", part.lower()) for part in parts)
            )
            assert text.startswith(f"url_slug: {address}\n")
            assert not re.search(r"\\\\[^()]", json.dumps(entry).replace("\\\\", "\\"))
