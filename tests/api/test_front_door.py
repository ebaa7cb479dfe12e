"""`import dpaudit`: what it gives, how little it loads, and what its results look like."""

from __future__ import annotations

import importlib
import json
import pkgutil
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

import dpaudit

#: No module of the front door may load these before it needs them.
HEAVY = (
    "torch",
    "transformers",
    "pandas",
    "datasets",
    "matplotlib",
    "dp_accounting",
    "scipy",
    "pydantic",
)


def loaded(program: str) -> set[str]:
    code = (
        f"{program}\nimport json, sys\nprint(json.dumps(sorted({{name.partition('.')[0] for "
        f"name in sys.modules}})))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_loads_nothing_heavy():
    assert not loaded("import dpaudit") & {*HEAVY, "numpy"}


def test_auditing_loads_no_torch(make_run):
    program = f"import dpaudit; dpaudit.audit({str(make_run().path)!r}).epsilon"
    assert not loaded(program) & {"torch", "transformers", "datasets", "pandas"}


def test_public_names_stay_once_all_submodules_are_imported():
    for module in pkgutil.walk_packages(dpaudit.__path__, "dpaudit."):
        if module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as missing:  # an extra that is not installed here
            assert not str(missing.name).startswith("dpaudit")
    for name in dpaudit.__all__:
        assert name in dir(dpaudit)
        assert name == "__version__" or callable(getattr(dpaudit, name)), name


def test_unknown_names_are_no_attributes():
    with pytest.raises(AttributeError):
        dpaudit.nothing_of_the_kind  # noqa: B018


@pytest.fixture
def found(make_run):
    return dpaudit.audit(make_run().path)


def test_figures_are_the_results(found):
    assert found.verdict == found.result.verdict == "pass"
    assert found.epsilon == found.result.guarantees.ex_post.epsilon
    assert found.batch_epsilon == found.result.guarantees.ex_post.batch_epsilon
    assert found.claim == found.result.claim
    assert found.check("claim.epsilon") in found.checks
    found.raise_for_failure()


def test_a_mean_runs_figures_are_the_approximate_ones(make_run):
    found = dpaudit.audit(make_run(aggregator="mean", contexts=True).path)
    assert found.epsilon == found.result.guarantees.approximate.epsilon


def test_repr_has_six_lines(found, make_run):
    mean = dpaudit.audit(make_run(aggregator="mean", contexts=True).path)
    for shown in (found, mean):
        lines = repr(shown).splitlines()
        assert len(lines) == 6
        assert max(map(len, lines[1:])) < 200
    advantage = mean.result.guarantees.approximate.attack.advantage
    assert f"{advantage:.2f}"[:-1] in repr(mean)
    assert found.attack is None and found.result.guarantees.no_attack.code == "risk.no-attack-bound"


def test_unknown_checks_are_input_errors(found):
    with pytest.raises(dpaudit.InputError) as raised:
        found.check("claim.epsilom")
    assert "claim.epsilon" in raised.value.remedy


def test_a_smaller_epsilon_fails(make_run):
    found = dpaudit.audit(make_run().path, epsilon=0.0)
    assert found.verdict == "fail"
    assert found.check("claim.epsilon").status == "fail"
    with pytest.raises(dpaudit.AuditError) as raised:
        found.raise_for_failure()
    assert raised.value.audits == (found,)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("epsilon", -1.0),
        ("epsilon", float("nan")),
        ("delta", 2.0),
        ("relation", "remove"),
        ("unit", "house"),
        ("evidence", 5),
        ("commitment", "beef"),
    ],
)
def test_unusable_arguments_are_named(make_run, argument, value):
    with pytest.raises(dpaudit.InputError) as raised:
        dpaudit.audit(make_run().path, **{argument: value})
    assert raised.value.file == argument


def test_input_errors_name_file_and_field():
    error = dpaudit.InputError("config.yaml: data.path", "nothing is there.", "Give a path.")
    assert (error.file, error.field, error.remedy) == ("config.yaml", "data.path", "Give a path.")
    assert dpaudit.InputError("records.csv", "it is empty.", "").field == ""


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found, self.data = set(), ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.add(tag)

    def handle_data(self, data):
        self.data += data


def test_a_hostile_name_is_escaped(make_run, tmp_path):
    run = tmp_path / "<script>alert(1)<" / "script>\x1b[2J"
    run.parent.mkdir()
    make_run().path.rename(run)
    shown = Tags(dpaudit.audit(run)._repr_html_())
    assert shown.found == {"div", "b", "table", "tr", "th", "td"}
    assert "<script>" in shown.data
    assert "\x1b" not in repr(dpaudit.audit(run)) + shown.data


def test_save_writes_the_reports(found, tmp_path, empty_figures):
    files = found.save(tmp_path / "report")
    assert {name: file.name for name, file in files.items()} == {
        "html": "report.html",
        "json": "report.json",
        "markdown": "report.md",
        "junit": "junit.xml",
    }
    assert files["json"].read_text(encoding="utf-8") == found.to_json()
    assert files["html"].read_text(encoding="utf-8") == found.to_html()
    assert found.save()["html"].parent == found.run / "report"


def test_the_record_is_not_written_into(found):
    with pytest.raises(dpaudit.InputError):
        found.save(found.run / "steps")


def test_the_public_form_has_no_private_parts(found):
    assert found.public().result.audience == "public"
    assert found.public().result.samples == ()


def test_checks_as_a_dataframe(found):
    pytest.importorskip("pandas")
    frame = found.to_dataframe()
    assert list(frame["id"]) == [check.id for check in found.checks]
    assert list(frame["status"]) == [check.status for check in found.checks]


def test_a_run_that_is_not_there_is_an_error(tmp_path):
    found = dpaudit.audit(tmp_path / "nowhere")
    assert (found.verdict, found.claim, found.epsilon) == ("error", None, None)
    with pytest.raises(dpaudit.AuditError):
        found.raise_for_failure()
    with pytest.raises(dpaudit.InputError):
        dpaudit.open_run(tmp_path / "nowhere")


# --- several runs ---------------------------------------------------------------------------------


def test_compare(make_run, tmp_path):
    pytest.importorskip("pandas")
    one, two = make_run(), make_run(aggregator="mean", contexts=True)
    found = dpaudit.compare(one.path, dpaudit.audit(two.path))
    assert list(found.audits) == [str(one.path), str(two.path)]
    frame = found.to_dataframe()
    assert list(frame["epsilon"]) == [audit.epsilon for audit in found.audits.values()]
    mean = found.audits[str(two.path)]
    for name, curve in (("advantage", mean.attack), ("batch_advantage", mean.batch_attack)):
        assert curve is not None and frame[name][1] == curve.advantage and frame[name].isna()[0]
    assert len(repr(found).splitlines()) == 3
    page = found.save(tmp_path / "comparison.html")
    assert page.read_text(encoding="utf-8") == found.to_html()
    with pytest.raises(dpaudit.InputError):
        found.save(one.path / "run.json")


@pytest.mark.parametrize("count", [0, 1])
def test_compare_needs_two_runs(make_run, count):
    with pytest.raises(dpaudit.InputError):
        dpaudit.compare(*[make_run().path][:count])


def test_no_run_is_named_twice(make_run):
    run = make_run().path
    with pytest.raises(dpaudit.InputError):
        dpaudit.compare(run, run)


def test_compose(make_run):
    runs = [
        make_run(aggregator="mean", contexts=True, key=key * 16).path for key in ("5eed", "beef")
    ]
    found = dpaudit.compose(*runs)
    apart = [dpaudit.audit(run).epsilon for run in runs]
    assert max(apart) <= found.result.approximate.figure.epsilon <= sum(apart) + 1e-9
    assert len(repr(found).splitlines()) == 4


def test_a_failing_run_is_not_composed(make_run):
    good, bad = make_run().path, make_run(key="beef" * 16).path
    (bad / "samples.jsonl").write_text("", encoding="utf-8")
    with pytest.raises(dpaudit.AuditError):
        dpaudit.compose(good, bad)


# --- one run, opened ------------------------------------------------------------------------------


def test_steps_give_arrays(make_run):
    made = make_run(aggregator="mean", contexts=True)
    run = dpaudit.open_run(made.path)
    assert len(run.batches) == run.manifest.batches
    batch = run.batches[1]
    assert batch.tokens.dtype == np.int32
    assert len(batch.steps) == len(batch.tokens) == len(batch.log_probabilities)
    for step, token, log_probability in zip(
        batch.steps, batch.tokens, batch.log_probabilities, strict=True
    ):
        assert step.token == token
        assert step.probabilities.sum() == pytest.approx(1)
        assert np.log(step.probabilities[token]) == pytest.approx(log_probability, abs=1e-5)
        assert step.contributions.shape == (batch.contexts, len(step.aggregate))
        lower, upper = step.bounds
        assert (lower <= step.aggregate).all()
        assert (step.aggregate <= upper).all()
    assert batch.costs == tuple(step.cost for step in batch.steps)
    assert batch.steps[1].cost == batch.costs[1]
    for missing in (len(batch.steps), -1):
        with pytest.raises(dpaudit.InputError):
            batch.steps[missing]
    with pytest.raises(dpaudit.InputError):
        run.batches[len(run.batches)]


def test_texts_are_the_samples(make_run):
    run = dpaudit.open_run(make_run().path)
    assert len(run.texts) == sum(len(batch.texts) for batch in run.batches)
    assert run.texts[0] == run.batches[0].texts[0]
    assert run.commitment == run.manifest.commitment
    assert len(run.head) == 64
    assert len(repr(run).splitlines()) == len(repr(run.texts).splitlines()) == 1


def test_texts_as_a_dataframe_and_a_dataset(make_run):
    texts = dpaudit.open_run(make_run().path).texts
    pytest.importorskip("pandas")
    frame = texts.to_dataframe()
    assert list(frame["text"]) == [text.text for text in texts]
    pytest.importorskip("datasets")
    dataset = texts.to_dataset()
    assert dataset["text"] == list(frame["text"])


# --- a release ------------------------------------------------------------------------------------


def test_release(make_run, tmp_path):
    pytest.importorskip("pyarrow")
    run = make_run()
    found = dpaudit.release(run.path, tmp_path / "texts", unsigned=True)
    assert found.audit.verdict == "pass"
    assert found.result.signer is None
    assert dpaudit.verify_release(tmp_path / "texts").verdict == "pass"
    with pytest.raises(dpaudit.InputError):
        dpaudit.release(run.path, tmp_path / "texts", unsigned=True)


def test_a_failing_run_is_not_released(make_run, tmp_path):
    pytest.importorskip("pyarrow")
    with pytest.raises(dpaudit.AuditError):
        dpaudit.release(make_run().path, tmp_path / "texts", unsigned=True, epsilon=0.0)
    assert not (tmp_path / "texts").exists()


@pytest.mark.parametrize("signing", [{}, {"key": "key", "unsigned": True}])
def test_a_release_says_whether_it_is_signed(make_run, tmp_path, signing):
    with pytest.raises(dpaudit.InputError):
        dpaudit.release(make_run().path, tmp_path / "texts", **signing)


PLANNED = {"clip": 2.0, "temperature": 1.0, "records": 1230, "batch_size": 32, "delta": 1e-5}


def test_budgets_have_the_levels_that_are_known():
    both = dpaudit.plan_budget(**PLANNED, tokens=64, rounds=1)
    assert 0 < both.epsilon < both.batch_epsilon == both.result.batch_epsilon
    alone = dpaudit.plan_budget(**PLANNED, tokens=64)
    # by Renyi accounting
    assert alone.epsilon is None and alone.batch_epsilon >= both.batch_epsilon
    assert json.loads(both.to_json())["texts"] == both.result.texts == 38
    assert (len(repr(both).splitlines()), len(repr(alone).splitlines())) == (7, 6)


@pytest.mark.usefixtures("coarse")
def test_budgets_are_found_by_what_attacks_can_gain():
    found = dpaudit.plan_budget(**PLANNED, advantage=0.2).result
    assert found.tokens == 64 and found.batch_attack.advantage <= 0.2
    assert dpaudit.plan_budget(**PLANNED, tokens=65).result.batch_attack.advantage > 0.2
    rates = {"at": 0.01, "most": 0.02}
    rounds = dpaudit.plan_budget(**PLANNED, tokens=64, true_positives=rates, labels=1).result
    assert rounds.rounds > 0 and rounds.attack.tpr_at_1pct <= 0.02
    assert rounds.attack.tpr_at_1pct < rounds.batch_attack.tpr_at_1pct
    more = dpaudit.plan_budget(**PLANNED, tokens=64, rounds=rounds.rounds + 1).result
    assert more.attack.tpr_at_1pct > 0.02


@pytest.mark.usefixtures("coarse")
def test_the_smallest_batches_for_readers_are_found_by_a_scan():
    """One record more a batch may leave a batch fewer, and cost readers more."""
    asked = {"clip": 2.0, "temperature": 1.0, "records": 100, "tokens": 4, "delta": 1e-5}

    def advantage(size, **others):
        found = dpaudit.plan_budget(**asked, rounds=1, batch_size=size, **others)
        return found.result.attack.advantage

    costs = {size: advantage(size) for size in range(15, 23)}
    assert costs[16] < costs[17] and costs[20] < costs[21]
    for size in (16, 20):
        found = dpaudit.plan_budget(**asked, rounds=1, advantage=costs[size]).result
        assert found.batch_size == min(each for each in costs if costs[each] <= costs[size])
        assert found.attack.advantage <= costs[size]
    # With as many batches, whatever their size, larger ones cost less.
    found = dpaudit.plan_budget(**asked, rounds=1, batches=5, advantage=0.04).result
    most = [advantage(found.batch_size - fewer, batches=5) for fewer in (0, 1)]
    assert most[0] == found.attack.advantage <= 0.04 < most[1]


@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        ({"clip": -1.0}, "clip"),
        ({"relation": "remove"}, "relation"),
        ({"tokens": 1.5}, "tokens"),
        ({}, "epsilon"),
        ({"advantage": 1.0}, "advantage"),
        ({"advantage": 0.1, "epsilon": 1.0}, "advantage"),
        ({"advantage": 0.1, "true_positives": {"at": 0.01, "most": 0.1}}, "true_positives"),
        ({"true_positives": {"at": 0.1, "most": 0.1}}, "true_positives"),
        ({"true_positives": 0.1}, "true_positives"),
        ({"advantage": 0.1, "tokens": 1, "rounds": 1}, "advantage"),
    ],
)
def test_unusable_budgets_name_the_argument(changes, argument):
    with pytest.raises(dpaudit.InputError) as raised:
        dpaudit.plan_budget(**PLANNED | changes)
    assert raised.value.file == argument


#: Of no type that an argument has.
MISFITS = (None, 1, 1.5, [], b"run")


def test_arguments_of_wrong_types_are_input_errors(make_run, tmp_path):
    run = make_run().path
    calls = {
        "run": (
            dpaudit.audit,
            dpaudit.open_run,
            lambda run: dpaudit.compare(run, run),
            lambda run: dpaudit.compose(run, run),
        ),
        "policy": (lambda value: dpaudit.audit(run, policy=value or 0),),
        "tokenizers": (lambda value: dpaudit.audit(run, tokenizers=[value]),),
        "seed_files": (lambda value: dpaudit.audit(run, seed_files=[value]),),
        "commitment": (lambda value: dpaudit.audit(run, commitment=value or 0),),
        "model": (lambda value: dpaudit.audit(run, model=value or []),),
        "folder": (lambda value: dpaudit.audit(run).save(value or 0),),
        "out": (lambda value: dpaudit.release(run, value),),
        "reference": (lambda value: dpaudit.evaluate(run, value),),
        "data": (lambda value: dpaudit.audit(run, data=value or 0),),
    }
    told = {}
    for argument, functions in calls.items():
        for value in MISFITS:
            for number, function in enumerate(functions):
                with pytest.raises(dpaudit.InputError) as error:
                    function(value)
                told[argument, number, repr(value)] = error.value.where
    assert {key: where for key, where in told.items() if where != key[0]} == {}


def test_no_batch_level_is_below_the_release_level_that_is_asked_for(make_run):
    run = make_run().path
    with pytest.raises(dpaudit.InputError) as error:
        dpaudit.audit(run, epsilon=3.0, batch_epsilon=2.0)
    assert error.value.where == "batch_epsilon"
    assert dpaudit.audit(run, epsilon=99.0, batch_epsilon=99.0).verdict == "pass"


def test_a_mistyped_reference_is_told_before_torch_is_loaded(make_run):
    program = f"""import dpaudit
try:
    dpaudit.evaluate({str(make_run().path)!r}, "/not/there.csv")
except dpaudit.InputError as error:
    assert error.where == "reference"
else:
    raise AssertionError
"""
    assert not loaded(program) & {"torch", "transformers"}
