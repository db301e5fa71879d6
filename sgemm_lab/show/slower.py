"""Where a step or a setting loses, whether that can be told, and what got worse with it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from sgemm_lab.devices import devices
from sgemm_lab.ladder import Step, Variant, as_variant
from sgemm_lab.ladder import ladder as the_steps
from sgemm_lab.measure import gains, records
from sgemm_lab.measure.gains import LEVEL, SLOWER, VERDICTS, Gain
from sgemm_lab.measure.suspects import QUANTITIES, suspects
from sgemm_lab.paths import MEASUREMENTS
from sgemm_lab.show.bundle import (
    ACCENT,
    FAINT,
    INK,
    MUTED,
    Bundle,
    Cell,
    figure,
    plot,
)
from sgemm_lab.show.labels import short, size
from sgemm_lab.show.tables import STALE, captioned, worded


def slower_steps(gpu: str = "h200", directory: Path = MEASUREMENTS) -> Bundle:
    """Every step's default: how many times as fast it is as the step before, at every size."""
    found = gains.steps(gpu, directory)
    sizes = sorted({gain.size for gain in found}, key=lambda size: (prod(size), size))
    cells = {(gain.after.step, gain.size): _marked(gain) for gain in found}
    numbers = sorted({step for step, _ in cells})
    rows = [
        [f"{n} {the_steps[n].title}", *(cells.get((n, size), "–") for size in sizes)]
        for n in numbers
    ]
    same = [f"{100 * gains.floor(gpu, size, directory):.2f} %" for size in sizes]
    rows.append(["one program twice differs by", *same])
    caption = (
        f"{devices[gpu].name}: times as fast as the step before. In brackets: slower. ~: no "
        "difference that can be told from two runs of one program (last row)."
    )
    return captioned([f"over the step before, {short(devices[gpu])}", *map(size, sizes)], rows,
                  caption + STALE * any(gain.stale for gain in found))  # fmt: skip


def _marked(gain: Gain) -> Cell | str:
    words = f"{gain.ratio:.2f}" + "*" * gain.stale
    if gain.verdict == SLOWER:
        return Cell(f"[{words}]", f'<b class="x">[{words}]</b>')
    return f"~{words}" if gain.verdict == LEVEL else words


def slower_settings(gpu: str = "h200", directory: Path = MEASUREMENTS) -> Bundle:
    """Every macro whose larger value loses somewhere: how often, where the most, and what got worse
    there."""
    groups: dict[tuple, list[Gain]] = {}
    for macro, gain in gains.settings(gpu, directory):
        values = gain.before.macros[macro], gain.after.macros[macro]
        groups.setdefault((gain.after.step, macro, values), []).append(gain)
    rows = []
    for (step, macro, (less, more)), found in sorted(groups.items()):
        if any(gain.verdict == SLOWER for gain in found):
            worst = min(found, key=lambda gain: gain.ratio)
            others = {n: v for n, v in worst.after.macros.items() if n != macro}
            at = " ".join([*(f"{n}={v}" for n, v in others.items()), f"N={worst.after.N}"])
            change = f"{step}: {macro} {less} → {more}"
            rows.append(
                [Cell(change, change.replace(" → ", "&nbsp;→&nbsp;")), *_counts(found),
                 f"{worst.ratio:.3f}",
                 worded(at), worded(told(suspects(worst, directory)))]
            )  # fmt: skip
    header = ["more of a macro", *VERDICTS, "lowest", worded("there"), worded("and there, worse")]
    caption = (
        f"{devices[gpu].name}: pairs of variants that differ in one macro, at one size, with at "
        "least one that can be told to be slower. Right: what else got worse in the worst pair."
    )
    stale = any(gain.stale for found in groups.values() for gain in found)
    return captioned(header, rows, caption + STALE * stale)


def slower_reports(directory: Path = MEASUREMENTS) -> Bundle:
    """Every reported kernel that is somewhere slower than the one before it in its source."""
    groups: dict[tuple, list[Gain]] = {}
    for gain in gains.reported(directory):
        groups.setdefault((gain.after.gpu, gain.after.kernel), []).append(gain)
    rows, sources = [], {}
    for (gpu, kernel), found in groups.items():
        worst = min(found, key=lambda gain: gain.ratio)
        if worst.ratio < 1:
            sources[worst.after.source] = None
            rows.append(
                [f"{kernel}, {short(devices[gpu])}", *_counts(found), f"{worst.ratio:.3f}",
                 worst.after.N]
            )  # fmt: skip
    caption = (
        f"Over the kernel before it in the same source. Nobody gives an interval: within "
        f"{100 * gains.REPORTED:.0f} % counts as level. "
        + " ".join(f"{source}." for source in sources)
    )
    return captioned(["reported", *VERDICTS, "lowest", "at N"], rows, caption)


def _counts(found: Iterable[Gain]) -> list[int]:
    counts = Counter(gain.verdict for gain in found)
    return [counts[verdict] for verdict in VERDICTS]


def suspicion(gpu: str = "h200", directory: Path = MEASUREMENTS) -> Bundle:
    """For each quantity: in how many pairs it got worse, and how many of these were slower."""
    having: dict[str, list[Gain]] = {name: [] for name in QUANTITIES}
    innocent = []
    for gain in gains.pairs(gpu, directory):
        worse = suspects(gain, directory)
        for name in worse:
            having[name].append(gain)
        if not worse:
            innocent.append(gain)
    rows = [[name, len(found), *_counts(found)] for name, found in having.items() if found]
    rows.append(["nothing of these", len(innocent), *_counts(innocent)])
    caption = f"{devices[gpu].name}: neighbouring steps, and settings that differ in one macro."
    return captioned(["what got worse", "pairs", *VERDICTS], rows, caption)


def told(worse: Mapping[str, str]) -> str:
    """What `suspects` found, in one line."""
    return "; ".join(f"{name} {change}" for name, change in worse.items()) or "nothing counted"


# ------------------------------------------------------------------------------- one pair


@dataclass(frozen=True)
class _Dot:
    """A quotient of two speeds: the ends of its interval, and how far from 1 one program is."""

    name: str
    low: float
    ratio: float
    high: float
    floor: float
    verdict: str

    @property
    def row(self) -> list[str]:
        interval = f"{self.low:.4f}–{self.high:.4f}"
        floor = f"±{100 * self.floor:.2f} %"
        return [self.name, f"{self.ratio:.4f}", interval, floor, self.verdict]


def over(
    after: Variant | Step,
    before: Variant | Step,
    gpu: str = "h200",
    directory: Path = MEASUREMENTS,
) -> Bundle:
    """How many times as fast `after` is as `before` at every square size that both have, with its
    interval (`gains`) and what can't be told apart. ValueError where there is no such size."""
    pair = as_variant(after), as_variant(before)
    found = gains.series(*pair, gpu, directory)
    if not found:
        raise ValueError(f"no size of {pair[0].key} and {pair[1].key} is recorded on {gpu}")
    dots = [_Dot(f"N = {g.after.N}", g.low, g.ratio, g.high, g.floor, g.verdict) for g in found]
    title = f"Step {_step(pair[0])} over step {_step(pair[1])}, times as fast"
    note = (
        "Bars: from the worst quotient to the best. Grey: how far apart one program's medians are."
    )
    return _dots(title, dots, gpu, note + STALE * any(g.stale for g in found))


def _step(variant: Variant) -> str:
    extra = "" if variant.label == "default" else f" {variant.label}"
    return f"{variant.step.number}{extra}"


def twins(gpu: str = "h200", directory: Path = MEASUREMENTS) -> Bundle:
    """One program timed twice, at every square size: cuBLAS beside itself, and step 3 over step 2,
    which have the same machine code."""
    dots = []
    for run in records.runs(gpu, 0, kind="measured", directory=directory):
        if run.M == run.N == run.K:
            dots.append(_Dot(f"cuBLAS, {run.N}", *run.ratio, 0, LEVEL))
    for gain in gains.twins(gpu, directory):
        N = gain.after.N
        if gain.size == (N, N, N):
            dots.append(_Dot(f"3 over 2, {N}", gain.low, gain.ratio, gain.high, 0, LEVEL))
    note = (
        "Bars: of cuBLAS, timed in pairs with itself, the 95 % interval of the median quotient; of "
        "step 3 over step 2 from the worst quotient to the best."
    )
    return _dots("One program over itself, times as fast", dots, gpu, note)


def _dots(title: str, dots: Sequence[_Dot], gpu: str, note: str) -> Bundle:
    ends = [end for d in dots for end in (d.low, d.high, 1 - d.floor, 1 + d.floor)]
    left, right = min(ends) / 1.02, max(ends) * 1.02

    def draw(axes: Axes) -> None:
        axes.set_title(title)
        axes.set_xscale("log")
        axes.set(xlim=(left, right), ylim=(len(dots) - 0.5, -0.5))
        axes.xaxis.set_major_locator(FixedLocator(_ticks(left, right)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_yticks(range(len(dots)), [dot.name for dot in dots])
        axes.grid(False, axis="y")
        axes.axvline(1, color=INK, linewidth=1.2)
        for row, dot in enumerate(dots):
            tone = ACCENT if dot.verdict == SLOWER else MUTED
            axes.barh(row, 2 * dot.floor, left=1 - dot.floor, height=0.7, color=FAINT)
            axes.plot((dot.low, dot.high), (row, row), color=tone, linewidth=3)
            axes.plot(dot.ratio, row, "o", color=tone, clip_on=False)

    alt = f"{title}, {devices[gpu].name}: " + "; ".join(
        f"{dot.name}: {dot.ratio:.3f}, {dot.verdict}" for dot in dots
    )
    header, rows = ["", "times as fast", "interval", "one program twice", ""], [d.row for d in dots]
    if not any(dot.floor for dot in dots):
        header, rows = header[:3], [row[:3] for row in rows]
    drawing, png = plot(draw, 60 + 20 * len(dots), alt)
    caption = f"{devices[gpu].name}, measured. {note}"
    return figure(drawing, alt + ".", header, rows, caption, png)


_TICKS = (  # the coarsest of which at least three are in sight
    (0.125, 0.25, 0.5, 1, 2, 4, 8),
    (0.25, 0.5, 0.75, 1, 1.25, 1.5, 2),
    (0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3),
    (0.94, 0.96, 0.98, 1, 1.02, 1.04, 1.06),
    (0.98, 0.99, 1, 1.01, 1.02),
)


def _ticks(left: float, right: float) -> list[float]:
    seen = ([tick for tick in ticks if left <= tick <= right] for ticks in _TICKS)
    return next((ticks for ticks in seen if len(ticks) >= 3), [1])
