"""What several test files share: the built pages, served, and a browser to look at them."""

import importlib.util
import os
import shutil
import sys
from contextlib import suppress

import pytest
from browsing import served

from sgemm_lab import book
from sgemm_lab.paths import ROOT

HTML = ROOT / "_build" / "html"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def benchmark(name: str):
    """A script of benchmarks/ as a module."""
    path = ROOT / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pytest_report_header():
    """How many cells nbval compares; a notebook that cannot be read is a test's business."""
    with suppress(book.NotebookError):
        return "book: " + book.summary([book.read(path) for path in book.notebooks()])


@pytest.fixture(scope="session")
def site():
    """The built book, served on this machine."""
    if not (HTML / "index.html").is_file():
        pytest.skip("the book is not built: make book")
    with served(HTML) as site:
        yield site


@pytest.fixture(scope="session")
def browser():
    """Chromium: the system's, else the one that `playwright install chromium` brings."""
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        own = playwright.chromium.executable_path
        found = next(filter(None, map(shutil.which, BROWSERS)), None)
        if not found and not os.path.exists(own):
            pytest.skip("no browser here: apt-get install chromium, or playwright install chromium")
        chromium = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield chromium
        chromium.close()
