"""What a built page must satisfy, as functions that return what is wrong with it, in sentences.

The first ones read files; the others look at a page that a browser (Playwright's) shows.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from nbformat import NotebookNode

from sgemm_lab import book
from sgemm_lab.paths import ROOT

AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
MOST_BYTES = 1_500_000  # a page with its images


# ------------------------------------------------------------------------------- files


class Marks(HTMLParser):
    """The ids of a page, and what it refers to: (tag, address, class)."""

    def __init__(self, html: str):
        super().__init__()
        self.ids: set[str] = set()
        self.refers: list[tuple[str, str, str]] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids |= {found[key] for key in ("id", "name") if found.get(key)}
        address = found.get("href") or found.get("src")
        if address:
            self.refers.append((tag, address, found.get("class") or ""))


def marks(page: Path) -> Marks:
    return Marks(page.read_text("utf-8"))


def dead_links(root: Path) -> list[str]:
    """Every address in the pages under `root` that leads to no file or to no place in it."""
    pages = {p.resolve(): marks(p) for p in root.rglob("*.html") if "_static" not in p.parts}
    dead = []
    for page, found in pages.items():
        for _, address, _ in found.refers:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            place = unquote(parts.fragment)
            if not target.is_file():
                dead.append(f"{page.name}: {address}: no such file")
            elif place and target in pages and place not in pages[target].ids:
                dead.append(f"{page.name}: {address}: no such place")
    return dead


def weight(page: Path) -> int:
    """Bytes of a page and of the images that it shows."""
    images = {address for tag, address, _ in marks(page).refers if tag == "img"}
    local = [page.parent / urlsplit(each).path for each in images if not urlsplit(each).scheme]
    return page.stat().st_size + sum(image.stat().st_size for image in local)


def neighbours(page: Path) -> dict[str, str]:
    """Where "Previous" and "Next" of a page lead."""
    names = {"left-prev": "previous", "right-next": "next"}
    return {names[kind]: address for _, address, kind in marks(page).refers if kind in names}


# ------------------------------------------------------------------------------- one page

NAMELESS = """() => {
  const named = (node) => node.getAttribute("aria-label") || node.getAttribute("alt");
  const heard = (node) => node.localName != "svg" || node.getAttribute("role") == "img";
  return [...document.querySelectorAll(".bd-article :is(img, svg)")]
    .filter((node) => !node.closest("mjx-container, button, a, [aria-hidden=true]"))
    .filter((node) => !named(node) || !heard(node))
    .map((node) => "no alt text: " + node.outerHTML.slice(0, 80));
}"""

COARSE = """() => [...document.querySelectorAll(".bd-article img")]
  .filter((img) => !/\\.svg|^data:image.svg/.test(img.src))
  .filter((img) => img.naturalWidth < 2 * img.clientWidth)
  .map((img) => `blurred on a fine screen: ${img.src.slice(-60)}`)"""

HINTLESS = """() => [...document.querySelectorAll(".bd-article *")]
  .filter((box) => box.scrollWidth > box.clientWidth + 1 && box.checkVisibility())
  .filter((box) => getComputedStyle(box).overflowX == "auto" && !box.matches(".scrolls"))
  .map((box) => "scrolls and doesn't show it: " + box.outerHTML.slice(0, 80))"""

CUT = """() => [...document.querySelectorAll(".bd-article figure div:has(> svg)")]
  .filter((box) => box.scrollWidth > box.clientWidth + 1)
  .map((box) => "a chart that isn't seen whole: " + box.firstElementChild.ariaLabel)"""

COPYLESS = """() => [...document.querySelectorAll(".bd-article :is(.cell_input, figure) pre")]
  .filter((code) => !code.closest(".jupyter-widgets"))
  .filter((code) => !code.parentElement.querySelector("button.copybtn"))
  .map((code) => "no button to copy: " + code.textContent.slice(0, 60))"""

# No rule of its looks into what is drawn, which is one picture to a reader of screens.
RUN_AXE = """() => axe.run({exclude: ["svg[role=img] > *"]},
  {resultTypes: ["violations"], preload: false})"""


def nameless(page) -> list[str]:
    """Pictures that have no alt text."""
    return page.evaluate(NAMELESS)


def coarse(page) -> list[str]:
    """Pictures with fewer pixels than a screen of twice the density shows."""
    return page.evaluate(COARSE)


def hintless(page) -> list[str]:
    """Boxes with more in them than they show, and nothing that says so."""
    return page.evaluate(HINTLESS)


def cut(page) -> list[str]:
    """Charts of which a part is hidden."""
    return page.evaluate(CUT)


def copyless(page) -> list[str]:
    """Code without a button that copies it."""
    return page.evaluate(COPYLESS)


def violations(page) -> list[str]:
    """What axe-core finds serious or critical."""
    page.add_script_tag(path=AXE)
    found = page.evaluate(RUN_AXE)["violations"]
    return [
        f"{each['id']}: {node['html'][:90]}: {node['failureSummary']}"
        for each in found
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


# ------------------------------------------------------------------------------- explorers

STATE_TAG = "script[type='application/vnd.jupyter.widget-state+json']"
STATE = re.compile(
    r'<script type="application/vnd.jupyter.widget-state\+json">(.*?)</script>', re.S
)
VIEW = re.compile(r'<script type="application/vnd.jupyter.widget-view\+json">(.*?)</script>', re.S)
SELECTOR = "ToggleButtonsModel"
STACKS = ("StackModel", "TabModel")  # of ipywidgets 8, of 7
CONTROL = ".widget-toggle-buttons:visible"

# The panes that are seen, and those that should be, without what the page adds to them.
PANES = """(area, expected) => {
  const plain = (html) => html.replace(/ (class|tabindex|title|style)="[^"]*"/g, "");
  const parsed = (html) => {
    const box = document.createElement("div");
    box.innerHTML = html;
    return plain(box.innerHTML);
  };
  const panes = [...area.querySelectorAll(".widget-html-content")];
  const seen = panes.filter((pane) => pane.checkVisibility());
  return [seen.map((pane) => plain(pane.innerHTML)), expected.map(parsed)];
}"""


def _id(reference: str) -> str:
    return reference.removeprefix("IPY_MODEL_")


def turned_by(models: dict[str, dict]) -> dict[str, str]:
    """The id of each stack of panes → the id of the selector that it follows."""
    links = [model["state"] for model in models.values() if "source" in model["state"]]
    return {
        _id(link["target"][0]): _id(link["source"][0])
        for link in links
        if link["target"][1] == "selected_index"
    }


class Explorer:
    """A widget in its saved state: its selectors, and what each choice shows."""

    def __init__(self, models: dict, root: str):
        self.models, self.root = models, root
        self.turned_by = turned_by(models)
        self.chosen = {
            key: model["state"]["index"]
            for key, model in models.items()
            if model["model_name"] == SELECTOR
        }

    def shown(self, key: str = "", hidden: Iterable[str] = ()) -> Iterator[str]:
        """Ids of the models that this choice shows, in the order of the page, and of those that
        `hidden` kinds of stacks don't show."""
        key = key or self.root
        yield key
        kind, state = self.models[key]["model_name"], self.models[key]["state"]
        children = [_id(child) for child in state.get("children", ())]
        if kind in STACKS and kind not in hidden:
            children = [children[self.chosen[self.turned_by[key]]]]
        for child in children:
            yield from self.shown(child, hidden)

    def drawn(self) -> int:
        """How many pieces of HTML are drawn. A Tab draws what it hides, a Stack doesn't."""
        models = (self.models[key] for key in self.shown(hidden=["TabModel"]))
        return sum(model["model_name"] == "HTMLModel" for model in models)

    def selectors(self) -> list[str]:
        return [key for key in self.shown() if key in self.chosen]

    def panes(self) -> list[str]:
        models = (self.models[key] for key in self.shown())
        return [m["state"]["value"] for m in models if m["model_name"] == "HTMLModel"]

    def options(self, key: str) -> list[str]:
        return self.models[key]["state"]["_options_labels"]

    def idle(self) -> list[str]:
        """Selectors that turn no stack of panes."""
        turning = set(self.turned_by.values())
        return [self.models[k]["state"]["description"] for k in self.chosen if k not in turning]


def explorers(html: str) -> list[Explorer]:
    """The explorers of a page, in its order; a widget without a selector is none."""
    state = STATE.search(html)
    models = json.loads(state[1])["state"] if state else {}
    found = [Explorer(models, json.loads(view)["model_id"]) for view in VIEW.findall(html)]
    return [each for each in found if each.selectors()]


def explorers_of_notebook(nb) -> list[tuple[int, Explorer]]:
    """The explorers of a notebook, each with the place of its cell, counted from 0."""
    state = nb.metadata.widgets[book.WIDGET_STATE].state
    return [
        (place, explorer)
        for place, cell in enumerate(nb.cells)
        for root in book.shown(NotebookNode(cells=[cell]))
        if (explorer := Explorer(state, root)).selectors()
    ]


def by_mouse(area, place: int, index: int) -> None:
    area.locator(CONTROL).nth(place).locator("button").nth(index).click()


def by_keyboard(area, place: int, index: int) -> None:
    """Tab, from where one is in the explorer, to the button; Space."""
    keyboard = area.page.keyboard
    button = area.locator(CONTROL).nth(place).locator("button").nth(index).element_handle()
    for _ in range(2):  # forward from here, then from the beginning
        while area.evaluate("area => area.contains(document.activeElement)"):
            if button.evaluate("button => button == document.activeElement"):
                return keyboard.press("Space")
            keyboard.press("Tab")
        area.evaluate("area => { area.tabIndex = -1; area.focus(); }")


def by_script(area, place: int, index: int) -> None:
    """Clicks as fast as can be."""
    control = area.locator(CONTROL).nth(place)
    control.evaluate("(node, at) => node.querySelectorAll('button')[at].click()", index)


def wrong_panes(area, explorer: Explorer, choose: Callable, every: bool = False) -> list[str]:
    """The choices that show another pane than theirs, or more than it.

    Each choice of each selector once, or `every` combination.
    """
    wrong = [f"{name} turns nothing" for name in explorer.idle()]

    def look() -> None:
        names = [explorer.options(key)[explorer.chosen[key]] for key in explorer.selectors()]
        seen, expected = area.evaluate(PANES, explorer.panes())
        if seen != expected:
            wrong.append(f"{', '.join(names)}: {len(seen)} panes, not the {len(expected)} of it")

    def take(place: int, index: int) -> None:
        explorer.chosen[explorer.selectors()[place]] = index
        choose(area, place, index)

    def walk(place: int) -> None:
        selectors = explorer.selectors()
        if place == len(selectors):
            return look()
        for index in range(len(explorer.options(selectors[place]))):
            take(place, index)
            walk(place + 1)

    look()
    if every:
        walk(0)
        return wrong
    for place in range(len(explorer.selectors())):
        for index in range(len(explorer.options(explorer.selectors()[place]))):
            take(place, index)
            look()
    return wrong
