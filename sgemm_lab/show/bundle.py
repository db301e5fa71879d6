"""What a cell shows: HTML for the page, and plain text that says the same, both chosen by us.

nbval compares both, so the same call gives the same bytes. Charts of numbers are matplotlib's
(`plot`), with a PNG for front ends that refuse HTML; pictures of memory and tiles are put together
from the few shapes below. Colours are CSS variables (--lab-ink, --lab-muted, --lab-faint,
--lab-accent, --lab-paper), which a page may set; without them the figure follows the theme of the
book, of JupyterLab and of Colab.
"""

import io
import logging
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

# A first import may take long and then says so on stderr, which would be part of a cell's output.
logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)

import matplotlib.style  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from PIL import Image  # noqa: E402

WIDTH = 480  # units of every drawing; one narrower than 27rem scrolls in a box of its own

# The light theme, in which charts are drawn; `plot` puts the variables in their place.
INK, MUTED, FAINT, ACCENT, PAPER = "#1f2328", "#57606a", "#d0d7de", "#b3470a", "#ffffff"

STYLE = """<style>
.lab{--i:var(--lab-ink,#1f2328);--m:var(--lab-muted,#57606a);--f:var(--lab-faint,#d0d7de);\
--a:var(--lab-accent,#b3470a);--p:var(--lab-paper,#ffffff);color:var(--i);\
margin:1em 0;max-width:40rem;line-height:1.4}
html[data-theme=dark] .lab,html[theme=dark] .lab,body[data-jp-theme-light=false] .lab{\
--i:var(--lab-ink,#e6edf3);--m:var(--lab-muted,#9da7b3);--f:var(--lab-faint,#3d444d);\
--a:var(--lab-accent,#ff9d5c);--p:var(--lab-paper,#121212)}
.lab svg[role=img]{display:block;width:100%;min-width:27rem;height:auto;stroke-linejoin:round}
.lab text{font:13px system-ui,sans-serif;fill:var(--i)}
.lab .m{fill:var(--m)}.lab .a{fill:var(--a)}.lab .b{font-weight:600}.lab .s{font-size:11px}
.lab .f{fill:var(--f)}.lab .w{fill:var(--a);fill-opacity:.25}.lab .n{fill:none}
.lab .lm{stroke:var(--m);fill:none}.lab .lf{stroke:var(--f);fill:none}
.lab.lab figcaption,.lab.lab summary{font:inherit;font-size:.875em;color:var(--m);text-align:left;\
margin:.3em 0}
.lab table{border-collapse:collapse;font-size:.8125em;margin:.5em 0;color:var(--i)}
.lab.lab th,.lab.lab td{padding:.15em .4em;text-align:right;white-space:nowrap;background:none;\
border:0;border-bottom:1px solid var(--f)}
.lab.lab th,.lab.lab tr>:first-child{white-space:normal}
.lab.lab tr>:first-child{text-align:left;padding-left:0}
.lab .x{color:var(--a)}.lab u{display:block;height:3px;background:var(--m);margin-left:auto}\
.lab .x u{background:var(--a)}.lab div{overflow-x:auto}
.lab .widget-label{color:var(--i)}.lab .jupyter-button{background:var(--f);color:var(--i)}
.lab .jupyter-button.mod-active{background:var(--a);color:var(--p)}
.lab .lab,.lab .lab p{margin:.4em 0}
</style>"""


@dataclass(frozen=True)
class Bundle:
    """A cell's output: shown as `html` where HTML is shown, else as `png` if any, or as `text`."""

    html: str
    text: str
    png: bytes = b""

    def _repr_mimebundle_(self, include=None, exclude=None) -> tuple[dict, dict]:
        data = {"text/html": self.html, "text/plain": self.text}
        if not self.png:
            return data, {}
        data["image/png"] = b64encode(self.png).decode()
        return data, {"image/png": {"width": WIDTH}}

    def __repr__(self) -> str:
        return self.text


def figure(
    drawing: str,
    alt: str,
    header: Sequence[str],
    rows: Iterable[Sequence],
    caption: str = "",
    png: bytes = b"",
) -> Bundle:
    """An SVG, a caption, and a folded table of the numbers that the SVG shows.

    The plain text is `alt`, then the table; `png` shows what the SVG shows.
    """
    rows = list(rows)
    note = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    folded = f"<details><summary>The numbers</summary>{table_html(header, rows)}</details>"
    return Bundle(
        f'<figure class="lab">{STYLE}<div>{drawing}</div>{note}{folded}</figure>',
        f"{alt}\n\n{table_text(header, rows)}",
        png,
    )


def table_html(header: Sequence[str], rows: Iterable[Sequence]) -> str:
    """An HTML table; cells are escaped, a `Cell` brings its own markup. What has no heading gets an
    empty cell, not a heading that is read out as nothing."""
    head = "".join(f'<th scope="col">{_markup(c)}</th>' if c else "<td></td>" for c in header)
    body = "".join(
        f"<tr>{''.join(f'<td>{_markup(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<div><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def table_text(header: Sequence[str], rows: Iterable[Sequence]) -> str:
    """The same table in plain text: the first column left, the others right-aligned."""
    grid = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    lines = (
        "  ".join(
            cell.rjust(width) if index else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in grid
    )
    return "\n".join(line.rstrip() for line in lines)


class Cell(str):
    """A table cell whose HTML (`markup`) says more than its text."""

    markup: str

    def __new__(cls, text: str, markup: str):
        cell = super().__new__(cls, text)
        cell.markup = markup
        return cell


def _markup(cell) -> str:
    return cell.markup if isinstance(cell, Cell) else escape(str(cell))


# ----------------------------------------------------------------------------- matplotlib

_LOOK = {
    "figure.dpi": 72,  # a point is a unit of the SVG
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.w_pad": 0.02,  # inches
    "figure.constrained_layout.h_pad": 0.04,
    "font.family": ["DejaVu Sans"],  # comes with matplotlib, and is wider than what pages use
    "font.size": 13,
    "text.color": INK,
    "axes.titlesize": 11,
    "axes.titlecolor": MUTED,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.labelsize": 11,
    "axes.labelcolor": MUTED,
    "grid.color": FAINT,
    "grid.linewidth": 1,
    "axes.titlepad": 9,
    "xtick.major.pad": 5,
    "xtick.minor.pad": 5,
    "lines.markersize": 5,
    "lines.markeredgewidth": 1.2,
    **{f"axes.spines.{side}": False for side in ("left", "right", "top", "bottom")},
    **{f"{axis}tick.{size}.size": 0 for axis in "xy" for size in ("major", "minor")},
    **{f"{axis}tick.labelsize": 11 for axis in "xy"},
    **{f"{axis}tick.labelcolor": MUTED for axis in "xy"},
    "svg.fonttype": "none",
}
_VARIABLES = {INK: "var(--i)", MUTED: "var(--m)", FAINT: "var(--f)",
              ACCENT: "var(--a)", PAPER: "var(--p)"}  # fmt: skip


def plot(draw: Callable[[Axes], None], height: float, alt: str) -> tuple[str, bytes]:
    """What `draw` draws on matplotlib's Axes, `WIDTH`×`height` units: an SVG and a PNG.

    `draw` uses the colours above and no others, or KeyError is raised.
    """
    vector, pixels, png = io.StringIO(), io.BytesIO(), io.BytesIO()
    salt = {"svg.hashsalt": alt}  # ids that no other chart of the page has
    with matplotlib.style.context(["default", _LOOK, salt]):
        page = Figure((WIDTH / 72, height / 72))
        draw(page.add_subplot())
        page.savefig(vector, format="svg", transparent=True)
        page.savefig(pixels, format="png", dpi=2 * 72)  # crisp on fine screens, too
    Image.open(pixels).convert("RGB").quantize(64).save(png, "png", optimize=True)
    return svg(WIDTH, height, [_themed(vector.getvalue())], alt), png.getvalue()


def _themed(drawing: str) -> str:
    """The inside of matplotlib's SVG in the page's colours and font, short enough for a page."""
    body = drawing[drawing.index("<g ") : drawing.rindex("</svg>")]  # no header, date, style sheet
    for pattern, new in (
        (r"\n\s*", ""),
        (r'<g id="[^"]*"', "<g"),  # the same in every chart; what is referred to has a hash
        (r' transform="rotate\(-0 [^"]*"', ""),
        (r"'DejaVu Sans'[^;\"]*", "system-ui,sans-serif"),
        ("xlink:href", "href"),
        (r"\d+\.\d{3,}", lambda found: _n(float(found[0]))),
        (r"#[0-9a-f]{6}\b(?=[;\"])", lambda found: _VARIABLES[found[0]]),
    ):
        body = re.sub(pattern, new, body)
    return body


# --------------------------------------------------------------------------------------- SVG


def svg(width: float, height: float, parts: Iterable[str], alt: str) -> str:
    """A drawing `width` units wide that scales to its column; `alt` is read out."""
    return (
        f'<svg viewBox="0 0 {_n(width)} {_n(height)}" role="img" aria-label="{escape(alt)}">'
        f"{''.join(parts)}</svg>"
    )


def text(x: float, y: float, words: str, style: str = "", anchor: str = "start") -> str:
    """Words on the baseline y; `anchor` "start", "middle" or "end" at x."""
    at = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{_n(x)}" y="{_n(y)}"{at}{_class(style)}>{escape(words)}</text>'


def rect(x: float, y: float, width: float, height: float, style: str) -> str:
    return (
        f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}"{_class(style)}/>'
    )


def path(points: Iterable[tuple[float, float]], style: str) -> str:
    """Straight lines from point to point."""
    steps = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
    return f'<path d="M{steps}"{_class(style)}/>'


def _n(value: float) -> str:
    return f"{round(value, 1) + 0:g}"  # + 0: no "-0"


def _class(style: str) -> str:
    return f' class="{style}"' if style else ""
