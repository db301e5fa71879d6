"""A kernel's source as a cell shows it: the real file, what is new since another step marked."""

from collections.abc import Iterator
from difflib import SequenceMatcher
from html import escape

from pygments.lexers.c_like import CudaLexer
from pygments.token import Comment, Keyword, Name

from sgemm_lab.ladder import Step, Variant
from sgemm_lab.ladder import ladder as steps
from sgemm_lab.show.bundle import STYLE, Bundle

_TONES = {Comment.Preproc: "quiet", Comment: "comment", Keyword: "word", Name.Builtin: "word"}

_STYLE = """<style>
.lab pre{counter-reset:n;overflow-x:auto;font-size:.8125em;line-height:1.45;margin:.3em 0;\
padding:.5em 0;background:none;color:inherit;border:1px solid var(--f)}
.lab pre>span{display:block;counter-increment:n;padding-right:.3em;\
border-left:3px solid transparent}
.lab pre>span::before{content:counter(n);display:inline-block;width:2.4em;margin-right:.7em;\
text-align:right;color:var(--m)}
.lab pre>.new{border-color:var(--a);background:color-mix(in srgb,var(--a) 14%,transparent)}
.lab pre .comment{color:var(--m);font-style:italic}.lab pre .word{font-weight:600}
.lab pre .quiet{color:var(--m)}
</style>"""


def show(
    what: Variant | Step | int, since: Variant | Step | int | None = None, fold: bool = False
) -> Bundle:
    """The .cu file of a step, highlighted, each line that is not in `since`'s file marked.

    `fold` shows one line that opens. The plain text marks new lines with "+". Raises ValueError for
    step 0, which has no source.
    """
    step = _step(what)
    lines = step.source.splitlines()
    new = _new_lines(_step(since).source.splitlines(), lines) if since is not None else set()
    told = f"{step.filename}, {len(lines)} lines"
    if since is not None:
        told += f"; {len(new)} are new since {_step(since).filename}"
    if isinstance(what, Variant):
        told += f"; compiled with {' '.join(what.options)}"
    rows = "".join(
        f'<span class="new">{row}</span>' if number in new else f"<span>{row}</span>"
        for number, row in enumerate(_highlighted(step.source))
    )
    code = f'<div class="highlight"><pre>{rows}</pre></div>'
    body = (
        f"<details><summary>{escape(told)}</summary>{code}</details>"
        if fold
        else f"<figcaption>{escape(told)}</figcaption>{code}"
    )
    plain = "\n".join(
        f"{'+' if number in new else ' '} {line}".rstrip() for number, line in enumerate(lines)
    )
    html = f'<figure class="lab" style="max-width:none">{STYLE}{_STYLE}{body}</figure>'
    return Bundle(html, f"{told}\n\n{plain}")


def _step(what: Variant | Step | int) -> Step:
    if isinstance(what, Variant):
        return what.step
    return what if isinstance(what, Step) else steps[what]


def _new_lines(before: list[str], after: list[str]) -> set[int]:
    """Numbers, from 0, of the lines of `after` that are not in `before`; blank lines never are."""
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    return {
        number
        for tag, _, _, start, stop in matcher.get_opcodes()
        if tag in ("insert", "replace")
        for number in range(start, stop)
        if after[number].strip()
    }


def _highlighted(source: str) -> Iterator[str]:
    """One HTML line per source line, comments, keywords and preprocessor lines in their tone."""
    line: list[str] = []
    for kind, value in CudaLexer(stripnl=False, ensurenl=True).get_tokens(source):
        tone = next((tone for token, tone in _TONES.items() if kind in token), "")
        pieces = value.split("\n")
        for index, piece in enumerate(pieces):
            if piece:
                words = escape(piece, quote=False)
                line.append(f'<span class="{tone}">{words}</span>' if tone else words)
            if index < len(pieces) - 1:
                yield "".join(line) + "\n"
                line = []
