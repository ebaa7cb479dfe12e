"""report.html is well-formed, self-contained, accessibly structured, and inert for any run."""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from dpaudit.auditing.disclosure import public_form
from dpaudit.auditing.run import Question, audit_run
from dpaudit.reports import findings
from dpaudit.reports.audit_document import SIGNED_BY, render_html, render_markdown, signed_off
from dpaudit.reports.reproducing import commands
from dpaudit.reports.wording import say
from dpaudit.results import AuditResult, Finding, Message, Place
from dpaudit.results.catalogue import message, sentence
from dpaudit.results.rounding import bound, stated
from tests.reports.conftest import run_summary

Samples = Mapping[str, Callable[[], AuditResult]]

VOID = {"meta", "wbr", "link", "br", "hr", "img", "input"}
LOADING = {"img", "iframe", "object", "embed", "link", "video", "audio", "source", "form", "base"}
TEMPLATES = Path(sys.modules["dpaudit.reports.audit_document"].__file__ or "").parent / "templates"
STYLE, SCRIPT = ((TEMPLATES / name).read_text("utf-8") for name in ("style.css", "report.js"))


Pages = Callable[[AuditResult], str]


class Page(HTMLParser):
    """Parses a page and notes what the tests ask about."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.mistakes: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.mistakes.append(f"</{tag}> closes nothing at {self.getpos()}")

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "script", "desc"):
            self.text.append(data)

    def values(self, name: str) -> list[str]:
        return [value for _, attributes in self.tags if (value := attributes.get(name)) is not None]

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def section(html: str, name: str) -> str:
    """The words of one part of a page."""
    start = html.index(f'<section aria-labelledby="{name}"')
    depth, end = 0, start
    for tag in re.finditer("<(/?)section", html[start:]):
        depth += -1 if tag[1] else 1
        end = start + tag.end()
        if depth == 0:
            break
    return Page(html[start:end].rpartition("<")[0]).words


def test_page_is_well_formed(results: dict[str, AuditResult], html_of: Pages) -> None:
    for result in results.values():
        page = Page(html_of(result))
        assert page.mistakes == []
        assert page.open == []


def test_ids_are_unique_and_every_reference_has_its_target(
    results: dict[str, AuditResult], html_of: Pages
) -> None:
    for result in results.values():
        page = Page(html_of(result))
        ids = page.values("id")
        assert len(ids) == len(set(ids))
        references = {name for value in page.values("aria-labelledby") for name in value.split()}
        references |= {
            value[1:]
            for value in page.values("href") + page.values("xlink:href")
            if value.startswith("#")
        }
        references |= set(
            re.findall(
                r"url\(#([^)]+)\)", " ".join(page.values("clip-path") + page.values("style"))
            )
        )
        assert references <= set(ids)


def test_nothing_is_loaded_and_nothing_can_run(
    results: dict[str, AuditResult], html_of: Pages
) -> None:
    for result in results.values():
        html = html_of(result)
        page = Page(html)
        assert not {tag for tag, _ in page.tags} & (LOADING - {"img"})
        assert all(
            value.startswith("#") for value in page.values("href") + page.values("xlink:href")
        )
        pictures = [attributes["src"] for tag, attributes in page.tags if tag == "img"]
        assert page.values("src") == pictures
        assert all(picture.startswith("data:image/svg+xml;base64,") for picture in pictures)
        assert not [
            name for _, attributes in page.tags for name in attributes if name.startswith("on")
        ]
        assert "@import" not in STYLE
        assert "url(" not in STYLE
        (policy,) = [value for value in page.values("content") if "default-src 'none'" in value]
        assert (
            "script-src "
            f"'sha256-{base64.b64encode(hashlib.sha256(script(html).encode()).digest()).decode()}';"
            in policy
        )


def script(html: str) -> str:
    """The page's only script: our own, as the file has it."""
    (found,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    assert html.count("<script") == 1
    assert found == SCRIPT
    return str(found)


def test_headings_are_in_order_and_start_with_the_verdict(
    results: dict[str, AuditResult], html_of: Pages
) -> None:
    for result in results.values():
        page = Page(html_of(result))
        levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_table_headers_have_scope_and_figures_have_text(
    results: dict[str, AuditResult], html_of: Pages
) -> None:
    for result in results.values():
        page = Page(html_of(result))
        assert all(
            attributes.get("scope") in ("col", "row")
            for tag, attributes in page.tags
            if tag == "th"
        )
        drawings = [attributes for tag, attributes in page.tags if tag == "img"]
        assert all(drawing["alt"] for drawing in drawings)


@pytest.mark.usefixtures("undrawn")
def test_commands_stand_as_code_and_nothing_else_gets_through(samples: Samples) -> None:
    options = '<span class="whole">--data FILE</span> <span class="whole">--evidence 4</span>'
    command = f"Run <code>dpaudit report &#39;runs/bbc median&#39; {options}</code>."
    assert command in render_html(samples["median"]())
    detail = "Run `<b>x</b> & {{ 1 }}` or `<script>"
    (check, *_) = samples["failed"]().checks
    result = samples["failed"]().model_copy(
        update={"checks": (check.model_copy(update={"detail": detail}),)}
    )
    shown = "Run <code>&lt;b&gt;x&lt;/b&gt; &amp; {{ 1 }}</code> or `&lt;script&gt;"
    assert shown in render_html(result)


@pytest.mark.usefixtures("undrawn")
def test_so_many_checks_not_made_are_counted(samples: Samples) -> None:
    skipped = [f"family.check{number}" for number in range(31)]
    one = samples["failed"]().checks[-1].model_copy(update={"detail": "The run cannot be read."})
    checks = tuple(one.model_copy(update={"id": name}) for name in skipped)
    result = samples["unreadable"]().model_copy(
        update={"checks": checks, "not_checked": tuple(skipped)}
    )
    assert "31 checks. The run cannot be read." in section(render_html(result), "not-checked")


@pytest.mark.usefixtures("undrawn")
def test_a_detail_that_is_the_remedy_is_said_once(samples: Samples) -> None:
    result = samples["failed"]()
    failed = next(check for check in result.checks if check.status == "fail")
    for remedy in (
        failed.detail,
        "",
    ):
        # results of earlier versions have no remedy apart from the detail
        again = result.model_copy(
            update={"checks": (failed.model_copy(update={"remedy": remedy}),)}
        )
        words = Page(render_html(again)).words
        assert words.count("Claim at least 2.5, or generate shorter texts.") == 1
        assert "How to mend it Claim at least 2.5" in words


@pytest.mark.usefixtures("undrawn")
def test_who_accepts_the_run_signs_for_its_files(samples: Samples) -> None:
    median = samples["median"]()
    digests = {"run.json": "1a" * 32, "samples.jsonl": "2b" * 32, "assignment": "3c" * 32}
    result = median.model_copy(update={"run": median.run.model_copy(update={"digests": digests})})
    assert signed_off(result) == (
        ("SHA-256 of run.json", "1a" * 32),
        ("SHA-256 of samples.jsonl", "2b" * 32),
    )
    html = render_html(result)
    signed = section(html, "sign-off")
    for said in (*SIGNED_BY, "1a" * 32, "2b" * 32):
        assert said in signed
    assert "3c" * 32 not in signed
    assert html == render_html(result)
    public = result.model_copy(update={"audience": "public"})
    assert signed_off(public) == signed_off(samples["unreadable"]()) == ()


def test_reports_for_both_audiences_say_who_made_the_run(
    make_run: Callable[..., Any], undrawn: None
) -> None:
    run = make_run(aggregator="mean")
    team = "<b>Records team"
    run.edit_manifest({"made_by": team})
    run.rehash()
    result = run.audit()
    for shown in (result, public_form(result)):
        assert shown.run.settings is not None and shown.run.settings.made_by == team
        page = render_html(shown)
        assert "Made by" in page.partition('id="not-checked"')[0]
        assert team not in page and html.escape(team) in page


def test_the_script_takes_no_label_for_a_word_of_its_own() -> None:
    """`in` finds inherited names, such as constructor, which a batch's label may be."""
    assert " in WORDS" not in SCRIPT
    assert "Object.hasOwn(WORDS, text)" in SCRIPT
    assert "listed ${noun}" in SCRIPT


@pytest.mark.usefixtures("undrawn")
def test_a_guarantee_of_next_to_nothing_is_called_that_and_one_caveat_is_bold(
    samples: Samples,
) -> None:
    bounds = [
        Finding(code="empty-bound.factor", values={"epsilon": 40.0, "digits": 18}),
        Finding(code="empty-bound.empty-batch", values={"batch": Place(batch=0)}),
    ]
    said = tuple(map(message, bounds))
    other = Message(code="caveat.declared", words="Another caveat.")
    result = samples["median"]().model_copy(update={"caveats": (*said, other)})
    html = render_html(result)
    verdict = html.partition("<main")[2].partition("</section>")[0]
    assert "Pass: the claim holds for one record, and bounds next to nothing" in verdict
    assert all(str(each) in verdict for each in said) and "Another caveat." not in verdict
    assert verdict.count('<p class="caution"') == 1
    assert "Another caveat." in section(html, "not-checked")
    assert "next to nothing" not in render_html(samples["median"]()).partition("Glossary")[0]


@pytest.mark.usefixtures("undrawn")
def test_what_was_agreed_stands_beside_the_runs_own_claim(samples: Samples) -> None:
    median = samples["median"]()
    assert median.claim is not None
    words = section(render_html(median), "claimed")
    assert "ε, release level 1.669 nats" in words and "Claimed ε, release level 2.5 nats" in words
    assert "Agreed ε" not in words
    asked = {"asked": ("epsilon",), "own_claim": median.claim.model_copy(update={"epsilon": 7.25})}
    words = section(render_html(median.model_copy(update=asked)), "claimed")
    assert "Agreed ε, release level 2.5 nats" in words
    assert "Claimed by the run ex-post, ε ≤ 7.25 nats" in words
    public = samples["public"]().model_copy(update={"asked": ("epsilon",)})
    words = section(render_html(public), "claimed")
    assert "Agreed ε, release level 2.5 nats Claimed by the run withheld" in words


@pytest.mark.usefixtures("undrawn")
def test_settings_that_are_not_set_are_left_out_and_blanks_can_be_seen(samples: Samples) -> None:
    median = samples["median"]()
    prompt = {"template": "pt", "one_line": False, "end": "\n", "text": None, "public_examples": {}}
    run = run_summary({"prompt": prompt | {"public": [[31, 41, 59]]}})
    words = section(render_html(median.model_copy(update={"run": run})), "settings")
    assert 'end "\\n"' in words
    assert not any(
        said in words for said in ("not set", "divisor", "public_examples", "31", "empty")
    )


@pytest.mark.usefixtures("undrawn")
def test_what_is_not_about_a_run_is_not_called_unmade(samples: Samples) -> None:
    html = render_html(samples["median"]())
    card = html[html.index('id="check-rebalancing.noise"') :].partition("</article>")[0]
    assert "Does not apply" in card and "Not made" not in card
    assert "rebalancing.noise" not in section(html, "not-checked")


def test_the_contents_lead_to_every_part(results: dict[str, AuditResult], html_of: Pages) -> None:
    for result in results.values():
        html = html_of(result)
        listed = re.findall(
            r'<li><a href="#([a-z-]+)">',
            html.partition('<nav class="contents"')[2].partition("</nav>")[0],
        )
        assert listed == re.findall(r'<h2 id="([a-z-]+)"', html)


@pytest.mark.usefixtures("undrawn")
def test_samples_are_shown_inside_and_never_outside(samples: Samples) -> None:
    median = samples["median"]()
    text, marked = re.sub("<[^>]*>|·", "", render_html(median)), render_markdown(median)
    for batch in range(4):
        assert f"The text of batch {batch}," in text and f"The text of batch {batch}," in marked
    # whoever made it forgot to drop them
    kept = samples["public"]().model_copy(update={"samples": median.samples})
    for outside in (render_html(kept), render_markdown(kept)):
        assert "The text of batch" not in outside
        assert "The released texts" not in outside
        assert "Likeliest others" not in outside and "data-said=" not in outside


def test_commands_ask_for_what_was_given(samples: Samples) -> None:
    result = samples["median"]()
    asked = result.model_copy(update={"asked": ("epsilon", "unit")})
    assert commands(asked)[0] == "dpaudit report 'runs/bbc median' --epsilon 2.5 --unit record"
    assert commands(asked)[1] == commands(result)[1]
    withheld = asked.model_copy(update={"claim": None, "audience": "public"})
    assert commands(withheld)[0] == "dpaudit report 'runs/bbc median' --audience public"


def test_kinds_of_epsilon_have_blocks_of_their_own(samples: Samples, html_of: Pages) -> None:
    for name, said in (
        ("approximate only", "No ex-post epsilon was computed"),
        ("mean", "1.892 nats"),
    ):
        text = Page(html_of(samples[name]())).words
        ex_post = text[text.index("Ex-post epsilon") : text.index("Approximate DP")]
        approximate = text[text.index("Approximate DP") : text.index("Empirical losses")]
        assert "2.5 " not in ex_post
        assert "2.320" not in ex_post
        assert said in ex_post
        assert "1.892" not in approximate
        for row in ("ε, release level 2.320 nats", "Claimed ε, release level 2.5 nats"):
            assert row in approximate
        assert approximate.count("δ 0.00044") == 2


@pytest.mark.usefixtures("undrawn")
def test_what_noised_centres_take_is_said(samples: Samples) -> None:
    result = samples["mean"]()
    assert "Cluster centres" not in Page(render_html(result)).words
    found = result.guarantees.approximate
    assert found is not None
    spent = found.model_copy(update={"centers": 0.75, "centers_delta": 1e-6})
    guarantees = result.guarantees.model_copy(update={"approximate": spent})
    text = Page(render_html(result.model_copy(update={"guarantees": guarantees}))).words
    assert "Cluster centres 0.7500 nats of ε and 1e-6 of δ" in text


def test_the_ledger_is_a_tree_for_each_kind(
    samples: Samples, large_run: AuditResult, html_of: Pages
) -> None:
    html = html_of(samples["mean"]())
    text = Page(html).words
    trees = [
        text.index(f"{kind} add or remove one record ")
        for kind in ("Approximate DP", "Ex-post epsilon")
    ]
    approximate = text[trees[0] : trees[1]]
    assert "1.892" not in approximate
    assert (
        "pipeline 2.320 nats, δ = 0.00044 , composed jointly by one accountant from 2"
        in approximate
    )
    assert "47 more, not listed here" in approximate
    assert "pipeline 1.892 nats , the sum of 2" in text[trees[1] :]
    assert html.count("<details open>") == 2
    assert "the largest of 1,000" in Page(html_of(large_run)).words
    assert "990 more, not listed here" in Page(html_of(large_run)).words


def test_one_number_never_shows_in_two_ways(samples: Samples) -> None:
    result = samples["one batch"]()
    found = result.guarantees.ex_post
    assert found is not None
    assert result.claim is not None
    claim = result.claim.model_copy(update={"epsilon": found.batch_epsilon})
    text = Page(render_html(result.model_copy(update={"claim": claim}))).words
    shown = {word.strip(".,;:") for word in text.split() if word.startswith(bound(found.exact)[:4])}
    assert bound(found.exact) not in shown
    assert stated(found.exact) in shown
    assert {float(word) for word in shown} == {found.exact}


@pytest.mark.usefixtures("undrawn")
def test_a_users_most_records_are_named_wherever_a_user_is(samples: Samples) -> None:
    result = of_users(samples["user"](), 10)
    named = "one user with at most 10 records"
    for text in (Page(render_html(result)).words, render_markdown(result)):
        assert text.count(named) >= 3  # claimed, recomputed and the ledger
        assert "all records of theirs" not in text.partition("Glossary")[0]


def of_users(result: AuditResult, most: int) -> AuditResult:
    found, claim = result.guarantees.ex_post, result.claim
    assert found is not None
    assert claim is not None
    users = {"unit": "user", "records_per_user": most}
    guarantees = result.guarantees.model_copy(update={"ex_post": found.model_copy(update=users)})
    ledger = tuple(
        tree if tree.kind == "empirical" else tree.model_copy(update={"unit": "user"})
        for tree in result.ledger
    )
    return result.model_copy(
        update={"claim": claim.model_copy(update=users), "guarantees": guarantees, "ledger": ledger}
    )


@pytest.mark.usefixtures("undrawn")
def test_a_change_of_several_contexts_says_what_a_batchs_figures_are_for(samples: Samples) -> None:
    median, user = samples["median"](), samples["user"]()
    found = median.guarantees.ex_post
    assert found is not None
    replaced = median.guarantees.model_copy(
        update={"ex_post": found.model_copy(update={"relation": "replace"})}
    )
    for result in (user, median.model_copy(update={"guarantees": replaced})):
        # batches and worst contexts
        assert Page(render_html(result)).words.count(say("several-contexts")) == 2
        assert render_markdown(result).count(say("several-contexts")) == 2
    for result in (median, samples["infinite"](), of_users(user, 1)):
        assert say("several-contexts") not in Page(render_html(result)).words


@pytest.mark.usefixtures("undrawn")
def test_only_an_accountant_composes_jointly(samples: Samples) -> None:
    mean = samples["mean"]()
    approximate, ex_post = mean.ledger
    rebalancing, generation = ex_post.children
    shared = ex_post.model_copy(
        update={"children": (rebalancing, generation.model_copy(update={"rule": "joint"}))}
    )
    text = Page(render_html(mean.model_copy(update={"ledger": (approximate, shared)}))).words
    assert "the worst way of sharing the changed contexts among 12" in text
    assert text.count("composed jointly by one accountant from") == 2
    assert "composed jointly" not in text[text.index("the worst way of sharing") :]


def test_a_run_without_batch_costs_says_so_instead_of_drawing(
    samples: Samples, html_of: Pages
) -> None:
    html = html_of(samples["approximate only"]())
    assert html.count("<img") == html.count('alt="The most that a test can tell') == 1
    assert "no cost per batch or per token" in html
    assert "What each token cost" not in html
    assert "Rise and fall" not in html.partition('<h2 id="glossary"')[0]
    for name in ("mean", "median", "infinite"):
        assert "no cost per batch or per token" not in html_of(samples[name]())


@pytest.mark.usefixtures("undrawn")
def test_figures_from_a_doubtful_record_carry_a_caution(samples: Samples) -> None:
    said = "so it bounds nothing until they do"
    failed = samples["failed"]()
    only_the_claim = failed.model_copy(
        update={"checks": tuple(c for c in failed.checks if c.status != "error")}
    )
    assert said in render_html(failed)
    assert said not in render_html(only_the_claim)
    assert said not in render_html(samples["median"]())
    assert said not in render_html(samples["unreadable"]())


@pytest.mark.usefixtures("undrawn")
def test_figures_of_a_record_that_was_not_looked_through_carry_another_caution(
    samples: Samples,
) -> None:
    lacking = samples["median"]().model_copy(update={"evidence": 3, "verdict": "fail"})
    for text in (render_html(lacking), render_markdown(lacking)):
        assert "Checks that a pass needs were not made." in text
        assert "did not pass" not in text
    assert "Checks that a pass needs" not in render_html(samples["median"]())
    unfit = tuple(
        check.model_copy(update={"id": "disclosure.sensitive"})
        for check in samples["failed"]().checks[3:4]
    )
    assert "did not pass" not in render_html(
        samples["failed"]().model_copy(update={"checks": unfit})
    )


@pytest.mark.usefixtures("undrawn")
def test_the_commands_ask_for_the_same_evidence(samples: Samples) -> None:
    for evidence, replayed, options in [
        (2, False, ""),
        (1, False, " --evidence 1"),
        (3, False, " --evidence 3 --data FILE"),
        (4, True, " --evidence 4 --data FILE"),
        (2, True, " --data FILE"),
    ]:
        result = samples["median"]()
        checks = [
            each.model_copy(update={"status": "pass"} if replayed else {}) for each in result.checks
        ]
        again = result.model_copy(update={"evidence": evidence, "checks": tuple(checks)})
        report, verify = commands(again)
        assert report == f"dpaudit report 'runs/bbc median'{options}"
        assert verify == (
            "dpaudit verify 'runs/bbc median' --epsilon 2.5 --delta 0 --relation add_remove "
            f"--unit record{options}"
        )
        public, _ = commands(again.model_copy(update={"audience": "public"}))
        assert public == f"dpaudit report 'runs/bbc median' --audience public{options}"
        assert all(command in Page(render_html(again)).words for command in (report, verify))


def test_an_attack_was_replayed(samples: Samples) -> None:
    assert all(command.endswith(" --data FILE") for command in commands(samples["attacked"]()))


def test_hostile_text_is_shown_and_does_nothing(samples: Samples, html_of: Pages) -> None:
    html = html_of(samples["hostile"]())
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert "{{ 7 * 7 }}" in html  # not evaluated
    assert "مرحبا 👩‍👩‍👧" in html
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x00-\x08\x0b-\x1f\x7f]", html)
    assert len(html) < 400_000


def test_a_thousand_batches_stay_small_and_say_what_is_left_out(
    large_run: AuditResult, html_of: Pages
) -> None:
    html = html_of(large_run)
    assert len(html.encode()) < 1_000_000
    assert "The 50 costliest of 1,000 batches; report.json has the other 950 too." in html
    rows = re.findall(
        r'<tr><th scope="row"><bdi>(?:<a href="#text-\d+-0">)?\d+(?:</a>)?</bdi></th>',
        html.partition('<h3 id="batches">')[2].partition('<h3 id="ledger">')[0],
    )
    assert len(rows) == 50


def test_numbers_are_never_raw_nan_or_inf(results: dict[str, AuditResult], html_of: Pages) -> None:
    for result in results.values():
        assert not re.search(
            r"(?<![A-Za-z])(nan|inf)(?![A-Za-z])", Page(html_of(result)).words, re.IGNORECASE
        )


def test_the_same_result_gives_the_same_page(samples: Samples, html_of: Pages) -> None:
    assert html_of(samples["median"]()) == render_html(samples["median"]())


def test_comparison_page_is_well_formed_and_links_stay_paths(comparison_page: str) -> None:
    page = Page(comparison_page)
    assert page.mistakes == []
    assert page.open == []
    assert len(page.values("id")) == len(set(page.values("id")))
    assert "../a%20b/report.html" in page.values("href")
    assert "javascript%3Aalert%281%29" in page.values("href")
    assert not {tag for tag, _ in page.tags} & LOADING
    assert "A caveat that stands beside the guarantee." in page.words


def test_importing_the_reports_does_not_import_matplotlib() -> None:
    program = (
        "import sys, dpaudit.reports.write, dpaudit.reports.terminal; "
        "sys.exit('matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def _palettes() -> list[tuple[str, dict[str, str]]]:
    light, dark = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    return [
        (name, dict(re.findall(r"--([\w-]+): (#\w{6});", text)))
        for name, text in (("light", light), ("dark", dark))
    ]


def _luminance(colour: str) -> float:
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in channels
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def test_colours_meet_wcag_aa() -> None:
    for name, colours in _palettes():
        texts = [(text, "page") for text in ("ink", "quiet", "link", "mark")]
        for status in ("pass", "fail", "warn", "skip"):
            texts += [
                (status, f"{status}-tint"),
                (status, "page"),
                ("ink", f"{status}-tint"),
                ("link", f"{status}-tint"),
            ]
        texts.append(("ink", "panel"))
        assert [
            pair for pair in texts if _contrast(colours[pair[0]], colours[pair[1]]) < 4.5
        ] == [], name


def test_headlines_say_what_a_run_was_held_to(make_run):
    """The run's own number, one that the caller asked about, or one that the run does not bound."""
    run = make_run()
    told = {
        "headline.asked-exceeded": audit_run(run.path, Question(epsilon=1e-3)),
        "headline.no-figure": audit_run(run.path, Question(rho=0.1)),
    }
    for code, result in told.items():
        assert findings.headline(result) == sentence(Finding(code=code))


def test_pages_vouch_for_texts_only_where_they_were_checked(make_run):
    run = make_run()
    assert say("samples-confirmed") in render_html(run.audit())
    run.edit_samples(lambda lines: lines[0].update(text=f"{lines[0]['text']}."))
    run.rehash()
    page = render_html(run.audit())
    assert say("samples-refuted") in page and say("samples-confirmed") not in page
