"""Sphinx extension: what the page about the architecture shows, taken from the code.

- ``{data-flow}`` draws how the parts hand things on, from the tables below.
- ``{modules} ROOM`` lists the modules of a folder of sgemm_lab with their first sentences;
  without ROOM, those that lie in no folder.
"""

import ast
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

PACKAGE = Path(__file__).resolve().parents[2] / "sgemm_lab"

# box -> (column, row, columns that it spans), title, what stands below it
BOXES = {
    "kernel": ((0, 0, 3), "kernels/NN_name.cu", "and your own"),
    "nvrtc": ((0, 1, 2), "NVRTC", "a compiler that needs no GPU"),
    "cupy": ((2, 1, 1), "CuPy", "on a GPU"),
    "machine": ((0, 2, 1), "PTX machine", "lane by lane"),
    "ptxas": ((1, 2, 1), "ptxas report", "registers, spills"),
    "bench": ((2, 2, 1), "bench", "times"),
    "judges": ((0, 3, 1), "check, profile", "judge, audit"),
    "records": ((1, 3, 2), "book/measurements/*.json", "with their provenance"),
    "show": ((0, 4, 3), "charts, tables, explorers", "drawn from records and counts"),
    "chapters": ((0, 5, 3), "book/NN_name.ipynb", "committed with outputs, the same everywhere"),
    "pages": ((0, 6, 1), "pages", "no kernel"),
    "colab": ((1, 6, 1), "Colab, JupyterLab", "kernels run"),
    "tests": ((2, 6, 1), "nbval, run --check", "in CI"),
}
ARROWS = (
    ("kernel", "nvrtc"), ("kernel", "cupy"), ("nvrtc", "machine"), ("nvrtc", "ptxas"),
    ("cupy", "bench"), ("machine", "judges"), ("machine", "records"), ("ptxas", "records"),
    ("bench", "records"), ("judges", "show"), ("records", "show"), ("show", "chapters"),
    ("chapters", "pages"), ("chapters", "colab"), ("chapters", "tests"),
)  # fmt: skip
COLUMN, ROW, GAP, WIDTH, HEIGHT = 163, 66, 26, 476, 40


def corner(box: str) -> tuple[float, float, float]:
    """Left, top and width of a box."""
    (column, row, span), *_ = BOXES[box]
    return 2 + column * COLUMN, 2 + row * ROW, span * COLUMN - (COLUMN * 3 - WIDTH)


def arrow(start: str, end: str) -> list[tuple[float, float]]:
    """From the lower edge of a box to the upper edge of another; straight down where it can be."""
    (x0, y0, w0), (x1, y1, w1) = corner(start), corner(end)
    left, right = max(x0, x1), min(x0 + w0, x1 + w1)
    x0, x1 = [(left + right) / 2] * 2 if left < right else (x0 + w0 - 12, x1 + 12)
    return [(x0, y0 + HEIGHT), (x1, y1)]


def drawing() -> str:
    from sgemm_lab.show.bundle import STYLE, path, rect, svg, text

    parts = []
    for start, end in ARROWS:
        (x0, y0), (x1, y1) = arrow(start, end)
        parts.append(path([(x0, y0), (x1, y1 - 1)], "lm"))
        parts.append(path([(x1 - 4, y1 - 7), (x1, y1 - 1), (x1 + 4, y1 - 7)], "lm"))
    for box, (_, title, below) in BOXES.items():
        x, y, width = corner(box)
        parts.append(rect(x, y, width, HEIGHT, "n lm"))
        parts.append(text(x + width / 2, y + 17, title, "b", "middle"))
        parts.append(text(x + width / 2, y + 32, below, "m s", "middle"))
    rows = 1 + max(row for (_, row, _), *_ in BOXES.values())
    alt = "; ".join(f"{BOXES[a][1]} to {BOXES[b][1]}" for a, b in ARROWS)
    picture = svg(WIDTH + 4, rows * ROW - GAP + 4, parts, f"What goes where: {alt}.")
    return f'<figure class="lab">{STYLE}<div>{picture}</div></figure>'


def modules(room: str = "") -> dict[str, str]:
    """File -> first sentence of its docstring; a package without one says nothing."""
    found = {}
    for file in sorted((PACKAGE / room).glob("*.py")):
        said = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        if sentence := " ".join(said.split("\n\n")[0].split()):
            found[file.relative_to(PACKAGE).as_posix()] = sentence
    return found


class DataFlow(SphinxDirective):
    def run(self):
        return [nodes.raw("", drawing(), format="html")]


class Modules(SphinxDirective):
    optional_arguments = 1

    def run(self):
        lines = [f"- `{name}`: {said}" for name, said in modules(*self.arguments).items()]
        node = nodes.container()
        self.state.nested_parse(StringList(lines), self.content_offset, node)
        return node.children


def setup(app):
    app.add_directive("data-flow", DataFlow)
    app.add_directive("modules", Modules)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
