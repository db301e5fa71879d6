"""The built pages as files: what links to what, and how heavy they are."""

from pathlib import Path

import pytest
import site_checks as checks
import yaml
from conftest import HTML

from sgemm_lab.ladder import ladder
from sgemm_lab.paths import ROOT


def pages() -> list[str]:
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    files = [chapter["file"] for part in toc["parts"] for chapter in part["chapters"]]
    return [toc["root"], *files]


STEPS = [step for step in ladder if step.function]

pytestmark = pytest.mark.usefixtures("site")


def test_every_link_inside_the_book_leads_somewhere():
    assert checks.dead_links(HTML) == []


@pytest.mark.parametrize("broken, told", [
    ('<a href="gone.html">a page</a>', "gone.html: no such file"),
    ('<a href="#gone">a place</a>', "#gone: no such place"),
    ('<a href="other.html#gone">a place on a page</a>', "other.html#gone: no such place"),
    ('<img src="gone.svg" alt="">', "gone.svg: no such file"),
])  # fmt: skip
def test_a_dead_link_is_found(tmp_path, broken, told):
    (tmp_path / "other.html").write_text('<p id="there">')
    page = tmp_path / "page.html"
    page.write_text('<a href="other.html#there">x</a> <a href="https://elsewhere.org/gone">y</a>')
    assert checks.dead_links(tmp_path) == []
    page.write_text(broken)
    assert checks.dead_links(tmp_path) == [f"page.html: {told}"]


@pytest.mark.parametrize("name", pages())
def test_a_page_with_its_images_is_light(name):
    assert checks.weight(HTML / f"{name}.html") <= checks.MOST_BYTES


def test_images_count_in_a_page_s_weight(tmp_path):
    (tmp_path / "large.png").write_bytes(bytes(checks.MOST_BYTES))
    page = tmp_path / "page.html"
    page.write_text('<img src="large.png"> <img src="https://elsewhere.org/x.png">')
    assert checks.weight(page) == checks.MOST_BYTES + page.stat().st_size


def wrong_neighbours(page: Path, place: int) -> list[str]:
    """Which of "Previous" and "Next" lead astray, of the page at this place of the contents."""
    around = [None, *pages(), None]
    wanted = {"previous": around[place], "next": around[place + 2]}
    found = checks.neighbours(page)
    folder = (HTML / f"{pages()[place]}.html").parent
    return [
        way
        for way, name in wanted.items()
        if (way in found) != bool(name)
        or (name and (folder / found[way]).resolve() != (HTML / f"{name}.html").resolve())
    ]


@pytest.mark.parametrize("place, name", list(enumerate(pages())))
def test_previous_and_next_follow_the_table_of_contents(place, name):
    assert wrong_neighbours(HTML / f"{name}.html", place) == []


@pytest.mark.parametrize("old, new, told", [
    ('class="right-next"', 'class="gone"', ["next"]),
    ('class="left-prev"\n       href="', 'class="left-prev"\n       href="x', ["previous"]),
])  # fmt: skip
def test_a_page_that_leads_astray_is_found(tmp_path, old, new, told):
    html = (HTML / f"{pages()[1]}.html").read_text("utf-8")
    assert old in html
    (tmp_path / "page.html").write_text(html.replace(old, new), "utf-8")
    assert wrong_neighbours(tmp_path / "page.html", 1) == told


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.stem)
def test_a_kernel_s_source_is_one_click_from_its_chapter(step):
    chapter = HTML / "book" / f"{step.stem}.html"
    targets = {address for _, address, _ in checks.marks(chapter).refers}
    assert f"../{step.filename}" in targets
    assert (HTML / step.filename).read_bytes() == step.path.read_bytes()
