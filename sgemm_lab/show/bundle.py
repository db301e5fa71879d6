"""What a cell shows: HTML for the page, and plain text that says the same, both chosen by us.

nbval compares both, on machines with other library versions. So SVG is drawn here from rounded
numbers, not by a plotting library whose bytes change with its version and fonts. Colours are CSS
variables (--lab-ink, --lab-muted, --lab-faint, --lab-accent, --lab-paper), which a page may set;
without them the figure follows the theme of the book, of JupyterLab and of Colab.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

STYLE = """<style>
.lab{--i:var(--lab-ink,#1f2328);--m:var(--lab-muted,#57606a);--f:var(--lab-faint,#d0d7de);\
--a:var(--lab-accent,#b3470a);--p:var(--lab-paper,#fff);color:var(--i);\
margin:1em 0;max-width:40rem;line-height:1.4}
html[data-theme=dark] .lab,html[theme=dark] .lab,body[data-jp-theme-light=false] .lab{\
--i:var(--lab-ink,#e6edf3);--m:var(--lab-muted,#9da7b3);--f:var(--lab-faint,#3d444d);\
--a:var(--lab-accent,#ff9d5c);--p:var(--lab-paper,#121212)}
.lab svg{display:block;width:100%;height:auto}
.lab text{font:13px system-ui,sans-serif;fill:var(--i)}
.lab .m{fill:var(--m)}.lab .a{fill:var(--a)}.lab .b{font-weight:600}.lab .s{font-size:11px}
.lab .f{fill:var(--f)}.lab .w{fill:var(--a);fill-opacity:.25}.lab .n{fill:none}
.lab .lm{stroke:var(--m);fill:none}.lab .lf{stroke:var(--f);fill:none}\
.lab .la{stroke:var(--a);fill:none}.lab .t{stroke-width:2}.lab .h{fill:var(--p);stroke:var(--m)}\
.lab .ha{fill:var(--p);stroke:var(--a);stroke-width:2}
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
    """A cell's output: shown as `html` where HTML is shown, else as `text`."""

    html: str
    text: str

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": self.text}

    def __repr__(self) -> str:
        return self.text


def figure(
    drawing: str, alt: str, header: Sequence[str], rows: Iterable[Sequence], caption: str = ""
) -> Bundle:
    """An SVG, a caption, and a folded table of the numbers that the SVG shows.

    The plain text is the caption or, without one, `alt`; then the table.
    """
    rows = list(rows)
    note = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    folded = f"<details><summary>The numbers</summary>{table_html(header, rows)}</details>"
    return Bundle(
        f'<figure class="lab">{STYLE}{drawing}{note}{folded}</figure>',
        f"{alt}\n\n{table_text(header, rows)}",
    )


def table_html(header: Sequence[str], rows: Iterable[Sequence]) -> str:
    """An HTML table; cells are escaped, a `Cell` brings its own markup."""
    head = "".join(f'<th scope="col">{_markup(cell)}</th>' for cell in header)
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


def circle(x: float, y: float, radius: float, style: str) -> str:
    return f'<circle cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius)}"{_class(style)}/>'


def path(points: Iterable[tuple[float, float]], style: str, closed: bool = False) -> str:
    """Straight lines from point to point."""
    steps = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
    return f'<path d="M{steps}{"Z" * closed}"{_class(style)}/>'


def _n(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".").replace("-0", "0") if value else "0"


def _class(style: str) -> str:
    return f' class="{style}"' if style else ""
