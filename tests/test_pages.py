"""The built pages in a browser: light and dark, wide and narrow."""

from types import SimpleNamespace

import pytest
import yaml
from conftest import HTML

from sgemm_lab.paths import ROOT

WIDTHS = {"wide": 1280, "narrow": 375}


def pages() -> list[str]:
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    files = [chapter["file"] for part in toc["parts"] for chapter in part["chapters"]]
    return [toc["root"], *files]


VIEWS = [
    pytest.param((name, width, theme), id=f"{name.removeprefix('book/')}-{size}-{theme}")
    for name in pages()
    for size, width in WIDTHS.items()
    for theme in ("light", "dark")
]


@pytest.fixture(scope="module", autouse=True)
def assets():
    if not (ROOT / "node_modules" / ".ready").exists():
        pytest.skip("node_modules is missing, so the pages load from a CDN: npm ci, make book")


@pytest.fixture(scope="module", params=VIEWS)
def view(request, browser, site, assets):
    """One page in one theme and width: the loaded page, and what went wrong meanwhile."""
    name, width, theme = request.param
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
    page.goto(f"{site}/{name}.html", wait_until="networkidle")
    yield SimpleNamespace(page=page, wrong=wrong, name=name, width=width, theme=theme)
    context.close()


def test_a_page_has_no_error_and_asks_no_other_host(view):
    assert view.wrong == []
    assert view.page.locator("html").get_attribute("data-theme") == view.theme


def test_a_page_does_not_scroll_sideways(view):
    assert view.page.evaluate("document.documentElement.scrollWidth") <= view.width


def test_every_widget_is_drawn(view):
    html = (HTML / f"{view.name}.html").read_text(encoding="utf-8")
    views = html.count('type="application/vnd.jupyter.widget-view+json"')
    assert view.page.locator(".widget-subarea").count() == views
    for area in view.page.locator(".widget-subarea").all():
        assert area.locator(".jupyter-widgets").count() > 0


def test_every_formula_is_typeset(view):
    formulas = view.page.locator(".math:not(.highlight)").count()
    assert view.page.locator(".math mjx-container").count() == formulas
