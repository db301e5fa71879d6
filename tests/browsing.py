"""Pages, served on this machine and shown by a browser, and what goes wrong meanwhile."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import site_checks as checks

WIDTHS = {"wide": 1280, "narrow": 375}

# Widgets and formulas are drawn, and lab.js has looked at them, which takes it two frames.
SETTLED = """async (widgets) => {
  const frame = () => new Promise(requestAnimationFrame);
  await window.MathJax?.startup?.promise;
  while (document.querySelectorAll(".widget-subarea:has(.jupyter-widgets)").length < widgets)
    await frame();
  for (let frames = 0; frames < 3; frames++) await frame();
}"""


@dataclass(frozen=True)
class Site:
    """Built pages under `root`, and the address at which they are served."""

    root: Path
    url: str

    def html(self, name: str) -> str:
        return (self.root / f"{name}.html").read_text("utf-8")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextmanager
def served(root: Path) -> Iterator[Site]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=root))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Site(root, f"http://127.0.0.1:{server.server_port}")
    server.shutdown()


@contextmanager
def watched(browser, host: str, width: int = WIDTHS["wide"], theme: str = "light") -> Iterator:
    """A browser's page, and a list of what goes wrong on it; `host` is where it may ask."""
    context = browser.new_context(viewport={"width": width, "height": 900})
    context.set_default_timeout(60_000)  # a busy machine takes its time
    context.add_init_script(f"localStorage.mode = localStorage.theme = '{theme}'")
    page, wrong = context.new_page(), []

    def own(url: str) -> bool:
        return url.startswith((host, "data:", "blob:"))

    def console(message) -> None:
        if message.type == "error":
            wrong.append(f"console: {message.text} ({message.location['url']})")

    page.on("console", console)
    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    page.on("requestfailed", lambda r: wrong.append(f"failed: {r.url}"))
    page.on("response", lambda r: r.status >= 400 and wrong.append(f"{r.status}: {r.url}"))
    page.on("request", lambda r: own(r.url) or wrong.append(f"off the host: {r.url}"))
    yield page, wrong
    context.close()


@dataclass(frozen=True)
class View:
    """A page of a site as the browser shows it, and what went `wrong` so far."""

    site: Site
    name: str
    page: object
    wrong: list[str]
    width: int
    theme: str

    def explorers(self) -> list[tuple]:
        """Where each explorer is, and what it should show, from the page's file."""
        found = checks.explorers(self.site.html(self.name))
        control = self.page.locator(checks.CONTROL)
        areas = self.page.locator(".widget-subarea").filter(has=control).all()
        assert len(areas) == len(found)
        return list(zip(areas, found, strict=True))


@contextmanager
def shown(
    browser,
    site: Site,
    name: str,
    width: int = WIDTHS["wide"],
    theme: str = "light",
    change: Callable[[str], str] | None = None,
) -> Iterator[View]:
    """A page that the browser shows, with all that is drawn later; `change` alters its HTML."""
    with watched(browser, site.url, width, theme) as (page, wrong):
        html = site.html(name)
        if change:
            html = change(html)
            answer = {"body": html, "content_type": "text/html"}
            page.route(f"**/{name}.html", lambda route: route.fulfill(**answer))
        page.goto(f"{site.url}/{name}.html")
        page.evaluate(SETTLED, len(checks.VIEW.findall(html)))
        yield View(site, name, page, wrong, width, theme)


def wrong_choices(explorers: list[tuple], choose: Callable, every: bool = False) -> list[str]:
    return [each for pair in explorers for each in checks.wrong_panes(*pair, choose, every)]
