"""Other packages' additions: found by entry points, named in results, and set apart if broken."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import dpaudit
from dpaudit import plugins
from dpaudit.accounting import CLUSTERINGS
from dpaudit.accounting.clusterings import FIELDS as CONFIG_FIELDS
from dpaudit.auditing import batches
from dpaudit.auditing.checks import registered
from dpaudit.auditing.checks.rebalancing import noised_centers_epsilon
from dpaudit.auditing.checks.registry import OWN_CHECKS
from dpaudit.auditing.disclosure import public_form
from dpaudit.auditing.run import audit_run
from dpaudit.commands.cli import main
from dpaudit.mechanisms import AGGREGATORS, DRAWS, Mean
from dpaudit.plugins import CHECKS, CLUSTERING, MECHANISMS, RECORDERS, PlugIn
from dpaudit.recording.generators import RecordingOptions, recording
from dpaudit.results import Finding
from dpaudit.results.catalogue import Entry, catalogue
from dpaudit.runs import Clustering, InputError
from tests.nesting import mechanism_with, read_run, write_run
from tests.plug_ins import PACKAGE, installed, plugged_in

RUN_CHECK = """
from dpaudit.auditing.checks.registry import Outcome, RunCheck, StepCheck

@RunCheck(id="{id}")
def check(facts):
    {body}
"""
STEP_CHECK = RUN_CHECK.replace("@RunCheck", "@StepCheck")
EVIDENCE = """
from dpaudit.auditing.checks.evidence import BatchEvidence, Evidence
from dpaudit.auditing.checks.registry import Outcome, RunCheck

class Steps(BatchEvidence):
    def __init__(self):
        self.steps = 0

    def step(self, view):
        self.steps += 1

    def result(self):
        return self.steps

class Counted(Evidence):
    @classmethod
    def begin(cls, run):
        return cls()

    @classmethod
    def open(cls, batch):
        return Steps()

    def merge(self, batch, found):
        self.by_batch[batch] = found

@RunCheck(id="{id}", gathers=(Counted,))
def check(run):
    counted = sum(run[Counted].by_batch.values())
    return Outcome("pass" if counted == run.steps > 0 else "fail", "held")
"""
WORDS = """
[check."{id}"]
title = "It holds"
fails = "It does not hold"
evidence = {evidence}
compares = "One thing against another."
why = "Because."
remedy = "Mend it."
reference = "docs/plugins.md"
[check."{id}".outcome]
held = {{ found = "it" }}
"""
AGGREGATOR = """
from dpaudit.mechanisms import Mean

class Other(Mean):
    name = "{name}"
    {body}
"""

Plug = Callable[..., None]


@pytest.fixture
def plug(tmp_path: Path) -> Iterator[Plug]:
    """Installs a package of one module and one entry point, until the test ends."""
    with ExitStack() as opened:

        def install(
            group: str, entry: str, code: str, words: str = "", package: str = "acme-other"
        ) -> None:
            site = tmp_path / package
            module = f"{package.replace('-', '_')}_code"
            site.mkdir()
            (site / f"{module}.py").write_text(code)
            if words:
                (site / f"{module}.toml").write_text(words)
            value = f"{module}:{'Other' if group == MECHANISMS else 'check'}"
            opened.enter_context(installed(site, package, {group: {entry: value}}))

        yield install


def plug_check(
    plug: Plug, check: str = "acme.it", body: str = 'return Outcome("pass", "held")', **other: Any
) -> None:
    code, words = other.pop("code", RUN_CHECK), other.pop("words", WORDS)
    plug(
        CHECKS,
        check,
        code.format(id=check, body=body),
        words.format(id=check, evidence=other.pop("evidence", 1)),
    )


# --- a package with an aggregator and a check -----------------------------------------------------


def test_a_check_takes_part_in_audits_and_stands_on_the_page(make_run: Any, tmp_path: Path) -> None:
    with plugged_in(tmp_path / "site", PACKAGE):
        found = dpaudit.audit(make_run().path)
        check = found.check("acme.temperature")
        assert (found.verdict, check.status, check.code) == ("pass", "pass", "moderate")
        assert found.result.run.plugins == {"acme-dpaudit": "0.1"}
        public = public_form(found.result)
        assert public.run.plugins == {"acme-dpaudit": "0.1"}
        assert {each.id: each.code for each in public.checks}["acme.temperature"] == "moderate"
        page = found.to_html()
        assert check.title == catalogue().check["acme.temperature"].title
        assert check.title in page
        assert "acme-dpaudit" in page
    assert audit_run(make_run().path).run.plugins == {}


def test_a_check_fails_a_run(make_run: Any, tmp_path: Path) -> None:
    run = make_run(temperature=3.0).path
    assert audit_run(run).verdict == "pass"
    with plugged_in(tmp_path / "site", PACKAGE):
        found = audit_run(run)
    assert [check.id for check in found.checks if check.status == "fail"] == ["acme.temperature"]
    assert found.verdict == "fail"


def test_checks_of_dpaudit_are_the_same_with_a_plug_in(make_run: Any, tmp_path: Path) -> None:
    run = make_run().path
    alone = audit_run(run).checks
    with plugged_in(tmp_path / "site", PACKAGE):
        beside = audit_run(run).checks
    assert [check for check in beside if check.id != "acme.temperature"] == list(alone)


def test_commands_know_a_plug_ins_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with plugged_in(tmp_path / "site", PACKAGE):
        main(["checks", "acme.temperature", "--json"])
    assert json.loads(capsys.readouterr().out)["id"] == "acme.temperature"


# --- a broken check -------------------------------------------------------------------------------


def raising_in(method: str) -> str:
    """The code of a check whose evidence raises an error in a method."""
    return re.sub(
        rf"(    def {method}\(.*\n)", r"\1        raise KeyError('a private text')\n", EVIDENCE
    )


BROKEN: dict[str, Mapping[str, Any]] = {
    "not-imported": {"code": "import nothing_of_the_kind"},
    "leaves": {"code": "raise SystemExit"},
    "no-function": {"code": "check = 3"},
    "other-id": {"code": RUN_CHECK.replace("{id}", "acme.other")},
    "no-words": {"words": ""},
    "no-toml": {"words": "["},
    "others-words": {"words": WORDS.replace("{id}", "claim.epsilon")},
    "no-level": {"evidence": 9},
    "own-id": {"check": "claim.epsilon"},
    "own-family": {"check": "claim.other"},
    "policys-family": {"check": "policy.other"},
    "raises": {"body": "raise KeyError('a private text')"},
    "no-outcome": {"body": "return None"},
    "no-such-code": {"body": 'return Outcome("pass", "unheard-of")'},
    "raises-at-steps": {
        "code": STEP_CHECK,
        "body": "raise KeyError('a private text')",
        "evidence": 4,
    },
    "exits": {"body": "raise SystemExit"},
    "exits-at-steps": {"code": STEP_CHECK, "body": "raise SystemExit"},
    "writes-where-others-read": {"code": STEP_CHECK, "body": "facts.aggregate[...] = 0.0"},
    "shows-without-an-outcome": {
        "code": STEP_CHECK.replace('"{id}"', '"{id}", shown=lambda view: False')
    },
    "gathers-a-number": {"code": RUN_CHECK.replace('"{id}"', '"{id}", gathers=(3,)')},
    "looks-up-what-is-not-gathered": {"code": EVIDENCE.replace(", gathers=(Counted,)", "")},
    **{
        f"raises-in-{name}": {"code": raising_in(name)}
        for name in ("begin", "open", "step", "result", "merge")
    },
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_a_run_does_not_pass_without_a_broken_check(
    make_run: Any, plug: Plug, broken: Mapping[str, Any]
) -> None:
    run = make_run().path
    alone = audit_run(run).checks
    plug_check(plug, **broken)
    found = audit_run(run)
    assert found.verdict == "not_verified"
    assert found.run.plugins == {"acme-other": "0.1"}
    (other,) = (
        check for check in found.checks if check.id not in OWN_CHECKS and check not in alone
    )
    assert (other.status, other.code, other.evidence, other.applicable) == (
        "skip",
        "unusable",
        0,
        True,
    )
    problem = other.values["problem"]
    assert isinstance(problem, Finding)
    assert str(problem.values["where"]).startswith("acme-other 0.1")
    assert "a private text" not in found.model_dump_json()
    assert [check for check in found.checks if check.id != other.id] == list(alone)


def test_a_check_that_holds_passes(make_run: Any, plug: Plug) -> None:
    plug_check(plug)
    assert audit_run(make_run().path).verdict == "pass"
    assert list(registered())[-1] == "acme.it"


def test_a_check_gathers_its_own_evidence(make_run: Any, plug: Plug) -> None:
    plug_check(plug, code=EVIDENCE)
    found = audit_run(make_run().path)
    assert {check.id: check.code for check in found.checks}["acme.it"] == "held"
    assert found.verdict == "pass"


def test_a_check_that_a_worker_cannot_load_is_not_made(
    make_run: Any, plug: Plug, monkeypatch: pytest.MonkeyPatch
) -> None:
    plug_check(plug, code=STEP_CHECK, body="return None")
    run = make_run().path
    assert audit_run(run).verdict == "pass"
    monkeypatch.setattr(batches, "loaded_here", frozenset)  # as in a process without the package
    found = audit_run(run)
    (other,) = (check for check in found.checks if check.id == "acme.it")
    assert (found.verdict, other.status, other.code) == ("not_verified", "skip", "unusable")


def test_a_broken_check_is_one_error_of_the_list(
    plug: Plug, capsys: pytest.CaptureFixture[str]
) -> None:
    plug_check(plug, **BROKEN["not-imported"])
    with pytest.raises(SystemExit) as left:
        main(["checks"])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert "acme-other 0.1" in said
    assert "Traceback" not in said


# --- mechanisms and recorders ---------------------------------------------------------------------

FIELDS: dict[str, Any] = {"aggregator": "other", "clip": 2.0, "temperature": 1.0, "divisor": 4.0}


def refused(fields: Mapping[str, Any] = FIELDS) -> InputError:
    """What keeps settings from being those of a mechanism, where that is a plug-in."""
    with pytest.raises(ValidationError) as raised:
        mechanism_with(fields)
    error = raised.value.errors()[0]["ctx"]["error"]
    assert isinstance(error, InputError)
    assert error.code == "plug-in.unusable"
    return error


def test_an_aggregator_is_that_of_its_name(plug: Plug) -> None:
    plug(MECHANISMS, "other", AGGREGATOR.format(name="other", body=""))
    mechanism = mechanism_with(FIELDS)
    assert mechanism.aggregator.name == "other"
    assert [each.package for each in mechanism.plug_ins] == ["acme-other"]
    assert "other" in AGGREGATORS
    assert "other" not in DRAWS


@pytest.mark.parametrize(
    "code",
    [
        "import nothing_of_the_kind",
        "Other = 3",
        AGGREGATOR.format(name="another", body=""),
        AGGREGATOR.format(
            name="other", body='not_applicable = {"integrity.hashes": "mechanisms.no-noise"}'
        ),
        AGGREGATOR.format(name="other", body="").replace("Mean", "Aggregator"),
        AGGREGATOR.format(name="other", body="field: object.__new__ = None"),
    ],
    ids=[
        "not-imported",
        "no-class",
        "other-name",
        "switches-off-a-check",
        "abstract",
        "no-type-of-a-field",
    ],
)
def test_a_broken_aggregator_is_an_error_where_it_is_asked_for(
    plug: Plug, make_run: Any, code: str
) -> None:
    run = make_run(aggregator="mean", contexts=True).path
    plug(MECHANISMS, "other", code)
    assert refused().where.startswith("acme-other 0.1")
    assert "other" not in list(AGGREGATORS)
    assert audit_run(run).verdict == "pass"
    manifest = read_run(run)
    manifest["mechanism"]["aggregator"]["kind"] = "other"
    write_run(run, manifest)
    found = audit_run(run)
    assert found.verdict == "error"
    assert "acme-other" in found.model_dump_json()


def test_dpaudits_own_name_means_its_own(plug: Plug, make_run: Any) -> None:
    plug(MECHANISMS, "mean", AGGREGATOR.format(name="mean", body=""))
    assert AGGREGATORS["mean"] is Mean
    assert audit_run(make_run(aggregator="mean", contexts=True).path).verdict == "pass"
    plug(MECHANISMS, "sparse-vector", "Other = 3", package="acme-third")
    assert DRAWS["sparse-vector"].__module__ == "dpaudit.contrib.amin.sparse_vector"


def test_a_name_of_two_packages_is_nobodys(plug: Plug) -> None:
    for package in ("acme-first", "acme-second"):
        plug(MECHANISMS, "other", AGGREGATOR.format(name="other", body=""), package=package)
    assert "acme-second" in refused().problem


def test_a_name_that_no_package_has_is_no_plug_ins_fault() -> None:
    with pytest.raises(ValidationError) as raised:
        mechanism_with(FIELDS)
    assert raised.value.errors()[0]["type"] == "clash"


def test_whoever_reads_a_pass_is_told_whose_bounds_it_rests_on(plug: Plug, make_run: Any) -> None:
    run = make_run(aggregator="mean", contexts=True)
    alone = audit_run(run.path)
    plug(MECHANISMS, "other", AGGREGATOR.format(name="other", body=""))
    run.edit_manifest({"mechanism.aggregator": "other"})
    run.rehash()
    found = audit_run(run.path)
    assert found.verdict == alone.verdict == "pass"
    for result in (found, public_form(found)):
        (told,) = (each for each in result.caveats if each.code == "caveat.others-parts")
        assert told.values == {"packages": ("acme-other 0.1",)}
    assert "caveat.others-parts" not in {each.code for each in alone.caveats}


def test_additions_that_a_mechanism_does_not_tell_are_not_compared(
    plug: Plug, make_run: Any
) -> None:
    run = make_run(aggregator="mean", contexts=True)
    body = (
        "not_applicable = {key: why for key, why in Mean.not_applicable.items() if key != "
        "'neighbors.addition'}"
    )
    plug(MECHANISMS, "other", AGGREGATOR.format(name="other", body=body))
    run.edit_manifest({"mechanism.aggregator": "other"})
    run.rehash()
    (found,) = (check for check in audit_run(run.path).checks if check.id == "neighbors.addition")
    assert (found.status, found.code) == ("skip", "no-addition")


def test_a_mechanism_whose_words_are_missing_is_named(plug: Plug, make_run: Any) -> None:
    problem = "def range_problem(self, *_):\n        from dpaudit.mechanisms import Problem\n"
    problem += "        return Problem('acme.no')"
    run = make_run(aggregator="mean", contexts=True).path
    manifest = read_run(run)
    manifest["mechanism"]["aggregator"]["kind"] = "other"
    write_run(run, manifest)
    plug(MECHANISMS, "other", AGGREGATOR.format(name="other", body=problem))
    with pytest.raises(InputError) as raised:
        audit_run(run)
    assert raised.value.where.startswith("acme-other 0.1")


@pytest.mark.parametrize(
    ("method", "body"),
    [
        *(
            (method, "raise KeyError('a private text')")
            for method in ("range_problem", "sensitivity", "eta", "box")
        ),
        *(
            (method, "raise SystemExit")
            for method in ("range_problem", "sensitivity", "eta", "box")
        ),
        ("range_problem", "return 'no problem'"),
        ("eta", "return 'no number'"),
        ("aggregate", "return 'no vector'"),
    ],
)
def test_a_mechanism_that_fails_is_named(plug: Plug, make_run: Any, method: str, body: str) -> None:
    run = make_run(aggregator="mean", contexts=True)
    plug(
        MECHANISMS,
        "other",
        AGGREGATOR.format(name="other", body=f"def {method}(self, *_):\n        {body}"),
    )
    manifest = read_run(run)
    manifest["mechanism"]["aggregator"]["kind"] = "other"
    write_run(run, manifest)
    found = audit_run(run.path)
    assert found.verdict == "error"
    (failed,) = (check for check in found.checks if check.id == "integrity.format")
    assert failed.status == "fail"
    assert "acme-other 0.1" in failed.model_dump_json()
    assert "a private text" not in found.model_dump_json()


def test_an_unknown_recorder_is_one_error(tmp_path: Path) -> None:
    with (
        pytest.raises(InputError) as raised,
        recording("invinc", RecordingOptions(tmp_path / "run")),
    ):
        pass
    assert raised.value.code == "recorders.unknown"


def test_plug_ins_are_not_looked_for_in_the_folder_that_one_stands_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "acme-0.1.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Name: acme\nVersion: 0.1\n")
    (told / "entry_points.txt").write_text("[dpaudit.auditing.checks]\nacme.it = acme:check\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    assert {each.package for each in plugins._installed.__wrapped__()} == {"dpaudit"}


def test_entries_of_dpaudits_own_plug_ins_are_whole() -> None:
    for each in (*plugins.plug_ins(CHECKS), *plugins.plug_ins(MECHANISMS)):
        assert isinstance(each, PlugIn)
        each.words()
    assert all(isinstance(catalogue().check[check], Entry) for check in registered())


def test_recorders_wrap_what_is_asked() -> None:
    for each in plugins.plug_ins(RECORDERS):
        assert len(inspect.signature(each.load()).parameters) == 1


# --- clusterings ----------------------------------------------------------------------------------

CENTERS = """
from dpaudit.accounting.clusterings import Centers

class check(Centers):
    name, origin, needs = "cells", "{origin}", {needs}

    @classmethod
    def epsilon(cls, settings, delta, relation):
        return 2 / settings["scale"]

    @classmethod
    def fitting(cls, asked):
        raise ValueError("there are none")
"""


def clustered(method: str, **fields: Any) -> Clustering:
    """A clustering of noised centres as run.json declares it."""
    declared = {
        "method": method,
        "origin": "noised",
        "embedding": "words",
        "normalize": True,
        "centers": 2,
        "keep": 2,
    }
    return Clustering.model_validate(
        {**declared, "delta": 0.0, "settings": {"scale": 4.0}, **fields}
    )


def test_a_clustering_costs_what_its_plug_in_says(plug: Plug) -> None:
    plug(CLUSTERING, "cells", CENTERS.format(origin="noised", needs='("centers", "epsilon")'))
    assert noised_centers_epsilon(clustered("cells"), "add_remove") == 0.5
    with pytest.raises(ValueError, match="KeyError"):
        noised_centers_epsilon(clustered("cells", settings={}), "add_remove")
    with pytest.raises(ValueError, match="-1"):
        noised_centers_epsilon(clustered("cells", settings={"scale": -2.0}), "add_remove")


@pytest.mark.parametrize(
    ("origin", "needs"), [("private", "()"), ("noised", '("keep",)')], ids=["private", "keeps"]
)
def test_a_clustering_that_pays_for_nothing_is_refused(plug: Plug, origin: str, needs: str) -> None:
    plug(CLUSTERING, "cells", CENTERS.format(origin=origin, needs=needs))
    with pytest.raises(InputError):
        CLUSTERINGS["cells"]
    assert "cells" not in list(CLUSTERINGS)


@pytest.mark.parametrize("name", CLUSTERINGS)
def test_clusterings_take_fields_of_configs_and_are_bounded_by_their_settings_alone(
    name: str,
) -> None:
    kind = CLUSTERINGS[name]
    assert kind.name == name
    assert {*kind.needs} <= {*CONFIG_FIELDS, "keep"}
    for delta in (0.0, 1e-6):
        with pytest.raises(ValueError):
            kind.epsilon({}, delta, "add_remove")


def test_a_run_of_a_clustering_that_is_none_is_an_error(plug: Plug, make_run: Any) -> None:
    run = make_run(clusters="public-centers-rebalanced", sizes=(3, 4, 5, 2), aggregator="mean").path
    manifest = read_run(run)
    manifest["clustering"]["method"] = "cells"
    write_run(run, manifest)
    plug(CLUSTERING, "cells", "class check:\n    name = 'cells'\n")
    assert audit_run(run).verdict == "error"
    with pytest.raises(InputError):
        CLUSTERINGS["cells"]


def test_a_clustering_that_nobody_has_is_none() -> None:
    with pytest.raises(ValidationError):
        clustered("cells")


def test_configs_name_what_is_one_thing_alone(plug: Plug, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from dpaudit.generation.config import load_config

    config = Path(__file__).parents[1] / "examples" / "bbc-median.yaml"
    load_config(config)
    plug(MECHANISMS, "median", AGGREGATOR.format(name="median", body=""))
    with pytest.raises(InputError) as raised:
        load_config(config)
    assert raised.value.where.startswith("acme-other 0.1")


def test_the_page_shows_the_package() -> None:
    page = (PACKAGE.parents[1] / "docs" / "plugins.md").read_text()
    files = [*(PACKAGE / "acme_dpaudit").iterdir(), PACKAGE / "pyproject.toml"]
    texts = [file.read_text() for file in files if file.is_file()]
    shown = re.findall(r"^```(?:python|text)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(shown) == 3
    for block in shown:
        assert any(block in text for text in texts)
