"""The page of names: every public name with its docstring, and nothing of this machine."""

import importlib.util
import re
from html import unescape

import pytest
from conftest import HTML

import sgemm_lab
from sgemm_lab import book
from sgemm_lab.paths import ROOT

PAGE = (ROOT / "book" / "api.md").read_text(encoding="utf-8")
LINES = "".join(re.findall(r"^```\{api\}\n(.*?)^```$", PAGE, re.M | re.S)).splitlines()
BY_HAND = re.findall(r"^```\{py:data\} (\w+)$", PAGE, re.M)


@pytest.fixture(scope="module")
def api():
    spec = importlib.util.spec_from_file_location("api", ROOT / "book" / "_ext" / "api.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_every_public_name_once():
    own = [line.partition(":")[0] for line in LINES if " from " not in line]
    assert sorted([*own, *BY_HAND]) == sorted(sgemm_lab.__all__)


@pytest.mark.parametrize("line", LINES)
def test_what_the_page_says_has_words_and_no_path_of_this_machine(api, line):
    text = api.line(line, sgemm_lab)
    assert len(text.split()) > 4
    assert book.machine(text) == [] and "MEASUREMENTS'" not in text


def test_a_signature_has_no_types_and_its_defaults_as_written(api):
    assert api.signature(sgemm_lab.launch) == "(variant, A, B, C=None, alpha=1.0, beta=0.0, on=cp)"
    assert "directory=MEASUREMENTS" in api.signature(sgemm_lab.records.runs)


def test_what_means_something_in_markdown_is_shown_as_it_is(api):
    def f():
        """`a[0](b)` and ladder[2](TILE=16), 2*3*4, <b>, 5 $ or 6 $."""

    assert api.documented(f) == (r"`a[0](b)` and ladder\[2](TILE=16), 2\*3\*4, \<b>, 5 \$ or 6 \$.")


def test_a_name_without_words_is_refused(api):
    with pytest.raises(ValueError, match="has no docstring"):
        api.documented(lambda: None)


@pytest.mark.usefixtures("site")
def test_every_name_can_be_linked_to_and_stands_under_its_words():
    html = (HTML / "book" / "api.html").read_text(encoding="utf-8")
    missing = [name for name in sgemm_lab.__all__ if f'id="sgemm_lab.{name}"' not in html]
    assert missing == []
    text = " ".join(unescape(re.sub(r"<[^>]+>", "", html)).split())
    assert "alpha·A·B + beta·C in float32, by a kernel of this book." in text
    assert "The steps by number or stem: ladder[2] is ladder[" in text
