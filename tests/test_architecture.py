"""The page about the architecture says what is so: every module, and who may use whom."""

import ast
import re
from html import unescape

import pytest
from conftest import HTML

from sgemm_lab.paths import ROOT

PACKAGE = ROOT / "sgemm_lab"
PAGE = ROOT / "book" / "architecture.md"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.read_text().strip())
ROOMS = ["", *re.findall(r"^```\{modules\} (\w+)$", PAGE.read_text(), re.MULTILINE)]
DOOR = {"devices", "ladder", "paths"}  # what all rooms use; the others at the door use all rooms


def name(path) -> str:
    """A module as it is imported, without the package: "simt.ptx"."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def imported(source: str) -> set[str]:
    """The modules of sgemm_lab that come along when this source is imported: no deeper level."""
    found = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "sgemm_lab":
            inside = node.module.partition(".")[2]
            found |= {f"{inside}.{each.name}".strip(".") for each in node.names}
    known = {name(path) for path in PACKAGE.rglob("*.py")}
    return {each if each in known else each.rpartition(".")[0] for each in found}


def room(module: str) -> str:
    return module.rpartition(".")[0]


def upward(module: str, source: str) -> list[str]:
    """What a module imports from a room below its own."""
    if room(module) == "" and module not in DOOR:
        return []
    low = DOOR if room(module) == "" else DOOR | set(ROOMS[1 : ROOMS.index(room(module)) + 1])
    return [
        f"{module} imports {each}, which stands below it. Import it inside the function that needs "
        f"it, or move what is needed up"
        for each in sorted(imported(source))
        if (room(each) or each) not in low
    ]


def test_the_page_has_a_part_for_each_room():
    folders = {path.parent.relative_to(PACKAGE).as_posix() for path in MODULES} - {"."}
    assert set(ROOMS[1:]) == folders


def test_every_module_says_what_it_is():
    assert [name(p) for p in MODULES if not ast.get_docstring(ast.parse(p.read_text()))] == []


@pytest.mark.usefixtures("site")
def test_the_built_page_names_every_module_with_its_first_words():
    page = unescape(re.sub(r"<[^>]+>", "", (HTML / "book" / "architecture.html").read_text()))
    page = " ".join(page.split())
    missing = [
        path.relative_to(PACKAGE).as_posix()
        for path in MODULES
        if f"{path.relative_to(PACKAGE).as_posix()}: " not in page
    ]
    assert missing == []


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_a_module_brings_only_what_stands_above_it(path):
    assert upward(name(path), path.read_text()) == []


@pytest.mark.parametrize("module, line, wrong", [
    ("simt.ptx", "from sgemm_lab.run.nvrtc import version", True),
    ("simt.ptx", "from sgemm_lab import book", True),
    ("ladder", "from sgemm_lab.simt import ptx", True),
    ("run.nvrtc", "from sgemm_lab.simt import ptx", False),
    ("show.charts", "from sgemm_lab.measure.records import runs", False),
    ("simt.ptx", "def f():\n    from sgemm_lab.run import nvrtc", False),
])  # fmt: skip
def test_an_import_from_below_is_found(module, line, wrong):
    assert bool(upward(module, line)) == wrong
