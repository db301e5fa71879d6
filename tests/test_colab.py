"""Every notebook on Colab: alone in a folder, with Colab's packages, ipywidgets 7 among them, on
the GPU runtime (whose GPU is missing here) and the CPU runtime. And the explorers: in JupyterLab,
there and with ipywidgets 8 here, and on the pages that are built of what Colab saves."""

import json
import os
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

from sgemm_lab import book, notebooks
from sgemm_lab.paths import ROOT

EXPLORERS = ("02_tiled", "04_bank_conflicts", "counting", "ladder", "limits")
CHAPTERS = [path.stem for path in book.notebooks()]


def colabs(kind, *versions):
    return [
        pytest.param((version, kind), id=f"{version} {kind}", marks=pytest.mark.colab)
        for version in versions
    ]


GPU, CPU = colabs("GPU", *colab.PYTHONS), colabs("CPU", colab.PYTHONS[-1])
HERE = pytest.param(None, id="here", marks=pytest.mark.slow)


def runtimes(*which):
    return pytest.mark.parametrize("runtime", which, indirect=True, scope="module")


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    return colab.published(tmp_path_factory.mktemp("published") / "tree")


@pytest.fixture(scope="module")
def runtime(request, tmp_path_factory):
    """A Python, the variables of its Jupyter, and a folder with notebooks: stem → path. On Colab
    they are executed and as they are then."""
    folder = tmp_path_factory.mktemp("runtime")
    if request.param is None:
        python = Path(sys.executable)
        told, paths = colab.variables(python, folder / "home"), colab.copies(EXPLORERS, folder)
    else:
        version, kind = request.param
        if colab.missing(version):
            pytest.skip(f"there is no python{version} here")
        python, repository = colab.environment(version), request.getfixturevalue("published")
        told = colab.on_colab(python, folder / "home", repository, kind)
        paths = colab.copies(CHAPTERS, folder)
        colab.execute(paths.values(), told)
    return SimpleNamespace(python=python, told=told, folder=folder, notebooks=paths)


@pytest.fixture(scope="module")
def jupyter(runtime):
    with colab.lab(runtime.python, runtime.folder, runtime.told) as url:
        yield url


RUNS_ON = {
    "GPU": "Kernels run on the PTX machine, without a GPU · NVRTC 12.8.93",
    "CPU": "The book's kernels run on the PTX machine, compiled beforehand · no NVRTC",
}


@runtimes(*GPU, *CPU)
def test_the_first_cell_brings_the_book_and_says_how_to_get_a_gpu(runtime, request):
    version, kind = request.node.callspec.params["runtime"]
    line = rf"{RUNS_ON[kind]} · Python {version}.\d+ · for a GPU choose .* > T4 GPU\n"
    without = subprocess.run(
        [runtime.python, "-c", "import sgemm_lab"],
        env=os.environ | runtime.told, cwd=runtime.folder, capture_output=True, text=True,
    )  # fmt: skip
    assert without.stderr.endswith("No module named 'sgemm_lab'\n")
    for path in runtime.notebooks.values():
        (output,) = book.read(path).cells[0].outputs
        assert output.name == "stdout" and re.fullmatch(line, output.text)
        there = {each.name for each in path.parent.glob("[!.]*")}
        assert there == {path.name, f"a-book-{book.revision()}"}


@runtimes(*GPU, *CPU)
@pytest.mark.parametrize("stem", CHAPTERS)
def test_the_outputs_are_the_committed_ones_but_for_how_charts_are_drawn(runtime, stem):
    drawn = ("image differs", "text/html differs", "widget state differs")
    here = book.with_colab_cell(book.read(runtime.notebooks[stem]))  # without its output there
    found = book.differences(book.find(stem), here)
    assert [each for each in found if not any(way in each for way in drawn)] == []


# An older Pygments knows fewer words of C++, and Matplotlib has its own measures of text.
COLOURS = re.compile(r"</?span[^>]*>")
DRAWING = re.compile(r"<svg.*?</svg>", re.DOTALL)
MARKS = re.compile(r"<style.*?</style>|<[^>]*>", re.DOTALL)


def said(path: Path) -> list[str]:
    """The HTML that a notebook shows, without the colours of code; of drawings their words."""
    cells = [
        cell for cell in book.code_cells(book.read(path)) if book.IGNORE not in book.tags(cell)
    ]
    shown = [output.data.get("text/html", "") for cell in cells for output in cell.outputs
             if "data" in output]  # fmt: skip
    return [
        DRAWING.sub(lambda svg: MARKS.sub(" ", svg[0]), COLOURS.sub("", each)) for each in shown
    ]


@runtimes(*GPU, *CPU)
@pytest.mark.parametrize("stem", CHAPTERS)
def test_tables_and_charts_say_what_is_committed(runtime, stem):
    assert said(runtime.notebooks[stem]) == said(book.find(stem))


def models(path: Path) -> dict:
    return book.read(path).metadata.get("widgets", {}).get(book.WIDGET_STATE, {}).get("state", {})


def uncoloured(models: dict) -> dict:
    return json.loads(COLOURS.sub("", json.dumps(models)))


@runtimes(*GPU, *CPU)
@pytest.mark.parametrize("stem", CHAPTERS)
def test_the_widgets_are_the_committed_ones_in_the_words_of_ipywidgets_7(runtime, stem):
    here, there = models(book.find(stem)), models(runtime.notebooks[stem])
    assert uncoloured(there) == uncoloured(colab.as_saved_there(here))
    assert there or stem not in EXPLORERS


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


# What goes wrong in JupyterLab 3 itself: a font that its MathJax asks for; its editor of metadata,
# which sets the text of an editor that is not there (seen while other jobs ran, not alone).
LABS_OWN = re.compile(r"about:blank|setting 'text'\)\s+at \w+\._setValue .*/jlab_core\.")


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
        page.goto(f"{url}doc/tree/{path.parent.name}/{path.name}")
        page.wait_for_function(OPENED, arg=len(nb.cells))
        wrong.clear()  # what JupyterLab itself says on its way
        saved = wrong_in_lab(page, nb, checks.by_mouse)
        page.evaluate(RUN_ALL)
        run = wrong_in_lab(page, nb, checks.by_keyboard)
    return saved + run + [each for each in wrong if not LABS_OWN.search(each)]


@runtimes(HERE, *GPU)
@pytest.mark.parametrize("stem", EXPLORERS)
def test_each_choice_shows_its_pane_and_only_it_in_jupyterlab(runtime, jupyter, browser, stem):
    assert wrong_in_jupyterlab(browser, jupyter, runtime.notebooks[stem]) == []


@runtimes(*GPU)
def test_what_is_saved_there_switches_on_the_built_page(runtime, browser, tmp_path):
    skip = shutil.ignore_patterns(".*", "_build", "node_modules", "*.egg-info")
    source = shutil.copytree(ROOT, tmp_path / "book", ignore=skip)
    (source / "node_modules").symlink_to(ROOT / "node_modules")
    for stem in EXPLORERS:
        notebooks.fix(Path(shutil.copy(runtime.notebooks[stem], source / "book")))
    build = Path(sys.executable).with_name("jupyter-book")
    subprocess.run([build, "build", source, "-n", "-W", "--keep-going", "--quiet"], check=True)
    with served(source / "_build" / "html") as site:
        for stem in EXPLORERS:
            with shown(browser, site, f"book/{stem}") as view:
                assert wrong_choices(view.explorers(), checks.by_mouse) == []
                assert view.wrong == []
