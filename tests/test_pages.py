"""The built pages in a browser: light and dark, wide and narrow; their explorers in use."""

import re
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import site_checks as checks
from conftest import HTML
from test_site import STEPS, pages

from sgemm_lab.paths import ROOT

WIDTHS = {"wide": 1280, "narrow": 375}
VIEWS = [
    pytest.param((name, width, theme), id=f"{name.removeprefix('book/')}-{size}-{theme}")
    for name in pages()
    for (size, width), theme in zip(WIDTHS.items(), ("light", "dark"), strict=True)
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


@contextmanager
def shown(browser, site, name, width=WIDTHS["wide"], theme="light", change=None):
    """A page that the browser shows, and what goes wrong meanwhile; `change` alters its HTML."""
    context = browser.new_context(viewport={"width": width, "height": 900})
    context.add_init_script(f"localStorage.mode = localStorage.theme = '{theme}'")
    page, wrong = context.new_page(), []

    def own(url: str) -> bool:
        return url.startswith((site, "data:", "blob:"))

    page.on("console", lambda m: m.type == "error" and wrong.append(f"console: {m.text}"))
    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    page.on("requestfailed", lambda r: wrong.append(f"failed: {r.url}"))
    page.on("response", lambda r: r.status >= 400 and wrong.append(f"{r.status}: {r.url}"))
    page.on("request", lambda r: own(r.url) or wrong.append(f"off the host: {r.url}"))
    if change:
        html = change((HTML / f"{name}.html").read_text("utf-8"))
        page.route(
            f"**/{name}.html", lambda route: route.fulfill(body=html, content_type="text/html")
        )
    page.goto(f"{site}/{name}.html", wait_until="networkidle")
    yield SimpleNamespace(page=page, wrong=wrong, name=name, width=width, theme=theme)
    context.close()


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
    views = len(checks.VIEW.findall((HTML / f"{view.name}.html").read_text("utf-8")))
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


def explorers(view) -> list[tuple]:
    """The explorers of a page: where each is, and what it should show, from the file as built."""
    found = checks.explorers((HTML / f"{view.name}.html").read_text("utf-8"))
    areas = view.page.locator(".widget-subarea").filter(has=view.page.locator(checks.CONTROL)).all()
    assert len(areas) == len(found) > 0
    return list(zip(areas, found, strict=True))


def wrong(explorers, choose, every=False) -> list[str]:
    return [each for pair in explorers for each in checks.wrong_panes(*pair, choose, every)]


@pytest.fixture(scope="module", params=WITH_WIDGETS)
def explored(request, browser, site, assets):
    """The explorers of a page, which is loaded once: each goes on where the last test left it."""
    with shown(browser, site, request.param) as view:
        yield explorers(view)
        assert view.wrong == []


@pytest.mark.parametrize("choose", [checks.by_mouse, checks.by_keyboard], ids=["mouse", "keys"])
def test_each_choice_of_an_explorer_shows_its_pane_and_only_it(explored, choose):
    assert wrong(explored, choose) == []


def test_all_choices_together_show_their_pane(explored):
    assert wrong(explored, checks.by_script, every=True) == []


def unlinked(html: str) -> str:
    return html.replace('"selected_index"]', '"nothing"]')


def all_at_once(html: str) -> str:
    return html.replace('"StackModel"', '"VBoxModel"').replace('"StackView"', '"VBoxView"')


def swapped(html: str) -> str:
    """Two panes of a stack the other way round."""
    stack = r'("children": ?\[)("IPY_MODEL_\w+"), ?("IPY_MODEL_\w+")([^}]*"selected_index)'
    return re.sub(stack, r"\1\3, \2\4", html)


def out_of_reach(html: str) -> str:
    script = "setInterval(() => document.querySelectorAll('.widget-subarea :is(button, select)')"
    script += ".forEach((node) => node.tabIndex = -1), 10)"
    return html.replace("</head>", f"<script>{script}</script></head>")


@pytest.mark.parametrize("change, choose", [
    (unlinked, checks.by_mouse),
    (all_at_once, checks.by_mouse),
    (swapped, checks.by_mouse),
    (out_of_reach, checks.by_keyboard),
])  # fmt: skip
def test_an_explorer_that_shows_another_pane_is_found(browser, site, change, choose):
    with shown(browser, site, "book/limits", change=change) as view:
        assert wrong(explorers(view), choose) != []


# ------------------------------------------------------------------------------- the book


def test_search_finds_bank_conflicts(browser, site):
    with shown(browser, site, "book/intro") as view:
        view.page.keyboard.press("Control+k")
        field = view.page.locator("dialog[open] input:focus")  # before, letters go to the page
        field.press_sequentially("bank conflict")
        field.press("Enter")
        view.page.wait_for_url("**/search.html?q=bank+conflict")
        results = view.page.locator("#search-results ul.search > li")
        chapter = results.filter(has_text="4. Bank conflicts").first
        chapter.wait_for()
        assert chapter.evaluate("li => [...li.parentNode.children].indexOf(li)") < 5
        view.page.wait_for_load_state("networkidle")  # the excerpts are there
        assert view.wrong == []
        chapter.locator("a").first.click()
        assert view.page.locator(".bd-article h1").inner_text().startswith("4. Bank conflicts")


def test_the_title_page_has_one_chart_and_three_ways_in(browser, site):
    with shown(browser, site, "book/intro") as view:
        article = view.page.locator(".bd-article")
        assert article.locator("svg[role=img]").count() == 1
        cards = article.locator(".sd-card a").all()
        ways = [card.evaluate("link => link.getAttribute('href')") for card in cards]
        assert len(ways) == 3
        assert ways[0].endswith("00_setup.html")
        assert re.fullmatch(r"https://colab\..*/blob/main/book/00_setup.ipynb", ways[1])
        assert (
            "make lab" in article.locator(f"{ways[2]} ~ div pre, {ways[2]} pre").first.inner_text()
        )


def test_the_parts_are_numbered_in_the_sidebar(browser, site):
    with shown(browser, site, "book/intro") as view:
        content = "nodes => nodes.map((node) => getComputedStyle(node, '::before').content)"
        parts = view.page.locator(".bd-links p.caption").evaluate_all(content)
        assert len(parts) > 1 and set(parts) == {'counter(part, upper-roman) ". "'}
        assert view.page.locator(".bd-links").get_by_text(f"{len(STEPS)}. ").count() == 1


def test_the_copied_kernel_is_the_file(browser, site):
    step = STEPS[1]
    with shown(browser, site, f"book/{step.stem}") as view:
        view.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        code = view.page.locator("figure .highlight").first
        code.hover()
        code.locator("button.copybtn").click()
        copied = view.page.evaluate("navigator.clipboard.readText()")
        assert copied.strip() == step.source.strip()
