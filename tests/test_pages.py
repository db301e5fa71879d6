"""The built pages in a browser: light and dark, wide and narrow; their explorers in use."""

import re

import colab
import pytest
import site_checks as checks
from browsing import WIDTHS, shown, wrong_choices
from test_site import STEPS, pages

from sgemm_lab import book
from sgemm_lab.paths import ROOT

VIEWS = [
    pytest.param((name, width, theme), id=f"{name.removeprefix('book/')}-{size}-{theme}")
    for name in pages()
    for (size, width), theme in zip(WIDTHS.items(), ("light", "dark"), strict=True)
]
# axe-core takes 2 s a view: by default one of each page, every other page in the dark.
BY_TURNS = [
    pytest.param(*each.values, id=each.id, marks=() if n % 4 in (0, 3) else pytest.mark.slow)
    for n, each in enumerate(VIEWS)
]
WITH_WIDGETS = [
    name
    for name in pages()
    if (source := ROOT / f"{name}.ipynb").is_file() and "widget-view+json" in source.read_text()
]


@pytest.fixture(scope="module", autouse=True)
def assets():
    if not (ROOT / "node_modules" / ".ready").exists():
        pytest.skip("node_modules is missing, so the pages load from a CDN: npm ci, make book")


@pytest.fixture(scope="module", params=VIEWS)
def view(request, browser, site, assets):
    """One page in one width, loaded in one theme."""
    name, width, theme = request.param
    with shown(browser, site, name, width, theme) as found:
        yield found


@pytest.fixture
def blank(browser, assets):
    """An empty page, for a snippet with something wrong in it."""
    page = browser.new_page(viewport={"width": WIDTHS["narrow"], "height": 900})
    yield page
    page.close()


# ------------------------------------------------------------------------------- every page


def test_a_page_opens_in_its_theme(view):
    assert view.page.locator("html").get_attribute("data-theme") == view.theme


def test_every_widget_is_drawn(view):
    views = len(checks.VIEW.findall(view.site.html(view.name)))
    assert view.page.locator(".widget-subarea").count() == views
    for area in view.page.locator(".widget-subarea").all():
        assert area.locator(".jupyter-widgets").count() > 0


def test_every_formula_is_typeset(view):
    formulas = view.page.locator(".math:not(.highlight)").count()
    assert view.page.locator(".math mjx-container").count() == formulas


def test_every_picture_has_a_text(view):
    assert checks.nameless(view.page) == []


def test_every_picture_is_crisp_on_a_fine_screen(view):
    assert checks.coarse(view.page) == []


def test_what_scrolls_shows_it(view):
    assert checks.hintless(view.page) == []


def test_a_chart_is_seen_whole(view):
    assert checks.cut(view.page) == []


def test_code_has_a_button_that_copies_it(view):
    assert checks.copyless(view.page) == []


@pytest.mark.parametrize("view", BY_TURNS, indirect=True, scope="module")
def test_axe_finds_nothing_serious(view):
    assert checks.violations(view.page) == []


def test_a_page_does_not_scroll_sideways_in_either_theme(view):
    html = view.page.locator("html")
    button = view.page.locator(".theme-switch-button:visible")
    themes = set()
    for _ in range(3):  # light, dark, and the system's
        assert html.evaluate("html => html.scrollWidth") <= view.width
        themes.add(html.get_attribute("data-theme"))
        button.click()
    assert themes == {"light", "dark"}


def test_each_choice_of_an_explorer_shows_its_pane_and_only_it(view):
    explorers = view.explorers()
    assert bool(explorers) == (view.name in WITH_WIDGETS)
    choose = checks.by_mouse if view.width == WIDTHS["wide"] else checks.by_keyboard
    assert wrong_choices(explorers, choose) == []
    if choose is checks.by_mouse:
        assert wrong_choices(explorers, checks.by_script, every=True) == []


def test_nothing_went_wrong_meanwhile_and_no_other_host_was_asked(view):
    assert view.wrong == []


# A snippet with something wrong in it, and the check that must say so.
BROKEN = {
    "a picture without a text": ("nameless", '<img src="data:,"><svg role="img"></svg>', 2),
    "a text that no reader hears": ("nameless", '<svg aria-label="x"></svg>', 1),
    "a picture with too few pixels": (
        "coarse",
        '<img alt="x" style="width:9px" src="data:image/gif;base64,R0lGODlhAQABAAAAACw=">',
        1,
    ),
    "a box that scrolls and doesn't show it": (
        "hintless",
        '<div style="overflow-x:auto"><p style="width:999px">x</p></div>',
        1,
    ),
    "a chart that is cut off": (
        "cut",
        '<figure><div style="overflow-x:auto"><svg style="width:999px"/></div></figure>',
        1,
    ),
    "code without a button": ("copyless", '<div class="cell_input"><pre>x = 1</pre></div>', 1),
    "grey on grey": ("violations", '<p style="color:#999;background:#aaa">words</p>', 1),
    "a button without a name": ("violations", "<button></button>", 1),
}


@pytest.mark.parametrize("check, html, count", BROKEN.values(), ids=BROKEN)
def test_a_broken_page_is_found(blank, check, html, count):
    page = (
        f'<html lang="en"><title>x</title><main class="bd-article"><h1>x</h1>{html}</main></html>'
    )
    blank.set_content(page)
    assert len(getattr(checks, check)(blank)) == count


@pytest.mark.parametrize("change, told", {
    "an error": (lambda html: html + "<script>oops()</script>", "error: oops is not defined"),
    "a host": (lambda html: html + '<img src="http://example.invalid/">', "off the host"),
    "no such file": (lambda html: html + '<img src="gone.png">', "404"),
}.values())  # fmt: skip
def test_what_goes_wrong_on_a_page_is_noticed(browser, site, change, told):
    with shown(browser, site, "book/glossary", change=change) as broken:
        assert any(told in each for each in broken.wrong)


# ------------------------------------------------------------------------------- explorers


@pytest.mark.parametrize("name", ["book/02_tiled", "book/limits"])
def test_an_explorer_saved_by_ipywidgets_7_switches_too(browser, site, name):
    with shown(browser, site, name, change=colab.page_as_saved_there) as view:
        assert "Tab" in view.page.locator(checks.STATE_TAG).inner_text()
        assert wrong_choices(view.explorers(), checks.by_mouse) == []
        assert view.wrong == []


def unlinked(html: str) -> str:
    return html.replace('"selected_index"]', '"nothing"]')


def all_at_once(html: str) -> str:
    return html.replace('"StackModel"', '"VBoxModel"').replace('"StackView"', '"VBoxView"')


def swapped(html: str) -> str:
    """Two panes of a stack the other way round."""
    stack = r'("children": ?\[)("IPY_MODEL_\w+"), ?("IPY_MODEL_\w+")([^}]*"selected_index)'
    return re.sub(stack, r"\1\3, \2\4", html)


def out_of_reach(html: str) -> str:
    script = "setInterval(() => document.querySelectorAll('.widget-subarea button')"
    script += ".forEach((node) => node.tabIndex = -1), 10)"
    return html.replace("</head>", f"<script>{script}</script></head>")


@pytest.mark.parametrize("change, choose", [
    (unlinked, checks.by_mouse),
    (all_at_once, checks.by_mouse),
    (swapped, checks.by_mouse),
    (out_of_reach, checks.by_keyboard),
])  # fmt: skip
def test_an_explorer_that_shows_another_pane_is_found(browser, site, change, choose):
    with shown(browser, site, "book/01_naive", change=change) as view:
        assert wrong_choices(view.explorers(), choose) != []


# ------------------------------------------------------------------------------- the book


@pytest.mark.parametrize("side", ["primary", "secondary"])
def test_a_sidebar_opens_on_a_narrow_screen(browser, site, side):
    with shown(browser, site, "book/intro", WIDTHS["narrow"], "light") as view:
        view.page.locator(f".bd-header-article .{side}-toggle").click()
        view.page.locator(f"#pst-{side}-sidebar-modal[open]").wait_for()


def first_results(view, words: str) -> list:
    """Links to the pages that a search from this page finds first."""
    view.page.keyboard.press("Control+k")
    field = view.page.locator("dialog[open] input:focus")  # before, letters go to the page
    field.press_sequentially(words)
    field.press("Enter")
    view.page.wait_for_url(f"**/search.html?q={words.replace(' ', '+')}")
    view.page.locator("#search-results .search-summary", has_text="earch finished").wait_for()
    view.page.wait_for_load_state("networkidle")  # the excerpts are there
    return view.page.locator("#search-results ul.search > li > a").all()[:5]


def test_search_finds_bank_conflicts(browser, site):
    with shown(browser, site, "book/intro") as view:
        found = first_results(view, "bank conflict")
        chapter = next(link for link in found if "4. Bank conflicts" in link.inner_text())
        assert view.wrong == []
        chapter.click()
        assert view.page.locator(".bd-article h1").inner_text().startswith("4. Bank conflicts")


def test_a_search_that_misses_is_found(browser, site):
    with shown(browser, site, "book/intro") as view:
        index = (site.root / "searchindex.js").read_text("utf-8")
        index = index.replace("Bank conflicts", "Banks")
        view.page.route("**/searchindex.js", lambda route: route.fulfill(body=index))
        found = first_results(view, "bank conflict")
        assert not any("4. Bank conflicts" in link.inner_text() for link in found)


def title_page(view) -> list[str]:
    """What is missing on the title page: one chart, three cards, and where they lead."""
    article = view.page.locator(".bd-article")
    charts, cards = (article.locator(what).count() for what in ("svg[role=img]", ".sd-card"))
    ways = article.locator(".sd-card a")
    ways = ways.evaluate_all("links => links.map((link) => link.getAttribute('href'))")
    place = next((way for way in ways if way.startswith("#")), "#none")
    told = article.locator(f"{place} ~ div pre, {place} pre").all_inner_texts()
    colab = [way for way in ways if re.fullmatch(r"https://colab\..*/book/00_setup.ipynb", way)]
    right = {
        f"{charts} charts": charts == 1,
        f"{cards} cards": cards == 3,
        "no way to chapter 0": "00_setup.html" in ways,
        "no way to Colab": len(colab) == bool(book.repository()),  # else that card says so
        "no way to one's own machine": any("make lab" in each for each in told),
    }
    return [what for what, holds in right.items() if not holds]


def parts(view) -> list[str]:
    """What is wrong with the numbers in the sidebar."""
    content = "nodes => nodes.map((node) => getComputedStyle(node, '::before').content)"
    found = view.page.locator(".bd-links p.caption").evaluate_all(content)
    numbered = len(found) > 1 and set(found) == {'counter(part, upper-roman) ". "'}
    last = view.page.locator(".bd-links").get_by_text(f"{len(STEPS)}. ").count() == 1
    right = {"parts without numbers": numbered, "no number of the last step": last}
    return [what for what, holds in right.items() if not holds]


@pytest.mark.parametrize("look, pattern, new, told", [
    (title_page, "$", "", []),
    (title_page, '<svg viewBox.*?</svg>', "", ["0 charts"]),
    (title_page, "00_setup.html", "01_naive.html", ["no way to chapter 0"]),
    (title_page, ">make<", ">made<", ["no way to one's own machine"]),
    (title_page, 'class="sd-card ', 'class="', ["0 cards", "no way to chapter 0"]),
    (parts, "$", "", []),
    (parts, r"lab\.css", "none.css", ["parts without numbers"]),
    (parts, f">{len(STEPS)}\\. ", ">", ["no number of the last step"]),
], ids=lambda each: getattr(each, "__name__", None))  # fmt: skip
def test_the_title_page_shows_the_ways_in_and_what_it_lacks_is_noticed(
    browser, site, look, pattern, new, told
):
    def change(html: str) -> str:
        return re.sub(pattern, new, html, flags=re.S)

    with shown(browser, site, "book/intro", change=change) as view:
        assert look(view)[: len(told) or None] == told


@pytest.mark.parametrize("change", [str, lambda html: html.replace("threadIdx", "blockIdx")])
def test_the_copied_kernel_is_the_file(browser, site, change):
    step = STEPS[1]
    with shown(browser, site, f"book/{step.stem}", change=change) as view:
        view.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        code = view.page.locator("figure .highlight").first
        code.hover()
        code.locator("button.copybtn").click()
        copied = view.page.evaluate("navigator.clipboard.readText()")
        assert (copied.strip() == step.source.strip()) == (change is str)
