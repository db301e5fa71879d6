"""A kernel's source as a cell shows it: the real file, what is new since another step marked."""

from collections.abc import Iterator
from difflib import SequenceMatcher, unified_diff
from html import escape
from itertools import pairwise

from pygments.lexers.c_like import CudaLexer
from pygments.token import Comment, Keyword, Name

from sgemm_lab.ladder import Step, Variant
from sgemm_lab.ladder import ladder as steps
from sgemm_lab.show import explorer
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

_DIFF = """<style>
.lab pre>[data-n]::before{content:attr(data-n)}
.lab pre>.old{color:var(--m);border-color:var(--m);border-left-style:dotted;\
background:color-mix(in srgb,var(--m) 10%,transparent)}
.lab pre>.old>span{font-weight:400}.lab pre>.gap{color:var(--m);padding-left:1em}
.lab pre>.gap::before{content:none}
</style>"""


Source = Variant | Step | int | str  # a str is the text of a kernel of one's own


def show(what: Source, since: Source | None = None, fold: bool = False) -> Bundle:
    """The .cu file of a step, highlighted, each line that is not in `since`'s file marked.

    `fold` shows one line that opens. The plain text marks new lines with "+". Raises ValueError for
    step 0, which has no source, and TypeError for what is neither a step nor a text.
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


def diff(before: Source, after: Source, around: int = 3) -> Bundle:
    """What changes from one kernel to another, with `around` lines about each change.

    Each is a step, whose .cu file is compared, or the text of a kernel of one's own; beside such a
    text, comments and indents don't count. The plain text is a unified diff. Raises ValueError for
    step 0, which has no source, and TypeError for what is neither a step nor a text.
    """
    return _diff(before, after, around, STYLE + _STYLE + _DIFF)


def _diff(before, after, around: int = 3, styled: str = "") -> Bundle:
    """`diff`, with the style sheet `styled`."""
    steps = _step(before), _step(after)
    lean = any(step.text is not None for step in steps)
    (old, at), (new, to) = (_compared(step.source, lean) for step in steps)
    shown = [[*_highlighted(step.source)] for step in steps]
    rows, counts = [], [0, 0]
    for group in SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(around):
        if rows:
            rows.append('<span class="gap">⋯\n</span>')
        for tag, a0, a1, b0, b1 in group:
            if tag == "equal":
                rows += [_row(shown[1][b], b) for b in to[b0:b1]]
                continue
            rows += [_row(shown[0][a], a, "old") for a in at[a0:a1]]
            rows += [_row(shown[1][b], b, "new") for b in to[b0:b1]]
            counts[0] += a1 - a0
            counts[1] += b1 - b0
    told = f"{steps[0].filename} → {steps[1].filename}: {counts[0]} lines go, {counts[1]} come"
    code = f'<div class="highlight"><pre>{"".join(rows)}</pre></div>'
    html = (
        f'<figure class="lab" style="max-width:none">{styled}'
        f"<figcaption>{escape(told)}</figcaption>{code}</figure>"
    )
    names = (step.filename for step in steps)
    plain = "\n".join(unified_diff(old, new, *names, n=around, lineterm=""))
    return Bundle(html, f"{told}\n\n{plain}".rstrip())


class _Statement(str):
    """A line that equals another however they are indented."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and self.strip() == other.strip()

    def __hash__(self) -> int:
        return hash(self.strip())


def _compared(source: str, lean: bool) -> tuple[list[str], list[int]]:
    """The lines that a diff compares, and their numbers from 0: all, or, `lean`, those that hold
    more than a comment, without it."""
    lines = source.splitlines()
    if lean:
        lines = [_Statement(line.partition("//")[0].rstrip()) for line in lines]
    kept = [number for number, line in enumerate(lines) if line or not lean]
    return [lines[number] for number in kept], kept


def changes(step: int = 0) -> explorer.Explorer:
    """A selector of neighbouring kernels and their diffs, open at the one that ends at `step`; it
    works in the browser, also where there is no Python.

    The plain text says how many lines each step changes. Raises ValueError for a step without a
    neighbour before it.
    """
    numbers = [each.number for each in steps if each.function]
    pairs = list(pairwise(numbers))
    step = step or pairs[0][1]
    if step not in (after for _, after in pairs):
        raise ValueError(f"step={step}: choose one from {pairs[0][1]} to {pairs[-1][1]}.")
    bundles = [_diff(*pair) for pair in pairs]
    panes = {(after,): each.html for (_, after), each in zip(pairs, bundles, strict=True)}
    options = [(f"{before}→{after}", after) for before, after in pairs]
    selector = explorer.buttons(
        "step", options, step, [steps[after].title for _, after in pairs], "4.6em"
    )
    told = "\n".join(bundle.text.partition("\n")[0] for bundle in bundles)
    text = f"Diffs between neighbouring kernels.\n\n{told}"
    return explorer.assemble(_STYLE + _DIFF, [selector], panes, text)


def _row(line: str, number: int, style: str = "") -> str:
    """A line of a diff, with its number in its own file, counted from 1."""
    kind = f' class="{style}"' if style else ""
    return f'<span{kind} data-n="{number + 1}">{line}</span>'


def _step(what: Source) -> Step:
    match what:
        case Variant():
            return what.step
        case Step():
            return what
        case int():
            return steps[what]
        case str():
            return Step(-1, "your kernel", "yours", "", "yours", text=what)
    raise TypeError(
        f"{type(what).__name__} is neither a step nor the text of a kernel: give 5, ladder[5] or a "
        "str in CUDA C++."
    )


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
