"""Pages as readers have them: in an offline browser, on a phone, dark, by keyboard, on paper."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.chromium import axe_script, executable, launched
from tests.browser.samples import pages
from tests.needs import NO_SKIP, needed

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page, Route

PAGES = ("clean", "failed", "thousand", "hostile", "public", "budgets", "comparison", "clusters")
PHONE, DESK = {"width": 360, "height": 740}, {"width": 1440, "height": 900}
#: The narrowest window that pages must fit into, without a bar for both directions (WCAG 2.2,
#: 1.4.10).
NARROW = {"width": 320, "height": 568}
PROBES = (Path(__file__).parent / "probes.js").read_text(encoding="utf-8")
#: Things that look alike, as far as a style sheet can tell them apart.
THINNED = """() => {
  const look = (node) => [node.tagName, node.className, node.style.cssText, node.role].join();
  const seen = {};
  for (const node of document.querySelectorAll("blockquote > *, tbody tr, article, dl > div, li")) {
    const kin = [node.parentElement, node, ...node.querySelectorAll("*")].map(look);
    const kind = [node.closest("section")?.id, ...new Set(kin)].join("|");
    seen[kind] = (seen[kind] ?? 0) + 1;
    if (seen[kind] > 3) node.remove();
  }
}"""
SERIOUS = ("moderate", "serious", "critical")


@dataclass
class Shown:
    """A page in the browser, and what it did there that it must not."""

    page: Page
    told: list[str] = field(default_factory=list)

    def problems(self) -> dict[str, list[str]]:
        """What the layout does wrong."""
        found: dict[str, list[str]] = self.page.evaluate(PROBES)
        return {name: complaints for name, complaints in found.items() if complaints}

    def thin(self) -> None:
        """Leaves three of each kind of token, row and text: axe-core takes a while for each."""
        self.page.evaluate(THINNED)

    def violations(self, *rules: str) -> list[str]:
        """Serious findings of axe-core, by all its rules or some."""
        self.page.evaluate(axe_script().read_text(encoding="utf-8"))
        options = {"resultTypes": ["violations"], **({"runOnly": list(rules)} if rules else {})}
        found = self.page.evaluate("options => axe.run(document, options)", options)["violations"]
        return [
            f"{each['id']}: {node['target']} {node['html'][:200]}"
            for each in found
            if each["impact"] in SERIOUS
            for node in each["nodes"][:5]
        ]


class Reader:
    """Opens pages; each is made once for all workers."""

    def __init__(self, browser: Browser, folder: Path, own: Path) -> None:
        self.browser, self.folder, self.own = browser, folder, own
        self._makers = pages(own)
        self._contexts: list[BrowserContext] = []

    def path(self, name: str) -> Path:
        """The page as a file."""
        path = self.folder / f"{name}.html"
        if not path.exists():
            made = self.own / path.name
            made.write_text(self._makers[name](), encoding="utf-8")
            made.rename(path)
        return path

    def open(self, page: str | Path, size: Any = DESK, **options: Any) -> Shown:
        """The page in a window of its own, which nothing but itself can get into."""
        address = (self.path(page) if isinstance(page, str) else page).as_uri()
        context = self.browser.new_context(viewport=size, **options)
        self._contexts.append(context)
        shown = Shown(context.new_page())

        def route(found: Route) -> None:
            if found.request.url == address:
                found.continue_()
            else:
                shown.told.append(f"asked for {found.request.url[:200]}")
                found.abort()

        context.route("**/*", route)
        shown.page.on(
            "console", lambda message: shown.told.append(f"{message.type}: {message.text}")
        )
        shown.page.on("pageerror", lambda error: shown.told.append(f"error: {error}"))
        shown.page.on(
            "dialog",
            lambda dialog: (shown.told.append(f"dialog {dialog.message}"), dialog.dismiss()),
        )
        shown.page.goto(address)
        return shown

    def close(self) -> None:
        """Closes all windows."""
        while self._contexts:
            self._contexts.pop().close()


# Of the module, so that its event loop is gone before any other test of this process runs.
@pytest.fixture(scope="module")
def browsing(tmp_path_factory: pytest.TempPathFactory, run_cache: Path) -> Iterator[Reader]:
    needed(executable() is not None, "no Chromium here: apt-get install chromium")
    (folder := run_cache.with_name("pages")).mkdir(exist_ok=True)
    with launched() as browser:
        yield Reader(browser, folder, tmp_path_factory.mktemp("pages"))


@pytest.fixture
def reader(browsing: Reader) -> Iterator[Reader]:
    yield browsing
    browsing.close()


@pytest.fixture
def axe() -> None:
    needed(axe_script().exists(), "no axe-core here: `make setup` gets it where npm is installed")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_whole_legible_and_open_to_all(axe: None, reader: Reader, name: str) -> None:
    shown = reader.open(name, PHONE, color_scheme="dark")
    assert shown.problems() == {}
    shown.page.set_viewport_size(NARROW)
    assert shown.problems() == {}
    shown.page.set_viewport_size(DESK)
    assert shown.problems() == {}
    shown.page.emulate_media(color_scheme="light")
    assert shown.problems() == {}
    shown.thin()
    assert shown.violations("color-contrast") == []
    shown.page.set_viewport_size(PHONE)
    shown.page.emulate_media(color_scheme="dark")
    assert shown.violations() == []
    assert shown.told == []


def test_hostile_texts_are_shown_as_texts(reader: Reader) -> None:
    page = reader.open("hostile").page
    text = page.locator("main").text_content() or ""
    for shown in (
        "<script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "{{ 7 * 7 }}",
        "مرحبا",
        "👩‍👩‍👧",
    ):
        assert shown in text
    assert "\u202e" not in text
    assert page.locator("script").count() == 1
    ours = "img[src^='data:image/svg+xml;base64,']"
    assert (
        page.locator(f"main :is(img, iframe, object, embed, link, form):not({ours})").count() == 0
    )


def test_a_report_of_many_batches_stays_small(reader: Reader) -> None:
    assert reader.path("thousand").stat().st_size < 3_000_000


def test_dark_pages_are_dark(reader: Reader) -> None:
    def lightness(scheme: Any) -> float:
        page = reader.open("clean", color_scheme=scheme).page
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(float, re.findall(r"[\d.]+", colour)[:3]))

    assert lightness("dark") < 3 * 60
    assert lightness("light") > 3 * 200


def test_a_page_can_be_read_without_script(reader: Reader) -> None:
    for name in ["failed", "comparison", "clusters"]:
        with_script, without = (reader.open(name, java_script_enabled=on) for on in (True, False))
        headings = with_script.page.locator("h1, h2, h3").all_inner_texts()
        assert len(headings) > 2
        assert without.page.locator("h1, h2, h3").all_inner_texts() == headings
        assert without.page.locator("main button, main input").count() == 0
        assert without.told == []


def test_the_keyboard_reaches_everything(reader: Reader) -> None:
    for name in ["clean", "hostile", "comparison"]:
        page = reader.open(name, PHONE).page
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip-link"
        assert page.locator(".skip-link").bounding_box()["x"] >= 0
        wanted = page.evaluate(
            """() => {
              const reached = [...document.querySelectorAll(\
"a[href], button, input, summary, .scroller")];
              const seen = reached.filter((node) => node.checkVisibility());
              seen.forEach((node, at) => { node.dataset.place = at; });
              return seen.length;
            }"""
        )
        page.evaluate(
            """() => {
              const note = (node) => window.reached.push(
                [node.dataset.place, getComputedStyle(node).outlineStyle]);
              window.reached = [];
              note(document.activeElement);
              document.addEventListener("focusin", (event) => note(event.target));
            }"""
        )
        for _ in range(wanted + 4):
            page.keyboard.press("Tab")
        noted = [each for each in page.evaluate("window.reached") if each[0] is not None]
        reached = {int(place) for place, _ in noted}
        faint = [place for place, outline in noted if outline == "none"]
        assert reached == set(range(wanted))
        assert faint == []


def test_the_skip_link_leads_to_the_result(reader: Reader) -> None:
    page = reader.open("clean").page
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**#main")


def test_tables_are_sorted_by_a_click(reader: Reader) -> None:
    for name in ["clean", "public"]:
        shown = reader.open(name)
        shown.page.evaluate(
            "document.querySelectorAll('details').forEach((each) => { each.open = true; })"
        )
        tables = shown.page.locator("table.sortable")
        if name == "clean":
            assert tables.count() > 0
        for at in range(tables.count()):
            table = tables.nth(at)
            heading = table.locator("thead th").last
            for direction in ("ascending", "descending"):
                heading.locator("button").click()
                assert heading.get_attribute("aria-sort") == direction
            rows = table.locator("tbody tr")
            before = rows.count()
            first = table.locator("thead th").first
            first.locator("button").click()
            assert heading.get_attribute("aria-sort") is None
            numbers = [
                re.match(r"[\d,]+", text)
                for text in table.locator("tbody tr > :first-child").all_inner_texts()
            ]
            values = [int(found[0].replace(",", "")) for found in numbers if found]
            assert values == sorted(values)
            assert rows.count() == before
        assert shown.told == []


def test_a_token_tells_what_it_cost_to_pointer_and_keyboard(reader: Reader) -> None:
    shown = reader.open("clean", PHONE)
    said = "(node) => getComputedStyle(node, '::after').content"
    text = shown.page.locator("blockquote").nth(4)
    token = text.locator("span[data-said]").first
    assert token.evaluate(said) == "none"
    token.hover()
    assert "cost" in token.evaluate(said)
    assert shown.problems() == {}  # what is told fits the window
    shown.page.mouse.move(0, 0)
    link = text.locator("a[data-said]").first
    link.focus()
    assert "neighbour" in link.evaluate(said)
    shown.page.keyboard.press("ArrowRight")
    focused = shown.page.evaluate("document.activeElement.dataset.said")
    assert focused and focused != link.get_attribute("data-said")
    assert shown.told == []


def test_a_dear_token_leads_to_its_row_and_a_batch_to_its_text(reader: Reader) -> None:
    for script in (True, False):
        page = reader.open("clean", java_script_enabled=script).page
        page.locator("blockquote a[data-said]").first.click()
        assert page.locator("tr:target").is_visible()
    page = reader.open("clean").page
    page.locator("#engineers").click()
    page.locator("#batches").click()
    page.locator("[aria-labelledby=batches] table a[href^='#text-']").first.click()
    assert page.locator("article:target blockquote").is_visible()


def test_a_report_is_short_until_it_is_unfolded(reader: Reader) -> None:
    page = reader.open("clean", {"width": 1280, "height": 900}).page
    banner = page.locator(".banner").bounding_box()
    assert banner["y"] + banner["height"] < 900
    # The released texts are as long as the model made them: one that is mostly line breaks takes a
    # third of a window. What is left below the bound is less than the smallest folded part would
    # add.
    page.evaluate("document.querySelectorAll('blockquote').forEach((text) => text.remove())")
    assert page.evaluate("document.documentElement.scrollHeight") < 5_200
    assert len(page.locator("body").inner_text().split()) < 1_600


def test_a_filter_leaves_what_was_asked_for(reader: Reader) -> None:
    shown = reader.open("failed")
    field = shown.page.locator("[data-filter] input[type=search]").first
    part = shown.page.locator("[data-filter]").first
    everything = part.locator("tbody tr:visible, .check:visible").count()
    field.fill("zzz nothing has this")
    assert part.locator("tbody tr:visible, .check:visible").count() == 0
    assert part.locator("[role=status]").inner_text().startswith("0 of ")
    field.fill("")
    assert part.locator("tbody tr:visible, .check:visible").count() == everything > 1


def test_nothing_is_lost_on_paper(reader: Reader) -> None:
    for name in ["failed", "comparison"]:
        from pypdf import PdfReader

        shown = reader.open(name, color_scheme="dark")
        headings = shown.page.locator("h1, h2, h3").all_text_contents()
        printed = PdfReader(io.BytesIO(shown.page.pdf(format="A4")))
        text = letters(" ".join(page.extract_text() for page in printed.pages))
        assert [heading for heading in headings if letters(heading) not in text] == []
        # Also what the screen folds away, and rows that a narrow window scrolls.
        cells = shown.page.locator("td, dd, summary, figcaption").all_text_contents()
        lost = [cell for cell in cells if letters(cell[:40]) not in text]
        assert lost == []
        # No cut at the right edge, nor a dark page that costs a cartridge.
        shown.page.emulate_media(media="print")
        shown.page.set_viewport_size({"width": 720, "height": 1000})
        assert shown.problems() == {}
        assert (
            shown.page.evaluate("getComputedStyle(document.body).backgroundColor")
            == "rgb(255, 255, 255)"
        )


def letters(text: str) -> str:
    """What a line break, a hyphen or a ligature on paper does not change."""
    return re.sub(r"[^\w]", "", text.replace("ﬁ", "fi").replace("ﬂ", "fl")).casefold()


# --- would they find it? --------------------------------------------------------------------------


def test_a_planted_flaw_of_the_layout_is_found(reader: Reader) -> None:
    for planted, complaint in [
        ('<div style="width: 3000px">wide</div>', "wider than the window"),
        ('<div style="position: relative; left: -200px">left</div>', "beyond the edge"),
        ('<div style="overflow: hidden; width: 9px; white-space: nowrap">cut off</div>', "cut off"),
        (
            '<svg width="90" height="20"><text x="70" y="10">outside</text></svg>',
            "labels outside their figure",
        ),
        (
            '<svg width="90" height="20"><text y="10" style="fill: #ddd">a</text></svg>',
            "too faint in a figure",
        ),
    ]:
        shown = reader.open("clusters", PHONE)
        shown.page.evaluate(
            "html => document.querySelector('main').insertAdjacentHTML('beforeend', html)", planted
        )
        assert complaint in shown.problems()


def test_a_planted_barrier_is_found(axe: None, reader: Reader) -> None:
    shown = reader.open("clusters", color_scheme="dark")
    planted = (
        '<p style="color: #333">dark on dark</p><button></button>'
        '<section aria-label="one">a</section><section aria-label="one">b</section>'
    )
    shown.page.evaluate(
        "html => document.querySelector('main').insertAdjacentHTML('beforeend', html)", planted
    )
    assert {each.split(":")[0] for each in shown.violations()} == {
        "color-contrast",
        "button-name",
        "landmark-unique",
    }


def test_what_a_page_does_behind_ones_back_is_found(reader: Reader, tmp_path: Path) -> None:
    page = reader.path("clusters").read_text(encoding="utf-8")
    for number, (planted, told) in enumerate(
        [
            ("<script>alert(1)</script>", "Content Security Policy"),
            ('<img src="https://example.com/a.png" alt="">', "Content Security Policy"),
        ]
    ):
        path = tmp_path / f"{number}.html"
        path.write_text(page.replace("</main>", f"{planted}</main>"), encoding="utf-8")
        assert told in " ".join(reader.open(path).told)


def test_a_missing_browser_is_an_error_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NO_SKIP, raising=False)
    with pytest.raises(pytest.skip.Exception, match="no Chromium here"):
        needed(False, "no Chromium here")
    monkeypatch.setenv(NO_SKIP, "1")
    with pytest.raises(pytest.fail.Exception, match="no Chromium here"):
        needed(False, "no Chromium here")
