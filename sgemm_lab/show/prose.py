"""Sentences whose numbers come from the records: a page says what the files say, or nothing."""

import re
from collections.abc import Container, Iterable
from dataclasses import dataclass
from inspect import cleandoc
from string import Formatter

from sgemm_lab.ladder import Step, Variant, as_variant
from sgemm_lab.ladder import ladder as steps
from sgemm_lab.measure import records
from sgemm_lab.measure.gains import Gain
from sgemm_lab.measure.records import Run


@dataclass(frozen=True)
class Told:
    """Markdown where that is shown, else the same words without its marks."""

    markdown: str

    def _repr_markdown_(self) -> str:
        return self.markdown.replace(" %", "\N{NO-BREAK SPACE}%")

    def __repr__(self) -> str:
        words = _MARKS.sub(lambda found: next(filter(None, found.groups()), ""), self.markdown)
        return words.strip()


_MARKS = re.compile(  # a link, emphasis, code, whose words are in the group; a tag
    r"\[([^]]+)\]\([^)]*\)|\*\*(\S(?:[^*]*\S)?)\*\*|\*(\S(?:[^*]*\S)?)\*|`([^`]+)`|</?[a-z]+>"
)


def tell(text: str, **values) -> Told:
    """`text`, Markdown, with `values` put into its fields by str.format: "{gain:.2f} times".

    The last line of a cell that is tagged hide-input, it reads as a paragraph of the page. Raises
    ValueError that names a field without a value, or a value that no field shows.
    """
    text = cleandoc(text)
    fields = {field for _, field, _, _ in Formatter().parse(text) if field is not None}
    names = {re.split(r"[.[]", field)[0] for field in fields}
    for wrong, what in (
        (names - set(values), "has no value"),
        (set(values) - names, "is not told"),
    ):
        if wrong:
            raise ValueError(f"{', '.join(sorted(wrong)) or '{}'} {what}: {text}")
    return Told(text.format(**values))


def recorded(
    kernel: Variant | Step | int, N: int, gpu: str = "h200", label: str = "measured"
) -> Run:
    """The run of `kernel` at M = N = K = `N`: of ours with exactly its macros (those of a Step or a
    number are its defaults; 0 is cuBLAS), of another `label` their fastest kernel of that step.

    Raises LookupError where nothing is recorded.
    """
    runs = [run for run in _runs(kernel, gpu, label) if run.N == N]
    if not runs:
        raise LookupError(f"nothing is recorded of {kernel!r} at N = {N} on {gpu} ({label})")
    return max(runs, key=lambda run: run.gflops)


def speedups(
    this: Variant | Step | int,
    that: Variant | Step | int,
    gpu: str = "h200",
    label: str = "measured",
    sizes: Container[int] = range(1 << 31),
) -> dict[int, float]:
    """How many times as fast `this` is as `that`, at every N of `sizes` where both are recorded.

    As `gains` has it. Raises LookupError where there is no such N.
    """
    common = {run.N for run in _runs(this, gpu, label)} & {run.N for run in _runs(that, gpu, label)}
    found = {}
    for N in sorted(N for N in common if N in sizes):
        before, after = (recorded(kernel, N, gpu, label) for kernel in (that, this))
        found[N] = Gain(before, after, floor=0).ratio
    if not found:
        raise LookupError(f"{this!r} and {that!r} have no N in common on {gpu} ({label})")
    return found


def _runs(kernel: Variant | Step | int, gpu: str, label: str) -> list[Run]:
    """All square runs of `kernel`."""
    if kernel == 0:
        number, macros = 0, {}
    else:
        variant = as_variant(steps[kernel] if isinstance(kernel, int) else kernel)
        number, macros = variant.step.number, dict(variant.macros)
    return [
        run
        for run in records.runs(gpu, number, label=label)
        if run.M == run.N == run.K and (label != "measured" or dict(run.macros) == macros)
    ]


def span(values: Iterable[float], form: str = ".1f") -> str:
    """The smallest and the largest: "1.4 to 1.5", or "1.4" where both are written so."""
    values = list(values)
    return " to ".join(dict.fromkeys(format(each, form) for each in (min(values), max(values))))


def listed(things: Iterable) -> str:
    """ "256, 512 and 1024"; "none" of nothing."""
    *most, last = [str(thing) for thing in things] or ["none"]
    return f"{', '.join(most)} and {last}" if most else last
