"""The explorers where a kernel is: in JupyterLab with this environment's ipywidgets 8, and executed
with Colab's packages, ipywidgets 7 among them; and the pages that are built of the latter."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import colab
import pytest
import site_checks as checks
from browsing import served, shown, watched, wrong_choices

from sgemm_lab import book
from sgemm_lab.paths import ROOT

EXPLORERS = ("02_tiled", "04_bank_conflicts", "counting", "ladder", "limits")


COLAB = [pytest.param(version, marks=pytest.mark.colab) for version in colab.PYTHONS]
HERE = pytest.param("here", marks=pytest.mark.slow)


def runtimes(*which):
    return pytest.mark.parametrize("runtime", which, indirect=True, scope="module")


@pytest.fixture(scope="module")
def runtime(request, tmp_path_factory):
    """A Python, and a folder with notebooks that it executed: stem → path."""
    folder = tmp_path_factory.mktemp("runtime")
    if request.param == "here":
        copies = {stem: Path(shutil.copy(book.find(stem), folder)) for stem in EXPLORERS}
        return SimpleNamespace(python=Path(sys.executable), folder=folder, notebooks=copies)
    if colab.missing(request.param):
        pytest.skip(f"there is no python{request.param} here")
    python = colab.environment(request.param)
    copies = colab.execute(python, EXPLORERS, folder)
    return SimpleNamespace(python=python, folder=folder, notebooks=copies)


def uncoloured(models: dict) -> dict:
    """Widgets without the colours of code in them: an older Pygments knows fewer words of C++."""
    return json.loads(re.sub(r"</?span[^>]*>", "", json.dumps(models)))


@pytest.fixture(scope="module")
def jupyter(runtime):
    with colab.lab(runtime.python, runtime.folder) as url:
        yield url


@runtimes(*COLAB)
def test_the_outputs_are_the_committed_ones_but_for_how_charts_are_drawn(runtime):
    drawn = ("image differs", "text/html differs", "widget state differs")
    for stem, path in runtime.notebooks.items():
        found = book.differences(book.find(stem), book.read(path))
        assert [each for each in found if not any(way in each for way in drawn)] == []


@runtimes(*COLAB)
def test_the_widgets_are_the_committed_ones_in_the_words_of_ipywidgets_7(runtime):
    for stem, path in runtime.notebooks.items():
        here, there = (
            book.read(each).metadata.widgets[book.WIDGET_STATE].state
            for each in (book.find(stem), path)
        )
        assert uncoloured(there) == uncoloured(colab.as_saved_there(here))


OPENED = """(count) => {
  const {content, sessionContext} = window.jupyterapp?.shell.currentWidget ?? {};
  return sessionContext?.isReady && content.widgets.length == count;
}"""
RUN_ALL = """async () => {
  await jupyterapp.commands.execute("notebook:clear-all-cell-outputs");
  await jupyterapp.commands.execute("notebook:run-all-cells");
}"""
# Newer JupyterLabs have only the cells in their document that are near to what is seen.
SCROLLED = """async (number) => {
  const notebook = jupyterapp.shell.currentWidget.content;
  const cell = notebook.widgets[number].node;
  await (notebook.scrollToItem?.(number, "start") ?? cell.scrollIntoView());
}"""
DRAWN = """([number, count]) => {
  const cell = jupyterapp.shell.currentWidget.content.widgets[number]?.node;
  if (cell) cell.dataset.number = number;
  return cell?.querySelectorAll(".widget-html-content").length == count;
}"""


def wrong_in_lab(page, nb, choose) -> list[str]:
    """The choices in an open notebook at which JupyterLab shows another pane than theirs."""
    wrong = []
    for number, explorer in checks.explorers_of_notebook(nb):
        page.evaluate(SCROLLED, number)
        page.wait_for_function(DRAWN, arg=[number, explorer.drawn()])
        area = page.locator(f"[data-number='{number}'] .jp-OutputArea-output")
        wrong += checks.wrong_panes(area, explorer, choose)
    return wrong


def wrong_in_jupyterlab(browser, url: str, path: Path) -> list[str]:
    """What goes wrong with the explorers of a notebook: as it is opened, by mouse, and when all of
    it was run, by keyboard."""
    nb = book.read(path)
    with watched(browser, url) as (page, wrong):
        page.goto(f"{url}doc/tree/{path.name}")
        page.wait_for_function(OPENED, arg=len(nb.cells))
        wrong.clear()  # what JupyterLab itself says on its way
        saved = wrong_in_lab(page, nb, checks.by_mouse)
        page.evaluate(RUN_ALL)
        run = wrong_in_lab(page, nb, checks.by_keyboard)
    # "about:blank" is a font that JupyterLab 3's own MathJax asks for
    return saved + run + [each for each in wrong if "about:blank" not in each]


@runtimes(HERE, *COLAB)
@pytest.mark.parametrize("stem", EXPLORERS)
def test_each_choice_shows_its_pane_and_only_it_in_jupyterlab(runtime, jupyter, browser, stem):
    assert wrong_in_jupyterlab(browser, jupyter, runtime.notebooks[stem]) == []


@runtimes(*COLAB)
def test_what_is_saved_there_switches_on_the_built_page(runtime, browser, tmp_path):
    skip = shutil.ignore_patterns(".*", "_build", "node_modules", "*.egg-info")
    source = shutil.copytree(ROOT, tmp_path / "book", ignore=skip)
    (source / "node_modules").symlink_to(ROOT / "node_modules")
    for path in runtime.notebooks.values():
        shutil.copy(path, source / "book")
    build = Path(sys.executable).with_name("jupyter-book")
    subprocess.run([build, "build", source, "-n", "-W", "--keep-going", "--quiet"], check=True)
    with served(source / "_build" / "html") as site:
        for stem in runtime.notebooks:
            with shown(browser, site, f"book/{stem}") as view:
                assert wrong_choices(view.explorers(), checks.by_mouse) == []
                assert view.wrong == []
